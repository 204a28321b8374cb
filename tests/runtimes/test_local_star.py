"""The runtime in one process: faults are what they say, the same seed is the same run, and nothing hangs."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from each import each
from eigenveil.errors import ProtocolError, QuorumLost
from eigenveil.protocols.messages import Ask, Contribution, Decline, Done, Message
from eigenveil.protocols.star.rounds import Terms
from eigenveil.protocols.wire import size
from eigenveil.runtimes.local import Faults, LocalStar
from protocols.star.companies import PLACES, TASKS, Company, bits, company, finish, layouts, tables

EVERYWHERE = pytest.mark.parametrize(("kind", "place"), PLACES)


def them(kind: str = "krylov", place: str = "star", **terms: Any) -> Company:
    return company(TASKS[kind](), layouts(5)[place], tables(5), terms=Terms(**terms))


def runtime(these: Company, faults: Faults | None = None, seed: int = 0) -> LocalStar:
    return LocalStar(these.hub, [*these.nodes.values(), *these.members.values()], faults=faults, seed=seed)


@EVERYWHERE
@each("faults", [None, Faults(), Faults(duplicate=0.5, delay=8.0), Faults(loss=0.05, delay=2.0)])
def test_whatever_the_network_does_all_who_answer_in_the_end_are_in_the_same_result(
    kind: str, place: str, faults: Faults | None
) -> None:
    these = them(kind, place, retries=30)
    running = runtime(these, faults)
    running.run()
    assert bits(these.hub.result) == bits(finish(them(kind, place)))
    assert these.hub.sites == tuple(these.members)
    if faults in (None, Faults()):
        assert running.refused == []
        assert all(member.result is not None for member in these.members.values())


def trace(seed: int, faults: Faults) -> tuple[Any, ...]:
    these = them("power", "tree of 2", quorum=1)
    running = runtime(these, faults, seed)
    try:
        running.run()
    except QuorumLost as lost:
        return (str(lost), running.refused)
    return (bits(these.hub.result), bits(these.hub.rounds), running.refused, running.traffic)


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    faults = Faults(loss=0.2, duplicate=0.3, delay=20.0, dies={"site 2": 2})
    assert trace(1, faults) == trace(1, faults)
    assert trace(1, faults) != trace(2, faults)


def test_bytes_are_those_of_the_wire_and_each_way_is_counted_apart() -> None:
    for place in ("star", "tree of 2"):
        sent: list[Message] = []

        def see(message: Message, sent: list[Message] = sent) -> Iterator[Message]:
            sent.append(message)
            yield message

        running = runtime(them("power", place), Faults(meddle=see))
        running.run()
        down, up = Counter[int](), Counter[int]()
        for message in sent:
            way = down if isinstance(message.body, Ask | Done) else up
            way[message.body.round] += size(message)
        assert {round_: (t.down, t.up) for round_, t in running.traffic.items()} == {t: (down[t], up[t]) for t in down}
        plain = runtime(them("power", place))
        plain.run()
        assert plain.traffic == running.traffic


@pytest.mark.parametrize("place", ["star", "tree of 2", "tree of 3"])
@pytest.mark.parametrize("after", [0, 1])
def test_who_dies_gets_just_so_many_messages(place: str, after: int) -> None:
    these, got = them("power", place, quorum=1), Counter[str]()
    member = these.members["site 1"]
    receive = member.receive

    class Counted:
        name, waiting, start, timeout = member.name, None, member.start, member.timeout

        def receive(self, message: Message) -> list[Message]:
            got[message.receiver] += 1
            return receive(message)

    these.members["site 1"] = Counted()  # type: ignore[assignment]
    runtime(these, Faults(dies={"site 1": after})).run()
    assert got["site 1"] == after
    assert "site 1" not in these.hub.sites


def test_a_forged_sender_never_gets_as_far_as_a_party_and_the_real_one_is_named() -> None:
    def forge(message: Message) -> Iterator[Message]:
        if message.sender == "site 4" and isinstance(message.body, Contribution):
            yield replace(message, sender="site 0", body=replace(message.body, arrays=(np.zeros((5, 5)),)))
        yield message

    these = them("covariance")
    running = runtime(these, Faults(meddle=forge))
    running.run()
    assert bits(these.hub.result) == bits(finish(them("covariance")))
    assert [(refusal.by, refusal.peer) for refusal in running.refused] == [("network", "site 4")]


@pytest.mark.parametrize("place", ["star", "tree of 2"])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_hub_that_dies_is_an_error_and_no_endless_wait(place: str, after: int) -> None:
    with pytest.raises(ProtocolError, match="the hub has stopped"):
        runtime(them("power", place), Faults(dies={"hub": after})).run()


@pytest.mark.parametrize("place", ["star", "tree of 2"])
def test_a_network_that_carries_nothing_ends_in_a_lost_quorum(place: str) -> None:
    def swallow(message: Message) -> Iterator[Message]:
        yield from ()

    with pytest.raises(QuorumLost) as lost:
        runtime(them("power", place, quorum=1), Faults(meddle=swallow)).run()
    assert lost.value.missing == tuple(f"site {i}" for i in range(5))


def test_a_node_that_dies_takes_its_sites_with_it() -> None:
    these = them("covariance", "tree of 3", quorum=1)
    runtime(these, Faults(dies={"node 1": 0})).run()
    assert these.hub.sites == ("site 3", "site 4")
    assert these.hub.rounds[0].missing == ("site 0", "site 1", "site 2")


def test_a_site_that_declines_is_missed_at_once_without_waiting() -> None:
    def decline(message: Message) -> Iterator[Message]:
        yield replace(message, body=Decline(message.body.round)) if message.sender == "site 0" else message

    these = them("covariance", quorum=4, deadline=1e9)
    running = runtime(these, Faults(meddle=decline))
    running.run()
    assert these.hub.rounds[0].missing == ("site 0",)
    assert running.network.now == pytest.approx(1e9)  # The clock of the round runs out after the end, and means nothing then.
