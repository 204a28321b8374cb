"""`param`: one declaration of each parameter, from which constructors, options, study files, messages and docs are derived.

A class of parameters is a dataclass whose fields are `param(...)`s. It imports nothing heavy, so that `--help` answers at
once; an estimator inherits it, and with it the constructor. The constructor only assigns, as scikit-learn asks for;
`checked` checks the values when they are used.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, replace
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin, overload

from eigenveil.errors import ParameterError
from eigenveil.params.values import Check, Expected, one_of

__all__ = ["Aloud", "Declared", "Limit", "Param", "checked", "declared", "param", "parameters", "refusal"]

Value = TypeVar("Value")
Kind = TypeVar("Kind")
_EVERYWHERE: Final = frozenset({"python", "cli", "study", "model"})


@dataclass(frozen=True, slots=True)
class Aloud:
    """The switch that says None for a parameter that must be given: nobody loses protection by leaving something out."""

    option: str
    key: str
    help: str


@dataclass(frozen=True, slots=True)
class Limit:
    """The key of a site's policy that limits a parameter: it must be `among` those listed, or `most` that number."""

    section: str
    key: str
    kind: Literal["among", "most"]
    help: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """What a parameter means, what is valid, and where it appears."""

    help: str  # One or two sentences. {trust=masked} in them is said in the words of each surface.
    more: str | None = None  # What only the docs have room for.
    check: Check | None = None  # Gives the plain form of a valid value, or raises `Expected`. A Literal needs none.
    parse: Callable[[str], Any] | None = None  # Command-line text to value, where the type alone does not say how.
    metavar: str | None = None
    short: str | None = None  # A flag of one letter.
    called: str | None = None  # Its name on the command line and in a study file, where that differs.
    key: str | None = None  # Its name in a study file, where that differs again.
    said: str | None = None  # Its type in the docs, where the annotation does not say it well.
    unset: str | None = None  # What None means.
    none: str | None = None  # The word for None outside Python.
    missing: str | None = None  # Where it must be given and has no such switch: what a command says if it is not.
    aloud: Aloud | None = None  # The switch for None outside Python, where leaving it out must not mean it.
    only: str | None = None  # "trust=masked": refused, unless left at its default, where that does not hold.
    beside: str | None = None  # Outside Python: given where this other parameter is, and only there.
    limit: Limit | None = None  # The key of a policy that limits it.
    panel: str | None = None  # Heading in --help and in the docs; by default that of the class that declares it.
    section: str | None = None  # Table of a study file; likewise.
    surfaces: frozenset[str] = _EVERYWHERE


@dataclass(frozen=True, slots=True)
class Declared:
    """A parameter as a class has it."""

    name: str
    type: Any
    default: Any  # MISSING where it must be given.
    param: Param

    @property
    def called(self) -> str:
        """Its name on the command line."""
        return self.param.called or self.name

    @property
    def key(self) -> str:
        """Its name in a study file."""
        return self.param.key or self.called

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The types it may have, None left out."""
        every = get_args(self.type) if get_origin(self.type) in (Union, UnionType) else (self.type,)
        return tuple(kind for kind in every if kind is not NoneType)

    @property
    def words(self) -> tuple[str, ...]:
        """The words it can be, where it can be nothing else but None."""
        only = self.kinds[0] if len(self.kinds) == 1 else None
        return get_args(only) if get_origin(only) is Literal else ()

    @property
    def optional(self) -> bool:
        """Whether it may be None."""
        return self.default is None or NoneType in get_args(self.type)


@overload
def param(text: str, *, default: Value, kw_only: bool = True, **facts: Any) -> Value: ...
@overload
def param(text: str, *, kw_only: bool = True, **facts: Any) -> Any: ...
def param(text: str, *, default: Any = MISSING, kw_only: bool = True, **facts: Any) -> Any:
    """A field of a class of parameters: its help, and other fields of `Param` as `facts`."""
    return field(default=default, kw_only=kw_only, metadata={"param": Param(help=text, **facts)})


@dataclass_transform(eq_default=False, kw_only_default=True, field_specifiers=(param,))
def parameters(
    *, panel: str | None = None, section: str | None = None, frozen: bool = False
) -> Callable[[type[Kind]], type[Kind]]:
    """Make a class one of parameters. Its constructor only assigns, which is what scikit-learn asks for.

    `panel` and `section` hold for those of its own parameters that name no other. What no estimator inherits, such as a
    section of a policy, may be `frozen`.
    """

    def made(cls: type[Kind]) -> type[Kind]:
        for name, kind in inspect.get_annotations(cls, eval_str=True).items():
            one = vars(cls).get(name)
            # Any annotation is a field to a dataclass: that of a fitted attribute would become a parameter.
            if not isinstance(one, dataclasses.Field) or "param" not in one.metadata:
                raise TypeError(f"{cls.__name__}.{name} is not a param(...); annotate other attributes elsewhere")
            own: Param = one.metadata["param"]
            filled = replace(own, panel=panel if own.panel is None else own.panel, section=own.section or section)
            one.metadata = MappingProxyType({"param": filled, "type": kind})
        return dataclass(eq=frozen, repr=frozen, frozen=frozen, kw_only=True, match_args=False)(cls)

    return made


def declared(cls: type) -> dict[str, Declared]:
    """The parameters of a class, by name, in the order of its constructor."""
    own = [one for one in dataclasses.fields(cls) if "param" in one.metadata]
    own.sort(key=lambda one: bool(one.kw_only))
    return {
        one.name: Declared(one.name, one.metadata["type"], one.default, one.metadata["param"])
        for one in own
        if one.init
    }


def checked(kind: type[Kind], asked: Any) -> Kind:
    """The parameters of `asked`, checked and in their plain form, as a `kind`; a `ParameterError` for the first bad one."""
    known = declared(kind)
    found = {name: _checked(one, getattr(asked, name)) for name, one in known.items()}
    for name, one in known.items():
        if one.param.only is None or found[name] == one.default:
            continue
        other, _, word = one.param.only.partition("=")
        if found[other] != word:
            raise ParameterError(f"{{{name}}} is for {{{one.param.only}}}, got {{@given}}", given=found[name])
    return kind(**found)


def _checked(one: Declared, value: Any) -> Any:
    if value is None and one.optional:
        return None
    check = one.param.check or (one_of(*one.words) if one.words else None)
    if check is None:
        return value
    try:
        return check(value)
    except Expected as error:
        raise refusal(one, error, value) from None


def refusal(one: Declared, expected: Expected, value: Any) -> ParameterError:
    """The error for a value that is not what was expected."""
    return ParameterError(f"{{{one.name}}} must be {expected}, got {{@given}}", given=value)
