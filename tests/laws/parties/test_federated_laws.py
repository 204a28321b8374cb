"""The guarantee of a federated fit: sites that differ in one person release, given the same transcript, within the budget.

Every legal combination of method, trust, topology, neighbours, center, participation and local steps, against hostile
rows. Nothing else that is public, no byte of messages among it, differs at all. See `laws.federated_views`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil.core.accounting import Budget, mu_for
from eigenveil.core.domain import Domain
from eigenveil.core.mechanism import Exact, Mechanism
from eigenveil.core.noise import ROUNDING_COST
from eigenveil.core.rows import Rows
from eigenveil.core.unit import Neighbours
from eigenveil.errors import QuorumLost
from eigenveil.estimators.federated.pca import FederatedPCA
from eigenveil.linalg import Array
from eigenveil.methods.fedpower import LocalPower
from eigenveil.protocols.star.hub import Hub
from eigenveil.tasks.base import Question
from laws.parties.federated_views import Played, View, fitted_view, outside_mu, places_mu, sent_bytes, shown
from laws.parties.transcripts import realised_mu
from laws.strategies import PERSONAL, SIZES, person

DIM, SITES = 4, 4
SLACK = 1 + 1e-9
# A hub's noise covers the rounding of parts to its grid, and movements that fall between two of its points are off by as much.
COVERED, OFF = 1 + ROUNDING_COST, 2 * ROUNDING_COST
# On their grid rows keep a unit or two away from the sphere, of which there are 2^16 to a radius of one.
ON_GRID = 4 * 2.0**-16
DELTA = 1e-5
GIVEN = np.array([0.1, -0.2, 0.3, 0.0])
AVERAGES = ("merge", "uda", "wda")
PLACES = [(method, trust) for method in ("krylov", "power", "fedpower", "covariance") for trust in ("hub", "site", "both")]
PLACES += [(method, trust) for method in AVERAGES for trust in ("hub", "site")]


@dataclass(frozen=True)
class Case:
    """Options of a fit, two lists of neighbouring sites, and the people at each where that is public."""

    options: dict[str, Any]
    one: list[Any]
    other: list[Any]
    sizes: list[float] | None
    dies: dict[str, int]

    @property
    def at_sites(self) -> bool:
        """Whether sites add noise."""
        return self.options["trust"] != "hub" or self.options["method"] in AVERAGES


def site_table(people: Sequence[tuple[int, Array]], *, grouped: bool, sparse: bool) -> Any:
    """One site's rows, as a table that says whose they are, or as an array."""
    stacked = np.vstack([np.empty((0, DIM)), *(rows for _, rows in people)])
    if grouped:
        who = np.repeat([name for name, _ in people], [len(rows) for _, rows in people]).astype(np.int64)
        return pa.table(dict(zip("abcd", stacked.T, strict=True)) | {"who": who})
    return sp.csr_array(stacked) if sparse else stacked


@st.composite
def neighbouring_sites(draw: st.DrawFn, method: str, trust: str) -> Case:
    """Sites of which one person's rows, at one site or at several, were added, removed, replaced or blanked."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    options = draw(choices(method, trust))
    near, grouped = Neighbours(options["neighbours"]), draw(st.booleans())
    sparse = not grouped and draw(st.booleans())
    most = 3 if grouped else 1
    if grouped:
        options["person"] = "who"

    def somebody() -> list[Array]:
        size, alike = draw(st.sampled_from(SIZES)), draw(st.booleans())
        first = person(DIM, rng, size, int(rng.integers(1, most + 1)))
        # The worst that a person at several sites can do is the same at each of them.
        return [first if alike else person(DIM, rng, size, int(rng.integers(1, most + 1))) for _ in range(SITES)]

    at = rng.choice(SITES, size=draw(st.integers(1, options["person_sites"])), replace=False)
    crowd = [
        [(10 * site + i, person(DIM, rng, size, int(rng.integers(1, most + 1)))) for i, size in enumerate(sizes)]
        for site, sizes in enumerate([(0.3, 1.0), (2.0,), (), (0.1, 1e8)])
    ]
    changed, swapped = somebody(), somebody()
    if near is Neighbours.REPLACE_ONE and draw(st.booleans()):
        # The worst replacement of a sum is the opposite row.
        swapped = [-rows for rows in changed]
    without: dict[int, list[tuple[int, Array]]] = {}
    searched, sizes = isinstance(options["center"], str), None
    for site in at.tolist():
        if near is Neighbours.REPLACE_ONE:
            without[site] = [(99, swapped[site])]
        elif near is Neighbours.ZERO_OUT and not searched:
            # A row on the center contributes nothing.
            blank = np.zeros(DIM) if options["center"] is None else options["center"]
            without[site] = [(99, np.tile(blank, (len(changed[site]), 1)))]
        else:
            without[site] = []
    if near is Neighbours.ZERO_OUT and searched:
        # Where the center is not known beforehand only the absence of a row blanks it; the number of people stays.
        sizes = [float(len(crowd[site]) + (site in at)) for site in range(SITES)]
    with_person = [[*crowd[site], *([(99, changed[site])] if site in at else [])] for site in range(SITES)]
    lists = (with_person, [[*crowd[site], *without.get(site, [])] for site in range(SITES)])
    one, other = ([site_table(people, grouped=grouped, sparse=sparse) for people in people_at] for people_at in lists)
    dies = {f"site {rng.integers(SITES)}": int(rng.integers(1, 4))} if options["quorum"] == 1 else {}
    return Case(options, one, other, sizes, dies)


@st.composite
def choices(draw: st.DrawFn, method: str, trust: str) -> dict[str, Any]:
    """What may be asked of a fit by this method, with noise in these places."""
    options: dict[str, Any] = {
        "method": method,
        "trust": trust,
        "epsilon": draw(st.sampled_from([(4.0, 0.5), (0.5, 4.0), (1.0, 1.0)] if trust == "both" else [0.5, 3.0])),
        "delta": DELTA,
        "neighbours": draw(st.sampled_from(PERSONAL)).value,
        "center": draw(st.sampled_from(["private", None, GIVEN])),
        "row_bound": draw(st.sampled_from([0.5, 2.0])),
        "column_bounds": draw(st.sampled_from([None, (-1.0, 1.5)])),
        "scale": draw(st.sampled_from([None, 2.0])),
        "person_sites": draw(st.integers(1, 3)),
        "quorum": draw(st.sampled_from([None, None, 1])),
    }
    if method not in ("uda", "wda"):
        options["topology"] = draw(st.sampled_from(["star", "tree"]))
        options["fanout"] = 2
    if method in ("krylov", "power", "fedpower"):
        options["rounds"] = draw(st.integers(1, 3))
        options["oversample"] = draw(st.integers(0, 2))
        options["tolerance"] = draw(st.sampled_from([None, 0.5]))
    if method in ("power", "fedpower") and options["topology"] == "star":
        schemes = ["full", ("without-replacement", 2), ("without-replacement", 4)]
        if options["neighbours"] != "add-remove":
            schemes.append(("with-replacement", 3))
        options["participation"] = draw(st.sampled_from(schemes))
        if options["participation"] != "full":
            options["tolerance"] = None
    if method == "fedpower":
        options["align"] = draw(st.sampled_from(["procrustes", "sign", "none"]))
        if trust == "site":
            options["local_steps"] = draw(st.sampled_from([1, 3, [2, 1], ("decay", 2)]))
    if method == "wda" and options["neighbours"] == "zero-out" and isinstance(options["center"], str):
        # The weights are divided by the number of people, which no table of this test can keep while a row goes.
        options["center"] = None
    return options


def budgets(options: dict[str, Any]) -> tuple[float, float]:
    """The mu against the hub and against everybody else."""
    pair = options["epsilon"] if isinstance(options["epsilon"], tuple) else (options["epsilon"],) * 2
    return mu_for(pair[0], DELTA), mu_for(pair[1], DELTA)


def first_view(case: Case) -> View:
    """The fit on the first list of sites."""
    return fitted_view(case.options, case.one, sizes=case.sizes, dies=case.dies)


def neighbouring_view(case: Case, one: View, how: Played = "all") -> View:
    """The fit on the other list, with the releases of the first."""
    return fitted_view(case.options, case.other, played=one, how=how, sizes=case.sizes, dies=case.dies)


def both_views(case: Case, how: Played = "all") -> tuple[View, View]:
    """One after the other."""
    one = first_view(case)
    return one, neighbouring_view(case, one, how)


def check(case: Case) -> None:
    """The law, for everybody who can see anything."""
    try:
        one, other = both_views(case)
    except QuorumLost:
        # Everybody who was drawn is dead.
        assert case.dies
        return
    for what, text in shown(one).items():
        assert text == shown(other)[what], what
    assert sent_bytes(one, of_sites=case.at_sites) == sent_bytes(other, of_sites=case.at_sites)
    against_hub, against_others = budgets(case.options)
    if case.options["trust"] == "both":
        seen = places_mu(one, other, hub=False)
        assert seen <= against_hub * SLACK
        outside = neighbouring_view(case, one, "hub")
        for what, text in shown(one).items():
            assert text == shown(outside)[what], what
        assert sent_bytes(one, of_sites=False) == sent_bytes(outside, of_sites=False)
        found = outside_mu(one, outside)
        # All that the hub makes of what sites release is as well covered as that.
        assert min(found, seen) <= min(against_hub, against_others) * SLACK
        assert found <= against_others * SLACK
    else:
        assert places_mu(one, other, hub=not case.at_sites) <= against_others * SLACK
        assert places_mu(one, other, hub=case.at_sites) == 0.0


@pytest.mark.parametrize(("method", "trust"), PLACES)
@settings(max_examples=25)
@given(data=st.data())
def test_a_federated_fit_stays_within_its_budget_and_shows_nothing_else(method: str, trust: str, data: st.DataObject) -> None:
    check(data.draw(neighbouring_sites(method, trust)))


def test_people_with_several_rows_leave_no_trace_in_a_public_count() -> None:
    """A sum of weights 1/m is a whole number only up to its last digits, and those would tell m."""
    rng = np.random.default_rng(0)
    crowd = [(i, person(DIM, rng, 1.0, 1)) for i in range(3)]
    rows = {count: person(DIM, rng, 0.0, count) for count in (1, 49)}
    for method in ("wda", "uda", "merge", "power", "covariance"):
        for near in ("zero-out", "replace-one"):
            options: dict[str, Any] = {"method": method, "trust": "site", "epsilon": 1.0, "delta": DELTA, "row_bound": 1.0}
            options |= {"center": None, "neighbours": near, "person": "who"}
            one, other = ([site_table([*crowd, (99, rows[count])], grouped=True, sparse=False)] * 2 for count in (1, 49))
            first, second = both_views(Case(options, one, other, None, {}))
            assert shown(first) == shown(second), (method, near)
            assert sent_bytes(first, of_sites=True) == sent_bytes(second, of_sites=True), (method, near)


# One person on the sphere, at as many sites as they may be at, in a table of zeros.


def canary(sites: int) -> tuple[list[Array], list[Array]]:
    """Sites with a person of length 5 along the first axis at the first few, and without."""
    rows = np.zeros((3, DIM))
    blank = [rows] * SITES
    loud = rows.copy()
    loud[0, 0] = 5.0
    return [loud if site < sites else rows for site in range(SITES)], blank


def canary_case(trust: str, sites: int = 1, **more: Any) -> Case:
    """The canary and what to ask: nothing but the covariance, whose share is all of the budget."""
    options: dict[str, Any] = {"method": "covariance", "trust": trust, "epsilon": 1.0, "delta": DELTA, "row_bound": 1.0}
    options |= {"center": None, "neighbours": "zero-out", "person_sites": sites} | more
    return Case(options, *canary(sites), None, {})


@pytest.mark.parametrize("sites", [1, 2, 4])
@pytest.mark.parametrize("topology", ["star", "tree"])
@pytest.mark.parametrize("trust", ["hub", "site"])
def test_the_bound_is_reached(trust: str, topology: str, sites: int) -> None:
    case = canary_case(trust, sites, topology=topology, fanout=2)

    def run(tables: list[Array]) -> Callable[[], object]:
        return lambda: FederatedPCA(2, random_state=1, **case.options).fit(tables)

    expected = mu_for(1.0, DELTA) / (COVERED if trust == "hub" else 1.0)
    found = realised_mu(run(case.one), run(case.other))
    assert (1 - ON_GRID) * expected <= found <= expected * SLACK


@pytest.mark.parametrize("pair", [(4.0, 0.5), (1.0, 1.0), (0.5, 4.0)])
@pytest.mark.parametrize("sites", [1, 2, 3])
def test_both_bounds_are_reached(pair: tuple[float, float], sites: int) -> None:
    case = canary_case("both", sites, epsilon=pair)
    one, other = both_views(case)
    outside = neighbouring_view(case, one, "hub")
    against_hub, against_others = budgets(case.options)
    assert (1 - ON_GRID) * against_hub <= places_mu(one, other, hub=False) <= against_hub * SLACK
    found = outside_mu(one, outside)
    assert found <= min(against_hub, against_others) * SLACK
    assert found == pytest.approx(min(against_hub, against_others), rel=1e-3)


@pytest.mark.parametrize("method", ["power", "fedpower"])
@pytest.mark.parametrize("trust", ["hub", "site"])
def test_several_rounds_come_close_to_the_bound(method: str, trust: str) -> None:
    """A person in the span of every block moves each product by the whole sensitivity; the total sum of squares has a share."""
    case = canary_case(trust, method=method, rounds=2, oversample=2)
    one, other = both_views(case)
    found, stated = places_mu(one, other, hub=trust == "hub"), mu_for(1.0, DELTA)
    assert (1 - OFF) * stated <= found <= stated * SLACK


@pytest.mark.parametrize("trust", ["hub", "site", "both"])
def test_a_forgotten_clip_is_convicted(trust: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Domain, "to_grid", lambda self, squares, block, unit, *more: np.full(len(squares), 1 / unit))
    case = canary_case(trust, epsilon=(1.0, 1.0) if trust == "both" else 1.0)
    one, other = both_views(case)
    found = places_mu(one, other, hub=trust == "hub")
    expected = 25 * mu_for(1.0, DELTA) / (COVERED if trust == "hub" else 1.0)
    assert found == pytest.approx(expected, rel=1e-6)
    with pytest.raises(AssertionError):
        check(case)


def test_local_steps_without_noise_of_their_own_are_convicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedPower as printed: the last local step alone is charged, and the basis it starts from has read the rows."""
    rows = np.zeros((2, DIM))
    rows[0, 0], rows[1, 1] = math.sqrt(399.5), math.sqrt(400.0)
    options: dict[str, Any] = {"method": "fedpower", "trust": "site", "epsilon": 1.0, "delta": DELTA, "row_bound": 20.0}
    options |= {"center": None, "neighbours": "zero-out", "local_steps": 50, "rounds": 1, "oversample": 0}
    options |= {"n_components": 1}
    blank = np.vstack([rows, np.zeros((1, DIM))])
    extra = np.vstack([rows, np.eye(DIM)[:1] * 20.0])
    case = Case(options, [extra, blank], [blank, blank], None, {})
    check(case)
    honest = LocalPower.work

    def work(task: LocalPower, question: Question, table: Rows, mechanism: Mechanism) -> Any:
        inner = [True] * 49 + [False]
        kept = mechanism

        class Hidden(Mechanism):
            """Noise for the last step alone, for the whole of the share."""

            def release(self, private: Any, *, label: str, share: float = 1.0, slot: Any = None) -> Array:
                through = Exact(because="as printed") if inner.pop(0) else kept
                return through.release(private, label=label, share=50 * share, slot=slot)

            def release_columns(self, slices: Any, **more: Any) -> Any:
                raise AssertionError("no slices here")

            def scale(self, sensitivity: float, *, share: float = 1.0) -> float:
                return kept.scale(sensitivity, share=share)

        return honest(task, question, table, Hidden())

    monkeypatch.setattr(LocalPower, "work", work)
    one, other = both_views(case)
    # The basis rounds from the second axis to the first, and with it the product, by far more than one row may.
    assert places_mu(one, other, hub=False) > 1.3 * mu_for(1.0, DELTA)


@pytest.mark.parametrize("trust", ["hub", "both"])
def test_a_hub_that_forgets_that_people_are_at_several_sites_is_convicted(trust: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = canary_case(trust, 3, epsilon=(2.0, 1.0) if trust == "both" else 1.0)
    check(case)
    honest = Hub.__init__

    def forgetful(hub: Any, *arguments: Any, person_sites: int = 1, **more: Any) -> None:
        honest(hub, *arguments, person_sites=1, **more)

    monkeypatch.setattr(Hub, "__init__", forgetful)
    one, other = both_views(case, how="hub")
    if trust == "both":
        # The hub's noise is for a third of the movement; that of the sites, which all know better, is as it was.
        against_hub, against_others = budgets(case.options)
        carried = (against_others / against_hub) ** 2
        expected = against_others / math.sqrt(carried + (1 - carried) / 9)
        assert outside_mu(one, other) == pytest.approx(expected, rel=1e-3)
    else:
        assert places_mu(one, other, hub=True) == pytest.approx(3 * mu_for(1.0, DELTA), rel=OFF)


def test_a_hub_that_counts_on_too_much_noise_of_a_site_is_convicted(monkeypatch: pytest.MonkeyPatch) -> None:
    case = canary_case("both", epsilon=(4.0, 1.0))
    check(case)
    from eigenveil.estimators.federated.parties import Parties

    honest = Parties._hub_multiplier

    def hopeful(parties: Any, budget: Budget) -> tuple[float, float]:
        multiplier, carried = honest(parties, budget)
        # As if the noise of all four sites covered each person.
        return multiplier, min(multiplier, 2 * carried)

    monkeypatch.setattr(Parties, "_hub_multiplier", hopeful)
    with pytest.raises(AssertionError):
        check(case)


def test_a_bound_of_any_size_gives_nothing_away_by_an_error() -> None:
    """Whether a fit ends in an answer must not depend on one person: parts of any size that rows can have are taken."""
    for bound in (1e-90, 1e30, 1e76, 1e90):
        rows = np.zeros((3, DIM))
        loud = rows.copy()
        loud[0] = bound
        ends = []
        for table in (rows, loud):
            try:
                FederatedPCA(1, epsilon=1.0, delta=DELTA, row_bound=bound, center=None, random_state=1).fit([table, rows])
                ends.append("an answer")
            except (ValueError, QuorumLost) as error:
                ends.append(str(error))
        assert ends[0] == ends[1], bound
