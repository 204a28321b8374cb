"""All that peers, or sites under masks, agree on is in a digest: another value in any field moves it, but for those listed."""

from collections.abc import Iterator
from copy import copy
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np
import pytest

from eigenveil import FederatedPCA, GossipPCA
from eigenveil.estimators.federated.parties import Parties
from eigenveil.estimators.gossip.parties import PeerParties
from eigenveil.protocols.keys import Identity

pytestmark = pytest.mark.usefixtures("unplanned")
NAMES = tuple("abcde")
ROSTER = {name: Identity(name.encode() * 32).public for name in NAMES}
GIVEN: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "row_bound": 3.0, "random_state": 1}


def variants(value: Any) -> Iterator[tuple[str, Any]]:
    """The value with one field changed, for each field of it and of its parts, whether or not that would pass a check."""
    if not is_dataclass(value):
        yield "", another(value)
        return
    for field in fields(value):
        for path, changed in variants(getattr(value, field.name)):
            whole = copy(value)
            object.__setattr__(whole, field.name, changed)
            yield f"{field.name}.{path}".strip("."), whole


def another(value: Any) -> Any:
    """Another value of a kind that a digest covers."""
    if isinstance(value, Enum):
        return next(one for one in type(value) if one is not value)
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float | np.ndarray):
        return 2.0 if np.all(np.isinf(value)) else value + 1
    return {} if isinstance(value, dict) else value[:-1] or "another"


def peers(**more: Any) -> PeerParties:
    sizes = dict.fromkeys(NAMES, 50)
    asked = GossipPCA(2, graph="complete", neighbours="zero-out", **GIVEN | more)
    request = asked.request_for(dim=4, peers=NAMES, sizes=sizes, columns=list("wxyz"))
    return PeerParties(request, NAMES, roster=ROSTER, start=5, apart=True)


def test_every_field_of_the_terms_of_peers_moves_their_digest() -> None:
    terms = peers().terms
    unmoved = {path for path, changed in variants(terms) if changed._digest() == terms.digest}
    # How long a peer waits, and what follows from the rest. The noise graph has the names of the other.
    assert unmoved == {"deadline", "retries", "digest", "_among_cache", "graph._near", "noise_graph._near", "noise_graph.names"}


# What no message of a fit depends on, or what follows from other fields: the number of people is the sum of the sizes. Peers take
# no local steps. What a person is, is each peer's own.
UNMOVED = {
    *("fit.private", "fit.people", "fit.settings", "fit.grouped", "fit.person", "fit.plan.reason", "fit.plan.steps"),
    *("fit.bounds.claimed", "fit.bounds.sparse", "fit.bounds.gaps.less_half"),
}
# Whom a peer talks to is in its terms, as above. The seed is no part of a study.
CARRIED = ("graph", "noise_graph", "weights", "consensus", "steps", "noise", "colluders", "quorum", "deadline", "retries", "seed")


@pytest.mark.parametrize(
    "more",
    [
        {"method": "covariance", "missing": "groups", "missing_groups": "w,x;y"},
        {"method": "krylov", "missing": "fill", "missing_fill": 0.5, "column_bounds": (-1.0, 1.0)},
        {"method": "segments", "missing": "drop", "row_bound": "private", "quantile": 0.9, "scale": [1.0, 1.0, 1.0, 2.0]},
    ],
)
def test_every_field_of_a_fit_between_peers_moves_its_digest(more: dict[str, Any]) -> None:
    parties = peers(**more)
    request, digest = parties.request, parties.terms.study
    unmoved = set()
    for path, parties.request in variants(request):
        if not path.startswith(CARRIED) and parties._study_digest("") == digest:
            unmoved.add(path)
    # Where only reading tells how many rows count, their numbers decide nothing.
    drops = request.fit.people is None
    assert unmoved == ((UNMOVED | {"fit.sizes"}) - {"fit.people"} if drops else UNMOVED)
    parties.request = request
    assert parties._study_digest("another") != digest


def test_every_field_of_masked_terms_moves_their_digest() -> None:
    asked = FederatedPCA(2, trust="masked", **GIVEN)
    parties = Parties(asked.request_for(dim=4, sites=NAMES), NAMES, roster=ROSTER, title="a study")
    assert parties.masked is not None
    terms = parties.masked
    changes = dict(variants(terms))
    for changed in changes.values():
        # A copy has the digest that was kept.
        changed.__dict__.pop("digest", None)
    assert len(changes) > 20 and [path for path, changed in changes.items() if changed.digest == terms.digest] == []
