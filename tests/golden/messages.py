"""Messages of one seeded study per protocol: kind, sender, receiver, size, and a digest of the bytes. Keys are seeded too."""

import hashlib
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, Final
from unittest.mock import patch

import numpy as np

from eigenveil import FederatedPCA, FederatedStream, GossipPCA
from eigenveil.protocols.keys import KEY, Identity
from eigenveil.protocols.messages import Message
from eigenveil.protocols.wire import encode
from eigenveil.runtimes.local import Faults

__all__ = ["messages"]

_ROWS: Final = np.random.default_rng(21).standard_normal((400, 5)) * [4, 2, 1, 1, 1]
_SITES: Final = {f"s{at}": _ROWS[at::5] for at in range(5)}
_GIVEN: Final[dict[str, Any]] = {"epsilon": 3.0, "delta": 1e-6, "row_bound": 9.0, "random_state": 3}
_TREE: Final[dict[str, Any]] = {"topology": "tree", "fanout": 2}


def _star(faults: Faults, **choices: Any) -> None:
    FederatedPCA(2, **(_GIVEN | choices), faults=faults).fit(_SITES)


def _peers(faults: Faults, **choices: Any) -> None:
    GossipPCA(2, **(_GIVEN | {"graph": "ring"} | choices), faults=faults).fit(_SITES)


def _slots(faults: Faults, **choices: Any) -> None:
    FederatedStream(2, **(_GIVEN | choices), slots=3, faults=faults).partial_fit(_SITES).partial_fit(_SITES)


_STUDIES: Final[dict[str, Callable[[Faults], None]]] = {
    "star": lambda faults: _star(faults, method="krylov", rounds=2),
    "star, local steps": lambda faults: _star(faults, method="fedpower", trust="site", local_steps=2, rounds=2),
    "star, covariance": lambda faults: _star(faults, method="covariance", trust="site", row_bound="private"),
    "tree": lambda faults: _star(faults, method="power", rounds=2, **_TREE),
    "tree, merge": lambda faults: _star(faults, method="merge", trust="site", **_TREE),
    "masked": lambda faults: _star(faults, method="covariance", trust="masked"),
    "gossip": lambda faults: _peers(faults, method="power", rounds=2, noise="independent"),
    "gossip, pairs": lambda faults: _peers(faults, method="covariance", graph="complete", consensus="tree"),
    "gossip, segments": lambda faults: _peers(faults, method="segments", graph="complete", center=None),
    "slots": lambda faults: _slots(faults, trust="site"),
    "slots, tree": lambda faults: _slots(faults, trust="site", **_TREE),
    "slots, masked": lambda faults: _slots(faults, trust="masked"),
}
_SHOWN: Final = 120


def messages() -> dict[str, str]:
    """The messages of each study, a line each, in the order in which they were sent, the first 120."""
    return {name: "\n".join(_sent(run)) for name, run in _STUDIES.items()}


def _sent(run: Callable[[Faults], None]) -> list[str]:
    lines: list[str] = []
    draws = count()

    def note(message: Message) -> Iterable[Message]:
        data = encode(message)
        digest = hashlib.sha256(data).hexdigest()[:12]
        lines.append(f"{type(message.body).__name__} {message.sender} -> {message.receiver} {len(data)} bits {digest}")
        return [message]

    def drawn(size: int) -> bytes:
        return hashlib.shake_256(f"golden {next(draws)}".encode()).digest(size)

    with patch("os.urandom", drawn), patch.object(Identity, "fresh", lambda: Identity(drawn(KEY))):
        run(Faults(meddle=note))
    # Peers send thousands of messages: what came late is counted.
    rest = hashlib.sha256("\n".join(lines[_SHOWN:]).encode()).hexdigest()[:12]
    return lines if len(lines) <= _SHOWN else [*lines[:_SHOWN], f"and {len(lines) - _SHOWN} more, bits {rest}"]
