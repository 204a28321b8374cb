"""Bad input is refused with the reason, names the site, quotes nobody's data, and leaves an earlier fit as it was."""

import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
from sklearn.exceptions import NotFittedError

from eigenveil.core.rows import Block
from eigenveil.data.rows import DenseRows
from eigenveil.estimators.federated.pca import FederatedPCA
from eigenveil.linalg import Array
from estimators.sites_of_rows import COLUMNS, DIM, federated, pooled_rows, private_federated, stored

SECRET = "8675309"
ROWS = pooled_rows(60)
SITES = np.array_split(ROWS, 3)
KINDS = ("dense", "sparse", "pandas", "polars", "pyarrow", "blocks")


def refused(pca: FederatedPCA, sites: Any, message: str, *, site: str | None = None) -> str:
    """The fit raises a `ValueError` that matches and names the site, and nothing that is shown of it quotes the secret."""
    with pytest.raises(ValueError, match=message) as caught:
        pca.fit(sites)
    if site is not None:
        assert str(caught.value).startswith(f"{site}: ")
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert not hasattr(pca, "components_")
    return str(caught.value)


def both_ways(sites: Any, message: str, *, site: str | None = None, **choices: Any) -> None:
    """Refused with privacy and without."""
    refused(federated(2, **choices), sites, message, site=site)
    refused(private_federated(2, **choices), sites, message, site=site)


def spoiled(value: float) -> Array:
    """One site's rows with one entry spoiled."""
    rows = SITES[1].copy()
    rows[7, 4] = value
    return rows


WRONG_LISTS: dict[str, tuple[Any, str]] = {
    "no sites": ([], "there must be at least one site, got none"),
    "no named sites": ({}, "there must be at least one site, got none"),
    "one array": (ROWS, "sites must be a list, or a mapping of names, .* got ndarray"),
    "three dimensions": (np.stack(SITES), "sites must be a list, or a mapping of names, .* got ndarray"),
    "a table": (pd.DataFrame(ROWS), "sites must be a list, or a mapping of names, .* got DataFrame"),
    "a generator": ((rows for rows in SITES), "sites must be a list, or a mapping of names, .* got generator"),
    "a word": ("sites", "sites must be a list, or a mapping of names, .* got str"),
    "bytes": (b"sites", "sites must be a list, or a mapping of names, .* got bytes"),
    "nothing": (None, "sites must be a list, or a mapping of names, .* got NoneType"),
    "names that are none": ({1: SITES[0], 2: SITES[1]}, "names of sites must be text"),
    "the name of the hub": ({"hub": SITES[0]}, "a site cannot be called .*hub"),
    "the name of a node": ({"node 3": SITES[0]}, "a site cannot be called .*node 3"),
}


@pytest.mark.parametrize(("sites", "message"), WRONG_LISTS.values(), ids=WRONG_LISTS.keys())
def test_sites_are_a_list_or_have_names(sites: Any, message: str) -> None:
    refused(federated(2), sites, message)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", KINDS)
def test_sites_with_other_columns_are_refused(first: str, kind: str) -> None:
    fewer = {"dense": SITES[1][:, :5], "sparse": sp.csr_array(SITES[1][:, :5]), "blocks": DenseRows(SITES[1][:, :5])}
    columns = dict(zip(COLUMNS[:5], SITES[1].T, strict=False))
    fewer |= {"pandas": pd.DataFrame(columns), "polars": pl.DataFrame(columns), "pyarrow": pa.table(columns)}
    both_ways([stored(SITES[0], first), fewer[kind], SITES[2]], "column|feature", site="site 1")


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow", "pyarrow batch"])
def test_columns_must_have_the_same_names_in_the_same_order(kind: str) -> None:
    def named(names: list[str]) -> Any:
        columns = dict(zip(names, SITES[1].T, strict=True))
        match kind:
            case "pandas":
                return pd.DataFrame(columns)
            case "polars":
                return pl.DataFrame(columns)
            case "pyarrow":
                return pa.table(columns)
            case _:
                return pa.RecordBatch.from_pydict(columns)

    first, bare = named(COLUMNS), SITES[0]
    turned = named(COLUMNS[::-1])
    for sites, at in (([first, turned], 1), ([bare, first, bare, turned], 3)):
        both_ways(sites, "the columns are those of site [01] in another order", site=f"site {at}")
    other = named([*COLUMNS[:-1], "dose"])
    both_ways([first, other], r"Missing: \['c11'\]. Unexpected: \['dose'\]", site="site 1")
    both_ways({"Oslo": first, "Bergen": other}, "the columns are not those of Oslo", site="Bergen")


class Failing:
    """Rows that can be read `times` over and no more."""

    sparse = False

    def __init__(self, error: Exception, times: int) -> None:
        self.error, self.times = error, times
        self.shape = SITES[1].shape

    def blocks(self, size: int) -> Iterator[Block]:
        """The rows, or the error halfway."""
        self.times -= 1
        yield Block(SITES[1][:5])
        if self.times < 0:
            raise self.error
        yield Block(SITES[1][5:])


@pytest.mark.parametrize("times", [0, 1, 3])
@pytest.mark.parametrize("topology", ["star", "tree"])
@pytest.mark.parametrize("error", [ValueError("line 12 is cut short"), OSError("the disk is gone")])
def test_rows_that_break_later_name_the_site(error: Exception, topology: Any, times: int) -> None:
    for pca in (federated(1), private_federated(1, method="power"), private_federated(1, method="power", trust="site")):
        pca.topology, pca.fanout, pca.oversample = topology, 2, 0
        with pytest.raises(type(error), match=f"site 1: {error}"):
            pca.fit([SITES[0], Failing(error, times), SITES[2]])
        assert not hasattr(pca, "components_")


def test_a_broken_site_is_left_out_where_a_quorum_allows() -> None:
    """As one that does not answer: the others have paid."""
    broken = Failing(OSError("the disk is gone"), 0)
    pca = private_federated(1, quorum=2, trust="site").fit([SITES[0], broken, SITES[2]])
    assert pca.sites_ == ("site 0", "site 2")


@pytest.mark.parametrize("kind", KINDS)
def test_one_column_and_too_few_rows_are_refused(kind: str) -> None:
    with_one = {"dense": SITES[0][:, :1], "sparse": sp.csr_array(SITES[0][:, :1]), "blocks": DenseRows(SITES[0][:, :1])}
    columns = {"age": SITES[0][:, 0]}
    with_one |= {"pandas": pd.DataFrame(columns), "polars": pl.DataFrame(columns), "pyarrow": pa.table(columns)}
    refused(federated(1), [with_one[kind]] * 2, "1 column, and principal components need at least 2")
    few = [stored(ROWS[:2], kind), stored(ROWS[2:3], kind), stored(ROWS[:0], kind)]
    refused(federated(4), few, "all sites together have fewer rows than n_components=4")
    assert federated(3).fit(few).n_components_ == 3
    refused(federated(1), [stored(ROWS[:0], kind)] * 2, "the sites have 0 rows together")
    refused(federated(1), [stored(ROWS[:1], kind), stored(ROWS[:0], kind)], "the sites have 1 rows together")


def test_how_many_rows_there_are_is_no_reason_to_refuse_a_private_fit() -> None:
    """Under add-remove that would tell the number of people."""
    for count in (0, 1, 2):
        for trust in ("hub", "site"):
            pca = private_federated(3, trust=trust).fit([ROWS[:count], ROWS[:0]])
            assert pca.components_.shape == (3, DIM)


def test_identifiers_are_a_column() -> None:
    """One list of identifiers cannot be that of every site."""
    refused(federated(2, person=np.arange(20)), SITES, "person must be the name of a column|column name")
    refused(federated(2, person=list(range(20))), [stored(rows, "pandas") for rows in SITES], "column")


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow"])
def test_the_person_column_is_at_every_site_and_names_everybody(kind: str) -> None:
    def with_who(rows: Array, who: list[Any]) -> Any:
        columns = dict(zip(COLUMNS, rows.T, strict=True)) | {"who": who}
        return {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table}[kind](columns)

    good = with_who(SITES[0], list(range(20)))
    both_ways([good, stored(SITES[1], kind)], "person names the column 'who'", site="site 1", person="who")
    both_ways([good, SITES[1]], "person names the column 'who'", site="site 1", person="who")
    missing = with_who(SITES[1], [None, *["x" + SECRET] * 19])
    both_ways([good, missing], "missing", site="site 1", person="who")


FAILURES: dict[str, Any] = {
    "other columns": [ROWS[:, :5], ROWS[:, :4]],
    "other names, and NaN": [pd.DataFrame(spoiled(np.nan), columns=[f"d{i}" for i in range(DIM)])],
    "fewer columns, and NaN": [SITES[0][:, :6], spoiled(np.nan)[:, :6]],
    "no sites": [],
    "breaks later": [SITES[0], Failing(ValueError("cut short"), 1)],
    "blocks of other columns": [DenseRows(ROWS[:, :5]), DenseRows(ROWS[:, :4])],
    "too few rows": [ROWS[:1, :7]],
}


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("sites", FAILURES.values(), ids=FAILURES.keys())
def test_a_failed_fit_leaves_the_one_before_usable(sites: Any, named: bool) -> None:
    good = [stored(rows, "pandas") for rows in SITES] if named else SITES
    pca = federated(2).fit(good)
    before = pca.transform(good[0])
    kept = {name: value for name, value in vars(pca).items() if name.endswith("_")}
    with pytest.raises(ValueError):
        pca.fit(sites)
    assert np.array_equal(pca.transform(good[0]), before)
    for name, value in kept.items():
        assert getattr(pca, name) is value or np.array_equal(getattr(pca, name), value), name


@pytest.mark.parametrize("sites", FAILURES.values(), ids=FAILURES.keys())
def test_after_a_failed_first_fit_nothing_is_fitted(sites: Any) -> None:
    pca = federated(2)
    with pytest.raises(ValueError):
        pca.fit(sites)
    for verb in (pca.transform, pca.scores, pca.inverse_transform, pca.save):
        with pytest.raises(NotFittedError):
            verb(ROWS)


def test_scores_need_the_columns_of_the_fit() -> None:
    pca = federated(2).fit(SITES)
    with pytest.raises(ValueError, match="5 features, but FederatedPCA is expecting 12"):
        pca.scores(ROWS[:, :5])
    named = federated(2).fit([stored(rows, "pandas") for rows in SITES])
    backwards = named.scores(stored(ROWS, "pandas")[COLUMNS[::-1]])
    assert np.array_equal(backwards, named.scores(stored(ROWS, "pandas")))
    with pytest.raises(ValueError, match="lacks columns of the model"):
        named.scores(stored(ROWS, "pandas")[COLUMNS[1:]])
    with pytest.raises(ValueError, match=r"scores must have shape \(n, 2\)"):
        pca.inverse_transform(np.zeros((3, 3)))


def test_numbers_too_large_to_square_are_refused_without_being_quoted() -> None:
    huge = [rows * 1e170 for rows in SITES]
    for method in ("krylov", "power", "fedpower", "covariance", "merge", "uda", "wda", "dr-svd"):
        with np.errstate(all="ignore"), pytest.raises(ValueError, match=r"too large|not finite") as caught:
            federated(2, method=method).fit(huge)
        assert "e+17" not in str(caught.value)
