"""Neighbours with equal releases get equal warnings, and equal everything else that is shown.

Releases of one table are put in the place of those of another one. Whatever differs then comes from rows and not from a
release: a warning of ours, of numpy or of scikit-learn, an error, a guarantee, or a digit of a model.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from eigenveil import FederatedPCA, FederatedStream, GossipPCA, PrivatePCA, StreamingPCA, find_bounds, find_column_bounds
from eigenveil.errors import ParameterError
from eigenveil.estimators.bounds.spectrum import released_spectrum
from eigenveil.linalg import Array
from laws.tapes import SHOWN, Tape, shown_of, taped

COUNT, DIM = 480, 5
BUDGET: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-6, "random_state": 0}
TERMS: dict[str, Any] = BUDGET | {"row_bound": 6.0}
SPREAD = np.array([4.0, 2.0, 1.0, 0.5, 0.5])


def rows(seed: int) -> Array:
    """Rows, (COUNT, DIM), with a few directions that stand out."""
    found: Array = np.random.default_rng(seed).standard_normal((COUNT, DIM)) * SPREAD
    return found


def one_of(table: Array, *entries: float) -> Array:
    """A table in which one row is another one."""
    found = table.copy()
    found[7] = entries
    return found


BASE = rows(0)
# All of them have as many rows. Releases are those of the first.
TABLES: dict[str, Array] = {
    "one row of zeros": one_of(BASE, 0, 0, 0, 0, 0),
    "one row far out": one_of(BASE, 1e200, -1e300, 0, 1, 5e-324),
    "one row with the largest numbers": one_of(BASE, *([np.finfo(float).max] * DIM)),
    "other rows": rows(1),
    "nothing but zeros": np.zeros((COUNT, DIM)),
    "constant columns": np.tile([1e3, 0.0, -2.0, 1e-9, 1e150], (COUNT, 1)),
    "all rows clipped": 1e9 * BASE,
    "hardly any spread": 1e-12 * BASE + 1e6,
    "sentinels": np.where(np.random.default_rng(2).random(BASE.shape) < 0.2, -9999.0, BASE),
}
GAPS: dict[str, Array] = {
    "one gap": one_of(BASE, np.nan, 1, 1, 1, 1),
    "one row of gaps": one_of(BASE, *([np.nan] * DIM)),
    "a column of gaps": np.where(np.arange(DIM) == 3, np.nan, BASE),
    "gaps everywhere": np.where(np.random.default_rng(3).random(BASE.shape) < 0.9, np.nan, BASE),
    "only gaps": np.full_like(BASE, np.nan),
    **TABLES,
}
GROUPS: dict[str, Any] = {"missing": "groups", "missing_groups": [[0, 1]]}


def parts(X: Any, count: int = 4) -> dict[str, Any]:
    return {f"site {at}": X[at * (COUNT // count) : (at + 1) * (COUNT // count)] for at in range(count)}


def slots(X: Any, **choices: Any) -> Any:
    stream = FederatedStream(2, slots=3, **TERMS | choices)
    for at in range(3):
        stream.partial_fit(parts(X[at * 160 : (at + 1) * 160].repeat(3, axis=0)))
    return stream


def stream(X: Any, **choices: Any) -> Any:
    pca = StreamingPCA(2, **{**TERMS, "block_size": 120, **choices})
    for at in range(4):
        pca.partial_fit(X[at * 120 : (at + 1) * 120])
        if choices.get("publish", "sync") == "sync":
            pca.sync()
    return pca.sync()


FITS: dict[str, Callable[[Any], Any]] = {
    "private bound": lambda X: PrivatePCA(2, **BUDGET).fit(X),
    "given bound": lambda X: PrivatePCA(2, **TERMS).fit(X),
    "private scale": lambda X: PrivatePCA(2, **BUDGET | {"epsilon": 9.0}, scale="private").fit(X),
    "given scale": lambda X: PrivatePCA(2, **TERMS, scale=[1, 2, 1, 1, 3]).fit(X),
    "column bounds": lambda X: PrivatePCA(2, column_bounds=(-9, 9), **BUDGET).fit(X),
    "zero-out": lambda X: PrivatePCA(2, **BUDGET, neighbours="zero-out").fit(X),
    "replace-one": lambda X: PrivatePCA(2, **BUDGET, neighbours="replace-one", whiten=True).fit(X),
    "power": lambda X: PrivatePCA(2, **TERMS, method="power").fit(X),
    "sparse": lambda X: PrivatePCA(2, **TERMS).fit(sp.csr_array(X)),
    "frame": lambda X: PrivatePCA(2, **TERMS).fit(pd.DataFrame(X, columns=list("abcde"))),
    "sites": lambda X: FederatedPCA(2, **BUDGET).fit(parts(X)),
    "sites, own noise": lambda X: FederatedPCA(2, **TERMS, trust="site").fit(parts(X)),
    "sites, power": lambda X: FederatedPCA(2, **TERMS, trust="site", method="power").fit(parts(X)),
    "sites, masked": lambda X: FederatedPCA(2, **TERMS, trust="masked").fit(parts(X)),
    "peers": lambda X: GossipPCA(2, graph="complete", **TERMS).fit(parts(X)),
    "peers, covariance": lambda X: GossipPCA(2, graph="complete", **TERMS, method="covariance").fit(parts(X)),
    "stream": stream,
    "stream, private bound": lambda X: stream(X, row_bound="private", block_size=240),
    "stream, blocks": lambda X: stream(X, publish="block"),
    "stream, tree": lambda X: stream(X, publish="continual", horizon=COUNT),
    "slots": slots,
    "slots, own noise": lambda X: slots(X, trust="site", neighbours="add-remove"),
    "slots, masked": lambda X: slots(X, trust="masked", forget=0.8),
    "slots, device": lambda X: slots(X, one_person_per_site=True),
    "bounds": lambda X: find_bounds(X, **BUDGET),
    "bounds of columns": lambda X: find_column_bounds(X, **BUDGET),
    "spectrum": lambda X: released_spectrum(X, **TERMS),
}
TORN: dict[str, Callable[[Any], Any]] = {
    "counts": lambda X: PrivatePCA(2, **BUDGET, missing="counts").fit(X),
    "groups": lambda X: PrivatePCA(2, **TERMS, **GROUPS).fit(X),
    "drop": lambda X: PrivatePCA(2, **TERMS, missing="drop").fit(X),
    "drop, power": lambda X: PrivatePCA(2, **TERMS, missing="drop", method="power").fit(X),
    "fill": lambda X: PrivatePCA(2, **TERMS, missing="fill", missing_fill=0.5).fit(X),
    "sites, counts": lambda X: FederatedPCA(2, **TERMS, trust="site", missing="counts").fit(parts(X)),
    "sites, masked, drop": lambda X: FederatedPCA(2, **TERMS, trust="masked", missing="drop").fit(parts(X)),
    "peers, counts": lambda X: GossipPCA(2, graph="complete", **TERMS, method="covariance", missing="counts").fit(parts(X)),
    "stream, counts": lambda X: stream(X, missing="counts"),
    "stream, blocks, counts": lambda X: stream(X, missing="counts", publish="block"),
    "stream, drop": lambda X: stream(X, missing="drop"),
    "slots, counts": lambda X: slots(X, missing="counts"),
    "slots, masked, groups": lambda X: slots(X, trust="masked", **GROUPS),
    "slots, own noise, drop": lambda X: slots(X, trust="site", missing="drop"),
    "bounds, counts": lambda X: find_bounds(X, **BUDGET, missing="counts"),
    "bounds of columns, counts": lambda X: find_column_bounds(X, **BUDGET, missing="counts"),
    "spectrum, counts": lambda X: released_spectrum(X, **TERMS, missing="counts"),
}
CASES = [(name, fit, TABLES) for name, fit in FITS.items()] + [(name, fit, GAPS) for name, fit in TORN.items()]


@pytest.mark.parametrize(("fit", "tables"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_tables_with_equal_releases_show_the_same(fit: Callable[[Any], Any], tables: dict[str, Array]) -> None:
    tape = Tape()
    with taped(tape):
        first = shown_of(fit, BASE)
        assert "raised" not in first, first
        assert len(tape.released) > 0
        for name, table in tables.items():
            tape.at = 0
            other = shown_of(fit, table)
            assert other == first, name
            assert tape.at == len(tape.released), name


# Under these the number of rows is private as well.
HIDDEN = [
    *("private bound", "given bound", "private scale", "given scale", "column bounds", "power", "sparse", "frame"),
    *("sites", "sites, own noise", "sites, power", "sites, masked", "peers", "peers, covariance", "slots, own noise"),
    *("bounds", "bounds of columns", "spectrum", "counts", "groups", "drop", "drop, power", "fill", "sites, counts"),
    *("sites, masked, drop", "peers, counts", "bounds, counts", "bounds of columns, counts", "spectrum, counts"),
]


@pytest.mark.parametrize("name", HIDDEN)
def test_tables_with_a_row_more_and_equal_releases_show_the_same(name: str) -> None:
    """Also where the row is the only one of its site, or of its slot."""
    fit, few = (FITS | TORN)[name], 3 * COUNT // 4
    # The second time the last of four sites has one row or none.
    for count in (COUNT, few + 1):
        tape = Tape()
        with taped(tape):
            first = shown_of(fit, BASE[:count])
            assert "raised" not in first, first
            tape.at = 0
            assert shown_of(fit, BASE[: count - 1]) == first


def test_a_leak_is_noticed() -> None:
    """A warning about rows, and a number that was not released."""

    def leaking(X: Array) -> Any:
        if np.abs(X).max() > 100:
            warnings.warn("Some entries are large", stacklevel=1)
        return PrivatePCA(2, **TERMS).fit(X)

    tape = Tape()
    with taped(tape):
        first = shown_of(leaking, BASE)
        tape.at = 0
        assert shown_of(leaking, TABLES["sentinels"]) != first


ESTIMATORS = [case for case in CASES if not case[0].startswith("bounds")]


@pytest.mark.parametrize("fit", [case[1] for case in ESTIMATORS], ids=[case[0] for case in ESTIMATORS])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.filterwarnings("ignore::eigenveil.errors.ParameterWarning", "ignore::eigenveil.errors.WeakGuaranteeWarning")
def test_every_number_is_finite_however_loud_the_noise(
    fit: Callable[[Any], Any], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for terms in (BUDGET, TERMS):
        monkeypatch.setitem(terms, "epsilon", 0.2)
        monkeypatch.setitem(terms, "random_state", seed)
    try:
        found = fit(rows(seed) if seed % 2 else np.zeros((COUNT, DIM)))
    except ParameterError as error:
        # A search that needs more people says so from what was released.
        assert "too small" in str(error)
        return
    fields = SHOWN if hasattr(found, "fit") else [name for name in dir(found) if not name.startswith("_")]
    values = {name: np.asarray(getattr(found, name, 0.0)) for name in fields}
    numbers = {name: value for name, value in values.items() if value.dtype.kind == "f"}
    assert len(numbers) > 0
    assert {name: value for name, value in numbers.items() if not np.isfinite(value).all()} == {}
