"""`eigenveil transform`: project rows on the components of a model, block by block.

Scores are raw data: the file is readable by its owner only, and the command says so.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, final

from eigenveil.commands._command import Answer, Command
from eigenveil.commands._ending import wrote
from eigenveil.commands._files import Reading, is_stdin, require_file, require_output, standard_input
from eigenveil.commands._options import Data, Force, Passthrough, flag, option
from eigenveil.data.archive import whole_file
from eigenveil.data.formats import OUTPUTS, Scored, TableParams, open_named, require_passthrough, write_scores
from eigenveil.errors import ColumnsError, join_names, plain, require
from eigenveil.show.console import Line, busy

if TYPE_CHECKING:
    from eigenveil.core.rows import Rows
    from eigenveil.data.columns import ColumnLayout
    from eigenveil.data.formats import NamedTable
    from eigenveil.linalg import Array
    from eigenveil.model import Model
    from eigenveil.show.console import View

__all__ = ["COMMAND", "require_own_names", "scores_of", "with_extra"]

# Rows that are scored at once.
_AT_ONCE: Final = 1 << 16
# Entries that are scored at once, so that memory does not depend on the width.
_NUMBERS_AT_ONCE: Final = 1 << 21
_ENDINGS: Final = tuple(OUTPUTS)


def transform(
    data: Data,
    settings: dict[str, Any],
    model: Annotated[Path, option("--model", "-m", None, "The model: a .safetensors file that `fit` wrote.")],
    scores: Annotated[
        Path, option("--output", "-o", "FILE", f"Write the scores to this file: {', '.join(_ENDINGS[:-1])} or {_ENDINGS[-1]}.")
    ],
    passthrough: Passthrough = None,
    clip: Annotated[
        bool, flag("--clip", "First clip rows as the fit did. The variances of a private model are of clipped rows.")
    ] = False,
    force: Force = False,
) -> Answer:
    """Project rows on the components of a model: the scores of each row.

    Use it as the next step of your own analysis, where the rows may be
    seen: clustering, plots, a regression on few columns. This keeps an id
    and a label beside the scores, to join and to colour them:

      eigenveil transform people.csv -m model.safetensors \\
        -o scores.csv --passthrough id,label

    SCORES ARE RAW DATA. The guarantee covers the model. A person's scores
    are as private as that person's row. Only you can read the output
    (mode 0600).

    If the model and the file both have column names, columns are matched
    by name. Columns that the model does not have are left out. The table
    is read once, block by block, and may be larger than memory.
    """
    read = Reading(params=TableParams(**settings), passthrough=tuple(passthrough or ()))
    read.require(data)
    require_file(model)
    inputs = [model] if is_stdin(data) else [data, model]
    require_output(scores, endings=_ENDINGS, force=force, inputs=inputs)
    if passthrough:
        require_passthrough(scores.suffix.lower(), option="--output")
    from eigenveil.model import Model

    learned = Model.load(model)
    with busy("reading the table"):
        job = _matched(data, learned, read, clip=clip)
    names = [f"component{i}" for i in range(1, len(learned.components) + 1)]
    with busy("scoring rows"), whole_file(scores) as temporary:
        write_scores(temporary, scores.suffix.lower(), names, job.scored)
    wrote(scores)
    return Answer(view=lambda: _view(data, scores, learned, job))


@final
@dataclass(frozen=True, slots=True)
class _ScoreJob:
    """The scores to come, the columns that are passed through, and those that are left out."""

    scored: Iterator[Scored]
    extra: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def _view(data: Path, scores: Path, model: "Model", job: _ScoreJob) -> "View":
    from fnmatch import fnmatchcase

    from rich.text import Text

    from eigenveil.show.terminal import scores_warning

    if job.left_out:
        yield Text(f"left out, because the model does not have them: {plain(join_names(job.left_out))}", style="dim")
    # What the fit set aside: names, or patterns as they were typed.
    noted = [str(entry) for entry in model.settings.get("passthrough") or ()]
    patterns = [part.strip() for entry in noted for part in (entry, *entry.split(","))]
    set_aside = [name for name in job.left_out if any(fnmatchcase(name, pattern) for pattern in (*patterns, *noted))]
    if set_aside and not job.extra:
        yield Text(f"the fit set some of them aside: --passthrough {plain(','.join(set_aside))} writes them too", style="dim")
    yield Line(f"scores written to {scores}, one column per component")
    whose = "standard input" if is_stdin(data) else str(data)
    extra = f", and has their {plain(join_names(job.extra))}" if job.extra else ""
    yield Line(f"it is raw data of the people in {whose}{extra}; only you can read it")
    yield scores_warning()


def _matched(path: Path, model: "Model", reading: Reading, *, clip: bool) -> _ScoreJob:
    """The scores of a table whose columns fit the model."""
    from eigenveil.data.tables import read_table

    dim = model.components.shape[1]
    if reading.params.na_values is None and model.marks:
        # What stood for a missing value in the fit does so here, too: words in columns of text are known only while reading.
        reading = replace(reading, params=replace(reading.params, na_values=model.marks.texts))
    # The model remembers how its own table counted, and another table is read the same way.
    one_based = reading.params.one_based or bool(model.settings.get("one_based", False))
    format_ = reading.format(path)
    if not format_.has_names:
        files = {**reading.files, "one_based": one_based and "one_based" in format_.options}
        chosen = {"columns": reading.params.columns, "drop": reading.params.drop or (), "passthrough": reading.passthrough}
        rows = read_table(path, **chosen, **files).rows
        rows = rows if format_.states_width else _widened(rows, dim)
        _require_dim(path, rows.shape[1], dim)
        return _ScoreJob(with_extra(scores_of(model, rows, clip=clip), None))
    table = open_named(standard_input() if is_stdin(path) else path, reading.params)
    layout, left_out = _laid_out(table, model, reading)
    _require_dim(table.source, len(layout.names), dim)
    require_own_names(layout.passthrough, len(model.components))
    return _ScoreJob(_scored(table, layout, model, clip=clip), layout.passthrough, left_out)


def require_own_names(names: Sequence[str], rank: int) -> None:
    """Refuse to carry a column that is called like one of `rank` columns of scores."""
    taken = {f"component{i}" for i in range(1, rank + 1)}.intersection(names)
    require(not taken, f"--passthrough {', '.join(sorted(taken))} has the name of a column of scores. Rename it first")


def _require_dim(source: Any, n_columns: int, dim: int) -> None:
    require(
        n_columns == dim,
        f"{source} has {n_columns} columns and the model has {dim}. Use a table with the columns the model was fitted on",
    )


def _laid_out(table: "NamedTable", model: "Model", reading: Reading) -> tuple["ColumnLayout", tuple[str, ...]]:
    """The columns that the model needs, in its order, and those that are left out."""
    from eigenveil.data.columns import ColumnChoice
    from eigenveil.data.known import KnownColumns

    # Levels come from the model: those of another table would be other columns.
    choice = replace(ColumnChoice.of(reading.params), one_hot=model.levels, passthrough=reading.passthrough)
    if model.columns is None or not table.named:
        return choice.laid_out(table.source, table.names, table.kinds), ()
    # Only to learn what --passthrough and --drop stand for, whatever kind the columns are.
    table_layout = replace(choice, columns=None, one_hot={}).laid_out(table.source, table.names)
    offered = set(table.names) if not reading.params.drop else {*table_layout.read, *table_layout.passthrough}
    model_columns = KnownColumns(dim=len(model.columns), names=model.columns, one_hot=model.levels)
    layout = model_columns.laid_out(table.source, table.names, table.kinds, offered=frozenset(offered))
    read = {*layout.read, *table_layout.passthrough}
    return replace(layout, passthrough=table_layout.passthrough), tuple(name for name in table_layout.read if name not in read)


def _widened(rows: "Rows", dim: int) -> "Rows":
    """Rows with `dim` columns: svmlight text does not say how many there are, and those after its last entry are zero."""
    import scipy.sparse as sp

    from eigenveil.data.rows import SparseRows

    if not isinstance(rows, SparseRows) or rows.shape[1] >= dim:
        return rows
    matrix = rows.values
    return SparseRows(sp.csr_array((matrix.data, matrix.indices, matrix.indptr), shape=(matrix.shape[0], dim)))


def scores_of(model: "Model", rows: "Rows", *, clip: bool = False) -> Iterator["Array"]:
    """The scores of rows that have the columns of the model, block by block."""
    from eigenveil.core.rows import block_size

    for block in rows.blocks(block_size(rows)):
        yield _finite(model, block.values, clip=clip)


def with_extra(scores: Iterator["Array"], extra: Any) -> Iterator[Scored]:
    """Scores block by block, each with its lines of an Arrow table that has one for each row; None carries nothing."""
    start = 0
    for block in scores:
        yield block, None if extra is None else extra.slice(start, len(block))
        start += len(block)


def _scored(table: "NamedTable", layout: "ColumnLayout", model: "Model", *, clip: bool) -> Iterator[Scored]:
    # Fewer rows where they are wide, so that memory does not depend on the table.
    size = max(1, min(_AT_ONCE, _NUMBERS_AT_ONCE // max(1, len(layout.read))))
    for batch in table.batches(layout.plain, layout.as_text, size):
        try:
            rows = layout.numbers(batch, gaps=_with_gaps(model))
        except ColumnsError as error:
            raise ValueError(f"{table.source}: {error.happened}. Fill them in first, by a public rule") from None
        yield _finite(model, rows, clip=clip), batch.select(list(layout.passthrough)) if layout.passthrough else None


def _with_gaps(model: "Model") -> bool:
    """Whether the model was fitted to a table that may have missing values, and says what becomes of them."""
    return str(model.settings.get("missing", "refuse")) != "refuse"


def _finite(model: "Model", rows: Any, *, clip: bool) -> "Array":
    """The scores of rows. Of a model that drops incomplete rows, these have none: their scores are NaN."""
    import numpy as np

    scores: Array = model.transform(rows, clip=clip)
    good = ~np.isinf(scores) if _with_gaps(model) else np.isfinite(scores)
    require(bool(good.all()), "some rows have NaN or infinite entries. Fill in or remove such rows first")
    return scores


COMMAND = Command(run=transform, params=TableParams, panel="Use and check a model", leave=("one_hot",))
