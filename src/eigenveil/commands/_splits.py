"""Deal one table out to the sites of `eigenveil simulate`: which site gets which rows."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from eigenveil.commands._files import Reading
from eigenveil.errors import require, require_param
from eigenveil.show.console import busy, watched

if TYPE_CHECKING:
    from numpy.random import Generator

    from eigenveil.core.rows import Rows

__all__ = ["Parted", "SplitRule", "part"]


@final
@dataclass(frozen=True, slots=True)
class SplitRule:
    """How to split a table."""

    kind: str  # "iid", "skewed" or "by" a column.
    count: int | None  # Of sites.
    column: str | None = None

    @classmethod
    def read(cls, text: str, sites: int | None) -> "SplitRule":
        """The rule that --split and --sites ask for.

        >>> SplitRule.read("by:hospital", None).column
        'hospital'
        """
        # A column may have a colon in its name, so only the first one counts.
        kind, colon, column = text.partition(":")
        if kind == "by" and column:
            require(sites is None, f"--split {text} makes one site for each value of the column. Leave out --sites")
            return cls("by", None, column)
        require(not colon and kind in ("iid", "skewed"), f"--split must be iid, skewed or by:COLUMN, got {text!r}")
        require(sites is not None, "--sites is missing. Give the number of sites, such as --sites 20, or --split by:COLUMN")
        return cls(kind, sites)

    @property
    def words(self) -> str:
        """For a model's settings."""
        return self.kind if self.column is None else f"by {self.column}"

    @property
    def stem(self) -> str:
        """The first part of every site's name."""
        return "site " if self.column is None else f"{self.column} "


@final
@dataclass(frozen=True, slots=True, eq=False)
class Parted:
    """The rows of each site, and all of them together."""

    sites: Mapping[str, "Rows"]
    pooled: "Rows"


def part(
    path: Path, rule: SplitRule, reading: Reading, *, person_sites: int, exact: Mapping[str, Any], rng: "Generator"
) -> Parted:
    """The table in `path`, split by `rule`. Everything is read into memory.

    A skewed split sorts rows with an exact fit, which has the parameters `exact`.
    """
    import numpy as np

    from eigenveil.data.frames import as_rows, person_ids
    from eigenveil.data.rows import NamedRows, WeightedRows

    named = reading.format(path).has_names
    require(rule.column is None or named, f"--split by:{rule.column} needs a table with column names, such as csv or parquet")
    require_param(reading.person is None or named, "{person} needs a table with column names, such as csv or parquet")
    # Passed through and not analysed: people are dealt out before any row is weighted.
    extra = tuple(dict.fromkeys(name for name in (rule.column, reading.person) if name is not None))
    table = replace(reading, person=None, passthrough=(*extra, *reading.passthrough)).table(path)
    names = table.columns
    with watched(table.rows) as rows:
        values = _whole(rows)

    def named_rows(chosen: Any) -> NamedRows:
        mine = as_rows(values[chosen])
        weighted = mine if people is None else WeightedRows.by_person(mine, people[chosen])
        # Groups of columns that are missing together are found by name, in the table as a whole too.
        return NamedRows(weighted, names, reading.person)

    with busy("dealing rows out to the sites"):
        people = None if reading.person is None else person_ids(table.passthrough, reading.person)
        if rule.column is not None:
            sites, assignment = _by_column(table.passthrough[rule.column], rule.column)
            _require_few_sites(assignment, people, person_sites)
        else:
            assert rule.count is not None
            # People, not rows, are dealt out, so that a person's rows stay at one site.
            unit = np.arange(values.shape[0]) if people is None else np.unique(people, return_inverse=True)[1]
            sites = [f"{rule.stem}{index}" for index in range(rule.count)]
            exact_rows = NamedRows(as_rows(values), names)
            assignment = _dealt(exact_rows, unit, rule.count, skewed=rule.kind == "skewed", exact=exact, rng=rng)[unit]
        # Stable: the rows of a site keep the order of the file, so a seeded run is the same on every machine.
        order = np.argsort(assignment, kind="stable")
        ends = np.cumsum(np.bincount(assignment, minlength=len(sites)))[:-1]
        parts = {name: named_rows(mine) for name, mine in zip(sites, np.split(order, ends), strict=True)}
        return Parted(parts, named_rows(slice(None)))


def _dealt(rows: "Rows", unit: Any, count: int, *, skewed: bool, exact: Mapping[str, Any], rng: "Generator") -> Any:
    """The site of each person, or of each row where every row is one; `unit` says whose row each one is.

    Skewed, people are in the order of their mean position along the first principal direction of the table, except for a random
    half, which is placed at random.
    """
    import numpy as np

    people = int(unit.max(initial=-1)) + 1
    require(people >= count, f"--sites {count}: the table is too small to give every site a row. Give fewer sites")
    if not skewed:
        return rng.permutation(np.arange(people) % count)
    from eigenveil.estimators import PrivatePCA

    # Every site gets one person, so that none is empty. Site i gets a share of the others in proportion to 1 / (i + 1).
    shares = 1.0 / np.arange(1, count + 1)
    sizes = 1 + np.floor((people - count) * shares / shares.sum()).astype(np.int64)
    sizes[0] += people - sizes.sum()
    # Where incomplete rows are left out, they have no scores, and may be dealt to any site: they are in the middle here.
    scores = np.nan_to_num(PrivatePCA(1, epsilon=None, **exact).fit(rows).transform(rows)[:, 0])
    along = np.bincount(unit, weights=scores) / np.bincount(unit)
    position = np.argsort(np.argsort(along, kind="stable"), kind="stable") / people
    order = np.argsort(np.where(rng.random(people) < 0.5, rng.random(people), position), kind="stable")
    assignment = np.empty(people, dtype=np.int64)
    assignment[order] = np.repeat(np.arange(count), sizes)
    return assignment


def _by_column(whole: Any, column: str) -> tuple[list[str], Any]:
    """The names of the sites, and the site of each row."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    # A csv has text, where nothing at all is a missing value.
    blank = bool(pc.any(pc.equal(whole, "")).as_py()) if pa.types.is_string(whole.type) else False
    missing = blank or bool(pc.any(pc.is_null(whole, nan_is_null=True)).as_py())
    require(not missing, f"column {column!r} has missing values, so some rows have no site. Fill them in first")
    if pa.types.is_dictionary(whole.type):
        # A dictionary may list one value twice, so the decoded values decide.
        whole = whole.cast(whole.type.value_type)
    codes = whole.combine_chunks().dictionary_encode()
    values = codes.dictionary.to_pylist()
    # Numbers in text count as people count: 2 comes before 10.
    numbers = all(isinstance(value, str) and value.isdecimal() for value in values)
    rank = sorted(range(len(values)), key=lambda index: int(values[index]) if numbers else values[index])
    index = np.empty(len(values), dtype=np.int64)
    index[rank] = np.arange(len(values))
    return [f"{column} {values[i]}" for i in rank], index[codes.indices.to_numpy(zero_copy_only=False)]


def _require_few_sites(assignment: Any, people: Any, person_sites: int) -> None:
    import numpy as np

    if people is None:
        return
    # Each person once for each site, however many rows are there.
    pairs = np.unique(np.stack([people, assignment], axis=1), axis=0)
    require(
        bool((np.bincount(pairs[:, 0]) <= person_sites).all()),
        f"a person has rows at more than {person_sites} site{'s' * (person_sites != 1)}. Raise --person-sites, the most sites of "
        "one person",
    )


def _whole(rows: "Rows") -> Any:
    """All rows as one array or CSR matrix."""
    import numpy as np
    import scipy.sparse as sp

    from eigenveil.core.rows import block_size

    blocks = [block.values for block in rows.blocks(block_size(rows))]
    if rows.sparse:
        return sp.csr_array(sp.vstack(blocks, format="csr") if blocks else rows.shape)
    return np.concatenate(blocks) if blocks else np.empty(rows.shape)
