"""What the papers publish (`published.toml`), and how a rerun is compared with it: statements, agreement and verdicts.

Statements are read by a small parser and never evaluated as code. It imports no numpy, so that a list of entries prints at once.
"""

import json
import math
import re
import statistics
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from importlib.resources import files
from typing import Any, Final, Literal, NamedTuple, final

from eigenveil.errors import join_names, require

__all__ = ["PAPERS", "Cell", "Entry", "Rerun", "agreement", "entries", "errata", "evaluate", "expected_verdicts", "read_registry"]

# The papers by the word that a user types.
PAPERS: Final = {"fpca": "FPCA", "fedpower": "FedPower", "ppm": "PPM", "ddppm": "D-DP-PM"}
_KINDS: Final = ("table", "figure", "claim", "theory")
# Errors below this are rounding: two of them agree.
_ROUNDING: Final = 1e-5

Measure = Literal["paper", "authors"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A group of cells, a figure or a claim of a paper. `settings` are merged with what the entry overrides."""

    id: str
    paper: str
    item: str
    kind: str
    data: str  # As the paper names it.
    at_hand: tuple[str, ...]
    settings: Mapping[str, Any]
    measure: Mapping[str, str]  # "paper" is the definition, "authors" what their program computes.
    where: Mapping[str, Any]
    errata: tuple[str, ...]
    panel: str = ""
    stand_in: tuple[str, ...] = ()
    also: str = ""
    columns: tuple[str, ...] = ()
    values: tuple[float, ...] = ()
    sd: tuple[float, ...] = ()
    printed: tuple[str, ...] = ()
    series: Mapping[str, Sequence[float]] = field(default_factory=dict)
    formulas: Mapping[str, Any] = field(default_factory=dict)
    unit: str = ""
    read_to: float = 0.0
    statement: str = ""
    check: tuple[str, ...] = ()
    known: str = ""
    rerun: Mapping[str, Any] = field(default_factory=dict)
    ours: str = ""
    audit: str = ""
    quote2: str = ""
    runner: str = ""

    def __post_init__(self) -> None:
        require(self.paper in PAPERS.values(), f"{self.id}: there is no paper {self.paper!r}")
        require(self.kind in _KINDS, f"{self.id}: the kind must be one of {', '.join(_KINDS)}, got {self.kind!r}")
        for name in ("values", "sd"):
            numbers = getattr(self, name)
            require(len(numbers) in (0, len(self.columns)), f"{self.id}: {name} must have one number for each column")
        require(
            all(len(line) == len(self.columns) for line in self.series.values()) or self.item == "figure12",
            f"{self.id}: every series must have one number for each column",
        )

    @property
    def number(self) -> str:
        """Its table or figure as a user types it, such as "table 2"."""
        return re.sub(r"^(table|figure)(\d+)$", r"\1 \2", self.item)


def read_registry(text: str) -> tuple[tuple[Entry, ...], dict[str, str]]:
    """The entries and errata of a registry in TOML. Unknown fields, blocks and errata are refused."""
    document = tomllib.loads(text)
    allowed = {entry_field.name for entry_field in fields(Entry)} | {"override"}
    needed = {
        entry_field.name
        for entry_field in fields(Entry)
        if entry_field.default is MISSING and entry_field.default_factory is MISSING
    }
    read: list[Entry] = []
    for raw in document["entry"]:
        name = raw.get("id", "an entry without an id")
        unknown, missing = sorted(set(raw) - allowed), sorted(needed - set(raw))
        require(not unknown, f"{name}: unknown field {join_names(unknown)}")
        require(not missing, f"{name}: {join_names(missing)} must be there")
        for block in ("settings", "measure"):
            require(raw[block] in document[block], f"{name}: there is no [{block}.{raw[block]!r}]")
        lost = sorted(set(raw["errata"]) - set(document["errata"]))
        require(not lost, f"{name}: there is no erratum {join_names(lost)}")
        require(name not in [entry.id for entry in read], f"two entries are called {name}")
        frozen = {key: tuple(value) if isinstance(value, list) else value for key, value in raw.items() if key != "override"}
        frozen["settings"] = document["settings"][raw["settings"]] | raw.get("override", {})
        read.append(Entry(**frozen | {"measure": document["measure"][raw["measure"]]}))
    return tuple(read), document["errata"]


@cache
def _registry() -> tuple[tuple[Entry, ...], dict[str, str]]:
    return read_registry(files("eigenveil.papers").joinpath("published.toml").read_text(encoding="utf-8"))


def entries() -> tuple[Entry, ...]:
    """All entries of the registry that ships."""
    return _registry()[0]


def errata() -> dict[str, str]:
    """What is wrong in the papers, by the names that entries cite."""
    return _registry()[1]


def expected_verdicts() -> dict[str, dict[str, str]]:
    """The verdicts of the last accepted run, by "quick" or "full" and then by entry, data and measure."""
    text = files("eigenveil.papers").joinpath("reproduced.json").read_text(encoding="utf-8")
    loaded: dict[str, dict[str, str]] = json.loads(text)
    return loaded


class Cell(NamedTuple):
    """A number of a rerun: what it is of, such as {"opt"} or {"ppm", "eps=3"}, after which round and in which repeat."""

    labels: frozenset[str]
    value: float
    round: int = 0
    repeat: int = 0


class Number(NamedTuple):
    """A mean over repeats with its standard error."""

    mean: float
    error: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """The cells of a rerun, and `facts` by the text that statements use for them, such as shape(a9a)."""

    cells: tuple[Cell, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def of(self, row_tags: Iterable[str]) -> list[list[Cell]]:
        """The cells that have all these labels and fewest others, one list for each repeat, in the order of rounds."""
        wanted = frozenset(row_tags)
        fitting = [cell for cell in self.cells if wanted <= cell.labels]
        fewest = min((len(cell.labels) for cell in fitting), default=0)
        repeats: dict[int, list[Cell]] = {}
        for cell in fitting:
            if len(cell.labels) == fewest:
                repeats.setdefault(cell.repeat, []).append(cell)
        return [sorted(cells, key=lambda cell: cell.round) for _, cells in sorted(repeats.items())]

    def number(self, row_tags: Iterable[str], function: str = "last", *, round_: int | None = None) -> Number | None:
        """What a function of rounds gives for these labels; None if there are no such cells."""
        values = []
        for cells in self.of(row_tags):
            line = [cell.value for cell in cells if round_ is None or cell.round == round_]
            if not line:
                return None
            tail = line[-max(1, len(line) // 4) :]
            values.append({"best": min(line), "floor": statistics.median(tail)}.get(function, line[-1]))
        if not values:
            return None
        spread = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        return Number(statistics.fmean(values), spread)


class _NotSaid(ValueError):
    """A statement that the parser does not read, or of cells that were not computed."""


# Words of a statement that name the measured quantity, which a runner does not repeat in its labels.
_QUANTITIES: Final = frozenset({"error", "qa", "top 2"})
_FUNCTIONS: Final = ("last", "best", "mean", "floor", "at", "largest_sine")
_COMPARE: Final = re.compile(r"(<=|>=|==|<|>|~)")


def evaluate(statement: str, rerun: Rerun, *, data: str = "") -> bool | None:
    """Whether a statement of the registry holds; None if the difference is below two standard errors, or it was not computed.

    >>> cells = [Cell(frozenset({name}), value) for name, value in (("opt", 0.1), ("uda", 0.3))]
    >>> rerun = Rerun(cells=tuple(cells), facts={"shape(a9a)": (2, 3)})
    >>> [evaluate(text, rerun) for text in ("last(opt) < last(uda)", "2 * last(uda) < last(opt)", "last(wda) > 1")]
    [True, False, None]
    >>> evaluate("shape(a9a) == (2, 3)", rerun)
    True
    """
    prefix, colon, rest = statement.partition(":")
    always = []
    if colon:
        # "data=mnist: ..." speaks of one data set only, and "p=4: ..." adds a label.
        statement, always = rest, [word.strip() for word in prefix.split(",") if "=" in word]
        names = [word.removeprefix("data=") for word in always if word.startswith("data=")]
        if names and data.partition(":")[0] not in names:
            return None
        always = [word for word in always if not word.startswith("data=")]
    pieces = _COMPARE.split(re.sub(r" for every \w+$| on most data sets$", "", statement.strip()))
    if len(pieces) < 3:
        return None
    try:
        sides = [_side(text.strip(), rerun, always) for text in pieces[::2]]
    except _NotSaid:
        return None
    answers = [_compare(left, sign, right) for left, sign, right in zip(sides, pieces[1::2], sides[1:], strict=False)]
    return False if False in answers else (None if None in answers else True)


def _compare(left: Any, sign: str, right: Any) -> bool | None:
    if isinstance(left, tuple) != isinstance(right, tuple) or not isinstance(left, Number):
        return bool(left == right)
    if sign == "==":
        return math.isclose(left.mean, right.mean, rel_tol=0.01, abs_tol=1e-12)
    if sign == "~":
        return bool(abs(left.mean - right.mean) <= 0.15 * abs(right.mean))
    if sign in (">", ">="):
        left, right = right, left
    gap, unsure = right.mean - left.mean, 2 * math.hypot(left.error, right.error)
    if "=" in sign:
        return bool(gap >= -unsure)
    return True if gap > unsure else (False if gap <= -unsure else None)


def _side(text: str, rerun: Rerun, always: Sequence[str]) -> Any:
    """The value of one side of a comparison: a tuple of numbers, or factors joined by * and /."""
    if text in rerun.facts:
        return _fact(rerun.facts[text])
    if re.fullmatch(r"\([\d\s,]+\)", text):
        return tuple(int(number) for number in text[1:-1].split(","))
    product = Number(1.0, 0.0)
    # Only outside of brackets.
    factors = re.split(r"([*/])(?![^(]*\))", text)
    for sign, factor in zip(["*", *factors[1::2]], factors[::2], strict=True):
        value = _factor(factor.strip(), rerun, always)
        relative = math.hypot(*(number.error / number.mean if number.mean else 0.0 for number in (product, value)))
        if sign == "/" and value.mean == 0:
            raise _NotSaid
        mean = product.mean * value.mean if sign == "*" else product.mean / value.mean
        product = Number(mean, abs(mean) * relative)
    return product


def _factor(text: str, rerun: Rerun, always: Sequence[str]) -> Number:
    if text in rerun.facts:
        return Number(float(rerun.facts[text]), 0.0)
    if re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?", text):
        return Number(float(text), 0.0)
    call = re.fullmatch(r"(\w+)\(([^()]*)\)", text)
    if call is None or call[1] not in _FUNCTIONS:
        raise _NotSaid
    row_tags = [word.strip() for word in re.split(r"[|,]", call[2])]
    rounds = [int(word.removeprefix("round=")) for word in row_tags if word.startswith("round=")]
    labels = [word for word in row_tags if word not in _QUANTITIES and not word.startswith("round=")]
    number = rerun.number([*labels, *always], call[1], round_=rounds[0] if rounds else None)
    if number is None:
        raise _NotSaid
    return number


def _fact(value: Any) -> Any:
    return value if isinstance(value, tuple) else Number(float(value), 0.0)


def agreement(published: float, measured_value: Number, *, error: float = 0.0, read_to: float = 0.0) -> str:
    """Whether a rerun agrees with a published number, in a word of the verdicts. `error` is the published standard error.

    >>> [agreement(0.1, Number(value, 0.0)) for value in (0.11, 0.13, 0.3)]
    ['reproduced', 'close', 'differs']
    """
    gap = abs(published - measured_value.mean)
    if max(abs(published), abs(measured_value.mean)) < _ROUNDING or gap <= max(
        3 * math.hypot(error, measured_value.error), 0.15 * abs(published), read_to
    ):
        return "reproduced"
    ratio = measured_value.mean / published if published else math.inf
    return "close" if 1 / 1.5 <= ratio <= 1.5 else "differs"
