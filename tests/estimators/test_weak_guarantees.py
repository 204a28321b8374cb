"""A guarantee that promises next to nothing says so: in its notes, and as a Python warning. Others are silent."""

import warnings
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

from eigenveil import FederatedPCA, GossipPCA, PrivatePCA, StreamingPCA, find_bounds, find_column_bounds, released_spectrum
from eigenveil.core.accounting import Budget
from eigenveil.errors import WeakGuaranteeWarning
from eigenveil.privacy.facts import weak_words
from eigenveil.recommend import PrivateRecommender
from estimators.tables import rows

PARTS: Final = np.array_split(rows(), 4)
BOUND: Final[dict[str, Any]] = {"row_bound": 12.0}
FITS: Final[dict[str, Callable[..., Any]]] = {
    "one table": lambda **budget: PrivatePCA(2, **BOUND, **budget).fit(rows()).guarantee_,
    "sites": lambda **budget: FederatedPCA(2, **BOUND, **budget).fit(PARTS).guarantee_,
    "peers": lambda **budget: GossipPCA(2, graph="complete", **BOUND, **budget).fit(PARTS).guarantee_,
    "stream": lambda **budget: StreamingPCA(2, **BOUND, **budget).fit(rows()).guarantee_,
    "bound on rows": lambda **budget: find_bounds(rows(), **budget).guarantee,
    "bounds on columns": lambda **budget: find_column_bounds(rows(), **budget).guarantee,
    "spectrum": lambda **budget: released_spectrum(rows(), **BOUND, **budget).guarantee,
    "recommender": lambda **budget: PrivateRecommender(2, on_noise="warn", **budget).fit((rows() > 1).astype(float)).guarantee_,
}


def caught(fit: Callable[..., Any], **budget: Any) -> tuple[list[str], Any]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        guarantee = fit(**budget)
    return [str(one.message) for one in found if one.category is WeakGuaranteeWarning], guarantee


def notes_of(guarantee: Any) -> list[str]:
    return [note for label, texts in guarantee.parts() if label == "Note" for note in texts]


@pytest.mark.parametrize("kind", FITS)
@pytest.mark.parametrize(
    ("budget", "first"),
    [({"epsilon": 20.5, "delta": 1e-6}, "Epsilon is 20.5."), ({"epsilon": 4.0, "delta": 0.02}, "Delta is ")],
    ids=["epsilon", "delta"],
)
def test_a_weak_budget_is_said_twice(kind: str, budget: Any, first: str) -> None:
    said, guarantee = caught(FITS[kind], **budget)
    assert len(said) == 1
    assert said[0].startswith(first)
    notes = notes_of(guarantee)
    # A user of a recommender is called a user in the guarantee.
    assert said[0].split(". ")[-1].rstrip(".") in " ".join(notes)


@pytest.mark.parametrize("kind", FITS)
def test_an_ordinary_budget_gets_no_word(kind: str) -> None:
    said, guarantee = caught(FITS[kind], epsilon=4.0, delta=1e-6)
    assert said == []
    assert not any(note.startswith(("Delta is", "Epsilon is")) for note in notes_of(guarantee))


@pytest.mark.parametrize(
    "fit",
    [
        lambda X, **more: PrivatePCA(2, neighbours="zero-out", **more).fit(X),
        lambda X, **more: PrivatePCA(2, **more).fit(X),
        lambda X, **more: FederatedPCA(2, trust="masked", **more).fit(np.array_split(X, 4)),
        lambda X, **more: StreamingPCA(2, **more).fit(X),
    ],
    ids=["public count", "released count", "sites", "stream"],
)
def test_delta_is_compared_with_the_number_of_people(fit: Any) -> None:
    given = BOUND | {"epsilon": 4.0, "delta": 8e-4}
    assert caught(lambda: fit(rows(600), **given))[0] == []
    said, guarantee = caught(lambda: fit(rows(4000), **given).guarantee_)
    assert len(said) == 1
    assert said[0].startswith("Delta is more than one over the ")
    assert said[0] in notes_of(guarantee)


def test_the_limits_are_those_that_were_agreed() -> None:
    assert weak_words(Budget(20.0, 1e-3)) == ()
    assert weak_words(Budget(20.0, 1e-3), 1000.0) == ()
    assert len(weak_words(Budget(20.0, 1e-3), 1001.0)) == 1
    assert len(weak_words(Budget(20.01, 1.1e-3))) == 2
    # A noisy number of people may be anything.
    for people in (0.0, -50.0):
        assert weak_words(Budget(1.0, 1e-6), people) == ()


def test_without_privacy_nothing_is_weak() -> None:
    assert caught(FITS["one table"], epsilon=None)[0] == []
