"""What tests of estimators share."""

import pytest

from eigenveil.estimators import verdict


@pytest.fixture
def unplanned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all is noise, nobody rehearses whether that was to be expected: it takes longer than a fit, and has its own tests."""
    monkeypatch.setattr(verdict, "hopeless", lambda facts, method: None)
