"""How one table becomes sites: every row at one of them, in the sizes and populations that --help guarantees."""

from pathlib import Path
from typing import Any

import numpy as np

from commands.command_tables import COUNT, NAMES, rows, written
from eigenveil.commands._files import Reading
from eigenveil.commands._splits import SplitRule, part
from eigenveil.data.formats import TableParams
from eigenveil.data.rows import NamedRows

READING: dict[str, Any] = {"reading": Reading(params=TableParams()), "person_sites": 1, "exact": {}}


def values(folder: Path, rule: SplitRule, seed: int = 0, kind: str = "npy") -> list[Any]:
    found = part(written(folder, kind), rule, rng=np.random.default_rng(seed), **READING)
    for site in found.sites.values():
        assert isinstance(site, NamedRows)
        assert site.names == (NAMES if kind == "csv" else None)
    return [next(site.blocks(COUNT)).values for site in found.sites.values()]


def test_every_row_is_at_one_site(tmp_path: Path) -> None:
    for rule in (SplitRule("iid", 7), SplitRule("skewed", 7), SplitRule("iid", COUNT)):
        for kind in ("npy", "csv", "sparse.npz"):
            sites = [site.toarray() if kind == "sparse.npz" else site for site in values(tmp_path, rule, kind=kind)]
            assert len(sites) == rule.count
            together = np.concatenate(sites)
            assert np.allclose(together[np.lexsort(together.T)], rows()[np.lexsort(rows().T)])


def test_iid_sites_are_even_and_skewed_ones_follow_a_power_law(tmp_path: Path) -> None:
    even = [len(site) for site in values(tmp_path, SplitRule("iid", 7))]
    assert max(even) - min(even) <= 1
    sizes = np.array([len(site) for site in values(tmp_path, SplitRule("skewed", 20))])
    shares = 1 / np.arange(1, 21)
    assert np.abs(sizes - COUNT * shares / shares.sum()).max() < 20


def test_skewed_sites_are_of_different_populations(tmp_path: Path) -> None:
    def spread(kind: str) -> float:
        return float(np.ptp([site[:, 0].mean() for site in values(tmp_path, SplitRule(kind, 4))]))

    # The first column carries the first direction, with a standard deviation of 5. Halves of the two ends of it, unmixed with
    # the other half, would be 8 apart; means of 120 random rows are further apart than 2.7 once in a million times.
    assert spread("iid") < 2.7 < 3 < spread("skewed") < 8


def test_a_seed_fixes_the_split(tmp_path: Path) -> None:
    for kind in ("iid", "skewed"):
        one, same, other = (values(tmp_path, SplitRule(kind, 5), seed) for seed in (1, 1, 2))
        assert all(np.array_equal(left, right) for left, right in zip(one, same, strict=True))
        assert not np.array_equal(one[0], other[0])
