"""The longest messages of a study, kind by kind, from its public terms. Whatever is longer is refused before it is read.

Agents ask for the limits of their own role. tests/network/study/test_study_size.py runs every protocol and compares: no message
is longer, and no limit is much larger than the longest message.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, assert_never, final

from eigenveil.protocols import messages
from eigenveil.protocols.keys import KEY, POINT, SIGNATURE
from eigenveil.protocols.masked.dealing import MARK, Dealing
from eigenveil.protocols.masked.session import bundle_size
from eigenveil.protocols.masked.shamir import SHARE_BYTES
from eigenveil.protocols.masked.terms import DECLINED, MaskedTerms, PublicKeys
from eigenveil.protocols.messages import Body
from eigenveil.protocols.wire import KindLimit, MessageLimits, name_bytes

__all__ = ["FitSize", "Role", "limits_for"]

Role: TypeAlias = Literal["hub", "site", "node", "peer"]
Kinds: TypeAlias = Mapping[tuple[type[Body], str], KindLimit]
# An answer has directions, values, a center, numbers, units and their factors. A question and a part have no more arrays.
_ARRAYS: Final = 6
# Bytes of the digest of what peers agreed on.
_TERMS: Final = 16


@final
@dataclass(frozen=True, slots=True)
class FitSize:
    """How many numbers the longest messages of a fit have."""

    question: int
    part: int
    answer: int


def limits_for(role: Role, size: FitSize, names: Iterable[str], masked: MaskedTerms | None = None) -> MessageLimits:
    """What may come to a party in this role: to a node of a tree from above and from below. `names` are all parties."""
    # The bytes of names in a head: its sender and receiver, and a list that may name all parties. A key that peers pass on names
    # the peer it is from and the one it is for, besides the two that pass it.
    each = [name_bytes(name) for name in names]
    listed = sum(each) + 4 * max(each)
    questions: Kinds = {
        (messages.Ask, ""): KindLimit(numbers=size.question, arrays=_ARRAYS, names=listed),
        (messages.Done, ""): KindLimit(numbers=size.answer, arrays=_ARRAYS, names=listed),
    }
    parts: Kinds = {
        (messages.Contribution, ""): KindLimit(numbers=size.part, arrays=_ARRAYS, names=listed),
        (messages.Decline, ""): KindLimit(names=listed),
    }
    match role:
        case "hub":
            return MessageLimits(parts if masked is None else _masked_parts(size, masked, listed))
        case "site":
            return MessageLimits({**questions, **({} if masked is None else _briefs(masked, listed))})
        case "node":
            return MessageLimits({**questions, **parts})
        case "peer":
            key = KindLimit(data=POINT + SIGNATURE + _TERMS, names=listed)
            return MessageLimits(
                {
                    (messages.PartialSum, ""): KindLimit(numbers=size.part, arrays=1, data=_TERMS, names=listed),
                    (messages.ResendRequest, ""): KindLimit(data=_TERMS, names=listed),
                    (messages.KeepAlive, ""): KindLimit(names=listed),
                    (messages.PeersDropped, ""): KindLimit(data=_TERMS, names=listed),
                    (messages.PeerKey, ""): key,
                }
            )
        case _:
            assert_never(role)


# Of the masked steps, the bytes besides the table, the entries of the table, and the bytes of each. `protocols.masked` has what
# they are: docstrings of `MaskedMember` and `SecureAggregationRound`.


def _briefs(terms: MaskedTerms, names: int) -> Kinds:
    """What the hub may send between questions."""
    bits, dealers = terms.bytes_of_bits, _dealers(terms)
    # Neighbours are holders of this site's secrets and those whose secrets it holds.
    near = min(len(terms.roster) - 1, terms.graph.holders + dealers)
    signed = (len(terms.roster), SIGNATURE)
    if terms.checks:
        # The signatures that a site has drawn, each with its path to the root of the hash tree.
        signed = (terms.checks, SIGNATURE + KEY * math.ceil(math.log2(len(terms.roster))))
    steps = {
        "keys": (KEY, 0, 0),
        "packets": (0, near, PublicKeys.size(terms) + SIGNATURE),
        "roster": (bits + KEY * len(terms.roster), dealers, bundle_size(terms)),
        "seal": (0, *signed),
        "survivors": (2 * bits, 0, 0),
        "open": (0, *signed),
        **(dict.fromkeys(("roster claim", "list claim"), (bits + KEY, 0, 0)) if terms.checks else {}),
    }
    return _steps(messages.StepRequest, steps, names)


def _masked_parts(size: FitSize, terms: MaskedTerms, names: int) -> Kinds:
    """What a site may answer: a masked part, or a step between questions."""
    held = 1 + _dealers(terms)
    steps = {
        "keys": (PublicKeys.size(terms), 0, 0),
        "packets": (Dealing.size(terms, 1 + terms.graph.holders), terms.graph.holders, bundle_size(terms)),
        "roster": (0, 0, 0),
        "seal": ((KEY + MARK) * held, 0, 0),
        "mask": (0, 0, 0),
        "survivors": (0, 0, 0),
        "open": (SHARE_BYTES * held, 0, 0),
        **(dict.fromkeys(("roster claim", "list claim"), (KEY, 0, 0)) if terms.checks else {}),
    }
    # Every answer is signed, and every step can be declined.
    signed = {step: (max(data, len(DECLINED)) + SIGNATURE, *table) for step, (data, *table) in steps.items()}
    return {
        (messages.Masked, ""): KindLimit(numbers=size.part, arrays=1, data=SIGNATURE, names=names),
        **_steps(messages.StepReply, signed, names),
    }


def _steps(body: type[Body], steps: Mapping[str, tuple[int, ...]], names: int) -> Kinds:
    return {
        (body, step): KindLimit(data=data, entries=entries, entry=entry, names=names)
        for step, (data, entries, entry) in steps.items()
    }


def _dealers(terms: MaskedTerms) -> int:
    """How many other sites may have drawn one site as a holder.

    Each of m - 1 sites draws q holders evenly, so their number is binomial with mean q. By Bernstein's inequality it exceeds
    q + 8 sqrt(q) + 22 with probability below e^-30: with x = 8 sqrt(q) + 22, x^2 / (2 (q + x / 3)) > 30 for every q >= 1.
    Colluders may all draw the same site.
    """
    others, drawn = len(terms.roster) - 1, terms.graph.holders
    if terms.graph.complete:
        return others
    return min(others, drawn + math.ceil(8 * math.sqrt(drawn)) + 22 + terms.colluders)
