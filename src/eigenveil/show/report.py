"""From a model to a report: the answer in one sentence, settings in words, intervals, and what other budgets would have bought.

Everything follows from the released numbers in the model's file. No row is read, and nothing is charged.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Charge
from eigenveil.core.rows import ignore_float_errors
from eigenveil.core.unit import Neighbours
from eigenveil.errors import join_names, shown
from eigenveil.methods import METHODS
from eigenveil.model import Model
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.show.charts import EpsilonPoint, Span
from eigenveil.show.marks import in_bytes
from eigenveil.show.values import ComponentsPart, FactLine, PlanPart, Report, RoundPart
from eigenveil.trackers import TRACKERS

if TYPE_CHECKING:
    from eigenveil.estimators.terms import Round
    from eigenveil.plan.clipping import Norms
    from eigenveil.plan.facts import Facts
    from eigenveil.plan.rehearsal import Forecast
    from eigenveil.plan.spectrum import Spectrum

# Spread evenly over the logarithmic axis, from strong to weak.
EPSILONS: Final = (0.1, 0.3, 1.0, 3.0, 10.0)
_WORDS: Final = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
# Rehearsing a fit of this many weights takes most of a second, and a report should not take longer than the fit.
_LARGE: Final = 20_000
# Charges or movements below this are rounding error.
_STILL: Final = 1e-12
_UNKNOWN: Final = "What this fit itself captured is private and was not computed."


@ignore_float_errors
def model_report(
    model: Model,
    *,
    rounds: "Iterable[Round]" = (),
    title: str | None = None,
    dataset: str | None = None,
    among: str = "",
    **more: Any,
) -> Report:
    """The report of a fit: its `model`, the `rounds` over sites or peers if there were any, and what else is known of it.

    `dataset` is a public name. `among` says in the title whose rows they were, if not those of one table.
    """
    guarantee, part = model.guarantee, components_of(model)
    rank, dim = model.components.shape
    summary = f"{counted(rank, 'principal component')} {among or f'of {dim} columns'}"
    return Report(
        kind=more.pop("kind", "model"),
        title=title or (summary.capitalize() if dataset is None else f"{dataset}: {summary}"),
        answer=answer_of(part, guarantee),
        warnings=model.warnings,
        components=part,
        rounds=round_parts(rounds),
        plan=plan_part(model),
        facts=(*model_facts(model, dataset), *more.pop("facts", ())),
        guarantee=guarantee,
        best_guess=guarantee.best_guess,
        **more,
    )


def counted(number: int, word: str) -> str:
    """A number and a word, in letters up to twelve.

    >>> counted(1, "site"), counted(20, "site")
    ('one site', '20 sites')
    """
    numeral = _WORDS[number] if number < len(_WORDS) else str(number)
    return f"{numeral} {word}{'s' * (number != 1)}"


def answer_of(part: ComponentsPart, guarantee: Guarantee) -> str:
    """What was found and who is protected, in a few sentences."""
    rank, above, share = len(part.weights), part.above, math.fsum(part.shares)
    many = counted(rank, "component").capitalize()
    if part.noise_floor == 0 and part.shares:
        finding = f"{many} describe{'s' * (rank == 1)} {share:.0%} of the variance"
    elif part.noise_floor == 0:
        finding = f"{many} {'was' if rank == 1 else 'were'} found"
    elif nothing_stands_out(part):
        finding = "Nothing stands out from the noise. These components may be noise alone"
    else:
        # "Four of five components", or "39 of 50".
        first, last = (_WORDS[count] if rank < len(_WORDS) else str(count) for count in (above, rank))
        stand = f"{first if above == rank else f'{first} of {last}'} component{'s' * (rank != 1)}"
        finding = f"{stand.capitalize()} {'stands' if above == 1 else 'stand'} out from the noise"
        # With a bound, the variance of the rows as they were is not known.
        whose = " of the clipped rows" if part.bound_usage is not None else ""
        finding += f", with {share:.0%} of the variance{whose}" if part.shares else ""
    if guarantee.private:
        return f"{finding}. {guarantee.guess}"
    why = "the noise came from a known seed" if guarantee.reproducible else "there is no privacy guarantee"
    return f"{finding}. No person is protected, because {why}."


def nothing_stands_out(part: ComponentsPart) -> bool:
    """Whether noise was added and no component is above it."""
    return part.noise_floor > 0 and part.above == 0


def floor_words(part: ComponentsPart) -> str:
    """What the noise floor says, in one or two sentences."""
    if not part.floor_known:
        return "Noise was added, and its floor is not known: any component may be noise alone."
    if part.noise_floor == 0:
        return "No noise was added, so there is no noise floor."
    return (
        f"Noise alone exceeds the noise floor, {part.noise_floor:.4g}, in one fit of a hundred. A component below it may "
        "be noise alone, and counts as having no share of the variance."
    )


def clipping_facts(part: ComponentsPart) -> Iterator[tuple[str, str]]:
    """What clipping did to the rows, as far as that was released: labels and texts."""
    if part.bound_usage is not None:
        text = "the mean squared norm of the clipped rows over the squared row bound"
        yield "bound usage", f"{part.bound_usage:.2g}, {text}"
    if part.clipped_fraction is not None:
        yield "clipped share", f"about {part.clipped_fraction:.0%} of people, at the privately estimated bound"
    elif part.bound_usage is not None and part.scale:
        yield (
            "clipped share",
            "not counted, which would take a part of the budget; `transform --clip` clips rows as the fit did",
        )
    if part.taken is not None and part.unseen is not None:
        taken = part.taken
        yield (
            "taken by clipping",
            f"about {taken.value:.0%} of all squared norms ({taken.low:.0%} to {taken.high:.0%}), not counting long rows "
            f"that noise hides, at most {part.unseen:.1%} of all; variances are those of the clipped rows",
        )


def components_of(model: Model) -> ComponentsPart:
    """The components of a model with their variances and, where it is known, the interval of each."""
    floor, variances, taken = model.noise_floor, tuple(model.explained_variance.tolist()), _taken_of(model)
    shares, clipped = tuple(model.explained_variance_ratio.tolist()), _number(model, "clipped_fraction")
    # Any component with a share gives the total. Those below the floor have none, and would divide by zero.
    at = next((at for at, share in enumerate(shares) if share > 0), None)
    return ComponentsPart(
        columns=model.columns,
        weights=tuple(map(tuple, model.components.tolist())),
        variances=variances,
        shares=shares,
        intervals=tuple(_intervals(model)),
        noise_floor=floor,
        # A published calibration has noise, but its floor was never worked out.
        floor_known=floor > 0 or model.guarantee.epsilon is None,
        total=None if at is None else variances[at] / shares[at],
        bound_usage=_number(model, "bound_usage"),
        clipped_fraction=clipped if clipped is not None and 0 <= clipped <= 1 else None,
        people=model.people,
        mean=() if model.settings.get("center") == "none" else tuple(model.mean.tolist()),
        scale=() if model.scale is None else tuple(model.scale.tolist()),
        taken=None if taken is None else taken[0],
        unseen=None if taken is None else taken[1],
    )


def _taken_of(model: Model) -> tuple[Span, float] | None:
    """The share of all squared norms that clipping took, from released norms, and the largest share of rows that were not seen.

    None if no norms were released, or too few seen.
    """
    from eigenveil.plan.clipping import taken_by_clipping

    norms, bound, people = _norms(model), _number(model, "row_bound"), model.people
    if norms is None or norms.power is None or bound is None or bound <= 0 or people is None:
        return None
    taken = taken_by_clipping(norms, bound=bound, people=max(2, round(people)))
    hidden = norms.hidden()
    return Span(*taken), norms.beyond[-1] if hidden is None else hidden.share


def _norms(model: Model) -> "Norms | None":
    from eigenveil.plan.clipping import Norms

    return Norms.read(model.settings.get("norms"), model.settings.get("outliers"))


def _number(model: Model, name: str) -> float | None:
    # The settings come from a file, which may have been edited.
    value = model.settings.get(name)
    return float(value) if isinstance(value, Real) and math.isfinite(float(value)) else None


def _intervals(model: Model) -> Iterator[Span]:
    """An interval for the variance of the clipped rows along each best direction, for a covariance that was released once.

    By Weyl's inequality the eigenvalues of G and of G + E differ by at most the spectral norm of E. Noise alone exceeds the
    floor in one fit of a hundred, and E is as likely as -E, so in 98 fits of a hundred, all eigenvalues lie within the floor
    of the released ones. Products (power, krylov) see a part of G only, and units that are applied after the release stretch
    the noise: no interval is known for these.
    """
    floor, settings = model.noise_floor, model.settings
    leaf = METHODS.get(str(settings.get("method")))
    if floor == 0 or leaf is None or not leaf.releases_gram or "scale_from" in settings:
        return
    for variance in model.explained_variance.tolist():
        # No variance is negative, so the interval need not reach below zero.
        yield Span(variance, max(0.0, variance - floor), variance + floor)


def model_facts(model: Model, dataset: str | None = None) -> Iterator[FactLine]:
    """People, columns and settings of a fit as a person reads them, without what a report shows where it belongs."""
    people = model.people
    if dataset is not None:
        yield FactLine("dataset", dataset)
    if people is not None:
        # Only add-remove hides the number of people. Under the other relations it is public and gets no noise.
        noisy = model.noise_floor > 0 and model.settings.get("neighbours") == "add-remove"
        yield FactLine("people", f"about {people:.0f}, with noise" if noisy else f"{people:.0f}")
    yield FactLine("columns", str(model.components.shape[1]))
    yield from settings_facts(model.settings)


def round_parts(rounds: "Iterable[Round]") -> tuple[RoundPart, ...]:
    """The public record of rounds."""
    return tuple(
        RoundPart(
            round=done.number + 1,
            stage=done.stage,
            answered=tuple(done.answered),
            missing=tuple(done.missing),
            bytes_down=done.bytes_down,
            bytes_up=done.bytes_up,
            movement=done.movement,
            residual=done.residual,
            charges=tuple(done.charges),
            restarted=done.restarted,
        )
        for done in rounds
    )


def round_rows(rounds: Sequence[RoundPart], *, max_rounds: int | None = None) -> tuple[list[str], list[list[str]]]:
    """A header, and one row of texts for each round. Of more than `max_rounds`, only the first and last.

    Empty columns are left out. Charges are in mu; if the hub and the sites both add noise, both charges are shown. Peers have
    no hub, so there is one column of bytes and one ledger.
    """
    hub = any(part.bytes_down for part in rounds)
    charges = [
        " / ".join(f"{math.hypot(*(line.mu for line in ledger)):.2g}" for ledger in _by_ledger(part.charges, hub=hub))
        for part in rounds
    ]
    rows = [
        {
            "round": str(part.round),
            "stage": part.stage + ", begun again" * part.restarted,
            "answered": f"{len(part.answered)}" + f" of {len(part.answered) + len(part.missing)}" * bool(part.missing),
            "up" if hub else "sent": in_bytes(part.bytes_up),
            "down": in_bytes(part.bytes_down) if hub else "",
            "movement": _sine(part.movement),
            # A residual that is zero in all rounds says nothing.
            "residual": _sine(part.residual) if any((other.residual or 0) > _STILL for other in rounds) else "",
            "mu, hub / site" if any(" / " in other for other in charges) else "charge, mu": charge,
        }
        for part, charge in zip(rounds, charges, strict=True)
    ]
    header = [name for name in rows[0] if any(row[name] for row in rows)] if rows else []
    texts = [[row[name] for name in header] for row in rows]
    if max_rounds is not None and len(texts) > max_rounds:
        half = max_rounds // 2
        more = ["...", f"{len(texts) - 2 * half} more", *[""] * (len(header) - 2)]
        texts = [*texts[:half], more, *texts[-half:]]
    return header, texts


def _sine(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}" if value > _STILL else "0"


def spent_mu(rounds: "Iterable[Round]") -> float:
    """What rounds cost together, on the ledger that was charged most."""
    parts = round_parts(rounds)
    ledgers = [_by_ledger(part.charges, hub=any(other.bytes_down for other in parts)) for part in parts]
    # Gaussian releases compose by the squares of their mu.
    squares = (
        math.fsum(charge.mu**2 for ledger in each if ledger is not None for charge in ledger)
        for each in itertools.zip_longest(*ledgers)
    )
    return math.sqrt(max(squares, default=0.0))


def _by_ledger(charges: Sequence[Charge], *, hub: bool) -> list[list[Charge]]:
    """The charges of a round, ledger by ledger.

    With a `hub`, a repeated label belongs to the next ledger. Between peers it belongs to a round that began again.
    """
    ledgers: list[list[Charge]] = []
    for charge in charges:
        if not ledgers or (hub and charge.label in {line.label for line in ledgers[-1]}):
            ledgers.append([])
        ledgers[-1].append(charge)
    return ledgers


def spectrum_of(
    model: Model, *, source: str, dim: int | None = None, row_bound: float | None = None, bound_usage: float | None = None
) -> "Spectrum":
    """The variances of a model as a plan needs them: without what noise adds, and with what remains in other directions.

    They are doubted as much as those of a public table, or as a guess where noise hides some of the components.
    """
    from eigenveil.errors import require
    from eigenveil.plan.spectrum import PUBLIC_SPREAD, SPREAD_OF_GUESS, Spectrum

    # A component that is not above the noise has no share of the variance, and says nothing about other rows.
    mask = model.explained_variance_ratio > 0
    released, share = model.explained_variance[mask], float(model.explained_variance_ratio.sum())
    require(released.sum() > 0 and share > 0, f"{source} has no variance to plan with")
    total, floor = float(released.sum()) / share, model.noise_floor
    # Noise makes an eigenvalue v appear at about v + (floor / 2)^2 / v (Baik, Ben Arous and Peche 2005).
    variances = (released + np.sqrt(np.maximum(released**2 - floor**2, 0.0))) / 2
    others = model.components.shape[1] - len(variances)
    # No other direction has more variance than the last component found. And if noise hides components, none is far above it.
    hides = len(variances) < len(mask)
    max_variance = min(float(variances.min()), floor / 2) if hides else float(variances.min())
    hidden = _hidden_values(max(0.0, total - float(variances.sum())), others, peak=max_variance)
    return Spectrum.of_variances(
        [*variances, *hidden],
        dim=dim,
        row_bound=row_bound,
        bound_usage=bound_usage,
        source=f"from {source}",
        # Of components that noise hides little is known.
        spread=SPREAD_OF_GUESS if hides else PUBLIC_SPREAD,
    )


def _hidden_values(left: float, count: int, *, peak: float) -> "list[float]":
    """Values, falling, of `count` directions that have the variance `left` together and none more than `peak`.

    They may be all alike, or fall from `peak`. The first is taken halfway, on the scale of logarithms, and the others fall like a
    power of their number.

    >>> [round(value, 2) for value in _hidden_values(6.0, 4, peak=6.0)]
    [3.0, 1.42, 0.91, 0.67]
    """
    if count == 0 or left <= 0:
        return [0.0] * count
    each = left / count
    if each >= peak:
        return [each] * count
    first, ranks = math.sqrt(each * peak), np.arange(1.0, count + 1)
    # The sum falls as the power grows, from all alike to the first alone: bisect.
    low, high = 0.0, 60.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if first * float((ranks**-middle).sum()) > left else (low, middle)
    return [first * float(rank) ** -low for rank in ranks]


def plan_part(model: Model) -> PlanPart | None:
    """What other budgets would have bought, with this fit marked. None where the planner does not know such a fit."""
    facts, method = planned(model)
    if facts is None:
        return None
    from eigenveil.plan.rehearsal import forecast

    target, points = facts.budget.epsilon, []
    large = facts.dim * facts.rank > _LARGE
    fits = 4 if large else None
    for epsilon in sorted({*(EPSILONS[1:4] if large else EPSILONS), target}):
        result = forecast(replace(facts, budget=Budget(epsilon, facts.budget.delta)), method, fits=fits)
        points.append((epsilon, result))
    note = " ".join(("From the released spectrum of this fit.", _note_on_clipping(facts), _UNKNOWN))
    return forecast_part(method, target, points, note=note)


def _note_on_clipping(facts: "Facts") -> str:
    """What the forecast of a fit knows of the loss by clipping."""
    if facts.denominator == "clipped rows":
        return "How much clipping to the given row bound took is not known, so this is of the clipped rows."
    if facts.norms is None:
        return "Norms of rows were not released or are hidden by noise, so the interval allows for heavy tails as usual ones."
    return (
        "The interval includes the loss by clipping, as far as the released norms around the search's center show it. "
        f"{unseen_words(facts.norms, facts.unit)}"
    )


def unseen_words(norms: "Norms", bound: float) -> str:
    """Which rows beyond the row bound may have most of the variance, and whether an interval of all rows allows for them."""
    long, hidden = norms.longest(bound), norms.hidden()
    if long is not None:
        larger = "A larger epsilon shows whether they are there. " * (long.chance < 1)
        return (
            f"{long.words(bound, times='times as long as the row bound')}. If so, exact PCA of all rows follows them, and "
            f"clipping takes them out: the interval allows for that. {larger}If they matter, use a larger row bound that you "
            "know."
        )
    if hidden is None:
        return (
            f"How long the longest {norms.beyond[-1]:.1%} of the rows are was not seen: if few of them have most of the "
            "variance, far less is captured."
        )
    return (
        f"Noise can hide longer rows, at most {hidden.share:.1%} of all (95% confidence), and the interval does not allow for "
        f"them. If so many are more than {hidden.norm / bound:.3g} times as long as the row bound, they have more variance "
        "than all others: exact PCA of all rows follows them, and far less is captured. What is said of the clipped rows still "
        "holds. A larger epsilon hides fewer."
    )


def forecast_part(method: str, target: float, points: "Sequence[tuple[float, Forecast]]", *, note: str = "") -> PlanPart | None:
    """The curve of a plan; None where nothing could be rehearsed."""
    spans = [
        EpsilonPoint(
            epsilon=at,
            captured=Span(forecast.captured.value, forecast.captured.low, forecast.captured.high),
            sine=Span(forecast.sine.value, forecast.sine.low, forecast.sine.high),
            nothing=forecast.nothing,
        )
        for at, forecast in points
        if math.isfinite(forecast.captured.value)
    ]
    of = points[0][1].of if points else "clipped rows"
    return PlanPart(method=method, asked=target, points=tuple(spans), note=note, of=of) if spans else None


def planned(model: Model) -> "tuple[Facts | None, str]":
    """The facts of this fit as a plan sees them, and the name of its method there."""
    guarantee, settings = model.guarantee, model.settings
    method, people = _method_of(settings), model.people
    rank, dim = model.components.shape
    if guarantee.epsilon is None or guarantee.delta is None or people is None or not model.n_above_noise:
        return None, method
    from eigenveil.plan.facts import METHODS, Facts

    if method not in METHODS or not 1e-3 <= guarantee.epsilon <= 1e3:
        return None, method
    bound_usage, bound = _number(model, "bound_usage"), settings.get("row_bound")
    has_bound = isinstance(bound, Real) and settings.get("bound_from") is None
    norms, size = _norms(model), _number(model, "row_bound")
    try:
        if norms is not None:
            # In units of the bound, like the spectrum.
            norms = None if norms.power is None or size is None or size <= 0 else norms.over(size)
        facts = Facts(
            dim=dim,
            rank=rank,
            # The released number has noise, and can fall below what a plan accepts.
            people=max(2, round(people)),
            budget=Budget(guarantee.epsilon, guarantee.delta),
            # In units of the bound, which the fill gives, so that the bound itself is not needed.
            spectrum=spectrum_of(model, source="this model", bound_usage=min(max(bound_usage or 0.5, 1e-6), 1.0)),
            neighbours=Neighbours(str(settings.get("neighbours"))),
            center="private" if settings.get("center") == "private" else None,
            sites=int(settings.get("sites") or settings.get("peers") or 1),
            survivors=settings.get("survivors"),
            row_bound=1.0 if has_bound or settings.get("column_bounds") is not None else None,
            scale="private" if "scale_from" in settings else None,
            norms=norms,
        )
    except (ValueError, TypeError):
        # A fit that no plan covers: one column, a relation that protects no person, a file that was edited.
        return None, method
    return facts, method


def _method_of(settings: Any) -> str:
    """The name that a plan has for the method of a fit.

    >>> _method_of({"method": "covariance", "trust": "masked, 5 survivors"}), _method_of({"method": "power"})
    ('masked/covariance', 'curator/power')
    """
    how, trust = str(settings.get("method", "")), str(settings.get("trust", "")).partition(",")[0]
    if how.startswith("stream"):
        return f"stream/{settings.get('publish', '')}"
    if "peers" in settings:
        return f"{'peers' if settings.get('noise') == 'pairwise' else 'peers-independent'}/{how}"
    setting = {"masked": "masked", "hub": "hub", "site": "site", "both": "site"}.get(trust, "curator")
    return f"{setting}/{how}"


_RELATIONS: Final = {
    "add-remove": "add/remove: one has a row more than the other",
    "zero-out": "zero-out: one row is blank in one of them",
    "replace-one": "replace-one: one row differs",
    "none": "none, because nothing is private",
}
_VALUES: Final[dict[str, dict[str, str]]] = {
    "method": {
        **{leaf.name: leaf.phrase.removeprefix("the ").removeprefix("a ") for leaf in METHODS.values()},
        **{f"stream, {kind.name}": kind.title for kind in TRACKERS.values() if kind.title},
    },
    "neighbours": _RELATIONS,
    "center": {"private": "estimated privately", "none": "none was subtracted", "exact mean": "exact"},
    "trust": {"hub": "the hub", "site": "each site", "both": "each site and the hub"},
    "topology": {"star": "sites around a hub", "tree": "sites in a tree"},
    "noise": {"pairwise": "pairwise: it cancels only in sums over all peers", "independent": "independent at each peer"},
    "publish": {kind.publishes: kind.moments for kind in TRACKERS.values() if kind.publishes},
    "unit": {"user": "a user's whole history", "item": "one interaction of a user"},
    "item_degrees": {"none": "not used", "released": "released with noise", "given as public": "given"},
    "normalise": {"filter": "in the filter alone", "both": "in the filter and in the histories"},
}
_LABELS: Final = {
    "n_components": "components",
    "bytes": "traffic",
    "why": "why this method",
    "center": "mean",
    "neighbours": "neighbouring tables",
    "width": "vectors per product",
    "trust": "who adds the noise",
    "survivors": "sites in every sum, at least",
    "split": "how rows were split",
    "topology": "arrangement",
    "consensus": "averaging between peers",
    "steps": "averaging steps per round",
    "publish": "releases happen",
    "forget": "weight of older rows",
    "block": "rows per block",
    "oversample": "extra directions kept",
    "unit": "privacy unit",
    "min_degree": "histories count at least as long as",
    "normalise": "item degrees are used",
    "demo": "dataset",
    "scale": "scale of columns",
}
# Said where they belong, or part of another line.
_ELSEWHERE: Final = frozenset({"noise_floor", "bound_usage", "clipped_fraction", "norms", "outliers", "bound_from", "scale_from"})


def settings_facts(settings: Mapping[str, Any]) -> Iterator[FactLine]:
    """The settings of a fit as a person reads them, except those that a report shows elsewhere.

    >>> found = {"method": "covariance", "row_bound": 2.0, "bound_from": "found privately", "rounds": 1}
    >>> [fact.text for fact in settings_facts(found)]
    ['one release of the covariance', '2, estimated privately']
    """
    leaf = METHODS.get(str(settings.get("method")))
    covariance = leaf is not None and leaf.releases_gram
    for name, value in settings.items():
        # A release of the covariance has no products, and a tolerance of zero stops nothing.
        idle = (covariance and (name == "width" or (name == "rounds" and value == 1))) or (name == "tolerance" and value == 0)
        if name in _ELSEWHERE or idle:
            continue
        yield FactLine(_LABELS.get(name, name.replace("_", " ")), _text_of(name, value, settings))
    if settings.get("scale_from") is not None:
        exact = settings.get("neighbours") == "none"
        where = "exact standard deviations, not private" if exact else "estimated privately"
        yield FactLine("scale of columns", f"{where}; columns were divided by it")


def _text_of(name: str, value: Any, settings: Mapping[str, Any]) -> str:
    if name == "bytes" and isinstance(value, int):
        return in_bytes(value)
    if name == "trust" and isinstance(value, str) and value.startswith("masked, "):
        return f"the sites together, under masks: {value.removeprefix('masked, ')}"
    if name == "forget" and value == 1:
        return "the same as of new ones"
    if name == "why" and isinstance(value, str):
        # The method's name stands on the line above.
        return value.removeprefix(f"{settings.get('method')}: ")
    if name == "column_bounds" and isinstance(value, list) and len(value) == 2:
        return " to ".join(shown(end) for end in value)
    if name == "row_bound" and isinstance(value, Real):
        # Scales that were found make one bound for all tables, the root of the number of columns.
        where = (
            "in units of the scale of columns"
            if settings.get("scale_from") is not None
            else "given"
            if settings.get("bound_from") is None
            else "estimated privately"
        )
        return f"{float(value):.6g}, {where}"
    if value == "one number per column":
        return "given, one number per column"
    if isinstance(value, str):
        return _VALUES.get(name, {}).get(value, value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        # Public levels by column.
        return "; ".join(f"{column}: {_text_of('', levels, {})}" for column, levels in value.items())
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return join_names(value)
    return f"{value:.6g}" if isinstance(value, float) else shown(value)
