"""`Guarantee`: what a result guarantees, to whom and against whom, in words that can be signed.

Every result carries one. A run without privacy says so. A published calibration says what it rests on. A run with a known seed
says that it protects nobody. The sentences are composed from facts by `GuaranteeFacts`.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, final

from scipy.special import expit, ndtr

from eigenveil.errors import require
from eigenveil.privacy.accounting import Budget
from eigenveil.privacy.ledger import Charge

__all__ = ["SEEDED", "Guarantee", "plain"]

SEEDED: Final = (
    "reproducible, not private: the noise came from a known seed, and anyone who knows the seed can subtract it"
)
_SMALL, _LARGE = 1e-9, 1e6
# Older files lack the fields `relation` and `reproducible`; these words in their sentences say the same.
_OLD_SEEDED: Final = "reproducible, not private"
_OLD_RELATIONS: Final = {
    "(add/remove)": "add-remove",
    "(zero-out)": "zero-out",
    "(replace-one)": "replace-one",
    "(one interaction)": "interaction",
}


@final
@dataclass(frozen=True, slots=True)
class Guarantee:
    """Who is protected (`unit`), between which tables (`neighbours`), how strongly, from whom, and on what assumptions.

    Without a guarantee `epsilon` and `delta` are None. The covered results are listed in `released`. The `Neighbours` value that
    `neighbours` describes is `relation`. If `reproducible`, the noise came from a known seed, so nobody is protected.

    >>> print(Guarantee.none("exact PCA was asked for").words())
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

    def __post_init__(self) -> None:
        require((self.epsilon is None) == (self.delta is None), "epsilon and delta go together")
        if self.epsilon is not None and self.delta is not None:
            Budget(self.epsilon, self.delta)
        for charge in self.charges:
            require(0 <= charge.mu < math.inf, f"a charge must be finite and not negative, got {charge.mu}")

    @classmethod
    def none(cls, why: str) -> "Guarantee":
        """No guarantee at all, and why."""
        return cls(None, None, caveats=(why,))

    @property
    def private(self) -> bool:
        """Whether anybody is protected: there is a guarantee, and the noise did not come from a known seed."""
        return self.epsilon is not None and not self.reproducible

    @property
    def headline(self) -> str:
        """One line: the guarantee, or that there is none."""
        if self.epsilon is None or self.delta is None:
            return f"No privacy: {'; '.join(self.caveats)}."
        guarantee = f"({plain(self.epsilon)}, {plain(self.delta)})-differential privacy for {self.unit}"
        return guarantee if self.private else f"NOT PRIVATE (known seed). Would be {guarantee}"

    def words(self) -> str:
        """The whole guarantee as text."""
        if self.epsilon is None:
            return self.headline
        lines = [
            self.headline + ".",
            f"What that means: {self._meaning()}.",
            f"Neighbouring tables: {self.neighbours}.",
            f"Protected from: {self.against}.",
            f"Covers: {'; '.join(self.released)}.",
            *(f"Assumes: {assumption}." for assumption in self.assumptions),
            f"Calibration: {self.calibration}.",
            *(f"Caveat: {caveat}." for caveat in self.caveats),
            f"Ledger: {len(self.charges)} charge{'s' if len(self.charges) != 1 else ''}, together mu = {self.mu:.6g}.",
            *(f"  {charge.label}: mu = {charge.mu:.6g}" for charge in self.charges),
        ]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.words()

    @property
    def best_guess(self) -> float:
        """How often, at most, an attacker picks the right one of two equally likely neighbouring tables; 1 without privacy.

        All noise here is Gaussian and accounted for exactly. So the guarantee is that of one Gaussian mechanism with the mu of
        its budget, and the best test between its two outcomes is right with probability Phi(mu / 2). For budgets outside any
        practical range, it is the bound for any (epsilon, delta) mechanism: (exp(epsilon) + delta) / (1 + exp(epsilon)).

        >>> round(Guarantee(1.0, 1e-6).best_guess, 4)
        0.5471
        """
        if not self.private or self.epsilon is None or self.delta is None:
            return 1.0
        if not _SMALL <= self.epsilon <= _LARGE:
            # A file may contain any number, and computing the mu of such numbers never ends.
            return float(min(1.0, expit(self.epsilon) + self.delta * expit(-self.epsilon)))
        return float(ndtr(Budget(self.epsilon, self.delta).mu / 2))

    def _meaning(self) -> str:
        """A number that is easier to grasp than epsilon: how often the best guess is right."""
        if not self.private:
            return "nothing: anyone who knows the seed can subtract the noise"
        percent = 100 * self.best_guess
        # Rounded up, never down; more digits only where 100 would read as certainty.
        digits = next((digits for digits in range(16) if _rounded_up(percent, digits) < 100), 0)
        return (
            "an attacker it protects from, even one who knows everything else, picks the right one of two equally likely "
            f"neighbouring tables at most {_rounded_up(percent, digits):.{digits}f} times in 100"
        )

    @property
    def mu(self) -> float:
        """The Gaussian-DP parameter of all charges together."""
        return math.sqrt(math.fsum(charge.mu**2 for charge in self.charges))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Guarantee":
        """The guarantee that `to_dict` wrote; anything else is a `ValueError`.

        >>> Guarantee.from_dict(Guarantee.none("x").to_dict()) == Guarantee.none("x")
        True
        """
        known = set(cls.__dataclass_fields__)
        require(isinstance(values, Mapping), "a guarantee must be a table with its fields as keys")
        given = _old_facts(values) | dict(values)
        require(set(given) == known, f"a guarantee has the fields {sorted(known)}, got {sorted(values)}")
        try:
            for name in ("released", "assumptions", "caveats"):
                given[name] = tuple(str(item) for item in given[name])
            given["charges"] = tuple(Charge(str(c["label"]), float(c["mu"])) for c in given["charges"])
            for name in ("epsilon", "delta"):
                given[name] = None if given[name] is None else float(given[name])
            for name in ("unit", "neighbours", "against", "calibration", "relation"):
                require(isinstance(given[name], str), f"{name} of a guarantee must be text")
            require(isinstance(given["reproducible"], bool), "reproducible of a guarantee must be true or false")
        except (TypeError, KeyError) as error:
            raise ValueError(f"a guarantee is malformed: {error}") from error
        return cls(**given)


def plain(number: float) -> str:
    """The short form of a number if it is exact, otherwise every digit: a guarantee is not rounded."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def _rounded_up(number: float, digits: int) -> float:
    scale = float(10**digits)
    return math.ceil(number * scale) / scale


def _old_facts(values: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that older files state only in their sentences."""
    caveats, relation = values.get("caveats"), values.get("neighbours")
    seeded = isinstance(caveats, list | tuple) and any(str(caveat).startswith(_OLD_SEEDED) for caveat in caveats)
    text = relation if isinstance(relation, str) else ""
    return {
        "reproducible": seeded,
        "relation": next((value for mark, value in _OLD_RELATIONS.items() if mark in text), ""),
    }
