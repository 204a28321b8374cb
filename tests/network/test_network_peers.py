"""Peers over the network: the same answer as in one process, charged once, and no way back in for one that was stopped."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eigenveil.errors import PeersLost, ProtocolError
from eigenveil.estimators import GossipPCA
from eigenveil.ledger.durable import DurableLedger
from eigenveil.network.agents.runner import MESSAGE
from eigenveil.runtimes.grpc import Transport
from network.network_studies import PeerCompany, same_words, settings_beside


@pytest.mark.parametrize(
    "privacy, task",
    [
        ({}, {}),
        ({"noise": "independent"}, {"method": "covariance", "rounds": None}),
        ({"noise": "independent", "epsilon": 50.0}, {"method": "covariance", "rounds": None, "row_bound": "private"}),
        ({"epsilon": None, "delta": None, "no_privacy": True, "noise": None}, {"method": "krylov", "rounds": None}),
    ],
)
def test_with_a_test_seed_peers_agree_with_their_simulation(
    tmp_path: Path, privacy: dict[str, Any], task: dict[str, Any]
) -> None:
    company = PeerCompany(tmp_path, sections={"privacy": privacy, "task": task, "rehearsal": {"seed": 7}})
    assert company.run() == [None] * 4
    simulated = company.study.estimator()
    assert isinstance(simulated, GossipPCA)
    simulated.fit(company.tables)
    for name in company.names:
        model = company.models[name]
        # Pair noise comes from keys, which are not the simulation's, and cancels to the last digits only.
        np.testing.assert_allclose(abs(model.components @ simulated.components_.T), np.eye(2), atol=1e-6)
        np.testing.assert_allclose(model.mean, simulated.mean_, atol=1e-6)
        # How many bytes all peers sent, none of them knows. Noise floor and bound usage follow the mean.
        found = settings_beside(model, company.study)
        expected = settings_beside(simulated.model_, unknown={"bytes"})
        for near in {"noise_floor", "bound_usage"} & set(expected):
            assert found.pop(near) == pytest.approx(expected.pop(near), rel=1e-6)
        assert found == expected
        assert same_words(model, simulated.model_)


def test_peers_are_charged_once_each_and_a_stopped_one_cannot_come_back(tmp_path: Path) -> None:
    company = PeerCompany(tmp_path)
    assert company.run() == [None] * 4
    for name in company.names:
        assert company.models[name].guarantee.private
        with DurableLedger.open(company.ledger(name)) as ledger:
            ledger.verify()
            assert ledger.datasets()[0].spent > 0


def test_without_all_peers_nothing_is_revealed(tmp_path: Path) -> None:
    company = PeerCompany(tmp_path, sections={"network": {"join_timeout": 2.0}})
    ends = company.run(company.names[:3])
    assert all(isinstance(end, ProtocolError) and "peer 3 did not join" in str(end) for end in ends)
    for name in company.names[:3]:
        with DurableLedger.open(company.ledger(name)) as ledger:
            assert ledger.datasets()[0].spent == 0


def test_no_peer_begins_before_its_own_neighbours_are_connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All four have heard of each other the other way round the ring while two neighbours are not connected yet."""
    dial, send, lost = Transport.dial, Transport.send, list[tuple[str, str]]()

    def late(self: Transport, name: str, *given: Any, **more: Any) -> None:
        if (self.me, name) == ("peer 2", "peer 1"):
            asyncio.get_running_loop().call_later(0.3, lambda: dial(self, name, *given, **more))
        else:
            dial(self, name, *given, **more)

    async def watched(self: Transport, name: str, kind: int, data: bytes) -> bool:
        arrived = await send(self, name, kind, data)
        if kind == MESSAGE and not arrived:
            lost.append((self.me, name))
        return arrived

    monkeypatch.setattr(Transport, "dial", late)
    monkeypatch.setattr(Transport, "send", watched)
    company = PeerCompany(tmp_path, sections={"network": {"deadline": 1.0}})
    assert company.run() == [None] * 4
    assert lost == []


def test_a_peer_that_is_lost_as_the_study_begins_costs_nobody_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of five have begun when it goes. The other two, which are not connected to each other yet, must begin without it."""
    dial = Transport.dial

    def late(self: Transport, name: str, *given: Any, **more: Any) -> None:
        if (self.me, name) == ("peer 1", "peer 0"):
            asyncio.get_running_loop().call_later(1.0, lambda: dial(self, name, *given, **more))
        else:
            dial(self, name, *given, **more)

    class Gone(Exception):
        pass

    def stop(event: Any) -> None:
        if event.what == "began":
            raise Gone

    monkeypatch.setattr(Transport, "dial", late)
    network = {"deadline": 3.0, "quorum": 3}
    company = PeerCompany(tmp_path, 5, sections={"graph": {"kind": "complete"}, "network": network, "privacy": {"restarts": 1}})
    ends = company.run(changes={"peer 4": {"on_event": stop}})
    assert isinstance(ends.pop(), Gone)
    assert ends == [None] * 4


def test_a_peer_that_is_away_before_anybody_has_begun_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was started with something wrong, say. Without it nobody is charged."""
    company, lives = PeerCompany(tmp_path), list[str]()

    async def twice(name: str, **changes: Any) -> None:
        if name == "peer 3" and not lives:
            lives.append(name)
            alone = asyncio.ensure_future(run_peer(name, **changes))
            await asyncio.sleep(0.5)
            alone.cancel()
            await asyncio.gather(alone, return_exceptions=True)
        if name == "peer 2":
            await asyncio.sleep(1.5)
        await run_peer(name, **changes)

    run_peer = company.run_peer
    monkeypatch.setattr(company, "run_peer", twice)
    assert company.run() == [None] * 4


def test_a_peer_that_is_gone_is_left_behind_and_the_rest_may_say_why_they_stop(tmp_path: Path) -> None:
    company = PeerCompany(tmp_path, sections={"network": {"deadline": 0.5, "retries": 1}})

    class Gone(Exception):
        pass

    def stop(event: Any) -> None:
        if event.what == "round":
            raise Gone

    ends = company.run(changes={"peer 3": {"on_event": stop}})
    assert isinstance(ends[3], Gone)
    assert all(isinstance(end, PeersLost) for end in ends[:3])
    again = company.run(["peer 0"])
    assert isinstance(again[0], ProtocolError) and "stopped in the middle" in str(again[0])
