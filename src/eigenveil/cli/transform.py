"""`eigenveil transform`: scores of rows under a model, block by block. Scores are raw data and are guarded like it."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eigenveil.cli._files import column_names, read_rows, require_input, require_output
from eigenveil.cli._options import Data, Drop, Force
from eigenveil.cli._terminal import errors_as_lines, output, watched, wrote
from eigenveil.data.archive import whole_file
from eigenveil.errors import listed, require

if TYPE_CHECKING:
    from eigenveil.data.rows import Rows
    from eigenveil.linalg import Array
    from eigenveil.model import Model

__all__ = ["WRITERS", "scores_of", "transform"]


@errors_as_lines
def transform(
    data: Data,
    model: Annotated[Path, typer.Option("--model", "-m", help="A model that `fit` wrote.", show_default=False)],
    scores: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Where scores go: .csv, .parquet or .npy.", show_default=False
        ),
    ],
    drop: Drop = None,
    force: Force = False,
) -> None:
    """Scores of rows: where each one lies along the components.

    Example:

      eigenveil transform people.csv -m model.safetensors -o scores.csv

    SCORES ARE RAW DATA. The guarantee covers the model; the scores of
    anybody's rows are those rows' own data and as private as they are. The
    output is readable by you alone (mode 0600).

    If model and file both name their columns, columns are matched by name,
    and columns the model does not know are left out.
    """
    require_input(data)
    require(model.is_file(), f"{model} does not exist or is not a file")
    require_output(scores, endings=tuple(WRITERS), force=force, inputs=[data, model])
    from eigenveil.cli._report import scores_warning
    from eigenveil.model import Model

    learned = Model.load(model)
    rows, order, left_out = _matched(data, learned, drop or [])
    names = [f"component{i}" for i in range(1, len(learned.components) + 1)]
    with watched(rows) as seen, whole_file(scores) as temporary:
        blocks = scores_of(learned, seen, order)
        WRITERS[scores.suffix.lower()](temporary, names, blocks, rows.shape[0])
    wrote(scores)
    console = output()
    if left_out:
        console.print(f"left out, since the model does not know them: {listed(left_out)}", style="dim")
    console.print(f"scores written to {scores}, one column per component", soft_wrap=True)
    console.print(scores_warning())


def _matched(path: Path, model: "Model", drop: Sequence[str]) -> tuple["Rows", list[int] | None, list[str]]:
    """Rows of the file, the order in which to take their columns (None: as they are), and which were left out."""
    from eigenveil.data.archive import SVMLIGHT

    names = column_names(path)
    left_out: list[str] = []
    if names is not None and model.columns is not None:
        missing = [name for name in model.columns if name not in names or name in drop]
        require(
            not missing,
            f"{path} lacks {_some(missing)}, which the model has; the model's columns are {_some(model.columns)}",
        )
        left_out = [name for name in names if name not in model.columns and name not in drop]
    table = read_rows(path, drop=[*drop, *left_out], one_based=bool(model.settings.get("one_based", False)))
    rows, dim = table.rows, model.components.shape[1]
    if path.suffix.lower() in SVMLIGHT:
        rows = _widened(rows, dim)
    require(
        rows.shape[1] == dim,
        f"{path} has {rows.shape[1]} columns and the model {dim}",
    )
    order = None
    if table.columns is not None and model.columns is not None and table.columns != model.columns:
        place = {name: i for i, name in enumerate(table.columns)}
        order = [place[name] for name in model.columns]
    return rows, order, left_out


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:8])
    return shown + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _widened(rows: "Rows", dim: int) -> "Rows":
    """svmlight text does not say how many columns there are; those behind its last entry are zeros."""
    import scipy.sparse as sp

    from eigenveil.data.rows import SparseRows

    if not isinstance(rows, SparseRows) or rows.shape[1] >= dim:
        return rows
    matrix = rows.values
    return SparseRows(sp.csr_array((matrix.data, matrix.indices, matrix.indptr), shape=(matrix.shape[0], dim)))


def scores_of(model: "Model", rows: "Rows", order: list[int] | None) -> Iterator["Array"]:
    import numpy as np

    from eigenveil.data.rows import block_size

    for block in rows.blocks(block_size(rows)):
        found = model.transform(block.values if order is None else block.values[:, order])
        require(bool(np.isfinite(found).all()), "the rows hold NaN or infinity; fill or drop such rows first")
        yield found


def _write_csv(path: Path, names: list[str], blocks: Iterator["Array"], _count: int) -> None:
    import pyarrow.csv as pc

    with pc.CSVWriter(path, _schema(names)) as writer:
        for block in blocks:
            writer.write(_batch(names, block))


def _write_parquet(path: Path, names: list[str], blocks: Iterator["Array"], _count: int) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(path, _schema(names)) as writer:
        for block in blocks:
            writer.write(_batch(names, block))


def _write_npy(path: Path, names: list[str], blocks: Iterator["Array"], count: int) -> None:
    from numpy.lib.format import write_array_header_1_0

    with path.open("wb") as file:
        write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (count, len(names))})
        for block in blocks:
            file.write(block.astype("<f8").tobytes())


def _schema(names: list[str]) -> Any:
    import pyarrow as pa

    return pa.schema([(name, pa.float64()) for name in names])


def _batch(names: list[str], block: "Array") -> Any:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.array(column) for column in block.T.copy()], names=names)


WRITERS: dict[str, Callable[[Path, list[str], Iterator["Array"], int], None]] = {
    ".csv": _write_csv,
    ".parquet": _write_parquet,
    ".npy": _write_npy,
}
