"""The specimen of ledgers: a site that notes in its ledger, for all who read an export, which of its slots nobody has rows in."""

from functools import partial

from eigenveil.audit.case import Case, Claim
from eigenveil.audit.cases.ledgers import BUDGET, SLOTS, seen_in_export, stream_on_a_ledger

__all__ = ["CASES"]

CASES = (
    Case(
        name="wrong/ledger-reasons",
        kind="specimen",
        about="the export of the ledger of a site that notes there which slots are empty, seen by anybody",
        canary="the only person of each slot, there or not",
        tests=("curve",),
        budget=BUDGET,
        claim=lambda budget: Claim.of(budget, "the guarantee of what is released"),
        trial=partial(seen_in_export, kept=partial(stream_on_a_ledger, noting=True), canaries=SLOTS),
        quick=80,
        full=80,
        threshold=0.0,
    ),
)
