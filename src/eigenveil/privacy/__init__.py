"""What a guarantee says, and what is made of the core: sums that tasks ask for, and noise under masks and between peers.

Rows are clipped, added up and released in `eigenveil.core`. Tasks, protocols and everything above call this. It may import
`data` and below.
"""

from eigenveil.privacy.facts import GuaranteeFacts
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.privacy.histories import Histories
from eigenveil.privacy.lattice import Lattice, Share, read
from eigenveil.privacy.paired import PairedPart, Pairing
from eigenveil.privacy.sums import (
    bounded_count,
    bounded_gram,
    bounded_gram_times,
    bounded_kept,
    bounded_observed,
    bounded_scores,
    bounded_sum,
    bounded_trace,
    gram_columns,
)

__all__ = [
    "Guarantee",
    "GuaranteeFacts",
    "Histories",
    "Lattice",
    "PairedPart",
    "Pairing",
    "Share",
    "bounded_count",
    "bounded_gram",
    "bounded_gram_times",
    "bounded_kept",
    "bounded_observed",
    "bounded_scores",
    "bounded_sum",
    "bounded_trace",
    "gram_columns",
    "read",
]
