"""`eigenveil demo`: one public table at one budget in four settings, next to exact PCA and published methods.

The digits come with scikit-learn and are public, so the demo may show how much each fit captures. With private rows that would
be a leak. Each line is printed as soon as it is known, and all of them fit on a terminal of 80 x 24. A report ends it.
"""

import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, final

from eigenveil.commands._command import Command
from eigenveil.commands._ending import wrote
from eigenveil.commands._files import require_output
from eigenveil.commands._options import Force, Seed, option
from eigenveil.errors import ModelFileError
from eigenveil.show.console import busy, output

if TYPE_CHECKING:
    from rich.console import Console

    from eigenveil.linalg import Array
    from eigenveil.model import Model
    from eigenveil.show.values import Report

__all__ = ["COMMAND"]

_EPSILON: Final = 1.0
_DELTA: Final = 1e-5
_RANK: Final = 5
_SITES: Final = 5
# A later demo recognises its own report by this title, and replaces it without --force.
_TITLE: Final = "Handwritten digits: five private components in four settings"
_HEADER: Final = ("setting", "who must be trusted with rows", "captured", "sent")
_EXACT: Final = ("exact PCA, not private", "all who see the result", "100.0%", "nothing")
# One relation for all lines: streams have no add/remove, and published methods are compared under replace-one elsewhere too.
_NEIGHBOURS: Final = "replace-one"
_GIVEN: Final = (
    "Captured: relative to exact PCA. All other lines have the same guarantee (replace-one). Published methods get our row bound "
    "and the exact mean for free; ours pay for both."
)


_SHOWN: Final = (
    "Each image stands for one person. The images are public, so this may be shown. With private rows it would be a leak."
)
# Of the lines after exact PCA, these many are settings of ours. The others are published methods.
_OURS: Final = 4


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DemoFit:
    """One line of the demo: a setting, who is trusted with what, the directions found, (d, k), and the bytes on all links."""

    setting: str
    trusted: str
    basis: "Array"
    sent: int = 0
    model: "Model | None" = None


def demo(
    model: Annotated[
        Path,
        option(
            "--output",
            "-o",
            "FILE",
            "Write the model of the whole table to this .safetensors file, and the report beside it.",
            shows=True,
        ),
    ] = Path("demo-model.safetensors"),
    force: Force = False,
    seed: Seed = None,
) -> None:
    """The whole story on a public dataset: four settings, one budget.

    Start here. It takes a few seconds and needs no data of yours.

    Example:

      eigenveil demo

    It fits 1797 images of handwritten digits, 64 pixels each: as one table,
    as a stream, at five sites under masks, and between five peers without a
    hub. Next to them are exact PCA and published methods with the same
    guarantee. The images are public, so what each one captures may be shown. A report
    is written at the end, to open in a browser.
    """
    report = model.with_suffix(".html")
    require_output(model, endings=(".safetensors",), force=force or _is_own(model), inputs=[])
    require_output(report, endings=(".html",), force=force or _is_own(report), inputs=[model], option="the report")
    console = output()
    # Printed before the heavy imports, so that the screen is not empty for seconds.
    console.print("Five principal components of 1797 handwritten digits, 64 pixels each", style="bold")
    with busy("loading the images"):
        from sklearn.datasets import load_digits

        digits: Any = load_digits()
        rows, names = digits.data, tuple(map(str, digits.feature_names))
    if seed is not None:
        console.print("NOT PRIVATE: --seed fixes the noise. That is fine for public images only.", style="bold red")
    lines = _lines(console, rows, seed)
    chosen = lines[0].model
    assert chosen is not None
    # With this mark a later demo overwrites the file without --force, and no other file.
    stored = replace(chosen, columns=names, settings={**chosen.settings, "demo": "handwritten digits"})
    stored.save(model)
    wrote(model)
    with busy("writing the report"):
        from eigenveil.show.pages import write_report

        write_report(_report(stored, lines, rows), report)
    wrote(report)
    console.print(stored.guarantee.title, style=f"bold {'green' if stored.guarantee.private else 'red'}")
    console.print(f"Model: {model}   Report, to open in a browser: {report}", soft_wrap=True)
    _next_steps(console, model)


def _is_own(path: Path) -> bool:
    """Whether an earlier demo wrote `path`. Whatever else it is, replacing it takes --force."""
    from eigenveil.model import Model

    if path.suffix == ".html":
        # The file may be of any encoding. It should fail to match, and not raise.
        return path.is_file() and f"<h1>{_TITLE}</h1>" in path.read_text(encoding="utf-8", errors="replace")
    try:
        return path.exists() and "demo" in Model.load(path).settings
    except ModelFileError:
        return False


def _lines(console: "Console", rows: "Array", seed: int | None) -> list[DemoFit]:
    """Every fit, with its line of the table as soon as it is done. The first one and the published ones give the answer."""
    with busy("fitting one table"):
        first, *others = _settings(rows, seed)
        table = first()
        # The answer is printed first and compares both, so these are fitted before any line is shown.
        published = list(_published(rows, table, seed))
    console.print(f"Answer: {_answer(rows, table, published)}", style="bold green")
    console.print(_line(*_HEADER), style="bold")
    console.print(_line(*_EXACT), style="dim")
    console.print(_line(*_cells(rows, table)))
    lines = [table]
    for fit in others:
        with busy("fitting the next setting"):
            lines.append(fit())
        console.print(_line(*_cells(rows, lines[-1])))
    for method in published:
        console.print(_line(*_cells(rows, method)), style="dim")
    console.print(f"{_GIVEN} {_SHOWN}", style="dim")
    return [*lines, *published]


def _answer(rows: "Array", table: DemoFit, published: "Sequence[DemoFit]") -> str:
    closest = max(published, key=lambda method: _captured(rows, method.basis))
    return (
        f"with epsilon = {_EPSILON:g}, five private components capture {_captured(rows, table.basis):.0%} of what exact PCA "
        f"captures. The closest published method, {closest.setting}, captures {_captured(rows, closest.basis):.0%}."
    )


def _settings(rows: "Array", seed: int | None) -> "Iterator[Callable[[], DemoFit]]":
    """The four settings. No bound and no mean is given."""
    import numpy as np

    from eigenveil.estimators import FederatedPCA, GossipPCA, PrivatePCA, StreamingPCA

    sites = {f"site {number}": part for number, part in enumerate(np.array_split(rows, _SITES), 1)}
    budget: dict[str, Any] = {"epsilon": _EPSILON, "delta": _DELTA, "neighbours": _NEIGHBOURS, "random_state": seed}

    def fitted(setting: str, trusted: str, pca: Any, data: Any) -> Callable[[], DemoFit]:
        # Fitted only when called, so that each line appears as soon as its fit is done.
        def fit() -> DemoFit:
            result = pca.fit(data)
            sent = int(result.model_.settings.get("bytes", 0))
            return DemoFit(setting=setting, trusted=trusted, basis=result.subspace_.basis, sent=sent, model=result.model_)

        return fit

    yield fitted("one table", "the analyst who has it", PrivatePCA(_RANK, **budget), rows)
    yield fitted("a stream", "the device that reads it", StreamingPCA(_RANK, **budget), rows)
    masked = FederatedPCA(_RANK, trust="masked", **budget)
    yield fitted("five sites under masks", "each site with its own", masked, sites)
    peers = GossipPCA(_RANK, graph="ring", consensus="chebyshev", method="covariance", **budget)
    yield fitted("five peers, no hub", "each peer with its own", peers, sites)


def _published(rows: "Array", table: DemoFit, seed: int | None) -> Iterator[DemoFit]:
    """Published methods with the guarantee of `table`. They are given its row bound, and the exact mean, which no guarantee
    covers."""
    import numpy as np

    from eigenveil.papers.baselines import AnalyzeGauss, NoisyPower

    centred = rows - rows.mean(axis=0)
    # Rows beyond the bound would not be protected by noise of this size.
    assert table.model is not None
    bound = float(table.model.settings["row_bound"])
    centred *= np.minimum(1.0, bound / np.linalg.norm(centred, axis=1))[:, None]
    budget: dict[str, Any] = {"epsilon": _EPSILON, "delta": _DELTA, "row_bound": bound, "random_state": seed}
    for setting, method in (
        ("Analyze Gauss", AnalyzeGauss(_RANK, **budget)),
        ("PPM, for a person", NoisyPower(_RANK, adjacency="row", **budget)),
    ):
        basis = np.ascontiguousarray(method.fit(centred).components_.T)
        yield DemoFit(setting=setting, trusted="the analyst who has it", basis=basis)


def _captured(rows: "Array", basis: "Array") -> float:
    from eigenveil.linalg import captured_variance

    # Measured on the rows as they are, not as clipped, so that all methods are compared alike.
    centred = rows - rows.mean(axis=0)
    return captured_variance(centred.T @ centred, basis)


def _cells(rows: "Array", fit: DemoFit) -> tuple[str, str, str, str]:
    from eigenveil.show.marks import in_bytes

    return fit.setting, fit.trusted, f"{_captured(rows, fit.basis):.1%}", in_bytes(fit.sent) if fit.sent else "nothing"


def _line(setting: str, trusted: str, captured: str, sent: str) -> str:
    return f"{setting:<24}  {trusted:<30}  {captured:>8}  {sent:>9}".rstrip()


def _report(model: "Model", lines: list[DemoFit], rows: "Array") -> "Report":
    """The report of the whole table, with all settings side by side. What they capture is public because the images are."""
    from eigenveil.show.report import model_report
    from eigenveil.show.values import TablePart

    note = (
        f"Each at epsilon = {_EPSILON:g}, delta = {_DELTA:g}. {_GIVEN} {_SHOWN} PPM is the private power method. Under masks the "
        "hub sees noisy sums and nothing of one site. Peers see each other's numbers under noise that cancels only in sums over "
        "all of them. The rest of this report is about the one table."
    )
    # In the report a column of bytes sorts by size.
    cells = tuple((*line[:-1], line[-1].replace("nothing", "0 B")) for line in (_EXACT, *(_cells(rows, line) for line in lines)))
    compared = TablePart(title="Four settings, one budget", header=_HEADER, rows=cells, note=note, bars="captured")
    report = model_report(model, title=_TITLE, tables=(compared,))
    story = _answer(rows, lines[0], lines[_OURS:])
    # What a colleague wants to know first, and then what was found and who is protected.
    return replace(report, answer=f"{story[0].upper()}{story[1:]} {report.answer}")


def _next_steps(console: "Console", model: Path) -> None:
    """How to call `eigenveil` from this folder next, so that the printed commands work as they are."""
    script = Path(sys.argv[0])
    # The stem, because on Windows the script is eigenveil.exe.
    command = _typed(script) if script.stem == "eigenveil" else f"{_typed(Path(sys.executable))} -m eigenveil"
    console.print("Try next:", style="bold")
    for line in (f"inspect {shlex.quote(str(model))}", "account --epsilon 1 --delta 1e-5", "fit --help"):
        console.print(f"  {command} {line}", soft_wrap=True)


def _typed(program: Path) -> str:
    """The shortest name of `program` in this folder: its name, a relative path, or its absolute path."""
    # Links are not followed: the python of a virtual environment is a link to one that lacks its packages.
    absolute, folder = program.absolute(), Path.cwd()
    if shutil.which(program.name) == str(absolute):
        return shlex.quote(program.name)
    if absolute.parent == folder:
        # The shell would look for a bare name on the search path only.
        return shlex.quote(f"./{program.name}")
    return shlex.quote(str(absolute.relative_to(folder) if absolute.is_relative_to(folder) else absolute))


COMMAND = Command(run=demo, panel="Start here")
