"""What a study costs is what the ledger says, for every kind of study; what cannot end well is refused before any charge."""

import asyncio
import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eigenveil.core.accounting import Budget
from eigenveil.data.rows import DenseRows, SparseRows
from eigenveil.errors import BudgetExceeded, ProtocolError
from eigenveil.ledger.durable import DurableLedger, LedgerError
from eigenveil.network.agents.site_data import SiteData
from eigenveil.network.agents.star import DurableSite
from eigenveil.network.parties import parties_of
from eigenveil.network.policy import Policy, PolicyRefusal
from eigenveil.protocols.messages import Contribution, Decline
from eigenveil.protocols.wire import decode, encode
from network.network_studies import Company, PeerCompany, keys_of

LIFE = Budget(3.0, 1e-5)


def test_peers_without_privacy_cost_everything_and_leave_an_entry(tmp_path: Path) -> None:
    privacy = {"epsilon": None, "delta": None, "no_privacy": True, "noise": None}
    company = PeerCompany(tmp_path, sections={"privacy": privacy})
    assert company.run() == [None] * 4
    with DurableLedger.open(company.ledger("peer 0")) as ledger:
        assert ledger.datasets()[0].void
        assert [line.kind for line in ledger.entries()].count("commit") == 1
        private = PeerCompany(tmp_path / "other")
        from eigenveil.network.agents.site_data import account_of

        account = account_of(private.study, "patients", party="peer 0", budget=Budget(1.0, 1e-6), mu=0.2)
        with pytest.raises(BudgetExceeded, match="without privacy"):
            ledger.join(account, life=LIFE)


@pytest.mark.parametrize("trust", ["site", "masked", "hub"])
def test_a_person_at_several_sites_is_charged_in_the_ledger_what_the_guarantee_says(tmp_path: Path, trust: str) -> None:
    company = Company(tmp_path, sections={"privacy": {"trust": trust, "person_sites": 2}})
    company.run()
    with DurableLedger.open(company.ledger("site 0")) as ledger:
        spent = ledger.datasets()[0].spent
    expected = company.models["site 0"].guarantee.mu
    assert spent == pytest.approx(expected, rel=1e-6)
    parties = parties_of(company.study)
    budget = parties.request.at_sites or parties.request.at_hub
    assert budget is not None and spent <= budget.mu * (1 + 1e-9)
    # All of it is spent where all rounds were, and that is the epsilon of the study.
    assert math.isclose(spent, budget.mu, rel_tol=0.2)


def test_entries_that_others_may_see_have_no_digest_that_a_guess_could_be_compared_with(tmp_path: Path) -> None:
    company = Company(tmp_path, sections={"privacy": {"trust": "hub"}})
    with DurableLedger.open(tmp_path / "ledger") as ledger:
        durable, _ = durable_of(company, ledger)
        (_, raw), *_ = durable.take("hub", first_message(company))
        text = "\n".join(str(line) for line in ledger.entries())
        assert hashlib.sha256(raw).hexdigest() not in text
        (said,) = [mark for line in ledger.entries() if line.kind == "commit" for mark in line.body["said"]]
        assert ledger.is_mark_of(raw, said)


def durable_of(company: Company, ledger: DurableLedger, rows: Any = None, name: str = "site 0") -> tuple[DurableSite, Any]:
    holding = None if rows is None else SiteData(rows=rows, people=300)
    agent = company.site(name, ledger, **({} if holding is None else {"holding": holding}))
    entered = ledger.join(agent.account, life=None)
    return DurableSite(agent, entered), agent


def first_message(company: Company, to: str = "site 0") -> bytes:
    parties = parties_of(company.study)
    hub = parties.hub(masking=parties.masking(), watch=None)
    return next(encode(message) for message in hub.start() if message.receiver == to)


class Unreachable:
    """Rows on a disk that is away."""

    shape = (300, 5)
    sparse = False

    def blocks(self, size: int) -> Any:
        raise OSError("away")


@pytest.mark.parametrize("trust", ["site", "hub"])
def test_a_site_that_had_no_part_has_one_when_it_was_mended(tmp_path: Path, trust: str) -> None:
    company = Company(tmp_path, sections={"privacy": {"trust": trust}})
    message = first_message(company)
    with DurableLedger.open(tmp_path / "ledger") as ledger:
        durable, _ = durable_of(company, ledger, rows=Unreachable())
        (_, raw), *_ = durable.take("hub", message)
        assert isinstance(decode(raw).body, Decline)
        (_, again), *_ = durable.take("hub", message)
        assert isinstance(decode(again).body, Decline)
        assert ledger.datasets()[0].spent == 0
        durable, _ = durable_of(company, ledger)
        (_, raw), *_ = durable.take("hub", message)
        assert isinstance(decode(raw).body, Contribution)
        assert durable.take("hub", message) == [("hub", raw)]


def test_a_site_whose_answer_could_not_be_written_down_answers_nothing_more(tmp_path: Path) -> None:
    company = Company(tmp_path, sections={"privacy": {"trust": "site"}})
    message = first_message(company)
    with DurableLedger.open(tmp_path / "ledger") as ledger:
        durable, agent = durable_of(company, ledger)
        ledger.abandon(company.study.digest)
        with pytest.raises(LedgerError):
            durable.take("hub", message)
        with pytest.raises(ProtocolError, match="start the site again"):
            durable.take("hub", message)
        assert agent.account.study == company.study.digest


def test_names_that_look_alike_are_one_name(tmp_path: Path) -> None:
    with DurableLedger.open(tmp_path / "ledger") as ledger:
        ledger.declare("patients", b"rows")
        for name in ("Patients", "PATIENTS", "ｐatients"):
            with pytest.raises(LedgerError, match="looks the same as"):
                ledger.declare(name, b"rows")
        with pytest.raises(ValueError, match="space at either end"):
            ledger.declare("patients ", b"rows")
        assert ledger.declare("other", b"rows") != []


def test_where_columns_are_limited_a_table_must_have_names(tmp_path: Path) -> None:
    company = Company(tmp_path, sections={"privacy": {"trust": "site"}})
    pin = keys_of("hub", "hub").certificate.pin
    limits = f"[limits]\ncolumns = {list(company.study.columns)}\n[budget]\nstudy_epsilon = 9\nlifetime_epsilon = 9"
    text = f'[pins]\nhub = ["{pin}"]\n{limits}'
    rows = DenseRows(company.tables["site 0"])
    with DurableLedger.open(tmp_path / "ledger") as ledger:
        for named in (True, False):
            holding = SiteData.of(rows, company.study, named=named)
            settings: dict[str, Any] = {"holding": holding, "policy": Policy.parse(text.replace("'", '"'))}
            if named:
                company.site("site 0", ledger, **settings)
                continue
            with pytest.raises(PolicyRefusal, match="does not name its columns"):
                company.site("site 0", ledger, **settings)


def test_a_site_reads_the_columns_of_the_study_from_any_file(tmp_path: Path) -> None:
    company = Company(tmp_path, sections={"privacy": {"trust": "site"}})
    table, names = company.tables["site 0"], company.study.columns
    path = tmp_path / "patients.csv"
    lines = [";".join(("patient_id", *names)), *(f"{i};" + ";".join(map(repr, row)) for i, row in enumerate(table.tolist()))]
    path.write_text("\n".join(lines).replace(".", ","))
    found = SiteData.read(path, company.study, decimal=",")
    assert np.array_equal(np.vstack([block.values for block in found.rows.blocks(50)]), table)
    assert (found.people, found.columns) == (len(table), len(names) + 1)
    # Thousands, comments and what stands for a missing value are those of this site's file alone.
    large = np.round(table * 1e4)
    marked = ["# it's ours", "sep=;", lines[0], *(f"x;{';'.join(f'{x:,.0f}' for x in row)}" for row in large)]
    path.write_text("\n".join(marked).replace(",", ".") + "\n")
    found = SiteData.read(path, company.study, decimal=",", thousands=".", comment="#")
    assert np.array_equal(np.vstack([block.values for block in found.rows.blocks(50)]), large)
    with pytest.raises(ValueError, match="missing values"):
        SiteData.read(path, company.study, decimal=",", thousands=".", comment="#", na_values=[float(large[0, 0])])
    path.write_text("\n".join(lines).replace(".", ","))
    # Another decimal mark is no number, and a site cannot leave a column of the study out.
    with pytest.raises(ValueError, match=r"not a number in columns? .* The study needs numbers there") as caught:
        SiteData.read(path, company.study)
    assert "drop" not in str(caught.value)


def test_a_sparse_table_is_refused_where_bounds_would_fill_it(tmp_path: Path) -> None:
    import scipy.sparse as sp

    company = Company(tmp_path, sections={"task": {"column_bounds": [1.0, 2.0], "row_bound": None}})
    with pytest.raises(ValueError, match="the table is sparse"):
        SiteData.of(SparseRows(sp.csr_array(np.eye(5))), company.study)


def test_a_node_that_is_stopped_in_the_middle_and_started_again_goes_on(tmp_path: Path) -> None:
    company = Company(
        tmp_path, sites=5, fanout=3, sections={"privacy": {"trust": "site"}, "task": {"method": "krylov", "rounds": 3}}
    )
    node = company.study.nodes[0].name

    async def all_of_them() -> None:
        async with asyncio.timeout(60):
            others = [place.name for place in company.study.nodes[1:]]
            parties = asyncio.gather(company.run_hub(), *map(company.run_site, company.names), *map(company.run_node, others))
            first = asyncio.ensure_future(company.run_node(node))
            while not any(who == "hub" and one.what == "round" for who, one in company.happened):
                await asyncio.sleep(0.01)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            again = asyncio.ensure_future(company.run_node(node))
            await parties
            again.cancel()
            await asyncio.gather(again, return_exceptions=True)

    asyncio.run(all_of_them())
    assert set(company.models) == {"hub", *company.names}


def test_what_one_site_has_joined_another_does_not_go_on_with(tmp_path: Path) -> None:
    company = Company(tmp_path, sections={"privacy": {"trust": "site"}})
    with DurableLedger.open(tmp_path / "ledger") as ledger:
        durable_of(company, ledger)
        with pytest.raises(LedgerError, match="joined before by 'site 0'"):
            durable_of(company, ledger, name="site 1")
