"""What attackers get: the demonstrations of `eigenveil audit --demonstrate` as tables for docs/audit.md.

A curious hub and an outsider (FedPower, Examples 1 and 2), and membership inference on published components. Each
attacks studies of artificial people, without privacy and with it. Each takes seconds; --tables 2000 narrows the
intervals of the last one and takes a minute or two.

    python benchmarks/audit_attacks.py [--seed 0] [--tables 200]
"""

import argparse
import time
from functools import partial

from eigenveil.audit.membership import Demonstration, Shown, membership
from eigenveil.audit.reconstruction import curious_hub, outsider
from eigenveil.linalg.blas import blas_threads


def figure(value: float) -> str:
    """Two digits, or its order where it is small."""
    return f"{value:.2f}" if abs(value) >= 0.005 or value == 0 else f"{value:.0e}"


def cells(row: Shown, *, rates: bool) -> list[str]:
    """One line of a table."""
    found = [row.run, row.target, figure(row.value)]
    if rates:
        low, high = row.interval or (row.value, row.value)
        found += [f"{low:.2f} to {high:.2f}", "" if row.allowed is None else figure(row.allowed)]
    else:
        found.append(figure(row.baseline))
    return [*found, row.words]


def shown(demonstration: Demonstration) -> list[str]:
    """A demonstration in Markdown."""
    rates = any(row.interval is not None for row in demonstration.rows)
    heads = ["interval (99%)", "allowed"] if rates else ["guess"]
    heads = ["run", "target", "advantage" if rates else "error", *heads, ""]
    lines = [f"### {demonstration.title}", "", *demonstration.story, "", f"Measured: {demonstration.measure}."]
    lines += [f"Guess: {demonstration.guess}.", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    lines += [f"| {' | '.join(cells(row, rates=rates))} |" for row in demonstration.rows]
    return [*lines, "", demonstration.conclusion, ""]


def main() -> None:
    """Print all three."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tables", type=int, default=200)
    given = parser.parse_args()
    with blas_threads(1):
        for attack in (curious_hub, outsider, partial(membership, tables=given.tables)):
            begun = time.perf_counter()
            print("\n".join(shown(attack(seed=given.seed))))
            print(f"({time.perf_counter() - begun:.1f} s)\n")


if __name__ == "__main__":
    main()
