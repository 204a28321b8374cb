"""Sites that lie about secrets, their own or others': the right sum, or an end that names the liar and can be resumed.

Nobody honest is ever named or banned, as long as no more lie than may collude.
"""

import math
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eigenveil.protocols.masked.session as session_module
from eigenveil.errors import ProtocolError, QuorumLost
from eigenveil.protocols.keys import KEY
from eigenveil.protocols.masked.dealing import MARK, Dealing, ShareDigests, receipt
from eigenveil.protocols.masked.graph import MaskGraph
from eigenveil.protocols.masked.hub import SecureAggregationRound
from eigenveil.protocols.masked.session import Keyring, Session, SharePool
from eigenveil.protocols.masked.shamir import PRIME, SHARE_BYTES, value_at
from eigenveil.protocols.messages import Message, StepRequest, Table
from eigenveil.runtimes.local import Faults, LocalStar
from protocols.masked.masked_companies import (
    MaskedCompany,
    confirm_everything,
    drawn_from,
    join_anything,
    masked_company,
    nothing,
    pieces_of,
    sparse_company,
    take_every_share,
)
from protocols.masked.test_shamir import highest_first
from protocols.star.companies import krylov

Patch = pytest.MonkeyPatch
DEALER = "site 2"
# How many messages a site of a complete graph has got before it is asked for its part, and before it is to reveal shares.
BEFORE_MASK, BEFORE_OPEN = 4, 6


@pytest.fixture(autouse=True)
def _seeded(monkeypatch: Patch) -> None:
    drawn_from(monkeypatch, 4)


def process_of(them: MaskedCompany, **faults: Any) -> LocalStar:
    return LocalStar(them.hub, them.members.values(), faults=Faults(**faults), seed=0)


def require_right(them: MaskedCompany, result: Any) -> None:
    np.testing.assert_allclose(result, them.gram(them.hub.rounds[-1].answered), atol=1e-5)


def require_noisy(them: MaskedCompany, result: Any) -> None:
    """The sum with noise of the size that the terms say, and no mask."""
    error = result - them.gram(them.hub.rounds[-1].answered)
    question = them.task.ask(None)
    sensitivity = them.task.as_sum(question)[0].sensitivity(question)
    lattice, release = them.terms.lattice, {"mu": 1 / them.terms.multiplier, "size": error.size}
    step, deviation = (find(sensitivity, **release) for find in (lattice.step, lattice.deviation))
    assert 0 < np.abs(error).max() < 10 * deviation * math.sqrt(len(them.terms.roster)) * step


def charges(them: MaskedCompany) -> dict[str, int]:
    return {name: len(ledger.charges) for name, ledger in them.ledgers.items()}


# Ways to lie.


def add(share: bytes, number: int) -> bytes:
    return ((int.from_bytes(share, "big") + number) % PRIME).to_bytes(SHARE_BYTES, "big")


def false_shares(patch: Patch, liars: Collection[str], *, of: Collection[str] | None = None) -> None:
    """These holders reveal, properly signed, shares that are not what they were given, of everybody or of some."""
    reveal = Session.reveal

    def false(session: Session, round_: int, alive: frozenset[str]) -> bytes:
        raw = reveal(session, round_, alive)
        if session._name not in liars:
            return raw
        return b"".join(
            add(piece, 1 + session._index) if of is None or name in of else piece
            for name, piece in zip(session._dealers(), pieces_of(raw), strict=True)
        )

    patch.setattr(Session, "reveal", false)


def false_receipts(patch: Patch, liars: Collection[str], *, of: Collection[str] | None = None) -> None:
    """These holders say that they got something else than they did, from everybody else or from some."""
    receipts = Session.receipts

    def false(session: Session) -> bytes:
        raw = receipts(session)
        if session._name not in liars:
            return raw
        kept = {session._name} if of is None else set(session._dealers()) - set(of)
        said = [raw[at : at + KEY + MARK] for at in range(0, len(raw), KEY + MARK)]
        # Which bundle it was is not denied: that would only say that somebody changed it on its way.
        return b"".join(
            one if name in kept else bytes(KEY) + one[KEY:] for name, one in zip(session._dealers(), said, strict=True)
        )

    patch.setattr(Session, "receipts", false)


def wrong_secret(patch: Patch, liar: str) -> None:
    """A dealer that shares out other secrets than those it puts on its part."""
    share_out = Session.share_out

    def false(session: Session, signed_keys: Table) -> tuple[bytes, Table] | None:
        if session._name != liar:
            return share_out(session, signed_keys)
        seeds, keys = session._seeds, session._keys
        session._seeds, session._keys = [bytes(32)] * len(seeds), [bytes(32)] * len(keys)
        shared = share_out(session, signed_keys)
        session._seeds, session._keys = seeds, keys
        return shared

    patch.setattr(Session, "share_out", false)


def crooked_shares(patch: Patch, liar: str, points: Collection[int]) -> None:
    """A dealer whose shares at these points, as it sends them and says that it does, are on no one polynomial."""
    share_out = Session.share_out

    def false(session: Session, signed_keys: Table) -> tuple[bytes, Table] | None:
        if session._name != liar:
            return share_out(session, signed_keys)
        split = vars(session_module)["split"]

        def crooked(polynomials: Any, **more: Any) -> dict[int, list[bytes]]:
            shares = split(polynomials, **more)
            return {point: [add(s, point in points) for s in pieces] for point, pieces in shares.items()}

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(session_module, "split", crooked)
            return share_out(session, signed_keys)

    patch.setattr(Session, "share_out", false)


def other_bundles(patch: Patch, liar: str, to: Collection[str]) -> None:
    """A dealer that sends some holders other shares than it says."""
    bundle = Session._bundle

    def false(session: Session, name: str, text: bytes, public: bytes) -> bytes:
        if session._name == liar and name in to:
            text = text[:KEY] + b"".join(add(piece, 1) for piece in pieces_of(text[KEY:]))
        return bundle(session, name, text, public)

    patch.setattr(Session, "_bundle", false)


def junk_bundles(patch: Patch, liar: str, to: Collection[str]) -> None:
    """A dealer that sends some holders bundles, as long as they should be, that nobody can open."""
    bundle = Session._bundle

    def false(session: Session, name: str, text: bytes, public: bytes) -> bytes:
        sealed = bundle(session, name, text, public)
        return bytes(len(sealed)) if session._name == liar and name in to else sealed

    patch.setattr(Session, "_bundle", false)


# Holders.


@pytest.mark.parametrize("liars", [["site 0"], ["site 8"], ["site 0", "site 4"], ["site 0", "site 1", "site 2"]])
@pytest.mark.parametrize("dies", [{}, {"site 5": BEFORE_MASK}])
def test_holders_that_lie_change_nothing_and_each_of_them_is_named(
    liars: list[str], dies: dict[str, int], monkeypatch: Patch
) -> None:
    """Of nine, six shares make a secret, and three may be false."""
    if len(liars) == 3 and dies:
        return
    false_shares(monkeypatch, liars)
    them = masked_company(9, 6)
    process = process_of(them, dies=dies)
    require_right(them, process.run())
    assert process.refused == []
    assert set(them.hub.rounds[-1].answered) == set(them.names) - set(dies)
    assert set(them.masking.liars) == set(liars)
    assert them.masking.banned == set()


def test_where_shares_are_not_compared_a_holder_frames_a_dealer_and_then_spoils_the_sum(monkeypatch: Patch) -> None:
    false_shares(monkeypatch, ["site 0"])
    monkeypatch.setattr(SecureAggregationRound, "_pooled", take_every_share)
    them = masked_company(9, 6)
    # Other sets of shares still fit the public keys. But every dealer is named, and all are honest but the holder.
    require_right(them, process_of(them).run())
    assert set(them.masking.liars) == set(them.names)
    with monkeypatch.context() as one:
        one.setattr(SharePool, "_subsets", lambda *_: iter(()))
        them = masked_company(9, 6)
        with pytest.raises(ProtocolError, match="is not the one of its signed keys"):
            process_of(them).run()
    monkeypatch.setattr(SecureAggregationRound, "_joined", join_anything)
    them = masked_company(9, 6)
    with pytest.raises(AssertionError):
        require_right(them, process_of(them).run())


def test_a_holder_that_lied_is_asked_on_and_what_it_gives_counts(monkeypatch: Patch) -> None:
    """Its rows are as good as anybody's; what it reveals is not needed."""
    false_shares(monkeypatch, ["site 0"])
    them = masked_company(9, 6, task=krylov())
    result = process_of(them).run()
    assert set(them.masking.liars) == {"site 0"}
    assert all(round_.answered == tuple(them.names) and not round_.restarted for round_ in them.hub.rounds)
    values = np.linalg.eigvalsh(them.gram(them.names))[::-1][:2]
    np.testing.assert_allclose(result.values**2, values, rtol=1e-6)


def test_with_too_few_good_shares_the_liar_is_banned_and_a_new_round_is_asked(monkeypatch: Patch) -> None:
    """With only just enough survivors one false share spoils every secret. No dealer is blamed for that."""
    false_shares(monkeypatch, ["site 3"])
    them = masked_company(7, 5, private=True, retries=0)
    process = process_of(them, dies={"site 5": BEFORE_MASK, "site 6": BEFORE_MASK})
    with pytest.raises(
        ProtocolError, match=r"4 shares of the secret of .* are valid, and 5 are needed: site 3 revealed false shares"
    ):
        process.run()
    assert set(them.masking.liars) == them.masking.banned == {"site 3"}
    process.network._faults = None
    require_noisy(them, process.run(resume=True))
    assert them.hub.rounds[-1].number == 1
    assert set(them.hub.rounds[-1].answered) == set(them.names) - {"site 3"}
    assert charges(them) == {name: 1 + (name not in ("site 3", "site 5", "site 6")) for name in them.names}


def test_where_good_shares_are_only_missing_the_round_is_opened_again_once(monkeypatch: Patch) -> None:
    """The holders that are missing may come back. If they do not, a new round is asked."""
    false_shares(monkeypatch, ["site 3"])
    gone = {"site 5": BEFORE_OPEN, "site 6": BEFORE_OPEN}
    them = masked_company(7, 5, private=True, retries=0)
    process = process_of(them, dies=gone)
    with pytest.raises(QuorumLost, match=r"too few shares of the secret of .* are left") as caught:
        process.run()
    assert caught.value.missing == ("site 5", "site 6")
    assert them.masking.banned == set()
    process.network._faults = None
    require_noisy(them, process.run(resume=True))
    assert them.hub.rounds[-1].number == 0
    assert set(charges(them).values()) == {1}
    assert set(them.masking.liars) == {"site 3"}
    # And where they do not come back.
    them = masked_company(7, 5, private=True, retries=0)
    process = process_of(them, dies=gone)
    # What has been paid for is not thrown away.
    for resume in (False, True, True):
        with pytest.raises(QuorumLost, match=r"too few shares of the secret of .* are left"):
            process.run(resume=resume)
    process.network._faults = None
    require_noisy(them, process.run(resume=True))
    assert them.hub.rounds[-1].number == 0
    # Where nothing is paid, a new round is asked.
    them = masked_company(7, 5, retries=0)
    process = process_of(them, dies=gone)
    with pytest.raises(QuorumLost, match=r"too few shares of the secret of .* are left"):
        process.run()
    with pytest.raises(ProtocolError, match="site 5, site 6 have not come back"):
        process.run(resume=True)
    assert them.masking.banned == {"site 3"}
    process.network._faults = None
    require_right(them, process.run(resume=True))
    assert them.hub.rounds[-1].number == 1


# Holders that would frame a dealer.


COMPANIES: list[tuple[Callable[..., MaskedCompany], dict[str, Any]]] = [
    (masked_company, {"sites": 11, "survivors": 8, "colluders": 2}),
    (sparse_company, {"sites": 10, "survivors": 8, "colluders": 2}),
]


def deniers(patch: Patch, make: Callable[..., MaskedCompany], more: dict[str, Any], count: int) -> MaskedCompany:
    """So many holders of one dealer say that it sent them something else."""
    ring = frozenset
    patch.setattr(Session, "_draw_holders", lambda one: ring((one._index + k) % _sites(one) for k in range(1, 1 + _holders(one))))
    them = make(**more, retries=0)
    place = them.terms.places[DEALER]
    liars = [them.names[(place + k) % len(them.names)] for k in range(1, 1 + count)]
    false_receipts(patch, liars, of=[DEALER])
    false_shares(patch, liars)
    return them


def _sites(session: Session) -> int:
    return len(session._terms.roster)


def _holders(session: Session) -> int:
    return session._terms.graph.holders


@pytest.mark.parametrize(("make", "more"), COMPANIES, ids=["complete", "sparse"])
def test_as_many_holders_as_may_collude_can_not_frame_a_dealer_and_one_more_can(
    make: Callable[..., MaskedCompany], more: dict[str, Any], monkeypatch: Patch
) -> None:
    with monkeypatch.context() as one:
        them = deniers(one, make, more, count=2)
        require_right(them, process_of(them).run())
        assert set(them.masking.liars) == {"site 3", "site 4"}
        assert them.masking.banned == set()
        assert set(them.hub.rounds[-1].answered) == set(them.names)
    # The bound is what protects it: with more on one side than was agreed on, an honest dealer is out.
    with monkeypatch.context() as one:
        them = deniers(one, make, more, count=3)
        with pytest.raises(ProtocolError, match=f"{DEALER} sent holders other bundles than announced"):
            process_of(them).run()
        assert them.masking.banned == {DEALER}
    # And so it would be if one word were enough.
    them = deniers(monkeypatch, make, more, count=1)
    object.__setattr__(them.terms, "colluders", 0)
    with pytest.raises(ProtocolError, match=DEALER):
        process_of(them).run()


@pytest.mark.parametrize("holder_lies", [True, False])
def test_where_one_word_stands_against_another_nobody_is_called_a_liar_and_both_are_left_out(
    holder_lies: bool, monkeypatch: Patch
) -> None:
    """The holder says that the dealer sent something else. One of them lies, and nobody can tell which: no third one pays."""
    if holder_lies:
        false_receipts(monkeypatch, ["site 3"], of=[DEALER])
        false_shares(monkeypatch, ["site 3"], of=[DEALER])
    else:
        other_bundles(monkeypatch, DEALER, ["site 3"])
    them = masked_company(7, 5, retries=0)
    process = process_of(them, dies={"site 5": BEFORE_MASK, "site 6": BEFORE_MASK})
    with pytest.raises(ProtocolError, match=f"site 3 and {DEALER} contradict each other"):
        process.run()
    assert them.masking.liars == {}
    assert them.masking.banned == {"site 3", DEALER}
    process.network._faults = None
    require_right(them, process.run(resume=True))
    assert set(them.hub.rounds[-1].answered) == set(them.names) - {"site 3", DEALER}
    assert them.masking.liars == {}


def test_the_word_of_a_proved_liar_counts_for_nothing(monkeypatch: Patch) -> None:
    """It denies everybody's bundles, and reveals a false share of its own as well: there is no doubt who lies."""
    false_receipts(monkeypatch, ["site 3"])
    false_shares(monkeypatch, ["site 3"])
    them = masked_company(7, 5, retries=0)
    process = process_of(them, dies={"site 5": BEFORE_MASK, "site 6": BEFORE_MASK})
    with pytest.raises(ProtocolError, match="site 3 revealed false shares"):
        process.run()
    assert set(them.masking.liars) == {"site 3"}
    assert them.masking.banned == {"site 3"}


def test_a_round_opened_again_for_its_parts_is_opened_again_for_its_shares(monkeypatch: Patch) -> None:
    false_shares(monkeypatch, ["site 3"])
    them = masked_company(7, 5, private=True, retries=0)
    process = process_of(them, dies=dict.fromkeys(["site 4", "site 5", "site 6"], BEFORE_MASK))
    with pytest.raises(QuorumLost, match="masked parts"):
        process.run()

    def drop(message: Message) -> list[Message]:
        lost = isinstance(message.body, StepRequest) and message.body.step == "open" and message.receiver in ("site 5", "site 6")
        return [] if lost else [message]

    process.network._faults = Faults(meddle=drop)
    with pytest.raises(QuorumLost, match=r"too few shares of the secret of .* are left"):
        process.run(resume=True)
    process.network._faults = None
    require_noisy(them, process.run(resume=True))
    assert them.hub.rounds[-1].number == 0
    assert set(charges(them).values()) == {1}


# Dealers that would frame a holder.


@pytest.mark.parametrize("way", [other_bundles, junk_bundles])
@pytest.mark.parametrize("dies", [False, True])
def test_a_dealer_can_not_make_a_holder_out_to_be_a_liar(way: Any, dies: bool, monkeypatch: Patch) -> None:
    """The holder has said before what it got. As many bundles as may be denied do no harm; one more, and the dealer is out."""
    faults = {"dies": {DEALER: BEFORE_MASK} if dies else {}}
    with monkeypatch.context() as one:
        way(one, DEALER, ["site 0"])
        them = masked_company(9, 6)
        require_right(them, process_of(them, **faults).run())
        assert them.masking.liars == {}
        # Where receipts are not read, an honest holder is named.
        one.setattr(Keyring, "confirm", confirm_everything)
        them = masked_company(9, 6)
        require_right(them, process_of(them, **faults).run())
        assert set(them.masking.liars) == {"site 0"}
    way(monkeypatch, DEALER, ["site 0", "site 8"])
    them = masked_company(9, 6, private=True, retries=0)
    process = process_of(them, **faults)
    with pytest.raises(ProtocolError, match=f"{DEALER} sent holders other bundles.*Nothing has been charged"):
        process.run()
    assert set(them.masking.liars) == them.masking.banned == {DEALER}
    assert set(charges(them).values()) == {0}
    require_noisy(them, process.run(resume=True))
    assert set(them.hub.rounds[-1].answered) == set(them.names) - {DEALER}
    assert charges(them) == {name: int(name != DEALER) for name in them.names}
    assert set(them.masking.liars) == {DEALER}


def test_bundles_that_nobody_complains_about_cost_everybody_a_charge_and_honest_sites_their_place(monkeypatch: Patch) -> None:
    names = [f"site {at}" for at in range(9)]
    junk_bundles(monkeypatch, DEALER, names)
    monkeypatch.setattr(SecureAggregationRound, "_require_bundles", nothing)
    them = masked_company(9, 6, private=True, retries=0)
    with pytest.raises(ProtocolError, match=f"1 shares of the secret of {DEALER} are valid"):
        process_of(them).run()
    assert set(charges(them).values()) == {1}
    assert them.masking.liars == {}
    assert them.masking.banned == set(names)


# Dealers that lie about their secrets.


def altered(patch: Patch, liar: str, **functions: Callable[[Any], Any]) -> None:
    """A dealer that shares out its secrets with other functions than everybody has, each made from the one that is there."""
    share_out = Session.share_out

    def false(session: Session, signed_keys: Table) -> tuple[bytes, Table] | None:
        if session._name != liar:
            return share_out(session, signed_keys)
        with pytest.MonkeyPatch.context() as inner:
            for name, change in functions.items():
                inner.setattr(session_module, name, change(vars(session_module)[name]))
            return share_out(session, signed_keys)

    patch.setattr(Session, "share_out", false)


def other_constant(patch: Patch, liar: str) -> None:
    """The secret of one round alone does not fit its public key."""
    count = iter(range(100))
    altered(patch, liar, polynomial=lambda make: lambda *a, **more: _raised(make(*a, **more), -1, next(count) == 1))


def other_blind(patch: Patch, liar: str) -> None:
    """What blinds does not fit its public key, so that one secret need not be either."""
    altered(patch, liar, polynomial=lambda make: lambda *a, **more: _raised(make(*a, **more), -1, True))


def _raised(numbers: tuple[int, ...], at: int, so: bool) -> tuple[int, ...]:
    found = list(numbers)
    found[at] = (found[at] + so) % PRIME
    return tuple(found)


def high_degree(patch: Patch, liar: str) -> None:
    """One more holder is needed than was agreed on; what the dealer tells the hub looks as it should."""
    altered(
        patch,
        liar,
        polynomial=lambda make: lambda *a, threshold, **more: make(*a, threshold=threshold + 1, **more),
        blended=lambda blend: lambda *a: blend(*a)[1:],
    )


def other_blend(patch: Patch, liar: str) -> None:
    """The polynomial for the hub is another than the shares are of, with the right value at zero."""
    altered(patch, liar, blended=lambda blend: lambda *a: _raised(blend(*a), 0, True))


def other_commitment(patch: Patch, liar: str) -> None:
    """The dealer tells its holders that it has committed itself to something else."""
    bundle = Session._bundle

    def false(session: Session, name: str, text: bytes, public: bytes) -> bytes:
        return bundle(session, name, bytes(KEY) + text[KEY:] if session._name == liar else text, public)

    patch.setattr(Session, "_bundle", false)


def crooked_low(patch: Patch, liar: str) -> None:
    crooked_shares(patch, liar, [1, 2])


def crooked_all(patch: Patch, liar: str) -> None:
    crooked_shares(patch, liar, range(1, 10))


AT_PACKETS = [wrong_secret, other_constant, other_blind]
AT_SEAL = [crooked_low, crooked_all, high_degree, other_blend, other_commitment]


@pytest.mark.parametrize("way", [*AT_PACKETS, *AT_SEAL])
@pytest.mark.parametrize("dies", [False, True])
def test_a_dealer_that_lies_is_found_before_anybody_is_charged(way: Any, dies: bool, monkeypatch: Patch) -> None:
    """Whether or not it is there when its secret is wanted. All others are charged once, for a sum that they get."""
    way(monkeypatch, DEALER)
    them = masked_company(9, 6, private=True, retries=0)
    process = process_of(them, dies={DEALER: BEFORE_MASK} if dies else {})
    found_later = way in AT_SEAL
    if found_later:
        with pytest.raises(ProtocolError, match=f"{DEALER} sent holders other bundles.*Nothing has been charged"):
            process.run()
        assert set(charges(them).values()) == {0}
        assert not them.hub.paid_in_vain
    require_noisy(them, process.run(resume=found_later))
    assert charges(them) == {name: int(name != DEALER) for name in them.names}
    assert set(them.hub.rounds[-1].answered) == set(them.names) - {DEALER}
    assert set(them.masking.liars) == them.masking.banned == {DEALER}
    assert {member.sessions for member in them.members.values()} == ({1, 2} if found_later else {1})


@pytest.mark.parametrize("way", [*AT_PACKETS, *AT_SEAL])
def test_without_the_checks_of_dealings_a_liar_burns_what_everybody_has_paid(way: Any, monkeypatch: Patch) -> None:
    """As it was before them: it is found when all are charged, or never."""
    way(monkeypatch, DEALER)
    monkeypatch.setattr(Keyring, "proves", lambda *_: True)
    monkeypatch.setattr(SecureAggregationRound, "_require_bundles", nothing)
    them = masked_company(9, 6, private=True, retries=0)
    process = process_of(them)
    if way in (other_blend, other_commitment):
        # Here the shares are in order, and only what is said of them is not.
        require_noisy(them, process.run())
        return
    if way is crooked_low:
        # Enough other shares are in order.
        require_noisy(them, process.run())
        assert set(them.masking.liars) == {DEALER}
        return
    if way is other_constant:
        # Of the second round, which is not asked for.
        require_noisy(them, process.run())
        return
    with pytest.raises(ProtocolError, match=f"the secret that {DEALER} shared is not the one of its signed keys"):
        process.run()
    assert set(charges(them).values()) == {1}
    assert them.hub.paid_in_vain


def test_factors_that_a_dealer_knows_in_advance_show_nothing(monkeypatch: Patch) -> None:
    """They must come from a hash of all that it has said: otherwise one false secret makes up for another."""
    made: list[int] = []

    def balanced(make: Any) -> Any:
        def false(*given: Any, **more: Any) -> tuple[int, ...]:
            # One more in the first secret, one less in the second.
            made.append(0)
            numbers: tuple[int, ...] = make(*given, **more)
            return _raised(numbers, -1, True) if len(made) == 1 else _lowered(numbers) if len(made) == 2 else numbers

        return false

    def run() -> MaskedCompany:
        made.clear()
        with pytest.MonkeyPatch.context() as patch:
            altered(patch, DEALER, polynomial=balanced)
            them = masked_company(9, 6, private=True, retries=0)
            try:
                process_of(them).run()
            except ProtocolError as error:
                assert f"the secret that {DEALER} shared" in str(error)
            return them

    them = run()
    assert charges(them)["site 0"] == 1 and not them.hub.paid_in_vain
    assert DEALER not in them.hub.rounds[-1].answered
    monkeypatch.setattr(session_module, "factors_of", lambda terms, *_: [1] * (2 * terms.rounds + 1))
    them = run()
    assert set(charges(them).values()) == {1} and them.hub.paid_in_vain


def _lowered(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return (*numbers[:-1], (numbers[-1] - 1) % PRIME)


@pytest.mark.parametrize("way", [wrong_secret, crooked_all])
def test_a_secret_that_nobody_compares_with_its_public_key_ends_in_a_wrong_sum(way: Any, monkeypatch: Patch) -> None:
    way(monkeypatch, DEALER)
    monkeypatch.setattr(Keyring, "proves", lambda *_: True)
    monkeypatch.setattr(SecureAggregationRound, "_require_bundles", nothing)
    monkeypatch.setattr(SecureAggregationRound, "_joined", join_anything)
    them = masked_company(9, 6)
    with pytest.raises(AssertionError):
        require_right(them, process_of(them).run())


def test_a_crooked_share_that_one_holder_denies_does_no_harm_and_is_found_when_it_is_used(monkeypatch: Patch) -> None:
    """Six are used, the lowest that there are. With some of those gone, other sets of six are tried."""
    crooked_shares(monkeypatch, DEALER, [8])
    them = masked_company(9, 6)
    require_right(them, process_of(them).run())
    assert them.masking.liars == {}
    them = masked_company(9, 6, private=True, retries=0)
    require_noisy(them, process_of(them, dies={"site 0": BEFORE_MASK, "site 1": BEFORE_MASK}).run())
    assert set(them.masking.liars) == {DEALER}
    assert them.masking.banned == set()


# A dealer together with holders.


def point_of(name: str) -> int:
    return 1 + int(name.removeprefix("site "))


def vouching(patch: Patch, dealer: str, holders: Collection[str]) -> None:
    """A dealer and these holders give the receipts that the hub expects for the dealer's bundles, whatever is in them."""
    share_out, receipts = Session.share_out, Session.receipts
    blends: dict[str, tuple[int, ...]] = {}

    def telling(session: Session, signed_keys: Table) -> tuple[bytes, Table] | None:
        shared = share_out(session, signed_keys)
        if session._name == dealer and shared is not None:
            blends[dealer] = Dealing.read(session._terms, 1 + len(shared[1]), shared[0]).blend
        return shared

    def false(session: Session) -> bytes:
        raw = receipts(session)
        if session._name not in (dealer, *holders) or dealer not in session._dealers():
            return raw
        at, me = session._dealers().index(dealer) * (KEY + MARK), point_of(session._name)
        shares, committed = session._held[dealer]
        got = ShareDigests.of(session.id, point_of(dealer), me, shares)
        return raw[:at] + receipt(got, committed, value_at(blends[dealer], me)) + raw[at + KEY :]

    patch.setattr(Session, "share_out", telling)
    patch.setattr(Session, "receipts", false)


def colluding(patch: Patch, dealer: str, holders: Collection[str]) -> None:
    """A dealer whose shares at its own point and at those of these holders are false, and all of them vouch for them."""
    crooked_shares(patch, dealer, [point_of(name) for name in (dealer, *holders)])
    vouching(patch, dealer, holders)


@pytest.mark.parametrize(("sites", "survivors", "colluders"), [(9, 7, 2), (12, 9, 3), (24, 20, 5)])
def test_a_dealer_and_holders_that_say_its_false_shares_are_sound_spoil_nothing(
    sites: int, survivors: int, colluders: int, monkeypatch: Patch
) -> None:
    """As many as may collude, at the lowest points, which are joined first. Without trying other sets they would burn it all."""
    dealer, *holders = [f"site {at}" for at in range(colluders)]
    colluding(monkeypatch, dealer, holders)
    them = masked_company(sites, survivors, colluders=colluders, private=True, retries=0)
    require_noisy(them, process_of(them).run())
    assert set(charges(them).values()) == {1}
    assert set(them.masking.liars) == {dealer}
    monkeypatch.setattr(SharePool, "_subsets", lambda *_: iter(()))
    them = masked_company(sites, survivors, colluders=colluders, private=True, retries=0)
    process = process_of(them)
    with pytest.raises(ProtocolError, match="is not the one of its signed keys"):
        process.run()
    assert them.hub.paid_in_vain


def test_a_dealer_that_few_deny_can_not_keep_its_secret_together_with_a_holder(monkeypatch: Patch) -> None:
    """Two may collude. Two honest holders are sent something else, and the dealer and another one will not give their shares."""
    other_bundles(monkeypatch, DEALER, ["site 5", "site 6"])
    false_shares(monkeypatch, [DEALER, "site 0"], of=[DEALER])
    them = masked_company(9, 7, colluders=2, private=True, retries=0)
    process = process_of(them)
    with pytest.raises(ProtocolError, match=f"site 5 and {DEALER} contradict each other.*Nothing has been charged"):
        process.run()
    assert set(charges(them).values()) == {0}
    # One of them has lied, and nobody can tell which. The other holder stays.
    assert them.masking.liars == {}
    assert them.masking.banned == {DEALER, "site 5"}
    require_noisy(them, process.run(resume=True))
    assert charges(them) == {name: int(name not in (DEALER, "site 5")) for name in them.names}
    # Without that rule all have paid when it shows that the secret is gone.
    monkeypatch.setattr(Keyring, "contested", lambda keys: [])
    them = masked_company(9, 7, colluders=2, private=True, retries=0)
    with pytest.raises(ProtocolError, match=f"5 shares of the secret of {DEALER} are valid, and 6 are needed"):
        process_of(them).run()
    assert set(charges(them).values()) == {1} and them.hub.paid_in_vain


def best_blend(patch: Patch, liar: str, honest: Collection[int]) -> None:
    """Shares of too high a degree, and for the hub the polynomial that fits the public key and most of the holders."""

    def high(make: Any) -> Any:
        return lambda *a, threshold, **more: make(*a, threshold=threshold + 1, **more)

    def best(blend: Any) -> Any:
        def through(polynomials: Any, factors: Any) -> tuple[int, ...]:
            full = blend(polynomials, factors)
            points = [0, *honest][: len(full) - 1]
            return highest_first({point: value_at(full, point) for point in points})

        return through

    altered(patch, liar, polynomial=high, blended=best)
    vouching(patch, liar, [])


def test_among_five_sites_one_denial_is_enough_to_stop_at_no_charge(monkeypatch: Patch) -> None:
    """Four shares make a secret. A liar can satisfy three holders and the public key, and one holder of its four denies."""
    best_blend(monkeypatch, DEALER, [1, 2, 4])
    them = masked_company(5, 4, private=True, retries=0)
    process = process_of(them)
    with pytest.raises(ProtocolError, match=f"site 4 and {DEALER} contradict each other.*Nothing has been charged"):
        process.run()
    assert them.masking.banned == {DEALER, "site 4"}
    with pytest.raises(ProtocolError, match="3 sites are left"):
        process.run(resume=True)
    assert set(charges(them).values()) == {0}
    # With one more site there are two that deny, and the liar is alone to go.
    them = masked_company(6, 4, private=True, retries=0)
    process = process_of(them)
    with pytest.raises(ProtocolError, match=f"{DEALER} sent holders other bundles"):
        process.run()
    require_noisy(them, process.run(resume=True))
    assert charges(them) == {name: int(name != DEALER) for name in them.names}


def test_a_holder_that_denies_everybody_is_left_out_alone_and_nobody_has_paid_for_it(monkeypatch: Patch) -> None:
    false_receipts(monkeypatch, ["site 3"])
    them = masked_company(5, 4, private=True, retries=0)
    process = process_of(them)
    with pytest.raises(ProtocolError, match=r"site 3 denies what honest sites sent\. Nothing has been charged"):
        process.run()
    assert set(them.masking.liars) == them.masking.banned == {"site 3"}
    require_noisy(them, process.run(resume=True))
    assert charges(them) == {name: int(name != "site 3") for name in them.names}


def test_where_too_few_have_confirmed_a_bundle_nobody_is_charged_and_nobody_blamed(monkeypatch: Patch) -> None:
    """Of three sites all three shares are needed. One says that its bundles were changed on their way."""
    receipts = Session.receipts

    def changed(session: Session) -> bytes:
        raw = receipts(session)
        return bytes(len(raw)) if session._name == "site 0" else raw

    with monkeypatch.context() as one:
        one.setattr(Session, "receipts", changed)
        them = masked_company(3, 3, private=True, retries=0)
        process = process_of(them)
        with pytest.raises(ProtocolError, match=r"too few holders have confirmed what .*Nothing has been charged"):
            process.run()
    assert set(charges(them).values()) == {0}
    assert them.masking.liars == {} and them.masking.banned == set()
    require_noisy(them, process.run(resume=True))
    assert set(charges(them).values()) == {1}


def test_where_holders_are_gone_nobody_is_blamed_and_a_new_round_is_asked(monkeypatch: Patch) -> None:
    """Of a secret with too few holders left nothing more will come in this round. In the next they may be back."""
    graph = MaskGraph(holders=3, threshold=3, loss=0, failure=0.0, abort=0.0, complete=False)
    monkeypatch.setattr(Session, "_draw_holders", lambda session: frozenset({(session._index + k) % 9 for k in (1, 2, 3)}))
    them = masked_company(9, 6, graph=graph, retries=0)
    process = process_of(them, dies=dict.fromkeys(["site 4", "site 5", "site 6"], 5))
    with pytest.raises(ProtocolError, match=r"2 shares of the secret of site 2 are valid.*its holders are gone"):
        process.run()
    process.network._faults = None
    require_right(them, process.run(resume=True))
    assert them.hub.rounds[-1].number == 1
    assert them.masking.liars == {}
    assert them.masking.banned == set()


# Everything at once.


def lie(patch: Patch, name: str, way: int, names: list[str], some: list[int]) -> None:
    """One of the ways to lie, about or towards some of the others."""
    to = [names[at % len(names)] for at in some if names[at % len(names)] != name]
    match way:
        case 0:
            false_shares(patch, [name])
        case 1:
            false_receipts(patch, [name])
        case 2:
            false_receipts(patch, [name], of=to)
            false_shares(patch, [name])
        case 3:
            wrong_secret(patch, name)
        case 4:
            crooked_shares(patch, name, [1 + at % len(names) for at in some])
        case 5:
            other_bundles(patch, name, to)
        case 6:
            junk_bundles(patch, name, to)
        case 7:
            high_degree(patch, name)
        case 8:
            other_blend(patch, name)
        case _:
            other_constant(patch, name)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["complete", "sparse"]),
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 9)), min_size=1, max_size=2),
    st.lists(st.integers(0, 8), min_size=1, max_size=4),
    st.dictionaries(st.integers(0, 8), st.integers(3, 8), max_size=2),
)
def test_whoever_lies_and_whoever_dies_nobody_honest_is_named_and_no_wrong_sum_comes_out(
    kind: str, lies: list[tuple[int, int]], some: list[int], deaths: dict[int, int]
) -> None:
    """Up to two liars, as many as may collude, each in any of ten ways, and two deaths.

    Who is left out because of a contradiction is left out together with a liar, so that it ends; at most two for each.
    """
    make = masked_company if kind == "complete" else sparse_company
    them = make(9, 7, colluders=2, retries=0)
    liars = {them.names[at] for at, _ in lies}
    with pytest.MonkeyPatch.context() as patch:
        for at, way in lies:
            lie(patch, them.names[at], way, them.names, some)
        process = process_of(them, dies={them.names[at]: when for at, when in deaths.items()})
        for resume in (False, True, True, True):
            before = set(them.masking.banned)
            try:
                require_right(them, process.run(resume=resume))
                return
            except ProtocolError:
                # Then all come back, as far as they are asked.
                process.network._faults = None
            finally:
                new = them.masking.banned - before
                assert set(them.masking.liars) <= liars
                assert bool(new & liars) == bool(new)
                assert len(new - liars) <= 2
        # Only where too few are left: as many must be in a sum as there are without two.
        assert len(them.names) - len(them.masking.banned) < them.terms.survivors


def test_a_network_that_changes_bundles_of_one_site_to_as_many_as_may_collude_frames_nobody() -> None:
    def meddle(message: Message) -> Iterable[Message]:
        body = message.body
        if isinstance(body, StepRequest) and body.step == "roster" and message.receiver == "site 0":
            table = tuple((name, bytes(len(raw)) if name == DEALER else raw) for name, raw in body.table)
            return [
                Message(
                    message.sender, message.receiver, StepRequest(round=body.round, step=body.step, data=body.data, table=table)
                )
            ]
        return [message]

    them = masked_company(9, 6)
    require_right(them, process_of(them, meddle=meddle).run())
    assert them.masking.liars == {}


def test_bundles_changed_on_the_way_from_the_hub_frame_nobody(monkeypatch: Patch) -> None:
    """More holders than may collude get something else than the dealer sent, and say which bundle they got."""

    def change(message: Message) -> list[Message]:
        body = message.body
        if not isinstance(body, StepRequest) or body.step != "roster" or message.receiver not in ("site 3", "site 4"):
            return [message]
        table = tuple((name, piece[:-1] + bytes([piece[-1] ^ 1]) if name == DEALER else piece) for name, piece in body.table)
        return [
            Message(message.sender, message.receiver, StepRequest(round=body.round, step=body.step, data=body.data, table=table))
        ]

    them = masked_company(7, 5)
    process = LocalStar(them.hub, them.members.values(), faults=Faults(meddle=change), seed=1)
    require_right(them, process.run())
    assert them.masking.liars == {}
    assert them.masking.banned == set()
    # Where holders do not say which bundle they got, or nobody compares it, the dealer is left out.
    monkeypatch.setattr("eigenveil.protocols.masked.session.bundle_mark", lambda sealed: bytes(MARK))
    monkeypatch.setattr("eigenveil.protocols.masked.session.bundle_mark", lambda sealed: bytes(MARK))
    them = masked_company(7, 5)
    process = LocalStar(them.hub, them.members.values(), faults=Faults(meddle=change), seed=1)
    with pytest.raises(ProtocolError, match=f"{DEALER} sent holders other bundles than announced"):
        process.run()
    assert set(them.masking.liars) == {DEALER}
