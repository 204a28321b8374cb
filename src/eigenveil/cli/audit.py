"""`eigenveil audit`: attack what is released, and say which claims do not stand."""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from eigenveil.cli._terminal import errors_as_lines, leaves, output
from eigenveil.errors import require

if TYPE_CHECKING:
    from rich.table import Table

    from eigenveil.audit import Case, Finding, Progress, Verdict
    from eigenveil.audit.attacks.demonstration import Demonstration
    from eigenveil.privacy import Budget

__all__ = ["audit"]

_BROKEN: Final = 1
# How names of cases begin. A name that does not is refused before the cases are imported, which takes seconds.
FAMILIES: Final = (
    *("curator", "stream", "bounds", "hub-noise", "site-noise", "both-noise", "tree"),
    *("masked", "peers", "recommend", "bits", "wrong"),
)


@errors_as_lines
def audit(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CASE]...", help="Which claims to attack: names or beginnings of names.", show_default=False
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every case.")] = False,
    quick: Annotated[bool, typer.Option(help="Few runs: --quick --all takes about a minute or two.")] = False,
    demonstrate: Annotated[
        bool, typer.Option(help="Show what attackers get: two reconstructions and membership inference.")
    ] = False,
    confidence: Annotated[
        float, typer.Option(help="With this confidence no true claim is refuted, in the whole audit.")
    ] = 0.99,
    epsilon: Annotated[
        float | None, typer.Option(metavar="NUMBER", help="Audit at this budget.", show_default="each case's own")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(metavar="NUMBER", help="Audit at this budget.", show_default="each case's own")
    ] = None,
    runs: Annotated[int | None, typer.Option(help="Runs of each case.", show_default="each case's own")] = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="INTEGER", help="Make the audit reproducible.", show_default="noise as in real fits"),
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Processes.", show_default="as many as cores")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="The verdicts as a Markdown table.")] = False,
) -> None:
    """Try to break our guarantees, and things that are known to be broken.

    Each case runs a public estimator many times on synthetic tables in which
    some people, made to be noticed, are there or not by the toss of a coin.
    An adversary guesses who was there from what is released. Guesses that are
    right too often refute the claim, with a stated confidence. A claim that
    stands is "not refuted", never "proved".

      eigenveil audit                      which cases there are
      eigenveil audit --quick --all        all of them, in a minute or two
      eigenveil audit masked peers         some, with ten times as many runs
      eigenveil audit curator/covariance --epsilon 1 --delta 1e-5 --runs 20000
      eigenveil audit --demonstrate        what attackers get, with and without

    Names that begin with "wrong/" are specimens: published methods and
    plausible mistakes that are not private. An audit that did not refute
    them would be blind.

    Ends with code 0 if everything we ship stands and every specimen was
    found out, and with 1 otherwise.
    """
    require(not (as_json and as_markdown), "--json and --markdown are two shapes of one answer; give one of them")
    if demonstrate:
        require(not names and not everything, "--demonstrate goes alone, without cases")
        _demonstrated(seed, as_json=as_json)
        return
    budget = _budget(epsilon, delta)
    chosen = _chosen(names or [], everything=everything)
    if not chosen:
        require(not as_json and not as_markdown, "there is nothing to report: name a case, or give --all")
        from eigenveil.audit import CASES

        output().print(_case_table(tuple(CASES.values())))
        output().print(
            "`eigenveil audit --quick --all` attacks all of them; `eigenveil audit NAME` one, or all whose names "
            "begin so."
        )
        return
    verdicts = _audited(chosen, quick=quick, confidence=confidence, budget=budget, runs=runs, seed=seed, jobs=jobs)
    if as_json:
        typer.echo(json.dumps({"confidence": confidence, "verdicts": [v.to_json() for v in verdicts]}, indent=2))
    elif as_markdown:
        typer.echo(_verdict_markdown(verdicts))
    else:
        _show(verdicts, confidence)
    if not all(verdict.as_it_should for verdict in verdicts):
        raise typer.Exit(_BROKEN)


def _chosen(names: Sequence[str], *, everything: bool) -> "tuple[Case, ...]":
    require(not (everything and names), "--all is every case: give names or --all, and not both")
    for name in names:
        known = any(f"{family}/".startswith(name) or name.startswith(f"{family}/") for family in FAMILIES)
        require(known, f"there is no case {name!r}; `eigenveil audit` lists them")
    from eigenveil.audit import CASES

    if everything:
        return tuple(CASES.values())
    wanted: set[str] = set()
    for name in names:
        # A whole name is that case alone, although others may begin with it.
        found = {name} if name in CASES else {case for case in CASES if case.startswith(name)}
        require(bool(found), f"there is no case {name!r}; `eigenveil audit` lists them")
        wanted |= found
    return tuple(case for case in CASES.values() if case.name in wanted)


def _budget(epsilon: float | None, delta: float | None) -> "Budget | None":
    require((epsilon is None) == (delta is None), "--epsilon and --delta come together")
    if epsilon is None or delta is None:
        return None
    from eigenveil.privacy import Budget

    return Budget(epsilon, delta)


def _audited(cases: "tuple[Case, ...]", **choices: Any) -> "tuple[Verdict, ...]":
    from eigenveil.audit import audit as audited

    done: list[Verdict] = []

    def judged(verdict: "Verdict") -> None:
        done.append(verdict)
        ends = "" if verdict.as_it_should else " (it should not be so)"
        leaves(f"{len(done)} of {len(cases)} cases were judged, the last one {verdict.case}: {verdict.words}{ends}")

    with _bar(len(cases)) as seen:
        return audited(cases, judged=judged, watch=seen, **choices)


@contextmanager
def _bar(cases: int) -> "Iterator[Any]":
    """Progress on stderr, if that is a terminal: which case, and how many of its runs."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    console = output(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("the first runs", total=cases)
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


def _show(verdicts: "Sequence[Verdict]", confidence: float) -> None:
    console = output()
    console.print(_verdict_table(verdicts))
    shipped = [verdict for verdict in verdicts if verdict.kind == "shipped"]
    wrong = [verdict for verdict in verdicts if verdict.kind == "specimen"]
    refuted = [verdict.case for verdict in shipped if verdict.refuted]
    missed = [verdict.case for verdict in wrong if not verdict.refuted]
    for verdict in verdicts:
        if verdict.failed:
            console.print(f"NOT AUDITED: {verdict.case} ended with an error. {verdict.failed}")
    if shipped:
        console.print(
            f"REFUTED, at {confidence:.0%} confidence over the whole audit: {', '.join(refuted)}. Please report this."
            if refuted
            else f"Of what we ship, {len(shipped)} claims were attacked and none was refuted, at {confidence:.0%} "
            "confidence over the whole audit. That proves nothing: it says that these attacks did not succeed."
        )
    if wrong:
        console.print(
            f"NOT FOUND OUT: {', '.join(missed)}. The audit was too weak to see what is known to be wrong: more runs."
            if missed
            else f"All {len(wrong)} specimens that are known to be wrong were found out."
        )


def _demonstrated(seed: int | None, *, as_json: bool) -> None:
    from eigenveil.audit.attacks.membership import membership
    from eigenveil.audit.attacks.outsider import outsider
    from eigenveil.audit.attacks.reconstruction import curious_hub

    shown: list[Demonstration] = []
    console = output(stderr=True)
    for words, attack in (("a curious hub", curious_hub), ("an outsider", outsider), ("membership", membership)):
        leaves(f"{len(shown)} of 3 demonstrations were done")
        with console.status(f"{words} attacks"):
            shown.append(attack(seed=0 if seed is None else seed))
    if as_json:
        typer.echo(json.dumps([one.to_json() for one in shown], indent=2))
        return
    for part in _attack_tables(shown):
        output().print(part)


def _case_table(cases: "Sequence[Case]") -> "Table":
    """All cases, what each attacks and by whom it is looked for."""
    table = _table("case", "what is attacked", "canary", "tests")
    for case in cases:
        table.add_row(case.name, case.about, case.canary, ", ".join(case.tests))
    return table


def _verdict_table(verdicts: "Sequence[Verdict]") -> "Table":
    """One line for each case: what is claimed, what guesses and noise show that it is at least, and the verdict."""
    table = _table("case", "claimed", "by guesses", "by noise", "runs", "verdict")
    for verdict in verdicts:
        style = None if verdict.as_it_should else "bold red"
        table.add_row(verdict.case, *_figures(verdict), verdict.words, style=style)
    return table


def _verdict_markdown(verdicts: "Sequence[Verdict]") -> str:
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


def _attack_tables(shown: "Sequence[Demonstration]") -> "Iterator[Any]":
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
