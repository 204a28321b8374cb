"""The instance leakage of the published form: its law against runs, (34) against integrals, and infinity where it is due."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.integrate import dblquad, quad

from eigenveil.linalg import Array
from eigenveil.papers.leakage import InstanceLeakage, instance_leakage, observed_law

RING = np.array([[0.5, 0.25, 0.0, 0.25], [0.25, 0.5, 0.25, 0.0], [0.0, 0.25, 0.5, 0.25], [0.25, 0.0, 0.25, 0.5]])
SIGMA_P = (0.3, 0.2, 0.1)
SETTINGS: dict[str, Any] = {"steps": 2, "alpha": 0.4, "sigma_q": 0.5, "sigma_p": SIGMA_P}
DIM = 2


def some_peers(seed: int = 0, *, dim: int = DIM) -> list[Array]:
    rng = np.random.default_rng(seed)
    peers = [rng.standard_normal((count, dim)) for count in (4, 3, 5, 3)]
    return [rows / np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True)) for rows in peers]


def runs(peers: list[Array], count: int, own: Array | None, rng: np.random.Generator) -> tuple[Array, Array]:
    """Alg. 1 for one component, `count` times: all z, (T, m, d, count), and q^(T), (n, count). Peer 0 draws `own`."""
    sizes = [len(rows) for rows in peers]
    ends = np.cumsum(sizes)[:-1]

    def draw(sigma: float, round_: int) -> list[Array]:
        drawn = [sigma * rng.standard_normal((size, count)) for size in sizes]
        if own is not None:
            drawn[0] = np.repeat(own[round_][:, None], count, axis=1)
        return drawn

    scores, seen = draw(SETTINGS["sigma_q"], 0), []
    mixed = len(peers) * np.linalg.matrix_power(RING, SETTINGS["steps"])
    for round_, sigma in enumerate(SIGMA_P, start=1):
        z = np.stack([rows.T @ q for rows, q in zip(peers, scores, strict=True)])
        seen.append(z)
        agreed = np.einsum("jk,kdc->jdc", mixed, z)
        noise = draw(sigma, round_)
        scores = [SETTINGS["alpha"] * rows @ a + p for rows, a, p in zip(peers, agreed, noise, strict=True)]
    assert len(ends) == 3
    return np.stack(seen), np.vstack(scores)


@pytest.mark.parametrize("as_printed", [False, True])
def test_the_law_is_that_of_the_algorithm(as_printed: bool) -> None:
    """Means and covariances of 200000 runs, each entry within 6.5 deviations (a level below 1e-6 for all of them together)."""
    count, rng = 200_000, np.random.default_rng(1)
    peers = some_peers()
    own = rng.standard_normal((4, 4)) * np.array([0.5, *SIGMA_P])[:, None]
    law = observed_law(peers, RING, observer=0, as_printed=as_printed, **SETTINGS)
    z, last = runs(peers, count, own, rng)
    if as_printed:
        view = np.vstack([z[:, 0].reshape(-1, count), last[:4]])
    else:
        # Within two steps a ring of four tells everything, in some basis of the three other peers.
        basis = _basis_of_others(peers)
        view = np.vstack([*(np.einsum("kj,jdc->kdc", basis, one).reshape(-1, count) for one in z), last[4:]])
    mean = law.transfer @ (own / np.array([0.5, *SIGMA_P])[:, None]).ravel()
    covariance = law.root @ law.root.T
    variances = np.diag(covariance)
    assert (np.abs(view.mean(axis=1) - mean) <= 6.5 * np.sqrt(variances / count) + 1e-12).all()
    centered = view - mean[:, None]
    measured = centered @ centered.T / count
    spread = np.sqrt((np.outer(variances, variances) + covariance**2) / count)
    assert (np.abs(measured - covariance) <= 6.5 * spread + 1e-12).all()
    # A law without the factor m of (11) would not pass.
    less = observed_law(peers, RING, observer=0, as_printed=as_printed, **(SETTINGS | {"alpha": 0.1}))
    assert not (np.abs(measured - less.root @ less.root.T) <= 6.5 * spread + 1e-12).all()


def _basis_of_others(peers: list[Array]) -> Array:
    from eigenveil.papers.leakage import _received

    basis = _received(RING, SETTINGS["steps"], 0)
    np.testing.assert_allclose(basis @ basis.T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(basis[:, 0], 0.0, atol=1e-12)
    return basis


def test_who_receives_what() -> None:
    """In one step a ring tells an observer its neighbours' z, in two those of the peer across."""
    peers = some_peers()
    numbers = [len(observed_law(peers, RING, observer=0, **(SETTINGS | {"steps": steps})).root) for steps in (1, 2, 9)]
    others = sum(len(rows) for rows in peers[1:])
    assert numbers == [3 * 2 * DIM + others, 3 * 3 * DIM + others, 3 * 3 * DIM + others]


def test_the_last_scores_have_the_law_of_the_corrected_59() -> None:
    peers = some_peers()
    law = observed_law(peers, RING, observer=0, **SETTINGS)
    root = np.hstack([law.transfer, law.root])[-11:]
    stacked = np.zeros((15, 4 * DIM))
    for j, (rows, end) in enumerate(zip(peers, np.cumsum([4, 3, 5, 3]), strict=True)):
        stacked[end - len(rows) : end, j * DIM : (j + 1) * DIM] = rows
    xi = 0.4 * stacked @ np.kron(4 * np.linalg.matrix_power(RING, 2), np.eye(DIM)) @ stacked.T
    power = np.linalg.matrix_power
    omega = 0.25 * power(xi, 6) + sum(s**2 * power(xi, 2 * (3 - k)) for k, s in enumerate(SIGMA_P, start=1))
    np.testing.assert_allclose(root @ root.T, omega[4:, 4:], atol=1e-12)


@pytest.mark.parametrize(("ratio", "shift"), [(1.0, 0.5), (1.7, 0.0), (0.8, 0.4), (2.5, 1.0)])
@pytest.mark.parametrize("beta", [0.3, 1.0, 2.5])
def test_the_divergence_is_the_integral(ratio: float, shift: float, beta: float) -> None:
    """(53) by quadrature for N(shift, 1) from N(0, ratio)."""

    def integrand(y: float) -> float:
        one = -0.5 * (y - shift) ** 2
        other = -0.5 * y**2 / ratio - 0.5 * math.log(ratio)
        return math.exp((beta + 1) * one - beta * other) / math.sqrt(2 * math.pi)

    expected = math.log(quad(integrand, -40, 40, points=[0, shift])[0]) / beta
    leak = InstanceLeakage(ratios=np.array([ratio]), shifts=np.array([[shift]]), drawn=False)
    assert leak.divergence(beta) == pytest.approx(expected, rel=1e-7)


def test_counting_what_was_drawn_averages_over_it() -> None:
    """The joint view (g, shift g + noise) of two numbers, by quadrature in both."""
    ratio, shift, beta = 1.4, 0.3, 1.5

    def integrand(y: float, g: float) -> float:
        one = -0.5 * (y - shift * g) ** 2
        other = -0.5 * y**2 / ratio - 0.5 * math.log(ratio)
        return math.exp((beta + 1) * one - beta * other - 0.5 * g * g) / (2 * math.pi)

    expected = math.log(dblquad(integrand, -12, 12, -25, 25)[0]) / beta
    leak = InstanceLeakage(ratios=np.array([ratio]), shifts=np.array([[shift]]), drawn=True)
    assert leak.divergence(beta) == pytest.approx(expected, rel=1e-6)


def _gil(one: Array, other: Array, shift: Array, beta: float) -> float:
    star = (beta + 1) * other - beta * one
    if np.linalg.eigvalsh(star)[0] <= 0:
        return math.inf
    logs = [np.linalg.slogdet(m)[1] for m in (star, one, other)]
    spread = logs[0] + beta * logs[1] - (beta + 1) * logs[2]
    return 0.5 * float((beta + 1) * shift @ np.linalg.solve(star, shift) - spread / beta)


@pytest.mark.parametrize("beta", [0.01, 0.05, 0.3])
def test_it_is_gil_2011_with_the_covariances_themselves(beta: float) -> None:
    """Two ways: whitened ratios against plain determinants, given what the observer drew and with it as part of the view."""
    peers = some_peers()
    by = 0.9 * peers[2][1]
    there = [rows.copy() for rows in peers]
    there[2][1] = by
    one, other = (observed_law(p, RING, observer=0, **SETTINGS) for p in (peers, there))
    own = np.random.default_rng(3).standard_normal((4, 4))
    units = (own / np.array([0.5, *SIGMA_P])[:, None]).ravel()
    given = instance_leakage(peers, RING, observer=0, replaced=(2, 1), by=by, own=own, **SETTINGS)
    covariances = [law.root @ law.root.T for law in (one, other)]
    expected = _gil(covariances[0], covariances[1], (one.transfer - other.transfer) @ units, beta)
    assert given.divergence(beta) == pytest.approx(expected, rel=1e-6)
    whole = instance_leakage(peers, RING, observer=0, replaced=(2, 1), by=by, **SETTINGS)
    joint = []
    for law, covariance in zip((one, other), covariances, strict=True):
        cross = law.transfer
        joint.append(np.block([[np.eye(cross.shape[1]), cross.T], [cross, covariance + cross @ cross.T]]))
    assert whole.divergence(beta) == pytest.approx(_gil(joint[0], joint[1], np.zeros(len(joint[0])), beta), rel=1e-6)


@pytest.mark.parametrize("as_printed", [False, True])
def test_a_row_that_alone_spans_a_direction_is_revealed(as_printed: bool) -> None:
    """With no noise on z nothing hides it; what is dropped in (43) of D-DP-PM hides that."""
    peers = [np.array([[0.8, 0.0], [0.3, 0.0]]), np.array([[0.5, 0.0], [0.2, 0.6]])]
    weights = np.full((2, 2), 0.5)
    if as_printed:
        # The observer's own rows pass on only what they see.
        peers[0][1, 1] = 0.4
    few: dict[str, Any] = dict(SETTINGS | {"steps": 1}, observer=0, replaced=(1, 1), by=None, as_printed=as_printed)
    leak = instance_leakage(peers, weights, **few)
    assert leak.infinite and leak.divergence(0.01) == math.inf and leak.delta(50.0) == 1.0
    assert "infinite" in leak.words and "not a guarantee" in repr(leak)
    dropped = instance_leakage(peers, weights, dropping=1, **few)
    assert not dropped.infinite and dropped.delta(100.0) < 1 and "dropped" in dropped.words


def test_another_direction_and_a_mean_outside_are_infinite_too() -> None:
    peers = [np.array([[0.8, 0.1], [0.3, 0.5]]), np.array([[0.5, 0.0]])]
    few: dict[str, Any] = dict(SETTINGS | {"steps": 1}, replaced=(1, 0))
    weights = np.full((2, 2), 0.5)
    turned = instance_leakage(peers, weights, observer=0, by=np.array([0.0, 0.5]), **few)
    assert turned.infinite and "other directions" in turned.why
    own = instance_leakage(peers, weights, observer=1, by=np.array([0.4, 0.0]), as_printed=True, **few)
    assert own.infinite and "means" in own.why


def test_the_observer_sees_more_than_what_it_sends() -> None:
    peers = some_peers()
    few: dict[str, Any] = dict(SETTINGS, observer=0, replaced=(2, 0), by=0.99 * peers[2][0])
    received, sent = (instance_leakage(peers, RING, as_printed=printed, **few) for printed in (False, True))
    assert sent.divergence(0.02) < received.divergence(0.02) < math.inf
    assert sent.delta(1.0) <= received.delta(1.0) < 1


def test_the_same_row_tells_nothing() -> None:
    peers = some_peers()
    leak = instance_leakage(peers, RING, observer=0, replaced=(1, 1), by=peers[1][1], **SETTINGS)
    assert abs(leak.divergence(1.0)) < 1e-9 and leak.delta(0.1) < 1e-30


def test_delta_is_the_least_over_beta() -> None:
    leak = InstanceLeakage(ratios=np.array([0.7, 1.3]), shifts=np.array([[0.3], [0.1]]), drawn=False)
    for epsilon in (0.1, 1.0, 3.0):
        grid = [b * (leak.divergence(b) - epsilon) for b in np.linspace(1e-4, 7 / 3 - 1e-6, 2_000)]
        least = math.exp(min(0.0, *grid))
        assert leak.delta(epsilon) <= least * (1 + 1e-9)
        assert leak.delta(epsilon) == pytest.approx(least, rel=1e-3)
    # Equal covariances: D = (beta+1) s^2 / 2, the least of exp(-beta eps + beta D) is exp(-(eps - s^2/2)^2 / (2 s^2)).
    same = InstanceLeakage(ratios=np.ones(1), shifts=np.full((1, 1), 0.5), drawn=False)
    assert same.delta(2.0) == pytest.approx(math.exp(-((2 - 0.125) ** 2) / 0.5), rel=1e-9)
