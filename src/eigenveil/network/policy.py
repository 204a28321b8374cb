"""`Policy`: what a site takes part in, written by the site itself. The coordinator has no say in it.

The coordinator's authority could sign the certificates of sites that nobody has ever seen, so a site lists the pins it has
compared itself. Every refusal names the key of the policy that it comes from.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

from eigenveil.errors import EigenveilError, require
from eigenveil.network.study_file import Place, StudyFile
from eigenveil.network.study_keys import (
    check_fields,
    hex_digits,
    key,
    line,
    listed,
    one_of,
    optional,
    real,
    refuse_unknown,
    section_from,
    shown,
    truth,
    whole,
)
from eigenveil.network.study_toml import load_toml, written_by_owner
from eigenveil.privacy import Budget
from eigenveil.protocols.messages import LONGEST_NAME

__all__ = ["METHODS", "TRUSTS", "Agent", "Limits", "Pins", "Policy", "PolicyRefusal", "Spending"]

METHODS: Final = ("krylov", "power", "fedpower", "covariance", "merge", "uda", "wda", "dr-svd")
TRUSTS: Final = ("masked", "site", "both", "curator", "pairwise", "independent", "none")
_SAFE_METHODS: Final = METHODS[:-1]
_SAFE_TRUSTS: Final = ("masked", "site", "pairwise", "independent")
_MOST_PINS: Final = 20_000

_PIN: Final = hex_digits(64)
_EPSILON: Final = real("a positive number, or inf", lambda number: number > 0, infinite=True)
_DELTA: Final = real("a number between 0 and 1, at least 1e-300", lambda number: 1e-300 <= number < 1)


class PolicyRefusal(EigenveilError):
    """This site does not take part, for `reasons` of its own policy. Nothing was revealed."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("the policy of this site refuses the study: " + "; ".join(reasons))
        self.reasons = tuple(reasons)


def _peers(where: str, value: Any) -> dict[str, str]:
    require(isinstance(value, dict) and len(value) <= _MOST_PINS, f"{where} must be a table, got {shown(value)}")
    name = line(LONGEST_NAME)
    return {name(f"{where}, a name,", who): _PIN(f"{where} {shown(who)}", pin) for who, pin in value.items()}


@final
@dataclass(frozen=True, slots=True)
class Pins:
    """[pins]: whose keys this site has compared with their owners, not with the coordinator."""

    hub: tuple[str, ...] = key(listed(_PIN, most=1000, distinct=True), "The pins of hubs that may gather.", default=())
    peers: Mapping[str, str] = key(_peers, "The pin of each other site, peer or node, by name.", default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self, "pins")


@final
@dataclass(frozen=True, slots=True)
class Limits:
    """[limits]: which studies are taken part in at all."""

    organisations: int = key(whole(1, 1_000_000), "Over how many organisations a sum must be at least.", default=3)
    tasks: tuple[str, ...] = key(listed(one_of(*METHODS)), "The methods that may run.", default=_SAFE_METHODS)
    trust: tuple[str, ...] = key(
        listed(one_of(*TRUSTS)),
        "Who may add the noise; curator and both leave some of it to the hub, and none is no noise at all.",
        default=_SAFE_TRUSTS,
    )
    rows: int = key(whole(0, 1 << 53), "How many people my table must have at least.", default=100)
    columns: tuple[str, ...] | None = key(
        optional(listed(line(LONGEST_NAME))), "The columns that may be used; unless given, all.", default=None
    )

    def __post_init__(self) -> None:
        check_fields(self, "limits")


@final
@dataclass(frozen=True, slots=True)
class Spending:
    """[budget]: how much of a person's privacy one study may cost, and all studies together for the life of a dataset."""

    study_epsilon: float = key(_EPSILON, "The largest epsilon of one study.", default=1.0)
    study_delta: float = key(_DELTA, "The largest delta of one study.", default=1e-5)
    life_epsilon: float = key(_EPSILON, "The largest epsilon of all studies on a dataset together.", default=3.0)
    life_delta: float = key(_DELTA, "The delta at which that is reckoned.", default=1e-5)

    def __post_init__(self) -> None:
        check_fields(self, "budget")
        require(
            self.study_epsilon <= self.life_epsilon,
            f"[budget] study_epsilon must be at most life_epsilon, {self.life_epsilon:g}, got {self.study_epsilon:g}",
        )


@final
@dataclass(frozen=True, slots=True)
class Agent:
    """[agent]: how the site's program behaves."""

    reply_seconds: float = key(
        real("a number of seconds from 0 to 3600", lambda number: 0 <= number <= 3600),
        "Every answer takes this long, so that its time says nothing about the rows; 0 is as fast as it goes.",
        default=0.0,
    )
    rehearsals: bool = key(
        truth, "Whether studies with a test seed, which protect nobody, are taken part in.", default=False
    )

    def __post_init__(self) -> None:
        check_fields(self, "agent")


_SECTIONS: Final = {"pins": Pins, "limits": Limits, "budget": Spending, "agent": Agent}


@final
@dataclass(frozen=True, slots=True)
class Policy:
    """What a site takes part in: pins, limits, budget, and how its agent behaves.

    >>> Policy().budget.study_epsilon, Policy().limits.organisations, Policy().pins.hub
    (1.0, 3, ())
    """

    pins: Pins = field(default_factory=Pins)
    limits: Limits = field(default_factory=Limits)
    budget: Spending = field(default_factory=Spending)
    agent: Agent = field(default_factory=Agent)

    @classmethod
    def read(cls, path: Path) -> "Policy":
        """The policy in a file that nobody but its owner may change; a `ValueError` that says what is wrong with it."""
        try:
            return cls.parse(written_by_owner(path))
        except ValueError as error:
            named = str(error).startswith(str(path))
            raise ValueError(str(error) if named else f"{path}: {error}") from error

    @classmethod
    def parse(cls, text: str) -> "Policy":
        """The policy that a TOML text says; what it leaves out has its safe default."""
        document = load_toml(text)
        refuse_unknown("the policy", document, list(_SECTIONS), explained={})
        found: dict[str, Any] = {}
        for name, table in document.items():
            found[name] = section_from(_SECTIONS[name], name, table, explained={})
        return cls(**found)

    @property
    def life(self) -> Budget | None:
        """What all studies on a dataset may cost together; None where that is unlimited."""
        spending = self.budget
        return None if math.isinf(spending.life_epsilon) else Budget(spending.life_epsilon, spending.life_delta)

    @property
    def reply_seconds(self) -> float:
        """How long every answer takes; 0 is as fast as it goes."""
        return self.agent.reply_seconds

    @property
    def rehearsals(self) -> bool:
        """Whether studies with a test seed are taken part in."""
        return self.agent.rehearsals

    def refusals(self, study: StudyFile, *, me: str, method: str) -> list[str]:
        """Every reason not to take part as `me`, in plain words; none where the policy allows it.

        `method` is what finds the components, where the study may leave that open.
        """
        study.place(me)
        return [
            *self._of_pins(study, me),
            *self._of_terms(study, method),
            *self._of_columns(study),
            *self._of_budget(study),
            *self._of_time(study),
        ]

    def _of_time(self, study: StudyFile) -> Iterator[str]:
        if self.reply_seconds >= study.network.deadline:
            yield (
                f"[agent] reply_seconds = {self.reply_seconds:g}: every answer would come after the {study.network.deadline:g} "
                "seconds that the study waits for one"
            )

    def refusals_of_rows(self, people: int) -> list[str]:
        """Why a table of so many people is too small; it is the site's own, and the number goes nowhere."""
        least = self.limits.rows
        if people >= least:
            return []
        return [f"[limits] rows: a table must have at least {least} people, and this one has fewer"]

    def _of_pins(self, study: StudyFile, me: str) -> Iterator[str]:
        hub, above = study.hub, None
        if hub is not None:
            above = study.layout().above().get(me)
            if hub.pin not in self.pins.hub:
                yield (
                    f"[pins] hub: the hub's pin {hub.pin} is not listed; compare it with the hub's owner, by telephone, and "
                    "then add it"
                )
        # Masks and pair noise are worth what those at their other ends are worth.
        all_matter = study.masked or study.carrier == "gossip"
        for place in study.places:
            if place is not hub:
                yield from self._of_pin(place, needed=place.name == above or (all_matter and place.name != me))

    def _of_pin(self, place: Place, *, needed: bool) -> Iterator[str]:
        pinned = self.pins.peers.get(place.name)
        if pinned is None and needed:
            yield (
                f"[pins.peers] {place.name!r} is not there: the study says its pin is {place.pin}; compare it with its owner, by "
                "telephone, and then add it"
            )
        elif pinned is not None and pinned != place.pin:
            yield (
                f"[pins.peers] {place.name!r} is pinned as {pinned}, and the study has {place.pin}: it is somebody else, or has "
                "new keys; ask its owner"
            )

    def _of_terms(self, study: StudyFile, method: str) -> Iterator[str]:
        limits = self.limits
        if study.fewest < limits.organisations:
            yield (
                f"[limits] organisations: a sum must be over at least {limits.organisations}, and in this study it may be over "
                f"{study.fewest}"
            )
        if method not in limits.tasks:
            yield f"[limits] tasks: {method} is not among {', '.join(limits.tasks) or 'those allowed, which are none'}"
        if study.trust not in limits.trust:
            what = "a study without noise" if study.trust == "none" else f"trust {study.trust!r}"
            yield f"[limits] trust: {what} is not among {', '.join(limits.trust) or 'those allowed, which are none'}"
        if study.seed is not None and not self.agent.rehearsals:
            yield "[agent] rehearsals: the study has a test seed, so its noise protects nobody, and rehearsals are not allowed"

    def _of_columns(self, study: StudyFile) -> Iterator[str]:
        if self.limits.columns is None:
            return
        person = () if study.task.person is None else (study.task.person,)
        allowed = set(self.limits.columns)
        others = [name for name in (*study.columns, *person) if name not in allowed]
        if others:
            more = f" and {len(others) - 10} more" if len(others) > 10 else ""
            yield f"[limits] columns: {', '.join(map(repr, others[:10]))}{more} may not be used"

    def _of_budget(self, study: StudyFile) -> Iterator[str]:
        asked, most = study.budget, self.budget
        if asked is None:
            # An exact answer has no epsilon, so only those who set no limit can give one.
            for name in ("study_epsilon", "life_epsilon"):
                limit = getattr(most, name)
                if math.isfinite(limit):
                    yield f"[budget] {name}: a study without noise costs more than any epsilon, and the limit is {limit:g}"
            return
        if asked.epsilon > most.study_epsilon:
            yield f"[budget] study_epsilon: the study costs epsilon = {asked.epsilon:g}, and {most.study_epsilon:g} is allowed"
        if asked.delta > most.study_delta:
            yield f"[budget] study_delta: the study has delta = {asked.delta:g}, and {most.study_delta:g} is allowed"
        if self.life is not None and asked.mu > self.life.mu:
            yield (
                f"[budget] life_epsilon: the study costs ({asked.epsilon:g}, {asked.delta:g}), more than ({most.life_epsilon:g}, "
                f"{most.life_delta:g}), which is for all studies on a dataset together"
            )
