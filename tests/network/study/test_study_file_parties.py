"""Whatever a study must not say of peers, graphs, waiting, addresses and certificates is refused with an error that names it."""

import pytest

from eigenveil.network.authority import Authority, new_request
from eigenveil.network.study import StudyFile
from eigenveil.protocols.keys import Identity
from network.study_parties import authority, certificate, document


def test_every_party_has_its_role_and_place() -> None:
    site, hub, peer = (certificate(name, role).pem for name, role in (("site 0", "site"), ("hub", "hub"), ("peer 0", "peer")))
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

    monkeypatch.setattr("eigenveil.network.authority.Identity", Known)
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
