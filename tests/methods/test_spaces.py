"""One-shot methods: the papers' averages line by line, FPCA's merge in any tree, and parts that cannot be refused."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import Generator

from eigenveil.core.domain import Domain
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Exact, Gaussian
from eigenveil.core.noise import Noise
from eigenveil.core.rows import Rows
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import DenseRows, SparseRows, WeightedRows
from eigenveil.linalg import Array, Subspace, sines, top_eigen
from eigenveil.methods.spaces import SiteSpace, SiteSpaces, SpacesKind
from eigenveil.privacy.sums import bounded_gram
from eigenveil.tasks.base import Question
from linalg.bases import gram_of, rows_of

EXACT = Exact(because="tests compare with the exact answer")
NEAR = Neighbours.ADD_REMOVE
KINDS: list[SpacesKind] = ["merge", "uda", "wda"]


def spaces(dim: int, kind: SpacesKind, rank: int, width: int | None = None, *, normalise: bool = False) -> SiteSpaces:
    return SiteSpaces(
        domain=Domain(dim=dim, radius=math.inf), neighbours=NEAR, kind=kind, rank=rank, width=width, normalise=normalise
    )


def star(task: SiteSpaces, sites: list[Array]) -> Subspace:
    """The result when each site sends its part straight to the hub."""
    total: tuple[SiteSpace, ...] = ()
    for site in sites:
        part = task.work(task.ask(None), DenseRows(site), EXACT)
        total = task.combine(total, task.part(task.ask(None), task.arrays(part)))
    return task.advance(None, total, EXACT)


def tree(task: SiteSpaces, sites: list[Array], rng: Generator, *, depth: int) -> Subspace:
    """The result through `depth` layers of inner nodes over the sites, each of a random fan-out, parts sent at each."""

    def sent(part: tuple[SiteSpace, ...]) -> tuple[SiteSpace, ...]:
        return task.part(Question(), task.arrays(part))

    layer = [sent(task.work(task.ask(None), DenseRows(site), EXACT)) for site in sites]
    for _ in range(depth):
        layer = [layer[index] for index in rng.permutation(len(layer))]
        cuts = np.sort(rng.choice(np.arange(1, len(layer)), size=int(rng.integers(0, len(layer))), replace=False))
        above = []
        for group in np.split(np.arange(len(layer)), cuts):
            whole = layer[group[0]]
            for index in group[1:]:
                whole = task.combine(whole, layer[index])
            above.append(sent(task.condense(whole)))
        layer = above
    total = layer[0]
    for part in layer[1:]:
        total = task.combine(total, part)
    return task.advance(None, total, EXACT)


def top(matrix: Array, rank: int) -> tuple[Array, Array]:
    values, vectors = np.linalg.eigh(matrix)
    return values[::-1][:rank], vectors[:, ::-1][:, :rank]


def printed_average(sites: list[Array], rank: int, *, weighted: bool, sent: int) -> tuple[Array, Array]:
    """FedPower Alg. 4 and 5, line by line."""
    total = np.zeros((sites[0].shape[1], sites[0].shape[1]))
    for site in sites:
        values, vectors = top(site.T @ site / len(site), sent)
        middle = np.diag(values) if weighted else np.eye(sent)
        total += vectors @ middle @ vectors.T
    return top(total / len(sites), rank)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), weighted=st.booleans(), few=st.booleans())
def test_averages_span_what_the_printed_ones_do(seed: int, weighted: bool, few: bool) -> None:
    rng = np.random.default_rng(seed)
    dim, rank = 12, 3
    scale = 2.0 ** -np.arange(dim)
    sites = [rng.standard_normal((int(rng.integers(4, 9 if few else 40)), dim)) * scale for _ in range(6)]
    values, vectors = printed_average(sites, rank + 1, weighted=weighted, sent=rank)
    found = star(spaces(dim, "wda" if weighted else "uda", rank, normalise=weighted), sites)
    gap = (values[rank - 1] - values[rank]) / values[0]
    assert sines(found.basis, vectors[:, :rank]).max() < 1e-9 / gap


def test_directions_of_an_average_are_those_of_the_sum_within_its_span() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((4000, 6)) * [5, 4, 3, 1, 1, 1]
    for kind, normalise in (("uda", False), ("wda", True), ("wda", False)):
        found = star(spaces(6, kind, 3, normalise=normalise), np.array_split(rows, 5))  # type: ignore[arg-type]
        assert np.abs(found.basis[:3]).max(axis=0) == pytest.approx(1.0, abs=0.02)
        np.testing.assert_allclose(np.square(found.values), top(rows.T @ rows, 3)[0], rtol=0.01)


def test_without_normalising_wda_weighs_sites_by_their_rows() -> None:
    rng = np.random.default_rng(1)
    sites = [rng.standard_normal((count, 6)) for count in (5, 80)]
    whole = np.zeros((6, 6))
    for site in sites:
        values, vectors = top(site.T @ site, 2)
        whole += (vectors * values) @ vectors.T
    found = star(spaces(6, "wda", 2), sites)
    assert sines(found.basis, top(whole, 2)[1]).max() < 1e-8
    np.testing.assert_allclose(np.square(found.values), top(whole, 2)[0], rtol=1e-9)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), depth=st.integers(0, 4), data=st.data())
def test_merging_loses_nothing_while_the_width_holds_all(seed: int, depth: int, data: st.DataObject) -> None:
    """FPCA Lemma 10: no order of rows, sites or merges matters; and the answer is that of all rows together."""
    rng = np.random.default_rng(seed)
    dim = 10
    have = data.draw(st.integers(1, 6))
    width = data.draw(st.integers(have, dim))
    rank = data.draw(st.integers(1, have))
    rows = rng.standard_normal((40, have)) @ rows_of(have, dim, rng)
    shuffled = rows[rng.permutation(40)]
    sites = np.split(shuffled, np.sort(rng.integers(0, 41, size=int(rng.integers(0, 9)))))
    found = tree(spaces(dim, "merge", rank, width), sites, rng, depth=depth)
    exact = Subspace.of(rows, rank=have)
    kept = exact.values[:rank][exact.values[:rank] > 1e-6 * exact.values[0]]
    np.testing.assert_allclose(found.values[: len(kept)], kept, rtol=1e-5)
    if rank == have:
        np.testing.assert_allclose(gram_of(found), rows.T @ rows, atol=1e-9 * exact.values[0] ** 2)


@settings(max_examples=80)
@given(seed=st.integers(0, 2**32), depth=st.integers(1, 4), rank=st.integers(1, 5))
def test_a_tree_keeps_the_bound_of_theorem_3(seed: int, depth: int, rank: int) -> None:
    """FPCA Theorem 3: || (Y^(q+1))_r - Y B ||_F <= ((1 + sqrt 2)^(q+1) - 1) || Y_r - Y ||_F after q layers, the hub among them.

    The smallest distance over unitary B between two matrices whose rows are columns of data is had from singular values:
    ||Z||^2 + ||Y||^2 - 2 || Z^T Y ||_nuclear.
    """
    rng = np.random.default_rng(seed)
    rows = rows_of(60, 12, rng)
    sites = np.split(rows, np.sort(rng.integers(0, 61, size=7)))
    found = tree(spaces(12, "merge", rank), sites, rng, depth=depth)
    kept = found.basis * found.values
    square = np.square(kept).sum() + np.square(rows).sum() - 2 * np.linalg.norm(kept.T @ rows.T, "nuc")
    tail = math.sqrt(np.square(np.linalg.svd(rows, compute_uv=False)[rank:]).sum())
    # Here q is one more than the inner layers.
    assert math.sqrt(max(float(square), 0.0)) <= ((1 + math.sqrt(2)) ** (depth + 2) - 1) * tail + 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_sites_with_few_rows_none_or_zeros(kind: SpacesKind) -> None:
    rng = np.random.default_rng(2)
    task = spaces(8, kind, 3)
    one = rng.standard_normal((1, 8))
    assert task.work(Question(), DenseRows(one), EXACT)[0].space.rank == 1
    assert task.work(Question(), SparseRows(sp.csr_array(one)), EXACT)[0].space.rank == 1
    for empty in (np.zeros((0, 8)), np.zeros((3, 8)), np.zeros((30, 8))):
        assert task.work(Question(), DenseRows(empty), EXACT)[0].space.rank == 0
        assert star(task, [empty, empty]).values.tolist() == [0.0, 0.0, 0.0]
        found = star(task, [empty, one])
        assert sines(found.basis[:, :1], one.T / np.linalg.norm(one)).max() < 1e-12
        assert found.rank == 3
        assert found.values[1:].tolist() == [0.0, 0.0]
        if kind == "merge":
            (nothing,) = task.condense(task.work(Question(), DenseRows(empty), EXACT) * 2)
            assert nothing.space.rank == 0


@pytest.mark.parametrize("count", [4, 200])
def test_storages_agree_and_clip(count: int) -> None:
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((count, 9)) * 3
    task = SiteSpaces(
        domain=Domain(dim=9, radius=2.0, center=np.full(9, 0.1), claimed=False), neighbours=NEAR, kind="merge", rank=2, width=3
    )
    sides: list[Rows] = [DenseRows(rows), SparseRows(sp.csr_array(rows))]
    dense, sparse = (task.work(Question(), side, EXACT)[0].space for side in sides)
    moved = rows - 0.1
    clipped = moved * np.minimum(1, 2 / np.linalg.norm(moved, axis=1, keepdims=True))
    exact = Subspace.of(clipped, rank=3)
    for found in (dense, sparse):
        np.testing.assert_allclose(gram_of(found), gram_of(exact), atol=1e-8)
    # On the grid each row is clipped and rounded, which moves it by up to sqrt(d) units of 2^-16 of the radius.
    on_grid = SiteSpaces(domain=Domain(dim=9, radius=2.0, center=np.full(9, 0.1)), neighbours=NEAR, kind="merge", rank=2, width=3)
    for side in sides:
        rounded_to_grid = on_grid.work(Question(), side, EXACT)[0].space
        np.testing.assert_allclose(rounded_to_grid.values, exact.values, rtol=4 * 2.0**-16 * 3)
    people = np.repeat(np.arange(count // 2), 2)
    grouped = task.work(Question(), WeightedRows.by_person(DenseRows(rows), people), EXACT)[0].space
    np.testing.assert_allclose(grouped.values, Subspace.of(clipped / math.sqrt(2), rank=3).values)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [3, 100])
def test_noise_is_on_the_matrix_of_the_site_and_paid_once(kind: SpacesKind, count: int) -> None:
    rows = np.random.default_rng(4).standard_normal((count, 6))
    ledger = Ledger(epsilon=math.inf, delta=1e-6)
    task = SiteSpaces(domain=Domain(dim=6, radius=1.0), neighbours=NEAR, kind=kind, rank=2)
    mechanism = Gaussian(multiplier=2.0, ledger=ledger, noise=Noise.seeded(3))
    part = task.work(Question(), DenseRows(rows), mechanism)
    assert [(charge.label, charge.mu) for charge in ledger.charges] == [("site covariance", 0.5)]
    with pytest.raises(ValueError, match="dd noise at the sites"):
        task.advance(None, part, mechanism)
    again = Gaussian(multiplier=2.0, ledger=Ledger(epsilon=math.inf, delta=1e-6), noise=Noise.seeded(3))
    noised = again.release(bounded_gram(DenseRows(rows), domain=task.domain, neighbours=NEAR), label="the same")
    space = part[0].space
    assert sines(space.basis, top_eigen(noised, rank=2)[1][:, : space.rank]).max() < 1e-10


def test_dividing_by_a_protected_count_is_refused() -> None:
    rows = DenseRows(np.random.default_rng(5).standard_normal((20, 4)))
    mechanism = Gaussian(multiplier=2.0, ledger=Ledger(epsilon=math.inf, delta=1e-6), noise=Noise.seeded(3))
    with pytest.raises(ValueError, match="number of people"):
        SiteSpaces(domain=Domain(dim=4, radius=1.0), neighbours=NEAR, kind="wda", rank=2, normalise=True).work(
            Question(), rows, mechanism
        )
    public = SiteSpaces(domain=Domain(dim=4, radius=1.0), neighbours=Neighbours.ZERO_OUT, kind="wda", rank=2, normalise=True)
    assert public.work(Question(), rows, mechanism)[0].space.rank == 2
    assert public.work(Question(), DenseRows(np.zeros((0, 4))), mechanism)[0].space.rank <= 2


ONE = np.ones(1)


def with_basis(change: Callable[[Array], Array]) -> Callable[[Array, Array], tuple[Any, ...]]:
    return lambda basis, values: (change(basis), values, ONE)


def with_values(change: Callable[[Array], Array]) -> Callable[[Array, Array], tuple[Any, ...]]:
    return lambda basis, values: (basis, change(values), ONE)


DAMAGE: dict[str, Callable[[Array, Array], tuple[Any, ...]]] = {
    "nothing": lambda basis, values: (),
    "no values": lambda basis, values: (basis, ONE),
    "another divisor": lambda basis, values: (basis, values, 2 * ONE),
    "a divisor that is no number": lambda basis, values: (basis, values, np.nan * ONE),
    "two subspaces": lambda basis, values: (basis, values, ONE, basis, values, ONE),
    "too many directions": lambda basis, values: (np.eye(6)[:, :4], np.ones(4), ONE),
    "too many columns": lambda basis, values: (np.eye(7)[:, :3], values, ONE),
    "other shape": with_basis(lambda basis: basis.T.copy()),
    "flat": with_basis(lambda basis: basis.ravel()),
    "values of another length": with_values(lambda values: values[:2]),
    "values as a column": with_values(lambda values: values[:, None]),
    "not orthonormal": with_basis(lambda basis: basis * 1.01),
    "dependent": with_basis(lambda basis: basis[:, [0, 0, 1]]),
    "not a number": with_basis(lambda basis: basis * np.nan),
    "infinite": with_values(lambda values: values * np.inf),
    "huge": with_values(lambda values: values * 1e160),
    "negative": with_values(lambda values: values - 10),
    "increasing": with_values(lambda values: values[::-1].copy()),
    "single precision": with_basis(lambda basis: basis.astype(np.float32)),
    "not arrays": lambda basis, values: (basis.tolist(), values.tolist(), ONE),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_hostile_parts_are_refused(damage: str) -> None:
    task = spaces(6, "merge", 2, 3)
    basis, values = np.eye(6)[:, :3], np.array([3.0, 2.0, 1.0])
    assert task.part(Question(), (basis, values, ONE))[0].space.rank == 3
    with pytest.raises(ValueError):
        task.part(Question(), DAMAGE[damage](basis, values))


def test_bad_settings_and_questions_are_refused() -> None:
    domain = Domain(dim=4, radius=1.0)
    for more, message in (
        ({"kind": "mean"}, "kind must be one of"),
        ({"rank": 0}, "rank must lie"),
        ({"rank": 5}, "rank must lie"),
        ({"width": 1}, "width must lie"),
        ({"width": 5}, "width must lie"),
        ({"kind": "uda", "width": 3}, "width equal to the rank"),
        ({"normalise": True}, "normalise is for wda"),
    ):
        good: dict[str, Any] = {"kind": "merge", "rank": 2, **more}
        with pytest.raises(ValueError, match=message):
            SiteSpaces(domain=domain, neighbours=NEAR, **good)
    task = SiteSpaces(domain=domain, neighbours=NEAR, kind="merge", rank=2)
    task.require_question(task.ask(task.start()))
    for question in (Question(1), Question(0, (np.eye(4),))):
        with pytest.raises(ValueError):
            task.require_question(question)
    assert task.result(None) is task.estimate(None) is None
