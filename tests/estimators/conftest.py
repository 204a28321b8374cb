"""What tests of estimators share."""

import pytest

from eigenveil.estimators import verdict


@pytest.fixture(autouse=True)
def unplanned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody rehearses whether a result of noise alone was to be expected, which takes longer than most fits here.

    A plan knows public numbers alone and changes no fit. What estimators say of it is for test_verdicts.py, where plans are made.
    """
    monkeypatch.setattr(verdict, "hopeless", lambda facts, method: None)
