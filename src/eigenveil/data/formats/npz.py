"""npz archives: a sparse matrix of scipy, or one two-dimensional array, called X if there are several."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from eigenveil.data.formats.base import Format
from eigenveil.data.formats.npy import as_dense, reading_arrays
from eigenveil.data.formats.unpacked import UnpacksTooMuch, require_members
from eigenveil.errors import require

if TYPE_CHECKING:
    from eigenveil.core.rows import Rows
    from eigenveil.data.formats.params import FileParams

__all__ = ["NPZ"]


def _rows(path: Path, how: "FileParams") -> "Rows":
    import numpy as np

    _require_members(path)
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
            require(
                name == "X" or len(names) == 1, f"it contains several arrays and none is called X: {', '.join(names)}"
            )
            return as_dense(archive[name])


def _require_members(path: Path) -> None:
    """Refuse an archive whose arrays unpack to too much. What is no archive is refused by the reader."""
    try:
        require_members(path, advice="If you trust it, store its array as .npy, which is not compressed")
    except UnpacksTooMuch:
        raise
    except Exception:
        # For a damaged list of members zipfile raises almost any error.
        return


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
    word="npz",
    title="npz",
    suffixes=(".npz",),
    open=None,
    rows=_rows,
    options=frozenset(),
    follow=None,
    outputs={},
)
