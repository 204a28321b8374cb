"""`StudyFile`: what a study is, in one public TOML file that every party has. Every connection opens with its digest.

It comes from the coordinator and may be hostile. It is read within limits, nothing in it is run, and anything unknown or
impossible is an error that names it. `eigenveil study new` writes it with a comment above each key, for people.
"""

import hashlib
import ipaddress
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, final

from cryptography.hazmat.primitives.serialization import Encoding

from eigenveil.core.accounting import Budget
from eigenveil.core.unit import Neighbours, PrivacyUnit
from eigenveil.data.archive import text_owned
from eigenveil.errors import ParameterError, require
from eigenveil.linalg.graphs import Graph
from eigenveil.network.certificates import Certificate, Role, authority_in, host_from
from eigenveil.network.rules import check_terms, fewest_of, layout_of, require_own, require_said, require_together
from eigenveil.params.declarations.federated import MOST_EDGES, FederatedParams, GossipParams
from eigenveil.params.declarations.study import HubStudy, PeerStudy, said_in_file
from eigenveil.params.declare import declared, validate_params
from eigenveil.params.tables import (
    KeyLine,
    lines_of,
    load_toml,
    refuse_unknown,
    settled,
    shown_in_file,
    table_in,
    tables_of,
    values_in,
)
from eigenveil.params.tables import to_toml as toml_value
from eigenveil.params.values import Integer, InvalidValue

if TYPE_CHECKING:
    from eigenveil.estimators import FederatedPCA, GossipPCA
    from eigenveil.protocols.star.rounds import Layout

__all__ = ["MOST", "VERSION", "Place", "StudyFile", "address", "comment", "section"]

# Far more than a study file of 4 MiB has room for, which is about 4000 certificates.
MOST: Final = 10_000


@final
@dataclass(frozen=True, slots=True)
class Place:
    """A party: its certificate, and where it listens."""

    certificate: Certificate
    address: str | None = None  # "host:port". None if it only dials.

    @property
    def name(self) -> str:
        return self.certificate.name

    @property
    def pin(self) -> str:
        """64 lower-case hex digits: what others pin."""
        return self.certificate.pin

    def entry(self) -> dict[str, Any]:
        address = {} if self.address is None else {"address": self.address}
        return {**address, "certificate": self.certificate.pem}


def address(where: str, value: Any) -> str:
    """An address as HOST:PORT, or [HOST]:PORT for an IPv6 address, with the host in canonical form."""
    expected = f"{where} must be HOST:PORT, such as hub.example.org:7443, with a port from 1 to 65535"
    # From the right: an IPv6 address has colons of its own, and must stand in brackets.
    text = value if isinstance(value, str) and len(value) <= 300 else ""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    good = colon and port.isascii() and port.isdecimal() and len(port) <= 5 and 1 <= int(port) <= 65535
    require(bool(good) and (":" in host) == bracketed, f"{expected}, got {shown_in_file(value)}")
    try:
        name = host_from(host[1:-1] if bracketed else host)
    except ValueError as error:
        raise ValueError(f"{expected}: {error}") from None
    # Good to listen at, but no site could call it.
    require(
        name not in ("0.0.0.0", str(ipaddress.IPv6Address(0))),
        f"{where} must be an address that others can reach; this one means all interfaces of one machine, got "
        f"{shown_in_file(value)}",
    )
    # One spelling for one address, because it is part of the study's digest.
    return f"[{name}]:{int(port)}" if ":" in name else f"{name}:{int(port)}"


def authority_from(table: Any) -> str:
    """The authority's certificate, as canonical PEM: the digest of the study must not depend on its layout."""
    require(isinstance(table, dict), f"[authority] must be a table, got {shown_in_file(table)}")
    refuse_unknown("[authority]", table, ["certificate"])
    pem = _pem("[authority] certificate", table)
    try:
        return authority_in(pem).public_bytes(Encoding.PEM).decode()
    except ValueError as error:
        raise ValueError(f"[authority] certificate: {error}") from error


def place_from(where: str, table: Any, *, role: Role, listens: bool) -> Place:
    """The party in a table; one that `listens` has an address, others only dial."""
    require(isinstance(table, dict), f"{where} must be a table, got {shown_in_file(table)}")
    # Sites have no address: they call out, and hospitals let nothing in.
    keys = ["certificate", "address"] if listens else ["certificate"]
    explained = {"name": "its name is in its certificate, and a second one could contradict it"}
    if not listens:
        explained["address"] = "sites call the hub and do not listen"
    refuse_unknown(where, table, keys, explained=explained)
    pem = _pem(f"{where} certificate", table)
    try:
        certificate = Certificate.read(pem)
    except ValueError as error:
        raise ValueError(f"{where} certificate: {error}") from error
    require(
        # A site's certificate in the place of the hub would let that site read what others send.
        certificate.role == role,
        f"{where} certificate: expected a {role}, got {certificate.name!r}, a {certificate.role}",
    )
    if not listens:
        return Place(certificate)
    require("address" in table, f"{where} address is missing: where {certificate.name!r} listens, as HOST:PORT")
    return Place(certificate, address(f"{where} address", table["address"]))


def places_from(name: str, tables: Any, *, role: Role, listens: bool) -> tuple[Place, ...]:
    """The parties in a list of tables, [[name]]."""
    require(isinstance(tables, list), f"[[{name}]] must be a list of tables, got {shown_in_file(tables)}")
    require(len(tables) <= MOST, f"there may be at most {MOST} [[{name}]] tables, got {len(tables)}")
    numbered = enumerate(tables, start=1)
    return tuple(place_from(f"[[{name}]] {at}", table, role=role, listens=listens) for at, table in numbered)


def require_apart(places: Iterable[Place], authority: str) -> None:
    """Refuse parties that share a name, an identity or a key, and parties that the authority has not signed."""
    names: set[str] = set()
    pins: dict[str, str] = {}
    keys: dict[bytes, str] = {}
    # A shared key or identity would let one organisation count as two in a sum.
    for party in places:
        name, mine = party.name, party.certificate
        require(name not in names, f"two certificates have the name {name!r}; every party needs its own")
        other = pins.get(mine.pin, keys.get(mine.key_digest))
        require(other is None, f"{name!r} and {other!r} have the same keys; every party needs its own")
        # A listener would refuse it in TLS, but only when the study runs.
        mine.require_issued_by(authority)
        names.add(name)
        pins[mine.pin] = keys[mine.key_digest] = name


def _pem(where: str, table: dict[str, Any]) -> str:
    require("certificate" in table, f"{where} is missing: the text of its .crt file")
    pem = table["certificate"]
    require(isinstance(pem, str), f"{where} must be the text of a .crt file, got {shown_in_file(pem)}")
    return str(pem)


VERSION: Final = 1
# The number is the version of what parties say to each other.
_GREETING: Final = b"eigenveil 1 "
_MOST_PEERS: Final = 1000
_VERSION_KEY: Final = "eigenveil_study"
# The tables of parameters, in the order of the file, and all others.
_PARAMETERS: Final = ("study", "task", "slots", "privacy", "network", "tree", "graph")
_TABLES: Final = (*_PARAMETERS, "sizes", "rehearsal", "authority", "hub")
_LISTS: Final = ("site", "node", "peer")
# The sections that each topology needs; those of another topology are refused.
_OWN: Final = {"star": ("hub", "site"), "tree": ("hub", "site", "tree", "node"), "gossip": ("peer", "graph")}
_SEEDED: Final = "noise from a seed can be computed again, so a study has none; for a test run give [rehearsal] seed"
# Keys that people who know the estimators would try, and why a study does not have them.
_EXPLAINED: Final = {
    "seed": _SEEDED,
    "random_state": _SEEDED,
    "participation": "every site takes part in every round of a study across organisations",
    "calibration": "a study always uses exact accounting for its noise",
    "faults": "a study runs on a real network",
    "n_components": "it is called components here",
    "topology": "it belongs in [study]",
    "private": "give epsilon and delta in [privacy], or no_privacy = true",
}

# Where noise is added, and by whom. "none" if no party adds any.
Trust: TypeAlias = Literal["hub", "site", "both", "masked", "pairwise", "independent", "none"]


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class StudyFile:
    """A study: who takes part, what is computed from which columns, and what is guaranteed. Public, without any secret.

    A study with a `seed` is a rehearsal that protects no one. Make one with `read`, `parse`, `of` or `made`. Whether certificates
    are current is checked on the day it runs. Errors are `ParameterError`s, which the first three put in the words of the file.
    """

    params: HubStudy | PeerStudy  # The parameters of its estimator and its own, such as its columns.
    authority: str
    hub: Place | None = None
    sites: tuple[Place, ...] = ()  # These have rows, in order.
    nodes: tuple[Place, ...] = ()
    peers: tuple[Place, ...] = ()  # These have rows, in order.
    sizes: Mapping[str, int] | None = None  # The numbers of people at each, if `params.neighbours` makes them public.

    def __post_init__(self) -> None:
        kind = HubStudy if isinstance(self.params, HubStudy) else PeerStudy
        # However it was made: a study from Python is held to the same rules as one from a file.
        object.__setattr__(self, "params", validate_params(kind, self.params, strict=True))
        require_apart(self.places, self.authority)
        require_together(self)
        check_terms(self)

    def __eq__(self, other: object) -> bool:
        # By meaning: two files with other comments and another layout are one study.
        return isinstance(other, StudyFile) and self.document() == other.document()

    def __hash__(self) -> int:
        return hash(self.digest)

    @classmethod
    def read(cls, path: Path) -> "StudyFile":
        """The study in a file that only its owner may change; a `ValueError` says what is wrong with it."""
        try:
            return cls.parse(text_owned(path, ours=False))
        except ValueError as error:
            named = str(error).startswith(str(path))
            raise ValueError(str(error) if named else f"{path}: {error}") from error

    @classmethod
    def parse(cls, text: str) -> "StudyFile":
        """The study that a TOML text describes."""
        return cls.of(load_toml(text))

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "StudyFile":
        """The study in tables, as a TOML parser gives them."""
        version = document.get(_VERSION_KEY)
        require(
            # Not isinstance: in Python True is an int and equals 1.
            type(version) is int and version == VERSION,
            f"{_VERSION_KEY} must be {VERSION}, the version of study files that this program reads, got {shown_in_file(version)}",
        )
        # An unknown key is refused, never skipped: a misspelt limit would otherwise silently not hold.
        refuse_unknown("the study", document, [_VERSION_KEY, *_TABLES, *_LISTS], explained=_EXPLAINED)
        try:
            kind = _kind_of(document)
            # Known to the reader too, so that a key of the other topology gets a better answer than "unknown".
            other = PeerStudy if kind is HubStudy else HubStudy
            explicit = values_in(document, kind, explained=_EXPLAINED, others=(other,))
            require("rehearsal" not in document or "random_state" in explicit, "[rehearsal] seed is missing: a whole number")
            return cls.made(explicit, document)
        except ParameterError as error:
            raise ValueError(said_in_file(error)) from error

    @classmethod
    def made(cls, explicit: Mapping[str, Any], parties: Mapping[str, Any]) -> "StudyFile":
        """The study with these parameters, by name, between the parties in these tables."""
        kind: type[HubStudy] | type[PeerStudy] = PeerStudy if explicit["topology"] == "gossip" else HubStudy
        # What was given is checked before defaults fill it up: afterwards they could not be told apart.
        require_own(kind, explicit)
        params = settled(kind, explicit)
        require_said(params, explicit)
        peers = places_from("peer", parties.get("peer", []), role="peer", listens=True)
        if isinstance(params, PeerStudy):
            params = _explicit(params, tuple(peer.name for peer in peers))
        require("authority" in parties, "[authority] is missing: the certificate that signed all others")
        return cls(
            params=params,
            authority=authority_from(parties["authority"]),
            hub=place_from("[hub]", parties["hub"], role="hub", listens=True) if "hub" in parties else None,
            sites=places_from("site", parties.get("site", []), role="site", listens=False),
            nodes=places_from("node", parties.get("node", []), role="node", listens=True),
            peers=peers,
            sizes=_sizes(parties["sizes"]) if "sizes" in parties else None,
        )

    def document(self) -> dict[str, Any]:
        """All of it as tables in normal form: `of(document())` is this study.

        Unset keys are left out, and so are those that concern few studies and have their defaults.
        """
        tables: dict[str, Any] = {_VERSION_KEY: VERSION, **tables_of(self.params, leave=_idle(self))}
        if self.sizes is not None:
            # In the order of the parties, whatever order the file had: layout is not meaning.
            tables["sizes"] = {party.name: self.sizes[party.name] for party in self.holders}
        tables["authority"] = {"certificate": self.authority}
        if self.hub is not None:
            tables["hub"] = self.hub.entry()
        for name, places in zip(_LISTS, (self.sites, self.nodes, self.peers), strict=True):
            tables |= {name: [party.entry() for party in places]} if places else {}
        return tables

    def lines(self, section: str) -> Iterator[KeyLine]:
        """The keys of a table of parameters, with their values and what they mean."""
        return lines_of(self.params, section, leave=_idle(self))

    def text(self) -> str:
        """The study as TOML with comments: `parse(text())` is this study."""
        return "\n".join(_lines(self)) + "\n"

    @cached_property
    def digest(self) -> str:
        """64 hex digits that change exactly when the meaning does: order counts, layout does not."""
        # Canonical JSON of the normal form, so that the digest does not depend on how the TOML was written.
        canonical = json.dumps(self.document(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(canonical.encode()).hexdigest()

    @property
    def greeting(self) -> bytes:
        """What both ends of a connection say first, so that no party takes part in the wrong study."""
        return _GREETING + self.digest.encode()

    def differs(self, greeting: bytes) -> str:
        """What another party's greeting says, in words, with both digests: they are public."""
        match = re.fullmatch(re.escape(_GREETING) + rb"([0-9a-f]{64})", greeting)
        if match is None:
            return "it runs another version of the program"
        return f"it works on another study: its digest is {match[1].decode()}, and here it is {self.digest}"

    @property
    def name(self) -> str:
        return self.params.name

    @property
    def topology(self) -> str:
        """ "star", "tree" or "gossip"."""
        return self.params.topology

    @property
    def columns(self) -> tuple[str, ...]:
        return self.params.columns

    @property
    def seed(self) -> int | None:
        """The test seed of a rehearsal."""
        return self.params.random_state

    @property
    def fanout(self) -> int | None:
        """The most parties below the hub and below each node of a tree."""
        return self.params.fanout if isinstance(self.params, HubStudy) and self.topology == "tree" else None

    @property
    def streaming(self) -> bool:
        """Whether sites follow streams, slot by slot."""
        return isinstance(self.params, HubStudy) and self.params.streaming

    @property
    def private(self) -> bool:
        """Whether it gives a guarantee, unless it is a rehearsal."""
        return self.params.epsilon is not None

    @property
    def trust(self) -> Trust:
        """Where noise is added: "hub", "site", "both" or "masked"; between peers "pairwise" or "independent"; or "none"."""
        if not self.private:
            return "none"
        # `require_together` refuses peers with a budget and no noise.
        return self.params.noise or "none" if isinstance(self.params, PeerStudy) else self.params.trust

    @property
    def title(self) -> str:
        """What signatures are bound to, so that one from another study is worth nothing."""
        return f"eigenveil study {self.digest}"

    @property
    def masked(self) -> bool:
        """Whether the hub sees sums only."""
        return isinstance(self.params, HubStudy) and self.params.trust == "masked"

    @property
    def budget(self) -> Budget | None:
        """The most it costs a person, against the party that sees most: with trust "both" the budget against the hub."""
        epsilon, delta = self.params.epsilon, self.params.delta
        if epsilon is None or delta is None:
            return None
        # A pair has the budget against the hub first, which sees most.
        epsilon, delta = (value[0] if isinstance(value, tuple) else value for value in (epsilon, delta))
        return Budget(epsilon, delta)

    @property
    def unit(self) -> PrivacyUnit:
        """What it protects: people if it names the column that tells them apart, otherwise rows."""
        person, neighbours = self.params.person, Neighbours(self.params.neighbours)
        if isinstance(self.params, HubStudy) and self.params.streaming:
            several = self.params.one_person_per_site or self.params.person_slots > 1
            return PrivacyUnit.of(neighbours, grouped=several)
        return PrivacyUnit.of(neighbours, grouped=person is not None, column=person)

    @property
    def holders(self) -> tuple[Place, ...]:
        """The parties with rows, in order: the sites or the peers."""
        return self.peers if self.topology == "gossip" else self.sites

    @property
    def places(self) -> tuple[Place, ...]:
        """Every party: the hub, then nodes, then sites or peers."""
        return (*(() if self.hub is None else (self.hub,)), *self.nodes, *self.sites, *self.peers)

    @property
    def fewest(self) -> int:
        """The fewest organisations in any sum that others see: survivors under masks, otherwise the quorum."""
        return fewest_of(self)

    @property
    def patience(self) -> float:
        """Seconds that a party waits for an answer, with all its tries."""
        return self.params.deadline * (1 + self.params.retries)

    def place(self, name: str) -> Place:
        """The party of this name, or a `ValueError` that lists those who take part."""
        for party in self.places:
            if party.name == name:
                return party
        names = ", ".join(party.name for party in self.places[:10]) + (" and more" if len(self.places) > 10 else "")
        raise ValueError(f"{shown_in_file(name)} does not take part in the study {self.name!r}; these do: {names}")

    def layout(self) -> "Layout":
        """Which party is above which in a star or tree; a `ValueError` for gossip."""
        return layout_of(self)

    def parameters(self) -> dict[str, Any]:
        """All parameters of the estimator that simulates this study."""
        params: dict[str, Any] = dict(self.estimator().get_params(deep=False))  # type: ignore[no-untyped-call]
        return params

    def estimator(self) -> "FederatedPCA | GossipPCA":
        """That estimator, not fitted; it needs no rows to be made."""
        # Imported here, because a wrong file should be refused before anything heavy is loaded.
        from eigenveil.estimators import FederatedPCA, GossipPCA

        require(not self.streaming, f"{self.name!r} is a study of streams, which FederatedStream simulates")
        if isinstance(self.params, HubStudy):
            return FederatedPCA(**{name: getattr(self.params, name) for name in declared(FederatedParams)})
        params = {name: getattr(self.params, name) for name in declared(GossipParams)}
        # Peers have no "auto" of their own: in a study file it stands for their default.
        usual = declared(GossipParams)["method"].default
        return GossipPCA(**params | {"method": usual if self.params.method == "auto" else self.params.method})


def _idle(study: StudyFile) -> tuple[str, ...]:
    # Without privacy no noise is added, so of the trusts only "masked" has a meaning.
    return () if study.private or study.masked else ("trust",)


def _kind_of(document: Mapping[str, Any]) -> type[HubStudy] | type[PeerStudy]:
    """Which parameters a document has; its topology says so."""
    require("study" in document, "[study] is missing")
    topology, whom = table_in(document, "study").get("topology"), "star, tree, gossip"
    require(topology is not None, f"[study] topology is missing: who talks to whom, one of {whom}")
    if not isinstance(topology, str) or topology not in _OWN:
        raise ValueError(f"[study] topology must be one of {whom}, got {shown_in_file(topology)}")
    for name in sorted({section for sections in _OWN.values() for section in sections}):
        shape = f"[[{name}]]" if name in _LISTS else f"[{name}]"
        who = next(other for other, sections in _OWN.items() if name in sections)
        own = name in _OWN[topology]
        wrong = f"{shape} is for topology = {who!r}, and [study] topology is {topology!r}"
        require(own or name not in document, wrong)
        # In a small tree all sites are below the hub, and there are no nodes.
        lacking = own and name != "node" and name not in document
        require(not lacking, f"{shape} is missing: topology = {topology!r} needs it")
    return PeerStudy if topology == "gossip" else HubStudy


def _explicit(params: PeerStudy, names: tuple[str, ...]) -> PeerStudy:
    """The graph as edges, in the order of names. What a kind stands for may change with versions; edges do not."""
    # Before the graph is made: a complete graph grows with the square of the number of peers.
    require(2 <= len(names) <= _MOST_PEERS, f"there must be 2 to {_MOST_PEERS} [[peer]] tables, got {len(names)}")
    graph, kind = params.graph, params.kind
    require((graph is None) != (kind is None), "[graph] must have either edges or kind, and not both")
    if kind is None:
        edges = _ordered("graph", graph, names)
    else:
        try:
            edges = Graph.named(kind, names).edges
        except ValueError as error:
            raise ValueError(f"[graph] kind = {shown_in_file(kind)}: {error}") from None
    noisy = None if params.noise_graph is None else _ordered("noise_graph", params.noise_graph, names)
    require(len(edges) <= MOST_EDGES, f"[graph] may have at most {MOST_EDGES} edges, and {kind} has {len(edges)}")
    return replace(params, graph=edges, kind=None, noise_graph=noisy)


def _ordered(name: str, edges: Any, names: tuple[str, ...]) -> Any:
    try:
        ordered = Graph.of(names, edges).edges
    except ValueError as error:
        # A `ParameterError` takes braces for parameters, so those of the message are escaped.
        raise ParameterError(f"{{{name}}}: {str(error).replace('{', '{{').replace('}', '}}')}") from None
    if len(ordered) != len(edges):
        raise ParameterError(f"{{{name}}} has the same edge twice")
    return ordered


def _sizes(table: Any) -> dict[str, int]:
    require(isinstance(table, dict) and len(table) <= MOST, f"[sizes] must be a table of numbers, got {shown_in_file(table)}")
    # Up to 2^53 every whole number is exact in float64, which is what sizes become.
    check, sizes = Integer(min=0, max=1 << 53), {}
    for name, size in table.items():
        try:
            sizes[name] = check(size)
        except InvalidValue as error:
            raise ValueError(f"[sizes] {shown_in_file(name)} must be {error}, got {shown_in_file(size)}") from None
    return sizes


_WIDTH: Final = 100
_HEAD: Final = (
    "A study across organisations. It is public, has no secrets, and is the same for every party.",
    "Changing one key makes another study, and the parties of this one refuse to talk to it.",
    "Look at it with: eigenveil study show FILE",
)

_PINS: Final = "Compare the pins of the parties you trust by telephone; eigenveil study show prints them."


def _lines(study: "StudyFile") -> Iterator[str]:
    document = study.document()
    for text in _HEAD:
        yield from comment(text)
    yield f"eigenveil_study = {document['eigenveil_study']}"
    # Parameters first, certificates last: people read the top of the file.
    for name in _PARAMETERS:
        yield from section(name, study.lines(name))
    if study.sizes is not None:
        yield from _table("sizes", document["sizes"], "The number of people at each site, which this study makes public.")
    yield from section("rehearsal", study.lines("rehearsal"))
    yield from _table("authority", document["authority"], "Signed the certificates of all parties.")
    if study.hub is not None:
        yield from _table("hub", document["hub"], "Adds up what sites send, and listens here.")
    yield ""
    yield from comment(_PINS)
    for name, places in (("site", study.sites), ("node", study.nodes), ("peer", study.peers)):
        for party, entry in zip(places, document.get(name, []), strict=True):
            yield from _table(name, entry, f"{party.name}, pin {party.pin}", several=True)


def section(name: str, lines: Iterable[KeyLine]) -> Iterator[str]:
    """A table with a comment above each key; nothing if it has no keys."""
    for at, line in enumerate(lines):
        yield from (f"\n[{name}]",) if at == 0 else ()
        yield from comment(line.comment)
        yield f"{line.key} = {toml_value(line.value)}"


def _table(name: str, table: Mapping[str, Any], text: str, *, several: bool = False) -> Iterator[str]:
    yield ""
    yield from comment(text)
    yield f"[[{name}]]" if several else f"[{name}]"
    for key, value in table.items():
        # Names of sites may be any text and need quotes; our keys are plain words.
        shown = key if key.isascii() and key.isidentifier() else toml_value(key)
        # In TOML's long form a certificate keeps its lines, as in its .crt file.
        yield f'{shown} = """\n{value}"""' if key == "certificate" else f"{shown} = {toml_value(value)}"


def comment(text: str) -> Iterator[str]:
    """The words as comment lines, wrapped between words."""
    line = "#"
    for word in text.split(" "):
        if len(line) + 1 + len(word) > _WIDTH and line != "#":
            yield line
            line = "#"
        line += f" {word}"
    yield line
