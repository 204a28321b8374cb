"""`Facts`: everything that is publicly known before a fit, and the names of the ways in which it can be done."""

import math
from dataclasses import dataclass
from typing import Final, Literal, final, get_args

import numpy as np

from eigenveil.errors import ParameterError, require_param
from eigenveil.params.values import Expected, Vector, center_value
from eigenveil.plan.choose.choice import MEMORY_LIMIT
from eigenveil.plan.spectrum import Spectrum, require_rank
from eigenveil.privacy import Budget, Neighbours

__all__ = ["METHODS", "SETTINGS", "Facts", "Setting", "methods_for", "parts_of"]

# Who is trusted with what.
Setting = Literal["curator", "stream", "hub", "site", "masked", "peers", "peers-independent"]
SETTINGS: Final[tuple[Setting, ...]] = get_args(Setting)
_SUMS: Final = ("covariance", "krylov", "power")
_METHODS: Final[dict[Setting, tuple[str, ...]]] = {
    "curator": ("covariance", "power"),
    "stream": ("sync", "block", "continual"),
    "hub": _SUMS,
    "site": (*_SUMS, "fedpower", "merge"),
    "masked": _SUMS,
    "peers": (*_SUMS, "segments"),
    "peers-independent": (*_SUMS, "segments"),
}
_PARTS: Final = {f"{setting}/{how}": (setting, how) for setting, every in _METHODS.items() for how in every}
METHODS: Final = tuple(_PARTS)
_ALONE: Final = ("curator", "stream")


@final
@dataclass(frozen=True, slots=True)
class Facts:
    """What is known without looking: `rank` components of `dim` columns are wanted, of about `people` people, within a budget.

    `center` is that of the fit: "private" finds the mean, for a share of the budget, None leaves rows where they are, and public
    numbers, (d,), cost as little. `search` says whether a mean may lie outside of the first ball it is looked for in. Rows are at
    `sites` places, alike and with as many people each. Under masks at least
    `survivors` of them are in every sum (None: all), and `colluders` may tell the hub, or each other as peers, all they know. A
    stream comes in `blocks` (None: as many as would be planned). `row_bound` is the bound of the fit where it is known, for the
    parameters alone: the spectrum is in units of it.

    Limits: `rounds` is the most that can be afforded, `traffic` the most bytes that one site may send in all, `memory_limit` the
    most bytes at one place. `trust` lists the settings that are acceptable, all that `sites` allow where there is none in it.

    >>> Facts(20, 3, 1000, Budget(1.0, 1e-6), Spectrum.guessed(20)).settings
    ('curator', 'stream')
    """

    dim: int
    rank: int
    people: int
    budget: Budget
    spectrum: Spectrum
    neighbours: Neighbours = Neighbours.ADD_REMOVE
    center: Literal["private"] | Vector | None = "private"
    search: bool = True
    sites: int = 1
    survivors: int | None = None
    colluders: int = 1
    blocks: int | None = None
    rounds: int | None = None
    traffic: int | None = None
    memory_limit: int = MEMORY_LIMIT
    trust: tuple[str, ...] = ()
    row_bound: float | None = None

    def __post_init__(self) -> None:
        self._check_sizes()
        near, bound = self.neighbours, self.row_bound
        require_param(
            near.protects_a_person, "{neighbours} must be of people, got {@neighbours}", neighbours=near.value
        )
        self._check_center()
        good = bound is None or 0 < bound < math.inf
        require_param(good, "{row_bound} must be positive and finite, got {@bound}", bound=bound)
        for name in ("blocks", "rounds", "traffic", "memory_limit"):
            limit = getattr(self, name)
            require_param(limit is None or limit >= 1, f"{{{name}}} must be at least 1, got {{@limit}}", limit=limit)
        for setting in self.trust:
            known = setting in SETTINGS
            require_param(known, f"{{trust}} must be of {', '.join(SETTINGS)}, got {{@setting}}", setting=setting)
            if self.sites == 1 and setting not in _ALONE:
                raise ParameterError("{trust=} needs several sites, and there is one: give {sites}", trust=setting)

    def _check_center(self) -> None:
        try:
            center = None if self.center is None else center_value(self.center)
        except Expected as error:
            raise ParameterError(f"{{center}} must be {error}, got {{@center}}", center=self.center) from None
        if center is None or isinstance(center, str):
            return
        numbers = np.asarray(center, dtype=np.float64)
        good = numbers.shape == (self.dim,) and bool(np.isfinite(numbers).all())
        require_param(good, f"{{center}} must be {self.dim} finite numbers, got {{@center}}", center=center)
        # Facts are compared, and arrays cannot be.
        object.__setattr__(self, "center", tuple(numbers.tolist()))

    def _check_sizes(self) -> None:
        dim, rank, people, sites, survivors = self.dim, self.rank, self.people, self.sites, self.survivors
        require_param(dim >= 2, "{dim} must be at least 2, got {@dim}", dim=dim)
        require_rank(rank, dim)
        require_param(people >= 2, "{people} must be at least 2, got {@people}", people=people)
        values = self.spectrum.dim
        require_param(values == dim, f"spectrum has {values} values, and {{dim}} is {dim}: one for each")
        require_param(
            1 <= sites <= people, f"{{sites}} must be from 1 to the {people} people, got {{@sites}}", sites=sites
        )
        require_param(
            survivors is None or 1 <= survivors <= sites,
            f"{{survivors}} must be from 1 to the {sites} sites, got {{@survivors}}",
            survivors=survivors,
        )
        require_param(
            self.colluders >= 1,
            "{colluders} must be at least 1, as all know their own noise, got {@colluders}",
            colluders=self.colluders,
        )

    @property
    def settings(self) -> tuple[Setting, ...]:
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
    return tuple(method for method, (setting, _) in _PARTS.items() if setting in facts.settings)


def parts_of(method: str) -> tuple[Setting, str]:
    """The setting and the algorithm of one of `METHODS`.

    >>> parts_of("masked/krylov")
    ('masked', 'krylov')
    """
    if method not in _PARTS:
        raise ParameterError(f"{{method}} must be one of {', '.join(METHODS)}, got {{@method}}", method=method)
    return _PARTS[method]
