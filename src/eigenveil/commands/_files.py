"""Input and output files of commands. Inputs are read by `eigenveil.data.tables`.

Outputs are checked before any budget is spent: a result that cannot be written wastes the budget, and overwriting a file by
accident is worse.
"""

import getpass
import importlib.util
import json
import os
import shlex
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, final

import typer

from eigenveil.commands._ending import at_terminal, wrote
from eigenveil.commands._options import flag, option
from eigenveil.data.formats import PIPES, SHARED, FileParams, Format, TableParams, format_of, open_named
from eigenveil.errors import ParameterError, join_names, require, require_param, verbatim
from eigenveil.params.declare import as_options, declared
from eigenveil.show.console import Line, busy, output

if TYPE_CHECKING:
    from eigenveil.data.columns import ColumnChoice
    from eigenveil.data.formats import NamedTable
    from eigenveil.data.tables import Table
    from eigenveil.model import Model
    from eigenveil.network.certificates import Passphrase
    from eigenveil.show.marks import Chart
    from eigenveil.show.values import Report

__all__ = [
    "ENDINGS",
    "PICTURES",
    "NewPassphrase",
    "PassphraseFile",
    "Reading",
    "is_stdin",
    "new_passphrase",
    "on_cluster",
    "passphrase_from",
    "report_of",
    "require_file",
    "require_output",
    "require_path",
    "require_picture",
    "require_report",
    "require_table",
    "require_writable",
    "standard_input",
    "write",
    "write_picture",
    "write_public",
    "written_model",
]


def require_file(path: Path) -> None:
    """Refuse a path that is not a file, with the name that was probably meant."""
    require(not path.is_dir(), f"{path} is a folder. Give a file in it")
    require_path(path)


def require_path(path: Path) -> None:
    """Refuse a path that does not exist, with the name that was probably meant."""
    if path.exists() or (any(sign in path.name for sign in "*?[") and list(path.parent.glob(path.name))):
        return
    # A folder that cannot be listed is not worth an error of its own: the path is wrong either way.
    names = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    close = get_close_matches(path.name, names, n=1)
    raise ValueError(f"{path} does not exist. " + (f"Did you mean {path.with_name(close[0])}?" if close else "Check the path"))


def require_output(path: Path, *, endings: Sequence[str], force: bool, inputs: Sequence[Path], option: str = "--output") -> None:
    """Refuse an output that could not be written, or must not be overwritten."""
    typed = f"{option} " if option.startswith("--") else ""
    require(
        # By its ending, because a model named .csv would be opened by the wrong program later.
        path.suffix.lower() in endings,
        f"{option} must end in {' or '.join(endings)}, got {path}. Try {typed}{path.with_suffix(endings[0])}",
    )
    require_writable(path, option=option)
    if path.exists():
        # Checked before --force: overwriting an input with its own result is never meant.
        same = any(source.exists() and source.samefile(path) for source in inputs)
        require(not same, f"{option} {path} is also an input of this command. Give it another name")
        other = f" with {option}" if typed else ""
        require(force, f"{option} {path} already exists. Overwrite it with --force, or choose another name{other}")


def require_writable(path: Path, *, option: str) -> None:
    """Refuse a path at which no file could be written."""
    require(path.parent.is_dir(), f"{option} {path}: the folder {path.parent} does not exist. Create it first")
    require(not path.is_dir(), f"{option} {path} is a folder. Name a file in it")
    require(
        os.access(path.parent, os.W_OK), f"{option} {path}: you may not write to the folder {path.parent}. Choose another one"
    )


def is_stdin(path: Path) -> bool:
    """Whether a table comes through standard input, written as a dash."""
    return str(path) == "-"


def standard_input() -> Any:
    """The bytes of standard input."""
    return sys.stdin.buffer


def require_table(path: Path, params: TableParams) -> None:
    """Refuse a table that does not exist or has an unknown format, at once, before anything heavy is imported."""
    if is_stdin(path):
        require_param(params.kind is not None, f"{{kind}} is missing. A pipe does not say what it carries: {' or '.join(PIPES)}")
        return
    require_path(path)
    format_of(path, params)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a command reads its table: the options of `TableParams`, whose rows they are, and what is passed through."""

    params: TableParams
    person: str | None = None
    passthrough: tuple[str, ...] = ()
    people: bool = True  # Whether the command has --person.
    dask: bool = False  # Whether rows stay on the cluster that this process is connected to.
    processes: int | None = None  # How many read the table; None for this one.
    gaps: bool = False  # Whether the command was told that values may be missing.

    @classmethod
    def of(cls, params: TableParams, settings: Mapping[str, Any], passthrough: Sequence[str] | None, **where: Any) -> "Reading":
        """As a fit with these `settings` reads its table."""
        gaps = settings["missing"] != "refuse"
        return cls(params=params, person=settings["person"], passthrough=tuple(passthrough or ()), gaps=gaps, **where)

    @property
    def options(self) -> list[str]:
        """The options with which another command reads the same table."""
        return [*as_options(self.params), *(word for name in self.passthrough for word in ("--passthrough", name))]

    @property
    def facts(self) -> dict[str, Any]:
        """What a model records, so that `transform` reads other tables the same way."""
        # Plain lists, because settings become JSON in the file of the model.
        record = {
            "one_based": self.params.one_based,
            "one_hot": self._levels,
            "passthrough": list(self.passthrough),
            # What stands for a missing value would otherwise be scored as a number.
            "na_values": list(self.params.na_values or ()),
        }
        return {name: value for name, value in record.items() if value}

    @property
    def _levels(self) -> dict[str, list[str]]:
        return {name: list(levels) for name, levels in (self.params.one_hot or {}).items()}

    def recorded_in(self, model: "Model", *, extra: Sequence[str] = ()) -> "Model":
        """The model with what was chosen while the table was read, so that `load` and `transform` read other tables so, too.

        Names of columns that were `extra` along take the place of the patterns for them.
        """
        from eigenveil.estimators.fitted import with_parameters

        settings = {**model.settings, **self.facts, **({"passthrough": list(extra)} if extra else {})}
        left_out = [*(self.params.drop or ()), *extra]
        columns = None if self.params.columns is None else list(self.params.columns)
        record = with_parameters(model.estimator, columns=columns, drop=left_out or None, one_hot=self._levels or None)
        return replace(model, settings=settings, estimator=record)

    @property
    def files(self) -> dict[str, Any]:
        """The options about the file."""
        return {name: getattr(self.params, name) for name in declared(FileParams)}

    def source(self, path: Path) -> str | None:
        """Where the table is, for a ledger; None for a pipe."""
        from eigenveil.data.known import source_of

        return None if is_stdin(path) else source_of(path, self.params.sheet)

    def require(self, path: Path) -> None:
        """Refuse a table that does not exist or has an unknown ending, at once, before anything heavy is imported."""
        if self.dask or self.processes is not None:
            option = "--dask" if self.dask else "--processes"
            require(not (self.dask and self.processes is not None), "give --dask or --processes, not both")
            require(not is_stdin(path), f"{option} needs files: a pipe can be read only here")
            require(
                not self.passthrough,
                f"{option} leaves rows where they are, so --passthrough has no columns to copy. Leave it out",
            )
        require_table(path, self.params)

    def require_passes(self, path: Path, settings: Mapping[str, Any]) -> None:
        """Refuse a pipe, which can be read once, for a command that passes over the rows more than once."""
        if not is_stdin(path):
            return
        from eigenveil.methods import METHODS

        bound, leaf = settings.get("row_bound", 1.0), METHODS.get(str(settings.get("method")))
        # What a fit must find privately takes a pass of its own before the fit itself.
        has_bound = settings["epsilon"] is None or isinstance(bound, float) or settings.get("column_bounds") is not None
        needed = {
            "{row_bound} with a number you know": not has_bound,
            "{center=None}": settings.get("center") == "private",
            "no {scale=private}": isinstance(settings.get("scale"), str),
            "{method} covariance": leaf is not None and leaf.fixed_rounds is None,
        }
        lacking = [remedy for remedy, lacks in needed.items() if lacks]
        if lacking:
            raise ParameterError(
                "a pipe can be read only once, and this passes over the rows several times: to find a bound, the mean or the "
                f"units, or for each round. Give {' and '.join(lacking)}. Or write the rows to a file, or use `eigenveil "
                "stream -`, which reads them once"
            )

    def format(self, path: Path) -> Format:
        """The format of the table."""
        return format_of(path, self.params, piped=is_stdin(path))

    def counted(self, path: Path) -> bool:
        """Whether the number of columns was read from the rows themselves."""
        # A number that comes from the rows is not public, and the guarantee must say so.
        return not self.format(path).states_width and self.params.features is None

    def table(self, path: Path) -> "Table":
        """The table in `path`. Every error names the file and shows no value."""
        # A csv is read whole, which can take a minute.
        with busy("reading the table"):
            from eigenveil.data.tables import Table, read_named, read_table

            params, format_ = self.params, self.format(path)
            chosen: dict[str, Any] = {
                "person": self.person,
                "columns": params.columns,
                "drop": params.drop or (),
                "one_hot": params.one_hot,
                "gaps": self.gaps,
            }
            if not format_.is_shared:
                self._require_here(path)
            if not format_.has_names:
                # Without names there is no layout to ask about.
                if self.processes is None:
                    self._require_here(path)
                    return read_table(path, passthrough=self.passthrough, **chosen, **self.files)
                from eigenveil.data.engines.pool import rows_in_processes

                return Table(rows=rows_in_processes(path, processes=self.processes, **chosen, **self.files).inner)
            named_table = open_named(standard_input() if is_stdin(path) else path, params)
        choice = self.settled(named_table)
        with busy("reading the table"):
            if not self.dask and self.processes is None:
                return read_named(named_table, choice, gaps=self.gaps)
            shared: Any = named_table
            if self.dask:
                with _needs_dask():
                    from eigenveil.data.engines.dask_rows import table_rows
                rows = table_rows(shared, choice, gaps=self.gaps)
            else:
                from eigenveil.data.engines.pool import table_in_processes

                rows = table_in_processes(shared, choice, processes=self.processes or 1, gaps=self.gaps)
            return Table(rows=rows.inner, columns=rows.names, available=len(named_table.names))

    def _require_here(self, source: Any) -> None:
        """Refuse a file that only one process can read, where others were asked for."""
        word = "a cluster" if self.dask else "several processes"
        alone = not self.dask and self.processes is None
        require(alone, f"{source} cannot be shared by {word}. Convert it to {SHARED} first")

    def settled(self, table: "NamedTable") -> "ColumnChoice":
        """The choice of columns, after a person at the terminal was asked about those that look like ids."""
        from eigenveil.data.columns import ColumnChoice

        choice = replace(ColumnChoice.of(self.params, person=self.person), passthrough=self.passthrough)
        if not table.named:
            return choice
        ids = choice.laid_out(table.source, table.names).ids
        if not ids:
            return choice
        if not _can_ask(table):
            raise _refusal(table, choice, ids, people=self.people, gaps=self.gaps)
        return choice.without(_to_leave_out(table.source, ids))


@contextmanager
def _needs_dask() -> Iterator[None]:
    """Say how to install Dask where it is missing."""
    try:
        yield
    except ImportError:
        raise ValueError("--dask needs Dask. Install it with: pip install 'eigenveil[dask]'") from None


@contextmanager
def on_cluster(address: str | None) -> Iterator[None]:
    """Connected to the Dask cluster at `address` for as long as the block runs; to none if it is None."""
    if address is None:
        yield
        return
    with busy("connecting to the cluster"), _needs_dask():
        from eigenveil.data.engines.dask_rows import connected
    with connected(address):
        yield


def _can_ask(table: "NamedTable") -> bool:
    # A pipe of rows takes the place of the keyboard.
    return not table.once and at_terminal()


def _refusal(table: "NamedTable", choice: "ColumnChoice", ids: tuple[str, ...], *, people: bool, gaps: bool) -> ParameterError:
    """The error for columns that look like ids. It also names those with other faults: one message, one correction."""
    from eigenveil.data.columns import to_drop

    bad, missing, more, comma = ((), (), "", "") if table.once else _faults(table, choice.without(ids), gaps=gaps)
    says = _like_ids(table.source, ids)
    says += f", and these are not numbers: {join_names(bad)}" * bool(bad)
    says += f". Missing or infinite values are in: {join_names(missing)}" * bool(missing)
    keep = verbatim(shlex.join(["--columns", ",".join(("*", *ids[:5]))]))
    whose = ", or say whose rows these are with {person=}" * people
    text = ". Text becomes 0 and 1 with {one_hot}, and a date must become a number first" * bool(bad)
    rule = ". Handle missing values with {missing=counts}, or leave those columns out too" * bool(missing)
    drop = to_drop((*ids, *bad), table.names)
    leave = "{drop=}" if drop else "{drop} and patterns"
    after = f". Then: {more}" * bool(more)
    return ParameterError(
        f"{verbatim(says)}. Leave out with {leave}{whose}{text}{rule}. To analyse an id all the same, name it: {keep}{comma}"
        f"{after}",
        drop=drop,
        person=ids[0],
    )


def _like_ids(source: Any, ids: tuple[str, ...]) -> str:
    return f"{source}: {join_names(map(repr, ids))} {'looks like an id' if len(ids) == 1 else 'look like ids'} by name"


def _faults(table: "NamedTable", choice: "ColumnChoice", *, gaps: bool) -> tuple[tuple[str, ...], tuple[str, ...], str, str]:
    """The other columns that cannot be analysed: those that are not numbers, and those with missing or infinite values.

    If the file is at fault and not its columns, the error about that, as a template; and what to say of marks in numbers.
    """
    from eigenveil.data.number_texts import NumberFormat
    from eigenveil.errors import ColumnsError

    try:
        layout, bad = choice.laid_out(table.source, table.names), tuple[str, ...]()
        try:
            choice.laid_out(table.source, table.names, table.kinds)
        except ColumnsError as error:
            bad = error.columns
        numbers = [name for name in layout.plain if name not in bad]
        faults, comma = table.faults(numbers), ""
        if faults.others and table.kinds is None:
            # Not the columns may be wrong, but the file, such as by a line of units. The first rows tell.
            try:
                next(iter(table.batches(layout.plain, (), 100)), None)
            except ColumnsError as error:
                # Numbers may have a decimal comma, and then it is not the columns that are wrong.
                header = getattr(table, "header", None)
                marks = "" if header is None else NumberFormat.of(header.how).advice
                comma = marks if marks.removeprefix(". ") in error.advice else ""
    except ValueError as error:
        return (), (), error.message if isinstance(error, ParameterError) else verbatim(str(error)), ""
    return (*bad, *faults.others), (*faults.infinite, *(() if gaps else faults.missing)), "", comma


def _to_leave_out(source: Any, ids: tuple[str, ...]) -> list[str]:
    """Which of the columns that look like ids a person at the terminal leaves out."""
    warning = f"{_like_ids(source, ids)}. Ids are no measurements, and would dominate the components."
    output(stderr=True).print(warning, soft_wrap=True)
    left_out = []
    for name in ids:
        try:
            answer: str = typer.prompt(f"Leave out {name!r}? [Y/n]", default="y", show_default=False, err=True)
        except typer.Abort:
            raise KeyboardInterrupt from None
        typed = answer.strip().lower()
        # Anything else is no answer. Guessing what was meant could analyse an id.
        require(typed in ("y", "yes", "n", "no"), f"type y or n, got {typed!r}. Nothing was spent")
        left_out += [name] * typed.startswith("y")
    return left_out


# For services that are started without a person. Other users cannot read a process's environment.
_VARIABLE: Final = "EIGENVEIL_PASSPHRASE"

# A thief of the file can try many a second, so the passphrase itself must be long. OpenSSL takes up to 1023 bytes.
_SHORTEST: Final = 12

_LONGEST: Final = 1000

PassphraseFile: TypeAlias = Annotated[
    Path | None,
    option(
        "--passphrase-file",
        "FILE",
        "A file with the passphrase of the keys, that only you may read.",
        none_means=f"the variable {_VARIABLE}, or asked at the terminal",
    ),
]

NewPassphrase: TypeAlias = Annotated[
    bool, flag("--passphrase", "Protect the private keys with a passphrase, which is asked for twice.")
]


def passphrase_from(file: Path | None) -> "Passphrase":
    """How a command gets the passphrase of a key file that has one."""

    def passphrase_of(key: Path) -> bytes:
        passphrase = _stated_passphrase(file)
        if passphrase is None:
            require(at_terminal(), f"{key} has a passphrase. Give it with --passphrase-file, or in the variable {_VARIABLE}")
            passphrase = getpass.getpass(f"Passphrase of {key}: ")
        return _encoded(passphrase)

    return passphrase_of


def new_passphrase(wanted: bool, file: Path | None) -> bytes | None:
    """The passphrase for new keys, asked twice unless it is given; None if they get none."""
    if not wanted and file is None:
        return None
    passphrase = _stated_passphrase(file)
    if passphrase is None:
        require(at_terminal(), f"--passphrase needs a terminal, --passphrase-file, or the variable {_VARIABLE}")
        passphrase = getpass.getpass("New passphrase: ")
        require(getpass.getpass("The same again: ") == passphrase, "the two passphrases differ. Nothing was made")
    require(
        len(passphrase) >= _SHORTEST,
        f"a passphrase must have at least {_SHORTEST} characters. Five words that you draw at random are a good one",
    )
    return _encoded(passphrase)


def _stated_passphrase(file: Path | None) -> str | None:
    """The passphrase in the file or in the environment; None if a person must be asked."""
    from eigenveil.data.archive import read_owned

    if file is None:
        return os.environ.get(_VARIABLE)
    raw = read_owned(file, max_bytes=_LONGEST + 2, private=True)
    try:
        # An editor ends the line, and that is not a part of it.
        return raw.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError(f"{file} must be text in UTF-8") from None


def _encoded(text: str) -> bytes:
    # Keyboards differ in how they make accents.
    raw = unicodedata.normalize("NFC", text).encode()
    require(0 < len(raw) <= _LONGEST, f"a passphrase must have 1 to {_LONGEST} bytes, got {len(raw)}")
    return raw


# Written here too, so that a wrong name is refused before anything heavy is imported. A test compares them.
ENDINGS: Final = (".html", ".json", ".pdf")

PICTURES: Final = (".svg", ".png")


def require_report(path: Path | None, *, force: bool, inputs: Sequence[Path]) -> None:
    """Refuse a report that could not be written."""
    if path is None:
        return
    require_output(path, endings=ENDINGS, force=force, inputs=inputs, option="--report")
    # Asked before the fit: a printer that is missing at the end would be noticed after the budget was spent.
    if path.suffix.lower() == ".pdf":
        from eigenveil.show.pages import require_printer

        require_printer(path)


def write(path: Path | None, made: "Callable[[], Report]", *, say: Callable[[str], None] | None = None) -> None:
    """Write the report that `made` makes, and `say` where it is. Without a path nothing is made."""
    if path is None:
        return
    with busy("writing the report"):
        from eigenveil.show.pages import write_report

        write_report(made(), path)
    wrote(path)
    message = f"report written to {path}"
    if say is None:
        output().print(message, soft_wrap=True)
    else:
        say(message)


def report_of(model: "Model", *, data: Path, dataset: str | None = None, **more: Any) -> "Report":
    """The report of a `model`, with what else `model_report` takes.

    Without a name for the `dataset`, the report has the name of the file `data`. A person chose that name, and the model does not
    have it. A pipe has none.
    """
    from eigenveil.show.report import model_report

    return model_report(model, dataset=dataset or (data.name if data.exists() else "") or None, **more)


def written_model(path: Path) -> Iterator[Line]:
    """Where a model is, and how to look at it."""
    yield Line(f"\nmodel written to {path}")
    yield Line(f"show it again with: eigenveil inspect {path}", "dim")


def require_picture(path: Path, *, force: bool, inputs: Sequence[Path]) -> None:
    """Refuse a picture that could not be drawn."""
    require_output(path, endings=PICTURES, force=force, inputs=inputs, option="--plot")
    if path.suffix.lower() == ".png":
        # Looked up and not imported: matplotlib is slow to load, and the command may still be refused.
        is_installed = importlib.util.find_spec("matplotlib") is not None
        require(is_installed, f"{path}: a PNG needs matplotlib: pip install 'eigenveil[plot]'. Or name an .svg file")


def write_picture(chart: "Chart", path: Path) -> None:
    """Draw a chart of public numbers to an .svg or .png file."""
    from eigenveil.show.marks import png

    write_public(path, png(chart) if path.suffix.lower() == ".png" else chart.document())


def write_public(path: Path, content: str | bytes | Mapping[str, Any]) -> None:
    """Write a text, bytes, or plain values as JSON, completely or not at all, for all users of this machine to read."""
    from eigenveil.data.archive import whole_file

    if isinstance(content, Mapping):
        content = json.dumps(content, indent=2, allow_nan=False) + "\n"
    with whole_file(path) as temporary:
        temporary.write_bytes(content if isinstance(content, bytes) else content.encode())
        # `whole_file` makes files for their owner alone.
        temporary.chmod(0o644)
    wrote(path)
