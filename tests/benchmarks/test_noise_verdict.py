"""The benchmark of the noise verdict: a fit of alike rows from the sums of one of them is the whole fit, to the last bit."""

import math
from typing import Any

import numpy as np
import pytest

from benchmarks import noise_verdict
from eigenveil import FederatedPCA, Ledger
from eigenveil.core.mechanism import Gaussian
from eigenveil.core.noise import Noise
from eigenveil.data.rows import DenseRows
from eigenveil.protocols.party import run_pooled
from eigenveil.tasks.fit.task import Fit


@pytest.mark.parametrize("kind", ["zero", "constant"])
@pytest.mark.parametrize("method", ["covariance", "power", "krylov"])
def test_the_sums_of_one_row_times_their_number_are_those_of_all(method: Any, kind: str) -> None:
    asked = FederatedPCA(2, trust="hub", method=method, **noise_verdict.BOUNDED)
    study = asked.prepare([np.zeros((10, 6))] * 2).parties.study
    assert isinstance(study, Fit)
    one, count = noise_verdict.row_of(kind, 6), 400
    first, second = (
        Gaussian(multiplier=4.0, ledger=Ledger(epsilon=math.inf, delta=0.5), noise=Noise.seeded(3)) for _ in range(2)
    )
    shortcut = noise_verdict.carried(study, DenseRows(one), count, first)
    whole = run_pooled(study, DenseRows(np.repeat(one, count, axis=0)), second)
    assert np.array_equal(shortcut.subspace.values, whole.subspace.values)
    assert np.array_equal(shortcut.center, whole.center)
    assert (shortcut.people, shortcut.trace, shortcut.scale) == (whole.people, whole.trace, whole.scale)
