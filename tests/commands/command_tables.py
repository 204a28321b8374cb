"""One small table in every format the command reads, and the command itself as a function of its arguments."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import scipy.sparse as sp
import typer.testing
from sklearn.datasets import dump_svmlight_file
from typer.main import get_command
from typer.testing import CliRunner, Result

from eigenveil.commands import app

NAMES = ("age", "income", "height", "weight", "salt")
# An unusual number, so that finding it in an output means that it was put there.
COUNT = 1009
PRIVATE = ("--epsilon", "1", "--delta", "1e-6", "--row-bound", "12")
FORMATS = ("csv", "parquet", "npy", "npz", "sparse.npz", "svm")
# A runner makes all commands of an app anew for each call, which takes longer than most of them run.
vars(typer.testing)["_get_command"] = cache(get_command)


def eigenveil(*arguments: object) -> Result:
    """Run the command; an exception that escaped it fails the test at once."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "100"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert "Traceback" not in result.output
    return result


def refusal(*arguments: object, code: int = 2) -> str:
    """What the command says when it refuses: one line on stderr that begins with "error: ", and nothing on stdout."""
    result = eigenveil(*arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    line, *more = result.stderr.splitlines()
    assert not more
    assert line.startswith("error: ")
    return line


def rows() -> Any:
    """Rows, (COUNT, 5), with a spectrum that a budget of (1, 1e-6) can see, and zeros for the sparse formats."""
    found = np.random.default_rng(0).standard_normal((COUNT, len(NAMES))) * [5, 3, 1, 0.5, 0.5]
    return np.where(np.abs(found) < 0.1, 0.0, found)


def arrow_table(values: Any, names: tuple[str, ...] = NAMES, **more: Any) -> Any:
    """A pyarrow table with further columns as given."""
    return pa.table({name: values[:, i] for i, name in enumerate(names)} | more)


def written(folder: Path, kind: str, values: Any | None = None) -> Path:
    """The path of a file of that `kind`, one of FORMATS, that holds `values`."""
    values = rows() if values is None else values
    path = folder / f"people.{kind}"
    match kind:
        case "csv":
            pc.write_csv(arrow_table(values), path)
        case "parquet":
            pq.write_table(arrow_table(values), path)
        case "npy":
            np.save(path, values)
        case "npz":
            np.savez(path, X=values)
        case "sparse.npz":
            sp.save_npz(path, sp.csr_array(values))
        case _:
            dump_svmlight_file(values, np.zeros(len(values)), str(path))
    return path


def files_in(folder: Path) -> set[str]:
    """Every name in the folder, hidden ones too."""
    return {path.name for path in folder.iterdir()}
