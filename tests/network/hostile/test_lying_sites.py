"""A site that lies about its secrets, in a study of shipped agents over TLS: the others end it without the liar, and pay once."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eigenveil.protocols.masked.session as session_module
from eigenveil.errors import ProtocolError
from eigenveil.ledger.durable import DurableLedger
from eigenveil.network.agents.star import HubAgent
from eigenveil.protocols.masked.session import Session
from eigenveil.protocols.messages import Table
from network.hostile.hostile_checks import SECONDS, written
from network.kills.kill_counts import charges_in
from network.network_studies import Company

LIAR = "site 2"


def lying(patch: pytest.MonkeyPatch, name: str, change: Callable[[Any], Any]) -> None:
    """The liar shares out its secrets with another function of this name, made from the one that everybody has."""
    share_out, true = Session.share_out, vars(session_module)[name]
    # All sites run in this process, each in a thread of its own, so the function must know whose call it is.
    lies = threading.local()

    def false(session: Session, signed_keys: Table) -> tuple[bytes, Table] | None:
        lies.now = session._name == LIAR
        return share_out(session, signed_keys)

    def told(*given: Any, **more: Any) -> Any:
        act = change(true) if lies.now else true
        return act(*given, **more)

    patch.setattr(Session, "share_out", false)
    patch.setattr(session_module, name, told)


def company_of(folder: Path, **privacy: Any) -> Company:
    return Company(
        folder,
        sites=5,
        sections={
            "privacy": {"survivors": 4, "colluders": 1} | privacy,
            "task": {"center": "none"},
            "network": {"deadline": 3.0, "retries": 0},
        },
    )


def with_resumes(company: Company, most: int) -> tuple[HubAgent, list[ProtocolError], list[int]]:
    """The whole study, whose hub is started again when it stops; how often sites had paid each time is the last."""
    stopped: list[ProtocolError] = []
    paid: list[int] = []

    async def hub() -> HubAgent:
        while True:
            try:
                return await company.run_hub()
            except ProtocolError as error:
                stopped.append(error)
                paid.append(sum(_charges(company, name) for name in company.names))
                assert len(stopped) <= most

    async def all_of_them() -> HubAgent:
        async with asyncio.timeout(SECONDS):
            sites = asyncio.gather(*map(company.run_site, company.names))
            agent, _ = await asyncio.gather(hub(), sites)
            return agent

    return asyncio.run(all_of_them()), stopped, paid


def _charges(company: Company, name: str) -> int:
    """While the site runs: its ledger may be read meanwhile."""
    with DurableLedger.reading(company.ledger(name)) as ledger:
        return len(charges_in(ledger.entries()))


def require_ended_without_the_liar(company: Company, agent: HubAgent) -> None:
    # In a round of its own, one charge each: the covariance; the totals come with it.
    honest = [name for name in company.names if name != LIAR]
    assert agent.durable.rounds[-1].answered == tuple(honest)
    once = charges_in(written(company, honest[0]))
    assert len({label for label, _ in once}) == len(once) == len(agent.durable.rounds)
    for name in honest:
        assert charges_in(written(company, name)) == once
        np.testing.assert_array_equal(company.models[name].components, company.models["hub"].components)
    assert charges_in(written(company, LIAR)) == []


def test_a_site_whose_secrets_do_not_fit_its_keys_is_left_out_of_the_roster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lying(
        monkeypatch,
        "polynomial",
        lambda make: lambda secret, **more: make((int.from_bytes(secret, "big") - 1).to_bytes(32, "big"), **more),
    )
    company = company_of(tmp_path)
    agent, stopped, _ = with_resumes(company, 0)
    assert stopped == []
    require_ended_without_the_liar(company, agent)


def test_a_site_whose_shares_are_not_of_one_polynomial_stops_the_hub_before_anybody_has_paid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two holders of four deny what they got. The hub that is started again goes on without the liar."""

    def crooked(split: Any) -> Any:
        def false(polynomials: Any, **more: Any) -> dict[int, list[bytes]]:
            shares: dict[int, list[bytes]] = split(polynomials, **more)
            return shares | {point: shares[point][::-1] for point in (1, 2)}

        return false

    lying(monkeypatch, "split", crooked)
    company = company_of(tmp_path)
    agent, stopped, paid = with_resumes(company, 1)
    assert len(stopped) == 1 and f"{LIAR} sent holders other bundles than announced" in str(stopped[0])
    assert paid == [0]
    require_ended_without_the_liar(company, agent)
