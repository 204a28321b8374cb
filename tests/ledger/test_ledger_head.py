"""A head noted in a file elsewhere: an old copy of a ledger, a rewritten one, a removed one and another one are refused."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from commands.command_tables import eigenveil, refusal
from eigenveil.core.ledger import Charge
from eigenveil.ledger.durable import DurableLedger, LedgerError
from eigenveil.ledger.store import NotedHead, note_head, require_noted, with_head
from ledger.ledger_children import LIFE, account, digits

HEART = account("heart", mu=0.2)


def spends(path: Path, said: bytes = b"sum") -> None:
    with DurableLedger.open(path) as ledger:
        steps = len(ledger.join(HEART, life=LIFE).steps)
        ledger.commit(HEART.study, steps, came=b"", replies=[said], charges=[Charge("sum", 0.1)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "ledger.db"
    spends(found)
    return found


@pytest.fixture
def head(tmp_path: Path, path: Path) -> Path:
    found = tmp_path / "elsewhere" / "north.head"
    found.parent.mkdir()
    result = eigenveil("ledger", "head", path, "--to", found)
    assert result.exit_code == 0
    assert result.stdout == found.read_text()
    return found


def test_a_head_is_one_public_line(path: Path, head: Path) -> None:
    (line,) = head.read_text().splitlines()
    noted = json.loads(line)
    with DurableLedger.reading(path) as ledger:
        assert (noted["head"], noted["entries"]) == (ledger.head, ledger.last.number)
    assert set(noted) == {"format", "version", "head", "entries", "time"}
    assert head.stat().st_mode & 0o777 == 0o644
    shown = eigenveil("ledger", "head", path).stdout
    assert json.loads(shown)["head"] == noted["head"]


def rolled_back(path: Path, old: Path) -> None:
    shutil.copy2(old, path)


def rolled_back_and_spent(path: Path, old: Path) -> None:
    """As many entries as before: only their hashes differ."""
    shutil.copy2(old, path)
    spends(path, b"the sum again, with other noise")


def made_anew(path: Path, old: Path) -> None:
    path.unlink()
    for _ in range(4):
        spends(path)


@pytest.mark.parametrize("attack", [rolled_back, rolled_back_and_spent, made_anew])
def test_a_ledger_that_has_forgotten_charges_is_refused_everywhere(
    tmp_path: Path, path: Path, head: Path, attack: Callable[[Path, Path], None]
) -> None:
    old = tmp_path / "old.db"
    shutil.copy2(path, old)
    spends(path)
    assert eigenveil("ledger", "head", path, "--to", head).exit_code == 0
    attack(path, old)
    # It is consistent in itself.
    assert eigenveil("ledger", "verify", path).exit_code == 0
    before, noted = path.read_bytes(), head.read_bytes()
    for command in (
        ("show", path, "--require-head", head),
        ("export", path, "-o", tmp_path / "out.jsonl", "--require-head", head),
        ("verify", path, "--require-head", head),
        ("close", path, "heart", "--yes", "--require-head", head),
        ("head", path, "--to", head),
    ):
        assert "Charges may have been forgotten" in refusal("ledger", *command)
    assert path.read_bytes() == before and head.read_bytes() == noted
    assert not (tmp_path / "out.jsonl").exists()
    # A person who knows why it is so may begin again.
    assert eigenveil("ledger", "head", path, "--to", head, "--force").exit_code == 0
    assert eigenveil("ledger", "verify", path, "--require-head", head).exit_code == 0


def test_entries_before_the_head_may_not_be_rewritten(path: Path, head: Path) -> None:
    with DurableLedger.open(path) as ledger:
        require_noted(ledger, head)
        noted = NotedHead.read(head)
        assert not ledger.has(noted.entries - 1, noted.head) and not ledger.has(10**9, noted.head)


def test_a_command_that_writes_brings_the_file_up_to_date(path: Path, head: Path) -> None:
    before = NotedHead.read(head)
    assert eigenveil("ledger", "show", path, "--require-head", head).exit_code == 0
    assert NotedHead.read(head) == before
    assert eigenveil("ledger", "close", path, "heart", "--yes", "--require-head", head).exit_code == 0
    after = NotedHead.read(head)
    assert after.entries == before.entries + 1
    with DurableLedger.reading(path) as ledger:
        assert ledger.head == after.head


def test_the_file_is_brought_up_to_date_after_an_error_too(path: Path, head: Path) -> None:
    with pytest.raises(RuntimeError), with_head(path, head, DurableLedger.open, writes=True) as ledger:
        ledger.commit(HEART.study, 1, came=b"", replies=[b"sum"], charges=[Charge("sum", 0.1)])
        raise RuntimeError
    with DurableLedger.reading(path) as ledger:
        assert NotedHead.read(head).head == ledger.head


def test_a_site_that_was_killed_has_noted_all_that_may_have_left(tmp_path: Path, path: Path, head: Path) -> None:
    old = tmp_path / "old.db"
    shutil.copy2(path, old)
    child = os.fork()
    if child == 0:
        with with_head(path, head, DurableLedger.open, writes=True) as ledger:
            ledger.commit(HEART.study, 1, came=b"", replies=[b"sum"], charges=[Charge("sum", 0.1)])
            # No `finally` runs after this, as after SIGKILL.
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    shutil.copy2(old, path)
    with (
        pytest.raises(LedgerError, match="Charges may have been forgotten"),
        with_head(path, head, DurableLedger.open, writes=True),
    ):
        pass


def test_nothing_leaves_while_the_head_cannot_be_noted(tmp_path: Path, path: Path) -> None:
    elsewhere = tmp_path / "audit"
    elsewhere.mkdir()
    head = elsewhere / "north.head"
    with DurableLedger.open(path) as ledger:
        note_head(ledger, head)
    with with_head(path, head, DurableLedger.open, writes=True) as ledger:
        elsewhere.rename(tmp_path / "gone")
        with pytest.raises(LedgerError, match="Nothing may leave"):
            ledger.commit(HEART.study, 1, came=b"", replies=[b"sum"], charges=[Charge("sum", 0.1)])
        (tmp_path / "gone").rename(elsewhere)
    # The charge stays, and the same bytes can be repeated after a restart.
    with with_head(path, head, DurableLedger.open, writes=True) as ledger:
        assert ledger.join(HEART, life=LIFE).steps[1].replies == (b"sum",)
        assert NotedHead.read(head).head == ledger.head


def test_what_is_missing_is_not_made_silently(tmp_path: Path, path: Path, head: Path) -> None:
    other = tmp_path / "none.head"
    with (
        pytest.raises(LedgerError, match=f"eigenveil ledger head {path} --to {other}"),
        with_head(path, other, DurableLedger.open, writes=True),
    ):
        pass
    path.unlink()
    with pytest.raises(LedgerError, match="Put the ledger back"), with_head(path, head, DurableLedger.open, writes=True):
        pass
    assert not path.exists() and not other.exists()
    # The first run of a site has neither.
    with with_head(path, other, DurableLedger.open, writes=True) as ledger:
        assert ledger.last.number == 1
    assert NotedHead.read(other).entries == 1


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * 4000,
        b'{"format":"eigenveil-head"}',
        b'{"format":"eigenveil-head","version":1,"head":"abc","entries":1,"time":""}',
        b'{"format":"eigenveil-head","version":1,"head":"%s","entries":0,"time":""}' % (b"0" * 64),
        b'{"format":"eigenveil-head","version":1,"head":"%s","entries":%s,"time":""}' % (b"0" * 64, b"9" * 30),
        b" " * 5000 + b'{"format":"eigenveil-head","version":1,"head":"%s","entries":1,"time":""}' % (b"0" * 64),
    ],
)
def test_what_is_no_head_is_refused(path: Path, head: Path, text: bytes) -> None:
    head.write_bytes(text)
    assert "is not the head of a ledger" in refusal("ledger", "show", path, "--require-head", head)
    with DurableLedger.open(path) as ledger:
        note_head(ledger, head)
    assert eigenveil("ledger", "show", path, "--require-head", head).exit_code == 0
    assert digits("heart") not in head.read_text()
