"""What a stream knows as named arrays and plain values, and back: in a state file, and in the log of a hub. Nothing else can be
restored.

States are raw data unless their tracker says otherwise, and so is everything made from them here. Names of these classes and
of their fields are part of the format.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

import numpy as np

from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace
from eigenveil.linalg.sketch import Sketch
from eigenveil.tasks.levels import Levels
from eigenveil.trackers import TRACKERS
from eigenveil.trackers.sums import Sums

__all__ = ["numbered", "restored", "taken_apart"]

# A file can name only these, the states of the registry, and what its reader expects. Reading one executes nothing else.
_PARTS: Final = (Subspace, Sketch, Sums, Levels)


def taken_apart(value: Any) -> tuple[Any, dict[str, Array]]:
    """A tree of plain values that refers to arrays by name, and those arrays.

    >>> tree, arrays = taken_apart(Sketch.empty(2))
    >>> restored(tree, arrays).dim
    2
    """
    arrays: list[Array] = []

    def walk(part: Any) -> Any:
        if isinstance(part, np.ndarray):
            arrays.append(np.ascontiguousarray(part))
            return {"array": _name(len(arrays) - 1)}
        if is_dataclass(part) and not isinstance(part, type):
            return {"type": type(part).__name__, "fields": {f.name: walk(getattr(part, f.name)) for f in fields(part)}}
        if isinstance(part, Mapping):
            return {"pairs": [[key, walk(item)] for key, item in part.items()]}
        return [walk(item) for item in part] if isinstance(part, tuple) else part

    return walk(value), numbered(arrays)


def numbered(arrays: Iterable[Array]) -> dict[str, Array]:
    """Arrays by the names that a tree has for them, from all of them in their order."""
    return {_name(number): array for number, array in enumerate(arrays)}


def _name(number: int) -> str:
    return f"state.{number}"


def restored(tree: Any, arrays: Mapping[str, Array], *, more: tuple[type, ...] = ()) -> Any:
    """The original value, of states and `more` dataclasses; a `ValueError` for a tree that `taken_apart` cannot have made."""
    match tree:
        case None | bool() | int() | float() | str():
            return tree
        case list():
            # JSON has no tuples, and a state has no lists: every list was a tuple.
            return tuple(restored(item, arrays, more=more) for item in tree)
        case {"array": str(name), **rest} if not rest:
            require(name in arrays, f"the array {name!r} is missing")
            return arrays[name]
        case {"pairs": list(pairs), **rest} if not rest:
            return {key: restored(item, arrays, more=more) for key, item in pairs}
        case {"type": str(name), "fields": dict(parts), **rest} if not rest:
            classes = {part.__name__: part for part in (*_PARTS, *more, *(kind.state for kind in TRACKERS.values()))}
            require(name in classes, f"there is no state of type {name!r}")
            kind: Any = classes[name]
            expected = {f.name for f in fields(kind)}
            # All of them: without `apart`, sums would take its default of zero and claim too small a sensitivity.
            require(set(parts) == expected, f"a {name} has the parts {sorted(expected)}, got {sorted(parts)}")
            return kind(**{key: restored(part, arrays, more=more) for key, part in parts.items()})
    raise ValueError("the state was not saved by this program")
