"""Transports on loopback: messages arrive whole and in order, and every arrival and departure is reported."""

import asyncio
import hashlib
import random
import socket

import pytest

from eigenveil.runtimes.grpc import Got, Joined, Left
from eigenveil.runtimes.grpc.channel import CHUNK
from runtimes.network_transports import (
    GREETING,
    HERE,
    HUB,
    KNOWN,
    SITES,
    hall,
    next_data,
    next_event,
    open_sockets,
    run,
    soon,
    transport,
    until,
)

A, B, *_ = SITES


def test_64_megabytes_arrive_intact_in_both_directions() -> None:
    data = random.Random(0).randbytes(1 << 16) * 1024
    digest = hashlib.sha256(data).digest()

    async def check() -> None:
        async with hall() as here:
            site = await here.joined(A)
            for source, target, name in ((site, here.hub, "hub"), (here.hub, site, "a")):
                sending = asyncio.create_task(source.send(name, 9, data))
                got = await next_event(target)
                assert await sending
                assert isinstance(got, Got)
                assert (got.kind, len(got.data), hashlib.sha256(got.data).digest()) == (9, len(data), digest)
            assert site.sent["hub"] == here.hub.received["a"] > len(data)
            assert here.hub.sent["a"] == site.received["hub"] > len(data)

    run(check())


@pytest.mark.parametrize("length", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_every_length_arrives(length: int) -> None:
    async def check() -> None:
        async with hall() as here:
            site = await here.joined(A)
            data = bytes(index % 251 for index in range(1000)) * (length // 1000 + 1)
            assert await site.send("hub", 255, data[:length])
            assert await next_event(here.hub) == Got("a", 255, data[:length])

    run(check())


def test_messages_sent_at_once_keep_their_order_and_do_not_mix() -> None:
    async def check() -> None:
        async with hall() as here:
            site = await here.joined(A)
            messages = [bytes([number]) * (3 * CHUNK // (1 + number % 5)) for number in range(20)]
            sending = [asyncio.create_task(site.send("hub", 0, data)) for data in messages]
            assert [await next_data(here.hub) for _ in messages] == messages
            assert all(await asyncio.gather(*sending))

    run(check())


def test_five_parties_at_once_send_many_small_messages() -> None:
    count = 200

    async def check() -> None:
        async with hall() as here:
            sites = [await here.joined(party) for party in SITES]

            async def talk(site: object) -> None:
                for number in range(count):
                    assert await site.send("hub", number, number.to_bytes(4, "big"))  # type: ignore[attr-defined]

            async def answer() -> dict[str, list[int]]:
                seen: dict[str, list[int]] = {party.name: [] for party in SITES}
                for _ in range(count * len(SITES)):
                    event = await next_event(here.hub)
                    assert isinstance(event, Got)
                    seen[event.name].append(int.from_bytes(event.data, "big"))
                    assert await here.hub.send(event.name, 1, event.data)
                return seen

            _, seen = await asyncio.gather(asyncio.gather(*map(talk, sites)), answer())
            assert seen == {party.name: list(range(count)) for party in SITES}
            for site in sites:
                assert [int.from_bytes(await next_data(site), "big") for _ in range(count)] == list(range(count))

    run(check())


def test_a_name_that_is_not_connected_gets_nothing() -> None:
    async def check() -> None:
        async with hall() as here:
            assert not await here.hub.send("a", 0, b"early")
            site = await here.joined(A)
            assert here.hub.connected() == {"a"}
            assert site.connected() == {"hub"}
            await site.close()
            assert await next_event(here.hub) == Left("a", "it closed the connection")
            assert not await here.hub.send("a", 0, b"late")
            assert not await site.send("hub", 0, b"late")
            assert here.hub.connected() == frozenset()

    run(check())


@pytest.mark.parametrize("closer", ["site", "hub"])
def test_what_was_sent_before_closing_arrives_and_then_the_other_side_is_told(closer: str) -> None:
    data = bytes(8 * CHUNK)

    async def check() -> None:
        async with hall() as here:
            site = await here.joined(A)
            ends, name, stays, seen = (site, "hub", here.hub, "a") if closer == "site" else (here.hub, "a", site, "hub")
            for _ in range(3):
                assert await ends.send(name, 0, data)
            closing = asyncio.create_task(ends.close(10.0))
            assert [len(await next_data(stays)) for _ in range(3)] == [len(data)] * 3
            assert await next_event(stays) == Left(seen, "it closed the connection")
            await soon(closing)
            assert stays.connected() == frozenset()

    run(check())


def test_closing_twice_or_with_nothing_open_is_harmless_and_ends_it() -> None:
    async def check() -> None:
        alone = transport(A)
        await alone.close()
        with pytest.raises(ValueError, match="this transport is closed"):
            alone.dial("hub", f"{HERE}:1", certificate=HUB.pem, server_name=HUB.server_name)
        with pytest.raises(ValueError, match="this transport is closed"):
            await alone.listen(f"{HERE}:0", recognise=KNOWN.get)
        async with hall() as here:
            site = await here.joined(A)
            await asyncio.gather(site.close(), site.close(), here.hub.close(), here.hub.close())
            await site.close()

    run(check())


def test_no_socket_is_left_open() -> None:
    async def check() -> None:
        for _ in range(3):
            async with hall() as here:
                site = await here.joined(A)
                assert await site.send("hub", 0, b"x")
                assert await next_data(here.hub) == b"x"
        await until(lambda: open_sockets() == before)

    before = open_sockets()
    run(check())


def test_another_greeting_never_joins_until_it_is_set_right() -> None:
    reason = "it works on another study or version"

    async def check() -> None:
        async with hall() as here:
            stranger = here.dialling(A, greeting=b"study 2")
            assert await next_event(stranger) == Left("hub", reason, GREETING)
            assert await next_event(here.hub) == Left("a", reason, b"study 2")
            assert here.hub.trouble == {"a": reason}
            assert stranger.trouble == {"hub": reason}
            # It goes on trying, and says nothing new.
            heard = here.hub.received["a"]
            await until(lambda: here.hub.received["a"] > heard)
            assert len(here.hub.events) == len(stranger.events) == 0
            assert not await stranger.send("hub", 0, b"x")
            await stranger.close()
            await here.joined(A)
            assert here.hub.trouble == {}

    run(check())


def test_another_greeting_does_not_round_out_who_is_there() -> None:
    async def check() -> None:
        async with hall() as here:
            site = await here.joined(A)
            wrong = here.dialling(A, greeting=b"study 2")
            assert isinstance(await next_event(wrong), Left)
            await until(lambda: bool(here.hub.refused))
            assert "'a'" in here.hub.refused[0]
            assert await site.send("hub", 0, b"still here")
            assert await next_data(here.hub) == b"still here"

    run(check())


def test_the_same_name_again_replaces_the_older_connection() -> None:
    async def check() -> None:
        async with hall() as here:
            older = await here.joined(A)
            newer = here.dialling(A)
            assert await next_event(newer) == Joined("hub")
            assert await next_event(here.hub) == Left("a", "a newer connection under this name took its place")
            assert await next_event(here.hub) == Joined("a")
            left = await next_event(older)
            assert isinstance(left, Left)
            assert "running twice" in left.why
            await older.close(0.1)
            await until(lambda: here.hub.connected() == {"a"} and newer.connected() == {"hub"})

    run(check())


def test_a_message_over_the_limit_is_refused_by_both_sides() -> None:
    async def check() -> None:
        async with hall(limit=2 * CHUNK) as here:
            site = await here.joined(A)
            with pytest.raises(ValueError, match=f"data has {2 * CHUNK + 1} bytes, more than the limit of {2 * CHUNK}"):
                await here.hub.send("a", 0, bytes(2 * CHUNK + 1))
            await site.send("hub", 0, bytes(2 * CHUNK + 1))
            why = f"it announced a message of {2 * CHUNK + 1} bytes, and at most {2 * CHUNK} are allowed"
            assert await next_event(here.hub) == Left("a", why)
            assert await next_event(site) == Left("hub", "it does not accept messages as long as the one sent to it")
            # And then it is as before.
            assert await next_event(site) == Joined("hub")
            assert await next_event(here.hub) == Joined("a")
            assert await site.send("hub", 0, bytes(2 * CHUNK))
            assert len(await next_data(here.hub)) == 2 * CHUNK

    run(check())


def test_the_hub_may_be_the_one_that_sends_too_much() -> None:
    async def check() -> None:
        async with hall() as here:
            site = await here.joined(A, limit=CHUNK)
            await here.hub.send("a", 0, bytes(9 * CHUNK))
            left = await next_event(site)
            assert isinstance(left, Left)
            assert f"{CHUNK} are allowed" in left.why
            assert await next_event(here.hub) == Left("a", "it does not accept messages as long as the one sent to it")
            assert await next_event(here.hub) == Joined("a")

    run(check())


def test_a_name_is_dialled_once_and_nobody_dials_themselves() -> None:
    async def check() -> None:
        async with hall() as here:
            site = await here.joined(A)
            for name, message in (("hub", "'hub' is dialled already"), ("a", "'a' is this party.s own name")):
                with pytest.raises(ValueError, match=message):
                    site.dial(name, f"{HERE}:{here.port}", certificate=HUB.pem, server_name=HUB.server_name)

    run(check())


def test_two_that_dial_each_other_are_told() -> None:
    async def check() -> None:
        one, other = transport(A), transport(B)
        ports = [await each.listen(f"{HERE}:0", recognise=KNOWN.get) for each in (one, other)]
        one.dial("b", f"{HERE}:{ports[1]}", certificate=B.pem, server_name=B.server_name)
        other.dial("a", f"{HERE}:{ports[0]}", certificate=A.pem, server_name=A.server_name)
        both = "both sides dial each other, and only one of them may"
        await until(lambda: one.trouble.get("b") == both and other.trouble.get("a") == both)
        assert one.connected() == other.connected() == frozenset()
        await asyncio.gather(one.close(), other.close())

    run(check())


def test_peers_both_listen_and_dial() -> None:
    async def check() -> None:
        peers = [transport(party) for party in SITES[:3]]
        ports = [await peer.listen(f"{HERE}:0", recognise=KNOWN.get) for peer in peers]
        for low in range(3):
            for high in range(low + 1, 3):
                party = SITES[high]
                peers[low].dial(party.name, f"{HERE}:{ports[high]}", certificate=party.pem, server_name=party.server_name)
        everybody = frozenset("abc")
        await until(lambda: all(peer.connected() == everybody - {peer.me} for peer in peers))
        await asyncio.gather(*(peer.close() for peer in peers))

    run(check())


def test_an_address_in_use_is_named() -> None:
    async def check() -> None:
        async with hall() as here:
            second = transport(A)
            with pytest.raises(OSError, match=f"cannot listen at {HERE}:{here.port}: .*already in use; choose another"):
                await second.listen(f"{HERE}:{here.port}", recognise=KNOWN.get)
            assert await second.listen(f"{HERE}:0", recognise=KNOWN.get) != here.port
            with pytest.raises(ValueError, match="is listening already"):
                await second.listen(f"{HERE}:0", recognise=KNOWN.get)
            await second.close()
        with socket.create_server((HERE, 0)) as taken:
            third = transport(A)
            with pytest.raises(OSError, match="already in use"):
                await third.listen(f"{HERE}:{taken.getsockname()[1]}", recognise=KNOWN.get)
            with pytest.raises(OSError, match=r"cannot listen at 192\.0\.2\.1:0: .*address"):
                await third.listen("192.0.2.1:0", recognise=KNOWN.get)

    run(check())


def test_the_longest_greeting_is_exchanged() -> None:
    async def check() -> None:
        async with hall(greeting=bytes(4096)) as here:
            await here.joined(A, greeting=bytes(4096))

    run(check())
