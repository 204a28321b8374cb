"""Transports on loopback with real TLS, callers that follow no rules, and a loop that must be clean at the end."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, final

import grpc
import grpc.aio

from eigenveil.runtimes.grpc import Credentials, Got, Joined, Timing, Transport, TransportEvent
from runtimes.network_certificates import Authority, Party

Result = TypeVar("Result")

HERE, GREETING = "127.0.0.1", b"study 1"
QUICK = Timing(shortest=0.02, longest=0.2, held=0.05, farewell=0.5)
# Keys take a while to make, and no test changes them.
AUTHORITY = Authority()
HUB, *SITES = (AUTHORITY.party(name) for name in ("hub", "a", "b", "c", "d", "e"))
_MADE: list[Transport] = []
KNOWN = {party.pem: party.name for party in (HUB, *SITES)}


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """`asyncio.run`, and then: nothing was left running, nothing went wrong unseen, no socket is left open."""
    complaints: list[str] = []
    # Garbage is looked for twice below: of this run, and not of all that were before it.
    gc.freeze()

    async def watched() -> Result:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(str(context)))
        try:
            result = await work
        finally:
            # Also of a test that failed: gRPC does not survive a loop that ends before its connections.
            await asyncio.gather(*(each.close(0.2) for each in _MADE))
            _MADE.clear()
        gc.collect()
        stray = asyncio.all_tasks() - {asyncio.current_task()}
        assert all("_handle_status_once_received" in repr(task) for task in stray), stray
        # What a test called by itself gRPC ends by itself, a moment later.
        if stray:
            assert not (await asyncio.wait(stray, timeout=5.0))[1]
        return result

    result = asyncio.run(watched())
    gc.collect()
    assert not complaints, complaints
    return result


def open_sockets() -> int:
    """How many TCP sockets this process holds."""
    links = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(link.readlink()))
        except OSError:
            continue
    tables = "".join(Path(f"/proc/self/net/{table}").read_text() for table in ("tcp", "tcp6"))
    nodes = {line.split()[9] for line in tables.splitlines() if ":" in line and len(line.split()) > 9}
    return sum(link.startswith("socket:[") and link[8:-1] in nodes for link in links)


async def soon(work: Awaitable[Result], seconds: float = 15.0) -> Result:
    """What comes, or a failure instead of a test that hangs."""
    return await asyncio.wait_for(work, seconds)


async def until(true: Callable[[], bool], seconds: float = 15.0) -> None:
    """Wait for something that no event tells of."""

    async def look() -> None:
        while not true():
            await asyncio.sleep(0.005)

    await soon(look(), seconds)


async def next_event(transport: Transport, seconds: float = 15.0) -> TransportEvent:
    return await soon(transport.events.get(), seconds)


async def next_data(transport: Transport) -> bytes:
    event = await next_event(transport)
    assert isinstance(event, Got), event
    return event.data


def transport(party: Party, **changed: Any) -> Transport:
    """A transport of `party`, which `run` closes."""
    _MADE.append(Transport(party.name, **{"credentials": party.credentials, "greeting": GREETING, "timing": QUICK, **changed}))
    return _MADE[-1]


@final
class Hall:
    """A hub that listens, and the parties that dial it. All are closed at the end."""

    def __init__(self, hub: Transport, port: int) -> None:
        self.hub, self.port = hub, port
        self.transports = [hub]

    def dialling(self, party: Party, **changed: Any) -> Transport:
        """`party`, on its way to the hub."""
        made = transport(party, **changed)
        self.transports.append(made)
        made.dial("hub", f"{HERE}:{self.port}", certificate=HUB.pem, server_name=HUB.server_name)
        return made

    async def joined(self, party: Party, **changed: Any) -> Transport:
        """`party`, joined on both sides, with both events taken."""
        made = self.dialling(party, **changed)
        assert await next_event(made) == Joined("hub")
        assert await next_event(self.hub) == Joined(party.name)
        return made


@asynccontextmanager
async def hall(*, port: int = 0, **changed: Any) -> AsyncIterator[Hall]:
    hub = transport(HUB, **changed)
    made = Hall(hub, await hub.listen(f"{HERE}:{port}", recognise=KNOWN.get))
    try:
        yield made
    finally:
        await asyncio.gather(*(each.close(0.2) for each in made.transports))


@asynccontextmanager
async def raw_call(
    port: int, credentials: Credentials, *, root: bytes = HUB.pem, method: str = "/eigenveil.Line1/Talk"
) -> AsyncIterator["grpc.aio.StreamStreamCall[bytes, bytes]"]:
    """A call of somebody who writes gRPC messages as they like."""
    trusted = grpc.ssl_channel_credentials(root, credentials.key, credentials.certificate)
    options = (("grpc.ssl_target_name_override", HUB.server_name), ("grpc.use_local_subchannel_pool", 1))
    async with grpc.aio.secure_channel(f"{HERE}:{port}", trusted, options) as channel:
        call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(method)()
        yield call
        call.cancel()
