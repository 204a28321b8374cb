"""Bad input is refused before anything is spent, with the argument, the value and what to do, and quotes nobody's data."""

import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eigenveil import Faults, GossipPCA
from eigenveil.linalg.graphs import Graph

ROWS = np.random.default_rng(0).standard_normal((60, 4)) * [4.0, 2.0, 1.0, 0.5]
PEERS = dict(zip("abcde", np.array_split(ROWS, 5), strict=True))
EXACT: dict[str, Any] = {"epsilon": None}
PRIVATE: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "row_bound": 5.0}
SECRET = 8675309.0


def refused(peers: Any, message: str, **choices: Any) -> str:
    """A `ValueError` that matches; nothing is fitted."""
    pca = GossipPCA(2, **({"graph": "ring"} | choices))
    with pytest.raises(ValueError, match=message) as caught:
        pca.fit(peers)
    assert "8675309" not in "".join(traceback.format_exception(caught.value))
    assert not hasattr(pca, "components_")
    assert not hasattr(pca, "model_")
    return str(caught.value)


def matrix(*rows: list[float]) -> Any:
    return np.array(rows)


ISLANDS = [(0, 1), (1, 2), (3, 4)]
GRAPHS: dict[str, tuple[Any, str]] = {
    "two islands": (ISLANDS, "graph must be connected: there is no path from a to d, e"),
    "no edges": ([], "graph must be connected"),
    "a loop": ([("a", "a"), (0, 1)], "graph: the edge .* connects a peer to itself"),
    "a loop by number": ([(0, 0)], "graph: the edge .* connects a peer to itself"),
    "an unknown peer": ([("a", "zoe")], "graph: there is no peer 'zoe'; they are a, b, c, d, e"),
    "an unknown number": ([(0, 5)], "graph: a peer must be a name or a number below 5, got 5"),
    "a number below zero": ([(0, -1)], "graph: a peer must be a name or a number below 5, got -1"),
    "a truth for a peer": ([(True, 1)], "graph: a peer must be a name or a number below 5, got True"),
    "three ends": ([(0, 1, 2)], r"graph: an edge must be a pair of peers, got \(0, 1, 2\)"),
    "an edge in one word": (["ab"], "graph: an edge must be a pair of peers, got 'ab'"),
    "an unknown word": ("circle", "graph: must be one of ring, path, .* got 'circle'"),
    "no degree": ("random-regular:", "graph: random-regular: needs a number of neighbours after the colon, got ''"),
    "a degree too many": (
        "random-regular:5",
        "graph: random-regular: 5 peers can have at most 4 neighbours each, got 5",
    ),
    "an odd degree": ("random-regular:3", "graph: random-regular: an odd number of peers, 5, can only"),
    "a number": (7, "graph: must be one of ring"),
    "nothing": (None, "graph: must be one of ring"),
    "neighbours one way": (
        {"a": ["b"], "b": [], "c": [], "d": [], "e": []},
        "graph: a has b as a neighbour, and b does not have a",
    ),
    "a graph of others": (
        Graph.named("ring", "vwxyz"),
        "graph: its peers are v, w, x, y, z, and those to fit are a, b",
    ),
    "a graph of fewer": (Graph.named("ring", "abcd"), "graph: its peers are a, b, c, d, and those to fit are a, b"),
    "weights that lean": (
        matrix([0.5, 0.5], [0.4, 0.6]),
        "graph: weights must be symmetric, but row 0, column 1 has 0.5",
    ),
    "weights that do not add up": (
        matrix([0.5, 0.4], [0.4, 0.5]),
        "graph: every row of weights must add up to 1, but row 0",
    ),
    "weights below zero": (matrix([1.5, -0.5], [-0.5, 1.5]), "graph: weights must not be negative, got -0.5"),
    "weights that are none": (matrix([np.nan, 0.5], [0.5, 0.5]), "graph: weights must be finite"),
    "weights that are not square": (np.full((2, 3), 0.5), "graph: weights must be a square matrix"),
    "weights for two": (np.full((2, 2), 0.5), "graph: weights are for 2 peers, but the study has 5"),
    "weights in words": (np.array([["a"]]), "graph: "),
    "weights of islands": (np.eye(5), "graph must be connected"),
}


@pytest.mark.parametrize("what", GRAPHS)
@pytest.mark.parametrize("plan", [EXACT, PRIVATE], ids=["exact", "private"])
def test_a_graph_that_is_none_is_refused(what: str, plan: dict[str, Any]) -> None:
    graph, message = GRAPHS[what]
    refused(PEERS, message, graph=graph, **plan)


FILES: dict[str, tuple[str, str]] = {
    "equal names": ("a,b\nb,c\nc,c\n", "line 3: an edge from 'c' to itself"),
    "an unknown name": ("a,b\nb,zoe\n", "line 2: 'zoe' is not among the names"),
    "three names": ("a,b,c\n", "line 1: an edge must be two names, got 'a,b,c'"),
    "one name": ("a\n", "line 1: an edge must be two names, got 'a'"),
    "nothing": ("# nobody\n", "graph must be connected"),
    "islands": ("a b\nb c\nd e\n", "graph must be connected: there is no path from a to d, e"),
}


@pytest.mark.parametrize("what", FILES)
def test_a_file_of_edges_is_refused_with_its_line(what: str, tmp_path: Path) -> None:
    text, message = FILES[what]
    path = tmp_path / "edges.txt"
    path.write_text(text)
    refused(PEERS, message, graph=path, **EXACT)
    refused(PEERS, message, graph=str(path), **EXACT)


def test_a_file_that_is_not_there_or_is_no_text_is_refused(tmp_path: Path) -> None:
    refused(PEERS, "graph: must be one of ring.* or a file with one edge a line, got", graph=tmp_path / "none", **EXACT)
    (tmp_path / "edges").write_bytes(b"\xff\xfe\x00")
    refused(PEERS, "graph: .*must be text in UTF-8", graph=tmp_path / "edges", **EXACT)


WORDS: dict[str, tuple[dict[str, Any], str]] = {
    "method": ({"method": "merge"}, "method must be one of .* got 'merge'"),
    "consensus": ({"consensus": "gossip"}, "consensus must be one of .* got 'gossip'"),
    "noise": ({"noise": "none"}, "noise must be one of .* got 'none'"),
    "neighbours": ({"neighbours": "swap"}, "neighbours must be one of .* got 'swap'"),
    "no steps": ({"steps": 0}, "steps must be .* got 0"),
    "half a step": ({"steps": 2.5}, "steps must be .* got 2.5"),
    "steps of a tree": ({"steps": 5, "consensus": "tree"}, "steps has no meaning with consensus='tree'"),
    "deadline": ({"deadline": 0.0}, "deadline must be positive and finite, got 0.0"),
    "endless deadline": ({"deadline": float("inf")}, "deadline must be positive and finite, got inf"),
    "retries": ({"retries": -1}, "retries must be .* got -1"),
    "restarts": ({"restarts": -1}, "restarts must be .* got -1"),
    "rounds": ({"rounds": 0}, "rounds must be .* got 0"),
    "people": ({"people": 1}, "people must be .* got 1"),
    "person": ({"person": 3}, "person must be the name of a column, the same at every site"),
    "oversample of segments": (
        {"method": "segments", "oversample": 2},
        "oversample has no meaning for method='segments'",
    ),
    "quorum below half": (
        {"quorum": 2},
        "quorum must be a number from 3, more than half, to the 5 peers, .* got 2",
    ),
    "a small share": ({"quorum": 0.4}, "quorum must be a number from 3, .* got 0.4"),
    "quorum of too many": ({"quorum": 6}, "quorum must be a number from 3, .* got 6"),
    "quorum in words": ({"quorum": "half"}, "quorum must be a whole number from 1, .* or a share .* got 'half'"),
    "faults": ({"faults": {"loss": 0.1}}, "faults must be an eigenveil.runtimes.Faults"),
    "a mean that is false": (
        {"center": False},
        "center must be numbers, one per column, or say center='private' or center=None, got False",
    ),
}


@pytest.mark.parametrize("what", WORDS)
@pytest.mark.parametrize("plan", [EXACT, PRIVATE], ids=["exact", "private"])
def test_words_and_numbers_that_mean_nothing_are_refused(what: str, plan: dict[str, Any]) -> None:
    choices, message = WORDS[what]
    refused(PEERS, message, **(plan | choices))


NOISE: dict[str, tuple[dict[str, Any], str]] = {
    "no noise for an epsilon": (
        {**PRIVATE, "noise": None},
        "noise=None adds no noise, and epsilon was given. Use",
    ),
    "restarts without a budget": ({**EXACT, "restarts": 1}, "restarts is for a budget"),
    "a noise graph without a budget": (
        {**EXACT, "noise_graph": "ring"},
        "noise_graph is for noise='pairwise' and a budget",
    ),
    "a noise graph for noise of one's own": (
        {**PRIVATE, "noise": "independent", "noise_graph": "ring"},
        "noise_graph is for noise='pairwise'",
    ),
    "published, of another method": (
        {"epsilon": None, "noise": "published", "method": "power", "center": None, "row_bound": 5.0},
        r"noise='published' needs method='segments', as it is D-DP-PM's Alg. 1 \(got method='power'\)",
    ),
    "published, with a mean": (
        {"epsilon": None, "noise": "published", "method": "segments", "row_bound": 5.0},
        "noise='published' needs center=None or public numbers",
    ),
    "published, without a bound": (
        {"epsilon": None, "noise": "published", "method": "segments", "center": None},
        "noise='published' needs a row_bound",
    ),
    "a star": (
        {**PRIVATE, "graph": "star"},
        "the noise graph must stay connected without any 1 of its peers: removing a leaves",
    ),
    "a path": ({**PRIVATE, "graph": "path"}, "the noise graph must stay connected .* Use a denser noise_graph"),
    "two colluders on a ring": (
        {**PRIVATE, "colluders": 2},
        "the noise graph must stay connected without any 2 of its peers",
    ),
    "as many colluders as peers": ({**PRIVATE, "graph": "complete", "colluders": 4}, "colluders must be .* got 4"),
    "no colluders": ({**PRIVATE, "colluders": 0}, "colluders must be .* got 0"),
    "a noise graph of islands": ({**PRIVATE, "noise_graph": ISLANDS}, "the noise graph must stay connected"),
    "a noise graph of nobody": ({**PRIVATE, "noise_graph": "circle"}, "noise_graph: must be one of ring"),
    "too few steps for pairs": (
        {**PRIVATE, "steps": 2},
        "steps=2 would leave pair noise in the sum, .* steps, which leave none",
    ),
    "krylov in too few steps": (
        {**EXACT, "method": "krylov", "steps": 2},
        "method='krylov' keeps all products, and with steps=2",
    ),
    "no delta": ({"epsilon": 1.0, "row_bound": 5.0}, "delta"),
    "no bound": ({"epsilon": 1.0, "delta": 1e-6}, "row_bound"),
    "an epsilon below zero": ({**PRIVATE, "epsilon": -1.0}, "epsilon"),
}


@pytest.mark.parametrize("what", NOISE)
def test_noise_that_cannot_keep_its_guarantee_is_refused(what: str) -> None:
    choices, message = NOISE[what]
    refused(PEERS, message, **choices)


def test_a_star_may_talk_where_others_share_the_noise() -> None:
    pca = GossipPCA(2, graph="star", noise_graph="complete", random_state=0, **PRIVATE).fit(PEERS)
    assert len(pca.peers_) == 5


def test_one_peer_and_no_peer_are_refused() -> None:
    for plan in (EXACT, PRIVATE):
        refused([ROWS], "there must be at least 2 peers, got 1. For one table use PrivatePCA", **plan)
        refused([], "there must be at least", **plan)
        refused(ROWS, "peers must be a list, or a mapping of names", **plan)


def test_two_peers_cannot_hide_each_other_and_are_told_so() -> None:
    refused([ROWS[:30], ROWS[30:]], "colluders|too few", **PRIVATE)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_wrong_with_rows_is_said_without_quoting_them(value: float) -> None:
    spoiled = {name: rows.copy() for name, rows in PEERS.items()}
    spoiled["c"][3] = SECRET
    spoiled["c"][4, 1] = value
    for plan in (EXACT, PRIVATE, PRIVATE | {"noise": "independent"}):
        message = refused(spoiled, "c: ", **plan)
        assert "a:" not in message


def test_columns_that_differ_between_peers_are_refused() -> None:
    refused([*np.array_split(ROWS, 3), ROWS[:5, :3]], "peer 3", **EXACT)


def test_numbers_too_large_to_square_end_with_the_peer_and_no_number() -> None:
    huge = {name: rows.copy() for name, rows in PEERS.items()}
    huge["b"] = huge["b"] * SECRET * 1e155
    refused(huge, "b", **EXACT)


@pytest.mark.parametrize("noise", ["pairwise", "independent"])
def test_what_a_run_that_fails_says_quotes_no_rows_and_names_who_is_gone(noise: Any) -> None:
    rows = {name: np.where(part > 0, SECRET, part) for name, part in PEERS.items()}
    pca = GossipPCA(2, graph="complete", noise=noise, faults=Faults(dies={"c": 5}), random_state=0, **PRIVATE)
    from eigenveil.errors import EigenveilError

    with pytest.raises(EigenveilError) as caught:
        pca.fit(rows)
    words = "".join(traceback.format_exception(caught.value))
    assert "8675309" not in words
    assert "c" in str(caught.value)
    assert pca.unfinished_.ledgers
    assert all(ledger.epsilon() <= 1.0 for ledger in pca.unfinished_.ledgers.values())
