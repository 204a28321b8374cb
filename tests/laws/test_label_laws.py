"""Labels of charges are for people: under any labels, every fit draws the same noise and releases the same numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from eigenveil import FederatedPCA, GossipPCA, PrivatePCA, PrivateRecommender, StreamingPCA
from eigenveil.core.ledger import Charge, Ledger
from eigenveil.core.mechanism import Bounded, Gaussian
from eigenveil.core.noise import Noise
from eigenveil.linalg import Array
from eigenveil.privacy.lattice import Share
from eigenveil.privacy.paired import PairedPart

# The last four are beginnings that labels of this program have, or have had.
LABELS = ["", "x", "mean 1", "norms", "columns", "block: products"]
BUDGET: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-6, "random_state": 1}
ROWS: Array = np.random.default_rng(0).standard_normal((600, 5)) * [3.0, 2.0, 1.0, 1.0, 1.0] + 1.0
GAPS: Array = np.where(np.random.default_rng(1).random(ROWS.shape) < 0.05, np.nan, ROWS)
SITES = {f"site {place}": part for place, part in enumerate(np.split(ROWS, 4))}
LIKES: Array = (np.random.default_rng(2).random((200, 12)) < 0.3).astype(float)


def stream(rows: Array = ROWS, **choices: Any) -> StreamingPCA:
    return StreamingPCA(2, **BUDGET, neighbours="replace-one", block_size=100, **choices).fit(rows)


FITS: dict[str, Callable[[], Any]] = {
    "one table": lambda: PrivatePCA(2, **BUDGET).fit(ROWS),
    "one table with gaps": lambda: PrivatePCA(2, **BUDGET, row_bound=9.0, missing="counts").fit(GAPS),
    "sites": lambda: FederatedPCA(2, **BUDGET, row_bound=9.0, trust="site").fit(SITES),
    "masked sites": lambda: FederatedPCA(2, **BUDGET, row_bound=9.0, trust="masked").fit(SITES),
    "peers": lambda: GossipPCA(2, **BUDGET, graph="ring", row_bound=9.0).fit(SITES),
    "a stream": lambda: stream(row_bound=9.0),
    "a stream that is synced": lambda: stream(row_bound=9.0, publish="sync").sync(),
    "a stream that searches for a bound": stream,
    "a stream that searches for units": lambda: stream(scale="private"),
    "a stream with gaps": lambda: stream(GAPS, row_bound=9.0, missing="counts"),
    "a stream without incomplete rows": lambda: stream(GAPS, row_bound=9.0, missing="drop"),
    "a stream in slices": lambda: stream(row_bound=9.0, publish="block"),
    "recommendations": lambda: PrivateRecommender(2, **BUDGET).fit(LIKES),
}


def released(fit: Callable[[], Any]) -> dict[str, bytes]:
    """Every array that a fit shows."""
    made = fit()
    found = {name: value for name, value in vars(made).items() if name.endswith("_")}
    found |= {name: getattr(made, name, None) for name in ("components_", "mean_", "explained_variance_")}
    return {name: value.tobytes() for name, value in found.items() if isinstance(value, np.ndarray)}


def relabelled(patch: pytest.MonkeyPatch, label: str) -> None:
    """Every way out of the program takes this label in place of its own."""
    for owner, name in ((Gaussian, "release"), (Gaussian, "charged"), (Share, "of"), (PairedPart, "of")):
        honest = getattr(owner, name)

        def act(*given: Any, honest: Callable[..., Any] = honest, **more: Any) -> Any:
            return honest(*given, **more | {"label": label})

        patch.setattr(owner, name, act)


@pytest.mark.parametrize("fit", FITS)
def test_noise_does_not_depend_on_labels(fit: str) -> None:
    plain = released(FITS[fit])
    assert plain
    for label in LABELS:
        with pytest.MonkeyPatch.context() as patch:
            relabelled(patch, label)
            again = released(FITS[fit])
        assert [name for name in plain if plain[name] != again[name]] == [], label


def test_a_purpose_is_one_of_a_closed_set() -> None:
    for purpose in ("", "mean", "Main", None):
        with pytest.raises(ValueError, match="purpose of a charge is main or search"):
            Charge("x", 0.1, purpose)  # type: ignore[arg-type]


def test_a_release_charges_its_purpose() -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    for purpose in ("search", "main"):
        mechanism = Gaussian(multiplier=9.0, ledger=ledger, noise=Noise.seeded(1), purpose=purpose)
        mechanism.release(Bounded(np.zeros(1), 1.0), label="mean")
    assert [charge.purpose for charge in ledger.charges] == ["search", "main"]
    # Two ledgers that say the same of a release agree, and files do not keep the purpose.
    assert Charge("mean", 0.1, "search") == Charge("mean", 0.1)
