"""Peers in one process: bytes are counted, the same seed is the same run, and what stops has a reason."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from eigenveil.errors import PeersLost
from eigenveil.protocols.messages import Message, PartialSum, PeersDropped
from eigenveil.protocols.wire import size
from eigenveil.runtimes.local import Faults, LocalPeers
from protocols.gossip.gossip_circles import CONSENSUS, Circle, circle, look


def met(these: Circle, faults: Faults | None = None, seed: int = 0) -> LocalPeers:
    running = LocalPeers(these.peers.values(), faults=faults, seed=seed)
    running.run()
    return running


@pytest.mark.parametrize("consensus", CONSENSUS)
@pytest.mark.parametrize("noise", ["none", "pairwise"])
def test_bytes_are_those_of_the_wire_by_peer_and_by_round(noise: Any, consensus: str) -> None:
    messages: list[Message] = []

    def see(message: Message) -> Iterable[Message]:
        messages.append(message)
        return [message]

    task = "study" if noise == "none" else "power"
    running = met(circle("ring", 4, consensus=consensus, noise=noise, task=task), Faults(meddle=see))
    by_peer, by_round = Counter[str](), Counter[int]()
    for message in messages:
        by_peer[message.sender] += size(message)
        by_round[message.body.round] += size(message)
    assert dict(running.sent) == dict(by_peer)
    assert dict(running.by_round) == dict(by_round)
    plain = met(circle("ring", 4, consensus=consensus, noise=noise, task=task))
    assert plain.sent == running.sent


def test_names_that_are_written_longer_are_counted_as_they_are_written() -> None:
    from eigenveil.linalg.graphs import Graph

    sent: Counter[str] = Counter()

    def see(message: Message) -> Iterable[Message]:
        sent[message.sender] += size(message)
        return [message]

    graph = Graph.named("ring", ["zürich", 'a "b"', "東京", "d"])
    assert dict(met(circle(graph, consensus="tree"), Faults(meddle=see)).sent) == dict(sent)


def trace(seed: int) -> Any:
    these = circle("complete", 5, consensus="metropolis", noise="pairwise", task="power", restarts=4)
    faults = Faults(loss=0.1, duplicate=0.3, delay=20.0, dies={"p2": 20})
    running = met(these, faults, seed)
    return {name: look(peer) for name, peer in these.peers.items()}, running.refused, dict(running.sent)


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    assert trace(1) == trace(1)
    assert trace(1)[2] != trace(2)[2]


def test_what_the_first_that_stopped_says_is_raised_when_nobody_has_a_result() -> None:
    these = circle("star", 4, consensus="tree")
    running = LocalPeers(these.peers.values(), faults=Faults(dies={"p0": 0}), seed=0)
    with pytest.raises(PeersLost, match="without p0") as raised:
        running.run()
    assert raised.value is next(iter(running.errors.values()))
    assert set(running.errors) == {"p1", "p2", "p3"}


def test_who_died_with_a_result_is_not_among_those_who_are_done() -> None:
    these = circle("complete", 4, consensus="metropolis")
    # The third message is the last one that p1 needs.
    running = LocalPeers(these.peers.values(), faults=Faults(dies={"p1": 3}), seed=0)
    assert "p1" not in [peer.name for peer in running.run()]


def test_a_forged_sender_gets_no_further_than_the_network() -> None:
    def forge(message: Message) -> Iterable[Message]:
        return (
            [message, replace(message, sender="p3")]
            if message.sender == "p1" and isinstance(message.body, PartialSum)
            else [message]
        )

    these = circle("complete", 4, consensus="metropolis")
    running = met(these, Faults(meddle=forge))
    assert {(refusal.by, refusal.peer) for refusal in running.refused} == {("network", "p1")}
    assert all(peer.result is not None for peer in these.peers.values())


def test_a_peer_with_a_result_goes_on_when_others_must_begin_again() -> None:
    """p1 hears everything and is soon done; p3 dies before it has said anything to p2."""

    def cut(message: Message) -> Iterable[Message]:
        return [] if message.sender == "p3" and message.receiver in ("p2", "p0") else [message]

    these = circle("complete", 4, consensus="metropolis", steps=1)
    running = LocalPeers(these.peers.values(), faults=Faults(meddle=cut, dies={"p3": 1}), seed=0)
    done = running.run()
    assert [peer.name for peer in done] == ["p0", "p1", "p2"]
    assert {peer.counted for peer in done} == {("p0", "p1", "p2")}
    assert len(these.peers["p1"].rounds) == 2


def test_a_farewell_on_the_way_after_the_end_reopens_nothing_that_hangs() -> None:
    these = circle("complete", 4, consensus="metropolis")
    done = met(these).peers["p0"]
    assert done.receive(Message("p1", "p0", PeersDropped(0, (), these.terms.digest))) == []
    assert done.result is not None
