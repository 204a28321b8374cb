"""Masked slots on disk: whoever is stopped, and whatever the network does, a slot is unmasked for one set of sites or skipped."""

import random
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eigenveil.network.agents.steps import Event
from eigenveil.protocols.messages import Ask, Contribution, Decline, Done, Masked, Message, StepReply, StepRequest
from eigenveil.protocols.wire import decode, encode
from eigenveil.tasks.base import Question
from network.agents.test_slot_durable import World
from protocols.slots.test_slot_parties import MASKED, NAMES, SLOTS, matrix, run

SPEC = replace(MASKED, survivors=4)


class MaskedWorld(World):
    """Parties under masks whose messages a network may lose, repeat and reorder. It notes which lists sites have signed."""

    def __init__(self, folder: Path, spec: Any = SPEC) -> None:
        self.lists: defaultdict[int, set[bytes]] = defaultdict(set)
        self.rounds: dict[int, int] = {}
        self.signed: set[str] = set()
        self.came: defaultdict[str, list[bytes]] = defaultdict(list)
        super().__init__(folder, spec)

    def said(self, name: str, data: bytes) -> list[bytes]:
        """What a site answers to these bytes."""
        self.came[name].append(data)
        answers = [raw for _, raw in self.sites[name].take("hub", data)]
        body = decode(data).body
        if isinstance(body, Ask):
            self.rounds[body.round] = body.question.step
        if isinstance(body, StepRequest) and body.step == "survivors" and answers:
            self.lists[self.rounds[body.round]].add(body.data)
        return answers

    def passthrough(self, waiting: list[Any], *, rng: random.Random | None = None, **stops: Any) -> None:
        """Carry until the hub is idle. `stops` has, by the number of messages so far, who is started again or lost."""
        gone, extra = set(stops.get("away", ())), 0
        while not self.hub.party.idle:
            if not waiting:
                waiting = list(self.hub.wait_over())
                continue
            receiver, data = waiting.pop(0 if rng is None else rng.randrange(len(waiting)))
            if receiver in gone or (rng is not None and rng.random() < 0.1):
                continue
            if rng is not None and rng.random() < 0.2:
                waiting.append((receiver, data))
            extra += 1
            if extra in stops.get("sites", {}):
                self.start_site(receiver)
            for answer in self.said(receiver, data):
                # An answer may be lost or come twice as well.
                for _ in range(1 if rng is None else rng.choice((0, 1, 1, 1, 2))):
                    waiting += self.hub.take(receiver, answer)
            if extra in stops.get("dies", {}):
                gone.add(stops["dies"][extra])
            if extra in stops.get("hub", ()):
                self.start_hub()
                waiting = list(self.hub.begin())

    def slot(self, slot: int, **stops: Any) -> None:
        for name in NAMES:
            self.close(slot, name)
        self.passthrough(list(self.hub.tick()), **stops)

    def end(self) -> list[Any]:
        told: list[Any] = []
        while not self.hub.over:
            told = self.hub.tick()
        return told

    def counted(self) -> list[tuple[str, ...]]:
        return [self.hub.party.counted(slot) for slot in range(SLOTS)]


def same_answers(world: MaskedWorld) -> bytes:
    """What a run in one process finds if the same sites answer in each slot."""
    away = {slot: tuple(name for name in NAMES if name not in there) for slot, there in enumerate(world.counted())}
    plain = run(world.spec, away=away)
    assert [plain.hub.counted(slot) for slot in range(SLOTS)] == world.counted()
    return matrix(plain).tobytes()


def require_sound(world: MaskedWorld) -> None:
    assert np.asarray(world.hub.party.state.value).tobytes() == same_answers(world)
    # The privacy of masked slots rests on this: no slot has two lists of survivors, not even over several rounds.
    assert all(len(lists) == 1 for lists in world.lists.values())
    assert len(set(world.rounds.values())) == len(world.rounds)
    for name in NAMES:
        (state,) = world.ledgers[name].datasets()
        masked = world.hub_parties.masked
        assert masked is not None and masked.lattice.gaussian is not None
        # One charge for a person in one slot, however often anybody was stopped.
        assert state.spent == pytest.approx(masked.lattice.gaussian.mu)
        world.ledgers[name].verify()


def test_whoever_is_stopped_it_is_the_run_in_one_process_to_the_last_bit(tmp_path: Path) -> None:
    world = MaskedWorld(tmp_path)
    # In the first slot keys are exchanged: 36 messages and more. Later ones have three steps.
    world.slot(0, hub={1, 7, 13, 20, 27, 31, 38}, sites={3, 9, 15, 21, 30, 33, 40})
    world.slot(1, hub={1, 6, 7, 12, 13, 17}, sites={2, 7, 8, 13, 14, 18})
    world.start_hub()
    for name in NAMES:
        world.start_site(name)
    world.slot(2, dies={8: NAMES[4]})
    world.slot(3, away=NAMES[:1])
    world.slot(4, dies={2: NAMES[2], 14: NAMES[5]}, hub={9})
    assert world.counted() == [NAMES, NAMES, NAMES, NAMES[1:], tuple(n for n in NAMES if n != NAMES[2])]
    require_sound(world)
    for name, raw in world.end():
        world.said(name, raw)
    assert all(site.over for site in world.sites.values())
    assert world.log is not None
    assert [event.kind for event in world.log.events()] == ["keys", "snapshot"]


@pytest.mark.parametrize("seed", range(2))
def test_under_loss_repetition_and_reordering_a_slot_counts_once_or_is_skipped(seed: int, tmp_path: Path) -> None:
    world, rng = MaskedWorld(tmp_path), random.Random(seed)
    for slot in range(SLOTS):
        world.slot(
            slot,
            rng=rng,
            hub=set(rng.sample(range(1, 60), 2)),
            sites=set(rng.sample(range(1, 60), 3)),
            dies={rng.randrange(1, 60): rng.choice(NAMES)},
        )
    assert any(world.counted())
    require_sound(world)


def test_a_slot_of_too_few_is_skipped_and_the_study_goes_on(tmp_path: Path) -> None:
    world = MaskedWorld(tmp_path)
    world.slot(0)
    world.slot(1, away=NAMES[:3])
    # Enough have given their parts, and then too few are left to sign and to open.
    world.slot(2, dies={6: NAMES[0], 7: NAMES[1], 8: NAMES[2]})
    world.slot(3)
    world.slot(4)
    assert world.hub.party.skipped == (1, 2)
    assert [len(there) for there in world.counted()] == [6, 0, 0, 6, 6]
    require_sound(world)


def test_a_site_that_was_away_when_keys_were_exchanged_takes_part_once_it_is_back(tmp_path: Path) -> None:
    world = MaskedWorld(tmp_path)
    world.slot(0, away=NAMES[:1])
    world.slot(1, away=NAMES[:1])
    # The hub is stopped after it has seen the site come back, and before it asks.
    world.hub.on_reconnect(NAMES[0])
    world.start_hub()
    world.slot(2)
    world.slot(3)
    world.slot(4)
    assert [NAMES[0] in there for there in world.counted()] == [False, False, True, True, True]
    require_sound(world)


def test_a_hub_whose_log_was_put_back_gets_no_second_list_for_a_slot(tmp_path: Path) -> None:
    world = MaskedWorld(tmp_path)
    world.slot(0)
    assert world.log is not None
    world.log.close()
    shutil.copy(tmp_path / "hub.log", tmp_path / "old.log")
    world.start_hub()
    world.slot(1)
    # It has forgotten the slot that it has unmasked, and asks for it again, without one of the sites.
    world.log.close()
    shutil.copy(tmp_path / "old.log", tmp_path / "hub.log")
    world.start_hub()
    world.passthrough(list(world.hub.tick()), away=NAMES[:1])
    assert world.hub.party.counted(1) == ()
    assert len(world.lists[1]) == 1
    # Nor does another round: the part is gone once it was given.
    site = world.sites[NAMES[1]]
    asked = encode(Message("hub", NAMES[1], Ask(world.hub.party.round + 1, Question(1))))
    ((_, answer),) = site.take("hub", asked)
    assert isinstance(decode(answer).body, StepReply)
    for slot in (2, 3, 4):
        world.slot(slot)
    # The study goes on. The site that was asked for two slots in one round is missing from the second of them.
    assert [len(there) for there in world.counted()] == [6, 0, 5, 6, 6]


def until_signed(world: MaskedWorld, slot: int) -> None:
    """Carry a slot until every site has signed the list of survivors, and go no further."""
    for name in NAMES:
        world.close(slot, name)
    waiting = list(world.hub.tick())
    while len(world.signed) < len(NAMES):
        receiver, data = waiting.pop(0)
        answers = world.said(receiver, data)
        body = decode(data).body
        if isinstance(body, StepRequest) and body.step == "survivors":
            world.signed.add(receiver)
        for answer in answers:
            waiting += world.hub.take(receiver, answer)


@pytest.mark.parametrize(("slot", "last"), [(0, "keys"), (0, "ask"), (1, "ask")])
def test_a_hub_that_repeats_itself_and_waits_for_a_restart_gets_no_second_list(slot: int, last: str, tmp_path: Path) -> None:
    world, me = MaskedWorld(tmp_path), NAMES[1]
    if slot:
        world.slot(0)
    until_signed(world, slot)
    round_, asked = world.hub.party.round, world.came[me]
    # The same questions, in other bytes where that is possible, so often that none is repeated from memory.
    again = [encode(Message("hub", me, Ask(round_, Question(slot), NAMES[:count]))) for count in range(6)]
    keys = [data for data in asked if isinstance(body := decode(data).body, StepRequest) and body.step == "keys"]
    for data in [*asked, *again, *(keys if last == "keys" else again[:1])]:
        world.sites[me].take("hub", data)
    world.start_site(me)
    other = encode(Message("hub", me, StepRequest(round=round_, step="survivors", data=b"\xf8\x04")))
    cards = encode(Message("hub", me, StepRequest(round=0, step="packets", data=b"", table=())))
    assert world.sites[me].take("hub", other) == []
    assert world.sites[me].take("hub", cards) == []
    # What it has signed, it repeats.
    assert len(world.lists[slot]) == 1
    (listed,) = world.lists[slot]
    assert (
        len(world.sites[me].take("hub", encode(Message("hub", me, StepRequest(round=round_, step="survivors", data=listed)))))
        == 1
    )


def test_a_long_outage_does_not_use_up_the_exchanges_of_keys(tmp_path: Path) -> None:
    world = MaskedWorld(tmp_path, replace(SPEC, slots=30))
    for slot in range(28):
        world.slot(slot, away=NAMES[:3])
    # In slots 1, 2, 4, 8 and 16.
    assert world.hub._masking.facts()["sessions"] == 5
    world.start_hub()
    # One more is still too few, unless all are back.
    for name in NAMES[:3]:
        world.hub.on_reconnect(name)
    world.slot(28)
    assert world.hub.party.counted(28) == NAMES


def test_a_site_that_comes_back_again_and_again_and_says_nothing_costs_two_exchanges_of_keys(tmp_path: Path) -> None:
    world = MaskedWorld(tmp_path, replace(SPEC, slots=12))
    for slot in range(8):
        world.hub.on_reconnect(NAMES[0])
        world.slot(slot, away=NAMES[:1])
        world.start_hub()
    assert world.hub._masking.facts()["sessions"] <= 3
    assert all(world.hub.party.counted(slot) == NAMES[1:] for slot in range(8))


@pytest.mark.parametrize("between", [(1,), (0,), (1, 0), (0, 1, 1)], ids=str)
def test_a_share_that_was_given_is_given_to_no_later_round_after_a_restart(between: tuple[int, ...], tmp_path: Path) -> None:
    """Other questions in between make the site drop the messages in which it gave its share."""
    world, me = MaskedWorld(tmp_path), NAMES[1]
    world.slot(0)
    until_signed(world, 1)
    round_ = world.hub.party.round
    for later, slot in enumerate(between, 1):
        world.sites[me].take("hub", encode(Message("hub", me, Ask(round_ + later, Question(slot)))))
    world.start_site(me)
    for later in range(len(between) + 2):
        answers = world.sites[me].take("hub", encode(Message("hub", me, Ask(round_ + later, Question(1)))))
        # In its own round it may repeat what it said.
        assert later == 0 or not any(isinstance(decode(raw).body, Masked) for _, raw in answers)


def test_a_question_that_comes_before_its_slot_is_closed_is_answered_then(tmp_path: Path) -> None:
    world = MaskedWorld(tmp_path)
    for name in NAMES[1:]:
        world.close(0, name)
    late, waiting = NAMES[0], list(world.hub.tick())
    while waiting:
        receiver, data = waiting.pop(0)
        for answer in world.said(receiver, data):
            waiting += world.hub.take(receiver, answer)
    # Everybody else has given, and the hub waits for this one.
    assert not world.hub.party.idle
    world.close(0, late)
    ((_, raw),) = world.sites[late].held()
    assert isinstance(decode(raw).body, Masked)
    assert world.sites[late].held() == []
    world.passthrough(world.hub.take(late, raw))
    assert world.hub.party.counted(0) == NAMES
    # Once its source has ended, a site that was asked declines at once.
    for name in NAMES[1:]:
        world.close(1, name)
    world.sites[late].end()
    world.passthrough(list(world.hub.tick()))
    assert world.hub.party.counted(1) == NAMES[1:]


def test_a_ledger_keeps_the_keys_and_one_round_however_long_the_stream_is(tmp_path: Path) -> None:
    world = MaskedWorld(tmp_path, replace(SPEC, slots=7))
    kept = []
    for slot in range(7):
        world.slot(slot)
        steps = world.ledgers[NAMES[0]].join(world.accounts[NAMES[0]], life=None).steps
        kept.append(sum(step.is_stored for step in steps))
    # The five steps of keys, three of the last round, and the last two slots.
    assert max(kept) <= 10
    assert kept[-1] == kept[3]


ASKED = Ask(1, Question(1))


TO_SITE: list[tuple[str, Any]] = [
    (NAMES[1], ASKED),
    ("hub", replace(ASKED, round=0)),
    ("hub", replace(ASKED, round=99)),
    ("hub", Ask(1, Question(SLOTS))),
    ("hub", Ask(1, Question(1, (np.zeros(3),)))),
    ("hub", StepRequest(round=1, step="survivors", data=b"\xff\x00")),
    ("hub", StepRequest(round=1, step="open", data=b"", table=())),
    ("hub", StepRequest(round=0, step="survivors", data=b"\xf0\x0c")),
    ("hub", StepRequest(round=2, step="keys", data=b"short")),
    ("hub", StepRequest(round=0, step="keys", data=b"k" * 32)),
    ("hub", StepRequest(round=1, step="nonsense")),
    ("hub", Contribution(round=1, arrays=(np.zeros(2),))),
    ("hub", Decline(1)),
]


def test_a_hostile_message_to_a_masked_site_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    world, me = MaskedWorld(tmp_path), NAMES[0]
    world.slot(0)
    for name in NAMES:
        world.close(1, name)
    asked = dict(world.hub.tick())
    head = world.ledgers[me].head
    for sender, body in TO_SITE:
        assert world.sites[me].take(sender, encode(Message(sender, me, body))) == [], body
    # Lines that they were refused, for the site alone, and no entry at all.
    assert len(world.ledgers[me].logged()) == len(TO_SITE)
    assert world.ledgers[me].head == head
    ((_, answer),) = world.sites[me].take("hub", asked[me])
    assert isinstance(decode(answer).body, Masked)


TO_HUB: list[Any] = [
    Masked(1, np.zeros(3, dtype=np.uint64), bytes(64)),
    Masked(1, np.zeros(15, dtype=np.uint64), bytes(64)),
    Masked(0, np.zeros(15, dtype=np.uint64), bytes(64)),
    StepReply(round=1, step="mask", data=b"declined", table=(), signature=bytes(64)),
    StepReply(round=1, step="open", data=b"", table=(), signature=bytes(64)),
    Contribution(round=1, arrays=(np.eye(5),), half=True),
    Decline(1),
    Done(1, ()),
]


def test_a_hostile_message_to_a_masked_hub_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    world = MaskedWorld(tmp_path)
    world.slot(0)
    for name in NAMES:
        world.close(1, name)
    told: list[Event] = []
    world.hub._on_event = told.append
    waiting = list(world.hub.tick())
    assert world.log is not None
    before = list(world.log.events())
    for body in TO_HUB:
        for receiver in ("hub", "another"):
            assert world.hub.take(NAMES[0], encode(Message(NAMES[0], receiver, body))) == [], body
    assert [event.what for event in told] == ["refused"] * 2 * len(TO_HUB)
    assert list(world.log.events()) == before
    world.passthrough(waiting)
    assert world.hub.party.counted(1) == NAMES


def test_a_flood_of_questions_does_not_fill_the_disk(tmp_path: Path) -> None:
    world, me = MaskedWorld(tmp_path), NAMES[0]
    site = world.sites[me]
    site._in_ledger._max_messages = 12
    world.slot(0)
    for number in range(40):
        site.take("hub", encode(Message("hub", me, Ask(0, Question(0), tuple(NAMES[: number % 6])))))
    steps = world.ledgers[me].join(world.accounts[me], life=None).steps
    assert len(steps) <= 12
