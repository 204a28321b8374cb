"""Rounds that are begun again: at a price, with new noise, from one and the same question at all peers, and to an end."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil.core.domain import Domain
from eigenveil.core.mechanism import Exact
from eigenveil.core.noise import Noise
from eigenveil.data.rows import DenseRows
from eigenveil.errors import BudgetExceeded, PeerError, PeersLost
from eigenveil.estimators.gossip.pca import GossipPCA
from eigenveil.linalg import Array, Subspace, orthonormal, sines
from eigenveil.linalg.graphs import Graph
from eigenveil.methods.krylov import KrylovSum
from eigenveil.privacy.paired import PairedSteps
from eigenveil.protocols.gossip.averaging import PairKeys, Plain
from eigenveil.protocols.gossip.peer import Peer
from eigenveil.protocols.gossip.terms import GossipTerms, PeerNoise
from eigenveil.protocols.messages import Message, PartialSum, PeersDropped, ResendRequest
from eigenveil.runtimes.local import Faults, LocalPeers
from protocols.gossip.gossip_circles import BUDGET, Circle, circle, names_of, run
from protocols.star.companies import DIM, NEAR, table

Key = tuple[frozenset[str], int]


@dataclass
class Seen:
    """For each peer and round the part that it let out last and what it was asked then, and where an old part was used again
    for another question."""

    made: dict[tuple[str, Key], tuple[Array, list[Array]]] = field(default_factory=dict)
    stale: list[tuple[str, Key]] = field(default_factory=list)


@contextmanager
def watched() -> Iterator[Seen]:
    """See every question that a part was made for, and every round that it was used in."""
    seen, before = Seen(), Peer._part

    def part(peer: Peer, summed: Any, asked: Any, fraction: float) -> Array:
        key = (peer.name, (peer._gone, peer._round))
        sent = before(peer, summed, asked, fraction)
        known, question = seen.made.get(key, (None, []))
        if known is not sent:
            seen.made[key] = sent, list(asked.arrays)
        elif any(not np.array_equal(one, two) for one, two in zip(question, asked.arrays, strict=True)):
            seen.stale.append(key)
        return sent

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Peer, "_part", part)
        yield seen


def require_one_question(seen: Seen, done: list[Peer]) -> None:
    """No part was used for another question, and every peer that is done was asked the same in the last round."""
    assert not seen.stale, f"parts made for another question were added up: {seen.stale}"
    asked = [seen.made[(peer.name, (peer._gone, peer._round - 1))][1] for peer in done]
    for other in asked:
        for one, two in zip(asked[0], other, strict=True):
            assert np.abs(one - two).max(initial=0) < 1e-6


@pytest.mark.parametrize("noise", ["independent", "pairwise"])
@pytest.mark.parametrize("consensus", ["metropolis", "chebyshev", "tree"])
def test_all_parts_of_a_round_are_for_the_same_question(noise: PeerNoise, consensus: str) -> None:
    # Regression: a peer that began round t among G, and is then told to go back to t - 1 among the same G, keeps its part
    # of round t. When it gets there again its question is another one, those who had no part yet use that, and the sum is
    # of neither.
    complete = Graph.named("complete", names_of(5))
    for seed in (8, 21):
        for kind in ("complete", "ring"):
            pairs: dict[str, Any] = {"noise_graph": complete} if noise == "pairwise" else {}
            these = circle(kind, task="power", noise=noise, consensus=consensus, restarts=40, quorum=3, **pairs)
            faults = Faults(dies={"p2": 3 + 2 * seed}, delay=45.0, loss=0.2)
            with watched() as seen:
                ending = run(these, faults, seed=seed, most=60_000)
            require_one_question(seen, ending.done)


def test_a_peer_that_goes_back_lets_out_no_part_for_a_question_that_it_no_longer_has() -> None:
    """The same by hand: p0 begins round 1 among the others, hears that one of them is still in round 0, and both end round 0."""
    # Regression: the smallest case of the above.
    these = circle("complete", 4, task="power", noise="independent", consensus="metropolis", restarts=9, quorum=2)
    peers, gone = these.peers, ("p3",)
    for peer in peers.values():
        peer.start()
    size, terms = 15, these.terms.digest
    p0 = peers["p0"]

    def give(round_: int, without: tuple[str, ...], scale: float) -> None:
        for other in these.terms.graph.neighbours("p0"):
            if other not in without:
                values = np.random.default_rng(len(other) + int(other[1])).standard_normal(size) * scale
                p0.receive(
                    Message(
                        other,
                        "p0",
                        PartialSum(round=round_, step=0, values=values, stage=str(round_), without=without, terms=terms),
                    )
                )

    with watched() as seen:
        give(0, (), 100.0)
        assert p0._round == 1
        p0.receive(Message("p1", "p0", PeersDropped(1, gone, terms)))
        p0.timeout()
        p0.receive(Message("p2", "p0", PeersDropped(0, gone, terms)))
        p0.timeout()
        give(0, gone, 1000.0)
        assert p0._round == 1
    assert not seen.stale


@pytest.mark.parametrize(
    ("seed", "kind", "dies", "faults"),
    [
        (12, "ring", 27, {"delay": 70.0, "loss": 0.05}),
        (21, "ring", 45, {"delay": 45.0, "loss": 0.2}),
        (12, "complete", 27, {"delay": 10.0, "loss": 0.3}),
    ],
)
def test_who_has_a_result_begins_no_round_after_the_last(seed: int, kind: str, dies: int, faults: dict[str, Any]) -> None:
    # Regression: a peer with a result that was told to stop sent a `PeersDropped` of the round after the last. Another with a
    # result then began that round, which does not exist: "the question is for step 3, and the task has steps 0 to 2".
    these = circle(kind, task="power", noise="independent", consensus="tree", restarts=40, quorum=3)
    ending = run(these, Faults(dies={"p2": dies}, **faults), seed=seed, most=60_000)
    for error in ending.errors.values():
        assert isinstance(error, PeersLost | BudgetExceeded), repr(error)


def test_the_smallest_case_of_a_round_after_the_last() -> None:
    # Regression: as above. p1, which has its result, stops and says so; p0, which has one too, need not begin anything.
    these = circle("complete", 4, task="power", noise="independent", consensus="tree", restarts=3)
    ending = run(these)
    p0 = ending.done[0]
    p0.receive(Message("p1", "p0", PeersDropped(p0._round, ("p1",), these.terms.digest)))
    p0.timeout()
    assert p0.error is None or isinstance(p0.error, PeersLost | BudgetExceeded)


def test_krylov_without_a_study_starts_anew_from_one_start_at_all_peers() -> None:
    """`KrylovSum.without` makes its new start from the state, and peers that are a round apart have different ones."""
    names = names_of(5)
    rng = np.random.default_rng(0)
    rows = {name: table(rng, 9) for name in names}
    begin = orthonormal(np.random.default_rng(1).standard_normal((DIM, 2)))
    for after in range(4, 14):
        terms = GossipTerms(graph=Graph.named("ring", names), consensus="tree", quorum=3)
        out = Plain(Exact(because="a law is checked"))
        peers = [
            Peer(
                name,
                terms=terms,
                task=KrylovSum(
                    domain=Domain(dim=DIM, radius=math.inf), neighbours=NEAR, begin=begin, rounds=40, rank=2, tolerance=1e-9
                ),
                rows=DenseRows(rows[name]),
                outgoing=out,
            )
            for name in names
        ]
        done = LocalPeers(peers, faults=Faults(dies={"p3": after}), seed=after).run()
        counted = np.concatenate([rows[name] for name in done[0].counted])
        exact = Subspace.of(counted, rank=2)
        for peer in done:
            assert sines(peer.result.basis, exact.basis)[0] < 1e-6, (after, peer.name)


def test_a_round_that_is_begun_again_costs_again_and_ledgers_show_it() -> None:
    for noise in ("independent", "pairwise"):
        for task in ("covariance", "power"):
            these = circle("complete", 5, task=task, noise=noise, consensus="metropolis", restarts=2)
            ending = run(these, Faults(meddle=mute))
            assert [peer.name for peer in ending.done] == ["p0", "p1", "p2", "p3"]
            for peer in ending.done:
                charges = these.ledgers[peer.name].charges
                labels = [charge.label for charge in charges]
                assert len(labels) > len(set(labels))
                assert any(round_.restarted for round_ in peer.rounds)
                assert sum(charge.mu**2 for charge in charges) <= BUDGET.mu**2


def mute(message: Message) -> list[Message]:
    """p4 gives its key, and no numbers."""
    return [] if message.sender == "p4" and isinstance(message.body, PartialSum) else [message]


@pytest.mark.parametrize("noise", ["independent", "pairwise"])
def test_without_a_reserve_the_error_says_what_to_do(noise: PeerNoise) -> None:
    ending = run(circle("complete", 5, noise=noise, consensus="metropolis"), Faults(dies={"p4": 5}, meddle=mute))
    assert isinstance(ending.raised, PeersLost)
    assert any("Use restarts to keep some for that" in str(error) for error in ending.errors.values())


def agreed_keys(**terms: Any) -> tuple[PairKeys, PairKeys]:
    """The keys of two peers that have got each other's."""
    these = circle("complete", 4, noise="pairwise", consensus="metropolis", **terms)
    one, two = (these.peers[name]._outgoing.keys for name in ("p0", "p1"))
    assert one is not None and two is not None
    one.take("p1", two.public, two.signature, passed_on_by="p1")
    two.take("p0", one.public, one.signature, passed_on_by="p0")
    return one, two


def test_pair_noise_is_bound_to_the_study_the_round_the_release_and_who_is_counted() -> None:
    """Both ends draw the same for the same, and something else if anything differs."""
    steps = PairedSteps(shape=(3, 3), symmetric=False, step=0.5, own=8.0, between=64.0)
    same: dict[str, Any] = {"gone": frozenset(), "base": 0, "round_": 2, "label": "covariance", "steps": steps}
    others: list[dict[str, Any]] = [
        {"gone": frozenset({"p3"})},
        {"base": 1},
        {"round_": 3},
        {"label": "mean"},
        {"steps": replace(steps, shape=(9,))},
        {"steps": replace(steps, symmetric=True)},
        {"steps": replace(steps, step=0.25)},
        {"steps": replace(steps, own=9.0)},
        {"steps": replace(steps, between=65.0)},
    ]
    one, two = agreed_keys()
    drawn = [one.stream("p1", **(same | other)).words(4).tolist() for other in ({}, *others)]
    assert drawn == [two.stream("p0", **(same | other)).words(4).tolist() for other in ({}, *others)]
    # Another study, though the two have the same secrets.
    drawn.append(agreed_keys(quorum=2)[0].stream("p1", **same).words(4).tolist())
    assert len({tuple(numbers) for numbers in drawn}) == len(others) + 2


@dataclass
class Streams:
    """How often a peer drew each pair noise: by whose it is, with whom, and all that it is bound to."""

    asked: defaultdict[tuple[str, str, Any], int] = field(default_factory=lambda: defaultdict(int))


@contextmanager
def counted_streams() -> Iterator[Streams]:
    streams, before = Streams(), PairKeys.stream

    def stream(keys: PairKeys, other: str, **which: Any) -> Noise:
        streams.asked[(keys._name, other, tuple(sorted(which.items())))] += 1
        return before(keys, other, **which)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PairKeys, "stream", stream)
        yield streams


def attacks(these: Circle) -> dict[str, Callable[[int, tuple[str, ...]], Any]]:
    terms = these.terms.digest
    return {
        "leave": lambda round_, names: PeersDropped(round_, names, terms),
        "again": lambda round_, names: ResendRequest(round=round_, step=0, without=names, terms=terms),
        "pass": lambda round_, names: PartialSum(
            round=round_, step=0, values=np.full(15, 0.5), stage=str(round_), without=names, terms=terms
        ),
        "step": lambda round_, names: PartialSum(
            round=round_, step=1, values=np.full(15, 0.25), stage=str(round_), without=names, terms=terms
        ),
    }


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["leave", "again", "pass", "step", "wait", "sum"]),
            st.sampled_from(["p1", "p2", "p3"]),
            st.integers(0, 3),
            st.sampled_from([(), ("p4",), ("p3",), ("p3", "p4"), ("p1",), ("p1", "p4"), ("p2", "p4")]),
        ),
        max_size=40,
    )
)
def test_no_message_makes_a_peer_use_the_same_pair_noise_for_two_parts(
    messages: list[tuple[str, str, int, tuple[str, ...]]],
) -> None:
    with counted_streams() as streams:
        these = circle("complete", 5, task="power", noise="pairwise", consensus="metropolis", restarts=30, quorum=2)
        keys = {name: peer._outgoing.keys for name, peer in these.peers.items()}
        p0 = these.peers["p0"]
        p0.start()
        for name in ("p1", "p2", "p3", "p4"):
            theirs = keys[name]
            assert theirs is not None
            mine = p0._outgoing.keys
            assert mine is not None
            mine.take(name, theirs.public, theirs.signature, passed_on_by=name)
        p0._begin()
        sent: set[bytes] = set()
        for what, sender, round_, names in messages:
            bodies: list[tuple[str, Any]] = []
            if what == "sum":
                # All that is missing in this round, so that it gets on.
                bodies = [(other, attacks(these)["pass"](p0._round, p0._without)) for other in p0.counted if other != "p0"]
            elif what != "wait":
                bodies = [(sender, attacks(these)[what](round_, names))]
            answers = p0.timeout() if what == "wait" and not p0.over else []
            for other, body in bodies:
                try:
                    answers = [*answers, *p0.receive(Message(other, "p0", body))]
                except PeerError:
                    continue
            for answer in answers:
                if isinstance(answer.body, PartialSum) and answer.body.step == 0:
                    sent.add(answer.body.values.tobytes())
    assert all(times == 1 for times in streams.asked.values())
    charges = these.ledgers["p0"].charges
    assert len(sent) <= len(charges)
    assert len(charges) == len({key for name, _, key in streams.asked if name == "p0"})
    assert sum(charge.mu**2 for charge in charges) <= BUDGET.mu**2 * (1 + 1e-9)


def test_a_second_part_for_the_same_peers_and_round_is_refused_by_what_makes_it() -> None:
    from eigenveil.core.mechanism import Bounded
    from eigenveil.errors import ProtocolError

    these = circle("complete", 4, noise="pairwise", consensus="tree", restarts=5)
    ending = run(these)
    outgoing = ending.done[0]._outgoing
    before = len(these.ledgers["p0"].charges)
    with pytest.raises(ProtocolError, match="a second part was asked for in round 0"):
        outgoing.part(Bounded(np.zeros(15), 1.0), label="again", share=0.1, round_=0)
    assert len(these.ledgers["p0"].charges) == before


def test_two_groups_that_end_apart_are_told_apart() -> None:
    """The link from the root to a majority fails while the last sum goes down the tree: nobody can rule that out."""
    names = ("r", "l", "a1", "a2", "x1", "x2", "x3")
    edges = [("r", "l"), ("r", "a1"), ("a1", "a2"), ("l", "x1"), ("l", "x2"), ("l", "x3")]
    rng = np.random.default_rng(0)
    rows = {name: rng.standard_normal((20, 4)) * [4, 2, 1, 1] for name in names}
    cut: list[bool] = []

    def fails(message: Message) -> list[Message]:
        body, between = message.body, (message.sender, message.receiver)
        if isinstance(body, PartialSum) and body.stage.startswith("totals") and body.step == 1 and between == ("r", "l"):
            cut.append(True)
        return [] if cut and {message.sender, message.receiver} == {"r", "l"} else [message]

    pca: Any = GossipPCA(
        2, graph=edges, epsilon=1.0, delta=1e-5, row_bound=9.0, noise="independent", consensus="tree", restarts=1
    )
    pca.set_params(faults=Faults(meddle=fails))
    with pytest.warns(UserWarning, match="r, a1, a2 ended with another result"):
        pca.fit(rows)
    assert pca.peers_ == ("l", "x1", "x2", "x3")
    assert "4 of 7 peers, without r, a1, a2" in pca.guarantee_.to_text()
