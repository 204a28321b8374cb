"""Membership inference: was this person in the table from which these components were published?

Tables have few rows for their number of columns, so components fit the people in them better than others. The attacker knows the
population, has the published model, and is asked about people of whom half were in the table. A second attacker knows everybody
else in the table and asks about one person who stands out. The guarantee of a private fit limits how often either can be right.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, final

import numpy as np
from numpy.random import Generator
from scipy.special import ndtr, stdtrit

from eigenveil.audit.case import rate_at_least, rate_at_most
from eigenveil.core.accounting import mu_for
from eigenveil.errors import require
from eigenveil.estimators import PrivatePCA
from eigenveil.linalg import Array

__all__ = [
    "COLUMNS",
    "LOADINGS",
    "ROW_BOUND",
    "Demonstration",
    "Population",
    "Shown",
    "advantage",
    "largest_advantage",
    "learning",
    "made_up_people",
    "membership",
    "scores",
]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The result of an attack on one run."""

    run: str
    target: str  # The person or thing that it is about.
    value: float  # In the demonstration's measure.
    baseline: float  # What a guess without seeing the run gets.
    succeeded: bool  # Whether it beats the guess by as much as the demonstration asks for.
    words: str
    interval: tuple[float, float] | None = None  # 99% confidence, of a rate over many tables.
    allowed: float | None = None  # The most that the run's guarantee allows.

    def __post_init__(self) -> None:
        require(
            math.isfinite(self.value) and math.isfinite(self.baseline),
            f"{self.run}: value and baseline must be finite, got {self.value} and {self.baseline}",
        )
        # An interval that misses its own value is a mistake in an attack, not a result.
        low, high = (self.value, self.value) if self.interval is None else self.interval
        require(low <= self.value <= high, f"{self.run}: the value {self.value} must lie in its interval, {low} to {high}")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """One attack. Every number is measured when it runs."""

    title: str
    story: tuple[str, ...]  # In plain sentences.
    measure: str
    guess: str  # The baseline.
    rows: tuple[Shown, ...]
    conclusion: str  # It follows from the numbers, whatever they are.

    def __post_init__(self) -> None:
        require(len(self.rows) >= 1, f"{self.title}: at least one row is needed")

    def of(self, target: str) -> tuple[Shown, ...]:
        """The rows about one target, in order."""
        return tuple(row for row in self.rows if row.target == target)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for programs."""
        # All fields are plain values, so that JSON has what the screen has.
        return asdict(self)


COLUMNS: Final = (
    "age",
    "weight",
    "waist",
    "systolic pressure",
    "diastolic pressure",
    "pulse",
    "glucose",
    "insulin",
    "cholesterol",
    "creatinine",
    "visits",
    "income",
)

# In standard deviations of a column: how age, build and lifestyle influence it.
LOADINGS: Final[Array] = np.array(
    [
        [0.9, 0.1, 0.2, 0.7, 0.3, -0.2, 0.4, 0.1, 0.4, 0.6, 0.6, 0.3],
        [0.0, 0.9, 0.9, 0.3, 0.4, 0.1, 0.5, 0.7, 0.2, 0.2, 0.1, 0.0],
        [-0.1, 0.1, 0.2, 0.3, 0.5, 0.6, 0.3, 0.3, 0.5, 0.1, 0.3, -0.7],
    ]
)

# Public: known of such measurements before anybody was measured.
ROW_BOUND: Final = 6.0


def made_up_people(count: int, *, rng: Generator, loadings: Array = LOADINGS, bound: float = ROW_BOUND) -> Array:
    """Rows, (count, d), of measurements in standard deviations from a public average, of norm at most `bound`.

    Each is a mix of a few hidden traits, by `loadings`, (traits, d), and of the person's own variation, so that a column varies
    by about one.

    >>> made_up_people(5, rng=np.random.default_rng(0)).shape
    (5, 12)
    """
    traits, dim = loadings.shape
    # At least a tenth of each column's variance is a person's own: no column follows from the others.
    own = np.sqrt(np.maximum(1 - np.square(loadings).sum(axis=0), 0.1))
    rows = rng.standard_normal((count, traits)) @ loadings + own * rng.standard_normal((count, dim))
    longest = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), bound)
    return np.asarray(rows * (bound / longest), dtype=np.float64)


_DIM: Final = 40
_TRAITS: Final = 4
_PEOPLE: Final = 40  # No more than columns, so that components fit them better than others.
_RANK: Final = 10
_DELTA: Final = 1e-5

# Public, and seldom reached: the norm of a row of 40 columns that vary by one is about 6.3.
_BOUND: Final = 9.0

_ANYBODY: Final = "anybody in the table"
_STANDING_OUT: Final = "one person who stands out"
# For each end of an interval, so that both together have 99% confidence.
_LEVEL: Final = 0.005


@final
@dataclass(frozen=True, slots=True, eq=False)
class Population:
    """What an attacker knows of the population."""

    loadings: Array  # Of columns, (traits, d).
    covariance: Array  # (d, d).

    @classmethod
    def drawn(cls, rng: Generator) -> "Population":
        """A random population of 40 columns and a few hidden traits."""
        loadings = rng.standard_normal((_TRAITS, _DIM))
        # Half of a column's variance is its own.
        loadings *= np.sqrt(0.5 / np.square(loadings).sum(axis=0))
        return cls(loadings, loadings.T @ loadings + np.diag(1 - np.square(loadings).sum(axis=0)))

    def people(self, count: int, rng: Generator) -> Array:
        """Rows, (count, d)."""
        return made_up_people(count, rng=rng, loadings=self.loadings, bound=_BOUND)


def scores(pca: PrivatePCA, candidates: Array, population: Population) -> dict[str, Array]:
    """Two scores, (m,), of `candidates`, (m, d), each larger for rows that seem to have been in the table.

    "projection" is the share of a row's square that lies in the components. "likelihood" is the log likelihood ratio of the row
    under the published model against the population. What the model leaves out is as in the population.
    """
    basis, covariance = pca.components_.T, population.covariance
    inside = candidates @ basis
    lengths = np.square(candidates).sum(axis=1)
    within = np.square(inside).sum(axis=1)
    # The variance that the components leave out, spread evenly over all other directions.
    rest = float(np.trace(covariance) - np.einsum("ij,ij->", basis, covariance @ basis)) / (_DIM - basis.shape[1])
    # A variance that noise has made zero would make any row impossible.
    variances = np.maximum(pca.explained_variance_, rest)
    # Minus twice the log densities of two normals, up to constants that are the same for all rows.
    by_model = (np.square(inside) / variances).sum(axis=1) + (lengths - within) / rest
    by_population = np.einsum("ij,ij->i", candidates, np.linalg.solve(covariance, candidates.T).T)
    return {"projection": within / lengths, "likelihood": (by_population - by_model) / 2}


def largest_advantage(epsilon: float, delta: float, *, gaussian: bool = True) -> float:
    """The largest rate of right alarms less that of false ones, of any attack on an (epsilon, delta)-private release.

    In general this is (e^epsilon - 1 + 2 delta) / (e^epsilon + 1). Gaussian noise of the same (epsilon, delta) allows less,
    2 Phi(mu / 2) - 1. At a rate a of false alarms, right ones are at most Phi(mu - Phi^-1(1 - a)). The difference is largest at
    a = Phi(-mu / 2).

    >>> round(largest_advantage(1.0, 1e-5), 3), round(largest_advantage(1.0, 1e-5, gaussian=False), 3)
    (0.107, 0.462)
    """
    if gaussian:
        return float(2 * ndtr(mu_for(epsilon, delta) / 2) - 1)
    return math.tanh(epsilon / 2) + 2 * delta / (math.exp(epsilon) + 1)


def advantage(present: Array, absent: Array) -> tuple[float, tuple[float, float]]:
    """The rate of right alarms less that of false ones, and its 99% confidence interval.

    Scores of people who were in their table are `present`, (t, m), one table a row; of people who were not, `absent`, (t, m). The
    first quarter of the tables chooses a threshold, the rest measure. Tables must be independent, people in one need not be. With
    many people a table counts as one number (Student 1908), with one person as a guess that is right or wrong (Clopper and
    Pearson 1934).

    >>> advantage(np.ones((40, 1)), np.zeros((40, 1)))[0]
    1.0
    """
    tables, people = present.shape
    learned = learning(tables)
    # On tables of its own: a threshold chosen on those that measure it would look better than it is.
    threshold = _best_threshold(present[:learned].ravel(), absent[:learned].ravel())
    alarms, silent = present[learned:] > threshold, absent[learned:] <= threshold
    if people == 1:
        right, guesses = int(alarms.sum() + silent.sum()), 2 * len(alarms)
        low, high = rate_at_least(right, guesses, level=_LEVEL), rate_at_most(right, guesses, level=_LEVEL)
        return 2 * right / guesses - 1, (2 * low - 1, 2 * high - 1)
    each = alarms.mean(axis=1) + silent.mean(axis=1) - 1
    mean = float(each.mean())
    # The lower quantile is negative.
    reach = -float(stdtrit(len(each) - 1, _LEVEL)) * float(each.std(ddof=1)) / math.sqrt(len(each))
    return mean, (max(mean - reach, -1.0), min(mean + reach, 1.0))


def learning(tables: int) -> int:
    """The number of tables that a threshold is learned from: a quarter.

    >>> learning(200)
    50
    """
    require(tables >= 8, f"tables must be at least 8, got {tables}")
    return tables // 4


def membership(*, seed: int = 0, tables: int = 200) -> Demonstration:
    """Two attackers on components without privacy, at epsilon = 1 and at epsilon = 8, over `tables` tables each."""
    rng = np.random.default_rng(seed)
    population = Population.drawn(rng)
    shown = []
    for epsilon in (None, 1.0, 8.0):
        settings: dict[str, Any] = {"epsilon": None}
        if epsilon is not None:
            settings = {"epsilon": epsilon, "delta": _DELTA, "row_bound": _BOUND}
        name = "no privacy" if epsilon is None else f"epsilon = {epsilon:g}"
        allowed = 1.0 if epsilon is None else largest_advantage(epsilon, _DELTA)
        for target, attack in ((_ANYBODY, _anybody), (_STANDING_OUT, _standing_out)):
            value, interval, text = attack(population, settings, tables, rng)
            if epsilon is not None:
                general = largest_advantage(epsilon, _DELTA, gaussian=False)
                text += f"; (epsilon, delta) alone would allow {general:.2f}"
            shown.append(
                Shown(
                    run=name,
                    target=target,
                    value=value,
                    baseline=0.0,
                    succeeded=interval[0] > 0,
                    words=text,
                    interval=interval,
                    allowed=allowed,
                )
            )
    return Demonstration(
        title="Was this person in the table?",
        story=(
            f"{_RANK} components of a table of {_PEOPLE} people and {_DIM} columns are published, with their variances.",
            "One attacker knows the population, and is asked about people of whom half were in the table. Those who were lie "
            "closer to the components than others.",
            "Another knows all others in the table, and looks for one who stands out: in a direction in which people in "
            "general vary least.",
            f"Each learns a threshold on {learning(tables)} of {tables} tables, and is measured on the others.",
        ),
        measure="advantage: rate of right alarms less rate of false ones; 1 is always right, 0 a coin toss",
        guess="a coin toss",
        rows=tuple(shown),
        conclusion=_conclusion(shown),
    )


def _anybody(
    population: Population, settings: Mapping[str, Any], tables: int, rng: Generator
) -> tuple[float, tuple[float, float], str]:
    """People in a table against others of the same population. Neighbouring tables replace one person by another."""
    present: dict[str, list[Array]] = {}
    absent: dict[str, list[Array]] = {}
    for _ in range(tables):
        rows, others = population.people(_PEOPLE, rng), population.people(_PEOPLE, rng)
        pca = _fitted(rows, settings, rng, neighbours="replace-one")
        for name, score in scores(pca, np.vstack([rows, others]), population).items():
            present.setdefault(name, []).append(score[:_PEOPLE])
            absent.setdefault(name, []).append(score[_PEOPLE:])
    # The score is chosen on the same tables as the threshold, so that neither choice biases the measurement.
    learned = learning(tables)
    best = max(present, key=lambda name: _ranked(np.array(present[name][:learned]), np.array(absent[name][:learned])))
    samples = np.array(present[best]), np.array(absent[best])
    ranked = _ranked(samples[0][learned:], samples[1][learned:])
    return *advantage(*samples), f"by {best}; area under the curve {ranked:.2f}"


def _standing_out(
    population: Population, settings: Mapping[str, Any], tables: int, rng: Generator
) -> tuple[float, tuple[float, float], str]:
    """Tables with a person of the largest norm allowed, along the direction of least variance, against a row of zeros instead."""
    direction = np.linalg.eigh(population.covariance)[1][:, 0]
    samples: dict[float, list[float]] = {1.0: [], 0.0: []}
    for _ in range(tables):
        for presence, sample in samples.items():
            rows = population.people(_PEOPLE, rng)
            # This attacker knows everybody else, and subtracts their variance along the direction.
            others = float(np.square(rows[1:] @ direction).sum()) / (_PEOPLE - 1)
            # Present at the bound, or blank: the largest difference that zero-out neighbours allow.
            rows[0] = presence * _BOUND * direction
            pca = _fitted(rows, settings, rng, neighbours="zero-out")
            variance = float((np.square(pca.components_ @ direction) * pca.explained_variance_).sum())
            sample.append(variance - others)
    present, absent = (np.array(sample)[:, None] for sample in samples.values())
    learned = learning(tables)
    return *advantage(present, absent), f"area under the curve {_ranked(present[learned:], absent[learned:]):.2f}"


def _fitted(rows: Array, settings: Mapping[str, Any], rng: Generator, *, neighbours: Any) -> PrivatePCA:
    seed = int(rng.integers(1 << 31))
    return PrivatePCA(_RANK, center=None, neighbours=neighbours, random_state=seed, **settings).fit(rows)


def _ranked(present: Array, absent: Array) -> float:
    """How often a person in the table scores higher than one who is not: the area under the curve."""
    others = np.sort(absent.ravel())
    # Ties count half: the mean of both sides.
    below = np.searchsorted(others, present.ravel(), side="left") + np.searchsorted(others, present.ravel(), side="right")
    return float(below.mean() / (2 * len(others)))


def _best_threshold(present: Array, absent: Array) -> float:
    """The threshold at which right alarms exceed false ones most."""
    levels = np.unique(np.concatenate([present, absent]))
    right = 1 - np.searchsorted(np.sort(present), levels, side="right") / len(present)
    false = 1 - np.searchsorted(np.sort(absent), levels, side="right") / len(absent)
    index = int(np.argmax(right - false))
    # Half way to the next score separates another table's scores best.
    return float(levels[index : index + 2].mean())


def _conclusion(shown: list[Shown]) -> str:
    sentences = []
    for row in shown:
        limits = f" ({row.interval[0]:.2f} to {row.interval[1]:.2f})" if row.interval else ""
        gain = f"an advantage of {row.value:.2f}{limits}"
        outcome = f"detected with {gain}" if row.succeeded else f"{gain}, not distinguishable from a coin toss"
        sentences.append(f"With {row.run}, {row.target}: {outcome}.")
    private = [row for row in shown if row.allowed is not None and row.allowed < 1]
    over = [row for row in private if row.interval is not None and row.allowed is not None and row.interval[0] > row.allowed]
    if over:
        sentences.append(f"That is MORE than the guarantee allows in: {', '.join(f'{row.run}, {row.target}' for row in over)}.")
    else:
        allowances = "; ".join(
            f"{name} allows {allowed:.2f}" for name, allowed in {row.run: row.allowed for row in private}.items()
        )
        sentences.append(f"As far as these tables can tell, no private run gives more than its guarantee allows: {allowances}.")
    return " ".join(sentences)
