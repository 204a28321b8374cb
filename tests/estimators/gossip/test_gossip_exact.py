"""Peers without a hub and without noise: the pooled answer, whatever the graph, the method, the consensus and the storage."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from eigenveil.estimators.gossip.pca import GossipPCA
from eigenveil.estimators.private import PrivatePCA
from eigenveil.linalg import Array, sines
from eigenveil.linalg.graphs import Graph
from eigenveil.runtimes.local import Faults
from estimators.sites_of_rows import COLUMNS, DIM, KINDS, cut, pooled_rows, same_bits, stored

ROWS = pooled_rows(240)
PEERS = cut(ROWS, 30, 80, 40)
METHODS = ("power", "krylov", "covariance", "segments")
WAYS = ("metropolis", "chebyshev", "tree")
# D-DP-PM's ring of four.
PAPER = np.array([[2, 1, 0, 1], [1, 2, 1, 0], [0, 1, 2, 1], [1, 0, 1, 2]]) / 4


def gossip(n_components: int = 3, **choices: Any) -> GossipPCA:
    return GossipPCA(n_components, **({"graph": "ring", "epsilon": None, "random_state": 0} | choices))


def pooled(rows: Array = ROWS, **choices: Any) -> PrivatePCA:
    return PrivatePCA(3, epsilon=None, **choices).fit(rows)


def apart(one: Any, two: Any) -> float:
    return float(sines(one.components_.T, two.components_.T)[0])


@pytest.mark.parametrize("consensus", WAYS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_and_consensus_finds_the_pooled_components(method: str, consensus: str) -> None:
    found = gossip(method=method, consensus=consensus).fit(PEERS)
    exact = pooled()
    assert apart(found, exact) < 1e-6
    assert found.disagreement_ < 1e-8
    assert np.allclose(found.mean_, exact.mean_, atol=1e-9)
    assert np.allclose(found.explained_variance_, exact.explained_variance_, rtol=1e-6)
    assert np.allclose(found.explained_variance_ratio_, exact.explained_variance_ratio_, rtol=1e-6)
    assert found.peers_ == ("peer 0", "peer 1", "peer 2", "peer 3")
    assert not found.guarantee_.private


@pytest.mark.parametrize("consensus", WAYS)
@pytest.mark.parametrize("graph", ["ring", "path", "grid", "star", "complete", "random-regular:4", "random-regular:3"])
def test_every_graph_finds_the_pooled_components(graph: str, consensus: str) -> None:
    found = gossip(graph=graph, consensus=consensus, method="krylov").fit(np.array_split(ROWS, 8))
    assert apart(found, pooled()) < 1e-7
    assert found.disagreement_ < 1e-8


def test_a_graph_can_be_given_in_many_ways(tmp_path: Path) -> None:
    names = ("a", "b", "c", "d")
    peers = dict(zip(names, PEERS, strict=True))
    listed = tmp_path / "edges.txt"
    listed.write_text("# a ring\na b\nb c\nc d\nd a\n")
    ring = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")]
    near = {"a": ["b", "d"], "b": ["a", "c"], "c": ["b", "d"], "d": ["a", "c"]}
    ways: list[Any] = [listed, str(listed), ring, [(0, 1), (1, 2), (2, 3), (3, 0)], near, Graph.of(names, ring), "ring"]
    found = [gossip(graph=way, method="covariance").fit(peers) for way in ways]
    assert all(same_bits(one, found[0]) for one in found)


def test_given_weights_are_used_as_they_are() -> None:
    with pytest.warns(ConvergenceWarning, match="apart"):
        found = gossip(graph=PAPER, method="covariance", center=None, steps=1).fit(PEERS)
    one_step = PAPER @ np.stack([rows.T @ rows for rows in PEERS]).reshape(4, -1) * 4
    first = np.linalg.eigh(one_step[0].reshape(DIM, DIM))[1][:, -3:]
    assert float(sines(found.components_.T, first)[0]) < 1e-8


@pytest.mark.parametrize("kind", KINDS)
def test_every_storage_gives_the_same_answer(kind: str) -> None:
    found = gossip(method="covariance").fit([stored(rows, kind) for rows in PEERS])
    assert apart(found, pooled()) < 1e-7
    if kind in ("pandas", "polars", "pyarrow"):
        assert found.feature_names_in_.tolist() == COLUMNS


def test_a_peer_may_have_one_row_or_none() -> None:
    found = gossip(method="krylov").fit(cut(ROWS, 1, 0, 100))
    assert apart(found, pooled()) < 1e-7
    assert found.scores_["peer 1"].shape == (0, 3)


def test_scores_are_each_peers_own() -> None:
    found = gossip(method="krylov").fit(PEERS)
    for name, rows in zip(found.peers_, PEERS, strict=True):
        assert np.allclose(found.scores_[name], (rows - found.mean_) @ found.components_.T, atol=1e-9)


def test_segments_together_are_the_left_singular_vectors() -> None:
    found = gossip(method="segments", center=None, tolerance=1e-12, rounds=2000).fit(PEERS)
    left = np.linalg.svd(ROWS, full_matrices=False)[0][:, :3]
    together = np.vstack([found.segments_[name] for name in found.peers_])
    assert np.allclose(together.T @ together, np.eye(3), atol=1e-6)
    assert float(sines(together, left)[0]) < 1e-6


def test_fewer_steps_are_said_to_leave_peers_apart() -> None:
    with pytest.warns(ConvergenceWarning, match="steps=2 does not bring their sums together"):
        few = gossip(graph="path", method="covariance", steps=2).fit(np.array_split(ROWS, 8))
    many = gossip(graph="path", method="covariance", steps=300).fit(np.array_split(ROWS, 8))
    assert few.disagreement_ > 0.01 > 1e-6 > many.disagreement_


def test_the_same_seed_is_the_same_fit_to_the_last_bit_also_on_a_bad_network() -> None:
    plain = gossip().fit(PEERS)
    bad = gossip(faults=Faults(loss=0.05, duplicate=0.2, delay=10.0), retries=30).fit(PEERS)
    assert same_bits(plain, bad)
    assert same_bits(plain, gossip().fit(PEERS))


def test_without_a_peer_the_answer_is_that_of_the_others() -> None:
    found = gossip(graph="complete", method="krylov", faults=Faults(dies={"peer 1": 7})).fit(PEERS)
    assert found.peers_ == ("peer 0", "peer 2", "peer 3")
    assert apart(found, pooled(np.vstack([PEERS[0], PEERS[2], PEERS[3]]))) < 1e-7
    assert set(found.scores_) == set(found.peers_)


@pytest.mark.parametrize("consensus", WAYS)
def test_traffic_of_a_peer_does_not_depend_on_how_many_there_are(consensus: Any) -> None:
    def bytes_of(peers: int) -> float:
        steps = None if consensus == "tree" else 12
        rows = np.array_split(pooled_rows(480), peers)
        found = GossipPCA(
            2,
            graph="ring" if consensus != "tree" else "path",
            epsilon=None,
            consensus=consensus,
            steps=steps,
            method="covariance",
            center=None,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            found.fit(rows)
        return float(np.median(list(found.traffic_.values())))

    # Names have a digit more, and nothing else has.
    assert bytes_of(24) / bytes_of(12) < 1.02


@pytest.mark.parametrize("consensus", WAYS)
@pytest.mark.parametrize("method", METHODS)
def test_directions_that_tie_leave_no_peer_behind(method: Any, consensus: Any) -> None:
    """Rounding decides which of four like directions come first; it must decide the same at all peers."""
    balanced = np.eye(4)[np.random.default_rng(0).permutation(np.arange(400) % 4)]
    # Where directions tie, a power iteration never comes to an end by itself.
    rounds = 40 if method == "power" else None
    for seed in range(4):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="the variances of components")
            how: dict[str, Any] = {"method": method, "consensus": consensus, "rounds": rounds, "random_state": seed}
            found = GossipPCA(2, graph="ring", epsilon=None, **how).fit(np.array_split(balanced, 4))
        assert found.peers_ == ("peer 0", "peer 1", "peer 2", "peer 3")
        assert found.disagreement_ < 1e-12
        assert found.explained_variance_.sum() == pytest.approx(200 / 399, rel=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_fewer_directions_than_were_asked_for_are_the_same_at_all_peers(method: Any) -> None:
    rng = np.random.default_rng(1)
    flat = rng.standard_normal((100, 3)) @ rng.standard_normal((3, 8))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the variances of components")
        found = GossipPCA(5, graph="ring", epsilon=None, method=method, random_state=0).fit(np.array_split(flat, 4))
    assert found.disagreement_ < 1e-12
    assert np.allclose(found.explained_variance_[3:], 0, atol=1e-9)
