"""`FederatedPCA`: principal components of rows that stay at their sites, around a hub or in a tree."""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from eigenveil.core.ledger import Ledger
from eigenveil.core.rows import ignore_float_errors
from eigenveil.errors import ProtocolError, TooFewPeople, require
from eigenveil.estimators.checks import PartiesLedger, simulated_network
from eigenveil.estimators.federated.parties import FederatedSimulation, federated_guarantee, sites_settings
from eigenveil.estimators.federated.spec import FederatedSpec, budgets_of, request_of
from eigenveil.estimators.fitted import FittedPCA
from eigenveil.estimators.reading import SiteInfo, read_site, read_sites
from eigenveil.estimators.terms import Unfinished, Watch
from eigenveil.linalg import Array
from eigenveil.methods import method_of
from eigenveil.params.declarations.federated import FederatedParams
from eigenveil.params.declarations.groups import ColumnsParams
from eigenveil.params.declare import parameters, validate_params
from eigenveil.params.values import Numbers, Vector
from eigenveil.runtimes.local import Faults
from eigenveil.tasks.fit.task import Fit, FitResult

__all__ = ["FederatedPCA"]

# With room for this many people at a site, no warning.
_MANY = 1_000_000


@parameters(panel="Waiting")
class FederatedPCA(PartiesLedger, ColumnsParams, FederatedParams, FittedPCA):
    """Principal components of rows at many sites, none of which leaves its site. Changes in place: `fit` spends.

    Parameters
    ----------
    n_components : int
        How many components.
    epsilon : float, pair of float or None
        How much the result may depend on one person: smaller is more private. At most 1 is strong: someone who knows
        all other rows guesses a person's presence correctly at most 55% of the time, where chance is 50%. Up to 10 is
        reasonable (82%), and more is weak. With trust='both' a pair such as 3,1: against the hub, and against
        everyone else. epsilon=None must be written out and gives exact PCA with no privacy.
    delta : float, pair of float or None, default None
        The chance that the guarantee of epsilon fails. Choose it well below one over the number of people. With
        trust='both' it may be a pair, too.
    row_bound : float, "private" or None, default 'private'
        Norm that rows are clipped to, around the mean. private estimates it with about 10% of the budget. A number
        must not come from the data. With column_bounds nothing is searched for. A site that gives a `Symmetric` needs
        a number and vouches for it, because a person in a matrix cannot be clipped.
    column_bounds : (low, high) or None, default None
        Entries are clipped to this range. One of the two bounds is enough, and with both, both hold. Low and high are
        each a number, or one per column.
    center : "private", list, array or None, default 'private'
        private: find the mean over all sites, for a tenth to a quarter of the budget. center=None: leave rows where
        they are. Or public numbers, one per column. It is never one site's own mean.
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
    person : str or None, default None
        The column, at every site, that says whose row it is. A person's rows at a site are averaged and count as one
        row, and all of them are protected together. Without it each row counts as a separate person.
    topology : "star" or "tree", default 'star'
        star: every site talks to the hub. tree: at most fanout sites or nodes talk to each node.
    fanout : int, default 8
        For topology='tree': the largest number of sites or nodes below one node.
    trust : "hub", "site", "both" or "masked", default 'hub'
        Who adds the noise. With hub it is the hub, WHICH SEES RAW PARTS. With site it is every site, which also
        protects against the hub, at sqrt(M) times the noise. With both it is sites and hub, for two budgets. With
        masked it is the sites together, a share each. Masks cancel in the sum only, so this also protects against the
        hub, at the noise of one curator. With epsilon=None, masks without noise. Masks are for krylov, power,
        covariance and dr-svd in a star.
    survivors : int, float or None, default None: all
        For trust='masked': how many sites must be in each sum, such as 8, or which share of them, such as 0.8. With
        fewer, nothing is unmasked.
    colluders : int, default 1
        For trust='masked': how many sites may tell the hub all they know. The noise is calibrated for the others.
    person_sites : int, default 1
        The largest number of sites at which one person has rows.
    method : "auto", "covariance", "krylov", "power", "fedpower", "merge", "uda", "wda" or "dr-svd", default 'auto'
        How the components are found. Without privacy auto is krylov. With privacy it is one noisy covariance if that
        fits in memory, and noisy products otherwise.
    rounds : int or None, default None: planned
        For krylov, power, fedpower, and for each component of segments: the largest number of rounds. A budget is
        reserved for all of them.
    tolerance : float or None, default None: 1e-8 without privacy, and 0 (never) with it
        For krylov, power, fedpower and segments: stop when the answer moves by no more than this sine.
    oversample : int or None, default None: planned
        How many directions to carry beyond the components.
    local_steps : int, list of int or ("decay", int), default 1
        For fedpower: power steps at a site in each round. One number, such as 4. Or one for each round, of which the
        last is repeated. Or a decay from a number (FedPower (3.15)). With epsilon each step is charged, and sites
        must add the noise.
    align : "procrustes", "sign" or "none", default 'procrustes'
        For fedpower: how sites align their products with the last basis: procrustes, sign or none.
    participation : "full", ("with-replacement", K) or ("without-replacement", K), default 'full'
        For power and fedpower: all sites in each round (full), or K sites drawn by size (with-replacement) or evenly
        (without-replacement).
    quorum : int, float or None, default None: all
        How many must answer, such as 4, or which share of them, such as 0.8. Others are left out from there on.
    deadline : float, default 30.0
        Seconds to wait for an answer before asking again. In a simulation, simulated time.
    retries : int, default 4
        How often to ask again before proceeding without an answer.
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
    ledger : Ledger or None, default None
        Shared by several fits on the same people, so that their costs add up against one budget. All of the budget is
        charged with the first release, for the party that sees most.
    faults : Faults or None, default None
        What a simulated network does to messages. None carries everything.

    Attributes
    ----------
    components_, mean_, explained_variance_, explained_variance_ratio_, singular_values_, n_components_, n_features_in_
        As in scikit-learn's PCA, from released numbers only.
    subspace_, guarantee_, model_, noise_floor_, n_above_noise_, noise_variance_, observed_fraction_, bound_usage_, warnings_
        As in `PrivatePCA`.
    transcript_ : tuple of Round
        Each round: who answered, bytes up and down, how far the answer moved, FedPower's residual, charges.
    plan_, sites_, ledgers_, refused_
        The plan and its reason. The sites in the result. The ledger of each party. Messages that were refused.
    unfinished_ : Unfinished
        After a fit that did not end, and until one does: its `transcript`, `ledgers` and `refused`. What was charged stays
        charged. Other attributes are still those of the fit before.
    tied_
        Whether other directions are as good, because the variances k and k + 1 are equal. krylov and covariance check it.
    converged_
        Whether more rounds would change the answer by no more than the tolerance. None if not checked.

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

    faults: Faults | None = simulated_network()

    def __init__(
        self,
        n_components: int,
        *,
        epsilon: float | tuple[float, float] | None,
        delta: float | tuple[float, float] | None = None,
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
        person: str | None = None,
        topology: Literal["star", "tree"] = "star",
        fanout: int = 8,
        trust: Literal["hub", "site", "both", "masked"] = "hub",
        survivors: int | float | None = None,
        colluders: int = 1,
        person_sites: int = 1,
        method: str = "auto",
        rounds: int | None = None,
        tolerance: float | None = None,
        oversample: int | None = None,
        local_steps: Any = 1,
        align: Literal["procrustes", "sign", "none"] = "procrustes",
        participation: Any = "full",
        quorum: int | float | None = None,
        deadline: float = 30.0,
        retries: int = 4,
        whiten: bool = False,
        columns: Any = None,
        drop: Any = None,
        one_hot: Any = None,
        ledger: Ledger | None = None,
        faults: Faults | None = None,
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
        self.topology = topology
        self.fanout = fanout
        self.trust = trust
        self.survivors = survivors
        self.colluders = colluders
        self.person_sites = person_sites
        self.method = method
        self.rounds = rounds
        self.tolerance = tolerance
        self.oversample = oversample
        self.local_steps = local_steps
        self.align = align
        self.participation = participation
        self.quorum = quorum
        self.deadline = deadline
        self.retries = retries
        self.whiten = whiten
        self.columns = columns
        self.drop = drop
        self.one_hot = one_hot
        self.ledger = ledger
        self.faults = faults

    # The rows and keys of an interrupted fit. A copy can be fitted, not resumed.
    _own = ("_federation",)

    @ignore_float_errors
    def fit(self, sites: Any, y: Any = None, *, watch: Watch | None = None) -> "FederatedPCA":
        """Fit on the rows of `sites`: a list, or a mapping of names, of arrays, sparse matrices, tables or `Rows`.

        With center=None any of them may be an `eigenveil.Symmetric`, a matrix in place of rows.

        `watch` is called after each round with its record. If too few sites answer, `QuorumLost` names the missing ones, and
        `resume` continues from there.
        """
        return self._run(self.prepare(sites, watch=watch), resume=False)

    def prepare(self, sites: Any, *, watch: Watch | None = None) -> FederatedSimulation:
        """Build and check the parties of a fit on `sites` without running them. Nothing is spent yet."""
        params = validate_params(FederatedPCA, self)
        # Before rows are read: a wrong budget is refused at once.
        budgets_of(params)
        rows, columns = read_sites(params, sites)
        spec = request_of(params, SiteInfo.of(rows, columns))
        federation = FederatedSimulation(spec, rows, columns, watch=watch, ledger=params.ledger)
        terms, room = federation.masked, math.inf
        if terms is not None and terms.lattice.private:
            # For people at one site who are all at their bound in one entry of the largest sum.
            size = 2 * federation.study.extent().entries
            room = terms.lattice.people(mu=1 / terms.multiplier, size=size, several=terms.several)
        if room < _MANY:
            warnings.warn(
                f"Masked sums of this size have room for {room:.0f} people at one site, all alike and at the bound. With more, a "
                "sum may be clipped, which costs accuracy. Fewer columns or a smaller epsilon make more room.",
                UserWarning,
                stacklevel=3,
            )
        federation.before = federation.parties.before()
        for warning in federation.before:
            # Nothing is spent yet, so a caller who makes an error of it spends nothing.
            warnings.warn(warning, stacklevel=4)
        return federation

    def request_for(
        self,
        *,
        dim: int,
        sites: Sequence[str],
        sizes: Mapping[str, float] | None = None,
        grouped: bool = False,
        columns: Sequence[str] | None = None,
    ) -> FederatedSpec:
        """The spec of a fit over these `sites`, without their rows. A network makes its parties from it.

        `sizes` is how many people each site has, if public. `grouped`: a column of the rows names people. `columns` are the names
        of the others.
        """
        params = validate_params(FederatedPCA, self)
        return request_of(params, SiteInfo.declared(dim, sites, sizes=sizes, grouped=grouped, columns=columns))

    @ignore_float_errors
    def resume(self, sites: Mapping[str, Any] | None = None) -> "FederatedPCA":
        """Continue after a lost quorum. `sites` gives new rows for sites that were repaired. No answer is charged twice.

        With masks a round continues where it stopped. A round can fail after parts were charged, because a site lied. Then a
        fit without a budget asks again, and one with a budget is over: the rest would not pay for it.
        """
        federation: FederatedSimulation | None = getattr(self, "_federation", None)
        if federation is None:
            raise ValueError("there is nothing to resume: no fit has lost its quorum")
        require(sites is None or isinstance(sites, Mapping), "sites must be a mapping of names to tables, or None")
        params = validate_params(FederatedPCA, self)
        for name, X in (sites or {}).items():
            federation.repair(name, read_site(params, name, X, federation.columns)[0])
        return self._run(federation, resume=True)

    def scores(self, site: Any) -> Array:
        """The scores, (n, k), of one site's rows, computed where the rows are. Raw data: they stay with the site."""
        check_is_fitted(self)
        scores: Array = self.transform(site)
        return scores

    def _run(self, federation: FederatedSimulation, *, resume: bool) -> "FederatedPCA":
        self.__dict__.pop("_federation", None)
        try:
            result = federation.run(faults=self.faults, resume=resume)
        except TooFewPeople:
            # Nothing that `resume` could mend.
            raise
        except ProtocolError:
            # Rows are kept for `resume` alone.
            self._federation = federation
            # If a site failed, its own error says more than that it did not answer.
            federation.require_sound_sites()
            raise
        finally:
            # Users see what was spent and sent, however the fit ended.
            self.unfinished_ = Unfinished(tuple(federation.rounds), dict(federation.ledgers), federation.refused)
        return self._finish(federation, result)

    def _finish(self, federation: FederatedSimulation, result: FitResult) -> "FederatedPCA":
        spec, plan, study = federation.request, federation.request.fit.plan, federation.study
        assert isinstance(study, Fit) and study.rank is not None
        self._learn_columns(federation.columns)
        # From here on the fit counts as ended.
        del self.unfinished_
        self.plan_ = plan
        self.sites_ = federation.hub.sites
        self.transcript_ = tuple(federation.rounds)
        self.ledgers_ = dict(federation.ledgers)
        self.refused_ = federation.refused
        self.tied_ = result.tied
        self.converged_ = None if spec.fit.private else result.has_converged
        verdict = federation.verdict(result, names=self._names())
        self._set_fitted_attributes(
            result,
            verdict=verdict,
            guarantee=federated_guarantee(federation.parties, result),
            settings=sites_settings(
                federation.parties,
                result,
                sites=len(self.sites_),
                rounds=len(self.transcript_),
                sent=sum(done.bytes_down + done.bytes_up for done in self.transcript_),
            ),
        )
        if self.converged_ is False and self.rounds is None:
            last = method_of(plan.method).keeps_products
            choices = "or a larger tolerance" if last else "a larger tolerance, or method='krylov'"
            warnings.warn(
                f"{plan.method} did not converge within the tolerance. Use more rounds, {choices}. "
                "If variances differ by many orders of magnitude, bring the columns to like units.",
                ConvergenceWarning,
                stacklevel=3,
            )
        if result.tied:
            warnings.warn(
                f"The variances of components {study.rank} and {study.rank + 1} cannot be told apart, so other directions are as "
                "good as these.",
                UserWarning,
                stacklevel=3,
            )
        self._warn(verdict)
        return self
