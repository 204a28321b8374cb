"""What a study takes: every message of a run fits its limit, no limit is far above it, and what takes too much is refused."""

import json
import time
import tracemalloc
from collections import defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eigenveil.data.rows import DenseRows
from eigenveil.errors import ProtocolError
from eigenveil.network.agents.steps import opened
from eigenveil.network.parties import parties_of, peer_parties_of
from eigenveil.network.rules import MEMORY, limits_of
from eigenveil.network.study import StudyFile
from eigenveil.protocols.limits import Role
from eigenveil.protocols.messages import Contribution, Done, Message, StepReply, StepRequest
from eigenveil.protocols.party import Party
from eigenveil.protocols.wire import KindLimit, MessageLimits, decode, encode
from network.network_studies import Company, PeerCompany, keys_of

DIM = 40
COLUMNS = [f"column {at}" for at in range(DIM)]
UNITS = {"row_bound": "private", "scale": "private", "method": "covariance", "rounds": None}
# A search needs many people, or a large budget.
LAX = {"epsilon": 40.0}
EXACT = {"epsilon": None, "delta": None, "trust": None, "no_privacy": True}


def rows_of(seed: int) -> DenseRows:
    return DenseRows(np.random.default_rng(seed).standard_normal((60, DIM)) * np.linspace(1.0, 0.1, DIM))


def extra(parties: dict[str, Party]) -> Iterator[Message]:
    """Every message between these parties, in a run to the end."""
    bag = deque(message for party in parties.values() for message in party.start())
    while bag:
        message = bag.popleft()
        yield message
        bag.extend(parties[message.receiver].receive(message))


def around_hub(study: StudyFile) -> tuple[dict[str, Party], dict[str, MessageLimits]]:
    found = parties_of(study)
    hub = found.layout.hub
    parties: dict[str, Party] = {hub: found.hub(masking=found.masking(), watch=None)}
    parties |= {name: found.node(name) for name in found.layout.nodes}
    for at, name in enumerate(found.names):
        parties[name] = found.member(name, rows_of(at), identity=keys_of(name, "site").identity)
    roles: dict[str, Role] = {
        name: "hub" if name == hub else "node" if name in found.layout.nodes else "site" for name in parties
    }
    limits = {role: limits_of(study, found.request, role, found.masked) for role in set(roles.values())}
    return parties, {name: limits[role] for name, role in roles.items()}


def between_peers(study: StudyFile) -> tuple[dict[str, Party], dict[str, MessageLimits]]:
    found = peer_parties_of(study)
    limits = limits_of(study, found.request, "peer")
    parties: dict[str, Party] = {
        name: found.peer(name, rows_of(at), watch=None, identity=keys_of(name, "peer").identity)
        for at, name in enumerate(found.names)
    }
    return parties, dict.fromkeys(parties, limits)


HUB_STUDIES: dict[str, tuple[int, dict[str, Any]]] = {
    "star krylov": (3, {"privacy": {"trust": "site"}, "task": {"method": "krylov"}}),
    "star covariance at the hub": (3, {"privacy": {"trust": "hub"}, "task": {"method": "covariance"}}),
    "star fedpower": (3, {"privacy": {"trust": "site"}, "task": {"method": "fedpower", "local_steps": 2}}),
    "star merge": (3, {"privacy": {"trust": "site"}, "task": {"method": "merge"}}),
    "star dr-svd without noise": (3, {"privacy": EXACT, "task": {"method": "dr-svd"}}),
    "star krylov without noise": (3, {"privacy": EXACT, "task": {"method": "krylov"}}),
    "masked covariance": (3, {"task": {"method": "covariance"}}),
    "masked krylov, eight sites": (8, {"task": {"method": "krylov", "rounds": 3}, "privacy": {"survivors": 6}}),
    "tree covariance": (5, {"privacy": {"trust": "site"}, "task": {"method": "covariance"}}),
    "tree merge": (5, {"privacy": {"trust": "site"}, "task": {"method": "merge"}}),
    "star with a bound to be found": (3, {"privacy": {"trust": "site", **LAX}, "task": {"row_bound": "private"}}),
    "tree with units to be found": (5, {"privacy": {"trust": "hub", **LAX}, "task": UNITS}),
    "masked with units to be found": (3, {"privacy": LAX, "task": UNITS}),
    "peers covariance": (4, {"task": {"method": "covariance", "rounds": None}}),
    "peers power, independent": (4, {"privacy": {"noise": "independent"}}),
}


def studied(folder: Path, name: str) -> tuple[dict[str, Party], dict[str, MessageLimits]]:
    sites, sections = HUB_STUDIES[name]
    sections = {**sections, "task": {"columns": COLUMNS, **sections.get("task", {})}}
    if name.startswith("peers"):
        return between_peers(PeerCompany(folder, sites, sections=sections).study)
    return around_hub(Company(folder, sites, sections=sections, fanout=2 if name.startswith("tree") else None).study)


def compared(parties: dict[str, Party], limits: dict[str, MessageLimits]) -> dict[tuple[Any, str], tuple[int, int]]:
    """Of each kind of message, the longest of a run and its limit. Every message must be read under its limits."""
    longest: defaultdict[tuple[Any, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for message in extra(parties):
        raw, allowed, body = encode(message), limits[message.receiver], message.body
        opened(raw, sender=message.sender, me=message.receiver, limits=allowed)
        key = (type(body), body.step if isinstance(body, StepRequest | StepReply) else "")
        longest[key] = (max(len(raw), longest[key][0]), allowed.kinds[key].size)
    return dict(longest)


def require_tight(found: dict[tuple[Any, str], tuple[int, int]], *, slack: float, parties: int) -> None:
    for key, (longest, limit) in found.items():
        # Short fields have room of their own, and so has a list of everybody's name.
        assert longest <= limit <= slack * longest + 1100 + 12 * parties, (key, longest, limit)


@pytest.mark.parametrize("name", list(HUB_STUDIES))
def test_every_message_of_a_run_fits_its_limit_and_no_limit_is_far_above_it(tmp_path: Path, name: str) -> None:
    parties, limits = studied(tmp_path, name)
    found = compared(parties, limits)
    require_tight(found, slack=1.4, parties=len(parties))
    assert len(found) == {"sta": 3, "tre": 3, "pee": 1 + ("covariance" in name), "mas": 15}[name[:3]]


def test_the_same_among_so_many_masked_sites_that_each_draws_its_holders(tmp_path: Path) -> None:
    task = {"columns": COLUMNS, "method": "covariance", "center": "none"}
    sections: dict[str, dict[str, Any]] = {"task": task, "privacy": {"survivors": 96}}
    parties, limits = around_hub(Company(tmp_path, 105, sections=sections).study)
    found = compared(parties, limits)
    assert {step for _, step in found} >= {"roster claim", "list claim"}
    # How often one site is drawn is chance, and the limit leaves room for it.
    require_tight(found, slack=3.0, parties=len(parties))
    # Not much more than the longest of them all.
    for role in ("hub", "site 0"):
        longest = max(limit for key, (_, limit) in found.items() if key in limits[role].kinds)
        assert limits[role].largest == longest


def limit_of(**more: int) -> MessageLimits:
    return MessageLimits({(Contribution, ""): KindLimit(**{"numbers": 100, "arrays": 1, "names": 20, **more})})


def head_of(raw: bytes, **changes: Any) -> bytes:
    """The same message with other fields in its head."""
    length = int.from_bytes(raw[5:9], "little")
    head = json.dumps({**json.loads(raw[9 : 9 + length]), **changes}, separators=(",", ":")).encode()
    return raw[:5] + len(head).to_bytes(4, "little") + head + raw[9 + length :]


GIVE = encode(Message("a", "hub", Contribution(round=0, arrays=(np.zeros(100),))))
BRIEF = encode(Message("hub", "a", StepRequest(round=0, step="keys", data=bytes(32), table=(("b", bytes(1000)),))))
SYMMETRIC = encode(Message("a", "hub", Contribution(round=0, arrays=(np.zeros((13, 13)),), half=True)))
TOO_MUCH: dict[str, tuple[bytes, MessageLimits]] = {
    "one number more": (encode(Message("a", "hub", Contribution(round=0, arrays=(np.zeros(101),)))), limit_of()),
    "an array more": (encode(Message("a", "hub", Contribution(round=0, arrays=(np.zeros(50), np.zeros(50))))), limit_of()),
    "announced numbers": (head_of(GIVE, shapes=[[1 << 26, 1 << 26]]), limit_of()),
    "half of a large matrix": (SYMMETRIC, limit_of(numbers=90)),
    "a nested shape": (head_of(GIVE, shapes=[[[100]]]), limit_of()),
    "a shape without sides": (head_of(SYMMETRIC, shapes=[[]]), limit_of()),
    "names": (head_of(GIVE, missing=["x" * 100] * 5), limit_of()),
    "another kind": (GIVE, MessageLimits({(Done, ""): KindLimit(numbers=100, arrays=1, names=20)})),
    "a table that the step does not use": (BRIEF, MessageLimits({(StepRequest, "keys"): KindLimit(data=32, names=20)})),
    "an entry that is too long": (
        BRIEF,
        MessageLimits({(StepRequest, "keys"): KindLimit(data=32, entries=1, entry=999, names=20)}),
    ),
    "a step that the study does not have": (
        BRIEF,
        MessageLimits({(StepRequest, "seal"): KindLimit(data=32, entries=1, entry=1000, names=20)}),
    ),
}


@pytest.mark.parametrize("raw, limits", TOO_MUCH.values(), ids=list(TOO_MUCH))
def test_what_a_study_does_not_need_is_refused_by_its_head(raw: bytes, limits: MessageLimits) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decode(raw, limits=limits)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_what_it_needs_is_read() -> None:
    assert isinstance(decode(GIVE, limits=limit_of()).body, Contribution)
    assert isinstance(decode(SYMMETRIC, limits=limit_of()).body, Contribution)
    wide = MessageLimits({(StepRequest, "keys"): KindLimit(data=32, entries=1, entry=1000, names=20)})
    assert isinstance(decode(BRIEF, limits=wide).body, StepRequest)


HOSTILE: dict[str, dict[str, Any]] = {
    "many columns": {"columns": 20_000, "components": 6000},
    "many products": {"columns": 20_000, "components": 6000, "method": "krylov"},
    "many rounds": {"columns": 20_000, "components": 100, "method": "krylov", "rounds": 200},
    "a long covariance": {"columns": 16_000, "method": "covariance"},
}


def hostile(folder: Path, task: dict[str, Any], *, peers: bool = False) -> StudyFile:
    columns = [f"c{at}" for at in range(task["columns"])]
    sections = {"task": {"rounds": None, **task, "columns": columns}}
    return (PeerCompany(folder, 3, sections=sections) if peers else Company(folder, 3, sections=sections)).study


@pytest.mark.parametrize("peers", [False, True], ids=["hub", "peers"])
@pytest.mark.parametrize("task", HOSTILE.values(), ids=list(HOSTILE))
def test_a_study_that_is_too_large_is_refused_before_anything_is_made(tmp_path: Path, task: dict[str, Any], peers: bool) -> None:
    study = hostile(tmp_path, task, peers=peers)
    made = peer_parties_of if peers else parties_of
    tracemalloc.start()
    began = time.perf_counter()
    try:
        with pytest.raises(ValueError, match=r"of memory for \d+ columns and \d+ components") as refusal:
            made(study)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - began < 5
    # The words are those of the file, and say how an operator allows it.
    assert "[task] columns" in str(refusal.value) and "--memory" in str(refusal.value)


def test_an_operator_can_allow_more_and_no_message_is_longer_than_the_format_has(tmp_path: Path) -> None:
    study = Company(tmp_path, sections={"task": {"columns": COLUMNS}}).study
    with pytest.raises(ValueError, match="1 MiB is allowed"):
        parties_of(study, memory=1 << 10)
    assert parties_of(study, memory=1 << 20).names == ("site 0", "site 1", "site 2")
    long = hostile(tmp_path, {"columns": 17_000, "method": "covariance"})
    with pytest.raises(ValueError, match=r"no message may have more than 1\.0 GiB"):
        parties_of(long, memory=100 * MEMORY)


def test_a_limit_of_the_study_s_own_must_have_room_for_its_messages(tmp_path: Path) -> None:
    columns = [f"c{at}" for at in range(200)]
    sections: dict[str, dict[str, Any]] = {"network": {"max_message_bytes": 1 << 16}, "task": {"columns": columns}}
    with pytest.raises(ValueError, match=r"\[network\] max_message_bytes must be at least"):
        parties_of(Company(tmp_path, sections=sections).study)
