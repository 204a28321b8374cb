"""Functions that take declared parameters: one declaration is their signature, their checks and their documentation."""

import inspect
import pickle
import warnings
from typing import Any

import numpy as np
import pytest

from eigenveil import Ledger
from eigenveil.errors import ParameterError, ParameterWarning
from eigenveil.estimators import find_bounds, find_column_bounds, released_spectrum
from eigenveil.params.declarations.private import BoundsParams, ColumnBoundsParams, SpectrumParams
from eigenveil.params.declarations.recommend import InteractionsParams, RecommenderParams
from eigenveil.params.declare import declared, in_options
from eigenveil.recommend import read_interactions

PRIVATE: dict[Any, type] = {
    find_bounds: BoundsParams,
    find_column_bounds: ColumnBoundsParams,
    released_spectrum: SpectrumParams,
}
ROWS = np.random.default_rng(0).standard_normal((500, 3))


@pytest.mark.parametrize("function", [*PRIVATE, read_interactions], ids=lambda one: one.__name__)
def test_a_signature_is_what_is_declared(function: Any) -> None:
    kind = PRIVATE.get(function, InteractionsParams)
    _, *rest = inspect.signature(function).parameters.values()
    shown = {one.name: one for one in rest}
    known = declared(kind)
    # A shared ledger is of a class that is slow to import, and so declared with the functions.
    assert set(shown) == set(known) | ({"ledger"} if function in PRIVATE else set())
    for name, one in known.items():
        assert shown[name].kind is inspect.Parameter.KEYWORD_ONLY
        required = shown[name].default is inspect.Parameter.empty
        assert required == (name == "epsilon")
        assert required or shown[name].default == one.default


@pytest.mark.parametrize("function", PRIVATE, ids=lambda one: one.__name__)
def test_epsilon_must_be_given_by_name_and_nothing_is_charged_without(function: Any) -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    with pytest.raises(
        TypeError, match=rf"{function.__name__}\(\) missing 1 required keyword-only argument: 'epsilon'"
    ):
        function(ROWS, delta=1e-6, ledger=ledger)
    with pytest.raises(TypeError, match=rf"{function.__name__}\(\) takes 1 positional argument but 2"):
        function(ROWS, 1.0, delta=1e-6, ledger=ledger)
    with pytest.raises(TypeError, match="unexpected keyword argument 'quantil'"):
        function(ROWS, epsilon=1.0, quantil=0.9, ledger=ledger)
    assert ledger.charges == ()


def test_rows_may_be_named() -> None:
    named, plain = find_bounds(X=ROWS, epsilon=None), find_bounds(ROWS, epsilon=None)
    assert named.row_bound == plain.row_bound


def test_warnings_are_said_in_the_words_of_each_surface_too() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn(ParameterWarning("{epsilon=}; or {on_noise=warn}", epsilon=3), stacklevel=1)
    found = caught[0].message
    assert isinstance(found, UserWarning)
    for one in (found, pickle.loads(pickle.dumps(found))):  # noqa: S301 - our own warning
        assert isinstance(one, ParameterWarning)
        assert str(one) == "epsilon=3; or on_noise='warn'"
        assert one.said(in_options(RecommenderParams)) == "--epsilon 3; or --even-if-noise"


@pytest.mark.parametrize("function", PRIVATE, ids=lambda one: one.__name__)
def test_refusals_name_the_parameter(function: Any) -> None:
    with pytest.raises(ParameterError, match="neighbours must be one of") as caught:
        function(ROWS, epsilon=1.0, delta=1e-6, neighbours="entry")
    assert caught.value.said(in_options(PRIVATE[function])).startswith("--neighbours must be one of")
