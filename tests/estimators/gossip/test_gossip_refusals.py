"""Bad input is refused before anything is spent, with the argument, the value and what to do, and quotes nobody's data."""

import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eigenveil import Faults, GossipPCA

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


ISLANDS = [(0, 1), (1, 2), (3, 4)]


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
