"""On what parties run. So far: all of them in one process."""

from eigenveil.runtimes.in_process import InProcess
from eigenveil.runtimes.meeting import Meeting
from eigenveil.runtimes.post import Faults, Post, Refusal

__all__ = ["Faults", "InProcess", "Meeting", "Post", "Refusal"]
