"""Callers that hold connections: however many they are, they push each other out and nobody else."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from eigenveil.runtimes.grpc.front import Front
from runtimes.network_certificates import Authority, Party
from runtimes.network_transports import HERE, HUB, SITES, hall, run, soon, until

A, B, *_ = SITES
STRANGER = Authority().party("a")


@asynccontextmanager
async def fronted(most: int, patience: float = 30.0) -> AsyncIterator[tuple[Front, int, list[bytes]]]:
    """A front with a server behind it that says "in" to everyone, and what it has heard."""
    front, heard = Front(patience=patience, max_new=most), list[bytes]()

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"in")
        while data := await reader.read(1 << 16):
            heard.append(data)
        writer.close()

    server = await asyncio.start_unix_server(served, front.inside.removeprefix("unix:"))
    try:
        yield front, await front.listen(HERE, 0), heard
    finally:
        front.close()
        server.close()
        await asyncio.sleep(0.05)


async def called(port: int, *, source: str = HERE, first: bytes = b"") -> socket.socket:
    """A connection from this address, which has sent these bytes."""
    loop, one = asyncio.get_running_loop(), socket.socket()
    one.setblocking(False)
    one.bind((source, 0))
    await loop.sock_connect(one, (HERE, port))
    await loop.sock_sendall(one, first)
    return one


async def ended(one: socket.socket) -> bool:
    """Whether the front has ended it by now."""
    await asyncio.sleep(0)
    with contextlib.suppress(BlockingIOError):
        try:
            return one.recv(1, socket.MSG_PEEK) == b""
        except ConnectionError:
            return True
    return False


def over(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, 20))


def test_no_more_are_held_than_allowed_and_the_oldest_goes_first() -> None:
    async def check() -> None:
        async with fronted(10) as (_, port, heard):
            callers = [await called(port) for _ in range(40)]
            await asyncio.sleep(0.1)
            assert [await ended(one) for one in callers] == [True] * 30 + [False] * 10
            # None of them has spoken, so the server behind has heard of nobody.
            assert heard == []
            for one in callers:
                one.close()

    over(check())


def test_whoever_speaks_stays_while_others_are_silent() -> None:
    async def check() -> None:
        async with fronted(10) as (_, port, heard):
            loop = asyncio.get_running_loop()
            speaking = [await called(port, first=b"\x16hello") for _ in range(5)]
            assert [await soon(loop.sock_recv(one, 2)) for one in speaking] == [b"in"] * 5
            silent = [await called(port) for _ in range(40)]
            await asyncio.sleep(0.1)
            assert [await ended(one) for one in speaking] == [False] * 5
            assert [await ended(one) for one in silent] == [True] * 35 + [False] * 5
            assert heard == [b"\x16hello"] * 5
            for one in (*speaking, *silent):
                one.close()

    over(check())


def test_one_address_pushes_out_no_other() -> None:
    async def check() -> None:
        async with fronted(10) as (_, port, _heard):
            others = [await called(port, source="127.0.0.2") for _ in range(3)]
            many = [await called(port) for _ in range(40)]
            await asyncio.sleep(0.1)
            assert [await ended(one) for one in others] == [False] * 3
            assert [await ended(one) for one in many] == [True] * 33 + [False] * 7
            for one in (*others, *many):
                one.close()

    over(check())


def test_what_is_not_tls_is_ended_at_once_and_what_says_nothing_after_a_while() -> None:
    async def check() -> None:
        async with fronted(10, patience=0.3) as (_, port, heard):
            http, silent = await called(port, first=b"GET / HTTP/1.1\r\n\r\n"), await called(port)
            await asyncio.sleep(0.1)
            assert await ended(http) and not await ended(silent)
            await asyncio.sleep(0.4)
            assert await ended(silent)
            assert heard == []
            http.close()
            silent.close()

    over(check())


def test_bytes_pass_in_both_directions_however_many_and_a_folder_is_not_left() -> None:
    async def check() -> Path:
        async with fronted(10) as (front, port, heard):
            loop, size = asyncio.get_running_loop(), 8 << 20
            one = await called(port, first=b"\x16")
            await loop.sock_sendall(one, bytes(size))
            await until(lambda: sum(map(len, heard)) == size + 1)
            one.close()
            return Path(front.inside.removeprefix("unix:")).parent

    assert not over(check()).exists()


def context_of(party: Party, folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    path = folder / "both.pem"
    path.write_bytes(party.credentials.key + party.credentials.certificate)
    context.load_cert_chain(path)
    return context


@pytest.mark.parametrize("who", ["silent", "strangers", "idle"])
def test_a_site_joins_while_an_attacker_holds_as_many_connections_as_it_can(tmp_path: Path, who: str) -> None:
    async def check() -> None:
        secure = None if who == "silent" else context_of(STRANGER if who == "strangers" else B, tmp_path)
        async with hall() as here:
            count = 600 if secure is None else 60
            held = await asyncio.gather(
                *(asyncio.open_connection(HERE, here.port, ssl=secure) for _ in range(count)), return_exceptions=True
            )
            loop = asyncio.get_running_loop()
            began = loop.time()
            site = await soon(here.joined(A), 5.0)
            assert loop.time() - began < 5.0
            assert await site.send("hub", 1, bytes(1 << 20))
            for one in held:
                if not isinstance(one, BaseException):
                    one[1].transport.abort()

    run(check())


def test_a_compressed_frame_is_refused_whole() -> None:
    async def check() -> grpc.StatusCode:
        async with hall() as here:
            trusted = A.credentials.for_dialling(HUB.pem)
            name = ("grpc.ssl_target_name_override", HUB.server_name)
            async with grpc.aio.secure_channel(
                f"{HERE}:{here.port}", trusted, options=(name,), compression=grpc.Compression.Gzip
            ) as channel:
                call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream("/eigenveil.Line1/Talk")()
                with pytest.raises(grpc.aio.AioRpcError) as refusal:
                    while await soon(call.read()):
                        await call.write(bytes(1 << 20))
                return refusal.value.code()

    assert run(check()) == grpc.StatusCode.UNIMPLEMENTED
