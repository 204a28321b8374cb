"""What all threads of a process share: the number of BLAS threads, and what each thread asks of numpy."""

import os
import signal
import threading
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from eigenveil.core import threads
from eigenveil.core.threads import shared_work, side_by_side
from eigenveil.linalg.blas import blas_threads, tall_product, tall_times


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


def test_work_inside_shared_work_does_not_wait_for_itself() -> None:
    """The helping threads are shared by all callers, so a call inside a call may find all of them taken."""
    found = np.zeros((20, 20))

    def row(place: int) -> None:
        side_by_side(range(20), lambda column: found.__setitem__((place, column), 1.0))

    side_by_side(range(20), row)
    assert found.all()


def test_tall_products_have_the_same_bits_with_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    tall, other, small = rng.standard_normal((30011, 9)), rng.standard_normal((30011, 4)), rng.standard_normal((9, 9))
    assert np.allclose(tall_product(tall, other), tall.T @ other, rtol=1e-12)
    assert np.allclose(tall_times(tall, small), tall @ small, rtol=1e-12)
    products, times = tall_product(tall, tall), tall_times(tall, small)
    assert np.array_equal(tall_times(tall.copy(), small, out=np.empty_like(tall)), times)
    before = blas()
    for cores in (1, 2, 5):
        monkeypatch.setattr(threads, "cpu_count", lambda cores=cores: cores)
        assert np.array_equal(tall_product(tall, tall), products)
        assert np.array_equal(tall_times(tall, small), times)
    itself = tall.copy()
    assert np.array_equal(tall_times(itself, small, out=itself), times)
    assert blas() == before


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (1 << 18, 1), ((1 << 18) - 1, 1), (4097, 64)])
def test_slices_hold_every_row_once(shape: tuple[int, int]) -> None:
    ones = np.ones(shape)
    assert tall_product(ones, ones).tolist() == np.full((shape[1], shape[1]), float(shape[0])).tolist()
    assert np.array_equal(tall_times(ones, np.ones((shape[1], 2))), np.full((shape[0], 2), float(shape[1])))


def test_a_forked_process_has_threads_of_its_own() -> None:
    side_by_side(range(9), lambda place: None)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        done: list[int] = []
        side_by_side(range(9), done.append)
        os._exit(0 if sorted(done) == list(range(9)) else 1)
    assert os.waitpid(child, 0)[1] == 0
