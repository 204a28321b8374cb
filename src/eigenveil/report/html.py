"""A `Report` as one HTML page: the answer first, then the pictures, and last the guarantee to be signed.

Every text goes through `escaped`. The page works without its script, which only sorts tables.
"""

import math
from collections.abc import Iterator, Sequence

from eigenveil.drawing import (
    Chart,
    Point,
    Span,
    bars_chart,
    budget_chart,
    convergence_chart,
    cumulative_chart,
    escaped,
    figure,
    heat_chart,
    in_bytes,
    listing,
    loadings_chart,
    page,
    plan_chart,
    scatter_chart,
    scree_chart,
    table,
    taking_part_chart,
)
from eigenveil.drawing.charts import MOST_BARS
from eigenveil.model import SCORES_ARE_RAW
from eigenveil.privacy import Guarantee
from eigenveil.report.contents import ComponentsPart, PlanPart, Report, RoundPart

__all__ = ["charts_of", "cumulative_of", "plan_of", "scree_of", "to_html"]

# Components with bars of their own, and those that fit into a table on A4.
_BARS, _COLUMNS = 4, 8
# Rows of a table that are printed, as the style says, and charges that the guarantee lists one by one.
_PRINTED, _LISTED = 30, 6
# Longer tables scroll, so that what comes after them is found.
_TALL = 20
_RAW = "RAW DATA: this report shows the owner's own rows. Only the owner may read it; do not pass it on."
_PUBLIC = "It shows released and public numbers only. No row was read to make it."


def to_html(report: Report) -> str:
    """The whole page."""
    body = "\n".join(part for part in _sections(report) if part)
    return page(report.title, body)


def _sections(report: Report) -> Iterator[str]:
    yield _top(report)
    for part in report.tables:
        wide = _scrolling(table(part.header, part.rows, sorts=True), part.title, len(part.rows))
        yield f"<h2>{escaped(part.title)}</h2>{wide}" + (f"<p>{escaped(part.note)}</p>" if part.note else "")
    if report.components is not None:
        yield _variance(report.components)
        yield _loadings(report.components)
    if report.scores is not None:
        drawn = figure(scatter_chart(report.scores.points), "scores")
        yield f'<h2>Scores</h2><p class="note raw">{_RAW} {escaped(SCORES_ARE_RAW)}</p>{drawn}'
    if report.rounds:
        yield _rounds(report)
    if report.plan is not None:
        yield f"<h2>What an epsilon buys</h2>{figure(plan_of(report.plan, mark=_mark(report)), 'plan')}"
    for listed in report.lists:
        yield f"<h2>{escaped(listed.title)}</h2><ul>{''.join(f'<li>{escaped(one)}</li>' for one in listed.items)}</ul>"
    if report.facts:
        yield f"<h2>Settings</h2>{listing(((fact.label, [fact.text]) for fact in report.facts), css='short')}"
    if report.guarantee is not None:
        yield _guarantee(report.guarantee)
    made = f"Made by Eigenveil {escaped(report.eigenveil)}."
    yield f"<footer><p>{made} {_RAW if report.raw else _PUBLIC}</p></footer>"


def _mark(report: Report) -> str:
    return "this fit" if report.components is not None else "asked"


def _top(report: Report) -> str:
    parts = [f"<h1>{escaped(report.title)}</h1>"]
    if report.raw:
        parts.append(f'<p class="note raw"><strong>{_RAW}</strong></p>')
    parts.append(f'<p class="answer">{escaped(report.answer)}</p>')
    if report.guarantee is not None:
        css = "good" if report.guarantee.private else "bad"
        parts.append(f'<p class="{css}"><strong>{escaped(report.guarantee.title)}</strong></p>')
    parts += [f'<p class="note"><strong>Warning.</strong> {escaped(one)}</p>' for one in report.warnings]
    return f"<header>{''.join(parts)}</header>"


def scree_of(part: ComponentsPart) -> Chart:
    """The scree plot of components."""
    return scree_chart(part.variances, floor=part.noise_floor, spans=part.intervals, shares=part.shares)


def cumulative_of(part: ComponentsPart) -> Chart:
    """The share of the variance that the first components have together, within what the noise allows.

    The sum of the k largest eigenvalues moves by at most k times the spectral norm of the noise (Ky Fan).
    """
    spans, whole = [], part.total
    if part.intervals and whole:
        for count in range(1, len(part.shares) + 1):
            ends = [math.fsum(getattr(span, end) for span in part.intervals[:count]) / whole for end in ("low", "high")]
            # A share cannot exceed the whole, whatever the noise allows.
            spans.append(Span(math.fsum(part.shares[:count]), min(1.0, ends[0]), min(1.0, ends[1])))
    return cumulative_chart(part.shares, spans=spans)


def plan_of(part: PlanPart, *, mark: str = "asked") -> Chart:
    """The curve of a plan, with its epsilon marked."""
    points = [Point(one.epsilon, one.captured, one.sine, one.nothing) for one in part.points]
    title = f"Accuracy against epsilon: {part.method}"
    return plan_chart(points, asked=part.asked, title=title, note=part.note, mark=mark)


def _variance(part: ComponentsPart) -> str:
    drawn = figure(scree_of(part), "scree") + figure(cumulative_of(part), "cumulative")
    said = "".join(f"<p>{escaped(words)}</p>" for words in _about_noise(part))
    return f'<h2>Variance</h2><div class="charts">{drawn}</div>{said}'


def _about_noise(part: ComponentsPart) -> Iterator[str]:
    if not part.floor_known:
        yield "The noise follows a published formula, and its floor is not known."
    elif part.noise_floor == 0:
        yield "No noise was added, so there is no noise floor."
    else:
        yield (
            f"Noise alone exceeds the noise floor, {part.noise_floor:.4g}, in one fit of a hundred. A component below it may "
            "be noise alone, and counts as having no share of the variance."
        )
    if part.intervals:
        yield (
            "Lines on the bars, and the band: where the variances of the clipped rows lie in about 98 fits of a hundred, all of "
            "them at once. The numbers of people and the total are taken as released."
        )
    elif part.noise_floor > 0:
        yield "No intervals are drawn: none are known for this method."
    if part.fill is not None:
        yield f"Fill {part.fill:.2g}: the mean squared norm of the clipped rows over the squared row bound."
    if part.clipped is not None:
        yield f"About {part.clipped:.0%} of people were clipped, at the bound that was found."


def _loadings(part: ComponentsPart) -> str:
    names, rank = part.names, len(part.weights)
    charts = [
        figure(loadings_chart(names, weights, title=_component(part, at)), f"weights{at}")
        for at, weights in enumerate(part.weights[:_BARS])
    ]
    drawn = f'<div class="charts">{"".join(charts)}</div>'
    if len(names) > MOST_BARS or rank > _BARS:
        drawn += f"<h3>All at a glance</h3>{figure(heat_chart(names, part.weights, _importance(part)), 'heat')}"
    few = part.weights[:_COLUMNS]
    header = ("column", *(f"component {at}" for at in range(1, len(few) + 1)))
    # A sign for every number: they are compared down a column.
    rows = [(name, *(f"{one[at]:+.4f}" for one in few)) for at, name in enumerate(names)]
    left = f" The other {rank - len(few)} are in the JSON report." if rank > len(few) else ""
    said = f"<p>Weights of every column in the first {len(few)} components.{left}</p>" if rank > 1 else ""
    whole = _scrolling(table(header, rows, sorts=True), "weights of columns", len(rows))
    return f"<h2>What the components are made of</h2>{drawn}<h3>Weights of columns</h3>{said}{whole}"


def _component(part: ComponentsPart, at: int) -> str:
    noise = (
        ", not above the noise"
        if part.variances[at] <= part.noise_floor
        else f", {part.shares[at]:.1%} of the variance"
    )
    return f"Component {at + 1}{noise}"


def _importance(part: ComponentsPart) -> list[float]:
    """The variance of each column along all components; without any, its squared weights."""
    sizes = part.variances if max(part.variances) > 0 else (1.0,) * len(part.weights)
    return [
        math.fsum(max(size, 0.0) * one[at] ** 2 for size, one in zip(sizes, part.weights, strict=True))
        for at in range(len(part.names))
    ]


def _scrolling(inside: str, label: str, rows: int) -> str:
    """A table that scrolls, by keyboard too. On paper it is shortened."""
    more = f'<p class="paper">{rows - _PRINTED} more rows are in the file itself.</p>' if rows > _PRINTED else ""
    css = "scroll long" if rows > _TALL else "scroll"
    return f'<div class="{css}" tabindex="0" role="region" aria-label="{escaped(label)}">{inside}</div>{more}'


def charts_of(rounds: Sequence[RoundPart], sites: Sequence[str]) -> Iterator[tuple[str, Chart]]:
    """The charts of a run over sites or peers, each with its name."""
    if any(one.movement is not None for one in rounds):
        yield "convergence", convergence_chart([one.movement for one in rounds])
    up, down = [one.bytes_up for one in rounds], [one.bytes_down for one in rounds]
    # Peers have no up or down: all of theirs are sent.
    series = [("up", up), ("down", down)] if any(down) else [("sent", up)]
    yield "traffic", bars_chart(series, title="Traffic by round", axis="round")
    yield "part", taking_part_chart(sites, [frozenset(one.answered) for one in rounds])


def _rounds(report: Report) -> str:
    rounds = report.rounds
    seen = [name for one in rounds for name in (*one.answered, *one.missing)]
    # Not every record lists its sites, so those that were asked stand in for them.
    sites = [one.name for one in report.sites] or list(dict.fromkeys(seen))
    drawn = "".join(figure(chart, name) for name, chart in charts_of(rounds, sites))
    header = ("round", "stage", "answered", "missing", "up", "down", "moved", "charge, mu")
    rows = [
        (
            one.round,
            one.stage + ", restarted" * one.restarted,
            len(one.answered),
            ", ".join(one.missing[:10]) + ", ..." * (len(one.missing) > 10),
            in_bytes(one.bytes_up),
            in_bytes(one.bytes_down),
            one.movement,
            # Charges compose by the squares of their mu.
            math.hypot(*(charge.mu for charge in one.charges)) if one.charges else None,
        )
        for one in rounds
    ]
    about = f"{len(sites)} sites, {len(rounds)} rounds, {in_bytes(sum(one.bytes_up + one.bytes_down for one in rounds))} in all."
    if report.refused:
        about += f" {report.refused} messages were refused."
    whole = _scrolling(table(header, rows), "rounds", len(rows))
    pins = [(one.name, one.pin) for one in report.sites if one.pin is not None]
    keys = f"<details><summary>Keys of the sites</summary>{table(('site', 'pin'), pins)}</details>" if pins else ""
    return f'<h2>Rounds</h2><p>{about}</p><div class="charts">{drawn}</div><h3>Every round</h3>{whole}{keys}'


def _guarantee(guarantee: Guarantee) -> str:
    parts = [f"<h2>Guarantee</h2><p><strong>{escaped(guarantee.title)}</strong></p>"]
    if guarantee.epsilon is not None and guarantee.delta is not None:
        parts.append(figure(budget_chart(guarantee.epsilon), "budget"))
        parts += [f"<p>{escaped(words)}</p>" for words in _strength(guarantee, guarantee.epsilon, guarantee.delta)]
        parts.append(listing(guarantee.parts()))
        # Fewer are all listed under "Cost", and the page stays one page.
        if len(guarantee.charges) > _LISTED:
            rows = [(charge.label, charge.mu) for charge in guarantee.charges]
            charges = table(("release", "mu"), [*rows, ("all together", guarantee.mu)])
            parts.append(f"<h3>Every charge</h3>{_scrolling(charges, 'charges', len(rows) + 1)}")
        lines = ("Name", "Role", "Date and signature")
        parts.append(f'<div class="sign">{"".join(f"<div>{line}</div>" for line in lines * 2)}</div>')
    return f'<section class="guarantee">{"".join(parts)}</section>'


def _strength(guarantee: Guarantee, epsilon: float, delta: float) -> Iterator[str]:
    """Epsilon and delta in words. The best guess is under "What that means"."""
    # Beyond this the number tells nobody anything, and later it would overflow.
    times = f"{math.exp(epsilon):.3g}" if epsilon < 50 else "more than 1e21"
    one = "interaction" if guarantee.relation == "interaction" else "person"
    yield (
        f"Epsilon {epsilon:g} means: what one {one} adds makes no result more than {times} times as likely or as unlikely. "
        f"Delta {delta:g} is an allowance in these probabilities: 1 in {1 / delta:,.0f}."
    )
    yield (
        "Ranges on the scale: at most 1 is called strong, up to 10 usual, and above 10 weak (Ponomareva and others 2023, "
        '"How to DP-fy ML"). What is acceptable depends on the data and on who sees the result.'
    )
