"""The parameters of `FederatedStream`: streams at many sites, slot by slot."""

from __future__ import annotations

from typing import Any, Literal

from eigenveil.params.declarations.federated import HubParams
from eigenveil.params.declarations.groups import (
    BOUNDS,
    LARGEST_COUNT,
    BudgetParams,
    Clipping,
    Components,
    Relation,
    Seed,
    Units,
    Waiting,
    Whitening,
)
from eigenveil.params.declarations.reading import MissingParams
from eigenveil.params.declarations.streaming import StreamingParams
from eigenveil.params.declare import again, param, parameters
from eigenveil.params.values import Expected, Numbers, length, truth, whole

__all__ = ["SlotParams", "SlotStreamParams"]


def _known_length(value: Any) -> Any:
    """A norm that somebody knows: there is no first slot that all sites have rows in, to search there."""
    if isinstance(value, str):
        raise Expected(
            "a number that you know without looking at the data: streams at many sites cannot search for one"
        )
    return length(value)


@parameters(panel="Slots", section="slots")
class SlotParams:
    """What a slot is, and how long it counts. All of it is public."""

    slots: int = param(
        "How many slots there are, a public horizon. A slot is a stretch of every site's stream.",
        # Required, because the budget is divided by it before the first slot.
        check=whole(1, LARGEST_COUNT),
        metavar="NUMBER",
    )
    window: int = param(
        "How many slots later a site may still send a slot that it missed. After that it is missing from the slot. Under masks a "
        "late part is lost at once.",
        # A site that restarts is back within a slot or two, and the hub keeps what it needs for each open slot.
        default=2,
        check=whole(0, 10_000),
        metavar="SLOTS",
    )
    person_slots: int = param(
        "The largest number of slots in which one person has a row. One row in each.",
        default=1,
        check=whole(1, LARGEST_COUNT),
        quiet=True,
        metavar="NUMBER",
        panel="Privacy",
    )
    device: bool = param(
        "Each site is a device of one person, who is in every slot. The mean over a slot's rows counts, and all of them are "
        "protected together.",
        default=False,
        check=truth,
        quiet=True,
        panel="Privacy",
    )
    forget: float = again(
        StreamingParams,
        "forget",
        help="Singular values are multiplied by this for every slot that has passed since. 1 forgets nothing.",
        more="A row j slots old counts forget^(2 j), whenever it arrives.",
        section="slots",
        panel="Slots",
    )
    adapt: tuple[float, float] | None = again(
        StreamingParams, "adapt", more="It follows released values only.", section="slots", panel="Slots"
    )


@parameters(panel="Privacy", section="privacy")
class SlotTrust:
    """Who talks to whom, and who adds the noise."""

    topology: Literal["star", "tree"] = again(HubParams, "topology")
    fanout: int = again(HubParams, "fanout")
    trust: Literal["hub", "site", "masked"] = again(
        HubParams,
        "trust",
        help="Who adds the noise. With hub it is the hub, WHICH SEES RAW SUMS of each site. With site it is every site, which "
        "also protects against the hub, at sqrt(M) times the noise. With masked it is the sites together, a share each. Masks "
        "cancel in the sum only, so this also protects against the hub, at the noise of one curator.",
        more="A tree is for site, or for no noise. Sites send sums with noise, and sketches without.",
    )
    # No advice to use a quorum: a slot never waits for one.
    survivors: int | float | None = again(HubParams, "survivors", instead=None)
    colluders: int = again(HubParams, "colluders")


@parameters(panel="Method", section="task")
class SlotStreamParams(Whitening, SlotTrust, SlotParams, Relation, Seed, Units, BudgetParams, Components):
    """The parameters of `FederatedStream`. The budget is for all slots together."""

    row_bound: float | None = again(
        Clipping,
        "row_bound",
        default=None,
        check=_known_length,
        parse=None,
        none=None,
        written=None,
        help="Rows are clipped to this norm around the {origin}. A number that you know without looking at the data; required "
        "with {epsilon}.",
        more=None,
        panel=BOUNDS,
    )
    center: Literal["private"] | None = again(
        StreamingParams,
        "center",
        help="private: follow the mean and take it off. {center=None}: leave rows where they are.",
        more="The mean comes from the same release as the products, and costs nothing more.",
        panel=BOUNDS,
        section="task",
    )
    origin: Numbers | None = again(
        Clipping,
        "origin",
        help="The public point around which rows are clipped: one number, or one per column.",
        unset="zero",
        panel=BOUNDS,
    )
    neighbours: Literal["add-remove", "zero-out", "replace-one"] = again(
        Relation,
        "neighbours",
        # Slots of so many rows have public ends. One row fewer would move every end that follows.
        default="zero-out",
        help="Neighbouring relation: which two streams the guarantee makes indistinguishable, add-remove, zero-out or "
        "replace-one. The last two declare the number of rows in each slot public. add-remove is for slots of a clock.",
    )
    missing: Literal["refuse", "counts", "groups", "drop", "fill"] = again(
        MissingParams,
        "missing",
        help="Missing values. refuse: they are an error. counts: every slot also counts how many rows have each column, for "
        "about 4% of the budget, and sums are divided by that. groups: the same for groups of columns. drop: leave incomplete "
        "rows out. fill: put public values there.",
        more="Whichever you choose is public, and holds whether or not there are any. With counts and groups a missing entry is "
        "put at the origin, where it adds nothing. With drop the number of rows that are left is private. Infinite values are "
        "always refused.",
    )
    missing_groups: Any = again(MissingParams, "missing_groups")
    missing_fill: Any = again(MissingParams, "missing_fill")
    oversample: int | None = again(
        StreamingParams,
        "oversample",
        help="Without noise: directions that a site sends beyond the components.",
        section="task",
    )
    deadline: float = again(Waiting, "deadline")
    retries: int = again(Waiting, "retries")
