"""Live pages in a real Chromium: they follow the run, survive a restart, and stay harmless, readable and quiet."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from eigenveil.show.live import LivePage, PageAddress, PageBudget, PageState, live_page
from show.conftest import HOSTILE, made_rounds

WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@dataclass
class Run:
    """A run whose state a test changes, and the address of its page."""

    state: PageState
    url: str = ""
    page: LivePage | None = None
    port: int = 0
    said: list[str] = field(default_factory=list)

    @contextmanager
    def shown(self) -> Iterator["Run"]:
        with live_page(PageAddress("127.0.0.1", self.port), lambda: self.state, say=self.said.append, secret=True) as page:
            self.page = page
            found = re.search(r"http://127\.0\.0\.1:(\d+)/", self.said[-1])
            assert found is not None
            self.url, self.port = found.group(), int(found.group(1))
            yield self


def a_state(sites: int = 3, rounds: int = 5) -> PageState:
    done = tuple(replace(one, variances=(9.0, 4.0, 1.0)) for one in made_rounds(sites, rounds))
    return PageState(
        title='Study "heart", at the hub',
        now="Waiting for answers, at most 20 seconds more",
        facts=(("traffic", "3.4 kB up, 1.2 kB down"),),
        parties=tuple((f"site {at:03d}", at != 1) for at in range(sites)),
        rounds=done,
        spending=PageBudget("epsilon 0.4 of 1, at delta = 1e-06", 0.4),
        variances=(9.0, 4.0, 1.0),
    )


@pytest.fixture
def opened(browser: Any) -> Iterator[Any]:
    pages: list[Any] = []

    def opens(run: Run, **more: Any) -> Any:
        page = browser.new_page(**{"viewport": {"width": 1280, "height": 900}, **more})
        pages.append(page)
        page.said, page.asked = [], []
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("dialog", lambda dialog: page.said.append(dialog.message))
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto(run.url)
        return page

    yield opens
    for page in pages:
        page.close()


def test_the_page_shows_everything_and_follows_without_a_word(opened: Any) -> None:
    with Run(a_state()).shown() as run:
        page = opened(run)
        page.wait_for_selector("#status.live")
        assert page.inner_text("h1") == 'Study "heart", at the hub'
        assert "Connected: 2 of 3" in page.inner_text("[data-part=parties]")
        assert page.locator(".gone").inner_text().split() == ["○", "site", "001", "missing"]
        assert page.inner_text("[data-part=budget]").endswith("epsilon 0.4 of 1, at delta = 1e-06")
        # Scree, convergence and bytes, each with words for those who do not see it.
        assert page.locator("svg.chart").count() == page.locator("svg.chart > desc").count() == 3
        assert page.locator("[data-part=rounds] tbody tr").count() == 5
        page.locator("details").first.evaluate("one => { one.open = true; }")
        assert run.page is not None
        run.page.line("site 001 has joined", "green")
        run.state = replace(a_state(rounds=6), now="something else", parties=())
        page.wait_for_selector("text=something else")
        assert page.locator("[data-part=rounds] tbody tr").count() == 6
        assert page.inner_text(".log li.good").endswith("site 001 has joined")
        # What the reader opened stays open, and what is empty takes no room.
        assert page.locator("details").first.evaluate("one => one.open")
        assert not page.is_visible("[data-part=parties]")
    page.wait_for_selector("text=The command ended")
    assert page.said == []
    assert {address.removeprefix(run.url) for address in page.asked} == {"", "events"}


def test_the_page_goes_on_after_a_restart(opened: Any) -> None:
    run = Run(a_state())
    with run.shown():
        page = opened(run)
        page.wait_for_selector("#status.live")
    page.wait_for_selector("text=The command ended")
    run.state = replace(run.state, now="resumed where it stopped")
    with run.shown():
        page.wait_for_selector("text=resumed where it stopped", timeout=15_000)
        page.wait_for_selector("#status.live")


def test_names_are_text_in_the_first_page_and_in_every_event(opened: Any) -> None:
    rounds = tuple(replace(one, stage=HOSTILE, answered=(HOSTILE,)) for one in made_rounds(2, 3))
    hostile = PageState(
        title=HOSTILE,
        now=HOSTILE,
        facts=((HOSTILE, HOSTILE),),
        parties=((HOSTILE, True), (f"{HOSTILE}2", False)),
        rounds=rounds,
        spending=PageBudget(HOSTILE, 0.5),
        warnings=(HOSTILE,),
    )
    with Run(hostile).shown() as run:
        assert run.page is not None
        run.page.line(HOSTILE, "red")
        page = opened(run)
        page.wait_for_selector("#status.live")
        run.page.line(f"{HOSTILE}again")
        page.wait_for_selector("text=again")
        assert page.locator("main script, main img").count() == 0
        assert page.said == []
        assert "<script>alert(1)</script>" in page.inner_text("h1")


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_a_hundred_sites_fit_a_telephone_and_a_desk_by_day_and_by_night(opened: Any, width: int, scheme: str) -> None:
    with Run(replace(a_state(100, 60), warnings=("Nearly every row was clipped.",))).shown() as run:
        page = opened(run, viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.wait_for_selector("#status.live")
        assert page.evaluate(WIDER) == 0
        assert page.locator(".parties li").count() == 100
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") == (scheme == "light")


def test_without_script_the_page_can_be_read_and_says_how(opened: Any, browser: Any) -> None:
    context = browser.new_context(java_script_enabled=False)
    with Run(a_state()).shown() as run:
        page = context.new_page()
        page.goto(run.url)
        assert "Reload it to see what is new" in page.inner_text("#status")
        assert page.locator("svg.chart").count() == 3
        assert "epsilon 0.4 of 1" in page.inner_text("main")
    context.close()


def test_another_web_page_can_neither_frame_nor_read_it(opened: Any, browser: Any) -> None:
    with Run(a_state()).shown() as run, Run(a_state()).shown() as other:
        page = opened(other)
        page.wait_for_selector("#status.live")
        # From another origin: the other page may not connect at all, and a stranger's gets no answer it could read.
        found = page.evaluate(f"fetch('{run.url}').then(() => 'read', () => 'refused')")
        assert found == "refused"
        stranger = browser.new_page()
        stranger.goto("data:text/html,<p>hello</p>")
        assert stranger.evaluate(f"fetch('{run.url}events').then(() => 'read', () => 'refused')") == "refused"
        stranger.close()
