"""Parameters as tables of a study file or a policy: read, checked, and written with comments.

Files that mean the same have one normal form, `tables_of` of what was read. So a digest of it is a digest of the meaning.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING
from functools import cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from eigenveil.errors import ParameterError, require, shown
from eigenveil.params import declare as words
from eigenveil.params.declare import Declared, declared, help_of, in_study, toml_value, validate_params

__all__ = [
    "LARGEST",
    "KeyLine",
    "keys_of",
    "keys_table",
    "lines_of",
    "load_toml",
    "missing",
    "refuse_unknown",
    "settled",
    "shown_in_file",
    "table_in",
    "tables_of",
    "toml_value",
    "values_in",
]

Kind = TypeVar("Kind")

_LONGEST_NAME: Final = 60


class KeyLine(NamedTuple):
    """A key of a table, its value, and what it means."""

    key: str
    value: Any
    comment: str


def keys_of(cls: type, section: str) -> Mapping[str, Declared]:
    """The parameters of this table, by their keys."""
    return _by_section(cls).get(section, {})


def _in_files(cls: type) -> Iterator[Declared]:
    return (one for one in declared(cls).values() if "study" in one.param.surfaces and one.param.section is not None)


def _sections(cls: type) -> list[str]:
    # In the order of the declarations, which is that of the tables in a file.
    return list(_by_section(cls))


@cache
def _by_section(cls: type) -> Mapping[str, Mapping[str, Declared]]:
    found: dict[str, dict[str, Declared]] = {}
    for one in _in_files(cls):
        found.setdefault(str(one.param.section), {})[one.key] = one
    return found


def values_in(
    document: Mapping[str, Any],
    cls: type,
    *,
    explained: Mapping[str, str] = MappingProxyType({}),
    others: Collection[type] = (),
) -> dict[str, Any]:
    """What the tables of a document say of the parameters of `cls`, by name and not checked yet.

    Keys that only `others` have are read too, so that their values can be refused with a reason. Keys in `explained` are
    refused with the reason given there.
    """
    found: dict[str, Any] = {}
    for section in _sections(cls):
        known = keys_of(cls, section)
        if section not in document:
            # A table whose keys all have defaults may be left out.
            needed = any(one.default is MISSING for one in known.values())
            require(not needed, f"[{section}] is missing")
            continue
        table = table_in(document, section)
        # A key of the other kind of study gets its own reason, not "unknown key".
        foreign = {key: one for other in others for key, one in keys_of(other, section).items() if key not in known}
        switches = {one.param.opt_out.key: one for one in known.values() if one.param.opt_out is not None}
        refuse_unknown(f"[{section}]", table, [*known, *switches], explained=explained, but=foreign)
        found |= {one.name: _read(one, table[key]) for key, one in {**known, **foreign}.items() if key in table}
        for key, one in switches.items():
            _switch(one, f"[{section}] {key}", table.get(key, False), found)
    return found


def table_in(document: Mapping[str, Any], section: str) -> dict[str, Any]:
    """A table of a document, without null values, which TOML cannot express."""
    table = document[section]
    require(isinstance(table, dict), f"[{section}] must be a table, got {shown_in_file(table)}")
    return {key: value for key, value in table.items() if value is not None}


def _read(one: Declared, value: Any) -> Any:
    # TOML has no null, so a word stands for None.
    return None if one.param.none is not None and isinstance(value, str) and value == one.param.none else value


def _switch(one: Declared, where: str, said: Any, found: dict[str, Any]) -> None:
    """Read the key that means None, and refuse it beside a value."""
    require(isinstance(said, bool), f"{where} must be true or false, got {shown_in_file(said)}")
    if not said:
        return
    # A file that says both was edited in haste, and either reading could be the wrong one.
    if one.name in found:
        raise ParameterError(f"{{{one.name}}} and {{{one.name}=None}} contradict each other. Give one of them")
    found[one.name] = None


def refuse_unknown(
    where: str,
    table: Mapping[str, Any],
    known: Collection[str],
    *,
    explained: Mapping[str, str] = MappingProxyType({}),
    but: Collection[str] = (),
) -> None:
    """A `ValueError` for the first unknown key, which suggests the nearest known one."""
    for name in table:
        if name in known or name in but:
            continue
        if name in explained:
            raise ValueError(f"{where} {name} = {shown_in_file(table[name])}: {explained[name]}")
        # Truncated first: comparing a hostile key of a megabyte would take minutes.
        near = difflib.get_close_matches(name[:_LONGEST_NAME], list(known), n=1)
        meant = f": did you mean {near[0]}?" if near else "."
        raise ValueError(f"{where} has an unknown key {shown(name)}{meant} It may have {', '.join(known)}")


def settled(kind: type[Kind], given: Mapping[str, Any]) -> Kind:
    """The parameters that were `given`, by name, checked as those of a file, and the others at their defaults.

    A given parameter that does not apply is refused even at its default: its author expects something of it.
    """
    known = declared(kind)
    for name, one in known.items():
        if one.default is MISSING and name not in given:
            raise missing(one)
        beside = one.param.required_with
        if beside is None:
            continue
        # A delta without an epsilon would look like protection.
        if given.get(beside) is None and name in given:
            raise ParameterError(f"{{{name}}} means nothing with {{{beside}=None}}. Leave it out")
        if given.get(beside) is not None and name not in given:
            raise missing(one)
    # What a file writes out is refused if it has no effect, even at its default.
    written = [name for name in given if given[name] is not None]
    return validate_params(kind, kind(**given), given=written, strict=True)


def missing(one: Declared) -> ParameterError:
    """The error for a missing required parameter. Leaving something out never takes protection away."""
    if one.param.opt_out is None:
        return ParameterError(f"{{{one.name}}} is missing: {one.param.help}")
    return ParameterError(f"{{{one.name}}} is missing. Give it, or say {{{one.name}=None}}: {one.param.opt_out.help}")


def tables_of(asked: Any, *, leave: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """The parameters as tables in their normal form, without those that are unset or do not apply."""
    return {
        section: {line.key: line.value for line in lines}
        for section in _sections(type(asked))
        if (lines := list(lines_of(asked, section, leave=leave)))
    }


def lines_of(asked: Any, section: str, *, leave: Collection[str] = ()) -> Iterator[KeyLine]:
    """The keys of one table, in order, with their values and comments."""
    words = in_study(type(asked), inside=section)
    for key, one in keys_of(type(asked), section).items():
        value = getattr(asked, one.name)
        if one.name in leave or not one.holds(asked) or (one.param.omit_if_default and value == one.default):
            continue
        if value is not None or one.param.none is not None:
            yield KeyLine(key, one.param.none if value is None else value, help_of(one, words))
        if one.param.opt_out is not None:
            about = one.param.opt_out.help
            # Also where it is false, so that a reader of the file sees which of the two holds.
            yield KeyLine(one.param.opt_out.key, value is None, f"true: {about[0].lower()}{about[1:]}")


def keys_table(cls: type) -> str:
    """The keys of `cls` as a Markdown table: each with its section, its default and its meaning."""
    rows = ["| key | default | |", "|---|---|---|"]
    for one in sorted(_in_files(cls), key=lambda one: _sections(cls).index(str(one.param.section))):
        words = in_study(cls, inside=one.param.section)
        rows.append(f"| `[{one.param.section}] {one.key}` | {_default_of(one)} | {help_of(one, words, more=True)} |")
        if one.param.opt_out is not None:
            rows.append(
                f"| `[{one.param.section}] {one.param.opt_out.key}` | `false` | true: {one.param.opt_out.help} |"
            )
    return "\n".join(rows)


def _default_of(one: Declared) -> str:
    if one.default is MISSING:
        return ""
    if one.param.required_with is not None:
        return f"must be given with {one.param.required_with}"
    if one.param.none_means is not None or one.default is None or isinstance(one.default, Mapping):
        return one.param.none_means or "none"
    return f"`{toml_value(one.default)}`"


def shown_in_file(value: Any) -> str:
    """A value for a message about a file: as `shown`, with truth values and null as files write them.

    >>> shown_in_file(True), shown_in_file(None), shown_in_file("masked")
    ('true', 'null', "'masked'")
    """
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else shown(value)


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


def to_toml(value: Any) -> str:
    """A value as TOML, long lists with a line for each entry.

    >>> toml_value(("a", 1.0, 2)), toml_value(True), toml_value(1e-6)
    ('["a", 1.0, 2]', 'true', '1e-06')
    """
    line = words.toml_value(value)
    if isinstance(value, str) or not isinstance(value, Sequence) or len(line) <= _WIDE:
        return line
    return "[\n" + "".join(f"    {to_toml(item)},\n" for item in value) + "]"
