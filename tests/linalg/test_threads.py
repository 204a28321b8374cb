"""What all threads of a process share: the number of BLAS threads, and what each thread asks of numpy."""

import threading
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from eigenveil.linalg.kernel import blas_threads, shared_work, side_by_side


def blas() -> list[int]:
    """How many threads each BLAS uses now."""
    return [int(pool["num_threads"]) for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_limits_that_overlap_leave_the_number_of_threads_as_it_was() -> None:
    """The first to come is the first to go: putting back what each one found would leave the second one's limit for ever."""
    with blas_threads(2):
        pass
    before = blas()
    inside, out = threading.Event(), threading.Event()

    def first() -> None:
        with blas_threads(1):
            inside.set()
            out.wait(10)

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait(10)
    with blas_threads(1):
        out.set()
        thread.join()
        assert set(blas()) == {1}
    assert blas() == before


def test_the_smallest_limit_holds_and_none_raises_it() -> None:
    before = blas()
    with blas_threads(1):
        with blas_threads(64):
            assert set(blas()) == {1}
        assert set(blas()) == {1}
    assert blas() == before
    with pytest.raises(ZeroDivisionError), blas_threads(1):
        raise ZeroDivisionError
    assert blas() == before


def test_workers_ask_of_numpy_what_their_caller_does() -> None:
    sums = [np.zeros(1), np.zeros(1)]

    def take(mine: Any, item: float) -> None:
        mine += np.square(np.array([item]))

    with np.errstate(all="ignore"):
        shared_work([1e300, 1e300], workers=sums, take=take)
    assert np.isinf(sums[0]).all() and np.isinf(sums[1]).all()
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        shared_work([1e300, 1e300], workers=sums, take=take)


def test_threads_side_by_side_ask_of_numpy_what_their_caller_does_and_raise_what_they_meet() -> None:
    found = np.zeros(9)

    def put(place: int) -> None:
        found[place] = np.square(np.float64(1e300))

    with np.errstate(all="ignore"):
        side_by_side(range(9), put)
    assert np.isinf(found).all()
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        side_by_side(range(9), put)
    side_by_side([], put)
