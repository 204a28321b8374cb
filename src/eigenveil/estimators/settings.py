"""The settings of a model: the public choices of a fit as plain values, derived from the declarations of its parameters.

`asked_settings` records what the caller asked for. `settings_of` adds what the fit found. Every kind of fit uses both.
"""

import math
from collections.abc import Mapping
from numbers import Integral
from typing import Any, Final, Literal, get_args, get_origin

from eigenveil.core.unit import Neighbours
from eigenveil.estimators.verdict import flat_columns
from eigenveil.linalg import Array
from eigenveil.params.declare import Declared, declared
from eigenveil.params.values import HasArray, as_float
from eigenveil.tasks.fit.bounds import RowBounds

__all__ = ["asked_settings", "bound_settings", "settings_of"]

_PER_COLUMN: Final = "one number per column"


def settings_of(
    asked: dict[str, Any], *, method: str, why: str, neighbours: Neighbours | None, **facts: Any
) -> dict[str, Any]:
    """The method and why, the `neighbours` of the guarantee (None for no privacy), what was `asked`, and `facts`.

    A fact replaces the parameter of that name, because it is what the fit made of it. A fact of None is unknown or means
    nothing here. It is left out, and so is the parameter.

    >>> settings_of({"rounds": 9, "align": "sign"}, method="power", why="asked for", neighbours=None, width=4, rounds=None)
    {'method': 'power', 'why': 'asked for', 'align': 'sign', 'width': 4, 'neighbours': 'none'}
    """
    first = {"method": method, "why": why}
    if neighbours is None and asked.get("center") == "private":
        # "private" would be read as a guarantee.
        asked = asked | {"center": "exact mean"}
    # Twice `first`: it comes first in the file, and no parameter may replace it.
    found = first | asked | facts | first | {"neighbours": "none" if neighbours is None else neighbours.value}
    return {name: value for name, value in found.items() if value is not None}


def bound_settings(
    asked: dict[str, Any], bounds: RowBounds, row_bound: float | None, units: Array | None = None
) -> dict[str, Any]:
    """Facts about the row bound and the units: those that were found privately, or None where nothing was searched for.

    Flat columns, which are not standardised, are listed by their place from zero.
    """
    if bounds.find:
        return {"row_bound": row_bound, "bound_from": "found privately"}
    if bounds.units:
        flat = list(flat_columns(bounds, units))
        # Without privacy nothing is clipped unless the caller said so.
        finite = row_bound is not None and math.isfinite(row_bound)
        return {
            "row_bound": row_bound if finite else None,
            "scale_from": "found privately" if bounds.claimed else "computed from the rows, NOT private",
            "flat_columns": flat or None,
        }
    return {"row_bound": None} if isinstance(asked.get("row_bound"), str) else {}


def asked_settings(asked: Any) -> dict[str, Any]:
    """The checked parameters that a model records, by name: those that apply to the fit, except with `recorded=False`.

    Rows and identifiers of people cannot get in. A value is recorded if it is a number, a truth value or a word that the
    declaration lists. Other text, arrays and objects are recorded only if the declaration says that all values are public.

    >>> from eigenveil.params import PrivateParams
    >>> sorted(asked_settings(PrivateParams(5, epsilon=1.0, delta=1e-6, row_bound=2.0, person=["Ann", "Bob"])))
    ['calibration', 'center', 'method', 'n_components', 'neighbours', 'row_bound']
    """
    known = {name: (one, getattr(asked, name)) for name, one in declared(type(asked)).items() if one.holds(asked)}
    found = {
        name: _public(one, value)
        for name, (one, value) in known.items()
        if one.param.recorded is not False and not (one.param.quiet and one.at_default(value))
    }
    return {name: value for name, value in found.items() if value is not None}


def _public(one: Declared, value: Any) -> Any:
    """What a model records of a value, None for nothing."""
    if value is None:
        return one.param.none
    if one.param.recorded or any(_is_of(value, kind) for kind in one.kinds):
        return _plain(value)
    return _PER_COLUMN if HasArray in one.kinds and hasattr(value, "__len__") else None


def _is_of(value: Any, kind: Any) -> bool:
    """Whether a value is of a kind that cannot hold rows: a listed word, a truth value, a number, or a tuple of these."""
    inner = get_args(kind)
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in inner
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and len(value) == len(inner) and all(map(_is_of, value, inner))
    return isinstance(value, bool) if kind is bool else kind in (int, float) and not math.isnan(as_float(value))


def _plain(value: Any) -> Any:
    """A value for JSON: words, truth values, numbers and lists of these. None for anything else."""
    if isinstance(value, str | bool):
        return value
    if isinstance(value, Mapping):
        # Public levels by column.
        return {str(name): _plain(part) for name, part in value.items()} or None
    if isinstance(value, tuple | list):
        # A list of lists stays out, because a table of rows looks the same.
        parts = [_plain(part) for part in value]
        return None if any(part is None or isinstance(part, list) for part in parts) else parts
    number = as_float(value)
    # JSON has neither NaN nor infinity.
    if not math.isfinite(number):
        return None
    return int(value) if isinstance(value, Integral) else number
