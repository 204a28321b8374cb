"""The trackers that the law suite runs over, and what is known of each: add one to the list, and every law is checked."""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

import numpy as np

from eigenveil.papers.trackers import BlockPower, FrequentDirections, Grouse, Oja, Spirit
from eigenveil.trackers import NOTHING_ASKED, BlockTracker, Tracker

AnyTracker: TypeAlias = Tracker[Any]

ALL_TRACKERS: list[tuple[str, Callable[[int], AnyTracker]]] = [
    ("BlockTracker", lambda rank: BlockTracker(rank=rank, center=False)),
    ("BlockTracker-lean", lambda rank: BlockTracker(rank=rank, oversample=0, center=False)),
    ("FrequentDirections", FrequentDirections),
    ("Grouse", Grouse),
    ("Grouse-step", lambda rank: Grouse(rank, step_size=2.0)),
    ("Spirit", Spirit),
    ("Spirit-fixed", lambda rank: Spirit(rank, forget=1.0, energy=None)),
    ("Oja", Oja),
    ("BlockPower", BlockPower),
]

# However the stream is cut into blocks, these give the same to the last bit; of the rest, those that differ by rounding alone.
CUTS_CHANGE_NOTHING = {"FrequentDirections", "Grouse", "Grouse-step", "Spirit", "Spirit-fixed", "Oja"}
CUTS_CHANGE_ROUNDING = {"BlockPower"}

# A fixed step is in the units of the rows.
NOT_SCALE_FREE = {"Grouse-step"}

# NaN is an entry that was not observed.
TAKES_GAPS = {"Grouse", "Grouse-step"}

# These have a private form, and so take a mechanism that adds noise.
RELEASES: set[str] = set()

# Fewer directions than asked for, when fewer hold enough of the energy.
ADAPTS_RANK = {"Spirit"}

# The largest sine that may be left after 2000 rows that lie in a space exactly, where steps that shrink like 1 / t settle
# slowly. Oja: median 0.002, 98th percentile 0.1, worst of a hundred streams 0.4; a random space has 0.9 or more.
SINE_LEFT = {"Oja": 0.5, "Grouse-step": 1e-4}


def run(tracker: AnyTracker, rows: Any, *, cut: int, state: Any = None) -> Any:
    """The state after `rows`, (n, d), in blocks of `cut`, from the start or from a given state."""
    state = tracker.start(rows.shape[1]) if state is None else state
    for begin in range(0, len(rows), cut):
        state = tracker.step(state, rows[begin : begin + cut], NOTHING_ASKED)
    return state


def leaves(state: Any) -> Iterator[Any]:
    """Everything in a state that is not itself a dataclass or a tuple, in order."""
    if is_dataclass(state):
        for field in fields(state):
            yield from leaves(getattr(state, field.name))
    elif isinstance(state, tuple):
        for part in state:
            yield from leaves(part)
    else:
        yield state


def snapshot(state: Any) -> list[Any]:
    """Copies of the leaves, to compare with later."""
    return [np.array(leaf) for leaf in leaves(state)]


def same(one: Any, other: Any) -> bool:
    """Whether two states, or snapshots of states, hold the same bits."""
    first, second = (part if isinstance(part, list) else snapshot(part) for part in (one, other))
    return len(first) == len(second) and all(
        a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True)
    )


def float_count(state: Any) -> int:
    """How many numbers a state holds."""
    return sum(np.size(leaf) for leaf in leaves(state))
