"""`Report`: everything that a report shows, as plain values that were released or are public.

It is a record and nothing more: a model, a run or a plan becomes a `Report`, and a `Report` becomes HTML, JSON or PDF. No row is
ever read on the way.
"""

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, final

from eigenveil import __version__
from eigenveil.core.ledger import Charge
from eigenveil.errors import require
from eigenveil.privacy import Guarantee
from eigenveil.show.charts import Span
from eigenveil.show.marks import Cell

__all__ = [
    "FORMAT",
    "VERSION",
    "ComponentsPart",
    "EpsilonPoint",
    "FactLine",
    "ListPart",
    "PlanPart",
    "Report",
    "RoundPart",
    "ScoresPart",
    "SitePart",
    "TablePart",
]

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
    `floor_known` is false. `fill` is the bound usage, and `clipped` the clipped share. `mean` and `scale`, (d,), are what was
    subtracted from the columns, and what they were divided by; empty where nothing was.
    """

    columns: tuple[str, ...] | None
    weights: tuple[tuple[float, ...], ...]
    variances: tuple[float, ...]
    shares: tuple[float, ...]
    intervals: tuple[Span, ...] = ()
    noise_floor: float = 0.0
    floor_known: bool = True
    total: float | None = None
    fill: float | None = None
    clipped: float | None = None
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
        widths = {len(one) for one in self.weights} | ({len(self.columns)} if self.columns is not None else set())
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
class EpsilonPoint:
    """What one epsilon buys, with intervals for nine fits in ten, and what random directions capture."""

    epsilon: float
    captured: Span
    sine: Span
    nothing: float

    def __post_init__(self) -> None:
        require(self.epsilon > 0, f"epsilon must be positive, got {self.epsilon}")


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
        require(
            self.version == VERSION,
            f"it is a report of version {self.version}, and this program reads version {VERSION}",
        )

    @property
    def raw(self) -> bool:
        """Whether it shows raw data, so that only its owner may read it."""
        return self.scores is not None
