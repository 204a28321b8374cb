"""`PageState`: what a live page shows at one moment. The views of the commands make it from what they show on the terminal."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from eigenveil.core.ledger import Ledger
    from eigenveil.estimators.rounds import Round
    from eigenveil.model import Model

__all__ = ["PageBudget", "PageState", "scree_words"]


@final
@dataclass(frozen=True, slots=True)
class PageBudget:
    """What has been spent at this place, in `words`, and as a `share` of what may be, None where nothing limits it."""

    words: str
    share: float | None = None

    @classmethod
    def of_ledger(cls, ledger: "Ledger") -> "PageBudget":
        """What was spent of the budget of a ledger."""
        budget, spent = ledger.budget, ledger.epsilon()
        return cls(f"epsilon {spent:.3g} of {budget.epsilon:g}, at delta = {budget.delta:g}", spent / budget.epsilon)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PageState:
    """One moment of a run. Every number in it was released or is public, and the terminal of this party shows it as well.

    `now` says what is being done. `parties` are the others, each with whether it is there, and `there` is the word for that.
    `variances` are along the components as far as they are known, with the noise `floor` once there is a model.
    """

    title: str
    now: str
    facts: tuple[tuple[str, str], ...] = ()
    parties: tuple[tuple[str, bool], ...] = ()
    there: str = "connected"
    rounds: tuple["Round", ...] = ()
    spending: PageBudget | None = None
    variances: tuple[float, ...] = ()
    floor: float = 0.0
    final: bool = False
    warnings: tuple[str, ...] = ()

    @staticmethod
    def scree(model: "Model | None", rounds: "Sequence[Round]") -> "tuple[tuple[float, ...], float, bool]":
        """The variances, the noise floor, and whether they are final: those of the model, or of the last round that has any."""
        # The model divides by the released number of people. Rounds have plain sums, so only their shape can be compared.
        if model is not None:
            return tuple(model.explained_variance.tolist()), model.noise_floor, True
        return next((done.variances for done in reversed(rounds) if done.variances), ()), 0.0, False


def scree_words(variances: Sequence[float]) -> str:
    """Variances in one line, as shares of the first.

    >>> scree_words([50.0, 20.0, 5.0])
    '1, 0.4, 0.1 of the first'
    """
    # A table of zeros has variances of zero.
    first = variances[0] or 1.0
    return ", ".join(f"{value / first:.2g}" for value in variances[:8]) + " of the first"
