"""Where parties run: all in one process (`local`, with faults if asked for), or on machines connected by `grpc`.

Estimators, the audit and `network` call it. It may import `protocols` and below, and does not interpret what messages say.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eigenveil.runtimes.local import Faults, LocalNetwork, LocalPeers, LocalStar, Refusal

__all__ = ["Faults", "LocalNetwork", "LocalPeers", "LocalStar", "Refusal"]


def __getattr__(name: str) -> Any:
    # Found on first use: a device that calls a hub needs `grpc` alone, and simulations load peers and their graphs.
    if name not in __all__:
        raise AttributeError(f"module 'eigenveil.runtimes' has no attribute {name!r}")
    from eigenveil.runtimes import local

    return getattr(local, name)
