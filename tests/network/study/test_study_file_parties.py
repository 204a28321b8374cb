"""Whatever a study must not say of peers, graphs, waiting, addresses and certificates is refused with an error that names it."""

from collections.abc import Callable
from typing import Any

import pytest

from eigenveil.network.identity.authority import Authority, new_request
from eigenveil.network.study.file import StudyFile
from eigenveil.protocols.keys import Identity
from network.study_parties import authority, certificate, document, gossip_document

Case = tuple[str, Callable[..., dict[str, Any]], dict[str, Any], tuple[str, ...]]
EXACT = {"epsilon": None, "delta": None, "none": True}

CASES: list[Case] = [
    (
        "noise at a hub",
        document,
        {"privacy": {"noise": "pairwise"}},
        (r"noise is for \[study\] carrier = \"gossip\", got",),
    ),
    (
        "restarts at a hub",
        document,
        {"privacy": {"restarts": 1}},
        (r"restarts is for \[study\] carrier = \"gossip\", got 1",),
    ),
    (
        "trust between peers",
        gossip_document,
        {"privacy": {"trust": "masked"}},
        (r"\[privacy\] trust is for studies around",),
    ),
    ("no noise", gossip_document, {"privacy": {"noise": None}}, (r"\[privacy\] noise is missing",)),
    ("noise for nothing", gossip_document, {"privacy": EXACT}, (r"\[privacy\] noise is for a budget",)),
    (
        "published noise",
        gossip_document,
        {"privacy": {"noise": "published"}},
        (r"\[privacy\] noise must be one of", "'published'"),
    ),
    (
        "restarts for nothing",
        gossip_document,
        {"privacy": EXACT | {"noise": None, "restarts": 1}},
        (r"\[privacy\] restarts",),
    ),
    (
        "colluders of independent noise",
        gossip_document,
        {"privacy": {"noise": "independent", "colluders": 1}},
        (r"\[privacy\] colluders is for \[privacy\] noise = \"pairwise\", got 1",),
    ),
    ("colluders who cut", gossip_document, {"privacy": {"colluders": 2}}, ("collu|connected",)),
    (
        "a small quorum",
        gossip_document,
        {"network": {"quorum": 2}},
        (r"\[network\] quorum must be", "more than half", "2"),
    ),
    ("no graph", gossip_document, {"graph": {"kind": None}}, (r"\[graph\] must have either edges or kind",)),
    (
        "two graphs",
        gossip_document,
        {"graph": {"edges": [["peer 0", "peer 1"]]}},
        (r"\[graph\] must have either edges",),
    ),
    ("another graph", gossip_document, {"graph": {"kind": "rung"}}, (r"\[graph\] kind = 'rung'", "ring")),
    ("a file as graph", gossip_document, {"graph": {"kind": "/etc/passwd"}}, (r"\[graph\] kind = '/etc/passwd'",)),
    (
        "an edge to a stranger",
        gossip_document,
        {"graph": {"kind": None, "edges": [["peer 0", "eve"]]}},
        (r"\[graph\] edges", "eve"),
    ),
    (
        "an edge twice",
        gossip_document,
        {"graph": {"kind": None, "edges": [["peer 0", "peer 1"], ["peer 1", "peer 0"]]}},
        (r"\[graph\] edges has the same edge twice",),
    ),
    (
        "peers apart",
        gossip_document,
        {
            "graph": {"kind": None, "edges": [["peer 0", "peer 1"], ["peer 2", "peer 3"]]},
            "privacy": {"noise": "independent"},
        },
        (r"\[graph\] edges must be connected",),
    ),
    ("few steps", gossip_document, {"graph": {"steps": 1}}, (r"\[graph\] steps = 1", "pair noise")),
    ("krylov in steps", gossip_document, {"graph": {"steps": 9}, "task": {"method": "krylov"}}, (r"\[graph\] steps",)),
    (
        "noise edges alone",
        gossip_document,
        {"privacy": {"noise": "independent"}, "graph": {"noise_edges": [["peer 0", "peer 1"]]}},
        (r"\[graph\] noise_edges is for",),
    ),
    ("another consensus", gossip_document, {"graph": {"consensus": "vote"}}, (r"\[graph\] consensus must be one of",)),
    (
        "no time",
        document,
        {"network": {"deadline": 0}},
        (r"\[network\] deadline must be a number of seconds above 0", "got 0"),
    ),
    ("many retries", document, {"network": {"retries": 1001}}, (r"\[network\] retries must be", "1001")),
    ("no time to join", document, {"network": {"join": -1}}, (r"\[network\] join must be", "-1")),
    ("tiny messages", document, {"network": {"largest": 100}}, (r"\[network\] largest must be", "100")),
    ("a network of text", document, {"network": "fast"}, (r"\[network\] must be a table", "'fast'")),
    ("no address", document, {"hub": {"address": None}}, (r"\[hub\] address is missing",)),
    ("no port", document, {"hub": {"address": "hub.example.org"}}, (r"\[hub\] address must be HOST:PORT",)),
    ("port 0", document, {"hub": {"address": "hub.example.org:0"}}, (r"\[hub\] address must be HOST:PORT", ":0'")),
    (
        "a port too far",
        document,
        {"hub": {"address": "hub.example.org:65536"}},
        (r"\[hub\] address must be HOST:PORT",),
    ),
    ("a bad host", document, {"hub": {"address": "hub_1/x:7443"}}, (r"\[hub\] address must be HOST:PORT",)),
    ("IPv6 with no brackets", document, {"hub": {"address": "::1:7443"}}, (r"\[hub\] address must be HOST:PORT",)),
    (
        "every address",
        document,
        {"hub": {"address": "0.0.0.0:7443"}},
        (r"\[hub\] address must be an address that others",),
    ),
    ("a name beside", document, {"hub": {"name": "hub"}}, (r"\[hub\] name", "in its certificate")),
    ("a hub with no certificate", document, {"hub": {"certificate": None}}, (r"\[hub\] certificate is missing",)),
    ("no PEM", document, {"hub": {"certificate": "hello"}}, (r"\[hub\] certificate: it is not a PEM text",)),
    (
        "a certificate in numbers",
        document,
        {"hub": {"certificate": 5}},
        (r"\[hub\] certificate must be the text of a .crt", "5"),
    ),
    ("a site as text", document, {"site": ["a"]}, (r"\[\[site\]\] 1 must be a table", "'a'")),
    ("sites as one", document, {"site": "a"}, (r"\[\[site\]\] must be a list of tables",)),
    (
        "too many sites",
        document,
        {"site": [{}] * 10_001},
        (r"there may be at most 10000 \[\[site\]\] tables, got 10001",),
    ),
]


@pytest.mark.parametrize(
    ("make", "sections", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_what_is_wrong_with_parties_is_named(
    make: Callable[..., dict[str, Any]], sections: dict[str, Any], expected: tuple[str, ...]
) -> None:
    found = make(**sections)
    for words in expected:
        with pytest.raises(ValueError, match=words) as caught:
            StudyFile.of(found)
        assert str(caught.value).isprintable()


def test_every_party_has_its_role_and_place() -> None:
    site, hub, peer = (
        certificate(name, role).pem for name, role in (("site 0", "site"), ("hub", "hub"), ("peer 0", "peer"))
    )
    with pytest.raises(ValueError, match=r"\[hub\] certificate: expected a hub, got 'site 0', a site"):
        StudyFile.of(document(hub={"certificate": site}))
    with pytest.raises(ValueError, match=r"\[\[site\]\] 4 certificate: expected a site, got 'hub', a hub"):
        StudyFile.of(document(site=[*document()["site"], {"certificate": hub}]))
    with pytest.raises(ValueError, match=r"\[\[site\]\] 4 certificate: expected a site, got 'peer 0', a peer"):
        StudyFile.of(document(site=[*document()["site"], {"certificate": peer}]))
    with pytest.raises(ValueError, match=r"\[\[site\]\] 1 address = .*sites call the hub and do not listen"):
        StudyFile.of(document(site=[{"certificate": site, "address": "10.0.0.1:80"}]))


def test_every_party_has_keys_and_a_name_of_its_own() -> None:
    twice = document()["site"] * 2
    with pytest.raises(ValueError, match="two certificates have the name 'site 0'"):
        StudyFile.of(document(site=twice))
    request = new_request("site 0", "site")[0]
    with pytest.raises(ValueError, match="two certificates have the name 'site 0'"):
        StudyFile.of(document(site=[*document()["site"], {"certificate": authority().sign(request).pem}]))
    hub = authority().sign(new_request("site 0", "hub")[0]).pem
    with pytest.raises(ValueError, match="two certificates have the name 'site 0'"):
        StudyFile.of(document(hub={"certificate": hub}))


def test_one_identity_under_two_names_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Known:
        """Makes the same identity over and over."""

        kept = Identity.fresh()

        @classmethod
        def fresh(cls) -> Identity:
            return cls.kept

    monkeypatch.setattr("eigenveil.network.identity.authority.Identity", Known)
    sites = [{"certificate": authority().sign(new_request(name, "site")[0]).pem} for name in ("one", "two")]
    assert StudyFile.of(document(site=[*document()["site"], sites[0]])).holders[3].name == "one"
    with pytest.raises(ValueError, match="'two' and 'one' have the same keys"):
        StudyFile.of(document(site=[*document()["site"], *sites]))


def test_the_authority_must_have_signed_everybody() -> None:
    other = Authority.fresh()
    stranger = other.sign(new_request("eve", "site")[0]).pem
    with pytest.raises(ValueError, match="'eve' was not signed by this study's authority"):
        StudyFile.of(document(site=[*document()["site"], {"certificate": stranger}]))
    with pytest.raises(ValueError, match="not signed by this study's authority"):
        StudyFile.of(document(authority={"certificate": other.pem}))
    with pytest.raises(ValueError, match=r"\[authority\] certificate: it is not the certificate of an authority"):
        StudyFile.of(document(authority={"certificate": certificate("hub", "hub").pem}))


def test_a_hub_may_be_called_otherwise_but_not_as_a_site() -> None:
    hub = certificate("the center", "hub").pem
    study = StudyFile.of(document(hub={"certificate": hub}))
    assert study.layout().hub == "the center"
