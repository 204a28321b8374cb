"""The benchmark of devices in a tree, small: late devices cost what the figures say, and scaling slots up mends it."""

import math
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks import fpca_system as system
from benchmarks import noise_verdict
from benchmarks import readme_figure as figure
from eigenveil import FederatedPCA, Ledger
from eigenveil.core.mechanism import Gaussian
from eigenveil.core.noise import Noise
from eigenveil.data.rows import DenseRows
from eigenveil.linalg import Subspace, sines
from eigenveil.protocols.party import run_pooled
from eigenveil.tasks.fit.task import Fit

FORGET, RANK, SLOTS, WIDTH = system.FORGET, system.RANK, system.SLOTS, system.WIDTH


def test_a_small_system_follows_the_drift() -> None:
    out = system.run(40, 20, widths=(WIDTH,))
    pooled, weighted = out.captured["pooled"], out.captured[f"sketches, {WIDTH} directions, weighted"]
    # The drift is in the middle: what was right before is wrong then, and right again at the end.
    assert pooled[SLOTS // 2 - 1] > 0.99 > pooled[SLOTS // 2]
    assert min(weighted[-3:]) > max(0.95, pooled[-1] - 0.02)
    assert out.captured["IncrementalPCA, pooled"][-1] < weighted[-1]


def test_the_protocol_ends_where_the_figures_do() -> None:
    captured, sent, _ = system.federated(16, 20)
    assert captured[-1] > 0.97
    # A basis, its values and a mean, in a message.
    assert 8 * 20 * RANK < sent < 8 * 20 * (WIDTH + 2) + 1000


def test_what_comes_late_counts_by_its_slot() -> None:
    rng = np.random.default_rng(0)
    parts = [Subspace.of(rng.standard_normal((8, 6)), rank=6) for _ in range(3)]
    hubs = [system.Aggregate(1, 6) for _ in range(2)]
    for hub, order in zip(hubs, ((0, 1, 2), (2, 0, 1)), strict=True):
        for slot in order:
            hub.add(slot, parts[slot], 1)
        hub.close(2)
    assert sines(*(hub.answer(weighted=False) for hub in hubs))[0] < 1e-9
    stacked = [FORGET ** (2 - slot) * (part.basis * part.values).T for slot, part in enumerate(parts)]
    assert sines(hubs[0].answer(weighted=False), Subspace.of(np.concatenate(stacked), rank=RANK).basis)[0] < 1e-9


@pytest.mark.parametrize("kind", ["zero", "constant"])
@pytest.mark.parametrize("method", ["covariance", "power", "krylov"])
def test_the_sums_of_one_row_times_their_number_are_those_of_all(method: Any, kind: str) -> None:
    asked = FederatedPCA(2, trust="hub", method=method, **noise_verdict.BOUNDED)
    study = asked.prepare([np.zeros((10, 6))] * 2).parties.study
    assert isinstance(study, Fit)
    one, count = noise_verdict.row_of(kind, 6), 400
    first, second = (
        Gaussian(multiplier=4.0, ledger=Ledger(epsilon=math.inf, delta=0.5), noise=Noise.seeded(3)) for _ in range(2)
    )
    shortcut = noise_verdict.carried(study, DenseRows(one), count, first)
    whole = run_pooled(study, DenseRows(np.repeat(one, count, axis=0)), second)
    assert np.array_equal(shortcut.subspace.values, whole.subspace.values)
    assert np.array_equal(shortcut.center, whole.center)
    assert (shortcut.people, shortcut.trace, shortcut.scale) == (whole.people, whole.trace, whole.scale)


SVG = "{http://www.w3.org/2000/svg}"


def test_more_budget_finds_more_and_ours_beats_the_published_masks() -> None:
    found = figure.measured("digits", epsilons=(0.3, 1.0, 10.0), runs=2)
    ours, masked = found.shares["Eigenveil, covariance"], found.shares["MOD-SuLQ"]
    assert ours[0] < ours[1] < ours[2] <= 1
    assert masked[1] < 0.3 < 0.9 < ours[1]
    # Beyond epsilon = 1 nothing is proved of it, so nothing is drawn.
    assert len(found.shares["Analyze Gauss"]) == 2


@pytest.mark.parametrize("count", [1, 2])
def test_a_share_is_drawn_at_its_height(count: int) -> None:
    shares = {line.name: (0.0, 0.5, 1.0)[: 2 if line.most <= 1 else 3] for line in figure.CONTENDERS}
    half = figure.Measured("made up, 10 x 2", (0.1, 1.0, 10.0), shares)
    picture = ElementTree.fromstring(figure.drawn([half] * count, origin="Made up."))
    lines = picture.findall(f"{SVG}polyline")
    assert len(lines) == count * len(figure.CONTENDERS)
    bottom, top = figure.TOP + figure.PLOT_HEIGHT, figure.TOP
    for line in lines:
        points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
        assert [height for _, height in points] == [bottom, (bottom + top) / 2, top][: len(points)]
        assert all(0 < across < figure.WIDTH - figure.LEGEND for across, _ in points)
    told = picture.findtext(f"{SVG}desc") or ""
    assert "MOD-SuLQ 50%" in told
    assert told.endswith("Made up.")
