"""`eigenveil.papers.baselines` against slow implementations, written down here a second time from the papers, entry by entry."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.sparse.linalg import aslinearoperator

from eigenveil.data.rows import Symmetric
from eigenveil.linalg import Array, sines
from eigenveil.papers.baselines import DDPPM, AnalyzeGauss, Baseline, FedPower, FpcaEdge, LocalRows, ModSulq, NoisyPower, Sulq

DIM, SEED = 6, 3
ROWS = np.random.default_rng(0).standard_normal((90, DIM)) * np.array([5.0, 3.0, 2.0, 1.0, 0.5, 0.3])
PARTS = [ROWS[:40], ROWS[40:60], ROWS[60:]]
BUDGET: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-3, "random_state": SEED}


def normals(*shape: int, stream: int = 1) -> Array:
    return np.random.default_rng((SEED, stream)).standard_normal(shape)


def orthonormalised(columns: Array) -> Array:
    """Gram and Schmidt, column by column."""
    basis: list[Array] = []
    for column in columns.T:
        rest = column - sum((one * (one @ column) for one in basis), np.zeros(len(column)))
        rest = rest - sum((one * (one @ rest) for one in basis), np.zeros(len(column)))
        basis.append(rest / math.sqrt(rest @ rest))
    return np.stack(basis, axis=1)


def same_space(found: Array, expected: Array) -> bool:
    return bool(sines(found.T, expected)[0] < 1e-6)


def gram_of(rows: Array) -> Array:
    return sum((np.outer(row, row) for row in rows), np.zeros((rows.shape[1],) * 2))


@pytest.mark.parametrize("adjacency", ["row", "interaction"])
def test_analyze_gauss_draws_one_normal_for_every_pair(adjacency: Any) -> None:
    found = AnalyzeGauss(2, adjacency=adjacency, row_bound=3.0 if adjacency == "row" else 1.0, **BUDGET).fit(ROWS)
    # The classical Gaussian mechanism for a sensitivity of sqrt(2) B^2, and zCDP for one of sqrt(2).
    classical = math.sqrt(2) * 9.0 * math.sqrt(2 * math.log(1.25 / 1e-3)) / 2.0
    scale = classical if adjacency == "row" else math.sqrt(2) * math.sqrt(4 * math.log(1e3)) / 2.0
    noisy, drawn = gram_of(ROWS), normals(DIM, DIM)
    for row in range(DIM):
        for column in range(row, DIM):
            noisy[row, column] += scale * drawn[row, column]
            noisy[column, row] = noisy[row, column]
    values, vectors = np.linalg.eigh(noisy)
    assert same_space(found.components_, vectors[:, np.argsort(-values)[:2]])


@pytest.mark.parametrize("mirror", ["noise", "authors", "none"])
def test_mod_sulq_has_three_ways_below_the_diagonal(mirror: Any) -> None:
    found = ModSulq(2, mirror=mirror, **BUDGET).fit(ROWS)
    people = len(ROWS)
    logarithm = math.log((DIM**2 + DIM) / (2 * 1e-3 * math.sqrt(2 * math.pi)))
    omega = (DIM + 1) / (people * 2.0) * math.sqrt(2 * logarithm) + 1 / (people * math.sqrt(2.0))
    covariance, drawn = gram_of(ROWS) / people, normals(DIM, DIM)
    noisy = covariance.copy()
    for row in range(DIM):
        for column in range(DIM):
            if column >= row or mirror == "none":
                noisy[row, column] += omega * drawn[row, column]
            else:
                noisy[row, column] += omega * drawn[column, row] if mirror == "noise" else covariance[row, column]
    values, vectors = np.linalg.eigh(noisy @ noisy.T)
    assert same_space(found.components_, vectors[:, np.argsort(-values)[:2]])


def test_sulq_and_local_rows_have_the_printed_variance() -> None:
    zeros = np.zeros((4000, DIM))
    found = LocalRows(2, **BUDGET).fit(zeros)
    noise = math.sqrt(2 * math.log(1.25 / 1e-3)) / 2.0 * normals(4000, DIM)
    left, _, right = np.linalg.svd(noise, full_matrices=False)
    assert same_space(found.components_, right[:2].T) and same_space(found.scores_.T, left[:, :2])
    omega = math.sqrt(8 * DIM**2 * math.log(DIM / 1e-3) ** 2 / 4.0)
    product = gram_of(ROWS) + omega * normals(DIM, DIM)
    assert same_space(Sulq(2, **BUDGET).fit(ROWS).components_, np.linalg.svd(product)[0][:, :2])


@pytest.mark.parametrize(
    ("settings", "factor"),
    [
        ({"sensitivity": "ppm"}, lambda z: np.linalg.norm(z, axis=1).max()),
        ({"sensitivity": "ppm", "adjacency": "edge"}, lambda z: math.sqrt(2) * np.linalg.norm(z, axis=1).max()),
        ({"sensitivity": "balcan", "users": 4}, lambda z: 2 * math.sqrt(z.shape[1]) * np.abs(z).max()),
        ({"sensitivity": "hardt-price", "adjacency": "interaction"}, lambda z: math.sqrt(2 * 3) * np.abs(z).max()),
        ({"adjacency": "row", "row_bound": 2.0}, lambda _: math.sqrt(2) * 4.0),
        ({"sensitivity": "fedpower", "users": 8}, None),
    ],
)
def test_noisy_power_follows_its_sensitivity(settings: dict[str, Any], factor: Any) -> None:
    found = NoisyPower(2, width=3, rounds=4, **settings, **BUDGET).fit(ROWS)
    basis, drawn = orthonormalised(normals(DIM, 3, stream=0)), np.random.default_rng((SEED, 1))
    for _ in range(4):
        if factor is None:
            # Alg. 2 with one user per device: sigma max |Z| at each of 8 devices and once at the server, on the sum.
            size = 3 * np.abs(basis).max() * 4 * math.sqrt(2 * math.log(1.25 * 4 / 1e-3)) / 2.0
        else:
            size = math.sqrt(4 * 4 * math.log(1e3)) / 2.0 * factor(basis)
        product = gram_of(ROWS) @ basis + size * drawn.standard_normal(basis.shape)
        basis = orthonormalised(product)
    assert same_space(found.components_, np.linalg.svd(product)[0][:, :2])
    assert same_space(found.basis_.T, basis)


def test_noisy_power_takes_a_matrix_or_an_operator() -> None:
    gram = gram_of(ROWS)
    answers = [NoisyPower(2, **BUDGET).fit(one).components_ for one in (ROWS, Symmetric(gram, people=90), aslinearoperator(gram))]
    for other in answers[1:]:
        np.testing.assert_allclose(answers[0], other, atol=1e-9)


@pytest.mark.parametrize("mask_rows", ["block", "all"])
@pytest.mark.parametrize("merge", ["values", "vectors"])
@pytest.mark.parametrize("columns", [None, 4, 2])
def test_fpca_edge_masks_each_slice_and_merges_each_block(mask_rows: Any, merge: Any, columns: int | None) -> None:
    found = FpcaEdge(2, block=20, columns=columns, mask_rows=mask_rows, merge=merge, **BUDGET).fit(ROWS)
    divisor = 20 if mask_rows == "block" else 90
    logarithm = math.log(DIM**2 / (1e-3 * math.sqrt(2 * math.pi)))
    omega = 4 * DIM / (2.0 * divisor) * math.sqrt(2 * logarithm) + math.sqrt(2) / (math.sqrt(2.0) * divisor)
    # A short last slice belongs to the one before it.
    slices = {None: [(0, 6)], 4: [(0, 6)], 2: [(0, 2), (2, 4), (4, 6)]}[columns]
    drawn, total = np.random.default_rng((SEED, 1)), np.zeros((DIM, DIM))
    for block in range(4):
        rows = ROWS[20 * block : 20 * block + 20]
        inner = np.zeros((DIM, DIM))
        for low, high in slices:
            part = gram_of(rows)[:, low:high] / 20 + omega * drawn.standard_normal((DIM, high - low))
            inner = leading(inner + part @ part.T)
        if merge == "vectors":
            vectors = np.linalg.eigh(inner)[1][:, -2:]
            inner = vectors @ vectors.T
        # Merging U S with U' S' is the sum of their outer products, truncated again.
        total = leading(total + inner)
    assert same_space(found.components_, np.linalg.eigh(total)[1][:, -2:])


def leading(outer: Array) -> Array:
    """The two leading terms of a positive semi-definite matrix."""
    values, vectors = np.linalg.eigh(outer)
    kept: Array = vectors[:, -2:] * values[-2:] @ vectors[:, -2:].T
    return kept


def aligned_slowly(local: Array, target: Array, align: str) -> Array:
    if align == "procrustes":
        # The minimiser of ||Z D - T|| is the unitary factor of Z^T T.
        inner = local.T @ target
        values, vectors = np.linalg.eigh(inner.T @ inner)
        rotated: Array = local @ inner @ vectors @ np.diag(values**-0.5) @ vectors.T
        return rotated
    flipped = local.copy()
    for column in range(local.shape[1] if align == "sign" else 0):
        if np.linalg.norm(local[:, column] - target[:, column]) > np.linalg.norm(local[:, column] + target[:, column]):
            flipped[:, column] *= -1
    return flipped


@pytest.mark.parametrize("align", ["procrustes", "sign", "none"])
@pytest.mark.parametrize("align_to", ["device", "broadcast"])
@pytest.mark.parametrize(("participants", "scheme"), [(None, 1), (2, 1), (2, 2)])
def test_fedpower_is_algorithms_2_and_3(align: Any, align_to: Any, participants: int | None, scheme: Any) -> None:
    rounds, delta, sizes = 4, 1e-3, [40, 20, 30]
    settings: dict[str, Any] = {"align": align, "align_to": align_to, "participants": participants, "scheme": scheme}
    fedpower = FedPower(
        2, width=3, rounds=rounds, local_steps=3, decay=True, epsilon=(800.0, 1600.0), delta=delta, random_state=SEED, **settings
    )
    found = fedpower.fit(PARTS)
    weights = [size / 90 for size in sizes]
    # sigma with max q_i inside of the logarithm, sigma' and sigma'': as in the input lines of the two algorithms.
    sampled = 1.0 if participants is None else (max(weights) if scheme == 1 else 1 / 3)
    sigma = rounds / (800.0 * 20) * math.sqrt(2 * math.log(1.25 * rounds * sampled / delta))
    server = rounds / (1600.0 * 20) * math.sqrt(2 * math.log(1.25 * rounds / delta))
    server *= (max(weights) if participants is None or scheme == 2 else 1.0) / (participants or 1)
    drawn, basis = np.random.default_rng((SEED, 1)), orthonormalised(normals(DIM, 3, stream=0))
    for round_ in range(rounds):
        counts = [1.0, 1.0, 1.0]
        if participants is not None:
            chosen = drawn.choice(3, size=2, p=weights) if scheme == 1 else drawn.choice(3, size=2, replace=False)
            counts = [float((chosen == device).sum()) for device in range(3)]
        locals_ = {}
        for device in range(3):
            local = basis
            for _ in range(max(3 - round_, 1) - 1):
                local = np.linalg.qr(gram_of(PARTS[device]) / sizes[device] @ local)[0]
            locals_[device] = local
        active = [device for device in range(3) if counts[device]]
        target = basis if align_to == "broadcast" else locals_[max(active, key=lambda device: sizes[device])]
        total, largest = np.zeros_like(basis), 0.0
        for device in active:
            turned = aligned_slowly(locals_[device], target, align)
            sent = gram_of(PARTS[device]) / sizes[device] @ turned
            sent = sent + sigma * np.abs(locals_[device]).max() * drawn.standard_normal(basis.shape)
            part = weights[device] * (1.0 if participants is None else 3 / 2) if scheme == 2 or participants is None else 1 / 2
            total += counts[device] * part * sent
            largest = max(largest, float(np.abs(turned).max()))
        total += server * largest * drawn.standard_normal(basis.shape)
        basis = np.linalg.qr(total)[0]
    np.testing.assert_allclose(np.abs(found.products_[-1]), np.abs(total), atol=1e-6)
    assert same_space(found.components_, np.linalg.svd(total)[0][:, :2])
    algorithm = "Alg. 2" if participants is None else f"Alg. 3, scheme {scheme}"
    assert algorithm in found.source and algorithm in found.guarantee_.headline


def test_without_alignment_products_of_devices_cancel() -> None:
    """The vanilla method of the paper is far from the answer where signs of a plain QR differ between devices."""
    rng = np.random.default_rng(1)
    parts = [rng.standard_normal((30, 40)) * np.arange(40, 0, -1) ** 0.5 for _ in range(12)]
    truth = np.linalg.svd(np.vstack(parts))[2][:5].T
    errors = {}
    for align in ("procrustes", "sign", "none"):
        found = FedPower(5, rounds=20, local_steps=4, align=align, random_state=0).fit(parts)
        errors[align] = float(np.linalg.norm(found.components_ @ truth) ** 2)
        assert len(found.residuals_) == len(found.products_) == 20
    assert errors["none"] < min(errors["procrustes"], errors["sign"])


@pytest.mark.parametrize("c", [None, 2])
def test_d_dp_pm_mixes_and_deflates(c: int | None) -> None:
    weights = np.array([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]])
    sigma_p = (0.3, 0.2, 0.1)
    found = DDPPM(2, alpha=0.01, sigma_q=0.1, sigma_p=sigma_p, c=c, weights=weights, random_state=SEED).fit(PARTS)
    mix = np.ones((3, 3)) if c is None else 3 * weights @ weights
    drawn, parts, z_seen, q_seen = np.random.default_rng((SEED, 1)), [part.copy() for part in PARTS], [], []
    for _ in range(2):
        q = [0.1 * drawn.standard_normal(len(part)) for part in parts]
        for sigma in sigma_p:
            z = [part.T @ own for part, own in zip(parts, q, strict=True)]
            mean = [sum(mix[agent, other] * z[other] for other in range(3)) for agent in range(3)]
            q = [0.01 * part @ own + sigma * drawn.standard_normal(len(part)) for part, own in zip(parts, mean, strict=True)]
        lengths = [sum(mix[agent, other] * float(q[other] @ q[other]) for other in range(3)) for agent in range(3)]
        q = [own / math.sqrt(length) for own, length in zip(q, lengths, strict=True)]
        z = [part.T @ own for part, own in zip(parts, q, strict=True)]
        mean = [sum(mix[agent, other] * z[other] for other in range(3)) for agent in range(3)]
        parts = [part - np.outer(own, turned) for part, own, turned in zip(parts, q, mean, strict=True)]
        z_seen.append(mean[0])
        q_seen.append(np.concatenate(q))
    np.testing.assert_allclose(found.scores_, np.stack(q_seen, axis=1), atol=1e-9)
    assert same_space(found.components_, orthonormalised(np.stack(z_seen, axis=1)))
    assert len(found.sent_) == 6 and found.sent_[0].shape == (3, DIM)


METHODS: list[tuple[Baseline, Any]] = [
    (AnalyzeGauss(2, **BUDGET), ROWS),
    (ModSulq(2, **BUDGET), ROWS),
    (Sulq(2, **BUDGET), ROWS),
    (NoisyPower(2, **BUDGET), ROWS),
    (LocalRows(2, **BUDGET), PARTS),
    (FpcaEdge(2, block=20, **BUDGET), ROWS),
    (FedPower(2, rounds=3, **BUDGET), PARTS),
    (DDPPM(2, alpha=0.01, sigma_q=0.1, sigma_p=(0.1,), random_state=SEED), PARTS),
]


@pytest.mark.parametrize(("method", "table"), METHODS, ids=lambda one: type(one).__name__)
def test_none_of_them_promises_anything(method: Baseline, table: Any) -> None:
    found = method.fit(table)
    assert found.guarantee_.epsilon is None and found.guarantee_.headline.startswith(f"No privacy: {method.source}: ")
    assert found.components_.shape == (2, DIM)
    np.testing.assert_allclose(found.components_ @ found.components_.T, np.eye(2), atol=1e-9)
    first = found.components_.copy()
    np.testing.assert_array_equal(first, method.fit(table).components_)


def test_bad_input_is_refused() -> None:
    for method, table, message in (
        (AnalyzeGauss(0, **BUDGET), ROWS, "at least 1"),
        (FpcaEdge(2, block=91, **BUDGET), ROWS, "a block has 91 rows"),
        (NoisyPower(2, epsilon=50.0, delta=1e-3), ROWS, "holds for epsilon"),
        (DDPPM(1, alpha=1.0, sigma_q=1.0, sigma_p=(1.0,), c=2), PARTS, "need weights"),
        (FedPower(4, width=3, rounds=1), PARTS, "4 components were asked of 3"),
        (FedPower(2, rounds=1, epsilon=1.0, delta=0.9, participants=2, scheme=2), PARTS, "too large for Alg. 3"),
    ):
        with pytest.raises(ValueError, match=message):
            method.fit(table)
    with pytest.raises(ValueError):
        ModSulq(1, epsilon=-1.0, delta=1e-3).fit(ROWS)
