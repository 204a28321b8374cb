"""A hub that lies, with the real keys of the hub: nothing leaves a site but what its ledger has let, and no reason ever does."""

import asyncio
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eigenveil.ledger.durable import DurableLedger
from eigenveil.network.agents.star import HubAgent
from eigenveil.network.agents.steps import Outgoing
from eigenveil.protocols.messages import Ask, Body, Contribution, Decline, Done, Masked, Message, StepReply, StepRequest
from eigenveil.protocols.wire import VERSION, decode, encode
from eigenveil.tasks.base import Question
from network.hostile.evil_hubs import EvilHub, Puppets, WatchedParty, about, watched_hub
from network.hostile.hostile_checks import SECONDS, alone, declined, logged, nothing_comes, refusals, require_paid, written
from network.kills.kill_counts import STUDIES, charges_in, undisturbed
from network.network_studies import Company

# What a hub might say in the place of a question, and what a site says of it to its own people.
Lie = Callable[[Message, bytes], bytes]


def _asking(change: Callable[[Question], Question]) -> Lie:
    def lie(message: Message, data: bytes) -> bytes:
        assert isinstance(message.body, Ask)
        return encode(replace(message, body=replace(message.body, question=change(message.body.question))))

    return lie


def _arrays(change: Callable[[Any], Any], at: int) -> Lie:
    """The same question with another array in one place."""

    def changed(question: Question) -> Question:
        arrays = list(question.arrays)
        arrays[at] = change(arrays[at])
        return replace(question, arrays=tuple(arrays))

    return _asking(changed)


_FRAME = struct.Struct("<4sBI")
ANYTIME: dict[str, tuple[Lie, str]] = {
    "nothing": (lambda message, data: b"", "not a message"),
    "garbage": (lambda message, data: bytes(range(256)) * 8, "not a message"),
    "a piece": (lambda message, data: data[:-1], "it ends too early|its head is too long|not a message"),
    "a beginning": (lambda message, data: data[:12], "its head is too long"),
    "more than all": (lambda message, data: data + b"x", "bytes follow its end|not a message"),
    "a long head": (
        lambda message, data: _FRAME.pack(b"EIGV", VERSION, 0xFFFFFFFF) + data[_FRAME.size :],
        "its head is too long",
    ),
    "another version": (lambda message, data: b"EIGV" + bytes([VERSION - 1]) + data[5:], "it opens with other bytes"),
    "in another name": (lambda message, data: encode(replace(message, sender="site 1")), "in another party's name"),
    "for another": (lambda message, data: encode(replace(message, receiver="site 1")), "for another party"),
    "a part": (
        lambda message, data: encode(replace(message, body=Contribution(round=0, arrays=(np.zeros(3),)))),
        "no message of the kind 'give'",
    ),
    "a step of no kind": (
        lambda message, data: encode(replace(message, body=StepRequest(round=0, step="tell all"))),
        "no message of the kind 'brief'",
    ),
    "no answer": (lambda message, data: encode(replace(message, body=Done(99, ()))), "an invalid result"),
    "NaN for an answer": (
        lambda message, data: encode(
            replace(message, body=Done(99, (np.full((5, 2), np.nan), np.ones(2), np.zeros(5), np.zeros(5))))
        ),
        "an invalid result",
    ),
    "a skew answer": (
        lambda message, data: encode(
            replace(message, body=Done(99, (np.ones((5, 2)), np.ones(2), np.zeros(5), np.array([1.0, 9, 1, -1, -1]))))
        ),
        "an invalid result",
    ),
}
IN_PLACE_OF_A_PRODUCT: dict[str, tuple[Lie, str]] = {
    "another stage": (_asking(lambda question: replace(question, stage="rows")), "has no stage 'rows'"),
    "a step there is not": (_asking(lambda question: replace(question, step=7)), "the task has steps"),
    "more columns": (_arrays(lambda basis: np.eye(6)[:, :2], 2), "asked what this study does not ask"),
    "more directions": (_arrays(lambda basis: np.eye(5, 6), 2), "more numbers or bytes than this study needs"),
    "a long basis": (_arrays(lambda basis: 1.5 * basis, 2), "asked what this study does not ask"),
    "one direction twice": (_arrays(lambda basis: basis[:, [0, 0]], 2), "asked what this study does not ask"),
    "NaN for a basis": (_arrays(lambda basis: basis * np.nan, 2), "asked what this study does not ask"),
    "a center of other columns": (_arrays(lambda center: np.zeros(4), 0), "the center is not the agreed one"),
    "NaN for a center": (_arrays(lambda center: center * np.nan, 0), "asked what this study does not ask"),
    "infinity for a center": (_arrays(lambda center: center + np.inf, 0), "asked what this study does not ask"),
    "one array more": (
        _asking(lambda question: replace(question, arrays=(*question.arrays, np.ones(3)))),
        "asked what this study does not ask|more numbers or bytes than this study needs",
    ),
}


def lying(company: Company, lies: dict[str, tuple[Lie, str]], round_: int) -> Callable[[list[Outgoing]], list[Outgoing]]:
    """Put all lies before the first question for a part of this round to site 0."""
    told: list[str] = []

    def twist(outgoing: list[Outgoing]) -> list[Outgoing]:
        found: list[Outgoing] = []
        for name, data in outgoing:
            message = decode(data)
            if name == "site 0" and not told and isinstance(message.body, Ask) and message.body.round == round_:
                told.extend(lies)
                found += [(name, lie(message, data)) for lie, _ in lies.values()]
            found.append((name, data))
        return found

    return twist


def extra(company: Company, twist: Callable[[list[Outgoing]], list[Outgoing]]) -> WatchedParty:
    """The whole study with three real sites and a hub that lies to site 0."""

    async def all_of_them() -> WatchedParty:
        async with asyncio.timeout(SECONDS):
            with HubAgent.transcript_for(company.folder / "hub.transcript", company.study) as transcript:
                agent, durable = watched_hub(company, twist)(transcript)
                hub = agent.run(lambda model: company.models.__setitem__("hub", model), listen=f"127.0.0.1:{company.port}")
                await asyncio.gather(hub, *map(company.run_site, company.names))
                return durable

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("name", ["site krylov", "hub krylov", "masked krylov"])
@pytest.mark.parametrize("round_, lies", [(0, ANYTIME), (2, ANYTIME | IN_PLACE_OF_A_PRODUCT)], ids=["mean", "products"])
def test_what_a_hub_makes_up_is_refused_one_by_one_and_the_study_goes_on(
    tmp_path: Path, name: str, round_: int, lies: dict[str, tuple[Lie, str]]
) -> None:
    company = Company(tmp_path, sections=STUDIES[name])
    durable = extra(company, lying(company, lies, round_))
    came = [data for sender, data in durable.came if sender == "site 0"]
    others = [data for sender, data in durable.came if sender == "site 1"]
    # As many answers as from those who were not lied to: none of the lies got one, not even a refusal.
    assert [about(data) for data in came] == [about(data) for data in others]
    require_paid(company, came, once=name.startswith("hub"))
    assert charges_in(written(company)) == list(undisturbed(name))
    reasons = refusals(company)
    assert len(reasons) == len(lies)
    for (what, (_, expected)), reason in zip(lies.items(), reasons, strict=True):
        assert any(words in reason for words in expected.split("|")), (what, reason)
    assert logged(company) == [f"refused a message from hub: {reason}" for reason in reasons]
    for party in company.names:
        np.testing.assert_array_equal(company.models[party].components, company.models["hub"].components)


def test_the_same_step_with_other_directions_is_charged_each_time_until_nothing_is_left(tmp_path: Path) -> None:
    company = Company(tmp_path, sections=STUDIES["site krylov"])

    async def greedy() -> list[Body]:
        async with alone(company) as hub:
            said = [await hub.ask(Ask(0, hub.question()))]
            for round_ in range(1, 4):
                last = Ask(round_, hub.question(product=2, seed=round_))
                said.append(await hub.ask(last))
            await nothing_comes(hub, Ask(3, hub.question(product=1)), last, said[-1])
            await nothing_comes(hub, Ask(1, hub.question(product=1)), last, said[-1])
            # What was said before is said again, byte for byte.
            assert await hub.ask(Ask(0, hub.question())) and hub.got[-1] == hub.got[0]
            require_paid(company, hub.got)
            return said

    said = asyncio.run(greedy())
    gave = [answer for answer in said if isinstance(answer, Contribution)]
    assert len({answer.arrays[0].tobytes() for answer in gave}) == len(gave) == len(charges_in(written(company))) == 3
    # A site that cannot pay says that there is no part, and nothing of why.
    assert isinstance(said[-1], Decline)
    assert any("the ledger has mu" in words for words in declined(company))
    two, old = refusals(company)
    assert "asked two different questions in round 3" in two
    assert "asked for round 1 in round 3" in old


def test_there_are_no_more_questions_than_the_study_has_however_cheap_they_are(tmp_path: Path) -> None:
    company = Company(tmp_path, sections=STUDIES["site krylov"])

    async def greedy() -> list[Body]:
        async with alone(company) as hub:
            most, said = hub.parties.most_questions, []
            for round_ in range(most):
                last = Ask(round_, hub.question(product=3, seed=round_))
                said.append(await hub.ask(last))
            await nothing_comes(hub, Ask(most, hub.question(product=3, seed=most)), last, said[-1])
            require_paid(company, hub.got)
            return said

    said = asyncio.run(greedy())
    assert all(isinstance(answer, Contribution) for answer in said)
    assert len(charges_in(written(company))) == len(said)
    (reason,) = refusals(company)
    assert f"asked more than the {len(said)} questions that this study has" in reason


def test_under_masks_the_same_step_with_other_directions_is_charged_until_nothing_is_left(tmp_path: Path) -> None:
    company = Company(tmp_path, sections=STUDIES["masked krylov"])

    async def greedy() -> list[Body]:
        async with alone(company) as hub:
            puppets, said = Puppets(hub), []
            for round_ in range(4):
                question = hub.question() if round_ == 0 else hub.question(product=2, seed=round_)
                said.append(await puppets.round_(round_, question))
                if not isinstance(said[-1], Masked):
                    break
            require_paid(company, hub.got)
            return said

    said = asyncio.run(greedy())
    gave = [answer for answer in said if isinstance(answer, Masked)]
    assert len(gave) == len(charges_in(written(company))) == 3
    assert isinstance(said[-1], StepReply) and said[-1].table == ()
    assert any("the ledger has mu" in words for words in declined(company))


def test_why_there_was_no_part_is_in_the_ledger(tmp_path: Path) -> None:
    company = Company(tmp_path, sections=STUDIES["site krylov"])

    async def asking() -> Body:
        async with alone(company) as hub:
            for round_ in range(3):
                answer = await hub.ask(Ask(round_, hub.question(product=2, seed=round_)))
            return answer

    assert isinstance(asyncio.run(asking()), Decline)
    assert any("the ledger has mu" in words for words in logged(company))


@pytest.mark.parametrize("name", ["site krylov", "masked krylov"])
def test_an_answer_before_any_question_ends_the_study_and_costs_nothing(tmp_path: Path, name: str) -> None:
    company = Company(tmp_path, sections=STUDIES[name])

    async def asking() -> None:
        async with asyncio.timeout(SECONDS), EvilHub(company) as hub:
            run = asyncio.create_task(company.run_site("site 0"))
            await hub.joined()
            await hub.say(Done(0, (np.eye(5)[:, :2], np.ones(2), np.zeros(5), np.array([10.0, 9, 1, -1, -1]))))
            await run
            assert hub.got == []

    asyncio.run(asking())
    assert charges_in(written(company)) == []
    with DurableLedger.open(company.ledger("site 0")) as ledger:
        (study,) = ledger.studies()
        (dataset,) = ledger.datasets()
    assert study.state == "finished" and dataset.spent == 0


def test_a_round_that_is_far_ahead_costs_what_it_gives_and_no_more(tmp_path: Path) -> None:
    company = Company(tmp_path, sections=STUDIES["site krylov"])

    async def asking() -> None:
        async with alone(company) as hub:
            far = Ask(10**9, hub.question())
            first = await hub.ask(far)
            await nothing_comes(hub, Ask(0, hub.question(product=0)), far, first)
            require_paid(company, hub.got)

    asyncio.run(asking())
    assert len(charges_in(written(company))) == 1


def test_under_masks_no_round_is_answered_but_those_that_were_agreed_on(tmp_path: Path) -> None:
    company = Company(tmp_path, sections=STUDIES["masked krylov"])

    async def asking() -> None:
        async with alone(company) as hub:
            puppets = Puppets(hub)
            most = puppets.masking.terms.most_rounds
            first = await puppets.round_(0, hub.question())
            assert isinstance(first, Masked)
            known = Ask(0, hub.question())
            for lie in (
                Ask(0, hub.question(product=0)),
                Ask(most, hub.question(product=0)),
                StepRequest(round=most, step="keys", data=bytes(32)),
                # Another list of survivors, which would take off another site's mask.
                StepRequest(round=0, step="survivors", data=b"\xc0\x20"),
                StepRequest(round=0, step="survivors", data=b"\x80\x60"),
            ):
                await nothing_comes(hub, lie, known, first)
            require_paid(company, hub.got)

    asyncio.run(asking())
    assert len(charges_in(written(company))) == 1
    expected = ["two different questions", "no keys were exchanged", "the study has", "a second list", "a second list"]
    for words, reason in zip(expected, refusals(company), strict=True):
        assert words in reason
