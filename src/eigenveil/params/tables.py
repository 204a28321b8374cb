"""Parameters as tables of a study file or a policy: read, checked, and written with comments.

Files that mean the same have one normal form, `tables_of` of what was read, so a digest of it is a digest of the meaning.
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
    return (entry for entry in declared(cls).values() if "study" in entry.param.surfaces and entry.param.section is not None)


def _sections(cls: type) -> list[str]:
    # In the order of the declarations, which is that of the tables in a file.
    return list(_by_section(cls))


@cache
def _by_section(cls: type) -> Mapping[str, Mapping[str, Declared]]:
    sections: dict[str, dict[str, Declared]] = {}
    for entry in _in_files(cls):
        sections.setdefault(str(entry.param.section), {})[entry.key] = entry
    return sections


def values_in(
    document: Mapping[str, Any], cls: type, *, explained: Mapping[str, str] = MappingProxyType({}), others: Collection[type] = ()
) -> dict[str, Any]:
    """What the tables of a document say of the parameters of `cls`, by name and not checked yet.

    Keys that only `others` have are read too, so that their values can be refused with a reason. Keys in `explained` are
    refused with the reason given there.
    """
    values: dict[str, Any] = {}
    for section in _sections(cls):
        entries = keys_of(cls, section)
        if section not in document:
            # A table whose keys all have defaults may be left out.
            needed = any(entry.default is MISSING for entry in entries.values())
            require(not needed, f"[{section}] is missing")
            continue
        table = table_in(document, section)
        # A key of the other kind of study gets its own reason, not "unknown key".
        foreign = {key: entry for other in others for key, entry in keys_of(other, section).items() if key not in entries}
        switches = {entry.param.opt_out.key: entry for entry in entries.values() if entry.param.opt_out is not None}
        refuse_unknown(f"[{section}]", table, [*entries, *switches], explained=explained, but=foreign)
        values |= {entry.name: _read(entry, table[key]) for key, entry in {**entries, **foreign}.items() if key in table}
        for key, entry in switches.items():
            _switch(entry, f"[{section}] {key}", table.get(key, False), values)
    return values


def table_in(document: Mapping[str, Any], section: str) -> dict[str, Any]:
    """A table of a document, without null values, which TOML cannot express."""
    table = document[section]
    require(isinstance(table, dict), f"[{section}] must be a table, got {shown_in_file(table)}")
    return {key: value for key, value in table.items() if value is not None}


def _read(entry: Declared, value: Any) -> Any:
    # TOML has no null, so a word stands for None.
    return None if entry.param.none is not None and isinstance(value, str) and value == entry.param.none else value


def _switch(entry: Declared, where: str, opt_out: Any, values: dict[str, Any]) -> None:
    """Read the key that means None, and refuse it beside a value."""
    require(isinstance(opt_out, bool), f"{where} must be true or false, got {shown_in_file(opt_out)}")
    if not opt_out:
        return
    # A file that says both was edited in haste, and either reading could be the wrong one.
    if entry.name in values:
        raise ParameterError(f"{{{entry.name}}} and {{{entry.name}=None}} contradict each other. Give one of them")
    values[entry.name] = None


def refuse_unknown(
    where: str,
    table: Mapping[str, Any],
    allowed: Collection[str],
    *,
    explained: Mapping[str, str] = MappingProxyType({}),
    but: Collection[str] = (),
) -> None:
    """A `ValueError` for the first unknown key, which suggests the nearest known one."""
    for name in table:
        if name in allowed or name in but:
            continue
        if name in explained:
            raise ValueError(f"{where} {name} = {shown_in_file(table[name])}: {explained[name]}")
        # Truncated first: comparing a hostile key of a megabyte would take minutes.
        near = difflib.get_close_matches(name[:_LONGEST_NAME], list(allowed), n=1)
        meant = f": did you mean {near[0]}?" if near else "."
        raise ValueError(f"{where} has an unknown key {shown(name)}{meant} It may have {', '.join(allowed)}")


def settled(kind: type[Kind], explicit: Mapping[str, Any]) -> Kind:
    """The parameters that were `explicit`, by name, checked as those of a file, and the others at their defaults.

    A given parameter that does not apply is refused even at its default: its author expects something of it.
    """
    entries = declared(kind)
    for name, entry in entries.items():
        if entry.default is MISSING and name not in explicit:
            raise missing(entry)
        beside = entry.param.required_with
        if beside is None:
            continue
        # A delta without an epsilon would look like protection.
        if explicit.get(beside) is None and name in explicit:
            raise ParameterError(f"{{{name}}} means nothing with {{{beside}=None}}. Leave it out")
        if explicit.get(beside) is not None and name not in explicit:
            raise missing(entry)
    # What a file writes out is refused if it has no effect, even at its default.
    written = [name for name in explicit if explicit[name] is not None]
    return validate_params(kind, kind(**explicit), explicit=written, strict=True)


def missing(entry: Declared) -> ParameterError:
    """The error for a missing required parameter. Leaving something out never takes protection away."""
    if entry.param.opt_out is None:
        return ParameterError(f"{{{entry.name}}} is missing: {entry.param.help}")
    return ParameterError(f"{{{entry.name}}} is missing. Give it, or say {{{entry.name}=None}}: {entry.param.opt_out.help}")


def tables_of(params: Any, *, leave: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """The parameters as tables in their normal form, without those that are unset or do not apply."""
    return {
        section: {line.key: line.value for line in lines}
        for section in _sections(type(params))
        if (lines := list(lines_of(params, section, leave=leave)))
    }


def lines_of(params: Any, section: str, *, leave: Collection[str] = ()) -> Iterator[KeyLine]:
    """The keys of one table, in order, with their values and comments."""
    wording = in_study(type(params), inside=section)
    for key, entry in keys_of(type(params), section).items():
        value = getattr(params, entry.name)
        if entry.name in leave or not entry.holds(params) or (entry.param.omit_if_default and value == entry.default):
            continue
        if value is not None or entry.param.none is not None:
            yield KeyLine(key, entry.param.none if value is None else value, help_of(entry, wording))
        if entry.param.opt_out is not None:
            about = entry.param.opt_out.help
            # Also where it is false, so that a reader of the file sees which of the two holds.
            yield KeyLine(entry.param.opt_out.key, value is None, f"true: {about[0].lower()}{about[1:]}")


def keys_table(cls: type) -> str:
    """The keys of `cls` as a Markdown table: each with its section, its default and its meaning."""
    rows = ["| key | default | |", "|---|---|---|"]
    for entry in sorted(_in_files(cls), key=lambda entry: _sections(cls).index(str(entry.param.section))):
        wording = in_study(cls, inside=entry.param.section)
        rows.append(f"| `[{entry.param.section}] {entry.key}` | {_default_of(entry)} | {help_of(entry, wording, more=True)} |")
        if entry.param.opt_out is not None:
            rows.append(f"| `[{entry.param.section}] {entry.param.opt_out.key}` | `false` | true: {entry.param.opt_out.help} |")
    return "\n".join(rows)


def _default_of(entry: Declared) -> str:
    if entry.default is MISSING:
        return ""
    if entry.param.required_with is not None:
        return f"must be given with {entry.param.required_with}"
    if entry.param.none_means is not None or entry.default is None or isinstance(entry.default, Mapping):
        return entry.param.none_means or "none"
    return f"`{toml_value(entry.default)}`"


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
