"""Reports in a real Chromium: drawn, sortable, quiet, harmless, and readable on a telephone, in the dark and on paper."""

from dataclasses import replace
from typing import Any

import pytest

from eigenveil.show.report import model_report
from eigenveil.show.values import Report
from show.conftest import HOSTILE, made_model, made_rounds, with_hostile_names

WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
# Words that reach out of their drawing.
CUT = """[...document.querySelectorAll('svg.chart text')].filter(words => {
  const [one, all] = [words.getBoundingClientRect(), words.ownerSVGElement.getBoundingClientRect()];
  return one.left < all.left - 1 || one.right > all.right + 1; }).map(words => words.textContent)"""
JUMPS = """[...document.querySelectorAll('h1,h2,h3,h4')].map(one => +one.tagName[1])
  .some((level, at, all) => level > (at ? all[at - 1] : 0) + 1)"""
DRAWN = """[...document.querySelectorAll('svg.chart')].map(one => one.getBoundingClientRect())
  .filter(place => place.width > 250 && place.height > 40).length"""


@pytest.fixture(scope="module")
def plain() -> Report:
    return model_report(made_model(5, 12), rounds=made_rounds(5, 6))


def first_column(page: Any, at: int = 1) -> list[str]:
    cells = page.locator(f"table.sorts tbody td:nth-child({at})")
    return [str(text) for text in cells.all_inner_texts()]


def test_every_chart_is_drawn_and_nothing_is_said_or_loaded(plain: Report, opened: Any) -> None:
    page = opened(plain)
    # Scree, cumulative, four components, heat map, convergence, traffic, who took part, plan, scale of epsilon.
    assert page.evaluate(DRAWN) == page.locator("svg.chart").count() == 13
    assert page.locator("svg[role=img] > title").count() == page.locator("svg[role=img] > desc").count() == 13
    assert page.evaluate(CUT) == []
    assert page.get_attribute("html", "lang") == "en" and not page.evaluate(JUMPS)
    assert page.said == []
    assert len(page.asked) == 1 and page.asked[0].startswith("file:")


def test_a_column_sorts_by_size_and_back(plain: Report, opened: Any) -> None:
    page = opened(plain)
    before = [float(one) for one in first_column(page, 2)]
    head = page.locator("table.sorts th").nth(1)
    # By keyboard, as those who cannot use a mouse do.
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert [abs(float(one)) for one in first_column(page, 2)] == sorted(map(abs, before), reverse=True)
    assert head.get_attribute("aria-sort") == "descending"
    page.keyboard.press("Enter")
    assert [abs(float(one)) for one in first_column(page, 2)] == sorted(map(abs, before))
    page.locator("table.sorts th").first.locator("button").click()
    assert first_column(page) == sorted(first_column(page), key=lambda name: name)
    assert page.locator("table.sorts th[aria-sort]").count() == 1


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_telephone_and_a_desk_by_day_and_by_night(plain: Report, opened: Any, width: int, scheme: str) -> None:
    page = opened(plain, viewport={"width": width, "height": 900}, color_scheme=scheme)
    assert page.evaluate(WIDER) == 0
    ground, ink = (page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color"))
    assert contrast(ground, ink) >= 7
    assert (luminance(ground) > 0.5) == (scheme == "light")
    for css in (".good", "figcaption span", "dl.short dt", "summary"):
        colour = page.evaluate(f"getComputedStyle(document.querySelector('{css}')).color")
        assert contrast(ground, colour) >= 4.5, css


def luminance(colour: str) -> float:
    parts = [int(one) / 255 for one in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_paper_is_white_and_has_the_guarantee_on_a_page_of_its_own(plain: Report, opened: Any) -> None:
    page = opened(plain, color_scheme="dark")
    page.emulate_media(media="print")
    assert luminance(page.evaluate("getComputedStyle(document.body).backgroundColor")) == 1
    assert page.evaluate("getComputedStyle(document.querySelector('.guarantee')).breakBefore") == "page"
    assert page.locator("details:visible").count() == 0
    assert page.locator(".sign > div:visible").count() == 6
    # A4 at 96 dots an inch, less the margins.
    page.set_viewport_size({"width": 688, "height": 1000})
    assert page.evaluate(WIDER) == 0
    assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")


def test_hostile_names_are_only_shown(opened: Any) -> None:
    page = opened(with_hostile_names())
    assert page.said == [] and len(page.asked) == 1
    assert page.locator("script").count() == 1 and page.locator("img").count() == 0
    assert page.title() == page.locator("h1").inner_text() == HOSTILE.replace("\u202e", "?").replace("\x1b", "?")
    assert page.evaluate(WIDER) == 0
    assert page.evaluate(CUT) == []
    # Wider than paper, a browser would print everything smaller.
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 688, "height": 1000})
    assert page.evaluate(WIDER) == 0


def test_without_script_it_reads_the_same_and_has_no_dead_buttons(plain: Report, opened: Any, browser: Any) -> None:
    quiet = browser.new_context(java_script_enabled=False)
    page = quiet.new_page()
    page.goto(opened(plain).url)
    assert page.locator("button").count() == 0
    assert page.locator("svg.chart:visible").count() == 13
    quiet.close()


def test_the_policy_refuses_any_other_script_and_any_request(plain: Report, opened: Any) -> None:
    page = opened(plain)
    script = "one = document.createElement('script'); one.textContent = 'window.ran = 1'; document.body.append(one)"
    page.evaluate(f"() => {{ const {script} }}")
    page.evaluate("() => { const one = new Image(); one.src = 'http://127.0.0.1:9/x.png'; document.body.append(one) }")
    page.wait_for_timeout(50)
    assert page.evaluate("window.ran") is None
    assert any("Content Security Policy" in words for words in page.said)


def test_many_columns_components_and_sites(opened: Any) -> None:
    model = made_model(50, 500, floor=0.1)
    # A method that no plan knows: rehearsing fifty components would take longer than all the rest.
    model = replace(model, settings={**model.settings, "method": "other"})
    wide = model_report(model, rounds=made_rounds(100, 12))
    page = opened(wide, viewport={"width": 390, "height": 900})
    assert page.said == [] and page.evaluate(WIDER) == 0
    # Opened, the numbers of a chart scroll in their own box.
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert page.evaluate(WIDER) == 0
    assert len(first_column(page)) == 500
    # One of 100 sites missed rounds, and it is the one that is drawn.
    assert "1 of 100 missed a round." in page.locator("main").inner_text()
    assert page.evaluate("performance.getEntriesByType('navigation')[0].domComplete") < 5000
