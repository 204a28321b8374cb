"""`PageServer`: a page and its events over HTTP, read-only, on a thread of its own.

    | request         | answer                                                              |
    |-----------------|---------------------------------------------------------------------|
    | GET /           | the page as it is now, readable without script                      |
    | GET /?token=... | a cookie with the token, and back to the page without it            |
    | GET /events     | server-sent events: the parts that changed, until the reader leaves |

Nothing that a reader does reaches the study. No path changes anything, and the number of readers is bounded. For each reader
at most one copy of the page waits to be sent. A reader who takes nothing is dropped. The thread reads only what `parts`
returns.

The page is drawn from a `PageState`. Every text goes through `escaped`. Should one slip through, the content policy allows no
script but ours, by its hash.
"""

import asyncio
import contextlib
import http.client
import io
import json
import os
import socket
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, final
from urllib.parse import parse_qs, urlsplit

from eigenveil.show.charts import bars_chart, convergence_chart, scree_chart
from eigenveil.show.live import PageAddress, PageBudget, PageState
from eigenveil.show.marks import Chart, escaped
from eigenveil.show.pages import STYLE, figure, hash_of, listing, prose, table
from eigenveil.show.report import round_parts, round_rows

if TYPE_CHECKING:
    from eigenveil.estimators.terms import Round

# Readers at once who were let in; the rest are told to come back. And connections that have not yet asked for anything: each
# holds a file descriptor that the study may need. A new one takes the place of the oldest, so strangers keep nobody out.
_MOST: Final = 32
_WAITING: Final = 32
# In seconds: to send a request, to take what is written, between looks, and between signs of life to a quiet reader.
_ASK, _TAKE, _LOOK, _QUIET = 5.0, 10.0, 0.5, 15.0
_REST: Final = 0.5
_LONGEST_REQUEST: Final = 8192
_FOREIGN: Final = "This page does not answer to that name. Use the address that the command printed."
# In milliseconds: how soon a browser tries again.
_RETRY: Final = 2000
# No cache may keep the page, no other page may frame it, and no link may carry its address away.
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PageSource:
    """What is served: `parts` of the page by the id of their place, a `document` made of them, and its content policy.

    `parts` is called on the server's thread, at most twice a second.
    """

    parts: Callable[[], Mapping[str, str]]
    document: Callable[[Mapping[str, str]], str]
    policy: str
    version: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    method: str
    path: str
    token: str | None
    headers: http.client.HTTPMessage


class _Refused(Exception):
    """A request is answered with this status and these words."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.words = status, message


@final
class PageServer:
    """Serves a page while inside its context. Changes in place.

    The address is taken at once, so one that is in use is refused before the study begins.
    """

    def __init__(self, address: PageAddress, source: PageSource) -> None:
        self._address, self._source = address, source
        self._socket = _listening(address)
        self.port: int = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._ending = asyncio.Event()
        self._readers, self._waiting = 0, list[asyncio.WriteTransport]()
        self._looked, self._parts = float("-inf"), dict[str, str]()
        # A daemon: a page that hangs must not keep the command from ending.
        self._thread = threading.Thread(target=self._serve, name="live page", daemon=True)

    def __enter__(self) -> "PageServer":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # Readers get the last state; a study must not wait longer for one who takes nothing.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(timeout=2.0)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        # A broken connection is no news, and must not be printed over the terminal of the study.
        self._loop.set_exception_handler(lambda loop, context: None)
        try:
            self._loop.run_until_complete(self._until_the_end())
        finally:
            self._loop.close()

    async def _until_the_end(self) -> None:
        # The limit bounds what a stranger can make us hold before a request is complete.
        server = await asyncio.start_server(self._answer, sock=self._socket, limit=_LONGEST_REQUEST, backlog=_MOST)
        await self._ending.wait()
        server.close()
        # Those who read get the last state and the end, if they take it within a second.
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if others:
            _, slow = await asyncio.wait(others, timeout=1.0)
            for task in slow:
                task.cancel()
            await asyncio.gather(*slow, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request and its answer; every connection carries one."""
        if len(self._waiting) >= _WAITING:
            self._waiting.pop(0).abort()
        self._waiting.append(writer.transport)
        reading = False
        # So that `drain` waits until all is taken, and nothing piles up here.
        writer.transport.set_write_buffer_limits(high=0)
        try:
            head = await self._request(reader)
            # Only who shows the token takes the place of a reader, so strangers cannot keep others out.
            if self._readers >= _MOST:
                raise _Refused(503, "Too many readers. Close one of them and try again.")
            self._readers, reading = self._readers + 1, True
            self._waiting.remove(writer.transport)
            if head.path == "/events":
                await self._events(reader, writer, head.method)
            else:
                await self._page(writer, head)
        except _Refused as refusal:
            with contextlib.suppress(OSError, TimeoutError):
                await self._send(writer, refusal.status, f"{refusal.words}\n", "text/plain; charset=utf-8")
                # The rest of a request that is too long: closing before it has come would lose the answer.
                async with asyncio.timeout(_REST):
                    while await reader.read(_LONGEST_REQUEST):
                        pass
        except (OSError, TimeoutError, EOFError):
            # The reader is gone or too slow. That is not the study's concern.
            pass
        finally:
            self._readers -= reading
            # One that was dropped for a newer one is no longer there.
            with contextlib.suppress(ValueError):
                self._waiting.remove(writer.transport)
            # Not `close`: that would wait for a reader who takes nothing. All else was taken before.
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def _request(self, reader: asyncio.StreamReader) -> _Request:
        try:
            async with asyncio.timeout(_ASK):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise _Refused(431, "The request is too long.") from None
        line, _, rest = head.partition(b"\r\n")
        # Latin-1 decodes every byte, so a strange request line is refused below instead of raising here.
        parts = line.decode("latin-1").split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            raise _Refused(400, "This is not an HTTP request.")
        try:
            # The standard library's parser, which bounds the number of headers and the length of each.
            headers = http.client.parse_headers(io.BytesIO(rest))
            url = urlsplit(parts[1])
            shown = next(iter(parse_qs(url.query).get("token", [])), None)
        except (http.client.HTTPException, ValueError):
            raise _Refused(400, "This is not an HTTP request.") from None
        # First of all, so that a foreign name learns not even which paths there are.
        self._require_ours(headers)
        # A whole address in the request line takes the place of the Host header, for those who read it so.
        if url.netloc and not self._address.answers(url.netloc):
            raise _Refused(421, _FOREIGN)
        if parts[0] not in ("GET", "HEAD"):
            raise _Refused(405, "This page is read-only.")
        if url.path not in ("/", "/events"):
            raise _Refused(404, "There is nothing here. The page is at /.")
        return self._admitted(_Request(method=parts[0], path=url.path, token=shown, headers=headers))

    def _require_ours(self, headers: http.client.HTTPMessage) -> None:
        hosts = headers.get_all("Host", [])
        if len(hosts) != 1 or not self._address.answers(hosts[0]):
            raise _Refused(421, _FOREIGN)
        # A page of somebody else may not hold a connection, although it could not read what comes.
        foreign = headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")
        # A person may follow a link from elsewhere, which browsers call a navigation.
        if foreign and headers.get("Sec-Fetch-Mode") != "navigate":
            raise _Refused(403, "Other web pages may not use this one.")

    def _admitted(self, head: _Request) -> _Request:
        """The request, if it shows the token where one is needed: in the address, a cookie, or as a bearer."""
        # Programs such as curl keep no cookies unless told to, so they may send the token as a bearer.
        bearer = head.headers.get("Authorization", "").removeprefix("Bearer ")
        if any(self._address.admits(token) for token in (head.token, self._cookie(head.headers), bearer)):
            return head
        raise _Refused(401, "The token is missing or wrong. Use the whole address that the command printed.")

    def _cookie(self, headers: http.client.HTTPMessage) -> str | None:
        pairs = (pair.strip().partition("=") for pair in ";".join(headers.get_all("Cookie", [])).split(";"))
        return next((value for name, _, value in pairs if name == self._cookie_name), None)

    @property
    def _cookie_name(self) -> str:
        # Cookies do not know ports, and several pages may run on one machine.
        return f"eigenveil-{self.port}"

    async def _page(self, writer: asyncio.StreamWriter, head: _Request) -> None:
        if head.token is not None and self._address.token is not None:
            # Out of the address bar and the history, before anybody copies it.
            cookie = f"{self._cookie_name}={self._address.token}; Path=/; HttpOnly; SameSite=Lax"
            await self._send(writer, 303, "", "text/plain", {"Location": "/", "Set-Cookie": cookie})
            return
        text = self._source.document(self._current()) if head.method == "GET" else ""
        more = {"Content-Security-Policy": self._source.policy}
        await self._send(writer, 200, text, "text/html; charset=utf-8", more)

    async def _send(
        self, writer: asyncio.StreamWriter, status: int, text: str, kind: str, more: Mapping[str, str] | None = None
    ) -> None:
        body = text.encode()
        self._head(writer, status, {"Content-Type": kind, "Content-Length": str(len(body)), **(more or {})})
        writer.write(body)
        # Someone who asks and then takes nothing must not hold a place for ever.
        async with asyncio.timeout(_TAKE):
            await writer.drain()
            writer.write_eof()

    def _head(self, writer: asyncio.StreamWriter, status: int, headers: Mapping[str, str]) -> None:
        lines = [f"{name}: {value}" for name, value in {**_HEADERS, "Connection": "close", **headers}.items()]
        writer.write("\r\n".join([f"HTTP/1.1 {status} {http.client.responses[status]}", *lines, "", ""]).encode("latin-1"))

    async def _events(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str) -> None:
        """The parts that this reader has not got, as long as it reads. A slow one gets fewer and newer states."""
        self._head(writer, 200, {"Content-Type": "text/event-stream; charset=utf-8"})
        writer.write(f"retry: {_RETRY}\n\n".encode())
        # A browser sends nothing more on an event stream, so whatever arrives means that it has left.
        left = asyncio.ensure_future(reader.read(1))
        sent: dict[str, str] = {}
        quiet = 0.0
        try:
            while method == "GET" and not left.done():
                # Asked before the parts are looked at, so that the last ones are sent too.
                ending = self._ending.is_set()
                new = {name: text for name, text in self._current(fresh=ending).items() if sent.get(name) != text}
                quiet = 0.0 if new else quiet + _LOOK
                if new:
                    sent |= new
                    await self._tell(writer, "parts", json.dumps({"version": self._source.version, "parts": new}))
                elif quiet >= _QUIET:
                    quiet = 0.0
                    # A comment in the format of events: proxies close connections on which nothing moves.
                    writer.write(b": here\n\n")
                if ending:
                    await self._tell(writer, "end", "{}")
                    return
                await self._pause(left)
        finally:
            left.cancel()

    async def _tell(self, writer: asyncio.StreamWriter, event: str, data: str) -> None:
        writer.write(f"event: {event}\ndata: {data}\n\n".encode())
        async with asyncio.timeout(_TAKE):
            await writer.drain()

    async def _pause(self, left: "asyncio.Future[bytes]") -> None:
        """Until the next look, or the end, or until this reader is gone."""
        ending = asyncio.ensure_future(self._ending.wait())
        waits: set[asyncio.Future[Any]] = {left, ending}
        await asyncio.wait(waits, timeout=_LOOK, return_when=asyncio.FIRST_COMPLETED)
        # Otherwise one more waiting task would be left behind by every look, until the end of the study.
        ending.cancel()

    def _current(self, *, fresh: bool = False) -> dict[str, str]:
        """The parts as of at most half a second ago, whatever the number of readers."""
        now = self._loop.time()
        if fresh or now - self._looked >= _LOOK:
            self._looked, self._parts = now, dict(self._source.parts())
        return self._parts


def _listening(address: PageAddress) -> socket.socket:
    # With the flag that lets a restarted hub have its old port back at once.
    family = socket.AF_INET6 if ":" in address.bound else socket.AF_INET
    try:
        return socket.create_server((address.bound, address.port), family=family, backlog=_MOST)
    except OSError as error:
        # In the system's words: Python adds the address to them, which the sentence has already. Names have no such number.
        why = os.strerror(error.errno) if isinstance(error.errno, int) and error.errno > 0 else "the name is not known"
        raise ValueError(
            f"the live page cannot listen at {address.host}:{address.port}: {why}. Give another port with --page"
        ) from None


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
    say("", `The command ended at ${clock()}. If it is started again, this page resumes.`);
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
            "parties": self._drawn("parties", state.parties, lambda: _parties(state.parties, state.presence)),
            "budget": self._drawn("budget", state.spending, lambda: _budget(state.spending)),
            "charts": self._drawn("charts", (state.rounds, state.variances, state.floor, state.final), lambda: _charts(state)),
            "facts": self._drawn("facts", state.facts, lambda: _facts(state.facts)),
            "rounds": self._drawn("rounds", state.rounds, lambda: _rounds(state.rounds)),
            "log": self._drawn("log", tuple(lines), lambda: _log(lines)),
        }

    def _drawn(self, name: str, key: Hashable, draw: Callable[[], str]) -> str:
        # Compared by value: states are made anew at every look, and most of their parts stay the same.
        stored = self._kept.get(name)
        if stored is None or stored[0] != key:
            stored = self._kept[name] = (key, draw())
        return stored[1]


def _warnings(warnings: Sequence[str]) -> str:
    return "".join(f'<p class="note"><strong>Warning:</strong> {prose(text)}</p>' for text in warnings)


def _parties(parties: Sequence[tuple[str, bool]], presence: str) -> str:
    if not parties:
        return ""
    n_present = sum(connected for _, connected in parties)
    items = []
    # Those who are missing come first: they are what a coordinator looks for.
    for name, connected in sorted(parties, key=lambda pair: pair[1])[:_MOST_NAMED]:
        # Not by colour alone: a word for those who are missing, and for screen readers on all.
        mark, css, status = ("●", "", f'<span class="unseen">{presence}</span>')
        if not connected:
            mark, css, status = "○", ' class="gone"', "<small>missing</small>"
        items.append(f'<li{css}><span class="mark" aria-hidden="true">{mark}</span> {prose(name)} {status}</li>')
    more = f"<p>and {len(parties) - _MOST_NAMED} more</p>" if len(parties) > _MOST_NAMED else ""
    return f'<h2>{presence.capitalize()}: {n_present} of {len(parties)}</h2><ul class="parties">{"".join(items)}</ul>{more}'


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
    return f"<h2>Spent at this place</h2>{gauge}<p>{prose(spending.text)}</p>"


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
    if any(movement is not None for movement in moved):
        yield convergence_chart(moved)
    if 0 < len(rounds) <= _MOST_DRAWN:
        up, down = [done.bytes_up for done in rounds], [done.bytes_down for done in rounds]
        series = [("up", up), ("down", down)] if any(down) else [("bytes", up)]
        yield bars_chart(series, title="Bytes in each round", axis="round")


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    pairs = [(label.strip() or "…", [text]) for label, text in facts]
    return f"<h2>Facts</h2>{listing(pairs, css='short')}" if pairs else ""


def _rounds(rounds: "Sequence[Round]") -> str:
    if not rounds:
        return ""
    header, texts = round_rows(round_parts(rounds), max_rounds=40)
    box = '<div class="scroll" tabindex="0" role="region" aria-label="Rounds">'
    return f"<h2>Rounds</h2>{box}{table(header, texts)}</div>"


def _log(lines: Sequence[tuple[str, str, str | None]]) -> str:
    if not lines:
        return ""
    # The newest first: nobody has to scroll to see what happened just now.
    items = "".join(
        f"<li{_css(style)}><time>{escaped(when)}</time><span>{prose(text)}</span></li>" for when, text, style in reversed(lines)
    )
    box = '<div class="scroll log-box" tabindex="0" role="region" aria-label="What happened">'
    return f'<h2>What happened</h2>{box}<ul class="log">{items}</ul></div>'


def _css(style: str | None) -> str:
    name = _NAMES.get(style or "")
    return f' class="{name}"' if name else ""
