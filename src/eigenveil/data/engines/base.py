"""What an engine is: where rows are that another library holds, and what estimators ask of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from eigenveil.core.rows import Rows
    from eigenveil.data.columns import ColumnLayout
    from eigenveil.data.rows import NamedRows

__all__ = ["Engine"]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Engine:
    """An engine for the collections of one library. Nothing else asks for their types by name."""

    title: str  # What errors call its collections.
    takes: Callable[[Any], bool]  # Whether a value is one of them; asked without importing the library.
    rows: Callable[..., "Rows"]  # Of an array, with `gaps`. Values are checked where they are.
    stays: bool  # Whether rows are never copied to this process unasked. The fields below are then not None.
    columns: Callable[[Any], Sequence[Any] | None] | None = None  # The names of a table, None of an array.
    frame: Callable[..., "tuple[NamedRows, ColumnLayout]"] | None = (
        None  # The columns of a table that a `ColumnChoice` names.
    )
    scores: Callable[..., Any] | None = (
        None  # What a function of rows makes of each piece, as a collection, given its shape.
    )
    bring: Callable[[Any], Any] | None = None  # Identifiers of people, here.
