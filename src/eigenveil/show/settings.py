"""Settings and methods in the words of a person who writes them down."""

from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any, Final

from eigenveil.errors import listed, shown
from eigenveil.methods import METHODS
from eigenveil.show.marks import in_bytes
from eigenveil.trackers import TRACKERS

__all__ = ["readable_settings"]

_RELATIONS: Final = {
    "add-remove": "add/remove: one has a row more than the other",
    "zero-out": "zero-out: one row is blank in one of them",
    "replace-one": "replace-one: one row differs",
    "none": "none, because nothing is private",
}
_VALUES: Final[dict[str, dict[str, str]]] = {
    "method": {
        **{leaf.name: leaf.phrase.removeprefix("the ").removeprefix("a ") for leaf in METHODS.values()},
        **{f"stream, {kind.name}": kind.title for kind in TRACKERS.values() if kind.title},
    },
    "neighbours": _RELATIONS,
    "center": {
        "private": "estimated privately",
        "none": "none was subtracted",
        "exact mean": "exact",
    },
    "calibration": {"exact": "exact for this budget", "paper": "as published"},
    "trust": {"hub": "the hub", "site": "each site", "both": "each site and the hub"},
    "topology": {"star": "sites around a hub", "tree": "sites in a tree"},
    "noise": {
        "pairwise": "pairwise: it cancels only in sums over all peers",
        "independent": "independent at each peer",
    },
    "publish": {kind.publishes: kind.moments for kind in TRACKERS.values() if kind.publishes},
    "unit": {"user": "a user's whole history", "item": "one interaction of a user"},
    "item_degrees": {"none": "not used", "released": "released with noise", "given as public": "given"},
    "normalise": {"filter": "in the filter alone", "both": "in the filter and in the histories"},
}
_LABELS: Final = {
    "n_components": "components",
    "bytes": "traffic",
    "why": "why this method",
    "center": "mean",
    "neighbours": "neighbouring tables",
    "calibration": "noise calibration",
    "width": "vectors per product",
    "trust": "who adds the noise",
    "survivors": "sites in every sum, at least",
    "split": "how rows were split",
    "topology": "arrangement",
    "consensus": "averaging between peers",
    "steps": "averaging steps per round",
    "publish": "releases happen",
    "forget": "weight of older rows",
    "block": "rows per block",
    "oversample": "extra directions kept",
    "unit": "privacy unit",
    "min_degree": "histories count at least as long as",
    "normalise": "item degrees are used",
    "demo": "dataset",
    "scale": "scale of columns",
}
# Said where they belong, or part of another line.
_ELSEWHERE: Final = frozenset({"noise_floor", "fill", "clipped", "norms", "outliers", "bound_from", "scale_from"})


def readable_settings(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The settings of a fit as labels and texts, except those that a report shows elsewhere.

    >>> dict(readable_settings({"method": "covariance", "row_bound": 2.0, "bound_from": "found privately", "rounds": 1}))
    {'method': 'one release of the covariance', 'row bound': '2, estimated privately'}
    """
    leaf = METHODS.get(str(settings.get("method")))
    covariance = leaf is not None and leaf.releases_gram
    for name, value in settings.items():
        # A release of the covariance has no products, and a tolerance of zero stops nothing.
        if name in _ELSEWHERE or (covariance and name == "width") or (name == "tolerance" and value == 0):
            continue
        if covariance and name == "rounds" and value == 1:
            continue
        # An exact fit has no noise to calibrate.
        if name == "calibration" and settings.get("neighbours") == "none":
            continue
        yield _LABELS.get(name, name.replace("_", " ")), _text_of(name, value, settings)
    if settings.get("scale_from") is not None:
        exact = settings.get("neighbours") == "none"
        where = "exact standard deviations, not private" if exact else "estimated privately"
        yield "scale of columns", f"{where}; columns were divided by it"


def _text_of(name: str, value: Any, settings: Mapping[str, Any]) -> str:
    if name == "bytes" and isinstance(value, int):
        return in_bytes(value)
    if name == "trust" and isinstance(value, str) and value.startswith("masked, "):
        return f"the sites together, under masks: {value.removeprefix('masked, ')}"
    if name == "forget" and value == 1:
        return "the same as of new ones"
    if name == "why" and isinstance(value, str):
        # The method's name stands on the line above.
        return value.removeprefix(f"{settings.get('method')}: ")
    if name == "column_bounds" and isinstance(value, list) and len(value) == 2:
        return " to ".join(shown(end) for end in value)
    if name == "row_bound" and isinstance(value, Real):
        # Scales that were found make one bound for all tables, the root of the number of columns.
        where = (
            "in units of the scale of columns"
            if settings.get("scale_from") is not None
            else "given"
            if settings.get("bound_from") is None
            else "estimated privately"
        )
        return f"{float(value):.6g}, {where}"
    if value == "one number per column":
        return "given, one number per column"
    if isinstance(value, str):
        return _VALUES.get(name, {}).get(value, value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        # Public levels by column.
        return "; ".join(f"{column}: {_text_of('', levels, {})}" for column, levels in value.items())
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return listed(value)
    return f"{value:.6g}" if isinstance(value, float) else shown(value)
