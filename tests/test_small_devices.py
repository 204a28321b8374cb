"""What a device loads, in fresh processes: a tracker does without scipy, and a followed csv without what reads other tables.

How much memory that takes is in benchmarks/streaming/device_memory.py. What is loaded is the same on every machine.
"""

import json
import subprocess
import sys
from pathlib import Path

TRACKER = """
import numpy as np
from eigenveil.trackers import NOTHING_ASKED, BlockTracker
tracker = BlockTracker(rank=10)
state = tracker.start(1000)
for rows in np.random.default_rng(0).standard_normal((3, 200, 1000)):
    state = tracker.step(state, rows, NOTHING_ASKED)
tracker.subspace(state)
"""
SITE = """
import sys
from pathlib import Path
import eigenveil.commands
import eigenveil.commands.site
import eigenveil.commands.watch
import eigenveil.show.progress
import eigenveil.network.agents.slot_site
from eigenveil.data.follow import ByCount, Follower, Instant, follow
from eigenveil.estimators.slots.parties import SlotParties
from eigenveil.estimators.slots.parties import slot_spec
from eigenveil.params.declarations.streaming import SlotStreamParams
from eigenveil.params.declare import validate_params
from eigenveil.core.accounting import Budget
follower = Follower(follow(Path(sys.argv[1])), ByCount(rows=2, horizon=4))
params = validate_params(SlotStreamParams, SlotStreamParams(1, epsilon=1.0, delta=1e-6, slots=4, trust="site", row_bound=5.0))
parties = SlotParties(slot_spec(params, ("a", "b"), dim=2, budget=Budget(1.0, 1e-6), seed=None), roster={})
site, slot = parties.member("a"), parties.task.open()
slot.add(follower.poll(Instant.now()).rows)
site.close(follower.poll(Instant.now()).slot, slot.close())
assert parties.ledgers["a"].spent_mu > 0
"""
LOADED = "import json, sys; print(json.dumps(sorted(sys.modules)))"


def loaded_by(code: str, *arguments: str) -> set[str]:
    """The modules that a fresh process has loaded after this code."""
    run = [sys.executable, "-c", f"{code}\n{LOADED}", *arguments]
    return set(json.loads(subprocess.run(run, capture_output=True, text=True, check=True).stdout))


def test_a_tracker_needs_neither_scipy_nor_anything_that_reads_tables() -> None:
    found = loaded_by(TRACKER)
    assert {"numpy", "eigenveil"} <= found
    assert not found & {"scipy", "sklearn", "pandas", "pyarrow", "dp_accounting", "grpc", "typer", "rich", "asyncio"}


def test_a_site_that_follows_a_csv_needs_no_table_reader(tmp_path: Path) -> None:
    path = tmp_path / "sensor.csv"
    path.write_text("a,b\n1,2\n3,4\n")
    found = loaded_by(SITE, str(path))
    assert {"grpc", "cryptography", "sqlite3"} <= found
    assert not found & {"scipy", "sklearn", "pandas", "pyarrow", "polars", "dp_accounting", "joblib"}
    # Nor what only tables and simulations need: random generators and the planner take several MiB.
    assert not found & {"numpy.random", "eigenveil.plan", "eigenveil.model"}
    assert not found & {"eigenveil.protocols.gossip", "eigenveil.runtimes.local", "eigenveil.tasks.fit.task"}


READING = """
import sys
from pathlib import Path
from eigenveil.data.tables import read_table
table = read_table(Path(sys.argv[1]))
assert sum(float(block.values.sum()) for block in table.rows.blocks(10)) == 10.5
"""


def test_a_table_of_numbers_is_read_without_pandas(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a,b\n1,2.5\n3,4\n")
    found = loaded_by(READING, str(path))
    assert "pyarrow" in found and "pandas" not in found
