"""`eigenveil ledger`: what it shows is what the ledger says, what it exports can be checked, and looking changes nothing."""

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from eigenveil.commands.ledger import COMMAND
from eigenveil.core.accounting import epsilon_of
from eigenveil.core.ledger import Charge
from eigenveil.ledger.durable import DurableLedger
from ledger.ledger_children import LIFE, account, digits

SAID = b"what was said, byte for byte"
PRINT = b"digest of the rows"
REASON = "refused: too few rows"


def run(*arguments: object, typed: str | None = None) -> Result:
    result = CliRunner().invoke(COMMAND.app, [str(a) for a in arguments], env={"COLUMNS": "140"}, input=typed)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def refusal(*arguments: object, typed: str | None = None) -> str:
    result = run(*arguments, typed=typed)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def files_in(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "ledger.db"
    with DurableLedger.open(found) as ledger_file:
        ledger_file.declare("patients", PRINT)
        ledger_file.join(account("heart", mu=0.2, extra_delta=1e-9), life=LIFE)
        ledger_file.commit(digits("heart"), 0, came=b"ask", replies=[SAID], charges=[Charge("sum", 0.1)])
        ledger_file.join(account("hearts and lungs", mu=0.1), life=LIFE)
        ledger_file.note(digits("heart"), "consent given")
        ledger_file.log(digits("heart"), REASON)
        ledger_file.join(account("rehearsal", mu=float("inf"), dataset="toys"), life=None)
    return found


def test_show_says_what_is_spent_reserved_and_allowed(path: Path) -> None:
    before = files_in(path.parent)
    text = run("show", path).stdout
    patients, toys = text.split("dataset toys")
    spent = re.search(r"spent +epsilon ([\d.]+) at delta 1e-05", patients)
    assert spent is not None
    assert 0 <= float(spent[1]) - epsilon_of(0.1, 1e-5 - 1e-9) < 1e-4
    assert "by 2 open studies" in patients
    assert "epsilon 2 at delta 1e-05 is allowed" in patients
    assert "VOID" not in patients
    assert digits("heart")[:16] in patients
    assert "VOID: a study without privacy was joined" in toys
    assert files_in(path.parent) == before


def test_show_of_one_dataset_with_its_entries(path: Path) -> None:
    text = run("show", path, "--dataset", "patients", "--lines", "--delta", "1e-4").stdout
    assert "at delta 0.0001" in text
    assert "toys" not in text
    assert "sum: mu = 0.1" in text
    assert "consent given" in text
    entries, alone = text.split("For this site alone. This may depend on rows, and is in no export:")
    assert REASON in alone and REASON not in entries
    assert "these are: 'patients', 'toys'" in refusal("show", path, "--dataset", "people")
    assert "--delta must lie" in refusal("show", path, "--delta", "2")


def test_show_of_a_ledger_without_studies(tmp_path: Path) -> None:
    DurableLedger.open(tmp_path / "new.db").close()
    assert "nothing was spent" in run("show", tmp_path / "new.db").stdout


def test_looking_while_a_site_runs(path: Path) -> None:
    with DurableLedger.open(path) as ledger_file:
        ledger_file.note(digits("heart"), "at work")
        before = files_in(path.parent)["ledger.db"]
        assert "at work" in run("show", path, "--lines").stdout
        assert ledger_file.head in run("verify", path).stdout
        assert files_in(path.parent)["ledger.db"] == before


def test_verify_prints_the_head_and_checks_a_noted_one(path: Path) -> None:
    with DurableLedger.reading(path) as ledger_file:
        head, lines = ledger_file.head, list(ledger_file.entries())
    before = files_in(path.parent)
    text = run("verify", path).stdout
    assert f"{len(lines)} entries: every hash and every balance is right" in text
    assert f"head {head}" in text
    assert run("verify", path, "--head", lines[3].hash.upper()).exit_code == 0
    assert "entries has the noted head" in refusal("verify", path, "--head", "0" * 64)
    assert "64 hexadecimal digits" in refusal("verify", path, "--head", "3f0c")
    assert files_in(path.parent) == before


def test_verify_names_the_first_bad_entry(path: Path) -> None:
    data = path.read_bytes()
    assert data.count(b"consent given") == 1
    path.write_bytes(data.replace(b"consent given", b"consent taken"))
    assert "entry 5 (note) was changed" in refusal("verify", path)


def test_an_export_has_public_facts_and_can_be_checked(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "ledger.jsonl"
    with DurableLedger.open(path) as ledger_file:
        secret = ledger_file.join(account("heart", mu=0.2, extra_delta=1e-9), life=LIFE).secret
        head = ledger_file.head
    assert "6 entries and the head" in run("export", path, "-o", target).stdout
    data = target.read_bytes()
    for private in (SAID, PRINT, PRINT.hex().encode(), secret, secret.hex().encode(), REASON.encode()):
        assert private not in data
    *lines, last = [json.loads(line) for line in data.splitlines()]
    assert last["head"] == lines[-1]["hash"] == head
    assert lines[2]["body"]["charges"] == [["sum", 0.1]]
    assert f"head {head}" in run("verify", target, "--head", head).stdout
    assert "already exists" in refusal("export", path, "-o", target)
    assert run("export", path, "-o", target, "--force").exit_code == 0
    assert "must end in .jsonl" in refusal("export", path, "-o", tmp_path / "ledger.txt")


def test_an_export_that_was_changed_is_found(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "ledger.jsonl"
    run("export", path, "-o", target)
    texts = target.read_text().splitlines(keepends=True)
    for changed, words in (
        ([*texts[:2], texts[2].replace("0.1]", "0.01]"), *texts[3:]], "entry 3"),
        ([*texts[:3], *texts[4:]], "entry 4 is missing"),
        (texts[:-1], "no head"),
        (texts[:-2], "no head"),
        ([*texts[:-2], texts[-1]], "entries are missing"),
        ([*texts, texts[0]], "more after its head"),
        (["[1, 2]\n"], "line 1 of the export is not an entry"),
        (["{\n"], "not JSON"),
        ([], "no head"),
    ):
        target.write_text("".join(changed))
        assert words in refusal("verify", target)


def test_close_explains_asks_and_frees_what_was_reserved(path: Path) -> None:
    before = files_in(path.parent)
    asked = run("close", path, "heart", typed="n\n")
    assert asked.exit_code == 1
    assert "spent, and stays spent: epsilon" in asked.stdout
    assert "Nothing was changed." in asked.stdout
    assert "--yes closes it" in refusal("close", path, "heart", typed="")
    with DurableLedger.reading(path) as ledger_file:
        assert [study.state for study in ledger_file.studies()] == ["open"] * 3
    assert files_in(path.parent).keys() == before.keys()
    assert run("close", path, "heart", typed="y\n").exit_code == 0
    with DurableLedger.reading(path) as ledger_file:
        assert [study.state for study in ledger_file.studies()] == ["abandoned", "open", "open"]
        assert ledger_file.datasets()[0].counted == pytest.approx((0.1**2 + 0.1**2) ** 0.5)
    assert "no open study is called 'heart'" in refusal("close", path, "heart", "--yes")


def test_close_takes_the_first_digits_if_they_mean_one_study(path: Path) -> None:
    assert run("close", path, digits("heart")[:10], "--yes").exit_code == 0
    with DurableLedger.open(path) as ledger_file:
        assert ledger_file.studies()[0].state == "abandoned"
        for name in ("first", "second"):
            ledger_file.join(replace(account(name, mu=0.01), title="twins"), life=LIFE)
    assert "'twins' fits several open studies" in refusal("close", path, "twins", "--yes")
    assert run("close", path, digits("second")[:10], "--yes").exit_code == 0
    assert "no open study" in refusal("close", path, "", "--yes")


def test_close_leaves_a_study_that_is_running_alone(path: Path) -> None:
    with DurableLedger.open(path) as ledger_file, ledger_file.lock(digits("heart")):
        assert "is run by another process" in refusal("close", path, "heart", "--yes")
        assert ledger_file.studies()[0].state == "open"


@pytest.mark.parametrize("command", [("show",), ("verify",), ("export", "-o", "x.jsonl"), ("close", "heart")])
def test_a_ledger_that_is_not_there_or_open_to_others(path: Path, command: tuple[str, ...]) -> None:
    verb, *more = command
    none = path.with_name("none.db")
    assert "does not exist" in refusal(verb, none, *more)
    assert not none.exists()
    path.chmod(0o644)
    assert "chmod 600" in refusal(verb, path, *more)
    assert not Path("x.jsonl").exists()


# Everything is loaded before the process becomes somebody who may read the ledger and not write beside it.
AS_NOBODY = """
import os, sys
from pathlib import Path
from eigenveil.ledger.durable import DurableLedger, LedgerError
from eigenveil.core.accounting import Budget
Budget(1.0, 1e-6).mu
os.setuid(65534)
try:
    with DurableLedger.reading(Path(sys.argv[1])) as seen:
        print(seen.verify().number)
except LedgerError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
def test_a_ledger_in_a_folder_that_cannot_be_written_to() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, path = Path(name), Path(name) / "ledger.db"
        with DurableLedger.open(path) as ledger_file:
            ledger_file.join(account(), life=LIFE)
            ledger_file.note(digits("heart"), "in the file")
        folder.chmod(0o755)
        os.chown(path, 65534, 65534)

        def seen() -> str:
            command = [sys.executable, "-c", AS_NOBODY, str(path)]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

        assert seen() == "3"
