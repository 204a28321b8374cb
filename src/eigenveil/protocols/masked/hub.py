"""The hub's side of masked sums: `SecureAggregator` for a study, `SecureAggregationRound` for one round.

The hub forwards bundles and adds up words that it cannot read. At the end of a round, holders reveal just the shares that remove
each site's masks from the sum. The steps, as they are called on the wire:

    keys -> packets -> roster -> [roster claim] -> seal -> mask -> survivors -> [list claim] -> open -> done
    |------------------ once a session -----------------|  |------------------ every round -----------------|

Steps in brackets exist only where a site checks some of many signatures. A step closes when every awaited site has answered, or
when the star's hub has waited long enough. The next step awaits only the sites that answered this one.

    | event                                                | effect
    | a step closes, enough sites answered                 | next step
    | a step closes, too few answered                      | the star's hub stalls, with `QuorumLost`
    | packets: shares do not fit the dealer's public keys  | the dealer is banned, and the step continues without it
    | seal: bundles are not what their dealer says         | failed, nothing charged; the dealer is banned
    | seal: a dealer and a holder contradict each other,   | failed, nothing charged; both are banned, or one of them if
    |   and the dealer's secrets could be lost by it       |   it contradicts more sites than may collude
    | open: too few shares, and sites have not answered    | the star's hub stalls, with `QuorumLost`
    | open: the same after a resume, in sums without noise | failed
    | open: too few valid shares, all have answered        | failed; liars, and sites that contradict each other, are banned
    | open: no set of shares fits the public keys          | failed; the dealer is banned
    | resume, failed, or in a step before `mask`           | a new round, with new keys
    | resume in `mask` or later                            | the same step waits again for the missing sites
    | resume in `mask`, second time, and others could join | a new round, with new keys

The next round begins at `mask` while the session has keys for it, and enough of the sites asked are on its roster.
"""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Final, Literal, NoReturn, assert_never, final, get_args

import numpy as np
from numpy.typing import NDArray

from eigenveil.errors import PeerError, ProtocolError, QuorumLost
from eigenveil.protocols.keys import KEY, agree, digest, private_key, public_of
from eigenveil.protocols.masked.dealing import MARK, Dealing, HashTree, drawn, share_mark
from eigenveil.protocols.masked.graph import add_masks
from eigenveil.protocols.masked.member import list_digest, return_digest, words_digest
from eigenveil.protocols.masked.session import Keyring, SharePool, bundle_size, pair_purpose
from eigenveil.protocols.masked.shamir import SHARE_BYTES, is_share
from eigenveil.protocols.masked.terms import DECLINED, MaskedTerms, PublicKeys, question_digest
from eigenveil.protocols.messages import Ask, Body, Decline, Masked, Message, StepReply, StepRequest, Table
from eigenveil.protocols.party import AnyTask
from eigenveil.protocols.star.rounds import Exchange
from eigenveil.tasks.base import Question

__all__ = ["SecureAggregationRound", "SecureAggregator"]

# These are words on the wire, which the version of the format fixes. People see those of `_WORDS`.
Step = Literal["keys", "packets", "roster", "roster claim", "seal", "mask", "survivors", "list claim", "open", "done"]
_STEPS: Final[tuple[Step, ...]] = get_args(Step)
# Until the first masked part nothing is charged, so a round that stops here can simply be asked anew.
_BEFORE_PARTS: Final[tuple[Step, ...]] = ("keys", "packets", "roster", "roster claim", "seal")
# Only where there are so many signatures that a site checks some of them.
_CLAIMS: Final[tuple[Step, ...]] = ("roster claim", "list claim")
_WORDS: Final[dict[Step, str]] = {
    "keys": "exchange of keys",
    "packets": "sharing of secrets",
    "roster": "roster of participants",
    "roster claim": "signatures under the roster",
    "seal": "seal of the roster",
    "mask": "masked parts",
    "survivors": "list of survivors",
    "list claim": "signatures under the list",
    "open": "unmasking",
    "done": "",
}

# A round that one site misses is worth an exchange of keys between so many pairs. Among up to eleven sites none misses two.
_ROUND_WORTH: Final = 128
# Exchanges for the sake of a site that comes back and then says nothing. Without a limit it would use up those of all sites.
_TRIES: Final = 2


@final
class SecureAggregator:
    """Makes the exchanges of a study: a `NewExchange` for a hub. Changes in place: keys serve many rounds.

    `liars` are the sites that have certainly lied, with the reason, as long as no more collude than was agreed. A dealer says
    what it sent, and shows that it fits its public keys (`masked.dealing`). Holders give receipts before anything is charged, and
    what they reveal is compared with both. From later rounds are `banned` liars that the round could not do with, and sites that
    contradict each other about a bundle. A hub that must survive a restart has a `secret`, from which it derives the same
    nonces again. A stream has so many `slots`, and continues without keys while too few sites are there.
    """

    def __init__(self, terms: MaskedTerms, task: AnyTask, *, secret: bytes | None = None, slots: int | None = None) -> None:
        self.terms, self.task, self._secret, self._slots = terms, task, secret, slots
        self.keys: Keyring | None = None
        self.liars: dict[str, str] = {}
        self.banned: set[str] = set()
        self._sessions = 0
        # Sites that can be reached again since keys were last exchanged.
        self._back: set[str] = set()
        # How often keys were exchanged for the sake of each, in vain.
        self._tried: dict[str, int] = {}
        # Since the last exchange began, in this round: who has answered. And how many exchanges before it led to nothing.
        self.answered: set[str] = set()
        self._began, self._failures = 0, 0

    def __call__(self, round_: int, question: Question, recipients: Sequence[str], gone: Set[str]) -> "SecureAggregationRound":
        if round_ >= self.terms.most_rounds:
            raise ProtocolError(f"all {self.terms.most_rounds} rounds that the study allows are used up; begin another study")
        # Checked first, so that a study that cannot continue does not use up a session.
        left = sum(name not in self.banned for name in recipients)
        if self.banned and left < self.terms.survivors:
            liars = (f"{name} ({self.liars.get(name, 'contradicts others')})" for name in sorted(self.banned)[:10])
            raise ProtocolError(
                f"{left} sites are left without {', '.join(liars)}, and a sum needs {self.terms.survivors}; begin another study"
            )
        if self.keys is not None:
            self._failures = 0
            for name in self.keys.roster:
                self._tried.pop(name, None)
        # Keys serve a number of rounds, and only while enough of the sites asked have them. A failed round drops them.
        if not self._keys_are_usable(round_, recipients):
            waiting = self._waiting(recipients)
            # An exchange for a slot that would fail like the last one is refused: a long outage must not use up all that are
            # allowed. After each failure twice as many slots pass, up to those that one exchange serves: as many exchanges were
            # planned for. Once enough have been heard of since the last one began, the next begins at once.
            following = self._began + min(2 ** max(self._failures - 1, 0), self.terms.rounds)
            enough = len(self.answered | waiting) >= self.terms.survivors and bool(waiting)
            if self._slots is not None and self._failures > 0 and round_ < following and not enough:
                raise ProtocolError(
                    f"too few sites were there when keys were last exchanged, and {self.terms.survivors} are needed. The next "
                    f"exchange is in slot {following + 1}, or as soon as enough sites are back"
                )
            for name in waiting:
                self._tried[name] = self._tried.get(name, 0) + 1
            self.keys, self._back, self.answered = None, set(), set()
            self._sessions, self._failures, self._began = self._sessions + 1, self._failures + 1, round_
        if self._sessions > self.terms.sessions:
            raise ProtocolError(
                f"all {self.terms.sessions} exchanges of keys that the study allows are used up; begin another study"
            )
        return SecureAggregationRound(self, round_, question, recipients, gone)

    def mark_reachable(self, name: str) -> bool:
        """Note that a site can be reached again: the next round may exchange keys anew, for its sake. Whether that is news."""
        is_noted = name in self._back or (self.keys is not None and name in self.keys.roster)
        if is_noted or name not in self.terms.roster:
            return False
        self._back.add(name)
        return True

    def facts(self) -> dict[str, Any]:
        """What a hub between two rounds must know besides its keys, as plain values."""
        first = None if self.keys is None else self.keys.first
        lists = {"banned": sorted(self.banned), "back": sorted(self._back), "answered": sorted(self.answered)}
        numbers = {"sessions": self._sessions, "began": self._began, "failures": self._failures}
        return {"liars": dict(self.liars), "tried": dict(self._tried), "keys": first, **numbers, **lists}

    def restore(self, facts: Mapping[str, Any], stored: StepReply | None) -> None:
        """Go on from these facts and the keys that were `stored`. Without those keys, new ones are exchanged."""
        self._sessions, self.liars = int(facts["sessions"]), dict(facts["liars"])
        self.banned, self._back, self.answered = (set(facts[name]) for name in ("banned", "back", "answered"))
        self._tried, self._began, self._failures = dict(facts["tried"]), int(facts["began"]), int(facts["failures"])
        if stored is not None and stored.round == facts["keys"]:
            self.keys = Keyring.from_stored(self.terms, stored)

    def keyring(self, round_: int) -> Keyring:
        """A keyring for an exchange of keys that begins in this round."""
        nonce = None if self._secret is None else digest("nonce", self._secret, self._sessions, round_)
        return Keyring(self.terms, round_, nonce)

    def _keys_are_usable(self, round_: int, recipients: Sequence[str]) -> bool:
        """Whether the present keys serve this round and enough of the sites asked."""
        keys = self.keys
        if keys is None or not keys.first <= round_ < keys.first + self.terms.rounds:
            return False
        waiting = len(self._waiting(recipients))
        # A site that missed the exchange is here now and loses a round at a time. Another exchange costs every pair of sites.
        if waiting and waiting * (round_ - keys.first) * _ROUND_WORTH >= len(keys.roster) ** 2:
            # The rounds that are left may need as many exchanges as this. A slot has one round.
            left = (self.terms.most_rounds if self._slots is None else self._slots) - round_
            if self._sessions + math.ceil(left / self.terms.rounds) < self.terms.sessions:
                return False
        return sum(name in keys.roster for name in recipients) >= self.terms.survivors

    def _waiting(self, recipients: Sequence[str]) -> set[str]:
        """The sites asked that are back and have no keys, but for those that were silent when keys were exchanged for them."""
        roster = () if self.keys is None else self.keys.roster
        able = self._back - self.banned - set(roster)
        return {name for name in recipients if name in able and self._tried.get(name, 0) < _TRIES}


@final
class SecureAggregationRound(Exchange):
    """One round. Changes in place. Parts are added up as they come; nothing can be read until the end."""

    def __init__(
        self, masking: SecureAggregator, round_: int, question: Question, recipients: Sequence[str], gone: Set[str]
    ) -> None:
        self.round, self.question = round_, question
        self._masking, self._terms = masking, masking.terms
        self._recipients = tuple(recipients)
        self._task, self._inner, self._fraction = masking.task.as_sum(question)
        self._digest = question_digest(question)
        ready = masking.keys is not None
        self._keys = masking.keys if masking.keys is not None else masking.keyring(round_)
        self._step: Step = "mask" if ready else "keys"
        self._common: StepRequest | None = None
        # Those whose dealings do not fit their public keys: their answers count as declined.
        self._liars: set[str] = set()
        eligible = [name for name in recipients if name not in masking.banned]
        self._wait_for(name for name in eligible if not ready or name in self._keys.roster)
        # Modulo 2^64 the order of addition does not matter, so parts are added as they come.
        self._limbs = np.zeros(self._terms.size(self._task, self._inner), dtype=np.uint64)
        self._bundles: dict[str, dict[str, bytes]] = {}
        self._alive: tuple[str, ...] = ()
        self._total: NDArray[np.float64] | None = None
        self._signatures: Table = ()
        self._tree = HashTree((("", b""),))  # A placeholder until there are signatures.
        self._seeds: dict[str, bytes] = {}
        self._ask = Ask(round_, question, tuple(sorted(gone)))
        self._failed = self._reopened = False

    @property
    def name(self) -> str:
        lied = [name for name, answer in self._answers.items() if isinstance(answer, Decline) and name in self._liars]
        why = f", where {_listed(lied)} shared secrets that do not fit its signed keys" if lied else ""
        return _WORDS[self._step] + why

    @property
    def failed(self) -> bool:
        return self._failed and self._step not in _BEFORE_PARTS

    def _wait_for(self, names: Iterable[str]) -> None:
        self._await(names)
        self._common = None

    # What the hub says.

    def asks(self, sender: str, *, again: bool = False) -> list[Message]:
        names = [name for name, answer in self._answers.items() if answer is None or not again]
        return [Message(sender, name, self._ask if self._step == "mask" else self._brief(name)) for name in names]

    def _brief(self, name: str) -> StepRequest:
        """What this step asks of a site."""
        shared, keys = self._shared_brief(), self._keys
        if self._step == "packets":
            table = tuple((other, keys.signed[other]) for other in keys.near(name))
        elif self._step == "roster":
            listed = set(keys.roster)
            table = tuple((other, sent[name]) for other, sent in self._bundles.items() if other in listed and name in sent)
        elif self._step in ("seal", "open") and self._terms.checks > 0:
            # Each site drew its own places, so each gets other signatures, with their paths to the root.
            places = drawn(self._seeds[name], self._terms.checks, len(self._signatures))
            chosen = ((at, *self._signatures[at]) for at in places)
            table = tuple((signer, signature + self._tree.path(at)) for at, signer, signature in chosen)
        else:
            return shared
        return StepRequest(round=self.round, step=self._step, data=shared.data, table=table)

    def _shared_brief(self) -> StepRequest:
        """The message of this step, where it is the same for every site."""
        if self._common is None:
            keys, terms = self._keys, self._terms
            table: Table = ()
            match self._step:
                case "keys":
                    data = keys.nonce
                case "roster":
                    data = keys.roster_bytes()
                case "survivors":
                    data = terms.bits(self._alive) + terms.bits(set(keys.roster) - set(self._alive))
                case "roster claim" | "list claim":
                    data = terms.bits(name for name, _ in self._signatures) + self._tree.root
                case "packets" | "seal" | "mask" | "open" | "done":
                    data, table = b"", self._signatures
                case _:
                    assert_never(self._step)
            self._common = StepRequest(round=self.round, step=self._step, data=data, table=table)
        return self._common

    # What sites answer.

    def receive(self, sender: str, body: Body) -> None:
        # All checks come before any change: a refused answer leaves no trace.
        self._require_awaited(sender, body)
        if isinstance(body, StepReply) and body.step == self._step and body.data == DECLINED:
            # A decline counts only if its site signed it. Otherwise any party on the way could drop a site from the sum.
            self._require_signed(sender, digest("declined"), body.signature)
            body = Decline(self.round)
        else:
            self._require_sound(sender, body)
        if self._step == "packets" and isinstance(body, StepReply) and not self._keys.proves(sender, body):
            # It has signed this, so no other can have made it up. Nothing was charged, and nobody needs it.
            self._blame(sender, "shared secrets that do not fit its signed keys")
            self._liars.add(sender)
            body = Decline(self.round)
        if isinstance(body, Masked):
            np.add(self._limbs, body.limbs, out=self._limbs)
            # Its words are in the sum. Keeping them would take the memory of one part for each site.
            body = Masked(body.round, np.empty(0, dtype=np.uint64), body.signature)
        self._answers[sender] = body
        self._awaited -= 1
        self._masking.answered.add(sender)

    def _require_size(self, sender: str, body: Masked) -> None:
        if body.limbs.dtype != np.uint64 or body.limbs.shape != self._limbs.shape:
            raise PeerError(sender, f"sent a masked part that does not have {len(self._limbs)} words")

    def _require_sound(self, sender: str, body: Body) -> None:
        """Refuse an answer of the wrong kind or length, or without its sender's signature."""
        if self._step == "mask":
            if not isinstance(body, Masked):
                raise PeerError(sender, f"sent {type(body).__name__} where a masked part was due")
            self._require_size(sender, body)
            self._require_signed(sender, words_digest(self._digest, body.limbs), body.signature)
            return
        if not isinstance(body, StepReply) or body.step != self._step:
            raise PeerError(sender, f"sent {type(body).__name__} where an answer was due: {self.name}")
        try:
            self._read(sender, body)
        except ValueError as error:
            raise PeerError(sender, f"{self.name}: {error}") from error
        self._require_signed(sender, self._what(body), body.signature)

    def _what(self, body: StepReply) -> bytes:
        """The digest that a site signs in this step: what the step is about, or else all that it answers."""
        if self._step == "roster":
            return digest("roster", self._shared_brief().data)
        if self._step == "survivors":
            size, lists = self._terms.bytes_of_bits, self._shared_brief().data
            return list_digest(self._digest, lists[:size], lists[size:])
        return return_digest(body.data, body.table)

    def _require_signed(self, sender: str, what: bytes, signature: bytes) -> None:
        if not self._terms.signed(sender, self._keys.statement(self.round, self._step, what), signature):
            raise PeerError(sender, f"sent an answer without its valid signature: round {self.round}, {self.name}")

    def _read(self, sender: str, body: StepReply) -> None:
        """Refuse, with a `ValueError`, an answer with other contents than this step asks for."""
        keys, due, bundle = self._keys, 0, 0
        holders: list[str] = []
        match self._step:
            case "packets":
                holders = keys.holders(sender)
                Dealing.read(self._terms, 1 + len(holders), body.data)
                due, bundle = len(body.data), bundle_size(self._terms)
            case "seal":
                due = (KEY + MARK) * len(keys.dealers(sender))
            case "keys":
                PublicKeys.read(self._terms, keys.places[sender], body.data)
                due = len(body.data)
            case "roster claim" | "list claim":
                due = KEY
            case "open":
                due = SHARE_BYTES * len(keys.dealers(sender))
        # Lengths must be exact: the steps that follow slice these bytes by position.
        names = [name for name, _ in body.table]
        if len(body.data) != due or names != holders or any(len(piece) != bundle for _, piece in body.table):
            raise ValueError("the answer does not have the contents asked for")

    def sites(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if self._step == "done":
            present = set(self._alive)
        else:
            present = {name for name, answer in self._answers.items() if answer is not None and not isinstance(answer, Decline)}
        return tuple(n for n in self._recipients if n in present), tuple(n for n in self._recipients if n not in present)

    # From step to step.

    def onward(self) -> bool:
        """Go to the next step. After `open` the sum is there."""
        present, _ = self.sites()
        returns = {name: answer for name in present if isinstance(answer := self._answers[name], StepReply)}
        match self._step:
            case "keys":
                for name, answer in returns.items():
                    self._keys.public[name] = PublicKeys.read(self._terms, self._keys.places[name], answer.data)
                    self._keys.signed[name] = answer.data + answer.signature
            case "packets":
                self._bundles = {name: dict(answer.table) for name, answer in returns.items()}
                for name, answer in returns.items():
                    self._keys.take_dealing(name, answer)
                self._keys.enrol(name for name in self._terms.roster if name in returns)
            case "roster" | "survivors":
                # In the order of the roster: a site recomputes the places of its draws in this order.
                self._signatures = tuple((name, returns[name].signature) for name in self._terms.roster if name in returns)
                self._tree = HashTree(self._signatures)
            case "roster claim" | "list claim":
                self._seeds = {name: answer.data for name, answer in returns.items()}
            case "seal":
                self._bundles = {}
                for name, answer in returns.items():
                    self._keys.confirm(name, answer.data)
                # Here and not later: the next step charges the sites.
                self._require_bundles()
                self._masking.keys = self._keys
            case "mask":
                self._alive = tuple(name for name in self._terms.roster if name in present)
            case "open":
                self._unmask({name: answer.data for name, answer in returns.items()})
        self._step = _STEPS[_STEPS.index(self._step) + 1]
        if self._step in _CLAIMS and self._terms.checks == 0:
            self._step = _STEPS[_STEPS.index(self._step) + 1]
        self._wait_for(() if self._step == "done" else present)
        self._reopened = False
        return self._step != "done"

    def reopen(self) -> bool:
        """Wait again for the sites missing from this step, unless the round has failed.

        While keys are exchanged nothing has been charged, so all sites are asked anew. Later, sites off the roster may be able
        to replace those that do not come back. Then the second try begins again with new keys.
        """
        if self._failed or self._step in _BEFORE_PARTS:
            return False
        others = any(name not in self._keys.roster and name not in self._masking.banned for name in self._recipients)
        if self._step == "mask" and self._reopened and others:
            self._masking.keys = None
            return False
        self._reopened = True
        for name, answer in self._answers.items():
            if isinstance(answer, Decline):
                self._answers[name] = None
        self._awaited = sum(answer is None for answer in self._answers.values())
        return True

    def total(self) -> Any:
        return self._total

    # The masks come off.

    def _unmask(self, revealed: Mapping[str, bytes]) -> None:
        keys, round_, at = self._keys, self.round, self.round - self._keys.first
        alive = set(self._alive)
        pool = self._pooled(revealed, alive)
        masks: list[tuple[bytes, bool]] = []
        for name in keys.roster:
            self._require_shares(pool, name, revealed)
            if name in alive:
                seed = self._joined(pool, name, keys.public[name].seeds[at])
                masks.append((digest("own mask", keys.bound, round_, seed), False))
                continue
            private = private_key(self._joined(pool, name, keys.public[name].keys[at]))
            for other in keys.near(name):
                if other in alive:
                    i, j = keys.places[other], keys.places[name]
                    key = agree(private, keys.public[other].keys[at], pair_purpose(keys.bound, round_, i, j))
                    # The survivor added this mask if it comes first on the roster, so here it is subtracted, and the reverse.
                    masks.append((key, not i < j))
        add_masks(self._limbs, masks, self._digest)
        self._total = self._terms.read(self._limbs, self._task, self._inner, self._fraction)

    def _pooled(self, revealed: Mapping[str, bytes], alive: Set[str]) -> SharePool:
        """The shares that match their dealers' digests. A holder that confirmed a bundle and reveals another share has lied."""
        keys, pool = self._keys, SharePool(self._terms.graph.threshold, self._keys.id)
        at, rounds = self.round - keys.first, self._terms.rounds
        for holder, data in revealed.items():
            for index, dealer in enumerate(keys.dealers(holder)):
                share = data[SHARE_BYTES * index : SHARE_BYTES * (index + 1)]
                which = at if dealer in alive else rounds + at
                mark = share_mark(keys.id, 1 + keys.places[dealer], 1 + keys.places[holder], which, share)
                if mark == keys.marks[dealer][holder][which] and is_share(share):
                    pool.add(dealer, 1 + keys.places[holder], share)
                elif holder in keys.confirmed.get(dealer, ()):
                    self._masking.liars.setdefault(holder, "revealed other shares than it had confirmed")
        return pool

    def _require_bundles(self) -> None:
        """Stop before anything is charged, if a site has shared out its secrets so that they could be lost."""
        keys, before = self._keys, set(self._masking.banned)
        why = ""
        if denied := keys.denied():
            for name in denied:
                self._blame(name, "sent its holders other bundles than it said")
            why = f"{_listed(denied)} sent holders other bundles than announced"
        elif contested := keys.contested():
            why = "; ".join(self._ban_contradicted(contested))
        elif unconfirmed := keys.unconfirmed():
            why = f"too few holders have confirmed what {_listed(unconfirmed)} sent"
        if why:
            self._fail(())
            banned = sorted(self._masking.banned - before)
            left = f" without {_listed(banned)}" if banned else ""
            raise ProtocolError(
                f"round {self.round} ({self.name}): {why}. Nothing has been charged in this round. Resume to continue{left}, "
                "with new keys"
            )

    def _ban_contradicted(self, dealers: Iterable[str]) -> list[str]:
        """Ban liars because of these dealers and the holders that deny their bundles. Returns what to say of it.

        Each pair that is banned has a liar of its own, so no more honest sites are banned than there are liars.
        """
        false, banned, reasons = self._keys.false_deniers(), self._masking.banned, list[str]()
        for name in dealers:
            against = self._keys.deniers(name)
            sure = [holder for holder in against if holder in false]
            for holder in sure:
                self._blame(holder, "denied the bundles of honest sites")
                reasons.append(f"{holder} denies what honest sites sent")
            if name not in banned and not banned.intersection(against):
                banned |= {name, against[0]}
                reasons.append(f"{against[0]} and {name} contradict each other")
        # Many dealers may be denied by the same holder.
        return list(dict.fromkeys(reasons))

    def _require_shares(self, pool: SharePool, name: str, revealed: Mapping[str, bytes]) -> None:
        if pool.count(name) >= self._terms.graph.threshold:
            return
        missing = tuple(other for other in self._alive if other not in revealed)
        if not missing:
            self._give_up(pool, name)
        if self._reopened and not self._terms.lattice.private:
            # The hub has waited for them already, and without noise another round costs no privacy.
            self._fail(self._masking.liars)
            raise ProtocolError(
                f"round {self.round} ({self.name}): {', '.join(missing[:10])} have not come back, and the sum cannot be "
                "read without them. Resume to ask again, with new keys"
            )
        raise QuorumLost(
            missing,
            round_=self.round,
            stage=f"{self.name}: too few shares of the secret of {name} are left",
            answered=pool.count(name),
            quorum=self._terms.graph.threshold,
        )

    def _give_up(self, pool: SharePool, name: str) -> NoReturn:
        """Every survivor has answered, and too few shares are valid.

        If a dealer and a holder contradict each other, one of them has lied, and both are banned. This ends, because there are
        no more liars than may collude.
        """
        liars = self._masking.liars
        against = [] if name in liars else [holder for holder in self._keys.deniers(name) if holder not in liars]
        self._fail({*liars, *against, *([name] if against else [])})
        reasons = [f"{', '.join(liars)} revealed false shares"] if liars else []
        reasons += [f"{', '.join(against)} and {name} contradict each other"] if against else []
        raise ProtocolError(
            f"round {self.round} ({self.name}): {pool.count(name)} shares of the secret of {name} are valid, and "
            f"{self._terms.graph.threshold} are needed: {'; '.join(reasons) or 'its holders are gone'}. Resume to continue "
            "without these sites, with new keys, noise and charge"
        )

    def _joined(self, pool: SharePool, name: str, expected: bytes) -> bytes:
        """A site's secret, whose public half is `expected`, one of its public keys."""
        for at, secret in enumerate(pool.secrets(name)):
            # Shares that do not belong together can join to zero, which is no key.
            if any(secret) and public_of(secret) == expected:
                if at > 0:
                    # The shares are exactly as the site dealt them, so it has dealt false ones.
                    self._masking.liars.setdefault(name, "dealt shares that do not belong to one secret")
                return secret
        self._blame(name, "shared secrets that do not fit its signed keys")
        self._fail(())
        raise ProtocolError(
            f"round {self.round} ({self.name}): the secret that {name} shared is not the one of its signed keys, so the sum "
            "cannot be read. Resume to continue without it, with new keys, noise and charge"
        )

    def _blame(self, name: str, why: str) -> None:
        """Call a site a liar, and ban it from later rounds."""
        self._masking.liars[name] = why
        self._masking.banned.add(name)

    def _fail(self, culprits: Iterable[str]) -> None:
        """Give the round up, and ban these sites from later rounds."""
        # The roster of these keys has the culprits on it, so the next round needs new ones.
        self._failed, self._masking.keys = True, None
        self._masking.banned |= set(culprits)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:10])
