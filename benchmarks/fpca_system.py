"""FPCA as a system: many devices that follow their own streams, come late or not at all, and one current answer.

Every device has rows of its own in every slot: five common directions with variances 1, 1/2, ... 1/5, a direction that only
this device has, of variance 1/2, and a little noise in every column. After half of the slots all common directions are replaced.
A device is absent from a slot with probability 0.2, and one or two slots late with probability 0.2. Devices stand in a tree of
fan-out 8, and the hub forgets by 0.8 per slot.

Figures are captured variance: of the true covariance of the current slot, over what five directions can capture at best.

- `pooled`: the exact answer from all rows of all devices, with the same forgetting.
- `sums as heard`: exact sums, of those that have arrived.
- `sketches`: 15 directions per device and slot, merged at every node with one truncation.
- `weighted`: the same, with the slots that late devices may still add to scaled up to all devices.
- `FederatedStream`: the protocol with its messages, in one process. A late device is out of reach when its slot is asked for, and
  answers for it afterwards.

    python benchmarks/fpca_system.py
    python benchmarks/fpca_system.py --quick
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

import numpy as np
from numpy.random import Generator
from sklearn.decomposition import IncrementalPCA

from benchmarks.streaming.runs import distance, fixed_rank, gaussian_rows, last
from eigenveil import FederatedStream
from eigenveil.linalg import Array, Subspace, merge_all, orthonormal
from eigenveil.linalg.blas import blas_threads
from eigenveil.protocols.star.rounds import Layout, tree
from eigenveil.trackers import NOTHING_ASKED, BlockTracker, Tracker

RANK, SLOTS, ROWS, FANOUT, FORGET = 5, 16, 20, 8, 0.8
WIDTH: Final = RANK + max(10, RANK)
ABSENT, LATE, WINDOW = 0.2, 0.2, 2
OWN, NOISE = 0.5, 0.02
SHOWN: Final = (1, 8, 9, 10, 11, 12, 13, 14, 16)

Sketches = dict[str, Subspace]


@final
class World:
    """The rows of all devices, slot by slot, and the truth behind them. Changes in place: it draws."""

    def __init__(self, devices: int, dim: int, rng: Generator) -> None:
        self.names = tuple(f"device {i}" for i in range(devices))
        self._rng, self._scales = rng, 1 / np.sqrt(np.arange(1.0, RANK + 1))
        self._common = [orthonormal(rng.standard_normal((dim, RANK))) for _ in range(2)]
        self._own = rng.standard_normal((devices, dim))
        self._own /= np.linalg.norm(self._own, axis=1)[:, None]

    def basis(self, slot: int) -> Array:
        """The common directions, (d, k): others from the middle on."""
        return self._common[slot >= SLOTS // 2]

    def rows(self, slot: int) -> dict[str, Array]:
        """The rows of each device, (ROWS, d)."""
        rng, basis = self._rng, self.basis(slot) * self._scales
        found = {}
        for name, own in zip(self.names, self._own, strict=True):
            rows = NOISE * rng.standard_normal((ROWS, len(basis)))
            rows += rng.standard_normal((ROWS, RANK)) @ basis.T
            rows += np.sqrt(OWN) * np.outer(rng.standard_normal(ROWS), own)
            found[name] = rows
        return found

    def captured(self, slot: int, basis: Array) -> float:
        """What a basis, (d, k), captures of the slot's true covariance, over the most that k directions can."""
        common = self.basis(slot) * self._scales
        scatter = common @ common.T + OWN * (self._own.T @ self._own) / len(self._own) + NOISE**2 * np.eye(len(common))
        best = float(np.linalg.eigvalsh(scatter)[-RANK:].sum())
        return float(np.trace(basis.T @ scatter @ basis)) / best


@final
@dataclass(slots=True)
class Costs:
    """Seconds spent by devices, nodes and the hub, and how many calls that was. Changes in place."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, what: str, began: float) -> None:
        """One call that began then."""
        self.seconds[what] += time.process_time() - began
        self.calls[what] += 1

    def each(self, what: str) -> float:
        """Milliseconds for one call."""
        return 1e3 * self.seconds[what] / max(1, self.calls[what])


def increments(rows: Mapping[str, Array], width: int, costs: Costs) -> Sketches:
    """What each device sends of a slot: a tracker's sketch of `width` directions."""
    tracker = BlockTracker(rank=RANK, oversample=width - RANK, center=False)
    found = {}
    for name, block in rows.items():
        began = time.process_time()
        found[name] = tracker.step(tracker.start(block.shape[1]), block, NOTHING_ASKED).sketch.subspace
        costs.add("device", began)
    return found


def through(layout: Layout, sent: Sketches, width: int, costs: Costs) -> Subspace | None:
    """What reaches the hub of these sketches: every node merges those below it, with one truncation. None if none came."""

    def gathered(name: str) -> Subspace | None:
        if name not in layout.below:
            return sent.get(name)
        below = [part for child in layout.below[name] if (part := gathered(child)) is not None]
        if not below:
            return None
        began = time.process_time()
        merged = merge_all(below, rank=width)
        costs.add("hub" if name == layout.hub else "node", began)
        return merged

    return gathered(layout.hub)


def faded(space: Subspace, factor: float) -> Subspace:
    """Its values times a factor."""
    return Subspace(space.basis, space.values * factor)


@final
class Aggregate:
    """The hub's answer as it stands. Changes in place: slots that late devices may still add to are kept apart."""

    def __init__(self, devices: int, width: int) -> None:
        self._devices, self._width = devices, width
        self._old: Subspace | None = None
        # By slot: what has come, and of how many devices.
        self._open: dict[int, tuple[list[Subspace], int]] = {}
        self._now = 0

    def add(self, slot: int, part: Subspace, devices: int) -> None:
        """A part of a slot, whenever it comes."""
        parts, count = self._open.get(slot, ([], 0))
        self._open[slot] = ([*parts, part], count + devices)

    def close(self, slot: int) -> None:
        """The slot has passed: what is older than the window is folded away."""
        self._now = slot
        for done in [one for one in self._open if one < slot - WINDOW]:
            pieces = [faded(part, FORGET**-(done)) for part in self._open.pop(done)[0]]
            self._old = merge_all([*([] if self._old is None else [self._old]), *pieces], rank=2 * self._width)

    def answer(self, *, weighted: bool) -> Array:
        """The current directions, (d, k). Ages count from now, and not from when something came."""
        spaces = [] if self._old is None else [faded(self._old, FORGET**self._now)]
        for slot, (parts, count) in self._open.items():
            whole = np.sqrt((1 - ABSENT) * self._devices / count) if weighted else 1.0
            spaces += [faded(part, whole * FORGET ** (self._now - slot)) for part in parts]
        return merge_all(spaces, rank=RANK).basis


@final
@dataclass(slots=True)
class Outcome:
    """Captured variance by name and slot, and what it cost."""

    captured: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    costs: Costs = field(default_factory=Costs)
    nodes: int = 0
    incremental: float = 0.0
    pooled: float = 0.0


def fate(rng: Generator) -> int | None:
    """How many slots late a device is, None if it is absent."""
    luck = rng.random()
    if luck < ABSENT:
        return None
    return int(rng.integers(1, WINDOW + 1)) if luck < ABSENT + LATE else 0


def run(devices: int, dim: int, *, seed: int = 0, widths: tuple[int, ...] = (WIDTH, RANK), compare: bool = True) -> Outcome:
    """One run over all slots, with all answers after each."""
    # Rows have a generator of their own, so that `federated` has the same ones.
    rng = np.random.default_rng((seed, 1))
    world, out = World(devices, dim, np.random.default_rng(seed)), Outcome()
    layout = tree(world.names, fanout=FANOUT)
    out.nodes = len(layout.nodes)
    hubs = {width: Aggregate(devices, width) for width in widths}
    waiting: dict[int, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    kept: dict[int, dict[int, Sketches]] = {}
    pooled, heard, grams = np.zeros((dim, dim)), np.zeros((dim, dim)), {}
    peer = IncrementalPCA(RANK)
    for slot in range(SLOTS):
        rows = world.rows(slot)
        for name in world.names:
            late = fate(rng)
            if late is not None:
                waiting[slot + late][slot].append(name)
        kept[slot] = {width: increments(rows, width, out.costs if width == WIDTH else Costs()) for width in widths}
        for width, hub in hubs.items():
            for origin, names in waiting[slot].items():
                sent = {name: kept[origin][width][name] for name in names}
                part = through(layout, sent, width, out.costs if width == WIDTH else Costs())
                if part is not None:
                    hub.add(origin, part, len(names))
            hub.close(slot)
            label = f"sketches, {width} directions"
            out.captured[label].append(world.captured(slot, hub.answer(weighted=False)))
            if width == WIDTH:
                out.captured[f"{label}, weighted"].append(world.captured(slot, hub.answer(weighted=True)))
        kept.pop(slot - WINDOW, None)
        if not compare:
            continue
        grams[slot] = {name: rows[name] for name in world.names}
        began = time.process_time()
        together = np.concatenate(list(rows.values()))
        pooled = FORGET**2 * pooled + together.T @ together
        out.captured["pooled"].append(world.captured(slot, Subspace.of_gram(pooled, rank=RANK).basis))
        out.pooled += time.process_time() - began
        heard = FORGET**2 * heard
        for origin, names in waiting[slot].items():
            some = np.concatenate([grams[origin][name] for name in names])
            heard += FORGET ** (2 * (slot - origin)) * (some.T @ some)
        out.captured["sums as heard"].append(world.captured(slot, Subspace.of_gram(heard, rank=RANK).basis))
        began = time.process_time()
        peer.partial_fit(together)
        out.incremental += time.process_time() - began
        out.captured["IncrementalPCA, pooled"].append(world.captured(slot, np.asarray(peer.components_).T))
        grams.pop(slot - WINDOW, None)
    return out


def federated(devices: int, dim: int, *, seed: int = 0) -> tuple[list[float], float, float]:
    """The same rows through `FederatedStream`: captured variance by slot, bytes a device sends per slot, and seconds."""
    world, rng = World(devices, dim, np.random.default_rng(seed)), np.random.default_rng((seed, 2))
    stream = FederatedStream(
        RANK,
        epsilon=None,
        slots=SLOTS,
        max_lateness=WINDOW,
        forget=FORGET,
        topology="tree",
        fanout=FANOUT,
        center=None,
        retries=0,
    )
    captured, began = [], time.process_time()
    for slot in range(SLOTS):
        rows: dict[str, Array | None] = dict(world.rows(slot))
        away = []
        for name in world.names:
            late = fate(rng)
            if late is None:
                rows[name] = None
            elif late:
                away.append(name)
        stream.partial_fit(rows, away=away)
        captured.append(world.captured(slot, stream.components_.T))
    took = time.process_time() - began
    return captured, max(stream.sent_[name] for name in world.names) / SLOTS, took


def size_of(dim: int, width: int) -> int:
    """Bytes of a sketch: basis, values, mean, weight and energy."""
    return 8 * (dim * width + width + dim + 2)


def system(devices: int, dims: tuple[int, ...], seeds: int) -> None:
    """Captured variance by slot."""
    tracked = [f"sketches, {WIDTH} directions, weighted", f"sketches, {WIDTH} directions"]
    order = ["pooled", "sums as heard", *tracked, f"sketches, {RANK} directions", "IncrementalPCA, pooled"]
    for dim in dims:
        outs = [run(devices, dim, seed=seed) for seed in range(seeds)]
        first = outs[0]
        print(f"\n{devices} devices, d = {dim}, {ROWS} rows a slot, {first.nodes} nodes of fan-out {FANOUT}, {seeds} seed(s)")
        print(f"{'captured variance after slot':34}" + "".join(f"{slot:7}" for slot in SHOWN))
        means = {name: np.mean([out.captured[name] for out in outs], axis=0) for name in order}
        extra = [federated(devices, dim, seed=seed) for seed in range(seeds)]
        shown = [*order[:4], "FederatedStream", *order[4:]]
        means["FederatedStream"] = np.mean([captured for captured, _, _ in extra], axis=0)
        for name in shown:
            print(f"{name:34}" + "".join(f"{means[name][slot - 1]:7.3f}" for slot in SHOWN), flush=True)
        for name in shown[1:5]:
            gap = float((means["pooled"] - means[name])[11:].max())
            print(f"{name:34} at most {max(gap, 0.0):.3f} below pooled from slot 12 on")
        costs = first.costs
        most = max(size for _, size, _ in extra)
        print(
            f"a sketch is {size_of(dim, WIDTH) / 1024:.1f} KiB, and the rows of a slot {8 * ROWS * dim / 1024:.1f} KiB; with "
            f"FederatedStream a device sent at most {most / 1024:.1f} KiB a slot"
        )
        print(f"FederatedStream, all parties in one process: {extra[0][2] / SLOTS:.2f} s CPU a slot")
        print(
            f"CPU: device {costs.each('device'):.2f} ms a slot, node {costs.each('node'):.2f} ms a merge, hub "
            f"{costs.each('hub'):.2f} ms a merge, pooled sums {1e3 * first.pooled / SLOTS:.0f} ms a slot, IncrementalPCA "
            f"{1e3 * first.incremental / SLOTS:.0f} ms a slot"
        )


def scaling(dim: int, counts: tuple[int, ...]) -> None:
    """CPU of a node as their number doubles."""
    print(f"\nCPU as devices double, d = {dim}, per call\n{'devices':>8}{'nodes':>7}{'device ms':>11}{'node ms':>9}{'hub ms':>8}")
    for devices in counts:
        out = run(devices, dim, widths=(WIDTH,), compare=False)
        each = [out.costs.each(what) for what in ("device", "node", "hub")]
        print(f"{devices:8}{out.nodes:7}{each[0]:11.2f}{each[1]:9.2f}{each[2]:8.2f}", flush=True)


def trackers(count: int, dims: tuple[int, ...]) -> None:
    """Time and error of one device's tracker beside others (FPCA, Fig. 4c)."""
    for dim in dims:
        rows = gaussian_rows(1.0, count=count, dim=dim, rng=np.random.default_rng(0))
        best = Subspace.of(rows, rank=10)
        print(f"\none stream, {count} x {dim}, covariance 1/i, rank 10")
        print(f"{'':22}{'seconds':>9}{'us/row':>8}{'error':>8}{'captured':>10}")
        for name, tracker in all_trackers():
            began = time.process_time()
            found = last(tracker, rows)
            took = time.process_time() - began
            share, error = found.captured(rows) / best.captured(rows), distance(found.basis, best.basis)
            print(f"{name:22}{took:9.2f}{1e6 * took / count:8.1f}{error:8.3f}{share:10.3f}", flush=True)


def all_trackers() -> Iterator[tuple[str, Tracker[Any]]]:
    """Those of the paper's figure."""
    yield from ((name, tracker) for name, tracker in fixed_rank(10).items() if name != "GROUSE, step 2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 devices, d = 100, and short streams")
    quick = parser.parse_args().quick
    with blas_threads(1):
        system(100 if quick else 1000, (100,) if quick else (100, 400), 1 if quick else 2)
        scaling(100, (25, 50, 100) if quick else (125, 250, 500, 1000))
        trackers(1000 if quick else 4000, (100,) if quick else (100, 400))


if __name__ == "__main__":
    main()
