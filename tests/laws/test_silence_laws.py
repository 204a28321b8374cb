"""numpy never speaks of a row: not in a warning, and not in an error where the caller has asked for errors.

A warning that comes with one table and not with its neighbour reveals a person. So whatever handles raw rows runs with numpy's
events ignored (`ignore_float_errors`), whatever the caller's settings are. A law for each function that is decorated so, which
fails when its decorator is taken away.
"""

import ast
import contextlib
import importlib
import inspect
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import eigenveil
from each import each
from eigenveil import (
    FederatedPCA,
    FederatedStream,
    GossipPCA,
    PrivatePCA,
    PrivateRecommender,
    StreamingPCA,
    find_bounds,
    find_column_bounds,
    released_spectrum,
)
from eigenveil.core.domain import Domain
from eigenveil.core.rows import total_of
from eigenveil.core.whole import GramWork
from eigenveil.data.rows import CheckedRows, DenseRows
from eigenveil.errors import EigenveilError, ParameterWarning
from eigenveil.estimators.checks import checked_array
from eigenveil.show.report import model_report

ROOT = Path(eigenveil.__file__).parent
ROWS = np.random.default_rng(0).standard_normal((240, 4)) * [4.0, 2.0, 1.0, 1.0]
ROWS[0], ROWS[1], ROWS[2] = 1e308, 5e-324, -1e200
LIKES = (np.random.default_rng(2).random((200, 12)) < 0.3).astype(float)
GIVEN: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-6, "random_state": 0}
BOUND = GIVEN | {"row_bound": 9.0}
SITES = {f"site {place}": part for place, part in enumerate(np.split(ROWS, 4))}


def private() -> PrivatePCA:
    return PrivatePCA(2, **BOUND).fit(ROWS)


def stream(**choices: Any) -> StreamingPCA:
    return StreamingPCA(2, block_size=50, **(BOUND | choices))


def merged() -> None:
    one, other = (stream(epsilon=None, delta=None, row_bound=None).fit(ROWS[3:]) for _ in range(2))
    one.merge(other)


def resumed() -> None:
    # There is nothing to resume, and it says so inside.
    with contextlib.suppress(EigenveilError, ValueError):
        FederatedPCA(2, **BOUND).resume(SITES)


# What enters each function, by its module and name.
ACTS: dict[tuple[str, str], Callable[[], Any]] = {
    ("core.rows", "total_of"): lambda: total_of(DenseRows(ROWS), GramWork(Domain(dim=4, radius=1.0))),
    ("data.rows", "_require_finite"): lambda: list(CheckedRows(DenseRows(ROWS)).blocks(64)),
    ("estimators.bounds.columns", "find_column_bounds"): lambda: find_column_bounds(ROWS, **GIVEN),
    ("estimators.bounds.rows", "find_bounds"): lambda: find_bounds(ROWS, **GIVEN),
    ("estimators.bounds.spectrum", "released_spectrum"): lambda: released_spectrum(ROWS, **BOUND),
    ("estimators.federated.pca", "FederatedPCA.fit"): lambda: FederatedPCA(2, **BOUND).fit(SITES),
    ("estimators.federated.pca", "FederatedPCA.resume"): resumed,
    ("estimators.fitted", "ModelMethods.inverse_transform"): lambda: private().inverse_transform(np.full((1, 2), 1e308)),
    ("estimators.fitted", "FittedPCA.transform"): lambda: private().transform(ROWS),
    ("estimators.gossip.pca", "GossipPCA.fit"): lambda: GossipPCA(2, graph="ring", **BOUND).fit(SITES),
    ("estimators.gossip.pca", "GossipPCA.publish_scores"): lambda: (
        GossipPCA(2, graph="ring", neighbours="zero-out", **BOUND).fit(SITES).publish_scores(epsilon=1.0, delta=1e-6)
    ),
    ("estimators.fitted", "ModelMethods.get_covariance"): lambda: private().get_covariance(),
    ("estimators.fitted", "ModelMethods.get_precision"): lambda: private().get_precision(),
    ("estimators.fitted", "ModelMethods.score_samples"): lambda: private().score_samples(ROWS),
    ("estimators.private", "PrivatePCA.fit"): private,
    ("estimators.slots.stream", "FederatedStream.partial_fit"): lambda: FederatedStream(2, slots=3, **BOUND).partial_fit(SITES),
    ("estimators.streaming.pca", "StreamingPCA.fit"): lambda: stream().fit(ROWS),
    ("estimators.streaming.pca", "StreamingPCA.merge"): merged,
    ("estimators.streaming.pca", "StreamingPCA.partial_fit"): lambda: stream().partial_fit(ROWS),
    ("estimators.streaming.pca", "StreamingPCA.sync"): lambda: stream().partial_fit(ROWS).sync(),
    ("estimators.streaming.pca", "StreamingPCA.transform"): lambda: stream().fit(ROWS).transform(ROWS),
    ("model", "Model._projected"): lambda: private().model_.transform(ROWS),
    ("model", "Model.clipped"): lambda: private().model_.clipped(ROWS),
    ("model", "Model.inverse_transform"): lambda: private().model_.inverse_transform(np.full((1, 2), 1e308)),
    ("recommend.recommender", "PrivateRecommender.fit"): lambda: PrivateRecommender(2, **GIVEN).fit(LIKES),
    ("recommend.recommender", "PrivateRecommender.recommend"): lambda: (
        PrivateRecommender(2, **GIVEN).fit(LIKES).recommend(LIKES[0])
    ),
    ("show.report", "model_report"): lambda: model_report(private().model_),
}
# Functions that are wrapped where they are called. The second is a step of a party in a network, which its tests run.
CALLS = {("estimators.checks", "validate_data"), ("network.agents.runner", "move")}
NAMES = [f"{module}: {name}" for module, name in ACTS]


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def decorated() -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """The functions of this program that are decorated, and those that are wrapped in a call, read from its syntax."""
    functions: set[tuple[str, str]] = set()
    calls: set[tuple[str, str]] = set()

    def walk(node: ast.AST, module: str, inside: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = inside
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{inside}{child.name}."
                if any(isinstance(one, ast.Name) and one.id == "ignore_float_errors" for one in child.decorator_list):
                    functions.add((module, name[:-1]))
            if isinstance(child, ast.Call) and isinstance(child.func, ast.Name) and child.func.id == "ignore_float_errors":
                calls.add((module, ast.unparse(child.args[0])))
            walk(child, module, name)

    for path in ROOT.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "ignore_float_errors" in text:
            walk(ast.parse(text), module_of(path), "")
    return functions, calls


def quiet_of(module: str, name: str) -> Any:
    """The function that `ignore_float_errors` made, inside whatever other decorators made of it."""
    found: Any = importlib.import_module(f"eigenveil.{module}")
    for part in name.split("."):
        found = inspect.getattr_static(found, part)
    while found.__code__.co_qualname != "ignore_float_errors.<locals>.quiet":
        found = found.__wrapped__
    return found


@contextlib.contextmanager
def entered(module: str, name: str) -> Iterator[list[dict[str, str]]]:
    """numpy's settings at each entry into this function, while the block runs."""
    settings: list[dict[str, str]] = []
    file = str(ROOT / Path(*module.split("."))) + ".py"

    def note(frame: types.FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_qualname == name and code.co_filename == file:
            settings.append({kind: str(way) for kind, way in np.geterr().items()})

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield settings
    finally:
        sys.setprofile(before)


def require_silence(module: str, name: str) -> None:
    """Nothing in this function lets numpy speak, though the caller has asked it to raise."""
    with warnings.catch_warnings(), np.errstate(all="raise"), entered(module, name) as settings:
        warnings.simplefilter("error")
        # Said of released numbers and public parameters.
        warnings.simplefilter("ignore", ParameterWarning)
        warnings.simplefilter("ignore", UserWarning)
        ACTS[module, name]()
    assert settings, f"{name} was not entered"
    assert all(set(one.values()) == {"ignore"} for one in settings), f"numpy may speak in {name}"


def test_every_function_that_is_decorated_has_a_law_and_none_has_lost_its_decorator() -> None:
    functions, calls = decorated()
    assert functions == set(ACTS)
    assert calls == CALLS


@pytest.mark.parametrize(("module", "name"), ACTS, ids=NAMES)
def test_numpy_is_silent_where_rows_are_handled(module: str, name: str) -> None:
    require_silence(module, name)


@pytest.mark.parametrize(("module", "name"), ACTS, ids=NAMES)
def test_a_function_without_its_decorator_is_convicted(module: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def bare(act: Callable[..., Any]) -> Callable[..., Any]:
        def quiet(*given: Any, **more: Any) -> Any:
            return act(*given, **more)

        return quiet

    # The same function, which calls what it wraps and does nothing else.
    monkeypatch.setattr(quiet_of(module, name), "__code__", bare(print).__code__)
    with pytest.raises((AssertionError, FloatingPointError)):
        require_silence(module, name)


def test_no_generator_is_decorated() -> None:
    """Its body would run later, when the caller's settings hold again."""
    for module, name in ACTS:
        act = quiet_of(module, name).__wrapped__
        assert not (inspect.isgeneratorfunction(act) or inspect.iscoroutinefunction(act)), name


def test_rows_are_checked_in_silence() -> None:
    """Scikit-learn's check adds everything up, which overflows."""
    for rows in (ROWS, ROWS[1:].astype(np.float64).tolist(), sp.csr_array(ROWS)):
        with warnings.catch_warnings(), np.errstate(all="raise"), contextlib.suppress(ValueError):
            warnings.simplefilter("error")
            checked_array(PrivatePCA(2, **BOUND), rows, reset=True)


# Entries that overflow, underflow or are no numbers, and a type that can hold them.
ODD: dict[str, Any] = {
    "infinity": np.inf,
    "minus infinity": -np.inf,
    "nan": np.nan,
    "1e308": 1e308,
    "the largest": np.finfo(float).max,
    "a denormal": 5e-324,
    "a negative denormal": -5e-324,
    "2**63 - 1": 2**63 - 1,
    "2**64": 2**64,
    "2**1100": 2**1100,
}
FITS: dict[str, Callable[[Any], Any]] = {
    "private": lambda rows: PrivatePCA(2, **BOUND).fit(rows),
    "private, no bound": lambda rows: PrivatePCA(2, **GIVEN).fit(rows),
    "private, units": lambda rows: PrivatePCA(2, scale="private", **GIVEN).fit(rows),
    "private, power": lambda rows: PrivatePCA(2, method="power", **BOUND).fit(rows),
    "private, counts": lambda rows: PrivatePCA(2, missing="counts", **BOUND).fit(rows),
    "private, drop": lambda rows: PrivatePCA(2, missing="drop", **BOUND).fit(rows),
    "stream": lambda rows: StreamingPCA(2, block_size=50, **BOUND).fit(rows),
    "stream, counts": lambda rows: StreamingPCA(2, block_size=50, missing="counts", **BOUND).fit(rows),
    "sites": lambda rows: FederatedPCA(2, trust="site", **BOUND).fit([rows[:120], rows[120:]]),
    "sites, krylov": lambda rows: FederatedPCA(2, trust="site", method="krylov", **BOUND).fit([rows[:120], rows[120:]]),
    "masked": lambda rows: FederatedPCA(2, trust="masked", **BOUND).fit([rows[:80], rows[80:160], rows[160:]]),
}


def table(entry: Any) -> Any:
    """Rows with this entry in one place, and one row of nothing else: floats if they can hold it, otherwise objects."""
    values = ROWS[3:].astype(object if isinstance(entry, int) and entry >= 2**63 else float)
    values[0, 0], values[1] = entry, entry
    return values


@each("odd", ODD)
@each("fit", FITS)
def test_a_private_fit_takes_an_odd_row_or_refuses_it_in_its_own_words(fit: str, odd: str) -> None:
    for mode in ("warn", "raise"):
        with warnings.catch_warnings(), np.errstate(all=mode):
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", ParameterWarning)
            try:
                FITS[fit](table(ODD[odd]))
            except ValueError as refused:
                # Infinity and NaN, and what float64 cannot hold. Neither a number nor a place is named.
                assert odd in ("infinity", "minus infinity", "nan", "2**1100"), refused
                assert "308" not in str(refused) and "row 0" not in str(refused)
