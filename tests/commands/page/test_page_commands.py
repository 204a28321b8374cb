"""The pages of the commands, over real connections: they show what the terminal shows, and nothing else."""

import http.client
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from commands.network.network_folders import COUNT, Folders, Running, started
from eigenveil.commands import app
from eigenveil.show.server import PageServer


def got(url: str) -> str:
    """The page at this address, as it is now."""
    found = re.fullmatch(r"http://(127\.0\.0\.1:\d+)/", url)
    assert found is not None
    connection = http.client.HTTPConnection(found.group(1), timeout=10)
    connection.request("GET", "/")
    return connection.getresponse().read().decode()


@pytest.fixture
def last_pages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pages of commands that run in this process, just before they end."""
    pages: list[str] = []
    ends = PageServer.__exit__

    def read_first(server: PageServer, *error: Any) -> None:
        server._looked = float("-inf")
        pages.append(got(f"http://127.0.0.1:{server.port}/"))
        ends(server, *error)

    monkeypatch.setattr(PageServer, "__exit__", read_first)
    return pages


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("table") / "people.npy"
    np.save(path, rng.standard_normal((4000, 12)) * 4 / np.sqrt(np.arange(1, 13)))
    return path


def test_a_simulation_shows_its_rounds_its_scree_and_its_cost(table: Path, last_pages: list[str]) -> None:
    asked = "-k 3 --sites 5 --epsilon 1 --delta 1e-6 --method power --row-bound 12 --page 0"
    found = CliRunner().invoke(app, ["simulate", str(table), *asked.split()])
    assert found.exit_code == 0, found.output
    assert "live page: http://127.0.0.1:" in found.stderr
    (page,) = last_pages
    assert "Answered in the last round: 5 of 5" in page
    assert "epsilon 1 of 1, at delta = 1e-06" in page
    rounds = re.findall(r"^ *(\d+) +(mean|power \d|totals)", found.stdout, re.MULTILINE)
    assert len(rounds) > 3
    assert all(f">{stage}</td>" in page for _, stage in rounds)
    # The traffic that the terminal shows, to the last digit.
    (traffic,) = re.findall(r"traffic +(\S+ \S+ up, \S+ \S+ down)", found.stdout)
    assert traffic in page
    for title in ("Variance along each component", "How far the directions moved", "Bytes in each round"):
        assert title in page


def test_a_stream_shows_what_was_released_and_spent(table: Path, last_pages: list[str], tmp_path: Path) -> None:
    asked = "-k 3 --epsilon 1 --delta 1e-6 --row-bound 12 --page 0 -o"
    found = CliRunner().invoke(app, ["stream", str(table), *asked.split(), str(tmp_path / "m.safetensors")])
    assert found.exit_code == 0, found.output
    (page,) = last_pages
    assert "4,000 rows have been read" in page
    assert "1 time, of the first 4,000 rows" in page
    assert "epsilon 1 of 1, at delta = 1e-06" in page
    assert "Variance along each component" in page


@pytest.mark.parametrize("command", ["simulate", "stream"])
def test_a_page_for_other_machines_needs_a_token_file(command: str, table: Path, tmp_path: Path) -> None:
    asked = ["-k", "3", "--no-privacy", "--page", "0.0.0.0:0"] + ["--sites", "3"] * (command == "simulate")
    found = CliRunner().invoke(app, [command, str(table), *asked])
    assert found.exit_code == 2
    assert "can be reached from other machines. Give --page-token FILE" in found.stderr


def test_a_hub_and_a_site_show_a_study_that_survives_a_killed_hub(tmp_path: Path) -> None:
    folders = Folders(tmp_path, privacy={"trust": "site"}, task={"method": "krylov", "rounds": 3})
    slow = '[agent]\nreply_seconds = 0.4\n[limits]\ntrust = ["site"]\n'
    parties = []
    for name in folders.names:
        more = ("--page", "0") if name == "site 0" else ()
        policy = folders.policy(name, more=slow)
        command = folders.site(name, "--policy", policy, "--yes", "--dataset", "patients", *more)
        parties.append((command, folders.of(name)))
    hub = (folders.hub("--page", "0"), folders.of("hub"))
    with started(hub, *parties) as (first, *sites):
        watched = _url(sites[0])
        before = _url(first)
        first.until(lambda line: "round 2" in line)
        page = got(before)
        assert "Connected: 3 of 3" in page
        assert "site 0 has joined" in page
        assert "Nothing is charged at the hub." in page
        site = got(watched)
        assert "connected to hub" in site
        assert re.search(r"charged: mu = 0\.\d+ of the \d\.\d+ reserved", site)
        # How many rows a site has is private, and no page may have it.
        for text in (site, page):
            assert str(COUNT) not in text and f"{COUNT:,}" not in text
        first.signal(signal.SIGKILL)
        first.process.wait(30.0)
        # The same address again, where an open page looks for it.
        port = before.rstrip("/").rpartition(":")[2]
        with started((folders.hub("--page", port), folders.of("hub"))) as (again,):
            assert _url(again) == before
            again.until(lambda line: "resumed where it stopped" in line)
            page = got(before)
            assert ">mean</td>" in page
            assert "resumed where it stopped" in page
            assert again.ended()[0] == 0
        assert [one.ended()[0] for one in sites] == [0, 0, 0]


def _url(running: Running) -> str:
    line = running.until(lambda line: "live page: " in line)
    return line.rstrip().rpartition(" ")[2]
