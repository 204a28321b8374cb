"""Small companies of parties for the laws: every task, around a hub and in trees, and a deep picture of what a party holds."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.random import Generator

from eigenveil.core.domain import Domain
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Exact, Gaussian, Mechanism
from eigenveil.core.noise import Noise
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import DenseRows
from eigenveil.linalg import Array, orthonormal
from eigenveil.methods.covariance import CovarianceSum
from eigenveil.methods.dr_svd import RandomisedSvd
from eigenveil.methods.fedpower import LocalPower
from eigenveil.methods.krylov import KeptProducts, KrylovSum
from eigenveil.methods.power import PowerIteration
from eigenveil.methods.spaces import SiteSpaces
from eigenveil.protocols.messages import Message
from eigenveil.protocols.party import Party
from eigenveil.protocols.star.hub import Hub, Node
from eigenveil.protocols.star.rounds import Layout, Sampling, Terms, star, tree
from eigenveil.protocols.star.site import Member
from eigenveil.tasks.base import Components, Task
from eigenveil.tasks.fit.bounds import RowBounds
from eigenveil.tasks.fit.gaps import Split, split_budget
from eigenveil.tasks.fit.search import CenterSearch
from eigenveil.tasks.fit.task import Fit
from eigenveil.tasks.totals import Totals

DIM, RANK = 5, 2
NEAR = Neighbours.ADD_REMOVE
DOMAIN = Domain(dim=DIM, radius=50.0)
EXACT = Exact(because="a law is checked")
AnyTask = Task[Any, Any, Any]


def bounds() -> RowBounds:
    return RowBounds.check(
        DIM, private=False, row_bound=50.0, column_bounds=None, origin=None, mean_bound=None, scale=None, sparse=False
    )


def begin(width: int = 3) -> Array:
    return orthonormal(np.random.default_rng(5).standard_normal((DIM, width)))


def krylov(domain: Domain = DOMAIN) -> KrylovSum:
    return KrylovSum(domain=domain, neighbours=NEAR, begin=begin(), rounds=3, rank=RANK)


def study(center: Any, components: Components = krylov) -> Fit:
    split = split_budget(mean=isinstance(center, str), search=bounds().search, count=True, trace=True)
    return Fit(
        bounds=bounds(),
        neighbours=NEAR,
        center=center,
        components=components,
        split=split,
        people=None,
        multiplier=0.0,
        rank=RANK,
        needs_trace=True,
        begins_again=True,
    )


TASKS: dict[str, Callable[[], AnyTask]] = {
    "krylov": krylov,
    "power": lambda: PowerIteration(domain=DOMAIN, neighbours=NEAR, begin=begin(), shares=(0.5, 0.5), rank=RANK),
    "kept products": lambda: KeptProducts(domain=DOMAIN, neighbours=NEAR, begin=begin(), shares=(0.5, 0.5), rank=RANK),
    "local power, 1 step": lambda: LocalPower(
        domain=DOMAIN, neighbours=NEAR, begin=begin(), steps=(1, 1), shares=(0.5, 0.5), rank=RANK
    ),
    "local power, 2 steps": lambda: LocalPower(
        domain=DOMAIN, neighbours=NEAR, begin=begin(), steps=(2, 2), shares=(0.5, 0.5), rank=RANK
    ),
    "covariance": lambda: CovarianceSum(DOMAIN, NEAR),
    "merge": lambda: SiteSpaces(domain=DOMAIN, neighbours=NEAR, kind="merge", rank=RANK, width=4),
    "uda": lambda: SiteSpaces(domain=DOMAIN, neighbours=NEAR, kind="uda", rank=RANK),
    "wda": lambda: SiteSpaces(domain=DOMAIN, neighbours=NEAR, kind="wda", rank=RANK),
    "dr-svd": lambda: RandomisedSvd(domain=DOMAIN, neighbours=NEAR, begin=begin(), rank=RANK),
    "totals": lambda: Totals(domain=DOMAIN, neighbours=NEAR, sum_weight=1.0, count_weight=1.0, trace_weight=1.0),
    "mean": lambda: CenterSearch(
        bounds=bounds(), neighbours=NEAR, split=Split(mean=(0.1, 0.1), count=0.05, extra=0.0), people=None, multiplier=0.0
    ),
    "study, its mean": lambda: study("private"),
    "study, no center": lambda: study(None),
    "study, given center": lambda: study(np.full(DIM, 0.5)),
    "study of merged sites": lambda: study(
        "private", lambda domain: SiteSpaces(domain=domain, neighbours=NEAR, kind="merge", rank=RANK, width=4)
    ),
}


# Averages have no form in a tree.
IN_TREES = tuple(kind for kind in TASKS if kind not in ("uda", "wda"))
PLACES = [(kind, place) for kind in TASKS for place in ("star", "tree of 2", "tree of 3") if place == "star" or kind in IN_TREES]


def layouts(count: int) -> dict[str, Layout]:
    sites = [f"site {place}" for place in range(count)]
    return {"star": star(sites), "tree of 2": tree(sites, fanout=2), "tree of 3": tree(sites, fanout=3)}


def table(rng: Generator, count: int = 8) -> Array:
    """Rows with a clear spectrum and a mean of their own."""
    rows: Array = rng.standard_normal((count, DIM)) * [5.0, 3.0, 1.0, 0.5, 0.2] + 1.0
    return rows


def tables(count: int, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {f"site {place}": table(rng, 6 + place % 4) for place in range(count)}


@dataclass(frozen=True)
class Company:
    """All parties of one run, the hub first."""

    hub: Hub[Any]
    nodes: dict[str, Node]
    members: dict[str, Member]
    ledgers: dict[str, Ledger]

    @property
    def parties(self) -> dict[str, Party]:
        return {self.hub.name: self.hub, **self.nodes, **self.members}


def company(
    task: AnyTask,
    layout: Layout,
    rows: Mapping[str, Array],
    *,
    terms: Terms | None = None,
    mu: float | None = None,
    sampling: Sampling | None = None,
) -> Company:
    """Parties set up by hand; with `mu` each site adds noise and has a ledger."""
    terms = Terms() if terms is None else terms
    ledgers: dict[str, Ledger] = {}

    def mechanism(place: int, name: str) -> Mechanism:
        if mu is None:
            return EXACT
        ledgers[name] = Ledger(epsilon=math.inf, delta=1e-6)
        return Gaussian(multiplier=1 / mu, ledger=ledgers[name], noise=Noise.seeded(place))

    above = layout.above()
    members = {
        name: Member(name, hub=above[name], task=task, rows=DenseRows(X), mechanism=mechanism(place, name))
        for place, (name, X) in enumerate(rows.items())
    }
    # A party further down gives up sooner.
    shorter = {name: replace(terms, deadline=terms.deadline / 2**level) for name, level in layout.levels.items()}
    nodes = {
        name: Node(name, above=above[name], below=layout.below[name], task=task, terms=shorter[name]) for name in layout.nodes
    }
    hub: Hub[Any] = Hub(task, layout.below[layout.hub], EXACT, terms=terms, sampling=sampling)
    return Company(hub, nodes, members, ledgers)


def deliveries(them: Company) -> Iterator[tuple[Party, Message]]:
    """All messages of a run in the order it was sent, each as it is about to be delivered."""
    messages = deque(them.hub.start())
    while messages:
        message = messages.popleft()
        party = them.parties[message.receiver]
        yield party, message
        messages.extend(party.receive(message))


def finish(them: Company) -> Any:
    """The result when nothing goes wrong."""
    for _ in deliveries(them):
        pass
    return them.hub.result


def picture(thing: Any) -> Any:
    """Everything a party holds, down to the bits of arrays, as something that can be compared; rows and tasks excepted."""
    match thing:
        case None | bool() | int() | str() | bytes():
            return thing
        case float():
            return thing.hex()
        case np.ndarray():
            return (thing.shape, thing.dtype.str, thing.tobytes())
        case Task() | DenseRows() | Noise():
            return type(thing).__name__
        case Ledger():
            return thing.charges
        case Generator():
            return repr(thing.bit_generator.state)
        case Exception():
            return repr(thing)
        case Mapping():
            return tuple((picture(key), picture(value)) for key, value in thing.items())
        case set() | frozenset():
            return frozenset(picture(item) for item in thing)
        case list() | tuple():
            return tuple(picture(item) for item in thing)
    if is_dataclass(thing):
        return (type(thing).__name__, *(picture(getattr(thing, field.name)) for field in fields(thing)))
    return (type(thing).__name__, *(picture(value) for value in vars(thing).values())) if not callable(thing) else None


def bits(result: Any) -> Any:
    """A result, to the last bit."""
    return picture(result)
