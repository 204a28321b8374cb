"""`eigenveil plan` as a function of its arguments, and a planner that answers at once and remembers what it was asked."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import typer
from typer.testing import CliRunner, Result

from eigenveil.commands.plan import COMMAND
from eigenveil.core.accounting import Budget
from eigenveil.plan.candidates import candidate_of
from eigenveil.plan.facts import Facts, methods_for
from eigenveil.plan.recommendation import Recommendation, Verdict
from eigenveil.plan.rehearsal import Forecast, Interval
from eigenveil.plan.spectrum import Spectrum

ASKED = ("-n", "5000", "-k", "2", "--epsilon", "1", "--delta", "1e-6")
SMALL = (*ASKED, "-d", "6")

_app = typer.Typer(pretty_exceptions_enable=False)
COMMAND.join(_app)


def planned(*arguments: object, width: int = 100) -> Result:
    """Run the command; an exception that escaped it fails the test at once."""
    result = CliRunner().invoke(_app, [str(argument) for argument in arguments], env={"COLUMNS": str(width)})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert "Traceback" not in result.output
    return result


def refused(*arguments: object) -> str:
    """What the command says when it refuses: one line on stderr, nothing on stdout, and code 2."""
    result = planned(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def expected(method: str, captured: float, **other: Any) -> Forecast:
    """An forecast of this name and captured variance, with figures that nothing else has."""
    candidate = candidate_of(
        Facts(dim=6, rank=2, people=5000, budget=Budget(1.0, 1e-6), spectrum=Spectrum.guessed(6), sites=4), method
    )
    made = Forecast(
        method=method,
        captured=Interval(captured, captured - 0.03, captured + 0.02),
        clipped=Interval(captured, captured - 0.03, captured + 0.02),
        sine=Interval(0.31, 0.21, 0.41),
        nothing=0.07,
        noise=12.5,
        memory=2_345_000,
        rounds=7,
        traffic=67_800,
        min_people=421,
        refused="",
        guarantee=f"the guarantee of {method.partition('/')[0]}",
        params=candidate.params,
        unknown=candidate.unknown,
    )
    return replace(made, **other)


class Oracle:
    """A planner that remembers the `facts` and `methods` it was asked about, and every epsilon of its curve. Changes in place.

    Methods capture less from one to the next. `refuse` gives a reason to refuse one, and `best` is the place of the best one
    among the others.
    """

    def __init__(self, *, works: bool = True, refuse: Callable[[str], str] = lambda _: "", best: int = 0) -> None:
        self.facts: Facts | None = None
        self.methods: tuple[str, ...] | None = None
        self.epsilons: list[float] = []
        self._works, self._refuse, self._best = works, refuse, best

    def advise(self, facts: Facts, *, methods: Sequence[str] | None = None, watch: Any = None) -> Recommendation:
        self.facts, self.methods = facts, None if methods is None else tuple(methods)
        found = []
        for place, method in enumerate(methods or methods_for(facts)):
            watch(method)
            found.append(expected(method, 0.9 - 0.02 * place, refused=self._refuse(method)))
        possible = [each for each in found if not each.refused]
        verdict: Verdict = "refused" if not possible else "works" if self._works else "hopeless"
        best = possible[self._best] if possible else None
        return Recommendation(
            forecasts=tuple(found),
            best=best,
            verdict=verdict,
            reasons=("Because the oracle says so.",),
            instead=("Ask for fewer components.",),
        )

    def curve(self, facts: Facts, method: str, epsilons: Sequence[float], **_: Any) -> tuple[tuple[float, Forecast], ...]:
        self.epsilons += epsilons
        return tuple((at, expected(method, min(0.5 + at / 10, 0.9))) for at in epsilons)

    def install(self, patch: Any) -> "Oracle":
        """Stand in for the planner while a test runs."""
        patch.setattr("eigenveil.plan.recommendation.advise", self.advise)
        patch.setattr("eigenveil.plan.rehearsal.curve", self.curve)
        return self
