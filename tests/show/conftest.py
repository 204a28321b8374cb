"""Reports to look at, in the Chromium of tests/conftest.py."""

from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eigenveil import Guarantee, Model
from eigenveil.core.ledger import Charge
from eigenveil.estimators.terms import Round
from eigenveil.show.pages import write_report
from eigenveil.show.report import model_report
from eigenveil.show.values import FactLine, Report, SitePart

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;\u202e\x1b[31m"


class Tags(HTMLParser):
    """The elements of a page and the attributes of all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}


def made_model(rank: int, dim: int, *, floor: float = 0.5, columns: tuple[str, ...] | None = None, **more: Any) -> Model:
    """A model of `dim` columns whose variances fall from 4 like 1/i, as a covariance of about 1001 people would have them."""
    rng = np.random.default_rng(1)
    basis = np.linalg.qr(rng.standard_normal((dim, rank)))[0]
    variances = 4.0 / np.arange(1, rank + 1)
    shares = np.where(variances > floor, variances / max(10.0, 1.2 * variances.sum()), 0.0)
    settings = {"method": "covariance", "neighbours": "add-remove", "center": "private", "row_bound": 5.0}
    guarantee = Guarantee(
        epsilon=1.0,
        delta=1e-6,
        unit="each person, who has one row",
        neighbours="they differ by one row",
        against="anyone who sees the released numbers",
        released=("components",),
        assumptions=("the columns are public",),
        calibration="exact",
        charges=(Charge("mean", 0.1), Charge("covariance", 0.2)),
        relation="add-remove",
    )
    return Model(
        components=basis.T,
        mean=np.zeros(dim),
        values=np.sqrt(variances * 1000.0),
        explained_variance=variances,
        explained_variance_ratio=shares,
        guarantee=guarantee,
        columns=columns,
        settings={**settings, "noise_floor": floor, "bound_usage": 0.4, "clipped_fraction": 0.25},
        **more,
    )


def made_rounds(sites: int, rounds: int) -> tuple[Round, ...]:
    """Rounds in which the last site misses every third one."""
    names = tuple(f"site {at:03d}" for at in range(sites))
    return tuple(
        Round(
            number=at,
            stage=f"power {at}",
            answered=names if at % 3 else names[:-1],
            missing=() if at % 3 else names[-1:],
            bytes_down=5000 * sites,
            bytes_up=7000 * sites,
            movement=None if at == 0 else 10.0**-at,
            residual=None,
            charges=(Charge(f"product {at}", 0.1),),
        )
        for at in range(rounds)
    )


def with_hostile_names() -> Report:
    """Every text of a report that somebody else chooses is hostile."""
    columns = tuple(f"{HOSTILE}{at}" for at in range(12))
    model = made_model(3, 12, columns=columns, warnings=(HOSTILE,))
    guarantee = replace(model.guarantee, unit=HOSTILE, assumptions=(HOSTILE,), charges=(Charge(HOSTILE, 0.1),) * 8)
    model = replace(model, guarantee=guarantee, settings={**model.settings, HOSTILE: HOSTILE})
    rounds = [
        replace(one, stage=HOSTILE, answered=(HOSTILE,), missing=(f"{HOSTILE}2",), movement=0.1) for one in made_rounds(2, 2)
    ]
    sites = (SitePart(HOSTILE, HOSTILE), SitePart(f"{HOSTILE}2", None))
    return model_report(model, rounds=rounds, title=HOSTILE, study=HOSTILE, sites=sites, facts=[FactLine(HOSTILE, HOSTILE)])


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Open a report in a new page: `page.said` has what the console said, and `page.asked` every request."""
    pages: list[Any] = []

    def opens(report: Report, **more: Any) -> Any:
        target = tmp_path / f"{len(pages)}.html"
        write_report(report, target)
        page = browser.new_page(**{"viewport": {"width": 1280, "height": 900}, **more})
        pages.append(page)
        page.said, page.asked = [], []
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("dialog", lambda dialog: page.said.append(dialog.message))
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto(target.as_uri())
        return page

    yield opens
    for page in pages:
        page.close()
