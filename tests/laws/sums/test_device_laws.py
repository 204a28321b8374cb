"""Sums over rows on a device are those over rows in memory, to the last bit. CI has no GPU: there the device is a library that
follows the array API to the letter, with the processor behind it. With torch installed its tensors are tried too, and on a
machine with a GPU these laws run there.
"""

import importlib.util
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings

from eigenveil import FederatedPCA, PrivatePCA, rows_on_device
from eigenveil.core.domain import Domain
from eigenveil.core.unit import Neighbours
from eigenveil.data.engines.gpu import DeviceRows
from eigenveil.data.engines.gpu.fused import row_sums
from eigenveil.data.engines.gpu.rows import words_for_the_device
from eigenveil.errors import EngineLost, ParameterError
from eigenveil.linalg import Array
from eigenveil.linalg.blas import orthonormal
from eigenveil.privacy.sums import bounded_gram_times
from laws.sums.test_elsewhere_laws import PEOPLE, PRIVATE, REMOTE, ROWS
from laws.sums.test_exact_sums_laws import SUMS, Table, alike, tables

ADD = Neighbours.ADD_REMOVE


def libraries() -> list[str]:
    """The devices that this machine has."""
    found = ["strict"]
    if importlib.util.find_spec("torch") is not None:
        import torch

        found += ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    return found


DEVICES = pytest.mark.parametrize("device", libraries())


def there(values: Array, device: str, weights: Any = None, *, gaps: bool = False) -> DeviceRows:
    """The rows on a device."""
    if device == "strict":
        import array_api_strict

        found = rows_on_device(array_api_strict.asarray(np.ascontiguousarray(values)), gaps=gaps)
    else:
        import torch

        found = rows_on_device(torch.tensor(np.ascontiguousarray(values), device=device), gaps=gaps)
    return found if weights is None else replace(found, weights=weights)


@DEVICES
@pytest.mark.parametrize("name", REMOTE)
@settings(max_examples=25)
@given(case=tables())
def test_a_device_gives_the_bits_of_memory(device: str, name: str, case: tuple[Table, Domain]) -> None:
    table, domain = case
    assume(not table.sparse)
    assert alike(SUMS[name](table.rows(), domain), SUMS[name](there(table.values, device, table.weights), domain))


@DEVICES
@pytest.mark.parametrize("dim", [1, 7, 8, 129, 300, 520, 1000, 2049])
def test_norms_add_up_in_the_order_of_numpy(device: str, dim: int) -> None:
    rng = np.random.default_rng(dim)
    values = np.square(rng.standard_normal((40, dim)) * np.exp(3 * rng.standard_normal((40, dim))))
    rows = there(values, device)
    found = row_sums(rows.xp, rows.values)
    assert alike(np.add.reduce(values, axis=1), np.asarray(found.cpu() if hasattr(found, "cpu") else found))


@DEVICES
@pytest.mark.parametrize("dim", [5, 130, 700])
@pytest.mark.parametrize("width", [1, 20, 70])
@pytest.mark.parametrize("moved", [False, True])
def test_products_of_wide_rows_have_the_bits_of_memory(device: str, dim: int, width: int, moved: bool) -> None:
    """Rows of 1e200 too, of which only a direction is left, and more than a group of rows and a strip of the basis."""
    rng = np.random.default_rng(7)
    width = min(width, dim)
    rows = rng.standard_normal((1500, dim)) * 3
    rows[5], rows[6, 0], rows[7] = 1e200, -1e250, 0.0
    around: dict[str, Any] = {}
    if moved:
        around = {"center": rng.standard_normal(dim), "scale": rng.uniform(0.5, 2.0, dim)}
        around |= {"low": np.full(dim, -5.0), "high": np.full(dim, 1e300)}
    domain = Domain(dim=dim, radius=10.0, **around)
    basis = orthonormal(rng.standard_normal((dim, width)))
    weights = rng.choice([1.0, 0.5, 0.25], 1500)
    from eigenveil.data.rows import DenseRows, WeightedRows

    memory = bounded_gram_times(WeightedRows(DenseRows(rows), weights), basis=basis, domain=domain, neighbours=ADD)
    found = bounded_gram_times(there(rows, device, weights), basis=basis, domain=domain, neighbours=ADD)
    assert alike(memory.value, found.value)


@DEVICES
@pytest.mark.parametrize(
    "settings_",
    [{}, {"row_bound": 30.0}, {"scale": "private"}, {"row_bound": 30.0, "method": "power"}, {"person": PEOPLE}],
    ids=str,
)
def test_a_whole_fit_on_a_device_is_the_fit_in_memory(device: str, settings_: dict[str, Any]) -> None:
    fits = [PrivatePCA(2, **PRIVATE, **settings_).fit(rows) for rows in (ROWS, there(ROWS, device))]
    assert alike(fits[0].components_, fits[1].components_) and alike(fits[0].mean_, fits[1].mean_)
    assert str(fits[0].ledger_) == str(fits[1].ledger_)
    assert alike(fits[0].transform(ROWS), fits[1].transform(there(ROWS, device)))


TORN = np.where(np.random.default_rng(3).random(ROWS.shape) < 0.2, np.nan, ROWS)
RULES: tuple[dict[str, Any], ...] = (
    {"missing": "counts"},
    {"missing": "groups", "missing_groups": [[0, 3], [1, 2]]},
    {"missing": "drop"},
    {"missing": "fill", "missing_fill": 1.5},
)


@DEVICES
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["missing"])
def test_missing_values_on_a_device_are_those_in_memory(device: str, rule: dict[str, Any]) -> None:
    asked: tuple[dict[str, Any], ...] = ({}, {"row_bound": 30.0, "scale": 2.0, "column_bounds": (-40.0, 50.0)})
    for more in (*asked, {"person": PEOPLE}):
        fits = [PrivatePCA(2, **PRIVATE, **rule, **more).fit(rows) for rows in (TORN, there(TORN, device, gaps=True))]
        assert alike(fits[0].components_, fits[1].components_) and alike(fits[0].mean_, fits[1].mean_)
    assert alike(fits[0].transform(TORN), fits[1].transform(there(TORN, device, gaps=True)))
    # Both say whether values may be missing, and infinity never is one.
    with pytest.raises(ParameterError, match="contradict"):
        PrivatePCA(2, **PRIVATE, **rule).fit(there(ROWS, device))
    with pytest.raises(ParameterError, match="contradict"):
        PrivatePCA(2, **PRIVATE).fit(there(TORN, device, gaps=True))
    with pytest.raises(ParameterError, match="infinity"):
        there(np.where(np.isnan(TORN), np.inf, TORN), device, gaps=True)


@DEVICES
def test_sites_may_have_their_rows_on_a_device(device: str) -> None:
    halves = ROWS[:1500], ROWS[1500:]
    fits = [
        FederatedPCA(2, trust="site", row_bound=30.0, **PRIVATE).fit(sites)
        for sites in (list(halves), [there(halves[0], device), halves[1]])
    ]
    assert alike(fits[0].components_, fits[1].components_)


@DEVICES
def test_without_privacy_a_device_agrees_up_to_rounding(device: str) -> None:
    methods: tuple[Any, ...] = ("covariance", "power")
    for method in methods:
        fits = [PrivatePCA(2, epsilon=None, method=method, random_state=1).fit(rows) for rows in (ROWS, there(ROWS, device))]
        np.testing.assert_allclose(np.abs(fits[0].components_), np.abs(fits[1].components_), atol=1e-6)


@DEVICES
def test_bad_rows_are_refused_without_a_value(device: str) -> None:
    bad = ROWS.copy()
    bad[3, 2] = np.nan
    with pytest.raises(ParameterError, match="NaN or infinity"):
        there(bad, device)
    with pytest.raises(ValueError, match="two dimensions"):
        there(ROWS[0], device)
    with pytest.raises(ValueError, match="real numbers"):
        there(ROWS.astype(complex), device)
    # Printing rows shows no number of them, and not how many there are.
    assert "3000" not in repr(there(ROWS, device))


def test_arrays_that_are_no_rows_are_refused_before_a_device_is_looked_for() -> None:
    for words, bad in {"two dimensions": ROWS[0], "real numbers": np.array([["a"]])}.items():
        with pytest.raises(ValueError, match=words):
            rows_on_device(bad, device="cpu")
    with pytest.raises(ValueError, match="masked array"):
        rows_on_device(np.ma.masked_greater(ROWS, 9), device="cpu")
    if "cpu" in libraries():
        import torch

        for sparse in (torch.tensor(ROWS).to_sparse(), torch.tensor(ROWS).to_sparse_csr()):
            with pytest.raises(ValueError, match="sparse tensor"):
                rows_on_device(sparse)


def test_a_device_that_is_not_there_is_named() -> None:
    if "cpu" not in libraries():
        with pytest.raises(ImportError, match=r"eigenveil\[torch\]"):
            rows_on_device(ROWS)
    else:
        with pytest.raises(ParameterError, match="nowhere"):
            rows_on_device(ROWS, device="nowhere")
    with pytest.raises(ParameterError, match="array API"):
        rows_on_device("no rows")


def test_errors_of_the_device_have_our_words() -> None:
    class OutOfMemoryError(RuntimeError):
        pass

    with pytest.raises(EngineLost, match="too little free memory") as caught, words_for_the_device():
        raise OutOfMemoryError("tried to allocate 3.14 GiB for Ann Smith")
    assert "Ann" not in str(caught.value) and caught.value.__suppress_context__


@pytest.mark.skipif("cpu" not in libraries(), reason="torch is not installed")
def test_rows_in_memory_are_brought_to_the_device_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    from eigenveil.data.engines.gpu import rows as module

    monkeypatch.setattr(module, "_BLOCK_NUMBERS", 4096)
    device = libraries()[-1]
    asked: dict[str, Any] = {"row_bound": 30.0, **PRIVATE}
    for values in (ROWS, ROWS.astype(np.float32), ROWS.astype(np.int16)):
        fits = [PrivatePCA(2, **asked).fit(rows) for rows in (values, rows_on_device(values, device=device))]
        assert alike(fits[0].components_, fits[1].components_)
    bad = ROWS.copy()
    bad[2999, 0] = np.inf
    with pytest.raises(ParameterError, match="NaN or infinity"):
        PrivatePCA(2, **asked).fit(rows_on_device(bad, device=device))


@pytest.mark.skipif("cuda" not in libraries(), reason="torch sees no GPU here")
def test_rows_that_change_in_place_are_measured_again() -> None:
    import torch

    values = torch.tensor(ROWS, device="cuda")
    rows, domain, basis = rows_on_device(values), Domain(dim=6, radius=12.0), np.eye(6)[:, :2]
    products = []
    for _ in range(2):
        products.append(bounded_gram_times(rows, basis=basis, domain=domain, neighbours=ADD).value)
        fresh = rows_on_device(values.clone())
        assert alike(products[-1], bounded_gram_times(fresh, basis=basis, domain=domain, neighbours=ADD).value)
        values *= 100
    assert not alike(products[0], products[1])
