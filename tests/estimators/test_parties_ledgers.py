"""Fits of several parties on the ledger of their people: charged whole with the first release, or refused before it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eigenveil import (
    BudgetExceeded,
    FederatedPCA,
    FederatedStream,
    GossipPCA,
    Ledger,
    PrivatePCA,
    PrivateRecommender,
    QuorumLost,
    UnitMismatch,
)
from eigenveil.core.accounting import mu_for
from eigenveil.core.noise import Noise
from eigenveil.ledger.store import FileStore
from eigenveil.runtimes.local import Faults

pytestmark = pytest.mark.usefixtures("unplanned")
RNG = np.random.default_rng(0)
SITES = {f"s{at}": RNG.standard_normal((200, 4)) * [5, 3, 1, 1] for at in range(4)}
USERS = np.array_split((RNG.random((400, 6)) < np.repeat([0.7, 0.2], 3)).astype(float), 4)
GIVEN: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5}
FIT: dict[str, Any] = GIVEN | {"row_bound": 9.0}
MU = mu_for(1.0, 1e-5)


def stream(ledger: Ledger | None, **more: Any) -> FederatedStream:
    fitted = FederatedStream(2, slots=3, neighbours="zero-out", ledger=ledger, **FIT, **more)
    return fitted.partial_fit(SITES).partial_fit(SITES)


FITS: dict[str, Callable[..., Any]] = {
    "hub": lambda ledger: FederatedPCA(2, trust="hub", ledger=ledger, **FIT).fit(SITES),
    "sites": lambda ledger: FederatedPCA(2, trust="site", ledger=ledger, **FIT).fit(SITES),
    "masked": lambda ledger: FederatedPCA(2, trust="masked", ledger=ledger, **FIT).fit(SITES),
    "tree": lambda ledger: FederatedPCA(2, trust="site", topology="tree", fanout=2, ledger=ledger, **FIT).fit(SITES),
    "peers": lambda ledger: GossipPCA(2, graph="complete", ledger=ledger, **FIT).fit(SITES),
    "peers apart": lambda ledger: GossipPCA(2, graph="ring", noise="independent", ledger=ledger, **FIT).fit(SITES),
    "slots": stream,
    "masked slots": lambda ledger: stream(ledger, trust="masked"),
    "users": lambda ledger: PrivateRecommender(2, ledger=ledger, on_noise="warn", **GIVEN).fit(USERS),
    "masked users": lambda ledger: PrivateRecommender(2, trust="masked", ledger=ledger, on_noise="warn", **GIVEN).fit(USERS),
}


@pytest.mark.parametrize("kind", FITS)
def test_the_whole_budget_is_in_the_file_before_any_noise_is_drawn(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, seen = Ledger.open(tmp_path / "people.ledger", "people", epsilon=1.2, delta=1e-5), []
    batch = Noise.batch

    def noted(self: Noise) -> Any:
        seen.append(Ledger.open(tmp_path / "people.ledger").spent_mu)
        return batch(self)

    # All noise is drawn there: that of mechanisms, of shares under masks, and what a peer adds to the noise of its pairs.
    monkeypatch.setattr(Noise, "batch", noted)
    fitted = FITS[kind](ledger)
    assert len(seen) > 0 and seen == [pytest.approx(MU)] * len(seen)
    assert [charge.mu for charge in ledger.charges] == [pytest.approx(MU)] and ledger.reserved_mu == pytest.approx(0)
    assert fitted.guarantee_.epsilon == pytest.approx(1.0) and len(fitted.ledgers_) > 0
    # A second one does not fit. None of its parties has charged anything.
    with pytest.raises(BudgetExceeded):
        FITS[kind](ledger)
    assert len(ledger.charges) == 1 and ledger.spent_mu == pytest.approx(MU)


@pytest.mark.parametrize("kind", FITS)
def test_another_unit_is_refused_before_anything_is_charged(kind: str) -> None:
    ledger = Ledger(epsilon=9.0, delta=1e-5)
    PrivatePCA(2, ledger=ledger, neighbours="replace-one", **FIT).fit(SITES["s0"])
    before = ledger.charges
    with pytest.raises(UnitMismatch):
        FITS[kind](ledger)
    assert ledger.charges == before


@pytest.mark.parametrize("kind", FITS)
def test_nobody_else_can_spend_what_running_parties_need(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, reserve = Ledger.open(tmp_path / "people.ledger", "people", epsilon=1.0, delta=1e-5), FileStore.reserve

    def raced(self: FileStore, *args: Any, **more: Any) -> Any:
        account = reserve(self, *args, **more)
        with pytest.raises(BudgetExceeded):
            Ledger.open(tmp_path / "people.ledger").spend(MU / 2, label="another process")
        return account

    monkeypatch.setattr(FileStore, "reserve", raced)
    assert FITS[kind](ledger).guarantee_.epsilon == pytest.approx(1.0)
    assert [charge.mu for charge in ledger.charges] == [pytest.approx(MU)]


def test_the_largest_of_two_budgets_is_charged() -> None:
    ledger = Ledger(epsilon=9.0, delta=1e-5)
    budgets: dict[str, Any] = {"trust": "both", "epsilon": (2.0, 1.0), "delta": (1e-6, 1e-6)}
    FederatedPCA(2, row_bound=9.0, ledger=ledger, **budgets).fit(SITES)
    assert [charge.mu for charge in ledger.charges] == [pytest.approx(mu_for(2.0, 1e-6))]


def test_rows_that_cannot_be_read_are_free_and_a_fit_that_goes_on_is_charged_once() -> None:
    ledger = Ledger(epsilon=9.0, delta=1e-5)
    with pytest.raises(ValueError):
        FederatedPCA(2, ledger=ledger, **FIT).fit(SITES | {"s3": np.full((50, 4), np.nan)})
    assert ledger.spent_mu == ledger.reserved_mu == 0
    fit = FederatedPCA(2, method="power", rounds=3, ledger=ledger, faults=Faults(dies={"s3": 2}), **FIT)
    with pytest.raises(QuorumLost):
        fit.fit(SITES)
    assert len(ledger.charges) == 1
    fit.faults = None
    fit.resume()
    assert len(ledger.charges) == 1 and ledger.spent_mu == pytest.approx(MU)


def test_scores_are_charged_to_the_people_too() -> None:
    ledger = Ledger(epsilon=9.0, delta=1e-5)
    peers = GossipPCA(2, graph="complete", neighbours="zero-out", ledger=ledger, **FIT).fit(SITES)
    peers.publish_scores(epsilon=2.0, delta=1e-6)
    assert [charge.mu for charge in ledger.charges] == [pytest.approx(MU), pytest.approx(mu_for(2.0, 1e-6))]


def test_masks_that_may_fail_are_refused_before_anything_is_asked() -> None:
    # Beyond a hundred sites masks are sparse, and the chance that they hide nothing is a part of delta.
    many = {f"s{at}": RNG.standard_normal((3, 4)) for at in range(120)}
    ledger, masked = Ledger(epsilon=9.0, delta=1e-5), {"trust": "masked", "center": None, **FIT}
    fit = FederatedPCA(2, ledger=ledger, **masked)
    with pytest.raises(ValueError, match=r"fail with a probability of [0-9.]+e-[0-9]+, which adds to delta"):
        fit.fit(many)
    slots = FederatedStream(2, slots=3, neighbours="zero-out", ledger=ledger, **FIT, trust="masked")
    with pytest.raises(ValueError, match="which adds to delta, and ledger adds up mu alone"):
        slots.partial_fit(many)
    assert ledger.charges == () and ledger.reserved_mu == 0 and fit.unfinished_.transcript == ()
