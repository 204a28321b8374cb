"""Counts of what must not have happened when a party of a study was killed, from its ledger and from what reached the others."""

import math
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from eigenveil.ledger.durable import DurableLedger, Entry
from eigenveil.protocols.masked.member import words_digest
from eigenveil.protocols.messages import Contribution, Masked
from eigenveil.protocols.wire import decode
from network.hostile.evil_hubs import about
from network.network_studies import Company

__all__ = ["STUDIES", "VICTIM", "Counts", "charges_in", "lines_at", "numbers_in", "renoised_in", "undisturbed", "unpaid_in"]

# What is killed: each kind of trust, in one round of components and in several.
STUDIES: Final[dict[str, dict[str, Any]]] = {
    "masked covariance": {"privacy": {"trust": "masked"}},
    "masked krylov": {"privacy": {"trust": "masked"}, "task": {"method": "krylov", "rounds": 3}},
    "site covariance": {"privacy": {"trust": "site"}},
    "site krylov": {"privacy": {"trust": "site"}, "task": {"method": "krylov", "rounds": 3}},
    "hub covariance": {"privacy": {"trust": "hub"}},
    "hub krylov": {"privacy": {"trust": "hub"}, "task": {"method": "krylov", "rounds": 3}},
}
# The site that is killed.
VICTIM: Final = "site 1"


@final
@dataclass
class Counts:
    """Counts of what must not happen, after `runs` of which `kills` were interrupted. Changes in place."""

    runs: int = 0
    kills: int = 0
    double: int = 0
    unpaid: int = 0
    renoised: int = 0
    asked_again: int = 0
    chains: int = 0
    failed: int = 0
    why: list[str] = field(default_factory=list)

    def __iadd__(self, other: "Counts") -> "Counts":
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))
        return self

    @property
    def wrong(self) -> int:
        """How many things went wrong in all."""
        return self.double + self.unpaid + self.renoised + self.asked_again + self.chains + self.failed

    def note(self, what: str, count: int, words: str) -> None:
        """So many of one kind of wrong."""
        if count:
            setattr(self, what, getattr(self, what) + count)
            self.why.append(f"{what}: {words}")


def charges_in(lines: Iterable[Entry]) -> list[tuple[str, float]]:
    """The charges in the entries of a ledger, in order."""
    return [(label, mu) for line in lines if line.kind == "commit" for label, mu in line.body["charges"]]


def numbers_in(data: bytes) -> bytes | None:
    """The numbers of a part, whatever round it claims; None for messages that are not parts."""
    match decode(data).body:
        case Contribution(arrays=arrays):
            return b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
        case Masked(limbs=limbs):
            return words_digest(b"", limbs)
        case _:
            return None


def unpaid_in(came: Iterable[bytes], path: Path, *, once: bool) -> set[bytes]:
    """The byte strings that came and that the ledger at `path` does not have, or has no charge for.

    `once`: the first part pays for all.
    """
    found = set(came)
    if not path.exists():
        return found
    with DurableLedger.reading(path) as ledger:
        lines = [line for line in ledger.entries() if line.kind == "commit"]
        marks = [(line.number, mark) for line in lines for mark in line.body["said"]]
        said = {data: next((at for at, mark in marks if ledger.is_mark_of(data, mark)), None) for data in found}
    paying = {line.number for line in lines if line.body["charges"]}
    first = min(paying, default=math.inf)
    paid: set[bytes] = set()
    wrong: set[bytes] = set()
    for data in sorted(found, key=lambda data: said[data] or 0):
        number, numbers = said[data], numbers_in(data)
        if number is not None and (number in paying or (once and number > first)):
            paid |= set() if numbers is None else {numbers}
        elif number is None or (numbers is not None and numbers not in paid):
            # A part that is said again in a later round costs nothing; anything else does.
            wrong.add(data)
    return wrong


def renoised_in(came: Iterable[bytes]) -> int:
    """How many answers there were beyond the one that each step of each round may have."""
    answers: defaultdict[tuple[int, str], set[bytes]] = defaultdict(set)
    for data in came:
        answers[about(data)].add(data)
    return sum(len(found) - 1 for found in answers.values())


def lines_at(path: Path) -> list[Entry]:
    """The entries of a ledger that may have been left by a crash, checked; nothing is written."""
    if not path.exists():
        return []
    with DurableLedger.reading(path) as ledger:
        ledger.verify()
        return list(ledger.entries())


@cache
def undisturbed(name: str) -> tuple[tuple[str, float], ...]:
    """What a site spends in one of the `STUDIES` when nothing happens to it."""
    with tempfile.TemporaryDirectory() as folder:
        company = Company(Path(folder), sections=STUDIES[name])
        company.run()
        return tuple(charges_in(lines_at(company.ledger(VICTIM))))
