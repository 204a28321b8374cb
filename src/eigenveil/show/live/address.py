"""Where a live page listens and who may read it: everybody on this machine, or whoever has the token.

A page on loopback has no token. Its one danger is a web page of a stranger whose name is made to point here, and such a request
carries that name in its Host header. So only names of this machine are answered. Anywhere else a token is needed as well.
"""

import hmac
import ipaddress
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

from eigenveil.errors import require

__all__ = ["PageAddress"]

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
    def read(cls, given: str, token: Path | None) -> "PageAddress":
        """The address as it was typed, with the token in the file, which is made if it is not there."""
        # A port alone, with or without the colon, must not open the page to the network.
        host, port = _halves(given if ":" in given.removeprefix(":") else f"127.0.0.1:{given.removeprefix(':')}")
        require(
            token is not None or _is_loopback(host),
            f"--page {given} can be reached from other machines. Give --page-token FILE, which makes a token for its readers, "
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
        """Whether somebody who shows this token may read. Takes the same time however much of it is right."""
        return self.token is None or hmac.compare_digest((shown or "").encode(), self.token.encode())


def _halves(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    # Port 0 is meant: the system chooses, and the command prints what it chose.
    good = bare and port.isascii() and port.isdigit() and int(port) <= 65535
    # Without its brackets the last group of an IPv6 address would be taken for the port.
    named = re.fullmatch(r"[A-Za-z0-9.:-]+", bare) is not None and (":" not in bare or host.startswith("["))
    require(
        bool(good) and named,
        f"--page must be HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080, or a port, got {address!r}",
    )
    return bare, int(port)


def _is_loopback(host: str) -> bool:
    found = _address(host)
    return host == "localhost" or (found is not None and found.is_loopback)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _token_in(path: Path) -> str:
    from eigenveil.data.archive import whole_file
    from eigenveil.data.owned import read_owned

    if not path.exists():
        # `whole_file` makes files that only their owner can read.
        with whole_file(path) as temporary:
            temporary.write_text(f"{secrets.token_urlsafe(_BYTES)}\n", encoding="ascii")
    # A file that others can read is refused: the token would be no secret then.
    token = read_owned(path, most=1000, private=True).decode("ascii", errors="replace").strip()
    require(
        _TOKEN.fullmatch(token) is not None,
        f"--page-token {path} must hold one token of 20 to 200 letters, digits, - and _. Name a file that does not exist to "
        "get one",
    )
    return token
