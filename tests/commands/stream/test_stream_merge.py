"""`eigenveil stream --merge`: one model from the states of several devices, and what cannot be merged."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from commands.command_tables import NAMES, rows
from commands.stream.command_streams import CSV, EXACT, SEEDED, as_csv, piped
from eigenveil import Model
from eigenveil.commands import app
from eigenveil.linalg import sines


def merged(*arguments: object) -> tuple[int, str]:
    """The exit code of `eigenveil stream --merge`, and the line it says where it refuses."""
    result = CliRunner().invoke(app, ["stream", "--merge", *map(str, arguments)], env={"COLUMNS": "100"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stderr.strip()


def state(path: Path, values: np.ndarray, *terms: object, names: tuple[str, ...] | None = NAMES) -> Path:
    """The state of a stream over these rows."""
    given = (*CSV, *(terms or EXACT), "-o", path.with_suffix(".safetensors"), "--state", path)
    assert piped(as_csv(values, names), *given, *(() if names else ("--no-header",))).exit_code == 0
    return path


def test_states_of_several_devices_become_one_model_and_one_state(tmp_path: Path) -> None:
    values = rows()
    thirds = [state(tmp_path / f"{i}.state", part) for i, part in enumerate(np.array_split(values, 3))]
    before = [path.read_bytes() for path in thirds]
    whole = Model.load(state(tmp_path / "whole.state", values).with_suffix(".safetensors"))
    target, kept = tmp_path / "merged.safetensors", tmp_path / "merged.state"
    assert merged(thirds[0], "--merge", thirds[1], thirds[2], "-o", target, "--state", kept) == (0, "")
    found = Model.load(target)
    # 2 of 5 directions, and the others are kept inside: the merge loses nothing.
    assert sines(found.subspace.basis, whole.subspace.basis)[0] < 1e-6
    assert np.allclose(found.explained_variance, whole.explained_variance)
    assert found.columns == NAMES
    assert [path.read_bytes() for path in thirds] == before
    # The merged stream goes on.
    more = (*CSV, "--resume", "--state", kept, "-o", tmp_path / "more.safetensors")
    assert piped(as_csv(values[:50]), *more).exit_code == 0
    # It knows whose rows it has.
    code, said = merged(kept, thirds[0], "-o", target, "--force")
    assert (code, said.count("merged before, and rows would count twice")) == (2, 1)


def test_what_cannot_be_merged_is_said_and_nothing_is_written(tmp_path: Path) -> None:
    values = rows()[:200]
    first = state(tmp_path / "first.state", values)
    target = tmp_path / "model.safetensors"

    def refused(other: Path, *more: object) -> str:
        code, said = merged(first, other, "-o", target, *more)
        assert code == 2
        assert not target.exists()
        return said

    narrow = state(tmp_path / "narrow.state", values[:, :3], names=NAMES[:3])
    assert "columns cannot be merged" in refused(narrow)
    renamed = state(tmp_path / "renamed.state", values, names=("other", *NAMES[1:]))
    assert f"'other' where {NAMES[0]!r} is" in refused(renamed)
    assert "centered and the other is not" in refused(state(tmp_path / "bare.state", values, *EXACT, "--center", "none"))
    scaled = state(tmp_path / "scaled.state", values, *EXACT, "--scale", "2")
    assert "different units cannot be merged. Give all of them the same public --scale" in refused(scaled)
    forgetful = state(tmp_path / "forget.state", values, *EXACT, "--forget", "0.5")
    assert "at another rate" in refused(forgetful)
    assert "does not exist" in refused(tmp_path / "none.state")
    (tmp_path / "text.state").write_text("rows")
    assert "text.state" in refused(tmp_path / "text.state")
    assert "with --merge all settings come from the states. Leave out --components" in refused(narrow, "-k", 3)
    assert "rows would count twice" in refused(first)


@pytest.mark.parametrize("place", [0, 1])
def test_a_private_stream_is_refused_before_its_state_is_claimed(tmp_path: Path, place: int) -> None:
    exact = state(tmp_path / "exact.state", rows())
    private = state(tmp_path / "private.state", rows(), *SEEDED[:-2])
    pair = (private, exact) if place == 0 else (exact, private)
    code, said = merged(*pair, "-o", tmp_path / "model.safetensors")
    assert (code, f"{private} is a private stream" in said) == (2, True)
    assert private.exists()
    assert not private.with_name("private.state.resumed").exists()
