"""What an engine is: where rows are that another library holds, and what estimators ask of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from eigenveil.core.rows import Rows
    from eigenveil.data.columns import ColumnLayout
    from eigenveil.data.rows import NamedRows
from dis import opmap
from typing import ParamSpec, TypeVar

import numpy as np

from eigenveil.core.threads import few_cores
from eigenveil.errors import EigenveilError

__all__ = ["Engine", "PieceRefusal", "answer_of", "attempted"]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Engine:
    """An engine for the collections of one library. Nothing else asks for their types by name."""

    title: str  # What errors call its collections.
    takes: Callable[[Any], bool]  # Whether a value is one of them; asked without importing the library.
    rows: Callable[..., "Rows"]  # Of an array, with `gaps`. Values are checked where they are.
    stays: bool  # Whether rows are never copied to this process unasked. The fields below are then not None.
    columns: Callable[[Any], Sequence[Any] | None] | None = None  # The names of a table, None of an array.
    frame: Callable[..., "tuple[NamedRows, ColumnLayout]"] | None = None  # The columns of a table that a `ColumnChoice` names.
    scores: Callable[..., Any] | None = None  # What a function of rows makes of each piece, as a collection, given its shape.
    bring: Callable[[Any], Any] | None = None  # Identifiers of people, here.


_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")
# Errors that this package raises have its own words, which show no value.
_OURS = "eigenveil"


@final
@dataclass(frozen=True, slots=True)
class PieceRefusal:
    """Why a piece gave no sum. `error` has public words only."""

    error: Exception


def attempted(act: Callable[_Given, _Made], *args: _Given.args, **kwargs: _Given.kwargs) -> _Made | PieceRefusal:
    """What `act` returns, or a `PieceRefusal`: it never raises, warns or logs. It runs on one core, beside others like it.

    >>> attempted(float, "Ann Smith")
    PieceRefusal(error=ValueError('a piece of the rows could not be read (ValueError). ...'))
    """
    try:
        # A warning of numpy would reveal something about the row that caused it.
        with np.errstate(all="ignore"), few_cores(1):
            return act(*args, **kwargs)
    except Exception as error:
        return PieceRefusal(_public(error))


def answer_of(answer: _Made | PieceRefusal) -> _Made:
    """What a piece returned, or its error, raised here."""
    if isinstance(answer, PieceRefusal):
        raise answer.error
    return answer


def _public(error: Exception) -> Exception:
    """The error if its words are ours; otherwise one that says what kind it was: messages of other libraries quote values."""
    if isinstance(error, ValueError | EigenveilError) and _raised_by_us(error):
        # Without frames: they hold rows.
        return error.with_traceback(None)
    return ValueError(
        f"a piece of the rows could not be read ({type(error).__name__}). Its message is not shown, because it may quote the "
        "data. Read that piece by itself, where the data is, to see it"
    )


def _raised_by_us(error: Exception) -> bool:
    """Whether a `raise` in this package raised it, and not compiled code that it calls, which has no frame of its own."""
    last: Any = error.__traceback__
    # The last frame is where the error began. The frames before it only passed the call on.
    while last.tb_next is not None:
        last = last.tb_next
    module = str(last.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
    return module == _OURS and last.tb_frame.f_code.co_code[last.tb_lasti] == opmap["RAISE_VARARGS"]
