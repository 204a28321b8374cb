"""Keys through the years: passphrases that protect them, and certificates that are renewed while the pin stays."""

import getpass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from commands.command_tables import eigenveil, refusal
from eigenveil.commands import _files as asking
from eigenveil.network.authority import Authority, new_request
from eigenveil.network.certificates import Certificate, Keys, authority_in, is_locked
from eigenveil.runtimes.grpc import Credentials

WORDS = "correct horse battery staple"


def done(*arguments: object) -> str:
    result = eigenveil(*arguments)
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EIGENVEIL_PASSPHRASE", raising=False)


def typing(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    """A person at a terminal who types these; returns the questions, as they come."""
    asked: list[str] = []

    def ask(question: str) -> str:
        asked.append(question)
        return answers[len(asked) - 1]

    monkeypatch.setattr(asking, "at_terminal", lambda: True)
    monkeypatch.setattr(getpass, "getpass", ask)
    return asked


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "passphrase"
    path.write_text(WORDS + "\n")
    path.chmod(0o600)
    return path


def test_every_private_key_may_have_a_passphrase(tmp_path: Path, secret: Path) -> None:
    with_it = ("--passphrase-file", secret)
    done("keys", "init", tmp_path / "study", "--host", "localhost", *with_it)
    done("keys", "site", "north", "--folder", tmp_path / "north", *with_it)
    done("keys", "peer", "east", "--host", "localhost", "--folder", tmp_path / "north", *with_it)
    done("keys", "node", "node 1", "--host", "localhost", "--folder", tmp_path / "north", *with_it)
    keys = [*tmp_path.glob("*/*.key")]
    assert len(keys) == 5
    for key in keys:
        assert is_locked(key.read_bytes()) and b"BEGIN PRIVATE KEY" not in key.read_bytes()
        assert "passphrase yes" in done("keys", "show", key, *with_it)
    sign = ("keys", "sign", tmp_path / "north" / "north.request", "--authority", tmp_path / "study", "--yes")
    assert "authority.key has a passphrase. Give it with --passphrase-file" in refusal(*sign)
    done(*sign, *with_it)
    crt = tmp_path / "study" / "north.crt"
    (tmp_path / "north" / "north.crt").write_bytes(crt.read_bytes())
    found = Keys.load(tmp_path / "north" / "north.key", passphrase=lambda _: WORDS.encode())
    # gRPC gets the key in memory, and can use it without a passphrase.
    Credentials(found.tls_key, crt.read_bytes(), (tmp_path / "study" / "authority.crt").read_bytes())
    with pytest.raises(ValueError, match="has a passphrase, and none was given"):
        Keys.load(tmp_path / "north" / "north.key")


def test_a_person_is_asked_twice_for_a_new_passphrase_and_once_for_an_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = typing(monkeypatch, WORDS, WORDS)
    done("keys", "site", "north", "--folder", tmp_path, "--passphrase")
    assert len(asked) == 2
    asked = typing(monkeypatch, WORDS)
    done("keys", "show", tmp_path / "north.key")
    (question,) = asked
    assert "north.key" in question
    typing(monkeypatch, WORDS[:-1])
    said = refusal("keys", "show", tmp_path / "north.key")
    assert "the passphrase is not the one of" in said and WORDS[:-1] not in said
    typing(monkeypatch, WORDS, WORDS + "r")
    assert "differ" in refusal("keys", "site", "south", "--folder", tmp_path, "--passphrase")
    assert not (tmp_path / "south.key").exists()


def test_the_variable_is_for_services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It alone protects nothing: a new key gets a passphrase only when it is asked for.
    monkeypatch.setenv("EIGENVEIL_PASSPHRASE", WORDS)
    done("keys", "site", "south", "--folder", tmp_path)
    assert not is_locked((tmp_path / "south.key").read_bytes())
    done("keys", "site", "north", "--folder", tmp_path, "--passphrase")
    done("keys", "show", tmp_path / "north.key")
    monkeypatch.setenv("EIGENVEIL_PASSPHRASE", "something else")
    assert "is not the one of" in refusal("keys", "show", tmp_path / "north.key")


@pytest.mark.parametrize(
    "content, mode, words",
    [
        (WORDS.encode(), 0o644, "chmod 600"),
        (b"short", 0o600, "at least 12 characters"),
        (b"\xff" * 20, 0o600, "UTF-8"),
        (b"x" * 2000, 0o600, "larger than"),
    ],
)
def test_passphrases_that_protect_nothing_are_refused(
    tmp_path: Path, secret: Path, content: bytes, mode: int, words: str
) -> None:
    secret.write_bytes(content)
    secret.chmod(mode)
    assert words in refusal("keys", "site", "north", "--folder", tmp_path / "n", "--passphrase-file", secret)
    assert not (tmp_path / "n" / "north.key").exists()
    assert "needs a terminal" in refusal("keys", "site", "north", "--folder", tmp_path / "n", "--passphrase")


def test_accents_are_typed_in_two_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typing(monkeypatch, "caf\N{LATIN SMALL LETTER E WITH ACUTE} au lait", *["caf\N{LATIN SMALL LETTER E WITH ACUTE} au lait"])
    done("keys", "site", "north", "--folder", tmp_path, "--passphrase")
    typing(monkeypatch, "cafe\N{COMBINING ACUTE ACCENT} au lait")
    done("keys", "show", tmp_path / "north.key")


def test_no_key_is_made_where_others_may_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o775)
    assert f"chmod go-w {tmp_path}" in refusal("keys", "site", "north", "--folder", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_key_that_others_could_exchange_is_refused(tmp_path: Path) -> None:
    done("keys", "init", tmp_path / "study")
    (tmp_path / "study").chmod(0o777)
    sign = ("keys", "site", "north", "--folder", tmp_path / "n", "--authority", tmp_path / "study")
    assert f"chmod go-w {tmp_path / 'study'}" in refusal(*sign)
    assert "NOT SAFE: others may write in the folder" in done("keys", "show", tmp_path / "study" / "hub.key")


@pytest.fixture
def ended(tmp_path: Path) -> Path:
    """The folder of a coordinator whose certificates have all ended, the authority's too."""
    folder, past = tmp_path / "study", datetime.now(UTC) - timedelta(days=1000)
    done("keys", "init", folder, "--host", "localhost")
    done("keys", "site", "north", "--folder", tmp_path / "north", "--authority", folder)
    authority = Authority.load(folder).again(days=800, now=past)
    for name in ("hub", "north"):
        found = Certificate.read((folder / f"{name}.crt").read_bytes())
        (folder / f"{name}.crt").write_text(authority.renew(found, days=365, now=past).pem)
    (folder / "authority.crt").write_text(authority.pem)
    return folder


def test_a_renewed_certificate_has_new_dates_and_nothing_else_is_new(ended: Path, tmp_path: Path) -> None:
    before = {name: Certificate.read((ended / f"{name}.crt").read_bytes()) for name in ("hub", "north")}
    for found in before.values():
        with pytest.raises(ValueError, match="eigenveil keys renew"):
            found.require_current()
    # Without the authority itself there is no renewal, and nothing is changed.
    old = {path.name: path.read_bytes() for path in ended.iterdir()}
    assert "eigenveil keys renew --authority" in refusal("keys", "renew", ended / "hub.crt", "--authority", ended)
    assert {path.name: path.read_bytes() for path in ended.iterdir()} == old
    said = done("keys", "renew", "--authority", ended)
    assert "EXPIRED" not in said
    authority = (ended / "authority.crt").read_text()
    for name, found in before.items():
        after = Certificate.read((ended / f"{name}.crt").read_bytes())
        after.require_current()
        after.require_issued_by(authority)
        # What was signed before stays signed: the authority has the same key.
        found.require_issued_by(authority)
        for field in ("name", "role", "public", "pin", "key_digest", "hosts"):
            assert getattr(after, field) == getattr(found, field)
        assert (ended / f"{name}.crt.old").read_bytes() == old[f"{name}.crt"]
    # The keys belong to the old certificate and to the new one.
    Keys.load(ended / "hub.key")
    Keys.load(tmp_path / "north" / "north.key")
    days = (authority_in(authority).not_valid_after_utc - datetime.now(UTC)).days
    assert days == 824


def test_only_what_this_authority_has_signed_is_renewed(ended: Path, tmp_path: Path) -> None:
    forged = tmp_path / "hub.crt"
    forged.write_text(Authority.fresh().sign(new_request("hub", "hub")[0]).pem)
    done("keys", "renew", ended / "authority.crt", "--authority", ended)
    before = forged.read_bytes()
    assert "was not signed by this study's authority" in refusal("keys", "renew", forged, "--authority", ended)
    assert forged.read_bytes() == before
