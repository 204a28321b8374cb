"""What a study takes: the longest message of each kind, and the memory of a party. Found from the file, before anything is made.

A hostile file may ask for 20000 columns and 6000 components. It is refused here, by arithmetic, before such a matrix exists.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

from eigenveil.errors import ParameterError, require, require_param
from eigenveil.methods import METHODS
from eigenveil.params.declarations.federated import FederatedParams
from eigenveil.params.declarations.streaming import SlotStreamParams
from eigenveil.params.declarations.study import HubStudy, PeerStudy, StreamStudy
from eigenveil.params.declare import declared, validate_params
from eigenveil.params.tables import missing
from eigenveil.protocols.limits import FitSize, Role, limits_for
from eigenveil.protocols.star.rounds import star, tree
from eigenveil.protocols.wire import LIMIT, MessageLimits
from eigenveil.tasks.fit.gaps import gaps_of

if TYPE_CHECKING:
    from eigenveil.estimators import GossipPCA
    from eigenveil.estimators.federated.spec import FederatedSpec
    from eigenveil.estimators.gossip.spec import GossipSpec
    from eigenveil.estimators.slots.parties import SlotSpec
    from eigenveil.network.study import StudyFile
    from eigenveil.protocols.gossip.terms import GossipTerms
    from eigenveil.protocols.masked.terms import MaskedTerms
    from eigenveil.protocols.star.rounds import Layout

__all__ = [
    "MEMORY",
    "check_terms",
    "delay_of",
    "fatal_peers",
    "fewest_of",
    "layout_of",
    "limits_of",
    "limits_within",
    "memory_of",
    "method_of",
    "named_parameters",
    "request_of",
    "require_own",
    "require_said",
    "require_size",
    "require_together",
    "size_of",
    "slots_of",
]

# In a study of more peers, whether a noise graph survives the loss of one is not tried for each of them.
_TRIED_PEERS: Final = 32


def require_own(kind: type[HubStudy] | type[PeerStudy], explicit: Mapping[str, Any]) -> None:
    """Refuse parameters that only studies of another topology have."""
    # Names in braces are put into the reader's words later: keys of the file, or options of a command.
    where = "{topology=gossip}, got" if kind is HubStudy else "studies around a hub, and {topology=gossip} has none; got"
    for name in explicit:
        if name not in declared(kind):
            raise ParameterError(f"{{{name}}} is for {where} {{@given}}", given=explicit[name])


def require_said(params: HubStudy | PeerStudy, explicit: Collection[str]) -> None:
    """Refuse missing keys and keys without effect: a reader of the file must see who adds the noise."""
    private = params.epsilon is not None
    if isinstance(params, PeerStudy):
        if private and "noise" not in explicit:
            raise missing(declared(PeerStudy)["noise"])
        for name in ("noise", "restarts"):
            if name in explicit and not private:
                raise ParameterError(f"{{{name}}} is for a budget, and {{epsilon=None}} asks for none")
        return
    if params.topology == "tree" and "fanout" not in explicit:
        raise missing(declared(HubStudy)["fanout"])
    if private and "trust" not in explicit:
        raise missing(declared(HubStudy)["trust"])
    require_param(
        private or "trust" not in explicit or params.trust == "masked",
        "{trust=} says who adds the noise, and with {epsilon=None} there is no noise; leave it out, or give {trust=masked}",
        trust=params.trust,
    )
    local = [name for name, leaf in METHODS.items() if leaf.takes_local_steps]
    for name in ("local_steps", "align"):
        if name in explicit and params.method not in local:
            only = " or ".join(f"{{method={method}}}" for method in local)
            raise ParameterError(f"{{{name}}} is for {only}, got {{@given}}", given=getattr(params, name))


def require_together(study: "StudyFile") -> None:
    """Refuse parameters and parties that contradict each other, before an estimator sees them."""
    params = study.params
    for name, entry in declared(type(params)).items():
        # The digest covers only what the file says, so a parameter outside the file must have its default.
        require_param(
            "study" in entry.param.surfaces or getattr(params, name) == entry.default, f"{{{name}}} has no place in a study"
        )
    if isinstance(params, HubStudy):
        _require_streaming(params)
    word = "peer" if study.topology == "gossip" else "site"
    require(len(study.holders) > 0, f"[[{word}]] is missing: no party has rows")
    require_param(params.person not in params.columns, "{person} {@person} must not be among {columns}", person=params.person)
    # Numbers of people are private by default, and public only where the neighbouring relation says so.
    _require_sizes(study)
    if isinstance(params, PeerStudy):
        require_param(params.graph is not None, "{graph} is missing: who talks to whom")
        require_param(
            (params.noise is not None) == study.private, "{noise} needs {epsilon}: with {epsilon=None} there is no noise"
        )
    else:
        _require_hub(study, params)


# Seconds until sites answer for a slot that lasts longer, unless a study says so.
_LONGEST_DELAY: Final = 600.0
# What a study of streams cannot have, because slots are released one after the other.
_NOT_STREAMED: Final = (
    "column_bounds",
    "mean_bound",
    "person",
    "method",
    "rounds",
    "tolerance",
    "quorum",
    "local_steps",
    "align",
    "person_sites",
)


def _require_streaming(params: HubStudy) -> None:
    """Refuse keys of slots in a study of tables, and keys of tables in a study of streams."""
    names, streaming = declared(HubStudy), params.streaming
    for name in _NOT_STREAMED if streaming else declared(StreamStudy):
        of_tables = "is for a study of tables, and {streaming} makes this one of streams"
        require_param(
            getattr(params, name) == names[name].default,
            f"{{{name}}} " + (of_tables if streaming else "is for a study of streams: add {streaming}"),
        )
    if not streaming:
        return
    by_clock = params.slot_seconds is not None
    for holds, why in (
        (params.slots is not None, "{slots} is missing: how many slots there are, a public number"),
        ((params.slot_rows is None) == by_clock, "give either {slot_rows} or {slot_seconds}: what ends a slot"),
        (by_clock == (params.begins is not None), "{begins} goes with {slot_seconds}: when the first slot begins"),
        (
            params.slot_delay is None or by_clock,
            "{slot_delay} goes with {slot_seconds}: without a clock sites answer when their slots are full",
        ),
        (params.trust != "both", "{trust=} is not for streams. Use {trust=masked}, {trust=site} or {trust=hub}"),
        # The estimator refuses it too, after the rule that masks need a bound, which would lead nowhere here.
        (
            params.trust != "masked" or params.epsilon is not None,
            "{trust=masked} needs {epsilon} in a study of streams: without noise sites send sketches, which cannot be masked",
        ),
        (not isinstance(params.scale, str), "{scale} must be public numbers: streams at many sites cannot search for them"),
        (
            params.center is None or isinstance(params.center, str),
            "{center} must be private or none in a study of streams. Give public numbers as {origin}",
        ),
    ):
        require_param(holds, why, trust=params.trust)


def slots_of(study: "StudyFile") -> "SlotSpec":
    """The checked specification of a study of streams."""
    from eigenveil.estimators.slots.parties import slot_spec

    params = study.params
    assert isinstance(params, HubStudy)
    values = {name: getattr(params, name) for name in declared(SlotStreamParams)}
    # The default of a table is to search for one. A stream must be given a number, and needs none without privacy.
    values["row_bound"] = None if isinstance(params.row_bound, str) else params.row_bound
    return slot_spec(
        validate_params(SlotStreamParams, SlotStreamParams(**values)),
        [site.name for site in study.sites],
        dim=len(study.columns),
        budget=study.budget,
        seed=study.seed,
        clock=params.slot_rows is None,
        size=params.slot_rows,
        delay=delay_of(params),
        columns=study.columns,
    )


def delay_of(params: HubStudy) -> float | None:
    """So many seconds after the end of a slot sites answer for it; None where no clock ends slots."""
    if params.slot_seconds is None:
        return None
    if params.slot_delay is not None:
        return params.slot_delay
    # A machine that keeps up has a slot's time for its rows. In a long slot they are read as they come, so that its end leaves
    # little to do, and an answer need not be a day old. At least as long as a hub would wait for an answer.
    return max(min(params.slot_seconds, _LONGEST_DELAY), params.deadline)


def _require_sizes(study: "StudyFile") -> None:
    neighbours, sizes = study.params.neighbours, study.sizes
    if study.streaming:
        require(sizes is None, "[sizes] is for tables: how many rows a stream will have is not known beforehand")
        return
    public = neighbours != "add-remove"
    for holds, why in (
        (study.private or not public, "{neighbours=} is part of a guarantee, and {epsilon=None} gives none"),
        (public or sizes is None, "[sizes] is for {neighbours} that make the number of people public: zero-out and replace-one"),
        (
            not public or sizes is not None,
            "[sizes] is missing: {neighbours=} makes the number of people at each site public, so give it",
        ),
    ):
        require_param(holds, why, neighbours=neighbours)
    names = [] if sizes is None else [holder.name for holder in study.holders]
    for name in sizes or ():
        require(name in names, f"[sizes] has {name[:60]!r}, who has no rows in this study")
    for name in names:
        require(sizes is not None and name in sizes, f"[sizes] {name!r} is missing: the number of people at {name}")


def _require_hub(study: "StudyFile", params: HubStudy) -> None:
    require(study.hub is not None, "[hub] is missing: the party that adds up")
    for name, value in (("epsilon", params.epsilon), ("delta", params.delta)):
        require_param(
            params.trust == "both" or not isinstance(value, tuple),
            f"{{{name}}} is a pair for {{trust=both}} alone: against the hub, and against all others",
        )
    require_param(
        not study.masked or study.private or isinstance(params.row_bound, float) or params.column_bounds is not None,
        "{row_bound} (or {column_bounds}) is missing. Masks need one even with {epsilon=None}, because masked sums are sums of "
        "integers. `eigenveil bounds` at one site finds one privately",
    )
    # Names of nodes follow from the number of sites and the fanout, so all parties draw the same tree.
    nodes = layout_of(study).nodes
    given_nodes = tuple(node.name for node in study.nodes)
    lacking, extra = [n for n in nodes if n not in given_nodes], [n for n in given_nodes if n not in nodes]
    fanout = f"{len(study.sites)} sites with fanout = {study.fanout}"
    require(not lacking, f"[[node]] {', '.join(lacking[:5])} is missing: {fanout} have {len(nodes)} nodes")
    require(not extra, f"[[node]] {', '.join(extra[:5])} is not in the tree: {fanout} have {len(nodes)} nodes")


def layout_of(study: "StudyFile") -> "Layout":
    """Which party is above which in a star or tree."""
    if study.hub is None:
        raise ValueError("a study between peers has no hub, so no party is above another")
    names, hub = [site.name for site in study.sites], study.hub.name
    # From the file alone, in its order: every party must come to the same tree.
    return star(names, hub=hub) if study.fanout is None else tree(names, fanout=study.fanout, hub=hub)


def fewest_of(study: "StudyFile") -> int:
    """The fewest organisations in a sum, from numbers or shares."""
    params = study.params
    if isinstance(params, HubStudy) and params.streaming:
        # No site is waited for, so a slot may be folded in when a single site has sent it. Masks need more.
        return slots_of(study).survivors if study.masked else 1
    # Not for streams: these load the planner, for which a device has no room.
    from eigenveil.estimators.federated.spec import share_of
    from eigenveil.estimators.gossip.spec import quorum_of

    if isinstance(params, PeerStudy):
        return quorum_of(params, len(study.peers))
    # Under masks nothing is unmasked below `survivors`, so that bounds every sum that the hub can read.
    name, threshold = ("survivors", params.survivors) if study.masked else ("quorum", params.quorum)
    count = share_of(name, threshold, len(study.sites))
    return len(study.sites) if count is None else count


def check_terms(study: "StudyFile") -> None:
    """Refuse what its estimator would refuse from public numbers alone."""
    if study.streaming:
        with named_parameters():
            slots_of(study)
        return
    request_of(study)
    if study.topology == "gossip":
        # Too few steps leave pair noise in sums, and colluders may disconnect a noise graph. `among(())` works out the mixing
        # with no peer gone.
        with named_parameters():
            _gossip_terms(study).among(())


def method_of(study: "StudyFile") -> str:
    """The method that finds the components, where the study may say "auto"."""
    if study.streaming:
        # What leaves a site is the same: a sum of products, or the leading directions.
        return next(leaf.name for leaf in METHODS.values() if (leaf.releases_gram if study.private else leaf.averages_subspaces))
    return request_of(study).fit.plan.method


def request_of(study: "StudyFile") -> "FederatedSpec | GossipSpec":
    """The estimator's checked specification of the study, from public facts alone."""
    from eigenveil.estimators.federated.spec import request_of as federated_request
    from eigenveil.estimators.reading import SiteInfo

    names = tuple(holder.name for holder in study.holders)
    sizes = None if study.sizes is None else {name: float(study.sizes[name]) for name in names}
    grouped, dim = study.params.person is not None, len(study.columns)
    with named_parameters():
        if isinstance(study.params, HubStudy):
            # Without the estimator: scikit-learn takes longer to load than all the rest.
            params = validate_params(FederatedParams, study.params)
            return federated_request(params, SiteInfo.declared(dim, names, sizes=sizes, grouped=grouped, columns=study.columns))
        pca = cast("GossipPCA", study.estimator())
        return pca.request_for(dim=dim, peers=names, sizes=sizes, grouped=grouped, columns=study.columns)


def fatal_peers(study: "StudyFile") -> tuple[str, ...]:
    """The peers whose loss ends the study, whatever the budget keeps for restarts: too few are left, or a graph falls apart."""
    terms, fatal = _gossip_terms(study), []
    for name in terms.graph.names:
        left = terms.graph.without([name]).components()[0]
        try:
            survives = len(left) >= terms.quorum
            # In a large study this takes long, and one peer of many is seldom what holds the noise graph together.
            if survives and len(terms.graph.names) <= _TRIED_PEERS:
                terms.among(set(terms.graph.names) - set(left))
        except ValueError:
            survives = False
        if not survives:
            fatal.append(name)
    return tuple(fatal)


def _gossip_terms(study: "StudyFile") -> "GossipTerms":
    from eigenveil.estimators.gossip.spec import read_graph
    from eigenveil.protocols.gossip.terms import GossipTerms

    params, names = study.params, tuple(peer.name for peer in study.peers)
    assert isinstance(params, PeerStudy)
    graph = read_graph("graph", params.graph, names)[0]
    noisy = graph if params.noise_graph is None else read_graph("noise_graph", params.noise_graph, names)[0]
    # Making the terms checks them.
    with named_parameters():
        return GossipTerms(
            graph=graph,
            consensus=params.consensus,
            steps=params.steps,
            noise=(params.noise or "none") if params.epsilon is not None else "none",
            noise_graph=noisy if params.noise == "pairwise" and params.epsilon is not None else None,
            colluders=params.colluders,
            quorum=fewest_of(study),
            roster={peer.name: peer.certificate.public for peer in study.peers},
        )


# Some refusals of estimators are plain sentences, not `ParameterError`s. These are the parameters they may name.
_NAMES: Final = frozenset(declared(HubStudy)) | frozenset(declared(PeerStudy))
# A name with an underscore can only be a parameter. Others count as one only at the start or with a value.
_UNMISTAKABLE: Final = frozenset(name for name in _NAMES if "_" in name)


@contextmanager
def named_parameters() -> Iterator[None]:
    """Raise a plain sentence that names parameters again, as a `ParameterError`."""
    try:
        yield
    except ParameterError:
        raise
    except ValueError as error:
        raise _as_template(str(error)) from error


def _as_template(message: str) -> ParameterError:
    """The template of a sentence that names parameters as Python does.

    >>> print(_as_template("n_components=9 is too much for trust='masked'").message)
    {n_components=9} is too much for {trust=masked}
    """
    pattern = re.compile(r"""\b([a-z_]+)\b(?:=(?:'([\w-]+)'|(None|\d+)))?""")

    def named(match: re.Match[str]) -> str:
        name, value = match[1], match[2] or match[3]
        if name not in _NAMES or not (value or name in _UNMISTAKABLE or match.start() == 0):
            return match[0]
        return f"{{{name}={value}}}" if value else f"{{{name}}}"

    return ParameterError(pattern.sub(named, message.replace("{", "{{").replace("}", "}}")))


# The most memory that a party gives to a study, unless its operator allows more. A covariance of 8000 columns takes as much.
MEMORY: Final = 4 << 30
# Measured, rounded up: how many arrays as long as the longest message exist at once while a party works on one. Sums in whole
# numbers, their noise, the symmetric matrix, its eigenvectors and the bytes on their way are among them.
_WORKING: Final = 16

# The same for each round where the products of all rounds are kept and orthonormalised together. With
# noise it also solves for what the products have in common.
_KEPT, _KEPT_NOISY = 4, 10


def size_of(
    spec: "FederatedSpec | GossipSpec", *, dim: int, rank: int, find: bool = False, units: bool = False, observed: int = 0
) -> FitSize:
    """The numbers in the longest question, part and answer of a fit of `dim` columns, which may `find` a bound or `units`.

    Where entries may be missing, `observed` counts of them go along with a sum.
    """
    from eigenveil.methods import method_of
    from eigenveil.tasks.fit.bounds import Outliers
    from eigenveil.tasks.fit.task import counted_at_once
    from eigenveil.tasks.levels import BEYOND

    plan, leaf = spec.fit.plan, method_of(spec.fit.plan.method)
    # A question has the center, the number of steps it took, and a bound or units that were found. A part has counts of norms
    # or entries, the sums for the mean, or a basis and its values.
    scale = dim if units else 0
    question = dim + 2 + scale + dim * plan.width * leaf.needs_start_basis
    part = leaf.longest_part(dim, plan)
    searched = counted_at_once(dim, find=find, units=units)
    # An answer then has the rate of each column, and two numbers more.
    rates = dim + 2 if observed else 0
    norms = len(BEYOND) + len(Outliers._fields) if find else 0
    answer = dim * rank + rank + dim + 7 + 2 * scale + rates + norms
    return FitSize(question, max(part, dim + 2 + observed, searched), answer)


def memory_of(size: FitSize, spec: "FederatedSpec | GossipSpec", *, parts: int) -> int:
    """About how many bytes a party needs that has `parts` parts of others in memory at once."""
    from eigenveil.methods import method_of

    plan, numbers = spec.fit.plan, max(size.question, size.part, size.answer)
    n_kept = 0
    if method_of(plan.method).keeps_products:
        n_kept = (_KEPT_NOISY if spec.fit.private else _KEPT) * plan.rounds
    return 8 * numbers * (_WORKING + n_kept + parts)


def require_size(study: "StudyFile", spec: "FederatedSpec | GossipSpec", *, memory: int) -> None:
    """Refuse a study that takes too much: a `ParameterError` says what it would take and what to do."""
    size = _size(study, spec)
    needed = memory_of(size, spec, parts=_parts(study, spec))
    what = f"{len(study.columns)} columns and {study.params.n_components} components"
    require_param(
        needed <= memory,
        f"a party needs about {_shown(needed)} of memory for {what}, and {_shown(memory)} is allowed. Use fewer {{columns}} "
        f"or {{n_components}}. If every party has so much memory, give each of them --memory {math.ceil(needed / 1e9)}GB",
    )
    # Names and keys of masks come on top. `limits_of` counts them, once the terms of the masks are known.
    longest = 8 * max(size.question, size.part, size.answer)
    require_param(
        longest <= LIMIT,
        f"the longest message would have {_shown(longest)} for {what}, and no message may have more than {_shown(LIMIT)}. "
        "Use fewer {columns} or {n_components}",
    )


def limits_of(
    study: "StudyFile", spec: "FederatedSpec | GossipSpec", role: Role, masked: "MaskedTerms | None" = None
) -> MessageLimits:
    """What may come to a party in this `role`, checked against the limit that the study sets itself."""
    return limits_within(study, _size(study, spec), role, masked)


def limits_within(study: "StudyFile", size: FitSize, role: Role, masked: "MaskedTerms | None" = None) -> MessageLimits:
    """The same for messages of this size."""
    limits = limits_for(role, size, [party.name for party in study.places], masked)
    largest = LIMIT if study.params.max_message_bytes is None else study.params.max_message_bytes
    require_param(
        limits.largest <= largest,
        "{max_message_bytes} must be at least {@needed} for this study, whose messages have that many bytes, got {@given}",
        needed=limits.largest,
        given=largest,
    )
    return limits


def _size(study: "StudyFile", spec: "FederatedSpec | GossipSpec") -> FitSize:
    params = study.params
    units = isinstance(params.scale, str)
    # As `RowBounds` decides it: column bounds are enough, and units need no bound on rows.
    find = study.private and isinstance(params.row_bound, str) and params.column_bounds is None and not units
    gaps = gaps_of(params, len(study.columns), names=study.columns, sparse=False)
    observed = 0 if gaps is None else gaps.entries
    return size_of(spec, dim=len(study.columns), rank=params.n_components, find=find, units=units, observed=observed)


def _parts(study: "StudyFile", spec: "FederatedSpec | GossipSpec") -> int:
    """How many parts of others the busiest party has in memory at once."""
    from eigenveil.estimators.gossip.spec import GossipSpec

    if isinstance(spec, GossipSpec):
        # The numbers of two steps, and two that came early.
        return 4 * max(spec.graph.degree(name) for name in spec.graph.names)
    # Masked parts are added up as they come. Others wait for those before them.
    return 1 if study.masked else max(len(below) for below in study.layout().below.values())


def _shown(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{math.ceil(count / 2**20)} MiB"
