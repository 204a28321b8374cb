"""How often what is captured lies in the interval that was forecast, on tables that are hard to forecast, and how wide it is.

A cell is one table of `tables.py` with a random number of its rows, a random epsilon, rank and way to bound rows, all from a
fixed seed, and one fit at delta = 1e-5: of one table, of three to eight sites, or of a stream (`--setting`). Captured variance
is a share of what exact PCA of *all rows as they are* has; for private units, of exactly standardised rows. Only where a
forecast says that it is of the clipped rows, it is a share of what exact PCA of those has. Three forecasts are scored:

- `plan`: before the fit, from the numbers of rows and columns, the rank and the budget alone;
- `explained`: the same, told which share of the variance the first k components have, to two digits, READ FROM THE DATA;
- `report`: after the fit, from what it released, as in its report. There is none where nothing stands out from the noise.

Nine in ten should lie in the interval. Read the widths next to it: an interval from 0 to 1 would always be right.

"Warned" are fits that say that long rows seem to have most of the variance. "Hidden" are fits in which more rows were far
longer than all that was seen than the report says that noise can hide at most: one in twenty may be.

    EIGENVEIL_DATA=... python benchmarks/plan/coverage.py [--half tuning held-out fresh other] [--cells 6] [--misses]
        [--setting curator hub masked site stream]
"""

import argparse
import math
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, final

import numpy as np

from benchmarks.datasets import heading, line
from benchmarks.plan.tables import TABLES, half_of, table
from eigenveil import FederatedPCA, PrivatePCA, StreamingPCA
from eigenveil.core.accounting import Budget
from eigenveil.linalg import Array
from eigenveil.linalg.blas import blas_threads
from eigenveil.model import Model
from eigenveil.plan.facts import METHODS, Facts
from eigenveil.plan.rehearsal import Forecast, forecast
from eigenveil.plan.spectrum import Spectrum
from eigenveil.show.report import planned
from eigenveil.tasks.fit.bounds import Outliers
from eigenveil.tasks.fit.units import min_people_for_scale

DELTA: Final = 1e-5
EPSILONS: Final = (0.1, 0.3, 1.0, 3.0)
Publish = Literal["sync", "block", "continual"]
Setting = Literal["curator", "hub", "masked", "site", "stream"]
SETTINGS: Final[tuple[Setting, ...]] = ("curator", "hub", "masked", "site", "stream")
STREAMS: Final[tuple[Publish, ...]] = ("sync", "block", "continual")
_MOST_SITES: Final = 8
# Most fits find their bound.
WAYS: Final = ("bound", "bound", "bound", "units", "given")
_FEWEST_ROWS: Final = 300
# A search is refused below about these numbers of people, and nobody plans at the very limit.
_ENOUGH, _ROOM = 100.0, 1.05


@final
@dataclass(frozen=True, slots=True)
class Scored:
    """One forecast of one cell, and what was captured."""

    cell: str
    way: str
    kind: str
    captured: float
    said: Forecast
    # Of the report: whether it warns of long rows, and whether more rows hide than it says. None where it says nothing of them.
    warned: bool = False
    exceeded: bool | None = None

    @property
    def inside(self) -> bool:
        """Whether the interval holds. Fits that capture everything may differ from it by a rounding error."""
        return self.said.captured.low - 1e-9 <= self.captured <= self.said.captured.high + 1e-9

    @property
    def width(self) -> float:
        """Of the interval."""
        return self.said.captured.high - self.said.captured.low


def share_of(rows: Array, basis: Array) -> float:
    """Variance of the rows along a basis over the most possible. Rows are centered already."""
    gram = rows.T @ rows
    best = float(np.linalg.eigvalsh(gram)[::-1][: basis.shape[1]].sum())
    return float(np.einsum("ij,ij->", basis, gram @ basis)) / best


def scored(name: str, setting: Setting, cells: int) -> Iterator[Scored]:
    """The forecasts of all cells of a table."""
    whole = table(name)
    rng = np.random.default_rng(zlib.crc32((name if setting == "curator" else f"{name} {setting}").encode()))
    if whole is None or len(whole) <= _FEWEST_ROWS:
        return
    for _ in range(cells):
        drawn = _settings(rng, whole, setting)
        if drawn is not None:
            rows = whole[rng.permutation(len(whole))[: drawn[0]]]
            yield from _cell(name, rows, *drawn[1:], int(rng.integers(2**31)), setting)


def _settings(rng: np.random.Generator, whole: Array, setting: Setting) -> tuple[int, float, int, str] | None:
    """Rows, epsilon, rank and the way to bound rows; None if no such fit is possible after many tries."""
    for _ in range(200):
        count = int(math.exp(rng.uniform(math.log(_FEWEST_ROWS), math.log(len(whole)))))
        epsilon = float(rng.choice(EPSILONS))
        rank = int(rng.integers(1, min(10, whole.shape[1] - 1) + 1))
        way = WAYS[rng.integers(len(WAYS))]
        mu = Budget(epsilon, DELTA).mu
        least = min_people_for_scale(whole.shape[1], 1 / mu) if way == "units" else _ENOUGH / mu
        # Where each of up to eight sites adds all of the noise, a search needs more people.
        if count > _ROOM * least * (math.sqrt(_MOST_SITES) if setting == "site" else 1.0):
            return count, epsilon, rank, way
    return None


def _fitted(rows: Array, setting: Setting, rank: int, sites: int, seed: int, **terms: Any) -> tuple[Any, str, int]:
    """A fit, the name of its method in a plan, and its number of sites."""
    terms |= {"delta": DELTA, "random_state": seed}
    match setting:
        case "curator":
            return PrivatePCA(rank, **terms).fit(rows), "curator/covariance", 1
        case "stream":
            publish = STREAMS[seed % len(STREAMS)]
            horizon = len(rows) if publish == "continual" else None
            return StreamingPCA(rank, publish=publish, horizon=horizon, **terms).fit(rows), f"stream/{publish}", 1
    fit = FederatedPCA(rank, trust=setting, method="covariance", **terms)
    return fit.fit(np.array_split(rows, sites)), f"{setting}/covariance", sites


def _cell(name: str, rows: Array, epsilon: float, rank: int, way: str, seed: int, setting: Setting) -> Iterator[Scored]:
    mean = rows.mean(axis=0)
    moved = rows - mean
    terms: dict[str, Any] = {"scale": "private"} if way == "units" else {}
    if way == "given":
        # A round number near the 0.9 quantile, as somebody who knows the field might give.
        high = float(np.quantile(np.linalg.norm(moved, axis=1), 0.9))
        terms = {"row_bound": 2.0 ** round(math.log2(high)), "origin": mean.round(1)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            pca, method, sites = _fitted(rows, setting, rank, 3 + seed % (_MOST_SITES - 2), seed, epsilon=epsilon, **terms)
        except ValueError:
            # So few people that noise on their number had the fit refused.
            return
    if way == "units":
        spread = rows.std(axis=0)
        moved = moved / np.where(spread > 1e-9 * np.abs(mean), spread, 1.0)
    basis, dim = pca.components_.T, rows.shape[1]
    share = share_of(moved, basis)
    captured = {"all rows": share, "clipped rows": share}
    if way == "given":
        clipped = rows - pca.mean_
        norms = np.linalg.norm(clipped, axis=1)
        clipped *= np.minimum(1.0, terms["row_bound"] / np.maximum(norms, 1e-300))[:, None]
        captured["clipped rows"] = share_of(clipped, basis)
    values = np.linalg.eigvalsh(moved.T @ moved)
    explained = round(float(values[-rank:].sum() / values.sum()), 2)
    known: dict[str, Any] = {"row_bound": 1.0 if way == "given" else None, "scale": "private" if way == "units" else None}
    guesses = {
        "plan": Spectrum.guessed(dim),
        "explained": Spectrum.guessed(dim, rank=rank, explained=min(1.0, max(explained, rank / dim))),
    }
    cell = f"{name}, {len(rows)} x {dim}, {sites} x {method}, epsilon {epsilon:g}, k = {rank}, {way}"
    for kind, spectrum in guesses.items():
        facts = Facts(
            dim=dim,
            rank=rank,
            people=len(rows),
            budget=Budget(epsilon, DELTA),
            spectrum=spectrum,
            sites=sites,
            trust=(setting,),
            **known,
        )
        said = forecast(facts, method)
        yield Scored(cell, way, kind, captured[said.of], said)
    after, method = planned(pca.model_)
    if after is not None and method in METHODS:
        said = forecast(after, method)
        warned = after.norms is not None and after.norms.longest(after.unit) is not None
        yield Scored(cell, way, "report", captured[said.of], said, warned, _exceeded(rows - pca.mean_, pca.model_))


def _exceeded(moved: Array, model: Model) -> bool | None:
    """Whether more rows, around their mean, are far longer than all norms that were seen than a model says at most."""
    far = Outliers.read(model.settings.get("outliers"))
    return None if far is None else float((np.linalg.norm(moved, axis=1) > far.beyond).mean()) > far.most


def summary(found: Sequence[Scored]) -> None:
    """One line for each forecast and way to bound rows."""
    heading(
        [
            "forecast",
            "row bound",
            "cells",
            "in the interval",
            "too high",
            "median width",
            "median width of clipped rows",
            "warned",
            "hidden",
        ]
    )
    for kind in ("plan", "explained", "report"):
        for way in ("all", *dict.fromkeys(WAYS)):
            some = [one for one in found if one.kind == kind and way in ("all", one.way)]
            if not some:
                continue
            high = np.mean([one.captured < one.said.captured.low - 1e-9 for one in some])
            inner = np.median([one.said.clipped.high - one.said.clipped.low for one in some])
            width = np.median([one.width for one in some])
            inside = np.mean([one.inside for one in some])
            told = [one.exceeded for one in some if one.exceeded is not None]
            more = f"{sum(told)} of {len(told)}" if told else "-"
            warned = str(sum(one.warned for one in some))
            line([kind, way, str(len(some)), f"{inside:.1%}", f"{high:.1%}", f"{width:.3f}", f"{inner:.3f}", warned, more])
    print()


def main(arguments: Sequence[str] | None = None) -> None:
    """Print coverage and widths of each half, and with --misses what lay outside."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    halves = ("tuning", "held-out", "fresh", "other")
    parser.add_argument("--half", nargs="*", choices=halves, default=list(halves))
    parser.add_argument("--data", nargs="*", default=list(TABLES))
    parser.add_argument("--cells", type=int, default=6)
    parser.add_argument("--misses", action="store_true")
    parser.add_argument("--setting", nargs="*", choices=SETTINGS, default=["curator"])
    options = parser.parse_args(arguments)
    for half in options.half:
        names = [name for name in options.data if half_of(name) == half]
        for setting in options.setting:
            with blas_threads(1):
                found = [one for name in names for one in scored(name, setting, options.cells)]
            print(f"{half}, {setting}: {len(names)} tables")
            summary(found)
            for one in found if options.misses else []:
                if not one.inside or one.warned:
                    mark = " WARNED" * one.warned
                    print(
                        f"{one.kind}, {one.said.of}: {one.cell}: {one.captured:.3f}, said {one.said.captured}{mark}", flush=True
                    )


if __name__ == "__main__":
    main()
