"""`advise`: forecasts every method, recommends one and says why; where none works, it says what would have to
change."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Final, Literal, TypeVar, final

from eigenveil.core.accounting import Budget
from eigenveil.errors import ParameterError, require_param
from eigenveil.linalg import expected_captured_variance
from eigenveil.params.declarations.streaming import StreamingParams
from eigenveil.params.declare import declared
from eigenveil.plan.candidates import candidate_of
from eigenveil.plan.choose import plan_sites, predict
from eigenveil.plan.facts import METHODS, Facts, FitParams, Setting, algorithm_phrase, method_phrase, methods_for, parts_of
from eigenveil.plan.rehearsal import Forecast, RehearsalTrial, forecast, glimpse
from eigenveil.plan.spectrum import Spectrum

# A result that captures this much of the variance counts as fair.
FAIR: Final = 0.7
# Where the search ends: an epsilon that guarantees next to nothing, and about as many people as could ever take part.
_LARGEST_EPSILON, _MOST_PEOPLE = 100.0, 10**9
# Neighbouring candidates differ by about this factor.
_FINE: Final = 1.15
_FEWEST_COLUMNS: Final = 5
# Captured variances closer than this count as equal.
_ALIKE: Final = 0.02
# A method must find at least this share of what random directions leave.
_CLEAR: Final = 0.1
# From so many columns on, noise this many times as large as what hides the first direction is taken to leave nothing of it.
_WIDE, _HIDDEN = 1000, 2.0
# Among equally good settings, the one that trusts the fewest parties comes first.
_BY_TRUST: Final[tuple[Setting, ...]] = ("site", "peers-independent", "masked", "peers", "hub", "curator", "stream")
# "works": take `best`. "hopeless": even the best would be noise. "needless": random directions capture nearly as much
# as the best ones. "refused": no method is within the limits. "unfound": the people are too few to find a bound or units
# privately, and with a known bound a method would work.
Verdict = Literal["works", "hopeless", "needless", "refused", "unfound"]
_Candidate = TypeVar("_Candidate")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The forecasts of all methods, and what follows from them.

    `forecasts` are sorted: best first, refused ones last. `best` is None where all are refused. The first of
    `reasons` states the `verdict`. `instead` says what would work, or work better. Both are in full sentences.
    """

    forecasts: tuple[Forecast, ...]
    best: Forecast | None
    verdict: Verdict
    reasons: tuple[str, ...]
    instead: tuple[str, ...]

    @property
    def chosen(self) -> Forecast | None:
        """The method to run, None where none is worth its budget."""
        return self.best if self.verdict == "works" else None

    def _repr_html_(self) -> str:
        """Every method in a notebook, the best first."""
        return str(import_module("eigenveil.show.notebook").html_of(self))

    @property
    def params(self) -> FitParams | None:
        """The parameters of the chosen method."""
        return None if self.chosen is None else self.chosen.params


def advise(facts: Facts, *, methods: Sequence[str] | None = None, watch: Callable[[str], None] | None = None) -> Recommendation:
    """Compare `methods`, by default all acceptable ones, and choose one. `watch` gets each name as its rehearsal
    begins.

    Within a setting the choice is that of method="auto", unless limits forbid it.

    >>> from eigenveil.plan.spectrum import Spectrum
    >>> from eigenveil.core.accounting import Budget
    >>> many, few = (
    ...     Facts(dim=20, rank=2, people=people, budget=Budget(1.0, 1e-6), spectrum=Spectrum.guessed(20))
    ...     for people in (20_000, 50)
    ... )
    >>> advise(many, methods=["curator/covariance", "curator/power"]).chosen.method
    'curator/covariance'
    >>> advise(few, methods=["curator/covariance"]).chosen is None
    True
    """
    names = methods_for(facts) if methods is None else tuple(methods)
    require_param(len(names) > 0, "{methods} must name at least one, got none")
    for name in names:
        if name not in METHODS:
            raise ParameterError(f"{{methods}} must be among {', '.join(METHODS)}, got {{@name}}", name=name)
    forecasts: list[Forecast] = []
    for name in names:
        if watch is not None:
            watch(name)
        forecasts.append(forecast(facts, name))
    # What clipping costs is the same for all. Where long rows take everything, only the clipped ones tell methods apart.
    forecasts.sort(key=lambda option: (option.refused != "", -option.clipped.value))
    open_to_us = [option for option in forecasts if not option.refused]
    if not open_to_us and facts.seeks is not None:
        return _without_a_search(facts, tuple(forecasts), watch)
    if not open_to_us:
        return Recommendation(
            forecasts=tuple(forecasts), best=None, verdict="refused", reasons=tuple(_all_refused(forecasts)), instead=()
        )
    best = _preferred(facts, open_to_us)
    verdict = _verdict(best)
    reasons = _reasons(facts, best, forecasts) if verdict == "works" else _why_not(facts, verdict, best, forecasts)
    # Where random directions are already fair, a larger budget would not make the result more useful.
    wanting = verdict == "hopeless" or (verdict == "works" and best.clipped.value < FAIR)
    instead = _alternatives(facts, best.method) if wanting else ()
    return Recommendation(forecasts=tuple(forecasts), best=best, verdict=verdict, reasons=tuple(reasons), instead=tuple(instead))


def hopeless(facts: Facts, method: str) -> tuple[float, float] | None:
    """What `method` captures and what random directions do, where `advise` calls it hopeless; None where it does not.

    Nothing is rehearsed where random directions do well, or where the first-order formula promises three times as much as would
    be hopeless. Nor where there are many columns and noise is twice what hides the largest direction: by the same formula that
    keeps nothing, and a rehearsal of 40000 columns takes seconds.

    >>> from eigenveil.plan.spectrum import Spectrum
    >>> from eigenveil.core.accounting import Budget
    >>> many, few = (
    ...     Facts(dim=20, rank=2, people=people, budget=Budget(1.0, 1e-6), spectrum=Spectrum.guessed(20))
    ...     for people in (20_000, 20)
    ... )
    >>> hopeless(many, "curator/covariance") is None, hopeless(few, "curator/covariance")[0] < 0.4
    (True, True)
    """
    values, nothing = facts.spectrum.values[: facts.rank], facts.spectrum.at_random(facts.rank)
    if nothing >= FAIR:
        return None
    # The norm of symmetric noise is 2 sqrt(d) of its entries.
    candidate = candidate_of(facts, method)
    entry = candidate.noise / (2 * math.sqrt(facts.dim))
    if expected_captured_variance(facts.people * values, entry=entry, dim=facts.dim) - nothing >= 3 * _CLEAR * (1 - nothing):
        return None
    if facts.dim >= _WIDE and facts.people * values[0] * _HIDDEN < math.sqrt(facts.dim) * entry:
        return nothing, nothing
    # Every fit waits for this, so a few rehearsals decide, and twice as many where they end so near the line that chance may.
    fits = RehearsalTrial.of(facts, candidate).fits[0]
    for count in (fits, 2 * fits, 4 * fits, None):
        prediction = forecast(facts, method, fits=count)
        beyond = abs(prediction.clipped.value - nothing - _CLEAR * (1 - nothing))
        if count is not None and beyond >= (prediction.clipped.high - prediction.clipped.low) / math.sqrt(count):
            break
    return (prediction.clipped.value, prediction.nothing) if _verdict(prediction) == "hopeless" else None


def _verdict(prediction: Forecast) -> Verdict:
    """Whether it finds clearly more than random directions do, in the rows that it sees."""
    value, nothing = prediction.clipped.value, prediction.nothing
    if value - nothing >= _CLEAR * (1 - nothing):
        return "works"
    return "needless" if nothing >= FAIR else "hopeless"


def _preferred(facts: Facts, forecasts: Sequence[Forecast]) -> Forecast:
    """Among settings as good as the best, the one that trusts fewest. Within it, what "auto" takes, or else the
    best."""
    best = forecasts[0].clipped.value
    alike = [option for option in forecasts if option.clipped.value >= best - _ALIKE]
    setting = min((option.setting for option in alike), key=_BY_TRUST.index)
    inside = [option for option in alike if option.setting == setting]
    sizes: dict[str, Any] = {"dim": facts.dim, "rank": facts.rank, "budget": facts.budget, "neighbours": facts.neighbours}
    if setting == "stream":
        usual = declared(StreamingParams)["publish"].default
    elif setting == "curator":
        usual = predict(**sizes).chosen.method
    else:
        usual = plan_sites(method="auto", **sizes).method
    return next((option for option in inside if parts_of(option.method)[1] == usual), inside[0])


def _source(facts: Facts) -> str:
    return f"All of this depends on the spectrum: {facts.spectrum.source}."


def _all_refused(forecasts: Sequence[Forecast]) -> list[str]:
    return ["No method is possible within these limits.", *(f"{_begun(option)}: {option.refused}." for option in forecasts)]


def _without_a_search(facts: Facts, forecasts: tuple[Forecast, ...], watch: Callable[[str], None] | None) -> Recommendation:
    """Where a search is one of the reasons why all is refused: whether a bound that is known would help, and what else."""
    names = [option.method for option in forecasts]
    # The spectrum is in units of the bound, so a plan needs no other number.
    advice = advise(replace(facts, row_bound=1.0, scale=None), methods=names, watch=watch)
    if advice.best is None:
        return Recommendation(
            forecasts=forecasts, best=None, verdict="refused", reasons=tuple(_all_refused(forecasts)), instead=()
        )
    method = advice.best.method
    (same,) = (option for option in forecasts if option.method == method)
    if advice.verdict != "works":
        # Nothing to find, or nothing but noise, however the bound is known.
        instead = tuple(_alternatives(facts, method)) if advice.verdict == "hopeless" else ()
        return Recommendation(forecasts=forecasts, best=same, verdict=advice.verdict, reasons=advice.reasons, instead=instead)
    first, *reasons = _all_refused(forecasts)
    instead = tuple(_instead_of_a_search(facts, advice.best))
    if facts.people >= same.min_people:
        return Recommendation(forecasts=forecasts, best=None, verdict="refused", reasons=(first, *reasons), instead=instead)
    sought = "units" if facts.seeks == "units" else "a row bound"
    first = f"No method can find {sought} privately among about {facts.people} people at this budget."
    return Recommendation(forecasts=forecasts, best=None, verdict="unfound", reasons=(first, *reasons), instead=instead)


def _instead_of_a_search(facts: Facts, prediction: Forecast) -> Iterator[str]:
    """What would make a private search possible, and what works without one, in full sentences."""
    method, phrase = prediction.method, method_phrase(prediction.method)
    sought = "units" if facts.seeks == "units" else "a row bound"

    def possible(other: Facts) -> bool:
        return not candidate_of(other, method).refused

    if facts.seeks == "units" and possible(replace(facts, scale=None, row_bound=None)):
        yield f"Without units, {phrase} can find a row bound: leave out the scale, or give one that is public."
    epsilon = _first(
        _upwards(facts.budget.epsilon, _LARGEST_EPSILON),
        lambda candidate: possible(replace(facts, budget=Budget(candidate, facts.budget.delta))),
    )
    if epsilon is not None:
        yield f"With epsilon = {epsilon:g} and all else the same, {phrase} can find {sought}."
    people = candidate_of(facts, method).min_people
    if people > facts.people and possible(replace(facts, people=people)):
        yield f"With {people} people, {people / facts.people:.2g} times as many, {phrase} can find {sought}."
    yield (
        f"With a row bound that you know without looking at the data, {phrase} should capture {prediction.captured} "
        "and needs no search."
    )


def _why_not(facts: Facts, verdict: Verdict, best: Forecast, forecasts: Sequence[Forecast]) -> list[str]:
    best_space = f"the variance along the best {_directions(facts.rank)} of {best.rows}"
    if verdict == "needless":
        reasons = [
            f"There is nothing to find here: random directions capture {best.nothing:.2f} of {best_space}, and "
            f"{method_phrase(best.method)} would capture {best.captured}.",
            "A fit would spend the budget on something that needs none.",
        ]
    else:
        reasons = [
            f"Nothing can work here: even the best, {method_phrase(best.method)}, would capture {best.captured} of "
            f"{best_space}. Random directions capture {best.nothing:.2f}.",
            _against_noise(facts, best),
            "A fit would spend the budget and return noise.",
        ]
    return [*reasons, *_left_out(best, forecasts), _source(facts)]


def _reasons(facts: Facts, chosen: Forecast, forecasts: Sequence[Forecast]) -> list[str]:
    reasons = [
        f"{_begun(chosen)} should capture {chosen.captured} of the variance along the best "
        f"{_directions(facts.rank)} of {chosen.rows}, with a "
        f"largest principal angle of {chosen.sine}, as a sine. Random directions would capture {chosen.nothing:.2f}.",
        _against_noise(facts, chosen),
    ]
    others = [other for other in forecasts if other is not chosen and not other.refused]
    inside = [other for other in others if other.setting == chosen.setting]
    if inside:
        shown = "; ".join(f"{other.captured.value:.2f} with {algorithm_phrase(parts_of(other.method)[1])}" for other in inside)
        reasons.append(f"Other methods with the same guarantee would capture: {shown}.")
    elsewhere = {other.setting: other for other in reversed(others) if other.setting != chosen.setting}
    if elsewhere:
        shown = "; ".join(
            f"{other.captured.value:.2f} by {method_phrase(other.method)}" for other in reversed(elsewhere.values())
        )
        reasons.append(
            f"The best methods in other settings would capture: {shown}. Among settings within {_ALIKE:g} of the "
            "best, the one that trusts fewest parties was chosen."
        )
    reasons += _left_out(chosen, forecasts)
    sought = [{"units": "the units of the columns", "bound": "a row bound"}[facts.seeks]] if facts.seeks is not None else []
    if sought := [*sought, *["the mean"] * (facts.center == "private")]:
        split = candidate_of(facts, chosen.method).split
        share = 1 - split.main(split.usual) - split.extra
        reasons.append(f"The search for {' and '.join(sought)} takes about {share:.0%} of the budget. The figures include that.")
    if chosen.clipped.value < FAIR:
        reasons.append(
            f"Less than {FAIR:g} of what there is to find in the clipped rows is not much. See below for what would raise it "
            "to that."
        )
    return [*reasons, _source(facts)]


def _left_out(chosen: Forecast, forecasts: Sequence[Forecast]) -> list[str]:
    """Better methods that the limits exclude."""
    better = [other for other in forecasts if other.refused and other.clipped.value > chosen.clipped.value + _ALIKE]
    return [f"{_begun(other)} would capture {other.captured.value:.2f}, but {other.refused}." for other in better[:3]]


def _against_noise(facts: Facts, chosen: Forecast) -> str:
    last = facts.people * float(facts.spectrum.values[facts.rank - 1])
    times = last / chosen.noise
    ratio = f"{times:.3g} times" if times >= 1 else f"only {times:.2g} of"
    return (
        f"Eigenvalue {facts.rank} of the sum over {facts.people} people is about {last:.3g} row_bound^2. That is "
        f"{ratio} the norm of the noise that is added, {chosen.noise:.3g}."
    )


def _begun(prediction: Forecast) -> str:
    """Its method, at the beginning of a sentence."""
    phrase = method_phrase(prediction.method)
    return f"{phrase[0].upper()}{phrase[1:]}"


def _directions(rank: int) -> str:
    return "direction" if rank == 1 else f"{rank} directions"


def _alternatives(facts: Facts, method: str) -> Iterator[str]:
    """Single changes of the `facts` that would make `method` capture a fair share, in full sentences."""

    def fair(other: Facts) -> bool:
        candidate = candidate_of(other, method)
        # With few columns random directions capture much already, and a fair result must beat them clearly.
        min_share = max(FAIR, (1 + other.spectrum.at_random(other.rank)) / 2)
        return not candidate.refused and glimpse(RehearsalTrial.of(other, candidate)) >= min_share

    epsilon = _first(
        _upwards(facts.budget.epsilon, _LARGEST_EPSILON),
        lambda candidate: fair(replace(facts, budget=Budget(candidate, facts.budget.delta))),
    )
    if epsilon is not None:
        yield f"With epsilon = {epsilon:g} and all else the same, this method should capture {FAIR:g}."
    people = _first(
        [round(candidate) for candidate in _upwards(float(facts.people), float(_MOST_PEOPLE))],
        lambda candidate: fair(replace(facts, people=candidate)),
    )
    if people is not None:
        yield f"With {people} people, {people / facts.people:.2g} times as many, this method should capture {FAIR:g}."

    def with_columns(dim: int) -> Facts:
        values, spectrum = facts.spectrum.values[:dim], facts.spectrum
        fewer = Spectrum(values=values * (spectrum.bound_usage / values.sum()), source=spectrum.source)
        return replace(facts, dim=dim, spectrum=fewer)

    columns = _first(_downwards(facts.dim, max(_FEWEST_COLUMNS, 2 * facts.rank)), lambda dim: fair(with_columns(dim)))
    if columns is not None:
        yield (
            f"With {columns} of the {facts.dim} columns, from a public list, this method should capture {FAIR:g} or "
            "more of their variance. This assumes that their spectrum falls alike and rows are as large relative to "
            "row_bound."
        )
    rank = _first(list(range(facts.rank - 1, 0, -1)), lambda candidate: fair(replace(facts, rank=candidate)))
    if rank is not None:
        fewer = "one component" if rank == 1 else f"{rank} components"
        yield f"With {fewer} instead of {facts.rank}, this method should capture {FAIR:g}."
    # With one site there is no one to trust differently.
    others: tuple[Setting, ...] = ("masked", "peers", "hub") if facts.sites > 1 else ()
    for setting in others:
        other, wider = f"{setting}/{parts_of(method)[1]}", replace(facts, trust=(*facts.settings, setting))
        if setting in facts.settings or other not in METHODS:
            continue
        candidate = candidate_of(wider, other)
        if not candidate.refused and glimpse(RehearsalTrial.of(wider, candidate)) >= FAIR:
            yield (
                f"If {setting!r} were acceptable, {method_phrase(other)} should capture {FAIR:g}. It guarantees: "
                f"{candidate.guarantee}."
            )
            return


def _first(candidates: Sequence[_Candidate], good: Callable[[_Candidate], bool]) -> _Candidate | None:
    """The first good candidate, by bisection: all after a good one must be good. None where the last one is not."""
    if not candidates or not good(candidates[-1]):
        return None
    low, high = -1, len(candidates) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if good(candidates[middle]) else (middle, high)
    return candidates[high]


def _upwards(start: float, max_number: float) -> list[float]:
    """Numbers of two digits above `start`, each about `_FINE` times the one before."""
    if start >= max_number:
        return []
    numbers = set()
    for step in range(1, math.ceil(math.log(max_number / start) / math.log(_FINE)) + 1):
        number = start * _FINE**step
        # Rounded up to two digits.
        unit = 10.0 ** (math.floor(math.log10(number)) - 1)
        numbers.add(float(f"{math.ceil(number / unit - 1e-9) * unit:.2g}"))
    return sorted(number for number in numbers if start < number <= max_number)


def _downwards(start: int, min_number: int) -> list[int]:
    """Whole numbers below `start`, each about the one before over `_FINE`."""
    numbers, number = [], float(start)
    while number / _FINE >= min_number:
        number /= _FINE
        numbers.append(int(number))
    return [number for number in dict.fromkeys(numbers) if number < start]
