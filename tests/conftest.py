"""One Hypothesis profile for every test: the same examples on every run, and no clock. And one BLAS thread per worker."""

import gc
import os
import shutil
import signal
from collections.abc import Iterator
from typing import Any

# Before numpy is loaded: pytest runs workers on all cores, and more threads than that only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import settings

from same_noise import SameNoise

# Ledgers wait for the disk at every entry. Tests kill processes, not machines, so files in memory last as long.
MEMORY = "/dev/shm"
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4e9:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)

settings.register_profile("eigenveil", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("eigenveil")

# A shell that runs the tests in the background has SIGINT ignored, and some tests are about Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Small tables and small budgets are what tests are made of, so ten thousand warnings of fits would bury the others.

    Tests of warnings catch them with filters of their own.
    """
    config.pluginmanager.register(SameNoise())
    for warning in ("ParameterWarning", "WeakGuaranteeWarning"):
        config.addinivalue_line("filterwarnings", f"ignore::eigenveil.errors.{warning}")


def pytest_collection_finish() -> None:
    """Half a million objects of modules and tests stay to the end: no need to go through them whenever garbage is collected."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def unplanned() -> Iterator[None]:
    """Nobody rehearses whether a result of noise alone was to be expected, which takes longer than a small fit.

    A plan knows public numbers alone and changes no fit. What fits say of it is for test_verdicts.py, where plans are made.
    """
    from eigenveil.plan import recommendation

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recommendation, "hopeless", lambda facts, method: None)
        yield


FLAGS = (
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium by way of playwright; skipped where one of them is not installed.

    One for each module: playwright keeps an event loop on this thread, and tests elsewhere start their own.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: .ci/run installs it")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("Chromium is not installed: .ci/run installs it")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=program, args=list(FLAGS))
        yield found
        found.close()
