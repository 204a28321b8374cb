"""TOML in and out. Files are read within limits, and values are written so that they read back.

A study comes from a coordinator and may be hostile. Texts that would exhaust Python's reader are refused before it sees them.
"""

import re
import tomllib
from collections.abc import Sequence
from typing import Any, Final

from eigenveil.errors import require
from eigenveil.params import words

__all__ = ["LARGEST", "load_toml", "toml_value"]

LARGEST: Final = 4 << 20
# The memory of Python's reader grows with the square of the names joined by dots. No key here has more than two.
_DOTS: Final = 32
# Possessive repeats never go back, so no hostile text can make the search slow.
_PART: Final = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
_CHAIN: Final = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{_DOTS}}}", re.ASCII)
# Lists longer than this are written with a line for each entry.
_WIDE: Final = 100


def load_toml(text: str) -> dict[str, Any]:
    """The values of a TOML text, or a `ValueError` that says where it is malformed.

    >>> load_toml('[task]\\ncolumns = ["age"]')
    {'task': {'columns': ['age']}}
    """
    require(len(text) <= LARGEST, f"a TOML text may have {LARGEST} characters, got {len(text)}")
    chain = _CHAIN.search(text)
    if chain is not None:
        line = text.count("\n", 0, chain.start()) + 1
        raise ValueError(f"more than {_DOTS} names are joined by dots in line {line}, and no key here has so many")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("lists or tables are nested too deeply. Nothing here needs more than three levels") from None
    except ValueError as error:
        raise ValueError(f"it is not TOML: {str(error)[:300]}") from None


def toml_value(value: Any) -> str:
    """A value as TOML, long lists with a line for each entry.

    >>> toml_value(("a", 1.0, 2)), toml_value(True), toml_value(1e-6)
    ('["a", 1.0, 2]', 'true', '1e-06')
    """
    line = words.toml_value(value)
    if isinstance(value, str) or not isinstance(value, Sequence) or len(line) <= _WIDE:
        return line
    return "[\n" + "".join(f"    {toml_value(item)},\n" for item in value) + "]"
