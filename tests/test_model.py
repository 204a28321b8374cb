"""`Model` and its file: what is saved comes back to the bit, and what is no model raises `ModelFileError` and nothing else."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save

from eigenveil import EigenveilError, Model, ModelFileError
from eigenveil.core.ledger import Charge
from eigenveil.linalg import Array
from eigenveil.model import SCORES_ARE_RAW
from eigenveil.privacy.guarantee import Guarantee

ARRAYS = ("components", "mean", "values", "explained_variance", "explained_variance_ratio")
GUARANTEE = Guarantee(
    epsilon=1.5,
    delta=1e-6,
    unit="each person",
    neighbours="add/remove",
    against="anybody",
    released=("components", "mean"),
    assumptions=("no person has more than one row",),
    calibration="exact",
    caveats=("floating point",),
    charges=(Charge("mean", 0.1), Charge("covariance", 0.2)),
)


def model(**changes: Any) -> Model:
    """A model of two components in four columns."""
    rng = np.random.default_rng(0)
    facts: dict[str, Any] = {
        "components": np.linalg.qr(rng.standard_normal((4, 2)))[0].T,
        "mean": rng.standard_normal(4),
        "values": np.array([3.0, 1.0]),
        "explained_variance": np.array([0.9, 0.1]),
        "explained_variance_ratio": np.array([0.6, 0.1]),
        "guarantee": GUARANTEE,
        "scale": np.array([1.0, 2.0, 0.5, 1e3]),
        "columns": ("a", "b", "c", "Größe"),
        "settings": {"method": "covariance", "rounds": 1},
    }
    return Model(**(facts | changes))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that holds the model."""
    model().save(tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scale": None},
        {"columns": None},
        {"settings": {}},
        {"warnings": ("Nothing stands out.", "The bound is too large.")},
        {"guarantee": Guarantee.none("exact PCA was asked for")},
    ],
    ids=["everything", "no scale", "no columns", "no settings", "warnings", "no privacy"],
)
def test_what_is_saved_comes_back(changes: dict[str, Any], tmp_path: Path) -> None:
    before = model(**changes)
    before.save(tmp_path / "m")
    after = Model.load(str(tmp_path / "m"))
    assert after.warnings == before.warnings
    for name in ARRAYS:
        assert np.array_equal(getattr(before, name), getattr(after, name))
    assert (after.scale is None) == (before.scale is None)
    if before.scale is not None and after.scale is not None:
        assert np.array_equal(before.scale, after.scale)
    assert (after.guarantee, after.columns, after.settings) == (before.guarantee, before.columns, before.settings)
    assert after.guarantee.to_text() == before.guarantee.to_text()


def test_the_file_says_in_words_what_it_guarantees(path: Path) -> None:
    with safe_open(path, framework="numpy") as file:
        header = json.loads(file.metadata()["eigenveil"])
        assert sorted(file.keys()) == sorted([*ARRAYS, "scale"])
    assert header["guarantee_in_words"] == GUARANTEE.to_text()
    assert "(1.5, 1e-06)-differential privacy for each person" in header["guarantee_in_words"]
    assert header["scores"] == SCORES_ARE_RAW
    assert "as private as they are" in SCORES_ARE_RAW


def test_transform_and_back_are_the_formula() -> None:
    found = model()
    rows = np.random.default_rng(1).standard_normal((6, 4))
    assert found.scale is not None
    scores = (rows - found.mean) / found.scale @ found.components.T
    assert np.allclose(found.transform(rows), scores, rtol=1e-12, atol=1e-12)
    assert np.allclose(found.transform(sp.csr_array(rows)), scores, rtol=1e-12, atol=1e-12)
    assert np.allclose(found.inverse_transform(scores), scores @ found.components * found.scale + found.mean)
    # Going there and back again changes no score: the components are orthonormal.
    assert np.allclose(found.transform(found.inverse_transform(scores)), scores)
    assert np.array_equal(found.subspace.basis, found.components.T)
    with pytest.raises(ValueError, match="rows must have 4 columns, as the model does, got 3"):
        found.transform(rows[:, :3])


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "flat components": ({"components": np.ones(4)}, "components must have two dimensions"),
    "mean of another length": ({"mean": np.zeros(3)}, r"mean must have shape \(4,\), got \(3,\)"),
    "values of another length": ({"values": np.ones(3)}, r"values must have shape \(2,\), got \(3,\)"),
    "variance of another length": ({"explained_variance": np.ones(1)}, "explained_variance must have shape"),
    "ratio in a matrix": ({"explained_variance_ratio": np.ones((2, 1))}, "explained_variance_ratio must have shape"),
    "mean not a number": ({"mean": np.full(4, np.nan)}, "mean must be finite"),
    "variance infinite": ({"explained_variance": np.array([np.inf, 1.0])}, "explained_variance must be finite"),
    "values increase": ({"values": np.array([1.0, 3.0])}, "values must not increase"),
    "values negative": ({"values": np.array([1.0, -3.0])}, "values must be non-negative"),
    "not orthonormal": ({"components": np.ones((2, 4))}, "basis must be orthonormal"),
    "too large to multiply": ({"components": np.full((2, 4), 1e200)}, "basis must be orthonormal"),
    "not finite": ({"components": np.full((2, 4), np.inf)}, "must be finite"),
    "scale zero": ({"scale": np.array([1.0, 0.0, 1.0, 1.0])}, "scale must be positive"),
    "scale not a number": ({"scale": np.array([1.0, np.nan, 1.0, 1.0])}, "scale must be positive"),
    "scale infinite": ({"scale": np.array([1.0, np.inf, 1.0, 1.0])}, "scale must be finite"),
    "scale of another length": ({"scale": np.ones(3)}, r"scale must have shape \(4,\)"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG.keys())
def test_what_is_no_model_is_refused_built_and_loaded(changes: dict[str, Array], message: str, path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        model(**changes)
    rewrite(path, lambda arrays: arrays | changes)
    with pytest.raises(ModelFileError, match=f"is damaged: .*{message}"):
        Model.load(path)


def test_names_must_be_as_many_as_columns() -> None:
    with pytest.raises(ValueError, match="there must be 4 column names, got 2"):
        model(columns=("a", "b"))


Arrays = dict[str, Any]
Header = dict[str, Any]


def rewrite(path: Path, arrays: Callable[[Arrays], Arrays] = lambda a: a, header: Callable[[Header], Any] = lambda h: h) -> None:
    """Write the file anew with its arrays or its header changed."""
    with safe_open(path, framework="numpy") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        said = json.loads(file.metadata()["eigenveil"])
    path.write_bytes(save(arrays(found), metadata={"eigenveil": json.dumps(header(said))}))


def without(name: str) -> Callable[[Any], Any]:
    """The same table without one entry."""
    return lambda table: {key: value for key, value in table.items() if key != name}


def changed(name: str, value: Any) -> Callable[[Any], Any]:
    """The same table with one entry changed."""
    return lambda table: table | {name: value}


def guarantee(change: Callable[[Any], Any]) -> Callable[[Header], Header]:
    """The same header with its guarantee changed."""
    return lambda header: header | {"guarantee": change(header["guarantee"])}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("mean"), "is damaged: its arrays are"),
        (changed("extra", np.zeros(1)), "is damaged: its arrays are"),
        (lambda arrays: {name: array.astype(np.float32) for name, array in arrays.items()}, "type float32, not float64"),
        (changed("values", np.array([3, 1])), "values is of type int64, not float64"),
    ],
)
def test_files_with_other_arrays_are_refused(change: Callable[[Arrays], Arrays], message: str, path: Path) -> None:
    rewrite(path, arrays=change)
    with pytest.raises(ModelFileError, match=message):
        Model.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed("version", 2), "is an Eigenveil model of version 2. This program reads version 1: make it again"),
        (without("version"), "of version None"),
        (changed("format", "other"), "is a safetensors file but not an Eigenveil model"),
        (lambda _: [1, 2], "is a safetensors file but not an Eigenveil model"),
        (without("columns"), "lacks 'columns'. Another version of Eigenveil wrote it"),
        (without("settings"), "lacks 'settings'. Another version of Eigenveil wrote it"),
        (without("warnings"), "lacks 'warnings'. Another version of Eigenveil wrote it"),
        (without("estimator"), "lacks 'estimator'. Another version of Eigenveil wrote it"),
        (without("guarantee"), "lacks 'guarantee'. Another version of Eigenveil wrote it"),
        (changed("columns", ["a", "b"]), "there must be 4 column names, got 2"),
        (changed("columns", "abcd"), "its columns are not a list of names"),
        (changed("columns", [1, 2, 3, 4]), "its columns are not a list of names"),
        (changed("settings", [["a", 1]]), "its settings are not a table"),
        (changed("guarantee", None), "is damaged"),
        (guarantee(without("caveats")), "its guarantee lacks caveats. Another version of Eigenveil wrote it"),
        (guarantee(without("relation")), "its guarantee lacks relation"),
        (guarantee(changed("more", 1)), "its guarantee has unknown fields"),
        (guarantee(changed("delta", None)), "epsilon and delta go together"),
        (guarantee(changed("epsilon", "lots")), "is damaged"),
        (guarantee(changed("epsilon", 10**400)), "is damaged"),
        (guarantee(changed("charges", [{"label": "mean"}])), "a guarantee is malformed"),
        (guarantee(changed("charges", 3)), "a guarantee is malformed"),
        (guarantee(changed("released", None)), "a guarantee is malformed"),
    ],
)
def test_headers_that_lie_are_refused(change: Callable[[Header], Any], message: str, path: Path) -> None:
    rewrite(path, header=change)
    with pytest.raises(ModelFileError, match=message):
        Model.load(path)


@pytest.mark.parametrize("metadata", [None, {}, {"other": "{}"}, {"eigenveil": "{"}, {"eigenveil": "[" * 100_000}])
def test_other_safetensors_files_are_refused(metadata: dict[str, str] | None, path: Path) -> None:
    path.write_bytes(save({"weights": np.zeros(3)}, metadata=metadata))
    with pytest.raises(ModelFileError, match="is a safetensors file but not an Eigenveil model"):
        Model.load(path)


def test_paths_that_lead_to_no_file_are_refused(tmp_path: Path) -> None:
    for wrong in (tmp_path, tmp_path / "none"):
        with pytest.raises(ModelFileError, match="does not exist or is not a file"):
            Model.load(wrong)
    assert issubclass(ModelFileError, ValueError) and issubclass(ModelFileError, EigenveilError)


def loads_or_refuses(path: Path) -> bool:
    """Whether the file loads as a model that can be used; anything but `ModelFileError` passes through."""
    try:
        found = Model.load(path)
    except ModelFileError:
        return False
    assert np.isfinite(found.transform(np.zeros((1, found.components.shape[1])))).all()
    assert found.guarantee.to_text()
    return True


def test_a_truncated_file_is_refused_wherever_it_ends(path: Path) -> None:
    whole = path.read_bytes()
    for cut in [*range(0, len(whole) - 1, 17), *range(9), len(whole) - 1]:
        path.write_bytes(whole[:cut])
        assert not loads_or_refuses(path)
    path.write_bytes(whole + b"\0")
    assert not loads_or_refuses(path)
    path.write_bytes(whole)
    assert loads_or_refuses(path)


anywhere = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@anywhere
@given(st.binary(max_size=300))
@example((2**62).to_bytes(8, "little") + b"{}")
@example((2).to_bytes(8, "little") + b"{}")
def test_random_bytes_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m").write_bytes(content)
    assert not loads_or_refuses(tmp_path / "m")


@anywhere
@given(flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=4))
def test_flipped_bytes_give_a_model_or_the_named_error(tmp_path: Path, flips: list[tuple[int, int]]) -> None:
    target = tmp_path / "m"
    model().save(target)
    content = bytearray(target.read_bytes())
    for place, mask in flips:
        content[place % len(content)] ^= mask
    target.write_bytes(bytes(content))
    loads_or_refuses(target)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=6,
)


@anywhere
@given(field=st.sampled_from(sorted(GUARANTEE.to_dict())), value=JSON, inside=st.booleans())
def test_any_json_in_the_header_gives_a_model_or_the_named_error(tmp_path: Path, field: str, value: Any, inside: bool) -> None:
    target = tmp_path / "m"
    model().save(target)
    top = changed({"unit": "columns", "released": "settings"}.get(field, "guarantee"), value)
    rewrite(target, header=guarantee(changed(field, value)) if inside else top)
    loads_or_refuses(target)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the folder .*none does not exist"):
        model().save(tmp_path / "none" / "m")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_write_that_fails_leaves_what_was_there(failing: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    before = path.read_bytes()
    monkeypatch.setattr(os if failing == "fsync" else Path, failing, fail)
    with pytest.raises(OSError, match="disk full"):
        model(columns=None).save(path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_settings_that_are_no_json_leave_no_file_behind(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        model(settings={"rng": object()}).save(tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_a_second_save_replaces_the_first(path: Path) -> None:
    model(columns=None).save(path)
    assert Model.load(path).columns is None
    assert list(path.parent.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o644
