"""Seeded fits of the golden corpus: every estimator, with its methods, trusts, bounds, units and rules for missing values."""

import hashlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pandas as pd

from eigenveil import (
    FederatedPCA,
    FederatedStream,
    GossipPCA,
    PrivatePCA,
    PrivateRecommender,
    StreamingPCA,
    find_bounds,
    find_column_bounds,
    released_spectrum,
)

__all__ = ["FITS", "digest", "fit_entry", "fits", "same_arithmetic"]

_RNG: Final = np.random.default_rng(20)
ROWS: Final = _RNG.standard_normal((900, 6)) * [6, 4, 2, 1, 1, 0.5] + [1, 0, 0, 2, 0, 0]
GAPS: Final = np.where(_RNG.random(ROWS.shape) < [0.3, 0.3, 0, 0.1, 0.1, 0], np.nan, ROWS)
TABLE: Final = pd.DataFrame(ROWS, columns=list("abcdef")).assign(who=np.arange(900) // 2)
USERS: Final = (_RNG.random((700, 8)) < np.repeat([0.7, 0.2], 4)).astype(float)
BUDGET: Final[dict[str, Any]] = {"epsilon": 3.0, "delta": 1e-6, "random_state": 1}
EXACT: Final[dict[str, Any]] = {"epsilon": None, "random_state": 1}
# What a fit released or decided, by the attribute that has it.
_NUMBERS: Final = (
    "components_",
    "explained_variance_",
    "explained_variance_ratio_",
    "mean_",
    "scale_",
    "noise_floor_",
    "item_degrees_",
)
# The same of a search for bounds or a spectrum.
_RESULTS: Final = ("row_bound", "mean_bound", "center", "low", "high", "clipped", "people", "people_error")
_TEXTS: Final = ("method_", "rounds_", "n_above_noise_", "row_bound_", "clipped_fraction_", "bound_usage_", "warnings_")


def same_arithmetic() -> str:
    """A digest of this machine's arithmetic. Where it is another one, last bits differ and only digits can be compared."""
    rng = np.random.default_rng(0)
    square = rng.standard_normal((65, 65))
    square = square @ square.T
    return digest(square, *np.linalg.eigh(square), *np.linalg.qr(square[:, :9]), np.exp(square[0] / 100), bits=True)


def digest(*arrays: Any, bits: bool) -> str:
    """Twelve hexadecimal digits of the numbers: of all their bits, or of the first seven digits of the largest of each array."""
    found = hashlib.sha256()
    for array in arrays:
        numbers = np.atleast_1d(np.asarray(array, dtype="<f8"))
        if not bits:
            largest = np.max(np.abs(numbers), initial=0, where=np.isfinite(numbers))
            # Adding zero turns -0 into 0.
            numbers = np.round(numbers / (largest or 1.0), 7) + 0.0
            found.update(f"{largest:.6e}".encode())
        found.update(str(numbers.shape).encode() + numbers.tobytes())
    return found.hexdigest()[:12]


def fit_entry(make: Callable[[], Any]) -> str:
    """What a fit came to, in lines: digests of its numbers, its settings, its guarantee and its warnings; or its refusal."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            fitted = make()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    lines = []
    for name in _NUMBERS if hasattr(fitted, "guarantee_") else _RESULTS:
        numbers = getattr(fitted, name, None)
        if numbers is not None:
            lines.append(f"{name} {digest(numbers, bits=False)} bits {digest(numbers, bits=True)}")
    lines += [f"{name} {_shown(getattr(fitted, name))}" for name in (*_TEXTS, "note") if getattr(fitted, name, None) is not None]
    if hasattr(fitted, "model_"):
        lines += [f"setting {name} = {_shown(value)}" for name, value in sorted(fitted.model_.settings.items())]
    guarantee = getattr(fitted, "guarantee_", None) or fitted.guarantee
    page = str(guarantee)
    lines += [f"guarantee {guarantee.headline}", *page[max(page.find("\nNoise:"), 0) :].strip().splitlines()]
    lines += sorted({f"warning {one.category.__name__}: {one.message}" for one in caught})
    return "\n".join(lines)


def _shown(value: Any) -> str:
    """A value with nine digits of every number, which do not depend on the machine."""
    if isinstance(value, float | np.floating):
        return f"{value:.9g}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_shown(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list | tuple | np.ndarray):
        return "[" + ", ".join(_shown(one) for one in value) + "]"
    return str(value)


def _one_table() -> Iterator[tuple[str, Callable[[], Any]]]:
    def one(name: str, rows: Any = ROWS, **choices: Any) -> tuple[str, Callable[[], Any]]:
        return f"one table, {name}", lambda: PrivatePCA(**({"n_components": 2} | BUDGET | choices)).fit(rows)

    for method in ("auto", "covariance", "power"):
        for neighbours in ("add-remove", "zero-out", "replace-one"):
            yield one(f"{method}, {neighbours}", method=method, neighbours=neighbours)
            yield one(f"{method}, {neighbours}, bound given", method=method, neighbours=neighbours, row_bound=12.0)
        for missing in ("counts", "groups", "drop", "fill"):
            given: dict[str, Any] = {"missing_groups": "0,1;2,3,4,5"} if missing == "groups" else {}
            given |= {"missing_fill": 0.0} if missing == "fill" else {}
            yield one(f"{method}, missing {missing}", GAPS, method=method, missing=missing, **given)
            yield one(f"{method}, missing {missing}, exact", GAPS, method=method, missing=missing, **given, **EXACT)
        yield one(f"{method}, units", method=method, scale="private")
        yield one(f"{method}, exact", method=method, **EXACT)
        yield one(f"{method}, exact, bound", method=method, row_bound=9.0, **EXACT)
        yield one(f"{method}, exact, units", method=method, scale="private", **EXACT)
        yield one(f"{method}, not centered", method=method, center=None, row_bound=12.0)
        yield one(f"{method}, people", TABLE, method=method, person="who", row_bound=12.0)
        yield one(f"{method}, both bounds", method=method, column_bounds=(-9.0, 9.0), row_bound=12.0)
    for center in (None, np.ones(6)):
        yield one(f"center {center}", center=center, row_bound=12.0)
    yield one("column bounds", row_bound=None, column_bounds=(-9.0, 9.0))
    yield one("both bounds", row_bound=12.0, column_bounds=(-9.0, 9.0))
    yield one("scale given", scale=2.0)
    yield one("scale of columns", scale=[1, 2, 3, 1, 2, 3], row_bound=8.0)
    yield one("origin", origin=1.0, mean_bound=20.0, row_bound=12.0)
    yield one("quantile", quantile=0.5)
    yield one("people", TABLE, person="who")
    yield one("people, bound", TABLE, person="who", row_bound=12.0, neighbours="replace-one")
    yield one("columns", TABLE, columns=["a", "c"])
    yield one("drop", TABLE, drop=["who"])
    yield one("whiten", whiten=True)
    yield one("rounds", method="power", rounds=2, oversample=1, row_bound=12.0)
    yield one("a share of the variance", n_components=0.8)
    yield one("large epsilon", epsilon=30.0)
    yield one("insufficient budget", epsilon=0.05)


def _streams() -> Iterator[tuple[str, Callable[[], Any]]]:
    def one(name: str, rows: Any = ROWS, **choices: Any) -> tuple[str, Callable[[], Any]]:
        given = BUDGET | {"block_size": 90} | choices
        return f"stream, {name}", lambda: StreamingPCA(2, **given).fit(rows)

    for publish in ("sync", "block", "continual"):
        further: dict[str, Any] = {"horizon": 900} if publish == "continual" else {}
        for center in ("private", None):
            yield one(f"{publish}, center {center}", publish=publish, row_bound=12.0, center=center, **further)
            yield one(f"{publish}, center {center}, exact", publish=publish, center=center, **further, **EXACT)
        yield one(f"{publish}, replace-one", publish=publish, row_bound=12.0, neighbours="replace-one", **further)
        yield one(f"{publish}, bound found", publish=publish, **further)
    yield one("units", scale="private", row_bound=2.0)
    yield one("missing", GAPS, missing="counts", row_bound=12.0)
    yield one("missing, exact", GAPS, missing="counts", **EXACT)
    yield one("missing, fill", GAPS, missing="fill", missing_fill=0.0, row_bound=12.0)
    yield one("people", TABLE, person="who", person_blocks=2, row_bound=12.0)
    yield one("forget", forget=0.9, row_bound=12.0)
    yield one("column bounds", column_bounds=(-9.0, 9.0), center=None)
    yield one("small memory", memory_limit=1 << 16, row_bound=12.0)
    yield one("adaptive rank", adapt=(0.1, 0.9), **EXACT)


def _sites() -> Iterator[tuple[str, Callable[[], Any]]]:
    sites = {f"s{at}": ROWS[at::5] for at in range(5)}
    gaps = {f"s{at}": GAPS[at::5] for at in range(5)}
    people = {f"s{at}": TABLE[at * 180 : (at + 1) * 180] for at in range(5)}

    def one(name: str, tables: Any = sites, **choices: Any) -> tuple[str, Callable[[], Any]]:
        return f"sites, {name}", lambda: FederatedPCA(2, **(BUDGET | choices)).fit(tables)

    methods = ("auto", "krylov", "power", "fedpower", "covariance", "merge", "uda", "wda", "dr-svd")
    for method in methods:
        for trust in ("hub", "site", "masked"):
            yield one(f"{method}, {trust}", method=method, trust=trust, row_bound=12.0)
        yield one(f"{method}, exact", method=method, **EXACT)
        yield one(f"{method}, exact, missing counts", gaps, method=method, missing="counts", **EXACT)
        yield one(f"{method}, tree", method=method, topology="tree", fanout=2, row_bound=12.0)
        settings: dict[str, dict[str, Any]] = {
            "bound found": {"row_bound": "private"},
            "units": {"scale": "private", "row_bound": "private"},
            "not centered": {"center": None},
            "missing counts": {"missing": "counts"},
            "replace-one": {"neighbours": "replace-one"},
        }
        for name, choices in settings.items():
            tables = gaps if "missing" in choices else sites
            yield one(f"{method}, site, {name}", tables, method=method, trust="site", **({"row_bound": 12.0} | choices))
    for trust in ("hub", "site", "masked"):
        yield one(f"{trust}, bound found", trust=trust)
        yield one(f"{trust}, units", trust=trust, scale="private")
        yield one(f"{trust}, replace-one", trust=trust, neighbours="replace-one", row_bound=12.0)
        yield one(f"{trust}, missing counts", gaps, trust=trust, missing="counts", row_bound=12.0)
        yield one(f"{trust}, missing fill", gaps, trust=trust, missing="fill", missing_fill=0.0, row_bound=12.0)
        yield one(f"{trust}, people", people, trust=trust, person="who", row_bound=12.0)
    yield one("both", trust="both", epsilon=(4.0, 2.0), delta=(1e-6, 1e-6), row_bound=12.0)
    yield one("person at three sites", person_sites=3, row_bound=12.0)
    yield one("survivors", trust="masked", survivors=4, colluders=2, row_bound=12.0)
    for align in ("procrustes", "sign", "none"):
        yield one(f"align {align}", method="fedpower", trust="site", local_steps=2, align=align, row_bound=12.0)
    yield one("drawn", method="power", participation=("without-replacement", 2), row_bound=12.0)


def _peers() -> Iterator[tuple[str, Callable[[], Any]]]:
    peers = [ROWS[at::5] for at in range(5)]
    gaps = [GAPS[at::5] for at in range(5)]
    people = [TABLE[at * 180 : (at + 1) * 180] for at in range(5)]

    def one(name: str, tables: Any = peers, **choices: Any) -> tuple[str, Callable[[], Any]]:
        given = BUDGET | {"graph": "complete", "row_bound": 12.0} | choices
        return f"peers, {name}", lambda: GossipPCA(2, **given).fit(tables)

    for method in ("power", "krylov", "covariance", "segments"):
        for noise in ("pairwise", "independent"):
            yield one(f"{method}, {noise}", method=method, noise=noise)
        yield one(f"{method}, exact", method=method, noise=None, row_bound=None, **EXACT)
        yield one(f"{method}, exact, missing", gaps, method=method, noise=None, row_bound=None, missing="counts", **EXACT)
        yield one(f"{method}, not centered", method=method, center=None)
        yield one(f"{method}, bound found", method=method, row_bound="private", noise="independent")
        yield one(f"{method}, units", method=method, row_bound="private", scale="private", noise="independent")
        yield one(f"{method}, missing", gaps, method=method, missing="counts")
    for consensus in ("metropolis", "chebyshev", "tree"):
        yield one(f"ring, {consensus}", graph="ring", consensus=consensus)
    yield one("people", people, person="who")
    yield one("restarts", restarts=2, quorum=4, noise="independent")


def _slots() -> Iterator[tuple[str, Callable[[], Any]]]:
    def one(name: str, rows: Any = ROWS, **choices: Any) -> tuple[str, Callable[[], Any]]:
        given: dict[str, Any] = BUDGET | {"slots": 4, "row_bound": 12.0} | choices

        def run() -> FederatedStream:
            stream = FederatedStream(2, **given)
            for slot in range(3):
                stream.partial_fit({f"s{at}": rows[slot * 300 + at : (slot + 1) * 300 : 4] for at in range(4)})
            return stream

        return f"slots, {name}", run

    for trust in ("hub", "site", "masked"):
        for neighbours in ("zero-out", "add-remove", "replace-one"):
            yield one(f"{trust}, {neighbours}", trust=trust, neighbours=neighbours)
        yield one(f"{trust}, missing", GAPS, trust=trust, missing="counts")
        yield one(f"{trust}, device", trust=trust, one_person_per_site=True)
        yield one(f"{trust}, person in two", trust=trust, person_slots=2, forget=0.9)
        yield one(f"{trust}, bound found", trust=trust, row_bound="private")
        yield one(f"{trust}, units", trust=trust, scale="private")
        yield one(f"{trust}, not centered", trust=trust, center=None)
    yield one("tree", topology="tree", fanout=2, trust="site")
    yield one("exact", row_bound=None, **EXACT)


def _recommender() -> Iterator[tuple[str, Callable[[], Any]]]:
    def one(name: str, users: Any = USERS, **choices: Any) -> tuple[str, Callable[[], Any]]:
        given = BUDGET | {"delta": 1e-4, "on_noise": "warn"} | choices
        return f"recommender, {name}", lambda: PrivateRecommender(2, **given).fit(users)

    for unit in ("user", "item"):
        for method in ("covariance", "power"):
            yield one(f"{unit}, {method}", unit=unit, method=method)
        yield one(f"{unit}, exact", unit=unit, epsilon=None, delta=None)
    for trust in ("hub", "site", "masked"):
        yield one(f"sites, {trust}", np.array_split(USERS, 5), trust=trust)
        yield one(f"sites, {trust}, add-remove", np.array_split(USERS, 5), trust=trust, neighbours="add-remove")
    yield one("add-remove", neighbours="add-remove", item_degrees="private")
    yield one("replace-one", neighbours="replace-one")
    yield one("some items", items=6)
    yield one("both normalised", normalise="both", item_degrees="private")


def _searches() -> Iterator[tuple[str, Callable[[], Any]]]:
    def one(name: str, search: Callable[..., Any], rows: Any = ROWS, **choices: Any) -> tuple[str, Callable[[], Any]]:
        return name, lambda: search(rows, **(BUDGET | choices))

    for relation in ("add-remove", "zero-out", "replace-one"):
        yield one(f"bounds, {relation}", find_bounds, neighbours=relation)
        yield one(f"column bounds, {relation}", find_column_bounds, neighbours=relation)
        yield one(f"spectrum, {relation}", released_spectrum, neighbours=relation, row_bound=12.0)
    yield one("bounds, people", find_bounds, TABLE, person="who")
    yield one("bounds, missing", find_bounds, GAPS, missing="counts")
    yield one("spectrum, exact", released_spectrum, row_bound=12.0, **EXACT)


FITS: Final[dict[str, dict[str, Callable[[], Any]]]] = {
    "fits-one-table": dict(_one_table()),
    "fits-streams": dict(_streams()),
    "fits-sites": dict(_sites()),
    "fits-peers": dict(_peers()),
    "fits-slots": dict(_slots()),
    "fits-recommender": dict(_recommender()),
    "fits-searches": dict(_searches()),
}


def fits(section: str) -> dict[str, str]:
    """The entries of one estimator."""
    return {name: fit_entry(make) for name, make in FITS[section].items()}
