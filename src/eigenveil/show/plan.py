"""A plan on the terminal, as a report and as JSON: the answer first, then everything it depends on, then what to type."""

import math
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from rich.table import Table
from rich.text import Text

from eigenveil.params.declarations.federated import GossipParams
from eigenveil.params.declarations.private import PrivateParams
from eigenveil.params.declarations.streaming import StreamingParams
from eigenveil.params.declare import as_options
from eigenveil.show.console import Line, output
from eigenveil.show.marks import in_bytes
from eigenveil.show.report import forecast_part, unseen_words
from eigenveil.show.terminal import CurveChart, bullets, labelled, simple_table, span
from eigenveil.show.values import ListPart, PlanPart, Report, TablePart

if TYPE_CHECKING:
    from eigenveil.plan.facts import Facts
    from eigenveil.plan.recommendation import Recommendation
    from eigenveil.plan.rehearsal import Forecast, Interval
    from eigenveil.show.console import View

# From this width on, the longest method names fit on one line.
_ROOMY: Final = 90
# If another plausible spectrum would give this share of what random directions leave, a better guess is worth making.
_HOPE: Final = 0.2
# Larger epsilons are in use, but nobody who was told what they mean would sign.
_LAX: Final = 20.0
# Two neighbouring variances closer than this, relatively, count as tied.
_TIED: Final = 0.05
# What a figure does not include, by what it is a share of.
_GIVEN_BOUND: Final = (
    "Captured variance is a share of what exact PCA finds in the clipped rows. What clipping to a given row bound takes from the "
    "components is not included, because the number of longer rows is private. `eigenveil bounds` releases "
    "their norms; give its output as --bounds."
)
_NO_NORMS: Final = (
    "Nothing public says how long the longest rows are. If few rows have most of the variance (heavy tails), clipping them loses "
    "it, and far less is captured. The range allows for that as it was found among other tables. To narrow it, release norms "
    "with `eigenveil bounds -o bounds.json` and give --bounds bounds.json, or give a --public-data table."
)
_NORMS: Final = "The loss by clipping is forecast from norms around the center that they were released with."
_SENDS: Final = "; sends: what one site sends in total"
_ALIKE: Final = (
    "Sites are assumed to be alike and of equal size. Unequal sizes do not affect sums, and they help merge. Where "
    "rows differ from site to site, merge and fedpower may do worse."
)
_TIES: Final = (
    "If the last component and the next one have nearly the same variance, either is as good. The sine can then be "
    "near 1 while nothing is lost."
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer:
    """The question, what is known of the spectrum, and the answer. `points` is the curve of the best method, if
    any."""

    facts: "Facts"
    recommendation: "Recommendation"
    points: tuple[tuple[float, "Forecast"], ...]
    guessed: bool  # Whether nothing better than a guess is known of the spectrum.
    explained: bool  # Whether the guess is a share of the variance.
    fill_known: bool  # Whether row norms relative to the bound are known.
    from_file: bool  # Whether the spectrum was in a file.

    @property
    def curve(self) -> PlanPart | None:
        """What each epsilon buys with the best method, None where no method is possible."""
        best, budget = self.recommendation.best, self.facts.budget
        # The source of the spectrum may come from someone else's file.
        note = f"delta = {budget.delta:g}. Spectrum: {self.facts.spectrum.source}."
        return None if best is None else forecast_part(best.method, budget.epsilon, self.points, note=note)

    def sentences(self) -> Iterator[str]:
        """The answer in one or two sentences."""
        from eigenveil.plan.facts import choice_of, method_phrase

        facts, best, verdict = self.facts, self.recommendation.best, self.recommendation.verdict
        budget = f"epsilon = {facts.budget.epsilon:g}"
        if best is None:
            if verdict == "unfound":
                yield self.recommendation.reasons[0]
                yield "What would help is below. If it could be found, the best would capture:"
            else:
                yield "No method is possible within these limits; see the reasons below. Without limits the best would capture:"
            # Refused methods are rehearsed too, so the reader sees what the limits cost.
            first = max(self.recommendation.forecasts, key=lambda forecast: forecast.clipped.value)
            random = f"Random directions would capture {first.nothing:.2f}."
            yield f"{span(first.captured)}, by {method_phrase(first.method)}. {random}"
        elif verdict == "works":
            yield (
                f"With {budget} expect {span(best.captured)} of the variance that exact PCA with {_counted(facts.rank)} finds in "
                f"{best.rows}. Use {method_phrase(best.method)}: {choice_of(best.params)}."
            )
            if best.of == "all rows":
                why = "heavy tails may cost" if facts.norms is None else "clipping may cost"
                yield f"Of the clipped rows alone it is {span(best.clipped)}: the rest is what {why}."
                yield from self._of_long_rows()
            yield f"Random directions would capture {best.nothing:.2f}."
        elif verdict == "needless":
            yield self.recommendation.reasons[0]
        else:
            only = ", if the spectrum is as guessed" if self._doubtful() else ""
            yield f"Nothing can work here{only}: with {budget} and about {facts.people} people no method is worth its budget."
            yield (
                f"The best, {method_phrase(best.method)}, would capture {span(best.captured)} of the variance that exact PCA "
                f"with {_counted(facts.rank)} finds in {best.rows}. Random directions would capture {best.nothing:.2f}."
            )

    def _of_long_rows(self) -> Iterator[str]:
        """Which rows may make the figure of all rows wrong, as far as norms tell."""
        bound, norms = self.facts.unit, self.facts.norms
        long, hidden = (None, None) if norms is None else (norms.longest(bound), norms.hidden())
        if long is not None:
            yield (
                f"{long.words(bound, times='times as long as the row bound')}. If so, exact PCA of all rows follows them, and "
                "clipping takes them out."
            )
        elif hidden is not None:
            yield (
                f"Of all rows it holds unless noise hides far longer ones: at most {hidden.share:.1%} (95% confidence), which "
                f"exact PCA follows if they are more than {hidden.norm / bound:.3g} times as long as the row bound."
            )

    def _doubtful(self) -> bool:
        """Whether something might work after all, if the guessed spectrum is wrong."""
        every = self.recommendation.forecasts
        # All of them where a bound cannot be found privately either.
        possible = [forecast for forecast in every if not forecast.refused] or every
        best = max(possible, key=lambda forecast: forecast.captured.high)
        return self.guessed and best.captured.high > best.nothing + _HOPE * (1 - best.nothing)

    def assumed(self) -> Iterator[str]:
        """What the caller said and the plan relies on."""
        facts = self.facts
        yield f"about {facts.people} people with one row each, {facts.dim} columns, {_counted(facts.rank)}"
        yield (
            f"a budget of ({facts.budget.epsilon:g}, {facts.budget.delta:g}), all of it for this one fit; "
            f"neighbouring tables: {facts.neighbours.value}"
        )
        if facts.budget.delta * facts.people > 1:
            yield (
                f"a delta above one over the number of people, so the guarantee may fail for some of them: choose at "
                f"most {1 / facts.people:.2g}"
            )
        if facts.budget.epsilon > _LAX:
            yield f"an epsilon above {_LAX:g}, which guarantees hardly anything"
        procedure = "found in steps" if facts.search else "found in one step"
        if facts.center != "private":
            where = "are left where they are" if facts.center is None else "are taken around the numbers given as --center"
            yield f"rows {where}, which costs nothing"
        elif facts.seeks is None:
            reach = "about two row bounds" if facts.search else "its bound"
            yield (
                f"the mean is {procedure}, for part of the budget, and lies within {reach} of the fit's origin (zero by "
                "default); a mean farther away means far less is captured"
            )
        mean = " and the mean, wherever it lies," if facts.center == "private" else ""
        if facts.seeks == "bound":
            yield f"a row bound{mean} found privately, for part of the budget; one that you know (--row-bound) saves that"
        elif facts.seeks == "units":
            radius = math.sqrt(facts.dim) if facts.row_bound is None else facts.row_bound
            yield f"units of columns{mean} found privately, for part of the budget; rows are then clipped to {radius:.3g}"
        if facts.sites > 1:
            yield f"{facts.sites} sites of about {facts.people // facts.sites} people each"
            if any(name in facts.settings for name in ("masked", "peers")):
                fewest = facts.sites if facts.survivors is None else facts.survivors
                yield f"at least {fewest} sites in each masked sum, of which {facts.colluders} may collude"
        if not self.guessed:
            yield f"the spectrum {facts.spectrum.source}: {self._shape()}"

    def guesses(self) -> Iterator[str]:
        """What the caller did not say and the plan guessed."""
        spectrum = self.facts.spectrum
        if self.guessed:
            is_share = self.explained
            yield f"the spectrum, {spectrum.source}{'' if is_share else f': {self._shape()}'}"
            better = "" if is_share else "--explained, "
            yield f"a better one: {better}a --public-data table, or one release with eigenveil spectrum"
        elif not self.fill_known:
            filled = f"mean squared norm {spectrum.bound_usage:.2g} of its square"
            if self.facts.seeks == "bound" and spectrum.assumed:
                filled = "as usual for a bound that is found privately, which is smaller where there is more noise"
            yield f"row norms relative to the bound: {filled}; set it with --row-bound or --bound-usage"
        # A released spectrum knows its error, and a list does not.
        if self.from_file and spectrum.error == 0:
            yield (
                "that the list describes clipped rows: before clipping, heavy tails make the first variances far "
                "too large, and a fit captures far less; --public-data clips rows as a fit does"
            )
            zeros = int((spectrum.values == 0).sum())
            if zeros:
                yield f"that the {zeros} directions beyond the list have no variance"

    def _shape(self) -> str:
        rank = self.facts.rank
        share = self.facts.spectrum.explained(rank)
        return f"the first {rank} of {self.facts.dim} have {share:.0%} of the variance"

    def unpredicted(self) -> Iterator[str]:
        """What these figures do not include."""
        if self.facts.denominator == "clipped rows":
            yield _GIVEN_BOUND
        elif self.facts.norms is None:
            yield _NO_NORMS
        else:
            yield f"{_NORMS} {unseen_words(self.facts.norms, self.facts.unit)}"
        rank, values = self.facts.rank, self.facts.spectrum.values
        tied = rank < len(values) and values[rank] > (1 - _TIED) * values[rank - 1]
        note = f" Here components {rank} and {rank + 1} are that close: trust the captured variance and not the sine."
        yield _TIES + (note if tied else "")
        if self.facts.sites > 1:
            yield _ALIKE

    def runs(self) -> Iterator[tuple[str, str]]:
        """How to run it: labels and lines to type."""
        chosen = self.recommendation.chosen
        if chosen is None:
            return
        yield "in Python", chosen.call
        yield "as a command", command_of(self.facts, chosen)
        rehearsal = rehearsal_of(self.facts, chosen)
        if rehearsal:
            yield "on a public table", rehearsal


def command_of(facts: "Facts", chosen: "Forecast") -> str:
    """The command that runs the `chosen` fit. Capitals stand for what a plan does not know.

    Sites in different organisations write a study. `rehearsal_of` runs the same fit in one process.
    """
    from eigenveil.methods import methods_at

    params = chosen.params
    if isinstance(params, PrivateParams | StreamingParams):
        return _line(chosen, "fit" if isinstance(params, PrivateParams) else "stream", "TABLE")
    peers = isinstance(params, GossipParams)
    if peers and params.method not in methods_at("remote peers"):
        return rehearsal_of(facts, chosen)
    where = ["--peer-address", "NAME=HOST:7443"] if peers else ["--address", "HOST:7443"]
    # Under such a relation the numbers of people are public, and the study file states them.
    sizes = ["--size", "NAME=PEOPLE"] if facts.neighbours.count_is_public else []
    head = ["study", "new", "study.toml", "--authority", "FOLDER", *where, "--columns-from", "PUBLIC_TABLE"]
    return _line(chosen, *head, last=sizes)


def rehearsal_of(facts: "Facts", chosen: "Forecast") -> str:
    """The command that runs a fit over sites in one process, on a public table; empty for a single curator."""
    if isinstance(chosen.params, PrivateParams | StreamingParams):
        return ""
    return _line(chosen, "simulate", "PUBLIC_TABLE", "--sites", str(facts.sites))


def _line(chosen: "Forecast", *first: str, last: Iterable[str] = ()) -> str:
    from eigenveil.plan.facts import estimator_of

    options = as_options(chosen.params, always=estimator_of(chosen.params)[1], unknown=chosen.unknown)
    return shlex.join(["eigenveil", *first, *options, *last])


def _counted(rank: int) -> str:
    return f"{rank} component{'s' * (rank != 1)}"


def plan_values(answer: PlanAnswer) -> dict[str, Any]:
    """Everything in plain values, for JSON: the question, every forecast, the curve, and the assumptions."""
    facts, recommendation = answer.facts, answer.recommendation
    # Numbers as they are. Only the text for people is rounded.
    curve = [{"epsilon": at, **_forecast_values(forecast)} for at, forecast in answer.points]
    return {
        "answer": list(answer.sentences()),
        "facts": {
            "rows": facts.people,
            "columns": facts.dim,
            "components": facts.rank,
            "epsilon": facts.budget.epsilon,
            "delta": facts.budget.delta,
            "row_bound": "private" if facts.seeks == "bound" else facts.row_bound,
            "scale": facts.scale,
            "neighbours": facts.neighbours.value,
            "center": facts.center,
            "search": facts.search,
            "sites": facts.sites,
            "trust": list(facts.settings),
            "survivors": facts.survivors,
            "colluders": facts.colluders,
            "blocks": facts.blocks,
            "rounds": facts.rounds,
            "traffic": facts.traffic,
            "memory_limit": facts.memory_limit,
        },
        "spectrum": facts.spectrum.to_json(),
        "chosen": None if recommendation.chosen is None else _forecast_values(recommendation.chosen),
        "forecasts": [_forecast_values(forecast) for forecast in recommendation.forecasts],
        "curve": None if recommendation.best is None else {"method": recommendation.best.method, "points": curve},
        "reasons": list(recommendation.reasons),
        "instead": list(recommendation.instead),
        "assumed": list(answer.assumed()),
        "guessed": list(answer.guesses()),
        "not_predicted": list(answer.unpredicted()),
        "run": dict(answer.runs()),
    }


def _forecast_values(forecast: "Forecast") -> dict[str, Any]:
    return {
        "method": forecast.method,
        "captured": _interval_values(forecast.captured),
        "captured_of": forecast.of,
        "captured_of_clipped_rows": _interval_values(forecast.clipped),
        "sine": _interval_values(forecast.sine),
        "nothing": forecast.nothing,
        "noise": forecast.noise,
        "memory": forecast.memory,
        "rounds": forecast.rounds,
        "traffic": forecast.traffic,
        "least": forecast.min_people,
        "refused": forecast.refused,
        "guarantee": forecast.guarantee,
        "call": forecast.call,
        "parameters": vars(forecast.params),
        "unknown": list(forecast.unknown),
    }


def _interval_values(interval: "Interval") -> dict[str, float] | None:
    """None where nothing was rehearsed, as JSON has no infinities."""
    ends = {"value": interval.value, "low": interval.low, "high": interval.high}
    # NaN and infinity are not JSON.
    return ends if all(math.isfinite(end) for end in ends.values()) else None


def _lists(answer: PlanAnswer) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What follows the answer: titles and their sentences."""
    recommendation = answer.recommendation
    chosen, reasons = recommendation.chosen, recommendation.reasons
    # The first reason against repeats the answer, except where every method was refused for its own reason.
    against = reasons if recommendation.verdict == "refused" else reasons[1:]
    yield ("Why this one", reasons) if chosen is not None else ("Why not", against)
    yield f"What would work {'instead' if chosen is None else 'better'}", recommendation.instead
    yield "Assumed", tuple(answer.assumed())
    yield "Guessed", tuple(answer.guesses())
    yield "Not included", tuple(answer.unpredicted())


_TO_RUN: Final = "To run it (capitals stand for what only you know)"


def plan_report(answer: PlanAnswer) -> Report:
    """The plan as a report: the answer, every method, the curve, and what it all depends on."""
    from eigenveil.plan.facts import method_words

    facts, forecasts = answer.facts, answer.recommendation.forecasts
    first, *rest = answer.sentences()
    possible = [forecast for forecast in forecasts if not forecast.refused]
    rows = tuple(
        (
            forecast.method,
            span(forecast.captured),
            span(forecast.sine),
            forecast.rounds,
            in_bytes(forecast.traffic),
            forecast.guarantee,
        )
        for forecast in possible
    )
    header = ("method", "captured variance", "largest angle", "rounds", "one site sends", "who is protected from whom")
    names = "; ".join(f"{forecast.method}: {method_words(forecast.method)}" for forecast in possible)
    note = (
        "Captured variance: along the private components, relative to exact PCA. Largest angle: the largest principal angle "
        f"between private and exact components, as a sine; 0 if all are found, 1 if one is lost. Methods: {names}."
    )
    refused = tuple(f"{forecast.method}: {forecast.refused}" for forecast in forecasts if forecast.refused)
    compared = "In comparison" if answer.recommendation.best is not None else "Without these limits"
    runs = tuple(f"{label}: {line}" for label, line in answer.runs())
    lists = [(compared, tuple(rest)), ("Not possible here", refused), *_lists(answer), (_TO_RUN, runs)]
    return Report(
        kind="plan",
        title=f"Plan: {_counted(facts.rank)} of {facts.dim} columns, about {facts.people} people",
        answer=first,
        plan=answer.curve,
        tables=(TablePart(title="Every method", header=header, rows=rows, note=note),) if rows else (),
        lists=tuple(ListPart(title, items) for title, items in lists if items),
    )


def plan_view(answer: PlanAnswer) -> "View":
    """The whole plan on a terminal, the answer first."""
    from eigenveil.plan.facts import method_words

    first, *rest = answer.sentences()
    forecasts, chosen = answer.recommendation.forecasts, answer.recommendation.chosen
    yield Text(first, style="bold green" if chosen is not None else "bold red")
    yield from rest
    # Refused methods come below, with their reasons: they are no part of the choice.
    possible = [forecast for forecast in forecasts if not forecast.refused]
    if possible:
        yield _heading(
            f"every method, best first: captured variance of {possible[0].rows}, in brackets the range of nine fits in ten; "
            "angles as sines" + _SENDS * (answer.facts.sites > 1)
        )
        yield _table(possible, chosen, sites=answer.facts.sites)
        yield _heading("who is protected from whom")
        # All methods of one setting protect the same people from the same readers, so it is said once.
        yield labelled({str(forecast.setting): forecast.guarantee for forecast in possible}.items())
    if len(possible) < len(forecasts):
        yield _heading("not possible here")
        yield labelled((forecast.method, forecast.refused) for forecast in forecasts if forecast.refused)
    if (curve := answer.curve) is not None:
        whose = answer.points[0][1].rows
        yield _heading(f"what an epsilon buys: captured variance of {whose}, {method_words(curve.method)}")
        yield CurveChart(curve.points, curve.asked)
    for title, items in _lists(answer):
        if items:
            yield _heading(title)
            yield bullets(items, style="yellow" if title == "Guessed" else "")
    for index, (label, line) in enumerate(answer.runs()):
        if index == 0:
            yield _heading(_TO_RUN)
        yield Text(f"{label}:", style="dim")
        yield Line(f"  {line}")


def _heading(title: str) -> Text:
    return Text(f"\n{title[0].lower()}{title[1:]}", style="bold")


def _table(forecasts: "Iterable[Forecast]", chosen: "Forecast | None", *, sites: int) -> Table:
    # A single curator has no rounds and sends nothing.
    names = ["captured", "largest angle", *["rounds", "sends"] * (sites > 1), "memory"]
    table, roomy = simple_table("method", *names, padding=(0, 1, 0, 0), no_wrap=True), output().width >= _ROOMY
    for forecast in forecasts:
        shares = (f"{at.value:.2f} ({at.low:.2f}-{at.high:.2f})" for at in (forecast.captured, forecast.sine))
        sent = [str(forecast.rounds), in_bytes(forecast.traffic)] if sites > 1 else []
        # In a narrow terminal the longest names would leave no room for the last column.
        name = forecast.method if roomy else forecast.method.replace("independent/", "independent/\n")
        style = "bold green" if chosen is not None and forecast.method == chosen.method else ""
        table.add_row(name, *shares, *sent, in_bytes(forecast.memory), style=style)
    return table
