"""`eigenveil fit`: every format and option gives a model, every mistake one line and no file."""

import re
from pathlib import Path

import numpy as np
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from commands.command_tables import COUNT, FORMATS, NAMES, PRIVATE, arrow_table, eigenveil, files_in, refusal, rows, written
from eigenveil import BudgetExceeded, Model, PrivatePCA
from eigenveil.linalg import sines


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_gives_the_same_private_model(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "model.safetensors"
    # The last epsilon counts. At 8 the noise would have to be twenty times its size to round the components this far.
    result = eigenveil("fit", written(tmp_path, kind), "-k", 2, *PRIVATE, "--epsilon", 8, "-o", target)
    assert result.exit_code == 0, result.output
    model = Model.load(target)
    exact = PrivatePCA(2, epsilon=None).fit(rows())
    assert sines(model.subspace.basis, exact.subspace_.basis)[0] < 0.2
    assert model.guarantee.private
    assert model.columns == (NAMES if kind in {"csv", "parquet"} else None)


def zeros(folder: Path, count: int) -> Path:
    path = folder / "zeros.npy"
    np.save(path, np.zeros((count, 6)))
    return path


HOPELESS = ("-k", 2, *PRIVATE, "--epsilon", 0.01, "--neighbours", "zero-out")


def test_a_hopeless_budget_is_refused_where_nobody_can_be_asked(tmp_path: Path) -> None:
    source, target = zeros(tmp_path, 30), tmp_path / "model.safetensors"
    for command in (("fit", source), ("simulate", source, "--sites", 3)):
        said = refusal(*command, *HOPELESS, "-o", target)
        assert "With 30 people" in said and "Nothing was spent" in said and "--even-if-noise" in said
        assert not target.exists()
        assert eigenveil(*command, *HOPELESS, "--even-if-noise", "-o", target).exit_code == 0
        assert Model.load(target).warnings[0].startswith("With 30 people")
        target.unlink()


@pytest.mark.parametrize("sure", [True, False])
def test_on_a_terminal_a_hopeless_budget_is_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sure: bool) -> None:
    source, target = zeros(tmp_path, 30), tmp_path / "model.safetensors"
    asked: list[str] = []

    def confirm(question: str, **more: object) -> bool:
        asked.append(question)
        return sure

    monkeypatch.setattr("eigenveil.commands._ending.typer.confirm", confirm)
    monkeypatch.setattr("eigenveil.commands._ending.at_terminal", lambda: True)
    done = eigenveil("fit", source, *HOPELESS, "-o", target)
    assert len(asked) == 1
    assert (done.exit_code == 0) == target.exists() == sure


def test_the_model_lands_in_the_current_folder_unless_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert eigenveil("fit", written(tmp_path, "npy"), "-k", 1, *PRIVATE).exit_code == 0
    assert files_in(tmp_path) == {"people.npy", "model.safetensors"}


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_person_with_several_rows_is_protected_whole(tmp_path: Path, ending: str) -> None:
    source, target = tmp_path / f"visits.{ending}", tmp_path / "model.safetensors"
    table = arrow_table(rows(), patient=[f"p{i // 2}" for i in range(COUNT)], remark=["none"] * COUNT)
    (pc.write_csv if ending == "csv" else pq.write_table)(table, source)
    eigenveil("fit", source, "-k", 2, *PRIVATE, "--person", "patient", "--drop", "remark", "-o", target)
    model = Model.load(target)
    assert model.columns == NAMES
    assert "with all of their rows" in model.guarantee.unit


def test_options_reach_the_estimator(tmp_path: Path) -> None:
    source, target = written(tmp_path, "npy"), tmp_path / "model.safetensors"
    options = "--method power --oversample 1 --rounds 3 --neighbours replace-one --seed 7 "
    options += "--column-bounds -20,20 --origin 0,0,0,0,0 --mean-bound 30 --scale 1,1,1,1,2"
    result = eigenveil("fit", source, "-k", 2, *PRIVATE, *options.split(), "-o", target)
    assert result.exit_code == 0, result.output
    expected = PrivatePCA(
        2,
        epsilon=1,
        delta=1e-6,
        row_bound=12,
        column_bounds=(-20, 20),
        method="power",
        oversample=1,
        rounds=3,
        neighbours="replace-one",
        origin=np.zeros(5),
        mean_bound=30,
        scale=[1, 1, 1, 1, 2],
        random_state=7,
    ).fit(rows())
    assert np.array_equal(Model.load(target).components, expected.components_)
    assert Model.load(target).guarantee == expected.guarantee_


def test_no_privacy_is_exact_and_says_so(tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    result = eigenveil("fit", written(tmp_path, "npy"), "-k", 0.9, "--no-privacy", "--center", "none", "-o", target)
    assert "No privacy: " in result.stdout
    model, values = Model.load(target), np.linalg.svd(rows(), compute_uv=False)
    assert np.allclose(model.values, values[: len(model.values)])
    assert model.explained_variance_ratio.sum() >= 0.9


def test_force_overwrites(tmp_path: Path) -> None:
    source, target = written(tmp_path, "npy"), tmp_path / "model.safetensors"
    target.write_text("something else")
    assert "already exists. Overwrite it with --force" in refusal("fit", source, "-k", 1, *PRIVATE, "-o", target)
    assert target.read_text() == "something else"
    assert eigenveil("fit", source, "-k", 1, *PRIVATE, "-o", target, "--force").exit_code == 0
    assert len(Model.load(target).values) == 1


def test_columns_that_cannot_be_used_are_named_with_the_option_that_drops_them(tmp_path: Path) -> None:
    source, arguments = tmp_path / "people.csv", ("-k", 1, *PRIVATE, "-o", tmp_path / "model.safetensors")
    source.write_text("a,first name,b\n1,x,2\n3,y,4\n")
    assert "Leave it out with --drop 'first name', or turn text into 0 and 1 with --one-hot" in refusal("fit", source, *arguments)
    source.write_text("a,b,c\n1,,\n3,4,5\n")
    assert refusal("fit", source, *arguments).endswith("leave them out with --drop b,c")
    assert f"Did you mean {source}?" in refusal("fit", tmp_path / "poeple.csv", *arguments)


@pytest.mark.parametrize("header", ["0,1,2,3,4", "1,2,3,4,5", "2019,2020,2021,2022,2023", "a,b,c,d,5"])
def test_names_that_are_numbers_in_order_are_names(tmp_path: Path, header: str) -> None:
    source, target = tmp_path / "years.csv", tmp_path / "model.safetensors"
    np.savetxt(source, rows(), delimiter=",", header=header, comments="")
    assert eigenveil("fit", source, "-k", 2, *PRIVATE, "-o", target).exit_code == 0
    assert Model.load(target).columns == tuple(header.split(","))


def test_neither_the_count_nor_a_row_is_in_what_leaves(tmp_path: Path) -> None:
    secret = rows()
    secret[3] = [123456.789, 2.5, 3.5, 4.5, 5.5]
    source, target = written(tmp_path, "csv", secret), tmp_path / "model.safetensors"
    result = eigenveil("fit", source, "-k", 5, *PRIVATE, "-o", target)
    content = target.read_bytes()
    said = content.decode("latin-1") + result.output.replace(str(tmp_path), "")
    for number in (COUNT, COUNT - 1, 123456.789):
        # Digits inside a noisy number are chance.
        assert re.search(rf"(?<![\d.]){number}(?!\d)", said) is None
        for kind in (np.float64, np.float32, np.int64):
            assert kind(number).tobytes() not in content
    assert source.name.encode() not in content


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PrivatePCA, "fit", interrupted)
    source = written(tmp_path, "npy")
    result = eigenveil("fit", source, "-k", 2, *PRIVATE, "-o", tmp_path / "model.safetensors")
    assert result.exit_code == 130
    assert result.stderr == "interrupted; nothing was written\n"
    assert files_in(tmp_path) == {source.name}


def test_an_interrupt_after_writing_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("eigenveil.show.terminal.model_summary", interrupted)
    target = tmp_path / "model.safetensors"
    result = eigenveil("fit", written(tmp_path, "npy"), "-k", 2, *PRIVATE, "-o", target)
    assert result.exit_code == 130
    assert result.stderr == f"interrupted; {target} had been written\n"
    Model.load(target)


def test_a_budget_that_does_not_suffice_has_its_own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def poor(*_: object) -> None:
        raise BudgetExceeded("'this fit' needs mu = 1")

    monkeypatch.setattr(PrivatePCA, "fit", poor)
    line = refusal("fit", written(tmp_path, "npy"), "-k", 2, *PRIVATE, "-o", tmp_path / "m.safetensors", code=1)
    assert "needs mu = 1" in line


def test_a_long_list_is_shortened_and_the_message_is_whole(tmp_path: Path) -> None:
    source = tmp_path / "wide.csv"
    names = tuple(f"measurement{i}" for i in range(500))
    pc.write_csv(arrow_table(np.zeros((2, len(names))), names), source)
    line = refusal("fit", source, "-k", 2, *PRIVATE, "--drop", "none", "-o", tmp_path / "m.safetensors")
    assert "has no column 'none'" in line
    assert line.endswith("measurement19 and 480 more. Check --drop")


def test_an_unforeseen_error_shows_its_kind_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def surprised(*_: object) -> None:
        raise KeyError("123456.789")

    monkeypatch.setattr(PrivatePCA, "fit", surprised)
    line = refusal("fit", written(tmp_path, "npy"), "-k", 2, *PRIVATE, "-o", tmp_path / "m.safetensors")
    assert "(KeyError)" in line
    assert "123456" not in line


def test_what_only_a_released_count_tells_is_no_question(tmp_path: Path) -> None:
    """Once the count was released the budget is spent: a refusal would lose the result, and asking would fit twice."""
    source, target = tmp_path / "few.npy", tmp_path / "model.safetensors"
    # Hopeless for some hundred people, so whatever noise makes of these.
    np.save(source, np.random.default_rng(0).standard_normal((40, 60)))
    result = eigenveil("fit", source, "-k", 2, "--epsilon", 0.3, "--delta", 1e-6, "--row-bound", 12, "-o", target)
    assert result.exit_code == 0, result.output
    model = Model.load(target)
    assert any("this budget finds little but noise" in words for words in model.warnings), model.warnings
    assert model.guarantee.epsilon == 0.3
