"""One holder of all rows runs a task to its end: the simplest protocol, and the reference for every other."""

from typing import TypeVar

from eigenveil.core.mechanism import Exact, Mechanism
from eigenveil.core.rows import Rows
from eigenveil.tasks import Task

__all__ = ["run_pooled"]

State = TypeVar("State")
Part = TypeVar("Part")
Result = TypeVar("Result")


def run_pooled(
    task: Task[State, Part, Result], rows: Rows, mechanism: Mechanism, *, begun: State | None = None
) -> Result:
    """The result of `task` on `rows`; each round's total leaves through `mechanism`. A task that has `begun` goes on from there.

    >>> import numpy as np
    >>> from eigenveil.core.domain import Domain
    >>> from eigenveil.core.unit import Neighbours
    >>> from eigenveil.data.rows import DenseRows
    >>> from eigenveil.methods.covariance import CovarianceSum
    >>> task = CovarianceSum(Domain(dim=1, radius=9.0), Neighbours.ADD_REMOVE)
    >>> run_pooled(task, DenseRows(np.array([[1.0], [2.0]])), Exact(because="doctest")).tolist()
    [[5.0]]
    """
    # Nothing leaves between `work` and `advance`: the noise is added once, to the total.
    inside = Exact(because="the holder of the rows is also the one who releases the total")
    state = task.start() if begun is None else begun
    while (result := task.result(state)) is None:
        state = task.advance(state, task.work(task.ask(state), rows, inside), mechanism)
    return result
