"""What the sites of a masked study agree on before it begins, and the statements that they sign in it."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from eigenveil.errors import require, require_param
from eigenveil.linalg import Array
from eigenveil.privacy import Lattice, packed_size, read
from eigenveil.protocols.keys import KEY, SIGNATURE, digest, is_public_key, signed_by
from eigenveil.protocols.masked.graph import MaskGraph
from eigenveil.tasks import Question, SumTask

__all__ = ["DECLINED", "KeyCard", "MaskedTerms", "bound_to", "question_digest", "require_survivors", "said_in"]

# What a site says in the place of an answer.
DECLINED: Final = b"declined"


@final
@dataclass(frozen=True, eq=False)
class MaskedTerms:
    """Public, the same at every site and at the hub, and pinned: every signature is on these terms and no others.

    `roster` has the public identity of each site. At least `survivors` of them must be in a sum, of whom `colluders` may tell
    the hub all they know. There are at most `most_rounds` rounds, and one exchange of keys is for `rounds` of them. `lattice`,
    `multiplier` and `several` say on which integers parts are sent, and with what noise. `checks` is how many signatures under
    a list a site looks at, zero for as many as there must be. A site begins at most `sessions` exchanges of keys.
    """

    study: str
    roster: Mapping[str, bytes]
    survivors: int
    colluders: int
    graph: MaskGraph
    rounds: int
    most_rounds: int
    lattice: Lattice
    multiplier: float
    several: int = 1
    checks: int = 0
    sessions: int = 4

    def __post_init__(self) -> None:
        sites, least = len(self.roster), self.survivors
        require(self.rounds >= 1, f"rounds must be at least 1, got {self.rounds}")
        require(all(len(key) == KEY for key in self.roster.values()), f"an identity on the roster has {KEY} bytes")
        require(len(set(self.roster.values())) == sites, "every site needs an identity of its own")
        require_survivors(sites, survivors=least, colluders=self.colluders)
        require(
            self.most_rounds >= 1 and self.sessions >= 1, "there must be at least one round and one exchange of keys"
        )
        graph, lattice = self.graph, self.lattice
        require(
            self.colluders < graph.threshold <= graph.holders + 1 <= sites,
            f"a graph for {sites} sites must have a threshold that {self.colluders} colluders do not reach, got {graph}",
        )
        double = graph.holders + 1 == sites and 2 * graph.threshold > sites + self.colluders and self.checks == 0
        require(
            double if graph.complete else self.checks > 0,
            "a complete graph must share every secret among all sites, and for a sparse one signatures must be looked at",
        )
        # Noise for more honest sites than the masks leave would be too little.
        honest = least - self.colluders - graph.loss
        require(
            lattice.sites == sites and (not lattice.private or lattice.honest <= honest),
            f"the lattice must be for {sites} sites of which no more than {honest} are counted on",
        )
        require(
            not lattice.private or self.failure <= lattice.failure * (1 + 1e-9),
            f"the lattice must allow for a failure of {self.failure:.3g}, got {lattice.failure:.3g}",
        )

    @property
    def failure(self) -> float:
        """The chance that few masks or few signatures let the hub learn more, in the whole study.

        Holders are drawn anew in every session, and a hub may begin one with each site by itself to see what it draws. And
        a claim that no more than (m + c) / 2 sites have signed what t are said to have passes k looks with probability
        ((m + c) / (2 t))^k, at each site, once in every round and session.
        """
        sites = len(self.roster)
        if self.graph.complete:
            return 0.0
        passes = (((sites + self.colluders) // 2) / self.survivors) ** self.checks
        return sites * (self.sessions * self.graph.failure + (self.most_rounds + self.sessions) * passes)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The sites, in the order in which they have their places."""
        return tuple(self.roster)

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each site."""
        return {name: at for at, name in enumerate(self.roster)}

    @cached_property
    def digest(self) -> bytes:
        """Of all that is agreed."""
        listed = [part for name, key in self.roster.items() for part in (name, key)]
        numbers = (
            self.survivors,
            self.colluders,
            self.rounds,
            self.most_rounds,
            self.several,
            self.checks,
            self.sessions,
        )
        return digest("terms", self.study, *listed, *numbers, repr((self.graph, self.lattice, self.multiplier)))

    def session(self, nonce: bytes, round_: int) -> bytes:
        """What one exchange of keys is called."""
        return digest("session", self.digest, nonce, round_)

    def bits(self, names: Iterable[str]) -> bytes:
        """A set of sites, a bit for each site on the roster."""
        flags = np.zeros(len(self.roster), dtype=bool)
        for name in names:
            flags[self.places[name]] = True
        return np.packbits(flags).tobytes()

    def named(self, bits: bytes) -> frozenset[str]:
        """The sites in a set; a `ValueError` for bytes that are no set."""
        require(len(bits) == self.bytes_of_bits, "a list of sites has a bit for each site on the roster")
        flags = np.unpackbits(np.frombuffer(bits, dtype=np.uint8))
        require(not flags[len(self.roster) :].any(), "a list of sites names more than there are")
        return frozenset(name for name, flag in zip(self.roster, flags[: len(self.roster)], strict=True) if flag)

    @property
    def bytes_of_bits(self) -> int:
        """How many bytes a set of sites takes."""
        return (len(self.roster) + 7) // 8

    def size(self, task: SumTask[Any, Any], question: Question) -> int:
        """How many words a part has."""
        return packed_size(task.shape(question), symmetric=task.symmetric)

    def read(self, words: NDArray[np.uint64], task: SumTask[Any, Any], question: Question, fraction: float) -> Array:
        """The sum that `words` are, when all masks are off."""
        return read(
            self.lattice,
            words,
            sensitivity=task.sensitivity(question),
            share=task.share(question) * fraction,
            multiplier=self.multiplier,
            shape=task.shape(question),
            symmetric=task.symmetric,
            several=self.several,
        )

    def signed(self, name: str, statement: bytes, signature: bytes) -> bool:
        """Whether this site signed this statement."""
        return (
            name in self.roster and len(signature) == SIGNATURE and signed_by(self.roster[name], statement, signature)
        )


def require_survivors(sites: int, *, survivors: int, colluders: int) -> None:
    """Refuse numbers for which two lists of survivors could both be signed by enough sites, or no honest one be left.

    Two lists with t signatures each share at least 2t - m signers. If those are more than c, one of them is honest, and an
    honest site signs one list. So 2t > m + c makes the list of a round the only one, whatever the hub says to whom.
    """
    require_param(1 <= survivors <= sites, f"{{survivors}} must be from 1 to the {sites} sites, got {survivors}")
    require_param(
        colluders >= 1, f"{{colluders}} must be at least 1: nobody is protected from their own site; got {colluders}"
    )
    require_param(
        survivors > colluders,
        f"{{survivors}} must be more than the {colluders} that may collude: somebody's noise must be unknown; got {survivors}",
    )
    require_param(
        2 * survivors > sites + colluders,
        f"{{survivors}} must be at least {(sites + colluders) // 2 + 1} of {sites} sites of which {colluders} may collude, or a "
        f"hub could have two lists of survivors signed; got {survivors}",
    )


@final
@dataclass(frozen=True, slots=True, eq=False)
class KeyCard:
    """What a site says of itself at the beginning: the key for bundles to it, a mask key and the digest of a seed for each round,
    and, where not everybody is, who the holders of its secrets are (their places)."""

    bundles: bytes
    keys: tuple[bytes, ...]
    seeds: tuple[bytes, ...]
    holders: frozenset[int]

    def encode(self, terms: MaskedTerms) -> bytes:
        """As bytes."""
        named = b"" if terms.graph.complete else b"".join(at.to_bytes(4, "big") for at in sorted(self.holders))
        return b"".join([self.bundles, *self.keys, *self.seeds, named])

    @classmethod
    def read(cls, terms: MaskedTerms, place: int, raw: bytes) -> "KeyCard":
        """The card in `raw` of the site at this place; a `ValueError` if it cannot be one."""
        sites, rounds = len(terms.roster), terms.rounds
        count = 0 if terms.graph.complete else terms.graph.holders
        require(len(raw) == KEY * (1 + 2 * rounds) + 4 * count, "a card has another length")
        pieces = [raw[start : start + KEY] for start in range(0, KEY * (1 + 2 * rounds), KEY)]
        require(all(map(is_public_key, pieces[: 1 + rounds])), "a card has a key that is none")
        if terms.graph.complete:
            holders = [at for at in range(sites) if at != place]
        else:
            tail = raw[KEY * (1 + 2 * rounds) :]
            holders = [int.from_bytes(tail[start : start + 4], "big") for start in range(0, len(tail), 4)]
            require(
                holders == sorted(set(holders)) and place not in holders and max(holders) < sites,
                "a card names holders that cannot be",
            )
        return cls(pieces[0], tuple(pieces[1 : 1 + rounds]), tuple(pieces[1 + rounds :]), frozenset(holders))


def said_in(context: bytes, round_: int, step: str, what: bytes) -> bytes:
    """The statement that a site signs in one step of a round."""
    return digest("said", context, round_, step, what)


def bound_to(session: bytes, roster: bytes) -> bytes:
    """The context of everything that is said, and of every mask, once the roster stands.

    A roster has the digest of everybody's fresh card: what was signed under another one says nothing here, even if the hub
    calls two sessions by the same name.
    """
    return digest("bound", session, roster)


def question_digest(question: Question) -> bytes:
    """Of all that is asked."""
    fields: list[Any] = [question.step, question.stage]
    for array in question.arrays:
        fields += [repr(array.shape), hashlib.sha256(array.astype("<f8").tobytes()).digest()]
    return digest("question", *fields)
