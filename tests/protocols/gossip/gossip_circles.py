"""Circles of peers set up by hand on any graph, run with a bound on the steps, and a slow, obvious answer to compare with."""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Exact, Gaussian
from eigenveil.core.noise import Noise
from eigenveil.core.rows import Block
from eigenveil.data.rows import DenseRows
from eigenveil.errors import EigenveilError, PeerError
from eigenveil.linalg import Array
from eigenveil.linalg.graphs import Graph
from eigenveil.methods.covariance import CovarianceSum
from eigenveil.methods.power import PowerIteration
from eigenveil.privacy.paired import PairedPart
from eigenveil.protocols.gossip.averaging import Outgoing, Paired, PairKeys, Plain, _Agreed
from eigenveil.protocols.gossip.peer import Peer
from eigenveil.protocols.gossip.terms import GossipTerms, PeerNoise
from eigenveil.protocols.keys import Identity
from eigenveil.protocols.messages import Body, Message, PartialSum, PeerKey, PeersDropped, ResendRequest
from eigenveil.runtimes.local import Faults, LocalPeers, Refusal
from protocols.star.companies import DOMAIN, NEAR, RANK, AnyTask, begin, picture, study, table

BUDGET = Budget(2.0, 1e-6)
ROUNDS = 3
CONSENSUS = ("metropolis", "chebyshev", "tree")
TASKS: dict[str, Callable[[], AnyTask]] = {
    "covariance": lambda: CovarianceSum(DOMAIN, NEAR),
    "power": lambda: PowerIteration(domain=DOMAIN, neighbours=NEAR, begin=begin(), shares=(1 / ROUNDS,) * ROUNDS, rank=RANK),
    "study": lambda: study("private"),
}
# What the dearest round of each task takes of the budget.
DEAREST = {"covariance": 1.0, "power": 1 / ROUNDS}


def names_of(count: int) -> tuple[str, ...]:
    return tuple(f"p{place}" for place in range(count))


def identity_of(name: str) -> Identity:
    return Identity(hashlib.sha256(f"identity of {name}".encode()).digest())


def secret_of(name: str) -> bytes:
    return hashlib.sha256(f"key of {name}".encode()).digest()


@dataclass(eq=False)
class Circle:
    """Peers that have not begun, what each of them holds, and what each may spend."""

    terms: GossipTerms
    peers: dict[str, Peer]
    rows: dict[str, Array]
    ledgers: dict[str, Ledger]

    def gram(self, names: Iterable[str]) -> Array:
        """The exact sum over these peers, added up in one go: of rows as they are in `DOMAIN`, on its grid."""
        assert DOMAIN.unit is not None
        rows = DOMAIN.whole(Block(self._rows(names)), unit=DOMAIN.unit)
        total: Array = rows.T @ rows * DOMAIN.unit**2
        return total

    def _rows(self, names: Iterable[str]) -> Array:
        return np.concatenate([self.rows[name] for name in names])


@dataclass(eq=False)
class Ending:
    """How a run ended: who has a result, who stopped and why, what was refused, and how many steps it took."""

    circle: Circle
    done: list[Peer]
    errors: Mapping[str, Exception]
    refused: Sequence[Refusal]
    steps: int
    raised: Exception | None = None
    sent: list[Message] = field(default_factory=list)


class TooManySteps(AssertionError):
    """The run did not come to an end."""


def circle(
    graph: Graph | str,
    count: int = 5,
    *,
    task: str = "covariance",
    noise: PeerNoise = "none",
    restarts: int = 0,
    budget: Budget = BUDGET,
    mine: Mapping[str, Budget] | None = None,
    seed: int = 0,
    rows: Mapping[str, Array] | None = None,
    made: Callable[[], AnyTask] | None = None,
    **terms: Any,
) -> Circle:
    """Peers on a graph, each with the task of this name, or with one that `made` makes.

    `mine` gives some of them a smaller budget; `terms` goes to `GossipTerms`.
    """
    graph = Graph.named(graph, names_of(count)) if isinstance(graph, str) else graph
    names = graph.names
    rng = np.random.default_rng(seed)
    rows = {name: table(rng, 6 + place % 3) for place, name in enumerate(names)} if rows is None else rows
    identities = {name: identity_of(name) for name in names}
    terms.setdefault("quorum", len(names) // 2 + 1)
    if noise == "pairwise":
        terms.setdefault("noise_graph", graph)
        terms.setdefault("roster", {name: identity.public for name, identity in identities.items()})
    agreed = GossipTerms(graph=graph, noise=noise, **terms)
    multiplier = (1 + 1e-10) / budget.mu * math.sqrt(1 + restarts * DEAREST.get(task, 1.0))
    ledgers: dict[str, Ledger] = {}

    def outgoing(place: int, name: str) -> Outgoing:
        if noise == "none":
            return Plain(Exact(because="a law is checked"))
        most = (mine or {}).get(name, budget)
        ledgers[name] = Ledger(epsilon=most.epsilon, delta=most.delta)
        own = Noise.seeded((seed << 20) + place)
        if noise == "independent":
            return Plain(Gaussian(multiplier=multiplier, ledger=ledgers[name], noise=own))
        pairing = agreed.among(()).pairing
        assert pairing is not None
        keys = PairKeys(name, identities[name], agreed, secret_of(name), reproducible=True)
        return Paired(PairedPart(pairing=pairing, name=name, ledger=ledgers[name], noise=own, multiplier=multiplier), keys)

    peers = {
        name: Peer(name, terms=agreed, task=(made or TASKS[task])(), rows=DenseRows(rows[name]), outgoing=outgoing(place, name))
        for place, name in enumerate(names)
    }
    return Circle(agreed, peers, dict(rows), ledgers)


def run(these: Circle, faults: Faults | None = None, *, seed: int = 0, most: int = 30_000) -> Ending:
    """Run to the end, which must come within `most` steps of the post."""
    running = LocalPeers(these.peers.values(), faults=faults, seed=seed)
    step, taken = running.network.step, 0

    def bounded() -> bool:
        nonlocal taken
        taken += 1
        if taken > most:
            raise TooManySteps(f"no end after {most} steps, at time {running.network.now}")
        return step()

    running.network.step = bounded  # type: ignore[method-assign]
    try:
        done, raised = running.run(), None
    except EigenveilError as error:
        done, raised = [], error
    return Ending(these, done, running.errors, running.refused, taken, raised)


def spoil(body: Body, terms: GossipTerms) -> Iterator[tuple[str, Any]]:
    """The same message with one thing wrong with it, and what that is. Each must be refused and leave no trace."""
    if isinstance(body, PartialSum):
        values = body.values
        lies: dict[str, Any] = {
            "not a number": np.full_like(values, np.nan),
            "infinity": np.full_like(values, -np.inf),
            "a huge number": np.full_like(values, 1e300),
            "one number too many": np.append(values, 0.0),
            "no numbers": values[:0],
            "a table": values[:, None],
            "single precision": values.astype(np.float32),
            "whole numbers": values.astype(np.int64),
            "a list": values.tolist(),
            "nothing": None,
        }
        for what, lie in lies.items():
            yield (
                what,
                PartialSum(
                    round=body.round, step=body.step, values=lie, stage=body.stage, without=body.without, terms=body.terms
                ),
            )
        yield (
            "a round to come",
            PartialSum(round=body.round + 2, step=0, values=values, stage=body.stage, without=body.without, terms=body.terms),
        )
        yield (
            "another step",
            PartialSum(
                round=body.round, step=body.step + 1000, values=values, stage=body.stage, without=body.without, terms=body.terms
            ),
        )
        yield (
            "another stage",
            PartialSum(
                round=body.round, step=body.step, values=values, stage="of another play", without=body.without, terms=body.terms
            ),
        )
        yield (
            "other terms",
            PartialSum(round=body.round, step=body.step, values=values, stage=body.stage, without=body.without, terms=bytes(16)),
        )
        yield (
            "nobody gone",
            PartialSum(round=body.round, step=body.step, values=values, stage=body.stage, without=("nobody",), terms=body.terms),
        )
    yield "a question for a round to come", ResendRequest(round=body.round + 7, step=0, without=(), terms=terms.digest)
    yield "a question under other terms", ResendRequest(round=body.round, step=0, without=(), terms=b"")
    yield "farewell to nobody", PeersDropped(0, ("nobody",), terms.digest)
    yield "farewell under other terms", PeersDropped(0, (), bytes(16))
    yield (
        "a key for nobody",
        PeerKey(round=0, origin="nobody", target=terms.graph.names[0], key=bytes(32), signature=bytes(64), terms=terms.digest),
    )


def require_refused(peer: Peer, message: Message, what: str, before: dict[str, Any] | None = None) -> None:
    """A `PeerError` that names who sent it, and no change in anything the peer holds, which may be known from `before`."""
    before = look(peer) if before is None else before
    try:
        answers = peer.receive(message)
    except PeerError as error:
        assert error.peer == message.sender, what
    else:
        raise AssertionError(f"{peer.name} took {what} from {message.sender}, and answered {answers}")
    assert look(peer) == before, f"{peer.name} was changed by {what}"


# What is the same before and after, and takes long to look at.
_APART = ("_terms", "_task", "_rows", "_among", "_watch", "_outgoing", "_sums")


def look(peer: Peer) -> dict[str, Any]:
    """All that a peer holds, to the last bit."""
    seen = {what: picture(thing) for what, thing in vars(peer).items() if what not in _APART}
    seen["_among"] = peer.counted
    for round_, now in peer._sums.items():
        held = vars(now) | (vars(now._mixed) if isinstance(now, _Agreed) else {})
        kept = {what: thing for what, thing in held.items() if what not in ("_mixing", "_advance", "_mixed")}
        seen[f"sum of round {round_}"] = picture(kept)
    outgoing = peer._outgoing
    if isinstance(outgoing, Paired):
        seen["_outgoing"] = (
            picture((outgoing._epoch, outgoing._used, outgoing._part.ledger, outgoing.keys._agreed)),
            outgoing._part.pairing.graph.names,
        )
    else:
        seen["_outgoing"] = picture(outgoing)
    return seen
