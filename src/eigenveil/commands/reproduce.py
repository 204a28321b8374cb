"""`eigenveil reproduce`: rerun tables, figures and claims of the papers next to what was published."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal

from eigenveil.commands._command import Answer, Command
from eigenveil.commands._options import argument, flag, option
from eigenveil.errors import require

if TYPE_CHECKING:
    from eigenveil.papers.reproduce import Result
    from eigenveil.show.console import View

__all__ = ["COMMAND"]

_CHANGED: Final = 1


def reproduce(
    paper: Annotated[
        str | None, argument("[PAPER]", "fpca, fedpower, ppm, ddppm or all. Without it, everything is listed.")
    ] = None,
    table: Annotated[int | None, option("--table", "N", "Only this table.")] = None,
    figure: Annotated[int | None, option("--figure", "N", "Only this figure.")] = None,
    data: Annotated[str | None, option("--data", "NAME", "Only this data set, such as a9a.", none_means="all at hand")] = None,
    measure: Annotated[
        Literal["paper", "authors"] | None,
        option(
            "--measure",
            "WHICH",
            "As the paper defines it, or as the program of its authors computes it.",
            none_means="both, if they differ",
        ),
    ] = None,
    quick: Annotated[bool, flag("--quick", "Three repeats, and without --data only what needs no folder of data sets.")] = False,
    list_only: Annotated[bool, flag("--list", "List entries and whether they run here. Run nothing.")] = False,
    as_json: Annotated[bool, flag("--json", "Print JSON.")] = False,
) -> Answer:
    """Rerun tables and figures of the papers.

    Use it to see published numbers next to a rerun and to ours.

      eigenveil reproduce
      eigenveil reproduce fedpower --table 2 --data a9a --quick
      eigenveil reproduce ppm --figure 3
      eigenveil reproduce all --quick

    Data sets are read from the folder in EIGENVEIL_DATA. Nothing is
    downloaded. Reruns follow the printed algorithm and its noise, which
    guarantees less than it claims: no epsilon is shown for it. Only our own
    fits have a guarantee.

    The exit code is 1 if a verdict differs from the recorded one. A paper that
    is wrong is no error.
    """
    require(table is None or figure is None, "--table and --figure contradict each other. Give one of them")
    item = f"table{table}" if table is not None else f"figure{figure}" if figure is not None else None
    # Only after the cheap checks, because this loads numpy and more.
    from eigenveil.papers.reproduce import changed, listing, selected
    from eigenveil.papers.reproduce import reproduce as run

    if paper is None or list_only:
        chosen = None if paper is None else {entry.id for entry in selected(paper, item=item, data=data)}
        lines = [line for line in listing() if chosen is None or line[0] in chosen]
        names = ("id", "item", "data", "status")
        return Answer(view=lambda: _listing(lines), values=lambda: [dict(zip(names, line, strict=True)) for line in lines])
    results = run(selected(paper, item=item, data=data), data=data, measure=measure, quick=quick)
    require(len(results) > 0, "nothing of that can be run here. `eigenveil reproduce` lists what can")
    differences = changed(results, quick=quick, measure=measure)
    return Answer(
        view=lambda: _view(results, differences),
        values=lambda: {"schema": 1, "entries": [result.to_json() for result in results], "changed": differences},
        code=_CHANGED if differences else 0,
    )


def _listing(lines: Iterable[tuple[str, str, str, str]]) -> "View":
    from eigenveil.show.terminal import simple_table

    table = simple_table("entry")
    for name in ("item", "status"):
        table.add_column(name)
    for entry, item, _, status in lines:
        table.add_row(entry, item, status)
    return [table]


def _view(results: "Sequence[Result]", differences: Sequence[str]) -> "View":
    from eigenveil.show.console import Line
    from eigenveil.show.terminal import simple_table

    for result in results:
        yield Line(f"{result.id} on {result.data}: {result.verdict} ({result.seconds:.0f} s)", style="bold")
        if result.statement:
            yield Line(result.statement)
        measures = list(result.rerun)
        if any(result.rerun.values()):
            table = simple_table("", "published", *(f"as published, rerun ({name})" for name in measures))
            for column in dict.fromkeys(column for name in measures for column in result.rerun[name]):
                cells = [result.rerun[name].get(column) for name in measures]
                texts = ["" if cell is None else f"{cell[0]:.4g} (se {cell[1]:.2g})" for cell in cells]
                table.add_row(column, f"{result.published.get(column, float('nan')):.4g}", *texts)
            yield table
        for statement, answer in result.checks.items():
            yield Line(f"  {answer}: {statement}")
        if result.ours:
            values = ", ".join(f"{name} {value:.4g}" for name, value in result.ours["values"].items())
            yield Line(f"  ours: {values}. {result.ours['guarantee']}")
        if result.note:
            yield Line(f"  chosen here: {result.note}")
        for name, text in result.errata.items():
            yield Line(f"  {name}: {text}")
    yield Line("Reruns as published keep no promise. Only ours have a guarantee.")
    for difference in differences:
        yield Line(f"CHANGED: {difference}", style="bold red")


COMMAND = Command(run=reproduce, panel="Use and check a model")
