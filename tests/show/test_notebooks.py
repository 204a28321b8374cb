"""What a notebook shows of estimators, models, guarantees, ledgers and plans: released numbers and harmless names."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import sklearn.utils

from eigenveil import FederatedPCA, FederatedStream, GossipPCA, Guarantee, Ledger, PrivatePCA, StreamingPCA
from eigenveil.core.accounting import Budget
from eigenveil.plan.facts import Facts
from eigenveil.plan.recommendation import advise
from eigenveil.plan.spectrum import Spectrum
from show.conftest import HOSTILE, Tags, made_model


def tags_in(html: str) -> Tags:
    found = Tags()
    found.feed(html)
    return found


def hostile_ledger() -> Ledger:
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    ledger.spend(0.1, label=HOSTILE)
    return ledger


@pytest.mark.parametrize(
    "shown",
    [
        made_model(3, 4, columns=(HOSTILE,) * 4, warnings=(HOSTILE,)),
        replace(made_model(3, 4).guarantee, unit=HOSTILE, assumptions=(HOSTILE,)),
        Guarantee.none(HOSTILE),
        hostile_ledger(),
    ],
    ids=lambda one: type(one).__name__,
)
def test_names_are_only_shown(shown: Any) -> None:
    found = tags_in(shown._repr_html_())
    assert not {"script", "img"} & {*found.tags}
    assert found.tags.count("style") == 1


def test_a_fitted_estimator_shows_its_diagram_its_variances_and_its_guarantee() -> None:
    rows = np.random.default_rng(0).standard_normal((300, 4)) * [3, 2, 1, 1]
    pca = PrivatePCA(2, epsilon=2.0, delta=1e-6, row_bound=8.0, random_state=0)
    assert "noise floor" not in pca._repr_html_()
    shown = pca.fit(rows)._repr_mimebundle_()
    assert shown["text/plain"] == repr(pca)
    assert "sk-" in shown["text/html"] and "noise floor" in shown["text/html"]
    assert "(2, 1e-06)-differential privacy" in shown["text/html"]
    shell: Any = sklearn
    with shell.config_context(display="text"):
        assert "text/html" not in pca._repr_mimebundle_()


def test_a_plan_lists_its_methods() -> None:
    facts = Facts(dim=8, rank=2, people=5000, budget=Budget(1.0, 1e-6), spectrum=Spectrum.guessed(8))
    shown = advise(facts, methods=["curator/covariance", "curator/power"])._repr_html_()
    assert shown.index("curator/covariance") < shown.index("curator/power")


@pytest.mark.parametrize("kind", [PrivatePCA, FederatedPCA, GossipPCA, StreamingPCA, FederatedStream])
def test_an_estimator_that_was_not_fitted_shows_itself(kind: Any) -> None:
    needed: dict[Any, dict[str, Any]] = {FederatedStream: {"slots": 2}, GossipPCA: {"graph": "ring"}}
    more = needed.get(kind, {})
    assert "sk-" in kind(2, epsilon=1.0, delta=1e-6, row_bound=1.0, **more)._repr_html_()


def test_a_stream_at_several_sites_shows_what_it_released() -> None:
    stream = FederatedStream(1, epsilon=4.0, delta=1e-6, row_bound=6.0, slots=1, trust="site", random_state=0)
    rng = np.random.default_rng(0)
    stream.partial_fit({name: rng.standard_normal((300, 3)) * [3, 1, 1] for name in ("oslo", "lima")})
    assert "noise floor" in stream._repr_html_()
