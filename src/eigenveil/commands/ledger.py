"""`eigenveil ledger`: what a site has spent, entry by entry, and whether its ledger was changed."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from eigenveil.commands import _options as common
from eigenveil.commands._command import Answer, Command, Group
from eigenveil.commands._ending import wrote
from eigenveil.commands._files import require_output
from eigenveil.commands._network import RequireHead
from eigenveil.commands._options import argument, flag, option
from eigenveil.errors import require
from eigenveil.show.console import Line, output

if TYPE_CHECKING:
    from eigenveil.ledger.durable import StudyReplay
    from eigenveil.show.console import View

__all__ = ["COMMAND"]

_EXPORT: Final = ".jsonl"
# Of a reserve that no study has: one that a process left when it was killed, or that is in use.
_KILLED: Final = (
    "Every charge was written before its noise was drawn, so if its process was killed, it may have released what it was charged "
    "for, and nothing else. If the process still runs, its next charge is refused."
)

LedgerPath: TypeAlias = Annotated[Path, argument("LEDGER", "The ledger of this site, such as ledger.db.")]


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
    dataset: Annotated[str | None, option("NAME", "This dataset only.")] = None,
    delta: Annotated[float | None, option("NUMBER", "The delta to count at; the policy's if not given.")] = None,
    lines: Annotated[bool, flag("--lines", "Show every entry of the ledger as well.")] = False,
    require_head: RequireHead = None,
) -> Answer:
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
    from eigenveil.ledger.store import with_head

    require(delta is None or 0 < delta < 1, f"--delta must lie between 0 and 1, got {delta}")
    with with_head(path, require_head, DurableLedger.reading, writes=False) as opened:
        # Read inside, printed outside: a slow terminal must not keep the ledger open.
        datasets, studies = opened.datasets(), opened.studies()
        written, logged = (list(opened.entries()), opened.logged()) if lines else ([], [])
    if dataset is not None:
        names = ", ".join(repr(state.name) for state in datasets) or "none"
        datasets = tuple(state for state in datasets if state.name == dataset)
        require(len(datasets) > 0, f"--dataset {dataset!r} is not in {path}; these are: {names}")
        studies = tuple(study for study in studies if study.account.dataset == dataset)
        written = [line for line in written if line.dataset == dataset]
        of_these = {study.account.study for study in studies}
        logged = [line for line in logged if line[1] in of_these]
    from eigenveil.show.costs import dataset_view, entry_table, log_view

    def view() -> "View":
        if not datasets:
            yield "No dataset yet: no study was joined and nothing was spent."
        for state in datasets:
            yield from dataset_view(state, [study for study in studies if study.account.dataset == state.name], delta)
        if lines:
            yield entry_table(written)
            yield from log_view(logged)

    return Answer(view=view)


def export(
    path: LedgerPath,
    target: Annotated[Path, option("--output", "-o", "FILE", "Where the entries go, a .jsonl file.", shows=True)] = Path(
        "ledger.jsonl"
    ),
    force: common.Force = False,
    require_head: RequireHead = None,
) -> Answer:
    """Write every entry to a file that others may see and check.

    Example:

      eigenveil ledger export ledger.db -o ledger.jsonl
      eigenveil ledger verify ledger.jsonl

    One JSON object for each entry, and the head last. It has public facts
    only: studies, charges, and marks of what was sent, which only this site
    can compare with anything. It has no secret, no message, no size, no
    fingerprint of the data and no reason of a refusal: nothing in it depends
    on rows, but through what was released. The ledger is not written to.
    """
    from eigenveil.data.archive import whole_file
    from eigenveil.ledger.durable import DurableLedger
    from eigenveil.ledger.replay import chained, written_export
    from eigenveil.ledger.store import with_head

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
    return Answer(view=lambda: [f"{target}: {_counted(count - 1)} and the head"])


def verify(
    path: Annotated[Path, argument("LEDGER", "A ledger, or the .jsonl file of an export.")],
    head: Annotated[str | None, option("HASH", "A head noted earlier, which must be in the ledger.")] = None,
    require_head: RequireHead = None,
) -> Answer:
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
    from eigenveil.ledger.replay import Replay, read_export
    from eigenveil.ledger.store import NotedHead

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
    from rich.text import Text

    def view() -> "View":
        yield Text(f"{_counted(last.number)}: every hash and every balance is right", style="bold green")
        if noted is not None:
            yield "The noted head is in it: no entry up to there was changed or removed."
        yield Line(f"head {last.hash}")
        yield Text("Note the head elsewhere; --head checks later that nothing was forgotten.", style="dim")

    return Answer(view=view)


def head_of(
    path: LedgerPath,
    to: Annotated[Path | None, option("--to", "FILE", "Where the head goes, on another system.", none_means="the screen")] = None,
    force: Annotated[bool, flag("--force", "Overwrite the head in FILE even if the ledger does not have it.")] = False,
) -> Answer:
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
    from eigenveil.ledger.store import NotedHead, note_head, require_noted

    with DurableLedger.reading(path) as opened:
        if to is not None and to.exists() and not force:
            require_noted(opened, to)
        noted = NotedHead.of(opened.last) if to is None else note_head(opened, to)
    if to is not None:
        wrote(to)
    return Answer(view=lambda: [Line(noted.text().strip())])


def close(
    path: LedgerPath,
    study: Annotated[str, argument("STUDY", "Its name, or the first digits of its digest, as `show` prints them.")],
    yes: Annotated[bool, flag("--yes", "Do not ask.")] = False,
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
    from eigenveil.ledger.store import with_head
    from eigenveil.show.costs import SHOWN_DIGITS, study_epsilon

    with with_head(path, require_head, lambda at: DurableLedger.open(at, create=False), writes=True) as opened:
        replay = _open_study(study, opened.studies())
        account, standing = replay.account, replay.standing
        # The lock keeps a running site from charging the study between the question and the answer.
        with opened.lock(account.study):
            if not yes:
                console = output()
                console.print(f"{account.title} ({account.study[:SHOWN_DIGITS]}) of dataset {account.dataset}:")
                console.print(f"  spent, and stays spent: {study_epsilon(replay, replay.spent)}")
                console.print(f"  reserved, and otherwise becomes free: {study_epsilon(replay, standing.mu)}")
                if account.trust == CURATOR:
                    console.print(_KILLED)
                try:
                    sure = typer.confirm("It can never be joined again. Close it?")
                except typer.Abort:
                    raise ValueError(
                        "closing a study needs a yes, and there was no answer; --yes closes it without asking"
                    ) from None
                if not sure:
                    console.print("Nothing was changed.")
                    raise typer.Exit(1)
            opened.abandon(account.study)
    output().print(f"{account.title} is closed; what it spent stays spent: {study_epsilon(replay, replay.spent)}")
    if yes and account.trust == CURATOR:
        output().print(_KILLED)


def _open_study(query: str, studies: "Sequence[StudyReplay]") -> "StudyReplay":
    """The one open study that `query` means: its name, or the beginning of its digest."""
    from eigenveil.show.costs import SHOWN_DIGITS

    still = [study for study in studies if study.state == "open"]
    wanted = query.strip().lower()
    # Only open studies can be closed, so a name that a finished study had too is not ambiguous.
    matching = [study for study in still if study.account.title == query or (wanted and study.account.study.startswith(wanted))]
    names = ", ".join(f"{study.account.title!r} ({study.account.study[:SHOWN_DIGITS]})" for study in matching or still)
    require(len(matching) > 0, f"no open study is called {query!r}; open studies: {names or 'none'}")
    require(len(matching) == 1, f"{query!r} fits several open studies: {names}; give more digits")
    return matching[0]


def _counted(count: int) -> str:
    return f"{count} {'entry' if count == 1 else 'entries'}"


COMMAND = Group(
    name="ledger",
    about=group,
    commands=(*(Command(run=run) for run in (show, export, verify)), *(Command(run=head_of, name="head"), Command(run=close))),
    panel="Studies across organisations",
)
