"""Rows on a GPU, or in the arrays of any library that follows the array API: sums are worked out on that device.

The bits are those of rows in memory. Every entry is clipped and rounded onto the grid there, in float64, by the same operations
in the same order. Whole numbers are then multiplied and added, which no order changes. What is decided for a row as a whole (how
much of it is clipped away) is decided by `Domain` itself, from the squared norms that the device found.

`rows.py` has `DeviceRows`, which estimators accept, `rows_on_device`, which makes them, and the sums. `fused.py` has blocks on
the device with their squared norms, and the same sums on an NVIDIA GPU without intermediate tables. Sums in floating point, which
say themselves how a device adds them up, call it too. It may import what the rest of `data` may.
"""

from eigenveil.data.engines.gpu.rows import DeviceRows, rows_on_device

__all__ = ["DeviceRows", "rows_on_device"]
