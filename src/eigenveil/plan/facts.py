"""`Facts`: everything that is publicly known before a fit, and the names of the ways in which it can be done."""

from dataclasses import dataclass
from typing import Final, Literal, final

from eigenveil.errors import require
from eigenveil.plan.choice import MEMORY_LIMIT
from eigenveil.plan.spectrum import Spectrum
from eigenveil.privacy import Budget, Neighbours

__all__ = ["METHODS", "SETTINGS", "Facts", "methods_for"]

SETTINGS: Final = ("curator", "stream", "hub", "site", "masked", "peers", "peers-independent")
METHODS: Final = (
    "curator/covariance",
    "curator/power",
    "stream/sync",
    "stream/block",
    "stream/continual",
    "hub/covariance",
    "hub/krylov",
    "hub/power",
    "site/covariance",
    "site/krylov",
    "site/power",
    "site/fedpower",
    "site/merge",
    "masked/covariance",
    "masked/krylov",
    "masked/power",
    "peers/covariance",
    "peers/krylov",
    "peers/power",
    "peers/segments",
    "peers-independent/covariance",
    "peers-independent/krylov",
    "peers-independent/power",
    "peers-independent/segments",
)
_ALONE: Final = ("curator", "stream")


@final
@dataclass(frozen=True, slots=True)
class Facts:
    """What is known without looking: `rank` components of `dim` columns are wanted, of about `people` people, within a budget.

    `center` says whether the mean is known or has to be found, for a share of the budget, and `search` whether it may lie outside
    of the first ball it is looked for in. Rows are at `sites` places, alike and with as many people each. Under masks at least
    `survivors` of them are in every sum (None: all), and `colluders` may tell the hub, or each other as peers, all they know. A
    stream comes in `blocks` (None: as many as would be planned).

    Limits: `rounds` is the most that can be afforded, `traffic` the most bytes that one site may send in all, `memory` the most
    bytes at one place. `trust` lists the settings that are acceptable, all that `sites` allow where there is none in it.

    >>> Facts(20, 3, 1000, Budget(1.0, 1e-6), Spectrum.guessed(20)).settings
    ('curator', 'stream')
    """

    dim: int
    rank: int
    people: int
    budget: Budget
    spectrum: Spectrum
    neighbours: Neighbours = Neighbours.ADD_REMOVE
    center: Literal["private", "known"] = "private"
    search: bool = True
    sites: int = 1
    survivors: int | None = None
    colluders: int = 1
    blocks: int | None = None
    rounds: int | None = None
    traffic: int | None = None
    memory: int = MEMORY_LIMIT
    trust: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.dim >= 2, f"dim must be at least 2, got {self.dim}")
        require(1 <= self.rank <= self.dim, f"rank must lie in 1..{self.dim}, got {self.rank}")
        require(self.people >= 2, f"people must be at least 2, got {self.people}")
        require(
            self.spectrum.dim == self.dim,
            f"spectrum has {self.spectrum.dim} values, and dim is {self.dim}: one for each",
        )
        require(self.neighbours.protects_a_person, f"neighbours must be of people, got {self.neighbours.value!r}")
        require(self.center in ("private", "known"), f"center must be 'private' or 'known', got {self.center!r}")
        require(1 <= self.sites <= self.people, f"sites must be from 1 to the {self.people} people, got {self.sites}")
        require(
            self.survivors is None or 1 <= self.survivors <= self.sites,
            f"survivors must be from 1 to the {self.sites} sites, got {self.survivors}",
        )
        require(self.colluders >= 1, f"colluders must be at least 1, as all know their own noise, got {self.colluders}")
        for name in ("blocks", "rounds", "traffic", "memory"):
            limit = getattr(self, name)
            require(limit is None or limit >= 1, f"{name} must be at least 1, got {limit}")
        for setting in self.trust:
            require(setting in SETTINGS, f"trust must be of {', '.join(SETTINGS)}, got {setting!r}")
            require(
                self.sites > 1 or setting in _ALONE,
                f"trust={setting!r} needs several sites, and there is one: give sites",
            )

    @property
    def settings(self) -> tuple[str, ...]:
        """The acceptable ones, in the order of `SETTINGS`."""
        if self.trust:
            return tuple(setting for setting in SETTINGS if setting in self.trust)
        # Rows at several sites could be pooled by nobody but somebody whom all of them trust: who has one says so.
        return tuple(setting for setting in SETTINGS if (setting in _ALONE) == (self.sites == 1))


def methods_for(facts: Facts) -> tuple[str, ...]:
    """The names of all methods in the settings that are acceptable.

    >>> methods_for(Facts(20, 3, 1000, Budget(1.0, 1e-6), Spectrum.guessed(20), trust=("curator",)))
    ('curator/covariance', 'curator/power')
    """
    return tuple(method for method in METHODS if method.partition("/")[0] in facts.settings)
