"""A private fit of a stream that breaks off: what it released and spent is kept, it can go on, and no fit forgets it."""

import math
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from eigenveil import BudgetExceeded, EigenveilError, Ledger, StreamingPCA
from eigenveil.core.accounting import mu_for
from estimators.streaming.streams_of_rows import BUDGET, WAYS, exact, planted, private, real, shown

VALUES = planted(400, 6)
MU = mu_for(1.0, 1e-6)


class Broken(Exception):
    """What the source of rows raises."""


def breaking(*, after: int, failure: BaseException | None = None, size: int = 25) -> Iterator[Any]:
    """Batches of rows, until the source fails."""
    for start in range(0, after, size):
        yield VALUES[start : min(start + size, after)]
    raise failure or Broken


def broken(pca: StreamingPCA, *, after: int, failure: BaseException | None = None) -> StreamingPCA:
    """The estimator after a fit that broke off."""
    with pytest.raises(type(failure) if failure is not None else Broken):
        pca.fit(breaking(after=after, failure=failure))
    return pca


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("failure", [None, OSError("disk"), KeyboardInterrupt()], ids=repr)
def test_what_was_released_and_spent_is_there_to_be_seen(way: str, failure: BaseException | None) -> None:
    pca = broken(real(**WAYS[way]), after=210, failure=failure)
    left = pca.unfinished_
    assert left.rows == pca.n_samples_seen_ == 210
    assert left.ledger is pca.ledger_ and left.guarantee.charges == left.ledger.charges != ()
    assert left.ledger.reserved_mu == 0 and left.guarantee.mu == pytest.approx(left.ledger.spent_mu)
    # A stream that publishes every block has published three of sixty rows; "sync" had nothing to show yet but the mean.
    if way == "products":
        assert left.model is None and left.releases == 0 and not hasattr(pca, "components_")
    else:
        assert left.model is not None and left.releases == 3 and left.model.settings["rows"] == 180
        np.testing.assert_array_equal(left.model.components, pca.components_)
        assert np.isfinite(pca.transform(VALUES)).all()


@pytest.mark.parametrize("way", WAYS)
def test_it_goes_on_with_partial_fit_as_if_nothing_had_happened(way: str) -> None:
    whole = private(**WAYS[way]).fit(VALUES)
    pca = broken(private(**WAYS[way]), after=210)
    pca.partial_fit(VALUES[pca.unfinished_.rows :])
    assert hasattr(pca, "unfinished_")
    pca.sync()
    assert shown(pca) == shown(whole)
    assert pca.guarantee_.charges == whole.guarantee_.charges and pca.guarantee_.mu <= MU * (1 + 1e-12)
    # It has ended after all, and may be fitted anew as after any fit that ended.
    assert not hasattr(pca, "unfinished_")
    assert shown(pca.fit(VALUES)) == shown(whole)


@pytest.mark.parametrize("way", WAYS)
def test_another_fit_does_not_forget_what_was_charged(way: str) -> None:
    pca = broken(real(**WAYS[way]), after=210)
    ledger, spent = pca.ledger_, pca.ledger_.spent_mu
    for again in (VALUES, iter([VALUES]), breaking(after=50)):
        with pytest.raises(EigenveilError, match=r"failed after 210 rows.*partial_fit.*clone.*ledger=ledger_"):
            pca.fit(again)
    assert pca.ledger_ is ledger and ledger is not None and ledger.spent_mu == spent and pca.unfinished_.rows == 210
    # A copy holds what was released, and forgets it no more than the original.
    with pytest.raises(EigenveilError, match="the last fit failed"):
        pickle.loads(pickle.dumps(pca)).fit(VALUES)  # noqa: S301
    # The same people once more, paid from what is left, which is not enough.
    with pytest.raises(BudgetExceeded):
        clone(pca).set_params(ledger=pca.ledger_).fit(VALUES)
    # Other people, said aloud.
    assert clone(pca).fit(VALUES).ledger_.charges == real(**WAYS[way]).fit(VALUES).ledger_.charges


def test_a_shared_ledger_remembers_so_another_fit_may_begin() -> None:
    ledger = Ledger(epsilon=3.0, delta=1e-6)
    pca = broken(real(publish="block", person_blocks=3, ledger=ledger), after=210)
    spent, lines = ledger.spent_mu, ledger.charges
    assert ledger.reserved_mu == 0 and pca.unfinished_.guarantee.charges == lines
    pca.fit(VALUES)
    assert not hasattr(pca, "unfinished_") and ledger.charges == (*lines, *pca.guarantee_.charges)
    assert ledger.spent_mu == pytest.approx(math.hypot(spent, pca.guarantee_.mu)) and pca.guarantee_.mu <= MU * (1 + 1e-12)


def test_what_a_broken_fit_did_not_spend_is_for_others_and_going_on_needs_it_back() -> None:
    ledger = Ledger(**BUDGET)
    pca = broken(real(publish="block", person_blocks=8, ledger=ledger), after=130)
    rest = ledger.remaining_mu
    assert rest == pytest.approx(math.sqrt(MU**2 - ledger.spent_mu**2), rel=1e-9) and rest > 0.5 * MU
    ledger.spend(0.9 * rest, label="another's")
    with pytest.raises(BudgetExceeded, match="nothing was released"):
        pca.partial_fit(VALUES[130:])
    assert pca.unfinished_.releases == 2 and ledger.epsilon() <= 1.0


def test_where_nothing_was_charged_there_is_nothing_to_forget() -> None:
    pca = broken(real(), after=50)
    assert pca.unfinished_.guarantee.charges == () and pca.unfinished_.model is None and pca.unfinished_.rows == 50
    assert np.isfinite(pca.fit(VALUES).components_).all()
    # Without privacy nobody is charged, and there is no more to say than that it broke off.
    free = broken(exact(block_size=60), after=210)
    assert not hasattr(free, "unfinished_") and np.isfinite(free.fit(VALUES).components_).all()


def test_a_stream_interrupted_in_the_middle_of_a_release_cannot_go_on_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from eigenveil.trackers import SlicedTracker

    pca, step = real(publish="block"), SlicedTracker.step
    steps = []

    def interrupted(self: Any, *given: Any) -> Any:
        found = step(self, *given)
        steps.append(found)
        if len(steps) == 3:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(SlicedTracker, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pca.fit(iter(np.array_split(VALUES, 10)))
    assert pca.unfinished_.releases == 2 and pca.ledger_ is not None and pca.ledger_.reserved_mu == 0
    with pytest.raises(EigenveilError, match="interrupted"):
        pca.partial_fit(VALUES)
    with pytest.raises(EigenveilError, match=r"would forget that. For other people"):
        pca.fit(VALUES)


def test_a_first_block_that_fails_after_its_mean_was_charged_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    from eigenveil.trackers import SlicedTracker

    def failing(self: Any, *given: Any) -> Any:
        raise MemoryError

    pca = real(publish="block")
    monkeypatch.setattr(SlicedTracker, "step", failing)
    with pytest.raises(MemoryError):
        pca.fit(VALUES)
    assert [charge.label for charge in pca.unfinished_.guarantee.charges][:1] != []
    with pytest.raises(EigenveilError, match="failed after 0 rows"):
        pca.fit(VALUES)


@pytest.mark.parametrize("blocks", [0, 3])
def test_a_block_that_fails_after_it_was_paid_for_closes_the_stream(monkeypatch: pytest.MonkeyPatch, blocks: int) -> None:
    # A later block costs no more than the first one did, so there is no new line for it. It is paid for all the same.
    from eigenveil.trackers import slices

    def failing(*_: Any, **__: Any) -> Any:
        raise MemoryError

    pca = real(publish="block", block_size=50)
    if blocks:
        pca.partial_fit(VALUES[: 50 * blocks])
    monkeypatch.setattr(slices, "_leading", failing)
    with pytest.raises(MemoryError):
        pca.partial_fit(VALUES[50 * blocks : 50 * blocks + 50])
    monkeypatch.undo()
    with pytest.raises(EigenveilError, match="interrupted after it was charged"):
        pca.partial_fit(VALUES[-50:])
