"""The parts of `eigenveil simulate --graph` that a fit around a hub lacks: graphs, facts, and the error for lost peers."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from eigenveil.errors import PeersLost
from eigenveil.params import GossipParams, SimulateParams
from eigenveil.params.words import in_options
from eigenveil.show.console import output

if TYPE_CHECKING:
    from eigenveil.estimators import GossipPCA
    from eigenveil.linalg.graphs import Graph

__all__ = ["facts", "graphs_of", "lost_words", "say_how_long", "traffic"]

# With more exchanges than this in every sum, the command says beforehand that it takes long.
_MANY_STEPS: Final = 1000


def graphs_of(asked: GossipParams, names: Sequence[str]) -> "dict[str, Graph]":
    """The graphs over peers of these names, from their texts. Each file is read once."""
    from eigenveil.estimators.gossip.graph import read_graph

    texts = {"graph": asked.graph, "noise_graph": asked.noise_graph}
    return {name: read_graph(name, text, tuple(names))[0] for name, text in texts.items() if text is not None}


def say_how_long(pca: Any) -> None:
    """Print a hint on stderr if every sum takes many exchanges, because nothing else is printed for a while."""
    import numpy as np

    from eigenveil.protocols.gossip import metropolis, steps_for

    if pca.consensus != "metropolis" or pca.steps is not None or not pca.graph.connected:
        return
    values = np.linalg.eigvalsh(metropolis(pca.graph))
    steps = steps_for("metropolis", float(values[0]), float(values[-2]), 1e-16 / len(values)) if len(values) > 1 else 1
    if steps > _MANY_STEPS:
        line = f"each sum takes about {steps} exchanges on this graph; --consensus chebyshev or tree takes far fewer"
        output(stderr=True).print(line, style="dim", soft_wrap=True)


def facts(pca: "GossipPCA", *, split: str, asked: str) -> Iterator[tuple[str, str]]:
    """The graph (as `asked`), how the peers compute sums on it, and the noise in those sums."""
    graph = pca.terms_.graph
    now = pca.terms_.among(set(graph.names) - set(pca.peers_))
    apart = f"at most {graph.diameter} link{'s' * (graph.diameter != 1)} apart"
    yield "graph", f"{asked}: {len(graph.names)} peers, {len(graph.edges)} edges, {apart}, split {split}"
    among = "" if len(pca.peers_) == len(graph.names) else f", among the {len(pca.peers_)} who are left"
    mixing = now.mixing
    steps = f"{mixing.steps} step{'s' * (mixing.steps != 1)} for each sum{among}"
    left = "exact" if mixing.left == 0 else f"{mixing.left:.1e} of the differences between peers remains"
    yield "consensus", f"{mixing.consensus}: {steps}; {left}"
    if pca.noise == "published":
        yield "noise", "as published in D-DP-PM, without any guarantee"
    elif now.pairing is not None:
        few = "one colluder" if pca.colluders == 1 else f"{pca.colluders} colluders"
        yield "noise", f"pairwise, against {few}: {now.pairing.excess:.4g} times that of a trusted hub{among}"
    elif pca.epsilon is not None:
        yield "noise", f"independent: {len(pca.peers_) ** 0.5:.4g} times that of a trusted hub{among}"
    yield "disagreement", f"{pca.disagreement_:.1e}, the sine of the largest principal angle between peers"


def traffic(pca: "GossipPCA") -> str:
    """Bytes sent by the busiest peer, and by all."""
    from eigenveil.show.terminal import in_bytes

    most = max(pca.traffic_, key=pca.traffic_.__getitem__)
    return (
        f"{in_bytes(pca.traffic_[most])} from {most}, the busiest peer; {in_bytes(sum(pca.traffic_.values()))} in all"
    )


def lost_words(error: PeersLost, *, missing: str, ended: int) -> str:
    """Who cannot be reached, why the others cannot go on, and what to do. `ended` rounds were complete.

    >>> from eigenveil.errors import ParameterError
    >>> why = ParameterError("Give {restarts} to keep some")
    >>> lost_words(PeersLost(("b",), round_=0, why=why), missing="b", ended=0)
    'peers lost in round 1: b cannot be reached, and the others cannot go on: Give --restarts to keep some'
    """
    why = error.reason(in_options(SimulateParams))
    return f"peers lost in round {ended + 1}: {missing} cannot be reached, and the others cannot go on: {why}"
