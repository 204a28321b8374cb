"""Sites, federated estimators and pooled answers that the tests of `FederatedPCA` share."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import scipy.sparse as sp

from eigenveil.data.rows import DenseRows
from eigenveil.estimators.federated.pca import FederatedPCA
from eigenveil.linalg import Array, sines

DIM = 12
COLUMNS = [f"c{i}" for i in range(DIM)]
BUDGET: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "row_bound": 12.0}


def pooled_rows(count: int = 600, *, seed: int = 0) -> Array:
    """Rows, (count, 12), with a falling spectrum, turned away from the axes, around a mean that is not zero."""
    rng = np.random.default_rng(seed)
    round_ = np.linalg.qr(rng.standard_normal((DIM, DIM)))[0]
    spread: Array = rng.standard_normal((count, DIM)) * (6.0 * 0.7 ** np.arange(DIM))
    return np.asarray(spread @ round_ + np.linspace(-2, 3, DIM), dtype=np.float64)


def cut(values: Array, *sizes: int) -> list[Array]:
    """Sites of these sizes, and one with the rest."""
    return np.split(values, np.cumsum(sizes))


def federated(n_components: Any = 3, **choices: Any) -> FederatedPCA:
    """An estimator without privacy and with a fixed seed."""
    return FederatedPCA(n_components, **({"epsilon": None, "random_state": 0} | choices))


def private_federated(n_components: Any = 2, **choices: Any) -> FederatedPCA:
    """A private estimator with a fixed seed, so that two fits can be compared."""
    return FederatedPCA(n_components, **({"random_state": 0} | BUDGET | choices))


def pooled_answer(values: Array, rank: int, *, center: Array | None = None) -> tuple[Array, Array]:
    """The leading directions, (d, rank), and variances of rows around `center`, their mean unless given."""
    centered = values - (values.mean(axis=0) if center is None else center)
    _, sizes, directions = np.linalg.svd(centered, full_matrices=False)
    return directions[:rank].T, np.square(sizes[:rank]) / (len(values) - 1)


def off(pca: FederatedPCA, basis: Array) -> float:
    """The largest sine between the components and a basis, (d, k)."""
    return float(sines(pca.components_.T, basis).max())


def same_bits(one: Any, other: Any) -> bool:
    """Whether two fits released the same numbers, to the last bit."""
    names = ("components_", "mean_", "explained_variance_", "explained_variance_ratio_", "singular_values_")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


def stored(values: Array, kind: str) -> Any:
    """Rows in one kind of storage."""
    columns = dict(zip(COLUMNS, values.T, strict=True))
    match kind:
        case "sparse":
            return sp.csr_array(values)
        case "sparse by column":
            return sp.csc_matrix(values)
        case "pandas":
            return pd.DataFrame(columns)
        case "polars":
            return pl.DataFrame(columns)
        case "pyarrow":
            return pa.table(columns)
        case "pyarrow batch":
            return pa.RecordBatch.from_pydict(columns)
        case "blocks":
            return DenseRows(values)
        case "list":
            return values.tolist()
        case _:
            return values


KINDS = ("dense", "sparse", "sparse by column", "pandas", "polars", "pyarrow", "pyarrow batch", "blocks", "list")


def component_rounds(pca: FederatedPCA) -> int:
    """How many rounds of a fit looked for components."""
    return sum(round_.stage.startswith(pca.plan_.method) for round_ in pca.transcript_)


def grouped_answer(tables: Sequence[tuple[Array, Any]], rank: int) -> tuple[Array, Array]:
    """Mean and directions where each person's rows at a site count as one, from (rows, identifiers) of each site."""
    rows = np.vstack([values for values, _ in tables])
    weights = np.concatenate([1.0 / (ids[:, None] == ids[None, :]).sum(axis=1) for _, ids in tables])
    mean = weights @ rows / weights.sum()
    gram = (rows - mean).T @ ((rows - mean) * weights[:, None])
    return mean, np.linalg.eigh(gram)[1][:, ::-1][:, :rank]
