"""Checks of values. A check takes what a caller, a command line or a file gave, and returns its plain form."""

import math
import numbers
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, final

from eigenveil.errors import ParameterError, is_visible

Check = Callable[[Any], Any]


class HasArray(Protocol):
    """A numpy array, or what becomes one. A stand-in for numpy's own type, which is slow to import."""

    def __array__(self) -> Any: ...


Vector = Sequence[float] | HasArray
Numbers = float | Vector


class InvalidValue(Exception):
    """A value is not as expected. The text completes "it must be ...", as a template of `ParameterError`.

    In a list, `at` names the entry, and `given` is its value.
    """

    def __init__(self, text: str, *, at: str | None = None, actual: Any = ...) -> None:
        super().__init__(text)
        self.at, self.actual = at, actual


def one_of(*allowed: str) -> Check:
    """One of these words."""

    def check(value: Any) -> str:
        if isinstance(value, str) and value in allowed:
            return value
        raise InvalidValue(f"one of {', '.join(allowed)}")

    return check


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Integer:
    """A whole number within limits. numpy's are accepted, truth values are not."""

    min: int
    max: int | None = None

    def __call__(self, value: Any) -> int:
        low, high = self.min, self.max
        if not _is_whole(value) or int(value) < low or (high is not None and int(value) > high):
            raise InvalidValue(f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}")
        return int(value)

    @property
    def range(self) -> str:
        """The limits as --help shows them, without one that no sensible value reaches.

        >>> Integer(min=1).range, Integer(min=0, max=1000).range, Integer(min=0, max=1 << 63).range
        ('x>=1', '0<=x<=1000', 'x>=0')
        """
        return f"x>={self.min}" if self.max is None or self.max >= 10**9 else f"{self.min}<=x<={self.max}"


def real(
    expected: str,
    good: Callable[[float], bool],
    *,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    finite: str = "finite",
    infinite: bool = False,
) -> Check:
    """A number, as a float, for which `good` holds, within limits that no sensible value reaches. Never NaN."""

    def check(value: Any) -> float:
        number = as_float(value)
        # First, because every comparison with NaN is false and `good` may be written either way.
        if math.isnan(number):
            raise InvalidValue("a number")
        if not good(number):
            raise InvalidValue(expected)
        # After `good`, so that -inf is refused as not positive.
        if math.isinf(number) and not infinite:
            raise InvalidValue(finite)
        if not minimum <= number <= maximum:
            raise InvalidValue(f"between {minimum:g} and {maximum:g}" if math.isfinite(minimum) else f"at most {maximum:g}")
        return number

    return check


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not _is_truth(value)


def _is_truth(value: Any) -> bool:
    # numpy's own truth value, recognised without importing numpy.
    return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")


def as_float(value: Any) -> float:
    """A real number as a float, and anything else as NaN. Truth values do not count as numbers."""
    # A numpy scalar or an array without dimensions.
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if _is_truth(value) or not isinstance(value, numbers.Real):
        return math.nan
    try:
        return float(value)
    # A whole number of thousands of digits.
    except OverflowError:
        return math.nan


# The limit holds by default: a list may come from a study file, which may be hostile.
def listed(check: Check, *, min_count: int = 0, max_count: int = 1_000_000, distinct: bool = False) -> Check:
    """A list, as a tuple, of what `check` accepts. With `distinct`, all entries differ."""

    def every(value: Any) -> tuple[Any, ...]:
        # Not any sequence: a text is one too, and its letters would be taken for entries.
        if not isinstance(value, list | tuple) or not min_count <= len(value) <= max_count:
            raise InvalidValue(f"a list of {min_count} to {max_count} entries")
        entries: list[Any] = []
        earlier: set[Any] = set()
        for position, entry in enumerate(value, start=1):
            try:
                entries.append(check(entry))
            except InvalidValue as error:
                raise InvalidValue(str(error), at=f"entry {position}", actual=entry) from None
            if distinct and entries[-1] in earlier:
                raise InvalidValue("different from those before it", at=f"entry {position}", actual=entry)
            earlier.update(entries[-1:] if distinct else ())
        return tuple(entries)

    return every


def line(longest: int) -> Check:
    """One line of printable text of 1 to `longest` characters, with no blanks around it."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or not 0 < len(value) <= longest:
            raise InvalidValue(f"a text of 1 to {longest} characters")
        # Names are printed on terminals and compared as texts: what people do not see would deceive them.
        if not is_visible(value) or value != value.strip():
            raise InvalidValue(
                "one line of printable characters, none invisible and at most two marks on a letter, with no blanks before or "
                "after it"
            )
        return value

    return check


def hex_digits(count: int) -> Check:
    """Exactly `count` lower-case hex digits."""

    def check(value: Any) -> str:
        # One spelling only, because the digest of a file must be a digest of its meaning.
        if not isinstance(value, str) or len(value) != count or not set(value) <= set("0123456789abcdef"):
            raise InvalidValue(f"{count} lower-case hex digits")
        return value

    return check


def pair_of(check: Check) -> Check:
    """One value, or a pair of them as a tuple."""

    def both(value: Any) -> Any:
        # A numpy scalar has a shape too, the empty one, and is one value.
        if isinstance(value, list | tuple) or (hasattr(value, "shape") and value.shape != ()):
            if len(value) != 2:
                raise InvalidValue("a number, or a pair of them: against the hub, and against everyone else")
            return check(value[0]), check(value[1])
        return check(value)

    return both


def center_value(value: Any) -> Any:
    """What a center is on every surface, where it is not None: the word private, or numbers, one per column."""
    # By what an array can do and not by its type, because numpy is slow to import.
    listed_or_array = hasattr(value, "__len__") or hasattr(value, "__array__")
    if not listed_or_array or (isinstance(value, str) and value != "private"):
        raise InvalidValue("numbers, one per column, or say {center=private} or {center=None}")
    return value


def stream_center(value: Any) -> Any:
    """The same for a stream, which cannot take numbers."""
    if value == "private" and isinstance(value, str):
        return value
    if not (hasattr(value, "__len__") or hasattr(value, "__array__")) or isinstance(value, str):
        raise InvalidValue("{center=private} or {center=None}")
    raise ParameterError(
        "{center} of a stream cannot be numbers: subtract them from the rows and say {center=None}, or say {center=private} "
        "and give them as {origin}"
    )


def name_of_column(value: Any) -> str:
    """The name of a column. With several sites, a list of people would be of one site only."""
    if not isinstance(value, str):
        # The value may be identifiers of people, so it is not shown.
        raise ParameterError("{person} must be the name of a column, the same at every site")
    return value


def truth(value: Any) -> bool:
    """True or False. numpy's are accepted, 0 and 1 are not."""
    if not _is_truth(value):
        raise InvalidValue("True or False")
    return bool(value)


def instance_of(kind: type, description: str) -> Check:
    """An object of a class. Errors call it `description`."""

    def check(value: Any) -> Any:
        if not isinstance(value, kind):
            raise InvalidValue(description)
        return value

    return check


finite = real("a number", lambda _: True)
positive = real("positive", lambda number: number > 0)
# Fourth powers of a bound must neither overflow nor vanish: noise on products of rows grows with its square, and variances of
# that noise with its fourth power.
SHORTEST: Final = 1e-60
LONGEST: Final = 1e60
length = real("positive", lambda number: number > 0, minimum=SHORTEST, maximum=LONGEST)


def private_or(check: Check, expected: str) -> Check:
    """The word private, or what `check` accepts. Any other word is not `expected`."""

    def either(value: Any) -> Any:
        if isinstance(value, str) and value != "private":
            raise InvalidValue(expected)
        return value if isinstance(value, str) else check(value)

    return either


def as_given(value: Any) -> Any:
    """Anything. Numbers for columns are checked when the columns are known."""
    return value


def units_value(value: Any) -> Any:
    """Numbers. Units that are found privately are those of a fit, which finds them and a bound in one go."""
    if isinstance(value, str):
        raise InvalidValue("a number or one per column: only a fit takes {scale=private}, and then needs no bound")
    return value


bound_value = private_or(length, "a number, or say {row_bound=private}")
scale_value = private_or(as_given, "a number or one per column, or say {scale=private}")
fraction = real("in (0, 1)", lambda number: 0 < number < 1)


def share_of_at_most(maximum: float) -> Callable[[Any], int | float]:
    """How many, as a whole number of at most `maximum`, or which share, with a point."""
    numbers = "a whole number from 1" + (f" to {maximum}" if math.isfinite(maximum) else "")

    def check(value: Any) -> int | float:
        # 1 is one site, and 1.0 is all of them.
        if _is_whole(value) and 1 <= int(value) <= maximum:
            return int(value)
        if not _is_whole(value) and 0 < as_float(value) <= 1:
            return float(value)
        raise InvalidValue(f"{numbers}, written without a point, or a share in (0, 1], such as 0.8")

    return check


number_or_share: Final = share_of_at_most(math.inf)


def finite_numbers(value: Any) -> Any:
    """One finite number, or a list of one per column."""
    return listed(finite, min_count=1)(value) if isinstance(value, list | tuple) else finite(value)


def numbers_in_list(value: Any) -> Any:
    """A list of finite numbers, one per column."""
    if not isinstance(value, list | tuple):
        raise InvalidValue("a list of numbers, one per column, or say {center=private} or {center=None}")
    return finite_numbers(value)


scale_in_file = private_or(finite_numbers, "a number or one per column, or say {scale=private}")
center_in_file = private_or(numbers_in_list, "a list of numbers, one per column, or say {center=private} or {center=None}")


def bounds_in_file(value: Any) -> Any:
    """Low and high, each a number or a list of one per column."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise InvalidValue("[low, high], each a number or a list of one per column")
    return tuple(finite_numbers(side) for side in value)


def components_from(text: str) -> int | float:
    """A count or a fraction.

    >>> components_from("5"), components_from("0.9")
    (5, 0.9)
    """
    try:
        # Whole numbers first: 1 is one component, and not all of the variance.
        return int(text)
    except ValueError:
        number = _number(text)
    if not 0 < number < 1:
        raise InvalidValue("a whole number or a fraction between 0 and 1")
    return number


def numbers_from(text: str) -> float | list[float]:
    """One number, or a list of them with commas between.

    >>> numbers_from("2"), numbers_from("1,2.5")
    (2.0, [1.0, 2.5])
    """
    # One number stays a number, because it holds for all columns. A list must have one for each.
    floats = [_number(part) for part in text.split(",")]
    return floats if len(floats) > 1 else floats[0]


def pair_from(text: str) -> tuple[float, float]:
    """Two numbers with a comma between.

    >>> pair_from("-1,1")
    (-1.0, 1.0)
    """
    parts = text.split(",")
    if len(parts) != 2:
        raise InvalidValue("LOW,HIGH, two numbers with a comma between")
    return _number(parts[0]), _number(parts[1])


def private_or_text(parse: Callable[[str], Any], expected: str) -> Callable[[str], Any]:
    """A reader of the word private, or of a text that `parse` reads.

    >>> bound_from("private"), bound_from("2.5"), scale_from("1,2"), center_from("1")
    ('private', 2.5, [1.0, 2.0], [1.0])
    """

    def read(text: str) -> Any:
        try:
            return text if text == "private" else parse(text)
        except InvalidValue:
            raise InvalidValue(expected) from None

    return read


def _list_from(text: str) -> list[float]:
    # A list even of one number: a center has one number per column.
    return [_number(part) for part in text.split(",")]


def share_from(text: str) -> int | float:
    """A number of sites, or a share of them.

    >>> share_from("4"), share_from("0.8")
    (4, 0.8)
    """
    try:
        # Whole numbers first: 4 is four sites, and 1.0 is all of them.
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise InvalidValue("a number such as 4, or a share such as 0.8") from None


def bytes_from(text: str) -> int:
    """A number of bytes, plain or with a unit.

    >>> bytes_from("4096"), bytes_from("64MB"), bytes_from("1.5 GiB")
    (4096, 64000000, 1610612736)
    """
    match = re.fullmatch(r"\s*(\d+\.?\d*)\s*(?:([kmg])(i?)b)?\s*", text, flags=re.IGNORECASE)
    if match is None:
        raise InvalidValue("bytes such as 4096, 64MB or 1.5GiB")
    number, unit, binary = match.groups()
    # The place of a unit in " kmg" is its power. MB counts in thousands and MiB in 1024s.
    return int(float(number) * (1024 if binary else 1000) ** " kmg".index((unit or " ").lower()))


def text_of(value: Any) -> str:
    """A value as text for a command line.

    >>> text_of(1.0), text_of([1.0, 2.5]), text_of(("decay", 4)), text_of("masked")
    ('1', '1,2.5', 'decay:4', 'masked')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) or hasattr(value, "tolist"):
        # Arrays without dimensions become one number.
        items = value.tolist() if hasattr(value, "tolist") else list(value)
        if not isinstance(items, list):
            return text_of(items)
        return (":" if items and isinstance(items[0], str) else ",").join(text_of(item) for item in items)
    if isinstance(value, float):
        # The shortest text that reads back as the same number.
        return repr(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return str(value)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidValue("a number, or numbers with commas between") from None


bound_from = private_or_text(_number, "private, or a number")
scale_from = private_or_text(numbers_from, "private, or numbers with commas between")
center_from = private_or_text(_list_from, "private, none, or numbers with commas between, one per column")
