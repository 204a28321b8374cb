"""Evidence that enough sites have signed one statement, when every site checking every signature would take too long.

The hub first commits to all signatures by the root of a hash tree (Merkle). A site then draws at random which of them it wants
to see, and checks those. If only a fraction f of the claimed signatures are real, k checks all pass with probability f^k. The
hub cannot do better: it must commit before it knows which signatures will be drawn.
"""

import math
import os
from collections.abc import Sequence
from typing import final

from eigenveil.errors import require
from eigenveil.protocols.keys import KEY, SIGNATURE, digest
from eigenveil.protocols.masked.terms import MaskedTerms
from eigenveil.protocols.messages import Table

__all__ = ["HashTree", "SignatureCheck", "checks_needed", "climb", "count_signed", "drawn", "seen_signed"]


def checks_needed(sites: int, *, survivors: int, colluders: int, times: int, failure: float) -> int:
    """How many signatures a site must check, so that with probability 1 - `failure` no site ever accepts a false claim.

    Two different statements cannot both have more than (sites + colluders) / 2 signatures, as an honest site signs only one of
    them. A claim of `survivors` signatures with no more real ones than that passes k checks with probability
    ((sites + colluders) / (2 survivors))^k. Every site checks `times` times.

    >>> checks_needed(1000, survivors=900, colluders=10, times=30, failure=1e-9)
    54
    """
    fraction = ((sites + colluders) // 2) / survivors
    return math.ceil(math.log(sites * times / failure) / -math.log(fraction))


def drawn(seed: bytes, count: int, size: int) -> list[int]:
    """The places of `count` draws out of `size`, from a site's seed; each place once, in order.

    >>> drawn(bytes(32), 4, 1)
    [0]
    """
    # The remainder of a number of 256 bits: the bias towards low places is below size / 2^256.
    return sorted({int.from_bytes(digest("look", seed, at), "big") % size for at in range(count)})


@final
class HashTree:
    """A hash tree over signatures, each with the name of its site, in the given order."""

    def __init__(self, signatures: Table) -> None:
        self._levels = [[digest("leaf", name, signature) for name, signature in signatures]]
        while len(self._levels[-1]) > 1:
            below = self._levels[-1]
            # Leaves and nodes have different kinds, so a node cannot be passed off as a leaf.
            pairs = [digest("node", *below[at : at + 2]) for at in range(0, len(below), 2)]
            self._levels.append(pairs)

    @property
    def root(self) -> bytes:
        """The commitment to all signatures."""
        return self._levels[-1][0]

    def path(self, at: int) -> bytes:
        """The hashes that lead from the signature at this place to the root.

        >>> tree = HashTree(tuple((name, name.encode()) for name in "abc"))
        >>> climb("c", b"c", 2, 3, tree.path(2)) == tree.root
        True
        """
        found: list[bytes] = []
        for level in self._levels[:-1]:
            # The last node of an odd level has no neighbour, and its path no entry there.
            beside = at ^ 1
            if beside < len(level):
                found.append(level[beside])
            at //= 2
        return b"".join(found)


def climb(name: str, signature: bytes, at: int, size: int, path: bytes) -> bytes | None:
    """The root that a signature at this place among `size` leads to by its path; None if the path has another length."""
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
    # A path must be used up: each place has exactly one path to the root.
    return None if rest else node


@final
class SignatureCheck:
    """How one site checks that enough sites have signed one statement. Changes in place: it accepts one claim, once.

    `seed` decides which signatures it checks. It must be fresh, and secret until the hub has made its claim.
    """

    def __init__(self, terms: MaskedTerms, seed: bytes | None = None) -> None:
        self._terms, self._seed = terms, os.urandom(KEY) if seed is None else seed
        self._claim = b""

    def challenge(self, claim: bytes) -> bytes:
        """The seed of this site's draws, in answer to a claim (the list of signers and a root). A second claim is refused."""
        self._require_first(claim)
        # The claim is a bit set of signers followed by the root.
        signers = self._terms.named(claim[:-KEY])
        least = self._terms.survivors
        require(len(signers) >= least, f"{len(signers)} sites are claimed to have signed, and {least} must")
        self._claim = claim
        return self._seed

    def _require_first(self, claim: bytes) -> None:
        # A hub that saw the seed could claim again, with real signatures in the places that the seed draws.
        require(self._claim in (b"", claim), "a second claim of who has signed")

    def require_signed(self, shown: Table, statement: bytes, *, among: frozenset[str]) -> None:
        """Refuse, with a `ValueError`, a statement that too few of the sites `among` have signed."""
        if self._terms.checks == 0:
            good, least = count_signed(self._terms, shown, statement, among=among), self._terms.survivors
            require(good >= least, f"{good} sites have signed, and {least} must")
            return
        require(self._claim != b"", "no claim was made of who has signed")
        named = self._terms.named(self._claim[:-KEY])
        require(named <= among, "sites are claimed to have signed that were not asked to")
        signers = [name for name in self._terms.roster if name in named]
        sound = seen_signed(self._terms, shown, statement, signers=signers, root=self._claim[-KEY:], seed=self._seed)
        require(sound, "signatures that this site asked to see are missing or false")


def seen_signed(
    terms: MaskedTerms, shown: Table, statement: bytes, *, signers: Sequence[str], root: bytes, seed: bytes
) -> bool:
    """Whether all signatures that a site asked to see are there, under the root the hub committed to, and valid."""
    places = drawn(seed, terms.checks, len(signers))
    # Exactly the places drawn, in order: the hub must not choose which signatures to show.
    if [name for name, _ in shown] != [signers[at] for at in places]:
        return False
    return all(
        climb(name, piece[:SIGNATURE], at, len(signers), piece[SIGNATURE:]) == root
        and terms.signed(name, statement, piece[:SIGNATURE])
        for at, (name, piece) in zip(places, shown, strict=True)
    )


def count_signed(terms: MaskedTerms, signatures: Table, statement: bytes, *, among: frozenset[str]) -> int:
    """How many of the sites `among` have signed a statement. It stops counting at the number needed."""
    good: set[str] = set()
    for name, signature in signatures:
        # Each check of a signature takes time, and more than enough of them prove nothing more.
        if len(good) >= terms.survivors:
            break
        if name in among and name not in good and terms.signed(name, statement, signature):
            good.add(name)
    return len(good)
