"""How numbers are written: decimal and thousands marks, truth values, and what stands for a missing one.

The rules are here once, for a single field, for a column of text in Arrow, and for columns that are numbers already. A field that
follows none of them is no number: nothing is guessed, because 1.243 may be a thousand or one and a bit.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, final

from eigenveil.params.values import InvalidValue, text_of

if TYPE_CHECKING:
    from eigenveil.data.formats import FileParams

__all__ = [
    "GAPS",
    "NO_MARKS",
    "MissingMarks",
    "NumberFormat",
    "as_doubles",
    "could_be_names",
    "could_be_number",
    "missing_words",
    "missing_words_from",
    "texts_are_numbers",
]

# What stands for a missing number: pyarrow's own list, and what pandas and Python write.
GAPS: Final = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("N/A", "NA", "NULL", "NaN", "n/a", "nan", "null", "<NA>", "None"),
)
_NUMBER: Final = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf(?:inity)?|nan)", re.IGNORECASE)
_TRUTH: Final = {"true": 1.0, "false": 0.0}
# Typists and programs have several spaces and two apostrophes.
_MARKS: Final = {".": r"\.", ",": ",", " ": "[ \u00a0\u2009\u202f]", "'": "['\u2019]"}
# Digits in groups of three with any mark. A group in front of it begins with no zero: 0.123 is a fraction.
_GROUPED: Final = "[+-]?[1-9][0-9]{{0,2}}(?:{thousands}[0-9]{{3}})+(?:{decimal}[0-9]*)?(?:[eE][+-]?[0-9]+)?"
_ANY_MARKS: Final = re.compile(_GROUPED.format(thousands="[.,' \u00a0\u2009\u202f\u2019]", decimal="[.,]"))


@final
@dataclass(frozen=True)
class MissingMarks:
    """What stands for a missing value, as texts. Numbers among them are compared as numbers: -9999 is -9999.0."""

    texts: tuple[str, ...] = ()

    @classmethod
    def of(cls, how: "FileParams") -> "MissingMarks":
        """As the options of a file say."""
        return cls(how.na_values or ())

    @cached_property
    def numbers(self) -> tuple[float, ...]:
        """The numbers among the words."""
        return tuple(float(word) for word in self.texts if _NUMBER.fullmatch(word))

    def __bool__(self) -> bool:
        return bool(self.texts)

    def without(self, values: Any) -> Any:
        """An array of real numbers with NaN in their place; the array itself if it has none.

        >>> import numpy as np
        >>> MissingMarks(("-9999",)).without(np.array([[1, -9999]])).tolist()
        [[1.0, nan]]
        """
        import numpy as np

        if not self.numbers:
            return values
        marked = np.isin(values, self._as_stored(values.dtype))
        return np.where(marked, np.nan, values) if marked.any() else values

    def _as_stored(self, kind: Any) -> Any:
        """The numbers as an array of this type would have them: -99.9 in single precision is another number."""
        import numpy as np

        narrow = kind.kind == "f" and kind.itemsize < np.dtype(float).itemsize
        with np.errstate(over="ignore"):
            return np.array(self.numbers, kind).astype(float) if narrow else np.array(self.numbers)

    def taken_out(self, batch: Any) -> Any:
        """An Arrow batch or table with nulls in their place, in columns of numbers and of text."""
        # Arrow would forget how many rows a batch without columns has.
        if not self.texts or not batch.num_columns:
            return batch
        return type(batch).from_arrays(list(map(self._without, batch.columns)), names=batch.schema.names)

    def _without(self, column: Any) -> Any:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.types as types

        plain = column.cast(column.type.value_type) if types.is_dictionary(column.type) else column
        kind = plain.type
        if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
            dtype = kind.to_pandas_dtype() if types.is_floating(kind) else float
            bad = pc.is_in(as_doubles(plain), value_set=pa.array(self._as_stored(np.dtype(dtype))))
        elif types.is_string(kind) or types.is_large_string(kind):
            bad = pc.fill_null(pc.match_substring_regex(plain, self._pattern), False)
        else:
            return column
        return pc.if_else(bad, pa.scalar(None, kind), plain)

    @cached_property
    def _pattern(self) -> str:
        """The words, and whole numbers with any number of zeros behind a point, for columns of text."""
        # `re.escape` writes what RE2 does not read.
        alternatives = ["".join(x if x.isalnum() else f"\\x{{{ord(x):x}}}" for x in word) for word in self.texts]
        alternatives += [f"{int(number)}(?:\\.0*)?" for number in self.numbers if number.is_integer()]
        return f"^[ \t]*(?:{'|'.join(alternatives)})[ \t]*$"


def as_doubles(column: Any) -> Any:
    """An Arrow column of numbers as float64. Too large ones become infinite.

    >>> import decimal
    >>> import pyarrow as pa
    >>> as_doubles(pa.array([decimal.Decimal("0.7")])).to_pylist()
    [0.7]
    """
    import pyarrow as pa

    # Arrow computes the digits of a decimal over a power of ten, which turns 0.7 into 0.7000000000000001. Their text does not.
    exact = column.cast(pa.string()) if pa.types.is_decimal(column.type) else column
    return exact.cast(pa.float64(), safe=False)


NO_MARKS: Final = MissingMarks()


@final
@dataclass(frozen=True)
class NumberFormat:
    """How a text file writes numbers. Without a mark for thousands, numbers that have one are refused."""

    decimal: str = "."
    thousands: str | None = None
    missing: MissingMarks = NO_MARKS

    @classmethod
    def of(cls, how: "FileParams") -> "NumberFormat":
        """As the options of a file say."""
        return cls(how.decimal, how.thousands, MissingMarks.of(how))

    @property
    def is_usual(self) -> bool:
        """Whether numbers are written as in Python."""
        return self == NumberFormat()

    @cached_property
    def gaps(self) -> tuple[str, ...]:
        """The texts that stand for a missing number."""
        return tuple(dict.fromkeys((*GAPS, *self.missing.texts)))

    @property
    def advice(self) -> str:
        """What to say of numbers that cannot be read, a template."""
        if self.thousands is not None:
            return ""
        if self.decimal == ",":
            return ". If points separate thousands, give {thousands} '.'"
        return ". If numbers have a decimal comma, give {decimal} ','. If commas separate thousands, give {thousands} ','"

    @cached_property
    def _grouped(self) -> str:
        return _GROUPED.format(thousands=_MARKS[self.thousands or ","], decimal=_MARKS[self.decimal])

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        return re.compile(self._grouped), re.compile(_MARKS[self.thousands or ","])

    def number(self, field: str) -> float | None:
        """A number, 1 or 0 for a truth value, NaN for a gap, None for anything else.

        >>> [NumberFormat().number(field) for field in ("1e3", " TRUE", "NA", "1_000", "x", "1,243")]
        [1000.0, 1.0, nan, None, None, None]
        >>> [NumberFormat(",", ".").number(field) for field in ("1.243,5", "7,0", "1.24", "0.123")]
        [1243.5, 7.0, None, None]
        """
        text = field.strip(" \t")
        if text in self.gaps:
            return math.nan
        if (truth := _TRUTH.get(text.lower())) is not None:
            return truth
        if self.thousands is not None and self._patterns[0].fullmatch(text):
            text = self._patterns[1].sub("", text)
        if self.decimal != ".":
            # A point is no decimal mark here, or 1.243 would shrink a thousandfold.
            text = text.replace(".", "?").replace(self.decimal, ".")
        # Python alone would also take 1_000, other whitespace and the digits of other scripts.
        if not _NUMBER.fullmatch(text):
            return None
        number = float(text)
        return math.nan if number in self.missing.numbers else number

    def column(self, column: Any) -> Any:
        """A column of text as float64: numbers, truth values as 1 and 0, and nulls. None if it holds anything else."""
        import pyarrow as pa
        import pyarrow.compute as pc

        # Blanks only: a number does not continue in the next line.
        text = pc.utf8_trim(column, characters=" \t")
        text = pc.if_else(pc.is_in(text, value_set=pa.array(self.gaps)), pa.scalar(None, pa.string()), text)
        lower = pc.utf8_lower(text)
        text = pc.if_else(pc.equal(lower, "true"), "1", pc.if_else(pc.equal(lower, "false"), "0", text))
        if self.thousands is not None:
            grouped = pc.match_substring_regex(text, f"^(?:{self._grouped})$")
            plain = pc.replace_substring_regex(text, pattern=_MARKS[self.thousands], replacement="")
            text = pc.if_else(grouped, plain, text)
        if self.decimal != ".":
            text = pc.replace_substring(text, pattern=".", replacement="?")
            text = pc.replace_substring(text, pattern=self.decimal, replacement=".")
        try:
            return self.known(text.cast(pa.float64()))
        except pa.ArrowException:
            return None

    def known(self, numbers: Any) -> Any:
        """A column of float64 with nulls where a number stands for a missing value."""
        import pyarrow as pa
        import pyarrow.compute as pc

        marks = self.missing.numbers
        if not marks:
            return numbers
        return pc.if_else(pc.is_in(numbers, value_set=pa.array(marks)), pa.scalar(None, pa.float64()), numbers)


def could_be_number(text: str) -> float | None:
    """The number that a text could be with any decimal mark, NaN if it has marks between thousands; None if it is none.

    >>> could_be_number("7,5"), could_be_number("1.243,5"), could_be_number("age")
    (7.5, nan, None)
    """
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return math.nan if _ANY_MARKS.fullmatch(text.strip()) else None


def texts_are_numbers(texts: Sequence[str]) -> bool:
    """Whether any of the texts could be a number or a truth value."""
    return any(text.lower() in _TRUTH or could_be_number(text) is not None for text in texts)


def could_be_names(names: Sequence[str]) -> bool:
    """Whether the numbers among the names count up from 0, from 1 or from a year, as names do and data seldom does."""
    numbers = [number for number in map(could_be_number, names) if number is not None]
    if len(numbers) < 2:
        return True
    start = numbers[0]
    return (start in {0, 1} or 1800 <= start <= 2200) and numbers == [start + i for i in range(len(numbers))]


def missing_words(value: Any) -> tuple[str, ...]:
    """What stands for a missing value: numbers and words, as texts. One may stand for a list of one."""
    every = [value] if isinstance(value, str) or not isinstance(value, Sequence) else value
    texts = tuple(text_of(entry) if isinstance(entry, int | float) else entry for entry in every)
    if not texts or not all(isinstance(text, str) and text.strip() and "," not in text for text in texts):
        raise InvalidValue("numbers such as -9999 or -9.5, or words without a comma, that stand for a missing value")
    return tuple(dict.fromkeys(text.strip() for text in texts))


def missing_words_from(texts: Sequence[str]) -> tuple[str, ...]:
    """The same from texts with commas between.

    >>> missing_words_from(["-9999,unknown", "-1"])
    ('-9999', 'unknown', '-1')
    """
    return tuple(word for text in texts for word in text.split(","))
