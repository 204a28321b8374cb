"""The sections of a study file, each a frozen record of its keys. What keys mean together is for `study_terms` to check."""

from dataclasses import dataclass
from typing import Any, Final, final

from eigenveil.network.study_keys import (
    Check,
    check_fields,
    hex_digits,
    key,
    line,
    listed,
    number_or_share,
    one_of,
    one_or_more,
    optional,
    real,
    refuse,
    truth,
    whole,
)
from eigenveil.protocols.messages import LONGEST_NAME
from eigenveil.protocols.wire import LIMIT

__all__ = [
    "EXPLAINED",
    "HUB_METHODS",
    "PEER_METHODS",
    "About",
    "GraphTerms",
    "NetworkTerms",
    "PrivacyTerms",
    "Rehearsal",
    "TaskTerms",
    "TreeTerms",
]

HUB_METHODS: Final = ("auto", "krylov", "power", "fedpower", "covariance", "merge", "uda", "wda", "dr-svd")
PEER_METHODS: Final = ("auto", "power", "krylov", "covariance")
MOST_PEERS: Final = 1000
MOST_EDGES: Final = 20_000

_SEEDED: Final = "a seed makes noise that can be computed again, so a study has none; a test run says [rehearsal] seed"
# Keys that somebody who knows the estimators would look for, and why a study has none.
EXPLAINED: Final = {
    "seed": _SEEDED,
    "random_state": _SEEDED,
    "participation": "every site takes part in every round of a study across organisations",
    "calibration": "noise in a study is by exact accounting, and nothing else is promised",
    "faults": "a study runs on a real network",
    "n_components": "it is called components here",
    "topology": "it is called carrier here, and stands in [study]",
    "private": "privacy is said in [privacy]: epsilon and delta, or none = true",
}

_NAME: Final = line(LONGEST_NAME)
_POSITIVE: Final = real("a positive, finite number", lambda number: number > 0)
_NUMBER: Final = real("a finite number", lambda _: True)
_NUMBERS: Final = one_or_more(_NUMBER)
_EPSILON: Final = real("a number above 0 and at most 1e6", lambda number: 0 < number <= 1e6)
_DELTA: Final = real("a number between 0 and 1, at least 1e-300", lambda number: 1e-300 <= number < 1)
_EDGES: Final = listed(listed(_NAME, least=2, most=2), least=1, most=MOST_EDGES)


def _pair_or_one(check: Check) -> Check:
    pair = listed(check, least=2, most=2)
    return lambda where, value: pair(where, value) if isinstance(value, list | tuple) else check(where, value)


def _center(where: str, value: Any) -> Any:
    if value in ("private", "none"):
        return value
    if not isinstance(value, list | tuple):
        refuse(where, value, '"private", "none" or a list of numbers, one per column')
    return listed(_NUMBER, least=1)(where, value)


def _bounds(where: str, value: Any) -> Any:
    if not isinstance(value, list | tuple) or len(value) != 2:
        refuse(where, value, "[low, high], each a number or a list of one per column")
    return _NUMBERS(f"{where}, low,", value[0]), _NUMBERS(f"{where}, high,", value[1])


def _local_steps(where: str, value: Any) -> Any:
    one = whole(1, 1000)
    if isinstance(value, list | tuple) and len(value) == 2 and value[0] == "decay":
        return "decay", one(where, value[1])
    return one_or_more(one)(where, value)


@final
@dataclass(frozen=True, slots=True)
class About:
    """[study]: what the study is called and how it is carried."""

    name: str = key(_NAME, "What the study is called.")
    id: str = key(hex_digits(32), "32 random hex digits, so that two studies on the same terms are two.")
    carrier: str = key(
        one_of("star", "tree", "gossip"),
        "Who talks to whom. star: every site to the hub. tree: through nodes. gossip: peers to their neighbours, with no hub.",
    )
    purpose: str | None = key(optional(line(2000)), "What it is for, for those who decide.", default=None)

    def __post_init__(self) -> None:
        check_fields(self, "study")


@final
@dataclass(frozen=True, slots=True)
class TaskTerms:
    """[task]: what is computed, of which columns, and where rows lie."""

    components: int = key(whole(1, 1_000_000), "How many principal components.")
    columns: tuple[str, ...] = key(
        listed(_NAME, least=2, distinct=True),
        "The columns, by name and in this order, that every site has.",
    )
    method: str = key(
        one_of(*HUB_METHODS, "segments"),
        "How they are found; auto decides from the numbers in this file.",
        default="auto",
    )
    rounds: int | None = key(optional(whole(1, 10_000)), "At most so many rounds.", default=None)
    tolerance: float | None = key(
        optional(real("a number from 0 to below 1", lambda number: 0 <= number < 1)),
        "Stop when the answer moves by no more than this sine.",
        default=None,
    )
    oversample: int | None = key(
        optional(whole(0, 1_000_000)), "Directions that are carried beyond the components.", default=None
    )
    center: str | tuple[float, ...] = key(
        _center,
        "private: the mean over all sites is found. none: rows stay where they are. Or public numbers.",
        default="private",
    )
    row_bound: float | None = key(
        optional(_POSITIVE), "No row is longer than this around the mean; longer ones are scaled down.", default=None
    )
    column_bounds: tuple[float | tuple[float, ...], ...] | None = key(
        optional(_bounds), "[low, high]: entries are cut to this.", default=None
    )
    origin: float | tuple[float, ...] | None = key(optional(_NUMBERS), "Where the mean is looked for.", default=None)
    mean_bound: float | None = key(
        optional(_POSITIVE), "How far from the origin rows may lie while the mean is found.", default=None
    )
    scale: float | tuple[float, ...] | None = key(
        optional(_NUMBERS), "Columns are divided by this before bounds apply.", default=None
    )
    neighbours: str = key(
        one_of("add-remove", "zero-out", "replace-one"),
        "Which tables must be hard to tell apart. The last two declare the number of people at each site public.",
        default="add-remove",
    )
    person: str | None = key(optional(_NAME), "The column that says whose row it is.", default=None)
    local_steps: int | tuple[int | str, ...] | None = key(
        optional(_local_steps), "For fedpower: power steps at a site in each round.", default=None
    )
    align: str | None = key(
        optional(one_of("procrustes", "sign", "none")), "For fedpower: how sites turn their products.", default=None
    )

    def __post_init__(self) -> None:
        check_fields(self, "task")


@final
@dataclass(frozen=True, slots=True)
class PrivacyTerms:
    """[privacy]: what is promised, and against whom. `none` is written out where nothing is."""

    epsilon: float | tuple[float, float] | None = key(
        optional(_pair_or_one(_EPSILON)),
        "How much the result may depend on one person. With trust both, two: against the hub, and against all others.",
        default=None,
    )
    delta: float | tuple[float, float] | None = key(
        optional(_pair_or_one(_DELTA)), "The chance that this promise fails.", default=None
    )
    none: bool = key(truth, "true: nothing is promised, and nobody is protected.", default=False)
    trust: str | None = key(
        optional(one_of("curator", "site", "both", "masked")),
        "Who adds the noise. masked: the sites together, and the hub sees sums only. site: every site, and the hub sees noisy "
        "parts. curator: the hub, which sees raw parts. both: sites and hub.",
        default=None,
    )
    survivors: int | float | None = key(
        optional(number_or_share), "For masked: how many sites must be in each sum.", default=None
    )
    colluders: int | None = key(
        optional(whole(1, 1_000_000)),
        "How many of the others may tell each other, or the hub, all they know.",
        default=None,
    )
    person_sites: int | None = key(
        optional(whole(1, 1_000_000)), "At how many sites at most one person has rows.", default=None
    )
    noise: str | None = key(
        optional(one_of("pairwise", "independent", "published")),
        "For gossip. pairwise: noise that cancels between pairs of peers. independent: all of it at every peer.",
        default=None,
    )
    restarts: int | None = key(
        optional(whole(0, 1000)), "For gossip: how many rounds the budget has room to begin again.", default=None
    )

    def __post_init__(self) -> None:
        check_fields(self, "privacy")


@final
@dataclass(frozen=True, slots=True)
class NetworkTerms:
    """[network]: for whom and how long everybody waits, and how large a message may be."""

    quorum: int | float | None = key(
        optional(number_or_share),
        "How many must answer, or which share of them; unless given, all (gossip: more than half).",
        default=None,
    )
    deadline: float = key(
        real("a number of seconds above 0 and at most 1e6", lambda number: 0 < number <= 1e6),
        "Seconds to wait for an answer before asking again.",
        default=30.0,
    )
    retries: int = key(whole(0, 1000), "How often to ask again.", default=4)
    join: float = key(
        real("a number of seconds above 0 and at most 1e7", lambda number: 0 < number <= 1e7),
        "Seconds to wait at the beginning until everybody has joined.",
        default=900.0,
    )
    largest: int = key(whole(1 << 16, LIMIT), "Bytes of the largest message that is taken.", default=LIMIT)

    def __post_init__(self) -> None:
        check_fields(self, "network")


@final
@dataclass(frozen=True, slots=True)
class TreeTerms:
    """[tree]: how many stand below the hub and below each node at most."""

    fanout: int = key(whole(2, 10_000), "At most so many stand below the hub and below each node.")

    def __post_init__(self) -> None:
        check_fields(self, "tree")


@final
@dataclass(frozen=True, slots=True)
class GraphTerms:
    """[graph]: who talks to whom in gossip, and how sums come about."""

    edges: tuple[tuple[str, str], ...] | None = key(optional(_EDGES), "Who talks to whom.", default=None)
    kind: str | None = key(optional(line(40)), "Or the name of a graph, such as ring.", default=None)
    noise_edges: tuple[tuple[str, str], ...] | None = key(
        optional(_EDGES), "For pairwise: which pairs share noise; unless given, those that talk.", default=None
    )
    consensus: str = key(
        one_of("metropolis", "chebyshev", "tree"), "How sums come about between neighbours.", default="metropolis"
    )
    steps: int | None = key(
        optional(whole(1, 1_000_000)), "How many exchanges a sum takes; unless given, as many as needed.", default=None
    )

    def __post_init__(self) -> None:
        check_fields(self, "graph")


@final
@dataclass(frozen=True, slots=True)
class Rehearsal:
    """[rehearsal]: a test seed. Whoever knows it can subtract the noise."""

    seed: int = key(
        whole(0, (1 << 63) - 1), "NOT PRIVATE: whoever has this file can subtract the noise. For test data only."
    )

    def __post_init__(self) -> None:
        check_fields(self, "rehearsal")
