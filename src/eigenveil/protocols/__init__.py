"""Who carries a task. So far: one holder of all rows."""

from eigenveil.protocols.pooled import run_pooled

__all__ = ["run_pooled"]
