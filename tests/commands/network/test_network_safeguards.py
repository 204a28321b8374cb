"""A study as processes, with locked keys and a head elsewhere: another study file, a wrong passphrase or an old ledger end it."""

import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from commands.command_tables import refusal
from commands.network.network_folders import Folders, started
from eigenveil.ledger.durable import DurableLedger
from eigenveil.ledger.store import NotedHead
from eigenveil.network.certificates import pem_of, private_keys_in
from eigenveil.network.study import StudyFile

ME = "site 0"
WORDS = b"correct horse battery staple"


def lock(key: Path) -> None:
    """Give a key file a passphrase."""
    locked = [pem_of(one, WORDS) for one in private_keys_in(key)]
    assert isinstance(private_keys_in(key)[0], Ed25519PrivateKey)
    key.write_bytes(b"".join(locked))


def private(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    path.chmod(0o600)
    return path


@pytest.mark.slow
def test_safeguards_stop_a_site_and_otherwise_the_study_ends_as_usual(tmp_path: Path) -> None:
    folders = Folders(tmp_path, network={"deadline": 30.0, "retries": 1, "join_timeout": 120.0})
    given = ("--passphrase-file", private(tmp_path / "passphrase", WORDS + b"\n"))
    for name in ("hub", ME):
        lock(folders.of(name) / f"{folders.of(name).name}.key")
    ledger, head = folders.of(ME) / "ledger.db", tmp_path / "elsewhere.head"
    common = ("--yes", "--dataset", "patients", "--require-head", head)
    mine = folders.site(ME, "--policy", folders.policy(ME), *common, *given)
    others = [
        (folders.site(name, "--policy", folders.policy(name), "--yes", "--dataset", "patients"), folders.of(name))
        for name in folders.names[1:]
    ]
    # A wrong passphrase, and none: nothing is opened or made.
    wrong = private(tmp_path / "wrong", b"another one of a good length")
    assert "is not the one of" in refusal(*mine[:-2], "--passphrase-file", wrong)
    assert "has a passphrase. Give it with --passphrase-file" in refusal(*mine[:-2])
    assert not ledger.exists() and not head.exists()
    file = folders.study_file(ME)
    right = file.read_text()
    with started((folders.hub(*given), folders.of("hub"))) as (hub,):
        hub.until(lambda line: "listening at" in line)
        # Another study file, by one value.
        file.write_text(right.replace("row_bound = 4.0", "row_bound = 4.5"))
        digests = {StudyFile.read(file).digest, folders.study.digest}
        assert len(digests) == 2
        with started((mine, folders.of(ME))) as (site,):
            code, _, error = site.ended()
            assert code == 2
            (line,) = error.splitlines()
            assert line.startswith("error: hub: ") and all(digest in line for digest in digests)
        file.write_text(right)
        with DurableLedger.reading(ledger) as opened:
            assert NotedHead.read(head).head == opened.head
            assert opened.datasets()[0].spent == 0
        shutil.copy2(ledger, tmp_path / "old.db")
        free = ["ledger", "close", str(ledger), "heart", "--yes", "--require-head", str(head)]
        with started((free, folders.of(ME))) as (closing,):
            assert closing.ended()[0] == 0
        with started((mine, folders.of(ME)), *others) as sites:
            for site in sites:
                assert site.ended()[0] == 0
        assert hub.ended()[0] == 0
    with DurableLedger.reading(ledger) as opened:
        assert NotedHead.read(head).head == opened.head
        assert opened.datasets()[0].spent > 0
    # An old copy is put back: it has forgotten what was spent.
    noted = head.read_bytes()
    shutil.copy2(tmp_path / "old.db", ledger)
    for more in ((), ("--dry-run",)):
        line = refusal(*mine, "--force", *more)
        assert "Charges may have been forgotten" in line
    assert head.read_bytes() == noted
    ledger.unlink()
    assert "Put the ledger back" in refusal(*mine, "--force")
    assert not ledger.exists()
