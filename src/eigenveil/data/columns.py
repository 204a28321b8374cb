"""Columns of a table: which are analysed, in which order, and what text becomes.

Only names and declared types decide, never values: whether a fit is refused or asks a question must not depend on anybody's row.
A table in memory, a file and a stream all go through `ColumnChoice.laid_out`, so that all of them give the same errors.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, final

from eigenveil.data.number_texts import as_doubles
from eigenveil.errors import ColumnsError, ParameterError, join_names, require, verbatim
from eigenveil.params.declarations.groups import ColumnsParams
from eigenveil.params.declare import validate_params

if TYPE_CHECKING:
    from eigenveil.linalg import Array

__all__ = [
    "LOOKED_AT",
    "PANDAS_INDEX",
    "ColumnChoice",
    "ColumnFaults",
    "ColumnLayout",
    "advice_for",
    "as_numbers",
    "kinds_of",
    "looks_like_id",
    "named_in_full",
    "one_hot_columns",
    "require_entries",
    "require_kinds",
    "require_names",
    "require_numbers",
    "to_drop",
]

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
            values = as_doubles(column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column)
            if values.null_count or pc.any(pc.is_nan(values)).as_py():
                missing[name] = None
            if pc.any(pc.is_inf(values)).as_py():
                infinite[name] = None
        return cls(tuple(others), tuple(infinite), tuple(missing))

    @classmethod
    def of_batches(cls, batches: Iterable[Any], names: Sequence[str]) -> "ColumnFaults":
        """Of the columns `names` of Arrow tables, all of them numbers by type."""

        def beginning() -> Iterator[Any]:
            n_bytes = 0
            for batch in batches:
                yield batch
                n_bytes += batch.nbytes
                if n_bytes >= LOOKED_AT:
                    return

        return cls.found((name, batch.column(name)) for batch in beginning() for name in names)

    def added_to(self, error: ColumnsError, *, gaps: bool, among: Sequence[str]) -> ColumnsError:
        """The error, with what it does not name yet. Missing values are no fault where `gaps` are allowed."""
        notes = {
            "Not numbers either": self.others,
            "Infinite values are in": self.infinite,
            "Missing values are in": () if gaps else self.missing,
        }
        message, columns, advice = error.happened, error.columns, error.advice
        for note, names in notes.items():
            new = tuple(name for name in names if name not in columns)
            columns += new
            message += f". {note}: {join_names(map(repr, new))}" * bool(new)
            if new and names is self.missing:
                advice += ". Missing values can be handled with {missing=counts} in a fit"
        return ColumnsError(message, columns, advice=advice, drop=to_drop(columns, among))


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
            faults = table.faults(names)
        except ValueError:
            # The file is damaged further down, and the first error stands.
            raise where from None
        raise faults.added_to(where, gaps=gaps, among=table.names) from None


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
    patterns: list[str] = []
    for stem, names in stems.items():
        # A star is a pattern here, and one in a name must not be.
        pattern = _SIGNS.sub(r"[\1]", stem) + "*"
        clear = stem != "" and not any(fnmatchcase(name, pattern) for name in good)
        patterns += [pattern] if clear and len(names) >= _FEWEST else names
    return tuple(patterns) if len(patterns) <= _MOST else ()


# The name pandas gives to an unnamed index when it writes Parquet: row numbers, not a feature.
PANDAS_INDEX: Final = re.compile(r"__index_level_\d+__")
# Words for the kinds of columns. Those in the first row are analysed as they are. A column in which everything is missing has
# no type of its own, and is one of them. Whether a table is accepted must not depend on whether one person has a value there.
_NUMBERS: Final = ("number", "truth value", "nothing")
_TEXTS: Final = ("text", "category")
# A word of a name that says "this names a person or a thing": patient_id, PatientID, uuid. The first or the last word counts.
_ID_WORDS: Final = frozenset(("id", "ids", "uid", "uuid", "guid", "pid", "mrn", "ssn", "identifier", "rowid", "userid"))
# Names of things, with "id" or "number" written onto them without a break: patientid, customer_number.
_THINGS: Final = "patient person user customer client member subject participant employee student account record case"
_ID_NAMES: Final = re.compile(rf"(?:{'|'.join(_THINGS.split())})s?[ _.-]?(?:id|no|nr|num|number|key|code)")
# What pandas calls row numbers in a csv, and what people call them.
_ROW_NUMBERS: Final = frozenset(("unnamed: 0", "index", "row_number", "rownumber", "row number"))
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_PATTERN: Final = re.compile(r"[*?\[]")


def looks_like_id(name: str) -> bool:
    """Whether a column's name says that it identifies people or rows. Its numbers would dominate components and mean nothing.

    >>> [looks_like_id(name) for name in ("id", "patient_id", "PatientID", "customerid", "acid", "idle_time", "width")]
    [True, True, True, True, False, False, False]
    """
    parts = [word.lower() for word in _WORD.findall(name)]
    plain = name.strip().lower()
    edges = {parts[0], parts[-1]} if parts else set()
    return bool(edges & _ID_WORDS) or _ID_NAMES.fullmatch(plain) is not None or plain in _ROW_NUMBERS


def kinds_of(schema: Any) -> dict[str, str]:
    """The kind of each column of an Arrow schema in one or two words, such as number, text or date."""
    return {field.name: _kind(field.type) for field in schema}


def _kind(kind: Any) -> str:
    import pyarrow.types as types

    tests = (
        ("truth value", (types.is_boolean,)),
        ("number", (types.is_integer, types.is_floating, types.is_decimal)),
        ("text", (types.is_string, types.is_large_string)),
        ("category", (types.is_dictionary,)),
        ("date", (types.is_temporal,)),
        ("nothing", (types.is_null,)),
    )
    # Arrow's own word for the rest, such as list<double> or pandas.period.
    rest = str(getattr(kind, "extension_name", kind))
    return next((word for word, every in tests if any(test(kind) for test in every)), rest)


def require_numbers(schema: Any) -> None:
    """Refuse a schema with columns that are not numbers, naming them."""
    require_kinds(kinds_of(schema), schema.names)


def require_kinds(kinds: Mapping[str, str], names: Sequence[str], *, source: str = "") -> None:
    """Refuse columns of other kinds than numbers, naming them; `source` is what the error begins with."""
    bad = {name: kinds[name] for name in names if kinds[name] not in _NUMBERS}
    if bad:
        shown = join_names(f"{name} ({kind})" for name, kind in bad.items())
        error = ColumnsError(
            f"columns must hold numbers; these do not: {shown}",
            tuple(bad),
            advice=advice_for(bad),
            drop=to_drop(tuple(bad), names),
        )
        raise error.at(source) if source else error


def advice_for(bad: Mapping[str, str]) -> str:
    """What to do about columns that are not numbers, a template of `ParameterError`.

    Columns of a csv are "untyped": they may be text or dates, and nothing is guessed from what they hold.
    """
    text = "Leave {it} out with {drop=}"
    if any(kind in (*_TEXTS, "untyped") for kind in bad.values()):
        text += ", or turn text into 0 and 1 with {one_hot}"
    if "date" in bad.values() or "untyped" in bad.values():
        text += ". A date must become a number first, such as days since a public day"
    if "object" in bad.values():
        text += ". Values of several types must become numbers first"
    return text


def require_names(source: Any, names: Sequence[str], wanted: Sequence[str]) -> None:
    """Refuse a table that lacks a `wanted` column, or has two columns of the same name."""
    present = set(names)
    missing = [name for name in wanted if name not in present]
    require(not missing, f"{source} has no column {join_names(map(repr, missing))}; it has {join_names(names)}")
    twice = sorted(name for name, count in Counter(names).items() if count > 1) if len(present) < len(names) else []
    require(not twice, f"{source} has more than one column called {join_names(map(repr, twice))}. Rename all but one")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnLayout:
    """The columns of one table as they are read."""

    read: tuple[str, ...]  # Those that are analysed.
    names: tuple[str, ...]  # What they become.
    one_hot: Mapping[str, tuple[str, ...]]  # These become one column for each level.
    person: str | None = None  # Read beside them, unchanged, as are those of `passthrough`.
    passthrough: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()  # They look like identifiers and were not asked for by name.

    @property
    def plain(self) -> tuple[str, ...]:
        """The columns that are read as numbers."""
        return tuple(name for name in self.read if name not in self.one_hot)

    @property
    def as_text(self) -> tuple[str, ...]:
        """The columns that a csv has as text: whether "7" and "007" differ must not depend on the other rows."""
        # A column that is analysed and carried as well is read once, as numbers.
        plain = frozenset(self.plain)
        beside = (*([] if self.person is None else [self.person]), *(x for x in self.passthrough if x not in plain))
        return tuple(dict.fromkeys((*(name for name in self.read if name in self.one_hot), *beside)))

    def numbers(self, batch: Any, *, gaps: bool) -> "Array":
        """The analysed columns of an Arrow batch, (b, d). Missing numbers are refused, or are NaN if `gaps` are allowed."""
        import numpy as np

        if not self.one_hot:
            return as_numbers(batch.select(list(self.read)), gaps=gaps)
        plain = as_numbers(batch.select(list(self.plain)), gaps=gaps)
        numbers = dict(zip(self.plain, plain.T, strict=True))
        columns: list[Array] = []
        for name in self.read:
            levels = self.one_hot.get(name)
            columns += [numbers[name]] if levels is None else one_hot_columns(batch.column(name), name, levels)
        return np.column_stack(columns)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChoice:
    """What a caller says of the columns of a table."""

    # Names or patterns; an entry that is no name may be several of them with commas between.
    columns: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()
    one_hot: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # The public levels of columns of text.
    person: str | None = None  # Which person a row belongs to.
    passthrough: tuple[str, ...] = ()  # Read next to the rows, for those who may see them.
    literal: bool = False  # All are names as they stand, from a model or a study.

    @classmethod
    def of(cls, options: Any, *, person: str | None = None) -> "ColumnChoice":
        """From the parameters of an estimator or a command."""
        params = validate_params(ColumnsParams, options)
        return cls(columns=params.columns, drop=params.drop or (), one_hot=params.one_hot or {}, person=person)

    @classmethod
    def named(
        cls,
        columns: Sequence[str] | None,
        drop: Sequence[str],
        one_hot: Mapping[str, Sequence[str]] | None,
        *,
        person: str | None,
        passthrough: Sequence[str] = (),
        literal: bool = False,
    ) -> "ColumnChoice":
        """From sequences of any kind, with the levels of text as text."""
        levels = {name: tuple(map(str, every)) for name, every in (one_hot or {}).items()}
        wanted = None if columns is None else tuple(columns)
        beside = {"person": person, "passthrough": tuple(passthrough), "literal": literal}
        return cls(columns=wanted, drop=tuple(drop), one_hot=levels, **beside)  # type: ignore[arg-type]

    @property
    def empty(self) -> bool:
        """Whether nothing was said of columns."""
        return replace(self, literal=False) == ColumnChoice()

    def without(self, names: Sequence[str]) -> "ColumnChoice":
        """The same, with these columns left out."""
        return replace(self, drop=(*self.drop, *names))

    def sources(self, fit_names: Sequence[str]) -> tuple[str, ...]:
        """The columns of a table that the columns `fit_names` of a fit were made from, in their order."""
        made = {f"{name}_{level}": name for name, levels in self.one_hot.items() for level in levels}
        return tuple(dict.fromkeys(made.get(name, name) for name in fit_names))

    def again(
        self, names: Sequence[str], fit_names: Sequence[str], *, source: Any = "X", kinds: Mapping[str, str] | None = None
    ) -> ColumnLayout:
        """The layout of another table for the columns `fit_names` of a fit, in their order; its columns may have any other."""
        wanted = self.sources(fit_names)
        levels = {name: every for name, every in self.one_hot.items() if name in wanted}
        return ColumnChoice(columns=wanted, one_hot=levels, literal=True).laid_out(source, names, kinds)

    def laid_out(self, source: Any, names: Sequence[str], kinds: Mapping[str, str] | None = None) -> ColumnLayout:
        """The layout of a table with these column names. `kinds` are its declared types in words, if it declares any."""
        beside = [] if self.person is None else [self.person]
        require_names(source, names, [*beside, *self.one_hot])
        present = frozenset(names)
        passthrough = tuple(
            dict.fromkeys(name for name, _ in self._found("passthrough", self.passthrough, source, names, present))
        )
        dropped = {name for name, _ in self._found("drop", self.drop, source, names, present)}
        # A study names its columns. One of them that a site carries, too, is still analysed.
        apart = dropped.union(beside, () if self.literal else passthrough)
        if self.columns is None:
            chosen = {name: False for name in names if not PANDAS_INDEX.fullmatch(name)}
        else:
            chosen = {}
            for name, exact in self._found("columns", self.columns, source, names, present):
                # A column that an entry names and another one matches counts as named: someone wants it as it is.
                chosen[name] = chosen.get(name, False) or exact
        read = tuple(name for name in chosen if name not in apart)
        require(len(read) > 0, f"{source} has no columns left to analyse")
        unused = [name for name in self.one_hot if name not in read]
        if unused:
            raise ParameterError(
                f"{{one_hot}} names columns of {verbatim(str(source))} that are left out: {verbatim(join_names(unused))}"
            )
        if kinds is not None:
            require_kinds(kinds, [name for name in read if name not in self.one_hot])
        levels = {name: [f"{name}_{level}" for level in every] for name, every in self.one_hot.items()}
        made = tuple(made_name for name in read for made_name in levels.get(name, [name]))
        # A level may make a name that another column has already, such as sex_f.
        require_names(f"{source}, with its text as 0 and 1,", made, ())
        ids = tuple(name for name in read if name not in self.one_hot and not chosen[name] and looks_like_id(name))
        one_hot = {name: self.one_hot[name] for name in read if name in self.one_hot}
        return ColumnLayout(read=read, names=made, one_hot=one_hot, person=self.person, passthrough=passthrough, ids=ids)

    def _found(
        self, parameter: str, entries: Sequence[str], source: Any, names: Sequence[str], present: frozenset[str]
    ) -> Iterator[tuple[str, bool]]:
        """The columns that `entries` stand for, and whether each was named exactly; all that stand for none in one error."""
        missing: list[str] = []
        matches: list[tuple[str, bool]] = []
        literal = self.literal and parameter != "passthrough"
        for entry in entries:
            # A name with a comma or a star in it is a name first.
            # Some tables have a column without a name.
            whole = entry in present or literal
            for part in [entry] if whole else filter(None, (part.strip() for part in entry.split(","))):
                if part in present:
                    matches.append((part, True))
                    continue
                matching = [name for name in names if fnmatchcase(name, part)] if _PATTERN.search(part) else []
                matches += [(name, False) for name in matching]
                missing += [part] * (not matching or literal)
        if missing:
            message = f"{source} has no column {join_names(map(repr, missing))}; it has {join_names(names)}"
            # A model or a study names its columns, and no option does.
            own = parameter == "passthrough" or literal
            raise ParameterError(verbatim(message) if own else f"{verbatim(message)}. Check {{{parameter}}}")
        yield from matches


def one_hot_columns(column: Any, name: str, levels: Sequence[str]) -> "list[Array]":
    """One column of 0 and 1, (n,), for each level. A value that is missing or not listed is 0 in all of them.

    Every row has at most a single 1, because levels differ, and its part here has norm 0 or 1, however many levels there are.
    An error for a value that is not listed would tell that a row has it.

    >>> import pyarrow as pa
    >>> [column.tolist() for column in one_hot_columns(pa.array(["f", None, "x", "m"]), "sex", ("f", "m"))]
    [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        # pandas has NaN for what is missing, and `from_pandas` makes it missing here as well.
        values = column if isinstance(column, pa.Array | pa.ChunkedArray) else pa.array(column, from_pandas=True)
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError):
        # Arrow's words quote a value.
        raise ValueError(
            f"column {name!r} cannot be turned into 0 and 1: its values have several types, or are too large"
        ) from None
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    kind = _kind(values.type)
    require(
        # Levels are given as text, so truth values become the words true and false. Where all are missing there is no type.
        kind in ("text", "number", "truth value", "nothing"),
        f"column {name!r} cannot be turned into 0 and 1: it is of the kind {kind}. Text, categories and numbers can",
    )
    wanted: list[Any] = list(levels)
    for index, level in enumerate(levels) if kind == "number" else ():
        try:
            wanted[index] = float(level)
        except ValueError:
            raise ValueError(f"column {name!r} has numbers, and its public level {level!r} is not a number") from None
    # As numbers, 1 and 1.0 are one level, and a row would get two ones.
    require(len(set(wanted)) == len(wanted), f"column {name!r} has numbers, and two of its public levels are the same one")
    values = as_doubles(values) if kind == "number" else values.cast(pa.string())
    equal = (pc.fill_null(pc.equal(values, pa.scalar(level)), False) for level in wanted)
    return [np.asarray(pc.cast(mask, pa.int8()), dtype=np.float64) for mask in equal]


def as_numbers(piece: Any, *, gaps: bool = False) -> "Array":
    """A block of an Arrow table as float64, (b, d). Missing values are refused, or become NaN if `gaps` are allowed."""
    import numpy as np
    import pyarrow as pa

    out = np.empty((piece.num_rows, piece.num_columns))
    for index, column in enumerate(piece.columns):
        plain = column if not pa.types.is_boolean(column.type) else column.cast(pa.int8())
        if pa.types.is_decimal(plain.type) or pa.types.is_float16(plain.type) or plain.null_count:
            # Rounded like any other number too large for a double: pyarrow's refusal would quote it.
            plain = as_doubles(plain)
        start = 0
        for chunk in [plain] if isinstance(plain, pa.Array) else plain.chunks:
            number = pa.types.is_integer(chunk.type) or pa.types.is_floating(chunk.type)
            # `to_numpy` imports pandas if it is installed. That takes longer than reading a table of a million entries.
            plainly = number and not chunk.null_count
            values = np.from_dlpack(chunk) if plainly else chunk.to_numpy(zero_copy_only=False)
            out[start : start + len(chunk), index] = values
            start += len(chunk)
    require_entries(out, piece.schema.names, gaps=gaps)
    return out


def require_entries(values: "Array", names: Sequence[Any], *, gaps: bool) -> None:
    """Refuse infinite entries, and missing ones unless `gaps` are allowed, with the names of all columns that have any.

    >>> import numpy as np
    >>> require_entries(np.array([[1.0, np.nan], [np.inf, 2.0]]), ["age", "pulse"], gaps=False)
    Traceback (most recent call last):
    ...
    eigenveil.errors.ColumnsError: column 'age' has infinite values. They are never taken for missing ones. Correct them, ...
    """
    import numpy as np

    # One sum tells nearly always that all is well. Numbers near the largest one may overflow, and are then looked at.
    with np.errstate(all="ignore"):
        if np.isfinite(values.sum()):
            return
    for what, bad, advice in (
        ("infinite", np.isinf, "They are never taken for missing ones. Correct them, or"),
        ("missing", np.isnan, "Handle them with {missing=counts} in a fit, or"),
    ):
        columns = tuple(str(name) for name, wrong in zip(names, np.atleast_1d(bad(values).any(axis=0)), strict=True) if wrong)
        if columns and not (gaps and what == "missing"):
            which = f"column {columns[0]!r} has" if len(columns) == 1 else f"{len(columns)} columns have"
            listing = "" if len(columns) == 1 else f": {join_names(columns)}"
            raise ColumnsError(
                f"{which} {what} values{listing}",
                columns,
                advice=f"{advice} leave {{it}} out with {{drop=}}",
                drop=to_drop(columns, [str(name) for name in names]),
            )
