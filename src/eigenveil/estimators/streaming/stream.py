"""`Stream`: one stream being followed. Rows go in, blocks go to a tracker, and only what may be seen comes out.

`StreamingPCA` is its public face. Here it is decided when a block is full, what a release may cost and what is said of it.
"""

import math
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import scipy.sparse as sp

from eigenveil.errors import EigenveilError, require, require_param
from eigenveil.estimators.streaming.buffer import OpenBlock, placed, still_unseen
from eigenveil.estimators.streaming.merged import Merged
from eigenveil.estimators.streaming.spec import StreamSpec, stream_guarantee
from eigenveil.linalg import Array
from eigenveil.model import Model
from eigenveil.plan import STREAM_MEAN_SHARES
from eigenveil.privacy import Charge, Domain, Gaussian, Guarantee, Ledger, Mechanism, Noise, Reserve
from eigenveil.protocols import run_pooled
from eigenveil.tasks.fit.center import CenterSearch
from eigenveil.tracking import (
    NOTHING_ASKED,
    BlockTracker,
    GramTracker,
    Sketch,
    SketchTracker,
    SlicedTracker,
    SumTerms,
    TreeTracker,
    merge_sketches,
)
from eigenveil.tracking.missing import filled, has_gaps
from eigenveil.tracking.sums import as_block_rows

__all__ = ["Stream", "UnfinishedStream", "View"]

_ROUNDS_OF_FILLING: Final = 3
RAW_STATE: Final = "This is raw data of the people in the stream. Only what was released is covered by a guarantee."


@final
@dataclass(frozen=True, slots=True, eq=False)
class View:
    """What may be shown: a sketch with the rank aimed at, the noise floor of its scatter, and how many rows it covers."""

    sketch: Sketch
    rank: int
    noise_floor: float
    rows: int


@final
@dataclass(frozen=True, slots=True, eq=False)
class UnfinishedStream:
    """A private fit that broke off after it had taken so many `rows`: what it had released by then, and what that has cost.

    `model` is of the last release, None where there was none. `ledger` is the one that the stream is paid from, and
    `guarantee` lists what was charged for this stream.
    """

    rows: int
    releases: int
    model: Model | None
    guarantee: Guarantee
    ledger: Ledger


@final
class Stream:
    """Follows one stream. Changes in place: it holds rows, and in a private stream it spends.

    A private stream belongs to one place: two of it would release the same rows twice and pay once. So a copy of it holds no
    row and cannot go on, and saving it closes it.

    From its first block on it has what is left of its budget reserved on the ledger, until that is given back (`give_back`) or
    the stream is gone. If it goes on after that, it reserves the rest anew.
    """

    def __init__(self, terms: StreamSpec, ledger: Ledger | None, *, shared: bool) -> None:
        self.terms, self.ledger, self.shared = terms, ledger, shared
        self.rows, self.covered = 0, 0
        self.charges: tuple[Charge, ...] = ()
        self._reserve: Reserve | None = None
        # No other stream on the same ledger may have slots of this name.
        self.series = f"stream {secrets.token_hex(8)}"
        self.tracker: SketchTracker[Any] | None = None
        self.state: Any = None
        # Columns in which nothing has been observed yet, (d,), None where there are none.
        self.unseen: Any = None
        self.pending = OpenBlock()
        self.merged: Merged | None = None
        self.closed: str | None = None
        self._process = os.getpid()
        self.busy = threading.RLock()
        self.claimed: Path | None = None
        self.draws = 0
        self._noise = None if terms.seed is not None or terms.budget is None else Noise.fresh()
        self._seen: tuple[tuple[Any, ...], View] | None = None
        # In a copy: all there is to see, and the number of releases behind it.
        self._shown: tuple[View, int] | None = None

    @property
    def private(self) -> bool:
        """Whether a budget was given."""
        return self.terms.budget is not None

    @property
    def releases(self) -> int:
        """How many blocks or increments have been released."""
        if self._shown is not None:
            return self._shown[1]
        if not self.private or self.tracker is None:
            return 0
        return int(getattr(self.state, "syncs", getattr(self.state, "blocks", 0)))

    @property
    def held(self) -> int:
        """How many rows the open block has."""
        return self.pending.count

    def require_open(self) -> None:
        """Refuse to go on where the stream has moved elsewhere, is a copy, or was interrupted."""
        if self.closed is not None:
            raise EigenveilError(self.closed)
        if self.private and os.getpid() != self._process:
            raise EigenveilError("this is a forked copy of a private stream: only the process that began it can go on")

    def require_room(self, more: int) -> None:
        """Refuse rows that the horizon has no room for, before any of them is taken."""
        self.require_open()
        horizon, blocks = self.terms.horizon, self.terms.plan.horizon_blocks
        if horizon is None:
            return
        require_param(
            self.rows + more <= horizon,
            f"these rows would take the stream past its {{horizon}} of {horizon} rows; none of them was taken",
        )
        # A synchronisation that ends a block early makes two of it.
        block = self.terms.plan.block
        needed = -(-(self.rows + more) // block) - (self.rows - self.held) // block
        require_param(
            self.releases + needed <= blocks,
            f"these rows would take the stream past its {{horizon}} of {blocks} blocks, some of which sync() has ended early; "
            "none of the rows was taken",
        )

    def kept(self) -> dict[str, Any]:
        """All that changes when rows are taken, to go back to where nothing is private. Everything in it is a value."""
        return {name: getattr(self, name) for name in ("rows", "tracker", "state", "pending", "merged", "unseen")}

    def put_back(self, kept: Mapping[str, Any]) -> None:
        """Go back to what was kept. What is private stays: its releases cannot be taken back."""
        if not self.private:
            for name, value in kept.items():
                setattr(self, name, value)

    def feed(self, rows: Any) -> None:
        """Take checked rows, (n, d), float64 or CSR; with NaN for gaps only where nothing is private."""
        with self.busy, self._whole():
            self._feed(rows)

    def _feed(self, rows: Any) -> None:
        self.require_open()
        start = 0
        while True:
            length = self._length()
            want = length - self.held
            if want <= 0:
                # Full; also where an earlier attempt to take it failed and changed nothing.
                self._take(self.pending.rows)
                self.pending = OpenBlock()
                self._cover()
                continue
            if start == rows.shape[0]:
                return
            piece = rows[start : start + want]
            count = piece.shape[0]
            if self.held == 0 and count == want:
                self._take(piece)
                self.rows += count
                self._cover()
            else:
                # A copy, because the caller may go on to change what was handed in.
                self.pending = self.pending.and_rows(piece, length=length)
                self.rows += count
            start += count

    def begin(self, center: Array | None) -> None:
        """Make the tracker, around a center, (d,), that is public in a private stream."""
        self.tracker = self._tracker(center)
        self.state = self.tracker.start(self.terms.bounds.dim)

    def sync(self) -> None:
        """End the block that is open, and release what has been held back. Without privacy there is nothing to do."""
        with self.busy, self._whole():
            self._sync()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """A private stream that is interrupted inside, by Ctrl-C say, may have half taken a block: it cannot go on."""
        try:
            yield
        except Exception:
            raise
        except BaseException:
            if self.private and self.closed is None:
                self.closed = "this private stream was interrupted while it took rows; what was released before stands"
                self.give_back()
            raise

    def _sync(self) -> None:
        self.require_open()
        if not self.private or self.covered == self.rows:
            return
        if self.held:
            self._take(self.pending.rows)
            self.pending = OpenBlock()
        if self.terms.plan.tracker == "products":
            self._released(lambda tracker, through: tracker.sync(self.state, through))
        self._cover(released=True)

    def view(self, *, whole: bool = False) -> View:
        """What may be seen now: everything where nothing is private, and otherwise what was released.

        With the directions that the terms keep, or with the `whole` of them, which is more where all products are kept.
        """
        if self._shown is not None:
            return self._shown[0]
        if whole:
            return self._view(whole=True)
        others = () if self.merged is None else self.merged.streams
        key = (self.covered if self.private else self.rows, self.releases, others)
        if self._seen is None or self._seen[0] != key:
            self._seen = (key, self._view())
        return self._seen[1]

    def merge(self, other: "Stream") -> None:
        """Add what another stream has found. Rows that it holds back must have been released."""
        with self.busy:
            self._merge(other)

    def _merge(self, other: "Stream") -> None:
        self.require_open()
        self._require_like(other)
        found = other.view(whole=True)
        dim, mine = self.terms.bounds.dim, self.merged
        names = (other.series, *(() if other.merged is None else other.merged.streams))
        before = (self.series, *(() if mine is None else mine.streams))
        require(not set(names) & set(before), "these streams have been merged before, and rows would count twice")
        self.merged = (mine or Merged.none(dim)).and_stream(
            found.sketch,
            floor=found.noise_floor,
            guarantee=other.guarantee(),
            rows=found.rows,
            streams=names,
            rank=self._width(found.sketch),
            center=self.terms.center,
        )

    def _require_like(self, other: "Stream") -> None:
        """Refuse a stream that this one cannot take over. A copy will do: what it holds was released."""
        if other._shown is None:
            other.require_open()
        mine, theirs = self.terms, other.terms
        require(
            self.private == other.private,
            "a private stream and one without privacy cannot be merged: the result would be neither",
        )
        require(
            mine.bounds.dim == theirs.bounds.dim,
            f"streams of {mine.bounds.dim} and {theirs.bounds.dim} columns cannot be merged",
        )
        require(mine.center == theirs.center, "one of the streams is centered and the other is not")
        # One guarantee is made to everybody in the result, so it must be the one that both streams kept.
        for name in ("neighbours", "person_blocks") if self.private else ():
            require_param(
                getattr(mine, name) == getattr(theirs, name),
                f"private streams that guarantee different things cannot be merged: {{{name}}} differ",
            )
        require(
            not other.private or other._shown is not None or other.covered == other.rows,
            "the other stream holds rows that have not been released; call its sync() first",
        )

    def guarantee(self) -> Guarantee:
        """What is guaranteed of all that was released so far."""
        return stream_guarantee(self.terms, self.charges, self.merged)

    def _cover(self, *, released: bool = False) -> None:
        """All rows up to here are in what was released: after a release, and after every block that is one on its own."""
        if released or self.terms.plan.tracker != "products":
            self.covered = self.rows
            self.merged = None if self.merged is None else self.merged.released()

    def _length(self) -> int:
        """How many rows the block that is open will have: up to the next boundary.

        Boundaries stay where they are when a synchronisation ends a block early. Otherwise two rows that one person has in
        different blocks could come to lie in one.
        """
        first, block = self.terms.plan.first_block, self.terms.plan.block
        start = self.rows - self.held
        return first - start if start < first else block - (start - first) % block

    def _take(self, rows: Any) -> None:
        """Hand a block to the tracker; the first one makes the tracker."""
        if not self.private:
            first = self.tracker is None
            self.tracker, self.state = self._after(rows)
            self.unseen = still_unseen(self.unseen, rows) if first or self.unseen is not None else None
        else:
            if self.tracker is None:
                # Also where there is no center to look for: a ledger that cannot pay for all of it refuses here.
                self._reserved()
                self.begin(self._center_of(rows))
            self._released(lambda tracker, through: tracker.step(self.state, rows, through))
        self.merged = None if self.merged is None else self.merged.later(self.terms.forget**2)

    def _released(self, act: Callable[[SketchTracker[Any], Mechanism], Any]) -> None:
        """Let the tracker act with a mechanism that is paid from the ledger, and keep the lines that it wrote."""
        assert self.tracker is not None
        tracker = self.tracker
        with self._paid():
            self.state = act(tracker, self._mechanism(self._multiplier(tracker)))

    @contextmanager
    def _paid(self) -> Iterator[None]:
        """Keep what is charged inside. What breaks off after a charge has spent it: the stream cannot go on from there."""
        reserve = self._reserved()
        before = self._account(reserve)
        try:
            yield
        except BaseException:
            if self._account(reserve) != before:
                self.closed = (
                    "a release of this stream was interrupted after it was paid for; what was released before stands"
                )
                self.give_back()
            raise
        finally:
            self.charges = reserve.charges

    def _account(self, reserve: Reserve) -> tuple[Any, ...]:
        """What changes when this stream is charged, by however little, and not when others on its ledger are."""
        assert self.ledger is not None
        own = {name: held for name, held in self.ledger.series().items() if name.startswith(f"{self.series}: ")}
        return len(reserve.charges), own

    def _reserved(self) -> Reserve:
        """The whole budget, less what was paid before, set aside for this stream alone."""
        if self._reserve is None:
            assert self.ledger is not None
            self._reserve = self.ledger.reserve(self._mu, label="this stream", paid=self.charges)
        return self._reserve

    def give_back(self) -> None:
        """Let others have what is reserved and not spent."""
        if self._reserve is not None:
            self._reserve.close()
            self._reserve = None

    def _after(self, rows: Any) -> tuple[SketchTracker[Any] | None, Any]:
        """Tracker and state after one more block, nothing of it being private."""
        tracker, state = self.tracker, self.state
        gaps = not sp.issparse(rows) and has_gaps(rows)
        if gaps:
            rows = rows[~np.isnan(rows).all(axis=1)]
        if rows.shape[0] == 0:
            # Nothing was observed in any of them.
            return tracker, state
        if tracker is not None and self.unseen is not None and self.terms.center:
            state = placed(tracker, state, self.unseen, rows)
        if tracker is None:
            whole = filled(rows, Sketch.empty(self.terms.bounds.dim)) if gaps else rows
            tracker = self._tracker(self._exact_center(whole))
            state = tracker.start(self.terms.bounds.dim)
            # The first block has nothing to go by but itself: fill, look, fill better.
            for _ in range(_ROUNDS_OF_FILLING if gaps else 0):
                found = tracker.sync(tracker.step(state, whole, NOTHING_ASKED), NOTHING_ASKED)
                whole = filled(rows, self._cut(tracker.sketch(found)))
        else:
            known = (
                tracker.sketch(tracker.sync(state, NOTHING_ASKED), most=self.terms.rank + self.terms.oversample)
                if gaps
                else None
            )
            whole = rows if known is None else filled(rows, self._cut(known))
        return tracker, tracker.step(state, whole, NOTHING_ASKED)

    def _cut(self, sketch: Sketch) -> Sketch:
        """A sketch of no more directions than the terms keep: gaps are filled from those that stand out."""
        width = min(self.terms.rank + self.terms.oversample, sketch.subspace.rank)
        return Sketch(sketch.subspace.truncate(max(width, 1)), sketch.mean, sketch.weight, sketch.energy)

    def _view(self, *, whole: bool = False) -> View:
        terms = self.terms
        tracker, state, rows = self.tracker, self.state, self.covered
        if not self.private:
            rows = self.rows
            if self.held:
                tracker, state = self._after(self.pending.rows)
            if tracker is not None:
                state = tracker.sync(state, NOTHING_ASKED)
        if tracker is None:
            sketch, rank, floor = Sketch.empty(terms.bounds.dim), terms.rank, 0.0
        else:
            rank, floor = tracker.rank_of(state), tracker.noise_floor(state)
            # All directions only where others will be added, which may bring up any of them.
            sketch = tracker.sketch(state, most=None if whole or self.merged is not None else rank + terms.oversample)
        if self.merged is not None:
            others = self.merged
            fade = others.shown if self.private else others.fade * (terms.forget**2 if self.held else 1.0)
            width = self._width(sketch, others.sketch)
            sketch = merge_sketches(sketch, others.seen(fade), rank=width, center=terms.center)
            floor = math.hypot(floor, fade * others.floor)
            rows += others.rows
        return View(sketch, rank, floor, rows)

    def _width(self, *sketches: Sketch) -> int:
        """How many directions a merged sketch keeps: all of them where all products are kept, otherwise what the terms say."""
        dim = self.terms.bounds.dim
        if self.terms.plan.tracker in ("products", "tree"):
            return dim
        return min(dim, max(self.terms.rank + self.terms.oversample, *(s.subspace.rank for s in sketches)))

    def _tracker(self, center: Array | None) -> SketchTracker[Any]:
        terms, plan = self.terms, self.terms.plan
        if plan.tracker == "sketch":
            return BlockTracker(terms.rank, terms.oversample, terms.forget, terms.adapt, terms.center, terms.seed or 0)
        radius = terms.bounds.row_bound if self.private else math.inf
        private = SumTerms(
            Domain(terms.bounds.dim, radius, center),
            terms.neighbours,
            terms.person_blocks,
            terms.center,
            terms.forget,
            terms.adapt,
            self.series,
        )
        match plan.tracker:
            case "products":
                return GramTracker(terms.rank, private)
            case "tree":
                return TreeTracker(terms.rank, private, plan.horizon_blocks)
            case _:
                return SlicedTracker(terms.rank, private, terms.oversample)

    def _exact_center(self, rows: Any) -> Array | None:
        """A point near the rows, so that squares around it lose nothing to rounding."""
        if not self.terms.center or sp.issparse(rows):
            return None
        with np.errstate(over="ignore", invalid="ignore"):
            mean: Array = np.asarray(rows, dtype=np.float64).mean(axis=0)
        require(bool(np.isfinite(mean).all()), "rows must be finite, and not too large to square")
        return mean

    def _center_of(self, rows: Any) -> Array | None:
        """Where the ball stands: around the mean of the first block, found privately, or around zero."""
        terms = self.terms
        if not terms.center:
            return None
        block = as_block_rows(rows)
        with self._paid():
            multiplier = 1.0 / self._mu
            search = CenterSearch(
                terms.bounds,
                terms.neighbours,
                shares=STREAM_MEAN_SHARES,
                count_share=0.0,
                people=float(block.shape[0]),
                multiplier=multiplier,
            )
            return run_pooled(search, block, self._mechanism(multiplier)).center

    @property
    def _mu(self) -> float:
        assert self.terms.budget is not None
        return self.terms.budget.mu

    def _multiplier(self, tracker: SketchTracker[Any]) -> float:
        """Noise over sensitivity: what the mean left of the budget, over the releases that one person can be in."""
        mean = math.fsum(c.mu**2 for c in self.charges if c.label.startswith("mean"))
        return math.sqrt(tracker.cost / (self._mu**2 - mean))

    def _mechanism(self, multiplier: float) -> Mechanism:
        noise = self._noise
        if noise is None:
            # A seed gives every act its own noise, so that a resumed stream draws what an uninterrupted one would.
            noise = Noise.seeded(((self.terms.seed or 0) << 48) + self.draws)
        self.draws += 1
        return Gaussian(multiplier, self._reserved(), noise)

    def __getstate__(self) -> dict[str, Any]:
        """A copy of a private stream, in a pickle or in memory, holds what was released and no row, and cannot go on."""
        state = {name: value for name, value in self.__dict__.items() if name != "busy"}
        if self.private:
            nothing = {
                "tracker": None,
                "state": None,
                "pending": OpenBlock(),
                "_noise": None,
                "_reserve": None,
                "claimed": None,
            }
            state |= nothing | {"_shown": self._shown or (self.view(whole=True), self.releases), "_seen": None}
            state["closed"] = (
                "this is a copy of a private stream: it holds what was released, and only the original can go on"
            )
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.busy = threading.RLock()
