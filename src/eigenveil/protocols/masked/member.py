"""`MaskedMember`: a site whose parts leave under masks, so that the hub learns the sum over the survivors and nothing else.

The site never trusts the hub's word: before it acts on a roster or a list, at least t sites must have signed it. Here t is the
number of survivors agreed on. The site's state is the last step it has answered. The words are those on the wire; the steps in
brackets exist only where a site checks some of many signatures.

    | step           | the hub sends                 | the site checks                       | the site answers
    | keys           | a nonce                       | a later round, sessions left          | its public keys
    | packets        | its neighbours' public keys   | each is signed by its site            | sealed bundles, a `Dealing`
    | roster         | the roster, its own bundles   | itself, its holders, same keys, t     | its signature under the roster
    | [roster claim] | the signers, a hash root      | t signers, the only claim             | the seed of its draws
    | seal           | signatures under the roster   | t sites have signed                   | receipts for the bundles
    | Ask            | the question of a round       | a sealed session covers the round     | its masked part
    | survivors      | who is in the sum, who is not | the whole roster, itself in, t        | its signature under the list
    | [list claim]   | the signers, a hash root      | t signers, the only claim             | the seed of its draws
    | open           | signatures under the list     | t sites have signed                   | a share for each site on the list

`keys` to `seal` happen once a session; then each round goes from `Ask` to `open`. A later round, or `keys` in a later round, may
begin at any time. The same message gets the same bytes again. Another question, roster or list in the same round is a
`PeerError` and changes nothing, and so is a message for an earlier round. `Done` ends it all.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from eigenveil.core.rows import Rows
from eigenveil.errors import BudgetExceeded, PeerError, require
from eigenveil.linalg import Array
from eigenveil.privacy.lattice import Share
from eigenveil.protocols.keys import KEY, Identity, digest, stream
from eigenveil.protocols.masked.dealing import SignatureCheck
from eigenveil.protocols.masked.graph import add_masks
from eigenveil.protocols.masked.session import Session
from eigenveil.protocols.masked.terms import DECLINED, MaskedTerms, question_digest
from eigenveil.protocols.messages import Ask, Body, Done, Masked, Message, StepReply, StepRequest, Table
from eigenveil.protocols.party import AnyTask, Party, require_asked
from eigenveil.tasks.base import Question

__all__ = ["MaskedMember", "list_digest", "words_digest"]


def words_digest(question: bytes, limbs: NDArray[np.uint64]) -> bytes:
    """The digest that a site signs with its masked part."""
    return digest("words", question, np.ascontiguousarray(limbs, dtype="<u8").data.cast("B"))


def list_digest(question: bytes, alive: bytes, dead: bytes) -> bytes:
    """The digest that survivors sign: who is in the sum for this question, and who is not."""
    return digest("survivors", question, alive, dead)


@final
@dataclass(slots=True, eq=False, kw_only=True)
class _SiteRound:
    """What this site has said in one round. Changes in place."""

    number: int
    question: Question
    digest: bytes
    check: SignatureCheck
    masked: Masked | None = None
    alive: frozenset[str] = frozenset()
    listed: bytes = b""
    revealed: StepReply | None = None


@final
class MaskedMember(Party):
    """A site with `rows`, whose parts leave through `share` and under masks towards `hub`. Changes in place.

    Asked the same again in a round, it sends the same bytes. Another round has other masks, noise and charge. An error with its
    rows stays here, in `error`: the hub learns only that no part will come. A site that must survive a restart has a `secret`,
    for this study alone. Its keys and masks are derived from it; its noise never is. Where parts are made and charged before
    they are asked for, `made` returns the words of one.
    """

    def __init__(
        self,
        name: str,
        *,
        hub: str,
        task: AnyTask,
        rows: Rows | None = None,
        share: Share,
        terms: MaskedTerms,
        identity: Identity,
        secret: bytes | None = None,
        made: Callable[[Question], NDArray[np.uint64]] | None = None,
    ) -> None:
        super().__init__(name)
        require(terms.roster.get(name) == identity.public, f"{name} has another identity on the roster")
        # The hub reads the sum of all sites with one step, and the guarantee counts on the same noise from each.
        agreed = (terms.lattice, terms.multiplier, terms.several)
        require(
            (share.lattice, share.multiplier, share.several) == agreed,
            f"the share of {name} must have the lattice, multiplier and sites per person of the terms",
        )
        require((rows is None) == (made is not None), "a site has rows, or parts that were made before")
        self._hub, self._task, self._rows = hub, task, rows
        self._share, self._terms, self._identity, self._secret = share, terms, identity, secret
        self._made = self._fresh if made is None else made
        self._session: Session | None = None
        # How many exchanges of keys this site has begun. The keys of the next one depend on it.
        self.sessions = 0
        self._now: _SiteRound | None = None
        # The steps of the exchange of keys that were answered: the digest of the message, and the answer to repeat.
        self._setup: dict[str, tuple[bytes, Body]] = {}
        self.error: Exception | None = None
        self.result: tuple[Array, ...] | None = None

    @property
    def gave(self) -> bool:
        """Whether this site has given a part in the open round."""
        return self._now is not None and self._now.masked is not None

    def mend(self, rows: Rows) -> None:
        """Replace rows from which no part could be made."""
        self._rows, self.error = rows, None

    def receive(self, message: Message) -> list[Message]:
        if message.sender != self._hub:
            raise PeerError(message.sender, "is not the hub of this site")
        if self.result is not None:
            raise PeerError(message.sender, "asked again after the result")
        match message.body:
            # A `Done` of an earlier round is out of date.
            case Done(round=round_, arrays=arrays) if round_ >= self._round:
                self.result = arrays
                return []
            case Ask() as ask:
                answer = self._on_ask(ask)
            case StepRequest() as brief if brief.step in _STEPS:
                max_rounds = self._terms.most_rounds
                if brief.round >= max_rounds:
                    raise PeerError(self._hub, f"spoke of round {brief.round}, but the study has {max_rounds} rounds")
                self._require_round(brief.round)
                try:
                    answer = _STEPS[brief.step](self, brief)
                except ValueError as error:
                    raise PeerError(self._hub, f"{error} (round {brief.round}, {brief.step})") from error
            case body:
                raise PeerError(message.sender, f"sent {type(body).__name__} to a site in round {self._round}")
        return [Message(self.name, self._hub, answer)]

    @property
    def _round(self) -> int:
        return max(-1 if self._now is None else self._now.number, -1 if self._session is None else self._session.first)

    def _on_ask(self, ask: Ask) -> Body:
        session, now = self._session, self._now
        if session is None or not session.covers(ask.round) or ask.round >= self._terms.most_rounds:
            raise PeerError(self._hub, f"asked in round {ask.round}, for which no keys were exchanged")
        self._require_round(ask.round)
        if now is not None and now.number == ask.round:
            if not self._same_question(now, ask.question):
                raise PeerError(self._hub, f"asked two different questions in round {ask.round}")
        else:
            # The sensitivity that is charged holds only for questions that the task would ask.
            require_asked(self._task, ask.question, by=self._hub)
            now = self._now = self._opened(ask)
        # The first try, or one after a decline. A part that was given is never made again: that would be a second release
        # for one charge.
        if now.masked is None:
            now.masked = self._work(session, now)
        return self._declined(session, ask.round, "mask") if now.masked is None else now.masked

    def _opened(self, ask: Ask) -> _SiteRound:
        question_id = question_digest(ask.question)
        # Derived from the secret, so that a site that is started again asks to see the same signatures.
        seed = None if self._secret is None else digest("looks", self._secret, ask.round, question_id)
        return _SiteRound(number=ask.round, question=ask.question, digest=question_id, check=SignatureCheck(self._terms, seed))

    def recall(self, message: Message, replies: list[Message]) -> None:
        """Take the steps again, with the same secrets. A part is restored, not made again."""
        ask, answers = message.body, [answer.body for answer in replies]
        if not isinstance(ask, Ask) or len(answers) != 1 or not isinstance(answers[0], Masked | StepReply):
            self.receive(message)
            return
        if self._now is None or self._now.number != ask.round:
            self._now = self._opened(ask)
        if isinstance(answers[0], Masked) and self._now.masked is None:
            self._now.masked = answers[0]

    def _declined(self, session: Session, round_: int, step: str) -> StepReply:
        """Signed, so that no party on the way can decline for this site."""
        return StepReply(
            round=round_, step=step, data=DECLINED, table=(), signature=session.sign(round_, step, digest("declined"))
        )

    def _require_round(self, round_: int) -> None:
        if round_ < self._round:
            raise PeerError(self._hub, f"spoke of round {round_} in round {self._round}")

    def _same_question(self, now: _SiteRound, question: Question) -> bool:
        return question.same(now.question)

    def _work(self, session: Session, now: _SiteRound) -> Masked | None:
        try:
            limbs = self._made(now.question)
            add_masks(limbs, session.masks(now.number), now.digest)
        except (ValueError, BudgetExceeded, OSError) as error:
            self.error = error
            return None
        self.error = None
        return Masked(now.number, limbs, session.sign(now.number, "mask", words_digest(now.digest, limbs)))

    def _fresh(self, outer: Question) -> NDArray[np.uint64]:
        """The words of a part. The charge happens in `share.of`, before any number leaves this function."""
        task, question, fraction = self._task.as_sum(outer)
        assert self._rows is not None
        private = task.private(question, self._rows)
        return self._share.of(
            private, label=task.label(question), share=task.share(question) * fraction, slot=task.slot(question)
        )

    # The exchange of keys.

    def _keys(self, brief: StepRequest) -> Body:
        session = self._session
        # The same nonce again is the hub asking again, and gets the same keys.
        if session is None or (session.first, session.nonce) != (brief.round, brief.data):
            require(len(brief.data) == KEY, f"the nonce of a session must have {KEY} bytes")
            require(self._round < brief.round, "this round has begun with other keys")
            # A hub could begin sessions until a site draws the holders it wants; `MaskedTerms.failure` counts this many.
            require(self.sessions < self._terms.sessions, "keys were exchanged as often as agreed")
            self.sessions += 1
            draw = None
            if self._secret is not None:
                # The number of the session is in it: the same nonce in a later session must not give the same keys.
                draw = stream(digest("session", self._secret, self.sessions, brief.round, brief.data))
            session = self._session = Session(self._terms, self.name, self._identity, brief.data, brief.round, draw)
            self._setup = {}
        return self._returned(session, brief, session.raw)

    def _roster_claim(self, brief: StepRequest) -> Body:
        session = self._begun(brief)
        require(len(session.roster) > 0, "no roster has been signed yet")
        return self._returned(session, brief, session.check.challenge(brief.data))

    def _seal(self, brief: StepRequest) -> Body:
        session = self._begun(brief)
        if not session.sealed:
            session.seal(brief.table)
        return self._returned(session, brief, session.receipts())

    def _begun(self, brief: StepRequest) -> Session:
        session = self._session
        require(session is not None and session.first == brief.round, "no exchange of keys has begun in this round")
        assert session is not None
        return session

    def _once(self, brief: StepRequest, step: Callable[[Session], tuple[bytes, Table] | bytes | None]) -> Body:
        """The answer to a step of the exchange of keys. The same message gets it again; another one is an error.

        A step gives the contents of the answer, or what the site signs, or None: the site declines.
        """
        session, brief_digest = self._begun(brief), return_digest(brief.data, brief.table)
        if brief.step not in self._setup:
            outcome = step(session)
            if outcome is None:
                reply = self._declined(session, brief.round, brief.step)
            elif isinstance(outcome, bytes):
                reply = self._returned(session, brief, what=outcome)
            else:
                reply = self._returned(session, brief, *outcome)
            self._setup[brief.step] = (brief_digest, reply)
        before, answer = self._setup[brief.step]
        require(before == brief_digest, "this step was taken before, with other data")
        return answer

    def _returned(
        self, session: Session, brief: StepRequest, data: bytes = b"", table: Table = (), *, what: bytes | None = None
    ) -> StepReply:
        """An answer, signed: its own contents, or `what` it is about."""
        signature = session.sign(brief.round, brief.step, return_digest(data, table) if what is None else what)
        return StepReply(round=brief.round, step=brief.step, data=data, table=table, signature=signature)

    # The end of a round.

    def _survivors(self, brief: StepRequest) -> Body:
        session, now = self._open_round(brief)
        size = self._terms.bytes_of_bits
        alive, dead = brief.data[:size], brief.data[size:]
        listed = list_digest(now.digest, alive, dead)
        # Five checks, each against one attack that the tests carry out (test_masked_attacks.py).
        self._require_one_list(now, listed)
        named, dropped = self._terms.named(alive), self._terms.named(dead)
        self._require_apart(named, dropped)
        self._require_whole(named, dropped, session.roster)
        self._require_enough(named)
        self._require_me(named)
        # Recorded before it is signed, so that no second list can be.
        now.alive, now.listed = named, listed
        return self._returned(session, brief, what=listed)

    # By two lists the hub could ask for both the seed and the mask key of one site, and read its part.
    def _require_one_list(self, now: _SiteRound, listed: bytes) -> None:
        require(now.listed in (b"", listed), "a second list of survivors in one round")

    # A site on both lists could have its seed and its mask key revealed, which opens its part.
    def _require_apart(self, alive: frozenset[str], dead: frozenset[str]) -> None:
        require(not alive & dead, "a site is listed both as a survivor and as dropped out")

    # Sites that take no part could otherwise fill up a list of too few survivors.
    def _require_whole(self, alive: frozenset[str], dead: frozenset[str], roster: frozenset[str]) -> None:
        require(alive | dead == roster, "the list must name exactly the sites on the roster")

    # The noise in a sum is sized for this many survivors, less the colluders.
    def _require_enough(self, alive: frozenset[str]) -> None:
        min_survivors = self._terms.survivors
        require(len(alive) >= min_survivors, f"{len(alive)} survivors are listed, and at least {min_survivors} are needed")

    # Otherwise a site all of whose holders were listed as dropped out could be unmasked by them.
    def _require_me(self, alive: frozenset[str]) -> None:
        require(self.name in alive, "this site gave its part and is listed as dropped out")

    def _list_claim(self, brief: StepRequest) -> Body:
        session, now = self._open_round(brief)
        require(now.listed != b"", "no list of survivors has been signed yet")
        return self._returned(session, brief, now.check.challenge(brief.data))

    def _open(self, brief: StepRequest) -> Body:
        session, now = self._open_round(brief)
        require(now.listed != b"", "this site has signed no list of survivors")
        # Revealed once. Later calls repeat the same bytes.
        if now.revealed is None:
            self._require_list_signed(session, now, brief.table)
            now.revealed = self._returned(session, brief, session.reveal(brief.round, now.alive))
        return now.revealed

    def _require_list_signed(self, session: Session, now: _SiteRound, signatures: Table) -> None:
        now.check.require_signed(signatures, session.statement(now.number, "survivors", now.listed), among=now.alive)

    def _open_round(self, brief: StepRequest) -> tuple[Session, _SiteRound]:
        session, now = self._session, self._now
        require(
            session is not None and now is not None and now.number == brief.round and now.masked is not None,
            "this site has given no part in this round",
        )
        assert session is not None and now is not None
        return session, now


_STEPS: Final[Mapping[str, Callable[[MaskedMember, StepRequest], Body]]] = {
    "keys": MaskedMember._keys,
    "packets": lambda member, brief: member._once(brief, lambda session: session.share_out(brief.table)),
    "roster": lambda member, brief: member._once(brief, lambda session: session.enrol(brief.data, brief.table)),
    "roster claim": MaskedMember._roster_claim,
    "seal": MaskedMember._seal,
    "survivors": MaskedMember._survivors,
    "list claim": MaskedMember._list_claim,
    "open": MaskedMember._open,
}


def return_digest(data: bytes, table: Table) -> bytes:
    """Digest of an answer's contents, which a site signs where the answer is not a statement in itself."""
    return digest("return", data, *(piece for entry in table for piece in entry))
