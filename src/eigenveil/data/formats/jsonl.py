"""Lines of JSON objects, one for each row."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from eigenveil.data.formats.base import CellTable, Format, Output, Scored, lines_in, tables_of
from eigenveil.data.formats.text import lines_of
from eigenveil.data.formats.unpacked import PACKED, Padding, require_bearable
from eigenveil.data.number_texts import MissingMarks
from eigenveil.errors import require

if TYPE_CHECKING:
    from eigenveil.data.formats.registry import FileParams

__all__ = ["JSONL"]


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class JsonTable(CellTable):
    """Lines of JSON objects. The keys of the first are the column names, and no other line may have more."""

    how: "FileParams"

    @classmethod
    def open(cls, source: Path, path: Path, how: "FileParams") -> "JsonTable":
        """The first line is read now."""
        # Lines are read more than once, and a pipe would lose the first of them.
        require(path.is_file(), f"{path}: jsonl cannot be read from a pipe. Use a file, or send csv or arrow through the pipe")
        require_bearable(path)
        first = next(_objects(path, how), None)
        require(first is not None, f"{path} is empty. It needs a JSON object on each line")
        assert first is not None
        require(len(first) > 0, f"{path}: the first line has no keys. They are the column names")
        return cls(source=path, names=tuple(first), missing=MissingMarks.of(how), how=how)

    def blocks(self, size: int) -> Iterator[tuple[int, Mapping[str, list[Any]]]]:
        """Values of lines. What a line leaves out is missing."""
        keys, padding, n_read = frozenset(self.names), Padding(self.source, len(self.names)), 0
        objects = _objects(self.source, self.how)
        while block := list(islice(objects, size)):
            for index, record in enumerate(block):
                require(
                    keys.issuperset(record),
                    f"{self.source} cannot be read after row {n_read + index}: the next line has a key that the first one lacks. "
                    "The first line must have all keys, with null where a value is missing",
                )
                padding.add(len(record))
            yield n_read, {name: [record.get(name) for record in block] for name in self.names}
            n_read += len(block)


class _Twice(ValueError):
    """An object of JSON has two members of one name."""


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise _Twice
    return members


def _objects(path: Path, how: "FileParams") -> Iterator[dict[str, Any]]:
    n_read = 0
    for chunk in lines_of(path, path, how):
        for line in chunk.split(b"\n"):
            if not line.strip():
                continue
            try:
                record = json.loads(line, object_pairs_hook=_members)
                if b"\\u" in line:
                    # Half of a character, such as \ud800, is no text, and could not be written to a file.
                    json.dumps(record, ensure_ascii=False).encode()
            except _Twice:
                raise ValueError(
                    f"{path} cannot be read after row {n_read}: the next line has a key twice. Which of its values counts is not "
                    "guessed. Remove one of them"
                ) from None
            except (ValueError, RecursionError):
                record = None
            if not isinstance(record, dict):
                whole = ". It is JSON in one piece: write one object per line, such as with jq -c '.[]'"
                raise ValueError(
                    f"{path} cannot be read after row {n_read}: the next line is not a JSON object"
                    + (whole if n_read == 0 and line.lstrip()[:1] in (b"[", b"{") else "")
                )
            yield record
            n_read += 1


def _write(path: Path, names: list[str], scored: Iterator[Scored]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for table in tables_of(names, scored):
            for line in lines_in(table):
                numbers = (None if isinstance(cell, float) and not math.isfinite(cell) else cell for cell in line)
                cells = dict(zip(table.schema.names, numbers, strict=True))
                file.write(json.dumps(cells, ensure_ascii=False, default=str) + "\n")


_SUFFIXES: Final = (".jsonl", ".ndjson")
JSONL: Final = Format(
    word="jsonl",
    title="jsonl",
    suffixes=(*_SUFFIXES, *(f"{suffix}{packed}" for suffix in _SUFFIXES for packed in PACKED)),
    open=JsonTable.open,
    rows=None,
    options=frozenset(),
    follow=None,
    outputs={".jsonl": Output(write=_write, has_nested=True)},
    advice={".json": "Write one object per line to a .jsonl file, such as with jq -c '.[]'"},
)
