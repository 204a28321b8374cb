"""Files of others: whatever a number or a name in them is, a file is refused in our words, or everything of it can be shown."""

import contextlib
import copy
import json
import math
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file
from typer.testing import CliRunner

from eigenveil import PrivatePCA
from eigenveil.commands import app
from eigenveil.core.ledger import Charge
from eigenveil.errors import EigenveilError, ModelFileError
from eigenveil.model import Model
from eigenveil.privacy.guarantee import Guarantee

NUMBERS: list[Any] = [1e308, -1e308, math.nan, math.inf, -0.0, 10**400, True, [1e308], {"a": 1}, None, "x", -1, 5e-324]
NAMES = ["\x1b[2J", "\u202eegap", "a\nb", "a\rb", "\x9b31m", "\u2066x", "\x07"]
ROWS = np.random.default_rng(0).normal(size=(300, 3))


def table(names: Any = ("a", "b", "c")) -> pd.DataFrame:
    return pd.DataFrame(ROWS[:, : len(names)], columns=list(names))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "model.safetensors"
    PrivatePCA(2, epsilon=1.0, delta=1e-6, row_bound=4.0, random_state=1).fit(table()).model_.save(path)
    return path


def parts_of(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, json.loads((file.metadata() or {})["eigenveil"])  # noqa: SIM118


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from leaves(part, (*path, key))


def changed(value: Any, path: tuple[Any, ...], to: Any) -> Any:
    if not path:
        return to
    new = copy.deepcopy(value)
    at = new
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = to
    return new


def views(model: Model) -> list[Callable[[], Any]]:
    return [
        lambda: str(model.guarantee),
        model.guarantee.to_text,
        model.guarantee._repr_html_,
        model._repr_html_,
        lambda: model.people,
        lambda: model.noise_floor,
        lambda: repr(model),
    ]


def scored(model: Model, rows: Any) -> None:
    """Scores may be refused, in our words."""
    for clip in (False, True):
        with contextlib.suppress(ValueError, EigenveilError):
            model.transform(rows, clip=clip)


def test_a_model_with_any_number_is_refused_or_can_be_shown(fitted: Path, tmp_path: Path) -> None:
    arrays, header = parts_of(fitted)
    path, loaded = tmp_path / "model.safetensors", 0
    for where in leaves(header):
        for bad in NUMBERS:
            save_file(arrays, path, metadata={"eigenveil": json.dumps(changed(header, where, bad))})
            try:
                model = Model.load(path)
            except ModelFileError:
                continue
            loaded += 1
            for view in views(model):
                view()
            scored(model, ROWS)
    assert loaded > 100


@pytest.mark.parametrize("name", ["components", "explained_variance", "explained_variance_ratio", "mean", "values"])
def test_a_model_with_any_number_in_an_array_is_refused_or_can_be_reported(name: str, fitted: Path, tmp_path: Path) -> None:
    arrays, header = parts_of(fitted)
    path, report = tmp_path / "model.safetensors", tmp_path / "report.html"
    for bad in (1e308, 1e200, math.nan, math.inf, -0.0, 5e-324):
        for places in (slice(0, 1), slice(None)):
            arrays_now = {key: array.copy() for key, array in arrays.items()}
            arrays_now[name].reshape(-1)[places] = bad
            save_file(arrays_now, path, metadata={"eigenveil": json.dumps(header)})
            for command in (["inspect", str(path)], ["report", str(path), "-o", str(report), "--force"]):
                result = CliRunner().invoke(app, command)
                assert "unexpected error" not in result.output, (bad, places, command)
                assert result.exception is None or isinstance(result.exception, SystemExit)


def test_a_guarantee_with_a_charge_that_cannot_be_squared_is_refused() -> None:
    good = Guarantee(epsilon=1.0, delta=1e-6, charges=(Charge("one", 0.1),)).to_dict()
    for mu in (1e308, 10**400, math.nan, math.inf, -0.1, True, "0.1", None, [0.1]):
        with pytest.raises(ValueError, match="charge"):
            Guarantee.from_dict(good | {"charges": [{"label": "one", "mu": mu}]})


def require_clean(text: str) -> None:
    hidden = [letter for letter in text if not letter.isprintable() and letter != "\n"]
    assert not hidden, (hidden, text)
    assert "a\nb" not in text


@pytest.mark.parametrize("name", NAMES)
def test_no_error_warning_or_page_has_a_control_character_of_a_name(name: str, fitted: Path, tmp_path: Path) -> None:
    arrays, header = parts_of(fitted)
    header = changed(header, ("columns",), [name, f"{name}2", "c"])
    header = changed(header, ("guarantee", "unit"), f"each {name}")
    header = changed(header, ("guarantee", "charges"), [{"label": name, "mu": 0.1}])
    header = changed(header, ("warnings",), [name])
    path = tmp_path / "model.safetensors"
    save_file(arrays, path, metadata={"eigenveil": json.dumps(header)})
    model, texts = Model.load(path), list[str]()
    torn = table([name, f"{name}2", "c"])
    torn.iloc[0] = np.inf
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rows in (table(["c"]), table(["x", "y", "z"]), torn, torn.astype(str), torn.assign(**{name: "text"})):
            for use in (model.transform, PrivatePCA(2, epsilon=1.0, delta=1e-6, row_bound=4.0, columns=["c", name]).fit):
                try:
                    use(rows)
                except (ValueError, EigenveilError) as error:
                    # As Python itself writes it, for its message and for all that caused it.
                    texts += [str(error), *(str(line) for line in traceback.format_exception_only(error))]
        texts += [str(one.message) for one in caught]
    assert len(texts) >= 8
    texts += [str(view()) for view in views(model)]
    csv = tmp_path / "table.csv"
    table(["x", "y", "z"]).to_csv(csv, index=False)
    report = tmp_path / "report.html"
    for command in (["inspect", path], ["report", path, "-o", report], ["transform", path, csv, "-o", tmp_path / "s.csv"]):
        result = CliRunner().invoke(app, list(map(str, command)))
        texts.append(result.output)
    texts.append(report.read_text())
    for text in texts:
        require_clean(text)
