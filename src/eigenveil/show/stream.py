"""The live view of a stream on stderr: its speed and what it has found so far. Drawn on a terminal only.

For a private stream it shows only what was released and spent, and the number of rows, which is public in a stream.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final, final

from eigenveil.show.console import is_seen, output
from eigenveil.show.live.contents import PageBudget, PageState, scree_words
from eigenveil.show.live.live import live_page

if TYPE_CHECKING:
    from rich.table import Table

    from eigenveil.estimators.streaming.pca import StreamingPCA
    from eigenveil.model import Model
    from eigenveil.show.live.address import PageAddress

__all__ = ["LiveView", "live_view"]

_PER_SECOND: Final = 4
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

    def say(words: str) -> None:
        console.print(words, soft_wrap=True)

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
        self._model = _model(pca)
        self._known, self._looked = tuple(_lines(pca, self._model)), self._rows
        self._spending = _spending(pca)
        done = self._clock()
        # A wide table takes longer to decompose, so it is looked at less often.
        self._look_at = done + max(_LOOK_AFTER, (done - began) / _SHARE)

    def __rich__(self) -> "Table":
        from rich.table import Table

        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column()
        for label, words in self._facts():
            grid.add_row(label, words)
        return grid

    def page(self) -> PageState:
        """The same for a browser."""
        # Taken once: the thread of the stream may replace it between two reads.
        model = self._model
        variances, floor, known = PageState.scree(model, ())
        return PageState(
            title="Stream",
            now=f"{self._rows:,} rows have been read",
            facts=tuple(self._facts()),
            spending=self._spending,
            variances=variances,
            floor=floor,
            final=known,
            warnings=() if model is None else model.warnings,
        )

    def _facts(self) -> Iterator[tuple[str, str]]:
        began, first = self._marks[0]
        # In the first moments a few rows over no time would show an absurd speed.
        rate = (self._rows - first) / max(self._clock() - began, 1 / _PER_SECOND)
        yield "rows", f"{self._rows:,}" + (f", {self._before:,} of them from the state" if self._before else "")
        yield "speed", f"{rate:,.0f} rows/s"
        yield from self._known


def _model(pca: "StreamingPCA") -> "Model | None":
    from sklearn.exceptions import NotFittedError

    try:
        return pca.model_
    except NotFittedError:
        return None


def _spending(pca: "StreamingPCA") -> PageBudget | None:
    return None if pca.ledger_ is None else PageBudget.of_ledger(pca.ledger_)


def _lines(pca: "StreamingPCA", model: "Model | None") -> Iterator[tuple[str, str]]:
    spending = _spending(pca)
    if spending is not None:
        yield "released", "nothing yet" if model is None else _releases(model)
        yield "spent", spending.words
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
    words = "over 99.9%" if share >= 0.9995 and rank < dim else f"{share:.1%}"
    return f"{words} of the rows so far"


def _released_share(model: "Model") -> str:
    """The share of components above the noise. Those below it may be noise alone, and so may what seems to be left over."""
    rank, above = len(model.values), model.n_above_noise
    if above == 0:
        return "nothing stands out from the noise"
    share = float(model.explained_variance_ratio[:above].sum())
    which = "" if above == rank else f", in the {above} of {rank} components above the noise"
    # Noise can hide what is left, or make it negative. Nobody knows then that the components have it all.
    return (
        f"nearly all of what stands out{which}" if share >= _NEARLY_ALL else f"{share:.0%} of what was released{which}"
    )


def _releases(model: "Model") -> str:
    times = model.settings["releases"]
    return f"{times} time{'s' * (times != 1)}, of the first {model.settings['rows']:,} rows"
