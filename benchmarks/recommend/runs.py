"""PPM's application to recommendation: data, published baselines, the error of a filtered matrix. Shared by the others here.

R, (n, d), has a one where a user met an item; D holds the items' degrees; P = sum_u r_u r_u^T / deg_u. A basis U, (d,
p), of P filters R to R D^{-1/2} U U^T D^{1/2}, PPM (75). The effect of noise is ||R~_p - R_p||_F / ||R_p||_F against
the exact top p, (76). True degrees D are taken as public there, as the paper does. They are private, so every error
can also be computed without D.

The paper's data sets are not available. Stand-ins: jester1, liked where the rating is above 0, for Jester; ml100k, any
rating, for MovieLens-10M and EachMovie; gowalla, any visit, for Amazon-book. Users without any item are left out.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import scipy.sparse as sp

from benchmarks import datasets
from eigenveil.core.accounting import Budget
from eigenveil.linalg import Array, orthonormal, top_eigen
from eigenveil.papers.theory import balcan_scale, fedpower_multiplier, ppm_multiplier, ppm_scale
from eigenveil.recommend import PrivateRecommender

__all__ = [
    "DELTA",
    "LEAST_DEGREE",
    "ROUNDS",
    "STAND_INS",
    "Filtered",
    "Run",
    "Scale",
    "Table",
    "analyze_gauss",
    "mean_and_interval",
    "noisy_power",
    "ours",
    "ppm_limit",
    "published_scales",
    "start",
]

DELTA: Final = 1e-4
ROUNDS: Final = 3
STAND_INS: Final = {"jester1": "Jester", "ml100k": "MovieLens-10M and EachMovie", "gowalla": "Amazon-book"}
# m, a public number, and a user's degree counts as at least that. Every m keeps the guarantee; only accuracy depends on it.
# Nobody has fewer than 20 in ml100k, as its authors say; gowalla's least degree is 9, READ FROM THE DATA; in jester1 some have
# fewer than 20, and weigh less.
LEAST_DEGREE: Final = {"jester1": 20, "ml100k": 20, "gowalla": 9}
# Lemma 6.1: one interaction removed changes P by C with sqrt(sum_i ||C_i:||_1^2) <= sqrt(2).
_LEMMA: Final = math.sqrt(2.0)
# Up to this many items a dense matrix of items by items is kept, and everything is computed from it.
_DENSE: Final = 5000


@final
@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """R and its rows scaled to norm one, both (n, d) and sparse; D, (d,); where d is small also R^T R and P, both (d, d)."""

    name: str
    rows: Any
    unit: Any
    degrees: Array
    gram: Array | None
    covariance: Array | None

    @classmethod
    def load(cls, name: str) -> "Table":
        """A stand-in, from the folder of data sets."""
        if name == "jester1":
            return cls.of(name, sp.csr_array((datasets.dense(name) > 0).astype(np.float64)))
        rows = datasets.sparse(name)
        rows.data[:] = 1.0
        return cls.of(name, rows)

    @classmethod
    def of(cls, name: str, rows: Any) -> "Table":
        """Zeros and ones; users without any item are left out."""
        rows = sp.csr_array(rows)
        rows = rows[np.flatnonzero(rows.sum(axis=1))]
        degrees = np.asarray(rows.sum(axis=0), dtype=np.float64)
        unit = sp.csr_array(sp.diags_array(1 / np.sqrt(rows.sum(axis=1))) @ rows)
        if rows.shape[1] > _DENSE:
            return cls(name, rows, unit, degrees, None, None)
        return cls(name, rows, unit, degrees, (rows.T @ rows).toarray(), (unit.T @ unit).toarray())

    @property
    def users(self) -> int:
        """n."""
        return int(self.rows.shape[0])

    @property
    def items(self) -> int:
        """d."""
        return int(self.rows.shape[1])

    def times(self, basis: Array) -> Array:
        """P Z, (d, p)."""
        if self.covariance is not None:
            return self.covariance @ basis
        return np.asarray(self.unit.T @ (self.unit @ basis))

    def gram_times(self, basis: Array) -> Array:
        """R^T R Z, (d, p)."""
        return self.gram @ basis if self.gram is not None else np.asarray(self.rows.T @ (self.rows @ basis))

    def leading(self, rank: int) -> tuple[Array, Array]:
        """The `rank` largest eigenvalues of P, largest first, and their eigenvectors, (d, rank)."""
        if self.covariance is not None:
            return top_eigen(self.covariance, rank=rank)
        from scipy.sparse.linalg import LinearOperator, eigsh

        law = LinearOperator((self.items, self.items), matvec=self.times, dtype=np.float64)
        # A fixed start, so that the reference is the same in every run.
        values, vectors = eigsh(law, k=rank, v0=np.ones(self.items))
        return values[::-1], np.ascontiguousarray(vectors[:, ::-1])


@final
@dataclass(frozen=True, slots=True, eq=False)
class Filtered:
    """R_p of a reference basis U, and the distance from it to that of any other basis, by matrices of p columns alone.

    <R_A, R_B>_F = sum of (A^T H B) o (A^T D B), with H = D^{-1/2} R^T R D^{-1/2}; without degrees D = I throughout.
    """

    data: Table
    basis: Array
    weights: Array
    image: Array
    length: float

    @classmethod
    def of(cls, data: Table, basis: Array, *, degrees: bool) -> "Filtered":
        """Keep what does not change from basis to basis: H U and ||R_p||_F^2."""
        weights = data.degrees if degrees else np.ones(data.items)
        image = _filtered_gram(data, weights, basis)
        length = float(np.sum((basis.T @ image) * (basis.T @ (weights[:, None] * basis))))
        return cls(data, basis, weights, image, length)

    def error(self, other: Array) -> float:
        """||R_other - R_p||_F / ||R_p||_F, for an orthonormal basis (d, q)."""
        weighted = self.weights[:, None] * other
        own = np.sum((other.T @ _filtered_gram(self.data, self.weights, other)) * (other.T @ weighted))
        shared = np.sum((self.image.T @ other) * (self.basis.T @ weighted))
        return math.sqrt(max(0.0, float(own - 2 * shared + self.length)) / self.length)


def _filtered_gram(data: Table, weights: Array, basis: Array) -> Array:
    """H Z, (d, p). An item that nobody met has no weight and no entry in R, and stays out."""
    roots = np.sqrt(np.divide(1.0, weights, out=np.zeros_like(weights), where=weights > 0))[:, None]
    return roots * data.gram_times(roots * basis)


Scale = Callable[[Array], float]


def ppm_limit(delta: float = DELTA) -> float:
    """PPM's calibration is proved for epsilon <= 4 log(1/delta) only."""
    return 4 * math.log(1 / delta)


def published_scales(budget: Budget, *, users: int, rounds: int = ROUNDS) -> dict[str, Scale]:
    """Of each power method as published, the deviation of the noise on an entry of P Z, as a function of Z, (d, p).

    All at the guarantee of Lemma 6.1, one interaction of one user; beyond PPM's limit on epsilon only FedPower has a scale.
    """

    def ppm(basis: Array) -> float:
        # Alg. 1, and Alg. 2 whose s shares of noise add up to the same.
        return _LEMMA * ppm_scale(budget, rounds=rounds, basis=basis)

    def balcan(basis: Array) -> float:
        # Their sqrt(p) max |Z_ij| is for a change of one entry by 1. For Lemma 6.1's C, |(C Z)_ij| <= ||C_i:||_1 max |Z_ij|, and
        # so ||C Z||_F <= sqrt(2) sqrt(p) max |Z_ij|: the same factor sqrt(2) as PPM's.
        return _LEMMA * balcan_scale(budget, rounds=rounds, basis=basis)

    def balcan_local(basis: Array) -> float:
        # Every user adds that noise to what is sent, in the open.
        return math.sqrt(users) * balcan(basis)

    def fedpower(basis: Array) -> float:
        return float(np.abs(basis).max()) * fedpower_worst(basis)

    def fedpower_worst(basis: Array) -> float:
        # FedPower Alg. 2 with one user per device, s_i = 1 and p_i = 1/s, and all rounds synchronous (PPM B.1: I_T =
        # L). On the sum, which is s times the average, each of s devices adds sigma max |Z_ij| and the server once
        # more: sqrt(s + 1). The input (epsilon, delta) is taken as it is, although Theorem 4 guarantees (2 epsilon, 2
        # delta) for it. No sqrt(p) is added where its proof leaves it out. Both are in its favour. The sqrt(2) is
        # Lemma 6.1's, as above. Alg. 2 as printed follows the largest entry; PPM speaks of a worst case that does
        # not, which is 1, the most an orthonormal basis can have.
        return _LEMMA * math.sqrt(users + 1) * fedpower_multiplier(budget, rounds=rounds)

    return {
        "PPM": ppm,
        "Balcan et al., central": balcan,
        "Balcan et al., local": balcan_local,
        "FedPower, Alg. 2": fedpower,
        "FedPower, worst case": fedpower_worst,
    }


@final
@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A basis, (d, p), and the largest row norm of every basis that was multiplied on the way."""

    basis: Array
    row_norms: tuple[float, ...]


def start(items: int, rank: int, *, seed: int) -> Array:
    """The basis, (d, p), from which every published method sets out in the run with this seed."""
    return orthonormal(np.random.default_rng((seed, 0)).standard_normal((items, rank)))


def noisy_power(data: Table, basis: Array, *, scale: Scale, seed: int, rounds: int = ROUNDS) -> Run:
    """PPM Alg. 1: Z <- QR(P Z + scale(Z) N), N standard Gaussian and, for one seed, the same for every method and epsilon."""
    rng = np.random.default_rng((seed, 1))
    norms = []
    for _ in range(rounds):
        norms.append(float(np.linalg.norm(basis, axis=1).max()))
        basis = orthonormal(data.times(basis) + scale(basis) * rng.standard_normal(basis.shape))
    return Run(basis, tuple(norms))


def analyze_gauss(data: Table, budget: Budget, *, rank: int, seed: int) -> Array:
    """Dwork et al. (2014): the top `rank` of P plus a symmetric Gaussian matrix, drawn on and above the diagonal and mirrored.

    The paper does not say how it calibrated it. Here: what its own analysis gives for one release, sigma with L = 1, times
    ||C||_F <= sqrt(sum_i ||C_i:||_1^2) <= sqrt(2), Lemma 6.1.
    """
    assert data.covariance is not None
    noise = np.triu(np.random.default_rng((seed, 1)).standard_normal(data.covariance.shape))
    noise += np.triu(noise, 1).T
    noise *= _LEMMA * ppm_multiplier(budget, rounds=1)
    noise += data.covariance
    return top_eigen(noise, rank=rank, overwrite=True)[1]


def ours(data: Table, *, rank: int, epsilon: float, seed: int, **settings: Any) -> Array:
    """The basis, (d, p), of `PrivateRecommender` with a trusted curator; `settings` are unit, min_degree and method."""
    terms: dict[str, Any] = {"item_degrees": None, "trust": "hub", "random_state": seed, "on_noise": "warn", **settings}
    fitted = PrivateRecommender(rank, epsilon=epsilon, delta=DELTA, **terms).fit(data.rows)
    return np.ascontiguousarray(np.asarray(fitted.components_, dtype=np.float64).T)


def mean_and_interval(values: Sequence[float], *, level: float = 0.99, resamples: int = 1000) -> tuple[float, float, float]:
    """The mean, and the interval that holds the means of a share `level` of resamples of the values, as many as there are."""
    found = np.array(values)
    drawn = found[np.random.default_rng(0).integers(len(found), size=(resamples, len(found)))].mean(axis=1)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(found.mean()), float(low), float(high)
