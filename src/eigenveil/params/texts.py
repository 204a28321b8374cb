"""Command-line texts to values, for types that do not say how, and back. Bad texts raise `Expected`."""

import re
from collections.abc import Sequence
from typing import Any

from eigenveil.params.values import Expected

__all__ = [
    "bound_from",
    "bytes_from",
    "center_from",
    "components_from",
    "numbers_from",
    "pair_from",
    "scale_from",
    "share_from",
    "text_of",
]


def components_from(text: str) -> int | float:
    """A count or a fraction.

    >>> components_from("5"), components_from("0.9")
    (5, 0.9)
    """
    try:
        # Whole numbers first: 1 is one component, and not all of the variance.
        return int(text)
    except ValueError:
        number = _number(text)
    if not 0 < number < 1:
        raise Expected("a whole number or a fraction between 0 and 1")
    return number


def numbers_from(text: str) -> float | list[float]:
    """One number, or a list of them with commas between.

    >>> numbers_from("2"), numbers_from("1,2.5")
    (2.0, [1.0, 2.5])
    """
    # One number stays a number, because it holds for all columns. A list must have one for each.
    found = [_number(part) for part in text.split(",")]
    return found if len(found) > 1 else found[0]


def pair_from(text: str) -> tuple[float, float]:
    """Two numbers with a comma between.

    >>> pair_from("-1,1")
    (-1.0, 1.0)
    """
    parts = text.split(",")
    if len(parts) != 2:
        raise Expected("LOW,HIGH, two numbers with a comma between")
    return _number(parts[0]), _number(parts[1])


def center_from(text: str) -> Any:
    """The word private, or numbers, one per column.

    >>> center_from("private"), center_from("1,2"), center_from("1")
    ('private', [1.0, 2.0], [1.0])
    """
    if text == "private":
        return text
    try:
        # A list even of one number: a center has one number per column.
        return [_number(part) for part in text.split(",")]
    except Expected:
        raise Expected("private, none, or numbers with commas between, one per column") from None


def bound_from(text: str) -> Any:
    """The word private, or a number.

    >>> bound_from("private"), bound_from("2.5")
    ('private', 2.5)
    """
    try:
        return text if text == "private" else _number(text)
    except Expected:
        raise Expected("private, or a number") from None


def scale_from(text: str) -> Any:
    """The word private, or numbers.

    >>> scale_from("private"), scale_from("1,2")
    ('private', [1.0, 2.0])
    """
    try:
        return text if text == "private" else numbers_from(text)
    except Expected:
        raise Expected("private, or numbers with commas between") from None


def share_from(text: str) -> int | float:
    """A number of sites, or a share of them.

    >>> share_from("4"), share_from("0.8")
    (4, 0.8)
    """
    try:
        # Whole numbers first: 4 is four sites, and 1.0 is all of them.
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise Expected("a number such as 4, or a share such as 0.8") from None


def bytes_from(text: str) -> int:
    """A number of bytes, plain or with a unit.

    >>> bytes_from("4096"), bytes_from("64MB"), bytes_from("1.5 GiB")
    (4096, 64000000, 1610612736)
    """
    found = re.fullmatch(r"\s*(\d+\.?\d*)\s*(?:([kmg])(i?)b)?\s*", text, flags=re.IGNORECASE)
    if found is None:
        raise Expected("bytes such as 4096, 64MB or 1.5GiB")
    number, unit, binary = found.groups()
    # The place of a unit in " kmg" is its power. MB counts in thousands and MiB in 1024s.
    return int(float(number) * (1024 if binary else 1000) ** " kmg".index((unit or " ").lower()))


def text_of(value: Any) -> str:
    """A value as text for a command line.

    >>> text_of(1.0), text_of([1.0, 2.5]), text_of(("decay", 4)), text_of("masked")
    ('1', '1,2.5', 'decay:4', 'masked')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) or hasattr(value, "tolist"):
        # Arrays without dimensions become one number.
        items = value.tolist() if hasattr(value, "tolist") else list(value)
        if not isinstance(items, list):
            return text_of(items)
        return (":" if items and isinstance(items[0], str) else ",").join(text_of(item) for item in items)
    if isinstance(value, float):
        # The shortest text that reads back as the same number.
        return repr(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return str(value)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Expected("a number, or numbers with commas between") from None
