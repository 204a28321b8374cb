"""A `Report` as one HTML page: the answer first, then the pictures, and last the guarantee to be signed.

Every text goes through `escaped`. The page works without its script, which only sorts tables.
"""

import math
from collections.abc import Iterator, Sequence

from eigenveil.model import SCORES_ARE_RAW
from eigenveil.plan import method_words
from eigenveil.privacy import Guarantee
from eigenveil.show.charts import (
    MOST_BARS,
    Point,
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
from eigenveil.show.html import figure, listing, page, prose, table
from eigenveil.show.marks import Cell, Chart, escaped, in_bytes
from eigenveil.show.values import ComponentsPart, PlanPart, Report, RoundPart, TablePart

__all__ = ["charts_of", "cumulative_of", "plan_of", "scree_of", "to_html"]

# Components with bars of their own, and those that fit into a table on A4.
_BARS, _COLUMNS = 10, 8
# Rows of a table that are printed, as the style says, and charges that the guarantee lists one by one.
_PRINTED, _LISTED = 30, 6
# Rows of the largest table.
_ROWS = 2000
# Longer tables scroll, so that what comes after them is found.
_TALL = 20
_RAW = "RAW DATA: this report shows the owner's own rows. Only the owner may read it; do not pass it on."
_PUBLIC = "It shows released and public numbers only. No row was read to make it."
_OPEN = "Nobody is protected: its numbers come from the rows without privacy. Treat it as you treat the rows."
# Movements below this are rounding error.
_STILL = 1e-15


def to_html(report: Report) -> str:
    """The whole page."""
    body = "\n".join(part for part in _sections(report) if part)
    return page(report.title, body)


def _sections(report: Report) -> Iterator[str]:
    yield _top(report)
    for at, part in enumerate(report.tables):
        yield _table(part, f"table{at}")
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
        yield f"<h2>{prose(listed.title)}</h2><ul>{''.join(f'<li>{prose(one)}</li>' for one in listed.items)}</ul>"
    if report.facts:
        # What organisations agreed on is in sentences, which half a line is too short for.
        agreed = report.kind == "study" and report.components is None
        title, css = ("What was agreed", "") if agreed else ("Settings", "short")
        yield f"<h2>{title}</h2>{listing(((fact.label, [fact.text]) for fact in report.facts), css=css)}"
    yield _keys(report)
    if report.guarantee is not None:
        yield _guarantee(report.guarantee, report.title)
    open_to_all = report.guarantee is not None and not report.guarantee.private
    about = _RAW if report.raw else _OPEN if open_to_all else _PUBLIC
    yield f"<footer><p>Made by Eigenveil {escaped(report.eigenveil)}. {about}</p></footer>"


def _table(part: TablePart, name: str) -> str:
    wide = _scrolling(table(part.header, part.rows, sorts=True), part.title, len(part.rows))
    note = f"<p>{prose(part.note)}</p>" if part.note else ""
    if part.bars:
        at = part.header.index(part.bars)
        # A report may come from a file that was edited, so a cell may be anything.
        found = [(str(row[0]), share) for row in part.rows if (share := _share(row[at])) is not None]
        if found:
            drawn = shares_chart(*map(list, zip(*found, strict=True)), title=part.bars.capitalize())
            wide = f'<div class="charts">{wide}{figure(drawn, name)}</div>'
    return f"<h2>{prose(part.title)}</h2>{wide}{note}"


def _share(value: Cell) -> float | None:
    try:
        return float(str(value).removesuffix("%")) / 100
    except ValueError:
        return None


def _mark(report: Report) -> str:
    return "this fit" if report.components is not None else "asked"


def _top(report: Report) -> str:
    parts = [f"<h1>{prose(report.title)}</h1>"]
    if report.raw:
        parts.append(f'<p class="note raw"><strong>{_RAW}</strong></p>')
    parts.append(f'<p class="answer">{prose(report.answer)}</p>')
    if report.guarantee is not None:
        css = "good" if report.guarantee.private else "bad"
        parts.append(f'<p class="{css}"><strong>{prose(report.guarantee.title)}</strong></p>')
    parts += [f'<p class="note"><strong>Warning.</strong> {prose(one)}</p>' for one in report.warnings]
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
    points = [
        Point(epsilon=one.epsilon, captured=one.captured, sine=one.sine, nothing=one.nothing) for one in part.points
    ]
    title = f"Accuracy against epsilon: {method_words(part.method)}"
    return plan_chart(points, asked=part.asked, title=title, note=part.note, mark=mark, of=part.of)


def _variance(part: ComponentsPart) -> str:
    # Without shares there is nothing to add up.
    drawn = figure(scree_of(part), "scree") + (figure(cumulative_of(part), "cumulative") if part.shares else "")
    said = "".join(f"<p>{escaped(words)}</p>" for words in _about_noise(part))
    return f'<h2>Variance</h2><div class="charts">{drawn}</div>{said}'


def _about_noise(part: ComponentsPart) -> Iterator[str]:
    if not part.floor_known:
        yield "Noise was added, and its floor is not known: any component may be noise alone."
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
    # An item space has neither, and no unit.
    if part.scale:
        yield "Columns were divided by their scale first, so variances have no unit, and each column counts alike."
    elif part.mean or part.shares:
        yield "Variances are in squared units of the columns, so columns with large numbers weigh more."
    if part.clipped is not None:
        yield f"Clipped share: about {part.clipped:.0%} of people had rows beyond the row bound, which were shortened to it."
    elif part.fill is not None:
        yield "Clipped share: not released. Counting the clipped rows would take a part of the budget."
    if part.taken is not None and part.unseen is not None:
        one = part.taken
        yield (
            f"Clipping took about {one.value:.0%} of all squared norms ({one.low:.0%} to {one.high:.0%}), as far as the released "
            f"norms show. They do not show long rows that noise hides, at most {part.unseen:.1%} of all. The variances here are "
            "those of the clipped rows."
        )
    if part.fill is not None:
        yield (
            f"Bound usage: {part.fill:.2g}. This is the mean squared norm of the clipped rows over the squared row bound. Near "
            "0, the bound is larger than needed and the noise is too. Near 1, nearly every row was clipped."
        )


def _loadings(part: ComponentsPart) -> str:
    names, rank = part.names, len(part.weights)
    charts = [
        figure(loadings_chart(names, weights, title=_component(part, at)), f"weights{at}")
        for at, weights in enumerate(part.weights[:_BARS])
    ]
    drawn = f'<div class="charts">{"".join(charts)}</div>'
    drawn += f"<p>Bars are drawn of the first {_BARS} components. The picture below has all.</p>" * (rank > _BARS)
    if len(names) > MOST_BARS or rank > _BARS:
        drawn += f"<h3>All at a glance</h3>{figure(heat_chart(names, part.weights, _importance(part)), 'heat')}"
    around = [(name, numbers) for name, numbers in (("mean", part.mean), ("scale", part.scale)) if numbers]
    few, order = part.weights[: _COLUMNS - len(around)], list(range(len(names)))
    if len(names) > _ROWS:
        # A catalogue of items may have more rows than a browser can show. Those that matter most stay, in their order.
        heavy = _importance(part)
        order = sorted(sorted(order, key=lambda at: -heavy[at])[:_ROWS])
    header = ("column", *(name for name, _ in around), *(f"component {at}" for at in range(1, len(few) + 1)))
    # A sign for every weight: they are compared down a column.
    rows = [
        (names[at], *(f"{numbers[at]:.4g}" for _, numbers in around), *(f"{one[at]:+.4f}" for one in few))
        for at in order
    ]
    more = rank - len(few)
    left = f" The other {more} are in the JSON report." if more > 1 else " The last is in the JSON report." * more
    which = "every column" if len(order) == len(names) else f"the {len(order)} of {len(names)} columns that matter most"
    said = f"<p>Weights of {which} in {'the component' if rank == 1 else f'the first {len(few)} components'}.{left}"
    said += " This mean was subtracted from the columns first." * bool(part.mean)
    said += " Then they were divided by this scale." * bool(part.scale) + "</p>"
    whole = _scrolling(table(header, rows, sorts=True), "weights of columns", len(rows))
    return f"<h2>What the components are made of</h2>{drawn}<h3>Every weight</h3>{said}{whole}"


def _component(part: ComponentsPart, at: int) -> str:
    noise = (
        ", not above the noise"
        if part.variances[at] <= part.noise_floor
        else f", {part.shares[at]:.1%} of the variance"
        if part.shares
        else ""
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
    charts = dict(charts_of(rounds, sites))
    # Of many sites those that missed a round are drawn. Without any the sentence above says everything.
    shown = {name: chart for name, chart in charts.items() if any(mark.shape != "words" for mark in chart.marks)}
    drawn = "".join(figure(chart, name) for name, chart in shown.items())
    # Peers have no up or down: all of theirs are sent.
    hub = any(one.bytes_down for one in rounds)
    header = ("round", "stage", "answered", "missing", *(("up", "down") if hub else ("sent",)), "moved", "charge, mu")
    rows = [
        (
            one.round,
            one.stage + ", restarted" * one.restarted,
            len(one.answered),
            ", ".join(one.missing[:10]) + ", ..." * (len(one.missing) > 10) or None,
            *(in_bytes(size) for size in (one.bytes_up, one.bytes_down)[: 1 + hub]),
            _moved(one.movement),
            # Charges compose by the squares of their mu.
            f"{math.hypot(*(charge.mu for charge in one.charges)):.4g}" if one.charges else None,
        )
        for one in rounds
    ]
    # A column that says nothing only takes room.
    said = [at for at in range(len(header)) if any(row[at] is not None for row in rows)]
    whole = table([header[at] for at in said], [[row[at] for at in said] for row in rows])
    count = f"{len(sites)} {'site' if hub else 'peer'}{'s' * (len(sites) != 1)}, {len(rounds)} round{'s' * (len(rounds) != 1)}"
    about = f"{count}, {in_bytes(sum(one.bytes_up + one.bytes_down for one in rounds))} in all. {charts['part'].words}"
    if report.refused:
        about += f" {report.refused} message{'s were' if report.refused != 1 else ' was'} refused."
    return (
        f'<h2>Rounds</h2><p>{about}</p><div class="charts">{drawn}</div><h3>Every round</h3>'
        f"{_scrolling(whole, 'rounds', len(rows))}"
    )


def _moved(movement: float | None) -> str | None:
    return None if movement is None else "0" if movement < _STILL else f"{movement:.2g}"


def _keys(report: Report) -> str:
    """The fingerprints of the keys that the parties have in the study file, for those who compare them."""
    # In groups, as commands print them: people read them to each other by telephone.
    found = [(one.name, one.pin) for one in report.sites if one.pin is not None]
    pins = [(name, " ".join(pin[at : at + 4] for at in range(0, len(pin), 4))) for name, pin in found]
    if not pins:
        return ""
    header = ("name", "pin: the fingerprint of its key")
    return f"<h2>Keys of those who take part</h2>{_scrolling(table(header, pins), 'keys', len(pins))}"


def _guarantee(guarantee: Guarantee, title: str) -> str:
    # On paper it is a page of its own, and whoever signs it must see what for.
    parts = [f"<h2>Guarantee</h2><p>{prose(title)}</p><p><strong>{prose(guarantee.title)}</strong></p>"]
    if guarantee.epsilon is not None and guarantee.delta is not None:
        # Noise from a known seed protects nobody, so there is no strength to show and nothing to sign.
        if guarantee.private:
            parts.append(figure(budget_chart(guarantee.epsilon), "budget"))
            parts += [f"<p>{escaped(words)}</p>" for words in _strength(guarantee, guarantee.epsilon, guarantee.delta)]
        parts.append(listing(guarantee.parts()))
        # Fewer are all listed under "Cost", and the page stays one page.
        if len(guarantee.charges) > _LISTED:
            rows = [(charge.label, charge.mu) for charge in guarantee.charges]
            charges = table(("release", "mu"), [*rows, ("all together", guarantee.mu)])
            parts.append(f"<h3>Every charge</h3>{_scrolling(charges, 'charges', len(rows) + 1)}")
        lines = ("Name", "Role", "Date and signature") * guarantee.private
        parts.append(f'<div class="sign">{"".join(f"<div>{line}</div>" for line in lines * 2)}</div>' if lines else "")
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
        'The words on the scale are those of Ponomareva and others (2023), "How to DP-fy ML". What is acceptable depends on the '
        "data and on who sees the result."
    )
