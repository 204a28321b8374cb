"""The guarantee says what it must, survives a file, and never looks private when it is not."""

import json
from dataclasses import replace

import pytest

from eigenveil.privacy import Charge, Guarantee

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
    words = SOUND.words()
    for part in (
        "(1, 1e-06)",
        "each person",
        "add one",
        "anybody",
        "components",
        "one row each",
        "exact",
        "mean",
        "0.5",
    ):
        assert part in words
    assert str(SOUND) == words
    assert SOUND.private


def test_none_says_none_and_why() -> None:
    none = Guarantee.none("it was asked for")
    assert not none.private
    assert none.words() == "No privacy: it was asked for."


def test_a_seed_takes_privacy_away_in_the_first_words() -> None:
    seeded = replace(SOUND, caveats=("reproducible, not private: seed",))
    assert not seeded.private
    assert seeded.words().startswith("NOT PRIVATE")


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
    ],
)
def test_malformed_dictionaries_are_value_errors(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"guarantee|epsilon|could not convert"):
        Guarantee.from_dict(SOUND.to_dict() | change)
