"""The transcript of a hub: what was released is in the file itself."""

import subprocess
import sys
from pathlib import Path

import pytest

from eigenveil.network.agents.hub_log import HubLog, LogEntry, TranscriptError

STUDY = "a" * 64
KILLED = """
import os, signal, sys
from pathlib import Path
from eigenveil.network.agents.hub_log import HubLog, LogEntry

log = HubLog.open(Path(sys.argv[1]), study="a" * 64, wheel="1")
for number in range(5):
    log.add(LogEntry(kind="message", sender="north", data=bytes(9000), released=b"noisy sum %d" % number))
print(log.secret.hex(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_hub_has_released_nothing_that_another_file_must_remember(tmp_path: Path) -> None:
    path = tmp_path / "transcript.db"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], capture_output=True, text=True, check=False)
    assert killed.returncode == -9, killed.stderr
    for other in tmp_path.iterdir():
        if other != path:
            other.unlink()
    with HubLog.open(path, study=STUDY, wheel="1") as log:
        assert [event.released for event in log.events()] == [b"noisy sum %d" % number for number in range(5)]
        # Announced nonces of masks come from it.
        assert log.secret.hex() == killed.stdout.strip()


def test_a_second_hub_on_one_transcript_is_refused_and_does_not_hold_up_the_first(tmp_path: Path) -> None:
    path = tmp_path / "transcript.db"
    with HubLog.open(path, study=STUDY, wheel="1") as log:
        for number in range(3):
            with pytest.raises(TranscriptError, match="another hub has it open"):
                HubLog.open(path, study=STUDY, wheel="1")
            log.add(LogEntry(kind="message", sender="north", data=b"sum", released=b"released"))
            assert sum(1 for _ in log.events()) == number + 1
