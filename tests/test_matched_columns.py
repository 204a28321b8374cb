"""Columns of another table are found by name, in the same way by an estimator, its model, the model's file and the command."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp

from commands.command_tables import eigenveil
from eigenveil import FederatedPCA, GossipPCA, Model, PrivatePCA, StreamingPCA
from eigenveil.data.rows import DenseRows

RNG = np.random.default_rng(7)
COUNT = 400
TABLE = pd.DataFrame(RNG.standard_normal((COUNT, 3)) * [3.0, 2.0, 1.0] + [1.0, 50.0, -4.0], columns=["age", "pulse", "dose"])
TABLE["sex"] = RNG.choice(["f", "m", "x"], COUNT)
ONE_HOT = {"sex": ["m", "f"]}
LEVELS = np.column_stack([TABLE["sex"] == "m", TABLE["sex"] == "f"]).astype(float)
# The columns of the fit, in its order.
ROWS = np.column_stack([TABLE[["age", "pulse"]], LEVELS, TABLE["dose"]])[:, [0, 1, 4, 2, 3]]
EXACT: dict[str, Any] = {"epsilon": None, "one_hot": ONE_HOT}
HALVES = {"north": TABLE[:200], "south": TABLE[200:]}
FITS: dict[str, Callable[[], Any]] = {
    "table": lambda: PrivatePCA(2, **EXACT).fit(TABLE),
    "sites": lambda: FederatedPCA(2, **EXACT).fit(HALVES),
    "peers": lambda: GossipPCA(2, **EXACT, graph="complete").fit(HALVES),
    "stream": lambda: StreamingPCA(2, **EXACT).fit(TABLE),
}
KINDS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda table: table,
    "polars": pl.from_pandas,
    "lazy polars": lambda table: pl.from_pandas(table).lazy(),
    "arrow": lambda table: pa.Table.from_pandas(table, preserve_index=False),
    "arrow batch": lambda table: pa.RecordBatch.from_pandas(table, preserve_index=False),
    "duckdb": lambda table: duckdb.connect().from_arrow(pa.Table.from_pandas(table, preserve_index=False)),
    "categories": lambda table: table.astype({name: "category" for name in table if name == "sex"}),
}


@pytest.fixture(scope="module", params=FITS)
def fitted(request: Any) -> Any:
    """An estimator of each kind, fitted to the table."""
    return FITS[request.param]()


def expected(fitted: Any) -> Any:
    """Scores by the formula, of rows whose columns are put in order by hand."""
    return (ROWS - fitted.model_.mean) @ fitted.model_.components.T


@pytest.mark.parametrize("kind", KINDS)
def test_columns_are_matched_by_name(fitted: Any, kind: str, tmp_path: Path) -> None:
    model: Model = fitted.model_
    assert model.columns == ("age", "pulse", "dose", "sex_m", "sex_f")
    path = tmp_path / "model.safetensors"
    model.save(path)
    shuffled = TABLE[["sex", "dose", "age", "pulse"]].assign(note="text", when=pd.Timestamp("2026-01-01"), z=np.nan)
    for one in (fitted, model, Model.load(path)):
        np.testing.assert_allclose(one.transform(KINDS[kind](shuffled)), expected(fitted), atol=1e-9)
        for lost in ("age", "sex"):
            with pytest.raises(ValueError, match=f"lacks columns of the model: {lost}"):
                one.transform(KINDS[kind](shuffled.drop(columns=lost)))
        with pytest.raises(ValueError, match=r"dose \(text\).* fitted on numbers there"):
            one.transform(KINDS[kind](shuffled.assign(dose="high")))


def test_the_command_agrees(fitted: Any, tmp_path: Path) -> None:
    fitted.model_.save(tmp_path / "m.safetensors")
    TABLE[["sex", "dose", "age", "pulse"]].to_csv(tmp_path / "people.csv", index=False)
    eigenveil("transform", tmp_path / "people.csv", "-m", tmp_path / "m.safetensors", "-o", tmp_path / "s.csv")
    np.testing.assert_allclose(pd.read_csv(tmp_path / "s.csv").to_numpy(), expected(fitted), atol=1e-9)


def test_levels_that_are_new_or_missing_are_zero(fitted: Any) -> None:
    odd = TABLE[:3].assign(sex=["other", None, "f"])
    rows = ROWS[:3].copy()
    rows[:, 3:] = [[0, 0], [0, 0], [0, 1]]
    wanted = (rows - fitted.model_.mean) @ fitted.model_.components.T
    for one in (fitted, fitted.model_):
        np.testing.assert_allclose(one.transform(odd), wanted, atol=1e-9)


def test_what_has_no_names_is_taken_by_place(fitted: Any) -> None:
    model: Model = fitted.model_
    unnamed: list[Any] = [ROWS, ROWS.tolist(), sp.csr_array(ROWS), pd.DataFrame(ROWS), ROWS.astype(object), DenseRows(ROWS)]
    for rows in unnamed:
        np.testing.assert_allclose(model.transform(rows), expected(fitted), atol=1e-9)
        with pytest.raises(ValueError, match="rows must have 5 columns, as the model does, got 4"):
            model.transform(DenseRows(ROWS[:, :4]) if isinstance(rows, DenseRows) else sp.csr_array(ROWS[:, :4]))
    nameless = PrivatePCA(2, epsilon=None).fit(ROWS).model_
    np.testing.assert_allclose(
        nameless.transform(pd.DataFrame(ROWS, columns=list("vwxyz"))), nameless.transform(ROWS), atol=1e-12
    )


def test_names_that_are_no_text_are_not_taken_by_place(fitted: Any) -> None:
    numbered = pd.DataFrame(ROWS)
    for names in ([0, 2, 1, 3, 4], [1, 2, 3, 4, 5], [(name, 0) for name in "abcde"]):
        other = numbered.set_axis(pd.Index(names, tupleize_cols=False), axis=1)
        for one in (fitted, fitted.model_):
            with pytest.raises(ValueError, match="column names that are not text"):
                one.transform(other)
    plain = PrivatePCA(2, epsilon=None).fit(numbered)
    for call in (plain.transform, plain.model_.transform, PrivatePCA(2, epsilon=1.0, delta=1e-5).fit):
        with pytest.raises(ValueError, match="numbered columns in another order"):
            call(numbered[[4, 3, 2, 1, 0]])
    # Years, of which the place is all there is.
    years = numbered.set_axis(range(2000, 2005), axis=1)
    again = PrivatePCA(2, epsilon=None).fit(years)
    np.testing.assert_allclose(again.transform(years), plain.transform(numbered), atol=1e-9)


def test_doubtful_tables_are_refused_in_words(fitted: Any) -> None:
    twice = TABLE.rename(columns={"dose": "age"})
    mixed = TABLE.rename(columns={"dose": 4})
    secret = TABLE.assign(dose=object())
    masked = np.ma.MaskedArray(ROWS, mask=ROWS > 2)
    wrong: list[tuple[Any, str]] = [
        (twice.assign(dose=1.0), "more than one column called 'age'"),
        (mixed, "column names of several types|Feature names are only supported"),
        (secret, "dose"),
        (ROWS[0], "must have two dimensions"),
        (masked, "masked array"),
        (ROWS + 1j, "must hold real numbers"),
        ([["a"] * 5], "must be an array or a sparse matrix of real numbers|must hold real numbers"),
        (None, "must have two dimensions"),
    ]
    for table, words in wrong:
        with pytest.raises((ValueError, TypeError), match=words):
            fitted.model_.transform(table)


@pytest.mark.parametrize("missing", ["refuse", "counts", "drop", "fill"])
def test_gaps_are_what_the_fit_made_of_them(missing: str) -> None:
    torn = TABLE.copy()
    torn.loc[3, "pulse"] = np.nan
    rule: dict[str, Any] = {"missing": missing} | ({"missing_fill": 7.0} if missing == "fill" else {})
    fitted = PrivatePCA(2, epsilon=None, columns=["age", "pulse", "dose"], **rule).fit(TABLE)
    model = fitted.model_
    if missing == "refuse":
        for one in (fitted, model):
            with pytest.raises(ValueError, match=r"(missing values|NaN or infinite entries in pulse|contains NaN)"):
                one.transform(torn)
        return
    rows = torn[["age", "pulse", "dose"]].to_numpy().copy()
    rows[3, 1] = {"counts": model.mean[1], "drop": np.nan, "fill": 7.0}[missing]
    wanted = (rows - model.mean) @ model.components.T
    for one in (fitted, model):
        np.testing.assert_allclose(one.transform(torn), wanted, atol=1e-9)
        np.testing.assert_allclose(one.transform(pl.from_pandas(torn).with_columns(pulse=pl.col("pulse").fill_nan(None))), wanted)
    with pytest.raises(ValueError, match="infinit"):
        model.transform(torn.assign(age=np.inf))


def test_lazy_tables_are_fitted_and_only_their_columns_are_read(tmp_path: Path) -> None:
    TABLE.assign(who=np.arange(COUNT) // 2).to_parquet(tmp_path / "people.parquet")
    db = duckdb.connect()
    choices: dict[str, Any] = EXACT | {"person": "who", "drop": ["dose"]}
    plain = PrivatePCA(2, **choices).fit(pd.read_parquet(tmp_path / "people.parquet"))
    boom = pl.col("age").map_elements(lambda _: 1 / 0, return_dtype=pl.Float64).alias("unused")
    lazy = pl.scan_parquet(tmp_path / "people.parquet")
    for table in (lazy, db.read_parquet(str(tmp_path / "people.parquet"))):
        found = PrivatePCA(2, **choices).fit(table)
        assert found.components_.tobytes() == plain.components_.tobytes()
        np.testing.assert_allclose(found.transform(table), plain.transform(TABLE), atol=1e-12)
    # A column that is not analysed is never computed, and one that is names no value in its error.
    assert PrivatePCA(2, epsilon=None, columns=["age", "pulse"]).fit(lazy.with_columns(boom)).n_features_in_ == 2
    with pytest.raises(ValueError, match="X could not be collected"):
        PrivatePCA(2, epsilon=None, columns=["age", "pulse", "unused"]).fit(lazy.with_columns(boom))


def test_a_relation_whose_connection_is_closed_is_refused_in_our_words() -> None:
    table = TABLE[["age", "pulse", "dose"]]
    model = PrivatePCA(2, epsilon=None).fit(table).model_
    db = duckdb.connect()
    relation = db.from_arrow(pa.Table.from_pandas(table, preserve_index=False))
    db.close()
    for use in (model.transform, model.project, PrivatePCA(2, epsilon=None).fit):
        with pytest.raises(ValueError, match="could not be collected"):
            use(relation)
