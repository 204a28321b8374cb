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
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NoReturn, TypeVar, final

from eigenveil.commands import _consent as consent
from eigenveil.commands import _network as network
from eigenveil.commands._files import ENDINGS, on_cluster, passphrase_from, require_report, write
from eigenveil.commands._network import TOO_FEW, Results, refused, run_protocol, say_red, say_spent, spending_of
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
    from eigenveil.network.policy import PolicyRefusal
    from eigenveil.network.study import Place, StudyFile
    from eigenveil.show.agreement import Fact
    from eigenveil.show.live import PageAddress
    from eigenveil.show.values import Report

__all__ = ["JoinOptions", "Joining", "Kind", "opening", "take_part"]

_REFUSED: Final = 2

Agent = TypeVar("Agent", "SiteAgent", "PeerAgent")
AnyAgent = TypeVar("AnyAgent", bound="Holder")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptions:
    """The options that `eigenveil site` and `eigenveil peer` share, as they were given."""

    study: Path
    data: Path
    keys: Path | None
    policy: Path | None
    ledger: Path
    dataset: str | None
    yes: bool
    model: Path | None
    scores: Path | None
    rehearsal: bool
    dry_run: bool
    force: bool
    memory: int
    reading: Mapping[str, Any]
    passphrase_file: Path | None = None
    require_head: Path | None = None
    dask: str | None = None
    page: "PageAddress | None" = None
    report: Path | None = None
    passthrough: tuple[str, ...] = ()
    followed: bool = False  # Whether a stream takes the place of the table.

    def __post_init__(self) -> None:
        # A flag alone is nobody's consent: with --yes the rules in the policy are what agrees.
        require(
            str(self.data) != "-" or self.followed,
            "--data - is a pipe, which can be read once. A study asks several questions and can go on after a stop, so it needs "
            "a file",
        )
        agreed = not self.yes or self.policy is not None
        require(agreed, "--yes needs --policy: without a person, consent must come from rules")
        require(
            self.dask is None or self.scores is None,
            "--scores copies rows here, and with --dask they stay on the cluster",
        )
        require(
            self.dask is None or not self.passthrough,
            "--passthrough puts columns beside scores, and with --dask there are none: rows stay on the cluster. Leave it out",
        )


@final
@dataclass(frozen=True, slots=True)
class Joining:
    """How things stand when a run ends early.

    `state` is the study in the ledger, `model` the file if it was written, and `begun` whether all parties had begun.
    """

    state: "StudyReplay | None"
    model: Path | None
    begun: bool


class Kind(ABC, Generic[Agent]):
    """Where sites and peers differ."""

    @property
    @abstractmethod
    def role(self) -> Literal["site", "peer"]:
        """Its role in the study."""

    @abstractmethod
    def agent(self, study: "StudyFile", **settings: Any) -> Agent:
        """The agent, before it has sent or spent anything."""

    @abstractmethod
    def leaving(self, agent: Agent) -> Iterator["Fact"]:
        """What leaves, and to whom."""

    @abstractmethod
    def joined(self, state: "StudyReplay") -> str:
        """How a study goes on that was joined before; a `ValueError` if it cannot."""

    @abstractmethod
    def run(
        self, agent: Agent, deliver: Callable[["Model"], None], *, note: str | None, voice: StatusWriter
    ) -> Coroutine[Any, Any, "Model"]:
        """Take part to the end."""

    @abstractmethod
    def left(self, agent: Agent, standing: Joining) -> str:
        """How to go on after a signal."""

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

    `make` is called with the study, the rows and settings, for the agent.
    """
    from eigenveil.network.agents.runner import place_of
    from eigenveil.network.policy import Policy
    from eigenveil.network.study import StudyFile

    study = StudyFile.read(options.study)
    secret = passphrase_from(options.passphrase_file)
    keys = network.keys_beside(options.study, study, options.keys, role=role, passphrase=secret)
    # The wrong command or an old certificate is found here, before a row is read.
    party = place_of(study, keys, role=role)
    consent.require_rehearsal(study, options.rehearsal)
    policy = None if options.policy is None else Policy.read(options.policy)
    # With --yes nobody is asked, so the policy must have said who is protected.
    if options.yes and policy is not None and options.policy is not None:
        consent.require_unit(study, policy, options.policy)
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
        settings |= {"memory": options.memory, "on_event": view.on_event}
        if options.policy is not None:
            # The file is read anew each time, so a pin can be withdrawn while the study runs.
            settings["withdrawn"] = partial(_withdrawn_in, options.policy)
        agent = _allowed(lambda: make(study, rows, **settings), None if options.dry_run else ledger, study, role)
        # A person should not be asked about a study that the ledger would refuse anyway.
        ledger.require_affordable(agent.account, life=agent.life)
        yield Opening(agent=agent, ledger=ledger, replay=replay, rows=rows, voice=voice, view=view)


def take_part(options: JoinOptions, kind: Kind[Agent]) -> None:
    """From the study file to the results, with consent in between."""

    def read(study: "StudyFile", party: "Place") -> tuple["SiteData", Results]:
        results = _results(options, study, party.name)
        return _table(options, study, results), results

    def make(study: "StudyFile", rows: tuple["SiteData", Results], **settings: Any) -> Agent:
        return kind.agent(study, holding=rows[0], **settings)

    with on_cluster(options.dask), opening(options, kind.role, make, read, require_joinable=kind.joined) as opened:
        _take_part(options, kind, opened)


def _table(options: JoinOptions, study: "StudyFile", results: Results) -> "SiteData":
    """The columns of the study, and those to write beside the scores."""
    from eigenveil.network.agents.site_data import SiteData

    holding = SiteData.read(
        options.data, study, dask=options.dask is not None, passthrough=options.passthrough, **options.reading
    )
    if holding.passthrough is not None:
        # No study has more components than columns.
        require_own_names(holding.passthrough.schema.names, len(study.columns))
        if results.scores is not None:
            require_passthrough(results.scores.suffix.lower(), holding.passthrough.schema, option="--scores")
    return holding


def _take_part(options: JoinOptions, kind: Kind[Agent], opened: Opening[Agent]) -> None:
    from eigenveil.data.known import source_of

    agent, ledger, voice, view = opened.agent, opened.ledger, opened.voice, opened.view
    study, name, dataset = agent.study, agent.place.name, agent.account.dataset
    holding, results = opened.rows
    view.of(
        agent,
        calls=agent.calls,
        title=f'Study "{study.name}", at {name}',
        spends=partial(spending_of, ledger, agent.account),
    )
    joined = None if opened.replay is None else kind.joined(opened.replay)
    places = {"data": options.data, "ledger": options.ledger}
    disclose(voice, agent, holding, ledger, leaving=kind.leaving(agent), joined=joined, **places)
    # This reads all rows, so missing values are found here, in a dry run too.
    prints, source = holding.fingerprints(), source_of(options.data, options.reading.get("sheet"))
    names = consent.Names(ledger.read_as(dataset, source), ledger.known_as(dataset, *prints))
    if options.dry_run:
        _say_dry_run(voice, names.all)
        return
    if opened.replay is None:
        # Before the rows are declared: a second name that nobody agreed to is not kept as one.
        consent.require_names(voice, study, ledger, dataset, names, rules=agent.policy, yes=options.yes)
    warnings = ledger.declare(dataset, *prints, source=source)
    note = _agreed(voice, options, study, ledger, warnings, again=opened.replay is not None)

    def deliver(model: "Model") -> None:
        results.write(model, holding.rows, holding.extra)
        view.found(model)

    with live_page(options.page, view.page, say=voice.write_line, secret=voice.terminal) as voice.page:
        learned = _run_party(kind, opened, results, deliver, note)
    results.show(voice, learned, role=kind.role)
    write(
        options.report,
        lambda: _report(study, name, kind.role, learned),
        say=lambda text: voice.say(text, whole=True),
    )
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
    """Who agreed, for the ledger. A study that goes on asks nobody `again`, but a person at a terminal if the table has changed.

    The `warnings` are as private as the rows. So they decide nothing where no person does, and no entry depends on them.
    """
    for warning in warnings:
        _warn(voice, warning)
    if not again:
        return consent.obtain_consent(voice, study, ledger, rules=options.policy if options.yes else None)
    if warnings and not options.yes and consent.at_terminal():
        ledger.log(study.digest, consent.obtain_consent(voice, study, ledger, rules=None, again=True))
    return None


def _say_dry_run(voice: StatusWriter, names: Collection[str]) -> None:
    for name in names:
        _warn(voice, f'these rows are in the ledger as "{name}" too.')
    voice.say("This was a dry run: nothing was written and nobody was called.")


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


def _results(options: JoinOptions, study: "StudyFile", name: str) -> Results:
    """Where results go, after checking that they can be written."""
    results = Results.named(options.study, name, options.model, options.scores, scored=options.dask is None)
    if options.passthrough and results.scores is not None and results.scores.suffix.lower() in OUTPUTS:
        require_passthrough(results.scores.suffix.lower(), option="--scores")
    require_report(options.report, force=True, inputs=[options.study, options.data, options.ledger])
    # A run that was stopped between its results and the end of the study writes the same results again.
    again = network.of_this_study(results.model, study.digest)
    more = [] if options.report is None else [("--report", options.report, ENDINGS)]
    network.require_outputs(
        [*results.outputs(), *more], force=options.force or again, inputs=[options.study, options.data, options.ledger]
    )
    return results


def _withdrawn_in(policy: Path) -> tuple[str, ...]:
    from eigenveil.network.policy import Policy

    return Policy.read(policy).pins.withdrawn


def _allowed(make: Callable[[], AnyAgent], noted_in: "DurableLedger | None", study: "StudyFile", role: str) -> AnyAgent:
    """The agent; if its policy refuses, all reasons on the screen and in its ledger."""
    from eigenveil.network.policy import PolicyRefusal

    try:
        return make()
    except PolicyRefusal as error:
        # A refusal is worth a line for the privacy officer, unless this is a dry run. It may be about the number of rows.
        if noted_in is not None:
            noted_in.log(study.digest, str(error))
        _refuse(error, role)


def _refuse(error: "PolicyRefusal", role: str) -> NoReturn:
    # All reasons at once: a person should not have to try again for each of them.
    *others, last = [f"- {reason}" for reason in error.reasons]
    for line in (f"error: the policy of this {role} refuses the study. Nothing was sent:", *others):
        say_red(line)
    refused(last, _REFUSED)


def _run_party(
    kind: Kind[Agent],
    opened: Opening[Agent],
    results: Results,
    deliver: Callable[["Model"], None],
    note: str | None,
) -> "Model":
    """The model; if the run ends early, a line says how to go on and the command exits."""
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
