"""`PrivatePCA`: principal components of one sensitive table, in one line, with scikit-learn's contract."""

import warnings
from dataclasses import dataclass, field, replace
from typing import Any, Literal, final

import numpy as np
from numpy.random import Generator

from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Ledger, Reserve
from eigenveil.core.mechanism import Exact, Gaussian
from eigenveil.core.noise import Noise
from eigenveil.core.rows import Rows, ignore_float_errors
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import by_person, counts_people
from eigenveil.errors import ParameterWarning, require_param
from eigenveil.estimators.checks import SharedLedger, budget_of, center_of, covariance_for, rank_and_fraction, seed_of
from eigenveil.estimators.fitted import FittedPCA
from eigenveil.estimators.reading import people_at, read_rows, select_columns
from eigenveil.estimators.terms import Terms, asked_settings, bound_settings, settings_of
from eigenveil.estimators.verdict import FitVerdict, assess_fit, noise_floor, released_quantities, warnings_before_fit
from eigenveil.linalg import Subspace
from eigenveil.methods import TaskContext
from eigenveil.params.declarations.private import PrivateParams
from eigenveil.params.declare import parameters, validate_params
from eigenveil.params.values import Numbers, Vector
from eigenveil.plan.choose import DIVIDED, Plan, predict
from eigenveil.privacy.facts import COMPONENTS, NO_PRIVACY, GuaranteeFacts, OneHolder, Person
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.protocols.party import run_pooled
from eigenveil.tasks.fit.bounds import RowBounds
from eigenveil.tasks.fit.task import FitResult

__all__ = ["Curator", "PrivatePCA", "least_rows", "plan_of"]


@final
@dataclass(slots=True, eq=False, kw_only=True)
class Curator:
    """The budget, the ledger and the noise of one fit. Changes in place: it spends.

    Everything that leaves goes through one mechanism, which is exact without a budget. The budget is reserved on the ledger
    while the fit runs, because other fits may spend from the same ledger at the same time.
    """

    params: PrivateParams
    terms: Terms
    budget: Budget | None
    ledger: Ledger | None
    noise: Noise
    rng: Generator
    _reserve: Reserve | None = field(init=False, default=None)

    def fit(self, rows: Rows, *, names: tuple[str, ...] | None = None) -> tuple[FitResult, FitVerdict, Guarantee]:
        """Run the whole fit on `rows`. A ledger that cannot pay for all of it refuses before anything is released.

        What a fit does not spend, because it fails or ends early, is given back. The columns may have `names`.
        """
        terms, plan = self.terms, self.terms.plan
        context = TaskContext(neighbours=terms.neighbours, rank=terms.rank, private=terms.private)
        basis = terms.method.start_basis(terms.bounds.dim, plan, self.rng)
        study = terms.fit(
            terms.method.build_task(plan, basis, context), multiplier=0.0 if self.budget is None else 1.0 / self.budget.mu
        )
        before = self._early_warnings()
        for warning in before:
            # Before anything is spent, so that a caller who makes an error of it spends nothing.
            warnings.warn(warning, stacklevel=5)
        if self.budget is None or self.ledger is None:
            result = run_pooled(study, rows, Exact(because=NO_PRIVACY["fit"]))
        else:
            with self.ledger.reserve(
                self.budget.mu, label="this fit", unit=self.terms.unit, budget=self.budget, lazy=True
            ) as self._reserve:
                result = run_pooled(
                    study, rows, Gaussian(multiplier=1.0 / self.budget.mu, ledger=self._reserve, noise=self.noise)
                )
        floor = noise_floor(study, result, plan)
        if terms.rank is None:
            fraction = rank_and_fraction(self.params.n_components, terms.bounds.dim)[1]
            rank = _rank_for(result.subspace, result.trace, fraction, floor)
            result = replace(result, subspace=result.subspace.truncate(rank))
        verdict = assess_fit(
            released_quantities(study, result, floor=floor) if floor > 0 else None,
            settings=terms.settings,
            budget=self.budget,
            method=f"curator/{terms.method}",
            neighbours=terms.neighbours,
            names=names,
            before=before,
        )
        return result, verdict, self._guarantee(result)

    def _early_warnings(self) -> tuple[ParameterWarning, ...]:
        """What is to be said before anything is spent."""
        terms = self.terms
        if terms.rank is None:
            return ()
        return warnings_before_fit(
            f"curator/{terms.method}",
            dim=terms.bounds.dim,
            rank=terms.rank,
            people=terms.people,
            budget=self.budget,
            neighbours=terms.neighbours,
            center=terms.seeks_center,
            bounds=terms.bounds,
        )

    def _guarantee(self, result: FitResult) -> Guarantee:
        terms = self.terms
        if self.budget is None or self._reserve is None:
            return Guarantee.none(NO_PRIVACY["fit"])
        return GuaranteeFacts(
            budget=self.budget,
            protects=Person(grouped=terms.grouped, column=terms.person),
            neighbours=terms.neighbours,
            rows=terms.bounds.known(terms.center, norm=result.domain.radius, min_rows=least_rows(terms)),
            seen_by=OneHolder(),
            released=COMPONENTS + terms.bounds.released,
            charges=self._reserve.charges,
            reproducible=self.noise.reproducible,
            people=result.people,
        ).guarantee()


def _rank_for(subspace: Subspace, trace: float, fraction: float, floor: float) -> int:
    """The smallest rank whose released eigenvalues add up to `fraction` of the trace, among those above the noise floor."""
    eigenvalues = np.square(subspace.values)
    # Components below the floor are noise, and asking for a larger fraction must not bring them in.
    above = int((eigenvalues > floor).sum())
    if trace <= 0:
        # Nothing stands out, and the cost of learning that is spent. One direction, with a variance that says so.
        return 1
    # A hair below the fraction counts: rounding must not cost a component.
    enough = np.flatnonzero(np.cumsum(eigenvalues) >= fraction * trace * (1 - 1e-12))
    wanted = int(enough[0]) + 1 if len(enough) else subspace.rank
    return max(1, min(wanted, above)) if floor > 0 else max(1, wanted)


def plan_of(params: PrivateParams, *, rank: int | None, dim: int, budget: Budget | None, people: float | None) -> Plan:
    """The plan of a fit, from public numbers alone, so that what is chosen reveals nothing. `people`: if that is public."""
    plan = predict(
        dim=dim,
        # With a fraction the rank is not known yet. 32 is a guess, for the plan alone.
        rank=rank or min(dim, 32),
        budget=budget,
        method=covariance_for(params.missing, params.method, dim),
        neighbours=Neighbours(params.neighbours),
        people=None if people is None else round(people),
        oversample=params.oversample,
        rounds=params.rounds,
    )
    return replace(plan, why=DIVIDED, is_explicit=False) if params.missing in ("counts", "groups") else plan


def least_rows(terms: Terms) -> int:
    """Fewer rows are refused, which reveals that there are fewer, so the guarantee states this minimum as public."""
    return max(2, terms.rank or 2)


@parameters(panel="Privacy")
class PrivatePCA(SharedLedger, PrivateParams, FittedPCA):
    """Principal components with (epsilon, delta)-differential privacy for each person. Changes in place: `fit` spends.

    Parameters
    ----------
    n_components : int, float or None
        How many components. Or a fraction such as 0.9, for as many as explain that share of the variance. The share
        is read off the released spectrum. None means all.
    epsilon : float or None
        How much the result may depend on one person: smaller is more private. At most 1 is strong: someone who knows
        all other rows guesses a person's presence correctly at most 55% of the time, where chance is 50%. Up to 10 is
        reasonable (82%), and more is weak. epsilon=None must be written out and gives exact PCA with no privacy.
    delta : float or None, default None
        The chance that the guarantee of epsilon fails. Choose it well below one over the number of people.
    row_bound : float, "private" or None, default 'private'
        Norm that rows are clipped to, around the mean. private estimates it with about 10% of the budget. A number
        must not come from the data. With column_bounds nothing is searched for.
    column_bounds : (low, high) or None, default None
        Entries are clipped to this range. One of the two bounds is enough, and with both, both hold. Low and high are
        each a number, or one per column.
    center : "private", list, array or None, default 'private'
        private: find the mean, for a tenth to a quarter of the budget. center=None: leave rows where they are. Or
        public numbers, one per column.
    origin : float, list, array or None, default None: zero, or the middle of the column bounds
        Where to look for the mean: one number, or one per column.
    mean_bound : float or None, default None: found in up to three steps
        How far from the origin rows may lie while the mean is found.
    scale : "private", float, list, array or None, default None
        Units: columns are divided by this before norms are taken and bounded. private: find the spread of each
        column, for a quarter of the budget. Or public numbers, one or one per column. Use private where columns have
        different units, such as years and euros, and None where they are alike. With private, rows are clipped to the
        root of the number of columns in these units, and no row bound is searched for. With epsilon=None the spread
        is the exact standard deviation, and nothing is clipped.
    quantile : float or None, default None: chosen for the best answer
        If a row bound is found privately: the share of people whose rows are not to be clipped, from 0.01 to below 1.
        Where noise hides the few people beyond it, a lower share is used.
    missing : "refuse", "counts", "groups", "drop" or "fill", default 'refuse'
        Missing values. refuse: they are an error. counts: count privately how many entries each column has, for 4% of
        the budget, and divide by that. groups: the same for groups of columns. drop: leave incomplete rows out. fill:
        put public values there. Whichever you choose is public, and holds whether or not there are any. With counts
        and groups a missing entry is put at the center, where it adds nothing, and sums are divided by released
        counts of what is there. With drop the number of rows that are left is private. Infinite values are always
        refused.
    missing_groups : str, list of lists or None, default None
        For missing='groups': columns that are missing together, such as the items of a questionnaire: names or
        patterns with commas, and a semicolon between groups. Or a list of lists. Other columns are groups of their
        own. If a row lacks one column of a group, all of the group counts as missing in that row.
    missing_fill : float, list or None, default None
        For missing='fill': the public value that takes the place of missing ones: one number, or one per column. You
        must know it without looking at these rows: a mean of them would leak them.
    random_state : int or None, default None
        A seed. Reproducible, NOT PRIVATE: anyone who knows the seed can subtract the noise. For tests only. None
        draws noise from the operating system.
    neighbours : "add-remove", "zero-out" or "replace-one", default 'add-remove'
        Neighbouring relation: which two tables the guarantee makes indistinguishable, add-remove, zero-out or
        replace-one. The last two declare the number of people public.
    person : str, array of n or None, default None
        The column that says whose row it is. A person with several rows then counts as one row, and all of them are
        protected together. Without it each row counts as a separate person. The column is then left out; or give one
        identifier per row. Every row must name a person: what is missing, blank or a placeholder such as "NA" is
        refused (`eigenveil.data.people`).
    whiten : bool, default False
        Divide scores by the root of the explained variance, so that every component has variance 1. As in scikit-
        learn's PCA. It costs nothing.
    columns : list of str or None, default None: all
        The columns by name, or by patterns such as lab_*; others are not analysed. A list, for a table with column
        names. Components list the columns in this order.
    drop : list of str or None, default None
        Leave these columns out: names, or patterns such as *_note. A list, for a table with column names.
    one_hot : dict of lists or None, default None
        Make a column of 0 and 1 for each of these public levels of a column of text. A value that is not listed, or
        is missing, is 0 in all of them. For example {"sex": ["f", "m"]}. You must know the levels without looking at
        these rows. A row gets at most a single 1, so that its norm grows by at most 1.
    method : "auto", "covariance" or "power", default 'auto'
        covariance: one noisy covariance, best while it fits in memory. power: noisy products with a few vectors.
        auto: covariance where it fits in memory.
    oversample : int or None, default None: planned
        For power: how many vectors beyond the components.
    rounds : int or None, default None: planned
        For power: how many rounds of noisy products.
    ledger : Ledger or None, default None
        Shared by several fits on the same people, so that their costs add up against one budget.

    Attributes
    ----------
    components_, mean_, explained_variance_, explained_variance_ratio_, singular_values_, n_components_, n_features_in_
        As in scikit-learn's PCA, from released numbers only.
    subspace_, guarantee_, ledger_, plan_, model_
        The components as a `Subspace`, the guarantee, what was charged, the method and its reason, and what `save` writes.
    noise_floor_, n_above_noise_ : float, int
        Explained variances below this cannot be told from noise: noise alone exceeds it in one fit of a hundred. And how many
        components are above it. The others have an `explained_variance_ratio_` of zero.
    noise_variance_ : float
        The average variance outside the components, as in scikit-learn's PCA. It is not the noise of privacy.
    observed_fraction_ : array or None
        Where values may be missing: the share of people who have each column, as released.
    bound_usage_, clipped_fraction_ : float or None
        The mean squared norm of the clipped rows over the squared row bound, as released. None without privacy. And about how
        many people have rows beyond the bound, as a share, if it was found privately.
    warnings_ : tuple of str
        What seems wrong, from released numbers, and what mends it. Empty if all is well. Each is also a Python warning.

    Notes
    -----
    `transform`, `score` and `score_samples` of the fitted rows are raw data of those people, and the guarantee does not cover
    them. Choosing parameters by their scores on private rows, as a grid search does, is a release that nothing here charges for.
    `get_covariance` and `get_precision` are computed from released numbers, and cost nothing.

    Examples
    --------
    >>> import numpy as np
    >>> rows = np.random.default_rng(0).standard_normal((2000, 4)) * [9, 3, 1, 1]
    >>> pca = PrivatePCA(1, epsilon=2.0, delta=1e-6, row_bound=12.0, random_state=0).fit(rows)
    >>> bool(abs(pca.components_[0, 0]) > 0.99)
    True
    >>> pca.transform(rows).shape
    (2000, 1)
    """

    def __init__(
        self,
        n_components: int | float | None,
        *,
        epsilon: float | None,
        delta: float | None = None,
        row_bound: float | Literal["private"] | None = "private",
        column_bounds: Any = None,
        center: Literal["private"] | Vector | None = "private",
        origin: Numbers | None = None,
        mean_bound: float | None = None,
        scale: Literal["private"] | Numbers | None = None,
        quantile: float | None = None,
        missing: Literal["refuse", "counts", "groups", "drop", "fill"] = "refuse",
        missing_groups: Any = None,
        missing_fill: Any = None,
        random_state: Any = None,
        neighbours: Literal["add-remove", "zero-out", "replace-one"] = "add-remove",
        person: Any = None,
        whiten: bool = False,
        columns: Any = None,
        drop: Any = None,
        one_hot: Any = None,
        method: str = "auto",
        oversample: int | None = None,
        rounds: int | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.row_bound = row_bound
        self.column_bounds = column_bounds
        self.center = center
        self.origin = origin
        self.mean_bound = mean_bound
        self.scale = scale
        self.quantile = quantile
        self.missing = missing
        self.missing_groups = missing_groups
        self.missing_fill = missing_fill
        self.random_state = random_state
        self.neighbours = neighbours
        self.person = person
        self.whiten = whiten
        self.columns = columns
        self.drop = drop
        self.one_hot = one_hot
        self.method = method
        self.oversample = oversample
        self.rounds = rounds
        self.ledger = ledger

    @ignore_float_errors
    def fit(self, X: Any, y: Any = None) -> "PrivatePCA":
        """Fit on rows `X`, (n, d): an array, a sparse matrix, a pandas, polars or pyarrow table, or `Rows`."""
        params = validate_params(PrivatePCA, self)
        # Before rows are read: a wrong budget is refused at once.
        budget = budget_of(params.epsilon, params.delta)
        X, person = select_columns(X, params, fitting=True)
        rows = read_rows(self, X, reset=True, ensure_min_samples=2, ensure_min_features=2)
        if person is not None:
            rows = by_person(rows, person)
        plan, terms = self._planned(params, rows, budget)
        _require_rows(rows, terms)
        ledger = params.ledger
        if budget is not None and ledger is None:
            ledger = Ledger(epsilon=budget.epsilon, delta=budget.delta)
        # Noise and the first basis come from different sources: the basis is public, the noise must not be.
        seed = seed_of(params.random_state)
        curator = Curator(
            params=params,
            terms=terms,
            budget=budget,
            ledger=ledger,
            noise=Noise.fresh() if seed is None else Noise.seeded(seed),
            rng=np.random.default_rng(seed),
        )
        result, verdict, guarantee = curator.fit(rows, names=self._names())
        # Results are set together, after the fit: one that fails leaves those of the fit before it.
        self.ledger_ = ledger
        self.plan_ = plan
        settings = settings_of(
            terms.settings,
            method=terms.plan.method,
            why=plan.reason,
            neighbours=terms.neighbours if terms.private else None,
            width=terms.plan.width,
            rounds=len(terms.plan.shares),
            **bound_settings(terms.settings, terms.bounds, result.domain.radius, result.units),
        )
        self._set_fitted_attributes(result, verdict=verdict, guarantee=guarantee, settings=settings)
        self._warn(verdict)
        return self

    def _planned(self, params: "PrivatePCA", rows: Rows, budget: Budget | None) -> tuple[Plan, Terms]:
        dim, near, grouped = rows.shape[1], Neighbours(params.neighbours), counts_people(rows)
        rank, _ = rank_and_fraction(params.n_components, dim)
        if params.n_components is None and budget is None:
            # Exact PCA has no more directions than rows. With privacy that number must not show.
            rank = max(1, min(rows.shape))
        bounds = RowBounds.of(params, dim, private=budget is not None, sparse=rows.sparse, names=self._names())
        people = None
        # Where incomplete rows are dropped, only reading tells who counts.
        if params.missing != "drop" and (budget is None or near.count_is_public):
            people = people_at(rows)
        plan = plan_of(params, rank=rank, dim=dim, budget=budget, people=people)
        return plan, Terms(
            rank=rank,
            bounds=bounds,
            center=center_of(params.center, dim),
            neighbours=near,
            plan=plan.chosen.plan,
            private=budget is not None,
            people=people,
            settings=asked_settings(params),
            grouped=grouped,
            person=params.person if isinstance(params.person, str) else None,
        )


def _require_rows(rows: Rows, terms: Terms) -> None:
    count, dim = rows.shape
    require_param(dim >= 2, "{X} has 1 feature(s), and principal components need at least 2 columns")
    require_param(count >= 2, f"{{X}} has {count} sample(s), and principal components need at least 2 rows")
    rank = terms.rank or 1
    # No number in the message: how many rows there are may be private.
    min_rows = least_rows(terms) if terms.private else rank
    require_param(count >= min_rows, "{X} has fewer rows than {n_components=}. Ask for fewer components", n_components=rank)
