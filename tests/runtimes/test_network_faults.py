"""What goes wrong between machines: parties that die, stop, flood, lie or are cancelled. Everybody else goes on, and is told."""

import asyncio
import os
import resource
import signal
import socket
import struct
from collections.abc import Callable
from dataclasses import replace

import grpc
import grpc.aio
import pytest

from eigenveil.runtimes.grpc import Got, Joined, Left
from eigenveil.runtimes.grpc.channel import CHUNK, bye, frames_of, greeting_frame
from runtimes.network_children import child, computes, sends
from runtimes.network_transports import (
    GREETING,
    HERE,
    HUB,
    KNOWN,
    QUICK,
    SITES,
    hall,
    next_data,
    next_event,
    raw_call,
    run,
    soon,
    transport,
    until,
)

A, B, *_ = SITES
HELLO = greeting_frame(GREETING)


def test_a_process_killed_in_the_middle_of_a_message_leaves_and_the_next_is_whole() -> None:
    async def check() -> None:
        async with hall() as here:
            with child(sends, A, HUB, here.port, GREETING, 256 << 20) as process:
                assert await next_event(here.hub, 30.0) == Joined("a")
                # It is in the middle of its message.
                await until(lambda: here.hub.received["a"] > 8 * CHUNK)
                process.kill()
                left = await next_event(here.hub)
                assert isinstance(left, Left)
                assert "lost" in left.why
            site = await here.joined(A)
            data = bytes(range(256)) * 20_000
            assert await site.send("hub", 1, data)
            assert await next_event(here.hub) == Got("a", 1, data)

    run(check())


def test_a_listener_that_ends_in_the_middle_of_a_message_is_found_again() -> None:
    async def check() -> None:
        async with hall() as here:
            site = await here.joined(A)
            # The hub takes nothing out, so the message cannot end before the hub does.
            first = asyncio.create_task(site.send("hub", 0, bytes(64 << 20)))
            second = asyncio.create_task(site.send("hub", 0, bytes(64 << 20)))
            await until(lambda: here.hub.received["a"] > 2 * CHUNK)
            await here.hub.close(0)
            assert not await soon(second)
            await soon(first)
            assert isinstance(await next_event(site), Left)
            again = transport(HUB)
            assert await again.listen(f"{HERE}:{here.port}", recognise=KNOWN.get) == here.port
            assert await next_event(site) == Joined("hub")
            assert await next_event(again) == Joined("a")
            assert await site.send("hub", 2, b"whole")
            assert await next_event(again) == Got("a", 2, b"whole")

    run(check())


def test_a_hub_that_comes_back_is_found_within_the_wait() -> None:
    async def check() -> float:
        async with hall() as here:
            site = await here.joined(A)
            await here.hub.close()
            assert isinstance(await next_event(site), Left)
            # Long enough that gRPC's own waits, which grow from a second, would be felt.
            await until(lambda: "connection refused" in site.trouble.get("hub", ""))
            await asyncio.sleep(1.5)
            again = transport(HUB)
            await again.listen(f"{HERE}:{here.port}", recognise=KNOWN.get)
            start = asyncio.get_running_loop().time()
            assert await next_event(site) == Joined("hub")
            assert site.trouble == {}
            return asyncio.get_running_loop().time() - start

    assert run(check()) < 1.0


def test_a_host_that_does_not_exist_or_does_not_answer_is_tried_on_and_the_reason_is_there() -> None:
    async def check() -> None:
        with socket.create_server((HERE, 0)) as silent:
            port = silent.getsockname()[1]
            site = transport(A, timing=replace(QUICK, patience=0.3))
            for name, address in (("b", "nowhere.invalid:1"), ("hub", f"{HERE}:{port}"), ("c", f"{HERE}:9")):
                site.dial(name, address, certificate=HUB.pem, server_name=HUB.server_name)
            await until(lambda: len(site.trouble) == 3)
            assert site.trouble["hub"] == "no answer within 0.3 s"
            assert site.trouble["c"] == f"no program listens at {HERE}:9 (connection refused)"
            assert "nowhere.invalid:1" in site.trouble["b"] or "no answer" in site.trouble["b"]
            assert not site.events
            await site.close()

    run(check())


def test_a_party_that_has_stopped_is_noticed_by_its_silence() -> None:
    async def check() -> None:
        async with hall(timing=replace(QUICK, silence=1.0)) as here:
            with child(sends, A, HUB, here.port, GREETING, 10) as process:
                assert await next_event(here.hub, 30.0) == Joined("a")
                assert process.pid is not None
                os.kill(process.pid, signal.SIGSTOP)
                while isinstance(event := await next_event(here.hub), Got):
                    pass
                assert isinstance(event, Left)

    run(check())


def test_a_party_that_computes_is_not_taken_for_gone() -> None:
    async def check() -> None:
        async with hall(timing=replace(QUICK, silence=0.5)) as here:
            with child(computes, A, HUB, here.port, GREETING, 0.5, 2.5):
                assert await next_event(here.hub, 30.0) == Joined("a")
                assert await next_event(here.hub) == Got("a", 6, b"computed")

    run(check())


def test_a_flood_is_held_back_until_it_is_taken() -> None:
    """64 MiB may wait; the peer would send 1 GiB."""

    async def check() -> None:
        async with hall() as here:
            with child(sends, A, HUB, here.port, GREETING, 4 << 20):
                assert await next_event(here.hub, 30.0) == Joined("a")
                await until(lambda: here.hub.received["a"] > 60 << 20)
                await soon(until_still(lambda: here.hub.received["a"]))
                assert here.hub.received["a"] < 72 << 20
                # Another is not held back by it.
                other = here.dialling(B)
                assert await next_event(other) == Joined("hub")
                for _ in range(64):
                    await next_event(here.hub)
                assert here.hub.received["a"] > 240 << 20

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(check())
    # Kilobytes; what waits, what is on the way, and some air. All that was sent is more than twice that.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 160 << 10


async def until_still(count: Callable[[], int]) -> None:
    """Wait until a count has not changed for a while."""
    last, same = -1, 0
    while same < 30:
        await asyncio.sleep(0.01)
        last, same = count(), same + 1 if count() == last else 0


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([b"\x09unknown"], "not the beginning of a message"),
        ([b""], "not the beginning of a message"),
        ([b"\x02" + bytes(10)], "not the beginning of a message"),
        ([HELLO], "not the beginning of a message"),
        ([struct.pack("<BBQ", 1, 0, 3) + b"abcd"], "another number of bytes than it announced"),
        ([struct.pack("<BBQ", 1, 0, CHUNK + 1) + bytes(CHUNK), b"\x02ab"], "another number of bytes than it announced"),
        ([struct.pack("<BBQ", 1, 0, CHUNK + 1) + bytes(CHUNK), *frames_of(0, b"")], "in the middle of a message"),
        ([struct.pack("<BBQ", 1, 0, 1 << 62) + bytes(CHUNK)], "announced a message of"),
        ([bytes((3, 200))], "it ended the connection"),
        ([bye(0)], "it closed the connection"),
    ],
)
def test_whoever_breaks_the_rules_is_cut_off(frames: list[bytes], why: str) -> None:
    async def check() -> None:
        async with hall() as here, raw_call(here.port, A.credentials) as call:
            await call.write(HELLO)
            assert await soon(call.read()) == HELLO
            assert await next_event(here.hub) == Joined("a")
            for frame in frames:
                await call.write(frame)
            left = await next_event(here.hub)
            assert isinstance(left, Left)
            assert why in left.why
            while isinstance(await soon(call.read()), bytes):
                pass
            assert await soon(call.code()) == grpc.StatusCode.OK
            assert here.hub.connected() == frozenset()

    run(check())


def test_one_huge_message_is_refused_by_grpc_itself() -> None:
    async def check() -> None:
        async with hall() as here, raw_call(here.port, A.credentials) as call:
            await call.write(HELLO)
            assert await next_event(here.hub) == Joined("a")
            received = here.hub.received["a"]
            await call.write(struct.pack("<BBQ", 1, 0, 2 * CHUNK) + bytes(2 * CHUNK))
            assert isinstance(await next_event(here.hub), Left)
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                while await soon(call.read()):
                    pass
            assert refusal.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert here.hub.received["a"] == received

    run(check())


@pytest.mark.parametrize("opening", [[], [b"\x00" + bytes(5000)], [b"\x01hello"], [b""]])
def test_whoever_does_not_greet_never_joins(opening: list[bytes]) -> None:
    async def check() -> None:
        async with hall(timing=replace(QUICK, patience=0.3)) as here, raw_call(here.port, A.credentials) as call:
            for frame in opening:
                await call.write(frame)
            while isinstance(await soon(call.read()), bytes):
                pass
            assert not here.hub.events
            assert here.hub.connected() == frozenset()
            await until(lambda: "a" in here.hub.trouble)

    run(check())


def test_connections_that_have_not_greeted_do_not_pile_up() -> None:
    async def check() -> None:
        async with hall() as here, raw_call(here.port, A.credentials) as older:
            assert await soon(older.read()) == HELLO
            async with raw_call(here.port, A.credentials) as newer:
                assert await soon(newer.read()) == HELLO
                assert await soon(older.code(), 5.0) == grpc.StatusCode.OK
                assert not newer.done()

    run(check())


def test_a_cancelled_send_leaves_the_connection_sound() -> None:
    async def check() -> None:
        async with hall() as here:
            site = await here.joined(A)
            begun = asyncio.create_task(site.send("hub", 1, bytes(16 << 20)))
            waiting = asyncio.create_task(site.send("hub", 2, b"never begun"))
            await until(lambda: site.sent["hub"] > CHUNK)
            for task in (begun, waiting):
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert await soon(site.send("hub", 3, b"after"))
            got = [await next_event(here.hub) for _ in range(2)]
            assert [(event.kind, len(event.data)) for event in got if isinstance(event, Got)] == [(1, 16 << 20), (3, 5)]

    run(check())


def test_a_send_that_nobody_reads_comes_back_when_its_connection_is_replaced_or_closed() -> None:
    async def check() -> None:
        async with hall() as here, raw_call(here.port, A.credentials) as call:
            await call.write(HELLO)
            assert await soon(call.read()) == HELLO
            assert await next_event(here.hub) == Joined("a")
            stuck = [asyncio.create_task(here.hub.send("a", 0, bytes(32 << 20))) for _ in range(3)]
            done, _ = await asyncio.wait(stuck, timeout=0.3)
            assert not done
            site = here.dialling(A)
            assert await next_event(site) == Joined("hub")
            assert await soon(asyncio.gather(*stuck)) == [False] * 3
            assert await here.hub.send("a", 0, b"to the newer one")
            assert await next_data(site) == b"to the newer one"
            await site.close()

    run(check())


def test_closing_does_not_wait_for_whoever_does_not_read() -> None:
    async def check() -> float:
        async with hall() as here, raw_call(here.port, A.credentials) as call:
            await call.write(HELLO)
            assert await next_event(here.hub) == Joined("a")
            stuck = asyncio.create_task(here.hub.send("a", 0, bytes(32 << 20)))
            await asyncio.wait({stuck}, timeout=0.2)
            start = asyncio.get_running_loop().time()
            await soon(here.hub.close(0.5))
            assert not await soon(stuck)
            return asyncio.get_running_loop().time() - start

    assert 0.4 < run(check()) < 5


def test_a_cancelled_close_still_closes() -> None:
    async def check() -> None:
        async with hall() as here, raw_call(here.port, A.credentials) as call:
            await call.write(HELLO)
            assert await next_event(here.hub) == Joined("a")
            closing = asyncio.create_task(here.hub.close(0.2))
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            await soon(here.hub.close())
            assert here.hub.connected() == frozenset()
            assert await soon(call.read()) == HELLO
            assert await soon(call.read()) == bye(0)
            assert not isinstance(await soon(call.read()), bytes)

    run(check())


def test_losing_somebody_again_and_again_leaves_nothing_behind() -> None:
    async def check() -> None:
        async with hall() as here:
            for number in range(10):
                site = await here.joined(A)
                await site.send("hub", 0, bytes([number]))
                assert await next_data(here.hub) == bytes([number])
                await site.close(number % 2)
                assert isinstance(await next_event(here.hub), Left)
            await until(lambda: not here.hub._tasks and not here.hub._open)

    run(check())
