"""Rows are not people: what the commands of a site say and refuse, and whole studies over TLS that protect patients."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from commands.command_tables import eigenveil, files_in, refusal
from commands.network.network_folders import COLUMNS, Folders, started
from eigenveil.commands import _consent as network_consent
from eigenveil.core.unit import Neighbours, PrivacyUnit
from eigenveil.ledger.durable import DurableLedger
from eigenveil.network.agents.star import SiteAgent
from eigenveil.show.progress import StatusWriter
from ledger.ledger_children import LIFE, account

ME = "site 0"
PERSON = "patient_id"
PATIENTS = PrivacyUnit("person", Neighbours.ADD_REMOVE, PERSON)


def visits(folders: Folders, name: str, *, patients: int, each: int) -> None:
    """Put the visits of these patients into the table of a site."""
    rng = np.random.default_rng(3)
    of_patient = rng.standard_normal((patients, 1, len(COLUMNS))) * [1.5, 0.9, 0.4, 0.2, 0.1]
    rows = (of_patient + 0.2 * rng.standard_normal((patients, each, len(COLUMNS)))).reshape(-1, len(COLUMNS))
    columns = dict(zip(COLUMNS, rows.T, strict=True)) | {PERSON: np.repeat(np.arange(patients), each)}
    pq.write_table(pa.table(columns), folders.of(name) / "people.parquet")


def hospital(folder: Path, *, patients: int = 200, each: int = 50, person: bool = False, **sections: Any) -> Folders:
    folder.mkdir(exist_ok=True)
    task = {**sections.pop("task", {}), **({"person": PERSON} if person else {})}
    folders = Folders(folder, task=task, **sections)
    for name in folders.names:
        visits(folders, name, patients=patients, each=each)
    return folders


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Answers of a person at a terminal; the questions take their places. Nothing is sent."""
    answers: list[str] = []
    asked: list[str] = []

    def prompt(text: str, **_: object) -> str:
        asked.append(text)
        return answers.pop(0)

    async def run(self: SiteAgent, *_: object, **__: object) -> None:
        answers[:] = asked
        raise ValueError("as far as this goes")

    begin = StatusWriter.__init__

    def at_terminal(self: StatusWriter) -> None:
        begin(self)
        self.terminal = True

    monkeypatch.setattr(StatusWriter, "__init__", at_terminal)
    monkeypatch.setattr(network_consent, "at_terminal", lambda: True)
    monkeypatch.setattr(network_consent, "_forget_typed", lambda: None)
    monkeypatch.setattr("typer.prompt", prompt)
    monkeypatch.setattr(SiteAgent, "run", run)
    return answers


def said(*arguments: object) -> str:
    return " ".join(eigenveil(*arguments).stdout.split())


def test_the_screen_counts_rows_unless_a_column_names_people(tmp_path: Path, typed: list[str]) -> None:
    rows, people = (hospital(tmp_path / str(person), person=person) for person in (False, True))
    typed += ["no", "no"]
    shown = said(*rows.site(ME, "--dataset", "visits"))
    assert "Rows: 10,000, each taken for a different person" in shown
    assert "Cost to each row: at most epsilon 5" in shown and "protected less than the stated cost" in shown
    assert not re.search(r"10,000 people|each person", shown)
    shown = said(*people.site(ME, "--dataset", "visits"))
    assert f'Rows: 10,000, from 200 people (column "{PERSON}")' in shown
    assert "Cost to each person: at most epsilon 5" in shown and "taken for a different" not in shown


def test_three_patients_are_not_a_hundred_people(tmp_path: Path) -> None:
    rules = '[limits]\nrows = 100\nunit = "person"\nperson = "patient_id"\n'
    for person, reason in ((True, "[limits] rows"), (False, "[limits] unit")):
        folders = hospital(tmp_path / str(person), patients=3, person=person)
        policy = folders.policy(ME, unit=False, more=rules)
        done = eigenveil(*folders.site(ME, "--policy", policy, "--yes", "--dataset", "visits"))
        assert done.exit_code == 2 and f"- {reason}" in done.stderr
        assert "join" not in {kind for kind, _ in entries(folders)}


@pytest.mark.parametrize("person", [False, True])
def test_yes_is_refused_where_the_policy_states_no_unit(tmp_path: Path, person: bool) -> None:
    folders = hospital(tmp_path, person=person)
    command = folders.site(ME, "--policy", folders.policy(ME, unit=False), "--yes", "--dataset", "visits")
    line = refusal(*command)
    keys = ['unit = "person"', f'person = "{PERSON}"'] if person else ['unit = "row"']
    assert all(key in line for key in keys) and "[limits]" in line
    assert "ledger.db" not in files_in(folders.of(ME))
    # What it says is what helps.
    folders.policy(ME, unit=False, more="[limits]\n" + "\n".join(keys) + "\n")
    assert eigenveil(*command, "--dry-run").exit_code == 0


def entries(folders: Folders) -> list[tuple[str, dict[str, Any]]]:
    with DurableLedger.reading(folders.of(ME) / "ledger.db") as ledger:
        return [(entry.kind, dict(entry.body)) for entry in ledger.entries()]


def test_the_same_table_under_another_name_is_refused_or_asked_about(tmp_path: Path, typed: list[str]) -> None:
    folders = hospital(tmp_path)
    site = folders.site(ME, "--policy", folders.policy(ME))
    assert eigenveil(*site, "--dataset", "visits", "--yes").stderr == "error: as far as this goes\n"
    before = entries(folders)
    # Nobody agreed to a second budget, and a log line is no consent.
    refused = eigenveil(*site, "--dataset", "trial 7", "--yes")
    assert refused.exit_code == 2 and "[datasets] aliases" in refused.stderr and "--dataset visits" in refused.stderr
    dry = said(*site, "--dataset", "trial 7", "--dry-run")
    assert 'WARNING: these rows are in the ledger as "visits" too.' in dry
    assert entries(folders) == before
    typed[:] = ["n"]
    declined = eigenveil(*site, "--dataset", "trial 7")
    assert declined.exit_code == 1 and "--dataset visits" in declined.stdout
    # The same entry as for a person who says no to the study: which question it was may depend on rows.
    assert entries(folders) == [*before, ("note", {"words": "consent was asked for and not given"})]
    typed[:] = ["y", "yes"]
    assert eigenveil(*site, "--dataset", "trial 7").stderr == "error: as far as this goes\n"
    assert typed[-2:] == ["Give the same people a second budget? [y/N]", "Take part? [y/N]"]
    folders.policy(ME, more='[datasets]\naliases = [["visits", "trial 7"]]\n')
    assert eigenveil(*site, "--dataset", "trial 7", "--yes").stderr == "error: as far as this goes\n"


def test_a_ledger_that_both_have_used_is_noticed_by_the_dataset(tmp_path: Path, typed: list[str]) -> None:
    folders = hospital(tmp_path, person=False)
    path = folders.of(ME) / "ledger.db"
    with DurableLedger.open(path) as ledger:
        for at, (party, dataset) in enumerate([("south", "visits"), (ME, "trial")]):
            ledger.join(replace(account(f"study {at}", dataset=dataset, mu=0.01), party=party), life=LIFE)
    path.chmod(0o600)
    site = folders.site(ME, "--policy", folders.policy(ME))
    refused = eigenveil(*site, "--dataset", "visits", "--yes")
    assert refused.exit_code == 2 and "has the dataset 'visits' of \"south\"" in refused.stderr
    assert eigenveil(*site, "--dataset", "trial", "--yes").stderr == "error: as far as this goes\n"


def test_the_ledger_of_another_site_is_noticed(tmp_path: Path, typed: list[str]) -> None:
    """Two sites call their dataset the same, and their ledgers were exchanged."""
    folders = hospital(tmp_path, person=False)
    path = folders.of(ME) / "ledger.db"
    with DurableLedger.open(path) as ledger:
        ledger.join(replace(account("an earlier study", dataset="visits", mu=0.01), party="south"), life=LIFE)
        ledger.finish(account("an earlier study").study)
    path.chmod(0o600)
    site = folders.site(ME, "--policy", folders.policy(ME), "--dataset", "visits")
    before = path.read_bytes()
    refused = eigenveil(*site, "--yes")
    assert refused.exit_code == 2 and 'is the ledger of "south"' in refused.stderr and "--ledger" in refused.stderr
    assert "WARNING: " in said(*site, "--dry-run") and path.read_bytes() == before
    typed[:] = ["n"]
    declined = eigenveil(*site)
    assert declined.exit_code == 1 and "Nothing was sent" in declined.stdout
    assert path.read_bytes() == before
    # A person says that it is the right one, and after that nobody is asked again.
    typed[:] = ["y", "yes"]
    assert eigenveil(*site).stderr == "error: as far as this goes\n"
    assert typed[-2:] == [f'Charge "{ME}" to this ledger? [y/N]', "Take part? [y/N]"]
    with DurableLedger.open(path) as ledger:
        ledger.join(replace(account("a later study", dataset="visits", mu=0.01), party=ME), life=LIFE)
    assert eigenveil(*site, "--yes").stderr == "error: as far as this goes\n"


@pytest.mark.parametrize(
    ("person", "columns"), [(True, COLUMNS), (False, COLUMNS[1:3]), (True, COLUMNS[::-2])], ids=["people", "few", "both"]
)
def test_the_same_rows_elsewhere_are_known_to_a_person_and_decide_nothing_else(
    tmp_path: Path, typed: list[str], person: bool, columns: tuple[str, ...]
) -> None:
    first = hospital(tmp_path / "a")
    ledger = ("--ledger", first.of(ME) / "ledger.db")
    site = first.site(ME, "--policy", first.policy(ME), *ledger)
    assert eigenveil(*site, "--dataset", "visits", "--yes").stderr == "error: as far as this goes\n"
    # Another file with the same rows: by person, or with other columns.
    second = hospital(tmp_path / "b", person=person, task={"columns": list(columns)})
    site = second.site(ME, "--policy", second.policy(ME), *ledger)
    typed[:] = ["n"]
    declined = eigenveil(*site, "--dataset", "trial 7")
    assert declined.exit_code == 1 and "--dataset visits" in declined.stdout
    # A service takes part, whichever rows it has: others can see whether it does.
    assert eigenveil(*site, "--dataset", "trial 7", "--yes").stderr == "error: as far as this goes\n"


@pytest.mark.slow
def test_patients_are_protected_over_tls_and_their_ledgers_count_nothing_else(tmp_path: Path) -> None:
    waits = {"deadline": 30.0, "retries": 1, "join_timeout": 120.0}
    folders = hospital(tmp_path / "people", person=True, network=waits)
    commands = {
        name: folders.site(name, "--policy", folders.policy(name), "--yes", "--dataset", "visits") for name in folders.names
    }
    parties = [(command, folders.of(name)) for name, command in commands.items()]
    with started((folders.hub(), folders.of("hub")), *parties) as running:
        for one in running:
            code, shown, error = one.ended()
            assert (code, error) == (0, "")
            assert not re.search(r"10,?000|\b200\b", shown)
    with DurableLedger.reading(folders.of(ME) / "ledger.db") as ledger:
        (state,) = ledger.datasets()
        charged = [entry.body["standing"]["unit"] for entry in ledger.entries() if entry.kind == "commit"]
        ledger.verify()
    assert state.unit == PATIENTS and state.spent > 0 and charged == [PATIENTS.values()] * len(charged)
    assert f'protects each person, named by the column "{PERSON}"' in said("ledger", "show", ledger_of(folders))
    assert f"named by the column '{PERSON}'" in (folders.of(ME) / "model.guarantee.txt").read_text()
    # The next study takes rows for people. Its cost cannot be added to what these patients have spent.
    other = hospital(tmp_path / "rows", privacy={"epsilon": 0.5})
    budget = "[budget]\nstudy_epsilon = 5.0\nlifetime_epsilon = 99.0\n"
    (other.of(ME) / "ledger.db").write_bytes(ledger_of(folders).read_bytes())
    ledger_of(other).chmod(0o600)
    line = refusal(*other.site(ME, "--policy", other.policy(ME, more=budget), "--yes"))
    assert "each row, taken for a different person" in line and PERSON in line and "cannot be added up" in line


def ledger_of(folders: Folders) -> Path:
    return folders.of(ME) / "ledger.db"
