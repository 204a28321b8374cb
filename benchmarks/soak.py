"""A soak of streams over a network: sites as processes, killed and started again, a hub that is killed and resumed, bad lines.

Each site follows a csv file that grows all the time, and sends what it has slot by slot over mutual TLS. A proxy stands between
the sites and the hub. It delays everything by up to a fifth of a second, differently on every connection, so that what sites send
arrives in another order, and it cuts connections. Every few seconds a site is killed (SIGKILL) and started again, and the hub is
killed twice. All of this must hold at the end:

- the rows at the hub are those in the files: their number and, without noise, their sum of squares;
- with noise, the hub has counted each slot that a site has in its ledger, and the site was charged once. A person is in one
  slot, so all slots together cost no more than one;
- memory and open files of hub and sites do not grow without bound.

    python benchmarks/soak.py                          twice 4 minutes, without noise and with it
    python benchmarks/soak.py --seconds 40 --sites 6
"""

import argparse
import asyncio
import json
import math
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

from eigenveil.data.follow import follow
from eigenveil.ledger.durable import DurableLedger
from eigenveil.ledger.replay import charges_in
from eigenveil.network.agents.slot_hub import SlotHubAgent
from eigenveil.network.agents.slot_site import SlotSiteAgent
from eigenveil.network.authority import Authority, new_request, write_new
from eigenveil.network.certificates import Keys, Role
from eigenveil.network.study import StudyFile

COLUMNS: Final = ("temperature", "pressure", "flow", "current", "voltage")
# Seconds: of a slot, between two batches of rows, between two kills, and until a party that was killed is started again.
SLOT, BATCH, KILL, AGAIN = 5.0, 0.25, 3.0, 0.5
ROWS: Final = 4
# Seconds: the longest delay of what the proxy carries, and how often it cuts a connection.
DELAY, CUT = 0.2, 1.5
# Slots that a late site may still send: more than it takes to start it again on a busy machine.
WINDOW: Final = 10
# Slots at the end in which no row is written, so that every row is in a slot.
QUIET: Final = 5
EPSILON, DELTA = 1.0, 1e-6


def serve(folder: Path, port: int) -> None:
    """The hub's process. After each slot it writes down how much it has counted."""
    study = StudyFile.read(folder / "study.toml")

    def show(agent: SlotHubAgent) -> None:
        hub, sketch = agent.durable.party, agent.answer.sketch
        slots = range(min(hub.newest + 1, agent.parties.spec.slots))
        facts = {
            "slot": hub.newest,
            "rows": sketch.weight,
            "squares": sketch.energy,
            "counted": {name: [slot for slot in slots if name in hub.counted(slot)] for name in hub.sites},
        }
        with (folder / "hub.jsonl").open("a") as file:
            file.write(json.dumps(facts) + "\n")

    with SlotHubAgent.log_for(folder / "hub.log", study) as log:
        agent = SlotHubAgent(study, keys=Keys.load(folder / "hub.key"), log=log)
        asyncio.run(agent.run(show, listen=f"127.0.0.1:{port}"))


def take_part(folder: Path, name: str, port: int) -> None:
    """A site's process."""
    study = StudyFile.read(folder / "study.toml")
    with DurableLedger.open(folder / f"{name}.ledger") as ledger:
        agent = SlotSiteAgent(study, keys=Keys.load(folder / f"{name}.key"), ledger=ledger, dataset="sensor", policy=None)
        source = follow(folder / f"{name}.csv", columns=study.columns)
        asyncio.run(agent.run(source, address=f"127.0.0.1:{port}"))


@final
@dataclass(slots=True)
class Proxy:
    """A listener that forwards to the hub, badly. Changes in place: it counts what it does."""

    target: int
    rng: random.Random
    connections: int = 0
    cuts: int = 0
    open: set["asyncio.Task[None]"] = field(default_factory=set)

    async def listen(self) -> int:
        """Begin, on a port of the system's choice."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return int(server.sockets[0].getsockname()[1])

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            ahead, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            # The hub is down. Whoever dials gets nothing, and dials again.
            writer.close()
            return
        self.connections += 1
        pumps = [asyncio.ensure_future(self._pump(*way)) for way in ((reader, back), (ahead, writer))]
        self.open.update(pumps)
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            self.open.difference_update(pumps)
            writer.close()
            back.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Each direction of each connection has delays of its own: so sites overtake each other.
        try:
            while data := await reader.read(1 << 16):
                await asyncio.sleep(self.rng.random() ** 2 * DELAY)
                writer.write(data)
                await writer.drain()
        except OSError:
            # One end was killed. The other learns of it, because both are closed.
            return

    def cut(self) -> None:
        """End one connection."""
        if self.open:
            self.rng.choice(sorted(self.open, key=id)).cancel()
            self.cuts += 1


@final
class Sensors:
    """The files that sites follow, and what is in them. Changes in place."""

    def __init__(self, folder: Path, names: list[str], rng: random.Random) -> None:
        self._rng, self._files = rng, {name: (folder / f"{name}.csv").open("w", buffering=1) for name in names}
        self._halves: dict[str, str] = defaultdict(str)
        self.rows, self.squares = 0, 0.0
        for file in self._files.values():
            file.write(",".join(COLUMNS) + "\n")
            file.flush()

    def write(self, *, last: bool = False) -> None:
        """A few more rows for each site. The last line may be a half, whose rest comes with the next rows."""
        for name, file in self._files.items():
            lines = ""
            for _ in range(0 if last else ROWS):
                row = [self._rng.gauss(0.0, 1.0 + place) for place in range(len(COLUMNS))]
                self.rows, self.squares = self.rows + 1, self.squares + math.fsum(x * x for x in row)
                lines += ",".join(map(repr, row)) + "\n"
            text = self._halves.pop(name, "") + lines
            kept = 0 if last else self._rng.randrange(0, 30)
            file.write(text[: len(text) - kept])
            file.flush()
            if kept:
                self._halves[name] = text[len(text) - kept :]


@final
class Soak:
    """One run: the processes, who is killed, and what was measured of them. Changes in place."""

    def __init__(self, folder: Path, *, sites: int, seconds: float, private: bool, seed: int) -> None:
        self.folder, self.private, self.rng = folder, private, random.Random(seed)
        self.names = [f"site{place:02}" for place in range(sites)]
        self.slots = max(WINDOW // 2, round(seconds / SLOT))
        self.port = free_port()
        self.begins = time.time() + 5.0 + sites
        write_study(self)
        self.sensors = Sensors(folder, self.names, self.rng)
        self.proxy = Proxy(self.port, self.rng)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.kills: Counter[str] = Counter()
        # By party: MiB of memory and open files, over time.
        self.sizes: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self.failed: list[str] = []
        # Who was killed, and when to start it again.
        self._dead: dict[str, float] = {}

    async def run(self) -> None:
        """All of it, until everybody is done or the time is over."""
        front = await self.proxy.listen()
        self.start("hub", front)
        for name in self.names:
            self.start(name, front)
        stopping = self.begins + (self.slots - QUIET) * SLOT
        until = self.begins + (self.slots + WINDOW) * SLOT + 60.0
        hub_dies = [self.begins + self.slots * SLOT * share for share in (0.35, 0.65)]
        kill, cut, look = time.time() + KILL, time.time() + CUT, 0.0
        written = False
        while time.time() < until and self.alive(front):
            await asyncio.sleep(BATCH)
            now = time.time()
            # Nothing before the first slot: all rows there would be in it.
            if now < stopping:
                self.sensors.write()
            elif not written:
                self.sensors.write(last=True)
                written = True
            if hub_dies and now > hub_dies[0]:
                hub_dies.pop(0)
                self.kill("hub")
            elif now > kill and now < stopping:
                kill = now + KILL * (0.5 + self.rng.random())
                self.kill(self.rng.choice(self.names))
            if now > cut and now < stopping:
                cut = now + CUT * (0.5 + self.rng.random())
                self.proxy.cut()
            if now > look:
                look = now + 5.0
                self.measure()
        for name, process in self.running.items():
            if process.poll() is None:
                self.failed.append(f"{name} has not ended")
                process.kill()
                process.wait()

    def start(self, name: str, front: int) -> None:
        """Start a party, or start it again."""
        port = self.port if name == "hub" else front
        command = [sys.executable, __file__, "--party", name, "--folder", str(self.folder), "--port", str(port)]
        with (self.folder / f"{name}.err").open("ab") as errors:
            self.running[name] = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=errors, env=os.environ | {"OMP_NUM_THREADS": "1"}
            )

    def kill(self, name: str) -> None:
        """Kill a party, as a power cut does."""
        if self.running[name].poll() is None:
            self.running[name].kill()
            self.running[name].wait()
            self.kills[name] += 1
            self._dead[name] = time.time() + AGAIN

    def alive(self, front: int) -> bool:
        """Start again who was killed; False once all have ended by themselves."""
        for name, when in list(self._dead.items()):
            if time.time() > when:
                del self._dead[name]
                self.start(name, front)
        for name, process in self.running.items():
            if process.poll() not in (None, 0, -9):
                self.failed.append(f"{name} ended with {process.returncode}: {last_line(self.folder / f'{name}.err')}")
                return False
        return bool(self._dead) or any(process.poll() is None for process in self.running.values())

    def measure(self) -> None:
        """Memory and open files of all that run."""
        for name, process in self.running.items():
            found = resources(process.pid) if process.poll() is None else None
            if found is not None:
                self.sizes[name].append(found)

    def verdict(self) -> Iterator[str]:
        """What does not hold."""
        yield from self.failed
        lines = (self.folder / "hub.jsonl").read_text().splitlines()
        last = json.loads(lines[-1])
        if last["slot"] < self.slots - 1:
            yield f"the hub came to slot {last['slot'] + 1} of {self.slots}"
        # Under zero-out the number of rows is public, and exact with noise, too.
        if last["rows"] != self.sensors.rows:
            late = [name for name, slots in last["counted"].items() if self.slots - 1 not in slots]
            yield f"the hub has {last['rows']:.0f} rows, and the files {self.sensors.rows}; down at the end: {late}"
        if not self.private and not math.isclose(last["squares"], self.sensors.squares, rel_tol=1e-9):
            yield f"the sum of squares is {last['squares']!r} at the hub, and {self.sensors.squares!r} in the files"
        for name in self.names if self.private else ():
            yield from self._charged(name, last["counted"][name])

    def _charged(self, name: str, counted: list[int]) -> Iterator[str]:
        """A slot in which a site was down the whole time has no part of it: its rows are in the next."""
        with DurableLedger.reading(self.folder / f"{name}.ledger") as ledger:
            ledger.verify()
            commits = [entry.body for entry in ledger.entries() if entry.kind == "commit"]
            labels = [charge.label for body in commits for charge in charges_in(body)]
            (study,) = ledger.studies()
        # One commit for each slot that the site closed, and one for the result.
        if len(commits) - 1 != len(counted):
            yield f"{name} has closed {len(commits) - 1} slots, and the hub has counted {len(counted)} of them"
        # Everybody is in one slot, so that all slots together cost each person what the first one does: one charge.
        if len(labels) != 1:
            yield f"{name} has {len(labels)} charges, and should have one"
        if study.spent > study.account.mu * (1 + 1e-9):
            yield f"{name} has spent more than its budget"

    def report(self) -> None:
        """Print the figures."""
        halves = {name: (sizes[: len(sizes) // 2], sizes[len(sizes) // 2 :]) for name, sizes in self.sizes.items()}
        print(
            f"{'with' if self.private else 'without'} noise: {len(self.names)} sites, {self.slots} slots of {SLOT:g} s, "
            f"{self.sensors.rows} rows; {self.kills.total() - self.kills['hub']} sites and {self.kills['hub']} hubs killed; "
            f"{self.proxy.connections} connections, {self.proxy.cuts} cut"
        )
        for who, names in (("hub", ["hub"]), ("sites", self.names)):
            pairs = [halves[name] for name in names if halves.get(name, ([], []))[0] and halves[name][1]]
            for what, place in (("MiB", 0), ("open files", 1)):
                before = max(size[place] for first, _ in pairs for size in first)
                after = max(size[place] for _, second in pairs for size in second)
                print(f"  {who}, most {what}: {before:.0f} in the first half, {after:.0f} in the second")
        disk = sum(path.stat().st_size for path in self.folder.iterdir() if path.suffix in (".ledger", ".log"))
        print(f"  ledgers and log: {disk / 2**20:.1f} MiB on disk", flush=True)


def write_study(soak: Soak) -> None:
    """The study file, and the keys of everybody."""
    authority = Authority.fresh()
    certificates = {}
    for name in ("hub", *soak.names):
        role: Role = "hub" if name == "hub" else "site"
        request, secret = new_request(name, role)
        certificates[name] = authority.sign(request).pem
        write_new(private={soak.folder / f"{name}.key": secret}, public={soak.folder / f"{name}.crt": certificates[name]})
    task: dict[str, Any] = {"components": 2, "columns": list(COLUMNS), "neighbours": "zero-out", "center": "none"}
    budget = {"epsilon": EPSILON, "delta": DELTA, "trust": "site"}
    slots = {"slots": soak.slots, "slot_seconds": SLOT, "begins": soak.begins, "window": WINDOW}
    document = {
        "eigenveil_study": 1,
        "study": {"name": "soak", "id": "0123456789abcdef" * 2, "topology": "star", "streaming": True},
        "task": task | ({"row_bound": 20.0} if soak.private else {}),
        "privacy": budget if soak.private else {"no_privacy": True},
        "slots": slots,
        "network": {"deadline": 1.0, "retries": 1, "join_timeout": 60.0},
        "authority": {"certificate": authority.pem},
        "hub": {"address": f"127.0.0.1:{soak.port}", "certificate": certificates["hub"]},
        "site": [{"certificate": certificates[name]} for name in soak.names],
    }
    (soak.folder / "study.toml").write_text(StudyFile.of(document).text())


def resources(pid: int) -> tuple[float, int] | None:
    """MiB resident and open files of a process, None if it has just ended."""
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return int(status["VmRSS"].split()[0]) / 1024, len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except (OSError, KeyError):
        return None


def last_line(path: Path) -> str:
    """The last thing a process said."""
    return (path.read_text(errors="replace").strip().splitlines() or ["nothing was said"])[-1]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=180.0, help="of each run; starting and ending come on top")
    parser.add_argument("--seed", type=int, default=0, help="decides who is killed and when, as far as a clock can")
    parser.add_argument("--only", choices=("exact", "private"))
    parser.add_argument("--party", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.party is not None:
        if asked.party == "hub":
            serve(asked.folder, asked.port)
        else:
            take_part(asked.folder, asked.party, asked.port)
        return
    wrong = []
    for private in (False, True):
        if asked.only not in (None, "private" if private else "exact"):
            continue
        with tempfile.TemporaryDirectory() as folder:
            soak = Soak(Path(folder), sites=asked.sites, seconds=asked.seconds, private=private, seed=asked.seed)
            asyncio.run(soak.run())
            soak.report()
            found = list(soak.verdict())
            wrong += found
            for words in found:
                print(f"WRONG: {words}", flush=True)
    print("nothing lost, nothing counted twice, no double charge" if not wrong else f"{len(wrong)} things are wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
