"""D-DP-PM's experiments: its data and ring, its own tuning, and runs of Alg. 1 as printed. Shared in this folder.

All tuning here reads the private rows, as the paper does. That is for reproducing its figures only.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine

from eigenveil.linalg import Array
from eigenveil.papers.baselines import DDPPM
from eigenveil.papers.leakage import InstanceLeakage, instance_leakage, observed_law

__all__ = ["EPSILONS", "LIMITS", "RING", "Table", "Tuned", "candidates", "delta_of", "leaks", "run_published", "sine"]

# D-DP-PM section IV.B: the mixing matrix, the schedule of epsilon and the limits on delta that go with it.
RING: Final = np.array([[2, 1, 0, 1], [1, 2, 1, 0], [0, 1, 2, 1], [1, 0, 1, 2]]) / 4
EPSILONS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 100.0)
LIMITS: Final = {
    "diabetes": (0.38, 0.143, 0.008, 2e-4, 2e-4, 1e-4, 1e-7),
    "breast cancer": (0.38, 0.15, 0.008, 2e-4, 2e-4, 1e-4, 1e-7),
    "wine": (0.44, 0.20, 0.04, 0.007, 0.007, 0.006, 0.002),
}
# Noise on scores over Corollary 1's largest, (mu2 / mu1)^t, and a few times more, as "near by values".
_SCALES: Final = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
_CONVERGED: Final = 1e-3


@final
@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A table in the unit ball, (n, d), at four peers, with its first singular vectors and all eigenvalues of the Gram matrix."""

    name: str
    parts: tuple[Array, ...]
    left: Array
    right: Array
    eigenvalues: Array

    @classmethod
    def load(cls, name: str) -> "Table":
        """Columns standardised and all rows divided by the largest norm. Means, units and that norm are READ FROM THE DATA."""
        load = {"diabetes": lambda: load_diabetes(scaled=False), "breast cancer": load_breast_cancer, "wine": load_wine}
        rows = np.asarray(load[name]().data, dtype=np.float64)
        rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
        # A little within the ball, so that no row is clipped because of a rounding error.
        return cls.of(name, rows / (np.linalg.norm(rows, axis=1).max() * (1 + 1e-12)))

    @classmethod
    def of(cls, name: str, rows: Array, *, peers: int = 4) -> "Table":
        """Rows in the unit ball, split in order into equal parts."""
        left, values, right = np.linalg.svd(rows, full_matrices=False)
        return cls(name, tuple(np.array_split(rows, peers)), left[:, 0], right[0], values**2)

    @property
    def rows(self) -> Array:
        """All of them, (n, d)."""
        return np.vstack(self.parts)

    @property
    def delta(self) -> float:
        """What is guaranteed with epsilon where anything is: 1 / (10 n)."""
        return 0.1 / len(self.left)

    def errors(self, direction: Array) -> tuple[float, float]:
        """Of a right direction, (d,): the sine from u to X v, which peers make of their own rows, and that from v to it."""
        return sine(self.rows @ direction, self.left), sine(direction, self.right)


def sine(one: Array, unit: Array) -> float:
    """||(I - v v^T) q|| / ||q||, (37), for v of norm one."""
    rest = one - unit * float(unit @ one)
    return float(np.linalg.norm(rest - unit * float(unit @ rest)) / np.linalg.norm(one))


@final
@dataclass(frozen=True, slots=True)
class Tuned:
    """Alg. 1's parameters, from private eigenvalues: alpha in the middle of Corollary 1's interval, scale times its schedule."""

    alpha: float
    sigma_q: float
    sigma_p: tuple[float, ...]
    scale: float

    @classmethod
    def by_corollary(cls, table: Table, *, rounds: int, scale: float) -> "Tuned":
        """alpha = 1 / sqrt(mu1 mu2), sigma_q = 1 / sqrt(n) and sigma_p(t) = scale (mu2 / mu1)^t."""
        first, second = (float(value) for value in table.eigenvalues[:2])
        schedule = tuple(scale * (second / first) ** round_ for round_ in range(1, rounds + 1))
        return cls(1 / math.sqrt(first * second), 1 / math.sqrt(len(table.left)), schedule, scale)

    @property
    def rounds(self) -> int:
        """T."""
        return len(self.sigma_p)

    @property
    def law(self) -> dict[str, Any]:
        """What the diagnostics ask for, with enough steps for exact sums and peer 0 as observer."""
        settings = {"alpha": self.alpha, "sigma_q": self.sigma_q, "sigma_p": self.sigma_p}
        return {**settings, "steps": 60, "observer": 0}

    def expected_error(self, table: Table, *, draws: int = 400) -> float:
        """The mean sine to u over many runs with exact sums, drawn from the law of q^(T), (58), in the basis of left vectors."""
        values = np.zeros(len(table.left))
        values[: len(table.eigenvalues)] = self.alpha * table.eigenvalues
        spread = self.sigma_q**2 * values ** (2 * self.rounds)
        for round_, sigma in enumerate(self.sigma_p, 1):
            spread += sigma**2 * values ** (2 * (self.rounds - round_))
        drawn = np.random.default_rng(0).standard_normal((draws, len(values))) * np.sqrt(spread)
        lengths = np.linalg.norm(drawn, axis=1)
        return float(np.mean(np.sqrt(np.maximum(0.0, 1 - (drawn[:, 0] / lengths) ** 2))))


def candidates(table: Table) -> list[Tuned]:
    """The grid: T around T*, the least with an error of 1e-3 without noise, and noise around Corollary 1's."""
    clean = (Tuned.by_corollary(table, rounds=rounds, scale=0.0) for rounds in range(1, 200))
    best = next(tuned.rounds for tuned in clean if tuned.expected_error(table) <= _CONVERGED)
    rounds = sorted({2, 3, max(2, best // 2), max(3, (3 * best) // 4), best})
    return [Tuned.by_corollary(table, rounds=count, scale=scale) for count in rounds for scale in _SCALES]


def run_published(parts: Sequence[Array], tuned: Tuned, *, seed: int, weights: Array = RING, steps: int | None = None) -> Array:
    """The left singular vector, (n,), that peers find by Alg. 1, each its own segment, talking to neighbours only."""
    agents = DDPPM(
        1, alpha=tuned.alpha, sigma_q=tuned.sigma_q, sigma_p=tuned.sigma_p, c=steps, weights=weights, random_state=seed
    )
    return agents.fit(list(parts)).scores_[:, 0]


def leaks(table: Table, tuned: Tuned, *, share: float | None, as_printed: bool = True, rows: int = 3) -> list[InstanceLeakage]:
    """Instance estimates for what peer 0 learns of the row of most leverage at each of `rows` other peers, set to zero.

    `share` is for (43), None for no dropping. A few neighbours are not the worst one: estimates are from below.
    """
    dropping = None if share is None else _kept(table, tuned, share=share)
    found = []
    for peer in range(1, 1 + rows):
        part = table.parts[peer]
        hats = np.einsum("ij,ji->i", part, np.linalg.pinv(part))
        found.append(
            instance_leakage(
                table.parts,
                RING,
                replaced=(peer, int(hats.argmax())),
                by=None,
                as_printed=as_printed,
                dropping=dropping,
                **tuned.law,
            )
        )
    return found


def delta_of(found: Sequence[InstanceLeakage], epsilon: float) -> float:
    """The largest of their deltas."""
    return max(leak.delta(epsilon) for leak in found)


def _kept(table: Table, tuned: Tuned, *, share: float) -> int:
    """r of (43): how many eigenvalues of the view's covariance, as printed, are at least this share of the largest."""
    law = observed_law(table.parts, RING, as_printed=True, **tuned.law)
    values = np.linalg.eigvalsh(law.root @ law.root.T)
    return max(1, int((values >= share * values[-1]).sum()))
