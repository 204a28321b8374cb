"""`Sums`: products and sum of some rows around a fixed center, private until released; and the terms of a private stream.

A private tracker only adds up rows before a release. The mean is subtracted afterwards, from released numbers. There is one
center for the whole stream, and one offset from it that becomes more accurate the longer the stream is.

Private sums are whole numbers of public units (`eigenveil.core.whole`), also while they wait, fade and are merged. A
release does not depend on the order of rows or on unaccounted rounding. Where sums must be rounded, `Sums.apart` counts how far
that may move neighbours apart, and it is part of the sensitivity.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from eigenveil.core.domain import Domain
from eigenveil.core.ledger import Slot
from eigenveil.core.mechanism import Bounded, Mechanism
from eigenveil.core.rows import Block, Rows, is_sparse
from eigenveil.core.unit import Neighbours, gram_sensitivity, sum_sensitivity
from eigenveil.core.whole import sum_unit
from eigenveil.data.rows import DenseRows, SparseRows
from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace, norm_edge, spiked_edge, symmetric_edge
from eigenveil.linalg.sketch import Sketch
from eigenveil.privacy.floating import dense
from eigenveil.privacy.sums import add_block, bounded_gram, bounded_sum
from eigenveil.tasks.fit.gaps import Rates
from eigenveil.tasks.levels import Levels
from eigenveil.tasks.totals import shrunk

__all__ = [
    "MEAN_SHARE",
    "EnergyBounds",
    "SumTerms",
    "Sums",
    "as_block_rows",
    "filled",
    "floor_of",
    "has_gaps",
    "levels_of",
    "mean_spike",
    "offset_of",
    "require_finite",
    "sketch_of",
    "sum_of_squares",
]


@final
@dataclass(frozen=True, slots=True)
class EnergyBounds:
    """Keep sigma_r / (sigma_1 + ... + sigma_r) within [low, high], both fractions in (0, 1).

    The paper's "1 and 10" are percentages: EnergyBounds(0.01, 0.1). With a low of at most 0.3 times the high, the rank does not
    oscillate.

    >>> import numpy as np
    >>> bounds = EnergyBounds(0.01, 0.2)
    >>> bounds.adjusted(2, np.array([3.0, 2.0, 1.0])), bounds.adjusted(2, np.array([3.0, 0.001]))
    (3, 1)
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        require(
            0 < self.low < self.high < 1,
            "energy bounds must be fractions with 0 < low < high < 1 (the usual choice is 0.01 and 0.1), "
            f"got {self.low} and {self.high}",
        )

    def adjusted(self, rank: int, values: Array) -> int:
        """The rank after one block: one more, one less or the same, never below 1 or above the number of `values`.

        `values`, (p,), are singular values in data scale, largest first. Those beyond `rank` are not used.
        """
        if len(values) < rank:
            # Too few rows to decide.
            return rank
        total = float(values[:rank].sum())
        # Rows of zeros have no energy to compare with.
        if total <= 0:
            return max(rank, 1)
        share = float(values[rank - 1]) / total
        if share > self.high:
            return min(rank + 1, len(values))
        return max(rank - 1, 1) if share < self.low else rank


# The share of a release's mu^2 for the sum of rows: the mean needs little.
MEAN_SHARE = 0.05
_CACHED_ROWS = 128
# Whole sums fade by multiples of 2^-20. `_times` splits them in two, so that no product has more than 63 bits.
_FADE_BITS, _LOW_BITS = 20, 26
# This many rows, 34 bits each, keep a sum below 2^62.
_MOST_ROWS = 1 << 28
Integers = NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SumTerms:
    """The public terms of a private stream. A person has at most one row in a block."""

    domain: Domain  # Clips rows.
    neighbours: Neighbours = Neighbours.ZERO_OUT  # Neighbouring streams have the same number of rows.
    person_blocks: int = 1  # The most blocks with rows of one person.
    center: bool = True  # The mean is released too.
    forget: float = 1.0  # As in `BlockTracker`, and so is `adapt`.
    adapt: EnergyBounds | None = None
    series: str = "stream"
    rates: Rates | None = None  # Released sums are divided by them where values may be missing.

    def __post_init__(self) -> None:
        require(
            self.neighbours in (Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE),
            f"neighbours of a stream must be zero-out or replace-one, got {self.neighbours.value!r}: with a row missing, every "
            "later block boundary would move",
        )
        require(self.person_blocks >= 1, f"person_blocks must be at least 1, got {self.person_blocks}")
        require(0 < self.forget <= 1, f"forget must lie in (0, 1], got {self.forget}")

    @property
    def share(self) -> float:
        """The share of each release for the sum of rows."""
        return MEAN_SHARE if self.center else 0.0

    def gram_sensitivity(self, rows: int = 1) -> float:
        """Sensitivity of a sum of products to a person with `rows` rows: `rows` times that of one row.

        Proof. Their contribution is a sum of `rows` semi-definite matrices, each of Frobenius norm at most B^2, since weights are
        at most one. Hence it is semi-definite of norm at most rows B^2. The proof of `gram_sensitivity` uses nothing else.
        """
        return rows * gram_sensitivity(self.domain.radius, self.neighbours)

    def sum_sensitivity(self, rows: int = 1) -> float:
        """The same for a sum of rows: the contribution is a vector of norm at most rows B."""
        return rows * sum_sensitivity(self.domain.radius, self.neighbours)

    @property
    def whole(self) -> bool:
        """Whether sums are whole numbers, as they are where privacy is claimed."""
        return self.domain.unit is not None

    def fade(self, blocks: int = 1) -> float:
        """The factor of sums after this many blocks: forget^(2 blocks), for whole sums to the nearest multiple of 2^-20.

        >>> SumTerms(domain=Domain(dim=1, radius=1.0), forget=0.9).fade() * 2**20
        849347.0
        """
        exact = self.forget ** (2 * blocks)
        return round(exact * 2**_FADE_BITS) / 2**_FADE_BITS if self.whole else exact


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Sums:
    """Products, (d, d), and sum, (d,), of rows of total `weight`, and the variances of the noise in their entries.

    Where privacy is claimed, sums are whole numbers until they are released: int64. The unit of the products is 2^bits
    `domain.unit`^2, and that of the sum 2^bits `sum_unit(domain)`. Rounding may have moved neighbours apart by `apart` of these
    units in an entry, on top of what their rows do. Like `bits`, this follows from the numbers of rows and blocks only.
    """

    gram: NDArray[Any]
    total: NDArray[Any]
    weight: float
    gram_noise: float = 0.0
    total_noise: float = 0.0
    apart: float = 0.0
    bits: int = 0

    def __post_init__(self) -> None:
        dim = len(self.total)
        require(self.total.ndim == 1 and self.gram.shape == (dim, dim), "products and sum must be of the same columns")
        require(self.gram.dtype == self.total.dtype, "products and sum must be of the same kind of numbers")

    def __repr__(self) -> str:
        # No numbers: these are raw data, and a log may print this.
        return f"Sums(dim={len(self.total)})"

    @classmethod
    def none(cls, terms: SumTerms) -> "Sums":
        """The sums of no rows."""
        dim, kind = terms.domain.dim, np.int64 if terms.whole else np.float64
        # A broadcast zero takes no memory. It is read-only, and every sum that adds to it makes new arrays first.
        gram = np.broadcast_to(np.zeros((), dtype=kind), (dim, dim))
        return cls(gram=gram, total=np.zeros(dim, dtype=kind), weight=0.0)

    @classmethod
    def of(cls, rows: Any, terms: SumTerms) -> "Sums":
        """The sums of a block of rows, dense or CSR, in the domain: private."""
        return cls.none(terms).and_rows(rows, terms)

    def and_rows(self, rows: Any, terms: SumTerms) -> "Sums":
        """These sums, faded by one block, plus a block of rows in the domain: private."""
        if terms.whole:
            return self._and_whole_rows(rows, terms)
        fade, weight = terms.fade(), float(rows.shape[0])
        if is_sparse(rows):
            block = as_block_rows(rows)
            gram = bounded_gram(block, domain=terms.domain, neighbours=terms.neighbours).value
            total = np.zeros(terms.domain.dim)
            if terms.center:
                total = bounded_sum(block, domain=terms.domain, neighbours=terms.neighbours).value
            return self.and_then(Sums(gram=gram, total=total, weight=weight), fade)
        gram, total = fade * self.gram, fade * self.total
        product = np.empty_like(gram)
        # A few rows at a time stay in the inner cache, and no second block is needed.
        for start in range(0, len(rows), _CACHED_ROWS):
            inside = _inside(rows[start : start + _CACHED_ROWS], terms.domain)
            np.matmul(inside.T, inside, out=product)
            gram += product
            if terms.center:
                total += inside.sum(axis=0)
        return Sums(
            gram=gram,
            total=total,
            weight=fade * self.weight + weight,
            gram_noise=fade**2 * self.gram_noise,
            total_noise=fade**2 * self.total_noise,
        )

    def _and_whole_rows(self, rows: Any, terms: SumTerms) -> "Sums":
        # Only finite numbers can be rounded to whole ones.
        require_finite(rows, gaps=terms.domain.gaps is not None)
        count = rows.shape[0]
        require(count <= _MOST_ROWS, f"a block of a private stream must have at most {_MOST_ROWS} rows, got {count}")
        faded = self._faded(terms.fade())
        faded = faded._coarser(_bits_for(faded.weight + count, self.bits))
        gram, total = faded.gram, faded.total
        if faded.bits > 0:
            # The block is added up in its own fine units and shifted once. Each rounding moves neighbours apart, so one
            # must do.
            gram, total = np.zeros_like(gram), np.zeros_like(total)
        # In place: fading has made new arrays.
        add_block(as_block(rows), terms.domain, gram=gram, total=total if terms.center else None)
        if faded.bits > 0:
            gram, total = faded.gram + (gram >> faded.bits), faded.total + (total >> faded.bits)
        return replace(faded, gram=gram, total=total, weight=faded.weight + count)

    def and_then(self, later: "Sums", fade: float) -> "Sums":
        """These sums, faded, plus later ones."""
        if later.gram.dtype == np.int64:
            first = self._faded(fade)
            bits = _bits_for(first.weight + later.weight, max(first.bits, later.bits))
            first, later = first._coarser(bits), later._coarser(bits)
            gram, total = first.gram, first.total
            # In place is safe: `_faded` has made new arrays, so no caller's sums change.
            gram += later.gram
            total += later.total
            return Sums(gram=gram, total=total, weight=first.weight + later.weight, apart=first.apart + later.apart, bits=bits)
        return Sums(
            gram=later.gram + (self.gram if fade == 1 else fade * self.gram),
            total=later.total + fade * self.total,
            weight=later.weight + fade * self.weight,
            gram_noise=later.gram_noise + fade**2 * self.gram_noise,
            total_noise=later.total_noise + fade**2 * self.total_noise,
        )

    def _faded(self, fade: float) -> "Sums":
        """Whole sums times `fade`, a multiple of 2^-20, rounded down: new arrays, exactly symmetric as before.

        That moves neighbours apart by less than a unit in an entry, because floor(a) - floor(b) differs from a - b by less than
        one. They are at most fade * apart + 1 units apart afterwards, and never more than 1 / (1 - fade) if every block fades.
        """
        apart = self.apart if fade == 1 or self.weight == 0 else fade * self.apart + 1
        return Sums(
            gram=_times(self.gram, fade), total=_times(self.total, fade), weight=fade * self.weight, apart=apart, bits=self.bits
        )

    def _coarser(self, bits: int) -> "Sums":
        """The same in units of 2^bits, no finer than before, rounded down: again by less than a unit."""
        more = bits - self.bits
        if more == 0:
            return self
        return replace(self, gram=self.gram >> more, total=self.total >> more, apart=self.apart / 2**more + 1, bits=bits)

    def released(self, terms: SumTerms, mechanism: Mechanism, *, rows: int, label: str, slot: Slot) -> "Sums":
        """The sums released through `mechanism`, from `slot`; a person has at most `rows` rows in them.

        Sensitivity: that of the rows, plus rounding. Blocks without a row of the person are the same for neighbours, to the last
        bit. A block with such a row may be up to two units further apart in an entry than it really is. Sparse rows around a
        center are rounded (`add_block`), and so is a block in coarser units than its own. With fading, an entry is off by at most
        2 rows + apart units, and an array of `size` entries by sqrt(size) times that. A radius has 2^16 units or more, and its
        square 2^32, so this is negligible.
        """
        by_gram, by_sum = terms.gram_sensitivity(rows), terms.sum_sensitivity(rows)
        gram, total = self.gram, self.total
        if terms.domain.unit is not None:
            dim, units = terms.domain.dim, 2.0**self.bits
            # The root of the number of entries is d for the products and sqrt(d) for the sum.
            by_gram += dim * (2 * rows + self.apart) * units * terms.domain.unit**2
            by_sum += math.sqrt(dim) * (2 * rows + self.apart) * units * sum_unit(terms.domain)
            # Only the conversion rounds, because units are powers of two.
            gram = gram.astype(np.float64)
            gram *= units * terms.domain.unit**2
            total = total * (units * sum_unit(terms.domain))
        share = 1.0 - terms.share
        gram = mechanism.release(Bounded(gram, by_gram, symmetric=True), label=f"{label}: products", share=share, slot=slot)
        total_noise = 0.0
        if terms.center:
            total = mechanism.release(Bounded(total, by_sum), label=f"{label}: sum", share=terms.share, slot=slot)
            total_noise = mechanism.scale(by_sum, share=terms.share) ** 2
        # Symmetric noise has half the variance off the diagonal.
        sums = Sums(
            gram=gram,
            total=total,
            weight=self.weight,
            gram_noise=mechanism.scale(by_gram, share=share) ** 2 / 2,
            total_noise=total_noise,
        )
        return sums if terms.rates is None else sums.divided(terms.rates)

    def divided(self, rates: Rates) -> "Sums":
        """Released sums over all rows, from those of rows with gaps: free, and as if nothing had been missing from here on."""
        # Entries that are seldom seen are mostly noise, and count for less.
        gram, noise_inflation = rates.full_gram(self.gram, noise=math.sqrt(self.gram_noise))
        return replace(
            self,
            gram=gram,
            total=rates.full_sum(self.total),
            gram_noise=self.gram_noise * noise_inflation**2,
            total_noise=self.total_noise * rates.sum_noise**2,
        )


def _times(array: Integers, fade: float) -> Integers:
    """floor(fade * array) for whole numbers up to 2^62, fade = k 2^-20: a new array.

    With K = high 2^26 + low, K k 2^-20 = high k 2^6 + low k 2^-20. The first is whole and at most 2^62, and low k is below 2^46.

    >>> _times(np.array([-3, 2**61 + 1]), 0.5).tolist() == [-2, 2**60]
    True
    """
    if fade == 1.0:
        return np.array(array)
    k, product = round(fade * 2**_FADE_BITS), np.empty(array.shape, dtype=np.int64)
    for start in range(0, len(array), _CACHED_ROWS):
        piece, out = array[start : start + _CACHED_ROWS], product[start : start + _CACHED_ROWS]
        np.right_shift(piece, _LOW_BITS, out=out)
        out *= k << (_LOW_BITS - _FADE_BITS)
        out += ((piece & ((1 << _LOW_BITS) - 1)) * k) >> _FADE_BITS
    return product


def _bits_for(rows: float, bits: int) -> int:
    """The least number of bits, from `bits` on, such that sums of `rows` rows in units of 2^bits stay below 2^62."""
    # Coarser units and not an error: a stream that is never synchronised must not stop when int64 is full
    # (docs/decisions/0007).
    while rows > _MOST_ROWS << bits:
        bits += 1
    return bits


def require_finite(rows: Any, *, gaps: bool) -> None:
    """Refuse a block with infinite entries, or with NaN unless `gaps` are allowed."""
    stored = rows.data if is_sparse(rows) else rows
    # With a rule for gaps NaN is a missing value, and infinity is none.
    good = np.isfinite if not gaps else lambda values: ~np.isinf(values)
    finite = all(good(stored[start : start + _CACHED_ROWS]).all() for start in range(0, len(stored), _CACHED_ROWS))
    require(finite, "rows must be finite, and not too large to square")


def _inside(rows: Any, domain: Domain) -> Array:
    """Dense rows clipped by the domain, (b, d), in floating point: for streams without privacy."""
    if math.isinf(domain.radius) and domain.scale is None and domain.low is None:
        # Without bounds there is nothing to clip.
        return np.asarray(rows, dtype=np.float64) if domain.center is None else rows - domain.center
    return dense(domain, Block(rows))


def levels_of(sums: Sums, number: int) -> Levels:
    """A release of this number, as one stretch of a stream. A diagonal entry has twice the variance of the others."""
    return Levels.of(
        number,
        sums.total,
        energy=float(np.trace(sums.gram)),
        weight=sums.weight,
        total_noise=sums.total_noise,
        energy_noise=2 * len(sums.total) * sums.gram_noise,
    )


def as_block_rows(rows: Any) -> Rows:
    """A block of rows as `Rows`."""
    if not is_sparse(rows):
        return DenseRows(rows)
    import scipy.sparse as sp

    return SparseRows(sp.csr_array(rows))


def as_block(rows: Any) -> Block:
    """A block of rows as one `Block`, sparse ones in canonical form."""
    return next(iter(as_block_rows(rows).blocks(max(1, rows.shape[0]))))


def offset_of(total: Array, weight: float, *, noise: float) -> Array:
    """The offset of the mean from the center, (d,), from a released sum whose entries have noise of variance `noise`."""
    if weight <= 0:
        return np.zeros_like(total)
    return shrunk(total / weight, noise=math.sqrt(noise * len(total)) / weight)


def floor_of(sums: Sums, *, spike: float = 0.0) -> float:
    """What noise alone exceeds in one look of a hundred: for eigenvalues of released sums around their mean.

    `spike` is what an earlier mean has left in the products.
    """
    entry = math.sqrt(2 * sums.gram_noise)
    if entry == 0:
        return 0.0
    dim = len(sums.total)
    spike += mean_spike(sums.total, sums.weight, noise=sums.total_noise)
    return entry * spiked_edge(symmetric_edge(dim), spike=spike / entry, row=dim / 2)


def mean_spike(total: Array, weight: float, *, noise: float) -> float:
    """The largest eigenvalue that the error of a mean leaves in w m m^T - w o o^T, exceeded in one look of a hundred.

    Here m is the true offset of the mean and o = `offset_of` what a released sum makes of it. Let M = |m|^2, and E the squared
    norm of the noise in the sum over the weight, at right angles to m. Then o = M / (M + E) (m + noise). The matrix of rank
    two has the eigenvalue w M E / (2 (M + E)) (1 + sqrt(1 + 4 M / E)): about w M for small M, and w sqrt(M E) for large. The
    released squared norm stands for M, which it exceeds.
    """
    if weight <= 0 or noise == 0:
        return 0.0
    squared_mean = float(total @ total) / weight**2
    error = noise * (norm_edge(len(total)) / weight) ** 2
    return weight * squared_mean * error / (2 * (squared_mean + error)) * (1 + math.sqrt(1 + 4 * squared_mean / error))


def sketch_of(sums: Sums, center: Array | None, *, rank: int | None = None) -> Sketch:
    """The sketch of released sums around `center`, (d,): the mean subtracted, and negative eigenvalues set to zero."""
    dim = len(sums.total)
    # Once, from all released sums. Subtracting each increment's own noisy mean would add a random direction per
    # increment, for short ones more than the noise (docs/decisions/0007).
    offset = offset_of(sums.total, sums.weight, noise=sums.total_noise)
    scatter = np.array(sums.gram)
    for start in range(0, dim if offset.any() else 0, _CACHED_ROWS):
        # A strip at a time, so that this needs only one more matrix.
        scatter[start : start + _CACHED_ROWS] -= np.outer(sums.weight * offset[start : start + _CACHED_ROWS], offset)
    # Noise can make it negative.
    energy = max(float(np.trace(scatter)), 0.0)
    space = Subspace.of_gram(scatter, rank=dim if rank is None else min(rank, dim), overwrite=True)
    return Sketch(subspace=space, mean=offset if center is None else center + offset, weight=sums.weight, energy=energy)


# Rows are solved a few at a time, because each needs a small matrix.
_AT_ONCE = 256


def has_gaps(rows: Array) -> bool:
    """Whether a dense block contains NaN. In the usual case one sum shows that it does not.

    >>> has_gaps(np.array([[1.0, np.nan]])), has_gaps(np.ones((2, 2)))
    (True, False)
    """
    return not math.isfinite(sum_of_squares(rows)) and bool(np.isnan(rows).any())


def sum_of_squares(rows: Array) -> float:
    """Sum of squares of all entries, (n, d); not finite if an entry is not, or is too large.

    >>> sum_of_squares(np.array([[3.0, 4.0]]))
    25.0
    """
    with np.errstate(over="ignore", invalid="ignore"):
        # BLAS is twice as fast, but it would copy an array that is not contiguous.
        return float(np.vdot(rows, rows) if rows.flags.c_contiguous else np.einsum("ij,ij->", rows, rows))


def filled(rows: Array, sketch: Sketch) -> Array:
    """`rows`, (n, d), with every NaN replaced by its expectation given the rest of its row; an empty row becomes the mean.

    Rows are modelled as mean + U z + e. Here z has variances values^2 / weight, and e has one variance s in every column, from
    the rest of the sketch's energy. Let U_o be the observed rows of U and D = diag(values^2) / weight. Then
    z = (U_o^T U_o + s D^-1)^-1 U_o^T (y - mean)_o: regularised least squares on the observed coordinates. Before any row was
    seen, the column means of these rows are used.

    >>> from eigenveil.linalg import Subspace
    >>> sketch = Sketch(
    ...     subspace=Subspace(np.array([[0.6], [0.8]]), np.array([10.0])), mean=np.zeros(2), weight=4.0, energy=100.0
    ... )
    >>> filled(np.array([[3.0, np.nan]]), sketch).round(6).tolist()
    [[3.0, 4.0]]
    """
    gaps = np.isnan(rows)
    if not gaps.any():
        return rows
    whole = np.array(rows, dtype=np.float64)
    space, weight = sketch.subspace, sketch.weight
    if weight <= 0 or space.rank == 0:
        counts = (~gaps).sum(axis=0)
        means = np.where(gaps, 0.0, whole).sum(axis=0) / np.maximum(counts, 1)
        return np.where(gaps, means, whole)
    variances = np.square(space.values) / weight
    # A floor far below the data keeps the small systems solvable where the rest of the energy is zero.
    rest = max(sketch.energy / weight - float(variances.sum()), 0.0) / max(space.dim - space.rank, 1)
    rest = max(rest, 1e-12 * float(variances[0]), math.ulp(0.0))
    hold = rest / np.maximum(variances, 1e-12 * float(variances[0]) + math.ulp(0.0))
    torn = np.flatnonzero(gaps.any(axis=1))
    for start in range(0, len(torn), _AT_ONCE):
        lines = torn[start : start + _AT_ONCE]
        present = ~gaps[lines]
        # Zeros at the gaps, so that one product with the whole basis is U_o^T (y - mean)_o for every row.
        off = np.where(present, whole[lines] - sketch.mean, 0.0)
        inner = np.einsum("nd,dk,dl->nkl", present.astype(np.float64), space.basis, space.basis, optimize=True)
        inner[:, np.arange(space.rank), np.arange(space.rank)] += hold
        scores = np.linalg.solve(inner, (off @ space.basis)[..., None])[..., 0]
        guess = sketch.mean + scores @ space.basis.T
        whole[lines] = np.where(present, whole[lines], guess)
    return whole
