"""`Transport`: who is connected, kept connected, and told in one queue."""

import asyncio
import contextlib
import errno
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final, Self, final

import grpc
import grpc.aio

from eigenveil.errors import require
from eigenveil.protocols import wire
from eigenveil.runtimes.grpc.channel import LOST, Accepted, Channel, Dialled
from eigenveil.runtimes.grpc.connection import OTHER_STUDY, Connection
from eigenveil.runtimes.grpc.credentials import Credentials, dialling_options, host_and_port, listening_options
from eigenveil.runtimes.grpc.events import Inbox, Joined, Left
from eigenveil.runtimes.grpc.frames import LONGEST_GREETING, Bye
from eigenveil.runtimes.grpc.timing import Backoff, Timing

__all__ = ["Transport"]

# The number is that of the frames: who speaks others is told that the method is unknown.
_SERVICE, _METHOD = "eigenveil.Line1", "Talk"
_ROOM: Final = 64 << 20
_MOST_REFUSED: Final = 100
# Reasons for which trying again soon would not help.
_SLOW: Final = {OTHER_STUDY, Bye.WORDS[Bye.REPLACED], Bye.WORDS[Bye.CROSSED]}


@final
class Transport:
    """The connections of the party `me`. Changes in place; belongs to the event loop in which it is used.

    All that happens is in `events`: `Joined`, `Left` and whole messages as `Got`. `greeting` (at most 4096 bytes) says what this
    party works on; whoever greets otherwise never joins. No message may be longer than `limit` bytes, and no connection holds
    more than that, waiting events included. `sent` and `received` are bytes by name, `trouble` is why a name is not
    connected, and `refused` the last of those who were turned away. Close it, or use it in `async with`: gRPC does not survive a
    loop that ends before its connections.
    """

    def __init__(
        self,
        me: str,
        *,
        credentials: Credentials,
        greeting: bytes,
        limit: int = wire.LIMIT,
        timing: Timing | None = None,
    ) -> None:
        require(len(greeting) <= LONGEST_GREETING, f"greeting has {len(greeting)} bytes, at most {LONGEST_GREETING}")
        require(limit > 0, f"limit must be positive, got {limit}")
        self.me, self.limit = me, limit
        self.events = Inbox(room=min(limit, _ROOM))
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.trouble: dict[str, str] = {}
        self.refused: list[str] = []
        self._credentials, self._greeting = credentials, greeting
        self._timing = Timing() if timing is None else timing
        self._lines: dict[str, Connection] = {}
        self._greeted: dict[str, Connection] = {}
        self._dialled: set[str] = set()
        self._open: set[Connection] = set()
        self._tasks: set[asyncio.Task[bool]] = set()
        self._server: grpc.aio.Server | None = None
        self._closing = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def connected(self) -> frozenset[str]:
        """The names that have joined and not left."""
        return frozenset(self._lines)

    async def listen(self, address: str, *, recognise: Callable[[bytes], str | None]) -> int:
        """Take calls at `address`, "host:port" (port 0: any that is free), and return the port.

        `recognise` is given the certificate that a caller showed (PEM, and under our authority) and says who that is; with None
        the caller is turned away and told nothing.
        """
        require(self._server is None, "this switchboard listens already")
        self._require_open()
        host_and_port(address, least=0)

        async def talk(_: object, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
            await self._accept(context, recognise)

        server = grpc.aio.server(options=listening_options(self._timing))
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(talk)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler}),))
        try:
            port = server.add_secure_port(address, self._credentials.for_listening())
        except RuntimeError as error:
            raise _cannot_listen(address) from error
        await server.start()
        self._server = server
        return port

    def dial(self, name: str, address: str, *, certificate: bytes, server_name: str) -> None:
        """Connect to `name` at `address`, "host:port", and connect again whenever that ends, until `close`.

        `certificate` (PEM) is the only one that is accepted there, and `server_name` a DNS name in it, whatever `address` is.
        """
        self._require_open()
        require(name != self.me, f"{name!r} is this party itself")
        require(name not in self._dialled, f"{name!r} is dialled already")
        host, _ = host_and_port(address, least=1)
        trusted = self._credentials.for_dialling(certificate)
        options = dialling_options(self._timing, host=host, server_name=server_name)
        self._dialled.add(name)
        self._start(self._keep(name, address, lambda: grpc.aio.secure_channel(f"dns:///{address}", trusted, options)))

    async def send(self, name: str, kind: int, data: bytes) -> bool:
        """Send one message; True once all of it is handed to the transport, False if `name` is not connected or was lost.

        Waits while the other side does not keep up. Messages to one name arrive in the order in which they were sent.
        """
        require(0 <= kind <= 255, f"kind must lie in 0 to 255, got {kind}")
        require(len(data) <= self.limit, f"data has {len(data)} bytes, and limit is {self.limit}")
        line = self._lines.get(name)
        return line is not None and not self._closing.is_set() and await line.send(kind, data)

    async def close(self, grace: float = 2.0) -> None:
        """End everything; the other sides have `grace` seconds to read what was sent. Closing twice is closing once."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(grace))
        await asyncio.shield(self._ending)

    async def _end(self, grace: float) -> None:
        self._closing.set()
        goodbyes = {self._start(line.finish()) for line in self._lines.values()}
        try:
            if goodbyes:
                await asyncio.wait(goodbyes, timeout=grace)
        finally:
            for line in tuple(self._open):
                line.drop("closed here")
        if self._server is not None:
            await self._server.stop(min(grace, self._timing.farewell))
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _accept(
        self, context: "grpc.aio.ServicerContext[Any, Any]", recognise: Callable[[bytes], str | None]
    ) -> None:
        """One caller, from its certificate to its end."""
        name = _recognised(context, recognise)
        if name is None or name == self.me or self._closing.is_set():
            if not self._closing.is_set():
                self._refuse(f"a caller from {context.peer()}: its certificate is not one of those expected")
            await context.abort(grpc.StatusCode.PERMISSION_DENIED)
        stream = Accepted(context)
        line = self._line(name, stream)
        try:
            if name in self._dialled:
                line.drop(Bye.WORDS[Bye.CROSSED], Bye.CROSSED)
            else:
                if name in self._greeted:
                    self._greeted[name].drop("a newer connection came before this one had greeted")
                self._greeted[name] = line
                self._run(line)
            await asyncio.wait({line.gone})
            await line.farewell(self._timing.farewell)
        finally:
            # Also when gRPC cancels this, which it does when the stream breaks.
            line.drop(LOST)
            stream.end()

    async def _keep(self, name: str, address: str, connect: Callable[[], grpc.aio.Channel]) -> bool:
        """Stay connected to `name`."""
        backoff, loop = Backoff(self._timing), asyncio.get_running_loop()
        while not self._closing.is_set():
            channel = connect()
            stream = Dialled(channel.stream_stream(f"/{_SERVICE}/{_METHOD}")(), address)
            line = self._line(name, stream)
            work = self._run(line)
            await asyncio.wait({line.gone})
            held = line.joined_at is not None and loop.time() - line.joined_at >= self._timing.held
            await line.farewell(self._timing.farewell)
            if not line.writing:
                self._start(stream.half_close())
                await asyncio.wait({work}, timeout=self._timing.farewell)
            await stream.end()
            await asyncio.wait({work})
            await channel.close()
            if held:
                backoff.reset()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), backoff.next(slowly=line.gone.result() in _SLOW))
        return True

    def _line(self, name: str, stream: Channel) -> Connection:
        counts = {"sent": self.sent, "received": self.received}
        line = Connection(name, stream, limit=self.limit, inbox=self.events, start=self._start, **counts)
        self._open.add(line)
        line.gone.add_done_callback(lambda _: self._left(line))
        return line

    def _run(self, line: Connection) -> "asyncio.Task[bool]":
        def late() -> None:
            if line.joined_at is None:
                line.drop(f"no answer within {self._timing.patience:g} s")

        timer = asyncio.get_running_loop().call_later(self._timing.patience, late)
        line.gone.add_done_callback(lambda _: timer.cancel())
        return self._start(line.run(self._greeting, self._join))

    async def _join(self, line: Connection) -> bool:
        await self.events.room(line.name, 0, line.gone)
        if line.gone.done() or self._closing.is_set():
            return False
        older = self._lines.get(line.name)
        if older is not None:
            # Most likely it is dead, and only this side has not noticed.
            self._leave(older, "a newer connection under this name took its place")
            older.drop("replaced", Bye.REPLACED)
        line.joined_at = asyncio.get_running_loop().time()
        self._lines[line.name] = line
        if self._greeted.get(line.name) is line:
            del self._greeted[line.name]
        self.trouble.pop(line.name, None)
        self.events.put(Joined(line.name))
        return True

    def _left(self, line: Connection) -> None:
        """`line` is over."""
        name, why = line.name, line.gone.result()
        self._open.discard(line)
        if self._greeted.get(name) is line:
            del self._greeted[name]
        if self._lines.get(name) is line:
            self._leave(line, why)
        elif line.joined_at is None and name in self._lines:
            self._refuse(f"a second connection as {name!r}: {why}")
        elif line.joined_at is None and not self._closing.is_set():
            # A dialler tries again and again, and is told of once.
            if why == OTHER_STUDY != self.trouble.get(name):
                self.events.put(Left(name, why))
            self.trouble[name] = why

    def _leave(self, line: Connection, why: str) -> None:
        del self._lines[line.name]
        if not self._closing.is_set():
            self.trouble[line.name] = why
            self.events.put(Left(line.name, why))

    def _refuse(self, who: str) -> None:
        self.refused.append(who)
        del self.refused[:-_MOST_REFUSED]

    def _start(self, work: Coroutine[Any, Any, bool]) -> "asyncio.Task[bool]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _require_open(self) -> None:
        require(not self._closing.is_set(), "this switchboard is closed")


def _recognised(context: "grpc.aio.ServicerContext[Any, Any]", recognise: Callable[[bytes], str | None]) -> str | None:
    shown = list(context.auth_context().get("x509_pem_cert", ()))
    try:
        return recognise(shown[0]) if shown else None
    except ValueError:
        # A certificate that cannot even be read is nobody's.
        return None


def _cannot_listen(address: str) -> OSError:
    """gRPC does not say why; asking the system for the same thing does."""
    host, port = host_and_port(address, least=0)
    advice = "choose another address, or end the program that has this one"
    number, reason = errno.EADDRINUSE, "it cannot be bound"
    try:
        for family, kind, _, _, where in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(where)
                trial.listen()
    except OSError as error:
        number, reason = error.errno or number, (error.strerror or reason).lower()
        if number == errno.EACCES:
            advice = "ports below 1024 need a privilege; choose one above"
    return OSError(number, f"cannot listen at {address}: {reason}; {advice}")
