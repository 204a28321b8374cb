"""A ledger on a terminal: what datasets have spent, their studies, every entry, and what is logged for this site alone."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.table import Table
from rich.text import Text

from eigenveil.core.accounting import epsilon_of
from eigenveil.show.words import rounded

if TYPE_CHECKING:
    from eigenveil.ledger.durable import DatasetState, Entry, StudyReplay
    from eigenveil.show.console import View

__all__ = ["SHOWN_DIGITS", "dataset_view", "entry_table", "log_view", "study_epsilon"]

# Used where neither the policy nor a study says at which delta to count.
_USUAL_DELTA: Final = 1e-6
# Digits of a study's digest that people see and type.
SHOWN_DIGITS: Final = 16


def dataset_view(state: "DatasetState", studies: "Sequence[StudyReplay]", delta: float | None) -> "View":
    """What a dataset has spent, what is reserved and allowed, and its studies."""
    # One delta for the whole table: the given one, the policy's, or the largest of the studies.
    told = [study.account.delta for study in studies if study.account.delta is not None]
    at = delta or (state.life.delta if state.life is not None else max(told, default=_USUAL_DELTA))
    yield Text.assemble("dataset ", (state.name, "bold"))
    if state.unit is not None:
        yield f"  protects  {state.unit}"
    open_words = f"{state.open} open {'study' if state.open == 1 else 'studies'}"
    # Always rounded up. What is shown here is what an officer reports.
    yield f"  spent     epsilon {rounded(state.epsilon(at))} at delta {at:g}"
    yield f"  reserved  epsilon {rounded(state.epsilon(at, mu=state.reserved))} by {open_words}"
    yield f"  counted   epsilon {rounded(state.epsilon(at, mu=state.counted))}"
    if state.beyond > 0:
        yield f"  of delta  {state.beyond:.3g} is taken by masks that may fail"
    if not studies:
        yield "  in total  no limit is known before a study is joined under a policy"
    elif state.life is None:
        yield "  in total  the policy sets no limit"
    else:
        yield f"  in total  epsilon {state.life.epsilon:g} at delta {state.life.delta:g} is allowed"
    if state.void:
        yield Text("  VOID: a study without privacy was joined, so there is no guarantee any more", style="bold red")
    if not studies:
        yield "  no study yet\n"
        return
    table = _folded("study", "name", "trust", "state", "steps", "guarantee", "spent")
    for study in studies:
        account = study.account
        digits, guarantee = account.study[:SHOWN_DIGITS], _guarantee(study)
        spent = study_epsilon(study, study.spent)
        table.add_row(digits, account.title, account.trust, study.state, str(study.steps), guarantee, spent)
    yield table
    yield ""


def entry_table(entries: "Sequence[Entry]") -> Table:
    """Every entry, one per line."""
    table = _folded("entry", "time", "kind", "study", "dataset", "what", "hash")
    for entry in entries:
        study = (entry.study or "")[:8]
        row = (str(entry.number), entry.time, entry.kind, study, entry.dataset or "", _what(entry), entry.hash[:8])
        table.add_row(*row)
    return table


def log_view(logged: Sequence[tuple[str, str, str]]) -> "View":
    """What is logged for this site alone."""
    if not logged:
        return
    yield "\nFor this site alone. This may depend on rows, and is in no export:"
    table = _folded("time", "study", "what")
    for time, study, words in logged:
        table.add_row(time, study[:8], words)
    yield table


def _what(entry: "Entry") -> str:
    body: dict[str, Any] = dict(entry.body)
    if entry.kind == "commit":
        # How many messages, and never what or how long: an entry has marks alone.
        count = len(body["said"])
        costs = ", ".join(f"{label}: mu = {mu:.4g}" for label, mu in body["charges"]) or "no charge"
        return f"step {body['number']}, {count} {'message' if count == 1 else 'messages'}; {costs}"
    if entry.kind == "join":
        return str(body["account"]["title"])
    if entry.kind == "note":
        return str(body["words"])
    # The kinds that are left say all by their name.
    return "joined again under another total budget" if entry.kind == "life" else ""


def _guarantee(study: "StudyReplay") -> str:
    account = study.account
    return f"({account.epsilon:g}, {account.delta:g})" if account.private else "no privacy"


def study_epsilon(study: "StudyReplay", mu: float) -> str:
    """The epsilon of `mu` at the study's own delta."""
    account = study.account
    if account.delta is None or math.isinf(mu):
        # A study without privacy that said nothing has cost nothing.
        return "nothing" if mu == 0 else "no privacy"
    # Masks take their part of delta at any epsilon, so only the rest is for mu.
    left = account.delta - account.beyond
    return f"epsilon {rounded(epsilon_of(mu, left) if left > 0 else math.inf)}"


def _folded(*names: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")
    return table
