"""`eigenveil site`: take part in a study beside one's own data, after a person or a policy has agreed to what leaves."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import typer

from eigenveil.cli import network_consent as consent
from eigenveil.cli import network_options as option
from eigenveil.cli import network_words as words
from eigenveil.cli.network_results import Results, say_spent
from eigenveil.cli.network_run import carried, refused, require_grpc, say_red
from eigenveil.cli.network_view import PartyView, Voice
from eigenveil.cli.terminal import errors_as_lines
from eigenveil.errors import require

if TYPE_CHECKING:
    from eigenveil.network.book import Book, StudyState
    from eigenveil.network.holder import Holding
    from eigenveil.network.policy import PolicyRefusal
    from eigenveil.network.site import SiteAgent
    from eigenveil.network.study_file import StudyFile

__all__ = ["site"]

_REFUSED: Final = 2
_COLUMNS_SHOWN: Final = 20
_GOES_ON: Final = "nothing is lost: the same command goes on where it stopped; what was charged stays charged"


@errors_as_lines
def site(
    study: option.Study,
    data: option.Data,
    keys: option.Keys = None,
    policy: option.PolicyFile = None,
    ledger: option.Ledger = Path("ledger.db"),
    dataset: option.Dataset = None,
    connect: option.Connect = None,
    yes: option.Yes = False,
    model: option.SiteModel = None,
    scores: option.Scores = None,
    rehearsal: option.Rehearsal = False,
    dry_run: option.DryRun = False,
    force: option.Force = False,
) -> None:
    """Take part in a study, beside the data of this site.

    With the keys of the site beside the study file:

      eigenveil site heart.toml --data patients.parquet \\
        --policy policy.toml --dataset patients

    First it says what it is about to reveal, to whom and at what cost,
    and asks. --dry-run stops there. Then it calls the hub and answers
    what the study asks, nothing else. Every answer and its charge are in
    the book before the answer leaves; one that was stopped goes on with
    the same command and is charged nothing twice.

    It ends with the model, its guarantee in a text file beside it, and
    the scores of this site's own rows, WHICH ARE RAW DATA: they are
    readable by you alone (mode 0600) and go to nobody.

    Unattended, rules consent in place of a person:

      eigenveil site heart.toml --data patients.parquet \\
        --policy policy.toml --yes

    Exit codes: 1 if the person says no or the budget for life does not
    suffice, 2 if the policy refuses, 130 after Ctrl-C, 143 after SIGTERM.
    """
    require(not yes or policy is not None, "--yes needs a --policy: consent without a person must come from rules")
    require_grpc()
    from eigenveil.network.holder import Holding, place_of
    from eigenveil.network.policy import Policy
    from eigenveil.network.study_file import StudyFile
    from eigenveil.network.study_keys import address

    found = StudyFile.read(study)
    mine = option.keys_beside(study, found, keys, role="site")
    place = place_of(found, mine, role="site")
    _require_rehearsal(found, rehearsal)
    where = None if connect is None else address("--connect", connect)
    rules = None if policy is None else Policy.read(policy)
    results = Results.named(study, place.name, model, scores)
    again = option.of_this_study(results.model, found.digest)
    option.require_outputs(results.outputs(), force=force or again, inputs=[study, data, ledger])
    if not ledger.exists():
        # Before there is a book of no use to anybody.
        consent.dataset_named(ledger, None, dataset, None)
    holding = Holding.read(data, found)
    voice = Voice()
    view = PartyView(voice)
    with consent.opened_book(ledger, dry_run=dry_run) as book:
        known = consent.known_study(book, found.digest)
        name = consent.dataset_named(ledger, book, dataset, known)
        agent = _agent(
            found,
            book if not dry_run else None,
            keys=mine,
            holding=holding,
            book=book,
            dataset=name,
            policy=rules,
            tell=view.tell,
        )
        view.of(agent)
        life = None if rules is None else rules.life
        consent.require_room(book, agent.account, life=life)
        _disclose(voice, agent, holding, book, known=known, where=where, ledger=ledger)
        if dry_run:
            voice.say("This was a dry run: nothing was written, and nobody was called.")
            return
        warnings = book.declare(name, holding.fingerprint())
        for warning in warnings:
            voice.say(f"WARNING: {warning}", style="bold yellow")
        note = None
        if known is None or warnings:
            note = _agreed(voice, agent, book, rules=policy if yes else None)
        with voice.under(view):
            learned = carried(
                lambda: agent.run(lambda model: results.write(model, holding.rows), address=where, note=note),
                voice,
                left=lambda: _GOES_ON,
                look=view.look,
            )
        results.show(voice, learned)
        say_spent(voice, book, agent.account, life=life)


def _require_rehearsal(study: "StudyFile", rehearsal: bool) -> None:
    require(
        rehearsal or study.seed is None,
        f"{study.name!r} is a rehearsal with a test seed: its noise can be subtracted, and it protects nobody. For test data "
        "only, --rehearsal takes part",
    )
    require(not rehearsal or study.seed is not None, f"{study.name!r} is no rehearsal; leave --rehearsal out")


def _agent(study: "StudyFile", noted_in: "Book | None", **settings: Any) -> "SiteAgent":
    """The site of this study, unless its policy refuses: then all reasons, in its book as well."""
    from eigenveil.network.policy import PolicyRefusal
    from eigenveil.network.site import SiteAgent

    try:
        return SiteAgent(study, **settings)
    except PolicyRefusal as error:
        if noted_in is not None:
            noted_in.note(study.digest, str(error))
        _refuse(error)


def _refuse(error: "PolicyRefusal") -> NoReturn:
    *others, last = [f"- {reason}" for reason in error.reasons]
    lines = ["error: the policy of this site refuses the study, and nothing was sent:", *others]
    for line in lines:
        say_red(line)
    refused(last, _REFUSED)


def _disclose(
    voice: Voice,
    agent: "SiteAgent",
    holding: "Holding",
    book: "Book",
    *,
    known: "StudyState | None",
    where: str | None,
    ledger: Path,
) -> None:
    """Everything that somebody must know before they agree. Nothing is connected or spent yet."""
    study, account = agent.study, agent.account
    if study.seed is not None:
        from eigenveil.report import warning_panel

        loud = "A REHEARSAL: whoever has the study file can subtract all noise. NOBODY IN THIS TABLE IS PROTECTED."
        voice.show(warning_panel(loud), [f"WARNING: {loud}"])
    voice.say(f"What the study is (digest {study.digest})", style="bold")
    for sentence in study.words():
        voice.say(sentence, style="bold red" if sentence[:8].isupper() else None)
    if len(study.columns) > _COLUMNS_SHOWN:
        voice.say(f"All {len(study.columns)} columns are listed in the study file, under [task] columns.")
    voice.gap()
    voice.say("What this site reveals", style="bold")
    if voice.terminal:
        # How many there are is private, and for whoever sits here; a log may go further.
        voice.say(f"The table here has {holding.people:,} people.")
    for sentence in words.revealed_words(study, agent.parties):
        voice.say(sentence, style="bold red" if sentence[:8].isupper() else None)
    above = study.place(agent.above)
    voice.say(f"They go to {above.name}, at {where or above.address}. Who takes part, and the pin of each:")
    _show_parties(voice, agent)
    voice.gap()
    voice.say(f"What it costs, by the book {ledger.absolute()}", style="bold")
    state = next((one for one in book.datasets() if one.name == account.dataset), None)
    life = None if agent.policy is None else agent.policy.life
    for sentence, style in words.cost_words(account, state, life=life, joined=known is not None):
        voice.say(sentence, style=style)
    if agent.policy is None:
        voice.say("There is no policy: nothing is refused for you, so read all of this.", style="yellow")
    voice.gap()
    if known is not None:
        voice.say(f"This site joined the study at {known.joined}, and goes on with it.", style="green")


def _show_parties(voice: Voice, agent: "SiteAgent") -> None:
    for who, pin, style in words.party_words(agent.study, agent.place, agent.policy):
        if not voice.terminal:
            voice.say(f"{who}: {pin}")
            continue
        # Two halves, which fit on any screen and can be followed with a finger.
        voice.say(who, style=style)
        groups = pin.split()
        for half in (groups[:8], groups[8:]):
            voice.say(f"    {' '.join(half)}", style=style)


def _agreed(voice: Voice, agent: "SiteAgent", book: "Book", *, rules: Path | None) -> str:
    """The line for the book that says who consented; without consent this is the end."""
    if rules is not None:
        voice.say(f"Consent: --yes, under {rules}.")
        return consent.by_policy(rules)
    word = "yes" if agent.study.private else "no privacy"
    if consent.ask(word):
        return consent.by_person(word)
    book.note(agent.study.digest, "consent was asked for and not given")
    voice.say("Nothing was sent and nothing was charged.")
    raise typer.Exit(consent.DECLINED)
