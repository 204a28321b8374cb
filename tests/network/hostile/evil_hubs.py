"""Hubs that look on, and hubs that lie: with the real keys of the hub, over real connections, to real sites."""

from collections.abc import Callable
from typing import Any, cast, final

import numpy as np

from eigenveil.data.rows import DenseRows
from eigenveil.linalg import orthonormal
from eigenveil.network.agents.hub_log import DurableHub, HubLog
from eigenveil.network.agents.runner import MESSAGE, credentials_of
from eigenveil.network.agents.star import HubAgent
from eigenveil.network.agents.steps import DurableParty, Outgoing
from eigenveil.network.certificates import recogniser
from eigenveil.network.parties import parties_of
from eigenveil.protocols import wire
from eigenveil.protocols.messages import Ask, Body, Done, Masked, Message, StepReply, StepRequest
from eigenveil.protocols.wire import decode, encode
from eigenveil.runtimes.grpc import Got, Joined, Left, Transport
from eigenveil.tasks.base import Question
from network.network_studies import Company, keys_of

__all__ = ["EvilHub", "Puppets", "Twist", "WatchedParty", "about", "watched_hub"]

# What leaves in the place of what was to leave.
Twist = Callable[[list[Outgoing]], list[Outgoing]]


def about(data: bytes) -> tuple[int, str]:
    """The round and the step that a question or an answer is about; of all parts of a round there is one step."""
    body = decode(data).body
    match body:
        case StepRequest(step=step) | StepReply(step=step):
            return body.round, "part" if step == "mask" else step
        case Done():
            return body.round, "answer"
        case _:
            return body.round, "part"


@final
class WatchedParty(DurableParty):
    """A durable hub that records everything that came and everything that left. Changes in place.

    `twist` may put something else in the place of what leaves.
    """

    def __init__(self, durable: DurableHub, twist: Twist = lambda outgoing: outgoing) -> None:
        self._durable, self._twist = durable, twist
        self.party = durable.party
        self.came: list[tuple[str, bytes]] = []
        self.left: list[Outgoing] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._durable, name)

    @property
    def over(self) -> bool:
        return self._durable.over

    def begin(self) -> list[Outgoing]:
        return self._out(self._durable.begin())

    def take(self, sender: str, data: bytes) -> list[Outgoing]:
        self.came.append((sender, data))
        return self._out(self._durable.take(sender, data))

    def wait_over(self) -> list[Outgoing]:
        return self._out(self._durable.wait_over())

    def on_reconnect(self, other: str) -> list[Outgoing]:
        return self._out(self._durable.on_reconnect(other))

    def _out(self, outgoing: list[Outgoing]) -> list[Outgoing]:
        outgoing = self._twist(outgoing)
        self.left.extend(outgoing)
        return outgoing


def watched_hub(company: Company, twist: Twist = lambda outgoing: outgoing) -> Callable[[HubLog], tuple[HubAgent, WatchedParty]]:
    """From a transcript, the hub of a company and the durable party that is watched."""

    def made(transcript: HubLog) -> tuple[HubAgent, WatchedParty]:
        agent = HubAgent(company.study, keys=keys_of("hub", "hub"), transcript=transcript, on_event=company.told("hub"))
        durable = WatchedParty(agent.durable, twist)
        agent.durable = cast("DurableHub", durable)
        return agent, durable

    return made


@final
class EvilHub:
    """A hostile hub: the hub's keys in the hands of an attacker who says anything. Changes in place."""

    def __init__(self, company: Company) -> None:
        self.company, self.study = company, company.study
        self.parties = parties_of(company.study)
        self.transport = Transport(
            "hub",
            credentials=credentials_of(company.study, keys_of("hub", "hub")),
            greeting=company.study.greeting,
            limit=wire.LIMIT,
        )
        self.got: list[bytes] = []
        self.notes: list[bytes] = []

    async def __aenter__(self) -> "EvilHub":
        known = recogniser([place.certificate for place in self.study.sites])
        await self.transport.listen(f"127.0.0.1:{self.company.port}", recognise=known)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.transport.close(0.2)

    async def joined(self) -> None:
        """Wait until a site is there."""
        while not isinstance(await self.transport.events.get(), Joined):
            pass

    async def left(self) -> None:
        """Wait until a site has gone."""
        while not isinstance(await self.transport.events.get(), Left):
            pass

    async def say(self, body: Body | bytes, *, to: str = "site 0", kind: int = MESSAGE) -> None:
        """Send messages, or any bytes."""
        data = body if isinstance(body, bytes) else encode(Message("hub", to, body))
        await self.transport.send(to, kind, data)

    async def heard(self) -> Message:
        """The next messages from a site."""
        while True:
            match await self.transport.events.get():
                case Got(kind=kind, data=data) if kind == MESSAGE:
                    self.got.append(data)
                    return decode(data)
                case Got(data=data):
                    self.notes.append(data)

    async def ask(self, body: Body | bytes) -> Body:
        """Say something, and hear what comes back."""
        await self.say(body)
        return (await self.heard()).body

    def question(self, *, product: int | None = None, seed: int = 0) -> Question:
        """A question that the study has: for the mean, or for a `product` of krylov.

        The seed gives its directions. The product after the last is the totals, around a center that the seed gives.
        """
        if product is None:
            return self.parties.study.ask(self.parties.study.start())
        if product == self.parties.request.fit.plan.rounds:
            return Question(0, (np.full(len(self.study.columns), float(seed)), np.ones(1)), "totals")
        dim, width = len(self.study.columns), self.parties.request.fit.plan.width
        basis = orthonormal(np.random.default_rng(seed).standard_normal((dim, width)))
        return Question(product, (np.zeros(dim), np.ones(1), basis), "components")


@final
class Puppets:
    """The other sites of a masked study in the hands of its hub, so that it can ask site 0 in any order. Changes in place."""

    def __init__(self, hub: EvilHub) -> None:
        self.hub = hub
        masking = hub.parties.masking()
        assert masking is not None
        self.masking = masking
        self.parties = {
            name: hub.parties.member(name, DenseRows(hub.company.tables[name]), identity=keys_of(name, "site").identity)
            for name in hub.company.names[1:]
        }

    async def round_(self, round_: int, question: Question) -> Body:
        """Carry a round through; what site 0 gave in it, or its refusal to."""
        exchange = self.masking(round_, question, self.hub.company.names, set())
        part: Body | None = None
        while part is None or isinstance(part, Masked):
            for message in exchange.asks("hub"):
                if message.receiver in self.parties:
                    (answer,) = self.parties[message.receiver].receive(message)
                else:
                    await self.hub.say(encode(message), to=message.receiver)
                    answer = await self.hub.heard()
                    if isinstance(message.body, Ask):
                        part = answer.body
                exchange.receive(answer.sender, answer.body)
            if not exchange.onward():
                break
        assert part is not None
        return part
