"""`Pool`: shares of secrets as holders reveal them, put together even where some are false, with the names of who gave those."""

import random
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Final, final

from eigenveil.protocols.masked.shamir import PRIME, Joiner

__all__ = ["Pool"]

# How many sets of holders are tried where several lie.
_TRIES: Final = 200


@final
class Pool:
    """Shares by site and holder. Changes in place: `liars` are the points of holders whose shares were false."""

    def __init__(self, threshold: int, *, liars: Iterable[int] = ()) -> None:
        self._threshold = threshold
        self._shares: dict[str, dict[int, bytes]] = {}
        self.liars = set(liars)

    def add(self, name: str, point: int, share: bytes) -> None:
        """What the holder at this point reveals of a site's secret; not an element of the field means that it has nothing."""
        held = self._shares.setdefault(name, {})
        if int.from_bytes(share, "big") < PRIME:
            held[point] = share

    def count(self, name: str) -> int:
        """How many shares there are of a site's secret."""
        return len(self._shares.get(name, {}))

    def join(self, name: str, fits: Callable[[bytes], bool]) -> bytes | None:
        """The secret that `fits`, None if there is none to be found among the shares."""
        held = self._shares[name]
        trusted = sorted(point for point in held if point not in self.liars)
        if len(trusted) >= self._threshold:
            secret = self._joined(held, trusted[: self._threshold])
            if secret is not None and fits(secret):
                return secret
        return self._searched(held, fits)

    def _joined(self, held: dict[int, bytes], points: Sequence[int]) -> bytes | None:
        try:
            return _joiner(tuple(points), self._threshold).join(held)
        except ValueError:
            # Shares that are false can make for a number that is no secret.
            return None

    def _searched(self, held: dict[int, bytes], fits: Callable[[bytes], bool]) -> bytes | None:
        """Leave out each holder in turn, then draw sets of holders; once the secret is there, each share can be tried on it."""
        points = sorted(held)
        if len(points) <= self._threshold:
            return None
        one_out = [[point for point in points if point != out][: self._threshold] for out in points[: self._threshold]]
        rng = random.SystemRandom()
        for chosen in [*one_out, *(sorted(rng.sample(points, self._threshold)) for _ in range(_TRIES))]:
            secret = self._joined(held, chosen)
            if secret is not None and fits(secret):
                rest = chosen[1:]
                self.liars |= {
                    point
                    for point in points
                    if point not in chosen and self._joined(held, sorted([*rest, point])) != secret
                }
                return secret
        return None


@lru_cache(maxsize=4096)
def _joiner(points: tuple[int, ...], threshold: int) -> Joiner:
    return Joiner(points, threshold)
