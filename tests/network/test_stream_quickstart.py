"""The example of streams is run as it is written: three sites that follow files, a node, a hub that serves, and `watch`."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from eigenveil.ledger.durable import DurableLedger
from eigenveil.model import Model
from network.network_studies import free_port
from network.test_quickstart import BLOCK, environment


@pytest.fixture
def env(tmp_path: Path) -> Iterator[dict[str, str]]:
    with environment(tmp_path) as found:
        yield found


PAGE = Path(__file__).parents[2] / "docs" / "federated-streams.md"


@pytest.mark.slow
def test_the_example_of_streams_runs_as_it_is_written(tmp_path: Path, env: dict[str, str]) -> None:
    ports = (str(free_port()), str(free_port()))
    folder = tmp_path / "study"
    folder.mkdir()
    there: dict[str, list[str]] = {}
    for where, text in BLOCK.findall(PAGE.read_text()):
        there.setdefault(where, []).append(text.replace("7443", ports[0]).replace("7444", ports[1]))
    assert set(there) == {"terminal 1", "terminal 1, stays", "terminal 2, stays", "terminal 3"}

    def run(text: str) -> str:
        done = subprocess.run(
            ["bash", "-ec", text], cwd=folder, env=env, text=True, capture_output=True, check=False, timeout=180
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def begun(text: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            ["bash", "-ec", text], cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    for text in there["terminal 1"]:
        run(text)
    hub, sites = begun(there["terminal 1, stays"][0]), begun(there["terminal 2, stays"][0])
    try:
        seen = run(there["terminal 3"][0])
        assert hub.wait(60) == 0, hub.communicate()[0]
        assert sites.wait(60) == 0
    finally:
        for child in (hub, sites):
            child.kill()
            child.communicate()
    assert "slot 6 of 6: 3 of 3 heard" in seen
    assert "component 1: variance" in seen
    (last,) = [json.loads(line) for line in re.findall(r"^\{.*\}$", seen, re.MULTILINE)]
    assert last["over"] is True
    assert last["missing"] == []
    assert last["above_noise"] >= 1
    model = Model.load(folder / "sensors.safetensors")
    assert (model.guarantee.epsilon, model.guarantee.delta) == (1.0, 1e-6)
    # 0.87, and noise moves it by 0.02: this is eight of its deviations away.
    assert abs(model.components[0, 0]) > 0.7


MASKS = re.compile(r"<!-- masks, (terminal \d[^>]*?) -->\n```sh\n(.*?)```", re.DOTALL)


@pytest.mark.slow
def test_the_example_of_masks_runs_as_it_is_written_and_its_hub_may_be_killed(tmp_path: Path, env: dict[str, str]) -> None:
    port = str(free_port())
    folder = tmp_path / "study"
    folder.mkdir()
    readings = re.search(r"cat > readings.py <<'END'\n(.*?)END\n", PAGE.read_text(), re.DOTALL)
    assert readings is not None
    (folder / "readings.py").write_text(readings[1])
    there = {where: text.replace("7445", port) for where, text in MASKS.findall(PAGE.read_text())}

    def run(text: str) -> str:
        done = subprocess.run(
            ["bash", "-ec", text], cwd=folder, env=env, text=True, capture_output=True, check=False, timeout=180
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def begun(text: str) -> "subprocess.Popen[bytes]":
        # A group of its own, so that all of it can be killed at once.
        with (folder / "log.txt").open("ab") as log:
            return subprocess.Popen(["bash", "-ec", text], cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True)

    run(there["terminal 1"])
    parties = [begun(there["terminal 1, stays"]), begun(there["terminal 2, stays"])]
    try:
        run(there["terminal 3"])
        os.killpg(parties[0].pid, signal.SIGKILL)
        parties[0].wait(30)
        parties[0] = begun(there["terminal 1, stays"])
        seen = run(there["terminal 3, later"])
        assert parties[0].wait(60) == 0, (folder / "log.txt").read_text()
        parties[1].wait(60)
    finally:
        for child in parties:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait(30)
    assert "slot 4 of 4: 4 of 4 heard" in seen
    lines = [json.loads(line) for line in (folder / "masked" / "sensors.watch.jsonl").read_text().splitlines()]
    heard = {line["slot"]: line["heard"] for line in lines}
    assert [len(heard[slot]) for slot in (1, 2, 3, 4)] == [4, 4, 3, 4]
    assert "bern" not in heard[3]
    model = Model.load(folder / "masked" / "sensors.safetensors")
    assert (model.guarantee.epsilon, model.settings["trust"]) == (1.0, "masked")
    for site in ("oslo", "bern"):
        with DurableLedger.reading(folder / "masked" / site / "ledger.db") as ledger:
            (state,) = ledger.studies()
            assert state.state == "finished"
            ledger.verify()
