"""Draw the example images of docs/seeing.md: every display of `eigenveil.show.plots`, on public tables.

    python benchmarks/pictures/plot_images.py [--output docs/images]

The noise has a fixed seed, so the images are the same on every machine. The table is public, and nobody needs protection.
"""

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer

from eigenveil import FederatedPCA, PrivatePCA
from eigenveil.core.accounting import Budget
from eigenveil.plan.facts import Facts
from eigenveil.plan.spectrum import Spectrum
from eigenveil.show.plots import (
    BiplotDisplay,
    BudgetDisplay,
    ConvergenceDisplay,
    Display,
    LoadingsDisplay,
    PlanDisplay,
    ScreeDisplay,
)

ROOT = Path(__file__).resolve().parents[2]


def table() -> Any:
    """569 tumours with 30 measurements, in units of their standard deviations. A public table, so its units are public too."""
    found = load_breast_cancer(as_frame=True).data
    return (found - found.mean()) / found.std()


def displays() -> dict[str, Callable[[Any], Display]]:
    """Each picture by the name of its file."""
    rows = table()
    pca = PrivatePCA(6, epsilon=3.0, delta=1e-5, row_bound=8.0, center=None, random_state=0).fit(rows)
    sites = {f"site {at + 1}": part for at, part in enumerate(np.array_split(rows.to_numpy(), 5))}
    federated = FederatedPCA(6, epsilon=None, delta=None, method="power", random_state=0).fit(sites)
    facts = Facts(dim=30, rank=4, people=4000, budget=Budget(1.0, 1e-6), spectrum=Spectrum.guessed(30), row_bound=1.0)
    return {
        "scree": lambda ax: ScreeDisplay.from_estimator(pca, ax=ax),
        "biplot": lambda ax: BiplotDisplay.from_estimator(pca, rows, largest=8, ax=ax),
        "loadings": lambda ax: LoadingsDisplay.from_estimator(pca, ax=ax),
        "budget": lambda ax: BudgetDisplay.from_estimator(
            PrivatePCA(6, epsilon=4.0, delta=1e-5, row_bound="private", random_state=0).fit(rows), ax=ax
        ),
        "convergence": lambda ax: ConvergenceDisplay.from_estimator(federated, ax=ax),
        "plan": lambda ax: PlanDisplay.from_facts(facts, "curator/covariance", ax=ax),
    }


def main() -> None:
    """Write one image for each display."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "images")
    folder: Path = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    # A seed is announced by a warning, and is wanted here.
    warnings.simplefilter("ignore")
    for name, draw in displays().items():
        figure, ax = plt.subplots(figsize=(6.4, 4.4), layout="constrained")
        draw(ax)
        # Without a date or a version in it, the file changes only when the picture does.
        figure.savefig(folder / f"plot-{name}.png", dpi=110, metadata={"Software": None})
        plt.close(figure)
        print(f"{folder / f'plot-{name}.png'}")


if __name__ == "__main__":
    main()
