"""What a study may spend, what it has spent, and whether all studies of a dataset together keep its total budget.

The rule for the total. Let M be the sum of mu^2 over all studies of a dataset: what is reserved for open studies, and what was
spent by those that ended. Let D be the sum of what they take of delta beyond that. Then
    M <= mu_for(epsilon, delta - D)^2 and D < delta
for the (epsilon, delta) of the site's policy, but for the rounding of shares, as in every ledger (`ROUNDING`). Reservations
count in full, so studies that run at once cannot overspend.
The sums mean something only if all of these studies protect the same, a row or a person, under one neighbouring relation. So
every standing of a study that guarantees something has its `PrivacyUnit`, and a dataset has one. A charge that its owner makes by
hand may leave it out, and is taken to be of that kind.
"""

import math
import secrets
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, Literal, final

from eigenveil.core.accounting import ROUNDING, Budget, ExactSum, epsilon_of, fits, mu_for
from eigenveil.core.ledger import Charge
from eigenveil.core.unit import PrivacyUnit
from eigenveil.errors import BudgetExceeded, is_visible, require

__all__ = [
    "CURATOR",
    "OtherStudies",
    "RunningTotal",
    "State",
    "StudyBalance",
    "StudyBudget",
    "StudyRecord",
    "StudyStep",
    "alike",
    "limit_of",
    "require_fixed",
    "require_life",
    "require_study",
    "require_words",
]

State = Literal["open", "finished", "abandoned"]
# The second tolerance, for studies alone. A site computes the charges of a study from terms that another machine computed: their
# libraries differ in last digits and orders of operations. Charges are held to the study's own reserve with it. The total budget
# counts the reserve, with the one tolerance of all ledgers: a study may cost a part in 10^9 more than it reserved.
_OTHER_MACHINES: Final = 1e-9
_OPEN_AGAIN: Final = "Open the ledger without epsilon and delta"
_LONGEST: Final = 200
# Who adds the noise, as entries of a ledger say it, where one holder of all rows fits them.
CURATOR: Final = "one table"
# A replay asks for the same few budgets at every entry, and each takes a bisection.
_mu_for = lru_cache(maxsize=256)(mu_for)


def require_study(study: str) -> None:
    """Refuse anything but the digest of a study file: 64 hexadecimal digits in lower case."""
    good = isinstance(study, str) and len(study) == 64 and set(study) <= set("0123456789abcdef")
    require(good, f"study must be 64 hexadecimal digits, the digest of its file, got {str(study)[:80]!r}")


def require_words(name: str, text: str) -> None:
    """Refuse a name that is empty, long, or not all visible."""
    good = isinstance(text, str) and is_visible(text) and 0 < len(text) <= _LONGEST and text == text.strip()
    require(
        good,
        f"{name} must be printable text of 1 to {_LONGEST} characters, none invisible and at most two marks on a letter, with no "
        f"space at either end, got {str(text)[:80]!a}",
    )


def alike(name: str, other: str) -> bool:
    """Whether two names look the same to people: they differ only in case, or in how Unicode composes a character.

    >>> alike("Patients", "patients"), alike("patients 1", "patients 2")
    (True, False)
    """
    return unicodedata.normalize("NFKC", name).casefold() == unicodedata.normalize("NFKC", other).casefold()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StudyBudget:
    """What a study may spend, as joined. Without epsilon and delta there is no privacy: an exact result, or a known seed.

    >>> StudyBudget(
    ...     study="0" * 64,
    ...     title="heart study",
    ...     dataset="patients",
    ...     trust="masked",
    ...     epsilon=1.0,
    ...     delta=1e-6,
    ...     mu=0.23,
    ...     extra_delta=1e-9,
    ... ).private
    True
    """

    study: str  # The digest of its file.
    title: str  # Its name for people.
    dataset: str  # Budgets attach to this declared name, for as long as it is used.
    trust: str
    epsilon: float | None
    delta: float | None
    mu: float  # The most it may spend, in Gaussian-DP terms; infinite without privacy.
    extra_delta: float = 0.0  # What it takes of delta on top of what mu accounts for.
    party: str = ""  # Who takes part: one party must not repeat what another has said.
    unit: PrivacyUnit | None = None  # None without privacy, and for a charge by hand, which is of the kind of the others.

    @classmethod
    def of_release(
        cls, dataset: str, *, title: str, cost: Budget, unit: PrivacyUnit | None, mu: float, study: str | None = None
    ) -> "StudyBudget":
        """The account of a release, a stream or a fit of one table: its whole budget, whatever it will use."""
        return cls(
            # A random name, so that two fits of one table with the same settings are two studies.
            study=secrets.token_hex(32) if study is None else study,
            title=title,
            dataset=dataset,
            trust=CURATOR,
            epsilon=cost.epsilon,
            delta=cost.delta,
            mu=mu,
            unit=unit,
        )

    @property
    def called(self) -> str:
        """What errors call it. A fit on one's own table is charged in the same way, and is no study."""
        return f"{'the release' if self.trust == CURATOR else 'study'} {self.title!r}"

    def __post_init__(self) -> None:
        require_study(self.study)
        for name in ("title", "dataset", "trust", *(("party",) if self.party else ())):
            require_words(name, getattr(self, name))
        require((self.epsilon is None) == (self.delta is None), "epsilon and delta go together")
        if self.epsilon is not None and self.delta is not None:
            Budget(self.epsilon, self.delta)
            require(math.isfinite(self.epsilon), "epsilon must be finite; None says that there is no privacy")
        require(self.mu > 0, f"mu must be positive, got {self.mu}")
        # An infinite mu with a finite epsilon would let a study spend without limit under a guarantee.
        require(
            math.isinf(self.mu) == (self.epsilon is None),
            f"mu must be infinite exactly where epsilon is None, got mu = {self.mu} with epsilon = {self.epsilon}",
        )
        require(0 <= self.extra_delta < 1, f"extra_delta must lie in [0, 1), got {self.extra_delta}")

    @property
    def private(self) -> bool:
        return self.epsilon is not None

    @property
    def names_unit(self) -> bool:
        """Whether it must say what it protects."""
        return self.private and self.trust != CURATOR

    def same(self, other: "StudyBudget") -> bool:
        """Whether these are the same terms, but for rounding: another version of a library may round differently."""
        near = all(
            # The absolute tolerance is for `extra_delta`, which may be zero or as small as a probability of failure.
            math.isclose(left, right, rel_tol=_OTHER_MACHINES, abs_tol=1e-18)
            for left, right in ((self.mu, other.mu), (self.extra_delta, other.extra_delta))
        )
        return near and replace(self, mu=other.mu, extra_delta=other.extra_delta) == other

    def values(self) -> dict[str, Any]:
        """Plain values for an entry; an infinite mu is null."""
        named = {name: getattr(self, name) for name in ("title", "trust", "epsilon", "delta", "party")}
        return {**named, "beyond": self.extra_delta, "mu": _finite(self.mu), **_unit_values(self.unit)}

    @classmethod
    def of(cls, study: str, dataset: str, values: Mapping[str, Any]) -> "StudyBudget":
        read = {**values, "mu": _number(values["mu"]), "unit": _unit_from(values)}
        return cls(study=study, dataset=dataset, extra_delta=read.pop("beyond"), **read)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StudyStep:
    """One step of a study: the message that came, what was said to it, byte for byte, and what that cost.

    `is_stored` is False where the bytes are no longer stored, or never were; then `incoming` and `replies` are empty.
    """

    number: int
    incoming: bytes = field(repr=False)
    replies: tuple[bytes, ...] = field(repr=False)
    charges: tuple[Charge, ...]
    is_stored: bool = True


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecord:
    """A study as the ledger has it: joined just now (`fresh`) or before, its private randomness, and its steps in order.

    `secret` is 32 random bytes, made once for the study. Once a study has `finished` it is wiped, and empty here. Steps are read
    from the ledger one at a time whenever they are gone through, so it must be open then.
    """

    fresh: bool
    secret: bytes = field(repr=False)
    steps: Sequence[StudyStep]
    finished: bool


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StudyBalance:
    """How a study stands after an entry: what it may spend, what it has spent, and what of that counts for its dataset.

    `square` is the sum of mu^2 charged; `has_released` whether anything has left. Every entry that changes a standing repeats it,
    so the last entry of a study has all of it, sealed. `exact` is that sum without rounding: it decides, and is in no entry,
    because it follows from the charges. `rounding` is the tolerance by which charges may exceed the reserve.
    """

    mu: float
    extra_delta: float
    life: Budget | None
    state: State = "open"
    entries: int = 0
    square: float = 0.0
    has_released: bool = False
    unit: PrivacyUnit | None = None
    exact: ExactSum = field(default=ExactSum(), compare=False, repr=False)
    rounding: float = field(default=ROUNDING, compare=False, repr=False)

    @classmethod
    def new(cls, account: StudyBudget, life: Budget | None) -> "StudyBalance":
        rounding = ROUNDING if account.trust == CURATOR else _OTHER_MACHINES
        return cls(mu=account.mu, extra_delta=account.extra_delta, life=life, unit=account.unit, rounding=rounding)

    @property
    def guarantees(self) -> bool:
        """Whether it has a guarantee that counts: not without privacy, and not if it ended before anything was released."""
        return math.isfinite(self.mu) and (self.counts > 0 or self.extra_delta > 0)

    @property
    def counts(self) -> float:
        """The squared mu that counts for the dataset: the reserve while open, what was spent afterwards.

        Without privacy there is no number for what was spent: anything said counts without bound.
        """
        # In full, whatever was spent so far: it may still spend the rest without being asked again.
        if self.state == "open":
            return self.mu * self.mu
        if math.isinf(self.mu):
            return math.inf if self.has_released else 0.0
        # `charged` lets rounding exceed the reserve a little; that little is not counted either.
        return min(self.square, self.mu * self.mu)

    @property
    def counts_exactly(self) -> ExactSum:
        """The same without rounding."""
        if self.state == "open" or math.isinf(self.mu) or self.exact.units >= ExactSum().square(self.mu).units:
            return ExactSum().square(math.sqrt(self.counts) if math.isinf(self.mu) else self.mu)
        return self.exact

    @property
    def spent(self) -> float:
        """The mu of what has been released; infinite where anything left without privacy."""
        return math.inf if math.isinf(self.mu) and self.has_released else math.sqrt(self.square)

    def charged(self, charges: Sequence[Charge], *, sends: bool) -> "StudyBalance":
        """After one more step; `BudgetExceeded` if its charges do not fit in what is reserved."""
        for charge in charges:
            require(0 <= charge.mu < math.inf, f"a charge must be finite and not negative, got {charge.mu}")
        # Under Gaussian DP the squares of mu add up.
        square = math.fsum([self.square, *(charge.mu * charge.mu for charge in charges)])
        exact = self.exact
        for charge in charges:
            exact = exact.square(charge.mu)
        if not fits(exact.value, self.mu, rounding=self.rounding):
            mu = math.sqrt(max(square - self.square, 0.0))
            raise BudgetExceeded(
                f"charges of mu = {mu:.4g} on top of mu = {math.sqrt(self.square):.4g} already spent exceed the "
                f"mu = {self.mu:.4g} reserved for the study. Nothing was written and nothing may leave"
            )
        return replace(self, entries=self.entries + 1, square=square, exact=exact, has_released=self.has_released or sends)

    def closed(self, state: State) -> "StudyBalance":
        return replace(self, state=state)

    def values(self) -> dict[str, Any]:
        """Plain values for an entry; infinite numbers are null."""
        named = {name: getattr(self, name) for name in ("state", "entries", "square")}
        sums = {"mu": _finite(self.mu), "beyond": self.extra_delta, "said": self.has_released}
        life = None if self.life is None else {"epsilon": _finite(self.life.epsilon), "delta": self.life.delta}
        return {**named, **sums, "life": life, **_unit_values(self.unit)}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "StudyBalance":
        life = values["life"]
        life = None if life is None else Budget(_number(life["epsilon"]), life["delta"])
        read = {**values, "mu": _number(values["mu"]), "life": life, "unit": _unit_from(values)}
        return cls(extra_delta=read.pop("beyond"), has_released=read.pop("said"), **read)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OtherStudies:
    """All studies of a dataset: how many, the sum of squared mu that counts, and the sum of what goes beyond.

    >>> OtherStudies.of([StudyBalance(mu=3.0, extra_delta=1e-9, life=None), StudyBalance(mu=4.0, extra_delta=0.0, life=None)])
    OtherStudies(studies=2, counts=25.0, extra_delta=1e-09)
    """

    studies: int
    counts: float
    extra_delta: float
    # What decides: the same sum as `counts`, of charges that were not rounded before.
    exact: float = field(default=0.0, compare=False, repr=False)

    @classmethod
    def of(cls, standings: Iterable[StudyBalance]) -> "OtherStudies":
        """The sums over these studies; the same whatever their order."""
        total = RunningTotal()
        for standing in standings:
            total.change(None, standing)
        return total.together

    def within(self, life: Budget | None) -> bool:
        """Whether the total budget holds. Without one, or with an infinite epsilon, it always does."""
        if life is None or math.isinf(life.epsilon):
            return True
        # The delta that masks may fail with is gone whatever epsilon is, so only the rest of delta is left for mu.
        return self.extra_delta < life.delta and fits(self.exact, limit_of(life, self.extra_delta))

    def values(self) -> dict[str, Any]:
        """Plain values for an entry; an infinite sum is null."""
        return {"studies": self.studies, "counts": _finite(self.counts), "beyond": self.extra_delta}


@final
class RunningTotal:
    """`OtherStudies.of` a dataset whose studies change one at a time, however many there are. Changes in place.

    >>> from eigenveil.core.unit import Neighbours
    >>> total, row = RunningTotal(), PrivacyUnit("row", Neighbours.ADD_REMOVE)
    >>> for mu in (0.1, 0.2, 0.3):
    ...     total.change(None, StudyBalance(mu=mu, extra_delta=0.0, life=None, unit=row))
    >>> total.together == OtherStudies.of(StudyBalance(mu=mu, extra_delta=0.0, life=None, unit=row) for mu in (0.3, 0.1, 0.2))
    True
    """

    def __init__(self) -> None:
        # How many, and their sums of what counts, of extra delta, and of what counts without rounding.
        self._sums = (0, ExactSum(), ExactSum(), ExactSum())
        self._units: Counter[PrivacyUnit] = Counter()

    def change(self, before: StudyBalance | None, after: StudyBalance) -> None:
        """A study stands as `after` says, and was new or stood as `before` says."""
        self._sums = self._changed(before, after)
        for standing, sign in ((before, -1), (after, 1)):
            if standing is not None and standing.guarantees and standing.unit is not None:
                self._units[standing.unit] += sign

    def _changed(self, before: StudyBalance | None, after: StudyBalance) -> tuple[int, ExactSum, ExactSum, ExactSum]:
        studies, counts, extra, exact = self._sums
        for standing, sign in ((before, -1), (after, 1)):
            if standing is not None:
                own = standing.counts_exactly
                studies += sign
                counts, extra = counts.add(standing.counts, sign), extra.add(standing.extra_delta, sign)
                exact = ExactSum(exact.units + sign * own.units, exact.infinite + sign * own.infinite)
        return studies, counts, extra, exact

    @property
    def together(self) -> OtherStudies:
        return _rounded(*self._sums)

    def after(self, before: StudyBalance | None, after: StudyBalance) -> OtherStudies:
        """What the sums would be after a change."""
        return _rounded(*self._changed(before, after))

    @property
    def units(self) -> set[PrivacyUnit]:
        """What their guarantees protect."""
        return {unit for unit, count in self._units.items() if count > 0}


def _rounded(studies: int, counts: ExactSum, extra: ExactSum, exact: ExactSum) -> OtherStudies:
    return OtherStudies(studies=studies, counts=counts.value, extra_delta=extra.value, exact=exact.value)


def require_fixed(fixed: Budget | None, wanted: Budget | None, dataset: str, *, instead: str = _OPEN_AGAIN) -> None:
    """Refuse to change a total budget: the first use of the dataset has fixed it."""
    if fixed is not None and fixed != wanted:
        raise ValueError(
            f"the total budget of dataset {dataset!r} is ({fixed.epsilon:g}, {fixed.delta:g}) and was fixed before. {instead}"
        )


def require_life(
    total: OtherStudies, others: Iterable[StudyBalance], standing: StudyBalance, *, dataset: str, called: str
) -> None:
    """Raise `BudgetExceeded`, with all numbers, unless `standing` fits in the dataset's total budget, next to the others.

    `total` is what all of them add up to.
    """
    life = standing.life
    if life is None or total.within(life):
        return
    others = list(others)
    # From the plainest reason to the finest: the numbers at the end make sense only if all are finite.
    opening = f"{called} does not fit in the total budget of dataset {dataset!r}"
    allowed = (
        f"Its budget allows epsilon = {life.epsilon:g} at delta = {life.delta:g} in total, for as long as it is used. Nothing "
        "was written"
    )
    if math.isinf(standing.mu):
        raise BudgetExceeded(f"{opening}: it has no privacy. {allowed}")
    if any(math.isinf(other.counts) for other in others):
        raise BudgetExceeded(
            f"{opening}: a study without privacy was joined before, so no guarantee can be kept any more. {allowed}"
        )
    if total.extra_delta >= life.delta:
        raise BudgetExceeded(
            f"{opening}: masks that may fail already take {total.extra_delta - standing.extra_delta:.4g} of delta, and the study "
            f"asks for {standing.extra_delta:.4g} more. {allowed}"
        )
    # All numbers as epsilon at the same delta, so that the reader can compare them.
    delta = life.delta - total.extra_delta
    spent = math.sqrt(math.fsum(other.square for other in others))
    reserved = math.sqrt(math.fsum(other.counts for other in others if other.state == "open"))
    numbers = ((spent, "spent"), (reserved, "reserved by open studies"), (standing.mu, "asked"))
    each = ", ".join(f"{epsilon_of(mu, delta):.4g} {label}" for mu, label in numbers if mu > 0 or label != numbers[1][1])
    together = epsilon_of(math.sqrt(total.counts), delta)
    raise BudgetExceeded(f"{opening}: epsilon {each}, together {together:.4g}. {allowed}")


def _unit_values(unit: PrivacyUnit | None) -> dict[str, Any]:
    return {} if unit is None else {"unit": unit.values()}


def _unit_from(values: Mapping[str, Any]) -> PrivacyUnit | None:
    return PrivacyUnit.read(values["unit"]) if "unit" in values else None


def limit_of(life: Budget, extra_delta: float) -> float:
    """The mu that a total budget allows, where so much of delta is taken."""
    return _mu_for(life.epsilon, life.delta - extra_delta) if extra_delta < life.delta else 0.0


def _finite(number: float) -> float | None:
    # JSON has no infinity.
    return None if math.isinf(number) else number


def _number(value: float | None) -> float:
    return math.inf if value is None else float(value)
