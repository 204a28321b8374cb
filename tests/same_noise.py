"""Fresh noise that is the same on every run, so that no test fails by chance in a run of its own.

A test that gives no seed must draw "fresh" noise, which differs from draw to draw. Here the machine's entropy and clock, as the
noise sees them, are replaced by digests of the test's name and of a count. So a test passes always or never, whatever ran before
it, and everything else is as it is in use: draws are renewed, results are not called reproducible. `EIGENVEIL_TEST_NOISE=7` gives
other noise: run the suite with many of them to find assertions that noise can fail.

Threads and other processes are not covered: tests with those need seeds or a large budget. `pytest.mark.real_entropy` is for
tests of freshness itself.
"""

import hashlib
import itertools
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest

from eigenveil.core import noise

__all__ = ["SameNoise"]

_SALT: Final = os.environ.get("EIGENVEIL_TEST_NOISE", "")
_MAIN: Final = threading.main_thread()
_default_rng: Final = np.random.default_rng
_MACHINE: Final[dict[tuple[Any, str], Any]] = {
    (noise, "os"): os,
    (noise, "time"): time,
    (noise, "threading"): threading,
    (np.random, "default_rng"): _default_rng,
}


class SameNoise:
    """The plugin. Changes in place: it counts the draws of the fixture or test that runs now."""

    default_rng = staticmethod(_default_rng)

    def __init__(self) -> None:
        self._count = itertools.count()
        self._place = "collection"
        self._stand_ins = dict(
            zip(
                _MACHINE,
                (
                    SimpleNamespace(urandom=self._entropy, getpid=lambda: 0),
                    SimpleNamespace(time_ns=lambda: 0, perf_counter_ns=lambda: 0),
                    SimpleNamespace(Lock=threading.Lock, get_ident=lambda: 0),
                    self._rng,
                ),
                strict=True,
            )
        )
        # A child process must not draw what its parent or its sibling draws.
        os.register_at_fork(after_in_child=self._restore)

    @contextmanager
    def at(self, place: str) -> Iterator[None]:
        """Draw what is drawn in this place, from the first draw on."""
        before = self._place, self._count
        self._place, self._count = place, itertools.count()
        self._replace()
        try:
            yield
        finally:
            self._place, self._count = before

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Iterator[None]:
        with self.at(collector.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[None]:
        with self.at(f"{request.node.nodeid} {fixturedef.argname}"):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        with self.at(item.nodeid):
            if item.get_closest_marker("real_entropy"):
                self._restore()
            return (yield)

    def _replace(self) -> None:
        for (module, name), value in self._stand_ins.items():
            setattr(module, name, value)

    def _restore(self) -> None:
        for (module, name), value in _MACHINE.items():
            setattr(module, name, value)

    def _entropy(self, size: int) -> bytes:
        """Of a thread beside the test's own it is true entropy: which thread comes first differs from run to run."""
        if threading.current_thread() is not _MAIN:
            return os.urandom(size)
        return hashlib.shake_256(f"{_SALT} {self._place} {next(self._count)}".encode()).digest(size)

    def _rng(self, seed: Any = None) -> np.random.Generator:
        return _default_rng(int.from_bytes(self._entropy(16), "big") if seed is None else seed)
