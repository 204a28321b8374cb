"""Methods that the papers compare with, as printed: one class each, with `fit`, `components_`, `guarantee_` and `source`.

`eigenveil reproduce`, the demo, the audit and benchmarks all call these. Nothing is clipped, noise is drawn in floating point,
and most calibrations are looser or weaker than they claim. Therefore `guarantee_` is always "none", with the reason.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self, final

import numpy as np
from numpy.random import Generator

from eigenveil.core.accounting import Budget
from eigenveil.data.rows import Symmetric
from eigenveil.errors import require
from eigenveil.linalg import Array, align_procrustes, align_signs, orthonormal, signed, top_eigen
from eigenveil.methods.fedpower import constant_steps, decaying_steps
from eigenveil.papers.theory import (
    analyze_gauss_scale,
    balcan_scale,
    classical_multiplier,
    fedpower_multiplier,
    fpca_scale,
    mod_sulq_scale,
    ppm_multiplier,
    ppm_scale,
    sulq_scale,
)
from eigenveil.privacy.guarantee import Guarantee

__all__ = ["DDPPM", "AnalyzeGauss", "Baseline", "FedPower", "FpcaEdge", "LocalRows", "ModSulq", "NoisyPower", "Sulq"]

# One interaction removed changes the matrix by C with sqrt(sum_i ||C_i:||_1^2) <= sqrt(2), PPM Lemma 6.1. So does one edge of a
# graph: C has a one in two mirrored places. For one row replaced by another, both in the unit ball, ||C||_F <= sqrt(2).
_ROOT_2 = math.sqrt(2.0)


@dataclass(eq=False)
class Baseline(ABC):
    """A published method. Changes in place: `fit` sets `components_`, (k, d), and `guarantee_`."""

    n_components: int
    _: KW_ONLY
    random_state: int | None = None  # Methods with the same seed share their start and their standard normals.
    components_: Array = field(init=False, repr=False)
    guarantee_: Guarantee = field(init=False, repr=False)
    paper: ClassVar[str]  # With the algorithm or equation.
    caveat: ClassVar[str]  # Why nothing is guaranteed.

    @property
    def source(self) -> str:
        """The paper, and the algorithm or equation whose noise `fit` draws."""
        return self.paper

    def fit(self, X: Any) -> Self:
        """Find `components_` in rows, (n, d), in a `Symmetric`, or in a list of parts where the method has several parties."""
        require(self.n_components >= 1, f"n_components must be at least 1, got {self.n_components}")
        basis = self._find(X, self._normals(1))
        require(basis.shape[1] >= self.n_components, f"{self.n_components} components were asked of {basis.shape[1]}")
        self.components_ = signed(basis[:, : self.n_components]).T
        self.guarantee_ = Guarantee.none(f"{self.source}: {self.caveat}")
        return self

    @abstractmethod
    def _find(self, X: Any, rng: Generator) -> Array:
        """A basis, (d, at least k), leading directions first."""

    def _normals(self, stream: int) -> Generator:
        """A generator for the start (0) or for noise (1), so that one does not depend on how much the other draws."""
        return np.random.default_rng(None if self.random_state is None else (self.random_state, stream))

    def _start(self, dim: int, width: int) -> Array:
        return orthonormal(self._normals(0).standard_normal((dim, width)))


def _gram(X: Any) -> Array:
    """X^T X, (d, d), of rows; a `Symmetric` as it is."""
    if isinstance(X, Symmetric):
        return np.asarray(X.matrix, dtype=np.float64)
    gram = X.T @ X
    return np.asarray(gram.toarray() if hasattr(gram, "toarray") else gram, dtype=np.float64)


def _mirrored(noise: Array) -> Array:
    """The entries on and above the diagonal, and the same below it."""
    mirrored: Array = np.triu(noise) + np.triu(noise, 1).T
    return mirrored


@final
@dataclass(eq=False)
class AnalyzeGauss(Baseline):
    """The Gram matrix with one normal for every pair of columns, and its eigenvectors.

    `adjacency` is one row of norm at most `row_bound` replaced by another, or one interaction of a recommender, for which PPM's
    own analysis of one release gives the scale.

    >>> found = AnalyzeGauss(1, epsilon=0.5, delta=1e-5, random_state=0).fit(np.diag([1000.0, 1.0]))
    >>> found.components_.round(2).tolist(), found.guarantee_.epsilon
    ([[1.0, -0.0]], None)
    """

    _: KW_ONLY
    epsilon: float
    delta: float
    row_bound: float = 1.0
    adjacency: Literal["row", "interaction"] = "row"
    paper = "Analyze Gauss (Dwork et al. 2014), Algorithm 1"
    caveat = "its textbook calibration is proved for epsilon < 1 only, rows are not clipped, and noise is drawn in floating point"

    def _find(self, X: Any, rng: Generator) -> Array:
        gram, budget = _gram(X), Budget(self.epsilon, self.delta)
        scale = _ROOT_2 * ppm_multiplier(budget, rounds=1)
        if self.adjacency == "row":
            scale = analyze_gauss_scale(budget, dim=len(gram)) * self.row_bound**2
        noisy = gram + scale * _mirrored(rng.standard_normal(gram.shape))
        return top_eigen(noisy, rank=self.n_components, overwrite=True)[1]


@final
@dataclass(eq=False)
class ModSulq(Baseline):
    """The Gram matrix with the noise of (6), times n, and its left singular vectors.

    `mirror="noise"` is symmetric noise, as printed, and "none" independent noise in all entries. "authors" reproduces the
    authors' program, which puts the *data* below the diagonal where the mirrored noise belongs: half of that matrix is 2 A,
    without noise.
    """

    _: KW_ONLY
    epsilon: float
    delta: float
    mirror: Literal["noise", "authors", "none"] = "noise"
    paper = "MOD-SuLQ (Chaudhuri et al. 2012), FPCA (6)"
    caveat = "it is for rows in the unit ball, rows are not clipped, and noise is drawn in floating point"

    def _find(self, X: Any, rng: Generator) -> Array:
        gram = _gram(X)
        noise = mod_sulq_scale(Budget(self.epsilon, self.delta), dim=len(gram)) * rng.standard_normal(gram.shape)
        if self.mirror == "authors":
            noisy = gram + np.triu(noise) + np.tril(gram, -1)
        else:
            noisy = gram + (_mirrored(noise) if self.mirror == "noise" else noise)
        return np.linalg.svd(noisy)[0]


@final
@dataclass(eq=False)
class Sulq(Baseline):
    """The Gram matrix with independent noise in every entry, omega^2 = 8 d^2 log^2(d / delta) / epsilon^2."""

    _: KW_ONLY
    epsilon: float
    delta: float
    paper = "SuLQ (Blum et al. 2005), as FPCA quotes it after (7)"
    caveat = ModSulq.caveat

    def _find(self, X: Any, rng: Generator) -> Array:
        gram = _gram(X)
        scale = sulq_scale(Budget(self.epsilon, self.delta), dim=len(gram))
        return np.linalg.svd(gram + scale * rng.standard_normal(gram.shape))[0]


@final
@dataclass(eq=False)
class NoisyPower(Baseline):
    """PPM Alg. 1: Z <- QR(A Z + s(Z) N) for `rounds` rounds, where A is the Gram matrix, a `Symmetric`, or a linear operator.

    `sensitivity` is PPM's max_i ||Z_i:||, (8); sqrt(p) max |Z_ij| of "balcan" and "hardt-price", which agree, (3); or "fedpower",
    the noise of FedPower Alg. 2 with one user per device, as PPM compares with it. `users` add the noise in the open; FedPower's
    server adds it once more. `adjacency` is one diagonal entry, (6), an update (7), an edge, an interaction, or a row.
    """

    _: KW_ONLY
    epsilon: float | None  # None for no noise: the reference that PPM's figures seem to use.
    delta: float = 1e-4
    rounds: int = 3
    width: int | None = None  # p, at least k.
    sensitivity: Literal["ppm", "balcan", "hardt-price", "fedpower"] = "ppm"
    adjacency: Literal["entry", "update", "edge", "interaction", "row"] = "update"
    row_bound: float = 1.0
    users: int = 1
    basis_: Array = field(init=False, repr=False)  # (d, p), after the last round.
    row_norms_: tuple[float, ...] = field(init=False, repr=False)  # max_i ||Z_i:|| of every basis that was multiplied.
    paper = "the private power method (PPM Alg. 1; Balcan et al. 2016; Hardt and Price 2014)"
    caveat = (
        "it is for the stated change of the matrix and not for a person, and the proof of its calibration ends at epsilon = "
        "2.34 log(1/delta), not at the printed 4 log(1/delta)"
    )

    def _find(self, X: Any, rng: Generator) -> Array:
        matrix = X if hasattr(X, "matvec") else _gram(X)
        dim, norms = matrix.shape[0], []
        basis = self._start(dim, self.width or self.n_components)
        for _ in range(self.rounds):
            norms.append(float(np.linalg.norm(basis, axis=1).max()))
            scale = 0.0 if self.epsilon is None else self.scale(basis)
            product = np.asarray(matrix @ basis) + scale * rng.standard_normal(basis.shape)
            basis = orthonormal(product)
        self.basis_, self.row_norms_ = basis, tuple(norms)
        return np.linalg.svd(product, full_matrices=False)[0]

    def scale(self, basis: Array) -> float:
        """The standard deviation of the noise on each entry of A Z, for Z = `basis`, (d, p)."""
        assert self.epsilon is not None
        budget = Budget(self.epsilon, self.delta)
        if self.adjacency == "row":
            return _ROOT_2 * ppm_multiplier(budget, rounds=self.rounds) * self.row_bound**2
        factor = 1.0 if self.adjacency in ("entry", "update") else _ROOT_2
        if self.sensitivity == "ppm":
            return factor * math.sqrt(self.users) * ppm_scale(budget, rounds=self.rounds, basis=basis)
        if self.sensitivity == "fedpower":
            # On the sum, which is s times the average, each of s devices adds sigma max |Z_ij|, and the server once more.
            largest = float(np.abs(basis).max())
            return factor * largest * math.sqrt(self.users + 1) * fedpower_multiplier(budget, rounds=self.rounds)
        return factor * math.sqrt(self.users) * balcan_scale(budget, rounds=self.rounds, basis=basis)


@final
@dataclass(eq=False)
class LocalRows(Baseline):
    """Every row is shared with noise of variance 2 ln(1.25 / delta) / epsilon^2, and then an SVD. `fit` takes rows, or parts."""

    _: KW_ONLY
    epsilon: float
    delta: float
    scores_: Array = field(init=False, repr=False)  # Left singular vectors of the noisy rows, (n, k).
    paper = "D-DP-PM section IV.A, LDP"
    caveat = "its calibration is proved for epsilon < 1 and for rows that one person moves by at most one, and used beyond both"

    def _find(self, X: Any, rng: Generator) -> Array:
        rows = np.vstack(X) if isinstance(X, Sequence) else np.asarray(X, dtype=np.float64)
        scale = classical_multiplier(Budget(self.epsilon, self.delta))
        left, _, right = np.linalg.svd(rows + scale * rng.standard_normal(rows.shape), full_matrices=False)
        self.scores_ = left[:, : self.n_components]
        return right.T


@final
@dataclass(eq=False)
class FpcaEdge(Baseline):
    """FPCA Alg. 3 at a fixed rank: the covariance of each block of rows gets a mask, and what is left of it is merged.

    With `mask_rows="block"` the mask has n = b in (17), as printed. "all" divides it by all rows while the covariance is
    divided by b, as the authors' program does. `merge="values"` merges U Sigma, as printed, and "vectors" merges the U of each
    block without its singular values, as their program does. The covariance comes in slices of `columns`, all at once if None.
    """

    _: KW_ONLY
    epsilon: float | None  # None for no mask.
    delta: float = 0.05
    block: int = 50
    columns: int | None = None
    mask_rows: Literal["block", "all"] = "block"
    merge: Literal["values", "vectors"] = "values"
    paper = "FPCA Alg. 3 with the mask of (17)"
    caveat = "rows are not clipped, every block pays its own mask, and with mask_rows='all' the mask is n / b times too small"

    def _find(self, X: Any, rng: Generator) -> Array:
        rows = np.asarray(X, dtype=np.float64)
        dim, rank = rows.shape[1], self.n_components
        require(len(rows) >= self.block, f"a block has {self.block} rows, and there are {len(rows)}")
        divisor = self.block if self.mask_rows == "block" else len(rows)
        omega = 0.0 if self.epsilon is None else fpca_scale(Budget(self.epsilon, self.delta), dim=dim) / divisor
        width = min(self.columns or dim, dim)
        # A last slice would be short, so it is part of the one before, as in the authors' program.
        cuts = [*range(0, dim - width + 1, width), dim]
        total = np.zeros((dim, 0))
        for begin in range(0, len(rows) - self.block + 1, self.block):
            block, directions = rows[begin : begin + self.block], np.zeros((dim, 0))
            for low, high in pairwise(cuts):
                piece = block.T @ block[:, low:high] / self.block
                if omega:
                    piece += omega * rng.standard_normal(piece.shape)
                directions = _truncated(np.hstack([directions, piece]), rank)
            if self.merge == "vectors":
                directions = directions / np.maximum(np.linalg.norm(directions, axis=0), 1e-300)
            total = _truncated(np.hstack([total, directions]), rank)
        return np.linalg.svd(total, full_matrices=False)[0]


def _truncated(matrix: Array, rank: int) -> Array:
    """U Sigma of the leading `rank` left singular vectors."""
    left, values, _ = np.linalg.svd(matrix, full_matrices=False)
    return np.asarray(left[:, :rank] * values[:rank])


@final
@dataclass(eq=False)
class FedPower(Baseline):
    """FedPower Alg. 2, or Alg. 3 with `participants`, as printed. `fit` takes a list of rows, or of `Symmetric` with people.

    Devices take `local_steps` power steps between communications, one fewer each time with `decay` (3.15). They align with the
    device of most rows, (3.2) or (3.16), or with the "broadcast" basis. A plain QR is used throughout, so that "none" leaves
    signs where LAPACK puts them. `epsilon` is for the devices and the server, or a pair, over the whole run.

    In Alg. 3, scheme 1 draws devices by size and with replacement, and scheme 2 uniformly without.
    """

    _: KW_ONLY
    rounds: int
    width: int | None = None  # r, at least k.
    local_steps: int = 1
    decay: bool = False
    align: Literal["procrustes", "sign", "none"] = "procrustes"
    align_to: Literal["device", "broadcast"] = "device"
    epsilon: float | tuple[float, float] | None = None
    delta: float = 1e-5
    participants: int | None = None
    scheme: Literal[1, 2] = 1
    products_: tuple[Array, ...] = field(init=False, repr=False)  # What the server broadcasts, (d, r), in every communication.
    residuals_: tuple[float, ...] = field(init=False, repr=False)  # rho_t of (3.3), before every communication.
    paper = "FedPower"
    caveat = (
        "it is for one entry of a Gram matrix and not for a person, it leaves out a factor sqrt(r), and with several local steps "
        "the sent product depends on rows that no noise covers"
    )

    def _find(self, X: Any, rng: Generator) -> Array:
        sizes = np.array([part.people if isinstance(part, Symmetric) else len(part) for part in X], dtype=np.float64)
        grams = [_gram(part) / size for part, size in zip(X, sizes, strict=True)]
        weights = sizes / sizes.sum()
        width = self.width or self.n_components
        schedule = (decaying_steps if self.decay else constant_steps)(self.local_steps, self.rounds)
        device_noise, server_noise = self.deviations(sizes)
        basis, products, residuals = self._start(len(grams[0]), width), [], []
        for steps in schedule:
            parts = self._draw(weights, rng)
            locals_ = {int(device): self.local_basis(grams[device], basis, steps) for device in np.flatnonzero(parts)}
            # The first device named in the paper is the one of most rows, although (3.2) has argmin.
            first = max(locals_, key=lambda device: (weights[device], -device))
            target = basis if self.align_to == "broadcast" else locals_[first]
            aligned = {device: self.aligned(local, target) for device, local in locals_.items()}
            product, largest = np.zeros_like(basis), 0.0
            # A device that was drawn twice sends once, and counts twice.
            for device, local in locals_.items():
                noise = device_noise * float(np.abs(local).max()) * rng.standard_normal(basis.shape)
                # M_i Z D is M_i times the aligned basis.
                product += parts[device] * (grams[device] @ aligned[device] + noise)
                largest = max(largest, float(np.abs(aligned[device]).max()))
            product += server_noise * largest * rng.standard_normal(basis.shape)
            residuals.append(max(float(np.linalg.norm(local - target, 2)) for local in aligned.values()))
            basis = np.linalg.qr(product)[0]
            products.append(product)
        self.products_, self.residuals_ = tuple(products), tuple(residuals)
        return np.linalg.svd(products[-1], full_matrices=False)[0]

    @property
    def source(self) -> str:
        """Partial participation has noise of its own in Alg. 3."""
        return "FedPower Alg. 2" if self.participants is None else f"FedPower Alg. 3, scheme {self.scheme}"

    def local_basis(self, gram: Array, basis: Array, steps: int) -> Array:
        """Z_(t-1) of a device, after all of its `steps` but the last: it depends on the rows without any noise if steps > 1."""
        for _ in range(steps - 1):
            basis = np.linalg.qr(gram @ basis)[0]
        return basis

    def aligned(self, local: Array, target: Array) -> Array:
        """Z D_t, with the orthogonal D of (3.2), the signs of (3.16), or the identity."""
        if self.align == "none":
            return local
        return align_procrustes(local, target) if self.align == "procrustes" else align_signs(local, target)

    def _draw(self, weights: Array, rng: Generator) -> Array:
        """What the product of each device counts in a round, (m,): zero for those that were not drawn."""
        count, drawn = len(weights), self.participants
        if drawn is None:
            return weights
        if self.scheme == 1:
            return np.bincount(rng.choice(count, size=drawn, p=weights), minlength=count) / drawn
        chosen = np.isin(np.arange(count), rng.choice(count, size=drawn, replace=False))
        return np.where(chosen, weights * count / drawn, 0.0)

    def deviations(self, sizes: Array) -> tuple[float, float]:
        """sigma of the devices and sigma' or sigma'' of the server, as Alg. 2 and Alg. 3 print them."""
        if self.epsilon is None:
            return 0.0, 0.0
        budgets = self.epsilon if isinstance(self.epsilon, tuple) else (self.epsilon, self.epsilon)
        device, server = (
            0.0 if math.isinf(epsilon) else fedpower_multiplier(Budget(epsilon, self.delta), rounds=self.rounds) / sizes.min()
            for epsilon in budgets
        )
        largest = float(sizes.max() / sizes.sum())
        if self.participants is None:
            return device, server * largest
        # Alg. 3 takes delta / max_i q_i for delta at the devices: amplification by sampling, which does not hold (Theorem 7).
        drawn = largest if self.scheme == 1 else 1 / len(sizes)
        plain, sampled = (math.log(1.25 * self.rounds * share / self.delta) for share in (1.0, drawn))
        require(sampled > 0, f"delta = {self.delta} is too large for Alg. 3 with {len(sizes)} devices")
        factor = (1.0 if self.scheme == 1 else largest) / self.participants
        return device * math.sqrt(sampled / plain), server * factor


@final
@dataclass(eq=False)
class DDPPM(Baseline):
    """D-DP-PM Alg. 1 as printed, for agents who mix what they send by `weights`, c times. `fit` takes a list of rows.

    An agent draws q_i ~ N(0, sigma_q^2) and in each of T rounds sends z_i = X_i^T q_i without noise of its own, mixes, and takes
    q_i = alpha X_i z + p_i with p_i ~ N(0, sigma_p(t)^2). Step 3 prints X_i - q z_i^(T-1/2) with a z of another round and a q of
    another norm; here it is X_i - q_i z_i^T with the last z and ||q|| = 1, which removes the component. c = None means exact
    sums.

    >>> found = DDPPM(1, alpha=0.2, sigma_q=0.7, sigma_p=(0.0,) * 20, random_state=1).fit([np.diag([3.0, 1.0])])
    >>> found.components_.round(9).tolist(), np.abs(found.scores_).round(9).ravel().tolist()
    ([[1.0, 0.0]], [1.0, 0.0])
    """

    _: KW_ONLY
    alpha: float
    sigma_q: float
    sigma_p: tuple[float, ...]  # One for each of T rounds.
    c: int | None = None
    weights: Array | None = None  # (m, m), needed if c is given.
    scores_: Array = field(init=False, repr=False)  # q, (n, k). Private: one number per person for each component.
    sent_: tuple[Array, ...] = field(init=False, repr=False)  # The z_i that agents send first in every round, (m, d).
    paper = "D-DP-PM Alg. 1"
    caveat = (
        "what agents send has no noise of its own, so a row that alone spans a direction is revealed, and Theorem 2 estimates "
        "the leakage of one table"
    )

    def _find(self, X: Any, rng: Generator) -> Array:
        parts = [np.array(part, dtype=np.float64) for part in X]
        mixing = np.ones((len(parts), len(parts)))
        if self.c is not None:
            require(self.weights is not None, "c mixing steps need weights")
            assert self.weights is not None
            mixing = len(parts) * np.linalg.matrix_power(self.weights, self.c)
        products, scores, sent = [], [], []
        for _ in range(self.n_components):
            q = [self.sigma_q * rng.standard_normal(len(part)) for part in parts]
            for sigma in self.sigma_p:
                z = np.stack([part.T @ own for part, own in zip(parts, q, strict=True)])
                sent.append(z)
                q = [
                    self.alpha * (part @ mean) + sigma * rng.standard_normal(len(part))
                    for part, mean in zip(parts, mixing @ z, strict=True)
                ]
            lengths = mixing @ np.array([own @ own for own in q])
            q = [own / math.sqrt(length) if length > 0 else 0 * own for own, length in zip(q, lengths, strict=True)]
            z = mixing @ np.stack([part.T @ own for part, own in zip(parts, q, strict=True)])
            for part, own, mean in zip(parts, q, z, strict=True):
                part -= np.outer(own, mean)
            products.append(z[0])
            scores.append(np.concatenate(q))
        self.scores_, self.sent_ = np.stack(scores, axis=1), tuple(sent)
        return orthonormal(np.stack(products, axis=1))
