"""`fit`, `bounds` and `spectrum` with --ledger: one budget for good, in the same file as a site's."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands.command_tables import PRIVATE, eigenveil, refusal, rows, written
from eigenveil import Model
from eigenveil.core.accounting import Budget
from eigenveil.core.unit import Neighbours, PrivacyUnit
from eigenveil.data.rows import FILL_PUBLICLY
from eigenveil.estimators import PrivatePCA
from eigenveil.ledger.durable import DatasetState, DurableLedger

IN_OPTIONS = FILL_PUBLICLY.replace("{missing=counts}", "--missing counts")

LIFE = ("--dataset", "people", "--lifetime-epsilon", "1.6", "--lifetime-delta", "1e-6")


def fit(table: Path, ledger: Path, *more: object, name: str = "model") -> Any:
    target = table.parent / f"{name}.safetensors"
    return eigenveil("fit", table, "-k", 2, *PRIVATE, "--ledger", ledger, "-o", target, "--force", *more)


def refused(table: Path, ledger: Path, *more: object, code: int = 2) -> str:
    target = table.parent / "refused.safetensors"
    line = refusal("fit", table, "-k", 2, *PRIVATE, "--ledger", ledger, "-o", target, *more, code=code)
    assert not target.exists()
    return line


def state(ledger: Path) -> DatasetState:
    with DurableLedger.reading(ledger) as opened:
        opened.verify()
        (found,) = opened.datasets()
    return found


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return written(tmp_path, "csv")


def test_fits_add_up_until_the_budget_is_used_up(table: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    assert fit(table, ledger, *LIFE).exit_code == 0
    assert ledger.stat().st_mode & 0o077 == 0
    # The name and the budget are in the ledger now.
    assert fit(table, ledger).exit_code == 0
    found = state(ledger)
    each = Budget(1.0, 1e-6).mu
    assert found.name == "people"
    assert found.life == Budget(1.6, 1e-6)
    assert found.spent == pytest.approx(math.hypot(each, each), rel=1e-6)
    assert found.counted == pytest.approx(found.spent)
    assert found.unit == PrivacyUnit("row", Neighbours.ADD_REMOVE)
    before = ledger.read_bytes()
    line = refused(table, ledger, code=1)
    assert "error: the release 'fit, refused.safetensors' does not fit in the total budget" in line
    # Nobody but this analyst takes part.
    assert "study" not in line and "studies" not in line
    assert ledger.read_bytes() == before
    assert state(ledger).open == 0
    # It says what to type next: the largest epsilon that is left, and no more.
    left = float(line.split("--epsilon ")[1])
    refused(table, ledger, "--epsilon", left + 0.002, code=1)
    assert fit(table, ledger, "--epsilon", left).exit_code == 0


def test_bounds_and_spectra_are_charged_to_the_same_budget(table: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    small = ("--epsilon", 0.3, "--delta", "1e-6", "--ledger", ledger)
    assert eigenveil("bounds", table, *small, *LIFE, "-o", tmp_path / "bounds.json").exit_code == 0
    done = eigenveil("spectrum", table, *small, "--bounds", tmp_path / "bounds.json", "-o", tmp_path / "spectrum.json")
    assert done.exit_code == 0, done.output
    mu = Budget(0.3, 1e-6).mu
    found = state(ledger)
    assert mu < found.spent <= math.hypot(mu, mu) * (1 + 1e-9)
    assert fit(table, ledger, "--bounds", tmp_path / "bounds.json").exit_code == 2
    with DurableLedger.reading(ledger) as opened:
        assert [study.account.title for study in opened.studies()] == ["bounds, people.csv", "spectrum, people.csv"]


def test_another_kind_is_refused_and_leaves_no_trace(table: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    assert fit(table, ledger, *LIFE).exit_code == 0
    before = ledger.read_bytes()
    assert "Such costs cannot be added up" in refused(table, ledger, "--neighbours", "zero-out")
    assert "Such costs cannot be added up" in refused(table, ledger, "--person", "salt")
    assert "was fixed before" in refused(table, ledger, "--lifetime-epsilon", 9)
    for other in ("People", "others"):
        assert "second budget" in refused(table, ledger, "--dataset", other, "--lifetime-epsilon", 9)
    assert ledger.read_bytes() == before


def test_what_is_needed_at_the_first_use(table: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    assert "--dataset is missing" in refused(table, ledger, "--lifetime-epsilon", 2)
    assert not ledger.exists()
    assert "--lifetime-epsilon is missing" in refused(table, ledger, "--dataset", "people")
    assert "is for --ledger" in refusal("fit", table, "-k", 2, *PRIVATE, "--dataset", "people")
    assert "protects no one" in refused(table, ledger, *LIFE, "--seed", 1)
    line = refusal("fit", table, "-k", 2, "--no-privacy", "--ledger", ledger, *LIFE)
    assert "--no-privacy has none" in line
    for wrong in ("0", "nan", "inf"):
        assert "--lifetime-epsilon must be positive" in refused(table, ledger, "--dataset", "a", "--lifetime-epsilon", wrong)
    assert "--lifetime-delta must lie" in refused(table, ledger, "--dataset", "a", "--lifetime-epsilon", 1, "--lifetime-delta", 1)


def test_a_table_that_cannot_be_read_leaves_no_ledger(tmp_path: Path) -> None:
    spoilt = rows()
    spoilt[3, 1] = np.nan
    ledger = tmp_path / "ledger.db"
    assert IN_OPTIONS in refused(written(tmp_path, "npy", spoilt), ledger, *LIFE)
    assert not ledger.exists()


def test_a_fit_that_fails_keeps_its_charges_and_frees_the_rest(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = tmp_path / "ledger.db"
    real = PrivatePCA.fit

    def fails(self: PrivatePCA, *given: Any) -> None:
        real(self, *given)
        raise ValueError("the disk is full")

    monkeypatch.setattr(PrivatePCA, "fit", fails)
    assert "the disk is full" in refused(table, ledger, *LIFE)
    found = state(ledger)
    assert found.spent == pytest.approx(Budget(1.0, 1e-6).mu, rel=1e-6)
    assert (found.open, found.closed) == (0, 1)
    # Parameters that are refused cost nothing.
    monkeypatch.setattr(PrivatePCA, "fit", real)
    assert "at most the number of columns" in refused(table, ledger, "-k", 9)
    assert state(ledger).spent == found.spent


def test_an_interrupt_says_what_was_charged(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line that follows says that nothing was written, which is true of the model alone."""
    ledger, real = tmp_path / "ledger.db", PrivatePCA.fit

    def interrupted(self: PrivatePCA, *given: Any) -> None:
        real(self, *given)
        raise KeyboardInterrupt

    monkeypatch.setattr(PrivatePCA, "fit", interrupted)
    done = fit(table, ledger, *LIFE)
    assert done.exit_code == 130
    assert "people has spent epsilon 1 of 1.6" in done.stderr
    assert state(ledger).spent == pytest.approx(Budget(1.0, 1e-6).mu, rel=1e-6)


def test_charges_are_on_disk_before_the_model_is(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from eigenveil.model import Model

    ledger = tmp_path / "ledger.db"
    seen = []

    def saved(self: Model, path: Any) -> None:
        seen.append(state(ledger))

    monkeypatch.setattr(Model, "save", saved)
    fit(table, ledger, *LIFE)
    assert [(one.open, one.closed) for one in seen] == [(0, 1)]
    assert seen[0].spent > 0


def test_people_are_named_by_their_column(tmp_path: Path) -> None:
    table = tmp_path / "visits.csv"
    lines = [f"{value[0]},{value[1]},p{at // 2}" for at, value in enumerate(rows().tolist())]
    table.write_text("\n".join(["age,income,who", *lines]) + "\n")
    ledger = tmp_path / "ledger.db"
    assert fit(table, ledger, "--person", "who", *LIFE).exit_code == 0
    assert state(ledger).unit == PrivacyUnit("person", Neighbours.ADD_REMOVE, "who")
    shown = eigenveil("ledger", "show", ledger).stdout
    assert 'named by the column "who"' in shown


def test_a_stream_is_charged_whole_before_anything_leaves(table: Path, tmp_path: Path) -> None:
    ledger, target = tmp_path / "ledger.db", tmp_path / "stream.safetensors"
    states = tmp_path / "stream.state"
    command = ("stream", table, "-k", 2, *PRIVATE, "--ledger", ledger, "-o", target, "--state", states)
    spent: list[float] = []
    save = Model.save

    def noted(model: Model, path: Path) -> None:
        spent.append(state(ledger).spent)
        save(model, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Model, "save", noted)
        done = eigenveil(*command, "--sync-every", 500, *LIFE)
    assert done.exit_code == 0, done.output
    assert "people has spent epsilon 1 of 1.6" in done.stdout
    # On disk before the first of three models, and once for all of them.
    whole = Budget(1.0, 1e-6).mu
    assert spent == [pytest.approx(whole)] * 3
    found = state(ledger)
    assert found.spent == pytest.approx(whole)
    assert found.open == 0
    assert found.unit == PrivacyUnit("row", Neighbours.ZERO_OUT)
    # A stream that goes on has its budget already.
    again = ("stream", table, "--resume", "--state", states, "-o", target, "--force")
    for named in ((), ("--ledger", ledger)):
        assert eigenveil(*again, *named).exit_code == 0
        assert state(ledger).spent == found.spent
    assert "does not exist" in refusal(*again, "--ledger", tmp_path / "none.db")
    other = ("stream", table, "-k", 2, *PRIVATE, "--epsilon", 0.1, "--ledger", tmp_path / "new.db", *LIFE)
    assert eigenveil(*other, "-o", tmp_path / "new.safetensors").exit_code == 0
    assert "is not the ledger of the stream in the state" in refusal(*again, "--ledger", tmp_path / "new.db")
    more = (*command[:-1], tmp_path / "other.state", "--force", "--epsilon", 1.4)
    assert "does not fit" in refusal(*more, code=1)
    # Rows are protected as in a stream, so a fit that hides their number is of another kind.
    assert "add-remove" in refused(table, ledger, "--epsilon", 0.1)


def test_a_stream_that_releases_nothing_and_keeps_nothing_costs_nothing(table: Path, tmp_path: Path) -> None:
    ledger, target = tmp_path / "ledger.db", tmp_path / "stream.safetensors"
    with table.open("a") as file:
        file.write("1,2,3,4,x\n")
    command = ("stream", table, "-k", 2, *PRIVATE, "--ledger", ledger, *LIFE, "-o", target)
    refusal(*command, "--no-state")
    assert (state(ledger).spent, state(ledger).open) == (0, 0)
    # A state could release later what it holds.
    refusal(*command)
    assert state(ledger).spent == pytest.approx(Budget(1.0, 1e-6).mu)
    assert state(ledger).open == 0
