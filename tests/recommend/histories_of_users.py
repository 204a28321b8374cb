"""Made-up interactions that the recommender tests share: small ones of every shape, tastes that can be learnt, and files."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.random import Generator

from eigenveil.linalg import Array

# With a user who has nothing and an item that nobody has.
SMALL = np.array([[1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 0, 0]])
# No message may contain it.
SECRET = 8675309


def histories(*, most_users: int = 8, most_items: int = 10, least_users: int = 1) -> st.SearchStrategy[Array]:
    """Binary matrices, (users, items), of float64, with empty rows and columns among them."""
    shapes = st.tuples(st.integers(least_users, most_users), st.integers(1, most_items))
    return shapes.flatmap(lambda shape: arrays(np.float64, shape, elements=st.sampled_from([0.0, 1.0])))


def random_histories(users: int, items: int, *, share: float, rng: Generator) -> sp.csr_array:
    """A CSR array, (users, items), of ones, each there with probability `share`."""
    return sp.csr_array((rng.random((users, items)) < share).astype(np.float64))


def tastes(users: int, items: int, *, groups: int, rng: Generator, likes: float = 0.6, others: float = 0.03) -> sp.csr_array:
    """A CSR array, (users, items), of users who like one group of items each: the top `groups` directions tell them apart.

    User u and item i are of group u % groups and i % groups.
    """
    same = np.arange(users)[:, None] % groups == np.arange(items) % groups
    return sp.csr_array((rng.random((users, items)) < np.where(same, likes, others)).astype(np.float64))


def lines_of(dense: Array, *, user: str = "u{}", item: str = "i{}") -> pd.DataFrame:
    """The ones of a binary matrix as a table in long form, with columns user and item."""
    rows, columns = np.nonzero(dense)
    return pd.DataFrame({"user": [user.format(row) for row in rows], "item": [item.format(at) for at in columns]})


def write_lines(path: Path, frame: Any) -> Path:
    """Write a pandas frame as its file's ending says, csv (perhaps compressed) or parquet, and return the path."""
    frame.to_parquet(path, index=False) if path.suffix == ".parquet" else frame.to_csv(path, index=False)
    return path


def is_canonical(matrix: Any) -> bool:
    """Whether a matrix is a CSR array of float64 ones, sorted, with no place stored twice."""
    matrix.check_format(full_check=True)
    fresh = sp.csr_array((matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape)
    return bool(
        isinstance(matrix, sp.csr_array)
        and matrix.dtype == np.float64
        and fresh.has_canonical_format
        and (matrix.data == 1).all()
    )


def refuses(act: Callable[[], Any], message: str, *secrets: Any) -> None:
    """The act raises a `ValueError` for this reason, and nothing of its traceback quotes a secret."""
    with pytest.raises(ValueError, match=message) as caught:
        act()
    # Not the source lines that a traceback shows, but every message on the way.
    said = [str(caught.value)]
    error: BaseException | None = caught.value
    while error is not None:
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        said += [] if error is None else traceback.format_exception_only(error)
    for secret in (SECRET, *secrets):
        assert str(secret) not in " ".join(said)
