"""`eigenveil hub`, `site` and `node` before anything runs: what is refused, what is said, and what is not written."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands.command_tables import eigenveil, files_in, refusal
from commands.network.network_folders import COUNT, Folders
from eigenveil.commands import _consent as network_consent
from eigenveil.core.accounting import Budget
from eigenveil.errors import QuorumLost
from eigenveil.ledger.durable import DurableLedger, StudyBudget
from eigenveil.network.agents.star import HubAgent, SiteAgent
from eigenveil.network.certificates import pin_words
from eigenveil.show.agreement import facts_of, who_learns
from eigenveil.show.progress import StatusWriter

ME = "site 0"
REAL_RUN, REAL_HUB_RUN = SiteAgent.run, HubAgent.run


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


def alone(*_: object, **__: object) -> None:
    raise AssertionError("nothing may run")


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here connects to anyone, unless it says so itself."""
    monkeypatch.setattr(SiteAgent, "run", alone)
    monkeypatch.setattr(HubAgent, "run", alone)


def lines_of(ledger: Path) -> list[tuple[str, dict[str, Any]]]:
    with DurableLedger.reading(ledger) as opened:
        return [(line.kind, dict(line.body)) for line in opened.entries()]


def test_yes_needs_a_policy(folders: Folders) -> None:
    line = refusal(*folders.site(ME, "--yes", "--dataset", "patients"))
    assert line == "error: --yes needs --policy: without a person, consent must come from rules"
    assert "ledger.db" not in files_in(folders.of(ME))


def test_a_dry_run_says_everything_in_plain_words_and_writes_nothing(folders: Folders) -> None:
    before = files_in(folders.of(ME))
    policy = folders.policy(ME)
    done = eigenveil(*folders.site(ME, "--dry-run", "--dataset", "patients", "--policy", policy))
    assert (done.exit_code, done.stderr) == (0, "")
    said = done.stdout
    told_otherwise = {"Study", "Columns", "Who learns what", "Cost"}
    for fact in facts_of(folders.study):
        assert fact.label in told_otherwise or f"- {fact.label}: {fact.text}" in said
    assert who_learns(folders.study, whose="this") in said
    for place in folders.study.places:
        note = "this site" if place.name == ME else "pinned by your policy"
        named = "hub" if place.name == "hub" else f'"{place.name}"'
        assert f"Z {named}, {note}: {pin_words(place.pin)}" in said
    assert "NOT verified" not in said
    assert f"id {folders.study.params.id}, digest {folders.study.digest}" in said
    assert "- People: no column says whose row it is, so each row is taken for a different person." in said
    assert "of the 9 your policy allows, both at delta" in said
    assert "no other party was called" in said
    # How many people there are is private, and this is no terminal.
    assert not re.search(rf"{COUNT}|{COUNT:,}", said)
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", line) for line in said.splitlines())
    assert "\x1b" not in said
    assert files_in(folders.of(ME)) == before | {"policy.toml"}


def test_without_a_policy_nobody_is_pinned_and_nobody_there_is_asked(folders: Folders) -> None:
    done = eigenveil(*folders.site(ME, "--dataset", "patients"))
    assert done.exit_code == 2
    assert done.stdout.count("NOT verified: compare this fingerprint by telephone") == 3
    assert "nothing limits what all studies together may cost" in done.stdout
    assert "You have no policy" in done.stdout
    assert done.stderr.startswith("error: consent needs a person at a terminal, and there is none")
    kinds = [kind for kind, _ in lines_of(folders.of(ME) / "ledger.db")]
    assert "join" not in kinds


EXACT = {"privacy": {"epsilon": None, "delta": None, "no_privacy": True}}


@pytest.mark.parametrize(
    "sections, word, wrong, question",
    [
        ({}, "y", "", "Take part? [y/N]"),
        ({}, "yes", "ye", "Take part? [y/N]"),
        (EXACT, "no privacy", "yes", 'Type "no privacy" to take part'),
        (EXACT, "no privacy", "y", 'Type "no privacy" to take part'),
    ],
)
def test_consent_is_the_whole_word_and_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sections: dict[str, Any], word: str, wrong: str, question: str
) -> None:
    folders = Folders(tmp_path, **sections)
    asked: list[str] = []
    typed = [wrong, word]
    noted: list[str | None] = []

    def prompt(text: str, **_: object) -> str:
        asked.append(text)
        return typed.pop(0)

    async def run(self: SiteAgent, *_: object, note: str | None, **__: object) -> None:
        noted.append(note)
        raise ValueError("as far as this goes")

    monkeypatch.setattr(network_consent, "at_terminal", lambda: True)
    monkeypatch.setattr(network_consent, "_forget_typed", lambda: None)
    monkeypatch.setattr("typer.prompt", prompt)
    monkeypatch.setattr(SiteAgent, "run", run)
    declined = eigenveil(*folders.site(ME, "--dataset", "patients"))
    assert declined.exit_code == 1
    assert "Nothing was sent and nothing was charged." in declined.stdout
    lines = lines_of(folders.of(ME) / "ledger.db")
    assert ("note", {"words": "consent was asked for and not given"}) in lines
    assert not {"join", "commit"} & {kind for kind, _ in lines}
    agreed = eigenveil(*folders.site(ME))
    assert asked == [question] * 2
    assert agreed.stderr == "error: as far as this goes\n"
    assert noted[0] is not None
    assert noted[0].endswith(f"typed {word!r}")


def test_what_was_joined_is_gone_on_with_unasked_though_the_rows_have_changed(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str | None] = []

    async def run(self: SiteAgent, *_: object, note: str | None, **__: object) -> None:
        self.ledger.join(self.account, life=None if self.policy is None else self.policy.life)
        notes.append(note)
        raise ValueError("cut short")

    monkeypatch.setattr(SiteAgent, "run", run)
    policy = folders.policy(ME)
    first = folders.site(ME, "--policy", policy, "--yes", "--dataset", "patients")
    assert eigenveil(*first).stderr == "error: cut short\n"
    assert notes[0] is not None
    assert re.fullmatch(r"consent: --yes under the policy policy.toml, sha256 [0-9a-f]{64}", notes[0])
    # Nobody is there to be asked, and nobody has to be; the dataset is the one it was joined with.
    again = eigenveil(*folders.site(ME, "--policy", policy))
    assert again.stderr == "error: cut short\n"
    assert "and continues with it" in again.stdout
    assert "In total with this study: at most epsilon 4.481 of the 9" in again.stdout
    assert notes[1] is None
    line = eigenveil(*folders.site(ME, "--policy", policy, "--dataset", "others")).stderr
    assert "this site joined the study with 'patients', which cannot be changed" in line
    np.save(folders.of(ME) / "other.npy", folders.tables["site 1"])
    command = folders.site(ME, "--policy", policy, "--data", folders.of(ME) / "other.npy")
    # Whether a service goes on, and what its log has, must not show that rows have changed.
    changed = eigenveil(*command)
    assert changed.stderr == "error: cut short\n"
    assert "WARNING" not in changed.stdout
    # A person at a terminal is told and asked, and no entry says so.
    typed, asked = ["no", "yes"], list[str]()

    def prompt(text: str, **_: object) -> str:
        asked.append(text)
        return typed.pop(0)

    begin = StatusWriter.__init__

    def at_terminal(self: StatusWriter) -> None:
        begin(self)
        self.terminal = True

    monkeypatch.setattr(StatusWriter, "__init__", at_terminal)
    monkeypatch.setattr(network_consent, "at_terminal", lambda: True)
    monkeypatch.setattr(network_consent, "_forget_typed", lambda: None)
    monkeypatch.setattr("typer.prompt", prompt)
    before = lines_of(folders.of(ME) / "ledger.db")
    for seed, code in ((2, 1), (3, 2)):
        np.save(folders.of(ME) / "other.npy", folders.tables["site 1"] + seed)
        done = eigenveil(*command)
        assert done.exit_code == code
        told = " ".join(done.stdout.split())
        assert "WARNING: the rows or columns of 'patients' are not those last seen under this name" in told
    assert asked == ["Take part? [y/N]"] * 2 and notes[-1] is None
    assert lines_of(folders.of(ME) / "ledger.db") == before
    with DurableLedger.reading(folders.of(ME) / "ledger.db") as ledger:
        declined, agreed = [words for _, _, words in ledger.logged()]
    assert declined == "consent was asked for and not given" and agreed.endswith("typed 'yes'")


def test_a_refusing_policy_gives_all_reasons_in_the_log_of_the_ledger_too(folders: Folders) -> None:
    policy = folders.policy(ME, pins=False, more="[limits]\norganisations = 4\nrows = 5000\n")
    done = eigenveil(*folders.site(ME, "--policy", policy, "--yes", "--dataset", "patients"))
    assert (done.exit_code, done.stdout) == (2, "")
    first, *reasons = done.stderr.splitlines()
    assert first == "error: the policy of this site refuses the study. Nothing was sent:"
    kinds = [reason.split(":")[0] for reason in reasons]
    assert kinds[0] == "- [pins] hub"
    assert "- [limits] organisations" in kinds
    assert "- [limits] rows" in kinds
    assert len(reasons) == 5
    # Pins have digits of their own.
    assert not any(str(COUNT) in reason for reason in reasons if "[pins" not in reason)
    assert [kind for kind, _ in lines_of(folders.of(ME) / "ledger.db")] == ["book"]
    with DurableLedger.reading(folders.of(ME) / "ledger.db") as ledger:
        ((_, _, words),) = ledger.logged()
    assert words.startswith("the policy of this site refuses the study: [pins] hub")
    assert "[limits] rows" in eigenveil("ledger", "show", folders.of(ME) / "ledger.db", "--lines").stdout


def test_more_than_is_left_for_life_is_refused_before_anybody_is_asked(folders: Folders) -> None:
    path = folders.of(ME) / "ledger.db"
    with DurableLedger.open(path) as ledger:
        account = StudyBudget(
            study="1" * 64,
            title="earlier",
            dataset="patients",
            trust="masked",
            epsilon=8.0,
            delta=1e-6,
            mu=1.7,
            unit=folders.study.unit,
        )
        ledger.join(account, life=Budget(9.0, 1e-5))
    done = eigenveil(*folders.site(ME, "--policy", folders.policy(ME), "--yes"))
    assert done.exit_code == 1
    assert "study 'heart' does not fit in the total budget of dataset 'patients'" in done.stderr
    # A second name of its own would have a budget of its own: that is for people to decide, not for a file name.
    with DurableLedger.open(path) as ledger:
        ledger.declare("staff", b"other rows")
    line = refusal(*folders.site(ME, "--policy", folders.policy(ME), "--yes"))
    assert "--dataset is missing" in line
    assert f"{path} has 'patients', 'staff'"[:60] in line


def test_a_dataset_is_needed_at_first_and_no_ledger_is_made_without(folders: Folders) -> None:
    line = refusal(*folders.site(ME))
    assert line.startswith("error: --dataset is missing: this site's name for the people in the table")
    assert "has none yet" in line
    assert "ledger.db" not in files_in(folders.of(ME))


def test_rehearsals_are_asked_for_aloud(tmp_path: Path, folders: Folders) -> None:
    assert "leave --rehearsal out" in refusal(*folders.site(ME, "--rehearsal", "--dataset", "patients"))
    (tmp_path / "again").mkdir()
    seeded = Folders(tmp_path / "again", rehearsal={"seed": 3})
    assert "it protects no one" in refusal(*seeded.site(ME, "--dataset", "patients"))
    done = eigenveil(*seeded.site(ME, "--dataset", "patients", "--rehearsal", "--dry-run"))
    assert done.exit_code == 0
    assert "WARNING: A REHEARSAL: anyone who has the study file can subtract all noise. NO PERSON IN" in done.stdout
    assert 'dataset "patients" loses its guarantee for good' in done.stdout
    # Its policy must allow them as well.
    policy = seeded.policy(ME)
    refused = eigenveil(*seeded.site(ME, "--dataset", "patients", "--rehearsal", "--policy", policy, "--yes"))
    assert refused.exit_code == 2
    assert "- [agent] rehearsals" in refused.stderr


def test_a_lost_quorum_is_one_line_and_exit_code_3(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(self: HubAgent, *_: object, **__: object) -> None:
        raise QuorumLost(("site 1",), round_=1, stage="mean 1", answered=2, quorum=3)

    monkeypatch.setattr(HubAgent, "run", run)
    done = eigenveil(*folders.hub())
    assert done.exit_code == 3
    assert done.stderr == (
        "error: no answer from site 1 in round 2 (mean 1). 2 answered, and 3 are needed; run the same command again to resume "
        "from the transcript\n"
    )
    assert files_in(folders.of("hub")) >= {"heart.transcript"}


def test_a_second_process_on_the_same_study_is_refused(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SiteAgent, "run", REAL_RUN)
    with DurableLedger.open(folders.of(ME) / "ledger.db") as ledger, ledger.lock(folders.study.digest):
        command = folders.site(ME, "--policy", folders.policy(ME), "--yes", "--dataset", "patients")
        done = eigenveil(*command)
    assert done.exit_code == 2
    assert re.fullmatch(r"error: study [0-9a-f]{16} is run by another process here, .*\n", done.stderr)


def test_sites_that_do_not_join_are_named_and_nothing_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = Folders(tmp_path, network={"join_timeout": 1.0})
    monkeypatch.setattr(HubAgent, "run", REAL_HUB_RUN)
    done = eigenveil(*folders.hub())
    assert done.exit_code == 3
    assert done.stderr == (
        "error: site 0, site 1, site 2 did not join within 1 seconds, and no questions were asked; run the same command "
        "again when they are there\n"
    )
    assert "waiting for 3 to join, for at most 1 seconds" in done.stdout
