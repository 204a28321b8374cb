"""`DurableSite`: a site's mail. The charge and the exact bytes of an answer are in the book before the answer is handed out.

Mail that comes again gets the bytes that are in the book. After a crash the party is made again from the book: what it had let
out is not made a second time.
"""

import hashlib
from typing import Final, final

from eigenveil.errors import PeerError, ProtocolError
from eigenveil.estimators.federated.parties import Parties
from eigenveil.network.agents.durable import DurableParty, Event, Letter, Tell, opened
from eigenveil.network.agents.refusals import Refusals
from eigenveil.network.ledger.durable import DurableLedger, Opened
from eigenveil.network.study.parties import found_in
from eigenveil.privacy import Charge
from eigenveil.protocols import Ask, Brief, Decline, Done, Envelope, Give, Member, Return
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
    """The mail between a site and who stands `above` it. Changes in place.

    `whole` is what the site is charged with its first part where others add the noise: all that the study may cost. A charge of
    the party is `stretch` times as much for a person, who may be at other sites as well.
    """

    def __init__(
        self,
        party: Member | MaskedMember,
        parties: Parties,
        book: DurableLedger,
        opened_book: Opened,
        *,
        study: str,
        above: str,
        limit: int,
        whole: Charge | None,
        stretch: float,
        tell: Tell,
    ) -> None:
        self.party: Member | MaskedMember = party
        self._book, self._study, self._above, self._limit, self._tell = book, study, above, limit, tell
        self._parties = parties
        self._ledger = parties.ledgers.get(party.name)
        self._whole, self._stretch = whole, stretch
        self._number = len(opened_book.entries)
        masked = parties.masked
        honest = parties.most_questions if masked is None else 4 * masked.most_turns + 6 * masked.sessions
        self._most = _RESUMED + 4 * honest
        self._refusals = Refusals(book, study, tell)
        # Whether the party has said something that is not in the book.
        self._ahead = False
        self._said: dict[bytes, list[Letter]] = {}
        self._last_step = ""
        for entry in opened_book.entries:
            said = [decode(raw, limit=limit) for raw in entry.said]
            if not any(map(_is_refusal, said)):
                letters = [(mail.receiver, raw) for mail, raw in zip(said, entry.said, strict=True)]
                self._remember(hashlib.sha256(entry.came).digest(), letters)
            self.party.recall(decode(entry.came, limit=limit), said)
            if self._whole in entry.charges:
                self._whole = None

    @property
    def over(self) -> bool:
        """Whether the answer is here."""
        return self.party.result is not None

    def begin(self) -> list[Letter]:
        """A site is asked."""
        return []

    def wait_over(self) -> list[Letter]:
        """A site waits for nothing in particular."""
        return []

    def rejoined(self, other: str) -> list[Letter]:
        """Who stands above asks for what it lacks."""
        return []

    def take(self, sender: str, data: bytes) -> list[Letter]:
        """The answer, which is in the book by then."""
        if self._ahead:
            raise ProtocolError("this site has answered what could not be written down, and must be started again")
        key = hashlib.sha256(data).digest()
        if sender == self._above and key in self._said:
            return self._said[key]
        try:
            mail = opened(data, sender=sender, me=self.party.name, limit=self._limit)
            self._require_answer(mail)
            self._require_few(mail)
            before = 0 if self._ledger is None else len(self._ledger.charges)
            answers = self.party.receive(mail)
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
        self._book.commit(self._study, self._number, came=data, said=said, charges=charges)
        self._ahead = False
        self._number += 1
        letters = [(answer.receiver, raw) for answer, raw in zip(answers, said, strict=True)]
        if not any(_is_refusal(answer) for answer in answers):
            self._remember(key, letters)
        self._say(mail, charges, sum(map(len, said)))
        return letters

    def _require_few(self, mail: Envelope) -> None:
        """Refuse to write down without end: the same question can be asked in ever new words, which costs nothing but room."""
        if self._number >= self._most and not isinstance(mail.body, Done):
            raise PeerError(mail.sender, f"has asked {self._most} times, more often than this study can take")

    def _require_answer(self, mail: Envelope) -> None:
        """Refuse an answer that cannot be one, before it is taken for the end of the study."""
        if isinstance(mail.body, Done):
            try:
                require_plain(mail.body.arrays)
                found_in(self._parties, mail.body.arrays)
            except ValueError as error:
                raise PeerError(mail.sender, f"sent an answer that cannot be one: {error}") from error

    def _charges(self, before: int, answers: list[Envelope]) -> tuple[Charge, ...]:
        """What these answers cost: new lines of the party's own ledger, or all of the study where the hub adds the noise."""
        lines = () if self._ledger is None else self._ledger.charges[before:]
        new = tuple(Charge(line.label, line.mu * self._stretch) for line in lines)
        if self._whole is not None and any(isinstance(answer.body, Give) for answer in answers):
            new, self._whole = (*new, self._whole), None
        return new

    def _remember(self, key: bytes, letters: list[Letter]) -> None:
        self._said[key] = letters
        while len(self._said) > _AT_HAND:
            del self._said[next(iter(self._said))]

    def _say(self, mail: Envelope, charges: tuple[Charge, ...], size: int) -> None:
        match mail.body:
            case Ask(question=question):
                if self.party.error is not None:
                    words = f"there is no part of this site: {self.party.error}"
                    self._tell(Event("said", self._above, words))
                    self._refusals.write(words)
                    return
                cost = (
                    ", ".join(f"{charge.label} at mu {charge.mu:.4g}" for charge in charges) or "nothing new is charged"
                )
                stage = f"{question.stage} {question.step + 1}".strip()
                self._tell(Event("said", self._above, f"{stage}: {size:,} bytes; {cost}"))
            case Brief(step=step) if step != self._last_step:
                self._last_step = step
                self._tell(Event("asked", self._above, f"masks: {step}"))
            case Done():
                self._tell(Event("over", self._above, "the answer is here"))
            case _:
                pass


def _is_refusal(mail: Envelope) -> bool:
    """Whether it says that there is no part: when the site has been mended there may be one."""
    return isinstance(mail.body, Decline) or (isinstance(mail.body, Return) and mail.body.data == DECLINED)
