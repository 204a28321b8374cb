"""Studies of tables with missing values over real connections: the same as their simulation, and said before anybody agrees."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from eigenveil.data.rows import DenseRows
from eigenveil.estimators import FederatedPCA, GossipPCA
from eigenveil.network.agents.site_data import SiteData
from eigenveil.show.agreement import facts_of
from network.network_studies import COLUMNS, Company, PeerCompany, same_words, settings_beside

SEED = {"seed": 7}


def tear(company: Any) -> None:
    """Take values out of every table."""
    for at, (name, rows) in enumerate(company.tables.items()):
        lost = np.random.default_rng(at).random(rows.shape) < np.linspace(0.4, 0.0, len(COLUMNS))
        company.tables[name] = np.where(lost, np.nan, rows)


@pytest.mark.parametrize(
    "privacy, task",
    [
        ({"trust": "masked"}, {"missing": "counts"}),
        ({"trust": "site"}, {"missing": "groups", "missing_groups": [["age", "weight"], ["pulse"]], "center": "none"}),
        ({"trust": "hub"}, {"missing": "drop", "method": "power", "rounds": 3}),
        ({"trust": "masked"}, {"missing": "fill", "missing_fill": 0.5, "method": "krylov", "rounds": 3}),
    ],
)
def test_a_study_of_torn_tables_and_its_simulation_agree_to_the_last_bit(
    tmp_path: Path, privacy: dict[str, Any], task: dict[str, Any]
) -> None:
    company = Company(tmp_path, sections={"privacy": privacy, "task": task, "rehearsal": SEED})
    tear(company)
    company.run()
    simulated = company.study.estimator()
    assert isinstance(simulated, FederatedPCA)
    # By name, as in the study: groups of columns go by names.
    simulated.fit({name: pd.DataFrame(rows, columns=list(COLUMNS)) for name, rows in company.tables.items()})
    for name in ("hub", *company.names):
        model = company.models[name]
        np.testing.assert_array_equal(model.components, simulated.components_)
        np.testing.assert_array_equal(model.explained_variance, simulated.explained_variance_)
        unknown = {"bytes"} if name == "hub" else {"bytes", "rounds"}
        assert settings_beside(model, company.study) == settings_beside(simulated.model_, unknown=unknown)
        assert same_words(model, simulated.model_)


def test_peers_of_torn_tables_agree_with_their_simulation(tmp_path: Path) -> None:
    task = {"method": "covariance", "rounds": None, "missing": "counts"}
    company = PeerCompany(tmp_path, sections={"task": task, "rehearsal": SEED})
    tear(company)
    assert company.run() == [None] * 4
    simulated = company.study.estimator()
    assert isinstance(simulated, GossipPCA)
    simulated.fit(company.tables)
    for name in company.names:
        np.testing.assert_allclose(abs(company.models[name].components @ simulated.components_.T), np.eye(2), atol=1e-6)


def test_a_study_says_what_becomes_of_missing_values(tmp_path: Path) -> None:
    said = {
        "counts": "how many rows have each column, and divides sums by that. This takes 4% of the budget",
        "groups": "how many rows have each pair of these groups of columns",
        "drop": "rows that lack a value are left out",
        "fill": "public values in the study file",
    }
    more: dict[str, dict[str, Any]] = {"groups": {"missing_groups": "age,weight"}, "fill": {"missing_fill": 1.0}}
    for rule, words in said.items():
        company = Company(tmp_path, sections={"task": {"missing": rule, **more.get(rule, {})}})
        facts = {fact.label: fact.text for fact in facts_of(company.study)}
        assert words in facts["Missing values"]
    assert "Missing values" not in {fact.label for fact in facts_of(Company(tmp_path).study)}


def test_a_site_with_gaps_in_a_study_that_allows_none_is_refused(tmp_path: Path) -> None:
    company = Company(tmp_path)
    tear(company)
    with pytest.raises(ValueError, match="NaN"):
        SiteData.of(DenseRows(company.tables[company.names[0]]), company.study).fingerprints()
    allowed = Company(tmp_path, sections={"task": {"missing": "counts"}}).study
    SiteData.of(DenseRows(company.tables[company.names[0]]), allowed).fingerprints()
