"""A copy is what was released: no pickle, copy or clone of an estimator holds a row, a score, a key or a party, nor can it
release anything. Of the original only what says so does. All components are asked for: scores are then rows, turned."""

import copy
import functools
import multiprocessing
import os
import pickle
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline

from eigenveil import (
    EigenveilError,
    FederatedPCA,
    GossipPCA,
    Ledger,
    PrivatePCA,
    PrivateRecommender,
    StreamingPCA,
    find_bounds,
    released_spectrum,
)
from eigenveil.core.mechanism import Bounded
from eigenveil.core.noise import Noise
from eigenveil.core.rows import Block, Rows
from eigenveil.data.people import Withheld
from eigenveil.errors import BudgetExceeded, QuorumLost
from eigenveil.estimators.bounds.columns import find_column_bounds
from eigenveil.estimators.gossip.pca import ReadyScores
from eigenveil.linalg import Array
from eigenveil.protocols.keys import Identity
from eigenveil.protocols.party import Party
from eigenveil.recommend import Interactions
from eigenveil.runtimes.local import Faults
from eigenveil.tasks.fit.task import Fit
from laws.object_graphs import COPIES, Secrets, reached, through_pickles

DIM, COUNT, BOUND = 5, 80, 8.0
NAMES = ("Brno", "Graz", "Linz", "Pula")
BUDGET: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "row_bound": BOUND, "random_state": 0}


def table() -> Array:
    """Rows well within the bound, whose entries are on any grid that has 2^16 units in it."""
    rng = np.random.default_rng(1)
    whole = 2 * rng.integers(2**11, 2**12, (COUNT, DIM)) + 1
    return np.asarray(whole * rng.choice([-1, 1], (COUNT, DIM)) * (BOUND / 2**16), dtype=np.float64)


ROWS = table()
PARTS = dict(zip(NAMES, np.array_split(ROWS, 4), strict=True))
PEOPLE = np.array([f"patient {i // 2}" for i in range(COUNT)])


def sums_of(rows: Array, weights: Any = 1.0) -> list[Any]:
    """What rows come to without noise."""
    weighted = rows * np.sqrt(np.broadcast_to(weights, len(rows)))[:, None]
    gram = weighted.T @ weighted
    total = (rows * np.broadcast_to(weights, len(rows))[:, None]).sum(axis=0)
    return [total, total / len(rows), gram, np.trace(gram), gram / len(rows), np.linalg.eigvalsh(gram)]


def secrets_of(model: Any, parts: list[Array]) -> Secrets:
    """Entries, lengths and sums of rows, raw and around the mean that was released, and scores on released components."""
    found: list[Any] = [ROWS, np.linalg.norm(ROWS, axis=1)]
    for rows in (ROWS, *parts):
        found += sums_of(rows)
    if model is not None:
        moved = ROWS - model.mean
        found += [moved, model.transform(ROWS), ROWS @ model.components.T, *sums_of(moved)]
        found += [model.transform(ROWS) / np.where(model.values > 0, model.values, np.inf)]
    return Secrets(*found)


@dataclass(frozen=True)
class Kept:
    """A fitted estimator, what it may hold that nobody else may, and the tables that it saw beside the whole one."""

    estimator: Any
    own: tuple[Any, ...] = ()
    parts: tuple[Array, ...] = ()

    @property
    def secrets(self) -> Secrets:
        return secrets_of(getattr(self.estimator, "model_", None), list(self.parts))


def curator(**choices: Any) -> Kept:
    return Kept(PrivatePCA(DIM, **BUDGET, **choices).fit(ROWS))


def federated(**choices: Any) -> Kept:
    return Kept(FederatedPCA(DIM, **(BUDGET | choices)).fit(PARTS), parts=tuple(PARTS.values()))


def interrupted() -> Kept:
    """A fit that can be resumed, and holds its rows for that."""
    pca = FederatedPCA(DIM, **BUDGET, faults=Faults(dies={"Linz": 1}))
    with pytest.raises(QuorumLost):
        pca.fit(PARTS)
    return Kept(pca, (pca._federation,), tuple(PARTS.values()))


def peers(**choices: Any) -> Kept:
    pca = GossipPCA(DIM, **({"graph": "complete", "neighbours": "zero-out"} | BUDGET | choices)).fit(PARTS)
    own = (pca.scores_, getattr(pca, "segments_", None), pca._ready)
    return Kept(pca, own, tuple(PARTS.values()))


def stream(*, sync: bool = True, form: Callable[[Array], Any] = np.asarray, **choices: Any) -> Kept:
    given = {"block_size": 16, "center": None} | BUDGET | choices
    pca = StreamingPCA(DIM, **given).partial_fit(form(ROWS[:70]))
    if sync:
        pca.sync().partial_fit(form(ROWS[70:]))
    held = pca._stream
    return Kept(pca, (held.pending, held.state, held.tracker, held._noise, held._seen), (ROWS[:64], ROWS[:70], ROWS[70:]))


MADE: dict[str, Callable[[], Kept]] = {
    "curator, covariance": lambda: curator(method="covariance"),
    "curator, power": lambda: curator(method="power"),
    "curator, given center": lambda: curator(center=None),
    "curator, exact": lambda: Kept(PrivatePCA(DIM, epsilon=None).fit(ROWS)),
    "curator, people": lambda: curator(person=PEOPLE),
    "curator, pandas": lambda: Kept(PrivatePCA(DIM, **BUDGET).fit(pd.DataFrame(ROWS))),
    "curator, sparse": lambda: Kept(PrivatePCA(DIM, **BUDGET).fit(sp.csr_array(ROWS))),
    "hub": federated,
    "sites": lambda: federated(trust="site"),
    "both": lambda: federated(trust="both", epsilon=(2.0, 1.0)),
    "masked": lambda: federated(trust="masked"),
    "products": lambda: federated(method="power"),
    "interrupted": interrupted,
    "peers, power": lambda: peers(method="power"),
    "peers, covariance": lambda: peers(method="covariance"),
    "peers, krylov": lambda: peers(method="krylov"),
    "peers, segments": lambda: peers(method="segments"),
    "peers, independent": lambda: peers(noise="independent"),
    "peers, add-remove": lambda: peers(neighbours="add-remove"),
    "peers, exact": lambda: peers(epsilon=None, delta=None, noise=None),
    "stream, sync": stream,
    "stream, nothing released": lambda: stream(sync=False),
    "stream, sparse": lambda: stream(sync=False, form=sp.csr_array),
    "stream, block": lambda: stream(sync=False, publish="block"),
    "stream, block, all released": lambda: stream(publish="block"),
    "stream, tree": lambda: stream(sync=False, publish="continual", horizon=160),
    "stream, tree, synchronised": lambda: stream(publish="continual", horizon=160),
}
# What these release is exact, so sums over all rows are no secret. Entries and scores are.
EXACT = ("curator, exact", "peers, exact", "peers, published")


@functools.cache
def made(name: str) -> Kept:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return MADE[name]()


def private_kinds(things: Any, *, but: Any = ()) -> list[str]:
    """Objects of kinds that hold rows, keys, noise or a party, whatever is in them."""
    kinds = (Block, Party, Fit, Noise, Identity, ReadyScores, Bounded, Interactions)
    return [
        type(one).__name__
        for one in reached(things, but=but)
        if isinstance(one, kinds) or (isinstance(one, Rows) and not isinstance(one, np.ndarray))
    ]


@functools.cache
def secrets_for(name: str) -> Secrets:
    kept = made(name)
    if name not in EXACT:
        return kept.secrets
    model = kept.estimator.model_
    return Secrets(ROWS, model.transform(ROWS), *(part.sum(axis=0) for part in kept.parts))


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("way", COPIES)
def test_no_copy_holds_a_private_number(name: str, way: str) -> None:
    other = COPIES[way](made(name).estimator)
    assert secrets_for(name).held_by(other) == []
    assert private_kinds(other) == []


@pytest.mark.parametrize("name", MADE)
def test_no_pickle_is_written_with_a_private_number(name: str) -> None:
    for way, data in through_pickles(made(name).estimator).items():
        assert not secrets_for(name).written_in(data), way
        assert b"patient 3" not in data, way


@pytest.mark.parametrize("name", MADE)
def test_the_original_holds_what_it_says_and_no_more(name: str) -> None:
    kept = made(name)
    assert secrets_for(name).held_by(kept.estimator, but=kept.own) == []
    assert private_kinds(kept.estimator, but=kept.own) == []
    # The attack does see what is held.
    if kept.own and not name.endswith("all released"):
        assert secrets_for(name).held_by(kept.estimator) != []


@pytest.mark.parametrize("name", MADE)
def test_nothing_that_is_shown_tells_a_private_number(name: str) -> None:
    pca = made(name).estimator
    secrets = secrets_for(name)
    shown = [repr(pca), str(pca), pca._repr_html_(), repr(pca.get_params()["ledger"] if hasattr(pca, "ledger") else "")]
    for attribute in ("guarantee_", "model_", "transcript_", "ledgers_", "refused_", "plan_", "terms_", "unfinished_"):
        try:
            shown.append(f"{getattr(pca, attribute, '')} {getattr(pca, attribute, '')!r}")
        except NotFittedError:
            continue
    assert not any(secrets.told_in(words) for words in shown)
    assert not any("patient" in words for words in shown)
    # A notebook shows attributes too, also of a step in a pipeline.
    assert "scores_" not in pca._repr_html_() + make_pipeline("passthrough", pca)._repr_html_()


@pytest.mark.parametrize("name", [name for name in MADE if name != "interrupted" and "stream" not in name])
def test_copies_are_fitted_and_give_the_same_scores(name: str) -> None:
    pca = made(name).estimator
    for way, make in COPIES.items():
        if way == "clone":
            with pytest.raises(NotFittedError):
                make(pca).transform(ROWS)
        else:
            assert np.array_equal(make(pca).transform(ROWS), pca.transform(ROWS))
            assert make(pca).guarantee_ == pca.guarantee_


def test_a_copy_keeps_its_output_container() -> None:
    pca = PrivatePCA(2, **BUDGET).fit(ROWS).set_output(transform="pandas")
    for way in ("pickle", "deepcopy", "copy", "clone"):
        other = COPIES[way](pca)
        assert isinstance((other.fit(ROWS) if way == "clone" else other).transform(ROWS), pd.DataFrame)


# Scores of peers: one place can publish them.


def scored() -> GossipPCA:
    return GossipPCA(DIM, graph="complete", neighbours="zero-out", **BUDGET).fit(PARTS)


@pytest.mark.parametrize("way", [way for way in COPIES if way != "clone"])
def test_a_copy_cannot_publish_and_the_original_can(way: str) -> None:
    pca = scored()
    other = COPIES[way](pca)
    assert not hasattr(other, "scores_") and not hasattr(other, "segments_")
    for _ in range(2):
        with pytest.raises(EigenveilError, match=r"a copy of a fit, .* Only the original can publish"):
            other.publish_scores(epsilon=1.0, delta=1e-6)
    assert other.guarantee_ == pca.guarantee_
    given = pca.publish_scores(epsilon=1.0, delta=1e-6)
    assert given.guarantee is pca.guarantee_ and other.guarantee_ != pca.guarantee_
    # Nor does a copy of what has published.
    with pytest.raises(EigenveilError, match="Only the original can publish"):
        COPIES[way](pca).publish_scores(epsilon=1.0, delta=1e-6)
    assert COPIES[way](pca).guarantee_ == pca.guarantee_


def test_a_clone_is_not_fitted_and_has_nothing_to_publish() -> None:
    with pytest.raises(NotFittedError):
        clone(scored()).publish_scores(epsilon=1.0, delta=1e-6)


def test_every_publication_is_a_charge() -> None:
    pca = scored()
    before = pca.guarantee_
    one, two = (pca.publish_scores(epsilon=1.0, delta=1e-6) for _ in range(2))
    assert [len(g.charges) - len(before.charges) for g in (one.guarantee, two.guarantee)] == [1, 2]
    assert before.epsilon < one.guarantee.epsilon < two.guarantee.epsilon  # type: ignore[operator]
    assert not np.array_equal(one.scores["Brno"], two.scores["Brno"])


def test_a_forked_process_cannot_publish(monkeypatch: pytest.MonkeyPatch) -> None:
    pca = scored()
    here = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: here + 1)
    with pytest.raises(EigenveilError, match="forked copy"):
        pca.publish_scores(epsilon=1.0, delta=1e-6)
    monkeypatch.undo()
    assert pca.publish_scores(epsilon=1.0, delta=1e-6).scores.keys() == PARTS.keys()


def _published_elsewhere(pca: Any) -> str:
    try:
        pca.publish_scores(epsilon=1.0, delta=1e-6)
    except EigenveilError as error:
        return str(error)
    return "published"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_no_other_process_can_publish(method: str) -> None:
    pca = scored()
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert "Only the original" in pool.apply(_published_elsewhere, (pca,))


def test_a_copy_can_be_fitted_again() -> None:
    pca = scored()
    again = pickle.loads(pickle.dumps(pca)).fit(PARTS)  # noqa: S301  Of our own making.
    assert again.scores_.keys() == PARTS.keys()
    assert again.publish_scores(epsilon=1.0, delta=1e-6).scores["Linz"].shape == (20, DIM)


# People of a curator's table.


def test_a_copy_of_a_fit_does_not_know_whose_rows_they_were() -> None:
    pca = PrivatePCA(2, **BUDGET, person=PEOPLE)
    # What is not fitted is a request, and may be sent to where it is carried out.
    assert np.array_equal(pickle.loads(pickle.dumps(pca)).person, PEOPLE)  # noqa: S301
    pca.fit(ROWS)
    for other in (pickle.loads(pickle.dumps(pca)), copy.deepcopy(pca), copy.copy(pca)):  # noqa: S301
        assert isinstance(other.person, Withheld)
        with pytest.raises(ValueError, match=r"this is a copy of a fitted estimator, without .*Pass the identifiers again"):
            other.fit(ROWS)
        assert other.set_params(person=PEOPLE).fit(ROWS).guarantee_ == pca.guarantee_
    assert np.array_equal(pca.person, PEOPLE) and np.array_equal(clone(pca).person, PEOPLE)
    by_name = PrivatePCA(2, **BUDGET, person="who").fit(pd.DataFrame(ROWS).add_prefix("c").assign(who=PEOPLE))
    assert copy.deepcopy(by_name).person == "who"


def test_nobody_is_shown_where_an_estimator_is() -> None:
    pca = PrivatePCA(2, epsilon=1.0, delta=1e-6, row_bound=8.0, person=list(PEOPLE))
    for shown in (pca, pca.fit(ROWS), clone(pca), copy.deepcopy(pca)):
        for words in (repr(shown), str(shown), shown._repr_html_()):
            assert "patient" not in words
        assert "person=<identifiers, not shown>" in " ".join(repr(shown).split())


# Ledgers: a copy reads and does not spend.


def test_a_copied_ledger_pays_once() -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    pca = PrivatePCA(2, **BUDGET, ledger=ledger).fit(ROWS)
    for other in (copy.copy(pca), copy.deepcopy(pca), clone(pca), copy.deepcopy(vars(pca))):
        assert (other["ledger"] if isinstance(other, dict) else other.ledger) is ledger
    sent = pickle.loads(pickle.dumps(pca))  # noqa: S301
    with pytest.raises(BudgetExceeded, match="copy of a ledger"):
        sent.fit(ROWS)
    assert len(ledger.charges) == len(sent.ledger.charges)


# Small releases, and recommenders, whose raw entries are zeros and ones.


@pytest.mark.parametrize("find", [find_bounds, find_column_bounds, released_spectrum])
def test_what_is_found_before_a_fit_holds_no_row(find: Any) -> None:
    rows = np.tile(ROWS, (40, 1))
    more = {"row_bound": BOUND} if find is released_spectrum else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = find(rows, epsilon=5.0, delta=1e-6, random_state=0, **more)
    secrets = Secrets(ROWS, np.linalg.norm(ROWS, axis=1), *sums_of(rows))
    assert secrets.held_by(found) == [] and private_kinds(found) == []
    assert not secrets.written_in(pickle.dumps(found))


def histories() -> sp.csr_array:
    return sp.csr_array((np.random.default_rng(3).random((600, 7)) < 0.4).astype(float))


@pytest.mark.parametrize("trust", ["hub", "site", "masked"])
@pytest.mark.parametrize("method", ["covariance", "power"])
def test_no_recommender_holds_a_history(trust: str, method: str) -> None:
    R = histories()
    sites = [R[:200], R[200:400], R[400:]]
    choices: dict[str, Any] = {"trust": trust, "method": method, "item_degrees": "private", "on_noise": "warn"}
    model = PrivateRecommender(6, epsilon=4.0, delta=1e-4, random_state=0, **choices)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(sites)
    found = []
    for part in (R, *sites):
        dense = part.toarray()
        normal = dense / np.sqrt(np.maximum(dense.sum(axis=1, keepdims=True), 1))
        gram = normal.T @ normal
        found += [normal.sum(axis=0), gram, np.linalg.eigvalsh(gram), np.linalg.eigvalsh(dense.T @ dense)]
    secrets = Secrets(*found)
    for way, make in COPIES.items():
        other = make(model)
        assert secrets.held_by(other) == [], way
        assert private_kinds(other) == [] and not any(map(sp.issparse, reached(other)))
    assert secrets.held_by(model) == [] and private_kinds(model) == []
    assert not any(secrets.written_in(data) for data in through_pickles(model).values())


# What goes wrong tells nothing either.


@pytest.mark.parametrize("spoil", [np.nan, np.inf])
@pytest.mark.parametrize("kind", ["curator", "federated", "gossip", "stream"])
def test_no_error_holds_or_tells_a_private_number(kind: str, spoil: float) -> None:
    rows = ROWS.copy()
    rows[33, 2] = spoil
    parts = dict(zip(NAMES, np.array_split(rows, 4), strict=True))
    fits: dict[str, Callable[[], Any]] = {
        "curator": lambda: PrivatePCA(DIM, **BUDGET).fit(rows),
        "federated": lambda: FederatedPCA(DIM, **BUDGET).fit(parts),
        "gossip": lambda: GossipPCA(DIM, graph="complete", **BUDGET).fit(parts),
        "stream": lambda: StreamingPCA(DIM, **BUDGET).fit(rows),
    }
    with pytest.raises(ValueError) as caught:
        fits[kind]()
    secrets = secrets_of(None, list(PARTS.values()))
    error: BaseException | None = caught.value
    while error is not None:
        assert not secrets.told_in(f"{error} {error!r}")
        assert secrets.held_by(error.args, vars(error)) == []
        error = error.__cause__ or error.__context__


def test_an_interrupted_fit_is_told_without_its_rows() -> None:
    pca = FederatedPCA(DIM, **BUDGET, faults=Faults(dies={"Linz": 1}))
    with pytest.raises(QuorumLost) as caught:
        pca.fit(PARTS)
    secrets = secrets_of(None, list(PARTS.values()))
    assert secrets.held_by(caught.value.args, vars(caught.value), pca.unfinished_) == []
    assert not secrets.written_in(pickle.dumps(pca.unfinished_))
    for make in COPIES.values():
        with pytest.raises(ValueError, match="nothing to resume"):
            make(pca).resume()


# The attack itself: it finds what is planted, wherever that is.


class _Slotted:
    __slots__ = ("inside",)

    def __init__(self, inside: Any) -> None:
        self.inside = inside

    def method(self) -> None:
        return None


def _generator(row: Array) -> Iterator[None]:
    yield None
    assert row is not None


def _begun(row: Array) -> Any:
    made = _generator(row)
    next(made)
    return made


PLANTED: dict[str, Callable[[Array], Any]] = {
    "array": lambda row: row.copy(),
    "one entry": lambda row: float(row[1]),
    "numpy entry": lambda row: row[1],
    "half of it": lambda row: [-row[2] / 2],
    "view": lambda row: np.concatenate([row, np.zeros(3)])[DIM:],
    "whole numbers": lambda row: np.rint(row / (BOUND / 2**17)).astype(np.int64),
    "objects": lambda row: np.array([None, row.tolist()], dtype=object),
    "sparse": lambda row: sp.csr_array(row[None]),
    "bytes": lambda row: row.tobytes(),
    "slot": _Slotted,
    "bound method": lambda row: _Slotted(row).method,
    "closure": lambda row: lambda: row,
    "default": lambda row: lambda row=row: None,
    "partial": lambda row: functools.partial(print, row),
    "generator": _begun,
    "key": lambda row: {tuple(row.tolist()): 1},
    "deque": lambda row: deque([{"deep": (row,)}]),
    "frame": lambda row: pd.DataFrame(row[None]),
    "float32": lambda row: row.astype(np.float32),
    "complex": lambda row: row * 1j,
}


@pytest.mark.parametrize("planted", PLANTED)
def test_what_is_planted_is_found(planted: str) -> None:
    pca = PrivatePCA(DIM, **BUDGET).fit(ROWS)
    secrets = secrets_of(pca.model_, [])
    assert secrets.held_by(pca) == []
    pca.guarantee_note_ = PLANTED[planted](ROWS[17])  # type: ignore[attr-defined]
    assert secrets.held_by(pca) != []
    assert secrets.held_by(copy.copy(pca)) != []


def test_what_is_written_is_found() -> None:
    secrets = secrets_of(None, [])
    for held in (ROWS[5], ROWS[5].astype(">f8"), ROWS.sum(axis=0) / COUNT, float(np.linalg.norm(ROWS[9])), {"a": ROWS[5, :2]}):
        assert secrets.written_in(pickle.dumps(held))
    assert not secrets.written_in(pickle.dumps([ROWS[::-1, ::-1].cumsum(), "text", 3.14, list(range(1000))]))


@pytest.mark.parametrize("what", ["scores", "sum", "mean", "gram", "segments"])
def test_functions_of_rows_are_found(what: str) -> None:
    kept = made("peers, power")
    model = kept.estimator.model_
    held = {
        "scores": model.transform(ROWS[40:41])[::-1],
        "sum": PARTS["Graz"][::-1].sum(axis=0),
        "mean": ROWS.mean(axis=0)[0],
        "gram": np.triu(PARTS["Pula"].T @ PARTS["Pula"]),
        "segments": kept.estimator.scores_["Linz"][:, 0] / model.values[0],
    }
    assert kept.secrets.held_by(copy.copy(kept.estimator), held[what]) != []


@pytest.mark.parametrize("left", ["scores_", "segments_"])
def test_an_estimator_that_keeps_too_much_is_convicted(left: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = made("peers, segments")
    monkeypatch.setattr(GossipPCA, "_own", tuple(name for name in GossipPCA._own if name != left))
    assert kept.secrets.held_by(COPIES["pickle"](kept.estimator)) != []
    assert kept.secrets.written_in(pickle.dumps(kept.estimator))
