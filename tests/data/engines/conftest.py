"""One cluster of real processes for all tests of a run that need one."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def client() -> Iterator[Any]:
    """A client of two worker processes on this machine."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1") as cluster,
        Client(cluster) as connected,
    ):
        yield connected
