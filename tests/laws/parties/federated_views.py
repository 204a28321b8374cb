"""What somebody sees of a federated fit: releases place by place, messages as bytes, and results; and mu from two such views.

A second run on neighbouring sites is made to release what the first one did. Whatever else it then shows that the first
did not show has left without noise.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest

from eigenveil.core.ledger import Ledger, Reserve, Slot
from eigenveil.core.mechanism import Bounded, Calibrated, Gaussian
from eigenveil.estimators.federated.pca import FederatedPCA
from eigenveil.linalg import Array
from eigenveil.plan import recommendation
from eigenveil.protocols.messages import Ask, Done, Message
from eigenveil.protocols.wire import encode
from eigenveil.runtimes.local import Faults

HUB = "hub"
Played = Literal["all", "hub"]


@dataclass(frozen=True, eq=False)
class Release:
    """One passage through a mechanism: where it stands, the value before it, the noise really added, the value after it."""

    ledger: Ledger | Reserve
    value: Array
    added: float
    released: Array


@dataclass(eq=False)
class View:
    """Everything that happened in one fit. Changes in place while the fit runs."""

    releases: list[Release] = field(default_factory=list)
    message: list[Message] = field(default_factory=list)
    pca: FederatedPCA | None = None

    @property
    def fitted(self) -> FederatedPCA:
        """The estimator."""
        assert self.pca is not None
        return self.pca

    def place(self, release: Release) -> str:
        """The name of the place whose mechanism that was."""
        names = [name for name, ledger in self.fitted.ledgers_.items() if ledger is release.ledger]
        assert len(names) == 1
        return names[0]


def fitted_view(
    options: dict[str, Any],
    sites: Sequence[Any],
    *,
    played: View | None = None,
    how: Played = "all",
    sizes: Sequence[float] | None = None,
    dies: dict[str, int] | None = None,
) -> View:
    """Fit, and see everything. With `played`, releases are those of that view: "all" of them, or those of the "hub" alone,
    sites then drawing the noise that they drew there. `sizes` stands in for the people at each site."""
    view = View()
    with pytest.MonkeyPatch.context() as patch:
        _watch(view, patch, played, how)
        if sizes is not None:
            numbers = iter(sizes)
            patch.setattr("eigenveil.estimators.reading.people_at", lambda rows: next(numbers))
        faults = Faults(meddle=lambda message: _noted(view, message), dies=dies or {})
        pca = FederatedPCA(**({"n_components": 2, "random_state": 1} | options), faults=faults)
        view.pca = pca.fit(list(sites))
    return view


def _noted(view: View, message: Message) -> Iterator[Message]:
    view.message.append(message)
    yield message


def _watch(view: View, patch: pytest.MonkeyPatch, played: View | None, how: Played) -> None:
    calibrated, whole = Gaussian._calibrated, Gaussian.release
    scales: list[float] = []

    def scaled(mechanism: Gaussian, sensitivity: float, size: int, share: float) -> Calibrated:
        lacks = math.sqrt(max(0.0, 1.0 - (mechanism.existing_multiplier / mechanism.multiplier) ** 2))
        scales.append(mechanism.scale(sensitivity, share=share) * lacks)
        return calibrated(mechanism, sensitivity, size, share)

    def release(mechanism: Gaussian, private: Bounded, *, label: str, share: float = 1.0, slot: Slot | None = None) -> Array:
        public = whole(mechanism, private, label=label, share=share, slot=slot)
        if played is not None:
            before = played.releases[len(view.releases)]
            if how == "all" or played.place(before) == HUB:
                public = before.released
            else:
                public = private.value + (before.released - before.value)
        view.releases.append(Release(mechanism.ledger, np.array(private.value), scales[-1], public))
        return public

    patch.setattr(Gaussian, "_calibrated", scaled)
    patch.setattr(Gaussian, "release", release)
    # A plan rehearses on rows of its own, and what it releases there is not meant.
    patch.setattr(recommendation, "hopeless", lambda facts, method: None)


def shown(view: View) -> dict[str, str]:
    """All that a fit makes public, to the last bit, as text."""
    pca = view.fitted
    model = pca.model_
    arrays = (model.components, model.mean, model.values, model.explained_variance, model.explained_variance_ratio)
    return {
        "numbers": repr([array.tobytes() for array in arrays]),
        "transcript": repr(pca.transcript_),
        "settings": repr(dict(model.settings)),
        "guarantee": repr(pca.guarantee_),
        "plan": repr((pca.plan_, pca.sites_, pca.tied_, pca.noise_floor_)),
        "refused": repr(pca.refused_),
        "ledgers": repr({name: ledger.charges for name, ledger in pca.ledgers_.items()}),
    }


def sent_bytes(view: View, *, of_sites: bool) -> list[bytes]:
    """The messages in the order it was sent, byte by byte: what the hub says, and, where it is covered, what sites send."""
    return [encode(message) for message in view.message if of_sites or isinstance(message.body, Ask | Done)]


def places_mu(one: View, other: View, *, hub: bool) -> float:
    """The mu of telling two views apart for who sees each release of the hub, or each release of every site."""
    square = 0.0
    for left, right in _pairs(one, other):
        if (one.place(left) == HUB) == hub:
            square += (float(np.linalg.norm(left.value - right.value)) / left.added) ** 2
    return math.sqrt(square)


def outside_mu(one: View, other: View) -> float:
    """The mu for who sees only what the hub releases, where sites add noise too; `other` was played "hub" alone.

    A person at k sites moves what each of them sends by g, under its noise s. The total moves by G = sum w_i g, under the
    hub's noise h and w_i s from each site. As (sum w_i)^2 <= k sum w_i^2, G^2 / (h^2 + sum w_i^2 s^2) <= 1 / ((h / G)^2 + (s /
    g)^2 / k). Noise of other sites is not counted on.
    """
    square, sites = 0.0, list[float]()
    for left, right in _pairs(one, other):
        gap = float(np.linalg.norm(left.value - right.value))
        if one.place(left) != HUB:
            if gap > 0:
                sites.append(left.added / gap)
            continue
        # What rounding leaves of equal noise is no movement.
        moved = gap > 1e-13 * float(np.linalg.norm(left.value))
        if moved:
            square += 1 / ((left.added / gap) ** 2 + (min(sites) ** 2 / len(sites) if sites else 0.0))
        sites.clear()
    return math.sqrt(square)


def _pairs(one: View, other: View) -> list[tuple[Release, Release]]:
    assert len(one.releases) == len(other.releases) > 0
    pairs = list(zip(one.releases, other.releases, strict=True))
    for left, right in pairs:
        assert left.added == right.added
        assert one.place(left) == other.place(right)
    return pairs
