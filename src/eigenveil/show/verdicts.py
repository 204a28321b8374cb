"""What an audit found: verdicts as tables for terminals and Markdown, and as a report; demonstrations as a story."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rich.table import Table

from eigenveil.audit import Case, Finding, Verdict
from eigenveil.audit.membership import Demonstration
from eigenveil.show.values import FactLine, ListPart, Report, TablePart

if TYPE_CHECKING:
    from eigenveil.show.console import View

_COLUMNS: Final = (
    "Each case runs a fit many times, with and without a canary, which is a made-up row or person that is easy to find. Claimed "
    "is what the guarantee says: epsilon, or mu of Gaussian differential privacy. By guesses is a lower bound from right "
    "guesses, with its test, and in brackets how far it could have come with this many runs. By noise is the lower bound from "
    "the size of the noise. A claim is refuted if a bound exceeds it. In names, curator stands for one table with one analyst."
)


def verdict_report(verdicts: Sequence[Verdict], confidence: float) -> Report:
    """The verdicts as a report: what was attacked, how far the attacks got, and what follows."""
    first, *rest = _conclusions(verdicts, confidence)
    # The verdict beside the case: on a telephone the rest of a row is off the screen.
    header = ("case", "verdict", "claimed", "by guesses, at least", "by noise", "runs", "what is attacked", "canary")
    rows = tuple((verdict.case, verdict.words, *_figures(verdict), verdict.about, verdict.canary) for verdict in verdicts)
    return Report(
        kind="audit",
        title=f"Audit of {_claims(len(verdicts))}",
        answer=first,
        # These say that the audit itself fell short, which must not be overlooked.
        warnings=tuple(conclusion for conclusion in rest if conclusion.startswith("NOT")),
        tables=(TablePart(title="Verdicts", header=header, rows=rows, note=_COLUMNS),),
        lists=(ListPart("What else follows", tuple(rest)),) if rest else (),
        facts=(FactLine("confidence", f"{confidence:.0%} over the whole audit"),),
    )


def verdict_view(verdicts: Sequence[Verdict], confidence: float) -> "View":
    """The verdicts as a table, and what follows from them."""
    yield _verdict_table(verdicts)
    yield from _conclusions(verdicts, confidence)


def _conclusions(verdicts: Sequence[Verdict], confidence: float) -> Iterator[str]:
    """What follows from the verdicts, the shipped claims first."""
    # Specimens are known to be wrong, so the two kinds are judged in opposite ways.
    shipped = [verdict for verdict in verdicts if verdict.kind == "shipped"]
    wrong = [verdict for verdict in verdicts if verdict.kind == "specimen"]
    refuted = [verdict.case for verdict in shipped if verdict.refuted]
    # A specimen that survives says that the attacks are weak, and so nothing else can be concluded.
    missed = [verdict.case for verdict in wrong if not verdict.refuted]
    for verdict in verdicts:
        if verdict.failed:
            yield f"NOT AUDITED: {verdict.case} ended with an error. {verdict.failed}"
    if shipped:
        yield (
            f"REFUTED, at {confidence:.0%} confidence over the whole audit: {', '.join(refuted)}. Please report this."
            if refuted
            else f"{len(shipped)} shipped {'claim was' if len(shipped) == 1 else 'claims were'} attacked and none was refuted, "
            f"at {confidence:.0%} confidence over the whole audit. That is no proof: it means that these attacks did not succeed."
        )
    if wrong:
        yield (
            f"NOT REFUTED, although known to be wrong: {', '.join(missed)}. The audit was too weak. Repeat it with more --runs."
            if missed
            else f"All {len(wrong)} specimens, which are known to be wrong, were refuted."
        )


def _claims(count: int) -> str:
    return f"{count} privacy claim{'s' * (count != 1)}"


def case_table(cases: Sequence[Case]) -> Table:
    """All cases: what each attacks, which person is to be found, and by which tests."""
    table = _table("case", "what is attacked", "canary", "tests")
    for case in cases:
        table.add_row(case.name, case.about, case.canary, ", ".join(case.tests))
    return table


def _verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """One row for each case: the claim, the lower bounds from guesses and from the noise, and the verdict."""
    table = _table("case", "claimed", "by guesses", "by noise", "runs", "verdict")
    for verdict in verdicts:
        style = None if verdict.matches_expectation else "bold red"
        table.add_row(verdict.case, *_figures(verdict), verdict.words, style=style)
    return table


def verdict_markdown(verdicts: Sequence[Verdict]) -> str:
    """The same as Markdown, with what is attacked."""
    lines = [
        "| case | what is attacked, and who sees it | canary | claimed | by guesses, at least | by noise | runs | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for verdict in verdicts:
        outcome = verdict.words if verdict.kind == "shipped" else f"**{verdict.words}**"
        cells = (f"`{verdict.case}`", verdict.about, verdict.canary, *_figures(verdict), outcome)
        # A bar inside a cell would end the cell.
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def attack_view(shown: Sequence[Demonstration]) -> "View":
    """Each demonstration: who attacks and how, the result, and the conclusion."""
    for demonstration in shown:
        yield demonstration.title.upper()
        yield " ".join(demonstration.story)
        yield f"Measured: {demonstration.measure}. Beside it: {demonstration.guess}."
        table = _table("study", "what is attacked", "attack", "guess", "allowed", "")
        for row in demonstration.rows:
            low_high = "" if row.interval is None else f" ({row.interval[0]:.2f} to {row.interval[1]:.2f})"
            allowed = "" if row.allowed is None else f"{row.allowed:.2f}"
            got = f"{row.value:.2g}{low_high}"
            table.add_row(row.run, row.target, got, f"{row.baseline:.2g}", allowed, row.words)
        yield table
        yield demonstration.conclusion + "\n"


def _table(*columns: str) -> Table:
    # No frame, so that it can be pasted into an issue.
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _figures(verdict: Verdict) -> tuple[str, str, str, str]:
    """The claim, the lower bounds from guesses and from the noise (each from the strongest test), and the runs."""
    # A case that failed has no results, and must not look like one that passed.
    if not verdict.findings:
        return f"mu {verdict.claim.mu:.3g}", "", "", "0"
    by_noise = [finding for finding in verdict.findings if finding.test == "noise"]
    guessed = [finding for finding in verdict.findings if finding.test != "noise"]
    # Results may be in different units, so they are compared by their share of the claim.
    first = max(guessed or by_noise, key=lambda finding: finding.bound / finding.claimed)
    return (
        f"{first.unit} {first.claimed:.3g}",
        f"{_bound(first)} ({first.test}, up to {first.reach:.2g})" if guessed else "",
        _bound(by_noise[0]) if by_noise else "",
        str(max(finding.runs for finding in verdict.findings)),
    )


def _bound(finding: Finding) -> str:
    # An infinite bound means that no epsilon explains what was seen.
    return f"{finding.bound:.3g}" if math.isfinite(finding.bound) else "any"
