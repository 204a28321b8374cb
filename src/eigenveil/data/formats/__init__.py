"""Files of tables: one module for each format, listed in `registry`.

Commands, estimators and the rest of `data` open tables here and ask a `Format` what they need to know of it. A new format is a
module that makes one, and its line in the registry. A format may import the columns, faults and numbers of `data`, and what they
may import. Nothing heavy is imported with it: `--help` lists the formats.
"""

from eigenveil.data.formats.base import Format, NamedTable, Scored, SharedTable, require_readable
from eigenveil.data.formats.registry import (
    FORMATS,
    OUTPUTS,
    PIPES,
    SHARED,
    WORDS,
    FileParams,
    TableParams,
    by_ending,
    followed_format,
    format_of,
    known_format,
    open_named,
    require_options,
    require_passthrough,
    write_scores,
)

__all__ = [
    "FORMATS",
    "OUTPUTS",
    "PIPES",
    "SHARED",
    "WORDS",
    "FileParams",
    "Format",
    "NamedTable",
    "Scored",
    "SharedTable",
    "TableParams",
    "by_ending",
    "followed_format",
    "format_of",
    "known_format",
    "open_named",
    "require_options",
    "require_passthrough",
    "require_readable",
    "write_scores",
]
