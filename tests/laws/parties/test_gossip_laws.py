"""Privacy laws of peers: nothing leaves but through the ledger, within the stated sensitivity, under the stated noise."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil import GossipPCA
from eigenveil.audit.cases.seen import evened
from eigenveil.core.domain import Domain
from eigenveil.core.mechanism import Bounded
from eigenveil.core.noise import Noise, distance_in_steps, step_of, values_of
from eigenveil.core.unit import gram_sensitivity
from eigenveil.linalg import Array
from eigenveil.linalg.graphs import Graph
from eigenveil.methods.covariance import CovarianceSum
from eigenveil.privacy.paired import PairedSteps
from eigenveil.privacy.released import unpack
from eigenveil.protocols.gossip.averaging import Outgoing, Paired, PairKeys, Plain
from eigenveil.protocols.gossip.terms import PeerNoise
from eigenveil.protocols.messages import Message, PartialSum
from eigenveil.runtimes.local import Faults
from protocols.gossip.gossip_circles import BUDGET, circle, names_of, run
from protocols.star.companies import NEAR

pytestmark = pytest.mark.usefixtures("unplanned")
LEVEL = 1e-6


@settings(max_examples=60)
@given(
    st.sampled_from(["independent", "pairwise"]),
    st.sampled_from(["covariance", "power"]),
    st.sampled_from(["ring", "complete"]),
    st.integers(0, 4),
    st.dictionaries(st.sampled_from(names_of(5)), st.integers(0, 40), max_size=2),
    st.sampled_from([(0.0, 0.0), (0.1, 12.0), (0.2, 40.0)]),
    st.integers(0, 2**16),
)
def test_what_leaves_a_peer_has_a_line_in_its_ledger_and_lines_never_add_up_to_more_than_the_budget(
    noise: PeerNoise, task: str, kind: str, restarts: int, dies: dict[str, int], network: tuple[float, float], seed: int
) -> None:
    sent: defaultdict[str, set[bytes]] = defaultdict(set)

    def see(message: Message) -> Iterable[Message]:
        if isinstance(message.body, PartialSum) and message.body.step == 0:
            # Before the first step a peer sends its part as it let it out.
            sent[message.sender].add(message.body.values.tobytes())
        return [message]

    pairs: dict[str, Any] = {"noise_graph": Graph.named("complete", names_of(5))} if noise == "pairwise" else {}
    steps: dict[str, Any] = {"steps": 25} if kind == "ring" and noise == "independent" else {}
    these = circle(kind, 5, task=task, noise=noise, consensus="metropolis", restarts=restarts, quorum=2, **pairs, **steps)
    run(these, Faults(loss=network[0], delay=network[1], dies=dies, meddle=see), seed=seed, most=90_000)
    for name, ledger in these.ledgers.items():
        assert len(sent[name]) <= len(ledger.charges)
        assert math.fsum(charge.mu**2 for charge in ledger.charges) <= BUDGET.mu**2 * (1 + 1e-9)
        assert ledger.epsilon() <= BUDGET.epsilon * (1 + 1e-9)


SIZE = 150
COLLUDER = "p2"


def view(kind: str, *, own: float = 1.0, between: float = 1.0) -> tuple[Array, Array]:
    """What the honest peers send less all noise that the colluder knows, (honest, n), and its covariance as stated.

    All rows are zero, so what is sent is noise. `own` and `between` make the stated deviations wrong.
    """
    parts: dict[str, Array] = {}
    asked: dict[str, dict[str, Any]] = {}
    stream = PairKeys.stream

    def see(message: Message) -> Iterable[Message]:
        if isinstance(message.body, PartialSum) and message.body.step == 0:
            parts[message.sender] = message.body.values
        return [message]

    def note(keys: PairKeys, other: str, **which: Any) -> Any:
        if keys._name == COLLUDER:
            asked[other] = which
        return stream(keys, other, **which)

    domain = Domain(dim=SIZE, radius=1.0)
    names = names_of(6)
    nothing = {name: np.zeros((3, SIZE)) for name in names}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PairKeys, "stream", note)
        these = circle(
            kind, 6, noise="pairwise", consensus="metropolis", seed=11, rows=nothing, made=lambda: CovarianceSum(domain, NEAR)
        )
        assert len(run(these, Faults(meddle=see)).done) == 6
    pairing = these.terms.among(()).pairing
    assert pairing is not None
    mu, sensitivity = BUDGET.mu, gram_sensitivity(1.0, NEAR)
    steps = pairing.in_steps(sensitivity, mu / (1 + 1e-10), (SIZE, SIZE), symmetric=True)
    s_own, s_between = own * steps.own * steps.step, between * steps.between * steps.step
    keys = these.peers[COLLUDER]._outgoing.keys
    assert keys is not None
    honest = [name for name in names if name != COLLUDER]
    left = []
    for name in honest:
        rest = np.array(parts[name])
        if name in asked:
            assert asked[name]["steps"] == steps
            known = steps.draw_between(stream(keys, name, **asked[name])) * steps.step
            rest -= known if names.index(name) < names.index(COLLUDER) else -known
        # Whole steps are left, to the last bit, and off the diagonal noise is less by the root of two.
        assert np.array_equal(rest / steps.step, np.rint(rest / steps.step))
        left.append(evened(rest, (SIZE, SIZE)))
    laplacian = these.terms.graph.without([COLLUDER]).laplacian()
    return np.array(left), s_own**2 * np.eye(len(honest)) + s_between**2 * laplacian


def fits(left: Array, covariance: Array) -> bool:
    """Whether columns are normal with this covariance: every eigendirection's length, and every pair of them, at 1e-6."""
    values, vectors = np.linalg.eigh(covariance)
    white = (vectors.T @ left) / np.sqrt(values)[:, None]
    h, n = white.shape
    tests = h + h * (h - 1) // 2
    lengths = (white**2).sum(axis=1)
    low, high = scipy.stats.chi2.ppf([LEVEL / tests / 2, 1 - LEVEL / tests / 2], n)
    across = (white @ white.T)[np.triu_indices(h, 1)] / math.sqrt(n)
    reach = scipy.stats.norm.isf(LEVEL / tests / 2) * 1.01
    return bool(((lengths >= low) & (lengths <= high)).all() and np.abs(across).max() <= reach)


@pytest.mark.parametrize("kind", ["ring", "complete", "random-regular:4"])
def test_the_noise_that_a_colluder_does_not_know_is_as_stated(kind: str) -> None:
    assert fits(*view(kind))
    # A tenth more or less of either kind is seen.
    for wrong in ({"own": 1.1}, {"own": 0.9}, {"between": 1.1}, {"between": 0.9}):
        assert not fits(*view(kind, **wrong))


def test_pair_noise_leaves_the_sum() -> None:
    """With nothing but noise at all peers, what is in the sum is m times own noise squared, and none of the pairs'."""
    domain = Domain(dim=SIZE, radius=1.0)
    for kind in ("ring", "complete"):
        nothing = {name: np.zeros((3, SIZE)) for name in names_of(6)}
        these = circle(
            kind, 6, noise="pairwise", consensus="tree", seed=5, rows=nothing, made=lambda: CovarianceSum(domain, NEAR)
        )
        done = run(these).done
        pairing = these.terms.among(()).pairing
        assert pairing is not None
        sensitivity, mu = gram_sensitivity(1.0, NEAR), BUDGET.mu / (1 + 1e-10)
        steps = pairing.in_steps(sensitivity, mu, (SIZE, SIZE), symmetric=True)
        scale = math.sqrt(6) * steps.own * steps.step
        # On the diagonal a symmetric matrix has its noise as it is, beside it over the root of two.
        square = float((done[0].result ** 2).sum()) / scale**2
        low, high = scipy.stats.chi2.ppf([LEVEL / 2, 1 - LEVEL / 2], SIZE * (SIZE + 1) // 2)
        assert low <= square <= high
        assert not low <= square * 1.1**2 <= high
        # To the last bit: along a tree the sum is that of everybody's own noise, in whole steps.
        own = [steps.draw_own(Noise.seeded((5 << 20) + place)) for place in range(6)]
        assert np.array_equal(done[0].result, unpack(values_of(np.sum(own, axis=0), steps.step), (SIZE, SIZE), symmetric=True))


def test_both_ends_draw_the_same_numbers_and_only_if_they_were_told_the_same() -> None:
    """The key is bound to all that two ends may differ in: else the same words would give numbers that hang together."""
    these = circle("complete", 4, noise="pairwise")
    keys = {name: peer._outgoing.keys for name, peer in these.peers.items()}
    one, two = keys["p0"], keys["p1"]
    assert one is not None and two is not None
    one.take("p1", two.public, two.signature, passed_on_by="p1")
    two.take("p0", one.public, one.signature, passed_on_by="p0")
    steps = PairedSteps(shape=(3, 3), symmetric=True, step=0.5, own=64.0, between=1024.0)
    told: dict[str, Any] = {"gone": frozenset(), "base": 0, "round_": 1, "label": "x", "steps": steps}
    here, there = (steps.draw_between(keyed.stream(name, **told)) for keyed, name in ((one, "p1"), (two, "p0")))
    assert np.array_equal(here, there) and here.dtype == np.int64
    others: list[dict[str, Any]] = [
        {"gone": frozenset({"p3"})},
        {"base": 1},
        {"round_": 2},
        {"label": "y"},
        {"steps": replace(steps, shape=(9,), symmetric=False)},
        {"steps": replace(steps, symmetric=False)},
        {"steps": replace(steps, step=0.25)},
        {"steps": replace(steps, own=64.0625)},
        {"steps": replace(steps, between=1024.25)},
    ]
    words = {one.stream("p1", **(told | other)).words(2).tobytes() for other in [{}, *others]}
    assert len(words) == 1 + len(others)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["independent", "pairwise"]),
    st.sampled_from(["covariance", "power", "segments"]),
    st.sampled_from([None, "private"]),
    st.integers(0, 2**16),
    st.sampled_from([1e-30, 1.0, 1e200]),
)
def test_what_can_leave_a_peer_is_the_same_for_any_two_tables(
    noise: str, method: str, center: str | None, seed: int, size: float
) -> None:
    """Whole numbers of one step, which does not depend on the rows, be they tiny, huge, or none at all."""
    rng = np.random.default_rng(seed)
    tables = [rng.standard_normal((5, 4)) * size for _ in range(4)]
    nothing = [np.zeros((5, 4)) for _ in range(4)]
    choices: dict[str, Any] = {"method": method, "noise": noise, "neighbours": "zero-out", "center": center}
    for one, other in zip(first_of(tables, **choices), first_of(nothing, **choices), strict=True):
        (sent, private, share), (sent_too, private_too, share_too) = one, other
        assert (private.sensitivity, private.symmetric, share) == (private_too.sensitivity, private_too.symmetric, share_too)
        step = step_of(private.sensitivity, np.size(private.value))
        for numbers in (sent, sent_too):
            assert np.array_equal(numbers / step, np.rint(numbers / step))


@contextmanager
def first_parts() -> Iterator[list[tuple[Array, Bounded, float]]]:
    """What each peer let out, in the order in which they did, what it was before, and its share."""
    found: list[tuple[Array, Bounded, float]] = []
    kinds: tuple[type[Outgoing], ...] = (Plain, Paired)
    with pytest.MonkeyPatch.context() as patch:
        for kind in kinds:
            whole: Any = kind.part

            def part(self: Outgoing, private: Bounded, *, whole: Any = whole, **more: Any) -> Array:
                sent: Array = whole(self, private, **more)
                found.append((sent, private, more["share"]))
                return sent

            patch.setattr(kind, "part", part)
        yield found


def first_of(tables: list[Array], **choices: Any) -> list[tuple[Array, Bounded, float]]:
    """The first part of every peer: keys are carried, and nothing else."""
    plan: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6, "row_bound": 2.0, "random_state": 3}
    plan |= {} if choices["method"] == "covariance" else {"rounds": 2}
    found: list[tuple[Array, Bounded, float]] = []
    gossip = GossipPCA(1, graph="complete", consensus="metropolis", **plan, **choices).prepare(tables)
    for peer in gossip.peers.values():
        with first_parts() as parts:
            if peer._outgoing.keys is not None:
                for name, other in gossip.peers.items():
                    keys = other._outgoing.keys
                    if name != peer.name and keys is not None:
                        peer._outgoing.keys.take(name, keys.public, keys.signature, passed_on_by=name)
            peer.start()
        assert len(parts) == 1
        found += parts
    return found


@settings(max_examples=40)
@given(
    st.sampled_from(["power", "krylov", "covariance", "segments"]),
    st.sampled_from(["independent", "pairwise"]),
    st.sampled_from(["add-remove", "zero-out", "replace-one"]),
    st.sampled_from([None, "private"]),
    st.integers(0, 2**16),
    st.sampled_from([0.3, 2.0, 50.0]),
)
def test_a_neighbouring_table_moves_one_peers_first_part_by_no_more_than_is_stated(
    method: str, noise: str, neighbours: str, center: str | None, seed: int, size: float
) -> None:
    rng = np.random.default_rng(seed)
    tables = [rng.standard_normal((7, 4)) for _ in range(4)]
    at = int(rng.integers(4))
    tables[at][-1] *= size
    other = list(tables)
    if neighbours == "add-remove":
        other[at] = tables[at][:-1]
    else:
        row = np.zeros(4) if neighbours == "zero-out" else rng.standard_normal(4) * size
        other[at] = np.vstack([tables[at][:-1], row])
    choices: dict[str, Any] = {"method": method, "noise": noise, "neighbours": neighbours, "center": center}
    before, after = first_of(tables, **choices), first_of(other, **choices)
    moved = 0
    for place, (one, two) in enumerate(zip(before, after, strict=True)):
        (sent, private, share), (sent_too, private_too, share_too) = one, two
        assert private.sensitivity == private_too.sensitivity
        assert share == share_too
        gap = float(np.linalg.norm(sent - sent_too))
        if place != at:
            assert gap == 0.0
        else:
            # The noise is the same, to the last bit, so that what is left is how far the whole numbers of neighbours are apart.
            size = np.size(private.value)
            step = step_of(private.sensitivity, size)
            difference = sent - sent_too
            whole = unpack(difference, private.value.shape, symmetric=True) if private.symmetric else difference
            assert np.array_equal(whole / step, np.rint(whole / step))
            assert np.linalg.norm(whole) <= step * distance_in_steps(private.sensitivity, size, step)
            moved += gap > 0
    assert moved <= 1
