"""A `Report` as one HTML page, the answer first, then the pictures, and last the guarantee to be signed; and as a file.

Every text goes through `escaped`. A page loads nothing from anywhere and works without its script, which only sorts tables. It
carries a strict content-security policy: its style and its script are allowed by their hashes, and nothing else is.
"""

import base64
import hashlib
import math
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from eigenveil.data.archive import whole_file
from eigenveil.errors import require
from eigenveil.model import SCORES_ARE_RAW
from eigenveil.plan.facts import method_words
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.show.charts import (
    MOST_BARS,
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
from eigenveil.show.marks import Cell, Chart, escaped, in_bytes, variables
from eigenveil.show.report import clipping_facts, floor_words, round_rows
from eigenveil.show.values import ComponentsPart, PlanPart, Report, RoundPart, TablePart, from_json, to_json

# Sorting is the only script. The buttons are made here, so that nothing is dead without it.
SORT: Final = """
for (const table of document.querySelectorAll("table.sorts")) {
  const body = table.tBodies[0];
  table.querySelectorAll("thead th").forEach((head, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = row => row.cells[place].textContent;
      const unit = {B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12};
      const number = row => { const [size, name] = key(row).replace("%", "").split(" "); return size * (name ? unit[name] : 1); };
      const rows = [...body.rows];
      const numeric = rows.every(row => key(row) === "" || !Number.isNaN(number(row)));
      rows.sort((a, b) => numeric ? Math.abs(number(a)) - Math.abs(number(b)) || number(a) - number(b)
                                  : key(a).localeCompare(key(b)));
      // Names start at A and numbers at the largest, which is what people look for first.
      if (down === numeric) rows.reverse();
      body.append(...rows);
    });
  });
}
"""
# With a sign, a percent sign or a unit of bytes.
_NUMBER: Final = re.compile(r"[+-]?[0-9.]+(e[+-]?[0-9]+)?(%| [kMGT]?B)?")
# Letters that are written from right to left: Hebrew, Arabic and their neighbours, with blanks and marks between them.
_LEFTWARD: Final = "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff"
_RUN: Final = re.compile(f"[{_LEFTWARD}](?:[^0-9A-Za-z&;,.:{_LEFTWARD}]*[{_LEFTWARD}])*")
_PARTS: Final = """
.eigenveil{color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;text-align:left}
.eigenveil svg.chart{display:block;width:100%;max-width:540px;height:auto}
.eigenveil svg.chart text{font-family:system-ui,-apple-system,"Segoe UI",sans-serif}
.eigenveil figure{margin:0;min-width:0}
.eigenveil figcaption{font-weight:600;margin-bottom:.3rem}
.eigenveil figcaption span{display:block;font-weight:400;color:var(--muted);font-size:.87em}
.eigenveil table{border-collapse:collapse;font-size:.87em;font-variant-numeric:tabular-nums;color:var(--ink);margin:0}
.eigenveil th,.eigenveil td{text-align:left;vertical-align:top;padding:.22rem .8rem .22rem 0;border-bottom:1px solid var(--grid)}
.eigenveil th.n,.eigenveil td.n{text-align:right;white-space:nowrap}
.eigenveil td{overflow-wrap:break-word;max-width:24em}
.eigenveil thead th{color:var(--muted);font-weight:600}
.eigenveil .scroll{overflow:auto;max-width:100%;width:fit-content;box-sizing:border-box}
.eigenveil .scroll{border:1px solid var(--grid);border-radius:6px;padding:0 .6rem}
.eigenveil .scroll tbody tr:last-child td{border-bottom:0}
.eigenveil .muted{color:var(--muted)}
.eigenveil .good{color:var(--good)}
.eigenveil .bad{color:var(--bad)}
"""
STYLE: Final = (
    f":root{{color-scheme:light dark;{variables(dark=False)}}}\n"
    # Paper is white, whatever the screen is.
    f"@media screen and (prefers-color-scheme:dark){{:root{{{variables(dark=True)}}}}}\n"
    + _PARTS
    + """
html{background:var(--ground)}
body{margin:0;background:var(--ground)}
.eigenveil main{max-width:1120px;margin:0 auto;padding:1.4rem 1rem 3rem}
.eigenveil h1{font-size:1.5rem;line-height:1.25;margin:0 0 .4rem;overflow-wrap:anywhere}
.eigenveil h2{font-size:1.15rem;margin:2.2rem 0 .7rem;padding-top:.8rem;border-top:1px solid var(--grid)}
.eigenveil h3{font-size:1rem;margin:1.4rem 0 .4rem}
.eigenveil p{max-width:46rem;margin:.4rem 0}
.eigenveil p,.eigenveil li,.eigenveil dd{overflow-wrap:anywhere}
.eigenveil .answer{font-size:1.15rem}
.eigenveil ul{max-width:46rem;margin:.3rem 0;padding-left:1.2rem}
.eigenveil .charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:1.4rem 2rem}
.eigenveil .charts>*{align-self:start}
.eigenveil .note{border-left:4px solid var(--second);background:var(--panel);padding:.5rem .8rem;margin:.5rem 0;max-width:46rem}
.eigenveil .raw{border-left-color:var(--bad)}
.eigenveil dl{display:grid;grid-template-columns:minmax(8rem,12rem) 1fr;gap:.35rem 1rem;max-width:60rem;margin:.6rem 0}
.eigenveil dt{font-weight:600;overflow-wrap:anywhere}
.eigenveil dd{margin:0}
.eigenveil dd ul{padding-left:1rem}
.eigenveil .long{max-height:30rem}
.eigenveil .scroll td{max-width:16em}
.eigenveil .scroll td.w{min-width:15em;max-width:28em}
.eigenveil .scroll thead th{position:sticky;top:0;background:var(--ground)}
.eigenveil details{margin:.3rem 0;font-size:.93em}
.eigenveil summary{color:var(--muted);cursor:pointer}
.eigenveil button{font:inherit;color:inherit;text-align:inherit;background:none}
.eigenveil button{border:0;padding:0;cursor:pointer;text-decoration:underline dotted}
.eigenveil [aria-sort=descending] button::after{content:" \\2193"}
.eigenveil [aria-sort=ascending] button::after{content:" \\2191"}
.eigenveil :focus-visible{outline:2px solid var(--first);outline-offset:2px}
.eigenveil .sign{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,280px),1fr));gap:2.6rem 2rem;margin-top:3rem}
.eigenveil .sign div{border-top:1px solid var(--ink);padding-top:.25rem;font-size:.87em}
.eigenveil footer{margin-top:2.5rem;font-size:.87em;color:var(--muted)}
.eigenveil .paper{display:none}
@media(min-width:900px){.eigenveil dl.short{grid-template-columns:fit-content(11rem) 1fr fit-content(11rem) 1fr;max-width:none}}
@media(max-width:520px){.eigenveil .scroll th,.eigenveil .scroll td{padding-right:.5rem}
.eigenveil .scroll td{max-width:10.5em}
.eigenveil .scroll td.w{min-width:11em;max-width:14em}
.eigenveil th.n{white-space:normal}
.eigenveil dl:not(.short){grid-template-columns:1fr;gap:.1rem}
.eigenveil dl:not(.short) dd{margin-bottom:.6rem}
.eigenveil dl.short{grid-template-columns:7.5rem 1fr}}
@page{size:A4;margin:14mm}
@media print{
.eigenveil{font-size:9.5pt;line-height:1.38}
.eigenveil h2{margin-top:1.2rem}
.eigenveil .guarantee{font-size:8.8pt}
.eigenveil .guarantee svg.chart{max-width:330px}
.eigenveil .guarantee h2{border:0;margin:0;padding:0}
.eigenveil svg[aria-labelledby^=heat]{max-width:290px}
.eigenveil p,.eigenveil dl,.eigenveil .note{max-width:none}
.eigenveil dl{gap:.12rem 1rem;grid-template-columns:9.5rem 1fr}
.eigenveil dl.short{grid-template-columns:fit-content(9rem) 1fr fit-content(9rem) 1fr;break-inside:avoid}
.eigenveil .scroll td.w{min-width:9em;max-width:18em}
.eigenveil dd ul{margin:0}
.eigenveil td,.eigenveil th{padding:.1rem .5rem .1rem 0}
.eigenveil main{padding:0;max-width:none}
.eigenveil svg.chart{max-width:430px}
.eigenveil .charts{grid-template-columns:1fr 1fr}
.eigenveil .scroll{max-height:none;overflow:visible;border:0;padding:0}
.eigenveil .scroll tbody tr:nth-child(n+31){display:none}
.eigenveil .paper{display:block}
.eigenveil details{display:none}
.eigenveil button{text-decoration:none}
.eigenveil figure,.eigenveil tr,.eigenveil dd,.eigenveil .note{break-inside:avoid}
.eigenveil h2,.eigenveil h3,.eigenveil h2+p,.eigenveil h3+p{break-after:avoid}
.eigenveil .guarantee{break-before:page}
.eigenveil .sign{break-inside:avoid;grid-template-columns:1fr 1fr 1fr;gap:1.6rem 2rem;margin-top:1.9rem}
.eigenveil footer{margin-top:.7rem}
}
"""
)


def prose(text: object) -> str:
    """`text` for HTML outside of attributes. A name from right to left stays where it is, and so do the words around it.

    >>> prose("a < b")
    'a &lt; b'
    """
    # Without a frame of its own such a name would pull the number after it to its other side.
    return _RUN.sub(r"<bdi>\g<0></bdi>", escaped(text))


def table(header: Sequence[str], rows: Iterable[Sequence[Cell]], *, sorts: bool = False) -> str:
    """A table with a header. Columns of numbers, in four digits, are aligned to the right. The script sorts it if it `sorts`.

    >>> table(["a", "b", "c"], [["<b>", 0.123456, None]]).partition("<tbody>")[2]
    '<tr><td>&lt;b&gt;</td><td class="n">0.1235</td><td class="n"></td></tr></tbody></table>'
    """

    def cell(value: Cell) -> str:
        return "" if value is None else f"{value:.4g}" if isinstance(value, float) else prose(value)

    lines = [tuple(row) for row in rows]
    # Without rows every column would count as one of numbers.
    right = [bool(lines) and all(_is_number(row[at]) for row in lines) for at in range(len(header))]
    # A column of sentences gets room for several words in a line, where the table scrolls.
    long = [any(isinstance(row[at], str) and str(row[at]).count(" ") > 5 for row in lines) for at in range(len(header))]
    marks = [' class="n"' if entry else ' class="w"' if wide else "" for entry, wide in zip(right, long, strict=True)]
    head = "".join(f'<th scope="col"{mark}>{prose(name)}</th>' for name, mark in zip(header, marks, strict=True))
    body = "\n".join(
        f"<tr>{''.join(f'<td{mark}>{cell(entry)}</td>' for entry, mark in zip(row, marks, strict=True))}</tr>" for row in lines
    )
    chosen = ' class="sorts"' if sorts else ""
    return f"<table{chosen}><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"


def _is_number(value: Cell) -> bool:
    # An empty cell leaves a column of numbers what it is.
    return not isinstance(value, str) or value == "" or _NUMBER.fullmatch(value) is not None


def listing(pairs: Iterable[tuple[str, Sequence[str]]], *, css: str = "") -> str:
    """Labels with one paragraph or several items each.

    >>> listing([("Cost", ["one release"])])
    '<dl><dt>Cost</dt><dd>one release</dd></dl>'
    """
    parts = []
    for label, texts in pairs:
        items = "".join(f"<li>{prose(text)}</li>" for text in texts)
        body = prose(texts[0]) if len(texts) == 1 else f"<ul>{items}</ul>"
        parts.append(f"<dt>{prose(label)}</dt><dd>{body}</dd>")
    chosen = f' class="{css}"' if css else ""
    return f"<dl{chosen}>{''.join(parts)}</dl>"


def figure(chart: Chart, name: str) -> str:
    """A chart with its title and words above it, and its numbers folded away below."""
    caption = f"<figcaption>{prose(chart.title)}<span>{prose(chart.description)}</span></figcaption>"
    # Wide ones scroll, and whoever has no mouse scrolls them with the keys.
    box = '<div class="scroll" tabindex="0" role="region" aria-label="Numbers">'
    rows = f"<details><summary>Numbers</summary>{box}{table(chart.header, chart.rows)}</div></details>" if chart.rows else ""
    return f"<figure>{caption}{chart.svg(name)}{rows}</figure>"


def fragment(body: str) -> str:
    """`body` with its style, for a notebook: light or dark as the reader's screen is."""
    light, dark = (f".eigenveil{{{variables(dark=dark)}}}" for dark in (False, True))
    # A notebook may be light on a dark screen, so the fragment brings its own ground.
    ground = ".eigenveil.cell{background:var(--ground);padding:.7rem 1rem;border-radius:6px;max-width:60rem}"
    style = f"<style>{light}@media(prefers-color-scheme:dark){{{dark}}}{_PARTS}{ground}</style>"
    return f'{style}<div class="eigenveil cell" lang="en">{body}</div>'


def page(title: str, body: str) -> str:
    """A whole document that loads nothing and runs nothing but the sorting of tables."""
    # A file has no server that could draw a nonce, so the policy names our own texts by their hashes.
    allowed = f"style-src '{hash_of(STYLE)}'; script-src '{hash_of(SORT)}'"
    policy = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    # The policy comes before the style and the script: in a file it holds only for what follows it.
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{escaped(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f'<body class="eigenveil">\n<main>\n{body}\n</main>\n<script>{SORT}</script>\n</body>\n</html>\n'
    )


def hash_of(text: str) -> str:
    """How a content-security policy names a script or a style that it allows."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


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
_OPEN = "No person is protected: its numbers come from the rows without privacy. Treat it as you treat the rows."


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
        mark = "this fit" if report.components is not None else "asked"
        yield f"<h2>What an epsilon buys</h2>{figure(plan_of(report.plan, mark=mark), 'plan')}"
    for listed in report.lists:
        yield f"<h2>{prose(listed.title)}</h2><ul>{''.join(f'<li>{prose(item)}</li>' for item in listed.items)}</ul>"
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
        named_shares = [(str(row[0]), share) for row in part.rows if (share := _share(row[at])) is not None]
        if named_shares:
            drawn = shares_chart(*map(list, zip(*named_shares, strict=True)), title=part.bars.capitalize())
            wide = f'<div class="charts">{wide}{figure(drawn, name)}</div>'
    return f"<h2>{prose(part.title)}</h2>{wide}{note}"


def _share(value: Cell) -> float | None:
    try:
        return float(str(value).removesuffix("%")) / 100
    except ValueError:
        return None


def _top(report: Report) -> str:
    parts = [f"<h1>{prose(report.title)}</h1>"]
    if report.raw:
        parts.append(f'<p class="note raw"><strong>{_RAW}</strong></p>')
    parts.append(f'<p class="answer">{prose(report.answer)}</p>')
    if report.guarantee is not None:
        css = "good" if report.guarantee.private else "bad"
        parts.append(f'<p class="{css}"><strong>{prose(report.guarantee.title)}</strong></p>')
    parts += [f'<p class="note"><strong>Warning.</strong> {prose(warning)}</p>' for warning in report.warnings]
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
    title = f"Accuracy against epsilon: {method_words(part.method)}"
    return plan_chart(part.points, target=part.asked, title=title, note=part.note, mark=mark, of=part.of)


def _variance(part: ComponentsPart) -> str:
    # Without shares there is nothing to add up.
    drawn = figure(scree_of(part), "scree") + (figure(cumulative_of(part), "cumulative") if part.shares else "")
    notes = "".join(f"<p>{escaped(note)}</p>" for note in _about_noise(part))
    return f'<h2>Variance</h2><div class="charts">{drawn}</div>{notes}'


def _about_noise(part: ComponentsPart) -> Iterator[str]:
    yield floor_words(part)
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
    for label, text in clipping_facts(part):
        yield f"{label.capitalize()}: {text}."
    if part.bound_usage is not None:
        yield "Near a bound usage of 0, the bound is larger than needed, and so is the noise. Near 1, most rows were clipped."


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
        (names[at], *(f"{numbers[at]:.4g}" for _, numbers in around), *(f"{component[at]:+.4f}" for component in few))
        for at in order
    ]
    more = rank - len(few)
    left = f" The other {more} are in the JSON report." if more > 1 else " The last is in the JSON report." * more
    which = "every column" if len(order) == len(names) else f"the {len(order)} of {len(names)} columns that matter most"
    caption = f"<p>Weights of {which} in {'the component' if rank == 1 else f'the first {len(few)} components'}.{left}"
    caption += " This mean was subtracted from the columns first." * bool(part.mean)
    caption += " Then they were divided by this scale." * bool(part.scale) + "</p>"
    whole = _scrolling(table(header, rows, sorts=True), "weights of columns", len(rows))
    return f"<h2>What the components are made of</h2>{drawn}<h3>Every weight</h3>{caption}{whole}"


def _component(part: ComponentsPart, at: int) -> str:
    share = f", {part.shares[at]:.1%} of the variance" if part.shares else ""
    return f"Component {at + 1}{', not above the noise' if part.variances[at] <= part.noise_floor else share}"


def _importance(part: ComponentsPart) -> list[float]:
    """The variance of each column along all components; without any, its squared weights."""
    sizes = part.variances if max(part.variances) > 0 else (1.0,) * len(part.weights)
    return [
        math.fsum(max(size, 0.0) * component[at] ** 2 for size, component in zip(sizes, part.weights, strict=True))
        for at in range(len(part.names))
    ]


def _scrolling(inside: str, label: str, rows: int) -> str:
    """A table that scrolls, by keyboard too. On paper it is shortened."""
    more = f'<p class="paper">{rows - _PRINTED} more rows are in the file itself.</p>' if rows > _PRINTED else ""
    css = "scroll long" if rows > _TALL else "scroll"
    return f'<div class="{css}" tabindex="0" role="region" aria-label="{escaped(label)}">{inside}</div>{more}'


def charts_of(rounds: Sequence[RoundPart], sites: Sequence[str]) -> Iterator[tuple[str, Chart]]:
    """The charts of a run over sites or peers, each with its name."""
    if any(part.movement is not None for part in rounds):
        yield "convergence", convergence_chart([part.movement for part in rounds])
    up, down = [part.bytes_up for part in rounds], [part.bytes_down for part in rounds]
    # Peers have no up or down: all of theirs are sent.
    series = [("up", up), ("down", down)] if any(down) else [("sent", up)]
    yield "traffic", bars_chart(series, title="Traffic by round", axis="round")
    yield "part", taking_part_chart(sites, [frozenset(part.answered) for part in rounds])


def _rounds(report: Report) -> str:
    rounds = report.rounds
    names = [name for part in rounds for name in (*part.answered, *part.missing)]
    # Not every record lists its sites, so those that were asked stand in for them.
    sites = [part.name for part in report.sites] or list(dict.fromkeys(names))
    charts = dict(charts_of(rounds, sites))
    # Of many sites those that missed a round are drawn. Without any the sentence above says everything.
    shown = {name: chart for name, chart in charts.items() if any(mark.shape != "words" for mark in chart.marks)}
    drawn = "".join(figure(chart, name) for name, chart in shown.items())
    hub = any(part.bytes_down for part in rounds)
    header, texts = round_rows(rounds)
    missing = [", ".join(part.missing[:10]) + ", ..." * (len(part.missing) > 10) for part in rounds]
    if any(missing):
        header, texts = [*header, "missing"], [[*row, names] for row, names in zip(texts, missing, strict=True)]
    count = f"{len(sites)} {'site' if hub else 'peer'}{'s' * (len(sites) != 1)}, {len(rounds)} round{'s' * (len(rounds) != 1)}"
    about = f"{count}, {in_bytes(sum(part.bytes_up + part.bytes_down for part in rounds))} in all. {charts['part'].description}"
    if report.refused:
        about += f" {report.refused} message{'s were' if report.refused != 1 else ' was'} refused."
    return (
        f'<h2>Rounds</h2><p>{about}</p><div class="charts">{drawn}</div><h3>Every round</h3>'
        f"{_scrolling(table(header, texts), 'rounds', len(texts))}"
    )


def _keys(report: Report) -> str:
    """The fingerprints of the keys that the parties have in the study file, for those who compare them."""
    # In groups, as commands print them: people read them to each other by telephone.
    pairs = [(site.name, site.pin) for site in report.sites if site.pin is not None]
    pins = [(name, " ".join(pin[at : at + 4] for at in range(0, len(pin), 4))) for name, pin in pairs]
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
            parts += [f"<p>{escaped(text)}</p>" for text in _strength(guarantee, guarantee.epsilon, guarantee.delta)]
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
    """Epsilon and delta in words. The best guess is under "What it means"."""
    # Beyond this the number tells nobody anything, and later it would overflow.
    times = f"{math.exp(epsilon):.3g}" if epsilon < 50 else "more than 1e21"
    unit = "interaction" if guarantee.relation == "interaction" else "person"
    yield (
        f"Epsilon {epsilon:g} means: what one {unit} adds makes no result more than {times} times as likely or as unlikely. "
        f"Delta {delta:g} is an allowance in these probabilities: 1 in {1 / delta:,.0f}."
    )
    yield (
        'The words on the scale come from Ponomareva and others (2023), "How to DP-fy ML". What is acceptable depends on the '
        "data and on who sees the result."
    )


ENDINGS: Final = (".html", ".json", ".pdf")
_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# Printing must work without a network, and must not call anybody.
_QUIET: Final = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-pdf-header-footer",
)
_PRINTING: Final = 120.0


def write_report(report: Report, path: Path) -> None:
    """Write `report` to `path`, readable by all, or by its owner alone if it shows raw data."""
    ending = path.suffix.lower()
    require(ending in ENDINGS, f"a report must end in {', '.join(ENDINGS)}, got {path}")
    with whole_file(path) as temporary:
        if ending == ".pdf":
            _print(to_html(report), temporary)
        else:
            temporary.write_text(to_html(report) if ending == ".html" else to_json(report), encoding="utf-8")
        # `whole_file` makes files that only their owner can read, which is right for raw data alone.
        if not report.raw:
            temporary.chmod(0o644)


def read_report(path: Path) -> Report:
    """The report in a JSON file."""
    try:
        return from_json(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def require_printer(path: Path) -> None:
    """Refuse a PDF where no Chromium is installed, before any budget is spent."""
    require(
        path.suffix.lower() != ".pdf" or _browser() is not None,
        f"{path}: a PDF needs Chromium, which is not installed. Write {path.with_suffix('.html')} and print it",
    )


def _browser() -> str | None:
    return next((path for name in _BROWSERS if (path := shutil.which(name)) is not None), None)


def _print(html: str, target: Path) -> None:
    browser = _browser()
    require(browser is not None, "a PDF needs Chromium, which is not installed. Write .html and print it")
    assert browser is not None
    with tempfile.TemporaryDirectory(prefix="eigenveil-") as folder:
        source, made = Path(folder) / "report.html", Path(folder) / "report.pdf"
        source.write_text(html, encoding="utf-8")
        # The sandbox of Chromium refuses to start as root. The page is ours, and it may neither run nor load anything.
        root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        # With the person's own profile, a browser that is open already would take the command over and print nothing.
        profile = f"--user-data-dir={folder}/profile"
        command = [browser, *_QUIET, *root, profile, f"--print-to-pdf={made}", source.as_uri()]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_PRINTING)
        except (subprocess.SubprocessError, OSError) as error:
            raise ValueError(f"{browser} could not print the report ({type(error).__name__})") from error
        # Chromium may end with success and no file.
        require(made.is_file(), f"{browser} printed nothing")
        target.write_bytes(made.read_bytes())
