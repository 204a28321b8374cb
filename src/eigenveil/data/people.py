"""Identifiers: which person a row belongs to. They are checked in one place, for every kind of table.

Rows that share an identifier count as one person, and the guarantee protects that person. It is only as good as the
identifiers. Suppose that m rows of several people have a blank identifier, and k of them are yours. Together they count as one
person, by the average of their rows. Let x and y be the averages of your rows and of the others'. If you leave, the average goes
from (k x + (m - k) y) / m to y, and a sum moves by (k / m) |x - y|. Where most blank rows are yours that is nearly 2 B, but the
noise covers only B. Identifiers that name no one are therefore refused and never grouped.
"""

import hashlib
import math
import numbers
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, final

import numpy as np

from eigenveil.errors import require

__all__ = ["MARK_BYTES", "PLACEHOLDERS", "Marks", "Withheld", "identifiers", "marks_of", "require_ids"]

# What programs write for a missing value, in lower case. The first list is from log files, SAS and Stata, ARFF files, Excel,
# pandas, SQL dumps, R, NumPy, JavaScript, Python, SQL and JSON. The second is from C, Windows, pandas, database tools, Ruby and
# Lisp. Words that a person may have typed ("unknown", 999) are not here, because no list of those would be complete.
PLACEHOLDERS = frozenset(
    ("", "-", ".", "?", "#n/a", "<na>", "\\n", "n/a", "na", "nan", "nat", "undefined", "none", "null")
).union(
    ("-nan", "+nan", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan", "#na", "#n/a n/a", "#null!"),
    ("(null)", "<null>", "[null]", "nil"),
)
# White space that `str.strip` knows, characters of no width, such as a byte-order mark, and blanks that Unicode calls alphabetic.
_UNSEEN = "".join(filter(str.isspace, map(chr, range(0x3001)))) + "\xad\u061c\u180e\ufeff\u115f\u1160\u2800\u3164\uffa0"
_UNSEEN += "".join(map(chr, (*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070))))
# Two whole numbers from here on may have the same float64.
_EXACT = 2.0**53
# In this order, because a bool is an Integral too, and an Integral is a Number.
_KINDS = (str, bytes, bool, np.bool_, numbers.Integral, numbers.Number)
_AT_ONCE = 1 << 16
# Two of so many people share a mark of this length with a chance far below 1e-15.
MARK_BYTES: Final = 16


@final
class Withheld:
    """Replaces the identifiers where a fitted estimator is shown or copied: who is in a table is private.

    >>> Withheld()
    <identifiers, not shown>
    """

    def __repr__(self) -> str:
        return "<identifiers, not shown>"


def identifiers(person: Any, *, what: str = "person") -> Any:
    """One checked identifier per row, an array (n,), from an array, a list, or a column of pandas, polars or Arrow.

    Identifiers are text, bytes, numbers or dates, all of one kind. These are refused:
    - missing or masked values, NaN and infinity;
    - text that is blank or one of `PLACEHOLDERS`, in upper or lower case;
    - text with white space before or after it;
    - floats of 2^53 or more, where two whole numbers can be the same float.

    **White space is refused, not removed**: "a" and "a " are one person in most tables and two in some. If we treated them as
    two, one person might count twice. If we treated them as one, two people might share an average. Either breaks the guarantee,
    and only the author of the table knows. "Ann" and "ann", or "7" and "007", are different people.

    Numbers such as -1, 0 or 999 are people. Errors use `what`, the name of the argument or the column. They show no identifier
    and do not say how many are wrong.

    >>> identifiers(["ann", "bob", "ann"]).tolist()
    ['ann', 'bob', 'ann']
    >>> identifiers(["ann", " ", "ann"])
    Traceback (most recent call last):
    ...
    ValueError: person has missing, blank or placeholder ids (such as "", "NA" or "null"). Give every row the id of its \
person, or leave those rows out.
    """
    require(
        not isinstance(person, Withheld),
        f"this is a copy of a fitted estimator, without {what}. Pass the identifiers again with set_params(person=...)",
    )
    require(
        not hasattr(person, "__dask_graph__"),
        f"{what} is a Dask collection, but the rows are in this process. Compute it first, or make a collection of the rows too",
    )
    # Lists and masked arrays are checked first: numpy makes one type out of several, the text "nan" out of NaN, and drops masks.
    require(not np.ma.is_masked(person), _missing(what, "person"))
    listed = isinstance(person, list | tuple)
    if listed:
        require_ids(person, what=what)
        _require_one_kind(person, what)
    ids = np.asarray(person)
    if ids.dtype.kind in "SU" and listed and any(entry[-1:] in ("\0", b"\0") for entry in person):
        # numpy pads with zeros, so "a" and "a\0" would become one person.
        ids = np.array(person, dtype=object)
    require(ids.ndim == 1, f"{what} must be a column name or one identifier per row, got shape {ids.shape}")
    if ids.dtype.kind in "fc":
        require(bool(np.isfinite(ids).all()), _missing(what, "person"))
        # Narrower floats merge whole numbers much sooner, float16 from 2^11 on.
        require(bool((np.abs(ids) < min(2.0 ** (np.finfo(ids.dtype).nmant + 1), _EXACT)).all()), _inexact(what))
    elif ids.dtype.kind in "mM":
        require(not bool(np.isnat(ids).any()), _missing(what, "person"))
    elif ids.dtype.kind not in "biu":
        # The entries as Python values, without a list of all of them.
        checks: tuple[Callable[..., None], ...] = (require_ids, _require_one_kind)
        for check in checks:
            pieces = (ids[start : start + _AT_ONCE].tolist() for start in range(0, len(ids), _AT_ONCE))
            check(chain.from_iterable(pieces), what=what)
    return ids


@final
@dataclass(frozen=True, slots=True, eq=False)
class Marks:
    """A digest of the identifier of each row: the same person has the same one in every batch. Raw data.

    `kind` is the type of the identifiers, and `what` names their column in errors.
    """

    kind: str
    each: list[bytes]
    what: str = "person"

    def parted(self, count: int) -> tuple["Marks", "Marks"]:
        """The marks of the first `count` rows, and the others."""
        return replace(self, each=self.each[:count]), replace(self, each=self.each[count:])

    def __repr__(self) -> str:
        return f"Marks({self.what})"


def marks_of(names: Iterable[Any], codes: Any = None, *, what: str = "person") -> Marks:
    """The marks of checked identifiers, or of `names[code]` for each of the `codes`, (n,). Whole floats count as whole numbers.

    >>> marks_of([1, 2]).each == marks_of([1.0, 2.0]).each, marks_of(["1"]).each == marks_of([1]).each
    (True, False)
    """
    plain = [_plain(name) for name in names]
    kinds = {kind for kind, _ in plain}
    require(len(kinds) <= 1, f"{what} must have identifiers of one type, none of them missing")
    digests = [hashlib.blake2b(f"{kind} {text}".encode(), digest_size=MARK_BYTES).digest() for kind, text in plain]
    return Marks(next(iter(kinds), "text"), digests if codes is None else [digests[code] for code in codes], what)


def _plain(name: Any) -> tuple[str, str]:
    """The kind of an identifier, and the text that it has in every batch."""
    if isinstance(name, str):
        return "text", name
    if isinstance(name, bytes):
        return "bytes", name.hex()
    if isinstance(name, int | float) and not isinstance(name, bool):
        return "number", str(int(name)) if name == int(name) else repr(name)
    return type(name).__name__, str(name)


def require_ids(values: Iterable[Any], *, what: str, who: str = "person") -> None:
    """Refuse `values` that name no one, or may not name exactly one person (see `identifiers`): the one place that decides.

    >>> require_ids(["ann", b"bob", -1, 0.5], what="person")
    >>> require_ids(["ann "], what='person column "patient"')
    Traceback (most recent call last):
    ...
    ValueError: person column "patient" has ids with spaces before or after them. Remove these first: "a" and "a " would \
count as two people.
    """
    for value in values:
        if isinstance(value, tuple):
            # For example a clinic and a number in it: without either of them it names no one.
            require(len(value) > 0, _missing(what, who))
            require_ids(value, what=what, who=who)
            continue
        # A field of fixed width is all zero bytes where there is no identifier.
        value = _text(value.strip(b"\0") and value) if isinstance(value, bytes) else value
        if isinstance(value, str):
            trimmed = value.strip(_UNSEEN + "\0")
            require(trimmed.lower() not in PLACEHOLDERS, _missing(what, who))
            require(
                len(trimmed) == len(value),
                f'{what} has ids with spaces before or after them. Remove these first: "a" and "a " would count as two people.',
            )
            continue
        require(not _is_nothing(value), _missing(what, who))
        if isinstance(value, float | np.floating):
            require(abs(float(value)) < _EXACT, _inexact(what))


def _text(value: bytes) -> str | bytes:
    """Bytes decoded as text. A digest or a number in bytes, which may end in the byte of a space, is returned unchanged."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return value
    return text if text.strip(_UNSEEN).isprintable() else value


def _is_nothing(value: Any) -> bool:
    """Whether a value that is not text is missing: None, masked, infinite, or different from itself, as NaN and NaT are."""
    if value is None or value is np.ma.masked:
        return True
    try:
        return bool(value != value) or (isinstance(value, numbers.Real) and math.isinf(value))
    except (TypeError, ValueError):
        # pandas' NA does not say whether it equals itself.
        return True


def _require_one_kind(values: Iterable[Any], what: str) -> None:
    """Refuse identifiers of several kinds: 1 and "1", or 1 and 1.0, could be one person or two."""
    kinds = {next((family for family in _KINDS if issubclass(kind, family)), kind) for kind in set(map(type, values))}
    require(len(kinds) <= 1, f"{what} must have identifiers of one type, none of them missing")


def _missing(what: str, who: str) -> str:
    return (
        f'{what} has missing, blank or placeholder ids (such as "", "NA" or "null"). Give every row the id of its {who}, or '
        "leave those rows out."
    )


def _inexact(what: str) -> str:
    return f"{what} has numbers too large to tell people apart as floats. Pass ids as text or as whole numbers."
