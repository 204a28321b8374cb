"""Compressed frames are refused at both ends before anything is made of them: by gRPC, or because they are no frames of ours."""

import asyncio
import contextlib
import gzip
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from eigenveil.runtimes.grpc.channel import Accepted, Dialled, frames_of, greeting_frame
from runtimes.network_transports import GREETING, HERE, HUB, SITES, hall, run, soon, transport, until
from runtimes.test_network_front import context_of

A, *_ = SITES
METHOD = "/eigenveil.Line1/Talk"
ALGORITHMS = [grpc.Compression.Gzip, grpc.Compression.Deflate]
# Each frame is one of ours, and makes sense if it is unpacked.
WHOLE = [greeting_frame(GREETING), *frames_of(1, bytes(1 << 20))]
# Inside these few bytes there is a gigabyte: one member of a megabyte, so many times.
BOMB = gzip.compress(gzip.compress(bytes(1 << 20), 9) * 1024, 9)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """All that this program gets to see of frames that come in, at either end."""
    frames: list[bytes] = []
    for kind in (Accepted, Dialled):
        original = kind.read

        async def read(this: Any, original: Callable[[Any], Any] = original) -> bytes | None:
            frame: bytes | None = await original(this)
            if frame is not None:
                frames.append(frame)
            return frame

        monkeypatch.setattr(kind, "read", read)
    return frames


@pytest.mark.parametrize("compression", ALGORITHMS)
def test_a_caller_that_compresses_is_refused(heard: list[bytes], compression: grpc.Compression) -> None:
    async def check() -> grpc.StatusCode:
        async with hall() as here:
            trusted = A.credentials.for_dialling(HUB.pem)
            name = ("grpc.ssl_target_name_override", HUB.server_name)
            async with grpc.aio.secure_channel(
                f"{HERE}:{here.port}", trusted, options=(name,), compression=compression
            ) as channel:
                call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(METHOD)()
                with pytest.raises(grpc.aio.AioRpcError) as refusal:
                    for frame in WHOLE:
                        await soon(call.read())
                        await call.write(frame)
                    await soon(call.read())
                assert not here.hub.connected()
                return refusal.value.code()

    assert run(check()) == grpc.StatusCode.UNIMPLEMENTED
    assert not heard


@asynccontextmanager
async def evil_hub(compression: grpc.Compression) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A hub with the right certificate that compresses what it says; its port, and what it has heard."""
    got: list[bytes] = []

    async def talk(_: object, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
        for frame in WHOLE:
            await context.write(frame)
            got.append(await context.read())

    server = grpc.aio.server(compression=compression)
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(talk)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("eigenveil.Line1", {"Talk": handler}),))
    port = server.add_secure_port(f"{HERE}:0", HUB.credentials.for_listening())
    await server.start()
    try:
        yield port, got
    finally:
        await server.stop(0)


@pytest.mark.parametrize("compression", ALGORITHMS)
def test_a_hub_that_compresses_is_refused(heard: list[bytes], compression: grpc.Compression) -> None:
    async def check() -> str:
        async with evil_hub(compression) as (port, got):
            site = transport(A)
            site.dial("hub", f"{HERE}:{port}", certificate=HUB.pem, server_name=HUB.server_name)
            await until(lambda: "hub" in site.trouble)
            assert not site.connected() and not [frame for frame in got if isinstance(frame, bytes)]
            await site.close()
            return site.trouble["hub"]

    assert "compress" in run(check())
    assert not [frame for frame in heard if frame in WHOLE]


def frame(kind: int, flags: int, stream: int, data: bytes) -> bytes:
    """A frame of HTTP/2."""
    return len(data).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + data


def block(headers: dict[str, str]) -> bytes:
    """Headers in HPACK, each in full."""
    return b"".join(
        b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode() for name, value in headers.items()
    )


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "identity", "br", None])
@pytest.mark.parametrize("flag", [0, 1])
def test_a_handmade_caller_gets_nothing_unpacked(tmp_path: Path, heard: list[bytes], encoding: str | None, flag: int) -> None:
    """It says one thing in its headers and does another in its messages."""

    async def check() -> None:
        async with hall() as here:
            context = context_of(A, tmp_path)
            reader, writer = await asyncio.open_connection(HERE, here.port, ssl=context)
            headers = {
                ":method": "POST",
                ":scheme": "https",
                ":path": METHOD,
                ":authority": HUB.server_name,
                "te": "trailers",
                "content-type": "application/grpc",
                **({} if encoding is None else {"grpc-encoding": encoding}),
            }
            pack = zlib.compress if encoding == "deflate" else gzip.compress
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 4, 1, block(headers)))
            for data in (*map(pack, WHOLE), BOMB):
                message = bytes((flag,)) + len(data).to_bytes(4, "big") + data
                for start in range(0, len(message), 1 << 14):
                    writer.write(frame(0, 0, 1, message[start : start + (1 << 14)]))
            with contextlib.suppress(ConnectionError, asyncio.TimeoutError):
                # Until the server has ended the call: a reset, trailers, or the connection.
                await asyncio.wait_for(reader.read(), 2.0)
            assert not here.hub.connected()
            writer.transport.abort()

    run(check())
    assert not [each for each in heard if each in WHOLE or len(each) > 1 << 20]
