"""Options of `eigenveil hub`, `site`, `peer` and `node` that were not given, or were given to the wrong command."""

import sys
from pathlib import Path

import pytest

from commands.command_tables import refusal
from commands.network.network_folders import Folders
from eigenveil.commands._network import keys_beside, listening_address

ME = "site 0"


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


def test_keys_are_those_beside_the_study_that_have_a_place_in_it(folders: Folders) -> None:
    file = folders.study_file(ME)
    assert keys_beside(file, folders.study, None, role="site").certificate.name == ME
    with pytest.raises(ValueError, match=r"no \.key file beside .* belongs to a node"):
        keys_beside(file, folders.study, None, role="node")
    other = folders.of("site 1")
    for path in (*other.glob("*.key"), *other.glob("*.crt")):
        copy = file.parent / path.name
        copy.write_bytes(path.read_bytes())
        copy.chmod(0o600)
    with pytest.raises(ValueError, match=r"several .*: site-0.key, site-1.key; give one with --keys"):
        keys_beside(file, folders.study, None, role="site")
    given = keys_beside(file, folders.study, file.parent / "site-1.key", role="site")
    assert given.certificate.name == "site 1"
    for name in ("site-0", "site-1"):
        (file.parent / f"{name}.crt").unlink()
    with pytest.raises(ValueError, match=r"site-0.key, site-1.key has no certificate beside it yet"):
        keys_beside(file, folders.study, None, role="site")


def test_the_wrong_command_is_told_the_right_one(folders: Folders) -> None:
    mine = folders.of(ME) / "site-0.key"
    assert "is a site in this study: run `eigenveil site`" in refusal(*folders.hub("--keys", mine))
    hub = folders.of("hub") / "hub.key"
    wrong = folders.site(ME, "--keys", hub, "--dataset", "patients")
    assert "is a hub in this study: run `eigenveil hub`" in refusal(*wrong)
    assert "is not a tree and has no nodes" in refusal("node", folders.study_file(ME), "--keys", mine)
    (folders.of("hub") / "hub.crt").unlink()
    assert "needs its certificate" in refusal(*folders.hub())


def test_a_hub_listens_everywhere_unless_it_is_for_this_machine_alone() -> None:
    assert listening_address(None, "hub.example.org:7443") == "[::]:7443"
    assert listening_address(None, "10.1.2.3:7443") == "[::]:7443"
    for address in ("localhost:1", "127.0.0.1:1", "[::1]:1"):
        assert listening_address(None, address) == address
    assert listening_address("10.1.2.3:0", "hub.example.org:7443") == "10.1.2.3:0"


def test_without_grpc_the_reader_is_told_what_to_install(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("eigenveil.runtimes.grpc")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "grpc", None)
    for command in (folders.hub(), folders.site(ME), ["node", str(folders.study_file(ME))], ["peer", *folders.site(ME)[1:]]):
        assert refusal(*command) == "error: the network needs gRPC: pip install 'eigenveil[network]'"


def test_between_peers_there_are_no_sites_and_around_a_hub_no_peers(tmp_path: Path, folders: Folders) -> None:
    (tmp_path / "peers").mkdir()
    among = Folders(tmp_path / "peers", peers=4)
    command = among.site("peer 0", "--dataset", "patients")
    assert "'peer 0' is a peer: run `eigenveil peer`" in refusal("site", *command[1:])
    assert "is a peer in this study: run `eigenveil peer`" in refusal(
        "site", *command[1:], "--keys", among.of("peer 0") / "peer-0.key"
    )
    assert "'site 0' is a site: run `eigenveil site`" in refusal("peer", *folders.site(ME, "--dataset", "patients")[1:])
