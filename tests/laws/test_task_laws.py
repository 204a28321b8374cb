"""Laws of every task: parts add up to the whole, where the noise stands does not matter to the task, budgets are kept."""

import math
from collections.abc import Iterable, Iterator

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil.core.ledger import Ledger, Slot
from eigenveil.core.mechanism import Bounded, Exact, Gaussian, Mechanism
from eigenveil.core.noise import Noise
from eigenveil.core.unit import Neighbours
from eigenveil.linalg import Array
from eigenveil.protocols.party import run_pooled
from laws.strategies import all_tasks, domains, person, search_task, table

EXACT = Exact(because="a law is checked")


class Spy(Mechanism):
    """Records what passes through it and changes nothing."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, float, float]] = []

    def release(self, private: Bounded, *, label: str, share: float = 1.0, slot: Slot | None = None) -> Array:
        self.seen.append((label, private.sensitivity, share))
        return private.value

    def release_columns(
        self, slices: Iterable[Array], *, dim: int, sensitivity: float, label: str, share: float = 1.0, slot: Slot | None = None
    ) -> Iterator[Array]:
        self.seen.append((label, sensitivity, share))
        return iter(slices)

    def scale(self, sensitivity: float, *, share: float = 1.0) -> float:
        return 0.0


@settings(max_examples=60)
@given(data=st.data(), seed=st.integers(0, 2**32), cut=st.integers(0, 6), sparse=st.booleans())
def test_parts_of_sites_add_up_to_the_whole(data: st.DataObject, seed: int, cut: int, sparse: bool) -> None:
    rng = np.random.default_rng(seed)
    domain = data.draw(domains(4))
    people = [person(4, rng, 1.0, 1) for _ in range(6)]
    whole = table(people, 4, sparse=sparse, grouped=False)
    sites = [table(part, 4, sparse=sparse, grouped=False) for part in (people[:cut], people[cut:])]
    for task, question in (*all_tasks(domain, Neighbours.ADD_REMOVE, rng), search_task(domain, Neighbours.ADD_REMOVE, rng)):
        one, two = (task.work(question, site, EXACT) for site in sites)
        expected = task.work(question, whole, EXACT)
        size = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(task.combine(one, two), expected, atol=1e-10 * size)
        np.testing.assert_array_equal(task.combine(one, two), task.combine(two, one))


@settings(max_examples=30)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_site_and_hub_release_the_same_thing_for_the_same_price(data: st.DataObject, seed: int) -> None:
    rng = np.random.default_rng(seed)
    domain = data.draw(domains(4))
    rows = table([person(4, rng, 1.0, 1) for _ in range(5)], 4, sparse=False, grouped=False)
    for task, _ in (*all_tasks(domain, Neighbours.ADD_REMOVE, rng), search_task(domain, Neighbours.ADD_REMOVE, rng)):
        at_site, at_hub = Spy(), Spy()
        state = task.start()
        part = task.work(task.ask(state), rows, at_site)
        task.advance(state, part, at_hub)
        assert at_site.seen == at_hub.seen


@settings(max_examples=30)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_a_whole_run_spends_the_mechanism_and_no_more(data: st.DataObject, seed: int) -> None:
    rng = np.random.default_rng(seed)
    domain = data.draw(domains(4))
    rows = table([person(4, rng, 1.0, 1) for _ in range(5)], 4, sparse=False, grouped=False)
    for task, _ in all_tasks(domain, Neighbours.ADD_REMOVE, rng):
        ledger = Ledger(epsilon=math.inf, delta=1e-6)
        run_pooled(task, rows, Gaussian(multiplier=5.0, ledger=ledger, noise=Noise.seeded(seed)))
        assert math.isclose(ledger.spent_mu, 0.2, rel_tol=1e-12)
