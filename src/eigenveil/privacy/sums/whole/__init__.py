"""Exact sums over rows: whole numbers of public units, the same for any order, partition, number of threads and machine.

The error of a floating-point sum grows with the number of rows, which is private, so no stated sensitivity could cover it. Here
every clipped row is on a grid inside its ball (`Region.pair`, `Region.scored`), and entries have few bits.
  - Within a block, products and partial sums are whole numbers below 2^53. Float64 represents them exactly, so the order in which
    BLAS adds them does not matter.
  - Across blocks they are added in int64, with a carry long before 2^63 (`total.py`).
  - Only the finished sum becomes a float, by one rounding.
So neighbours differ by exactly what one person adds, and a Gram matrix is exactly symmetric.

The radius is at most 2^17 units, which leaves this room:
  - A row has 17 bits and a product of two entries 34: 2^19 rows in a block.
  - Scores have 27 bits and products with them 44: 2^9 rows at a time.
  - Entries of a row for a sum have 34 bits: 2^19 rows.

The files:
  - `rows.py`: sums of rows, counts of people and of entries that are there, and traces.
  - `gram.py`: Gram matrices.
  - `products.py`: Gram matrices times a basis, and scores.
  - `center.py`: subtracts the center of sparse rows from finished sums.
  - `total.py`: the running sum, and what rows that are elsewhere send back. `grid.py`: units.
Each sum is a `Work` (`eigenveil.data.elsewhere`), so that it can be worked out where the rows are.
The rest of `privacy.sums`, streams and hidden starts call this package. It may import what they may.
"""

from eigenveil.privacy.sums.whole.gram import GramWork, add_block, add_packed, whole_gram, whole_gram_columns
from eigenveil.privacy.sums.whole.grid import on_basis_grid, sum_unit
from eigenveil.privacy.sums.whole.products import ProductsWork, whole_gram_times, whole_scores, whole_symmetric_times
from eigenveil.privacy.sums.whole.rows import (
    COUNT_UNIT,
    CountWork,
    KeptWork,
    ObservedWork,
    SumWork,
    TraceWork,
    observed_in,
    whole_count,
    whole_kept,
    whole_observed,
    whole_sum,
    whole_trace,
    whole_weights,
)
from eigenveil.privacy.sums.whole.total import CARRY, Total, WholeSums

__all__ = [
    "CARRY",
    "COUNT_UNIT",
    "CountWork",
    "GramWork",
    "KeptWork",
    "ObservedWork",
    "ProductsWork",
    "SumWork",
    "Total",
    "TraceWork",
    "WholeSums",
    "add_block",
    "add_packed",
    "observed_in",
    "on_basis_grid",
    "sum_unit",
    "whole_count",
    "whole_gram",
    "whole_gram_columns",
    "whole_gram_times",
    "whole_kept",
    "whole_observed",
    "whole_scores",
    "whole_sum",
    "whole_symmetric_times",
    "whole_trace",
    "whole_weights",
]
