"""`Report`: everything that a report shows, as plain values that were released or are public; and as JSON, with its schema.

It is a record and nothing more: a model, a run or a plan becomes a `Report`, and a `Report` becomes HTML, JSON or PDF. No row is
ever read on the way. JSON and schema are read off the types. A report may come from a stranger: whatever does not have its type
is refused, and nothing is guessed.
"""

import json
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, Final, Literal, TypeAlias, Union, final, get_args, get_origin, get_type_hints

from eigenveil import __version__
from eigenveil.core.ledger import Charge
from eigenveil.data.archive import whole_number
from eigenveil.errors import require
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.show.charts import EpsilonPoint, Span
from eigenveil.show.marks import Cell

FORMAT: Final = "eigenveil-report"
# Raised whenever a key changes its meaning or goes. New keys alone keep it.
VERSION: Final = 1
Kind: TypeAlias = Literal["model", "study", "plan", "audit"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentsPart:
    """The components: their `weights`, (k, d), with the variance along each, its share of the whole, and an interval.

    Without `columns` the table had no names. Without `shares` nobody released the variance in all directions, which is `total`.
    The `intervals` are empty where none is known for this method. A `noise_floor` of zero means that no noise was added, unless
    `floor_known` is false. `mean` and `scale`, (d,), are what was subtracted from the columns, and what they were divided by;
    empty where nothing was.
    """

    columns: tuple[str, ...] | None
    weights: tuple[tuple[float, ...], ...]
    variances: tuple[float, ...]
    shares: tuple[float, ...]
    intervals: tuple[Span, ...] = ()
    noise_floor: float = 0.0
    floor_known: bool = True
    total: float | None = None
    bound_usage: float | None = None
    clipped_fraction: float | None = None
    people: float | None = None
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    # The share of all squared norms that clipping took, as far as released norms show it, and the largest share of
    # rows, the longest ones, that noise hides.
    taken: Span | None = None
    unseen: float | None = None

    def __post_init__(self) -> None:
        # A report may come from a file that was edited, and everything that draws it relies on these shapes.
        require(len(self.weights) >= 1, "there must be a component")
        widths = {len(component) for component in self.weights} | ({len(self.columns)} if self.columns is not None else set())
        require(len(widths) == 1, "every component must have one weight for each column")
        require(len(self.weights) == len(self.variances), "every component has a variance")
        require(len(self.shares) in (0, len(self.weights)), "every component has a share, or none has")
        require(len(self.intervals) in (0, len(self.weights)), "there must be one interval for each component, or none")
        for name, numbers in (("mean", self.mean), ("scale", self.scale)):
            require({len(numbers)} <= widths | {0}, f"the {name} must have one number for each column, or none")

    @property
    def above(self) -> int:
        """How many components are above the noise floor."""
        return sum(variance > self.noise_floor for variance in self.variances)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, or their numbers."""
        return self.columns or tuple(f"column {at}" for at in range(1, len(self.weights[0]) + 1))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPart:
    """One round over sites or peers: who answered, the bytes on all links, how far the directions moved, and what it cost."""

    round: int
    stage: str
    answered: tuple[str, ...]
    missing: tuple[str, ...]
    bytes_down: int
    bytes_up: int
    movement: float | None = None
    residual: float | None = None
    charges: tuple[Charge, ...] = ()
    restarted: bool = False


@final
@dataclass(frozen=True, slots=True)
class SitePart:
    """A site or peer of a study, and the pin of its certificate where it has one."""

    name: str
    pin: str | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPart:
    """Accuracy against epsilon as the planner predicts it for one `method`, with the epsilon of this result or plan marked.

    What is captured is a share of the variance that exact PCA finds: `of` all rows as they are before clipping, or of the clipped
    ones.
    """

    method: str
    asked: float
    points: tuple[EpsilonPoint, ...]
    note: str = ""
    of: Literal["all rows", "clipped rows"] = "clipped rows"

    def __post_init__(self) -> None:
        require(len(self.points) >= 1, "there must be a point")
        require(self.asked > 0, f"asked must be positive, got {self.asked}")


@final
@dataclass(frozen=True, slots=True)
class FactLine:
    """A label and its text."""

    label: str
    text: str


@final
@dataclass(frozen=True, slots=True)
class ListPart:
    """Sentences under a title."""

    title: str
    items: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TablePart:
    """A table under a title, with a note below it. The column `bars`, of percentages, is drawn as well."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    bars: str = ""

    def __post_init__(self) -> None:
        require(self.bars in ("", *self.header), f"a table has no column {self.bars} to draw")
        good = all(len(row) == len(self.header) for row in self.rows)
        require(good, "every row of a table must be as long as its header")


@final
@dataclass(frozen=True, slots=True)
class ScoresPart:
    """RAW DATA: scores of the owner's rows along the first two components. A report with them is for the owner alone."""

    points: tuple[tuple[float, float], ...]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a report shows, the `answer` first. Parts that a result does not have are empty.

    A run over sites has the name and the digest of its `study`, its `sites`, its `rounds`, and how many messages were `refused`.
    """

    kind: Kind
    title: str
    answer: str
    # Spelled out and not named, because the schema is read off this type.
    format: Literal["eigenveil-report"] = "eigenveil-report"
    version: int = VERSION
    eigenveil: str = __version__
    warnings: tuple[str, ...] = ()
    components: ComponentsPart | None = None
    study: str | None = None
    digest: str | None = None
    sites: tuple[SitePart, ...] = ()
    refused: int | None = None
    rounds: tuple[RoundPart, ...] = ()
    plan: PlanPart | None = None
    tables: tuple[TablePart, ...] = ()
    lists: tuple[ListPart, ...] = ()
    facts: tuple[FactLine, ...] = ()
    guarantee: Guarantee | None = None
    best_guess: float | None = None
    scores: ScoresPart | None = field(default=None)

    def __post_init__(self) -> None:
        require(self.version == VERSION, f"it is a report of version {self.version}, and this program reads version {VERSION}")

    @property
    def raw(self) -> bool:
        """Whether it shows raw data, so that only its owner may read it."""
        return self.scores is not None


SCHEMA_ID: Final = f"eigenveil-report-{VERSION}"
_PLAIN: Final = {str: "string", bool: "boolean", int: "integer", float: "number"}
# Deeper nesting than any report has would only exhaust the stack.
_LONGEST: Final = 1 << 28


def to_json(report: Report) -> str:
    """The report as JSON, in ASCII: a hostile name is a string like any other."""
    # NaN would become a word that other readers of JSON refuse.
    return json.dumps(_values(report), indent=2, allow_nan=False) + "\n"


def from_json(text: str) -> Report:
    """The report in `text`; a `ValueError` if it is none."""
    require(len(text) <= _LONGEST, "it is too long for a report")
    try:
        content = json.loads(text, parse_constant=_no_constant, parse_int=whole_number)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError("it is not JSON") from error
    require(isinstance(content, dict), "it is not a report")
    require("format" in content, "it is not a report")
    read = _read(Report, content, "report")
    assert isinstance(read, Report)
    return read


def _no_constant(name: str) -> Any:
    raise ValueError(f"it contains {name}, which is not a number")


def _values(value: Any) -> Any:
    if isinstance(value, Guarantee):
        return {**value.to_dict(), "words": value.to_text()}
    if is_dataclass(value):
        return {member.name: _values(getattr(value, member.name)) for member in fields(value)}
    if isinstance(value, tuple):
        return [_values(member) for member in value]
    return value


def _read(kind: Any, value: Any, where: str) -> Any:
    """`value` as `kind`, which is one of the types that contents are made of."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Guarantee:
        require(isinstance(value, dict), f"{where} must be a table")
        # The page in words is for readers of the file. It follows from the rest, so it is not read back.
        return Guarantee.from_dict({name: entry for name, entry in value.items() if name != "words"})
    if is_dataclass(kind):
        return _record(kind, value, where)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _one_of(arguments, value, where)
    if origin is Literal:
        require(value in arguments, f"{where} must be one of {', '.join(map(str, arguments))}")
        return value
    if origin is tuple:
        require(isinstance(value, list), f"{where} must be a list")
        parts = [arguments[0]] * len(value) if arguments[-1] is ... else arguments
        require(len(parts) == len(value), f"{where} must have {len(parts)} entries")
        return tuple(_read(part, entry, f"{where}[{at}]") for at, (part, entry) in enumerate(zip(parts, value, strict=True)))
    if kind is float:
        good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        require(good, f"{where} must be a finite number")
        return float(value)
    # A bool is an int to Python, and a count of True is nonsense.
    require(isinstance(value, kind) and (kind is bool or not isinstance(value, bool)), f"{where} must be {_PLAIN[kind]}")
    return value


def _one_of(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    # Whole numbers stay whole: int comes before float, whatever the order in the type.
    for kind in sorted((option for option in kinds if option is not type(None)), key=lambda option: option is float):
        try:
            return _read(kind, value, where)
        except ValueError as error:
            last = error
    raise last


def _record(kind: Any, value: Any, where: str) -> Any:
    require(isinstance(value, Mapping), f"{where} must be a table")
    members, hints = {member.name: member for member in fields(kind)}, _hints(kind)
    # A key that is dropped silently could be the one that mattered, so an unknown one is refused.
    strange = [name for name in value if name not in members]
    require(not strange, f"{where} has an unknown key: {strange[0] if strange else ''}")
    lacking = [name for name, member in members.items() if name not in value and _needed(member)]
    require(not lacking, f"{where} lacks {', '.join(lacking)}")
    return kind(**{name: _read(hints[name], value[name], f"{where}.{name}") for name in members if name in value})


# Resolving type hints is slow, and a report has the same records many times.
@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _needed(member: "Field[Any]") -> bool:
    return member.default is MISSING and member.default_factory is MISSING


def schema() -> dict[str, Any]:
    """The JSON schema of a report, draft 2020-12."""
    definitions: dict[str, Any] = {}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "An Eigenveil report",
        "description": _first_line(Report),
        **_shape(Report, definitions),
        # Sorted, so that the schema file changes only where a type has changed.
        "$defs": dict(sorted(definitions.items())),
    }


def _shape(kind: Any, defined: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Guarantee:
        return {"type": "object", "description": _first_line(Guarantee), "required": ["epsilon", "delta", "words"]}
    if is_dataclass(kind):
        return _table_of(kind, defined)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_reference(argument, defined) for argument in arguments]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple and arguments[-1] is ...:
        return {"type": "array", "items": _reference(arguments[0], defined)}
    if origin is tuple:
        ends = {"minItems": len(arguments), "maxItems": len(arguments)}
        return {"type": "array", "prefixItems": [_reference(argument, defined) for argument in arguments], **ends}
    return {"type": "null"} if kind is type(None) else {"type": _PLAIN[kind]}


def _reference(kind: Any, defined: dict[str, Any]) -> dict[str, Any]:
    """The shape itself, or a reference to it where it has a name."""
    if not is_dataclass(kind):
        return _shape(kind, defined)
    name = kind.__name__  # type: ignore[union-attr]
    if name not in defined:
        # Noted before it is filled in, so that a type that contains itself would come to an end.
        defined[name] = {}
        defined[name] = _shape(kind, defined)
    return {"$ref": f"#/$defs/{name}"}


def _table_of(kind: Any, defined: dict[str, Any]) -> dict[str, Any]:
    hints = _hints(kind)
    return {
        "type": "object",
        "description": _first_line(kind),
        "properties": {member.name: _reference(hints[member.name], defined) for member in fields(kind)},
        "required": [member.name for member in fields(kind) if _needed(member)],
        "additionalProperties": False,
    }


def _first_line(kind: Any) -> str:
    return str(kind.__doc__).strip().splitlines()[0]
