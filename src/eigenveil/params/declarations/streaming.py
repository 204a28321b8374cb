"""The parameters of `StreamingPCA`, which is also `eigenveil stream`."""

from __future__ import annotations

from typing import Any, Literal

from eigenveil.params.declarations.federated import HubParams
from eigenveil.params.declarations.groups import (
    COMPONENTS,
    EPSILON_SCALE,
    LARGEST_COUNT,
    OFFLINE,
    RANGE,
    Bounds,
    BudgetParams,
    ClipLevel,
    Clipping,
    ColumnsParams,
    Components,
    MissingParams,
    Places,
    Relation,
    Seed,
    Units,
    Waiting,
    Whitening,
)
from eigenveil.params.declare import param, parameters, redeclare, registered
from eigenveil.params.values import (
    Integer,
    InvalidValue,
    Numbers,
    as_float,
    bytes_from,
    length,
    positive,
    real,
    stream_center,
    truth,
)


def energy_bounds(value: Any) -> tuple[float, float]:
    """Two fractions of the total, the lower one first."""
    try:
        low, high = (as_float(bound) for bound in value)
    except (TypeError, ValueError):
        raise InvalidValue("a pair (low, high) of fractions, such as 0.01 and 0.1") from None
    if not 0 < low < high < 1:
        raise InvalidValue("two fractions with 0 < low < high < 1, such as 0.01 and 0.1")
    return low, high


@parameters(panel="Method")
class StreamingParams(ColumnsParams, MissingParams, Whitening, ClipLevel, Seed, BudgetParams):
    """The parameters of `StreamingPCA`. The budget is for the whole stream, however long."""

    n_components: int = param(
        "How many components. With {adapt}, how many at the start.", kw_only=False, like=COMPONENTS, panel=""
    )
    # Declared anew for its help: "the result" of a fit is one, and a stream has many.
    epsilon: float | None = redeclare(
        BudgetParams,
        "epsilon",
        help=f"How much everything released may depend on one person: smaller is more private. {EPSILON_SCALE} The budget is for "
        "the whole stream, however long.",
    )
    missing: Literal["refuse", "counts", "groups", "drop", "fill"] = redeclare(
        MissingParams,
        "missing",
        help="Missing values of a private stream. refuse: they are an error. counts: count in the first block how many entries "
        "each column has, for 5% of the budget, and divide by that. groups: the same for groups of columns. drop: leave "
        "incomplete rows out. fill: put public values there. Without privacy, gaps are filled from the directions found so far.",
        details="Whichever you choose is public, and holds whether or not there are any. The shares of the first block are taken "
        "to hold for the whole stream. Infinite values are always refused.",
    )
    row_bound: float | Literal["private"] | None = redeclare(
        Bounds,
        "row_bound",
        help="Norm that rows are clipped to, around the mean. private estimates it in the first block with about 10% of the "
        "budget. A number must not come from the data.",
        details="The first block is then at least 150 / mu rows long, which is about 600 at {epsilon} 1.",
    )
    column_bounds: Any = redeclare(Bounds, "column_bounds")
    center: Literal["private"] | None = redeclare(
        Bounds,
        "center",
        help="private: follow the mean and take it off. A private stream looks for it in its first block, for part of the "
        "budget. {center=None}: leave rows where they are. It takes no numbers: give those as {origin}.",
        details="Or subtract them from the rows.",
        check=stream_center,
    )
    origin: Numbers | None = redeclare(
        Bounds, "origin", help="Where a private stream looks for the mean: one number, or one per column.", syntax=None
    )
    scale: Literal["private"] | Numbers | None = redeclare(
        Bounds,
        "scale",
        help="Units: columns are divided by this before norms are taken and bounded. private: find the spread of each column in "
        "the first block, for a quarter of the budget. Or public numbers, one or one per column.",
        details="With private, rows are clipped to the root of the number of columns in these units, and no row bound is "
        "searched for. The first block is then at least 135 sqrt(d) / mu rows long. With epsilon=None the spread is the exact "
        "standard deviation of the first block, and nothing is clipped.",
    )
    publish: str = param(
        "When a private stream releases. With sync, at the end and at each synchronisation, for the least noise. With block, "
        "every block on its own, for the least memory. With continual, every block along a binary tree over a {horizon}, if the "
        "estimate must be public all along.",
        details="If the d x d sum does not fit in `memory_limit`, sync becomes block. Without privacy it has no effect.",
        # The least noise, and all that most need: an answer at the end.
        default="sync",
        among=registered("eigenveil.trackers", "PUBLISH"),
        panel="Privacy",
    )
    horizon: int | None = param(
        "For {publish=continual}: a public upper limit on the number of rows.",
        default=None,
        check=Integer(min=1),
        metavar="ROWS",
        panel="Privacy",
    )
    person: str | None = redeclare(
        Places,
        "person",
        help="The column that says whose row it is. A person's first row in a block counts, in at most {person_blocks} blocks, "
        "and all of their rows are protected together. Without it each row counts as a separate person.",
        details="Further rows are left out, as if they had not come. Who has had a row is kept in memory, about 200 bytes a "
        "person.",
        surfaces=OFFLINE,
    )
    person_blocks: int = param(
        "The largest number of blocks in which one person has a row. One row in each.",
        # Costs of the blocks that one person is in add up, so a larger number means more noise for all.
        default=1,
        check=Integer(min=1),
        omit_if_default=True,
        panel="Privacy",
    )
    # Blocks are slots with public ends. Under add-remove one missing row would move every later end (decision 7).
    neighbours: Literal["zero-out", "replace-one"] = param(
        "Neighbouring relation: which two streams the guarantee makes indistinguishable, zero-out or replace-one. Other "
        "commands default to add-remove, which hides how many rows there are. A stream cannot hide that: it releases after a "
        "set number of rows.",
        default="zero-out",
        panel="Privacy",
    )
    adapt: tuple[float, float] | None = param(
        "Let the number of components follow the spectrum: the last singular value stays between these fractions of the sum of "
        "all kept ones. 0.01,0.1 is usual.",
        details="In a private stream it follows released values.",
        default=None,
        like=RANGE,
        check=energy_bounds,
    )
    forget: float = param(
        "Old singular values are multiplied by this at every block. 1 forgets nothing.",
        details="A row j blocks old counts forget^(2 j).",
        # Zero would forget all rows but those of the last block.
        default=1.0,
        check=real("in (0, 1]", lambda number: 0 < number <= 1),
    )
    block_size: int | None = param(
        "Rows taken at once.",
        details="In a private stream a block is a public slot, and a person has at most one row in it.",
        default=None,
        check=Integer(min=1),
        metavar="ROWS",
        none_means="planned",
        recorded=False,  # The settings have the planned block.
    )
    oversample: int | None = param(
        "How many directions to keep beyond the components, because later rows may raise them.",
        default=None,
        check=Integer(min=0),
        none_means="max(10, components)",
    )
    memory_limit: int | None = param(
        "Memory that may be used in addition to the rows handed in, such as 64MB or 1.5GiB. A stream that needs more is refused.",
        details="Filling gaps and a growing rank need more than planned. Without a limit, sync becomes block beyond 1 GiB.",
        default=None,
        check=Integer(min=1),
        parse=bytes_from,
        metavar="BYTES",
        none_means="1GiB",
        recorded=False,  # It describes the device, not the fit.
    )
    noise_target: float | None = param(
        "For {publish=block}: make the first block long enough that the noise on its average product has at most this standard "
        "deviation, in units of the squared row bound.",
        details="FPCA Lemma 2, corrected.",
        default=None,
        check=positive,
    )


def _known_length(value: Any) -> Any:
    """A norm that is known: there is no first slot that all sites have rows in, to search there."""
    if isinstance(value, str):
        raise InvalidValue("a number that you know without looking at the data: streams at many sites cannot search for one")
    return length(value)


@parameters(panel="Slots", section="slots")
class SlotParams:
    """What a slot is, and how long it counts. All of it is public."""

    slots: int = param(
        "How many slots there are, a public horizon. A slot is a stretch of every site's stream.",
        # Required, because the budget is divided by it before the first slot.
        check=Integer(min=1, max=LARGEST_COUNT),
    )
    max_lateness: int = param(
        "How many slots later a site may still send a slot that it missed. After that it is missing from the slot. Under masks a "
        "late part is lost at once.",
        # A site that is started again is back within a slot or two, and the hub keeps what it needs for each open slot.
        default=2,
        check=Integer(min=0, max=10_000),
        metavar="SLOTS",
    )
    person_slots: int = param(
        "The largest number of slots in which one person has a row. One row in each.",
        default=1,
        check=Integer(min=1, max=LARGEST_COUNT),
        omit_if_default=True,
        panel="Privacy",
    )
    one_person_per_site: bool = param(
        "Each site is a device of one person, who is in every slot. The mean over a slot's rows counts, and all of them are "
        "protected together.",
        default=False,
        check=truth,
        omit_if_default=True,
        panel="Privacy",
    )
    forget: float = redeclare(
        StreamingParams,
        "forget",
        help="Singular values are multiplied by this for every slot that has passed since. 1 forgets nothing.",
        details="A row j slots old counts forget^(2 j), whenever it arrives.",
        section="slots",
        panel="Slots",
    )
    adapt: tuple[float, float] | None = redeclare(
        StreamingParams, "adapt", details="It follows released values only.", section="slots", panel="Slots"
    )


@parameters(panel="Privacy", section="privacy")
class SlotTrust:
    """Who talks to whom, and who adds the noise."""

    topology: Literal["star", "tree"] = redeclare(HubParams, "topology")
    fanout: int = redeclare(HubParams, "fanout")
    trust: Literal["hub", "site", "masked"] = redeclare(
        HubParams,
        "trust",
        help="Who adds the noise. With hub it is the hub, WHICH SEES RAW SUMS of each site. With site it is every site, which "
        "also protects against the hub, at sqrt(M) times the noise. With masked it is the sites together, a share each. Masks "
        "cancel in the sum only, so this also protects against the hub, at the noise of one curator.",
        details="A tree is for site, or for no noise. Sites send sums with noise, and sketches without.",
    )
    # No advice to use a quorum: a slot never waits for one.
    survivors: int | float | None = redeclare(HubParams, "survivors", otherwise_hint=None)
    colluders: int = redeclare(HubParams, "colluders")


@parameters(panel="Method", section="task")
class SlotStreamParams(Whitening, SlotTrust, SlotParams, Relation, Seed, Units, BudgetParams, Components):
    """The parameters of `FederatedStream`. The budget is for all slots together."""

    row_bound: float | None = redeclare(
        Clipping,
        "row_bound",
        default=None,
        check=_known_length,
        parse=None,
        none=None,
        syntax=None,
        help="Rows are clipped to this norm around the {origin}. A number that you know without looking at the data; required "
        "with {epsilon}.",
        details=None,
    )
    center: Literal["private"] | None = redeclare(
        StreamingParams,
        "center",
        help="private: follow the mean and take it off. {center=None}: leave rows where they are.",
        details="The mean comes from the same release as the products, and costs nothing more.",
    )
    origin: Numbers | None = redeclare(
        Clipping,
        "origin",
        help="The public point around which rows are clipped: one number, or one per column.",
        none_means="zero",
    )
    neighbours: Literal["add-remove", "zero-out", "replace-one"] = redeclare(
        Relation,
        "neighbours",
        # Slots of so many rows have public ends. One row fewer would move every end that follows.
        default="zero-out",
        help="Neighbouring relation: which two streams the guarantee makes indistinguishable, add-remove, zero-out or "
        "replace-one. The last two declare the number of rows in each slot public. add-remove is for slots of a clock.",
    )
    missing: Literal["refuse", "counts", "groups", "drop", "fill"] = redeclare(
        MissingParams,
        "missing",
        help="Missing values. refuse: they are an error. counts: every slot also counts how many rows have each column, for "
        "about 4% of the budget, and sums are divided by that. groups: the same for groups of columns. drop: leave incomplete "
        "rows out. fill: put public values there.",
        details="Whichever you choose is public, and holds whether or not there are any. With counts and groups a missing entry "
        "is put at the origin, where it adds nothing. With drop the number of rows that are left is private. Infinite values are "
        "always refused.",
    )
    missing_groups: Any = redeclare(MissingParams, "missing_groups")
    missing_fill: Any = redeclare(MissingParams, "missing_fill")
    oversample: int | None = redeclare(
        StreamingParams, "oversample", help="Without noise: directions that a site sends beyond the components.", section="task"
    )
    deadline: float = redeclare(Waiting, "deadline")
    retries: int = redeclare(Waiting, "retries")
