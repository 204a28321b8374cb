"""`GossipPCA`: principal components of rows at peers that talk to their neighbours only, with no hub at all."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from eigenveil.data.rows import in_silence
from eigenveil.errors import EigenveilError, ParameterError, require, require_param, verbatim
from eigenveil.estimators.checks import budget_of, center_of, rank_of, seed_of
from eigenveil.estimators.federated.rules import require_enough, require_few_rounds
from eigenveil.estimators.fitted import FittedPCA
from eigenveil.estimators.gossip.graph import read_graph
from eigenveil.estimators.gossip.guarantee import gossip_guarantee
from eigenveil.estimators.gossip.parties import peers_settings
from eigenveil.estimators.gossip.request import GossipSpec
from eigenveil.estimators.gossip.rules import NoiseKind, noise_of, peers_plan, quorum_of, require_people
from eigenveil.estimators.gossip.scores import PublishedScores, ReadyScores
from eigenveil.estimators.gossip.simulation import GossipSimulation
from eigenveil.estimators.gossip.warn import warnings_of
from eigenveil.estimators.rounds import Unfinished, Watch
from eigenveil.estimators.settings import asked_settings
from eigenveil.estimators.sites import SiteInfo, read_sites
from eigenveil.linalg import Array
from eigenveil.linalg.graphs import Graph
from eigenveil.papers.d_dp_pm import PublishedSegments
from eigenveil.params import GossipParams, checked, param, parameters
from eigenveil.params.declarations.groups import HERE
from eigenveil.params.values import instance_of
from eigenveil.privacy import (
    Budget,
    Neighbours,
)
from eigenveil.runtimes import Faults
from eigenveil.tasks.fit.bounds import RowBounds
from eigenveil.tasks.fit.task import FitResult

__all__ = ["GossipPCA"]


# Who has to wait for more steps than this in every sum is told so.
_MANY_STEPS = 1000


@parameters(panel="Waiting")
class GossipPCA(GossipParams, FittedPCA):
    """Principal components of rows at peers on a graph, none of which trusts a center. Changes in place: `fit` spends.

    Parameters
    ----------
    n_components : int
        How many components.
    epsilon : float or None
        How much the result may depend on one person: smaller is more private. 0.1 is strict, 1 usual, 10 lax.
        epsilon=None must be written out and gives exact PCA with no privacy.
    delta : float or None, default None
        The chance that the guarantee of epsilon fails; well below one over the number of people.
    row_bound : float or None, default None
        Rows are clipped to this norm around the mean. You must know it without looking at the data.
    column_bounds : (low, high) or None, default None
        Entries are clipped to this range. One of the two bounds suffices; with both, both hold. Low and high are each
        a number, or one per column.
    center : "private", list, array or None, default 'private'
        private: find the mean over all places, for a tenth to a quarter of the budget. center=None: leave rows where
        they are. Or public numbers, one per column. It is never a place's own mean.
    origin : float, list, array or None, default None: zero, or the middle of the column bounds
        Where to look for the mean: one number, or one per column.
    mean_bound : float or None, default None: searched for in up to three steps of the row bound
        How far from the origin rows may lie while the mean is found.
    scale : float, list, array or None, default None
        Public units: columns are divided by this before norms are taken and bounded. One number, or one per column.
    random_state : int or None, default None
        A seed. Reproducible, NOT PRIVATE: whoever knows the seed can subtract the noise. For tests only. None draws
        noise from the operating system.
    neighbours : "add-remove", "zero-out" or "replace-one", default 'add-remove'
        Neighbouring relation: which two tables the guarantee makes indistinguishable, add-remove, zero-out or
        replace-one. The last two declare the number of people public.
    person : str or None, default None
        The column, at every place, that says whose row it is. A person's rows there are averaged and count as one
        row, and all of them are protected together. Without it each row is taken for a person of its own.
    graph : str, path, edges, dict, array or Graph
        Who talks to whom: ring, path, grid, star, complete, random-regular:4 (four neighbours each), or a file with
        an edge on each line: two names or numbers with a comma between. Or pairs of names or numbers; neighbours by
        name; a symmetric, doubly stochastic matrix of weights, (m, m); a networkx graph.
    consensus : "metropolis", "chebyshev" or "tree", default 'metropolis'
        How peers add up. metropolis: averages with neighbours, over and over. chebyshev: the same in about the root
        of as many steps. tree: up and down a spanning tree, which is exact.
    steps : int or None, default None: as many as leave nothing to speak of
        How many exchanges with neighbours a sum takes.
    noise : "pairwise", "independent", "published" or None, default 'pairwise'
        What is added where there is a budget. pairwise: noise that cancels between pairs of peers, for little more
        than that of a curator in the sum, against colluders of them. independent: all the noise at every peer,
        against all others, for sqrt(M) times as much. published: D-DP-PM's own, with epsilon=None, because nothing is
        guaranteed. None is none, for epsilon=None.
    noise_graph : as graph, or None, default None: those that talk
        For noise='pairwise': which pairs share noise, said as for graph. It must hold together without any colluders
        peers.
    colluders : int, default 1
        For noise='pairwise': how many peers may tell each other all they know.
    restarts : int, default 0
        For how many rounds that are begun again, each at its full price, when peers vanish, to keep some of the
        budget.
    rounds : int or None, default None: planned
        For krylov, power, fedpower, and for each component of segments: the most rounds. A budget is reserved for all
        of them.
    tolerance : float or None, default None: 1e-8 without privacy, and 0, never, with it
        For krylov, power, fedpower and segments: stop when the answer moves by no more than this sine.
    oversample : int or None, default None: planned
        Directions carried beyond the components.
    quorum : int, float or None, default None: more than half
        How many peers must be left, such as 4, or which share of them, such as 0.8; always more than half. Others are
        left out from there on.
    deadline : float, default 30.0
        Seconds to wait for an answer before asking again; simulated time in a simulation.
    retries : int, default 4
        How often to ask again before going on without an answer.
    method : "power", "krylov", "covariance" or "segments", default 'power'
        power: products with a block of directions. krylov: the same with all products kept. covariance: one
        covariance. segments: one direction at a time (D-DP-PM).
    people : int or None, default None
        A public guess at how many people there are, for the starts of segments alone.
    faults : Faults or None, default None
        What a simulated network does to messages. None carries everything.

    Attributes
    ----------
    components_, mean_, explained_variance_, explained_variance_ratio_, singular_values_, n_components_, n_features_in_
        As in scikit-learn's PCA, from released numbers only: those of the first peer that counts.
    disagreement_ : float
        The largest sine between its directions and any other peer's.
    scores_, segments_ : dict of array, (n, k)
        The scores of each peer's own people, and with method="segments" their part of the left singular vectors. Raw data: each
        stays with its peer, and a copy or a pickle has none. `publish_scores` gives them away with noise, for a price.
    guarantee_, model_, subspace_, noise_floor_, plan_, ledgers_, refused_, transcript_, unfinished_
        As in `FederatedPCA`.
    peers_, traffic_, terms_ : tuple of str, dict of int, GossipTerms
        The peers that count, how many bytes each peer sent, and what they had agreed on.

    Examples
    --------
    >>> rows = np.random.default_rng(0).standard_normal((600, 6)) * [9, 5, 3, 1, 1, 1]
    >>> pca = GossipPCA(2, graph="ring", epsilon=None, random_state=0).fit(np.array_split(rows, 4))
    >>> abs(pca.components_ @ np.eye(6)).argmax(axis=1).tolist(), pca.disagreement_ < 1e-8
    ([0, 1], True)
    >>> pca.scores_["peer 0"].shape
    (150, 2)
    """

    # A copy could publish the same scores again, with other noise, and the original would not know of the charge.
    _own = ("scores_", "segments_", "_ready")

    faults: Faults | None = param(
        "What a simulated network does to messages. None carries everything.",
        default=None,
        check=instance_of(Faults, "an eigenveil.runtimes.Faults"),
        surfaces=HERE,
    )

    @in_silence
    def fit(self, peers: Any, y: Any = None, *, watch: Watch | None = None) -> "GossipPCA":
        """Fit on the rows of `peers`: a list, or a mapping of names, of arrays, sparse matrices, tables or `Rows`.

        `watch` is called after each round with what happened in it.
        """
        gossip = self.prepare(peers, watch=watch)
        try:
            found = gossip.run(faults=self.faults)
        except EigenveilError:
            gossip.require_sound_peers()
            raise
        finally:
            # What was spent and said is there to be seen, however it ended.
            self.unfinished_ = Unfinished(tuple(gossip.rounds), dict(gossip.ledgers), gossip.refused)
        gossip.require_sound_peers()
        return self._finish(gossip, found)

    def prepare(self, peers: Any, *, watch: Watch | None = None) -> GossipSimulation:
        """The peers of a fit, checked and ready, for who runs them other than `fit` does. Nothing is spent yet."""
        asked = checked(GossipPCA, self)
        asked._budget()
        rows, columns = read_sites(asked, peers, word="peer")
        require_people(rows)
        gossip = GossipSimulation(asked._request(SiteInfo.of(rows)), rows, columns, watch=watch)
        steps = gossip.terms.among(()).mixing.steps
        if self.consensus == "metropolis" and self.steps is None and steps > _MANY_STEPS:
            warnings.warn(
                f"every sum takes {steps} exchanges with neighbours on this graph; consensus='chebyshev' takes about the root of "
                "that many, and 'tree' twice the way across",
                UserWarning,
                stacklevel=3,
            )
        return gossip

    def request_for(
        self, *, dim: int, peers: Sequence[str], sizes: Mapping[str, float] | None = None, grouped: bool = False
    ) -> GossipSpec:
        """What a fit between these `peers` is asked for, before anybody has rows: for who runs them apart from each other.

        `sizes` is how many people each peer has, where that is public; `grouped` says that a column names them.
        """
        asked = checked(GossipPCA, self)
        return asked._request(SiteInfo.declared(dim, peers, sizes=sizes, grouped=grouped))

    def _budget(self) -> tuple[Budget | None, NoiseKind]:
        """What may be spent and what is added."""
        budget = None if self.noise == "published" else budget_of(self.epsilon, self.delta)
        noise = noise_of(self, budget)
        require_few_rounds(self.rounds, private=budget is not None)
        return budget, noise

    @in_silence
    def publish_scores(self, *, epsilon: float, delta: float) -> PublishedScores:
        """Scores of everybody, with noise, for all to see: an explicit choice with a budget of its own.

        Each person's scores, k numbers of a row cut to length row_bound, get noise against whoever sees them: local privacy of a
        score, which costs far more accuracy than the components did. What was guaranteed before is no longer all there is: the
        guarantee of both together is returned, and becomes `guarantee_`. A second call is a second charge. Only the estimator
        that was fitted can publish: its copies hold no scores.
        """
        check_is_fitted(self)
        budget = budget_of(epsilon, delta)
        if budget is None:
            raise ParameterError("{epsilon} is required: publishing scores without noise would be publishing rows")
        ready: ReadyScores | None = getattr(self, "_ready", None)
        if ready is None:
            raise EigenveilError(
                "this is a copy of a fit: it holds what was released and no scores, and only the original can publish them"
            )
        with ready.alone():
            given = ready.publish(budget, self.guarantee_)
            self.guarantee_ = given.guarantee
            self.model_ = replace(self.model_, guarantee=given.guarantee)
        return given

    def __sklearn_is_fitted__(self) -> bool:
        """What is known of a fit that did not end is no fit."""
        return hasattr(self, "model_")

    def _finish(self, gossip: GossipSimulation, found: FitResult) -> "GossipPCA":
        request = gossip.request
        self.n_features_in_ = gossip.columns.count
        for name in ("feature_names_in_", "unfinished_", "segments_"):
            self.__dict__.pop(name, None)
        if gossip.columns.shown is not None:
            self.feature_names_in_ = gossip.columns.shown
        first = gossip.done[0]
        self.plan_ = request.plan
        self.terms_ = gossip.terms
        self.peers_ = first.counted
        self.transcript_ = tuple(gossip.rounds)
        self.ledgers_ = dict(gossip.ledgers)
        self.refused_ = gossip.refused
        self.traffic_ = dict(gossip.sent)
        self.disagreement_ = gossip.disagreement
        self.tied_ = found.tied
        self.converged_ = None if request.private or request.published else found.at_rest
        self._show(
            found.subspace,
            trace=found.trace,
            people=found.people,
            center=found.center,
            noise_floor=gossip.noise_floor(found),
            guarantee=gossip_guarantee(gossip.parties, found, counted=self.peers_, since=gossip.since),
            scale=request.bounds.scale,
            settings=peers_settings(
                gossip.parties,
                peers=len(self.peers_),
                rounds=len(self.transcript_),
                sent=sum(self.traffic_.values()),
            ),
        )
        self._keep_scores(gossip, found)
        for message, kind in warnings_of(self, gossip, found):
            warnings.warn(message, kind, stacklevel=3)
        return self

    def _keep_scores(self, gossip: GossipSimulation, found: FitResult) -> None:
        """Each peer's scores of its own people, which are that peer's alone."""
        self.scores_: dict[str, Array] = {}
        for name in self.peers_:
            blocks = gossip.peers[name].rows.blocks(1 << 14)
            parts = [self.model_.transform(block.values) for block in blocks]
            self.scores_[name] = np.vstack(parts) if parts else np.empty((0, self.n_components_))
        rows = {name: gossip.peers[name].rows for name in self.peers_}
        self._ready = ReadyScores.of(gossip.request, rows, found)
        if gossip.request.method != "segments":
            return
        self.segments_: dict[str, Array] = {}
        for name in self.peers_:
            task = gossip.studies[name].directions
            if isinstance(task, PublishedSegments):
                self.segments_[name] = task.segments
            else:
                lengths = np.where(self.singular_values_ > 0, self.singular_values_, math.inf)
                self.segments_[name] = self.scores_[name] / lengths

    def _request(self, held: SiteInfo) -> GossipSpec:
        (budget, noise), names, dim = self._budget(), held.names, held.dim
        require(len(names) >= 2, "there must be at least 2 peers, got 1: for one table there is PrivatePCA")
        graph, weights = read_graph("graph", self.graph, names)
        self._require_connected(graph)
        noise_graph = None
        if noise == "pairwise":
            noise_graph = graph if self.noise_graph is None else read_graph("noise_graph", self.noise_graph, names)[0]
            most = max(1, len(names) - 2)
            require_param(
                self.colluders <= most,
                f"{{colluders}} must be an integer from 1 to {most}, got {{@value}}",
                value=self.colluders,
            )
        private = budget is not None
        # Without a budget nobody is protected, and the number of people is gathered like any other sum.
        near = Neighbours(self.neighbours) if private else Neighbours.ADD_REMOVE
        rank = rank_of(self.n_components, dim)
        public = not private or near.count_is_public
        sizes = held.sizes() if public else None
        require_enough(sizes, dim, rank, private=private or noise == "published", published=False)
        known = sum(sizes.values()) if sizes is not None else None
        return GossipSpec(
            rank=rank,
            bounds=self._bounds(dim, private=private, sparse=held.sparse),
            center=center_of(self.center, dim),
            neighbours=near,
            plan=peers_plan(self, dim, rank, budget, people=known, peers=len(names)),
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
            grouped=held.grouped,
            people=known if private or noise == "published" else None,
            sizes=sizes,
            seed=seed_of(self.random_state),
            settings=asked_settings(self),
        )

    def _require_connected(self, graph: Graph) -> None:
        groups = graph.components()
        if len(groups) > 1:
            lost = ", ".join(groups[1][:5])
            ends = f"from {groups[0][0]} to {lost}"
            raise ParameterError(f"{{graph}} must be connected: there is no way {verbatim(ends)}")

    def _bounds(self, dim: int, *, private: bool, sparse: bool) -> RowBounds:
        bounds = RowBounds.of(self, dim, private=private, sparse=sparse)
        if private:
            bounds.require_addable()
        return bounds
