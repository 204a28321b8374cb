"""The README's picture: share of exact PCA's variance that five private components capture, against epsilon.

Every line keeps the same (epsilon, 1e-5) for one whole row, replace-one. Rows are centred by their own mean and clipped at
the 0.95 quantile of their own norms. Both are READ FROM THE DATA, for this comparison only and the same for every line.
The digits come with scikit-learn, so that anybody can draw the left half; other tables are looked for in EIGENVEIL_DATA
and left out where they are missing. Analyze Gauss is the closest method. It is drawn as published, as far as its calibration is
proved, which is epsilon = 1, and with the exact calibration that ours has.

    python benchmarks/readme_figure.py [--data digits a9a] [--runs 20] [--output docs/accuracy.svg]
"""

import argparse
import math
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import final
from xml.sax.saxutils import escape

import numpy as np
from sklearn.datasets import load_digits

from benchmarks.datasets import centred_and_clipped, dense, skipped
from benchmarks.utility import DELTA, ROUNDS, Method, ours, published, random_basis
from eigenveil.core.accounting import Budget
from eigenveil.linalg import Array, captured_variance, top_eigen
from eigenveil.papers.baselines import AnalyzeGauss, FpcaEdge, ModSulq, NoisyPower

ROOT = Path(__file__).resolve().parents[1]
RANK = 5
EPSILONS = (0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0)


def analyze_gauss_exact(rows: Array, gram: Array, bound: float, rank: int, budget: Budget, seed: int) -> Array:
    """Analyze Gauss with noise of exactly this budget (Balle and Wang 2018) in place of the textbook calibration."""
    noise = np.random.default_rng((seed, 1)).standard_normal(gram.shape) * math.sqrt(2) / budget.mu * bound**2
    return top_eigen(gram + np.triu(noise) + np.triu(noise, 1).T, rank=rank)[1]


@final
@dataclass(frozen=True, slots=True)
class Contender:
    """A line of the picture: what it is called, how it finds a basis, and up to which epsilon it is proved."""

    name: str
    method: Method
    css: str
    most: float = math.inf


CONTENDERS = (
    Contender("Eigenveil, covariance", ours("covariance", neighbours="replace-one"), "a"),
    Contender("Eigenveil, power", ours("power", neighbours="replace-one"), "b"),
    Contender("Analyze Gauss, exact", analyze_gauss_exact, "h"),
    Contender("Analyze Gauss", published(AnalyzeGauss), "c", most=1.0),
    Contender("PPM, for a person", published(NoisyPower, adjacency="row", rounds=ROUNDS), "d"),
    Contender("MOD-SuLQ", published(ModSulq), "e"),
    Contender("FPCA, eq. (17)", published(FpcaEdge), "f"),
    Contender("random basis", random_basis, "g"),
)


@final
@dataclass(frozen=True, slots=True)
class Measured:
    """One half of the picture: a table's name and, for each line, its mean shares at `epsilons`."""

    title: str
    epsilons: tuple[float, ...]
    shares: dict[str, tuple[float, ...]]


def rows_of(name: str) -> Array:
    """A table as float64 rows; `digits` is bundled with scikit-learn."""
    if name != "digits":
        return dense(name)
    bundled = load_digits().data
    return np.asarray(bundled, dtype=np.float64)


def measured(name: str, *, epsilons: Sequence[float], runs: int) -> Measured:
    """Means over `runs` seeds of the captured share, for every line and epsilon."""
    rows, bound = centred_and_clipped(rows_of(name))
    gram = rows.T @ rows
    shares = {}
    for line in CONTENDERS:
        found = []
        for epsilon in (epsilon for epsilon in epsilons if epsilon <= line.most):
            bases = (line.method(rows, gram, bound, RANK, Budget(epsilon, DELTA), seed) for seed in range(runs))
            found.append(float(np.mean([captured_variance(gram, basis) for basis in bases])))
        shares[line.name] = tuple(found)
        print(f"{name:8} {line.name:22} " + " ".join(f"{share:.3f}" for share in found), flush=True)
    return Measured(f"{name}, {len(rows)} x {len(gram)}", tuple(epsilons), shares)


WIDTH, HEIGHT, TOP, PLOT_HEIGHT, LEFT, GAP = 880, 380, 64, 240, 62, 34
LEGEND = 206
TICKS = (0.1, 0.3, 1.0, 3.0, 10.0)
STYLE = """
    .ground { fill: #ffffff } text { fill: #1f2328; font: 13px system-ui, sans-serif }
    .title { font-weight: 600; font-size: 15px }
    .grid { stroke: #d1d9e0; stroke-width: 1 } .line { fill: none; stroke-width: 2 } .dot { stroke: none }
    .a { stroke: #0550ae; fill: #0550ae } .b { stroke: #1a7f5a; fill: #1a7f5a } .c { stroke: #8250df; fill: #8250df }
    .d { stroke: #bc4c00; fill: #bc4c00 } .e { stroke: #a40e6b; fill: #a40e6b } .f { stroke: #7d6400; fill: #7d6400 }
    .g { stroke: #6e7781; fill: #6e7781 } .h { stroke: #8250df; fill: #8250df }
    .line.a { stroke-width: 3.5 } .line { fill: none !important }
    .c.line { stroke-dasharray: 7 4 } .d.line { stroke-dasharray: 2 4 } .e.line { stroke-dasharray: 9 3 2 3 }
    .f.line { stroke-dasharray: 4 3 } .g.line { stroke-dasharray: 1 3 }
    @media (prefers-color-scheme: dark) {
      .ground { fill: #0d1117 } text { fill: #e6edf3 } .grid { stroke: #30363d }
      .a { stroke: #79c0ff; fill: #79c0ff } .b { stroke: #56d4a0; fill: #56d4a0 } .c { stroke: #d2a8ff; fill: #d2a8ff }
      .d { stroke: #ffa657; fill: #ffa657 } .e { stroke: #ff8cc6; fill: #ff8cc6 } .f { stroke: #e3c64f; fill: #e3c64f }
      .g { stroke: #9198a1; fill: #9198a1 } .h { stroke: #d2a8ff; fill: #d2a8ff }
    }"""


def drawn(halves: Sequence[Measured], *, origin: str) -> str:
    """The picture as SVG text: one plot a table, a legend, and a description that says in words what is seen."""
    title = "Accuracy against epsilon: Eigenveil next to published methods with the same guarantee"
    plots = "\n".join(_plot(half, place, len(halves)) for place, half in enumerate(halves))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="title desc">\n'
        f'<title id="title">{title}</title>\n<desc id="desc">{escape(_words(halves, origin))}</desc>\n<style>{STYLE}\n</style>\n'
        f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="8"/>\n'
        '<text class="title" x="20" y="28">'
        "Share of exact PCA's variance that five private components capture, replace-one</text>\n"
        f"{plots}\n{_legend()}\n</svg>\n"
    )


def _words(halves: Sequence[Measured], origin: str) -> str:
    parts = [
        f"Share of exact PCA's variance that five private components capture against epsilon, delta = {DELTA:g}, replace-one."
    ]
    for half in halves:
        at = half.epsilons.index(1.0)
        found = ", ".join(f"{name} {values[at]:.0%}" for name, values in half.shares.items())
        parts.append(f"{half.title} at epsilon = 1: {found}.")
    return " ".join([*parts, origin])


def _plot(half: Measured, place: int, count: int) -> str:
    width = (WIDTH - LEGEND - LEFT - GAP * count) / count
    left = LEFT + place * (width + GAP)
    low, high = math.log(half.epsilons[0]), math.log(half.epsilons[-1])

    def x(epsilon: float) -> float:
        return left + width * (math.log(epsilon) - low) / (high - low)

    def y(share: float) -> float:
        return TOP + PLOT_HEIGHT * (1 - share)

    bottom = y(0)
    parts = [f'<text x="{left:.1f}" y="{TOP - 12}">{escape(half.title)}</text>']
    for share in (0, 0.25, 0.5, 0.75, 1):
        height = y(share)
        parts.append(f'<path class="grid" d="M{left:.1f} {height:.1f}H{left + width:.1f}"/>')
        if place == 0:
            parts.append(f'<text x="{left - 8:.1f}" y="{height + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    parts += [f'<text x="{x(tick):.1f}" y="{bottom + 18:.1f}" text-anchor="middle">{tick:g}</text>' for tick in TICKS]
    parts.append(f'<text x="{left + width / 2:.1f}" y="{bottom + 42:.1f}" text-anchor="middle">epsilon</text>')
    # Ours last, so that nothing lies on top of it.
    for line in reversed(CONTENDERS):
        points = [(x(at), y(share)) for at, share in zip(half.epsilons, half.shares[line.name], strict=False)]
        path = " ".join(f"{across:.1f},{up:.1f}" for across, up in points)
        parts.append(f'<polyline class="line {line.css}" points="{path}"><title>{escape(line.name)}</title></polyline>')
        if line.css in "ab":
            parts += [f'<circle class="dot {line.css}" cx="{across:.1f}" cy="{up:.1f}" r="3.5"/>' for across, up in points]
    return "\n".join(parts)


def _legend() -> str:
    left, parts = WIDTH - LEGEND + 4, []
    for place, line in enumerate(CONTENDERS):
        height = TOP + 14 + 30 * place
        parts.append(f'<path class="line {line.css}" d="M{left} {height}h30"/>')
        if line.css in "ab":
            parts.append(f'<circle class="dot {line.css}" cx="{left + 15}" cy="{height}" r="3.5"/>')
        parts.append(f'<text x="{left + 38}" y="{height + 4}">{escape(line.name)}</text>')
    return "\n".join(parts)


def commit() -> str:
    """The commit of this tree, and whether the code that was measured differs from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    changed = " with local changes" if git("status", "--porcelain", "--", "src") else ""
    return (git("rev-parse", "--short", "HEAD") or "unknown") + changed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=["digits", "a9a"])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "accuracy.svg")
    options = parser.parse_args()
    names = [name for name in options.data if name == "digits" or not skipped(name)]
    halves = [measured(name, epsilons=EPSILONS, runs=options.runs) for name in names]
    command = f"python benchmarks/readme_figure.py --data {' '.join(names)} --runs {options.runs}"
    origin = (
        f"Means of {options.runs} runs. digits is scikit-learn's load_digits; other tables are from the LIBSVM collection. "
        f"Drawn by `{command}` at commit {commit()} on {datetime.now(UTC):%Y-%m-%d}."
    )
    options.output.write_text(drawn(halves, origin=origin), encoding="utf-8")
    print(f"written to {options.output}")


if __name__ == "__main__":
    main()
