"""Peers that vanish, at every point: those who are left come to the exact answer over whom they counted, or stop and say why.

Nothing hangs: every run here ends within a bounded number of steps of the post.
"""

from typing import Any

import numpy as np
import pytest

from eigenveil import GossipPCA
from eigenveil.errors import BudgetExceeded, PeersLost
from eigenveil.linalg.graphs import Graph
from eigenveil.protocols.gossip.terms import PeerNoise
from eigenveil.protocols.messages import Message
from eigenveil.runtimes.local import Faults
from protocols.gossip.gossip_circles import BUDGET, CONSENSUS, Circle, Ending, circle, names_of, run
from protocols.star.companies import table

NAMED = (PeersLost, BudgetExceeded)
MIXED = ("metropolis", "chebyshev")


def require_right(ending: Ending, *, exact: bool) -> None:
    """A peer that is done counted the same peers, itself among them, and has their sum; one that stopped has a named reason."""
    these = ending.circle
    for error in (*ending.errors.values(), *filter(None, [ending.raised])):
        assert isinstance(error, NAMED), repr(error)
    assert {name for name, peer in these.peers.items() if peer.over and peer.error is not None} >= set(ending.errors)
    for ledger in these.ledgers.values():
        assert sum(charge.mu**2 for charge in ledger.charges) <= BUDGET.mu**2 * (1 + 1e-9)
    if not ending.done:
        assert ending.raised is not None
        return
    counted = ending.done[0].counted
    assert len(counted) >= these.terms.quorum
    first = ending.done[0].result
    for peer in ending.done:
        assert peer.counted == counted
        assert peer.name in counted
        if not exact:
            np.testing.assert_allclose(peer.result, first, rtol=1e-6, atol=1e-6 * np.abs(first).max())
        elif isinstance(peer.result, np.ndarray):
            exact_sum = these.gram(counted)
            np.testing.assert_allclose(peer.result, exact_sum, rtol=0, atol=1e-11 * np.abs(exact_sum).max())
        else:
            rows = np.concatenate([these.rows[name] for name in counted])
            np.testing.assert_allclose(peer.result.center, rows.mean(axis=0), rtol=0, atol=1e-11)
            centered = rows - rows.mean(axis=0)
            assert peer.result.trace == pytest.approx(float((centered**2).sum()), rel=1e-9)


def until(ending: Ending, name: str) -> int:
    """How many messages a peer gets in a whole run."""
    return max(1, ending.steps // len(ending.circle.peers) + 3)


@pytest.mark.parametrize(
    ("kind", "consensus", "task"),
    [
        *[(kind, "tree", task) for kind in ("ring", "complete", "star", "path") for task in ("covariance", "study")],
        *[("complete", consensus, task) for consensus in MIXED for task in ("covariance", "study")],
        *[("ring", consensus, "covariance") for consensus in MIXED],
        ("star", "chebyshev", "covariance"),
        ("path", "chebyshev", "covariance"),
    ],
)
def test_a_peer_that_vanishes_at_any_message_leaves_the_exact_answer_of_those_who_count(
    kind: str, consensus: str, task: str
) -> None:
    def new() -> Circle:
        return circle(kind, 5, consensus=consensus, task=task)

    whole = run(new())
    require_right(whole, exact=True)
    last = until(whole, "p0")
    points = range(last) if last <= 24 else sorted({*range(6), last // 3, last // 2, *range(last - 8, last)})
    ends = set()
    for dead in ("p0", "p1", "p4"):
        for after in points:
            ending = run(new(), Faults(dies={dead: after}), seed=after)
            require_right(ending, exact=True)
            ends.add(len(ending.done[0].counted) if ending.done else 0)
            if kind in ("ring", "complete"):
                assert len(ending.done) >= 4
    # The center of a star takes too many with it.
    assert (0 in ends) == (kind == "star")
    assert ends >= {4}


@pytest.mark.parametrize("consensus", CONSENSUS)
@pytest.mark.parametrize("noise", ["independent", "pairwise"])
@pytest.mark.parametrize("restarts", [0, 4])
def test_with_noise_a_peer_that_vanishes_costs_another_charge_or_an_error_with_a_name(
    noise: PeerNoise, consensus: str, restarts: int
) -> None:
    def new() -> Circle:
        return circle("complete", 5, consensus=consensus, task="covariance", noise=noise, restarts=restarts)

    last = until(run(new()), "p0")
    ends = []
    for dead in ("p0", "p3"):
        for after in range(last):
            ending = run(new(), Faults(dies={dead: after}, delay=3.0), seed=after)
            require_right(ending, exact=False)
            ends.append(bool(ending.done))
            for peer in ending.done:
                lines = ending.circle.ledgers[peer.name].charges
                # Those who counted and were begun again have paid twice.
                assert len(lines) <= 1 + restarts
                assert peer.rounds[-1].restarted == (len(peer.counted) < 5)
    assert all(ends) if restarts else not all(ends)


@pytest.mark.parametrize("consensus", CONSENSUS)
@pytest.mark.parametrize("noise", ["none", "independent", "pairwise"])
def test_two_that_vanish_one_after_the_other(noise: PeerNoise, consensus: str) -> None:
    for first, second in ((0, 0), (2, 9), (9, 11), (5, 30), (13, 40)):
        for delay in (0.0, 20.0):
            these = circle("complete", 6, consensus=consensus, noise=noise, restarts=0 if noise == "none" else 6)
            ending = run(these, Faults(dies={"p1": first, "p4": second}, delay=delay), seed=first)
            require_right(ending, exact=noise == "none")
            assert ending.done
            assert len(ending.done[0].counted) in (4, 5, 6)


@pytest.mark.parametrize("consensus", CONSENSUS)
def test_when_the_graph_falls_apart_the_larger_side_goes_on_and_the_other_says_why(consensus: str) -> None:
    names = names_of(7)
    # A triangle of p0, p1, p2 and a square of p3, p4, p5, p6, held together by p2.
    edges = [(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (4, 5), (5, 6), (3, 6)]
    graph = Graph.of(names, [(names[a], names[b]) for a, b in edges])
    for after in (0, 1) if consensus == "tree" else (0, 1, 4, 9):
        ending = run(circle(graph, consensus=consensus), Faults(dies={"p2": after}), seed=after)
        require_right(ending, exact=True)
        assert [peer.name for peer in ending.done] == ["p3", "p4", "p5", "p6"]
        for name in ("p0", "p1"):
            error = ending.errors[name]
            assert isinstance(error, PeersLost)
            assert set(error.missing) == {"p2", "p3", "p4", "p5", "p6"}
            assert "2 peers" in str(error)
            assert "4 are needed" in str(error)


@pytest.mark.parametrize("consensus", CONSENSUS)
@pytest.mark.parametrize("noise", ["none", "independent"])
def test_without_the_center_of_a_star_everybody_stops_and_names_it(noise: PeerNoise, consensus: str) -> None:
    for after in (0, 2, 3):
        ending = run(circle("star", 5, consensus=consensus, noise=noise, restarts=1), Faults(dies={"p0": after}))
        assert not ending.done
        assert isinstance(ending.raised, PeersLost)
        assert set(ending.errors) == {"p1", "p2", "p3", "p4"}
        assert all("p0" in error.missing for error in ending.errors.values() if isinstance(error, PeersLost))


def test_without_the_root_of_a_tree_another_is_found() -> None:
    these = circle("grid", 9, consensus="tree")
    root = these.terms.graph.spanning_tree().root
    for after in range(4):
        ending = run(circle("grid", 9, consensus="tree"), Faults(dies={root: after}), seed=after)
        require_right(ending, exact=True)
        assert len(ending.done) == 8


@pytest.mark.parametrize(("consensus", "dead"), [("tree", "p0"), ("tree", "p2"), ("chebyshev", "p0")])
def test_a_peer_that_vanishes_while_keys_are_passed_on_is_left_behind(dead: str, consensus: str) -> None:
    """Noise between all pairs, on a ring: keys go through those between, and some of those die."""
    complete = Graph.named("complete", names_of(6))
    for after in (*range(12), 20) if consensus == "tree" else (0, 1, 7):
        for delay in (0.0, 25.0):
            these = circle("ring", 6, consensus=consensus, noise="pairwise", noise_graph=complete, restarts=3)
            ending = run(these, Faults(dies={dead: after}, delay=delay), seed=after)
            require_right(ending, exact=False)
            # Before it has said anything, or after all keys were there, nobody else is taken for it.
            assert ending.done or 0 < after < 12


def test_who_passes_on_no_more_keys_is_left_behind_and_not_those_whose_keys_it_had() -> None:
    """p0 gives its own key and dies: on a ring of six p1 and p5 then hear nothing of each other."""
    # Regression: p1 and p5, both alive and with another way between them, give up each other and never p0, whose key they have.
    complete = Graph.named("complete", names_of(6))
    these = circle("ring", 6, consensus="tree", noise="pairwise", noise_graph=complete, restarts=3)
    ending = run(these, Faults(dies={"p0": 1}))
    require_right(ending, exact=False)
    assert [peer.name for peer in ending.done] == ["p1", "p2", "p3", "p4", "p5"]


def test_a_slow_peer_that_was_given_up_is_told_so_and_stops_with_a_named_error() -> None:
    for consensus in CONSENSUS:
        silent = {"left": 60}

        def slow(message: Message, silent: dict[str, int] = silent) -> list[Message]:
            # What p3 says gets lost for long, and it hears all the others say.
            if message.sender == "p3" and silent["left"] > 0:
                silent["left"] -= 1
                return []
            return [message]

        ending = run(circle("complete", 5, consensus=consensus), Faults(meddle=slow))
        require_right(ending, exact=True)
        assert [peer.name for peer in ending.done] == ["p0", "p1", "p2", "p4"]
        assert isinstance(ending.errors["p3"], PeersLost)


@pytest.mark.parametrize("consensus", CONSENSUS)
@pytest.mark.parametrize("kind", ["ring", "complete"])
@pytest.mark.parametrize("delay", [0.0, 7.0])
def test_a_broken_link_between_two_that_are_alive_ends_too(kind: str, consensus: str, delay: float) -> None:
    def cut(message: Message) -> list[Message]:
        return [] if {message.sender, message.receiver} == {"p1", "p2"} else [message]

    ending = run(circle(kind, 6, consensus=consensus), Faults(meddle=cut, delay=delay))
    require_right(ending, exact=True)
    assert len(ending.done) >= 4


@pytest.mark.parametrize("consensus", CONSENSUS)
def test_two_peers_of_whom_one_may_go_on_alone(consensus: str) -> None:
    # Regression: mixing with nobody never ends; with a tree it does.
    ending = run(circle("path", 2, consensus=consensus, quorum=1), Faults(dies={"p1": 0}), most=2000)
    require_right(ending, exact=True)
    assert [peer.name for peer in ending.done] == ["p0"]


@pytest.mark.parametrize("consensus", CONSENSUS)
@pytest.mark.parametrize("noise", ["independent", "pairwise"])
@pytest.mark.parametrize("faults", [None, Faults()])
def test_who_has_no_budget_left_is_left_behind_on_a_network_without_faults_too(
    noise: PeerNoise, consensus: str, faults: Faults | None
) -> None:
    # Without faults, every party that waits must get its timer. If only the first by name got one, it would give up on the others
    # one by one.
    poor = {"p4": type(BUDGET)(0.8, 1e-6)}
    these = circle("complete", 5, consensus=consensus, noise=noise, task="power", restarts=3, mine=poor)
    ending = run(these, faults)
    assert isinstance(ending.errors["p4"], BudgetExceeded)
    assert [peer.name for peer in ending.done] == ["p0", "p1", "p2", "p3"]


@pytest.mark.parametrize("seed", range(12))
def test_random_networks_with_loss_lateness_and_the_dead(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(4):
        count = int(rng.integers(4, 8))
        noise: PeerNoise = ("none", "none", "independent", "pairwise")[rng.integers(4)]
        kind = ("ring", "complete", "random-regular:4" if count > 4 else "ring")[rng.integers(3)]
        pairs = Graph.named("complete", names_of(count))
        complete: dict[str, Any] = {"noise_graph": pairs} if noise == "pairwise" else {}
        consensus, task = str(rng.choice(CONSENSUS)), "study" if noise == "none" else "covariance"
        these = circle(kind, count, consensus=consensus, task=task, noise=noise, restarts=0 if noise == "none" else 5, **complete)
        dead = {f"p{place}": int(rng.integers(0, 40)) for place in rng.choice(count, int(rng.integers(0, 3)), replace=False)}
        loss, delay = float(rng.uniform(0, 0.15)), float((0.0, 8.0, 25.0)[rng.integers(3)])
        faults = Faults(loss=loss, duplicate=0.2, delay=delay, dies=dead)
        require_right(run(these, faults, seed=seed, most=60_000), exact=noise == "none")


@pytest.mark.parametrize("method", ["power", "krylov", "covariance", "segments"])
def test_the_estimator_says_who_was_counted_and_has_their_exact_answer(method: Any) -> None:
    rng = np.random.default_rng(0)
    rows = {f"peer {place}": table(rng, 12) for place in range(5)}
    for after in (0, 2, 3, 9):
        faults = Faults(dies={"peer 2": after})
        pca = GossipPCA(2, graph="ring", epsilon=None, method=method, consensus="tree", random_state=1, faults=faults).fit(rows)
        counted = np.concatenate([rows[name] for name in pca.peers_])
        assert after > 0 or "peer 2" not in pca.peers_
        np.testing.assert_allclose(pca.mean_, counted.mean(axis=0), atol=1e-12)
        values = np.linalg.svd(counted - counted.mean(axis=0), compute_uv=False)[:2]
        np.testing.assert_allclose(pca.singular_values_, values, rtol=1e-5)


def test_the_guarantee_names_who_was_counted() -> None:
    rng = np.random.default_rng(0)
    rows = {f"peer {place}": table(rng, 12) for place in range(5)}
    plan: dict[str, Any] = {"graph": "complete", "epsilon": 3.0, "delta": 1e-6, "row_bound": 20.0, "random_state": 0}
    whole = GossipPCA(2, **plan).fit(rows)
    assert any("all 5 peers were counted in every round" in line for line in whole.guarantee_.assumptions)
    plan |= {"restarts": 2, "faults": Faults(dies={"peer 3": 9})}
    fewer = GossipPCA(2, **plan).fit(rows)
    assert fewer.peers_ == ("peer 0", "peer 1", "peer 2", "peer 4")
    assert any("4 of 5 peers, without peer 3" in line for line in fewer.guarantee_.assumptions)
    assert any(done.restarted for done in fewer.transcript_)
    labels = [charge.label for charge in fewer.ledgers_["peer 0"].charges]
    assert len(labels) > len(set(labels))
    assert all(ledger.epsilon() <= 3.0 * (1 + 1e-9) for ledger in fewer.ledgers_.values())
