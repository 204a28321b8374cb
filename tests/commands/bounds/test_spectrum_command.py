"""`eigenveil spectrum`: a file that the planner reads, or one line that says why there is none."""

import json
from pathlib import Path

import numpy as np
import pytest

from commands.command_tables import FORMATS, eigenveil, rows, written
from eigenveil.plan.spectrum import Spectrum

BUDGET = ("--epsilon", "0.8", "--delta", "1e-6", "--row-bound", "12")


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_gives_a_spectrum_that_the_planner_reads(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "spectrum.json"
    result = eigenveil("spectrum", written(tmp_path, kind), *BUDGET, "--output", target)
    assert result.exit_code == 0, result.output
    found = Spectrum.from_json(json.loads(target.read_text()))
    truth = Spectrum.of_rows(rows(), row_bound=12.0)
    assert np.abs(found.values - truth.values).max() < 6 * found.error + 6 * found.spread
    assert found.source == "released with epsilon = 0.8, delta = 1e-06"
