"""Every plan in docs/plan.md can be typed as it stands there."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pyarrow.csv as pc
import pytest

from commands.command_tables import arrow_table, eigenveil, rows, written
from commands.plan.plan_runs import Oracle, planned
from eigenveil import PrivatePCA
from eigenveil.plan.spectrum import Spectrum

PAGE = Path(__file__).parents[3] / "docs" / "plan.md"


def commands() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line.removeprefix("$ ") for line in lines]


@pytest.mark.parametrize("line", [line for line in commands() if line.startswith("eigenveil plan ")])
def test_a_plan_of_the_page_runs(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Oracle().install(monkeypatch)
    monkeypatch.chdir(tmp_path)
    pc.write_csv(arrow_table(rows(), remark=["none"] * len(rows())), "last-decade.csv")
    PrivatePCA(3, epsilon=None).fit(np.clip(rows(), -5, 5)).save("last-year.safetensors")
    Path("spectrum.json").write_text(json.dumps(Spectrum.guessed(30).to_json()))
    assert eigenveil("bounds", written(tmp_path, "npy"), "--no-privacy", "-o", "bounds.json").exit_code == 0
    result = planned(*shlex.split(line)[2:])
    assert result.exit_code == 0, result.output


def test_the_page_has_plans() -> None:
    assert sum(line.startswith("eigenveil plan ") for line in commands()) >= 8
