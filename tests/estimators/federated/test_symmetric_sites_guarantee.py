"""What is guaranteed where sites give matrices: the guarantee says who vouches for the bound, and of whom rows were clipped."""

from typing import Any

import numpy as np
import pytest

from eigenveil import Symmetric
from estimators.sites_of_rows import pooled_rows, private_federated

TABLES = np.array_split(pooled_rows(200), 2)
MATRICES = [Symmetric(rows.T @ rows, people=len(rows)) for rows in TABLES]
VOUCHED = (
    "positive semi-definite matrix of trace at most 144. Each person counts once in its number of people. The site "
    "vouches for both"
)
CLIPPED = "Rows were clipped to norm 12 around zero"


@pytest.mark.parametrize(
    ("sites", "vouched", "clipped"),
    [(TABLES, False, True), (MATRICES, True, False), ([TABLES[0], MATRICES[1]], True, True)],
    ids=["tables", "matrices", "mixed"],
)
def test_the_guarantee_says_who_vouches_for_a_matrix(sites: list[Any], vouched: bool, clipped: bool) -> None:
    pca = private_federated(center=None).fit(sites)
    for words in (pca.guarantee_.to_text(), pca.model_.guarantee.to_text()):
        assert (VOUCHED in " ".join(words.split())) == vouched
        assert (CLIPPED in " ".join(words.split())) == clipped
