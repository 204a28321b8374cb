"""The guarantee says what it must, survives a file, and never looks private when it is not."""

import json
import math
from dataclasses import replace

import pytest

from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Charge
from eigenveil.privacy.guarantee import Guarantee

SOUND = Guarantee(
    epsilon=1.0,
    delta=1e-6,
    unit="each person",
    neighbours="add one",
    against="anybody",
    released=("components",),
    assumptions=("one row each",),
    calibration="exact",
    charges=(Charge("mean", 0.3), Charge("covariance", 0.4)),
)


def test_words_say_everything() -> None:
    words = SOUND.to_text()
    for part in ("(1, 1e-06)", "each person", "add one", "anybody", "components", "one row each", "exact", "mean", "0.5"):
        assert part in words.lower()
    assert str(SOUND).split() == words.split()
    assert SOUND.private


def test_none_says_none_and_why() -> None:
    none = Guarantee.none("it was asked for")
    assert not none.private
    assert none.to_text() == "No privacy: it was asked for."


def test_a_seed_takes_privacy_away_in_the_first_words() -> None:
    seeded = replace(SOUND, reproducible=True)
    assert not seeded.private
    assert seeded.best_guess == 1.0
    assert seeded.to_text().startswith("NOT PRIVATE")


@pytest.mark.parametrize("name", ["relation", "reproducible", "clipping", "protects"])
def test_a_guarantee_that_lacks_a_field_is_not_guessed(name: str) -> None:
    with pytest.raises(ValueError, match=f"its guarantee lacks {name}. Another version of Eigenveil wrote it"):
        Guarantee.from_dict({field: value for field, value in SOUND.to_dict().items() if field != name})


@pytest.mark.parametrize(("epsilon", "times"), [(0.01, "51"), (1.0, "55"), (3.0, "63"), (100.0, "99.99999")])
def test_the_best_guess_is_rounded_up_and_never_certainty(epsilon: float, times: str) -> None:
    """An attacker sees N(0, 1) or N(mu, 1), and says which is nearer."""
    found = replace(SOUND, epsilon=epsilon)
    assert f"correctly at most {times}% of the time. Chance is 50%." in found.to_text()
    mu = Budget(epsilon, 1e-6).mu
    assert found.best_guess == pytest.approx(0.5 * (1 + math.erf(mu / 2 / math.sqrt(2))), rel=1e-12)
    # What any (epsilon, delta) guarantees is no less than that.
    assert found.best_guess <= (math.exp(epsilon) + 1e-6) / (1 + math.exp(epsilon))


@pytest.mark.parametrize("guarantee", [SOUND, Guarantee.none("x")])
def test_survives_json(guarantee: Guarantee) -> None:
    assert Guarantee.from_dict(json.loads(json.dumps(guarantee.to_dict()))) == guarantee


@pytest.mark.parametrize(
    "change",
    [
        {"charges": 3},
        {"charges": [{"label": "x"}]},
        {"released": None},
        {"epsilon": "many"},
        {"delta": None},
        {"more": 1},
        {"reproducible": "no"},
        {"relation": 3},
    ],
)
def test_malformed_dictionaries_are_value_errors(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"guarantee|epsilon|could not convert"):
        Guarantee.from_dict(SOUND.to_dict() | change)
