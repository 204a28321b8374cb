"""`Terms`: what a fit is, in every setting. They are stated once, public, the same at every party, and passed on whole."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, final, get_args, get_origin

import numpy as np

from eigenveil.core.ledger import Charge, Ledger
from eigenveil.core.unit import Neighbours, PrivacyUnit
from eigenveil.estimators.verdict import FitVerdict, flat_columns
from eigenveil.linalg import Array, Subspace
from eigenveil.methods import Method, MethodPlan, method_of
from eigenveil.methods.base import Components
from eigenveil.model import Model
from eigenveil.params.declare import Declared, declared
from eigenveil.params.values import HasArray, as_float
from eigenveil.privacy.facts import MaskedSites
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.tasks.fit.bounds import RowBounds
from eigenveil.tasks.fit.gaps import Split, split_budget
from eigenveil.tasks.fit.task import Fit
from eigenveil.tasks.levels import BEYOND

if TYPE_CHECKING:
    from eigenveil.protocols.masked.terms import MaskedTerms
    from eigenveil.protocols.star.hub import HubRound
    from eigenveil.runtimes.local import Refusal

__all__ = [
    "Result",
    "Round",
    "Terms",
    "Unfinished",
    "Watch",
    "asked_settings",
    "bound_settings",
    "divisor_of",
    "masked_sites",
    "model_of",
    "released_settings",
    "round_of",
    "settings_of",
    "shares_of",
]


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Terms:
    """What to fit, checked."""

    rank: int | None  # None: read off the released spectrum.
    bounds: RowBounds
    center: Array | Literal["private"] | None
    neighbours: Neighbours
    plan: MethodPlan
    private: bool  # Whether any noise is added.
    people: float | None  # How many there are, if public.
    settings: dict[str, Any]  # What a model records of the parameters.
    sizes: Mapping[str, float] | None = None  # Rows of each site or peer, if public.
    grouped: bool = False  # People may have several rows.
    person: str | None = None  # The column that names them.

    @property
    def known_rank(self) -> int:
        """The rank, where it was asked for as a number."""
        assert self.rank is not None
        return self.rank

    @property
    def unit(self) -> PrivacyUnit:
        """What every charge of this fit protects."""
        return PrivacyUnit.of(self.neighbours, grouped=self.grouped, column=self.person)

    @property
    def method(self) -> Method:
        """How directions are found."""
        return method_of(self.plan.method)

    @property
    def needs_trace(self) -> bool:
        """Whether the sum of squares is released beside the components: a Gram matrix contains it."""
        return not self.method.releases_gram

    @property
    def seeks_center(self) -> Literal["private"] | None:
        """The word for a mean that is found privately."""
        return "private" if isinstance(self.center, str) else None

    def split(self) -> Split:
        """How the budget is divided."""
        bounds = self.bounds
        return split_budget(
            mean=self.seeks_center is not None,
            search=bounds.search,
            count=self.people is None,
            trace=self.needs_trace,
            bound=bounds.finds_bound,
            units=bounds.finds_scale,
            observed=bounds.gaps is not None and bounds.gaps.divides,
        )

    def fit(self, components: Components, *, multiplier: float, **carrier: Any) -> Fit:
        """The whole fit as one task. `carrier` is what only its carrier decides, by the names of `Fit`."""
        return Fit(
            bounds=self.bounds,
            neighbours=self.neighbours,
            center=self.center,
            components=components,
            split=self.split(),
            people=self.people,
            multiplier=multiplier,
            rank=self.rank,
            needs_trace=self.needs_trace,
            sizes=self.sizes if self.people is not None else None,
            products=(self.plan.shares, self.plan.exchanges, self.method.message_size(self.bounds.dim, self.plan)),
            entry=self.method.entry_noise(self.plan),
            **carrier,
        )


_PER_COLUMN: Final = "one number per column"


def settings_of(
    requested: dict[str, Any], *, method: str, why: str, neighbours: Neighbours | None, **facts: Any
) -> dict[str, Any]:
    """The method and why, the `neighbours` of the guarantee (None for no privacy), what was `requested`, and `facts`.

    A fact replaces the parameter of that name, because it is what the fit made of it. A fact of None is unknown or means
    nothing here. It is left out, and so is the parameter.

    >>> settings_of({"rounds": 9, "align": "sign"}, method="power", why="asked for", neighbours=None, width=4, rounds=None)
    {'method': 'power', 'why': 'asked for', 'align': 'sign', 'width': 4, 'neighbours': 'none'}
    """
    first = {"method": method, "why": why}
    if neighbours is None and requested.get("center") == "private":
        # "private" would be read as a guarantee.
        requested = requested | {"center": "exact mean"}
    # Twice `first`: it comes first in the file, and no parameter may replace it.
    merged = first | requested | facts | first | {"neighbours": "none" if neighbours is None else neighbours.value}
    return {name: value for name, value in merged.items() if value is not None}


def bound_settings(
    settings: dict[str, Any], bounds: RowBounds, row_bound: float | None, units: Array | None = None
) -> dict[str, Any]:
    """Facts about the row bound and the units: those that were found privately, or None where nothing was searched for.

    Flat columns, which are not standardised, are listed by their place from zero.
    """
    if bounds.finds_bound:
        return {"row_bound": row_bound, "bound_from": "found privately"}
    if bounds.finds_scale:
        flat = list(flat_columns(bounds, units))
        # Without privacy nothing is clipped unless the caller said so.
        finite = row_bound is not None and math.isfinite(row_bound)
        return {
            "row_bound": row_bound if finite else None,
            "scale_from": "found privately" if bounds.claimed else "computed from the rows, NOT private",
            "flat_columns": flat or None,
        }
    return {"row_bound": None} if isinstance(settings.get("row_bound"), str) else {}


def asked_settings(params: Any) -> dict[str, Any]:
    """The checked parameters that a model records, by name: those that apply to the fit, except with `recorded=False`.

    Rows and identifiers of people cannot get in. A value is recorded if it is a number, a truth value or a word that the
    declaration lists. Other text, arrays and objects are recorded only if the declaration says that all values are public.

    >>> from eigenveil.params.declarations.private import PrivateParams
    >>> sorted(asked_settings(PrivateParams(5, epsilon=1.0, delta=1e-6, row_bound=2.0, person=["Ann", "Bob"])))
    ['center', 'method', 'n_components', 'neighbours', 'row_bound']
    """
    applicable = {name: (field, getattr(params, name)) for name, field in declared(type(params)).items() if field.holds(params)}
    recorded = {
        name: _public(field, value)
        for name, (field, value) in applicable.items()
        if field.param.recorded is not False and not (field.param.omit_if_default and field.at_default(value))
    }
    return {name: value for name, value in recorded.items() if value is not None}


def _public(field: Declared, value: Any) -> Any:
    """What a model records of a value, None for nothing."""
    if value is None:
        return field.param.none
    if field.param.recorded or any(_is_of(value, kind) for kind in field.kinds):
        return _plain(value)
    return _PER_COLUMN if HasArray in field.kinds and hasattr(value, "__len__") else None


def _is_of(value: Any, kind: Any) -> bool:
    """Whether a value is of a kind that cannot hold rows: a listed word, a truth value, a number, or a tuple of these."""
    inner = get_args(kind)
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in inner
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and len(value) == len(inner) and all(map(_is_of, value, inner))
    return isinstance(value, bool) if kind is bool else kind in (int, float) and not math.isnan(as_float(value))


def _plain(value: Any) -> Any:
    """A value for JSON: words, truth values, numbers and lists of these. None for anything else."""
    if isinstance(value, str | bool):
        return value
    if isinstance(value, Mapping):
        # Public levels by column.
        return {str(name): _plain(part) for name, part in value.items()} or None
    if isinstance(value, tuple | list):
        # A list of lists stays out, because a table of rows looks the same.
        parts = [_plain(part) for part in value]
        return None if any(part is None or isinstance(part, list) for part in parts) else parts
    number = as_float(value)
    # JSON has neither NaN nor infinity.
    if not math.isfinite(number):
        return None
    return int(value) if isinstance(value, Integral) else number


def masked_sites(masked: "MaskedTerms", *, apart: bool) -> MaskedSites:
    """Who sees what under these masks. Over a network the parties are `apart`."""
    gaussian = masked.lattice.gaussian
    assert gaussian is not None
    return MaskedSites(
        survivors=masked.survivors,
        colluders=masked.colluders,
        honest=masked.lattice.honest,
        noise_delta=gaussian.delta,
        failure=masked.lattice.failure,
        apart=apart,
    )


def divisor_of(people: float) -> float:
    """What sums over `people` are divided by: their number less one, as in scikit-learn."""
    # A noisy number of people may fall below 2, or below zero.
    return max(people, 2.0) - 1.0


class Result(Protocol):
    """What a fit or a stream released, in Gram units, as a model needs it."""

    @property
    def subspace(self) -> Subspace: ...
    @property
    def trace(self) -> float: ...
    @property
    def people(self) -> float: ...
    @property
    def center(self) -> Array: ...
    @property
    def units(self) -> Array | None: ...


def model_of(
    result: Result,
    *,
    verdict: FitVerdict,
    guarantee: Guarantee,
    columns: tuple[str, ...] | None,
    settings: dict[str, Any],
    clipping: Mapping[str, Array],
    estimator: Mapping[str, Any] | None = None,
) -> Model:
    """The model of a fit, from released numbers alone."""
    divisor, eigenvalues = divisor_of(result.people), np.square(result.subspace.values)
    return Model(
        components=result.subspace.basis.T,
        mean=result.center,
        values=result.subspace.values,
        explained_variance=eigenvalues / divisor,
        explained_variance_ratio=shares_of(eigenvalues, total=result.trace, noise_floor=verdict.noise_floor),
        guarantee=guarantee,
        scale=result.units,
        columns=columns,
        settings=settings | {"noise_floor": verdict.noise_floor / divisor} | released_settings(verdict),
        warnings=tuple(str(warning) for warning in verdict.warned),
        clipping=clipping,
        estimator=estimator or {},
    )


def released_settings(verdict: FitVerdict) -> dict[str, Any]:
    """What was released of the norms of rows, as a model keeps it. Norms are by the share of people with longer rows.

    >>> released_settings(FitVerdict(bound_usage=0.5, norms=(3.0,) + 14 * (0.0,)))
    {'bound_usage': 0.5, 'norms': {'0.8': 3.0}}
    """
    norms = {f"{share:g}": norm for share, norm in zip(BEYOND, verdict.norms or (), strict=False) if norm > 0}
    outliers = None if verdict.outliers is None else verdict.outliers._asdict()
    settings = {
        "bound_usage": verdict.bound_usage,
        "clipped_fraction": verdict.clipped,
        "norms": norms or None,
        "outliers": outliers,
    }
    return {name: value for name, value in settings.items() if value is not None}


def shares_of(eigenvalues: Array, *, total: float, noise_floor: float) -> Array:
    """The share of the released `total` along each component, (k,); zero for one that is not above the noise floor.

    The eigenvalues of noise add up to something too. Divided by their own sum they would look like an answer.

    >>> shares_of(np.array([6.0, 3.0, 1.0]), total=10.0, noise_floor=2.0).tolist()
    [0.6, 0.3, 0.0]
    """
    above = np.where(eigenvalues > noise_floor, eigenvalues, 0.0)
    # Noise can push the released total below the sum of the eigenvalues. A ratio above one would mean nothing.
    whole = max(total, float(above.sum()))
    shares: Array = above / whole if whole > 0 else np.zeros_like(above)
    return shares


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of a fit over sites or peers."""

    number: int
    stage: str
    answered: tuple[str, ...]
    missing: tuple[str, ...]
    bytes_down: int  # Of all links together.
    bytes_up: int  # The same. Peers have no up or down, so all of theirs are here.
    movement: float | None  # Largest sine between the directions before and after. None if not measured or not public.
    residual: float | None  # FedPower's rho_t, how far the sites were from the broadcast basis. None likewise.
    charges: tuple[Charge, ...]  # Entries of the hub's ledger or, if sites add the noise, of one site's.
    restarted: bool = False  # Sites that had been counted were gone, and the fit began again without them.
    variances: tuple[float, ...] = ()  # Along the estimate so far, summed over rows. Empty where a hub has none yet.


Watch = Callable[[Round], None]


def round_of(round_: "HubRound", *, method: str, down: int, up: int, charges: tuple[Charge, ...]) -> Round:
    """The record of a hub's round, with its bytes and its charges."""
    return Round(
        number=round_.number,
        stage=round_.stage if round_.stage != "components" else f"{method} {round_.step + 1}",
        answered=round_.answered,
        missing=round_.missing,
        bytes_down=down,
        bytes_up=up,
        movement=round_.movement,
        residual=round_.spread,
        charges=charges,
        restarted=round_.restarted,
        variances=round_.variances,
    )


class Unfinished(NamedTuple):
    """A fit that did not end: its rounds, each party's ledger, and the messages that were refused."""

    transcript: tuple[Round, ...]
    ledgers: dict[str, Ledger]
    refused: "tuple[Refusal, ...]"
