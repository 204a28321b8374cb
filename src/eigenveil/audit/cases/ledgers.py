"""Cases of ledgers on disk: what a site or an analyst shows to others of what was spent, seen by somebody who knows all else.

The adversary reads an export, keeps one of their own for each world, with a canary and without, and compares shapes: all of an
export, with each random number replaced by the place where it came first. Nothing is left but what the program decides:
which entries there are, in which order, with which fields, lengths and equalities. If that depends on rows, one of the two worlds
fits and the other does not.
"""

import json
import os
import re
import secrets
import tempfile
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from eigenveil.audit.case import Trial, usual_case
from eigenveil.audit.cases.seen import flip_coins
from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Charge
from eigenveil.core.unit import Neighbours, PrivacyUnit
from eigenveil.data.known import fingerprints
from eigenveil.data.rows import DenseRows
from eigenveil.estimators import PrivatePCA
from eigenveil.estimators.slots.parties import SlotParties, SlotSpec
from eigenveil.ledger.durable import DurableLedger, StudyBudget
from eigenveil.ledger.replay import written_export
from eigenveil.ledger.spending import released
from eigenveil.ledger.store import FileStore
from eigenveil.linalg import Array
from eigenveil.network.agents.slot_steps import DurableSlotSite, StoredParts
from eigenveil.protocols.limits import FitSize, limits_for
from eigenveil.protocols.star.rounds import Terms

__all__ = ["CASES", "SLOTS", "seen_in_export", "stream_on_a_ledger"]

_DIM: Final = 5
SLOTS: Final = 5
_ROW: Final = PrivacyUnit("row", Neighbours.ADD_REMOVE)
# Nonces, marks, hashes and names of studies; and times, which are the adversary's own.
_RANDOM: Final = re.compile(r"\b(?:[0-9a-f]{64}|[0-9a-f]{32}|[0-9]{4}-[0-9]{2}-[0-9]{2}[0-9T:+]*)\b")
# Where a disk that confirms each write would take most of the time. None of this need outlive a power cut.
_MEMORY: Final = "/dev/shm"

Kept = Callable[[DurableLedger, NDArray[np.bool_], Budget], None]


def _shape(workload: Kept, tosses: NDArray[np.bool_], budget: Budget) -> str:
    """The shape of the export of a ledger that was kept while these canaries were there."""
    memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder, DurableLedger.open(Path(folder) / "ledger.db") as ledger:
        workload(ledger, tosses, budget)
        text = "".join(written_export(ledger.entries()))
    places: dict[str, str] = {}
    return _RANDOM.sub(lambda match: places.setdefault(match[0], f"{len(match[0])} digits, {len(places)}"), text)


def seen_in_export(budget: Budget, rng: Generator, state: int | None, *, workload: Kept, canaries: int) -> Trial:
    """One export, scored for each canary by an adversary who knows whether the others were there."""
    present = flip_coins(canaries, rng)
    shape, scores = _shape(workload, present, budget), np.zeros(canaries)
    for canary in range(canaries):
        for is_present, sign in ((True, 1.0), (False, -1.0)):
            world = present.copy()
            world[canary] = is_present
            # One world that fits and one that does not is a sure sign. Two that fit say nothing.
            scores[canary] += sign * (shape == _shape_in_world(workload, tuple(world.tolist()), budget))
    return Trial(scores=scores, present=present)


@lru_cache(maxsize=64)
def _shape_in_world(workload: Kept, tosses: tuple[bool, ...], budget: Budget) -> str:
    """The shape in a world, which the adversary tries once."""
    return _shape(workload, np.array(tosses), budget)


def _fits(ledger: DurableLedger, tosses: NDArray[np.bool_], budget: Budget) -> None:
    """A fit of a table, another one after the canary has left or not, and a third under another name for the same people."""
    table = np.vstack([np.repeat(np.eye(_DIM), 16, axis=0), 50.0 * np.eye(_DIM)[:1]])
    left = table if tosses[0] else table[:-1]
    each = Budget(budget.epsilon, budget.delta)
    for dataset, rows in (("people", table), ("people", left), ("others", table)):
        # As `fit --ledger` does.
        store = FileStore.over(ledger, dataset, Budget(100 * each.epsilon, each.delta))
        with released(store, each, _ROW, title="fit", prints=fingerprints(DenseRows(rows))) as release:
            pca = PrivatePCA(2, epsilon=each.epsilon, delta=each.delta, row_bound=1.0, center=None, ledger=release.ledger)
            pca.fit(rows)
            release.released = pca.components_.tobytes()


def stream_on_a_ledger(ledger: DurableLedger, tosses: NDArray[np.bool_], budget: Budget, *, noting: bool = False) -> None:
    """Slots of a site that sends raw sums to a hub, each with one person or nobody. `noting` says in a note who was empty."""
    spec = SlotSpec(
        names=("north", "south"),
        dim=_DIM,
        rank=2,
        oversample=2,
        budget=budget,
        trust="hub",
        neighbours=Neighbours.ADD_REMOVE,
        row_bound=1.0,
        origin=None,
        scale=None,
        center=True,
        slots=SLOTS,
        max_lateness=SLOTS,
        person_slots=1,
        one_person_per_site=False,
        forget=1.0,
        adapt=None,
        fanout=None,
        survivors=2,
        colluders=0,
        seed=None,
        terms=Terms(quorum=1, deadline=30.0, retries=0),
        clock=True,
    )
    study, parties = secrets.token_hex(32), SlotParties(spec, roster={}, title="a stream")
    account = StudyBudget(
        study=study,
        title="stream",
        dataset="people",
        trust="hub",
        epsilon=budget.epsilon,
        delta=budget.delta,
        mu=budget.mu,
        party="north",
        unit=spec.unit,
    )
    joined, parts = ledger.join(account, life=None), StoredParts(ledger, study)
    site = DurableSlotSite(
        parties.member("north", stored=parts),
        ledger,
        joined,
        parts=parts,
        ledger=lambda: parties.ledgers.get("north"),
        study=study,
        above="hub",
        window=SLOTS,
        limits=limits_for("site", FitSize(0, (_DIM + 1) ** 2, 100), [*spec.names, "hub"]),
        whole=Charge("the whole study", budget.mu),
    )
    read = 0
    for slot, somebody in enumerate(tosses.tolist()):
        filled = spec.task().open()
        filled.add(_person(slot) if somebody else np.empty((0, _DIM)))
        # Where to read on is kept with the slot. A row moves it, and these rows add a digit each.
        read += 10 ** (slot + 1) * somebody
        site.close(slot, filled, then=json.dumps({"byte": read}))
        if noting and not somebody:
            ledger.note(study, f"slot {slot + 1} has no rows")


def _person(slot: int) -> Array:
    return np.eye(_DIM)[slot : slot + 1]


CASES = (
    usual_case(
        name="ledger/fits",
        about="the export of a ledger to which two fits of a table were charged, and one under another name, seen by anybody",
        canary="a row fifty times the bound, which has left before the second fit or not",
        tests=("curve",),
        claim="the guarantee of what is released",
        trial=partial(seen_in_export, workload=_fits, canaries=1),
        quick=40,
        full=200,
        threshold=0.0,
    ),
    usual_case(
        name="ledger/streams",
        about="the export of the ledger of a site that sends raw sums of its slots to a trusted hub, seen by anybody else",
        canary="the only person of each slot, there or not",
        tests=("curve",),
        claim="the guarantee of what is released",
        trial=partial(seen_in_export, workload=stream_on_a_ledger, canaries=SLOTS),
        quick=80,
        full=300,
        threshold=0.0,
    ),
)
