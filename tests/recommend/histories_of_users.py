"""Made-up interactions that the recommender tests share: small ones of every shape, tastes that can be learnt, and files."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.random import Generator

from eigenveil.linalg import Array


def histories(*, most_users: int = 8, most_items: int = 10, least_users: int = 1) -> st.SearchStrategy[Array]:
    """Binary matrices, (users, items), of float64, with empty rows and columns among them."""
    shapes = st.tuples(st.integers(least_users, most_users), st.integers(1, most_items))
    return shapes.flatmap(lambda shape: arrays(np.float64, shape, elements=st.sampled_from([0.0, 1.0])))


def random_histories(users: int, items: int, *, share: float, rng: Generator) -> sp.csr_array:
    """A CSR array, (users, items), of ones, each there with probability `share`."""
    return sp.csr_array((rng.random((users, items)) < share).astype(np.float64))


def tastes(
    users: int, items: int, *, groups: int, rng: Generator, likes: float = 0.6, others: float = 0.03
) -> sp.csr_array:
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
