"""Evidence that enough sites have signed one statement, when there are too many signatures for every site to look at.

The hub commits itself to all the signatures it has by the root of a hash tree (Merkle). A site then says, from randomness of its
own, which of them it wants to see, and looks at those. If only a fraction f of what the hub claims were signatures, k looks would
find that out but with probability f^k, whatever the hub does: it must commit itself before it knows what will be asked for.
"""

import math
import os
from collections.abc import Sequence
from typing import final

from eigenveil.errors import require
from eigenveil.protocols.keys import KEY, SIGNATURE, digest
from eigenveil.protocols.masked.terms import MaskedTerms
from eigenveil.protocols.messages import Table

__all__ = ["Doubt", "Tree", "climb", "count_signed", "drawn", "looks", "seen_signed"]


def looks(sites: int, *, survivors: int, colluders: int, times: int, failure: float) -> int:
    """How many signatures a site must look at, so that with probability 1 - `failure` no site ever goes by a false claim.

    Two different statements cannot both have more than (sites + colluders) / 2 signatures, as honest sites sign one of them. A
    claim of `survivors` signatures of which no more than that are true passes k looks with probability ((sites + colluders) /
    (2 survivors))^k; every site looks `times` times.

    >>> looks(1000, survivors=900, colluders=10, times=30, failure=1e-9)
    54
    """
    fraction = ((sites + colluders) // 2) / survivors
    return math.ceil(math.log(sites * times / failure) / -math.log(fraction))


def drawn(seed: bytes, count: int, size: int) -> list[int]:
    """The places of `count` draws out of `size`, by a site's seed; each place once, in order.

    >>> drawn(bytes(32), 4, 1)
    [0]
    """
    # Out of 2^256, so that no place has an advantage that matters.
    return sorted({int.from_bytes(digest("look", seed, at), "big") % size for at in range(count)})


@final
class Tree:
    """A hash tree over signatures, each with the name of its site, in the order given."""

    def __init__(self, signatures: Table) -> None:
        self._levels = [[digest("leaf", name, signature) for name, signature in signatures]]
        while len(self._levels[-1]) > 1:
            below = self._levels[-1]
            pairs = [digest("node", *below[at : at + 2]) for at in range(0, len(below), 2)]
            self._levels.append(pairs)

    @property
    def root(self) -> bytes:
        """What a hub commits itself to."""
        return self._levels[-1][0]

    def path(self, at: int) -> bytes:
        """What leads from the signature at this place to the root.

        >>> tree = Tree(tuple((name, name.encode()) for name in "abc"))
        >>> climb("c", b"c", 2, 3, tree.path(2)) == tree.root
        True
        """
        found: list[bytes] = []
        for level in self._levels[:-1]:
            beside = at ^ 1
            if beside < len(level):
                found.append(level[beside])
            at //= 2
        return b"".join(found)


def climb(name: str, signature: bytes, at: int, size: int, path: bytes) -> bytes | None:
    """The root that a signature at this place among `size` leads to by its path; None for a path that leads nowhere."""
    node, rest = digest("leaf", name, signature), [path[start : start + KEY] for start in range(0, len(path), KEY)]
    while size > 1:
        if at ^ 1 < size:
            if not rest:
                return None
            other = rest.pop(0)
            node = digest("node", other, node) if at % 2 else digest("node", node, other)
        else:
            node = digest("node", node)
        at, size = at // 2, (size + 1) // 2
    return None if rest else node


@final
class Doubt:
    """How one site comes to believe that enough have signed one statement. Changes in place: it takes one claim, once.

    `seed` is what it looks at comes from: fresh, and a secret until it has a claim.
    """

    def __init__(self, terms: MaskedTerms, seed: bytes | None = None) -> None:
        self._terms, self._seed = terms, os.urandom(KEY) if seed is None else seed
        self._claim = b""

    def look(self, claim: bytes) -> bytes:
        """What this site wants to see of a claim, which is the list of signers and a root. It takes no second one."""
        self._require_first(claim)
        signers = self._terms.named(claim[:-KEY])
        least = self._terms.survivors
        require(len(signers) >= least, f"{len(signers)} sites are said to have signed, and {least} must")
        self._claim = claim
        return self._seed

    def _require_first(self, claim: bytes) -> None:
        require(self._claim in (b"", claim), "a second claim of who has signed")

    def require_signed(self, shown: Table, statement: bytes, *, among: frozenset[str]) -> None:
        """Refuse, with a `ValueError`, a statement that not enough of those `among` whom it must be have signed."""
        if self._terms.checks == 0:
            good, least = count_signed(self._terms, shown, statement, among=among), self._terms.survivors
            require(good >= least, f"{good} sites have signed, and {least} must")
            return
        require(self._claim != b"", "nobody has been said to have signed")
        named = self._terms.named(self._claim[:-KEY])
        require(named <= among, "others are said to have signed than those who could")
        signers = [name for name in self._terms.roster if name in named]
        sound = seen_signed(self._terms, shown, statement, signers=signers, root=self._claim[-KEY:], seed=self._seed)
        require(sound, "signatures that this site asked to see are not there")


def seen_signed(
    terms: MaskedTerms, shown: Table, statement: bytes, *, signers: Sequence[str], root: bytes, seed: bytes
) -> bool:
    """Whether what a site asked to see is all there, is what the hub had committed itself to, and is signed."""
    places = drawn(seed, terms.checks, len(signers))
    if [name for name, _ in shown] != [signers[at] for at in places]:
        return False
    return all(
        climb(name, piece[:SIGNATURE], at, len(signers), piece[SIGNATURE:]) == root
        and terms.signed(name, statement, piece[:SIGNATURE])
        for at, (name, piece) in zip(places, shown, strict=True)
    )


def count_signed(terms: MaskedTerms, signatures: Table, statement: bytes, *, among: frozenset[str]) -> int:
    """How many of those `among` whom it must be have signed a statement. No more are looked at than are needed."""
    good: set[str] = set()
    for name, signature in signatures:
        if len(good) >= terms.survivors:
            break
        if name in among and name not in good and terms.signed(name, statement, signature):
            good.add(name)
    return len(good)
