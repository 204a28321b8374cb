"""Tensors of torch on a GPU, without importing torch: what `gpu` does with them is imported when one comes."""

from typing import TYPE_CHECKING, Any, Final

from eigenveil.data.engines.base import Engine

if TYPE_CHECKING:
    from eigenveil.core.rows import Rows

__all__ = ["GPU"]


def _takes(X: Any) -> bool:
    device = getattr(getattr(X, "device", None), "type", "cpu")
    return type(X).__module__.partition(".")[0] == "torch" and device != "cpu"


def _rows(X: Any, *, gaps: bool = False) -> "Rows":
    from eigenveil.data.engines.gpu import rows_on_device

    return rows_on_device(X, gaps=gaps)


# Memory of this machine and of its GPU are in the same hands, so blocks may be copied.
GPU: Final = Engine(title="torch", takes=_takes, rows=_rows, stays=False)
