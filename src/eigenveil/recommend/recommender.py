"""`PrivateRecommender`: items that go together, learned from histories that nobody shares; recommendations on the user's side."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, final

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from eigenveil.errors import ProtocolError, QuorumLost, require
from eigenveil.estimators.checks import budget_of, is_real, rank_of, require_integer, require_one_of, seed_of
from eigenveil.estimators.federated_request import SitesRequest
from eigenveil.estimators.federated_rules import masks_of
from eigenveil.estimators.federated_terms import share_of
from eigenveil.estimators.federation import Federation
from eigenveil.estimators.rounds import Unfinished, Watch
from eigenveil.estimators.settings import place_of_noise, settings_of
from eigenveil.estimators.sites import Columns
from eigenveil.linalg import Array
from eigenveil.privacy import Budget, Neighbours
from eigenveil.protocols import Terms
from eigenveil.recommend.fitting import default_delta, directions, require_room
from eigenveil.recommend.given import degrees_of, items_of, read_histories
from eigenveil.recommend.item_space import ItemSpace
from eigenveil.recommend.item_study import FoundItems, ItemStudy
from eigenveil.recommend.plan import ASSUMED_HISTORY, ItemPlan, ItemTerms, plan_items
from eigenveil.recommend.promise import recommender_promise
from eigenveil.rows import Rows, in_silence
from eigenveil.runtimes import Faults
from eigenveil.tasks.fit.task import Setting

__all__ = ["PrivateRecommender"]

_FEW: Final = "give a list of matrices; where every user is one, [R[[u]] for u in range(n)]"


class PrivateRecommender(BaseEstimator):
    """The leading directions of items in users' histories, differentially private, and what they recommend. `fit` spends.

    Parameters
    ----------
    n_components : int
        How many directions: p in PPM, the pass band of the filter.
    epsilon, delta : float
        The budget of one fit. `epsilon=None` must be written out and gives the exact filter with no privacy. `delta=None` is
        1 / (10 n), rounded down and at most 1e-5, where the number n of users is public; at item level 1 / (10 n d).
    unit : "user" or "item"
        What is protected: a user's whole history, or one interaction of a user with an item, PPM's weaker promise.
    min_degree : int
        Histories are divided by the root of how many items they have, but at least of this. You must know it without looking;
        a larger one makes single items count for less, which at item level is less noise.
    item_degrees : None, array of d or "private"
        How popular items are, for the filter's normalisation: left out, public numbers (zero counts as one), or released for a
        share of the budget.
    normalise : "filter" or "both"
        Where item degrees are used: in the filter alone, as in PPM (75), or to weigh items in histories too, as in GF-CF, which
        recommends better where much is found. The latter is for unit="user".
    items : None, list or int
        Which items to use: all, a public list of names or numbers, or the so many most popular by private counts.
    trust : "curator", "site" or "masked"
        Who adds the noise where histories are at many sites: the hub, which sees raw sums; every site; or the sites together
        under masks, where the hub sees nothing but the noisy sum.
    mechanism : "auto", "covariance" or "power"
        One noisy matrix of all pairs of items, or noisy products with a block of vectors, which never needs that matrix.
    neighbours : "zero-out", "add-remove" or "replace-one"
        At unit="user": the history is blanked, and the number of users is public; the user is not there, and the number is
        protected, so that nobody can say beforehand whether the budget will do; or the history is another one.
    survivors, colluders : int or float in (0, 1], int
        With trust="masked", as in `FederatedPCA`.
    quorum : None, int or float in (0, 1]
        How many sites must answer; None is all. With trust="masked" give survivors.
    on_noise : "raise" or "warn"
        What to do where the planner expects nothing but noise. Nothing has been spent then.
    history : float
        About how many items a user has, if you know it without looking. For what the planner expects alone.
    faults : Faults
        What a simulated network does to mail. None carries everything.
    random_state : None or int
        None draws noise from the operating system. A seed makes the fit reproducible and not private.

    Attributes
    ----------
    components_, singular_values_ : arrays (p, c), (p,)
        Directions of the c items in use, and their weight; c is d unless `items` says otherwise.
    columns_, item_degrees_, items_ : arrays (c,), (c,) or None, tuple or None
        The numbers of the items in use; their degrees as public or released; the names of all d items.
    guarantee_, space_, plan_ : Guarantee, ItemSpace, ItemPlan
        The promise; all that a device needs to recommend, with `save` and `load`; what was decided and what to expect.
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

    def __init__(
        self,
        n_components: int,
        *,
        epsilon: float | None,
        delta: float | None = None,
        unit: Literal["user", "item"] = "user",
        min_degree: int = 1,
        item_degrees: ArrayLike | Literal["private"] | None = None,
        normalise: Literal["filter", "both"] = "filter",
        items: Sequence[Any] | int | None = None,
        trust: Literal["curator", "site", "masked"] = "curator",
        mechanism: Literal["auto", "covariance", "power"] = "auto",
        neighbours: Literal["zero-out", "add-remove", "replace-one"] = "zero-out",
        survivors: int | float | None = None,
        colluders: int = 1,
        quorum: int | float | None = None,
        on_noise: Literal["raise", "warn"] = "raise",
        history: float | None = None,
        faults: Faults | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.unit = unit
        self.min_degree = min_degree
        self.item_degrees = item_degrees
        self.normalise = normalise
        self.items = items
        self.trust = trust
        self.mechanism = mechanism
        self.neighbours = neighbours
        self.survivors = survivors
        self.colluders = colluders
        self.quorum = quorum
        self.on_noise = on_noise
        self.history = history
        self.faults = faults
        self.random_state = random_state

    @in_silence
    def fit(self, R: Any, y: Any = None, *, watch: Watch | None = None) -> "PrivateRecommender":
        """Fit on `R`, users x items of zeros and ones, sparse, dense or `Interactions`; or a list or mapping of such, one a site.

        Users without interactions count for nothing, and to items that nobody has the filter is indifferent, but for the noise.
        `watch` is called after each round with what happened in it. Nothing is spent before all is checked and planned.
        """
        fit = self._prepare(R, watch)
        federation = fit.federation
        try:
            found: FoundItems = federation.run(faults=self.faults)
        except ProtocolError as error:
            federation.require_sound_sites()
            if isinstance(error, QuorumLost):
                # It says that turns can be resumed, which a recommender's cannot.
                error.args = (f"{str(error).partition('. Turns before it')[0]}. A new fit pays anew; see unfinished_",)
            raise
        finally:
            # What was spent and said is there to be seen, however it ended.
            self.unfinished_ = Unfinished(tuple(federation.rounds), dict(federation.ledgers), federation.refused)
        del self.unfinished_
        return self._show(fit, found)

    @in_silence
    def recommend(self, row: Any, n: int = 20) -> Any:
        """The numbers of the `n` best items for the user whose history is `row`, (d,), best first, without those already there.

        A row of a sparse matrix may be (1, d). Several rows, (b, d), give (b, n), filled up with -1 where fewer are left. The
        answer is for that user alone. Who has none of the items gets popular ones; see `ItemSpace` for that, and for what a
        device does without this class.
        """
        check_is_fitted(self, "space_")
        if sp.issparse(row) and row.shape[0] == 1 and row.ndim == 2:
            row = row.toarray()[0]
        return self.space_.top(row, n=n)

    def history_of(self, items: Sequence[Any]) -> Any:
        """The row, (1, d), of a user who has these items: a string is a name, an integer the number of a column."""
        check_is_fitted(self, "space_")
        return self.space_.history(items)

    def save(self, path: Any) -> None:
        """Write `space_` to a safetensors file; `eigenveil.recommend.ItemSpace.load` reads it back."""
        check_is_fitted(self, "space_")
        self.space_.save(path)

    def __sklearn_is_fitted__(self) -> bool:
        """What is known of a fit that did not end is no fit."""
        return hasattr(self, "space_")

    def _prepare(self, R: Any, watch: Watch | None) -> "_Prepared":
        """The parties of a fit, checked, planned and ready. Nothing is spent yet."""
        self._require_words()
        sites, dim, names = read_histories(R)
        columns, keep = items_of(self.items, dim, names)
        degrees = degrees_of(self.item_degrees, dim)
        masks = masks_of(self, len(sites), few=_FEW)
        kept = keep if keep is not None else dim if columns is None else len(columns)
        terms = replace(self._terms(sites, dim, kept, masks), chosen=keep is not None)
        plan = plan_items(terms)
        self._require_use(plan)
        require_room(plan, kept)
        both = self.normalise == "both"
        seed = seed_of(self.random_state)
        begin = np.random.default_rng(seed).standard_normal((kept, plan.width))

        def design(request: SitesRequest, setting: Setting, start: Any) -> ItemStudy:
            return ItemStudy(
                dim=dim,
                least=terms.least,
                neighbours=request.neighbours,
                components=directions(plan, terms, begin),
                rank=terms.rank,
                releases=(
                    plan.shares,
                    plan.turns,
                    kept * (kept + 1) // 2 if plan.method == "covariance" else kept * plan.width,
                ),
                multiplier=setting.multiplier,
                grid=setting.grid,
                rounding=setting.rounding,
                degrees_share=plan.degrees_share,
                keep=keep,
                columns=columns,
                weights=None if not both or degrees is None else 1.0 / np.sqrt(degrees),
                weigh=both and isinstance(self.item_degrees, str),
                begins_again=not request.private,
                claimed=request.private,
            )

        request = SitesRequest(
            design=design,
            neighbours=terms.neighbours,
            plan=plan.for_sites(),
            at_sites=terms.budget if self.trust != "curator" else None,
            at_hub=terms.budget if self.trust == "curator" else None,
            terms=Terms(share_of("quorum", self.quorum, len(sites)) if masks is None else masks[0]),
            sizes={name: float(rows.shape[0]) for name, rows in sites.items()} if terms.users is not None else None,
            seed=seed,
            masks=masks,
        )
        federation = Federation(request, sites, Columns(dim, next(iter(sites))), watch=watch)
        return _Prepared(federation, plan, names, degrees)

    def _terms(self, sites: Mapping[str, Rows], dim: int, kept: int, masks: tuple[int, int] | None) -> ItemTerms:
        """What is asked for, in public terms, of `kept` of `dim` items."""
        near = Neighbours.INTERACTION if self.unit == "item" else Neighbours(self.neighbours)
        users = sum(rows.shape[0] for rows in sites.values()) if near.count_is_public else None
        require(self.epsilon is None or users != 0, "there are no users to learn from")
        return ItemTerms(
            dim=dim,
            kept=kept,
            rank=rank_of(self.n_components, kept),
            users=users,
            budget=self._budget(users, dim),
            neighbours=near,
            least=int(self.min_degree),
            mechanism=self.mechanism,
            degrees=isinstance(self.item_degrees, str),
            history=None if self.history is None else float(self.history),
            louder=self._louder(len(sites), masks),
            fixed=self.normalise == "both" or self.neighbours != "zero-out",
        )

    def _require_words(self) -> None:
        require_one_of("unit", self.unit, ("user", "item"))
        require_one_of("trust", self.trust, ("curator", "site", "masked"))
        require_one_of("mechanism", self.mechanism, ("auto", "covariance", "power"))
        require_one_of("neighbours", self.neighbours, ("zero-out", "add-remove", "replace-one"))
        require_one_of("normalise", self.normalise, ("filter", "both"))
        if self.normalise == "both":
            require(self.item_degrees is not None, "normalise='both' needs item_degrees: public numbers, or 'private'")
            require(self.unit == "user", "normalise='both' is for unit='user': what one item moves is not bounded")
        require_one_of("on_noise", self.on_noise, ("raise", "warn"))
        require(
            self.unit == "user" or self.neighbours == "zero-out",
            f"neighbours is for unit='user': at item level one interaction differs; got {self.neighbours!r}",
        )
        require_integer("min_degree", self.min_degree, least=1, most=10**9, optional=False)
        long = self.history is None or (is_real(self.history) and 0 < float(self.history) < 1e12)
        require(long, f"history must be None or a positive number of items, got {self.history!r}")
        require(self.faults is None or isinstance(self.faults, Faults), "faults must be an eigenveil.runtimes.Faults")

    def _budget(self, users: int | None, dim: int) -> Budget | None:
        if self.epsilon is not None and self.delta is None and users is not None:
            return budget_of(self.epsilon, default_delta(users * (dim if self.unit == "item" else 1)))
        return budget_of(self.epsilon, self.delta)

    def _require_use(self, plan: ItemPlan) -> None:
        """Say, before anything is spent, where a fit would be of noise or of little else."""
        expected = plan.expected
        if expected is None or expected.fair:
            return
        instead = "; or ".join(plan.advice) if plan.advice else "nothing that is tried here: far more users"
        if plan.hopeless:
            why = (
                f"the noise this budget asks for hides what histories of so many users and items usually hold: about "
                f"{expected.share:.0%} of the filter would be found, at best {expected.at_best:.0%}. What would do, as far as "
                f"can be told beforehand: {instead}{self._assumed()}"
            )
            if self.on_noise == "raise":
                raise ValueError(f"{why}. Nothing was spent; on_noise='warn' goes on all the same")
            warnings.warn(why, UserWarning, stacklevel=4)
            return
        warnings.warn(
            f"about {expected.above} of {self.n_components} directions will stand above the noise, {expected.share:.0%} of the "
            f"filter be found, and {expected.beyond:.0%} of what lies beyond popularity, as far as can be told beforehand. More "
            f"would need: {instead}{self._assumed()}",
            UserWarning,
            stacklevel=4,
        )

    def _assumed(self) -> str:
        """What the planner took for granted that the caller may know better."""
        if self.history is not None:
            return ""
        taken = max(ASSUMED_HISTORY, int(self.min_degree))
        return (
            f". This takes a user to have {taken} items or so; if you know better without looking, say it with history="
        )

    def _louder(self, count: int, masks: tuple[int, int] | None) -> float:
        """How many times a curator's noise there is on a sum, if all sites are in it."""
        if self.trust == "site":
            return math.sqrt(count)
        return 1.0 if masks is None else math.sqrt(count / (masks[0] - masks[1]))

    def _show(self, fit: "_Prepared", found: FoundItems) -> "PrivateRecommender":
        federation, study = fit.federation, fit.federation.study
        assert isinstance(study, ItemStudy)
        columns = np.arange(study.dim) if found.columns is None else found.columns
        degrees = None if fit.degrees is None else fit.degrees[columns]
        if isinstance(self.item_degrees, str):
            degrees = found.degrees
        self.plan_ = fit.plan
        self.guarantee_ = recommender_promise(federation.parties, found, given_degrees=fit.degrees is not None)
        self.space_ = ItemSpace(
            components=found.subspace.basis.T,
            values=found.subspace.values,
            dim=study.dim,
            guarantee=self.guarantee_,
            columns=found.columns,
            degrees=degrees,
            items=fit.items,
            settings=settings_of(
                mechanism=fit.plan.method,
                why=fit.plan.reason,
                neighbours=federation.request.neighbours if federation.request.private else None,
                unit=self.unit,
                item_degrees=self._degrees_in_words(),
                normalise=self.normalise,
                trust=place_of_noise(federation.request),
                min_degree=int(self.min_degree),
                width=fit.plan.width,
                rounds=len(federation.rounds),
                sites=len(federation.hub.sites),
            ),
        )
        self.components_, self.singular_values_ = self.space_.components, self.space_.values
        self.columns_, self.item_degrees_, self.items_ = columns, degrees, fit.items
        self.n_features_in_ = study.dim
        self.transcript_, self.ledgers_ = tuple(federation.rounds), dict(federation.ledgers)
        self.refused_, self.sites_ = federation.refused, federation.hub.sites
        return self

    def _degrees_in_words(self) -> str:
        if self.item_degrees is None:
            return "none"
        return "released" if isinstance(self.item_degrees, str) else "given as public"


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Prepared:
    """The parties of a fit, the plan, the names of items and their public degrees, (d,)."""

    federation: Federation
    plan: ItemPlan
    items: tuple[str, ...] | None
    degrees: Array | None
