"""Tensors of torch in memory: taken as the numbers they hold, or refused with what to type."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from eigenveil import FederatedPCA, PrivatePCA, StreamingPCA, find_bounds, rows_on_device

torch = pytest.importorskip("torch", reason="torch is not installed")

ROWS = np.random.default_rng(0).standard_normal((300, 5)).astype(np.float32)
HOW: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "row_bound": 4.0, "random_state": 1}
THIN = np.where(ROWS > 0.5, ROWS, 0.0).astype(np.float32)
TAKEN: dict[str, tuple[Any, Any]] = {
    "dense": (lambda: torch.tensor(ROWS), ROWS),
    "a parameter": (lambda: torch.nn.Parameter(torch.tensor(ROWS)), ROWS),
    "a result with a gradient": (lambda: torch.tensor(ROWS, requires_grad=True) * 1.0, ROWS),
    "a turned view": (lambda: torch.tensor(ROWS.T.copy()).T, ROWS),
    "bfloat16": (lambda: torch.tensor(ROWS).bfloat16(), "bfloat16"),
    "half": (lambda: torch.tensor(ROWS).half(), ROWS.astype(np.float16)),
    "whole numbers": (lambda: torch.tensor(np.rint(ROWS * 9).astype(np.int32)), np.rint(ROWS * 9)),
    "csr": (lambda: torch.tensor(THIN).to_sparse_csr(), sp.csr_array(THIN)),
    "coo": (lambda: torch.tensor(THIN).to_sparse(), sp.csr_array(THIN)),
    "csc": (lambda: torch.tensor(THIN).to_sparse_csc(), sp.csr_array(THIN)),
    "csr with a gradient": (lambda: torch.tensor(THIN).to_sparse_csr().requires_grad_(True), sp.csr_array(THIN)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", TAKEN)
def test_a_tensor_is_the_numbers_it_holds(kind: str) -> None:
    make, rows = TAKEN[kind]
    tensor = make()
    plain = torch.tensor(ROWS).bfloat16().float().numpy() if isinstance(rows, str) else rows
    one, other = (PrivatePCA(2, **HOW).fit(given) for given in (tensor, plain))
    assert one.components_.tobytes() == other.components_.tobytes()
    for scorer in (one, one.model_):
        np.testing.assert_array_equal(scorer.transform(tensor), scorer.transform(plain))
    sites, others = (FederatedPCA(2, **HOW).fit({"a": given, "b": ROWS}) for given in (tensor, plain))
    assert sites.components_.tobytes() == others.components_.tobytes()
    assert find_bounds(tensor, epsilon=2.0, delta=1e-6, random_state=0).people > 0
    assert StreamingPCA(2, epsilon=None).partial_fit(tensor).n_samples_seen_ == 300


REFUSED: dict[str, tuple[Any, str]] = {
    "complex": (lambda: torch.tensor(ROWS).to(torch.complex64), "must hold real numbers"),
    "blocks": (lambda: torch.zeros(300, 6).to_sparse_bsr((2, 2)), r"Pass X\.to_dense\(\)"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", REFUSED)
def test_other_tensors_are_refused_in_words(kind: str) -> None:
    make, words = REFUSED[kind]
    fitted = PrivatePCA(2, **HOW).fit(ROWS)
    for act in (PrivatePCA(2, **HOW).fit, fitted.transform, fitted.model_.transform):
        with pytest.raises(ValueError, match=words):
            act(make())


@pytest.mark.filterwarnings("ignore")
def test_on_a_device_too() -> None:
    for tensor in (torch.tensor(ROWS, requires_grad=True), torch.tensor(ROWS).bfloat16()):
        there = PrivatePCA(2, **HOW).fit(rows_on_device(tensor))
        here = PrivatePCA(2, **HOW).fit(tensor.detach().float().numpy())
        assert there.components_.tobytes() == here.components_.tobytes()
    with pytest.raises(ValueError, match=r"Pass X\.to_dense\(\)"):
        rows_on_device(torch.tensor(THIN).to_sparse_csr())
