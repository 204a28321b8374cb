"""Taking part in a study with one's own table: the steps that `eigenveil site` and `eigenveil peer` share.

The consent screen comes before anything is written. A person or a policy agrees before anything is sent. Results are on
disk before the study is closed in the ledger.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Generic, Literal, TypeVar, final

import typer

from eigenveil.commands import _consent as consent
from eigenveil.commands import _network as network
from eigenveil.commands._files import ENDINGS, PassphraseFile, on_cluster, passphrase_from, require_report, write
from eigenveil.commands._network import TOO_FEW, Results, refused, run_protocol, say_red, say_spent, spending_of
from eigenveil.commands._options import PageOptions, flag, option
from eigenveil.commands.transform import require_own_names
from eigenveil.data.formats import OUTPUTS, require_passthrough
from eigenveil.errors import ProtocolError, require
from eigenveil.show.disclosure import disclose
from eigenveil.show.live import live_page
from eigenveil.show.progress import PartyView, StatusWriter

if TYPE_CHECKING:
    from eigenveil.ledger.durable import DurableLedger, StudyReplay
    from eigenveil.model import Model
    from eigenveil.network.agents.peer import PeerAgent
    from eigenveil.network.agents.site_data import Holder, SiteData
    from eigenveil.network.agents.star import SiteAgent
    from eigenveil.network.study import Place, StudyFile
    from eigenveil.show.agreement import Fact
    from eigenveil.show.values import Report

__all__ = ["TABLE", "JoinOptions", "Joining", "Kind", "opening", "take_part"]

_REFUSED: Final = 2
TABLE: Final = (
    "Your table: csv (also .gz, .zst), Parquet (a file or a folder), Arrow, xlsx, jsonl, .npy or .npz. Columns that the "
    "study does not name are not read."
)

Agent = TypeVar("Agent", "SiteAgent", "PeerAgent")
AnyAgent = TypeVar("AnyAgent", bound="Holder")


@dataclass(frozen=True, kw_only=True)
class JoinOptions(PageOptions):
    """The options that `eigenveil site` and `eigenveil peer` share."""

    study: network.Study
    keys: network.Keys = None
    policy: Annotated[Path | None, option("FILE", "Your rules; `eigenveil policy new` writes them.", none_means="none")] = None
    ledger: Annotated[Path, option("FILE", "Your ledger: what all studies have spent in total.", shows=True)] = Path("ledger.db")
    # No default from the file name: a copy of the table under another name would get a second budget.
    dataset: Annotated[
        str | None,
        option(
            "NAME",
            "Your name for the people in the table. Budgets attach to this name for as long as it is used.",
            none_means="the only name in the ledger",
        ),
    ] = None
    yes: Annotated[
        bool, flag("--yes", "Do not ask: --policy, which must say who is protected, consents to what it does not refuse.")
    ] = False
    model: Annotated[
        Path | None, option("--output", "-o", "FILE", "Where the model goes.", none_means="STUDY-NAME.safetensors in this folder")
    ] = None
    scores: Annotated[
        Path | None,
        option(
            "FILE",
            "Where the scores of your rows go: .csv, .xlsx, .jsonl, .parquet or .npy. They are raw data and stay here.",
            none_means="STUDY-NAME-scores.csv in this folder",
        ),
    ] = None
    passthrough: Annotated[
        list[str] | None,
        option(
            "NAMES",
            "Columns that are written next to your scores, such as an id or a label: names or patterns. They stay here, and "
            "no other party gets them. May be repeated.",
        ),
    ] = None
    report: Annotated[
        Path | None,
        option(
            "FILE",
            "At the end, write a report of the result to show and sign: .html, .json, or .pdf if Chromium is installed. "
            "It has no scores.",
        ),
    ] = None
    rehearsal: Annotated[bool, flag("--rehearsal", "Take part in a study with a test seed, WHICH PROTECTS NOBODY.")] = False
    dry_run: Annotated[bool, flag("--dry-run", "Show what would be revealed, and stop. Nothing is written or sent.")] = False
    memory: network.Memory = network.MEMORY
    force: Annotated[bool, flag("--force", "Overwrite outputs that exist; never a ledger.")] = False
    passphrase_file: PassphraseFile = None
    require_head: network.RequireHead = None

    def __post_init__(self) -> None:
        # A flag alone is no consent: with --yes the rules in the policy are what agrees.
        agreed = not self.yes or self.policy is not None
        require(agreed, "--yes needs --policy: without a person, consent must come from rules")
        network.bytes_allowed(self.memory)


@final
@dataclass(frozen=True, slots=True)
class Joining:
    """How things stand when a run ends early."""

    state: "StudyReplay | None"  # The study in the ledger.
    model: Path | None  # The file, if it was written.
    begun: bool  # Whether all parties had begun.


class Kind(ABC, Generic[Agent]):
    """Where sites and peers differ."""

    role: ClassVar[Literal["site", "peer"]]

    @abstractmethod
    def agent(self, study: "StudyFile", **settings: Any) -> Agent:
        """The agent, before it has sent or spent anything."""

    @abstractmethod
    def leaving(self, agent: Agent) -> Iterator["Fact"]:
        """What leaves, and to whom."""

    @abstractmethod
    def joined(self, state: "StudyReplay") -> str:
        """How a study continues that was joined before; a `ValueError` if it cannot."""

    @abstractmethod
    def run(
        self, agent: Agent, deliver: Callable[["Model"], None], *, note: str | None, voice: StatusWriter
    ) -> Coroutine[Any, Any, "Model"]:
        """Take part to the end."""

    @abstractmethod
    def left(self, agent: Agent, standing: Joining) -> str:
        """How to continue after a signal."""

    @abstractmethod
    def lost(self, agent: Agent, error: ProtocolError, standing: Joining) -> str | None:
        """What to say if other parties are missing; None if the error is another one."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Opening(Generic[AnyAgent]):
    """A study at the ledger of the party that is asked to take part. Nothing is connected, reserved or spent."""

    agent: AnyAgent
    ledger: "DurableLedger"
    replay: "StudyReplay | None"  # The study in the ledger. None if it was not joined before.
    rows: Any  # What `read` gave.
    voice: StatusWriter
    view: PartyView


@contextmanager
def opening(
    options: JoinOptions,
    role: Literal["site", "peer"],
    make: Callable[..., AnyAgent],
    read: Callable[["StudyFile", "Place"], Any],
    *,
    require_joinable: Callable[["StudyReplay"], object] = lambda replay: None,
) -> Iterator[Opening[AnyAgent]]:
    """Open what a party needs, cheap refusals first. `read` is called for its rows before the ledger is opened, which makes it.

    `make` is called with the study, the rows and settings, for the agent. If its policy refuses, all reasons are on the screen
    and in the ledger.
    """
    from eigenveil.network.agents.runner import place_of
    from eigenveil.network.policy import Policy, PolicyRefusal
    from eigenveil.network.study import StudyFile

    study, path = StudyFile.read(options.study), options.policy
    secret = passphrase_from(options.passphrase_file)
    keys = network.keys_beside(options.study, study, options.keys, role=role, passphrase=secret)
    # The wrong command or an old certificate is found here, before a row is read.
    party = place_of(study, keys, role=role)
    consent.require_rehearsal(study, options.rehearsal)
    policy = None if path is None else Policy.read(path)
    # With --yes no person is asked, so the policy must have said who is protected.
    if options.yes and policy is not None and path is not None:
        consent.require_unit(study, policy, path)
    if not options.ledger.exists():
        # Refuse a missing name before an empty ledger is made.
        consent.resolve_dataset_name(options.ledger, None, options.dataset, None, role=role)
    # Before that too: a table that cannot be read leaves nothing behind.
    rows = read(study, party)
    view = PartyView(voice := StatusWriter())
    with consent.open_ledger(options.ledger, head=options.require_head, dry_run=options.dry_run) as ledger:
        replay = consent.known_study(ledger, study.digest, role=role)
        if replay is not None:
            require_joinable(replay)
        dataset = consent.resolve_dataset_name(options.ledger, ledger, options.dataset, replay, role=role)
        if replay is None:
            consent.require_own_ledger(voice, ledger, party.name, dataset, yes=options.yes, dry_run=options.dry_run)
        settings: dict[str, Any] = {"keys": keys, "ledger": ledger, "dataset": dataset, "policy": policy}
        settings |= {"memory": network.bytes_allowed(options.memory), "on_event": view.on_event}
        if path is not None:
            # The file is read anew each time, so a pin can be withdrawn while the study runs.
            settings["withdrawn"] = lambda: Policy.read(path).pins.withdrawn
        try:
            agent = make(study, rows, **settings)
        except PolicyRefusal as error:
            # A refusal is worth a line for the privacy officer, unless this is a dry run. It may be about the number of rows.
            if not options.dry_run:
                ledger.log(study.digest, str(error))
            # All reasons at once: a person should not have to try again for each of them.
            say_red(f"error: the policy of this {role} refuses the study. Nothing was sent:")
            for reason in error.reasons:
                say_red(f"- {reason}")
            raise typer.Exit(_REFUSED) from None
        # A person should not be asked about a study that the ledger would refuse anyway.
        ledger.require_affordable(agent.account, life=agent.life)
        yield Opening(agent=agent, ledger=ledger, replay=replay, rows=rows, voice=voice, view=view)


def take_part(
    options: JoinOptions, data: Path, reading: Mapping[str, Any], kind: Kind[Agent], *, dask: str | None = None
) -> None:
    """From the study file to the results, with consent in between. The table in `data` is read as `reading` says."""
    from eigenveil.data.known import source_of
    from eigenveil.network.agents.site_data import SiteData

    require(
        str(data) != "-",
        "--data - is a pipe, which can be read once. A study asks several questions and can resume after a stop, so it needs a "
        "file",
    )

    def read(study: "StudyFile", party: "Place") -> "tuple[SiteData, Results]":
        """The columns of the study, with those to write next to the scores, and where results go."""
        results = _results(options, data, study, party.name, scored=dask is None)
        passthrough = tuple(options.passthrough or ())
        holding = SiteData.read(data, study, dask=dask is not None, passthrough=passthrough, **reading)
        if holding.passthrough is not None:
            # No study has more components than columns.
            require_own_names(holding.passthrough.schema.names, len(study.columns))
            if results.scores is not None:
                require_passthrough(results.scores.suffix.lower(), holding.passthrough.schema, option="--scores")
        return holding, results

    def make(study: "StudyFile", rows: "tuple[SiteData, Results]", **settings: Any) -> Agent:
        return kind.agent(study, holding=rows[0], **settings)

    with on_cluster(dask), opening(options, kind.role, make, read, require_joinable=kind.joined) as opened:
        agent, ledger, voice, view = opened.agent, opened.ledger, opened.voice, opened.view
        study, name, dataset = agent.study, agent.place.name, agent.account.dataset
        rows: tuple[SiteData, Results] = opened.rows
        holding, results = rows
        spends = partial(spending_of, ledger, agent.account)
        view.of(agent, calls=agent.calls, title=f'Study "{study.name}", at {name}', spends=spends)
        joined = None if opened.replay is None else kind.joined(opened.replay)
        leaving = kind.leaving(agent)
        disclose(voice, agent, holding, ledger, leaving=leaving, joined=joined, data=data, ledger=options.ledger)
        # This reads all rows, so missing values are found here, in a dry run too.
        prints, source = holding.fingerprints(), source_of(data, reading.get("sheet"))
        names = consent.Names(ledger.read_as(dataset, source), ledger.known_as(dataset, *prints))
        if options.dry_run:
            for other in names.all:
                _warn(voice, f'these rows are in the ledger as "{other}" too.')
            voice.say("This was a dry run: nothing was written and no other party was called.")
            return
        if opened.replay is None:
            # Before the rows are declared: a second name that was not agreed to is not kept as one.
            consent.require_names(voice, study, ledger, dataset, names, rules=agent.policy, yes=options.yes)
        warnings = ledger.declare(dataset, *prints, source=source)
        note = _agreed(voice, options, study, ledger, warnings, again=opened.replay is not None)

        def deliver(model: "Model") -> None:
            results.write(model, holding.rows, holding.passthrough)
            view.found(model)

        with live_page(options.address(), view.page, say=voice.write_line, secret=voice.terminal) as voice.page:
            learned = _run_party(kind, opened, results, deliver, note)
        results.show(voice, learned, role=kind.role)
        write(options.report, lambda: _report(study, name, kind.role, learned), say=lambda text: voice.say(text, whole=True))
        say_spent(voice, ledger, agent.account, life=agent.life)


def _agreed(
    voice: StatusWriter,
    options: JoinOptions,
    study: "StudyFile",
    ledger: "DurableLedger",
    warnings: Collection[str],
    *,
    again: bool,
) -> str | None:
    """Who agreed, for the ledger. A study that resumes asks `again` only if the table has changed, and only a person.

    The `warnings` are as private as the rows. They decide nothing where no person does, and no entry depends on them.
    """
    for warning in warnings:
        _warn(voice, warning)
    if not again:
        return consent.obtain_consent(voice, study, ledger, rules=options.policy if options.yes else None)
    if warnings and not options.yes and consent.at_terminal():
        ledger.log(study.digest, consent.obtain_consent(voice, study, ledger, rules=None, again=True))
    return None


def _warn(voice: StatusWriter, message: str) -> None:
    # A line in a file of a service may be read by others, and it would say that a row is another one.
    if voice.terminal:
        voice.say(f"WARNING: {message}", style="bold yellow")


def _report(study: "StudyFile", name: str, role: str, model: "Model") -> "Report":
    """The result as this party has it. It has neither scores nor what its ledger says of other studies."""
    from eigenveil.show.report import counted, model_report
    from eigenveil.show.values import FactLine

    received = f"as {name} received it" if len(model.components) == 1 else f"as {name} received them"
    title = f'Study "{study.name}": {counted(len(model.components), "component")}, {received}'
    facts = [FactLine("study", study.name), FactLine("written by", f"the {role} {name}")]
    return model_report(model, kind="study", title=title, study=study.name, digest=study.digest, facts=facts)


def _results(options: JoinOptions, data: Path, study: "StudyFile", name: str, *, scored: bool) -> Results:
    """Where results go, after checking that they can be written."""
    inputs = [options.study, data, options.ledger]
    results = Results.named(options.study, name, options.model, options.scores, scored=scored)
    if options.passthrough and results.scores is not None and results.scores.suffix.lower() in OUTPUTS:
        require_passthrough(results.scores.suffix.lower(), option="--scores")
    require_report(options.report, force=True, inputs=inputs)
    # A run that was stopped between its results and the end of the study writes the same results again.
    again = network.of_this_study(results.model, study.digest)
    more = [] if options.report is None else [("--report", options.report, ENDINGS)]
    network.require_outputs([*results.outputs(), *more], force=options.force or again, inputs=inputs)
    return results


def _run_party(
    kind: Kind[Agent], opened: Opening[Agent], results: Results, deliver: Callable[["Model"], None], note: str | None
) -> "Model":
    """The model; if the run ends early, a line says how to continue and the command exits."""
    agent, voice, view = opened.agent, opened.voice, opened.view

    def standing() -> Joining:
        digest = agent.study.digest
        # Read from disk when asked, because the run may have ended anywhere.
        model = results.model if network.of_this_study(results.model, digest) else None
        return Joining(consent.study_in(opened.ledger, digest), model, view.began)

    try:
        with voice.under(view):
            return run_protocol(
                lambda: kind.run(agent, deliver, note=note, voice=voice),
                voice,
                left=lambda: kind.left(agent, standing()),
                look=view.look,
            )
    except ProtocolError as error:
        line = kind.lost(agent, error, standing())
        if line is None:
            raise
        refused(f"error: {line}", TOO_FEW)
