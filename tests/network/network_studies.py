"""Whole studies over real connections on loopback, all parties in one event loop: each with its own keys, ledger and files."""

import asyncio
import socket
import tempfile
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from eigenveil.data.rows import DenseRows
from eigenveil.ledger.durable import DurableLedger
from eigenveil.model import Model
from eigenveil.network.agents.peer import PeerAgent
from eigenveil.network.agents.site_data import SiteData
from eigenveil.network.agents.star import HubAgent, NodeAgent, SiteAgent
from eigenveil.network.agents.steps import Event
from eigenveil.network.authority import Authority, new_request, write_new
from eigenveil.network.certificates import Keys, Role
from eigenveil.network.policy import Policy
from eigenveil.network.study import StudyFile
from eigenveil.protocols.star.rounds import tree

__all__ = ["COLUMNS", "Company", "PeerCompany", "authority", "free_port", "keys_of", "same_words", "settings_beside", "table_of"]

COLUMNS = ("age", "weight", "pulse", "mood", "sleep")


@cache
def authority() -> Authority:
    return Authority.fresh()


@cache
def keys_of(name: str, role: Role) -> Keys:
    """The keys of a party, signed; made once."""
    request, private = new_request(name, role)
    path = Path(tempfile.mkdtemp()) / "party.key"
    write_new(private={path: private}, public={path.with_suffix(".crt"): authority().sign(request).pem})
    return Keys.load(path)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def put_over(found: dict[str, Any], sections: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The document with other keys in its sections; None takes a key away."""
    for name, given in sections.items():
        table = {**found.get(name, {}), **given}
        found[name] = {key: value for key, value in table.items() if value is not None}
    return found


def table_of(seed: int, people: int = 300) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((people, len(COLUMNS))) * [1.5, 0.9, 0.4, 0.2, 0.1] + 0.3


def settings_beside(model: Model, study: StudyFile | None = None, *, unknown: AbstractSet[str] = frozenset()) -> dict[str, Any]:
    """The settings of a model, but for what names its study, which must be there, and for what is `unknown` to the other."""
    settings = dict(model.settings)
    if study is not None:
        assert (settings.pop("study"), settings.pop("study_digest")) == (study.name, study.digest)
    return {name: value for name, value in settings.items() if name not in unknown}


def same_words(model: Model, simulated: Model) -> bool:
    """Whether both guarantee the same. In one process there is one caveat more, and each party knows its own ledger alone."""
    one_process = [words for words in simulated.guarantee.caveats if "in one process" in words]
    caveats = tuple(words for words in simulated.guarantee.caveats if words not in one_process)
    return replace(model.guarantee, charges=()) == replace(simulated.guarantee, charges=(), caveats=caveats)


@dataclass
class PeerCompany:
    """Peers in a folder, on a ring unless `sections` say otherwise."""

    folder: Path
    peers: int = 4
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    happened: list[tuple[str, Event]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.names = [f"peer {at}" for at in range(self.peers)]
        self.tables = {name: table_of(at) for at, name in enumerate(self.names)}
        self.ports = {name: free_port() for name in self.names}
        found: dict[str, Any] = {
            "eigenveil_study": 1,
            "study": {"name": "heart", "id": "0123456789abcdef" * 2, "topology": "gossip"},
            "task": {"components": 2, "columns": list(COLUMNS), "row_bound": 4.0, "method": "power", "rounds": 3},
            "privacy": {"epsilon": 5.0, "delta": 1e-6, "noise": "pairwise"},
            "network": {"deadline": 20.0, "retries": 2, "join_timeout": 30.0},
            "graph": {"kind": "ring", "consensus": "chebyshev"},
            "authority": {"certificate": authority().pem},
            "peer": [
                {"address": f"127.0.0.1:{self.ports[name]}", "certificate": keys_of(name, "peer").certificate.pem}
                for name in self.names
            ],
        }
        self.study = StudyFile.of(put_over(found, self.sections))
        self.models: dict[str, Model] = {}

    def ledger(self, name: str) -> Path:
        return self.folder / f"{name}.ledger"

    async def run_peer(self, name: str, **changes: Any) -> None:
        settings: dict[str, Any] = {
            "keys": keys_of(name, "peer"),
            "holding": SiteData.of(DenseRows(self.tables[name]), self.study),
            "dataset": "patients",
            "policy": None,
            "on_event": lambda event: self.happened.append((name, event)),
        }
        with DurableLedger.open(self.ledger(name)) as ledger:
            agent = PeerAgent(self.study, ledger=ledger, **(settings | changes))
            await agent.run(lambda model: self.models.__setitem__(name, model), listen=f"127.0.0.1:{self.ports[name]}")

    def run(
        self, names: list[str] | None = None, *, changes: dict[str, dict[str, Any]] | None = None, seconds: float = 60.0
    ) -> list[BaseException | None]:
        """These peers, to the end; what each of them raised. `changes` are settings of single ones."""

        async def all_of_them() -> list[BaseException | None]:
            async with asyncio.timeout(seconds):
                them = self.names if names is None else names
                each = [self.run_peer(name, **(changes or {}).get(name, {})) for name in them]
                return await asyncio.gather(*each, return_exceptions=True)

        return asyncio.run(all_of_them())


@dataclass
class Company:
    """A study in a folder: sites with tables, a hub, and nodes where there is a tree. `sections` go over the study file."""

    folder: Path
    sites: int = 3
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    fanout: int | None = None
    policy: str | None = None
    happened: list[tuple[str, Event]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.names = [f"site {at}" for at in range(self.sites)]
        self.tables = {name: table_of(at) for at, name in enumerate(self.names)}
        self.port = free_port()
        self.study = StudyFile.of(self.document())
        self.models: dict[str, Model] = {}

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "eigenveil_study": 1,
            "study": {"name": "heart", "id": "0123456789abcdef" * 2, "topology": "star" if self.fanout is None else "tree"},
            "task": {"components": 2, "columns": list(COLUMNS), "row_bound": 4.0},
            "privacy": {"epsilon": 5.0, "delta": 1e-6, "trust": "masked"},
            "network": {"deadline": 20.0, "retries": 2, "join_timeout": 30.0},
            "authority": {"certificate": authority().pem},
            "hub": {"address": f"127.0.0.1:{self.port}", "certificate": keys_of("hub", "hub").certificate.pem},
            "site": [{"certificate": keys_of(name, "site").certificate.pem} for name in self.names],
        }
        if self.fanout is not None:
            found["tree"] = {"fanout": self.fanout}
            nodes = tree(self.names, fanout=self.fanout).nodes
            found["node"] = [
                {"address": f"127.0.0.1:{free_port()}", "certificate": keys_of(name, "node").certificate.pem} for name in nodes
            ]
        return put_over(found, self.sections)

    def told(self, who: str) -> Callable[[Event], None]:
        return lambda event: self.happened.append((who, event))

    def ledger(self, name: str) -> Path:
        return self.folder / f"{name}.ledger"

    def site(self, name: str, ledger: DurableLedger, **changes: Any) -> SiteAgent:
        settings: dict[str, Any] = {
            "keys": keys_of(name, "site"),
            "holding": SiteData.of(DenseRows(self.tables[name]), self.study),
            "ledger": ledger,
            "dataset": "patients",
            "policy": None if self.policy is None else Policy.parse(self.policy),
            "on_event": self.told(name),
        }
        return SiteAgent(self.study, **(settings | changes))

    async def run_site(self, name: str, **changes: Any) -> None:
        with DurableLedger.open(self.ledger(name)) as ledger:
            await self.site(name, ledger, **changes).run(lambda model: self.models.__setitem__(name, model))

    async def run_hub(self) -> HubAgent:
        with HubAgent.transcript_for(self.folder / "hub.transcript", self.study) as transcript:
            agent = HubAgent(self.study, keys=keys_of("hub", "hub"), transcript=transcript, on_event=self.told("hub"))
            await agent.run(lambda model: self.models.__setitem__("hub", model), listen=f"127.0.0.1:{self.port}")
            return agent

    async def run_node(self, name: str) -> None:
        place = self.study.place(name)
        assert place.address is not None
        await NodeAgent(self.study, keys=keys_of(name, "node"), on_event=self.told(name)).run(listen=place.address)

    def run(self, seconds: float = 60.0) -> HubAgent:
        """All parties, to the end."""

        async def all_of_them() -> HubAgent:
            async with asyncio.timeout(seconds):
                nodes = [] if self.fanout is None else [place.name for place in self.study.nodes]
                others = asyncio.gather(*map(self.run_site, self.names), *map(self.run_node, nodes))
                hub, _ = await asyncio.gather(self.run_hub(), others)
                return hub

        return asyncio.run(all_of_them())
