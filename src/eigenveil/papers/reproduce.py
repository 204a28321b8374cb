"""`reproduce` runs entries of the registry and compares them with what was published; `listing` says what could be run here."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, final

from eigenveil.errors import join_names, require
from eigenveil.papers.registry import PAPERS, Entry, Measure, Number, Rerun, agreement, entries, evaluate, expected_verdicts

__all__ = ["Result", "changed", "listing", "reproduce", "selected"]

# From best to worst. An entry has the verdict of its worst cell.
_ORDER: Final = ("reproduced", "close", "differs")
# Data that --quick takes where an entry needs a folder.
_QUICK_DATA: Final = "sklearn:digits"
_QUICK_REPEATS: Final = 3
# Entries whose program measures something else; for the others there is one measure.
_TWO_MEASURES: Final = ("fedpower.table2", "fpca.masks", "fpca.projection", "ppm.errors")
# Made-up data of these sizes takes no folder, but too long for --quick.
_SLOW: Final = ("ppm.ratio", "fpca.streams")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One entry on one data set. `rerun` has a number and its standard error by measure and column."""

    id: str
    data: str
    statement: str
    published: dict[str, float]
    rerun: dict[str, dict[str, tuple[float, float]]]
    ours: dict[str, Any]
    checks: dict[str, str]
    verdict: str
    errata: dict[str, str]
    note: str
    seconds: float = field(compare=False)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def selected(paper: str, *, item: str | None, data: str | None) -> list[Entry]:
    """The entries of a paper, or of "all", for a table or figure and a data set. Unknown words get the list of what exists."""
    choices = [*PAPERS, "all"]
    require(paper in choices, f"there is no paper {paper!r}. There are {join_names(choices)}")
    chosen_entries = [entry for entry in entries() if paper == "all" or entry.paper == PAPERS[paper]]
    if item is not None:
        items = sorted({entry.item for entry in chosen_entries}, key=lambda name: (len(name), name))
        require(item in items, f"{paper} has no {item}. It has {join_names(items)}")
        chosen_entries = [entry for entry in chosen_entries if entry.item == item]
    if data is not None:
        sets = sorted({name for entry in chosen_entries for name in (*entry.at_hand, *entry.stand_in)} | {_QUICK_DATA})
        require(data in sets or f"{data}:train" in sets, f"no such item runs on {data!r}. Data sets are {join_names(sets)}")
        full = data if data in sets else f"{data}:train"
        chosen_entries = [entry for entry in chosen_entries if full in (*entry.at_hand, *entry.stand_in)]
    return chosen_entries


def listing() -> Iterator[tuple[str, str, str, str]]:
    """Of every entry: its name, its table or figure, its data and whether it runs here."""
    from eigenveil.papers.runners import RUNNERS, is_at_hand

    for entry in entries():
        available, instead = ([name for name in names if is_at_hand(name)] for names in (entry.at_hand, entry.stand_in))
        if entry.runner not in RUNNERS:
            status = "no runner" if entry.kind != "theory" else "a theorem: eigenveil.papers.theory"
        elif available:
            status = f"runs here: {join_names(available)}"
        elif instead:
            status = f"runs on a stand-in: {join_names(instead)}"
        elif entry.at_hand or entry.stand_in:
            status = f"data not in EIGENVEIL_DATA: {join_names([*entry.at_hand, *entry.stand_in])}"
        else:
            status = f"data not available: {entry.data}"
        yield entry.id, entry.number, entry.data, status


def reproduce(
    chosen: Sequence[Entry],
    *,
    data: str | None = None,
    measure: Literal["paper", "authors"] | None = None,
    quick: bool = False,
    watch: Callable[[str], None] = lambda _: None,
) -> list[Result]:
    """Run these entries, each on its data sets or on `data`. Runs that entries share are made once."""
    from eigenveil.linalg.blas import blas_threads
    from eigenveil.papers.runners import RUNNERS, DataMissing, is_at_hand

    made: dict[Any, Rerun] = {}
    shown: set[tuple[str, str]] = set()
    results = []
    with blas_threads(1):
        for entry in chosen:
            if entry.runner not in RUNNERS:
                continue
            sets = [*entry.at_hand, *(name for name in entry.stand_in if not entry.at_hand)]
            if data is not None:
                sets = [name for name in sets if name in (data, f"{data}:train")] or [data]
            elif quick:
                sets = [name for name in sets if name.startswith(("sklearn:", "made up"))] or [_QUICK_DATA]
                if entry.runner in _SLOW or entry.runner == "shape":
                    continue
                if sets == [_QUICK_DATA] and entry.kind == "table":
                    # On one stand-in all rows of a table are alike.
                    if (entry.item, entry.runner) in shown:
                        continue
                    shown.add((entry.item, entry.runner))
            present = [name for name in sets if is_at_hand(name)]
            if not present and data is not None:
                raise DataMissing(
                    f"{data} is not at hand. Set EIGENVEIL_DATA to the folder that has it. Without it, `eigenveil reproduce "
                    "all --quick` runs on scikit-learn's tables and made-up data"
                )
            for name in present:
                watch(f"{entry.id} on {name}")
                results.append(_result(entry, name, measure=measure, quick=quick, made=made))
    return results


def _result(entry: Entry, data: str, *, measure: Measure | None, quick: bool, made: dict[Any, Rerun]) -> Result:
    from eigenveil.papers.registry import errata
    from eigenveil.papers.runners import OPEN, OURS, RUNNERS

    began = time.perf_counter()
    repeats = entry.settings.get("repeats")
    repeats = _QUICK_REPEATS if quick or not isinstance(repeats, int) else max(3, min(repeats, 12))
    measures: tuple[Measure, ...] = ("paper", "authors") if entry.runner in _TWO_MEASURES else ("paper",)
    if measure is not None:
        measures = (measure,)
    runs: dict[Measure, Rerun] = {}
    for run_label in measures:
        columns = entry.columns if entry.runner == "fpca.masks" else ()
        settings = str(sorted(entry.settings.items(), key=str))
        key: Any = (entry.runner, entry.item, settings, entry.kind == "claim", columns, data, run_label, repeats)
        if entry.paper == "D-DP-PM":
            # One runner, which reads the limits on delta alone.
            limits = entry.values if any(name.startswith("delta at") for name in entry.columns) else ()
            key = (entry.paper, limits, data, run_label, repeats)
        if key not in made:
            made[key] = RUNNERS[entry.runner](entry, data, run_label, repeats)
        runs[run_label] = made[key]
    agreed = {run_label: list(_agreements(entry, run)) for run_label, run in runs.items()}
    # Claims are about what a paper defines, unless a measure was asked for.
    first = runs[measures[0]]
    verdicts = {True: "holds", False: "fails", None: "undecided"}
    checks = {text: verdicts[evaluate(text, first, data=data)] for text in entry.check}
    ours: dict[str, Any] = {}
    if entry.runner in OURS and ("ours", entry.runner, data) not in made:
        name, value, guarantee = OURS[entry.runner](data)
        ours = {"values": {name: value}, "guarantee": guarantee}
        made["ours", entry.runner, data] = Rerun()
    verdict = _verdict(entry, data, agreed, list(checks.values()))
    published = dict(zip(entry.columns, entry.values, strict=False))
    published |= {
        f"{name} {column}": value
        for name, line in entry.series.items()
        for column, value in zip(entry.columns, line, strict=False)
    }
    return Result(
        id=entry.id,
        data=data,
        statement=entry.statement,
        published=published,
        rerun={
            run_label: {column: (number.mean, number.error) for column, number, _ in cells} for run_label, cells in agreed.items()
        },
        ours=ours,
        checks=checks,
        verdict=verdict,
        errata={name: errata()[name] for name in entry.errata},
        note=OPEN.get(entry.runner, ""),
        seconds=round(time.perf_counter() - began, 2),
    )


def _agreements(entry: Entry, run: Rerun) -> Iterator[tuple[str, Number, str]]:
    """Of every published number that was rerun: its column, the rerun, and whether they agree."""
    repeats = entry.settings.get("repeats")
    count = repeats if isinstance(repeats, int) else 1
    function = "best" if entry.item == "table3" else "last"
    lines: list[tuple[tuple[str, ...], Sequence[float]]] = [((), entry.values)]
    if entry.series:
        lines = [((f"alpha={float(name):g}",), line) for name, line in entry.series.items() if _is_number(name)]
    for labels, values in lines:
        for column_index, (column, value) in enumerate(zip(entry.columns, values, strict=False)):
            label = column.lower().replace("f-pca", "fpca") if entry.item == "figure9" else column
            number = run.number((*labels, label), function)
            if number is None:
                continue
            error = entry.sd[column_index] / math.sqrt(count) if entry.sd else 0.0
            name = " ".join((*(label.removeprefix("alpha=") for label in labels), column))
            yield name, number, agreement(value, number, error=error, read_to=entry.read_to)


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


def _verdict(entry: Entry, data: str, agreed: dict[Measure, list[tuple[str, Number, str]]], checks: list[str]) -> str:
    if data not in entry.at_hand:
        return f"stand-in: {data}, shown and not judged"
    worst = {run_label: max((word for *_, word in cells), key=_ORDER.index) for run_label, cells in agreed.items() if cells}
    if entry.paper == "D-DP-PM" and entry.kind == "figure":
        return "open settings: a range is shown, not judged"
    if not worst:
        if not checks:
            return "shown, not judged"
        return "fails" if "fails" in checks else ("undecided" if "undecided" in checks else "holds")
    if worst.get("paper") == "reproduced":
        return "reproduced"
    if worst.get("authors") == "reproduced":
        return f"reproduced by the authors' measure ({join_names(entry.errata)})"
    best = min(worst.values(), key=_ORDER.index)
    return best if best == "close" or not entry.errata else f"differs: cause known ({join_names(entry.errata)})"


def changed(results: Sequence[Result], *, quick: bool, measure: str | None) -> list[str]:
    """What came out otherwise than expected, a sentence each. Runs that were never recorded are not compared."""
    expected = expected_verdicts()["quick" if quick else "full"]
    sentences = []
    for result in results:
        before = expected.get(f"{result.id} {result.data} {measure or 'both'}")
        if before is not None and before != result.verdict:
            sentences.append(f"{result.id} on {result.data}: expected {before!r}, got {result.verdict!r}")
    return sentences
