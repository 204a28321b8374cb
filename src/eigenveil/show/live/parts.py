"""The live page as HTML: its parts, drawn from a `PageState`, and the document around them.

Every text goes through `escaped`. Should one slip through, the content policy allows no script but ours, by its hash.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, final

from eigenveil.show.charts import bars_chart, convergence_chart, scree_chart
from eigenveil.show.html import STYLE, figure, hash_of, listing, prose, table
from eigenveil.show.live.contents import PageBudget, PageState
from eigenveil.show.marks import Chart, escaped
from eigenveil.show.terminal import round_rows

if TYPE_CHECKING:
    from eigenveil.estimators.rounds import Round

__all__ = ["POLICY", "VERSION", "Drawing", "document"]

# Rounds on a chart, names in the list of parties: more would make the page heavy and could not be told apart.
_MOST_DRAWN: Final = 300
_MOST_NAMED: Final = 400
_PLACES: Final = ("now", "warnings", "parties", "budget", "charts", "log", "rounds", "facts")
_NAMES: Final = {"red": "bad", "bold red": "bad", "yellow": "warn", "bold yellow": "warn", "green": "good"}

_STYLE: Final = (
    STYLE
    + """
.eigenveil #status{color:var(--muted);font-size:.93em;margin:0 0 .6rem}
.eigenveil #status::before{content:"";display:inline-block;width:.6em;height:.6em;border-radius:50%;margin-right:.5em;
background:var(--faint)}
.eigenveil #status.live::before{background:var(--good)}
.eigenveil #status.lost::before{background:var(--bad)}
.eigenveil [data-part]:empty{display:none}
.eigenveil .parties{list-style:none;padding:0;max-width:none;display:flex;flex-wrap:wrap;gap:.35rem}
.eigenveil .parties li{border:1px solid var(--grid);border-radius:1em;padding:.05rem .7rem;font-size:.93em}
.eigenveil .parties .gone{color:var(--muted);border-style:dashed}
.eigenveil .parties .mark{color:var(--good)}
.eigenveil .parties .gone .mark{color:var(--second)}
.eigenveil .unseen{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
.eigenveil .gauge{height:.8rem;max-width:26rem;border:1px solid var(--grid);border-radius:.4rem;overflow:hidden;display:block;
width:100%}
.eigenveil .log{list-style:none;padding:0;margin:.4rem 0;max-width:none;font-size:.93em}
.eigenveil .log li{display:grid;grid-template-columns:max-content 1fr;column-gap:.7em}
.eigenveil .log time{color:var(--muted);font-variant-numeric:tabular-nums}
.eigenveil .warn{color:var(--second)}
.eigenveil .scroll.log-box{max-height:22rem;padding:.1rem .7rem}
"""
)
# The whole script: it puts parts into their places, and says whether they still come.
_SCRIPT: Final = """
"use strict";
const status = document.getElementById("status");
const say = (kind, words) => { status.className = kind; status.textContent = words; };
const clock = () => new Date().toLocaleTimeString();
const show = (name, text) => {
  const place = document.querySelector(`[data-part="${name}"]`);
  if (!place) return;
  // What the reader has opened and where they have scrolled to stays.
  const open = [...place.querySelectorAll("details")].map(one => one.open);
  const tops = [...place.querySelectorAll(".scroll")].map(one => one.scrollTop);
  place.innerHTML = text;
  place.querySelectorAll("details").forEach((one, at) => { one.open = open[at] === true; });
  place.querySelectorAll(".scroll").forEach((one, at) => { one.scrollTop = tops[at] || 0; });
};
let ended = false;
const listen = () => {
  const source = new EventSource("events");
  source.addEventListener("parts", event => {
    const found = JSON.parse(event.data);
    // Another version of the program, after a restart.
    if (found.version !== document.body.dataset.version) { location.reload(); return; }
    ended = false;
    for (const [name, text] of Object.entries(found.parts)) show(name, text);
    say("live", `Live. Last change at ${clock()}.`);
  });
  source.addEventListener("end", () => {
    ended = true;
    say("", `The command ended at ${clock()}. If it is started again, this page goes on.`);
  });
  source.onerror = () => {
    if (!ended) say("lost", `Not reachable since ${clock()}. Trying again.`);
    // A browser tries again by itself after a lost connection, but not after a refusal.
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 3000);
  };
};
listen();
"""
# Hashes allow our own style and script and nothing that a name could smuggle in. Events come from this server alone.
POLICY: Final = (
    f"default-src 'none'; style-src '{hash_of(_STYLE)}'; script-src '{hash_of(_SCRIPT)}'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# A page that stays open over a restart reloads itself if this has changed: its script may be old.
VERSION: Final = hash_of(_STYLE + _SCRIPT)


def document(title: str, parts: Mapping[str, str]) -> str:
    """The page with its parts as they are now, so that it can be read without script."""
    places = "\n".join(f'<section data-part="{name}">{parts.get(name, "")}</section>' for name in _PLACES)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # An empty picture, so that no browser asks for one.
        '<link rel="icon" href="data:,">\n'
        f"<title>{escaped(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f'<body class="eigenveil" data-version="{VERSION}">\n<main>\n<h1>{prose(title)}</h1>\n'
        '<p id="status" role="status">As of when this page was loaded. Reload it to see what is new.</p>\n'
        f"{places}\n<footer>Read-only. Everything here was released or is public, and is on the terminal of this party too."
        f"</footer>\n</main>\n<script>{_SCRIPT}</script>\n</body>\n</html>\n"
    )


@final
class Drawing:
    """Draws the parts of a page, each only when what it shows has changed. Changes in place: it keeps what it drew last."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Hashable, str]] = {}

    def parts(self, state: PageState, lines: Sequence[tuple[str, str, str | None]]) -> dict[str, str]:
        """The parts of the page in this state, with the `lines` that were said: time, words and style."""
        return {
            "now": self._drawn("now", state.now, lambda: f'<p class="answer">{prose(state.now)}</p>'),
            "warnings": self._drawn("warnings", state.warnings, lambda: _warnings(state.warnings)),
            "parties": self._drawn("parties", state.parties, lambda: _parties(state.parties, state.there)),
            "budget": self._drawn("budget", state.spending, lambda: _budget(state.spending)),
            "charts": self._drawn(
                "charts", (state.rounds, state.variances, state.floor, state.final), lambda: _charts(state)
            ),
            "facts": self._drawn("facts", state.facts, lambda: _facts(state.facts)),
            "rounds": self._drawn("rounds", state.rounds, lambda: _rounds(state.rounds)),
            "log": self._drawn("log", tuple(lines), lambda: _log(lines)),
        }

    def _drawn(self, name: str, key: Hashable, draw: Callable[[], str]) -> str:
        # Compared by value: states are made anew at every look, and most of their parts stay the same.
        kept = self._kept.get(name)
        if kept is None or kept[0] != key:
            kept = self._kept[name] = (key, draw())
        return kept[1]


def _warnings(warnings: Sequence[str]) -> str:
    return "".join(f'<p class="note"><strong>Warning:</strong> {prose(words)}</p>' for words in warnings)


def _parties(parties: Sequence[tuple[str, bool]], there: str) -> str:
    if not parties:
        return ""
    here = sum(connected for _, connected in parties)
    items = []
    # Those who are missing come first: they are what a coordinator looks for.
    for name, connected in sorted(parties, key=lambda pair: pair[1])[:_MOST_NAMED]:
        # Not by colour alone: a word for those who are missing, and for screen readers on all.
        mark, css, words = ("●", "", f'<span class="unseen">{there}</span>')
        if not connected:
            mark, css, words = "○", ' class="gone"', "<small>missing</small>"
        items.append(f'<li{css}><span class="mark" aria-hidden="true">{mark}</span> {prose(name)} {words}</li>')
    more = f"<p>and {len(parties) - _MOST_NAMED} more</p>" if len(parties) > _MOST_NAMED else ""
    return f'<h2>{there.capitalize()}: {here} of {len(parties)}</h2><ul class="parties">{"".join(items)}</ul>{more}'


def _budget(spending: PageBudget | None) -> str:
    if spending is None:
        return ""
    gauge = ""
    if spending.share is not None:
        # Rounding can leave a budget that is all spent just above one.
        width = 100 * min(1.0, max(0.0, spending.share))
        # The sentence below says the same, so the picture is only decoration to a screen reader.
        gauge = (
            '<svg class="gauge" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">'
            f'<rect width="{width:.1f}" height="4" fill="var(--first)"/></svg>'
        )
    return f"<h2>Spent at this place</h2>{gauge}<p>{prose(spending.words)}</p>"


def _charts(state: PageState) -> str:
    drawn = "".join(figure(chart, f"live{at}") for at, chart in enumerate(_chart_list(state)))
    return f'<h2>So far</h2><div class="charts">{drawn}</div>' if drawn else ""


def _chart_list(state: PageState) -> Iterator[Chart]:
    rounds = state.rounds
    if state.variances:
        # Before the end nobody knows by how many people to divide, so only the shape means something.
        first = 1.0 if state.final else state.variances[0] or 1.0
        chart = scree_chart([value / first for value in state.variances], floor=state.floor)
        yield chart if state.final else replace(chart, title="Variance along each component so far, over the first")
    # Of very many rounds one in so many is drawn, at its own place on the axis.
    step = 1 + len(rounds) // _MOST_DRAWN
    moved = [done.movement if at % step == 0 else None for at, done in enumerate(rounds)]
    if any(one is not None for one in moved):
        yield convergence_chart(moved)
    if 0 < len(rounds) <= _MOST_DRAWN:
        up, down = [done.bytes_up for done in rounds], [done.bytes_down for done in rounds]
        series = [("up", up), ("down", down)] if any(down) else [("bytes", up)]
        yield bars_chart(series, title="Bytes in each round", axis="round")


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    said = [(label.strip() or "…", [words]) for label, words in facts]
    return f"<h2>Facts</h2>{listing(said, css='short')}" if said else ""


def _rounds(rounds: "Sequence[Round]") -> str:
    if not rounds:
        return ""
    header, found = round_rows(rounds)
    # None is an empty cell among numbers, which are aligned to the right.
    rows = [[text or None for text in row] for row in found]
    return (
        f'<h2>Rounds</h2><div class="scroll" tabindex="0" role="region" aria-label="Rounds">{table(header, rows)}</div>'
    )


def _log(lines: Sequence[tuple[str, str, str | None]]) -> str:
    if not lines:
        return ""
    # The newest first: nobody has to scroll to see what happened just now.
    items = "".join(
        f"<li{_css(style)}><time>{escaped(when)}</time><span>{prose(words)}</span></li>"
        for when, words, style in reversed(lines)
    )
    box = '<div class="scroll log-box" tabindex="0" role="region" aria-label="What happened">'
    return f'<h2>What happened</h2>{box}<ul class="log">{items}</ul></div>'


def _css(style: str | None) -> str:
    name = _NAMES.get(style or "")
    return f' class="{name}"' if name else ""
