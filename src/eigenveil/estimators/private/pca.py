"""`PrivatePCA`: principal components of one sensitive table, in one line, with scikit-learn's contract."""

from typing import Any

import numpy as np

from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Ledger
from eigenveil.core.noise import Noise
from eigenveil.core.rows import Rows, in_silence
from eigenveil.core.unit import Neighbours
from eigenveil.data.elsewhere import by_person
from eigenveil.data.rows import counts_people
from eigenveil.errors import require_param
from eigenveil.estimators.checks import SharedLedger, budget_of, center_of, rank_and_fraction, seed_of
from eigenveil.estimators.fitted import FittedPCA
from eigenveil.estimators.private.curator import Curator, curator_settings, least_rows, plan_of
from eigenveil.estimators.reading import chosen, read_rows
from eigenveil.estimators.settings import asked_settings
from eigenveil.estimators.sites import people_at
from eigenveil.estimators.terms import Terms
from eigenveil.params import PrivateParams, checked, parameters
from eigenveil.plan import Plan
from eigenveil.tasks.fit.bounds import RowBounds

__all__ = ["PrivatePCA"]


@parameters(panel="Privacy")
class PrivatePCA(SharedLedger, PrivateParams, FittedPCA):
    """Principal components with (epsilon, delta)-differential privacy for each person. Changes in place: `fit` spends.

    Parameters
    ----------
    n_components : int, float or None
        How many components. Or a fraction such as 0.9, for as many as explain that share of the variance. The share
        is read off the released spectrum. None means all.
    epsilon : float or None
        How much the result may depend on one person: smaller is more private. At most 1 is strong: a guess whether a
        person is in the data is right about 55% of the time at best, where chance is 50%. Up to 10 is reasonable (82%
        at 10), and more is weak. epsilon=None must be written out and gives exact PCA with no privacy.
    delta : float or None, default None
        The chance that the guarantee of epsilon fails. Choose it well below one over the number of people.
    row_bound : float, "private" or None, default 'private'
        Rows are clipped to this norm around the mean. private: find a good one, for about a tenth of the budget. Or a
        number that you know without looking at the data. With column_bounds nothing is searched for.
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
        For missing='groups': columns that are missing together, such as those of a questionnaire: names or patterns
        with commas, and a semicolon between groups. Or a list of lists. Other columns are groups of their own. If a
        row lacks one column of a group, all of the group counts as missing in that row.
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
        identifier per row. Every row must name somebody: what is missing, blank or a placeholder such as "NA" is
        refused (`eigenveil.data.people`).
    whiten : bool, default False
        Divide scores by the root of the explained variance, so that every component has variance 1. As in scikit-
        learn's PCA. It costs nothing.
    columns : list of str or None, default None: all
        The columns by name, or by patterns such as lab_*; others are not analysed. A list, for a table with column
        names. Its order is that of the components.
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
    calibration : "exact" or "paper", default 'exact'
        exact: noise by exact accounting. paper: as published, which is more than needed. The papers are FPCA (17) and
        PPM Alg. 1, for comparison.
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
    observed_ : array or None
        Where values may be missing: the share of people who have each column, as released.
    fill_, clipped_ : float or None
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

    @in_silence
    def fit(self, X: Any, y: Any = None) -> "PrivatePCA":
        """Fit on rows `X`, (n, d): an array, a sparse matrix, a pandas, polars or pyarrow table, or `Rows`."""
        asked = checked(PrivatePCA, self)
        # Before rows are read: a wrong budget is refused at once.
        budget = budget_of(asked.epsilon, asked.delta)
        X, person = chosen(X, asked, fitting=True)
        rows = read_rows(self, X, reset=True, ensure_min_samples=2, ensure_min_features=2)
        if person is not None:
            rows = by_person(rows, person)
        plan, terms = self._planned(asked, rows, budget)
        _require_rows(rows, terms)
        ledger = asked.ledger
        if budget is not None and ledger is None:
            ledger = Ledger(epsilon=budget.epsilon, delta=budget.delta)
        # Noise and the first basis come from different sources: the basis is public, the noise must not be.
        noise, rng = _randomness(asked.random_state)
        found = Curator(params=asked, terms=terms, budget=budget, ledger=ledger, noise=noise, rng=rng).fit(
            rows, names=self._names()
        )
        # Results are set together, after the fit: one that fails leaves those of the fit before it.
        self.ledger_ = ledger
        self.plan_ = plan
        self._show(
            found.subspace,
            trace=found.trace,
            people=found.count,
            center=found.center,
            gram=found.gram,
            verdict=found.verdict,
            guarantee=found.guarantee,
            scale=found.scale,
            observed=found.rates,
            domain=found.domain,
            settings=curator_settings(terms, plan, row_bound=found.domain.radius, scale=found.scale),
        )
        self._warn(found.verdict)
        return self

    def _planned(self, asked: "PrivatePCA", rows: Rows, budget: Budget | None) -> tuple[Plan, Terms]:
        dim, near, grouped = rows.shape[1], Neighbours(asked.neighbours), counts_people(rows)
        rank, _ = rank_and_fraction(asked.n_components, dim)
        if asked.n_components is None and budget is None:
            # Exact PCA has no more directions than rows. With privacy that number must not show.
            rank = max(1, min(rows.shape))
        bounds = RowBounds.of(asked, dim, private=budget is not None, sparse=rows.sparse, names=self._names())
        people = None
        # Where incomplete rows are dropped, only reading tells who counts.
        if asked.missing != "drop" and (budget is None or near.count_is_public):
            people = people_at(rows)
        plan = plan_of(asked, rank=rank, dim=dim, budget=budget, people=people)
        return plan, Terms(
            rank=rank,
            bounds=bounds,
            center=center_of(asked.center, dim),
            neighbours=near,
            plan=plan.chosen.plan,
            private=budget is not None,
            people=people,
            settings=asked_settings(asked),
            grouped=grouped,
            person=asked.person if isinstance(asked.person, str) else None,
        )


def _randomness(random_state: Any) -> tuple[Noise, np.random.Generator]:
    seed = seed_of(random_state)
    if seed is None:
        return Noise.fresh(), np.random.default_rng()
    return Noise.seeded(seed), np.random.default_rng(seed)


def _require_rows(rows: Rows, terms: Terms) -> None:
    count, dim = rows.shape
    require_param(dim >= 2, "{X} has 1 feature(s), and principal components need at least 2 columns")
    require_param(count >= 2, f"{{X}} has {count} sample(s), and principal components need at least 2 rows")
    rank = terms.rank or 1
    # No number in the message: how many rows there are may be private.
    least = least_rows(terms) if terms.private else rank
    require_param(
        count >= least, "{X} has fewer rows than {n_components=}. Ask for fewer components", n_components=rank
    )
