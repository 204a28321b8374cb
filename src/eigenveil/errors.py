"""The exceptions of Eigenveil, and the checks that raise them in one line. Every module may import this one.

Bad input is a `ValueError` at the public edge. A guarantee that cannot be kept is an exception, never a warning, so that
nobody publishes unprotected results by accident.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from string import Formatter
from typing import Any, Final

# How a surface (Python, a command line, a study file) writes a parameter, from its name and its value. `...` means no value.
Words = Callable[[str, Any], str]

# Values in messages may come from a file that somebody else wrote, so they are shown only in part.
_LONGEST_SHOWN: Final = 60
_LARGEST_SHOWN: Final = 10**15
# Characters that count as printable and show nothing: fillers, selectors of variants, and joiners of marks.
_INVISIBLE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u2d7f\u3164\ufe00-\ufe0f\uffa0\U0001107f\U00016fe4\U0001d159"
    "\U000e0100-\U000e01ef]"
)
# After these categories a joiner belongs to the spelling: pictures and their modifiers, marks, and scripts without case.
_JOINED: Final = frozenset(("So", "Sk", "Mn", "Mc", "Lo"))
# Thai and Vietnamese put two marks on a letter. More of them cover the lines above and below.
_MOST_MARKS: Final = 2


class EigenveilError(Exception):
    """Base of all errors of Eigenveil that are not plain bad input."""

    def __str__(self) -> str:
        return _message(super().__str__())


class BudgetExceeded(EigenveilError):
    """A release would cost more than the ledger has left. Nothing was released and nothing was charged."""


class UnitMismatch(EigenveilError):
    """A guarantee of another kind than those already counted: its costs cannot be added to theirs. Nothing was written."""


# Also a ValueError: a bad file is bad input, and callers may catch it as such.
class ModelFileError(EigenveilError, ValueError):
    """The file is not an Eigenveil model, is of another version, or is damaged."""


class StateFileError(EigenveilError, ValueError):
    """The file is not the state of an Eigenveil stream, is of another version, is damaged, or was resumed before."""


# Bad input too, and state that somebody else keeps stays as it was.
class SourceChanged(EigenveilError, ValueError):
    """A source that is followed is not what it was: shorter, replaced, or with another header. No row was taken."""


class ClockJumped(EigenveilError, ValueError):
    """The clock that closes slots went back, or ran ahead. No slot was closed, and no row was taken."""


class PeerError(EigenveilError):
    """A message from `peer` was refused and changed nothing. It is their fault, and no reason to stop."""

    def __init__(self, peer: str, why: str) -> None:
        super().__init__(f"{peer}: {why}")
        self.peer, self.why = peer, why


class ProtocolError(EigenveilError):
    """The run cannot continue."""


class QuorumLost(ProtocolError):
    """Too few sites answered in time. `missing` names the others. What was gathered before is kept, and the fit can resume."""

    def __init__(self, missing: tuple[str, ...], *, round_: int, stage: str, answered: int, quorum: int) -> None:
        shown = join_names(missing, max_count=10)
        # Without the advice to resume: a recommender cannot be resumed, and says something else.
        self.happened = f"no answer from {shown} in round {round_} ({stage}): {answered} answered and {quorum} must"
        super().__init__(
            f"{self.happened}. Earlier rounds are kept, and so are the answers that came. Resuming asks again, and sites that "
            "have answered send the same numbers"
        )
        self.missing, self.round, self.stage = missing, round_, stage
        self.answered, self.quorum = answered, quorum


class EngineLost(EigenveilError):
    """The cluster or the processes that hold the rows are gone, or of no use. Nothing of the current sum was released."""


class OtherStudy(ProtocolError):
    """The party that asks works on another study. The message has both digests."""


class PeersLost(ProtocolError):
    """Peers are gone, and the others cannot continue. `missing` names those who are gone. `why` is text, or an error that names
    parameters."""

    def __init__(self, missing: tuple[str, ...], *, round_: int, why: "str | ValueError") -> None:
        self.missing, self.round, self.why = missing, round_, why
        super().__init__(self.said(in_python))

    def said(self, wording: Words) -> str:
        """The message, with its parameters in these words."""
        shown = join_names(self.missing, max_count=10)
        return f"without {shown}, round {self.round + 1} cannot restart: {self.reason(wording)}"

    def reason(self, wording: Words) -> str:
        """Why the others cannot continue, in these words."""
        return self.why.said(wording) if isinstance(self.why, ParameterError) else str(self.why)


def require(condition: bool, message: str) -> None:
    """Raise `ValueError(message)` unless `condition` holds.

    >>> require(2 > 1, "arithmetic must work")
    """
    if not condition:
        raise ValueError(_message(message))


class _Templated(Exception):
    """A message about parameters: a template and its values, so that each surface can use its own words."""

    def __init__(self, message: str, **values: Any) -> None:
        self.message, self.values = message, values
        super().__init__(self.said(in_python))

    def said(self, wording: Words, *, show: Callable[[Any], str] | None = None) -> str:
        """The message, with its parameters in these words. `show` writes plain values, by default `shown`."""
        return _message("".join(_said(self.message, self.values, wording, show or shown)))

    def __reduce__(self) -> Any:
        # joblib sends exceptions between processes. Python would rebuild them from their text, without the template.
        return partial(type(self), self.message, **self.values), ()


class ParameterError(_Templated, ValueError):
    """A parameter that cannot be used. Each surface (Python, a command line, a study file) words it in its own way.

    The message is a template. In it, `{survivors}` is a parameter and `{trust=masked}` a parameter with a value. A parameter
    with the value of the keyword `rounds` is `{rounds=}`, and the plain value of the keyword `value` is `{@value}`, so no surface
    has to search a finished sentence for names.

    >>> error = ParameterError("{survivors} is for {trust=masked}, got {@value}", value=3)
    >>> print(error)
    survivors is for trust='masked', got 3
    >>> print(error.said(lambda name, value: f"--{name}" + ("" if value is ... else f" {value}")))
    --survivors is for --trust masked, got 3
    """

    def within(self, origin: str) -> "ParameterError":
        """The same error, opening with where it happened, such as the name of a site."""
        return ParameterError(f"{verbatim(origin)}: {self.message}", **self.values)


# Also a ProtocolError, because a run between parties ends with it in order: the others are told.
class TooFewPeople(ParameterError, ProtocolError):
    """There are too few people for a search in the fit at this budget. What the search has cost until then is spent."""


class ColumnsError(ParameterError):
    """Columns of a table that cannot be analysed, by name. `happened` says why, without the advice that names options.

    `drop` are the names or patterns that leave them out, all of the names if it is None. It is empty if they are too many. In
    the advice, `{it}` is one column or all of them.
    """

    def __init__(
        self,
        happened: str,
        columns: tuple[str, ...],
        *,
        advice: str = "Leave {it} out with {drop=}",
        drop: tuple[str, ...] | None = None,
    ) -> None:
        self.happened, self.columns, self.advice, self.drop = happened, columns, advice, drop
        left = columns if drop is None else drop
        many = "{drop} and patterns such as *_note, or name the others with {columns}"
        hint = advice.replace("{it}", "it" if len(columns) == 1 else "them")
        super().__init__(f"{verbatim(happened)}. {hint if left else hint.replace('{drop=}', many)}", drop=left)

    def at(self, path: str) -> "ColumnsError":
        """The same error, opening with the file it is about."""
        return ColumnsError(f"{path}: {self.happened}", self.columns, advice=self.advice, drop=self.drop)

    def __reduce__(self) -> Any:
        return partial(ColumnsError, advice=self.advice, drop=self.drop), (self.happened, self.columns)


class ParameterWarning(_Templated, UserWarning):
    """A warning about parameters that can be used. The message is a template, as in `ParameterError`."""


class WeakGuaranteeWarning(UserWarning):
    """A guarantee that was kept and promises next to nothing: epsilon or delta is very large."""


class HopelessBudget(ParameterWarning):
    """By the plan, a fit at this budget would find little but noise. It is given before anything is spent."""


def at_place(origin: str, error: Exception) -> ValueError:
    """An error of one place, opening with the name of the place. Its parameters keep each surface's own words.

    >>> str(at_place("site 3", ParameterError("{center} must be finite"))), str(at_place("site 3", ValueError("too long")))
    ('site 3: center must be finite', 'site 3: too long')
    """
    return error.within(origin) if isinstance(error, ParameterError) else ValueError(_message(f"{origin}: {error}"))


def require_param(condition: bool, message: str, **values: Any) -> None:
    """Raise `ParameterError(message, **values)` unless `condition` holds."""
    if not condition:
        raise ParameterError(message, **values)


def verbatim(text: str) -> str:
    """Any text, escaped for use in a template.

    >>> print(ParameterError(f"{verbatim('{x}.csv')}: give {{value}}"))
    {x}.csv: give value
    """
    return text.replace("{", "{{").replace("}", "}}")


def in_python(name: str, value: Any) -> str:
    """A parameter as Python writes it.

    >>> in_python("trust", ...), in_python("trust", "masked")
    ('trust', "trust='masked'")
    """
    return name if value is ... else f"{name}={value!r}"


def join_names(names: Iterable[object], *, max_count: int = 20) -> str:
    """Names for an error message, with commas between; the first few of many, and how many more there are.

    >>> join_names(["age", "weight"]), join_names("abcde", max_count=2)
    ('age, weight', 'a, b and 3 more')
    """
    every = [plain(name) for name in names]
    more = f" and {len(every) - max_count} more" if len(every) > max_count else ""
    return ", ".join(every[:max_count]) + more


def plain(text: object) -> str:
    """`text` on one line with every unprintable character shown as a question mark.

    >>> plain("age" + chr(27) + "[31m")
    'age?[31m'
    """
    # Marks that reverse the direction of text are not printable either, so no name can pose as another one.
    raw = str(text)
    return raw if raw.isprintable() else "".join(_shown_in(raw))


def _shown_in(text: str) -> Iterator[str]:
    before = ""
    for character in text:
        # Emoji and some scripts are spelled with joiners. After a Latin letter one would hide the difference of two names.
        joins = character in "\u200c\u200d" and before != "" and unicodedata.category(before) in _JOINED
        yield character if joins or character.isprintable() else "?"
        before = character


def _message(text: str) -> str:
    """The text of an error or a warning. Names in it may come from a file of others, and a terminal obeys what it is shown."""
    return text if text.isprintable() else "\n".join(map(plain, text.split("\n")))


def is_visible(text: str) -> bool:
    """Whether people see all of a text: no control, no invisible character, no pile of marks, and no mark without a letter.

    >>> is_visible("Zu\u0308rich"), is_visible("north\u200b"), is_visible("north\ufe0f"), is_visible("n" + 3 * "\u0308")
    (True, False, False, False)
    """
    marks, base = 0, ""
    for letter in text:
        if unicodedata.category(letter) in ("Mn", "Me"):
            marks += 1
            if marks > _MOST_MARKS or base in ("", " "):
                return False
        else:
            marks, base = 0, letter
    # Controls, characters that turn the direction of text, joiners and tags are not printable.
    return text.isprintable() and _INVISIBLE.search(text) is None


def shown(value: Any) -> str:
    """A value for an error message: short, and without control characters.

    >>> shown("a" * 100)[:8], shown("\\x1b[2J"), shown({}), shown([1, 2, 3, 4])
    ("'aaaaaaa", "'\\\\x1b[2J'", 'a table', '[1, 2, 3, ...]')
    """
    match value:
        case dict():
            return "a table"
        case int() if not isinstance(value, bool) and abs(value) > _LARGEST_SHOWN:
            # Python refuses to write numbers of thousands of digits.
            return "a very large whole number"
        case list() | tuple():
            # One level only: writing out deep nests could take forever.
            few = ", ".join("a list" if isinstance(item, list | tuple) else shown(item) for item in value[:3])
            return f"[{few}{', ...' if len(value) > 3 else ''}]"
        case str():
            # `ascii` escapes control characters, which could rewrite what a terminal shows.
            text = ascii(value[:_LONGEST_SHOWN])
            return text if len(value) <= _LONGEST_SHOWN else f"{text} ..."
        case _ if hasattr(value, "shape") and value.shape != ():
            # An array may be long, and may hold rows.
            return f"an array of shape {tuple(value.shape)}"
    return ascii(value)[:_LONGEST_SHOWN]


def _said(message: str, values: Mapping[str, Any], wording: Words, show: Callable[[Any], str]) -> Iterator[str]:
    for text, hole, _, _ in Formatter().parse(message):
        yield text
        if hole is None:
            continue
        name, equals, word = hole.partition("=")
        if name.startswith("@"):
            yield show(values[name[1:]])
        elif not equals:
            yield wording(name, ...)
        else:
            yield wording(name, _literal(word) if word else values[name])


def _literal(word: str) -> Any:
    """The value of a word in a template: None, a truth value, a whole number, or the word itself."""
    constants = {"None": None, "True": True, "False": False}
    return constants[word] if word in constants else int(word) if word.isdecimal() else word
