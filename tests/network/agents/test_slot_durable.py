"""Streams on disk: parties that are stopped at any moment go on, say the same bytes, and are charged once."""

import sqlite3
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eigenveil.core.ledger import Charge
from eigenveil.errors import ProtocolError
from eigenveil.estimators.slots.answer import SlotSimulation
from eigenveil.estimators.slots.parties import SlotParties, SlotSpec
from eigenveil.ledger.durable import DurableLedger, LedgerError, StudyBudget
from eigenveil.network.agents.hub_log import HubLog
from eigenveil.network.agents.slot_hub import DurableSlotHub
from eigenveil.network.agents.slot_steps import DurableSlotSite, StoredParts, StreamCheckpoint
from eigenveil.privacy.released import packed_size
from eigenveil.protocols.keys import Identity
from eigenveil.protocols.limits import FitSize, limits_for
from eigenveil.protocols.messages import Ask, Contribution, Decline, Message
from eigenveil.protocols.wire import decode, encode
from eigenveil.tasks.base import Question
from protocols.slots.test_slot_parties import BASE, DIM, NAMES, SLOTS, SPECS, matrix, rows, run

STUDY = "ab" * 32
SIZE = FitSize(0, (DIM + 1) ** 2 + 20, 100)


class World:
    """Parties whose bytes are carried by hand, each with its own files. Any of them can be stopped and started again."""

    def __init__(self, folder: Path, spec: SlotSpec) -> None:
        self.folder, self.spec = folder, spec
        self.hub: Any = None
        self.sites: dict[str, Any] = {}
        self.ledgers: dict[str, DurableLedger] = {}
        self.log: HubLog | None = None
        self.before: dict[str, StreamCheckpoint] = {}
        # Identities are made once: signatures are checked against them.
        masked = spec.trust == "masked"
        self.accounts: dict[str, StudyBudget] = {}
        self.identities = {name: Identity.fresh() for name in NAMES} if masked else {}
        self.start_hub()
        for name in NAMES:
            self.start_site(name)

    def parties(self) -> SlotParties:
        roster = {name: one.public for name, one in self.identities.items()}
        return SlotParties(self.spec, roster=roster, title="a study")

    def start_hub(self) -> None:
        if self.log is not None:
            self.log.close()
        self.log = HubLog.open(self.folder / "hub.log", study=STUDY, wheel="slots 1")
        self.hub_parties = self.parties()
        limits = limits_for("hub", SIZE, [*NAMES, "hub"], self.hub_parties.masked)
        self.hub = DurableSlotHub(self.hub_parties, self.log, limits=limits)

    def start_site(self, name: str) -> None:
        if name in self.ledgers:
            self.ledgers[name].close()
        ledger = self.ledgers[name] = DurableLedger.open(self.folder / f"{name}.db")
        budget = self.spec.budget
        assert budget is not None
        account = self.accounts[name] = StudyBudget(
            study=STUDY,
            title="stream",
            dataset="rows",
            trust=self.spec.trust,
            epsilon=budget.epsilon,
            delta=budget.delta,
            mu=budget.mu,
            party=name,
            unit=self.spec.unit,
        )
        joined = ledger.join(account, life=None)
        parties = self.parties()
        at_site, masked = self.spec.trust != "hub", parties.masked
        spends = budget if masked is None else masked.lattice.gaussian
        before = StreamCheckpoint.read(joined.steps, spends if at_site else None, self.spec.unit)
        self.before[name] = before
        parts = StoredParts(ledger, STUDY, masked=masked is not None)
        party: Any
        if masked is None:
            party = parties.member(name, ledger=before.ledger, stored=parts)
        else:
            party = parties.masked_member(
                name, identity=self.identities[name], secret=joined.secret, ledger=before.ledger, stored=parts
            )
        self.sites[name] = DurableSlotSite(
            party,
            ledger,
            joined,
            parts=parts,
            ledger=lambda: parties.ledgers.get(name),
            study=STUDY,
            above="hub",
            window=self.spec.max_lateness,
            limits=limits_for("site", SIZE, [*NAMES, "hub"], masked),
            questions=200,
            whole=None if at_site else Charge("the whole study", budget.mu),
        )

    def close(self, slot: int, name: str) -> None:
        filled = self.spec.task().open()
        filled.add(rows(slot, name))
        self.sites[name].close(slot, filled, then=f"after slot {slot}")

    def ask(self, *, away: tuple[str, ...] = (), stop_after: int | None = None) -> None:
        """One slot: carry bytes until the hub is idle. After so many messages the hub is stopped and started again."""
        waiting, extra = list(self.hub.tick()), 0
        while not self.hub.party.idle or waiting:
            if not waiting:
                waiting = list(self.hub.wait_over())
                continue
            receiver, data = waiting.pop(0)
            if receiver in away:
                continue
            for _, answer in self.sites[receiver].take("hub", data):
                extra += 1
                waiting += self.hub.take(receiver, answer)
                if extra == stop_after:
                    self.start_hub()
                    waiting = list(self.hub.begin())

    def run(self, **stops: Any) -> None:
        for slot in range(self.spec.slots):
            for name in NAMES:
                self.close(slot, name)
            for name in stops.get("sites", {}).get(slot, ()):
                self.start_site(name)
            self.ask(away=stops.get("away", {}).get(slot, ()), stop_after=stops.get("hub", {}).get(slot))
        while not self.hub.over:
            self.ask()


@pytest.mark.parametrize("kind", ["noise at sites", "noise at the hub"])
def test_on_disk_it_is_the_run_in_one_process_to_the_last_bit_whatever_is_stopped(kind: str, tmp_path: Path) -> None:
    spec = replace(SPECS[kind], max_lateness=2)
    away = {1: NAMES[:2], 2: NAMES[3:4]}
    plain = run(spec, away=away)
    every: tuple[dict[str, Any], ...] = (
        {},
        {"hub": {0: 1, 1: 3, 3: 5}},
        {"sites": {1: NAMES[:3], 2: NAMES, 4: NAMES[2:4]}, "hub": {2: 2}},
    )
    for number, stops in enumerate(every):
        folder = tmp_path / str(number)
        folder.mkdir()
        world = World(folder, spec)
        world.run(away=away, **stops)
        assert np.asarray(world.hub.party.state.value).tobytes() == matrix(plain).tobytes()
        assert [world.hub.party.counted(slot) for slot in range(SLOTS)] == [plain.hub.counted(slot) for slot in range(SLOTS)]
        assert spec.budget is not None
        for name in NAMES:
            (state,) = world.ledgers[name].datasets()
            # One charge for a person in one slot, however often a site was stopped, asked, and late.
            assert state.spent == pytest.approx(spec.budget.mu)
            world.ledgers[name].verify()
        if spec.trust == "hub":
            assert world.hub_parties.ledgers["hub"].spent_mu == pytest.approx(spec.budget.mu)
        # All of it is in one snapshot, however long the study was.
        assert world.log is not None
        assert [event.kind for event in world.log.events()] == ["snapshot"]


def state_bytes(state: Any) -> bytes:
    return np.asarray(state.value).tobytes() + repr((state.reference, state.parts, state.noise)).encode()


@pytest.mark.parametrize("kind", ["noise at sites", "noise at the hub"])
def test_a_hub_that_is_stopped_after_any_slot_shows_the_same_answer_while_sites_are_late(kind: str, tmp_path: Path) -> None:
    spec = replace(SPECS[kind], max_lateness=2)
    away = {slot: NAMES[slot : slot + 2] for slot in range(SLOTS)}
    plain, world = SlotSimulation(spec, faults=None), World(tmp_path, spec)
    for slot in range(SLOTS):
        plain.slot({name: [rows(slot, name)] for name in NAMES}, away=away[slot])
        for name in NAMES:
            world.close(slot, name)
        world.ask(away=away[slot])
        world.start_hub()
        assert state_bytes(world.hub.party.state) == state_bytes(plain.hub.state)
        # Two slots are kept apart, as soon as there are so many.
        assert len(world.hub.party.snapshot().unsettled) == min(slot + 1, 2)


def test_a_site_repeats_its_bytes_after_a_restart_and_knows_where_to_read_on(tmp_path: Path) -> None:
    world = World(tmp_path, replace(BASE, person_slots=3))
    world.close(0, NAMES[0])
    world.close(2, NAMES[0])
    (asked, *_) = [raw for name, raw in world.hub.tick() if name == NAMES[0]]
    first = world.sites[NAMES[0]].take("hub", asked)
    world.start_site(NAMES[0])
    assert world.sites[NAMES[0]].take("hub", asked) == first
    before = world.before[NAMES[0]]
    assert before.resume_offset == "after slot 2"
    assert before.ledger is not None
    # Two of the three slots that a person may be in are paid, and the series goes on after the third.
    assert before.ledger.series()["slots"][:2] == (2, 3)
    with pytest.raises(ValueError, match="closed already"):
        world.close(1, NAMES[0])


def test_by_the_clock_a_question_waits_until_its_slot_is_due_closed_or_not(tmp_path: Path) -> None:
    world = World(tmp_path, BASE)
    site, name = world.sites[NAMES[0]], NAMES[0]
    site._clock = True

    def asked(round_: int, slot: int) -> list[Any]:
        answers = site.take("hub", encode(Message("hub", name, Ask(round_, Question(slot)))))
        return [decode(raw).body for _, raw in answers]

    world.close(0, name)
    # A slot that is closed, one that is open, one that was skipped, and one after the source has ended.
    for round_, (slot, expected) in enumerate([(0, Contribution), (1, Decline), (2, Decline), (3, Decline)]):
        if slot == 2:
            site.party.skip(3)
        if slot == 3:
            site.end()
        assert asked(round_, slot) == []
        assert site.awaited == slot
        ((_, raw),) = site.held()
        assert isinstance(decode(raw).body, expected)
        assert (site.awaited, site.held()) == (None, [])


def test_asked_in_a_later_round_a_site_says_the_same_numbers_from_its_ledger(tmp_path: Path) -> None:
    world = World(tmp_path, BASE)
    site, task = world.sites[NAMES[0]], SlotParties(BASE, roster={}).task
    world.close(0, NAMES[0])
    said: list[Any] = []
    for round_ in (0, 7, 1234):
        ((_, answer),) = site.take("hub", encode(Message("hub", NAMES[0], Ask(round_, Question(0)))))
        body = decode(answer).body
        assert isinstance(body, Contribution)
        assert body.round == round_
        said.append(np.asarray(task.part(Question(0), body.arrays)).tobytes())
    assert len(set(said)) == 1


def test_a_part_that_was_changed_in_the_ledger_does_not_leave(tmp_path: Path) -> None:
    world = World(tmp_path, BASE)
    world.close(0, NAMES[0])
    for change in ("zeroblob(length(data))", "'text'", "substr(data, 2)"):
        with sqlite3.connect(tmp_path / f"{NAMES[0]}.db") as tables:
            (kept,) = tables.execute("SELECT data FROM stored WHERE place = 1").fetchone()
            tables.execute(f"UPDATE stored SET data = {change} WHERE place = 1")
        with pytest.raises(LedgerError, match="other bytes"):
            world.sites[NAMES[0]].take("hub", encode(Message("hub", NAMES[0], Ask(0, Question(0)))))
        with sqlite3.connect(tmp_path / f"{NAMES[0]}.db") as tables:
            tables.execute("UPDATE stored SET data = ? WHERE place = 1", (kept,))
    with sqlite3.connect(tmp_path / f"{NAMES[0]}.db") as tables:
        tables.execute("DELETE FROM stored")
    with pytest.raises(LedgerError, match="is missing"):
        world.sites[NAMES[0]].take("hub", encode(Message("hub", NAMES[0], Ask(0, Question(0)))))


def test_a_slot_of_1000_columns_is_closed_and_said_in_two_halves_of_a_matrix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A device has 110 MiB for everything, and a matrix of 1000 columns takes 8.
    dim, spec = 1000, replace(BASE, dim=1000)
    half = 8 * packed_size((dim + 1, dim + 1), symmetric=True)
    monkeypatch.setattr("network.agents.test_slot_durable.SIZE", FitSize(0, half, 100))
    world = World(tmp_path, spec)
    filled, block = SlotParties(spec, roster={}).task.open(), np.ones((16, dim))
    tracemalloc.start()
    filled.add(block)
    world.sites[NAMES[0]].close(0, filled, then="")
    closing = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    ((_, said),) = world.sites[NAMES[0]].take("hub", encode(Message("hub", NAMES[0], Ask(0, Question(0)))))
    saying = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(said) > half
    # The sums were made before: so one half more, and what noise and pieces take.
    assert closing < half + 1.5e6
    assert saying < 1.3 * half


def test_after_a_failed_commit_a_site_says_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, BASE)
    with monkeypatch.context() as broken:
        broken.setattr(DurableLedger, "commit", lambda *given, **more: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            world.close(0, NAMES[0])
    (asked, *_) = [raw for name, raw in world.hub.tick() if name == NAMES[0]]
    with pytest.raises(ProtocolError, match="start the site again"):
        world.sites[NAMES[0]].take("hub", asked)
    # What was never committed never left, so the slot can be made again.
    world.start_site(NAMES[0])
    world.close(0, NAMES[0])
    assert world.sites[NAMES[0]].take("hub", asked) != []
