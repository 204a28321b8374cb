"""The guarantee of a whole fit: on neighbouring tables, given the same public transcript, all releases together stay in budget.

That is the theorem, checked end to end: see `laws.transcripts`.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil import PrivatePCA
from eigenveil.core.accounting import mu_for
from eigenveil.core.counts import bounded_tails
from eigenveil.core.mechanism import Bounded
from eigenveil.core.unit import Neighbours
from laws.parties.transcripts import realised_mu as mu_of_runs
from laws.strategies import PERSONAL, SIZES, person, torn

DIM = 4


def realised_mu(options: dict[str, Any], one: Any, other: Any) -> float:
    """The mu of telling the two tables apart, for one transcript."""

    def fitted(table: Any) -> Callable[[], object]:
        data, ids = table
        return lambda: PrivatePCA(2, person=ids, random_state=1, **options).fit(data)

    # Four people are too few to find a bound among, and the law holds for any number.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eigenveil.tasks.fit.search._ENOUGH", -math.inf)
        patch.setattr("eigenveil.tasks.fit.units._ENOUGH", -math.inf)
        return mu_of_runs(fitted(one), fitted(other))


@st.composite
def fits(draw: st.DrawFn) -> tuple[dict[str, Any], Any, Any]:
    """Options of a fit, and two neighbouring tables with their person identifiers."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    neighbours = draw(st.sampled_from(PERSONAL))
    grouped, sparse = draw(st.booleans()), draw(st.booleans())
    most = 3 if grouped else 1
    crowd = [person(DIM, rng, size, int(rng.integers(1, most + 1))) for size in (0.3, 1.0, 2.0, 0.1)]
    changed = person(DIM, rng, draw(st.sampled_from(SIZES)), int(rng.integers(1, most + 1)))
    swapped = person(DIM, rng, draw(st.sampled_from(SIZES)), int(rng.integers(1, most + 1)))
    missing = draw(st.sampled_from(["refuse", "refuse", "counts", "drop", "fill", *([] if sparse else ["groups"])]))
    if missing != "refuse":
        crowd, changed, swapped = [torn(rows, rng) for rows in crowd], torn(changed, rng), torn(swapped, rng)
    without = [*crowd, swapped] if neighbours is Neighbours.REPLACE_ONE else crowd
    tables = []
    for people in ([*crowd, changed], without):
        stacked = np.vstack(people)
        ids = np.repeat(np.arange(len(people)), [len(p) for p in people]) if grouped else None
        tables.append((sp.csr_array(stacked) if sparse else stacked, ids))
    options: dict[str, Any] = {
        "epsilon": draw(st.sampled_from([0.5, 3.0])),
        "delta": 1e-5,
        "method": draw(st.sampled_from(["covariance", "power"])),
        "center": draw(st.sampled_from(["private", None])),
        "neighbours": neighbours.value,
        "row_bound": draw(st.sampled_from([0.5, 2.0, "private"])),
        "column_bounds": draw(st.sampled_from([None, (-1.0, 1.5)])),
        "scale": draw(st.sampled_from([None, 2.0, "private"])),
    }
    options["missing"] = missing
    if missing in ("counts", "groups"):
        options["method"] = "covariance"
    options["missing_groups"] = [[0, 1], [2]] if missing == "groups" else None
    options["missing_fill"] = [0.0, 1.0, -3.0, 1e8] if missing == "fill" else None
    if options["scale"] == "private":
        options |= {"center": "private", "column_bounds": None}
    return options, tables[0], tables[1]


@settings(max_examples=200)
@given(case=fits())
def test_a_whole_fit_stays_within_its_budget(case: tuple[dict[str, Any], Any, Any]) -> None:
    options, one, other = case
    if options["neighbours"] == "zero-out":
        # The blanked person stays in the public count, which no table of this test can express: their sums alone differ.
        found = {name: None if options[name] == "private" else options[name] for name in ("scale", "center")}
        options = {**options, **found, "row_bound": 2.0}
    assert realised_mu(options, one, other) <= mu_for(options["epsilon"], options["delta"]) * (1 + 1e-9)


def test_the_bound_is_reached() -> None:
    """A person on the sphere uses the whole of the covariance's share: the accounting is tight, not merely safe.

    But for the grid, which keeps rows inside of their ball by a unit or two of 2^-16 of its radius.
    """
    rows = np.zeros((3, DIM))
    canary = np.vstack([rows, [[1.0, 0, 0, 0]]])
    options = {"epsilon": 1.0, "delta": 1e-5, "method": "covariance", "center": None, "row_bound": 1.0}
    found = realised_mu(options, (canary, None), (rows, None))
    assert (1 - 4 * 2.0**-16) * mu_for(1.0, 1e-5) <= found <= mu_for(1.0, 1e-5) * (1 + 1e-9)


def test_a_norm_that_is_counted_twice_is_convicted(monkeypatch: pytest.MonkeyPatch) -> None:
    def eightfold(rows: Any, **more: Any) -> Bounded:
        one = bounded_tails(rows, **more)
        return Bounded(8 * one.value, one.sensitivity)

    monkeypatch.setattr("eigenveil.tasks.fit.search.bounded_tails", eightfold)
    rows = np.ones((3, DIM))
    options = {"epsilon": 1.0, "delta": 1e-5, "method": "covariance", "row_bound": "private"}
    assert realised_mu(options, (np.vstack([rows, [[5.0, 0, 0, 0]]]), None), (rows, None)) > 1.2 * mu_for(1.0, 1e-5)


def test_a_forgotten_clip_is_convicted(monkeypatch: pytest.MonkeyPatch) -> None:
    from eigenveil.core.domain import Domain

    monkeypatch.setattr(Domain, "to_grid", lambda self, squares, block, unit, *more: np.full(len(squares), 1 / unit))
    rows = np.zeros((3, DIM))
    canary = np.vstack([rows, [[5.0, 0, 0, 0]]])
    options = {"epsilon": 1.0, "delta": 1e-5, "method": "covariance", "center": None, "row_bound": 1.0}
    assert realised_mu(options, (canary, None), (rows, None)) > 10 * mu_for(1.0, 1e-5)
