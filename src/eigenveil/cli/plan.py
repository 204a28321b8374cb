"""`eigenveil plan`: what a budget will buy, before it is spent. From public facts: no private file is ever read."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from eigenveil.cli import options as option
from eigenveil.cli import plan_options as planning
from eigenveil.cli.network_options import require_outputs
from eigenveil.cli.plan_plot import svg_curve
from eigenveil.cli.plan_spectrum import Known
from eigenveil.cli.plan_words import Answer, as_values, show
from eigenveil.cli.terminal import errors_as_lines, output, wrote
from eigenveil.errors import require

if TYPE_CHECKING:
    from eigenveil.plan import Advice, Facts, Outlook

__all__ = ["plan"]


@errors_as_lines
def plan(
    rows: planning.Rows,
    components: planning.Components,
    columns: planning.Columns = None,
    epsilon: option.Epsilon = None,
    delta: option.Delta = None,
    neighbours: option.NeighboursName = "add-remove",
    center: planning.Center = "private",
    search: planning.Search = True,
    explained: planning.Explained = None,
    decay: planning.Decay = None,
    fill: planning.Fill = None,
    spectrum: planning.SpectrumFile = None,
    public_data: planning.PublicData = None,
    drop: planning.Drop = None,
    scale: planning.Scale = None,
    from_model: planning.FromModel = None,
    row_bound: planning.RowBound = None,
    sites: planning.Sites = 1,
    trust: planning.Trust = None,
    survivors: planning.Survivors = None,
    colluders: planning.Colluders = 1,
    blocks: planning.Blocks = None,
    rounds: planning.Rounds = None,
    traffic: planning.Traffic = None,
    memory: planning.Memory = None,
    method: planning.Method = None,
    epsilons: planning.Epsilons = planning.DEFAULT_EPSILONS,
    plot: planning.Plot = None,
    force: planning.Force = False,
    as_json: planning.AsJson = False,
) -> None:
    """What a budget will buy, before it is spent.

    From public facts only: how many people and columns, and what you know
    or guess of the spectrum. The private table is never read, so a plan
    costs nothing and can be made as often as you like.

      eigenveil plan -n 20000 -d 50 -k 5 --epsilon 1 --delta 1e-6

    A guess that is easy to make is how much the first components explain:

      eigenveil plan -n 1e5 -d 200 -k 5 --epsilon 1 --delta 1e-7 \\
        --explained 0.6

    Five hospitals, a hub that nobody trusts with a hospital's sums:

      eigenveil plan -n 1e5 -d 40 -k 3 --epsilon 1 --delta 1e-6 \\
        --sites 5 --trust masked --trust site --traffic 10MB

    A public table like the private one is better than any guess:

      eigenveil plan -n 20000 -k 5 --epsilon 1 --delta 1e-6 \\
        --public-data last-decade.csv --row-bound 12 --plot plan.svg

    Where nothing can work, the first line says so, with what would.
    """
    asked = _budget(epsilon, delta)
    known = Known(
        explained=explained,
        decay=decay,
        file=spectrum,
        table=public_data,
        model=from_model,
        fill=fill,
        row_bound=row_bound,
        columns=columns,
        drop=tuple(drop or ()),
        scale=scale,
    )
    limits = {
        "sites": sites,
        "survivors": planning.survivors_from(survivors, sites=sites),
        "colluders": colluders,
        "blocks": blocks,
        "rounds": rounds,
        "traffic": option.bytes_from("--traffic", traffic),
        "memory": option.bytes_from("--memory", memory),
        "trust": tuple(dict.fromkeys(trust or ())),
    }
    known.require_files()
    drawn = planning.epsilons_from(epsilons, asked=asked[0])
    people = planning.people_from(rows)
    if plot is not None:
        require_outputs([("--plot", plot, [".svg"])], force=force, inputs=known.files)
    facts = _facts(people, components, asked, known, neighbours=neighbours, center=center, search=search, **limits)
    with _watching() as watch:
        answer = _answer(facts, known, method or (), drawn, watch)
    if plot is not None and answer.points:
        _draw(answer, plot)
    if as_json:
        typer.echo(json.dumps(as_values(answer), indent=2, allow_nan=False))
        return
    console = output()
    show(console, answer)
    if plot is not None:
        words = f"plot written to {plot}" if answer.points else "no plot was written: no method is left to draw"
        console.print(f"\n{words}", soft_wrap=True)


def _budget(epsilon: float | None, delta: float | None) -> tuple[float, float]:
    if epsilon is None:
        raise ValueError("--epsilon is required (try 1): a plan says what it would buy")
    if delta is None:
        raise ValueError("--delta is required: well below one over the number of people")
    require(math.isfinite(epsilon) and epsilon > 0, f"--epsilon must be positive and finite, got {epsilon:g}")
    require(0 < delta < 1, f"--delta must lie between 0 and 1, got {delta:g}")
    return epsilon, delta


def _facts(
    people: int, rank: int, asked: tuple[float, float], known: Known, *, neighbours: str, **limits: Any
) -> "Facts":
    from eigenveil.plan import Facts
    from eigenveil.privacy import Budget, Neighbours

    spectrum = known.spectrum(rank)
    require(rank <= spectrum.dim, f"--components must be at most the {spectrum.dim} columns, got {rank}")
    given = {name: value for name, value in limits.items() if value is not None}
    try:
        return Facts(
            dim=spectrum.dim,
            rank=rank,
            people=people,
            budget=Budget(*asked),
            spectrum=spectrum,
            neighbours=Neighbours(neighbours),
            **given,
        )
    except ValueError as error:
        raise ValueError(planning.in_plan_words(str(error))) from error


def _answer(
    facts: "Facts", known: Known, asked: Sequence[str], epsilons: Sequence[float], watch: Callable[[str], None]
) -> Answer:
    from eigenveil.plan import advise, curve, methods_for

    methods = planning.methods_from(asked, methods_for(facts)) if asked else None
    advice = advise(facts, methods=methods, watch=watch)
    plotted = advice.chosen or _best(advice)
    points: list[tuple[float, Outlook]] = []
    if plotted is not None:
        for epsilon in epsilons:
            watch(f"{plotted.method} at epsilon = {epsilon:g}")
            # What was compared at the epsilon that was asked for is what the curve shows there.
            same = epsilon == facts.budget.epsilon
            points += [(epsilon, plotted)] if same else curve(facts, plotted.method, [epsilon])
    return Answer(facts, advice, None if plotted is None else plotted.method, tuple(points), known)


def _best(advice: "Advice") -> "Outlook | None":
    """Where nothing can work, the method that the reasons speak of, or the one with most; None where all are refused."""
    possible = [found for found in advice.outlooks if not found.refused]
    words = " ".join(advice.reasons)
    return next((found for found in possible if found.method in words), possible[0] if possible else None)


@contextmanager
def _watching() -> "Iterator[Callable[[str], None]]":
    """What is being rehearsed, on stderr if that is a terminal."""
    console = output(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("rehearsing") as status:
        yield lambda words: status.update(f"rehearsing {words}")


def _draw(answer: Answer, path: Path) -> None:
    from eigenveil.files import whole_file
    from eigenveil.report import plain

    facts = answer.facts
    text = svg_curve(
        answer.curve,
        asked=facts.budget.epsilon,
        title=f"{facts.rank} of {facts.dim} components, about {facts.people} people: {answer.plotted}",
        # A source may be from a stranger's file, and no document may hold its control characters.
        note=plain(f"delta = {facts.budget.delta:g}; bands: nine of ten fits. Spectrum: {facts.spectrum.source}"),
    )
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
        # It holds public numbers only.
        temporary.chmod(0o644)
    wrote(path)
