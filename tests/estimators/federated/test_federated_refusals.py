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


@pytest.mark.parametrize("method", ["krylov", "covariance", "merge"])
def test_one_column_is_not_spread_over_all_of_them(method: str) -> None:
    """A table without text for names, after an array: nothing else than its width tells that it is another table."""
    both_ways([SITES[0], pd.DataFrame(SITES[1][:, :1])], "column|feature", site="site 1", method=method)


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


SPOILT: dict[str, tuple[Any, str]] = {
    "NaN": (spoiled(np.nan), "NaN"),
    "inf": (spoiled(np.inf), "infinity"),
    "minus inf, float32": (spoiled(-np.inf).astype(np.float32), "infinity"),
    "sparse NaN": (sp.csr_array(spoiled(np.nan)), "NaN"),
    "pandas NaN": (stored(spoiled(np.nan), "pandas"), "column 'c4' has missing values"),
    "polars NaN": (stored(spoiled(np.nan), "polars"), "column 'c4' has missing values"),
    "arrow inf": (stored(spoiled(np.inf), "pyarrow"), "column 'c4' has infinite values"),
    "arrow null": (pa.table(dict.fromkeys(COLUMNS, pa.array([1.0, None]))), "missing values"),
    "blocks NaN": (DenseRows(spoiled(np.nan)), "NaN"),
    "text": (np.full((4, DIM), "x" + SECRET), "strings|real numbers"),
    "text objects": (np.full((4, DIM), "x" + SECRET, dtype=object), "real numbers"),
    "pandas text": (pd.DataFrame(dict.fromkeys(COLUMNS, ["x" + SECRET] * 2)), r"these do not: .*\(text\)"),
    "arrow text": (pa.table(dict.fromkeys(COLUMNS, ["x" + SECRET] * 2)), r"these do not: .*\(text\)"),
    "complex": (SITES[1] + float(SECRET) * 1j, "Complex data not supported"),
    "complex blocks": (DenseRows(SITES[1] * 1j), "real numbers"),
    "one dimension": (np.full(DIM, float(SECRET)), "Expected 2D array"),
    "a list of numbers": ([float(SECRET)] * DIM, "Expected 2D array"),
    "a number": (float(SECRET), "Expected 2D array"),
    "three dimensions": (SITES[1][None], "dim 3"),
    "masked": (np.ma.masked_array(SITES[1], mask=SITES[1] > 0), "masked"),
    "nothing": (None, "Expected 2D array|array-like"),
}


@pytest.mark.parametrize(("table", "message"), SPOILT.values(), ids=SPOILT.keys())
def test_a_site_that_cannot_be_read_is_named(table: Any, message: str) -> None:
    both_ways([SITES[0], table, SITES[2]], message, site="site 1")
    refused(federated(2, trust="site"), {"Oslo": table, "Bergen": SITES[0]}, message, site="Oslo")


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


CHOICES: dict[str, tuple[dict[str, Any], str]] = {
    "no components": ({"n_components": 0}, "n_components must be an integer of at least 1, got 0"),
    "half a component": ({"n_components": 0.5}, "n_components must be an integer of at least 1, got 0.5"),
    "all components": ({"n_components": None}, "n_components must be an integer of at least 1, got None"),
    "more components than columns": ({"n_components": 13}, "n_components=13 must be at most the number of columns, 12"),
    "unknown method": ({"method": "lanczos"}, "method must be one of auto, krylov, .* got 'lanczos'"),
    "unknown trust": ({"trust": "nobody"}, "trust must be one of hub, site, both, masked, got 'nobody'"),
    "unknown topology": ({"topology": "ring"}, "topology must be one of star, tree, got 'ring'"),
    "unknown align": ({"align": "rotate"}, "align must be one of procrustes, sign, none, got 'rotate'"),
    "no align": ({"align": None}, "align must be one of procrustes, sign, none, got None"),
    "unknown neighbours": ({"neighbours": "entry"}, "neighbours must be one of add-remove, zero-out, replace-one"),
    "fanout one": ({"fanout": 1}, "fanout must be an integer of at least 2, got 1"),
    "no fanout": ({"fanout": None}, "fanout must be an integer of at least 2, got None"),
    "fanout a fraction": ({"fanout": 2.5}, "fanout must be an integer of at least 2, got 2.5"),
    "no rounds": ({"rounds": 0, "method": "power"}, "rounds must be an integer from 1 to .*, got 0"),
    "rounds a fraction": ({"rounds": 1.5, "method": "power"}, "rounds must be an integer from 1 to .*, got 1.5"),
    "rounds a truth": ({"rounds": True, "method": "power"}, "rounds must be an integer from 1 to .*, got True"),
    "tolerance one": ({"tolerance": 1.0, "method": "power"}, r"tolerance must be in \[0, 1\), got 1.0"),
    "tolerance negative": ({"tolerance": -0.1, "method": "power"}, r"tolerance must be in \[0, 1\), got -0.1"),
    "tolerance NaN": ({"tolerance": np.nan, "method": "power"}, "tolerance must be a number, got nan"),
    "tolerance text": ({"tolerance": "small", "method": "power"}, "tolerance must be a number, got 'small'"),
    "oversample negative": (
        {"oversample": -1, "method": "power"},
        "oversample must be an integer of at least 0, got -1",
    ),
    "oversample of a matrix": (
        {"oversample": 3, "method": "covariance"},
        "oversample has no meaning for method='covariance'",
    ),
    "no local steps": ({"local_steps": 0, "method": "fedpower"}, "local_steps must be an integer of at least 1"),
    "local steps a fraction": (
        {"local_steps": 1.5, "method": "fedpower"},
        "local_steps must be an integer of at least 1",
    ),
    "local steps None": ({"local_steps": None, "method": "fedpower"}, "local_steps must be an integer of at least 1"),
    "empty local steps": ({"local_steps": [], "method": "fedpower"}, "local_steps must be an integer of at least 1"),
    "local steps with a zero": (
        {"local_steps": [2, 0], "method": "fedpower"},
        "local_steps must be an integer of at least 1",
    ),
    "decay of nothing": (
        {"local_steps": ("decay",), "method": "fedpower"},
        "local_steps must be an integer of at least 1",
    ),
    "decay of two": (
        {"local_steps": ("decay", 3, 4), "method": "fedpower"},
        "local_steps must be an integer of at least 1",
    ),
    "decay of text": (
        {"local_steps": ("decay", "4"), "method": "fedpower"},
        "local_steps must be an integer of at least 1",
    ),
    "growth": ({"local_steps": ("growth", 4), "method": "fedpower"}, "local_steps must be an integer of at least 1"),
    "local steps of power": ({"local_steps": 2, "method": "power"}, "local_steps is for method='fedpower'"),
    "local steps of a matrix": (
        {"local_steps": [2, 1], "method": "covariance"},
        "local_steps is for method='fedpower'",
    ),
    "unknown draws": ({"participation": "half", "method": "power"}, 'participation must be "full", '),
    "unknown scheme": ({"participation": ("poisson", 2), "method": "power"}, 'participation must be "full", '),
    "no number of draws": (
        {"participation": ("with-replacement",), "method": "power"},
        'participation must be "full", ',
    ),
    "no draws": (
        {"participation": ("without-replacement", 0), "method": "power"},
        "participation must be a draw of K sites, where K is an integer of at least 1",
    ),
    "more than there are": (
        {"participation": ("without-replacement", 4), "method": "power"},
        "from 1 to 3 of the 3 sites",
    ),
    "half a draw": (
        {"participation": ("without-replacement", 1.5), "method": "power"},
        "participation must be a draw of K sites, where K is an integer of at least 1",
    ),
    "draws for krylov": (
        {"participation": ("without-replacement", 2), "method": "krylov"},
        "same sites in every round",
    ),
    "draws for a matrix": (
        {"participation": ("without-replacement", 2), "method": "covariance"},
        "participation is for",
    ),
    "draws for a merge": (
        {"participation": ("without-replacement", 2), "method": "merge"},
        "participation is for power",
    ),
    "draws in a tree": (
        {"participation": ("without-replacement", 2), "method": "power", "topology": "tree"},
        "participation needs topology='star'",
    ),
    "uda in a tree": ({"method": "uda", "topology": "tree"}, "method='uda' averages at the hub"),
    "wda in a tree": ({"method": "wda", "topology": "tree"}, "method='wda' averages at the hub"),
    "rounds of a matrix": ({"method": "covariance", "rounds": 2}, "method='covariance' takes one"),
    "rounds of a merge": ({"method": "merge", "rounds": 1}, "method='merge' takes one"),
    "rounds of uda": ({"method": "uda", "rounds": 2}, "method='uda' takes one"),
    "tolerance of wda": ({"method": "wda", "tolerance": 0.1}, "tolerance is for krylov, power and fedpower"),
    "no quorum": ({"quorum": 0}, "quorum must be a whole number from 1, .* or a share .* got 0"),
    "quorum of more": ({"quorum": 4}, "quorum must be from 1 to the 3 sites, got 4"),
    "share of none": ({"quorum": 0.0}, r"quorum must be .* or a share in \(0, 1\], .* got 0.0"),
    "share of more": ({"quorum": 1.5}, r"quorum must be .* or a share in \(0, 1\], .* got 1.5"),
    "share NaN": ({"quorum": np.nan}, "quorum must be a whole number from 1, .* or a share .* got nan"),
    "quorum text": ({"quorum": "all"}, "quorum must be a whole number from 1, .* or a share .* got 'all'"),
    "quorum a truth": ({"quorum": True}, "quorum must be a whole number from 1, .* or a share .* got True"),
    "no person sites": ({"person_sites": 0}, "person_sites must be an integer of at least 1, got 0"),
    "person sites beyond": ({"person_sites": 4}, "person_sites must be an integer from 1 to 3, got 4"),
    "person sites None": ({"person_sites": None}, "person_sites must be an integer of at least 1, got None"),
    "person sites a fraction": ({"person_sites": 1.5}, "person_sites must be an integer of at least 1, got 1.5"),
    "faults a number": ({"faults": 0.1}, "faults must be an eigenveil.runtimes.Faults"),
    "center False": (
        {"center": False},
        "center must be numbers, one per column, or say center='private' or center=None, got False",
    ),
    "center True": (
        {"center": True},
        "center must be numbers, one per column, or say center='private' or center=None, got True",
    ),
    "center by name": ({"center": "mean"}, "center must be numbers, one per column, .* got 'mean'"),
    "center of another length": ({"center": np.zeros(5)}, "center must be 12 numbers, .* got shape"),
    "center NaN": ({"center": np.full(DIM, np.nan)}, "center must be finite"),
    "unknown person": ({"person": "who"}, "site 0: person names the column 'who'"),
    "seed negative": ({"random_state": -1}, "random_state must not be negative"),
    "seed text": ({"random_state": "0"}, "random_state must be None or an integer, got '0'"),
    "bound zero": ({"row_bound": 0.0}, "row_bound must be positive"),
    "scale zero": ({"scale": 0.0}, "every scale must be positive"),
    "box upside down": ({"column_bounds": (1.0, -1.0)}, "every low must be at most its high"),
}


@pytest.mark.parametrize(("choices", "message"), CHOICES.values(), ids=CHOICES.keys())
def test_choices_that_make_no_sense_are_refused(choices: dict[str, Any], message: str) -> None:
    refused(federated(**choices), SITES, message)
    refused(private_federated(**choices), SITES, message)


PRIVATE: dict[str, tuple[dict[str, Any], str]] = {
    "no delta": ({"delta": None}, "delta is required for a private fit"),
    "delta one": ({"delta": 1.0}, r"delta must be in \(0, 1\), got 1.0"),
    "epsilon zero": ({"epsilon": 0.0}, "epsilon must be positive"),
    "epsilon infinite": ({"epsilon": np.inf}, "epsilon must be finite; epsilon=None asks for an exact answer"),
    "epsilon NaN": ({"epsilon": np.nan}, "epsilon must be a number"),
    "epsilon text": ({"epsilon": "1"}, "epsilon must be a number, got '1'"),
    "no bound": ({"row_bound": None}, r"row_bound \(or column_bounds\) is required"),
    "a pair for a hub": ({"epsilon": (1.0, 1.0)}, "epsilon must be a number with trust='hub'"),
    "a pair for sites": ({"epsilon": (1.0, 1.0), "trust": "site"}, "epsilon must be a number with trust='site'"),
    "no pair for both": ({"trust": "both"}, "epsilon must be a pair with trust='both'"),
    "three for both": (
        {"trust": "both", "epsilon": (1.0, 1.0, 1.0)},
        "epsilon must be a number, or a pair of them: against the hub",
    ),
    "text for both": ({"trust": "both", "epsilon": "12"}, "epsilon must be a number, got '12'"),
    "three deltas": (
        {"trust": "both", "epsilon": (1.0, 1.0), "delta": (1e-6,) * 3},
        "delta must be a number, or a pair of them: against the hub",
    ),
    "both without delta": ({"trust": "both", "epsilon": (1.0, 1.0), "delta": None}, "delta is required"),
    "half of both": ({"trust": "both", "epsilon": (None, 1.0)}, "epsilon must be a pair|epsilon must be a number"),
    "the other half": ({"trust": "both", "epsilon": (1.0, None)}, "epsilon must be a pair|epsilon must be a number"),
    "neither of both": ({"trust": "both", "epsilon": (None, None)}, "epsilon must be a pair|epsilon must be a number"),
    "uda in both places": ({"trust": "both", "epsilon": (1.0, 1.0), "method": "uda"}, "adds noise at the sites only"),
    "merge in both places": (
        {"trust": "both", "epsilon": (1.0, 1.0), "method": "merge"},
        "adds noise at the sites only",
    ),
    "dr-svd": ({"method": "dr-svd"}, "method='dr-svd' has no private form"),
    "dr-svd at sites": ({"method": "dr-svd", "trust": "site"}, "method='dr-svd' has no private form"),
    "local steps of a hub": ({"method": "fedpower", "local_steps": 2}, "noise at the hub does not cover"),
    "some local steps of a hub": ({"method": "fedpower", "local_steps": [1, 2]}, "noise at the hub does not cover"),
    "decaying steps of a hub": ({"method": "fedpower", "local_steps": ("decay", 3)}, "trust='site'"),
    "local steps in both places": (
        {"method": "fedpower", "local_steps": 2, "trust": "both", "epsilon": (1.0, 1.0)},
        "local_steps above 1 with epsilon and trust='both'",
    ),
    "draws by size": (
        {"method": "power", "participation": ("with-replacement", 2)},
        "draws sites by size, which neighbours='add-remove' protects",
    ),
    "draws by size at sites": (
        {"method": "fedpower", "participation": ("with-replacement", 2), "trust": "site"},
        "draws sites by size, which neighbours='add-remove' protects",
    ),
    "published power": (
        {"calibration": "paper", "method": "power", "center": None},
        "calibration='paper' is FedPower's",
    ),
    "published covariance": (
        {"calibration": "paper", "method": "covariance", "center": None},
        "calibration='paper' is",
    ),
    "published merge": (
        {"calibration": "paper", "method": "merge", "center": None},
        "calibration='paper' is FedPower's",
    ),
    "published with a mean": ({"calibration": "paper"}, "calibration='paper' has no private mean"),
    "published with any mean": (
        {"calibration": "paper", "center": "private"},
        "calibration='paper' has no private mean",
    ),
    "unknown calibration": ({"calibration": "loose"}, "calibration must be one of exact, paper, got 'loose'"),
    "published without epsilon": ({"calibration": "paper", "epsilon": None}, "calibration='paper' needs an epsilon"),
    "unknown calibration without epsilon": ({"calibration": "loose", "epsilon": None}, "calibration must be one of"),
}


@pytest.mark.parametrize(("choices", "message"), PRIVATE.values(), ids=PRIVATE.keys())
def test_guarantees_that_cannot_be_kept_are_refused(choices: dict[str, Any], message: str) -> None:
    refused(private_federated(**choices), SITES, message)


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


def test_one_column_is_refused_with_privacy_too() -> None:
    refused(private_federated(1), [rows[:, :1] for rows in SITES], "1 column, and principal components need at least 2")


def test_how_many_rows_there_are_is_no_reason_to_refuse_a_private_fit() -> None:
    """Under add-remove that would tell the number of people."""
    for count in (0, 1, 2):
        for trust in ("hub", "site"):
            pca = private_federated(3, trust=trust).fit([ROWS[:count], ROWS[:0]])
            assert pca.components_.shape == (3, DIM)


@pytest.mark.parametrize("trust", ["hub", "site"])
def test_published_noise_needs_rows_at_every_site(trust: Any) -> None:
    """Its scale is divided by the smallest size."""
    pca = private_federated(trust=trust, calibration="paper", center=None)
    refused(pca, [*SITES, ROWS[:0]], "rows")


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
