"""svmlight and libsvm text: rows of pairs of a column's number and its value. Other entries are zero."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from eigenveil.data.formats.base import Format
from eigenveil.data.formats.unpacked import require_plain

if TYPE_CHECKING:
    from eigenveil.core.rows import Rows
    from eigenveil.data.formats.registry import FileParams

__all__ = ["SVM"]


def _rows(path: Path, how: "FileParams") -> "Rows":
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
    rows=_rows,
    options=frozenset({"features", "one_based"}),
    follow=None,
    outputs={},
    states_width=False,
)
