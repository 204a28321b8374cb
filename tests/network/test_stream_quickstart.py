"""The example of streams is run as it is written: three sites that follow files, a node, a hub that serves, and `watch`."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from eigenveil.model import Model
from network.network_studies import free_port
from network.test_quickstart import BLOCK, environment

PAGE = Path(__file__).parents[2] / "docs" / "federated-streams.md"


@pytest.mark.slow
def test_the_example_of_streams_runs_as_it_is_written(tmp_path: Path) -> None:
    env, ports = environment(tmp_path), (str(free_port()), str(free_port()))
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
    assert abs(model.components[0, 0]) > 0.8
