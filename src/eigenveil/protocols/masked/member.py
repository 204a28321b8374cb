"""`MaskedMember`: a site whose parts leave under masks, so that the hub learns the sum over the survivors and nothing else.

In each turn it gives one masked part, signs one list of survivors, and reveals once what it holds for that list. It takes the
hub's word for nothing: what a site acts on is signed by as many sites as there must be survivors.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from eigenveil.data.rows import Rows
from eigenveil.errors import BudgetExceeded, PeerError, require
from eigenveil.linalg import Array
from eigenveil.privacy import Share
from eigenveil.protocols.keys import KEY, Identity, digest, stream
from eigenveil.protocols.masked.evidence import Doubt
from eigenveil.protocols.masked.masks import add_masks
from eigenveil.protocols.masked.session import Session
from eigenveil.protocols.masked.terms import DECLINED, MaskedTerms, question_digest
from eigenveil.protocols.messages import Ask, Body, Brief, Done, Masked, Message, Return, Table
from eigenveil.protocols.party import Party, require_asked
from eigenveil.tasks import Question, Task

__all__ = ["MaskedMember", "list_digest", "words_digest"]


def words_digest(question: bytes, words: NDArray[np.uint64]) -> bytes:
    """What a site signs with its masked part."""
    return digest("words", question, np.ascontiguousarray(words, dtype="<u8").data.cast("B"))


def list_digest(question: bytes, alive: bytes, dead: bytes) -> bytes:
    """What survivors sign: who is in the sum for this question, and who is not."""
    return digest("survivors", question, alive, dead)


@final
@dataclass(slots=True, eq=False)
class _Round:
    """What this site has said in one round. Changes in place."""

    number: int
    question: Question
    digest: bytes
    doubt: Doubt
    masked: Masked | None = None
    alive: frozenset[str] = frozenset()
    listed: bytes = b""
    revealed: Return | None = None


@final
class MaskedMember(Party):
    """A site with `rows`, whose parts leave through `share` and under masks towards `hub`. Changes in place.

    Asked the same again in a round, it sends the same bytes. Another round has other masks, noise and charge. What goes wrong
    with its rows stays here, in `error`: the hub learns only that there will be no part. A site that may have to go on after it
    was stopped has a `secret`, of this study alone, which its keys and masks are made from; its noise never is.
    """

    def __init__(
        self,
        name: str,
        *,
        hub: str,
        task: Task[Any, Any, Any],
        rows: Rows,
        share: Share,
        terms: MaskedTerms,
        identity: Identity,
        secret: bytes | None = None,
    ) -> None:
        require(terms.roster.get(name) == identity.public, f"{name} is on the roster with another identity")
        agreed = (terms.lattice, terms.multiplier, terms.several)
        require(
            (share.lattice, share.multiplier, share.several) == agreed,
            f"the share of {name} must have the lattice, multiplier and number of sites of a person that are in the terms",
        )
        self._name, self._hub, self._task, self._rows = name, hub, task, rows
        self._share, self._terms, self._identity, self._secret = share, terms, identity, secret
        self._session: Session | None = None
        self._sessions = 0
        self._now: _Round | None = None
        self._setup: dict[str, tuple[bytes, Body]] = {}
        self.error: Exception | None = None
        self.result: tuple[Array, ...] | None = None

    @property
    def name(self) -> str:
        """Who this is."""
        return self._name

    def start(self) -> list[Message]:
        """Nothing: the hub speaks first."""
        return []

    @property
    def gave(self) -> bool:
        """Whether there is a part of this site's in the round that is open."""
        return self._now is not None and self._now.masked is not None

    def mend(self, rows: Rows) -> None:
        """Other rows in the place of those that no part could be made of."""
        self._rows, self.error = rows, None

    def receive(self, message: Message) -> list[Message]:
        """The answer to a question, or to a step between questions."""
        if message.sender != self._hub:
            raise PeerError(message.sender, "is not the hub of this site")
        if self.result is not None:
            raise PeerError(message.sender, "asked again after the answer")
        match message.body:
            case Done(round=round_, arrays=arrays) if round_ >= self._round:
                self.result = arrays
                return []
            case Ask() as ask:
                answer = self._part(ask)
            case Brief() as brief if brief.step in _STEPS:
                answer = self._step(brief)
            case body:
                raise PeerError(message.sender, f"sent {type(body).__name__} to a site in round {self._round}")
        return [Message(self._name, self._hub, answer)]

    @property
    def _round(self) -> int:
        return max(-1 if self._now is None else self._now.number, -1 if self._session is None else self._session.first)

    def _part(self, ask: Ask) -> Body:
        session, now = self._session, self._now
        if session is None or not session.covers(ask.round) or ask.round >= self._terms.most_rounds:
            raise PeerError(self._hub, f"asked in round {ask.round}, for which no keys are agreed on")
        self._require_round(ask.round)
        if now is not None and now.number == ask.round:
            if not self._same_question(now, ask.question):
                raise PeerError(self._hub, f"asked two different questions in round {ask.round}")
        else:
            require_asked(self._task, ask.question, by=self._hub)
            now = self._now = self._opened(ask)
        if now.masked is None:
            now.masked = self._work(session, now)
        return self._declined(session, ask.round, "mask") if now.masked is None else now.masked

    def _opened(self, ask: Ask) -> _Round:
        asked = question_digest(ask.question)
        seed = None if self._secret is None else digest("looks", self._secret, ask.round, asked)
        return _Round(ask.round, ask.question, asked, Doubt(self._terms, seed))

    def recall(self, message: Message, said: list[Message]) -> None:
        """Steps are taken again, with the same secrets; a part is not made again."""
        match message.body, [one.body for one in said]:
            case Ask() as ask, [(Masked() | Return()) as answer]:
                if self._now is None or self._now.number != ask.round:
                    self._now = self._opened(ask)
                if isinstance(answer, Masked) and self._now.masked is None:
                    self._now.masked = answer
            case _:
                self.receive(message)

    def _declined(self, session: Session, round_: int, step: str) -> Return:
        """Signed, so that nobody on the way can say it for this site."""
        return Return(round_, step, DECLINED, (), session.sign(round_, step, digest("declined")))

    def _require_round(self, round_: int) -> None:
        if round_ < self._round:
            raise PeerError(self._hub, f"spoke of round {round_} in round {self._round}")

    def _same_question(self, now: _Round, question: Question) -> bool:
        return question.same(now.question)

    def _work(self, session: Session, now: _Round) -> Masked | None:
        try:
            task, question, fraction = self._task.as_sum(now.question)
            private = task.private(question, self._rows)
            words = self._share.of(private, label=task.label(question), share=task.share(question) * fraction)
            add_masks(words, session.masks(now.number), now.digest)
        except (ValueError, BudgetExceeded, OSError) as error:
            self.error = error
            return None
        self.error = None
        return Masked(now.number, words, session.sign(now.number, "mask", words_digest(now.digest, words)))

    def _step(self, brief: Brief) -> Body:
        if brief.round >= self._terms.most_rounds:
            raise PeerError(self._hub, f"spoke of round {brief.round}, and the study has {self._terms.most_rounds}")
        self._require_round(brief.round)
        try:
            return _STEPS[brief.step](self, brief)
        except ValueError as error:
            raise PeerError(self._hub, f"{error} (round {brief.round}, {brief.step})") from error

    # The exchange of keys.

    def _keys(self, brief: Brief) -> Body:
        session = self._session
        if session is None or (session.first, session.nonce) != (brief.round, brief.data):
            require(len(brief.data) == KEY, f"the name of a session has {KEY} bytes")
            require(self._round < brief.round, "this round has begun with other keys")
            require(self._sessions < self._terms.sessions, "keys have been exchanged as often as was agreed on")
            self._sessions += 1
            draw = None
            if self._secret is not None:
                draw = stream(digest("session", self._secret, self._sessions, brief.round, brief.data))
            session = self._session = Session(self._terms, self._name, self._identity, brief.data, brief.round, draw)
            self._setup = {}
        return self._returned(session, brief, session.introduce())

    def _packets(self, brief: Brief) -> Body:
        session = self._begun(brief)
        return self._once(brief, lambda: self._shared_out(session, brief))

    def _shared_out(self, session: Session, brief: Brief) -> Body:
        shared = session.share_out(brief.table)
        if shared is None:
            return self._declined(session, brief.round, brief.step)
        return self._returned(session, brief, *shared)

    def _roster(self, brief: Brief) -> Body:
        session = self._begun(brief)
        return self._once(brief, lambda: self._enrolled(session, brief))

    def _enrolled(self, session: Session, brief: Brief) -> Body:
        what = session.enrol(brief.data, brief.table)
        if what is None:
            return self._declined(session, brief.round, brief.step)
        return Return(brief.round, brief.step, b"", (), session.sign(brief.round, "roll", what))

    def _roster_claim(self, brief: Brief) -> Body:
        session = self._begun(brief)
        require(len(session.roster) > 0, "there is no roster that could be signed")
        return self._returned(session, brief, session.doubt.look(brief.data))

    def _seal(self, brief: Brief) -> Body:
        session = self._begun(brief)
        if not session.sealed:
            session.seal(brief.table)
        return self._returned(session, brief, session.receipts())

    def _begun(self, brief: Brief) -> Session:
        session = self._session
        require(session is not None and session.first == brief.round, "no session has begun in this round")
        assert session is not None
        return session

    def _once(self, brief: Brief, answer: "Callable[[], Body]") -> Body:
        """The answer to a step of the exchange of keys; the same again to the same, and an error for another."""
        asked = return_digest(brief.data, brief.table)
        if brief.step not in self._setup:
            self._setup[brief.step] = (asked, answer())
        before, said = self._setup[brief.step]
        require(before == asked, "this step was taken before, with something else")
        return said

    def _returned(self, session: Session, brief: Brief, data: bytes, table: Table = ()) -> Return:
        signature = session.sign(brief.round, brief.step, return_digest(data, table))
        return Return(brief.round, brief.step, data, table, signature)

    # The end of a round.

    def _survivors(self, brief: Brief) -> Body:
        session, now = self._given(brief)
        size = self._terms.bytes_of_bits
        alive, dead = brief.data[:size], brief.data[size:]
        listed = list_digest(now.digest, alive, dead)
        self._require_one_list(now, listed)
        named = self._terms.named(alive)
        self._require_apart(named, self._terms.named(dead))
        self._require_whole(named, self._terms.named(dead), session.roster)
        self._require_enough(named)
        self._require_me(named)
        now.alive, now.listed = named, listed
        return Return(brief.round, brief.step, b"", (), session.sign(brief.round, brief.step, listed))

    def _require_one_list(self, now: _Round, listed: bytes) -> None:
        require(now.listed in (b"", listed), "a second list of survivors: a masked part serves one")

    def _require_apart(self, alive: frozenset[str], dead: frozenset[str]) -> None:
        require(not alive & dead, "a site is listed both alive and dead")

    def _require_whole(self, alive: frozenset[str], dead: frozenset[str], roster: frozenset[str]) -> None:
        require(alive | dead == roster, "the list is not of those who take part")

    def _require_enough(self, alive: frozenset[str]) -> None:
        least = self._terms.survivors
        require(len(alive) >= least, f"{len(alive)} survivors are listed, and {least} must be")

    def _require_me(self, alive: frozenset[str]) -> None:
        require(self._name in alive, "this site gave its part and is listed dead")

    def _list_claim(self, brief: Brief) -> Body:
        session, now = self._given(brief)
        require(now.listed != b"", "there is no list of survivors that could be signed")
        return self._returned(session, brief, now.doubt.look(brief.data))

    def _open(self, brief: Brief) -> Body:
        session, now = self._given(brief)
        require(now.listed != b"", "there is no list of survivors to go by")
        if now.revealed is None:
            self._require_list_signed(session, now, brief.table)
            now.revealed = self._returned(session, brief, session.reveal(brief.round, now.alive))
        return now.revealed

    def _require_list_signed(self, session: Session, now: _Round, signatures: Table) -> None:
        now.doubt.require_signed(signatures, session.said(now.number, "survivors", now.listed), among=now.alive)

    def _given(self, brief: Brief) -> tuple[Session, _Round]:
        session, now = self._session, self._now
        require(
            session is not None and now is not None and now.number == brief.round and now.masked is not None,
            "this site has given no part in this round",
        )
        assert session is not None and now is not None
        return session, now


_STEPS: Final = {
    "keys": MaskedMember._keys,
    "packets": MaskedMember._packets,
    "roll": MaskedMember._roster,
    "roll claim": MaskedMember._roster_claim,
    "seal": MaskedMember._seal,
    "survivors": MaskedMember._survivors,
    "list claim": MaskedMember._list_claim,
    "open": MaskedMember._open,
}


def return_digest(data: bytes, table: Table) -> bytes:
    """Of what a message holds: a site signs it with an answer that is not a statement in itself."""
    return digest("return", data, *(piece for entry in table for piece in entry))
