"""`Guarantee`: what a result guarantees, to whom and against whom, on one page that can be signed.

Every result carries one. A run without privacy says that there is none, and a run with a known seed that it protects no one.
The sentences come from `GuaranteeFacts`. This module lays out the page, computes the best guess and adds up the cost.
"""

import math
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any, Final, Literal, final

from eigenveil.core.accounting import Budget, epsilon_of, normal_cdf
from eigenveil.core.ledger import Charge
from eigenveil.core.unit import PrivacyUnit
from eigenveil.errors import plain as visible
from eigenveil.errors import require, shown

__all__ = ["SEEDED", "SEEN_BY", "Guarantee", "Loss", "plain", "price"]

SEEDED: Final = "reproducible, not private: the noise came from a known seed. Anyone who knows the seed can subtract it"
# So begins what `released` lists last, if some see more than everyone does.
SEEN_BY: Final = "seen by "
_SMALL, _LARGE = 1e-9, 1e6
# Squares of charges are added up, and a file may hold any number.
_LARGEST_MU: Final = 1e150
# More releases than this are grouped, so that the page stays one page.
_MOST_LISTED: Final = 6
# A width that no paragraph reaches.
_UNBROKEN: Final = 10**9
_NUMBER: Final = re.compile(r"\d+")

# What someone is taken to know all others of, where it is not rows.
_OTHERS: Final = {"user": "histories", "interaction": "interactions"}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """Who is protected (`unit`), between which tables (`neighbours`), how much, from whom, and what that rests on.

    Without a guarantee, `epsilon` and `delta` are None. The guarantee covers what `released` lists. The sentence in
    `neighbours` describes `relation`, the value of a `Neighbours`. For programs, `protects` says both. A known
    seed (`reproducible`) means that no person is protected.

    `print` shows one page, 80 columns wide. `to_text` is the same text, one paragraph a line.

    >>> print(Guarantee.none("exact PCA was asked for"))
    No privacy: exact PCA was asked for.
    """

    epsilon: float | None
    delta: float | None
    unit: str = ""
    neighbours: str = ""
    against: str = ""
    released: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    calibration: str = ""
    caveats: tuple[str, ...] = ()
    charges: tuple[Charge, ...] = field(default=())
    relation: str = ""
    reproducible: bool = False
    clipping: str = ""
    protects: PrivacyUnit | None = None

    def __post_init__(self) -> None:
        require((self.epsilon is None) == (self.delta is None), "epsilon and delta go together")
        if self.epsilon is not None and self.delta is not None:
            # Only for its checks.
            Budget(self.epsilon, self.delta)
        for charge in self.charges:
            require(0 <= charge.mu < _LARGEST_MU, f"a charge must lie between 0 and {_LARGEST_MU}, got {charge.mu}")

    @classmethod
    def none(cls, why: str) -> "Guarantee":
        """No guarantee at all, and why."""
        return cls(epsilon=None, delta=None, caveats=(why,))

    @property
    def private(self) -> bool:
        """Whether anybody is protected: there is a guarantee, and the noise did not come from a known seed."""
        return self.epsilon is not None and not self.reproducible

    @property
    def title(self) -> str:
        """One line: how strong the guarantee is and for whom, or that there is none."""
        if self.epsilon is None or self.delta is None:
            return f"No privacy: {'; '.join(self.caveats)}."
        # The first words of the unit alone: the page has the rest under "Who is protected".
        return self._strength(self.unit.partition(",")[0])

    @property
    def headline(self) -> str:
        """One line: how strong the guarantee is, and for whom exactly."""
        return self.title if self.epsilon is None else self._strength(self.unit)

    def _strength(self, who: str) -> str:
        strength = f"({plain(self.epsilon or 0.0)}, {plain(self.delta or 0.0)})-differential privacy for {who}"
        return strength if self.private else f"NOT PRIVATE (known seed). Would be {strength}"

    def parts(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The parts of the page: a label, and one paragraph or the items of a list."""
        if self.epsilon is None:
            return
        listed = {
            "Who is protected": (self._if_secret(self.unit),),
            "What it means": (self._meaning(),),
            "From whom": (self._if_secret(self.against),),
            "What is released": (self._released(),),
            "Neighbouring tables": (self.neighbours,),
            "Assumptions": self.assumptions,
            "Clipping": (self.clipping,),
            "Noise": (self.calibration,),
            "Note": self.caveats,
            "Cost": (self._cost(),),
        }
        for label, texts in listed.items():
            if sentences := tuple(_sentence(text) for text in texts if text):
                yield label, sentences

    def to_text(self) -> str:
        """The whole guarantee as text, one paragraph a line."""
        return self._page(_UNBROKEN)

    def __str__(self) -> str:
        return self._page(80)

    def _page(self, width: int) -> str:
        first = f"Guarantee: {self.title}." if self.private else _sentence(self.title)
        lines = _wrapped(first, width, "", "")
        for label, texts in self.parts():
            if len(texts) == 1:
                lines += _wrapped(f"{label}: {texts[0]}", width, "", "  ")
            else:
                lines += [f"{label}:", *(line for text in texts for line in _wrapped(text, width, "  - ", "    "))]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The page in a notebook.

        >>> "No privacy" in Guarantee.none("exact PCA was asked for")._repr_html_()
        True
        """
        return str(import_module("eigenveil.show.notebook").html_of(self))

    @property
    def best_guess(self) -> float:
        """How often, at most, an attacker tells which of two equally likely neighbouring tables is real. 1 without a guarantee.

        All noise here is Gaussian and accounted for exactly, so the guarantee is that of one Gaussian mechanism with the mu of
        its budget. The best test between its two outcomes is right with probability Phi(mu / 2). For budgets beyond any that
        are in use, it is what (epsilon, delta) allow for any noise: (exp(epsilon) + delta) / (1 + exp(epsilon)).

        >>> round(Guarantee(epsilon=1.0, delta=1e-6).best_guess, 4)
        0.5471
        """
        if not self.private or self.epsilon is None or self.delta is None:
            return 1.0
        if not _SMALL <= self.epsilon <= _LARGE:
            # A file may hold any number, and the mu of such budgets takes forever.
            # Divided by exp(epsilon), which may overflow.
            small = math.exp(-self.epsilon)
            return min(1.0, (1 + self.delta * small) / (1 + small))
        return normal_cdf(Budget(self.epsilon, self.delta).mu / 2)

    def _meaning(self) -> str:
        if not self.private:
            return "nothing. Anyone who knows the seed can subtract the noise"
        replaced, noun = self.relation == "replace-one", self._noun
        compared = (
            f"whichever of two {_OTHERS.get(noun, 'rows')} {_with_article(noun)} has"
            if replaced
            else f"with or without any one {noun}"
        )
        return f"the result is almost equally likely {compared}. {self.guess}"

    @property
    def guess(self) -> str:
        """How often the best guess is right, in two sentences: easier to grasp than epsilon. Empty if nothing is protected.

        >>> Guarantee(epsilon=1.0, delta=1e-6, unit="each patient").guess
        "Someone who knows all other rows guesses a patient's presence correctly at most 55% of the time. Chance is 50%."
        """
        if not self.private:
            return ""
        percent, noun = 100 * self.best_guess, self._noun
        # Rounded up, never down; more digits only where 100 would read as certainty.
        digits = next((digits for digits in range(16) if _rounded_up(percent, digits) < 100), 0)
        often = f"at most {_rounded_up(percent, digits):.{digits}f}% of the time. Chance is 50%."
        others, owner = _OTHERS.get(noun, "rows"), f"{_with_article(noun)}'s"
        replaced = self.relation == "replace-one"
        secret = f"correctly which of two {others} is {owner}" if replaced else f"{owner} presence correctly"
        return f"Someone who knows all other {others} guesses {secret} {often}"

    @property
    def _noun(self) -> str:
        """What is protected, in one word: a person, unless `unit` says otherwise."""
        noun = self.unit.partition(",")[0].removeprefix("each ")
        return "interaction" if self.relation == "interaction" else noun if noun.isalpha() else "person"

    def _if_secret(self, text: str) -> str:
        """The text, or that it would be true of secret noise."""
        return text if self.private or not text else f"no one. With secret noise it would be: {text}"

    def _released(self) -> str:
        """What everyone sees, and then what only some see."""
        everyone, some = ([item for item in self.released if item.startswith(SEEN_BY) is only] for only in (False, True))
        listed = "; ".join(everyone)
        return f"to everyone: {'. '.join((listed, *map(_capital, some)))}" if some else listed

    def _cost(self) -> str:
        """What each release cost, all of them together, and what the budget allows."""
        budget = f"({plain(self.epsilon or 0.0)}, {plain(self.delta or 0.0)})"
        allowed = None
        if self.epsilon is not None and self.delta is not None and _SMALL <= self.epsilon <= _LARGE:
            allowed = Budget(self.epsilon, self.delta).mu
        if not self.charges:
            return f"within {budget}" + ("" if allowed is None else f", which is mu = {allowed:.6g}")
        count = "one release" if len(self.charges) == 1 else f"{len(self.charges)} releases"
        total = f"{count}: {', '.join(_listed(self.charges))}. Together mu = {self.mu:.6g}"
        if allowed is None:
            return f"{total}, within {budget}"
        # Spending stays a little below the budget, so that rounding never refuses a release.
        exhausted = self.mu > allowed * (1 - 1e-6)
        return f"{total}, which is {budget}" if exhausted else f"{total}, of mu = {allowed:.6g} that {budget} allows"

    @property
    def mu(self) -> float:
        """The Gaussian-DP parameter of all charges together."""
        return _together(self.charges)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        charges = tuple({"label": charge.label, "mu": charge.mu} for charge in self.charges)
        protects = None if self.protects is None else self.protects.values()
        return {**asdict(self), "charges": charges, "protects": protects}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Guarantee":
        """The guarantee that `to_dict` wrote; anything else is a `ValueError`.

        >>> Guarantee.from_dict(Guarantee.none("x").to_dict()) == Guarantee.none("x")
        True
        """
        expected = set(cls.__dataclass_fields__)
        require(isinstance(values, Mapping), "a guarantee must be a table with its fields as keys")
        parsed = dict(values)
        lacking = sorted(expected - set(parsed))
        wrong = f"lacks {', '.join(lacking)}" if lacking else "has unknown fields"
        # Nothing that is missing is guessed: it says who is protected.
        require(
            set(parsed) == expected,
            f"its guarantee {wrong}. Another version of Eigenveil "
            "wrote it, or it was edited: make it again, or read it with the version that wrote it",
        )
        try:
            for name in ("released", "assumptions", "caveats"):
                parsed[name] = tuple(str(item) for item in parsed[name])
            parsed["charges"] = tuple(Charge(str(c["label"]), _number(c["mu"], "a charge")) for c in parsed["charges"])
            for name in ("epsilon", "delta"):
                parsed[name] = None if parsed[name] is None else _number(parsed[name], name)
            for name in ("unit", "neighbours", "against", "calibration", "relation", "clipping"):
                require(isinstance(parsed[name], str), f"{name} of a guarantee must be text")
            parsed["protects"] = None if parsed["protects"] is None else PrivacyUnit.read(parsed["protects"])
            require(isinstance(parsed["reproducible"], bool), "reproducible of a guarantee must be true or false")
        except (TypeError, KeyError) as error:
            raise ValueError(f"a guarantee is malformed: {error}") from error
        return cls(**parsed)


def _number(value: Any, name: str) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    require(good or value == math.inf, f"{name} of a guarantee must be a number, got {shown(value)}")
    return float(value)


def plain(number: float) -> str:
    """The short form of a number if it is exact, otherwise every digit: a guarantee is not rounded."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeio' else 'a'} {noun}"


def _sentence(text: str) -> str:
    """With a capital and a full stop."""
    return _capital(text) + ("" if text.endswith(".") else ".")


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _wrapped(text: str, width: int, first: str, later: str) -> list[str]:
    # Long words stay whole: people copy names of sites and links from here.
    return textwrap.wrap(
        visible(text), width, initial_indent=first, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )


def _listed(charges: Sequence[Charge]) -> Iterator[str]:
    """Each release with its mu. Of many, those whose labels differ in one number are one item, and the smallest are added up."""
    groups: dict[str, list[Charge]] = {}
    for index, charge in enumerate(charges):
        # Only the first number: products of two fits, "1 of 4" and "1 of 8", must stay apart.
        pattern = _NUMBER.sub("#", charge.label, count=1) if len(charges) > _MOST_LISTED else str(index)
        groups.setdefault(pattern, []).append(charge)
    largest = sorted(groups.values(), key=_together, reverse=True)[:_MOST_LISTED]
    for group in groups.values():
        if group in largest:
            yield f"{_label(group)} (mu {_together(group):.4g})"
    if rest := [charge for group in groups.values() if group not in largest for charge in group]:
        yield f"{len(rest)} smaller one{'s' * (len(rest) != 1)} (mu {_together(rest):.4g})"


def _label(group: Sequence[Charge]) -> str:
    """`power product 1-4 of 4`, for charges whose labels differ in that number alone."""
    first, last = group[0].label, group[-1].label
    if first == last:
        return first if len(group) == 1 else f"{first}, {len(group)} times"
    numbers = (number[0] for number in (_NUMBER.search(first), _NUMBER.search(last)) if number is not None)
    return _NUMBER.sub("-".join(numbers), first, count=1)


def _together(charges: Iterable[Charge]) -> float:
    # Gaussian releases compose by adding squares of mu. `fsum` rounds once, however many there are.
    return math.sqrt(math.fsum(charge.mu**2 for charge in charges))


def _rounded_up(number: float, digits: int) -> float:
    scale = float(10**digits)
    return math.ceil(number * scale) / scale


@final
@dataclass(frozen=True, slots=True)
class Loss:
    """One kind of release to be priced: its noise distribution, the noise scale over the sensitivity, and how many times."""

    law: Literal["gaussian", "laplace"]
    multiplier: float
    count: int = 1

    def __post_init__(self) -> None:
        require(self.multiplier > 0, f"the noise multiplier must be positive, got {self.multiplier}")
        require(self.count >= 1, f"the count of a release must be at least 1, got {self.count}")


def price(releases: Sequence[Loss], *, delta: float) -> float:
    """The epsilon, at `delta`, of all these releases together.

    Gaussian releases alone have a closed form. Others are composed numerically and pessimistically by dp-accounting's privacy
    loss distributions, after the Gaussian part has been reduced to one release.

    >>> round(price([Loss("gaussian", 4.0, count=4)], delta=1e-6), 6) == round(epsilon_of(0.5, 1e-6), 6)
    True
    """
    require(len(releases) > 0, "there must be at least one release to price, got none")
    require(0 < delta < 1, f"delta must lie in (0, 1), got {delta}")
    gaussian = [math.sqrt(r.count) / r.multiplier for r in releases if r.law == "gaussian"]
    others = [r for r in releases if r.law != "gaussian"]
    if not others:
        return epsilon_of(math.hypot(*gaussian), delta)
    import dp_accounting
    from dp_accounting import pld

    accountant: Any = pld.PLDAccountant(value_discretization_interval=1e-4)
    if gaussian:
        accountant.compose(dp_accounting.GaussianDpEvent(1 / math.hypot(*gaussian)))
    for release in others:
        accountant.compose(dp_accounting.LaplaceDpEvent(release.multiplier), release.count)
    return float(accountant.get_epsilon(delta))
