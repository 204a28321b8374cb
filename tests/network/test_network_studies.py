"""A study over the network is the simulation of it, in every trust and layout."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eigenveil.errors import TooFewPeople
from eigenveil.estimators import FederatedPCA
from eigenveil.ledger.durable import DurableLedger
from network.network_studies import Company, same_words, settings_beside

SEED = {"seed": 7}


@pytest.mark.parametrize(
    "privacy, task, fanout",
    [
        ({"trust": "masked"}, {}, None),
        ({"trust": "masked"}, {"method": "krylov", "rounds": 3}, None),
        ({"trust": "site"}, {"method": "krylov", "rounds": 3}, None),
        ({"trust": "hub"}, {"method": "krylov", "rounds": 3}, None),
        ({"trust": "both", "epsilon": [5.0, 2.0], "delta": [1e-6, 1e-6]}, {}, None),
        ({"trust": None, "epsilon": None, "delta": None, "no_privacy": True}, {}, None),
        ({"trust": "site"}, {}, 2),
        ({"trust": "masked", "epsilon": 50.0}, {"row_bound": "private"}, None),
        ({"trust": "site", "epsilon": 90.0}, {"row_bound": None, "scale": "private"}, None),
        ({"trust": "masked", "epsilon": 90.0}, {"row_bound": None, "scale": "private"}, None),
        ({"trust": "masked", "epsilon": 50.0}, {"row_bound": "private", "quantile": 0.6}, None),
        ({"trust": "hub", "epsilon": 50.0}, {"row_bound": None, "method": "power", "rounds": 3}, 2),
        ({"trust": "hub"}, {"method": "power", "rounds": 3}, 2),
    ],
)
def test_with_a_test_seed_a_network_study_and_its_simulation_agree_to_the_last_bit(
    tmp_path: Path, privacy: dict[str, Any], task: dict[str, Any], fanout: int | None
) -> None:
    company = Company(
        tmp_path, sites=5 if fanout else 3, fanout=fanout, sections={"privacy": privacy, "task": task, "rehearsal": SEED}
    )
    company.run()
    simulated = company.study.estimator()
    assert isinstance(simulated, FederatedPCA)
    simulated.fit(company.tables)
    for name in ("hub", *company.names):
        model = company.models[name]
        np.testing.assert_array_equal(model.components, simulated.components_)
        np.testing.assert_array_equal(model.mean, simulated.mean_)
        np.testing.assert_array_equal(model.explained_variance, simulated.explained_variance_)
        np.testing.assert_array_equal(model.explained_variance_ratio, simulated.explained_variance_ratio_)
        assert not model.guarantee.private
        # How many bytes all parties sent, none of them knows, and a site does not know how many rounds there were.
        unknown = {"bytes"} if name == "hub" else {"bytes", "rounds"}
        assert settings_beside(model, company.study) == settings_beside(simulated.model_, unknown=unknown)
        assert same_words(model, simulated.model_)


def test_a_study_of_too_few_people_for_its_search_ends_and_costs_each_site_one_step(tmp_path: Path) -> None:
    company = Company(tmp_path, sections={"privacy": {"epsilon": 0.05}, "task": {"row_bound": "private"}})
    with pytest.raises(TooFewPeople, match="of the budget was spent"):
        company.run()
    with pytest.raises(TooFewPeople, match="of the budget was spent"):
        company.study.estimator().fit(company.tables)


def test_a_real_study_charges_each_site_once_and_closes_its_ledgers(tmp_path: Path) -> None:
    company = Company(tmp_path)
    hub = company.run()
    assert hub.unthanked == ()
    for name in company.names:
        assert company.models[name].guarantee.private
        np.testing.assert_array_equal(company.models[name].components, company.models["hub"].components)
        with DurableLedger.open(company.ledger(name)) as ledger:
            ledger.verify()
            (dataset,) = ledger.datasets()
            assert dataset.spent > 0
