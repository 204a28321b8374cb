"""Studies of streams over real connections on loopback: files that grow, a hub that serves, and parties that are stopped."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eigenveil import FederatedStream
from eigenveil.commands import _consent as consent
from eigenveil.commands import watch
from eigenveil.data.follow import Instant, follow
from eigenveil.errors import ClockJumped, OtherStudy, ParameterError
from eigenveil.ledger.durable import DurableLedger
from eigenveil.network.agents.slot_hub import SlotHubAgent, current_line
from eigenveil.network.agents.slot_site import SlotSiteAgent
from eigenveil.network.policy import Policy, PolicyRefusal, template
from eigenveil.network.study import StudyFile
from eigenveil.show.agreement import words_of
from network.network_studies import COLUMNS, Company, keys_of, table_of

SLOTS, ROWS = 4, 50
STREAM: dict[str, dict[str, Any]] = {
    "study": {"streaming": True},
    "slots": {"slots": SLOTS, "slot_rows": ROWS, "max_lateness": 2},
    "task": {"row_bound": 4.0, "neighbours": "zero-out"},
    "privacy": {"trust": "site"},
    "network": {"deadline": 2.0, "retries": 1},
    "rehearsal": {"seed": 11},
}


def sections(**over: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: {**STREAM.get(name, {}), **over.get(name, {})} for name in {*STREAM, *over}}


class Streams(Company):
    """Sites whose tables are csv files that they follow."""

    def write(self, name: str, rows: np.ndarray[Any, Any], *, anew: bool = False) -> Path:
        path = self.folder / f"{name}.csv"
        lines = [",".join(map(repr, row.tolist())) for row in rows]
        head = [",".join(COLUMNS)] if anew or not path.exists() else []
        with path.open("w" if anew else "a") as file:
            file.write("".join(f"{line}\n" for line in (*head, *lines)))
        return path

    async def follow_site(self, name: str, *, source: Any = None, **changes: Any) -> None:
        path = self.folder / f"{name}.csv" if source is None else source
        settings: dict[str, Any] = {
            "keys": keys_of(name, "site"),
            "dataset": "sensor",
            "policy": None,
            "on_event": self.told(name),
        }
        with DurableLedger.open(self.ledger(name)) as ledger:
            agent = SlotSiteAgent(self.study, ledger=ledger, **(settings | changes))
            await agent.run(follow(path, columns=self.study.columns))

    async def serve(self, lines: list[dict[str, Any]]) -> SlotHubAgent:
        with SlotHubAgent.log_for(self.folder / "hub.log", self.study) as log:
            agent = SlotHubAgent(self.study, keys=keys_of("hub", "hub"), log=log, on_event=self.told("hub"))
            await agent.run(lambda hub: lines.append(json.loads(current_line(hub))), listen=f"127.0.0.1:{self.port}")
            return agent


def simulated(company: Streams, rows: dict[str, np.ndarray[Any, Any]], **more: Any) -> FederatedStream:
    given: dict[str, Any] = {
        "epsilon": 5.0,
        "delta": 1e-6,
        "row_bound": 4.0,
        "slots": SLOTS,
        "max_lateness": 2,
        "trust": "site",
        "random_state": 11,
    }
    stream = FederatedStream(2, **(given | more))
    for slot in range(SLOTS):
        stream.partial_fit({name: part[slot * ROWS : (slot + 1) * ROWS] for name, part in rows.items()})
    return stream.finish()


@pytest.mark.parametrize("kind", ["star", "tree", "hub", "masked", "device", "no noise", "fill", "counts", "groups", "drop"])
def test_over_the_network_it_is_the_run_in_one_process_to_the_last_bit(kind: str, tmp_path: Path) -> None:
    over, more, fanout = dict[str, Any](), dict[str, Any](), None
    if kind == "tree":
        fanout, more = 2, {"topology": "tree", "fanout": 2}
    if kind == "hub":
        over, more = {"privacy": {"trust": "hub"}}, {"trust": "hub"}
    if kind == "device":
        over, more = {"slots": {"one_person_per_site": True}}, {"one_person_per_site": True}
    if kind == "masked":
        over, more = {"privacy": {"trust": "masked"}}, {"trust": "masked"}
    if kind == "no noise":
        over = {
            "privacy": {"trust": None, "epsilon": None, "delta": None, "no_privacy": True},
            "task": {"row_bound": None, "neighbours": None},
            "rehearsal": {},
        }
        more = {"epsilon": None, "delta": None, "row_bound": None, "trust": "hub"}
    torn = kind in ("fill", "counts", "groups", "drop")
    if torn:
        also: dict[str, dict[str, Any]] = {"fill": {"missing_fill": 0.5}, "groups": {"missing_groups": [[0, 1], [2]]}}
        more = {"missing": kind, **also.get(kind, {})}
        over = {"task": more}
    if kind == "groups":
        # A study names its columns, and a table without names has numbers. Under masks too: counts are one more sum.
        over = {"task": more | {"missing_groups": "age,weight;pulse"}, "privacy": {"trust": "masked"}}
        more |= {"trust": "masked"}
    given = sections(**over)
    if kind == "no noise":
        del given["rehearsal"]
    company = Streams(tmp_path, sections=given, fanout=fanout)
    rows = {name: table_of(at, SLOTS * ROWS) for at, name in enumerate(company.names)}
    for at, (name, part) in enumerate(rows.items()):
        if torn:
            part[np.random.default_rng(at).random(part.shape) < 0.1] = np.nan
        company.write(name, part)
    lines: list[dict[str, Any]] = []

    async def all_of_them() -> SlotHubAgent:
        async with asyncio.timeout(60):
            nodes = [place.name for place in company.study.nodes]
            others = asyncio.gather(*map(company.follow_site, company.names), *map(company.run_node, nodes))
            hub, _ = await asyncio.gather(company.serve(lines), others)
            return hub

    hub = asyncio.run(all_of_them())
    alone = simulated(company, rows, **more)
    assert [hub.durable.party.counted(slot) for slot in range(SLOTS)] == [tuple(company.names)] * SLOTS
    model = hub.model()
    assert model is not None
    assert model.settings.get("missing", "refuse") == (kind if torn else "refuse")
    if kind != "hub":
        # With noise at the hub, a slot that came in two rounds has two noises: which rounds there are is up to the network.
        assert model.components.tobytes() == alone.components_.tobytes()
        assert model.explained_variance.tobytes() == alone.explained_variance_.tobytes()
        assert model.mean.tobytes() == alone.mean_.tobytes()
    assert lines[-1]["over"] is True
    assert lines[-1]["missing"] == []
    assert len(lines[-1]["components"]) == 2
    for name in company.names:
        with DurableLedger.open(company.ledger(name)) as ledger:
            (study,) = ledger.studies()
            assert study.state == "finished"
            ledger.verify()


def test_a_site_that_was_stopped_reads_on_and_a_hub_that_was_stopped_asks_for_nothing_twice(tmp_path: Path) -> None:
    company = Streams(tmp_path, sections=sections())
    rows = {name: table_of(at, SLOTS * ROWS) for at, name in enumerate(company.names)}
    for name, part in rows.items():
        company.write(name, part[: 2 * ROWS + 7])
    lines: list[dict[str, Any]] = []

    async def first() -> None:
        tasks = [
            asyncio.ensure_future(company.serve(lines)),
            *map(asyncio.ensure_future, map(company.follow_site, company.names)),
        ]
        async with asyncio.timeout(30):
            while not any(line["slot"] == 2 and not line["missing"] for line in lines):
                await asyncio.sleep(0.05)
        # Everybody is stopped at once, in the middle of the third slot.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def second() -> SlotHubAgent:
        async with asyncio.timeout(60):
            others = asyncio.gather(*map(company.follow_site, company.names))
            hub, _ = await asyncio.gather(company.serve(lines), others)
            return hub

    asyncio.run(first())
    for name, part in rows.items():
        company.write(name, part[2 * ROWS + 7 :])
    hub = asyncio.run(second())
    alone = simulated(company, rows)
    model = hub.model()
    assert model is not None
    assert model.components.tobytes() == alone.components_.tobytes()
    assert model.explained_variance.tobytes() == alone.explained_variance_.tobytes()


def test_a_pipe_that_ends_says_which_slot_is_not_filled_and_its_closed_slots_count(tmp_path: Path) -> None:
    company = Streams(tmp_path, sections=sections())
    rows = {name: table_of(at, SLOTS * ROWS) for at, name in enumerate(company.names)}
    for name, part in rows.items():
        company.write(name, part)
    first = company.names[0]
    # Two slots and a half, and then the writer closes the pipe.
    ended = (tmp_path / f"{first}.csv").read_text().splitlines(keepends=True)[: 1 + 2 * ROWS + ROWS // 2]
    reading, writing = os.pipe()
    os.write(writing, "".join(ended).encode())
    os.close(writing)
    lines: list[dict[str, Any]] = []

    async def all_of_them() -> SlotHubAgent:
        async with asyncio.timeout(60):
            with os.fdopen(reading, "rb", buffering=0) as pipe:
                others = asyncio.gather(company.follow_site(first, source=pipe), *map(company.follow_site, company.names[1:]))
                hub, _ = await asyncio.gather(company.serve(lines), others)
            return hub

    hub = asyncio.run(all_of_them())
    assert [first in hub.durable.party.counted(slot) for slot in range(SLOTS)] == [True, True, False, False]
    said = [event.text for who, event in company.happened if who == first and event.what == "waiting"]
    assert any("slot 3 cannot be filled" in words for words in said)


@pytest.mark.parametrize("kind", ["site", "tree", "masked"])
def test_a_hub_ends_when_all_sources_have_ended_before_the_last_slot(kind: str, tmp_path: Path) -> None:
    given = sections(privacy={"trust": "masked"} if kind == "masked" else {}, network={"deadline": 1.0})
    company = Streams(tmp_path, sections=given, fanout=2 if kind == "tree" else None)
    pipes = {}
    for at, name in enumerate(company.names):
        # Two slots and a half at two of them, and one slot less at the last.
        path = company.write(name, table_of(at, (5 if at < 2 else 3) * ROWS // 2))
        reading, writing = os.pipe()
        os.write(writing, path.read_bytes())
        os.close(writing)
        pipes[name] = os.fdopen(reading, "rb", buffering=0)
    lines: list[dict[str, Any]] = []

    async def all_of_them() -> SlotHubAgent:
        async with asyncio.timeout(60):
            nodes = map(company.run_node, [place.name for place in company.study.nodes])
            sites = [company.follow_site(name, source=pipe) for name, pipe in pipes.items()]
            hub, _ = await asyncio.gather(company.serve(lines), asyncio.gather(*sites, *nodes))
            return hub

    hub = asyncio.run(all_of_them())
    for pipe in pipes.values():
        pipe.close()
    counted = [len(hub.durable.party.counted(slot)) for slot in range(SLOTS)]
    # Masks need all three sites here.
    assert counted == ([3, 0, 0, 0] if kind == "masked" else [3, 2, 0, 0])
    model = hub.model()
    assert model is not None
    assert any("stream has ended" in words for words in model.guarantee.assumptions)
    assert (lines[-1]["over"], lines[-1]["horizon"], lines[-1]["slots"]) == (True, 1 if kind == "masked" else 2, SLOTS)
    for name in company.names:
        with DurableLedger.open(company.ledger(name)) as ledger:
            assert [study.state for study in ledger.studies()] == ["finished"]


@pytest.mark.parametrize(
    ("over", "why"),
    [
        ({"slots": {"slots": None}}, "slots is missing"),
        ({"slots": {"slot_rows": None}}, "either .* slot_rows or .* slot_seconds"),
        ({"slots": {"slot_rows": None, "slot_seconds": 60.0}}, "begins goes with"),
        ({"task": {"row_bound": None}}, "row_bound is missing"),
        ({"task": {"neighbours": None}}, "must be zero-out or replace-one"),
        ({"privacy": {"trust": "both"}}, "not for streams"),
        ({"privacy": {"trust": "masked", "survivors": 2}}, "survivors must lie between 3"),
        ({"privacy": {"trust": "masked", "epsilon": None, "delta": None, "no_privacy": True}}, "without noise sites send"),
        ({"task": {"method": "krylov"}}, "for a study of tables"),
        ({"task": {"missing": "groups"}}, "needs .*missing_groups"),
        ({"task": {"missing": "counts", "missing_fill": 0.5}}, "missing_fill"),
        ({"study": {"streaming": None}}, "add .*streaming"),
        ({"slots": {"slots": 0}}, "slots must be"),
    ],
)
def test_a_study_of_streams_is_refused_by_the_key_that_is_wrong(
    over: dict[str, dict[str, Any]], why: str, tmp_path: Path
) -> None:
    with pytest.raises((ValueError, ParameterError), match=why):
        Streams(tmp_path, sections=sections(**over))


def test_the_file_of_a_study_of_streams_reads_back_and_says_what_it_is(tmp_path: Path) -> None:
    company = Streams(tmp_path, sections=sections())
    assert StudyFile.parse(company.study.text()) == company.study
    said = "\n".join(words_of(company.study))
    assert "4, 50 rows each" in said
    assert "up to 2 slots late" in said
    assert "write each row at once" not in said
    clock = {"slot_rows": None, "slot_seconds": 60.0, "begins": 0.0}
    timed = Streams(tmp_path, sections=sections(slots=clock)).study
    assert "60 seconds each" in (said := "\n".join(words_of(timed)))
    assert "write each row at once" in said


def test_watch_shows_each_line_once_also_when_the_hub_drops_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = Streams(tmp_path, sections=sections()).study
    path = tmp_path / "lines.jsonl"

    def line(number: int, **more: Any) -> str:
        return json.dumps({"at": f"{number}", "digest": study.digest, "slot": number, "over": False} | more)

    # What the file holds at each look: nothing yet, a line, two more, the oldest dropped, all others dropped.
    looks = [[], [line(1)], [line(1), line(2), line(3)], [line(3), line(4)], [line(6, over=True)]]

    def look(seconds: float) -> None:
        path.write_text("".join(f"{one}\n" for one in looks.pop(0)))

    look(0.0)
    monkeypatch.setattr("eigenveil.commands.watch.time.sleep", look)
    assert [facts["slot"] for facts, _ in watch._followed_lines(path, study, once=False)] == [1, 2, 3, 4, 6]
    assert capsys.readouterr().err.count("has no line yet") == 1
    path.unlink()
    with pytest.raises(ValueError, match="has no line yet"):
        next(watch._followed_lines(path, study, once=True))


@pytest.mark.parametrize(
    ("slots", "units"), [({}, ["row"]), ({"one_person_per_site": True}, ["stream"]), ({"person_slots": 3}, ["stream"])]
)
def test_a_policy_says_whether_people_are_in_several_slots(slots: dict[str, Any], units: list[str], tmp_path: Path) -> None:
    study = Streams(tmp_path, sections=sections(slots=slots, rehearsal={})).study
    found = []
    for unit in ("row", "stream", "person"):
        column = '\nperson = "patient"' if unit == "person" else ""
        policy = Policy.parse(f'[limits]\nunit = "{unit}"{column}\n')
        refused = [reason for reason in policy.refusals(study, me="site 0", method="covariance") if " unit " in reason]
        found += [] if refused else [unit]
    assert found == units
    # What `policy new` proposes is what the study needs, and --yes asks for just that.
    assert f'# unit = "{units[0]}"' in template(study)
    with pytest.raises(ValueError, match=f'write unit = "{units[0]}" under'):
        consent.require_unit(study, Policy.parse(""), tmp_path / "policy.toml")


@pytest.mark.parametrize(("jump", "why"), [(3600.0, "jumped ahead by 3600"), (-3600.0, "went back by 3600")])
def test_a_hub_whose_clock_jumps_asks_for_nothing_and_goes_on_when_it_is_set_right(
    jump: float, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins = 1_800_000_000.0
    slots = {"slot_rows": None, "slot_seconds": 60.0, "begins": begins}
    company = Streams(tmp_path, sections=sections(slots=slots, task={"neighbours": "add-remove"}))
    # The end of the first slot is 60 seconds after it begins.
    looks = [Instant(begins + 1, 1.0), Instant(begins + 2 + jump, 2.0)]
    monkeypatch.setattr("eigenveil.network.agents.slot_hub._LOOK", 0.0)
    monkeypatch.setattr(Instant, "now", lambda: looks.pop(0))
    with pytest.raises(ClockJumped, match=why):
        asyncio.run(company.serve([]))
    with SlotHubAgent.log_for(tmp_path / "hub.log", company.study) as log:
        agent = SlotHubAgent(company.study, keys=keys_of("hub", "hub"), log=log)
    assert agent.durable.party.newest == -1


def test_a_site_with_another_study_file_is_told_so_and_charged_nothing(tmp_path: Path) -> None:
    company = Streams(tmp_path, sections=sections())
    company.write("site 0", table_of(0, SLOTS * ROWS))
    ours = company.study
    lines: list[dict[str, Any]] = []

    async def both() -> None:
        hub = asyncio.ensure_future(company.serve(lines))
        await asyncio.sleep(0)
        # The same hub and sites, and other terms.
        document = company.document()
        document["task"]["row_bound"] = 3.0
        company.study = StudyFile.of(document)
        async with asyncio.timeout(30):
            with pytest.raises(OtherStudy, match=ours.digest):
                await company.follow_site("site 0")
        hub.cancel()
        await asyncio.gather(hub, return_exceptions=True)

    asyncio.run(both())
    with DurableLedger.open(company.ledger("site 0")) as ledger:
        ((state,), (study,)) = ledger.datasets(), ledger.studies()
        assert (state.spent, study.standing.entries) == (0.0, 0)


def test_a_policy_decides_before_anything_is_connected_or_charged(tmp_path: Path) -> None:
    company = Streams(tmp_path, sections=sections())
    company.write("site 0", table_of(0, 10))
    strict = Policy.parse("[budget]\nstudy_epsilon = 0.5\n")
    with pytest.raises(PolicyRefusal, match="epsilon"):
        asyncio.run(company.follow_site("site 0", policy=strict))
    with DurableLedger.open(company.ledger("site 0")) as ledger:
        assert ledger.studies() == ()
