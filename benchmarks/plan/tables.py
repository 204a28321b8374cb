"""Tables for `coverage.py`: real ones, those that come with scikit-learn, and synthetic ones that are hard for a planner.

`tuning` and `held-out` tables are the two halves of one list, by the digests of their names and by nothing that was measured.
The constants of `eigenveil.plan.clipping` were chosen on `tuning` tables. Four things changed once `held-out` tables had been
seen (docs/decisions/0042-captured-variance.md). `fresh` tables were written down last, and changed no rule. `other_tables.py`
has `other` ones.
"""

import hashlib
from collections.abc import Callable
from typing import Final, Literal

import numpy as np

from benchmarks.datasets import dense, skipped, sparse
from benchmarks.plan.other_tables import FILES, OTHER
from eigenveil.linalg import Array

__all__ = ["TABLES", "half_of", "table"]

Generator = np.random.Generator
Half = Literal["tuning", "held-out", "fresh", "other"]
_MOST_ROWS, _MOST_COLUMNS = 50_000, 500


def half_of(name: str) -> Half:
    """What a table is for. Of each kind, every other one is held out, in the order of their digests.

    >>> {half_of(name) for name in ("t3-rows", "t2-rows", "usps", "jester1")} <= {"tuning", "held-out"}
    True
    """
    if name in _FRESH:
        return "fresh"
    if name in OTHER:
        return "other"
    (kind,) = (kind for kind in (_REAL, tuple(_HEAVY), tuple(_OTHERS)) if name in kind)
    order = sorted(kind, key=lambda one: hashlib.sha256(f"coverage {one}".encode()).digest())
    return "held-out" if order.index(name) % 2 else "tuning"


def _spectrum(rng: Generator, rows: int, dim: int, decay: float) -> Array:
    basis = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
    found: Array = (rng.standard_normal((rows, dim)) * np.arange(1.0, dim + 1) ** (-decay / 2)) @ basis
    return found


def _student(freedom: float, dim: int, decay: float) -> Callable[[Generator, int], Array]:
    # Every row has one size: elliptical.
    return lambda rng, rows: _spectrum(rng, rows, dim, decay) / np.sqrt(rng.chisquare(freedom, (rows, 1)) / freedom)


def _student_columns(freedom: float, dim: int) -> Callable[[Generator, int], Array]:
    return lambda rng, rows: rng.standard_t(freedom, (rows, dim)) * np.arange(1.0, dim + 1) ** -0.5


def _lognormal_columns(sigma: float, dim: int) -> Callable[[Generator, int], Array]:
    return lambda rng, rows: np.exp(sigma * _spectrum(rng, rows, dim, 0.5) / np.sqrt(2))


def _lognormal_rows(sigma: float, dim: int, decay: float) -> Callable[[Generator, int], Array]:
    return lambda rng, rows: _spectrum(rng, rows, dim, decay) * np.exp(sigma * rng.standard_normal((rows, 1)))


def _outliers(share: float, times: float, dim: int) -> Callable[[Generator, int], Array]:
    def made(rng: Generator, rows: int) -> Array:
        found = _spectrum(rng, rows, dim, 1.0)
        far = rng.random(rows) < share
        # In directions of their own.
        found[far] = times * _spectrum(rng, int(far.sum()), dim, 1.0)
        return found

    return made


def _shuttle(rng: Generator, rows: int) -> Array:
    """Nine columns of small integers, two of them with a few enormous values."""
    found = np.round(rng.standard_normal((rows, 9)) @ rng.standard_normal((9, 9)) * np.linspace(3, 12, 9) + 40)
    for column, share in ((1, 0.03), (5, 0.05)):
        hit = rng.random(rows) < share
        found[hit, column] += np.round(30 * rng.standard_cauchy(int(hit.sum())))
    return np.clip(found, -26_000, 26_000)


def _low_rank(rank: int, dim: int, rest: float) -> Callable[[Generator, int], Array]:
    def made(rng: Generator, rows: int) -> Array:
        weights = rng.standard_normal((rank, dim)) * np.linspace(2, 1, rank)[:, None]
        return rng.standard_normal((rows, rank)) @ weights + rest * rng.standard_normal((rows, dim))

    return made


def _mixture(groups: int, dim: int, apart: float) -> Callable[[Generator, int], Array]:
    def made(rng: Generator, rows: int) -> Array:
        places = apart * rng.standard_normal((groups, dim))
        return places[rng.choice(groups, rows, p=rng.dirichlet(np.ones(groups)))] + rng.standard_normal((rows, dim))

    return made


def _sparse_binary(dim: int, common: float, power: float) -> Callable[[Generator, int], Array]:
    return lambda rng, rows: (rng.random((rows, dim)) < common * np.arange(1.0, dim + 1) ** -power).astype(np.float64)


def _baskets(dim: int, groups: int) -> Callable[[Generator, int], Array]:
    """Binary rows with groups of columns that go together, and very different numbers of ones."""

    def made(rng: Generator, rows: int) -> Array:
        likely = rng.dirichlet(np.full(dim, 0.1), groups)
        size = np.minimum(rng.pareto(1.2, rows) * 2 + 1, dim / 2)
        return (rng.random((rows, dim)) < size[:, None] * likely[rng.integers(groups, size=rows)]).astype(np.float64)

    return made


def _constant(dim: int, varying: int) -> Callable[[Generator, int], Array]:
    def made(rng: Generator, rows: int) -> Array:
        found = np.full((rows, dim), 7.0)
        found[:, :varying] += _spectrum(rng, rows, varying, 1.0)
        return found

    return made


def _counts(dim: int, sigma: float) -> Callable[[Generator, int], Array]:
    """Counts such as those of single cells: Poisson with a lognormal size of each row."""

    def made(rng: Generator, rows: int) -> Array:
        profile = rng.dirichlet(np.full(dim, 0.3), 5)[rng.integers(5, size=rows)]
        return rng.poisson(100 * np.exp(sigma * rng.standard_normal((rows, 1))) * profile).astype(np.float64)

    return made


def _claims(rng: Generator, rows: int) -> Array:
    """Ages, durations and money: columns in their own units, one of them Pareto."""
    hidden = rng.standard_normal((rows, 3))
    noise = rng.standard_normal((rows, 12))
    found = hidden @ rng.standard_normal((3, 12)) + noise
    found[:, :3] = 40 + 12 * found[:, :3]
    found[:, 3:5] = np.exp(7 + found[:, 3:5] / 2)
    found[:, 5] = 1000 * (rng.pareto(1.5, rows) + 1) * np.exp(found[:, 5] / 4)
    return found


def _walk(dim: int) -> Callable[[Generator, int], Array]:
    return lambda rng, rows: np.cumsum(rng.standard_normal((rows, dim)), axis=1)


def _real(name: str) -> Callable[[Generator, int], Array]:
    def made(rng: Generator, rows: int) -> Array:
        if name.startswith("sklearn:"):
            from sklearn import datasets

            found = np.asarray(getattr(datasets, f"load_{name.partition(':')[2]}")().data, dtype=np.float64)
        elif name == "gowalla":
            matrix = sparse(name)
            found = matrix[:, np.argsort(-np.asarray(matrix.sum(axis=0)).ravel())[:_MOST_COLUMNS]].toarray()
        else:
            found = dense(name)
        if found.shape[1] > _MOST_COLUMNS:
            # Those that vary most, as an analyst would choose from public knowledge.
            found = found[:, np.sort(np.argsort(-found.var(axis=0), kind="stable")[:_MOST_COLUMNS])]
        return found[rng.permutation(len(found))[:rows]]

    return made


_REAL: Final = (
    *("a9a", "cifar10_4000", "connect4", "cover10", "credit_default", "exchange_rate", "hapmap3", "housing", "jester1"),
    *("ml100k", "mnist:test", "motes_light", "pbmc68k_reduced", "protein_homology", "sc_worm_neuron", "usps", "w8a"),
    *("winequality_red", "sklearn:digits", "sklearn:breast_cancer", "sklearn:diabetes"),
)
_HEAVY: Final[dict[str, Callable[[Generator, int], Array]]] = {
    "t3-rows": _student(3.0, 30, 1.0),
    "t2-rows": _student(2.0, 12, 0.5),
    "t5-rows": _student(5.0, 100, 1.5),
    "t3-columns": _student_columns(3.0, 20),
    "t2-columns": _student_columns(2.0, 8),
    "t1.5-columns": _student_columns(1.5, 40),
    "t4-columns": _student_columns(4.0, 60),
    "lognormal-columns-1": _lognormal_columns(1.0, 25),
    "lognormal-columns-1.5": _lognormal_columns(1.5, 10),
    "lognormal-columns-2": _lognormal_columns(2.0, 15),
    "lognormal-rows-1": _lognormal_rows(1.0, 50, 1.0),
    "lognormal-rows-2": _lognormal_rows(2.0, 20, 0.7),
    "outliers-1000": _outliers(0.001, 1000.0, 20),
    "outliers-100": _outliers(0.01, 100.0, 40),
    "outliers-10": _outliers(0.05, 10.0, 80),
    "outliers-one": _outliers(0.0002, 3000.0, 10),
    "shuttle-like": _shuttle,
    "baskets": _baskets(200, 8),
    "baskets-small": _baskets(40, 4),
    "counts": _counts(120, 1.0),
    "claims": _claims,
}
_OTHERS: Final[dict[str, Callable[[Generator, int], Array]]] = {
    "low-rank-1": _low_rank(1, 30, 0.05),
    "low-rank-2": _low_rank(2, 8, 0.01),
    "low-rank-3": _low_rank(3, 60, 0.3),
    "low-rank-6": _low_rank(6, 200, 0.1),
    "mixture-3": _mixture(3, 15, 3.0),
    "mixture-10": _mixture(10, 100, 1.0),
    "mixture-2": _mixture(2, 5, 10.0),
    "sparse-binary-zipf": _sparse_binary(300, 0.5, 1.0),
    "sparse-binary-flat": _sparse_binary(100, 0.05, 0.0),
    "constant-most": _constant(50, 5),
    "constant-some": _constant(20, 15),
    "counts-even": _counts(60, 0.3),
    "walk": _walk(64),
    "isotropic": lambda rng, rows: rng.standard_normal((rows, 10)),
    "steep": lambda rng, rows: _spectrum(rng, rows, 100, 3.0),
    "flat-decay": lambda rng, rows: _spectrum(rng, rows, 150, 0.4),
    "wide": lambda rng, rows: _spectrum(rng, rows, 500, 1.0),
    "uniform": lambda rng, rows: rng.uniform(-1, 1, (rows, 7)) @ rng.standard_normal((7, 25)),
}


def _laplace(rng: Generator, rows: int) -> Array:
    found: Array = rng.laplace(size=(rows, 35)) @ np.linalg.qr(rng.standard_normal((35, 35)))[0]
    return found * np.linspace(3, 0.2, 35)


def _returns(rng: Generator, rows: int) -> Array:
    """Daily returns with volatility that comes in clusters."""
    volatility = np.exp(np.convolve(rng.standard_normal(rows + 60), np.full(60, 0.15), mode="valid")[:rows])
    market = rng.standard_t(4, rows)
    return volatility[:, None] * (market[:, None] * rng.uniform(0.5, 1.5, 45) + rng.standard_t(4, (rows, 45)))


def _categories(rng: Generator, rows: int) -> Array:
    """One-hot columns of eight questions, answered by four kinds of people."""
    kind = rng.integers(4, size=rows)
    blocks = []
    for levels in (2, 3, 4, 5, 7, 9, 12, 20):
        likely = rng.dirichlet(np.full(levels, 0.6), 4)
        drawn = (rng.random((rows, 1)) > likely[kind].cumsum(axis=1)).sum(axis=1).clip(0, levels - 1)
        blocks.append(np.eye(levels)[drawn])
    return np.hstack(blocks)


def _autoregressive(rng: Generator, rows: int) -> Array:
    lag = np.abs(np.subtract.outer(np.arange(90), np.arange(90)))
    found: Array = rng.standard_normal((rows, 90)) @ np.linalg.cholesky(0.9**lag).T
    return found


def _money(rng: Generator, rows: int) -> Array:
    """Incomes, debts and payments in six columns, with a common lognormal size and a few firms among the people."""
    size = np.exp(1.2 * rng.standard_normal((rows, 1)) + 3.0 * (rng.random((rows, 1)) < 0.01))
    found: Array = size * np.exp(0.4 * rng.standard_normal((rows, 6))) * np.array([3000, 1200, 500, 200, 90, 40])
    return found


# Written down after all constants were fixed.
_FRESH: Final[dict[str, Callable[[Generator, int], Array]]] = {
    "kg1_phase1": _real("kg1_phase1"),
    "mnist:train": _real("mnist:train"),
    "gowalla": _real("gowalla"),
    "sklearn:wine": _real("sklearn:wine"),
    "laplace": _laplace,
    "returns": _returns,
    "categories": _categories,
    "autoregressive": _autoregressive,
    "money": _money,
    "t2.5-rows": _student(2.5, 25, 2.0),
    "t6-columns": _student_columns(6.0, 120),
    "lognormal-columns-0.7": _lognormal_columns(0.7, 50),
    "outliers-30": _outliers(0.02, 30.0, 15),
    "low-rank-4": _low_rank(4, 12, 0.2),
    "mixture-5": _mixture(5, 30, 2.0),
    "sparse-binary-steep": _sparse_binary(150, 0.7, 2.0),
    "counts-wide": _counts(250, 0.6),
    "steep-small": lambda rng, rows: _spectrum(rng, rows, 9, 3.0),
}
TABLES: Final = {**{name: _real(name) for name in _REAL}, **_HEAVY, **_OTHERS, **_FRESH, **OTHER}


def table(name: str, *, rows: int | None = None, seed: int = 0) -> Array | None:
    """Rows of a table in a random order, at most so many; None where its file is missing."""
    real = name in (*_REAL, "kg1_phase1", "mnist:train", "gowalla")
    if (real or name in FILES) and not name.startswith("sklearn:") and skipped(FILES.get(name, name)):
        return None
    return TABLES[name](np.random.default_rng(seed), _MOST_ROWS if rows is None else rows)
