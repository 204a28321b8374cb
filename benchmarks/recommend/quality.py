"""How good private recommendations are: recall@20 and NDCG@20, beside popularity and the same filter without privacy.

On jester1 (liked where the rating is above 0) and ml100k (any rating), a fifth of each user's items is held out at
random. Figures are means over --splits splits, each with its own seed for the noise. The data set gowalla comes with
its own split: it learns from what is marked train and validation, and tests on --sample users drawn at random. Their items
were held out, and the histories of all users are learned from. delta is the default.

A cell is recall / NDCG. A column without privacy is the same filter with the same settings and no noise; popularity
is not private either. "degrees" says how the filter uses item degrees: not at all, as released ("private"), or as
released and in the histories too ("both", for whole users alone). "items" says how many are used: all, or the most
popular by released counts; the others are never recommended. With ! the planner expects noise, and a fit is refused
unless on_noise="warn" is given. All settings are shown, and none is chosen by the outcome.

To reach: on jester1 and ml100k, for whole users, p = 32 and no degrees, at epsilon = 10 at least 0.9 of the recall of the filter
without privacy.

About 3 minutes of one core for the small sets and 10 for gowalla; --quick, one split of jester1, half a minute.

    python benchmarks/recommend/quality.py [--data jester1 ml100k gowalla] [--ranks 32 8] [--splits 3] [--sample 3000]
"""

import argparse
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

import numpy as np
import scipy.sparse as sp

from benchmarks import datasets
from benchmarks.datasets import heading, line
from benchmarks.recommend.runs import LEAST_DEGREE, Table
from eigenveil.linalg import Array
from eigenveil.linalg.blas import blas_threads
from eigenveil.recommend import ItemSpace, PrivateRecommender, Quality, evaluate, popularity_scores, split

NAMES: Final = ("jester1", "ml100k", "gowalla")
EPSILONS: Final = (1.0, 3.0, 10.0)
UNITS: Final = ("user", "item")
FEWER: Final = (1000, 2000, 4000)
# The goal: for which method, with how many directions, at which epsilon, and what share of the recall.
RANK, AT, SHARE = 32, 10.0, 0.9


@final
@dataclass(frozen=True, slots=True)
class Method:
    """One line: what is protected, the least degree m, how degrees are used, how many items are, and by which method."""

    unit: str
    least: int = 1
    degrees: str = "none"
    items: int | None = None
    method: str = "auto"

    @property
    def words(self) -> list[str]:
        """The first cells of its line."""
        return [self.unit, str(self.least), self.degrees, "all" if self.items is None else str(self.items)]

    @property
    def settings(self) -> dict[str, Any]:
        """As `PrivateRecommender` takes them."""
        return {
            "unit": self.unit,
            "min_degree": self.least,
            "item_degrees": None if self.degrees == "none" else "private",
            "normalise": "both" if self.degrees == "both" else "filter",
            "items": self.items,
            "method": self.method,
        }


@final
@dataclass(frozen=True, slots=True, eq=False)
class Halves:
    """What is learned from and what is asked for, both (n, d); test rows of users who are not asked are empty."""

    train: Any
    test: Any


def halves(name: str, splits: int, sample: int) -> list[Halves]:
    """The splits of a data set."""
    if name == "gowalla":
        return [_own_split(sample)]
    rows = Table.load(name).rows
    return [Halves(*split(rows, rng=np.random.default_rng(seed))) for seed in range(splits)]


def _own_split(sample: int) -> Halves:
    marked = sp.csr_array(sp.load_npz(datasets.FOLDER / "gowalla.npz"))
    parts = []
    for wanted in (marked.data <= 2, marked.data == 3):
        part = marked.astype(np.float64)
        part.data[:] = wanted
        part.eliminate_zeros()
        parts.append(part)
    train, test = parts
    users = np.flatnonzero(np.diff(test.indptr))
    asked = np.zeros(test.shape[0])
    asked[np.random.default_rng(0).choice(users, min(sample, len(users)), replace=False)] = 1.0
    test = sp.csr_array(sp.diags_array(asked) @ test)
    test.eliminate_zeros()
    return Halves(train, test)


def methods(name: str, units: Sequence[str] = UNITS) -> list[Method]:
    """The lines of a table."""
    return [method for method in _all_methods(name) if method.unit in units]


def _all_methods(name: str) -> list[Method]:
    if name == "gowalla":
        few = [Method("user", degrees=degrees, items=items) for items in FEWER for degrees in ("none", "private", "both")]
        return [*few, *(Method("item", degrees=degrees, method="power") for degrees in ("none", "private"))]
    users = [Method("user", degrees=degrees) for degrees in ("none", "private", "both")]
    leasts = (1, LEAST_DEGREE[name])
    return users + [Method("item", least, degrees) for least in leasts for degrees in ("none", "private")]


def quality(space: ItemSpace, data: Halves) -> Quality:
    """Of recommendations from this space; items that it leaves out come after all others."""

    def scores(rows: Any) -> Array:
        found = space.scores(rows)
        if space.columns is None:
            return found
        every = np.full(rows.shape, found.min() - 1.0)
        every[:, space.columns] = found
        return every

    return evaluate(scores, data.train, data.test)


def popularity(data: Halves) -> Quality:
    """Of the same list for everybody."""
    votes = popularity_scores(data.train)
    return evaluate(lambda rows: np.tile(votes, (rows.shape[0], 1)), data.train, data.test)


@final
@dataclass(frozen=True, slots=True)
class Cell:
    """Means over splits, and whether the planner would have refused."""

    recall: float
    ndcg: float
    refused: bool = False

    @classmethod
    def of(cls, found: Sequence[Quality], *, refused: bool = False) -> "Cell":
        """The means."""
        return cls(float(np.mean([one.recall for one in found])), float(np.mean([one.ndcg for one in found])), refused)

    def __str__(self) -> str:
        return f"{self.recall:.3f} / {self.ndcg:.3f}{'!' * self.refused}"


def fitted(method: Method, rank: int, epsilon: float | None, splits: Sequence[Halves]) -> Cell:
    """One cell."""
    found, refused = [], False
    for seed, data in enumerate(splits):
        model = PrivateRecommender(rank, epsilon=epsilon, on_noise="warn", random_state=seed, **method.settings)
        model.fit(data.train)
        refused |= model.plan_.hopeless
        found.append(quality(model.space_, data))
    return Cell.of(found, refused=refused)


def measure(
    name: str, splits: Sequence[Halves], ranks: Sequence[int], epsilons: Sequence[float], units: Sequence[str] = UNITS
) -> list[str]:
    """Print the tables of one data set; verdicts."""
    popular = Cell.of([popularity(data) for data in splits])
    said = []
    for rank in ranks:
        print(f"\n{name}, p = {rank}; popularity, not private: {popular}\n")
        names = ["protected", "m", "degrees", "items", "without privacy"]
        heading([*names, *(f"epsilon = {epsilon:g}" for epsilon in epsilons), "seconds"])
        exact: dict[Method, Cell] = {}
        for method in methods(name, units):
            began = time.perf_counter()
            # What is protected plays no part where nothing is.
            plain = replace(method, unit="user", method="auto")
            exact[plain] = exact.get(plain) or fitted(plain, rank, None, splits)
            private = {epsilon: fitted(method, rank, epsilon, splits) for epsilon in epsilons}
            line([*method.words, *map(str, (exact[plain], *private.values())), f"{time.perf_counter() - began:.0f}"])
            if name != "gowalla" and rank == RANK and method == Method("user") and AT in private:
                said.append(verdict(name, private[AT].recall, exact[plain].recall))
        filters = exact[Method("user")] if Method("user") in exact else next(iter(exact.values()))
        print(
            f"\nwithout privacy and without degrees this filter has {filters.recall / popular.recall:.2f} of popularity's recall"
        )
    return said


def verdict(name: str, private: float, exact: float) -> str:
    """Whether the recall is as much of the exact one as is asked for."""
    reached = "reached" if private >= SHARE * exact else "NOT REACHED"
    return (
        f"target {reached}: {name}, whole users, p = {RANK}, epsilon = {AT:g}: recall {private:.3f} is "
        f"{private / exact:.2f} of {exact:.3f} without privacy, asked for {SHARE:g}"
    )


def planner_on_all_items(train: Any, rank: int, epsilons: Sequence[float]) -> None:
    """What is said before anything is spent, where whole users are protected and no item is left out."""
    print("\ngowalla, whole users, all items: what the planner says\n")
    for epsilon in epsilons:
        try:
            model = PrivateRecommender(rank, epsilon=epsilon, random_state=0).fit(train)
            print(f"epsilon = {epsilon:g}: goes on and expects {model.plan_.expected}")
        except ValueError as error:
            print(f"epsilon = {epsilon:g}: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=list(NAMES), choices=NAMES)
    parser.add_argument("--ranks", nargs="*", type=int, default=[32, 8])
    parser.add_argument("--epsilons", nargs="*", type=float, default=list(EPSILONS))
    parser.add_argument("--units", nargs="*", default=list(UNITS), choices=UNITS)
    parser.add_argument("--splits", type=int, default=3, help="of the small data sets")
    parser.add_argument("--sample", type=int, default=3000, help="users of gowalla who are asked")
    parser.add_argument("--quick", action="store_true", help="one split of jester1")
    options = parser.parse_args()
    if options.quick:
        options.data, options.splits = ["jester1"], 1
    # The tables say with ! what the planner would warn of.
    warnings.simplefilter("ignore")
    said = []
    with blas_threads(1):
        for name in options.data:
            if datasets.skipped(name):
                continue
            splits = halves(name, options.splits, options.sample)
            users, items = splits[0].train.shape
            asked = int(np.count_nonzero(np.diff(splits[0].test.indptr)))
            print(f"\n{name}: {users} x {items}, {asked} users asked, {len(splits)} split(s)", flush=True)
            if name == "gowalla":
                planner_on_all_items(splits[0].train, options.ranks[0], options.epsilons)
            said += measure(name, splits, options.ranks, options.epsilons, options.units)
    print("", *said, sep="\n")


if __name__ == "__main__":
    main()
