"""`DurableSite`: a site's messages. The charge and the exact bytes of an answer are in the ledger before the answer is handed
out.

Messages that come again gets the bytes that are in the ledger. After a crash the party is made again from the ledger: what it
had let out is not made a second time.
"""

import hashlib
from typing import Final, final

from eigenveil.errors import PeerError, ProtocolError
from eigenveil.estimators.federated.parties import Parties
from eigenveil.network.agents.durable.party import DurableParty, Event, OnEvent, Outgoing, opened
from eigenveil.network.agents.durable.refusals import Refusals
from eigenveil.network.ledger.durable import DurableLedger, Opened
from eigenveil.network.study.parties import found_in
from eigenveil.privacy import Charge
from eigenveil.protocols import Ask, Brief, Decline, Done, Give, Member, Message, Return
from eigenveil.protocols.masked import MaskedMember
from eigenveil.protocols.masked.terms import DECLINED
from eigenveil.protocols.party import require_plain
from eigenveil.protocols.wire import decode, encode

__all__ = ["DurableSite"]

# How many answers are at hand to be repeated; the party can say older ones again itself.
_AT_HAND: Final = 4
# How often a study may be resumed, beside what it asks: each time a question is asked and answered once more.
_RESUMED: Final = 50


@final
class DurableSite(DurableParty):
    """The messages between a site and who stands `above` it. Changes in place.

    `whole` is what the site is charged with its first part where others add the noise: all that the study may cost. A charge of
    the party is `stretch` times as much for a person, who may be at other sites as well.
    """

    def __init__(
        self,
        party: Member | MaskedMember,
        parties: Parties,
        ledger: DurableLedger,
        opened_ledger: Opened,
        *,
        study: str,
        above: str,
        limit: int,
        whole: Charge | None,
        stretch: float,
        on_event: OnEvent,
    ) -> None:
        self.party: Member | MaskedMember = party
        self._durable_ledger, self._study, self._above, self._limit, self._on_event = (
            ledger,
            study,
            above,
            limit,
            on_event,
        )
        self._parties = parties
        self._ledger = parties.ledgers.get(party.name)
        self._whole, self._stretch = whole, stretch
        self._number = len(opened_ledger.entries)
        masked = parties.masked
        honest = parties.most_questions if masked is None else 4 * masked.most_rounds + 6 * masked.sessions
        self._most = _RESUMED + 4 * honest
        self._refusals = Refusals(ledger, study, on_event)
        # Whether the party has said something that is not in the ledger.
        self._ahead = False
        self._said: dict[bytes, list[Outgoing]] = {}
        self._last_step = ""
        for entry in opened_ledger.entries:
            said = [decode(raw, limit=limit) for raw in entry.said]
            if not any(map(_is_refusal, said)):
                outgoing = [(message.receiver, raw) for message, raw in zip(said, entry.said, strict=True)]
                self._remember(hashlib.sha256(entry.came).digest(), outgoing)
            self.party.recall(decode(entry.came, limit=limit), said)
            if self._whole in entry.charges:
                self._whole = None

    @property
    def over(self) -> bool:
        """Whether the answer is here."""
        return self.party.result is not None

    def begin(self) -> list[Outgoing]:
        """A site is asked."""
        return []

    def wait_over(self) -> list[Outgoing]:
        """A site waits for nothing in particular."""
        return []

    def rejoined(self, other: str) -> list[Outgoing]:
        """Who stands above asks for what it lacks."""
        return []

    def take(self, sender: str, data: bytes) -> list[Outgoing]:
        """The answer, which is in the ledger by then."""
        if self._ahead:
            raise ProtocolError("this site has answered what could not be written down, and must be started again")
        key = hashlib.sha256(data).digest()
        if sender == self._above and key in self._said:
            return self._said[key]
        try:
            message = opened(data, sender=sender, me=self.party.name, limit=self._limit)
            self._require_answer(message)
            self._require_few(message)
            before = 0 if self._ledger is None else len(self._ledger.charges)
            answers = self.party.receive(message)
        except PeerError as error:
            self._refusals.note(error)
            return []
        self._ahead = True
        said = [encode(answer) for answer in answers]
        if any(len(raw) > self._limit for raw in said):
            raise ProtocolError(
                f"an answer of this site has {max(map(len, said))} bytes, and [network] largest of the study is {self._limit}: "
                "nothing was charged and nothing was sent"
            )
        charges = self._charges(before, answers)
        self._durable_ledger.commit(self._study, self._number, came=data, said=said, charges=charges)
        self._ahead = False
        self._number += 1
        outgoing = [(answer.receiver, raw) for answer, raw in zip(answers, said, strict=True)]
        if not any(_is_refusal(answer) for answer in answers):
            self._remember(key, outgoing)
        self._say(message, charges, sum(map(len, said)))
        return outgoing

    def _require_few(self, message: Message) -> None:
        """Refuse to write down without end: the same question can be asked in ever new words, which costs nothing but room."""
        if self._number >= self._most and not isinstance(message.body, Done):
            raise PeerError(message.sender, f"has asked {self._most} times, more often than this study can take")

    def _require_answer(self, message: Message) -> None:
        """Refuse an answer that cannot be one, before it is taken for the end of the study."""
        if isinstance(message.body, Done):
            try:
                require_plain(message.body.arrays)
                found_in(self._parties, message.body.arrays)
            except ValueError as error:
                raise PeerError(message.sender, f"sent an answer that cannot be one: {error}") from error

    def _charges(self, before: int, answers: list[Message]) -> tuple[Charge, ...]:
        """What these answers cost: new lines of the party's own ledger, or all of the study where the hub adds the noise."""
        lines = () if self._ledger is None else self._ledger.charges[before:]
        new = tuple(Charge(line.label, line.mu * self._stretch) for line in lines)
        if self._whole is not None and any(isinstance(answer.body, Give) for answer in answers):
            new, self._whole = (*new, self._whole), None
        return new

    def _remember(self, key: bytes, outgoing: list[Outgoing]) -> None:
        self._said[key] = outgoing
        while len(self._said) > _AT_HAND:
            del self._said[next(iter(self._said))]

    def _say(self, message: Message, charges: tuple[Charge, ...], size: int) -> None:
        match message.body:
            case Ask(question=question):
                if self.party.error is not None:
                    words = f"there is no part of this site: {self.party.error}"
                    self._on_event(Event("said", self._above, words))
                    self._refusals.write(words)
                    return
                cost = (
                    ", ".join(f"{charge.label} at mu {charge.mu:.4g}" for charge in charges) or "nothing new is charged"
                )
                stage = f"{question.stage} {question.step + 1}".strip()
                self._on_event(Event("said", self._above, f"{stage}: {size:,} bytes; {cost}"))
            case Brief(step=step) if step != self._last_step:
                self._last_step = step
                self._on_event(Event("asked", self._above, f"masks: {step}"))
            case Done():
                self._on_event(Event("over", self._above, "the answer is here"))
            case _:
                pass


def _is_refusal(message: Message) -> bool:
    """Whether it says that there is no part: when the site has been mended there may be one."""
    return isinstance(message.body, Decline) or (isinstance(message.body, Return) and message.body.data == DECLINED)
