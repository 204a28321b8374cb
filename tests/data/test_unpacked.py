"""Small files that unpack to large ones are refused before their rows are read; honest files that shrink well are not."""

import gzip
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as pf
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eigenveil.data.formats import FileParams, open_named
from eigenveil.data.tables import read_table
from eigenveil.recommend import read_interactions

MIB = 1 << 20
TOO_MUCH = "unpacks to more than (64|256) MiB, over 100 times its size"


def packed(path: Path, line: bytes) -> Path:
    """A file of 80 MiB of the same line under a header."""
    compression = "gzip" if path.suffix == ".gz" else "zstd"
    with pa.output_stream(str(path), compression=compression) as file:
        file.write(b"a,b\n" if b"{" not in line else b"")
        for _ in range(80):
            file.write(line * (MIB // len(line)))
    return path


@pytest.mark.parametrize(("name", "line"), [("a.csv.gz", b"0,0\n"), ("a.tsv.zst", b"0,0\n"), ("a.jsonl.gz", b'{"a":0}\n')])
def test_text_that_unpacks_to_too_much_is_refused(tmp_path: Path, name: str, line: bytes) -> None:
    path = packed(tmp_path / name, line)
    assert path.stat().st_size < MIB
    with pytest.raises(ValueError, match=TOO_MUCH):
        read_table(path, separator=None)
    if name == "a.csv.gz":
        with pytest.raises(ValueError, match=TOO_MUCH):
            read_interactions(path, user="a", item="b")


def test_arrays_that_unpack_to_too_much_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, X=np.zeros((3 * MIB, 3)))
    with pytest.raises(ValueError, match=TOO_MUCH):
        read_table(path)
    with pytest.raises(ValueError, match=TOO_MUCH):
        read_interactions(path)
    # A member may state a smaller size than it has. Then no more than that is read of it.
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        stated = archive.infolist()[0].file_size
    path.write_bytes(content.replace(stated.to_bytes(4, "little"), (1000).to_bytes(4, "little")))
    with pytest.raises(ValueError, match="cannot be read as npz"):
        read_table(path)


def test_a_row_group_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"a": np.zeros(40 * MIB)})
    pq.write_table(table, path, use_dictionary=False, compression="zstd", row_group_size=40 * MIB)
    with pytest.raises(ValueError, match=TOO_MUCH):
        read_table(path)
    pq.write_table(table, path, compression="zstd")
    assert read_table(path).rows.shape == (40 * MIB, 1)


@pytest.mark.parametrize("kind", ["lz4", "zstd"])
def test_an_arrow_batch_that_unpacks_to_too_much_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.feather"
    table = pa.table({"a": np.zeros(40 * MIB)})
    pf.write_feather(table, path, compression=kind, chunksize=40 * MIB)
    with pytest.raises(ValueError, match=TOO_MUCH):
        read_table(path)
    words = table.slice(0, 9).append_column("in", pa.array(["x" * 35 * MIB] * 9, pa.large_string()).dictionary_encode())
    words = words.append_column("long", pa.array(["x" * 33 * MIB] * 9, pa.large_string()))
    with pa.ipc.new_stream(path, words.schema, options=pa.ipc.IpcWriteOptions(compression=kind)) as writer:
        writer.write_table(words)
    with pytest.raises(ValueError, match=TOO_MUCH):
        read_table(path, columns=["a"])
    # In smaller batches it is honest, and so is one that is not packed.
    pf.write_feather(table, path, compression=kind, chunksize=MIB)
    assert read_table(path).rows.shape == (40 * MIB, 1)
    if kind == "lz4":
        pf.write_feather(table.slice(0, 33 * MIB), path, compression="uncompressed", chunksize=40 * MIB)
        assert read_table(path).rows.shape == (33 * MIB, 1)


def test_honest_files_that_shrink_well_are_read(tmp_path: Path) -> None:
    """A table of zeros with a one in a hundred, and a small file of the same line."""
    rng = np.random.default_rng(1)
    values = (rng.random((20_000, 100)) < 0.01).astype(int)
    text = "\n".join([",".join(f"c{place}" for place in range(100)), *(",".join(map(str, row)) for row in values)]) + "\n"
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    assert read_table(tmp_path / "a.csv.gz").rows.shape == values.shape
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"a,b\n" + b"0,0\n" * 1_000_000))
    assert read_table(tmp_path / "b.csv.gz").rows.shape == (1_000_000, 2)
    sp.save_npz(tmp_path / "a.npz", sp.csr_array(values.astype(float)))
    assert read_table(tmp_path / "a.npz").rows.shape == values.shape


def test_columns_that_nobody_can_have_are_refused(tmp_path: Path) -> None:
    """A file of a few bytes, and gigabytes in the fit."""
    few, many = tmp_path / "a.npz", 10**7
    sp.save_npz(few, sp.csr_array(([1.0, 1.0], [0, many - 1], [0, 1, 2]), shape=(2, many)))
    for read in (read_table, read_interactions):
        with pytest.raises(ValueError, match=r"states 10000000 columns, and has fewer bytes. (Leave|If)"):
            read(few)
    text = tmp_path / "a.svm"
    text.write_text(f"0 1:1\n0 {many - 1}:1\n")
    with pytest.raises(ValueError, match="states 10000000 columns, and has fewer bytes"):
        read_table(text)
    assert read_table(text, features=many).rows.shape == (2, many)
    # As many as some tables of words have.
    sp.save_npz(few, sp.csr_array(([1.0, 1.0], [0, 7], [0, 1, 2]), shape=(2, 1 << 20)))
    assert read_table(few).rows.shape == (2, 1 << 20)


def test_text_of_very_many_columns_and_hardly_any_rows_is_refused(tmp_path: Path) -> None:
    """Each column takes 8 kB while it is read: gigabytes for a file of a megabyte."""
    many = 1 << 17
    head, row = ",".join(f"c{place}" for place in range(many)) + "\n", ",".join(["1"] * many) + "\n"
    for name, pack in (("a.csv", bytes), ("a.csv.gz", gzip.compress)):
        (tmp_path / name).write_bytes(pack((head + row).encode()))
        with pytest.raises(ValueError, match=r"has 131072 columns and fewer than 16 bytes for each"):
            read_table(tmp_path / name)
    with (tmp_path / "a.csv").open("a") as file:
        file.write(row * 8)
    assert len(open_named(tmp_path / "a.csv", FileParams()).names) == many


def test_packed_svmlight_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"0 1:1\n" * 1000))
    with pytest.raises(ValueError, match="is compressed, and its format is read from plain files only"):
        read_table(tmp_path / "a.gz", kind="svm")


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_damaged_arrow_file_is_read_or_refused_and_never_anything_else(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "a.feather"
    pf.write_feather(pa.table({"a": np.arange(50.0), "who": ["x", "y"] * 25}), path, compression="zstd", chunksize=20)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(content))
    try:
        found = np.vstack([block.values for block in read_table(path, drop=["who"], gaps=True).rows.blocks(9)])
    except ValueError:
        return
    assert found.shape[1] <= 2
