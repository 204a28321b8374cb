"""Facts about a release, and the only place that puts them into the sentences of a `Guarantee`.

Estimators, recommenders and papers state who is protected and what is known of the rows (`protected`), who sees what
(`seen_by`), and how noise was calibrated. From these facts `GuaranteeFacts` (`builder`) composes the guarantee. A privacy officer
signs it, so review the sentences as prose: one idea a sentence, the field's terms, no assumption left out. It may
import the rest of `privacy`.
"""

from eigenveil.privacy.facts.builder import (
    COLUMN_TAILS,
    COMPONENTS,
    EIGENVALUES,
    EVERY_ROW,
    FOUND_BOUND,
    FOUND_GAPS,
    FOUND_UNITS,
    NO_PRIVACY,
    ON_LAPACK,
    ROW_TAILS,
    GuaranteeFacts,
    PublishedNoise,
    items_released,
    unproven,
    weak_words,
)
from eigenveil.privacy.facts.protected import Person, SlottedRows, StreamRows, TableRows, User, UserHistories
from eigenveil.privacy.facts.seen_by import (
    HubAndSites,
    MaskedSites,
    NoisyRows,
    OneDevice,
    OneHolder,
    PeersAlone,
    SeenBy,
    SlotBySlot,
)

__all__ = [
    "COLUMN_TAILS",
    "COMPONENTS",
    "EIGENVALUES",
    "EVERY_ROW",
    "FOUND_BOUND",
    "FOUND_GAPS",
    "FOUND_UNITS",
    "NO_PRIVACY",
    "ON_LAPACK",
    "ROW_TAILS",
    "GuaranteeFacts",
    "HubAndSites",
    "MaskedSites",
    "NoisyRows",
    "OneDevice",
    "OneHolder",
    "PeersAlone",
    "Person",
    "PublishedNoise",
    "SeenBy",
    "SlotBySlot",
    "SlottedRows",
    "StreamRows",
    "TableRows",
    "User",
    "UserHistories",
    "items_released",
    "unproven",
    "weak_words",
]
