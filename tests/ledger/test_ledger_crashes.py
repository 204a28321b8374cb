"""Processes that are killed, full disks and many sites at once: nothing is charged twice or leaves without a charge."""

import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eigenveil.core.accounting import mu_for
from eigenveil.ledger.durable import DurableLedger, StudyRecord
from ledger import ledger_children
from ledger.ledger_children import LIFE, STEP, Children, account, children, digits

STRACE = shutil.which("strace")
COUNT = 6


@pytest.fixture(scope="module")
def server() -> Iterator[Children]:
    with children() as found:
        yield found


def sent_in(found: list[list[str]]) -> dict[int, bytes]:
    """What was sent in each step. A step sent again must be the same, byte for byte."""
    assert not [words for words in found if words[0] == "failed"]
    sent: dict[int, bytes] = {}
    for words in found:
        if words[0] == "sent":
            # Ten bytes, again and again.
            data = bytes.fromhex(words[2]) * (int(words[3]) // 10)
            assert sent.setdefault(int(words[1]), data) == data
    return sent


def require_paid(path: Path, sent: dict[int, bytes]) -> StudyRecord:
    """All that was sent is in the ledger, each step once and charged once, and the ledger is whole."""
    with DurableLedger.open(path, create=False) as ledger:
        ledger.verify()
        lines = [line for line in ledger.entries() if line.kind == "commit"]
        opened = ledger.join(account(), life=LIFE)
        assert [line.body["number"] for line in lines] == list(range(len(lines)))
        for number, data in sent.items():
            (said,) = lines[number].body["said"]
            assert ledger.is_mark_of(data, said)
            assert lines[number].body["charges"] == [["sum", STEP]]
        assert ledger.datasets()[0].spent == pytest.approx(STEP * math.sqrt(len(lines)))
        return opened


def test_killed_at_any_moment(server: Children, tmp_path: Path) -> None:
    rng = random.Random(0)
    seen: list[list[str]] = []
    path = tmp_path / "ledger.db"
    for kill in range(60):
        if kill % 20 == 0:
            # A new ledger now and then, so that making one is interrupted as well.
            path, seen = tmp_path / f"ledger{kill}.db", []
        (child,) = server.start("commits", path, kill, None)
        for _ in range(rng.choice((0, 1, 3, 6))):
            seen.append(server.read())
        time.sleep(rng.uniform(0, 0.006))
        os.kill(child, signal.SIGKILL)
        seen += server.rest()
        assert ["status", str(int(signal.SIGKILL))] in seen
        sent = sent_in(seen)
        if path.exists():
            opened = require_paid(path, sent)
            # What is in the ledger and was not sent yet is one step at most.
            assert len(opened.steps) - 1 - max(sent, default=-1) in (0, 1)
        else:
            assert not sent
    assert len(sent) > 20


def traced(server: Children, path: Path, *options: str) -> tuple[list[list[str]], str]:
    """What a site of COUNT steps says under strace, and what strace says."""
    (child,) = server.start("waits", path, 7, COUNT)
    assert STRACE is not None
    command = [STRACE, "-f", "-p", str(child), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        attached = tracer.stderr.readline()
        if "attached" not in attached:
            os.kill(child, signal.SIGKILL)
            server.rest()
            pytest.skip(f"processes cannot be traced here: {attached.strip()}")
        server.tell("")
        text = tracer.stderr.read()
    return server.rest(), text


@pytest.mark.skipif(STRACE is None, reason="strace is not installed")
def test_killed_at_every_fsync(server: Children, tmp_path: Path) -> None:
    inject = "inject=fsync,fdatasync:signal=KILL:when="
    for when in range(1, 200):
        path = tmp_path / f"ledger{when}.db"
        said, _ = traced(server, path, "-e", "trace=fsync,fdatasync", "-e", f"{inject}{when}")
        killed = ["status", str(int(signal.SIGKILL))] in said
        sent = sent_in(said)
        if path.exists():
            require_paid(path, sent)
        else:
            assert not sent
        server.start("commits", path, when, COUNT)
        again = server.rest()
        assert sent_in(said + again).keys() == set(range(COUNT))
        opened = require_paid(path, sent_in(said + again))
        assert opened.finished
        assert len(opened.steps) == COUNT
        if not killed:
            break
    assert not killed
    # Each step has one at the least, and making the ledger some more.
    assert when > COUNT + 5


@pytest.mark.skipif(STRACE is None, reason="strace is not installed")
def test_the_disk_has_each_step_before_it_is_sent(server: Children, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    _, text = traced(server, path, "-y", "-e", "trace=fsync,fdatasync,write,rename")
    here = re.escape(str(tmp_path))
    pattern = rf'(rename)\(|f(?:data)?sync\(\d+<({here}[^>]*)>|write\(1[^,]*, "(sent \d+)'
    since: list[str] = []
    steps = 0
    for renamed, synced, sent in re.findall(pattern, text):
        if sent:
            # The file itself, and after it the folder from which its journal was removed: nothing can undo the step.
            assert [str(path), str(tmp_path)] == since[-2:], sent
            since, steps = [], steps + 1
        else:
            since.append(renamed or synced)
        if steps == 0 and "rename" in since[:-1]:
            # A file without its name in the folder would be gone after a power cut.
            assert since[since.index("rename") + 1] == str(tmp_path)
    assert steps == COUNT


def test_many_processes_cannot_overspend(server: Children, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    # Reserved first, so that all get a study they all try to go on with.
    with DurableLedger.open(path) as ledger:
        ledger.join(account("of all", mu=0.05), life=LIFE)
    server.start("hammers", path, copies=6)
    said = server.rest()
    assert [words for words in said if words[0] == "status"] == [["status", "0"]] * 6, said
    with DurableLedger.open(path) as ledger:
        # Each line is checked against the rule for the total as it stood then.
        ledger.verify()
        (state,) = ledger.datasets()
        studies = ledger.studies()
    assert state.counted <= mu_for(LIFE.epsilon, LIFE.delta - state.extra_delta) * (1 + 1e-12)
    joined = [words for words in said if words[0] == "joined"]
    assert len(studies) == len(joined) + 1
    assert len([words for words in said if words[0] == "refused"]) == 6 * 12 - len(joined) > 0
    won = [int(words[1]) for words in said if words[0] == "won"]
    assert len(won) == len(set(won))
    assert sorted(won) == list(range(len(won)))
    (one,) = (study for study in studies if study.account.study == digits("of all"))
    assert one.steps == len(won) > 0
    assert one.spent == pytest.approx(0.01 * math.sqrt(len(won)))


def test_a_study_is_held_by_one_process_at_a_time(server: Children, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    DurableLedger.open(path).close()
    server.start("holds", path, copies=4)
    said = server.rest()
    assert [words for words in said if words[0] == "failed"] == []
    held = [int(words[1]) for words in said if words[0] == "held"]
    assert len(held) == 4
    assert sum(held) > 0
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.db"]


def require_refused(said: list[list[str]], why: str) -> None:
    refused = [" ".join(words) for words in said if words[0] == "refused"]
    assert len(refused) == 2, said
    for line in refused:
        assert why in line
        assert "nothing was written and nothing may leave" in line
    # Nothing new in the ledger, and the same step can be committed once there is room.
    assert ["unchanged", "True", "1"] in said
    assert ["steps", "2", "4"] in said


def test_a_file_that_may_not_grow(server: Children, tmp_path: Path) -> None:
    server.start("fills", tmp_path / "ledger.db")
    said = server.rest()
    require_refused(said, "the disk refused")
    with DurableLedger.open(tmp_path / "ledger.db") as ledger:
        assert len(ledger.join(account(), life=LIFE).steps) == 2
        ledger.verify()


SMALL_DISK = """
import sys
from pathlib import Path
from ledger.ledger_children import *
folder = Path(sys.argv[1])
mine = account()
with DurableLedger.open(folder / "ledger.db") as ledger:
    ledger.join(mine, life=LIFE)
    ledger.commit(mine.study, 0, came=b"", replies=[b"small"], charges=[Charge("sum", STEP)])
    (folder / "others").write_bytes(bytes(2 * MEGABYTE))
    overfill(ledger, mine)
    (folder / "others").unlink()
    ledger.commit(mine.study, 1, came=b"", replies=[b"x" * MEGABYTE], charges=[Charge("sum", STEP)])
    say("steps", len(ledger.join(mine, life=LIFE).steps), ledger.verify().number)
"""


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """On a file system of its own, mounted for the one process that uses it."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    mounted = f'mount -t tmpfs -o size=6m,mode=700 none {tmp_path} && echo mounted && exec {sys.executable} -c "$0" {tmp_path}'
    command = ["unshare", "--mount", "sh", "-c", mounted, SMALL_DISK]
    tests = str(Path(ledger_children.__file__).parents[1])
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": tests}, timeout=60, check=False
    )
    if "mounted" not in done.stdout:
        pytest.skip("file systems cannot be mounted here")
    assert done.returncode == 0, done.stderr
    require_refused([line.split() for line in done.stdout.splitlines()], "the disk is full")
