"""`FederatedPCA(trust="masked")`: the plain answer without noise, a curator's noise with it, and what happens when sites go."""

import copy
import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2
from sklearn.exceptions import NotFittedError

from eigenveil import FederatedPCA, Symmetric
from eigenveil.core.accounting import Budget, epsilon_of
from eigenveil.data.rows import DenseRows
from eigenveil.errors import BudgetExceeded, ProtocolError, QuorumLost
from eigenveil.linalg import sines
from eigenveil.protocols.masked.session import Session
from eigenveil.protocols.messages import Message, StepReply
from eigenveil.runtimes.local import Faults
from estimators.sites_of_rows import DIM, cut, federated, off, pooled_answer, pooled_rows, private_federated, same_bits, stored

ROWS = pooled_rows()
SITES = np.array_split(ROWS, 7)
METHODS = ["krylov", "power", "covariance", "dr-svd"]
PRIVATE = METHODS[:3]
LEVEL = 1e-6


def masked(n_components: int = 3, **choices: Any) -> FederatedPCA:
    return federated(n_components, **({"trust": "masked", "survivors": 5} | choices))


def private_masked(n_components: int = 2, **choices: Any) -> FederatedPCA:
    return private_federated(n_components, **({"trust": "masked", "survivors": 5} | choices))


CENTERS: dict[str, Any] = {"mean": "private", "none": None, "given": np.linspace(-1, 1, DIM)}
BOUNDS: dict[str, Any] = {
    "found": {},
    "of rows": {"row_bound": 9.0},
    "of columns": {"column_bounds": (-9.0, 9.0)},
    "scaled": {"scale": 2.0},
}
# Each method with each center, each method with each kind of bounds, and each center with each kind.
PAIRS = [
    (method, list(CENTERS)[(one + other) % len(CENTERS)], kind)
    for one, method in enumerate(METHODS)
    for other, kind in enumerate(BOUNDS)
]


@pytest.mark.parametrize(("method", "at", "kind"), PAIRS)
def test_without_noise_it_is_the_plain_fit_to_fixed_point_precision(method: str, at: str, kind: str) -> None:
    center, bounds = CENTERS[at], BOUNDS[kind]
    plain = federated(method=method, center=center, **bounds).fit(SITES)
    hidden = masked(method=method, center=center, **bounds).fit(SITES)
    assert off(hidden, plain.subspace_.basis) < 1e-7
    np.testing.assert_allclose(hidden.explained_variance_, plain.explained_variance_, rtol=1e-7)
    np.testing.assert_allclose(hidden.mean_, plain.mean_, atol=1e-7)
    assert len(hidden.transcript_) == len(plain.transcript_)
    assert not hidden.guarantee_.private


@pytest.mark.parametrize("kind", ["sparse", "pandas", "polars", "pyarrow", "blocks"])
def test_storage_does_not_matter(kind: str) -> None:
    hidden = masked().fit([stored(rows, kind) for rows in SITES])
    assert off(hidden, pooled_answer(ROWS, 3)[0]) < 1e-7


@pytest.mark.parametrize("size", [1e-12, 1e-3, 1e9])
def test_units_do_not_matter(size: float) -> None:
    hidden = masked().fit([size * rows for rows in SITES])
    assert off(hidden, pooled_answer(ROWS, 3)[0]) < 1e-7


@pytest.mark.parametrize("method", METHODS)
def test_matrices_given_directly_are_added_up_under_masks(method: str) -> None:
    sites = [Symmetric(rows.T @ rows, people=len(rows)) for rows in SITES]
    hidden = masked(method=method, center=None).fit(sites)
    plain = federated(method=method, center=None).fit(SITES)
    assert off(hidden, plain.subspace_.basis) < 1e-7
    noisy = private_masked(method=method if method != "dr-svd" else "power", center=None).fit(sites)
    assert noisy.guarantee_.epsilon == 1.0
    assert "The site vouches" in noisy.guarantee_.to_text()


@pytest.mark.parametrize("count", [2, 3, 12])
def test_any_number_of_sites_from_two_on(count: int) -> None:
    hidden = masked(survivors=None).fit(np.array_split(ROWS, count))
    assert off(hidden, pooled_answer(ROWS, 3)[0]) < 1e-7


def test_many_sites_have_few_masks_and_the_right_answer() -> None:
    rows = pooled_rows(1100)
    pca = masked(survivors=0.9, method="covariance", faults=Faults(dies={"site 3": 0, "site 40": 5, "site 70": 11}))
    prepared = pca.prepare(np.array_split(rows, 110))
    assert prepared.masked is not None
    assert not prepared.masked.graph.complete
    assert prepared.masked.graph.holders < 40
    pca.fit(np.array_split(rows, 110))
    there = [place for place in range(110) if f"site {place}" in pca.transcript_[-1].answered]
    # The last of them had given its part when it went.
    assert len(there) == 108
    assert off(pca, pooled_answer(np.vstack([np.array_split(rows, 110)[i] for i in there]), 3)[0]) < 1e-6


def test_the_guarantee_of_few_masks_is_within_delta() -> None:
    pca = private_masked(survivors=0.9, method="covariance", random_state=None)
    prepared = pca.prepare(np.array_split(pooled_rows(1100), 110))
    terms = prepared.masked
    assert terms is not None
    lattice = terms.lattice
    assert terms.graph.failure > 0
    assert lattice.failure >= terms.sessions * 110 * terms.graph.failure
    assert lattice.gaussian is not None
    assert lattice.gaussian.delta + lattice.failure < 1e-6
    assert lattice.honest == 99 - 1 - terms.graph.loss


@pytest.mark.parametrize("several", [1, 3])
@pytest.mark.parametrize("method", PRIVATE)
def test_every_site_is_charged_for_the_sum_within_the_budget(method: str, several: int) -> None:
    pca = private_masked(method=method, person_sites=several).fit(SITES)
    for ledger in pca.ledgers_.values():
        assert len(ledger.charges) == len(pca.transcript_)
        assert epsilon_of(ledger.spent_mu, 1e-6) <= 1.0
        assert ledger.spent_mu > 0.97 * Budget(1.0, 1e-6).mu or method != "covariance"
    assert pca.guarantee_.charges == pca.ledgers_["site 0"].charges


def gram_noise(pca: FederatedPCA, sites: Any) -> tuple[np.ndarray[Any, Any], float]:
    """What was added to the Gram matrix, packed, and the noise on it that the guarantee is for, of a fit without a center."""
    federation = pca.prepare(sites)
    federation.run(faults=pca.faults)
    terms = federation.masked
    assert terms is not None
    charge = next(line for line in federation.ledgers["site 6"].charges if line.label == "covariance")
    radius = 12.0
    here = [np.asarray(sites[int(name.split()[1])]) for name in federation.rounds[0].answered]
    found = federation.hub.state
    gram = (found.subspace.basis * np.square(found.subspace.values)) @ found.subspace.basis.T
    exact = sum((rows.T @ rows for rows in here), start=np.zeros_like(gram))
    upper = np.triu_indices(len(gram))
    weights = np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))
    return (gram - exact)[upper] * weights, radius**2 / charge.mu


@pytest.mark.parametrize(("survivors", "colluders", "dead"), [(7, 1, 0), (6, 3, 0), (5, 1, 2)])
def test_noise_in_the_sum_is_what_was_paid_for_and_the_law_is_tight(survivors: int, colluders: int, dead: int) -> None:
    # Rows so many and alike that no eigenvalue is cut off: the whole matrix can be put together again.
    rng, dim = np.random.default_rng(1), 60
    rows = rng.standard_normal((70_000, dim)) * 2.0
    rows *= np.minimum(1.0, 12.0 / np.linalg.norm(rows, axis=1, keepdims=True))
    sites = np.array_split(rows, 7)
    faults = Faults(dies={f"site {i}": 0 for i in range(dead)})
    pieces, stated = [], 0.0
    for seed in range(2):
        pca = private_masked(
            dim,
            method="covariance",
            center=None,
            neighbours="zero-out",
            survivors=survivors,
            colluders=colluders,
            faults=faults,
            random_state=seed,
        )
        noise, stated = gram_noise(pca, sites)
        pieces.append(noise)
    noise = np.concatenate(pieces) / stated
    # More survive than must, and each brings its share: (survivors - colluders) shares are what was guaranteed.
    expected = (7 - dead) / (survivors - colluders)
    statistic = float(np.square(noise).sum()) / expected
    low, high = chi2.ppf([LEVEL / 2, 1 - LEVEL / 2], len(noise))
    assert low < statistic < high
    for wrong in (0.9, 1.1):
        assert not low < statistic * wrong**-2 < high


def test_all_sites_together_add_little_more_than_a_curator_would() -> None:
    sites = np.array_split(pooled_rows(2000), 20)
    same: dict[str, Any] = {"method": "covariance", "neighbours": "zero-out"}
    hidden = private_masked(survivors=None, **same).fit(sites)
    trusted = private_federated(**same).fit(sites)
    each = private_federated(trust="site", **same).fit(sites)
    assert 1.0 < hidden.noise_floor_ / trusted.noise_floor_ < 1.03
    assert each.noise_floor_ / trusted.noise_floor_ > 4.4


def test_with_many_people_the_answer_is_nearly_the_exact_one() -> None:
    rows = pooled_rows(60_000)
    pca = private_masked(row_bound=15.0, survivors=0.8).fit(np.array_split(rows, 10))
    assert off(pca, pooled_answer(rows, 2)[0]) < 0.05


@pytest.mark.parametrize("method", PRIVATE)
def test_a_seed_gives_the_same_bits_whatever_the_keys(method: str) -> None:
    one, two = (private_masked(method=method).fit(SITES) for _ in range(2))
    assert same_bits(one, two)
    other = private_masked(method=method, random_state=1).fit(SITES)
    assert not same_bits(one, other)


def test_noise_is_fresh_without_a_seed() -> None:
    one, two = (private_masked(random_state=None).fit(SITES) for _ in range(2))
    assert not same_bits(one, two)


@pytest.mark.parametrize("after", range(9))
def test_sites_may_go_at_any_step(after: int) -> None:
    pca = masked(method="covariance", faults=Faults(dies={"site 1": after, "site 4": after + 1}), center=None).fit(SITES)
    answered = pca.transcript_[-1].answered
    rows = np.vstack([SITES[int(name.split()[1])] for name in answered])
    assert len(answered) >= 5
    assert off(pca, pooled_answer(rows, 3, center=np.zeros(DIM))[0]) < 1e-7


@pytest.mark.parametrize("after", [0, 2, 4, 5, 6])
def test_too_few_survivors_end_it_before_anything_is_unmasked_and_the_charge_stays(after: int) -> None:
    pca: Any = private_masked(method="covariance", center=None, faults=Faults(dies={f"site {i}": after for i in range(5)}))
    with pytest.raises(QuorumLost) as lost:
        pca.fit(SITES)
    assert set(lost.value.missing) == {f"site {i}" for i in range(5)}
    federation = pca._federation
    assert federation.rounds == []
    spent = {name: len(ledger.charges) for name, ledger in federation.ledgers.items()}
    # The question is the fifth message.
    assert spent == {f"site {i}": int(after >= 5 or (i >= 5 and after == 4)) for i in range(7)}
    # They come back: the round goes on, and nobody pays twice for it.
    pca.faults = None
    pca.resume()
    assert pca.guarantee_.epsilon == 1.0
    assert all(len(ledger.charges) == 2 for ledger in pca.ledgers_.values())


def test_a_broken_site_is_put_right_and_the_round_goes_on() -> None:
    sites = dict(enumerate(SITES))
    named = {f"s{i}": rows for i, rows in sites.items()}
    broken = dict(named) | {"s3": DenseRows(np.where(SITES[3] > 0, np.nan, SITES[3]))}
    pca = masked(survivors=None, row_bound=100.0, center=None, method="covariance")
    with pytest.raises((ValueError, QuorumLost)):
        pca.fit(broken)
    pca.resume({"s3": SITES[3]})
    assert off(pca, pooled_answer(ROWS, 3, center=np.zeros(DIM))[0]) < 1e-7


def test_lost_repeated_and_late_message_changes_no_bit() -> None:
    calm = private_masked().fit(SITES)
    rough = private_masked(faults=Faults(loss=0.1, duplicate=0.2, delay=20.0), retries=50).fit(SITES)
    assert same_bits(calm, rough)


def test_keys_are_exchanged_once_for_all_rounds() -> None:
    pca = masked(method="power", rounds=8, tolerance=0.0).fit(SITES)
    first, later = pca.transcript_[0], pca.transcript_[1:]
    assert len(later) >= 8
    assert all(done.bytes_up + done.bytes_down < 0.3 * (first.bytes_up + first.bytes_down) for done in later)


def test_more_rounds_than_keys_take_new_keys() -> None:
    pca = masked(method="power", rounds=30, tolerance=0.0, center=None).fit(SITES)
    assert len(pca.transcript_) == 31
    assert off(pca, pooled_answer(ROWS, 3, center=np.zeros(DIM))[0]) < 1e-6


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "one site": ({}, "at least 2 sites"),
    "quorum": ({"quorum": 5}, "quorum is not for trust='masked'"),
    "tree": ({"topology": "tree"}, "topology='star'"),
    "participation": ({"method": "power", "participation": ("without-replacement", 3)}, "would make sums over few sites"),
    "fedpower": ({"method": "fedpower"}, "can only add, and method='fedpower' does more"),
    "merge": ({"method": "merge"}, "can only add"),
    "wda": ({"method": "wda"}, "can only add"),
    "a pair": ({"epsilon": (1.0, 2.0)}, "epsilon must be a number with trust='masked'"),
    "no bound": ({"row_bound": None}, "row_bound .* is required"),
    "no colluders": ({"colluders": 0}, "colluders must be an integer of at least 1, got 0"),
    "half a colluder": ({"colluders": 1.5}, "colluders must be an integer"),
    "half survive": ({"survivors": 4}, "survivors must be at least 5 of 7 sites"),
    "too many survivors": ({"survivors": 8}, "survivors must be from 1 to the 7 sites"),
    "all collude": ({"survivors": None, "colluders": 7}, "colluders must be an integer"),
    "a share too large": ({"survivors": 1.5}, r"survivors must be .* or a share in \(0, 1\], such as 0.8, got 1.5"),
    "a huge epsilon": ({"epsilon": 1e20}, "or use a smaller epsilon"),
    "colluders without masks": ({"trust": "site", "survivors": None, "colluders": 2}, "colluders is for trust='masked'"),
    "a share as a number": ({"survivors": 5.0}, "survivors must be a whole number from 1, written without a point, .* got 5.0"),
    "survivors without masks": ({"trust": "site"}, "survivors is for trust='masked'"),
}


def test_a_spent_ledger_answers_nothing_more() -> None:
    pca = private_masked(method="covariance", center=None)
    federation = pca.prepare(SITES)
    federation.ledgers["site 2"].spend(0.2, label="something else")
    federation.run()
    assert "site 2" in federation.rounds[0].missing
    assert isinstance(federation.members["site 2"].error, BudgetExceeded)


@pytest.mark.parametrize("origin", [None, 1e8])
@pytest.mark.parametrize("method", METHODS)
def test_a_mean_far_from_zero_costs_nothing(method: str, origin: float | None) -> None:
    sites = [rows + 1e8 for rows in SITES]
    hidden = masked(method=method, origin=origin).fit(sites)
    plain = federated(method=method, origin=origin).fit(sites)
    assert off(hidden, plain.subspace_.basis) < 1e-6


def test_one_row_far_from_all_others_does_not_hide_them() -> None:
    sites = [np.array(rows) for rows in SITES]
    sites[2][0] = 1e5
    hidden, plain = masked().fit(sites), federated().fit(sites)
    assert off(hidden, plain.subspace_.basis) < 1e-5


def test_rows_put_right_that_reach_farther_than_was_declared_are_refused_by_name() -> None:
    named = {f"s{i}": rows for i, rows in enumerate(SITES)}
    pca = masked(survivors=None, faults=Faults(dies={"s3": 4}))
    with pytest.raises(QuorumLost):
        pca.fit(named)
    pca.faults = None
    with pytest.raises(ValueError, match="s3: its rows lie beyond the bounds that the sites declared"):
        pca.resume({"s3": 100 * SITES[3]})
    pca.resume({"s3": SITES[3][::-1]})
    assert off(pca, pooled_answer(ROWS, 3)[0]) < 1e-7


@pytest.mark.parametrize(("size", "words"), [(1e100, "too large"), (1e160, "too large"), (1e-120, "too small")])
def test_numbers_beyond_all_bounds_are_refused_by_the_name_of_the_site(size: float, words: str) -> None:
    sites = {f"s{i}": rows for i, rows in enumerate(SITES)} | {"s4": SITES[4] * size}
    if words == "too small":
        sites = {name: rows * size for name, rows in sites.items()} | {"s4": SITES[4] * size}
    with pytest.raises(ValueError, match=rf"^s\d: numbers {words} to square") as refusal:
        masked().fit(sites)
    assert "e+" not in str(refusal.value)


def test_what_is_not_a_number_is_refused_by_the_name_of_the_site() -> None:
    sites = {f"s{i}": DenseRows(rows) for i, rows in enumerate(SITES)}
    sites["s5"] = DenseRows(np.where(SITES[5] > 0, np.nan, SITES[5]))
    with pytest.raises(ValueError, match=r"^s5: .*NaN"):
        masked().fit(sites)


def test_what_was_charged_is_there_to_be_seen_when_a_fit_ends_early() -> None:
    pca: Any = private_masked(method="covariance", center=None)
    pca.faults = Faults(dies={f"site {i}": 8 for i in range(4)})
    with pytest.raises(QuorumLost):
        pca.fit(SITES)
    assert len(pca.unfinished_.transcript) == 1
    charged = [charge.label for charge in pca.unfinished_.ledgers["site 6"].charges]
    assert charged == ["covariance", "count"]
    with pytest.raises(NotFittedError):
        pca.transform(ROWS)
    # A copy has neither rows nor keys.
    twin = copy.deepcopy(pca)
    with pytest.raises(ValueError, match="nothing to resume"):
        twin.resume()
    pca.faults = None
    assert pca.resume().guarantee_.epsilon == 1.0
    assert not hasattr(pca, "unfinished_")
    # A fit that fails later leaves this one as it is.
    before = pca.ledgers_
    pca.faults = Faults(dies={f"site {i}": 0 for i in range(4)})
    with pytest.raises(QuorumLost):
        pca.fit(SITES)
    assert pca.ledgers_ is before
    assert all(len(ledger.charges) == 0 for ledger in pca.unfinished_.ledgers.values())


def test_a_fit_that_is_interrupted_shows_what_it_spent() -> None:
    def stop(done: Any) -> None:
        raise KeyboardInterrupt

    pca = private_masked(method="covariance")
    with pytest.raises(KeyboardInterrupt):
        pca.fit(SITES, watch=stop)
    assert all(len(ledger.charges) == 1 for ledger in pca.unfinished_.ledgers.values())


def test_little_room_is_said_before_anything_is_charged() -> None:
    with pytest.warns(UserWarning, match="room for .* people at one site"):
        private_masked(epsilon=1e14).fit(SITES)
    with pytest.raises(ValueError, match="clipped with fewer than 1000 people at a site"):
        private_masked(epsilon=1e20).fit(SITES)
    with pytest.raises(ValueError, match="Use fewer rounds"):
        private_masked(method="power", rounds=120).fit(SITES)


@pytest.mark.parametrize("budget", [{"epsilon": 60.0}, {"delta": 1e-30}])
def test_any_ordinary_budget_can_be_kept(budget: dict[str, Any]) -> None:
    """Whole numbers cost nothing: what a hub is guaranteed is all of the budget, at any epsilon and delta."""
    pca = private_masked(method="covariance", **budget).fit(SITES)
    asked = {"epsilon": pca.epsilon, "delta": pca.delta}
    assert {name: getattr(pca.guarantee_, name) for name in asked} == asked
    assert "Their sum is rounded Gaussian noise" in pca.guarantee_.calibration


def test_keys_that_are_used_up_are_said_to_be() -> None:
    federation = masked().prepare(SITES)
    terms, masking = federation.masked, federation._masking
    assert terms is not None
    assert masking is not None
    question = federation.study.ask(federation.study.start())
    for round_ in range(terms.sessions):
        masking(round_, question, tuple(terms.roster), set())
    with pytest.raises(ProtocolError, match="exchanges of keys that the study allows are used up; begin another study"):
        masking(terms.sessions, question, tuple(terms.roster), set())
    with pytest.raises(ProtocolError, match="rounds that the study allows are used up; begin another study"):
        masking(terms.most_rounds, question, tuple(terms.roster), set())


def test_a_site_that_was_late_for_the_keys_is_asked_again() -> None:
    """Two others answer once and then no more: with the late one there are enough."""

    def silent(late: bool) -> Faults:
        def change(message: Message) -> list[Message]:
            first = isinstance(message.body, StepReply) and message.body.step == "keys"
            if message.sender in ("site 1", "site 2") and not first:
                return []
            return [] if late and message.sender == "site 0" else [message]

        return Faults(meddle=change)

    pca = private_masked(survivors=5, retries=0, faults=silent(late=True))
    with pytest.raises(QuorumLost, match="sharing of secrets"):
        pca.fit(SITES)
    pca.faults = silent(late=False)
    pca.resume()
    assert set(pca.sites_) == {f"site {i}" for i in (0, 3, 4, 5, 6)}
    assert all(len(ledger.charges) <= len(pca.transcript_) for ledger in pca.ledgers_.values())


@pytest.mark.parametrize("bound", [1.0, 1e3])
def test_a_bound_on_the_mean_cuts_no_row(bound: float) -> None:
    sites = [rows + 100 for rows in SITES]
    hidden, plain = (make(mean_bound=bound).fit(sites) for make in (masked, federated))
    np.testing.assert_allclose(hidden.explained_variance_, plain.explained_variance_, rtol=1e-6)
    late = masked(mean_bound=bound, survivors=None, faults=Faults(dies={"site 3": 0}))
    with pytest.raises(QuorumLost):
        late.fit(sites)
    late.faults = None
    late.resume({"site 3": sites[3]})
    np.testing.assert_allclose(late.explained_variance_, plain.explained_variance_, rtol=1e-6)


def lying_dealer(monkeypatch: pytest.MonkeyPatch) -> None:
    """One site shares out other seeds than those of its signed keys."""
    share_out = Session.share_out

    def false(session: Session, signed_keys: Any) -> Any:
        if session._name == "site 2":
            session._seeds = [bytes(32) for _ in session._seeds]
        return share_out(session, signed_keys)

    monkeypatch.setattr(Session, "share_out", false)


def test_a_dealer_that_lies_costs_nobody_anything_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = private_masked(method="covariance").fit(SITES)
    labels = [charge.label for charge in honest.ledgers_["site 0"].charges]
    lying_dealer(monkeypatch)
    pca = private_masked(method="covariance").fit(SITES)
    assert "site 2" not in pca.sites_ and len(pca.sites_) == 6
    charged = {name: [charge.label for charge in ledger.charges] for name, ledger in pca.ledgers_.items()}
    assert charged == {f"site {at}": [] if at == 2 else labels for at in range(7)}
    assert any(refusal.peer == "site 2" and "signed keys" in refusal.why for refusal in pca.refused_)


def test_a_round_paid_in_vain_ends_a_fit_with_a_budget_before_more_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sites are gone after the roster, and a third holds its shares back: the sum cannot be read."""
    reveal = Session.reveal

    def false(session: Session, round_: int, alive: frozenset[str]) -> bytes:
        raw = reveal(session, round_, alive)
        return bytes(len(raw)) if session._name == "site 2" else raw

    monkeypatch.setattr(Session, "reveal", false)
    gone: dict[str, Any] = {"retries": 0, "survivors": 5, "faults": Faults(dies={"site 5": 4, "site 6": 4})}
    pca = private_masked(method="covariance", **gone)
    with pytest.raises(ProtocolError, match="site 2 revealed false shares"):
        pca.fit(SITES)
    spent = {name: ledger.spent_mu for name, ledger in pca.unfinished_.ledgers.items()}
    with pytest.raises(BudgetExceeded, match="Nothing more was charged"):
        pca.resume()
    assert {name: ledger.spent_mu for name, ledger in pca.unfinished_.ledgers.items()} == spent
    # Without a budget the fit goes on without the liar, who is named.
    free = masked(method="covariance", **gone)
    with pytest.raises(ProtocolError, match="site 2"):
        free.fit(SITES)
    free.faults = None
    free.resume()
    assert "site 2" not in free.sites_
    assert any(refusal.peer == "site 2" and "confirmed" in refusal.why for refusal in free.refused_)


def test_where_too_few_are_left_without_a_liar_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    lying_dealer(monkeypatch)
    pca = masked(method="covariance", survivors=None)
    for words in (
        "sharing of secrets, where site 2 shared secrets that do not fit its signed keys",
        r"6 sites are left without site 2 \(shared secrets that do not fit its signed keys\), and a sum needs 7",
    ):
        with pytest.raises(ProtocolError, match=words):
            pca.resume() if hasattr(pca, "unfinished_") else pca.fit(SITES)


def test_matrices_with_a_large_trace_have_room() -> None:
    matrix = np.eye(200) + 1e-6
    pca = masked(1, center=None, method="covariance", survivors=None)
    pca.fit([Symmetric(matrix, people=1) for _ in range(40)])
    assert pca.explained_variance_ratio_[0] == pytest.approx(1 / 200, rel=1e-3)


def test_directions_agree_with_the_curators_within_the_noise() -> None:
    sites = cut(pooled_rows(20_000), 5000, 2000, 300, 7000)
    hidden = private_masked(survivors=None, epsilon=3.0).fit(sites)
    trusted = private_federated(epsilon=3.0).fit(sites)
    assert float(sines(hidden.subspace_.basis, trusted.subspace_.basis).max()) < 0.2
