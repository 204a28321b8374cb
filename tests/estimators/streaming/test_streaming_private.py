"""A private stream: the budget is spent once and no more, and nothing is shown before it is released."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from eigenveil import BudgetExceeded, Ledger, StreamingPCA
from eigenveil.core.accounting import mu_for
from eigenveil.core.mechanism import Mechanism
from eigenveil.core.unit import Neighbours
from eigenveil.linalg import orthonormal, sines
from eigenveil.plan.streams import first_block
from eigenveil.privacy import released
from eigenveil.trackers import slices
from estimators.streaming.streams_of_rows import BUDGET, WAYS, exact, planted, private, real, shown
from estimators.tables import rows

VALUES = rows(480)
each_way = pytest.mark.parametrize("way", WAYS)


@each_way
@pytest.mark.parametrize("center", ["private", None])
@pytest.mark.parametrize("person_blocks", [1, 2, 3, 5])
@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
def test_the_whole_budget_is_spent_and_no_more(way: str, center: str | None, person_blocks: int, neighbours: str) -> None:
    choices = {**WAYS[way], "center": center, "person_blocks": person_blocks, "neighbours": neighbours}
    pca = private(block_size=30, **choices).fit(VALUES)
    assert pca.plan_.tracker == way and pca.ledger_ is not None
    assert 0.99 < pca.ledger_.epsilon() <= 1 + 1e-9
    assert pca.guarantee_.mu <= mu_for(1.0, 1e-6) * (1 + 1e-12)
    assert pca.guarantee_.charges == pca.ledger_.charges
    assert pca.guarantee_.epsilon == 1.0 and pca.guarantee_.delta == 1e-6


@each_way
def test_many_synchronisations_cost_no_more_than_one(way: str) -> None:
    choices = WAYS[way] | ({"horizon": 480 * 20} if way == "tree" else {})
    pca = private(block_size=20, **choices)
    for batch in np.split(VALUES, 48):
        pca.partial_fit(batch).sync().sync()
    assert pca.ledger_ is not None
    assert pca.ledger_.epsilon() <= 1 + 1e-9
    if way != "tree":
        assert pca.ledger_.epsilon() > 0.99
    assert pca.model_.settings["releases"] == 48 and pca.model_.settings["rows"] == 480


@each_way
def test_nothing_can_be_seen_before_it_is_released(way: str) -> None:
    pca = real(**WAYS[way])
    for batch in np.split(VALUES[:50], 5):
        pca.partial_fit(batch)
        for look in ("components_", "mean_", "explained_variance_", "model_", "subspace_", "noise_floor_"):
            with pytest.raises(NotFittedError, match=r"nothing has been released.*call sync\(\)"):
                getattr(pca, look)
        with pytest.raises(NotFittedError, match="nothing has been released"):
            pca.transform(VALUES)
        assert not hasattr(pca, "components_")
        # Not even the mean is looked for before the first block is full.
        assert pca.ledger_ is not None and pca.ledger_.charges == () and pca.guarantee_.charges == ()
    pca.partial_fit(VALUES[50:200])
    assert pca.ledger_ is not None
    labels = [charge.label for charge in pca.ledger_.charges]
    if way == "products":
        # The search for the mean places the ball and stays inside; the products wait for `sync`.
        assert labels and all(label.startswith("mean") for label in labels)
        with pytest.raises(NotFittedError, match="nothing has been released"):
            _ = pca.components_
    else:
        assert pca.components_.shape == (2, 6) and pca.model_.settings["rows"] == 180
    pca.sync()
    assert pca.components_.shape == (2, 6) and pca.model_.settings["rows"] == 200


def test_without_a_center_nothing_is_charged_before_the_first_synchronisation() -> None:
    pca = private(center=None).partial_fit(VALUES)
    assert pca.ledger_ is not None and pca.ledger_.charges == ()
    assert [c.label for c in pca.sync().ledger_.charges] == ["increment: products"]
    assert not pca.mean_.any()


@each_way
def test_later_rows_do_not_show_until_they_are_released(way: str) -> None:
    pcas = [private(**WAYS[way]).partial_fit(VALUES[:240]).sync() for _ in range(2)]
    before = shown(pcas[0])
    for pca, rest in zip(pcas, (VALUES[240:299], VALUES[240:299] * 1000), strict=True):
        assert shown(pca.partial_fit(rest)) == before


@pytest.mark.parametrize("looked", [True, False])
def test_merged_streams_do_not_show_later_rows_either(looked: bool) -> None:
    one, two = np.split(VALUES, 2)
    pca, twin = (private(forget=0.9).partial_fit(one).sync().merge(private(forget=0.9).partial_fit(two).sync()) for _ in range(2))
    before = shown(twin)
    if looked:
        shown(pca)
    assert shown(pca.partial_fit(VALUES[:200])) == before
    assert shown(pca.sync()) != before


@each_way
def test_the_guarantee_says_how_and_on_what_it_rests(way: str) -> None:
    words = real(**WAYS[way], person_blocks=3).fit(VALUES).guarantee_.to_text()
    assert words.startswith("Guarantee: (1, 1e-06)-differential privacy for each person.")
    assert "Each person, with at most one row in a block and rows in at most 3 blocks" in words
    assert "rows in more than 3 blocks" in words and "60 rows each" in words and "clipped to norm 12" in words
    assert {"products": "one release per synchronisation", "slices": "every block is released on its own"}.get(
        way, "binary tree"
    ) in words
    assert ("at most 480 rows, a public number" in words) == (way == "tree")
    assert "zero-out" in words and "Another stream or fit with the same people adds to the cost" in words
    one = real(**WAYS[way]).partial_fit(VALUES[:200]).sync()
    assert "No person has more than one row" in one.guarantee_.to_text()
    other = real(**WAYS[way], epsilon=2.0).partial_fit(VALUES[200:300]).sync()
    third = real(**WAYS[way], delta=1e-5).partial_fit(VALUES[300:]).sync()
    merged = one.merge(other.merge(third)).guarantee_
    assert "No person is in two of the 3 streams that were merged" in merged.to_text()
    assert (merged.epsilon, merged.delta) == (2.0, 1e-5)


@each_way
def test_a_known_seed_is_not_private_and_says_so(way: str) -> None:
    seeded, honest = private(**WAYS[way]).fit(VALUES[:100]), real(**WAYS[way]).fit(VALUES[100:])
    assert seeded.guarantee_.headline.startswith("NOT PRIVATE (known seed)")
    assert honest.guarantee_.private
    assert not honest.merge(seeded).guarantee_.private
    twice = private(**WAYS[way]).fit(VALUES[:100])
    assert shown(seeded) == shown(twice)
    assert real(**WAYS[way]).fit(VALUES).mean_.tolist() != real(**WAYS[way]).fit(VALUES).mean_.tolist()


def test_a_memory_limit_rounds_products_into_slices_and_says_so() -> None:
    values = planted(300, 200)
    for limit, way in ((10**8, "products"), (1_500_000, "slices")):
        pca = private(block_size=10, row_bound=30.0, memory_limit=limit).fit(values)
        assert pca.plan_.tracker == way and pca.plan_.memory <= limit
        assert ("the d x d sum does not fit" in pca.guarantee_.to_text()) == (way == "slices")
    for choices in ({}, {"publish": "block"}, {"publish": "continual", "horizon": 300}, {"epsilon": None}):
        with pytest.raises(ValueError, match=r"this stream needs about .* MiB .* and memory_limit allows .* MiB"):
            private(memory_limit=1000, row_bound=30.0, **choices).partial_fit(values)


@pytest.mark.parametrize("center", ["private", None])
@pytest.mark.parametrize("person_blocks", [1, 4])
def test_a_noise_target_makes_the_first_block_longer(center: str | None, person_blocks: int) -> None:
    """FPCA Lemma 2.2, corrected: the noise on the first block's average product is at most the target, and hardly less."""
    choices = {"center": center, "person_blocks": person_blocks, "block_size": 20, "row_bound": 2.0}
    pca = private(publish="block", noise_target=0.05, neighbours="replace-one", **choices)
    scales: list[float] = []
    real = released.release_columns

    def release_columns(mechanism: Mechanism, slices: Any, **more: Any) -> Any:
        scales.append(mechanism.scale(more["sensitivity"], share=more["share"]))
        return real(mechanism, slices, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "release_columns", release_columns)
        pca.fit(rows(1000) / 10)
    first = pca.plan_.first_block
    assert first > 20 == pca.plan_.block
    assert pca.n_samples_seen_ == 1000 and pca.model_.settings["releases"] == 1 + math.ceil((1000 - first) / 20)
    assert scales[0] / first <= 0.05 * 4.0
    # The search for the mean may need fewer steps than were set aside for it.
    assert scales[0] / first > 0.05 * 4.0 * (0.9 if center else 0.99)
    alone = first_block(noise_target=0.05, mu=mu_for(1.0, 1e-6), neighbours=Neighbours.REPLACE_ONE)
    assert (first == alone) == (not center and person_blocks == 1)


def test_accuracy_is_best_where_least_is_released() -> None:
    rng = np.random.default_rng(0)
    sizes = np.r_[3.0, 2.0, 1.5, np.full(17, 0.3)]
    values = (rng.standard_normal((20_000, 20)) * sizes) @ orthonormal(rng.standard_normal((20, 20))) + 1
    truth = exact(3).fit(values).components_.T
    off = {}
    for way, choices in (WAYS | {"tree": {"publish": "continual", "horizon": 20_000}}).items():
        pca = private(3, epsilon=2.0, row_bound=8.0, block_size=None, **choices).fit(values)
        off[way] = float(sines(pca.components_.T, truth).max())
        assert np.linalg.norm(pca.mean_ - values.mean(axis=0)) < 0.5
    assert off["products"] < 0.1
    # Three random directions of twenty are at a right angle to something, or nearly.
    for other in ("slices", "tree"):
        assert off["products"] < off[other] < 0.9


MERGES: list[tuple[str, Callable[[], StreamingPCA], str]] = [
    ("exact", lambda: exact().partial_fit(VALUES), "a private stream and one without privacy cannot be merged"),
    ("unreleased", lambda: real().partial_fit(VALUES), "rows that are not released yet. Call its sync"),
    ("released once", lambda: real().fit(VALUES[:60]).partial_fit(VALUES[60:]), "rows that are not released yet"),
    ("other neighbours", lambda: real(neighbours="replace-one").fit(VALUES), "different guarantees.*neighbours"),
    ("other person_blocks", lambda: real(person_blocks=2).fit(VALUES), "different guarantees.*person_blocks"),
    ("other columns", lambda: real(n_components=1).fit(planted(60, 4)), "streams of 6 and 4 columns"),
    ("not centered", lambda: real(center=None).fit(VALUES), "one of the streams is centered"),
]


@pytest.mark.parametrize(("make", "message"), [case[1:] for case in MERGES], ids=[case[0] for case in MERGES])
def test_merges_that_would_break_a_guarantee_are_refused(make: Callable[[], StreamingPCA], message: str) -> None:
    pca, other = real().fit(VALUES), make()
    before = shown(pca)
    with pytest.raises(ValueError, match=message):
        pca.merge(other)
    assert shown(pca) == before
    assert shown(pca.partial_fit(VALUES)) == before


def test_a_shared_ledger_adds_up_and_refuses() -> None:
    ledger = Ledger(epsilon=1.6, delta=1e-6)
    first = real(ledger=ledger).fit(VALUES)
    assert first.ledger_ is ledger and 0.99 < ledger.epsilon() <= 1
    second = real(ledger=ledger, publish="block").fit(VALUES)
    assert 1.4 < ledger.epsilon() <= 1.6
    assert len(first.guarantee_.charges) + len(second.guarantee_.charges) == len(ledger.charges)
    third, charges = real(ledger=ledger), ledger.charges
    with pytest.raises(BudgetExceeded, match=r"'this stream' needs mu .* nothing was released"):
        third.partial_fit(VALUES)
    assert ledger.charges == charges and not hasattr(third, "components_")
    # Slots of different streams are different slots, also of streams that were cloned from each other.
    assert len({name.split(":")[0] for name in ledger.series()}) == 2
    assert clone(first).ledger is ledger


def test_what_is_reserved_for_others_cannot_be_spent_in_the_meantime() -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    one, other = (real(ledger=ledger, center=None) for _ in range(2))
    first, second = np.split(VALUES, 2)
    one.partial_fit(first)
    # Nothing has been released, and yet nobody else may have what the first stream will need.
    assert ledger.spent_mu == 0 and ledger.remaining_mu == 0
    with pytest.raises(BudgetExceeded, match="reserved by running fits"):
        other.partial_fit(second)
    one.sync()
    assert not hasattr(other, "components_") and ledger.epsilon() <= 1 + 1e-9


def test_a_stream_that_is_gone_has_given_back_what_it_did_not_spend() -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    choices: dict[str, Any] = {"center": None, "publish": "block", "person_blocks": 4}
    one = real(ledger=ledger, **choices).partial_fit(VALUES[:60])
    spent = ledger.spent_mu
    assert ledger.charges == one.guarantee_.charges and ledger.reserved_mu == pytest.approx(math.sqrt(3) * spent)
    del one
    assert ledger.reserved_mu == 0
    # A fit is over when it ends, and needs no more.
    fitted = real(ledger=ledger, **(choices | {"epsilon": 0.5})).fit(VALUES[:60])
    assert ledger.reserved_mu == 0 and fitted.guarantee_.charges == ledger.charges[1:]


def test_budgets_of_two_fits_are_two_budgets_unless_they_share_a_ledger() -> None:
    pca = real()
    assert pca.fit(VALUES).ledger_ is not pca.fit(VALUES).ledger_
    with pytest.raises(BudgetExceeded):
        real(ledger=Ledger(**BUDGET)).fit(VALUES).fit(VALUES)
