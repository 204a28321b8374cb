"""Who carries a fit calls no estimator: all that a fit needs is handed down before it begins. Counted while real fits run."""

import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pytest

from eigenveil import FederatedPCA, GossipPCA, PrivatePCA, StreamingPCA
from eigenveil.core.domain import Domain
from eigenveil.core.mechanism import Exact
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import DenseRows
from eigenveil.linalg import Array
from eigenveil.methods.covariance import CovarianceSum
from eigenveil.protocols.party import run_pooled
from eigenveil.tasks.base import Components
from eigenveil.tasks.fit.bounds import RowBounds
from eigenveil.tasks.fit.gaps import split_budget
from eigenveil.tasks.fit.task import Fit

Calls = Counter[tuple[str, str]]

BELOW: Final = ("eigenveil.tasks", "eigenveil.protocols")
ABOVE: Final = "eigenveil.estimators"
SITES: Final = 6
PRIVATE: Final[dict[str, Any]] = {"epsilon": 1.0, "delta": 1e-6, "row_bound": 10.0, "random_state": 0}
ROWS: Final[Array] = np.random.default_rng(0).standard_normal((600, 8)) * [3, 2, 1, 1, 0.5, 0.5, 0.2, 0.2]
PARTS: Final = {f"site {i}": part for i, part in enumerate(np.split(ROWS, SITES))}


@contextmanager
def calls_upward() -> Iterator[Calls]:
    """Counts calls from tasks and protocols into estimators, by who was called, (module, name), while the block runs."""
    found: Calls = Counter()

    def note(frame: types.FrameType, event: str, _: object) -> None:
        if event != "call" or not _module(frame).startswith(ABOVE):
            return
        # Who asked for it: what lies between, such as `dataclasses.replace` or `map`, calls for another.
        caller = frame.f_back
        while caller is not None and not _module(caller).startswith("eigenveil."):
            caller = caller.f_back
        if caller is not None and _module(caller).startswith(BELOW):
            found[_module(frame), frame.f_code.co_name] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(before)


def _module(frame: types.FrameType) -> str:
    """Where the function was written; what `dataclass` makes belongs to the module of its class."""
    return str(frame.f_globals.get("__name__", ""))


def private(**options: Any) -> None:
    PrivatePCA(2, **PRIVATE, **options).fit(ROWS)


def stream(**options: Any) -> None:
    StreamingPCA(2, **PRIVATE, **options).fit(ROWS)


def masked(**options: Any) -> list[Any]:
    return list(FederatedPCA(2, **PRIVATE, trust="masked", **options).fit(PARTS).transcript_)


def gossip(**options: Any) -> list[Any]:
    return list(GossipPCA(2, **PRIVATE, graph="ring", **options).fit(PARTS).transcript_)


@pytest.mark.parametrize(
    ("fit", "limit"), [(private, 2), (masked, 5), (stream, 1), (gossip, 50)], ids=lambda value: getattr(value, "__name__", "")
)
def test_a_fit_as_it_comes_calls_up_no_more_than_this(fit: Callable[[], object], limit: int) -> None:
    with calls_upward() as calls:
        fit()
    assert calls.total() <= limit, calls


@pytest.mark.parametrize("method", ["covariance", "power"])
def test_one_holder_calls_up_for_nothing(method: str) -> None:
    with calls_upward() as calls:
        private(method=method)
    assert not calls


@pytest.mark.parametrize("method", ["covariance", "power", "krylov"])
def test_a_hub_calls_up_once_a_round_to_tell_of_it(method: str) -> None:
    with calls_upward() as calls:
        rounds = len(masked(method=method))
    assert calls == {("eigenveil.estimators.federated.parties", "_note"): rounds}


@pytest.mark.parametrize("method", ["segments", "covariance", "power"])
def test_each_peer_calls_up_once_a_round_to_tell_of_it(method: str) -> None:
    with calls_upward() as calls:
        rounds = len(gossip(method=method))
    assert calls == {("eigenveil.estimators.gossip.parties", "_note"): rounds * SITES}


def test_a_call_upward_is_seen_also_by_way_of_others() -> None:
    """A function of an estimator, handed down as it is, and behind one from outside of the project."""
    above = types.FunctionType(_covariance.__code__, globals() | {"__name__": f"{ABOVE}.made_up"})

    def behind(domain: Domain) -> CovarianceSum:
        task: CovarianceSum = above(domain)
        return task

    for components in (above, behind):
        with calls_upward() as calls:
            run_pooled(_study(components), DenseRows(ROWS), Exact(because="calls are counted"))
        assert calls == {(f"{ABOVE}.made_up", "_covariance"): 1}


def _covariance(domain: Domain) -> CovarianceSum:
    return CovarianceSum(domain, Neighbours.ADD_REMOVE)


def _study(components: Components) -> Fit:
    bounds = RowBounds.check(
        8, private=True, row_bound=10.0, column_bounds=None, origin=None, mean_bound=None, scale=None, sparse=False
    )
    return Fit(
        bounds=bounds,
        neighbours=Neighbours.ADD_REMOVE,
        center=None,
        components=components,
        split=split_budget(mean=False, search=False, count=False, trace=False),
        people=float(len(ROWS)),
        multiplier=0.0,
        rank=2,
    )
