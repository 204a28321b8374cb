"""How each surface writes a parameter and its value: Python, the command line, a study file, and the docs."""

import json
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from eigenveil.errors import ParameterError, Words, in_python
from eigenveil.params.declare import Declared, declared
from eigenveil.params.texts import text_of
from eigenveil.params.values import HasArray

__all__ = [
    "as_call",
    "as_options",
    "flag",
    "help_of",
    "in_options",
    "in_study",
    "option_help",
    "parameters_section",
    "toml_value",
]


def flag(one: Declared) -> str:
    """The option of a parameter on a command line.

    >>> from eigenveil.params import PrivateParams
    >>> flag(declared(PrivateParams)["row_bound"]), flag(declared(PrivateParams)["random_state"])
    ('--row-bound', '--seed')
    """
    if one.param.switch is not None:
        return one.param.switch[0]
    return "--" + one.called.replace("_", "-")


def in_options(cls: type, **others: str) -> Words:
    """How a command line writes the parameters of `cls`, and names in `others`, such as `X="the table"`."""
    known = declared(cls)

    def words(name: str, value: Any) -> str:
        if name not in known:
            return others.get(name, in_python(name, value))
        one = known[name]
        # Quoted for a shell, because a message is copied into one.
        return flag(one) if value is ... else shlex.join(_options(one, value))

    return words


def in_study(cls: type, *, inside: str | None = None, **others: str) -> Words:
    """How a study file writes the parameters of `cls`. Keys of the section `inside` are written without it."""
    known = declared(cls)

    def words(name: str, value: Any) -> str:
        if name not in known or "study" not in known[name].param.surfaces:
            return others.get(name, in_python(name, value))
        one = known[name]
        spec = one.param
        # A comment inside a section need not repeat its name.
        where = "" if spec.section == inside else f"[{spec.section}] "
        if value is ...:
            return where + one.key
        # Said with a key of its own, because leaving out a key must never take protection away.
        if value is None and spec.aloud is not None:
            return f"{where}{spec.aloud.key} = true"
        return f"{where}{one.key} = {toml_value((spec.none or 'none') if value is None else value)}"

    return words


def toml_value(value: Any) -> str:
    """A value as TOML.

    >>> toml_value(True), toml_value(("a", 1.5)), toml_value(1e-6)
    ('true', '["a", 1.5]', '1e-06')
    """
    # Truth values first: to Python they are whole numbers, too.
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return json.dumps(value, ensure_ascii=False)
        case Sequence():
            return f"[{', '.join(toml_value(item) for item in value)}]"
    raise TypeError(f"{type(value).__name__} cannot be written as TOML here")


def _options(one: Declared, value: Any) -> tuple[str, ...]:
    spec = one.param
    if value is ...:
        return flag(one), one.name.upper()
    if value is None:
        return (spec.aloud.option,) if spec.aloud is not None else (flag(one), spec.none or "none")
    if spec.switch is not None:
        return (flag(one),)
    if isinstance(value, bool):
        return (flag(one) if value else f"--no-{flag(one)[2:]}",)
    if spec.many:
        return tuple(word for text in _texts(value) for word in _option(one, text))
    return _option(one, text_of(value))


def _option(one: Declared, text: str) -> tuple[str, ...]:
    # A value that begins with a minus would be read as an option.
    return (f"{flag(one)}={text}",) if text.startswith("-") else (flag(one), text)


def _texts(value: Any) -> list[str]:
    """The texts of an option that may be repeated: several names in one, if none of them has a comma."""
    if isinstance(value, Mapping):
        return [f"{name}={_levels(levels)}" for name, levels in value.items()]
    # A name with a comma would be read as two, so such names are given one by one.
    names = [value] if isinstance(value, str) else list(value)
    return names if any("," in name for name in names) else [",".join(names)]


def _levels(levels: Sequence[str]) -> str:
    return ",".join(f'"{level}"' if "," in level else level for level in levels)


def as_options(asked: Any, *, always: Sequence[str] = (), unknown: Sequence[str] = ()) -> list[str]:
    """The words of a command line for the parameters of `asked` that are not at their defaults.

    Parameters in `always` are written at their defaults too. Capitals stand for the values of those in `unknown`.

    >>> from eigenveil.params import PrivateParams
    >>> as_options(PrivateParams(5, epsilon=1.0, delta=1e-6, center=None), unknown=["row_bound"])
    ['-k', '5', '--epsilon', '1', '--delta', '1e-06', '--row-bound', 'ROW_BOUND', '--center', 'none']
    """
    given = [(one.param.short, _options(one, value)) for one, value in _given(asked, "cli", always, unknown)]
    return [word for short, (name, *rest) in given for word in (short or name, *rest)]


def as_call(asked: Any, name: str, *, always: Sequence[str] = (), unknown: Sequence[str] = ()) -> str:
    """The Python call of `name` with the parameters of `asked` that are not at their defaults.

    Parameters in `always` are written at their defaults too. Three dots stand for the values of those in `unknown`.

    >>> from eigenveil.params import PrivateParams
    >>> as_call(PrivateParams(5, epsilon=1.0), "PrivatePCA", always=["method"], unknown=["row_bound"])
    "PrivatePCA(5, epsilon=1.0, row_bound=..., method='auto')"
    """
    first = {own for own in declared(type(asked)) if not _keyword(type(asked), own)}
    given = [
        (one.name, "..." if value is ... else repr(value)) for one, value in _given(asked, "python", always, unknown)
    ]
    return f"{name}({', '.join(text if own in first else f'{own}={text}' for own, text in given)})"


def _keyword(cls: type, name: str) -> bool:
    return bool(cls.__dataclass_fields__[name].kw_only)  # type: ignore[attr-defined]


def _given(asked: Any, surface: str, always: Sequence[str], unknown: Sequence[str]) -> Iterator[tuple[Declared, Any]]:
    for name, one in declared(type(asked)).items():
        value = ... if name in unknown else getattr(asked, name)
        if surface in one.param.surfaces and (name in always or not one.at_default(value)):
            yield one, value


def help_of(one: Declared, words: Words, *, more: bool = False) -> str:
    """The help of a parameter in these words, opening with where it applies. The docs have `more`."""
    text = one.param.help if one.param.more is None or not more else f"{one.param.help} {one.param.more}"
    if one.param.only is not None and "=" in one.param.only:
        # In front, so that readers to whom it does not apply can stop at the first word.
        text = f"For {{{one.param.only}}}: {text[0].lower()}{text[1:]}"
    return ParameterError(text).said(words)


def option_help(one: Declared, words: Words) -> str:
    """The help of a parameter's option: what is said everywhere, whether it may be repeated, and its forms.

    >>> from eigenveil.params import SpectrumParams
    >>> option_help(declared(SpectrumParams)["drop"], in_options(SpectrumParams))
    'Leave these columns out: names, or patterns such as *_note. May be repeated. Written as a,b,*_note.'
    """
    repeated = " May be repeated." if one.param.many else ""
    return help_of(one, words) + repeated + ("" if one.param.written is None else f" Written as {one.param.written}.")


def parameters_section(cls: type, *, indent: str) -> str:
    """Numpydoc's section for the parameters of `cls`."""
    return "\n".join(indent + line for line in ("Parameters", "----------", *_entries(cls)))


def _entries(cls: type) -> Iterator[str]:
    for one in declared(cls).values():
        default = "" if one.default is MISSING else f", default {one.default!r}"
        if one.default is None and one.param.unset:
            default = f", default None: {one.param.unset}"
        yield f"{one.name} : {one.param.said or said_type(one.spelled)}{default}"
        yield from (f"    {line}" for line in textwrap.wrap(help_of(one, in_python, more=True), 110))


def said_type(kind: Any) -> str:
    """A type in words.

    >>> said_type(float | None), said_type(Literal["star", "tree"])
    ('float or None', '"star" or "tree"')
    """
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    names = {NoneType: "None", Any: "object", HasArray: "array", Sequence[float]: "list"}
    words: list[str] = []
    for part in parts:
        found = get_args(part) if get_origin(part) is Literal else ()
        words += [f'"{word}"' for word in found] or [names.get(part) or str(getattr(part, "__name__", part))]
    return ", ".join(words[:-1]) + (" or " if len(words) > 1 else "") + words[-1]
