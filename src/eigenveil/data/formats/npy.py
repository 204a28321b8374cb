"""npy files: one two-dimensional array of numpy, in a memory map."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from eigenveil.data.formats.base import Format, Output, Scored
from eigenveil.errors import require

if TYPE_CHECKING:
    from eigenveil.core.rows import Rows
    from eigenveil.data.formats.params import FileParams

__all__ = ["NPY", "as_dense", "reading_arrays"]


@contextmanager
def reading_arrays(path: Path, word: str) -> Iterator[None]:
    """Convert every error into a `ValueError`: for a damaged file numpy, zipfile, zlib and tokenize raise almost any."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{path} cannot be read as {word}: {error}") from error


def as_dense(array: Any) -> "Rows":
    """The rows of an array; a `ValueError` if it is no table of real numbers."""
    import numpy as np

    from eigenveil.core.rows import require_real
    from eigenveil.data.rows import DenseRows

    require(isinstance(array, np.ndarray), "its content is not an array")
    require(array.ndim == 2, f"it must contain a two-dimensional array, got {array.ndim} dimensions")
    require_real(array.dtype, "it")
    return DenseRows(array)


def _rows(path: Path, how: "FileParams") -> "Rows":
    import numpy as np

    with reading_arrays(path, "npy"):
        # A pickle in the file could execute code of its author.
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        require(isinstance(array, np.ndarray), "it is an npz archive, not an npy array")
        return as_dense(array)


def _write(path: Path, names: list[str], scored: Iterator[Scored]) -> None:
    from numpy.lib.format import write_array_header_1_0

    def header(count: int) -> None:
        write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (count, len(names))})

    # Written block by block: numpy.save would need all scores in memory.
    with path.open("w+b") as file:
        # numpy leaves room in a header for any number of rows, so the number can be written when it is known.
        header(0)
        count = 0
        for block, _ in scored:
            file.write(block.astype("<f8").tobytes())
            count += len(block)
        file.seek(0)
        header(count)


NPY: Final = Format(
    word="npy",
    title="npy",
    suffixes=(".npy",),
    open=None,
    rows=_rows,
    options=frozenset(),
    follow=None,
    outputs={".npy": Output(write=_write, has_text=False)},
    is_shared=True,
)
