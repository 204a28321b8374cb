"""A peer that lies: what it says is refused, names it and changes nothing, or all comes to an end with a name."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from eigenveil.errors import PeerError, PeersLost
from eigenveil.protocols.gossip.averaging import _Agreed
from eigenveil.protocols.gossip.peer import Peer
from eigenveil.protocols.gossip.terms import PeerNoise
from eigenveil.protocols.messages import (
    Ask,
    Contribution,
    Decline,
    Done,
    KeepAlive,
    Message,
    PartialSum,
    PeerKey,
    PeersDropped,
    ResendRequest,
)
from eigenveil.protocols.party import Party, Wait
from eigenveil.runtimes.local import Faults, LocalNetwork, LocalPeers
from eigenveil.tasks.base import Question
from protocols.gossip.gossip_circles import CONSENSUS, Circle, circle, identity_of, look, require_refused, run, spoil
from protocols.gossip.test_gossip_faults import require_right

LIAR = "p1"


def deliveries(these: Circle) -> Iterator[tuple[Peer, Message]]:
    """All messages of a run in the order it was sent, each as it is about to be delivered."""
    messages = deque(message for peer in these.peers.values() for message in peer.start())
    while messages:
        message = messages.popleft()
        peer = these.peers[message.receiver]
        yield peer, message
        messages.extend(peer.receive(message))


@pytest.mark.parametrize("consensus", CONSENSUS)
@pytest.mark.parametrize(("noise", "task"), [("none", "study"), ("independent", "power"), ("pairwise", "power")])
def test_bad_message_names_its_sender_and_changes_nothing(noise: PeerNoise, task: str, consensus: str) -> None:
    steps: dict[str, Any] = {} if consensus == "tree" or noise == "pairwise" else {"steps": 6}
    disturbed, plain = (circle("complete", 4, noise=noise, task=task, consensus=consensus, **steps) for _ in range(2))
    places = 0
    for peer, message in deliveries(disturbed):
        if not peer.over:
            places += 1
            held = look(peer)
            for what, bad in spoil(message.body, disturbed.terms):
                early = isinstance(message.body, PartialSum) and (peer._phase != "sum" or message.body.round != peer._round)
                if early and what in ("one number too many", "no numbers", "another step", "another stage"):
                    # What comes before its time is kept, and looked at when its time comes.
                    continue
                if isinstance(message.body, PeerKey) and what == "a question for a round to come":
                    continue
                if what == "another step" and isinstance(peer._sums.get(peer._round), _Agreed):
                    # On a complete graph the step after the only one is the root's copy of the sum, which may overtake.
                    continue
                require_refused(peer, replace(message, body=bad), what, held)
            for stranger in ("nobody", peer.name):
                require_refused(peer, replace(message, sender=stranger), "messages of a stranger", held)
            for body in (Ask(0, Question(0, ())), Contribution(round=0, arrays=()), Decline(0), Done(0, ())):
                require_refused(peer, replace(message, body=body), "messages of another protocol", held)
    assert places > 15
    for _ in deliveries(plain):
        pass
    for name, peer in disturbed.peers.items():
        assert peer.result is not None
        assert look(peer) == look(plain.peers[name])


LIES: dict[str, Callable[[PartialSum], Any]] = {
    "not a number": lambda body: replace(body, values=np.full_like(body.values, np.nan)),
    "infinity": lambda body: replace(body, values=np.full_like(body.values, np.inf)),
    "huge": lambda body: replace(body, values=np.full_like(body.values, 1e300)),
    "shape": lambda body: replace(body, values=body.values[:-1]),
    "precision": lambda body: replace(body, values=body.values.astype(np.float32)),
    "another round": lambda body: replace(body, round=body.round + 3),
    "the round after": lambda body: replace(body, round=body.round + 1),
    "another step": lambda body: replace(body, step=body.step + 500),
    "another stage": lambda body: replace(body, stage="totals 77"),
    "other terms": lambda body: replace(body, terms=bytes(16)),
    "nobody is gone": lambda body: replace(body, without=("nobody",)),
    "a third is gone": lambda body: replace(body, without=("p3",)),
    "silence": lambda body: None,
    "here": lambda body: KeepAlive(body.round),
    "a question": lambda body: Ask(body.round, Question(0, (np.full((5, 3), 2.0),))),
    "an answer": lambda body: Contribution(round=body.round, arrays=(np.full((5, 3), 2.0),)),
    "farewell to all": lambda body: PeersDropped(body.round, ("p0", "p1", "p2", "p3", "p4"), body.terms),
    "farewell of itself": lambda body: PeersDropped(body.round, (LIAR,), body.terms),
    "farewell to nobody": lambda body: PeersDropped(body.round, ("nobody",), body.terms),
    "back to the beginning": lambda body: PeersDropped(0, (), body.terms),
}


@pytest.mark.parametrize("consensus", CONSENSUS)
@pytest.mark.parametrize("often", [1, 3])
@pytest.mark.parametrize("what", LIES)
def test_with_a_liar_the_answer_is_that_of_those_who_count_or_there_is_a_named_error(
    what: str, often: int, consensus: str
) -> None:
    told = 0

    def meddle(message: Message) -> Iterable[Message]:
        nonlocal told
        if message.sender != LIAR or not isinstance(message.body, PartialSum):
            return [message]
        told += 1
        lie = LIES[what](message.body) if told % often == 0 else message.body
        return [] if lie is None else [replace(message, body=lie)]

    for task in ("covariance", "study"):
        ending = run(circle("complete", 5, consensus=consensus, task=task), Faults(meddle=meddle), seed=often)
        require_right(ending, exact=True)
        assert all(refusal.peer == LIAR for refusal in ending.refused if refusal.why.startswith("sent"))
        if what in ("not a number", "infinity", "huge", "other terms") and often == 1 and consensus != "tree":
            # A peer that says only what nobody can use is left behind, and the others go on.
            assert set(ending.done[0].counted) == {"p0", "p2", "p3", "p4"}


class Stubborn(Party):
    """Has said something once, and says it again whenever it is asked, without ever giving up."""

    def __init__(self, inner: Peer, *, ahead: bool) -> None:
        super().__init__(inner.name)
        self._inner, self._said, self._ahead = inner, dict[str, Message](), ahead

    @property
    def waiting(self) -> Wait | None:
        return None

    def start(self) -> list[Message]:
        first = self._inner.start()
        if self._ahead:
            bodies = [message.body for message in first]
            first = [
                replace(message, body=replace(body, step=1))
                for message, body in zip(first, bodies, strict=True)
                if isinstance(body, PartialSum)
            ]
        self._said = {message.receiver: message for message in first}
        return first

    def receive(self, message: Message) -> list[Message]:
        return [self._said[message.sender]] if isinstance(message.body, ResendRequest) and message.sender in self._said else []


@pytest.mark.parametrize("consensus", ["metropolis", "chebyshev"])
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("kind", ["complete", "random-regular:4"])
def test_who_says_the_same_old_numbers_for_ever_is_left_behind(kind: str, ahead: bool, consensus: str) -> None:
    # Regression: numbers of a past step, or of the next one, counted as an answer. That put `_late` back to zero, and the peer
    # asked for ever.
    these = circle(kind, 6, consensus=consensus, steps=30)
    liar = Stubborn(these.peers[LIAR], ahead=ahead)
    parties: dict[str, Party] = {**these.peers, LIAR: liar}
    network = LocalNetwork(parties, faults=Faults(), seed=0, latest_first=False, counted=lambda message: None)
    for name, party in parties.items():
        network.send(name, party.start())
    for party in parties.values():
        network.watch(party)
    honest = [peer for name, peer in these.peers.items() if name != LIAR]
    for _ in range(5000):
        if all(peer.over for peer in honest):
            break
        network.step()
    assert all(peer.over for peer in honest), f"no end, at time {network.now}"
    for peer in honest:
        assert isinstance(peer.error, PeersLost) or LIAR not in peer.counted


def test_here_for_ever_ends_too() -> None:
    class Waits(Stubborn):
        def receive(self, message: Message) -> list[Message]:
            return [Message(LIAR, message.sender, KeepAlive(0))] if isinstance(message.body, ResendRequest) else []

    these = circle("complete", 5, consensus="metropolis", task="study")
    parties: dict[str, Party] = {**these.peers, LIAR: Waits(these.peers[LIAR], ahead=False)}
    network = LocalNetwork(parties, faults=Faults(), seed=0, latest_first=False, counted=lambda message: None)
    for name, party in parties.items():
        network.send(name, party.start() if name != LIAR else [])
    for party in parties.values():
        network.watch(party)
    honest = [peer for name, peer in these.peers.items() if name != LIAR]
    for _ in range(3000):
        network.step()
        if all(peer.over for peer in honest):
            break
    assert [peer.counted for peer in honest] == [("p0", "p2", "p3", "p4")] * 4
    assert all(peer.result is not None for peer in honest)


def test_a_flood_of_early_message_takes_no_more_room_than_two_messages_of_each_neighbour() -> None:
    these = circle("complete", 4, consensus="metropolis", task="study")
    peer = these.peers["p0"]
    peer.start()
    stage, terms = "mean 1", these.terms.digest
    for step in range(2000):
        peer.receive(
            Message("p1", "p0", PartialSum(round=1, step=step, values=np.zeros(4), stage=stage, without=(), terms=terms))
        )
        peer.receive(
            Message("p2", "p0", PartialSum(round=1, step=0, values=np.full(3, float(step)), stage=stage, without=(), terms=terms))
        )
        with pytest.raises(PeerError, match="sent numbers of round"):
            peer.receive(
                Message("p3", "p0", PartialSum(round=2 + step, step=0, values=np.zeros(3), stage=stage, without=(), terms=terms))
            )
    assert {name: len(kept) for name, kept in peer._early.items()} == {"p1": 2, "p2": 1}
    # Numbers of steps to come are not kept at all.
    for step in range(2, 2000):
        with pytest.raises(PeerError):
            peer.receive(
                Message(
                    "p3",
                    "p0",
                    PartialSum(round=0, step=step, values=np.zeros(peer._size()), stage=peer._stages[0], without=(), terms=terms),
                )
            )
    now = peer._sums[0]
    assert isinstance(now, _Agreed)
    assert not any(now._mixed._inbox.values())


def test_nobody_is_made_to_go_back_more_often_than_there_are_rounds() -> None:
    """Each `PeersDropped` with the same peers must name an earlier round than the one before it; so a liar runs out of them."""
    these = circle("complete", 5, consensus="metropolis", noise="independent", task="power", restarts=9)
    peer, terms = these.peers["p0"], these.terms.digest
    peer.start()
    before = len(these.ledgers["p0"].charges)
    for _ in range(50):
        for round_ in (5, 3, 1, 0):
            peer.receive(Message(LIAR, "p0", PeersDropped(round_, ("p4",), terms)))
            peer.timeout() if peer._phase == "settling" else None
    assert len(these.ledgers["p0"].charges) == before + 1


@pytest.mark.parametrize("noise", ["independent", "pairwise"])
def test_the_liar_can_take_away_no_more_than_the_budget(noise: PeerNoise) -> None:
    """Names one peer after the other as gone, to make a peer begin again and again."""
    these = circle("complete", 7, consensus="tree", noise=noise, restarts=1, quorum=2)
    told = iter(("p6", "p5", "p4", "p3", "p2") * 40)

    def meddle(message: Message) -> Iterable[Message]:
        if message.sender != LIAR:
            return [message]
        return [message, replace(message, body=PeersDropped(0, (next(told, "p6"),), these.terms.digest))]

    ending = run(these, Faults(meddle=meddle))
    require_right(ending, exact=False)


@pytest.mark.parametrize("what", ["forged", "of another", "turned bit", "small order", "too short", "other study"])
def test_keys_that_are_not_their_owners_are_refused_and_change_nothing(what: str) -> None:
    these = circle("complete", 4, consensus="tree", noise="pairwise", study=b"one")
    other = circle("complete", 4, consensus="tree", noise="pairwise", study=b"two")
    peer = these.peers["p0"]
    peer.start()
    keys = {name: them._outgoing.keys for name, them in these.peers.items()}
    true, third, elsewhere = keys["p2"], keys["p3"], other.peers["p2"]._outgoing.keys
    assert true is not None
    assert third is not None
    assert elsewhere is not None
    public, signature = {
        "forged": (true.public, bytes(64)),
        "of another": (third.public, third.signature),
        "turned bit": (bytes([true.public[0] ^ 1]) + true.public[1:], true.signature),
        "small order": (bytes(32), true.signature),
        "too short": (true.public[:31], true.signature),
        "other study": (elsewhere.public, elsewhere.signature),
    }[what]
    # Passed on by p1: who passes it on is to blame, as all that p2 signs is good.
    message = Message(
        "p1", "p0", PeerKey(round=0, origin="p2", target="p0", key=public, signature=signature, terms=these.terms.digest)
    )
    require_refused(peer, message, what)
    assert not true.has("p0")
    good = Message(
        "p1",
        "p0",
        PeerKey(round=0, origin="p2", target="p0", key=true.public, signature=true.signature, terms=these.terms.digest),
    )
    peer.receive(good)
    assert peer._outgoing.keys is not None
    assert peer._outgoing.keys.has("p2")
    # Once more changes nothing, and the first one counts.
    before = look(peer)
    peer.receive(good)
    peer.receive(message)
    assert look(peer) == before


def test_a_signed_key_of_small_order_is_refused() -> None:
    these = circle("complete", 4, consensus="tree", noise="pairwise")
    keys = these.peers["p2"]._outgoing.keys
    assert keys is not None
    for small in (bytes(32), (1).to_bytes(32, "little"), (2**255 - 20).to_bytes(32, "little")):
        signature = identity_of("p2").sign(keys._statement("p2", small))
        message = Message(
            "p2", "p0", PeerKey(round=0, origin="p2", target="p0", key=small, signature=signature, terms=these.terms.digest)
        )
        require_refused(these.peers["p0"], message, "a key that everybody agrees with")


@pytest.mark.parametrize("consensus", CONSENSUS)
def test_a_network_that_corrupts_all_keys_of_one_ends_with_a_name(consensus: str) -> None:
    def meddle(message: Message) -> Iterable[Message]:
        body = message.body
        if isinstance(body, PeerKey) and body.origin == LIAR:
            return [replace(message, body=replace(body, signature=bytes(64)))]
        return [message]

    ending = run(circle("complete", 5, consensus=consensus, noise="pairwise", restarts=1), Faults(meddle=meddle))
    require_right(ending, exact=False)
    assert ending.done[0].counted == ("p0", "p2", "p3", "p4")
    assert isinstance(ending.errors[LIAR], PeersLost)


def test_no_number_of_anybody_is_in_what_is_said_about_refused_message() -> None:
    secret = 8675309.125

    def meddle(message: Message) -> Iterable[Message]:
        if message.sender != LIAR or not isinstance(message.body, PartialSum):
            return [message]
        values = np.full(len(message.body.values), secret)
        values[0] = np.nan
        return [replace(message, body=replace(message.body, values=values))]

    ending = run(circle("complete", 5, consensus="metropolis"), Faults(meddle=meddle))
    said = [str(error) for error in ending.errors.values()] + [refusal.why for refusal in ending.refused]
    assert ending.refused
    assert not any("8675309" in words for words in said)
    for error in ending.errors.values():
        assert isinstance(error, PeersLost)


@pytest.mark.parametrize("consensus", ["metropolis", "chebyshev"])
@pytest.mark.parametrize("graph", ["ring", "complete"])
@pytest.mark.parametrize("to_all", [True, False])
def test_a_root_that_passes_on_another_sum_is_left_behind(graph: str, consensus: str, to_all: bool) -> None:
    these = circle(graph, 5, consensus=consensus, quorum=3)
    mixing = these.terms.among(()).mixing
    assert mixing.tree is not None
    root, below = mixing.tree.root, mixing.tree.below[mixing.tree.root]

    def lie(message: Message) -> Iterable[Message]:
        body = message.body
        told = to_all or message.receiver == below[0]
        if message.sender != root or not told or not isinstance(body, PartialSum) or body.step != mixing.steps or body.without:
            return [message]
        return [replace(message, body=replace(body, values=body.values * 1.001 + 0.01))]

    running = LocalPeers(these.peers.values(), faults=Faults(meddle=lie), seed=0)
    done = running.run()
    assert any(refusal.peer == root and "another total" in refusal.why for refusal in running.refused)
    others = tuple(name for name in these.terms.graph.names if name != root)
    assert {peer.counted for peer in done} == {others}
    for peer in done:
        assert np.allclose(peer.result, these.gram(others), rtol=1e-9, atol=1e-9)
