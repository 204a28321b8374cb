"""`eigenveil audit`: attack our own releases and report which privacy claims are refuted."""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from eigenveil.commands import _options as option
from eigenveil.commands._command import Command
from eigenveil.commands._ending import leaves
from eigenveil.commands._outputs import require_report, write
from eigenveil.errors import require
from eigenveil.show.console import busy, is_seen, output

if TYPE_CHECKING:
    from rich.table import Table

    from eigenveil.audit import Case, Finding, Progress, Verdict
    from eigenveil.audit.attacks.demonstration import Demonstration
    from eigenveil.core.accounting import Budget
    from eigenveil.show.values import Report

__all__ = ["COMMAND"]

# So that a job in CI fails when a claim does.
_BROKEN: Final = 1
_CASES: Final = "Which cases"
_STRENGTH: Final = "How hard to attack"
_SHAPE: Final = "Output"
# The first part of every case name. Any other name is refused before the cases are imported, which takes seconds.
FAMILIES: Final = (
    *("curator", "stream", "bounds", "hub-noise", "site-noise", "both-noise", "tree"),
    *("masked", "peers", "recommend", "ledger", "bits", "wrong"),
)


def audit(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CASE]...", help="The cases to attack: names, or the first part of names.", show_default=False
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Attack every case.", rich_help_panel=_CASES)] = False,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Use few runs: --quick --all takes one or two minutes.", rich_help_panel=_CASES),
    ] = False,
    demonstrate: Annotated[
        bool,
        typer.Option(
            "--demonstrate",
            help="Show what attackers get from published methods: two reconstructions and membership inference.",
            rich_help_panel=_CASES,
        ),
    ] = False,
    confidence: Annotated[
        float,
        typer.Option(
            help="The chance that the whole audit refutes no true claim.",
            rich_help_panel=_STRENGTH,
        ),
    ] = 0.99,
    epsilon: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER", help="Audit at this epsilon.", rich_help_panel=_STRENGTH, show_default="each case's own"
        ),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER", help="Audit at this delta.", rich_help_panel=_STRENGTH, show_default="each case's own"
        ),
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option(
            help="Runs of each case. More runs find smaller flaws.",
            rich_help_panel=_STRENGTH,
            show_default="each case's own",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="INTEGER",
            help="Make the audit reproducible.",
            rich_help_panel=_STRENGTH,
            show_default="noise as in real fits",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(help="How many processes to use.", rich_help_panel=_STRENGTH, show_default="one for each core"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all results as JSON.", rich_help_panel=_SHAPE)] = False,
    report: option.ReportFile = None,
    force: option.Force = False,
    as_markdown: Annotated[
        bool,
        typer.Option("--markdown", help="Print the verdicts as a Markdown table.", rich_help_panel=_SHAPE),
    ] = False,
) -> None:
    """Attack our own privacy guarantees, and report which ones fail.

    Use it to check the guarantees on your machine, or after a change of
    the code. It needs no data:

      eigenveil audit                  list the cases
      eigenveil audit --quick --all    attack all, in one or two minutes
      eigenveil audit masked peers     attack some, with ten times the runs
      eigenveil audit --demonstrate    show what attackers get, and from what

    One case, at a budget of your choice:

      eigenveil audit curator/covariance --epsilon 1 --delta 1e-5 --runs 20000

    Each case runs an estimator many times on synthetic tables. A coin toss
    decides whether a conspicuous person is in the table. The attacker sees
    what is released and guesses. Too many right guesses refute the claim.
    A claim that survives is "not refuted", never "proved".

    Cases named "wrong/..." are specimens that are known not to be private:
    published methods and plausible mistakes. The audit must refute them.

    The exit code is 0 if no shipped claim was refuted and every specimen
    was, otherwise 1.
    """
    require(not (as_json and as_markdown), "--json and --markdown contradict each other. Give one of them")
    if demonstrate:
        require(not names and not everything, "--demonstrate takes no cases. Leave out --all and the names")
        require(report is None, "--report is for the verdicts on cases. Leave it out with --demonstrate")
        _demonstrated(seed, as_json=as_json)
        return
    # Refused before the attacks, which take long.
    require_report(report, force=force, inputs=[])
    budget = _budget(epsilon, delta)
    require(0 < confidence < 1, f"--confidence must be above 0 and below 1, such as 0.99, got {confidence:g}")
    require(jobs is None or jobs >= 1, f"--jobs must be at least 1, got {jobs}")
    chosen = _chosen(names or [], everything=everything)
    if not chosen:
        require(
            not as_json and not as_markdown and report is None,
            "there is nothing to report. Name a case or give --all; `eigenveil audit` alone lists the cases",
        )
        from eigenveil.audit import CASES

        output().print(_case_table(tuple(CASES.values())))
        output().print(
            "`eigenveil audit --quick --all` attacks all of them. `eigenveil audit NAME` attacks one, or all whose names "
            "start with NAME."
        )
        return
    verdicts = _audited(chosen, quick=quick, confidence=confidence, budget=budget, runs=runs, seed=seed, jobs=jobs)
    if as_json:
        typer.echo(json.dumps({"confidence": confidence, "verdicts": [v.to_json() for v in verdicts]}, indent=2))
    elif as_markdown:
        typer.echo(_verdict_markdown(verdicts))
    else:
        _show(verdicts, confidence)
    # Beside JSON or Markdown on stdout nothing else is printed.
    aside = (lambda words: None) if as_json or as_markdown else None
    write(report, lambda: _report(verdicts, confidence), say=aside)
    if not all(verdict.as_it_should for verdict in verdicts):
        raise typer.Exit(_BROKEN)


def _chosen(names: Sequence[str], *, everything: bool) -> "tuple[Case, ...]":
    require(not (everything and names), "--all attacks every case. Give names or --all, not both")
    for name in names:
        # By the first part alone, which needs no import. The exact name is looked up below.
        known = any(f"{family}/".startswith(name) or name.startswith(f"{family}/") for family in FAMILIES)
        require(known, f"no case is called {name!r}. Type `eigenveil audit` to list them")
    with busy("loading the cases"):
        from eigenveil.audit import CASES

    if everything:
        return tuple(CASES.values())
    wanted: set[str] = set()
    for name in names:
        # A complete name means that case alone, even if other names start with it.
        found = {name} if name in CASES else {case for case in CASES if case.startswith(name)}
        require(bool(found), f"no case is called {name!r}. Type `eigenveil audit` to list them")
        wanted |= found
    # In the order of the list, so that the same cases give the same table however they were named.
    return tuple(case for case in CASES.values() if case.name in wanted)


def _budget(epsilon: float | None, delta: float | None) -> "Budget | None":
    require(
        (epsilon is None) == (delta is None),
        "--epsilon and --delta are a pair. Give both, such as --epsilon 1 --delta 1e-5",
    )
    if epsilon is None or delta is None:
        return None
    from eigenveil.core.accounting import Budget

    require(0 < epsilon < math.inf, f"--epsilon must be positive, got {epsilon:g}")
    require(0 < delta < 1, f"--delta must be above 0 and below 1, such as 1e-5, got {delta:g}")
    return Budget(epsilon, delta)


def _audited(cases: "tuple[Case, ...]", **choices: Any) -> "tuple[Verdict, ...]":
    from eigenveil.audit import audit as audited

    done: list[Verdict] = []

    def judged(verdict: "Verdict") -> None:
        done.append(verdict)
        ends = "" if verdict.as_it_should else " (unexpected)"
        # Whoever interrupts a long audit should still learn what was found.
        leaves(f"{len(done)} of {len(cases)} cases were done; the last was {verdict.case}: {verdict.words}{ends}")

    with _bar(len(cases)) as seen:
        return audited(cases, judged=judged, watch=seen, **choices)


@contextmanager
def _bar(cases: int) -> "Iterator[Any]":
    """A progress bar on stderr, if that is a terminal: the case, and how many of its runs are done."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    console = output(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True, disable=not is_seen(console)) as bar:
        task = bar.add_task("starting the first runs", total=cases)
        before: list[str] = []

        def seen(progress: "Progress") -> None:
            if progress.case not in before:
                before.append(progress.case)
            bar.update(
                task,
                completed=len(before) - 1 + progress.done / progress.runs,
                description=f"{progress.case}: {progress.done} of {progress.runs} runs",
            )

        yield seen


_COLUMNS: Final = (
    "Each case runs a fit many times, with and without a canary, which is a made-up row or person that is easy to find. Claimed "
    "is what the guarantee says: epsilon, or mu of Gaussian differential privacy. By guesses is a lower bound from right "
    "guesses, with its test, and in brackets how far it could have come with this many runs. By noise is the lower bound from "
    "the size of the noise. A claim is refuted if a bound exceeds it. In names, curator stands for one table with one analyst."
)


def _report(verdicts: "Sequence[Verdict]", confidence: float) -> "Report":
    """The verdicts as a report: what was attacked, how far the attacks got, and what follows."""
    from eigenveil.show.values import FactLine, ListPart, Report, TablePart

    first, *rest = _conclusions(verdicts, confidence)
    # The verdict beside the case: on a telephone the rest of a row is off the screen.
    header = ("case", "verdict", "claimed", "by guesses, at least", "by noise", "runs", "what is attacked", "canary")
    rows = tuple(
        (verdict.case, verdict.words, *_figures(verdict), verdict.about, verdict.canary) for verdict in verdicts
    )
    return Report(
        kind="audit",
        title=f"Audit of {_claims(len(verdicts))}",
        answer=first,
        # These say that the audit itself fell short, which must not be overlooked.
        warnings=tuple(one for one in rest if one.startswith("NOT")),
        tables=(TablePart("Verdicts", header, rows, _COLUMNS),),
        lists=(ListPart("What else follows", tuple(rest)),) if rest else (),
        facts=(FactLine("confidence", f"{confidence:.0%} over the whole audit"),),
    )


def _show(verdicts: "Sequence[Verdict]", confidence: float) -> None:
    console = output()
    console.print(_verdict_table(verdicts))
    for line in _conclusions(verdicts, confidence):
        console.print(line)


def _conclusions(verdicts: "Sequence[Verdict]", confidence: float) -> Iterator[str]:
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


def _demonstrated(seed: int | None, *, as_json: bool) -> None:
    from eigenveil.audit.attacks.membership import membership
    from eigenveil.audit.attacks.outsider import outsider
    from eigenveil.audit.attacks.reconstruction import curious_hub

    shown: list[Demonstration] = []
    console = output(stderr=True)
    for words, attack in (("a curious hub", curious_hub), ("an outsider", outsider), ("membership", membership)):
        leaves(f"{len(shown)} of 3 demonstrations were done")
        with console.status(f"attack {len(shown) + 1} of 3: {words}"):
            # A fixed seed, so that everybody sees the same demonstration. No real data is in it.
            shown.append(attack(seed=0 if seed is None else seed))
    if as_json:
        typer.echo(json.dumps([one.to_json() for one in shown], indent=2))
        return
    for part in _attack_tables(shown):
        output().print(part)


def _case_table(cases: "Sequence[Case]") -> "Table":
    """All cases: what each attacks, which person is to be found, and by which tests."""
    table = _table("case", "what is attacked", "canary", "tests")
    for case in cases:
        table.add_row(case.name, case.about, case.canary, ", ".join(case.tests))
    return table


def _verdict_table(verdicts: "Sequence[Verdict]") -> "Table":
    """One row for each case: the claim, the lower bounds from guesses and from the noise, and the verdict."""
    table = _table("case", "claimed", "by guesses", "by noise", "runs", "verdict")
    for verdict in verdicts:
        style = None if verdict.as_it_should else "bold red"
        table.add_row(verdict.case, *_figures(verdict), verdict.words, style=style)
    return table


def _verdict_markdown(verdicts: "Sequence[Verdict]") -> str:
    """The same as Markdown, with what is attacked."""
    lines = [
        "| case | what is attacked, and who sees it | canary | claimed | by guesses, at least | by noise | runs | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for verdict in verdicts:
        words = verdict.words if verdict.kind == "shipped" else f"**{verdict.words}**"
        cells = (f"`{verdict.case}`", verdict.about, verdict.canary, *_figures(verdict), words)
        # A bar inside a cell would end the cell.
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def _attack_tables(shown: "Sequence[Demonstration]") -> "Iterator[Any]":
    """Each demonstration: who attacks and how, the result, and the conclusion."""
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

    # No frame, so that it can be pasted into an issue.
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _figures(verdict: "Verdict") -> tuple[str, str, str, str]:
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


def _bound(finding: "Finding") -> str:
    # An infinite bound means that no epsilon explains what was seen.
    return f"{finding.bound:.3g}" if math.isfinite(finding.bound) else "any"


COMMAND = Command(audit, panel="Use and check a model")
