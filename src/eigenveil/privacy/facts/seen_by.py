"""`SeenBy`: who carries a release and sees what of it. Against whom the guarantee holds follows, and what that rests on."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, final

from eigenveil.core.accounting import Budget
from eigenveil.privacy.facts.protected import Person, User
from eigenveil.privacy.guarantee import SEEN_BY, plain

__all__ = ["HubAndSites", "MaskedSites", "NoisyRows", "OneDevice", "OneHolder", "PeersAlone", "SeenBy", "SlotBySlot"]

_SITES: Final = "which sites take part is public, and which of them answered in each round"
_WORDS: Final = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_EXACT: Final = "exact Gaussian composition (Balle and Wang 2018)"
# Only estimators that take `ledger=` say this.
_SHARED: Final = "A shared ledger adds up the costs"
_FIXED: Final = "Epsilon is the budget fixed before"
_IN_ROUNDS: Final = f"{_EXACT}. {_FIXED} the fit, for the largest number of rounds"


class SeenBy(ABC):
    """Who carries the release and sees what of it. Against whom the guarantee holds, and what that rests on."""

    __slots__ = ()

    @abstractmethod
    def against(self, protects: Person | User) -> str:
        """Who the guarantee holds against, and who sees more."""

    @abstractmethod
    def calibration(self) -> str:
        """How noise is calibrated, and what the budget was fixed for."""

    @property
    def released(self) -> tuple[str, ...]:
        """What is covered besides the result."""
        return ()

    def assumptions(self) -> Iterator[str]:
        """What is assumed of parties, channels and keys."""
        return iter(())

    def alone(self, protects: Person | User) -> str:
        """That other releases about the same people add to the cost."""
        return f"this guarantee is for this fit alone. Another fit on the same {protects.plural} adds to the cost"

    def caveats(self) -> Iterator[str]:
        """What the guarantee does not cover."""
        return iter(())


@final
@dataclass(frozen=True, slots=True)
class OneHolder(SeenBy):
    """One analyst has all rows and runs the program. Everyone else sees what a fit (in rounds, or less than one) releases."""

    releases: Literal["a fit", "a fit in rounds", "less"] = "a fit"

    def against(self, protects: Person | User) -> str:
        if isinstance(protects, User):
            others = ", including all other users together"
            return f"{_anyone(protects, others)}. The analyst who ran this program saw the histories themselves"
        return f"{_anyone(protects)}. The analyst who ran this program saw the rows themselves"

    def calibration(self) -> str:
        if self.releases == "a fit in rounds":
            return _IN_ROUNDS
        return f"{_EXACT}. {_FIXED} the {'fit' if self.releases == 'a fit' else 'first release'}"

    @property
    def released(self) -> tuple[str, ...]:
        return ("the transcript",) if self.releases == "a fit in rounds" else ()

    def alone(self, protects: Person | User) -> str:
        if self.releases == "a fit in rounds":
            return SeenBy.alone(self, protects)
        if self.releases == "less":
            alone = f"this guarantee is for these releases alone. A fit on the same {protects.plural} adds to the cost"
            return f"{alone}. {_SHARED}"
        return f"{SeenBy.alone(self, protects)}. {_SHARED}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HubAndSites(SeenBy):
    """Sites around a hub, or below the inner nodes of a `tree`. A budget is that of the noise at its place, None for no noise.

    With `drawn`, some of the sites are drawn for each round.
    """

    at_sites: Budget | None
    at_hub: Budget | None
    tree: bool = False
    drawn: bool = False

    @property
    def released(self) -> tuple[str, ...]:
        if self.at_sites is None:
            return ("the transcript",)
        leaves = "every number that leaves a site"
        if self.at_hub is not None:
            # The page's own epsilon does not cover it.
            leaves = f"{SEEN_BY}{self._middle} only, at {_pair(self.at_sites)}: {leaves}"
        return ("the transcript", leaves)

    @property
    def _middle(self) -> str:
        # Inner nodes add up what sites send, so they see as much as the hub.
        return "the hub and the inner nodes of the tree" if self.tree else "the hub"

    def against(self, protects: Person | User) -> str:
        middle, see = self._middle, "see" if self.tree else "sees"
        if self.at_sites is None:
            raw = f"T{middle[1:]} {see} the raw parts of each site (sums without noise) and must be trusted"
            return f"{_anyone(protects)}. {raw}. So must each site, with its own rows"
        if self.at_hub is None:
            return f"{_anyone(protects, ', including the hub and the other sites')}. {_only_own('site', protects)}"
        # With noise in both places there are two guarantees: those who read what sites send see less noise than
        # everybody else.
        sees = "the released numbers but not what sites send to the hub"
        outside = _anyone(protects, ", including the other sites", sees=sees)
        return (
            f"{outside}. Against {middle}, which {see} what each site sends with only that site's noise, the guarantee is "
            f"{_pair(self.at_sites)}"
        )

    def assumptions(self) -> Iterator[str]:
        yield _SITES
        readers = f"{self._middle} {'read' if self.tree else 'reads'}"
        if self.at_sites is None:
            yield f"the channels are secure: no one but {readers} what sites send"
        elif self.at_hub is not None:
            yield f"no one but {readers} what sites send. Against other readers, only the guarantee against the hub holds"
        if self.drawn:
            yield (
                "which sites are drawn for a round is public. The guarantee does not rely on the draw: the noise is by exact "
                "accounting, and neither that of FedPower's Alg. 2 nor that of its Alg. 3"
            )

    def calibration(self) -> str:
        return _IN_ROUNDS


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedSites(SeenBy):
    """Sites that mask what they send. The hub sees sums over at least `survivors`. Up to `colluders` may tell it everything.

    The noise is that of `honest` sites. Of delta, `noise_delta` is for the noise and `failure` for masks between only some of
    the sites. Parties in one process are not `apart`, and nothing is hidden from its user.
    """

    survivors: int
    colluders: int
    honest: int
    noise_delta: float
    failure: float
    apart: bool

    @property
    def released(self) -> tuple[str, ...]:
        return ("the transcript", "the sum over the survivors of each round")

    def against(self, protects: Person | User) -> str:
        some = "one other site that tells" if self.colluders == 1 else f"up to {self.colluders} other sites that tell"
        over = "one site that does" if self.honest == 1 else f"{self.honest} sites that do"
        return (
            f"{_anyone(protects)}. Also the hub, even if it breaks the protocol, together with {some} it everything. Also anyone "
            f"who reads or changes messages on their way. The hub sees only noisy sums, each over at least {over} not collude "
            f"with it{self._fewer()}. {_only_own('site', protects)}"
        )

    def _fewer(self) -> str:
        lost = self.survivors - self.colluders - self.honest
        few = "one colluder" if self.colluders == 1 else f"{_in_words(self.colluders)} colluders"
        return f". That is {self.survivors}, less {few} and {_in_words(lost)} that sparse masks may isolate" if lost > 0 else ""

    def assumptions(self) -> Iterator[str]:
        yield _SITES
        single = "one of the sites tells the hub what it knows"
        few = single if self.colluders == 1 else f"{self.colluders} of the sites tell the hub what they know"
        yield f"at most {few}. The sites themselves check that at least {self.survivors} sites are in every sum"
        # A hub that could invent identities could play the other sites itself.
        yield "every site knows the public identity of every other site from a source other than the hub"
        yield _unbroken("P-256, Ed25519, SHA-256, HKDF, AES-256 and ChaCha20-Poly1305")

    def calibration(self) -> str:
        text = (
            f"{_IN_ROUNDS}. Sites add shares of whole-number noise. Their sum is rounded Gaussian noise (docs/integer-noise.md)"
        )
        # Masks between all sites cannot fail, and then all of delta is for the noise.
        if self.failure == 0:
            return text
        return (
            f"{text}. Of delta, {self.noise_delta:.6g} is for the noise. The other {self.failure:.2g} is for masks between only "
            "some of the sites, and for checking only some signatures (docs/mask-graph.md)"
        )

    def caveats(self) -> Iterator[str]:
        if not self.apart:
            yield (
                "all parties ran in one process here, which has every key. To keep sites apart from each other, run them over a "
                "network"
            )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SlotBySlot(SeenBy):
    """Sites that send one slot of their streams after the other, seen as `inner` says.

    A person is in at most `max_slots` slots, and one slot alone costs mu `each`, which is (`epsilon`, `delta`).
    """

    inner: HubAndSites | MaskedSites
    max_slots: int
    each: float
    epsilon: float
    delta: float

    @property
    def released(self) -> tuple[str, ...]:
        return ("the rank", *self.inner.released, "all of them again after every slot")

    def against(self, protects: Person | User) -> str:
        return self.inner.against(protects)

    def assumptions(self) -> Iterator[str]:
        return self.inner.assumptions()

    def calibration(self) -> str:
        many = "one slot, whose cost is all that counts" if self.max_slots == 1 else f"{self.max_slots} slots, whose costs add up"
        return (
            f"{_EXACT}. {_FIXED} the first slot, for all slots together. Slots are disjoint, and a person is in at most {many}. "
            f"One slot alone is released at mu {self.each:.4g}, which is ({self.epsilon:.4g}, {plain(self.delta)})"
        )

    def alone(self, protects: Person | User) -> str:
        return f"this guarantee is for this study alone. Another study or fit with the same {protects.plural} adds to the cost"

    def caveats(self) -> Iterator[str]:
        return self.inner.caveats()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PeersAlone(SeenBy):
    """Peers without a hub. Up to `colluders` of them may tell what they know. None: each adds all of the noise itself.

    Of `names`, those `counted` are in the result, from the round `since` on. The sum has `excess` times the noise of one curator.
    Noise that cancels between pairs is `ratio` times a peer's own. mu is the largest over all sets of colluders if `exact`, and
    otherwise a bound on it. The budget allows for `restarts` restarted rounds.
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
        return ("the transcript", "every number that leaves a peer")

    def against(self, protects: Person | User) -> str:
        sees, own = "the released numbers and all messages between peers", _only_own("peer", protects)
        if self.colluders is None:
            return f"{_anyone(protects, ', including all other peers together', sees=sees)}. {own}"
        some, lie = ("one peer tells", "lies") if self.colluders == 1 else (f"up to {self.colluders} peers tell", "lie")
        side = f"This holds even if {some} them everything and {lie} to the other peers"
        fewer = "With more colluding peers there is less noise than the guarantee needs"
        return f"{_anyone(protects, sees=sees)}. {side}. {fewer}. {own}"

    def assumptions(self) -> Iterator[str]:
        yield "which peers take part, who talks to whom, and which peers were counted in each round is public"
        yield self._who_counted()
        # Without colluders to count, every peer protects itself and needs no keys.
        if self.colluders is not None:
            single = "one peer tells others what it knows. It may also lie"
            several = f"{self.colluders} peers tell others what they know. They may also lie"
            yield f"at most {single if self.colluders == 1 else several}"
            yield (
                "every peer knows the public identity of each peer that it shares noise with from a source other than these "
                "messages"
            )
            yield _unbroken("P-256, Ed25519, SHA-256, HKDF and AES-256")

    def calibration(self) -> str:
        text = _IN_ROUNDS
        if self.restarts:
            text += f" and for {'one restarted round' if self.restarts == 1 else f'{self.restarts} restarted rounds'}"
        if self.colluders is None:
            return f"{text}. Every peer adds all the noise, so the sum has {self.excess:.4g} times the noise of one curator"
        # On large graphs there are too many sets of colluders to try them all.
        kind = "the worst case" if self.exact else "a bound on the worst case"
        few = "one colluding peer" if self.colluders == 1 else f"{_in_words(self.colluders)} colluding peers"
        return (
            f"{text}. Every peer adds noise of its own, and noise {self.ratio:g} times as large that cancels between pairs. The "
            f"privacy loss (mu) is {kind} over every choice of {few} and one protected peer (docs/pairwise-noise.md). The sum "
            f"has {self.excess:.4g} times the noise of one curator"
        )

    def caveats(self) -> Iterator[str]:
        if not self.apart:
            yield "all peers ran in one process here. To keep peers apart from each other, run them over a network"

    def _who_counted(self) -> str:
        if len(self.counted) == len(self.names):
            return f"all {len(self.names)} peers were counted in every round"
        gone = [name for name in self.names if name not in self.counted]
        shown = ", ".join(gone[:10]) + (f" and {len(gone) - 10} more" if len(gone) > 10 else "")
        return (
            f"from round {self.since + 1} on, the result counts {len(self.counted)} of {len(self.names)} peers, without {shown}. "
            "The same guarantee covers what those peers had sent before"
        )


@final
@dataclass(frozen=True, slots=True)
class OneDevice(SeenBy):
    """A device follows a stream and sees its rows. `reason` says how it releases, and `anew` when, if more than once."""

    reason: str
    anew: str = ""

    @property
    def released(self) -> tuple[str, ...]:
        return ("the rank", f"all of them again {self.anew}") if self.anew else ("the rank",)

    def against(self, protects: Person | User) -> str:
        everything = _anyone(protects, sees="everything that was ever released")
        return f"{everything}. The device that follows the stream sees the rows, and its unreleased state is raw data"

    def calibration(self) -> str:
        return (
            f"{_EXACT}. {_FIXED} the stream began. Slots of the stream are disjoint, so only the costs of those that "
            f"one person can be in add up. How it is released: {self.reason}"
        )

    def alone(self, protects: Person | User) -> str:
        more = f"Another stream or fit with the same {protects.plural} adds to the cost. {_SHARED}"
        return f"this guarantee is for this stream alone. {more}"


@final
@dataclass(frozen=True, slots=True)
class NoisyRows(SeenBy):
    """Each peer publishes every row of its own, with noise."""

    def against(self, protects: Person | User) -> str:
        rows = _anyone(protects, ", including the other peers", sees="every noisy row")
        return f"{rows}. {_only_own('peer', protects)}"

    def calibration(self) -> str:
        return "exact Gaussian mechanism (Balle and Wang 2018)"

    def alone(self, protects: Person | User) -> str:
        return f"this guarantee is for this release alone. Another release about the same {protects.plural} adds to the cost"


def _anyone(protects: Person | User, including: str = "", *, sees: str = "the released numbers") -> str:
    # In two sentences where one would be too long.
    holds = ". This holds" if including else ","
    return f"anyone who sees {sees}{including}{holds} even if they know everything except {protects.secret}"


def _pair(budget: Budget) -> str:
    return f"({plain(budget.epsilon)}, {plain(budget.delta)})"


def _in_words(number: int) -> str:
    return _WORDS[number] if number < len(_WORDS) else str(number)


def _only_own(party: str, protects: Person | User) -> str:
    what = "histories" if isinstance(protects, User) else "rows"
    return f"Only the {party} itself sees its {what}"


def _unbroken(primitives: str) -> str:
    return f"{primitives} are secure. The guarantee holds against adversaries who cannot break them"
