"""A model's settings come from the declarations of its parameters, and nothing that might be private gets into them."""

from typing import Any, Final

import numpy as np
import pytest

from eigenveil import FederatedPCA, FederatedStream, GossipPCA, Ledger, PrivatePCA, StreamingPCA
from eigenveil.core.unit import Neighbours
from eigenveil.estimators.terms import asked_settings, settings_of
from eigenveil.params.declare import declared, param, parameters
from eigenveil.params.values import Numbers
from eigenveil.recommend import PrivateRecommender

KINDS: Final = (PrivatePCA, FederatedPCA, GossipPCA, StreamingPCA, FederatedStream, PrivateRecommender)
REQUIRED: Final[dict[Any, dict[str, Any]]] = {GossipPCA: {"graph": "ring"}, FederatedStream: {"slots": 4}}
# Not at its default, so that it is recorded if it may be.
PRIVATE: Final = 271828
SECRETS: Final = (
    f"person {PRIVATE}",
    [f"person {PRIVATE}"],
    np.full(3, PRIVATE),
    [PRIVATE, PRIVATE, PRIVATE],
    (float(PRIVATE),) * 3,
    {"person": PRIVATE},
    Ledger(epsilon=PRIVATE, delta=0.1),
)
# Those whose check lets nothing by that is not public. One more must be looked at by a person.
PUBLIC_IN_ALL_FORMS: Final = {"column_bounds", "local_steps", "missing_fill", "missing_groups", "one_hot", "participation"}


def asked_of(kind: Any, **changes: Any) -> Any:
    given = {"n_components": 2, "epsilon": None} | REQUIRED.get(kind, {})
    return kind(**given | changes)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_text_array_or_object_is_recorded(kind: Any) -> None:
    # Where a word must be one of a list, the check lets nothing else by.
    free = [name for name, one in declared(kind).items() if not one.words and name not in PUBLIC_IN_ALL_FORMS]
    for name in free:
        for secret in SECRETS:
            assert str(PRIVATE) not in str(asked_settings(asked_of(kind, **{name: secret}))), name


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_seeds_budgets_and_limits_are_not_recorded(kind: Any) -> None:
    never = {"random_state", "epsilon", "delta", "memory_limit", "deadline", "retries", "quorum", "ledger", "person", "people"}
    for name in never & set(declared(kind)):
        assert name not in asked_settings(asked_of(kind, **{name: 3})), name
    assert {name for name, one in declared(kind).items() if one.param.recorded} <= PUBLIC_IN_ALL_FORMS


@parameters()
class Asked:
    number: int = param("A number.", default=3)
    words: str = param("Any words.", default="Ann")
    anything: Any = param("Anything.", default=7)
    told: Any = param("Anything that is public.", default=("decay", 4), recorded=True)
    place: Numbers | None = param("A number, or one per column.", default=None, none="nowhere")
    hidden: int = param("A number that is not public.", default=3, recorded=False)
    usual: int = param("Seldom another.", default=1, omit_if_default=True)
    alone: int = param("For one number.", default=5, applies_when="words=Bob")


def test_a_new_parameter_is_recorded_by_its_kind() -> None:
    assert asked_settings(Asked()) == {"number": 3, "told": ["decay", 4], "place": "nowhere"}
    found = asked_settings(Asked(words="Bob", usual=2, place=np.float64(0.5)))
    assert found == {"number": 3, "told": ["decay", 4], "place": 0.5, "usual": 2, "alone": 5}
    assert asked_settings(Asked(place=[1.0, 2.0]))["place"] == "one number per column"
    assert "place" not in asked_settings(Asked(place=float("nan")))
    assert "told" not in asked_settings(Asked(told=[[1.0], [2.0]]))


def test_what_a_fit_found_takes_the_place_of_what_was_asked() -> None:
    asked = {"method": "auto", "rounds": 9, "steps": 4, "center": "private", "neighbours": "add-remove"}
    found = settings_of(asked, method="power", why="asked for", neighbours=None, rounds=3, steps=None)
    expected = {"method": "power", "why": "asked for", "rounds": 3, "center": "exact mean", "neighbours": "none"}
    assert found == expected
    near = settings_of(asked, method="power", why="asked for", neighbours=Neighbours.ZERO_OUT)
    assert (near["center"], near["neighbours"], near["rounds"]) == ("private", "zero-out", 9)


def test_a_model_records_what_was_asked_and_no_rows() -> None:
    rows = np.random.default_rng(0).standard_normal((200, 4))
    given: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6, "row_bound": 5.0, "random_state": 271828}
    people = [f"person {at}" for at in range(200)]
    settings = PrivatePCA(2, person=people, center=np.zeros(4), column_bounds=(-3, 3.0), **given).fit(rows).model_.settings
    assert (settings["n_components"], settings["row_bound"], settings["column_bounds"]) == (2, 5.0, [-3, 3.0])
    assert settings["center"] == "one number per column"
    assert "271828" not in str(dict(settings)) and "person" not in str(dict(settings))
