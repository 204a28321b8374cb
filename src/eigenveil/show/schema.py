"""From a `Report` to JSON and back, and the JSON schema, all read off the types of the dataclasses.

A report may come from a stranger: whatever does not have its type is refused, and nothing is guessed.
"""

import json
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from eigenveil.data.archive import whole_number
from eigenveil.errors import require
from eigenveil.privacy import Guarantee
from eigenveil.show.values import VERSION, Report

__all__ = ["SCHEMA_ID", "from_json", "schema", "to_json"]

SCHEMA_ID: Final = f"eigenveil-report-{VERSION}"
_PLAIN: Final = {str: "string", bool: "boolean", int: "integer", float: "number"}
# Deeper nesting than any report has would only exhaust the stack.
_LONGEST: Final = 1 << 28


def to_json(report: Report) -> str:
    """The report as JSON, in ASCII: a hostile name is a string like any other."""
    # NaN would become a word that other readers of JSON refuse.
    return json.dumps(_values(report), indent=2, allow_nan=False) + "\n"


def from_json(text: str) -> Report:
    """The report in `text`; a `ValueError` if it is none."""
    require(len(text) <= _LONGEST, "it is too long for a report")
    try:
        found = json.loads(text, parse_constant=_no_constant, parse_int=whole_number)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError("it is not JSON") from error
    require(isinstance(found, dict), "it is not a report")
    require("format" in found, "it is not a report")
    read = _read(Report, found, "report")
    assert isinstance(read, Report)
    return read


def _no_constant(name: str) -> Any:
    raise ValueError(f"it contains {name}, which is not a number")


def _values(value: Any) -> Any:
    if isinstance(value, Guarantee):
        return {**value.to_dict(), "words": value.words()}
    if is_dataclass(value):
        return {one.name: _values(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, tuple):
        return [_values(one) for one in value]
    return value


def _read(kind: Any, value: Any, where: str) -> Any:
    """`value` as `kind`, which is one of the types that contents are made of."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Guarantee:
        require(isinstance(value, dict), f"{where} must be a table")
        # The page in words is for readers of the file. It follows from the rest, so it is not read back.
        return Guarantee.from_dict({name: one for name, one in value.items() if name != "words"})
    if is_dataclass(kind):
        return _record(kind, value, where)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _one_of(arguments, value, where)
    if origin is Literal:
        require(value in arguments, f"{where} must be one of {', '.join(map(str, arguments))}")
        return value
    if origin is tuple:
        require(isinstance(value, list), f"{where} must be a list")
        parts = [arguments[0]] * len(value) if arguments[-1] is ... else arguments
        require(len(parts) == len(value), f"{where} must have {len(parts)} entries")
        return tuple(
            _read(part, one, f"{where}[{at}]") for at, (part, one) in enumerate(zip(parts, value, strict=True))
        )
    if kind is float:
        good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        require(good, f"{where} must be a finite number")
        return float(value)
    # A bool is an int to Python, and a count of True is nonsense.
    require(
        isinstance(value, kind) and (kind is bool or not isinstance(value, bool)), f"{where} must be {_PLAIN[kind]}"
    )
    return value


def _one_of(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    # Whole numbers stay whole: int comes before float, whatever the order in the type.
    for kind in sorted((one for one in kinds if one is not type(None)), key=lambda one: one is float):
        try:
            return _read(kind, value, where)
        except ValueError as error:
            last = error
    raise last


def _record(kind: Any, value: Any, where: str) -> Any:
    require(isinstance(value, Mapping), f"{where} must be a table")
    known, hints = {one.name: one for one in fields(kind)}, _hints(kind)
    # A key that is dropped silently could be the one that mattered, so an unknown one is refused.
    strange = [name for name in value if name not in known]
    require(not strange, f"{where} has an unknown key: {strange[0] if strange else ''}")
    lacking = [name for name, one in known.items() if name not in value and _needed(one)]
    require(not lacking, f"{where} lacks {', '.join(lacking)}")
    return kind(**{name: _read(hints[name], value[name], f"{where}.{name}") for name in known if name in value})


# Resolving type hints is slow, and a report has the same records many times.
@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _needed(one: "Field[Any]") -> bool:
    return one.default is MISSING and one.default_factory is MISSING


def schema() -> dict[str, Any]:
    """The JSON schema of a report, draft 2020-12."""
    found: dict[str, Any] = {}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "An Eigenveil report",
        "description": _first_line(Report),
        **_shape(Report, found),
        # Sorted, so that the schema file changes only where a type has changed.
        "$defs": dict(sorted(found.items())),
    }


def _shape(kind: Any, defined: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Guarantee:
        return {"type": "object", "description": _first_line(Guarantee), "required": ["epsilon", "delta", "words"]}
    if is_dataclass(kind):
        return _table_of(kind, defined)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_reference(one, defined) for one in arguments]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple and arguments[-1] is ...:
        return {"type": "array", "items": _reference(arguments[0], defined)}
    if origin is tuple:
        ends = {"minItems": len(arguments), "maxItems": len(arguments)}
        return {"type": "array", "prefixItems": [_reference(one, defined) for one in arguments], **ends}
    return {"type": "null"} if kind is type(None) else {"type": _PLAIN[kind]}


def _reference(kind: Any, defined: dict[str, Any]) -> dict[str, Any]:
    """The shape itself, or a reference to it where it has a name."""
    if not is_dataclass(kind):
        return _shape(kind, defined)
    name = kind.__name__  # type: ignore[union-attr]
    if name not in defined:
        # Noted before it is filled in, so that a type that contains itself would come to an end.
        defined[name] = {}
        defined[name] = _shape(kind, defined)
    return {"$ref": f"#/$defs/{name}"}


def _table_of(kind: Any, defined: dict[str, Any]) -> dict[str, Any]:
    hints = _hints(kind)
    return {
        "type": "object",
        "description": _first_line(kind),
        "properties": {one.name: _reference(hints[one.name], defined) for one in fields(kind)},
        "required": [one.name for one in fields(kind) if _needed(one)],
        "additionalProperties": False,
    }


def _first_line(kind: Any) -> str:
    return str(kind.__doc__).strip().splitlines()[0]
