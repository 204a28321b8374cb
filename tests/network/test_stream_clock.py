"""Streams whose slots end by the clock, over real connections: which rows a slot has does not depend on how long rows take."""

import asyncio
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eigenveil.data.follow import Follower
from eigenveil.errors import ProtocolError
from eigenveil.ledger.durable import DurableLedger, LedgerError
from eigenveil.network.agents.slot_hub import DurableSlotHub
from eigenveil.network.streams import slot_parties_of
from eigenveil.protocols.slot_hub import MaskedSlotMember, SlotMember
from eigenveil.protocols.wire import decode
from eigenveil.show.agreement import facts_of
from network.kills.kill_children import as_text
from network.network_studies import COLUMNS, keys_of, table_of
from network.test_stream_studies import Streams, sections

SLOTS, SECONDS = 4, 1.0
# Rows of a backlog that take several slots, because each look at them, of 200, is made to take so long.
BACKLOG, EACH_LOOK = 8_000, 0.05


def by_clock(
    folder: Path,
    *,
    begins: float,
    seconds: float = SECONDS,
    slots: int = SLOTS,
    window: int = 4,
    delay: float | None = None,
    **over: Any,
) -> Streams:
    clock = {"slot_rows": None, "slot_seconds": seconds, "begins": begins, "slots": slots, "max_lateness": window}
    clock |= {"slot_delay": delay} if delay is not None else {}
    folder.mkdir()
    return Streams(folder, sections=sections(slots=clock, task={"neighbours": "add-remove"}, **over))


def text_of(rows: np.ndarray[Any, Any]) -> list[str]:
    """The lines of a file of these rows: made beforehand, because it takes longer than a slot."""
    return [",".join(COLUMNS) + "\n", *(",".join(map(repr, row)) + "\n" for row in rows.tolist())]


def slowly(poll: Any) -> Any:
    def slow(follower: Follower, *given: Any, **more: Any) -> Any:
        if (event := poll(follower, *given, **more)) is not None:
            time.sleep(EACH_LOOK)
        return event

    return slow


def digest_of(closed: Any) -> str:
    return hashlib.sha256(closed.summary.tobytes()).hexdigest()


def closed_with(company: Streams, rows: np.ndarray[Any, Any]) -> str:
    """The digest of a slot that has these rows."""
    filled = slot_parties_of(company.study, memory=1 << 30).task.open()
    filled.add(rows)
    return digest_of(filled.close())


def run(company: Streams) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []

    async def all_of_them() -> None:
        async with asyncio.timeout(120):
            await asyncio.gather(company.serve(lines), *map(company.follow_site, company.names))

    asyncio.run(all_of_them())
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("trust", ["site", "masked"])
def test_the_rows_of_a_backlog_of_several_slots_are_in_one_slot_whatever_they_are(
    trust: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = table_of(0, BACKLOG)
    summaries: dict[tuple[str, int], str] = {}
    for party in (SlotMember, MaskedSlotMember):
        close = party.close

        def closing(member: Any, slot: int, closed: Any, close: Any = close) -> Any:
            # The sums before noise.
            summaries[member.name, slot] = digest_of(closed)
            return close(member, slot, closed)

        monkeypatch.setattr(party, "close", closing)
    monkeypatch.setattr(Follower, "poll", slowly(Follower.poll))
    company = by_clock(tmp_path / "study", begins=time.time() + 3.0, delay=6.0, privacy={"trust": trust})
    (company.folder / "site 0.csv").write_text("".join(text_of(rows)))
    for name in company.names[1:]:
        company.write(name, rows[:1])
    run(company)
    # Who closes which slots depends on the clock alone, and each row is in the slot in which it came.
    whole, one, none = (closed_with(company, there) for there in (rows, rows[:1], rows[:0]))
    first = {name: whole if name == "site 0" else one for name in company.names}
    assert summaries == {(name, slot): none if slot else first[name] for name in company.names for slot in range(SLOTS)}


def test_every_site_is_heard_when_it_is_first_asked(tmp_path: Path) -> None:
    company = by_clock(tmp_path / "study", begins=time.time() + 2.0, seconds=2.0, slots=3, window=0)
    for name in company.names:
        company.write(name, table_of(0, 50))
    heard = {line["slot"]: line["heard"] for line in reversed(run(company))}
    # As of the first line of each slot, which is written when the hub has asked once.
    assert heard == dict.fromkeys(range(1, 4), company.names)


@pytest.mark.slow
@pytest.mark.parametrize("trust", ["site", "masked"])
def test_a_site_with_a_backlog_and_one_row_more_says_and_misses_the_same(
    trust: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: dict[DurableSlotHub, dict[str, list[Any]]] = {}
    take = DurableSlotHub.take

    def taking(hub: DurableSlotHub, sender: str, data: bytes) -> Any:
        body = decode(data).body
        messages = heard.setdefault(hub, {}).setdefault(sender, [])
        messages.append((type(body).__name__, body.round, len(data)))
        return take(hub, sender, data)

    monkeypatch.setattr(DurableSlotHub, "take", taking)
    lines = text_of(table_of(0, BACKLOG))
    companies = []
    for at, backlog in enumerate((lines, [*lines, lines[1]])):
        # Longer than the rows take, and much shorter than a slot would have to be for them.
        company = by_clock(
            tmp_path / f"{at}", begins=time.time() + 5.0, seconds=0.5, delay=6.0, window=0, privacy={"trust": trust}
        )
        companies.append(company)
        (company.folder / "site 0.csv").write_text("".join(backlog))
        for name in company.names[1:]:
            company.write(name, table_of(0, 1))
        (company.folder / "study.toml").write_text(company.study.text())
    shown: list[list[dict[str, Any]]] = [[], []]

    async def both() -> None:
        await asyncio.gather(*map(with_process, companies, shown))

    asyncio.run(both())
    one, other = (
        [(line["slot"], line["heard"], line["missing"], line["skipped"], line["late"]) for line in told] for told in shown
    )
    assert one == other and one[-1][1] == companies[0].names
    first, second = heard.values()
    assert first == second
    for company in companies:
        with DurableLedger.open(company.ledger("site 0")) as ledger:
            (study,) = ledger.studies()
            assert study.state == "finished"


async def with_process(company: Streams, told: list[dict[str, Any]]) -> None:
    """The study, with its first site in a process of its own."""
    name, *others = company.names
    command = [sys.executable, "-c", SITE, str(company.folder), name, json.dumps(as_text(keys_of(name, "site"))), str(EACH_LOOK)]

    async def alone() -> None:
        site = await asyncio.create_subprocess_exec(*command)
        assert await site.wait() == 0

    async with asyncio.timeout(180):
        await asyncio.gather(company.serve(told), alone(), *map(company.follow_site, others))


@pytest.mark.parametrize("trust", ["site", "masked"])
def test_a_site_whose_rows_take_longer_than_the_delay_leaves_the_study_once_and_for_good(
    trust: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins = time.time() + 2.0
    company = by_clock(tmp_path / "study", begins=begins, delay=1.0, slots=5, window=0, privacy={"trust": trust})
    for name in company.names:
        company.write(name, table_of(0, 5))
    poll = Follower.poll

    def slow(follower: Follower, now: Any, **more: Any) -> Any:
        # From the third slot on its rows take longer than the delay.
        if follower.source.source.name == "site 0.csv" and now.wall > begins + 2.5:
            return None
        return poll(follower, now, **more)

    monkeypatch.setattr(Follower, "poll", slow)
    ends: list[BaseException] = []

    async def late() -> None:
        try:
            await company.follow_site("site 0")
        except ProtocolError as error:
            ends.append(error)

    async def all_of_them(told: list[dict[str, Any]]) -> None:
        async with asyncio.timeout(60):
            await asyncio.gather(company.serve(told), late(), *map(company.follow_site, company.names[1:]))

    told: list[dict[str, Any]] = []
    asyncio.run(all_of_them(told))
    (error,) = ends
    assert "rows of slot 3 were not added up within 1 seconds" in str(error)
    # Among three sites masks need all of them, so that later slots are skipped.
    others = [] if trust == "masked" else company.names[1:]
    assert {line["slot"]: line["heard"] for line in told} == {slot: company.names if slot < 3 else others for slot in range(1, 6)}
    with pytest.raises(LedgerError, match="closed for good"):
        asyncio.run(company.follow_site("site 0"))


@pytest.mark.slow
def test_a_site_that_was_stopped_for_longer_than_the_delay_goes_on(tmp_path: Path) -> None:
    delay, name = 3.0, "site 0"
    company = by_clock(tmp_path / "study", begins=time.time() + 6.0, slots=9, delay=delay, window=2)
    for site in company.names:
        company.write(site, table_of(0, 5))
    (company.folder / "study.toml").write_text(company.study.text())
    command = [sys.executable, "-c", SITE, str(company.folder), name, json.dumps(as_text(keys_of(name, "site"))), str(EACH_LOOK)]
    # They take longer than a look at what is due, and less than the delay.
    more = "".join(text_of(table_of(1, BACKLOG // 2))[1:])

    async def stopped() -> int:
        site = await asyncio.create_subprocess_exec(*command)
        while not any(notes.stat().st_size for notes in company.folder.glob("*.ends")):
            await asyncio.sleep(0.02)
        # As Ctrl-Z does. Whoever notes the ends goes on.
        site.send_signal(signal.SIGSTOP)
        with (company.folder / f"{name}.csv").open("a") as file:
            file.write(more)
        await asyncio.sleep(2 * delay + 1.0)
        site.send_signal(signal.SIGCONT)
        return await site.wait()

    async def all_of_them() -> int:
        async with asyncio.timeout(120):
            site = asyncio.ensure_future(stopped())
            await asyncio.gather(site, company.serve([]), *map(company.follow_site, company.names[1:]))
            return site.result()

    assert asyncio.run(all_of_them()) == 0
    with DurableLedger.open(company.ledger(name)) as ledger:
        (study,) = ledger.studies()
        assert study.state == "finished"
    # Every slot was closed once.
    assert [int(line.split()[0]) for line in (company.folder / "closed.txt").read_text().splitlines()] == list(range(9))


@pytest.mark.parametrize(
    ("seconds", "deadline", "expected"), [(1.0, 30.0, 30.0), (60.0, 30.0, 60.0), (86400.0, 30.0, 600.0), (1.0, 900.0, 900.0)]
)
def test_sites_answer_for_long_slots_after_ten_minutes(seconds: float, deadline: float, expected: float, tmp_path: Path) -> None:
    terms = {"deadline": deadline}
    company = by_clock(tmp_path / "study", begins=0.0, seconds=seconds, network=terms)
    assert slot_parties_of(company.study, memory=1 << 30).spec.delay == expected
    assert f"{expected:g} seconds after its end" in {fact.label: fact.text for fact in facts_of(company.study)}["Slots"]


def test_a_pipe_is_refused_by_the_clock_before_anything_is_reserved(tmp_path: Path) -> None:
    company = by_clock(tmp_path / "study", begins=time.time())
    reading, writing = os.pipe()
    os.write(writing, (",".join(COLUMNS) + "\n").encode())
    with os.fdopen(reading, "rb", buffering=0) as pipe, pytest.raises(ValueError, match="is a pipe"):
        asyncio.run(company.follow_site("site 0", source=pipe))
    os.close(writing)
    with DurableLedger.open(company.ledger("site 0")) as ledger:
        assert ledger.studies() == ()


@pytest.mark.slow
def test_a_site_that_was_stopped_in_its_first_slot_notes_ends_without_a_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Follower, "poll", slowly(Follower.poll))
    backlog = "".join(text_of(table_of(0, 2 * BACKLOG)))
    company = by_clock(tmp_path / "study", begins=time.time() + 2.0)
    (company.folder / "site 0.csv").write_text(backlog)

    def noted() -> int:
        return sum(len(notes.read_bytes().splitlines()) for notes in company.folder.glob("*.ends"))

    async def until(enough: int, *parties: Coroutine[Any, Any, Any]) -> None:
        tasks = [asyncio.ensure_future(party) for party in parties]
        async with asyncio.timeout(60):
            while noted() < enough:
                await asyncio.sleep(0.02)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Where the first slot begins and ends. Its rows take longer than that.
    asyncio.run(until(2, company.serve([]), company.follow_site("site 0")))
    asyncio.run(until(noted() + 1, company.follow_site("site 0")))


SITE = """
import asyncio, hashlib, json, os, sys, time
from pathlib import Path
from eigenveil.data.follow import Follower, follow
from eigenveil.network.agents.slot_site import SlotSiteAgent
from eigenveil.network.certificates import Certificate, Keys
from eigenveil.ledger.durable import DurableLedger
from eigenveil.network.study import StudyFile
from eigenveil.protocols.keys import Identity
from eigenveil.protocols.slot_hub import SlotMember

folder, name, texts = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
close = SlotMember.close

def closing(member, slot, closed):
    with (folder / "closed.txt").open("a") as log:
        log.write(f"{slot} {hashlib.sha256(closed.summary.tobytes()).hexdigest()}\\n")
    return close(member, slot, closed)

poll = Follower.poll

def slow(follower, *given, **more):
    if (event := poll(follower, *given, **more)) is not None:
        time.sleep(float(sys.argv[4]))
    return event

SlotMember.close, Follower.poll = closing, slow
study = StudyFile.read(folder / "study.toml")
keys = Keys(Certificate.read(texts[0]), Identity(bytes.fromhex(texts[1])), texts[2].encode())
with DurableLedger.open(folder / f"{name}.ledger") as ledger:
    agent = SlotSiteAgent(study, keys=keys, ledger=ledger, dataset="sensor", policy=None)
    asyncio.run(agent.run(follow(folder / f"{name}.csv", columns=study.columns)))
"""


@pytest.mark.slow
def test_a_site_that_is_killed_in_its_backlog_closes_the_same_slots(tmp_path: Path) -> None:
    rows, name = table_of(0, BACKLOG), "site 0"
    backlog = "".join(text_of(rows))
    company = by_clock(tmp_path / "study", begins=time.time() + 5.0, slots=8, delay=12.0)
    (company.folder / f"{name}.csv").write_text(backlog)
    for other in company.names[1:]:
        company.write(other, rows[:1])
    (company.folder / "study.toml").write_text(company.study.text())
    command = [sys.executable, "-c", SITE, str(company.folder), name, json.dumps(as_text(keys_of(name, "site"))), str(EACH_LOOK)]
    rng = np.random.default_rng(0)
    kills = 0

    async def killed() -> None:
        """A site that is killed again and again once its first slot has ended, until it gets through."""
        nonlocal kills
        while True:
            site = await asyncio.create_subprocess_exec(*command)
            try:
                while not any(notes.stat().st_size for notes in company.folder.glob("*.ends")):
                    await asyncio.sleep(0.02)
                    assert site.returncode is None
                await asyncio.wait_for(site.wait(), 0.5 + rng.random() if kills < 5 else 120.0)
                assert site.returncode == 0
                return
            except TimeoutError:
                site.send_signal(signal.SIGKILL)
                await site.wait()
                kills += 1

    async def all_of_them() -> None:
        async with asyncio.timeout(180):
            await asyncio.gather(company.serve([]), killed(), *map(company.follow_site, company.names[1:]))

    asyncio.run(all_of_them())
    assert kills == 5
    whole, empty = closed_with(company, rows), closed_with(company, rows[:0])
    lines = [line.split() for line in (company.folder / "closed.txt").read_text().splitlines()]
    # A slot that was closed again after a kill has the same rows, and each end that was noted has its own.
    assert {(int(slot), digest) for slot, digest in lines} == {(0, whole)} | {
        (int(slot), empty) for slot, _ in lines if slot != "0"
    }
    with DurableLedger.open(company.ledger(name)) as ledger:
        (study,) = ledger.studies()
        assert study.state == "finished"
        ledger.verify()
    assert not list(company.folder.glob("*.ends*"))
