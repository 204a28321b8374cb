"""How sums over rows are shared between threads, so that their bits do not depend on it."""

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache
from itertools import cycle
from os import cpu_count
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Blas", "cores", "few_cores", "prefetch", "shared_work", "side_by_side", "this_process", "vector_norm"]

Array = NDArray[np.float64]
_Item = TypeVar("_Item")
_Made = TypeVar("_Made")
_Worker = TypeVar("_Worker")
_Given = ParamSpec("_Given")
# How many items each worker may have in hand or waiting: enough to keep it busy, few enough that a stream stays a stream.
_AHEAD = 2


class Blas:
    """How many threads BLAS may use. `eigenveil.linalg.blas` puts a limit here when it is loaded.

    Until then there is none: results do not depend on it, only how long they take.
    """

    limit: Callable[[int], AbstractContextManager[None]] = staticmethod(lambda count: nullcontext())


@contextmanager
def few_cores(count: int) -> Iterator[None]:
    """Let `shared_work` and `side_by_side`, called in this thread inside the block, take this machine to have `count` cores.

    For one of several processes or threads alike: together they use all cores already.
    """
    before = cores()
    _CORES.count = count
    try:
        yield
    finally:
        _CORES.count = before


def cores() -> int:
    """How many cores this thread may use."""
    return int(getattr(_CORES, "count", cpu_count() or 1))


_CORES = threading.local()


def shared_work(items: Iterable[_Item], *, workers: Sequence[_Worker], take: Callable[[_Worker, _Item], None]) -> None:
    """Give item j to worker j mod len(workers); the workers run in parallel threads.

    Which worker gets which item depends on their order alone, never on timing. The workers' sums are the same to the last bit
    on every run. BLAS threads are divided between the workers.
    """
    if len(workers) == 1 or cores() == 1:
        for worker, item in zip(cycle(workers), items, strict=False):
            take(worker, item)
        return
    threads = cores() // len(workers)
    with ExitStack() as stack:
        stack.enter_context(Blas.limit(threads))
        # One thread per worker, so that each takes its items in order and a slow one does not stop the others at once.
        pools = [stack.enter_context(ThreadPoolExecutor(1)) for _ in workers]
        waiting: deque[Future[None]] = deque()
        # numpy's settings belong to a thread. Without this, a worker's warning could reveal something about a row.
        take = _with_errstate(take)
        for worker, pool, item in zip(cycle(workers), cycle(pools), items, strict=False):
            waiting.append(pool.submit(take, worker, item))
            if len(waiting) > _AHEAD * len(workers):
                waiting.popleft().result()
        for future in waiting:
            future.result()


def side_by_side(items: Sequence[_Item], act: Callable[[_Item], None], *, max_threads: int = 2) -> None:
    """Call `act` for each item, in up to `max_threads` threads: for items with separate results, whose order does not matter.

    BLAS keeps its threads: this is for work that numpy and scipy do without BLAS and without Python's lock.
    """
    threads = min(max_threads, len(items), cores())
    if threads <= 1:
        for item in items:
            act(item)
        return
    waiting = deque(items)

    def drain() -> None:
        while True:
            try:
                # Atomic, so no two threads get the same item.
                item = waiting.popleft()
            except IndexError:
                return
            act(item)

    # This thread works too, and the others wait from call to call: starting them, or a future for each item, would matter where
    # items take a millisecond.
    others = [_helpers().submit(_with_errstate(drain)) for _ in range(threads - 1)]
    try:
        drain()
    finally:
        # Nothing is left to do: a helper that has not begun need not, and waiting for it could be waiting for ourselves.
        begun = [other for other in others if not other.cancel()]
        wait(begun)
    for other in begun:
        # Raises any error from a thread.
        other.result()


@cache
def _helpers() -> ThreadPoolExecutor:
    """The threads that `side_by_side` shares work with, one for each further core."""
    return ThreadPoolExecutor(max(1, (cpu_count() or 1) - 1))


# A forked process has none of its parent's threads.
os.register_at_fork(after_in_child=_helpers.cache_clear)


def prefetch(items: Sequence[_Item], make: Callable[[_Item], _Made]) -> Iterator[_Made]:
    """`make(item)` for each item, in order: another thread makes the next one while the caller uses the last."""
    if len(items) <= 1:
        yield from map(make, items)
        return
    with ThreadPoolExecutor(1) as pool:
        make = _with_errstate(make)
        ahead = pool.submit(make, items[0])
        for item in items[1:]:
            made, ahead = ahead, pool.submit(make, item)
            yield made.result()
        yield ahead.result()


def _with_errstate(act: Callable[_Given, _Made]) -> Callable[_Given, _Made]:
    """`act` for other threads, with this thread's numpy settings for overflow and other floating-point errors."""
    settings: Any = np.geterr()

    def alike(*args: _Given.args, **kwargs: _Given.kwargs) -> _Made:
        with np.errstate(**settings):
            return act(*args, **kwargs)

    return alike


def vector_norm(vector: Array) -> float:
    """The Euclidean norm, added up in an order that the length decides: BLAS would wake a thread, and add in two orders."""
    return math.sqrt(float(np.add.reduce(np.square(vector))))


class _Line:
    """How many forks lie between this process and the first one that loaded this module."""

    forks = 0


def _count_fork() -> None:
    _Line.forks += 1


os.register_at_fork(after_in_child=_count_fork)


def this_process() -> tuple[int, int]:
    """What is the same whenever this process asks, and another in each of its forks, and theirs.

    An id alone is not: the kernel gives the id of a dead process away again, and a grandchild may receive its ancestor's. The id
    is part of it for forks that Python does not see.
    """
    return _Line.forks, os.getpid()
