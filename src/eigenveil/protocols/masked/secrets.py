"""`Pool`: shares of secrets as holders reveal them, put together."""

from functools import lru_cache
from typing import final

from eigenveil.protocols.masked.shamir import Joiner

__all__ = ["Pool"]


@final
class Pool:
    """Shares by dealer and holder. Changes in place."""

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold
        self._shares: dict[str, dict[int, bytes]] = {}

    def add(self, name: str, point: int, share: bytes) -> None:
        """What the holder at this point reveals of a site's secret, and is known to be what the site sent it."""
        self._shares.setdefault(name, {})[point] = share

    def count(self, name: str) -> int:
        """How many shares there are of a site's secret."""
        return len(self._shares.get(name, {}))

    def join(self, name: str) -> bytes | None:
        """A site's secret; None if its shares, which are as the site sent them, make none."""
        held = self._shares[name]
        try:
            return _joiner(tuple(sorted(held)[: self._threshold]), self._threshold).join(held)
        except ValueError:
            return None


@lru_cache(maxsize=4096)
def _joiner(points: tuple[int, ...], threshold: int) -> Joiner:
    return Joiner(points, threshold)
