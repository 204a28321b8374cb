"""Reports as data: what they say, what they refuse, and that JSON holds all of it."""

import json
import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

import jsonschema
import numpy as np
import pytest

from eigenveil import Guarantee, PrivatePCA
from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Charge
from eigenveil.show.pages import ENDINGS, read_report, to_html, write_report
from eigenveil.show.report import components_of, model_report
from eigenveil.show.values import Report, ScoresPart, TablePart, from_json, schema, to_json
from show.conftest import HOSTILE, Tags, made_model, made_rounds, with_hostile_names

# What a page is made of. Anything else would come from a name.
_TEXT = "html head meta title style body main header h1 h2 h3 p strong div span section footer script ul li dl dt dd"
_DRAWN = "figure figcaption svg desc polyline polygon rect circle text details summary table thead tbody tr th td"
KNOWN = {*_TEXT.split(" "), *_DRAWN.split(" ")}
SCHEMA = Path(__file__).parents[2] / "docs" / "report.schema.json"


def tags_of(report: Report) -> Tags:
    found = Tags()
    found.feed(to_html(report))
    return found


@cache
def plain() -> Report:
    return model_report(made_model(3, 6), rounds=made_rounds(4, 3))


@pytest.mark.parametrize("made", [plain, with_hostile_names], ids=["plain", "hostile"])
def test_json_keeps_everything_and_has_its_schema(made: Any) -> None:
    report = made()
    text = to_json(report)
    assert text.isascii()
    assert from_json(text) == report
    jsonschema.validate(json.loads(text), schema())


def test_the_schema_in_the_docs_is_that_of_the_code() -> None:
    assert json.loads(SCHEMA.read_text()) == schema()
    jsonschema.Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize(
    ("text", "why"),
    [("nonsense", "not JSON"), ("[" * 100_000, "not JSON"), ("{}", "not a report")],
    ids=["words", "nested", "empty"],
)
def test_whatever_is_not_a_report_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        from_json(text)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"version": 2}, "version 2"),
        ({"kind": "poem"}, "must be one of"),
        ({"answer": 1}, "answer must be string"),
        ({"refused": True}, "refused must be integer"),
        ({"more": 1}, "unknown key: more"),
        ({"rounds": [{"round": 1}]}, "lacks stage"),
        ({"best_guess": math.nan}, "NaN"),
        ({"components": {"columns": None, "weights": [[1.0]], "variances": [], "shares": []}}, "has a variance"),
    ],
)
def test_a_report_with_something_wrong_in_it_is_refused(more: dict[str, Any], why: str) -> None:
    # The report is made here and not in the list above: lists are made in every worker, also for `-k something_else`.
    with pytest.raises(ValueError, match=why):
        from_json(json.dumps({**json.loads(to_json(plain())), **more}))


@pytest.mark.parametrize("made", [plain, with_hostile_names], ids=["plain", "hostile"])
def test_names_add_no_element_and_no_attribute(made: Any) -> None:
    found = tags_of(made())
    assert " ".join(sorted(set(found.tags) - KNOWN)) == ""
    assert found.tags.count("script") == 1
    assert not {name for name in found.attributes if name.startswith("on") or name in ("style", "href", "src")}


def test_the_answer_is_about_the_result_and_the_people() -> None:
    report = model_report(made_model(3, 6, floor=1.5))
    assert report.answer == (
        "Two of three components stand out from the noise, with 60% of the variance of the clipped rows. Someone who knows all "
        "other rows guesses a person's presence correctly at most 55% of the time. Chance is 50%."
    )
    lost = model_report(made_model(3, 6, floor=5.0)).answer
    assert lost.startswith("Nothing stands out from the noise")
    bare = replace(made_model(3, 6, floor=0.0), guarantee=Guarantee.none("exact PCA was asked for"))
    assert model_report(bare).answer.endswith("No person is protected, because there is no privacy guarantee.")
    seeded = replace(made_model(3, 6), guarantee=replace(made_model(3, 6).guarantee, reproducible=True))
    assert "No person is protected, because the noise came from a known seed" in model_report(seeded).answer


def test_a_report_names_its_dataset_and_shows_mean_and_scale_of_every_column() -> None:
    model = made_model(2, 4)
    model = replace(model, mean=np.array([1.5, -2.0, 0.0, 30.0]), scale=np.array([1.0, 2.5, 3.0, 4.0]))
    report = model_report(model, dataset="patients.csv")
    assert report.title == "patients.csv: two principal components of 4 columns"
    assert {("dataset", "patients.csv"), ("columns", "4")} <= {(fact.label, fact.text) for fact in report.facts}
    assert report.components is not None
    assert (report.components.mean, report.components.scale) == ((1.5, -2.0, 0.0, 30.0), (1.0, 2.5, 3.0, 4.0))
    # Not in units of anything, and the table says what was subtracted and divided by.
    page = to_html(report)
    # The page to sign says what it is for.
    assert "patients.csv: two principal components" in page[page.index("<h2>Guarantee</h2>") :]
    assert "variances have no unit" in page
    (row,) = re.findall(r"<tr>(?:(?!</tr>).)*column 2(?:(?!</tr>).)*</tr>", page[page.index("Every weight") :])
    assert re.sub(r"<[^>]*>", " ", row).split()[:4] == ["column", "2", "-2", "2.5"]
    plain_page = to_html(model_report(replace(model, scale=None)))
    assert "squared units of the columns" in plain_page and "divided by this scale" not in plain_page
    # Without centering nothing was subtracted.
    around_zero = replace(model, settings={**model.settings, "center": "none"})
    assert model_report(around_zero).components.mean == ()  # type: ignore[union-attr]
    assert from_json(to_json(report)).components == report.components


@pytest.mark.parametrize("rank", [1, 5, 10])
def test_every_component_up_to_the_tenth_has_bars(rank: int) -> None:
    page = to_html(model_report(made_model(rank, 12)))
    assert all(f">Component {at}" in page for at in range(1, rank + 1))
    assert "Bars are drawn of the first" not in page
    assert "Bars are drawn of the first 10 components" in to_html(model_report(made_model(11, 12)))


@pytest.mark.parametrize(
    ("rank", "left"), [(7, None), (8, "The last is in the JSON report."), (10, "The other 3 are in the JSON report.")]
)
def test_weights_that_the_table_leaves_out_are_counted(rank: int, left: str | None) -> None:
    weights = to_html(model_report(made_model(rank, 12))).partition("Every weight")[2]
    assert "JSON report" not in weights if left is None else left in weights


def test_no_word_of_a_report_needs_the_source_to_be_understood() -> None:
    """Neither names of our own nor values as the code has them."""
    settings = {
        "method": "covariance", "why": "covariance: it fits", "n_components": 2, "row_bound": 3.25, "center": "private",
        "bound_from": "found privately", "neighbours": "add-remove", "width": 2, "rounds": 1,
        "bound_usage": 0.4, "clipped_fraction": 0.07, "noise_floor": 0.1,
    }  # fmt: skip
    page = to_html(model_report(replace(made_model(2, 4), settings=settings)))
    text = re.sub(r"<[^>]*>", " ", page[page.index("<body") :])
    for word in (
        "fill",
        "Fill",
        "largest sine",
        "curator",
        "add-remove",
        "found privately",
        "n components",
        "bound from",
        "_from",
    ):
        assert word not in text, word
    for words in ("Bound usage: 0.4", "Clipped share: about 7%", "one release of the covariance", "3.25, estimated privately"):
        assert words in text, words


def test_every_method_of_the_planner_has_words() -> None:
    from eigenveil.plan.facts import METHODS, method_words

    found = [method_words(method) for method in METHODS]
    assert len(set(found)) == len(METHODS) and not any("/" in words for words in found)


def test_epsilon_has_the_same_word_everywhere() -> None:
    """On the scale of the page to sign, in the help of every command, and in the note of a weak guarantee."""
    from eigenveil.params.declarations.groups import EPSILON_HELP
    from eigenveil.privacy.facts import weak_words
    from eigenveil.show.charts import RANGES

    names = {high: name for _, high, name, _ in RANGES}
    assert names == {1.0: "strong", 10.0: "reasonable", 100.0: "weak"}
    assert f"At most 1 is {names[1.0]}" in EPSILON_HELP and f"Up to 10 is {names[10.0]}" in EPSILON_HELP
    assert f"At most 1 is {names[1.0]}, and up to 10 is {names[10.0]}" in weak_words(Budget(25.0, 1e-6))[0]
    # The percentages in the help.
    for epsilon in (1.0, 10.0):
        guess = NormalDist().cdf(Budget(epsilon, 1e-6).mu / 2)
        assert f"{guess:.0%}" in EPSILON_HELP


def test_every_charge_is_on_the_guarantee_page() -> None:
    model = made_model(2, 4)
    many = tuple(Charge(f"release {at}", 0.01) for at in range(30))
    page = to_html(model_report(replace(model, guarantee=replace(model.guarantee, charges=many))))
    assert all(f"release {at}<" in page for at in range(30))
    few = to_html(model_report(model))
    assert "mean (mu 0.1)" in few and "covariance (mu 0.2)" in few


@pytest.mark.filterwarnings("ignore::eigenveil.errors.ParameterWarning")
def test_intervals_hold_in_98_of_100_fits_and_half_of_them_do_not() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((400, 12)) * np.linspace(1.0, 0.3, 12)
    # Hardly any signal, so that the noise decides: a large one is disturbed by less than the norm of the noise.
    rows *= 0.02 / np.linalg.norm(rows, axis=1).max()
    true = np.linalg.eigvalsh(rows.T @ rows)[::-1][:4] / (len(rows) - 1)
    missed = np.zeros(2, dtype=int)
    for seed in range(120):
        fit = PrivatePCA(
            4, epsilon=2.0, delta=1e-6, row_bound=1.0, center=None, method="covariance", neighbours="zero-out", random_state=seed
        )
        spans = components_of(fit.fit(rows).model_).intervals
        for place, part in enumerate((1.0, 0.5)):
            far = [abs(span.value - at) > part * (span.high - span.value) for span, at in zip(spans, true, strict=True)]
            missed[place] += any(far)
    # 3 of 100 are missed at most: 17 of 120 or more have a probability below 1e-6. Half as wide must be caught.
    assert missed[0] < 17 < missed[1]


def test_no_interval_where_none_is_known() -> None:
    model = made_model(2, 4)
    for more in ({"method": "power"}, {"scale_from": "found privately"}, {"noise_floor": 0.0}):
        assert components_of(replace(model, settings={**model.settings, **more})).intervals == ()


def test_this_fit_is_marked_on_the_curve_of_its_own_method() -> None:
    part = model_report(made_model(2, 8)).plan
    assert part is not None
    assert part.method == "curator/covariance" and part.asked == 1.0
    assert [point.epsilon for point in part.points] == [0.1, 0.3, 1.0, 3.0, 10.0]
    masked = made_model(2, 8)
    masked = replace(masked, settings={**masked.settings, "trust": "masked, 5 survivors of whom 1 may collude", "sites": 5})
    other = model_report(masked).plan
    assert other is not None and other.method == "masked/covariance"


def test_raw_scores_are_said_to_be_raw_and_only_their_owner_reads_the_file(tmp_path: Path) -> None:
    report = replace(plain(), scores=ScoresPart(((0.0, 1.0), (1.0, 0.5))))
    for ending in ENDINGS[:2]:
        target = tmp_path / f"report{ending}"
        write_report(report, target)
        assert target.stat().st_mode & 0o777 == 0o600
    assert to_html(report).count("RAW DATA") >= 3
    assert read_report(tmp_path / "report.json").scores == report.scores
    public = tmp_path / "public.html"
    write_report(plain(), public)
    assert public.stat().st_mode & 0o777 == 0o644
    assert "RAW DATA" not in public.read_text() and HOSTILE not in public.read_text()


def test_what_protects_nobody_has_nothing_to_sign_and_says_so() -> None:
    model = made_model(3, 6)
    seeded = replace(model, guarantee=replace(model.guarantee, reproducible=True))
    exact = replace(made_model(3, 6, floor=0.0), guarantee=Guarantee.none("exact PCA was asked for"))
    for one in (seeded, exact):
        page = to_html(model_report(one))
        assert '<div class="sign">' not in page and "Epsilon on a scale" not in page
        assert "released and public numbers only" not in page and "No person is protected" in page
    assert '<div class="sign">' in to_html(model_report(model))


def test_names_from_right_to_left_move_no_other_word() -> None:
    columns = ("\u05d2\u05d9\u05dc \u05d0", "age", "\u0627\u0644\u0639\u0645\u0631", "w")
    page = to_html(model_report(made_model(2, 4, columns=columns)))
    assert f"<bdi>{columns[0]}</bdi>" in page and f"<td><bdi>{columns[2]}</bdi></td>" in page
    # In drawings each name is an element of its own, and SVG has no such frame.
    assert not re.search(r"(?s)<svg(?:(?!</svg>).)*<bdi>", page)


def test_rounds_leave_out_columns_that_say_nothing() -> None:
    rounds = [replace(one, bytes_down=0, missing=(), movement=None, answered=("a", "b")) for one in made_rounds(2, 3)]
    page = to_html(model_report(made_model(2, 4), rounds=rounds))
    heads = re.findall(r"<th[^>]*>([^<]*)</th>", page.partition("Every round")[2].partition("</thead>")[0])
    assert heads == ["round", "stage", "answered", "sent", "charge, mu"]
    assert "2 peers, 3 rounds" in page and "All answered in every round." in page


def test_a_table_may_draw_one_of_its_columns() -> None:
    part = TablePart(
        title="Compared",
        header=("way", "captured"),
        rows=(("ours", "98.0%"), ("theirs", "50.0%"), ("nobody's", "unknown")),
        bars="captured",
    )
    report = replace(plain(), tables=(part,))
    assert from_json(to_json(report)) == report
    assert "From 50% to 98%." in to_html(report)
    with pytest.raises(ValueError, match="no column"):
        replace(part, bars="other")


def test_an_item_space_has_a_report_without_shares(tmp_path: Path) -> None:
    from eigenveil.recommend import ItemSpace
    from eigenveil.show.recommend import items_report

    axes, guarantee = np.eye(12)[:2], Guarantee(epsilon=1.0, delta=1e-6, unit="each user")
    ItemSpace(components=axes, values=np.array([3.0, 1.0]), dim=12, guarantee=guarantee).save(tmp_path / "items.safetensors")
    report = items_report(tmp_path / "items.safetensors")
    assert report.components is not None and report.components.shares == ()
    jsonschema.validate(json.loads(to_json(report)), schema())
    assert from_json(to_json(report)) == report
    page = to_html(report)
    assert "Two directions of 12 items" in page and "added up" not in page and "its floor is not known" in page


def test_a_very_long_catalogue_shows_what_matters_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eigenveil.show.pages._ROWS", 5)
    page = to_html(model_report(made_model(2, 12)))
    assert "the 5 of 12 columns that matter most" in page
    assert page.partition("Every weight")[2].partition("</table>")[0].count("<tr>") == 6
