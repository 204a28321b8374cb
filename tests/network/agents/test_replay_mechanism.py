"""A hub's releases are had again as they were, and charged as they were, and another hub's are refused."""

import numpy as np
import pytest

from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Bounded, Gaussian
from eigenveil.core.noise import Noise
from eigenveil.errors import ProtocolError
from eigenveil.network.agents.hub_log import ReplayMechanism
from eigenveil.privacy.released import release_columns


def hub() -> tuple[ReplayMechanism, Ledger]:
    ledger = Ledger(epsilon=5.0, delta=1e-6)
    return ReplayMechanism(Gaussian(multiplier=3.0, ledger=ledger, noise=Noise.fresh())), ledger


def test_what_was_released_is_given_again_and_charged_again() -> None:
    first, spent = hub()
    whole = first.release(Bounded(np.ones(3), 1.0), label="sum")
    parts = list(release_columns(first, iter([np.ones((2, 1))] * 2), dim=2, sensitivity=1.0, label="slices"))
    kept = first.taken()
    assert first.taken() is None
    second, ledger = hub()
    second.recall(kept)
    np.testing.assert_array_equal(second.release(Bounded(np.ones(3), 1.0), label="sum"), whole)
    again = release_columns(second, iter([np.ones((2, 1))] * 2), dim=2, sensitivity=1.0, label="slices")
    assert len(ledger.charges) == 2
    np.testing.assert_array_equal(list(again), parts)
    second.require_all_given()
    assert ledger.charges == spent.charges
    # From here on noise is new.
    assert not np.array_equal(second.release(Bounded(np.ones(3), 1.0), label="sum"), whole)


def test_releases_of_another_hub_are_refused() -> None:
    first, _ = hub()
    first.release(Bounded(np.ones(3), 1.0), label="sum")
    second, _ = hub()
    second.recall(first.taken())
    with pytest.raises(ProtocolError, match="releases that this hub does not make"):
        second.require_all_given()
    with pytest.raises(ProtocolError, match="other releases"):
        second.release(Bounded(np.ones(4), 1.0), label="sum")
