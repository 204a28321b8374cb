"""`load` gives back a fitted estimator: its parameters, its columns, its guarantee and its answers."""

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from commands.command_tables import eigenveil
from eigenveil import FederatedPCA, GossipPCA, Graph, Ledger, Model, ModelFileError, PrivatePCA, StreamingPCA
from eigenveil.data.people import Withheld
from eigenveil.estimators.fitted import record_of
from estimators.tables import NAMES, rows

FRAME = pd.DataFrame(rows(800), columns=NAMES).assign(sex=np.tile(["f", "m"], 400), who=np.arange(800) // 2, note="free text")
SITES = {name: FRAME[at * 200 : at * 200 + 200] for at, name in enumerate("abcd")}
BUDGET: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6, "row_bound": 12.0}
CHOSEN: dict[str, Any] = {"columns": [*NAMES, "sex"], "one_hot": {"sex": ["f", "m"]}}
BASIC: dict[str, Any] = {"columns": NAMES}
FITS: dict[str, Callable[[], Any]] = {
    "exact": lambda: PrivatePCA(2, epsilon=None, **CHOSEN).fit(FRAME),
    "private": lambda: PrivatePCA(2, **BUDGET, **CHOSEN, person="who", whiten=True).fit(FRAME),
    "power": lambda: PrivatePCA(2, **BUDGET, **BASIC, method="power").fit(FRAME),
    "counts": lambda: PrivatePCA(2, **BUDGET, **BASIC, missing="counts").fit(FRAME),
    "units": lambda: PrivatePCA(2, **(BUDGET | {"row_bound": "private", "epsilon": 8.0}), **BASIC, scale="private").fit(FRAME),
    "arrays": lambda: PrivatePCA(
        2, **BUDGET, **BASIC, center=np.zeros(6), scale=tuple(range(1, 7)), drop=["note", "sex", "who"]
    ).fit(FRAME),
    "fraction": lambda: PrivatePCA(0.9, **BUDGET, column_bounds=(-30, np.full(6, 30.0))).fit(rows(800)),
    "sites": lambda: FederatedPCA(2, **BUDGET, **CHOSEN).fit(SITES),
    "peers": lambda: GossipPCA(2, **BUDGET, **CHOSEN, graph="complete").fit(SITES),
}


def same(left: Any, right: Any) -> bool:
    """Whether two parameters are equal and of one type."""
    if isinstance(left, tuple | list):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, np.ndarray):
        return isinstance(right, np.ndarray) and left.dtype == right.dtype and np.array_equal(left, right)
    return bool(left == right) and type(left) is type(right)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", FITS)
def test_what_was_saved_is_fitted_again(kind: str, tmp_path: Path) -> None:
    pca = FITS[kind]()
    path = tmp_path / "model.safetensors"
    pca.save(path)
    again = type(pca).load(path)
    given, found = pca.get_params(), again.get_params()
    assert given.keys() == found.keys()
    assert [name for name in given if not same(given[name], found[name])] == []
    table = rows(800) if kind == "fraction" else FRAME[sorted(FRAME.columns)]
    np.testing.assert_array_equal(again.transform(table), pca.transform(table))
    scores = pca.transform(table)[:7]
    np.testing.assert_array_equal(again.inverse_transform(scores), pca.inverse_transform(scores))
    assert again.get_feature_names_out().tolist() == pca.get_feature_names_out().tolist()
    for name in sorted(name for name in vars(again) if name.endswith("_") and name != "model_"):
        mine, theirs = getattr(pca, name), getattr(again, name)
        assert np.array_equal(mine, theirs) if isinstance(mine, np.ndarray) else mine == theirs or name == "subspace_", name
    for name in ("noise_variance_", "observed_fraction_", "bound_usage_", "warnings_", "guarantee_", "n_features_in_"):
        assert hasattr(again, name)
    # A file has the components and the average variance beside them.
    pca._whole = None
    assert again.score(table) == pca.score(table)
    named = again.set_output(transform="pandas").transform(FRAME if kind != "fraction" else pd.DataFrame(table))
    assert list(named.columns) == again.get_feature_names_out().tolist()
    again.save(tmp_path / "second.safetensors")
    assert (tmp_path / "second.safetensors").read_bytes() == path.read_bytes()


EDGES = [("a", "b"), ("b", "c"), ("c", "d"), ("a", "d")]


class Drawn:
    """A graph as networkx has it."""

    nodes = "abcd"
    edges = EDGES


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "graph", [Graph.of("abcd", EDGES), Drawn(), set(EDGES), {"a": {"b", "d"}, "b": {"a", "c"}, "c": {"b", "d"}, "d": {"a", "c"}}]
)
def test_a_graph_is_kept_however_it_was_given(graph: Any, tmp_path: Path) -> None:
    pca = GossipPCA(1, **BUDGET, columns=NAMES, graph=graph, random_state=1).fit(SITES)
    pca.save(tmp_path / "m")
    loaded: Any = GossipPCA.load(tmp_path / "m")
    again = loaded.set_params(random_state=1).fit(SITES)
    np.testing.assert_array_equal(again.components_, pca.components_)


def test_numbers_are_kept_whoever_holds_them(tmp_path: Path) -> None:
    units, wide = pd.Series(np.arange(1.0, 7.0)), pd.Series(np.full(6, 30.0))
    budget = BUDGET | {"epsilon": Fraction(2)}
    pca = PrivatePCA(1, **budget, **BASIC, scale=units, column_bounds=(-30, wide), random_state=1).fit(FRAME)
    pca.save(tmp_path / "m")
    again: Any = PrivatePCA.load(tmp_path / "m")
    np.testing.assert_array_equal(again.scale, units)
    np.testing.assert_array_equal(again.column_bounds[1], wide)
    assert again.epsilon == 2
    np.testing.assert_array_equal(again.set_params(random_state=1).fit(FRAME).components_, pca.components_)


def test_a_value_that_cannot_be_kept_loses_no_fit() -> None:
    class Odd:
        def __array__(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError

    pca = PrivatePCA(1, **BUDGET, missing_fill=Odd())
    assert "missing_fill" not in record_of(pca, noise_variance=1.0, observed=None)["parameters"]


def test_a_loaded_estimator_is_an_estimator(tmp_path: Path) -> None:
    pca = PrivatePCA(2, epsilon=None, **CHOSEN).fit(FRAME)
    pca.save(tmp_path / "m")
    again = PrivatePCA.load(tmp_path / "m")
    assert not hasattr(clone(again), "components_")
    np.testing.assert_array_equal(again.fit(FRAME).components_, pca.components_)
    pipeline = make_pipeline(FunctionTransformer(), PrivatePCA.load(tmp_path / "m"))
    np.testing.assert_array_equal(pipeline.transform(FRAME), pca.transform(FRAME))
    with pytest.raises(ValueError, match="lacks columns of the model: dose"):
        again.transform(FRAME.drop(columns="dose"))


def test_secrets_are_not_in_the_file(tmp_path: Path) -> None:
    ledger = Ledger(epsilon=9.0, delta=1e-5)
    who = [f"Ann Smith {number}" for number in FRAME["who"]]
    pca = PrivatePCA(2, **BUDGET, **BASIC, person=who, random_state=918273645, ledger=ledger).fit(FRAME)
    pca.save(tmp_path / "m")
    raw = (tmp_path / "m").read_bytes()
    assert b"918273645" not in raw
    assert b"Ann Smith" not in raw
    again: Any = PrivatePCA.load(tmp_path / "m")
    assert again.random_state is None
    assert again.ledger is None
    assert isinstance(again.person, Withheld)
    with pytest.raises(ValueError, match="person"):
        again.fit(FRAME)
    before = len(ledger.charges)
    again.set_params(person=None).fit(FRAME)
    assert len(ledger.charges) == before
    assert len(again.ledger_.charges) > 0


def test_the_command_writes_a_loadable_fit(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "people.csv", index=False)
    target = tmp_path / "m.safetensors"
    how = ("--drop", "note", "--one-hot", "sex=f,m", "--person", "who", "--row-bound", 12, "--epsilon", 2, "--delta", 1e-6)
    eigenveil("fit", tmp_path / "people.csv", "-k", 2, *how, "-o", target)
    pca: Any = PrivatePCA.load(target)
    np.testing.assert_array_equal(pca.transform(FRAME), Model.load(target).transform(FRAME[FRAME.columns[::-1]]))
    assert (pca.epsilon, pca.delta, pca.person) == (2.0, 1e-6, "who")
    assert pca.fit(FRAME).guarantee_.epsilon == 2.0


def test_files_of_others_are_refused_in_words(tmp_path: Path) -> None:
    PrivatePCA(2, epsilon=None).fit(rows()).save(tmp_path / "table")
    StreamingPCA(2, epsilon=None).fit(rows()).model_.save(tmp_path / "stream")
    with pytest.raises(ModelFileError, match=r"was fitted by PrivatePCA, and FederatedPCA.load reads .*Model.load"):
        FederatedPCA.load(tmp_path / "table")
    with pytest.raises(ModelFileError, match="does not say which estimator fitted it"):
        PrivatePCA.load(tmp_path / "stream")
    with pytest.raises(ModelFileError, match="does not exist"):
        PrivatePCA.load(tmp_path / "nowhere")


HOSTILE: dict[str, Any] = {
    "no table": [],
    "unknown parameter": {"nonsense": 1},
    "a seed": {"random_state": 1},
    "object array": {"scale": {"array": [1.0], "dtype": "|O"}},
    "another thing": {"scale": {"pickle": "gASV"}},
    "no parameters": None,
}


@pytest.mark.parametrize("parameters", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_record_is_damage(parameters: Any, tmp_path: Path) -> None:
    pca = PrivatePCA(2, epsilon=None).fit(rows())
    record = json.loads(json.dumps(dict(pca.model_.estimator) | {"parameters": parameters}))
    replace(pca.model_, estimator=record).save(tmp_path / "m")
    with pytest.raises(ModelFileError, match="is damaged"):
        PrivatePCA.load(tmp_path / "m")
    huge = [10**400] * pca.n_features_in_
    for damage in (
        {"noise_variance": "much"},
        {"noise_variance": None},
        {"observed": [1.0]},
        {"observed": "x"},
        {"observed": huge},
        {"noise_variance": 10**400},
    ):
        replace(pca.model_, estimator=dict(pca.model_.estimator) | damage).save(tmp_path / "m")
        with pytest.raises(ModelFileError, match="is damaged"):
            PrivatePCA.load(tmp_path / "m")


@pytest.mark.parametrize("settings", [{}, {"noise_floor": [1.0]}, {"noise_floor": "x"}])
def test_a_hostile_noise_floor_is_none(settings: dict[str, Any], tmp_path: Path) -> None:
    pca = PrivatePCA(2, **BUDGET).fit(rows())
    replace(pca.model_, settings=settings).save(tmp_path / "m")
    assert np.isfinite(PrivatePCA.load(tmp_path / "m").score(rows()))
