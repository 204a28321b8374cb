"""`eigenveil keys`: from a coordinator's folder to signed sites, with files for the right readers and nothing overwritten."""

import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from eigenveil.commands.keys import COMMAND
from eigenveil.network.authority import Authority, CertificateRequest, new_request
from eigenveil.network.certificates import Certificate, Keys, pin_words


def run(*arguments: object, answer: str | None = None) -> Result:
    """Run the command; an exception that escaped it fails the test at once."""
    result = CliRunner().invoke(COMMAND.app, [str(word) for word in arguments], input=answer, env={"COLUMNS": "100"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert "Traceback" not in result.output
    return result


def done(*arguments: object, answer: str | None = None) -> str:
    """What the command says when all is well, with white space made even."""
    result = run(*arguments, answer=answer)
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


def refused(*arguments: object, answer: str | None = None) -> str:
    """The one line on stderr of a refusal."""
    result = run(*arguments, answer=answer)
    assert result.exit_code == 2, result.output
    line, *more = [text for text in result.stderr.splitlines() if text]
    assert not more
    assert line.startswith("error: ")
    return line


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    done("init", tmp_path / "study", "--host", "Hub.example.org", "--host", "10.1.2.3")
    return tmp_path / "study"


def test_init_makes_an_authority_and_a_hub(study: Path) -> None:
    assert {path.name for path in study.iterdir()} == {"authority.key", "authority.crt", "hub.key", "hub.crt"}
    assert mode(study) == 0o700
    assert {mode(path) for path in study.glob("*.key")} == {0o600}
    assert {mode(path) for path in study.glob("*.crt")} == {0o644}
    hub = Keys.load(study / "hub.key").certificate
    assert (hub.name, hub.role, hub.hosts[1:]) == ("hub", "hub", ("hub.example.org", "10.1.2.3"))
    hub.require_issued_by((study / "authority.crt").read_text())
    assert Authority.load(study).ends == hub.ends


def test_init_tells_the_pin_and_what_to_do(tmp_path: Path) -> None:
    said = done("init", tmp_path / "a" / "b", "--hub", "Heart hub", "--days", 30)
    hub = Keys.load(tmp_path / "a" / "b" / "hub.key").certificate
    assert hub.name == "Heart hub"
    assert pin_words(hub.pin) in said
    assert "30 days left" in said
    assert "eigenveil keys sign NAME.request --authority" in said


def test_init_never_overwrites(study: Path) -> None:
    before = {path.name: path.read_bytes() for path in study.iterdir()}
    assert "already exists, and keys and certificates are never overwritten" in refused("init", study)
    assert {path.name: path.read_bytes() for path in study.iterdir()} == before


def test_a_site_from_keys_to_certificate(study: Path, tmp_path: Path) -> None:
    home = tmp_path / "north"
    said = done("site", "North Hospital", "--folder", home)
    key, request = home / "North-Hospital.key", home / "North-Hospital.request"
    assert {path.name for path in home.iterdir()} == {key.name, request.name}
    assert (mode(home), mode(key), mode(request)) == (0o700, 0o600, 0o644)
    asked = CertificateRequest.load(request)
    assert pin_words(asked.pin) in said
    assert "by telephone" in said
    with pytest.raises(ValueError, match="to the coordinator, who signs it"):
        Keys.load(key)

    said = done("sign", request, "--authority", study, answer="y\n")
    assert "Is this the pin that North Hospital read to you?" in said
    assert pin_words(asked.pin) in said
    assert "365 days left" in said
    assert "send" in said
    signed = study / "North-Hospital.crt"
    assert mode(signed) == 0o644
    key.with_suffix(".crt").write_bytes(signed.read_bytes())
    found = Keys.load(key).certificate
    assert (found.name, found.role, found.pin) == ("North Hospital", "site", asked.pin)
    found.require_issued_by((study / "authority.crt").read_text())


@pytest.mark.parametrize("role", ["peer", "node"])
def test_peers_and_nodes_say_where_they_are(tmp_path: Path, role: str) -> None:
    done(role, "node 1" if role == "node" else "west", "--host", "West.example.org", "--folder", tmp_path)
    (request,) = tmp_path.glob("*.request")
    asked = CertificateRequest.load(request)
    assert (asked.role, asked.hosts[1:]) == (role, ("west.example.org",))
    assert run(role, "other", "--folder", tmp_path).exit_code == 2


def test_on_one_machine_a_site_is_signed_at_once(study: Path, tmp_path: Path) -> None:
    said = done("site", "north", "--folder", tmp_path / "north", "--authority", study, "--days", 7)
    found = Keys.load(tmp_path / "north" / "north.key").certificate
    assert Certificate.read((study / "north.crt").read_text()) == found
    assert "7 days left" in said
    assert "good for a trial, not for a real study" in said
    # And where both folders are the same there is one certificate.
    done("site", "south", "--folder", study, "--authority", study)
    assert Keys.load(study / "south.key").certificate.name == "south"


@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_nothing_is_signed_without_a_yes(study: Path, tmp_path: Path, answer: str) -> None:
    done("site", "north", "--folder", tmp_path)
    assert "nothing was signed" in refused("sign", tmp_path / "north.request", "--authority", study, answer=answer)
    assert not (study / "north.crt").exists()


def test_a_pin_is_compared_digit_by_digit(study: Path, tmp_path: Path) -> None:
    done("site", "north", "--folder", tmp_path)
    request = tmp_path / "north.request"
    pin = CertificateRequest.load(request).pin
    wrong = pin[:-1] + ("0" if pin[-1] != "0" else "1")
    for given in (wrong, pin[:-1], "", "hello"):
        for more in ((), ("--yes",)):
            said = refused("sign", request, "--authority", study, "--pin", given, *more)
            assert "Nothing was signed" in said
    assert not (study / "north.crt").exists()
    said = done("sign", request, "--authority", study, "--pin", pin_words(pin).upper(), "--days", 3)
    assert "Is this the pin" not in said
    assert "3 days left" in said


def test_yes_asks_no_question(study: Path, tmp_path: Path) -> None:
    done("site", "north", "--folder", tmp_path)
    assert "Is this the pin" not in done("sign", tmp_path / "north.request", "--authority", study, "--yes")


def test_signing_twice_tells_how_to_renew(study: Path, tmp_path: Path) -> None:
    done("site", "north", "--folder", tmp_path)
    words = ("sign", tmp_path / "north.request", "--authority", study, "--yes")
    done(*words)
    first = (study / "north.crt").read_bytes()
    assert "eigenveil keys renew" in refused(*words)
    (study / "north.crt").rename(tmp_path / "old.crt")
    done(*words)
    assert (study / "north.crt").read_bytes() != first
    assert Certificate.read((study / "north.crt").read_bytes()).pin == Certificate.read(first).pin


def test_another_with_a_taken_name_is_not_signed(study: Path, tmp_path: Path) -> None:
    done("site", "north", "--folder", tmp_path / "a", "--authority", study)
    done("site", "north", "--folder", tmp_path / "b")
    said = refused("sign", tmp_path / "b" / "north.request", "--authority", study, "--yes")
    assert "another identity with the same name" in said
    said = refused("site", "north", "--folder", tmp_path / "c", "--authority", study)
    assert "another identity with the same name" in said
    assert not (tmp_path / "c").exists()


def test_a_request_cannot_take_the_hubs_place(study: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.request"
    for name, role, words in (("other", "hub", "Only `eigenveil keys init`"), ("hub", "site", "another identity")):
        path.write_text(new_request(name, role)[0].pem)  # type: ignore[arg-type]
        assert words in refused("sign", path, "--authority", study, "--yes")
    path.write_text(new_request("authority", "site")[0].pem)
    assert "never overwritten" in refused("sign", path, "--authority", study, "--yes")


def test_keys_are_never_overwritten(tmp_path: Path) -> None:
    done("site", "north", "--folder", tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert "Keys are never overwritten" in refused("site", "north", "--folder", tmp_path)
    # Another name that would have the same file.
    done("site", "St Mary", "--folder", tmp_path)
    assert "Keys are never overwritten" in refused("site", "St/Mary", "--folder", tmp_path)
    (tmp_path / "north.key").rename(tmp_path / "lost")
    assert "north.request already exists" in refused("site", "north", "--folder", tmp_path)
    assert not (tmp_path / "north.key").exists()
    assert (tmp_path / "north.request").read_bytes() == before["north.request"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("site", "hub"), "the coordinator has files of that name"),
        (("site", "Authority"), "the coordinator has files of that name"),
        (("site", "node 1"), "for nodes"),
        (("site", ""), "1 to 200"),
        (("site", "x\ny"), "printable"),
        (("site", "!!!"), "at least one letter or digit"),
        (("site", "x" * 201), "1 to 200"),
        (("site", "north", "--days", "3"), "--days is for --authority"),
        (("site", "north", "--authority", "nowhere"), "there is no authority in nowhere"),
        (("peer", "north", "--host", "north.example.org:80"), "without a port"),
        (("peer", "north", "--host", "a.org", "--host", "a.org"), "given once"),
        (("init", "new", "--days", "0"), "days must lie between"),
        (("init", "new", "--hub", " x"), "begin or end with a space"),
        (("sign", "no.request", "--authority", "nowhere"), "No such file"),
        (("show", "nothing.crt"), "No such file"),
    ],
)
def test_refusals_say_what_was_expected_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in refused(*arguments)
    assert list(tmp_path.iterdir()) == []


def test_an_accent_is_written_in_one_way(tmp_path: Path) -> None:
    done("site", "e\u0301cole", "--folder", tmp_path)
    assert CertificateRequest.load(tmp_path / "\u00e9cole.request").name == "\u00e9cole"


def test_damaged_requests_name_their_file(study: Path, tmp_path: Path) -> None:
    path = tmp_path / "north.request"
    for content in (b"", b"hello", b"\xff" * 100, (study / "hub.crt").read_bytes(), (study / "hub.key").read_bytes()):
        path.write_bytes(content)
        assert str(path) in refused("sign", path, "--authority", study, "--yes")


def test_show_tells_everything_public_and_nothing_private(study: Path, tmp_path: Path) -> None:
    done("site", "north", "--folder", tmp_path, "--authority", study)
    files = [*study.iterdir(), *tmp_path.glob("north.*")]
    said = done("show", *files)
    found = Keys.load(tmp_path / "north.key")
    assert said.count(pin_words(found.certificate.pin)) == 4
    assert "hub.example.org, 10.1.2.3" in said
    assert "none: it only calls out" in said
    assert said.count("safe: for its owner only") == 3
    assert "NOT SAFE" not in said
    assert "days left" in said
    for path in files:
        if path.suffix == ".key":
            for line in path.read_text().splitlines():
                assert "-----" in line or line not in said
    assert found.identity.private_bytes().hex() not in said


def test_show_warns_of_open_permissions_and_missing_certificates(tmp_path: Path) -> None:
    done("site", "north", "--folder", tmp_path)
    key = tmp_path / "north.key"
    key.chmod(0o644)
    said = done("show", key, tmp_path / "north.request")
    assert "NOT SAFE" in said and "chmod 600" in said
    assert "the coordinator has not signed it yet" in said


def test_show_tells_an_ended_certificate(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import UTC, datetime, timedelta

    past = datetime.now(UTC) - timedelta(days=100)
    old = Authority.fresh(days=20, now=past)
    path = tmp_path / "old.crt"
    path.write_text(old.sign(new_request("old", "site")[0], days=10, now=past).pem)
    assert "EXPIRED" in done("show", path)
    early = Authority.fresh(now=datetime.now(UTC) + timedelta(days=5))
    path.write_text(early.pem)
    assert "NOT VALID YET" in done("show", path)


def test_show_refuses_a_certificate_that_is_not_the_keys(study: Path, tmp_path: Path) -> None:
    done("site", "north", "--folder", tmp_path)
    (tmp_path / "north.crt").write_bytes((study / "hub.crt").read_bytes())
    assert "the identity is not the one in the certificate of 'hub'" in refused("show", tmp_path / "north.key")
