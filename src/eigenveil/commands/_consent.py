"""Before a site or peer takes part: its ledger, the name of its dataset there, and consent by a person or a policy.

`join.py` calls these steps in order. Nothing is sent before the last of them.
"""

import getpass
import hashlib
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

import typer

from eigenveil.commands._ending import at_terminal, leaves
from eigenveil.errors import require

if TYPE_CHECKING:
    from eigenveil.ledger.durable import DurableLedger, StudyReplay
    from eigenveil.network.policy import Policy
    from eigenveil.network.study import StudyFile
    from eigenveil.show.progress import StatusWriter

__all__ = [
    "DECLINED",
    "Names",
    "at_terminal",
    "known_study",
    "obtain_consent",
    "open_ledger",
    "question_of",
    "require_names",
    "require_own_ledger",
    "require_rehearsal",
    "require_unit",
    "resolve_dataset_name",
    "study_in",
]

# The exit code when the person says no.
DECLINED: Final = 1
_NO_PRIVACY: Final = "no privacy"
_YES: Final = ("y", "yes")
_DECLINED: Final = "consent was asked for and not given"


@contextmanager
def open_ledger(path: Path, *, head: Path | None, dry_run: bool) -> Iterator["DurableLedger"]:
    """The ledger at `path`, with the head in the file `head`. A dry run only reads it, and makes none if there is none."""
    from eigenveil.ledger.durable import DurableLedger
    from eigenveil.ledger.store import with_head

    if not dry_run:
        with with_head(path, head, DurableLedger.open, writes=True) as ledger:
            yield ledger
    # Read-only, so that a dry run is possible while the site runs, and leaves no trace.
    elif path.exists() or (head is not None and head.exists()):
        with with_head(path, head, DurableLedger.reading, writes=False) as ledger:
            yield ledger
    else:
        with tempfile.TemporaryDirectory() as folder, DurableLedger.open(Path(folder) / "ledger.db") as ledger:
            yield ledger


def known_study(ledger: "DurableLedger", digest: str, *, role: str) -> "StudyReplay | None":
    """The study with this digest, if this `role` has joined it; a `ValueError` if it was finished or closed."""
    # By digest: a file that differs in one key is another study, with a consent of its own.
    replay = study_in(ledger, digest)
    if replay is not None:
        title = replay.account.title
        require(replay.state != "finished", f"this {role} has finished the study {title!r}, and has written its model")
        require(replay.state == "open", f"the study {title!r} was closed for good in the ledger of this {role}")
    return replay


def study_in(ledger: "DurableLedger", digest: str) -> "StudyReplay | None":
    """The study with this digest as the ledger has it now, if it was ever joined."""
    return next((state for state in ledger.studies() if state.account.study == digest), None)


def resolve_dataset_name(
    path: Path, ledger: "DurableLedger | None", explicit: str | None, replay: "StudyReplay | None", *, role: str
) -> str:
    """The dataset's name: the given one, the one the study was joined with, or the only one in the ledger at `path`.

    It is never made from a file name: a copy of the file would then have a second budget for the same people.
    """
    if explicit is not None:
        joined = explicit if replay is None else replay.account.dataset
        require(
            joined == explicit, f"--dataset {explicit!r}: this {role} joined the study with {joined!r}, which cannot be changed"
        )
        return explicit
    if replay is not None:
        return replay.account.dataset
    names = [] if ledger is None else [state.name for state in ledger.datasets()]
    # The names in the ledger are shown, because a mistyped one would open a second budget.
    listing = f"{path} has {', '.join(map(repr, names))}" if names else f"{path} has none yet"
    require(
        len(names) == 1,
        f"--dataset is missing: this {role}'s name for the people in the table; {listing}. Budgets attach to the name for "
        "as long as it is used, so give the same people the same name",
    )
    return names[0]


def require_unit(study: "StudyFile", rules: "Policy", path: Path) -> None:
    """Refuse --yes with a policy that does not say who is protected: then no person at this site has said it."""
    from eigenveil.params.tables import to_toml as toml_value

    unit = study.unit
    if unit.kind == "row":
        true, keys = "If no person has more than one row in your table", 'unit = "row"'
    elif unit.column is None:
        true, keys = "If that is true of your stream", 'unit = "stream"'
    else:
        true, keys = (
            "If that column tells people apart in your table",
            f'unit = "person" and person = {toml_value(unit.column)}',
        )
    require(
        rules.limits.unit is not None,
        f"--yes needs a policy that says who is protected, and {path} does not. This study protects {unit.description}. {true}, "
        f"write {keys} under [limits]",
    )


@final
@dataclass(frozen=True, slots=True)
class Names:
    """Other names in the ledger for what may be the same people: read from the same `source`, or with the same `rows`.

    Where a table was read is known without looking into it. Whether rows are equal is as private as they are.
    """

    source: tuple[str, ...]
    rows: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """Each of them once."""
        return tuple(sorted({*self.source, *self.rows}))


def require_names(
    voice: "StatusWriter",
    study: "StudyFile",
    ledger: "DurableLedger",
    dataset: str,
    names: Names,
    *,
    rules: "Policy | None",
    yes: bool,
) -> None:
    """Refuse a table that the ledger has under another name, unless the policy lists both, or a person agrees to a second budget.

    Where no person is asked only the `source` of the table decides, and not its rows: whether a service takes part can be seen
    from outside, and must not show that a row is another one.
    """
    asks = not yes and at_terminal()
    others = [name for name in (names.all if asks else names.source) if rules is None or not rules.alias(dataset, name)]
    if not others:
        return
    # In quotes, since a name may have blanks and commas.
    quoted = ", ".join(f'"{name}"' for name in others)
    warning = f'This table is in your ledger as {quoted}. As "{dataset}" the same people would get a second total budget'
    require(
        not yes,
        f"{warning}, which --yes does not agree to. Use --dataset {shlex.quote(others[0])}, or write both names into your policy "
        "under [datasets] aliases. If other people are in this file, give it another name",
    )
    voice.say(f"{warning}. What they cost under both names adds up.", style="bold yellow")
    if _ask("Give the same people a second budget? [y/N]") not in _YES:
        # The same entry as after the last question: which of the two was answered may depend on rows.
        ledger.note(study.digest, _DECLINED)
        voice.say(f"Nothing was sent and nothing was charged. To continue: --dataset {shlex.quote(others[0])}")
        raise typer.Exit(DECLINED)


def require_own_ledger(
    voice: "StatusWriter", ledger: "DurableLedger", party: str, dataset: str, *, yes: bool, dry_run: bool
) -> None:
    """Refuse a ledger that only other parties have used so far, unless a person says that it is the right one.

    Two sites whose ledgers were exchanged both have a dataset of the name they ask for, and each would charge the other's people.
    Where both have used both ledgers, for several datasets, the dataset tells.
    """
    studies = ledger.studies()
    parties = {state.account.party for state in studies} - {""}
    users = {state.account.party for state in studies if state.account.dataset == dataset} - {""}
    if (party in parties and (not users or party in users)) or not parties:
        return
    has_used = party in parties
    others = " and ".join(f'"{name}"' for name in sorted(users if has_used else parties))
    what = f"has the dataset {dataset!r}" if has_used else "is the ledger"
    warning = (
        f'{ledger.path} {what} of {others}, and "{party}" has never used it. '
        "If two sites have each other's ledgers, the "
        "people of one would be charged for the other"
    )
    require(
        not yes,
        f"{warning}. Give --ledger with the ledger of {party!r}. If this is the right one, for example after a change of name, "
        "take part once without --yes",
    )
    if dry_run:
        voice.say(f"WARNING: {warning}.", style="bold yellow")
        return
    voice.say(f"{warning}.", style="bold yellow")
    if _ask(f'Charge "{party}" to this ledger? [y/N]') not in _YES:
        voice.say(f"Nothing was sent and nothing was charged. Give --ledger with the ledger of {party!r}.")
        raise typer.Exit(DECLINED)


def require_rehearsal(study: "StudyFile", rehearsal: bool) -> None:
    """Refuse a study with a test seed unless a `rehearsal` was asked for, and one without a seed if it was."""
    require(
        rehearsal or study.seed is None,
        f"{study.name!r} is a rehearsal with a test seed: its noise can be subtracted, and it protects no one. To take part "
        "with test data, give --rehearsal",
    )
    require(not rehearsal or study.seed is not None, f"{study.name!r} is not a rehearsal; leave --rehearsal out")


def obtain_consent(
    voice: "StatusWriter", study: "StudyFile", ledger: "DurableLedger", *, rules: Path | None, again: bool = False
) -> str:
    """The note for the ledger that says who consented, a person or the policy at `rules`. Without consent it exits.

    A person is asked `again` where the table has changed. Then the answer is for the ledger's log: an entry would tell others so.
    """
    if rules is not None:
        voice.say(f"Consent: --yes, under {rules}.")
        # With a digest of the policy as it was.
        return f"consent: --yes under the policy {rules.name}, sha256 {hashlib.sha256(rules.read_bytes()).hexdigest()}"
    typed = _ask(question_of(study))
    # Whole words only, and the empty answer is no.
    if typed in (_YES if study.private else (_NO_PRIVACY,)):
        try:
            who = getpass.getuser()
        except (OSError, KeyError):
            # The account has no name.
            who = "a person"
        return f"consent: {who} typed {typed!r}"
    # The privacy officer finds in the ledger that a person was asked, and said no.
    (ledger.log if again else ledger.note)(study.digest, _DECLINED)
    voice.say("Nothing was sent and nothing was charged.")
    raise typer.Exit(DECLINED)


def question_of(study: "StudyFile") -> str:
    """What the person is asked. Exact results take more than one key to agree to."""
    return "Take part? [y/N]" if study.private else f'Type "{_NO_PRIVACY}" to take part'


def _ask(question: str) -> str:
    """What the person at the terminal types, in lower case. A pipe cannot consent."""
    require(
        at_terminal(),
        "consent needs a person at a terminal, and there is none. Run this in a terminal, or consent by rules with --yes and "
        "--policy",
    )
    # An impatient "y" typed while the screen was built must not count as consent.
    _forget_typed()
    suffix = " " if question.endswith("]") else ": "
    try:
        typed: str = typer.prompt(question, default="", show_default=False, prompt_suffix=suffix)
    except typer.Abort:
        leaves("nothing was sent and nothing was charged")
        raise KeyboardInterrupt from None
    return typed.strip().lower()


def _forget_typed() -> None:
    """Discard what was typed before the question appeared: it is no answer to it."""
    # Windows has no termios.
    with suppress(ImportError):
        import termios

        termios.tcflush(sys.stdin, termios.TCIFLUSH)
