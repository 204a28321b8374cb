"""Federated runs with the error after every round and what it took. Shared by the benchmarks of this folder."""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from eigenveil import FederatedPCA
from eigenveil.estimators.terms import Round
from eigenveil.linalg import Array, sines, top_eigen

__all__ = ["PAPER", "Followed", "cell", "follow", "shuffled_sites", "site_count", "top"]

# The data sets of FedPower's Table 1 that are at hand; MNIST is its training set there.
PAPER = ("a9a", "connect4", "w8a", "mnist:train", "housing")


@final
@dataclass(frozen=True, slots=True)
class Followed:
    """One run, with values after each round.

    They are the stage, the largest sine to the true space (1 while there is none) and the captured variance. The last is all
    bytes so far, without the last broadcast of the answer.
    """

    stages: tuple[str, ...]
    errors: tuple[float, ...]
    captured: tuple[float, ...]
    traffic: tuple[int, ...]

    @property
    def products(self) -> int:
        """How many rounds looked for directions, not for means and totals."""
        return self.products_of(len(self.stages))

    def reached(self, error: float) -> int | None:
        """The first round, counted from one, with an error of at most this; None if there is none."""
        return next((number for number, value in enumerate(self.errors, 1) if value <= error), None)

    def products_of(self, rounds: int) -> int:
        """How many of the first `rounds` looked for directions."""
        return sum(stage not in ("mean", "totals") for stage in self.stages[:rounds])


class _Enough(Exception):
    """The error is as small as was asked for."""


def follow(sites: Sequence[Array], truth: Array, *, gram: Array | None = None, enough: float = 0.0, **settings: Any) -> Followed:
    """Fit the `sites` and measure the estimate after each round against `truth`, (d, k); stop at an error of `enough`.

    With a `gram` matrix, (d, d), also how much of the best possible variance the estimate captures.
    """
    seen: list[tuple[str, float, float, int]] = []
    best = np.nan if gram is None else float(np.einsum("ij,ij->", truth, gram @ truth))

    def watch(done: Round) -> None:
        found = running.study.estimate(running.hub.state)
        error, captured = 1.0, 0.0
        if found is not None and found.rank == truth.shape[1]:
            error = float(sines(found.basis, truth)[0])
            captured = np.nan if gram is None else float(np.einsum("ij,ij->", found.basis, gram @ found.basis)) / best
        seen.append((done.stage, error, captured, done.bytes_down + done.bytes_up))
        if error <= enough:
            raise _Enough

    running = FederatedPCA(truth.shape[1], **settings).prepare(sites, watch=watch)
    with contextlib.suppress(_Enough):
        running.run()
    stages, errors, captured, sizes = zip(*seen, strict=True)
    return Followed(stages, errors, captured, tuple(np.cumsum(sizes).tolist()))


def top(rows: Array, *, rank: int) -> tuple[Array, Array]:
    """The true space, (d, rank), of all rows together, and the `rank` + 1 largest eigenvalues of their Gram matrix."""
    values, vectors = top_eigen(rows.T @ rows, rank=min(rank + 1, rows.shape[1]))
    return vectors[:, :rank], values


def site_count(rows: Array) -> int:
    """FedPower Table 2: about 1000 rows at each site, and never fewer than three sites."""
    return max(len(rows) // 1000, 3)


def shuffled_sites(rows: Array, count: int, *, seed: int) -> list[Array]:
    """Rows in random order, evenly over `count` sites."""
    order = np.random.default_rng(seed).permutation(len(rows))
    return [rows[part] for part in np.array_split(order, count)]


def cell(values: Iterable[float], *, form: str = ".2e") -> str:
    """Mean and standard deviation, as the paper prints them."""
    found = np.array(list(values))
    return f"{found.mean():{form}} ({found.std():{form}})"
