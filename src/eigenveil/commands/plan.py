"""`eigenveil plan`: shows what a budget will buy before it is spent. It uses public facts and never reads a private
file."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from eigenveil.commands import _options as option
from eigenveil.commands import _plan_options as planning
from eigenveil.commands._command import Command
from eigenveil.commands._outputs import require_picture, require_report, write, write_picture
from eigenveil.commands._plan_shown import PlanAnswer, as_report, as_values, show
from eigenveil.commands._spectra import KnownSpectrum
from eigenveil.data.formats import TableParams
from eigenveil.params import PlanParams, checked
from eigenveil.params.words import method_words
from eigenveil.show.console import is_seen, output

if TYPE_CHECKING:
    from eigenveil.plan import Facts, Forecast

__all__ = ["COMMAND"]


def plan(
    settings: dict[str, Any],
    reading: TableParams,
    spectrum: planning.SpectrumFile = None,
    public_data: planning.PublicData = None,
    from_model: planning.FromModel = None,
    bounds: planning.BoundsJson = None,
    epsilons: planning.Epsilons = planning.DEFAULT_EPSILONS,
    plot: planning.Plot = None,
    report: option.ReportFile = None,
    force: planning.Force = False,
    as_json: planning.AsJson = False,
) -> None:
    """What a budget will buy, before it is spent.

    It uses public facts only: how many people and columns, and what you
    know or guess of the spectrum. It never reads the private table, so a
    plan spends no budget and you can make as many as you like.

      eigenveil plan -n 20000 -d 50 -k 5 --epsilon 1 --delta 1e-6

    An easy guess is how much variance the first components explain:

      eigenveil plan -n 1e5 -d 200 -k 5 --epsilon 1 --delta 1e-7 \\
        --explained 0.6

    Five hospitals, a hub that nobody trusts with a hospital's sums:

      eigenveil plan -n 1e5 -d 40 -k 3 --epsilon 1 --delta 1e-6 \\
        --sites 5 --trust masked --trust site --traffic 10MB

    A public table like the private one is better than any guess:

      eigenveil plan -n 20000 -k 5 --epsilon 1 --delta 1e-6 \\
        --public-data last-decade.csv --row-bound 12 --plot plan.svg

    Without --row-bound the fit finds one privately. With --scale private
    it finds the units of columns. The plan includes what that costs.

    Clipping costs more, the more of the variance few rows have. A plan
    cannot know that, so its intervals allow for it. What eigenveil bounds
    wrote narrows them (--bounds), and so do --public-data and --from-model.

    If nothing can work, the first line says so and the plan says what would.
    """
    asked = checked(PlanParams, PlanParams(**settings))
    known = KnownSpectrum(asked, spectrum, public_data, from_model, reading, bounds)
    known.require_files()
    # A typing error here is found before the rehearsals, too.
    drawn = planning.epsilons_from(epsilons, asked=asked.epsilon)
    if plot is not None:
        # Refused before the rehearsals, which take seconds.
        require_picture(plot, force=force, inputs=known.files)
    require_report(report, force=force, inputs=[*known.files, *([] if plot is None else [plot])])
    facts = _facts(asked, known)
    with _watching() as watch:
        answer = _answer(facts, known, drawn, watch)
    if plot is not None and answer.points:
        _draw(answer, plot)
    if as_json:
        typer.echo(json.dumps(as_values(answer), indent=2, allow_nan=False))
        # Beside JSON on stdout nothing else is printed.
        write(report, lambda: as_report(answer), say=lambda words: None)
        return
    console = output()
    show(console, answer)
    if plot is not None:
        words = f"plot written to {plot}" if answer.points else "no plot was written: no method is possible"
        console.print(f"\n{words}", soft_wrap=True)
    write(report, lambda: as_report(answer))


def _facts(asked: PlanParams, known: KnownSpectrum) -> "Facts":
    from eigenveil.core.accounting import Budget
    from eigenveil.core.unit import Neighbours
    from eigenveil.plan import Facts

    asked, spectrum = known.asked_with_bounds(), known.spectrum()
    return Facts(
        dim=spectrum.dim,
        rank=asked.rank,
        people=asked.people,
        budget=Budget(asked.epsilon, asked.delta),
        spectrum=spectrum,
        neighbours=Neighbours(asked.neighbours),
        center=asked.center,
        search=asked.search,
        sites=asked.sites,
        survivors=_survivors(asked),
        colluders=asked.colluders,
        blocks=asked.blocks,
        rounds=asked.rounds,
        traffic=asked.traffic,
        trust=tuple(dict.fromkeys(asked.trust or ())),
        row_bound=asked.row_bound,
        scale="private" if isinstance(asked.scale, str) else None,
        norms=known.norms(),
        **({} if asked.memory_limit is None else {"memory_limit": asked.memory_limit}),
    )


def _survivors(asked: PlanParams) -> int | None:
    """The number of surviving sites, also where it was given as a share."""
    if not isinstance(asked.survivors, float):
        return asked.survivors
    # Imported only here: the estimators take a while to load.
    from eigenveil.estimators.federated.rules import share_of

    return share_of("survivors", asked.survivors, asked.sites)


def _answer(
    facts: "Facts", known: KnownSpectrum, epsilons: Sequence[float], watch: Callable[[str], None]
) -> PlanAnswer:
    from eigenveil.plan import advise, curve, methods_for, parts_of

    # Which names there are depends on the setting, so --method can be checked only now.
    names = {method: parts_of(method)[1] for method in methods_for(facts)}
    asked = known.asked.methods
    recommendation = advise(facts, methods=planning.methods_from(asked, names) if asked else None, watch=watch)
    points: list[tuple[float, Forecast]] = []
    if recommendation.best is not None:
        for epsilon in epsilons:
            watch(f"{recommendation.best.method} at epsilon = {epsilon:g}")
            # At the requested epsilon the curve shows the forecast that was compared, not a second one.
            same = epsilon == facts.budget.epsilon
            points += [(epsilon, recommendation.best)] if same else curve(facts, recommendation.best.method, [epsilon])
    return PlanAnswer(facts, recommendation, tuple(points), known)


@contextmanager
def _watching() -> "Iterator[Callable[[str], None]]":
    """Shows on stderr what is being rehearsed, if that is a terminal."""
    console = output(stderr=True)
    if not is_seen(console):
        yield lambda _: None
        return
    with console.status("rehearsing") as status:
        yield lambda words: status.update(f"rehearsing {words}")


def _draw(answer: PlanAnswer, path: Path) -> None:
    from eigenveil.show.charts import plan_chart

    facts = answer.facts
    about = f"{facts.rank} components of {facts.dim} columns, about {facts.people} people, {answer.note}"
    title = f"What an epsilon buys: {method_words(answer.plotted or '')}"
    chart = plan_chart(answer.curve, asked=facts.budget.epsilon, title=title, note=about, of=facts.denominator)
    write_picture(chart, path)


COMMAND = Command(plan, PlanParams, panel="Start here", reads=True, leave=("features", "one_based"))
