"""Bounds, units and origins at the ends of what floats hold: a fit gives finite numbers, or is refused before any charge."""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from eigenveil import FederatedPCA, GossipPCA, Ledger, PrivatePCA, find_bounds, find_column_bounds, released_spectrum
from eigenveil.errors import ParameterError

pytestmark = pytest.mark.usefixtures("unplanned")
RNG = np.random.default_rng(0)
WHOLE = RNG.standard_normal((300, 4))
TORN = np.where(RNG.random((300, 4)) < 0.1, np.nan, WHOLE)
RULES: dict[str, dict[str, Any]] = {
    "refuse": {},
    "counts": {"missing": "counts"},
    "groups": {"missing": "groups", "missing_groups": "0,1;2"},
    "drop": {"missing": "drop"},
    "fill": {"missing": "fill", "missing_fill": 1e300},
}
FAR = (1e-100, 1e-60, 1e60, 1e80, 1e100, 1e300)
LARGE: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-5, "random_state": 0}


def settings() -> Iterator[dict[str, Any]]:
    """Every number about where rows lie, far out, alone and with others."""
    for far in FAR:
        yield {"row_bound": far}
        yield {"row_bound": far, "center": None}
        yield {"row_bound": far, "mean_bound": far}
        yield {"row_bound": 3.0, "mean_bound": far}
        yield {"row_bound": 3.0, "scale": far}
        yield {"row_bound": far, "scale": far}
        yield {"row_bound": far, "scale": "private"}
        yield {"row_bound": 3.0, "origin": far}
        yield {"row_bound": 3.0, "origin": far, "scale": 1e-100}
        yield {"row_bound": 3.0, "center": np.full(4, far), "scale": 1e-100}
        yield {"row_bound": None, "column_bounds": (-far, far)}
        yield {"row_bound": None, "column_bounds": (-1.0, 1.0), "scale": far}
        yield {"mean_bound": far}
        yield {"origin": far}
        yield {"scale": far}


def finite_or_free(fit: Any, ledger: Ledger) -> str:
    """What became of a release: an answer, or a refusal that cost nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = fit()
    except ParameterError as error:
        assert ledger.charges == (), error
        return "refused"
    for name in ("components_", "mean_", "explained_variance_", "noise_floor_"):
        assert np.isfinite(getattr(found, name, 0.0)).all(), name
    return "answered"


@pytest.mark.parametrize("rule", RULES)
def test_fits_are_finite_or_free(rule: str) -> None:
    ends = set()
    for choice in settings():
        for near in ("add-remove", "replace-one"):
            ledger = Ledger(epsilon=100.0, delta=1e-3)
            how: dict[str, Any] = LARGE | RULES[rule] | choice | {"neighbours": near, "ledger": ledger}
            rows = WHOLE if rule == "refuse" else TORN
            ends.add(finite_or_free(lambda how=how, rows=rows: PrivatePCA(2, **how).fit(rows), ledger))
    assert ends == {"answered", "refused"}


@pytest.mark.parametrize("rule", RULES)
def test_sites_and_small_releases_too(rule: str) -> None:
    rows = WHOLE if rule == "refuse" else TORN
    parts = {f"site {at}": part for at, part in enumerate(np.array_split(rows, 4))}
    kinds: tuple[tuple[Any, dict[str, Any]], ...] = ((FederatedPCA, {"trust": "masked"}), (GossipPCA, {"graph": "complete"}))
    for at, choice in enumerate(settings()):
        how: dict[str, Any] = LARGE | RULES[rule] | choice
        # Fifteen settings for each distance: in turn, so that each of both meets half of all pairs.
        kind, more = kinds[(at + at // 15 + list(RULES).index(rule)) % 2]
        with warnings.catch_warnings(), contextlib.suppress(ParameterError):
            warnings.simplefilter("ignore")
            assert np.isfinite(kind(2, **how, **more).fit(parts).components_).all()
        ledger = Ledger(epsilon=100.0, delta=1e-3)
        if choice.get("row_bound") not in (None, "private") and choice.get("scale") != "private":
            finite_or_free(lambda how=how, ledger=ledger: released_spectrum(rows, **how, ledger=ledger), ledger)


@pytest.mark.parametrize("release", [find_bounds, find_column_bounds, released_spectrum])
def test_units_to_be_found_are_those_of_a_fit(release: Any) -> None:
    ledger = Ledger(epsilon=9.0, delta=1e-3)
    more: dict[str, Any] = {"row_bound": 3.0} if release is released_spectrum else {}
    for word in ("private", "auto"):
        with pytest.raises(ValueError, match="scale must be a number or one per column: only a fit takes scale='private'"):
            release(WHOLE, epsilon=1.0, delta=1e-5, scale=word, ledger=ledger, **more)
    assert ledger.charges == ()
