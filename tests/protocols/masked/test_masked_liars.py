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
from eigenveil.protocols import Brief, Masked, Message
from eigenveil.protocols.masked import MaskedMember, MaskGraph
from eigenveil.protocols.masked.hub import MaskedExchange
from eigenveil.protocols.masked.keyring import Keyring
from eigenveil.protocols.masked.session import MARK, Session
from eigenveil.protocols.masked.shamir import PRIME, SHARE_BYTES
from eigenveil.protocols.messages import Table
from eigenveil.runtimes import Faults, LocalStar
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
            add(piece, 1 + session._place) if of is None or name in of else piece
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
        said = [raw[at : at + 2 * MARK] for at in range(0, len(raw), 2 * MARK)]
        # Which bundle it was is not denied: that would only say that somebody changed it on its way.
        return b"".join(
            one if name in kept else bytes(MARK) + one[MARK:]
            for name, one in zip(session._dealers(), said, strict=True)
        )

    patch.setattr(Session, "receipts", false)


def wrong_secret(patch: Patch, liar: str) -> None:
    """A dealer that shares out other secrets than those it puts on its part."""
    share_out = Session.share_out

    def false(session: Session, cards: Table) -> tuple[bytes, Table] | None:
        if session._name != liar:
            return share_out(session, cards)
        seeds, keys = session._seeds, session._keys
        session._seeds, session._keys = [bytes(32)] * len(seeds), [bytes(32)] * len(keys)
        shared = share_out(session, cards)
        session._seeds, session._keys = seeds, keys
        return shared

    patch.setattr(Session, "share_out", false)


def crooked_shares(patch: Patch, liar: str, points: Collection[int]) -> None:
    """A dealer whose shares at these points, as it sends them and says that it does, are on no one polynomial."""
    share_out = Session.share_out

    def false(session: Session, cards: Table) -> tuple[bytes, Table] | None:
        if session._name != liar:
            return share_out(session, cards)
        split = vars(session_module)["split_many"]

        def crooked(secrets: Any, **more: Any) -> dict[int, list[bytes]]:
            shares = split(secrets, **more)
            return {point: [add(s, point in points) for s in pieces] for point, pieces in shares.items()}

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(session_module, "split_many", crooked)
            return share_out(session, cards)

    patch.setattr(Session, "share_out", false)


def other_bundles(patch: Patch, liar: str, to: Collection[str]) -> None:
    """A dealer that sends some holders other shares than it says."""
    bundle = Session._bundle

    def false(session: Session, name: str, text: bytes, public: bytes) -> bytes:
        if session._name == liar and name in to:
            text = b"".join(add(piece, 1) for piece in pieces_of(text))
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
    monkeypatch.setattr(MaskedExchange, "_pooled", take_every_share)
    them = masked_company(9, 6)
    with pytest.raises(ProtocolError, match="is not the one on its key card"):
        process_of(them).run()
    # The first dealer whose secret is put together; here all are honest but the holder, which is not named.
    assert them.masking.banned == {"site 0"} == set(them.masking.liars)
    false_shares(monkeypatch, ["site 1"])
    them = masked_company(9, 6)
    with pytest.raises(ProtocolError, match="is not the one on its key card"):
        process_of(them).run()
    assert "site 1" not in them.masking.liars
    monkeypatch.setattr(MaskedExchange, "_joined", join_anything)
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
    (masked_company, {"sites": 9, "survivors": 7, "colluders": 2}),
    (sparse_company, {"sites": 10, "survivors": 8, "colluders": 2}),
]


def deniers(patch: Patch, make: Callable[..., MaskedCompany], more: dict[str, Any], count: int) -> MaskedCompany:
    """So many holders of one dealer say that it sent them something else."""
    ring = frozenset
    patch.setattr(
        Session, "_draw_holders", lambda one: ring((one._place + k) % _sites(one) for k in range(1, 1 + _holders(one)))
    )
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
        lost = (
            isinstance(message.body, Brief) and message.body.step == "open" and message.receiver in ("site 5", "site 6")
        )
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


def test_bundles_that_nobody_complains_about_cost_everybody_a_charge_and_honest_sites_their_place(
    monkeypatch: Patch,
) -> None:
    names = [f"site {at}" for at in range(9)]
    junk_bundles(monkeypatch, DEALER, names)
    monkeypatch.setattr(MaskedExchange, "_require_bundles", nothing)
    them = masked_company(9, 6, private=True, retries=0)
    with pytest.raises(ProtocolError, match=f"1 shares of the secret of {DEALER} are valid"):
        process_of(them).run()
    assert set(charges(them).values()) == {1}
    assert them.masking.liars == {}
    assert them.masking.banned == set(names)


# Dealers that lie about their secrets.


def crooked_low(patch: Patch, liar: str) -> None:
    crooked_shares(patch, liar, [1, 2])


@pytest.mark.parametrize("way", [wrong_secret, crooked_low])
@pytest.mark.parametrize("dies", [False, True])
def test_a_dealer_that_lies_is_named_and_the_run_goes_on_without_it(way: Any, dies: bool, monkeypatch: Patch) -> None:
    """Whether its seed is wanted, or its key because it is gone. Going on takes new keys, noise and charge."""
    way(monkeypatch, DEALER)
    them = masked_company(9, 6, private=True, retries=0)
    process = process_of(them, dies={DEALER: BEFORE_MASK} if dies else {})
    with pytest.raises(ProtocolError, match=f"the secret that {DEALER} shared is not the one on its key card"):
        process.run()
    first = {name: masked.words for name, site in them.members.items() if (masked := _gave(site)) is not None}
    assert charges(them) == {name: int(name in first) for name in them.names}
    result = process.run(resume=True)
    assert set(them.hub.rounds[-1].answered) == set(them.names) - {DEALER}
    assert them.hub.rounds[-1].number == 1
    assert set(them.masking.liars) == them.masking.banned == {DEALER}
    for name in them.hub.rounds[-1].answered:
        assert len(them.ledgers[name].charges) == 2
        assert them.members[name]._sessions == 2
        now = them.members[name]._now
        assert now is not None and now.masked is not None
        assert (now.masked.words != first[name]).all()
    require_noisy(them, result)


def _gave(site: MaskedMember) -> Masked | None:
    return None if site._now is None else site._now.masked


@pytest.mark.parametrize("way", [wrong_secret, crooked_low])
def test_a_secret_that_nobody_compares_with_its_card_ends_in_a_wrong_sum(way: Any, monkeypatch: Patch) -> None:
    way(monkeypatch, DEALER)
    monkeypatch.setattr(MaskedExchange, "_joined", join_anything)
    them = masked_company(9, 6)
    with pytest.raises(AssertionError):
        require_right(them, process_of(them).run())


def test_crooked_shares_that_are_not_needed_do_no_harm(monkeypatch: Patch) -> None:
    """Six are used, the lowest that there are; when some of those are gone, the dealer is found out and no holder is blamed."""
    crooked_shares(monkeypatch, DEALER, [8, 9])
    them = masked_company(9, 6)
    require_right(them, process_of(them).run())
    assert them.masking.liars == {}
    them = masked_company(9, 6, retries=0)
    process = process_of(them, dies={"site 0": BEFORE_MASK, "site 1": BEFORE_MASK})
    with pytest.raises(ProtocolError, match=DEALER):
        process.run()
    assert set(them.masking.liars) == {DEALER}


def test_where_holders_are_gone_nobody_is_blamed_and_a_new_round_is_asked(monkeypatch: Patch) -> None:
    """Of a secret with too few holders left nothing more will come in this round. In the next they may be back."""
    graph = MaskGraph(3, 3, 0, 0.0, 0.0, complete=False)
    monkeypatch.setattr(
        Session, "_draw_holders", lambda session: frozenset({(session._place + k) % 9 for k in (1, 2, 3)})
    )
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
        case _:
            junk_bundles(patch, name, to)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["complete", "sparse"]),
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 6)), min_size=1, max_size=2),
    st.lists(st.integers(0, 8), min_size=1, max_size=4),
    st.dictionaries(st.integers(0, 8), st.integers(3, 8), max_size=2),
)
def test_whoever_lies_and_whoever_dies_nobody_honest_is_named_and_no_wrong_sum_comes_out(
    kind: str, lies: list[tuple[int, int]], some: list[int], deaths: dict[int, int]
) -> None:
    """Up to two liars, as many as may collude, each in any of seven ways, and two deaths.

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
        if isinstance(body, Brief) and body.step == "roll" and message.receiver == "site 0":
            table = tuple((name, bytes(len(raw)) if name == DEALER else raw) for name, raw in body.table)
            return [Message(message.sender, message.receiver, Brief(body.round, body.step, body.data, table))]
        return [message]

    them = masked_company(9, 6)
    require_right(them, process_of(them, meddle=meddle).run())
    assert them.masking.liars == {}


def test_bundles_changed_on_the_way_from_the_hub_frame_nobody(monkeypatch: Patch) -> None:
    """More holders than may collude get something else than the dealer sent, and say which bundle they got."""

    def change(message: Message) -> list[Message]:
        body = message.body
        if not isinstance(body, Brief) or body.step != "roll" or message.receiver not in ("site 3", "site 4"):
            return [message]
        table = tuple(
            (name, piece[:-1] + bytes([piece[-1] ^ 1]) if name == DEALER else piece) for name, piece in body.table
        )
        return [Message(message.sender, message.receiver, Brief(body.round, body.step, body.data, table))]

    them = masked_company(7, 5)
    process = LocalStar(them.hub, them.members.values(), faults=Faults(meddle=change), seed=1)
    require_right(them, process.run())
    assert them.masking.liars == {}
    assert them.masking.banned == set()
    # Where holders do not say which bundle they got, or nobody compares it, the dealer is left out.
    monkeypatch.setattr("eigenveil.protocols.masked.keyring.bundle_mark", lambda sealed: bytes(MARK))
    monkeypatch.setattr("eigenveil.protocols.masked.session.bundle_mark", lambda sealed: bytes(MARK))
    them = masked_company(7, 5)
    process = LocalStar(them.hub, them.members.values(), faults=Faults(meddle=change), seed=1)
    with pytest.raises(ProtocolError, match=f"{DEALER} sent holders other bundles than announced"):
        process.run()
    assert set(them.masking.liars) == {DEALER}
