"""A study file reads back as it was written, its digest is its meaning, and its estimator is what it says."""

import json
import math
import os
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil.errors import ParameterError
from eigenveil.estimators import FederatedPCA, GossipPCA
from eigenveil.linalg.graphs import Graph
from eigenveil.network.certificates import checked_name
from eigenveil.network.rules import method_of
from eigenveil.network.study import StudyFile
from eigenveil.params.declarations.study import PeerStudy, said_in_file
from eigenveil.params.tables import to_toml as toml_value
from eigenveil.show.agreement import words_of
from network.study_parties import ID, certificate, document, gossip_document, tree_document

NUMBER = st.floats(-1e6, 1e6, allow_subnormal=False)
POSITIVE = st.floats(1e-3, 1e6)


def named(text: str) -> bool:
    try:
        return bool(checked_name(text, "site"))
    except ValueError:
        return False


NAMES = st.text(min_size=1, max_size=12).filter(named)


@st.composite
def tasks(draw: st.DrawFn) -> dict[str, Any]:
    """A [task] that fits any topology, with a bound."""
    columns = draw(st.lists(NAMES, min_size=2, max_size=6, unique=True))
    dim = len(columns)
    vectors = st.lists(NUMBER, min_size=dim, max_size=dim)
    found: dict[str, Any] = {
        "columns": columns,
        "components": draw(st.integers(1, dim)),
        "row_bound": draw(POSITIVE),
        "center": draw(st.sampled_from(["private", "none"]) | vectors),
        "origin": draw(st.none() | NUMBER | vectors),
        "mean_bound": draw(st.none() | POSITIVE),
        "scale": draw(st.none() | POSITIVE | st.lists(POSITIVE, min_size=dim, max_size=dim)),
        "method": draw(st.sampled_from(["auto", "krylov", "power", "covariance"])),
        "column_bounds": draw(st.none() | st.just([-3, 3.5]) | st.just([-1.0, [2.0] * dim])),
        "person": draw(st.none() | st.just("who")),
    }
    if found["method"] in ("krylov", "power"):
        found |= {"rounds": draw(st.none() | st.integers(1, 50)), "tolerance": draw(st.none() | st.floats(0, 0.5))}
        found["oversample"] = draw(st.none() | st.integers(0, 9))
    if found["person"] in columns:
        del found["person"]
    return found


@st.composite
def studies(draw: st.DrawFn) -> StudyFile:
    """Studies of every topology and trust."""
    topology = draw(st.sampled_from(["star", "tree", "gossip"]))
    private = draw(st.booleans())
    about = {"purpose": draw(st.none() | NAMES), "name": draw(NAMES)}
    network: dict[str, Any] = {
        "deadline": draw(POSITIVE),
        "retries": draw(st.integers(0, 9)),
        "join_timeout": draw(st.floats(1, 1e6)),
    }
    sections: dict[str, Any] = {"task": draw(tasks()), "study": about, "network": network}
    privacy: dict[str, Any] = {"epsilon": draw(st.floats(0.01, 20)), "delta": draw(st.floats(1e-12, 1e-3))}
    if not private:
        privacy = {"epsilon": None, "delta": None, "no_privacy": True}
    if draw(st.booleans()):
        sections["rehearsal"] = {"seed": draw(st.integers(0, 2**63 - 1))}
    if topology == "gossip":
        privacy |= {"noise": draw(st.sampled_from(["pairwise", "independent"])) if private else None}
        privacy |= {"restarts": draw(st.none() | st.integers(0, 3)) if private else None}
        kind = draw(st.sampled_from(["ring", "complete", "random-regular:2"]))
        graph = {"kind": kind, "consensus": draw(st.sampled_from(["metropolis", "chebyshev", "tree"]))}
        return StudyFile.of(gossip_document(draw(st.integers(3, 6)), privacy=privacy, graph=graph, **sections))
    trusts = ["hub", "site", "both"] + (["masked"] if topology == "star" else [])
    privacy["trust"] = draw(st.sampled_from(trusts)) if private else None
    if privacy["trust"] == "both":
        privacy["epsilon"] = [privacy["epsilon"], 0.5]
    if privacy["trust"] == "masked":
        privacy |= {"survivors": draw(st.sampled_from([None, 4, 0.9, 1.0])), "colluders": draw(st.sampled_from([None, 1, 2]))}
    else:
        network |= {"quorum": draw(st.sampled_from([None, 2, 0.6]))}
    make = tree_document if topology == "tree" else document
    sites = draw(st.integers(4, 5))
    if private and draw(st.booleans()):
        sections["task"]["neighbours"] = draw(st.sampled_from(["zero-out", "replace-one"]))
        sections["sizes"] = {f"site {at}": draw(st.integers(0, 10**6)) for at in reversed(range(sites))}
    return StudyFile.of(make(sites, privacy=privacy, **sections))


@given(studies())
def test_a_study_reads_back_as_it_was_written(study: StudyFile) -> None:
    again = StudyFile.parse(study.text())
    assert again == study
    assert again.digest == study.digest and hash(again) == hash(study)
    assert again.text() == study.text()
    assert again.greeting == b"eigenveil 1 " + study.digest.encode()


# Half of the usual number: each example makes certificates, a study and an estimator.
@settings(max_examples=30)
@given(studies())
def test_the_estimator_has_what_is_written(study: StudyFile) -> None:
    parameters, pca = study.parameters(), study.estimator()
    assert set(parameters) == set(pca.get_params())  # type: ignore[no-untyped-call]
    assert isinstance(pca, GossipPCA if study.topology == "gossip" else FederatedPCA)
    for name, value in parameters.items():
        assert getattr(pca, name) is value or getattr(pca, name) == value
    tables = study.document()
    task, privacy = tables["task"], tables["privacy"]
    assert pca.n_components == task["components"] and pca.person == task.get("person") and pca.random_state == study.seed
    assert pca.epsilon == privacy.get("epsilon") and pca.delta == privacy.get("delta")
    assert (pca.epsilon is None) == privacy["no_privacy"]
    assert (pca.row_bound, pca.scale, pca.neighbours) == (task["row_bound"], task.get("scale"), task["neighbours"])
    assert pca.center == (None if task["center"] == "none" else task["center"])
    assert pca.deadline == tables["network"]["deadline"]
    assert 1 <= study.fewest <= len(study.holders)
    assert words_of(study) and all(sentence.isprintable() for sentence in words_of(study))


@given(studies())
def test_the_digest_does_not_depend_on_layout(study: StudyFile) -> None:
    lines = [line for line in study.text().splitlines() if not line.startswith("#")]
    bare = "\r\n".join(lines).replace(" = ", "=")
    # Names and values may have an equals sign between blanks, too.
    if tomllib.loads(bare) == tomllib.loads(study.text()):
        assert StudyFile.parse(bare).digest == study.digest
    tables = tomllib.loads(study.text())
    backwards = {name: tables[name] for name in reversed(tables)}
    backwards["task"] = {key: tables["task"][key] for key in reversed(tables["task"])}
    assert StudyFile.of(backwards).digest == study.digest


FULL = document(
    4,
    task={"origin": 0.5, "mean_bound": 9.0, "scale": [1.0, 2.0, 3.0, 4.0], "method": "power", "rounds": 7, "tolerance": 0.1},
    privacy={"survivors": 3, "colluders": 1, "person_sites": 2},
    rehearsal={"seed": 7},
)
CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("study", {"name": "hearts"}),
    ("study", {"id": ID[::-1]}),
    ("study", {"purpose": None}),
    ("task", {"components": 3}),
    ("task", {"columns": ["age", "pulse", "weight", "mood"]}),
    ("task", {"row_bound": math.nextafter(3.0, 4.0)}),
    ("task", {"column_bounds": [0, 1]}),
    ("task", {"origin": 0.25}),
    ("task", {"scale": 1.0}),
    ("task", {"mean_bound": None}),
    ("task", {"method": "krylov"}),
    ("task", {"rounds": 8}),
    ("task", {"tolerance": 0.0}),
    ("task", {"oversample": 3}),
    ("task", {"center": "none"}),
    ("task", {"person": "who"}),
    ("privacy", {"epsilon": 1.0000001}),
    ("privacy", {"delta": 2e-6}),
    ("privacy", {"survivors": 4}),
    ("privacy", {"survivors": 1.0}),
    ("privacy", {"person_sites": 1}),
    ("network", {"deadline": 31}),
    ("network", {"retries": 5}),
    ("network", {"join_timeout": 901}),
    ("network", {"max_message_bytes": 1 << 20}),
    ("rehearsal", {"seed": 8}),
    ("hub", {"address": "hub.example.org:7444"}),
]


def test_the_digest_changes_with_every_change_of_meaning() -> None:
    digests = {"as it was": StudyFile.of(FULL).digest}
    for section, change in CHANGES:
        table = {key: value for key, value in {**FULL.get(section, {}), **change}.items() if value is not None}
        digests[f"{section} {change}"] = StudyFile.of(FULL | {section: table}).digest
    digests["without a seed"] = StudyFile.of({key: value for key, value in FULL.items() if key != "rehearsal"}).digest
    digests["sites in another order"] = StudyFile.of(FULL | {"site": FULL["site"][::-1]}).digest
    other = [*FULL["site"][1:], {"certificate": certificate("another", "site").pem}]
    digests["another site"] = StudyFile.of(FULL | {"site": other}).digest
    assert len(set(digests.values())) == len(digests)
    assert StudyFile.of(json.loads(json.dumps(FULL))).digest == digests["as it was"]


def test_a_default_that_is_written_out_is_the_default() -> None:
    written = document(network={"deadline": 30, "retries": 4, "join_timeout": 900}, task={"method": "auto", "center": "private"})
    assert StudyFile.of(written).digest == StudyFile.of(document()).digest


def test_a_certificate_in_another_layout_is_the_same_certificate() -> None:
    found = document()
    found["hub"]["certificate"] = "\n  " + found["hub"]["certificate"].replace("\n", "\r\n") + "\n\n"
    assert StudyFile.of(found).digest == StudyFile.of(document()).digest


def test_the_name_of_a_graph_stands_for_its_edges() -> None:
    ring = StudyFile.of(gossip_document(4))
    edges = [["peer 3", "peer 0"], ["peer 0", "peer 1"], ["peer 2", "peer 1"], ["peer 2", "peer 3"]]
    listed = StudyFile.of(gossip_document(4, graph={"kind": None, "edges": edges}))
    assert ring == listed and ring.digest == listed.digest
    assert isinstance(ring.params, PeerStudy) and ring.params.kind is None
    assert ring.params.graph == (("peer 0", "peer 1"), ("peer 0", "peer 3"), ("peer 1", "peer 2"), ("peer 2", "peer 3"))


@pytest.mark.parametrize(
    ("made", "fewest"),
    [
        (document(5), 5),
        (document(5, privacy={"survivors": 4}), 4),
        (document(5, privacy={"survivors": 0.7}), 4),
        (document(5, privacy={"trust": "site"}), 5),
        (document(5, privacy={"trust": "site"}, network={"quorum": 2}), 2),
        (tree_document(5, network={"quorum": 0.6}), 3),
        (gossip_document(5), 3),
        (gossip_document(5, network={"quorum": 1.0}), 5),
    ],
)
def test_over_how_many_a_sum_is_at_least(made: dict[str, Any], fewest: int) -> None:
    assert StudyFile.of(made).fewest == fewest


def test_what_a_site_is_charged_is_the_guarantee_against_the_hub() -> None:
    both = StudyFile.of(document(privacy={"trust": "both", "epsilon": [3, 1], "delta": [1e-6, 1e-7]}))
    assert both.budget is not None and (both.budget.epsilon, both.budget.delta) == (3.0, 1e-6)
    assert both.estimator().epsilon == (3.0, 1.0)
    exact = StudyFile.of(document(privacy={"epsilon": None, "delta": None, "no_privacy": True}))
    assert exact.budget is None and exact.trust == "none" and exact.masked


def test_peers_have_what_is_written_of_their_graph() -> None:
    graph: dict[str, Any] = {"consensus": "chebyshev", "steps": 90, "noise_edges": [["peer 1", "peer 3"], ["peer 2", "peer 0"]]}
    graph["noise_edges"] += [[f"peer {at}", f"peer {(at + 1) % 4}"] for at in range(4)]
    study = StudyFile.of(gossip_document(4, graph=graph, privacy={"colluders": 2, "restarts": 3}))
    parameters = study.parameters()
    assert [parameters[name] for name in ("consensus", "steps", "colluders", "restarts")] == ["chebyshev", 90, 2, 3]
    assert isinstance(study.params, PeerStudy) and parameters["graph"] == study.params.graph
    assert parameters["graph"] == Graph.named("ring", [f"peer {at}" for at in range(4)]).edges
    assert sorted(map(sorted, parameters["noise_graph"])) == sorted(map(sorted, graph["noise_edges"]))


def test_auto_is_resolved_from_public_numbers() -> None:
    assert method_of(StudyFile.of(document())) == "covariance"
    assert method_of(StudyFile.of(gossip_document())) == "power"


def test_places_are_found_by_name() -> None:
    study = StudyFile.of(tree_document(5))
    assert study.place("node 2").address == "10.0.0.2:7000"
    assert [place.name for place in study.holders] == [f"site {at}" for at in range(5)]
    assert study.layout().above()["site 0"] == "node 1"
    with pytest.raises(ValueError, match=r"'site 9' does not take part in the study 'heart'; these do: hub, node 1"):
        study.place("site 9")
    with pytest.raises(ValueError, match="no party is above another"):
        StudyFile.of(gossip_document()).layout()


def test_what_is_said_names_who_learns_what() -> None:
    said = {
        "masked": "will learn sums over all 3 sites, with noise added",
        "site": "noise that the site adds",
        "hub": "EACH SITE'S OWN SUMS WITHOUT NOISE",
        "both": "The hub adds more noise",
    }
    for trust, words in said.items():
        privacy = {"trust": trust, "epsilon": [1.0, 1.0] if trust == "both" else 1.0}
        assert words in " ".join(words_of(StudyFile.of(document(privacy=privacy))))
    exact = " ".join(words_of(StudyFile.of(document(privacy={"epsilon": None, "delta": None, "no_privacy": True}))))
    assert "NOTHING IS GUARANTEED" in exact and "EXACT SUMS" in exact
    assert "THIS IS A REHEARSAL" in " ".join(words_of(StudyFile.of(document(rehearsal={"seed": 1}))))


def test_a_changed_study_is_checked_again() -> None:
    study = StudyFile.of(document())
    with pytest.raises(ParameterError, match="row_bound") as caught:
        replace(study, params=replace(study.params, row_bound=None))
    assert "[task] row_bound" in said_in_file(caught.value)
    with pytest.raises(ParameterError, match="row_bound must be"):
        replace(study, params=replace(study.params, row_bound=-1.0))


def test_a_file_that_others_can_change_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(StudyFile.of(document()).text())
    path.chmod(0o644)
    assert StudyFile.read(path) == StudyFile.of(document())
    for mode in (0o664, 0o646):
        path.chmod(mode)
        if os.name != "nt":
            with pytest.raises(ValueError, match="chmod go-w"):
                StudyFile.read(path)


def test_errors_name_the_file_once(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text("x = ")
    path.chmod(0o600)
    with pytest.raises(ValueError, match="it is not TOML") as caught:
        StudyFile.read(path)
    assert str(caught.value).count(str(path)) == 1
    with pytest.raises(ValueError, match="does not exist or is not a file"):
        StudyFile.read(tmp_path)


@given(st.recursive(st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | NAMES, st.lists))
def test_values_are_written_as_toml_reads_them(value: Any) -> None:
    assert tomllib.loads(f"x = {toml_value(value)}") == {"x": value}
