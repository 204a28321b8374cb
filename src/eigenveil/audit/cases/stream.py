"""Cases of streams: everything that `StreamingPCA` and `FederatedStream` show to an adversary who watches all along.

With as many components as columns, each view is a Gram matrix of all that was released so far. The difference of two views is
the release of the stretch of blocks between them. A canary has its row in one of the slots, or a blank row there. Of streams at
many sites, a hub sees what each site sends, where sites add the noise.

A followed file has slots that end by the clock, and its rows come faster than they are read. The real `Follower` reads a real
file in simulated time. It looks a few times in each slot, so a backlog and a burst wait over several slots. The canary is the
first row of the file, which stands before all others. It is there or not. Or a row of zeros is in its place, in a text so long
that it nearly fills a read by itself, and the numbers of rows are public.
"""

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Protocol, final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from eigenveil.audit.case import Case, Trial, mu_of, usual_case
from eigenveil.audit.cases.seen import (
    Tap,
    enough_people,
    flip_coins,
    gram_of,
    lifted,
    moved_by_one,
    require_guarantee,
    symmetric_noise,
)
from eigenveil.core.accounting import Budget
from eigenveil.core.unit import Neighbours
from eigenveil.data.follow import ByClock, Closed, Follower, Instant, SlotEnd, follow, watcher
from eigenveil.errors import require
from eigenveil.estimators import FederatedStream, StreamingPCA
from eigenveil.estimators.slots.answer import slot_guarantee
from eigenveil.estimators.slots.parties import SlotParties, slot_spec
from eigenveil.linalg import Array
from eigenveil.params.declarations.streaming import SlotStreamParams
from eigenveil.params.declare import validate_params
from eigenveil.privacy.released import packed_side, unpack
from eigenveil.tasks.base import Question
from eigenveil.tasks.slot_sums import SlotSums
from eigenveil.tasks.slots import ClosedSlot
from eigenveil.trackers import published_as

__all__ = ["CASES", "Reader", "followed_file"]

_DIM: Final = 8
_AXES: Final = np.eye(_DIM)
# Of streams at many sites. The squared norm of a row with its constant entry, 1/8: what one person moves a slot by.
_SITES: Final = ("site 0", "site 1", "site 2")
_WIDE: Final = 1 + 2.0**-6
# Where entries may be missing: what a row that has an entry adds to its count, and how many counts there are. With them in the
# matrix and again below its diagonal, about 4% is added to the square of what one person moves.
_COUNTS: Final = {"counts": (13 / 256, _DIM), "groups": (23 / 512, 10), "drop": (0.0, 0)}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Course:
    """What a stream releases, and in which blocks people have rows. One canary of each kind lies along every axis."""

    publish: str = "sync"
    stretches: tuple[tuple[int, int], ...]  # Of blocks that are released together, (first, end).
    deviations: tuple[float, ...]  # Of the noise on each stretch, times mu.
    people: tuple[tuple[int, ...], ...]  # The blocks of each kind of canary.
    units: tuple[float, ...] | None = None  # Of columns, public.

    def __post_init__(self) -> None:
        require(len(self.stretches) == len(self.deviations), "each stretch needs its own deviation")

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return max(end for _, end in self.stretches)


def _begun(budget: Budget, state: int | None, **settings: Any) -> StreamingPCA:
    return StreamingPCA(_DIM, epsilon=budget.epsilon, delta=budget.delta, row_bound=1.0, random_state=state, **settings)


def _followed(budget: Budget, rng: Generator, state: int | None, *, course: _Course) -> Trial:
    """All releases of a stream. A canary is scored by those it has rows in, weighted by how many rows and how much noise."""
    kinds = len(course.people)
    present = flip_coins(kinds * _DIM, rng).reshape(kinds, _DIM)
    # By the second account, `mu_of`: measured by the package's own numbers, a wrong calibration would confirm itself.
    deviations = np.array(course.deviations) / mu_of(budget)
    # The noise of all releases together, because a view is their sum.
    base = lifted(_DIM, length=1.0, people=enough_people(_DIM, deviation=math.hypot(*deviations)))
    size = len(base) + kinds * _DIM
    units = 1.0 if course.units is None else np.array(course.units)
    settings: dict[str, Any] = {"horizon": course.blocks * size} if published_as(course.publish).needs_horizon else {}

    def released(tosses: NDArray[np.bool_], seed: int | None) -> list[Array]:
        """The Gram matrix of each stretch: the view at its end less the view at its beginning."""
        pca = _begun(
            budget,
            seed,
            center=None,
            block_size=size,
            publish=course.publish,
            person_blocks=max(map(len, course.people)),
            scale=course.units,
            **settings,
        )
        # A view is the sum of all releases so far, so differences of views are the releases.
        views = {0: np.zeros((_DIM, _DIM))}
        for block in range(course.blocks):
            active = np.array([block in blocks for blocks in course.people])
            canaries = np.where((tosses & active[:, None])[:, :, None], 1000 * _AXES, 0.0).reshape(-1, _DIM)
            pca.partial_fit(np.vstack([base, canaries]) * units)
            if any(end == block + 1 for _, end in course.stretches):
                views[block + 1] = gram_of(pca.sync().subspace_)
        require_guarantee(pca.guarantee_, budget)
        return [views[end] - views[first] for first, end in course.stretches]

    def in_units(tosses: NDArray[np.bool_], seed: int) -> list[Array]:
        return list(map(np.divide, released(tosses, seed), deviations))

    # Measured, not computed: a sensitivity that is too small would pass a test by its own number.
    moved = moved_by_one(in_units, present, rng)
    scores, weights, noise = np.zeros((kinds, _DIM)), np.zeros((kinds, 1)), []
    for stretch, deviation, release in zip(course.stretches, deviations, released(present, state), strict=True):
        first, end = stretch
        # How many rows of each kind of canary are in this stretch.
        rows = np.array([float(sum(first <= block < end for block in blocks)) for blocks in course.people])
        rest = release - (end - first) * (base.T @ base) - np.diag(rows @ present)
        # With r rows in a stretch a canary moves it by r, so the likelihood ratio weighs it by r over the variance.
        scores += (rows / deviation**2)[:, None] * np.diag(rest)
        weights += (np.square(rows) / deviation**2)[:, None]
        noise.append(symmetric_noise(rest, deviation=float(deviation)))
    estimates = (present + scores / weights).ravel()
    return Trial.of_releases(estimates, present.ravel(), noise, moved=moved)


def _centered(budget: Budget, rng: Generator, state: int | None) -> Trial:
    """The mean and the scatter around it. Neither shows where rows were clipped around in the end, so no score is exact."""
    present = flip_coins(_DIM, rng)
    arms = lifted(_DIM, length=0.75, people=enough_people(_DIM, deviation=1.25 / mu_of(budget)))
    # In both directions, so that the mean of everybody else is zero.
    base = np.vstack([arms, -arms])
    rows = np.vstack([base, np.where(present[:, None], _AXES, 0.0)])
    pca = _begun(budget, state, block_size=len(rows)).partial_fit(rows).sync()
    require_guarantee(pca.guarantee_, budget)
    along = np.diag(gram_of(pca.subspace_) - base.T @ base)
    # Both releases tell of a canary. The squared mu of each is the inverse of its variance, which is its weight.
    by_mean, by_products = (
        math.fsum(charge.mu**2 for charge in pca.guarantee_.charges if word in charge.label) for word in ("sum", "products")
    )
    scores = (by_products * along + by_mean * len(rows) * pca.mean_) / (by_products + by_mean)
    return Trial(scores=scores, present=present)


def _sites(budget: Budget, tap: Tap, seed: int | None, *, rank: int, **options: Any) -> FederatedStream:
    settings: dict[str, Any] = {"row_bound": 1.0, "center": None, "random_state": seed, "faults": tap.faults()}
    return FederatedStream(rank, epsilon=budget.epsilon, delta=budget.delta, **settings, **options)


def _slots(budget: Budget, rng: Generator, state: int | None, *, trust: Any, slots: int = 2, device: bool = False) -> Trial:
    """Every slot that is released: over all sites, or of the site with the canaries, where sites add the noise."""
    kinds = 1 if device else slots
    present = flip_coins(kinds * _DIM, rng).reshape(kinds, _DIM)
    # By the second account, as above. A device is in every slot, and each costs its part.
    deviation = _WIDE * math.sqrt(slots if device else 1) / mu_of(budget)
    if trust == "masked":
        # Any two of three sites add the noise that is charged, because the third may collude.
        deviation *= math.sqrt(len(_SITES) / (len(_SITES) - 1))
    base = lifted(_DIM, length=1.0, people=enough_people(_DIM, deviation=math.sqrt(slots) * deviation))
    # A device for each axis, which is there or blank. The sites are everybody else.
    names = tuple(f"device {at}" for at in range(_DIM)) + _SITES if device else _SITES

    def released(tosses: NDArray[np.bool_], seed: int | None) -> list[Array]:
        tap = Tap()
        stream = _sites(budget, tap, seed, rank=_DIM, slots=slots, one_person_per_site=device, trust=trust)
        views = [np.zeros((_DIM, _DIM))]
        for slot in range(slots):
            canaries = np.where(tosses[0 if device else slot, :, None], 1000 * _AXES, 0.0)
            if device:
                rows = {name: canaries[[at, at]] for at, name in enumerate(names[:_DIM])}
                # The mean over a device's rows counts.
                rows |= dict.fromkeys(_SITES, _AXES)
            else:
                rows = dict.fromkeys(names, base) | {names[0]: np.vstack([base, canaries])}
            stream.partial_fit(rows)
            views.append(_matrix(stream))
        require_guarantee(stream.guarantee_, budget)
        if trust == "site":
            return [_whole(part.arrays[0])[:-1, :-1] for part in tap.parts(to="hub", by=names[0])]
        return [after - before for before, after in pairwise(views)]

    moved = moved_by_one(lambda tosses, seed: [release / deviation for release in released(tosses, seed)], present, rng)
    crowd = 1 if trust == "site" else len(_SITES)
    background = crowd * (_AXES / _DIM if device else base.T @ base)
    rests = [
        release - background - np.diag(present[0 if device else slot].astype(float))
        for slot, release in enumerate(released(present, state))
    ]
    noise = [symmetric_noise(rest, deviation=deviation) for rest in rests]
    scores = [np.diag(rest) for rest in rests]
    estimates = present + (np.mean(scores, axis=0)[None] if device else np.array(scores))
    return Trial.of_releases(estimates.ravel(), present.ravel(), noise, moved=moved)


def _torn_slot(budget: Budget, rng: Generator, state: int | None, *, rule: str) -> Trial:
    """All of the matrix that a site sends of a slot whose rows have gaps: products, sum, number and counts of entries."""
    present = flip_coins(1, rng)
    each, number = _COUNTS[rule]
    deviation = math.hypot(_WIDE, each * math.sqrt(2 * number)) / mu_of(budget)
    gaps: dict[str, Any] = {"missing": rule}
    if rule == "groups":
        gaps["missing_groups"] = [[first, first + 1] for first in range(0, _DIM, 2)]
    # The canary has every entry, and only one that is not zero. Without it nothing is there.
    row, constant = 1000 * _AXES[:1], math.sqrt(_WIDE - 1)

    def sent(tosses: NDArray[np.bool_], seed: int | None) -> Array:
        tap = Tap()
        stream = _sites(budget, tap, seed, rank=1, slots=1, trust="site", **gaps)
        stream.partial_fit({_SITES[0]: np.where(tosses[:, None], row, np.full_like(row, np.nan))})
        require_guarantee(stream.guarantee_, budget)
        (part,) = tap.parts(to="hub", by=_SITES[0])
        return _whole(part.arrays[0])

    moved = moved_by_one(lambda tosses, seed: [sent(tosses, seed) / deviation], present, rng)
    matrix = sent(present, state)
    # What it adds: u u^T, and each of its counts above and below the diagonal.
    more, adds = len(matrix) - _DIM - 1, np.zeros_like(matrix)
    long = np.append(_AXES[0], constant)
    adds[more:, more:] = np.outer(long, long)
    counted = np.zeros((more, _DIM + 1))
    counted.flat[:number] = each
    adds[:more, more:], adds[more:, :more] = counted, counted.T
    background = np.zeros_like(matrix)
    if rule != "drop":
        # That somebody has a row is public, and only what is in it is not, so this number has no noise.
        adds[-1, -1], background[-1, -1] = 0.0, constant**2
    rest = matrix - background - adds * float(present[0])
    noise = symmetric_noise(rest, deviation=deviation)
    if rule != "drop":
        # The last of the diagonal, which comes first.
        noise = np.delete(noise, len(matrix) - 1)
    score: Array = present + np.full(1, (rest * adds).sum() / np.square(adds).sum())
    return Trial(scores=score, present=present, noise=noise, moved=moved)


def _whole(packed: Array) -> Array:
    """The matrix of which a site has sent the upper triangle."""
    side = packed_side(len(packed))
    return unpack(packed, (side, side), symmetric=True)


def _matrix(stream: FederatedStream) -> Array:
    """What the hub has released so far, as it is: the components with their values show its positive part only."""
    return np.asarray(stream._simulation.hub.state.value)[:-1, :-1]


def _tree(blocks: int, *, person_blocks: int) -> dict[str, Any]:
    """The course of a stream under continual release: what a binary tree over `blocks` blocks releases, and its noise, times mu.

    A person has rows in `person_blocks` blocks, of which q = min(person_blocks, 2^l) fit into a stretch of level l. The charge
    is for ceil(person_blocks / q) of these.
    """
    # The lowest set bit of a block's number is the length of the stretch that ends there.
    lengths = [number & -number for number in range(1, blocks + 1)]
    max_rows = [min(person_blocks, 2**level) for level in range(blocks.bit_length())]
    price = sum(-(-person_blocks // rows) for rows in max_rows)
    stretches = tuple((number + 1 - length, number + 1) for number, length in enumerate(lengths))
    deviations = tuple(min(person_blocks, length) * math.sqrt(price) for length in lengths)
    return {"publish": "continual", "stretches": stretches, "deviations": deviations}


_FILE_DIM: Final = 4
_SLOTS: Final = 6
# Blanks before a row of zeros. A read of as many bytes as are read at most holds it, and few other rows.
_BLANKS: Final = (1 << 22) - 64
# Noise that hides the count of a slot would have this deviation: there is none, so that any other count is far away.
_NO_NOISE: Final = 1e-3
_BACKLOG: Final = 35  # Rows that wait at first.
_BURST: Final = 25  # Rows that come in the third slot.
_MAX_ROWS: Final = 5  # Rows that are read at a look.
_LOOKS: Final = 2  # Looks in each slot: too few for a backlog and a burst.


class Reader(Protocol):
    """What a `Follower` does."""

    @property
    def over(self) -> bool:
        """Whether all slots are closed."""
        ...

    def poll(self, now: Instant, *, max_rows: int) -> Any:
        """Rows, the end of a slot, or nothing."""
        ...


@final
class _Ends:
    """The ends of slots in simulated time."""

    def __init__(self) -> None:
        self.noted: list[SlotEnd] = []
        self.first, self.over = 0, False

    def following(self, slot: int) -> SlotEnd | None:
        return next((end for end in self.noted if end.slot >= slot), None)


def followed_file(
    budget: Budget,
    rng: Generator,
    state: int | None,
    *,
    neighbours: Neighbours = Neighbours.ADD_REMOVE,
    reader: Callable[..., Reader] = Follower,
) -> Trial:
    """All matrices that a site sends, and the counts if they are public, where a canary is the first row of its file, or there is
    none or a long row of zeros in its place, and a `reader` reads it."""
    present = flip_coins(1, rng)
    # By the second account: measured by the package's own numbers, a wrong calibration would confirm itself.
    deviation = _WIDE / mu_of(budget)

    def closed(parties: SlotParties, presence: NDArray[np.bool_]) -> list[tuple[int, ClosedSlot]]:
        slots = []
        for slot, rows in _read_by(reader, neighbours, bool(presence[0])):
            filled = parties.task.open()
            filled.add(rows)
            slots.append((slot, filled.close()))
        return slots

    def sent(presence: NDArray[np.bool_], seed: int | None) -> list[Array]:
        parties = _parties(budget, neighbours, seed)
        site = parties.member(_SITES[0])
        matrices: list[Array] = []
        for slot, rows in closed(parties, presence):
            part = site.close(slot, rows)
            assert part is not None
            matrices.append(_whole(part[0]))
        require_guarantee(slot_guarantee(parties, parties.ledgers[_SITES[0]].charges, apart=True), budget)
        return matrices

    def exact(presence: NDArray[np.bool_]) -> list[Array]:
        parties = _parties(budget, neighbours, 0)
        task = parties.task
        assert isinstance(task, SlotSums)
        return [np.asarray(task.private(Question(slot), rows).value) for slot, rows in closed(parties, presence)]

    def counts(presence: NDArray[np.bool_]) -> Array:
        sizes = [float(len(rows)) for _, rows in _read_by(reader, neighbours, bool(presence[0]))]
        return np.array(sizes) if neighbours.count_is_public else np.zeros(0)

    def seen(presence: NDArray[np.bool_], seed: int) -> list[Array]:
        return [*(matrix / deviation for matrix in sent(presence, seed)), counts(presence) / _NO_NOISE]

    moved = moved_by_one(seen, present, rng)
    worlds = [np.array([presence]) for presence in (False, True)]
    absent, whole = map(exact, worlds)
    ways = [matrix - other for matrix, other in zip(whole, absent, strict=True)]
    released = sent(present, state)
    actual = whole if present[0] else absent
    noise = [symmetric_noise(matrix - other, deviation=deviation) for matrix, other in zip(released, actual, strict=True)]
    # How far the answer lies on the way from the table without the canary to the one with it, over all slots.
    along = sum(float(np.vdot(way, matrix - other)) for way, matrix, other in zip(ways, released, absent, strict=True))
    score = np.array([along / sum(float(np.vdot(way, way)) for way in ways)])
    return Trial.of_releases(score, present, noise, moved=moved)


def _parties(budget: Budget, neighbours: Neighbours, seed: int | None) -> SlotParties:
    terms: dict[str, Any] = {"slots": _SLOTS, "trust": "site", "row_bound": 1.0, "neighbours": neighbours.value}
    params = validate_params(SlotStreamParams, SlotStreamParams(1, epsilon=budget.epsilon, delta=budget.delta, **terms))
    return SlotParties(slot_spec(params, _SITES[:2], dim=_FILE_DIM, budget=budget, seed=seed), roster={})


def _lines(first: int, count: int) -> str:
    """Rows along one axis or another by turns, so that the rows on both sides of any row differ."""
    return "".join(
        ",".join(str(float(at // 2 % 2 == axis)) for axis in range(_FILE_DIM)) + "\n" for at in range(first, first + count)
    )


@lru_cache(maxsize=8)
def _read_by(
    reader: Callable[..., Reader], neighbours: Neighbours, has_canary: bool
) -> tuple[tuple[int, NDArray[np.float64]], ...]:
    """The rows of each slot that is closed, by a reader that looks a few times in each, and in the end until it is through."""
    with tempfile.TemporaryDirectory() as folder:
        path, ends, held, slots = Path(folder) / "rows.csv", _Ends(), list[Array](), list[tuple[int, Array]]()
        blank = f"{' ' * _BLANKS}{','.join(['0.0'] * _FILE_DIM)}\n" if neighbours.count_is_public else ""
        canary = f"{','.join(['0.0'] * (_FILE_DIM - 1))},1000.0\n"
        path.write_text(f"a,b,c,d\n{canary if has_canary else blank}{_lines(0, _BACKLOG)}")
        follower = reader(follow(path), ByClock(0.0, 1.0, _SLOTS), ends=ends)

        def look(now: float) -> None:
            event = follower.poll(Instant(now, now), max_rows=_MAX_ROWS)
            if isinstance(event, Closed):
                slots.append((event.slot, np.concatenate([np.empty((0, _FILE_DIM)), *held])))
                held.clear()
            elif event is not None:
                held.append(event.rows)

        for slot in range(_SLOTS):
            if slot == 2:
                with path.open("a") as more:
                    more.write(_lines(_BACKLOG, _BURST))
            for at in range(_LOOKS):
                look(slot + (1 + at) / (_LOOKS + 1))
            ends.noted.append(SlotEnd(slot, float(slot + 1), tuple(watcher.reach(str(path)))))
        ends.over = True
        now = float(_SLOTS)
        while not follower.over:
            look(now := float(np.nextafter(now, np.inf)))
        return tuple(slots)


_case = partial(usual_case, claim="StreamingPCA's guarantee", quick=120, full=1500)
_LONG = "a thousand times the bound, present or blank"


def _stream_case(name: str, about: str, canary: str, **course: Any) -> Case:
    """A case of all that `StreamingPCA` releases along a course."""
    return _case(f"stream/{name}", about, canary, partial(_followed, course=_Course(**course)))


_FILE = "a site that follows a file by the clock, with a backlog and a burst"
_INCREMENTS: Final = ((0, 2), (2, 4))
_BLOCKS: Final = tuple(pairwise(range(4)))
_UNITS: Final = (1e-3, 1.0, 1e4, 7.0, 1.0, 0.02, 1e8, 3.0)
_AFTER: Final = "all components and values after each"

CASES = (
    _stream_case(
        "sync",
        f"StreamingPCA(publish='sync'): {_AFTER} synchronisation, two of them",
        f"a row along each axis, {_LONG}, in the first increment, and one in the second",
        stretches=_INCREMENTS,
        deviations=(1.0, 1.0),
        people=((0,), (3,)),
    ),
    _stream_case(
        "block",
        f"StreamingPCA(publish='block'): {_AFTER} of three blocks",
        f"a row along each axis, {_LONG}, in the first block, and one in the last",
        publish="block",
        stretches=_BLOCKS,
        deviations=(1.0,) * 3,
        people=((0,), (2,)),
    ),
    _stream_case(
        "continual",
        f"StreamingPCA(publish='continual'): {_AFTER} of four blocks",
        f"a row along each axis, {_LONG}, in the first block, which is in a stretch of every level of the tree",
        people=((0,),),
        **_tree(4, person_blocks=1),
    ),
    _stream_case(
        "units",
        "StreamingPCA(scale=...): all components and values, in these units, after each synchronisation, two of them",
        f"a row along each axis, in units from 1e-3 to 1e8, {_LONG}, in the first increment, and one in the second",
        stretches=_INCREMENTS,
        deviations=(1.0, 1.0),
        people=((0,), (3,)),
        units=_UNITS,
    ),
    _case(
        "stream/mean",
        "StreamingPCA, centered: the mean, all components and values after one synchronisation",
        "a row along each axis, present or blank",
        _centered,
        tests=("curve",),
        threshold=None,
    ),
    _stream_case(
        # Both rows can fall into one release, so its noise is twice as large and is charged once
        # (docs/decisions/0007-private-streams.md).
        "person-sync",
        f"StreamingPCA(publish='sync', person_blocks=2): {_AFTER} synchronisation",
        f"a person with a row in both blocks of an increment, each {_LONG}, along each axis",
        stretches=_INCREMENTS,
        deviations=(2.0, 2.0),
        people=((0, 1), (2, 3)),
    ),
    _stream_case(
        # Here the rows fall into two releases, each charged for, so noise grows by sqrt(2) only.
        "person-block",
        f"StreamingPCA(publish='block', person_blocks=2): {_AFTER} of three blocks",
        f"a person with a row in two blocks, each {_LONG}, along each axis",
        publish="block",
        stretches=_BLOCKS,
        deviations=(math.sqrt(2),) * 3,
        people=((0, 1), (0, 2)),
    ),
    _stream_case(
        "person-continual",
        f"StreamingPCA(publish='continual', person_blocks=2): {_AFTER} of four blocks",
        f"a person with a row in the first and the third block, each {_LONG}, along each axis",
        people=((0, 2),),
        **_tree(4, person_blocks=2),
    ),
    _case(
        "stream/slots-site",
        "FederatedStream(trust='site'): every matrix that one site sends, one for each of two slots, seen by the hub",
        f"a row along each axis, {_LONG}, in the first slot, and one in the second",
        partial(_slots, trust="site"),
    ),
    _case(
        "stream/slots-hub",
        "FederatedStream(trust='hub'): the matrix that the hub has released after each of two slots, seen by anybody",
        f"a row along each axis at one site, {_LONG}, in the first slot, and one in the second",
        partial(_slots, trust="hub"),
    ),
    _case(
        "stream/slots-masked",
        "FederatedStream(trust='masked'): the sum over three sites that is unmasked after each of two slots, seen by the hub",
        f"a row along each axis at one site, {_LONG}, in the first slot, and one in the second",
        partial(_slots, trust="masked"),
    ),
    _case(
        "stream/slots-device",
        "FederatedStream(one_person_per_site=True): the matrix released after each of two slots, seen by anybody",
        f"a device for each axis, with two rows in every slot, {_LONG}",
        partial(_slots, trust="hub", device=True),
    ),
    *(
        _case(
            f"stream/slots-{rule}",
            f"FederatedStream(missing='{rule}'): all of the matrix that a site sends of a slot, seen by the hub",
            "a row a thousand times the bound that has every entry, or one that has none",
            partial(_torn_slot, rule=rule),
            tests=("noise",),
            threshold=None,
        )
        for rule in _COUNTS
    ),
    usual_case(
        "stream/followed",
        f"{_FILE}: every matrix that it sends, seen by the hub",
        "the first row of the file, a thousand times the bound, present or not",
        followed_file,
        claim="the guarantee of a study of streams",
        quick=300,
    ),
    usual_case(
        "stream/followed-long",
        f"{_FILE}: every matrix that it sends and the size of every slot, seen by the hub",
        "the first row of the file, a thousand times the bound, or a row of zeros in four megabytes of text",
        partial(followed_file, neighbours=Neighbours.ZERO_OUT),
        claim="the guarantee of a study of streams",
        quick=300,
    ),
)
