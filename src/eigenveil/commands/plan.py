"""`eigenveil plan`: shows what a budget will buy before it is spent. It uses public facts and never reads a private
file."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from eigenveil.commands import _options as common
from eigenveil.commands._command import Answer, Command
from eigenveil.commands._files import require_picture, require_report, write_picture
from eigenveil.commands._options import flag, option
from eigenveil.commands.spectrum import KnownSpectrum
from eigenveil.data.formats import TableParams
from eigenveil.errors import require, require_param
from eigenveil.params.declarations.plan import SHOWN, SPECTRUM, PlanParams
from eigenveil.params.declare import validate_params
from eigenveil.show.console import Line, is_seen, output

if TYPE_CHECKING:
    from eigenveil.plan.facts import Facts
    from eigenveil.plan.rehearsal import Forecast
    from eigenveil.show.console import View
    from eigenveil.show.plan import PlanAnswer

__all__ = ["COMMAND"]

# Half a decade apart: from where nearly nothing is found to where nearly nothing is hidden.
DEFAULT_EPSILONS: Final = "0.1,0.3,1,3,10"

SpectrumFile: TypeAlias = Annotated[
    Path | None,
    option(
        "--spectrum",
        "FILE",
        "A spectrum released by `eigenveil spectrum`, .json. Or public variances in the units of --row-bound: "
        "numbers in a .csv or .txt file or a .json list.",
        panel=SPECTRUM,
    ),
]
# The one option that reads rows without a guarantee, so its help says PUBLIC in capitals.
PublicData: TypeAlias = Annotated[
    Path | None,
    option(
        "TABLE",
        "A PUBLIC table like the private one: last decade's, another country's. It is read without noise "
        "and nobody in it is protected, so never pass the private table.",
        panel=SPECTRUM,
    ),
]
FromModel: TypeAlias = Annotated[
    Path | None,
    option(
        "MODEL", "An earlier .safetensors model of similar rows, whose variances are already public.", panel=SPECTRUM
    ),
]
BoundsJson: TypeAlias = Annotated[
    Path | None,
    option(
        "--bounds",
        "FILE",
        "What `eigenveil bounds --output` wrote, for a fit with --bounds: its row bound, and norms, which narrow what is "
        "forecast of the loss by clipping.",
        panel=SPECTRUM,
    ),
]
Epsilons: TypeAlias = Annotated[
    str,
    option(
        "NUMBERS",
        "Epsilons to plot, separated by commas. The one of --epsilon is always included.",
        shows=True,
        panel=SHOWN,
    ),
]
Plot: TypeAlias = Annotated[
    Path | None,
    option(
        "FILE", "Also draw accuracy against epsilon to this .svg file, or .png if matplotlib is installed.", panel=SHOWN
    ),
]
# Its own wording: a plan has two files to overwrite.
Force: TypeAlias = Annotated[
    bool, flag("--force", "Overwrite the files of --plot and --report if they exist.", panel=SHOWN)
]
# For scripts that try many budgets. `chosen` tells them whether to go on.
AsJson: TypeAlias = Annotated[
    bool,
    flag(
        "--json",
        "Print JSON: every method, the curve, the assumptions. `chosen` is null if nothing can work.",
        panel=SHOWN,
    ),
]


def plan(
    settings: dict[str, Any],
    reading: TableParams,
    spectrum: SpectrumFile = None,
    public_data: PublicData = None,
    from_model: FromModel = None,
    bounds: BoundsJson = None,
    epsilons: Epsilons = DEFAULT_EPSILONS,
    plot: Plot = None,
    report: common.ReportFile = None,
    force: Force = False,
    as_json: AsJson = False,
) -> Answer:
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
    params = validate_params(PlanParams, PlanParams(**settings))
    source = KnownSpectrum(
        params=params, file=spectrum, table=public_data, model=from_model, reading=reading, bounds=bounds
    )
    source.require_files()
    # A typing error here is found before the rehearsals, too.
    drawn = epsilons_from(epsilons, requested=params.epsilon)
    if plot is not None:
        # Refused before the rehearsals, which take seconds.
        require_picture(plot, force=force, inputs=source.files)
    require_report(report, force=force, inputs=[*source.files, *([] if plot is None else [plot])])
    facts = _facts(params, source)
    with _watching() as watch:
        answer = _answer(facts, source, drawn, watch)
    if plot is not None and answer.points:
        _draw(answer, plot)
    from eigenveil.show.plan import plan_report, plan_values, plan_view

    def view() -> "View":
        yield from plan_view(answer)
        if plot is not None:
            note = f"plot written to {plot}" if answer.points else "no plot was written: no method is possible"
            yield Line(f"\n{note}")

    return Answer(view=view, values=lambda: plan_values(answer), report=lambda: plan_report(answer))


def epsilons_from(text: str, *, requested: float) -> tuple[float, ...]:
    """The epsilons of the curve, sorted, each once, including the `requested` one.

    >>> epsilons_from("3,0.3", requested=1.0)
    (0.3, 1.0, 3.0)
    """
    try:
        epsilons = [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--epsilons must be numbers separated by commas, such as 0.1,1,10, got {text!r}") from None
    good = all(math.isfinite(number) and number > 0 for number in epsilons)
    require(good, f"--epsilons must be positive and finite, got {text}")
    # With the epsilon that was asked for, so that the curve goes through the answer.
    return tuple(sorted({*epsilons, requested}))


def methods_from(texts: Sequence[str], algorithms: Mapping[str, str]) -> tuple[str, ...]:
    """The names in `algorithms`, a table from name to algorithm, that match one of `texts` by name or by algorithm.

    >>> methods_from(["power", "b/sync"], {"a/power": "power", "b/power": "power", "b/sync": "sync"})
    ('a/power', 'b/power', 'b/sync')
    """
    for text in texts:
        require_param(
            text in algorithms or text in algorithms.values(),
            f"{{methods}} must be one of {', '.join(sorted({*algorithms.values()}))}, or name the setting too, such as "
            f"{next(iter(algorithms))}, got {{@text}}",
            text=text,
        )
    return tuple(method for method, how in algorithms.items() if {method, how} & {*texts})


def _facts(params: PlanParams, source: KnownSpectrum) -> "Facts":
    from eigenveil.core.accounting import Budget
    from eigenveil.core.unit import Neighbours
    from eigenveil.plan.facts import Facts

    params, spectrum = source.asked_with_bounds(), source.spectrum()
    return Facts(
        dim=spectrum.dim,
        rank=params.rank,
        people=params.people,
        budget=Budget(params.epsilon, params.delta),
        spectrum=spectrum,
        neighbours=Neighbours(params.neighbours),
        center=params.center,
        search=params.search,
        sites=params.sites,
        survivors=_survivors(params),
        colluders=params.colluders,
        blocks=params.blocks,
        rounds=params.rounds,
        traffic=params.traffic,
        trust=tuple(dict.fromkeys(params.trust or ())),
        row_bound=params.row_bound,
        scale="private" if isinstance(params.scale, str) else None,
        norms=source.norms(),
        **({} if params.memory_limit is None else {"memory_limit": params.memory_limit}),
    )


def _survivors(params: PlanParams) -> int | None:
    """The number of surviving sites, also where it was given as a share."""
    if not isinstance(params.survivors, float):
        return params.survivors
    # Imported only here: the estimators take a while to load.
    from eigenveil.estimators.federated.spec import share_of

    return share_of("survivors", params.survivors, params.sites)


def _answer(
    facts: "Facts", source: KnownSpectrum, epsilons: Sequence[float], watch: Callable[[str], None]
) -> "PlanAnswer":
    from eigenveil.plan.facts import methods_for, parts_of
    from eigenveil.plan.recommendation import advise
    from eigenveil.plan.rehearsal import curve
    from eigenveil.show.plan import PlanAnswer

    # Which names there are depends on the setting, so --method can be checked only now.
    names = {method: parts_of(method)[1] for method in methods_for(facts)}
    methods = source.params.methods
    recommendation = advise(facts, methods=methods_from(methods, names) if methods else None, watch=watch)
    points: list[tuple[float, Forecast]] = []
    if recommendation.best is not None:
        for epsilon in epsilons:
            watch(f"{recommendation.best.method} at epsilon = {epsilon:g}")
            # At the requested epsilon the curve shows the forecast that was compared, not a second one.
            same = epsilon == facts.budget.epsilon
            points += [(epsilon, recommendation.best)] if same else curve(facts, recommendation.best.method, [epsilon])
    return PlanAnswer(
        facts=facts,
        recommendation=recommendation,
        points=tuple(points),
        guessed=source.guessed,
        explained=source.params.explained is not None,
        fill_known=source.fill_known,
        from_file=source.file is not None,
    )


@contextmanager
def _watching() -> "Iterator[Callable[[str], None]]":
    """Shows on stderr what is being rehearsed, if that is a terminal."""
    console = output(stderr=True)
    if not is_seen(console):
        yield lambda _: None
        return
    with console.status("rehearsing") as status:
        yield lambda text: status.update(f"rehearsing {text}")


def _draw(answer: "PlanAnswer", path: Path) -> None:
    from eigenveil.show.charts import plan_chart

    facts = answer.facts
    about = f"{facts.rank} components of {facts.dim} columns, about {facts.people} people, {answer.note}"
    from eigenveil.plan.facts import method_words

    title = f"What an epsilon buys: {method_words(answer.plotted or '')}"
    chart = plan_chart(answer.curve, target=facts.budget.epsilon, title=title, note=about, of=facts.denominator)
    write_picture(chart, path)


COMMAND = Command(run=plan, params=PlanParams, panel="Start here", reads=True, leave=("features", "one_based"))
