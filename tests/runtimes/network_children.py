"""Sites in processes of their own, to be killed or stopped."""

import asyncio
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

from eigenveil.runtimes.grpc import Joined, Timing, Transport
from runtimes.network_certificates import Party


@contextmanager
def child(target: Callable[..., None], *details: Any) -> Iterator[BaseProcess]:
    """A process that runs `target(*details)`; it is gone at the end, whatever it does."""
    process = multiprocessing.get_context("spawn").Process(target=target, args=details, daemon=True)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def sends(party: Party, hub: Party, port: int, greeting: bytes, length: int) -> None:
    """Joins, and sends messages of `length` bytes for as long as it lives."""

    async def work() -> None:
        async with Transport(party.name, credentials=party.credentials, greeting=greeting) as transport:
            transport.dial("hub", f"127.0.0.1:{port}", certificate=hub.pem, server_name=hub.server_name)
            assert await transport.events.get() == Joined("hub")
            data = bytes(length)
            while True:
                await transport.send("hub", 5, data)

    asyncio.run(work())


def computes(party: Party, hub: Party, port: int, greeting: bytes, silence: float, busy: float) -> None:
    """Joins, then computes for `busy` seconds without ever giving the loop a round, and says so afterwards."""

    async def work() -> None:
        timing = Timing(silence=silence)
        async with Transport(party.name, credentials=party.credentials, greeting=greeting, timing=timing) as transport:
            transport.dial("hub", f"127.0.0.1:{port}", certificate=hub.pem, server_name=hub.server_name)
            assert await transport.events.get() == Joined("hub")
            end = time.monotonic() + busy
            while time.monotonic() < end:
                sum(range(1000))
            await transport.send("hub", 6, b"computed")
            await transport.events.get()

    asyncio.run(work())
