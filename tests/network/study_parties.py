"""Parties with certificates for studies in tests: made once, because keys take a while."""

from functools import cache
from typing import Any

from eigenveil.network.authority import Authority, new_request
from eigenveil.network.certificates import Certificate, Role

__all__ = ["authority", "certificate", "document", "gossip_document", "tree_document"]

ID = "0123456789abcdef" * 2


@cache
def authority() -> Authority:
    """The authority of all studies here."""
    return Authority.fresh()


@cache
def certificate(name: str, role: Role) -> Certificate:
    """The certificate of a party, the same in all tests of a run."""
    return authority().sign(new_request(name, role)[0])


def document(sites: int = 3, **sections: Any) -> dict[str, Any]:
    """A masked star with a budget, as tables; `sections` are keys to be put over it, None to leave one out."""
    found: dict[str, Any] = {
        "eigenveil_study": 1,
        "study": {"name": "heart", "id": ID, "topology": "star", "purpose": "who is at risk"},
        "task": {"components": 2, "columns": ["age", "weight", "pulse", "mood"], "row_bound": 3.0},
        "privacy": {"epsilon": 1.0, "delta": 1e-6, "trust": "masked"},
        "network": {},
        "authority": {"certificate": authority().pem},
        "hub": {"address": "hub.example.org:7443", "certificate": certificate("hub", "hub").pem},
        "site": [{"certificate": certificate(f"site {at}", "site").pem} for at in range(sites)],
    }
    return put_over(found, sections)


def tree_document(sites: int = 5, fanout: int = 2, **sections: Any) -> dict[str, Any]:
    """A tree of sites that add their own noise."""
    from eigenveil.protocols.star.rounds import tree

    found = document(sites, study={"topology": "tree"}, privacy={"trust": "site"})
    names = tree([f"site {at}" for at in range(sites)], fanout=fanout).nodes
    found["tree"] = {"fanout": fanout}
    found["node"] = [
        {"address": f"10.0.0.{at}:7000", "certificate": certificate(name, "node").pem} for at, name in enumerate(names, 1)
    ]
    return put_over(found, sections)


def gossip_document(peers: int = 4, **sections: Any) -> dict[str, Any]:
    """Peers on a ring with noise that cancels between pairs."""
    found = document(1, study={"topology": "gossip"}, privacy={"trust": None, "noise": "pairwise"})
    del found["hub"], found["site"]
    found["graph"] = {"kind": "ring"}
    found["peer"] = [
        {"address": f"[2001:db8::{at + 1}]:7000", "certificate": certificate(f"peer {at}", "peer").pem} for at in range(peers)
    ]
    return put_over(found, sections)


def put_over(found: dict[str, Any], sections: dict[str, Any]) -> dict[str, Any]:
    """The document with other keys in its sections; None takes a key away."""
    for name, given in sections.items():
        if not isinstance(given, dict):
            found[name] = given
            continue
        table = {**found.get(name, {}), **given}
        found[name] = {key: value for key, value in table.items() if value is not None}
    return found
