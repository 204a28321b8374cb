"""A small version of benchmarks/readme_figure.py: it measures, and what it draws is what it measured."""

from xml.etree import ElementTree

import pytest

from benchmarks import readme_figure as figure

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
