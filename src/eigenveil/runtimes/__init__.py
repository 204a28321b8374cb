"""On what parties run: all in one process, with faults if asked for, or apart from each other over `grpc`.

Estimators, the audit and `network` call it. It may import `protocols` and below, and knows nothing of what messages mean.
"""

from eigenveil.runtimes.in_process import InProcess
from eigenveil.runtimes.meeting import Meeting
from eigenveil.runtimes.post import Faults, Post, Refusal

__all__ = ["Faults", "InProcess", "Meeting", "Post", "Refusal"]
