"""`Front`: takes connections in front of a gRPC server, so that strangers cannot hold more than a few of them.

gRPC takes every caller and cannot be told to take fewer: thousands of callers that never speak would use up the files of the
process. A front listens in its place and passes bytes on, unread, to a socket file in a folder that only this user can enter.

    | connection         | becomes            | when
    | silent             | speaking           | its first bytes come and look like TLS. Only now gRPC hears of it
    | silent or speaking | settled            | the transport has authenticated its party, which has greeted (`settle`)
    | silent or speaking | closed             | `patience` is over, or it is the one to go when there are too many
    | settled            | speaking, and new  | its party has left (`release`)

At most `most` connections are silent or speaking. When one more comes, one goes: a silent one before one that speaks, and of
those the oldest from the address that has most. An honest caller speaks at once and is settled a moment later, so callers that
hold connections push each other out, and those from one address push out no other address.
"""

import asyncio
import contextlib
import ipaddress
import resource
import shutil
import socket
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final, cast, final

from eigenveil.errors import require

__all__ = ["Front"]

# Enough for all sites of a large study to call at once, in a process that may have 1024 files: each takes three.
_MOST: Final = 256
_BACKLOG: Final = 1024
_LONGEST_FOLDER: Final = 60
# The first byte of every TLS connection: a handshake record.
_TLS: Final = b"\x16"


@final
class Front:
    """Connections from outside, each passed on to `inside`, where gRPC listens. Changes in place; belongs to one event loop.

    Of those whose party is not known yet there are at most `most`, and none is older than `patience` seconds.
    """

    def __init__(self, *, patience: float, max_new: int = _MOST) -> None:
        require(max_new > 0, f"most must be positive, got {max_new}")
        self._patience, self._most = patience, max_new
        # Only this user may enter it, so no other user of this machine can pass the front by. The path of a socket file has at
        # most 100 characters or so, and some folders for temporary files are longer.
        short = len(tempfile.gettempdir()) < _LONGEST_FOLDER
        self._folder = Path(tempfile.mkdtemp(prefix="eigenveil-", dir=None if short else "/tmp"))
        self._socket = self._folder / "grpc"
        self._number = 0
        # Those that are not settled, oldest first, and how many there are from each address.
        self._new: dict[_Caller, None] = {}
        self._from: Counter[str] = Counter()
        # All that gRPC has heard of, by the name under which it knows them.
        self._inside: dict[str, _Caller] = {}
        self._all: set[_Caller] = set()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def inside(self) -> str:
        """The address for gRPC to listen at."""
        return f"unix:{self._socket}"

    async def listen(self, host: str, port: int) -> int:
        """Take connections at this host and port, 0 for any free one, and return the port. An `OSError` if it cannot be had."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < hard:
            # The soft limit of open files is often 1024, and a study of many sites needs three for each. Some systems name a hard
            # limit that they do not grant.
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        loop, listening = asyncio.get_running_loop(), _bound(host, port)
        for sock in listening:
            self._servers.append(await loop.create_server(lambda: _Caller(self), sock=sock, backlog=_BACKLOG))
        return int(listening[0].getsockname()[1])

    def settle(self, peer: str) -> None:
        """The connection that gRPC knows as `peer` belongs to a party that has joined."""
        caller = self._inside.get(_name(peer))
        if caller is not None:
            self._forget(caller)

    def release(self, peer: str) -> None:
        """Its party has left: from now on it is like one that has just come."""
        caller = self._inside.get(_name(peer))
        if caller is not None and caller not in self._new:
            self._enter(caller)

    def address(self, peer: str) -> str:
        """Where the connection that gRPC knows as `peer` comes from."""
        caller = self._inside.get(_name(peer))
        return "an unknown address" if caller is None else caller.address

    def close(self) -> None:
        """End all connections, and remove the folder."""
        for server in self._servers:
            server.close()
        for caller in tuple(self._all):
            caller.abort()
        shutil.rmtree(self._folder, ignore_errors=True)

    # What callers tell it.

    def came(self, caller: "_Caller") -> None:
        """A connection from outside is there."""
        self._all.add(caller)
        self._enter(caller)

    def speaks(self, caller: "_Caller") -> None:
        """Its first bytes are there: connect it to gRPC."""
        task = asyncio.get_running_loop().create_task(self._connect(caller))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def gone(self, caller: "_Caller") -> None:
        """It is over."""
        self._all.discard(caller)
        self._forget(caller)
        if caller.name is not None:
            self._inside.pop(caller.name, None)
            (self._folder / caller.name).unlink(missing_ok=True)

    def _enter(self, caller: "_Caller") -> None:
        while len(self._new) >= self._most:
            # Oldest first, so among equals the oldest is the one to go.
            going = max(self._new, key=lambda other: (not other.speaking, self._from[other.group]))
            self._forget(going)
            going.abort()
        self._new[caller] = None
        self._from[caller.group] += 1
        caller.until(self._patience)

    def _forget(self, caller: "_Caller") -> None:
        if caller in self._new:
            del self._new[caller]
            self._from[caller.group] -= 1
            if not self._from[caller.group]:
                # Addresses that have left must not fill the memory.
                del self._from[caller.group]
        caller.until(None)

    async def _connect(self, caller: "_Caller") -> None:
        loop, self._number = asyncio.get_running_loop(), self._number + 1
        name = str(self._number)
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.setblocking(False)
        try:
            # Bound to a name of its own, so that gRPC can say which connection it means.
            line.bind(str(self._folder / name))
            caller.name = name
            self._inside[name] = caller
            await loop.sock_connect(line, str(self._socket))
            await loop.create_unix_connection(lambda: _Inside(caller), sock=line)
        except OSError:
            # No more files, or gRPC is closing.
            line.close()
            caller.abort()


class _Line(asyncio.Protocol):
    """One end of a connection, whose bytes go to the `other` end. Changes in place."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _Line | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Pass it on."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        """This end is slow, so nothing more is read at the other."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """It continues."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """The other end gets what was sent before, and ends too."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()

    def abort(self) -> None:
        """End it at once."""
        if self.transport is not None:
            self.transport.abort()


@final
class _Caller(_Line):
    """The outer end: a caller from an `address`, or from a `group` of addresses that one party can have by itself."""

    def __init__(self, front: Front) -> None:
        super().__init__()
        self._front = front
        self.address, self.group = "", ""
        self.name: str | None = None
        self.speaking = False
        self._first = bytearray()
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        host, port = (transport.get_extra_info("peername") or ("unknown", 0))[:2]
        self.address, self.group = f"{host}:{port}", _group(host)
        self._front.came(self)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            super().data_received(data)
            return
        assert self.transport is not None
        if not self.speaking and not data.startswith(_TLS):
            self.abort()
            return
        # The first bytes wait for gRPC; what follows waits in the kernel.
        self._first += data
        self.transport.pause_reading()
        if not self.speaking:
            self.speaking = True
            self._front.speaks(self)

    def join(self, inner: "_Inside") -> None:
        """gRPC has accepted it: hand over what came before."""
        assert self.transport is not None and inner.transport is not None
        self.other, inner.other = inner, self
        if self.transport.is_closing():
            inner.transport.close()
            return
        inner.transport.write(bytes(self._first))
        self._first.clear()
        self.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._front.gone(self)

    def until(self, seconds: float | None) -> None:
        """Close it after so many seconds; None for never."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self.abort)


@final
class _Inside(_Line):
    """The inner end: gRPC."""

    def __init__(self, caller: _Caller) -> None:
        super().__init__()
        self._caller = caller

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._caller.join(self)


def _name(peer: str) -> str:
    """The name of the socket file in what gRPC calls a peer.

    >>> _name("unix:/tmp/eigenveil-x/17")
    '17'
    """
    return peer.rpartition("/")[2]


def _group(host: str) -> str:
    """Addresses that count as one: a whole /64 of IPv6, which one machine can have.

    >>> _group("2001:db8::1"), _group("::ffff:10.0.0.1"), _group("10.0.0.1")
    ('2001:db8::/64', '10.0.0.1', '10.0.0.1')
    """
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address):
            mapped = address.ipv4_mapped
            return str(ipaddress.ip_network((address, 64), strict=False) if mapped is None else mapped)
    return host


def _bound(host: str, port: int) -> list[socket.socket]:
    """Sockets at every address of the host, on one port."""
    if host == "::":
        # Both kinds of addresses on one socket, as gRPC does it; the second where the machine has no IPv6.
        with contextlib.suppress(OSError):
            return [_bound_at(socket.AF_INET6, ("::", port), both=True)]
        host = "0.0.0.0"
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, where in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
            # A free port that the first address got is the port of all.
            chosen = where[1] or (int(sockets[0].getsockname()[1]) if sockets else 0)
            sockets.append(_bound_at(family, (where[0], chosen, *where[2:])))
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _bound_at(family: int, where: tuple[object, ...], *, both: bool = False) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not both))
        sock.bind(where)
    except OSError:
        sock.close()
        raise
    return sock
