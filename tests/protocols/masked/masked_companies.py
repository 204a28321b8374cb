"""Small companies whose sums are masked, and an evil hub:

it holds all messages, says what it likes to whom, and takes masks off.
"""

import random
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pytest import MonkeyPatch

import eigenveil.protocols.masked.dealing as evidence_module
import eigenveil.protocols.masked.graph as masks_module
import eigenveil.protocols.masked.session as session_module
from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Ledger
from eigenveil.core.noise import Noise
from eigenveil.core.rows import Block
from eigenveil.data.rows import DenseRows
from eigenveil.errors import PeerError
from eigenveil.linalg import Array
from eigenveil.methods.covariance import CovarianceSum
from eigenveil.methods.power import PowerIteration
from eigenveil.privacy.lattice import Lattice, Share
from eigenveil.protocols.keys import KEY, SIGNATURE, Identity, agree, digest, private_key, public_of
from eigenveil.protocols.masked.dealing import HashTree, drawn
from eigenveil.protocols.masked.graph import MaskGraph, add_masks, mask_graph
from eigenveil.protocols.masked.hub import SecureAggregationRound, SecureAggregator
from eigenveil.protocols.masked.member import MaskedMember
from eigenveil.protocols.masked.session import Keyring, SharePool, pair_purpose, roster_of
from eigenveil.protocols.masked.shamir import PRIME, SHARE_BYTES, Joiner
from eigenveil.protocols.masked.terms import DECLINED, MaskedTerms, PublicKeys, question_digest
from eigenveil.protocols.messages import Ask, Body, Masked, Message, StepReply, StepRequest, Table
from eigenveil.protocols.party import Party
from eigenveil.protocols.star.hub import Hub
from eigenveil.protocols.star.rounds import Terms, star
from eigenveil.tasks.base import Question
from protocols.star.companies import DIM, DOMAIN, EXACT, NEAR, RANK, AnyTask, begin, picture, table

Words = NDArray[np.uint64]
# Two disjoint sets of these holders can each put a secret back: the signed list is all that stands in the way of that.
SPARSE = MaskGraph(holders=6, threshold=3, loss=0, failure=0.0, abort=0.0, complete=False)
# A claim of which a quarter is false passes with probability (3/4)^80 < 1e-9.
CHECKS = 80
# Whose part an evil hub is after.
VICTIM = "site 0"


def covariance() -> CovarianceSum:
    return CovarianceSum(DOMAIN, NEAR)


def power(rounds: int = 2) -> PowerIteration:
    return PowerIteration(domain=DOMAIN, neighbours=NEAR, begin=begin(), shares=(1 / rounds,) * rounds, rank=RANK)


@dataclass(frozen=True)
class MaskedCompany:
    """All parties of one masked run, and what a test knows of them."""

    task: AnyTask
    hub: Hub[Any]
    masking: SecureAggregator
    members: dict[str, MaskedMember]
    ledgers: dict[str, Ledger]
    terms: MaskedTerms
    rows: dict[str, Array]
    identities: dict[str, Identity]

    @property
    def parties(self) -> dict[str, Party]:
        return {self.hub.name: self.hub, **self.members}

    @property
    def names(self) -> list[str]:
        return list(self.members)

    def part(self, name: str, question: Question | None = None) -> Words:
        """What a site's first part is before masks, noise and all: its noise is seeded, so it can be made twice."""
        task, inner, fraction = self.task.as_sum(self.task.ask(self.task.start()) if question is None else question)
        share = share_of(self.terms, self.names.index(name))
        private = task.private(inner, DenseRows(self.rows[name]))
        return share.of(private, label="again", share=task.share(inner) * fraction)

    def gram(self, names: Iterable[str]) -> Array:
        """The sum of these sites' Gram matrices, the plain way, of rows on their grid."""
        unit = DOMAIN.unit
        assert unit is not None
        whole = [DOMAIN.whole(Block(self.rows[name]), unit=unit, squared=True) * unit for name in names]
        found: Array = sum((rows.T @ rows for rows in whole), np.zeros((DIM, DIM)))
        return found


def share_of(terms: MaskedTerms, seed: int, ledger: Ledger | None = None) -> Share:
    lattice = terms.lattice
    if ledger is None and lattice.gaussian is not None:
        ledger = Ledger(epsilon=lattice.gaussian.epsilon, delta=lattice.gaussian.delta)
    return Share(lattice=lattice, ledger=ledger, noise=Noise.seeded(seed), multiplier=terms.multiplier)


def drawn_from(patch: MonkeyPatch, seed: int) -> None:
    """All randomness of keys, seeds, shares, holders and sessions from a seed, so that it can be had twice."""
    draws = random.Random(seed)
    source = type("Source", (), {"urandom": staticmethod(draws.randbytes)})
    for module in (session_module, evidence_module):
        patch.setattr(module, "os", source)
    patch.setattr(Identity, "fresh", classmethod(lambda cls: cls(draws.randbytes(KEY))))


def masked_terms(
    identities: Mapping[str, Identity],
    *,
    survivors: int,
    colluders: int = 1,
    graph: MaskGraph | None = None,
    private: bool = False,
    rounds: int = 4,
    most_rounds: int = 8,
    sessions: int = 4,
    bent: Mapping[str, Any] | None = None,
) -> MaskedTerms:
    """Terms that fit together, but for what is `bent`: those fields are put in behind the back of their checks."""
    sites = len(identities)
    if graph is None:
        graph = mask_graph(sites, survivors=survivors, colluders=colluders, failure=0.0)
    lattice, multiplier = Lattice.exact(sites=sites), 1.0
    if private:
        lattice = Lattice(
            budget=Budget(1.0, 1e-6),
            sites=sites,
            survivors=survivors,
            colluders=colluders,
            # Room for how rarely false claims pass where a site looks at some signatures only.
            failure=0.0 if graph.complete else 5e-8,
        )
        assert lattice.gaussian is not None
        # Half of mu^2 for each of two rounds of all of it.
        multiplier = 2.0 / lattice.gaussian.mu
    terms = MaskedTerms(
        study="a test",
        roster={name: identity.public for name, identity in identities.items()},
        survivors=survivors,
        colluders=colluders,
        graph=graph,
        rounds=rounds,
        most_rounds=most_rounds,
        lattice=lattice,
        multiplier=multiplier,
        checks=0 if graph.complete else CHECKS,
        sessions=sessions,
    )
    for name, value in (bent or {}).items():
        # Weaker than anybody may agree on: so that one check can be seen to fail where others would stand behind it.
        object.__setattr__(terms, name, value)
    return terms


def masked_company(
    sites: int = 7,
    survivors: int = 5,
    *,
    task: AnyTask | None = None,
    identities: Mapping[str, Identity] | None = None,
    retries: int = 4,
    seed: int = 0,
    **more: Any,
) -> MaskedCompany:
    """Sites with rows and fresh identities, around an honest hub that no test has to use."""
    task = covariance() if task is None else task
    names = [f"site {place}" for place in range(sites)]
    identities = {name: Identity.fresh() for name in names} if identities is None else identities
    terms = masked_terms(identities, survivors=survivors, **more)
    rng = np.random.default_rng(seed)
    rows = {name: table(rng) for name in names}
    ledgers: dict[str, Ledger] = {}
    if terms.lattice.gaussian is not None:
        spend = terms.lattice.gaussian
        ledgers = {name: Ledger(epsilon=spend.epsilon, delta=spend.delta) for name in names}
    members = {
        name: MaskedMember(
            name,
            hub="hub",
            task=task,
            rows=DenseRows(rows[name]),
            share=share_of(terms, place, ledgers.get(name)),
            terms=terms,
            identity=identities[name],
        )
        for place, name in enumerate(names)
    }
    masking = SecureAggregator(terms, task)
    hub: Hub[Any] = Hub(task, star(names).below["hub"], EXACT, terms=Terms(quorum=survivors, retries=retries), exchanges=masking)
    return MaskedCompany(task, hub, masking, members, ledgers, terms, rows, dict(identities))


def sparse_company(sites: int = 12, survivors: int = 8, **more: Any) -> MaskedCompany:
    """Where each site has a few holders."""
    return masked_company(sites, survivors, **({"graph": SPARSE} | more))


@dataclass
class EvilHub:
    """Drives real sites, each as it likes, and keeps all it sees. `refused` says who refused what."""

    them: MaskedCompany
    nonce: bytes = bytes(KEY)
    first: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    signed_keys: dict[str, bytes] = field(default_factory=dict)
    shown: dict[str, dict[str, bytes]] = field(default_factory=dict)
    bundles: dict[str, dict[str, bytes]] = field(default_factory=dict)
    rosters: dict[str, bytes] = field(default_factory=dict)
    under_roster: dict[bytes, dict[str, bytes]] = field(default_factory=dict)
    words: dict[tuple[str, int], Words] = field(default_factory=dict)
    asked: dict[tuple[str, int], bytes] = field(default_factory=dict)
    told: dict[tuple[str, int], bytes] = field(default_factory=dict)
    under_list: dict[tuple[int, bytes], dict[str, bytes]] = field(default_factory=dict)
    shares: dict[tuple[str, str, int], dict[int, bytes]] = field(default_factory=dict)
    # Private mask keys that the hub has by other ways than shares: by the public half.
    private: dict[bytes, bytes] = field(default_factory=dict)

    @property
    def terms(self) -> MaskedTerms:
        return self.them.terms

    @property
    def session(self) -> bytes:
        return self.terms.session(self.nonce, self.first)

    def bound(self, name: str) -> bytes:
        """What everything that a site says and masks is bound to, once it has signed a roster."""
        # As the sites have it, whatever a test has made of it.
        bind: Callable[[bytes, bytes], bytes] = vars(session_module)["bound_to"]
        return bind(self.session, digest("roster", self.rosters[name]))

    def say(self, name: str, body: Body) -> Body | None:
        """What a site answers; None if it refuses, or declines."""
        try:
            (answer,) = self.them.members[name].receive(Message("hub", name, body))
        except PeerError as error:
            assert error.peer == "hub"
            self.refused[name] = "; ".join(filter(None, [self.refused.get(name), error.why]))
            return None
        body = answer.body
        return None if isinstance(body, StepReply) and body.data == DECLINED else body

    def statement(self, name: str, round_: int, step: str, data: bytes = b"", table: Table = ()) -> StepReply | None:
        answer = self.say(name, StepRequest(round=round_, step=step, data=data, table=table))
        assert answer is None or isinstance(answer, StepReply)
        return answer

    # The exchange of keys.

    def exchange(self, names: Collection[str] | None = None) -> "EvilHub":
        """As an honest hub would."""
        self.introduce(names)
        self.share_out()
        self.enrol()
        self.seal()
        return self

    def introduce(self, names: Collection[str] | None = None) -> None:
        for name in self.them.names if names is None else names:
            answer = self.statement(name, self.first, "keys", self.nonce)
            if answer is not None:
                self.signed_keys[name] = answer.data + answer.signature

    def public(self, name: str) -> PublicKeys:
        return self._read(name, self.signed_keys[name])

    def _read(self, name: str, signed: bytes) -> PublicKeys:
        return PublicKeys.read(self.terms, self.terms.places[name], signed[:-SIGNATURE])

    def near(self, name: str) -> dict[str, bytes]:
        """The keys that are a site's business."""
        place, mine = self.terms.places[name], self.public(name).holders
        return {
            other: signed
            for other, signed in self.signed_keys.items()
            if other != name and (place in self.public(other).holders or self.terms.places[other] in mine)
        }

    def share_out(self, keys: Callable[[str], Mapping[str, bytes]] | None = None) -> None:
        """Show each site the keys it should see, or those that `keys` says."""
        for name in self.signed_keys:
            show = self.near(name) if keys is None else keys(name)
            answer = self.statement(name, self.first, "packets", b"", tuple(show.items()))
            if answer is not None:
                self.shown[name], self.bundles[name] = dict(show), dict(answer.table)

    def enrol(
        self,
        roster: Callable[[str], Mapping[str, bytes]] | None = None,
        bundles: Callable[[str, Mapping[str, bytes]], Mapping[str, bytes]] | None = None,
    ) -> None:
        """Have each site sign the roster of all whose bundles came, or of the keys that `roster` says."""
        for name in self.shown:
            listed = {other: self.signed_keys[other] for other in self.bundles} if roster is None else roster(name)
            data = roster_of(self.terms, {other: signed[:-SIGNATURE] for other, signed in listed.items()})
            place = self.terms.places[name]
            dealers = [o for o, raw in self.shown[name].items() if o in listed and place in self._read(o, raw).holders]
            message: Mapping[str, bytes] = {o: self.bundles.get(o, {}).get(name, b"") for o in dealers}
            if bundles is not None:
                message = bundles(name, message)
            answer = self.statement(name, self.first, "roster", data, tuple(message.items()))
            if answer is not None:
                self.rosters[name] = data
                self.under_roster.setdefault(data, {})[name] = answer.signature

    def seal(self, names: Collection[str] | None = None) -> None:
        for name in self.rosters if names is None else names:
            signatures = self.under_roster[self.rosters[name]]
            self.evidence(name, self.first, "roster claim", "seal", signatures, self._named(self.rosters[name]))

    def _named(self, roster: bytes) -> frozenset[str]:
        return self.terms.named(roster[: self.terms.bytes_of_bits])

    def evidence(
        self, name: str, round_: int, claim: str, step: str, signatures: Mapping[str, bytes], among: Collection[str]
    ) -> StepReply | None:
        """Show that enough have signed; where a site looks at some only, claim as many signatures as it takes and hope."""
        if self.terms.checks == 0:
            return self.statement(name, round_, step, b"", tuple(signatures.items()))
        padding = [other for other in self.terms.roster if other in among and other not in signatures]
        padded = {other: signature for other, signature in signatures.items() if other in among}
        for other in padding[: max(0, self.terms.survivors - len(padded))]:
            padded[other] = bytes(SIGNATURE)
        listed = tuple((other, padded[other]) for other in self.terms.roster if other in padded)
        tree = HashTree(listed)
        wish = self.statement(name, round_, claim, self.terms.bits(padded) + tree.root)
        if wish is None:
            return None
        places = drawn(wish.data, self.terms.checks, len(listed))
        return self.statement(name, round_, step, b"", tuple((listed[at][0], listed[at][1] + tree.path(at)) for at in places))

    # A round.

    def ask(self, round_: int = 0, names: Collection[str] | None = None, question: Question | None = None) -> dict[str, Words]:
        question = self.them.task.ask(self.them.task.start()) if question is None else question
        got: dict[str, Words] = {}
        for name in self.them.names if names is None else names:
            answer = self.say(name, Ask(round_, question))
            if answer is not None:
                assert isinstance(answer, Masked)
                got[name] = self.words[name, round_] = answer.limbs
                self.asked[name, round_] = question_digest(question)
        return got

    def tell(self, alive: Collection[str], dead: Collection[str] | None = None, *, to: Collection[str], round_: int = 0) -> None:
        """Tell some sites a list of survivors. What they sign is kept."""
        everybody = set().union(*(self._named(roster) for roster in self.rosters.values()))
        dead = everybody - set(alive) if dead is None else dead
        data = self.terms.bits(alive) + self.terms.bits(dead)
        for name in to:
            answer = self.statement(name, round_, "survivors", data)
            if answer is not None:
                self.told[name, round_] = data
                self.under_list.setdefault((round_, data), {})[name] = answer.signature

    def open(self, names: Collection[str], round_: int = 0) -> None:
        """Have these sites reveal what they hold for the list they were last told."""
        for name in names:
            data = self.told.get((name, round_))
            if data is None:
                continue
            alive = self.terms.named(data[: self.terms.bytes_of_bits])
            signatures = self.under_list[round_, data]
            answer = self.evidence(name, round_, "list claim", "open", signatures, alive)
            if answer is not None:
                self.learn(name, round_, alive, answer.data)

    def dealers(self, name: str) -> list[str]:
        """Those of whose secrets a site holds shares, as far as the hub let it know."""
        place, named = self.terms.places[name], self._named(self.rosters[name])
        return [
            other
            for other in self.terms.roster
            if other in named
            and (other == name or (other in self.shown[name] and place in self._read(other, self.shown[name][other]).holders))
        ]

    def learn(self, name: str, round_: int, alive: Collection[str], data: bytes) -> None:
        point = 1 + self.terms.places[name]
        for at, dealer in enumerate(self.dealers(name)):
            share = data[SHARE_BYTES * at : SHARE_BYTES * (at + 1)]
            if int.from_bytes(share, "big") < PRIME:
                self.shares.setdefault((dealer, "seed" if dealer in alive else "key", round_), {})[point] = share

    def collude(self, name: str) -> None:
        """Take all that a site knows: its keys, and its shares of others' secrets for all rounds."""
        session = self.them.members[name]._session
        assert session is not None
        self.private |= {public_of(key): key for key in session._keys}
        rounds = self.terms.rounds
        for dealer, (pieces, _) in session._held.items():
            for at, piece in enumerate(pieces):
                kind = "seed" if at < rounds else "key" if at < 2 * rounds else "blind"
                key = (dealer, kind, self.first + at % rounds)
                self.shares.setdefault(key, {})[1 + self.terms.places[name]] = piece

    # What comes of it.

    def seed(self, name: str, round_: int = 0) -> bytes | None:
        """The seed of a site's own mask, if enough of it has been revealed."""
        expected = self.public(name).seeds[round_ - self.first]
        return self._joined(name, "seed", round_, lambda found: public_of(found) == expected)

    def key(self, name: str, public: bytes, round_: int = 0) -> bytes | None:
        """A site's mask key, if it is known."""
        known = self.private.get(public)
        return known or self._joined(name, "key", round_, lambda found: public_of(found) == public)

    def _joined(self, name: str, kind: str, round_: int, fits: Callable[[bytes], bool]) -> bytes | None:
        held, threshold = self.shares.get((name, kind, round_), {}), self.terms.graph.threshold
        if len(held) < threshold:
            return None
        found = Joiner([*held], threshold=threshold).join(held)
        return found if fits(found) else None

    def bare(self, *group: str, round_: int = 0) -> Words | None:
        """The sum over a group with all masks off, None where a mask stays on."""
        at = round_ - self.first
        total: Words = np.sum([self.words[name, round_] for name in group], axis=0, dtype=np.uint64)
        for name in group:
            masks: list[tuple[bytes, bool]] = []
            seed = self.seed(name, round_)
            if seed is None:
                return None
            masks.append((digest("own mask", self.bound(name), round_, seed), False))
            mine, place = self.public(name).keys[at], self.terms.places[name]
            named = self._named(self.rosters[name])
            for other, signed in self.shown[name].items():
                if other not in named or self._cancels(name, other, group, round_):
                    continue
                theirs, there = self._read(other, signed).keys[at], self.terms.places[other]
                purpose = pair_purpose(self.bound(name), round_, place, there)
                if (private := self.key(name, mine, round_)) is not None:
                    masks.append((agree(private_key(private), theirs, purpose), not place < there))
                elif (private := self.key(other, theirs, round_)) is not None:
                    masks.append((agree(private_key(private), mine, purpose), not place < there))
                else:
                    return None
            add_masks(total, masks, self.asked[name, round_])
        return total

    def _mask_for(self, name: str, round_: int) -> bytes:
        """What a key that is all zeros makes of the question that a site was asked."""
        make: Callable[..., bytes] = vars(masks_module)["digest"]
        return make("mask", bytes(KEY), self.asked[name, round_])

    def _cancels(self, name: str, other: str, group: Collection[str], round_: int) -> bool:
        """Whether two of a group put on the mask between them both."""
        return (
            other in group
            and self._mask_for(name, round_) == self._mask_for(other, round_)
            and self.rosters[name] == self.rosters[other]
            and self.shown[name][other] == self.signed_keys[other]
            and self.shown[other].get(name) == self.signed_keys[name]
        )


# For attacks.


def nothing(*_: Any, **__: Any) -> None:
    """In the place of a check."""


def same(words: Words | None, *parts: Words) -> bool:
    """Whether words are the sum of parts, to the last bit."""
    return words is not None and bool((words == np.sum(parts, axis=0, dtype=np.uint64)).all())


def total(them: MaskedCompany, names: Collection[str]) -> Words:
    found: Words = np.sum([them.part(name) for name in names], axis=0, dtype=np.uint64)
    return found


def began(make: Callable[..., MaskedCompany], **more: Any) -> EvilHub:
    """Keys exchanged and all parts in."""
    hub = EvilHub(make(**more)).exchange()
    hub.ask()
    assert hub.refused == {}
    return hub


def holders_of(hub: EvilHub, name: str) -> list[str]:
    return [other for other in hub.them.names if hub.terms.places[other] in hub.public(name).holders]


def others(hub: EvilHub, *names: str) -> list[str]:
    return [name for name in hub.them.names if name not in names]


def masks_for_any_question(patch: MonkeyPatch) -> None:
    """Masks that are the same whatever was asked, so that a check that stands before them can be seen to fail."""
    patch.setattr(masks_module, "digest", lambda kind, key, asked: key)


def other_question(them: MaskedCompany) -> Question:
    """One that the task might ask as well, in the place of its first."""
    question = them.task.ask(them.task.start())
    return Question(question.step, (np.ascontiguousarray(question.arrays[0][:, ::-1]),), question.stage)


def pieces_of(bundle: bytes) -> list[bytes]:
    """The shares in a bundle, or in what a holder reveals."""
    return [bundle[at : at + SHARE_BYTES] for at in range(0, len(bundle), SHARE_BYTES)]


def take_every_share(now: SecureAggregationRound, revealed: dict[str, bytes], alive: Any) -> SharePool:
    """In the place of `_pooled`: nobody compares a share with its digest."""
    keys, pool = now._keys, SharePool(now._terms.graph.threshold, now._keys.id)
    for holder, data in revealed.items():
        for dealer, share in zip(keys.dealers(holder), pieces_of(data), strict=True):
            pool.add(dealer, 1 + keys.places[holder], share)
    return pool


def confirm_everything(keys: Keyring, name: str, receipts: bytes) -> None:
    """In the place of `confirm`: nobody reads the receipts."""
    for dealer in keys.dealers(name):
        keys.confirmed.setdefault(dealer, set()).add(name)


def join_anything(now: SecureAggregationRound, pool: SharePool, name: str, expected: bytes) -> bytes:
    """In the place of `_joined`: nobody compares a secret with its public key."""
    return next(pool.secrets(name))


def deep(thing: Any) -> Any:
    """`companies.picture` for masked members: keys, shares and all, but for what never changes."""
    if isinstance(thing, Hub):
        if isinstance(thing._now, SecureAggregationRound) and thing._now._keys.roster:
            # Found out when it is first wanted, from the roster alone: so that it has been.
            thing._now._keys.dealers(thing._now._keys.roster[0])
        # What makes its rounds can be called, and a picture has nothing of what can be called.
        return picture((thing, vars(thing._exchanges)))
    if isinstance(thing, MaskedMember):
        kept = {key: value for key, value in vars(thing).items() if key not in ("_terms", "_identity", "_share")}
        now, session = thing._now, thing._session
        seen = {key: value for key, value in kept.items() if key not in ("_now", "_session")}
        inner = None
        if session is not None:
            inner = {k: v for k, v in vars(session).items() if k not in ("_terms", "_identity", "_bundles")}
            inner["_bundles"] = session._bundles.private_numbers().private_value
        charges = None if thing._share.ledger is None else thing._share.ledger.charges
        round_ = None if now is None else {slot: getattr(now, slot) for slot in now.__slots__}
        return picture((seen, _open_check(inner), _open_check(round_), charges))
    return picture(thing)


def _open_check(fields: dict[str, Any] | None) -> Any:
    if fields is None:
        return None
    return {
        key: (value._seed, value._claim) if type(value).__name__ == "SignatureCheck" else value for key, value in fields.items()
    }
