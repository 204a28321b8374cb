"""Real TLS handshakes, in memory, between parties who pin each other, and with those who only pretend."""

import ssl
from pathlib import Path

import pytest

from eigenveil.network.authority import Authority
from eigenveil.network.certificates import Certificate, Keys, Role, pem_of, recogniser
from network.identity.identity_makers import Forger, claim_in, fresh_key, party

AUTHORITY = Authority.fresh()
HUB_AND_SITE: tuple[Role, Role] = ("hub", "site")


def _own(context: ssl.SSLContext, folder: Path, keys: Keys) -> None:
    key, chain = folder / "tls.key", folder / "tls.crt"
    key.write_bytes(keys.tls_key)
    chain.write_text(keys.certificate.pem)
    context.load_cert_chain(chain, key)


def _listening(folder: Path, keys: Keys, authority: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(cadata=authority.pem)
    _own(context, folder, keys)
    return context


def _dialling(folder: Path, keys: Keys, pinned: Certificate) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=pinned.pem)
    _own(context, folder, keys)
    return context


def shown_by_dialler(listening: ssl.SSLContext, dialling: ssl.SSLContext, server_name: str) -> bytes:
    """Shake hands in memory; the PEM of the certificate that the listener was shown."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = listening.wrap_bio(to_server, to_client, server_side=True)
    client = dialling.wrap_bio(to_client, to_server, server_hostname=server_name)
    done = {client: False, server: False}
    for _ in range(10):
        for end in done:
            try:
                end.do_handshake()
                done[end] = True
            except ssl.SSLWantReadError:
                pass
    assert all(done.values())
    shown = server.getpeercert(binary_form=True)
    assert shown is not None
    return ssl.DER_cert_to_PEM_cert(shown).encode()


def test_a_site_and_a_hub_shake_hands_and_know_each_other(tmp_path: Path) -> None:
    hub = party(tmp_path, "hub", "hub", ["127.0.0.1"], authority=AUTHORITY)
    north, south = (party(tmp_path, name, authority=AUTHORITY) for name in ("north", "south"))
    recognise = recogniser([north.certificate])
    listening = _listening(tmp_path, hub, AUTHORITY)
    for keys, name in ((north, "north"), (south, None)):
        dialling = _dialling(tmp_path, keys, hub.certificate)
        assert recognise(shown_by_dialler(listening, dialling, hub.certificate.server_name)) == name


def test_the_listed_hosts_are_good_names_too(tmp_path: Path) -> None:
    peer = party(tmp_path, "peer", "peer", ["peer.example.org", "127.0.0.1"], authority=AUTHORITY)
    north = party(tmp_path, "north", authority=AUTHORITY)
    listening, dialling = _listening(tmp_path, peer, AUTHORITY), _dialling(tmp_path, north, peer.certificate)
    for host in ("peer.example.org", "127.0.0.1"):
        assert shown_by_dialler(listening, dialling, host)
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        shown_by_dialler(listening, dialling, "other.example.org")


def test_a_hub_of_the_same_authority_and_name_is_still_another(tmp_path: Path) -> None:
    hub, site = (party(tmp_path, role, role, authority=AUTHORITY) for role in HUB_AND_SITE)
    (tmp_path / "more").mkdir()
    impostor = party(tmp_path / "more", "hub", "hub", authority=AUTHORITY)
    listening, dialling = _listening(tmp_path, impostor, AUTHORITY), _dialling(tmp_path, site, hub.certificate)
    for name in (hub.certificate.server_name, impostor.certificate.server_name):
        with pytest.raises(ssl.SSLCertVerificationError):
            shown_by_dialler(listening, dialling, name)


def test_a_site_of_another_authority_is_not_let_in(tmp_path: Path) -> None:
    hub = party(tmp_path, "hub", "hub", authority=AUTHORITY)
    stranger = party(tmp_path, "north", authority=Authority.fresh())
    listening, dialling = _listening(tmp_path, hub, AUTHORITY), _dialling(tmp_path, stranger, hub.certificate)
    with pytest.raises(ssl.SSLError, match="verify failed"):
        shown_by_dialler(listening, dialling, hub.certificate.server_name)


def test_a_site_cannot_act_as_an_authority(tmp_path: Path) -> None:
    """A certificate signed with a site's TLS key leads nowhere, even with the site's own certificate in the chain."""
    hub, site = (party(tmp_path, role, role, authority=AUTHORITY) for role in HUB_AND_SITE)
    key = fresh_key()
    forged = Forger(site.certificate.pem, site.tls_key).certificate(
        claim_in(site.certificate).extensions(), key=key.public_key(), name="site"
    )
    chain, private = tmp_path / "chain.crt", tmp_path / "chain.key"
    chain.write_bytes(forged + site.certificate.pem.encode())
    private.write_bytes(pem_of(key))
    listening, dialling = _listening(tmp_path, hub, AUTHORITY), _dialling(tmp_path, site, hub.certificate)
    dialling.load_cert_chain(chain, private)
    with pytest.raises(ssl.SSLError, match="verify failed"):
        shown_by_dialler(listening, dialling, hub.certificate.server_name)
