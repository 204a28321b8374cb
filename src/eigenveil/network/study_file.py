"""`StudyFile`: what a study is, in one public TOML file that every party holds and whose digest every connection opens with.

It comes from the coordinator and may be hostile: it is read within limits, nothing in it is run, and whatever is not known or
cannot be kept is an error that names it.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from eigenveil.errors import require
from eigenveil.graphs import Graph
from eigenveil.network.study_keys import refuse_unknown, section_from, shown, whole
from eigenveil.network.study_places import MOST, Place, authority_from, place_from, places_from, require_apart
from eigenveil.network.study_sections import (
    EXPLAINED,
    MOST_EDGES,
    MOST_PEERS,
    About,
    GraphTerms,
    NetworkTerms,
    PrivacyTerms,
    Rehearsal,
    TaskTerms,
    TreeTerms,
)
from eigenveil.network.study_terms import check_terms, fewest_of, layout_of, parameters_of, require_together
from eigenveil.network.study_text import text_of
from eigenveil.network.study_toml import load_toml, written_by_owner
from eigenveil.network.study_words import words_of
from eigenveil.privacy import Budget

if TYPE_CHECKING:
    from eigenveil.estimators import FederatedPCA, GossipPCA
    from eigenveil.protocols import Layout

__all__ = ["VERSION", "Place", "StudyFile"]

VERSION: Final = 1
_VERSION_KEY: Final = "eigenveil_study"
_TABLES: Final = ("study", "task", "privacy", "network", "tree", "graph", "sizes", "rehearsal", "authority", "hub")
_LISTS: Final = ("site", "node", "peer")
# What each carrier has of its own, and must not have.
_OWN: Final = {"star": ("hub", "site"), "tree": ("hub", "site", "tree", "node"), "gossip": ("peer", "graph")}


@final
@dataclass(frozen=True)
class StudyFile:
    """A study: who takes part, what is computed of which columns, and what is promised. Public, and no secret is in it.

    `about`, `task`, `privacy` and `network` are its sections. `sites` or `peers` hold rows, in order; `hub` and `nodes` gather.
    `sizes` are the people of each, where `task.neighbours` declares them public. A study with a `seed` is a rehearsal that
    protects nobody. Made by `read`, `parse` or `of`; whether certificates are current is a question for the day it runs.
    """

    about: About
    task: TaskTerms
    privacy: PrivacyTerms
    network: NetworkTerms
    authority: str
    hub: Place | None = None
    sites: tuple[Place, ...] = ()
    nodes: tuple[Place, ...] = ()
    peers: tuple[Place, ...] = ()
    fanout: int | None = None
    graph: GraphTerms | None = None
    sizes: Mapping[str, int] | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        require_apart(self.places, self.authority)
        require_together(self)
        check_terms(self)

    def __hash__(self) -> int:
        return hash(self.digest)

    @classmethod
    def read(cls, path: Path) -> "StudyFile":
        """The study in a file that nobody but its owner may change; a `ValueError` that says what is wrong with it."""
        try:
            return cls.parse(written_by_owner(path))
        except ValueError as error:
            named = str(error).startswith(str(path))
            raise ValueError(str(error) if named else f"{path}: {error}") from error

    @classmethod
    def parse(cls, text: str) -> "StudyFile":
        """The study that a TOML text describes."""
        return cls.of(load_toml(text))

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "StudyFile":
        """The study that tables say, as TOML would give them."""
        version = document.get(_VERSION_KEY)
        require(
            type(version) is int and version == VERSION,
            f"{_VERSION_KEY} must be {VERSION}, the version of the format that this program reads, got {shown(version)}",
        )
        refuse_unknown("the study", document, [_VERSION_KEY, *_TABLES, *_LISTS], explained=EXPLAINED)
        about = _section(About, "study", document)
        _require_own(about.carrier, document)
        hub = None
        if "hub" in document:
            hub = place_from("[hub]", document["hub"], role="hub", listens=True)
        peers = places_from("peer", document.get("peer", []), role="peer", listens=True)
        graph = None
        if about.carrier == "gossip":
            graph = _explicit(_section(GraphTerms, "graph", document), tuple(place.name for place in peers))
        require("authority" in document, "[authority] is missing: the certificate that signed all others")
        return cls(
            about=about,
            task=_section(TaskTerms, "task", document),
            privacy=_section(PrivacyTerms, "privacy", document),
            network=_section(NetworkTerms, "network", document),
            authority=authority_from(document["authority"]),
            hub=hub,
            sites=places_from("site", document.get("site", []), role="site", listens=False),
            nodes=places_from("node", document.get("node", []), role="node", listens=True),
            peers=peers,
            fanout=_section(TreeTerms, "tree", document).fanout if about.carrier == "tree" else None,
            graph=graph,
            sizes=_sizes(document["sizes"]) if "sizes" in document else None,
            seed=_section(Rehearsal, "rehearsal", document).seed if "rehearsal" in document else None,
        )

    def document(self) -> dict[str, Any]:
        """All of it as tables, without the keys that are left open: `of(document())` is this study."""
        found: dict[str, Any] = {_VERSION_KEY: VERSION, "study": _table(self.about), "task": _table(self.task)}
        found |= {"privacy": _table(self.privacy), "network": _table(self.network)}
        found |= {} if self.fanout is None else {"tree": {"fanout": self.fanout}}
        found |= {} if self.graph is None else {"graph": _table(self.graph)}
        found |= {} if self.sizes is None else {"sizes": {place.name: self.sizes[place.name] for place in self.holders}}
        found |= {} if self.seed is None else {"rehearsal": {"seed": self.seed}}
        found["authority"] = {"certificate": self.authority}
        found |= {} if self.hub is None else {"hub": _entry(self.hub)}
        for name, places in zip(_LISTS, (self.sites, self.nodes, self.peers), strict=True):
            found |= {name: [_entry(place) for place in places]} if places else {}
        return found

    def text(self) -> str:
        """The study as TOML with comments: `parse(text())` is this study."""
        return text_of(self)

    @cached_property
    def digest(self) -> str:
        """64 hex digits that change with every change of meaning, and with no other: order counts, layout does not."""
        canonical = json.dumps(self.document(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(canonical.encode()).hexdigest()

    @property
    def greeting(self) -> bytes:
        """What both ends of a connection say first, so that nobody takes part in another study than they think."""
        return b"eigenveil 1 " + self.digest.encode()

    @property
    def name(self) -> str:
        """What the study is called."""
        return self.about.name

    @property
    def id(self) -> str:
        """32 random hex digits of its own."""
        return self.about.id

    @property
    def purpose(self) -> str | None:
        """What it is for."""
        return self.about.purpose

    @property
    def carrier(self) -> str:
        """ "star", "tree" or "gossip"."""
        return self.about.carrier

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return self.task.columns

    @property
    def private(self) -> bool:
        """Whether anything is promised, as far as it is no rehearsal."""
        return not self.privacy.none

    @property
    def trust(self) -> str:
        """Where the noise is: "curator", "site", "both" or "masked"; between peers "pairwise" or "independent"; or "none"."""
        if not self.private:
            return "none"
        return str(self.privacy.noise if self.carrier == "gossip" else self.privacy.trust)

    @property
    def masked(self) -> bool:
        """Whether the hub sees sums only."""
        return self.privacy.trust == "masked"

    @property
    def budget(self) -> Budget | None:
        """What one person at a site pays at most, to whoever sees most: with trust both the first of the two, against the hub."""
        epsilon, delta = self.privacy.epsilon, self.privacy.delta
        if epsilon is None or delta is None:
            return None
        epsilon, delta = (value[0] if isinstance(value, tuple) else value for value in (epsilon, delta))
        return Budget(epsilon, delta)

    @property
    def holders(self) -> tuple[Place, ...]:
        """Who holds rows, in order: the sites or the peers."""
        return self.peers if self.carrier == "gossip" else self.sites

    @property
    def places(self) -> tuple[Place, ...]:
        """Every party: the hub, then nodes, then sites or peers."""
        return (*(() if self.hub is None else (self.hub,)), *self.nodes, *self.sites, *self.peers)

    @property
    def fewest(self) -> int:
        """Over how many organisations a sum that anybody sees is at least: survivors under masks, otherwise the quorum."""
        return fewest_of(self)

    def place(self, name: str) -> Place:
        """The party of this name, or a `ValueError` that says who there is."""
        for place in self.places:
            if place.name == name:
                return place
        names = ", ".join(place.name for place in self.places[:10]) + (" and more" if len(self.places) > 10 else "")
        raise ValueError(f"there is no {shown(name)} in the study {self.name!r}; there are {names}")

    def layout(self) -> "Layout":
        """Who stands above whom in a star or tree; a `ValueError` for gossip."""
        return layout_of(self)

    def parameters(self) -> dict[str, Any]:
        """All parameters of the estimator that a simulation of this study is."""
        return parameters_of(self)

    def estimator(self) -> "FederatedPCA | GossipPCA":
        """That estimator, not fitted; it needs no rows to be made."""
        from eigenveil.estimators import FederatedPCA, GossipPCA

        parameters = self.parameters()
        return GossipPCA(**parameters) if self.carrier == "gossip" else FederatedPCA(**parameters)

    def words(self) -> list[str]:
        """What it is, in plain sentences: what is computed, who takes part, who learns what, and at what cost."""
        return list(words_of(self))


def _section(kind: Any, name: str, document: Mapping[str, Any]) -> Any:
    # All keys of [network] have defaults, and so it may be left out.
    table = document.get(name, {} if name == "network" else None)
    require(table is not None, f"[{name}] is missing")
    explained = {word: why for word, why in EXPLAINED.items() if (name, word) != ("rehearsal", "seed")}
    return section_from(kind, name, table, explained=explained)


def _require_own(carrier: str, document: Mapping[str, Any]) -> None:
    """Refuse sections of another carrier, and say which are missing."""
    own = _OWN[carrier]
    for name in sorted({section for sections in _OWN.values() for section in sections}):
        shape = f"[[{name}]]" if name in _LISTS else f"[{name}]"
        who = next(other for other, sections in _OWN.items() if name in sections)
        require(
            name in own or name not in document, f"{shape} is for carrier = {who!r}, and [study] carrier is {carrier!r}"
        )
        # A tree so small that everybody is below the hub has no nodes.
        require(
            name not in own or name == "node" or name in document, f"{shape} is missing: carrier = {carrier!r} needs it"
        )


def _explicit(graph: GraphTerms, names: tuple[str, ...]) -> GraphTerms:
    """The graph with its edges in the order of names: what a kind stands for may change with versions, edges do not."""
    require(2 <= len(names) <= MOST_PEERS, f"there must be 2 to {MOST_PEERS} [[peer]] tables, got {len(names)}")
    require((graph.edges is None) != (graph.kind is None), "[graph] must have either edges or kind, and not both")
    if graph.kind is None:
        edges = _ordered("edges", graph.edges, names)
    else:
        try:
            edges = Graph.named(graph.kind, names).edges
        except ValueError as error:
            raise ValueError(f"[graph] kind = {shown(graph.kind)}: {error}") from None
    noisy = None if graph.noise_edges is None else _ordered("noise_edges", graph.noise_edges, names)
    require(len(edges) <= MOST_EDGES, f"[graph] may have {MOST_EDGES} edges, and {graph.kind} has {len(edges)}")
    return replace(graph, edges=edges, kind=None, noise_edges=noisy)


def _ordered(name: str, edges: Any, names: tuple[str, ...]) -> Any:
    try:
        found = Graph.of(names, edges).edges
    except ValueError as error:
        raise ValueError(f"[graph] {name}: {error}") from None
    require(len(found) == len(edges), f"[graph] {name} has an edge twice")
    return found


def _sizes(table: Any) -> dict[str, int]:
    require(isinstance(table, dict) and len(table) <= MOST, f"[sizes] must be a table of numbers, got {shown(table)}")
    check = whole(0, 1 << 53)
    return {name: check(f"[sizes] {shown(name)}", size) for name, size in table.items()}


def _table(section: Any) -> dict[str, Any]:
    return dict(_given(section))


def _given(section: Any) -> Iterator[tuple[str, Any]]:
    for one in fields(section):
        value = getattr(section, one.name)
        if value is not None:
            yield one.name, value


def _entry(place: Place) -> dict[str, Any]:
    found = {"certificate": place.certificate.pem}
    return found if place.address is None else {"address": place.address, **found}
