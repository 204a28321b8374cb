"""What two real processes say of connections: why one is not there, which callers are refused, and what went over each."""

import asyncio
import re
from pathlib import Path

import pytest

from commands.network.network_folders import Folders, Running, signed, started
from eigenveil.data.rows import DenseRows
from eigenveil.ledger.durable import DurableLedger
from eigenveil.network.agents.runner import credentials_of
from eigenveil.network.agents.site_data import SiteData
from eigenveil.network.agents.star import SiteAgent
from eigenveil.network.authority import write_new
from eigenveil.network.certificates import Keys
from eigenveil.runtimes.grpc import Transport


def a_stranger(folders: Folders) -> Keys:
    """Whose certificate the authority has signed, and who has no place in the study."""
    private, certificate = signed("stranger", "site")
    path = folders.root / "stranger.key"
    write_new(private={path: private}, public={path.with_suffix(".crt"): certificate.pem})
    return Keys.load(path)


async def turned_away(folders: Folders, hub: Running) -> str:
    """Call the hub as a stranger, until it says so."""
    keys, place = a_stranger(folders), folders.study.hub
    assert place is not None
    assert place.address is not None
    credentials = credentials_of(folders.study, keys)
    async with Transport("stranger", credentials=credentials, greeting=folders.study.greeting) as transport:
        certificate = place.certificate
        transport.dial("hub", place.address, certificate=certificate.pem.encode(), server_name=certificate.server_name)
        return await asyncio.to_thread(hub.until, lambda line: "refused a caller" in line)


async def take_part(folders: Folders, name: str) -> None:
    with DurableLedger.open(folders.of(name) / "ledger.db") as ledger:
        keys = Keys.load(folders.of(name) / f"{folders.of(name).name}.key")
        holding = SiteData.of(DenseRows(folders.tables[name]), folders.study)
        agent = SiteAgent(folders.study, keys=keys, holding=holding, ledger=ledger, dataset="patients", policy=None)
        await agent.run(lambda _: None)


@pytest.mark.slow
def test_a_site_says_why_it_waits_and_a_hub_which_callers_it_refused_and_the_traffic_of_each(tmp_path: Path) -> None:
    folders = Folders(tmp_path, privacy={"trust": "site"}, network={"deadline": 30.0, "join_timeout": 120.0})
    policy = folders.policy("site 0")
    command = folders.site("site 0", "--policy", policy, "--yes", "--dataset", "patients")

    async def others(hub: Running) -> str:
        line = await turned_away(folders, hub)
        await asyncio.gather(*(take_part(folders, name) for name in folders.names[1:]))
        return line

    with started((command, folders.of("site 0"))) as (site,):
        line = site.until(lambda line: "not connected to hub" in line)
        assert re.search(r"not connected to hub: .*refused.*; trying again$", line, re.IGNORECASE)
        with started((folders.hub(), folders.of("hub"))) as (hub,):
            line = asyncio.run(others(hub))
            assert re.search(r"refused a caller from 127\.0\.0\.1:\d+: its certificate is not one of", line)
            code, said, error = hub.ended()
            assert (code, error) == (0, "")
            for name in folders.names:
                assert re.search(rf"traffic of {name}: [0-9.]+ k?B up, [0-9.]+ k?B down", said)
            assert "stranger" not in said
        code, said, error = site.ended()
        assert (code, error) == (0, "")
        assert "connected to hub" in said
