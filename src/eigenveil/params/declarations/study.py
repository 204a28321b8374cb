"""The parameters of a study across organisations: those of its estimator, and its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING
from typing import Any, Final, Literal, TypeVar

from eigenveil.errors import ParameterError, Words
from eigenveil.params.declarations.federated import GRAPHS, PEERS, FederatedParams, GossipParams
from eigenveil.params.declarations.groups import NAME, SECONDS, BudgetParams, Seed, Waiting
from eigenveil.params.declarations.streaming import SlotParams
from eigenveil.params.declare import (
    Declared,
    Limit,
    declared,
    in_options,
    in_study,
    merge_params,
    param,
    parameters,
    redeclare,
    registered,
)
from eigenveil.params.tables import shown_in_file
from eigenveil.params.values import Integer, bytes_from, hex_digits, line, listed, one_of, real, text_of, truth

# The largest message of the wire format, whatever a study needs.
LARGEST_MESSAGE: Final = 1 << 30
# What only a file says, and what `study new` may say for it. Estimators in Python have neither.
_FILE: Final = frozenset({"study"})
_WRITTEN: Final = frozenset({"study", "cli"})
_WITH_EPSILON: Final = "must be given with epsilon"
_REHEARSAL: Final = (
    "A test run with this seed: reproducible, NOT PRIVATE. Anyone who has the study file can subtract the noise. Sites refuse it "
    "unless their policy allows rehearsals. For test data only."
)


@parameters(section="study", panel="")
class StudyTerms:
    """What a study has beyond a simulation of it."""

    columns: tuple[str, ...] = param(
        "The columns, by name and in this order, that every site has.",
        kw_only=False,
        # One column has one component, and there is nothing to find.
        check=listed(NAME, min_count=2, distinct=True),
        section="task",
        surfaces=_FILE,
    )
    name: str = param("The name of the study.", kw_only=False, check=NAME, metavar="TEXT", surfaces=_WRITTEN)
    id: str = param(
        "32 random hex digits, which keep two studies with the same settings apart.",
        kw_only=False,
        check=hex_digits(32),
        surfaces=_FILE,
    )
    purpose: str | None = param(
        "What the study is for, in one line, for the people at the sites who decide.",
        default=None,
        check=line(2000),
        metavar="TEXT",
        surfaces=_WRITTEN,
    )
    join_timeout: float = param(
        "Seconds to wait at the beginning until all parties have joined.",
        # A quarter of an hour, because people at several organisations start their commands by hand.
        default=900.0,
        like=SECONDS,
        panel="Waiting",
        section="network",
        surfaces=_WRITTEN,
    )
    max_message_bytes: int | None = param(
        "A limit on messages, in bytes: a study that needs longer ones is refused. Every party refuses messages that are longer "
        "than the study needs, with or without this limit.",
        default=None,
        none_means="what the study needs",
        check=Integer(min=1 << 16, max=LARGEST_MESSAGE),
        parse=bytes_from,
        metavar="BYTES",
        panel="Waiting",
        section="network",
        surfaces=_WRITTEN,
    )
    deadline: float = redeclare(Waiting, "deadline", help="Seconds to wait for an answer before asking again.")
    random_state: int | None = redeclare(
        Seed,
        "random_state",
        help=_REHEARSAL,
        details=None,
        check=Integer(min=0, max=(1 << 63) - 1),
        parse=None,
        section="rehearsal",
        cli_name="rehearsal_seed",
        key="seed",
        surfaces=_WRITTEN,
    )


_STREAMS: Final = "Streams (with --streaming)"


@parameters(section="slots", panel=_STREAMS)
class StreamStudy:
    """What a study of streams has: slots in place of rounds."""

    streaming: bool = param(
        "Sites follow streams, and the hub asks for one slot of them after the other.",
        default=False,
        check=truth,
        omit_if_default=True,
        section="study",
        surfaces=_WRITTEN,
    )
    slots: int | None = redeclare(SlotParams, "slots", default=None, none_means="no streams", surfaces=_WRITTEN, panel=_STREAMS)
    # By rows or by the clock. `network.study.rules` checks that a study of streams says exactly one of them.
    slot_rows: int | None = param(
        "A slot ends after so many rows at a site.",
        default=None,
        check=Integer(min=1, max=1 << 28),
        none_means="slots end by the clock",
        metavar="ROWS",
        surfaces=_WRITTEN,
    )
    slot_seconds: float | None = param(
        "A slot ends after so many seconds, everywhere at once.",
        default=None,
        like=SECONDS,
        none_means="slots are counted out in rows",
        surfaces=_WRITTEN,
    )
    begins: float | None = param(
        "With {slot_seconds}: when the first slot begins, in seconds since 1970.",
        default=None,
        check=real("a number of seconds since 1970", lambda number: 0 <= number <= 1e11),
        none_means="now",
        metavar="SECONDS",
        surfaces=_WRITTEN,
    )
    slot_delay: float | None = param(
        "With {slot_seconds}: sites answer for a slot so many seconds after its end, which is the time they have for its rows. "
        "A site that takes longer leaves the study for good.",
        default=None,
        # Shorter ones end sites that have little to do: a source is looked at a few times in a second.
        check=real("a number of seconds from 1 to 1e7", lambda number: 1 <= number <= 1e7),
        none_means="the length of a slot, at most 600, but at least the deadline",
        metavar="SECONDS",
        surfaces=_WRITTEN,
    )
    # Quiet, so that a study of tables, which has these at their defaults, does not mention streams.
    max_lateness: int = redeclare(SlotParams, "max_lateness", omit_if_default=True, surfaces=_WRITTEN, panel=_STREAMS)
    person_slots: int = redeclare(SlotParams, "person_slots", surfaces=_WRITTEN, panel=_STREAMS)
    one_person_per_site: bool = redeclare(SlotParams, "one_person_per_site", surfaces=_WRITTEN, panel=_STREAMS)
    forget: float = redeclare(SlotParams, "forget", omit_if_default=True, surfaces=_WRITTEN, panel=_STREAMS)
    adapt: tuple[float, float] | None = redeclare(SlotParams, "adapt", surfaces=_WRITTEN, panel=_STREAMS)


@parameters(section="study", panel="Who takes part")
class HubStudy(StudyTerms, StreamStudy, FederatedParams):
    """The parameters of a study around a hub, or in a tree."""

    topology: Literal["star", "tree"] = redeclare(FederatedParams, "topology", default=MISSING)
    # Readers of the file should see who adds the noise, and how large the tree is.
    trust: Literal["hub", "site", "both", "masked"] = redeclare(FederatedParams, "trust", none_means=_WITH_EPSILON)
    fanout: int = redeclare(FederatedParams, "fanout", none_means="must be given in a tree")


@parameters(section="study", panel="Who takes part")
class PeerStudy(StudyTerms, GossipParams):
    """The parameters of a study between peers."""

    topology: Literal["gossip"] = param("gossip: peers talk to their neighbours, without a hub.")
    graph: Any = redeclare(
        GossipParams, "graph", default=None, help="Who talks to whom: pairs of names.", details=None, none_means="that of kind"
    )
    quorum: int | float | None = redeclare(GossipParams, "quorum", none_means="more than half")
    kind: str | None = param(
        "Or the name of a graph, such as ring.", default=None, check=line(40), section="graph", surfaces=_FILE
    )
    # A study that names no method says auto: which method that is may differ by version.
    method: str = redeclare(
        GossipParams,
        "method",
        default="auto",
        among=registered("eigenveil.methods", "AT_REMOTE_PEERS"),
        help="power, which is auto: products with a block of directions. krylov: the same with all products kept. "
        "covariance: one covariance.",
    )
    noise: Literal["pairwise", "independent"] | None = redeclare(
        GossipParams,
        "noise",
        default=None,
        none_means=_WITH_EPSILON,
        help="With pairwise, noise cancels between pairs of peers, which protects against {colluders} of them. The sum then "
        "has little more noise than with one curator. With independent, every peer adds all of it, which protects "
        "against all others, at sqrt(M) times the noise.",
    )


# What only a simulation has, such as participation. A command must not ask for it, because no study file could say it.
_FOREIGN: Final = tuple(
    name for kind in (HubStudy, PeerStudy) for name, entry in declared(kind).items() if "study" not in entry.param.surfaces
)


def _open(**changes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Changes that remove every default, and show it in --help instead, so that we know what was given."""
    facts: dict[str, dict[str, Any]] = {}
    for kind in (PeerStudy, HubStudy):
        for name, entry in declared(kind).items():
            # Not where None is a value of its own, nor for switches, which are given or not anyway.
            if entry.default not in (None, MISSING) and entry.param.none is None and entry.type is not bool:
                facts[name] = {"default": None, "none_means": entry.param.none_means or text_of(entry.default)}
            if entry.param.panel == PEERS:
                facts.setdefault(name, {})["panel"] = f"{PEERS} (with --graph)"
    return facts | {name: facts.get(name, {}) | dict(change) for name, change in changes.items()}


# `eigenveil study new` infers the topology from the options given, and refuses options without effect.
NewStudy: Final = merge_params(
    "NewStudy",
    (HubStudy, PeerStudy),
    leave=("columns", "id", "topology", "kind", *_FOREIGN),
    **_open(
        name={"default": None, "none_means": "the name of the file"},
        fanout={
            "help": "A tree: at most this many below the hub and below each node between it and the sites.",
            "none_means": "a star, all below the hub",
            "applies_when": None,
            "panel": "Who takes part",
        },
        trust={
            "help": declared(FederatedParams)["trust"].param.help + " No other trust works with {epsilon=None}.",
            "none_means": "masked; site with --fanout",
        },
        colluders={
            "help": "For {trust=masked}: how many sites may tell the hub all they know. For {noise=pairwise}: how many peers may "
            "tell each other.",
            "applies_when": None,
        },
        method={
            "help": "auto, krylov, power, fedpower, covariance, merge, uda, wda or dr-svd. With masks: krylov, power, covariance "
            "or dr-svd. With {graph}: power (which is then auto), krylov or covariance."
        },
        local_steps={
            "help": "For fedpower: power steps at a site in each round. Such as 4, or 4,3,2,1 round by round (the last one is "
            "repeated), or decay:4 (FedPower (3.15))."
        },
        epsilon={
            "help": declared(BudgetParams)["epsilon"].param.help + " With {trust=both} a pair such as 3,1: against the hub, and "
            "against everyone else."
        },
        graph={"help": f"Peers talk to their neighbours on this graph, without a hub: {GRAPHS}.", "none_means": "a hub"},
        noise={"none_means": "pairwise with --epsilon"},
        quorum={
            "help": "How many must answer, such as 4, or which share of them, such as 0.8. Others are left out from then on. "
            "With masks use {survivors}.",
            "none_means": "all; more than half with --graph",
        },
        max_message_bytes={"help": "Refuse the study if it needs longer messages than this, such as 64MB."},
    ),
)


def said_in_file(error: ParameterError) -> str:
    """An error about a study file, in the file's own words."""
    return error.said(_in_file, show=shown_in_file)


def _in_file(name: str, value: Any) -> str:
    kind = HubStudy if name in declared(HubStudy) else PeerStudy
    return in_study(kind)(name, value)


def in_new(**others: str) -> Words:
    """How `eigenveil study new` writes the parameters of a study. Other options are in `others`."""
    wording = in_options(NewStudy, **others)
    carriers = {"star": "a star, with no --fanout", "tree": "--fanout", "gossip": "--graph"}

    def said(name: str, value: Any) -> str:
        if name != "topology":
            return wording(name, value)
        return "--fanout or --graph" if value is ... else carriers[value]

    return said


Kind = TypeVar("Kind")


def limited(cls: type, section: str) -> list[tuple[Declared, Limit]]:
    """The parameters of `cls` that this section of a policy limits, each with its limit, in the order of the keys."""
    pairs = [(entry, entry.param.limit) for entry in declared(cls).values() if entry.param.limit is not None]
    return sorted((pair for pair in pairs if pair[1].section == section), key=lambda pair: pair[1].key)


def limiting(section: str, kinds: Iterable[type] = (FederatedParams, GossipParams)) -> Callable[[type[Kind]], type[Kind]]:
    """Give a class, before `parameters`, a key for each limit on a parameter in this section."""
    every = tuple(kinds)

    def made(cls: type[Kind]) -> type[Kind]:
        limits = {limit.key: limit for kind in every for _, limit in limited(kind, section)}
        own = inspect.get_annotations(cls)
        # Set before `parameters` sees the class, which takes them for declarations like any others.
        for key, limit in limits.items():
            setattr(cls, key, param(limit.help, default=limit.default, check=_check(limit, every)))
        cls.__annotations__ = {**dict.fromkeys(limits, Any), **own}
        return cls

    return made


def words_allowed(limit: Limit, kinds: Iterable[type] = (FederatedParams, GossipParams)) -> tuple[str, ...]:
    """The words that a policy may list for this limit: those of every parameter with it.

    >>> from eigenveil.params.declarations.groups import TRUST_LIMIT
    >>> words_allowed(TRUST_LIMIT)
    ('hub', 'site', 'both', 'masked', 'pairwise', 'independent', 'none')
    """
    declarations = [entry for kind in kinds for entry, other in limited(kind, limit.section) if other.key == limit.key]
    # A dictionary keeps the order of the declarations, which messages and files then have.
    choices = dict.fromkeys(word for entry in declarations for word in entry.words)
    return tuple(word for word in (*choices, *limit.also) if word not in limit.but)


def _check(limit: Limit, kinds: Iterable[type]) -> Any:
    return limit.check if limit.kind != "among" else listed(one_of(*words_allowed(limit, kinds)))
