"""`eigenveil demo`: handwritten digits fitted at three budgets beside the exact answer, in a few seconds.

The digits come with scikit-learn and are public, so the demo may compare with the exact components, which no one could
do with private rows without giving them away. Each line is printed as soon as it is known, and all of them up to the
guarantee fit on a terminal of 80 x 24.
"""

import shlex
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, final

import typer

from eigenveil.cli._files import require_output
from eigenveil.cli._options import Seed
from eigenveil.cli._terminal import errors_as_lines, output, wrote
from eigenveil.errors import ModelFileError

if TYPE_CHECKING:
    from rich.console import Console

    from eigenveil.cli._report import BarChart
    from eigenveil.estimators import PrivatePCA
    from eigenveil.linalg import Array

__all__ = ["demo"]

# Noise wins at the first, most is found at the second, and the third is hard to tell from exact.
EPSILONS: Final = (0.25, 1.0, 4.0)
_SHOWN: Final = 1
_DELTA: Final = 1e-5
_RANK: Final = 5
# Pixels are 0..16, which bounds each column. Half of 64 pixels a full 8 away from their mean make a row of length 45.
_COLUMN_BOUNDS: Final = (0.0, 16.0)
_ROW_BOUND: Final = 45.0


@final
@dataclass(frozen=True, slots=True, eq=False)
class DemoFit:
    """One private fit, and how close it came to the exact one."""

    pca: "PrivatePCA"
    captured: float
    sine: float


@errors_as_lines
def demo(
    model: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where the model of the middle budget goes.")
    ] = Path("demo-model.safetensors"),
    seed: Seed = None,
) -> None:
    """Watch privacy and accuracy trade off on a public dataset.

      eigenveil demo

    Fits 1797 images of handwritten digits, 64 pixels each, at three
    budgets and exactly, and shows what each budget can still see. The
    images are public, which is why the exact answer may be shown.
    """
    require_output(model, endings=(".safetensors",), force=model.exists() and _is_own(model), inputs=[])
    console = output()
    # Printed before the heavy imports, so that the user sees what the wait is for.
    console.print("Five principal components of 1797 handwritten digits, 64 pixels each", style="bold")
    rows, names = _digits()
    _introduce(console, seeded=seed is not None)
    exact, trials = _trials(console, rows, seed)
    chosen = trials[_SHOWN].pca
    # The mark in the settings lets a later demo overwrite this file, and no other.
    kept = replace(chosen.model_, columns=names, settings={**chosen.model_.settings, "demo": "handwritten digits"})
    kept.save(model)
    wrote(model)
    _show(console, exact, chosen)
    _next_steps(console, model)


def _is_own(path: Path) -> bool:
    """Whether `path` is a model that an earlier demo wrote."""
    from eigenveil.model import Model

    try:
        return "demo" in Model.load(path).settings
    except ModelFileError:
        return False


def _digits() -> tuple["Array", tuple[str, ...]]:
    from sklearn.datasets import load_digits

    data: Any = load_digits()
    return data.data, tuple(str(name) for name in data.feature_names)


def _introduce(console: "Console", *, seeded: bool) -> None:
    console.print(
        "Each image stands for one person. The images are public, so the exact answer may be shown beside the private "
        "ones. With private rows that would be a leak.\n",
        style="dim",
    )
    if seeded:
        from eigenveil.cli._report import warning_panel

        console.print(warning_panel("NOT PRIVATE: --seed fixes the noise, which is fine for public images only."))


def _trials(console: "Console", rows: "Array", seed: int | None) -> tuple["PrivatePCA", list[DemoFit]]:
    """The exact fit and the private ones, each in a line of a table that grows as they are done."""
    from eigenveil.estimators import PrivatePCA

    header = _line("budget", "captured variance", "largest sine", "noise floor")
    console.print(header, style="bold")
    console.print(("-" if console.options.ascii_only else "─") * len(header))
    exact = PrivatePCA(_RANK, epsilon=None).fit(rows)
    console.print(_line("exact, not private", "100.0%", "0.000", "0.0"), style="dim")
    trials = []
    for epsilon in EPSILONS:
        trial = _trial(rows, exact, epsilon, seed)
        trials.append(trial)
        figures = f"{trial.captured:.1%}", f"{trial.sine:.3f}", f"{trial.pca.noise_floor_:.1f}"
        console.print(_line(f"epsilon = {epsilon:g}", *figures))
    return exact, trials


def _line(budget: str, captured: str, sine: str, floor: str) -> str:
    return f"{budget:<18}   {captured:>17}   {sine:>12}   {floor:>11}"


def _trial(rows: "Array", exact: "PrivatePCA", epsilon: float, seed: int | None) -> DemoFit:
    from eigenveil.estimators import PrivatePCA
    from eigenveil.linalg import captured_variance, sines

    pca = PrivatePCA(
        _RANK, epsilon=epsilon, delta=_DELTA, row_bound=_ROW_BOUND, column_bounds=_COLUMN_BOUNDS, random_state=seed
    ).fit(rows)
    centred = rows - rows.mean(axis=0)
    basis = pca.subspace_.basis
    captured = captured_variance(centred.T @ centred, basis)
    return DemoFit(pca, captured, float(sines(basis, exact.subspace_.basis)[0]))


def _show(console: "Console", exact: "PrivatePCA", shown: "PrivatePCA") -> None:
    from eigenveil.cli._report import guarantee_panel

    console.print(
        "Captured variance: of the most that five directions can hold. Largest sine: 0 if the exact directions are "
        "found, 1 if one is lost. Noise floor: variance that noise alone can show.",
        style="dim",
    )
    console.print(f"\nVariance along each component at epsilon = {shown.epsilon:g}, beside the exact", style="bold")
    console.print(_chart(exact, shown))
    console.print()
    console.print(guarantee_panel(shown.guarantee_))


def _chart(exact: "PrivatePCA", private: "PrivatePCA") -> "BarChart":
    from eigenveil.cli._report import Bar, BarChart

    pairs = zip(private.explained_variance_, exact.explained_variance_, strict=True)
    bars = tuple(
        Bar(str(i), float(found), f"{found:5.1f}, exact {true:5.1f}") for i, (found, true) in enumerate(pairs, 1)
    )
    return BarChart(bars, float(private.noise_floor_), f"noise floor at epsilon = {private.epsilon:g}")


def _next_steps(console: "Console", model: Path) -> None:
    command = _command()
    console.print(f"\nModel of the middle budget written to {model}", soft_wrap=True)
    console.print("Try next:", style="bold")
    for line in (f"inspect {shlex.quote(str(model))}", "account --epsilon 1 --delta 1e-5", "fit --help"):
        console.print(f"  {command} {line}", soft_wrap=True)


def _command() -> str:
    """What to type for `eigenveil` here, so that the lines above work as they are printed."""
    script = Path(sys.argv[0])
    if script.stem == "eigenveil":
        return _typed(script)
    return f"{_typed(Path(sys.executable))} -m eigenveil"


def _typed(program: Path) -> str:
    """The shortest way to call `program` from this folder: its name, a path from here, or its whole path."""
    # Links are not followed: a virtual environment's python is a link to another one that lacks its packages.
    whole, here = program.absolute(), Path.cwd()
    if shutil.which(program.name) == str(whole):
        return shlex.quote(program.name)
    if whole.parent == here:
        # A name alone would be looked for on the search path.
        return shlex.quote(f"./{program.name}")
    return shlex.quote(str(whole.relative_to(here) if whole.is_relative_to(here) else whole))
