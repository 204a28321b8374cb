"""Parquet files, and folders of them with the same columns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from eigenveil.data.columns import kinds_of, require_names
from eigenveil.data.formats.base import Format, Output, SharedTable, matching, reading, require_readable, write_tables
from eigenveil.data.formats.unpacked import require_groups
from eigenveil.data.number_texts import MissingMarks
from eigenveil.errors import join_names, require

if TYPE_CHECKING:
    from eigenveil.data.formats.registry import FileParams

__all__ = ["PARQUET"]


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ParquetTable(SharedTable):
    """A Parquet file, or a folder of them with the same columns, in the order of their names."""

    parts: tuple[Path, ...]
    groups: tuple[int, ...] | None = None  # The row groups of each file that are read, None for all.

    @classmethod
    def open(cls, source: Path, path: Path, how: "FileParams") -> "ParquetTable":
        """The schema of each part is read, and all must agree."""
        import pyarrow.parquet as pq

        parts = _parts(path)
        schemas, count = [], 0
        for part in parts:
            require_readable(part)
            with reading(part, "parquet"):
                metadata = pq.read_metadata(part)
                schemas.append(metadata.schema.to_arrow_schema())
                groups = [metadata.row_group(at).total_byte_size for at in range(metadata.num_row_groups)]
            require_groups(part, groups)
            count += metadata.num_rows
        # Before a row is read: a fit that fails at the tenth file has already spent time, and perhaps budget.
        for part, schema in zip(parts, schemas, strict=True):
            _require_same(part, kinds_of(schema), parts[0], kinds_of(schemas[0]))
            require_names(part, schema.names, ())
        return cls(
            source=path,
            parts=parts,
            names=tuple(schemas[0].names),
            kinds=kinds_of(schemas[0]),
            count=count,
            missing=MissingMarks.of(how),
        )

    def batches(self, numbers: Sequence[str], texts: Sequence[str], size: int) -> Iterator[Any]:
        import pyarrow.parquet as pq

        from eigenveil.core.threads import cores

        wanted = [*numbers, *texts]
        # Without buffers ahead of the reader, which would keep the whole file in memory until its end.
        with_care = {"pre_buffer": False, "page_checksum_verification": True}
        for part in self.parts:
            n_read = 0
            with reading(part, "parquet"), pq.ParquetFile(part, **with_care) as file:
                groups = None if self.groups is None else list(self.groups)
                # Beside other processes that read, one thread each is enough.
                stream = file.iter_batches(batch_size=size, columns=wanted, row_groups=groups, use_threads=cores() > 1)
                while True:
                    with reading(part, "parquet", n_read):
                        batch = next(stream, None)
                    if batch is None:
                        break
                    n_read += batch.num_rows
                    # Batches have their columns in the order of the file, and names may begin alike.
                    yield self.missing.taken_out(batch.select(wanted))

    def pieces(self, max_rows: int) -> Sequence["ParquetTable"]:
        """Runs of row groups of at most `max_rows` rows where groups are that small, none across two files."""
        import pyarrow.parquet as pq

        runs = []
        for part in self.parts:
            with reading(part, "parquet"):
                metadata = pq.read_metadata(part)
            groups, count = list[int](), 0
            for group in range(metadata.num_row_groups):
                size = metadata.row_group(group).num_rows
                if groups and count + size > max_rows:
                    runs.append((part, groups, count))
                    groups, count = [], 0
                groups.append(group)
                count += size
            if groups:
                runs.append((part, groups, count))
        return [replace(self, source=part, parts=(part,), groups=tuple(groups), count=count) for part, groups, count in runs]

    def dask_frame(self) -> Any:
        import dask.dataframe as dd

        return dd.read_parquet([str(part) for part in self.parts])


def _parts(path: Path) -> tuple[Path, ...]:
    if not path.is_dir():
        return matching(path) or (path,)
    # Spark and others leave files such as _SUCCESS beside the data.
    inside = sorted(entry for entry in path.iterdir() if entry.name[:1] not in "._")
    files = tuple(entry for entry in inside if entry.is_file() and entry.suffix.lower() == ".parquet")
    folders = [entry.name for entry in inside if entry.is_dir()]
    require(
        not folders,
        f"{path} has folders in it: {join_names(folders, max_count=5)}. Give one of them, or move their files together",
    )
    require(len(files) > 0, f"{path} is a folder without Parquet files. Give a file in it")
    return files


def _require_same(part: Path, kinds: dict[str, str], first: Path, expected: dict[str, str]) -> None:
    """Refuse a part of a folder with other columns than the first. The order may differ: columns are found by name."""
    same = "Files of a folder need the same ones"
    lacking, extra = ([name for name in a if name not in b] for a, b in ((expected, kinds), (kinds, expected)))
    require(not lacking, f"{part} lacks columns that {first.name} has: {join_names(lacking)}. {same}")
    require(not extra, f"{part} has columns that {first.name} lacks: {join_names(extra)}. {same}")
    other = [f"{name} ({kinds[name]}, there {kind})" for name, kind in expected.items() if kinds[name] != kind]
    types = f"{part} has columns of another type than {first.name}: {join_names(other)}. Write them with one type"
    require(not other, types)


def _writer(path: Path, schema: Any) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetWriter(path, schema)


PARQUET: Final = Format(
    word="parquet",
    title="Parquet",
    suffixes=(".parquet",),
    open=ParquetTable.open,
    rows=None,
    options=frozenset(),
    follow=None,
    outputs={".parquet": Output(write=partial(write_tables, _writer), has_nested=True)},
    advice={".pq": "Rename it to end in .parquet"},
    is_folder=True,
    is_shared=True,
)
