"""A simulated study, while it runs and when it is over: its rounds, its facts, its live page and its guarantee."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, final

from rich.text import Text

from eigenveil.core.accounting import epsilon_of
from eigenveil.params.declarations.federated import FederatedParams, GossipParams
from eigenveil.show.live import PageBudget, PageState, scree_words
from eigenveil.show.marks import in_bytes
from eigenveil.show.progress import round_name, shown_names
from eigenveil.show.report import components_of, spent_mu
from eigenveil.show.terminal import above_floor, guarantee_panel, labelled, nothing_found, remarks, rounds_table, warning_panel

if TYPE_CHECKING:
    from eigenveil.estimators import FederatedPCA, GossipPCA
    from eigenveil.estimators.terms import Round
    from eigenveil.model import Model
    from eigenveil.show.console import View

    Estimator: TypeAlias = FederatedPCA | GossipPCA

_COMPARED: Final = "The captured variance is NOT covered by the guarantee: it was computed from all rows."


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What a simulation was asked, as far as that is shown."""

    params: FederatedParams | GossipParams
    split: str  # How rows were dealt out.
    guarantee: bool  # Whether all of the guarantee is shown.
    seeded: str  # The warning of a known seed.
    counted: str | None  # The warning that columns were counted in the file, None if they were not.

    @property
    def private(self) -> bool:
        return self.params.epsilon is not None

    @property
    def hub(self) -> bool:
        return isinstance(self.params, FederatedParams)


@final
class SimulationView:
    """The rounds so far. Changes in place. Other threads draw it and only read complete values."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation, self._sites = simulation, tuple[str, ...]()
        self._rounds: tuple[Round, ...] = ()
        self._model: Model | None = None
        self._word = "sites" if simulation.hub else "peers"
        self._began = time.monotonic()

    def begins(self, sites: Sequence[str]) -> None:
        """The fit begins, among these sites."""
        self._sites, self._began = tuple(sites), time.monotonic()

    @property
    def last(self) -> "Round | None":
        """The last round that ended."""
        return self._rounds[-1] if self._rounds else None

    def see(self, done: "Round") -> None:
        """Record a round that ended."""
        # A new tuple: a thread that draws may hold the old one.
        self._rounds = (*self._rounds, done)

    def found(self, model: "Model", rounds: "Sequence[Round]") -> None:
        """The fit has ended, with these rounds: the last one has the bytes of the result by now."""
        self._model, self._rounds = model, tuple(rounds)

    def __rich__(self) -> Text:
        return Text(self._now())

    def page(self) -> PageState:
        """The same for a browser, with everything that is printed at the end."""
        rounds, model = self._rounds, self._model
        variances, floor, is_final = PageState.scree(model, rounds)
        # Before a round has ended nobody can be called missing.
        answered = frozenset(self.last.answered) if self.last is not None else frozenset(self._sites)
        return PageState(
            title=f"Simulated study: {self._word}" + " around a hub" * self._simulation.hub,
            now=self._now() if model is None else "The fit has ended. The terminal has the summary.",
            facts=tuple(self._facts(rounds, variances)),
            parties=tuple((name, name in answered) for name in self._sites),
            presence="answered in the last round",
            rounds=rounds,
            spending=self._spending(rounds),
            variances=variances,
            floor=floor,
            final=is_final,
            warnings=() if model is None else model.warnings,
        )

    def _now(self) -> str:
        last = self.last
        if last is None:
            return f"{len(self._sites)} {self._word}, first round, {self._seconds()} s"
        moved = "" if last.movement is None else f", moved by {last.movement:.1e}"
        answered = f"{len(last.answered)} of {len(self._sites)} {self._word} answered"
        sent = sum(done.bytes_up + done.bytes_down for done in self._rounds)
        return f"{round_name(last)}: {answered}{moved}, {in_bytes(sent)} in {self._seconds()} s"

    def _facts(self, rounds: "Sequence[Round]", variances: Sequence[float]) -> Iterator[tuple[str, str]]:
        if rounds:
            yield "rounds", str(len(rounds))
            yield "traffic", _traffic(rounds)
        if variances:
            yield "variances", scree_words(variances)

    def _spending(self, rounds: "Sequence[Round]") -> PageBudget | None:
        epsilon, delta = self._simulation.params.epsilon, self._simulation.params.delta
        if epsilon is None or delta is None:
            return None
        if isinstance(epsilon, tuple):
            # One budget at the hub and one at each site: their charges are in the table of rounds.
            return PageBudget(f"mu = {spent_mu(rounds):.3g} on the ledger that was charged most")
        spent = epsilon_of(spent_mu(rounds), delta)
        return PageBudget(f"epsilon {spent:.3g} of {epsilon:g}, at delta = {delta:g}", spent / epsilon)

    def _seconds(self) -> int:
        return int(time.monotonic() - self._began)


def simulation_view(simulation: Simulation, pca: "Estimator", model: "Model", compared: str | None) -> "View":
    """What the fit found, round by round, and what was `compared` with the exact components."""
    if simulation.private and simulation.params.random_state is not None:
        yield warning_panel(simulation.seeded)
    part = components_of(model)
    yield from nothing_found(part)
    yield rounds_table(pca.transcript_)
    yield ""
    facts = list(_facts(simulation, pca))
    yield labelled(facts if compared is None else [*facts, ("captured", compared)])
    if simulation.private and compared is not None:
        yield Text(_COMPARED, style="yellow")
    if part.noise_floor > 0:
        yield above_floor(part)
    yield from remarks(part, model.warnings)
    if pca.tied_:
        yield Text("The last component is not unique: the next direction has the same variance.", style="yellow")
    if simulation.private and simulation.counted:
        yield warning_panel(simulation.counted)
    yield from _guarantee(simulation, model)


def _facts(simulation: Simulation, pca: "Estimator") -> Iterator[tuple[str, str]]:
    from eigenveil.estimators import FederatedPCA

    rounds = pca.transcript_
    yield "method", pca.plan_.headline
    if isinstance(pca, FederatedPCA):
        yield "sites", f"{len(pca.sites_)} in a {pca.model_.settings['topology']}, split {simulation.split}"
    else:
        assert isinstance(simulation.params, GossipParams)
        yield from _peer_facts(pca, split=simulation.split, spec=simulation.params.graph)
    for done in rounds:
        if done.missing:
            # Peers keep what was already released with noise, so only the round itself begins again.
            noisy = isinstance(simulation.params, GossipParams) and simulation.private
            again = ", which restarted" if noisy else ", and the fit restarted"
            again, label = again * done.restarted, "no answer" if simulation.hub else "left behind"
            yield label, f"{shown_names(done.missing)} in round {done.number + 1}{again}"
    yield "rounds", str(len(rounds)) + ("" if pca.converged_ is not False else ", without converging")
    yield "traffic", _traffic(rounds) if isinstance(pca, FederatedPCA) else _peer_traffic(pca)
    if pca.refused_:
        yield "refused", f"{len(pca.refused_)} messages, late or repeated"


def _traffic(rounds: Sequence["Round"]) -> str:
    # Bytes as they would be on the wire, headers included.
    up, down = sum(done.bytes_up for done in rounds), sum(done.bytes_down for done in rounds)
    return f"{in_bytes(up)} up, {in_bytes(down)} down"


def _peer_facts(pca: "GossipPCA", *, split: str, spec: str) -> Iterator[tuple[str, str]]:
    """The graph (as `spec`), how the peers compute sums on it, and the noise in those sums."""
    graph = pca.terms_.graph
    now = pca.terms_.among(set(graph.names) - set(pca.peers_))
    apart = f"at most {graph.diameter} link{'s' * (graph.diameter != 1)} apart"
    yield "graph", f"{spec}: {len(graph.names)} peers, {len(graph.edges)} edges, {apart}, split {split}"
    among = "" if len(pca.peers_) == len(graph.names) else f", among the {len(pca.peers_)} who are left"
    mixing = now.mixing
    steps = f"{mixing.steps} step{'s' * (mixing.steps != 1)} for each sum{among}"
    left = "exact" if mixing.left == 0 else f"{mixing.left:.1e} of the differences between peers remains"
    yield "consensus", f"{mixing.consensus}: {steps}; {left}"
    if now.pairing is not None:
        few = "one colluder" if pca.colluders == 1 else f"{pca.colluders} colluders"
        yield "noise", f"pairwise, against {few}: {now.pairing.excess:.4g} times that of a trusted hub{among}"
    elif pca.epsilon is not None:
        yield "noise", f"independent: {len(pca.peers_) ** 0.5:.4g} times that of a trusted hub{among}"
    yield "disagreement", f"{pca.disagreement_:.1e}, the sine of the largest principal angle between peers"


def _peer_traffic(pca: "GossipPCA") -> str:
    """Bytes sent by the busiest peer, and by all."""
    busiest = max(pca.traffic_, key=pca.traffic_.__getitem__)
    return f"{in_bytes(pca.traffic_[busiest])} from {busiest}, the busiest peer; {in_bytes(sum(pca.traffic_.values()))} in all"


def _guarantee(simulation: Simulation, model: "Model") -> "View":
    guarantee = model.guarantee
    yield ""
    if simulation.guarantee:
        yield guarantee_panel(guarantee)
    else:
        yield Text(guarantee.headline, style=f"bold {'green' if guarantee.private else 'red'}")
        if guarantee.epsilon is not None:
            yield Text("--guarantee shows all of it: from whom it protects, and what it assumes", style="dim")
