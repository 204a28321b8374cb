"""`eigenveil study`: from a folder of certificates and options to a file that reads back, and its words."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from eigenveil import GossipPCA
from eigenveil.commands import _ending as terminal
from eigenveil.commands import study as choice
from eigenveil.commands.keys import COMMAND as KEYS
from eigenveil.commands.study import COMMAND
from eigenveil.network.authority import Authority, file_stem, new_request, write_new
from eigenveil.network.certificates import Role, pin_words
from eigenveil.network.rules import fatal_peers
from eigenveil.network.study import StudyFile
from eigenveil.params.declarations.study import PeerStudy
from eigenveil.runtimes.local import Faults
from eigenveil.show.agreement import words_of
from network.study_parties import authority, certificate

TASK = ("-k", "2", "--columns", "age,weight,pulse", "--row-bound", "3")
PRIVATE = ("--epsilon", "1", "--delta", "1e-6")
ADDRESS = ("--address", "hub.example.org:7443")


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(COMMAND.app, [str(argument) for argument in arguments], env={"COLUMNS": "100"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def refused(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A coordinator's folder with all certificates and no private key."""
    folder = tmp_path / "keys"
    folder.mkdir()
    (folder / "authority.crt").write_text(authority().pem)
    parties: list[tuple[str, Role]] = [("hub", "hub"), *((f"node {at}", "node") for at in (1, 2))]
    parties += [(f"site {at}", "site") for at in range(4)] + [(f"peer {at}", "peer") for at in range(3)]
    for name, role in parties:
        (folder / f"{file_stem(name)}.crt").write_text(certificate(name, role).pem)
    return folder


def test_a_star_has_safe_defaults(tmp_path: Path, keys: Path) -> None:
    file = tmp_path / "heart.toml"
    result = run("new", file, "--authority", keys, *ADDRESS, *TASK, *PRIVATE, "--purpose", "who is at risk")
    assert result.exit_code == 0, result.output
    found = StudyFile.read(file)
    assert (found.name, found.topology, found.trust, found.params.purpose) == ("heart", "star", "masked", "who is at risk")
    assert [place.name for place in found.sites] == ["site 0", "site 1", "site 2", "site 3"]
    assert found.columns == ("age", "weight", "pulse") and found.seed is None
    assert found.hub is not None and found.hub.address == "hub.example.org:7443"
    assert found.digest in result.output
    assert file.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("topology", ["hub", "peers"])
def test_a_hopeless_budget_is_asked_about_before_the_file_is_sent(
    tmp_path: Path, keys: Path, topology: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{'site' if topology == 'hub' else 'peer'} {at}" for at in range(4 if topology == "hub" else 3)]
    places = [word for name in names for word in ("--peer-address", f"{name}=127.0.0.1:700{name[-1]}")]
    task = ("-k", 2, "--columns", ",".join(f"c{i}" for i in range(30)), "--row-bound", 3, *PRIVATE)
    where = ADDRESS if topology == "hub" else ("--graph", "complete", *places)
    few, many = (
        ("--neighbours", "zero-out", *(word for name in names for word in ("--size", f"{name}={size}"))) for size in (20, 20_000)
    )
    file = tmp_path / "heart.toml"
    asked = ("new", file, "--authority", keys, *where, *task)
    line = refused(*asked, *few)
    assert f"With {20 * len(names)} people and 30 columns, this budget finds little but noise" in line
    assert line.endswith("Nothing was written. To write anyway, give --even-if-noise")
    assert not file.exists()
    # At a terminal somebody decides.
    monkeypatch.setattr(terminal, "at_terminal", lambda: True)
    for answer, code in (("n\n", 2), ("y\n", 0)):
        result = CliRunner().invoke(COMMAND.app, list(map(str, (*asked, *few))), input=answer)
        assert result.exit_code == code, result.output
        assert "Write anyway?" in result.stderr
        assert file.exists() == (code == 0)
    loud = run(*asked, *few, "--force", "--even-if-noise")
    assert loud.exit_code == 0 and "finds little but noise" in " ".join(loud.stdout.split())
    # Nothing is said where the budget does, or where nobody may know how many people there are.
    for sizes in (many, ()):
        quiet = run(*asked, *sizes, "--force")
        assert quiet.exit_code == 0, quiet.output
        assert "noise:" not in quiet.stdout


def test_two_studies_on_the_same_terms_are_two(tmp_path: Path, keys: Path) -> None:
    found = []
    for name in ("one", "two"):
        run("new", tmp_path / f"{name}.toml", "--authority", keys, *ADDRESS, *TASK, *PRIVATE, "--name", "same")
        found.append(StudyFile.read(tmp_path / f"{name}.toml"))
    assert found[0].params.id != found[1].params.id and found[0].digest != found[1].digest


def test_every_option_reaches_the_estimator(tmp_path: Path, keys: Path) -> None:
    file = tmp_path / "x.toml"
    sites = ("--site", "site 2", "--site", "site 0", "--site", "site 1")
    sizes = [text for name in ("site 0", "site 1", "site 2") for text in ("--size", f"{name}=500")]
    more = (
        "--trust",
        "both",
        "--quorum",
        "0.9",
        "--deadline",
        "5",
        "--retries",
        "2",
        "--join-timeout",
        "60",
        "--max-message-bytes",
        "64MB",
    )
    rows = ("--column-bounds", "-1,1", "--origin", "1,2,3", "--mean-bound", "7", "--scale", "2", "--center", "none")
    method = ("--method", "power", "--rounds", "9", "--tolerance", "0.1", "--oversample", "1", "--person", "who")
    people = ("--neighbours", "zero-out", "--person-sites", "2", "--rehearsal-seed", "5", *sizes)
    budget = ("--epsilon", "3,1", "--delta", "1e-6,1e-7")
    result = run("new", file, "--authority", keys, *ADDRESS, *TASK, *budget, *sites, *more, *rows, *method, *people)
    assert result.exit_code == 0, result.output
    found = StudyFile.read(file)
    assert [place.name for place in found.sites] == ["site 2", "site 0", "site 1"]
    assert found.sizes == {"site 2": 500, "site 0": 500, "site 1": 500}
    assert (found.params.join_timeout, found.params.max_message_bytes) == (60.0, 64_000_000)
    expected: dict[str, Any] = {
        "n_components": 2,
        "epsilon": (3.0, 1.0),
        "delta": (1e-6, 1e-7),
        "row_bound": 3.0,
        "column_bounds": (-1.0, 1.0),
        "method": "power",
        "topology": "star",
        "trust": "both",
        "rounds": 9,
        "tolerance": 0.1,
        "oversample": 1,
        "quorum": 0.9,
        "deadline": 5.0,
        "retries": 2,
        "center": None,
        "origin": (1.0, 2.0, 3.0),
        "mean_bound": 7.0,
        "scale": 2.0,
        "neighbours": "zero-out",
        "person": "who",
        "person_sites": 2,
        "random_state": 5,
    }
    parameters = found.parameters()
    assert {name: parameters[name] for name in expected} == expected


def test_fedpower_has_its_own(tmp_path: Path, keys: Path) -> None:
    file = tmp_path / "x.toml"
    options = ("--trust", "site", "--method", "fedpower", "--local-steps", "decay:4", "--align", "sign")
    assert run("new", file, "--authority", keys, *ADDRESS, *TASK, *PRIVATE, *options).exit_code == 0
    parameters = StudyFile.read(file).parameters()
    assert (parameters["local_steps"], parameters["align"]) == (("decay", 4), "sign")


def test_a_tree_takes_its_nodes_from_the_folder(tmp_path: Path, keys: Path) -> None:
    file = tmp_path / "x.toml"
    where = ("--node-address", "node 1=10.0.0.1:70", "--node-address", "node 2=10.0.0.2:70")
    result = run("new", file, "--authority", keys, *ADDRESS, *TASK, *PRIVATE, "--fanout", "2", *where)
    assert result.exit_code == 0, result.output
    found = StudyFile.read(file)
    assert (found.topology, found.trust, found.fanout) == ("tree", "site", 2)
    assert [(place.name, place.address) for place in found.nodes] == [("node 1", "10.0.0.1:70"), ("node 2", "10.0.0.2:70")]


def test_peers_need_no_hub(tmp_path: Path, keys: Path) -> None:
    file, edges = tmp_path / "x.toml", tmp_path / "edges.txt"
    edges.write_text("peer 0, peer 1\npeer 1, peer 2\n")
    where = [text for at in range(3) for text in ("--peer-address", f"peer {at}=10.0.0.{at}:70")]
    options = ("--graph", edges, "--noise-graph", "complete", "--consensus", "tree", "--restarts", "1", "--colluders", "1")
    result = run("new", file, "--authority", keys, *TASK, *PRIVATE, *options, *where)
    assert result.exit_code == 0, result.output
    found = StudyFile.read(file)
    assert found.topology == "gossip" and found.hub is None and found.trust == "pairwise"
    assert isinstance(found.params, PeerStudy) and found.params.graph == (("peer 0", "peer 1"), ("peer 1", "peer 2"))
    assert len(found.params.noise_graph) == 3
    assert found.parameters()["restarts"] == 1 and found.parameters()["consensus"] == "tree"


def peers_of(tmp_path: Path, keys: Path, count: int, *options: object) -> StudyFile:
    """What `study new` makes of peers, from the shortest command."""
    for path in keys.glob("*peer*.crt"):
        path.unlink()
    for at in range(count):
        (keys / f"{file_stem(f'peer {at}')}.crt").write_text(certificate(f"peer {at}", "peer").pem)
    file = tmp_path / "peers.toml"
    where = [text for at in range(count) for text in ("--peer-address", f"peer {at}=10.0.0.{at}:70")]
    result = run("new", file, "--authority", keys, *TASK, *PRIVATE, *options, *where, "--force")
    assert result.exit_code == 0, result.output
    return StudyFile.read(file)


@pytest.mark.parametrize(
    ("graph", "options"), [("ring", ()), ("complete", ("--noise", "independent")), ("ring", ("--quorum", "3"))]
)
def test_peers_survive_the_loss_of_any_one_unless_told_otherwise(
    tmp_path: Path, keys: Path, graph: str, options: tuple[str, ...]
) -> None:
    found = peers_of(tmp_path, keys, 5, "--graph", graph, *options)
    assert isinstance(found.params, PeerStudy) and found.params.restarts == 1
    assert fatal_peers(found) == ()
    assert "The study survives the loss of any one peer" in " ".join(words_of(found))
    pca: Any = found.estimator()
    rng = np.random.default_rng(3)
    rows = {place.name: rng.standard_normal((200, 3)) for place in found.peers}
    for name in rows:
        fitted = GossipPCA(**{**pca.get_params(), "faults": Faults(dies={name: 20})}).fit(rows)
        assert set(fitted.peers_) == set(rows) - {name}


@pytest.mark.parametrize(
    "count, options",
    [(5, ("--graph", "ring", "--restarts", "0")), (5, ("--graph", "ring", "--quorum", "5")), (3, ("--graph", "ring"))],
)
def test_where_one_lost_peer_ends_the_study_it_says_so_and_keeps_no_budget_for_it(
    tmp_path: Path, keys: Path, count: int, options: tuple[str, ...]
) -> None:
    found = peers_of(tmp_path, keys, count, *options)
    assert isinstance(found.params, PeerStudy) and found.params.restarts == 0
    (words,) = [words for words in words_of(found) if words.startswith("Lost peers")]
    assert f"NOT ONE MAY STOP. If any of the {count} peers" in words
    assert "[privacy] restarts" in words and "more peers or edges" in words


def test_a_peer_that_holds_the_others_together_is_named(tmp_path: Path, keys: Path) -> None:
    found = peers_of(tmp_path, keys, 5, "--graph", "star", "--noise", "independent")
    assert fatal_peers(found) == ("peer 0",)
    assert "But if peer 0 is lost" in " ".join(words_of(found))


@pytest.mark.parametrize("kind", ["csv", "parquet", "txt"])
def test_names_of_columns_come_from_a_file(tmp_path: Path, keys: Path, kind: str) -> None:
    source, table = tmp_path / f"public.{kind}", pa.table({"age": [1], "who": ["x"], "weight": [2]})
    match kind:
        case "csv":
            pc.write_csv(table, source)
        case "parquet":
            pq.write_table(table, source)
        case _:
            source.write_text("age\nwho\n\nweight\n")
    file = tmp_path / "x.toml"
    options = ("-k", "1", "--row-bound", "3", "--columns-from", source, "--person", "who")
    assert run("new", file, "--authority", keys, *ADDRESS, *PRIVATE, *options).exit_code == 0
    assert StudyFile.read(file).columns == ("age", "weight")


def test_folders_that_do_not_do_are_refused(tmp_path: Path, keys: Path) -> None:
    options = (*ADDRESS, *TASK, *PRIVATE)
    assert "authority.crt is missing" in refused("new", tmp_path / "x.toml", "--authority", tmp_path, *options)
    (keys / "eve.crt").write_text(Authority.fresh().sign(new_request("eve", "site")[0]).pem)
    assert "'eve' was not signed" in refused("new", tmp_path / "x.toml", "--authority", keys, *options)
    (keys / "eve.crt").write_text("nothing")
    assert "eve.crt: it is not a PEM text" in refused("new", tmp_path / "x.toml", "--authority", keys, *options)
    (keys / "eve.crt").write_text(certificate("site 0", "site").pem)
    assert "has the name 'site 0' too" in refused("new", tmp_path / "x.toml", "--authority", keys, *options)


def test_a_file_is_overwritten_only_when_asked(tmp_path: Path, keys: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text("mine")
    options = ("--authority", keys, *ADDRESS, *TASK, *PRIVATE)
    assert "Overwrite it with --force" in refused("new", file, *options)
    assert file.read_text() == "mine"
    assert run("new", file, *options, "--force").exit_code == 0
    assert StudyFile.read(file).name == "x"
    assert "must end in .toml" in refused("new", tmp_path / "x.txt", *options)
    assert "does not exist" in refused("new", tmp_path / "no" / "x.toml", *options)


def test_show_says_what_who_and_until_when(tmp_path: Path, keys: Path) -> None:
    file = tmp_path / "x.toml"
    run("new", file, "--authority", keys, *ADDRESS, *TASK, *PRIVATE)
    result, found = run("show", file), StudyFile.read(file)
    assert result.exit_code == 0
    said = " ".join(result.output.split())
    assert all(sentence in said for sentence in words_of(found))
    assert all(pin_words(place.pin) in said for place in found.places)
    assert pin_words(found.digest) in said
    assert f"to {certificate('hub', 'hub').ends:%Y-%m-%d}" in said
    file.write_text(file.read_text().replace("components = 2", "components = 7"))
    assert "[task] components = 7 must be at most" in refused("show", file)


@pytest.mark.parametrize("authority_days", [825, 50])
def test_certificates_that_have_ended_are_named_with_the_command_that_renews_them(
    tmp_path: Path, authority_days: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    past = datetime.now(UTC) - timedelta(days=100)
    older = Authority.fresh(now=past, days=authority_days)
    write_new(private={Path("authority.key"): older.private_pem()}, public={Path("authority.crt"): older.pem})
    pins = {}
    parties: list[tuple[str, Role, int]] = [("hub", "hub", 365), ("St. Mary's", "site", 30), ("new", "site", 365)]
    for name, role, days in parties:
        request = new_request(name, role)[0]
        Path(f"{file_stem(name)}.crt").write_text(older.sign(request, days=days, now=past).pem)
        pins[name] = request.pin
    line = refused("new", "x.toml", *ADDRESS, *TASK, *PRIVATE)
    assert not Path("x.toml").exists()
    ended = ["St.-Mary-s.crt"] if authority_days == 825 else ["authority.crt", "hub.crt", "St.-Mary-s.crt", "new.crt"]
    command = re.search(r"eigenveil keys renew (.*) --authority \.$", line)
    assert command is not None and command[1].split() == ended
    # What it says to type is all that is needed.
    result = CliRunner().invoke(KEYS.app, ["renew", *ended, "--authority", "."])
    assert result.exit_code == 0, result.output
    assert run("new", "x.toml", *ADDRESS, *TASK, *PRIVATE).exit_code == 0
    found = StudyFile.read(Path("x.toml"))
    assert {place.name: place.pin for place in found.places} == pins
    for place in found.places:
        place.certificate.require_current()


def test_certificates_that_have_not_begun_are_refused(tmp_path: Path, keys: Path) -> None:
    later = Authority.fresh(now=datetime.now(UTC) + timedelta(days=5))
    (keys / "authority.crt").write_text(later.pem)
    line = refused("new", tmp_path / "x.toml", "--authority", keys, *ADDRESS, *TASK, *PRIVATE)
    assert "have not begun: the authority on" in line


def test_show_says_which_certificates_have_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, past = tmp_path / "x.toml", datetime.now(UTC) - timedelta(days=100)
    older = Authority.fresh(now=past)
    parties: list[tuple[str, Role, int]] = [("hub", "hub", 365), ("old", "site", 30), ("new", "site", 365)]
    for name, role, days in parties:
        signed = older.sign(new_request(name, role)[0], days=days, now=past)
        (tmp_path / f"{name}.crt").write_text(signed.pem)
    (tmp_path / "authority.crt").write_text(older.pem)
    # A study is what it is when its certificates have ended; that it cannot run is for the day it is run.
    monkeypatch.setattr(choice, "require_current", lambda *_: None)
    assert run("new", file, "--authority", tmp_path, *ADDRESS, *TASK, *PRIVATE).exit_code == 0
    result = run("show", file)
    assert result.exit_code == 0
    assert "the certificate of 'old' ended on" in result.output
    assert "the certificate of 'new'" not in result.output
