"""Files without column names: npy arrays, npz archives and svmlight text.

An archive has a sparse matrix of scipy, or one two-dimensional array, called X if there are several. In svmlight and libsvm text
a row is pairs of a column's number and its value. Other entries are zero.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from eigenveil.data.formats.base import Format, Output, Scored
from eigenveil.data.formats.unpacked import UnpacksTooMuch, require_members, require_plain
from eigenveil.errors import require

if TYPE_CHECKING:
    from eigenveil.core.rows import Rows
    from eigenveil.data.formats.registry import FileParams

__all__ = ["NPY", "NPZ", "SVM", "as_dense", "reading_arrays"]


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

    about: dict[str, Any] = {"descr": "<f8", "fortran_order": False, "shape": (0, len(names))}
    count = 0
    # Written block by block: numpy.save would need all scores in memory.
    with path.open("w+b") as file:
        # numpy leaves room in a header for any number of rows, so the number can be written when it is known.
        write_array_header_1_0(file, about)
        for block, _ in scored:
            file.write(block.astype("<f8").tobytes())
            count += len(block)
        file.seek(0)
        write_array_header_1_0(file, about | {"shape": (count, len(names))})


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


def _npz_rows(path: Path, how: "FileParams") -> "Rows":
    import numpy as np

    try:
        require_members(path, advice="If you trust it, store its array as .npy, which is not compressed")
    except UnpacksTooMuch:
        raise
    except Exception:
        # For a damaged list of members zipfile raises almost any error. What is no archive is refused by the reader below.
        pass
    with reading_arrays(path, "npz"):
        loaded = np.load(path, allow_pickle=False)
        require(not isinstance(loaded, np.ndarray), "it is a single npy array, not an npz archive")
        with loaded as archive:
            names = sorted(archive.files)
            require(len(names) > 0, "it contains no array")
            # These are names that scipy's `save_npz` writes.
            if {"format", "shape"} <= set(names):
                return _sparse(path)
            name = "X" if "X" in names else names[0]
            single = name == "X" or len(names) == 1
            require(single, f"it contains several arrays and none is called X: {', '.join(names)}")
            return as_dense(archive[name])


def _sparse(path: Path) -> "Rows":
    import scipy.sparse as sp

    from eigenveil.core.rows import require_real
    from eigenveil.data.rows import SparseRows

    try:
        matrix = sp.csr_array(sp.load_npz(path))
    except (KeyError, TypeError, IndexError, NotImplementedError) as error:
        raise ValueError("it looks like a scipy sparse matrix but is incomplete") from error
    # The file is not trusted: compiled code would follow an index that points outside the matrix.
    matrix.check_format(full_check=True)
    require_real(matrix.dtype, "it")
    return SparseRows(matrix)


NPZ: Final = Format(
    word="npz", title="npz", suffixes=(".npz",), open=None, rows=_npz_rows, options=frozenset(), follow=None, outputs={}
)


def _svm_rows(path: Path, how: "FileParams") -> "Rows":
    import scipy.sparse as sp
    from sklearn.datasets import load_svmlight_file

    from eigenveil.data.rows import SparseRows

    require_plain(path)
    try:
        matrix, _ = load_svmlight_file(str(path), n_features=how.features, zero_based=not how.one_based)
    except (ValueError, IndexError, OverflowError):
        # The reader's own message quotes indices and values.
        fitting = "" if how.features is None else f" with {how.features} columns"
        raise ValueError(f"{path} cannot be read as svmlight text{fitting} counted from {int(how.one_based)}") from None
    return SparseRows(sp.csr_array(matrix))


SVM: Final = Format(
    word="svm",
    title="svmlight",
    suffixes=(".svm", ".svmlight", ".libsvm"),
    open=None,
    rows=_svm_rows,
    options=frozenset({"features", "one_based"}),
    follow=None,
    outputs={},
    states_width=False,
)
