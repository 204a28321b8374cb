"""Refusals of the golden corpus: what each estimator says of settings that make no sense, before it charges anything.

Every wrong value is given to every estimator that has the setting, with a budget and without. Tables that cannot be read are
given to all of them. An entry that says CHARGED, FITTED or QUOTED is a fault, whatever the corpus has.
"""

import inspect
import traceback
from collections.abc import Callable
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import scipy.sparse as sp

from eigenveil import (
    FederatedPCA,
    FederatedStream,
    GossipPCA,
    Ledger,
    PrivatePCA,
    PrivateRecommender,
    StreamingPCA,
    find_bounds,
    find_column_bounds,
    released_spectrum,
)
from eigenveil.data.frames import as_rows
from eigenveil.data.rows import DenseRows
from eigenveil.linalg.graphs import Graph
from eigenveil.plan import recommendation

__all__ = ["refusals"]

NAMES: Final = ("age", "dose", "mass", "pulse", "sleep", "steps")
_RNG: Final = np.random.default_rng(23)
ROWS: Final = _RNG.standard_normal((60, 6)) * [5, 3, 2, 1, 0.5, 0.25]
USERS: Final = (_RNG.random((60, 6)) < 0.5).astype(float)
# A number that no error may quote.
SECRET: Final = "8675309"
BUDGET: Final[dict[str, Any]] = {"epsilon": 1.0, "delta": 1e-6, "random_state": 0}
BOUND: Final[dict[str, Any]] = BUDGET | {"row_bound": 12.0}
_EXACT: Final[dict[str, Any]] = {"epsilon": None, "random_state": 0}


def _parts(table: Any) -> dict[str, Any]:
    """Five parties, of whom b has this table."""
    return dict(zip("abcde", (ROWS[:20], table, *np.array_split(ROWS[20:], 3)), strict=True))


# By estimator: its settings, and how it is given a table.
_ESTIMATORS: Final[dict[Callable[..., Any], tuple[dict[str, Any], Callable[[Any], Any]]]] = {
    PrivatePCA: (BOUND, lambda table: table),
    StreamingPCA: (BOUND, lambda table: table),
    FederatedPCA: (BOUND, _parts),
    GossipPCA: (BOUND | {"graph": "complete"}, _parts),
    FederatedStream: (BOUND | {"slots": 4}, _parts),
    PrivateRecommender: (BUDGET, lambda table: USERS if table is ROWS else table),
    find_bounds: (BUDGET, lambda table: table),
    find_column_bounds: (BUDGET, lambda table: table),
    released_spectrum: (BOUND, lambda table: table),
}
_COUNTS: Final = (0, -1, 1.5, True, "x", None)
# Values that mean nothing, by the setting that they are given for.
WRONG: Final[dict[str, tuple[Any, ...]]] = {
    "n_components": (*_COUNTS, 0.5, 0.0, 1.0, np.nan, 13),
    "epsilon": (0, -1.0, np.nan, np.inf, "1", True, (1.0, 1.0)),
    "delta": (0, 1, -1e-6, np.nan, None, "small"),
    "row_bound": (None, 0, -2.0, np.nan, np.inf, 1e61, 1e-61, "auto", [1.0, 2.0]),
    "mean_bound": (-1.0, np.inf, "far"),
    "column_bounds": (
        *(5.0, (0, 1, 2), (0.0, np.ones(5)), np.zeros((6, 2)), (1.0, -1.0), (1.0, 1.0), (0.0, np.nan)),
        *((-np.inf, 1.0), ("low", "high"), (-1e200, 1e200)),
    ),
    "center": (np.zeros(5), 0.0, "mean", np.full(6, np.nan), list("abcdef"), False, True),
    "origin": (np.zeros(7), np.inf, "zero", np.full(6, np.inf)),
    "scale": (np.ones((6, 1)), [1, 1, 0, 1, 1, 1], 0.0, -1.0, np.nan, "std"),
    "quantile": (0.0, 0.001, 1.0, True, np.nan, "half"),
    "within": (0.0, 3, (3, 1), (1e-99, 1e99), "x"),
    "missing": ("mean", None),
    "missing_fill": (np.inf, np.zeros(5), "zero"),
    "missing_groups": ("0;9", "a,b", [[0, 0]]),
    "columns": (["no such"], "age"),
    "drop": (["no such"],),
    "method": ("laplace", None),
    "neighbours": ("swap", "entry"),
    "random_state": (-1, "0", 0.5),
    "oversample": (-1, 1.5, "x"),
    "rounds": (0, 2.5, True, 10**9),
    "tolerance": (1.0, -0.1, np.nan, "small"),
    "ledger": (1.0, []),
    "person": (["ann"], 3, np.arange(51), np.zeros((60, 2)), np.full(60, np.nan), "who", ["x" + SECRET, None] * 30),
    "whiten": ("yes",),
    "trust": ("nobody",),
    "topology": ("ring",),
    "fanout": (1, None, 2.5),
    "align": ("rotate", None),
    "local_steps": (0, 1.5, None, [], [2, 0], ("decay",), ("decay", 3, 4), ("decay", "4"), ("growth", 4)),
    "participation": (*("half", ("poisson", 2), ("with-replacement",)), *(("without-replacement", at) for at in (0, 9, 1.5))),
    "survivors": (1, 99, "x"),
    "colluders": (0, 99, "x"),
    "quorum": (0, 9, 0.0, 1.5, np.nan, "all", True, 0.4, 2),
    "person_sites": (0, 9, None, 1.5),
    "faults": (0.1, {"loss": 0.1}),
    "deadline": (0.0, np.inf),
    "retries": (-1,),
    "restarts": (-1,),
    "people": (1,),
    "consensus": ("gossip",),
    "steps": (0, 2.5),
    "noise": ("none", None),
    "noise_graph": ("circle", [(0, 1), (1, 2), (3, 4)]),
    "adapt": ((0.1, 0.01), (1, 10), (0.1, 0.1), (0.0, 0.1), (np.nan, 0.1), 0.1, (0.1, 0.2, 0.3), "ab", True),
    "forget": (0, 1.1, np.nan, "x", None),
    "block_size": (0, 2.5),
    "publish": ("daily", None),
    "person_blocks": (0, None),
    "memory_limit": (0, "1GB", 100),
    "horizon": (500, 0),
    "noise_target": ("low", 0.0, np.nan, np.inf, 1e-9),
    "slots": (0, 2.5, None),
    "max_lateness": (-1, 1.5),
    "person_slots": (0, 9),
    "unit": ("film", None),
    "items": (*(0, 1, 13, 2.0, True, "abc", {1, 2}, (), [0, 0, 1], [0, 6], [-1, 1], ["a", "b"], [0], [0.5, 1]),),
    "min_degree": (0, -1, 1.5, True, None, "x"),
    "item_degrees": ("public", 3, {}, [1, 2], [-1.0] * 6, [np.nan] * 6, ["a"] * 6, np.ones(5), np.ones((6, 1))),
    "normalise": ("rows", None, "both"),
    "users_at_least": (0, "x"),
    "history": (0, -1, np.nan, np.inf, True, "all"),
    "on_noise": ("shrug",),
    "graph": (
        *([(0, 1), (1, 2), (3, 4)], [], [("a", "a"), (0, 1)], [("a", "zoe")], [(0, 5)], [(0, -1)], [(True, 1)]),
        *([(0, 1, 2)], ["ab"], "circle", "random-regular:", "random-regular:5", "random-regular:3", 7, None),
        *({"a": ["b"], "b": [], "c": [], "d": [], "e": []}, "star", "path"),
        *(Graph.named("ring", "vwxyz"), Graph.named("ring", "abcd"), np.array([[0.5, 0.5], [0.4, 0.6]])),
        *(np.array([[0.5, 0.4], [0.4, 0.5]]), np.array([[1.5, -0.5], [-0.5, 1.5]]), np.full((2, 3), 0.5)),
        *(np.array([[np.nan, 0.5], [0.5, 0.5]]), np.full((2, 2), 0.5), np.array([["a"]]), np.eye(5)),
    ),
}
_DRAW: Final = ("without-replacement", 2)
_UNITS: Final[dict[str, Any]] = {"scale": "private", "row_bound": "private"}
_BOTH: Final[dict[str, Any]] = {"trust": "both", "epsilon": (1.0, 1.0)}
# Settings that mean something each and nothing together.
TOGETHER: Final[dict[Callable[..., Any], tuple[dict[str, Any], ...]]] = {
    PrivatePCA: (
        {"row_bound": None, "mean_bound": 1.0, "column_bounds": (-1e60, 1e60)},
        {"row_bound": None, "mean_bound": 1.0, "column_bounds": (-1.0, 1.0), "scale": 1e-100},
        *(
            _UNITS | other
            for other in ({"center": None}, {"center": np.ones(6)}, {"column_bounds": (0.0, 1.0)}, {"mean_bound": 2.0})
        ),
        *({"quantile": 0.9} | other for other in ({}, {"row_bound": None, "column_bounds": (-50, 50)}, _UNITS)),
    ),
    StreamingPCA: (
        {"publish": "continual"},
        {"publish": "block", "horizon": 9},
        {"publish": "continual", "horizon": 9.5},
        {"publish": "block", "noise_target": 1e-9, "memory_limit": 10**9},
        {"epsilon": None, "noise_target": 0.1},
        {"epsilon": None, "publish": "continual", "horizon": 9},
    ),
    FederatedPCA: (
        {"method": "covariance", "oversample": 3},
        *({"method": method, "local_steps": 2} for method in ("power", "covariance")),
        *({"method": method, "participation": _DRAW} for method in ("krylov", "covariance", "merge")),
        {"method": "power", "participation": _DRAW, "topology": "tree"},
        *({"method": method, "topology": "tree"} for method in ("uda", "wda")),
        *({"method": method, "rounds": 2} for method in ("covariance", "merge", "uda")),
        {"method": "wda", "tolerance": 0.1},
        {"epsilon": (1.0, 1.0), "trust": "site"},
        {"trust": "both"},
        *({"trust": "both", "epsilon": pair} for pair in ((1.0, 1.0, 1.0), "12", (None, 1.0), (1.0, None))),
        _BOTH | {"delta": (1e-6,) * 3},
        _BOTH | {"delta": None},
        *(_BOTH | {"method": method} for method in ("uda", "merge")),
        *({"method": "dr-svd", "trust": trust} for trust in ("hub", "site")),
        *({"method": "fedpower", "local_steps": steps} for steps in (2, [1, 2], ("decay", 3))),
        _BOTH | {"method": "fedpower", "local_steps": 2},
        *({"method": "power", "participation": ("with-replacement", 2), "trust": trust} for trust in ("hub", "site")),
        {"trust": "masked", "person_sites": 2},
    ),
    GossipPCA: (
        {"consensus": "tree", "steps": 5},
        {"method": "segments", "oversample": 2},
        {"noise": None},
        {"epsilon": None, "restarts": 1},
        {"epsilon": None, "noise_graph": "ring"},
        {"noise": "independent", "noise_graph": "ring"},
        {"graph": "ring", "colluders": 2},
        {"graph": "ring", "steps": 2},
        {"epsilon": None, "graph": "ring", "method": "krylov", "steps": 2},
    ),
    FederatedStream: (
        {"row_bound": "private"},
        {"scale": "private"},
        {"trust": "hub", "topology": "tree"},
        {"epsilon": None, "trust": "masked"},
        {"one_person_per_site": True, "neighbours": "add-remove"},
        {"one_person_per_site": True, "person_slots": 2},
        {"epsilon": None, "one_person_per_site": True},
        {"trust": "masked", "survivors": 2},
        {"epsilon": None, "row_bound": 2.0},
    ),
    PrivateRecommender: (
        {"neighbours": "add-remove"},
        {"normalise": "both", "item_degrees": "private", "unit": "item"},
        *({"items": items, "n_components": 6} for items in (5, [0, 1])),
        {"delta": None, "neighbours": "add-remove"},
        {"users_at_least": 100},
        *({"unit": "item", "neighbours": relation} for relation in ("add-remove", "replace-one")),
        {"trust": "masked"},
        {"survivors": 3},
    ),
    released_spectrum: ({"row_bound": "private"},),
}


def _spoiled(value: float) -> Any:
    rows = ROWS.copy()
    rows[37, 4], rows[37, 5] = value, float(SECRET)
    return rows


def _named(values: Any, **more: Any) -> dict[str, Any]:
    return dict(zip(NAMES, np.asarray(values).T, strict=True)) | more


_TEXT: Final = ["x" + SECRET, *["y"] * 59]
TABLES: Final[dict[str, Any]] = {
    "NaN": _spoiled(np.nan),
    "inf": _spoiled(np.inf),
    "minus inf, float32": _spoiled(-np.inf).astype(np.float32),
    "sparse NaN": sp.csr_array(_spoiled(np.nan)),
    "sparse inf": sp.csr_array(_spoiled(np.inf)),
    "pandas NaN": pd.DataFrame(_named(_spoiled(np.nan))),
    "pandas NA": pd.DataFrame({"a": pd.array([1, None, 3], dtype="Int64"), "b": [1, 2, 3]}),
    "pandas inf": pd.DataFrame(_named(_spoiled(np.inf))),
    "arrow NaN": pa.table(_named(_spoiled(np.nan))),
    "arrow inf": pa.table(_named(_spoiled(np.inf))),
    "arrow null": pa.table({"a": [1, None, 3], "b": [1, 2, 3]}),
    "polars NaN": pl.DataFrame(_named(_spoiled(np.nan))),
    "polars null": pl.DataFrame({"a": [1, None, 3], "b": [1, 2, 3]}),
    "batch NaN": pa.RecordBatch.from_pydict(_named(_spoiled(np.nan))),
    "rows NaN": DenseRows(_spoiled(np.nan)),
    "sparse rows inf": as_rows(sp.csr_array(_spoiled(np.inf))),
    "no rows": ROWS[:0],
    "no sparse rows": sp.csr_array(ROWS[:0]),
    "no arrow rows": pa.table(_named(ROWS[:0])),
    "no rows in blocks": DenseRows(ROWS[:0]),
    "no table": pa.table({}),
    "one column": ROWS[:, :1],
    "one sparse column": sp.csr_array(ROWS[:, :1]),
    "one arrow column": pa.table({"age": ROWS[:, 0]}),
    "one dimension": np.full(6, float(SECRET)),
    "a list of numbers": [float(SECRET)] * 6,
    "a number": float(SECRET),
    "three dimensions": ROWS[None],
    "complex": ROWS + float(SECRET) * 1j,
    "sparse complex": sp.csr_array(ROWS * 1j),
    "complex rows in blocks": DenseRows(ROWS * 1j),
    "sparse complex rows": as_rows(sp.csr_array(ROWS * 1j)),
    "text": np.full((3, 6), "x" + SECRET),
    "text objects": np.full((3, 6), "x" + SECRET, dtype=object),
    "objects in blocks": DenseRows(np.full((3, 6), SECRET, dtype=object)),
    "pandas text": pd.DataFrame(_named(ROWS, sleep=_TEXT)),
    "arrow text": pa.table(_named(ROWS, sleep=_TEXT)),
    "polars text": pl.DataFrame(_named(ROWS, sleep=_TEXT)),
    "dates": np.zeros((3, 6), dtype="M8[D]"),
    "arrow dates": pa.table({name: pa.array([1], pa.timestamp("s")) for name in NAMES}),
    "masked": np.ma.masked_array(ROWS, mask=ROWS > 1),
    "nothing": None,
    "a word": "table.csv",
}


def _refusal(make: Callable[..., Any], table: Any, choices: dict[str, Any]) -> str:
    """What an estimator says, with what it must not have done; "taken" if it refuses nothing."""
    ledger, spend, spent = Ledger(epsilon=9.0, delta=1e-5), Ledger.spend, []

    def counted(self: Ledger, *given: Any, **more: Any) -> Any:
        # Also of ledgers that parties make for themselves.
        spent.append(self)
        return spend(self, *given, **more)

    # A ledger is no place for what has no guarantee, and that would be all that is said.
    unsound = choices.get("epsilon", 1.0) is None
    given = {"ledger": ledger} if "ledger" in inspect.signature(make).parameters and not unsound else {}
    fitted: Any = None
    try:
        with patch.object(Ledger, "spend", counted):
            if inspect.isclass(make):
                fitted = make(**({"n_components": 2} | given | choices))
                (fitted.partial_fit if make is FederatedStream else fitted.fit)(table)
            else:
                make(table, **(given | choices))
    except Exception as error:
        faults = {
            "CHARGED": bool(spent),
            "FITTED": hasattr(fitted, "components_") or hasattr(fitted, "model_"),
            "QUOTED": SECRET in "".join(traceback.format_exception(error)),
        }
        # Libraries write several lines and name their own versions in the later ones.
        lines = str(error).splitlines() or [""]
        return " ".join([f"{type(error).__name__}: {lines[0]}", *(name for name, is_so in faults.items() if is_so)])
    return "taken"


def _written(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"array{value.tolist()}" if value.size < 8 else f"array of shape {value.shape}"
    return repr(value).replace(SECRET, "...") if len(repr(value)) < 80 else type(value).__name__


def _said(lines: list[tuple[str, str]]) -> str:
    """Each text once, behind all that it is said of."""
    of: dict[str, list[str]] = {}
    for what, text in lines:
        of.setdefault(text, []).append(what)
    return "\n".join(f"{'; '.join(whats)}\n  {text}" for text, whats in of.items())


def refusals() -> dict[str, str]:
    """By estimator and setting: the texts, and which values each is said of."""
    entries = {}
    # Of a hopeless budget plans speak, which take long and are not meant.
    with patch.object(recommendation, "hopeless", lambda facts, method: None), np.errstate(all="ignore"):
        for make, (settings, parted) in _ESTIMATORS.items():
            table = parted(ROWS)
            has = inspect.signature(make).parameters
            for name in WRONG:
                if name in has:
                    lines = [(_written(value), _refusal(make, table, settings | {name: value})) for value in WRONG[name]]
                    exact = _EXACT | ({"row_bound": None} if "row_bound" in has else {})
                    for value, (what, text) in zip(WRONG[name], lines.copy(), strict=True):
                        # Where a search for bounds has no form without a budget, that is all it would say.
                        without = _refusal(make, table, settings | exact | {name: value}) if name != "epsilon" else text
                        if without != text:
                            lines.append((f"{what} without a budget", without))
                    entries[f"{make.__name__}, {name}"] = _said(lines)
            lines = [
                (", ".join(f"{name}={value!r}" for name, value in choices.items()), _refusal(make, table, settings | choices))
                for choices in TOGETHER.get(make, ())
            ]
            if lines:
                entries[f"{make.__name__}, together"] = _said(lines)
            lines = [(kind, _refusal(make, parted(wrong), settings)) for kind, wrong in TABLES.items()]
            entries[f"{make.__name__}, tables"] = _said(lines)
    return entries
