"""`eigenveil stream -` as a function of its arguments and of what comes through the pipe, and rows as bytes."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from typer.testing import CliRunner, Result

from commands.command_tables import NAMES, PRIVATE, arrow_table
from eigenveil import Model
from eigenveil.commands import app
from eigenveil.linalg import sines

EXACT = ("-k", 2, "--no-privacy")
SEEDED = ("-k", 2, *PRIVATE, "--seed", 7)
CSV = ("--format", "csv")
ARROW = ("--format", "arrow")


def piped(data: bytes, *arguments: object) -> Result:
    """`eigenveil stream -` with `data` on its standard input."""
    command = ["stream", "-", *map(str, arguments)]
    result = CliRunner().invoke(app, command, input=data, env={"COLUMNS": "100"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def refused(data: bytes, *arguments: object, code: int = 2) -> str:
    """The one line that it says, with nothing on stdout."""
    result = piped(data, *arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line


def as_csv(values: Any, names: tuple[str, ...] | None = NAMES) -> bytes:
    """A csv, with empty fields for NaN."""
    lines = [] if names is None else [",".join(names)]
    lines += [",".join("" if np.isnan(x) else repr(float(x)) for x in row) for row in values]
    return ("\n".join(lines) + "\n").encode()


def as_arrow_stream(values: Any, batch: int) -> bytes:
    """An Arrow stream in batches of so many rows."""
    sink, table = io.BytesIO(), arrow_table(values)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=batch)
    return sink.getvalue()


def same(one: Path, other: Any) -> bool:
    """Whether a model file and a model have the same components and values, up to rounding."""
    found = Model.load(one)
    return bool(
        sines(found.subspace.basis, other.components.T)[0] < 1e-9
        and np.allclose(found.explained_variance, other.explained_variance)
    )
