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

from collections.abc import Callable
from typing import final

from eigenveil.core.ledger import Charge
from eigenveil.errors import PeerError, ProtocolError
from eigenveil.estimators.federated.parties import Parties
from eigenveil.ledger.durable import DurableLedger, Opened
from eigenveil.network.agents.durable.party import Cause, Event, OnEvent, Outgoing
from eigenveil.network.agents.durable.steps import Asked, LedgerSteps
from eigenveil.network.study.parties import found_in
from eigenveil.protocols import Ask, Brief, Done, Give, Member, Message
from eigenveil.protocols.masked import MaskedMember
from eigenveil.protocols.party import require_plain
from eigenveil.protocols.wire import MessageLimits, decode, encode

__all__ = ["DurableSite"]


@final
class DurableSite(Asked):
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
        masked = parties.masked
        questions = parties.most_questions if masked is None else masked.most_messages
        in_ledger = LedgerSteps(ledger, study, number=len(joined.steps), questions=questions, on_event=on_event)
        super().__init__(in_ledger, above=above, unwritten="an answer", limits=limits, on_event=on_event)
        self.party: Member | MaskedMember = party
        self._parties, self._most_said = parties, most
        self._ledger = parties.ledgers.get(party.name)
        self._whole, self._stretch = whole, stretch
        self._last_step = ""
        self._read_back(joined)

    def _read_back(self, joined: Opened) -> None:
        """Bring the party to where the ledger ends, without computing or charging anything again."""
        for step in joined.steps:
            said = [decode(raw) for raw in step.said]
            outgoing = [(message.receiver, raw) for message, raw in zip(said, step.said, strict=True)]
            self._in_ledger.remember(step.came, said, outgoing)
            self.party.recall(decode(step.came, limits=self._limits), said)
            # The charge for the whole study is due once, whichever step it was in.
            if self._whole in step.charges:
                self._whole = None

    def _answer(self, cause: Cause, message: Message, step: Callable[[], list[Message]]) -> list[Outgoing]:
        # All checks come before the party moves: a refused message must leave no trace in it.
        self._require_answer(message)
        self._in_ledger.require_few(message)
        before = 0 if self._ledger is None else len(self._ledger.charges)
        answers = step()
        self._in_ledger.is_ahead = True
        outgoing = [(answer.receiver, encode(answer)) for answer in answers]
        said = [raw for _, raw in outgoing]
        if any(len(raw) > self._most_said for raw in said):
            raise ProtocolError(
                f"an answer of this site has {max(map(len, said))} bytes, and {self._most_said} are the most that this study "
                "needs. Nothing was charged and nothing was sent"
            )
        charges = self._charges(before, answers)
        self._in_ledger.commit(cause.data, said, charges)
        self._in_ledger.remember(cause.data, answers, outgoing)
        self._report(message, charges, sum(map(len, said)))
        return outgoing

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

    def _report(self, message: Message, charges: tuple[Charge, ...], size: int) -> None:
        body = message.body
        if isinstance(body, Done):
            self._on_event(Event("over", self._above, "the result is here"))
        elif isinstance(body, Brief) and body.step != self._last_step:
            self._last_step = body.step
            self._on_event(Event("asked", self._above, f"masks: {body.step}"))
        elif isinstance(body, Ask) and self.party.error is not None:
            words = f"this site has no part to give: {self.party.error}"
            self._on_event(Event("said", self._above, words))
            self._in_ledger.log(words)
        elif isinstance(body, Ask):
            cost = ", ".join(f"{charge.label} at mu {charge.mu:.4g}" for charge in charges) or "no new charge"
            stage = f"{body.question.stage} {body.question.step + 1}".strip()
            self._on_event(Event("said", self._above, f"{stage}: {size:,} bytes; {cost}"))
