"""Fits on a network that loses, delays, repeats and reorders, with a liar and a dead site among the parties."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from sklearn.base import clone

from eigenveil import FederatedPCA
from eigenveil.errors import EigenveilError, QuorumLost
from eigenveil.linalg import Array, sines
from eigenveil.protocols.messages import Contribution, Message
from eigenveil.protocols.star.rounds import tree
from eigenveil.runtimes.local import Faults
from protocols.star.companies import DIM, RANK, table

# What each method is compared with: the eigenvectors of all rows that count, or the same method on the sites that count.
EXACT_METHODS = ("krylov", "power", "covariance", "krylov around the mean", "covariance around the mean")
METHODS: dict[str, dict[str, Any]] = {
    "krylov": {"method": "krylov", "center": None},
    "power": {"method": "power", "center": None, "oversample": 1},
    "fedpower": {"method": "fedpower", "center": None, "local_steps": 2, "rounds": 8},
    "covariance": {"method": "covariance", "center": None},
    "merge": {"method": "merge", "center": None},
    "uda": {"method": "uda", "center": None},
    "wda": {"method": "wda", "center": None},
    "dr-svd": {"method": "dr-svd", "center": None, "oversample": 1},
    "krylov around the mean": {"method": "krylov", "center": "private"},
    "covariance around the mean": {"method": "covariance", "center": "private"},
    "fedpower around the mean": {"method": "fedpower", "center": "private", "local_steps": 2, "rounds": 8},
}
PLACES = [
    (method, place)
    for method in METHODS
    for place in ("star", "tree")
    if (method, place) not in {("uda", "tree"), ("wda", "tree")}
]

Lie = Literal["shape", "nan", "inf", "huge", "basis", "old round", "round to come", "forged", "count", "missing", "silence"]
LIES: tuple[Lie, ...] = (
    "shape",
    "nan",
    "inf",
    "huge",
    "basis",
    "old round",
    "round to come",
    "forged",
    "count",
    "missing",
    "silence",
)


@dataclass
class Liar:
    """Spoils what `name` sends with chance `often`, and sometimes sends the truth after the lie."""

    name: str
    victim: str
    often: float
    rng: np.random.Generator
    told: Counter[str] = field(default_factory=Counter)

    def __call__(self, message: Message) -> Iterator[Message]:
        if message.sender != self.name or not isinstance(message.body, Contribution) or self.rng.random() >= self.often:
            yield message
            return
        lie = LIES[self.rng.integers(len(LIES))]
        self.told[lie] += 1
        yield from self._lies(message, message.body, lie)
        if self.rng.random() < 0.2:
            yield message

    def _lies(self, message: Message, give: Contribution, lie: Lie) -> Iterator[Message]:
        first, *rest = give.arrays
        match lie:
            case "shape":
                arrays: tuple[Any, ...] = (np.zeros((len(first) + 1, *first.shape[1:])), *rest)
            case "nan" | "inf" | "huge":
                arrays = (np.full(first.shape, {"nan": np.nan, "inf": np.inf, "huge": 1e200}[lie]), *rest)
            case "basis":
                # To sums a longer product is a number like any other, so they get none at all.
                arrays = (2 * first, *rest) if rest and rest[0].shape == first.shape[1:] else ()
            case "count":
                arrays = (*give.arrays, first)
            case "forged":
                yield replace(message, sender=self.victim, body=replace(give, arrays=(-first, *rest)))
                return
            case "silence":
                return
            case "missing":
                yield replace(message, body=replace(give, missing=(self.victim,)))
                return
            case _:
                # So far ahead that its time never comes: old numbers under a new round would be a part like any other.
                round_ = give.round - 1 if lie == "old round" and give.round > 0 else give.round + 1000
                yield replace(message, body=replace(give, round=round_))
                return
        yield replace(message, body=replace(give, arrays=arrays))


@dataclass(frozen=True)
class Outcome:
    """One run: its fit, or the error that it ended in."""

    fit: FederatedPCA | None
    error: EigenveilError | None
    sites: dict[str, Array]
    lies: Counter[str]


def settings_of(method: str, place: str, fanout: int) -> dict[str, Any]:
    tree_too = {} if place == "star" else {"topology": "tree", "fanout": fanout}
    return {"n_components": RANK, "epsilon": None, **METHODS[method], **tree_too}


def random_run(method: str, place: str, seed: int) -> Outcome:
    """A fit on a random network: five to nine sites, one of them dead before long, one a liar, some links bad."""
    rng = np.random.default_rng([seed, len(method), place == "star"])
    names = [f"site {i}" for i in range(rng.integers(5, 10))]
    sites = {name: table(rng, int(rng.integers(6, 10))) for name in names}
    fanout = int(rng.integers(2, 4))
    faults, liar = random_faults(rng, names, fanout=fanout if place == "tree" else None)
    model = FederatedPCA(
        **settings_of(method, place, fanout),
        quorum=(2, 0.3, 0.5, 3)[rng.integers(4)],
        faults=faults,
        random_state=int(rng.integers(2**31)),
    )
    try:
        return Outcome(model.fit(sites), None, sites, liar.told)
    except EigenveilError as error:
        return Outcome(None, error, sites, liar.told)


def random_faults(rng: np.random.Generator, names: list[str], *, fanout: int | None) -> tuple[Faults, Liar]:
    dead, liar, victim = rng.choice(names, 3, replace=False).tolist()
    dies = {dead: int(rng.integers(0, 9))} if rng.random() < 0.7 else {}
    nodes = () if fanout is None else tree(names, fanout=fanout).nodes
    if nodes and rng.random() < 0.1:
        dies[nodes[rng.integers(len(nodes))]] = int(rng.integers(0, 40))
    often = float((0.0, 0.3, 1.0)[rng.integers(3)])
    liar_of = Liar(liar, victim, often, np.random.default_rng(rng.integers(2**31)))
    faults = Faults(
        loss=float(rng.uniform(0, 0.25)),
        duplicate=float(rng.uniform(0, 0.4)),
        delay=float((0.0, 5.0, 20.0)[rng.integers(3)]),
        dies=dies,
        meddle=liar_of,
    )
    return faults, liar_of


def require_right(method: str, place: str, outcome: Outcome) -> None:
    """The answer is that of the rows of exactly the sites that count, or the error has a name."""
    if outcome.fit is None:
        assert isinstance(outcome.error, QuorumLost), outcome.error
        assert set(outcome.error.missing) <= set(outcome.sites)
        return
    fit, left = outcome.fit, {name: outcome.sites[name] for name in outcome.fit.sites_}
    counted = np.concatenate(list(left.values()))
    center = counted.mean(axis=0) if METHODS[method]["center"] else np.zeros(DIM)
    np.testing.assert_allclose(fit.mean_, center, atol=1e-12)
    if method in EXACT_METHODS:
        require_same_space(fit.components_, top(counted - center), tolerance=1e-6)
    if place == "tree" and method in EXACT_METHODS:
        return
    alone = same_alone(fit, left)
    if place == "star":
        # The same parts added in the same order, as if the others had never been.
        assert fit.components_.tobytes() == alone.components_.tobytes()
    else:
        require_same_space(fit.components_, alone.components_, tolerance=1e-9)
        np.testing.assert_allclose(fit.singular_values_, alone.singular_values_, rtol=1e-8)


def same_alone(fit: FederatedPCA, sites: dict[str, Array]) -> FederatedPCA:
    """The same fit on these sites, with nothing going wrong."""
    alone: FederatedPCA = clone(fit).set_params(faults=None, quorum=None).fit(sites)
    assert alone.refused_ == ()
    return alone


def top(rows: Array) -> Array:
    """The leading eigenvectors, (k, d), the slow and obvious way."""
    _, vectors = np.linalg.eigh(rows.T @ rows)
    found: Array = vectors[:, ::-1][:, :RANK].T
    return found


def require_same_space(one: Array, two: Array, *, tolerance: float) -> None:
    assert sines(one.T, two.T)[0] <= tolerance
