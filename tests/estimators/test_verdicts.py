"""What estimators say of their own answers: no claim where there is nothing, no warning where all is well, and one where not."""

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from eigenveil import FederatedPCA, GossipPCA, Ledger, Model, PrivatePCA, StreamingPCA
from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Reserve
from eigenveil.core.unit import Neighbours
from eigenveil.errors import HopelessBudget, ParameterWarning
from eigenveil.estimators import verdict
from eigenveil.linalg import Array, Subspace
from eigenveil.plan import recommendation

BUDGET: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6}
DIM = 12


def table(count: int = 4000, *, seed: int = 0) -> Array:
    """Rows with three directions that stand out. Their norms have a median of 6 and hardly reach 12."""
    spread = np.r_[4.0, 3.0, 2.0, np.ones(DIM - 3)]
    return np.asarray(np.random.default_rng(seed).standard_normal((count, DIM)) * spread)


def sites_of(values: Array) -> list[Array]:
    return list(np.array_split(values, 4))


FITS: dict[str, Callable[..., Any]] = {
    "one table": lambda values, **more: PrivatePCA(3, **BUDGET | more).fit(values),
    "products": lambda values, **more: PrivatePCA(3, method="power", **BUDGET | more).fit(values),
    "hub": lambda values, **more: FederatedPCA(3, trust="hub", **BUDGET | more).fit(sites_of(values)),
    "sites": lambda values, **more: FederatedPCA(3, trust="site", **BUDGET | more).fit(sites_of(values)),
    "masked": lambda values, **more: FederatedPCA(3, trust="masked", **BUDGET | more).fit(sites_of(values)),
    "kept products": lambda values, **more: FederatedPCA(3, method="krylov", trust="hub", **BUDGET | more).fit(sites_of(values)),
    "peers": lambda values, **more: GossipPCA(3, graph="ring", **BUDGET | more).fit(sites_of(values)),
    "stream": lambda values, **more: StreamingPCA(3, **BUDGET | more).fit(values),
}


def said(fit: str, values: Array, **more: Any) -> tuple[Any, list[str]]:
    """The fitted estimator, and the sentences of the Python warnings that it gave."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ParameterWarning)
        pca = FITS[fit](values, random_state=1, **more)
    return pca, [str(one.message) for one in caught if isinstance(one.message, ParameterWarning)]


@pytest.fixture(scope="module")
def unplanned() -> None:
    """Unlike in the other tests of estimators, plans are made here."""


@pytest.fixture
def without_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """For many fits of which only the floor matters."""
    monkeypatch.setattr(recommendation, "hopeless", lambda facts, method: None)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("where", [0.0, 0.9])
@pytest.mark.parametrize("method", ["covariance", "power"])
@pytest.mark.usefixtures("without_plans")
def test_where_there_is_nothing_one_fit_in_a_hundred_claims_something(method: Any, where: float) -> None:
    """All rows alike, at the origin or away from it, where the error of the mean is a direction of its own."""
    fits, dim = 300, 40
    values = np.full((150, dim), where / math.sqrt(dim))
    claims = 0
    for seed in range(fits):
        pca = PrivatePCA(2, epsilon=2.0, delta=1e-6, row_bound=1.0, method=method, random_state=seed).fit(values)
        claims += pca.n_above_noise_ > 0
        assert pca.n_above_noise_ == int((pca.explained_variance_ > pca.noise_floor_).sum())
    # Of fits that claim something in 1.5% of cases, one test in a million has more than this, 17. With the expected
    # norm of the noise as floor there are 44 and 23 at the origin, and 278 and 89 away from it.
    assert claims <= binom.ppf(1 - 1e-6, fits, 0.015)


@pytest.mark.parametrize("fit", FITS)
def test_where_all_is_well_nothing_is_said(fit: str) -> None:
    pca, sentences = said(fit, table(), row_bound=12.0)
    assert pca.warnings_ == () and sentences == []
    assert pca.n_above_noise_ >= 1
    assert 0.15 < pca.bound_usage_ < 0.35
    assert pca.model_.settings["bound_usage"] == pca.bound_usage_
    # As in scikit-learn for what stands out: 16, 9 and 4 of 38.
    shares = np.array([16, 9, 4]) / 38
    known = pca.explained_variance_ratio_ > 0
    assert np.abs(pca.explained_variance_ratio_ - shares)[known].max() < 0.1


@pytest.mark.parametrize("fit", FITS)
def test_a_bound_far_below_the_rows_is_noticed(fit: str) -> None:
    pca, sentences = said(fit, table(), row_bound=0.5)
    assert list(pca.warnings_) == sentences
    assert any(words.startswith("Nearly every row was clipped") and "row_bound='private'" in words for words in sentences)
    assert pca.bound_usage_ == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("fit", FITS)
def test_a_bound_far_above_the_rows_is_noticed(fit: str) -> None:
    _, sentences = said(fit, table(60_000 if fit in ("products", "kept products") else 16_000), row_bound=150.0)
    assert any("times the typical row norm" in words for words in sentences)


@pytest.mark.parametrize("fit", [name for name in FITS if name != "stream"])
def test_column_bounds_far_beyond_the_rows_are_noticed(fit: str) -> None:
    """They are not to be refitted with a private row bound: column bounds alone are never searched."""
    count = 60_000 if fit in ("products", "kept products") else 16_000
    _, sentences = said(fit, table(count), column_bounds=(-60.0, 60.0))
    assert any("narrower column_bounds" in words for words in sentences)
    assert not any("row_bound" in words for words in sentences)


def test_a_search_that_ends_where_its_cells_do_is_noticed() -> None:
    for unit in (1e15, 1e-13):
        assert said("one table", table() * unit)[1] == []
    for unit, mend in ((1e24, 1e18), (1e-22, 1e-18)):
        _, sentences = said("one table", table() * unit)
        assert any("refit with a public unit as scale" in words.lower() for words in sentences)
        assert said("one table", table() * unit, scale=mend)[1] == []
    for fit in ("one table", "stream"):
        _, sentences = said(fit, np.full((4000, DIM), 7e6))
        assert any("an origin near the rows" in words for words in sentences)
    # Farther than any search goes, and yet found.
    assert said("one table", table() + 1e6)[1] == []


@pytest.mark.parametrize("fit", FITS)
def test_a_mean_beyond_the_search_is_noticed(fit: str) -> None:
    _, sentences = said(fit, table() + 100.0, row_bound=12.0)
    assert any("search for the mean ended at its edge" in words for words in sentences)
    _, near = said(fit, table() + 5.0, row_bound=12.0)
    assert not any("at its edge" in words for words in near)


@pytest.mark.parametrize("fit", ["one table", "masked", "peers", "stream"])
def test_a_search_that_runs_out_of_steps_is_noticed(fit: str) -> None:
    """With few rows each step gets only a little nearer, and the bound is then as large as the way that is left."""
    lost, sentences = said(fit, table(700) + 1e8)
    assert [words.split(" compared")[0] for words in sentences][:1] == ["The rows lie very far from zero"]
    assert list(lost.warnings_) == sentences
    # Units would be refused for so few rows, so they are not recommended.
    assert not any("scale=" in words for words in sentences)
    # Norms were released around an earlier center. No more rows than the fill can be clipped, but for its noise.
    assert lost.clipped_fraction_ < lost.bound_usage_ + 0.15
    mended, sentences = said(fit, table(700) + 1e8, origin=np.full(DIM, 1e8))
    assert sentences == [] and mended.n_above_noise_ >= 1


@pytest.mark.parametrize(("bound_usage", "count"), [(0.99, 1), (0.7, 0)])
def test_units_that_clip_nearly_every_row_are_noticed(bound_usage: float, count: int) -> None:
    """Noise can lead the search for units astray where there are hardly enough people, so the numbers are made up."""
    people, radius = 3000.0, math.sqrt(DIM)
    total = bound_usage * people * radius**2
    space = Subspace(np.eye(DIM)[:, :3], np.sqrt(total * np.array([0.5, 0.3, 0.2])))
    seen = verdict.Released(
        space=space,
        trace=total,
        people=people,
        radius=radius,
        trace_noise=0.001 * total,
        people_noise=1.0,
        noise_floor=0.01 * total,
        at_edge=False,
        energy=total,
        scaled="private",
    )
    given: dict[str, Any] = {"method": "covariance", "neighbours": Neighbours.ADD_REMOVE, "names": None}
    judged = verdict.assess_fit(seen, settings={"row_bound": "private"}, budget=Budget(1.0, 1e-6), **given)
    assert [str(words).startswith("Nearly every row was clipped") for words in judged.warned] == [True] * count
    assert all("scale" in str(words) and "origin" in str(words) for words in judged.warned)


@pytest.mark.parametrize("fit", FITS)
def test_a_column_that_dominates_is_named(fit: str) -> None:
    values = table(12_000)
    values[:, 5] *= 100.0
    _, sentences = said(fit, values, row_bound=250.0)
    assert any(words.startswith("Column 6 has ") for words in sentences)


@pytest.mark.parametrize("fit", FITS)
def test_where_nothing_stands_out_no_share_is_claimed(fit: str, tmp_path: Path) -> None:
    pca, sentences = said(fit, np.zeros((200, DIM)), row_bound=1.0)
    assert pca.n_above_noise_ == 0 and (pca.explained_variance_ratio_ == 0).all()
    assert any(words.startswith("Nothing stands out from the noise") for words in sentences)
    pca.save(tmp_path / "model.safetensors")
    model = Model.load(tmp_path / "model.safetensors")
    assert model.warnings == pca.warnings_ != ()
    assert model.noise_floor == pca.noise_floor_ and model.n_above_noise == 0


@pytest.mark.parametrize("fit", [name for name in FITS if name != "stream"])
def test_a_hopeless_budget_is_said_before_it_is_spent(fit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few, spent = table(40), list[str]()
    given: dict[str, Any] = {"epsilon": 0.05, "row_bound": 12.0, "neighbours": "zero-out"}

    def noting(spend: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*values: Any, **more: Any) -> Any:
            spent.append("something")
            return spend(*values, **more)

        return noted

    with warnings.catch_warnings():
        warnings.simplefilter("error", HopelessBudget)
        # A plan rehearses the fit on rows of its own, which spends too, and is done once for each question.
        for _ in range(2):
            with pytest.raises(HopelessBudget, match="With 40 people and 12 columns"):
                FITS[fit](few, **given)
            for owner in (Ledger, Reserve):
                monkeypatch.setattr(owner, "spend", noting(owner.spend))
    assert spent == []
    pca, sentences = said(fit, few, **given)
    assert spent != []
    assert pca.warnings_[0].startswith("With 40 people") and list(pca.warnings_) == sentences


@pytest.mark.parametrize("fit", [name for name in FITS if name != "stream"])
def test_a_private_count_is_told_only_after_it_was_released(fit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def hopeless(facts: Any, method: str) -> None:
        asked.append(facts.people)

    monkeypatch.setattr(recommendation, "hopeless", hopeless)
    pca, _ = said(fit, np.zeros((40, DIM)), row_bound=12.0)
    # Once, afterwards, about two digits of the released number, which is not the true one.
    assert len(asked) == 1 and asked != [40]
    assert pca.n_above_noise_ == 0
    asked.clear()
    said(fit, table(), row_bound=12.0)
    assert asked == []


@pytest.mark.parametrize("fit", list(FITS))
@pytest.mark.parametrize(
    ("given", "seeks"), [({}, "bound"), ({"scale": "private"}, "units"), ({"row_bound": 12.0, "scale": 2.0}, None)]
)
def test_a_plan_is_asked_about_what_the_fit_will_search_for(
    fit: str, given: dict[str, Any], seeks: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def hopeless(facts: Any, method: str) -> None:
        asked.append(facts)

    monkeypatch.setattr(recommendation, "hopeless", hopeless)
    # A stream says how many rows there are by its horizon, and other fits by their relation.
    public = {"publish": "continual", "horizon": 20_000} if fit == "stream" else {"neighbours": "zero-out"}
    # Before anything is searched for, and again if nothing stands out.
    said(fit, np.random.default_rng(0).standard_normal((12_000, DIM)), epsilon=1.0, **public, **given)
    assert asked and {facts.seeks for facts in asked} == {seeks}
    assert {facts.row_bound for facts in asked} <= ({12.0} if seeks is None else {None, math.sqrt(DIM)})


def test_a_stream_with_a_horizon_is_warned_of_before_its_first_row() -> None:
    given: dict[str, Any] = {"epsilon": 0.05, "delta": 1e-6, "row_bound": 12.0, "publish": "continual"}
    ledger = Ledger(epsilon=5.0, delta=1e-6)
    pca = StreamingPCA(3, horizon=60, ledger=ledger, **given)
    with warnings.catch_warnings():
        warnings.simplefilter("error", HopelessBudget)
        with pytest.raises(HopelessBudget):
            pca.partial_fit(table(20))
    assert ledger.charges == ()
    with pytest.warns(HopelessBudget):
        pca.partial_fit(table(20))


@pytest.mark.parametrize("publish", ["sync", "block"])
def test_a_stream_that_comes_whole_is_warned_of_before_anything_is_spent(publish: Any) -> None:
    ledger = Ledger(epsilon=5.0, delta=1e-6)
    pca = StreamingPCA(3, epsilon=0.05, delta=1e-6, row_bound=12.0, publish=publish, ledger=ledger)
    with warnings.catch_warnings():
        warnings.simplefilter("error", HopelessBudget)
        with pytest.raises(HopelessBudget, match="With 60 people"):
            pca.fit(table(60))
        assert ledger.charges == ()
        # Of an iterator nobody knows how many rows are to come.
        with pytest.warns(ParameterWarning, match="Nothing stands out"):
            pca.fit(iter([table(60)]))


def test_an_exact_fit_has_no_floor_no_fill_and_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pca = PrivatePCA(2, epsilon=None).fit(table(50))
    assert (pca.noise_floor_, pca.bound_usage_, pca.warnings_, pca.n_above_noise_) == (0.0, None, (), 2)


@pytest.mark.parametrize("found", [{}, {"scale": "private"}], ids=["bound", "units"])
@pytest.mark.usefixtures("without_plans")
def test_what_is_found_privately_claims_nothing_of_constant_rows(found: dict[str, Any]) -> None:
    """The mean that ends a search has noise for the ball that was found, and its error must not look like a component."""
    rows = np.tile(np.random.default_rng(0).standard_normal(20) * 5.0, (3000 if not found else 20000, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fits = [PrivatePCA(3, epsilon=1.0, delta=1e-6, random_state=seed, **found).fit(rows) for seed in range(20)]
    # At a level of 1% this happens to a right floor with probability below 1e-6.
    assert sum(fit.n_above_noise_ > 0 for fit in fits) <= 5


def test_the_fill_is_that_of_the_clipped_rows_where_variances_were_made_one() -> None:
    rng = np.random.default_rng(1)
    rows = (rng.standard_t(3, (8000, 10)) + rng.standard_normal((8000, 1))) * np.logspace(-3, 3, 10) + 1e3
    pca = PrivatePCA(3, epsilon=2.0, delta=1e-6, scale="private", random_state=0).fit(rows)
    assert pca.bound_usage_ is not None
    # After the release every variance is one, so the fill in these units would be one whatever was clipped.
    assert 0.2 < pca.bound_usage_ < 0.95
    assert pca.n_above_noise_ >= 1
    assert pca.clipped_fraction_ is None


def test_the_share_clipped_is_said_where_norms_were_released() -> None:
    rows = np.random.default_rng(2).standard_normal((5000, 6)) * [5.0, 3.0, 1.0, 1.0, 1.0, 1.0] + 40.0
    pca = PrivatePCA(2, epsilon=1.0, delta=1e-6, random_state=0).fit(rows)
    bound = pca.model_.settings["row_bound"]
    beyond = float((np.linalg.norm(rows - pca.mean_, axis=1) > bound).mean())
    assert pca.clipped_fraction_ == pytest.approx(beyond, abs=0.05)
    assert pca.model_.settings["clipped_fraction"] == pca.clipped_fraction_
    assert pca.warnings_ == ()
