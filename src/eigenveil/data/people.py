"""Whose row is it: identifiers of people, checked in one place, whatever they come in.

The rows that share an identifier count as one person, and the guarantee is for that person. It is only as good as the
identifiers are. Say a blank stands for m rows of several people, k of them yours. Together they count as one, by the average of
their rows. If you leave, the average goes from (k x + (m - k) y) / m to y, where x and y are the averages of your rows and of
the others', and a sum moves by (k / m) |x - y|. Where most blank rows are yours that is nearly 2 B, and B was paid for. So what
names nobody is refused, and never grouped.
"""

import math
import numbers
from collections.abc import Iterable, Iterator
from typing import Any, final

import numpy as np

from eigenveil.errors import require

__all__ = ["PLACEHOLDERS", "Withheld", "identifiers", "require_ids"]

# What programs write where a value is missing, in lower case: nothing, log files, SAS and Stata, ARFF files, Excel,
# pandas, SQL dumps, R, NumPy, JavaScript, Python, SQL and JSON; then other ways in which C, Windows, pandas, database tools, Ruby
# and Lisp write one of them. What a person may have typed ("unknown", 999) is not here: no list of that would be whole.
PLACEHOLDERS = frozenset(
    ("", "-", ".", "?", "#n/a", "<na>", "\\n", "n/a", "na", "nan", "nat", "undefined", "none", "null")
).union(
    ("-nan", "+nan", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan", "#na", "#n/a n/a", "#null!"),
    ("(null)", "<null>", "[null]", "nil"),
)
# White space that `str.strip` knows, characters of no width, as a byte-order mark or a joiner, and blanks that count as letters.
_UNSEEN = "".join(filter(str.isspace, map(chr, range(0x3001)))) + "\xad\u061c\u180e\ufeff\u115f\u1160\u2800\u3164\uffa0"
_UNSEEN += "".join(map(chr, (*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070))))
# Whole numbers from here on have no float64 of their own.
_EXACT = 2.0**53
_KINDS = (str, bytes, bool, np.bool_, numbers.Integral, numbers.Number)
_AT_ONCE = 1 << 16


@final
class Withheld:
    """Stands where identifiers were, in what is shown or copied of a fitted estimator: who is in a table is private.

    >>> Withheld()
    <identifiers, not shown>
    """

    def __repr__(self) -> str:
        return "<identifiers, not shown>"


def identifiers(person: Any, *, what: str = "person") -> Any:
    """One checked identifier per row, an array (n,), from an array, a list, or a column of pandas, polars or Arrow.

    Text, bytes, numbers or dates, all of one kind. Refused are what is missing or masked; NaN and infinity; text that is
    blank or one of `PLACEHOLDERS`, in capital or small letters; text with white space before or after it; and floats of 2^53
    or more, of which two whole numbers can be one. **White space is refused and not taken off**: "a" and "a " are one person
    in most tables and two in some. Taken for two, one person counts twice; taken for one, two people share an average. Either
    breaks the guarantee, and only who made the table knows. "Ann" and "ann", or "7" and "007", are different people.

    Numbers such as -1, 0 or 999 are people. `what` is the name of the argument or the column, for the error, which shows no
    identifier and does not tell how many are wrong.

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
        f"{what} stayed with the original: this is a copy of a fit. Give the identifiers anew, with set_params(person=...)",
    )
    # Of lists and masked arrays, before numpy makes one type out of several, the text "nan" out of NaN, and drops the mask.
    require(not np.ma.is_masked(person), _missing(what, "person"))
    if isinstance(person, list | tuple):
        require_ids(person, what=what)
        _require_one_kind(person, what)
    ids = np.asarray(person)
    if ids.dtype.kind in "SU" and isinstance(person, list | tuple) and any(one[-1:] in ("\0", b"\0") for one in person):
        # Numpy fills up with zeros, so that "a" and "a\0" would be one person.
        ids = np.array(person, dtype=object)
    require(ids.ndim == 1, f"{what} must be a column name or one identifier per row, got shape {ids.shape}")
    if ids.dtype.kind in "fc":
        require(bool(np.isfinite(ids).all()), _missing(what, "person"))
        require(bool((np.abs(ids) < min(2.0 ** (np.finfo(ids.dtype).nmant + 1), _EXACT)).all()), _inexact(what))
    elif ids.dtype.kind in "mM":
        require(not bool(np.isnat(ids).any()), _missing(what, "person"))
    elif ids.dtype.kind not in "biu":
        require_ids(_each(ids), what=what)
        _require_one_kind(_each(ids), what)
    return ids


def require_ids(values: Iterable[Any], *, what: str, who: str = "person") -> None:
    """Refuse `values` that name nobody, or do not name one person for sure (see `identifiers`): the one place that decides.

    >>> require_ids(["ann", b"bob", -1, 0.5], what="person")
    >>> require_ids(["ann "], what='person column "patient"')
    Traceback (most recent call last):
    ...
    ValueError: person column "patient" has ids with spaces before or after them. Take these off first: "a" and "a " would \
count as two people.
    """
    for value in values:
        if isinstance(value, tuple):
            # A clinic and a number in it, say: without one of them it is nobody.
            require(len(value) > 0, _missing(what, who))
            require_ids(value, what=what, who=who)
            continue
        # Bytes that are all zero are what a field of fixed width holds where there is nothing.
        value = _text(value.strip(b"\0") and value) if isinstance(value, bytes) else value
        if isinstance(value, str):
            seen = value.strip(_UNSEEN + "\0")
            require(seen.lower() not in PLACEHOLDERS, _missing(what, who))
            require(
                len(seen) == len(value),
                f'{what} has ids with spaces before or after them. Take these off first: "a" and "a " would count as two people.',
            )
            continue
        require(not _is_nothing(value), _missing(what, who))
        if isinstance(value, float | np.floating):
            require(abs(float(value)) < _EXACT, _inexact(what))


def _text(value: bytes) -> str | bytes:
    """Bytes as the text that they are; a digest or a number in bytes, which may well end in what a space is, as it is."""
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
        # Whether pandas' NA is like itself, it does not say.
        return True


def _each(ids: Any) -> Iterator[Any]:
    """The entries of an array as Python has them, without a list of all."""
    for start in range(0, len(ids), _AT_ONCE):
        yield from ids[start : start + _AT_ONCE].tolist()


def _require_one_kind(values: Iterable[Any], what: str) -> None:
    """Refuse identifiers of several kinds: 1 and "1", or 1 and 1.0, could be one person or two."""
    kinds = {next((known for known in _KINDS if issubclass(kind, known)), kind) for kind in set(map(type, values))}
    require(len(kinds) <= 1, f"{what} must hold identifiers of one type, none of them missing")


def _missing(what: str, who: str) -> str:
    return (
        f'{what} has missing, blank or placeholder ids (such as "", "NA" or "null"). Give every row the id of its {who}, or '
        "leave those rows out."
    )


def _inexact(what: str) -> str:
    return f"{what} has numbers too large to tell people apart as floats. Give ids as text or as whole numbers."
