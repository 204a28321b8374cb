"""`transform(clip=True)`: variances of a private fit are of clipped rows, and so are these scores."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from commands.command_tables import eigenveil
from eigenveil import FederatedPCA, GossipPCA, Model, PrivatePCA, StreamingPCA
from eigenveil.linalg import Array

RNG = np.random.default_rng(2)
UNITS = np.array([1.0, 100.0, 0.1, 3.0, 20.0])
ROWS = RNG.standard_normal((12_000, 5)) * UNITS + 5 * UNITS
# A few rows far out, too few to be seen through the noise.
ROWS[RNG.random(12_000) < 0.0008] *= 300
SITES = dict(zip("abcd", np.array_split(ROWS, 4), strict=True))
BUDGET: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6, "random_state": 1, "whiten": True}
FITS: dict[str, Callable[[], Any]] = {
    "units": lambda: PrivatePCA(3, **BUDGET, scale="private").fit(ROWS),
    "bound": lambda: PrivatePCA(3, **BUDGET, scale=UNITS).fit(ROWS),
    "box": lambda: PrivatePCA(3, **BUDGET, row_bound=None, column_bounds=(-9 * UNITS, 9 * UNITS), scale=UNITS).fit(ROWS),
    "no center": lambda: PrivatePCA(3, **BUDGET, row_bound=14.0, center=None, scale=UNITS).fit(ROWS),
    "power": lambda: PrivatePCA(3, **BUDGET, scale=UNITS, method="power").fit(ROWS),
    "sites": lambda: FederatedPCA(3, **BUDGET, scale="private", trust="masked").fit(SITES),
    "peers": lambda: GossipPCA(3, **BUDGET, scale=UNITS, row_bound=6.0, graph="complete").fit(SITES),
    "stream": lambda: StreamingPCA(3, **BUDGET, scale="private").fit(ROWS),
    "stream in a box": lambda: StreamingPCA(3, **BUDGET, row_bound=None, column_bounds=(-9 * UNITS, 9 * UNITS), scale=UNITS).fit(
        ROWS
    ),
}


def by_hand(model: Model, rows: Array) -> Array:
    """The scores of clipped rows, by the definition of clipping."""
    clip = model.clipping
    inside = np.clip(rows, clip["low"], clip["high"]) if "low" in clip else rows
    moved = (inside - clip["center"]) / clip["scale"]
    norms = np.linalg.norm(moved, axis=1, keepdims=True)
    moved = moved * np.minimum(1.0, clip["radius"][0] / np.maximum(norms, 1e-300))
    units = np.ones(len(model.mean)) if model.scale is None else model.scale
    scores = (moved * clip["scale"] + clip["center"] - model.mean) / units @ model.components.T
    return np.asarray(scores / np.sqrt(model.explained_variance))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", FITS)
def test_clipped_scores_have_the_variance_that_was_released(kind: str, tmp_path: Path) -> None:
    pca = FITS[kind]()
    raw, clipped = pca.transform(ROWS).std(axis=0), pca.transform(ROWS, clip=True)
    assert raw.max() > 4
    # Without a center, variances are around zero.
    spread = np.sqrt(np.square(clipped).mean(axis=0))
    assert np.abs(spread - 1).max() < 0.25
    model: Model = pca.model_
    np.testing.assert_allclose(clipped[:400], by_hand(model, ROWS[:400]), rtol=1e-9, atol=1e-9)
    model.save(tmp_path / "m")
    again = Model.load(tmp_path / "m")
    np.testing.assert_array_equal(again.transform(ROWS, clip=True), model.transform(ROWS, clip=True))
    np.testing.assert_allclose(again.transform(sp.csr_array(ROWS[:300]), clip=True), clipped[:300], rtol=1e-9, atol=1e-9)
    near = (np.abs(ROWS - np.median(ROWS, axis=0)) < 0.5 * UNITS).all(axis=1)
    assert near.any()
    np.testing.assert_allclose(pca.transform(ROWS[near], clip=True), pca.transform(ROWS[near]), atol=1e-9)


def test_whitening_says_that_it_is_of_clipped_rows() -> None:
    with pytest.warns(UserWarning, match=r"How many rows were clipped was not released, .* transform with clip=True"):
        pca: Any = PrivatePCA(3, **BUDGET, scale="private").fit(ROWS)
    assert pca.clipped_fraction_ is None
    assert any("clip=True" in words for words in pca.warnings_)
    plain: Any = PrivatePCA(3, **(BUDGET | {"whiten": False}), scale="private").fit(ROWS)
    assert plain.warnings_ == ()
    # The same released numbers give the same warnings, whatever the rows: only public choices are asked.
    calm: Any = PrivatePCA(3, **BUDGET, scale="private").fit(RNG.standard_normal((12_000, 5)))
    assert calm.warnings_ == pca.warnings_


def test_exact_models_clip_nothing_and_those_without_bounds_say_that_they_cannot(tmp_path: Path) -> None:
    exact = PrivatePCA(2, epsilon=None).fit(ROWS)
    np.testing.assert_array_equal(exact.transform(ROWS, clip=True), exact.transform(ROWS))
    from dataclasses import replace

    bare = replace(FITS["bound"]().model_, clipping={})
    with pytest.raises(ValueError, match="does not say how rows were clipped"):
        bare.transform(ROWS, clip=True)
    for wrong in ({"radius": np.array([1.0])}, {"radius": np.ones(2), "center": np.zeros(5), "scale": np.ones(5)}):
        with pytest.raises(ValueError, match=r"clip|bounds of rows"):
            replace(bare, clipping=wrong)


def test_the_command_clips_too(tmp_path: Path) -> None:
    table = pd.DataFrame(ROWS, columns=list("abcde"))
    table.to_parquet(tmp_path / "people.parquet")
    pca = PrivatePCA(3, **BUDGET, scale="private").fit(table)
    pca.save(tmp_path / "m.safetensors")
    for more, clip in (((), False), (("--clip",), True)):
        told = ("-m", tmp_path / "m.safetensors", "-o", tmp_path / "s.npy", "--force", *more)
        eigenveil("transform", tmp_path / "people.parquet", *told)
        np.testing.assert_allclose(np.load(tmp_path / "s.npy"), pca.transform(table, clip=clip), rtol=1e-9, atol=1e-9)
