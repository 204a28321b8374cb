"""What the sites of a masked study agree on before it begins, and the statements that they sign in it.

Sites and hub build the same `MaskedTerms` from the study file; nothing in it is a secret.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from eigenveil.errors import require, require_param
from eigenveil.linalg import Array
from eigenveil.privacy.lattice import Lattice, read
from eigenveil.privacy.released import packed_size
from eigenveil.protocols.keys import KEY, POINT, SIGNATURE, digest, digest_of, is_public_key, signed_by
from eigenveil.protocols.masked.graph import MaskGraph
from eigenveil.tasks.base import Question, SumTask

__all__ = ["DECLINED", "MaskedTerms", "PublicKeys", "bound_to", "question_digest", "require_survivors", "statement_in"]

# What a site answers in place of a part or a step.
DECLINED: Final = b"declined"


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class MaskedTerms:
    """Public, the same at every site and at the hub, and fixed: every signature covers these terms."""

    study: str
    roster: Mapping[str, bytes]  # The public identity of each site.
    survivors: int  # At least so many sites must be in a sum.
    colluders: int  # So many of them may tell the hub all they know.
    graph: MaskGraph
    rounds: int  # That one exchange of keys serves.
    most_rounds: int  # In the whole study.
    lattice: Lattice  # Parts are sent as integers, which this, `multiplier` and `several` define together with their noise.
    multiplier: float
    several: int = 1
    checks: int = 0  # Signatures under a list that a site checks. Zero: as many as are needed.
    sessions: int = 4  # The most exchanges of keys that a site takes part in.

    def __post_init__(self) -> None:
        sites, min_survivors = len(self.roster), self.survivors
        require(self.rounds >= 1, f"rounds must be at least 1, got {self.rounds}")
        require(all(len(key) == KEY for key in self.roster.values()), f"an identity on the roster must have {KEY} bytes")
        # One identity under two names could sign twice, and count as two of the signatures that are needed.
        require(len(set(self.roster.values())) == sites, "two sites have the same identity; each site needs its own")
        require_survivors(sites, survivors=min_survivors, colluders=self.colluders)
        require(self.most_rounds >= 1 and self.sessions >= 1, "at least one round and one exchange of keys are needed")
        graph, lattice = self.graph, self.lattice
        require(
            self.colluders < graph.threshold <= graph.holders + 1 <= sites,
            f"a graph for {sites} sites must have a threshold that {self.colluders} colluders do not reach, got {graph}",
        )
        # In a complete graph, a threshold above (sites + colluders) / 2 prevents two lists of survivors a second time.
        double = graph.holders + 1 == sites and 2 * graph.threshold > sites + self.colluders and self.checks == 0
        require(
            double if graph.complete else self.checks > 0,
            "a complete graph must share every secret among all sites, and a sparse one needs checks of signatures",
        )
        # Each site adds its share of the noise. Counting on more honest sites than the masks leave would give too little noise.
        honest = min_survivors - self.colluders - graph.loss
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
        """The chance that sparse masks or checks of a few signatures let the hub learn more, in the whole study.

        Holders are drawn anew in every session, and a hub may begin one with each site alone to see what it draws. And a
        false claim, of t signatures with at most (m + c) / 2 real ones, passes k checks with probability ((m + c) / (2 t))^k.
        It has that chance at each site, once in every round and session.
        """
        sites = len(self.roster)
        if self.graph.complete:
            return 0.0
        passes = (((sites + self.colluders) // 2) / self.survivors) ** self.checks
        return sites * (self.sessions * self.graph.failure + (self.most_rounds + self.sessions) * passes)

    @property
    def most_messages(self) -> int:
        """What an honest hub sends to a site: three messages and a part in each round, and five in each exchange of keys."""
        return 4 * self.most_rounds + 6 * self.sessions

    @cached_property
    def places(self) -> dict[str, int]:
        return {name: at for at, name in enumerate(self.roster)}

    @cached_property
    def digest(self) -> bytes:
        """Digest of all that is agreed."""
        graph, lattice, budget = self.graph, self.lattice, self.lattice.budget
        # The kind has the version of this exchange: version 1 had X25519 keys, and shares that were not checked against them.
        return digest_of(
            "terms 3",
            study=self.study,
            # A list, because the order of sites is agreed, too.
            roster=tuple(self.roster.items()),
            survivors=self.survivors,
            colluders=self.colluders,
            rounds=self.rounds,
            most_rounds=self.most_rounds,
            several=self.several,
            checks=self.checks,
            sessions=self.sessions,
            multiplier=self.multiplier,
            holders=graph.holders,
            threshold=graph.threshold,
            lost=graph.loss,
            graph_failure=graph.failure,
            abort=graph.abort,
            complete=graph.complete,
            epsilon=None if budget is None else budget.epsilon,
            delta=None if budget is None else budget.delta,
            sites=lattice.sites,
            noisy_survivors=lattice.survivors,
            noisy_colluders=lattice.colluders,
            loss=lattice.loss,
            failure=lattice.failure,
            bits=lattice.bits,
        )

    def session(self, nonce: bytes, round_: int) -> bytes:
        """The identifier of one exchange of keys."""
        return digest("session", self.digest, nonce, round_)

    def bits(self, names: Iterable[str]) -> bytes:
        """A set of sites as bytes, one bit for each site on the roster."""
        flags = np.zeros(len(self.roster), dtype=bool)
        for name in names:
            flags[self.places[name]] = True
        return np.packbits(flags).tobytes()

    def named(self, bits: bytes) -> frozenset[str]:
        """The sites in a set; a `ValueError` for bytes that do not encode one."""
        require(len(bits) == self.bytes_of_bits, "a list of sites must have one bit for each site on the roster")
        # Bits beyond the roster must be zero, or one set would have several encodings and several digests.
        flags = np.unpackbits(np.frombuffer(bits, dtype=np.uint8))
        require(not flags[len(self.roster) :].any(), "a list of sites names more sites than the roster has")
        return frozenset(name for name, flag in zip(self.roster, flags[: len(self.roster)], strict=True) if flag)

    @property
    def bytes_of_bits(self) -> int:
        """The number of bytes of an encoded set of sites."""
        return (len(self.roster) + 7) // 8

    def size(self, task: SumTask[Any, Any], question: Question) -> int:
        """The number of words of a part."""
        return packed_size(task.shape(question), symmetric=task.symmetric)

    def read(self, limbs: NDArray[np.uint64], task: SumTask[Any, Any], question: Question, fraction: float) -> Array:
        """The sum that `limbs` encode once all masks are removed."""
        return read(
            self.lattice,
            limbs,
            sensitivity=task.sensitivity(question),
            share=task.share(question) * fraction,
            multiplier=self.multiplier,
            shape=task.shape(question),
            symmetric=task.symmetric,
            several=self.several,
        )

    def signed(self, name: str, statement: bytes, signature: bytes) -> bool:
        return name in self.roster and len(signature) == SIGNATURE and signed_by(self.roster[name], statement, signature)


def require_survivors(sites: int, *, survivors: int, colluders: int) -> None:
    """Refuse numbers under which two lists of survivors could both get enough signatures, or no honest survivor be left.

    Two lists with t signatures each share at least 2t - m signers. If those are more than c, one of them is honest, and an
    honest site signs one list. So 2t > m + c makes the list of a round unique, whatever the hub tells each site.
    """
    require_param(1 <= survivors <= sites, f"{{survivors}} must be from 1 to the {sites} sites, got {survivors}")
    require_param(
        colluders >= 1, f"{{colluders}} must be at least 1, because people are not protected from their own site; got {colluders}"
    )
    require_param(
        survivors > colluders,
        f"{{survivors}} must be more than the {colluders} that may collude, to keep some noise unknown; got {survivors}",
    )
    require_param(
        2 * survivors > sites + colluders,
        f"{{survivors}} must be at least {(sites + colluders) // 2 + 1} of {sites} sites of which {colluders} may collude. "
        f"With fewer, a hub could get two lists of survivors signed; got {survivors}",
    )


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PublicKeys:
    """What a site publishes about itself when keys are exchanged: the public half of each of its secrets."""

    bundles: bytes  # Bundles sent to it are sealed with this one.
    keys: tuple[bytes, ...]  # The mask key of every round.
    seeds: tuple[bytes, ...]  # The seed of its own mask in every round.
    blind: bytes  # Its secret hides the others where a dealer shows that its shares are sound (`masked.dealing`).
    holders: frozenset[int]  # The places of the holders of its secrets. A complete graph does not send them.

    @staticmethod
    def size(terms: MaskedTerms) -> int:
        """The bytes of a site's keys: for bundles and for blinding, two for each round, and the holders of a sparse graph."""
        return POINT * (2 + 2 * terms.rounds) + (0 if terms.graph.complete else 4 * terms.graph.holders)

    def encode(self, terms: MaskedTerms) -> bytes:
        named = b"" if terms.graph.complete else b"".join(at.to_bytes(4, "big") for at in sorted(self.holders))
        return b"".join([self.bundles, *self.keys, *self.seeds, self.blind, named])

    @classmethod
    def read(cls, terms: MaskedTerms, index: int, raw: bytes) -> "PublicKeys":
        """The keys in `raw` of the site at this place; a `ValueError` if they are not valid."""
        sites, rounds, end = len(terms.roster), terms.rounds, POINT * (2 + 2 * terms.rounds)
        require(len(raw) == cls.size(terms), "signed keys have the wrong length")
        pieces = [raw[start : start + POINT] for start in range(0, end, POINT)]
        # A point off the curve could lie in a group so small that others can find the secrets that pairs agree on.
        require(all(map(is_public_key, pieces)), "signed keys have an invalid key")
        if terms.graph.complete:
            holders = [at for at in range(sites) if at != index]
        else:
            # Only the increasing order is accepted: one set of holders has one encoding, and no holder counts twice.
            holders = [int.from_bytes(raw[start : start + 4], "big") for start in range(end, len(raw), 4)]
            require(
                holders == sorted(set(holders)) and index not in holders and max(holders) < sites,
                "signed keys name impossible holders",
            )
        keys, seeds = tuple(pieces[1 : 1 + rounds]), tuple(pieces[1 + rounds : -1])
        return cls(bundles=pieces[0], keys=keys, seeds=seeds, blind=pieces[-1], holders=frozenset(holders))


def statement_in(context: bytes, round_: int, step: str, what: bytes) -> bytes:
    """The statement that a site signs in one step of a round."""
    return digest("said", context, round_, step, what)


def bound_to(session: bytes, roster: bytes) -> bytes:
    """The context of every statement and every mask, once the roster is fixed.

    A roster has the digest of every site's fresh keys, so a statement signed under another roster is invalid here, even if the
    hub gives two sessions the same name.
    """
    return digest("bound", session, roster)


def question_digest(question: Question) -> bytes:
    """Digest of a question with all its numbers."""
    return digest_of("question", step=question.step, stage=question.stage, arrays=question.arrays)
