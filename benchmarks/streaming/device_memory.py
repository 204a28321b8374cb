"""How much memory a small device needs: resident memory of fresh processes, by what they load and do.

Each line is a process of its own. `now` is what it holds at the end, `peak` the most it had (VmRSS and VmHWM of Linux). A
tracker should stay below 64 MiB, and a site that follows a csv or a pipe below 110 MiB. The last lines are of the command itself,
in a study with a hub over mutual TLS. A peak above its limit is marked, and ends the benchmark with an error.

    python benchmarks/streaming/device_memory.py
    python benchmarks/streaming/device_memory.py --columns 1000
"""

import argparse
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TRACKER = """
import numpy as np
from eigenveil.trackers import NOTHING_ASKED, BlockTracker
tracker, rng = BlockTracker(10), np.random.default_rng(0)
state = tracker.start(1000)
for _ in range(20):
    state = tracker.step(state, rng.standard_normal((200, 1000)), NOTHING_ASKED)
tracker.subspace(state)
"""
PRIVATE = """
import numpy as np
from eigenveil.core.domain import Domain
from eigenveil.core.mechanism import Gaussian
from eigenveil.core.ledger import Ledger
from eigenveil.core.noise import Noise
from eigenveil.trackers import SlicedTracker, SumTerms
ledger = Ledger(epsilon=1.0, delta=1e-6)
mechanism = Gaussian(100.0, ledger, Noise.seeded(0))
tracker, rng = SlicedTracker(10, SumTerms(Domain(dim=1000, radius=40.0), center=False)), np.random.default_rng(0)
state = tracker.start(1000)
for _ in range(5):
    state = tracker.step(state, rng.standard_normal((200, 1000)), mechanism)
tracker.subspace(state)
"""
SITE = """
import eigenveil.commands, eigenveil.commands.site, eigenveil.network.agents.star
"""
FOLLOW = """
import sys
from pathlib import Path
from typing import Any
from eigenveil.data.follow import ByCount, Follower, Instant, FollowedRows, follow
from eigenveil.core.accounting import Budget
from eigenveil.trackers import NOTHING_ASKED, BlockTracker
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
from eigenveil.estimators.slots.parties import slot_spec
from eigenveil.params.declarations.streaming import SlotStreamParams
from eigenveil.params.declare import checked
from eigenveil.core.accounting import Budget
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


# The most that each may take, in MiB.
DEVICE, COMMAND = 64, 110


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


def command(folder: Path, source: str, *, dim: int, private: bool, pipe: bool = False) -> float:
    """MiB at the peak of `eigenveil site --follow`, in a study of five slots of 200 rows, from consent to the result."""
    folder.mkdir(mode=0o700)

    def run(*words: str) -> list[str]:
        return [sys.executable, "-m", "eigenveil", *words]

    def done(*words: str) -> None:
        subprocess.run(run(*words), cwd=folder, check=True, capture_output=True)

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    done("keys", "init", "hub", "--host", "localhost")
    done("keys", "site", "site", "--folder", ".", "--authority", "hub")
    cost = "--epsilon 1 --delta 1e-6 --row-bound 50 --trust site --neighbours zero-out" if private else "--no-privacy"
    terms = f"--streaming --slots 5 --slot-rows 200 --address localhost:{port} -k 5 --deadline 2 {cost}".split()
    columns = ",".join(f"c{place}" for place in range(dim))
    done("study", "new", "s.toml", "--authority", "hub", "--columns", columns, *terms)
    done("policy", "new", "policy.toml", "--study", "s.toml")
    allowed = {"neighbours": '["zero-out", "add-remove"]', "organisations": "1", "trust": '["site", "none"]'}
    text = re.sub(r'^# (hub = |"|unit = )', r"\1", (folder / "policy.toml").read_text(), flags=re.MULTILINE)
    for key, value in (allowed if private else allowed | {"study_epsilon": "inf", "lifetime_epsilon": "inf"}).items():
        text = re.sub(rf"^{key} = .*$", f"{key} = {value}", text, flags=re.MULTILINE)
    (folder / "policy.toml").write_text(text)
    quiet: dict[str, Any] = {"cwd": folder, "stdout": subprocess.DEVNULL}
    followed = ("--follow", "-" if pipe else source, "--policy", "policy.toml", "--dataset", "rows", "--yes")
    peak = 0
    with (
        subprocess.Popen(run("hub", "s.toml", "--serve", "--keys", "hub/hub.key"), **quiet) as hub,
        Path(source).open("rb") as rows,
        subprocess.Popen(run("site", "s.toml", "--keys", "site.key", *followed), stdin=rows, **quiet) as site,
    ):
        while site.poll() is None:
            found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{site.pid}/status").read_text())
            peak = int(found[1]) if found else peak
            time.sleep(0.05)
        hub.terminate()
    assert site.returncode == 0
    return peak / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--columns", type=int, nargs="+", default=(50, 400, 1000), help="of the studies with a hub")
    asked = parser.parse_args()
    above = False
    print(f"{'':58}{'now':>8}{'peak':>8}  MiB")
    with tempfile.TemporaryDirectory() as folder:
        narrow = table(Path(folder) / "narrow.csv", rows=2000, dim=50)
        wide = table(Path(folder) / "wide.csv", rows=1000, dim=1000)
        for name, code, arguments in (
            ("Python alone", "", ()),
            ("numpy", "import numpy", ()),
            ("eigenveil.trackers", "import eigenveil.trackers", ()),
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
            over = peak > (DEVICE if code in (TRACKER, PRIVATE) else COMMAND)
            above |= over
            print(f"{name:58}{now:8.1f}{peak:8.1f}{'  above the limit' * over}", flush=True)
        for dim in asked.columns:
            source = table(Path(folder) / f"{dim}.csv", rows=1000, dim=dim)
            for private, pipe in ((False, False), (False, True), (True, False), (True, True)):
                name = f"`eigenveil site --follow`, {'a pipe' if pipe else 'csv'}, {'' if private else 'no '}noise, d = {dim}"
                at = Path(folder) / f"{dim}{private}{pipe}"
                peak = command(at, source, dim=dim, private=private, pipe=pipe)
                above |= peak > COMMAND
                print(f"{name:66}{peak:8.1f}{'  above the limit' * (peak > COMMAND)}", flush=True)
    if above:
        sys.exit("a device takes more memory than it should")


if __name__ == "__main__":
    main()
