"""The queue of events: in order, bounded in bytes for each sender, and whole after a cancelled wait."""

import asyncio

import pytest

from eigenveil.runtimes.grpc import Got, Inbox, Joined, Left, Timing
from eigenveil.runtimes.grpc.channel import Backoff
from runtimes.network_transports import run, soon


async def waits(work: "asyncio.Task[None]") -> bool:
    """Whether it still waits after everybody had a round."""
    for _ in range(5):
        await asyncio.sleep(0)
    return not work.done()


def test_a_sender_waits_until_its_own_events_are_taken() -> None:
    async def check() -> None:
        inbox, gone = Inbox(room=10_000), asyncio.get_running_loop().create_future()
        for number in range(2):
            await soon(inbox.room("a", 4000, gone))
            inbox.put(Got("a", number, bytes(4000)))
        third = asyncio.create_task(inbox.room("a", 4000, gone))
        assert await waits(third)
        # Somebody else is not held up, and their events do not make room for the first.
        await soon(inbox.room("b", 4000, gone))
        inbox.put(Got("b", 0, bytes(4000)))
        assert await waits(third)
        first = await inbox.get()
        assert isinstance(first, Got)
        assert (first.name, first.kind) == ("a", 0)
        await soon(third)

    run(check())


def test_one_message_alone_has_room_and_whoever_is_gone_waits_no_more() -> None:
    async def check() -> None:
        inbox, gone = Inbox(room=100), asyncio.get_running_loop().create_future()
        await soon(inbox.room("a", 1 << 30, gone))
        inbox.put(Got("a", 0, b""))
        second = asyncio.create_task(inbox.room("a", 1, gone))
        assert await waits(second)
        gone.set_result("lost")
        await soon(second)

    run(check())


def test_empty_messages_are_bounded_too() -> None:
    async def check() -> int:
        inbox, gone = Inbox(room=100_000), asyncio.get_running_loop().create_future()

        async def flood() -> None:
            while True:
                # However slow the machine is: this ends when there is no room, and not after a time.
                await asyncio.wait_for(inbox.room("a", 0, gone), 0.3)
                inbox.put(Got("a", 0, b""))

        with pytest.raises(TimeoutError):
            await flood()
        return len(inbox)

    assert 10 < run(check()) < 1000


def test_a_cancelled_wait_loses_nothing() -> None:
    async def check() -> None:
        inbox = Inbox(room=100)
        waiting = asyncio.create_task(inbox.get())
        assert await waits(waiting)  # type: ignore[arg-type]
        inbox.put(Joined("a"))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        inbox.put(Left("a", "it closed the connection"))
        assert await soon(inbox.get()) == Joined("a")
        assert await soon(inbox.get()) == Left("a", "it closed the connection")
        waiting = asyncio.create_task(inbox.get())
        assert await waits(waiting)  # type: ignore[arg-type]
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    run(check())


def test_data_is_in_no_text() -> None:
    assert "secret" not in f"{Got('a', 1, b'secret')} {Got('a', 1, b'secret')!r}"


def test_waits_double_up_to_the_longest_and_begin_anew() -> None:
    backoff = Backoff(Timing(shortest=1.0, longest=5.0))
    for longest in (1.0, 2.0, 4.0, 5.0, 5.0):
        assert longest / 2 <= backoff.next() <= longest
    backoff.reset()
    assert 0.5 <= backoff.next() <= 1.0
    assert 2.5 <= backoff.next(slowly=True) <= 5.0


def test_waits_are_spread() -> None:
    assert len({Backoff(Timing()).next() for _ in range(20)}) == 20
