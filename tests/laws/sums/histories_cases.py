"""Neighbouring histories for the laws: hostile entries, every storage, users around the degree where the divisor rounds."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from hypothesis import strategies as st
from numpy.random import Generator

from eigenveil.core.rows import Rows
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import DenseRows, SparseRows
from eigenveil.linalg import Array, orthonormal
from eigenveil.privacy.histories import Histories

RELATIONS = [Neighbours.ZERO_OUT, Neighbours.ADD_REMOVE, Neighbours.REPLACE_ONE, Neighbours.INTERACTION]
LEASTS = [1, 2, 3, 5, 20]
STORAGES = ["dense", "sparse", "stored zeros", "in parts"]
# What may stand where there should be a one. All of it is an item and counts as much as any other.
ENTRIES = np.array([1.0, 1e200, -3.0, 0.5, 1e-300])
# Weights of items that a caller may choose.
WEIGHTS = np.array([1e-100, 1e-3, 1.0, 1.0, 7.0, 1e100])


@dataclass(frozen=True)
class HistoryCase:
    """Two neighbouring tables, as arrays and as rows, and the region their users are brought into."""

    tables: tuple[Array, Array]
    one: Rows
    other: Rows
    region: Histories
    neighbours: Neighbours


def user(dim: int, degree: int, rng: Generator) -> Array:
    """A history, (dim,), of so many items, with entries that are anything but zero."""
    row = np.zeros(dim)
    row[rng.permutation(dim)[:degree]] = rng.choice(ENTRIES, degree)
    return row


def stored(table: Array, storage: str, rng: Generator) -> Rows:
    """The table, (n, d), in one kind of storage: stored zeros and entries in several parts say the same as none and one."""
    if storage == "dense":
        return DenseRows(table)
    if storage == "sparse":
        return SparseRows(sp.csr_array(table))
    users, items = np.nonzero(table)
    values = table[users, items]
    if storage == "stored zeros":
        more = np.argwhere(table == 0)
        more = more[rng.random(len(more)) < 0.5]
        parts = [(users, items, values), (more[:, 0], more[:, 1], np.zeros(len(more)))]
    else:
        # Two halves make the entry; what is added and taken away again leaves a zero that is stored.
        more = np.argwhere(table == 0)
        nothing = [(more[:, 0], more[:, 1], np.full(len(more), sign)) for sign in (1.0, -1.0)]
        parts = [(users, items, values / 2), (users, items, values / 2), *nothing]
    rows, columns, numbers = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.argsort(rows, kind="stable")
    ends = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(table)))])
    return SparseRows(sp.csr_array((numbers[order], columns[order], ends), shape=table.shape))


@st.composite
def history_cases(draw: st.DrawFn) -> HistoryCase:
    """Neighbours by every relation; the one who changes has about as many items as the divisor rounds at, one, or all."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    least = draw(st.sampled_from(LEASTS))
    dim = draw(st.integers(2, 8)) if least < 20 else draw(st.integers(18, 26))
    near = draw(st.sampled_from(RELATIONS))
    degrees = [1, 2, least - 1, least, least + 1, 2 * least + 1, dim - 1, dim]
    degree = int(np.clip(draw(st.sampled_from(degrees)), 1, dim))
    crowd = [user(dim, int(rng.integers(0, dim + 1)), rng) for _ in range(draw(st.integers(0, 4)))]
    changed = user(dim, degree, rng)
    match near:
        case Neighbours.ADD_REMOVE:
            others = list(crowd)
        case Neighbours.ZERO_OUT:
            others = [*crowd, np.zeros(dim)]
        case Neighbours.REPLACE_ONE:
            others = [*crowd, user(dim, int(rng.integers(0, dim + 1)), rng)]
        case _:
            lost = changed.copy()
            lost[rng.choice(np.flatnonzero(changed))] = 0.0
            others = [*crowd, lost]
    tables = (np.array([*crowd, changed]), np.array(others).reshape(-1, dim))
    if draw(st.booleans()):
        tables = (tables[1], tables[0])
    columns = None
    if draw(st.booleans()):
        columns = np.flatnonzero(rng.random(dim) < 0.7).astype(np.int64)
        columns = columns if len(columns) else np.array([0])
    count = dim if columns is None else len(columns)
    weights = None
    if near is not Neighbours.INTERACTION and draw(st.booleans()):
        weights = rng.choice(WEIGHTS, count)
    region = Histories(dim=count, min_degree=least, columns=columns, weights=weights)
    storages = [draw(st.sampled_from(STORAGES))] * 2
    if draw(st.booleans()):
        storages[1] = draw(st.sampled_from(STORAGES))
    one, other = (stored(table, storage, rng) for table, storage in zip(tables, storages, strict=True))
    return HistoryCase(tables, one, other, region, near)


def obvious_rows(table: Array, region: Histories) -> Array:
    """The slow version: one user after the other, one item after the other."""
    columns = range(region.dim) if region.columns is None else region.columns.tolist()
    rows = np.zeros((len(table), region.dim))
    for at, history in enumerate(table):
        items = [place for place, column in enumerate(columns) if history[column] != 0]
        weights = {item: 1.0 if region.weights is None else float(region.weights[item]) for item in items}
        # Of the length that as many ones have.
        length = np.sqrt(len(items) / max(len(items), region.min_degree))
        for item in items:
            rows[at, item] = length * weights[item] / np.sqrt(sum(w**2 for w in weights.values()))
    return rows


def contractions(dim: int, rng: Generator) -> list[Array]:
    """Bases that do not stretch, (dim, p) each: spread out, along the axes, mixed, shortened, uneven and tiny."""
    width = int(rng.integers(1, dim + 1))
    spread = orthonormal(rng.standard_normal((dim, width)))
    axes = np.eye(dim)[:, rng.permutation(dim)[:width]]
    even = np.full((dim, 1), 1 / np.sqrt(dim))
    mixed = orthonormal(np.hstack([axes[:, :1], rng.standard_normal((dim, width))])[:, :dim])
    uneven: Any = spread * rng.random((dim, 1)) ** 3
    crowded = rng.standard_normal((dim, 2 * dim))
    crowded /= np.linalg.norm(crowded, 2)
    return [spread, axes, np.eye(dim), even, mixed, 0.3 * spread, uneven, crowded, 1e-120 * spread]
