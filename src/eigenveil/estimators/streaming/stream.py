"""`Stream`: one stream, for `StreamingPCA`. Rows go in, blocks go to a tracker, and only released numbers come out.

It decides when a block is full, what a release may cost, and what the guarantee says. States of a private stream:

- Waiting: no block is full yet. The first full block reserves the budget and finds the center. If its rows lie too far out for
  that, the stream waits for more of them, and no block is taken before.
- Following: every full block, and every `sync`, goes to the tracker and may be released.
- Closed: it was saved, copied, forked, or interrupted in a release. It refuses to continue.
"""

import math
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, final

import numpy as np
import scipy.sparse as sp

from eigenveil.core.domain import Domain, MissingPolicy
from eigenveil.core.ledger import Charge, Ledger, Purpose, Reserve
from eigenveil.core.mechanism import Gaussian, Mechanism
from eigenveil.core.noise import Noise
from eigenveil.core.threads import this_process
from eigenveil.data.people import Marks
from eigenveil.errors import EigenveilError, require, require_param
from eigenveil.estimators.streaming.buffer import OpenBlock, PeopleSeen, in_units, placed, still_unseen
from eigenveil.estimators.streaming.spec import Answer, Merged, Placement, StreamSpec, search, stream_guarantee, units_in
from eigenveil.linalg import Array
from eigenveil.model import Model, clipping_of
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.tasks.fit.search import Center
from eigenveil.trackers import NOTHING_ASKED, Sketch, SketchTracker, SumTerms, TrackerTerms, merge_sketches
from eigenveil.trackers.sums import filled, has_gaps

__all__ = ["Stream", "UnfinishedStream"]

_ROUNDS_OF_FILLING: Final = 3
RAW_STATE: Final = "This is raw data of the people in the stream. Only what was released is covered by a guarantee."


class UnfinishedStream(NamedTuple):
    """A private fit that failed after so many `rows`: what it had released, and what that cost.

    `model` is of the last release, None if there was none. `ledger` is the one that the stream spends from, and `guarantee`
    lists what was charged for this stream.
    """

    rows: int
    releases: int
    model: Model | None
    guarantee: Guarantee
    ledger: Ledger


@final
class Stream:
    """Follows one stream. Changes in place: it keeps rows, and a private stream spends.

    A private stream exists once: two of it would release the same rows twice and be charged once. A copy has no rows and
    cannot continue, and saving closes the stream.

    From its first block on, the rest of its budget is reserved on the ledger, until `give_back` or until the stream is gone. A
    stream that continues after that reserves the rest again.
    """

    def __init__(self, terms: StreamSpec, ledger: Ledger | None, *, shared: bool) -> None:
        self.terms, self.ledger, self.shared = terms, ledger, shared
        # Rows taken, and how many of them the released numbers cover. They differ while something is pending.
        self.rows, self.covered = 0, 0
        self.charges: tuple[Charge, ...] = ()
        self._reserve: Reserve | None = None
        # What its reserve is called in the file of a ledger, None in memory.
        self.reserve_name: str | None = None
        # Random, because slots of two streams on one ledger must not have the same name.
        self.series = f"stream {secrets.token_hex(8)}"
        # Where rows lie. Rows that wait are in the units of the columns.
        self.place = Placement.given(terms)
        # How far the search for the mean came in the first block, if it waits for more rows.
        self.searching: Center | None = None
        self.tracker: SketchTracker[Any] | None = None
        self.state: Any = None
        # Columns in which nothing has been observed yet, (d,), None if there are none.
        self.unseen: Any = None
        self.pending = OpenBlock()
        self.people = None if terms.person is None else PeopleSeen(terms.person_blocks)
        self.merged: Merged | None = None
        self.closed: str | None = None
        # A fork has the same rows. Both processes would release them, and each ledger would know of one charge.
        self._process = this_process()
        self.busy = threading.RLock()
        self.claimed: Path | None = None
        # The open file of its last checkpoint, locked against other processes while this stream lives.
        self.held_file: IO[bytes] | None = None
        # How many mechanisms were made, also before a save. With a seed it keeps the noise of two releases apart.
        self.draws = 0
        # One cryptographic source for the whole stream. With a seed, `_mechanism` makes one for each release.
        self._noise = None if terms.seed is not None or terms.budget is None else Noise.fresh()
        self._seen: tuple[tuple[Any, ...], Answer] | None = None
        # Only in a copy: what may be seen, and the number of releases so far.
        self._shown: tuple[Answer, int] | None = None

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
        return self.tracker.releases(self.state)

    @property
    def held(self) -> int:
        """How many rows the open block has."""
        return self.pending.count

    def require_open(self) -> None:
        """Refuse to continue a stream that was saved, copied, forked or interrupted."""
        if self.closed is not None:
            raise EigenveilError(self.closed)
        if self.private and this_process() != self._process:
            raise EigenveilError("this is a forked copy of a private stream. Only the process that began it can continue")

    def require_room(self, more: int) -> None:
        """Refuse rows beyond the horizon, before any of them is taken."""
        self.require_open()
        horizon, blocks = self.terms.horizon, self.terms.plan.horizon_blocks
        if horizon is None:
            return
        require_param(
            self.rows + more <= horizon, f"these rows would exceed the {{horizon}} of {horizon} rows. None of them was taken"
        )
        # A synchronisation that ends a block early makes two blocks of it.
        block = self.terms.plan.block
        # Rounded up: a block that is begun will be released.
        needed = -(-(self.rows + more) // block) - (self.rows - self.held) // block
        require_param(
            self.releases + needed <= blocks,
            f"these rows would exceed the {{horizon}} of {blocks} blocks, some of which sync() ended early. None of the rows was "
            "taken",
        )

    def kept(self) -> dict[str, Any]:
        """Everything that changes when rows are taken, for `put_back`. All of it is immutable."""
        return {name: getattr(self, name) for name in ("rows", "tracker", "state", "pending", "merged", "unseen")}

    def put_back(self, snapshot: Mapping[str, Any]) -> None:
        """Return to what was kept. A private stream stays as it is, because releases cannot be taken back."""
        if not self.private:
            for name, value in snapshot.items():
                setattr(self, name, value)

    def feed(self, rows: Any, marks: Marks | None = None) -> None:
        """Take checked rows, (n, d), float64 or CSR. NaN marks gaps, with privacy only if there is a rule for them.

        A stream that knows people takes those rows that are admitted by their `marks`.
        """
        with self.busy, self._whole():
            if self.people is not None and marks is not None:
                rows = rows[self.people.admitted(marks, rows=self.rows, plan=self.terms.plan)]
            self._feed(rows)

    def _feed(self, rows: Any) -> None:
        self.require_open()
        start = 0
        while True:
            # The search may need more rows than the open block has.
            length = self._block_length() if self.searching is None else self.terms.plan.search_rows
            want = length - self.held
            if want <= 0:
                # Full. Also after an earlier attempt to take it failed and changed nothing.
                self._close()
                continue
            if start == rows.shape[0]:
                return
            piece = rows[start : start + want]
            count = piece.shape[0]
            # A whole block goes straight to the tracker, without a copy. Its rows count only once the tracker has taken them.
            if self.held == 0 and count == want and self._placed(piece):
                self._take(piece)
                self.rows += count
                self._cover()
            else:
                # A copy, because the caller may change the array later.
                self.pending = self.pending.and_rows(piece, length=length)
                self.rows += count
            start += count

    def begin(self, center: Array | None) -> None:
        """Make the tracker around a center, (d,), in the units of the stream. In a private stream the center is public."""
        if self.terms.bounds.low is not None and self.private:
            # The farthest corner of the box bounds its rows, once the center is known.
            scale = self.place.scale
            placed_at = center if center is None or scale is None else center * scale
            self.place = replace(self.place, bound=self.terms.bounds.around(placed_at).radius)
        self.tracker = self._tracker(center)
        self.state = self.tracker.start(self.terms.bounds.dim)

    def sync(self) -> None:
        """End the open block and release what is pending. Without privacy there is nothing to do."""
        with self.busy, self._whole():
            self.require_open()
            if not self.private or self.covered == self.rows:
                return
            if self.held:
                self._close(last=True)
            if not self.terms.plan.kind.every_block:
                self._released(lambda tracker, through: tracker.sync(self.state, through))
            self._cover(released=True)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Close a private stream that is interrupted inside, as by Ctrl-C: it may have taken half a block."""
        try:
            yield
        # An ordinary error has changed nothing, or came after a charge, which `_paid` notices.
        except Exception:
            raise
        except BaseException:
            if self.private and self.closed is None:
                self.closed = "this private stream was interrupted while it took rows. Earlier releases stand"
                self.give_back()
            raise

    def view(self, *, whole: bool = False) -> Answer:
        """What may be shown now: everything without privacy, and otherwise what was released.

        It has the directions that the spec asks for, or with `whole` all that are kept.
        """
        if self._shown is not None:
            return self._shown[0]
        if whole:
            return self._view(whole=True)
        others = () if self.merged is None else self.merged.streams
        # Each attribute of the estimator asks for a view, and a view may decompose d x d sums. This is all that it depends on.
        key = (self.covered if self.private else self.rows, self.releases, others)
        if self._seen is None or self._seen[0] != key:
            self._seen = (key, self._view())
        return self._seen[1]

    def merge(self, other: "Stream") -> None:
        """Add what another stream has found. All of its rows must have been released."""
        with self.busy:
            self.require_open()
            self._require_like(other)
            answer, mine = other.view(whole=True), self.merged or Merged.none(self.terms.bounds.dim)
            # Also the streams that the other one took over: the same rows may come in through a third stream.
            names = (other.series, *(() if other.merged is None else other.merged.streams))
            twice = set(names) & {self.series, *mine.streams}
            require(not twice, "these streams were merged before, and rows would count twice")
            width = self._width(answer.sketch)
            self.merged = mine.and_stream(answer, other.guarantee(), streams=names, rank=width, center=self.terms.center)

    def _require_like(self, other: "Stream") -> None:
        """Refuse a stream that cannot be merged into this one. A copy can be: it has released numbers only."""
        if other._shown is None:
            other.require_open()
        mine, theirs = self.terms, other.terms
        require(self.private == other.private, "a private stream and one without privacy cannot be merged")
        require(
            mine.bounds.dim == theirs.bounds.dim, f"streams of {mine.bounds.dim} and {theirs.bounds.dim} columns cannot be merged"
        )
        require(mine.center == theirs.center, "one of the streams is centered and the other is not")
        for stream in (self, other):
            require(
                stream.place.scale is not None or not stream.terms.bounds.finds_scale,
                "the units of a stream are found in its first block, which is not full yet. Merge it afterwards",
            )
        ours, others = (1.0 if stream.place.scale is None else stream.place.scale for stream in (self, other))
        require_param(
            bool(np.all(np.equal(ours, others))),
            "streams in different units cannot be merged. Give all of them the same public {scale}",
        )
        # One guarantee covers all people in the result, so both streams must have kept it.
        for name in ("neighbours", "person_blocks", "person") if self.private else ():
            require_param(
                getattr(mine, name) == getattr(theirs, name),
                f"private streams with different guarantees cannot be merged: {{{name}}} differ",
            )
        require(
            not other.private or other._shown is not None or other.covered == other.rows,
            "the other stream has rows that are not released yet. Call its sync() first",
        )

    def guarantee(self) -> Guarantee:
        """The guarantee of everything released so far."""
        return stream_guarantee(self.terms, self.charges, self.merged, rows=self.rows, bound=self.place.bound)

    def _cover(self, *, released: bool = False) -> None:
        """Note that all rows so far have been released, after a release or after a block that is a release by itself."""
        if released or self.terms.plan.kind.every_block:
            self.covered = self.rows - self.held
            # The loss of weight becomes public with the release.
            self.merged = None if self.merged is None else replace(self.merged, shown=self.merged.fade)

    def _block_length(self) -> int:
        """How many rows the open block will have, up to the next boundary.

        Boundaries do not move when a synchronisation ends a block early. Otherwise two rows that one person has in different
        blocks could fall into one.
        """
        first, block = self.terms.plan.first_block, self.terms.plan.block
        start = self.rows - self.held
        return first - start if start < first else block - (start - first) % block

    def _close(self, *, last: bool = False) -> None:
        """Give the rows that are held to the tracker, block by block; the `last` block may be short."""
        if not self._placed(self.pending.rows, last=last):
            return
        # More than one block, if the search had to wait for more rows than the first block has.
        while self.held and (last or self.held >= self._block_length()):
            rows, length = self.pending.rows, self._block_length()
            self._take(rows[:length])
            self.pending = OpenBlock.of(rows[length:]) if self.held > length else OpenBlock()
            self._cover()

    def _placed(self, rows: Any, *, last: bool = False) -> bool:
        """Whether a tracker can take rows. In a private stream the first rows say where, unless the search waits for more."""
        if not self.private or self.tracker is not None:
            return True
        # Also without a center to find: a ledger that cannot pay for the whole stream refuses here.
        self._reserved()
        terms = self.terms
        with self._paid():
            center, rates, waits = search(
                rows, terms, lambda: self._mechanism(1.0 / self._mu, "search"), begun=self.searching, last=last
            )
        self.searching = center if waits else None
        if waits:
            return False
        self.place = replace(self.place, rates=rates)
        if terms.bounds.finds_bound:
            more = {name: getattr(center, name) for name in ("bound", "clipped", "norms", "outliers")}
            self.place = replace(self.place, **more)
        if terms.bounds.finds_scale:
            self.place = replace(self.place, scale=center.scale)
        scale = self.place.scale
        self.begin(center.center if center.center is None or scale is None else center.center / scale)
        return True

    def _take(self, rows: Any) -> None:
        """Give a block to the tracker."""
        if not self.private:
            first = self.tracker is None
            self.tracker, self.state = self._after(rows)
            self.unseen = still_unseen(self.unseen, rows) if first or self.unseen is not None else None
        else:
            inside = in_units(self._boxed(rows), self.place.scale, private=True)
            self._released(lambda tracker, through: tracker.step(self.state, inside, through))
        # `forget` multiplies singular values, and weights are of their squares.
        if self.merged is not None:
            self.merged = replace(self.merged, fade=self.merged.fade * self.terms.forget**2)

    def _released(self, act: Callable[[SketchTracker[Any], Mechanism], Any]) -> None:
        """Let the tracker act with a mechanism that charges the ledger, and keep its charges."""
        assert self.tracker is not None
        with self._paid():
            # From the charges and not from a plan, because the search for the mean may end early.
            searched = math.fsum(charge.mu**2 for charge in self.charges if charge.purpose == "search")
            # The squares of mu of all releases, of which one person can be in `cost`, add up to that of the budget
            # (decision 1).
            multiplier = math.sqrt(self.tracker.cost / (self._mu**2 - searched))
            self.state = act(self.tracker, self._mechanism(multiplier))

    @contextmanager
    def _paid(self) -> Iterator[None]:
        """Keep what is charged inside. An error after a charge closes the stream: the charge is spent."""
        reserve = self._reserved()
        before = self._account(reserve)
        try:
            yield
        except BaseException:
            if self._account(reserve) != before:
                self.closed = "a release of this stream was interrupted after it was charged. Earlier releases stand"
                self.give_back()
            raise
        finally:
            self.charges = reserve.charges

    def _account(self, reserve: Reserve) -> tuple[Any, ...]:
        """Changes with every charge of this stream, and not with charges of others on the same ledger."""
        assert self.ledger is not None
        # A slot may be charged without a new entry: releases of disjoint slots share one charge.
        own = {name: held for name, held in self.ledger.series().items() if name.startswith(f"{self.series}: ")}
        return len(reserve.charges), own

    def _reserved(self) -> Reserve:
        """The whole budget less earlier charges, reserved for this stream alone."""
        if self._reserve is None:
            assert self.ledger is not None
            # Reserved, because other fits may spend from the same ledger while the stream continues. What this stream has paid
            # counts towards its budget, so a resumed one reserves the rest and not the whole again.
            self._reserve = self.ledger.reserve(
                self._mu,
                label="this stream",
                paid=self.charges,
                unit=self.terms.unit,
                budget=self.terms.budget,
                name=self.reserve_name,
            )
            self.reserve_name = self._reserve.name
        return self._reserve

    def give_back(self) -> None:
        """Return what is reserved and not spent, for others."""
        if self._reserve is not None:
            self._reserve.close()
            self._reserve = None

    def _after(self, rows: Any) -> tuple[SketchTracker[Any] | None, Any]:
        """Tracker and state after one more block, without privacy."""
        tracker, state = self.tracker, self.state
        if tracker is None and self.terms.bounds.finds_scale:
            # Of the first block, as in a private stream. A look at an open block is of what is there, and the next one is anew.
            self.place = replace(self.place, scale=units_in(rows))
        rows = in_units(self._boxed(rows), self.place.scale, private=False)
        gaps = not sp.issparse(rows) and has_gaps(rows)
        if gaps:
            # A row without entries says nothing, and would count in the mean.
            rows = rows[~np.isnan(rows).all(axis=1)]
        if rows.shape[0] == 0:
            # No row has an entry.
            return tracker, state
        if tracker is not None and self.unseen is not None and self.terms.center:
            state = placed(tracker, state, self.unseen, rows)
        if tracker is None:
            whole = filled(rows, Sketch.empty(self.terms.bounds.dim)) if gaps else rows
            tracker = self._tracker(self._exact_center(whole))
            state = tracker.start(self.terms.bounds.dim)
            # The first block has only itself to fill gaps from, so fill and fit alternate.
            for _ in range(_ROUNDS_OF_FILLING if gaps else 0):
                synced = tracker.sync(tracker.step(state, whole, NOTHING_ASKED), NOTHING_ASKED)
                whole = filled(rows, self._truncated(tracker.sketch(synced)))
        else:
            sketch = (
                tracker.sketch(tracker.sync(state, NOTHING_ASKED), max_rank=self.terms.rank + self.terms.oversample)
                if gaps
                else None
            )
            whole = rows if sketch is None else filled(rows, self._truncated(sketch))
        return tracker, tracker.step(state, whole, NOTHING_ASKED)

    def _boxed(self, rows: Any) -> Any:
        """Rows, (n, d), with every entry clipped to its column bounds; gaps stay. Zeros of sparse rows lie within them."""
        low, high = self.terms.bounds.low, self.terms.bounds.high
        if low is None or high is None:
            return rows
        if not sp.issparse(rows):
            return np.clip(rows, low, high)
        values = np.clip(rows.data, low[rows.indices], high[rows.indices])
        return sp.csr_array((values, rows.indices, rows.indptr), shape=rows.shape)

    def _truncated(self, sketch: Sketch) -> Sketch:
        """A sketch truncated to what the spec keeps: gaps are filled from directions that stand out."""
        width = min(self.terms.rank + self.terms.oversample, sketch.subspace.rank)
        return replace(sketch, subspace=sketch.subspace.truncate(max(width, 1)))

    def _view(self, *, whole: bool = False) -> Answer:
        terms = self.terms
        tracker, state, rows, change = self.tracker, self.state, self.covered, None
        if not self.private:
            rows = self.rows
            # A view with the open block in it. Nothing is kept, so looking in between changes no later answer.
            if self.held:
                tracker, state = self._after(self.pending.rows)
            if tracker is not None:
                state = tracker.sync(state, NOTHING_ASKED)
        if tracker is None:
            sketch, rank, floor = Sketch.empty(terms.bounds.dim), terms.rank, 0.0
        else:
            rank, floor = tracker.rank_of(state), tracker.noise_floor(state)
            # All directions only if other streams are added: those may raise any of them.
            sketch = tracker.sketch(state, max_rank=None if whole or self.merged is not None else rank + terms.oversample)
        if self.merged is not None:
            others = self.merged
            # Weights fade with every block, and blocks that are not released must not show. A private stream shows the
            # weight of its last release. Without privacy the open block is in the view, and it fades the others once.
            fade = others.shown if self.private else others.fade * (terms.forget**2 if self.held else 1.0)
            width = self._width(sketch, others.sketch)
            sketch = merge_sketches(sketch, others.seen(fade), rank=width, center=terms.center)
            floor = math.hypot(floor, fade * others.floor)
            rows += others.rows
        if tracker is not None and self.private and sketch.subspace.rank > 0:
            # The same directions whether or not all are kept: a copy must say the same.
            shown = sketch.subspace.truncate(min(rank + terms.oversample, sketch.subspace.rank))
            change = tracker.change(state, shown, rank=rank)
        if self.merged is None:
            # Fewer rows than components have fewer directions, unless merged streams add more.
            rank = max(1, min(rank, rows))
        return Answer(
            sketch=sketch, rank=rank, floor=floor, rows=rows, energy=sketch.energy, change=change, units=self.place.scale
        )

    def _width(self, *sketches: Sketch) -> int:
        """How many directions a merged sketch keeps: all if all products are kept, otherwise what the spec asks for."""
        dim = self.terms.bounds.dim
        if self.terms.plan.kind.keeps_products:
            return dim
        return min(dim, max(self.terms.rank + self.terms.oversample, *(s.subspace.rank for s in sketches)))

    def _tracker(self, center: Array | None) -> SketchTracker[Any]:
        terms, plan = self.terms, self.terms.plan
        # Without privacy nothing is clipped.
        radius = math.inf
        if self.private:
            assert self.place.bound is not None
            radius = self.place.bound
        sums = SumTerms(
            domain=Domain(dim=terms.bounds.dim, radius=radius, center=center, gaps=self._gaps),
            neighbours=terms.neighbours,
            person_blocks=terms.person_blocks,
            center=terms.center,
            forget=terms.forget,
            adapt=terms.adapt,
            series=self.series,
            rates=self.place.rates,
        )
        return plan.kind.make(
            TrackerTerms(
                rank=terms.rank, oversample=terms.oversample, horizon=plan.horizon_blocks, seed=terms.seed or 0, sums=sums
            )
        )

    def clipping(self) -> dict[str, Array]:
        """How rows are clipped, for a model: in the units of the columns, around the center of the first block."""
        domain = None if self.tracker is None else self.tracker.domain
        if domain is None:
            return {}
        arrays, units = clipping_of(domain), self.place.scale
        if arrays and units is not None:
            arrays |= {"center": arrays["center"] * units, "scale": units}
        low, high = self.terms.bounds.low, self.terms.bounds.high
        return arrays | ({"low": low, "high": high} if arrays and low is not None and high is not None else {})

    @property
    def _gaps(self) -> MissingPolicy | None:
        """The rule for missing values, in the units of the stream."""
        gaps = self.terms.bounds.gaps
        if gaps is None or gaps.values is None or self.place.scale is None:
            return gaps
        return MissingPolicy.filled(gaps.values / self.place.scale)

    def _exact_center(self, rows: Any) -> Array | None:
        """A point near the rows. Squares around it lose fewer digits to rounding."""
        if not self.terms.center or sp.issparse(rows):
            return None
        # A warning of numpy would reveal that some entry is huge. The check below speaks of all rows.
        with np.errstate(over="ignore", invalid="ignore"):
            mean: Array = np.asarray(rows, dtype=np.float64).mean(axis=0)
        require(bool(np.isfinite(mean).all()), "rows must be finite, and not too large to square")
        return mean

    @property
    def _mu(self) -> float:
        assert self.terms.budget is not None
        return self.terms.budget.mu

    def _mechanism(self, multiplier: float, purpose: Purpose = "main") -> Mechanism:
        noise = self._noise
        if noise is None:
            # One seed for each release, so that a resumed stream draws the same noise as an uninterrupted one.
            # Room for 2^48 releases before two seeds could share a source.
            noise = Noise.seeded(((self.terms.seed or 0) << 48) + self.draws)
        self.draws += 1
        return Gaussian(multiplier=multiplier, ledger=self._reserved(), noise=noise, purpose=purpose)

    def __getstate__(self) -> dict[str, Any]:
        """A copy or pickle of a private stream has released numbers and no rows, and cannot continue."""
        # A lock cannot be copied. `__setstate__` makes another.
        state = {name: value for name, value in self.__dict__.items() if name != "busy"}
        if self.private:
            nothing = {
                "tracker": None,
                "state": None,
                "pending": OpenBlock(),
                "people": None,
                "_noise": None,
                "_reserve": None,
                "claimed": None,
                "held_file": None,
            }
            state |= nothing | {"_shown": self._shown or (self.view(whole=True), self.releases), "_seen": None}
            state["closed"] = "this is a copy of a private stream with what was released. Only the original can continue"
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.busy = threading.RLock()
