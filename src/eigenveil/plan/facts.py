"""`Facts`: everything that is publicly known before a fit; and the names of the methods, as "setting/algorithm"."""

import math
from dataclasses import dataclass
from typing import Any, Final, Literal, final, get_args

import numpy as np

from eigenveil.core.accounting import Budget
from eigenveil.core.unit import Neighbours
from eigenveil.errors import ParameterError, in_python, require_param
from eigenveil.methods import METHODS as LEAVES
from eigenveil.methods import MethodPlan, method_of, methods_in
from eigenveil.params.declarations.federated import FederatedParams, GossipParams
from eigenveil.params.declarations.private import PrivateParams
from eigenveil.params.declarations.streaming import StreamingParams
from eigenveil.params.values import InvalidValue, Vector, center_value
from eigenveil.plan.choose import MEMORY_LIMIT
from eigenveil.plan.clipping import Norms
from eigenveil.plan.spectrum import Spectrum, require_rank
from eigenveil.plan.streams import StreamPlan
from eigenveil.trackers import PUBLISH, TRACKERS, published_as

# Who is trusted with what.
Setting = Literal["curator", "stream", "hub", "site", "masked", "peers", "peers-independent"]
SETTINGS: Final[tuple[Setting, ...]] = get_args(Setting)
_METHODS: Final = {setting: PUBLISH if setting == "stream" else methods_in(setting) for setting in SETTINGS}
_PARTS: Final = {f"{setting}/{how}": (setting, how) for setting, every in _METHODS.items() for how in every}
METHODS: Final = tuple(_PARTS)
_ALONE: Final = ("curator", "stream")
_PLACES: Final = {
    "curator": "one table",
    "stream": "a stream",
    "hub": "sites, and a hub that adds the noise",
    "site": "sites, each of which adds noise",
    "masked": "sites under secure aggregation",
    "peers": "peers without a hub, pairwise noise",
    "peers-independent": "peers without a hub, independent noise",
}
_PHRASES: Final = {
    **{leaf.name: leaf.phrase for leaf in LEAVES.values()},
    **{kind.publishes: kind.phrase for kind in TRACKERS.values()},
}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known without looking at the data: `rank` components of `dim` columns, about `people` people, a budget.

    `center` is that of the fit. "private" finds the mean, for a share of the budget. None leaves rows where they are.
    Public numbers, (d,), cost as little as None. `search`: whether the mean may lie outside the ball where the search
    for it starts. Rows are at `sites` sites, alike and with equally many
    people.

    Under masks at least `survivors` sites are in every sum (None: all). `colluders` sites may tell the hub all they
    know, or each other if they are peers. A stream comes in `blocks` (None: as planned).

    `row_bound` is the bound of the fit where it is known. Its size appears in the parameters only, because the
    spectrum is in units of it. With None the fit finds one, for a share of the budget. With `scale` "private" it finds
    the units of columns instead, and needs no bound. `seeks` says which of the two. `norms` are released norms of the
    rows, if there are any: they tell what clipping may cost. They are in the units of `row_bound`, or where the fit finds
    a bound, in about that.

    Limits: `rounds` is the most rounds, `traffic` the most bytes one site may send in total, `memory_limit` the most bytes
    at one place.

    Acceptable settings are listed in `trust`. If it is empty, every setting that fits `sites` is acceptable.

    >>> Facts(dim=20, rank=3, people=1000, budget=Budget(1.0, 1e-6), spectrum=Spectrum.guessed(20)).settings
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
    scale: Literal["private"] | None = None
    norms: Norms | None = None

    def __post_init__(self) -> None:
        people, sites, values, bound = self.people, self.sites, self.spectrum.dim, self.row_bound
        require_param(self.dim >= 2, "{dim} must be at least 2, got {@dim}", dim=self.dim)
        require_rank(self.rank, self.dim)
        checks = [
            ("people", people >= 2, "at least 2"),
            ("sites", 1 <= sites <= people, f"from 1 to the {people} people"),
            ("survivors", self.survivors is None or 1 <= self.survivors <= sites, f"from 1 to the {sites} sites"),
            ("colluders", self.colluders >= 1, "at least 1, because every site knows its own noise"),
            ("scale", self.scale in (None, "private"), "private or None"),
            ("row_bound", bound is None or 0 < bound < math.inf, "positive and finite"),
        ]
        checks += [
            (name, (limit := getattr(self, name)) is None or limit >= 1, "at least 1")
            for name in ("blocks", "rounds", "traffic", "memory_limit")
        ]
        for name, good, expected in checks:
            require_param(good, f"{{{name}}} must be {expected}, got {{@value}}", value=getattr(self, name))
        require_param(values == self.dim, f"spectrum has {values} values, but {{dim}} is {self.dim}: give one for each column")
        near = self.neighbours
        require_param(near.protects_a_person, "{neighbours} must protect people, got {@relation}", relation=near.value)
        self._check_center()
        require_param(
            self.scale is None or self.center == "private",
            "{scale=private} needs {center=private}: columns are scaled by their spread around where they lie",
        )
        for setting in self.trust:
            expected = f"{{trust}} must be one of {', '.join(SETTINGS)}, got {{@setting}}"
            require_param(setting in SETTINGS, expected, setting=setting)
            several = "{trust=} needs several sites. Say how many with {sites}"
            require_param(sites > 1 or setting in _ALONE, several, trust=setting)

    def _check_center(self) -> None:
        try:
            center = None if self.center is None else center_value(self.center)
        except InvalidValue as error:
            raise ParameterError(f"{{center}} must be {error}, got {{@center}}", center=self.center) from None
        if center is None or isinstance(center, str):
            return
        numbers = np.asarray(center, dtype=np.float64)
        good = numbers.shape == (self.dim,) and bool(np.isfinite(numbers).all())
        require_param(good, f"{{center}} must be {self.dim} finite numbers, got {{@center}}", center=center)
        # Facts are compared, and arrays cannot be.
        object.__setattr__(self, "center", tuple(numbers.tolist()))

    @property
    def seeks(self) -> Literal["bound", "units"] | None:
        """What the fit will find privately beside the mean: a row bound, the units of columns, or nothing."""
        return "units" if self.scale is not None else "bound" if self.row_bound is None else None

    @property
    def unit(self) -> float:
        """The norm that rows are clipped to, in the units of `norms`: where the fit finds the bound, they are in units of it."""
        return 1.0 if self.row_bound is None else self.row_bound

    @property
    def denominator(self) -> Literal["all rows", "clipped rows"]:
        """Which rows a captured variance is a share of: with a given bound it is not known what the bound clips."""
        is_explicit = self.row_bound is not None and self.norms is None and self.scale is None
        return "clipped rows" if is_explicit else "all rows"

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The acceptable settings, in the order of `SETTINGS`."""
        if self.trust:
            return tuple(setting for setting in SETTINGS if setting in self.trust)
        # Pooling the rows of several sites needs a curator whom they all trust, so it counts only when `trust` names
        # it.
        return tuple(setting for setting in SETTINGS if (setting in _ALONE) == (self.sites == 1))


def methods_for(facts: Facts) -> tuple[str, ...]:
    """The names of all methods in the acceptable settings.

    >>> methods_for(
    ...     Facts(
    ...         dim=20, rank=3, people=1000, budget=Budget(1.0, 1e-6), spectrum=Spectrum.guessed(20), trust=("curator",)
    ...     )
    ... )
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


def method_words(method: str) -> str:
    """A method of a plan in words.

    >>> method_words("curator/covariance"), method_words("something/new")
    ('one table, one release of the covariance', 'something/new')
    """
    if method not in _PARTS:
        return method
    setting, algorithm = _PARTS[method]
    return f"{_PLACES[setting]}, {algorithm_phrase(algorithm).removeprefix('the ').removeprefix('a ')}"


def method_phrase(method: str) -> str:
    """The same inside a sentence.

    >>> method_phrase("curator/power"), method_phrase("hub/covariance")
    ('one table with the private power method', 'sites, and a hub that adds the noise, with one release of the covariance')
    """
    if method not in _PARTS:
        return method
    setting, algorithm = _PARTS[method]
    return f"{_PLACES[setting]}{',' * (',' in _PLACES[setting])} with {algorithm_phrase(algorithm)}"


def algorithm_phrase(algorithm: str) -> str:
    """An algorithm of a plan inside a sentence.

    >>> algorithm_phrase("power"), algorithm_phrase("covariance")
    ('the private power method', 'one release of the covariance')
    """
    return _PHRASES[algorithm]


FitParams = PrivateParams | FederatedParams | GossipParams | StreamingParams
# Up to this many peers the graph is complete.
_FEW_PEERS: Final = 6


def params_of(facts: Facts, method: str, plan: MethodPlan | StreamPlan, neighbours: Neighbours) -> FitParams:
    """The parameters that make an estimator do what was planned. The plan leaves all others at their defaults."""
    setting, name = parts_of(method)
    # A word that the parameter accepts, as `METHODS` lists no others; for the type checker.
    how: Any = name
    common: dict[str, Any] = {
        "n_components": facts.rank,
        "epsilon": facts.budget.epsilon,
        "delta": facts.budget.delta,
        # Its default, "private", where the fit finds one. In found units rows have a bound without a search.
        **({} if facts.row_bound is None else {"row_bound": facts.row_bound}),
        "neighbours": neighbours.value,
        "scale": facts.scale,
    }
    if isinstance(plan, StreamPlan):
        block = None if facts.blocks is None else plan.block
        horizon = facts.people if published_as(how).needs_horizon else None
        # Numbers are subtracted beforehand: a stream does not take them.
        center: Any = "private" if facts.center == "private" else None
        return StreamingParams(**common, publish=how, horizon=horizon, block_size=block, center=center)
    common |= {"center": facts.center, "method": how}
    if setting == "curator":
        return PrivateParams(**common)
    leaf, rounds = method_of(plan.method), None
    if facts.rounds is not None and leaf.fixed_rounds is None:
        # A limit may have reduced them. Each component has a round for its start, in addition to these.
        rounds = plan.rounds - leaf.finds_one_by_one
    if setting in ("peers", "peers-independent"):
        pairwise = setting == "peers"
        return GossipParams(
            **common,
            graph="complete" if facts.sites <= _FEW_PEERS else "random-regular:4",
            consensus="tree",
            noise="pairwise" if pairwise else "independent",
            people=plan.people or None,
            colluders=facts.colluders if pairwise else 1,
            rounds=rounds,
        )
    trust: Any = setting
    masks: dict[str, Any] = {"survivors": facts.survivors, "colluders": facts.colluders} if setting == "masked" else {}
    return FederatedParams(**common, trust=trust, rounds=rounds, **masks)


def unknown_of(facts: Facts, params: FitParams) -> tuple[str, ...]:
    """The parameters that the plan relies on and only the caller knows."""
    stream = isinstance(params, StreamingParams)
    near = facts.center == "private" and not facts.search
    # A search for units finds where columns lie, too.
    return ("mean_bound",) if near and not stream and facts.scale is None else ()


# The estimator, and which parameters name its method. A plan prints those even at their defaults.
_ESTIMATORS: Final[dict[type, tuple[str, tuple[str, ...]]]] = {
    PrivateParams: ("PrivatePCA", ("method",)),
    FederatedParams: ("FederatedPCA", ("trust", "method")),
    GossipParams: ("GossipPCA", ("noise", "method")),
    StreamingParams: ("StreamingPCA", ("publish",)),
}


def estimator_of(params: FitParams) -> tuple[str, tuple[str, ...]]:
    """The estimator, and which parameters name its method."""
    return _ESTIMATORS[type(params)]


def choice_of(params: FitParams) -> str:
    """The parameters that name the method, as text.

    >>> choice_of(FederatedParams(2, epsilon=1.0, trust="masked", method="covariance"))
    "trust='masked', method='covariance'"
    """
    return ", ".join(in_python(name, getattr(params, name)) for name in estimator_of(params)[1])
