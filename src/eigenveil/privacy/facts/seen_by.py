"""`SeenBy`: who carries a release and sees what of it: against whom the guarantee holds, and what that rests on."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, final

from eigenveil.privacy.accounting import Budget
from eigenveil.privacy.facts.protected import Person, User
from eigenveil.privacy.guarantee import plain

__all__ = [
    "HubAndSites",
    "MaskedSites",
    "NoisyRows",
    "OneDevice",
    "OneHolder",
    "PeersAlone",
    "SeenBy",
]

_SITES: Final = "it is public which sites there are, and which of them answered in each round"
_EXACT: Final = "exact Gaussian composition (Balle and Wang 2018)"
_SHARED: Final = "a shared ledger adds up what they cost"
_IN_ROUNDS: Final = f"{_EXACT}. epsilon is the budget fixed before the fit, reserved for the largest number of rounds"


class SeenBy(ABC):
    """Who carries the release, and who sees what of it: against whom the guarantee holds, and on what that rests."""

    __slots__ = ()

    @abstractmethod
    def against(self, protects: Person | User) -> str:
        """Who the guarantee holds against, and who sees more."""

    @abstractmethod
    def calibration(self) -> str:
        """What the budget was fixed for, and how noise is made up."""

    @property
    def released(self) -> tuple[str, ...]:
        """What is covered beside the result."""
        return ()

    def assumptions(self) -> Iterator[str]:
        """What is assumed of parties, channels and keys."""
        return iter(())

    def alone(self, protects: Person | User) -> str:
        """That other releases about the same people cost more."""
        return f"the guarantee is for this fit alone. Another fit on the same {protects.plural} costs more"

    def caveats(self) -> Iterator[str]:
        """What the guarantee does not cover."""
        return iter(())


@final
@dataclass(frozen=True, slots=True)
class OneHolder(SeenBy):
    """Whoever holds all rows runs the program; everyone else sees what is released, by a fit, in `rounds`, or by less."""

    releases: Literal["a fit", "a fit in rounds", "less"] = "a fit"

    def against(self, protects: Person | User) -> str:
        """Who the guarantee holds against, and who sees more."""
        if isinstance(protects, User):
            others = ", including all other users together"
            return f"{_anyone(protects, others)}. Whoever holds the histories and runs this program sees them"
        return f"{_anyone(protects)}. The curator who runs this program sees the rows themselves"

    def calibration(self) -> str:
        """What the budget was fixed for, and how noise is made up."""
        if self.releases == "a fit in rounds":
            return _IN_ROUNDS
        return f"{_EXACT}. epsilon is the budget fixed {'before the fit' if self.releases == 'a fit' else 'beforehand'}"

    @property
    def released(self) -> tuple[str, ...]:
        """What is covered beside the result."""
        return ("the transcript",) if self.releases == "a fit in rounds" else ()

    def alone(self, protects: Person | User) -> str:
        """That other releases about the same people cost more."""
        if self.releases == "a fit in rounds":
            return SeenBy.alone(self, protects)
        if self.releases == "less":
            return (
                f"the guarantee is for these releases alone. A fit on the same {protects.plural} costs more; {_SHARED}"
            )
        return f"{SeenBy.alone(self, protects)}; {_SHARED}"


@final
@dataclass(frozen=True, slots=True)
class HubAndSites(SeenBy):
    """Sites around a hub, or below the inner nodes of a `tree`. Budgets are those of the noise in either place, None for none.

    With `drawn`, some of the sites are drawn for each round.
    """

    at_sites: Budget | None
    at_hub: Budget | None
    tree: bool = False
    drawn: bool = False

    @property
    def released(self) -> tuple[str, ...]:
        """What is covered beside the result."""
        return ("the transcript",) if self.at_sites is None else ("the transcript", "every number that leaves a site")

    def against(self, protects: Person | User) -> str:
        """Who the guarantee holds against, and who sees more."""
        middle, see = ("the hub and the inner nodes of the tree", "see") if self.tree else ("the hub", "sees")
        if self.at_sites is None:
            raw = f"T{middle[1:]} {see} the raw parts of each site and must be trusted"
            return f"{_anyone(protects)}. {raw}, as must each site with its own rows"
        if self.at_hub is None:
            return f"{_anyone(protects, ', including the hub and the other sites')}. {_only_own('site', protects)}"
        sees = "the released numbers but not what sites send to the hub"
        outside = _anyone(protects, ", including the other sites", sees=sees)
        first = self.at_sites
        return (
            f"{outside}. Against {middle}, which {see} what each site sends with the site's own noise alone, the guarantee is "
            f"({plain(first.epsilon)}, {plain(first.delta)})"
        )

    def assumptions(self) -> Iterator[str]:
        """What is assumed of parties, channels and keys."""
        yield _SITES
        readers = "the hub and the inner nodes of the tree read" if self.tree else "the hub reads"
        if self.at_sites is None:
            yield f"nobody but {readers} what sites send: the channels are secure"
        elif self.at_hub is not None:
            yield f"nobody but {readers} what sites send. Against anyone else who does, only the guarantee against the hub holds"
        if self.drawn:
            yield "which sites are drawn for a round is public, and the guarantee does not count on it"

    def calibration(self) -> str:
        """What the budget was fixed for, and how noise is made up."""
        return _IN_ROUNDS


@final
@dataclass(frozen=True, slots=True)
class MaskedSites(SeenBy):
    """Sites that mask what they send: the hub sees sums over at least `survivors` of them, of whom `colluders` may tell it all.

    The noise is that of `honest` sites. Of delta, `noise_delta` is for the noise and `failure` for masks between only some of
    the sites. In one process, where parties are not `apart`, nothing is hidden from whoever runs it.
    """

    survivors: int
    colluders: int
    honest: int
    noise_delta: float
    failure: float
    apart: bool

    @property
    def released(self) -> tuple[str, ...]:
        """What is covered beside the result."""
        return ("the transcript", "the sum over the survivors of each round")

    def against(self, protects: Person | User) -> str:
        """Who the guarantee holds against, and who sees more."""
        some = "one other site that tells" if self.colluders == 1 else f"up to {self.colluders} other sites that tell"
        over = "one site that does" if self.honest == 1 else f"{self.honest} sites that do"
        return (
            f"{_anyone(protects)}; the hub, even if it breaks the protocol, together with {some} it everything; and anyone who "
            f"reads or changes messages on their way. The hub sees nothing but noisy sums, each over at least {over} not "
            f"collude with it. {_only_own('site', protects)}"
        )

    def assumptions(self) -> Iterator[str]:
        """What is assumed of parties, channels and keys."""
        yield _SITES
        one = "one of the sites tells the hub what it knows"
        few = one if self.colluders == 1 else f"{self.colluders} of the sites tell the hub what they know"
        yield (f"at most {few}. That at least {self.survivors} sites are in every sum, the sites check themselves")
        yield "every site knows the public identity of every other site, from a source other than the hub"
        yield _unbroken("X25519, Ed25519, SHA-256, HKDF, AES-256 and ChaCha20-Poly1305")

    def calibration(self) -> str:
        """What the budget was fixed for, and how noise is made up."""
        text = (
            f"{_IN_ROUNDS}. Sites add shares of whole-number noise, which together are Gaussian noise, rounded "
            "(docs/integer-noise.md)"
        )
        if self.failure == 0:
            return text
        return (
            f"{text}. Of delta, {self.noise_delta:.6g} is for the noise. {self.failure:.2g} is for masks between only some of "
            "the sites, and for signatures of which only some are checked (docs/mask-graph.md)"
        )

    def caveats(self) -> Iterator[str]:
        """What the guarantee does not cover."""
        if not self.apart:
            yield (
                "all parties ran in one process here, which holds every key. Sites that are apart from each other need a network"
            )


@final
@dataclass(frozen=True, slots=True)
class PeersAlone(SeenBy):
    """Peers without a hub. Up to `colluders` of them may tell what they know; None where each adds all of the noise itself.

    Of `names`, those `counted` are in the result, from the round `since` on. The sum has `excess` times a curator's noise. Noise
    that cancels between pairs is `ratio` times a peer's own, and mu is the largest over all sets of colluders where `exact`, or
    a bound on it. The budget has room to begin `restarts` rounds again.
    """

    names: tuple[str, ...]
    counted: tuple[str, ...]
    colluders: int | None
    excess: float
    apart: bool
    since: int = 0
    restarts: int = 0
    ratio: float = 0.0
    exact: bool = True

    @property
    def released(self) -> tuple[str, ...]:
        """What is covered beside the result."""
        return ("the transcript", "every number that leaves a peer")

    def against(self, protects: Person | User) -> str:
        """Who the guarantee holds against, and who sees more."""
        sees, own = "the released numbers and all messages between peers", _only_own("peer", protects)
        if self.colluders is None:
            return f"{_anyone(protects, ', including all other peers together', sees=sees)}. {own}"
        some = "one peer that tells" if self.colluders == 1 else f"up to {self.colluders} peers that tell"
        side = f", together with {some} them everything and may lie to the other peers"
        fewer = "With more colluding peers there is less noise than the guarantee needs"
        return f"{_anyone(protects, side, sees=sees)}. {fewer}. {own}"

    def assumptions(self) -> Iterator[str]:
        """What is assumed of parties, channels and keys."""
        yield "it is public which peers there are, who talks to whom, and which peers were counted in each round"
        yield self._who_counted()
        if self.colluders is not None:
            one = "one peer tells others what it knows, whatever else it says"
            several = f"{self.colluders} peers tell others what they know, whatever else they say"
            yield f"no more than {one if self.colluders == 1 else several}"
            yield (
                "every peer knows the public identity of every other peer that it shares noise with, from a source other than "
                "these messages"
            )
            yield _unbroken("X25519, Ed25519, SHA-256, HKDF and AES-256")

    def calibration(self) -> str:
        """What the budget was fixed for, and how noise is made up."""
        text = _IN_ROUNDS
        if self.restarts:
            text += f" and for {'one round' if self.restarts == 1 else f'{self.restarts} rounds'} begun again"
        if self.colluders is None:
            return f"{text}. Every peer adds all the noise: the sum has {self.excess:.4g} times a curator's noise"
        kind = "the largest" if self.exact else "a bound on the largest"
        return (
            f"{text}. Every peer adds noise of its own, and noise {self.ratio:g} times as large that cancels between pairs. mu "
            f"is {kind} over every set of {self.colluders} colluding and one other peer (docs/pairwise-noise.md); the sum has "
            f"{self.excess:.4g} times a curator's noise"
        )

    def caveats(self) -> Iterator[str]:
        """What the guarantee does not cover."""
        if not self.apart:
            yield "all peers ran in one process here. Peers that are apart from each other need a network"

    def _who_counted(self) -> str:
        if len(self.counted) == len(self.names):
            return f"counted were all {len(self.names)} peers, in every round"
        gone = [name for name in self.names if name not in self.counted]
        shown = ", ".join(gone[:10]) + (f" and {len(gone) - 10} more" if len(gone) > 10 else "")
        return (
            f"counted from round {self.since + 1} on were {len(self.counted)} of {len(self.names)} peers, without {shown}. What "
            "they had sent before is covered by the same guarantee"
        )


@final
@dataclass(frozen=True, slots=True)
class OneDevice(SeenBy):
    """A device follows a stream and sees its rows. Where it publishes more than once, `anew` says when."""

    anew: Literal["", "at every synchronisation", "after every block"] = ""

    @property
    def released(self) -> tuple[str, ...]:
        """What is covered beside the result."""
        return ("the rank", f"all of them anew {self.anew}") if self.anew else ("the rank",)

    def against(self, protects: Person | User) -> str:
        """Who the guarantee holds against, and who sees more."""
        everything = _anyone(protects, sees="everything that was released, at every time")
        return f"{everything}. The device that follows the stream sees the rows, and its unreleased state is raw data"

    def calibration(self) -> str:
        """What the budget was fixed for, and how noise is made up."""
        return (
            f"{_EXACT}. Of disjoint slots of the stream, only those that one person can be in add up. epsilon is the budget "
            "fixed before the stream began"
        )

    def alone(self, protects: Person | User) -> str:
        """That other releases about the same people cost more."""
        more = f"The same {protects.plural} in another stream or fit cost more; {_SHARED}"
        return f"the guarantee is for this stream alone. {more}"


@final
@dataclass(frozen=True, slots=True)
class NoisyRows(SeenBy):
    """Every row is published by the peer that holds it, with noise of its own."""

    def against(self, protects: Person | User) -> str:
        """Who the guarantee holds against, and who sees more."""
        rows = _anyone(protects, ", including the other peers", sees="every noisy row")
        return f"{rows}. {_only_own('peer', protects)}"

    def calibration(self) -> str:
        """What the budget was fixed for, and how noise is made up."""
        return "exact Gaussian mechanism (Balle and Wang 2018)"

    def alone(self, protects: Person | User) -> str:
        """That other releases about the same people cost more."""
        return f"the guarantee is for this release alone. Another release about the same {protects.plural} costs more"


def _anyone(protects: Person | User, including: str = "", *, sees: str = "the released numbers") -> str:
    return f"anyone who sees {sees}{including}, even if they know everything except {protects.secret}"


def _only_own(place: str, protects: Person | User) -> str:
    who, what = ("user", "history") if isinstance(protects, User) else ("person", "rows")
    return f"What a {place} holds of a {who}'s {what} is seen there and nowhere else"


def _unbroken(primitives: str) -> str:
    return f"{primitives} are secure: the guarantee holds against adversaries who cannot break them"
