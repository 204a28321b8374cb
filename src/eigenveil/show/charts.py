"""The charts of Eigenveil, from released numbers to marks. Each also returns its numbers as a table.

Column and site names are drawn as they are given: `marks` makes them harmless. Where something does not fit, the words say
what was left out, and the table of a page has it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, final

from eigenveil.errors import require
from eigenveil.show.marks import (
    WIDTH,
    Cell,
    Chart,
    Mark,
    Plane,
    bar,
    dot,
    fitted,
    in_bytes,
    line,
    numbers,
    ticks,
    width_of,
    words,
)

# Sizes of what fits: names of a heat map and of a grid of sites, bars of one component, and how wide a name may be.
MOST_ROWS: Final = 40
MOST_BARS: Final = 10
_NAME: Final = 136.0
# Epsilons called strong, reasonable and weak: the three tiers of Ponomareva and others (2023), "How to DP-fy ML", section 5.2.
RANGES: Final = ((0.01, 1.0, "strong", "good"), (1.0, 10.0, "reasonable", "first"), (10.0, 100.0, "weak", "second"))


class Ends(Protocol):
    """A value and the interval around it."""

    @property
    def value(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


@final
@dataclass(frozen=True, slots=True)
class Span:
    """A value and the interval around it."""

    value: float
    low: float
    high: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EpsilonPoint:
    """What one epsilon buys, with intervals for nine fits in ten, and what random directions capture."""

    epsilon: float
    captured: Span
    sine: Span
    nothing: float

    def __post_init__(self) -> None:
        require(0 < self.epsilon < math.inf, f"epsilon must be positive and finite, got {self.epsilon}")


_QUARTERS: Final = tuple((tick / 4, f"{tick / 4:.0%}") for tick in range(5))
_PLAN_KEYS: Final = (
    (14.0, "first", "captured variance"),
    (160.0, "second", "largest angle"),
    (278.0, "muted", "random directions"),
)
_PLAN_HEADER: Final = ("epsilon", "captured", "from", "to", "largest angle, as a sine", "from", "to", "random")


def scree_chart(
    variances: Sequence[float], *, floor: float = 0.0, spans: Sequence[Ends] = (), shares: Sequence[float] = ()
) -> Chart:
    """The variance along each component, with the noise `floor` and an interval for each, if there is one.

    >>> chart = scree_chart([4.0, 1.0], floor=2.0)
    >>> chart.description
    'Variance along 2 components, largest 4, smallest 1. 1 of 2 is above the noise floor of 2.'
    """
    require(len(variances) > 0, "there must be a component to draw")
    count = len(variances)
    # All variances may be zero, and an axis needs some length.
    top = max([*variances, floor, *(span.high for span in spans)]) * 1.04 or 1.0
    plane = Plane(x_from=0.4, x_to=count + 0.6, y_from=0.0, y_to=top, top=24.0)
    # A single bar over most of the axis would look like a block and not like a bar.
    half = 0.36 if count > 3 else 0.15
    marks = [*plane.levels(ticks(top)), *plane.below(numbers(count), "component")]
    for at, variance in enumerate(variances, 1):
        colour, tip = "first" if variance > floor else "faint", f"component {at}: {variance:.4g}"
        left, right, height = plane.x(at - half), plane.x(at + half), plane.y(max(variance, 0.0))
        # Pale enough for the interval to be seen inside the bar, and no paler than 3 to 1 on its ground.
        pale = 0.6 if variance > floor else 1.0
        marks.append(bar(left, height, right, plane.bottom, colour, opacity=pale, text=tip))
    for at, span in enumerate(spans, 1):
        marks += _whisker(plane.x(at), plane.y(span.low), plane.y(span.high))
    above = sum(variance > floor for variance in variances)
    text = f"Variance along {count} component{'s' * (count != 1)}, largest {max(variances):.4g}, smallest {min(variances):.4g}."
    if floor > 0:
        marks.append(line([plane.at(0.4, floor), (plane.right, plane.y(floor))], "second", dashed=True))
        # In the corner, where bars that fall to the right leave room: on the line it would lie over the last ones.
        key = f"noise floor {floor:.3g}"
        start = plane.right - width_of(key) - 28
        marks.append(line([(start, 14), (start + 22, 14)], "second", dashed=True))
        marks.append(words(plane.right, 18, key, "second", anchor="end"))
        text += f" {above} of {count} {'is' if above == 1 else 'are'} above the noise floor of {floor:.4g}."
    header = ("component", "variance", *["share"] * bool(shares), *["from", "to"] * bool(spans))
    rows: list[tuple[Cell, ...]] = []
    for at, variance in enumerate(variances):
        share = [f"{fraction:.1%}" for fraction in shares[at : at + 1]]
        ends = [end for span in spans[at : at + 1] for end in (span.low, span.high)]
        rows.append((at + 1, float(variance), *share, *ends))
    return Chart(title="Variance along each component", description=text, marks=marks, header=header, rows=rows)


def _whisker(x: float, low: float, high: float) -> Iterator[Mark]:
    yield line([(x, low), (x, high)], "ink", width=1.2)
    for y in (low, high):
        yield line([(x - 3, y), (x + 3, y)], "ink", width=1.2)


def _band(plane: Plane, spans: Sequence[tuple[float, Ends]], colour: str) -> Mark:
    # Along the low ends and back along the high ones, or the outline would cross itself.
    edge = [plane.at(at, span.low) for at, span in spans] + [plane.at(at, span.high) for at, span in reversed(spans)]
    return Mark(shape="area", places=tuple(edge), colour=colour, opacity=0.17)


def cumulative_chart(shares: Sequence[float], *, spans: Sequence[Ends] = ()) -> Chart:
    """The share of the variance that the first components have together, with an interval if there is one.

    >>> cumulative_chart([0.5, 0.25]).rows
    ((1, '50.0%'), (2, '75.0%'))
    """
    require(len(shares) > 0, "there must be a component to draw")
    sums = [math.fsum(shares[: at + 1]) for at in range(len(shares))]
    plane = Plane(x_from=0.4, x_to=len(shares) + 0.6, y_from=0.0, y_to=1.0)
    marks = [*plane.levels(_QUARTERS), *plane.below(numbers(len(shares)), "components")]
    if spans:
        marks.append(_band(plane, list(enumerate(spans, 1)), "first"))
    marks.append(line([plane.at(at, total) for at, total in enumerate(sums, 1)], "first", width=2.0))
    marks += [dot(*plane.at(at, total), "first", text=f"first {at}: {total:.1%}") for at, total in enumerate(sums, 1)]
    summary = f"The first {len(sums)} component{'s' * (len(sums) != 1)} together have {sums[-1]:.1%} of the variance."
    header = ("components", "share together", *["from", "to"] * bool(spans))
    rows: list[tuple[Cell, ...]] = []
    for at, total in enumerate(sums):
        ends = [f"{end:.1%}" for span in spans[at : at + 1] for end in (span.low, span.high)]
        rows.append((at + 1, f"{total:.1%}", *ends))
    return Chart(title="Share of the variance, added up", description=summary, marks=marks, header=header, rows=rows)


def loadings_chart(names: Sequence[str], weights: Sequence[float], *, title: str) -> Chart:
    """The columns with the largest weights in one component, to the left if negative and to the right if positive.

    >>> loadings_chart(["age", "weight"], [0.6, -0.8], title="Component 1").rows
    (('weight', -0.8), ('age', 0.6))
    """
    order = sorted(range(len(weights)), key=lambda at: -abs(weights[at]))[:MOST_BARS]
    height = 18.0 * len(order)
    middle, reach = 282.0, 82.0
    largest = max((abs(weights[at]) for at in order), default=0.0) or 1.0
    marks = [line([(middle, 4.0), (middle, height + 8)], "grid", width=1.0)]
    for index, at in enumerate(order):
        y, weight = 8 + 18.0 * index, weights[at]
        end = middle + reach * weight / largest
        colour = "first" if weight >= 0 else "second"
        marks.append(words(140.0, y + 11, fitted(names[at], _NAME), "ink", anchor="end"))
        marks.append(bar(middle, y, end, y + 13, colour, text=f"{names[at]}: {weight:+.3f}"))
        # Beyond the end of the bar, on a strip that is kept free of names.
        right = weight >= 0
        marks.append(words(end + (5 if right else -5), y + 11, f"{weight:+.2f}", anchor="start" if right else "end"))
    first = ", ".join(f"{names[at]} {weights[at]:+.2f}" for at in order[:3])
    left = f" {len(weights) - len(order)} smaller weights are not drawn." * (len(weights) > len(order))
    rows = tuple((names[at], float(weights[at])) for at in order)
    return Chart(
        title=title,
        description=f"Largest weights: {first}.{left}",
        height=height + 14,
        marks=marks,
        header=("column", "weight"),
        rows=rows,
    )


def shares_chart(names: Sequence[str], shares: Sequence[float], *, title: str) -> Chart:
    """Shares of the whole, one bar below the other.

    >>> shares_chart(["ours", "theirs"], [0.98, 0.5], title="Captured").rows
    (('ours', '98.0%'), ('theirs', '50.0%'))
    """
    left, reach = 186.0, 176.0
    marks: list[Mark] = []
    for index, (name, share) in enumerate(zip(names, shares, strict=True)):
        y, end = 4 + 22.0 * index, left + reach * min(1.0, max(0.0, share))
        marks.append(words(left - 8, y + 13, fitted(name, left - 12), "ink", anchor="end"))
        # The whole in the colour of the grid, so that what is missing can be seen.
        marks += [bar(left, y, left + reach, y + 17, "grid", opacity=0.6), bar(left, y, end, y + 17, "first")]
        marks.append(words(left + reach + 6, y + 13, f"{share:.1%}", "ink"))
    extent = f"From {min(shares):.0%} to {max(shares):.0%}"
    rows = tuple((name, f"{share:.1%}") for name, share in zip(names, shares, strict=True))
    return Chart(
        title=title, description=f"{extent}.", height=22.0 * len(rows) + 6, marks=marks, header=("name", "share"), rows=rows
    )


def heat_chart(names: Sequence[str], weights: Sequence[Sequence[float]], importance: Sequence[float]) -> Chart:
    """Weights, (k, d), as colours: a line for each of the most important columns, a square for each component.

    >>> heat_chart(["a", "b"], [[1.0, 0.0]], [1.0, 0.5]).header
    ('column', '1')
    """
    order = sorted(range(len(names)), key=lambda at: -importance[at])[:MOST_ROWS]
    left, top, count = 146.0, 22.0, len(weights)
    cell = min(26.0, (WIDTH - 12 - left) / count)
    largest = max((abs(part[at]) for part in weights for at in order), default=0.0) or 1.0
    marks = [words(left + cell * (at - 0.5), 14, text, anchor="middle") for at, text in numbers(count)]
    for index, at in enumerate(order):
        y = top + 15.0 * index
        marks.append(words(left - 6, y + 11.5, fitted(names[at], _NAME), "ink", anchor="end"))
        for number, part in enumerate(weights):
            strength, x = abs(part[at]) / largest, left + cell * number
            # A square that could hardly be seen is not drawn, which keeps a page of fifty components small.
            if strength >= 0.02:
                colour = "first" if part[at] >= 0 else "second"
                tip = f"{names[at]}, component {number + 1}: {part[at]:+.3f}"
                marks.append(bar(x + 0.5, y + 0.5, x + cell - 0.5, y + 14.5, colour, opacity=strength, text=tip))
    shown = "All columns." if len(order) == len(names) else f"The {len(order)} of {len(names)} columns that matter most."
    summary = f"{shown} Strong colours are large weights: blue for positive, orange for negative, up to {largest:.2f}."
    rows: list[tuple[Cell, ...]] = [(names[at], *(float(part[at]) for part in weights)) for at in order]
    header = ("column", *(str(number) for number in range(1, count + 1)))
    return Chart(
        title="Weights of columns in components",
        description=summary,
        height=top + 15.0 * len(order) + 6,
        marks=marks,
        header=header,
        rows=rows,
    )


def convergence_chart(movements: Sequence[float | None]) -> Chart:
    """The sine of the largest principal angle by which the directions moved in each round, on a logarithmic scale. None: nothing
    to measure.

    >>> convergence_chart([None, 0.1, 0.001]).rows
    ((2, 0.1), (3, 0.001))
    """
    # Directions that did not move at all have a sine of zero, which a logarithmic axis lacks.
    moves = [(at, max(moved, 1e-16)) for at, moved in enumerate(movements, 1) if moved is not None]
    require(bool(moves), "there must be a movement to draw")
    low = math.floor(math.log10(min(moved for _, moved in moves)))
    # At least one power of ten, or the axis would have no length where nothing moved little.
    plane = Plane(x_from=0.5, x_to=len(movements) + 0.5, y_from=10.0 ** min(low, -1), y_to=1.0, log_y=True)
    # More labels than about seven would touch each other.
    step = max(1, math.ceil(-min(low, -1) / 6))
    powers = [(10.0**power, f"1e{power}" if power else "1") for power in range(0, min(low, -1) - 1, -step)]
    marks = [*plane.levels(powers), *plane.below(numbers(len(movements)), "round")]
    marks.append(line([plane.at(at, moved) for at, moved in moves], "first", width=2.0))
    marks += [dot(*plane.at(at, moved), "first", text=f"round {at}: {moved:.1e}") for at, moved in moves]
    summary = (
        f"The directions moved by {moves[0][1]:.2g} in round {moves[0][0]} and by {moves[-1][1]:.2g} in round {moves[-1][0]}. "
        "This is the sine of the largest principal angle between two rounds: 0 is no change, and 1 a right angle."
    )
    return Chart(
        title="How far the directions moved",
        description=summary,
        marks=marks,
        header=("round", "largest angle, as a sine"),
        rows=tuple(moves),
    )


def bars_chart(series: Sequence[tuple[str, Sequence[int]]], *, title: str, axis: str) -> Chart:
    """Bytes by round, one bar on the other for each of at most two `series` with a name.

    >>> bars_chart([("up", [10, 20])], title="Traffic", axis="round").rows
    ((1, '10 B'), (2, '20 B'))
    """
    count = len(series[0][1])
    totals = [sum(values[at] for _, values in series) for at in range(count)]
    top = max(totals, default=0) * 1.04 or 1.0
    # Bytes with their unit are wider than plain numbers, so the axis starts further right.
    plane = Plane(x_from=0.4, x_to=count + 0.6, y_from=0.0, y_to=top, left=62.0)
    marks = [*plane.levels([(tick, in_bytes(int(tick))) for tick, _ in ticks(top)])]
    marks += plane.below(numbers(count), axis)
    half = 0.36 if count > 3 else 0.12
    for at in range(count):
        height = 0.0
        for (name, values), colour in zip(series, ("first", "second"), strict=False):
            low, height = height, height + values[at]
            tip = f"{axis} {at + 1}, {name}: {in_bytes(values[at])}"
            left, right = plane.x(at + 1 - half), plane.x(at + 1 + half)
            marks.append(bar(left, plane.y(height), right, plane.y(low), colour, text=tip))
    colours = (" (blue)", " (orange)") if len(series) > 1 else ("",)
    parts = [f"{in_bytes(sum(values))} {name}{mark}" for (name, values), mark in zip(series, colours, strict=False)]
    rows: list[tuple[Cell, ...]] = [(at + 1, *(in_bytes(values[at]) for _, values in series)) for at in range(count)]
    summary = f"{' and '.join(parts)} in all."
    return Chart(title=title, description=summary, marks=marks, header=(axis, *(name for name, _ in series)), rows=rows)


def taking_part_chart(sites: Sequence[str], answered: Sequence[frozenset[str]]) -> Chart:
    """Which site is in which round: a filled square if it answered. Of many sites only those that missed a round are drawn.

    >>> taking_part_chart(["a", "b"], [frozenset("ab"), frozenset("a")]).description
    '1 of 2 missed a round.'
    """
    missed = [name for name in sites if any(name not in responders for responders in answered)]
    # Among many sites, those that missed a round are what people look for.
    shown = (list(sites) if len(sites) <= MOST_ROWS else missed)[:MOST_ROWS]
    left, top = 146.0, 22.0
    cell = min(26.0, (WIDTH - 12 - left) / max(len(answered), 1))
    marks = [words(left + cell * (at - 0.5), 14, text, anchor="middle") for at, text in numbers(len(answered))]
    for index, name in enumerate(shown):
        y = top + 14.0 * index
        marks.append(words(left - 6, y + 11, fitted(name, _NAME), "ink", anchor="end"))
        for number, responders in enumerate(answered):
            x, came = left + cell * number, name in responders
            tip = f"{name}, round {number + 1}: {'answered' if came else 'did not answer'}"
            # Size tells the two apart as well, for those who do not see the colours.
            inner = 1.0 if came else 4.0
            colour = "first" if came else "bad"
            marks.append(bar(x + inner, y + inner, x + cell - inner, y + 14 - inner, colour, text=tip))
    summary = "All answered in every round." if not missed else f"{len(missed)} of {len(sites)} missed a round."
    if missed and len(shown) < len(sites):
        summary += " Only those are drawn." if len(shown) == len(missed) else f" The first {len(shown)} of them are drawn."
    # If nobody missed a round, the sentence above says everything.
    rows = tuple(
        (name, sum(name in responders for responders in answered), len(answered)) for name in (shown if missed else shown[:0])
    )
    height = top + 14.0 * len(shown) + 6
    return Chart(
        title="Who took part in which round",
        description=summary,
        height=height,
        marks=marks,
        header=("name", "rounds answered", "of"),
        rows=rows,
    )


def budget_chart(epsilon: float) -> Chart:
    """An epsilon on a scale with the ranges called strong, reasonable and weak.

    >>> budget_chart(1.0).description
    'Epsilon 1 is called strong. At most 1 is strong, up to 10 reasonable, and more is weak.'
    """
    plane = Plane(x_from=0.01, x_to=100.0, y_from=0.0, y_to=1.0, left=14.0, right=WIDTH - 14, log_x=True)
    marks: list[Mark] = []
    for low, high, name, colour in RANGES:
        left, right = plane.x(low), plane.x(high)
        marks.append(bar(left + 0.5, 34, right - 0.5, 50, colour, opacity=0.45, text=f"{name}: {low:g} to {high:g}"))
        marks.append(words((left + right) / 2, 46, name, "ink", anchor="middle"))
    marks += [words(plane.x(at), 68, f"{at:g}", anchor="middle") for at in (0.1, 1.0, 10.0)]
    marks += [words(plane.left, 68, "0.01"), words(plane.right, 68, "100", anchor="end")]
    x = plane.x(epsilon)
    # The label stays on the drawing, whatever the epsilon is.
    side: Literal["start", "middle", "end"] = "start" if x < 70 else "end" if x > WIDTH - 70 else "middle"
    # Down to the bar and no further, or it would run through the name of a range.
    marks.append(line([(x, 24), (x, 36)], "ink", width=2.5))
    marks.append(words(x, 19, f"epsilon = {epsilon:.4g}", "ink", anchor=side, strong=True))
    name = next((name for _, high, name, _ in RANGES if epsilon <= high), RANGES[-1][2])
    summary = f"Epsilon {epsilon:.4g} is called {name}. At most 1 is strong, up to 10 reasonable, and more is weak."
    rows = (*((f"{low:g} to {high:g}", text) for low, high, text, _ in RANGES), ("this result", f"{epsilon:.6g}"))
    return Chart(
        title="Epsilon on a scale", description=summary, height=76.0, marks=marks, header=("epsilon", "called"), rows=rows
    )


def plan_chart(
    points: Sequence[EpsilonPoint], *, target: float, title: str, note: str = "", mark: str = "asked", of: str = "clipped rows"
) -> Chart:
    """What an epsilon buys: captured variance and largest sine with their intervals, and random directions.

    What is captured is a share of the variance `of` all rows or of the clipped ones. The epsilon `target` is marked with the word
    `mark`, and `note` follows the words of the chart.
    """
    require(bool(points), "there must be a point to draw")
    ordered = sorted(points, key=lambda point: point.epsilon)
    plane = Plane(x_from=ordered[0].epsilon, x_to=ordered[-1].epsilon, y_from=0.0, y_to=1.0, top=34.0, bottom=214.0, log_x=True)
    marks = [*plane.levels(_QUARTERS)]
    marks += plane.below(_apart(plane, [point.epsilon for point in ordered], target), "epsilon")
    x_target = plane.x(target)
    marks.append(line([(x_target, plane.top), (x_target, plane.bottom)], "ink", width=1.2, dashed=True))
    # Above the plane, where no curve runs, and inside the drawing wherever the line is.
    side: Literal["middle", "end"] = "end" if x_target > WIDTH - 60 else "middle"
    marks.append(words(x_target + (12 if side == "end" else 0), plane.top - 4, mark, "ink", anchor=side, strong=True))
    # The captured variance is drawn last, over the sine.
    for colour, spans in (
        ("second", [(point.epsilon, point.sine) for point in ordered]),
        ("first", [(point.epsilon, point.captured) for point in ordered]),
    ):
        marks += [_band(plane, spans, colour), line([plane.at(at, span.value) for at, span in spans], colour, width=2.0)]
        marks += [dot(*plane.at(at, span.value), colour) for at, span in spans]
    marks.append(line([plane.at(point.epsilon, point.nothing) for point in ordered], "muted", dashed=True, width=1.2))
    for x, colour, text in _PLAN_KEYS:
        marks += [bar(x, 2, x + 10, 12, colour), words(x + 15, 11, text, "ink")]
    # There may be no point at the asked epsilon, if the method is refused there.
    chosen = next((point for point in ordered if point.epsilon == target), ordered[-1])
    summary = (
        f"At epsilon = {chosen.epsilon:g} expect {chosen.captured.value:.0%} of the variance that exact PCA finds in "
        f"{'all rows before clipping' if of == 'all rows' else 'the clipped rows'}, "
        f"{chosen.captured.low:.0%} to {chosen.captured.high:.0%} in nine fits of ten. "
        f"Random directions capture {chosen.nothing:.0%}. The largest principal angle, as a sine, is 0% if every "
        f"direction is found and 100% if one is lost. {note}"
    )
    rows = tuple((point.epsilon, *_ends(point.captured), *_ends(point.sine), point.nothing) for point in ordered)
    return Chart(title=title, description=summary.strip(), height=254.0, marks=marks, header=_PLAN_HEADER, rows=rows)


def _ends(interval: Ends) -> tuple[float, float, float]:
    return interval.value, interval.low, interval.high


def _apart(plane: Plane, epsilons: Sequence[float], target: float) -> list[tuple[float, str]]:
    """The epsilons whose labels do not touch, the asked one first."""
    retained: list[float] = []
    for epsilon in sorted(epsilons, key=lambda at: at != target):
        if all(abs(plane.x(epsilon) - plane.x(other)) >= 28 for other in retained):
            retained.append(epsilon)
    return [(epsilon, f"{epsilon:g}") for epsilon in retained]


def scatter_chart(scores: Sequence[tuple[float, float]]) -> Chart:
    """Scores along the first two components, a dot a row. RAW DATA: for the owner of these rows alone.

    >>> scatter_chart([(0.0, 1.0)]).description
    '1 row along components 1 and 2. Raw data of the people in these rows.'
    """
    require(bool(scores), "there must be a row to draw")
    ends = [(min(axis), max(axis)) for axis in zip(*scores, strict=True)]
    plane = Plane(x_from=ends[0][0], x_to=ends[0][1], y_from=ends[1][0], y_to=ends[1][1], bottom=330.0)
    marks = [line([(plane.left, y), (plane.right, y)], "grid", width=1.0) for y in (plane.top, plane.bottom)]
    marks += [words(plane.left - 6, plane.y(at) + 4, f"{at:.3g}", anchor="end") for at in ends[1]]
    marks += plane.below([], "component 1 (across), component 2 (up)")
    # The ends of the axis: a label around its middle would be cut off at the edge of the drawing.
    marks.append(words(plane.left, plane.bottom + 17, f"{ends[0][0]:.3g}"))
    marks.append(words(plane.right, plane.bottom + 17, f"{ends[0][1]:.3g}", anchor="end"))
    # Half transparent, so that rows on top of each other look denser.
    marks += [dot(*plane.at(*score), "bad", radius=2.0, opacity=0.5) for score in scores]
    summary = f"{len(scores)} row{'s' * (len(scores) != 1)} along components 1 and 2. Raw data of the people in these rows."
    # No table: the numbers themselves are in the owner's file of scores.
    return Chart(title="Scores of the rows: RAW DATA", description=summary, height=370.0, marks=marks, header=(), rows=())
