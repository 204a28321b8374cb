"""Fits that share a ledger, in as many threads as may be: each is paid in full or refused, and speaks of its own cost alone."""

import dataclasses
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest

import eigenveil
from eigenveil import (
    BudgetExceeded,
    FederatedPCA,
    FederatedStream,
    GossipPCA,
    Ledger,
    ParameterError,
    PrivatePCA,
    PrivateRecommender,
    StreamingPCA,
    UnitMismatch,
    find_bounds,
    find_column_bounds,
)
from eigenveil.core.accounting import epsilon_of, mu_for
from eigenveil.core.rows import Block
from eigenveil.core.unit import Neighbours, PrivacyUnit
from eigenveil.estimators.bounds.spectrum import released_spectrum
from eigenveil.params.declare import declared
from eigenveil.privacy.guarantee import Guarantee

EPSILON, DELTA = 0.4, 1e-6
MU = mu_for(EPSILON, DELTA)
ROWS = np.random.default_rng(0).standard_normal((20_000, 4)) * [4.0, 2.0, 1.0, 1.0]
GIVEN: dict[str, Any] = {"epsilon": EPSILON, "delta": DELTA}
# One relation for all of them: a ledger adds up charges of one kind only, and a stream is never add-remove.
FIT: dict[str, Any] = {**GIVEN, "neighbours": "zero-out"}
FITS: dict[str, Callable[[Any, Ledger], Guarantee]] = {
    "covariance": lambda rows, ledger: PrivatePCA(2, row_bound=9.0, ledger=ledger, **FIT).fit(rows).guarantee_,
    "power": lambda rows, ledger: PrivatePCA(2, row_bound=9.0, method="power", ledger=ledger, **FIT).fit(rows).guarantee_,
    "stream": lambda rows, ledger: StreamingPCA(2, row_bound=9.0, ledger=ledger, **FIT).fit(rows).guarantee_,
    "bounds": lambda rows, ledger: find_bounds(rows, ledger=ledger, **FIT).guarantee,
    "columns": lambda rows, ledger: find_column_bounds(rows, ledger=ledger, **FIT).guarantee,
    "spectrum": lambda rows, ledger: released_spectrum(rows, row_bound=9.0, ledger=ledger, **FIT).guarantee,
}


def room_for(fits: int) -> Ledger:
    """A ledger that just pays for so many fits."""
    return Ledger(epsilon=epsilon_of(MU * math.sqrt(fits), DELTA) * (1 + 1e-9), delta=DELTA)


def at_once(acts: list[Callable[[], None]]) -> None:
    """All of them in threads of their own, begun together; the first exception is raised here."""
    start, failed = threading.Barrier(len(acts)), []

    def run(act: Callable[[], None]) -> None:
        start.wait()
        try:
            act()
        except BaseException as error:  # Raised below, in the thread that tests.
            failed.append(error)

    threads = [threading.Thread(target=run, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def steps_of(guarantee: Guarantee) -> list[str]:
    """What a fit was charged for, in order. Noise decides how often a search is repeated, so a repeated step counts once."""
    return [*dict.fromkeys(charge.label.partition(", step")[0] for charge in guarantee.charges)]


def test_fits_in_many_threads_are_each_paid_in_full_and_list_their_own_charges() -> None:
    kinds = [*FITS] * 3
    ledger, guarantees = room_for(7), []
    refused: list[str] = []

    def act(kind: str) -> Callable[[], None]:
        def fit() -> None:
            try:
                guarantees.append((kind, FITS[kind](ROWS, ledger)))
            except BudgetExceeded as error:
                refused.append(str(error))

        return fit

    at_once([act(kind) for kind in kinds])
    # All fits that run at the same time have all of their budget. One that needs less leaves room for others when it ends.
    assert len(guarantees) + len(refused) == len(kinds) and len(guarantees) >= 7
    assert all("nothing was released" in words for words in refused)
    assert ledger.reserved_mu == 0 and ledger.spent_mu <= ledger.budget.mu * (1 + 1e-12)
    alone = {kind: steps_of(fit(ROWS, Ledger(**GIVEN))) for kind, fit in FITS.items()}
    for kind, guarantee in guarantees:
        assert guarantee.mu <= MU * (1 + 1e-12), "a fit shows what another one has spent"
        assert steps_of(guarantee) == alone[kind]
    every = sorted((charge.label, charge.mu) for _, guarantee in guarantees for charge in guarantee.charges)
    assert every == sorted((charge.label, charge.mu) for charge in ledger.charges)


@pytest.mark.parametrize("kind", FITS)
def test_threads_beyond_the_room_are_refused_and_leave_nothing(kind: str) -> None:
    ledger = Ledger(**GIVEN)
    inside, enough = threading.Event(), threading.Event()
    # Columns are read once, everything else is read to be checked, too.
    held = WaitingRows(ROWS, inside, enough, reading=1 if kind == "columns" else 2)

    def refused() -> None:
        assert inside.wait(30)
        try:
            # The first one is reading its rows. It may have spent nothing so far, and yet there is no room.
            with pytest.raises(BudgetExceeded, match="nothing was released"):
                FITS[kind](ROWS, ledger)
        finally:
            enough.set()

    guarantees = []
    at_once([lambda: guarantees.append(FITS[kind](held, ledger)), refused])
    assert guarantees[0].charges == ledger.charges and ledger.reserved_mu == 0


class WaitingRows:
    """Rows that wait in the `reading` of this number, and later ones, until they are told that it is `enough`."""

    sparse = False

    def __init__(self, values: Any, inside: threading.Event, enough: threading.Event, *, reading: int) -> None:
        self.values, self.inside, self.enough, self.shape = values, inside, enough, values.shape
        self.left = reading

    def blocks(self, size: int) -> Iterator[Block]:
        self.left -= 1
        for number, start in enumerate(range(0, len(self.values), 1000)):
            if number == 10 and self.left <= 0:
                self.inside.set()
                self.enough.wait(30)
            yield Block(self.values[start : start + min(size, 1000)])


class Broken:
    """Rows of which a reading after the first few raises, as when a disk fails."""

    sparse = False

    def __init__(self, values: Any, *, readings: int, failure: BaseException) -> None:
        self.values, self.left, self.failure, self.shape = values, readings, failure, values.shape

    def blocks(self, size: int) -> Iterator[Block]:
        self.left -= 1
        for start in range(0, len(self.values), size):
            if self.left < 0:
                raise self.failure
            yield Block(self.values[start : start + size])


@pytest.mark.parametrize("failure", [OSError("disk"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("kind", [kind for kind in FITS if kind not in ("stream", "columns")])
def test_a_fit_that_breaks_off_gives_back_what_it_did_not_spend(kind: str, failure: BaseException) -> None:
    seen = set()
    for readings in range(12):
        ledger = Ledger(**GIVEN)
        try:
            FITS[kind](Broken(ROWS, readings=readings, failure=failure), ledger)
        except type(failure):
            pass
        else:
            break
        assert ledger.reserved_mu == 0
        rest = math.sqrt(max(0.0, ledger.budget.mu**2 - ledger.spent_mu**2))
        assert ledger.remaining_mu == pytest.approx(rest, abs=1e-9)
        seen.add(len(ledger.charges))
        # What was released stays charged, and what is left pays for another fit.
        if rest > MU / 2:
            less = epsilon_of(0.4 * MU, DELTA)
            PrivatePCA(2, **{**FIT, "epsilon": less}, row_bound=9.0, ledger=ledger).fit(ROWS)
    assert {0, 1} <= seen, "the rows were to break before and after the first release"


@pytest.mark.parametrize("kind", FITS)
def test_a_refused_fit_leaves_no_trace(kind: str) -> None:
    ledger = Ledger(**GIVEN)
    ledger.spend(0.1 * MU, label="before")
    with pytest.raises(BudgetExceeded):
        FITS[kind](ROWS, ledger)
    assert [charge.label for charge in ledger.charges] == ["before"] and ledger.reserved_mu == 0


@pytest.mark.parametrize("kind", FITS)
def test_a_ledger_of_another_kind_refuses_every_fit_before_anything_is_written(kind: str) -> None:
    people = PrivacyUnit("person", Neighbours.ZERO_OUT, "patient_id")
    for unit in (people, PrivacyUnit("row", Neighbours.REPLACE_ONE)):
        ledger = Ledger(epsilon=10.0, delta=DELTA, unit=unit)
        with pytest.raises(UnitMismatch, match="each row, taken for a different person"):
            FITS[kind](ROWS, ledger)
        assert ledger.charges == () and ledger.reserved_mu == 0 and ledger.unit == unit


@pytest.mark.parametrize("kind", FITS)
def test_the_first_fit_says_what_the_ledger_counts(kind: str) -> None:
    ledger = Ledger(epsilon=10.0, delta=DELTA)
    guarantee = FITS[kind](ROWS, ledger)
    assert ledger.unit == guarantee.protects == PrivacyUnit("row", Neighbours.ZERO_OUT)
    with pytest.raises(UnitMismatch, match=r"add-remove.*zero-out.*cannot be added up"):
        find_bounds(ROWS, ledger=ledger, **GIVEN)


def test_people_are_told_apart_by_their_column() -> None:
    table = pd.DataFrame(ROWS[:4000], columns=list("abcd"))
    table["patient"], table["family"] = np.arange(4000) // 4, np.arange(4000) // 8
    ledger = Ledger(epsilon=10.0, delta=DELTA)

    def fit(person: Any, rows: Any) -> Guarantee:
        return PrivatePCA(2, person=person, row_bound=9.0, ledger=ledger, **GIVEN).fit(rows).guarantee_

    found = fit("patient", table.drop(columns="family"))
    assert ledger.unit == found.protects == PrivacyUnit("person", Neighbours.ADD_REMOVE, "patient")
    written = ledger.charges
    for person, rows in (("family", table.drop(columns="patient")), (None, ROWS[:4000]), (table["patient"], ROWS[:4000])):
        with pytest.raises(UnitMismatch):
            fit(person, rows)
    assert ledger.charges == written and ledger.reserved_mu == 0
    assert Guarantee.from_dict(found.to_dict()) == found


def test_a_person_in_several_blocks_of_a_stream_is_not_a_row() -> None:
    ledger = Ledger(epsilon=10.0, delta=DELTA)
    FITS["stream"](ROWS, ledger)
    with pytest.raises(UnitMismatch, match="each person"):
        StreamingPCA(2, row_bound=9.0, person_blocks=3, ledger=ledger, **FIT).fit(ROWS)


SITES = dict(zip("abc", np.array_split(ROWS[:600], 3), strict=True))
EXACT: dict[str, Callable[[Ledger], Any]] = {
    "PrivatePCA": lambda ledger: PrivatePCA(2, epsilon=None, ledger=ledger).fit(ROWS),
    "StreamingPCA": lambda ledger: StreamingPCA(2, epsilon=None, ledger=ledger).partial_fit(ROWS),
    "FederatedPCA": lambda ledger: FederatedPCA(2, epsilon=None, ledger=ledger).fit(SITES),
    "GossipPCA": lambda ledger: GossipPCA(2, epsilon=None, graph="ring", ledger=ledger).fit(SITES),
    "FederatedStream": lambda ledger: FederatedStream(2, epsilon=None, slots=2, ledger=ledger).partial_fit(SITES),
    "PrivateRecommender": lambda ledger: PrivateRecommender(2, epsilon=None, ledger=ledger).fit(list(SITES.values())),
    "find_bounds": lambda ledger: find_bounds(ROWS, epsilon=None, ledger=ledger),
    "find_column_bounds": lambda ledger: find_column_bounds(ROWS, epsilon=None, ledger=ledger),
    "released_spectrum": lambda ledger: released_spectrum(ROWS, epsilon=None, ledger=ledger),
}


@pytest.mark.parametrize("name", EXACT)
def test_a_ledger_is_refused_for_a_release_without_privacy(name: str) -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    with pytest.raises(ParameterError, match="cannot keep account of a release without privacy: leave ledger out, or"):
        EXACT[name](ledger)
    assert ledger.charges == ()


def test_all_that_takes_a_ledger_is_asked() -> None:
    takers = set()
    for name in eigenveil.__all__:
        public = getattr(eigenveil, name)
        # A function of rows and parameters names the class of its parameters.
        kind = getattr(public, "parameters", public)
        if dataclasses.is_dataclass(kind) and "ledger" in declared(cast("type", kind)):
            takers.add(name)
    assert takers == set(EXACT)
