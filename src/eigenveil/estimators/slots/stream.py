"""`FederatedStream`: principal components of streams at many sites, slot by slot, around a hub or in a tree."""

import warnings
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

import numpy as np
from sklearn.exceptions import NotFittedError

from eigenveil.core.ledger import Ledger
from eigenveil.core.rows import Rows, block_size, ignore_float_errors
from eigenveil.errors import EigenveilError, require, require_param
from eigenveil.estimators.checks import PartiesLedger, budget_of, seed_of, simulated_network
from eigenveil.estimators.fitted import FittedPCA, noise_variance, record_of
from eigenveil.estimators.reading import Columns, read_site
from eigenveil.estimators.slots.answer import SlotSimulation, slot_guarantee, slot_settings, slot_verdict
from eigenveil.estimators.slots.parties import slot_spec
from eigenveil.estimators.terms import asked_settings, divisor_of, model_of
from eigenveil.linalg import Array
from eigenveil.params.declarations.groups import ColumnsParams
from eigenveil.params.declarations.streaming import SlotStreamParams
from eigenveil.params.declare import parameters, validate_params
from eigenveil.params.values import Numbers
from eigenveil.runtimes.local import Faults

__all__ = ["FederatedStream"]


@parameters(panel="Waiting")
class FederatedStream(PartiesLedger, ColumnsParams, SlotStreamParams, FittedPCA):
    """Principal components of streams at many sites, which are always there. Changes in place: a private one spends.

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
    scale : float, list, array or None, default None
        Public units: columns are divided by this before norms are taken and bounded. One number, or one per column.
    random_state : int or None, default None
        A seed. Reproducible, NOT PRIVATE: anyone who knows the seed can subtract the noise. For tests only. None
        draws noise from the operating system.
    neighbours : "add-remove", "zero-out" or "replace-one", default 'zero-out'
        Neighbouring relation: which two streams the guarantee makes indistinguishable, add-remove, zero-out or
        replace-one. The last two declare the number of rows in each slot public. add-remove is for slots of a clock.
    slots : int
        How many slots there are, a public horizon. A slot is a stretch of every site's stream.
    max_lateness : int, default 2
        How many slots later a site may still send a slot that it missed. After that it is missing from the slot.
        Under masks a late part is lost at once.
    person_slots : int, default 1
        The largest number of slots in which one person has a row. One row in each.
    one_person_per_site : bool, default False
        Each site is a device of one person, who is in every slot. The mean over a slot's rows counts, and all of them
        are protected together.
    forget : float, default 1.0
        Singular values are multiplied by this for every slot that has passed since. 1 forgets nothing. A row j slots
        old counts forget^(2 j), whenever it arrives.
    adapt : (low, high) or None, default None
        Let the number of components follow the spectrum: the last singular value stays between these fractions of the
        sum of all kept ones. 0.01,0.1 is usual. It follows released values only.
    topology : "star" or "tree", default 'star'
        star: every site talks to the hub. tree: at most fanout sites or nodes talk to each node.
    fanout : int, default 8
        For topology='tree': the largest number of sites or nodes below one node.
    trust : "hub", "site" or "masked", default 'hub'
        Who adds the noise. With hub it is the hub, WHICH SEES RAW SUMS of each site. With site it is every site,
        which also protects against the hub, at sqrt(M) times the noise. With masked it is the sites together, a share
        each. Masks cancel in the sum only, so this also protects against the hub, at the noise of one curator. A tree
        is for site, or for no noise. Sites send sums with noise, and sketches without.
    survivors : int, float or None, default None: all
        For trust='masked': how many sites must be in each sum, such as 8, or which share of them, such as 0.8. With
        fewer, nothing is unmasked.
    colluders : int, default 1
        For trust='masked': how many sites may tell the hub all they know. The noise is calibrated for the others.
    whiten : bool, default False
        Divide scores by the root of the explained variance, so that every component has variance 1. As in scikit-
        learn's PCA. It costs nothing.
    row_bound : float or None, default None
        Rows are clipped to this norm around the origin. A number that you know without looking at the data; required
        with epsilon.
    center : "private" or None, default 'private'
        private: follow the mean and take it off. center=None: leave rows where they are. The mean comes from the same
        release as the products, and costs nothing more.
    origin : float, list, array or None, default None: zero
        The public point around which rows are clipped: one number, or one per column.
    missing : "refuse", "counts", "groups", "drop" or "fill", default 'refuse'
        Missing values. refuse: they are an error. counts: every slot also counts how many rows have each column, for
        about 4% of the budget, and sums are divided by that. groups: the same for groups of columns. drop: leave
        incomplete rows out. fill: put public values there. Whichever you choose is public, and holds whether or not
        there are any. With counts and groups a missing entry is put at the origin, where it adds nothing. With drop
        the number of rows that are left is private. Infinite values are always refused.
    missing_groups : str, list of lists or None, default None
        For missing='groups': columns that are missing together, such as the items of a questionnaire: names or
        patterns with commas, and a semicolon between groups. Or a list of lists. Other columns are groups of their
        own. If a row lacks one column of a group, all of the group counts as missing in that row.
    missing_fill : float, list or None, default None
        For missing='fill': the public value that takes the place of missing ones: one number, or one per column. You
        must know it without looking at these rows: a mean of them would leak them.
    oversample : int or None, default None: max(10, components)
        Without noise: directions that a site sends beyond the components.
    deadline : float, default 30.0
        Seconds to wait for an answer before asking again. In a simulation, simulated time.
    retries : int, default 4
        How often to ask again before proceeding without an answer.
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

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> stream = FederatedStream(1, epsilon=None, slots=3, random_state=0)
    >>> for slot in range(3):
    ...     rows = {name: rng.standard_normal((50, 4)) * [5, 1, 1, 1] for name in ("a", "b", "c")}
    ...     stream = stream.partial_fit(rows, away=["c"] if slot == 0 else [])
    >>> abs(stream.components_ @ np.eye(4)).argmax(axis=1).tolist(), stream.absent(0), len(stream.transcript_)
    ([0], (), 4)
    """

    faults: Faults | None = simulated_network()

    def __init__(
        self,
        n_components: int,
        *,
        epsilon: float | None,
        delta: float | None = None,
        scale: Numbers | None = None,
        random_state: Any = None,
        neighbours: Literal["add-remove", "zero-out", "replace-one"] = "zero-out",
        slots: int,
        max_lateness: int = 2,
        person_slots: int = 1,
        one_person_per_site: bool = False,
        forget: float = 1.0,
        adapt: tuple[float, float] | None = None,
        topology: Literal["star", "tree"] = "star",
        fanout: int = 8,
        trust: Literal["hub", "site", "masked"] = "hub",
        survivors: int | float | None = None,
        colluders: int = 1,
        whiten: bool = False,
        row_bound: float | None = None,
        center: Literal["private"] | None = "private",
        origin: Numbers | None = None,
        missing: Literal["refuse", "counts", "groups", "drop", "fill"] = "refuse",
        missing_groups: Any = None,
        missing_fill: Any = None,
        oversample: int | None = None,
        deadline: float = 30.0,
        retries: int = 4,
        columns: Any = None,
        drop: Any = None,
        one_hot: Any = None,
        ledger: Ledger | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.scale = scale
        self.random_state = random_state
        self.neighbours = neighbours
        self.slots = slots
        self.max_lateness = max_lateness
        self.person_slots = person_slots
        self.one_person_per_site = one_person_per_site
        self.forget = forget
        self.adapt = adapt
        self.topology = topology
        self.fanout = fanout
        self.trust = trust
        self.survivors = survivors
        self.colluders = colluders
        self.whiten = whiten
        self.row_bound = row_bound
        self.center = center
        self.origin = origin
        self.missing = missing
        self.missing_groups = missing_groups
        self.missing_fill = missing_fill
        self.oversample = oversample
        self.deadline = deadline
        self.retries = retries
        self.columns = columns
        self.drop = drop
        self.one_hot = one_hot
        self.ledger = ledger
        self.faults = faults

    # There is no column that names people in a stream: a slot has one row of a person, or a device is one.
    person = None
    # Rows of open slots, and keys of sites.
    _own = ("_simulation",)

    @ignore_float_errors
    def partial_fit(self, sites: Mapping[str, Any], y: Any = None, *, away: Collection[str] = ()) -> "FederatedStream":
        """Close one slot with the rows of `sites`, by name, and let the hub ask for it.

        The first call names all sites of the study. A site that is left out, or None, has closed the slot without rows, as with
        an empty table. It takes part all the same: whether it had rows must not show. Sites that are `away` have closed the slot
        and cannot be reached, which is public. They are asked again in later slots, within the window.

        A stream lives in this process only. What `load` made of a file, or a copy, has its released numbers and cannot continue.
        """
        self._require_whole()
        return self._closed(sites, away=away)

    def _closed(self, sites: Mapping[str, Any], *, away: Collection[str]) -> "FederatedStream":
        """Close one slot, of a stream that continues or of a new one."""
        require(
            isinstance(sites, Mapping) and all(isinstance(name, str) for name in sites) and len(sites) > 0,
            "sites must be a mapping of names to rows, with None for a site that has none in this slot",
        )
        params = validate_params(FederatedStream, self)
        rows, columns = self._read(params, sites)
        simulation = self._begun(params, tuple(sites), columns)
        # The tree, the masks and the noise were planned for the sites of the first slot, so none can join later.
        unknown = [name for name in (*sites, *away) if name not in simulation.members]
        require(not unknown, f"{', '.join(unknown[:3])} is not a site of this study, which the first slot has named")
        # Every site closes every slot. One that took part only when it had rows would show that it had none.
        simulation.slot({name: _blocks(rows[name]) if name in rows else () for name in simulation.members}, away=away)
        return self._shown(params)

    def fit(self, slots: Iterable[Mapping[str, Any]], y: Any = None) -> "FederatedStream":
        """Begin anew, and take one slot after the other, each as in `partial_fit`. Then ask for what is still missing."""
        self.__dict__.pop("_simulation", None)
        for sites in slots:
            self._closed(sites, away=())
        require("_simulation" in self.__dict__, "there must be at least one slot")
        return self.finish()

    def finish(self) -> "FederatedStream":
        """End the stream: ask once more for what is missing, until the window has passed."""
        simulation = self._running()
        simulation.finish()
        return self._shown(validate_params(FederatedStream, self))

    def counted(self, slot: int) -> tuple[str, ...]:
        """The sites that are in a slot, from zero."""
        return self._running().hub.counted(slot)

    def absent(self, slot: int) -> tuple[str, ...]:
        """The sites that are not in a slot, or not yet."""
        return self._running().hub.missing(slot)

    @property
    def n_slots_(self) -> int:
        """How many slots have passed."""
        # Of a stream that was loaded, the number that its model has.
        is_loaded = hasattr(self, "model_") and not hasattr(self, "_simulation")
        stored = self.model_.settings.get("slot") if is_loaded else None
        return self._running().following if stored is None else int(stored)

    def _require_whole(self) -> None:
        """Refuse to begin a stream behind the numbers of another one: its guarantee would leave out what those cost."""
        if hasattr(self, "guarantee_") and not hasattr(self, "_simulation"):
            raise EigenveilError(
                "this estimator has what a stream released and not the stream itself: it was loaded from a file, it is a copy, "
                "or a later fit failed. Only the original can continue. For a new stream, with a cost of its own, use "
                "sklearn.base.clone of this one, or fit. Costs about the same people add up: `eigenveil account` adds them"
            )

    def _running(self) -> SlotSimulation:
        self._require_whole()
        if not hasattr(self, "_simulation"):
            # An AttributeError as well, so that a notebook can show an estimator without asking for what is not there.
            raise NotFittedError("no slot has been closed yet: call partial_fit with the rows of each site")
        return self._simulation

    def _read(self, params: Any, sites: Mapping[str, Any]) -> tuple[dict[str, Rows], Columns]:
        rows: dict[str, Rows] = {}
        columns: Columns | None = getattr(self, "_columns", None) if hasattr(self, "_simulation") else None
        # All of a slot is checked before any of it is taken, because a release cannot be taken back.
        for name, X in sites.items():
            if X is not None:
                rows[name], columns = read_site(params, name, X, columns)
        require(columns is not None, "no site has rows in the first slot, so the number of columns is not known")
        assert columns is not None
        return rows, columns

    def _begun(self, params: Any, names: tuple[str, ...], columns: Columns) -> SlotSimulation:
        if hasattr(self, "_simulation"):
            return self._simulation
        budget = budget_of(params.epsilon, params.delta)
        spec = slot_spec(
            params,
            names,
            dim=columns.count,
            budget=budget,
            seed=seed_of(params.random_state),
            columns=None if columns.shown is None else list(columns.shown),
        )
        require_param(budget is not None or params.row_bound is None, "{row_bound} is for a private stream. Leave it out")
        self._simulation: SlotSimulation = SlotSimulation(spec, faults=params.faults, ledger=params.ledger)
        self._columns = columns
        self._learn_columns(columns)
        return self._simulation

    def _shown(self, params: Any) -> "FederatedStream":
        """Show what is public by now."""
        simulation = self._running()
        parties, answer, hub = simulation.parties, simulation.answer, simulation.hub
        self.sites_ = hub.sites
        self.transcript_ = tuple(simulation.rounds)
        self.sent_ = dict(simulation.sent)
        self.ledgers_ = dict(parties.ledgers)
        self.refused_ = simulation.refused
        self.guarantee_ = slot_guarantee(parties, simulation.charges(), apart=False)
        if answer.subspace.rank == 0:
            # No site was heard so far.
            return self
        settings = asked_settings(params)
        verdict = slot_verdict(parties, answer, settings, self._names())
        rest = noise_variance(answer, noise_floor=verdict.noise_floor / divisor_of(answer.people))
        model = model_of(
            answer,
            verdict=verdict,
            guarantee=self.guarantee_,
            columns=self._names(),
            settings=slot_settings(parties, hub, settings),
            clipping={},
            estimator=record_of(self, noise_variance=rest, observed=answer.rates),
        )
        self._keep(model, people=answer.people, gram=None)
        for warning in verdict.warned:
            warnings.warn(warning, stacklevel=5)
        return self


def _blocks(rows: Rows) -> Iterable[Array]:
    """The rows of a site in this slot, dense."""
    for block in rows.blocks(block_size(rows)):
        yield block.values.toarray() if block.sparse else np.asarray(block.values, dtype=np.float64)
