"""The keys of a file that people write: what each may be, checked once, with errors that name section, key and value.

A section is a frozen dataclass whose fields are `key(...)`s: from them it is read, checked, written with comments and shown.
"""

import difflib
import ipaddress
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields
from typing import Any, Final, NoReturn, TypeVar

from eigenveil.errors import require
from eigenveil.network.identity_binding import host_from

__all__ = [
    "Check",
    "address",
    "check_fields",
    "hex_digits",
    "key",
    "line",
    "listed",
    "number_or_share",
    "one_of",
    "one_or_more",
    "optional",
    "real",
    "refuse",
    "refuse_unknown",
    "section_from",
    "shown",
    "truth",
    "whole",
]

Check = Callable[[str, Any], Any]
Section = TypeVar("Section")

_LONGEST_SHOWN: Final = 60
_LARGEST_SHOWN: Final = 10**15


def shown(value: Any) -> str:
    """A value for an error message: short, and without anything that a terminal would act on.

    >>> shown("a" * 100)[:8], shown("\\x1b[2J"), shown({})
    ("'aaaaaaa", "'\\\\x1b[2J'", 'a table')
    """
    match value:
        case dict():
            return "a table"
        case bool() | None:
            return repr(value).lower()
        case int() if abs(value) > _LARGEST_SHOWN:
            # Python refuses to write numbers of thousands of digits.
            return "a very large whole number"
        case list() | tuple():
            # One level only: what is nested deeply and widely would never end.
            few = ", ".join("a list" if isinstance(item, list | tuple) else shown(item) for item in value[:3])
            return f"[{few}{', ...' if len(value) > 3 else ''}]"
        case str():
            text = ascii(value[:_LONGEST_SHOWN])
            return text if len(value) <= _LONGEST_SHOWN else f"{text} ..."
        case _:
            return ascii(value)[:_LONGEST_SHOWN]


def refuse(where: str, value: Any, expected: str) -> NoReturn:
    """Raise the `ValueError` that says where which value stands, and what was expected."""
    raise ValueError(f"{where} must be {expected}, got {shown(value)}")


def line(longest: int) -> Check:
    """One line of printable text of 1 to `longest` characters, with no blanks around it."""

    def check(where: str, value: Any) -> str:
        if not isinstance(value, str) or not 0 < len(value) <= longest:
            refuse(where, value, f"a text of 1 to {longest} characters")
        if not value.isprintable() or value != value.strip():
            refuse(where, value, "one line of printable characters, with no blanks before or after it")
        return value

    return check


def one_of(*allowed: str) -> Check:
    """One of these words."""

    def check(where: str, value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            refuse(where, value, f"one of {', '.join(allowed)}")
        return value

    return check


def whole(least: int, most: int) -> Check:
    """A whole number."""

    def check(where: str, value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            refuse(where, value, f"a whole number from {least} to {most}")
        return value

    return check


def real(expected: str, good: Callable[[float], bool], *, infinite: bool = False) -> Check:
    """A number, as a float, for which `good` holds; never NaN, and infinite only where that is said."""

    def check(where: str, value: Any) -> float:
        number = _float(value)
        if math.isnan(number) or (math.isinf(number) and not infinite) or not good(number):
            refuse(where, value, expected)
        return number

    return check


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def number_or_share(where: str, value: Any) -> int | float:
    """How many of them, as a whole number, or which share of them, with a point."""
    if type(value) is int and 1 <= value <= 1_000_000:
        return value
    if type(value) is float and 0 < value <= 1:
        return value
    refuse(where, value, "a whole number from 1, or a share in (0, 1] written with a point, such as 0.8")


def truth(where: str, value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        refuse(where, value, "true or false")
    return value


def hex_digits(count: int) -> Check:
    """So many lower-case hex digits."""

    def check(where: str, value: Any) -> str:
        if not isinstance(value, str) or len(value) != count or not set(value) <= set("0123456789abcdef"):
            refuse(where, value, f"{count} lower-case hex digits")
        return value

    return check


def address(where: str, value: Any) -> str:
    """A host and a port, as HOST:PORT, or [HOST]:PORT where the host is an IPv6 address. Its host comes in its one spelling."""
    expected = "HOST:PORT, such as hub.example.org:7443, with a port from 1 to 65535"
    if not isinstance(value, str) or len(value) > 300:
        refuse(where, value, expected)
    host, colon, port = value.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    good = colon and port.isascii() and port.isdecimal() and len(port) <= 5 and 1 <= int(port) <= 65535
    if not good or (":" in host) != bracketed:
        refuse(where, value, expected)
    try:
        name = host_from(host[1:-1] if bracketed else host)
    except ValueError as error:
        raise ValueError(f"{where} must be {expected}: {error}") from None
    if name in ("0.0.0.0", str(ipaddress.IPv6Address(0))):
        refuse(where, value, "an address that others can reach; this one only means every one of this machine")
    return f"[{name}]:{int(port)}" if ":" in name else f"{name}:{int(port)}"


def optional(check: Check) -> Check:
    """None, or what `check` takes."""
    return lambda where, value: None if value is None else check(where, value)


def listed(check: Check, *, least: int = 0, most: int = 1_000_000, distinct: bool = False) -> Check:
    """A list, as a tuple, of what `check` takes."""

    def every(where: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or not least <= len(value) <= most:
            refuse(where, value, f"a list of {least} to {most} entries")
        found = tuple(check(f"{where}, entry {place},", item) for place, item in enumerate(value, start=1))
        if distinct and len(set(found)) < len(found):
            twice = next(item for item, count in Counter(found).items() if count > 1)
            raise ValueError(f"{where} has {shown(twice)} twice")
        return found

    return every


def one_or_more(check: Check) -> Check:
    """One, or a list of them."""
    several = listed(check, least=1)
    return lambda where, value: several(where, value) if isinstance(value, list | tuple) else check(where, value)


def key(check: Check, words: str, **default: Any) -> Any:
    """A field of a section: what it may be, and what it says, in the words of the comment above it."""
    return field(metadata={"check": check, "words": words}, **default)


def check_fields(section: Any, name: str) -> None:
    """Check each field of a frozen `section`, which is called `name` in its file, and keep what the check makes of it."""
    for one in fields(section):
        found = one.metadata["check"](f"[{name}] {one.name}", getattr(section, one.name))
        object.__setattr__(section, one.name, found)


def section_from(kind: type[Section], name: str, table: Any, *, explained: Mapping[str, str]) -> Section:
    """The section that a table of the file says. `explained` are keys it must not have, and why."""
    require(isinstance(table, dict), f"[{name}] must be a table, got {shown(table)}")
    known = fields(kind)  # type: ignore[arg-type]
    refuse_unknown(f"[{name}]", table, [one.name for one in known], explained=explained)
    for one in known:
        needed = one.default is MISSING and one.default_factory is MISSING
        require(not needed or one.name in table, f"[{name}] {one.name} is missing: {one.metadata['words']}")
    return kind(**table)


def refuse_unknown(where: str, table: Mapping[str, Any], known: list[str], *, explained: Mapping[str, str]) -> None:
    """A `ValueError` for the first key that nobody knows, with the nearest that somebody does."""
    for name in table:
        if name in known:
            continue
        if name in explained:
            raise ValueError(f"{where} {name} = {shown(table[name])}: {explained[name]}")
        near = difflib.get_close_matches(name[:_LONGEST_SHOWN], known, n=1)
        meant = f": did you mean {near[0]}?" if near else "."
        raise ValueError(f"{where} has an unknown key {shown(name)}{meant} It may have {', '.join(known)}")
