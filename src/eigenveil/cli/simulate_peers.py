"""What `eigenveil simulate --graph` has that a hub does not: its options, graphs, facts, and what is said when peers are lost."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from eigenveil.cli.options import in_option_words
from eigenveil.cli.terminal import output
from eigenveil.errors import PeersLost, require

if TYPE_CHECKING:
    from eigenveil.estimators import GossipPCA

__all__ = [
    "facts",
    "lost_words",
    "peers_settings",
    "refuse_hub_options",
    "refuse_peers_options",
    "say_how_long",
    "traffic",
    "with_graphs",
]

# More exchanges than this in every sum are worth a word before they begin.
_MANY_STEPS: Final = 1000
_METHODS: Final = ("power", "krylov", "covariance", "segments")
# Options of a fit around a hub: what they are when nobody gives them, and why they mean nothing between peers.
_HUB: Final[dict[str, tuple[object, str]]] = {
    "topology": ("star", "that says who talks to whom"),
    "fanout": (None, "that says who talks to whom"),
    "trust": (None, "there is no hub to be trusted, and --noise says what is added"),
    "survivors": (None, "--quorum says how many peers must be left"),
    "local_steps": ("1", "fedpower needs a hub"),
    "align": ("procrustes", "fedpower needs a hub"),
    "participation": ("full", "there is no hub that could draw"),
    "calibration": ("exact", "what is published for peers is --noise published"),
    "person_sites": (1, "each person has rows at one peer only"),
}


def refuse_hub_options(given: Mapping[str, object]) -> None:
    """Refuse what has no meaning with --graph, by the name of its setting.

    >>> refuse_hub_options({"align": "procrustes", "fanout": 3})
    Traceback (most recent call last):
    ...
    ValueError: --fanout has no meaning with --graph: that says who talks to whom
    """
    for name, value in given.items():
        without, why = _HUB[name]
        require(value == without, f"{_option(name)} has no meaning with --graph: {why}")


def refuse_peers_options(method: str, given: Mapping[str, object]) -> None:
    """Refuse what is only for --graph where there is none."""
    for name, value in given.items():
        require(value is None, f"{_option(name)} is for --graph, which says who talks to whom without a hub")
    require(method != "segments", "--method segments is for --graph: peers without a hub")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def peers_settings(
    graph: str,
    *,
    private: bool,
    method: str,
    noise: str | None,
    colluders: int | None,
    consensus: str | None,
    restarts: int | None,
    **others: Any,
) -> dict[str, Any]:
    """Settings that `GossipPCA` has and `FederatedPCA` has not, or has in other words; `others` are settings as they are.

    Graphs are still texts, because the names of peers are not known before rows are dealt out.

    >>> peers_settings(
    ...     "ring", private=True, method="auto", noise=None, colluders=None, consensus=None, restarts=None
    ... )["noise"]
    'pairwise'
    """
    found = "power" if method == "auto" else method
    known = f"with --graph it is {', '.join(_METHODS[:-1])} or {_METHODS[-1]}"
    require(found in _METHODS, f"--method {method} needs a hub: {known}")
    require(
        private or noise in (None, "published"), f"--noise {noise} is for a budget, and --no-privacy says there is none"
    )
    require(
        not private or noise != "published",
        "--noise published keeps no promise, so there is no --epsilon to it: say --no-privacy",
    )
    added = "pairwise" if private and noise is None else noise
    require(colluders is None or added == "pairwise", "--colluders is for --noise pairwise and a budget")
    return {
        "graph": graph,
        "method": found,
        "noise": added,
        "colluders": 1 if colluders is None else colluders,
        "consensus": "metropolis" if consensus is None else consensus,
        "restarts": 0 if restarts is None else restarts,
        **others,
    }


def with_graphs(settings: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The settings with graphs of peers of these names in place of texts, each file read once."""
    from eigenveil.estimators.gossip_graphs import read_graph

    texts = {name: settings[name] for name in ("graph", "noise_graph") if settings[name] is not None}
    return {**settings, **{name: read_graph(name, text, tuple(names))[0] for name, text in texts.items()}}


def say_how_long(pca: Any) -> None:
    """A line on stderr where every sum takes many exchanges: nothing else would be seen for a while."""
    import numpy as np

    from eigenveil.protocols.gossip import metropolis, steps_for

    if pca.consensus != "metropolis" or pca.steps is not None or not pca.graph.connected:
        return
    values = np.linalg.eigvalsh(metropolis(pca.graph))
    steps = steps_for("metropolis", float(values[0]), float(values[-2]), 1e-16 / len(values)) if len(values) > 1 else 1
    if steps > _MANY_STEPS:
        line = f"every sum takes some {steps} exchanges on this graph; --consensus chebyshev or tree takes far fewer"
        output(stderr=True).print(line, style="dim", soft_wrap=True)


def facts(pca: "GossipPCA", *, split: str, asked: str) -> Iterator[tuple[str, str]]:
    """Who talks to whom on the graph that was `asked` for, how their sums come about, and what noise is in them."""
    graph = pca.terms_.graph
    now = pca.terms_.among(set(graph.names) - set(pca.peers_))
    apart = f"at most {graph.diameter} link{'s' * (graph.diameter != 1)} apart"
    yield "graph", f"{asked}: {len(graph.names)} peers, {len(graph.edges)} edges, {apart}, split {split}"
    among = "" if len(pca.peers_) == len(graph.names) else f", among the {len(pca.peers_)} who are left"
    mixing = now.mixing
    steps = f"{mixing.steps} step{'s' * (mixing.steps != 1)} for each sum{among}"
    left = "exact" if mixing.left == 0 else f"{mixing.left:.1e} of the differences between peers is left"
    yield "consensus", f"{mixing.consensus}: {steps}; {left}"
    if pca.noise == "published":
        yield "noise", "as published in D-DP-PM, with nothing promised"
    elif now.pairing is not None:
        few = "one colluder" if pca.colluders == 1 else f"{pca.colluders} colluders"
        yield "noise", f"pairwise, against {few}: {now.pairing.excess:.4g} times that of a curator{among}"
    elif pca.epsilon is not None:
        yield "noise", f"independent: {len(pca.peers_) ** 0.5:.4g} times that of a curator{among}"
    yield "disagreement", f"{pca.disagreement_:.1e}, the largest sine between peers"


def traffic(pca: "GossipPCA") -> str:
    """Bytes of the peer that sent most, and of all."""
    from eigenveil.report import in_bytes

    most = max(pca.traffic_, key=pca.traffic_.__getitem__)
    return f"{in_bytes(pca.traffic_[most])} from {most}, the most of any peer; {in_bytes(sum(pca.traffic_.values()))} in all"


def lost_words(error: PeersLost, *, missing: str, ended: int) -> str:
    """Who cannot be reached, why the others do not go on, and what to do. `ended` is how many rounds had.

    >>> lost_words(PeersLost(("b",), turn=0, why="Give restarts= to keep some"), missing="b", ended=0)
    'peers lost in round 1: no way to b; Give --restarts to keep some'
    """
    # A peer may be called X, which is no table then.
    why = in_option_words(str(error).partition("cannot be begun again: ")[2], rows="X")
    line = f"peers lost in round {ended + 1}: no way to {missing}; {why}"
    if " left, and " in why:
        line += ". More of them can on a --graph with more edges; the fewest is --quorum, at least more than half"
    elif "noise graph must stay connected" in why:
        line += ". --noise independent needs no such graph"
    return line
