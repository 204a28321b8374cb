"""FedPower Alg. 2 against a literal transcription; schedules by hand; every local step paid for; damage refused."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil.core.domain import Domain
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Exact, Gaussian, Mechanism
from eigenveil.core.noise import Noise
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import DenseRows
from eigenveil.linalg import Array, orthonormal, sines, top_eigen
from eigenveil.methods.fedpower import Align, LocalPart, LocalPower, LocalState, constant_steps, decaying_steps
from eigenveil.tasks.base import Question

EXACT = Exact(because="tests compare with the exact answer")
NEAR = Neighbours.ADD_REMOVE


def start(dim: int, width: int, seed: int = 0) -> Array:
    return orthonormal(np.random.default_rng(seed).standard_normal((dim, width)))


def even(rounds: int) -> tuple[float, ...]:
    return (1.0 / rounds,) * rounds


def fedpower(dim: int, width: int, steps: tuple[int, ...], **more: Any) -> LocalPower:
    settings: dict[str, Any] = {"shares": even(len(steps)), "rank": width, **more}
    return LocalPower(domain=Domain(dim=dim, radius=math.inf), neighbours=NEAR, begin=start(dim, width), steps=steps, **settings)


def unequal_sites(seed: int, dim: int, count: int) -> list[Array]:
    """Sites of different sizes whose rows lean different ways."""
    rng = np.random.default_rng(seed)
    scale = 1 / np.sqrt(np.arange(1, dim + 1))
    sizes = rng.integers(3 * dim, 6 * dim, count)
    return [rng.standard_normal((size, dim)) * scale * rng.uniform(0.8, 1.2, dim) for size in sizes]


def round_of(task: LocalPower, state: LocalState, sites: list[Array]) -> LocalState:
    """One round over these sites, each part sent and received."""
    question = task.ask(state)
    task.require_question(question)
    parts = [task.part(question, task.arrays(task.work(question, DenseRows(site), EXACT))) for site in sites]
    total = parts[0]
    for part in parts[1:]:
        total = task.combine(total, part)
    return task.advance(state, total, EXACT)


def qr(matrix: Array) -> Array:
    """QR with a positive diagonal: the one that is unique."""
    basis, upper = np.linalg.qr(matrix)
    return basis * np.sign(np.diag(upper))


def printed(sites: list[Array], begin: Array, steps: tuple[int, ...], align: Align) -> tuple[list[Array], list[float]]:
    """FedPower Alg. 2 without noise, line by line, with averages M_i and weights p_i; alignment to the last broadcast basis.

    The basis after each round of talking, and the largest distance of any site's from the one before.
    """
    rows = sum(len(site) for site in sites)
    weights = [len(site) / rows for site in sites]
    means = [site.T @ site / len(site) for site in sites]
    synchronous = set(np.cumsum(steps).tolist())
    local, broadcast = [begin for _ in sites], begin
    bases, spreads = [], []
    for time in range(1, sum(steps) + 1):
        products = [mean @ basis for mean, basis in zip(means, local, strict=True)]
        if time in synchronous:
            rounds = []
            for basis in local:
                if align == "procrustes":
                    left, _, right = np.linalg.svd(basis.T @ broadcast)
                    rounds.append(left @ right)
                elif align == "sign":
                    rounds.append(np.diag(np.sign(np.sum(basis * broadcast, axis=0))))
                else:
                    rounds.append(np.eye(basis.shape[1]))
            spreads.append(max(float(np.linalg.norm(z @ d - broadcast, 2)) for z, d in zip(local, rounds, strict=True)))
            total: Array = np.zeros_like(begin)
            for weight, product, round_ in zip(weights, products, rounds, strict=True):
                total = total + weight * product @ round_
            products = [total for _ in sites]
            broadcast = qr(total)
            bases.append(broadcast)
        # Without alignment nothing may align signs as a side effect, as a positive diagonal would.
        plain = align == "none" and time not in synchronous
        local = [np.linalg.qr(product)[0] if plain else qr(product) for product in products]
    return bases, spreads


@pytest.mark.parametrize("align", ["procrustes", "sign", "none"])
@pytest.mark.parametrize("steps", [(4, 4, 4, 4), (4, 3, 2, 1, 1), (1, 1, 1)])
@pytest.mark.parametrize(("dim", "width"), [(40, 5), (12, 6)])
def test_is_the_printed_algorithm(align: Align, steps: tuple[int, ...], dim: int, width: int) -> None:
    sites = unequal_sites(1, dim, 5)
    task = fedpower(dim, width, steps, align=align, rank=width - 1)
    bases, spreads = printed(sites, task.begin, steps, align)
    state = task.start()
    for basis, spread in zip(bases, spreads, strict=True):
        assert task.result(state) is None
        state = round_of(task, state, sites)
        assert sines(state.basis, basis).max() < 1e-8
        assert task.spread(state) == pytest.approx(spread, abs=1e-8)
    found = task.result(state)
    assert found is not None
    assert found is task.estimate(state)
    assert found.rank == width - 1


def test_one_local_step_is_the_power_method() -> None:
    sites = unequal_sites(2, 20, 4)
    gram = sum((site.T @ site for site in sites), np.zeros((20, 20)))
    task = fedpower(20, 6, constant_steps(1, 300), rank=3)
    state = task.start()
    while (found := task.result(state)) is None:
        state = round_of(task, state, sites)
    values, vectors = top_eigen(gram, rank=3)
    assert sines(found.basis, vectors).max() < 1e-6
    np.testing.assert_allclose(found.values, np.sqrt(values), rtol=1e-9)
    assert task.spread(state) == 0.0


def test_local_steps_converge_sooner_and_decay_removes_the_floor() -> None:
    """Figures 3 and 6 in small: p = 4 is ahead after few rounds, and stays off the answer; the decaying schedule does not."""
    rng = np.random.default_rng(3)
    sites = [rng.standard_normal((count, 30)) * 0.9 ** np.arange(30) for count in (4000, 3000, 5000)]
    vectors = top_eigen(sum((site.T @ site for site in sites), np.zeros((30, 30))), rank=3)[1]

    def error(steps: tuple[int, ...]) -> float:
        task = fedpower(30, 6, steps, rank=3)
        state = task.start()
        while (found := task.result(state)) is None:
            state = round_of(task, state, sites)
        return float(sines(found.basis, vectors).max())

    assert error(constant_steps(4, 4)) < error(constant_steps(1, 4)) / 2
    assert error(constant_steps(4, 60)) > 1e-4
    assert error(decaying_steps(4, 100)) < 1e-6


def test_tolerance_ends_the_run_when_the_estimate_rests() -> None:
    sites = unequal_sites(4, 20, 3)
    task = fedpower(20, 6, constant_steps(2, 500), rank=2, tolerance=1e-4)
    state = task.start()
    while task.result(state) is None:
        before = task.estimate(state)
        state = round_of(task, state, sites)
    now = task.estimate(state)
    assert before is not None
    assert now is not None
    assert state.round < 500
    assert sines(before.basis, now.basis).max() == pytest.approx(state.movement)
    assert state.movement <= 1e-4


def test_schedules_by_hand() -> None:
    """(3.15): talk at t = 4, 4 + 3, 4 + 3 + 2, 4 + 3 + 2 + 1, and each step after."""
    assert np.cumsum(decaying_steps(4, 6)).tolist() == [4, 7, 9, 10, 11, 12]
    assert np.cumsum(constant_steps(4, 3)).tolist() == [4, 8, 12]
    for steps, rounds in ((0, 3), (3, 0)):
        for schedule in (constant_steps, decaying_steps):
            with pytest.raises(ValueError, match="at least 1"):
                schedule(steps, rounds)


def test_a_site_without_rows_changes_nothing() -> None:
    sites = unequal_sites(5, 15, 3)
    for align in ("procrustes", "sign", "none"):
        task = fedpower(15, 4, (3, 3), align=align)
        one = round_of(task, task.start(), sites)
        other = round_of(task, task.start(), [np.zeros((0, 15)), *sites, np.zeros((2, 15))])
        assert sines(one.basis, other.basis).max() < 1e-12
        assert one.spread == pytest.approx(other.spread)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), align=st.sampled_from(["procrustes", "sign", "none"]))
def test_parts_combine_in_any_order_and_weigh(seed: int, align: Align) -> None:
    sites = unequal_sites(seed, 8, 4)
    task = fedpower(8, 3, (3,), align=align)
    parts = [task.work(task.ask(task.start()), DenseRows(site), EXACT) for site in sites]
    one = task.combine(task.combine(parts[0], parts[1]), task.combine(parts[2], parts[3]))
    two = task.combine(parts[3], task.combine(parts[1], task.combine(parts[0], parts[2])))
    np.testing.assert_allclose(one.product, two.product, rtol=1e-12, atol=1e-12 * np.abs(one.product).max())
    assert one.spread == two.spread == max(part.spread for part in parts)
    twice = task.weighted(parts[0], 2.0)
    np.testing.assert_array_equal(twice.product, 2 * parts[0].product)
    assert twice.spread == parts[0].spread


def noisy(multiplier: float = 2.0) -> tuple[Gaussian, Ledger]:
    ledger = Ledger(epsilon=math.inf, delta=1e-6)
    return Gaussian(multiplier=multiplier, ledger=ledger, noise=Noise.seeded(1)), ledger


def test_every_local_step_is_released_and_paid_for() -> None:
    rows = DenseRows(np.random.default_rng(0).standard_normal((50, 10)))
    task = LocalPower(
        domain=Domain(dim=10, radius=1.0), neighbours=NEAR, begin=start(10, 3), steps=(3, 1), shares=(0.4, 0.6), rank=2
    )
    mechanism, ledger = noisy()
    state = task.start()
    while task.result(state) is None:
        part = task.work(task.ask(state), rows, mechanism)
        assert 0 <= part.spread <= 2
        state = task.advance(state, part, EXACT)
    assert [charge.label for charge in ledger.charges] == [
        "fedpower round 1 of 2, local step 1 of 3",
        "fedpower round 1 of 2, local step 2 of 3",
        "fedpower round 1 of 2, local step 3 of 3",
        "fedpower round 2 of 2",
    ]
    np.testing.assert_allclose([charge.mu**2 * 4 for charge in ledger.charges], [0.4 / 3] * 3 + [0.6])
    assert math.isclose(ledger.spent_mu, 0.5, rel_tol=1e-12)


def test_everything_sent_is_a_function_of_what_was_released() -> None:
    """Two sites with different rows and the same releases send the same: nothing reaches the part around the noise."""

    class Told(Mechanism):
        """Releases what it was told beforehand, whatever the rows are."""

        def release(self, private: Any, *, label: str, share: float = 1.0, slot: Any = None) -> Array:
            shape: tuple[int, ...] = private.value.shape
            return np.random.default_rng(int(label[-6])).standard_normal(shape)

        def release_columns(self, slices: Any, **more: Any) -> Any:
            raise AssertionError("not used")

        def scale(self, sensitivity: float, *, share: float = 1.0) -> float:
            return 1.0

    task = LocalPower(domain=Domain(dim=10, radius=1.0), neighbours=NEAR, begin=start(10, 3), steps=(4,), shares=(1.0,), rank=2)
    question = task.ask(task.start())
    rng = np.random.default_rng(0)
    one, two = (task.work(question, DenseRows(rng.standard_normal((20, 10))), Told()) for _ in range(2))
    np.testing.assert_array_equal(one.product, two.product)
    assert one.spread == two.spread


def test_noise_at_the_hub_is_for_one_local_step_only() -> None:
    rows = DenseRows(np.random.default_rng(0).standard_normal((50, 10)))
    for steps, covered in (((1, 1), True), ((1, 2), False), ((2, 1), False)):
        task = LocalPower(
            domain=Domain(dim=10, radius=1.0), neighbours=NEAR, begin=start(10, 3), steps=steps, shares=(0.5, 0.5), rank=2
        )
        mechanism, ledger = noisy()
        part = task.work(task.ask(task.start()), rows, EXACT)
        if covered:
            task.advance(task.start(), part, mechanism)
            assert [charge.label for charge in ledger.charges] == ["fedpower round 1 of 2"]
            # A basis and scores on their grids may add a part in 2^18 to it.
            assert 1.0 <= task.sensitivity(task.ask(task.start())) <= 1.0 + 2.0**-17
        else:
            with pytest.raises(ValueError, match="dd noise at the sites"):
                task.advance(task.start(), part, mechanism)
            assert ledger.charges == ()


def test_hostile_parts_are_refused() -> None:
    task = fedpower(6, 2, (2,))
    question = task.ask(task.start())
    product, spread = np.ones((6, 2)), np.array([0.5])
    assert isinstance(task.part(question, (product, spread)), LocalPart)
    damaged: list[Any] = [
        (product,),
        (product, spread, spread),
        (np.ones((6, 3)), spread),
        (np.ones((2, 6)), spread),
        (product.astype(np.float32), spread),
        (np.full((6, 2), np.nan), spread),
        (np.full((6, 2), np.inf), spread),
        (np.full((6, 2), 1e200), spread),
        (product, np.array([-0.1])),
        (product, np.array([2.1])),
        (product, np.array([np.nan])),
        (product, np.array([np.inf])),
        (product, np.array([[0.5]])),
        (product, np.array([0.5, 0.5])),
        (product, np.array([1])),
    ]
    for arrays in damaged:
        with pytest.raises(ValueError):
            task.part(question, arrays)
    for asked in (Question(1, (task.begin,)), Question(0, (np.eye(6)[:, :1],)), Question(0, (2 * task.begin,)), Question()):
        with pytest.raises(ValueError):
            task.require_question(asked)
