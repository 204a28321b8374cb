"""What a study costs is what the book says, for every kind of study; what cannot end well is refused before anybody pays."""

import asyncio
import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eigenveil.data.rows import DenseRows, SparseRows
from eigenveil.errors import BudgetExceeded, ProtocolError
from eigenveil.network.agents.site_data import SiteData
from eigenveil.network.agents.site_desk import DurableSite
from eigenveil.network.ledger.durable import DurableLedger, LedgerError
from eigenveil.network.policy import Policy, PolicyRefusal
from eigenveil.network.study.file import StudyFile
from eigenveil.network.study.parties import parties_of
from eigenveil.privacy import Budget
from eigenveil.protocols import Decline, Give
from eigenveil.protocols.wire import decode, encode
from network.network_studies import Company, PeerCompany, keys_of

LIFE = Budget(3.0, 1e-5)


def test_peers_without_privacy_cost_everything_and_leave_a_line(tmp_path: Path) -> None:
    privacy = {"epsilon": None, "delta": None, "none": True, "noise": None}
    company = PeerCompany(tmp_path, sections={"privacy": privacy})
    assert company.run() == [None] * 4
    with DurableLedger.open(company.book("peer 0")) as book:
        assert book.datasets()[0].void
        assert [line.kind for line in book.lines()].count("commit") == 1
        private = PeerCompany(tmp_path / "other")
        from eigenveil.network.agents.site_data import account_of

        account = account_of(private.study, "patients", party="peer 0", budget=Budget(1.0, 1e-6), mu=0.2)
        with pytest.raises(BudgetExceeded, match="without privacy"):
            book.join(account, life=LIFE)


@pytest.mark.parametrize("trust", ["site", "masked", "curator"])
def test_a_person_at_several_sites_pays_in_the_book_what_the_guarantee_says(tmp_path: Path, trust: str) -> None:
    company = Company(tmp_path, sections={"privacy": {"trust": trust, "person_sites": 2}})
    company.run()
    with DurableLedger.open(company.book("site 0")) as book:
        spent = book.datasets()[0].spent
    promised = company.models["site 0"].guarantee.mu
    assert spent == pytest.approx(promised, rel=1e-6)
    parties = parties_of(company.study)
    budget = parties.request.at_sites or parties.request.at_hub
    assert budget is not None and spent <= budget.mu * (1 + 1e-9)
    # All of it is spent where all rounds were, and that is the epsilon of the study.
    assert math.isclose(spent, budget.mu, rel_tol=0.2)


def test_lines_that_others_may_see_hold_no_digest_that_a_guess_could_be_compared_with(tmp_path: Path) -> None:
    company = Company(tmp_path, sections={"privacy": {"trust": "curator"}})
    with DurableLedger.open(tmp_path / "book") as book:
        desk, _ = desk_of(company, book)
        (_, raw), *_ = desk.take("hub", first_mail(company))
        text = "\n".join(str(line) for line in book.lines())
        assert hashlib.sha256(raw).hexdigest() not in text
        assert book.mark(raw)["hmac"] in text


def desk_of(company: Company, book: DurableLedger, rows: Any = None, name: str = "site 0") -> tuple[DurableSite, Any]:
    holding = None if rows is None else SiteData(rows, 300)
    agent = company.site(name, book, **({} if holding is None else {"holding": holding}))
    entered = book.join(agent.account, life=None)
    return agent._desk(entered), agent


def first_mail(company: Company, to: str = "site 0") -> bytes:
    parties = parties_of(company.study)
    hub = parties.hub(masking=parties.masking(), watch=None)
    return next(encode(mail) for mail in hub.start() if mail.receiver == to)


class Unreachable:
    """Rows on a disk that is away."""

    shape = (300, 5)
    sparse = False

    def blocks(self, size: int) -> Any:
        raise OSError("away")


@pytest.mark.parametrize("trust", ["site", "curator"])
def test_a_site_that_had_no_part_has_one_when_it_was_mended(tmp_path: Path, trust: str) -> None:
    company = Company(tmp_path, sections={"privacy": {"trust": trust}})
    mail = first_mail(company)
    with DurableLedger.open(tmp_path / "book") as book:
        desk, _ = desk_of(company, book, rows=Unreachable())
        (_, raw), *_ = desk.take("hub", mail)
        assert isinstance(decode(raw).body, Decline)
        (_, again), *_ = desk.take("hub", mail)
        assert isinstance(decode(again).body, Decline)
        assert book.datasets()[0].spent == 0
        desk, _ = desk_of(company, book)
        (_, raw), *_ = desk.take("hub", mail)
        assert isinstance(decode(raw).body, Give)
        assert desk.take("hub", mail) == [("hub", raw)]


def test_messages_that_could_not_be_sent_are_refused_before_anybody_pays(tmp_path: Path) -> None:
    columns = [f"c{at}" for at in range(200)]
    sections: dict[str, dict[str, Any]] = {"network": {"largest": 1 << 16}, "task": {"columns": columns}}
    company = Company.__new__(Company)
    company.folder, company.sites, company.sections, company.fanout = tmp_path, 3, sections, None
    company.names, company.port = [f"site {at}" for at in range(3)], 1
    study = StudyFile.of(company.document())
    with pytest.raises(ValueError, match=r"\[network\] largest must be at least"):
        parties_of(study)


def test_a_site_whose_answer_could_not_be_written_down_answers_nothing_more(tmp_path: Path) -> None:
    company = Company(tmp_path, sections={"privacy": {"trust": "site"}})
    mail = first_mail(company)
    with DurableLedger.open(tmp_path / "book") as book:
        desk, agent = desk_of(company, book)
        book.abandon(company.study.digest)
        with pytest.raises(LedgerError):
            desk.take("hub", mail)
        with pytest.raises(ProtocolError, match="started again"):
            desk.take("hub", mail)
        assert agent.account.study == company.study.digest


def test_names_that_look_alike_are_one_name(tmp_path: Path) -> None:
    with DurableLedger.open(tmp_path / "book") as book:
        book.declare("patients", b"rows")
        for name in ("Patients", "PATIENTS", "ｐatients"):
            with pytest.raises(LedgerError, match="nothing that one sees"):
                book.declare(name, b"rows")
        with pytest.raises(ValueError, match="space at either end"):
            book.declare("patients ", b"rows")
        assert book.declare("other", b"rows") != []


def test_where_columns_are_limited_a_table_must_have_names(tmp_path: Path) -> None:
    company = Company(tmp_path, sections={"privacy": {"trust": "site"}})
    pin = keys_of("hub", "hub").certificate.pin
    limits = f"[limits]\ncolumns = {list(company.study.columns)}\n[budget]\nstudy_epsilon = 9\nlife_epsilon = 9"
    text = f'[pins]\nhub = ["{pin}"]\n{limits}'
    rows = DenseRows(company.tables["site 0"])
    with DurableLedger.open(tmp_path / "book") as book:
        for named in (True, False):
            holding = SiteData.of(rows, company.study, named=named)
            settings: dict[str, Any] = {"holding": holding, "policy": Policy.parse(text.replace("'", '"'))}
            if named:
                company.site("site 0", book, **settings)
                continue
            with pytest.raises(PolicyRefusal, match="no names of columns"):
                company.site("site 0", book, **settings)


def test_a_sparse_table_is_refused_where_bounds_would_fill_it(tmp_path: Path) -> None:
    import scipy.sparse as sp

    company = Company(tmp_path, sections={"task": {"column_bounds": [1.0, 2.0], "row_bound": None}})
    with pytest.raises(ValueError, match="the table is sparse"):
        SiteData.of(SparseRows(sp.csr_array(np.eye(5))), company.study)


def test_a_node_that_is_stopped_in_the_middle_and_started_again_goes_on(tmp_path: Path) -> None:
    company = Company(
        tmp_path,
        sites=5,
        fanout=3,
        sections={"privacy": {"trust": "site"}, "task": {"method": "krylov", "rounds": 3}},
    )
    node = company.study.nodes[0].name

    async def all_of_them() -> None:
        async with asyncio.timeout(60):
            others = [place.name for place in company.study.nodes[1:]]
            parties = asyncio.gather(
                company.run_hub(), *map(company.run_site, company.names), *map(company.run_node, others)
            )
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
    with DurableLedger.open(tmp_path / "book") as book:
        desk_of(company, book)
        with pytest.raises(LedgerError, match="joined before by 'site 0'"):
            desk_of(company, book, name="site 1")
