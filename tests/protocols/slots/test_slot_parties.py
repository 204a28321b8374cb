"""Streams slot by slot: whatever the network does, a part is counted once or is missing, and a site says the same again."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from eigenveil.core.accounting import Budget
from eigenveil.core.unit import Neighbours
from eigenveil.errors import PeerError, ProtocolError
from eigenveil.estimators.slots.answer import SlotSimulation
from eigenveil.estimators.slots.parties import SlotParties, SlotSpec
from eigenveil.linalg import Array
from eigenveil.protocols.messages import Ask, Contribution, Decline, Done, Message
from eigenveil.protocols.star.rounds import Terms
from eigenveil.runtimes.local import Faults
from eigenveil.tasks.base import Question
from eigenveil.tasks.slot_sums import SlotSums
from eigenveil.tasks.slots import ClosedSlot

DIM, SLOTS = 4, 5
NAMES = tuple(f"site {number}" for number in range(6))
BASE = SlotSpec(
    names=NAMES,
    dim=DIM,
    rank=2,
    oversample=2,
    budget=Budget(5.0, 1e-5),
    trust="site",
    neighbours=Neighbours.ZERO_OUT,
    row_bound=3.0,
    origin=None,
    scale=None,
    center=True,
    slots=SLOTS,
    max_lateness=12,
    person_slots=1,
    one_person_per_site=False,
    forget=0.9,
    adapt=None,
    fanout=None,
    survivors=4,
    colluders=1,
    seed=7,
    terms=Terms(quorum=1, deadline=30.0, retries=2),
    clock=True,
)
SPECS = {
    "sketches": replace(BASE, budget=None),
    "sketches in a tree": replace(BASE, budget=None, fanout=2),
    "noise at sites": BASE,
    "noise at sites in a tree": replace(BASE, fanout=2),
    "noise at the hub": replace(BASE, trust="hub"),
}
# A round trip may take longer than the deadline, so answers come late as well.
ROUGH = Faults(loss=0.2, duplicate=0.3, delay=20.0)


def rows(slot: int, name: str) -> Array:
    rng = np.random.default_rng([slot, NAMES.index(name)])
    return rng.standard_normal((9, DIM)) * [2.0, 1.0, 0.5, 0.1] + 0.3


def run(spec: SlotSpec, *, faults: Faults | None = None, away: dict[int, tuple[str, ...]] | None = None) -> SlotSimulation:
    simulation = SlotSimulation(spec, faults=faults)
    for slot in range(spec.slots):
        simulation.slot({name: [rows(slot, name)] for name in NAMES}, away=(away or {}).get(slot, ()))
    simulation.finish()
    return simulation


def matrix(simulation: SlotSimulation) -> Array:
    """What the hub knows, as one matrix."""
    value = simulation.hub.state.value
    if isinstance(simulation.parties.task, SlotSums):
        return np.asarray(value)
    space = value.subspace
    return np.asarray((space.basis * np.square(space.values)) @ space.basis.T)


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_lost_late_repeated_and_reordered_parts_are_counted_once(kind: str, seed: int) -> None:
    spec = replace(SPECS[kind], seed=seed)
    clean, rough = run(spec), run(spec, faults=ROUGH)
    for slot in range(SLOTS):
        assert rough.hub.counted(slot) == clean.hub.counted(slot) == NAMES
    assert rough.hub.state.parts == pytest.approx(clean.hub.state.parts)
    if kind == "noise at the hub":
        # Late parts get noise of their own, so only the public number of rows can be compared.
        count = BASE.task().count_of  # type: ignore[union-attr]
        assert count(matrix(rough)) == pytest.approx(count(matrix(clean)))
        assert rough.hub.state.noise >= clean.hub.state.noise
        return
    # No truncation here: the width is the dimension. So the order of arrival changes nothing but the last digits.
    assert np.allclose(matrix(rough), matrix(clean), rtol=1e-10, atol=1e-10)
    assert rough.answer.sketch.weight == pytest.approx(clean.answer.sketch.weight)


@pytest.mark.parametrize("kind", SPECS)
def test_a_site_that_is_away_is_counted_later_within_the_window_and_missing_after_it(kind: str) -> None:
    spec = replace(SPECS[kind], max_lateness=1)
    late = run(spec, away={0: NAMES[:1], 1: (), 2: NAMES[1:2], 3: NAMES[1:2]})
    assert late.hub.missing(0) == ()
    assert late.hub.missing(2) == NAMES[1:2]
    assert late.hub.missing(3) == ()
    asked_again = [one for one in late.rounds if one.again]
    # In a star, a site that was silent for the newest slot is not asked for older ones.
    assert {one.slot for one in asked_again} >= {0, 3}
    # Everybody else was counted in the round of the slot itself: nobody waited for the straggler.
    assert all(len(one.answered) >= len(NAMES) - 1 for one in late.rounds if not one.again)


def until(spec: SlotSpec, slots: int, away: tuple[str, ...] = ()) -> SlotSimulation:
    """A run up to a slot, from which some sites are away."""
    simulation = SlotSimulation(spec, faults=None)
    for slot in range(slots):
        gone = away if slot == slots - 1 else ()
        simulation.slot({name: [rows(slot, name)] for name in NAMES}, away=gone)
    return simulation


@pytest.mark.parametrize("kind", SPECS)
def test_with_forgetting_a_slot_that_lacks_late_sites_counts_as_if_they_were_there(kind: str) -> None:
    spec = replace(SPECS[kind], max_lateness=1, forget=0.5)
    clean, late = until(spec, 4), until(spec, 4, NAMES[:2])
    assert len(late.hub.counted(3)) == 4
    assert late.hub.state.parts == pytest.approx(clean.hub.state.parts)
    # The number of rows is exact in all of these.
    assert late.answer.sketch.weight == pytest.approx(clean.answer.sketch.weight)
    if spec.budget is not None:
        # Four noises of variance 1, times (6 / 4)^2; at the hub a single one.
        more = 2.25 - 1 if spec.trust == "hub" else 4 * 2.25 - 6
        assert late.hub.state.noise == pytest.approx(clean.hub.state.noise + more)
    # When the late ones have come, or never come, a slot counts with those who are in it.
    for whole in (clean, late):
        whole.slot({name: [rows(4, name)] for name in NAMES})
        whole.finish()
    assert late.hub.counted(3) == NAMES
    if kind != "noise at the hub":
        assert np.allclose(matrix(late), matrix(clean), rtol=1e-10, atol=1e-10)
        assert late.hub.state.noise == pytest.approx(clean.hub.state.noise)


def test_how_far_a_slot_is_scaled_up() -> None:
    spec = replace(SPECS["noise at sites"], max_lateness=1, forget=0.5)
    before, each = 6 * (1 / 4 + 1 / 16 + 1 / 64), 6.0
    # One early site does not stand for five others.
    assert until(spec, 4, NAMES[:5]).hub.state.parts == pytest.approx(before + 2)
    assert until(spec, 4, NAMES[:3]).hub.state.parts == pytest.approx(before + each)
    # Without forgetting every row counts the same, so nothing is scaled. Nor is it before the first window has passed.
    assert until(replace(spec, forget=1.0), 4, NAMES[:3]).hub.state.parts == 18 + 3
    assert until(spec, 1, NAMES[:3]).hub.state.parts == 3
    # Where sites are always missing, no more of them are expected.
    less = SlotSimulation(spec, faults=None)
    for slot in range(4):
        less.slot({name: [rows(slot, name)] for name in NAMES[:4]}, away=NAMES[3:4] if slot == 3 else ())
    assert len(less.hub.counted(3)) == 3
    assert less.hub.state.parts == pytest.approx((before + each) * 4 / 6)


@pytest.mark.parametrize(("dim", "private", "apart"), [(4, True, 8), (4000, True, 2), (6000, True, 0), (6000, False, 8)])
def test_a_hub_keeps_no_more_apart_than_fits_into_a_snapshot(dim: int, private: bool, apart: int) -> None:
    spec = replace(BASE, dim=dim, budget=BASE.budget if private else None)
    assert (spec.apart, replace(spec, forget=1.0).apart, replace(spec, trust="masked").apart) == (apart, 0, 0)
    assert replace(spec, dim=4, max_lateness=2).apart == 2


def test_late_parts_of_slots_that_are_no_longer_kept_apart_count_at_their_age() -> None:
    spec = replace(BASE, slots=12, max_lateness=11)
    away = dict.fromkeys(range(10), NAMES[:2])
    clean, late = run(spec), run(spec, away=away)
    assert spec.apart == 8
    assert [late.hub.counted(slot) for slot in range(12)] == [NAMES] * 12
    assert np.allclose(matrix(late), matrix(clean), rtol=1e-10, atol=1e-10)


def test_a_person_is_charged_once_for_all_slots_and_the_hub_once_for_late_groups() -> None:
    for spec, who in ((SPECS["noise at sites"], NAMES[0]), (SPECS["noise at the hub"], "hub")):
        assert spec.budget is not None
        ledger = run(spec, away={0: NAMES[:2], 3: NAMES[1:4]}).parties.ledgers[who]
        assert ledger.spent_mu == pytest.approx(spec.budget.mu)
        assert len(ledger.charges) == 1
        three = run(replace(spec, person_slots=3), away={0: NAMES[:2]}).parties.ledgers[who]
        assert three.spent_mu == pytest.approx(spec.budget.mu)
        assert len(three.charges) == 3


def test_the_order_of_slots_does_not_matter_to_sums() -> None:
    task = BASE.task()
    assert isinstance(task, SlotSums)
    parts = {slot: np.random.default_rng(slot).standard_normal((DIM + 1, DIM + 1)) for slot in range(SLOTS)}
    found = []
    for order in (range(SLOTS), reversed(range(SLOTS)), [2, 0, 4, 1, 3]):
        state = task.start()
        for slot in order:
            state = task._added(state, slot, parts[slot] + parts[slot].T, 1, 1.0)
        found.append(state)
    for state in found[1:]:
        assert np.allclose(state.value, found[0].value, rtol=1e-12)
        assert state.reference == SLOTS - 1
        assert state.parts == pytest.approx(found[0].parts)
        assert state.noise == pytest.approx(found[0].noise)


def member_with(slots: int, **more: Any) -> Any:
    parties = SlotParties(replace(BASE, max_lateness=1, **more), roster={})
    member = parties.member(NAMES[0])
    for slot in range(slots):
        filled = parties.task.open()
        filled.add(rows(slot, NAMES[0]))
        member.close(slot, filled.close())
    return member


def ask(member: Any, round_: int, slot: int, sender: str = "hub") -> Any:
    (answer,) = member.receive(Message(sender, NAMES[0], Ask(round_, Question(slot))))
    return answer.body


def test_a_site_says_the_same_for_a_slot_however_often_it_is_asked() -> None:
    member = member_with(2)
    first = ask(member, 0, 0)
    assert isinstance(first, Contribution)
    other = ask(member, 1, 1)
    assert not np.array_equal(other.arrays[0], first.arrays[0])
    for round_ in (2, 2, 9):
        again = ask(member, round_, 0)
        assert again.round == round_
        assert again.arrays[0].tobytes() == first.arrays[0].tobytes()


def test_a_slot_that_is_open_or_too_old_is_declined() -> None:
    member = member_with(3)
    assert isinstance(ask(member, 0, 3), Decline)
    assert isinstance(ask(member, 1, 2), Contribution)
    # The newest slot asked for was the fourth, so the window of one begins at the third.
    assert isinstance(ask(member, 2, 1), Decline)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (Message("hub", NAMES[0], Ask(4, Question(1))), "in round 5"),
        (Message("hub", NAMES[0], Ask(5, Question(0))), "two slots in round 5"),
        (Message("hub", NAMES[0], Ask(6, Question(SLOTS))), "what this study does not ask"),
        (Message("hub", NAMES[0], Ask(6, Question(0, (np.zeros(1),)))), "what this study does not ask"),
        (Message("another hub", NAMES[0], Ask(6, Question(0))), "not the hub of this site"),
        (Message("hub", NAMES[0], Contribution(round=6, arrays=(np.zeros(1),))), "sent Contribution to a site"),
    ],
)
def test_a_bad_question_is_refused_and_changes_nothing(message: Message, why: str) -> None:
    member = member_with(2)
    before = ask(member, 5, 1)
    with pytest.raises(PeerError, match=why):
        member.receive(message)
    assert ask(member, 5, 1).arrays[0].tobytes() == before.arrays[0].tobytes()


def test_slots_are_closed_in_order_and_after_the_result_nothing_is_said() -> None:
    member = member_with(2)
    closed = ClosedSlot(np.zeros((DIM + 1, DIM + 1)), DIM, 0)
    for slot, why in ((0, "closed already"), (1, "closed already"), (SLOTS, "has 5 slots")):
        with pytest.raises(ValueError, match=why):
            member.close(slot, closed)
    member.receive(Message("hub", NAMES[0], Done(0, ())))
    with pytest.raises(PeerError, match="after the result"):
        ask(member, 1, 0)


def asking() -> Any:
    """A hub that asks for the first slot."""
    hub = SlotParties(BASE, roster={}).hub()
    assert [message.receiver for message in hub.tick()] == list(NAMES)
    return hub


GOOD = Contribution(round=0, arrays=(np.eye(DIM + 1),), half=True)


@pytest.mark.parametrize(
    ("sender", "body", "why"),
    [
        ("stranger", GOOD, "not part of this study"),
        (NAMES[0], replace(GOOD, round=1), "answered round 1 in round 0"),
        (NAMES[0], replace(GOOD, arrays=(np.eye(DIM + 2),)), "shape"),
        (NAMES[0], replace(GOOD, arrays=()), "one array"),
        (NAMES[0], replace(GOOD, arrays=(np.full((DIM + 1, DIM + 1), np.nan),)), "not finite"),
        (NAMES[0], replace(GOOD, missing=NAMES[:1]), "missing"),
        (NAMES[0], Done(0, ()), "sent Done"),
    ],
)
def test_a_liar_is_named_and_its_part_is_not_counted(sender: str, body: Any, why: str) -> None:
    hub = asking()
    with pytest.raises(PeerError, match=why) as refused:
        hub.receive(Message(sender, "hub", body))
    assert refused.value.peer == sender
    assert hub.counted(0) == ()
    # A good part is still taken from whoever sent a bad one.
    assert hub.receive(Message(NAMES[0], "hub", GOOD)) == []
    with pytest.raises(PeerError, match="more than once"):
        hub.receive(Message(NAMES[0], "hub", GOOD))


def test_an_increment_for_a_slot_that_is_over_is_refused_and_changes_nothing() -> None:
    hub = asking()
    for name in NAMES:
        hub.receive(Message(name, "hub", GOOD))
    assert hub.idle
    before = hub.state.value.tobytes()
    with pytest.raises(PeerError, match="when no slot was asked for"):
        hub.receive(Message(NAMES[0], "hub", GOOD))
    hub.tick()
    with pytest.raises(PeerError, match="answered round 0 in round 1"):
        hub.receive(Message(NAMES[0], "hub", GOOD))
    assert hub.state.value.tobytes() == before
    with pytest.raises(ProtocolError, match="still being asked"):
        hub.tick()


def test_without_a_clock_a_slot_that_nobody_has_closed_does_not_pass() -> None:
    hub = SlotParties(replace(BASE, clock=False, size=9), roster={}).hub()
    for _ in range(3):
        hub.tick()
        for name in NAMES:
            hub.receive(Message(name, "hub", Decline(hub.round)))
        assert hub.newest == 0
    hub.tick()
    hub.receive(Message(NAMES[0], "hub", replace(GOOD, round=hub.round)))
    for name in NAMES[1:]:
        hub.receive(Message(name, "hub", Decline(hub.round)))
    hub.tick()
    assert hub.newest == 1


COUNTED = replace(BASE, clock=False, size=9, max_lateness=1)


def test_a_hub_ends_when_no_source_can_fill_a_slot() -> None:
    hub = SlotParties(COUNTED, roster={}).hub()
    hub.tick()
    for name in NAMES:
        hub.receive(Message(name, "hub", replace(GOOD, round=hub.round)))
    for name in NAMES[:-1]:
        hub.heard(name, 1, ended=True)
    # One of them goes on, so there may be another slot.
    hub.heard(NAMES[-1], 2, ended=False)
    assert (hub.shorten(), hub.horizon) == (False, SLOTS)
    hub.heard(NAMES[-1], 2, ended=True)
    assert (hub.shorten(), hub.horizon) == (True, 2)
    assert hub.shorten() is False
    # The second slot, and then those who were late, for as long as the window says.
    answers: dict[int, list[Any]] = {1: [GOOD, *[Decline(0)] * 5], 2: [Decline(0)] * 6}
    for tick in (1, 2):
        asked = [message.receiver for message in hub.tick()]
        for name, body in zip(asked, answers[tick], strict=False):
            hub.receive(Message(name, "hub", replace(body, round=hub.round)))
    over = [hub.result is not None]
    told = hub.tick()
    over.append(hub.result is not None)
    assert over == [False, True]
    assert [type(message.body) for message in told] == [Done] * 6
    assert (hub.last, len(hub.counted(1))) == (1, 1)
    again = SlotParties(COUNTED, roster={}).hub()
    again.restore(hub.snapshot())
    assert again.result is not None


def test_a_source_that_goes_on_after_all_and_one_that_was_never_heard_of() -> None:
    hub = SlotParties(COUNTED, roster={}).hub()
    for name in NAMES:
        hub.heard(name, 0, ended=True)
    hub.heard(NAMES[0], 1, ended=False)
    assert (hub.shorten(), hub.horizon) == (False, SLOTS)
    # With a clock slots pass by themselves.
    clocked = SlotParties(BASE, roster={}).hub()
    for name in NAMES:
        clocked.heard(name, 0, ended=True)
    assert clocked.shorten() is False


@pytest.mark.parametrize(("name", "closed"), [("stranger", 1), (NAMES[0], -1), (NAMES[0], SLOTS + 1)])
def test_a_site_cannot_say_what_cannot_be(name: str, closed: int) -> None:
    hub = SlotParties(COUNTED, roster={}).hub()
    with pytest.raises(PeerError, match=r"part of this study|has closed"):
        hub.heard(name, closed, ended=True)
    assert hub._progress == {}


def test_under_masks_a_slot_of_rows_is_due_when_enough_have_closed_it() -> None:
    simulation = SlotSimulation(replace(COUNTED, trust="masked"), faults=None)
    hub: Any = simulation.hub
    for name in NAMES[:3]:
        hub.heard(name, 1, ended=False)
    assert not hub.due
    hub.heard(NAMES[3], 1, ended=False)
    assert hub.due
    # Whoever has left cannot give what it has closed. It says so again when it is back.
    hub.left(NAMES[3])
    assert not hub.due
    hub.heard(NAMES[3], 1, ended=False)
    simulation.slot({name: [rows(0, name)] for name in NAMES})
    assert not hub.due
    # Four must be in each sum. Three sources have ended after one slot, so there is no second one.
    for name in NAMES[:3]:
        # A slot that was asked for stays, even if somebody says now that it never was.
        hub._progress.pop(name)
        hub.heard(name, 0, ended=True)
        hub.left(name)
    assert hub.shorten()
    assert (hub.horizon, hub.due) == (1, True)
    hub.tick()
    assert hub.result is not None


def test_a_hub_goes_on_from_its_snapshot() -> None:
    whole, first = run(BASE), SlotSimulation(BASE, faults=None)
    for slot in range(2):
        first.slot({name: [rows(slot, name)] for name in NAMES})
    second = SlotSimulation(BASE, faults=None)
    second.hub.restore(first.hub.snapshot())
    second.following = 2
    for slot in range(2, SLOTS):
        second.slot({name: [rows(slot, name)] for name in NAMES})
    second.finish()
    assert matrix(second).tobytes() == matrix(whole).tobytes()
    assert second.hub.counted(0) == NAMES


MASKED = replace(BASE, trust="masked", fanout=None)


def test_masked_slots_give_the_sum_and_too_few_survivors_skip_a_slot() -> None:
    simulation = run(MASKED, away={1: NAMES[:1], 2: NAMES[:3], 3: NAMES[1:2]})
    skipped = {one.slot: one.skipped for one in simulation.rounds if one.skipped}
    assert list(skipped) == [2]
    assert "needs 4" in skipped[2]
    assert simulation.hub.missing(2) == NAMES
    # Late parts are lost: the masks of a round serve one list of survivors.
    assert simulation.hub.missing(1) == NAMES[:1]
    assert [one.again for one in simulation.rounds] == [False] * SLOTS
    assert simulation.hub.result is not None
    for name in NAMES:
        ledger = simulation.parties.ledgers[name]
        assert ledger.spent_mu <= ledger.budget.mu * (1 + 1e-9)


def test_masked_slots_are_the_plain_sum_up_to_the_noise() -> None:
    spec = replace(MASKED, budget=Budget(200.0, 1e-2), forget=1.0)
    simulation, exact = run(spec), np.zeros((DIM, DIM))
    for slot in range(SLOTS):
        for name in NAMES:
            inside = rows(slot, name)
            inside *= np.minimum(1, 3.0 / np.linalg.norm(inside, axis=1))[:, None]
            exact += inside.T @ inside
    assert np.linalg.norm(matrix(simulation)[:-1, :-1] - exact) < 0.15 * np.linalg.norm(exact)
