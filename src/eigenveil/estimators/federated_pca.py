"""`FederatedPCA`: principal components of rows that stay at their sites, around a hub or in a tree."""

import math
import numbers
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from eigenveil.errors import QuorumLost, require
from eigenveil.estimators.bounds import RowBounds
from eigenveil.estimators.checks import budget_of, center_of, is_real, rank_of, require_integer, require_one_of, seed_of
from eigenveil.estimators.curator import noise_floor
from eigenveil.estimators.federated_promise import federated_promise
from eigenveil.estimators.federation import Federation, Participation, SitesRequest, Watch
from eigenveil.estimators.fitted import FittedPCA, column_names, read_rows, without_person
from eigenveil.estimators.study import Found
from eigenveil.linalg import Array
from eigenveil.plan_sites import SitesPlan, plan_sites
from eigenveil.privacy import Budget, Neighbours, bounded_count
from eigenveil.protocols import Terms
from eigenveil.rows import Rows, WeightedRows, counts_people
from eigenveil.runtimes import Faults

__all__ = ["FederatedPCA"]

_METHODS = ("auto", "krylov", "power", "fedpower", "covariance", "merge", "uda", "wda", "dr-svd")
_AVERAGES = ("merge", "uda", "wda")


class FederatedPCA(FittedPCA):
    """Principal components of rows at many sites, none of which leaves its site. Changes in place: `fit` spends.

    Parameters
    ----------
    n_components : int
        How many components.
    epsilon, delta : float
        The budget of one fit. `epsilon=None` must be written out and gives exact PCA with no privacy. With trust="both" a pair:
        against the hub, and against everybody else.
    row_bound : float
        No row may be longer than this around the mean; longer ones are scaled down. You must know it without looking.
    column_bounds : (low, high)
        Each a number or one per column: entries are cut to it. Either bound suffices; with both, both hold.
    method : "auto", "krylov", "power", "fedpower", "covariance", "merge", "uda", "wda" or "dr-svd"
        Without privacy "auto" is "krylov"; with it, one noisy covariance while that fits in memory, else noisy products.
    topology, fanout : "star" or "tree", int
        Every site talks to the hub, or at most `fanout` to each node of a tree.
    trust : "curator", "site" or "both"
        Who adds the noise: the hub, which then sees raw parts; every site, against a hub that is not trusted; or both.
    rounds, tolerance : int, float
        For krylov, power and fedpower: the most rounds, which the budget is reserved for, and the largest sine at which to stop.
    oversample : int
        Directions beyond n_components that are carried along.
    local_steps : int, list of int or ("decay", int)
        For fedpower: power steps at a site between two rounds. With epsilon each is charged, and sites must add the noise.
    align : "procrustes", "sign" or "none"
        For fedpower: how sites turn their products towards the last broadcast basis.
    participation : "full", ("with-replacement", K) or ("without-replacement", K)
        For power and fedpower: everybody in each round, or K drawn by size (scheme 1) or evenly (scheme 2).
    quorum : None, int or float in (0, 1]
        How many sites must answer, or which share of them; None is all. Sites that do not answer are left out from there on.
    center : "private", True, None or array of d
        The mean over all sites, found privately where there is a budget; none; or public numbers. Never a site's own mean.
    origin, mean_bound, scale
        As in `PrivatePCA`: where to look for the mean, and public units.
    neighbours : "add-remove", "zero-out" or "replace-one"
        Which tables must be hard to tell apart. The last two declare the number of people at each site public.
    person : str
        The column, at every site, that says whose row it is. A person's rows at one site are averaged.
    person_sites : int
        At how many sites one person's rows may be.
    calibration : "exact" or "paper"
        Noise by exact accounting, or as FedPower prints it, with nothing promised: for comparison.
    faults : Faults
        What a simulated network does to mail. None carries everything.
    random_state : None or int
        None draws noise from the operating system. A seed makes the fit reproducible and not private.

    Attributes
    ----------
    components_, mean_, explained_variance_, explained_variance_ratio_, singular_values_, n_components_, n_features_in_
        As in scikit-learn's PCA, from released numbers only.
    subspace_, guarantee_, model_, noise_floor_
        As in `PrivatePCA`.
    transcript_ : tuple of Round
        Each round: who answered, bytes up and down, how far the answer moved, FedPower's residual, charges.
    plan_, sites_, ledgers_, refused_, tied_
        What was decided and why; the sites that count; what each place was charged; mail that was refused; whether other
        directions have an equal claim, as where the variances k and k + 1 are equal.

    Examples
    --------
    >>> import numpy as np
    >>> rows = np.random.default_rng(0).standard_normal((600, 6)) * [9, 5, 3, 1, 1, 1]
    >>> pca = FederatedPCA(2, epsilon=None, random_state=0).fit(np.array_split(rows, 4))
    >>> abs(pca.components_ @ np.eye(6)).argmax(axis=1).tolist(), len(pca.sites_)
    ([0, 1], 4)
    >>> pca.scores(rows[:10]).shape
    (10, 2)
    """

    def __init__(
        self,
        n_components: int,
        *,
        epsilon: Any,
        delta: Any = None,
        row_bound: float | None = None,
        column_bounds: Any = None,
        method: str = "auto",
        topology: Literal["star", "tree"] = "star",
        fanout: int = 8,
        trust: Literal["curator", "site", "both"] = "curator",
        rounds: int | None = None,
        tolerance: float | None = None,
        oversample: int | None = None,
        local_steps: Any = 1,
        align: Literal["procrustes", "sign", "none"] = "procrustes",
        participation: Any = "full",
        quorum: int | float | None = None,
        center: Literal["private"] | bool | ArrayLike | None = "private",
        origin: ArrayLike | None = None,
        mean_bound: float | None = None,
        scale: ArrayLike | None = None,
        neighbours: Literal["add-remove", "zero-out", "replace-one"] = "add-remove",
        person: str | None = None,
        person_sites: int = 1,
        calibration: Literal["exact", "paper"] = "exact",
        faults: Faults | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.row_bound = row_bound
        self.column_bounds = column_bounds
        self.method = method
        self.topology = topology
        self.fanout = fanout
        self.trust = trust
        self.rounds = rounds
        self.tolerance = tolerance
        self.oversample = oversample
        self.local_steps = local_steps
        self.align = align
        self.participation = participation
        self.quorum = quorum
        self.center = center
        self.origin = origin
        self.mean_bound = mean_bound
        self.scale = scale
        self.neighbours = neighbours
        self.person = person
        self.person_sites = person_sites
        self.calibration = calibration
        self.faults = faults
        self.random_state = random_state

    def fit(self, sites: Any, y: Any = None, *, watch: Watch | None = None) -> "FederatedPCA":
        """Fit on the rows of `sites`: a list, or a mapping of names, of arrays, sparse matrices, tables or `Rows`.

        `watch` is called after each round with what happened in it. Where too few sites answer, a `QuorumLost` names the missing
        ones, and `resume` goes on from there.
        """
        budgets = self._budgets()
        rows = self._read_sites(sites)
        request = self._request(rows, *budgets)
        return self._run(Federation(request, rows, watch=watch), resume=False)

    def resume(self, sites: Mapping[str, Any] | None = None) -> "FederatedPCA":
        """Go on after a `QuorumLost`. `sites` gives the rows of sites that have come back; nobody pays twice for an answer."""
        federation: Federation | None = getattr(self, "_federation", None)
        if federation is None:
            raise ValueError("there is nothing to resume: no fit has lost its quorum")
        for name, X in (sites or {}).items():
            federation.repair(name, self._read_site(name, X, reset=False))
        return self._run(federation, resume=True)

    def scores(self, site: Any) -> Array:
        """The scores, (n, k), of one site's rows, computed where the rows are. Raw data: they stay with the site."""
        check_is_fitted(self)
        return self.transform(site)

    def _run(self, federation: Federation, *, resume: bool) -> "FederatedPCA":
        self.__dict__.pop("_federation", None)
        try:
            found = federation.run(faults=self.faults, resume=resume)
        except QuorumLost:
            # Rows are held on to for this alone.
            self._federation = federation
            raise
        return self._finish(federation, found)

    def _finish(self, federation: Federation, found: Found) -> "FederatedPCA":
        request, plan = federation.request, federation.request.plan
        self.plan_ = plan
        self.sites_ = federation.hub.sites
        self.transcript_ = tuple(federation.rounds)
        self.ledgers_ = dict(federation.ledgers)
        self.refused_ = federation.refused
        self.tied_ = found.tied
        self._show(
            found.subspace,
            trace=found.trace,
            people=found.people,
            center=found.center,
            noise_floor=noise_floor(found, plan.method, width=plan.width, last=plan.shares[-1]),
            guarantee=federated_promise(federation, found),
            scale=request.bounds.scale,
            settings=self._settings(plan),
        )
        if found.tied:
            warnings.warn(
                f"components {request.rank} and {request.rank + 1} have equal variance, so the answer is not the only one",
                UserWarning,
                stacklevel=3,
            )
        return self

    def _settings(self, plan: SitesPlan) -> dict[str, Any]:
        return {
            "mechanism": plan.method,
            "why": plan.reason,
            "trust": self.trust if self.epsilon is not None else "none",
            "topology": self.topology if self.topology == "star" else f"tree of fan-out {self.fanout}",
            "sites": len(self.sites_),
            "rounds": len(self.transcript_),
            "bytes": sum(r.bytes_down + r.bytes_up for r in self.transcript_),
            "neighbours": self.neighbours,
            "calibration": self.calibration,
            "width": plan.width,
        }

    def _budgets(self) -> tuple[Budget | None, Budget | None]:
        """The budgets at the sites and at the hub, None where no noise is added."""
        require_one_of("trust", self.trust, ("curator", "site", "both"))
        require_one_of("method", self.method, _METHODS)
        if self.epsilon is None:
            require(self.calibration == "exact", "calibration='paper' needs an epsilon")
            return None, None
        if self.trust != "both":
            require(is_real(self.epsilon), f"epsilon must be a number with trust={self.trust!r}, got {self.epsilon!r}")
            budget = budget_of(self.epsilon, self.delta)
            # One person moves a site's directions by more than any bound we know: only the matrix can be covered.
            at_site = self.trust == "site" or self.method in _AVERAGES
            return (budget, None) if at_site else (None, budget)
        both = isinstance(self.epsilon, Sequence) and not isinstance(self.epsilon, str) and len(self.epsilon) == 2
        require(
            both, f"epsilon must be a pair with trust='both': against the hub, and against others; got {self.epsilon!r}"
        )
        deltas = self.delta if isinstance(self.delta, Sequence) else (self.delta, self.delta)
        require(len(deltas) == 2, f"delta must be a number or a pair with trust='both', got {self.delta!r}")
        require(self.method not in _AVERAGES, f"method={self.method!r} adds noise at the sites only: take trust='site'")
        first, second = (budget_of(e, d) for e, d in zip(self.epsilon, deltas, strict=True))
        return first, second

    def _request(self, sites: Mapping[str, Rows], at_sites: Budget | None, at_hub: Budget | None) -> SitesRequest:
        require_one_of("topology", self.topology, ("star", "tree"))
        require_one_of("align", self.align, ("procrustes", "sign", "none"))
        require_one_of("neighbours", self.neighbours, ("add-remove", "zero-out", "replace-one"))
        require_one_of("calibration", self.calibration, ("exact", "paper"))
        require_integer("fanout", self.fanout, least=2, optional=False)
        require_integer("rounds", self.rounds, least=1, most=10_000)
        require_integer("oversample", self.oversample, least=0)
        require_integer("person_sites", self.person_sites, least=1, most=max(1, len(sites)), optional=False)
        require(self.faults is None or isinstance(self.faults, Faults), "faults must be an eigenveil.runtimes.Faults")
        private, published = at_sites is not None or at_hub is not None, self.calibration == "paper"
        dim = next(iter(sites.values())).shape[1]
        rank, near = rank_of(self.n_components, dim), Neighbours(self.neighbours)
        budget = at_sites if at_sites is not None else at_hub
        plan = plan_sites(
            dim=dim,
            rank=rank,
            budget=budget,
            method="fedpower" if published and self.method == "auto" else self.method,  # type: ignore[arg-type]
            neighbours=near,
            rounds=self.rounds,
            tolerance=_tolerance(self.tolerance),
            oversample=self.oversample,
            local_steps=_local_steps(self.local_steps),
            equal_shares=published,
        )
        participation = _participation(self.participation, len(sites))
        self._require_legal(plan, participation, at_sites, at_hub, private=private)
        center = self._center_given(dim)
        sparse = any(rows.sparse for rows in sites.values())
        public = not private or near.count_is_public or published
        sizes = {name: _people(rows) for name, rows in sites.items()} if public else None
        if not private and sizes is not None:
            total = sum(sizes.values())
            require(dim >= 2, "sites have 1 column, and principal components need at least 2")
            require(total >= 2, f"the sites have {total:g} rows together, and principal components need at least 2")
            require(
                total >= rank, f"all sites together have fewer rows than n_components={rank}; ask for fewer components"
            )
        return SitesRequest(
            rank=rank,
            bounds=RowBounds.check(
                dim,
                private=private and not published,
                row_bound=self.row_bound,
                column_bounds=self.column_bounds,
                origin=self.origin,
                mean_bound=self.mean_bound,
                scale=self.scale,
                sparse=sparse,
            ),
            center=center,
            neighbours=near,
            plan=plan,
            at_sites=at_sites,
            at_hub=at_hub,
            published=published,
            fanout=int(self.fanout) if self.topology == "tree" else None,
            align=self.align,
            participation=participation,
            terms=Terms(quorum=_quorum(self.quorum, len(sites))),
            person_sites=int(self.person_sites),
            grouped=any(counts_people(rows) for rows in sites.values()),
            # Without privacy the number is gathered like any other sum: the hub has no rows to count.
            people=sum(sizes.values()) if sizes is not None and private else None,
            sizes=sizes,
            seed=seed_of(self.random_state),
        )

    def _require_legal(
        self,
        plan: SitesPlan,
        participation: Participation | None,
        at_sites: Budget | None,
        at_hub: Budget | None,
        *,
        private: bool,
    ) -> None:
        """Refuse what no guarantee could be kept for, or what has no meaning."""
        method, published = plan.method, self.calibration == "paper"
        several = method == "fedpower" and max(plan.steps) > 1
        require(
            not (private and method == "dr-svd"), "method='dr-svd' has no private form; take 'auto', or epsilon=None"
        )
        require(
            not (several and at_hub is not None and not published),
            f"local_steps > 1 with epsilon and trust={self.trust!r}: rows are read in local steps that noise at the hub does not "
            "cover; take trust='site', which charges every local step, or local_steps=1",
        )
        require(
            not published or method == "fedpower", f"calibration='paper' is FedPower's, and the method is {method!r}"
        )
        require(
            not published or not (self.center is True or isinstance(self.center, str)),
            "calibration='paper' has no private mean: give center=None, or public numbers",
        )
        require(
            participation is None or method in ("power", "fedpower"),
            f"participation is for power and fedpower: {method} needs the same sites in every round",
        )
        require(participation is None or self.topology == "star", "participation is for a star: give topology='star'")
        require(
            self.topology == "star" or method not in ("uda", "wda"),
            f"method={method!r} averages at the hub: give topology='star', or method='merge' for a tree",
        )
        by_size = participation is not None and participation[0] == "with-replacement"
        require(
            not (by_size and private and not published) or Neighbours(self.neighbours).count_is_public,
            "participation='with-replacement' draws sites by size, which neighbours='add-remove' protects: take "
            "'without-replacement', or neighbours that declare sizes public",
        )

    def _center_given(self, dim: int) -> Any:
        if self.center is True:
            return "private"
        require(self.center is not False, "center must be 'private', True, None or numbers, got False")
        return center_of(self.center, dim)

    def _read_sites(self, sites: Any) -> dict[str, Rows]:
        require(
            isinstance(sites, Mapping | Sequence) and not isinstance(sites, str | bytes),
            f"sites must be a list, or a mapping of names, of tables with the same columns, got {type(sites).__name__}",
        )
        named = dict(sites) if isinstance(sites, Mapping) else {f"site {i}": X for i, X in enumerate(sites)}
        require(len(named) > 0, "there must be at least one site, got none")
        require(all(isinstance(name, str) for name in named), "names of sites must be text")
        rows: dict[str, Rows] = {}
        first: tuple[str, list[Any]] | None = None
        for name, X in named.items():
            columns = column_names(X)
            columns = None if columns is None else [column for column in columns if column != self.person]
            if columns is not None and first is not None:
                _require_columns(name, columns, *first)
            rows[name] = self._read_site(name, X, reset=not rows or (columns is not None and first is None))
            if columns is not None and first is None:
                first = (name, columns)
        return rows

    def _read_site(self, name: str, X: Any, *, reset: bool) -> Rows:
        """One site's rows, checked; the error names the site and no value."""
        before = getattr(self, "n_features_in_", None) if not reset else None
        try:
            X, ids = without_person(X, self.person, fitting=True)
            with warnings.catch_warnings():
                # That one site has names and another has none is no concern: those that have them are compared.
                warnings.filterwarnings("ignore", message=".*feature names", category=UserWarning)
                rows = read_rows(self, X, reset=reset, ensure_min_samples=0, ensure_min_features=1)
            if before is not None and rows.shape[1] != before:
                raise ValueError(f"it has {rows.shape[1]} columns, and the sites before it have {before}")
            if ids is not None:
                require(len(ids) == rows.shape[0], "person must name as many people as there are rows")
                rows = WeightedRows.by_person(rows, ids)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{name}: {error}") from None
        return rows


def _require_columns(name: str, columns: list[Any], first: str, expected: list[Any]) -> None:
    if columns == expected:
        return
    if sorted(map(str, columns)) == sorted(map(str, expected)):
        raise ValueError(f"{name}: the columns are those of {first} in another order; bring them into the same order")
    extra = [str(column) for column in columns if column not in expected]
    lacking = [str(column) for column in expected if column not in columns]
    raise ValueError(
        f"{name}: the columns are not those of {first}: it lacks {lacking[:5]} and has {extra[:5]} in addition"
    )


def _people(rows: Rows) -> float:
    """The number of people, where that is public."""
    if not counts_people(rows):
        return float(rows.shape[0])
    return float(round(float(bounded_count(rows, neighbours=Neighbours.ZERO_OUT).value)))


def _tolerance(value: Any) -> float | None:
    if value is None:
        return None
    require(is_real(value) and 0 <= float(value) < 1, f"tolerance must lie in [0, 1), got {value!r}")
    return float(value)


def _local_steps(value: Any) -> Any:
    """A number, a list of numbers, or ("decay", number)."""
    listed = isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0
    numbers_in = list(value)[1:] if listed and value[0] == "decay" else list(value) if listed else [value]
    good = len(numbers_in) > 0 and all(
        is_real(n) and isinstance(n, numbers.Integral) and 1 <= int(n) <= 1000 for n in numbers_in
    )
    good = good and not (listed and value[0] == "decay" and len(numbers_in) != 1)
    require(good, f"local_steps must be a whole number from 1, a list of them, or ('decay', number), got {value!r}")
    return tuple(value) if listed else int(value)


def _participation(value: Any, sites: int) -> Participation | None:
    if isinstance(value, str) and value == "full":
        return None
    words = "participation must be 'full', ('with-replacement', K) or ('without-replacement', K)"
    require(isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2, f"{words}, got {value!r}")
    scheme, count = value
    require(scheme in ("with-replacement", "without-replacement"), f"{words}, got {value!r}")
    most = sites if scheme == "without-replacement" else 10**6
    good = is_real(count) and isinstance(count, numbers.Integral) and 1 <= int(count) <= most
    require(good, f"participation must draw from 1 to {most} of the {sites} sites, got {count!r}")
    return scheme, int(count)


def _quorum(value: Any, sites: int) -> int | None:
    if value is None:
        return None
    require(is_real(value), f"quorum must be None, a number of sites or a share of them, got {value!r}")
    if isinstance(value, numbers.Integral):
        require(1 <= int(value) <= sites, f"quorum must be from 1 to the {sites} sites, got {value!r}")
        return int(value)
    require(0 < float(value) <= 1, f"quorum as a share must lie in (0, 1], got {value!r}")
    return max(1, math.ceil(float(value) * sites))
