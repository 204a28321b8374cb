"""`DurableSite`: one round of a site over the network. An answer and its charge are in the ledger before it leaves.

    | state   | what happens                             | written to the ledger | what leaves    | next state       |
    |---------|------------------------------------------|-----------------------|----------------|------------------|
    | waiting | a message that was answered before       | nothing               | the same bytes | waiting          |
    | waiting | a message that is refused                | a note                | nothing        | waiting          |
    | waiting | a message that the party accepts         | nothing yet           | nothing yet    | ahead            |
    | ahead   | the ledger commits                       | charges and bytes     | the answer     | waiting, or over |
    | ahead   | the commit fails, or the answer is       | nothing               | nothing        | ahead: any more  |
    |         | larger than the study allows             |                       |                | is an error      |
    | any     | the process ends, and is started again   | nothing: it is read   | nothing        | waiting, or over |

"Ahead" means that the party has said something that the ledger does not have. The only way out is a new process, whose
party is made from the ledger: what was never committed never left, so making it again is safe. "Over" follows when the
committed message was the hub's final result. A message is refused if it is malformed, in another's name, one question
too many, a result that cannot be one, or out of order for the party.

`SiteAgent` makes it and `Runner` calls it. tests/network/kills kills a site before and after each commit and each send.
"""

from typing import Final, final

from eigenveil.core.ledger import Charge
from eigenveil.errors import PeerError, ProtocolError
from eigenveil.estimators.federated.parties import Parties
from eigenveil.ledger.durable import DurableLedger, Opened
from eigenveil.network.agents.durable.party import DurableParty, Event, OnEvent, Outgoing, Repeats, opened
from eigenveil.network.agents.durable.refusals import Refusals, is_refusal
from eigenveil.network.study.parties import found_in
from eigenveil.protocols import Ask, Brief, Done, Give, Member, Message
from eigenveil.protocols.masked import MaskedMember
from eigenveil.protocols.party import require_plain
from eigenveil.protocols.wire import MessageLimits, decode, encode

__all__ = ["DurableSite"]

# How often a study may be resumed on top of what it asks. Each time a question is asked and answered once more.
_RESUMED: Final = 50


@final
class DurableSite(DurableParty):
    """The messages between a site and the hub or node `above` it. Changes in place.

    `limits` are for what comes, and `most` is the longest answer in bytes that is accepted above. `whole` is for studies in
    which the hub adds the noise. The site's first part is then charged with all that the study may cost. `stretch` multiplies
    each charge of the party, for people who have rows at other sites too.
    """

    def __init__(
        self,
        party: Member | MaskedMember,
        parties: Parties,
        ledger: DurableLedger,
        joined: Opened,
        *,
        study: str,
        above: str,
        limits: MessageLimits,
        most: int,
        whole: Charge | None,
        stretch: float,
        on_event: OnEvent,
    ) -> None:
        self.party: Member | MaskedMember = party
        self._durable_ledger, self._study, self._above = ledger, study, above
        self._limits, self._most_said, self._on_event = limits, most, on_event
        self._parties = parties
        self._ledger = parties.ledgers.get(party.name)
        self._whole, self._stretch = whole, stretch
        self._number = len(joined.steps)
        masked = parties.masked
        # What an honest hub asks, four times over: room for restarts, and still a bound on what fills the disk.
        honest = parties.most_questions if masked is None else 4 * masked.most_rounds + 6 * masked.sessions
        self._most = _RESUMED + 4 * honest
        self._refusals = Refusals(ledger, study, on_event)
        # Whether the party has said something that the ledger does not have.
        self._ahead = False
        self._said = Repeats()
        self._last_step = ""
        self._read_back(joined)

    def _read_back(self, joined: Opened) -> None:
        """Bring the party to where the ledger ends, without computing or charging anything again."""
        for step in joined.steps:
            said = [decode(raw) for raw in step.said]
            if not any(map(is_refusal, said)):
                outgoing = [(message.receiver, raw) for message, raw in zip(said, step.said, strict=True)]
                self._said.add(step.came, outgoing)
            self.party.recall(decode(step.came, limits=self._limits), said)
            # The charge for the whole study is due once, whichever step it was in.
            if self._whole in step.charges:
                self._whole = None

    @property
    def over(self) -> bool:
        """Whether the final result is here."""
        return self.party.result is not None

    def begin(self) -> list[Outgoing]:
        """Nothing: a site waits to be asked."""
        return []

    def wait_over(self) -> list[Outgoing]:
        """Nothing: a site has no deadline of its own."""
        return []

    def rejoined(self, other: str) -> list[Outgoing]:
        """Nothing: the hub or node above asks for what it lacks."""
        return []

    def take(self, sender: str, data: bytes) -> list[Outgoing]:
        """The answer to a message, which is in the ledger when this returns."""
        if self._ahead:
            raise ProtocolError("an answer of this site could not be written to its ledger: start the site again")
        # The same bytes again, after a lost connection say. Fresh noise on the same question would cost a second time.
        if sender == self._above and (repeated := self._said.to(data)) is not None:
            return repeated
        try:
            # All checks come before the party moves: a refused message must leave no trace in it.
            message = opened(data, sender=sender, me=self.party.name, limits=self._limits)
            self._require_answer(message)
            self._require_few(message)
            before = 0 if self._ledger is None else len(self._ledger.charges)
            answers = self.party.receive(message)
        except PeerError as error:
            # No reply: the sender must not learn why, and the site goes on waiting.
            self._refusals.note(error)
            return []
        # From here until the commit the party knows more than the disk: any error must end this process.
        self._ahead = True
        said = [encode(answer) for answer in answers]
        if any(len(raw) > self._most_said for raw in said):
            raise ProtocolError(
                f"an answer of this site has {max(map(len, said))} bytes, and {self._most_said} are the most that this study "
                "needs. Nothing was charged and nothing was sent"
            )
        charges = self._charges(before, answers)
        # The step's number makes a second process on the same ledger fail here instead of charging twice.
        self._durable_ledger.commit(self._study, self._number, came=data, said=said, charges=charges)
        self._ahead = False
        self._number += 1
        outgoing = [(answer.receiver, raw) for answer, raw in zip(answers, said, strict=True)]
        # A site that had no part may have one after it was repaired, so its refusal is not repeated from memory.
        if not any(is_refusal(answer) for answer in answers):
            self._said.add(data, outgoing)
        self._say(message, charges, sum(map(len, said)))
        return outgoing

    def _require_few(self, message: Message) -> None:
        """Refuse a flood of questions. Repeating a question in other bytes costs no budget, but it fills the disk."""
        # The result is exempt: a study that reached its end must be able to end.
        if self._number >= self._most and not isinstance(message.body, Done):
            raise PeerError(message.sender, f"has asked {self._most} times, more often than this study needs")

    def _require_answer(self, message: Message) -> None:
        """Refuse a final result that cannot be one, before it ends the study."""
        if isinstance(message.body, Done):
            try:
                require_plain(message.body.arrays)
                found_in(self._parties, message.body.arrays)
            except ValueError as error:
                raise PeerError(message.sender, f"sent an invalid result: {error}") from error

    def _charges(self, before: int, answers: list[Message]) -> tuple[Charge, ...]:
        """What these answers cost: new charges of the party, or all of the study where the hub adds the noise."""
        charged = () if self._ledger is None else self._ledger.charges[before:]
        new = tuple(Charge(charge.label, charge.mu * self._stretch) for charge in charged)
        # Only a `Give` carries sums. Keys and refusals are not charged.
        if self._whole is not None and any(isinstance(answer.body, Give) for answer in answers):
            new, self._whole = (*new, self._whole), None
        return new

    def _say(self, message: Message, charges: tuple[Charge, ...], size: int) -> None:
        match message.body:
            case Ask(question=question):
                if self.party.error is not None:
                    words = f"this site has no part to give: {self.party.error}"
                    self._on_event(Event("said", self._above, words))
                    self._refusals.write(words)
                    return
                cost = ", ".join(f"{charge.label} at mu {charge.mu:.4g}" for charge in charges) or "no new charge"
                stage = f"{question.stage} {question.step + 1}".strip()
                self._on_event(Event("said", self._above, f"{stage}: {size:,} bytes; {cost}"))
            case Brief(step=step) if step != self._last_step:
                self._last_step = step
                self._on_event(Event("asked", self._above, f"masks: {step}"))
            case Done():
                self._on_event(Event("over", self._above, "the result is here"))
            case _:
                pass
