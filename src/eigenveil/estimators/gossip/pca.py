"""`GossipPCA`: principal components of rows at peers that talk to their neighbours only, without a hub."""

import math
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, final

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from eigenveil.core.accounting import Budget, epsilon_of
from eigenveil.core.ledger import Charge, Ledger
from eigenveil.core.mechanism import Bounded, Gaussian
from eigenveil.core.noise import Noise
from eigenveil.core.rows import Rows, ignore_float_errors
from eigenveil.core.threads import this_process
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import NotCopied
from eigenveil.errors import EigenveilError, ParameterError, require, require_param, verbatim
from eigenveil.estimators.checks import PartiesLedger, budget_of, center_of, rank_of, seed_of, simulated_network
from eigenveil.estimators.federated.spec import require_enough, require_few_rounds
from eigenveil.estimators.fitted import FittedPCA
from eigenveil.estimators.gossip.parties import GossipSimulation, gossip_guarantee, peers_settings
from eigenveil.estimators.gossip.spec import GossipSpec, NoiseKind, noise_of, peers_plan, quorum_of, read_graph, require_people
from eigenveil.estimators.reading import SiteInfo, read_sites
from eigenveil.estimators.terms import Terms, Unfinished, Watch, asked_settings
from eigenveil.linalg import Array
from eigenveil.params.declarations.federated import GossipParams
from eigenveil.params.declarations.groups import ColumnsParams
from eigenveil.params.declare import parameters, validate_params
from eigenveil.params.values import Numbers, Vector
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.privacy.sums import bounded_scores
from eigenveil.runtimes.local import Faults
from eigenveil.tasks.fit.bounds import RowBounds
from eigenveil.tasks.fit.task import FitResult

__all__ = ["GossipPCA", "PublishedScores", "ReadyScores"]


class PublishedScores(NamedTuple):
    """Noisy scores of each peer's people, (n, k) by name, and the guarantee of fit and scores together."""

    scores: dict[str, Array]
    guarantee: Guarantee


@final
@dataclass(slots=True, eq=False)
class ReadyScores:
    """Scores with their bound, as they were when the fit ended, for `publish`. Parameters may change later.

    Changes in place: it counts calls, so that a seed makes other noise each time. `why_not` says why nothing may be published.
    It must not be copied: a copy would release the same scores without knowing of the charge.
    """

    own: Mapping[str, Bounded]
    seed: int | None
    why_not: str = ""
    _times: int = field(init=False, default=0)
    _process: tuple[int, int] = field(init=False, default_factory=this_process)
    _busy: threading.Lock = field(init=False, default_factory=threading.Lock)

    @classmethod
    def of(cls, spec: GossipSpec, rows: Mapping[str, Rows], result: FitResult) -> "ReadyScores":
        """The scores of these rows on the directions found, or why none may be published."""
        why_not = ""
        if spec.budget is None:
            why_not = "the fit has no guarantee to add to. Fit with epsilon and delta"
        elif not spec.fit.neighbours.count_is_public:
            why_not = (
                "one score for each person reveals the number of people, which {neighbours=add-remove} protects. Fit with "
                "{neighbours=zero-out} or {neighbours=replace-one}"
            )
        elif spec.fit.grouped:
            why_not = "people with several rows have several scores. publish_scores is for one row each"
        own: dict[str, Bounded] = {}
        if not why_not:
            own = {
                name: bounded_scores(own_rows, basis=result.subspace.basis, domain=result.domain, neighbours=spec.fit.neighbours)
                for name, own_rows in rows.items()
            }
        return cls(own, spec.seed, why_not)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One call at a time, so that each guarantee includes the charges before it. Refused in a forked process."""
        # A fork has the same scores and another ledger: both could publish, and neither would know of the other's charge.
        if this_process() != self._process:
            raise EigenveilError("this is a forked copy of a fit: only the process that fitted can publish scores")
        with self._busy:
            yield

    def publish(self, budget: Budget, fitted: Guarantee, *, shared: Ledger | None) -> PublishedScores:
        """Release each peer's scores through its own mechanism, for all of `budget`. The guarantee covers fit and scores.

        A `shared` ledger of the people is charged once, because each person is at one peer.
        """
        require_param(not self.why_not, self.why_not)
        assert fitted.epsilon is not None and fitted.delta is not None
        if shared is not None:
            shared.spend(budget.mu, label="scores of the people of peers", unit=fitted.protects)
        # Counted before anything is released: a call that fails midway must not draw the same noise again.
        self._times += 1
        scores: dict[str, Array] = {}
        for index, (name, private) in enumerate(self.own.items()):
            ledger = Ledger(epsilon=budget.epsilon, delta=budget.delta, unit=fitted.protects)
            # A hair more noise than needed, so that rounding never refuses the release.
            release = Gaussian(multiplier=(1 + 1e-10) / budget.mu, ledger=ledger, noise=self._noise(index))
            scores[name] = release.release(private, label="scores of the people of a peer")
        # Gaussian releases add up in squares of mu, and epsilon is then stated at the delta of the fit.
        mu = math.hypot(Budget(fitted.epsilon, fitted.delta).mu, budget.mu)
        guarantee = replace(
            fitted,
            epsilon=epsilon_of(mu, fitted.delta),
            released=(*fitted.released, "every person's scores with noise"),
            # One charge for all peers, because each person is at one peer.
            charges=(*fitted.charges, Charge("scores of the people of a peer", budget.mu)),
        )
        return PublishedScores(scores, guarantee)

    def _noise(self, index: int) -> Noise:
        if self.seed is None:
            return Noise.fresh()
        # Room for a million calls, each with noise of its own at every peer.
        return Noise.seeded((((self.seed << 34) + index) << 20) + self._times)


# Warn if the answers of peers are further apart than this sine.
_APART: Final = 0.01
_KEPT: Final = (
    " What was released before still contains their rows: the mean, earlier components of 'segments', and the number of people "
    "that variances are divided by, if it is protected."
)

# Warn if every sum takes more steps than this.
_MANY_STEPS = 1000


@parameters(panel="Waiting")
class GossipPCA(PartiesLedger, ColumnsParams, GossipParams, FittedPCA):
    """Principal components of rows at peers on a graph, without a trusted hub. Changes in place: `fit` spends.

    Parameters
    ----------
    n_components : int
        How many components.
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
    graph : str, path, edges, dict, array or Graph
        Who talks to whom: ring, path, grid, star, complete, random-regular:4 (four neighbours each), or a file with
        an edge on each line: two names or numbers with a comma between. Or pairs of names or numbers, neighbours by
        name, a networkx graph, or a symmetric, doubly stochastic matrix of weights, (m, m).
    consensus : "metropolis", "chebyshev" or "tree", default 'metropolis'
        How peers add up. With metropolis, by repeated averages with neighbours. With chebyshev, the same in about the
        square root of as many steps. With tree, up and down a spanning tree, which is exact.
    steps : int or None, default None: until the error is negligible
        How many exchanges with neighbours a sum takes.
    noise : "pairwise", "independent" or None, default 'pairwise'
        The noise, if there is a budget. With pairwise, it cancels between pairs of peers, which protects against
        colluders of them. The sum then has little more noise than with one curator. With independent, every peer adds
        all of it, which protects against all others, at sqrt(M) times the noise. None: no noise, for epsilon=None.
    noise_graph : as graph, or None, default None: all pairs of neighbours
        For noise='pairwise': which pairs share noise, given as graph is. It must stay connected without any colluders
        peers.
    colluders : int, default 1
        For noise='pairwise': how many peers may tell each other all they know.
    restarts : int, default 0
        Keep enough of the budget for this many restarted rounds. When peers vanish, a round restarts at its full
        cost.
    rounds : int or None, default None: planned
        For krylov, power, fedpower, and for each component of segments: the largest number of rounds. A budget is
        reserved for all of them.
    tolerance : float or None, default None: 1e-8 without privacy, and 0 (never) with it
        For krylov, power, fedpower and segments: stop when the answer moves by no more than this sine.
    oversample : int or None, default None: planned
        How many directions to carry beyond the components.
    quorum : int, float or None, default None: more than half
        How many peers must be left, such as 4, or which share of them, such as 0.8. Always more than half. Missing
        peers are left out from then on.
    deadline : float, default 30.0
        Seconds to wait for an answer before asking again. In a simulation, simulated time.
    retries : int, default 4
        How often to ask again before proceeding without an answer.
    whiten : bool, default False
        Divide scores by the root of the explained variance, so that every component has variance 1. As in scikit-
        learn's PCA. It costs nothing.
    method : "covariance", "krylov", "power" or "segments", default 'power'
        power: products with a block of directions. krylov: the same with all products kept. covariance: one
        covariance. segments: one direction at a time (D-DP-PM).
    people : int or None, default None
        A public guess at the number of people, for the starts of segments alone.
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
        As in scikit-learn's PCA, from released numbers only: those of the first peer that counts.
    disagreement_ : float
        The largest sine between its directions and any other peer's.
    scores_, segments_ : dict of array, (n, k)
        The scores of each peer's own people, and with method="segments" their part of the left singular vectors. Raw data: they
        stay with their peer, and copies and pickles have none. `publish_scores` releases scores that are not whitened, with noise
        and at a cost.
    guarantee_, model_, subspace_, noise_floor_, n_above_noise_, noise_variance_, observed_fraction_, bound_usage_, warnings_
        As in `FederatedPCA`.
    plan_, ledgers_, refused_, transcript_, unfinished_
        As in `FederatedPCA`.
    peers_, traffic_, terms_ : tuple of str, dict of int, GossipTerms
        The peers in the result, how many bytes each peer sent, and the terms they agreed on.

    Examples
    --------
    >>> rows = np.random.default_rng(0).standard_normal((600, 6)) * [9, 5, 3, 1, 1, 1]
    >>> pca = GossipPCA(2, graph="ring", epsilon=None, random_state=0).fit(np.array_split(rows, 4))
    >>> abs(pca.components_ @ np.eye(6)).argmax(axis=1).tolist(), pca.disagreement_ < 1e-8
    ([0, 1], True)
    >>> pca.scores_["peer 0"].shape
    (150, 2)
    """

    faults: Faults | None = simulated_network()

    def __init__(
        self,
        n_components: int,
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
        person: str | None = None,
        graph: Any,
        consensus: Literal["metropolis", "chebyshev", "tree"] = "metropolis",
        steps: int | None = None,
        noise: Literal["pairwise", "independent"] | None = "pairwise",
        noise_graph: Any = None,
        colluders: int = 1,
        restarts: int = 0,
        rounds: int | None = None,
        tolerance: float | None = None,
        oversample: int | None = None,
        quorum: int | float | None = None,
        deadline: float = 30.0,
        retries: int = 4,
        whiten: bool = False,
        method: str = "power",
        people: int | None = None,
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
        self.graph = graph
        self.consensus = consensus
        self.steps = steps
        self.noise = noise
        self.noise_graph = noise_graph
        self.colluders = colluders
        self.restarts = restarts
        self.rounds = rounds
        self.tolerance = tolerance
        self.oversample = oversample
        self.quorum = quorum
        self.deadline = deadline
        self.retries = retries
        self.whiten = whiten
        self.method = method
        self.people = people
        self.columns = columns
        self.drop = drop
        self.one_hot = one_hot
        self.ledger = ledger
        self.faults = faults

    # A copy could publish the same scores again with other noise, and the original would not know of the charge.
    _own = ("scores_", "segments_", "_ready")

    @ignore_float_errors
    def fit(self, peers: Any, y: Any = None, *, watch: Watch | None = None) -> "GossipPCA":
        """Fit on the rows of `peers`: a list, or a mapping of names, of arrays, sparse matrices, tables or `Rows`.

        `watch` is called after each round with its record.
        """
        gossip = self.prepare(peers, watch=watch)
        try:
            result = gossip.run(faults=self.faults)
        except EigenveilError:
            gossip.require_sound_peers()
            raise
        finally:
            # Users see what was spent and sent, however the fit ended.
            self.unfinished_ = Unfinished(tuple(gossip.rounds), dict(gossip.ledgers), gossip.refused)
        # Also after a result: the others continue without a peer whose rows are bad, and their answer would hide it.
        gossip.require_sound_peers()
        return self._finish(gossip, result)

    def prepare(self, peers: Any, *, watch: Watch | None = None) -> GossipSimulation:
        """Build and check the peers of a fit without running them. Nothing is spent yet."""
        params = validate_params(GossipPCA, self)
        # Before rows are read: a wrong budget is refused at once.
        params._budget()
        rows, columns = read_sites(params, peers, word="peer")
        require_people(rows)
        spec = params._request(SiteInfo.of(rows, columns))
        gossip = GossipSimulation(spec, rows, columns, watch=watch, ledger=params.ledger)
        steps = gossip.terms.among(()).mixing.steps
        if self.consensus == "metropolis" and self.steps is None and steps > _MANY_STEPS:
            warnings.warn(
                f"Every sum takes {steps} exchanges with neighbours on this graph. consensus='chebyshev' takes about the root of "
                "that many, and 'tree' twice the diameter.",
                UserWarning,
                stacklevel=3,
            )
        gossip.before = gossip.parties.before()
        for warning in gossip.before:
            # Nothing is spent yet, so a caller who makes an error of it spends nothing.
            warnings.warn(warning, stacklevel=4)
        return gossip

    def request_for(
        self,
        *,
        dim: int,
        peers: Sequence[str],
        sizes: Mapping[str, float] | None = None,
        grouped: bool = False,
        columns: Sequence[str] | None = None,
    ) -> GossipSpec:
        """The spec of a fit between these `peers`, without their rows. A network makes its peers from it.

        `sizes` is how many people each peer has, if public. `grouped`: a column of the rows names people. `columns` are the names
        of the others.
        """
        params = validate_params(GossipPCA, self)
        return params._request(SiteInfo.declared(dim, peers, sizes=sizes, grouped=grouped, columns=columns))

    def _budget(self) -> tuple[Budget | None, NoiseKind]:
        """The budget, and the kind of noise."""
        budget = budget_of(self.epsilon, self.delta)
        noise = noise_of(self, budget)
        require_few_rounds(self.rounds, private=budget is not None)
        return budget, noise

    @ignore_float_errors
    def publish_scores(self, *, epsilon: float, delta: float) -> PublishedScores:
        """Release the scores of all people with noise: an explicit choice with a budget of its own.

        Each person's scores, k numbers of a row clipped to norm row_bound, get noise against anyone who sees them. This is local
        privacy of a score, which costs far more accuracy than the components did. The guarantee of both together is returned
        and becomes `guarantee_`. A second call is a second charge. Only the fitted estimator can publish: copies have no scores.
        """
        check_is_fitted(self)
        budget = budget_of(epsilon, delta)
        if budget is None:
            raise ParameterError("{epsilon} is required: scores without noise reveal rows")
        ready: ReadyScores | None = getattr(self, "_ready", None)
        if ready is None:
            raise EigenveilError(
                "this is a copy of a fit, which has released numbers and no scores. Only the original can publish scores"
            )
        with ready.alone():
            published = ready.publish(budget, self.guarantee_, shared=self.ledger)
            self.guarantee_ = published.guarantee
            # A model saved from now on must not understate what was released.
            self.model_ = replace(self.model_, guarantee=published.guarantee)
        return published

    def _finish(self, gossip: GossipSimulation, result: FitResult) -> "GossipPCA":
        spec = gossip.request
        self._learn_columns(gossip.columns)
        # They may be left from an earlier fit with another method.
        for name in ("unfinished_", "segments_"):
            self.__dict__.pop(name, None)
        first = gossip.done[0]
        self.plan_ = spec.fit.plan
        self.terms_ = gossip.terms
        self.peers_ = first.counted
        self.transcript_ = tuple(gossip.rounds)
        self.ledgers_ = dict(gossip.ledgers)
        self.refused_ = gossip.refused
        self.traffic_ = dict(gossip.sent)
        self.disagreement_ = gossip.disagreement
        self.tied_ = result.tied
        self.converged_ = None if spec.fit.private else result.has_converged
        verdict = gossip.verdict(result, names=self._names())
        self._set_fitted_attributes(
            result,
            verdict=verdict,
            guarantee=gossip_guarantee(gossip.parties, result, counted=self.peers_, since=gossip.since),
            settings=peers_settings(
                gossip.parties, result, peers=len(self.peers_), rounds=len(self.transcript_), sent=sum(self.traffic_.values())
            ),
        )
        # After `_set_fitted_attributes`, because scores are computed with the model that it makes.
        self._keep_scores(gossip, result)
        for message, kind in _warnings(self, gossip, result):
            warnings.warn(message, kind, stacklevel=3)
        self._warn(verdict)
        return self

    def _keep_scores(self, gossip: GossipSimulation, result: FitResult) -> None:
        """Each peer's scores of its own people, for that peer alone."""
        rows = {name: gossip.peers[name].rows for name in self.peers_}
        self.scores_: dict[str, Array] = {}
        for name in self.peers_:
            # Rows that stay on a cluster have no scores here. The fit is done and paid for, so that is no error.
            with suppress(NotCopied):
                self.scores_[name] = self._along(rows[name], self.model_.scores_of)
        self._ready = ReadyScores.of(gossip.request, rows, result)
        if not gossip.request.fit.method.finds_one_by_one:
            return
        self.segments_: dict[str, Array] = {}
        for name in self.peers_:
            # A direction without variance has segments of zero, not of NaN.
            lengths = np.where(self.singular_values_ > 0, self.singular_values_, math.inf)
            self.segments_[name] = self._along(rows[name], self.model_.project) / lengths

    def _along(self, rows: Rows, scores: Callable[[Any], Array]) -> Array:
        """The `scores`, (n, k), of rows, block by block."""
        parts = [scores(block.values) for block in rows.blocks(1 << 14)]
        return np.vstack(parts) if parts else np.empty((0, self.n_components_))

    def _request(self, info: SiteInfo) -> GossipSpec:
        (budget, noise), names, dim = self._budget(), info.names, info.dim
        require(len(names) >= 2, "there must be at least 2 peers, got 1. For one table use PrivatePCA")
        graph, weights = read_graph("graph", self.graph, names)
        first, *others = graph.components()
        if others:
            ends = f"from {first[0]} to {', '.join(others[0][:5])}"
            raise ParameterError(f"{{graph}} must be connected: there is no path {verbatim(ends)}")
        noise_graph = None
        if noise == "pairwise":
            # Noise may be shared along other edges than messages: a star separates without its center, and its peers
            # can still talk.
            noise_graph = graph if self.noise_graph is None else read_graph("noise_graph", self.noise_graph, names)[0]
            # Two honest peers must be left to share noise that colluders do not know.
            max_colluders = max(1, len(names) - 2)
            require_param(
                self.colluders <= max_colluders,
                f"{{colluders}} must be an integer from 1 to {max_colluders}, got {{@value}}",
                value=self.colluders,
            )
        private = budget is not None
        # Without a budget no person is protected, and the number of people is gathered like any other sum.
        near = Neighbours(self.neighbours) if private else Neighbours.ADD_REMOVE
        rank = rank_of(self.n_components, dim)
        public = not private or near.count_is_public
        sizes = info.sizes() if public else None
        require_enough(sizes, dim, rank, private=private)
        people = sum(sizes.values()) if sizes is not None else None
        fit = Terms(
            rank=rank,
            bounds=RowBounds.of(self, dim, private=private, sparse=info.sparse, names=info.columns),
            center=center_of(self.center, dim),
            neighbours=near,
            plan=peers_plan(self, dim, rank, budget, people=people, peers=len(names)),
            private=private,
            # Where incomplete rows are dropped, a public number of rows is not that of those that count.
            people=people if private and self.missing != "drop" else None,
            settings=asked_settings(self),
            sizes=sizes,
            grouped=info.grouped,
            person=self.person if info.grouped else None,
        )
        return GossipSpec(
            fit=fit,
            budget=budget,
            noise=noise,
            graph=graph,
            weights=weights,
            consensus=self.consensus,
            steps=self.steps,
            noise_graph=noise_graph,
            colluders=self.colluders,
            quorum=quorum_of(self, len(names)),
            deadline=self.deadline,
            retries=self.retries,
            restarts=self.restarts,
            seed=seed_of(self.random_state),
        )


def _warnings(pca: Any, gossip: GossipSimulation, result: FitResult) -> Iterator[tuple[str, type[Warning]]]:
    """What a user should know of a finished fit, each with its category. `pca` has its attributes already."""
    spec, fit = gossip.request, gossip.request.fit
    rank = fit.known_rank
    names, counted = spec.graph.names, pca.peers_
    if len(counted) < len(names):
        lost = [name for name in names if name not in counted]
        # Without a budget the fit restarted. With one, earlier releases cannot be taken back.
        has_lost_rows = fit.private and len(gossip.rounds[0].answered) > len(counted)
        text = f"The result counts {len(counted)} of {len(names)} peers, without {', '.join(lost[:5])}."
        yield text + (_KEPT if has_lost_rows else ""), UserWarning
    if gossip.apart:
        text = (
            f"{', '.join(gossip.apart[:5])} ended with another result, of other peers. Messages were lost in the last round, and "
            "they did not hear that the others restarted it."
        )
        yield text, UserWarning
    if ended := [name for name in counted if name in gossip.stopped]:
        text = f"{', '.join(ended[:5])} were counted and ended without a result: messages were lost in the last round."
        yield text, UserWarning
    if result.tied:
        text = (
            f"The variances of components {rank} and {rank + 1} cannot be told apart, so other directions are as good as these."
        )
        yield text, UserWarning
    if pca.disagreement_ > _APART and spec.steps is not None:
        text = (
            f"The results of peers are up to a sine of {pca.disagreement_:.2g} apart: {spec.consensus} with "
            f"steps={spec.steps} does not bring their sums together on this graph. Use more steps, or steps=None."
        )
        yield text, ConvergenceWarning
    if pca.converged_ is False and pca.rounds is None:
        others = "method='covariance'" if fit.method.keeps_products else "method='krylov' or 'covariance'"
        text = f"{fit.method} did not converge within the tolerance. Use more rounds, a larger tolerance, or {others}."
        yield text, ConvergenceWarning
