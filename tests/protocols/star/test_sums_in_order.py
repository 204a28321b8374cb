"""Sums run in site order: the same to the last bit whatever order messages come in, and in no more room than they need."""

import gc
import weakref
from collections.abc import Sequence
from functools import reduce
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil.errors import PeerError
from eigenveil.linalg import Array
from eigenveil.protocols.messages import Contribution, Decline, Message
from eigenveil.protocols.star.rounds import Gathering, Terms, star
from protocols.star.companies import IN_TREES, TASKS, AnyTask, company, layouts, tables

SITES = tuple(f"site {place}" for place in range(7))
ORDERS = st.permutations(SITES)


def parts(seed: int) -> dict[str, Array]:
    """Of very different sizes, so that another order is another sum."""
    rng = np.random.default_rng(seed)
    return {site: rng.standard_normal((5, 5)) * 10.0 ** rng.integers(-8, 8) for site in SITES}


def folded(found: dict[str, Array], sites: Sequence[str]) -> Array:
    total: Array = reduce(np.add, [found[site] for site in SITES if site in sites])
    return total


def gathering(task: AnyTask, asked: Sequence[str] = SITES, weights: dict[str, float] | None = None) -> Gathering:
    return Gathering(task, 0, task.ask(task.start()), asked, below={site: (site,) for site in SITES}, gone=set(), weights=weights)


def require_folded_in_site_order(seed: int, order: Sequence[str], silent: set[str], refusing: set[str]) -> None:
    found, now = parts(seed), gathering(TASKS["covariance"]())
    for site in order:
        if site in refusing:
            now.receive(site, Decline(0))
        elif site not in silent:
            now.receive(site, Contribution(round=0, arrays=(found[site],)))
    gave = [site for site in SITES if site not in silent | refusing]
    assert now.complete == (not silent - refusing)
    assert now.sites() == (tuple(gave), tuple(site for site in SITES if site not in gave))
    total = now.total()
    assert (total is None) == (not gave)
    if gave:
        assert total.tobytes() == folded(found, gave).tobytes()


@given(st.integers(0, 2**32), ORDERS, st.sets(st.sampled_from(SITES)), st.sets(st.sampled_from(SITES)))
def test_any_order_and_any_absence_is_the_fold_over_those_who_gave(
    seed: int, order: list[str], silent: set[str], refusing: set[str]
) -> None:
    require_folded_in_site_order(seed, order, silent, refusing)


@given(st.integers(0, 2**32), ORDERS)
def test_weights_count_before_the_sum(seed: int, order: list[str]) -> None:
    found, weights = parts(seed), {site: 1.0 / (2 + place) for place, site in enumerate(SITES)}
    now = gathering(TASKS["covariance"](), weights=weights)
    for site in order:
        now.receive(site, Contribution(round=0, arrays=(found[site],)))
    assert now.total().tobytes() == folded({s: found[s] * weights[s] for s in SITES}, SITES).tobytes()


@given(st.integers(0, 2**32), ORDERS, st.integers(1, 7))
def test_the_hub_of_a_star_adds_in_site_order(seed: int, order: list[str], count: int) -> None:
    found = parts(seed)
    hub = company(TASKS["covariance"](), star(SITES), {}, terms=Terms(quorum=1, retries=0)).hub
    hub.start()
    for site in order[:count]:
        hub.receive(Message(site, "hub", Contribution(round=0, arrays=(found[site],))))
    if count < len(SITES):
        hub.timeout()
    assert np.asarray(hub.result).tobytes() == folded(found, order[:count]).tobytes()
    assert hub.sites == tuple(site for site in SITES if site in order[:count])


@pytest.mark.parametrize("kind", IN_TREES)
@settings(max_examples=10)
@given(st.randoms(use_true_random=False))
def test_whole_runs_do_not_depend_on_the_order_of_message(kind: str, random: Random) -> None:
    results: list[Any] = []
    for shuffled in (False, True):
        them = company(TASKS[kind](), layouts(5)["tree of 2"], tables(5))
        message = them.hub.start()
        while message:
            next_message = message.pop(random.randrange(len(message)) if shuffled else 0)
            try:
                message += them.parties[next_message.receiver].receive(next_message)
            except PeerError as error:  # pragma: no cover
                raise AssertionError(f"messages were refused in a run without faults: {error}") from error
        results.append([array.tobytes() for array in map(np.asarray, them.members["site 0"].result or ())])
        answer = them.hub.rounds
        results.append([(round_.stage, round_.step, round_.answered, round_.movement, round_.spread) for round_ in answer])
    assert results[:2] == results[2:]


def held(order: Sequence[str]) -> int:
    """How many parts are still somewhere in memory when all but the last have come."""
    now = gathering(TASKS["covariance"]())
    alive: list[weakref.ref[Array]] = []
    for site in order[:-1]:
        part = np.random.default_rng(len(alive)).standard_normal((5, 5))
        alive.append(weakref.ref(part))
        now.receive(site, Contribution(round=0, arrays=(part,)))
        del part
    gc.collect()
    return sum(reference() is not None for reference in alive)


def test_parts_that_come_in_order_are_not_held() -> None:
    assert held(SITES) == 0
    assert held(SITES[::-1]) == len(SITES) - 1
