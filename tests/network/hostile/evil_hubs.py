"""Hubs that look on, and hubs that lie: with the real keys of the hub, over real connections, to real sites."""

from collections.abc import Callable
from typing import Any, cast, final

import numpy as np

from eigenveil.data.rows import DenseRows
from eigenveil.linalg import orthonormal
from eigenveil.network.agents.durable import DurableParty, Letter
from eigenveil.network.agents.hub import HubAgent
from eigenveil.network.agents.hub_desk import DurableHub
from eigenveil.network.agents.hub_log import HubLog
from eigenveil.network.agents.runner import MAIL
from eigenveil.network.agents.site_data import credentials_of
from eigenveil.network.identity.certificates import recogniser
from eigenveil.network.study.parties import parties_of
from eigenveil.protocols import wire
from eigenveil.protocols.messages import Ask, Brief, Done, Envelope, Masked, Message, Return
from eigenveil.protocols.wire import decode, encode
from eigenveil.runtimes.grpc import Got, Joined, Left, Transport
from eigenveil.tasks import Question
from network.network_studies import Company, keys_of

__all__ = ["EvilHub", "Puppets", "Twist", "WatchedDesk", "about", "watched_hub"]

# What leaves in the place of what was to leave.
Twist = Callable[[list[Letter]], list[Letter]]


def about(data: bytes) -> tuple[int, str]:
    """The turn and the step that a question or an answer is about; of all parts of a turn there is one step."""
    body = decode(data).body
    match body:
        case Brief(step=step) | Return(step=step):
            return body.turn, "part" if step == "mask" else step
        case Done():
            return body.turn, "answer"
        case _:
            return body.turn, "part"


@final
class WatchedDesk(DurableParty):
    """The desk of a hub, with everything that came and everything that left written down. Changes in place.

    `twist` may put something else in the place of what leaves.
    """

    def __init__(self, desk: DurableHub, twist: Twist = lambda letters: letters) -> None:
        self._desk, self._twist = desk, twist
        self.party = desk.party
        self.came: list[tuple[str, bytes]] = []
        self.left: list[Letter] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._desk, name)

    @property
    def over(self) -> bool:
        return self._desk.over

    def begin(self) -> list[Letter]:
        return self._out(self._desk.begin())

    def take(self, sender: str, data: bytes) -> list[Letter]:
        self.came.append((sender, data))
        return self._out(self._desk.take(sender, data))

    def wait_over(self) -> list[Letter]:
        return self._out(self._desk.wait_over())

    def rejoined(self, other: str) -> list[Letter]:
        return self._out(self._desk.rejoined(other))

    def _out(self, letters: list[Letter]) -> list[Letter]:
        letters = self._twist(letters)
        self.left.extend(letters)
        return letters


def watched_hub(
    company: Company, twist: Twist = lambda letters: letters
) -> Callable[[HubLog], tuple[HubAgent, WatchedDesk]]:
    """From a transcript, the hub of a company and the desk that is watched."""

    def made(transcript: HubLog) -> tuple[HubAgent, WatchedDesk]:
        agent = HubAgent(company.study, keys=keys_of("hub", "hub"), transcript=transcript, tell=company.told("hub"))
        desk = WatchedDesk(agent.desk, twist)
        agent.desk = cast("DurableHub", desk)
        return agent, desk

    return made


@final
class EvilHub:
    """The keys of the hub of a company in the hands of somebody who says whatever is wanted. Changes in place."""

    def __init__(self, company: Company) -> None:
        self.company, self.study = company, company.study
        self.parties = parties_of(company.study)
        self.board = Transport(
            "hub",
            credentials=credentials_of(company.study, keys_of("hub", "hub")),
            greeting=company.study.greeting,
            limit=wire.LIMIT,
        )
        self.got: list[bytes] = []
        self.notes: list[bytes] = []

    async def __aenter__(self) -> "EvilHub":
        known = recogniser([place.certificate for place in self.study.sites])
        await self.board.listen(f"127.0.0.1:{self.company.port}", recognise=known)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.board.close(0.2)

    async def joined(self) -> None:
        """Wait until a site is there."""
        while not isinstance(await self.board.events.get(), Joined):
            pass

    async def left(self) -> None:
        """Wait until a site has gone."""
        while not isinstance(await self.board.events.get(), Left):
            pass

    async def say(self, body: Message | bytes, *, to: str = "site 0", kind: int = MAIL) -> None:
        """Send mail, or any bytes."""
        data = body if isinstance(body, bytes) else encode(Envelope("hub", to, body))
        await self.board.send(to, kind, data)

    async def heard(self) -> Envelope:
        """The next mail from a site."""
        while True:
            match await self.board.events.get():
                case Got(kind=kind, data=data) if kind == MAIL:
                    self.got.append(data)
                    return decode(data)
                case Got(data=data):
                    self.notes.append(data)

    async def ask(self, body: Message | bytes) -> Message:
        """Say something, and hear what comes back."""
        await self.say(body)
        return (await self.heard()).body

    def question(self, *, product: int | None = None, seed: int = 0) -> Question:
        """One that the study has: for the mean, or for a `product` of krylov with directions that the seed says; the product
        after the last is the totals, around a center that the seed says."""
        if product is None:
            return self.parties.study.ask(self.parties.study.start())
        if product == self.parties.request.plan.rounds:
            return Question(0, (np.full(len(self.study.columns), float(seed)), np.ones(1)), "totals")
        dim, width = len(self.study.columns), self.parties.request.plan.width
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

    async def turn(self, turn: int, question: Question) -> Message:
        """Carry a turn through; what site 0 gave in it, or its refusal to."""
        exchange = self.masking(turn, question, self.hub.company.names, set())
        part: Message | None = None
        while part is None or isinstance(part, Masked):
            for mail in exchange.asks("hub"):
                if mail.receiver in self.parties:
                    (answer,) = self.parties[mail.receiver].receive(mail)
                else:
                    await self.hub.say(encode(mail), to=mail.receiver)
                    answer = await self.hub.heard()
                    if isinstance(mail.body, Ask):
                        part = answer.body
                exchange.receive(answer.sender, answer.body)
            if not exchange.onward():
                break
        assert part is not None
        return part
