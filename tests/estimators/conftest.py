"""What tests of estimators share."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _unplanned(unplanned: None) -> None:
    """Tests of estimators make no plans."""
