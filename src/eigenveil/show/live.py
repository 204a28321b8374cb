"""What a live page shows at one moment, where it listens and who may read it: all on this machine, or whoever has the token.

A page on loopback has no token. Its one danger is a web page of a stranger whose name is made to point here, and such a request
carries that name in its Host header, so only names of this machine are answered. Anywhere else a token is needed as well.

The views of the commands make a `PageState` from what they show on the terminal. The page never sees rows.
"""

import hmac
import ipaddress
import re
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from eigenveil.errors import require

if TYPE_CHECKING:
    from eigenveil.core.ledger import Ledger
    from eigenveil.estimators.terms import Round
    from eigenveil.model import Model


@final
@dataclass(frozen=True, slots=True)
class PageBudget:
    """What has been spent at this place, in `text`, and as a `share` of what may be, None where nothing limits it."""

    text: str
    share: float | None = None

    @classmethod
    def of_ledger(cls, ledger: "Ledger") -> "PageBudget":
        """What was spent of the budget of a ledger."""
        budget, spent = ledger.budget, ledger.epsilon()
        return cls(f"epsilon {spent:.3g} of {budget.epsilon:g}, at delta = {budget.delta:g}", spent / budget.epsilon)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PageState:
    """One moment of a run. Every number in it was released or is public, and the terminal of this party shows it as well.

    `now` says what is being done. `parties` are the others, each with whether it is there, and `presence` is the word for that.
    `variances` are along the components as far as they are known, with the noise `floor` once there is a model.
    """

    title: str
    now: str
    facts: tuple[tuple[str, str], ...] = ()
    parties: tuple[tuple[str, bool], ...] = ()
    presence: str = "connected"
    rounds: tuple["Round", ...] = ()
    spending: PageBudget | None = None
    variances: tuple[float, ...] = ()
    floor: float = 0.0
    final: bool = False
    warnings: tuple[str, ...] = ()

    @staticmethod
    def scree(model: "Model | None", rounds: "Sequence[Round]") -> "tuple[tuple[float, ...], float, bool]":
        """The variances, the noise floor, and whether they are final: those of the model, or of the last round that has any."""
        # The model divides by the released number of people. Rounds have plain sums, so only their shape can be compared.
        if model is not None:
            return tuple(model.explained_variance.tolist()), model.noise_floor, True
        return next((done.variances for done in reversed(rounds) if done.variances), ()), 0.0, False


def scree_words(variances: Sequence[float]) -> str:
    """Variances in one line, as shares of the first.

    >>> scree_words([50.0, 20.0, 5.0])
    '1, 0.4, 0.1 of the first'
    """
    # A table of zeros has variances of zero.
    first = variances[0] or 1.0
    return ", ".join(f"{value / first:.2g}" for value in variances[:8]) + " of the first"


# A browser sends the name that the person typed, so every usual name of this machine is listed.
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
# A Host header: a name, or an address in brackets, and perhaps a port. Nothing may follow.
_HOST: Final = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^:\[\]]+)(:\d+)?")
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{20,200}")
_BYTES: Final = 24


@final
@dataclass(frozen=True, slots=True)
class PageAddress:
    """Where the page listens, and the `token` that a reader needs, None on loopback without a file.

    >>> PageAddress.read("8080", None)
    PageAddress(host='127.0.0.1', port=8080)
    >>> PageAddress.read("0.0.0.0:8080", None)
    Traceback (most recent call last):
    ...
    ValueError: --page 0.0.0.0:8080 can be reached from other machines. Give --page-token FILE, which makes a token for its \
readers, or use 127.0.0.1:8080 and an SSH tunnel
    """

    host: str
    port: int
    # Left out of the repr: a traceback or a log line must not show it.
    token: str | None = field(default=None, repr=False)

    @classmethod
    def read(cls, address: str, token: Path | None) -> "PageAddress":
        """The address as it was typed, with the token in the file, which is made if it is not there."""
        # A port alone, with or without the colon, must not open the page to the network.
        host, port = _halves(address if ":" in address.removeprefix(":") else f"127.0.0.1:{address.removeprefix(':')}")
        require(
            token is not None or _is_loopback(host),
            f"--page {address} can be reached from other machines. Give --page-token FILE, which makes a token for its readers, "
            f"or use 127.0.0.1:{port} and an SSH tunnel",
        )
        return cls(host, port, None if token is None else _token_in(token))

    @property
    def bound(self) -> str:
        """The address to bind: a name for loopback must not depend on what the machine makes of it."""
        return "127.0.0.1" if self.host == "localhost" else self.host

    def url(self, port: int, *, secret: bool) -> str:
        """What to open in a browser. With the token only if it may be shown (`secret`)."""
        # The address that stands for all addresses is for binding. A browser is sent to loopback instead.
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        where = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
        return f"{where}?token={self.token}" if secret and self.token is not None else where

    def answers(self, header: str | None) -> bool:
        """Whether a request with this Host header is meant for us. Ports may differ, as behind a tunnel.

        >>> here = PageAddress("127.0.0.1", 8080)
        >>> here.answers("localhost:9000"), here.answers("[::1]:8080"), here.answers("evil.example"), here.answers(None)
        (True, True, False, False)
        """
        if header is None:
            return False
        # A final dot is another name to a browser, with cookies of its own, so it is not taken off.
        parts = _HOST.fullmatch(header.strip().lower())
        if parts is None:
            return False
        name = parts["name"].strip("[]")
        if name in (*_LOOPBACK, self.host.lower()):
            return True
        # Open on all addresses: a stranger can make a name point here, but not an address.
        return self.host in ("0.0.0.0", "::") and _address(name) is not None

    def admits(self, shown: str | None) -> bool:
        """Whether a reader who shows this token may read. Takes the same time however much of it is right."""
        return self.token is None or hmac.compare_digest((shown or "").encode(), self.token.encode())


def _halves(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    # Port 0 is meant: the system chooses, and the command prints what it chose.
    good = bare and port.isascii() and port.isdigit() and int(port) <= 65535
    # Without its brackets the last group of an IPv6 address would be taken for the port.
    named = re.fullmatch(r"[A-Za-z0-9.:-]+", bare) is not None and (":" not in bare or host.startswith("["))
    require(bool(good) and named, f"--page must be HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080, or a port, got {address!r}")
    return bare, int(port)


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _token_in(path: Path) -> str:
    from eigenveil.data.archive import read_owned, whole_file

    if not path.exists():
        # `whole_file` makes files that only their owner can read.
        with whole_file(path) as temporary:
            temporary.write_text(f"{secrets.token_urlsafe(_BYTES)}\n", encoding="ascii")
    # A file that others can read is refused: the token would be no secret then.
    token = read_owned(path, max_bytes=1000, private=True).decode("ascii", errors="replace").strip()
    require(
        _TOKEN.fullmatch(token) is not None,
        f"--page-token {path} must hold one token of 20 to 200 letters, digits, - and _. Name a file that does not exist to "
        "get one",
    )
    return token


_LINES: Final = 200
_LONGEST: Final = 500
_UNSEEN: Final = "The page could not be drawn just now. The terminal has everything."


@final
class LivePage:
    """The lines that were said, and a `look` at the state. Changes in place, from any thread.

    `look` is called on the thread of the page. It reads only values that are replaced as a whole.
    """

    def __init__(self, look: Callable[[], PageState]) -> None:
        from eigenveil.show.server import Drawing

        self._look, self._drawing = look, Drawing()
        # Appending and copying a deque are single steps, so the threads of the study and of the page need no lock.
        self._lines: deque[tuple[str, str, str | None]] = deque(maxlen=_LINES)

    def line(self, text: str, style: str | None = None) -> None:
        """Something that happened just now."""
        # Cut to a bounded length, because all lines are sent again whenever one is added.
        self._lines.append((f"{datetime.now().astimezone():%H:%M:%S}", text[:_LONGEST], style))

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
    from eigenveil.show.server import POLICY, VERSION, PageServer, PageSource, document

    page = LivePage(look)
    source = PageSource(parts=page.parts, document=lambda parts: document(page.title, parts), policy=POLICY, version=VERSION)
    with PageServer(address, source) as server:
        # A log may go further than a terminal, and the token must not.
        more = "" if address.token is None or secret else " The token is in the file of --page-token."
        say(f"live page: {address.url(server.port, secret=secret)}{more}")
        yield page
