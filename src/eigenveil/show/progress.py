"""What a party or a stream shows while it runs: lines with the time, and on a terminal a live view below them.

Off a terminal, under systemd say, each line is plain text that begins with the time in UTC, and is flushed at once. Of a private
stream the view shows only what was released and spent, and the number of rows, which is public in a stream.
"""

import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol, assert_never, final

from eigenveil.errors import EigenveilError, join_names, plain
from eigenveil.show.console import is_seen, output
from eigenveil.show.live import PageBudget, PageState, live_page, scree_words
from eigenveil.show.marks import in_bytes

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

    from eigenveil.estimators.streaming.pca import StreamingPCA
    from eigenveil.estimators.terms import Round
    from eigenveil.model import Model
    from eigenveil.network.agents.star import HubAgent
    from eigenveil.network.agents.steps import Event
    from eigenveil.runtimes.grpc import Transport
    from eigenveil.show.live import LivePage, PageAddress

# Drawings a second, and names in a line before "and more".
_PER_SECOND: Final = 4
_NAMED: Final = 10
# Lines about what one party can bring about as often as it likes. More of them would let it fill the disk with a log.
_REPEATED: Final = ("refused", "joined", "left")
_LINES: Final = 200
# Seconds between looks at what was charged.
_COUNT_AFTER: Final = 1.0


class Connected(Protocol):
    """An agent of a site, peer, node or hub."""

    @property
    def transport(self) -> "Transport | None":
        """Its connections, once it runs."""


@final
class StatusWriter:
    """Writes to the person who runs the command, from any thread. `terminal` says whether it is one. Changes in place.

    Private numbers may be shown on a terminal only: a log may go further.
    """

    def __init__(self) -> None:
        self._console, self._lock, self._heard = output(), threading.Lock(), True
        # Ask the system, not rich: an environment variable for colours must not make a terminal of a log.
        self.terminal = sys.stdout.isatty()
        # Whatever happens is written there as well. What is said before and after a run is not: it may be private.
        self.page: LivePage | None = None
        self._told: Counter[tuple[str, str]] = Counter()

    def say(self, text: str, *, style: str | None = None, whole: bool = False) -> None:
        """One sentence. One with a path or a hash stays `whole`, not wrapped, so that it can be copied."""
        if self.terminal:
            self._console.print(plain(text), style=style, soft_wrap=whole)
        else:
            self._line(plain(text))

    def item(self, label: str, text: str, *, style: str | None = None) -> None:
        """One item of a list; on a terminal its further lines are indented."""
        from rich.table import Table
        from rich.text import Text

        if self.terminal:
            row = Table.grid(padding=(0, 1))
            row.add_row("-", Text.assemble((f"{plain(label)}: ", "bold"), (plain(text), style or "")))
            self._console.print(row)
        else:
            self._line(plain(f"- {label}: {text}"))

    def write_event(self, event: "Event", text: str, *, style: str | None = None) -> None:
        """What happened, in these words, unless one party has brought about too many such lines."""
        self._told[event.what, event.who] += event.what in _REPEATED
        count = self._told[event.what, event.who]
        if count <= _LINES:
            self.write_line(text, style=style)
        elif count == _LINES + 1:
            self.write_line(f"{event.who}: more lines of this kind are not shown ({event.what})", style="yellow")

    def write_line(self, text: str, *, style: str | None = None) -> None:
        """Something that happened just now, with the time."""
        from rich.text import Text

        if self.page is not None:
            self.page.line(text, style)
        if self.terminal:
            now = datetime.now().astimezone()
            self._console.print(Text.assemble((f"{now:%H:%M:%S} ", "dim"), (plain(text), style or "")))
        else:
            self._line(plain(text))

    def show(self, picture: "RenderableType", lines: Sequence[str]) -> None:
        """A `picture` on a terminal, and the same as `lines` elsewhere."""
        if self.terminal:
            self._console.print(picture)
            return
        for line in lines:
            self.say(line)

    def gap(self) -> None:
        """An empty line, on a terminal."""
        if self.terminal:
            self._console.print()

    @contextmanager
    def under(self, view: Any) -> Iterator[None]:
        """Keep `view` below everything that is said inside, on a terminal."""
        from rich.live import Live

        # Transient: at the end only the lines stay, which are complete by themselves.
        drawn = Live(view, console=self._console, refresh_per_second=_PER_SECOND, transient=True)
        with drawn if self.terminal else nullcontext():
            yield

    def _line(self, text: str) -> None:
        # Lines come from several threads, and must not be mixed.
        with self._lock:
            if not self._heard:
                return
            try:
                sys.stdout.write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {text}\n")
                sys.stdout.flush()
            except BrokenPipeError:
                # The reader of our output is gone, and a study must not end because of that.
                self._heard = False
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def words_of(event: "Event", *, calls: Collection[str] = ()) -> tuple[str, str | None]:
    """An event as a line, and its style. This party `calls` some others again; the rest come back by themselves."""
    who, text = event.who, event.text
    match event.what:
        case "joined":
            return (f"connected to {who}" if who in calls else f"{who} has joined"), "green"
        case "left":
            return (_not_connected(who, text, calls) if who in calls else f"{who} is gone: {text}"), "yellow"
        case "asked":
            return f"{who} asks: {text}", None
        case "said":
            return f"said to {who}: {text}" if who else f"said: {text}", None
        case "refused":
            return f"refused a message from {who}: {text}", "red"
        case "round":
            return f"round {who}: {text}", None
        case "resumed":
            return f"resumed where it stopped: {text}", "green"
        case "began":
            return "the study begins", "green"
        case "waiting" if text.startswith("for "):
            return f"waiting {text}", None
        case "waiting":
            return text, "yellow"
        case "over":
            return text or event.what, "green"
        case _:
            assert_never(event.what)


def _not_connected(name: str, why: str, calls: Collection[str]) -> str:
    return f"not connected to {name}: {why}" + ("; trying again" if name in calls else "")


def shown_names(names: Sequence[str]) -> str:
    """Names with commas between them; of many, the first few.

    >>> shown_names([]), shown_names(["north", "south"])
    ('nobody', 'north, south')
    """
    return join_names(names, max_count=_NAMED) or "nobody"


def round_name(done: "Round") -> str:
    """A round by its number, and what it is for."""
    return f"round {done.number + 1} ({done.stage})"


def round_words(done: "Round") -> str:
    """A round in one line: its stage, who answered, bytes up and down, and how far the result moved."""
    missing = f", without {shown_names(done.missing)}" if done.missing else ""
    moved = "" if done.movement is None else f", moved by {done.movement:.1e}"
    again = "; it begins again without them" if done.restarted else ""
    traffic = f"{in_bytes(done.bytes_up)} up, {in_bytes(done.bytes_down)} down"
    return f"{round_name(done)}: {len(done.answered)} answered{missing}, {traffic}{moved}{again}"


def traffic_of(agent: Connected) -> list[tuple[str, int, int]]:
    """Bytes from and to each party that has been connected."""
    transport = agent.transport
    if transport is None:
        return []
    # Copied first: the transport changes these while another thread draws.
    names = sorted({*transport.sent, *transport.received})
    return [(name, transport.received[name], transport.sent[name]) for name in names]


@final
class _Connections:
    """What the transport of an agent knows without an event: who cannot be reached and why, and which callers it refused.

    Changes in place, so that each is said once.
    """

    def __init__(self) -> None:
        self._why: dict[str, str] = {}
        self._stranger: str | None = None

    def note(self, name: str, why: str) -> bool:
        """Whether it is news that this party is not connected for that reason."""
        news = self._why.get(name) != why
        self._why[name] = why
        return news

    def joined(self, name: str) -> None:
        """The party is connected, so it is news when it leaves, for any reason."""
        self._why.pop(name, None)

    def news(self, agent: Connected | None, *, calls: Collection[str], but: Collection[str] = ()) -> Iterator[str]:
        """Lines that have not been said, without those about parties in `but`, whose events will come."""
        transport = None if agent is None else agent.transport
        if transport is None:
            return
        # A copy, because connections come and go while the lines are said.
        for name, why in tuple(transport.trouble.items()):
            if name not in but and self.note(name, why):
                yield _not_connected(name, why, calls)
        last = transport.refused[-1] if transport.refused else None
        if last is not None and last != self._stranger:
            yield f"refused {last}"
        self._stranger = last


@final
class PartyView:
    """What a site, peer or node does: a line for each event, and the current state. Changes in place, from any thread.

    `began` says that a peer has begun with all the others; before that it sends nothing of its own.
    """

    def __init__(self, voice: StatusWriter) -> None:
        self._voice, self._connections = voice, _Connections()
        self._agent: Connected | None = None
        self._calls: Collection[str] = ()
        self._now, self._title = "beginning", ""
        self._here: frozenset[str] = frozenset()
        self._spends: Callable[[], PageBudget] | None = None
        self._spending: PageBudget | None = None
        self._count_at = -math.inf
        self._model: Model | None = None
        self.began = False

    def of(
        self, agent: Connected, *, calls: Collection[str], title: str = "", spends: Callable[[], PageBudget] | None = None
    ) -> None:
        """Show this agent, which `calls` these parties; others call it. `spends` says what its ledger has charged."""
        self._agent, self._calls, self._title, self._spends = agent, calls, title, spends

    def found(self, model: "Model") -> None:
        """The study is over, with this result."""
        self._model = model

    def on_event(self, event: "Event") -> None:
        """Say what happened."""
        text, style = words_of(event, calls=self._calls)
        self._now = text
        match event.what:
            case "began":
                self.began = True
            case "joined":
                self._here |= {event.who}
                self._connections.joined(event.who)
            case "left":
                self._here -= {event.who}
                # The transport may have told the same through `look` already.
                if not self._connections.note(event.who, event.text):
                    return
            case "said" | "resumed" | "over":
                self._count(at_once=event.what != "said")
        self._voice.write_event(event, text, style=style)

    def _count(self, *, at_once: bool) -> None:
        """Ask what was charged, where the ledger has just been written: the threads that draw never wait for a disk."""
        now = time.monotonic()
        # Peers say much in a second, and nobody reads faster.
        if self._spends is None or not (at_once or now >= self._count_at):
            return
        self._count_at = now + _COUNT_AFTER
        # What is only shown must not end a study. The ledger checks itself at the next charge.
        with suppress(EigenveilError):
            self._spending = self._spends()

    def look(self) -> None:
        """Say who cannot be reached, once for each reason, and which callers were refused. These cause no events."""
        for line in self._connections.news(self._agent, calls=self._calls):
            self._voice.write_line(line, style="yellow")

    def __rich__(self) -> "RenderableType":
        from rich.spinner import Spinner
        from rich.text import Text

        # Kept from the last event: drawing must never wait for the ledger.
        spent = "" if self._spending is None else f" ({self._spending.text})"
        return Spinner("dots", Text(f" {plain(self._now)}{spent}"))

    def page(self) -> PageState:
        """The same for a browser."""
        traffic = [] if self._agent is None else traffic_of(self._agent)
        variances, floor, is_final = PageState.scree(self._model, ())
        return PageState(
            title=self._title,
            now=self._now,
            facts=tuple((name, f"{in_bytes(came)} came, {in_bytes(went)} went") for name, came, went in traffic),
            parties=tuple((name, name in self._here) for name in sorted({*self._calls, *self._here})),
            spending=self._spending,
            variances=variances,
            floor=floor,
            final=is_final,
            warnings=() if self._model is None else self._model.warnings,
        )


@final
class HubView:
    """Who is connected, rounds, traffic and time left. Changes in place, from any thread.

    Another thread draws it. That one reads only values that are replaced as a whole, so it needs no lock.
    """

    def __init__(self, voice: StatusWriter, clock: Callable[[], float] = time.monotonic) -> None:
        self._voice, self._clock = voice, clock
        self._agent: HubAgent | None = None
        self._here: frozenset[str] = frozenset()
        self._now, self._refused = "beginning", ""
        self._wait: int | None = None
        self._until: float | None = None
        self._connections = _Connections()
        self._model: Model | None = None

    def of(self, agent: "HubAgent") -> None:
        """Show this hub."""
        self._agent = agent

    def on_event(self, event: "Event") -> None:
        """Take note, and say what happened."""
        text, style = words_of(event)
        agent = self._agent
        match event.what:
            case "joined":
                # A new set each time, never changed in place: the thread that draws may hold the old one.
                self._here |= {event.who}
                self._connections.joined(event.who)
                text += self._missing()
            case "left":
                self._here -= {event.who}
                self._connections.note(event.who, event.text)
                over = agent is not None and agent.durable.party.result is not None
                text = f"{event.who} has left" if over else text + self._missing()
            case "waiting" if agent is not None:
                seconds = agent.study.params.join_timeout
                self._now, self._until = "for all to join", self._clock() + seconds
                text += f", for at most {seconds:g} seconds"
            case "began":
                self._now, self._until = "for answers", None
            case "resumed":
                self._now = "for answers"
            case "round" if agent is not None:
                text = round_words(agent.durable.rounds[-1])
            case "refused":
                self._refused = f"{event.who}: {event.text}"
        self._voice.write_event(event, text, style=style)

    def look(self) -> None:
        """Say which callers were refused, and which parties connected but could not be talked to."""
        # For those who are here, or were until just now, an event comes when they leave.
        for line in self._connections.news(self._agent, calls=(), but=self._here):
            self._voice.write_line(line, style="yellow")

    def lingers(self, seconds: float, model: "Model") -> None:
        """The study is over with this `model`, and the sites fetch the result."""
        self._now, self._until, self._model = "for all to fetch the result", self._clock() + seconds, model

    def _missing(self) -> str:
        if self._agent is None:
            return ""
        names = [name for name in self._agent.hears if name not in self._here]
        return f"; missing: {shown_names(names)}" if names else "; all are here"

    def _left(self) -> str:
        """The longest it will still wait. The clock of a round starts again with each question."""
        agent, now = self._agent, self._clock()
        wait = None if agent is None else agent.durable.party.waiting
        if wait is not None and wait.number != self._wait:
            self._wait, self._until = wait.number, now + wait.seconds
        return "" if self._until is None else f", at most {max(0.0, self._until - now):.0f} seconds more"

    def __rich__(self) -> "Group":
        from rich.console import Group

        from eigenveil.show.terminal import labelled, rounds_table

        rounds, presence = self._rounds(), []
        if self._agent is not None:
            below, present = self._agent.hears, self._here
            joined, missing = ([name for name in below if (name in present) is joins] for joins in (True, False))
            presence = [
                ("here", f"{len(present)} of {len(below)}: {shown_names(joined)}"),
                ("missing", shown_names(missing)),
                ("waiting", self._now + self._left()),
            ]
        return Group(labelled([*presence, *self._facts()]), *([rounds_table(rounds)] if rounds else []))

    def page(self) -> PageState:
        """The same for a browser."""
        agent, rounds = self._agent, self._rounds()
        if agent is None:
            return PageState(title="A study", now=self._now)
        variances, floor, is_final = PageState.scree(self._model, rounds)
        rehearsal = ("This is a rehearsal with a test seed: it protects no one.",) * (agent.study.seed is not None)
        # The last state stays on an open page, so it must not say that anybody waits.
        over = "The study is over, and the model is written. Those who take part fetch it now."
        return PageState(
            title=f'Study "{agent.study.name}", at the hub',
            now=f"Waiting {self._now}{self._left()}" if self._model is None else over,
            facts=tuple(self._facts()),
            parties=tuple((name, name in self._here) for name in agent.hears),
            rounds=rounds,
            spending=self._spending(),
            variances=variances,
            floor=floor,
            final=is_final,
            warnings=rehearsal + (() if self._model is None else self._model.warnings),
        )

    def _rounds(self) -> "tuple[Round, ...]":
        return () if self._agent is None else tuple(self._agent.durable.rounds)

    def _spending(self) -> PageBudget | None:
        """What the hub's own noise has cost. Where sites add it, they have the ledgers."""
        agent = self._agent
        ledger = None if agent is None else agent.parties.ledgers.get(agent.place.name)
        if ledger is None:
            return PageBudget("Nothing is charged at the hub.")
        # The hub's own ledger is public: it counts what was released to everybody.
        return PageBudget.of_ledger(ledger)

    def _facts(self) -> Iterator[tuple[str, str]]:
        agent = self._agent
        if agent is None:
            return
        variances, _, _ = PageState.scree(self._model, self._rounds())
        if variances:
            yield "variances", scree_words(variances)
        spending = self._spending()
        if spending is not None and spending.share is not None:
            yield "spent", spending.text
        totals = [0, 0]
        for traffic in tuple(agent.durable.traffic.values()):
            totals = [totals[0] + traffic.up, totals[1] + traffic.down]
        yield "traffic", f"{in_bytes(totals[0])} up, {in_bytes(totals[1])} down"
        each = traffic_of(agent)
        # A study of a thousand sites must still fit on a screen.
        for name, up, down in each[:_NAMED]:
            yield f"  {name}", f"{in_bytes(up)} up, {in_bytes(down)} down"
        if len(each) > _NAMED:
            yield "", f"and {len(each) - _NAMED} more"
        if agent.durable.refused:
            yield "refused", f"{agent.durable.refused} messages; the last from {self._refused}"


# Looking at the model takes a small decomposition, so it is done at most once in this many seconds and for at most this
# share of the time.
_LOOK_AFTER: Final = 1.0
_SHARE: Final = 0.05
_RECENT: Final = 5.0
# A share of a private release that is not told from all of it.
_NEARLY_ALL: Final = 0.985


@contextmanager
def live_view(rows: int, page: "PageAddress | None" = None) -> Iterator["LiveView | None"]:
    """A view of a stream that already has `rows` rows, drawn inside the context on a terminal, and on a `page` if there is one.

    None if nobody looks: stderr is not a terminal, and there is no page.
    """
    from rich.live import Live

    console = output(stderr=True)
    if not is_seen(console) and page is None:
        yield None
        return
    view = LiveView(rows)

    def say(text: str) -> None:
        console.print(text, soft_wrap=True)

    # Transient, because the summary that follows says the same for good.
    drawn = Live(view, console=console, refresh_per_second=_PER_SECOND, transient=True)
    with (
        # Only a person at a terminal is shown the token: stderr may be a log file.
        live_page(page, view.page, say=say, secret=is_seen(console)),
        drawn if is_seen(console) else nullcontext(),
    ):
        yield view


@final
class LiveView:
    """Rows so far, recent rows per second, and the latest facts about the stream. Changes in place.

    Another thread draws it. That thread only reads complete values and never touches the stream.
    """

    def __init__(self, rows: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._before, self._rows = clock, rows, rows
        # Pairs of a time and the number of rows then.
        self._marks: tuple[tuple[float, int], ...] = ((clock(), rows),)
        # Labels and words, as of the last look.
        self._known: tuple[tuple[str, str], ...] = ()
        self._model: Model | None = None
        self._spending: PageBudget | None = None
        self._looked, self._look_at = 0, clock()

    def see(self, pca: "StreamingPCA") -> None:
        """Record the number of rows, and look at the stream if it is time to."""
        now = self._clock()
        self._rows = pca.n_samples_seen_
        if now - self._marks[-1][0] >= 1 / _PER_SECOND:
            fresh = tuple(mark for mark in self._marks if now - mark[0] <= _RECENT)
            # After a long pause no mark is fresh. The last one is kept, so that the speed has a beginning.
            self._marks = (*(fresh or self._marks[-1:]), (now, self._rows))
        if now >= self._look_at:
            self.look(pca)

    def look(self, pca: "StreamingPCA", *, again: bool = False) -> None:
        """Update the facts, unless no row has arrived since the last look. The last release comes without one: look `again`."""
        if self._rows in (0, self._looked) and not again:
            return
        began = self._clock()
        # Before the first release there is no model, which raises an AttributeError.
        self._model = getattr(pca, "model_", None)
        self._known, self._looked = tuple(_lines(pca, self._model)), self._rows
        self._spending = _spending(pca)
        done = self._clock()
        # A wide table takes longer to decompose, so it is looked at less often.
        self._look_at = done + max(_LOOK_AFTER, (done - began) / _SHARE)

    def __rich__(self) -> "Table":
        from eigenveil.show.terminal import labelled

        return labelled(self._facts())

    def page(self) -> PageState:
        """The same for a browser."""
        # Taken once: the thread of the stream may replace it between two reads.
        model = self._model
        variances, floor, is_final = PageState.scree(model, ())
        return PageState(
            title="Stream",
            now=f"{self._rows:,} rows have been read",
            facts=tuple(self._facts()),
            spending=self._spending,
            variances=variances,
            floor=floor,
            final=is_final,
            warnings=() if model is None else model.warnings,
        )

    def _facts(self) -> Iterator[tuple[str, str]]:
        began, first = self._marks[0]
        # In the first moments a few rows over no time would show an absurd speed.
        rate = (self._rows - first) / max(self._clock() - began, 1 / _PER_SECOND)
        yield "rows", f"{self._rows:,}" + (f", {self._before:,} of them from the state" if self._before else "")
        yield "speed", f"{rate:,.0f} rows/s"
        yield from self._known


def _spending(pca: "StreamingPCA") -> PageBudget | None:
    return None if pca.ledger_ is None else PageBudget.of_ledger(pca.ledger_)


def _lines(pca: "StreamingPCA", model: "Model | None") -> Iterator[tuple[str, str]]:
    spending = _spending(pca)
    if spending is not None:
        times, rows = (0, 0) if model is None else (model.settings["releases"], model.settings["rows"])
        released = f"{times} time{'s' * (times != 1)}, of the first {rows:,} rows"
        yield "released", "nothing yet" if model is None else released
        yield "spent", spending.text
    if model is not None:
        yield "rank", str(len(model.values))
        yield "explained variance", _explained(model, private=spending is not None, rows=pca.n_samples_seen_)
        yield "variances", scree_words(model.explained_variance.tolist())
        for warning in model.warnings:
            yield "warning", warning
    yield "memory", f"{pca.plan_.memory / 2**20:.3g} MiB planned"


def _explained(model: "Model", *, private: bool, rows: int) -> str:
    """The share of the variance that the components explain, as far as anyone knows it."""
    rank, dim = model.components.shape
    if private:
        return _released_share(model)
    if rows <= rank + 1:
        # So few rows have no more directions than there are components.
        return "too few rows to tell"
    share = float(model.explained_variance_ratio.sum())
    # Rounding up would claim what rows to come may contradict.
    percentage = "over 99.9%" if share >= 0.9995 and rank < dim else f"{share:.1%}"
    return f"{percentage} of the rows so far"


def _released_share(model: "Model") -> str:
    """The share of components above the noise. Those below it may be noise alone, and so may what seems to be left over."""
    rank, above = len(model.values), model.n_above_noise
    if above == 0:
        return "nothing stands out from the noise"
    share = float(model.explained_variance_ratio[:above].sum())
    which = "" if above == rank else f", in the {above} of {rank} components above the noise"
    # Noise can hide what is left, or make it negative. Nobody knows then that the components have it all.
    return f"nearly all of what stands out{which}" if share >= _NEARLY_ALL else f"{share:.0%} of what was released{which}"
