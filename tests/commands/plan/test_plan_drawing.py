"""The curve of a plan, in characters and as SVG: what is drawn is where the numbers say."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from commands.plan.plan_runs import SMALL, Oracle, planned, refused
from eigenveil.show.charts import EpsilonPoint, Span, plan_chart
from eigenveil.show.terminal import CurveChart, span

SVG = "{http://www.w3.org/2000/svg}"
POINTS = (
    EpsilonPoint(epsilon=0.1, captured=Span(0.2, 0.1, 0.4), sine=Span(1.0, 0.9, 1.0), nothing=0.15),
    EpsilonPoint(epsilon=1.0, captured=Span(0.6, 0.5, 0.7), sine=Span(0.5, 0.3, 0.8), nothing=0.15),
    EpsilonPoint(epsilon=10.0, captured=Span(1.0, 0.9, 1.0), sine=Span(0.0, 0.0, 0.1), nothing=0.15),
)


def drawn(width: int = 80, *, encoding: str = "utf-8") -> list[str]:
    console = Console(width=width, force_terminal=False, color_system=None)
    options = replace(console.options, encoding=encoding)
    return [line.plain for line in CurveChart(POINTS, target=1.0).__rich_console__(console, options)]


def test_values_and_intervals_stand_where_they_are_on_the_axis() -> None:
    head, *lines, legend = drawn()
    left = head.index("0")
    right = head.rindex("1")
    assert "random" in legend
    for line, point in zip(lines, POINTS, strict=True):
        at = (line.index("●") - left) / (right - left)
        assert at == pytest.approx(point.captured.value, abs=0.6 / (right - left))
        if point.captured.low != point.captured.value:
            low = (re.search("[├●]", line).start() - left) / (right - left)  # type: ignore[union-attr]
            assert low == pytest.approx(point.captured.low, abs=0.6 / (right - left))
        assert line.index("┊") == left + round(0.15 * (right - left))
        assert span(point.captured) in line
    assert [line.endswith("<- asked") for line in lines] == [False, True, False]


def test_every_line_fits_a_narrow_terminal_and_a_terminal_without_signs() -> None:
    assert all(len(line) <= 60 for line in drawn(60))
    assert all(line.isascii() for line in drawn(encoding="ascii"))


def test_the_whole_plan_can_be_written_in_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    Oracle().install(monkeypatch)
    result = planned(*SMALL, width=60)
    chart = [line for line in result.stdout.splitlines() if "<- asked" in line]
    assert len(chart) == 1
    assert len(chart[0]) <= 60


def shapes(text: str, name: str) -> list[ET.Element]:
    return list(ET.fromstring(text).iter(f"{SVG}{name}"))


def document(points: Sequence[EpsilonPoint], *, asked: float, title: str = "", note: str = "") -> str:
    return plan_chart(points, target=asked, title=title, note=note).document()


def test_the_drawing_has_a_dot_for_every_number() -> None:
    text = document(POINTS, asked=1.0, title="a < b & c", note="a note " * 60)
    dots = [(float(dot.get("cx", "")), float(dot.get("cy", ""))) for dot in shapes(text, "circle")]
    # The plane goes from 52 to 408 in log epsilon, and from 214 up to 34 in shares. The sine comes first.
    where = [(52.0, 1.0), (230.0, 0.5), (408.0, 0.0), (52.0, 0.2), (230.0, 0.6), (408.0, 1.0)]
    for dot, (x, share) in zip(dots, where, strict=True):
        assert dot == pytest.approx((x, 214 - 180 * share), abs=0.06)
    band = shapes(text, "polygon")[1].get("points", "").split()
    assert band[0] == "52.0,196.0"
    assert band[3] == "408.0,34.0"
    (title,) = shapes(text, "title")
    assert title.text == "a < b & c"
    height = float(ET.fromstring(text).get("viewBox", "").split()[-1])
    assert all(float(words.get("y", "")) <= height for words in shapes(text, "text"))
    assert all(len(words.text or "") <= 80 for words in shapes(text, "text"))


def test_plot_writes_a_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Oracle().install(monkeypatch)
    target = tmp_path / "plan.svg"
    result = planned(*SMALL, "--plot", target)
    assert result.exit_code == 0
    assert f"plot written to {target}" in result.stdout.replace("\n", "")
    assert len(shapes(target.read_text(), "circle")) == 10
    assert target.stat().st_mode & 0o777 == 0o644
    before = target.read_text()
    assert "Overwrite it with --force" in refused(*SMALL, "--plot", target)
    assert planned(*SMALL, "--plot", target, "--force", "--epsilons", "1").exit_code == 0
    assert target.read_text() != before
    assert [path.name for path in tmp_path.iterdir()] == ["plan.svg"]
