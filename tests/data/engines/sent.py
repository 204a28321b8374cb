"""What tests send to other processes. It loads next to nothing: a process that gets one of these imports this module first."""

import os
import resource
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

__all__ = ["SECRET", "Killer", "Peak", "fail", "read"]

SECRET = "Ann Smith, born 1970"


@dataclass(frozen=True)
class Killer:
    """The number of rows; the first process that works on it is killed in the middle, or every one if there is no `flag`."""

    flag: Path | None

    def of(self, rows: Any) -> int:
        if self.flag is None or not self.flag.exists():
            if self.flag is not None:
                self.flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return int(rows.shape[0])

    def joined(self, left: int, right: int) -> int:
        return left + right


@dataclass(frozen=True)
class Peak:
    """The most memory, in bytes, that a process which works on it ever had."""

    def of(self, rows: Any) -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def joined(self, left: int, right: int) -> int:
        return max(left, right)


def read(path: str, chunk: int, block_info: Any = None) -> Any:
    """A chunk of rows, from a file."""
    start = block_info[None]["chunk-location"][0] * chunk
    return np.load(path)[start : start + chunk]


def fail(part: Any) -> NoReturn:
    """An error of the caller's own, whose text nobody must see."""
    raise ValueError(f"could not convert {SECRET!r}")
