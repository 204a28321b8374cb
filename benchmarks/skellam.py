"""Integer noise per second on one core, beside numpy's difference of two Poisson numbers.

`Skellam` draws from an AES stream, every probability right to one part in 2^47; numpy's generator is not cryptographic, and its
Poisson numbers come from a rejection in floating point for which no error is stated. `ratio` is the median within interleaved
rounds: on a busy machine seconds vary, and ratios less. `table` is what the first draw of a variance takes, once. `share` is all
that a site does with a packed array: rounding, noise, and the sum of the two.

    python benchmarks/skellam.py
    python benchmarks/skellam.py --quick
"""

import argparse
import math
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from eigenveil.privacy import Bounded, Budget, Lattice, Ledger, Noise, Share, Skellam
from eigenveil.privacy.skellam import _table


def rate(work: Callable[[], object], count: int) -> float:
    """Millions a second."""
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start) / 1e6


def line(bits: int, count: int, rounds: int) -> None:
    """Print one deviation."""
    variance = 2.0 ** (2 * bits)
    start = time.perf_counter()
    _table.__wrapped__(variance)
    table = time.perf_counter() - start
    noise, rng, sampler = Noise.seeded(1), np.random.default_rng(1), Skellam(variance)
    sampler.draw(noise, 1)
    rates = np.array(
        [
            (
                rate(lambda: sampler.draw(noise, count), count),
                rate(lambda: rng.poisson(variance / 2, count) - rng.poisson(variance / 2, count), count),
            )
            for _ in range(rounds)
        ]
    )
    ours, peer = np.median(rates, axis=0)
    ratio = np.median(rates[:, 0] / rates[:, 1])
    print(f"2^{bits:<10}{ours:14.1f}{peer:16.1f}{ratio:8.1f}{rates[:, 0].max():10.1f}{table * 1e3:12.0f}", flush=True)


def share_rate(count: int, rounds: int) -> float:
    """Millions of entries a second through `Share.of`, median."""
    lattice = Lattice.within(
        Budget(1.0, 1e-6), coordinates=count, sites=20, survivors=20, colluders=1, entries=count, smallest=1.0
    )
    value, ledger = Bounded(np.random.default_rng(1).standard_normal(count), 1.0), Ledger(epsilon=math.inf, delta=0.5)
    shares = [Share(lattice, ledger, Noise.seeded(1), 5.0) for _ in range(rounds)]
    return float(np.median([rate(partial(share.of, value, label="x", share=1.0), count) for share in shares]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="rounds per deviation (default 15)")
    parser.add_argument("--quick", action="store_true", help="one deviation, three rounds of 10^5 draws")
    options = parser.parse_args()
    count, rounds = (10**5, 3) if options.quick else (2 * 10**6, options.rounds)
    print(f"{count} draws, median of {rounds} rounds, millions a second")
    print(f"{'deviation':12}{'Skellam':>14}{'numpy Poisson':>16}{'ratio':>8}{'best':>10}{'table ms':>12}")
    for bits in (26,) if options.quick else (12, 18, 26, 30):
        line(bits, count, rounds)
    print(f"\na site's share: {share_rate(count, rounds):.1f} million entries a second")


if __name__ == "__main__":
    main()
