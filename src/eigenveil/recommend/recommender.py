"""`PrivateRecommender`: learns which items go together from private histories. Recommendations are made on the user's side."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, final

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Ledger
from eigenveil.core.rows import Rows, ignore_float_errors
from eigenveil.core.unit import Neighbours
from eigenveil.errors import HopelessBudget, ParameterError, ParameterWarning, ProtocolError, QuorumLost, require, require_param
from eigenveil.estimators.checks import PartiesLedger, budget_of, rank_of, seed_of, simulated_network, warn_if_weak
from eigenveil.estimators.federated.parties import FederatedSimulation, place_of_noise
from eigenveil.estimators.federated.spec import FederatedSpec, masks_of, share_of
from eigenveil.estimators.reading import Columns
from eigenveil.estimators.terms import Terms as FitTerms
from eigenveil.estimators.terms import Unfinished, Watch, asked_settings, settings_of
from eigenveil.linalg import Array
from eigenveil.methods import method_of
from eigenveil.params.declarations.recommend import RecommenderParams
from eigenveil.params.declare import parameters, validate_params
from eigenveil.params.values import Numbers
from eigenveil.protocols.star.rounds import Terms
from eigenveil.recommend.item_fit import FoundItems, ItemFit, recommender_guarantee, users_of
from eigenveil.recommend.item_space import ItemSpace
from eigenveil.recommend.plan import ASSUMED_HISTORY, ItemPlan, ItemTerms, default_delta, directions, plan_items, require_room
from eigenveil.recommend.reading import degrees_of, items_of, read_histories
from eigenveil.runtimes.local import Faults
from eigenveil.tasks.fit.bounds import RowBounds
from eigenveil.tasks.fit.task import ProtocolNoise

__all__ = ["PrivateRecommender"]

_NOTHING: Final = (
    "Nothing stands out from the noise: no direction is above the noise floor, so recommendations may be noise alone. Fit with a "
    "larger {epsilon}, with fewer {items}, or with more users."
)
_FEW: Final = "pass a list of matrices; if every user is a site, [R[[u]] for u in range(n)]"


@parameters(panel="Sites")
class PrivateRecommender(PartiesLedger, RecommenderParams, BaseEstimator):
    """Differentially private leading directions of items in users' histories, and recommendations. `fit` spends the
    budget.

    Parameters
    ----------
    n_components : int
        How many directions the filter keeps. 8 to 64 are usual, and more need more users. p in PPM, the pass band of
        the filter.
    epsilon : float or None
        How much the result may depend on one person: smaller is more private. At most 1 is strong: someone who knows
        all other rows guesses a person's presence correctly at most 55% of the time, where chance is 50%. Up to 10 is
        reasonable (82%), and more is weak. epsilon=None must be written out and gives the exact filter with no
        privacy.
    delta : float or None, default None: a tenth of one over the number of users, at most 1e-5, where that is public
        The chance that the guarantee of epsilon fails. At item level its default is 1 / (10 n d), for n users and d
        items. It is rounded down.
    random_state : int or None, default None
        A seed. Reproducible, NOT PRIVATE: anyone who knows the seed can subtract the noise. For tests only. None
        draws noise from the operating system.
    unit : "user" or "item", default 'user'
        What is protected. user: a user's whole history. item: one interaction of a user, which is far weaker. The
        latter is PPM's guarantee.
    neighbours : "zero-out", "add-remove" or "replace-one", default 'zero-out'
        For unit='user': neighbouring relation: which two tables the guarantee makes indistinguishable. With zero-out,
        one history is blank, and the number of users is public. With add-remove, one user is not there at all, and
        the number of users is private. Then delta and users_at_least are needed. With replace-one, one history is
        another. Other commands default to add-remove.
    users_at_least : int or None, default None
        For neighbours='add-remove': a number of users that you know without looking at the data, such as from a
        yearly report. The forecast is made for this many, because it may not depend on the private number. A wrong
        number makes the forecast wrong, and nothing else.
    trust : "hub", "site" or "masked", default 'hub'
        Who adds the noise. With hub it is the analyst who runs this, who sees the sums. With site it is every site,
        at sqrt(sites) times the noise. With masked it is the sites together, under masks that cancel in the sum only.
        With many sites that takes little more noise than one curator.
    survivors : int, float or None, default None: all
        For trust='masked': how many sites must be in each sum, such as 8, or which share of them, such as 0.8.
    colluders : int, default 1
        For trust='masked': how many sites may tell the hub all they know.
    quorum : int, float or None, default None: all
        How many sites must answer, or which share of them. With trust='masked' give survivors.
    items : int, list or None, default None: all of them
        Use only this many of the most popular items, by counts released for a tenth of the budget. Fewer items mean
        less noise. Or a public list of names or numbers of the items to use.
    min_degree : int, default 1
        A history is divided by the root of its number of items, and at least by the root of this. Choose it without
        looking at these histories. With unit='item' a larger one means less noise.
    item_degrees : "private", float, list, array or None, default None: none
        How popular items are, for the filter. item_degrees=None: left out. private: released for a twentieth of the
        budget. Or public numbers, one for each item. On a command line they are in a csv file whose first line is
        item,degree. Zero counts as one.
    normalise : "filter" or "both", default 'filter'
        Where item degrees are used. filter: in the filter. both: on the histories before the fit as well. The first
        is PPM (75). The second is GF-CF, for unit='user', which recommends better if the noise is small.
    method : "auto", "covariance" or "power", default 'auto'
        With covariance, one noisy matrix of all pairs of items. With power, noisy products with a few vectors, for
        very many items. With auto, covariance if it fits in memory, except with unit='item' and very many items.
    history : float or None, default None: 40
        About how many items a user has, if you know it without looking at the data. It changes the forecast, and
        nothing else.
    on_noise : "raise" or "warn", default 'raise'
        Fit even if no more than popularity and noise is expected. Otherwise that is refused before anything is spent.
        raise refuses, and warn fits.
    ledger : Ledger or None, default None
        Shared by several fits on the same people, so that their costs add up against one budget. All of the budget is
        charged with the first release, for the party that sees most.
    faults : Faults or None, default None
        What a simulated network does to messages. None carries everything.

    Attributes
    ----------
    components_, singular_values_ : arrays (p, c), (p,)
        Directions of the c items in use, and their weights; c is d unless `items` is set.
    columns_, item_degrees_, items_ : arrays (c,), (c,) or None, tuple or None
        The column numbers of the items in use; their degrees, public or released; the names of all d items.
    guarantee_, space_, plan_ : Guarantee, ItemSpace, ItemPlan
        The guarantee; all that a device needs to recommend, with `save` and `load`; the decisions and the forecast.
    noise_floor_, n_above_noise_, warnings_ : float, int, tuple of str
        Squared singular values below the floor cannot be told from noise: noise alone exceeds it in one fit of a hundred. How
        many directions are above it, and what seems wrong: empty if all is well.
    transcript_, ledgers_, refused_, unfinished_
        As in `FederatedPCA`.

    Examples
    --------
    >>> import numpy as np
    >>> R = np.kron(np.eye(2), np.ones((2000, 3)))  # Half of the users have items 0 to 2, half have items 3 to 5.
    >>> recommender = PrivateRecommender(2, epsilon=1.0, delta=1e-6, random_state=0).fit(R)
    >>> recommender.recommend([1, 0, 1, 0, 0, 0], n=1).tolist()
    [1]
    >>> recommender.guarantee_.unit
    'each user, with their whole history'
    """

    faults: Faults | None = simulated_network()

    def __init__(
        self,
        n_components: int,
        *,
        epsilon: float | None,
        delta: float | None = None,
        random_state: Any = None,
        unit: Literal["user", "item"] = "user",
        neighbours: Literal["zero-out", "add-remove", "replace-one"] = "zero-out",
        users_at_least: int | None = None,
        trust: Literal["hub", "site", "masked"] = "hub",
        survivors: int | float | None = None,
        colluders: int = 1,
        quorum: int | float | None = None,
        items: Sequence[Any] | int | None = None,
        min_degree: int = 1,
        item_degrees: Literal["private"] | Numbers | None = None,
        normalise: Literal["filter", "both"] = "filter",
        method: Literal["auto", "covariance", "power"] = "auto",
        history: float | None = None,
        on_noise: Literal["raise", "warn"] = "raise",
        ledger: Ledger | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.random_state = random_state
        self.unit = unit
        self.neighbours = neighbours
        self.users_at_least = users_at_least
        self.trust = trust
        self.survivors = survivors
        self.colluders = colluders
        self.quorum = quorum
        self.items = items
        self.min_degree = min_degree
        self.item_degrees = item_degrees
        self.normalise = normalise
        self.method = method
        self.history = history
        self.on_noise = on_noise
        self.ledger = ledger
        self.faults = faults

    @ignore_float_errors
    def fit(self, R: Any, y: Any = None, *, watch: Watch | None = None) -> "PrivateRecommender":
        """Fit on `R`, a binary matrix of users x items: sparse, dense or `Interactions`. Or a list or mapping of
        them, one per site.

        Users without interactions have no effect. Items that no user has enter the filter through the noise alone.
        `watch` is called after each round with its events. Nothing is spent until everything is checked and planned.
        """
        params = validate_params(PrivateRecommender, self)
        fit = params._prepare(R, watch)
        federation = fit.federation
        try:
            result: FoundItems = federation.run(faults=params.faults)
        except ProtocolError as error:
            federation.require_sound_sites()
            if isinstance(error, QuorumLost):
                # The error says that rounds can be resumed, but a recommender's cannot.
                error.args = (f"{error.happened}. A new fit spends a new budget; see unfinished_",)
            raise
        finally:
            # Charges and messages stay visible however the fit ended.
            self.unfinished_ = Unfinished(tuple(federation.rounds), dict(federation.ledgers), federation.refused)
        # Only a fit that did not end keeps it.
        del self.unfinished_
        return self._set_fitted_attributes(fit, result)

    @ignore_float_errors
    def recommend(self, row: Any, n: int = 20) -> Any:
        """The numbers of the `n` best new items for the user whose history is `row`, (d,), best first.

        A row of a sparse matrix may be (1, d). Several rows, (b, d), give (b, n), filled up with -1 where fewer are
        left. Show the list to that user alone. A user with none of the items gets popular ones. On a device, use
        `ItemSpace` without this class.
        """
        check_is_fitted(self, "space_")
        if sp.issparse(row) and row.shape[0] == 1 and row.ndim == 2:
            row = row.toarray()[0]
        return self.space_.top(row, n=n)

    def history_of(self, items: Sequence[Any]) -> Any:
        """The row, (1, d), of a user who has these items. A string is a name, an integer a column number."""
        check_is_fitted(self, "space_")
        return self.space_.history(items)

    def save(self, path: Any) -> None:
        """Write `space_` to a safetensors file; `eigenveil.recommend.ItemSpace.load` reads it back."""
        check_is_fitted(self, "space_")
        self.space_.save(path)

    def __sklearn_is_fitted__(self) -> bool:
        """Only a finished fit counts: an unfinished one leaves attributes too."""
        return hasattr(self, "space_")

    def _prepare(self, R: Any, watch: Watch | None) -> "_Prepared":
        """Check and plan a fit and build its parties. Nothing is spent yet."""
        self._require_sense()
        sites, dim, names = read_histories(R)
        columns, keep = items_of(self.items, dim, names)
        degrees = degrees_of(self.item_degrees, dim)
        masks = masks_of(self, len(sites), few=_FEW)
        n_kept = keep if keep is not None else dim if columns is None else len(columns)
        terms = replace(self._terms(sites, dim, n_kept, masks), chosen=keep is not None)
        plan = plan_items(terms)
        # Everything that can be refused is refused here, before a party exists that could spend.
        before = self._require_use(plan)
        require_room(plan, n_kept)
        both = self.normalise == "both"
        seed = seed_of(self.random_state)
        # The first basis is public and no privacy rests on it, so an ordinary generator will do.
        begin = np.random.default_rng(seed).standard_normal((n_kept, plan.width))

        def design(spec: FederatedSpec, setting: ProtocolNoise, start: Any) -> ItemFit:
            return ItemFit(
                dim=dim,
                min_degree=terms.min_degree,
                neighbours=terms.neighbours,
                components=directions(plan, terms, begin),
                rank=terms.rank,
                releases=(plan.shares, plan.rounds, method_of(plan.method).message_size(n_kept, plan.for_sites())),
                multiplier=setting.multiplier,
                grid=setting.grid,
                rounding=setting.rounding,
                degrees_share=plan.degrees_share,
                keep=keep,
                columns=columns,
                weights=None if not both or degrees is None else 1.0 / np.sqrt(degrees),
                weigh=both and isinstance(self.item_degrees, str),
                # With privacy, beginning again would charge the budget twice.
                begins_again=not spec.fit.private,
                claimed=spec.fit.private,
            )

        fit = FitTerms(
            rank=terms.rank,
            # A user is a row of norm at most one, around zero.
            bounds=RowBounds(
                dim=n_kept, row_bound=1.0, mean_bound=1.0, search=False, origin=None, scale=None, low=None, high=None
            ),
            center=None,
            neighbours=terms.neighbours,
            plan=plan.for_sites(),
            private=terms.budget is not None,
            people=None,
            settings=asked_settings(self),
            # Where the number of users is protected, so is how many are at each site.
            sizes={name: float(rows.shape[0]) for name, rows in sites.items()} if terms.neighbours.count_is_public else None,
            # A user is a person: all that they did is one row.
            grouped=True,
        )
        spec = FederatedSpec(
            fit=fit,
            design=design,
            at_sites=terms.budget if self.trust != "hub" else None,
            at_hub=terms.budget if self.trust == "hub" else None,
            patience=Terms(share_of("quorum", self.quorum, len(sites)) if masks is None else masks[0]),
            seed=seed,
            masks=masks,
        )
        federation = FederatedSimulation(
            spec, sites, Columns(count=dim, first=next(iter(sites))), watch=watch, ledger=self.ledger
        )
        federation.before = before
        return _Prepared(federation=federation, plan=plan, items=names, degrees=degrees)

    def _terms(self, sites: Mapping[str, Rows], dim: int, n_kept: int, masks: tuple[int, int] | None) -> ItemTerms:
        """The request in public terms, for `n_kept` of `dim` items."""
        near = Neighbours.INTERACTION if self.unit == "item" else Neighbours(self.neighbours)
        # Under add/remove the number is private: neither the plan nor the default of delta may depend on it, nor may a
        # refusal. All of them depend on the claim instead, which is public and is not compared with the number.
        count = sum(rows.shape[0] for rows in sites.values()) if near.count_is_public else None
        require(self.epsilon is None or count != 0, "there are no users to learn from")
        noise_inflation = math.sqrt(len(sites)) if self.trust == "site" else 1.0
        if masks is not None:
            # The noise counts on the survivors that do not collude. If all sites are in the sum, it has more.
            noise_inflation = math.sqrt(len(sites) / (masks[0] - masks[1]))
        return ItemTerms(
            dim=dim,
            n_kept=n_kept,
            rank=rank_of(self.n_components, n_kept),
            users=count if near.count_is_public else self.users_at_least,
            budget=self._budget(count, dim),
            neighbours=near,
            min_degree=self.min_degree,
            method=self.method,
            degrees=isinstance(self.item_degrees, str),
            history=self.history,
            noise_inflation=noise_inflation,
            fixed=self.normalise == "both" or self.neighbours != "zero-out",
        )

    def _require_sense(self) -> None:
        """Refuse settings that contradict each other."""
        # With the other relations the number of users is public, and delta has a default that follows from it.
        require_param(
            self.epsilon is None or self.delta is not None or self.neighbours != "add-remove",
            "{delta} is required with {neighbours=add-remove}, because the number of users is private. Choose well "
            "below one over it",
        )
        require_param(
            self.epsilon is None or self.neighbours != "add-remove" or self.users_at_least is not None or self.on_noise == "warn",
            "{users_at_least} is required with {neighbours=add-remove}, to say before anything is spent whether the budget is "
            "enough. The number of users is private, so pass a number that you know without looking at the data. To fit "
            "without a forecast, set {on_noise=warn}",
            on_noise="warn",
        )
        if self.normalise == "both":
            require_param(self.item_degrees is not None, "{normalise=both} needs {item_degrees}: public numbers, or 'private'")
            require_param(self.unit == "user", "{normalise=both} is for {unit=user}: the effect of one item is not bounded")

    def _budget(self, users: int | None, dim: int) -> Budget | None:
        delta = self.delta
        if self.epsilon is not None and delta is None and users is not None:
            # By the number of secrets: one for each user, or one for each pair of a user and an item.
            delta = default_delta(users * (dim if self.unit == "item" else 1))
        return budget_of(self.epsilon, delta)

    def _require_use(self, plan: ItemPlan) -> tuple[ParameterWarning, ...]:
        """Refuse a fit that would find only noise, and warn of a poor one, before anything is spent. Returns the warning."""
        expected = plan.expected
        if expected is None or expected.fair:
            return ()
        instead = "; or ".join(change.message for change in plan.advice) or "far more users"
        values = {name: value for change in plan.advice for name, value in change.change.items()}
        if self.history is None:
            # What the planner assumed and the caller may know better.
            assumed = max(ASSUMED_HISTORY, self.min_degree)
            instead += f". This assumes about {assumed} items per user. If you know better without looking, set {{history}}"
        if plan.hopeless:
            beyond = f", and {expected.beyond:.0%} of what lies beyond popularity" if self.n_components != 1 else ""
            why = (
                f"the noise at this budget would drown what histories of this many users and items usually contain: about "
                f"{expected.share:.0%} of the filter would be found{beyond}. By the same estimate, this would work: {instead}"
            )
            if self.on_noise == "raise":
                raise ParameterError(f"{why}. Nothing was spent. To fit anyway, set {{on_noise=warn}}", **values)
            warning: ParameterWarning = HopelessBudget(why, **values)
        else:
            warning = ParameterWarning(
                f"by estimate, {expected.above} of {self.n_components} directions will be above the noise. The fit will find "
                f"about {expected.share:.0%} of the filter, and {expected.beyond:.0%} of what lies beyond popularity. To find "
                f"more, use: {instead}",
                **values,
            )
        warnings.warn(warning, stacklevel=4)
        return (warning,)

    def _set_fitted_attributes(self, fit: "_Prepared", result: FoundItems) -> "PrivateRecommender":
        federation, study = fit.federation, fit.federation.study
        assert isinstance(study, ItemFit)
        columns = np.arange(study.dim) if result.columns is None else result.columns
        degrees = None if fit.degrees is None else fit.degrees[columns]
        if isinstance(self.item_degrees, str):
            degrees = result.degrees
        degrees_from = "none" if self.item_degrees is None else "given as public"
        if isinstance(self.item_degrees, str):
            degrees_from = "released"
        floor, warned = study.noise_floor(), list(federation.before)
        if floor > 0 and not (np.square(result.subspace.values) > floor).any():
            warned.append(ParameterWarning(_NOTHING))
        self.plan_ = fit.plan
        self.guarantee_ = recommender_guarantee(federation.parties, result, given_degrees=fit.degrees is not None)
        warn_if_weak(self.guarantee_, users_of(federation.parties))
        self.space_ = ItemSpace(
            components=result.subspace.basis.T,
            values=result.subspace.values,
            dim=study.dim,
            guarantee=self.guarantee_,
            columns=result.columns,
            degrees=degrees,
            items=fit.items,
            settings=settings_of(
                federation.request.fit.settings,
                method=fit.plan.method,
                why=fit.plan.reason,
                neighbours=federation.request.fit.neighbours if federation.request.fit.private else None,
                item_degrees=degrees_from,
                trust=place_of_noise(federation.request),
                survivors=None if federation.request.masks is None else federation.request.masks[0],
                width=fit.plan.width,
                rounds=len(federation.rounds),
                sites=len(federation.hub.sites),
                noise_floor=floor or None,
            ),
            warnings=tuple(str(warning) for warning in warned),
        )
        self.noise_floor_, self.n_above_noise_ = self.space_.noise_floor, self.space_.n_above_noise
        self.warnings_ = self.space_.warnings
        self.components_, self.singular_values_ = self.space_.components, self.space_.values
        self.columns_, self.item_degrees_, self.items_ = columns, degrees, fit.items
        self.n_features_in_ = study.dim
        self.transcript_, self.ledgers_ = tuple(federation.rounds), dict(federation.ledgers)
        self.refused_, self.sites_ = federation.refused, federation.hub.sites
        for warning in warned[len(federation.before) :]:
            warnings.warn(warning, stacklevel=4)
        return self


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Prepared:
    """The parties of a fit, the plan, the names of items, and their public degrees, (d,)."""

    federation: FederatedSimulation
    plan: ItemPlan
    items: tuple[str, ...] | None
    degrees: Array | None
