"""An attack on objects in memory and in pickles: whatever can be reached is searched for numbers that are private."""

import gc
import io
import pickle
import re
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

import joblib
import numpy as np
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from eigenveil.linalg import Array

__all__ = ["COPIES", "Secrets", "reached", "through_pickles"]

# What leads out of an object and into the whole program.
_ELSEWHERE = (type, types.ModuleType, types.BuiltinFunctionType, types.TracebackType, weakref.ref, property)
# Numbers that are so to this many digits are the same: sums come out differently in another order.
_LIKE = 1e-12
# Fewer binary digits than this may be anybody's: counts, bounds, powers of two.
_FEWEST_BITS, _MANY_BITS = 11, 30


def reached(*things: Any, but: Iterable[Any] = ()) -> Iterator[Any]:
    """Every object that can be got hold of from `things`, but not what is only there through `but`.

    Attributes, slots, containers, closures, defaults, bound methods, partials, generators, and the arrays behind views.
    """
    left_out = list(but)
    seen, waiting = {id(one) for one in left_out}, list(things)
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, _ELSEWHERE):
            continue
        seen.add(id(one))
        # Kept, or another object would get its place in memory.
        left_out.append(one)
        yield one
        if isinstance(one, types.FunctionType):
            waiting += [one.__closure__, one.__defaults__, one.__kwdefaults__, one.__dict__]
        elif isinstance(one, np.ndarray):
            waiting += [one.base, *(one.ravel().tolist() if one.dtype == object else [])]
        else:
            waiting += gc.get_referents(one)


def _parts(numbers: Any) -> Array:
    """The binary digits of numbers that have enough of them, between a half and one: signs and powers of two do not hide."""
    with np.errstate(all="ignore"):
        flat = np.abs(np.asarray(numbers, dtype=np.float64).ravel())
    digits = np.frexp(flat[np.isfinite(flat) & (flat > 0)])[0]
    short = digits * 2.0**_FEWEST_BITS
    found: Array = digits[short != np.floor(short)]
    return found


def _numbers(one: Any) -> Any:
    """The numbers that an object itself holds."""
    if isinstance(one, np.ndarray) and one.dtype.kind in "iufc":
        return np.concatenate([one.real.ravel(), one.imag.ravel()]) if one.dtype.kind == "c" else one
    if isinstance(one, float | np.floating | np.integer):
        return [one]
    if isinstance(one, bytes | bytearray | memoryview):
        data = bytes(one)
        return np.frombuffer(data[: len(data) // 8 * 8], dtype="<f8")
    # A single whole number is a count of something, such as bytes.
    return []


class Secrets:
    """Numbers that nobody may come by, and where they are found all the same."""

    def __init__(self, *arrays: Any) -> None:
        self.values = np.concatenate([np.asarray(array, dtype=np.float64).ravel() for array in arrays])
        self._parts = np.unique(_parts(self.values))
        assert len(self._parts) > 10

    def held_by(self, *things: Any, but: Iterable[Any] = ()) -> list[str]:
        """What kinds of objects, in reach of `things`, hold a private number, or one times a power of two."""
        return [type(one).__name__ for one in reached(*things, but=but) if self._among(_parts(_numbers(one)))]

    def written_in(self, data: bytes) -> bool:
        """Whether one of them stands in the bytes, as a float of either order.

        A number of few digits is sought together with the next one: a length and three bytes that follow look like it.
        """
        # All places at once: few of the bytes begin like one of them, and those are looked at again.
        for start in range(min(8, len(data) - 7)):
            words = np.frombuffer(data, np.uint64, (len(data) - start) // 8, start)
            if np.isin(words, self._begun).any():
                return any(one in data for one in self._written)
        return False

    @cached_property
    def _begun(self) -> Any:
        """The first eight bytes of each."""
        return np.unique([np.frombuffer(one, np.uint64, 1)[0] for one in self._written])

    @cached_property
    def _written(self) -> list[bytes]:
        digits = np.frexp(np.abs(self.values))[0]
        single = self.values[np.isin(digits, self._parts) & (digits * 2.0**_MANY_BITS % 1 != 0)]
        pairs = np.stack([self.values[:-1], self.values[1:]], axis=1)[np.isin(digits, self._parts)[:-1]]
        return [raw for one in (*single, *pairs) for raw in (one.tobytes(), one.byteswap().tobytes())]

    def told_in(self, words: str) -> bool:
        """Whether one of them stands in a text, in full or to eight digits."""
        # Only where there are numbers at all: most of a page is something else.
        numbers = " ".join(re.findall(r"[-+.0-9e]+", words))
        return any(one in numbers for one in self._told)

    @cached_property
    def _told(self) -> list[str]:
        shown = ((repr(float(x)), f"{x:.8g}") for x in self.values)
        return [text for pair in shown if len(pair[1]) > 7 for text in pair]

    def _among(self, parts: Array) -> bool:
        places = np.clip(np.searchsorted(self._parts, parts), 1, len(self._parts) - 1)
        near = np.minimum(np.abs(self._parts[places] - parts), np.abs(self._parts[places - 1] - parts))
        return bool((near <= _LIKE).any())


def through_pickles(thing: Any) -> dict[str, bytes]:
    """The bytes of each way of writing an object down."""
    file = io.BytesIO()
    joblib.dump(thing, file)
    return {f"pickle {i}": pickle.dumps(thing, i) for i in range(pickle.HIGHEST_PROTOCOL + 1)} | {
        "joblib": file.getvalue(),
        "in a pipeline": pickle.dumps(make_pipeline("passthrough", thing)),
    }


def _by_joblib(thing: Any) -> Any:
    file = io.BytesIO()
    joblib.dump(thing, file)
    file.seek(0)
    return joblib.load(file)


def _copies() -> dict[str, Callable[[Any], Any]]:
    import copy

    return {
        "pickle": lambda thing: pickle.loads(pickle.dumps(thing)),  # noqa: S301  Of our own making.
        "old pickle": lambda thing: pickle.loads(pickle.dumps(thing, 0)),  # noqa: S301
        "joblib": _by_joblib,
        "copy": copy.copy,
        "deepcopy": copy.deepcopy,
        "copy of a copy": lambda thing: copy.deepcopy(pickle.loads(pickle.dumps(thing))),  # noqa: S301
        "clone": clone,
    }


COPIES = _copies()
