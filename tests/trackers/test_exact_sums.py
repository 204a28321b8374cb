"""Private sums of a stream are whole numbers: the same for every order and cut, faded exactly, and as far apart as they say."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil.core.domain import Domain
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Exact, Gaussian, Mechanism
from eigenveil.core.noise import Noise, step_of
from eigenveil.core.rows import Block
from eigenveil.core.unit import Neighbours
from eigenveil.core.whole import CenterTerms, sum_unit
from eigenveil.linalg import Array
from eigenveil.privacy.floating import dense
from eigenveil.privacy.sums import gram_columns
from eigenveil.trackers import GramTracker, SketchTracker, SlicedTracker, Sums, SumTerms, TreeTracker, sums
from eigenveil.trackers.state import restored, taken_apart
from eigenveil.trackers.sums import as_block
from laws.strategies import SIZES, person
from laws.streams.every_tracker import same
from trackers.listening import Listening
from trackers.offline_answers import falling, run

DIM = 5
KNOWN = Exact(because="a test may know everything")


def terms_of(radius: float = 3.0, dim: int = DIM, **choices: Any) -> SumTerms:
    center = choices.pop("at", None)
    return SumTerms(domain=Domain(dim=dim, radius=radius, center=center), **choices)


def by_hand(blocks: list[Array], terms: SumTerms) -> tuple[Any, Any]:
    """The products and the sum in Python's own whole numbers, one row at a time, faded by `Fraction`s that are rounded down."""
    unit = terms.domain.unit
    assert unit is not None
    gram = np.zeros((DIM, DIM), dtype=object)
    total = np.zeros(DIM, dtype=object)
    fade = Fraction(terms.fade())
    floor = np.vectorize(lambda value: math.floor(value * fade), otypes=[object])
    for block in blocks:
        gram, total = floor(gram), floor(total)
        for row in block:
            inside = terms.domain.whole(Block(row[None, :]), unit=unit)[0].astype(int).astype(object)
            gram = gram + np.outer(inside, inside)
            fine = terms.domain.whole(Block(row[None, :]), unit=sum_unit(terms.domain))[0]
            total = total + np.array([int(entry) for entry in fine], dtype=object)
    return gram, total


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.sampled_from(SIZES), min_size=1, max_size=12),
    cut=st.integers(1, 5),
    forget=st.sampled_from([1.0, 0.999, 0.8, 0.01]),
    at=st.sampled_from([None, 2.0]),
)
def test_sums_are_those_of_python_s_whole_numbers(
    seed: int, sizes: list[float], cut: int, forget: float, at: float | None
) -> None:
    rng = np.random.default_rng(seed)
    rows = np.vstack([person(DIM, rng, size, 1) for size in sizes])
    terms = terms_of(forget=forget, at=None if at is None else np.full(DIM, at))
    blocks = [rows[start : start + cut] for start in range(0, len(rows), cut)]
    found = Sums.none(terms)
    for block in blocks:
        found = found.and_rows(block, terms)
    gram, total = by_hand(blocks, terms)
    assert found.gram.dtype == found.total.dtype == np.int64
    assert (found.gram == gram).all() and (found.total == total).all()
    assert np.array_equal(found.gram, found.gram.T)
    weight = sum(len(block) * Fraction(terms.fade()) ** j for j, block in enumerate(reversed(blocks)))
    assert found.weight == pytest.approx(float(weight), rel=1e-14)


def varied(rows: Array) -> dict[str, Array]:
    """The same rows, which single precision holds, in other places and forms."""
    room = np.empty(rows.size + 3)
    shifted = room[3:].reshape(rows.shape)
    shifted[:] = rows
    wide = np.zeros((len(rows), 2 * rows.shape[1] + 1))
    wide[:, 1::2] = rows
    return {
        "elsewhere": shifted,
        "every other column": wide[:, 1::2],
        "by columns": np.asfortranarray(rows),
        "single precision": rows.astype(np.float32),
        "the other way round": rows[::-1],
    }


@pytest.mark.parametrize("at", [None, 1.5])
def test_order_form_and_place_of_rows_do_not_matter_to_the_last_bit(at: float | None) -> None:
    rows = falling(700, DIM).astype(np.float32).astype(np.float64)
    terms = terms_of(at=None if at is None else np.full(DIM, at))
    whole = Sums.of(rows, terms)
    for other in varied(rows).values():
        found = Sums.of(other, terms)
        assert np.array_equal(found.gram, whole.gram) and np.array_equal(found.total, whole.total)
    # A sum in floating point does depend on it.
    inside = dense(terms.domain, Block(rows))
    assert not np.array_equal(np.cumsum(inside, axis=0)[-1], np.cumsum(inside[::-1], axis=0)[-1])


@pytest.mark.parametrize("cut", [1, 7, 64, 129, 700])
@pytest.mark.parametrize("store", [np.asarray, sp.csr_array])
def test_where_blocks_end_does_not_matter_to_what_is_released(cut: int, store: Any) -> None:
    rows, terms = store(falling(700, DIM)), terms_of()
    whole, cut_up = (
        run(
            GramTracker(2, terms),
            rows,
            cut=size,
            mechanism=Gaussian(multiplier=2.0, ledger=Ledger(epsilon=1e4, delta=1e-6), noise=Noise.seeded(1)),
        )
        for size in (700, cut)
    )
    assert same(cut_up.public, whole.public)


def test_a_tree_and_a_sum_agree_to_the_last_bit() -> None:
    rows, terms = falling(64, DIM), terms_of()
    heard = Listening(KNOWN)
    run(TreeTracker(2, terms, horizon=8), rows, cut=8, mechanism=heard)
    last = next(public for label, _, _, public in heard.heard if label.startswith("stretch of 8 blocks: products"))
    assert np.array_equal(last, run(GramTracker(2, terms), rows, cut=3).public.gram)


@pytest.mark.parametrize("store", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("at", [None, 20.0])
@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_columns_of_products_are_symmetric_to_the_last_bit(store: Any, at: float | None, width: int) -> None:
    """Otherwise the difference of two mirrored entries would be public without any noise."""
    rng = np.random.default_rng(0)
    domain = Domain(dim=DIM, radius=3.0, center=None if at is None else at * rng.standard_normal(DIM) / 3)
    rows = store((rng.standard_normal((3000, DIM)) * (rng.random((3000, DIM)) < 0.5)) * 1e-3 + (0 if at is None else at / 9))
    gram = np.hstack(list(gram_columns(as_block(rows), width=width, domain=domain)))
    assert np.array_equal(gram, gram.T)
    assert np.array_equal(gram, np.hstack(list(gram_columns(as_block(rows), width=DIM, domain=domain))))


@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_columns_of_products_are_symmetric_whatever_is_rounded(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taking a center off is exact to a hundred bits. With an error that is not symmetric in place of that, both still agree."""
    real = CenterTerms._off

    def off_by_the_row(ends: CenterTerms, products: Any, rows: slice, columns: slice) -> Array:
        return real(ends, products, rows, columns) + np.arange(rows.start, rows.stop)[:, None]

    monkeypatch.setattr(CenterTerms, "_off", off_by_the_row)
    rows, domain = sp.csr_array(falling(30, DIM)), Domain(dim=DIM, radius=3.0, center=np.full(DIM, 0.3))
    gram = np.hstack(list(gram_columns(as_block(rows), width=width, domain=domain)))
    assert np.array_equal(gram, gram.T)


MAKES: dict[str, Any] = {
    "gram": lambda terms: GramTracker(2, terms),
    "tree": lambda terms: TreeTracker(2, terms, horizon=16),
    "sliced": lambda terms: SlicedTracker(rank=2, terms=terms, oversample=0, columns=2),
}


@st.composite
def neighbouring_streams(draw: st.DrawFn) -> tuple[SumTerms, Any, Any]:
    """Terms, and two streams of hostile rows in blocks of three that differ in the rows of one person."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    neighbours = draw(st.sampled_from([Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE]))
    most, sparse = draw(st.integers(1, 4)), draw(st.booleans())
    # With a row of zeros in the place of a blanked one, there is no center.
    centered = neighbours is Neighbours.REPLACE_ONE and draw(st.booleans())
    rows = np.vstack([person(DIM, rng, size, 1) for size in rng.choice(SIZES, 24)])
    places = [3 * block + int(rng.integers(3)) for block in draw(st.permutations(range(8)))[:most]]
    other = rows.copy()
    rows[places] = person(DIM, rng, draw(st.sampled_from(SIZES)), most)
    other[places] = 0.0
    if neighbours is Neighbours.REPLACE_ONE:
        other[places] = -rows[places] if draw(st.booleans()) else person(DIM, rng, draw(st.sampled_from(SIZES)), most)
    terms = terms_of(
        draw(st.sampled_from([0.5, 1.0, 3.0])),
        neighbours=neighbours,
        person_blocks=most,
        forget=draw(st.sampled_from([1.0, 0.99, 0.7])),
        at=rng.standard_normal(DIM) * draw(st.sampled_from([0.1, 5.0])) if centered else None,
    )
    return (terms, sp.csr_array(rows), sp.csr_array(other)) if sparse else (terms, rows, other)


@settings(max_examples=200)
@given(case=neighbouring_streams(), name=st.sampled_from(sorted(MAKES)), most=st.sampled_from([1 << 28, 4]))
def test_neighbours_are_no_further_apart_than_is_said(case: tuple[SumTerms, Any, Any], name: str, most: int) -> None:
    """Of values that are handed to a release, whatever rounds them on the way; also where units get longer, from four rows on."""
    terms, one, other = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums, "_MOST_ROWS", most)
        first, second = Listening(KNOWN), Listening(KNOWN)
        for rows, heard in ((one, first), (other, second)):
            run(MAKES[name](terms), rows, cut=3, mechanism=heard)
    for (_, _, sensitivity, value), (_, _, _, near) in zip(first.heard, second.heard, strict=True):
        assert float(np.linalg.norm(value - near)) <= sensitivity * (1 + 1e-12)
        assert value.ndim == 1 or np.array_equal(value, value.T)


@settings(max_examples=100)
@given(
    seed=st.integers(0, 2**32), forget=st.sampled_from([0.99, 0.9, 0.5]), cuts=st.lists(st.booleans(), min_size=1, max_size=40)
)
def test_what_fading_adds_is_counted(seed: int, forget: float, cuts: list[bool]) -> None:
    """Against exact fractions: whole sums of any size, faded and joined and brought to longer units, come apart by no more."""
    rng, terms = np.random.default_rng(seed), terms_of(forget=forget)
    start = rng.integers(-(2**61), 2**61, (2, 1, 1))
    pair = [Sums(gram=array, total=array[0], weight=1.0) for array in start]
    exact = Fraction(int(start[0, 0, 0])) - Fraction(int(start[1, 0, 0]))
    for coarser in cuts:
        if coarser and pair[0].bits < 20:
            pair = [one._coarser(one.bits + 1) for one in pair]
        else:
            pair = [one._faded(terms.fade()) for one in pair]
            exact *= Fraction(terms.fade())
    distance = (int(pair[0].gram[0, 0]) - int(pair[1].gram[0, 0])) * 2 ** pair[0].bits
    assert abs(distance - exact) <= Fraction(pair[0].apart) * 2 ** pair[0].bits
    assert pair[0].apart <= 1 / (1 - terms.fade()) + 2


def test_what_fading_adds_is_no_more_than_it_must_be() -> None:
    """Rounding that is left out of the account would be noticed: some neighbours come apart by nearly all of it."""
    terms, worst = terms_of(forget=0.9), 0.0
    rng = np.random.default_rng(1)
    array = rng.integers(-(2**40), 2**40, (200, 200))
    one, other = (
        Sums(gram=array, total=array[0], weight=1.0),
        Sums(gram=array + rng.integers(-50, 50, array.shape), total=array[0], weight=1.0),
    )
    exact = (one.gram - other.gram).astype(float)
    for _ in range(3):
        one, other, exact = one._faded(terms.fade()), other._faded(terms.fade()), exact * terms.fade()
        worst = float(np.abs((one.gram - other.gram) - exact).max())
        assert 0.8 * one.apart < worst <= one.apart


@pytest.mark.parametrize("forget", [1.0, 0.9])
def test_more_rows_than_an_int64_has_room_for_are_added_up_in_longer_units(
    forget: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, terms = np.tile(falling(64, DIM), (50, 1)), terms_of(forget=forget)
    exact = run(GramTracker(2, terms), rows, cut=64)
    monkeypatch.setattr(sums, "_MOST_ROWS", 100)
    held = GramTracker(2, terms).start(DIM)
    for start in range(0, len(rows), 64):
        held = GramTracker(2, terms).step(held, rows[start : start + 64], KNOWN)
    assert held.held.bits == (5 if forget == 1.0 else 2)
    assert np.abs(held.held.gram).max() < 100 << 34
    unit = terms.domain.unit
    assert unit is not None
    found = held.held.gram * (2.0**held.held.bits * unit**2)
    # A unit for each of 50 blocks, and what fading and longer units cost.
    assert np.abs(found - exact.public.gram).max() <= (50 + 12) * 2**held.held.bits * unit**2
    with pytest.raises(ValueError, match="a block of a private stream must have at most 100 rows, got 101"):
        GramTracker(2, terms).step(held, rows[:101], KNOWN)


def test_a_long_sum_does_not_overflow() -> None:
    """Rows on the sphere, as if 2^28 blocks had been like the first: what is held is the exact number, and goes on."""
    row = np.zeros((1, DIM))
    row[0, 0] = 1.0
    terms = terms_of(1.0)
    one = Sums.of(row, terms)
    many = 2**28
    held = Sums(gram=one.gram * many, total=one.total * many, weight=float(many))
    after = held.and_rows(row, terms)
    assert after.bits == 1
    assert int(after.gram[0, 0]) == (int(one.gram[0, 0]) * many) // 2 + int(one.gram[0, 0]) // 2
    assert int(after.total[0]) == (int(one.total[0]) * many) // 2 + int(one.total[0]) // 2


def heard_values(tracker: SketchTracker[Any], rows: Any, seed: int) -> list[tuple[str, float, Array]]:
    through: Mechanism = Gaussian(multiplier=2.0, ledger=Ledger(epsilon=1e4, delta=1e-6), noise=Noise.seeded(seed))
    heard = Listening(through)
    run(tracker, rows, cut=9, mechanism=heard)
    return [(label, sensitivity, public) for label, _, sensitivity, public in heard.heard]


@pytest.mark.parametrize("name", MAKES)
def test_what_is_released_is_a_whole_number_of_public_steps(name: str) -> None:
    """The same steps whatever the rows are, so that no digit tells of them."""
    for rows in (falling(60, DIM), falling(60, DIM, seed=3) * 1e-3, np.full((60, DIM), math.pi)):
        for label, sensitivity, public in heard_values(MAKES[name](terms_of(forget=0.9)), rows, 5):
            share = 0.95 if label.endswith("products") else 0.05
            steps = public / step_of(sensitivity, public.size, multiplier=2.0 / math.sqrt(share))
            assert np.array_equal(steps, np.rint(steps))
            assert public.ndim == 1 or np.array_equal(public, public.T)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", MAKES)
@pytest.mark.parametrize("store", [np.asarray, sp.csr_array])
def test_rows_that_are_not_finite_are_refused_and_leave_no_trace(bad: float, name: str, store: Any) -> None:
    tracker, rows = MAKES[name](terms_of()), falling(9, DIM)
    state = tracker.step(tracker.start(DIM), store(rows), KNOWN)
    rows[3, 2] = bad
    heard = Listening(KNOWN)
    with pytest.raises(ValueError, match="rows must be finite, and not too large to square"):
        tracker.step(state, store(rows), heard)
    assert heard.heard == []


def test_whole_numbers_of_any_size_survive_being_taken_apart() -> None:
    gram = np.array([[2**62 - 1, -(2**53) - 1], [-(2**53) - 1, 7]])
    held = Sums(gram=gram, total=np.array([2**60 + 1, -1]), weight=3.0, apart=1.25, bits=2)
    tree, arrays = taken_apart(held)
    again = restored(tree, arrays)
    assert same(again, held) and again.gram.dtype == np.int64
    with pytest.raises(ValueError, match="the same kind of numbers"):
        Sums(gram=gram, total=np.zeros(2), weight=1.0)
