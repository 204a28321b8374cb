"""`param`: one declaration of each parameter. Constructors, options, study files, messages and docs are derived from it.

A class of parameters is a dataclass whose fields are `param(...)`s. It imports nothing heavy, so that `--help` answers at once.
An estimator inherits it. Its constructor is generated into the source (`eigenveil.params.docs`) and only assigns, as
scikit-learn requires. Later `validate_params` checks the values, when they are used.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import shlex
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, replace
from functools import cache, cached_property
from importlib import import_module
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin, overload

from eigenveil.errors import ParameterError, Words, in_python
from eigenveil.params.values import Check, HasArray, InvalidValue, one_of, text_of

Value = TypeVar("Value")
Kind = TypeVar("Kind")
Act = TypeVar("Act", bound=Callable[..., Any])
_EVERYWHERE: Final = frozenset({"python", "cli", "study"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OptOut:
    """The switch that means None for a required parameter. Leaving something out must never take protection away."""

    option: str
    key: str
    help: str
    suggested: str = "1"  # The value that an error suggests to try first.


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The key of a site's policy that limits a parameter: it must be `among` a list, at `most` a number, or at `least` one.

    A list may have the words of all parameters with this limit, and those in `also`, except those in `but`, which no study has.
    """

    section: str
    key: str
    kind: Literal["among", "most", "least"]
    help: str
    default: Any  # What a policy without this key allows.
    check: Check | None = None  # For `most` and `least`: which numbers are valid.
    also: tuple[str, ...] = ()
    but: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """What a parameter means, what is valid, and where it appears."""

    help: str  # One or two sentences. Each surface writes {trust=masked} in its own words.
    details: str | None = None  # Further sentences, for the docs alone.
    check: Check | None = None  # Gives the plain form of a valid value, or raises `InvalidValue`. A Literal needs none.
    strict: Check | None = None  # Checked first in a study file, which may be hostile.
    parse: Callable[[str], Any] | None = None  # Command-line text to value, if the type alone does not say how.
    among: Callable[[], tuple[str, ...]] | None = None  # The words it can be, where a registry knows them.
    metavar: str | None = None
    short: str | None = None  # A one-character flag.
    cli_name: str | None = None  # Its name on the command line and in a study file, if different.
    key: str | None = None  # Its name in a study file, if different again.
    type_text: str | None = None  # Its type in the docs, if the annotation reads badly.
    none_means: str | None = None  # What None means.
    none: str | None = None  # The word for None outside Python.
    missing: str | None = None  # What a command says if a required parameter without a switch is missing.
    opt_out: OptOut | None = None  # The switch for None outside Python, if leaving it out must not mean None.
    switch: tuple[str, Any] | None = None  # An option without a value, and what it stands for, in place of one with a value.
    is_repeatable: bool = False  # The option may be repeated, and `parse` gets the list of its texts.
    # "trust=masked": with another trust it is refused, unless at its default. "epsilon": without an epsilon it is.
    applies_when: str | None = None
    lenient: bool = False  # Refused there only if written out, because calls in Python may share settings.
    otherwise_hint: str | None = None  # What to do if `applies_when` does not hold.
    syntax: str | None = None  # Its forms on a command line, if neither help nor metavar shows them.
    required_with: str | None = None  # Outside Python: required with this other parameter, and refused without it.
    omit_if_default: bool = False  # Study files and model settings leave it out at its default.
    recorded: bool | None = None  # In a model's settings. None: its numbers and listed words. True: all that the check lets by.
    limit: Limit | None = None  # The key of a policy that limits it.
    panel: str | None = None  # Heading in --help and in the docs. By default that of its class.
    section: str | None = None  # Table of a study file. By default that of its class.
    surfaces: frozenset[str] = _EVERYWHERE


@dataclass(frozen=True, kw_only=True)
class Declared:
    """A parameter as a class has it."""

    name: str
    type: Any
    default: Any  # MISSING if it is required.
    param: Param

    @property
    def cli_name(self) -> str:
        """Its name on the command line."""
        return self.param.cli_name or self.name

    @property
    def key(self) -> str:
        """Its name in a study file."""
        return self.param.key or self.cli_name

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The types it may have, without None."""
        # A registry is asked anew: it may have got another leaf.
        return self._kinds if self.param.among is None else _without_none(self.spelled)

    @cached_property
    def _kinds(self) -> tuple[Any, ...]:
        # Every fit asks, and the typing module takes its time.
        return _without_none(self.type)

    @property
    def spelled(self) -> Any:
        """Its type, in which words of a registry are a Literal. Asking for those loads the leaves."""
        if self.param.among is None:
            return self.type
        literal: Any = Literal
        either: Any = Union
        choices = literal[self.param.among()]
        return either[tuple(choices if kind is str else kind for kind in _alternatives(self.type))]

    @property
    def words(self) -> tuple[str, ...]:
        """The words it can be, if it can be nothing else but None."""
        only = self.kinds[0] if len(self.kinds) == 1 else None
        return get_args(only) if get_origin(only) is Literal else ()

    @cached_property
    def optional(self) -> bool:
        """Whether it may be None."""
        return self.default is None or NoneType in get_args(self.type)

    def holds(self, params: Any) -> bool:
        """Whether it applies, given the other parameters of `params`."""
        only = self.param.applies_when
        return only is None or _applies(only, getattr(params, only.partition("=")[0]))

    def at_default(self, value: Any) -> bool:
        """Whether a value is the default. Arrays never are."""
        return value is self.default or (type(value) is type(self.default) and bool(value == self.default))


def _without_none(kind: Any) -> tuple[Any, ...]:
    return tuple(alternative for alternative in _alternatives(kind) if alternative is not NoneType)


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


@overload
def param(text: str, *, default: Value, kw_only: bool = True, like: Mapping[str, Any] = ..., **facts: Any) -> Value: ...


@overload
def param(
    text: str, *, default_factory: Callable[[], Value], kw_only: bool = True, like: Mapping[str, Any] = ..., **facts: Any
) -> Value: ...


@overload
def param(text: str, *, kw_only: bool = True, like: Mapping[str, Any] = ..., **facts: Any) -> Any: ...


def param(
    text: str,
    *,
    default: Any = MISSING,
    default_factory: Any = MISSING,
    kw_only: bool = True,
    like: Mapping[str, Any] = MappingProxyType({}),
    **facts: Any,
) -> Any:
    """A field of a class of parameters: its help, and other fields of `Param` as `facts`, over those of others `like` it."""
    metadata = {"param": Param(help=text, **{**like, **facts})}
    return field(default=default, default_factory=default_factory, kw_only=kw_only, metadata=metadata)


def registered(module: str, attribute: str) -> Callable[[], tuple[str, ...]]:
    """The words that a registry of leaves has under this name, for `among`. `--help` asks for none, and loads no leaf."""

    def names() -> tuple[str, ...]:
        return tuple(getattr(import_module(module), attribute))

    return names


def redeclare(cls: type, name: str, **changes: Any) -> Any:
    """The declaration of another class's parameter, with changed facts or another default."""
    entry = declared(cls)[name]
    kw_only = bool(cls.__dataclass_fields__[name].kw_only)  # type: ignore[attr-defined]
    default = changes.pop("default", entry.default)
    return field(default=default, kw_only=kw_only, metadata={"param": replace(entry.param, **changes)})


def merge_params(title: str, kinds: Sequence[type], /, *, leave: Collection[str] = (), **changes: Mapping[str, Any]) -> type:
    """A class with the parameters of all these classes, except those in `leave`. The first class that has a name wins.

    By parameter name, `changes` are other defaults and other fields of `Param`.
    """
    fields: dict[str, Any] = {}
    types: dict[str, Any] = {}
    for kind in kinds:
        for own, entry in declared(kind).items():
            if own in fields or own in leave:
                continue
            fields[own] = redeclare(kind, own, **changes.get(own, {}))
            # A changed default of None makes the parameter optional.
            types[own] = entry.type if fields[own].default is not None else entry.type | None
    return parameters()(type(title, (), {**fields, "__annotations__": types}))


@dataclass_transform(eq_default=False, kw_only_default=True, field_specifiers=(param,))
def parameters(
    *, panel: str | None = None, section: str | None = None, frozen: bool = False
) -> Callable[[type[Kind]], type[Kind]]:
    """Make a class a class of parameters. Its constructor only assigns, as scikit-learn requires.

    Own parameters that name no `panel` or `section` get these. A class that no estimator inherits, such as a section of a
    policy, may be `frozen`. It is then checked when it is made.
    """

    def made(cls: type[Kind]) -> type[Kind]:
        # Evaluated, because the declaring modules postpone annotations and options are derived from the types.
        for name, kind in inspect.get_annotations(cls, eval_str=True).items():
            attr = vars(cls).get(name)
            # To a dataclass every annotation is a field, so that of a fitted attribute would become a parameter.
            if not isinstance(attr, dataclasses.Field) or "param" not in attr.metadata:
                raise TypeError(f"{cls.__name__}.{name} is not a param(...). Annotate other attributes elsewhere")
            own: Param = attr.metadata["param"]
            filled = replace(
                own,
                panel=panel if own.panel is None else own.panel,
                section=own.section or section,
                metavar=own.metavar or _metavar(kind, own),
            )
            attr.metadata = MappingProxyType({"param": filled, "type": kind})
        if frozen:
            cls.__post_init__ = _checked_at_once  # type: ignore[attr-defined]
        return dataclass(eq=frozen, repr=frozen, frozen=frozen, kw_only=True, match_args=False)(cls)

    return made


def _metavar(kind: Any, own: Param) -> str | None:
    """How --help writes the value of a parameter that does not say."""
    kinds = _without_none(kind)
    if own.among is not None or any(get_origin(option) is Literal for option in kinds):
        return "WHICH"
    return "NUMBER" if set(kinds) <= {int, float} else None


def declared(cls: type) -> dict[str, Declared]:
    """The parameters of a class, by name, in the order of its constructor."""
    return _declared(cls).copy()


@cache
def _declared(cls: type) -> dict[str, Declared]:
    # A study file asks for these some thirty times.
    own = [attr for attr in dataclasses.fields(cls) if "param" in attr.metadata]
    # Positional parameters come first in the constructor, wherever they are declared.
    own.sort(key=lambda attr: bool(attr.kw_only))
    return {
        attr.name: Declared(
            name=attr.name,
            type=attr.metadata["type"],
            default=attr.default if attr.default_factory is MISSING else attr.default_factory(),
            param=attr.metadata["param"],
        )
        for attr in own
        if attr.init
    }


def validate_params(
    kind: type[Kind], params: Any, *, explicit: Collection[str] = (), strict: bool = False, alone: bool = False
) -> Kind:
    """The parameters of `params`, checked and in their plain form, as a `kind`. A `ParameterError` for the first bad one.

    Parameters in `explicit` were written out, on a command line or in a file, and are refused if they do not apply. With `strict`
    all must also be within the limits of a study file. With `alone` each is checked by itself, before the others are known.
    """
    declarations = declared(kind)
    values = {name: _checked(entry, getattr(params, name), strict=strict) for name, entry in declarations.items()}
    for name, entry in declarations.items() if not alone else ():
        idle = entry.param.lenient or entry.at_default(values[name])
        if entry.param.applies_when is None or (idle and name not in explicit):
            continue
        if not _applies(entry.param.applies_when, values[entry.param.applies_when.partition("=")[0]]):
            instead = "" if entry.param.otherwise_hint is None else f". {entry.param.otherwise_hint}"
            if "=" not in entry.param.applies_when:
                raise ParameterError(f"{{{name}}} has no meaning with {{{entry.param.applies_when}=None}}{instead}")
            raise ParameterError(f"{{{name}}} is for {{{entry.param.applies_when}}}, got {{@given}}{instead}", given=values[name])
    return kind(**values)


def _applies(only: str, value: Any) -> bool:
    _, equals, word = only.partition("=")
    return bool(value == word) if equals else value is not None


def _checked(entry: Declared, value: Any, *, strict: bool = False) -> Any:
    if value is None and entry.optional:
        return None
    if entry.param.among is not None and entry.at_default(value):
        # A default is one of the registry's words (a test asks). Asking for them all would load every leaf.
        return value
    check = entry.param.check or (one_of(*choices) if (choices := entry.words) else None)
    try:
        if strict and entry.param.strict is not None:
            value = entry.param.strict(value)
        return value if check is None else check(value)
    except InvalidValue as error:
        raise refusal(entry, error, value) from None


def _checked_at_once(self: Any) -> None:
    for name, entry in declared(type(self)).items():
        object.__setattr__(self, name, _checked(entry, getattr(self, name)))


def refusal(entry: Declared, expected: InvalidValue, value: Any) -> ParameterError:
    """The error for an unexpected value."""
    where = "" if expected.at is None else f", {expected.at},"
    actual = value if expected.actual is ... else expected.actual
    return ParameterError(f"{{{entry.name}}}{where} must be {expected}, got {{@given}}", given=actual)


def takes(kind: type) -> Callable[[Act], Act]:
    """Note which class declares the keywords of a function. Its signature and its docs are generated from that class."""

    def noted(act: Act) -> Act:
        vars(act).update(parameters=kind)
        return act

    return noted


def keywords_in(arguments: Mapping[str, Any], kind: type[Kind]) -> Kind:
    """The keywords among the `arguments` of a function that `takes` a `kind`, checked."""
    return validate_params(kind, kind(**{name: arguments[name] for name in declared(kind)}))


def flag(entry: Declared) -> str:
    """The option of a parameter on a command line.

    >>> from eigenveil.params.declarations.private import PrivateParams
    >>> flag(declared(PrivateParams)["row_bound"]), flag(declared(PrivateParams)["random_state"])
    ('--row-bound', '--seed')
    """
    if entry.param.switch is not None:
        return entry.param.switch[0]
    return "--" + entry.cli_name.replace("_", "-")


def in_options(cls: type, **others: str) -> Words:
    """How a command line writes the parameters of `cls`, and names in `others`, such as `X="the table"`."""
    declarations = declared(cls)

    def words(name: str, value: Any) -> str:
        if name not in declarations:
            return others.get(name, in_python(name, value))
        entry = declarations[name]
        # Quoted for a shell, because a message is copied into one.
        return flag(entry) if value is ... else shlex.join(_options(entry, value))

    return words


def in_study(cls: type, *, inside: str | None = None, **others: str) -> Words:
    """How a study file writes the parameters of `cls`. Keys of the section `inside` are written without it."""
    declarations = declared(cls)

    def words(name: str, value: Any) -> str:
        if name not in declarations or "study" not in declarations[name].param.surfaces:
            return others.get(name, in_python(name, value))
        entry = declarations[name]
        spec = entry.param
        # A comment inside a section need not repeat its name.
        where = "" if spec.section == inside else f"[{spec.section}] "
        if value is ...:
            return where + entry.key
        # Said with a key of its own, because leaving out a key must never take protection away.
        if value is None and spec.opt_out is not None:
            return f"{where}{spec.opt_out.key} = true"
        return f"{where}{entry.key} = {toml_value((spec.none or 'none') if value is None else value)}"

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


def _options(entry: Declared, value: Any) -> tuple[str, ...]:
    spec = entry.param
    if value is ...:
        return flag(entry), entry.name.upper()
    if value is None:
        return (spec.opt_out.option,) if spec.opt_out is not None else (flag(entry), spec.none or "none")
    if spec.switch is not None:
        return (flag(entry),)
    if isinstance(value, bool):
        return (flag(entry) if value else f"--no-{flag(entry)[2:]}",)
    if spec.is_repeatable:
        return tuple(word for text in _texts(value) for word in _option(entry, text))
    return _option(entry, text_of(value))


def _option(entry: Declared, text: str) -> tuple[str, ...]:
    # A value that begins with a minus would be read as an option.
    return (f"{flag(entry)}={text}",) if text.startswith("-") else (flag(entry), text)


def _texts(value: Any) -> list[str]:
    """The texts of an option that may be repeated: several names in one, if none of them has a comma."""
    if isinstance(value, Mapping):
        return [f"{name}={_levels(levels)}" for name, levels in value.items()]
    # A name with a comma would be read as two, so such names are given one by one.
    names = [value] if isinstance(value, str) else list(value)
    return names if any("," in name for name in names) else [",".join(names)]


def _levels(levels: Sequence[str]) -> str:
    return ",".join(f'"{level}"' if "," in level else level for level in levels)


def as_options(params: Any, *, always: Sequence[str] = (), unknown: Sequence[str] = ()) -> list[str]:
    """The words of a command line for the parameters of `params` that are not at their defaults.

    Parameters in `always` are written at their defaults too. Capitals stand for the values of those in `unknown`.

    >>> from eigenveil.params.declarations.private import PrivateParams
    >>> as_options(PrivateParams(5, epsilon=1.0, delta=1e-6, center=None), unknown=["row_bound"])
    ['-k', '5', '--epsilon', '1', '--delta', '1e-06', '--row-bound', 'ROW_BOUND', '--center', 'none']
    """
    options = [(entry.param.short, _options(entry, value)) for entry, value in _given(params, "cli", always, unknown)]
    return [word for short, (name, *rest) in options for word in (short or name, *rest)]


def as_call(params: Any, name: str, *, always: Sequence[str] = (), unknown: Sequence[str] = ()) -> str:
    """The Python call of `name` with the parameters of `params` that are not at their defaults.

    Parameters in `always` are written at their defaults too. Three dots stand for the values of those in `unknown`.

    >>> from eigenveil.params.declarations.private import PrivateParams
    >>> as_call(PrivateParams(5, epsilon=1.0), "PrivatePCA", always=["method"], unknown=["row_bound"])
    "PrivatePCA(5, epsilon=1.0, row_bound=..., method='auto')"
    """
    first = {own for own in declared(type(params)) if not type(params).__dataclass_fields__[own].kw_only}
    arguments = [
        (entry.name, "..." if value is ... else repr(value)) for entry, value in _given(params, "python", always, unknown)
    ]
    return f"{name}({', '.join(text if own in first else f'{own}={text}' for own, text in arguments)})"


def _given(params: Any, surface: str, always: Sequence[str], unknown: Sequence[str]) -> Iterator[tuple[Declared, Any]]:
    for name, entry in declared(type(params)).items():
        value = ... if name in unknown else getattr(params, name)
        if surface in entry.param.surfaces and (name in always or not entry.at_default(value)):
            yield entry, value


def help_of(entry: Declared, wording: Words, *, more: bool = False) -> str:
    """The help of a parameter in these words, opening with where it applies. The docs have `more`."""
    text = entry.param.help if entry.param.details is None or not more else f"{entry.param.help} {entry.param.details}"
    if entry.param.applies_when is not None and "=" in entry.param.applies_when:
        # In front, so that readers to whom it does not apply can stop at the first word.
        text = f"For {{{entry.param.applies_when}}}: {text[0].lower()}{text[1:]}"
    return ParameterError(text).said(wording)


def option_help(entry: Declared, wording: Words) -> str:
    """The help of a parameter's option: what is said everywhere, whether it may be repeated, and its forms.

    >>> from eigenveil.params.declarations.private import SpectrumParams
    >>> option_help(declared(SpectrumParams)["drop"], in_options(SpectrumParams))
    'Leave these columns out: names, or patterns such as *_note. May be repeated. Written as a,b,*_note.'
    """
    repeated = " May be repeated." if entry.param.is_repeatable else ""
    return help_of(entry, wording) + repeated + ("" if entry.param.syntax is None else f" Written as {entry.param.syntax}.")


def parameters_section(cls: type, *, indent: str) -> str:
    """Numpydoc's section for the parameters of `cls`."""
    return "\n".join(indent + line for line in ("Parameters", "----------", *_entries(cls)))


def _entries(cls: type) -> Iterator[str]:
    for entry in declared(cls).values():
        default = "" if entry.default is MISSING else f", default {entry.default!r}"
        if entry.default is None and entry.param.none_means:
            default = f", default None: {entry.param.none_means}"
        yield f"{entry.name} : {entry.param.type_text or said_type(entry.spelled)}{default}"
        yield from (f"    {line}" for line in textwrap.wrap(help_of(entry, in_python, more=True), 110))


def said_type(kind: Any) -> str:
    """A type in words.

    >>> said_type(float | None), said_type(Literal["star", "tree"])
    ('float or None', '"star" or "tree"')
    """
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    names = {NoneType: "None", Any: "object", HasArray: "array", Sequence[float]: "list"}
    texts: list[str] = []
    for part in parts:
        literals = get_args(part) if get_origin(part) is Literal else ()
        texts += [f'"{word}"' for word in literals] or [names.get(part) or str(getattr(part, "__name__", part))]
    return ", ".join(texts[:-1]) + (" or " if len(texts) > 1 else "") + texts[-1]
