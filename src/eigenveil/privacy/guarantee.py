"""`Guarantee`: what a result promises, to whom and against whom, in words that can be signed.

Every result carries one. A run without privacy says "none"; a published calibration says what it rests on; a run with a
known seed says that it protects nobody.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, final

from eigenveil.errors import require
from eigenveil.privacy.accounting import Budget
from eigenveil.privacy.ledger import Charge

__all__ = ["Guarantee", "plain", "rows_are_cut"]


@final
@dataclass(frozen=True, slots=True)
class Guarantee:
    """Who is protected (`unit`), between which tables (`neighbours`), how much, from whom, and on what it rests.

    `epsilon` and `delta` are None where there is no promise. `released` lists what the promise covers.

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

    def __post_init__(self) -> None:
        require((self.epsilon is None) == (self.delta is None), "epsilon and delta go together")
        if self.epsilon is not None and self.delta is not None:
            Budget(self.epsilon, self.delta)
        for charge in self.charges:
            require(0 <= charge.mu < math.inf, f"a charge must be finite and not negative, got {charge.mu}")

    @classmethod
    def none(cls, why: str) -> "Guarantee":
        """No promise at all, and why."""
        return cls(None, None, caveats=(why,))

    @property
    def private(self) -> bool:
        """Whether anybody is protected: a promise was made and no known seed undoes it."""
        return self.epsilon is not None and not any(c.startswith("reproducible, not private") for c in self.caveats)

    @property
    def headline(self) -> str:
        """One line: the promise, or that there is none."""
        if self.epsilon is None or self.delta is None:
            return f"No privacy: {'; '.join(self.caveats)}."
        promise = f"({plain(self.epsilon)}, {plain(self.delta)})-differential privacy for {self.unit}"
        return promise if self.private else f"NOT PRIVATE (known seed). Would be {promise}"

    def words(self) -> str:
        """The whole guarantee as text."""
        if self.epsilon is None:
            return self.headline
        lines = [
            self.headline + ".",
            f"Neighbouring tables: {self.neighbours}.",
            f"Against: {self.against}.",
            f"Covers: {', '.join(self.released)}.",
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
        require(set(values) == known, f"a guarantee has the fields {sorted(known)}, got {sorted(values)}")
        given = dict(values)
        try:
            for name in ("released", "assumptions", "caveats"):
                given[name] = tuple(str(item) for item in given[name])
            given["charges"] = tuple(Charge(str(c["label"]), float(c["mu"])) for c in given["charges"])
            for name in ("epsilon", "delta"):
                given[name] = None if given[name] is None else float(given[name])
            for name in ("unit", "neighbours", "against", "calibration"):
                require(isinstance(given[name], str), f"{name} of a guarantee must be text")
        except (TypeError, KeyError) as error:
            raise ValueError(f"a guarantee is malformed: {error}") from error
        return cls(**given)


def plain(number: float) -> str:
    """Short where nothing is lost by it, and otherwise every digit: a promise is not rounded."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def rows_are_cut(length: float, *, around: str = "the center") -> str:
    """The assumption that every promise about rows makes of its bound.

    >>> rows_are_cut(2.0)
    'rows are cut to length 2 around the center, a bound not read from these rows, or privately at its own cost'
    """
    return f"rows are cut to length {length:g} around {around}, a bound not read from these rows, or privately at its own cost"
