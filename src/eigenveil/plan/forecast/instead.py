"""What would make an answer a fair one where it is not: more budget or people, fewer columns or components, or other trust."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from eigenveil.plan.forecast.facts import METHODS, Facts, Setting, parts_of
from eigenveil.plan.forecast.methods import method_plan
from eigenveil.plan.forecast.trials import RehearsalTrial, glimpse
from eigenveil.plan.spectrum import Spectrum
from eigenveil.privacy import Budget

__all__ = ["FAIR", "others_that_would_do"]

# An answer that captures this much of the variance is a fair one.
FAIR: Final = 0.7
# How far to look: an epsilon that guarantees next to nothing, and more people than there are.
_LARGEST_EPSILON, _MOST_PEOPLE = 100.0, 10**9
# Neighbouring candidates differ by about this factor.
_FINE: Final = 1.15
_FEWEST_COLUMNS: Final = 5

_Candidate = TypeVar("_Candidate")


def others_that_would_do(facts: Facts, method: str) -> Iterator[str]:
    """One change of the `facts` at a time after which `method` would capture a fair share, in full sentences."""

    def fair(other: Facts) -> bool:
        candidate = method_plan(other, method)
        # With few columns random directions have much already, and a fair answer must be worth more than those.
        least = max(FAIR, (1 + other.spectrum.at_random(other.rank)) / 2)
        return not candidate.refused and glimpse(RehearsalTrial.of(other, candidate)) >= least

    epsilon = _first(
        _upwards(facts.budget.epsilon, _LARGEST_EPSILON),
        lambda candidate: fair(replace(facts, budget=Budget(candidate, facts.budget.delta))),
    )
    if epsilon is not None:
        yield f"With epsilon = {epsilon:g} and all else the same, {method} should capture {FAIR:g}."
    people = _first(
        [round(candidate) for candidate in _upwards(float(facts.people), float(_MOST_PEOPLE))],
        lambda candidate: fair(replace(facts, people=candidate)),
    )
    if people is not None:
        yield f"With {people} people, {people / facts.people:.2g} times as many, {method} should capture {FAIR:g}."
    columns = _first(
        _downwards(facts.dim, max(_FEWEST_COLUMNS, 2 * facts.rank)), lambda dim: fair(_with_columns(facts, dim))
    )
    if columns is not None:
        yield (
            f"With {columns} of the {facts.dim} columns, from a public list, {method} should capture {FAIR:g} or more of what "
            "these have, if their spectrum falls in the same way and rows fill as much of their ball."
        )
    rank = _first(list(range(facts.rank - 1, 0, -1)), lambda candidate: fair(replace(facts, rank=candidate)))
    if rank is not None:
        yield f"{_components(rank)}, in place of {facts.rank}, should be found to {FAIR:g}."
    yield from _other_trust(facts, method)


def _other_trust(facts: Facts, method: str) -> Iterator[str]:
    """Settings that were not said to be acceptable and would do."""
    _, name = parts_of(method)
    others: tuple[Setting, ...] = ("masked", "peers", "hub")
    for setting in others:
        other = f"{setting}/{name}"
        if facts.sites == 1 or setting in facts.settings or other not in METHODS:
            continue
        wider = replace(facts, trust=(*facts.settings, setting))
        candidate = method_plan(wider, other)
        if not candidate.refused and glimpse(RehearsalTrial.of(wider, candidate)) >= FAIR:
            yield f"If {setting!r} were acceptable, {other} should capture {FAIR:g}: it guarantees {candidate.guarantee}."
            return


def _first(candidates: Sequence[_Candidate], good: Callable[[_Candidate], bool]) -> _Candidate | None:
    """The first of `candidates` that is good, if all after a good one are: by bisection. None where the last is not."""
    if not candidates or not good(candidates[-1]):
        return None
    low, high = -1, len(candidates) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if good(candidates[middle]) else (middle, high)
    return candidates[high]


def _upwards(start: float, most: float) -> list[float]:
    """Numbers of two digits above `start`, each about so much more than the one before."""
    if start >= most:
        return []
    steps = math.ceil(math.log(most / start) / math.log(_FINE))
    found = sorted({_two_digits(start * _FINE**step) for step in range(1, steps + 1)})
    return [number for number in found if start < number <= most]


def _two_digits(number: float) -> float:
    """Rounded up to two digits."""
    unit = 10.0 ** (math.floor(math.log10(number)) - 1)
    return float(f"{math.ceil(number / unit - 1e-9) * unit:.2g}")


def _downwards(start: int, least: int) -> list[int]:
    """Whole numbers below `start`, each about so much less than the one before."""
    found, number = [], float(start)
    while number / _FINE >= least:
        number /= _FINE
        found.append(int(number))
    return [number for number in dict.fromkeys(found) if number < start]


def _with_columns(facts: Facts, dim: int) -> Facts:
    values = facts.spectrum.values[:dim]
    spectrum = Spectrum(values * (facts.spectrum.fill / values.sum()), facts.spectrum.source)
    return replace(facts, dim=dim, spectrum=spectrum)


def _components(rank: int) -> str:
    return "One component" if rank == 1 else f"{rank} components"
