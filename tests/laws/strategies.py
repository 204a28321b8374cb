"""Hypothesis strategies that the law suites share: tables, their neighbours, and the tasks to run on them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import scipy.sparse as sp
from hypothesis import strategies as st

from eigenveil.core.accounting import Budget
from eigenveil.core.domain import Domain, MissingPolicy
from eigenveil.core.rows import Rows
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import DenseRows, SparseRows, WeightedRows
from eigenveil.linalg import Array, orthonormal
from eigenveil.methods import METHODS, PlanRequest, TaskContext
from eigenveil.tasks.base import Question, SumTask
from eigenveil.tasks.fit.bounds import RowBounds
from eigenveil.tasks.fit.gaps import split_budget
from eigenveil.tasks.fit.search import BoundSearch
from eigenveil.tasks.fit.units import ScaleSearch
from eigenveil.tasks.slot_sums import SlotSums
from eigenveil.tasks.totals import Totals

PERSONAL = [Neighbours.ADD_REMOVE, Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE]

# Sizes that one hostile row may have: inside the ball, on it, outside, and far outside.
SIZES = (0.0, 1e-200, 0.3, 1.0, 3.0, 1e8, 1e200, 1e308)


@dataclass(frozen=True)
class Case:
    """Two neighbouring tables and the region their rows are brought into."""

    one: Rows
    other: Rows
    domain: Domain
    neighbours: Neighbours


def person(dim: int, rng: np.random.Generator, size: float, count: int) -> Array:
    """Rows of one person: `count` of them, of length about `size`, sometimes along an axis, sometimes all in a line."""
    directions = rng.standard_normal((count, dim))
    style = rng.integers(3)
    if style == 0:
        directions = np.zeros((count, dim))
        directions[np.arange(count), rng.integers(dim, size=count)] = 1.0
    elif style == 1:
        directions = np.repeat(directions[:1], count, axis=0)
    directions /= np.maximum(np.linalg.norm(directions, axis=1, keepdims=True), 1e-9)
    return directions * size


@st.composite
def domains(draw: st.DrawFn, dim: int, *, bounded: bool = True) -> Domain:
    """A ball around zero or some center, with or without units and column bounds."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    center = rng.standard_normal(dim) * draw(st.sampled_from([0.1, 5.0])) if draw(st.booleans()) else None
    scale = rng.uniform(0.2, 5.0, dim) if draw(st.booleans()) else None
    box = draw(st.booleans())
    low, high = (-rng.uniform(0.1, 2, dim), rng.uniform(0.1, 2, dim)) if box else (None, None)
    radius = draw(st.sampled_from([0.5, 1.0, 37.0])) if bounded else np.inf
    return Domain(dim=dim, radius=radius, center=center, scale=scale, low=low, high=high)


@st.composite
def gaps_in(draw: st.DrawFn, dim: int, *, sparse: bool) -> MissingPolicy | None:
    """No gaps, or gaps by one of the rules; groups of columns for dense rows only."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rule = draw(st.sampled_from(["none", "counts", "drop", "fill", *([] if sparse else ["groups"])]))
    if rule == "groups":
        return MissingPolicy.grouped(np.unique(rng.integers(dim, size=dim), return_inverse=True)[1])
    if rule == "fill":
        return MissingPolicy.filled(rng.standard_normal(dim) * draw(st.sampled_from([0.0, 3.0, 1e200])))
    return {"none": None, "counts": MissingPolicy.counted(dim), "drop": MissingPolicy.dropped(dim)}[rule]


def torn(rows: Array, rng: np.random.Generator) -> Array:
    """Rows with gaps: none, some, or whole rows of them."""
    share = rng.choice([0.0, 0.4, 1.0], p=[0.4, 0.4, 0.2])
    return np.where(rng.random(rows.shape) < share, np.nan, rows)


@st.composite
def cases(draw: st.DrawFn, *, torn_rows: bool = True) -> Case:
    """Neighbouring tables, dense or sparse, one row per person or several, with and without gaps unless `torn_rows` is false."""
    dim = draw(st.integers(2, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    neighbours = draw(st.sampled_from(PERSONAL))
    most = draw(st.sampled_from([1, 4]))
    people = [
        person(dim, rng, size, int(rng.integers(1, most + 1))) for size in draw(st.lists(st.sampled_from(SIZES), max_size=5))
    ]
    changed = person(dim, rng, draw(st.sampled_from(SIZES)), int(rng.integers(1, most + 1)))
    with_person = [*people, changed]
    without = list(people)
    if neighbours is Neighbours.REPLACE_ONE:
        without.append(person(dim, rng, draw(st.sampled_from(SIZES)), int(rng.integers(1, most + 1))))
        if draw(st.booleans()):
            # The worst replacement of a sum is the opposite row.
            without[-1] = -changed
    sparse = draw(st.booleans())
    grouped = most > 1
    gaps = draw(gaps_in(dim, sparse=sparse)) if torn_rows else None
    # Fits take the counts that fit the relation. Plain counts hold under each of them.
    gaps = gaps.under(neighbours) if gaps is not None and draw(st.booleans()) else gaps
    domain = replace(draw(domains(dim)), gaps=gaps)
    if sparse and domain.center is not None and domain.shifted_center is not None:
        # Sparse rows are refused around a center more than a hundred radii away.
        far = float(np.linalg.norm(domain.shifted_center)) / (90 * domain.radius)
        domain = replace(domain, center=domain.center / max(1.0, far))
    if gaps is not None:
        # The same gaps in those who stay, and any in the person who changes.
        people = [torn(rows, rng) for rows in people]
        with_person = [*people, torn(changed, rng)]
        without = [*people, *(torn(rows, rng) for rows in without[len(people) :])]
    return Case(
        table(with_person, dim, sparse=sparse, grouped=grouped),
        table(without, dim, sparse=sparse, grouped=grouped),
        domain,
        neighbours,
    )


def table(people: list[Array], dim: int, *, sparse: bool, grouped: bool) -> Rows:
    """The rows of these people as `Rows`."""
    stacked = np.vstack(people) if people else np.zeros((0, dim))
    rows: Rows = SparseRows(sp.csr_array(stacked)) if sparse else DenseRows(stacked)
    if not grouped:
        return rows
    return WeightedRows.by_person(rows, np.repeat(np.arange(len(people)), [len(p) for p in people]).astype(np.int64))


def search_task(domain: Domain, neighbours: Neighbours, rng: np.random.Generator) -> tuple[SumTask[Any, Any], Question]:
    """One of the questions by which a fit finds its bound and its units: norms or entries around any point, the mean in any ball.

    One, because they count in thousands of cells. A new search is added here.
    """
    private = not neighbours.count_is_public
    gaps = domain.gaps
    private = private or (gaps is not None and gaps.drops)
    seen = gaps is not None and gaps.divides
    rows = RowBounds(
        dim=domain.dim,
        row_bound=np.inf,
        mean_bound=np.inf,
        search=False,
        origin=None,
        scale=domain.scale,
        low=None,
        high=None,
        finds_bound=True,
        gaps=gaps,
    )
    split = split_budget(mean=True, search=False, count=private, trace=False, bound=True, observed=seen)
    search = BoundSearch(
        bounds=rows,
        neighbours=neighbours,
        center="private",
        split=split,
        people=None if private else 5.0,
        multiplier=1e-3,
        rank=1,
        entry=1.0,
    )
    point = rng.standard_normal(domain.dim)
    ball = np.array([domain.radius])
    widths = RowBounds(
        dim=domain.dim,
        row_bound=domain.radius,
        mean_bound=domain.radius,
        search=False,
        origin=None,
        scale=None,
        low=None,
        high=None,
        finds_scale=True,
        gaps=gaps,
    )
    split = split_budget(mean=True, search=False, count=private, trace=False, units=True, observed=seen)
    units = ScaleSearch(bounds=widths, neighbours=neighbours, split=split, people=None if private else 5.0, multiplier=1e-3)
    asked: list[tuple[SumTask[Any, Any], Question]] = [
        (units, units.ask(units.start())),
        (units, Question(3, (point,))),
        (units, Question(4, (point, rng.uniform(0.2, 5.0, domain.dim)))),
        (search, search.ask(search.start())),
        (search, Question(2, (point,))),
        (search, Question(1, (np.empty(0), ball))),
        (search, Question(3, (point, ball))),
    ]
    return asked[int(rng.integers(len(asked)))]


def _plain(gaps: MissingPolicy | None) -> MissingPolicy | None:
    return None if gaps is None else replace(gaps, less_half=False)


def tasks_of_methods(
    domain: Domain, neighbours: Neighbours, rng: np.random.Generator
) -> Iterator[tuple[SumTask[Any, Any], Question]]:
    """The task of every method at sites that adds, with noise and without, at its first question and at a later one."""
    # Half as wide as it could be, because a Krylov run that has found the whole space stops and spends less.
    width = int(rng.integers(1, max(2, domain.dim // 2 + 1)))
    for leaf, private in product(METHODS.values(), (True, False)):
        if "sites" not in leaf.places or not leaf.is_additive:
            continue
        request = PlanRequest(
            dim=domain.dim,
            rank=1,
            budget=Budget(1.0, 1e-6) if private else None,
            eigenvalues=1.0 / np.arange(1.0, domain.dim + 1),
            rounds=2 if leaf.fixed_rounds is None else None,
            oversample=width - 1 if leaf.needs_start_basis else None,
        )
        plan, context = leaf.plan(request, ""), TaskContext(neighbours=neighbours, rank=1, private=private)
        task: Any = leaf.build_task(plan, leaf.start_basis(domain.dim, plan, rng), context)(domain=domain)
        yield task, task.ask(task.start())
        if len(plan.shares) > 1:
            yield task, Question(1, (orthonormal(rng.standard_normal((domain.dim, width))) * 0.7,))


def all_tasks(domain: Domain, neighbours: Neighbours, rng: np.random.Generator) -> list[tuple[SumTask[Any, Any], Question]]:
    """Every task that releases sums, each with the questions whose releases are attacked: those of all methods, and others.

    A new task of no method is added here.
    """
    drops = domain.gaps is not None and domain.gaps.drops
    private_count = 0.0 if neighbours.count_is_public and not drops else 1.0
    seen = float(domain.gaps is not None and domain.gaps.divides)
    plain = [replace(domain, gaps=_plain(domain.gaps))] if isinstance(domain, Domain) else []
    return [
        *((SlotSums(domain=one, neighbours=neighbours, slots=4, person_slots=2), Question(2)) for one in plain),
        *tasks_of_methods(domain, neighbours, rng),
        (Totals(domain=domain, neighbours=neighbours, sum_weight=1.0), Question()),
        (Totals(domain=domain, neighbours=neighbours, sum_weight=10.0, count_weight=private_count, trace_weight=0.5), Question()),
        (Totals(domain=domain, neighbours=neighbours, count_weight=private_count, trace_weight=1.0), Question()),
        (
            Totals(domain=domain, neighbours=neighbours, count_weight=private_count, observed_weight=seen, trace_weight=0.1),
            Question(),
        ),
    ]
