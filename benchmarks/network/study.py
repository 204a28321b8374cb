"""How long one round of a whole study over the network takes, where the time goes, and how it compares with one process.

Over the network there are a hub and three sites: four processes on this machine, with mutual TLS on loopback. They
are the agents that `eigenveil hub` and `eigenveil site` run. Every site has a ledger on disk and the hub a log. Each
step of both is synced (fsync) before anything follows from it. A round is the time between two rounds that the hub
reports. The baseline is the same study in one process (`FederatedPCA.fit`): the same questions, checks, noise and
algebra, but no bytes, connections or files. Studies of both are interleaved. Rows are few, so that products with them
cost little on either side.

The second table follows the clock, which all processes share. It divides a round into time when the hub works, time
when some site works and the hub does not, and time when neither works. In the last, messages are carried, or
processes wait for a processor. The third table shows the work in one round: at the hub for all three sites together,
and at one site. The file is the hub's log or the ledger. A bare write is a plain file with the bytes of one commit,
and fsync, while nothing else runs.

Not measured: joining, the first question and the end of a study; policies, trees and peers. Nor are sites on their
own machines, where they would not compete for these processors, or links between them. For transport alone, compared
with bare TLS sockets, see round.py. The folder must be on a disk: in memory fsync costs nothing.

    python benchmarks/network/study.py [--quick] [--threads 1] [--folder .]
"""

import argparse
import asyncio
import functools
import itertools
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, final

import numpy as np

from benchmarks.datasets import heading, line
from eigenveil import FederatedPCA
from eigenveil.data.rows import DenseRows
from eigenveil.errors import require
from eigenveil.ledger.durable import DurableLedger
from eigenveil.linalg import Array
from eigenveil.linalg.blas import blas_threads
from eigenveil.network.agents import hub_log as durable_hub
from eigenveil.network.agents import star as durable_site
from eigenveil.network.agents import steps as durable
from eigenveil.network.agents.hub_log import HubLog
from eigenveil.network.agents.site_data import SiteData
from eigenveil.network.agents.star import HubAgent, SiteAgent
from eigenveil.network.agents.steps import Event
from eigenveil.network.authority import Authority, new_request, write_new
from eigenveil.network.certificates import Keys, Role
from eigenveil.network.study import StudyFile
from eigenveil.protocols.masked.member import MaskedMember
from eigenveil.protocols.star.hub import Hub
from eigenveil.protocols.star.site import Member

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

from network.network_studies import free_port

HOST, SITES, PEOPLE, ROUNDS, SECONDS = "127.0.0.1", ("north", "south", "west"), 20, 8, 600.0
# When something began and ended, by what it is.
Spans = dict[str, list[tuple[float, float]]]


@final
@dataclass(frozen=True, slots=True)
class Shape:
    """A study to measure, and how many times, also with --quick."""

    columns: int
    components: int
    trust: str
    times: int
    quick: int

    def __str__(self) -> str:
        return f"{self.columns} x {self.components}, {self.trust}"


SHAPES = (Shape(200, 8, "site", 8, 2), Shape(200, 8, "masked", 8, 2), Shape(100_000, 32, "site", 3, 1))


def table_of(at: int, columns: int) -> Array:
    """A few people, of norm about one."""
    return np.random.default_rng(at).normal(scale=columns**-0.5, size=(PEOPLE, columns))


def signed_in(folder: Path, authority: Authority, name: str, role: Role) -> Keys:
    """New keys of a party in files of its own."""
    request, private = new_request(name, role)
    path = folder / f"{name}.key"
    write_new(private={path: private}, public={path.with_suffix(".crt"): authority.sign(request).pem})
    return Keys.load(path)


def written_study(folder: Path, shape: Shape) -> StudyFile:
    """The study of new parties, in study.toml, with all their keys in the same folder."""
    authority = Authority.fresh()
    hub = signed_in(folder, authority, "hub", "hub")
    sites = [signed_in(folder, authority, name, "site") for name in SITES]
    study = StudyFile.of(
        {
            "eigenveil_study": 1,
            "study": {"name": "benchmark", "id": os.urandom(16).hex(), "topology": "star"},
            "task": {
                "components": shape.components,
                "columns": [f"c{number}" for number in range(shape.columns)],
                "row_bound": 2.0,
                "method": "power",
                "rounds": ROUNDS,
                "oversample": 0,
                "center": "none",
            },
            "privacy": {"epsilon": 2.0, "delta": 1e-6, "trust": shape.trust},
            "network": {"deadline": 120.0, "join_timeout": 120.0},
            "authority": {"certificate": authority.pem},
            "hub": {"address": f"{HOST}:{free_port()}", "certificate": hub.certificate.pem},
            "site": [{"certificate": keys.certificate.pem} for keys in sites],
        }
    )
    write_new(private={}, public={folder / "study.toml": study.text()})
    return study


def watched(spans: Spans, what: str, owner: Any, name: str) -> None:
    """Note from here on when each call of `owner.name` began and ended; the clock is the same in all processes."""
    whole = getattr(owner, name)

    @functools.wraps(whole)
    def noting(*given: Any, **named: Any) -> Any:
        start = time.perf_counter()
        try:
            return whole(*given, **named)
        finally:
            spans[what].append((start, time.perf_counter()))

    setattr(owner, name, noting)


def run_hub(folder: Path, threads: int) -> None:
    """The hub's process."""
    spans: Spans = defaultdict(list)
    watched(spans, "durable", durable_hub.DurableHub, "take")
    watched(spans, "read", durable, "decode")
    watched(spans, "party", Hub, "receive")
    watched(spans, "write", durable_hub, "encode")
    watched(spans, "disk", HubLog, "add")
    study, told = StudyFile.read(folder / "study.toml"), []

    def on_event(event: Event) -> None:
        if event.what == "round":
            told.append((event.who, time.perf_counter()))

    async def extra() -> None:
        with HubAgent.transcript_for(folder / "hub.transcript", study) as transcript:
            agent = HubAgent(study, keys=Keys.load(folder / "hub.key"), transcript=transcript, on_event=on_event)
            assert study.hub is not None and study.hub.address is not None
            await agent.run(lambda model: None, listen=study.hub.address)

    with blas_threads(threads):
        asyncio.run(extra())
    (folder / "hub.json").write_text(json.dumps({"spans": spans, "told": told}))


def run_site(folder: Path, name: str, threads: int) -> None:
    """A site's process."""
    spans: Spans = defaultdict(list)
    watched(spans, "durable", durable_site.DurableSite, "take")
    watched(spans, "read", durable, "decode")
    for party in (Member, MaskedMember):
        watched(spans, "party", party, "receive")
    watched(spans, "write", durable_site, "encode")
    watched(spans, "disk", DurableLedger, "commit")
    study = StudyFile.read(folder / "study.toml")
    rows = DenseRows(table_of(SITES.index(name), len(study.columns)))

    async def extra() -> None:
        with DurableLedger.open(folder / f"{name}.ledger") as ledger:
            keys, holding = Keys.load(folder / f"{name}.key"), SiteData.of(rows, study)
            agent = SiteAgent(study, keys=keys, holding=holding, ledger=ledger, dataset="patients", policy=None)
            await agent.run(lambda model: None)

    with blas_threads(threads):
        asyncio.run(extra())
    (folder / f"{name}.json").write_text(json.dumps({"spans": spans}))


def rounds_of(told: Iterable[tuple[str, float]]) -> list[tuple[float, float]]:
    """When each round of products began and ended, but for the first, before which there was no other."""
    return [(begun, ended) for (_, begun), (stage, ended) in itertools.pairwise(told) if "power" in stage]


def exit_code(party: BaseProcess) -> int | None:
    """Of a process that ends."""
    party.join(SECONDS)
    return party.exitcode


def over_network(folder: Path, threads: int) -> tuple[list[tuple[float, float]], dict[str, Spans]]:
    """The rounds of the study in `folder`, and what every party did when."""
    spawn = multiprocessing.get_context("spawn")
    parties = [spawn.Process(target=run_hub, args=(folder, threads), daemon=True)]
    parties += [spawn.Process(target=run_site, args=(folder, name, threads), daemon=True) for name in SITES]
    for party in parties:
        party.start()
    waited = {party.sentinel for party in parties}
    # Check the process that ends first: the others would wait forever for one that has failed.
    while waited and (ended := set(wait(waited, SECONDS))):
        waited -= ended
        over = [party for party in parties if party.sentinel in ended]
        if any(exit_code(party) for party in over):
            break
    for party in parties:
        # Without effect on those that have ended.
        party.terminate()
    require(not any(map(exit_code, parties)), "a party did not come to its end; its own error is above")
    found = {name: json.loads((folder / f"{name}.json").read_text()) for name in ("hub", *SITES)}
    return rounds_of(found["hub"]["told"]), {name: seen["spans"] for name, seen in found.items()}


def in_one_process(study: StudyFile) -> list[tuple[float, float]]:
    """The rounds of the same study where all parties are in this process."""
    told: list[tuple[str, float]] = []
    tables = {name: table_of(at, len(study.columns)) for at, name in enumerate(SITES)}
    with warnings.catch_warnings():
        # So few people fit in masked sums of any size.
        warnings.simplefilter("ignore", UserWarning)
        pca = FederatedPCA(**study.parameters())
        pca.fit(tables, watch=lambda done: told.append((done.stage, time.perf_counter())))
    return rounds_of(told)


def within(spans: Iterable[tuple[float, float]], begun: float, ended: float) -> list[tuple[float, float]]:
    """What of these lies between two moments."""
    cut = ((max(start, begun), min(stop, ended)) for start, stop in spans)
    return sorted((start, stop) for start, stop in cut if start < stop)


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds in which at least one of them was under way."""
    seconds, until = 0.0, -np.inf
    for start, stop in sorted(spans):
        seconds += max(0.0, stop - max(start, until))
        until = max(until, stop)
    return seconds


def bare_write(folder: Path, size: int) -> float:
    """Seconds to write so many bytes to a new file and have them on the disk."""
    data, path = os.urandom(size), folder / "bare"
    start = time.perf_counter()
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    seconds = time.perf_counter() - start
    path.unlink()
    return seconds


@final
class Found:
    """What was measured of one shape. Changes in place: each study adds to it."""

    def __init__(self) -> None:
        self.ours: list[float] = []
        self.theirs: list[float] = []
        # Seconds in one round by place and what was done there.
        self.parts: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        self.bare: list[float] = []

    def add(self, rounds: list[tuple[float, float]], spans: dict[str, Spans]) -> None:
        """The rounds of one more study."""
        for begun, ended in rounds:
            self.ours.append(ended - begun)
            hub = within(spans["hub"]["durable"], begun, ended)
            sites = [span for name in SITES for span in within(spans[name]["durable"], begun, ended)]
            at_hub, at_any = covered(hub), covered([*hub, *sites])
            self.parts["clock", "hub"].append(at_hub)
            self.parts["clock", "site"].append(at_any - at_hub)
            self.parts["clock", "neither"].append(ended - begun - at_any)
            for name in ("hub", *SITES):
                seen = {what: covered(within(found, begun, ended)) for what, found in spans[name].items()}
                seen["rest"] = seen["durable"] - sum(seconds for what, seconds in seen.items() if what != "durable")
                for what, seconds in seen.items():
                    self.parts["hub" if name == "hub" else "site", what].append(seconds)


def measure(shape: Shape, times: int, threads: int, root: Path) -> Found:
    """`count` studies of this shape, alternating between the network and one process."""
    found = Found()
    for _ in range(times):
        with tempfile.TemporaryDirectory(dir=root) as name:
            folder = Path(name)
            study = written_study(folder, shape)
            found.add(*over_network(folder, threads))
            with blas_threads(threads):
                found.theirs += [ended - begun for begun, ended in in_one_process(study)]
            # A question and an answer are in one commit.
            found.bare += [bare_write(folder, 2 * 8 * shape.columns * shape.components) for _ in range(3)]
    return found


def shown(seconds: Iterable[float], of: Callable[[Iterable[float]], float] = statistics.median) -> str:
    return f"{1000 * of(seconds):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few studies of each shape")
    parser.add_argument("--threads", type=int, default=1, help="BLAS threads of every process")
    parser.add_argument("--folder", type=Path, help="where the files of the parties are made; on a disk")
    options = parser.parse_args()
    print(
        f"{len(SITES)} sites and a hub, {os.cpu_count()} cores, {PEOPLE} rows each; power iteration, {ROUNDS} rounds, "
        f"{options.threads} BLAS thread(s); load {os.getloadavg()[0]:.1f} at the start; milliseconds a round\n"
    )
    heading(["columns x components", "rounds", "median", "worst", "one process: median", "worst", "ratio"])
    results = {}
    for shape in SHAPES:
        times = shape.quick if options.quick else shape.times
        found = results[shape] = measure(shape, times, options.threads, options.folder)
        ratio = statistics.median(found.ours) / statistics.median(found.theirs)
        cells = [shown(found.ours), shown(found.ours, max), shown(found.theirs), shown(found.theirs, max)]
        line([str(shape), str(len(found.ours)), *cells, f"{ratio:.1f}"])
    print("\nBy the clock, and the work of hub and sites (medians)\n")
    heading(["columns x components", "at the hub", "at a site only", "at neither"])
    for shape, found in results.items():
        line([str(shape), *(shown(found.parts["clock", what]) for what in ("hub", "site", "neither"))])
    print()
    does = ("durable", "read", "party", "write", "disk", "rest")
    heading(["columns x components", "who", "all", "decode", "party", "encode", "file", "rest", "bare write"])
    for shape, found in results.items():
        for who in ("hub", "site"):
            bare = shown(found.bare) if who == "site" else ""
            line([str(shape), who, *(shown(found.parts[who, what]) for what in does), bare])
    print(f"\nload at the end: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
