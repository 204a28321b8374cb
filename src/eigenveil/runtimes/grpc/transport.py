"""`Transport`: makes connections, keeps them, and reports all events in one queue."""

import asyncio
import contextlib
import errno
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Self, final

import grpc
import grpc.aio

from eigenveil.errors import require
from eigenveil.protocols import wire
from eigenveil.runtimes.grpc.channel import LONGEST_GREETING, LOST, Accepted, Backoff, Bye, Channel, Dialled, Timing
from eigenveil.runtimes.grpc.connection import (
    OTHER_STUDY,
    Connection,
    Credentials,
    Inbox,
    Joined,
    Left,
    dialling_options,
    host_and_port,
    listening_options,
)
from eigenveil.runtimes.grpc.front import Front

__all__ = ["Transport"]

# Words on the wire. The number is the version of the frames: a caller with another one is told that the method is unknown.
_SERVICE: Final = "eigenveil.Line1"
_METHOD: Final = "Talk"
# Bytes of waiting messages allowed for each name.
_ROOM: Final = 64 << 20
_MOST_REFUSED: Final = 100
# Reasons after which trying again soon would not help.
_SLOW: Final = {OTHER_STUDY, Bye.WORDS[Bye.REPLACED], Bye.WORDS[Bye.CROSSED]}


@final
class Transport:
    """The connections of the party `me`. Changes in place; belongs to the event loop in which it is used.

    All events are in `events`: `Joined`, `Left`, and whole messages as `Got`. This party works on what `greeting` says, in at
    most 4096 bytes; a party with another greeting never joins. Messages that come must be of a kind in `accepts` and at most as
    long as it says there; None stands for every kind, up to `limit` bytes. No message that is sent may be longer than `limit`. No
    connection keeps more than one message and 64 MiB in memory, waiting events included.

    Bytes are counted by name in `sent` and `received`. The reason why a name is not connected is in `trouble`, and the last
    callers turned away are in `refused`. Close it, or use it in `async with`: gRPC does not survive a loop that ends before its
    connections.
    """

    def __init__(
        self,
        me: str,
        *,
        credentials: Credentials,
        greeting: bytes,
        accepts: Mapping[int, int] | None = None,
        limit: int = wire.LIMIT,
        timing: Timing | None = None,
    ) -> None:
        require(len(greeting) <= LONGEST_GREETING, f"greeting has {len(greeting)} bytes, more than {LONGEST_GREETING}")
        require(limit > 0, f"limit must be positive, got {limit}")
        self.me, self.limit = me, limit
        self._accepts = dict.fromkeys(range(256), limit) if accepts is None else dict(accepts)
        self.events = Inbox(room=min(max(self._accepts.values()), _ROOM))
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.trouble: dict[str, str] = {}
        self.refused: list[str] = []
        self._credentials, self._greeting = credentials, greeting
        self._timing = Timing() if timing is None else timing
        self._connections: dict[str, Connection] = {}
        self._greeted: dict[str, Connection] = {}
        self._dialled: set[str] = set()
        self._open: set[Connection] = set()
        # asyncio keeps only weak references to tasks.
        self._tasks: set[asyncio.Task[bool]] = set()
        self._server: grpc.aio.Server | None = None
        self._front: Front | None = None
        # What gRPC calls the connections that others made, while they last.
        self._peers: dict[Connection, str] = {}
        self._closing = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def connected(self) -> frozenset[str]:
        """The names that are connected."""
        return frozenset(self._connections)

    async def listen(self, address: str, *, recognise: Callable[[bytes], str | None]) -> int:
        """Take calls at `address`, "host:port" (port 0 for any free one), and return the port.

        A caller shows a certificate (PEM, signed by our authority), and `recognise` returns the name it belongs to. If that is
        None, the caller is turned away and told nothing.
        """
        require(self._server is None, "this transport is listening already")
        self._require_open()
        host, port = host_and_port(address, min_port=0)

        async def talk(_: object, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
            await self._accept(context, recognise)

        server = grpc.aio.server(options=listening_options(self._timing))
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(talk)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler}),))
        # Once for the handshake and once for the greeting, which this transport and gRPC watch themselves.
        front = Front(patience=2 * self._timing.patience + self._timing.farewell)
        try:
            server.add_secure_port(front.inside, self._credentials.for_listening())
            await server.start()
            port = await front.listen(host, port)
        except OSError as error:
            front.close()
            await server.stop(None)
            advice = "choose another address, or end the program that has this one"
            if error.errno == errno.EACCES:
                advice = "ports below 1024 need a privilege; choose one above"
            reason = (error.strerror or "it cannot be bound").lower()
            message = f"cannot listen at {address}: {reason}; {advice}"
            raise OSError(error.errno or errno.EADDRINUSE, message) from error
        self._server, self._front = server, front
        return port

    def dial(self, name: str, address: str, *, certificate: bytes, server_name: str) -> None:
        """Connect to `name` at `address`, "host:port", and again whenever the connection ends, until `close`.

        Only `certificate` (PEM) is accepted there, under the DNS name `server_name`, whatever `address` is.
        """
        self._require_open()
        require(name != self.me, f"{name!r} is this party's own name")
        require(name not in self._dialled, f"{name!r} is dialled already")
        host, _ = host_and_port(address, min_port=1)
        trusted = self._credentials.for_dialling(certificate)
        options = dialling_options(self._timing, host=host, server_name=server_name)
        self._dialled.add(name)
        self._start(self._keep(name, address, lambda: grpc.aio.secure_channel(f"dns:///{address}", trusted, options)))

    async def send(self, name: str, kind: int, data: bytes) -> bool:
        """Send one message; True once all of it is handed to the transport, False if `name` is not connected or was lost.

        Waits while the other side does not keep up. Messages to one name arrive in the order in which they were sent.
        """
        require(0 <= kind <= 255, f"kind must lie in 0 to 255, got {kind}")
        require(len(data) <= self.limit, f"data has {len(data)} bytes, more than the limit of {self.limit}")
        connection = self._connections.get(name)
        return connection is not None and not self._closing.is_set() and await connection.send(kind, data)

    async def close(self, grace: float = 2.0) -> None:
        """End everything; the other sides have `grace` seconds to read what was sent. A second call changes nothing."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(grace))
        # A caller that is cancelled must not stop this: gRPC does not survive a loop that ends before its connections.
        await asyncio.shield(self._ending)

    async def _end(self, grace: float) -> None:
        self._closing.set()
        goodbyes = {self._start(connection.finish()) for connection in self._connections.values()}
        try:
            if goodbyes:
                await asyncio.wait(goodbyes, timeout=grace)
        finally:
            for connection in tuple(self._open):
                connection.drop("closed here")
        if self._server is not None:
            await self._server.stop(min(grace, self._timing.farewell))
        if self._front is not None:
            self._front.close()
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _accept(self, context: "grpc.aio.ServicerContext[Any, Any]", recognise: Callable[[bytes], str | None]) -> None:
        """Serve one caller, from its certificate to the end of its connection."""
        name = _recognised(context, recognise)
        if name is None or name == self.me or self._closing.is_set():
            if not self._closing.is_set() and self._front is not None:
                where = self._front.address(context.peer())
                self._refuse(f"a caller from {where}: its certificate is not one of those expected")
            await context.abort(grpc.StatusCode.PERMISSION_DENIED)
        stream = Accepted(context)
        connection = self._connection(name, stream)
        self._peers[connection] = context.peer()
        try:
            # Two parties that dial each other would replace each other's connection for ever. Only one of them may dial.
            if name in self._dialled:
                connection.drop(Bye.WORDS[Bye.CROSSED], Bye.CROSSED)
            else:
                # A stalled caller must not block its own next attempt.
                if name in self._greeted:
                    self._greeted[name].drop("a newer connection came before this one had greeted")
                self._greeted[name] = connection
                self._run(connection)
            await asyncio.wait({connection.gone})
            await connection.farewell(self._timing.farewell)
        finally:
            # This must run also when gRPC cancels the call, which it does when the stream breaks.
            connection.drop(LOST)
            stream.end()

    async def _keep(self, name: str, address: str, connect: Callable[[], grpc.aio.Channel]) -> bool:
        """Stay connected to `name`."""
        backoff, loop = Backoff(self._timing), asyncio.get_running_loop()
        while not self._closing.is_set():
            channel = connect()
            stream = Dialled(channel.stream_stream(f"/{_SERVICE}/{_METHOD}")(), address)
            connection = self._connection(name, stream)
            work = self._run(connection)
            await asyncio.wait({connection.gone})
            held = connection.joined_at is not None and loop.time() - connection.joined_at >= self._timing.held
            await connection.farewell(self._timing.farewell)
            if not connection.writing:
                self._start(stream.half_close())
                await asyncio.wait({work}, timeout=self._timing.farewell)
            await stream.end()
            await asyncio.wait({work})
            await channel.close()
            if held:
                backoff.reset()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), backoff.next(slowly=connection.gone.result() in _SLOW))
        return True

    def _connection(self, name: str, stream: Channel) -> Connection:
        counts = {"sent": self.sent, "received": self.received}
        connection = Connection(name, stream, accepts=self._accepts, inbox=self.events, start=self._start, **counts)
        self._open.add(connection)
        connection.gone.add_done_callback(lambda _: self._left(connection))
        return connection

    def _run(self, connection: Connection) -> "asyncio.Task[bool]":
        def late() -> None:
            if connection.joined_at is None:
                connection.drop(f"no answer within {self._timing.patience:g} s")

        # A caller that never greets would otherwise keep its place for ever.
        timer = asyncio.get_running_loop().call_later(self._timing.patience, late)
        connection.gone.add_done_callback(lambda _: timer.cancel())
        return self._start(connection.run(self._greeting, self._join))

    async def _join(self, connection: Connection) -> bool:
        # `Joined` waits for room like a message, so that a caller that joins again and again cannot fill the queue.
        await self.events.room(connection.name, 0, connection.gone)
        if connection.gone.done() or self._closing.is_set():
            return False
        older = self._connections.get(connection.name)
        if older is not None:
            # Most likely the older one is dead, and only this side has not noticed.
            self._leave(older, "a newer connection under this name took its place")
            older.drop("replaced", Bye.REPLACED)
        connection.joined_at = asyncio.get_running_loop().time()
        self._connections[connection.name] = connection
        if self._front is not None and connection in self._peers:
            self._front.settle(self._peers[connection])
        if self._greeted.get(connection.name) is connection:
            del self._greeted[connection.name]
        self.trouble.pop(connection.name, None)
        self.events.put(Joined(connection.name))
        return True

    def _left(self, connection: Connection) -> None:
        """Take note of a connection that is over."""
        name, why = connection.name, connection.gone.result()
        self._open.discard(connection)
        peer = self._peers.pop(connection, None)
        if self._front is not None and peer is not None:
            self._front.release(peer)
        if self._greeted.get(name) is connection:
            del self._greeted[name]
        if self._connections.get(name) is connection:
            self._leave(connection, why)
        elif connection.joined_at is None and name in self._connections:
            self._refuse(f"a second connection as {name!r}: {why}")
        elif connection.joined_at is None and not self._closing.is_set():
            # A dialler tries again and again; report it once.
            if why == OTHER_STUDY != self.trouble.get(name):
                self.events.put(Left(name, why, connection.other_greeting))
            self.trouble[name] = why

    def _leave(self, connection: Connection, why: str) -> None:
        del self._connections[connection.name]
        if not self._closing.is_set():
            self.trouble[connection.name] = why
            self.events.put(Left(connection.name, why))

    def _refuse(self, who: str) -> None:
        self.refused.append(who)
        # Strangers must not fill the memory by being refused.
        del self.refused[:-_MOST_REFUSED]

    def _start(self, work: Coroutine[Any, Any, bool]) -> "asyncio.Task[bool]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _require_open(self) -> None:
        require(not self._closing.is_set(), "this transport is closed")


def _recognised(context: "grpc.aio.ServicerContext[Any, Any]", recognise: Callable[[bytes], str | None]) -> str | None:
    shown = list(context.auth_context().get("x509_pem_cert", ()))
    try:
        return recognise(shown[0]) if shown else None
    except ValueError:
        # A certificate that cannot be read belongs to no party.
        return None
