"""How much memory a small device needs: resident memory of fresh processes, by what they load and do.

Each line is a process of its own. `now` is what it holds at the end, `peak` the most it had (VmRSS and VmHWM of Linux). A
tracker should stay below 64 MiB, and a site that follows a csv below 110 MiB.

    python benchmarks/streaming/device_memory.py
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

TRACKER = """
import numpy as np
from eigenveil.tracking import NOTHING_ASKED, BlockTracker
tracker, rng = BlockTracker(10), np.random.default_rng(0)
state = tracker.start(1000)
for _ in range(20):
    state = tracker.step(state, rng.standard_normal((200, 1000)), NOTHING_ASKED)
tracker.subspace(state)
"""
PRIVATE = """
import numpy as np
from eigenveil.privacy import Domain, Gaussian, Ledger, Noise
from eigenveil.tracking import SlicedTracker, SumTerms
ledger = Ledger(epsilon=1.0, delta=1e-6)
mechanism = Gaussian(100.0, ledger, Noise.seeded(0))
tracker, rng = SlicedTracker(10, SumTerms(Domain(dim=1000, radius=40.0), center=False)), np.random.default_rng(0)
state = tracker.start(1000)
for _ in range(5):
    state = tracker.step(state, rng.standard_normal((200, 1000)), mechanism)
tracker.subspace(state)
"""
SITE = """
import eigenveil.cli, eigenveil.cli.network.site, eigenveil.network.agents.site
"""
FOLLOW = """
import sys
from pathlib import Path
from eigenveil.data.follow import ByCount, Follower, Instant, FollowedRows, follow
from eigenveil.privacy import Budget
from eigenveil.tracking import NOTHING_ASKED, BlockTracker
assert Budget(1.0, 1e-6).mu > 0
follower = Follower(follow(Path(sys.argv[1])), ByCount(rows=200, horizon=10))
tracker = BlockTracker(10)
state = tracker.start(len(follower.source.columns))
while (event := follower.poll(Instant.now())) is not None:
    if isinstance(event, FollowedRows):
        state = tracker.step(state, event.rows, NOTHING_ASKED)
tracker.subspace(state)
"""
SLOTS = """
import sys
import numpy as np
from eigenveil.estimators.slots.parties import SlotParties
from eigenveil.estimators.slots.spec import slot_spec
from eigenveil.params import SlotStreamParams, checked
from eigenveil.privacy import Budget
dim, private = int(sys.argv[1]), sys.argv[2] == "private"
terms = dict(epsilon=1.0, delta=1e-6, row_bound=50.0) if private else dict(epsilon=None)
asked = checked(SlotStreamParams, SlotStreamParams(5, slots=5, trust="site", **terms))
spec = slot_spec(asked, ("a", "b"), dim=dim, budget=Budget(1.0, 1e-6) if private else None, seed=None)
parties = SlotParties(spec, roster={})
site = parties.member("a")
for number in range(5):
    slot = parties.task.open()
    slot.add(np.random.default_rng(number).standard_normal((200, dim)))
    site.close(number, slot.close())
"""
MEASURED = """
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(*(int(status[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM")))
"""


def resident(code: str, *arguments: str) -> tuple[float, float]:
    """MiB held at the end and at the peak, of a fresh process that runs this code."""
    run = [sys.executable, "-c", code + MEASURED, *arguments]
    now, peak = subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()
    return float(now), float(peak)


def table(path: Path, *, rows: int, dim: int) -> str:
    """A csv of made-up numbers with 17 digits each. Another process writes it: this one must stay as it is."""
    code = """
import sys
import numpy as np
path, rows, dim = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with open(path, "w") as file:
    file.write(",".join(f"c{i}" for i in range(dim)) + "\\n")
    for row in np.random.default_rng(0).standard_normal((rows, dim)):
        file.write(",".join(map(repr, row.tolist())) + "\\n")
"""
    subprocess.run([sys.executable, "-c", code, str(path), str(rows), str(dim)], check=True)
    return str(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    print(f"{'':58}{'now':>8}{'peak':>8}  MiB")
    with tempfile.TemporaryDirectory() as folder:
        narrow = table(Path(folder) / "narrow.csv", rows=2000, dim=50)
        wide = table(Path(folder) / "wide.csv", rows=1000, dim=1000)
        for name, code, arguments in (
            ("Python alone", "", ()),
            ("numpy", "import numpy", ()),
            ("eigenveil.tracking", "import eigenveil.tracking", ()),
            ("  with a tracker, d = 1000, blocks of 200", TRACKER, ()),
            ("  with noise in every block, d = 1000, blocks of 200", PRIVATE, ()),
            ("what `eigenveil site` loads", SITE, ()),
            ("  and follows a csv of 50 columns, slots of 200 rows", SITE + FOLLOW, (narrow,)),
            ("  and follows a csv of 1000 columns, slots of 200 rows", SITE + FOLLOW, (wide,)),
            ("  and closes slots without noise, d = 50", SITE + SLOTS, ("50", "exact")),
            ("  and closes slots without noise, d = 1000", SITE + SLOTS, ("1000", "exact")),
            ("  and closes slots with noise, d = 50", SITE + SLOTS, ("50", "private")),
            ("  and closes slots with noise, d = 400", SITE + SLOTS, ("400", "private")),
            ("  and closes slots with noise, d = 1000", SITE + SLOTS, ("1000", "private")),
        ):
            now, peak = resident(code, *arguments)
            print(f"{name:58}{now:8.1f}{peak:8.1f}", flush=True)


if __name__ == "__main__":
    main()
