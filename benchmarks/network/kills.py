"""Charges made twice, messages sent uncharged and contradictory messages when a party of a network study is killed:
all must be 0.

A study of three sites runs over mutual TLS, each site with its ledger. One party is a real process that is killed
(SIGKILL) at a point, started again, and then left alone until the study ends. Everything that reaches the others is
recorded byte for byte and compared with the ledger, both while the party is dead and at the end. The points of a
site:

- points: before and after each join, commit, send, model and finish
- syncs: on entering each fsync and fdatasync (strace)
- sends: on entering each sendmsg (strace)
- writes: on entering each pwrite64, with which SQLite writes its log and its pages (strace)
- room: the disk, a small tmpfs, is full at any place (needs root)

The points of a hub are before and after each entry of its log and each send. strace counts calls for each thread. So
that no call is missed, it attaches at several places: at the start, when the ledger has been joined, and before it is
closed.

    python benchmarks/network/kills.py [--kinds points syncs sends writes room hub] [--studies ...] [--stride 1]
"""

import argparse
import asyncio
import itertools
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

from network.agents.hub_runs import HubKilling
from network.kills.kill_children import Child, Nursery, nursery
from network.kills.kill_counts import STUDIES, Counts
from network.kills.kill_runs import Killing, small_disk

# Which calls are counted, and the places from which they are, with the options that say in which threads.
CALLS: Final[dict[str, tuple[str, list[tuple[str, list[str]]]]]] = {
    "syncs": ("fsync,fdatasync", [("start", ["-f"]), ("after join", ["-f"]), ("before finish", ["-f"])]),
    "sends": ("sendmsg", [("start", []), ("start", ["-f"])]),
    "writes": ("pwrite64", [("start", ["-f"]), ("after join", ["-f"]), ("before finish", ["-f"])]),
}
KINDS: Final = ("points", *CALLS, "room", "hub")
# Bytes that are left on the disk at the beginning.
ROOMS: Final = range(0, 2_000_000, 49_152)


def looked_on(killing: Killing, folder: Path, calls: str, where: str, threads: list[str], number: int) -> Child:
    """A site that dies on entering one of these calls for the `number`th time in one thread, counted from `where` on."""
    gate = folder / "gate"
    os.mkfifo(gate)
    child = killing.start(gate=gate, gate_at=where)
    inject = ["-e", f"trace={calls}", "-e", f"inject={calls}:signal=KILL:when={number}"]

    def let_in() -> None:
        # Opens when the child has come to the gate, and the child goes on when it is closed.
        with gate.open("wb"):
            pid = str(child.pid.result(10))
            looker = subprocess.Popen(["strace", *threads, "-p", pid, "-o", os.devnull, *inject], stderr=subprocess.PIPE)
            assert looker.stderr is not None
            if b"attached" not in looker.stderr.readline():
                child.ended.set_exception(RuntimeError("strace cannot look on"))
        looker.wait()

    threading.Thread(target=let_in, daemon=True).start()
    return child


def series(kind: str, study: str, stride: int) -> tuple[str, str, int, Counts, float]:
    """All runs of one kind for one study: how many points there were, and what went wrong."""
    total, points, began = Counts(), 0, time.perf_counter()
    with nursery() as children:
        for counts, killed in runs(kind, study, children, stride):
            total += counts
            points += killed
    return kind, study, points, total, time.perf_counter() - began


def runs(kind: str, study: str, children: Nursery, stride: int) -> Iterator[tuple[Counts, bool]]:
    """Each run, and whether the party was cut short in it."""
    if kind == "room":
        for room in ROOMS[::stride]:
            with tempfile.TemporaryDirectory() as made, small_disk(Path(made) / "disk", room) as more:
                yield short_of_room(Killing(children, study, Path(made), ledger=Path(made) / "disk" / "ledger"), more)
        return
    places = CALLS[kind][1] if kind in CALLS else [("", [])]
    for where, threads in places:
        for number in itertools.count(1, stride):
            with tempfile.TemporaryDirectory() as made:
                folder = Path(made)
                if kind == "hub":
                    hub = HubKilling(children, study, folder)
                    counts, codes = asyncio.run(hub.run(partial(hub.start, kill=number))), hub.codes
                else:
                    killing = Killing(children, study, folder)
                    birth: Callable[[], Child] = partial(killing.start, kill=number)
                    if kind in CALLS:
                        birth = partial(looked_on, killing, folder, CALLS[kind][0], where, threads, number)
                    counts, codes = asyncio.run(killing.run(birth)), killing.codes
            yield counts, -9 in codes
            if -9 not in codes:
                break


def short_of_room(killing: Killing, more: Callable[[], None]) -> tuple[Counts, bool]:
    """A site without room, and then with some."""

    def with_more() -> Child:
        more()
        return killing.start()

    counts = asyncio.run(killing.run(killing.start, with_more))
    return counts, len(killing.codes) > 1


def possible(kind: str) -> bool:
    """Whether this machine can do that; says so where it cannot."""
    if kind in CALLS and shutil.which("strace") is None:
        print(f"{kind}: skipped, there is no strace here")
        return False
    if kind == "room":
        try:
            with tempfile.TemporaryDirectory() as folder, small_disk(Path(folder) / "disk", 0):
                pass
        except (OSError, subprocess.CalledProcessError):
            print("room: skipped, no disk can be mounted here")
            return False
    return True


def main() -> None:
    """Print a line for each kind and study, and what went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--studies", nargs="+", choices=list(STUDIES), default=list(STUDIES))
    parser.add_argument("--stride", type=int, default=1, help="try every so manieth point only")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    work = [(kind, study) for kind in given.kinds if possible(kind) for study in given.studies]
    names = ("kills", "runs", "twice", "unpaid", "two ways", "again", "chains", "failed")
    print(f"{'kind':8} {'study':20}" + "".join(f"{name:>9}" for name in names) + "  seconds")
    everything, all_points = Counts(), 0
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.workers, mp_context=spawn) as pool:
        for future in [pool.submit(series, kind, study, given.stride) for kind, study in work]:
            kind, study, points, counts, seconds = future.result()
            everything += counts
            all_points += points
            row(f"{kind:8} {study:20}", points, counts, seconds)
    row(f"{'all':29}", all_points, everything, None)
    for words in everything.why:
        print(words)
    sys.exit(everything.wrong > 0)


def row(name: str, points: int, counts: Counts, seconds: float | None) -> None:
    """One line of the table."""
    numbers = (points, counts.runs, counts.double, counts.unpaid, counts.renoised, counts.asked_again, counts.chains)
    figures = "".join(f"{number:9d}" for number in (*numbers, counts.failed))
    print(name + figures + ("" if seconds is None else f"  {seconds:7.0f}"), flush=True)


if __name__ == "__main__":
    main()
