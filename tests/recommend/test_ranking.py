"""Rankings and their quality: hand-made answers, and the fast versions against slow, obvious ones."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from eigenveil.linalg import Array
from eigenveil.recommend.item_space import Quality, evaluate, ndcg, popularity_scores, recall, split, top_items
from recommend.histories_of_users import histories, random_histories, tastes


def obvious_top(scores: Array, seen: Array, n: int) -> list[list[int]]:
    """Sort everything that is left, and cut."""
    lists = []
    for row, has in zip(scores, seen, strict=True):
        best = sorted((-score, item) for item, score in enumerate(row) if not has[item])[:n]
        lists.append([item for _, item in best] + [-1] * (n - len(best)))
    return lists


def obvious_quality(lists: list[list[int]], test: Array, n: int) -> tuple[float, float]:
    """Recall and NDCG, user by user and place by place."""
    recalls, gains = [], []
    for found, row in zip(lists, test, strict=True):
        wanted = set(np.flatnonzero(row).tolist())
        if wanted:
            hits = [item in wanted for item in found[:n]]
            recalls.append(sum(hits) / len(wanted))
            dcg = sum(1 / math.log2(place + 2) for place, hit in enumerate(hits) if hit)
            gains.append(dcg / sum(1 / math.log2(place + 2) for place in range(min(n, len(wanted)))))
    return float(np.mean(recalls)), float(np.mean(gains))


@given(data=st.data(), seen=histories(), n=st.integers(1, 12))
def test_the_best_unseen_items_are_those_of_a_full_sort(data: st.DataObject, seen: Array, n: int) -> None:
    # Few different scores, so that ties are everywhere, at the cut too.
    scores = data.draw(arrays(np.float64, seen.shape, elements=st.sampled_from([-1e300, -1.0, -0.0, 0.0, 0.5, 1e300])))
    kept = scores.copy()
    found = top_items(scores, sp.csr_array(seen), n=n)
    assert found.shape == (len(seen), n)
    assert found.tolist() == obvious_top(scores, seen, n)
    assert np.array_equal(scores, kept)
    assert top_items(scores, None, n=n).tolist() == obvious_top(scores, np.zeros_like(seen), n)


def test_long_lists_of_ties_are_cut_at_the_lowest_numbers() -> None:
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 4, (50, 700)).astype(np.float64)
    seen = random_histories(50, 700, share=0.1, rng=rng)
    for n in (1, 20, 300, 699, 700, 800):
        assert top_items(scores, seen, n=n).tolist() == obvious_top(scores, seen.toarray(), n)
    smooth = rng.standard_normal((50, 700))
    assert top_items(smooth, seen, n=20).tolist() == obvious_top(smooth, seen.toarray(), 20)


def test_lists_made_by_hand() -> None:
    scores = np.array([[3.0, 1.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0], [1.0, 2.0, 3.0, 4.0]])
    seen = sp.csr_array(np.array([[1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 1, 1]], dtype=np.float64))
    assert top_items(scores, seen, n=3).tolist() == [[2, 3, 1], [0, 2, 3], [-1, -1, -1]]
    assert top_items(scores, None, n=5).tolist() == [[0, 2, 3, 1, -1], [0, 1, 2, 3, -1], [3, 2, 1, 0, -1]]
    assert top_items(np.zeros((0, 4)), None, n=2).shape == (0, 2)
    assert top_items(scores.astype(np.float32), seen, n=3).tolist() == [[2, 3, 1], [0, 2, 3], [-1, -1, -1]]


def test_a_stored_zero_is_not_seen() -> None:
    seen = sp.csr_array((np.array([0.0, 1.0]), np.array([0, 1]), np.array([0, 2])), shape=(1, 3))
    assert top_items(np.array([[3.0, 2.0, 1.0]]), seen, n=2).tolist() == [[0, 2]]


@given(dense=histories(), share=st.floats(0.01, 0.99), seed=st.integers(0, 99))
def test_a_split_keeps_every_interaction_once_and_something_of_everybody(dense: Array, share: float, seed: int) -> None:
    matrix = sp.csr_array(dense)
    train, test = split(matrix, share=share, rng=np.random.default_rng(seed))
    assert np.array_equal((train + test).toarray(), dense)
    assert train.multiply(test).nnz == 0
    for part in (train, test):
        part.check_format(full_check=True)
        assert part.shape == matrix.shape and part.has_canonical_format and part.dtype == np.float64
    for row, held in zip(dense, test.toarray(), strict=True):
        degree, tested = int(row.sum()), int(held.sum())
        assert tested == (min(max(math.floor(share * degree + 0.5), 1), degree - 1) if degree >= 2 else 0)
    assert np.array_equal(matrix.toarray(), dense)


def test_a_split_is_the_same_for_the_same_generator_and_fair_to_every_place() -> None:
    """One of four is held out: each place is chosen a quarter of the time, at level 1e-6 by Hoeffding's bound."""
    matrix, count = sp.csr_array(np.ones((40_000, 4))), 40_000
    one, other = (split(matrix, share=0.25, rng=np.random.default_rng(7))[1] for _ in range(2))
    assert np.array_equal(one.indices, other.indices)
    allowed = math.sqrt(math.log(2 * 4 / 1e-6) / (2 * count))
    assert np.abs(one.mean(axis=0) - 0.25).max() < allowed
    # A choice that favours one place by a tenth of the time would be noticed.
    assert allowed < 0.025


@given(test=histories(), data=st.data())
def test_recall_and_ndcg_are_what_counting_by_hand_gives(test: Array, data: st.DataObject) -> None:
    count, dim = test.shape
    n = data.draw(st.integers(1, 6))
    width = n + data.draw(st.integers(0, 3))
    orders = [data.draw(st.permutations(range(dim)))[:width] for _ in range(count)]
    lists = [order + [-1] * (width - len(order)) for order in orders]
    found, held = np.array(lists), sp.csr_array(test)
    if not test.any():
        with pytest.raises(ValueError, match="no user has a held-out item"):
            recall(found, held, n=n)
        return
    expected = obvious_quality(lists, test, n)
    assert recall(found, held, n=n) == pytest.approx(expected[0], abs=1e-12)
    assert ndcg(found, held, n=n) == pytest.approx(expected[1], abs=1e-12)


def test_nothing_found_is_nobodys_last_item() -> None:
    """-1 in the list of one user must not be taken for the last item of the user before."""
    test = sp.csr_array(np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]))
    assert recall(np.array([[-1], [-1]]), test, n=1) == 0.0 == ndcg(np.array([[-1], [-1]]), test, n=1)


@given(dense=histories(least_users=2), seed=st.integers(0, 9), block=st.integers(1, 9), n=st.integers(1, 6))
def test_evaluation_in_blocks_is_that_of_everybody_at_once(dense: Array, seed: int, block: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    train, test = split(sp.csr_array(dense), rng=rng)
    weights = rng.integers(0, 3, (dense.shape[1],) * 2).astype(np.float64)
    if test.nnz == 0:
        with pytest.raises(ValueError, match="test is empty: no user has a held-out item"):
            evaluate(lambda rows: rows @ weights, train, test, n=n)
        return
    lists = obvious_top(train.toarray() @ weights, train.toarray(), n)
    expected = obvious_quality(lists, test.toarray(), n)
    sizes = []

    def scorer(rows: sp.csr_array) -> Array:
        sizes.append(rows.shape[0])
        scores: Array = rows @ weights
        return scores

    quality = evaluate(scorer, train, test, n=n, block=block)
    assert max(sizes) <= block and sum(sizes) == quality.users == int((test.sum(axis=1) > 0).sum())
    assert (quality.recall, quality.ndcg) == pytest.approx(expected, abs=1e-12)
    assert evaluate(scorer, train, test, n=n) == quality


def test_evaluation_tells_a_good_scorer_from_popularity() -> None:
    rng = np.random.default_rng(3)
    matrix = tastes(300, 60, groups=4, rng=rng)
    train, test = split(matrix, rng=rng)
    popular = popularity_scores(train)
    assert np.array_equal(popular, train.toarray().sum(axis=0))
    dull = evaluate(lambda rows: np.tile(popular, (rows.shape[0], 1)), train, test, n=10)
    products = (train.T @ train).toarray()
    good = evaluate(lambda rows: np.asarray(rows @ products), train, test, n=10)
    assert isinstance(good, Quality) and good.users == 300
    assert good.recall > 2 * dull.recall and good.ndcg > 2 * dull.ndcg
