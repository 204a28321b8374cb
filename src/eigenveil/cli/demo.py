"""`eigenveil demo`: handwritten digits fitted at three budgets beside the exact answer, in a few seconds.

The digits come with scikit-learn and are public, so the demo may compare with the exact components, which no one could
do with private rows without giving them away.
"""

from collections.abc import Sequence
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
    from rich.table import Table

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
    require_output(model, endings=(".safetensors",), force=_is_own(model), inputs=[])
    rows, names = _digits()
    exact, trials = _trials(rows, seed)
    chosen = trials[_SHOWN].pca
    # The mark in the settings lets a later demo overwrite this file, and no other.
    kept = replace(chosen.model_, columns=names, settings={**chosen.model_.settings, "demo": "handwritten digits"})
    kept.save(model)
    wrote(model)
    _show(output(), exact, trials, seeded=seed is not None)
    _next_steps(output(), model)


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


def _trials(rows: "Array", seed: int | None) -> tuple["PrivatePCA", list[DemoFit]]:
    from eigenveil.estimators import PrivatePCA
    from eigenveil.linalg import captured_variance, sines

    exact = PrivatePCA(_RANK, epsilon=None).fit(rows)
    centred = rows - rows.mean(axis=0)
    gram = centred.T @ centred
    trials = []
    for epsilon in EPSILONS:
        pca = PrivatePCA(
            _RANK,
            epsilon=epsilon,
            delta=_DELTA,
            row_bound=_ROW_BOUND,
            column_bounds=_COLUMN_BOUNDS,
            random_state=seed,
        ).fit(rows)
        basis = pca.subspace_.basis
        sine = float(sines(basis, exact.subspace_.basis)[0])
        trials.append(DemoFit(pca, captured_variance(gram, basis), sine))
    return exact, trials


def _show(console: "Console", exact: "PrivatePCA", trials: Sequence[DemoFit], *, seeded: bool) -> None:
    from eigenveil.cli._report import guarantee_panel, warning_panel

    shown = trials[_SHOWN].pca
    console.print("Five principal components of 1797 handwritten digits, 64 pixels each", style="bold")
    console.print(
        "A person here is one image. The images are public, so the exact answer may stand beside the private ones; "
        "with private rows that comparison would itself be a leak.\n",
        style="dim",
    )
    if seeded:
        console.print(warning_panel("NOT PRIVATE: --seed fixes the noise, which is fine for public images only."))
    console.print(_table(trials))
    console.print(
        "captured variance: of the most that five directions can hold. Largest sine: 0 if they span the same space as "
        "the exact ones, 1 if one of those is lost. Noise floor: variance that noise alone can show.",
        style="dim",
    )
    console.print(f"\nvariance along each component, exact and at epsilon = {shown.epsilon:g}", style="bold")
    console.print(_chart(exact, shown))
    console.print()
    console.print(guarantee_panel(shown.guarantee_))


def _table(trials: Sequence[DemoFit]) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("budget", "captured variance", "largest sine", "noise floor"):
        table.add_column(name, justify="left" if name == "budget" else "right")
    for trial in trials:
        table.add_row(
            f"epsilon = {trial.pca.epsilon:g}",
            f"{trial.captured:.1%}",
            f"{trial.sine:.3f}",
            f"{trial.pca.noise_floor_:.1f}",
        )
    table.add_row("exact, not private", "100.0%", "0.000", "0.0", style="dim")
    return table


def _chart(exact: "PrivatePCA", private: "PrivatePCA") -> "BarChart":
    from eigenveil.cli._report import Bar, BarChart

    bars = []
    for i in range(_RANK):
        true, found = float(exact.explained_variance_[i]), float(private.explained_variance_[i])
        bars.append(Bar(f"{i + 1} exact", true, f"{true:.1f}", "dim"))
        bars.append(Bar("  private", found, f"{found:.1f}", "cyan"))
    return BarChart(tuple(bars), float(private.noise_floor_), f"noise floor at epsilon = {private.epsilon:g}")


def _next_steps(console: "Console", model: Path) -> None:
    console.print(f"\nmodel of the middle budget written to {model}", soft_wrap=True)
    console.print("try next:", style="bold")
    for line in (
        f"eigenveil inspect {model}",
        "eigenveil account --epsilon 1 --delta 1e-5",
        "eigenveil fit --help",
    ):
        console.print(f"  {line}", soft_wrap=True)
