"""Charts: what is drawn is where the numbers say, in colours that can be told apart, and no name is more than a name."""

from xml.etree import ElementTree

import pytest

from eigenveil.errors import plain
from eigenveil.show.charts import (
    EpsilonPoint,
    Span,
    bars_chart,
    budget_chart,
    convergence_chart,
    cumulative_chart,
    heat_chart,
    loadings_chart,
    plan_chart,
    scatter_chart,
    scree_chart,
    shares_chart,
    taking_part_chart,
)
from eigenveil.show.marks import COLOURS, Chart, fitted, png, width_of

HOSTILE = "</text><script>alert(1)</script>\"'&\x00\u202e"
SPAN = Span(0.5, 0.25, 0.75)
CHARTS = {
    "scree": scree_chart([4.0, 2.0, 0.5], floor=1.0, spans=[Span(4.0, 3.0, 5.0)] * 3, shares=[0.4, 0.2, 0.0]),
    "cumulative": cumulative_chart([0.4, 0.2, 0.0], spans=[SPAN] * 3),
    "loadings": loadings_chart([HOSTILE, "b"], [0.6, -0.8], title=HOSTILE),
    "heat": heat_chart([HOSTILE, "b"], [[0.6, -0.8], [0.8, 0.6]], [1.0, 2.0]),
    "convergence": convergence_chart([None, 0.1, 0.0]),
    "shares": shares_chart([HOSTILE, "b"], [0.98, 0.5], title=HOSTILE),
    "traffic": bars_chart([("up", [10, 2000]), ("down", [5, 0])], title=HOSTILE, axis="round"),
    "part": taking_part_chart([HOSTILE, "b"], [frozenset({HOSTILE, "b"}), frozenset({"b"})]),
    "budget": budget_chart(1e-5),
    "plan": plan_chart(
        [EpsilonPoint(epsilon=1.0, captured=SPAN, sine=SPAN, nothing=0.1)], target=1.0, title=HOSTILE, note=HOSTILE, mark=HOSTILE
    ),
    "scatter": scatter_chart([(0.0, 0.0), (0.0, 1.0)]),
}


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_is_well_formed_alone_and_in_a_page_and_stays_on_its_plane(name: str) -> None:
    chart = CHARTS[name]
    for text in (chart.document(), chart.svg("name")):
        found = ElementTree.fromstring(text)
        tags = {one.tag.rpartition("}")[2] for one in found.iter()}
        assert tags <= {"svg", "title", "desc", "style", "g", "rect", "circle", "polyline", "polygon", "text"}
        assert found.get("role") == "img"
    for mark in chart.marks:
        assert all(0 <= x <= 420 and 0 <= y <= chart.height for x, y in mark.places)
    assert all(len(row) == len(chart.header) for row in chart.rows)


@pytest.mark.parametrize("dark", [False, True])
def test_colours_can_be_read_by_day_and_by_night(dark: bool) -> None:
    ground = COLOURS["ground"][dark]
    for name in ("ink", "muted", "second", "good", "bad", "first"):
        assert contrast(COLOURS[name][dark], ground) >= 4.5, name
    for name in ("ink", "muted"):
        assert contrast(COLOURS[name][dark], COLOURS["panel"][dark]) >= 4.5, name
    # A bar is a mark and no letter, and a pale one is mixed with its ground.
    assert contrast(COLOURS["faint"][dark], ground) >= 3
    assert contrast(mixed(COLOURS["first"][dark], ground, 0.6), ground) >= 3


def channels(colour: str) -> list[int]:
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]


def mixed(one: str, other: str, part: float) -> str:
    pairs = zip(channels(one), channels(other), strict=True)
    return "#" + "".join(f"{round(part * a + (1 - part) * b):02x}" for a, b in pairs)


def contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = [at / 255 for at in channels(colour)]
        linear = [at / 12.92 if at <= 0.04045 else ((at + 0.055) / 1.055) ** 2.4 for at in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def heights(chart: Chart) -> list[float]:
    return [abs(mark.places[1][1] - mark.places[0][1]) for mark in chart.marks if mark.shape == "bar"]


def test_bars_are_as_high_as_their_variances_and_faint_below_the_floor() -> None:
    chart = scree_chart([4.0, 2.0, 0.5], floor=1.0)
    first, second, third = heights(chart)
    assert (second / first, third / first) == pytest.approx((0.5, 0.125))
    assert [mark.colour for mark in chart.marks if mark.shape == "bar"] == ["first", "first", "faint"]
    (dashed,) = {mark.places[0][1] for mark in chart.marks if mark.dashed and mark.places[0][0] < 60}
    assert 200 - dashed == pytest.approx(first / 4, abs=0.1)


def test_of_many_only_what_matters_is_drawn_and_the_words_say_so() -> None:
    names = [f"c{at}" for at in range(500)]
    chart = heat_chart(names, [[1.0] * 500], [float(at) for at in range(500)])
    assert chart.description.startswith("The 40 of 500 columns that matter most.")
    assert chart.rows[0][0] == "c499"
    sites = [f"s{at}" for at in range(100)]
    everyone = frozenset(sites)
    assert taking_part_chart(sites, [everyone]).description == "All answered in every round."
    missed = taking_part_chart(sites, [everyone, everyone - {"s7"}])
    assert missed.rows == (("s7", 1, 2),)


def test_the_same_marks_become_a_png() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert png(CHARTS["loadings"]).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "name", ["W" * 90, "i" * 90, "\u540d" * 90, "<script>alert(1)</script>", "blood pressure, " * 9 + "systolic"]
)
def test_a_name_keeps_its_end_and_never_needs_more_room_than_it_has(name: str) -> None:
    cut = fitted(name, 136.0)
    assert width_of(cut) <= 136 and name.startswith(cut.partition("…")[0])
    assert "…" not in cut or name.endswith(cut.partition("…")[2])


def test_joiners_stay_where_scripts_need_them_and_show_where_they_would_hide_a_difference() -> None:
    family, persian = "\U0001f469\u200d\U0001f467", "\u0645\u06cc\u200c\u062e"
    assert plain(family) == family and plain(persian) == persian
    assert plain("a\u200dge") == "a?ge" and plain("\u200dage") == "?age"


def test_no_curve_runs_through_the_mark_of_a_plan() -> None:
    one = Span(0.05, 0.0, 0.1)
    chart = plan_chart(
        [EpsilonPoint(epsilon=at, captured=one, sine=one, nothing=0.2) for at in (0.1, 1.0, 10.0)], target=1.0, title=""
    )
    (mark,) = (one for one in chart.marks if one.text == "asked")
    assert mark.places[0][1] < min(y for one in chart.marks if one.shape in ("area", "dot") for _, y in one.places)
