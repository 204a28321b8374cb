"""Before anything is said, and when too much is: floods, long messages, policies, and strangers with certificates."""

import asyncio
import contextlib
import re
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eigenveil.network.agents.runner import credentials_of
from eigenveil.network.authority import new_request, write_new
from eigenveil.network.certificates import Keys, recogniser
from eigenveil.network.policy import PolicyRefusal
from eigenveil.network.study import StudyFile
from eigenveil.protocols.messages import Ask, Contribution, Message
from eigenveil.protocols.wire import encode
from eigenveil.runtimes.grpc import Transport
from network.hostile.hostile_checks import SECONDS, alone, logged, nothing_comes, refusals, require_paid, until, written
from network.kills.kill_counts import STUDIES, charges_in
from network.network_studies import Company, authority

KRYLOV = {"method": "krylov", "rounds": 3}


def resident() -> int:
    """The bytes of memory that this process holds now: what it held at most may be due to other tests."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_flood_of_junk_fills_neither_the_ledger_nor_the_memory(tmp_path: Path) -> None:
    # A site holds as much unread messages as one message may have.
    company = Company(tmp_path, sections={**STUDIES["site krylov"], "network": {"max_message_bytes": 1 << 16}})
    count, size = 4_000, 8192

    async def flooding() -> int:
        async with alone(company) as hub:
            first = await hub.ask(Ask(0, hub.question()))
            before = resident()
            junk = encode(Message("hub", "site 0", Contribution(round=0, arrays=(np.ones(size // 8),))))
            for number in range(count):
                # Each another one, half of them well formed.
                await hub.say(junk[:-8] + number.to_bytes(8, "little") if number % 2 else b"%d" % number + bytes(size))
            await nothing_comes(hub, b"the last", Ask(0, hub.question()), first)
            require_paid(company, hub.got)
            return resident() - before

    grown = asyncio.run(flooding())
    # A line for each of so many refusals, and none for any more of them.
    assert len(refusals(company)) == count + 1
    assert len(logged(company)) == 100
    assert grown < count * size / 2


@pytest.mark.parametrize("how", ["rounds", "absentees"])
def test_one_question_in_ever_new_words_does_not_fill_the_ledger(tmp_path: Path, how: str) -> None:
    company, count = Company(tmp_path, sections=STUDIES["site krylov"]), 300

    async def asking() -> None:
        async with alone(company) as hub:
            for number in range(count):
                round_, without = (number, ()) if how == "rounds" else (0, (f"site {number}",))
                await hub.say(Ask(round_, hub.question(), without))
            await until(lambda: sum(told.what in ("said", "refused") for _, told in company.happened) >= count)

    asyncio.run(asking())
    commits = [line for line in written(company) if line.kind == "commit"]
    assert len(charges_in(commits)) == 1
    assert len(commits) < count / 2


def test_a_message_that_is_too_long_is_not_read_and_ends_one_connection_only(tmp_path: Path) -> None:
    company = Company(tmp_path, sections={**STUDIES["site krylov"], "network": {"max_message_bytes": 1 << 16}})

    async def asking() -> None:
        async with alone(company) as hub:
            first = await hub.ask(Ask(0, hub.question()))
            await hub.say(bytes(1 << 17))
            await hub.left()
            await hub.joined()
            await nothing_comes(hub, bytes(1 << 16), Ask(0, hub.question()), first)
            require_paid(company, hub.got)

    asyncio.run(asking())
    left = [told.text for who, told in company.happened if who == "site 0" and told.what == "left"]
    assert left == ["it announced a message of 131072 bytes, and at most 65536 are allowed"]


POLICY = """
[pins]
hub = ["{hub}"]
[pins.peers]
"site 1" = "{one}"
"site 2" = "{two}"
[budget]
study_epsilon = 5.0
lifetime_epsilon = 5.0
"""


def policy_of(company: Company) -> str:
    """One that allows the study."""
    pins = {place.name: place.pin for place in company.study.places}
    return POLICY.format(hub=pins["hub"], one=pins["site 1"], two=pins["site 2"])


@contextmanager
def ears(port: int) -> Iterator[Callable[[], int]]:
    """An attacker that listens in the hub's place; says how many have come."""
    count = 0
    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.setblocking(False)

        def heard() -> int:
            nonlocal count
            with contextlib.suppress(BlockingIOError):
                while True:
                    listener.accept()[0].close()
                    count += 1
            return count

        yield heard


REFUSALS: dict[str, tuple[dict[str, Any], Callable[[str], str], list[str]]] = {
    "allowed": ({}, lambda text: text, []),
    "hub not pinned": ({}, lambda text: text.replace('hub = ["', f'hub = ["{"0" * 64}"] # '), ["[pins] hub"]),
    "peer not pinned": ({}, lambda text: text.replace('"site 2" =', '# "site 2" ='), ["[pins.peers] 'site 2' is not there"]),
    "peer with other keys": (
        {},
        lambda text: re.sub('"site 1" = ".*"', f'"site 1" = "{"1" * 64}"', text),
        ["[pins.peers] 'site 1' is pinned as"],
    ),
    "epsilon": ({}, lambda text: text.replace("study_epsilon = 5.0", "study_epsilon = 1.0"), ["[budget] study_epsilon"]),
    "task": ({"task": KRYLOV}, lambda text: text + '[limits]\nmethod = ["covariance"]', ["[limits] method"]),
    "organisations": ({}, lambda text: text + "[limits]\norganisations = 4", ["[limits] organisations"]),
    "rows": ({}, lambda text: text + "[limits]\nrows = 1000", ["[limits] rows"]),
    "trust": ({"privacy": {"trust": "hub"}}, lambda text: text, ["[limits] trust"]),
    "all at once": (
        {"task": KRYLOV},
        lambda text: '[limits]\norganisations = 9\nrows = 1000\nmethod = ["covariance"]\ntrust = ["site"]',
        [
            "[pins] hub",
            "[pins.peers] 'site 1'",
            "[pins.peers] 'site 2'",
            "[limits] organisations",
            "[limits] method",
            "[limits] trust",
            "[budget] study_epsilon",
            "[budget] lifetime_epsilon",
            "[limits] rows",
        ],
    ),
}


@pytest.mark.parametrize("sections, change, expected", REFUSALS.values(), ids=list(REFUSALS))
def test_what_the_policy_refuses_is_refused_with_all_reasons_and_nobody_is_called(
    tmp_path: Path, sections: dict[str, Any], change: Callable[[str], str], expected: list[str]
) -> None:
    company = Company(tmp_path, sections=sections)
    company.policy = change(policy_of(company))

    async def once(heard: Callable[[], int]) -> None:
        run = asyncio.create_task(company.run_site("site 0"))
        # Where nothing is refused it calls the hub.
        await until(lambda: run.done() or heard() > 0)
        run.cancel()
        await run

    with ears(company.port) as heard:
        with pytest.raises(PolicyRefusal if expected else asyncio.CancelledError) as refusal:
            asyncio.run(once(heard))
        assert (heard() == 0) == bool(expected)
    if isinstance(refusal.value, PolicyRefusal):
        found = refusal.value.reasons
        assert len(found) == len(expected)
        assert all(reason.startswith(words) for reason, words in zip(found, expected, strict=True))
    assert [line.kind for line in written(company)] == (["book"] if expected else ["book", "join"])


def test_a_second_site_1_under_the_same_authority_is_not_the_one_that_was_pinned(tmp_path: Path) -> None:
    company = Company(tmp_path)
    company.policy = policy_of(company)
    minted = authority().sign(new_request("site 1", "site")[0])
    document = company.document()
    document["site"][1] = {"certificate": minted.pem}
    company.study = StudyFile.of(document)
    with ears(company.port) as heard:
        with pytest.raises(PolicyRefusal) as refusal:
            asyncio.run(company.run_site("site 0"))
        assert heard() == 0
    (reason,) = refusal.value.reasons
    assert reason.startswith("[pins.peers] 'site 1' is pinned as") and minted.pin in reason


def test_somebody_in_the_middle_with_the_name_of_the_hub_and_its_authority_is_not_connected_to(tmp_path: Path) -> None:
    company = Company(tmp_path)
    request, private = new_request("hub", "hub")
    path = tmp_path / "hub.key"
    write_new(private={path: private}, public={path.with_suffix(".crt"): authority().sign(request).pem})
    tries = 0

    async def in_the_middle() -> Transport:
        async with asyncio.timeout(SECONDS):
            transport = Transport(
                "hub", credentials=credentials_of(company.study, Keys.load(path)), greeting=company.study.greeting
            )
            known = recogniser([place.certificate for place in company.study.sites])
            port = await transport.listen("127.0.0.1:0", recognise=known)
            wires: set[asyncio.Task[None]] = set()

            async def wire(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                """Passes on, and counts the attempts that have ended."""
                nonlocal tries
                there, back = await asyncio.open_connection("127.0.0.1", port)
                with contextlib.suppress(ConnectionError):
                    await asyncio.wait(
                        {asyncio.create_task(pump(reader, back)), asyncio.create_task(pump(there, writer))},
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                back.close()
                writer.close()
                tries += 1

            server = await asyncio.start_server(wire, "127.0.0.1", company.port)
            run = asyncio.create_task(company.run_site("site 0"))
            await until(lambda: tries >= 2)
            run.cancel()
            await asyncio.gather(run, *wires, return_exceptions=True)
            server.close()
            await transport.close(0.2)
            return transport

    transport = asyncio.run(in_the_middle())
    assert transport.connected() == frozenset() and not transport.received and len(transport.events) == 0
    assert not any(told.what == "joined" for _, told in company.happened)
    assert charges_in(written(company)) == []


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on until there is no more."""
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
