"""Which columns are analysed: names, patterns and declared types decide, the same for every kind of table, and never a value."""

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather as pf
import pyarrow.parquet as pq
import pytest

from eigenveil import FederatedPCA, GossipPCA, Ledger, PrivatePCA, StreamingPCA, find_bounds
from eigenveil.core.unit import Neighbours, PrivacyUnit
from eigenveil.data.columns import ColumnChoice, looks_like_id, one_hot_columns
from eigenveil.data.formats import TableParams
from eigenveil.data.rows import DenseRows, NamedRows, WeightedRows
from eigenveil.data.tables import read_table
from eigenveil.errors import ColumnsError, ParameterError, ParameterWarning
from eigenveil.params.declare import in_options

SECRET = "8675309"
NAMES = ("age", "lab_na", "lab_k", "dose, mg", "x[1]", "note")


class Compared(str):
    """A name that counts how often names are compared. A lookup by hash compares a name with itself at most, which is free."""

    times = 0

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_names_are_looked_up_and_not_compared_with_all_others() -> None:
    names = [Compared(f"g{at}") for at in range(2000)]
    for choice in (ColumnChoice(drop=("g1*",)), ColumnChoice(columns=("*",), drop=("g7",), person="g3")):
        Compared.times = 0
        laid_out = choice.laid_out("the table", names)
        assert 0 < len(laid_out.read) < len(names)
        # One list that is searched for every name would make it two million.
        assert Compared.times <= 5 * len(names)
    Compared.times = 0
    assert sum(names[-1] == name for name in names) == 1 and Compared.times == len(names)


@pytest.mark.parametrize(
    ("columns", "drop", "expected"),
    [
        (None, (), NAMES),
        (("age", "note"), (), ("age", "note")),
        (("note", "age"), (), ("note", "age")),
        (("lab_*",), (), ("lab_na", "lab_k")),
        (("lab_k,lab_na",), (), ("lab_k", "lab_na")),
        # A name with a comma or a bracket is a name first.
        (("dose, mg", "x[1]"), (), ("dose, mg", "x[1]")),
        (("*", "age"), ("lab_*", "note"), ("age", "dose, mg", "x[1]")),
        (None, ("lab_?a,note", "dose, mg"), ("age", "lab_k", "x[1]")),
        (("age", "lab_*"), ("age",), ("lab_na", "lab_k")),
    ],
)
def test_names_and_patterns_choose_columns(columns: Any, drop: Any, expected: tuple[str, ...]) -> None:
    assert ColumnChoice(columns=columns, drop=drop).laid_out("t", NAMES).read == expected


def test_everything_that_is_not_there_is_named_at_once() -> None:
    with pytest.raises(ParameterError) as caught:
        ColumnChoice(columns=None, drop=("who", "x*", "y*,when")).laid_out("t", NAMES)
    assert "no column 'who', 'y*', 'when'" in str(caught.value)
    assert caught.value.said(in_options(TableParams)).endswith("Check --drop")
    # Names of a study or a model are no patterns.
    with pytest.raises(ParameterError, match=r"no column 'lab_\*'"):
        ColumnChoice(columns=("lab_*",), literal=True).laid_out("t", NAMES)


IDS = ("id", "ID", "patient_id", "PatientID", "id_patient", "customerid", "patient number", "uuid", "row-id", "Unnamed: 0", "MRN")
OTHERS = ("acid", "idle", "width", "humidity", "paid", "lipid_total", "kid_count", "index_of_pain", "number", "candid", "age")


def test_ids_are_known_by_their_names() -> None:
    assert [name for name in (*IDS, *OTHERS) if looks_like_id(name)] == list(IDS)


def test_an_id_that_was_named_is_not_asked_about() -> None:
    names = ("patient_id", "visit_id", "age")
    assert ColumnChoice().laid_out("t", names).ids == ("patient_id", "visit_id")
    assert ColumnChoice(columns=("*", "visit_id")).laid_out("t", names).ids == ("patient_id",)
    assert ColumnChoice(person="patient_id", drop=("visit_id",)).laid_out("t", names).ids == ()
    assert ColumnChoice(one_hot={"visit_id": ("1",)}, passthrough=("patient_id",)).laid_out("t", names).ids == ()


def test_a_level_is_one_and_all_else_is_zero() -> None:
    for column in (
        pa.array(["f", "m", None, SECRET]),
        pa.array(["f", "m", None, SECRET]).dictionary_encode(),
        pa.chunked_array([["f", "m"], [None, SECRET]]),
        pd.Series(["f", "m", None, SECRET]),
        pd.Series(["f", "m", None, SECRET], dtype="category"),
    ):
        found = np.column_stack(one_hot_columns(column, "sex", ("m", "f", "other")))
        assert found.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]]
        # However many levels: a row's part has norm 0 or 1.
        assert set(np.linalg.norm(found, axis=1)) == {0.0, 1.0}
    assert np.column_stack(one_hot_columns(pa.array([1, 2, None]), "stage", ("2", "1"))).tolist() == [[0, 1], [1, 0], [0, 0]]
    assert np.column_stack(one_hot_columns(pa.array([True, None]), "on", ("true",))).tolist() == [[1], [0]]
    assert np.column_stack(one_hot_columns(pa.nulls(2), "none", ("a",))).tolist() == [[0], [0]]
    with pytest.raises(ValueError, match="two of its public levels are the same"):
        one_hot_columns(pa.array([1.0]), "stage", ("1", "1.0"))
    with pytest.raises(ValueError, match="of the kind date"):
        one_hot_columns(pa.array([1], pa.timestamp("s")), "when", ("1",))


def frame(count: int = 60) -> Any:
    """Two numbers, a truth value, text, a date and an id."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": rng.normal(size=count),
            "dose": rng.normal(size=count) * 3,
            "smokes": rng.random(count) < 0.5,
            "sex": rng.choice(["f", "m", "x"], count),
            "visit": pd.Timestamp("2020-01-01"),
            "patient": [f"p{i % 20}" for i in range(count)],
        }
    )


def as_file(ending: str) -> Callable[[Any, Path], Any]:
    def write(table: Any, folder: Path) -> Path:
        path = folder / f"t.{ending}"
        arrow = pa.Table.from_pandas(table, preserve_index=False)
        match ending:
            case "csv" | "csv.gz" | "csv.zst":
                packed = {"csv": None, "csv.gz": "gzip", "csv.zst": "zstd"}[ending]
                with pa.output_stream(str(path), compression=packed) as file:
                    file.write(table.to_csv(index=False).encode())
            case "parquet":
                pq.write_table(arrow, path, row_group_size=7)
            case "xlsx":
                table.to_excel(path, index=False)
            case _:
                pf.write_feather(arrow, path, chunksize=7)
        return path

    return write


FILES = ("csv", "csv.gz", "csv.zst", "parquet", "feather", "xlsx")
MEMORY: dict[str, Callable[[Any], Any]] = {
    "pandas": lambda table: table,
    "polars": pl.from_pandas,
    "pyarrow": lambda table: pa.Table.from_pandas(table, preserve_index=False),
    "batch": lambda table: pa.RecordBatch.from_pandas(table, preserve_index=False),
}
ASKED: dict[str, Any] = {"drop": ["visit"], "one_hot": {"sex": ["f", "m"]}, "person": "patient"}


def expected_rows() -> Any:
    table = frame()
    return np.column_stack([table["age"], table["dose"], table["smokes"], table["sex"] == "f", table["sex"] == "m"])


@pytest.mark.parametrize("ending", FILES)
def test_every_file_gives_the_same_rows(ending: str, tmp_path: Path) -> None:
    path = as_file(ending)(frame(), tmp_path)
    table = read_table(path, **ASKED, passthrough=["visit"])
    assert table.columns == ("age", "dose", "smokes", "sex_f", "sex_m") and table.available == 6
    assert table.passthrough.schema.names == ["visit"] and table.passthrough.num_rows == 60
    # Twice: a file is read again for every pass.
    for _ in range(2):
        found = np.vstack([block.values for block in table.rows.blocks(8)])
        assert np.allclose(found, expected_rows(), atol=0)
    rows: Any = table.rows
    assert rows.weights.tolist() == [1 / 3] * 60


@pytest.mark.parametrize("kind", MEMORY)
def test_every_table_in_memory_is_fitted_alike(kind: str) -> None:
    given: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6, "row_bound": 3.0, "random_state": 0}
    pca = PrivatePCA(2, **given, **ASKED).fit(MEMORY[kind](frame()))
    whole = PrivatePCA(2, **given, person=frame()["patient"].tolist()).fit(expected_rows())
    assert np.array_equal(pca.components_, whole.components_)
    assert names_of(pca) == ["age", "dose", "smokes", "sex_f", "sex_m"]
    assert pca.model_.settings["one_hot"] == {"sex": ["f", "m"]}
    # Another order of columns, and other columns beside them.
    mixed = frame()[["sex", "visit", "smokes", "dose", "age"]].assign(more=1)
    assert np.allclose(pca.transform(MEMORY[kind](mixed)), whole.transform(expected_rows()))


def names_of(pca: Any) -> list[str]:
    """The columns that an estimator was fitted on."""
    return list(pca.feature_names_in_)


def test_other_estimators_take_columns_too() -> None:
    table = frame().drop(columns=["patient"])
    given: dict[str, Any] = {"drop": ["visit"], "one_hot": {"sex": ["f", "m"]}, "epsilon": None}
    plain = PrivatePCA(2, **given).fit(table)
    for pca in (
        FederatedPCA(2, **given).fit([table[:30], table[30:]]),
        GossipPCA(2, graph="complete", **given).fit([table[:30], table[30:]]),
        StreamingPCA(2, **given).fit(table),
        StreamingPCA(2, **given).fit(io.BytesIO(table.to_csv(index=False).encode())),
    ):
        assert np.allclose(np.abs(np.sum(pca.components_ * plain.components_, axis=1)), 1, atol=1e-6)
        assert names_of(pca) == names_of(plain)
    found = find_bounds(table, columns=["age", "dose"], epsilon=None)
    assert found.dim == 2


def test_streams_choose_columns_of_every_batch() -> None:
    table = frame()
    pca = StreamingPCA(1, epsilon=None, columns=["age", "dose"])
    for start in range(0, 60, 20):
        pca.partial_fit(MEMORY["polars" if start else "pandas"](table[start : start + 20]))
    assert pca.n_samples_seen_ == 60 and names_of(pca) == ["age", "dose"]
    with pytest.raises(ParameterError, match="drop needs a table with column names"):
        StreamingPCA(1, epsilon=None, drop=["age"]).partial_fit(np.zeros((3, 2)))


@pytest.mark.parametrize("kind", [*MEMORY, "parquet", "feather"])
def test_bad_columns_are_all_named_with_what_helps(kind: str, tmp_path: Path) -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    pca = PrivatePCA(1, epsilon=1.0, delta=1e-6, row_bound=1.0, ledger=ledger)
    with pytest.raises(ColumnsError) as caught:
        if kind in MEMORY:
            pca.fit(MEMORY[kind](frame()))
        else:
            read_table(as_file(kind)(frame(), tmp_path))
    assert caught.value.columns == ("sex", "visit", "patient")
    assert "sex (text), visit (date), patient (text)" in str(caught.value)
    said = caught.value.said(in_options(TableParams))
    assert "--drop sex,visit,patient" in said and "--one-hot" in said and "A date must" in said
    assert ledger.spent_mu == 0


@pytest.mark.parametrize("kind", MEMORY)
def test_an_id_is_warned_of_in_python(kind: str) -> None:
    table = frame()[["age", "dose"]].assign(patient_id=range(60))
    with pytest.warns(ParameterWarning, match="'patient_id' looks like an id by name"):
        PrivatePCA(1, epsilon=None).fit(MEMORY[kind](table))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PrivatePCA(1, epsilon=None, drop=["patient_id"]).fit(MEMORY[kind](table))
        PrivatePCA(1, epsilon=None, person="patient_id").fit(MEMORY[kind](table))
        PrivatePCA(1, epsilon=None, columns=["*", "patient_id"]).fit(MEMORY[kind](table))


def test_rows_of_a_file_bring_their_names_and_their_people() -> None:
    values = np.random.default_rng(0).standard_normal((60, 3)) * [4, 2, 1]
    rows = NamedRows(WeightedRows.by_person(DenseRows(values), np.arange(60) // 2), ("a", "b", "c"), "who")
    pca = PrivatePCA(1, epsilon=None, person="who").fit(rows)
    assert list(vars(pca)["feature_names_in_"]) == ["a", "b", "c"] and pca.model_.columns == ("a", "b", "c")
    # Names of an earlier fit are forgotten.
    pca.person = None
    assert not hasattr(pca.fit(DenseRows(values)), "feature_names_in_")
    private = PrivatePCA(1, epsilon=1.0, delta=1e-6, row_bound=12.0, person="who", random_state=0).fit(rows)
    assert private.guarantee_.protects == PrivacyUnit("person", Neighbours.ADD_REMOVE, "who")
    both = FederatedPCA(1, epsilon=None, person="who").fit([rows, rows])
    assert both.model_.columns == ("a", "b", "c")
    with pytest.raises(ValueError, match="site 1: the columns are not those of site 0"):
        FederatedPCA(1, epsilon=None, person="who").fit([rows, NamedRows(rows.inner, ("a", "b", "x"), "who")])
    stream = StreamingPCA(1, epsilon=None).fit(NamedRows(DenseRows(values), ("a", "b", "c")))
    assert stream.model_.columns == ("a", "b", "c")
    # A column that did not group these rows is not claimed, and columns cannot be chosen again.
    for given, name in (({"person": "other"}, "person"), ({"drop": ["a"]}, "drop")):
        with pytest.raises(ParameterError, match=name):
            PrivatePCA(1, epsilon=None, **given).fit(rows)


def test_likelihoods_take_columns_in_any_order() -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.standard_normal((60, 3)) * [4, 2, 1], columns=["a", "b", "c"]).assign(note="x")
    for pca in (PrivatePCA(1, epsilon=None, drop=["note"]), StreamingPCA(1, epsilon=None, drop=["note"])):
        pca.fit(table)
        assert np.allclose(pca.score_samples(table), pca.score_samples(table[["c", "note", "b", "a"]]))


def test_parameters_that_make_no_sense_are_refused() -> None:
    for given, message in (
        ({"columns": 3}, "columns must be names of columns"),
        ({"drop": [""]}, "drop must be names of columns"),
        ({"one_hot": ["sex"]}, "one_hot must be levels by column"),
        ({"one_hot": {"sex": "fm"}}, "one_hot, column sex, must be a list of 1 to"),
        ({"one_hot": {"sex": ["f", "f"]}}, "must be different from each other"),
        ({"one_hot": {"race": ["a"]}}, "has no column 'race'"),
        ({"one_hot": {"sex": ["f"]}, "drop": ["sex"]}, "one_hot names columns of X that are left out: sex"),
        ({"columns": ["age", "dose", "sex"], "one_hot": {"sex": ["f"]}, "person": "who"}, "person names the column 'who'"),
    ):
        with pytest.raises(ValueError, match=message):
            PrivatePCA(1, epsilon=None, **given).fit(frame())
    taken = frame()[["age", "sex"]].assign(sex_f=1.0)
    with pytest.raises(ValueError, match="more than one column called 'sex_f'"):
        PrivatePCA(1, epsilon=None, one_hot={"sex": ["f"]}).fit(taken)
    with pytest.raises(ValueError, match="columns needs a table with column names"):
        PrivatePCA(1, epsilon=None, columns=["age"]).fit(np.zeros((3, 2)))


def test_the_same_name_twice_is_refused_in_memory() -> None:
    table = pd.DataFrame(np.zeros((3, 3)), columns=["a", "b", "a"])
    with pytest.raises(ValueError, match="more than one column called 'a'"):
        PrivatePCA(1, epsilon=None).fit(table)


def test_a_hundred_thousand_columns_are_chosen_at_once() -> None:
    names = tuple(f"gene{i}" for i in range(100_000))
    layout = ColumnChoice(columns=None, drop=("gene1*", *names[:1000])).laid_out("t", names)
    assert len(layout.names) == sum(not name.startswith("gene1") for name in names[1000:])
    kinds = dict.fromkeys(names, "text")
    with pytest.raises(ColumnsError) as caught:
        ColumnChoice().laid_out("t", names, kinds)
    assert len(str(caught.value)) < 1000 and "and 99980 more" in str(caught.value)
