"""What a party takes while somebody attacks it: memory, processor time, disk, and how long an honest site waits to join.

A hub (the agent that `eigenveil hub` runs) waits in a process of its own for its sites. An attacker, in another process,
holds connections from the same address as everybody else, and opens each one again when the hub ends it:

- silent: TCP connections that never begin TLS.
- strangers: TLS with a certificate of another authority.
- idle: TLS with the certificate of one of the sites, which then says nothing.

While it does, an honest site calls the hub, several times. Then one authenticated site sends messages while the hub waits. A
hostile hub sends a site tables that its step does not use. A study asks for 20000 columns and 6000 components.

Everything is on loopback, and the attacker shares the processors with those it attacks.

    python benchmarks/network/flood.py [--quick] [--connections 6000] [--seconds 20]
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import resource
import socket
import ssl
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from benchmarks.datasets import heading, line
from benchmarks.network.study import Shape, run_hub, run_site, signed_in, written_study
from eigenveil.network.agents.runner import credentials_of
from eigenveil.network.authority import Authority
from eigenveil.network.certificates import Keys, recogniser
from eigenveil.network.parties import parties_of
from eigenveil.network.study import StudyFile
from eigenveil.protocols.messages import Message, StepRequest
from eigenveil.protocols.wire import encode
from eigenveil.runtimes.grpc import Joined, Left, Transport

SHAPE, BAD, GOOD, MESSAGE = Shape(200, 8, "masked", 1, 1), "north", "south", 0
MEBI, PAGE, TICKS = 1 << 20, resource.getpagesize(), os.sysconf("SC_CLK_TCK")
# Bytes of one message of a flood. Without limits each of them was kept.
LARGE = 64 * MEBI


def memory_of(process: BaseProcess) -> float:
    """MiB that a process holds now."""
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * PAGE / MEBI


def cpu_of(process: BaseProcess) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@contextmanager
def running(target: Callable[..., Any], *given: Any) -> Iterator[BaseProcess]:
    """A process that is ended with the block."""
    process = multiprocessing.get_context("spawn").Process(target=target, args=given, daemon=True)
    process.start()
    try:
        yield process
    finally:
        process.terminate()
        process.join(10)


def port_of(study: StudyFile) -> int:
    assert study.hub is not None and study.hub.address is not None
    return int(study.hub.address.rpartition(":")[2])


def listening(port: int, seconds: float = 60.0) -> None:
    """Wait until somebody listens there."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        time.sleep(0.05)
    raise TimeoutError(f"nobody listens at port {port}")


# The attacker's process.


def context_of(folder: Path, who: str) -> ssl.SSLContext:
    """A client that shows a certificate and believes anybody."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    both = folder / f"{who}.pem"
    keys = Keys.load(folder / f"{who}.key")
    both.write_bytes(keys.tls_key + keys.certificate.pem.encode())
    context.load_cert_chain(both)
    return context


def attack(folder: Path, port: int, kind: str, count: int, opened: Any) -> None:
    """Hold `count` connections of a kind for ever."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))
    secure = None if kind == "silent" else context_of(folder, "stranger" if kind == "strangers" else BAD)

    async def hold(at: int, busy: asyncio.Semaphore) -> None:
        while True:
            writer = None
            try:
                async with busy, asyncio.timeout(20):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=secure)
                with opened.get_lock():
                    opened.value += 1
                # Whatever gRPC says first is thrown away, until it ends the connection.
                while await reader.read(1 << 16):
                    pass
            except (OSError, ssl.SSLError, TimeoutError, asyncio.IncompleteReadError):
                pass
            finally:
                if writer is not None:
                    writer.close()
            await asyncio.sleep(0.5)

    async def all_of_them() -> None:
        busy = asyncio.Semaphore(200)
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        await asyncio.gather(*(hold(at, busy) for at in range(count)))

    asyncio.run(all_of_them())


# An honest site, in this process.


async def joins(folder: Path, study: StudyFile, name: str, then: Callable[[Transport], Awaitable[None]] | None) -> float:
    """Seconds until a site has joined the hub, from the moment it calls. It leaves after `then`."""
    assert study.hub is not None and study.hub.address is not None
    keys = Keys.load(folder / f"{name}.key")
    async with Transport(name, credentials=credentials_of(study, keys), greeting=study.greeting) as transport:
        began, certificate = time.monotonic(), study.hub.certificate
        transport.dial("hub", study.hub.address, certificate=certificate.pem.encode(), server_name=certificate.server_name)
        async with asyncio.timeout(120):
            while not isinstance(await transport.events.get(), Joined):
                pass
        took = time.monotonic() - began
        if then is not None:
            await then(transport)
        return took


def under_load(folder: Path, study: StudyFile, hub: BaseProcess, seconds: float) -> list[str]:
    """What the hub takes in so many seconds, and the times in which an honest site joins it meanwhile."""
    times: list[float] = []
    most, began, used = 0.0, time.monotonic(), cpu_of(hub)
    while time.monotonic() - began < seconds or not times:
        try:
            times.append(asyncio.run(joins(folder, study, GOOD, None)))
        except TimeoutError:
            times.append(120.0)
        most = max(most, memory_of(hub))
        time.sleep(0.2)
    took = time.monotonic() - began
    files = len(list(Path(f"/proc/{hub.pid}/fd").iterdir()))
    share = f"{100 * (cpu_of(hub) - used) / took:.0f}%"
    return [f"{most:.0f} MiB", share, str(files), f"{statistics.median(times):.2f} s", f"{max(times):.2f} s"]


def connections(folder: Path, study: StudyFile, loads: dict[str, int], seconds: float) -> None:
    heading(["load", "opened", "memory of the hub", "processor", "files", "join: median", "join: worst"])
    for kind, count in loads.items():
        (folder / "hub.transcript").unlink(missing_ok=True)
        with running(run_hub, folder, 1) as hub:
            listening(port_of(study))
            opened = multiprocessing.get_context("spawn").Value("i", 0)
            with contextlib.ExitStack() as stack:
                if count:
                    stack.enter_context(running(attack, folder, port_of(study), kind, count, opened))
                    # Until all are there, or no more come: then it goes on while the site calls.
                    until = time.monotonic() + 3 * seconds
                    while opened.value < count and time.monotonic() < until:
                        time.sleep(0.1)
                cells = under_load(folder, study, hub, seconds)
                line([f"{kind} x {count}" if count else "none", str(opened.value), *cells])


def messages(folder: Path, study: StudyFile, count: int) -> None:
    """One authenticated site that sends while the hub waits for the others."""
    (folder / "hub.transcript").unlink(missing_ok=True)
    with running(run_hub, folder, 1) as hub:
        listening(port_of(study))
        before = memory_of(hub)
        sent = 0

        async def flood(transport: Transport) -> None:
            nonlocal sent
            for size in (LARGE, 1 << 16):
                for _ in range(count * (1 if size == LARGE else 64)):
                    # An accepted message counts; one that ends the connection does not, and the site calls again.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(10):
                            sent += size * await transport.send("hub", MESSAGE, bytes(size))
                            while "hub" not in transport.connected():
                                await asyncio.sleep(0.05)
            await asyncio.sleep(1)

        asyncio.run(joins(folder, study, BAD, flood))
        line(["messages to a waiting hub", f"{sent / MEBI:.0f} MiB", f"{before:.0f} MiB", f"{memory_of(hub):.0f} MiB", ""])


def tables(folder: Path, study: StudyFile, count: int) -> None:
    """A hub that sends a site tables that the step does not use."""
    ledger = folder / f"{GOOD}.ledger"

    async def lie() -> float:
        keys = Keys.load(folder / "hub.key")
        async with Transport("hub", credentials=credentials_of(study, keys), greeting=study.greeting) as transport:
            known = recogniser([place.certificate for place in study.sites])
            await transport.listen(f"127.0.0.1:{port_of(study)}", recognise=known)
            with running(run_site, folder, GOOD, 1) as site:
                while not isinstance(await transport.events.get(), Joined):
                    pass
                before, sent = memory_of(site), 0
                for number in range(count):
                    body = StepRequest(round=number, step="keys", data=os.urandom(32), table=(("west", bytes(LARGE)),))
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(30):
                            sent += LARGE * await transport.send(GOOD, MESSAGE, encode(Message("hub", GOOD, body)))
                            # It answers, or ends the connection and calls again.
                            event = await transport.events.get()
                            while isinstance(event, Left):
                                event = await transport.events.get()
                await asyncio.sleep(1)
                size = sum(one.stat().st_size for one in folder.glob(f"{GOOD}.ledger*"))
                cells = [f"{sent / MEBI:.0f} MiB", f"{before:.0f} MiB", f"{memory_of(site):.0f} MiB"]
                line(["tables to a site", *cells, f"{size / MEBI:.1f} MiB"])
                return before

    asyncio.run(lie())
    ledger.unlink(missing_ok=True)


def hostile_study(study: StudyFile) -> None:
    """A study that nobody could carry out."""
    document = study.document()
    task = {**document["task"], "columns": [f"c{at}" for at in range(20_000)], "components": 6000}
    began, most = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        parties_of(StudyFile.of({**document, "task": task}))
        print("NOT REFUSED")
    except ValueError as error:
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most) / 1024
        print(f"refused in {time.monotonic() - began:.2f} s, with {grown:.0f} MiB more at most: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few connections, for a short time")
    parser.add_argument("--connections", type=int, default=6000, help="silent ones; a third as many of the others")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each load is measured")
    parser.add_argument("--skip-study", action="store_true", help="leave out the hostile study")
    options = parser.parse_args()
    count, seconds = (500, 3.0) if options.quick else (options.connections, options.seconds)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start, attacker and site on the same address\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        study = written_study(folder, SHAPE)
        signed_in(folder, Authority.fresh(), "stranger", "site")
        connections(folder, study, {"none": 0, "silent": count, "strangers": count // 3, "idle": count // 3}, seconds)
        print()
        heading(["load", "sent", "memory before", "memory after", "ledger"])
        messages(folder, study, 2 if options.quick else 8)
        tables(folder, study, 2 if options.quick else 8)
        if not options.skip_study:
            print("\n20000 columns, 6000 components:")
            hostile_study(study)
    print(f"\nload at the end: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
