"""What is computed. Each task is written once and runs on every carrier that its type allows."""

from eigenveil.tasks.base import Question, SumTask, Task
from eigenveil.tasks.covariance import CovarianceSum
from eigenveil.tasks.power import PowerIteration, PowerState, geometric_shares, ritz
from eigenveil.tasks.totals import Totals, TotalsResult, lies_far, shrunk

__all__ = [
    "CovarianceSum",
    "PowerIteration",
    "PowerState",
    "Question",
    "SumTask",
    "Task",
    "Totals",
    "TotalsResult",
    "geometric_shares",
    "lies_far",
    "ritz",
    "shrunk",
]
