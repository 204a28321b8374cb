"""`LivePage`: the page of one command while it runs. It keeps the lines that were said, and looks at the state when asked."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final, final

from eigenveil.show.live.address import PageAddress
from eigenveil.show.live.contents import PageState

__all__ = ["LivePage", "live_page"]

_LINES: Final = 200
_LONGEST: Final = 500
_UNSEEN: Final = "The page could not be drawn just now. The terminal has everything."


@final
class LivePage:
    """The lines that were said, and a `look` at the state. Changes in place, from any thread.

    `look` is called on the thread of the page. It reads only values that are replaced as a whole.
    """

    def __init__(self, look: Callable[[], PageState]) -> None:
        from eigenveil.show.live.parts import Drawing

        self._look, self._drawing = look, Drawing()
        # Appending and copying a deque are single steps, so the threads of the study and of the page need no lock.
        self._lines: deque[tuple[str, str, str | None]] = deque(maxlen=_LINES)

    def line(self, words: str, style: str | None = None) -> None:
        """Something that happened just now."""
        # Cut to a bounded length, because all lines are sent again whenever one is added.
        self._lines.append((f"{datetime.now().astimezone():%H:%M:%S}", words[:_LONGEST], style))

    def parts(self) -> dict[str, str]:
        """The page as it is now. Whatever goes wrong here stays here: a study must not end because of its page."""
        try:
            return self._drawing.parts(self._look(), list(self._lines))
        except Exception:
            return {"now": f'<p class="answer">{_UNSEEN}</p>'}

    @property
    def title(self) -> str:
        """The title of the page; a plain one if nothing can be seen."""
        try:
            return self._look().title
        except Exception:
            return "Eigenveil"


@contextmanager
def live_page(
    address: PageAddress | None, look: Callable[[], PageState], *, say: Callable[[str], None], secret: bool
) -> Iterator[LivePage | None]:
    """Serve a page at `address` inside the context, if there is one, and `say` where. `secret`: with its token."""
    if address is None:
        yield None
        return
    # Loaded only now: most runs have no page, and a command must start fast.
    from eigenveil.show.live.parts import POLICY, VERSION, document
    from eigenveil.show.live.server import PageServer, PageSource

    page = LivePage(look)
    source = PageSource(
        parts=page.parts, document=lambda parts: document(page.title, parts), policy=POLICY, version=VERSION
    )
    with PageServer(address, source) as server:
        # A log may go further than a terminal, and the token must not.
        more = "" if address.token is None or secret else " The token is in the file of --page-token."
        say(f"live page: {address.url(server.port, secret=secret)}{more}")
        yield page
