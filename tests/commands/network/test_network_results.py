"""Where the results of a study go, what is never overwritten, and who may read them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from commands.command_tables import files_in, refusal
from commands.network.network_folders import COLUMNS, Folders
from eigenveil import Guarantee, Model
from eigenveil.commands._network import Results, of_this_study
from eigenveil.commands.transform import require_own_names
from eigenveil.data.rows import DenseRows
from eigenveil.network.agents.site_data import SiteData
from eigenveil.show.progress import StatusWriter

ME = "site 0"


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


def test_outputs_are_checked_before_anything_starts(folders: Folders) -> None:
    folder = folders.of(ME)
    for option, name, words in [
        ("-o", "model.txt", "--output must end in .safetensors"),
        ("--scores", "scores.txt", "--scores must end in .csv or .tsv or .parquet"),
        ("--scores", "nowhere/scores.csv", "the folder"),
        ("--scores", "people.parquet", "is also an input of this command"),
    ]:
        command = [*folders.site(ME, "--dataset", "patients"), option, str(folder / name)]
        assert words in refusal(*command)
    (folder / "model.guarantee.txt").write_text("mine")
    assert "the guarantee" in refusal(*folders.site(ME, "--dataset", "patients"))
    hub = folders.of("hub")
    assert "--report must end in .json" in refusal(*folders.hub("--report", hub / "report.txt"))
    (hub / "model.report.json").write_text("{}")
    assert "already exists. Overwrite it with --force" in refusal(*folders.hub())
    assert "heart.transcript" not in files_in(hub)


def test_what_cannot_be_carried_is_refused_before_anything_starts(folders: Folders) -> None:
    folder, command = folders.of(ME), folders.site(ME, "--dataset", "patients", "--passthrough")
    assert "has no column 'wrad'" in refusal(*command, "wrad")
    assert ".npy has numbers only" in refusal(*command, "ward", "--scores", folder / "scores.npy")
    elsewhere = ("--data", folder / "people.parquet", "--dask", "tcp://127.0.0.1:1", "--passthrough", "ward")
    assert "rows stay on the cluster" in refusal("site", folder / "heart.toml", *elsewhere)
    study = folder / "heart.toml"
    followed = ("site", study, "--follow", folder / "x.csv")
    assert "Leave out --passthrough" in refusal(*followed, "--passthrough", "ward")
    assert "Leave out --report, --page" in refusal(*followed, "--report", folder / "x.html", "--page", "0")
    assert "ledger.db" not in files_in(folder)


def test_a_table_without_names_has_the_columns_of_the_study(folders: Folders, tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    np.savetxt(path, folders.tables[ME], delimiter=",")
    found = SiteData.read(path, folders.study, header=False)
    assert not found.named
    (block,) = found.rows.blocks(1 << 20)
    np.testing.assert_allclose(block.values, folders.tables[ME])
    np.savetxt(path, folders.tables[ME][:, 1:], delimiter=",")
    with pytest.raises(ValueError, match="has 4 unnamed columns, and the study has 5"):
        SiteData.read(path, folders.study, header=False)
    assert "it needs a file" in refusal("site", folders.of(ME) / "heart.toml", "--data", "-", "--format", "csv")


def test_a_column_of_the_study_can_be_carried_too(folders: Folders) -> None:
    path = folders.of(ME) / "people.parquet"
    found = SiteData.read(path, folders.study, passthrough=["ward", COLUMNS[1]])
    assert found.passthrough.schema.names == ["ward", COLUMNS[1]]
    assert found.rows.shape[1] == len(COLUMNS)
    np.testing.assert_array_equal(found.passthrough[COLUMNS[1]].to_numpy(), folders.tables[ME][:, 1])
    with pytest.raises(ValueError, match="has the name of a column of scores"):
        require_own_names(["component2"], 2)


def test_the_model_of_this_very_study_may_be_written_again(folders: Folders) -> None:
    path, digest = folders.of("hub") / "model.safetensors", folders.study.digest
    assert not of_this_study(path, digest)
    model = a_model({"study_digest": digest})
    model.save(path)
    assert of_this_study(path, digest)
    assert not of_this_study(path, "0" * 64)
    path.write_bytes(b"something else")
    assert not of_this_study(path, digest)


def a_model(settings: dict[str, Any]) -> Model:
    values = np.array([2.0, 1.0])
    mean = np.full(5, 0.5)
    guarantee = Guarantee.none("a test")
    return Model(
        components=np.eye(5)[:2],
        mean=mean,
        values=values,
        explained_variance=values,
        explained_variance_ratio=values / 4,
        guarantee=guarantee,
        columns=COLUMNS,
        settings=settings,
    )


def test_results_are_named_by_study_and_site_and_scores_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    results = Results.named(Path("elsewhere/heart.toml"), "St. Mary's", None, None)
    rows = np.arange(15.0).reshape(3, 5)
    results.write(a_model({}), DenseRows(rows), pa.table({"ward": ["007", "8", None]}))
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()}
    assert modes == {
        "heart-St.-Mary-s.safetensors": "0o644",
        "heart-St.-Mary-s.guarantee.txt": "0o644",
        "heart-St.-Mary-s-scores.csv": "0o600",
    }
    assert results.scores is not None
    header, *lines = results.scores.read_text().splitlines()
    assert header == '"ward","component1","component2"'
    assert [line.split(",")[0] for line in lines] == ['"007"', '"8"', ""]
    np.testing.assert_array_equal([[float(x) for x in line.split(",")[1:]] for line in lines], rows[:, :2] - 0.5)
    assert results.guarantee.read_text() == "No privacy: a test.\n"


def test_a_party_reads_what_its_model_says_of_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """Peers have no hub that would say it, and a site cannot see the hub's terminal."""
    warned = "The search for the mean ended at its edge."
    model = replace(a_model({"noise_floor": 9.0, "bound_usage": 0.25, "clipped_fraction": 0.5}), warnings=(warned,))
    Results.named(Path("heart.toml"), ME, None, None).show(StatusWriter(), model, role="peer")
    said = capsys.readouterr().out
    places = [said.index(words) for words in ("Nothing stands out", "bound usage: 0.25", "clipped share: about 50%", warned)]
    assert places == sorted(places)
