"""`eigenveil plan`: shows what a budget will buy before it is spent. It uses public facts and never reads a private
file."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, final

from eigenveil.commands import _options as common
from eigenveil.commands._command import Answer, Command
from eigenveil.commands._files import Reading, require_picture, require_report, write_picture
from eigenveil.commands._options import OptionGroup, flag, option
from eigenveil.data.formats import TableParams
from eigenveil.errors import ParameterError, require, require_param
from eigenveil.estimators.bounds.saved import BoundsFile
from eigenveil.params.declarations.plan import SHOWN, SPECTRUM, PlanParams
from eigenveil.params.declare import as_options, validate_params
from eigenveil.show.console import Line, is_seen, output

if TYPE_CHECKING:
    from eigenveil.linalg import Array
    from eigenveil.plan.clipping import Norms
    from eigenveil.plan.facts import Facts
    from eigenveil.plan.rehearsal import Forecast
    from eigenveil.plan.spectrum import Spectrum
    from eigenveil.show.console import View
    from eigenveil.show.plan import PlanAnswer

__all__ = ["COMMAND"]

# Half a decade apart: from where nearly nothing is found to where nearly nothing is hidden.
DEFAULT_EPSILONS: Final = "0.1,0.3,1,3,10"
# The share of rows that a bound found privately is taken to clip, where nothing says it.
_USUALLY_CLIPPED: Final = 0.25
_ENDINGS: Final = (".json", ".csv", ".txt")
# A public table is read into memory whole. Beyond this many numbers a sample says as much.
_LARGEST_TABLE: Final = 1 << 27


@dataclass(frozen=True, kw_only=True)
class _SpectrumOptions(OptionGroup):
    spectrum: Annotated[
        Path | None,
        option(
            "FILE",
            "A spectrum released by `eigenveil spectrum`, .json. Or public variances in the units of --row-bound: "
            "numbers in a .csv or .txt file or a .json list.",
            panel=SPECTRUM,
        ),
    ] = None
    # The one option that reads rows without a guarantee, so its help says PUBLIC in capitals.
    public_data: Annotated[
        Path | None,
        option(
            "TABLE",
            "A PUBLIC table like the private one: last decade's, another country's. It is read without noise "
            "and no one in it is protected, so never pass the private table.",
            panel=SPECTRUM,
        ),
    ] = None
    from_model: Annotated[
        Path | None,
        option("MODEL", "An earlier .safetensors model of similar rows, whose variances are already public.", panel=SPECTRUM),
    ] = None
    bounds: Annotated[
        Path | None,
        option(
            "FILE",
            "What `eigenveil bounds --output` wrote, for a fit with --bounds: its row bound, and norms, which narrow what is "
            "forecast of the loss by clipping.",
            panel=SPECTRUM,
        ),
    ] = None


def plan(
    settings: dict[str, Any],
    reading: TableParams,
    files: _SpectrumOptions,
    epsilons: Annotated[
        str,
        option(
            "NUMBERS", "Epsilons to plot, separated by commas. The one of --epsilon is always included.", shows=True, panel=SHOWN
        ),
    ] = DEFAULT_EPSILONS,
    plot: Annotated[
        Path | None,
        option("FILE", "Also draw accuracy against epsilon to this .svg file, or .png if matplotlib is installed.", panel=SHOWN),
    ] = None,
    report: common.ReportFile = None,
    # Its own wording: a plan has two files to overwrite.
    force: Annotated[bool, flag("--force", "Overwrite the files of --plot and --report if they exist.", panel=SHOWN)] = False,
    # For scripts that try many budgets. `chosen` tells them whether to proceed.
    as_json: Annotated[
        bool,
        flag(
            "--json", "Print JSON: every method, the curve, the assumptions. `chosen` is null if nothing can work.", panel=SHOWN
        ),
    ] = False,
) -> Answer:
    """What a budget will buy, before it is spent.

    It uses public facts only: how many people and columns, and what you
    know or guess of the spectrum. It never reads the private table, so a
    plan spends no budget and you can make as many as you like.

      eigenveil plan -n 20000 -d 50 -k 5 --epsilon 1 --delta 1e-6

    An easy guess is how much variance the first components explain:

      eigenveil plan -n 1e5 -d 200 -k 5 --epsilon 1 --delta 1e-7 \\
        --explained 0.6

    Five hospitals, a hub that is not trusted with a hospital's sums:

      eigenveil plan -n 1e5 -d 40 -k 3 --epsilon 1 --delta 1e-6 \\
        --sites 5 --trust masked --trust site --traffic 10MB

    A public table like the private one is better than any guess:

      eigenveil plan -n 20000 -k 5 --epsilon 1 --delta 1e-6 \\
        --public-data last-decade.csv --row-bound 12 --plot plan.svg

    Without --row-bound the fit finds one privately. With --scale private
    it finds the units of columns. The plan includes what that costs.

    Clipping costs more, the more of the variance few rows have. A plan
    cannot know that, so its intervals allow for it. What eigenveil bounds
    wrote narrows them (--bounds), and so do --public-data and --from-model.

    If nothing can work, the first line says so and the plan says what would.
    """
    params = validate_params(PlanParams, PlanParams(**settings))
    source = _KnownSpectrum(params=params, reading=reading, **vars(files))
    source.require_files()
    # A typing error here is found before the rehearsals, too.
    drawn = epsilons_from(epsilons, requested=params.epsilon)
    if plot is not None:
        # Refused before the rehearsals, which take seconds.
        require_picture(plot, force=force, inputs=source.files)
    require_report(report, force=force, inputs=[*source.files, *([] if plot is None else [plot])])
    facts = _facts(source)
    with _watching() as watch:
        answer = _answer(facts, source, drawn, watch)
    if plot is not None and answer.curve is not None:
        from eigenveil.plan.facts import method_words
        from eigenveil.show.charts import plan_chart

        about = f"{facts.rank} components of {facts.dim} columns, about {facts.people} people, {answer.curve.note}"
        title = f"What an epsilon buys: {method_words(answer.curve.method)}"
        chart = plan_chart(answer.curve.points, target=facts.budget.epsilon, title=title, note=about, of=facts.denominator)
        write_picture(chart, plot)
    from eigenveil.show.plan import plan_report, plan_values, plan_view

    def view() -> "View":
        yield from plan_view(answer)
        if plot is not None:
            note = f"plot written to {plot}" if answer.curve else "no plot was written: no method is possible"
            yield Line(f"\n{note}")

    return Answer(view=view, values=lambda: plan_values(answer), report=lambda: plan_report(answer))


def epsilons_from(text: str, *, requested: float) -> tuple[float, ...]:
    """The epsilons of the curve, sorted, each once, including the `requested` one.

    >>> epsilons_from("3,0.3", requested=1.0)
    (0.3, 1.0, 3.0)
    """
    try:
        epsilons = [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--epsilons must be numbers separated by commas, such as 0.1,1,10, got {text!r}") from None
    good = all(math.isfinite(number) and number > 0 for number in epsilons)
    require(good, f"--epsilons must be positive and finite, got {text}")
    # With the epsilon that was asked for, so that the curve goes through the answer.
    return tuple(sorted({*epsilons, requested}))


def methods_from(texts: Sequence[str], algorithms: Mapping[str, str]) -> tuple[str, ...]:
    """The names in `algorithms`, a table from name to algorithm, that match one of `texts` by name or by algorithm.

    >>> methods_from(["power", "b/sync"], {"a/power": "power", "b/power": "power", "b/sync": "sync"})
    ('a/power', 'b/power', 'b/sync')
    """
    for text in texts:
        require_param(
            text in algorithms or text in algorithms.values(),
            f"{{methods}} must be one of {', '.join(sorted({*algorithms.values()}))}, or name the setting too, such as "
            f"{next(iter(algorithms))}, got {{@text}}",
            text=text,
        )
    return tuple(method for method, how in algorithms.items() if {method, how} & {*texts})


def _facts(source: "_KnownSpectrum") -> "Facts":
    from eigenveil.core.accounting import Budget
    from eigenveil.core.unit import Neighbours
    from eigenveil.plan.facts import Facts

    params, spectrum, survivors = source.params_with_bounds, source.read_spectrum(), source.params.survivors
    if isinstance(survivors, float):
        # Imported only here: the estimators take a while to load.
        from eigenveil.estimators.federated.spec import share_of

        survivors = share_of("survivors", survivors, params.sites)
    shared = ("rank", "people", "center", "search", "sites", "colluders", "blocks", "rounds", "traffic", "row_bound")
    settings: dict[str, Any] = {name: getattr(params, name) for name in shared}
    if params.memory_limit is not None:
        settings["memory_limit"] = params.memory_limit
    return Facts(
        dim=spectrum.dim,
        budget=Budget(params.epsilon, params.delta),
        spectrum=spectrum,
        neighbours=Neighbours(params.neighbours),
        survivors=survivors,
        trust=tuple(dict.fromkeys(params.trust or ())),
        scale="private" if isinstance(params.scale, str) else None,
        norms=source.norms(),
        **settings,
    )


def _answer(facts: "Facts", source: "_KnownSpectrum", epsilons: Sequence[float], watch: Callable[[str], None]) -> "PlanAnswer":
    from eigenveil.plan.facts import methods_for, parts_of
    from eigenveil.plan.recommendation import advise
    from eigenveil.plan.rehearsal import curve
    from eigenveil.show.plan import PlanAnswer

    # Which names there are depends on the setting, so --method can be checked only now.
    names = {method: parts_of(method)[1] for method in methods_for(facts)}
    methods = source.params.methods
    recommendation = advise(facts, methods=methods_from(methods, names) if methods else None, watch=watch)
    points: list[tuple[float, Forecast]] = []
    if recommendation.best is not None:
        for epsilon in epsilons:
            watch(f"{recommendation.best.method} at epsilon = {epsilon:g}")
            # At the requested epsilon the curve shows the forecast that was compared, not a second one.
            same = epsilon == facts.budget.epsilon
            points += [(epsilon, recommendation.best)] if same else curve(facts, recommendation.best.method, [epsilon])
    return PlanAnswer(
        facts=facts,
        recommendation=recommendation,
        points=tuple(points),
        guessed=source.guessed,
        explained=source.params.explained is not None,
        fill_known=source.bound_usage_is_known,
        from_file=source.spectrum is not None,
    )


@contextmanager
def _watching() -> "Iterator[Callable[[str], None]]":
    """Shows on stderr what is being rehearsed, if that is a terminal."""
    console = output(stderr=True)
    if not is_seen(console):
        yield lambda _: None
        return
    with console.status("rehearsing") as status:
        yield lambda text: status.update(f"rehearsing {text}")


@final
@dataclass(frozen=True, kw_only=True)
class _KnownSpectrum(_SpectrumOptions):
    """What the caller said about the spectrum: a guess in `params`, or at most one file. A public table is read as `reading`
    says."""

    params: PlanParams
    reading: TableParams

    def __post_init__(self) -> None:
        params, public = self.params, self.public_data is not None
        options = {
            "--explained": params.explained,
            "--decay": params.decay,
            "--spectrum": self.spectrum,
            "--public-data": self.public_data,
            "--from-model": self.from_model,
        }
        explicit = [name for name, value in options.items() if value is not None]
        require(len(explicit) <= 1, f"{' and '.join(explicit)} each give the spectrum: choose one of them")
        require(
            self.bounds is None or (params.row_bound is None and not isinstance(params.scale, str)),
            "--bounds has the row bound: leave out --row-bound and --scale private",
        )
        # A guess is in units of the bound already, so the two options do not compete there.
        require(
            self.guessed or params.bound_usage is None or params.row_bound is None,
            "--bound-usage and --row-bound both set row norms relative to the bound: choose one of them",
        )
        reads = as_options(self.reading)
        require(not reads or public, f"{reads[0] if reads else ''} is for --public-data")
        needs_table = params.scale is not None and not isinstance(params.scale, str)
        require(not needs_table or public, "--scale is for --public-data, unless it is private")

    @property
    def guessed(self) -> bool:
        """Whether nothing better than a guess was given."""
        return self.spectrum is None and self.public_data is None and self.from_model is None

    @property
    def files(self) -> list[Path]:
        """The files that are read."""
        paths = (self.spectrum, self.public_data, self.from_model, self.bounds)
        return [path for path in paths if path is not None]

    @property
    def bound_usage_is_known(self) -> bool:
        """Whether row norms relative to the bound are known. A released spectrum contains them."""
        bound_usage, bound = self.params.bound_usage, self.params.row_bound
        released = self.spectrum is not None and self.spectrum.suffix.lower() == ".json" and bound is None
        # In the units of its columns a public table is clipped as a fit would.
        is_clipped = self.public_data is not None and isinstance(self.params.scale, str)
        return released or is_clipped or bound_usage is not None or (bound is not None and not self.guessed)

    @cached_property
    def bounds_file(self) -> BoundsFile | None:
        """What `eigenveil bounds` wrote, if it was named."""
        return None if self.bounds is None else BoundsFile.read(self.bounds)

    @cached_property
    def params_with_bounds(self) -> PlanParams:
        """The parameters, with the row bound of a file of bounds, and how rows use it."""
        file = self.bounds_file
        if file is None or self.bounds is None:
            return self.params
        require(not file.of_columns, f"--bounds {self.bounds} has a range for each column, and a plan needs a bound on rows")
        self._require_dim(file.dim, self.bounds)
        bound, bound_usage = float(file.settings["row_bound"]), self.params.bound_usage
        # A file with the spectrum says itself how rows use the bound.
        if self.guessed and bound_usage is None:
            bound_usage = file.bound_usages.get(bound)
        return replace(self.params, dim=file.dim, row_bound=bound, bound_usage=bound_usage)

    def norms(self) -> "Norms | None":
        """What is known of the norms of rows, in units of the row bound, or where the fit finds one, of about that."""
        import numpy as np

        from eigenveil.model import Model
        from eigenveil.plan.clipping import Norms

        file, scale = self.bounds_file, self.params.scale
        if file is not None:
            row_norms = Norms.read(file.norms, file.outliers)
            return None if row_norms is None or row_norms.power is None else row_norms
        if self.from_model is not None:
            settings = Model.load(self.from_model).settings
            row_norms = Norms.read(settings.get("norms"), settings.get("outliers"))
        elif self.public_data is not None and not isinstance(scale, str):
            row_norms = Norms.of_rows(self._public_rows(self.public_data))
        else:
            return None
        if row_norms is None or row_norms.power is None or not row_norms.norms[0] > 0:
            return None
        # A search usually takes a bound that a quarter of the rows exceed, or more of them.
        usual = float(np.interp(-_USUALLY_CLIPPED, [-share for share in row_norms.beyond], row_norms.norms))
        return row_norms if self.params.row_bound is not None else row_norms.over(usual)

    def read_spectrum(self) -> "Spectrum":
        """The spectrum, read or guessed."""
        from eigenveil.plan.spectrum import Spectrum

        readers = ((self.spectrum, self._from_file), (self.public_data, self._from_table), (self.from_model, self._from_model))
        for path, read in readers:
            if path is not None:
                spectrum = read(path)
                self._require_dim(spectrum.dim, path)
                return spectrum
        params = self.params_with_bounds
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

    def _require_dim(self, n_columns: int, path: Path) -> None:
        dim = self.params.dim
        require(dim is None or dim == n_columns, f"--features is {dim}, but {path} has {n_columns} columns")

    def require_files(self) -> None:
        """Refuse missing or unreadable files at once, before anything heavy is imported."""
        if self.spectrum is not None:
            good = self.spectrum.suffix.lower() in _ENDINGS
            require(good, f"--spectrum must end in {', '.join(_ENDINGS)}, got {self.spectrum}")
        if self.public_data is not None:
            Reading(params=self.reading, people=False).require(self.public_data)
        for path in self.files:
            require(path.is_file() or path == self.public_data, f"{path} does not exist or is not a file")

    def _from_file(self, path: Path) -> "Spectrum":
        from eigenveil.plan.spectrum import PUBLIC_SPREAD, Spectrum

        try:
            # Spreadsheets write a byte-order mark, which would hide the first number.
            text = path.read_text(encoding="utf-8-sig")
            plain = json.loads(text) if path.suffix.lower() == ".json" else _numbers(text)
            if not isinstance(plain, list):
                require(
                    self.params.bound_usage is None and self.params.row_bound is None,
                    "it is in units of the bound it was released with: leave out --bound-usage and --row-bound",
                )
                return Spectrum.from_json(plain)
            numbers = all(isinstance(number, int | float) and not isinstance(number, bool) for number in plain)
            require(bool(plain) and numbers, "a list must contain numbers alone, one for each variance")
            return Spectrum.of_variances(
                plain,
                dim=self.params.dim,
                row_bound=self.params_with_bounds.row_bound,
                bound_usage=self.params.bound_usage,
                source=f"from {path.name}",
                spread=PUBLIC_SPREAD,
            )
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not UTF-8 text") from None
        except (json.JSONDecodeError, RecursionError):
            raise ValueError(f"{path} is not JSON") from None
        except ValueError as error:
            raise _in_file(path, error) from error

    def _from_table(self, path: Path) -> "Spectrum":
        from eigenveil.plan.spectrum import Spectrum

        rows, params = self._public_rows(path), self.params_with_bounds
        units = isinstance(params.scale, str) and params.row_bound is None and params.bound_usage is None
        try:
            # What a fit that finds units clips at. None where --bound-usage says enough.
            bound = math.sqrt(rows.shape[1]) if units else params.row_bound
            return Spectrum.of_rows(rows, row_bound=bound, bound_usage=self.params.bound_usage)
        except ValueError as error:
            raise _in_file(path, error) from error

    def _from_model(self, path: Path) -> "Spectrum":
        from eigenveil.model import Model
        from eigenveil.show.report import spectrum_of

        return spectrum_of(
            Model.load(path),
            source=path.name,
            dim=self.params.dim,
            row_bound=self.params_with_bounds.row_bound,
            bound_usage=self.params.bound_usage,
        )

    def _public_rows(self, path: Path) -> Any:
        """The public table, with columns divided by --scale, or by their deviations, which a fit with private units finds."""
        import numpy as np
        import scipy.sparse as sp

        rows, scale = Reading(params=self.reading, people=False).table(path).rows, self.params.scale
        if not isinstance(scale, str):
            return _whole(rows, scale, path)
        table: Any = _whole(rows, None, path)
        if sp.issparse(table):
            # Without centring, which would make a sparse table dense.
            mean = np.asarray(table.mean(axis=0)).ravel()
            squares = np.asarray(table.multiply(table).mean(axis=0)).ravel()
            spread = np.sqrt(np.maximum(squares - np.square(mean), 0.0))
            return sp.csr_array(table @ sp.diags_array(1 / np.where(spread > 0, spread, 1.0)))
        spread = table.std(axis=0)
        # Flat columns keep their units.
        return table / np.where(spread > 0, spread, 1.0)


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
    require(rows.sparse or count * dim <= _LARGEST_TABLE, f"{path} is larger than a plan needs: pass a sample of its rows")
    units = np.ravel(1.0 if scale is None else scale)
    require_param(len(units) in (1, dim), f"{{scale}} must be one number or one for each of the {dim} columns, got {len(units)}")
    require_param(bool((units > 0).all() and np.isfinite(units).all()), "{scale} must be positive and finite")
    units = np.broadcast_to(units, (dim,))
    blocks = [block.values for block in rows.blocks(block_size(rows))]
    require(bool(blocks), f"{path} has no rows")
    if rows.sparse:
        table = sp.csr_array(sp.vstack(blocks) @ sp.diags_array(1 / units))
    else:
        table = np.concatenate([np.asarray(block, dtype=np.float64) / units for block in blocks])
    entries = table.data if rows.sparse else table
    require(bool(np.isfinite(entries).all()), f"{path} has missing or infinite entries: fill them in or leave out those rows")
    return table


def _in_file(path: Path, error: ValueError) -> ValueError:
    return error.within(str(path)) if isinstance(error, ParameterError) else ValueError(f"{path}: {error}")


COMMAND = Command(run=plan, params=PlanParams, panel="Start here", reads=True, leave=("features", "one_based"))
