"""The server of a live page: read-only, for this machine or for whoever has the token, and never a burden to the study."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from eigenveil.commands._options import PageOptions
from eigenveil.show import server as serving
from eigenveil.show.live import LivePage, PageAddress, PageState, live_page
from eigenveil.show.server import PageServer, PageSource


@contextmanager
def served(address: PageAddress | None = None, **parts: str) -> Iterator[PageServer]:
    source = PageSource(
        parts=lambda: dict(parts),
        document=lambda found: f"<p>{found.get('now', '')}</p>",
        policy="default-src 'none'",
        version="version 1",
    )
    with PageServer(address or PageAddress("127.0.0.1", 0), source) as server:
        yield server


def asked(server: PageServer, path: str = "/", method: str = "GET", **headers: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    answer.text = answer.read().decode() if path != "/events" else ""  # type: ignore[attr-defined]
    return answer


def events(server: PageServer, count: int, **headers: str) -> list[Any]:
    """The first so many events of the page: names and data."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    connection.request("GET", "/events", headers=headers)
    answer, found = connection.getresponse(), list[Any]()
    assert answer.getheader("Content-Type") == "text/event-stream; charset=utf-8"
    name = ""
    while len(found) < count:
        line = answer.readline().decode().rstrip("\n")
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            found.append((name, json.loads(line.removeprefix("data: "))))
    connection.close()
    return found


def test_the_page_comes_with_every_header_that_keeps_it_to_itself() -> None:
    with served(now="hello") as server:
        answer = asked(server)
        assert (answer.status, answer.text) == (200, "<p>hello</p>")
        assert answer.getheader("Content-Security-Policy") == "default-src 'none'"
        for name, value in {
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
        }.items():
            assert answer.getheader(name) == value
        assert answer.getheader("Access-Control-Allow-Origin") is None
        assert asked(server, method="HEAD").status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.", "[::2]", ""])
def test_a_foreign_host_is_refused_whatever_it_asks_for(host: str) -> None:
    with served(now="secret") as server:
        for path in ("/", "/events", "/nothing"):
            answer = asked(server, path, Host=host)
            assert answer.status == 421
            assert "secret" not in answer.text
        # Names of this machine, also through a tunnel with another port.
        assert [asked(server, Host=name).status for name in ("localhost", "127.0.0.1:9", "[::1]:9000")] == [200] * 3


def test_two_host_headers_none_and_other_web_pages_are_refused() -> None:
    with served() as server:
        for lines in ("", "Host: localhost\r\nHost: evil.example\r\n"):
            assert b" 421 " in _raw(server, f"GET / HTTP/1.1\r\n{lines}\r\n")
        # A whole address in the request line counts as a name as well.
        for target, status in (("http://evil.example/", 421), ("//evil.example/", 421), ("http://localhost/", 200)):
            answer = _raw(server, f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert f" {status} ".encode() in answer.partition(b"\r\n")[0]
        assert asked(server, "/events", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="cors").status == 403
        # A link on another page may lead here.
        assert asked(server, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate").status == 200


def _raw(server: PageServer, text: str) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as line:
        line.sendall(text.encode())
        line.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: line.recv(4096), b""))


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(method: str) -> None:
    with served() as server:
        assert asked(server, method=method).status == 405


def test_what_is_not_http_is_refused_and_the_server_goes_on() -> None:
    with served() as server:
        assert b" 400 " in _raw(server, "hello\r\n\r\n")
        assert b" 431 " in _raw(server, f"GET / HTTP/1.1\r\nX: {'a' * 20_000}\r\n\r\n")
        assert b" 404 " in _raw(server, "GET /../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert _raw(server, "GET / HTTP/1.1\r\n") == b""
        assert asked(server).status == 200


def test_events_carry_what_changed_and_the_last_state_before_the_end() -> None:
    state, heard = {"now": "first", "facts": "a"}, list[Any]()
    source = PageSource(parts=lambda: dict(state), document=lambda parts: "", policy="", version="version 1")
    with PageServer(PageAddress("127.0.0.1", 0), source) as server:
        reader = threading.Thread(target=lambda: heard.extend(events(server, 4)))
        reader.start()
        _until(lambda: server._readers == 1)
        time.sleep(0.1)
        state["now"] = "second"
        time.sleep(0.8)
        state["facts"] = "b"
    reader.join(5)
    assert heard == [
        ("parts", {"version": "version 1", "parts": {"now": "first", "facts": "a"}}),
        ("parts", {"version": "version 1", "parts": {"now": "second"}}),
        ("parts", {"version": "version 1", "parts": {"facts": "b"}}),
        ("end", {}),
    ]


def _until(true: Any) -> None:
    end = time.monotonic() + 5
    while not true() and time.monotonic() < end:
        time.sleep(0.01)
    assert true()


def test_more_readers_than_there_is_room_for_are_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_MOST", 4)
    with served() as server:
        lines = [socket.create_connection(("127.0.0.1", server.port), timeout=5) for _ in range(4)]
        for line in lines:
            line.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        _until(lambda: server._readers == 4)
        assert b" 503 " in _raw(server, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for line in lines:
            line.close()
        _until(lambda: server._readers == 0)
        assert asked(server).status == 200


def test_strangers_who_say_nothing_keep_nobody_out_and_hold_few_descriptors() -> None:
    with served() as server:
        lines = [socket.create_connection(("127.0.0.1", server.port), timeout=5) for _ in range(200)]
        assert asked(server).status == 200
        assert len(server._waiting) <= serving._WAITING
        for line in lines:
            line.close()


def test_readers_who_say_or_take_nothing_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_ASK", 0.2)
    monkeypatch.setattr(serving, "_TAKE", 0.2)
    # Far more than a connection holds, so that one who does not read stands in the way.
    with served(now="x" * 20_000_000) as server:
        lines = [socket.create_connection(("127.0.0.1", server.port), timeout=5) for _ in range(4)]
        for line in lines[:2]:
            line.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        # The first bytes say that it is being served.
        assert all(line.recv(8) == b"HTTP/1.1" for line in lines[:2])
        _until(lambda: server._readers == 0)
        for line in lines:
            line.close()


def test_a_reader_who_takes_nothing_does_not_hold_up_the_end() -> None:
    with socket.socket() as line:
        with served(now="x" * 20_000_000) as server:
            line.connect(("127.0.0.1", server.port))
            line.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            _until(lambda: server._readers == 1)
            began = time.monotonic()
        assert time.monotonic() - began < 3
        assert not server._thread.is_alive()


def test_elsewhere_a_token_is_needed_in_the_address_a_cookie_or_a_header(tmp_path: Path) -> None:
    address = PageAddress.read("0.0.0.0:0", tmp_path / "token")
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    token = (tmp_path / "token").read_text().strip()
    assert address.token == token and token not in repr(address)
    with served(address, now="secret") as server:
        for path, headers in (("/", {}), ("/events", {}), (f"/?token={token[:-1]}", {}), ("/", {"Cookie": "x=1"})):
            answer = asked(server, path, **headers)
            assert answer.status == 401
            assert "secret" not in answer.text
        first = asked(server, f"/?token={token}")
        assert (first.status, first.getheader("Location")) == (303, "/")
        cookie = str(first.getheader("Set-Cookie"))
        assert cookie.endswith("; Path=/; HttpOnly; SameSite=Lax")
        assert asked(server, Cookie=cookie.partition(";")[0]).text == "<p>secret</p>"
        assert asked(server, Authorization=f"Bearer {token}").status == 200
        assert events(server, 1, Cookie=cookie.partition(";")[0])[0][0] == "parts"
        # A name that somebody else makes point here is refused although the token is right.
        assert asked(server, f"/?token={token}", Host="evil.example").status == 421
    # The same file gives the same token, so an open page goes on after a restart.
    assert PageAddress.read("0.0.0.0:0", tmp_path / "token").token == token


@pytest.mark.parametrize(
    ("given", "token", "words"),
    [
        ("0.0.0.0:8080", False, "--page 0.0.0.0:8080 can be reached from other machines. Give --page-token FILE"),
        ("hub.example.org:80", False, "can be reached from other machines"),
        ("[::]:8080", False, "can be reached from other machines"),
        ("127.0.0.1", False, "--page must be HOST:PORT"),
        ("127.0.0.1:99999", False, "--page must be HOST:PORT"),
        ("::1:8080", False, "--page must be HOST:PORT"),
        ("http://x:80", False, "--page must be HOST:PORT"),
        (None, True, "--page-token is for a live page"),
    ],
)
def test_addresses_that_cannot_be_are_refused(given: str | None, token: bool, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words.replace(".", r"\.")):
        PageOptions(page=given, page_token=tmp_path / "token" if token else None).address()


def test_a_token_that_others_can_read_or_guess_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("short")
    path.chmod(0o600)
    with pytest.raises(ValueError, match="must hold one token of 20 to 200 letters"):
        PageAddress.read("0.0.0.0:0", path)
    path.write_text("a" * 32)
    path.chmod(0o644)
    with pytest.raises(ValueError, match="is private, and others may read"):
        PageAddress.read("0.0.0.0:0", path)


def test_an_address_in_use_is_refused_before_anything_begins() -> None:
    with served() as server, pytest.raises(ValueError, match=f"cannot listen at 127.0.0.1:{server.port}: Address already"):
        PageServer(
            PageAddress("127.0.0.1", server.port), PageSource(parts=dict, document=lambda parts: "", policy="", version="")
        )


def test_an_error_in_the_view_stays_on_the_page() -> None:
    def look() -> PageState:
        raise RuntimeError("a race")

    assert "could not be drawn" in LivePage(look).parts()["now"]


@pytest.mark.parametrize(("secret", "shown"), [(True, "?token="), (False, "The token is in the file of --page-token.")])
def test_a_log_does_not_get_the_token(secret: bool, shown: str, tmp_path: Path) -> None:
    said: list[str] = []
    address = PageAddress.read("127.0.0.1:0", tmp_path / "token")
    with live_page(address, lambda: PageState(title="t", now="now"), say=said.append, secret=secret):
        pass
    assert shown in said[0]
    assert (str(address.token) in said[0]) == secret
