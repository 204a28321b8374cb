"""`ReplayMechanism`: a hub's mechanism whose releases can be written down, and had again without a second noise."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import final

import numpy as np

from eigenveil.errors import ProtocolError
from eigenveil.linalg import Array
from eigenveil.privacy import Bounded, Mechanism, Slot
from eigenveil.protocols import Give, Message
from eigenveil.protocols.wire import decode, encode

__all__ = ["ReplayMechanism"]


@final
class ReplayMechanism(Mechanism):
    """Releases through another mechanism, and keeps what was released until it is taken. Changes in place.

    What is put back (`recall`) is given out in the place of new releases, in order. It is charged all the same: the ledger of a
    hub that is made again must say what its predecessor spent.
    """

    def __init__(self, through: Mechanism) -> None:
        self._through = through
        self._new: list[Array] = []
        self._known: deque[Array] = deque()

    def recall(self, released: bytes | None) -> None:
        """What was released the next time."""
        if released is not None:
            body = decode(released).body
            assert isinstance(body, Give)
            # Copies: where in memory numbers lie decides about the last digit of what is computed from them.
            self._known.extend(np.array(array) for array in body.arrays)

    def taken(self) -> bytes | None:
        """What was released since this was last asked, to be written down; None for nothing."""
        arrays, self._new = tuple(self._new), []
        return encode(Message("hub", "hub", Give(0, arrays))) if arrays else None

    def require_all_given(self) -> None:
        """After a replay: everything that was put back has been given out."""
        if self._known:
            raise ProtocolError(
                "the transcript holds releases that this hub does not make: it is of another study or version"
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
        """The same, slice by slice; charged before the first is asked for."""
        released = self._through.release_columns(
            slices, dim=dim, sensitivity=sensitivity, label=label, share=share, slot=slot
        )
        return map(self._kept, released)

    def _kept(self, released: Array) -> Array:
        """What was released at this place before, or else this, to be written down."""
        if not self._known:
            self._new.append(released)
            return released
        # The noise that was just drawn is thrown away, unseen.
        before = self._known.popleft()
        if before.shape != released.shape:
            raise ProtocolError(
                "the transcript holds other releases than this hub makes: it is of another study or version"
            )
        return before

    def scale(self, sensitivity: float, *, share: float = 1.0) -> float:
        """As that of the other mechanism."""
        return self._through.scale(sensitivity, share=share)
