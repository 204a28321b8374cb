"""Neighbouring tables and equal commands: exports, heads and exit codes are equal but for random numbers, which are fresh.

The shape of an export is all of it with each random number replaced by the place where it came first. So two exports of one
shape have the same entries in the same order, with the same fields, lengths and equalities.
"""

import json
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands.command_tables import eigenveil
from commands.network.network_folders import Folders
from eigenveil import Ledger, PrivatePCA, StreamingPCA, find_bounds
from eigenveil.core.ledger import Charge
from eigenveil.core.unit import Neighbours
from eigenveil.ledger.durable import DurableLedger
from eigenveil.ledger.replay import Replay, canonical, read_export, written_export
from eigenveil.ledger.store import NotedHead, note_head
from eigenveil.linalg import Array
from eigenveil.network.agents.star import SiteAgent
from eigenveil.protocols.wire import decode
from ledger.ledger_children import LIFE, account
from network.agents.test_masked_slots import MaskedWorld
from network.agents.test_slot_durable import World
from network.network_studies import Company, PeerCompany
from protocols.slots.test_slot_parties import BASE, NAMES

# Nonces, marks, hashes and digests of studies are random or depend on random numbers.
RANDOM = re.compile(r"\b(?:[0-9a-f]{64}|[0-9a-f]{32})\b")
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()


@pytest.fixture(autouse=True)
def noon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The day is public, and must not end between two runs."""
    monkeypatch.setattr(time, "time", lambda: NOON)


def texts_of(path: Path) -> list[str]:
    """The export of a ledger, which a third party has checked."""
    with DurableLedger.reading(path) as ledger:
        texts = list(written_export(ledger.entries()))
    Replay().run(read_export(texts))
    return texts


def shape_of(texts: Iterable[str]) -> str:
    seen: dict[str, str] = {}
    return RANDOM.sub(lambda found: seen.setdefault(found[0], f"{len(found[0])} digits, {len(seen)}"), "".join(texts))


def shown(path: Path) -> tuple[str, str]:
    """The shapes of what others may see: the export, and the head as it is noted elsewhere."""
    with DurableLedger.reading(path) as ledger:
        head = path.with_name("elsewhere.head")
        note_head(ledger, head)
        noted = head.read_text()
    assert NotedHead.read(head).entries > 0
    return shape_of(texts_of(path)), shape_of([noted])


# Fits on a ledger.


def people(count: int = 4000) -> Array:
    return np.random.default_rng(3).standard_normal((count, 4)) * [4, 3, 2, 1]


def added(rows: Array) -> Array:
    return np.vstack([rows, [[3.0, -2.0, 1.0, 0.5]]])


def changed(rows: Array) -> Array:
    return np.vstack([rows[:-1], [[3e7, -2.0, 1.0, 0.5]]])


def removed(rows: Array) -> Array:
    return rows[:-1]


def same(rows: Array) -> Array:
    return rows


NEIGHBOURS = [added, changed, removed]
SEEDED: dict[str, Any] = {"epsilon": 0.6, "delta": 1e-6, "random_state": 3}
COMMON = ("--epsilon", 0.6, "--delta", "1e-6", "--even-if-noise")
LIFE_TIME = ("--dataset", "people", "--lifetime-epsilon", 4)


def saved(path: Path, rows: Array) -> Path:
    np.savetxt(path, rows, delimiter=",", header="a,b,c,d", comments="")
    return path


def fits(folder: Path, second: Callable[[Array], Array], *more: object) -> tuple[Any, ...]:
    """Two fits of one file, which may be rewritten in between; then bounds, a spectrum and a stream; and a copy elsewhere."""
    folder.mkdir()
    table, ledger, codes = folder / "people.csv", folder / "ledger.db", list[int]()

    def command(name: str, source: Path, *options: object, out: str) -> None:
        done = eigenveil(name, source, *options, "--ledger", ledger, "-o", folder / out, "--force")
        codes.append(done.exit_code)

    rows = people()
    command("fit", saved(table, rows), "-k", 2, *COMMON, *more, *LIFE_TIME, out="m.safetensors")
    saved(table, second(rows))
    command("fit", table, "-k", 2, *COMMON, *more, out="m.safetensors")
    command("bounds", table, *COMMON[:4], out="bounds.json")
    command("spectrum", table, *COMMON[:4], "--row-bound", 9, out="spectrum.json")
    # The same people in another file, under another name: whether the rows are equal decides nothing.
    elsewhere = saved(folder / "copy.csv", rows)
    command("fit", elsewhere, "-k", 2, *COMMON, *more, "--dataset", "others", "--lifetime-epsilon", 4, out="m.safetensors")
    # The same file under another name is refused, whatever is in it now.
    command("fit", table, "-k", 2, *COMMON, "--dataset", "third", "--lifetime-epsilon", 4, out="m.safetensors")
    return codes, shown(ledger)


@pytest.mark.parametrize("second", NEIGHBOURS)
def test_fits_of_neighbouring_tables_leave_ledgers_of_one_shape(tmp_path: Path, second: Callable[[Array], Array]) -> None:
    given = ("--row-bound", 9, "--center", "none")
    one, other = (fits(tmp_path / made.__name__, made, *given) for made in (same, second))
    assert one[0][:2] == [0, 0] and one[0][4:] == [0, 2]
    assert one == other


def test_so_do_fits_that_find_their_bounds(tmp_path: Path) -> None:
    one, other = (fits(tmp_path / made.__name__, made) for made in (same, added))
    assert one == other


@pytest.mark.parametrize("second", NEIGHBOURS)
def test_streams_on_a_ledger_leave_one_shape(tmp_path: Path, second: Callable[[Array], Array]) -> None:
    found = []
    for made in (same, second):
        (folder := tmp_path / made.__name__).mkdir()
        table, ledger = saved(folder / "people.csv", made(people())), folder / "ledger.db"
        out = ("-o", folder / "s.safetensors", "--no-state")
        done = eigenveil("stream", table, "-k", 2, *COMMON, "--row-bound", 9, *LIFE_TIME, "--ledger", ledger, *out)
        found.append((done.exit_code, shown(ledger)))
    assert found[0] == found[1] and found[0][0] == 0


OPENED: dict[str, Callable[[Array, Ledger], object]] = {
    "fit": lambda rows, ledger: PrivatePCA(2, row_bound=9.0, ledger=ledger, **SEEDED).fit(rows),
    "fit with private units": lambda rows, ledger: PrivatePCA(2, scale="private", ledger=ledger, **SEEDED).fit(rows),
    "bounds": lambda rows, ledger: find_bounds(rows, ledger=ledger, **SEEDED),
    "stream": lambda rows, ledger: StreamingPCA(2, row_bound=9.0, ledger=ledger, **SEEDED).fit(rows),
}


@pytest.mark.parametrize("second", NEIGHBOURS)
@pytest.mark.parametrize("name", OPENED)
def test_ledgers_that_python_opens_have_one_shape(tmp_path: Path, name: str, second: Callable[[Array], Array]) -> None:
    found = []
    for made in (same, second):
        path = tmp_path / f"{made.__name__}.ledger"
        ledger = Ledger.open(path, dataset="people", epsilon=4, delta=1e-5)
        OPENED[name](made(people()), ledger)
        # The rest of a reserve is given back at the next use of the file.
        assert ledger.charges
        found.append(shown(path))
    assert found[0] == found[1]


# Sites and peers, over real connections.


def visits() -> Array:
    return np.random.default_rng(0).standard_normal((999, 5))


def visit_more(rows: Array) -> Array:
    return np.vstack([rows, np.full((1, 5), 1e6)])


def another_visit(rows: Array) -> Array:
    return np.vstack([rows[:-1], np.full((1, 5), 1e6)])


def the_largest_visit(rows: Array) -> Array:
    return np.vstack([rows, np.full((1, 5), np.finfo(float).max)])


def one_visit(rows: Array) -> Array:
    return rows[:1]


def no_visit(rows: Array) -> Array:
    return rows[:0]


VISITS = [visit_more, another_visit, the_largest_visit, one_visit, no_visit]


@pytest.mark.parametrize("trust", ["hub", "site", "both", "masked"])
def test_ledgers_of_sites_have_one_shape(tmp_path: Path, trust: str) -> None:
    privacy = {"trust": trust} | ({"epsilon": [5.0, 2.0], "delta": [1e-6, 1e-6]} if trust == "both" else {})
    found = []
    for made in (same, *VISITS):
        (folder := tmp_path / made.__name__).mkdir()
        company = Company(folder, sections={"privacy": privacy})
        company.tables["site 0"] = made(visits())
        rounds = [(done.answered, done.bytes_up, done.bytes_down) for done in company.run().durable.rounds]
        found.append([rounds, *(shown(company.ledger(name)) for name in company.names)])
    assert all(shape == found[0] for shape in found)


@pytest.mark.parametrize("noise", ["pairwise", "independent"])
def test_ledgers_of_peers_have_one_shape(tmp_path: Path, noise: str) -> None:
    found = []
    for made in (same, *VISITS):
        (folder := tmp_path / made.__name__).mkdir()
        company = PeerCompany(folder, sections={"privacy": {"noise": noise}})
        company.tables["peer 0"] = made(visits())
        assert company.run() == [None] * 4
        found.append([shown(company.ledger(name)) for name in company.names])
    assert all(shape == found[0] for shape in found)


def served(tmp_path: Path, name: str, patch: pytest.MonkeyPatch, second: Callable[[Array], Array]) -> tuple[Any, ...]:
    """A service that is started, and started again beside a table that may have changed; then on a copy under another name."""

    async def run(self: SiteAgent, *_: object, note: str | None, **__: object) -> None:
        self.ledger.join(self.account, life=None if self.policy is None else self.policy.life)
        if note is not None:
            self.ledger.note(self.study.digest, note)
        raise ValueError("as far as this goes")

    patch.setattr(SiteAgent, "run", run)
    told = []
    for at in range(2):
        (tmp_path / f"{name} {at}").mkdir()
    first, other = (Folders(tmp_path / f"{name} {at}", task={"row_bound": 4.0 + at}) for at in range(2))
    ledger = first.of("site 0") / "ledger.db"
    rows = first.tables["site 0"]
    for folders, dataset, table in ((first, "patients", rows), (first, "patients", second(rows)), (other, "others", rows)):
        np.save(folders.of("site 0") / "people.npy", table)
        policy = folders.policy("site 0")
        options = ("--policy", policy, "--yes", "--dataset", dataset, "--ledger", ledger)
        done = eigenveil(*folders.site("site 0", *options, "--data", folders.of("site 0") / "people.npy"))
        told.append((done.exit_code, done.stderr))
    return told, shown(ledger)


@pytest.mark.parametrize("second", [visit_more, another_visit])
def test_whether_a_service_takes_part_does_not_depend_on_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: Callable[[Array], Array]
) -> None:
    one, other = (served(tmp_path, made.__name__, monkeypatch, made) for made in (same, second))
    assert [words for _, words in one[0]] == ["error: as far as this goes\n"] * 3
    assert one == other


# Streams, with slots that nobody has rows in.


def slots_at(world: Any, count: Callable[[int], int], then: Callable[[int], str]) -> None:
    """So many rows in the slots of the first site, and 9 in those of the others. `then` is where to read on."""

    def close(slot: int, name: str) -> None:
        filled = world.spec.task().open()
        number = count(slot) if name == NAMES[0] else 9
        filled.add(np.random.default_rng([slot, number]).standard_normal((number, 4)))
        world.sites[name].close(slot, filled, then=then(number))

    world.close = close


def sent_by(world: Any) -> list[tuple[str, str, int]]:
    """From here on: which kind of message each site sends, and how long it is, in order."""
    told: list[tuple[str, str, int]] = []
    for name, site in world.sites.items():

        def take(sender: str, data: bytes, name: str = name, take: Any = site.take) -> list[tuple[str, bytes]]:
            outgoing: list[tuple[str, bytes]] = take(sender, data)
            told.extend((name, type(decode(raw).body).__name__, len(raw)) for _, raw in outgoing)
            return outgoing

        site.take = take
    return told


@pytest.mark.parametrize("trust", ["hub", "site", "masked"])
def test_ledgers_of_streams_have_one_shape(tmp_path: Path, trust: Any) -> None:
    """The same slots and questions; rows in some slots, in none, or in one more, and offsets of other lengths."""
    spec = replace(BASE, trust=trust, neighbours=Neighbours.ADD_REMOVE)
    shapes: list[list[Any]] = []
    for number, count in enumerate((lambda slot: 0, lambda slot: int(slot == 1), lambda slot: 1000 * slot)):
        (folder := tmp_path / str(number)).mkdir()
        world = (MaskedWorld if trust == "masked" else World)(folder, spec)
        slots_at(world, count, lambda rows: json.dumps({"offset": 10 ** rows.bit_length()}))
        told = sent_by(world)
        for slot in range(spec.slots):
            if isinstance(world, MaskedWorld):
                world.slot(slot)
                continue
            for name in NAMES:
                world.close(slot, name)
            world.ask()
        shapes.append([*(shown(world.ledgers[name].path) for name in NAMES), told])
        assert len(told) >= spec.slots * len(NAMES)
    assert shapes[0] == shapes[1] == shapes[2]


# The random numbers, and what is left.


def test_no_random_number_comes_twice(tmp_path: Path) -> None:
    """Equal bytes in equal places, in one ledger, in a copy of it that goes on by itself, and in another one."""
    paths = []
    for number in range(2):
        path = tmp_path / f"{number}.db"
        with DurableLedger.open(path) as ledger:
            ledger.join(mine := account(mu=0.2), life=LIFE)
            for step in range(3):
                ledger.commit(mine.study, step, came=b"", replies=[bytes(800), bytes(800)], charges=[])
        paths.append(path)
    (copy := tmp_path / "copy.db").write_bytes(paths[0].read_bytes())
    copy.chmod(0o600)
    marks: list[str] = []
    for path, steps in ((paths[0], 3), (copy, 3), (paths[1], 3)):
        with DurableLedger.open(path) as ledger:
            ledger.commit(mine.study, steps, came=b"", replies=[bytes(800)], charges=[])
            entries = [entry.body for entry in ledger.entries() if entry.kind == "commit"]
            fresh = entries if path != copy else entries[3:]
            marks += [mark[name] for body in fresh for mark in (body["came"], *body["said"]) for name in ("hmac", "nonce")]
            # The site itself can still tell what its marks are of.
            assert ledger.is_mark_of(bytes(800), entries[0]["said"][1])
            assert not ledger.is_mark_of(bytes(801), entries[0]["said"][1])
    assert len(set(marks)) == len(marks) == 2 * (11 + 2 + 11)


@pytest.mark.parametrize("size", [0, 1, 9, 10, 1 << 20])
def test_a_mark_has_one_length(tmp_path: Path, size: int) -> None:
    with DurableLedger.open(tmp_path / "ledger.db") as ledger:
        ledger.join(mine := account(mu=0.2), life=LIFE)
        ledger.commit(mine.study, 0, came=bytes(size), replies=[bytes(size)], charges=[Charge("sum", 0.1)])
        body = list(ledger.entries())[-1].body
    for mark in (body["came"], *body["said"]):
        assert {name: len(value) for name, value in mark.items()} == {"hmac": 64, "nonce": 32}


def test_work_that_takes_longer_leaves_no_trace_but_the_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for number, took in enumerate((0.0, 40_000.0)):
        path = tmp_path / f"{number}.db"
        with DurableLedger.open(path) as ledger:
            ledger.join(mine := account(mu=0.2), life=LIFE)
            monkeypatch.setattr(time, "time", lambda took=took: NOON + took)
            ledger.commit(mine.study, 0, came=b"", replies=[b"x"], charges=[])
            monkeypatch.setattr(time, "time", lambda: NOON)
        found.append(shown(path))
        with DurableLedger.reading(path) as ledger:
            assert {entry.time for entry in ledger.entries()} == {"2026-03-01"}
    assert found[0] == found[1]


def test_random_numbers_are_all_that_is_replaced(tmp_path: Path) -> None:
    """A shape that hid more would make every law above pass."""
    with DurableLedger.open(tmp_path / "ledger.db") as ledger:
        ledger.join(mine := account(mu=0.2), life=LIFE)
        ledger.commit(mine.study, 0, came=b"", replies=[b"x"], charges=[Charge("sum", 0.1)])
        entry = list(ledger.entries())[-1].public()
    shape = json.loads(shape_of([canonical(entry)]))
    body = shape["body"]
    assert body["charges"] == [["sum", 0.1]] and body["standing"]["square"] == pytest.approx(0.01)
    assert body["came"]["nonce"] == "32 digits, 1" and body["said"][0]["hmac"] == "64 digits, 2" != body["came"]["hmac"]
    assert (shape["number"], shape["time"], shape["kind"], shape["dataset"]) == (3, "2026-03-01", "commit", "patients")
