"""`eigenveil audit`: attack our own releases and report which privacy claims are refuted."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

from eigenveil.commands import _options as common
from eigenveil.commands._command import Answer, Command
from eigenveil.commands._ending import leaves
from eigenveil.commands._files import require_report
from eigenveil.commands._options import argument, flag, option
from eigenveil.errors import require
from eigenveil.show.console import Line, busy, is_seen, output

if TYPE_CHECKING:
    from eigenveil.audit import Case, Progress, Verdict
    from eigenveil.audit.membership import Demonstration
    from eigenveil.core.accounting import Budget

__all__ = ["COMMAND"]

# So that a job in CI fails when a claim does.
_BROKEN: Final = 1
_CASES: Final = "Which cases"
_STRENGTH: Final = "How hard to attack"
_SHAPE: Final = "Output"
_ATTACK: Final = (
    "`eigenveil audit --quick --all` attacks all of them. `eigenveil audit NAME` attacks one, or all whose names start with NAME."
)
# The first part of every case name. Any other name is refused before the cases are imported, which takes seconds.
FAMILIES: Final = (
    *("curator", "stream", "bounds", "hub-noise", "site-noise", "both-noise", "tree"),
    *("masked", "peers", "recommend", "ledger", "bits", "wrong"),
)


def audit(
    names: Annotated[list[str] | None, argument("[CASE]...", "The cases to attack: names, or the first part of names.")] = None,
    everything: Annotated[bool, flag("--all", "Attack every case.", panel=_CASES)] = False,
    quick: Annotated[bool, flag("--quick", "Use few runs: --quick --all takes one or two minutes.", panel=_CASES)] = False,
    demonstrate: Annotated[
        bool,
        flag(
            "--demonstrate",
            "Show what attackers get from published methods: two reconstructions and membership inference.",
            panel=_CASES,
        ),
    ] = False,
    confidence: Annotated[
        float, option(None, "The chance that the whole audit refutes no true claim.", shows=True, panel=_STRENGTH)
    ] = 0.99,
    epsilon: Annotated[
        float | None, option("NUMBER", "Audit at this epsilon.", none_means="each case's own", panel=_STRENGTH)
    ] = None,
    delta: Annotated[
        float | None, option("NUMBER", "Audit at this delta.", none_means="each case's own", panel=_STRENGTH)
    ] = None,
    runs: Annotated[
        int | None,
        option(None, "Runs of each case. More runs find smaller flaws.", none_means="each case's own", panel=_STRENGTH),
    ] = None,
    seed: Annotated[
        int | None, option("INTEGER", "Make the audit reproducible.", none_means="noise as in real fits", panel=_STRENGTH)
    ] = None,
    jobs: Annotated[
        int | None, option(None, "How many processes to use.", none_means="one for each core", panel=_STRENGTH)
    ] = None,
    as_json: Annotated[bool, flag("--json", "Print all results as JSON.", panel=_SHAPE)] = False,
    report: common.ReportFile = None,
    force: common.Force = False,
    as_markdown: Annotated[bool, flag("--markdown", "Print the verdicts as a Markdown table.", panel=_SHAPE)] = False,
) -> Answer:
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
        return _demonstrated(seed)
    # Refused before the attacks, which take long.
    require_report(report, force=force, inputs=[])
    budget = _budget(epsilon, delta)
    require(0 < confidence < 1, f"--confidence must be above 0 and below 1, such as 0.99, got {confidence:g}")
    require(jobs is None or jobs >= 1, f"--jobs must be at least 1, got {jobs}")
    chosen = _chosen(names or [], everything=everything)
    from eigenveil.audit import CASES
    from eigenveil.audit import audit as attack
    from eigenveil.show import verdicts as shown

    if not chosen:
        require(
            not as_json and not as_markdown and report is None,
            "there is nothing to report. Name a case or give --all; `eigenveil audit` alone lists the cases",
        )
        return Answer(view=lambda: (shown.case_table(tuple(CASES.values())), _ATTACK))
    done: list[Verdict] = []

    def judged(verdict: "Verdict") -> None:
        done.append(verdict)
        ends = "" if verdict.matches_expectation else " (unexpected)"
        # An interrupted long audit should still say what was found.
        leaves(f"{len(done)} of {len(chosen)} cases were done; the last was {verdict.case}: {verdict.words}{ends}")

    with _bar(len(chosen)) as advance:
        verdicts = attack(
            chosen,
            quick=quick,
            confidence=confidence,
            budget=budget,
            runs=runs,
            seed=seed,
            jobs=jobs,
            judged=judged,
            watch=advance,
        )
    return Answer(
        view=lambda: [Line(shown.verdict_markdown(verdicts))] if as_markdown else shown.verdict_view(verdicts, confidence),
        values=lambda: {"confidence": confidence, "verdicts": [verdict.to_json() for verdict in verdicts]},
        report=lambda: shown.verdict_report(verdicts, confidence),
        alone=as_markdown,
        code=0 if all(verdict.matches_expectation for verdict in verdicts) else _BROKEN,
    )


def _chosen(names: Sequence[str], *, everything: bool) -> "tuple[Case, ...]":
    require(not (everything and names), "--all attacks every case. Give names or --all, not both")
    for name in names:
        # By the first part alone, which needs no import. The exact name is looked up below.
        has_family = any(f"{family}/".startswith(name) or name.startswith(f"{family}/") for family in FAMILIES)
        require(has_family, f"no case is called {name!r}. Type `eigenveil audit` to list them")
    with busy("loading the cases"):
        from eigenveil.audit import CASES

    if everything:
        return tuple(CASES.values())
    wanted: set[str] = set()
    for name in names:
        # A complete name means that case alone, even if other names start with it.
        matches = {name} if name in CASES else {case for case in CASES if case.startswith(name)}
        require(bool(matches), f"no case is called {name!r}. Type `eigenveil audit` to list them")
        wanted |= matches
    # In the order of the list, so that the same cases give the same table however they were named.
    return tuple(case for case in CASES.values() if case.name in wanted)


def _budget(epsilon: float | None, delta: float | None) -> "Budget | None":
    require((epsilon is None) == (delta is None), "--epsilon and --delta are a pair. Give both, such as --epsilon 1 --delta 1e-5")
    if epsilon is None or delta is None:
        return None
    from eigenveil.core.accounting import Budget

    require(0 < epsilon < math.inf, f"--epsilon must be positive, got {epsilon:g}")
    require(0 < delta < 1, f"--delta must be above 0 and below 1, such as 1e-5, got {delta:g}")
    return Budget(epsilon, delta)


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

        def advance(progress: "Progress") -> None:
            if progress.case not in before:
                before.append(progress.case)
            bar.update(
                task,
                completed=len(before) - 1 + progress.done / progress.runs,
                description=f"{progress.case}: {progress.done} of {progress.runs} runs",
            )

        yield advance


def _demonstrated(seed: int | None) -> Answer:
    from eigenveil.audit.membership import membership
    from eigenveil.audit.reconstruction import curious_hub, outsider
    from eigenveil.show.verdicts import attack_view

    done: list[Demonstration] = []
    console = output(stderr=True)
    for title, attack in (("a curious hub", curious_hub), ("an outsider", outsider), ("membership", membership)):
        leaves(f"{len(done)} of 3 demonstrations were done")
        with console.status(f"attack {len(done) + 1} of 3: {title}"):
            # A fixed seed: the demonstration is the same each time. No real data is in it.
            done.append(attack(seed=0 if seed is None else seed))
    return Answer(view=lambda: attack_view(done), values=lambda: [demonstration.to_json() for demonstration in done])


COMMAND = Command(run=audit, panel="Use and check a model")
