"""Where a plan gets its spectrum: every public source gives the spectrum it stands for, and no value is ever shown."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv as pc
import pytest

from commands.command_tables import FORMATS, arrow_table, eigenveil, rows, written
from commands.plan.plan_runs import ASKED, Oracle, planned, refused
from eigenveil import PrivatePCA
from eigenveil.plan.spectrum import Spectrum


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> Oracle:
    return Oracle().install(monkeypatch)


def spectrum_of(oracle: Oracle, *arguments: object) -> Spectrum:
    result = planned(*ASKED, *arguments)
    assert result.exit_code == 0, result.output
    assert oracle.facts is not None
    return oracle.facts.spectrum


def variances(table: Any) -> Any:
    """Slow and obvious: the variances of the rows along their own principal directions."""
    centred = table - table.mean(axis=0)
    return np.linalg.eigvalsh(centred.T @ centred / len(table))[::-1]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_public_table_of_any_format_gives_its_exact_spectrum(oracle: Oracle, tmp_path: Path, kind: str) -> None:
    found = spectrum_of(oracle, "--public-data", written(tmp_path, kind), "--row-bound", 50)
    assert found.values == pytest.approx(variances(rows()) / 50**2, rel=1e-9)
    assert found.spread > 0


def test_a_public_table_is_clipped_and_scaled_as_the_fit_will(oracle: Oracle, tmp_path: Path) -> None:
    source = tmp_path / "public.csv"
    pc.write_csv(arrow_table(rows(), remark=["none"] * len(rows())), source)
    units = np.array([5, 3, 1, 0.5, 0.25])
    scaled = rows() / units
    moved = scaled - scaled.mean(axis=0)
    clipped = moved * np.minimum(1, 2 / np.linalg.norm(moved, axis=1))[:, None]
    options = ("--drop", "remark", "--scale", "5,3,1,0.5,0.25", "--row-bound", 2)
    found = spectrum_of(oracle, "--public-data", source, *options)
    assert found.values == pytest.approx(np.linalg.eigvalsh(clipped.T @ clipped / len(clipped))[::-1] / 4, rel=1e-6)


def test_a_sparse_table_is_scaled_too(oracle: Oracle, tmp_path: Path) -> None:
    found = spectrum_of(oracle, "--public-data", written(tmp_path, "sparse.npz"), "--scale", "5,3,1,0.5,0.25", "--row-bound", 99)
    assert found.values == pytest.approx(variances(rows() / [5, 3, 1, 0.5, 0.25]) / 99**2, rel=1e-6)


def test_without_a_bound_rows_fill_what_is_said_and_that_is_a_guess(oracle: Oracle, tmp_path: Path) -> None:
    source = written(tmp_path, "npy")
    assert spectrum_of(oracle, "--public-data", source).bound_usage == pytest.approx(0.5)
    assert spectrum_of(oracle, "--public-data", source, "--bound-usage", 0.3).bound_usage == pytest.approx(0.3)
    guessed = "as usual for a bound that is found privately"
    assert guessed in " ".join(planned(*ASKED, "--public-data", source).stdout.split())
    for said in (("--bound-usage", 0.5), ("--row-bound", 40)):
        assert json.loads(planned(*ASKED, "--public-data", source, *said, "--json").stdout)["guessed"] == []


TEXTS = {
    "list.json": "[4, 1, 0.5]",
    "lines.txt": "# of a paper\n4\n1\n\n0.5\n",
    "named.csv": "variance\n4\n1\n0.5\n",
    "row.csv": "4,1,0.5\n",
}


@pytest.mark.parametrize("name", TEXTS)
def test_variances_come_in_any_plain_form(oracle: Oracle, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(TEXTS[name])
    found = spectrum_of(oracle, "--spectrum", tmp_path / name, "--row-bound", 5)
    assert found.values == pytest.approx([0.16, 0.04, 0.02])
    assert found.spread > 0
    wider = spectrum_of(oracle, "--spectrum", tmp_path / name, "--row-bound", 5, "-d", 5)
    assert wider.values == pytest.approx([0.16, 0.04, 0.02, 0, 0])
    words = " ".join(planned(*ASKED, "--spectrum", tmp_path / name, "--row-bound", 5, "-d", 5).stdout.split())
    assert "that the list describes clipped rows" in words
    assert "that the 2 directions beyond the list have no variance" in words


def test_a_released_spectrum_is_taken_as_it_is(oracle: Oracle, tmp_path: Path) -> None:
    source = tmp_path / "spectrum.json"
    released = Spectrum(values=np.array([0.3, 0.1, 0.05]), source="released with epsilon = 0.1", spread=0.1, error=0.004)
    source.write_text(json.dumps(released.to_json()))
    found = json.loads(planned(*ASKED, "--spectrum", source, "--json").stdout)
    assert found["spectrum"] == released.to_json()
    assert found["guessed"] == []
    assert any("released with epsilon = 0.1" in words for words in found["assumed"])


def test_an_earlier_model_lends_its_variances(oracle: Oracle, tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    fitted = PrivatePCA(3, epsilon=None).fit(rows())
    fitted.save(target)
    found = spectrum_of(oracle, "--from-model", target, "--row-bound", 50)
    exact = variances(rows()) * len(rows()) / (len(rows()) - 1)
    assert found.values[:3] == pytest.approx(exact[:3] / 50**2, rel=1e-9)
    # The model does not say how the rest is spread, only how much there is.
    assert found.values.sum() == pytest.approx(exact.sum() / 50**2, rel=1e-9)
    assert found.spread > 0


@pytest.fixture
def bounds(tmp_path: Path) -> Path:
    """What `eigenveil bounds` wrote of a table."""
    target = tmp_path / "bounds.json"
    result = eigenveil("bounds", written(tmp_path, "npy"), "--no-privacy", "-o", target)
    assert result.exit_code == 0, result.output
    return target


def test_released_bounds_give_the_row_bound_and_the_norms(oracle: Oracle, bounds: Path) -> None:
    assert planned(*ASKED, "--explained", 0.6, "--bounds", bounds).exit_code == 0
    told = json.loads(bounds.read_text())
    assert oracle.facts is not None and oracle.facts.norms is not None
    assert oracle.facts.row_bound == told["row_bound"] and oracle.facts.dim == told["dim"]
    assert oracle.facts.denominator == "all rows"
    seen = {one["clipped"]: one["bound"] for one in told["candidates"] if one["clipped"] > 0}
    assert dict(zip(oracle.facts.norms.beyond, oracle.facts.norms.norms, strict=True)) == seen
    (chosen,) = (one for one in told["candidates"] if one["bound"] == told["row_bound"])
    assert oracle.facts.spectrum.bound_usage == pytest.approx(chosen["bound_usage"])


def test_bounds_are_refused_with_what_contradicts_them(bounds: Path) -> None:
    assert "--bounds has the row bound: leave out --row-bound" in refused(*ASKED, "--bounds", bounds, "--row-bound", 3)
    assert "--bounds has the row bound" in refused(*ASKED, "--bounds", bounds, "--scale", "private")
    assert "--features is 9" in refused(*ASKED, "-d", 9, "--bounds", bounds)
    bounds.write_text("{}")
    assert "its format must be" in refused(*ASKED, "--bounds", bounds)
    assert "does not exist" in refused(*ASKED, "--bounds", bounds.parent / "none.json")


def test_a_public_table_and_a_model_tell_norms_too(oracle: Oracle, tmp_path: Path) -> None:
    source = written(tmp_path, "npy")
    assert planned(*ASKED, "--public-data", source, "--row-bound", 50).exit_code == 0
    norms = np.linalg.norm(rows() - rows().mean(axis=0), axis=1)
    assert oracle.facts is not None and oracle.facts.norms is not None
    for share, norm in zip(oracle.facts.norms.beyond, oracle.facts.norms.norms, strict=True):
        assert np.mean(norms > norm * (1 + 1e-9)) <= share <= np.mean(norms >= norm * (1 - 1e-9))
    PrivatePCA(2, epsilon=8.0, delta=1e-6, random_state=0).fit(rows()).save(tmp_path / "model.safetensors")
    assert planned(*ASKED, "--from-model", tmp_path / "model.safetensors", "--row-bound", 50).exit_code == 0
    assert oracle.facts.norms is not None and oracle.facts.denominator == "all rows"


@pytest.mark.parametrize("text", ["\ufeff3\n2\n1\n", "\ufeffvariance\n3\n2\n1\n", "3;2;1", "# a note\n3 2 1\n"])
def test_a_spreadsheets_list_keeps_its_first_number(oracle: Oracle, tmp_path: Path, text: str) -> None:
    source = tmp_path / "list.csv"
    source.write_text(text, encoding="utf-8")
    found = spectrum_of(oracle, "--spectrum", source, "--row-bound", 3)
    assert found.values == pytest.approx(np.array([3, 2, 1]) / 9)


def test_a_strangers_file_cannot_speak_to_the_terminal(oracle: Oracle, tmp_path: Path) -> None:
    source, target = tmp_path / "spectrum.json", tmp_path / "plan.svg"
    words = Spectrum.guessed(4).to_json() | {"source": "red \x1b[31m and <b>\x07"}
    source.write_text(json.dumps(words))
    result = planned(*ASKED, "--spectrum", source, "--plot", target)
    assert result.exit_code == 0
    assert "red ?[31m and <b>?" in " ".join(result.stdout.split())
    assert "\x1b" not in result.stdout
    ET.fromstring(target.read_text())
