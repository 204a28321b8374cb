"""Peers with a budget: what they are charged, how much noise is in the answer, what is guaranteed, what scores cost."""

import math
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import eigenveil
from eigenveil.core.accounting import Budget, epsilon_of
from eigenveil.errors import PeersLost
from eigenveil.estimators.gossip.pca import GossipPCA
from eigenveil.linalg import Array
from eigenveil.model import Model
from eigenveil.runtimes.local import Faults
from estimators.sites_of_rows import BUDGET, COLUMNS, pooled_rows, same_bits, stored

ROWS = pooled_rows(400)
PEERS = np.array_split(ROWS, 4)
METHODS = ("power", "krylov", "covariance", "segments")
LEVEL = 1e-6


def private(n_components: int = 2, **choices: Any) -> GossipPCA:
    defaults: dict[str, Any] = {"graph": "ring", "random_state": 0}
    return GossipPCA(n_components, **(defaults | BUDGET | choices))


@pytest.mark.parametrize("noise", ["pairwise", "independent"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("consensus", ["chebyshev", "tree"])
def test_every_peer_is_charged_the_budget_and_no_more(noise: str, method: str, consensus: str) -> None:
    found = private(noise=noise, method=method, consensus=consensus).fit(PEERS)
    budget = Budget(BUDGET["epsilon"], BUDGET["delta"])
    lines = [ledger.charges for ledger in found.ledgers_.values()]
    assert all([charge.label for charge in one] == [charge.label for charge in lines[0]] for one in lines)
    for ledger in found.ledgers_.values():
        assert ledger.spent_mu <= budget.mu
        # A search for the mean that needs one step leaves the others to the components.
        assert ledger.spent_mu == pytest.approx(budget.mu, rel=1e-6)
    assert found.guarantee_.mu == pytest.approx(budget.mu, rel=1e-6)
    assert found.guarantee_.epsilon == BUDGET["epsilon"]
    assert found.disagreement_ < 1e-8


@pytest.mark.parametrize("noise", ["pairwise", "independent"])
def test_the_noise_in_the_answer_is_what_the_guarantee_needs(noise: str) -> None:
    """The Gram matrix of rows that are all zero is noise and nothing else, as one release at the whole budget."""
    dim, budget = 40, Budget(1.0, 1e-5)
    empty = [np.zeros((3, dim))] * 4
    squares, count = 0.0, 0
    # Half of the fits without a seed, as in real life: noise in pairs then comes from keys that are agreed anew.
    for seed in (*range(12), *[None] * 12):
        found = private(
            dim,
            noise=noise,
            method="covariance",
            center=None,
            row_bound=1.0,
            delta=budget.delta,
            neighbours="zero-out",
            consensus="tree",
            random_state=seed,
        ).fit(empty)
        # Eigenvalues below zero are shown as zero, so the diagonal of the released matrix is not to be had; half of it is.
        values = np.square(found.singular_values_)
        squares += float((values**2).sum())
        count += 1
    # E ||N_+||_F^2 is half of E ||N||_F^2 = s^2 (d + d (d - 1) / 2).
    scale = math.sqrt(4 / 3) if noise == "pairwise" else 2.0
    expected = 0.5 * (scale / budget.mu) ** 2 * (dim + dim * (dim - 1) / 2)
    freedom = count * dim * (dim + 1) / 4
    low, high = chi2.ppf([LEVEL / 2, 1 - LEVEL / 2], freedom) / freedom
    measured = squares / count / expected
    assert low * 0.99 < measured < high * 1.01
    for wrong in (0.9, 1.1):
        assert not low * 0.99 < measured * wrong**2 < high * 1.01


def test_the_floor_says_how_much_noise_there_is() -> None:
    floors = {noise: private(noise=noise, method="covariance").fit(PEERS).noise_floor_ for noise in ("pairwise", "independent")}
    # The noisy number of people, which variances are divided by, differs as well.
    assert floors["independent"] / floors["pairwise"] == pytest.approx(math.sqrt(3), rel=0.3)


def test_more_colluders_are_more_noise_or_a_refusal() -> None:
    two = private(method="covariance", colluders=2, noise_graph="complete").fit(PEERS).guarantee_
    # Pair noise is finite, and so sqrt(4 / 2) is reached to 0.05%.
    assert "The sum has 1.415 times the noise of one curator" in two.calibration
    with pytest.raises(ValueError, match="connected without any 2 of its peers"):
        private(colluders=2).fit(PEERS)
    with pytest.raises(ValueError, match="colluders must be an integer from 1 to 2, got 3"):
        private(colluders=3, noise_graph="complete").fit(PEERS)


@pytest.mark.parametrize("noise_graph", [None, "complete"])
def test_a_vanished_peer_costs_its_round_again_or_ends_the_fit_with_what_was_spent(noise_graph: str | None) -> None:
    faults = Faults(dies={"peer 1": 120})
    with pytest.raises(PeersLost, match="without peer 1"):
        (lost := private(noise_graph=noise_graph, faults=faults)).fit(PEERS)
    spent = {name: ledger.spent_mu for name, ledger in lost.unfinished_.ledgers.items()}
    assert 0 < min(spent.values()) <= max(spent.values()) < Budget(BUDGET["epsilon"], BUDGET["delta"]).mu
    with pytest.raises(NotFittedError):
        lost.transform(ROWS)
    if noise_graph is None:
        return
    found = private(noise_graph=noise_graph, faults=faults, restarts=1).fit(PEERS)
    labels = [charge.label for charge in found.ledgers_["peer 0"].charges]
    assert len(labels) == len(set(labels)) + 1
    assert sum(done.restarted for done in found.transcript_) == 1
    assert sum(len(done.charges) for done in found.transcript_) == len(labels)
    assert "3 of 4 peers, without peer 1" in found.guarantee_.to_text()
    assert found.guarantee_.mu <= Budget(BUDGET["epsilon"], BUDGET["delta"]).mu


def test_published_scores_have_their_own_noise_and_the_guarantee_is_of_both() -> None:
    found = private(neighbours="zero-out", noise="independent").fit(np.array_split(pooled_rows(4000), 4))
    own: dict[str, Array] = {name: scores.copy() for name, scores in found.scores_.items()}
    given = found.publish_scores(epsilon=2.0, delta=BUDGET["delta"])
    budgets = Budget(BUDGET["epsilon"], BUDGET["delta"]), Budget(2.0, BUDGET["delta"])
    together = math.hypot(*(budget.mu for budget in budgets))
    assert given.guarantee.epsilon == pytest.approx(epsilon_of(together, BUDGET["delta"]), rel=1e-6)
    assert given.guarantee.mu == pytest.approx(together, rel=1e-6)
    assert found.guarantee_ == given.guarantee == found.model_.guarantee
    noise = np.concatenate([(given.scores[name] - own[name]).ravel() for name in own])
    scale = BUDGET["row_bound"] / budgets[1].mu
    low, high = chi2.ppf([LEVEL / 2, 1 - LEVEL / 2], noise.size) / noise.size
    assert low < float(np.mean(np.square(noise / scale))) < high
    assert not low < 1.21 * float(np.mean(np.square(noise / scale))) < high


def test_published_scores_are_clipped_to_the_bound_before_they_leave() -> None:
    far = [rows.copy() for rows in PEERS]
    far[0][0] *= 1e6
    near = private(neighbours="zero-out").fit(PEERS).publish_scores(epsilon=1.0, delta=1e-5).scores["peer 0"]
    moved = private(neighbours="zero-out").fit(far).publish_scores(epsilon=1.0, delta=1e-5).scores["peer 0"]
    # The same seed, so the same noise on top of at most a row_bound to either side.
    assert float(np.linalg.norm(near[0] - moved[0])) <= 2 * BUDGET["row_bound"] * (1 + 1e-9)


def test_no_row_is_so_large_that_its_score_is_no_number() -> None:
    far = [rows.copy() for rows in PEERS]
    far[0][0] = 1e308 * np.resize([1, -1], far[0].shape[1])
    with np.errstate(over="ignore", invalid="ignore"):
        given = private(neighbours="zero-out").fit(far).publish_scores(epsilon=1.0, delta=1e-5)
    assert all(np.isfinite(scores).all() for scores in given.scores.values())


def test_scores_are_not_published_where_no_guarantee_could_be_kept() -> None:
    with pytest.raises(ValueError, match="reveals the number of people"):
        private().fit(PEERS).publish_scores(epsilon=1.0, delta=1e-5)
    with pytest.raises(ValueError, match="the fit has no guarantee to add to"):
        GossipPCA(2, graph="ring", epsilon=None, neighbours="zero-out").fit(PEERS).publish_scores(epsilon=1.0, delta=1e-5)


def test_it_has_the_manners_of_an_estimator(tmp_path: Any) -> None:
    assert eigenveil.GossipPCA is GossipPCA
    pca: Any = private(graph=[(0, 1), (1, 2), (2, 3), (3, 0)])
    assert clone(pca).get_params()["graph"] == pca.get_params()["graph"]
    pca.fit([stored(rows, "pandas") for rows in PEERS])
    assert pca.feature_names_in_.tolist() == COLUMNS
    assert pca.set_output(transform="pandas").transform(stored(ROWS, "pandas")).columns.tolist() == ["gossippca0", "gossippca1"]
    pca.save(tmp_path / "peers.safetensors")
    loaded = Model.load(tmp_path / "peers.safetensors")
    assert np.array_equal(loaded.components, pca.components_)
    assert loaded.guarantee == pca.guarantee_
    assert loaded.settings["noise"] == "pairwise"


def test_a_seed_fixes_everything_and_none_fixes_nothing() -> None:
    assert same_bits(private().fit(PEERS), private().fit(PEERS))
    assert not same_bits(private(random_state=None).fit(PEERS), private(random_state=None).fit(PEERS))


def test_a_fitted_one_can_be_copied() -> None:
    plain = GossipPCA(2, graph="ring", epsilon=None).fit(PEERS)
    assert same_bits(pickle.loads(pickle.dumps(plain)), plain)  # noqa: S301


def test_scores_are_published_as_the_fit_was_whatever_is_set_afterwards() -> None:
    one, other = private(neighbours="replace-one").fit(PEERS), private(neighbours="replace-one").fit(PEERS)
    changed: Any = other
    changed.set_params(neighbours="zero-out", random_state=None)
    first, second = (fitted.publish_scores(epsilon=1.0, delta=1e-5).scores["peer 0"] for fitted in (one, other))
    assert np.array_equal(first, second)
    hidden: Any = private().fit(PEERS)
    hidden.set_params(neighbours="zero-out")
    with pytest.raises(ValueError, match="reveals the number of people"):
        hidden.publish_scores(epsilon=1.0, delta=1e-5)
    # Published twice, they have noise of their own each time, and both are paid for.
    again = one.publish_scores(epsilon=1.0, delta=1e-5)
    assert not np.allclose(again.scores["peer 0"], first)
    assert len(again.guarantee.charges) == len(other.guarantee_.charges) + 1


def test_a_public_number_of_people_goes_with_the_peers_that_variances_are_of() -> None:
    """One of four peers dies before the last round, which asks for the trace alone."""
    plan: dict[str, Any] = {"noise": "independent", "graph": "complete", "consensus": "tree", "neighbours": "zero-out"}
    plan |= {"restarts": 2, "epsilon": 1e7, "delta": 1e-3}
    whole = private(**plan).fit(PEERS)
    counts = {len(done.answered) for done in whole.transcript_}
    assert counts == {4}
    for count in range(2, 14):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found = private(**plan, faults=Faults(dies={"peer 3": count})).fit(PEERS)
        last = [done for done in found.transcript_ if done.stage.startswith("power")][-1]
        if len(last.answered) == 4 and len(found.peers_) == 3:
            assert np.allclose(found.explained_variance_, whole.explained_variance_, rtol=1e-3)
            assert np.allclose(found.explained_variance_ratio_, whole.explained_variance_ratio_, rtol=0.1)
            return
    raise AssertionError("nobody died between the components and the totals")


@pytest.mark.parametrize("method", METHODS)
def test_the_reserve_pays_for_whichever_round_is_begun_again(method: str) -> None:
    """Also for the mean and the count together, which cost more than a round of many small ones."""
    plan: dict[str, Any] = {"noise": "independent", "graph": "complete", "consensus": "tree", "method": method, "restarts": 1}
    budget, restarted = Budget(BUDGET["epsilon"], BUDGET["delta"]), set()
    for count in range(5):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found = private(8, **plan, mean_bound=12.0, faults=Faults(dies={"peer 3": count})).fit(PEERS)
        restarted |= {done.stage for done in found.transcript_ if done.restarted}
        assert found.guarantee_.mu <= budget.mu
    assert "mean" in restarted
    # Of two rounds a leaf of the tree can only be missing in the first: it sends the second before it stops.
    assert len(restarted) > 1 or method == "covariance"
