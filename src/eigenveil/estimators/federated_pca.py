"""`FederatedPCA`: principal components of rows that stay at their sites, around a hub or in a tree."""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from eigenveil.errors import ProtocolError, require
from eigenveil.estimators.federated_asking import budgets_of, request_of
from eigenveil.estimators.federated_masks import masked_room
from eigenveil.estimators.federated_promise import federated_promise
from eigenveil.estimators.federated_request import SitesRequest
from eigenveil.estimators.federation import Federation
from eigenveil.estimators.fitted import FittedPCA
from eigenveil.estimators.rounds import Unfinished, Watch
from eigenveil.estimators.settings import sites_settings
from eigenveil.estimators.sites import Held, read_site, read_sites
from eigenveil.linalg import Array
from eigenveil.rows import in_silence
from eigenveil.runtimes import Faults
from eigenveil.tasks.fit.task import Found, Study

__all__ = ["FederatedPCA"]

# Room for this many people at a site is enough not to speak of it.
_MANY = 1_000_000


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
        No row may be longer than this around the mean; longer ones are scaled down. You must know it without looking. A site that
        gives a `Symmetric` vouches for it: nobody can scale down a person in a matrix.
    column_bounds : (low, high)
        Each a number or one per column: entries are cut to it. Either bound suffices; with both, both hold.
    method : "auto", "krylov", "power", "fedpower", "covariance", "merge", "uda", "wda" or "dr-svd"
        Without privacy "auto" is "krylov"; with it, one noisy covariance while that fits in memory, else noisy products.
    topology, fanout : "star" or "tree", int
        Every site talks to the hub, or at most `fanout` to each node of a tree.
    trust : "curator", "site", "both" or "masked"
        Who adds the noise: the hub, which then sees raw parts; every site, against a hub that is not trusted; both; or the sites
        together, a share each, under masks: the hub sees nothing but the noisy sum, which is as good as a curator's. For
        krylov, power, covariance and dr-svd in a star.
    survivors, colluders : int or float in (0, 1], int
        With trust="masked": how many sites must be in each sum, or which share of them (None: all), and how many of
        them may tell the hub all they know. Noise is for the others; with fewer survivors a turn is not unmasked.
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
    deadline, retries : float, int
        For how many seconds the hub waits before it asks again, and how often it does. Simulated time here.
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
    plan_, sites_, ledgers_, refused_
        What was decided and why; the sites that count; what each place was charged; mail that was refused.
    unfinished_ : Unfinished
        After a fit that did not end, and until one does: its `transcript`, `ledgers` and `refused`. What was charged stays
        charged. The attributes of a fit before it are still that one's.
    tied_, converged_
        Whether other directions have an equal claim, as where the variances k and k + 1 are equal (krylov and covariance look);
        whether more rounds would change the answer by no more than the tolerance. None where nobody looked.

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

    # The rows and keys of a fit that was interrupted: a copy can be fitted, and not resumed.
    _own = ("_federation",)

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
        trust: Literal["curator", "site", "both", "masked"] = "curator",
        survivors: int | float | None = None,
        colluders: int = 1,
        rounds: int | None = None,
        tolerance: float | None = None,
        oversample: int | None = None,
        local_steps: Any = 1,
        align: Literal["procrustes", "sign", "none"] = "procrustes",
        participation: Any = "full",
        quorum: int | float | None = None,
        deadline: float = 30.0,
        retries: int = 4,
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
        self.survivors = survivors
        self.colluders = colluders
        self.rounds = rounds
        self.tolerance = tolerance
        self.oversample = oversample
        self.local_steps = local_steps
        self.align = align
        self.participation = participation
        self.quorum = quorum
        self.deadline = deadline
        self.retries = retries
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

    @in_silence
    def fit(self, sites: Any, y: Any = None, *, watch: Watch | None = None) -> "FederatedPCA":
        """Fit on the rows of `sites`: a list, or a mapping of names, of arrays, sparse matrices, tables or `Rows`.

        With center=None any of them may be an `eigenveil.Symmetric`: a matrix in place of rows.

        `watch` is called after each round with what happened in it. Where too few sites answer, a `QuorumLost` names the missing
        ones, and `resume` goes on from there.
        """
        return self._run(self.prepare(sites, watch=watch), resume=False)

    def prepare(self, sites: Any, *, watch: Watch | None = None) -> Federation:
        """The parties of a fit on `sites`, checked and ready, for who runs them other than `fit` does. Nothing is spent yet."""
        budgets_of(self)
        rows, columns = read_sites(self, sites)
        federation = Federation(request_of(self, Held.of(rows)), rows, columns, watch=watch)
        terms = federation.masked
        room = math.inf if terms is None else masked_room(terms, federation.study)
        if room < _MANY:
            warnings.warn(
                f"masked sums of this size have room for {room:.0f} people at one site, all at the bound and alike; with more, a "
                "sum may be clipped, which costs accuracy. Fewer columns, or a smaller epsilon, have more room",
                UserWarning,
                stacklevel=3,
            )
        return federation

    def request_for(
        self, *, dim: int, sites: Sequence[str], sizes: Mapping[str, float] | None = None, grouped: bool = False
    ) -> SitesRequest:
        """What a fit over these `sites` is asked for, before anybody has rows: for who runs its parties apart from each other.

        `sizes` is how many people each site has, where that is public; `grouped` says that a column names them.
        """
        return request_of(self, Held.declared(dim, sites, sizes=sizes, grouped=grouped))

    @in_silence
    def resume(self, sites: Mapping[str, Any] | None = None) -> "FederatedPCA":
        """Go on after a lost quorum. `sites` gives rows of sites that have been put right; nobody pays twice for an answer.

        Under masks a turn goes on where it stopped. If it came to nothing after parts were charged, because a site lied, a fit
        without a budget asks anew, and one with a budget is over: the rest would not pay for it.
        """
        federation: Federation | None = getattr(self, "_federation", None)
        if federation is None:
            raise ValueError("there is nothing to resume: no fit has lost its quorum")
        require(sites is None or isinstance(sites, Mapping), "sites must be a mapping of names to tables, or None")
        for name, X in (sites or {}).items():
            federation.repair(name, read_site(self, name, X, federation.columns)[0])
        return self._run(federation, resume=True)

    def scores(self, site: Any) -> Array:
        """The scores, (n, k), of one site's rows, computed where the rows are. Raw data: they stay with the site."""
        check_is_fitted(self)
        return self.transform(site)

    def _run(self, federation: Federation, *, resume: bool) -> "FederatedPCA":
        self.__dict__.pop("_federation", None)
        try:
            found = federation.run(faults=self.faults, resume=resume)
        except ProtocolError:
            # Rows are held on to for this alone.
            self._federation = federation
            # Where a site broke, the reason is what broke it, and not that it did not answer.
            federation.require_sound_sites()
            raise
        finally:
            # What was spent and said is there to be seen, however it ended.
            self.unfinished_ = Unfinished(tuple(federation.rounds), dict(federation.ledgers), federation.refused)
        return self._finish(federation, found)

    def __sklearn_is_fitted__(self) -> bool:
        """What is known of a fit that did not end is no fit."""
        return hasattr(self, "model_")

    def _finish(self, federation: Federation, found: Found) -> "FederatedPCA":
        request, plan, study = federation.request, federation.request.plan, federation.study
        assert isinstance(study, Study) and study.rank is not None
        self.n_features_in_ = federation.columns.count
        self.__dict__.pop("feature_names_in_", None)
        if federation.columns.shown is not None:
            self.feature_names_in_ = federation.columns.shown
        del self.unfinished_
        self.plan_ = plan
        self.sites_ = federation.hub.sites
        self.transcript_ = tuple(federation.rounds)
        self.ledgers_ = dict(federation.ledgers)
        self.refused_ = federation.refused
        self.tied_ = found.tied
        self.converged_ = None if request.private else found.at_rest
        self._show(
            found.subspace,
            trace=found.trace,
            people=found.people,
            center=found.center,
            noise_floor=federation.noise_floor(found),
            guarantee=federated_promise(federation.parties, found),
            scale=study.bounds.scale,
            settings=sites_settings(
                federation.parties,
                sites=len(self.sites_),
                rounds=len(self.transcript_),
                sent=sum(done.bytes_down + done.bytes_up for done in self.transcript_),
            ),
        )
        if self.converged_ is False and self.rounds is None:
            warnings.warn(
                f"{plan.method} did not come to rest within the tolerance. More rounds or a larger tolerance help, or "
                "method='krylov'; where variances differ by many orders, columns brought to like units",
                ConvergenceWarning,
                stacklevel=3,
            )
        if found.tied:
            warnings.warn(
                f"the variances of components {study.rank} and {study.rank + 1} are equal for all that can be told, so the "
                "answer is not the only one",
                UserWarning,
                stacklevel=3,
            )
        return self
