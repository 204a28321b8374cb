"""What a guarantee rests on: clipping, sensitivities, noise, accounting, the ledger, and the words of the guarantee.

Rows are clipped in `sums/domain.py`. Sensitivities are proved in `sensitivity.py`. Noise is added in `mechanism.py`, and under
masks or between peers in `integers/`. A private number travels as `Bounded` and leaves through `Mechanism.release`.
Tasks, protocols and everything above call it. It may import `data` and below.
"""

from eigenveil.privacy.accounting import Budget, Loss, compose_mu, delta_of, epsilon_of, mu_for, price
from eigenveil.privacy.facts import GuaranteeFacts
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.privacy.integers.lattice import Lattice
from eigenveil.privacy.integers.paired import PairedPart, Pairing
from eigenveil.privacy.integers.share import Share, read
from eigenveil.privacy.ledger import Charge, Ledger, Reserve, Slot
from eigenveil.privacy.mechanism import Exact, Gaussian, Mechanism, Portion
from eigenveil.privacy.noise.steps import pack, packed_size, unpack
from eigenveil.privacy.noise.stream import Noise
from eigenveil.privacy.sensitivity import (
    Neighbours,
    count_sensitivity,
    gram_sensitivity,
    gram_times_sensitivity,
    sum_sensitivity,
    trace_sensitivity,
)
from eigenveil.privacy.sums.bounded import (
    CONTRACTION,
    Bounded,
    bounded_count,
    bounded_gram,
    bounded_gram_times,
    bounded_kept,
    bounded_observed,
    bounded_scores,
    bounded_sum,
    bounded_trace,
    gram_columns,
    require_contraction,
)
from eigenveil.privacy.sums.domain import Domain, Region
from eigenveil.privacy.sums.gaps import Gaps
from eigenveil.privacy.sums.histories import Histories
from eigenveil.privacy.sums.whole import add_block, sum_unit
from eigenveil.privacy.unit import PrivacyUnit

__all__ = [
    "CONTRACTION",
    "Bounded",
    "Budget",
    "Charge",
    "Domain",
    "Exact",
    "Gaps",
    "Gaussian",
    "Guarantee",
    "GuaranteeFacts",
    "Histories",
    "Lattice",
    "Ledger",
    "Loss",
    "Mechanism",
    "Neighbours",
    "Noise",
    "PairedPart",
    "Pairing",
    "Portion",
    "PrivacyUnit",
    "Region",
    "Reserve",
    "Share",
    "Slot",
    "add_block",
    "bounded_count",
    "bounded_gram",
    "bounded_gram_times",
    "bounded_kept",
    "bounded_observed",
    "bounded_scores",
    "bounded_sum",
    "bounded_trace",
    "compose_mu",
    "count_sensitivity",
    "delta_of",
    "epsilon_of",
    "gram_columns",
    "gram_sensitivity",
    "gram_times_sensitivity",
    "mu_for",
    "pack",
    "packed_size",
    "price",
    "read",
    "require_contraction",
    "sum_sensitivity",
    "sum_unit",
    "trace_sensitivity",
    "unpack",
]
