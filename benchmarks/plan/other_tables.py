"""More tables for `coverage.py`: parts and other views of the real ones, and synthetic ones, many with heavy tails.

Written down by somebody who had set none of the constants. Those of decision 52 were chosen with half of them in view.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from benchmarks.datasets import dense, sparse
from eigenveil.linalg import Array

__all__ = ["FILES", "OTHER"]

Generator = np.random.Generator


def _view(name: str, view: Callable[[Array], Array]) -> Callable[[Generator, int], Array]:
    """Some columns of a real table, or functions of them."""

    def made(rng: Generator, rows: int) -> Array:
        whole = view(np.asarray(dense(name), dtype=np.float64))
        return whole[rng.permutation(len(whole))[:rows]]

    return made


def _pooled(side: int) -> Callable[[Array], Array]:
    """Square pictures, each 2 x 2 pixels as one."""
    half = side // 2
    return lambda rows: rows.reshape(-1, half, 2, half, 2).sum((2, 4)).reshape(len(rows), -1)


def _users(rng: Generator, rows: int) -> Array:
    """How often users rated, in all and in each range of films."""
    ratings = sparse("ml100k")
    parts = [np.asarray((ratings[:, at : at + 200] > 0).sum(axis=1)).ravel() for at in range(0, 1600, 200)]
    found = np.column_stack([*parts, sum(parts)]).astype(np.float64)
    return found[rng.permutation(len(found))[:rows]]


def _shuttle(rng: Generator, rows: int) -> Array:
    found = np.round(rng.normal(45, 12, (rows, 9)))
    for column, freedom, size in ((1, 1.3, 3), (3, 1.1, 2), (5, 1.0, 5)):
        found[:, column] = np.round(size * rng.standard_t(freedom, rows))
    return np.clip(found, -26_739, 15_164)


def _taxi(rng: Generator, rows: int) -> Array:
    """Trips, and a code for a missing fare in 0.4% of them."""
    length = np.exp(rng.normal(1, 0.8, rows))
    fare = 3 + 2 * length + rng.normal(0, 1, rows)
    tip = fare * rng.random(rows) * 0.3 * (rng.random(rows) < 0.6)
    found = np.column_stack([length, fare, tip, fare + tip, 3 * length + rng.gamma(2, 3, rows)])
    found[rng.random(rows) < 0.004, 1] = -999
    return found


def _traffic(rng: Generator, rows: int) -> Array:
    """Connections: durations and bytes with enormous tails beside flags and small counts."""
    heavy = [np.exp(rng.normal(0, 2, rows)), 200 * rng.pareto(0.9, rows), 500 * rng.pareto(1.1, rows)]
    return np.column_stack([*heavy, rng.poisson(3, rows), rng.random((rows, 12)) < 0.1, rng.integers(0, 255, (rows, 6))])


def _laboratory(rng: Generator, rows: int) -> Array:
    found = np.exp(0.4 * rng.normal(size=(rows, 2)) @ rng.normal(size=(2, 14)) + 0.3 * rng.normal(size=(rows, 14)))
    found *= np.array([140, 4, 100, 25, 10, 1, 90, 30, 20, 80, 0.5, 12, 250, 7])
    found[rng.random(rows) < 0.02, 5] *= 20
    return found


def _sensors(rng: Generator, rows: int) -> Array:
    found = np.sin(np.arange(rows) / 200)[:, None] * rng.uniform(0.2, 2, 18) + 0.2 * rng.normal(size=(rows, 18))
    found[:, 3] = 5
    found[rng.random(rows) < 0.01] = 0
    return found


def _clump(rng: Generator, rows: int) -> Array:
    """One row in fifty lies far out, in one direction."""
    found = rng.normal(size=(rows, 22)) * np.arange(1, 23) ** -0.3
    found[rng.random(rows) < 0.02, 7] += 40
    return found


def _bursts(rng: Generator, rows: int) -> Array:
    found = rng.normal(size=(rows, 16)) * np.linspace(3, 0.5, 16)
    found[rng.random(rows) < 0.01] *= 15
    return found


def _likert(rng: Generator, rows: int) -> Array:
    answers = 0.6 * rng.normal(size=(rows, 3)) @ rng.normal(size=(3, 24)) + rng.normal(size=(rows, 24))
    return np.clip(np.round(answers + 3), 1, 5)


def _few(rng: Generator, rows: int) -> Array:
    one, two = (np.outer(sizes, rng.normal(size=40)) for sizes in (rng.gamma(1, 1, rows), 0.3 * rng.normal(size=rows)))
    return np.asarray(one + two + 0.02 * rng.normal(size=(rows, 40)))


def _accounts(rng: Generator, rows: int) -> Array:
    return np.column_stack([np.exp(rng.normal(6, 1.6, (rows, 4))), rng.integers(18, 90, rows), rng.integers(0, 2, (rows, 5))])


# Parts of real tables: the file of each, and what is made of it.
_VIEWS: Final[dict[str, tuple[str, Callable[[Array], Array]]]] = {
    "bills": ("credit_default", lambda rows: rows[:, 11:]),
    "currencies-daily": ("exchange_rate", lambda rows: 100 * np.diff(np.log(np.maximum(rows, 1e-6)), axis=0)),
    "light-steps": ("motes_light", lambda rows: np.diff(rows, axis=0)),
    "light-log": ("motes_light", np.log1p),
    "digits-pooled": ("mnist:test", _pooled(28)),
    "letters-pooled": ("usps", _pooled(16)),
    "jokes-some": ("jester1", lambda rows: rows[:, :30]),
    "proteins-log": ("protein_homology", lambda rows: np.sign(rows) * np.log1p(np.abs(rows))),
    "proteins-some": ("protein_homology", lambda rows: rows[:, :15]),
    "forest-places": ("cover10", lambda rows: rows[:, [3, 4, 5, 9]]),
    "wine-exp": ("winequality_red", lambda rows: np.exp((rows - rows.mean(axis=0)) / rows.std(axis=0))),
    "houses-squared": ("housing", lambda rows: np.hstack([rows, np.square(rows / rows.std(axis=0))])),
}
OTHER: Final[dict[str, Callable[[Generator, int], Array]]] = {
    **{name: _view(*view) for name, view in _VIEWS.items()},
    "users": _users,
    "traffic": _traffic,
    "taxi": _taxi,
    "laboratory": _laboratory,
    "sensors": _sensors,
    "shuttle-steeper": _shuttle,
    "clump": _clump,
    "bursts": _bursts,
    "likert": _likert,
    "few-directions": _few,
    "accounts": _accounts,
    "zeros-pareto": lambda rng, rows: (rng.random((rows, 30)) < 0.2) * (rng.pareto(1.8, (rows, 30)) + 1),
}
# Those that need a file, and which.
FILES: Final = {**{name: file for name, (file, _) in _VIEWS.items()}, "users": "ml100k"}
