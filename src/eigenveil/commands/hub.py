"""`eigenveil hub`: run the hub of a study across organisations, from the first question to the model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

from eigenveil.commands import _network as network
from eigenveil.commands._command import Command
from eigenveil.commands._ending import wrote
from eigenveil.commands._files import PassphraseFile, passphrase_from, require_file
from eigenveil.commands._network import TOO_FEW, refused, require_grpc, run_protocol
from eigenveil.commands._options import PageOptions, flag, option
from eigenveil.errors import ProtocolError, QuorumLost, TooFewPeople, require
from eigenveil.params.declarations.study import said_in_file
from eigenveil.show import disclosure
from eigenveil.show.live import live_page
from eigenveil.show.progress import HubView, StatusWriter, shown_names, traffic_of

if TYPE_CHECKING:
    from eigenveil.model import Model
    from eigenveil.network.agents.star import HubAgent
    from eigenveil.show.values import Report

__all__ = ["COMMAND"]

_SERVE: Final = "this is a study of streams: add --serve, and the hub asks for slot after slot"


def hub(
    study: network.Study,
    page: PageOptions,
    keys: Annotated[Path | None, option("--keys", "FILE", "The hub's keys.", none_means="hub.key beside the study file")] = None,
    listen: network.Listen = None,
    transcript: Annotated[
        Path | None,
        option(
            "FILE",
            "Where everything that happens is written, so that a stopped hub can resume. Never overwritten.",
            none_means="STUDY.transcript beside the study file",
        ),
    ] = None,
    # Models go to the current folder and the transcript next to the study: one is for people, the other for the next run.
    model: Annotated[
        Path | None, option("--output", "-o", "FILE", "Where the model goes.", none_means="STUDY.safetensors in this folder")
    ] = None,
    report: Annotated[
        Path | None,
        option(
            "FILE",
            "Where the model, the rounds, their traffic and charges go, all public: .json, .html, or .pdf if Chromium is "
            "installed.",
            none_means="MODEL.report.json beside the model",
        ),
    ] = None,
    memory: network.Memory = network.MEMORY,
    force: Annotated[bool, flag("--force", "Overwrite outputs that exist; never a ledger.")] = False,
    serve: Annotated[
        bool, flag("--serve", "For a study of streams: ask for slot after slot, and keep the current answer on disk.")
    ] = False,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Run the hub of a study: ask the sites, add up, and write the model.

    For the coordinator, with hub.key next to the study file:

      eigenveil hub heart.toml

    Sites call the hub; it never calls them. Everything that happens is in
    the transcript before the next question leaves. After a stop, or when
    too many sites are lost, the same command resumes from there, and no
    site is asked to reveal anything twice. After the study has finished,
    it only sends the result to sites that do not have it yet.

    In a study of streams the hub asks for one slot after the other, and
    always has the current answer:

      eigenveil hub sensors.toml --serve
      eigenveil watch sensors.toml

    Watch it in a browser, at http://127.0.0.1:8080 on this machine:

      eigenveil hub heart.toml --page 127.0.0.1:8080

    Exit codes: 3 if too few sites joined or answered, 130 after Ctrl-C,
    143 after SIGTERM. After each of them the same command resumes.
    """
    require_file(study)
    require_grpc()
    from eigenveil.network.agents.runner import place_of
    from eigenveil.network.agents.star import HubAgent
    from eigenveil.network.certificates import Keys
    from eigenveil.network.study import StudyFile
    from eigenveil.show.pages import require_printer, write_report

    # Wrong options are refused before a file is read, and files before a transcript is made.
    network.require_listen(listen)
    shown_at = page.address()
    allowed = network.bytes_allowed(memory)
    study_file = StudyFile.read(study)
    # The passphrase is asked for before any site waits for this hub.
    mine = Keys.load(study.parent / "hub.key" if keys is None else keys, passphrase=passphrase_from(passphrase_file))
    address = place_of(study_file, mine, role="hub").address
    assert address is not None
    where = network.listening_address(listen, address)
    target = Path(f"{study.stem}.safetensors") if model is None else model
    # Next to the study file, whatever the current folder is: a later run must find it again.
    transcript_path = study.with_suffix(".transcript") if transcript is None else transcript
    require(
        study_file.streaming == serve, _SERVE if study_file.streaming else f"--serve is for streams, and {study} is of tables"
    )
    if serve:
        from eigenveil.commands.watch import serve_stream

        require(
            report is None and shown_at is None,
            "--report and --page are for a study of tables: of streams `eigenveil watch` shows every slot",
        )
        serve_stream(study_file, mine, study=study, log=transcript_path, model=target, listen=where, memory=allowed)
        return
    report_path = target.with_suffix(".report.json") if report is None else report
    # A hub that was stopped after it wrote its model may overwrite it: it is the same model.
    again = network.of_this_study(target, study_file.digest)
    network.require_outputs(
        [("--output", target, [".safetensors"]), ("--report", report_path, [".json", ".html", ".pdf"])],
        force=force or again,
        inputs=[study, transcript_path, *([] if keys is None else [keys])],
    )
    require_printer(report_path)
    voice = StatusWriter()
    view = HubView(voice)
    with HubAgent.transcript_for(transcript_path, study_file) as written:
        agent = HubAgent(study_file, keys=mine, transcript=written, memory=allowed, on_event=view.on_event)
        view.of(agent)
        # Asked now: after the run every study that went well has a result.
        over = agent.durable.party.result is not None
        voice.say(disclosure.title_words(study_file), style="bold")
        voice.say(f"The transcript is {transcript_path}.")
        if study_file.seed is not None:
            voice.say("THIS IS A REHEARSAL with a test seed: it protects no one.", style="bold red")
        if over:
            voice.say("The study has finished. No site is asked anything; sites without the result can fetch it.")

        def ready(port: int) -> None:
            voice.write_line(f"listening at {where.rpartition(':')[0]}:{port}")

        def deliver(learned: "Model") -> None:
            # The model first: `of_this_study` tells by it that a later run may overwrite the outputs.
            learned.save(target)
            write_report(_report(agent, learned), report_path)
            wrote(target)
            voice.write_line(f"the model is written to {target}; now the sites fetch the result", style="green")
            view.lingers(study_file.patience, learned)

        try:
            with live_page(shown_at, view.page, say=voice.write_line, secret=voice.terminal) as live, voice.under(view):
                voice.page = live
                learned = run_protocol(
                    lambda: agent.run(deliver, listen=where, ready=ready),
                    voice,
                    left=lambda: _left(agent, target),
                    look=view.look,
                )
        except ProtocolError as error:
            _too_few(error, agent)
        _show(voice, agent, learned)
        for label, path in (("model", target), ("report", report_path), ("transcript", transcript_path)):
            voice.say(f"{label}: {path}", whole=True)
        lacking = agent.unthanked
        # For a study that was over before, only the sites that came now are known.
        if over:
            came = [name for name in agent.hears if name not in lacking]
            voice.say(f"fetched the result: {shown_names(came)}")
        elif lacking:
            late = f"without the result yet: {shown_names(lacking)}; the same command sends it again"
            voice.say(late, style="yellow")


def _report(agent: "HubAgent", model: "Model") -> "Report":
    """The model and the public part of the transcript: who answered in each round, the bytes, and the charges."""
    from eigenveil.show.report import counted, model_report
    from eigenveil.show.values import SitePart

    study = agent.study
    # No numbers that a site sent are in here: the transcript has those, and stays with the hub.
    return model_report(
        model,
        kind="study",
        title=f'Study "{study.name}": {counted(len(model.components), "component")} over {counted(len(study.sites), "site")}',
        rounds=agent.durable.rounds,
        study=study.name,
        digest=study.digest,
        sites=tuple(SitePart(site.name, site.certificate.pin) for site in study.sites),
        refused=agent.durable.refused,
    )


def _left(agent: "HubAgent", model: Path) -> str:
    """How to resume after the hub was interrupted."""
    if agent.durable.party.result is not None and agent.unthanked:
        location = f"the model is in {model}" if model.exists() else "the result is in the transcript"
        lacking = shown_names(agent.unthanked)
        return f"{location}; {lacking} may not have the result yet, and the same command sends it"
    return "nothing is lost: the same command resumes from the transcript, and asks no site for what is in it"


def _too_few(error: ProtocolError, agent: "HubAgent") -> NoReturn:
    """End with a line that names who is missing, if the hub can resume later; otherwise raise the error again."""
    again = "run the same command again to resume from the transcript"
    if isinstance(error, QuorumLost):
        refused(
            f"error: no answer from {shown_names(error.missing)} in round {error.round + 1} ({error.stage}). "
            f"{error.answered} answered, and {error.quorum} are needed; {again}",
            TOO_FEW,
        )
    # Nothing can resume: what was released says that the table is too small for any bound.
    if isinstance(error, TooFewPeople):
        refused(f"error: {said_in_file(error)}. This study is over: make another one", TOO_FEW)
    # What stopped it is in the transcript, so the same command can resume from there.
    if error is agent.durable.stopped:
        refused(f"error: {error}; {again}", TOO_FEW)
    if not agent.durable.begun:
        refused(f"error: {error}; {disclosure.WHEN_THERE}", TOO_FEW)
    raise error


def _show(voice: StatusWriter, agent: "HubAgent", model: "Model") -> None:
    from rich.text import Text

    from eigenveil.show.marks import in_bytes
    from eigenveil.show.terminal import judged, rounds_table

    guarantee = model.guarantee
    voice.gap()
    voice.show(rounds_table(agent.durable.rounds), [])
    for name, up, down in traffic_of(agent):
        voice.say(f"traffic of {name}: {in_bytes(up)} up, {in_bytes(down)} down")
    if agent.durable.refused:
        voice.say(f"refused: {agent.durable.refused} messages", style="yellow")
    for line in judged(model):
        voice.show(line, [line.plain])
    voice.show(Text(guarantee.headline, style=f"bold {'green' if guarantee.private else 'red'}"), [guarantee.headline])


COMMAND = Command(run=hub, panel="Studies across organisations")
