"""The formats of files, and which of them a file has: by its option, or by the ending of its name, never by what is in it.

Names and types of a table are read and checked when it is opened. Its rows come in batches as often as they are asked for; from
a pipe once. A file is read again for every pass, so it may be larger than memory.
"""

import codecs
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

from eigenveil.data.formats.arrays import NPY, NPZ, SVM
from eigenveil.data.formats.arrow import ARROW
from eigenveil.data.formats.base import Format, NamedTable, Output, Scored, require_readable
from eigenveil.data.formats.csv import CSV
from eigenveil.data.formats.jsonl import JSONL
from eigenveil.data.formats.parquet import PARQUET
from eigenveil.data.formats.xlsx import XLSX
from eigenveil.data.number_texts import missing_words, missing_words_from
from eigenveil.errors import ParameterError, join_names, require, verbatim
from eigenveil.params.declarations.groups import ColumnsParams
from eigenveil.params.declare import param, parameters
from eigenveil.params.values import Integer, InvalidValue, one_of

__all__ = [
    "FORMATS",
    "OUTPUTS",
    "PIPES",
    "SHARED",
    "WORDS",
    "FileParams",
    "TableParams",
    "by_ending",
    "followed_format",
    "format_of",
    "known_format",
    "open_named",
    "require_options",
    "require_passthrough",
    "write_scores",
]

FORMATS: Final = (CSV, PARQUET, ARROW, JSONL, NPY, NPZ, SVM, XLSX)
WORDS: Final = tuple(format_.word for format_ in FORMATS)
PIPES: Final = tuple(format_.word for format_ in FORMATS if format_.comes_through_pipe)
# How scores are written, by the ending of a file.
OUTPUTS: Final[dict[str, Output]] = {ending: output for each in FORMATS for ending, output in each.outputs.items()}
# What to convert a table to that several processes should read.
SHARED: Final = " or ".join(format_.title for format_ in FORMATS if format_.is_shared and format_.has_names)


def known_format(path: Path) -> Format | None:
    """The format of a file by the ending of its name; None if no format here has it.

    >>> known_format(Path("plays.CSV.gz")) is CSV
    True
    """
    return next((format_ for format_ in FORMATS if path.name.lower().endswith(format_.suffixes)), None)


def by_ending(path: Path) -> Format:
    """The same; a `ValueError` for an unknown ending."""
    name, format_ = path.name.lower(), known_format(path)
    if format_ is not None:
        return format_
    advice = [text for candidate in FORMATS for ending, text in candidate.advice.items() if name.endswith(ending)]
    every = ", ".join(sorted(ending for candidate in FORMATS for ending in candidate.suffixes))
    raise ValueError(f"{path} has the unknown ending {path.suffix!r}" + (f". {advice[0]}" if advice else f"; use one of {every}"))


def format_of(path: Path, how: "FileParams", *, piped: bool = False) -> Format:
    """The format of a file: what was said, or by the ending of its name."""
    if how.kind is not None:
        return FORMATS[WORDS.index(how.kind)]
    if piped:
        raise ParameterError(f"the format of a pipe must be given: {{kind}} {' or '.join(PIPES)}")
    if path.is_dir():
        return next(format_ for format_ in FORMATS if format_.is_folder)
    try:
        return by_ending(path)
    except ValueError as error:
        raise ParameterError(f"{verbatim(str(error))}, or give its format with {{kind}}") from None


def followed_format(source: Any, how: "FileParams") -> Format:
    """The format of a source whose rows are read as they are appended. A text may have any ending."""
    able = [format_ for format_ in FORMATS if format_.follow is not None]
    choices = " or ".join(format_.word for format_ in able)
    if how.kind is not None:
        format_ = format_of(Path(), how)
        if format_ not in able:
            raise ParameterError(f"only {choices} can be followed, got {{kind=}}", kind=how.kind)
        return format_
    name = source.name.lower() if isinstance(source, Path) and source.is_file() else ""
    others = [candidate for candidate in FORMATS if candidate not in able]
    if any(name.endswith((*candidate.suffixes, *candidate.advice)) for candidate in others):
        # Its first line is no line of names, and an error must not quote it.
        raise ValueError(
            f"{source} is no {choices} file, and only {choices} can be followed. Append the rows to a {choices} file"
        )
    return next((format_ for format_ in able if name.endswith(format_.suffixes)), able[0])


def open_named(source: Any, how: "FileParams") -> NamedTable:
    """A table from a path or an open binary file. Names, types and order of all its parts are checked now."""
    piped = not isinstance(source, str | Path)
    path = Path("the stream") if piped else Path(source)
    format_ = format_of(path, how, piped=piped)
    require_options(path, how, format_)
    if piped:
        text = f"{format_.word} cannot be read from a pipe; use a file, or send {' or '.join(PIPES)} through the pipe"
        require(format_.comes_through_pipe, text)
    else:
        require_readable(path)
        folders = " or ".join(candidate.title for candidate in FORMATS if candidate.is_folder)
        text = f"{path} is a folder. Give a file in it, or a folder of {folders} files"
        require(not path.is_dir() or format_.is_folder, text)
    assert format_.open is not None
    return format_.open(source if piped else path, path, how)


def require_options(path: Path, how: "FileParams", format_: Format) -> None:
    """Refuse an option that the format has no use for: it would be read differently than the caller thinks."""
    # Compared with the defaults, because options that were not given have these.
    plain = type(how)()
    for name in sorted(set().union(*(candidate.options for candidate in FORMATS)) - format_.options):
        if getattr(how, name) != getattr(plain, name):
            titles = " and ".join(candidate.title for candidate in FORMATS if name in candidate.options)
            raise ParameterError(f"{{{name}}} is for {titles} files, and {verbatim(str(path))} is {format_.word}. Leave it out")


def require_passthrough(ending: str, schema: Any = None, *, option: str) -> None:
    """Refuse to carry columns beside scores that a file of this ending has no cells for. An Arrow `schema` has their types."""
    import pyarrow.types as types

    output = OUTPUTS[ending]
    *others, last = [other for other, each in OUTPUTS.items() if each.has_text]
    text = f"--passthrough needs {option} {', '.join(others)} or {last}: {ending} has numbers only"
    require(output.has_text, text)
    if schema is None or output.has_nested:
        return
    nested = join_names(field.name for field in schema if types.is_nested(field.type))
    fitting = " or ".join(other for other, each in OUTPUTS.items() if each.has_nested)
    text = f"--passthrough {nested}: {ending} has no cells for lists or tables. Write the scores to {fitting}"
    require(not nested, text)


def write_scores(path: Path, ending: str, names: list[str], scored: Iterator[Scored]) -> None:
    """Write scores, and what is carried beside them, block by block, in the format of this ending."""
    first = next(scored, None)
    if first is not None and first[1] is not None:
        require_passthrough(ending, first[1].schema, option="--output")
    OUTPUTS[ending].write(path, names, scored if first is None else chain((first,), scored))


FILES: Final = "Reading the table"


def one_character(value: Any) -> str:
    """One character; the word tab is one too."""
    # A shell passes on \t as two characters, and a real tab is hard to type.
    text = {"tab": "\t", "\\t": "\t"}.get(value, value) if isinstance(value, str) else ""
    if len(text) != 1 or not text.isascii() or text.isalnum() or text in "\r\n":
        raise InvalidValue("one character that is neither a letter nor a digit, or the word tab")
    return str(text)


def decimal_mark(value: Any) -> str:
    """A point or a comma."""
    if value not in (".", ","):
        raise InvalidValue("a point or a comma")
    return str(value)


def thousands_mark(value: Any) -> str:
    """A point, a comma, an apostrophe or a space; the word space is one too."""
    text = {"space": " ", "\u00a0": " ", "\u202f": " ", "\u2009": " ", "\u2019": "'"}.get(value, value)
    if text not in (".", ",", "'", " "):
        raise InvalidValue("a point, a comma, an apostrophe or the word space")
    return str(text)


def known_encoding(value: Any) -> str:
    """An encoding of text that Python knows, by its usual name."""
    with suppress(LookupError, TypeError):
        codec = codecs.lookup(value)
        # Python's codecs also convert bytes to bytes, which is no text.
        if codec._is_text_encoding:
            return codec.name
    raise InvalidValue("the name of an encoding of text, such as utf-8, latin-1 or cp1252")


# In Python a table is read before it is handed over, and a study must not say how a site's file is written.
_of_a_file = partial(param, surfaces=frozenset({"cli"}))


@parameters(panel=FILES)
class FileParams:
    """How the file of a table is written. Nothing of it is guessed from rows."""

    # By name or by this option, never by content: what the first bytes look like may depend on one person's row.
    kind: str | None = _of_a_file(
        f"The format: {', '.join(WORDS[:-1])} or {WORDS[-1]}. Needed for a pipe, which can be {' or '.join(PIPES)}.",
        default=None,
        check=one_of(*WORDS),
        cli_name="format",
        metavar="WHICH",
        none_means="by the ending of the name",
    )
    header: bool = _of_a_file("The csv or sheet has no line of column names.", default=True, switch=("--no-header", False))
    # By number and never by what the lines look like. Only the line that is then the first must be public.
    skip_rows: int = _of_a_file(
        "Leave out so many lines of a csv, or rows of a sheet, above the column names.",
        default=0,
        check=Integer(min=0),
        metavar="N",
    )
    comment: str | None = _of_a_file(
        "Leave out the lines of a csv that begin with this character, such as #.",
        default=None,
        check=one_character,
        metavar="CHARACTER",
        none_means="none",
    )
    # Guessed from the header line only: it has names, which are public.
    separator: str | None = _of_a_file(
        "The separator of columns in a csv: one character, or tab.",
        default=None,
        check=one_character,
        metavar="CHARACTER",
        none_means="read from the header line: comma, semicolon, tab or |",
    )
    # Never guessed: 1,5 may be one number or two, and only rows could tell.
    decimal: str = _of_a_file(
        "The decimal mark of a csv, a point or a comma.", default=".", check=decimal_mark, metavar="CHARACTER"
    )
    # Never guessed either: 1.243 may be a thousand or one and a bit.
    thousands: str | None = _of_a_file(
        "The mark between thousands in a csv: a point, a comma, an apostrophe or the word space. Without this option such "
        "numbers are refused.",
        default=None,
        check=thousands_mark,
        metavar="CHARACTER",
        none_means="none",
    )
    na_values: Any = _of_a_file(
        "Numbers or words that stand for a missing value in this file, such as -9999.",
        default=None,
        type_text="list or None",
        check=missing_words,
        parse=missing_words_from,
        is_repeatable=True,
        metavar="VALUES",
        syntax="-9999,unknown",
    )
    quote: str | None = _of_a_file(
        "The quote character of a csv, or none.", default='"', check=one_character, parse=str, none="none", metavar="CHARACTER"
    )
    encoding: str = _of_a_file(
        "The encoding of a csv, such as latin-1 or cp1252.", default="utf-8", check=known_encoding, metavar="NAME"
    )
    sheet: str | None = _of_a_file("The sheet of an xlsx file.", default=None, metavar="NAME", none_means="the only one")
    features: int | None = _of_a_file(
        "The number of columns of an svmlight file, which does not state it. Without this option it is the largest index in the "
        "file, a number from the data.",
        default=None,
        check=Integer(min=1),
        short="-d",
        metavar="D",
    )
    one_based: bool = _of_a_file("The svmlight file counts its columns from one.", default=False, switch=("--one-based", True))


@parameters()
class TableParams(FileParams, ColumnsParams):
    """How a command reads a table: its columns, and its file."""
