"""Hundreds of random schedules for every protocol and method: the right answer for the sites that count, or a named error.

`pytest -rP` prints which share of the runs ended in a result.
"""

from collections import Counter

import pytest

from eigenveil import FederatedPCA
from protocols.star.companies import tables
from protocols.star.fault_runs import LIES, PLACES, random_run, require_right, settings_of

RUNS = 30


def tried(method: str, place: str, seeds: range) -> tuple[float, Counter[str], int]:
    """The share of runs that ended in a result, the lies that were told, and how many runs began again."""
    ended, again, lies = 0, 0, Counter[str]()
    for seed in seeds:
        outcome = random_run(method, place, seed)
        require_right(method, place, outcome)
        ended += outcome.fit is not None
        again += outcome.fit is not None and any(round_.restarted for round_ in outcome.fit.transcript_)
        lies += outcome.lies
    share = ended / len(seeds)
    print(
        f"{place:5} {method:27} {share:6.1%} of {len(seeds)} ended in a result, {again} begun again, {lies.total()} lies"
    )
    return share, lies, again


@pytest.mark.parametrize(("method", "place"), PLACES)
def test_random_schedules_end_in_the_right_answer_or_a_named_error(method: str, place: str) -> None:
    share, lies, again = tried(method, place, range(RUNS))
    assert share > 0.5
    assert len(lies) > len(LIES) / 2
    assert again > 0


@pytest.mark.parametrize(("method", "place"), PLACES)
def test_without_faults_nothing_is_refused(method: str, place: str) -> None:
    fit = FederatedPCA(**settings_of(method, place, 2), random_state=1).fit(tables(7))
    assert fit.refused_ == ()
    assert len(fit.sites_) == 7
    assert all(round_.missing == () and not round_.restarted for round_ in fit.transcript_)
