"""The parameters of `FederatedPCA`: sites around a hub, or in a tree."""

from __future__ import annotations

from typing import Any, Literal

from eigenveil.params.declarations.groups import (
    DELTA_HELP,
    DELTA_IN_FILE,
    EPSILON,
    EPSILON_HELP,
    EPSILON_IN_FILE,
    LARGEST_COUNT,
    METHOD_LIMIT,
    NAME,
    OFFLINE,
    PERSON_SITES_LIMIT,
    SHARE,
    SURVIVORS_HELP,
    TRUST_LIMIT,
    BudgetParams,
    Colluding,
    Components,
    MissingParams,
    Places,
    PooledBounds,
    Protection,
    Stopping,
    Waiting,
    Whitening,
)
from eigenveil.params.declare import param, parameters, redeclare, registered
from eigenveil.params.values import Integer, InvalidValue, fraction, listed, numbers_from, pair_of


def local_steps_of(value: Any) -> Any:
    """A number, a list of numbers, or ("decay", number)."""
    # Each step is charged with privacy, and a study file may be hostile: no more than a site would wait for.
    check = Integer(min=1, max=1000)
    try:
        if isinstance(value, list | tuple) and len(value) == 2 and value[0] == "decay":
            return "decay", check(value[1])
        if isinstance(value, list | tuple) and len(value) > 0:
            return tuple(check(step) for step in value)
        return check(value)
    except InvalidValue:
        raise InvalidValue('an integer of at least 1, a list of them, or ("decay", an integer)') from None


def local_steps_from(text: str) -> Any:
    """Local steps from a command line.

    >>> local_steps_from("4"), local_steps_from("4,3,2"), local_steps_from("decay:4")
    (4, [4, 3, 2], ('decay', 4))
    """
    kind, colon, rest = text.partition(":")
    try:
        if colon and kind == "decay":
            return "decay", int(rest)
        steps = [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidValue("a number such as 4, a list such as 4,3,2,1, or decay:4") from None
    return steps if len(steps) > 1 else steps[0]


def participation_of(value: Any) -> Any:
    """All sites, or a scheme and how many sites it draws."""
    if isinstance(value, str) and value == "full":
        return value
    if isinstance(value, list | tuple) and len(value) == 2 and value[0] in ("with-replacement", "without-replacement"):
        try:
            return value[0], Integer(min=1)(value[1])
        except InvalidValue as error:
            raise InvalidValue(f"a draw of K sites, where K is {error}") from None
    raise InvalidValue('"full", ("with-replacement", K) or ("without-replacement", K)')


def participation_from(text: str) -> Any:
    """Participation from a command line.

    >>> participation_from("full"), participation_from("with-replacement:5")
    ('full', ('with-replacement', 5))
    """
    scheme, colon, count = text.partition(":")
    if text == "full":
        return text
    if not colon or scheme not in ("with-replacement", "without-replacement") or not count.isdecimal():
        raise InvalidValue("full, with-replacement:K or without-replacement:K")
    return scheme, int(count)


@parameters(panel="Privacy", section="privacy")
class PairBudget:
    """What one fit may cost: one budget, or a pair."""

    # Not inherited: a subclass cannot change a field's type, and these may be pairs.
    epsilon: float | tuple[float, float] | None = redeclare(
        BudgetParams,
        "epsilon",
        help=f"{EPSILON_HELP} With {{trust=both}} a pair such as 3,1: against the hub, and against everyone else.",
        check=pair_of(EPSILON),
        strict=pair_of(EPSILON_IN_FILE),
        type_text="float, pair of float or None",
        parse=numbers_from,
    )
    delta: float | tuple[float, float] | None = redeclare(
        BudgetParams,
        "delta",
        help=f"{DELTA_HELP} With {{trust=both}} it may be a pair, too.",
        check=pair_of(fraction),
        strict=pair_of(DELTA_IN_FILE),
        type_text="float, pair of float or None",
        parse=numbers_from,
    )


@parameters(panel="Sites", section="tree")
class HubParams:
    """Who talks to whom, and who adds the noise."""

    topology: Literal["star", "tree"] = param(
        "star: every site talks to the hub. tree: at most {fanout} sites or nodes talk to each node.",
        default="star",
        section="study",
    )
    fanout: int = param(
        "The largest number of sites or nodes below one node.",
        default=8,
        check=Integer(min=2),
        strict=Integer(min=2, max=10_000),
        applies_when="topology=tree",
        # A script that tries both topologies may leave it in place.
        lenient=True,
    )
    # WHICH SEES RAW PARTS stands in capitals because this is the default, and the help is where most people meet it.
    trust: Literal["hub", "site", "both", "masked"] = param(
        "Who adds the noise. With hub it is the hub, WHICH SEES RAW PARTS. With site it is every site, which also "
        "protects against the hub, at sqrt(M) times the noise. With both it is sites and hub, for two budgets. With "
        "masked it is the sites together, a share each. Masks cancel in the sum only, so this also protects against "
        "the hub, at the noise of one curator. With {epsilon=None}, masks without noise.",
        details="Masks are for krylov, power, covariance and dr-svd in a star.",
        default="hub",
        metavar="WHO",
        panel="Privacy",
        section="privacy",
        limit=TRUST_LIMIT,
    )
    survivors: int | float | None = param(
        f"{SURVIVORS_HELP} With fewer, nothing is unmasked.",
        default=None,
        like=SHARE,
        none_means="all",
        # Under masks a missing site takes its share of the noise along, so `quorum` is not enough.
        applies_when="trust=masked",
        otherwise_hint="With other trust use {quorum}",
        panel="Privacy",
        section="privacy",
    )
    colluders: int = redeclare(Colluding, "colluders")
    person_sites: int = param(
        "The largest number of sites at which one person has rows.",
        default=1,
        check=Integer(min=1),
        strict=Integer(min=1, max=LARGEST_COUNT),
        # Left out of files at 1, so that a study which does not need it reads as before.
        omit_if_default=True,
        limit=PERSON_SITES_LIMIT,
        panel="Privacy",
        section="privacy",
    )


@parameters(panel="Method", section="task")
class HubMethod:
    """How the components are found."""

    method: str = param(
        "How the components are found. Without privacy auto is krylov. With privacy it is one noisy covariance if that fits in "
        "memory, and noisy products otherwise.",
        default="auto",
        among=registered("eigenveil.methods", "AT_SITES"),
        limit=METHOD_LIMIT,
        recorded=False,  # The settings have the method that `auto` became.
    )


@parameters(panel="Method", section="task")
class Rounds(Stopping):
    """What happens in a round."""

    local_steps: Any = param(
        "For fedpower: power steps at a site in each round. One number, such as 4. Or one for each round, of which the "
        "last is repeated. Or a decay from a number (FedPower (3.15)). With {epsilon} each step is charged, and sites "
        "must add the noise.",
        syntax="4, 4,3,2,1 or decay:4",
        default=1,
        check=local_steps_of,
        omit_if_default=True,
        type_text='int, list of int or ("decay", int)',
        parse=local_steps_from,
        recorded=True,
        metavar="STEPS",
    )
    align: Literal["procrustes", "sign", "none"] = param(
        "For fedpower: how sites align their products with the last basis: procrustes, sign or none.",
        # Products of two sites may span the same space and differ by a rotation. Averaged as they are, they would cancel.
        default="procrustes",
        omit_if_default=True,
    )
    participation: Any = param(
        "For power and fedpower: all sites in each round (full), or K sites drawn by size (with-replacement) or evenly "
        "(without-replacement).",
        syntax="full, with-replacement:K or without-replacement:K",
        default="full",
        check=participation_of,
        type_text='"full", ("with-replacement", K) or ("without-replacement", K)',
        parse=participation_from,
        metavar="WHO",
        omit_if_default=True,
        recorded=True,
        surfaces=OFFLINE,
    )


@parameters(panel="Method", section="task")
class FederatedParams(
    Whitening, Waiting, Rounds, HubMethod, HubParams, Places, Protection, MissingParams, PooledBounds, PairBudget, Components
):
    """The parameters of `FederatedPCA`."""

    row_bound: float | Literal["private"] | None = redeclare(
        PooledBounds,
        "row_bound",
        details="With {column_bounds} nothing is searched for. A site that gives a `Symmetric` needs a number and vouches for "
        "it, because a person in a matrix cannot be clipped.",
    )


# A graph from a study file is walked many times before anybody agrees to it.
MOST_EDGES = 20_000
EDGES_IN_FILE = listed(listed(NAME, min_count=2, max_count=2), min_count=1, max_count=MOST_EDGES)
PEERS = "Peers without a hub"
GRAPHS = (
    "ring, path, grid, star, complete, random-regular:4 (four neighbours each), or a file with an edge on each line: two "
    "names or numbers with a comma between"
)


@parameters(panel=PEERS, section="graph")
class Peers:
    """Who talks to whom, how peers add up, and which noise cancels."""

    graph: Any = param(
        f"Who talks to whom: {GRAPHS}.",
        details="Or pairs of names or numbers, neighbours by name, a networkx graph, or a symmetric, doubly stochastic matrix of "
        "weights, (m, m).",
        type_text="str, path, edges, dict, array or Graph",
        strict=EDGES_IN_FILE,
        parse=str,
        metavar="WHICH",
        key="edges",
    )
    consensus: Literal["metropolis", "chebyshev", "tree"] = param(
        "How peers add up. With metropolis, by repeated averages with neighbours. With chebyshev, the same in about the square "
        "root of as many steps. With tree, up and down a spanning tree, which is exact.",
        # The method of the papers, which the other two are compared with.
        default="metropolis",
    )
    steps: int | None = param(
        "How many exchanges with neighbours a sum takes.",
        default=None,
        check=Integer(min=1, max=1_000_000),
        none_means="until the error is negligible",
    )
    noise: Literal["pairwise", "independent"] | None = param(
        "The noise, if there is a budget. With pairwise, it cancels between pairs of peers, which protects against "
        "{colluders} of them. The sum then has little more noise than with one curator. With independent, every peer "
        "adds all of it, which protects against all others, at sqrt(M) times the noise.",
        details="None: no noise, for {epsilon=None}.",
        # Nearly the noise of one curator, for one more assumption: that no more than `colluders` peers collude.
        default="pairwise",
        section="privacy",
        limit=TRUST_LIMIT,
    )
    noise_graph: Any = param(
        "Which pairs share noise, given as {graph} is. It must stay connected without any {colluders} peers.",
        default=None,
        type_text="as graph, or None",
        strict=EDGES_IN_FILE,
        parse=str,
        metavar="WHICH",
        key="noise_edges",
        none_means="all pairs of neighbours",
        applies_when="noise=pairwise",
    )
    colluders: int = redeclare(
        Colluding,
        "colluders",
        help="How many peers may tell each other all they know.",
        details=None,
        applies_when="noise=pairwise",
        # Calls that compare kinds of noise share their other settings.
        lenient=True,
    )
    restarts: int = param(
        "Keep enough of the budget for this many restarted rounds. When peers vanish, a round restarts at its full cost.",
        # Each one takes from the budget of every other round, whether or not anybody vanishes.
        default=0,
        check=Integer(min=0, max=1000),
        omit_if_default=True,
        section="privacy",
    )


@parameters(panel="Method", section="task")
class GossipParams(
    Whitening, Waiting, Stopping, Peers, Places, Protection, MissingParams, PooledBounds, BudgetParams, Components
):
    """The parameters of `GossipPCA`."""

    method: str = param(
        "power: products with a block of directions. krylov: the same with all products kept. covariance: one covariance. "
        "segments: one direction at a time (D-DP-PM).",
        default="power",
        among=registered("eigenveil.methods", "AT_PEERS"),
        limit=METHOD_LIMIT,
        recorded=False,  # The settings have the method that `auto` became.
    )
    quorum: int | float | None = redeclare(
        Waiting,
        "quorum",
        help="How many peers must be left, such as 4, or which share of them, such as 0.8. Always more than half. Missing peers "
        "are left out from then on.",
        # Otherwise two groups that lost each other could both continue, and release two answers about the same people.
        none_means="more than half",
    )
    people: int | None = param(
        "A public guess at the number of people, for the starts of segments alone.",
        default=None,
        check=Integer(min=2),
        surfaces=OFFLINE - {"cli"},
        recorded=False,  # A guess. Beside a guarantee that protects the number of people, it would be read as that number.
    )
