"""HTML around charts: tables, lists, figures, a fragment for notebooks, and a page that loads nothing from anywhere.

A page carries a strict content-security policy: its style and its one script are allowed by their hashes, and nothing else is.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Final

from eigenveil.show.marks import Cell, Chart, escaped, variables

__all__ = ["SORT", "STYLE", "figure", "fragment", "hash_of", "listing", "page", "prose", "table"]

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
.eigenveil td,.eigenveil th{padding-top:.1rem;padding-bottom:.1rem}
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


def cell(value: Cell) -> str:
    """A number in four digits, or a text, as it stands in a table.

    >>> cell(0.123456), cell("<b>"), cell(None)
    ('0.1235', '&lt;b&gt;', '')
    """
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else prose(value)


def table(header: Sequence[str], rows: Iterable[Sequence[Cell]], *, sorts: bool = False) -> str:
    """A table with a header. Columns of numbers are aligned to the right, and `sorts` lets the script sort it.

    >>> table(["a"], [["<b>"]]).count("&lt;b&gt;")
    1
    """
    lines = [tuple(row) for row in rows]
    # Without rows every column would count as one of numbers.
    right = [bool(lines) and all(_is_number(row[at]) for row in lines) for at in range(len(header))]
    # A column of sentences gets room for several words in a line, where the table scrolls.
    long = [any(isinstance(row[at], str) and str(row[at]).count(" ") > 5 for row in lines) for at in range(len(header))]
    marks = [' class="n"' if one else ' class="w"' if wide else "" for one, wide in zip(right, long, strict=True)]
    head = "".join(f'<th scope="col"{mark}>{prose(name)}</th>' for name, mark in zip(header, marks, strict=True))
    body = "\n".join(
        f"<tr>{''.join(f'<td{mark}>{cell(one)}</td>' for one, mark in zip(row, marks, strict=True))}</tr>"
        for row in lines
    )
    chosen = ' class="sorts"' if sorts else ""
    return f"<table{chosen}><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"


def _is_number(value: Cell) -> bool:
    # None is an empty cell, and leaves a column of numbers what it is.
    return not isinstance(value, str) or _NUMBER.fullmatch(value) is not None


def listing(pairs: Iterable[tuple[str, Sequence[str]]], *, css: str = "") -> str:
    """Labels with one paragraph or several items each.

    >>> listing([("Cost", ["one release"])])
    '<dl><dt>Cost</dt><dd>one release</dd></dl>'
    """
    parts = []
    for label, texts in pairs:
        items = "".join(f"<li>{prose(text)}</li>" for text in texts)
        said = prose(texts[0]) if len(texts) == 1 else f"<ul>{items}</ul>"
        parts.append(f"<dt>{prose(label)}</dt><dd>{said}</dd>")
    chosen = f' class="{css}"' if css else ""
    return f"<dl{chosen}>{''.join(parts)}</dl>"


def figure(chart: Chart, name: str) -> str:
    """A chart with its title and words above it, and its numbers folded away below."""
    caption = f"<figcaption>{prose(chart.title)}<span>{prose(chart.words)}</span></figcaption>"
    # Wide ones scroll, and whoever has no mouse scrolls them with the keys.
    box = '<div class="scroll" tabindex="0" role="region" aria-label="Numbers">'
    rows = (
        f"<details><summary>Numbers</summary>{box}{table(chart.header, chart.rows)}</div></details>"
        if chart.rows
        else ""
    )
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
