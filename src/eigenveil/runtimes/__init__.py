"""On what parties run. So far: all of them in one process."""

from eigenveil.runtimes.in_process import Faults, InProcess, Refusal

__all__ = ["Faults", "InProcess", "Refusal"]
