"""Reconstruction by a curious hub and by an outsider: FedPower's Examples 1 and 2.

The hub finds a site's matrix and people's rows from the messages of real studies of `FederatedPCA`. It runs the study's own code
on a guessed matrix, and changes the guess until the code gives the answers that it received, so no method is implemented here a
second time.

The outsider has what a fit of `PrivatePCA` publishes, and knows something besides. Components are published to show how columns
vary together, and a private study shows that too, if enough people are in it. The guarantee is about the last target: one
person.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, NamedTuple, final

import numpy as np
from numpy.random import Generator
from scipy.optimize import least_squares, nnls

from eigenveil.audit.cases.seen import Recorder
from eigenveil.audit.membership import COLUMNS, ROW_BOUND, Demonstration, Shown, made_up_people
from eigenveil.core.mechanism import Exact
from eigenveil.data.rows import Symmetric
from eigenveil.errors import require
from eigenveil.estimators import FederatedPCA, PrivatePCA
from eigenveil.linalg import Array, top_eigen
from eigenveil.protocols.messages import Ask, Contribution, Message
from eigenveil.runtimes.local import Faults, LocalStar
from eigenveil.tasks.base import Question
from eigenveil.tasks.fit.task import FitTask

__all__ = [
    "HALF",
    "Heard",
    "curious_hub",
    "entries_from_components",
    "listened",
    "outsider",
    "relative_error",
    "rounded",
    "row_from_components",
    "solved",
]

Kind = Literal["none", "trusted", "private"]

Answers = tuple[tuple[Question, Array], ...]

_RANK: Final = 3

_DELTA: Final = 1e-5

_MATRIX: Final = "the site's matrix"
_ROW: Final = "one person's row"

# Sites of different sizes, so that the attacked one is not simply a third of the total.
_SIZES: Final = {"north": 300, "south": 280, "east": 120}

_ATTACKED: Final = "east"

_PAIR: Final = ("glucose", "insulin")

# How many people's rows the hub tries to get: each was in one study and not in the next. Without noise all give the same.
_LEAVERS: Final[dict[str, int]] = {"none": 2, "trusted": 2, "private": 6}

# Four columns a round of twelve, so that no round alone determines the matrix.
_ROUNDS: Final[dict[str, Any]] = {"method": "power", "oversample": 1, "rounds": 5}

# An attack that does not halve the error of a guess has not succeeded.
HALF: Final = 0.5

_MEANINGS: Final[tuple[tuple[Kind, str, str], ...]] = (
    ("none", "Without privacy", "keeping rows at the site hid nothing"),
    ("trusted", "Where it is trusted to add the noise itself", "that is what this trust means"),
)


class _Run(NamedTuple):
    """A study: its name, whether its noise is meant to stop the hub, and its settings."""

    name: str
    kind: Kind
    settings: Mapping[str, Any]


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Heard:
    """What a hub has from the rounds of the components of one study. Each answer comes with its question."""

    study: FitTask[Any, Any, Any]
    parts: Answers  # Of one site. Under masks there are none.
    totals: Answers
    shares: tuple[float, ...]  # Of the budget, for each round: public, and says how noisy the round is.

    @property
    def answers(self) -> Answers:
        """The parts where the hub can read them, else the totals."""
        return self.parts or self.totals


def listened(pca: FederatedPCA, sites: Mapping[str, Array], *, site: str) -> Heard:
    """Run the parties of `pca` on `sites` with an honest hub that also keeps what `site` sends, and the totals."""
    federation = pca.prepare(sites)
    parties = federation.parties
    round_totals: list[Array] = []
    questions: dict[int, Question] = {}
    parts: list[tuple[Question, Array]] = []

    def read(message: Message) -> list[Message]:
        match message.body:
            case Ask(round=round_, question=question):
                questions[round_] = question
            case Contribution(round=round_, arrays=arrays) if message.sender == site and questions[round_].stage == "components":
                parts.append((questions[round_], arrays[0]))
        return [message]

    # The study's own hub, with one honest mechanism exchanged. It follows the protocol and remembers values before the noise:
    # that is what trusting a hub means.
    through = partial(Recorder, private=round_totals, released=[])
    hub = parties.hub(masking=parties.masking(), watch=None, through=through)
    LocalStar(hub, federation.members.values(), faults=Faults(meddle=read), seed=federation.request.seed).run()
    # One total for each round. FedPower's totals pass no mechanism where no noise is added to them.
    totals = zip(questions.values(), round_totals, strict=True) if len(round_totals) == len(questions) else ()
    components = tuple((question, total) for question, total in totals if question.stage == "components")
    shares = federation.request.fit.plan.shares if federation.request.fit.private else ()
    return Heard(study=parties.study, parts=tuple(parts), totals=components, shares=shares)


def solved(heard: Heard, *, dim: int, start: Array | None = None) -> Array:
    """The symmetric matrix, (dim, dim), for which the study's own code comes closest to the answers that the hub got.

    FedPower Example 1. Where an answer is M Z this is linear, and d / w rounds of w columns can be enough. After local steps it
    is not linear, and is solved by Levenberg-Marquardt from `start`. Rounds with more noise weigh less.
    """
    answers, exact = heard.answers, Exact(because="the hub works on a guess of its own")
    require(len(answers) >= 1, "the hub has no answers to work from")
    # The variance of a round's noise is inversely proportional to its share.
    weights = [np.sqrt(heard.shares[question.step]) if heard.shares else 1.0 for question, _ in answers]
    size = max(float(np.linalg.norm(answer, 2)) for _, answer in answers)
    # A Gram matrix is symmetric. With half of the unknowns, fewer rounds are enough.
    upper = np.triu_indices(dim)

    def matrix(entries: Array) -> Array:
        half = np.zeros((dim, dim))
        half[upper] = entries
        return half + np.triu(half, 1).T

    def off(entries: Array) -> Array:
        # Entries are scaled by `size`, so that the solver's tolerances are relative.
        guess = Symmetric(matrix(entries) * size, people=1)
        parts = (heard.study.arrays(heard.study.work(question, guess, exact))[0] for question, _ in answers)
        return np.concatenate(
            [weight * (part - answer).ravel() / size for weight, part, (_, answer) in zip(weights, parts, answers, strict=True)]
        )

    first = (np.eye(dim) if start is None else start / size)[upper]
    solution = least_squares(off, first, method="lm", xtol=1e-10, ftol=1e-10, gtol=1e-10)
    return matrix(solution.x) * size


def relative_error(guess: Array, truth: Array) -> float:
    """|| truth - s guess || / || truth || for the best factor s, which the attacker is granted; in [0, 1].

    >>> relative_error(np.array([-2.0, 0.0]), np.array([1.0, 0.0])), relative_error(np.zeros(2), np.ones(2))
    (0.0, 1.0)
    """
    square = float(np.vdot(guess, guess))
    factor = float(np.vdot(guess, truth)) / square if square > 0 else 0.0
    return float(np.linalg.norm(truth - factor * guess) / np.linalg.norm(truth))


def rounded(error: float) -> str:
    """An error as it is printed: two digits, or its order of magnitude where it is small.

    >>> rounded(0.1234), rounded(4.56e-13)
    ('0.12', '5e-13')
    """
    return f"{error:.2f}" if error >= 0.01 else f"{error:.0e}"


def curious_hub(*, seed: int = 0, epsilon: float = 1.0) -> Demonstration:
    """FedPower Example 1: an honest hub that keeps its messages, and computes a site's matrix and people's rows from them.

    Three sites have synthetic people. The hub runs a study, and another one after somebody has left; the two matrices differ by
    that person. Private studies are at (`epsilon`, 1e-5) each.
    """
    rng = np.random.default_rng(seed)
    sites = {name: made_up_people(count, rng=rng) for name, count in _SIZES.items()}
    runs = _runs(epsilon)
    shown = {run.name: _attacked(run, sites, rng) for run in runs}
    return Demonstration(
        title="A curious hub",
        story=(
            f"Three sites with {', '.join(map(str, _SIZES.values()))} people and {len(COLUMNS)} columns are asked for "
            f"{_RANK} components. Rows stay at the sites.",
            "The hub follows the protocol, and keeps its questions and the answers (FedPower, Example 1).",
            "It looks for the matrix for which the study's own code gives those answers. That Gram matrix shows every "
            f"variance and correlation of the site {_ATTACKED!r}.",
            "Then one person leaves, and the study runs again. The two matrices differ by x times x, which shows "
            "that person's whole row x, up to its sign.",
        ),
        measure="relative error of the reconstruction: 0 is exact, 1 is nothing",
        guess="the same error for a guess: the site is like the others, and a person lies along the first component",
        rows=tuple(row for pair in shown.values() for row in pair),
        conclusion=_conclusion(runs, shown),
    )


def _runs(epsilon: float) -> tuple[_Run, ...]:
    private: dict[str, Any] = {"epsilon": epsilon, "delta": _DELTA, "row_bound": ROW_BOUND}
    exact: dict[str, Any] = {"epsilon": None}
    label = f"epsilon = {epsilon:g}"
    return (
        _Run("no privacy, one covariance", "none", exact | {"method": "covariance"}),
        _Run("no privacy, power iteration", "none", exact | _ROUNDS),
        _Run("no privacy, FedPower with 2 local steps", "none", exact | _ROUNDS | {"method": "fedpower", "local_steps": 2}),
        _Run(f"{label} at a hub that is trusted", "trusted", private | _ROUNDS | {"trust": "hub"}),
        _Run(f"{label} at the sites, power iteration", "private", private | _ROUNDS | {"trust": "site"}),
        _Run(f"{label} at the sites, one covariance", "private", private | {"method": "covariance", "trust": "site"}),
        _Run(f"{label} under masks, one covariance", "private", private | {"method": "covariance", "trust": "masked"}),
    )


def _attacked(run: _Run, sites: Mapping[str, Array], rng: Generator) -> tuple[Shown, Shown]:
    """What the hub gets of the site's matrix and, on average over a few people who leave, of a person's row."""
    rows, dim = sites[_ATTACKED], len(COLUMNS)
    gram = rows.T @ rows
    others = sum((sites[name].T @ sites[name] for name in sites if name != _ATTACKED), start=np.zeros((dim, dim)))
    estimate = _heard_and_solved(run, sites, rng, start=None)
    errors, guesses = [], []
    leavers = _LEAVERS[run.kind]
    for person in range(leavers):
        without = dict(sites) | {_ATTACKED: np.delete(rows, person, axis=0)}
        # Start from the other study's matrix: it differs by one person only.
        change = estimate - _heard_and_solved(run, without, rng, start=estimate)
        errors.append(relative_error(top_eigen(change, rank=1)[1].ravel(), rows[person]))
        guesses.append(relative_error(top_eigen(others, rank=1)[1].ravel(), rows[person]))
    values, vectors = np.linalg.eigh(estimate)
    # The nearest matrix that can be a Gram matrix: negative eigenvalues, which noise makes, become zero.
    recovered = (vectors * np.maximum(values, 0)) @ vectors.T
    off, guess = relative_error(recovered, gram), relative_error(others, gram)
    mean, usual = float(np.mean(errors)), float(np.mean(guesses))
    matrix = f"{' and '.join(_PAIR)} there correlate by {_correlation(gram):+.3f}; the hub reads {_correlation(recovered):+.3f}"
    row = f"{leavers} people: errors from {rounded(min(errors))} to {rounded(max(errors))}"
    return _shown(run.name, _MATRIX, off, guess, matrix), _shown(run.name, _ROW, mean, usual, row)


def _shown(run: str, target: str, error: float, guess: float, description: str) -> Shown:
    """The error of an attack, which has succeeded if it halves that of a guess."""
    succeeded = error < HALF * guess
    return Shown(run=run, target=target, value=error, baseline=guess, succeeded=succeeded, words=description)


def _heard_and_solved(run: _Run, sites: Mapping[str, Array], rng: Generator, *, start: Array | None) -> Array:
    # Each study has its own noise: the same noise twice would cancel in the difference.
    pca = FederatedPCA(_RANK, center=None, random_state=int(rng.integers(1 << 31)), **run.settings)
    return solved(listened(pca, sites, site=_ATTACKED), dim=len(COLUMNS), start=start)


def _correlation(gram: Array) -> float:
    first, second = (COLUMNS.index(name) for name in _PAIR)
    size = float(np.sqrt(gram[first, first] * gram[second, second]))
    return float(gram[first, second]) / size if size > 0 else 0.0


def _conclusion(runs: tuple[_Run, ...], shown: Mapping[str, tuple[Shown, Shown]]) -> str:
    def of(kind: Kind, index: int) -> list[Shown]:
        return [shown[run.name][index] for run in runs if run.kind == kind]

    sentences = []
    for kind, where, meaning in _MEANINGS:
        matrices, rows = of(kind, 0), of(kind, 1)
        of_matrix, of_rows = (rounded(max(row.value for row in part)) for part in (matrices, rows))
        errors = f"the site's matrix with a relative error up to {of_matrix}, and people's rows up to {of_rows}"
        got = all(row.succeeded for row in matrices + rows)
        sentences.append(
            f"{where} the hub gets {errors}: {meaning}." if got else f"{where} the attack did not succeed everywhere: {errors}."
        )
    for index, what in ((0, "the site's matrix"), (1, "people's rows")):
        private = of("private", index)
        values = [row.value for row in private]
        errors = f"errors from {rounded(min(values))} to {rounded(max(values))}; a guess has {rounded(private[0].baseline)}"
        got_in = [row.run for row in private if row.succeeded]
        if got_in:
            sentences.append(f"With noise that it does not know, it still got {what} in {', '.join(got_in)} ({errors}).")
        elif any(row.value < row.baseline for row in private):
            sentences.append(
                f"With noise that it does not know, it came closer to {what} than a guess, but not by half ({errors})."
            )
        else:
            sentences.append(f"With noise that it does not know, it got {what} no better than a guess ({errors}).")
    return " ".join(sentences)


_EPSILONS: Final = (1.0, 0.1)

_PEOPLE: Final = 1000

_KNOWN: Final = 6

_SOUGHT: Final = 50

_BY_ENTRIES: Final = "covariances, some known"
_BY_SPECTRUM: Final = "covariances, none known"


def entries_from_components(components: Array, variances: Array, *, columns: tuple[int, ...]) -> Array:
    """The matrix M, (d, d), from its `components`, (k, d), and the `variances` M_jj, (p,), of the `columns` columns, p >= k.

    FedPower (2.5): M is about V diag(l) V^T, and M_jj = sum_i l_i V_ji^2 is linear in l. Nothing else is needed to find l.

    >>> entries_from_components(np.array([[0.6, 0.8]]), np.array([36.0]), columns=(0,)).round(9).tolist()
    [[36.0, 48.0], [48.0, 64.0]]
    """
    rank = len(components)
    require(len(columns) >= rank, f"columns must name at least as many columns as components, {rank}, got {len(columns)}")
    # Eigenvalues of a covariance are not negative, which helps where noise is large.
    values, _ = nnls(np.square(components[:, list(columns)]).T, variances)
    matrix: Array = (components.T * values) @ components
    return matrix


def row_from_components(components: Array, values: Array, others: Array) -> Array:
    """The direction, (d,), of the row x of the one person who is missing from `others`, (d, d), everybody else's Gram matrix.

    Let G = others + x x^T, and G v = s^2 v for each of the `components`, (k, d), with singular `values`, (k,). Then all the
    vectors s^2 v - others v = x (x^T v) lie along x.

    >>> row_from_components(np.array([[1.0, 0.0]]), np.array([2.0]), np.diag([3.0, 1.0])).tolist()
    [1.0, 0.0]
    """
    rest = components.T * np.square(values) - others @ components.T
    # Under noise they no longer lie along one line, and the leading direction is the best guess.
    direction: Array = np.linalg.svd(rest, full_matrices=False)[0][:, 0]
    return direction


def outsider(*, seed: int = 0) -> Demonstration:
    """FedPower Example 2: an outsider who reads the published components, with and without privacy."""
    rng = np.random.default_rng(seed)
    rows = made_up_people(_PEOPLE, rng=rng)
    runs: dict[str, dict[str, Any]] = {"no privacy": {"epsilon": None}} | {
        f"epsilon = {epsilon:g}": {"epsilon": epsilon, "delta": _DELTA, "row_bound": ROW_BOUND} for epsilon in _EPSILONS
    }
    shown = {
        name: _outsider_attacked(
            name, PrivatePCA(_RANK, center=None, random_state=int(rng.integers(1 << 31)), **settings).fit(rows), rows
        )
        for name, settings in runs.items()
    }
    return Demonstration(
        title="An outsider",
        story=(
            f"{_RANK} components of {_PEOPLE} people and {len(COLUMNS)} columns are published, with their variances.",
            f"An outsider knows the variances of {_KNOWN} columns from elsewhere and solves for the weights of the components. "
            "That gives all other variances and covariances (FedPower, Example 2). The published variances serve as "
            "well.",
            "Another knows all rows but one. What these rows do not explain of the components is the "
            f"row of the last person. The attack is tried on {_SOUGHT} people.",
        ),
        measure="relative error of the reconstruction: 0 is exact, 1 is nothing",
        guess="the same error for a guess: columns are uncorrelated, and a person lies along the first component",
        rows=tuple(row for rows_of_run in shown.values() for row in rows_of_run),
        conclusion=_outsider_conclusion(shown),
    )


def _outsider_attacked(name: str, pca: PrivatePCA, rows: Array) -> tuple[Shown, Shown, Shown]:
    gram, columns = rows.T @ rows, tuple(range(_KNOWN))
    # As explained variances are defined, so that both reconstructions are in the same units.
    matrix = gram / (len(rows) - 1)
    # The error counts only entries that the outsider did not know beforehand.
    unknown = ~np.isin(np.arange(len(matrix)), columns)[:, None] | ~np.eye(len(matrix), dtype=bool)
    guess = relative_error(np.eye(len(matrix))[unknown], matrix[unknown])
    entries = entries_from_components(pca.components_, matrix[columns, columns], columns=columns)
    spectrum = (pca.components_.T * pca.explained_variance_) @ pca.components_
    errors, guesses = [], []
    # The outsider knows all other rows: the strongest adversary that the guarantee is stated for.
    for person in rows[:_SOUGHT]:
        others = gram - np.outer(person, person)
        errors.append(relative_error(row_from_components(pca.components_, pca.singular_values_, others), person))
        guesses.append(relative_error(top_eigen(others, rank=1)[1].ravel(), person))
    first, second = (relative_error(estimate[unknown], matrix[unknown]) for estimate in (entries, spectrum))
    mean, usual = float(np.mean(errors)), float(np.mean(guesses))
    row = f"{_SOUGHT} people: errors from {rounded(min(errors))} to {rounded(max(errors))}"
    return (
        _shown(name, _BY_ENTRIES, first, guess, f"{int(unknown.sum())} unknown entries"),
        _shown(name, _BY_SPECTRUM, second, guess, "from the published variances alone"),
        _shown(name, _ROW, mean, usual, row),
    )


def _outsider_conclusion(shown: Mapping[str, tuple[Shown, Shown, Shown]]) -> str:
    sentences = []
    for name, (first, second, row) in shown.items():
        entries = f"{rounded(min(first.value, second.value))} (a guess has {rounded(first.baseline)})"
        # The words follow from the numbers, so that a demonstration cannot claim more than it shows.
        if first.succeeded or second.succeeded:
            has = f"gets the covariances with error {entries}"
        else:
            has = f"does not get the covariances, error {entries}"
        person = f"{rounded(row.value)} (a guess has {rounded(row.baseline)})"
        if row.succeeded:
            read = f"a person's row with error {person}"
        elif row.value < row.baseline:
            read = f"a person's row somewhat better than a guess: {person}"
        else:
            read = f"a person's row no better than a guess: {person}"
        sentences.append(f"With {name}, an outsider {has}, and {read}.")
    # This remark is about private runs alone. Without privacy everything is read off.
    private = [rows for name, rows in shown.items() if name != "no privacy"]
    if any(first.succeeded and not row.succeeded for first, _, row in private):
        sentences.append("What many people have in common is published on purpose. The guarantee protects each single person.")
    return " ".join(sentences)
