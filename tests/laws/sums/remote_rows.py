"""Rows that are elsewhere as far as anybody can tell: every work and every sum is pickled on its way, and rows never are."""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NoReturn, TypeVar

import numpy as np
import scipy.sparse as sp

from eigenveil.core.rows import Progress, Rows, RowSum
from eigenveil.data.engines.base import answer_of, attempted
from eigenveil.data.rows import DenseRows, SparseRows, WeightedRows, person_weights, refuse_to_copy

Made = TypeVar("Made")


@dataclass(frozen=True)
class RemoteRows:
    """Pieces of a table, each added up by itself; the order in which sums are joined is `order`."""

    pieces: tuple[Rows, ...]
    order: tuple[int, ...]

    @classmethod
    def of(cls, values: Any, weights: Any = None, *, cuts: Sequence[int], order: Sequence[int] | None = None) -> "RemoteRows":
        """An array or a sparse matrix, cut at these places."""
        ends = [0, *cuts, values.shape[0]]
        pieces: list[Rows] = []
        for start, stop in pairwise(ends):
            held = values[start:stop]
            rows: Rows = SparseRows(sp.csr_array(held)) if sp.issparse(held) else DenseRows(held)
            pieces.append(rows if weights is None else WeightedRows(rows, weights[start:stop]))
        return cls(tuple(pieces), tuple(range(len(pieces)) if order is None else order))

    @property
    def shape(self) -> tuple[int, int]:
        return sum(piece.shape[0] for piece in self.pieces), self.pieces[0].shape[1]

    @property
    def sparse(self) -> bool:
        return self.pieces[0].sparse

    @property
    def counts_people(self) -> bool:
        return isinstance(self.pieces[0], WeightedRows)

    def blocks(self, size: int) -> NoReturn:
        refuse_to_copy("elsewhere")

    def by_person(self, person: Any) -> "RemoteRows":
        ends = np.cumsum([piece.shape[0] for piece in self.pieces])
        weights = np.split(person_weights(person, self.shape[0]), ends[:-1])
        weighted = (WeightedRows(rows, mine) for rows, mine in zip(self.pieces, weights, strict=True))
        return replace(self, pieces=tuple(weighted))

    def total(self, work: RowSum[Made], *, progress: Progress | None = None) -> Made:
        found = [_posted(answer_of(attempted(_posted(work).of, piece))) for piece in self.pieces]
        first, *others = (found[at] for at in self.order)
        for piece, other in zip(self.pieces, others, strict=False):
            first = _posted(work).joined(first, other)
            if progress is not None:
                progress(piece.shape[0])
        return first


def _posted(thing: Made) -> Made:
    """What arrives of a thing that was sent."""
    arrived: Made = pickle.loads(pickle.dumps(thing))  # noqa: S301  Nobody else wrote these bytes.
    return arrived
