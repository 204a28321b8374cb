"""How many threads BLAS may use, in one place."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, final

from eigenveil.core.threads import Blas

__all__ = ["blas_threads"]


@cache
def _pools(scipy_too: bool) -> Any:
    """The BLAS libraries that are loaded now: looked up once with numpy's only, and once more when scipy's is loaded."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextmanager
def blas_threads(count: int) -> Iterator[None]:
    """Let every BLAS call inside the block use at most `count` threads.

    The limit applies to the whole process. Where blocks overlap, in several threads, the smallest limit holds. The last block to
    end restores the number of threads from before the first.

    >>> import numpy as np
    >>> with blas_threads(1):
    ...     float(np.ones((2, 2)).sum())
    4.0
    """
    _LIMITS.enter(max(1, count))
    try:
        yield
    finally:
        _LIMITS.leave(max(1, count))


@final
class _Limits:
    """The limits on BLAS threads that hold now, one for each open block. Changes in place."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now: list[int] = []
        self._before: list[tuple[Any, int]] = []

    def enter(self, count: int) -> None:
        with self._lock:
            # Only the first block records the numbers: a later one would record a limit and restore that.
            if not self._now:
                pools = _pools("scipy.linalg" in sys.modules).lib_controllers
                self._before = [(pool, pool.num_threads) for pool in pools if pool.user_api == "blas"]
            self._now.append(count)
            self._limit()

    def leave(self, count: int) -> None:
        with self._lock:
            self._now.remove(count)
            self._limit()

    def _limit(self) -> None:
        for pool, before in self._before:
            pool.set_num_threads(min(self._now, default=before))


_LIMITS = _Limits()
Blas.limit = staticmethod(blas_threads)
