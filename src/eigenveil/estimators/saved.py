"""What a model's file keeps of the estimator that fitted it, so that `load` can give back a fitted estimator.

The parameters of the fit are public choices. Left out are those that must not be in a file that is made to be published: the
seed, with which anyone could subtract the noise; identifiers of people; and the ledger, which is an account and no choice.
"""

import math
import numbers
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from eigenveil.data.people import Withheld
from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.params.declare import declared

__all__ = ["ESTIMATOR", "observed_in", "parameters_in", "record_of", "with_parameters"]

# What a record calls the class of the estimator.
ESTIMATOR: Final = "class"
# A guess at the number of people would be read as that number. For the others see above.
_LEFT_OUT: Final = ("random_state", "ledger", "people")
_MOST_NESTED: Final = 4


def record_of(estimator: Any, *, noise_variance: float, observed: Array | None) -> dict[str, Any]:
    """The class, the parameters and what else a fitted estimator has beside its model, as plain values.

    >>> from eigenveil import PrivatePCA
    >>> record_of(PrivatePCA(2, epsilon=None, scale=(1, 2)), noise_variance=0.5, observed=None)["parameters"]["scale"]
    {'tuple': [1, 2]}
    """
    # Not `get_params`, which looks at the signature anew each time: a tenth of a millisecond in every fit.
    given = {name: getattr(estimator, name) for name in sorted(declared(type(estimator))) if name not in _LEFT_OUT}
    if given.get("person") is not None and not isinstance(given["person"], str):
        given["person"] = Withheld()
    kept = {name: _kept(value) for name, value in given.items()}
    return {
        ESTIMATOR: type(estimator).__name__,
        "parameters": {name: value for name, value in kept.items() if value is not _NOTHING},
        "noise_variance": noise_variance,
        "observed": None if observed is None else observed.tolist(),
    }


def with_parameters(record: Mapping[str, Any], **given: Any) -> dict[str, Any]:
    """The record with other values of some parameters: those that a command has used up while it read the rows."""
    kept = {name: _plain(value, depth=0) for name, value in given.items()}
    return {**record, "parameters": {**record["parameters"], **kept}}


def parameters_in(record: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The parameters of an estimator of this `kind`; a `ValueError` for what is none. Those left out have their defaults."""
    given = record.get("parameters")
    require(isinstance(given, dict), "its parameters are not a table")
    assert isinstance(given, dict)
    known = set(declared(kind)) - set(_LEFT_OUT)
    require(set(given) <= known, f"{kind.__name__} has no parameter {', '.join(sorted(set(given) - known))}")
    return {name: _value(value) for name, value in given.items()}


def observed_in(record: Mapping[str, Any], dim: int) -> Array | None:
    """The released rates of entries, (d,), None where nothing was counted."""
    found = record.get("observed")
    if found is None:
        return None
    rates = np.asarray(found, dtype=np.float64)
    require(
        rates.shape == (dim,) and bool(np.isfinite(rates).all()), "its rates of entries are not one number per column"
    )
    return rates


_NOTHING: Final = object()


def _kept(value: Any) -> Any:
    try:
        return _plain(value, depth=0)
    except Exception:
        # An object of another library may raise anything, and the fit is paid for.
        return _NOTHING


def _plain(value: Any, *, depth: int) -> Any:
    """A value for JSON, with its type where JSON has none; `_NOTHING` for what cannot be kept."""
    # Most are one of these. Numpy's numbers and texts are subclasses, and need more care.
    if value is None or type(value) in (str, bool, int):
        return value
    if isinstance(value, Withheld):
        return {"withheld": True}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        number = float(value)
        return number if math.isfinite(number) else {"float": str(number)}
    if depth == _MOST_NESTED:
        return _NOTHING
    if hasattr(value, "edges"):
        # A graph, ours or of networkx. It is connected, so its edges are all of it.
        return [{"tuple": [_plain(end, depth=depth + 1) for end in edge]} for edge in value.edges]
    if hasattr(value, "__array__") and (array := np.asarray(value)).dtype.kind in "biufU":
        # Columns of pandas and polars, too.
        return {"array": _plain(array.tolist(), depth=depth + 1), "dtype": array.dtype.str}
    if isinstance(value, Mapping):
        pairs = [[key, _plain(part, depth=depth + 1)] for key, part in value.items()]
        good = all(isinstance(key, str) and part is not _NOTHING for key, part in pairs)
        return {"dict": pairs} if good else _NOTHING
    if isinstance(value, set | frozenset):
        value = sorted(value, key=repr)
    if isinstance(value, list | tuple):
        parts = [_plain(part, depth=depth + 1) for part in value]
        if any(part is _NOTHING for part in parts):
            return _NOTHING
        return parts if isinstance(value, list) else {"tuple": parts}
    return _NOTHING


def _value(plain: Any) -> Any:
    """The value that `_plain` made this of. The file may come from anybody: nothing but numbers, words and lists comes out."""
    match plain:
        case None | bool() | int() | float() | str():
            return plain
        case list():
            return [_value(part) for part in plain]
        case {"withheld": True}:
            return Withheld()
        case {"float": "inf" | "-inf" | "nan" as word}:
            return float(word)
        case {"tuple": list(parts)}:
            return tuple(_value(part) for part in parts)
        case {"dict": list(pairs)}:
            return {str(key): _value(part) for key, part in pairs}
        case {"array": parts, "dtype": str(dtype)}:
            require(np.dtype(dtype).kind in "biufU", "its parameters have an array of another type")
            return np.asarray(_value(parts), dtype=dtype)
    raise ValueError("its parameters cannot be read")
