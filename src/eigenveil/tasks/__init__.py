"""What is computed. Each task is written once and runs in every protocol that its type allows.

Protocols, estimators and planners call it. To add a task, read `base.py`; `covariance.py` is the shortest example. It may import
`privacy`, `data`, `linalg`, `params` and `errors`.
"""

from eigenveil.tasks.base import Question, SumTask, Task
from eigenveil.tasks.covariance import CovarianceSum
from eigenveil.tasks.kept_products import KeptProducts, KeptState, ritz_of_all
from eigenveil.tasks.krylov import KrylovState, KrylovSum, tie_at
from eigenveil.tasks.local_power import Align, LocalPart, LocalPower, LocalState, constant_steps, decaying_steps
from eigenveil.tasks.power import PowerIteration, PowerState, geometric_shares, ritz
from eigenveil.tasks.randomised import RandomisedState, RandomisedSvd, randomised_width
from eigenveil.tasks.segments import Segments, SegmentsState
from eigenveil.tasks.slots import ClosedSlot, OpenSlot, SlotSketches, SlotState, SlotSums, SlotTask
from eigenveil.tasks.spaces import SiteSpace, SiteSpaces, SpacesKind
from eigenveil.tasks.totals import Totals, TotalsResult, lies_far, shrunk

__all__ = [
    "Align",
    "ClosedSlot",
    "CovarianceSum",
    "KeptProducts",
    "KeptState",
    "KrylovState",
    "KrylovSum",
    "LocalPart",
    "LocalPower",
    "LocalState",
    "OpenSlot",
    "PowerIteration",
    "PowerState",
    "Question",
    "RandomisedState",
    "RandomisedSvd",
    "Segments",
    "SegmentsState",
    "SiteSpace",
    "SiteSpaces",
    "SlotSketches",
    "SlotState",
    "SlotSums",
    "SlotTask",
    "SpacesKind",
    "SumTask",
    "Task",
    "Totals",
    "TotalsResult",
    "constant_steps",
    "decaying_steps",
    "geometric_shares",
    "lies_far",
    "randomised_width",
    "ritz",
    "ritz_of_all",
    "shrunk",
    "tie_at",
]
