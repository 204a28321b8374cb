"""`row_bound="private"`, the default: every fit finds its own bound, on every carrier, inside its budget."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from eigenveil import FederatedPCA, GossipPCA, Ledger, PrivatePCA, StreamingPCA, Symmetric
from eigenveil.errors import TooFewPeople
from eigenveil.linalg import Array

RNG = np.random.default_rng(5)
# In units that nobody thought about, far from zero.
ROWS = RNG.standard_normal((6000, 6)) * [9, 5, 2, 1, 1, 1] * 37 + 500
SITES = dict(zip("abcde", np.array_split(ROWS, 5), strict=True))
BUDGET: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6, "random_state": 1}


def captured(components: Array) -> float:
    covariance = np.cov(ROWS.T)
    best = np.linalg.eigvalsh(covariance)[-len(components) :].sum()
    return float(np.trace(components @ covariance @ components.T) / best)


def search_range(pca: Any) -> bool:
    norms = np.linalg.norm(ROWS - ROWS.mean(axis=0), axis=1)
    bound = pca.model_.settings["row_bound"]
    return bool(np.quantile(norms, 0.05) < bound < np.quantile(norms, 0.995))


@pytest.mark.parametrize("choices", [{}, {"method": "power"}, {"neighbours": "replace-one"}, {"n_components": 0.9}], ids=str)
def test_one_table_needs_no_bound(choices: dict[str, Any]) -> None:
    pca: Any = PrivatePCA(**(BUDGET | {"n_components": 2} | choices)).fit(ROWS)
    assert captured(pca.components_) > 0.99
    assert search_range(pca)
    assert pca.model_.settings["bound_from"] == "found privately"
    assert pca.ledger_.spent_mu == pytest.approx(pca.ledger_.budget.mu, rel=1e-9)
    assert pca.ledger_.spent_mu <= pca.ledger_.budget.mu * (1 + 1e-12)
    assert not any("without looking" in text for text in pca.guarantee_.assumptions)
    assert "found privately in the same fit" in str(pca.guarantee_).replace("\n  ", " ")


def test_people_with_several_rows_and_sparse_rows_are_searched_as_they_are() -> None:
    people = np.arange(len(ROWS)) // 2
    assert search_range(PrivatePCA(2, **BUDGET, person=people).fit(ROWS))
    thin = sp.random_array((6000, 300), density=0.01, rng=np.random.default_rng(2), format="csr") * 7
    pca = PrivatePCA(2, **BUDGET).fit(thin)
    norms = sp.linalg.norm(thin - 0.0 * thin, axis=1)
    assert np.quantile(norms, 0.05) < pca.model_.settings["row_bound"] < 2 * norms.max()


def test_a_bound_that_follows_from_others_is_not_searched_for() -> None:
    box: Any = PrivatePCA(2, **BUDGET, column_bounds=(-1000.0, 2000.0)).fit(ROWS)
    assert "row_bound" not in box.model_.settings
    assert not any("norms" in charge.label for charge in box.ledger_.charges)
    exact = PrivatePCA(2, epsilon=None).fit(ROWS)
    assert "row_bound" not in exact.model_.settings
    np.testing.assert_allclose(captured(exact.components_), 1.0)


def test_a_small_table_is_refused_before_it_costs_or_with_what_it_cost() -> None:
    known, unknown = (Ledger(epsilon=1.0, delta=1e-6) for _ in range(2))
    with pytest.raises(ValueError, match="Nothing was released"):
        PrivatePCA(2, epsilon=0.1, delta=1e-6, neighbours="zero-out", ledger=known).fit(ROWS[:300])
    assert known.charges == ()
    with pytest.raises(ValueError, match="of the budget was spent"):
        PrivatePCA(2, epsilon=0.1, delta=1e-6, ledger=unknown, random_state=0).fit(ROWS[:300])
    # Only the first step is charged, and the rest is given back.
    assert [charge.label for charge in unknown.charges] == ["norms around the origin"]
    assert unknown.reserved_mu == 0


TRUSTS: dict[str, dict[str, Any]] = {
    "hub": {"trust": "hub"},
    "site": {"trust": "site"},
    "masked": {"trust": "masked"},
    "both": {"trust": "both", "epsilon": (3.0, 2.0)},
    "tree": {"trust": "hub", "topology": "tree", "fanout": 2},
    "masked products": {"trust": "masked", "method": "krylov", "rounds": 3},
    "averages": {"trust": "site", "method": "uda"},
    "public numbers": {"trust": "masked", "neighbours": "zero-out"},
    "no mean": {"trust": "masked", "center": None, "origin": None},
}


@pytest.mark.parametrize("choices", TRUSTS.values(), ids=TRUSTS)
def test_sites_find_a_bound_together(choices: dict[str, Any]) -> None:
    pca = FederatedPCA(2, **(BUDGET | choices)).fit(SITES)
    steps = 1 if choices.get("center", "private") is None else 4
    assert [done.stage for done in pca.transcript_[:steps]] == ["bound"] * steps
    assert "components" not in {done.stage for done in pca.transcript_[:steps]}
    if steps == 4:
        assert captured(pca.components_) > 0.98
        assert search_range(pca)
    for ledger in pca.ledgers_.values():
        assert ledger.spent_mu <= ledger.budget.mu * (1 + 1e-9)


def test_one_site_is_one_table() -> None:
    """The hub that adds all noise for one site releases what a curator would, but for rounding."""
    alone: Any = PrivatePCA(2, **BUDGET).fit(ROWS)
    hub = FederatedPCA(2, **BUDGET, trust="hub").fit({"a": ROWS})
    assert [charge.label for charge in hub.ledgers_["hub"].charges] == [charge.label for charge in alone.ledger_.charges]


@pytest.mark.parametrize("noise", ["pairwise", "independent"])
@pytest.mark.parametrize("method", ["covariance", "krylov"])
def test_peers_find_a_bound_without_a_hub(noise: Any, method: Any) -> None:
    pca = GossipPCA(2, **BUDGET, graph="complete", noise=noise, method=method, restarts=1).fit(SITES)
    assert captured(pca.components_) > 0.98
    assert search_range(pca)
    for ledger in pca.ledgers_.values():
        assert ledger.spent_mu <= ledger.budget.mu * (1 + 1e-9)


def test_matrices_need_a_number() -> None:
    gram = Symmetric(ROWS[:100].T @ ROWS[:100], people=100)
    with pytest.raises(ValueError, match="row_bound must be a number if a site gives a Symmetric"):
        FederatedPCA(2, **BUDGET, center=None).fit({"a": gram, "b": ROWS})


PUBLISHED: dict[str, dict[str, Any]] = {
    "sync": {},
    "block": {"publish": "block"},
    "continual": {"publish": "continual", "horizon": 6000},
    "no mean": {"center": None},
}


@pytest.mark.parametrize("choices", PUBLISHED.values(), ids=PUBLISHED)
def test_a_stream_finds_its_bound_in_the_first_block(choices: dict[str, Any]) -> None:
    pca: Any = StreamingPCA(2, **BUDGET, **choices).fit(ROWS)
    assert pca.ledger_.charges[0].label.startswith("norms")
    assert pca.model_.settings["bound_from"] == "found privately"
    if "center" not in choices:
        assert captured(pca.components_) > 0.98
        assert search_range(pca)
    assert pca.ledger_.spent_mu <= pca.ledger_.budget.mu * (1 + 1e-12)


def test_a_stream_that_is_saved_keeps_its_bound(tmp_path: Path) -> None:
    whole = StreamingPCA(2, **BUDGET).partial_fit(ROWS[:3000]).partial_fit(ROWS[3000:]).sync()
    first = StreamingPCA(2, **BUDGET).partial_fit(ROWS[:3000])
    first.save_state(tmp_path / "state")
    resumed = StreamingPCA.resume(tmp_path / "state").partial_fit(ROWS[3000:]).sync()
    np.testing.assert_array_equal(resumed.components_, whole.components_)
    assert resumed.model_.settings["row_bound"] == whole.model_.settings["row_bound"]


FAR = ROWS + 1e8 * RNG.choice([-1, 1], 6)


@pytest.mark.parametrize("choices", [PUBLISHED[name] for name in ("sync", "block", "continual")], ids=list(PUBLISHED)[:3])
def test_a_stream_far_from_zero_waits_until_it_has_found_its_mean(choices: dict[str, Any], tmp_path: Path) -> None:
    pca: Any = StreamingPCA(2, **BUDGET, **choices).fit(FAR)
    assert captured(pca.components_) > 0.98
    assert search_range(pca)
    # In batches, with a stop while it waits: the same noise, so the same answer.
    first: Any = StreamingPCA(2, **BUDGET, **choices).partial_fit(FAR[:700])
    assert first.searching_ and first._stream.covered == 0
    first.save_state(tmp_path / "state")
    resumed: Any = StreamingPCA.resume(tmp_path / "state")
    assert resumed.searching_
    for start in range(700, 6000, 530):
        resumed.partial_fit(FAR[start : start + 530])
    assert not resumed.searching_
    np.testing.assert_array_equal(resumed.sync().components_, pca.components_)
    assert resumed.guarantee_.charges == pca.guarantee_.charges


def test_a_stream_waits_only_where_nobody_has_two_rows_and_memory_is_left() -> None:
    usual = StreamingPCA(2, **BUDGET).plan_for(6)
    assert usual.search_rows == 8 * usual.first_block
    for other in ({"person_blocks": 2}, {"row_bound": 3.0}, {"center": None}, {"scale": "private"}):
        assert StreamingPCA(2, **(BUDGET | other)).plan_for(6).search_rows == 0
    small = StreamingPCA(2, **BUDGET, memory_limit=usual.memory + 8 * 6 * 2 * usual.first_block).plan_for(6)
    assert usual.first_block < small.search_rows <= 2 * usual.first_block
    pca: Any = StreamingPCA(2, **BUDGET, person_blocks=2, publish="block").partial_fit(FAR[:700])
    assert not pca.searching_


def test_a_synchronisation_ends_the_wait() -> None:
    pca: Any = StreamingPCA(2, **BUDGET).partial_fit(FAR[:1500])
    assert pca.searching_
    assert not pca.sync().searching_
    assert pca.n_samples_seen_ == pca._stream.covered == 1500


def test_a_stream_that_ends_too_soon_is_refused_and_may_go_on() -> None:
    pca = StreamingPCA(2, **BUDGET).partial_fit(ROWS[:50])
    with pytest.raises(ValueError, match="Nothing was released"):
        pca.sync()
    assert captured(pca.partial_fit(ROWS[50:]).sync().components_) > 0.98


def test_too_few_people_are_refused_alike_wherever_they_are() -> None:
    few = {name: rows[:10] for name, rows in SITES.items()}
    said = set()
    for pca in (FederatedPCA(2, **BUDGET, trust="hub"), GossipPCA(2, **BUDGET, graph="ring")):
        with pytest.raises(TooFewPeople, match="of the budget was spent") as refusal:
            pca.fit(few)
        said.add(str(refusal.value).split()[0])
    with pytest.raises(TooFewPeople, match="of the budget was spent"):
        PrivatePCA(2, **BUDGET).fit(ROWS[:50])
    # Nobody is to blame among the peers.
    assert said == {"epsilon"}


@pytest.mark.parametrize("quantile", [0.25, 0.9])
def test_a_quantile_is_the_norm_that_so_many_people_stay_within(quantile: float) -> None:
    rows = np.random.default_rng(0).standard_normal((20_000, 6)) * [9, 3, 1, 1, 1, 1] + 5
    norms = np.linalg.norm(rows - rows.mean(axis=0), axis=1)
    asked: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6, "quantile": quantile, "random_state": 0}
    fits = (
        PrivatePCA(2, **asked).fit(rows),
        FederatedPCA(2, trust="masked", **asked).fit(np.array_split(rows, 5)),
        GossipPCA(2, graph="ring", **asked).fit(np.array_split(rows, 4)),
        StreamingPCA(2, block_size=8000, **asked).fit(rows),
    )
    for pca in fits:
        settings = pca.model_.settings
        # Cells are 4.4% wide, which is some percent of people.
        assert np.mean(norms <= settings["row_bound"]) == pytest.approx(quantile, abs=0.05), type(pca)
        assert settings["quantile"] == quantile
