"""`PrivatePCA`: principal components of one sensitive table, in one line, with scikit-learn's contract."""

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from eigenveil.errors import require
from eigenveil.estimators.checks import (
    budget_of,
    center_of,
    rank_and_fraction,
    require_integer,
    require_one_of,
    seed_of,
)
from eigenveil.estimators.curator import Curator, Request
from eigenveil.estimators.fitted import FittedPCA, read_rows, without_person
from eigenveil.estimators.settings import curator_settings
from eigenveil.privacy import Ledger, Neighbours, Noise
from eigenveil.rows import Rows, WeightedRows, counts_people, in_silence
from eigenveil.tasks.fit.bounds import RowBounds

__all__ = ["PrivatePCA"]

_NEIGHBOURS = ("add-remove", "zero-out", "replace-one")


class PrivatePCA(FittedPCA):
    """Principal components with (epsilon, delta)-differential privacy for each person. Changes in place: `fit` spends.

    Parameters
    ----------
    n_components : int, float in (0, 1) or None
        How many components, or how much of the variance (read off the released spectrum), or all.
    epsilon, delta : float
        The budget of one fit. `epsilon=None` must be written out and gives exact PCA with no privacy.
    row_bound : float
        No row may be longer than this around the mean; longer ones are scaled down. You must know it without looking.
    column_bounds : (low, high)
        Each a number or one per column: entries are cut to it. Either bound suffices; with both, both hold.
    mechanism : "auto", "covariance" or "power"
        One noisy Gram matrix (best while d x d fits in memory), or noisy products with a block of vectors.
    center : "private", None or array of d
        Find the mean privately (a tenth to a quarter of the budget), do not center, or center on public numbers.
    origin, mean_bound : array of d, float
        Where to look for the mean: rows are cut to `mean_bound` around `origin` (default zero, or the middle of the box).
        By default the ball has radius `row_bound` and moves towards the mean, in up to three steps.
    scale : float or array of d
        Public units: columns are divided by it before `row_bound` and `mean_bound` apply.
    oversample, iterations : int
        For "power": vectors beyond n_components, and products.
    neighbours : "add-remove", "zero-out" or "replace-one"
        Which tables must be hard to tell apart. The last two declare the number of people public.
    person : str or array of n
        Whose row each one is: the name of a column (which is then left out), or one identifier per row.
        The rows of one person are averaged, in sums and in products: a person counts once. Every row must name
        somebody: what is missing, blank or a placeholder such as "NA" is refused (`eigenveil.people`).
    calibration : "exact" or "paper"
        Noise by exact accounting, or as published in FPCA (17) and PPM Alg. 1, for comparison.
    ledger : Ledger
        Shared by several fits on the same people, so that their costs add up against one budget.
    random_state : None or int
        None draws noise from the operating system. A seed makes the fit reproducible and not private.

    Attributes
    ----------
    components_, mean_, explained_variance_, explained_variance_ratio_, singular_values_, n_components_, n_features_in_
        As in scikit-learn's PCA, from released numbers only.
    subspace_, guarantee_, ledger_, plan_, model_
        The components as a `Subspace`, the promise, what was charged, why this mechanism, and what `save` writes.
    noise_floor_ : float
        Explained variances below this cannot be told from noise.

    Notes
    -----
    `transform` of the rows that were fitted is raw data of those people: the guarantee does not cover it. Choosing
    parameters by looking at scores on private rows (a grid search, say) is a release that nothing here charges for.

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
        row_bound: float | None = None,
        column_bounds: Any = None,
        mechanism: Literal["auto", "covariance", "power"] = "auto",
        center: Literal["private"] | ArrayLike | None = "private",
        origin: ArrayLike | None = None,
        mean_bound: float | None = None,
        scale: ArrayLike | None = None,
        oversample: int | None = None,
        iterations: int | None = None,
        neighbours: Literal["add-remove", "zero-out", "replace-one"] = "add-remove",
        person: Any = None,
        calibration: Literal["exact", "paper"] = "exact",
        ledger: Ledger | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.row_bound = row_bound
        self.column_bounds = column_bounds
        self.mechanism = mechanism
        self.center = center
        self.origin = origin
        self.mean_bound = mean_bound
        self.scale = scale
        self.oversample = oversample
        self.iterations = iterations
        self.neighbours = neighbours
        self.person = person
        self.calibration = calibration
        self.ledger = ledger
        self.random_state = random_state

    @in_silence
    def fit(self, X: Any, y: Any = None) -> "PrivatePCA":
        """Fit on rows `X`, (n, d): an array, a sparse matrix, a pandas, polars or pyarrow table, or `Rows`."""
        budget = budget_of(self.epsilon, self.delta)
        X, person = without_person(X, self.person, fitting=True)
        rows = read_rows(self, X, reset=True, ensure_min_samples=2, ensure_min_features=2)
        if person is not None:
            rows = WeightedRows.by_person(rows, person)
        request = self._request(rows, private=budget is not None)
        _require_rows(rows, request, private=budget is not None)
        ledger = None if budget is None else self.ledger
        if budget is not None and ledger is None:
            ledger = Ledger(epsilon=budget.epsilon, delta=budget.delta)
        noise, rng = self._randomness()
        found = Curator(request, budget, ledger, noise, rng).fit(rows)
        self.ledger_ = ledger
        self.plan_ = found.plan
        self._show(
            found.subspace,
            trace=found.trace,
            people=found.count,
            center=found.center,
            noise_floor=found.noise_floor,
            guarantee=found.guarantee,
            scale=request.bounds.scale,
            settings=curator_settings(request, found.plan, private=budget is not None),
        )
        return self

    def _request(self, rows: Rows, *, private: bool) -> Request:
        dim = rows.shape[1]
        require_one_of("mechanism", self.mechanism, ("auto", "covariance", "power"))
        require_one_of("neighbours", self.neighbours, _NEIGHBOURS)
        require_one_of("calibration", self.calibration, ("exact", "paper"))
        require(self.ledger is None or isinstance(self.ledger, Ledger), "ledger must be an eigenveil.Ledger")
        require_integer("oversample", self.oversample, least=0)
        require_integer("iterations", self.iterations, least=1, most=200)
        rank, fraction = rank_and_fraction(self.n_components, dim)
        if self.n_components is None and not private:
            rank = max(1, min(rows.shape))
        return Request(
            rank=rank,
            fraction=fraction,
            bounds=RowBounds.check(
                dim,
                private=private,
                row_bound=self.row_bound,
                column_bounds=self.column_bounds,
                origin=self.origin,
                mean_bound=self.mean_bound,
                scale=self.scale,
                sparse=rows.sparse,
            ),
            center=center_of(self.center, dim),
            neighbours=Neighbours(self.neighbours),
            mechanism=self.mechanism,
            calibration=self.calibration,
            oversample=None if self.oversample is None else int(self.oversample),
            iterations=None if self.iterations is None else int(self.iterations),
            grouped=counts_people(rows),
            least_rows=max(2, rank or 2),
        )

    def _randomness(self) -> tuple[Noise, np.random.Generator]:
        seed = seed_of(self.random_state)
        if seed is None:
            return Noise.fresh(), np.random.default_rng()
        return Noise.seeded(seed), np.random.default_rng(seed)


def _require_rows(rows: Rows, request: Request, *, private: bool) -> None:
    count, dim = rows.shape
    require(dim >= 2, "X has 1 feature(s), and principal components need at least 2 columns")
    require(count >= 2, f"X has {count} sample(s), and principal components need at least 2 rows")
    rank = request.rank or 1
    # The number itself stays out of the message: beyond the public minimum it may be private.
    least = request.least_rows if private else rank
    require(count >= least, f"X has fewer rows than n_components={rank}; ask for fewer components")
