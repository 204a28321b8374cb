"""Interactions from files: the same matrix in every format and order of lines, and no private value in an error."""

import gzip
import math
import pickle
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eigenveil.linalg import Array
from eigenveil.recommend.interactions import Interactions
from eigenveil.recommend.reading import read_interactions
from recommend.histories_of_users import SECRET, SMALL, histories, is_canonical, lines_of, refuses, write_lines

FILES = ["a.csv", "a.csv.gz", "a.CSV", "a.parquet"]


@pytest.mark.parametrize("name", FILES)
def test_files_in_long_form_give_back_what_was_written(name: str, tmp_path: Path) -> None:
    frame = lines_of(SMALL)
    found = read_interactions(write_lines(tmp_path / name, frame.assign(time=range(len(frame)))))
    assert is_canonical(found.matrix)
    assert found.users == ("u0", "u2") and found.items == ("i0", "i1", "i3")
    assert np.array_equal(found.matrix.toarray(), SMALL[[0, 2]][:, [0, 1, 3]])
    whole = read_interactions(str(tmp_path / name), items=[f"i{i}" for i in (3, 2, 1, 0)])
    assert np.array_equal(whole.matrix.toarray(), SMALL[[0, 2]][:, ::-1])


@pytest.mark.parametrize("name", FILES)
@given(dense=histories(), seed=st.integers(0, 99))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_neither_the_order_of_lines_nor_repeats_matter(name: str, dense: Array, seed: int, tmp_path: Path) -> None:
    """Zero lines let everybody and everything be there, so that the whole matrix comes back."""
    rng, (users, items) = np.random.default_rng(seed), dense.shape
    frame = pd.DataFrame(
        {
            "user": np.repeat(np.arange(users), items),
            "value": dense.ravel().astype(int),
            "item": [f"t{at}" for at in np.tile(np.arange(items), users)],
        }
    )
    twice = pd.concat([frame, frame.sample(frac=0.5, random_state=seed)])
    path = write_lines(tmp_path / name, twice.iloc[rng.permutation(len(twice))])
    found = read_interactions(path)
    assert found.users == tuple(map(str, range(users)))
    assert found.items == tuple(sorted(f"t{at}" for at in range(items)))
    assert is_canonical(found.matrix)
    assert np.array_equal(found.matrix[:, found.columns([f"t{at}" for at in range(items)])].toarray(), dense)


@pytest.mark.parametrize("name", FILES)
def test_whole_numbers_sort_by_size_and_text_by_letters(name: str, tmp_path: Path) -> None:
    numbers = [10, 9, -1, 100, 0, 2**63 - 1]
    frame = pd.DataFrame({"user": numbers, "item": ["10", "9", "007", "7", "é", "z"]})
    found = read_interactions(write_lines(tmp_path / name, frame))
    assert found.users == ("-1", "0", "9", "10", "100", str(2**63 - 1))
    # "007" and "7" are different names, and one that is no number makes text of all.
    assert found.items == ("007", "10", "7", "9", "z", "é")
    assert found.row("9").indices.tolist() == [3]


@pytest.mark.parametrize("name", FILES)
def test_names_of_every_kind_survive(name: str, tmp_path: Path) -> None:
    names = ["Crouching Tiger, Hidden Dragon", 'the "quoted"', "七人の侍", " spaced ", "NA", "two  words", "null"]
    frame = pd.DataFrame({"who is it": ["ß"] * 7, "what, then": names})
    found = read_interactions(write_lines(tmp_path / name, frame), user="who is it", item="what, then")
    assert found.items == tuple(sorted(names)) and found.users == ("ß",)
    assert found.matrix.toarray().tolist() == [[1.0] * 7]


def test_identifiers_of_parquet_may_be_of_any_whole_or_text_type(tmp_path: Path) -> None:
    types = [pa.int8(), pa.uint64(), pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())]
    for kind in types:
        values = pa.array(["2", "10", "2"]).cast(kind.value_type if pa.types.is_dictionary(kind) else kind)
        column = values.dictionary_encode() if pa.types.is_dictionary(kind) else values
        pq.write_table(pa.table({"user": column, "item": column}), tmp_path / "a.parquet", row_group_size=1)
        found = read_interactions(tmp_path / "a.parquet")
        assert found.users == found.items == ("2", "10") and found.matrix.toarray().tolist() == [[1, 0], [0, 1]]
    for wrong in (pa.array([1.5]), pa.array([True]), pa.array([b"x"]), pa.array([[1]])):
        pq.write_table(pa.table({"user": wrong, "item": [1]}), tmp_path / "a.parquet")
        refuses(
            lambda: read_interactions(tmp_path / "a.parquet"), "column 'user' must contain names, as text or whole numbers, got "
        )


@pytest.mark.parametrize("name", FILES)
def test_values_decide_which_lines_are_interactions(name: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"user": [1, 1, 2, 3], "item": [1, 2, 2, 1], "value": [1, 0, 1, 0], "stars": [5, 3.5, 1, 4]})
    path = write_lines(tmp_path / name, frame)
    # The column called value is found; a user who has only zeros is kept all the same.
    assert read_interactions(path).matrix.toarray().tolist() == [[1, 0], [0, 1], [0, 0]]
    assert read_interactions(path, min_rating=0).matrix.toarray().tolist() == [[1, 1], [0, 1], [1, 0]]
    assert read_interactions(path, value="stars", min_rating=3.5).matrix.toarray().tolist() == [[1, 1], [0, 0], [1, 0]]
    refuses(
        lambda: read_interactions(path, value="stars"),
        r"^column 'stars' must contain 1 for an interaction or 0 for none. If it contains ratings, set the lowest that counts "
        r"as an interaction with min_rating$",
        "3.5",
    )
    rated = write_lines(tmp_path / name, frame.drop(columns=["value"]).rename(columns={"stars": "rating"}))
    # A column of ratings is not guessed.
    assert read_interactions(rated).matrix.nnz == 4
    refuses(lambda: read_interactions(rated, min_rating=3), "min_rating needs a column of values: name it with value")


@pytest.mark.parametrize("name", FILES)
def test_values_that_are_no_numbers_are_refused(name: str, tmp_path: Path) -> None:
    def written(values: Any) -> Path:
        return write_lines(tmp_path / name, pd.DataFrame({"user": [1, 2], "item": [1, 2], "value": values}))

    refuses(
        lambda: read_interactions(written(["1", f"x{SECRET}"])),
        "not a number in column 'value'|columns must hold numbers; these do not: value",
    )
    for gap in (None, math.nan, math.inf):
        refuses(
            partial(read_interactions, written([gap, SECRET]), min_rating=1),
            "^column 'value' must have no NaN, infinite or missing values$",
        )


@pytest.mark.parametrize("name", FILES)
def test_a_public_list_of_items_is_the_columns(name: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"user": ["u1", "u1", "u2"], "item": [3, 1, SECRET]})
    path = write_lines(tmp_path / name, frame)
    expected = [[1, 0, 1], [0, 0, 0]]
    (tmp_path / "list.txt").write_text("1\n2\n3\n")
    (tmp_path / "plain.csv").write_bytes(b"\xef\xbb\xbf1\r\n2\r\n3\r\n")
    (tmp_path / "headed.csv").write_text('title,item\n"a, b",1\nc,2\n,3\n')
    for items in ((1, 2, 3), ["1", "2", "3"], tmp_path / "list.txt", str(tmp_path / "plain.csv"), tmp_path / "headed.csv"):
        found = read_interactions(path, items=items)
        assert found.items == ("1", "2", "3") and found.users == ("u1", "u2")
        assert is_canonical(found.matrix) and found.matrix.toarray().tolist() == expected
    assert read_interactions(path, items=["x"]).matrix.toarray().tolist() == [[0], [0]]


def test_lists_of_items_are_lines_of_text_or_a_column(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.csv", pd.DataFrame({"user": [1], "item": ["a, b"]}))
    (tmp_path / "list.txt").write_text("a, b\nitem\nü\n", encoding="utf-8")
    assert read_interactions(path, items=tmp_path / "list.txt").items == ("a, b", "item", "ü")
    (tmp_path / "list.csv").write_text('"a, b"\n"ü v"\n', encoding="utf-8")
    assert read_interactions(path, items=tmp_path / "list.csv").items == ("a, b", "ü v")
    (tmp_path / "list.csv").write_text('"a, b"\n"ü\nv"\n', encoding="utf-8")
    with pytest.raises(ValueError, match="names on one line"):
        read_interactions(path, items=tmp_path / "list.csv")
    bad = {
        "a.csv": (b"a,b\nc,d\n", "a.csv must have one item on each line, or a header with the column 'item'$"),
        "b.csv": (b"item,b\nc\n", "b.csv must have one item on each line, or"),
        "c.csv": (b'"a\n', "c.csv is not a list of comma-separated values$"),
        "d.txt": (b"\xff\xfe\n", "d.txt is not UTF-8 text$"),
        "e.txt": (b"", "e.txt must list at least one item, and every item needs a name$"),
        "f.txt": (b"a\n\nb\n", "f.txt must list at least one item, and every item needs a name$"),
        "g.txt": (b"a\nb\na\n", "g.txt must list every item once, but has 'a' more than once$"),
        "h.csv": (b"item\n", "h.csv must list at least one item"),
    }
    (tmp_path / "lists").mkdir()
    for name, (content, message) in bad.items():
        (tmp_path / "lists" / name).write_bytes(content)
        refuses(partial(read_interactions, path, items=tmp_path / "lists" / name), message)
    refuses(lambda: read_interactions(path, items=tmp_path / "none.txt"), "none.txt does not exist or is not a file$")
    refuses(lambda: read_interactions(path, items=()), "^items must list at least one item")
    fraction: Any = (1.5,)
    refuses(lambda: read_interactions(path, items=fraction), "^items must be names, as text or whole numbers, got 1.5$")


OPTIONS = r"Name the columns to read with user, item and value$"
CSV: dict[str, tuple[bytes, str]] = {
    "other names": (b"person,film\n8675309,1\n", f"a.csv has no column 'user', 'item'; it has person, film. {OPTIONS}"),
    "one other name": (b"user,film\n8675309,1\n", f"a.csv has no column 'item'; it has user, film. {OPTIONS}"),
    # A first line that may be somebody's is not shown.
    "no header": (b"8675309,1\n8,2\n", "a.csv seems to have no header line: its first line has numbers"),
    "names for a header": (b"ulrike8675309,x\nbob,2\n", "its first line may not be a header, or is not separated by commas"),
    "colons": (b"8675309::1193::5\n", "its first line may not be a header, or is not separated by commas"),
    "empty": (b"", "a.csv is empty. It needs a line of column names"),
    "header only": (b"user,item\n", "a.csv has column names but no rows$"),
    "twice": (b"user,item,user\n1,2,8675309\n", "more than one column called 'user'. Rename all but one$"),
    "nobody": (b"user,item\n8675309,1\n,2\n", 'user column "user" has missing, blank or placeholder ids'),
    "nothing": (b'user,item\n8675309,1\n2,""\n', "column 'item' must have no missing values$"),
    "ragged": (b"user,item\n1,2\n3,4,8675309\n", "a.csv cannot be read after row 1: the next line has 3 fields"),
    "not text": (b"user,item\n\xff8675309,2\n", "a.csv cannot be read after row 0: the next line is not UTF-8 text"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "message"), CSV.values(), ids=CSV.keys())
@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
def test_csv_that_does_not_say_who_has_what_is_refused(content: bytes, message: str, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{ending}"
    path.write_bytes(content if ending == "csv" else gzip.compress(content))
    refuses(lambda: read_interactions(path), re.sub(r"a\.csv", f"a.{ending}", message), "ulrike")


def test_parquet_that_does_not_say_who_has_what_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"person 1": [SECRET], "film": [1]}), path)
    refuses(lambda: read_interactions(path), f"has no column 'user', 'item'; it has person 1, film. {OPTIONS}")
    for missing in (pa.array([SECRET, None]), pa.array([f"x{SECRET}", ""]), pa.array([None, None])):
        pq.write_table(pa.table({"user": missing, "item": [1, 2]}), path)
        refuses(lambda: read_interactions(path), '^user column "user" has missing, blank or placeholder ids')
    path.write_bytes(b"PAR1" + str(SECRET).encode())
    refuses(lambda: read_interactions(path), "a.parquet cannot be read as parquet: ")


def test_paths_and_choices_that_lead_nowhere_are_refused(tmp_path: Path) -> None:
    refuses(lambda: read_interactions(tmp_path / "none.csv"), "none.csv does not exist or is not a file$")
    (tmp_path / "a.txt").write_text(f"user\titem\n{SECRET}\t1\n")
    refuses(lambda: read_interactions(tmp_path / "a.txt"), r"has the unknown ending '.txt'; use one of .arrow, .*, .xlsx$")
    path = write_lines(tmp_path / "a.csv", lines_of(SMALL))
    refuses(lambda: read_interactions(path, item="user"), "user, item and value must be different columns, got user, user$")
    refuses(lambda: read_interactions(path, min_rating=math.inf), "min_rating must be a finite number, got inf$")
    refuses(lambda: read_interactions(path, value="stars"), "has no column 'stars'; it has user, item. Name the")
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(f"user,item\n{SECRET},1\n".encode())[:-9])
    refuses(lambda: read_interactions(tmp_path / "cut.csv.gz"), "cut.csv.gz cannot be read as text: ")


# Sparse matrices in files.


@pytest.mark.parametrize("store", [sp.csr_array, sp.csc_matrix, sp.coo_array, sp.bsr_array, sp.dia_array])
def test_npz_files_give_back_the_matrix(store: Callable[[Any], Any], tmp_path: Path) -> None:
    sp.save_npz(tmp_path / "a.npz", store(SMALL))
    found = read_interactions(tmp_path / "a.npz")
    assert is_canonical(found.matrix) and np.array_equal(found.matrix.toarray(), SMALL)
    assert found.users is None and found.items is None
    assert read_interactions(tmp_path / "a.npz", items=list("abcd")).items == ("a", "b", "c", "d")
    sp.save_npz(tmp_path / "a.npz", store(SMALL * [[5], [5], [2]]))
    refuses(lambda: read_interactions(tmp_path / "a.npz"), "^matrix must be binary")
    assert np.array_equal(read_interactions(tmp_path / "a.npz", min_rating=3).matrix.toarray(), SMALL * [[1], [1], [0]])


def test_npz_files_that_hold_something_else_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    sp.save_npz(path, sp.csr_array(SMALL))
    refuses(lambda: read_interactions(path, user="who"), "npz files have no named columns: ")
    refuses(
        lambda: read_interactions(path, items=["a"]), "the list of items must name each of the 4 columns of .*a.npz, got 1 names$"
    )
    whole = path.read_bytes()
    cannot = "a.npz cannot be read as npz: it is damaged, or has no matrix of numbers$"
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        refuses(lambda: read_interactions(path), cannot)
    honest = {"format": "csr", "shape": [2, 2], "data": [1, 1], "indices": [0, 1], "indptr": [0, 1, 2]}
    np.savez(path, **honest)  # type: ignore[arg-type]
    assert read_interactions(path).matrix.toarray().tolist() == [[1, 0], [0, 1]]
    np.savez(path, **(honest | {"indices": [0, SECRET]}))  # type: ignore[arg-type]
    refuses(lambda: read_interactions(path), f"matrix is a damaged sparse matrix|{cannot}")
    # A dense matrix is a matrix, too.
    np.savez(path, X=SMALL)
    assert read_interactions(path).matrix.toarray().tolist() == np.asarray(SMALL).tolist()
    np.savez(path, X=np.array([["x" + str(SECRET)]]))
    refuses(lambda: read_interactions(path), cannot)


class Trap:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_is_ever_unpickled(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    bait = np.empty(1, dtype=object)
    bait[0] = Trap(sprung)
    np.savez(tmp_path / "a.npz", format="csr", shape=[1, 1], data=bait, indices=[0], indptr=[0, 1])
    (tmp_path / "b.npz").write_bytes(pickle.dumps(Trap(sprung)))
    for name in ("a.npz", "b.npz"):
        refuses(partial(read_interactions, tmp_path / name), "cannot be read as npz")
    assert not sprung.exists()
    pickle.loads((tmp_path / "b.npz").read_bytes())  # noqa: S301
    assert sprung.exists()


# Long files.


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_a_file_of_many_lines_is_read_whole(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, 20_000, 300_000), rng.integers(0, 3_000, 300_000)
    found = read_interactions(write_lines(tmp_path / name, pd.DataFrame({"user": users, "item": items})))
    dense = sp.csr_array((np.ones(300_000), (users, items)), shape=(20_000, 3_000))
    assert found.users == tuple(str(user) for user in np.unique(users))
    assert found.items == tuple(str(item) for item in np.unique(items))
    assert is_canonical(found.matrix)
    assert (found.matrix != (dense[np.unique(users)][:, np.unique(items)] > 0)).nnz == 0


def test_text_far_down_a_file_of_numbers_makes_text_of_all_names(tmp_path: Path) -> None:
    """Types are not guessed from the first lines."""
    (tmp_path / "a.csv").write_text("user,item\n" + "10,2\n9,2\n" * 200_000 + "x,2\n")
    assert read_interactions(tmp_path / "a.csv").users == ("10", "9", "x")
    (tmp_path / "a.csv").write_text("user,item,value\n" + "10,2,1\n9,2,0\n" * 100_000 + f"x,2,x{SECRET}\n")
    refuses(lambda: read_interactions(tmp_path / "a.csv"), "cannot be read after row 200000: not a number in column 'value'")


@pytest.mark.parametrize("lines", [50, 30_000])
def test_a_quote_that_is_never_closed_makes_no_item_of_the_lines_behind_it(tmp_path: Path, lines: int) -> None:
    """Names of items are kept in files for everybody, and such a name would hold histories."""
    plays = [f"u{at % 500},x{at % 50}" for at in range(lines)]
    plays[lines // 2] = 'u1,"x9'
    (tmp_path / "a.csv").write_text("user,item\n" + "\n".join(plays) + "\n")
    with pytest.raises(ValueError, match=r"names on one line|cannot be read"):
        read_interactions(tmp_path / "a.csv")


@pytest.mark.parametrize("name", ["two\nlines", "long" * 126, "bell\x07", "\x1b[2J", "\u2028"], ids=lambda name: ascii(name)[:12])
def test_names_that_are_no_single_line_are_refused_everywhere(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="names on one line"):
        Interactions(np.ones((1, 2)), items=("jazz", name))
    pq.write_table(pa.table({"user": ["u", "v"], "item": ["jazz", name]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="names on one line"):
        read_interactions(tmp_path / "a.parquet")


@pytest.mark.parametrize("ending", [".tsv", ".csv.zst", ".feather", ".xlsx"])
def test_other_kinds_of_files_are_read_as_tables_are(tmp_path: Path, ending: str) -> None:
    lines = pd.DataFrame({"user": ["7", "007", "ann"], "item": ["a", "b", "a"], "value": [4.0, 2.0, 5.0]})
    path = tmp_path / f"plays{ending}"
    match ending:
        case ".tsv":
            lines.to_csv(path, sep="\t", index=False)
        case ".csv.zst":
            path.write_bytes(pa.compress(lines.to_csv(index=False).encode(), codec="zstd", asbytes=True))
        case ".feather":
            lines.to_feather(path)
        case _:
            lines.to_excel(path, index=False)
    found = read_interactions(path, min_rating=3)
    assert found.users == ("007", "7", "ann")
    assert found.matrix.toarray().tolist() == [[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]]


def test_a_sheet_without_a_header_shows_nobody(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (("ulrike8675309", "HIV:positive"), ("bob", "2")):
        book.active.append(row)
    path = tmp_path / "a.xlsx"
    book.save(path)
    with pytest.raises(ValueError, match="its first line may not be a header") as refused:
        read_interactions(path)
    assert "8675309" not in str(refused.value) and "HIV" not in str(refused.value)


def test_separators_are_read_from_the_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for mark in "\t;|":
        path.write_text(f"user{mark}item\nann{mark}jazz, blue\nbob{mark}rock\n")
        found = read_interactions(path)
        assert (found.users, found.items) == (("ann", "bob"), ("jazz, blue", "rock"))
