"""Does a private stream say that its level has moved, and only then? Warnings of streams that stay, and of streams that move.

Streams of 6 to 14 slots are drawn at random: rows (normal, heavy tails, sparse, autocorrelated, skew), 2 to 100 columns, row
bounds from tight to 20 times loose, epsilon .3 to 10, with and without forgetting, at one place or at sites, under every trust.
A stream that moves does so once, for good or for a few slots: along a component, along a column of little variance, or anywhere.

- alarms: streams that stay in which anything was said of a change. At most 1 in 100 is promised.
- wrong: releases of moving streams that capture less than 0.9 of what they would had the rows stayed, with the same noise;
  warned: those of them with a warning. Where noise hides the components anyway, none counts: less than 0.8 of exact PCA is
  captured, or no component is above the noise floor.
- right: releases of moving streams that capture more than 0.99 of that; warned: those with a warning all the same.

    python benchmarks/streaming/changes.py --streams 60                   # tuned on; twenty minutes
    python benchmarks/streaming/changes.py --streams 60 --first 200000    # held out
"""

import argparse
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from eigenveil import FederatedStream, StreamingPCA
from eigenveil.errors import TooFewPeople
from eigenveil.linalg import Array, blas_threads

WAYS = ("sync", "block", "continual", "private bound", "hub", "site", "masked", "add-remove")
ROWS = ("normal", "tails", "sparse", "correlated", "skew")


def drawn(seed: int, way: str, *, moves: bool) -> tuple[list[Array], Array, dict[str, Any]]:
    """The slots of a stream, the covariance of its rows around their level, (d, d), and how it is followed."""
    rng = np.random.default_rng(seed)
    dim = int(np.exp(rng.uniform(np.log(2), np.log(100.5))))
    kind, slots, count = str(rng.choice(ROWS)), int(rng.integers(6, 15)), int(np.exp(rng.uniform(6.2, 8.6)))
    spread = np.arange(1, dim + 1) ** -rng.uniform(0.3, 1.5)
    turn = np.linalg.qr(rng.standard_normal((dim, dim)))[0] if rng.random() < 0.5 else np.eye(dim)
    rank = int(rng.integers(1, max(2, min(6, dim))))
    normal = rng.standard_normal((slots * count, dim))
    match kind:
        case "tails":
            normal *= np.sqrt(0.6 * 5 / rng.chisquare(5, (len(normal), 1)))
        case "sparse":
            normal *= (rng.random(normal.shape) < 0.1) * np.sqrt(10)
        case "correlated":
            for at in range(1, len(normal)):
                normal[at] = 0.9 * normal[at - 1] + np.sqrt(1 - 0.81) * normal[at]
        case "skew":
            normal = rng.exponential(size=normal.shape) - 1
    table = (normal * spread) @ turn.T
    norm = float(np.quantile(np.linalg.norm(table, axis=1), 0.98))
    parts = np.split(table + rng.uniform(-0.2, 0.2) * norm / np.sqrt(dim), slots)
    first, size = int(rng.integers(1, slots)), float(np.exp(rng.uniform(-1, 1.5))) * norm / 2
    last = slots if rng.random() < 0.7 else min(slots, first + int(rng.integers(1, 4)))
    way_of = rng.standard_normal(dim)
    along = rng.random()
    if along < 0.3:
        way_of = turn[:, int(rng.integers(0, rank))]
    elif along < 0.6:
        way_of = turn[:, int(rng.integers(rank, dim))] if dim > rank else way_of
    shift = size * way_of / np.linalg.norm(way_of)
    if moves:
        for at in range(first, last):
            parts[at] = parts[at] + shift
    loose = float(np.exp(rng.uniform(0, np.log(20)))) * (norm + size)
    terms: dict[str, Any] = {
        "n_components": rank,
        "epsilon": float(np.exp(rng.uniform(np.log(0.3), np.log(10)))),
        "delta": 1e-6,
        "random_state": seed % 2**31,
        "row_bound": loose,
        "forget": 1.0 if rng.random() < 0.6 else float(rng.uniform(0.7, 0.95)),
    }
    return parts, (turn * spread**2) @ turn.T, terms


def followed(parts: list[Array], way: str, terms: dict[str, Any]) -> Iterator[tuple[Array, bool, int]]:
    """The components after each slot, whether a change was said, and how many components are above the noise floor."""
    if way in ("hub", "site", "masked", "add-remove"):
        more: dict[str, Any] = {"neighbours": "add-remove"} if way == "add-remove" else {}
        trust: Any = "hub" if way == "add-remove" else way
        stream = FederatedStream(slots=len(parts), trust=trust, max_lateness=1, **more, **terms)
        for part in parts:
            stream.partial_fit(dict(zip("abcd", np.array_split(part, 4), strict=True)))
            if hasattr(stream, "components_"):
                yield stream.components_, said(stream.warnings_), stream.n_above_noise_
        return
    terms = terms | {"block_size": len(parts[0])}
    match way:
        case "block":
            terms |= {"publish": "block"}
        case "continual":
            terms |= {"publish": "continual", "horizon": sum(map(len, parts))}
        case "private bound":
            terms.pop("row_bound")
    pca = StreamingPCA(**terms)
    for part in parts:
        pca.partial_fit(part)
        try:
            pca.sync()
        except TooFewPeople:
            # The first block is too short to find a bound.
            return
        yield pca.components_, said(pca.warnings_), pca.n_above_noise_


def said(warned: tuple[str, ...]) -> bool:
    """Whether one of these is of a change."""
    return any(words.startswith(("The level of the stream", "The spread of the stream")) for words in warned)


def captured(components: Array, covariance: Array) -> float:
    """The share of the variance that exact components of the same number would have."""
    best = np.linalg.eigvalsh(covariance)[::-1][: len(components)].sum()
    return float(np.einsum("kd,de,ke->", components, covariance, components) / best)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=100, help="how many of each kind and way (default 100)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--ways", nargs="*", default=WAYS, choices=WAYS)
    parser.add_argument("--verbose", action="store_true", help="show every alarm and every miss")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"{'':15}{'alarms':>14}{'wrong: warned':>20}{'right: warned':>20}")
    for way in options.ways:
        found: Counter[str] = Counter()
        for seed in range(options.first, options.first + options.streams):
            parts, covariance, terms = drawn(seed, way, moves=False)
            calm = list(followed(parts, way, terms))
            found["alarms"] += any(told for _, told, _ in calm)
            if options.verbose and any(told for _, told, _ in calm):
                print("alarm", way, seed)
            parts, covariance, terms = drawn(seed, way, moves=True)
            for at, ((components, told, _), (still, _, above)) in enumerate(zip(followed(parts, way, terms), calm, strict=False)):
                clear = captured(still, covariance)
                if clear < 0.8 or above == 0:
                    continue
                share = captured(components, covariance) / clear
                kind = "wrong" if share < 0.9 else "right" if share > 0.99 else "between"
                found[kind] += 1
                found[f"{kind}, told"] += told
                if options.verbose and kind == "wrong" and not told:
                    print(f"missed {way} {seed}, release {at}: {share:.2f}")
        cells = (f"{found['alarms']} of {options.streams}", *(f"{found[f'{k}, told']} of {found[k]}" for k in ("wrong", "right")))
        print(f"{way:15}{cells[0]:>14}{cells[1]:>20}{cells[2]:>20}", flush=True)


if __name__ == "__main__":
    with blas_threads(1):
        main()
