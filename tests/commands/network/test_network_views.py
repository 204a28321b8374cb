"""What the parties of a study show while they run: plain lines off a terminal, and live views on one."""

import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from commands.network.network_folders import Folders
from eigenveil.estimators.terms import Round
from eigenveil.network.agents.runner import credentials_of
from eigenveil.network.agents.star import HubAgent
from eigenveil.network.agents.steps import Event
from eigenveil.network.certificates import Keys
from eigenveil.runtimes.grpc import Transport
from eigenveil.show.progress import HubView, PartyView, StatusWriter, traffic_of


def done_round(number: int, **more: Any) -> Round:
    settings: dict[str, Any] = {"answered": ("site 0", "site 1"), "missing": ("site 2",), "movement": 0.03125}
    return Round(number=number, stage="krylov 1", bytes_down=1200, bytes_up=3400, residual=None, charges=(), **(settings | more))


def test_a_hub_shows_who_is_there_what_was_done_and_how_long_it_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders, now = Folders(tmp_path), [100.0]
    view = HubView(StatusWriter(), clock=lambda: now[0])
    keys = Keys.load(folders.of("hub") / "hub.key")
    with HubAgent.transcript_for(folders.of("hub") / "heart.transcript", folders.study) as transcript:
        agent = HubAgent(folders.study, keys=keys, transcript=transcript, on_event=view.on_event)
        view.of(agent)
        for event in (
            Event("waiting", "", "for 3 to join"),
            Event("joined", "site 1"),
            Event("joined", "site 0"),
            Event("left", "site 1", "the connection was lost"),
            Event("refused", "site 0", "sent a message that is for another party"),
        ):
            view.on_event(event)
        said = [line.partition(" ")[2] for line in capsys.readouterr().out.splitlines()]
        assert said == [
            "waiting for 3 to join, for at most 40 seconds",
            "site 1 has joined; missing: site 0, site 2",
            "site 0 has joined; missing: site 2",
            "site 1 is gone: the connection was lost; missing: site 1, site 2",
            "refused a message from site 0: sent a message that is for another party",
        ]
        now[0] += 13
        shown = drawn(view)
        assert re.search(r"here +1 of 3: site 0", shown)
        assert re.search(r"missing +site 1, site 2", shown)
        assert "for all to join, at most 27 seconds more" in shown
        view.on_event(Event("began"))
        agent.durable.begin()
        agent.durable.rounds.append(done_round(0))
        agent.durable.traffic[0].up += 3400
        view.on_event(Event("round", "krylov 1", ""))
        said = [line.partition(" ")[2] for line in capsys.readouterr().out.splitlines()]
        assert said[-1] == ("round 1 (krylov 1): 2 answered, without site 2, 3.4 kB up, 1.2 kB down, moved by 3.1e-02")
        assert "for answers, at most 20 seconds more" in drawn(view)
        now[0] += 5
        shown = drawn(view)
        assert "for answers, at most 15 seconds more" in shown
        assert "3.4 kB up" in shown
        assert "2 of 3" in shown


class Agent:
    """An agent that is connected."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport


def a_transport(folders: Folders) -> Transport:
    """That of a site, connected to nobody."""
    keys = Keys.load(folders.of("site 0") / "site-0.key")
    return Transport("site 0", credentials=credentials_of(folders.study, keys), greeting=b"heart")


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that were said, without their times."""
    return [line.partition(" ")[2] for line in capsys.readouterr().out.splitlines()]


def drawn(view: object) -> str:
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    console.print(view)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_site_says_what_was_asked_and_said_and_when_the_hub_is_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    view = PartyView(StatusWriter())
    view.of(Agent(a_transport(Folders(tmp_path))), calls={"hub"})
    for event in (
        Event("waiting", "hub", "for hub at 10.0.0.1:7443"),
        Event("joined", "hub"),
        Event("asked", "hub", "masks: keys"),
        Event("said", "hub", "mean 1: 204 bytes; mean at mu 0.27"),
        Event("left", "hub", "the connection was lost"),
        Event("waiting", "hub", "hub has stopped. The study continues when it is started again"),
        Event("refused", "hub", "bad \x1b[31m message"),
        Event("resumed", "site 0", "3 steps are in the ledger"),
        Event("over", "hub", "the result is here"),
    ):
        view.on_event(event)
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert [line.partition(" ")[2] for line in said.splitlines()] == [
        "waiting for hub at 10.0.0.1:7443",
        "connected to hub",
        "hub asks: masks: keys",
        "said to hub: mean 1: 204 bytes; mean at mu 0.27",
        "not connected to hub: the connection was lost; trying again",
        "hub has stopped. The study continues when it is started again",
        "refused a message from hub: bad ?[31m message",
        "resumed where it stopped: 3 steps are in the ledger",
        "the result is here",
    ]
    assert "the result is here" in drawn(view)


def test_a_reader_that_is_gone_does_not_end_a_study(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

        def fileno(self) -> int:
            return 77

    replaced: list[int] = []
    monkeypatch.setattr("os.dup2", lambda _, number: replaced.append(number))
    voice = StatusWriter()
    monkeypatch.setattr(sys, "stdout", Closed())
    voice.write_line("nobody hears this")
    voice.write_line("nor this")
    assert replaced == [77]


def test_what_was_told_as_it_happened_is_not_told_again_until_it_happens_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent, view = Agent(a_transport(Folders(tmp_path))), PartyView(StatusWriter())
    view.of(agent, calls={"hub"})
    for _ in range(2):
        view.on_event(Event("joined", "hub"))
        agent.transport.trouble["hub"] = "the connection was lost"
        view.on_event(Event("left", "hub", "the connection was lost"))
        view.look()
    # The other way round, when what happened waits behind a long computation.
    view.on_event(Event("joined", "hub"))
    view.look()
    view.on_event(Event("left", "hub", "the connection was lost"))
    pair = ["connected to hub", "not connected to hub: the connection was lost; trying again"]
    assert told(capsys) == pair * 3


def test_a_hub_says_which_callers_it_refused_and_whom_it_could_not_talk_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders, view = Folders(tmp_path), HubView(StatusWriter())
    transport = a_transport(folders)
    keys = Keys.load(folders.of("hub") / "hub.key")
    with HubAgent.transcript_for(folders.of("hub") / "heart.transcript", folders.study) as transcript:
        agent = HubAgent(folders.study, keys=keys, transcript=transcript)
        view.of(agent)
        view.look()
        assert traffic_of(agent) == []
        agent.transport = transport
        view.on_event(Event("joined", "site 0"))
        # That one has just been lost, and it is about to be told.
        transport.trouble |= {"site 0": "the connection was lost", "site 1": "no answer within 20 s"}
        transport.refused.append("a caller from 10.0.0.9")
        view.look()
        view.on_event(Event("left", "site 0", "the connection was lost"))
        view.look()
        transport.received["site 0"] += 3400
        transport.sent["site 0"] += 1200
        assert re.search(r"site 0 +3.4 kB up, 1.2 kB down", drawn(view))
    assert told(capsys) == [
        "site 0 has joined; missing: site 1, site 2",
        "not connected to site 1: no answer within 20 s",
        "refused a caller from 10.0.0.9",
        "site 0 is gone: the connection was lost; missing: site 0, site 1, site 2",
    ]


def test_a_name_with_brackets_is_shown_as_it_is() -> None:
    view = PartyView(StatusWriter())
    view.on_event(Event("joined", "[/red] ward"))
    assert "[/red] ward has joined" in drawn(view)


def test_a_party_that_is_refused_again_and_again_does_not_fill_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    view = PartyView(StatusWriter())
    view.of(Agent(a_transport(Folders(tmp_path))), calls={"hub"})
    for number in range(1000):
        view.on_event(Event("refused", "hub", f"junk {number}"))
    view.on_event(Event("refused", "node 1", "junk"))
    view.on_event(Event("said", "hub", "mean 1"))
    said = [line.partition(" ")[2] for line in capsys.readouterr().out.splitlines()]
    assert len(said) == 203
    assert said[199] == "refused a message from hub: junk 199"
    assert "not shown" in said[200]
    assert said[201:] == ["refused a message from node 1: junk", "said to hub: mean 1"]
