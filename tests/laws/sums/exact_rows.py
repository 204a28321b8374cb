"""The slow, obvious versions of rows on their grids and of sums over them: one number after the other, in Python's own integers.

A row of fewer than eight entries is added up from left to right here and in numpy, so that the two agree to the last bit.
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np

from eigenveil.core.domain import SHIFT, Domain
from eigenveil.core.rows import Rows
from eigenveil.linalg import Array
from eigenveil.privacy.histories import Histories

# More entries than this are added up pairwise.
MOST_COLUMNS = 7
# Weights below the first count as zero. Entries beyond the second are clipped to it where squares overflow.
LIGHTEST, SQUARABLE = 2.0**-20, 1e140
INSIDE, HISTORY_INSIDE = 1 - 2.0**-44, 1 - 1e-15

Whole = list[int]


def rounded(values: Any) -> Array:
    """Fractions of any shape as floats: rounded once."""
    found: Array = np.vectorize(float, otypes=[np.float64])(np.array(values, dtype=object))
    return found


def table_of(rows: Rows) -> tuple[Array, Array | None]:
    """All entries of some rows, (n, d), and their weights."""
    inner: Any = getattr(rows, "inner", rows)
    values = inner.values.toarray() if inner.sparse else np.asarray(inner.values)
    return values, getattr(rows, "weights", None)


def gone(row: Array, domain: Domain) -> list[bool]:
    """Which entries of a row count as missing, one after the other: those whose group lacks one."""
    gaps, lacking = domain.gaps, [math.isnan(entry) for entry in row.tolist()]
    if gaps is None or gaps.values is not None:
        return [False] * len(lacking)
    return [any(lack for lack, group in zip(lacking, gaps.group, strict=True) if group == own) for own in gaps.group]


def given(row: Array, domain: Domain) -> list[float]:
    """The entries of a row, with public values in the place of missing ones where there are any."""
    gaps = domain.gaps
    values = None if gaps is None else gaps.values
    entries = enumerate(row.tolist())
    return [float(entry if values is None or not math.isnan(entry) else values[at]) for at, entry in entries]


def moved(row: Array, domain: Domain) -> list[float]:
    """A row cut, centred and scaled, in floats. Missing entries are zero."""
    found = []
    lost = gone(row, domain)
    for at, value in enumerate(given(row, domain)):
        if lost[at]:
            found.append(0.0)
            continue
        if domain.low is not None and domain.high is not None:
            value = min(max(value, float(domain.low[at])), float(domain.high[at]))
        if domain.center is not None:
            value -= float(domain.center[at])
        if domain.scale is not None:
            value /= float(domain.scale[at])
        found.append(value)
    if not math.isfinite(squared(found)):
        found = [min(max(value, -SQUARABLE), SQUARABLE) for value in found]
    return found


def squared(row: list[float]) -> float:
    """The squared length, added up from left to right."""
    total = 0.0
    for value in row:
        total += value * value
    return total


def factor_of(squares: float, domain: Domain, *, weight: float, unit: float, rounding: float, product: bool) -> float:
    """What brings a row of this squared length into the ball, in units, with room for rounding."""
    if squares == 0:
        return 0.0
    root = 0.0 if weight < LIGHTEST else math.sqrt(weight) if product else weight
    room = max(domain.radius / unit * INSIDE * root - rounding, 0.0)
    return min(root / unit, room / math.sqrt(squares))


def whole_row(row: Array, domain: Domain, *, weight: float, unit: float, product: bool) -> Whole:
    """A dense row in whole numbers of `unit`."""
    values = moved(row, domain)
    rounding = math.sqrt(domain.dim) / 2
    factor = factor_of(squared(values), domain, weight=weight, unit=unit, rounding=rounding, product=product)
    return [round(value * factor) for value in values]


def whole_sparse_row(row: Array, domain: Domain, *, weight: float, unit: float, product: bool) -> list[Fraction]:
    """A sparse row, of the entries that are not zero, in units: whole, less a multiple of the center where there is one."""
    center = domain.shifted_center
    bare = Domain(
        dim=domain.dim, radius=domain.radius, center=None, scale=domain.scale, low=domain.low, high=domain.high, gaps=domain.gaps
    )
    stored = [at for at in range(domain.dim) if row[at] != 0]
    here = [0.0] * domain.dim if center is None else center.tolist()
    lost = gone(row, domain)
    if domain.gaps is not None and domain.gaps.drops and any(lost):
        return [Fraction(0)] * domain.dim
    values = {
        at: here[at] if lost[at] else min(max(value, -SQUARABLE), SQUARABLE)
        for at, value in enumerate(unclipped(row, bare))
        if at in stored
    }
    norm = squared([values[at] - here[at] for at in stored])
    if center is not None:
        weighs = squared(here)
        # What the center weighs in the columns that are not stored, and what its own rounding can hide.
        norm += max(weighs - squared([here[at] for at in stored]), 0.0) + 4 * domain.dim * 2.0**-52 * weighs
    rounding = math.sqrt(len(stored)) / 2
    factor = factor_of(norm, domain, weight=weight, unit=unit, rounding=rounding, product=product)
    if center is None:
        return [Fraction(round(values[at] * factor)) if at in stored else Fraction(0) for at in range(domain.dim)]
    shift = math.floor(factor * (unit / SHIFT))
    factor = shift * (SHIFT / unit)
    off = Fraction(shift) * Fraction(SHIFT) / Fraction(unit)
    return [(round(values[at] * factor) if at in stored else 0) - off * Fraction(here[at]) for at in range(domain.dim)]


def unclipped(row: Array, domain: Domain) -> list[float]:
    """As `moved`, without the cut for squares that overflow."""
    found = []
    for at, value in enumerate(given(row, domain)):
        if domain.low is not None and domain.high is not None:
            value = min(max(value, float(domain.low[at])), float(domain.high[at]))
        found.append(value if domain.scale is None else value / float(domain.scale[at]))
    return found


def whole_rows(rows: Rows, domain: Domain, *, product: bool) -> tuple[list[list[Fraction]], Fraction]:
    """All rows on their grid, and its unit: that of products, or the finer one of sums."""
    values, weights = table_of(rows)
    assert domain.unit is not None
    unit = domain.unit if product else domain.unit * 2.0**-17
    make: Any = whole_sparse_row if rows.sparse else whole_row
    each = np.ones(len(values)) if weights is None else weights
    found = [
        [Fraction(entry) for entry in make(row, domain, weight=float(weight), unit=unit, product=product)]
        for row, weight in zip(values, each, strict=True)
    ]
    return found, Fraction(unit)


def exact_sum(rows: Rows, domain: Domain) -> list[Fraction]:
    """The sum of rows, (d,)."""
    found, unit = whole_rows(rows, domain, product=False)
    return [unit * sum((row[at] for row in found), Fraction(0)) for at in range(domain.dim)]


def exact_gram(rows: Rows, domain: Domain) -> list[list[Fraction]]:
    """The Gram matrix, (d, d)."""
    found, unit = whole_rows(rows, domain, product=True)
    places = range(domain.dim)
    return [[unit**2 * sum((row[i] * row[j] for row in found), Fraction(0)) for j in places] for i in places]


def exact_trace(rows: Rows, domain: Domain) -> Fraction:
    """The total sum of squares, each rounded down to a whole number: of dense rows."""
    values, weights = table_of(rows)
    assert domain.unit is not None and not rows.sparse
    total, unit = 0, domain.unit**2
    for at, row in enumerate(values):
        square = min(squared(moved(row, domain)), domain.radius**2) * (1.0 if weights is None else float(weights[at]))
        total += math.floor(square / unit)
    return total * Fraction(unit)


def history_items(table: Array, region: Histories) -> list[list[int]]:
    """Which of the region's items each user has."""
    columns = range(region.dim) if region.columns is None else region.columns.tolist()
    return [[place for place, column in enumerate(columns) if history[column] != 0] for history in table]


def exact_history_sums(table: Array, region: Histories) -> tuple[Any, Any, Any]:
    """Sum, (d,), Gram matrix, (d, d), and trace of histories whose items weigh the same, all entries rounded down."""
    assert region.weights is None
    total, trace = [Fraction(0)] * region.dim, Fraction(0)
    gram = [[Fraction(0)] * region.dim for _ in range(region.dim)]
    for items in history_items(table, region):
        most = max(len(items), region.min_degree)
        length = Fraction(math.floor(HISTORY_INSIDE / math.sqrt(most) / 2.0**-33)) / 2**33
        weight = Fraction(math.floor(HISTORY_INSIDE / most / 2.0**-36)) / 2**36
        trace += Fraction(math.floor(len(items) * (HISTORY_INSIDE / most) / 2.0**-32)) / 2**32
        for i in items:
            total[i] += length
            for j in items:
                gram[i][j] += weight
    return total, gram, trace
