"""How long one round over the network takes: a hub and three sites, four processes on this machine, over mutual TLS.

In a round the hub sends the same payload to each site, each site answers with as many bytes, and the hub has all
three answers. The baseline is Python's own TLS sockets, blocking, with one thread for each site at the hub. It moves
the same bytes between as many processes and does nothing else. Rounds of both are interleaved. Targets, in the
median: 200 x 8 numbers in at most 10 ms, and 100000 x 32 in at most 0.6 s.

    python benchmarks/network/round.py [--quick]
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import socket
import ssl
import statistics
import struct
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from eigenveil.runtimes.grpc import Credentials, Got, Joined, Transport

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

from runtimes.network_certificates import Authority, Party

SITES, HOST, GREETING = 3, "127.0.0.1", b"benchmark"
# Rows, columns, rounds, rounds of --quick, and the target in seconds.
SHAPES = ((200, 8, 300, 50, 0.010), (100_000, 32, 25, 5, 0.6))
LENGTH = struct.Struct("<Q")


def contexts(credentials: Credentials, *, listening: bool) -> ssl.SSLContext:
    """What the bare peer shows and accepts: the same certificates."""
    purpose = ssl.Purpose.CLIENT_AUTH if listening else ssl.Purpose.SERVER_AUTH
    context = ssl.create_default_context(purpose, cadata=credentials.authority.decode())
    context.verify_mode, context.check_hostname = ssl.CERT_REQUIRED, False
    with tempfile.NamedTemporaryFile() as both:
        both.write(credentials.key + credentials.certificate)
        both.flush()
        context.load_cert_chain(both.name)
    return context


def put(line: ssl.SSLSocket, data: bytes | bytearray) -> None:
    line.sendall(LENGTH.pack(len(data)))
    line.sendall(data)


def take(line: ssl.SSLSocket) -> bytearray | None:
    """The next payload, or None at the end."""
    head = line.recv(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    data = bytearray(LENGTH.unpack(head)[0])
    view = memoryview(data)
    while view:
        view = view[line.recv_into(view) :]
    return data


def bare_site(credentials: Credentials, port: int) -> None:
    """Send everything back, until the hub ends."""
    with socket.create_connection((HOST, port)) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contexts(credentials, listening=False).wrap_socket(plain) as line:
            while (data := take(line)) is not None:
                put(line, data)


def site(party: Party, hub: Party, port: int) -> None:
    """The same over a switchboard."""

    async def answer() -> None:
        transport = Transport(party.name, credentials=party.credentials, greeting=GREETING)
        transport.dial("hub", f"{HOST}:{port}", certificate=hub.pem, server_name=hub.server_name)
        while True:
            match await transport.events.get():
                case Got("hub", 1, data):
                    await transport.send("hub", 1, data)
                case Got("hub", 0, _):
                    return await transport.close()
                case _:
                    pass

    asyncio.run(answer())


async def rounds(
    transport: Transport, names: list[str], bare: list[ssl.SSLSocket], payload: bytes, count: int
) -> tuple[list[float], list[float]]:
    """Seconds of `count` rounds of each, alternating, after two to warm up."""

    async def over_switchboard() -> None:
        sent = asyncio.gather(*(transport.send(name, 1, payload) for name in names))
        answers = [await transport.events.get() for _ in names]
        assert all(await sent)
        assert all(isinstance(event, Got) and len(event.data) == len(payload) for event in answers)

    def over_sockets() -> float:
        def one(line: ssl.SSLSocket) -> int:
            put(line, payload)
            return len(take(line) or b"")

        start = time.perf_counter()
        assert set(pool.map(one, bare)) == {len(payload)}
        return time.perf_counter() - start

    ours, theirs = [], []
    with ThreadPoolExecutor(len(bare)) as pool:
        for _ in range(count + 2):
            start = time.perf_counter()
            await over_switchboard()
            ours.append(time.perf_counter() - start)
            theirs.append(await asyncio.to_thread(over_sockets))
    return ours[2:], theirs[2:]


async def measure(*, quick: bool) -> list[str]:
    """Print the table, and return what misses its target."""
    authority, misses = Authority(), []
    hub, parties = authority.party("hub"), [authority.party(f"site{number}") for number in range(SITES)]
    spawn, names = multiprocessing.get_context("spawn"), [party.name for party in parties]
    transport = Transport("hub", credentials=hub.credentials, greeting=GREETING)
    port = await transport.listen(f"{HOST}:0", recognise={party.pem: party.name for party in parties}.get)
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server((HOST, 0)))
        listener.settimeout(60)
        bare_port, bare = listener.getsockname()[1], []
        for party in parties:
            for target, details in ((site, (party, hub, port)), (bare_site, (party.credentials, bare_port))):
                spawn.Process(target=target, args=details, daemon=True).start()
        shown = contexts(hub.credentials, listening=True)
        for _ in parties:
            plain, _ = await asyncio.to_thread(listener.accept)
            plain.settimeout(60)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            bare.append(stack.enter_context(await asyncio.to_thread(shown.wrap_socket, plain, server_side=True)))
        for _ in parties:
            assert isinstance(await asyncio.wait_for(transport.events.get(), 60), Joined)
        for rows, columns, count, few, target_seconds in SHAPES:
            payload = np.random.default_rng(0).standard_normal((rows, columns)).tobytes()
            ours, theirs = await rounds(transport, names, bare, payload, few if quick else count)
            median, peer = statistics.median(ours), statistics.median(theirs)
            verdict = "reached" if median <= target_seconds else "MISSED"
            print(
                f"| {rows} x {columns} | {len(ours)} | {1000 * median:.1f} | {1000 * max(ours):.1f} | {1000 * peer:.1f} "
                f"| {1000 * max(theirs):.1f} | {median / peer:.2f} | {1000 * target_seconds:g}: {verdict} |"
            )
            misses += [f"{rows} x {columns} ({1000 * median:.0f} ms)"] if verdict == "MISSED" else []
        for name in names:
            await transport.send(name, 0, b"")
        await transport.close()
    return misses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    options = parser.parse_args()
    print(f"{SITES} sites and a hub in {SITES + 1} processes, mutual TLS on loopback; milliseconds a round\n")
    print("| float64 each way and site | rounds | median | worst | bare median | bare worst | ratio | target |")
    print("|---|---|---|---|---|---|---|---|")
    misses = asyncio.run(measure(quick=options.quick))
    print(f"\ntargets missed: {', '.join(misses) or 'none'}")


if __name__ == "__main__":
    main()
