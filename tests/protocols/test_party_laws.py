"""Laws of every party, over every task and layout: bad messages are refused, names who sent it, and leaves no trace."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from eigenveil.core.rows import Block
from eigenveil.errors import BudgetExceeded, PeerError
from eigenveil.protocols.messages import Ask, Contribution, Decline, Done, Message
from eigenveil.protocols.party import Party
from eigenveil.protocols.star.hub import Node
from eigenveil.protocols.star.rounds import star, tree
from eigenveil.protocols.star.site import Member
from protocols.star.companies import (
    EXACT,
    IN_TREES,
    PLACES,
    TASKS,
    Company,
    bits,
    company,
    deliveries,
    finish,
    layouts,
    picture,
    tables,
)
from protocols.star.spoiled import spoiled

KINDS = pytest.mark.parametrize("kind", TASKS)
EVERYWHERE = pytest.mark.parametrize(("kind", "shape"), PLACES)


def pair(kind: str, shape: str, sites: int = 5, **more: Any) -> tuple[Company, Company]:
    """The same company twice."""
    layout, rows = layouts(sites)[shape], tables(sites)
    one, two = (company(TASKS[kind](), layout, rows, **more) for _ in range(2))
    return one, two


def require_refused(party: Party, message: Message, what: str, before: object = None) -> None:
    before = picture(party) if before is None else before
    try:
        answers = party.receive(message)
    except PeerError as error:
        assert error.peer == message.sender, what
    except Exception as error:
        raise AssertionError(f"{party.name} fell over {what}: {error!r}") from error
    else:
        raise AssertionError(f"{party.name} took {what} from {message.sender}, and answered {answers}")
    assert picture(party) == before, f"{party.name} was changed by {what}"


@EVERYWHERE
def test_bad_message_names_its_sender_and_changes_nothing(kind: str, shape: str) -> None:
    disturbed, undisturbed = pair(kind, shape)
    for party, message in deliveries(disturbed):
        held = picture(party)
        for what, bad in spoiled(message, layouts(5)[shape]):
            require_refused(party, bad, what, held)
    assert disturbed.hub.result is not None
    assert bits(disturbed.hub.result) == bits(finish(undisturbed))


@EVERYWHERE
def test_the_same_answer_does_not_count_twice_and_an_answer_to_a_closed_round_not_at_all(kind: str, shape: str) -> None:
    disturbed, undisturbed = pair(kind, shape)
    taken: list[tuple[Party, Message]] = []
    for party, message in deliveries(disturbed):
        for earlier, old in taken:
            require_refused(earlier, old, "what was delivered before")
        if isinstance(message.body, Contribution):
            taken = [*taken[-8:], (party, message)]
    for earlier, old in taken:
        require_refused(earlier, old, "what came after the end")
    assert bits(disturbed.hub.result) == bits(finish(undisturbed))


@EVERYWHERE
def test_questions_of_old_rounds_second_questions_and_second_ends_are_refused(kind: str, shape: str) -> None:
    disturbed, undisturbed = pair(kind, shape)
    asked: dict[str, list[Message]] = {}
    for party, message in deliveries(disturbed):
        for name, messages in asked.items():
            last = messages[-1]
            for old in messages[:-1]:
                require_refused(disturbed.parties[name], old, "an old question")
            if isinstance(last.body, Ask):
                require_refused(disturbed.parties[name], replace(last, body=other(last.body)), "a second question")
            elif isinstance(last.body, Done):
                late = replace(last.body, round=last.body.round + 1)
                for body in (last.body, late, *(m.body for m in messages[:-1])):
                    require_refused(disturbed.parties[name], replace(last, body=body), "messages after the end")
        if isinstance(message.body, Ask | Done):
            # As the party stands once this has been delivered, which is when the next is about to be.
            asked.setdefault(party.name, []).append(message)
    assert bits(disturbed.hub.result) == bits(finish(undisturbed))


def other(ask: Ask) -> Ask:
    """Another question of the same round, as good as the first where it has a basis to round."""
    question = ask.question
    if question.arrays and question.arrays[-1].ndim == 2:
        return replace(ask, question=replace(question, arrays=(*question.arrays[:-1], -question.arrays[-1])))
    return replace(ask, question=replace(question, step=question.step + 1))


@pytest.mark.parametrize("kind", IN_TREES)
def test_after_the_end_a_site_answers_no_more(kind: str) -> None:
    them, _ = pair(kind, "tree of 2")
    last: dict[str, Message] = {}
    for _, message in deliveries(them):
        if isinstance(message.body, Ask):
            last[message.receiver] = message
    for name, message in last.items():
        assert isinstance(message.body, Ask)
        for round_ in (message.body.round, message.body.round + 1):
            require_refused(them.parties[name], replace(message, body=replace(message.body, round=round_)), "a question")


@KINDS
def test_a_site_asked_again_sends_the_same_bits_and_pays_once(kind: str) -> None:
    them = company(TASKS[kind](), star(["site 0"]), tables(1), mu=0.3)
    member, ledger = them.members["site 0"], them.ledgers["site 0"]
    for party, message in deliveries(them):
        if party is not member or not isinstance(message.body, Ask):
            continue
        before = ledger.charges
        (first,) = member.receive(message)
        spent = ledger.charges
        assert isinstance(first.body, Contribution)
        assert len(spent) > len(before)
        for _ in range(3):
            (again,) = member.receive(message)
            assert picture(again) == picture(first)
        assert ledger.charges == spent


@KINDS
def test_a_question_resumed_under_a_later_round_gets_the_same_bits_for_nothing(kind: str) -> None:
    task = TASKS[kind]()
    them = company(task, star(["site 0"]), tables(1), mu=0.3)
    member, ledger = them.members["site 0"], them.ledgers["site 0"]
    question = task.ask(task.start())
    (first,) = member.receive(Message("hub", "site 0", Ask(2, question)))
    spent = ledger.charges
    (later,) = member.receive(Message("hub", "site 0", Ask(7, question)))
    assert isinstance(first.body, Contribution)
    assert picture(later.body) == picture(replace(first.body, round=7))
    assert ledger.charges == spent
    assert len(spent) >= 1
    require_refused(member, Message("hub", "site 0", Ask(6, question)), "the rounds between")


@pytest.mark.parametrize("error", [ValueError("NaN in row 3"), OSError("no such file"), BudgetExceeded("all spent")])
def test_what_goes_wrong_with_rows_stays_at_the_site(error: Exception) -> None:
    class Broken:
        shape, sparse = (3, 5), False

        def blocks(self, size: int) -> Iterator[Block]:
            raise error

    task = TASKS["covariance"]()
    member = Member("a", hub="hub", task=task, rows=Broken(), mechanism=EXACT)
    for round_ in (0, 0, 1):
        (answer,) = member.receive(Message("hub", "a", Ask(round_, task.ask(None))))
        assert isinstance(answer.body, Decline)
        assert answer.body.round == round_
    assert member.error is error


@pytest.mark.parametrize("gone", [("site 0",), ("site 1", "site 2"), ("site 4",)])
def test_sites_that_have_gone_can_be_missing_no_more(gone: tuple[str, ...]) -> None:
    layout, task = tree([f"site {i}" for i in range(5)], fanout=3), TASKS["covariance"]()
    name, behind = next((name, below) for name, below in layout.below["hub"].items() if gone[0] in below)
    part = (np.eye(5),)
    node = Node("upper", above="hub", below=layout.below["hub"], task=task, terms=company(task, layout, {}).hub._terms)
    node.receive(Message("hub", "upper", Ask(0, task.ask(None), gone)))
    if name in gone:
        require_refused(node, Message(name, "upper", Contribution(round=0, arrays=part)), "a part from a site that has gone")
        return
    for missing in (gone, behind, (*gone, behind[-1])):
        require_refused(node, Message(name, "upper", Contribution(round=0, arrays=part, missing=missing)), f"missing {missing}")
    node.receive(Message(name, "upper", Contribution(round=0, arrays=part)))


def test_a_site_is_told_the_answer_once_and_by_its_hub() -> None:
    member = Member("a", hub="hub", task=TASKS["covariance"](), rows=None, mechanism=EXACT)  # type: ignore[arg-type]
    done = Message("hub", "a", Done(3, (np.eye(2),)))
    require_refused(member, replace(done, sender="b"), "the answer from somebody else")
    assert member.receive(done) == []
    assert member.result is not None
    require_refused(member, done, "the answer again")
