"""Which norm to clip at: the bound that a fit finds privately, against quantiles of the norms that nobody could know.

Each cell is the captured variance of the *unclipped* rows, over that of exact components, averaged over `runs` fits. The private
search pays for itself: norms, mean and bound come out of the same budget. The quantiles of the others are READ FROM THE DATA and
free, and so is the place to look for the mean. Like any fit with a given bound, they pay for the mean and the count.

The gain in hindsight is the distance from the .95 quantile to the best of six quantiles. Only cells with n mu of at least 100
count: below, a fit refuses. The last lines choose the price of lost energy (`PRICE`) on all tables but one and use it there.

    EIGENVEIL_DATA=... python benchmarks/clip_level.py
"""

import argparse
from dataclasses import replace

import numpy as np

from benchmarks.datasets import dense, skipped
from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Exact, Gaussian
from eigenveil.core.noise import Noise
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import DenseRows
from eigenveil.linalg import Array
from eigenveil.linalg.sketch import normals
from eigenveil.tasks.fit.bounds import RowBounds
from eigenveil.tasks.fit.gaps import split_budget
from eigenveil.tasks.fit.search import PRICE, BoundSearch, Center
from eigenveil.tasks.totals import shrunk

TABLES = [
    "a9a",
    "connect4",
    "cover10",
    "credit_default",
    "exchange_rate",
    "housing",
    "jester1",
    "mnist:test",
    "motes_light",
    "protein_homology",
    "usps",
    "w8a",
    "winequality_red",
    "sklearn:digits",
    "sklearn:breast_cancer",
]
QUANTILES = (0.95, 0.75, 0.5, 0.25, 0.1, 0.02)
EPSILONS = (0.1, 0.3, 1.0, 3.0)
PRICES = (0.01, PRICE, 0.1)
DELTA = 1e-5
ENOUGH = 100.0


def table(name: str) -> Array | None:
    """The rows, None where the file is missing. Tables that come with scikit-learn need no file."""
    if name.startswith("sklearn:"):
        from sklearn import datasets

        return np.asarray(getattr(datasets, f"load_{name.partition(':')[2]}")().data, dtype=np.float64)
    return None if skipped(name) else dense(name)


def clipped_gram(rows: Array, center: Array, bound: float) -> Array:
    """The Gram matrix of rows clipped to `bound` around `center`, over bound^2."""
    moved = rows - center
    norms = np.linalg.norm(moved, axis=1)
    moved *= (np.minimum(1.0, bound / np.maximum(norms, 1e-300)) / bound)[:, None]
    return np.asarray(moved.T @ moved)


def clipped_mean(rows: Array, center: Array, bound: float) -> Array:
    """The mean of the same clipped rows, in units of the bound."""
    moved = rows - center
    norms = np.linalg.norm(moved, axis=1)
    return np.asarray((np.minimum(1.0, bound / np.maximum(norms, 1e-300)) / bound) @ moved / len(rows))


def released(gram: Array, mu: float, noise: Noise) -> Array:
    """Eigenvectors, (d, 10), of the matrix with symmetric noise for this mu."""
    upper = normals(noise, gram.shape) / mu
    symmetric = np.triu(upper, 1) / np.sqrt(2)
    return np.linalg.eigh(gram + symmetric + symmetric.T + np.diag(np.diag(upper)))[1][:, ::-1][:, :10]


def with_given_bound(gram: Array, mean: Array, rows: int, budget: Budget, noise: Noise) -> Array:
    """What a fit with a given bound releases: the mean first, searched for around the exact one, and the covariance around it.

    The Gram matrix and the mean are those of clipped rows around the exact mean, in units of the bound. A center that is off by e
    moves the matrix by n (e e^T - m e^T - e m^T), but for a few rows that are clipped a little differently.
    """
    split = split_budget(mean=True, search=False, count=True, trace=False)
    entry = 1 / (budget.mu * np.sqrt(split.mean[0]) * rows)
    found = mean + entry * normals(noise, mean.shape)
    off = shrunk(found, noise=entry * np.sqrt(len(mean)))
    moved = gram + rows * (np.outer(off, off) - np.outer(mean, off) - np.outer(off, mean))
    return released(moved, budget.mu * np.sqrt(split.main(1)), noise)


def captured(basis: Array, covariance: Array, values: Array, rank: int) -> float:
    basis = basis[:, :rank]
    return float(np.einsum("ij,ij->", basis, covariance @ basis) / values[:rank].sum())


def search_of(rows: Array, budget: Budget) -> BoundSearch:
    """The search of a fit of these rows with this budget."""
    bounds = RowBounds.check(
        rows.shape[1],
        private=True,
        row_bound="private",
        column_bounds=None,
        origin=None,
        mean_bound=None,
        scale=None,
        sparse=False,
    )
    split = split_budget(mean=True, search=False, count=True, trace=False, bound=True)
    return BoundSearch(
        bounds=bounds,
        neighbours=Neighbours.ADD_REMOVE,
        center="private",
        split=split,
        people=None,
        multiplier=1 / budget.mu,
        rank=5,
        entry=np.sqrt(0.5),
    )


def found_bounds(
    rows: Array, budget: Budget, ranks: tuple[int, ...], prices: tuple[float, ...], seed: int
) -> dict[tuple[int, float], tuple[Array, float, float]]:
    """For each rank and price: the center, the bound, and the share of mu^2 left for the components. Norms are shared."""
    noise, data = Noise.seeded(seed), DenseRows(rows)
    mechanism = Gaussian(multiplier=1 / budget.mu, ledger=Ledger(epsilon=1e6, delta=DELTA), noise=noise)
    inside = Exact(because="the same holder releases the total")
    search = search_of(rows, budget)

    def after(one: BoundSearch, state: Center, steps: int) -> Center:
        for _ in range(steps):
            state = one.advance(state, one.work(one.ask(state), data, inside), mechanism)
        return state

    state = after(search, search.start(), 2)
    norms = mechanism.release(search.private(search.ask(state), data), label="norms", share=search.share(search.ask(state)))
    answers = {}
    ends: dict[float, tuple[Array, float, float]] = {}
    for rank in ranks:
        for price in prices:
            one = replace(search, rank=rank, price=price)
            chosen = one.update(state, norms)
            assert chosen.bound is not None
            if chosen.bound not in ends:
                last = after(one, chosen, 1)
                while one.result(last) is None:
                    last = after(one, last, 1)
                assert last.center is not None
                assert last.bound is not None
                ends[chosen.bound] = (last.center, last.bound, one.split.main(last.steps))
            answers[rank, price] = ends[chosen.bound]
    return answers


def cells(name: str, rows: Array, runs: int, prices: tuple[float, ...]) -> list[tuple[str, float, int, Array, Array]]:
    """For each epsilon and rank: what six quantiles capture, (6,), and what the private bound does, (prices,)."""
    center = rows.mean(axis=0)
    covariance = (rows - center).T @ (rows - center)
    values = np.linalg.eigvalsh(covariance)[::-1]
    norms = np.linalg.norm(rows - center, axis=1)
    bounds = [float(np.quantile(norms, q)) for q in QUANTILES]
    grams = [clipped_gram(rows, center, bound) for bound in bounds]
    means = [clipped_mean(rows, center, bound) for bound in bounds]
    ranks = tuple(rank for rank in (5, 10) if rank < rows.shape[1])
    found = []
    for epsilon in EPSILONS:
        budget = Budget(epsilon, DELTA)
        if len(rows) * budget.mu < ENOUGH:
            continue
        known = np.zeros((len(ranks), len(QUANTILES)))
        private = np.zeros((len(ranks), len(prices)))
        for run in range(runs):
            noise = Noise.seeded(1000 + run)
            for place, (gram, mean) in enumerate(zip(grams, means, strict=True)):
                basis = with_given_bound(gram, mean, len(rows), budget, noise)
                known[:, place] += [captured(basis, covariance, values, rank) / runs for rank in ranks]
            made: dict[float, Array] = {}
            answers = found_bounds(rows, budget, ranks, prices, seed=run)
            for (rank, price), (where, bound, share) in answers.items():
                if bound not in made:
                    made[bound] = released(clipped_gram(rows, where, bound), budget.mu * np.sqrt(share), noise)
                score = captured(made[bound], covariance, values, rank) / runs
                private[ranks.index(rank), prices.index(price)] += score
        for place, rank in enumerate(ranks):
            found.append((name, epsilon, rank, known[place], private[place]))
            shown = " ".join(f"{score:.3f}" for score in [*known[place], *private[place]])
            print(f"{name:22} {len(rows):6} {rows.shape[1]:4} {epsilon:5g} {rank:3}  {shown}", flush=True)
    return found


def gain_of(found: list[tuple[str, float, int, Array, Array]], price: int) -> tuple[float, float]:
    """How much of the gain in hindsight a price has, over all cells, and its worst loss against the .95 quantile."""
    hindsight = sum(float(known.max() - known[0]) for *_, known, _ in found)
    gains = [float(private[price] - known[0]) for *_, known, private in found]
    return sum(gains) / max(hindsight, 1e-12), min(gains)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=TABLES)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    print("captured variance of the unclipped rows: six exact quantiles, then the private bound at each price")
    heads = " ".join([*(f"q{q:<4g}" for q in QUANTILES), *(f"p{p:<4g}" for p in PRICES)])
    print(f"{'data':22} {'n':>6} {'d':>4} {'eps':>5} {'k':>3}  {heads}")
    found = []
    for name in options.data:
        rows = table(name)
        if rows is not None:
            found += cells(name, rows, options.runs, PRICES)
    for rank in (5, 10):
        of_rank = [cell for cell in found if cell[2] == rank]
        for place, price in enumerate(PRICES):
            gain, worst = gain_of(of_rank, place)
            print(
                f"k = {rank:2}, price {price:g}: {gain:.0%} of the gain in hindsight, worst {worst:+.3f} ({len(of_rank)} cells)"
            )
    gained, hindsight, worst = 0.0, 0.0, np.inf
    for left in dict.fromkeys(name for name, *_ in found):
        others = [cell for cell in found if cell[0] != left]
        here = [cell for cell in found if cell[0] == left]
        # The best share of the gain among prices that lose at most .01 anywhere else.
        scores = [gain_of(others, place) for place in range(len(PRICES))]
        best = max(range(len(PRICES)), key=lambda place: (scores[place][1] >= -0.01, scores[place][0]))
        gained += sum(float(private[best] - known[0]) for *_, known, private in here)
        hindsight += sum(float(known.max() - known[0]) for *_, known, _ in here)
        worst = min(worst, gain_of(here, best)[1])
        print(f"without {left}: price {PRICES[best]:g}, there {gain_of(here, best)[1]:+.3f} at worst")
    print(f"leave one table out: {gained / max(hindsight, 1e-12):.0%} of the gain in hindsight, worst {worst:+.3f}")


if __name__ == "__main__":
    main()
