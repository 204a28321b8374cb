"""`Place`: a party of a study, with its certificate and address; and what must hold for all parties together.

`StudyFile` reads its [authority], [hub], [[site]], [[node]] and [[peer]] tables with it.
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NoReturn, final

from cryptography.hazmat.primitives.serialization import Encoding

from eigenveil.errors import require
from eigenveil.network.identity.binding import host_from
from eigenveil.network.identity.certificates import Certificate, Role, authority_in
from eigenveil.params.tables import refuse_unknown, shown_in_file

__all__ = ["MOST", "Place", "address", "authority_from", "place_from", "places_from", "require_apart"]

# Far more than a study file of 4 MiB has room for, which is about 4000 certificates.
MOST: Final = 10_000


@final
@dataclass(frozen=True, slots=True)
class Place:
    """A party: its certificate, and where it listens ("host:port"), None if it only dials."""

    certificate: Certificate
    address: str | None = None

    @property
    def name(self) -> str:
        """Its name, from its certificate."""
        return self.certificate.name

    @property
    def pin(self) -> str:
        """64 lower-case hex digits: what others pin."""
        return self.certificate.pin


def address(where: str, value: Any) -> str:
    """An address as HOST:PORT, or [HOST]:PORT for an IPv6 address, with the host in canonical form."""
    expected = "HOST:PORT, such as hub.example.org:7443, with a port from 1 to 65535"
    if not isinstance(value, str) or len(value) > 300:
        _refuse(where, value, expected)
    # From the right: an IPv6 address has colons of its own, and must stand in brackets.
    host, colon, port = value.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    good = colon and port.isascii() and port.isdecimal() and len(port) <= 5 and 1 <= int(port) <= 65535
    if not good or (":" in host) != bracketed:
        _refuse(where, value, expected)
    try:
        name = host_from(host[1:-1] if bracketed else host)
    except ValueError as error:
        raise ValueError(f"{where} must be {expected}: {error}") from None
    # Good to listen at, but no site could call it.
    if name in ("0.0.0.0", str(ipaddress.IPv6Address(0))):
        _refuse(where, value, "an address that others can reach; this one means all interfaces of one machine")
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
    known = ["certificate", "address"] if listens else ["certificate"]
    explained = {"name": "its name is in its certificate, and a second one could contradict it"}
    if not listens:
        explained["address"] = "sites call the hub and do not listen"
    refuse_unknown(where, table, known, explained=explained)
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
    for place in places:
        name, mine = place.name, place.certificate
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
    if not isinstance(pem, str):
        _refuse(where, pem, "the text of a .crt file")
    return pem


def _refuse(where: str, value: Any, expected: str) -> NoReturn:
    raise ValueError(f"{where} must be {expected}, got {shown_in_file(value)}")
