"""The laws can fail: each of these breaks one rule of the parties, and the law that states it must notice."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import eigenveil.core.sums
import eigenveil.protocols.party
import eigenveil.protocols.wire
import eigenveil.tasks.base
from eigenveil.errors import PeerError
from eigenveil.protocols.messages import Body, Contribution, Message
from eigenveil.protocols.star.hub import Hub
from eigenveil.protocols.star.rounds import Gathering
from eigenveil.protocols.star.site import Member
from eigenveil.protocols.wire import decode, encode
from eigenveil.tasks.base import Question
from eigenveil.tasks.fit.task import Fit
from protocols.star.companies import picture
from protocols.star.fault_runs import random_run, require_right
from protocols.star.test_sums_in_order import SITES, require_folded_in_site_order
from protocols.test_party_laws import test_a_question_resumed_under_a_later_round_gets_the_same_bits_for_nothing as law_of_repeats
from protocols.test_party_laws import test_bad_message_names_its_sender_and_changes_nothing as law_of_bad_message

Patch = pytest.MonkeyPatch


def add_as_it_comes(patch: Patch) -> None:
    fold = Gathering._fold

    def in_order_of_arrival(now: Gathering) -> None:
        for name in list(now._held):
            now._add(name)
        fold(now)

    patch.setattr(Gathering, "_fold", in_order_of_arrival)


def take_from_anybody(patch: Patch) -> None:
    receive = Hub.receive

    def anyone(hub: Hub[Any], message: Message) -> list[Message]:
        sender = message.sender if message.sender in hub._below else next(iter(hub._below))
        return receive(hub, Message(sender, message.receiver, message.body))

    patch.setattr(Hub, "receive", anyone)


def answer_anybody(patch: Patch) -> None:
    receive = Member.receive
    patch.setattr(Member, "receive", lambda site, message: receive(site, Message(site._hub, message.receiver, message.body)))


def take_any_round(patch: Patch) -> None:
    receive = Gathering.receive

    def whenever(now: Gathering, sender: str, body: Body) -> None:
        receive(
            now,
            sender,
            Contribution(round=now.round, arrays=body.arrays, missing=body.missing) if isinstance(body, Contribution) else body,
        )

    patch.setattr(Gathering, "receive", whenever)


def change_before_checking(patch: Patch) -> None:
    receive = Gathering.receive

    def hasty(now: Gathering, sender: str, body: Body) -> None:
        now._short[sender] = ()
        receive(now, sender, body)

    patch.setattr(Gathering, "receive", hasty)


def fresh_noise_each_time(patch: Patch) -> None:
    patch.setattr(Question, "same", lambda question, other: False)


def no_check_of_length(patch: Patch) -> None:
    patch.setattr(eigenveil.core.sums, "CONTRACTION", 2.0)


def no_check_of_size(patch: Patch) -> None:
    patch.setattr(eigenveil.tasks.base, "_LARGEST", np.inf)


def no_check_of_numbers(patch: Patch) -> None:
    patch.setattr(eigenveil.protocols.party, "require", lambda condition, message: None)


def never_begin_again(patch: Patch) -> None:
    patch.setattr(Fit, "after_dropout", lambda study, state: None)


def halves_by_adding(patch: Patch) -> None:
    square = eigenveil.protocols.wire._square
    patch.setattr(eigenveil.protocols.wire, "_square", lambda flat, side: square(flat, side) + 0.0)


def sums_in_order() -> None:
    require_folded_in_site_order(0, SITES[::-1], set(), set())


def lost_sites_leave_no_trace() -> None:
    for seed in range(12):
        require_right("krylov around the mean", "star", random_run("krylov around the mean", "star", seed))


def halves_arrive() -> None:
    message = Message("a", "hub", Contribution(round=0, arrays=(np.array([[1.0, -0.0], [-0.0, 2.0]]),), half=True))
    assert picture(decode(encode(message))) == picture(message)


def bad_message_to(kind: str) -> Callable[[], None]:
    return lambda: law_of_bad_message(kind, "star")


MUTANTS: list[tuple[Callable[[Patch], None], Callable[[], None]]] = [
    (add_as_it_comes, sums_in_order),
    (take_from_anybody, bad_message_to("covariance")),
    (answer_anybody, bad_message_to("covariance")),
    (take_any_round, bad_message_to("covariance")),
    (change_before_checking, bad_message_to("covariance")),
    (no_check_of_length, bad_message_to("power")),
    (no_check_of_size, bad_message_to("covariance")),
    (no_check_of_numbers, bad_message_to("power")),
    (fresh_noise_each_time, lambda: law_of_repeats("covariance")),
    (never_begin_again, lost_sites_leave_no_trace),
    (halves_by_adding, halves_arrive),
]


@pytest.mark.parametrize(("mutate", "law"), MUTANTS, ids=lambda thing: getattr(thing, "__name__", ""))
def test_every_mutant_is_found(mutate: Callable[[Patch], None], law: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    law()
    mutate(monkeypatch)
    with pytest.raises((AssertionError, PeerError)):
        law()
