"""`eigenveil ledger`: what a site has spent, entry by entry, and whether its ledger was changed."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from eigenveil.commands import _options as option
from eigenveil.commands._command import Command, Group
from eigenveil.commands._ending import wrote
from eigenveil.commands._files import require_output
from eigenveil.commands._network import RequireHead
from eigenveil.errors import require
from eigenveil.show.console import output
from eigenveil.show.words import rounded

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from eigenveil.ledger.durable import DatasetState, Entry, StudyReplay

__all__ = ["COMMAND"]

# Used where neither the policy nor a study says at which delta to count.
_USUAL_DELTA: Final = 1e-6
_EXPORT: Final = ".jsonl"
# Of a reserve that no study has: one that a process left when it was killed, or that is in use.
_KILLED: Final = (
    "Every charge was written before its noise was drawn. So if its process was killed, it may have released what it was charged "
    "for, and nothing else. If the process still runs, its next charge is refused."
)
_SHOWN_DIGITS: Final = 16

LedgerPath: TypeAlias = Annotated[
    Path, typer.Argument(metavar="LEDGER", help="The ledger of this site, such as ledger.db.", show_default=False)
]


def group() -> None:
    """What this site has revealed about its data, and what it cost.

    A site keeps a ledger. Every charge is in it before anything leaves.
    Each entry is sealed with the hash of all entries before it:

      eigenveil ledger show ledger.db
      eigenveil ledger verify ledger.db

    Its head proves later that no charge was forgotten, changed or
    removed. Note it elsewhere, as a routine:

      eigenveil ledger head ledger.db --to /mnt/audit/north.head
    """


def show(
    path: LedgerPath,
    dataset: Annotated[str | None, typer.Option(metavar="NAME", help="This dataset only.", show_default=False)] = None,
    delta: Annotated[
        float | None,
        typer.Option(metavar="NUMBER", help="The delta to count at; the policy's if not given.", show_default=False),
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Show every entry of the ledger as well.")] = False,
    require_head: RequireHead = None,
) -> None:
    """Show what was spent and what is reserved, dataset by dataset.

    Examples:

      eigenveil ledger show ledger.db
      eigenveil ledger show ledger.db --dataset patients --lines

    --lines also shows what is logged for this site alone, such as why a
    message was refused. Do not pass that on.

    - spent: what was released so far.
    - reserved: what open studies may spend, including what they have spent.
    - counted: what counts against the total budget, which is the reserve
      of open studies and what the others spent.

    The ledger is not written to, and a site may run meanwhile.
    """
    from eigenveil.ledger.durable import DurableLedger
    from eigenveil.ledger.head import with_head

    require(delta is None or 0 < delta < 1, f"--delta must lie between 0 and 1, got {delta}")
    with with_head(path, require_head, DurableLedger.reading, writes=False) as opened:
        # Read inside, printed outside: a slow terminal must not keep the ledger open.
        found, studies = opened.datasets(), opened.studies()
        written, logged = (list(opened.entries()), opened.logged()) if lines else ([], [])
    if dataset is not None:
        names = ", ".join(repr(state.name) for state in found) or "none"
        found = tuple(state for state in found if state.name == dataset)
        require(len(found) > 0, f"--dataset {dataset!r} is not in {path}; these are: {names}")
        studies = tuple(study for study in studies if study.account.dataset == dataset)
        written = [line for line in written if line.dataset == dataset]
        of_these = {study.account.study for study in studies}
        logged = [line for line in logged if line[1] in of_these]
    console = output()
    if not found:
        console.print("No dataset yet: no study was joined and nothing was spent.")
    for state in found:
        _show_dataset(console, state, [study for study in studies if study.account.dataset == state.name], delta)
    if lines:
        _show_entries(console, written)
        _show_log(console, logged)


def export(
    path: LedgerPath,
    target: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where the entries go, a .jsonl file.")
    ] = Path("ledger.jsonl"),
    force: option.Force = False,
    require_head: RequireHead = None,
) -> None:
    """Write every entry to a file that others may see and check.

    Example:

      eigenveil ledger export ledger.db -o ledger.jsonl
      eigenveil ledger verify ledger.jsonl

    One JSON object for each entry, and the head last. It has public facts
    only: studies, charges, and marks of what was sent, which nobody but this
    site can compare with anything. It has no secret, no message, no size, no
    fingerprint of the data and no reason of a refusal: nothing in it depends
    on rows, but through what was released. The ledger is not written to.
    """
    from eigenveil.data.archive import whole_file
    from eigenveil.ledger.durable import DurableLedger
    from eigenveil.ledger.entries import chained, written_export
    from eigenveil.ledger.head import with_head

    require_output(target, endings=[_EXPORT], force=force, inputs=[path])
    count = 0
    with (
        whole_file(target) as temporary,
        temporary.open("w", encoding="ascii") as file,
        with_head(path, require_head, DurableLedger.reading, writes=False) as opened,
    ):
        # Checked while it is written: a damaged ledger must not give a clean-looking export.
        for text in written_export(chained(opened.entries())):
            file.write(text)
            count += 1
    wrote(target)
    output().print(f"{target}: {_counted(count - 1)} and the head")


def verify(
    path: Annotated[
        Path, typer.Argument(metavar="LEDGER", help="A ledger, or the .jsonl file of an export.", show_default=False)
    ],
    head: Annotated[
        str | None,
        typer.Option(metavar="HASH", help="A head noted earlier, which must be in the ledger.", show_default=False),
    ] = None,
    require_head: RequireHead = None,
) -> None:
    """Check every hash, every balance and every stored byte of a ledger.

    Examples:

      eigenveil ledger verify ledger.db
      eigenveil ledger verify ledger.db --head 3f0c...

    It prints the head, the hash of the last entry: note it elsewhere. An old
    copy of a ledger that was put back is consistent in itself, but has
    forgotten the charges since. Only a head kept elsewhere, checked with
    --head or --require-head, reveals that.

    If something is wrong, it names the first wrong entry and ends with exit
    code 2.
    """
    from eigenveil.ledger.durable import DurableLedger
    from eigenveil.ledger.entries import read_export
    from eigenveil.ledger.head import NotedHead
    from eigenveil.ledger.replay import Replay

    require(head is None or require_head is None, "give --head or --require-head, and not both")
    if require_head is not None:
        head = NotedHead.read(require_head).head
    # It was copied from paper or a calendar, so case and spaces around it do not matter.
    noted = None if head is None else head.strip().lower()
    require(
        noted is None or (len(noted) == 64 and set(noted) <= set("0123456789abcdef")),
        f"--head must be the 64 hexadecimal digits that verify printed, got {str(head)[:80]!r}",
    )
    if path.suffix.lower() == _EXPORT:
        # Whatever is no text becomes a character that no hash fits.
        with path.open(encoding="utf-8", errors="replace") as file:
            # An export has no stored bytes, so hashes and balances are all that can be checked.
            last = Replay().run(read_export(file), head=noted)
    else:
        # It may be damaged: that is what this command is for.
        with DurableLedger.reading(path, damaged=True) as opened:
            last = opened.verify(noted)
    console = output()
    console.print(f"{_counted(last.number)}: every hash and every balance is right", style="bold green")
    if noted is not None:
        console.print("The noted head is in it: no entry up to there was changed or removed.")
    console.print(f"head {last.hash}", soft_wrap=True)
    console.print("Note the head elsewhere; --head checks later that nothing was forgotten.", style="dim")


def head_of(
    path: LedgerPath,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="Where the head goes, on another system.", show_default="the screen"),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the head in FILE even if the ledger does not have it.")
    ] = False,
) -> None:
    """Note the head of a ledger, one line of JSON, where others keep it.

    Example, as a routine, each night:

      eigenveil ledger head ledger.db --to /mnt/audit/north.head

    If FILE has a head already, the ledger must have it too. If not, an older
    copy of the ledger was put back, or entries were rewritten. Then nothing
    is written, and the exit code is 2.

    A site or peer checks the file at each start, and brings it up to date:

      eigenveil site heart.toml ... --require-head /mnt/audit/north.head
    """
    from eigenveil.ledger.durable import DurableLedger
    from eigenveil.ledger.head import NotedHead, note_head, require_noted

    with DurableLedger.reading(path) as opened:
        if to is not None and to.exists() and not force:
            require_noted(opened, to)
        noted = NotedHead.of(opened.last) if to is None else note_head(opened, to)
    if to is not None:
        wrote(to)
    output().print(noted.text().strip(), soft_wrap=True)


def close(
    path: LedgerPath,
    study: Annotated[
        str,
        typer.Argument(
            metavar="STUDY",
            help="Its name, or the first digits of its digest, as `show` prints them.",
            show_default=False,
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    require_head: RequireHead = None,
) -> None:
    """Close for good a study, or a fit whose process was killed.

    Examples:

      eigenveil ledger close ledger.db "heart study"
      eigenveil ledger close people.ledger "fit, Python"

    What it reserved and has not spent becomes free for other studies. What it
    has spent stays spent. Its private randomness and stored messages are
    wiped, so it can never be joined or charged again.
    """
    from eigenveil.ledger.budget import CURATOR
    from eigenveil.ledger.durable import DurableLedger
    from eigenveil.ledger.head import with_head

    with with_head(path, require_head, lambda at: DurableLedger.open(at, create=False), writes=True) as opened:
        found = _found(study, opened.studies())
        account, standing = found.account, found.standing
        # The lock keeps a running site from charging the study between the question and the answer.
        with opened.lock(account.study):
            if not yes:
                console = output()
                console.print(f"{account.title} ({account.study[:_SHOWN_DIGITS]}) of dataset {account.dataset}:")
                console.print(f"  spent, and stays spent: {_study_epsilon(found, found.spent)}")
                console.print(f"  reserved, and otherwise becomes free: {_study_epsilon(found, standing.mu)}")
                if account.trust == CURATOR:
                    console.print(_KILLED)
                _confirm("It can never be joined again. Close it?")
            opened.abandon(account.study)
    output().print(f"{account.title} is closed; what it spent stays spent: {_study_epsilon(found, found.spent)}")
    if yes and account.trust == CURATOR:
        output().print(_KILLED)


def _confirm(question: str) -> None:
    try:
        sure = typer.confirm(question)
    except typer.Abort:
        raise ValueError("closing a study needs a yes, and nobody answered; --yes closes it without asking") from None
    if not sure:
        output().print("Nothing was changed.")
        raise typer.Exit(1)


def _found(words: str, studies: "Sequence[StudyReplay]") -> "StudyReplay":
    """The one open study that `words` mean: its name, or the beginning of its digest."""
    still = [study for study in studies if study.state == "open"]
    wanted = words.strip().lower()
    # Only open studies can be closed, so a name that a finished study had too is not ambiguous.
    matching = [
        study for study in still if study.account.title == words or (wanted and study.account.study.startswith(wanted))
    ]
    names = ", ".join(f"{study.account.title!r} ({study.account.study[:_SHOWN_DIGITS]})" for study in matching or still)
    require(len(matching) > 0, f"no open study is called {words!r}; open studies: {names or 'none'}")
    require(len(matching) == 1, f"{words!r} fits several open studies: {names}; give more digits")
    return matching[0]


def _show_dataset(
    console: "Console", state: "DatasetState", studies: "Sequence[StudyReplay]", delta: float | None
) -> None:
    from rich.text import Text

    # One delta for the whole table: the given one, the policy's, or the largest of the studies.
    told = [study.account.delta for study in studies if study.account.delta is not None]
    at = delta or (state.life.delta if state.life is not None else max(told, default=_USUAL_DELTA))
    console.print(Text.assemble("dataset ", (state.name, "bold")))
    if state.unit is not None:
        console.print(f"  protects  {state.unit}")
    open_words = f"{state.open} open {'study' if state.open == 1 else 'studies'}"
    # Always rounded up. What is shown here is what an officer reports.
    console.print(f"  spent     epsilon {rounded(state.epsilon(at))} at delta {at:g}")
    console.print(f"  reserved  epsilon {rounded(state.epsilon(at, mu=state.reserved))} by {open_words}")
    console.print(f"  counted   epsilon {rounded(state.epsilon(at, mu=state.counted))}")
    if state.beyond > 0:
        console.print(f"  of delta  {state.beyond:.3g} is taken by masks that may fail")
    if not studies:
        console.print("  in total  no limit is known before a study is joined under a policy")
    elif state.life is None:
        console.print("  in total  the policy sets no limit")
    else:
        console.print(f"  in total  epsilon {state.life.epsilon:g} at delta {state.life.delta:g} is allowed")
    if state.void:
        console.print("  VOID: a study without privacy was joined, so there is no guarantee any more", style="bold red")
    if not studies:
        console.print("  no study yet\n")
        return
    table = _table("study", "name", "trust", "state", "steps", "guarantee", "spent")
    for study in studies:
        account = study.account
        digits, guarantee = account.study[:_SHOWN_DIGITS], _guarantee(study)
        spent = _study_epsilon(study, study.spent)
        table.add_row(digits, account.title, account.trust, study.state, str(study.steps), guarantee, spent)
    console.print(table)
    console.print()


def _show_entries(console: "Console", entries: "Sequence[Entry]") -> None:
    table = _table("entry", "time", "kind", "study", "dataset", "what", "hash")
    for entry in entries:
        study = (entry.study or "")[:8]
        row = (str(entry.number), entry.time, entry.kind, study, entry.dataset or "", _what(entry), entry.hash[:8])
        table.add_row(*row)
    console.print(table)


def _show_log(console: "Console", logged: Sequence[tuple[str, str, str]]) -> None:
    if not logged:
        return
    console.print("\nFor this site alone. This may depend on rows, and is in no export:")
    table = _table("time", "study", "what")
    for time, study, words in logged:
        table.add_row(time, study[:8], words)
    console.print(table)


def _what(entry: "Entry") -> str:
    body: dict[str, Any] = dict(entry.body)
    match entry.kind:
        case "commit":
            # How many messages, and never what or how long: an entry has marks alone.
            count = len(body["said"])
            costs = ", ".join(f"{label}: mu = {mu:.4g}" for label, mu in body["charges"]) or "no charge"
            return f"step {body['number']}, {count} {'message' if count == 1 else 'messages'}; {costs}"
        case "join":
            return str(body["account"]["title"])
        case "note":
            return str(body["words"])
        case "life":
            return "joined again under another total budget"
        case _:
            return ""


def _guarantee(study: "StudyReplay") -> str:
    account = study.account
    return f"({account.epsilon:g}, {account.delta:g})" if account.private else "no privacy"


def _study_epsilon(study: "StudyReplay", mu: float) -> str:
    """The epsilon of `mu` at the study's own delta."""
    from eigenveil.core.accounting import epsilon_of

    account = study.account
    if account.delta is None or math.isinf(mu):
        # A study without privacy that said nothing has cost nothing.
        return "nothing" if mu == 0 else "no privacy"
    # Masks take their part of delta at any epsilon, so only the rest is for mu.
    left = account.delta - account.beyond
    return f"epsilon {rounded(epsilon_of(mu, left) if left > 0 else math.inf)}"


def _counted(count: int) -> str:
    return f"{count} {'entry' if count == 1 else 'entries'}"


def _table(*names: str) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")
    return table


COMMAND = Group(
    "ledger",
    group,
    (
        Command(show),
        Command(export),
        Command(verify),
        Command(head_of, name="head"),
        Command(close),
    ),
    panel="Studies across organisations",
)
