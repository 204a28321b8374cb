"""Somebody who wants to exhaust a party, with real keys or none: its memory and its disk stay bounded, and the study goes on."""

import asyncio
import os
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from eigenveil.ledger.durable import DurableLedger, StudyBudget
from eigenveil.network.agents.runner import MESSAGE, Agent, Runner, credentials_of
from eigenveil.network.agents.star import HubAgent
from eigenveil.network.agents.steps import DurableParty
from eigenveil.protocols.messages import Decline, Message, StepRequest
from eigenveil.protocols.wire import encode
from eigenveil.runtimes.grpc import Got, Inbox, Joined, Left, Transport
from ledger.ledger_children import ROW
from network.hostile.hostile_checks import SECONDS, alone, logged, refusals, until, written
from network.hostile.test_hostile_edges import resident
from network.kills.kill_counts import STUDIES, charges_in
from network.network_studies import Company, keys_of
from runtimes.network_certificates import Authority
from runtimes.test_network_front import context_of

LIMIT = 1 << 16


@asynccontextmanager
async def joined(company: Company, name: str) -> AsyncIterator[Transport]:
    """A site in the hands of an attacker, who has its keys and says anything."""
    hub = company.study.hub
    assert hub is not None
    keys = keys_of(name, "site")
    async with Transport(name, credentials=credentials_of(company.study, keys), greeting=company.study.greeting) as transport:
        transport.dial(
            "hub", f"127.0.0.1:{company.port}", certificate=hub.certificate.pem.encode(), server_name=hub.certificate.server_name
        )
        while not isinstance(await transport.events.get(), Joined):
            pass
        yield transport


def test_a_waiting_hub_keeps_nothing_of_what_one_sender_floods_it_with(tmp_path: Path) -> None:
    company, count = Company(tmp_path, sections=STUDIES["site krylov"]), 600

    async def flooding() -> tuple[int, int]:
        async with asyncio.timeout(SECONDS):
            hub = asyncio.create_task(company.run_hub())
            async with joined(company, "site 0") as transport:
                before = resident()
                for number in range(count):
                    assert await transport.send("hub", MESSAGE, number.to_bytes(8, "little") + bytes(LIMIT - 8))
                # All of it was read: the next note is behind it.
                long = await transport.send("hub", MESSAGE, bytes(LIMIT + 1))
                while not isinstance(await transport.events.get(), Left):
                    pass
                grown = resident() - before
            await asyncio.gather(*map(company.run_site, company.names))
            await hub
            return grown, int(long)

    grown, _ = asyncio.run(flooding())
    assert grown < count * LIMIT / 2
    assert (tmp_path / "hub.transcript").stat().st_size < 1 << 20
    left = [told.text for who, told in company.happened if who == "hub" and told.what == "left"]
    assert any(f"at most {LIMIT} are allowed" in words for words in left)
    assert set(company.models) == {"hub", *company.names}


def test_answers_of_ever_new_rounds_take_no_memory_at_a_hub(tmp_path: Path) -> None:
    company = Company(tmp_path, sections=STUDIES["site krylov"])
    with HubAgent.transcript_for(tmp_path / "hub.transcript", company.study) as transcript:
        agent = HubAgent(company.study, keys=keys_of("hub", "hub"), transcript=transcript)
        agent.durable.begin()
        for round_ in range(1, 500):
            assert agent.durable.take("site 0", encode(Message("site 0", "hub", Decline(round_)))) == []
        assert agent.durable.refused == 499
        assert len(agent.durable.traffic) == 1


class Forgetful(Agent):
    """A party with room for few early messages, and nobody who looks at its events."""

    early_bytes = 10_000

    def __init__(self) -> None:
        self._on_event = lambda event: None


def test_messages_before_the_beginning_are_kept_up_to_a_number_of_bytes_for_each_sender() -> None:
    async def gathered() -> list[tuple[str, int]]:
        inbox, told = Inbox(room=1 << 20), list[tuple[str, int]]()

        def take(sender: str, data: bytes) -> list[Any]:
            told.append((sender, len(data)))
            return []

        durable = SimpleNamespace(take=take, party=SimpleNamespace(waiting=None))
        transport = SimpleNamespace(events=inbox)
        runner = Runner(Forgetful(), cast("DurableParty", durable), cast("Transport", transport))
        for size in (4000, 4000, 4000, 100):
            inbox.put(Got("a", MESSAGE, bytes(size)))
        inbox.put(Got("b", MESSAGE, bytes(9000)))
        inbox.put(Got("c", MESSAGE, bytes(9999)))
        for name in "abc":
            inbox.put(Joined(name))
        await runner.gather("abc", seconds=5.0)
        await runner.run(lambda: True)
        runner.close()
        return told

    # What is too much is dropped, and what fits behind it is kept.
    assert asyncio.run(gathered()) == [("a", 4000), ("a", 4000), ("a", 100), ("b", 9000)]


def ledger_bytes(company: Company) -> int:
    return sum(path.stat().st_size for path in company.folder.glob("site 0.ledger*"))


def test_tables_that_a_step_does_not_use_are_refused_and_not_stored(tmp_path: Path) -> None:
    company, count = Company(tmp_path, sections=STUDIES["masked krylov"]), 40

    async def storing() -> None:
        async with alone(company) as hub:
            for number in range(count):
                table = ((f"site {1 + number % 2}", os.urandom(LIMIT // 2)),)
                await hub.say(StepRequest(round=number % 4, step="keys", data=os.urandom(32), table=table))
            await hub.say(
                StepRequest(round=0, step="keys", data=os.urandom(32), table=tuple((f"x{at}", b"") for at in range(50)))
            )
            await hub.say(StepRequest(round=0, step="packets", data=bytes(1000)))
            # A step as it should be is answered.
            await hub.ask(StepRequest(round=0, step="keys", data=bytes(32)))

    asyncio.run(storing())
    assert len(refusals(company)) == count + 2
    assert sum(line.kind == "commit" for line in written(company)) == 1
    assert ledger_bytes(company) < 1 << 20


def test_a_message_of_a_megabyte_ends_the_connection_before_it_is_read(tmp_path: Path) -> None:
    company = Company(tmp_path, sections=STUDIES["masked krylov"])

    async def storing() -> int:
        async with alone(company) as hub:
            before = resident()
            for number in range(3):
                await hub.say(StepRequest(round=number, step="keys", data=os.urandom(32), table=(("site 1", bytes(32 << 20)),)))
                await hub.left()
                await hub.joined()
            return resident() - before

    assert asyncio.run(storing()) < 64 << 20
    assert charges_in(written(company)) == [] and logged(company) == []
    assert ledger_bytes(company) < 1 << 20


def test_a_study_goes_on_while_others_hold_connections_to_its_hub(tmp_path: Path) -> None:
    company = Company(tmp_path, sections=STUDIES["masked krylov"])
    stranger = context_of(Authority().party("site 0"), tmp_path)

    async def held() -> float:
        async with asyncio.timeout(SECONDS):
            hub = asyncio.create_task(company.run_hub())
            await until(lambda: any(who == "hub" for who, _ in company.happened))
            kinds = [None] * 500 + [stranger] * 40
            calls = [asyncio.open_connection("127.0.0.1", company.port, ssl=kind) for kind in kinds]
            lines = await asyncio.gather(*calls, return_exceptions=True)
            began = asyncio.get_running_loop().time()
            sites = asyncio.gather(*map(company.run_site, company.names))
            await until(lambda: sum(who == "hub" and told.what == "joined" for who, told in company.happened) == 3)
            took = asyncio.get_running_loop().time() - began
            await asyncio.gather(hub, sites)
            for one in lines:
                if not isinstance(one, BaseException):
                    one[1].transport.abort()
            return took

    assert asyncio.run(held()) < 5.0
    assert set(company.models) == {"hub", *company.names}


def test_a_study_that_is_opened_again_is_read_one_step_at_a_time(tmp_path: Path) -> None:
    size, steps, path = 1 << 20, 12, tmp_path / "ledger.db"
    account = StudyBudget(
        study="0" * 64, title="heart study", dataset="patients", trust="masked", epsilon=1.0, delta=1e-6, mu=0.23, unit=ROW
    )
    with DurableLedger.open(path) as ledger:
        ledger.join(account, life=None)
        for number in range(steps):
            ledger.commit(account.study, number, came=os.urandom(size), replies=[os.urandom(size)], charges=[])
    tracemalloc.start()
    try:
        with DurableLedger.open(path) as ledger:
            opened = ledger.join(account, life=None)
            found = [(len(step.incoming), len(step.replies[0])) for step in opened.steps]
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == [(size, size)] * steps and len(opened.steps) == steps
    assert most < 5 * 2 * size


def test_a_site_refuses_a_study_that_takes_too_much_before_it_calls_anybody(tmp_path: Path) -> None:
    company = Company(tmp_path)
    with DurableLedger.open(company.ledger("site 0")) as ledger:
        with pytest.raises(ValueError, match="of memory for 5 columns and 2 components"):
            company.site("site 0", ledger, memory=1000)
        assert company.site("site 0", ledger, memory=1 << 20).above == "hub"
    with (
        HubAgent.transcript_for(tmp_path / "hub.transcript", company.study) as transcript,
        pytest.raises(ValueError, match="--memory"),
    ):
        HubAgent(company.study, keys=keys_of("hub", "hub"), transcript=transcript, memory=1000)
