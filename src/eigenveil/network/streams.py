"""From the file of a study of streams to its parties, and to the longest messages. Light: a device loads it."""

from eigenveil.data.follow import ByClock, ByCount
from eigenveil.errors import require_param
from eigenveil.estimators.slots.parties import SlotParties
from eigenveil.network.rules import limits_within, slots_of
from eigenveil.network.study import StudyFile
from eigenveil.params.declarations.study import HubStudy
from eigenveil.protocols.limits import FitSize, Role
from eigenveil.protocols.wire import MessageLimits
from eigenveil.tasks.slot_sums import SlotSums

__all__ = ["rule_of", "slot_limits_of", "slot_parties_of"]

# Measured for tables, rounded up: so many arrays as long as the longest message exist at once.
_WORKING = 16


def slot_parties_of(study: StudyFile, *, memory: int) -> SlotParties:
    """The parties of a study of streams, none of which needs more than `memory` bytes."""
    spec = slots_of(study)
    # Only masks need to know who the others are. What sites sign is bound to this study.
    roster = {site.name: site.certificate.public for site in study.sites} if study.masked else {}
    parties = SlotParties(spec, roster=roster, title=study.title, hub=study.layout().hub)
    size = _size(parties)
    below = max(len(children) for children in parties.layout.below.values())
    # Slots that are kept apart are whole matrices, and messages are half of one.
    needed = 8 * max(size.part, size.answer) * (_WORKING + below + 2 * spec.apart)
    require_param(
        needed <= memory, f"a party needs about {needed / 2**30:.1f} GiB of memory for {spec.dim} columns. Use fewer {{columns}}"
    )
    slot_limits_of(study, parties, "hub")
    return parties


def slot_limits_of(study: StudyFile, parties: SlotParties, role: Role) -> MessageLimits:
    """What may come to a party in this `role`, checked against the limit that the study sets itself."""
    return limits_within(study, _size(parties), role, parties.masked)


def rule_of(study: StudyFile) -> ByClock | ByCount:
    """What ends a slot."""
    params = study.params
    assert isinstance(params, HubStudy) and params.slots is not None
    if params.slot_rows is not None:
        return ByCount(params.slot_rows, params.slots)
    assert params.begins is not None and params.slot_seconds is not None
    return ByClock(params.begins, params.slot_seconds, params.slots)


def _size(parties: SlotParties) -> FitSize:
    spec, task = parties.spec, parties.task
    sketch = spec.dim * (spec.width + 1) + spec.width + 2
    part = task.side * (task.side + 1) // 2 if isinstance(task, SlotSums) else sketch
    return FitSize(
        1, part, spec.dim * (spec.dim + 1) + spec.dim + 3 if spec.adapt else spec.dim * (spec.rank + 1) + spec.rank + 3
    )
