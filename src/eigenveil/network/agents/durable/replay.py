"""`ReplayMechanism`: a hub's mechanism whose releases can be written to disk and replayed without fresh noise.

`DurableHub` puts it around the hub's mechanism. Two different noises on the same sum would be two releases.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import final

import numpy as np

from eigenveil.core.ledger import Slot
from eigenveil.core.mechanism import Bounded, Mechanism
from eigenveil.errors import ProtocolError
from eigenveil.linalg import Array
from eigenveil.privacy.released import release_columns
from eigenveil.protocols import Give, Message
from eigenveil.protocols.wire import decode, encode

__all__ = ["ReplayMechanism"]


@final
class ReplayMechanism(Mechanism):
    """Releases through another mechanism, and keeps each release until it is taken. Changes in place.

    Releases put back with `recall` replace new ones, in order. They are charged all the same: the ledger of a restarted
    hub must say what the process before it spent.
    """

    def __init__(self, through: Mechanism) -> None:
        self._through = through
        # New releases that no log entry has yet, and releases from the log that the replay has not reached.
        self._new: list[Array] = []
        self._known: deque[Array] = deque()

    def onto(self, through: Mechanism) -> "ReplayMechanism":
        """The same memory over another mechanism: a stream has one for each slot."""
        self._through = through
        return self

    def recall(self, released: bytes | None) -> None:
        """Put back what was released next."""
        if released is not None:
            body = decode(released).body
            # `taken` wrote it. Releases are stored in the wire format, which keeps every bit of an array.
            assert isinstance(body, Give)
            # Copies, because the alignment of an array in memory can change the last digit of what is computed from it.
            self._known.extend(np.array(array) for array in body.arrays)

    def taken(self) -> bytes | None:
        """What was released since the last call, to be written to disk; None if nothing was."""
        arrays, self._new = tuple(self._new), []
        return encode(Message("hub", "hub", Give(0, arrays))) if arrays else None

    def require_all_given(self) -> None:
        """Refuse to go on after a replay that did not use every release that was put back."""
        if self._known:
            raise ProtocolError(
                "the transcript has releases that this hub does not make: it belongs to another study or version"
            )

    def release(self, private: Bounded, *, label: str, share: float = 1.0, slot: Slot | None = None) -> Array:
        """The value that was released before, or a new one."""
        return self._kept(self._through.release(private, label=label, share=share, slot=slot))

    def release_columns(
        self,
        slices: Iterable[Array],
        *,
        dim: int,
        sensitivity: float,
        label: str,
        share: float = 1.0,
        slot: Slot | None = None,
    ) -> Iterator[Array]:
        """The same, slice by slice; charged before the first slice is asked for."""
        released = release_columns(
            self._through, slices, dim=dim, sensitivity=sensitivity, label=label, share=share, slot=slot
        )
        # `map` is lazy, so a slice is released when it is wanted, and they are never all in memory.
        return map(self._kept, released)

    def _kept(self, released: Array) -> Array:
        """The earlier release at this place if there is one; otherwise this one, to be written to disk."""
        if not self._known:
            self._new.append(released)
            return released
        # The noise that was just drawn is thrown away unseen, so it costs nothing.
        before = self._known.popleft()
        # A shape is all that can be compared: the noise just drawn differs from the old one by design.
        if before.shape != released.shape:
            raise ProtocolError(
                "the transcript has other releases than this hub makes: it belongs to another study or version"
            )
        return before

    def scale(self, sensitivity: float, *, share: float = 1.0) -> float:
        """The noise scale of the other mechanism."""
        return self._through.scale(sensitivity, share=share)
