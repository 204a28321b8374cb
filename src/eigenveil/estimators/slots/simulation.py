"""`SlotSimulation`: streams at many sites in one process, for `FederatedStream`. A runtime carries the messages, slot by slot."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import final

from eigenveil.core.ledger import Charge, Ledger
from eigenveil.errors import ProtocolError, at_place, require
from eigenveil.estimators.checks import WholeCharge
from eigenveil.estimators.slots.answer import answer_of
from eigenveil.estimators.slots.parties import SlotParties
from eigenveil.estimators.slots.spec import SlotSpec
from eigenveil.estimators.streaming.answer import Answer
from eigenveil.linalg import Array
from eigenveil.protocols import Message, Party
from eigenveil.protocols.masked import Identity
from eigenveil.protocols.slots import MaskedSlotMember, SlotMember, SlotRound
from eigenveil.protocols.wire import size
from eigenveil.runtimes import Faults, Refusal
from eigenveil.runtimes.local import LocalNetwork
from eigenveil.tasks import ClosedSlot

__all__ = ["SlotSimulation"]


@final
class SlotSimulation:
    """The parties of `spec`, and what they have done. Changes in place: it spends."""

    def __init__(self, spec: SlotSpec, *, faults: Faults | None, ledger: Ledger | None = None) -> None:
        self.spec = spec
        # Charged once for all slots that a person is in.
        self._whole = WholeCharge(ledger, spec.budget, unit=spec.unit, label="this stream at sites")
        # Real keys even here, so that a simulation runs the same protocol as a network.
        identities = {name: Identity.fresh() for name in spec.names} if spec.trust == "masked" else {}
        roster = {name: one.public for name, one in identities.items()}
        self.parties = SlotParties(spec, roster=roster, through=self._whole)
        self.members: dict[str, SlotMember | MaskedSlotMember] = {}
        for name in spec.names:
            if identities:
                self.members[name] = self.parties.masked_member(name, identity=identities[name])
            else:
                self.members[name] = self.parties.member(name)
        self.rounds: list[SlotRound] = []
        self.masking = self.parties.masking()
        self.hub = self.parties.hub(
            masking=self.masking, watch=self.rounds.append, answer=lambda state: self.answer.arrays()
        )
        self.following = 0
        self.answer: Answer = answer_of(self.parties, self.hub.state)
        # Bytes that each party has sent.
        self.sent: Counter[str] = Counter()
        nodes = [self.parties.node(name) for name in self.parties.layout.nodes]
        self._everyone: dict[str, Party] = {party.name: party for party in (self.hub, *nodes, *self.members.values())}
        # Those who can be reached now: a message to anybody else is lost.
        self._there = dict(self._everyone)
        self._network = LocalNetwork(self._there, faults=faults, seed=spec.seed, latest_first=True, counted=self._count)

    @property
    def refused(self) -> tuple[Refusal, ...]:
        """Messages refused so far. Masks name liars when a sum is opened, which refuses no message."""
        liars = {} if self.masking is None else self.masking.liars
        return (*self._network.refused, *(Refusal("hub", name, why) for name, why in liars.items()))

    def slot(self, rows: Mapping[str, Iterable[Array]], *, away: Collection[str] = ()) -> None:
        """Close the next slot at the sites named in `rows`, and let the hub ask for it. Those `away` cannot be reached."""
        slot = self.following
        require(slot < self.spec.slots, f"all {self.spec.slots} slots are over")
        # All of a slot is taken in before any of it is released: bad rows at one site leave no trace.
        filled = {name: self._filled(name, blocks) for name, blocks in rows.items()}
        with self._whole.reserved(self.parties.masked):
            self.following += 1
            for name, closed in filled.items():
                self.members[name].close(slot, closed)
            self._tick(away)

    def finish(self, *, away: Collection[str] = ()) -> None:
        """Ask once more for what is missing, until the window of the last slot has passed."""
        with self._whole.reserved(self.parties.masked):
            while self.hub.result is None:
                self._tick(away)

    def charges(self) -> tuple[Charge, ...]:
        """The hub's charges if it adds noise, otherwise those of the site that spent most."""
        ledgers = self.parties.ledgers
        if not ledgers:
            return ()
        return max(ledgers.values(), key=lambda ledger: ledger.spent_mu).charges

    def _filled(self, name: str, blocks: Iterable[Array]) -> ClosedSlot:
        filled = self.parties.task.open()
        try:
            for block in blocks:
                filled.add(block)
        except ValueError as error:
            raise at_place(name, error) from None
        return filled.close()

    def _tick(self, away: Collection[str]) -> None:
        # The dict is changed in place, because the network holds the same one.
        before = set(self._there)
        self._there.clear()
        self._there.update({name: party for name, party in self._everyone.items() if name not in away})
        # The hub of a network notices who connects again.
        for name in self._there.keys() - before:
            self.hub.rejoined(name)
        self._network.send(self.hub.name, self.hub.tick())
        self._network.watch(self.hub)
        while not self.hub.idle:
            if not self._network.step():
                raise ProtocolError("no message is left to deliver, and the hub still waits")
        # The hub has ended, but its result is still on the way to the sites.
        if self.hub.result is not None:
            while self._network.busy:
                self._network.step()
        # The last rank is passed on: one that adapts moves by one from there.
        self.answer = answer_of(self.parties, self.hub.state, rank=self.answer.rank)

    def _count(self, message: Message) -> None:
        self.sent[message.sender] += size(message)
