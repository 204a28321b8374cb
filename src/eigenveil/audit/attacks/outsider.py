"""Reconstruction by an outsider, FedPower's Example 2: from what a study publishes, and from what the outsider knows besides.

The study is one fit of `PrivatePCA`. Components are published to show how columns vary together, and a private study shows that
too, if enough people are in it. The guarantee is about the last target: one person.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from scipy.optimize import nnls

from eigenveil.audit.attacks.demonstration import Demonstration, Shown
from eigenveil.audit.attacks.people import COLUMNS, ROW_BOUND, made_up_people
from eigenveil.audit.attacks.reconstruction import HALF, relative_error, told
from eigenveil.errors import require
from eigenveil.estimators import PrivatePCA
from eigenveil.linalg import Array, top_eigen

__all__ = ["entries_from_components", "outsider", "row_from_components"]

_RANK: Final = 3
_DELTA: Final = 1e-5
_EPSILONS: Final = (1.0, 0.1)
_PEOPLE: Final = 1000
_KNOWN: Final = 6
_SOUGHT: Final = 50
_BY_ENTRIES, _BY_SPECTRUM, _ROW = "covariances, some known", "covariances, none known", "one person's row"


def entries_from_components(components: Array, variances: Array, *, known: tuple[int, ...]) -> Array:
    """The matrix M, (d, d), from its `components`, (k, d), and the `variances` M_jj, (p,), of the `known` columns, p >= k.

    FedPower (2.5): M is about V diag(l) V^T, and M_jj = sum_i l_i V_ji^2 is linear in l. Nothing else is needed to find l.

    >>> entries_from_components(np.array([[0.6, 0.8]]), np.array([36.0]), known=(0,)).round(9).tolist()
    [[36.0, 48.0], [48.0, 64.0]]
    """
    rank = len(components)
    require(len(known) >= rank, f"known must name at least as many columns as components, {rank}, got {len(known)}")
    # Eigenvalues of a covariance are not negative, which helps where noise is large.
    values, _ = nnls(np.square(components[:, list(known)]).T, variances)
    found: Array = (components.T * values) @ components
    return found


def row_from_components(components: Array, values: Array, others: Array) -> Array:
    """The direction, (d,), of the row x of the one person who is missing from `others`, (d, d), everybody else's Gram matrix.

    Let G = others + x x^T, and G v = s^2 v for each of the `components`, (k, d), with singular `values`, (k,). Then all the
    vectors s^2 v - others v = x (x^T v) lie along x.

    >>> row_from_components(np.array([[1.0, 0.0]]), np.array([2.0]), np.diag([3.0, 1.0])).tolist()
    [1.0, 0.0]
    """
    rest = components.T * np.square(values) - others @ components.T
    # Under noise they no longer lie along one line, and the leading direction is the best guess.
    direction: Array = np.linalg.svd(rest, full_matrices=False)[0][:, 0]
    return direction


def outsider(*, seed: int = 0) -> Demonstration:
    """FedPower Example 2: an outsider who reads the published components, with and without privacy."""
    rng = np.random.default_rng(seed)
    rows = made_up_people(_PEOPLE, rng=rng)
    runs: dict[str, dict[str, Any]] = {"no privacy": {"epsilon": None}} | {
        f"epsilon = {epsilon:g}": {"epsilon": epsilon, "delta": _DELTA, "row_bound": ROW_BOUND} for epsilon in _EPSILONS
    }
    shown = {
        name: _attacked(
            name, PrivatePCA(_RANK, center=None, random_state=int(rng.integers(1 << 31)), **settings).fit(rows), rows
        )
        for name, settings in runs.items()
    }
    return Demonstration(
        title="An outsider",
        story=(
            f"{_RANK} components of {_PEOPLE} people and {len(COLUMNS)} columns are published, with their variances.",
            f"An outsider knows the variances of {_KNOWN} columns from elsewhere and solves for the weights of the components. "
            "That gives all other variances and covariances (FedPower, Example 2). The published variances serve as "
            "well.",
            "Another knows everybody's row but one. What these rows do not explain of the components is the "
            f"row of the last person. The attack is tried on {_SOUGHT} people.",
        ),
        measure="relative error of the reconstruction: 0 is exact, 1 is nothing",
        guess="the same error for a guess: columns are uncorrelated, and a person lies along the first component",
        rows=tuple(row for rows_of_run in shown.values() for row in rows_of_run),
        conclusion=_conclusion(shown),
    )


def _attacked(name: str, pca: PrivatePCA, rows: Array) -> tuple[Shown, Shown, Shown]:
    gram, known = rows.T @ rows, tuple(range(_KNOWN))
    # As explained variances are defined, so that both reconstructions are in the same units.
    matrix = gram / (len(rows) - 1)
    # The error counts only entries that the outsider did not know beforehand.
    unknown = ~np.isin(np.arange(len(matrix)), known)[:, None] | ~np.eye(len(matrix), dtype=bool)
    guess = relative_error(np.eye(len(matrix))[unknown], matrix[unknown])
    entries = entries_from_components(pca.components_, matrix[known, known], known=known)
    spectrum = (pca.components_.T * pca.explained_variance_) @ pca.components_
    errors, guesses = [], []
    # The outsider knows all other rows: the strongest adversary that the guarantee is stated for.
    for person in rows[:_SOUGHT]:
        others = gram - np.outer(person, person)
        errors.append(relative_error(row_from_components(pca.components_, pca.singular_values_, others), person))
        guesses.append(relative_error(top_eigen(others, rank=1)[1].ravel(), person))
    first, second = (relative_error(found[unknown], matrix[unknown]) for found in (entries, spectrum))
    mean, usual = float(np.mean(errors)), float(np.mean(guesses))
    return (
        Shown(
            run=name,
            target=_BY_ENTRIES,
            value=first,
            baseline=guess,
            succeeded=first < HALF * guess,
            words=f"{int(unknown.sum())} unknown entries",
        ),
        Shown(
            run=name,
            target=_BY_SPECTRUM,
            value=second,
            baseline=guess,
            succeeded=second < HALF * guess,
            words="from the published variances alone",
        ),
        Shown(
            run=name,
            target=_ROW,
            value=mean,
            baseline=usual,
            succeeded=mean < HALF * usual,
            words=f"{_SOUGHT} people: errors from {told(min(errors))} to {told(max(errors))}",
        ),
    )


def _conclusion(shown: Mapping[str, tuple[Shown, Shown, Shown]]) -> str:
    said = []
    for name, (first, second, row) in shown.items():
        entries = f"{told(min(first.value, second.value))} (a guess has {told(first.baseline)})"
        # The words follow from the numbers, so that a demonstration cannot claim more than it shows.
        if first.succeeded or second.succeeded:
            has = f"gets the covariances with error {entries}"
        else:
            has = f"does not get the covariances, error {entries}"
        person = f"{told(row.value)} (a guess has {told(row.baseline)})"
        if row.succeeded:
            read = f"a person's row with error {person}"
        elif row.value < row.baseline:
            read = f"a person's row somewhat better than a guess: {person}"
        else:
            read = f"a person's row no better than a guess: {person}"
        said.append(f"With {name}, an outsider {has}, and {read}.")
    # This remark is about private runs alone. Without privacy everything is read off.
    private = [rows for name, rows in shown.items() if name != "no privacy"]
    if any(first.succeeded and not row.succeeded for first, _, row in private):
        said.append(
            "What many people have in common is published on purpose. The guarantee protects each single person."
        )
    return " ".join(said)
