"""The benchmark of devices in a tree, small: late devices cost what the figures say, and scaling slots up mends it."""

import numpy as np

from benchmarks import fpca_system as system
from eigenveil.linalg import Subspace, sines

FORGET, RANK, SLOTS, WIDTH = system.FORGET, system.RANK, system.SLOTS, system.WIDTH


def test_a_small_system_follows_the_drift() -> None:
    out = system.run(40, 20, widths=(WIDTH,))
    pooled, weighted = out.captured["pooled"], out.captured[f"sketches, {WIDTH} directions, weighted"]
    # The drift is in the middle: what was right before is wrong then, and right again at the end.
    assert pooled[SLOTS // 2 - 1] > 0.99 > pooled[SLOTS // 2]
    assert min(weighted[-3:]) > max(0.95, pooled[-1] - 0.02)
    assert out.captured["IncrementalPCA, pooled"][-1] < weighted[-1]


def test_the_protocol_ends_where_the_figures_do() -> None:
    captured, sent, _ = system.federated(16, 20)
    assert captured[-1] > 0.97
    # A basis, its values and a mean, in a message.
    assert 8 * 20 * RANK < sent < 8 * 20 * (WIDTH + 2) + 1000


def test_what_comes_late_counts_by_its_slot() -> None:
    rng = np.random.default_rng(0)
    parts = [Subspace.of(rng.standard_normal((8, 6)), rank=6) for _ in range(3)]
    hubs = [system.Aggregate(1, 6) for _ in range(2)]
    for hub, order in zip(hubs, ((0, 1, 2), (2, 0, 1)), strict=True):
        for slot in order:
            hub.add(slot, parts[slot], 1)
        hub.close(2)
    assert sines(*(hub.answer(weighted=False) for hub in hubs))[0] < 1e-9
    stacked = [FORGET ** (2 - slot) * (part.basis * part.values).T for slot, part in enumerate(parts)]
    assert sines(hubs[0].answer(weighted=False), Subspace.of(np.concatenate(stacked), rank=RANK).basis)[0] < 1e-9
