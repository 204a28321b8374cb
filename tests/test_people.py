"""Whose row it is: what names nobody is refused at every way in, before anything is paid, and nobody is named for it."""

import math
import re
import traceback
import uuid
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from commands.command_tables import eigenveil
from each import each
from eigenveil import FederatedPCA, GossipPCA, Ledger, PrivatePCA, find_bounds, released_spectrum
from eigenveil.core.domain import Domain
from eigenveil.core.unit import Neighbours
from eigenveil.data.frames import person_ids
from eigenveil.data.people import PLACEHOLDERS, identifiers
from eigenveil.data.rows import DenseRows, WeightedRows
from eigenveil.data.tables import read_table
from eigenveil.estimators.bounds.columns import find_column_bounds
from eigenveil.network.agents.site_data import SiteData
from eigenveil.network.study import StudyFile
from eigenveil.privacy.sums import bounded_gram, bounded_sum
from eigenveil.recommend import Interactions, read_interactions
from network.study_parties import document

SECRET = "p8675309"
BLANK = ["", " ", "\t", "\u00a0", "\u3000", "\ufeff", "\u200b ", "\r", "\u00ad", "\u200e", "\u2800", "\u3164 "]
WORDS = ["NA", "na", " N/A ", "n/a", "null", "NULL", "None", "nan", "NaN", "<NA>", "NaT", "-", "?", ".", "#N/A", "\\N"]
WORDS += ["-nan", "-NaN", "1.#QNAN", "-1.#IND", "#NA", "#N/A N/A", "#NULL!", "(null)", "[NULL]", "<null>", "nil"]
NOBODY = [*BLANK, *WORDS]
PADDED = [f" {SECRET}x", f"{SECRET}x ", f"{SECRET}\n", f"\ufeff{SECRET}"]
SOMEBODY = ["0", "-1", "999", "nana", "Nan Li", "N", "null7", "no-one", "--", "Ärzte", "\u60a8", "a b"]
COLUMNS = ["age", "weight", "pulse", "mood"]
COUNT = 12
ROWS = np.random.default_rng(0).standard_normal((COUNT, len(COLUMNS)))
REFUSED = r'(person|user) column "who" has missing, blank or placeholder ids'


def with_one(value: Any) -> list[Any]:
    """Identifiers of which one is `value`."""
    ids: list[Any] = [f"{SECRET}{i // 2}" for i in range(COUNT)]
    ids[7] = value
    return ids


def columns(ids: Any) -> dict[str, Any]:
    return dict(zip(COLUMNS, ROWS.T, strict=True)) | {"who": ids}


def refused(act: Callable[..., Any], message: str, *given: Any) -> None:
    """A `ValueError` for this reason, in which no identifier is shown, nor how many there are."""
    with pytest.raises(ValueError, match=message) as caught:
        act(*given)
    said: list[str] = []
    error: BaseException | None = caught.value
    while error is not None:
        said += traceback.format_exception_only(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    assert SECRET not in "".join(said)
    assert not re.search(r"\b\d+ (rows|ids|people)", "".join(said))


@each("value", NOBODY)
@each("form", [list, tuple, np.array, lambda ids: np.array(ids, dtype=object), pd.Series, pl.Series])
def test_text_that_names_nobody_is_refused(value: str, form: Callable[[Any], Any]) -> None:
    refused(lambda: identifiers(form(with_one(value))), "^person has missing, blank or placeholder ids")


@each("value", [value for value in NOBODY if value.isascii()])
def test_bytes_that_name_nobody_are_refused(value: str) -> None:
    ids = [str(one).encode() for one in with_one(value)]
    for form in (ids, np.array(ids), np.array(ids, dtype=object)):
        refused(identifiers, "^person has missing, blank or placeholder ids", form)


@pytest.mark.parametrize("value", [("b", ""), ("b", "NA"), ("", "x"), ("b", None), ("b", math.nan), ("b", ("c", " ")), ()])
def test_an_identifier_of_several_parts_must_have_them_all(value: Any) -> None:
    ids = pd.Series([("a", "x"), ("a", "y"), value, value])
    refused(identifiers, "^person has missing, blank or placeholder ids", ids)
    refused(identifiers, "^person has missing, blank or placeholder ids", np.array([("a", math.nan)], dtype="U1,f8"))
    assert identifiers(ids[:2]).tolist() == [("a", "x"), ("a", "y")]


def test_numpy_does_not_make_one_person_of_two() -> None:
    for ids in ([b"b", b"b\0", b"c"], (b"\x01\0", b"\x01", b"\x01\0\0")):
        assert WeightedRows.by_person(DenseRows(np.zeros((3, 1))), ids).weights.tolist() == [1.0, 1.0, 1.0]
    # As text, zeros at the end are what is left of a field of fixed width, as spaces are.
    refused(identifiers, "^person has ids with spaces before or after them", ["b", "b\0", "c"])
    refused(identifiers, "^person has missing, blank or placeholder ids", [b"b", b"\0\0"])


@pytest.mark.parametrize("value", PADDED, ids=repr)
def test_text_with_spaces_around_it_is_refused(value: str) -> None:
    """Taken for another person than the same text without, somebody would count twice."""
    message = "has ids with spaces before or after them. Remove these first"
    refused(lambda: identifiers(with_one(value)), message)
    refused(lambda: identifiers(np.array(with_one(value))), message)
    refused(lambda: identifiers([str(one).encode() for one in with_one(value) if str(one).isascii()] + [b" a"]), message)
    refused(lambda: person_ids(pa.table({"who": with_one(value)}), "who"), f'person column "who" {message}')


MISSING: dict[str, Any] = {
    "None": with_one(None),
    "NaN beside text": with_one(np.nan),
    "NaN that became text": np.array(with_one(np.nan)),
    "NaN in objects": np.array(with_one(np.nan), dtype=object),
    "NA": np.array(with_one(pd.NA), dtype=object),
    "NaT": np.array(with_one(pd.NaT), dtype=object),
    "masked, alone": np.array(with_one(np.ma.masked), dtype=object),
    "masked": np.ma.masked_array(np.arange(3), mask=[False, True, False]),
    "masked text": np.ma.masked_array(["a", "b", "c"], mask=[False, True, False]),
    "float NaN": np.array([1.0, np.nan]),
    "list NaN": [1.0, float("nan")],
    "infinity": np.array([1.0, -np.inf]),
    "infinity among objects": [1.0, float("inf")],
    "complex NaN": np.array([1.0, complex(0, np.nan)]),
    "decimal NaN": [Decimal("NaN"), Decimal(1)],
    "numpy NaT": np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"),
    "timedelta NaT": np.array([1, "NaT"], dtype="timedelta64[s]"),
    "pandas whole numbers": pd.array([1, None], dtype="Int64"),
    "pandas series of those": pd.Series([1, None], dtype="Int64"),
    "pandas text": pd.Series(["a", None], dtype="string"),
    "pandas categories": pd.Series(pd.Categorical(["a", None])),
    "pandas dates": pd.Series([pd.Timestamp("2020-01-01"), pd.NaT]),
    "polars whole numbers": pl.Series([1, None]),
    "arrow": pa.chunked_array([["a", None]]),
    "arrow whole numbers": pa.chunked_array([[1, None]]),
}


@each("ids", MISSING.values())
def test_what_is_missing_is_refused(ids: Any) -> None:
    refused(lambda: identifiers(ids), "^person has missing, blank or placeholder ids")
    refused(lambda: WeightedRows.by_person(DenseRows(np.zeros((len(ids), 1))), ids), "^person has missing")


KNOWN: dict[str, Any] = {
    "text": SOMEBODY,
    "array": np.array(SOMEBODY),
    "objects": np.array(SOMEBODY, dtype=object),
    "bytes": [text.encode() for text in SOMEBODY],
    "digests": [bytes([0, 1, 32, 255]), bytes([32, 200, 9]), bytes([9, 200, 32]), b"\xff", b"\x01\t", b"\x01 "],
    "codes that mean nothing here": [-1, 0, 999, 9999],
    "floats": [-1.0, 0.0, 0.5],
    "nullable": pd.array([1, 2], dtype="Int64"),
    "dates": [date(2020, 1, 1), date(2021, 1, 1)],
    "uuids": [uuid.UUID(int=1), uuid.UUID(int=2)],
    "unmasked": np.ma.masked_array([1, 2]),
    "booleans": [True, False],
}


@pytest.mark.parametrize("ids", KNOWN.values(), ids=KNOWN.keys())
def test_somebody_is_somebody(ids: Any) -> None:
    assert WeightedRows.by_person(DenseRows(np.zeros((len(ids), 1))), ids).weights.tolist() == [1.0] * len(ids)
    if not isinstance(ids, np.ma.MaskedArray):
        assert sorted(person_ids(pa.table({"who": pa.array(list(ids))}), "who")) == list(range(len(ids)))


def test_floats_that_cannot_tell_whole_numbers_apart_are_refused() -> None:
    large = float(2**53)
    for ids in ([1.0, large], np.array([1.0, -large]), np.array([1.0, 2**24], dtype=np.float32)):
        refused(identifiers, "numbers too large to tell people apart", ids)
    refused(lambda: person_ids(pa.table({"who": [1.0, large]}), "who"), 'person column "who" has numbers too large')
    assert len(set(identifiers([2**53, 2**53 + 1]).tolist())) == 2


def as_tables(ids: list[Any]) -> dict[str, Any]:
    """The rows with these identifiers in every kind of table that can hold them."""
    frame, arrow = pd.DataFrame(columns(ids)), pa.table(columns(ids))
    where = arrow.schema.get_field_index("who")

    def typed(kind: Any) -> Any:
        return arrow.set_column(where, "who", arrow["who"].cast(kind))

    return {
        "pandas text": frame,
        "pandas objects": frame.assign(who=np.array(ids, dtype=object)),
        "pandas string": frame.assign(who=frame["who"].astype("string")),
        "pandas categories": frame.assign(who=frame["who"].astype("category")),
        "polars": pl.DataFrame(columns(ids)),
        "polars categories": pl.DataFrame(columns(ids)).with_columns(pl.col("who").cast(pl.Categorical)),
        "arrow": arrow,
        "arrow batch": arrow.to_batches()[0],
        "arrow large": typed(pa.large_string()),
        "arrow view": typed(pa.string_view()),
        "arrow bytes": typed(pa.binary()),
        "arrow dictionary": arrow.set_column(where, "who", arrow["who"].dictionary_encode()),
        "arrow chunks": pa.concat_tables([arrow.slice(0, 5), arrow.slice(5)]),
    }


TABLES = as_tables(with_one("fine"))


@pytest.mark.parametrize("kind", TABLES)
def test_the_tables_themselves_are_sound(kind: str) -> None:
    found = person_ids(TABLES[kind], "who")
    assert [[a == b for b in found] for a in found] == [[a == b for b in with_one("fine")] for a in with_one("fine")]


@each("value", [*NOBODY, None])
@each("kind", TABLES)
def test_no_table_brings_nobody_in(kind: str, value: str | None) -> None:
    refused(lambda: person_ids(as_tables(with_one(value))[kind], "who"), f"^{REFUSED}")


def test_a_category_that_no_row_has_is_nobodys() -> None:
    unused = pd.DataFrame({"who": pd.Categorical(["a", "b"], categories=["", "a", "b"])})
    assert len(set(person_ids(unused, "who"))) == 2


BOUNDED: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "row_bound": 3.0}
SMALL: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6}
FITS: dict[str, Callable[[Any, Any, Ledger], Any]] = {
    "PrivatePCA": lambda X, person, ledger: PrivatePCA(2, **BOUNDED, person=person, ledger=ledger).fit(X),
    "find_bounds": lambda X, person, ledger: find_bounds(X, **SMALL, person=person, ledger=ledger),
    "find_column_bounds": lambda X, person, ledger: find_column_bounds(X, **SMALL, person=person, ledger=ledger),
    "released_spectrum": lambda X, person, ledger: released_spectrum(X, **BOUNDED, person=person, ledger=ledger),
}


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("value", ["", "NA", None], ids=repr)
def test_no_fit_takes_nobody_or_is_charged_for_it(fit: str, value: str | None) -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    for table in as_tables(with_one(value)).values():
        refused(FITS[fit], f"^{REFUSED}", table, "who", ledger)
    for ids in (with_one(value), np.array(with_one(value), dtype=object)):
        refused(FITS[fit], "^person has missing, blank or placeholder ids", ROWS, ids, ledger)
    assert ledger.charges == ()


@pytest.mark.parametrize("value", ["", " null ", None], ids=repr)
def test_no_site_and_no_peer_takes_nobody(value: str | None) -> None:
    for kind, table in as_tables(with_one(value)).items():
        sites = {"Graz": TABLES[kind], "Linz": table, "Wien": TABLES[kind]}
        for pca in (
            FederatedPCA(2, **BOUNDED, person="who"),
            FederatedPCA(2, **BOUNDED, person="who", trust="masked"),
            GossipPCA(2, **BOUNDED, person="who", graph="complete"),
        ):
            refused(pca.fit, f"^Linz: {REFUSED}", sites)


@pytest.mark.parametrize("value", NOBODY, ids=repr)
@pytest.mark.parametrize("ending", ["csv", "parquet", "dictionary.parquet"])
def test_no_file_brings_nobody_in(value: str, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"clinic.{ending}"
    if ending == "csv":
        pd.DataFrame(columns(with_one(value))).to_csv(path, index=False)
    else:
        pq.write_table(as_tables(with_one(value))["arrow dictionary" if "dict" in ending else "arrow"], path)
    refused(lambda: read_table(path, person="who"), f"^{REFUSED}")
    study = StudyFile.of(document(task={"person": "who"}))
    refused(lambda: SiteData.read(path, study), f"^{REFUSED}")
    # Nobody asked whose row it is: the column is left out, or refused for not being numbers.
    assert read_table(path, drop=["who"]).rows.shape == ROWS.shape


@pytest.mark.parametrize("value", ["", "NA", "null"])
def test_no_file_of_numbered_people_brings_nobody_in(value: str, tmp_path: Path) -> None:
    path = tmp_path / "clinic.csv"
    ids = [str(i // 2) for i in range(COUNT)]
    pd.DataFrame(columns(ids)).to_csv(path, index=False)
    assert len(set(read_table(path, person="who").rows.weights)) == 1  # type: ignore[attr-defined]
    pd.DataFrame(columns([*ids[:-1], value])).to_csv(path, index=False)
    refused(lambda: read_table(path, person="who"), f"^{REFUSED}")


def test_whether_two_rows_are_one_persons_depends_on_nobody_else(tmp_path: Path) -> None:
    """ "7" and "007" were one person while every identifier looked like a number, and two as soon as somebody's did not."""
    found = []
    for last in ("8", "x8"):
        path = tmp_path / "clinic.csv"
        path.write_text(f"who,a,b\n7,1,2\n007,3,4\n{last},5,6\n")
        found.append(read_table(path, person="who").rows.weights.tolist())  # type: ignore[attr-defined]
    assert found == [[1.0, 1.0, 1.0]] * 2


PRIVATE = ("--epsilon", 1, "--delta", 1e-6)
COMMANDS: dict[str, tuple[Any, ...]] = {
    "fit": ("-k", 2, *PRIVATE, "--row-bound", 3, "-o", "model.safetensors"),
    "bounds": PRIVATE,
    "spectrum": (*PRIVATE, "--row-bound", 3, "-o", "spectrum.json"),
    "simulate": ("-k", 2, *PRIVATE, "--row-bound", 3, "--sites", 2),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_no_command_takes_nobody(command: str, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"clinic.{ending}"
    frame = pd.DataFrame(columns(with_one("null")))
    frame.to_csv(path, index=False) if ending == "csv" else frame.to_parquet(path)
    result = eigenveil(command, path, *COMMANDS[command], "--person", "who")
    said = " ".join(result.stderr.split())
    assert result.exit_code == 2 and re.search(REFUSED, said), result.output
    assert "Give every row the id of its person, or leave those rows out." in said
    assert SECRET not in result.output
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("value", NOBODY, ids=repr)
@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet"])
def test_no_history_is_nobodys(value: str, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"plays.{ending}"
    frame = pd.DataFrame({"who": with_one(value), "item": [f"i{i}" for i in range(COUNT)]})
    frame.to_parquet(path) if ending == "parquet" else frame.to_csv(path, index=False)
    refused(lambda: read_interactions(path, user="who"), f"^{REFUSED}.* Give every row the id of its user")


def test_users_by_name_must_be_somebody_and_items_need_not() -> None:
    for value in NOBODY:
        if value == value.strip("\t\r"):
            refused(Interactions, "^users has missing, blank", np.eye(2), (SECRET, value))
    refused(lambda: Interactions(np.eye(2), users=("a", "a ")), "^users has ids with spaces")
    # A film may be called so. Its name is public.
    assert Interactions(np.eye(2), items=("None", "NA")).columns(["NA"]).tolist() == [1]


def test_grouping_strangers_would_break_the_bound() -> None:
    """What the refusal is for: 99 of 100 blank rows are one person's, who leaves, and a sum moves by nearly 2 B, not by B."""
    values = np.vstack([np.tile([3.0, 0.0], (99, 1)), [[-3.0, 0.0]]])
    turned = np.vstack([np.tile([3.0, 0.0], (99, 1)), [[0.0, 3.0]]])
    domain, near = Domain(dim=2, radius=3.0), Neighbours.ADD_REMOVE
    for release, rows, most in ((bounded_sum, values, 1.9), (bounded_gram, turned, 1.3)):
        both, rest = (
            release(WeightedRows(DenseRows(part), np.full(len(part), 1 / len(part))), domain=domain, neighbours=near)
            for part in (rows, rows[99:])
        )
        assert np.linalg.norm(both.value - rest.value) > most * both.sensitivity


def test_the_list_of_placeholders_is_short_and_in_lower_case() -> None:
    assert len(PLACEHOLDERS) < 32
    assert all(word == word.lower().strip() for word in PLACEHOLDERS)
