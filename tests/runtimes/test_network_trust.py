"""Who is let in, and whom a dialler believes: certificates that are not exactly the expected ones get nobody anywhere."""

import asyncio
import ssl
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest

from eigenveil.runtimes.grpc import Credentials, Joined, Transport
from runtimes.network_certificates import Authority, Party
from runtimes.network_transports import (
    AUTHORITY,
    HERE,
    HUB,
    KNOWN,
    SITES,
    hall,
    next_event,
    raw_call,
    run,
    soon,
    transport,
    until,
)

A = SITES[0]
ELSEWHERE = Authority()


async def refused_by_the_dialler(impostor: Party) -> str:
    """What site a says of a server that is not the hub, but has its name and address."""
    server = transport(impostor)
    port = await server.listen(f"{HERE}:0", recognise=KNOWN.get)
    site = transport(A)
    site.dial("hub", f"{HERE}:{port}", certificate=HUB.pem, server_name=HUB.server_name)
    await until(lambda: "hub" in site.trouble)
    why = site.trouble["hub"]
    assert not site.connected()
    assert not server.connected()
    assert not server.events
    assert site.sent["hub"] == 0
    await asyncio.gather(site.close(), server.close())
    return why


@pytest.mark.parametrize(
    "impostor",
    [AUTHORITY.party("hub", server_name=HUB.server_name), ELSEWHERE.party("hub", server_name=HUB.server_name)],
    ids=["the same authority", "another authority"],
)
def test_a_server_with_the_name_but_another_certificate_is_not_believed(impostor: Party) -> None:
    assert "another certificate than the pinned one" in run(refused_by_the_dialler(impostor))


def test_an_impostor_that_shows_the_whole_chain_is_not_believed() -> None:
    impostor = AUTHORITY.party("hub", server_name=HUB.server_name)
    for more in (AUTHORITY.pem, HUB.pem, HUB.pem + AUTHORITY.pem):
        shown = replace(impostor.credentials, certificate=impostor.pem + more)
        assert "another certificate" in run(refused_by_the_dialler(replace(impostor, credentials=shown)))


def test_a_certificate_without_its_key_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="key and certificate do not belong together"):
        replace(A.credentials, certificate=HUB.pem)


def test_a_pinned_certificate_that_has_ended_is_not_believed() -> None:
    async def check() -> None:
        old = AUTHORITY.party("hub", ended=True)
        server, site = transport(old), transport(A)
        port = await server.listen(f"{HERE}:0", recognise=KNOWN.get)
        site.dial("hub", f"{HERE}:{port}", certificate=old.pem, server_name=old.server_name)
        await until(lambda: "hub" in site.trouble)
        assert "or one that has expired" in site.trouble["hub"]
        await asyncio.gather(site.close(), server.close())

    run(check())


def test_a_pinned_certificate_under_another_name_is_not_believed() -> None:
    async def check() -> None:
        async with hall() as here:
            site = transport(A)
            site.dial("hub", f"{HERE}:{here.port}", certificate=HUB.pem, server_name="other.eigenveil")
            await until(lambda: "hub" in site.trouble)
            assert "under another name" in site.trouble["hub"]
            await site.close()

    run(check())


def test_the_right_certificate_is_believed_at_any_address() -> None:
    async def check() -> None:
        async with hall() as here:
            site = transport(A)
            site.dial("hub", f"localhost:{here.port}", certificate=HUB.pem, server_name=HUB.server_name)
            assert await next_event(site) == Joined("hub")
            await site.close()

    run(check())


async def turned_away(port: int, credentials: Credentials | None) -> grpc.aio.AioRpcError:
    """What a caller with these keys, or with none, is told."""
    pair = (None, None) if credentials is None else (credentials.key, credentials.certificate)
    trusted = grpc.ssl_channel_credentials(HUB.pem, *pair)
    options = (("grpc.ssl_target_name_override", HUB.server_name), ("grpc.use_local_subchannel_pool", 1))
    async with grpc.aio.secure_channel(f"{HERE}:{port}", trusted, options) as channel:
        call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream("/eigenveil.Line1/Talk")()
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await soon(call.read())
    assert isinstance(refusal.value, grpc.aio.AioRpcError)
    return refusal.value


@pytest.mark.parametrize(
    "credentials",
    [None, ELSEWHERE.party("a").credentials, AUTHORITY.party("a", ended=True).credentials],
    ids=["none", "another authority", "ended"],
)
def test_a_caller_without_a_certificate_of_the_authority_gets_no_connection(credentials: Credentials | None) -> None:
    async def check() -> None:
        async with hall() as here:
            error = await turned_away(here.port, credentials)
            assert error.code() == grpc.StatusCode.UNAVAILABLE
            assert not here.hub.events
            assert here.hub.connected() == frozenset()

    run(check())


def test_a_caller_of_the_authority_that_is_not_in_the_study_is_told_nothing() -> None:
    async def check() -> None:
        async with hall() as here:
            error = await turned_away(here.port, AUTHORITY.party("a").credentials)
            assert (error.code(), error.details()) == (grpc.StatusCode.PERMISSION_DENIED, "")
            await until(lambda: bool(here.hub.refused))
            assert "not one of those expected" in here.hub.refused[0]
            assert not here.hub.events
            assert here.hub.connected() == frozenset()

    run(check())


def test_the_site_that_is_turned_away_knows_why_and_goes_on_trying() -> None:
    async def check() -> None:
        async with hall() as here:
            unknown = here.dialling(AUTHORITY.party("z"))
            await until(lambda: len(here.hub.refused) >= 3)
            assert unknown.trouble["hub"] == f"{HERE}:{here.port} does not know this party"
            assert not unknown.events

    run(check())


def test_a_site_of_another_authority_knows_something() -> None:
    async def check() -> None:
        async with hall() as here:
            stranger = ELSEWHERE.party("a")
            site = here.dialling(stranger)
            await until(lambda: "hub" in site.trouble)
            assert "does not accept this certificate" in site.trouble["hub"] or "lost" in site.trouble["hub"]
            assert not site.events

    run(check())


def test_our_own_certificate_is_a_stranger_to_us() -> None:
    async def check() -> None:
        async with hall() as here:
            error = await turned_away(here.port, HUB.credentials)
            assert error.code() == grpc.StatusCode.PERMISSION_DENIED

    run(check())


def test_the_list_of_those_refused_is_bounded() -> None:
    async def check() -> None:
        async with hall() as here:
            here.hub.refused.extend(["somebody"] * 100)
            await turned_away(here.port, AUTHORITY.party("a").credentials)
            await until(lambda: here.hub.refused[-1] != "somebody")
            assert len(here.hub.refused) == 100

    run(check())


def test_a_recogniser_that_fails_refuses() -> None:
    async def check() -> None:
        def broken(_: bytes) -> str | None:
            raise ValueError("not a certificate of this kind")

        server = transport(HUB)
        port = await server.listen(f"{HERE}:0", recognise=broken)
        error = await turned_away(port, A.credentials)
        assert (error.code(), error.details()) == (grpc.StatusCode.PERMISSION_DENIED, "")
        await server.close()

    run(check())


def test_plain_tcp_and_older_tls_get_nowhere(tmp_path: Path) -> None:
    async def check() -> None:
        async with hall() as here:
            reader, writer = await asyncio.open_connection(HERE, here.port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            with pytest.raises(ConnectionError):
                # Closed, or reset: nothing is said either way.
                assert await soon(reader.read()) == b""
                raise ConnectionResetError
            writer.close()
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(cadata=AUTHORITY.pem.decode())
            (tmp_path / "pair").write_bytes(A.credentials.key + A.pem)
            context.load_cert_chain(tmp_path / "pair")
            context.set_alpn_protocols(["h2"])
            context.set_ciphers("DEFAULT:@SECLEVEL=0")
            with pytest.warns(DeprecationWarning):
                context.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await soon(asyncio.open_connection(HERE, here.port, ssl=context, server_hostname=HUB.server_name))

    run(check())


def test_another_method_is_unknown() -> None:
    async def check() -> None:
        async with hall() as here, raw_call(here.port, A.credentials, method="/eigenveil.Line2/Talk") as call:
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await soon(call.read())
            assert refusal.value.code() == grpc.StatusCode.UNIMPLEMENTED

    run(check())


def test_keys_are_in_no_text() -> None:
    made = Transport("a", credentials=A.credentials, greeting=b"")
    assert "PRIVATE" not in f"{A.credentials!r} {A!r} {made!r} {vars(made)!r}"
