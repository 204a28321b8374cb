"""Every column of a table that cannot be analysed, so that one error names them all and one correction is enough.

Rows are checked block by block, and the first bad block ends a read. Only then is the table looked at once more, to find what
else is wrong. Errors name columns and never a value.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, final

from eigenveil.errors import ColumnsError, listed

__all__ = ["LOOKED_AT", "ColumnFaults", "named_in_full", "to_drop"]

# How many bytes of a table are looked at for an error: about a second, however long the table is.
LOOKED_AT: Final = 1 << 28
# Names or patterns that an error writes out to be pasted, and how many columns of one stem make a pattern.
_MOST, _FEWEST = 20, 3
_NUMBERED: Final = re.compile(r"(.*?)\d+", re.DOTALL)
_SIGNS: Final = re.compile(r"([*?\[])")


@final
@dataclass(frozen=True, slots=True)
class ColumnFaults:
    """Columns by what is wrong with them: they hold `others` than numbers, or have `infinite` or `missing` values."""

    others: tuple[str, ...] = ()
    infinite: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @classmethod
    def found(cls, columns: Iterable[tuple[str, Any]]) -> "ColumnFaults":
        """From pairs of a name and an Arrow column of some of its numbers, or None if it holds others. A name may come often."""
        import pyarrow as pa
        import pyarrow.compute as pc

        # Dictionaries keep the order of the columns.
        others, infinite, missing = dict[str, None](), dict[str, None](), dict[str, None]()
        for name, column in columns:
            if column is None:
                others[name] = None
                continue
            values = column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column
            values = values.cast(pa.float64(), safe=False)
            if values.null_count or pc.any(pc.is_nan(values)).as_py():
                missing[name] = None
            if pc.any(pc.is_inf(values)).as_py():
                infinite[name] = None
        return cls(tuple(others), tuple(infinite), tuple(missing))

    @classmethod
    def of_batches(cls, batches: Iterable[Any], names: Sequence[str]) -> "ColumnFaults":
        """Of the columns `names` of Arrow tables, all of them numbers by type."""
        return cls.found((name, batch.column(name)) for batch in _beginning(batches) for name in names)

    def added_to(self, error: ColumnsError, *, gaps: bool, among: Sequence[str]) -> ColumnsError:
        """The error, with what it does not name yet. Missing values are no fault where `gaps` are allowed."""
        notes = {
            "Not numbers either": self.others,
            "Infinite values are in": self.infinite,
            "Missing values are in": () if gaps else self.missing,
        }
        said, columns, advice = error.happened, error.columns, error.advice
        for words, names in notes.items():
            new = tuple(name for name in names if name not in columns)
            columns += new
            said += f". {words}: {listed(map(repr, new))}" * bool(new)
            if new and names is self.missing:
                advice += ". Missing values can be handled with {missing=counts} in a fit"
        return ColumnsError(said, columns, advice=advice, drop=to_drop(columns, among))


def _beginning(batches: Iterable[Any]) -> Iterator[Any]:
    seen = 0
    for batch in batches:
        yield batch
        seen += batch.nbytes
        if seen >= LOOKED_AT:
            return


@contextmanager
def named_in_full(table: Any, names: Sequence[str], *, gaps: bool) -> Iterator[None]:
    """Let an error about columns of a `formats.base.NamedTable` name all that are at fault among `names`."""
    try:
        yield
    except ColumnsError as error:
        source = str(table.source)
        where = error if error.happened.startswith(source) else error.at(source)
        if table.once:
            # What a pipe has given is gone.
            raise where from None
        try:
            found = table.faults(names)
        except ValueError:
            # The file is damaged further down, and the first error stands.
            raise where from None
        raise found.added_to(where, gaps=gaps, among=table.names) from None


def to_drop(bad: Sequence[str], among: Sequence[str]) -> tuple[str, ...]:
    """Names, or patterns if there are many, that leave out the columns `bad` and no other column `among` those of the table.

    Empty if they are too many for a person to paste.

    >>> to_drop(["note"], ["age", "note"]), to_drop([f"q{i}" for i in range(99)], ["age", *(f"q{i}" for i in range(99))])
    (('note',), ('q*',))
    """
    if len(bad) <= _MOST:
        return tuple(bad)
    good = set(among).difference(bad)
    stems: dict[str, list[str]] = {}
    for name in bad:
        numbered = _NUMBERED.fullmatch(name)
        stems.setdefault(numbered[1] if numbered is not None else name, []).append(name)
    found: list[str] = []
    for stem, names in stems.items():
        # A star is a pattern here, and one in a name must not be.
        pattern = _SIGNS.sub(r"[\1]", stem) + "*"
        clear = stem != "" and not any(fnmatchcase(name, pattern) for name in good)
        found += [pattern] if clear and len(names) >= _FEWEST else names
    return tuple(found) if len(found) <= _MOST else ()
