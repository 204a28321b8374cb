"""Laws of the registry: what each kind of tracker says of itself is so."""

import math
from dataclasses import fields, is_dataclass
from typing import Any, Final

import numpy as np
import pytest

from eigenveil import StreamingPCA
from eigenveil.core.domain import Domain
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Gaussian, Mechanism
from eigenveil.core.noise import Noise
from eigenveil.linalg import Array
from eigenveil.trackers import NOTHING_ASKED, PUBLISH, TRACKERS, StreamRequest, SumTerms, TrackerKind, TrackerTerms
from eigenveil.trackers.state import restored, taken_apart
from laws.streams.every_tracker import same

DIM: Final = 6
BLOCKS: Final = 5
each = pytest.mark.parametrize("kind", TRACKERS.values(), ids=list(TRACKERS))


def made(kind: TrackerKind) -> Any:
    """A tracker of this kind, for a few blocks."""
    radius = 4.0 if kind.publishes else math.inf
    sums = SumTerms(domain=Domain(dim=DIM, radius=radius))
    return kind.make(TrackerTerms(rank=2, oversample=2, horizon=BLOCKS, seed=0, sums=sums))


def rows(block: int) -> Array:
    """One block of rows."""
    return np.random.default_rng(block).standard_normal((20, DIM)) * ([2.0, 1.0] + [0.1] * (DIM - 2))


def mechanism(kind: TrackerKind) -> Mechanism:
    """Noise where the kind releases something."""
    return (
        Gaussian(multiplier=1.0, ledger=Ledger(epsilon=1e4, delta=1e-6), noise=Noise.seeded(0))
        if kind.publishes
        else NOTHING_ASKED
    )


def spent(through: Mechanism) -> float:
    """What was charged so far."""
    return math.fsum(charge.mu**2 for charge in through.ledger.charges) if isinstance(through, Gaussian) else 0.0


def numbers_in(state: Any) -> int:
    """How many numbers a state keeps. A broadcast array takes no memory."""
    if is_dataclass(state):
        return sum(numbers_in(getattr(state, field.name)) for field in fields(state))
    if isinstance(state, tuple):
        return sum(map(numbers_in, state))
    return (1 if 0 in state.strides else state.size) if isinstance(state, np.ndarray) else 0


@each
def test_something_is_followed_by_each_kind(kind: TrackerKind) -> None:
    requests = [
        StreamRequest(dim=dim, width=4, private=private, publish=publish, fades=False, block=512, limit=1 << 24)
        for dim in (DIM, 5000)
        for private in (False, True)
        for publish in PUBLISH
    ]
    first = [next(other for other in TRACKERS.values() if other.suits(request)) for request in requests]
    assert kind in first


@each
def test_a_kind_releases_when_it_says(kind: TrackerKind) -> None:
    tracker, through = made(kind), mechanism(kind)
    state = tracker.start(DIM)
    for block in range(BLOCKS):
        before, state = tracker.releases(state), tracker.step(state, rows(block), through)
        assert tracker.releases(state) - before == kind.every_block
    pending = tracker.releases(state)
    state = tracker.sync(state, through)
    assert tracker.releases(state) - pending == (bool(kind.publishes) and not kind.every_block)
    # One person's releases cost no more than the tracker says, in units of one.
    assert spent(through) <= tracker.cost * (1 + 1e-12)
    assert (spent(through) > 0) == bool(kind.publishes)
    assert bool(kind.phrase) == bool(kind.moments) == bool(kind.schedule) == bool(kind.publishes)


@each
def test_a_state_is_of_its_class_and_comes_back_from_arrays(kind: TrackerKind) -> None:
    tracker, through = made(kind), mechanism(kind)
    state = tracker.start(DIM)
    assert tracker.subspace(state).rank == 0
    for block in range(3):
        state = tracker.step(state, rows(block), through)
        assert isinstance(state, kind.state)
        assert same(restored(*taken_apart(state)), state)
        assert numbers_in(state) <= kind.numbers(DIM, 4, BLOCKS)


@pytest.mark.parametrize("publish", PUBLISH)
def test_a_private_stream_can_publish_with_each_word(publish: str) -> None:
    kind = next(kind for kind in TRACKERS.values() if kind.publishes == publish)
    pca = StreamingPCA(
        2, epsilon=1.0, delta=1e-6, row_bound=4.0, publish=publish, horizon=400 if kind.needs_horizon else None, random_state=0
    ).fit(np.vstack([rows(block) for block in range(20)]))
    assert pca.plan_.kind is kind
    assert kind.schedule in str(pca.guarantee_)
    assert pca.noise_floor_ > 0


def test_without_a_horizon_only_some_kinds_are_planned() -> None:
    for kind in TRACKERS.values():
        if kind.publishes:
            with pytest.raises(ValueError, match="horizon"):
                StreamingPCA(
                    2, epsilon=1.0, delta=1e-6, publish=kind.publishes, horizon=None if kind.needs_horizon else 9
                ).require_parameters()
