"""How good the planner's predictions are, compared with what fits really find (truth.py), by table, epsilon and
method.

It scores the cells whose truth, the mean captured variance over seeds, lies in 0.2-0.98; outside that range
prediction is easy. The planner is told the number of people and one of:

- the true spectrum;
- two true numbers: the share of variance of the first k components, and the mean squared row norm over the squared
  bound. The rest is a power law;
- a spectrum that was released privately for epsilon = 0.1 beside the fit, where that is more than noise.

The first two are READ FROM THE DATA, for this comparison only. Goals: 95% of the cells within 0.03 of the truth with
the spectrum, 80% within 0.1 with the two numbers. An interval is right if a fit lies in it. Nine of ten fits should,
so fits are counted there and not cells. A choice is right if what it truly captures is within 0.02 of the best
method.

    python benchmarks/plan/grid.py --cache FILE               # the summary
    python benchmarks/plan/grid.py --cache FILE --markdown    # the tables of the docs
    python benchmarks/plan/grid.py --quick                    # two small tables, no file
"""

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from benchmarks.datasets import heading, line
from benchmarks.plan.truth import CACHE, DATA, DELTA, METHODS, RELEASED, SITES, Cell, Table, Truths, cells_of, measure
from eigenveil.core.accounting import Budget
from eigenveil.linalg.blas import blas_threads
from eigenveil.plan.facts import Facts
from eigenveil.plan.recommendation import advise
from eigenveil.plan.rehearsal import Forecast, Interval
from eigenveil.plan.spectrum import Spectrum

LOW, HIGH = 0.2, 0.98
NEAR, ROUGH, REGRET = 0.03, 0.1, 0.02
GOALS: Final = {"given": (NEAR, 0.95), "guess": (ROUGH, 0.8)}
# Two tables that come with scikit-learn, and a method or two of every kind.
QUICK, QUICK_EPSILONS = ("breast_cancer", "digits"), (1.0,)
QUICK_METHODS: Final = (
    *("curator/covariance", "curator/power", "stream/sync", "stream/block", "hub/covariance", "hub/krylov"),
    *("site/fedpower", "site/merge", "masked/covariance", "peers/covariance"),
)
_ALONE: Final = ("curator", "stream")

Guess = Callable[[dict[str, Any]], Spectrum | None]


def given(known: dict[str, Any]) -> Spectrum:
    """The true spectrum."""
    return Spectrum.of_variances(known["values"], row_bound=1.0)


def guessed(known: dict[str, Any]) -> Spectrum:
    """Two true numbers and a power law."""
    true, rank = given(known), known["rank"]
    return Spectrum.guessed(known["dim"], rank=rank, explained=true.explained(rank), bound_usage=true.bound_usage)


def released(known: dict[str, Any]) -> Spectrum | None:
    """What one small private release shows of it, if it is more than noise."""
    return None if known["released"] is None else Spectrum.from_json(known["released"])


GUESSES: Final[dict[str, Guess]] = {"given": given, "guess": guessed, f"released for {RELEASED:g}": released}


@final
@dataclass(frozen=True, slots=True, order=True)
class Group:
    """What the planner is asked at once: all that was measured of a table at one epsilon, at one place or at several sites."""

    name: str
    epsilon: float
    look: bool
    alone: bool

    @classmethod
    def of(cls, cell: Cell) -> "Group":
        """The group of a cell."""
        return cls(cell.name, cell.epsilon, cell.look, cell.candidate.partition("/")[0] in _ALONE)

    def facts(self, known: dict[str, Any], spectrum: Spectrum) -> Facts:
        """What the planner is told."""
        return Facts(
            dim=known["dim"],
            rank=known["rank"],
            people=known["people"],
            budget=Budget(self.epsilon, DELTA),
            spectrum=spectrum,
            center="private" if self.look else None,
            # The fits that were measured had a given bound.
            row_bound=1.0,
            sites=1 if self.alone else SITES,
        )


@final
@dataclass(frozen=True, slots=True)
class Scored:
    """A cell: what its fits found, and what was predicted."""

    cell: Cell
    captured: tuple[float, ...]
    sine: tuple[float, ...]
    predicted: Interval
    predicted_sine: Interval

    @property
    def truth(self) -> float:
        """The mean of what fits captured."""
        return float(np.mean(self.captured))

    @property
    def off(self) -> float:
        """How much too high the prediction is."""
        return self.predicted.value - self.truth

    @property
    def sine_off(self) -> float:
        """How much too high that of the sine is."""
        return self.predicted_sine.value - float(np.mean(self.sine))

    @property
    def counted(self) -> bool:
        """Whether the truth is in the range that is scored."""
        return LOW <= self.truth <= HIGH

    @property
    def inside(self) -> int:
        """How many fits lie in the interval. Those that capture everything may differ from it by a rounding error."""
        return sum(self.predicted.low - 1e-9 <= one <= self.predicted.high + 1e-9 for one in self.captured)


@final
@dataclass(frozen=True, slots=True)
class Answer:
    """What the planner said of a group: each measured method's prediction, and the method that it chose, if any."""

    group: Group
    cells: tuple[Scored, ...]
    chosen: str | None

    @property
    def pick(self) -> Scored | None:
        """The chosen cell."""
        return next((one for one in self.cells if one.cell.candidate == self.chosen), None)

    def regrets(self) -> dict[str, float]:
        """How much less than the best method the chosen one captures in truth, and in each setting the one of highest
        prediction."""
        found: dict[str, float] = {}
        if self.pick is not None:
            found["all"] = max(one.truth for one in self.cells) - self.pick.truth
        for setting in dict.fromkeys(_setting(one) for one in self.cells):
            members = [one for one in self.cells if _setting(one) == setting]
            expected = max(members, key=lambda one: one.predicted.value)
            found[setting] = max(one.truth for one in members) - expected.truth
        return found


def answers(truths: Truths, guess: Guess) -> Iterator[Answer]:
    """What the planner says of every group in which there is something to score or to choose."""
    spectra = {name: guess(known) for name, known in truths.facts.items()}
    groups: dict[Group, list[Cell]] = {}
    for key, found in truths.cells.items():
        if found["captured"]:
            groups.setdefault(Group.of(Cell.read(key)), []).append(Cell.read(key))
    for group, cells in groups.items():
        means = [float(np.mean(truths.cells[cell.key]["captured"])) for cell in cells]
        spectrum = spectra[group.name]
        if spectrum is None:
            continue
        if any(LOW <= mean <= HIGH for mean in means) or max(means) - min(means) > REGRET:
            facts = group.facts(truths.facts[group.name], spectrum)
            recommendation = advise(facts, methods=[cell.candidate for cell in cells])
            said = {one.method: one for one in recommendation.forecasts}
            yield Answer(
                group,
                tuple(_scored(truths, cell, said[cell.candidate]) for cell in cells),
                None if recommendation.chosen is None else recommendation.chosen.method,
            )


def _scored(truths: Truths, cell: Cell, said: Forecast) -> Scored:
    found = truths.cells[cell.key]
    return Scored(cell, tuple(found["captured"]), tuple(found["sine"]), said.captured, said.sine)


def _setting(one: Scored) -> str:
    return one.cell.candidate.partition("/")[0]


def share(values: Sequence[bool]) -> str:
    """How many of them, in percent."""
    return f"{100 * np.mean(values):.1f}%" if values else "none"


def of_all(found: Sequence[Scored]) -> list[str]:
    """Cells, within 0.03, within 0.1, mean and worst error, fits in the interval, and sines within 0.1."""
    if not found:
        return ["0", *["-"] * 6]
    offs = np.array([one.off for one in found])
    inside, fits = sum(one.inside for one in found), sum(len(one.captured) for one in found)
    sine = [abs(one.sine_off) <= ROUGH for one in found]
    return [
        str(len(found)),
        share((np.abs(offs) <= NEAR).tolist()),
        share((np.abs(offs) <= ROUGH).tolist()),
        f"{offs.mean():+.3f}",
        f"{offs[np.abs(offs).argmax()]:+.3f}",
        f"{100 * inside / fits:.1f}%",
        share(sine),
    ]


COLUMNS: Final = ("cells", "within 0.03", "within 0.1", "mean error", "worst", "fits in interval", "sine within 0.1")


def summary(results: dict[str, list[Scored]]) -> bool:
    """Print one line for each kind of knowledge of the spectrum. Returns whether the goals are reached, where cells
    are scored."""
    reached = True
    heading(["spectrum", *COLUMNS, "goal"])
    for name, found in results.items():
        verdict = "-"
        if name in GOALS and found:
            limit, goal = GOALS[name]
            got = float(np.mean([abs(one.off) <= limit for one in found]))
            reached = reached and got >= goal
            verdict = f"{100 * goal:.0f}% within {limit:g}: {'reached' if got >= goal else 'MISSED'}"
        line([name, *of_all(found), verdict])
    print()
    return reached


def by(results: dict[str, list[Scored]], word: str, key: Callable[[Cell], str]) -> None:
    """The same by method or table, for each kind of knowledge of the spectrum."""
    for name, found in results.items():
        groups: dict[str, list[Scored]] = {}
        for one in found:
            groups.setdefault(key(one.cell), []).append(one)
        heading([f"{word}, {name}", *COLUMNS])
        for group, members in groups.items():
            line([group, *of_all(members)])
        print()


def worst(results: dict[str, list[Scored]], count: int) -> None:
    """The cells that are furthest off, with the standard error of their truth."""
    for name, found in results.items():
        heading([f"worst, {name}", "epsilon", "method", "truth", "standard error", "predicted"])
        for one in sorted(found, key=lambda one: -abs(one.off))[:count]:
            cell = one.cell
            error = np.std(one.captured, ddof=1) / np.sqrt(len(one.captured)) if len(one.captured) > 1 else np.nan
            table = f"{cell.name}{', private mean' if cell.look else ''}"
            row = [table, f"{cell.epsilon:g}", cell.candidate, f"{one.truth:.3f}", f"{error:.3f}"]
            line([*row, str(one.predicted)])
        print()


def chosen(asked: dict[str, list[Answer]], truths: Truths) -> None:
    """How often the choice is right; and what is chosen at sites by the first spectrum, with its truth and prediction."""
    heading(["choice within 0.02 of the best", "by advice", *dict.fromkeys(candidate.partition("/")[0] for candidate in METHODS)])
    for name, found in asked.items():
        regrets = [answer.regrets() for answer in found]
        columns = ["all", *dict.fromkeys(candidate.partition("/")[0] for candidate in METHODS)]
        right = [[one[column] <= REGRET for one in regrets if column in one] for column in columns]
        line([name, *(f"{sum(some)} of {len(some)}" for some in right)])
    print()
    picked = {answer.group: answer for answer in next(iter(asked.values())) if not answer.group.look and not answer.group.alone}
    epsilons = sorted({group.epsilon for group in picked})
    heading(["table", "people x columns, k", *(f"epsilon = {epsilon:g}" for epsilon in epsilons)])
    for name, known in truths.facts.items():
        line(
            [
                name,
                f"{known['people']} x {known['dim']}, {known['rank']}",
                *(_shown(picked.get(Group(name, epsilon, look=False, alone=False))) for epsilon in epsilons),
            ]
        )
    print()


def _shown(answer: Answer | None) -> str:
    if answer is None:
        # Every method there is easy, or hopeless.
        return "-"
    one = answer.pick
    return "none" if one is None else f"{one.cell.candidate}: {one.truth:.3f} / {one.predicted.value:.3f}"


def quick() -> Truths:
    """A few cells of tables that come with scikit-learn, measured now."""
    truths = Truths(None, quick=True)
    for name in QUICK:
        table = Table.load(name)
        candidates = cells_of(name, table.rows.shape[1], candidates=QUICK_METHODS, epsilons=QUICK_EPSILONS)
        measure(truths, table, [cell for cell in candidates if not cell.look], error=0.02, seconds=0.1)
    return truths


def main(arguments: Sequence[str] | None = None) -> bool:
    """Whether all goals are reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--data", nargs="*", default=list(DATA))
    parser.add_argument("--ways", dest="candidates", metavar="METHOD", nargs="*", default=list(METHODS))
    parser.add_argument("--spectra", nargs="*", choices=list(GUESSES), default=list(GUESSES))
    parser.add_argument("--worst", type=int, default=15)
    parser.add_argument("--markdown", action="store_true", help="only what the docs show")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    begun = time.perf_counter()
    with blas_threads(1):
        truths = quick() if options.quick else Truths.open(options.cache)
        truths = only(truths, options.data, options.candidates)
        if not truths.cells:
            print(f"nothing was measured yet: python benchmarks/plan/truth.py --cache {options.cache}")
            return False
        asked = {name: list(answers(truths, GUESSES[name])) for name in options.spectra}
    results = {name: [one for one in all_cells(found) if not one.cell.look] for name, found in asked.items()}
    for name, found in asked.items():
        centred = [one for one in all_cells(found) if one.cell.look]
        results |= {f"{name}, private mean": centred} if centred else {}
    fits = sum(len(cell["captured"]) for cell in truths.cells.values())
    print(f"{len(truths.facts)} tables, {len(truths.cells)} cells, {fits} fits; scored where the truth is in {LOW}-{HIGH}\n")
    reached = summary(results)
    by({name: found for name, found in results.items() if name in GOALS or not options.markdown}, "method", _candidate)
    if not options.markdown:
        by(results, "table", lambda cell: cell.name)
    chosen(asked, truths)
    worst(results, 5 if options.markdown else options.worst)
    if not options.markdown:
        print(f"{time.perf_counter() - begun:.0f} s")
    return reached


def only(truths: Truths, names: Sequence[str], candidates: Sequence[str]) -> Truths:
    """What was measured of these tables with these methods."""
    cells = {key: found for key, found in truths.cells.items() if Cell.read(key).name in names}
    cells = {key: found for key, found in cells.items() if Cell.read(key).candidate in candidates}
    kept = {Cell.read(key).name for key in cells}
    return Truths(truths.path, {name: known for name, known in truths.facts.items() if name in kept}, cells)


def all_cells(found: Iterable[Answer]) -> Iterator[Scored]:
    """The cells of answers that are scored."""
    return (one for answer in found for one in answer.cells if one.counted)


def _candidate(cell: Cell) -> str:
    return cell.candidate


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
