"""`eigenveil simulate`: deal one table out to sites, run their federated fit in this process, and show every round.

The fit runs around a hub (`FederatedPCA`) or, with --graph, between peers (`GossipPCA`).
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias, final

import typer

from eigenveil.commands import _options as option
from eigenveil.commands import _simulate_options as simulating
from eigenveil.commands import _simulate_peers as peers
from eigenveil.commands._bounds_file import was_given
from eigenveil.commands._command import Command
from eigenveil.commands._ending import despite_noise, leaves, wrote
from eigenveil.commands._files import Reading, require_output
from eigenveil.commands._options import Page, PageToken, page_at
from eigenveil.commands._outputs import require_report, write_model
from eigenveil.commands._splits import Parted, SplitRule, part
from eigenveil.data.formats import TableParams
from eigenveil.errors import BudgetExceeded, PeersLost, QuorumLost, require_param
from eigenveil.params import FederatedParams, GossipParams, SimulateParams, declared
from eigenveil.params.declarations.reading import MissingParams
from eigenveil.params.words import in_options
from eigenveil.show.console import busy, is_seen, output
from eigenveil.show.live.address import PageAddress
from eigenveil.show.live.contents import PageBudget, PageState, scree_words
from eigenveil.show.live.live import live_page

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from eigenveil.estimators import FederatedPCA, GossipPCA
    from eigenveil.estimators.rounds import Round
    from eigenveil.model import Model

    Estimator: TypeAlias = FederatedPCA | GossipPCA

__all__ = ["COMMAND"]

_QUORUM_LOST: Final = 3
_NAMED: Final = 10
_SIMULATED: Final = "a simulation: one process had all rows and dealt them out to these sites, which is not covered"
_COMPARED: Final = "The captured variance is NOT covered by the guarantee: it was computed from all rows."


@final
@dataclass(frozen=True, slots=True)
class _Job:
    """What to do: split `data` by `rule`, read as `reading` says, and fit as `asked`. No `target`: no model."""

    data: Path
    rule: SplitRule
    reading: Reading
    asked: FederatedParams | GossipParams
    loss: float
    delay: float
    duplicate: float
    dead: Sequence[str]
    target: Path | None
    report: Path | None
    compare: bool
    guarantee: bool
    even_if_noise: bool
    page: PageAddress | None

    @property
    def private(self) -> bool:
        return self.asked.epsilon is not None

    @property
    def exact(self) -> dict[str, Any]:
        """The parameters that an exact fit of the whole table shares with this one."""
        return {name: getattr(self.asked, name) for name in ("scale", *declared(MissingParams))}

    @property
    def hub(self) -> bool:
        return isinstance(self.asked, FederatedParams)


def simulate(
    context: typer.Context,
    data: option.Data,
    settings: dict[str, Any],
    reading: TableParams,
    sites: simulating.Sites = None,
    split: simulating.Split = "iid",
    carry: option.Carry = None,
    loss: simulating.Loss = 0.0,
    delay: simulating.Delay = 0.0,
    duplicate: simulating.Duplicate = 0.0,
    dead: simulating.Dead = None,
    compare: simulating.Compare = None,
    guarantee: simulating.ShowGuarantee = False,
    model: simulating.Output = None,
    report: option.ReportFile = None,
    force: option.Force = False,
    even_if_noise: option.EvenIfNoise = False,
    page: Page = None,
    page_token: PageToken = None,
) -> None:
    """Try a federated fit on one table, dealt out to simulated sites.

    Use it before a study across organisations, to see how many rounds and
    bytes it takes and how accurate it is. This makes 20 similar sites and
    adds no noise:

      eigenveil simulate people.csv -k 5 --sites 20 --no-privacy

    One site for each hospital, and a hub that nobody trusts:

      eigenveil simulate visits.parquet -k 5 --split by:hospital \\
        --epsilon 1 --delta 1e-6 --trust site

    The same with masked sums: the hub sees no hospital's own numbers, and
    the noise is that of a trusted hub. Two hospitals do not answer:

      eigenveil simulate visits.parquet -k 5 --split by:hospital \\
        --epsilon 1 --delta 1e-6 \\
        --trust masked --survivors 0.8 --dead any:2

    FedPower with four local steps, at sites that differ. One site is down,
    and a tenth of the messages are lost:

      eigenveil simulate people.npy -k 5 --sites 20 --split skewed \\
        --no-privacy --method fedpower --local-steps 4 \\
        --dead 3 --loss 0.1 --quorum 0.8

    Peers on a ring without a hub. The noise cancels between neighbours, so
    the sum has little more noise than with a trusted hub:

      eigenveil simulate people.csv -k 5 --sites 20 --graph ring \\
        --consensus chebyshev --epsilon 1 --delta 1e-6

    A denser graph. One peer stops after fifty messages, and the budget
    allows for one restarted round:

      eigenveil simulate people.csv -k 5 --sites 20 \\
        --graph random-regular:4 --dead 3@50 --restarts 1 \\
        --epsilon 1 --delta 1e-6

    The process that runs this has all rows. The table at the end has one
    line for each round: who answered, bytes on all links, how far the
    directions moved (the sine of the largest principal angle), and the
    charge.
    """
    read = Reading(reading, settings["person"], tuple(carry or ()), gaps=settings["missing"] != "refuse")
    asked = simulating.asked_of(settings, was_given(context, tuple(settings)))
    read.require(data)
    read.require_passes(data, settings)
    if model is not None:
        require_output(model, endings=(".safetensors",), force=force, inputs=[data])
    require_report(report, force=force, inputs=[data, *([] if model is None else [model])])
    _run(
        _Job(
            data,
            SplitRule.read(split, sites),
            read,
            asked,
            loss,
            delay,
            duplicate,
            dead or [],
            model,
            report,
            # Comparing looks at the exact components, which no guarantee covers, so a private run must ask for it.
            asked.epsilon is None if compare is None else compare,
            guarantee,
            even_if_noise,
            page_at(page, page_token),
        )
    )


def _run(job: _Job) -> None:
    view = _View(job)

    def say(words: str) -> None:
        output(stderr=True).print(words, soft_wrap=True)

    with live_page(job.page, view.page, say=say, secret=is_seen(output(stderr=True))):
        parted, pca, warned = _fitted(job, view)
        model = replace(_model(job, pca), warnings=tuple(warned))
        view.found(model, pca.transcript_)
    # Saved before the comparison, which may take as long as the fit and may be interrupted.
    if job.target is not None:
        model.save(job.target)
        wrote(job.target)
    compared = None
    if job.compare:
        with busy("comparing with the exact components"):
            compared = _comparison(job, parted, pca)
    _show(output(), job, pca, model, compared)
    _show_guarantee(output(), job, model)
    # What was compared with the exact components is not in the report: no guarantee covers it.
    write_model(
        job.report,
        model,
        data=job.data,
        rounds=pca.transcript_,
        refused=len(pca.refused_),
        among=_among(job, parted),
    )


def _among(job: _Job, parted: Parted) -> str:
    from eigenveil.show.report import counted

    return f"over {counted(len(parted.sites), 'simulated site' if job.hub else 'simulated peer')}"


def _fitted(job: _Job, view: "_View") -> tuple[Parted, "Estimator", list[str]]:
    import numpy as np

    seed = job.asked.random_state
    require_param(seed is None or seed >= 0, "{random_state} must not be negative, got {@value}", value=seed)
    # The split has its own random stream, so that it reveals nothing about the start basis or the noise.
    rng = np.random.default_rng(None if seed is None else [seed, 2])
    several = job.asked.person_sites if isinstance(job.asked, FederatedParams) else 1
    parted = part(job.data, job.rule, job.reading, person_sites=several, exact=job.exact, rng=rng)
    dead = simulating.dead_from(job.dead, list(parted.sites), stem=job.rule.stem, rng=rng)
    try:
        with busy("starting"):
            pca = _estimator(job, parted, dead)
        if not job.hub:
            peers.say_how_long(pca)

        def carried() -> "Estimator":
            view.begins(list(parted.sites))
            with _watching(view):
                return _carried(pca, parted, view)

        # The summary says in its own words what else the estimator warns of.
        words = in_options(type(job.asked), X="the table")
        fitted, warned = despite_noise(carried, words, even_if_noise=job.even_if_noise)
        return parted, fitted, warned
    except BudgetExceeded:
        leaves(_charged(pca) or "nothing was charged")
        raise
    except (QuorumLost, PeersLost) as error:
        _fail(error, job.asked, pca)


def _estimator(job: _Job, parted: Parted, dead: Mapping[str, int]) -> "Estimator":
    from eigenveil.estimators import FederatedPCA, GossipPCA
    from eigenveil.runtimes import Faults

    # The same faults as the tests use, so that a fault seen here can be reproduced there.
    faults = Faults(loss=job.loss, delay=job.delay, duplicate=job.duplicate, dies=dead)
    # Without faults the messages need no simulated clock, which is slower.
    network = None if faults == Faults() else faults
    if isinstance(job.asked, FederatedParams):
        return FederatedPCA(**vars(job.asked), faults=network)
    return GossipPCA(**{**vars(job.asked), **peers.graphs_of(job.asked, list(parted.sites))}, faults=network)


def _carried(pca: "Estimator", parted: Parted, view: "_View") -> "Estimator":
    try:
        return pca.fit(parted.sites, watch=view.see)
    except KeyboardInterrupt:
        reached = "no round had ended" if view.last is None else f"{_named(view.last)} had ended"
        leaves(f"{reached}, and nothing was written")
        raise


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _named(done: "Round") -> str:
    return f"round {done.number + 1} ({done.stage})"


def _charged(pca: "Estimator") -> str:
    """What an unfinished fit has spent, at the party that spent most; empty if nothing was spent."""
    ledgers = pca.unfinished_.ledgers.values() if hasattr(pca, "unfinished_") else ()
    # The one that spent most is the one whose people lost most.
    spent = max((ledger.spent_mu for ledger in ledgers), default=0.0)
    return f"charged so far: mu = {spent:.3g}" if spent > 0 else ""


def _fail(error: QuorumLost | PeersLost, asked: FederatedParams | GossipParams, pca: "Estimator") -> NoReturn:
    """End with one line that names who was missing. A simulation cannot be resumed."""
    from rich.text import Text

    from eigenveil.show.terminal import plain

    if os.environ.get("EIGENVEIL_TRACEBACK"):
        raise error
    missing, charged = _some(error.missing), _charged(pca)
    if isinstance(error, PeersLost):
        words = peers.lost_words(error, missing=missing, ended=len(pca.unfinished_.transcript))
    else:
        masked = isinstance(asked, FederatedParams) and asked.trust == "masked"
        name = "survivors" if masked else "quorum"
        fewest = getattr(asked, name)
        needed = f"By default every site must answer; allow for missing ones with --{name} 0.8"
        needed = needed if fewest is None else f"--{name} is {fewest:g}: lower it to go on with fewer sites"
        words = f"quorum lost in round {error.round + 1} ({error.stage}): no answer from {missing}. {needed}"
    line = f"error: {words}; {charged}" if charged else f"error: {words}"
    output(stderr=True).print(Text(plain(line), style="red"), soft_wrap=True)
    raise typer.Exit(_QUORUM_LOST) from None


def _model(job: _Job, pca: "Estimator") -> "Model":
    """The model with what is public of the split and the file, and with the caveat that it was simulated."""
    model = job.reading.recorded_in(pca.model_)
    guarantee = model.guarantee
    # One process has the rows of all sites here, which no study across organisations would allow.
    if guarantee.epsilon is not None:
        guarantee = replace(guarantee, caveats=(*guarantee.caveats, _SIMULATED))
    return replace(model, settings={**model.settings, "split": job.rule.words}, guarantee=guarantee)


@contextmanager
def _watching(view: "_View") -> Iterator[None]:
    """Draw the rounds on stderr inside the context, if that is a terminal."""
    from rich.live import Live

    console = output(stderr=True)
    if not is_seen(console):
        yield
        return
    # Transient, because the table of rounds that follows has all of it.
    with Live(view, console=console, refresh_per_second=8, transient=True):
        yield


@final
class _View:
    """The rounds so far. Changes in place. Other threads draw it and only read complete values."""

    def __init__(self, job: _Job) -> None:
        self._job, self._sites = job, tuple[str, ...]()
        self._rounds: tuple[Round, ...] = ()
        self._model: Model | None = None
        self._word = "sites" if job.hub else "peers"
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

    def __rich__(self) -> "Text":
        from rich.text import Text

        return Text(self._now())

    def page(self) -> PageState:
        """The same for a browser, with everything that is printed at the end."""
        rounds, model = self._rounds, self._model
        variances, floor, known = PageState.scree(model, rounds)
        # Before a round has ended nobody can be called missing.
        answered = frozenset(self.last.answered) if self.last is not None else frozenset(self._sites)
        return PageState(
            f"Simulated study: {self._word}" + " around a hub" * self._job.hub,
            self._now() if model is None else "The fit has ended. The terminal has the summary.",
            facts=tuple(self._facts(rounds, variances)),
            parties=tuple((name, name in answered) for name in self._sites),
            there="answered in the last round",
            rounds=rounds,
            spending=self._spending(rounds),
            variances=variances,
            floor=floor,
            final=known,
            warnings=() if model is None else model.warnings,
        )

    def _now(self) -> str:
        from eigenveil.show.terminal import in_bytes

        last = self.last
        if last is None:
            return f"{len(self._sites)} {self._word}, first round, {self._seconds()} s"
        moved = "" if last.movement is None else f", moved by {last.movement:.1e}"
        answered = f"{len(last.answered)} of {len(self._sites)} {self._word} answered"
        sent = sum(done.bytes_up + done.bytes_down for done in self._rounds)
        return f"{_named(last)}: {answered}{moved}, {in_bytes(sent)} in {self._seconds()} s"

    def _facts(self, rounds: "Sequence[Round]", variances: Sequence[float]) -> Iterator[tuple[str, str]]:
        if rounds:
            yield "rounds", str(len(rounds))
            yield "traffic", _traffic(rounds)
        if variances:
            yield "variances", scree_words(variances)

    def _spending(self, rounds: "Sequence[Round]") -> PageBudget | None:
        from eigenveil.core.accounting import epsilon_of
        from eigenveil.show.terminal import spent_mu

        epsilon, delta = self._job.asked.epsilon, self._job.asked.delta
        if epsilon is None or delta is None:
            return None
        if isinstance(epsilon, tuple):
            # One budget at the hub and one at each site: their charges are in the table of rounds.
            return PageBudget(f"mu = {spent_mu(rounds):.3g} on the ledger that was charged most")
        spent = epsilon_of(spent_mu(rounds), delta)
        return PageBudget(f"epsilon {spent:.3g} of {epsilon:g}, at delta = {delta:g}", spent / epsilon)

    def _seconds(self) -> int:
        return int(time.monotonic() - self._began)


def _show(console: "Console", job: _Job, pca: "Estimator", model: "Model", compared: str | None) -> None:
    from eigenveil.show.terminal import (
        above_floor,
        fill_line,
        labelled,
        nothing_found,
        nothing_stands_out,
        rounds_table,
        warned,
        warning_panel,
    )

    if job.private and job.asked.random_state is not None:
        console.print(warning_panel(option.SEEDED))
    if nothing_stands_out(model):
        console.print(nothing_found())
    console.print(rounds_table(pca.transcript_))
    console.print()
    facts = list(_facts(job, pca))
    console.print(labelled(facts if compared is None else [*facts, ("captured", compared)]))
    if job.private and compared is not None:
        console.print(_COMPARED, style="yellow")
    if model.noise_floor > 0:
        console.print(above_floor(model))
    for line in (*fill_line(model), *warned(model)):
        console.print(line)
    if pca.tied_:
        console.print("The last component is not unique: the next direction has the same variance.", style="yellow")
    if job.private and job.reading.counted(job.data):
        console.print(warning_panel(option.COUNTED))


def _facts(job: _Job, pca: "Estimator") -> Iterator[tuple[str, str]]:
    from eigenveil.estimators import FederatedPCA

    rounds = pca.transcript_
    yield "method", pca.plan_.headline
    if isinstance(pca, FederatedPCA):
        yield "sites", f"{len(pca.sites_)} in a {pca.model_.settings['topology']}, split {job.rule.words}"
    else:
        assert isinstance(job.asked, GossipParams)
        yield from peers.facts(pca, split=job.rule.words, asked=job.asked.graph)
    for done in rounds:
        if done.missing:
            # Peers keep what was already released with noise, so only the round itself restarts.
            noisy = isinstance(job.asked, GossipParams) and (job.private or job.asked.noise == "published")
            again = ", which restarted" if noisy else ", and the fit restarted"
            again, label = again * done.restarted, "no answer" if job.hub else "left behind"
            yield label, f"{_some(done.missing)} in round {done.number + 1}{again}"
    yield "rounds", str(len(rounds)) + ("" if pca.converged_ is not False else ", without converging")
    yield "traffic", _traffic(rounds) if isinstance(pca, FederatedPCA) else peers.traffic(pca)
    if pca.refused_:
        yield "refused", f"{len(pca.refused_)} messages, late or repeated"


def _traffic(rounds: Sequence["Round"]) -> str:
    from eigenveil.show.terminal import in_bytes

    # Bytes as they would be on the wire, headers included.
    up, down = sum(done.bytes_up for done in rounds), sum(done.bytes_down for done in rounds)
    return f"{in_bytes(up)} up, {in_bytes(down)} down"


def _comparison(job: _Job, parted: Parted, pca: "Estimator") -> str:
    """The captured share of the variance of the whole table, and the largest sine to its exact components."""
    import numpy as np

    from eigenveil.core.rows import block_size
    from eigenveil.estimators import PrivatePCA
    from eigenveil.linalg import sines

    exact = PrivatePCA(pca.n_components_, epsilon=None, center=job.asked.center, **job.exact).fit(parted.pooled)
    models = (replace(exact.model_, components=pca.components_), exact.model_)
    captured = np.zeros(2)
    # Block by block, so that the scores of all rows are never in memory at once.
    for block in parted.pooled.blocks(block_size(parted.pooled)):
        weights = 1.0 if block.weights is None else block.weights[:, None]
        # Where incomplete rows are left out, they have no scores.
        captured += [float(np.nansum(weights * np.square(model.transform(block.values)))) for model in models]
    # In a table without variance every answer is as good as the exact one.
    share = captured[0] / captured[1] if captured[1] > 0 else 1.0
    sine = float(sines(pca.subspace_.basis, exact.subspace_.basis)[0])
    return (
        f"{share:.4%} of the variance that the exact components of the whole table capture; "
        f"sine of the largest principal angle {sine:.1e}"
    )


def _show_guarantee(console: "Console", job: _Job, model: "Model") -> None:
    from rich.text import Text

    from eigenveil.show.terminal import guarantee_panel

    guarantee = model.guarantee
    console.print()
    if job.guarantee:
        console.print(guarantee_panel(guarantee))
    else:
        console.print(Text(guarantee.headline, style=f"bold {'green' if guarantee.private else 'red'}"))
        if guarantee.epsilon is not None:
            console.print("--guarantee shows all of it: from whom it protects, and what it assumes", style="dim")
    if job.target is not None:
        console.print(f"\nmodel written to {job.target}", soft_wrap=True)
        console.print(f"show it again with: eigenveil inspect {job.target}", style="dim", soft_wrap=True)


COMMAND = Command(
    simulate, SimulateParams, panel="Fit", alone=True, reads=True, ahead=("sites", "split"), panels=simulating.PANELS
)
