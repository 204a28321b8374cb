"""Checks of arguments and rows at the public edge. No message shows a value of the data."""

import math
import numbers
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, final

import numpy as np

from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Charge, Reserve, Slot
from eigenveil.core.rows import Rows, ignore_float_errors, require_real
from eigenveil.core.unit import PrivacyUnit
from eigenveil.data.columns import require_entries
from eigenveil.data.frames import is_arrow_like
from eigenveil.data.rows import FILL_PUBLICLY, NamedRows
from eigenveil.errors import ParameterError, WeakGuaranteeWarning, require, require_param
from eigenveil.ledger import Ledger
from eigenveil.params.declarations.groups import HERE
from eigenveil.params.declare import param, parameters, redeclare
from eigenveil.params.values import instance_of
from eigenveil.privacy.facts import weak_words
from eigenveil.privacy.guarantee import Guarantee

if TYPE_CHECKING:
    from eigenveil.protocols.masked.terms import MaskedTerms

__all__ = [
    "NO_ACCOUNT",
    "PartiesLedger",
    "SharedLedger",
    "WholeCharge",
    "budget_of",
    "center_of",
    "checked_array",
    "covariance_for",
    "is_real",
    "learn_columns",
    "rank_and_fraction",
    "rank_of",
    "require_integer",
    "seed_of",
    "simulated_network",
    "warn_if_weak",
    "with_names",
]

# Messages of scikit-learn and numpy that continue to quote the data, and what to say instead.
_QUOTING = {
    "Complex data not supported": "X must hold real numbers",
    "could not convert string to float": "X must hold real numbers",
    "setting an array element with a sequence": "X must have one number in each entry, and rows of one length",
    "Expected 2D array": "X must have two dimensions, rows and columns. Reshape your data",
}
_MISSING = "Input X contains NaN"
_NOT_FINITE = ("contains NaN", "contains infinity")
NO_ACCOUNT = "A ledger cannot keep account of a release without privacy: leave {ledger} out, or give {epsilon}"


@parameters(panel="Privacy")
class SharedLedger:
    """The ledger that several fits or releases about the same people share."""

    ledger: Ledger | None = param(
        "Shared by several fits on the same people, so that their costs add up against one budget.",
        default=None,
        check=instance_of(Ledger, "an eigenveil.Ledger"),
        applies_when="epsilon",
        otherwise_hint=NO_ACCOUNT,
        surfaces=HERE,
    )


@parameters(panel="Privacy")
class PartiesLedger:
    """The ledger of the people whose rows several parties have, for fits that run all parties in one process."""

    ledger: Ledger | None = redeclare(
        SharedLedger,
        "ledger",
        help="Shared by several fits on the same people, so that their costs add up against one budget. All of the budget is "
        "charged with the first release, for the party that sees most.",
    )


def simulated_network() -> Any:
    """The declaration of `faults`, for fits that run all parties in one process."""
    # Lazy: a fit of one table loads no network.
    from eigenveil.runtimes.local import Faults

    return param(
        "What a simulated network does to messages. None carries everything.",
        default=None,
        check=instance_of(Faults, "an eigenveil.runtimes.Faults"),
        surfaces=HERE,
    )


@final
class WholeCharge:
    """Charges a fit of several parties whole, on the `ledger` of their people, when the first of them charges. Changes in place.

    It is an account behind the parties' own ledgers. Parties spend side by side, and each of the `budgets` holds against some who
    see what they send, so whoever sees most has seen no more than the largest.
    """

    name: str | None = None

    def __init__(self, ledger: Ledger | None, *budgets: Budget | None, unit: PrivacyUnit, label: str) -> None:
        existing = [budget for budget in budgets if budget is not None]
        self._ledger, self._unit, self._label = ledger, unit, label
        self._budget = max(existing, key=lambda budget: budget.mu, default=None)
        self._reserve: Reserve | None = None
        self._is_paid = False

    @contextmanager
    def reserved(self, masked: "MaskedTerms | None" = None) -> Iterator[None]:
        """Let the parties run inside this block: refused if the ledger cannot pay, and free again if no party charged."""
        if self._ledger is None or self._budget is None or self._is_paid:
            yield
            return
        failure = 0.0 if masked is None else masked.lattice.failure
        require_param(
            failure == 0,
            "masks of so many sites fail with a probability of {@failure}, which adds to delta, and {ledger} adds up mu alone. "
            "Use fewer sites, or `eigenveil site`, whose ledgers count both",
            failure=float(f"{failure:.3g}"),
        )
        budget = self._budget
        # Not lazy: a hub of a stream that is refused in the middle of a slot could not continue, and sites would give nothing.
        with self._ledger.reserve(budget.mu, label=self._label, unit=self._unit, budget=budget) as self._reserve:
            yield

    def charge(self, charge: Charge, *, slot: Slot | None = None) -> None:
        """All of the budget, before the first charge of a party is kept."""
        if self._ledger is None or self._budget is None or self._is_paid:
            return
        mu, label = self._budget.mu, f"the whole budget of {self._label}"
        if self._reserve is None or self._reserve.closed:
            # A party that charges outside of the block is paid for too, or refused.
            self._ledger.spend(mu, label=label, unit=self._unit)
        else:
            self._reserve.spend(mu, label=label)
        self._is_paid = True

    def close(self, *, failed: bool) -> None:
        """Parties close nothing."""


def checked_array(estimator: Any, X: Any, *, reset: bool, gaps: bool = False, **checks: Any) -> Any:
    """`X` as a real array or CSR matrix of the columns that `estimator` knows, or learns if `reset`. `gaps` allow NaN."""
    if _is_plain(X, **checks) and not hasattr(estimator, "feature_names_in_"):
        if reset:
            estimator.n_features_in_ = X.shape[1]
        # Any other number of columns is an error, and scikit-learn has words for it.
        if getattr(estimator, "n_features_in_", None) == X.shape[1]:
            return X
    # Here and not above: parties of a network study take their budgets from this module and have no use for scikit-learn.
    from sklearn.utils.validation import validate_data

    require(not isinstance(X, np.ma.MaskedArray), "X is a masked array, whose hidden entries would be used. Fill them first")
    if gaps:
        checks["ensure_all_finite"] = "allow-nan"
    try:
        # Scikit-learn finds NaN by adding everything up, which overflows with rows near the largest number.
        checked = ignore_float_errors(validate_data)(estimator, X, accept_sparse="csr", dtype="numeric", reset=reset, **checks)
    except OverflowError:
        _require_named_entries(X, gaps=gaps)
        # A whole number beyond float64, in an array of objects. The message is the one for infinity.
        raise ValueError("Input X contains infinity or a value too large for dtype('float64').") from None
    except TypeError as error:
        # Numpy's newer type for text, which scikit-learn does not know. Its other refusals are part of its contract.
        require(not str(error).startswith("dtype argument must be"), "X must hold real numbers, got text")
        raise
    except ValueError as error:
        # These messages of scikit-learn and numpy quote the data, which must not reach a log.
        for quoting, instead in _QUOTING.items():
            if str(error).startswith(quoting):
                raise ValueError(f"{quoting}: {instead}") from None
        if any(word in str(error) for word in _NOT_FINITE):
            _require_named_entries(X, gaps=gaps)
        if str(error).startswith(_MISSING):
            # Scikit-learn recommends an imputer. One that is fitted to these rows is not covered by any guarantee.
            raise ParameterError(f"{{X}} contains NaN. {FILL_PUBLICLY}") from None
        raise
    require_real(checked.dtype, "X")
    return checked


def _is_plain(X: Any, *, ensure_min_samples: int = 1, ensure_min_features: int = 1) -> bool:
    """Whether `X` is an array in which scikit-learn would find nothing to say or to change.

    It looks for tables of many libraries first, which takes longer than a small batch of a stream.
    """
    if type(X) is not np.ndarray or X.dtype != np.float64 or X.ndim != 2:
        return False
    if X.shape[0] < ensure_min_samples or X.shape[1] < ensure_min_features:
        return False
    with np.errstate(all="ignore"):
        return bool(np.isfinite(X.sum()))


def _require_named_entries(X: Any, *, gaps: bool) -> None:
    """Name the columns of a table that have infinite or missing entries. Rows without names of columns are left to others."""
    names = getattr(X, "columns", None)
    if names is None or not all(isinstance(name, str) for name in names):
        return
    require_entries(X.to_numpy(dtype=np.float64, na_value=np.nan), list(names), gaps=gaps)


def with_names(estimator: Any, X: Any, *, reset: bool) -> Any:
    """An Arrow-like table whose column names `estimator` has checked, or learnt if `reset`."""
    from sklearn.utils.validation import validate_data

    assert is_arrow_like(X)
    if type(X).__name__ == "RecordBatch":
        import pyarrow as pa

        # Scikit-learn reads column names from tables only.
        X = pa.Table.from_batches([X])
    validate_data(estimator, X, reset=reset, skip_check_array=True)
    return X


def learn_columns(estimator: Any, rows: Rows) -> None:
    """Let `estimator` learn the columns of `rows`, which are no array, so that scikit-learn does not."""
    estimator.n_features_in_ = rows.shape[1]
    # Names of an earlier fit do not belong to these rows.
    estimator.__dict__.pop("feature_names_in_", None)
    if isinstance(rows, NamedRows) and rows.names is not None:
        estimator.feature_names_in_ = np.asarray(rows.names, dtype=object)


def warn_if_weak(guarantee: Guarantee, people: float | None) -> None:
    """A Python warning for a guarantee that promises next to nothing. Its notes say the same."""
    if guarantee.epsilon is None or guarantee.delta is None:
        return
    for text in weak_words(Budget(guarantee.epsilon, guarantee.delta), people):
        warnings.warn(f"{text[0].upper()}{text[1:]}.", WeakGuaranteeWarning, stacklevel=5)


def budget_of(epsilon: Any, delta: Any) -> Budget | None:
    """The budget of a private fit, None if `epsilon` is None."""
    if epsilon is None:
        return None
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        require_param(value is not None, f"{{{name}}} is required for a private fit: the usual choice is below 1 / n")
        good = is_real(value) and not math.isnan(value)
        require_param(good, f"{{{name}}} must be a number, got {{@value}}", value=value)
    require_param(
        math.isfinite(float(epsilon)), "{epsilon} must be finite. For an exact answer without privacy use {epsilon=None}"
    )
    require_param(float(epsilon) > 0, "{epsilon} must be positive, got {@value}", value=epsilon)
    require_param(0 < float(delta) < 1, "{delta} must lie in (0, 1), got {@value}", value=delta)
    return Budget(float(epsilon), float(delta))


def require_integer(name: str, value: Any, *, min_value: int, max_value: float = math.inf, optional: bool = True) -> None:
    """Refuse anything but a whole number from `min_value` to `max_value`, or None if `optional`."""
    good = is_real(value) and isinstance(value, numbers.Integral) and min_value <= int(value) <= max_value
    limits = f"of at least {min_value}" if math.isinf(max_value) else f"from {min_value} to {max_value}"
    either = "None or an integer" if optional else "an integer"
    none = optional and value is None
    require_param(good or none, f"{{{name}}} must be {either} {limits}, got {{@value}}", value=value)


def is_real(value: Any) -> bool:
    """Whether `value` is a real number and not a truth value."""
    # To Python, True is a whole number: it would pass for 1.
    return isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)


def seed_of(state: Any) -> int | None:
    """A seed from any kind of scikit-learn's `random_state`. None means noise that cannot be repeated."""
    if state is None:
        return None
    if isinstance(state, np.random.Generator):
        # One number of the generator, so that the next fit with it gets other noise.
        seed = int(state.integers(2**63))
    elif isinstance(state, np.random.RandomState):
        seed = int(state.randint(2**31 - 1))
    else:
        good = isinstance(state, numbers.Integral)
        require_param(good, "{random_state} must be None or an integer, got {@value}", value=state)
        seed = int(state)
    require_param(seed >= 0, "{random_state} must not be negative, got {@value}", value=seed)
    return seed


def rank_of(wanted: Any, dim: int) -> int:
    """A number of components that `dim` columns can have."""
    good = is_real(wanted) and isinstance(wanted, numbers.Integral)
    require_param(good, "{n_components} must be an integer, got {@value}", value=wanted)
    rank = int(wanted)
    require_param(rank >= 1, "{n_components} must be at least 1, got {@value}", value=rank)
    require_param(rank <= dim, f"{{n_components=}} must be at most the number of columns, {dim}", n_components=rank)
    return rank


def rank_and_fraction(wanted: Any, dim: int) -> tuple[int | None, float]:
    """A number of components; or None and the share of the variance to explain. `wanted` None means all components."""
    if wanted is None:
        return dim, 1.0
    if is_real(wanted) and isinstance(wanted, numbers.Integral):
        return rank_of(wanted, dim), 1.0
    require_param(
        is_real(wanted) and 0 < float(wanted) < 1,
        "{n_components} must be an integer, a fraction in (0, 1) or None, got {@value}",
        value=wanted,
    )
    return None, float(wanted)


def covariance_for(rule: str, method: Any, dim: int) -> Any:
    """The method of a fit, which is covariance where entries of a Gram matrix are divided by counts.

    Products of rows with a basis add up entries that have different rates, so nothing can be divided afterwards.
    """
    # Here, because methods and planner take memory that a device does not have.
    from eigenveil.methods import METHODS
    from eigenveil.plan.choose import MEMORY_LIMIT

    if rule not in ("counts", "groups"):
        return method
    whole = next(leaf.name for leaf in METHODS.values() if leaf.releases_gram)
    require_param(
        method in ("auto", whole),
        "{missing=} needs {method=covariance}, whose entries can be divided by counts; {method=} multiplies rows first. Or use "
        "{missing=fill} or {missing=drop}",
        missing=rule,
        method=method,
    )
    # A caller who names the method has the memory for it. Where none did, a very wide table must not fill all there is.
    size = 4 * dim * dim * 8
    require_param(
        method != "auto" or size <= MEMORY_LIMIT,
        f"{{missing=}} needs a matrix of {dim} x {dim} numbers, about {size / 2**30:.0f} GiB with copies. Use {{missing=fill}} "
        "or {missing=drop}, which other methods take, or say {method=covariance} if this machine has the memory",
        missing=rule,
    )
    return whole


def center_of(center: Any, dim: int) -> Any:
    """Numbers to center on, (d,), the word "private", or None."""
    if center is None or (isinstance(center, str) and center == "private"):
        return center
    expected = f"{{center}} must be {dim} numbers, or say {{center=private}} or {{center=None}}; got "
    require_param(not isinstance(center, str), expected + "{@value}", value=center)
    try:
        array = np.asarray(center, dtype=np.float64)
    except (TypeError, ValueError):
        raise ParameterError(expected + "{@value}", value=center) from None
    require_param(array.shape == (dim,), f"{expected}shape {array.shape}")
    require_param(bool(np.isfinite(array).all()), "{center} must be finite")
    # A copy, because the caller may change the array later.
    return np.array(array)
