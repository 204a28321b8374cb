"""`PeerAgent`: a peer of a study without a hub, over the network. What leaves is in its ledger first.

`eigenveil peer` runs it. Peers begin when each has heard, from neighbour to neighbour, that all are connected. A peer that
was stopped in the middle cannot come back: its neighbours have gone on without it, and saying anything again would be
charged again.
"""

import json
from collections.abc import Callable, Collection, Set
from typing import Final, final

from eigenveil.errors import PeerError, ProtocolError, require
from eigenveil.estimators.gossip.guarantee import gossip_guarantee
from eigenveil.estimators.gossip.parties import PeerParties, peers_settings
from eigenveil.estimators.released import model_of
from eigenveil.ledger.durable import DurableLedger, Opened, StudyBudget
from eigenveil.model import Model
from eigenveil.network.agents.durable.party import DurableParty, Event, OnEvent, Outgoing, opened
from eigenveil.network.agents.durable.refusals import Refusals
from eigenveil.network.agents.runner import NOTE, Runner, accepted
from eigenveil.network.agents.site_data import (
    SiteData,
    account_of,
    credentials_of,
    place_of,
    require_not_withdrawn,
    require_policy,
)
from eigenveil.network.identity.certificates import Keys, recogniser
from eigenveil.network.policy import Policy
from eigenveil.network.study.file import StudyFile
from eigenveil.network.study.parties import peer_parties_of, study_settings
from eigenveil.network.study.size import MEMORY, limits_of
from eigenveil.protocols import Message, Pass, PeerKey
from eigenveil.protocols.gossip import Peer, PeerRound
from eigenveil.protocols.wire import MessageLimits, encode
from eigenveil.runtimes.grpc import Transport

__all__ = ["PeerAgent"]

# Notes between agents: a peer has its result, or these peers are connected as far as it has heard.
_DONE: Final = b"done"
_READY: Final = b"ready "


@final
class _DurablePeer(DurableParty):
    """A peer whose new charges, and what they pay for, are in the ledger before anything leaves. Changes in place."""

    def __init__(
        self,
        party: Peer,
        parties: PeerParties,
        ledger: DurableLedger,
        *,
        study: str,
        limits: MessageLimits,
        on_event: OnEvent,
    ) -> None:
        self.party: Peer = party
        self._durable_ledger, self._study, self._limits, self._on_event = ledger, study, limits, on_event
        self._ledger = parties.ledgers.get(party.name)
        self._number = self._charged = 0
        self._refusals = Refusals(ledger, study, on_event)

    @property
    def over(self) -> bool:
        """Whether there is a result or an error."""
        return self.party.over

    def begin(self) -> list[Outgoing]:
        """Signed public keys, or the first numbers."""
        return self._kept(self.party.start(), b"")

    def take(self, sender: str, data: bytes) -> list[Outgoing]:
        """What follows from a neighbour's message."""
        try:
            said = self.party.receive(opened(data, sender=sender, me=self.party.name, limits=self._limits))
        except PeerError as error:
            self._refusals.note(error)
            return []
        return self._kept(said, data)

    def wait_over(self) -> list[Outgoing]:
        """What the peer sends when a neighbour has missed its deadline."""
        return self._kept(self.party.timeout(), b"")

    def rejoined(self, other: str) -> list[Outgoing]:
        """What the peer sends to a neighbour that is back."""
        return self._kept(self.party.rejoined(other), b"")

    def _kept(self, messages: list[Message], came: bytes) -> list[Outgoing]:
        said = [encode(message) for message in messages]
        charges = () if self._ledger is None else self._ledger.charges[self._charged :]
        # Without a guarantee nothing is charged. That something left is still written once: it voids the dataset's life.
        first = self._number == 0 and any(isinstance(message.body, Pass) for message in messages)
        if charges or first:
            self._durable_ledger.commit(self._study, self._number, came=came, said=said, charges=charges)
            self._number, self._charged = self._number + 1, self._charged + len(charges)
            for charge in charges:
                self._on_event(Event("said", "", f"{charge.label} at mu {charge.mu:.4g}"))
        return [(message.receiver, raw) for message, raw in zip(messages, said, strict=True)]


@final
class PeerAgent:
    """One peer: its place in the `study`, its table, its ledger, and the name of its `dataset` there.

    Changes in place: it spends. Nothing is connected and nothing is spent before `run`. `withdrawn` has the pins that are
    void by now: it is asked at every connection. A study that needs more than `memory` bytes is refused.
    """

    def __init__(
        self,
        study: StudyFile,
        *,
        keys: Keys,
        holding: SiteData,
        ledger: DurableLedger,
        dataset: str,
        policy: Policy | None,
        withdrawn: Callable[[], Collection[str]] = tuple,
        memory: int = MEMORY,
        on_event: OnEvent = lambda event: None,
    ) -> None:
        require(study.carrier == "gossip", f"{study.name!r} has a hub: run `eigenveil site`")
        self.study, self.policy = study, policy
        self.place = place_of(study, keys, role="peer")
        self.parties = peer_parties_of(study, memory=memory)
        self._keys, self._holding, self._durable_ledger, self._on_event = keys, holding, ledger, on_event
        self._withdrawn = withdrawn
        request = self.parties.request
        require_policy(policy, study, holding, me=self.place.name, method=request.plan.method)
        budget = request.budget
        mu = 0.0 if budget is None else budget.mu
        self.account: StudyBudget = account_of(study, dataset, party=self.place.name, budget=budget, mu=mu)
        self.near = request.graph.neighbours(self.place.name)
        self._limits = limits_of(study, request, "peer")
        self._ready: set[str] = {self.place.name}
        self._done: set[str] = set()
        # The connections, while `run` runs.
        self.transport: Transport | None = None

    async def run(
        self,
        deliver: Callable[[Model], None],
        *,
        listen: str,
        note: str | None = None,
        ready: Callable[[int], None] = lambda port: None,
    ) -> Model:
        """Take part until the result is here. `deliver` gets the model before the study is closed in the ledger.

        `listen` is where others reach this peer, and `ready` is called with the port. `note` is for the ledger.
        """
        life = None if self.policy is None else self.policy.life
        # Two processes of one peer would send the same numbers under two different noises.
        with self._durable_ledger.lock(self.study.digest):
            entered = self._durable_ledger.join(self.account, life=life)
            # Before anything is noted or connected: a peer cannot go on in the middle of a study.
            self._require_new(entered)
            if note is not None:
                self._durable_ledger.note(self.study.digest, note)
            party = self.parties.peer(
                self.place.name,
                self._holding.rows,
                watch=self._round_done,
                identity=self._keys.identity,
                secret=entered.secret,
            )
            durable = _DurablePeer(
                party,
                self.parties,
                self._durable_ledger,
                study=self.study.digest,
                limits=self._limits,
                on_event=self._on_event,
            )
            return await self._carry(durable, deliver, listen, ready)

    def _require_new(self, entered: Opened) -> None:
        if entered.finished:
            raise ProtocolError(f"this peer has finished the study {self.study.name!r}, and has written its model")
        if entered.steps:
            raise ProtocolError(
                f"this peer was stopped in the middle of the study {self.study.name!r}, and its neighbours have gone on without "
                "it. What was charged stays charged; `eigenveil ledger close` frees the rest of the reserve"
            )

    async def _carry(
        self, durable: _DurablePeer, deliver: Callable[[Model], None], listen: str, ready: Callable[[int], None]
    ) -> Model:
        """Connect, take part to the end, and stay until neighbours need nothing more."""
        network = self.study.params
        transport = self.transport = Transport(
            self.place.name,
            credentials=credentials_of(self.study, self._keys),
            greeting=self.study.greeting,
            accepts=accepted(self._limits, note=len(_ready_note(self.parties.names))),
        )
        runner = self._runner(durable, transport)
        try:
            # Only neighbours on the graph may connect. The others are strangers here, though they are in the study.
            seen = [self.study.place(name).certificate for name in self.near]
            ready(await transport.listen(listen, recognise=self._recognising(recogniser(seen))))
            self._dial_earlier(transport)
            order = [place.name for place in self.study.peers]
            self._on_event(Event("waiting", "", f"for {len(order) - 1} others to connect"))
            # All of them, not only neighbours: a peer that begins without one far away would leave it behind.
            await runner.gather(order, seconds=network.join, patience=network.deadline)
            self._on_event(Event("began"))
            await runner.begin()
            await runner.run(lambda: durable.over)
            # The study stays open in the ledger: what was charged is charged, and a person decides about the rest.
            if durable.party.error is not None:
                raise durable.party.error
            # The model is on disk before the ledger closes the study and wipes what it kept.
            model = self._model(durable.party)
            deliver(model)
            self._durable_ledger.finish(self.study.digest)
            await self._say(transport, _DONE)
            # Neighbours may still need this peer's numbers of the last round.
            await runner.linger(
                seconds=network.deadline * (1 + network.retries), over=lambda: self._all_done(transport)
            )
            return model
        finally:
            await transport.close()
            runner.close()

    def _runner(self, durable: _DurablePeer, transport: Transport) -> Runner:
        """Carries this peer's messages, and answers the notes of its neighbours."""

        async def noted(sender: str, words: bytes) -> None:
            if words == _DONE:
                self._done.add(sender)
            elif self._learnt(words):
                await self._say(transport, self._known())

        async def greet(name: str) -> None:
            # Asked at every connection: a pin may be withdrawn while a study runs, and nothing more must go there.
            require_not_withdrawn(self.study.place(name), self._withdrawn())
            await transport.send(name, NOTE, self._known())

        # A fixed time for answers, if the site's policy asks for one: the time of an answer could tell about rows.
        reply = 0.0 if self.policy is None else self.policy.reply_seconds
        return Runner(
            durable,
            transport,
            on_event=self._on_event,
            notes=noted,
            greet=greet,
            there=self._there,
            # Only said: which of two neighbours has the wrong file is for people to find out.
            other=lambda _, greeting: self.study.differs(greeting),
            reply=reply,
            early=self._early,
        )

    def _dial_earlier(self, transport: Transport) -> None:
        """Call the neighbours before this peer in the study file: exactly one of two must call, and the later one does."""
        order = [place.name for place in self.study.peers]
        for name in self.near:
            if order.index(name) < order.index(self.place.name):
                place = self.study.place(name)
                assert place.address is not None
                transport.dial(
                    name,
                    place.address,
                    certificate=place.certificate.pem.encode(),
                    server_name=place.certificate.server_name,
                )

    def _recognising(self, known: Callable[[bytes], str | None]) -> Callable[[bytes], str | None]:
        """Whose certificate a caller shows; None, as for a stranger, if the pin was withdrawn."""

        def recognise(pem: bytes) -> str | None:
            name = known(pem)
            return None if name is None or self.study.place(name).pin in self._withdrawn() else name

        return recognise

    def _there(self, present: Set[str]) -> set[str]:
        """Who is connected: peers that others have heard of, and of the neighbours those that this peer itself is connected to.

        A neighbour that was only heard of would miss the first numbers, and ask for them after its whole deadline.
        """
        return {name for name in self._ready if name not in self.near or name in present}

    @property
    def _early(self) -> int:
        """Bytes that a neighbour may send before this peer has begun: every peer's key, and the numbers of two steps."""
        kinds = self._limits.kinds
        return len(self.parties.names) * kinds[PeerKey, ""].size + 2 * kinds[Pass, ""].size

    def _known(self) -> bytes:
        """Who is connected, as far as this peer has heard."""
        return _ready_note(self._ready)

    def _learnt(self, words: bytes) -> bool:
        """Whether a neighbour knows of a peer that this one had not heard of. Anything but a list of peers is ignored."""
        if not words.startswith(_READY):
            return False
        try:
            listed = json.loads(words[len(_READY) :])
        except (ValueError, RecursionError):
            return False
        known = {name for name in listed if isinstance(name, str)} if isinstance(listed, list) else set()
        # Unknown names are dropped: a neighbour must not make this peer wait for, or count, strangers.
        new = (known & set(self.parties.names)) - self._ready
        # The set only grows, and only news is passed on, so the chatter ends by itself.
        self._ready |= new
        return bool(new)

    async def _say(self, transport: Transport, words: bytes) -> None:
        for name in self.near:
            await transport.send(name, NOTE, words)

    def _all_done(self, transport: Transport) -> bool:
        # A neighbour that has gone does not need this peer any more.
        return all(name in self._done or name not in transport.connected() for name in self.near)

    def _round_done(self, peer: Peer, round_: PeerRound) -> None:
        gone = len(self.parties.names) - len(round_.counted)
        without = f", without {gone}" if gone else ""
        self._on_event(
            Event("round", f"{round_.stage} {round_.step + 1}".strip(), f"{len(round_.counted)} peers{without}")
        )

    def _model(self, party: Peer) -> Model:
        found, counted = party.result, party.counted
        # The guarantee says from which round on only the final set of peers was counted.
        since = next((round_.number for round_ in party.rounds if set(round_.counted) <= set(counted)), 0)
        return model_of(
            found.subspace,
            trace=found.trace,
            people=found.people,
            center=found.center,
            verdict=self.parties.verdict(found, counted=counted, names=self.study.columns),
            guarantee=gossip_guarantee(self.parties, found, counted=counted, since=since),
            scale=found.units,
            domain=found.domain,
            columns=self.study.columns,
            settings=study_settings(
                self.study, peers_settings(self.parties, found, peers=len(counted), rounds=len(party.rounds), sent=None)
            ),
        )


def _ready_note(names: Collection[str]) -> bytes:
    """The note that says that these peers are connected."""
    return _READY + json.dumps(sorted(names)).encode()
