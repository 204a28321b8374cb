"""How `eigenveil audit` shows cases, verdicts and demonstrations: tables for a terminal and for a page."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from eigenveil.audit import Case, Finding, Verdict
    from eigenveil.audit.attacks.demonstration import Demonstration

__all__ = ["attack_tables", "case_table", "verdict_markdown", "verdict_table"]


def case_table(cases: "Sequence[Case]") -> "Table":
    """All cases, what each attacks and by whom it is looked for."""
    table = _table("case", "what is attacked", "canary", "tests")
    for case in cases:
        table.add_row(case.name, case.about, case.canary, ", ".join(case.tests))
    return table


def verdict_table(verdicts: "Sequence[Verdict]") -> "Table":
    """One line for each case: what is claimed, what guesses and noise show that it is at least, and the verdict."""
    table = _table("case", "claimed", "by guesses", "by noise", "runs", "verdict")
    for verdict in verdicts:
        style = None if verdict.as_it_should else "bold red"
        table.add_row(verdict.case, *_figures(verdict), verdict.words, style=style)
    return table


def verdict_markdown(verdicts: "Sequence[Verdict]") -> str:
    """The same for a page, with what is attacked."""
    lines = [
        "| case | what is attacked, and who sees it | canary | claimed | by guesses, at least | by noise | runs | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for verdict in verdicts:
        words = verdict.words if verdict.kind == "shipped" else f"**{verdict.words}**"
        cells = (f"`{verdict.case}`", verdict.about, verdict.canary, *_figures(verdict), words)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def attack_tables(shown: "Sequence[Demonstration]") -> "Iterator[Any]":
    """Each demonstration: who attacks and how, what came of it, and what follows."""
    for one in shown:
        yield one.title.upper()
        yield " ".join(one.story)
        yield f"Measured: {one.measure}. Beside it: {one.guess}."
        table = _table("study", "what is attacked", "attack", "guess", "allowed", "")
        for row in one.rows:
            low_high = "" if row.interval is None else f" ({row.interval[0]:.2f} to {row.interval[1]:.2f})"
            allowed = "" if row.allowed is None else f"{row.allowed:.2f}"
            got = f"{row.value:.2g}{low_high}"
            table.add_row(row.run, row.target, got, f"{row.baseline:.2g}", allowed, row.words)
        yield table
        yield one.conclusion + "\n"


def _table(*columns: str) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _figures(verdict: "Verdict") -> tuple[str, str, str, str]:
    """What is claimed, what guesses and noise show that it is at least, each by the test that got furthest, and runs."""
    if not verdict.findings:
        return f"mu {verdict.claim.mu:.3g}", "", "", "0"
    by_noise = [finding for finding in verdict.findings if finding.test == "noise"]
    guessed = [finding for finding in verdict.findings if finding.test != "noise"]
    first = max(guessed or by_noise, key=lambda finding: finding.bound / finding.claimed)
    return (
        f"{first.unit} {first.claimed:.3g}",
        f"{_bound(first)} ({first.test}, up to {first.reach:.2g})" if guessed else "",
        _bound(by_noise[0]) if by_noise else "",
        str(max(finding.runs for finding in verdict.findings)),
    )


def _bound(finding: "Finding") -> str:
    return f"{finding.bound:.3g}" if math.isfinite(finding.bound) else "any"
