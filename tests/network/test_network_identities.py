"""Keys and study files in running studies: renewed certificates, withdrawn pins, and parties with another study file."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from eigenveil.errors import OtherStudy, ProtocolError
from eigenveil.ledger.durable import DurableLedger
from eigenveil.network.agents.runner import credentials_of
from eigenveil.network.agents.star import HubAgent, NodeAgent
from eigenveil.network.certificates import Certificate, Keys
from eigenveil.network.policy import PolicyRefusal
from eigenveil.network.study import StudyFile
from network.network_studies import Company, PeerCompany, authority, keys_of, put_over


async def ended(work: Any, seconds: float = 30.0) -> BaseException:
    """What the work raises, in time."""
    async with asyncio.timeout(seconds):
        found: object = (await asyncio.gather(work, return_exceptions=True))[0]
    assert isinstance(found, BaseException)
    return found


def other_file(company: Company) -> StudyFile:
    """The same study, but for one value."""
    return StudyFile.of(put_over(company.document(), {"task": {"row_bound": 4.5}}))


def test_a_site_with_another_study_file_stops_and_says_both_digests(tmp_path: Path) -> None:
    company = Company(tmp_path)
    wrong = other_file(company)

    async def check() -> None:
        hub = asyncio.create_task(company.run_hub())
        try:
            with DurableLedger.open(company.ledger("site 0")) as ledger:
                company.study, right = wrong, company.study
                site = company.site("site 0", ledger)
                company.study = right
                error = await ended(site.run(lambda _: None))
                assert isinstance(error, OtherStudy)
                assert company.study.digest in str(error) and wrong.digest in str(error)
                # It has spent nothing. Its reserve stays, because the hub may be the one with the wrong file.
                (study,) = ledger.studies()
                assert (study.account.study, study.state, study.spent) == (wrong.digest, "open", 0)
            # The hub has heard both too, and goes on for the others.
            told = [event.text for who, event in company.happened if who == "hub" and event.what == "left"]
            assert any(company.study.digest in words and wrong.digest in words for words in told)
            assert not hub.done()
            await asyncio.gather(*map(company.run_site, company.names[1:]), company.run_site("site 0"))
            await hub
        finally:
            hub.cancel()

    asyncio.run(check())
    assert set(company.models) == {"hub", *company.names}


def test_a_node_stops_only_for_the_party_above_it(tmp_path: Path) -> None:
    company = Company(tmp_path, sites=4, fanout=2, sections={"privacy": {"trust": "site"}})
    wrong = other_file(company)
    place = company.study.nodes[0]

    async def check() -> None:
        hub = asyncio.create_task(company.run_hub())
        try:
            node = NodeAgent(wrong, keys=keys_of(place.name, "node"))
            assert place.address is not None
            error = await ended(node.run(listen=place.address))
            assert isinstance(error, OtherStudy)
            assert company.study.digest in str(error) and wrong.digest in str(error)
            assert not hub.done()
        finally:
            hub.cancel()
            await asyncio.gather(hub, return_exceptions=True)

    asyncio.run(check())


@pytest.mark.parametrize("greeting", [b"", b"eigenveil 2 " + b"0" * 64, b"eigenveil 1 " + b"\x1b" * 64, b"\xff" * 4096])
def test_a_greeting_that_is_no_digest_is_not_shown(greeting: bytes, tmp_path: Path) -> None:
    words = Company(tmp_path).study.differs(greeting)
    assert words.isprintable() and len(words) < 100


def test_a_renewal_changes_neither_the_study_that_runs_nor_the_keys_of_the_next(tmp_path: Path) -> None:
    """Beside a key is the certificate of one study file, and in the study file that of another."""
    company = Company(tmp_path)
    renewed: dict[str, Certificate] = {}
    for place in company.study.places:
        renewed[place.name] = authority().renew(place.certificate, days=700)
        old, new = keys_of(place.name, place.certificate.role), renewed[place.name]
        assert new.pin == old.certificate.pin and new.pem != old.certificate.pem
        # Renewed beside the key: the study in progress is shown the certificate that its file has.
        later = Keys(new, old.identity, old.tls_key)
        assert credentials_of(company.study, later).certificate == place.certificate.pem.encode()
    # The next study file has the renewed ones, and all parties still have the old ones beside their keys.
    document = company.document()
    document["hub"]["certificate"] = renewed["hub"].pem
    document["site"] = [{"certificate": renewed[name].pem} for name in company.names]
    company.study = StudyFile.of(document)
    assert company.run().study.digest == company.study.digest
    assert set(company.models) == {"hub", *company.names}


def test_a_study_whose_certificates_have_ended_begins_again_after_a_renewal(tmp_path: Path) -> None:
    company = Company(tmp_path)
    past = datetime.now(UTC) - timedelta(days=400)
    document = company.document()
    before = authority().again(now=past)
    document["hub"]["certificate"] = before.renew(keys_of("hub", "hub").certificate, now=past).pem
    ended_study = StudyFile.of(document)
    with (
        HubAgent.transcript_for(tmp_path / "ended.transcript", ended_study) as transcript,
        pytest.raises(ValueError, match="eigenveil keys renew"),
    ):
        HubAgent(ended_study, keys=keys_of("hub", "hub"), transcript=transcript)
    # The renewed authority has signed nothing but the hub: what it signed before is as good.
    document["authority"]["certificate"] = before.again(days=900).pem
    document["hub"]["certificate"] = before.again(days=900).renew(ended_study.places[0].certificate, days=600).pem
    company.study = StudyFile.of(document)
    company.run()
    assert set(company.models) == {"hub", *company.names}


def test_a_pin_that_is_withdrawn_while_a_site_waits_ends_its_connection(tmp_path: Path) -> None:
    company = Company(tmp_path)
    pin = keys_of("hub", "hub").certificate.pin

    async def check() -> None:
        hub = asyncio.create_task(company.run_hub())
        try:
            error = await ended(company.run_site("site 0", withdrawn=lambda: [pin]))
            assert isinstance(error, PolicyRefusal)
            assert "[pins] withdrawn" in str(error) and pin in str(error)
        finally:
            hub.cancel()
            await asyncio.gather(hub, return_exceptions=True)

    asyncio.run(check())
    with DurableLedger.open(company.ledger("site 0")) as ledger:
        assert ledger.datasets()[0].spent == 0


def test_a_peer_turns_away_a_caller_whose_pin_was_withdrawn(tmp_path: Path) -> None:
    company = PeerCompany(tmp_path, sections={"network": {"join_timeout": 1.0}})
    # On a ring the last peer calls the first one.
    pin = keys_of("peer 3", "peer").certificate.pin
    ends = company.run(["peer 0", "peer 3"], changes={"peer 0": {"withdrawn": lambda: [pin]}})
    assert all(isinstance(end, ProtocolError) for end in ends)
    joined = [(who, event.who) for who, event in company.happened if event.what == "joined"]
    assert ("peer 0", "peer 3") not in joined and ("peer 3", "peer 0") not in joined
    # And does not call one.
    company.happened.clear()
    pin = keys_of("peer 0", "peer").certificate.pin
    ends = company.run(["peer 0", "peer 3"], changes={"peer 3": {"withdrawn": lambda: [pin]}})
    assert isinstance(ends[1], PolicyRefusal) and pin in str(ends[1])
