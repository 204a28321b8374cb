"""One Hypothesis profile for every test: the same examples on every run, and no clock. And one BLAS thread per worker."""

import gc
import os
import signal

# Before numpy is loaded: pytest runs workers on all cores, and more threads than that only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from hypothesis import settings

settings.register_profile("eigenveil", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("eigenveil")

# A shell that runs the tests in the background has SIGINT ignored, and some tests are about Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Half a million objects of modules and tests stay to the end: no need to go through them whenever garbage is collected."""
    gc.collect()
    gc.freeze()
