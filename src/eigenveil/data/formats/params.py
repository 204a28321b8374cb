"""How the file of a table is written: the options of commands that read one."""

import codecs
from functools import partial
from typing import Any, Final

from eigenveil.data.formats.registry import PIPES, WORDS
from eigenveil.data.number_texts import missing_words, missing_words_from
from eigenveil.params.declarations.groups import ColumnsParams
from eigenveil.params.declare import param, parameters
from eigenveil.params.values import Expected, one_of, whole

__all__ = ["FileParams", "TableParams"]

FILES: Final = "Reading the table"


def one_character(value: Any) -> str:
    """One character; the word tab is one too."""
    # A shell passes on \t as two characters, and a real tab is hard to type.
    text = {"tab": "\t", "\\t": "\t"}.get(value, value) if isinstance(value, str) else ""
    if len(text) != 1 or not text.isascii() or text.isalnum() or text in "\r\n":
        raise Expected("one character that is neither a letter nor a digit, or the word tab")
    return str(text)


def decimal_mark(value: Any) -> str:
    """A point or a comma."""
    if value not in (".", ","):
        raise Expected("a point or a comma")
    return str(value)


def thousands_mark(value: Any) -> str:
    """A point, a comma, an apostrophe or a space; the word space is one too."""
    text = {"space": " ", "\u00a0": " ", "\u202f": " ", "\u2009": " ", "\u2019": "'"}.get(value, value)
    if text not in (".", ",", "'", " "):
        raise Expected("a point, a comma, an apostrophe or the word space")
    return str(text)


def known_encoding(value: Any) -> str:
    """An encoding of text that Python knows, by its usual name."""
    try:
        found = codecs.lookup(value)
    except (LookupError, TypeError):
        raise Expected("the name of an encoding, such as utf-8, latin-1 or cp1252") from None
    # Python's codecs also convert bytes to bytes, which is no text.
    if not found._is_text_encoding:
        raise Expected("the name of an encoding of text, such as utf-8, latin-1 or cp1252")
    return found.name


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
        called="format",
        metavar="WHICH",
        unset="by the ending of the name",
    )
    header: bool = _of_a_file(
        "The csv or sheet has no line of column names.", default=True, switch=("--no-header", False)
    )
    # By number and never by what the lines look like. Only the line that is then the first must be public.
    skip_rows: int = _of_a_file(
        "Leave out so many lines of a csv, or rows of a sheet, above the column names.",
        default=0,
        check=whole(0),
        metavar="N",
    )
    comment: str | None = _of_a_file(
        "Leave out the lines of a csv that begin with this character, such as #.",
        default=None,
        check=one_character,
        metavar="CHARACTER",
        unset="none",
    )
    # Guessed from the header line only: it has names, which are public.
    separator: str | None = _of_a_file(
        "The separator of columns in a csv: one character, or tab.",
        default=None,
        check=one_character,
        metavar="CHARACTER",
        unset="read from the header line: comma, semicolon, tab or |",
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
        unset="none",
    )
    na_values: Any = _of_a_file(
        "Numbers or words that stand for a missing value in this file, such as -9999.",
        default=None,
        said="list or None",
        check=missing_words,
        parse=missing_words_from,
        many=True,
        metavar="VALUES",
        written="-9999,unknown",
    )
    quote: str | None = _of_a_file(
        "The quote character of a csv, or none.",
        default='"',
        check=one_character,
        parse=str,
        none="none",
        metavar="CHARACTER",
    )
    encoding: str = _of_a_file(
        "The encoding of a csv, such as latin-1 or cp1252.", default="utf-8", check=known_encoding, metavar="NAME"
    )
    sheet: str | None = _of_a_file("The sheet of an xlsx file.", default=None, metavar="NAME", unset="the only one")
    features: int | None = _of_a_file(
        "The number of columns of an svmlight file, which does not state it. Without this option it is the largest index in the "
        "file, a number from the data.",
        default=None,
        check=whole(1),
        short="-d",
        metavar="D",
    )
    one_based: bool = _of_a_file(
        "The svmlight file counts its columns from one.", default=False, switch=("--one-based", True)
    )


@parameters()
class TableParams(FileParams, ColumnsParams):
    """How a command reads a table: its columns, and its file."""
