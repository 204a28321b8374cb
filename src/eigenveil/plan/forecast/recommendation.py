"""`advise`: what to expect of every method, which one to take and why, and what would work where nothing does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

from eigenveil.errors import ParameterError, require_param
from eigenveil.plan.choose.sites import plan_sites
from eigenveil.plan.forecast.facts import METHODS, Facts, Setting, methods_for, parts_of
from eigenveil.plan.forecast.forecast import Forecast, forecast
from eigenveil.plan.forecast.instead import FAIR, others_that_would_do
from eigenveil.plan.forecast.params import FitParams

__all__ = ["Recommendation", "Verdict", "advise"]

# Captured variances closer than this are equally good.
_ALIKE: Final = 0.02
# Of what there is beyond random directions, a method must find at least this much.
_CLEAR: Final = 0.1
# Who trusts fewest comes first, where settings are equally good.
_BY_TRUST: Final[tuple[Setting, ...]] = ("site", "peers-independent", "masked", "peers", "hub", "curator", "stream")

# Whether there is something to take. "hopeless": even the best would be noise. "needless": directions drawn at random have
# nearly as much as the best ones. "refused": no method is left within the limits.
Verdict = Literal["works", "hopeless", "needless", "refused"]


@final
@dataclass(frozen=True, slots=True)
class Recommendation:
    """All `forecasts`, best first and refused ones last; the `best` to take, None where all are refused; the `verdict`;
    `reasons`, of which the first says the verdict, and what would work `instead`, or better, both in full sentences."""

    forecasts: tuple[Forecast, ...]
    best: Forecast | None
    verdict: Verdict
    reasons: tuple[str, ...]
    instead: tuple[str, ...]

    @property
    def chosen(self) -> Forecast | None:
        """What to do, None where nothing is worth its budget."""
        return self.best if self.verdict == "works" else None

    @property
    def params(self) -> FitParams | None:
        """The parameters to do it with."""
        return None if self.chosen is None else self.chosen.params


def advise(
    facts: Facts, *, methods: Sequence[str] | None = None, watch: Callable[[str], None] | None = None
) -> Recommendation:
    """Compare `methods`, all that are acceptable unless given, and choose one. `watch` is told which one is looked at.

    Within a setting the choice is that of method="auto", unless limits forbid it.

    >>> from eigenveil.plan.spectrum import Spectrum
    >>> from eigenveil.privacy import Budget
    >>> many, few = (Facts(20, 2, people, Budget(1.0, 1e-6), Spectrum.guessed(20)) for people in (20_000, 50))
    >>> advise(many, methods=["curator/covariance", "curator/power"]).chosen.method
    'curator/covariance'
    >>> advise(few, methods=["curator/covariance"]).chosen is None
    True
    """
    names = methods_for(facts) if methods is None else tuple(methods)
    require_param(len(names) > 0, "{methods} must name at least one, got none")
    for name in names:
        if name not in METHODS:
            raise ParameterError(f"{{methods}} must be of {', '.join(METHODS)}, got {{@name}}", name=name)
    found: list[Forecast] = []
    for name in names:
        if watch is not None:
            watch(name)
        found.append(forecast(facts, name))
    found.sort(key=lambda one: (one.refused != "", -one.captured.value))
    open_to_us = [one for one in found if not one.refused]
    if not open_to_us:
        return Recommendation(tuple(found), None, "refused", tuple(_all_refused(found)), ())
    best = _preferred(facts, open_to_us)
    verdict = _verdict(best)
    reasons = _reasons(facts, best, found) if verdict == "works" else _why_not(facts, verdict, best, found)
    # Where random directions are fair already, more budget would not make an answer worth more.
    wanting = verdict == "hopeless" or (verdict == "works" and best.captured.value < FAIR)
    instead = others_that_would_do(facts, best.method) if wanting else ()
    return Recommendation(tuple(found), best, verdict, tuple(reasons), tuple(instead))


def _verdict(one: Forecast) -> Verdict:
    """Whether it finds clearly more than nothing."""
    value, nothing = one.captured.value, one.nothing
    if value - nothing >= _CLEAR * (1 - nothing):
        return "works"
    return "needless" if nothing >= FAIR else "hopeless"


def _preferred(facts: Facts, forecasts: Sequence[Forecast]) -> Forecast:
    """Of the settings that are as good as the best, the one that trusts fewest; in it what "auto" takes, or the best."""
    most = forecasts[0].captured.value
    alike = [one for one in forecasts if one.captured.value >= most - _ALIKE]
    setting = min((one.setting for one in alike), key=_BY_TRUST.index)
    inside = [one for one in alike if one.setting == setting]
    automatic = [one for one in inside if parts_of(one.method)[1] == _automatic(facts, setting)]
    return (automatic or inside)[0]


def _automatic(facts: Facts, setting: Setting) -> str:
    """What method="auto" takes in this setting."""
    if setting == "stream":
        return "sync"
    plan = plan_sites(
        dim=facts.dim,
        rank=facts.rank,
        budget=facts.budget,
        method="auto",
        neighbours=facts.neighbours,
        rounds=None,
        tolerance=None,
        oversample=None,
        local_steps=1,
    )
    return "power" if setting == "curator" and plan.method == "krylov" else plan.method


def _source(facts: Facts) -> str:
    return f"All of this rests on the spectrum: {facts.spectrum.source}."


def _all_refused(forecasts: Sequence[Forecast]) -> list[str]:
    return ["No method is left within these limits.", *(f"{one.method}: {one.refused}." for one in forecasts)]


def _why_not(facts: Facts, verdict: Verdict, best: Forecast, forecasts: Sequence[Forecast]) -> list[str]:
    return [*_said(facts, verdict, best), *_left_out(best, forecasts), _source(facts)]


def _said(facts: Facts, verdict: Verdict, best: Forecast) -> list[str]:
    if verdict == "needless":
        return [
            f"There is nothing to find here: directions drawn at random have {best.nothing:.2f} of the variance that the best "
            f"{_directions(facts.rank)} would have, and {best.method} would have {best.captured}.",
            "A fit would spend the budget on what needs none.",
        ]
    return [
        f"Nothing can work here: even {best.method}, the best, would capture {best.captured} of the variance that the best "
        f"{_directions(facts.rank)} would have, and directions drawn at random have {best.nothing:.2f}.",
        _against_noise(facts, best),
        "A fit would spend the budget and return noise.",
    ]


def _reasons(facts: Facts, chosen: Forecast, forecasts: Sequence[Forecast]) -> list[str]:
    said = [
        f"{chosen.method} should capture {chosen.captured} of the variance that the best {_directions(facts.rank)} have, with a "
        f"largest sine of {chosen.sine}; directions drawn at random would capture {chosen.nothing:.2f}.",
        _against_noise(facts, chosen),
    ]
    others = [one for one in forecasts if one is not chosen and not one.refused]
    inside = [one for one in others if one.setting == chosen.setting]
    if inside:
        shown = ", ".join(f"{one.method} {one.captured.value:.2f}" for one in inside)
        said.append(f"With the same guarantee, others would capture: {shown}.")
    elsewhere = {one.setting: one for one in reversed(others) if one.setting != chosen.setting}
    if elsewhere:
        shown = ", ".join(f"{one.method} {one.captured.value:.2f}" for one in reversed(elsewhere.values()))
        said.append(
            f"The best in other settings would capture: {shown}; where settings are within {_ALIKE:g} of each other, the one "
            "that trusts fewest was taken."
        )
    said += _left_out(chosen, forecasts)
    if facts.center == "private":
        said.append("A share of the budget goes to the mean, which is taken into account.")
    if chosen.captured.value < FAIR:
        said.append(
            f"Less than {FAIR:g} of what there is to find is not much: see below for what would bring it to that."
        )
    return [*said, _source(facts)]


def _left_out(chosen: Forecast, forecasts: Sequence[Forecast]) -> list[str]:
    """What limits cost."""
    better = [one for one in forecasts if one.refused and one.captured.value > chosen.captured.value + _ALIKE]
    return [f"{one.method} would capture {one.captured.value:.2f}, but {one.refused}." for one in better[:3]]


def _against_noise(facts: Facts, one: Forecast) -> str:
    last = facts.people * float(facts.spectrum.values[facts.rank - 1])
    times = last / one.noise
    stands = f"{times:.3g} times" if times >= 1 else f"only {times:.2g} of"
    return (
        f"Eigenvalue {facts.rank} of the sum over {facts.people} people is about {last:.3g} row_bound^2, {stands} the norm of "
        f"the noise that {one.method} adds, {one.noise:.3g}."
    )


def _directions(rank: int) -> str:
    return "direction" if rank == 1 else f"{rank} directions"
