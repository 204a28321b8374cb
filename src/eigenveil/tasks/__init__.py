"""What is computed. Each task is written once and runs in every protocol that its type allows.

Protocols, estimators and planners call it. To add a task, read `base.py`; `methods/covariance.py` is the shortest example.
It may import `privacy`, `data`, `linalg`, `params` and `errors`.
"""

from eigenveil.tasks.base import Question, SumTask, Task
from eigenveil.tasks.slots import ClosedSlot, OpenSlot, SlotSketches, SlotState, SlotSums, SlotTask
from eigenveil.tasks.totals import Totals, TotalsResult, lies_far, shrunk

__all__ = [
    "ClosedSlot",
    "OpenSlot",
    "Question",
    "SlotSketches",
    "SlotState",
    "SlotSums",
    "SlotTask",
    "SumTask",
    "Task",
    "Totals",
    "TotalsResult",
    "lies_far",
    "shrunk",
]
