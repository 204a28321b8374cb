"""`eigenveil simulate`: deal one table out to sites, run their federated fit in this process, and show every round.

The fit runs around a hub (`FederatedPCA`) or, with --graph, between peers (`GossipPCA`).
"""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeAlias, TypeVar, final

import typer

from eigenveil.commands import _options as common
from eigenveil.commands._command import Answer, Command
from eigenveil.commands._ending import despite_noise, leaves, wrote
from eigenveil.commands._files import Reading, report_of, require_output, require_report, written_model
from eigenveil.commands._options import OptionGroup, PageOptions, flag, option
from eigenveil.commands._splits import Parted, SplitRule, part
from eigenveil.data.formats import TableParams
from eigenveil.errors import BudgetExceeded, ParameterError, PeersLost, QuorumLost, require, require_param
from eigenveil.params.declarations.federated import PEERS, FederatedParams, GossipParams
from eigenveil.params.declarations.groups import MissingParams
from eigenveil.params.declarations.plan import FOR_HUBS, FOR_PEERS, SimulateParams
from eigenveil.params.declare import declared, in_options, validate_params
from eigenveil.show.console import busy, is_seen, output
from eigenveil.show.live import live_page
from eigenveil.show.progress import round_name, shown_names

if TYPE_CHECKING:
    from eigenveil.estimators import FederatedPCA, GossipPCA
    from eigenveil.model import Model
    from eigenveil.show.console import View
    from eigenveil.show.simulation import SimulationView

    Estimator: TypeAlias = FederatedPCA | GossipPCA

__all__ = ["COMMAND"]

Kind = TypeVar("Kind")
_SITES: Final = "Sites"
_FAULTS: Final = "Faults (simulated network and clock)"
# This command's panels in place of those in the declarations.
PANELS: Final = {PEERS: f"{PEERS} (with --graph)", "Waiting": _FAULTS}
# Why a parameter of a fit around a hub does not apply between peers.
_WITHOUT_HUB: Final = {
    "topology": "the graph says who talks to whom",
    "fanout": "the graph says who talks to whom",
    "trust": "there is no hub to trust. Choose the noise with {noise}",
    "survivors": "use {quorum} for how many peers must be left",
    "local_steps": "fedpower needs a hub",
    "align": "fedpower needs a hub",
    "participation": "there is no hub that could choose sites",
    "person_sites": "each person has rows at one peer only",
}


@final
@dataclass(frozen=True, kw_only=True)
class _FaultOptions(OptionGroup):
    """What goes wrong on the simulated network."""

    loss: Annotated[
        float, option("SHARE", "The chance that a message is lost. It is then sent again.", shows=True, panel=_FAULTS)
    ] = 0.0
    delay: Annotated[
        float, option("SECONDS", "The longest time a message takes, in simulated seconds.", shows=True, panel=_FAULTS)
    ] = 0.0
    duplicate: Annotated[float, option("SHARE", "The chance that a message arrives twice.", shows=True, panel=_FAULTS)] = 0.0
    dead: Annotated[
        list[str] | None,
        option(
            "SITE",
            "A site that never answers: its name or number, or its value with --split by:COLUMN. SITE@3 stops after three "
            "messages. any:2 is two random sites. May be repeated.",
            panel=_FAULTS,
        ),
    ] = None


def params_of(settings: Mapping[str, Any], explicit: Collection[str]) -> FederatedParams | GossipParams:
    """The checked parameters of the fit: around a hub, or between peers if there is a graph. `explicit` are those typed."""
    return _around_a_hub(settings, explicit) if settings["graph"] is None else _between_peers(settings, explicit)


def _around_a_hub(settings: Mapping[str, Any], explicit: Collection[str]) -> FederatedParams:
    for name in settings:
        if name in FOR_PEERS and name in explicit:
            raise ParameterError(f"{{{name}}} is for peers without a hub. Leave it out, or give {{graph}}, such as ring")
    # Rules on how options go together. What a single option may be was checked when it was read.
    masked = settings["trust"] == "masked"
    method = declared(FederatedParams)["method"]
    # The default needs no leaf to be loaded before a mistake is said.
    require_param(
        method.at_default(settings["method"]) or settings["method"] in method.words,
        "{method=} is for peers without a hub. Give {graph}, such as ring, or another {method}",
        method=settings["method"],
    )
    require_param(
        "trust" not in explicit or masked or settings["epsilon"] is not None,
        "{trust} says who adds the noise, and with {epsilon=None} there is none. Leave it out",
    )
    require_param(
        "colluders" not in explicit or masked, "{colluders} is for {trust=masked} or {graph}. Leave it out, or give one of them"
    )
    return _checked(FederatedParams, settings, explicit)


def _between_peers(settings: Mapping[str, Any], explicit: Collection[str]) -> GossipParams:
    for name in settings:
        if name in FOR_HUBS and name in explicit:
            raise ParameterError(f"{{{name}}} does not apply with {{graph}}: {_WITHOUT_HUB[name]}")
    declaration = declared(GossipParams)["method"]
    method = declaration.default if settings["method"] == "auto" else settings["method"]
    *others, last = declaration.words
    require_param(
        method in (*others, last), f"{{method=}} needs a hub. With {{graph}} use {', '.join(others)} or {last}", method=method
    )
    private, noise = settings["epsilon"] is not None, settings["noise"]
    require_param(
        "noise" not in explicit or private,
        "{noise=} needs a budget, and {epsilon=None} says there is none. Leave out one of them",
        noise=noise,
    )
    require_param(
        "colluders" not in explicit or (private and noise == "pairwise"),
        "{colluders} is for {noise=pairwise} with a budget. Leave it out",
    )
    return _checked(GossipParams, {**settings, "method": method}, explicit)


def _checked(kind: type[Kind], settings: Mapping[str, Any], explicit: Collection[str]) -> Kind:
    # `simulate` has the parameters of both kinds of fit. Each kind takes its own.
    own = {name: settings[name] for name in declared(kind) if name in settings}
    return validate_params(kind, kind(**own), explicit=explicit)


def dead_from(texts: Sequence[str], names: Sequence[str], *, stem: str, rng: Any) -> dict[str, int]:
    """Which of the sites `names` stop, and after how many messages. A name may be given without its `stem`.

    >>> dead_from(["2", "site 0@3"], ["site 0", "site 1", "site 2"], stem="site ", rng=None)
    {'site 2': 0, 'site 0': 3}
    """
    stops: dict[str, int] = {}
    for text in texts:
        name, at, after = text.rpartition("@")
        # A site may have an @ in its name.
        which, messages = (name, int(after)) if at and after.isdecimal() else (text, 0)
        for site in _called(which, names, stem, rng):
            stops[site] = messages
    return stops


def _called(which: str, names: Sequence[str], stem: str, rng: Any) -> list[str]:
    for name in (which, f"{stem}{which}"):
        if name in names:
            return [name]
    kind, colon, count = which.partition(":")
    if colon and kind == "any" and count.isdecimal():
        require(int(count) <= len(names), f"--dead {which}: there are only {len(names)} sites")
        return [names[index] for index in sorted(rng.choice(len(names), size=int(count), replace=False).tolist())]
    shown = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    raise ValueError(f"--dead {which}: no site has this name. The sites are {shown}")


_QUORUM_LOST: Final = 3
_SIMULATED: Final = "a simulation: one process had all rows and dealt them out to these sites, which is not covered"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A fit as `params` of the table `data`, split by `rule` and read as `reading` says."""

    data: Path
    rule: SplitRule
    reading: Reading
    params: FederatedParams | GossipParams
    faults: _FaultOptions
    even_if_noise: bool

    @property
    def exact(self) -> dict[str, Any]:
        """The parameters that an exact fit of the whole table shares with this one."""
        return {name: getattr(self.params, name) for name in ("scale", *declared(MissingParams))}

    @property
    def hub(self) -> bool:
        return isinstance(self.params, FederatedParams)


def simulate(
    context: typer.Context,
    data: common.Data,
    settings: dict[str, Any],
    reading: TableParams,
    sites: Annotated[int | None, option("M", "How many sites to deal the rows out to.", panel=_SITES, min=1)] = None,
    # Sites of real studies differ. A method that fails there should fail in a simulation first.
    split: Annotated[
        str,
        option(
            "HOW",
            "Which site gets which rows. iid: rows are shuffled and dealt out evenly. by:COLUMN: one site for each value "
            "of a column of a csv or parquet file. That column is left out of the data. skewed: site i, counted "
            "from 0, gets a share in proportion to 1 / (i + 1). Rows are sorted along the first principal direction of the "
            "table, except for a random half, so populations differ too. With --person, a person's rows stay together.",
            shows=True,
            panel=_SITES,
        ),
    ] = "iid",
    passthrough: common.Passthrough = None,
    *,
    faults: _FaultOptions,
    # Three values: on, off, and by whether there is a budget.
    compare: Annotated[
        bool | None,
        option(
            "--compare/--no-compare",
            None,
            "Compare with the exact components of the whole table. The guarantee does not cover the comparison.",
            none_means="only with --no-privacy",
        ),
    ] = None,
    guarantee: Annotated[bool, flag("--guarantee", "Print the whole guarantee, with its ledger.")] = False,
    model: Annotated[
        Path | None,
        option("--output", "-o", "FILE", "Write the model to this .safetensors file.", none_means="no model is written"),
    ] = None,
    report: common.ReportFile = None,
    force: common.Force = False,
    even_if_noise: common.EvenIfNoise = False,
    page: PageOptions,
) -> Answer:
    """Try a federated fit on one table, dealt out to simulated sites.

    Use it before a study across organisations, to see how many rounds and
    bytes it takes and how accurate it is. This makes 20 similar sites and
    adds no noise:

      eigenveil simulate people.csv -k 5 --sites 20 --no-privacy

    One site for each hospital, and a hub that no hospital trusts:

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
    read = Reading.of(reading, settings, passthrough)
    params = params_of(settings, common.was_typed(context, settings))
    read.require(data)
    read.require_passes(data, settings)
    if model is not None:
        require_output(model, endings=(".safetensors",), force=force, inputs=[data])
    require_report(report, force=force, inputs=[data, *([] if model is None else [model])])
    rule, shown_at = SplitRule.read(split, sites), page.address()
    from eigenveil.show.report import counted
    from eigenveil.show.simulation import Simulation, SimulationView, simulation_view

    job = _Job(data=data, rule=rule, reading=read, params=params, faults=faults, even_if_noise=even_if_noise)
    simulation = Simulation(
        params=params,
        split=rule.words,
        guarantee=guarantee,
        seeded=common.SEEDED,
        counted=common.COUNTED if read.counted(data) else None,
    )
    view, console = SimulationView(simulation), output(stderr=True)

    def say(text: str) -> None:
        console.print(text, soft_wrap=True)

    with live_page(shown_at, view.page, say=say, secret=is_seen(console)):
        parted, pca, warned = _fitted(job, view)
        learned = replace(_model(job, pca), warnings=tuple(warned))
        view.found(learned, pca.transcript_)
    # Saved before the comparison, which may take as long as the fit and may be interrupted.
    if model is not None:
        learned.save(model)
        wrote(model)
    compared = None
    # Comparing looks at the exact components, which no guarantee covers, so a private run must ask for it.
    if params.epsilon is None if compare is None else compare:
        with busy("comparing with the exact components"):
            compared = _comparison(job, parted, pca)
    among = f"over {counted(len(parted.sites), 'simulated site' if job.hub else 'simulated peer')}"
    # What was compared with the exact components is not in the report: no guarantee covers it.
    more: dict[str, Any] = {"rounds": pca.transcript_, "refused": len(pca.refused_), "among": among}

    def shown() -> "View":
        yield from simulation_view(simulation, pca, learned, compared)
        if model is not None:
            yield from written_model(model)

    return Answer(view=shown, report=lambda: report_of(learned, data=data, **more))


def _fitted(job: _Job, view: "SimulationView") -> tuple[Parted, "Estimator", list[str]]:
    import numpy as np

    seed = job.params.random_state
    require_param(seed is None or seed >= 0, "{random_state} must not be negative, got {@value}", value=seed)
    # The split has its own random stream, so that it reveals nothing about the start basis or the noise.
    rng = np.random.default_rng(None if seed is None else [seed, 2])
    max_sites = job.params.person_sites if isinstance(job.params, FederatedParams) else 1
    parted = part(job.data, job.rule, job.reading, person_sites=max_sites, exact=job.exact, rng=rng)
    dead = dead_from(job.faults.dead or [], list(parted.sites), stem=job.rule.stem, rng=rng)
    try:
        with busy("starting"):
            pca = _estimator(job, parted, dead)
        if not job.hub:
            _say_how_long(pca)

        def simulated() -> "Estimator":
            view.begins(list(parted.sites))
            with _watching(view):
                try:
                    return pca.fit(parted.sites, watch=view.see)
                except KeyboardInterrupt:
                    reached = "no round had ended" if view.last is None else f"{round_name(view.last)} had ended"
                    leaves(f"{reached}, and nothing was written")
                    raise

        # The summary says in its own words what else the estimator warns of.
        spelling = in_options(type(job.params), X="the table")
        fitted, warned = despite_noise(simulated, spelling, even_if_noise=job.even_if_noise)
        return parted, fitted, warned
    except BudgetExceeded:
        leaves(_charged(pca) or "nothing was charged")
        raise
    except (QuorumLost, PeersLost) as error:
        _fail(error, job.params, pca)


# With more exchanges than this in every sum, the command says beforehand that it takes long.
_MANY_STEPS: Final = 1000


def _say_how_long(pca: Any) -> None:
    """Print a hint on stderr if every sum takes many exchanges, because nothing else is printed for a while."""
    import numpy as np

    from eigenveil.protocols.gossip.terms import metropolis, steps_for

    if pca.consensus != "metropolis" or pca.steps is not None or not pca.graph.connected:
        return
    values = np.linalg.eigvalsh(metropolis(pca.graph))
    steps = steps_for("metropolis", float(values[0]), float(values[-2]), 1e-16 / len(values)) if len(values) > 1 else 1
    if steps > _MANY_STEPS:
        line = f"each sum takes about {steps} exchanges on this graph; --consensus chebyshev or tree takes far fewer"
        output(stderr=True).print(line, style="dim", soft_wrap=True)


def _estimator(job: _Job, parted: Parted, dead: Mapping[str, int]) -> "Estimator":
    from eigenveil.estimators import FederatedPCA, GossipPCA
    from eigenveil.runtimes.local import Faults

    params, names = job.params, tuple(parted.sites)
    # The same faults as the tests use, so that a fault seen here can be reproduced there.
    faults = Faults(loss=job.faults.loss, delay=job.faults.delay, duplicate=job.faults.duplicate, dies=dead)
    # Without faults the messages need no simulated clock, which is slower.
    network = None if faults == Faults() else faults
    if isinstance(params, FederatedParams):
        return FederatedPCA(**vars(params), faults=network)
    from eigenveil.estimators.gossip.spec import read_graph

    # The graphs over these peers, from their texts. Each file is read once.
    texts = {"graph": params.graph, "noise_graph": params.noise_graph}
    graphs = {name: read_graph(name, text, names)[0] for name, text in texts.items() if text is not None}
    return GossipPCA(**{**vars(params), **graphs}, faults=network)


def _charged(pca: "Estimator") -> str:
    """What an unfinished fit has spent, at the party that spent most; empty if nothing was spent."""
    ledgers = pca.unfinished_.ledgers.values() if hasattr(pca, "unfinished_") else ()
    # The one that spent most is the one whose people lost most.
    spent = max((ledger.spent_mu for ledger in ledgers), default=0.0)
    return f"charged so far: mu = {spent:.3g}" if spent > 0 else ""


def _fail(error: QuorumLost | PeersLost, params: FederatedParams | GossipParams, pca: "Estimator") -> NoReturn:
    """End with one line that names who was missing. A simulation cannot be resumed."""
    from rich.text import Text

    from eigenveil.errors import plain

    if os.environ.get("EIGENVEIL_TRACEBACK"):
        raise error
    missing, charged = shown_names(error.missing), _charged(pca)
    if isinstance(error, PeersLost):
        why, number = error.reason(in_options(SimulateParams)), len(pca.unfinished_.transcript) + 1
        reason = f"peers lost in round {number}: {missing} cannot be reached, and the others cannot continue: {why}"
    else:
        masked = isinstance(params, FederatedParams) and params.trust == "masked"
        name = "survivors" if masked else "quorum"
        fewest = getattr(params, name)
        needed = f"By default every site must answer; allow for missing ones with --{name} 0.8"
        needed = needed if fewest is None else f"--{name} is {fewest:g}: lower it to continue with fewer sites"
        reason = f"quorum lost in round {error.round + 1} ({error.stage}): no answer from {missing}. {needed}"
    line = f"error: {reason}; {charged}" if charged else f"error: {reason}"
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
def _watching(view: "SimulationView") -> Iterator[None]:
    """Draw the rounds on stderr inside the context, if that is a terminal."""
    from rich.live import Live

    console = output(stderr=True)
    if not is_seen(console):
        yield
        return
    # Transient, because the table of rounds that follows has all of it.
    with Live(view, console=console, refresh_per_second=8, transient=True):
        yield


def _comparison(job: _Job, parted: Parted, pca: "Estimator") -> str:
    """The captured share of the variance of the whole table, and the largest sine to its exact components."""
    import numpy as np

    from eigenveil.core.rows import block_size
    from eigenveil.estimators import PrivatePCA
    from eigenveil.linalg import sines

    exact = PrivatePCA(pca.n_components_, epsilon=None, center=job.params.center, **job.exact).fit(parted.pooled)
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


COMMAND = Command(
    run=simulate, params=SimulateParams, panel="Fit", alone=True, reads=True, ahead=("sites", "split"), panels=PANELS
)
