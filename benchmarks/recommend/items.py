"""Is the advised number of items a good one, and is a refusal right? Recall@20 of private filters by the number of items.

Whole users are protected. A line has one data set, rank and epsilon:
what the planner says of all items (`refused`, `warned`, `fair`), the recall with all
of them, the number of items that the planner advises and its recall, the number that is best in hindsight and its recall, and
popularity, which is not private. The planner assumes 40 items per user; with --history it is told their true number, READ FROM
THE DATA. A fifth of each user's items is held out.

Data: jester1, ml100k, gowalla (its own split), w8a (20000 rows, words in place of items), and artificial histories,
USERSxITEMSxHISTORY: users and items have a few of 18 genres, and items a Zipf popularity.

    python benchmarks/recommend/items.py [--data ml100k jester1 6040x3706x165] [--ranks 8 32] [--epsilons 0.3 1 3] [--history]
"""

import argparse
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks import datasets
from benchmarks.datasets import heading, line
from benchmarks.recommend.quality import Halves, halves, popularity, quality
from eigenveil.linalg.blas import blas_threads
from eigenveil.recommend import PrivateRecommender, split

KEPT = (50, 100, 200, 300, 500, 1000, 2000, 5000)
# A release of all pairs of more items takes too long here.
MOST = 4000


def artificial(users: int, items: int, history: float, *, seed: int = 0, genres: int = 18) -> sp.csr_array:
    """Histories, (users, items), of users with a few genres each; popular items have a Zipf law."""
    rng = np.random.default_rng(seed)
    popular = (np.arange(1, items + 1) + 5.0) ** -0.7
    of_items, of_users = rng.dirichlet(np.full(genres, 0.05), items), rng.dirichlet(np.full(genres, 0.15), users)
    lengths = np.clip(rng.lognormal(np.log(history) - 0.32, 0.8, users), 3, items / 3).astype(int)
    rows = []
    for tastes, length in zip(of_users, lengths, strict=True):
        # The smallest of exponential times over rates are a draw without replacement.
        times = rng.exponential(size=items) / (popular * (0.05 / genres + 0.95 * (of_items @ tastes)))
        rows.append(np.sort(np.argpartition(times, length)[:length]))
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return sp.csr_array((np.ones(indptr[-1]), np.concatenate(rows), indptr), shape=(users, items))


def data_of(name: str) -> Halves:
    """One split of a data set."""
    if name in ("jester1", "ml100k", "gowalla"):
        return halves(name, 1, 1500)[0]
    if name == "w8a":
        rows = datasets.sparse(name)
        rows.data[:] = 1.0
        rows = rows[np.sort(np.random.default_rng(0).choice(rows.shape[0], 20_000, replace=False))]
    else:
        users, items, history = name.split("x")
        rows = artificial(int(users), int(items), float(history))
    return Halves(*split(rows[np.flatnonzero(np.diff(rows.indptr))], rng=np.random.default_rng(0)))


def measure(name: str, ranks: Sequence[int], epsilons: Sequence[float], *, history: bool, runs: int) -> None:
    """Print the lines of a data set."""
    data = data_of(name)
    users, dim = data.train.shape
    told = data.train.nnz / users if history else None
    popular = popularity(data).recall
    for rank in ranks:
        for epsilon in epsilons:

            def fitted(items: int | None, seed: int, rank: int = rank, epsilon: float = epsilon) -> Any:
                model = PrivateRecommender(rank, epsilon=epsilon, items=items, on_noise="warn", history=told, random_state=seed)
                return model.fit(data.train)

            def recall(items: int | None) -> float:
                return float(np.mean([quality(fitted(items, seed).space_, data).recall for seed in range(runs)]))

            plan = fitted(None, 0).plan_
            verdict = "refused" if plan.hopeless else "fair" if plan.expected.fair else "warned"
            advised = next((change.change["items"] for change in plan.advice if "items" in change.change), None)
            found = {items: recall(items) for items in KEPT if rank <= items < dim}
            if dim <= MOST:
                found[dim] = recall(None)
            best = max(found, key=lambda items: found[items])
            line(
                [
                    name,
                    str(rank),
                    f"{epsilon:g}",
                    verdict,
                    f"{found[dim]:.3f}" if dim in found else "",
                    "" if advised is None else f"{advised}: {found[advised]:.3f}",
                    f"{best}: {found[best]:.3f}",
                    f"{popular:.3f}",
                ]
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=["ml100k", "jester1", "w8a", "6040x3706x165", "3000x500x30"])
    parser.add_argument("--ranks", nargs="*", type=int, default=[8, 32])
    parser.add_argument("--epsilons", nargs="*", type=float, default=[0.3, 1.0, 3.0])
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--history", action="store_true", help="tell the planner the true mean number of items")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    heading(["data", "p", "epsilon", "all items", "recall", "advised", "best", "popularity"])
    with blas_threads(1):
        for name in options.data:
            if "x" not in name and datasets.skipped(name):
                continue
            measure(name, options.ranks, options.epsilons, history=options.history, runs=options.runs)


if __name__ == "__main__":
    main()
