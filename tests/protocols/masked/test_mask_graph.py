"""Mask graphs: no choice of colluders, survivors and messages that are withheld gets a sum over too few, but for the stated
chance."""

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import chain, combinations, pairwise, product
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from eigenveil.protocols.masked.graph import MOST_ABORT, MaskGraph, abort_bound, mask_graph, separation_bound

Masks = NDArray[np.int64]  # (graphs, sites): the holders of each site, a bit for each.


def bits(places: tuple[int, ...]) -> int:
    return sum(1 << place for place in places)


def subsets(places: tuple[int, ...], least: int, most: int) -> Iterator[tuple[int, ...]]:
    return chain.from_iterable(combinations(places, size) for size in range(least, most + 1))


def every_graph(sites: int, holders: int) -> Masks:
    """All draws of all sites, which are equally likely."""
    draws = [
        [bits(drawn) for drawn in combinations([other for other in range(sites) if other != site], holders)]
        for site in range(sites)
    ]
    return np.array(list(product(*draws)), dtype=np.int64)


def some_graphs(sites: int, holders: int, count: int, rng: np.random.Generator) -> Masks:
    order = rng.random((count, sites, sites))
    order[:, np.arange(sites), np.arange(sites)] = 2.0
    found: Masks = (1 << order.argsort(axis=2)[:, :, :holders]).sum(axis=2)
    return found


def caught(graphs: Masks, *, survivors: int, colluders: int, threshold: int, loss: int) -> NDArray[np.bool_]:
    """The graphs in which an exhaustive search over colluders and survivors succeeds.

    It looks for too few honest survivors that have no holder among the other honest survivors, and whose seeds they and the
    colluders can recover.
    """
    sites = graphs.shape[1]
    everybody = tuple(range(sites))
    ones = np.array([number.bit_count() for number in range(1 << sites)])
    found = np.zeros(len(graphs), dtype=bool)
    for bad in combinations(everybody, colluders):
        for alive in subsets(everybody, survivors, sites):
            honest = tuple(site for site in alive if site not in bad)
            for some in subsets(honest, 1, survivors - colluders - loss - 1):
                others = bits(honest) & ~bits(some)
                known = bits(some) | bits(bad)
                theirs = graphs[:, some]
                found |= ((theirs & others == 0) & (ones[theirs & known] + 1 >= threshold)).all(axis=1)
    return found


# (sites, holders, survivors, colluders, threshold, loss)
TINY = [
    (5, 2, 4, 0, 2, 0),
    (5, 3, 4, 0, 2, 0),
    (5, 3, 5, 0, 3, 1),
    (5, 3, 4, 1, 2, 1),
    (5, 3, 5, 1, 3, 0),
    (6, 4, 5, 0, 3, 0),
    (6, 4, 5, 1, 3, 0),
    (6, 4, 5, 1, 4, 1),
    (6, 4, 5, 2, 3, 0),
    (6, 4, 6, 2, 3, 0),
]


def test_no_strategy_on_any_tiny_graph_beats_the_bound() -> None:
    telling = 0
    for sites, holders, survivors, colluders, threshold, loss in TINY:
        terms = {"survivors": survivors, "colluders": colluders, "threshold": threshold, "loss": loss}
        true = caught(every_graph(sites, holders), **terms).mean()
        bound = separation_bound(sites, holders=holders, **terms)
        assert true <= bound
        assert bound >= 0.5 or bound <= 1.06 * true
        telling += true > 0 and bound < 1
    assert telling >= 3


@pytest.mark.parametrize(
    ("sites", "holders", "survivors", "colluders", "threshold", "loss"),
    [(7, 5, 6, 0, 4, 0), (7, 5, 6, 1, 4, 1), (7, 5, 7, 2, 4, 0), (7, 4, 6, 0, 3, 1)],
)
def test_no_strategy_on_small_graphs_beats_the_bound(
    sites: int, holders: int, survivors: int, colluders: int, threshold: int, loss: int
) -> None:
    terms = {"survivors": survivors, "colluders": colluders, "threshold": threshold, "loss": loss}
    graphs = some_graphs(sites, holders, 4000, np.random.default_rng(0))
    seen, bound = caught(graphs, **terms).mean(), separation_bound(sites, holders=holders, **terms)
    assert seen <= bound + 5 * math.sqrt(bound / len(graphs))


@pytest.mark.parametrize(("sites", "survivors", "colluders", "holders"), [(60, 54, 1, 16), (60, 45, 1, 26), (100, 90, 2, 24)])
def test_the_bound_is_what_happens_where_one_site_alone_is_cut_off(
    sites: int, survivors: int, colluders: int, holders: int
) -> None:
    # With no loss, the hub does best to name as dead all who have one certain site for a holder.
    rest = sites - survivors + colluders
    rng, found, trials = np.random.default_rng(0), 0, 2000
    for _ in range(trials):
        order = rng.random((sites, sites))
        np.fill_diagonal(order, 2.0)
        drawn = order.argpartition(holders, axis=1)[:, :holders]
        found += np.bincount(drawn.ravel(), minlength=sites).min() <= rest
    seen, slack = found / trials, 5 * math.sqrt(found) / trials
    terms = {"survivors": survivors, "colluders": colluders, "holders": holders, "threshold": 8, "loss": 0}
    bound = separation_bound(sites, **terms)
    assert 0.1 < bound < 1
    assert seen - slack <= bound <= 1.5 * (seen + slack)
    # With two more survivors it would be another number, and that is told apart.
    assert separation_bound(sites, **(terms | {"survivors": survivors + 2})) < seen - slack


def run(rng: np.random.Generator, sites: int, holders: int) -> tuple[list[set[int]], set[int], set[int], set[tuple[int, int]]]:
    """Holders, colluders, survivors, and (from, to) for keys that the hub delivers."""
    drawn = [set(((rng.choice(sites - 1, holders, replace=False) + 1 + site) % sites).tolist()) for site in range(sites)]
    bad = set(rng.choice(sites, rng.integers(0, 3), replace=False).tolist())
    alive = set(rng.choice(sites, rng.integers(sites - 3, sites + 1), replace=False).tolist())
    often = rng.choice([0.5, 0.9, 1.0])
    return drawn, bad, alive, {(i, j) for i in range(sites) for j in range(sites) if rng.random() < often}


@pytest.mark.parametrize("holders", [1, 2, 3])
def test_what_masks_leave_open_are_sums_over_sets_without_holders_elsewhere(holders: int) -> None:
    """The lemma, by linear algebra: combinations of what honest survivors sent in which all unknown masks cancel."""
    rng, sites, threshold, open_sums = np.random.default_rng(holders), 7, 2, 0
    for _ in range(400):
        drawn, bad, alive, delivered = run(rng, sites, holders)
        honest = sorted(alive - bad)
        masks = {(i, j) for i in honest for j in honest if j in drawn[i] or (i in drawn[j] and (j, i) in delivered)}
        hidden = {i for i in honest if len((drawn[i] | {i}) & (alive | bad)) < threshold}
        pairs = sorted({(min(pair), max(pair)) for pair in masks})
        columns = [
            [(1.0 if i == pair[0] else -1.0) if i in pair and (i, sum(pair) - i) in masks else 0.0 for i in honest]
            for pair in pairs
        ] + [[float(i == own) for i in honest] for own in hidden]
        unknown = np.array(columns).reshape(-1, len(honest)).T
        free = len(honest) - (int(np.linalg.matrix_rank(unknown)) if unknown.size else 0)
        learned = [
            set(some)
            for some in subsets(tuple(honest), 1, len(honest))
            if not unknown[[honest.index(i) for i in some]].sum(axis=0).any()
        ]
        smallest = [some for some in learned if not any(less < some for less in learned)]
        # Nothing else cancels: these disjoint sums span all that does.
        assert len(smallest) == free
        assert sum(map(len, smallest)) == len(set().union(*smallest))
        for some in smallest:
            for i in some:
                assert not drawn[i] & (set(honest) - some)
                assert len((drawn[i] | {i}) & (some | bad)) >= threshold
        open_sums += len(smallest)
    assert open_sums > 50


def exactly(sites: int, *, survivors: int, colluders: int, holders: int, threshold: int, loss: int) -> Fraction:
    """The bound with whole numbers and every term of every tail."""
    least, total = survivors - colluders, Fraction(0)
    rest, ways = sites - least, comb(sites - 1, holders)
    for k in range(threshold - colluders, least - loss):
        b = least - k
        by_inside = comb(sites, k) * comb(sites - k, rest) * Fraction(comb(k - 1 + rest, holders), ways) ** k
        miss = Fraction(comb(sites - 1 - b, holders), ways)
        few = sum(comb(sites - b, j) * (1 - miss) ** j * miss ** (sites - b - j) for j in range(rest + 1))
        marked = k - 1 + colluders
        many = sum(
            comb(marked, j) * comb(sites - 1 - marked, holders - j) for j in range(threshold - 1, min(marked, holders) + 1)
        )
        by_shares = comb(sites, k) * comb(sites - k, colluders) * Fraction(many, ways) ** k
        total += min(by_inside, comb(sites, b) * few, by_shares, Fraction(1))
    return total


@st.composite
def settings_of(draw: st.DrawFn, most: int) -> dict[str, int]:
    sites = draw(st.integers(3, most))
    colluders = draw(st.integers(0, (sites - 1) // 3))
    survivors = draw(st.integers((sites + colluders) // 2 + 1, sites))
    return {"sites": sites, "survivors": survivors, "colluders": colluders}


@st.composite
def graphs_of(draw: st.DrawFn, most: int) -> dict[str, int]:
    found = draw(settings_of(most))
    holders = draw(st.integers(max(found["colluders"], 1), found["sites"] - 1))
    threshold = draw(st.integers(found["colluders"] + 1, holders + 1))
    loss = draw(st.integers(0, max(0, found["survivors"] - found["colluders"] - 1)))
    return found | {"holders": holders, "threshold": threshold, "loss": loss}


@given(graphs_of(40))
def test_the_bound_is_its_formula_rounded_up(given_: dict[str, int]) -> None:
    exact, bound = exactly(**given_), separation_bound(**given_)
    assert bound >= min(float(exact), 1.0)
    if exact < 1e-6:
        # Tails are bounded by geometric series, k of them at once.
        assert bound <= 1.2 * float(exact) ** 0.9 + 1e-290
    assert (bound == 0) == (exact == 0)


@given(graphs_of(300))
def test_what_helps_the_hub_never_lowers_the_bound(given_: dict[str, int]) -> None:
    bound = separation_bound(**given_)

    def other(**change: int) -> float:
        return separation_bound(**{**given_, **{name: given_[name] + by for name, by in change.items()}})

    assert other(loss=1) <= bound
    if given_["threshold"] <= given_["holders"]:
        assert other(threshold=1) <= bound
    if given_["survivors"] < given_["sites"]:
        assert other(survivors=1, loss=1) <= bound
    if given_["colluders"] > 0:
        assert other(colluders=-1, loss=1) <= bound


def test_too_few_holders_guarantee_nothing() -> None:
    terms = {"survivors": 900, "colluders": 1, "loss": 17}
    assert separation_bound(1000, holders=4, threshold=3, **terms) == 1.0
    assert separation_bound(1000, holders=14, threshold=8, **terms) > 0.5
    assert separation_bound(1000, holders=20, threshold=10, **terms) < 1e-12
    # A threshold that is too low does not either, with however many holders.
    assert separation_bound(1000, holders=100, threshold=2, **terms) == 1.0
    assert separation_bound(1000, holders=100, threshold=1, **terms) == 1.0


@pytest.mark.parametrize("survivors", [5, 6, 7])
@pytest.mark.parametrize("threshold", [1, 2, 3, 4])
def test_lost_rounds_are_counted(survivors: int, threshold: int) -> None:
    sites, holders = 7, 3
    graphs = some_graphs(sites, holders, 20_000, np.random.default_rng(1))
    alive = np.int64((1 << survivors) - 1)
    ones = np.array([number.bit_count() for number in range(1 << sites)])
    held = ones[graphs & alive] + (np.arange(sites) < survivors)
    seen = (held < threshold).any(axis=1).mean()
    bound = abort_bound(sites, survivors=survivors, holders=holders, threshold=threshold)
    assert seen <= bound + 5 * math.sqrt(bound / len(graphs))
    assert (seen == 0) == (bound == 0)
    if bound < 0.3:
        assert bound <= 2 * seen


@settings(max_examples=40)
@given(settings_of(2000), st.sampled_from([1e-6, 1e-9, 1e-12, 2.0**-64]))
def test_the_choice_keeps_what_it_says(given_: dict[str, int], failure: float) -> None:
    sites, survivors, colluders = given_["sites"], given_["survivors"], given_["colluders"]
    graph = mask_graph(sites, survivors=survivors, colluders=colluders, failure=failure)
    assert graph.threshold > colluders
    if graph.complete:
        assert graph == MaskGraph(
            holders=sites - 1, threshold=(sites + colluders) // 2 + 1, loss=0, failure=0.0, abort=0.0, complete=True
        )
        assert graph.threshold <= survivors
        return
    least = survivors - colluders
    terms = {"survivors": survivors, "holders": graph.holders, "threshold": graph.threshold}
    assert separation_bound(sites, colluders=colluders, loss=graph.loss, **terms) == graph.failure <= failure
    assert abort_bound(sites, **terms) == graph.abort <= MOST_ABORT
    assert 3 * (graph.holders + 1) <= sites
    assert graph.loss <= 0.02 * least
    assert 2 * (least - graph.loss) > sites
    if graph.loss:
        assert separation_bound(sites, colluders=colluders, loss=graph.loss - 1, **terms) > failure


def chosen(sites: int, survivors: int, colluders: int = 1, failure: float = 1e-12) -> MaskGraph:
    return mask_graph(sites, survivors=survivors, colluders=colluders, failure=failure)


@pytest.mark.parametrize(("sites", "survivors", "colluders"), [(300, 270, 1), (300, 225, 10), (1000, 900, 10)])
def test_no_fewer_holders_would_do(sites: int, survivors: int, colluders: int) -> None:
    graph = chosen(sites, survivors, colluders)
    for holders in range(colluders, graph.holders):
        fits = [
            threshold
            for threshold in range(colluders + 1, holders + 2)
            if abort_bound(sites, survivors=survivors, holders=holders, threshold=threshold) <= MOST_ABORT
        ]
        terms = {"survivors": survivors, "colluders": colluders, "loss": int(0.02 * (survivors - colluders))}
        assert all(separation_bound(sites, holders=holders, threshold=each, **terms) > 1e-12 for each in fits[-1:])


def test_small_studies_are_complete_and_large_ones_are_not() -> None:
    assert all(chosen(sites, math.ceil(0.9 * sites)).complete for sites in range(3, 101))
    assert not any(chosen(sites, round(0.9 * sites)).complete for sites in (101, 300, 1000, 5000))
    assert chosen(1000, 900, failure=0.0).complete
    assert mask_graph(1, survivors=1, colluders=0, failure=1e-9) == MaskGraph(
        holders=0, threshold=1, loss=0, failure=0.0, abort=0.0, complete=True
    )
    # Many colluders need a threshold above their number.
    assert chosen(300, 290, 100).complete
    # And with a hundred of a thousand, two sums would fit into so few survivors.
    assert chosen(1000, 590, 100).complete


def test_holders_hardly_grow_with_sites_and_grow_with_what_is_asked() -> None:
    assert max(chosen(sites, sites * 9 // 10).holders for sites in (300, 1000, 3000, 10_000)) <= 22
    more_dead = [chosen(1000, survivors).holders for survivors in (950, 900, 800, 700, 600)]
    surer = [chosen(1000, 900, failure=10.0**-power).holders for power in (6, 12, 24, 48)]
    assert all(one < two for one, two in pairwise(more_dead))
    assert all(one <= two for one, two in pairwise(surer))
