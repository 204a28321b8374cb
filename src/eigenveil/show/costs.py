"""What releases cost together, the noise that a budget needs, and what the datasets of a ledger have spent."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import TYPE_CHECKING, Any, Final, final

from rich import box
from rich.table import Table
from rich.text import Text

from eigenveil.core.accounting import Budget, epsilon_of
from eigenveil.errors import plain
from eigenveil.privacy.facts import weak_words
from eigenveil.privacy.guarantee import Guarantee, Loss, price
from eigenveil.show.disclosure import rounded
from eigenveil.show.terminal import simple_table

if TYPE_CHECKING:
    from eigenveil.ledger.durable import DatasetState, Entry, StudyReplay
    from eigenveil.show.console import View


@final
@dataclass(frozen=True, slots=True)
class Release:
    """Something to add up: its `name`, its `loss`, and the `guarantee` where a file states one."""

    name: str
    loss: Loss
    guarantee: Guarantee | None = None

    @property
    def unit(self) -> str:
        """What is protected, in one word."""
        protects = None if self.guarantee is None else self.guarantee.protects
        return "" if protects is None else protects.kind

    @property
    def column(self) -> str | None:
        """The column that names people, where the file says it."""
        protects = None if self.guarantee is None else self.guarantee.protects
        return None if protects is None else protects.column

    @property
    def mu(self) -> float | None:
        """The mu of a Gaussian release."""
        return math.sqrt(self.loss.count) / self.loss.multiplier if self.loss.law == "gaussian" else None

    @property
    def neighbours(self) -> str | None:
        """The relation between neighbouring tables, where the file says it."""
        return None if self.guarantee is None else self.guarantee.relation


def cost_view(losses: Sequence[Loss], delta: float) -> "View":
    """Each of these releases with its cost alone, and all of them together."""
    table = simple_table("noise", "multiplier", "times", "epsilon alone")
    for loss in losses:
        table.add_row(loss.law, f"{loss.multiplier:g}", str(loss.count), _up(price([loss], delta=delta)))
    yield table
    yield from _total(losses, delta)


def sum_view(releases: Sequence[Release], delta: float) -> "View":
    """Each release with its cost and its kind, and all of them together."""
    table = simple_table("release", "mu", f"epsilon at {delta:g}", "protects each", "neighbours")
    for release in releases:
        mu = "" if release.mu is None else f"{release.mu:.5g}"
        cost = _up(price([release.loss], delta=delta))
        table.add_row(plain(release.name), mu, cost, release.unit, plain(release.neighbours or ""))
    yield table
    yield from _total([release.loss for release in releases], delta)
    for line in _remarks(releases):
        yield Text(line, style="dim")


def sum_values(releases: Sequence[Release], delta: float) -> dict[str, Any]:
    """The same for programs."""
    lines = [
        {
            "release": release.name,
            "mu": release.mu,
            "epsilon": float(_up(price([release.loss], delta=delta))),
            "protects_each": release.unit or None,
            "neighbours": release.neighbours,
        }
        for release in releases
    ]
    total = float(_up(price([release.loss for release in releases], delta=delta)))
    return {"releases": lines, "epsilon": total, "delta": delta}


def noise_view(budget: Budget, releases: int, others: Sequence[tuple[str, float | None]]) -> "View":
    """The noise that each of so many equal releases needs, next to that of `others`, None where they have no proof."""
    # Squares of mu add up, so each of n equal releases gets the root of n times the noise of one.
    needed = math.sqrt(releases) / budget.mu
    table = simple_table("calibration", "multiplier of each release", "times what is needed")
    table.add_row("exact (used here)", _up(needed), "1")
    for name, multiplier in others:
        compared = ("no proof here", "") if multiplier is None else (_up(multiplier), f"{multiplier / needed:.2f}")
        table.add_row(name, *compared)
    yield table
    noise = f"noise = {_up(needed)} x sensitivity"
    each = "" if releases == 1 else f" in each of {releases} releases"
    yield Text.assemble("\n", (noise, "bold green"), f"{each} satisfies ({budget.epsilon:g}, {budget.delta:g})")
    yield Text(f"that is mu = {budget.mu:.6g} in Gaussian-DP terms", style="dim")


def _remarks(releases: Sequence[Release]) -> Iterator[str]:
    """What the sum rests on."""
    stated = [release.guarantee for release in releases if release.guarantee is not None]
    yield "This is the cost to a person who is in all of them."
    if stated and len(stated) < len(releases):
        yield "Releases given as numbers are taken to protect the same as the files do."
    if len({guarantee.against for guarantee in stated}) > 1:
        yield "The files protect from different people. The sum holds against those that all of them protect from."


def _total(losses: Sequence[Loss], delta: float) -> "View":
    total = price(losses, delta=delta)
    yield Text.assemble("\ntogether: ", (f"epsilon = {_up(total)} at delta = {delta:g}", "bold green"))
    # A sum may protect nobody although each release did, and people read the last line.
    for text in weak_words(Budget(total, delta)) if total > 0 else ():
        yield Text(f"{text[0].upper()}{text[1:]}.", style="yellow")
    exact = all(loss.law == "gaussian" for loss in losses)
    how = "exactly, in closed form" if exact else "on a grid of privacy losses, rounded up"
    yield Text(f"composed {how}", style="dim")


def _up(number: float) -> str:
    """Five significant digits, rounded up: less noise or a smaller epsilon than this would not keep the guarantee."""
    if number == 0 or not math.isfinite(number):
        return f"{number:g}"
    unit = Decimal(1).scaleb(Decimal(number).adjusted() - 4)
    return format(Decimal(number).quantize(unit, rounding=ROUND_CEILING).normalize(), "f")


# Used where neither the policy nor a study says at which delta to count.
_USUAL_DELTA: Final = 1e-6
# Digits of a study's digest that people see and type.
SHOWN_DIGITS: Final = 16


def dataset_view(state: "DatasetState", studies: "Sequence[StudyReplay]", delta: float | None) -> "View":
    """What a dataset has spent, what is reserved and allowed, and its studies."""
    # One delta for the whole table: the given one, the policy's, or the largest of the studies.
    deltas = [study.account.delta for study in studies if study.account.delta is not None]
    at = delta or (state.life.delta if state.life is not None else max(deltas, default=_USUAL_DELTA))
    yield Text.assemble("dataset ", (state.name, "bold"))
    if state.unit is not None:
        yield f"  protects  {state.unit}"
    open_words = f"{state.open} open {'study' if state.open == 1 else 'studies'}"
    # Always rounded up. What is shown here is what an officer reports.
    yield f"  spent     epsilon {rounded(state.epsilon(at))} at delta {at:g}"
    yield f"  reserved  epsilon {rounded(state.epsilon(at, mu=state.reserved))} by {open_words}"
    yield f"  counted   epsilon {rounded(state.epsilon(at, mu=state.counted))}"
    if state.extra_delta > 0:
        yield f"  of delta  {state.extra_delta:.3g} is taken by masks that may fail"
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
    for time, study, text in logged:
        table.add_row(time, study[:8], text)
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
    left = account.delta - account.extra_delta
    return f"epsilon {rounded(epsilon_of(mu, left) if left > 0 else math.inf)}"


def _folded(*names: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")
    return table
