"""`FederatedStream` in one process: what it finds, what it costs, what it refuses."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from eigenveil import BudgetExceeded, FederatedStream, Model
from eigenveil.core.ledger import Ledger, Slot
from eigenveil.errors import EigenveilError, ParameterWarning
from eigenveil.linalg import Array, Subspace, sines

NAMES = ("a", "b", "c", "d", "e")
PRIVATE: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-5, "row_bound": 4.0, "random_state": 3}
SPREAD = np.array([3.0, 2.0, 1.0, 0.2, 0.2, 0.2])


def slot_of(number: int, count: int = 40, turned: bool = False) -> dict[str, Array]:
    spread = SPREAD[::-1] if turned else SPREAD
    return {name: np.random.default_rng([number, at]).standard_normal((count, 6)) * spread + 0.5 for at, name in enumerate(NAMES)}


@pytest.mark.parametrize("more", [{}, {"topology": "tree", "fanout": 2}], ids=["star", "tree"])
def test_without_noise_it_is_the_pca_of_all_rows(more: dict[str, Any]) -> None:
    stream = FederatedStream(2, epsilon=None, slots=3, **more).fit([slot_of(number) for number in range(3)])
    rows = np.vstack([part for number in range(3) for part in slot_of(number).values()])
    exact = Subspace.of(rows - rows.mean(axis=0), rank=2)
    assert sines(stream.subspace_.basis, exact.basis)[0] < 1e-9
    assert np.allclose(stream.singular_values_, exact.values)
    assert np.allclose(stream.mean_, rows.mean(axis=0))
    assert np.allclose(stream.explained_variance_, exact.values**2 / (len(rows) - 1))
    assert stream.guarantee_.epsilon is None


@pytest.mark.parametrize("trust", ["site", "hub", "masked"])
def test_with_noise_it_finds_the_leading_direction_and_states_its_guarantee(trust: Any) -> None:
    more: dict[str, Any] = {"survivors": 4} if trust == "masked" else {}
    stream = FederatedStream(1, **PRIVATE, slots=4, trust=trust, **more)
    for number in range(4):
        stream.partial_fit(slot_of(number, 400))
    assert abs(stream.components_[0, 0]) > 0.9
    assert stream.n_above_noise_ == 1
    assert (stream.guarantee_.epsilon, stream.guarantee_.delta) == (2.0, 1e-5)
    assert stream.noise_floor_ > 0
    assert stream.explained_variance_[0] == pytest.approx(7.0, rel=0.3)


@pytest.mark.filterwarnings("ignore:Nothing stands out")
def test_a_site_that_is_back_waits_until_an_exchange_of_keys_between_all_is_worth_it() -> None:
    """Among sixteen sites, one that was away is not worth all pairs for one slot, but for two. Two sites are worth it at once."""
    for away, slots in ((1, 3), (2, 2)):
        sites = {f"s{at}": np.random.default_rng(at).standard_normal((5, 2)) for at in range(16)}
        stream = FederatedStream(1, **PRIVATE, slots=slots, trust="masked", survivors=12, center=None)
        gone = set(list(sites)[:away])
        stream.partial_fit(sites, away=gone)
        for _ in range(1, slots):
            stream.partial_fit(sites)
        assert [set(stream.absent(slot)) for slot in range(slots)] == [*[gone] * (slots - 1), set()]


@pytest.mark.parametrize(
    ("bound", "first", "mend"), [(0.3, "Nearly every row", "a larger"), (600.0, "The row bound 600", "a smaller")]
)
def test_a_wrong_bound_is_noticed_and_no_search_is_recommended(bound: float, first: str, mend: str) -> None:
    stream = FederatedStream(1, **PRIVATE | {"row_bound": bound, "origin": 0.5}, slots=2)
    with pytest.warns(ParameterWarning):
        stream.fit([slot_of(number, 2000) for number in range(2)])
    assert any(words.startswith(first) and f"{mend} row_bound" in words for words in stream.warnings_)
    assert not any("private" in words for words in stream.warnings_)


def test_forgetting_follows_a_drift_and_adapting_follows_the_spectrum() -> None:
    slots = [slot_of(number, turned=number >= 4) for number in range(8)]
    faded, kept = (FederatedStream(1, epsilon=None, slots=8, forget=f).fit(slots) for f in (0.6, 1.0))
    assert abs(faded.components_[0, 5]) > 0.95 > abs(kept.components_[0, 5])
    adapting = FederatedStream(1, epsilon=None, slots=8, adapt=(0.01, 0.15)).fit(slots)
    assert adapting.n_components_ > 1


@pytest.mark.parametrize("trust", ["site", "hub", "masked"])
@pytest.mark.parametrize(
    "more", [{"neighbours": "add-remove"}, {}, {"neighbours": "replace-one"}, {"one_person_per_site": True}], ids=str
)
@pytest.mark.filterwarnings("ignore::eigenveil.errors.ParameterWarning")
def test_a_site_without_rows_takes_part_like_any_other(trust: Any, more: dict[str, Any]) -> None:
    """Neighbours may differ in the only row of a slot. Who is counted, asked again or charged must not tell them apart."""

    def seen(*own: Array | None) -> list[Any]:
        stream = FederatedStream(1, **PRIVATE | more, slots=2, trust=trust, origin=0.5)
        stream.partial_fit(slot_of(0))
        rows: dict[str, Any] = {**slot_of(1), **dict.fromkeys("a", *own)} if own else slot_of(1)
        if not own:
            del rows["a"]
        stream.partial_fit(rows).finish()
        spent = {name: [charge.label for charge in ledger.charges] for name, ledger in stream.ledgers_.items()}
        return [stream.transcript_, stream.absent(0), stream.absent(1), stream.refused_, spent]

    one = seen(np.ones((1, 6)))
    assert one[1:4] == [(), (), ()]
    assert one == seen(np.empty((0, 6))) == seen(None) == seen()


@pytest.mark.parametrize("rule", ["counts", "groups"])
@pytest.mark.filterwarnings("ignore::eigenveil.errors.ParameterWarning")
def test_a_fill_is_a_number_whatever_the_noise(rule: Any) -> None:
    """The trace of divided sums may be zero or less. What was clipped is known from the sums before."""
    more: dict[str, Any] = {"missing_groups": [[0, 1]]} if rule == "groups" else {}
    for seed in range(40):
        given = PRIVATE | {"epsilon": 0.3, "random_state": seed, "slots": 2}
        stream = FederatedStream(2, **given, trust="site", missing=rule, **more)
        stream.partial_fit({name: rows[:20] for name, rows in torn_slot(seed, rule).items()})
        assert stream.bound_usage_ is not None and np.isfinite(stream.bound_usage_)


def test_rows_far_from_the_origin_are_all_clipped_and_the_bound_is_not_called_large() -> None:
    """Rows are clipped around the origin, so their norms count from there, and not from their mean."""
    stream = FederatedStream(1, **PRIVATE | {"row_bound": 5.0}, slots=1)
    with pytest.warns(ParameterWarning, match="Nearly every row was clipped"):
        stream.partial_fit({name: rows + 500.0 for name, rows in slot_of(0, 2000).items()})
    assert stream.bound_usage_ is not None and stream.bound_usage_ > 0.9
    assert not any("times the typical" in words for words in stream.warnings_)


@pytest.mark.filterwarnings("ignore:Nothing stands out")
def test_a_device_is_one_person_in_every_slot() -> None:
    stream = FederatedStream(1, **PRIVATE, slots=4, one_person_per_site=True)
    for number in range(4):
        stream.partial_fit(slot_of(number))
    assert len(stream.ledgers_["hub"].charges) == 4
    assert "whose device is one of the sites" in stream.guarantee_.unit
    # One device counts as one, however many rows it has.
    assert stream._simulation.answer.sketch.weight == pytest.approx(4 * len(NAMES))


def test_a_copy_has_no_rows_and_the_model_can_be_saved(tmp_path: Any) -> None:
    stream = FederatedStream(1, **PRIVATE, slots=4).partial_fit(slot_of(0))
    copied = pickle.loads(pickle.dumps(stream))  # noqa: S301
    assert not hasattr(copied, "_simulation")
    stream.save(tmp_path / "now.safetensors")
    assert np.array_equal(Model.load(tmp_path / "now.safetensors").components, stream.components_)
    assert Model.load(tmp_path / "now.safetensors").settings["slot"] == 1


def test_bad_rows_are_refused_and_no_slot_passes() -> None:
    stream = FederatedStream(2, epsilon=None, slots=2).partial_fit(slot_of(0))
    before = stream.components_.tobytes()
    bad: list[tuple[Any, str]] = [
        ({"a": np.zeros((3, 5))}, "a: it has 5 columns, and had 6 before"),
        ({"b": np.zeros((3, 5))}, "b: it has 5 columns, and a has 6"),
        ({"a": np.full((3, 6), np.nan)}, "a: .*(NaN|finite)"),
        ({"stranger": np.zeros((3, 6))}, "stranger is not a site"),
        ([np.zeros((3, 6))], "must be a mapping"),
    ]
    for sites, why in bad:
        with pytest.raises(ValueError, match=why):
            stream.partial_fit(sites)
    assert (stream.n_slots_, stream.components_.tobytes()) == (1, before)
    stream.partial_fit({"a": None, **{name: slot_of(1)[name] for name in "bcde"}})
    assert stream.absent(1) == ()
    with pytest.raises(ValueError, match="all 2 slots are over"):
        stream.partial_fit(slot_of(2))


def test_groups_of_a_slot_cost_as_much_as_the_costliest_and_late_slots_count_within_the_window() -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-5)
    mu = ledger.budget.mu
    for number, group in ((0, "x"), (1, "x"), (0, "y"), (2, "x"), (1, "y")):
        ledger.spend(mu, label="slot", slot=Slot(series="slots", number=number, per_person=1, group=group, window=1))
    assert ledger.spent_mu == pytest.approx(mu)
    with pytest.raises(ValueError, match="was closed"):
        ledger.spend(mu, label="slot", slot=Slot(series="slots", number=0, per_person=1, group="z", window=1))
    with pytest.raises(BudgetExceeded):
        # The same group again, about the same people.
        ledger.spend(mu, label="slot", slot=Slot(series="slots", number=2, per_person=1, group="x", window=1))


@pytest.mark.parametrize("seed", range(20))
def test_the_ledger_agrees_with_the_worst_person_counted_out(seed: int) -> None:
    rng = np.random.default_rng(seed)
    per_person, window = int(rng.integers(1, 4)), int(rng.integers(0, 3))
    ledger, spent = Ledger(epsilon=500.0, delta=1e-5), dict[tuple[int, str], float]()
    newest = 0
    for _ in range(30):
        number, group, mu = int(rng.integers(0, 12)), str(rng.integers(2)), float(rng.uniform(0.1, 0.5))
        if number < newest - window:
            continue
        newest = max(newest, number)
        ledger.spend(
            mu, label="slot", slot=Slot(series="slots", number=number, per_person=per_person, group=group, window=window)
        )
        spent[number, group] = spent.get((number, group), 0.0) + mu**2
    slots = [max(square for (at, _), square in spent.items() if at == number) for number in {at for at, _ in spent}]
    assert ledger.spent_mu**2 == pytest.approx(sum(sorted(slots, reverse=True)[:per_person]))


@pytest.mark.parametrize("given", [{"epsilon": None}, PRIVATE], ids=["exact", "private"])
def test_missing_values_get_their_public_value_and_infinite_ones_are_refused(given: dict[str, Any]) -> None:
    rng, slots = np.random.default_rng(0), [slot_of(number) for number in range(2)]
    torn = [{name: np.where(rng.random(X.shape) < 0.2, np.nan, X) for name, X in slot.items()} for slot in slots]
    filled = [{name: np.where(np.isnan(X), 1.5, X) for name, X in slot.items()} for slot in torn]
    stream = FederatedStream(2, slots=2, missing="fill", missing_fill=1.5, **given).fit(torn)
    same = FederatedStream(2, slots=2, **given).fit(filled)
    assert np.array_equal(stream.components_, same.components_)
    assert np.array_equal(stream.transform(torn[0]["a"]), same.transform(filled[0]["a"]))
    assert stream.model_.settings["missing"] == "fill"
    with pytest.raises(ValueError, match="NaN"):
        FederatedStream(2, slots=2, **given).fit(torn)
    torn[0]["b"][3, 1] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        FederatedStream(2, slots=2, missing="fill", missing_fill=1.5, **given).fit(torn)


LOOSE: dict[str, Any] = {"epsilon": 1e4, "delta": 1e-5, "row_bound": 40.0, "random_state": 3, "slots": 4}
RATES = np.array([1.0, 0.9, 0.5, 0.8, 0.6, 0.7])


def torn_slot(number: int, rule: str) -> dict[str, Array]:
    rng, torn = np.random.default_rng(number), dict[str, Array]()
    for name, rows in slot_of(number, 500).items():
        there = rng.random(rows.shape) < RATES
        if rule == "groups":
            # Columns of a group are there together, and so two of its columns have one rate and not its square.
            there = np.repeat(there[:, 1::2], 2, axis=1)
        torn[name] = np.where(there, rows, np.nan)
    return torn


@pytest.mark.parametrize("trust", ["site", "hub", "masked"])
@pytest.mark.parametrize("rule", ["counts", "groups"])
def test_slots_are_divided_by_how_many_rows_have_each_entry(rule: Any, trust: Any) -> None:
    more: dict[str, Any] = {"missing_groups": [[0, 1], [2, 3], [4, 5]]} if rule == "groups" else {}
    stream = FederatedStream(3, **LOOSE, trust=trust, missing=rule, **more)
    whole = FederatedStream(3, **LOOSE, trust=trust)
    for number in range(4):
        stream.partial_fit(torn_slot(number, rule))
        whole.partial_fit(slot_of(number, 500))
    expected = RATES if rule == "counts" else np.repeat(RATES[1::2], 2)
    assert stream.observed_fraction_ is not None
    np.testing.assert_allclose(stream.observed_fraction_, expected, atol=0.02)
    np.testing.assert_allclose(stream.explained_variance_, whole.explained_variance_, rtol=0.06)
    np.testing.assert_allclose(stream.mean_, whole.mean_, atol=0.15)
    assert sines(stream.subspace_.basis, whole.subspace_.basis)[0] < 0.1
    # The counts are in the same matrix, so every slot is one charge as before.
    ledgers = zip(stream.ledgers_.values(), whole.ledgers_.values(), strict=True)
    assert all([one.label for one in a.charges] == [one.label for one in b.charges] for a, b in ledgers)
    assert any("share of people who have each" in word for word in stream.guarantee_.released)


@pytest.mark.parametrize("given", [{"epsilon": None, "slots": 4}, LOOSE], ids=["exact", "private"])
def test_incomplete_rows_are_left_out_and_their_number_is_not_shown(given: dict[str, Any]) -> None:
    torn = [torn_slot(number, "groups") for number in range(4)]
    complete = [{name: rows[~np.isnan(rows).any(axis=1)] for name, rows in slot.items()} for slot in torn]
    stream, same = FederatedStream(3, **given, missing="drop").fit(torn), FederatedStream(3, **given).fit(complete)
    np.testing.assert_allclose(stream.explained_variance_, same.explained_variance_, rtol=0.02)
    assert sines(stream.subspace_.basis, same.subspace_.basis)[0] < 0.02
    exact = sum(len(rows) for slot in complete for rows in slot.values())
    found = stream._running().answer.sketch.weight
    assert found == pytest.approx(exact, abs=30)
    # With noise, even where the number of rows that came is public.
    assert (found == exact) == (given["epsilon"] is None)


def test_rates_fade_with_the_rows_they_are_of() -> None:
    stream = FederatedStream(1, **{**LOOSE, "slots": 8, "trust": "hub"}, forget=0.5, missing="counts")
    for number in range(8):
        rows = slot_of(number, 200)
        stream.partial_fit({name: np.where(np.arange(6) < (3 if number < 4 else 6), X, np.nan) for name, X in rows.items()})
    assert stream.observed_fraction_ is not None
    assert stream.observed_fraction_.min() > 0.98


def test_a_stream_that_was_loaded_or_copied_does_not_begin_another(tmp_path: Path) -> None:
    """Its guarantee would be of the new one alone."""
    rng = np.random.default_rng(0)

    def slot() -> dict[str, Any]:
        return {name: rng.standard_normal((100, 3)) for name in "ab"}

    stream = FederatedStream(1, epsilon=1.0, delta=1e-6, slots=4, row_bound=5.0, random_state=0)
    stream.partial_fit(slot()).partial_fit(slot()).save(tmp_path / "m.safetensors")
    for other in (FederatedStream.load(tmp_path / "m.safetensors"), copy.deepcopy(stream), copy.copy(stream)):
        before = str(other.guarantee_)
        for act, given in ((other.partial_fit, (slot(),)), (other.finish, ()), (other.counted, (0,))):
            with pytest.raises(EigenveilError, match="Only the original can continue"):
                act(*given)
        assert (str(other.guarantee_), other.n_slots_) == (before, 2)
        # A fit begins anew, as its name says, and goes on with itself.
        assert other.fit([slot(), slot()]).partial_fit(slot()).n_slots_ >= 3
        assert clone(other).partial_fit(slot()).n_slots_ == 1
    assert stream.partial_fit(slot()).n_slots_ == 3
