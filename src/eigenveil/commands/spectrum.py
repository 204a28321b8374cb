"""`eigenveil spectrum`: releases the eigenvalues of a table once, for `eigenveil plan`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from eigenveil.commands import _options as common
from eigenveil.commands import _spending as kept
from eigenveil.commands._command import Answer, Command
from eigenveil.commands._ending import wrote
from eigenveil.commands._files import Reading, require_output, write_json
from eigenveil.commands._options import option
from eigenveil.data.formats import TableParams
from eigenveil.estimators.bounds.saved import BoundsFile
from eigenveil.params.declarations.private import SpectrumParams
from eigenveil.show.console import Line, watched

if TYPE_CHECKING:
    from eigenveil.estimators.bounds.spectrum import ReleasedSpectrum
    from eigenveil.show.console import View
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, final

from eigenveil.errors import ParameterError, require, require_param
from eigenveil.params.declarations.plan import PlanParams
from eigenveil.params.declare import as_options

if TYPE_CHECKING:
    from eigenveil.linalg import Array
    from eigenveil.plan.clipping import Norms
    from eigenveil.plan.spectrum import Spectrum

__all__ = ["COMMAND", "KnownSpectrum"]

SpectrumOutput: TypeAlias = Annotated[
    Path, option("--output", "-o", "FILE", "Write the spectrum to this .json file, for `eigenveil plan`.", shows=True)
]


def spectrum(
    context: typer.Context,
    data: common.Data,
    settings: dict[str, Any],
    reading: TableParams,
    total: common.Total = None,
    bounds: common.BoundsPath = None,
    passthrough: common.Passthrough = None,
    ledger: kept.LedgerPath = None,
    dataset: kept.Dataset = None,
    lifetime_epsilon: kept.LifeEpsilon = None,
    lifetime_delta: kept.LifeDelta = None,
    target: SpectrumOutput = Path("spectrum.json"),
    force: common.Force = False,
) -> Answer:
    """Release the spectrum of a table once, for `eigenveil plan`.

    A plan is only as good as what it knows of the spectrum. A small part of
    the budget releases it. Use the same bounds as the fit will:

      eigenveil spectrum people.csv --row-bound 12 --epsilon 0.1 \\
        --delta 1e-6 -o spectrum.json
      eigenveil plan -n 8000 -k 5 --epsilon 1 --delta 1e-6 \\
        --spectrum spectrum.json

    With --bounds bounds.json it uses what `eigenveil bounds` wrote.
    If noise hides all of it, it says so, writes nothing, and exits with
    code 1. The budget is spent even then.
    """
    lasting = kept.LastingLedger(
        path=ledger, dataset=dataset, lifetime_epsilon=lifetime_epsilon, lifetime_delta=lifetime_delta
    )
    lasting.require_sense(settings)
    read = Reading(
        params=reading,
        person=settings["person"],
        passthrough=tuple(passthrough or ()),
        gaps=settings["missing"] != "refuse",
    )
    read.require(data)
    read.require_passes(data, settings)
    require_output(target, endings=(".json",), force=force, inputs=[path for path in (data, bounds, ledger) if path])
    epsilon, delta = settings["epsilon"], settings["delta"]
    left = kept.left_for_fit(total, epsilon, delta)
    bounds_file = None if bounds is None else BoundsFile.read(bounds)
    if bounds_file is not None:
        settings = bounds_file.merged(settings, common.was_given(context, tuple(settings)))
    result, spending = _released(data, settings, read, bounds_file, lasting)
    if result.spectrum is not None:
        # With its guarantee, so that `eigenveil account` can add up what it cost.
        write_json(target, {**result.spectrum.to_json(), "guarantee": result.guarantee.to_dict()})
        wrote(target)
    return Answer(
        view=lambda: _view(result, settings, left, bounds_file, spending, target, counted=read.counted(data)),
        code=int(result.spectrum is None),
    )


def _view(
    result: "ReleasedSpectrum",
    settings: Mapping[str, Any],
    left: tuple[float, float] | None,
    bounds_file: BoundsFile | None,
    spending: kept.FitSpending,
    target: Path,
    *,
    counted: bool,
) -> "View":
    from eigenveil.show.bounds import shared_cost, spectrum_step, spectrum_view, step_lines
    from eigenveil.show.terminal import warning_panel

    private = settings["epsilon"] is not None
    if settings["random_state"] is not None and private:
        yield warning_panel(common.SEEDED)
    yield from spectrum_view(result)
    if private and counted:
        yield warning_panel(common.COUNTED)
    if bounds_file is not None and private:
        yield from shared_cost(bounds_file, settings, result.guarantee.protects)
    yield from spending.lines()
    if result.spectrum is not None:
        yield Line(f"\nspectrum written to {target}")
        yield from step_lines([spectrum_step(result, left, settings, target)])


def _released(
    data: Path,
    settings: Mapping[str, Any],
    reading: Reading,
    bounds_file: BoundsFile | None,
    lasting: kept.LastingLedger,
) -> "tuple[ReleasedSpectrum, kept.FitSpending]":
    from eigenveil.data.rows import NamedRows
    from eigenveil.estimators.bounds.spectrum import released_spectrum

    table = reading.table(data)
    if bounds_file is not None:
        bounds_file.require_columns(table.rows.shape[1], table.columns)
    title, source = f"spectrum, {data.name}", reading.source(data)
    with (
        lasting.charged(table.rows, settings, person=reading.person, title=title, source=source) as spending,
        watched(table.rows) as rows,
    ):
        named = NamedRows(rows, table.columns, reading.person)
        result = released_spectrum(named, **settings, ledger=spending.ledger)
        spending.released = result.to_text().encode()
    return result, spending


COMMAND = Command(run=spectrum, params=SpectrumParams, panel="Start here", reads=True)

# The share of rows that a bound found privately is taken to clip, where nothing says it.
_USUALLY_CLIPPED: Final = 0.25

_ENDINGS: Final = (".json", ".csv", ".txt")

# A public table is read into memory whole. Beyond this many numbers a sample says as much.
_LARGEST_TABLE: Final = 1 << 27


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSpectrum:
    """What the caller said about the spectrum: a guess in `params`, or at most one file. Checks that only one was
    given."""

    params: PlanParams
    file: Path | None = None
    table: Path | None = None
    model: Path | None = None
    reading: TableParams = field(default_factory=TableParams)
    bounds: Path | None = None

    def __post_init__(self) -> None:
        bound_usage, bound = self.params.bound_usage, self.params.row_bound
        named = {
            "--explained": self.params.explained,
            "--decay": self.params.decay,
            "--spectrum": self.file,
            "--public-data": self.table,
            "--from-model": self.model,
        }
        explicit = [name for name, value in named.items() if value is not None]
        require(
            len(explicit) <= 1,
            f"{' and '.join(explicit)} each give the spectrum: choose one of them",
        )
        require(
            self.bounds is None or (bound is None and not isinstance(self.params.scale, str)),
            "--bounds has the row bound: leave out --row-bound and --scale private",
        )
        # A guess is in units of the bound already, so the two options do not compete there.
        units = self.file is not None or self.table is not None or self.model is not None
        require(
            not (units and bound_usage is not None and bound is not None),
            "--bound-usage and --row-bound both set row norms relative to the bound: choose one of them",
        )
        options = as_options(self.reading)
        require(not options or self.table is not None, f"{options[0] if options else ''} is for --public-data")
        given_units = self.params.scale is not None and not isinstance(self.params.scale, str)
        require(not given_units or self.table is not None, "--scale is for --public-data, unless it is private")

    @property
    def guessed(self) -> bool:
        """Whether nothing better than a guess was given."""
        return self.file is None and self.table is None and self.model is None

    @property
    def files(self) -> list[Path]:
        """The file that is read, if any."""
        return [path for path in (self.file, self.table, self.model, self.bounds) if path is not None]

    @property
    def fill_known(self) -> bool:
        """Whether row norms relative to the bound are known. A released spectrum contains them."""
        bound_usage, bound = self.params.bound_usage, self.params.row_bound
        released = self.file is not None and self.file.suffix.lower() == ".json" and bound is None
        # In the units of its columns a public table is clipped as a fit would.
        is_clipped = self.table is not None and isinstance(self.params.scale, str)
        return released or is_clipped or bound_usage is not None or (bound is not None and not self.guessed)

    def asked_with_bounds(self) -> PlanParams:
        """What is asked, with the row bound of a file of bounds, and how rows fill it."""
        if self.bounds is None:
            return self.params
        from eigenveil.estimators.bounds.saved import BoundsFile

        bounds_file = BoundsFile.read(self.bounds)
        require(
            not bounds_file.of_columns,
            f"--bounds {self.bounds} has a range for each column, and a plan needs a bound on rows",
        )
        self._require_dim(bounds_file.dim, self.bounds)
        bound = float(bounds_file.settings["row_bound"])
        # A file with the spectrum says itself how rows fill the bound.
        bound_usage = (
            bounds_file.bound_usages.get(bound)
            if self.guessed and self.params.bound_usage is None
            else self.params.bound_usage
        )
        return replace(self.params, dim=bounds_file.dim, row_bound=bound, bound_usage=bound_usage)

    def norms(self) -> "Norms | None":
        """What is known of the norms of rows, in units of the row bound, or where the fit finds one, of about that."""
        import numpy as np

        from eigenveil.model import Model
        from eigenveil.plan.clipping import Norms

        bound = self.params.row_bound
        if self.bounds is not None:
            from eigenveil.estimators.bounds.saved import BoundsFile

            bounds_file = BoundsFile.read(self.bounds)
            row_norms = Norms.read(bounds_file.norms, bounds_file.outliers)
            return None if row_norms is None or row_norms.power is None else row_norms
        if self.model is not None:
            settings = Model.load(self.model).settings
            row_norms = Norms.read(settings.get("norms"), settings.get("outliers"))
        elif self.table is not None and not isinstance(self.params.scale, str):
            table = Reading(params=self.reading, people=False).table(self.table)
            row_norms = Norms.of_rows(_whole(table.rows, self.params.scale, self.table))
        else:
            return None
        if row_norms is None or row_norms.power is None or not row_norms.norms[0] > 0:
            return None
        # A search usually takes a bound that a quarter of the rows exceed, or more of them.
        usual = float(np.interp(-_USUALLY_CLIPPED, [-share for share in row_norms.beyond], row_norms.norms))
        return row_norms if bound is not None else row_norms.over(usual)

    def spectrum(self) -> "Spectrum":
        """The spectrum, read or guessed."""
        if self.file is not None:
            return self._of_columns(self._from_file(self.file), self.file)
        if self.table is not None:
            return self._of_columns(self._from_table(self.table), self.table)
        if self.model is not None:
            return self._of_columns(self._from_model(self.model), self.model)
        from eigenveil.plan.spectrum import Spectrum

        params = self.asked_with_bounds()
        # A file has the number of columns in it. A guess does not.
        if params.dim is None:
            raise ParameterError("{dim} is missing. Say how many columns the table has")
        return Spectrum.guessed(
            params.dim,
            rank=None if params.explained is None else params.rank,
            explained=params.explained,
            decay=params.decay,
            bound_usage=params.bound_usage,
        )

    def _of_columns(self, spectrum: "Spectrum", path: Path) -> "Spectrum":
        self._require_dim(spectrum.dim, path)
        return spectrum

    def _require_dim(self, n_columns: int, path: Path) -> None:
        dim = self.params.dim
        require(dim is None or dim == n_columns, f"--features is {dim}, but {path} has {n_columns} columns")

    def require_files(self) -> None:
        """Refuse missing or unreadable files at once, before anything heavy is imported."""
        if self.file is not None:
            good = self.file.suffix.lower() in _ENDINGS
            require(good, f"--spectrum must end in {', '.join(_ENDINGS)}, got {self.file}")
        if self.table is not None:
            Reading(params=self.reading, people=False).require(self.table)
        for path in self.files:
            require(path.is_file() or path == self.table, f"{path} does not exist or is not a file")

    def _from_file(self, path: Path) -> "Spectrum":
        from eigenveil.plan.spectrum import PUBLIC_SPREAD, Spectrum

        try:
            # Spreadsheets write a byte-order mark, which would hide the first number.
            text = path.read_text(encoding="utf-8-sig")
            if path.suffix.lower() != ".json":
                return self._of_variances(_numbers(text), path, spread=PUBLIC_SPREAD)
            plain = json.loads(text)
            if isinstance(plain, list):
                require(
                    bool(plain)
                    and all(isinstance(number, int | float) and not isinstance(number, bool) for number in plain),
                    "a list must contain numbers alone, one for each variance",
                )
                return self._of_variances(plain, path, spread=PUBLIC_SPREAD)
            require(
                self.params.bound_usage is None and self.params.row_bound is None,
                "it is in units of the bound it was released with: leave out --bound-usage and --row-bound",
            )
            return Spectrum.from_json(plain)
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not UTF-8 text") from None
        except (json.JSONDecodeError, RecursionError):
            raise ValueError(f"{path} is not JSON") from None
        except ValueError as error:
            raise _in_file(path, error) from error

    def _from_table(self, path: Path) -> "Spectrum":
        from eigenveil.plan.spectrum import Spectrum

        rows = _whole(Reading(params=self.reading, people=False).table(path).rows, self.params.scale, path)
        try:
            return Spectrum.of_rows(
                rows, row_bound=self._clipped_at(rows.shape[1]), bound_usage=self.params.bound_usage
            )
        except ValueError as error:
            raise _in_file(path, error) from error

    def _clipped_at(self, dim: int) -> float | None:
        """The norm that rows of a public table are clipped to, None where --bound-usage says enough."""
        params = self.asked_with_bounds()
        units = isinstance(params.scale, str) and params.row_bound is None and params.bound_usage is None
        # What a fit that finds units clips at.
        return math.sqrt(dim) if units else params.row_bound

    def _from_model(self, path: Path) -> "Spectrum":
        from eigenveil.model import Model
        from eigenveil.show.report import spectrum_of

        params = self.asked_with_bounds()
        return spectrum_of(
            Model.load(path),
            source=path.name,
            dim=self.params.dim,
            row_bound=params.row_bound,
            bound_usage=self.params.bound_usage,
        )

    def _of_variances(self, variances: Sequence[Any], path: Path, *, spread: float) -> "Spectrum":
        from eigenveil.plan.spectrum import Spectrum

        return Spectrum.of_variances(
            variances,
            dim=self.params.dim,
            row_bound=self.asked_with_bounds().row_bound,
            bound_usage=self.params.bound_usage,
            source=f"from {path.name}",
            spread=spread,
        )


def _numbers(text: str) -> list[float]:
    """The numbers of a text: one per line, with or without a header; or all on one line, separated by commas or
    blanks.

    >>> _numbers("variance\\n3\\n2.5"), _numbers("3, 2.5")
    ([3.0, 2.5], [3.0, 2.5])
    """
    # Comments are allowed, because such lists are often copied from a script.
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    rows: list[list[float]] = []
    for index, line in enumerate(lines):
        try:
            rows.append([float(part) for part in line.replace(",", " ").replace(";", " ").split()])
        except ValueError:
            # Only the first line may be a header.
            require(index == 0, f"line {index + 1} is not a number: write one variance per line")
    require(any(rows), "it contains no numbers")
    require(
        len(rows) == 1 or all(len(numbers) == 1 for numbers in rows),
        "it has several numbers per line, and which are variances is unclear: write one per line, or all on one line",
    )
    return [number for numbers in rows for number in numbers]


def _whole(rows: Any, scale: Any, path: Path) -> "Array | Any":
    """All rows in one array or sparse matrix, with columns divided by `scale`."""
    import numpy as np
    import scipy.sparse as sp

    from eigenveil.core.rows import block_size

    count, dim = rows.shape
    require(
        rows.sparse or count * dim <= _LARGEST_TABLE,
        f"{path} is larger than a plan needs: pass a sample of its rows",
    )
    if isinstance(scale, str):
        return _standardised(_whole(rows, None, path))
    units = np.ravel(1.0 if scale is None else scale)
    require_param(
        len(units) in (1, dim), f"{{scale}} must be one number or one for each of the {dim} columns, got {len(units)}"
    )
    require_param(bool((units > 0).all() and np.isfinite(units).all()), "{scale} must be positive and finite")
    units = np.broadcast_to(units, (dim,))
    blocks = [block.values for block in rows.blocks(block_size(rows))]
    require(bool(blocks), f"{path} has no rows")
    if rows.sparse:
        table = sp.csr_array(sp.vstack(blocks) @ sp.diags_array(1 / units))
    else:
        table = np.concatenate([np.asarray(block, dtype=np.float64) / units for block in blocks])
    entries = table.data if rows.sparse else table
    require(
        bool(np.isfinite(entries).all()),
        f"{path} has missing or infinite entries: fill them in or leave out those rows",
    )
    return table


def _standardised(table: Any) -> Any:
    """A public table in the units that a fit would find: the deviations of its columns. Flat columns keep theirs."""
    import numpy as np
    import scipy.sparse as sp

    mean = np.asarray(table.mean(axis=0)).ravel()
    if not sp.issparse(table):
        spread = table.std(axis=0)
        return table / np.where(spread > 0, spread, 1.0)
    # Without centring, which would make a sparse table dense.
    squares = np.asarray(table.multiply(table).mean(axis=0)).ravel()
    spread = np.sqrt(np.maximum(squares - np.square(mean), 0.0))
    return sp.csr_array(table @ sp.diags_array(1 / np.where(spread > 0, spread, 1.0)))


def _in_file(path: Path, error: ValueError) -> ValueError:
    return error.within(str(path)) if isinstance(error, ParameterError) else ValueError(f"{path}: {error}")
