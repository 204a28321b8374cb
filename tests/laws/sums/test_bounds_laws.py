"""What is asked of a table before it is fitted keeps its sensitivity too: every release of a search for bounds and of a spectrum.

Whole searches are attacked as well: neighbours are given the same answers, and what each was about to release is compared.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil.core.counts import _root, bounded_column_tails, bounded_tails, tails_sensitivity
from eigenveil.core.domain import Domain, MissingPolicy
from eigenveil.core.mechanism import Bounded, Mechanism
from eigenveil.core.rows import Rows
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import DenseRows, Symmetric, WeightedRows
from eigenveil.estimators.bounds.columns import find_column_bounds
from eigenveil.estimators.bounds.release import SmallRelease
from eigenveil.estimators.bounds.rows import find_bounds
from eigenveil.estimators.bounds.spectrum import _room, bounded_spectrum, released_spectrum
from eigenveil.linalg import Array
from eigenveil.privacy.sums import bounded_gram
from eigenveil.tasks.levels import norm_cells, signed_cells
from laws.strategies import PERSONAL, Case, cases, table

TOLERANCE = 1 + 1e-9
Release = Callable[[Rows, Domain, Neighbours], Bounded]

RELEASES: dict[str, Release] = {
    "lengths": lambda rows, domain, near: bounded_tails(
        rows, domain=domain, cells=norm_cells(1e-3, 1e6, per_doubling=4), neighbours=near
    ),
    "columns": lambda rows, domain, near: bounded_column_tails(
        rows, domain=domain, cells=signed_cells(1e-2, 1e2, per_doubling=2), neighbours=near
    ),
    "spectrum": lambda rows, domain, near: bounded_spectrum(
        rows, domain=domain, neighbours=near, counted=not near.count_is_public
    ),
    "divided spectrum": lambda rows, domain, near: bounded_spectrum(
        rows, domain=domain, neighbours=near, counted=True, factors=divisors(domain.dim)
    ),
}


def divisors(dim: int) -> Array:
    """Public factors from one to four, as counts of entries give them."""
    rates = np.linspace(0.5, 1.0, dim)
    return np.asarray(1.0 / np.outer(rates, rates))


def gap(one: Bounded, other: Bounded) -> float:
    assert np.isfinite(one.value).all()
    assert np.isfinite(other.value).all()
    return float(np.linalg.norm(one.value - other.value))


@pytest.mark.parametrize("name", RELEASES)
@settings(max_examples=150)
@given(case=cases())
def test_every_release_keeps_its_sensitivity(name: str, case: Case) -> None:
    one, other = (RELEASES[name](rows, case.domain, case.neighbours) for rows in (case.one, case.other))
    assert one.sensitivity == other.sensitivity
    assert gap(one, other) <= one.sensitivity * TOLERANCE


@pytest.mark.parametrize("neighbours", PERSONAL)
@pytest.mark.parametrize("name", ["lengths", "columns", "spectrum"])
def test_sensitivities_are_tight(name: str, neighbours: Neighbours) -> None:
    """A row beyond the last edge, which moves the longest column of the root, against none or one at the worst place."""
    domain = Domain(dim=2, radius=1e9) if name != "spectrum" else Domain(dim=2, radius=2.0)
    near = np.full((1, 2), 1e7) if name != "spectrum" else np.array([[2.0, 0.0]])
    replaced = neighbours is Neighbours.REPLACE_ONE
    sizes = np.geomspace(1e-3, 1e7, 200)
    others = [np.full((1, 2), size) for size in (*sizes, *-sizes)] if replaced else [np.zeros((0, 2))]
    if name == "spectrum" and replaced:
        # Two orthogonal rows have the same eigenvalues: the worst that replacing one does here is to blank it.
        others = [np.zeros((1, 2))]
    one = RELEASES[name](DenseRows(near), domain, neighbours)
    worst = max(gap(one, RELEASES[name](DenseRows(other), domain, neighbours)) for other in others)
    least = 0.7 if name == "spectrum" and replaced else 0.999
    assert least * one.sensitivity <= worst <= one.sensitivity * TOLERANCE


@settings(max_examples=60)
@given(
    dim=st.sampled_from([1, 2, 3, 8]),
    size=st.sampled_from([0.25, 0.999, 1.0, 1.001, 64.0]),
    seed=st.integers(0, 2**32),
    divided=st.booleans(),
)
def test_a_spectrum_keeps_its_sensitivity_where_most_is_rounded(dim: int, size: float, seed: int, divided: bool) -> None:
    """Matrices of so many people that they are about to be projected, or are. No table in memory has as many."""
    rng, domain = np.random.default_rng(seed), Domain(dim=dim, radius=1.0)
    factors = divisors(dim) if divided else None
    # Multiples of 2^-12, so that a matrix with one person more is exact, too.
    axes = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
    crowd = np.round((axes * rng.uniform(0.1, 1.0, dim)) @ axes.T * size * _room(dim) * 2.0**12) * 2.0**-12
    crowd = (crowd + crowd.T) / 2
    person = np.eye(dim)[rng.integers(dim)]
    one, other = (
        bounded_spectrum(Symmetric(matrix, people=1 << 40), domain=domain, neighbours=PERSONAL[0], counted=True, factors=factors)
        for matrix in (crowd, crowd + np.outer(person, person))
    )
    assert gap(one, other) <= one.sensitivity * TOLERANCE


@dataclass
class Spy(Mechanism):
    """Answers every release with numbers made up beforehand, as if a thousand people had been there, and keeps what was asked.

    Changes in place.
    """

    dim: int
    asked: list[tuple[str, Bounded, float]] = field(default_factory=list)

    def release(self, private: Bounded, *, label: str, share: float = 1.0, slot: Any = None) -> Array:
        self.asked.append((label, private, share))
        size = len(private.value)
        if "norms" in label or label == "columns":
            counts = np.zeros(size)
            counts[size // 2 - 9 : size // 2 + 9] = 1000 / 18
            answer: Array = _root(size) @ counts
            return answer if private.value.ndim == 1 else np.repeat(answer[:, None], self.dim, axis=1)
        # A mean far out, so that a search takes all of its steps.
        return np.full(size, 400.0 / math.sqrt(self.dim))

    def release_columns(self, slices: Any, **more: Any) -> Any:
        raise AssertionError("nothing here is released in slices")

    def scale(self, sensitivity: float, *, share: float = 1.0) -> float:
        # Counts are told well and sums of rows, which move by the bound, badly: the mean is then looked for once more.
        return (300.0 if sensitivity > 10 else 1e-3) * sensitivity


@contextmanager
def spied(dim: int) -> Iterator[Spy]:
    spy = Spy(dim)
    with patch.object(SmallRelease, "mechanism", lambda self: spy):
        yield spy


SEARCHES: dict[str, Callable[..., Any]] = {
    "bounds": find_bounds,
    "bounds around numbers": lambda rows, **asked: find_bounds(rows, center=np.ones(rows.shape[1]), **asked),
    "columns": find_column_bounds,
    "spectrum": lambda rows, **asked: released_spectrum(rows, row_bound=2.0, **asked),
    "spectrum around numbers": lambda rows, **asked: released_spectrum(
        rows, row_bound=2.0, center=np.ones(rows.shape[1]), **asked
    ),
}


def rule_for(gaps: MissingPolicy | None) -> dict[str, Any]:
    """The parameters that declare these gaps."""
    if gaps is None:
        return {}
    together = [np.flatnonzero(gaps.group == number).tolist() for number in range(gaps.groups)]
    more: dict[str, Any] = {"groups": {"missing_groups": together}, "fill": {"missing_fill": gaps.values}}
    return {"missing": gaps.rule, **more.get(gaps.rule, {})}


def transcripts(name: str, case: Case) -> list[list[tuple[str, Bounded, float]]]:
    """What a search on each of two neighbours was about to release, both given the same answers."""
    asked = []
    gaps = case.domain.gaps
    public = case.neighbours.count_is_public and not (gaps is not None and gaps.drops)
    asked_for = {"epsilon": 1.0, "delta": 1e-6, "neighbours": case.neighbours.value, **rule_for(gaps)}
    # Public, and the same on both sides: a blanked person is counted.
    with patch.object(SmallRelease, "public_people", lambda self: 1000.0 if public else None):
        for rows in (case.one, case.other):
            with spied(case.domain.dim) as spy:
                SEARCHES[name](rows, **asked_for)
            asked.append(spy.asked)
    return asked


@pytest.mark.parametrize("name", SEARCHES)
@settings(max_examples=40)
@given(case=cases())
def test_whole_searches_release_nothing_that_moves_too_far(name: str, case: Case) -> None:
    one, other = transcripts(name, case)
    assert [label for label, _, _ in one] == [label for label, _, _ in other]
    assert sum(share for _, _, share in one) <= 1 + 1e-12
    for (_, here, _), (_, there, _) in zip(one, other, strict=True):
        assert here.sensitivity == there.sensitivity
        assert gap(here, there) <= here.sensitivity * TOLERANCE


def test_the_searches_that_are_attacked_take_all_of_their_steps() -> None:
    rows = DenseRows(np.zeros((5, 3)))
    case = Case(rows, rows, Domain(dim=3, radius=1.0), Neighbours.ADD_REMOVE)
    assert [label for label, _, _ in transcripts("bounds", case)[0]] == [
        "norms around the origin",
        "mean",
        "norms around the mean",
        "mean, once more",
        "norms around the mean, once more",
    ]
    assert [label for label, _, _ in transcripts("columns", case)[0]] == ["columns"]
    assert transcripts("spectrum", case)[0][-1][0] == "spectrum"
    torn = Case(rows, rows, Domain(dim=3, radius=1.0, gaps=MissingPolicy.counted(3)), Neighbours.ADD_REMOVE)
    assert transcripts("bounds", torn)[0][1][0] == "mean and observed entries"
    assert [label for label, _, _ in transcripts("spectrum around numbers", torn)[0]] == ["observed entries", "spectrum"]


# What follows shows that the laws above can fail.


def law(release: Release, one: Rows, other: Rows, near: Neighbours) -> bool:
    here, there = (release(rows, Domain(dim=2, radius=1.0), near) for rows in (one, other))
    return gap(here, there) <= here.sensitivity * TOLERANCE


@pytest.mark.parametrize("name", ["lengths", "columns"])
def test_counting_each_row_of_a_person_is_caught(name: str) -> None:
    many = np.full((4, 2), 1e9)
    people = [np.ones((1, 2)), many]
    release = RELEASES[name]
    grouped = [table(held, 2, sparse=False, grouped=True) for held in (people, people[:1])]
    assert law(release, grouped[0], grouped[1], Neighbours.ADD_REMOVE)
    bare = [held.inner for held in grouped if isinstance(held, WeightedRows)]
    assert not law(release, bare[0], bare[1], Neighbours.ADD_REMOVE)


def test_the_sensitivity_of_adding_is_too_little_for_replacing() -> None:
    def wrong(rows: Rows, domain: Domain, near: Neighbours) -> Bounded:
        found = RELEASES["lengths"](rows, domain, near)
        return Bounded(found.value, tails_sensitivity(len(found.value), Neighbours.ADD_REMOVE))

    one, other = DenseRows(np.full((1, 2), 1e9)), DenseRows(np.full((1, 2), 1.0))
    assert law(RELEASES["lengths"], one, other, Neighbours.REPLACE_ONE)
    assert not law(wrong, one, other, Neighbours.REPLACE_ONE)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), size=st.integers(2, 9), count=st.integers(0, 12))
def test_eigenvalues_move_no_further_than_their_matrices(seed: int, size: int, count: int) -> None:
    """Hoffman and Wielandt, for Gram matrices that differ by one row; unsorted or squared-root values would break it."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((count, size)) * rng.choice([1e-3, 1.0, 3.0], (count, 1))
    domain = Domain(dim=size, radius=1.0)
    more = DenseRows(np.vstack([rows, rng.standard_normal((1, size))]))
    one, other = (bounded_gram(r, domain=domain, neighbours=Neighbours.ADD_REMOVE).value for r in (DenseRows(rows), more))
    moved = np.linalg.norm(np.linalg.eigvalsh(one) - np.linalg.eigvalsh(other))
    assert moved <= np.linalg.norm(one - other) * (1 + 1e-9) + 1e-12


def test_eigenvalues_are_as_exact_as_the_guarantee_assumes() -> None:
    from mpmath import eigsy, matrix, mp

    mp.dps = 40
    rng = np.random.default_rng(11)
    for dim in (2, 5, 12):
        for spread in (0.0, 4.0, 12.0):
            basis = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
            gram = (basis * 10.0 ** -np.linspace(0, spread, dim)) @ basis.T
            gram = (gram + gram.T) / 2
            exact = sorted(float(value) for value in eigsy(matrix(gram.tolist()), eigvals_only=True))
            error = np.abs(np.linalg.eigvalsh(gram) - exact).max()
            assert error <= 8 * dim * 2.0**-53 * np.linalg.norm(gram)
    told = released_spectrum(rng.standard_normal((500, 3)), epsilon=1.0, delta=1e-6, row_bound=3.0)
    assert any("LAPACK" in words for words in told.guarantee.assumptions)
