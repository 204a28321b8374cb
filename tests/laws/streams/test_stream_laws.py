"""The guarantee of a whole stream: whatever one person's rows are, all that is ever released stays within the budget.

The same theorem as for a fit, over blocks, synchronisations and trees. A person of the stream has rows in several blocks, which
become other rows (replace-one) or count as nothing (zero-out); see `laws.transcripts` for how the mu of it is found.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil import StreamingPCA
from eigenveil.core import counts
from eigenveil.core.accounting import mu_for
from eigenveil.core.domain import Domain
from eigenveil.core.rows import Block
from eigenveil.linalg import Array
from laws.parties.transcripts import realised_mu
from laws.strategies import SIZES, person, torn

DIM, BLOCK, BLOCKS = 4, 3, 7
# A row that is to count as nothing, and still be there: the law's own mark, which no other row has.
BLANK = np.full(DIM, 12345.678)
BUDGET: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5}


def blank_rows_count_as_nothing(patch: pytest.MonkeyPatch) -> None:
    """Make marked rows zero wherever dense rows are brought into a domain, after the center is taken off, and in no cell."""
    real, weights_of = Domain.measured, counts._weights

    def measured(domain: Domain, block: Block, out: Array) -> tuple[Array, Array]:
        blank = (np.asarray(block.values) == BLANK).all(axis=1)
        rows, squares = real(domain, block, out)
        rows[blank] = 0.0
        return rows, np.where(blank, 0.0, squares)

    def weights(block: Block, domain: Domain) -> Array | None:
        blank = (np.asarray(block.values) == BLANK).all(axis=1)
        given = weights_of(block, domain)
        return np.where(blank, 0.0, 1.0 if given is None else given) if blank.any() else given

    patch.setattr(Domain, "measured", measured)
    patch.setattr(counts, "_weights", weights)


def followed(options: dict[str, Any], rows: Any, syncs: tuple[int, ...]) -> Callable[[], object]:
    """A run over the stream that synchronises after the given numbers of rows, and at the end."""

    def run() -> None:
        pca = StreamingPCA(2, random_state=1, **BUDGET, **options)
        start = 0
        for stop in (*syncs, rows.shape[0]):
            if stop > start:
                pca.partial_fit(rows[start:stop]).sync()
                start = stop
        assert pca.ledger_ is not None
        assert pca.ledger_.epsilon() <= 1.0 + 1e-9
        assert pca.components_.shape[1] == DIM

    return run


def in_blocks(draw: st.DrawFn, count: int) -> list[int]:
    """Places of one person's rows: one in each of `count` blocks, often neighbouring ones."""
    first = draw(st.integers(0, BLOCKS - count))
    blocks = draw(st.sampled_from([range(first, first + count), None]))
    chosen = blocks if blocks is not None else draw(st.permutations(range(BLOCKS)))[:count]
    return [BLOCK * block + draw(st.integers(0, BLOCK - 1)) for block in chosen]


@st.composite
def streams(draw: st.DrawFn) -> tuple[dict[str, Any], Any, Any, tuple[int, ...]]:
    """Options, two neighbouring streams, and when to synchronise."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    most = draw(st.integers(1, 4))
    neighbours = draw(st.sampled_from(["zero-out", "replace-one"]))
    publish = draw(st.sampled_from(["sync", "block", "continual"]))
    rows = np.vstack([person(DIM, rng, size, 1) for size in rng.choice([0.1, 0.5, 1.0, 3.0], BLOCK * BLOCKS)])
    places = in_blocks(draw, most)
    one, other = rows.copy(), rows.copy()
    one[places] = person(DIM, rng, draw(st.sampled_from(SIZES)), most)
    other[places] = BLANK
    sparse = False
    if neighbours == "replace-one":
        other[places] = -one[places] if draw(st.booleans()) else person(DIM, rng, draw(st.sampled_from(SIZES)), most)
        sparse = draw(st.booleans())
    missing = draw(st.sampled_from(["refuse", "refuse", "counts", "drop", "fill", *([] if sparse else ["groups"])]))
    if missing != "refuse":
        torn_rows = torn(rows, rng)
        mine, others = torn(one[places], rng), torn(other[places], rng)
        if neighbours == "zero-out":
            # A row that lacks everything counts as nothing, unless public values take its place.
            others = np.full_like(others, np.nan) if missing != "fill" else other[places]
        one, other = torn_rows.copy(), torn_rows.copy()
        one[places], other[places] = mine, others
    options: dict[str, Any] = {
        "missing": missing,
        "missing_groups": "0,1;2" if missing == "groups" else None,
        "missing_fill": [0.0, 1.0, -3.0, 1e8] if missing == "fill" else None,
        "publish": publish,
        "neighbours": neighbours,
        "block_size": BLOCK,
        "person_blocks": most,
        "center": draw(st.sampled_from([None, "private"])),
        "forget": draw(st.sampled_from([1.0, 0.8])),
        "adapt": draw(st.sampled_from([None, (0.05, 0.3)])),
        "row_bound": draw(st.sampled_from([0.5, 2.0])),
        "horizon": BLOCK * (BLOCKS + 4) if publish == "continual" else None,
        "oversample": draw(st.sampled_from([0, 2])),
    }
    if neighbours == "replace-one":
        # A box would clip the mark of a blank row.
        options["column_bounds"] = draw(st.sampled_from([None, (-0.5, 1.0), ([-1.0] * DIM, [0.0] * DIM)]))
    # Also in the middle of a block, which ends it early and leaves the boundaries where they are.
    syncs = tuple(sorted(draw(st.lists(st.integers(1, BLOCK * BLOCKS - 1), max_size=3, unique=True))))
    tables = (sp.csr_array(one), sp.csr_array(other)) if sparse else (one, other)
    return options, *tables, syncs


@settings(max_examples=250)
@given(case=streams())
def test_a_whole_stream_stays_within_its_budget(case: tuple[dict[str, Any], Any, Any, tuple[int, ...]]) -> None:
    options, one, other, syncs = case
    with pytest.MonkeyPatch.context() as patch:
        blank_rows_count_as_nothing(patch)
        found = realised_mu(followed(options, one, syncs), followed(options, other, syncs))
    assert found <= mu_for(1.0, 1e-5) * (1 + 1e-9)


@settings(max_examples=100)
@given(case=streams(), repeats=st.integers(0, BLOCK * BLOCKS), seed=st.integers(0, 2**32))
def test_a_person_may_have_any_number_of_rows_if_they_are_named(
    case: tuple[dict[str, Any], Any, Any, tuple[int, ...]], repeats: int, seed: int
) -> None:
    """However many rows a person has, wherever they are: those that count are within the budget."""
    options, one, other, syncs = case
    if sp.issparse(one):
        one, other = one.toarray(), other.toarray()
    rng = np.random.default_rng(seed)
    who = np.arange(BLOCK * BLOCKS)
    theirs = (one != other).any(axis=1)
    theirs[rng.permutation(BLOCK * BLOCKS)[:repeats]] = True
    who[theirs] = 99
    one, other = one.copy(), other.copy()
    # All of this person's rows differ, not only those that a promise of the caller covers.
    one[theirs] = person(DIM, rng, 3.0, int(theirs.sum()))
    other[theirs] = BLANK if options["neighbours"] == "zero-out" else -one[theirs]
    tables = [pd.DataFrame(rows, columns=list("abcd")).assign(who=who) for rows in (one, other)]
    with pytest.MonkeyPatch.context() as patch:
        blank_rows_count_as_nothing(patch)
        found = realised_mu(*(followed(options | {"person": "who"}, table, syncs) for table in tables))
    assert found <= mu_for(1.0, 1e-5) * (1 + 1e-9)


@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
@pytest.mark.parametrize("publish", ["sync", "block", "continual"])
def test_a_stream_that_waits_for_more_rows_stays_within_its_budget(publish: str, neighbours: str) -> None:
    """The search goes on among the rows of many blocks, of which a person has one, before or after it paused."""
    rng = np.random.default_rng(3)
    budget: dict[str, Any] = {"epsilon": 30.0, "delta": 1e-5}
    options: dict[str, Any] = budget | {"publish": publish, "neighbours": neighbours, "block_size": 20}
    rows = rng.standard_normal((400, DIM)) + 1e7
    if publish == "continual":
        options["horizon"] = len(rows)

    def run(table: Array) -> Callable[[], object]:
        def follow() -> None:
            pca: Any = StreamingPCA(2, random_state=1, **options).partial_fit(table[:100])
            assert pca.searching_
            pca.partial_fit(table[100:]).sync()
            assert not pca.searching_
            assert max(charge.label.count("seventh") for charge in pca.ledger_.charges) == 1

        return follow

    for place in (0, 60, 390):
        one, other = rows.copy(), rows.copy()
        one[place], other[place] = 1e200, BLANK if neighbours == "zero-out" else -1e200
        with pytest.MonkeyPatch.context() as patch:
            blank_rows_count_as_nothing(patch)
            found = realised_mu(run(one), run(other))
        assert found <= mu_for(**budget) * (1 + 1e-9)


def canary(places: list[int]) -> tuple[Array, Array]:
    """A stream of zeros, and the same with rows on the sphere at these places."""
    rows = np.zeros((BLOCK * 4, DIM))
    marked = rows.copy()
    marked[places] = np.eye(DIM)[0]
    return marked, rows


# Who uses how much of the budget. The tree releases left children only, so nobody in several blocks is in all it charges for.
REACHED: list[tuple[dict[str, Any], list[int], float]] = [
    ({"publish": "sync", "person_blocks": 1}, [4], 1.0),
    ({"publish": "sync", "person_blocks": 3}, [0, 3, 6], 1.0),
    ({"publish": "block", "person_blocks": 1}, [10], 1.0),
    ({"publish": "block", "person_blocks": 3}, [0, 3, 9], 1.0),
    ({"publish": "continual", "person_blocks": 1, "horizon": BLOCK * 4}, [0], 1.0),
    ({"publish": "continual", "person_blocks": 4, "horizon": BLOCK * 4}, [0, 3, 6, 9], 0.75),
]


@pytest.mark.parametrize(("options", "places", "share"), REACHED, ids=str)
def test_the_bound_is_reached(options: dict[str, Any], places: list[int], share: float) -> None:
    """Somebody uses the whole budget: the accounting is tight, not merely safe."""
    options = {"block_size": BLOCK, "center": None, "row_bound": 1.0, **options}
    found = realised_mu(*(followed(options, rows, ()) for rows in canary(places)))
    # A row of four columns is a whole number of units, and at most a unit shorter than the radius, which has 2^16 of them.
    assert share * mu_for(1.0, 1e-5) * (1 - 2.0**-14) <= found <= mu_for(1.0, 1e-5) * (1 + 1e-9)


@pytest.mark.parametrize("publish", ["sync", "block", "continual"])
def test_a_person_in_more_blocks_than_declared_is_convicted(publish: str) -> None:
    """The law can fail: the assumption that it rests on is one that matters."""
    options: dict[str, Any] = {"block_size": BLOCK, "center": None, "row_bound": 1.0, "publish": publish}
    if publish == "continual":
        options["horizon"] = BLOCK * 4
    found = realised_mu(*(followed(options, rows, ()) for rows in canary([0, 3, 6])))
    assert found > 1.5 * mu_for(1.0, 1e-5)


def test_rows_that_were_not_released_leave_no_trace() -> None:
    """Two streams that differ in what is held back show the same, to the last bit."""
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((60, DIM))
    shown = []
    for rest in (rng.standard_normal((20, DIM)), np.full((20, DIM), 7.0)):
        pca = StreamingPCA(2, random_state=1, row_bound=2.0, block_size=10, **BUDGET).partial_fit(rows).sync()
        pca.partial_fit(rest)
        shown.append((pca.components_.tobytes(), pca.mean_.tobytes(), pca.explained_variance_.tobytes(), str(pca.guarantee_)))
    assert shown[0] == shown[1]


@pytest.mark.parametrize("publish", ["block", "continual"])
def test_ending_a_block_early_brings_no_two_rows_of_one_person_together(publish: str) -> None:
    options: dict[str, Any] = {"block_size": BLOCK, "center": None, "row_bound": 1.0, "publish": publish, "person_blocks": 2}
    if publish == "continual":
        options["horizon"] = BLOCK * 8
    for early in range(1, BLOCK):
        runs = (followed(options, rows, (early,)) for rows in canary([BLOCK - 1, BLOCK]))
        assert realised_mu(*runs) <= mu_for(1.0, 1e-5) * (1 + 1e-9)


def in_other_forms(rows: Array, rng: np.random.Generator) -> dict[str, Array]:
    """The same rows, which single precision holds: elsewhere in memory, as other numbers, and in another order within blocks."""
    room = np.empty(rows.size + 1)
    moved = room[1:].reshape(rows.shape)
    moved[:] = rows
    order = np.concatenate([start + rng.permutation(BLOCK) for start in range(0, len(rows), BLOCK)])
    return {
        "elsewhere": moved,
        "by columns": np.asfortranarray(rows),
        "single precision": rows.astype(np.float32),
        "another order": rows[order],
        "elsewhere, in another order": moved[order],
    }


@pytest.mark.parametrize("publish", ["sync", "block", "continual"])
@pytest.mark.parametrize("forget", [1.0, 0.9])
@pytest.mark.parametrize("center", ["private", None])
def test_nothing_but_the_rows_of_each_block_decides_what_is_released(publish: str, forget: float, center: str | None) -> None:
    """To the last bit, for the same noise: batches, places in memory, kinds of numbers, and the order within a block do not."""
    rng = np.random.default_rng(8)
    rows = (rng.standard_normal((BLOCK * BLOCKS, DIM)) * [3.0, 2.0, 1.0, 0.5] + 1).astype(np.float32).astype(float)
    options: dict[str, Any] = {"publish": publish, "forget": forget, "center": center, "row_bound": 4.0}
    if publish == "continual":
        options["horizon"] = len(rows)

    def shown(values: Array, cut: int) -> tuple[bytes, ...]:
        pca = StreamingPCA(2, random_state=1, block_size=BLOCK, **BUDGET, **options)
        for start in range(0, len(values), cut):
            pca.partial_fit(values[start : start + cut])
        pca.sync()
        return tuple(array.tobytes() for array in (pca.components_, pca.mean_, pca.explained_variance_, pca.singular_values_))

    expected = shown(rows, len(rows))
    for cut in (1, 2, 5):
        assert shown(rows, cut) == expected
    for other in in_other_forms(rows, rng).values():
        assert shown(other, 4) == expected
    assert shown(np.where(np.arange(len(rows))[:, None] == 4, rows / 10, rows), 4) != expected
