"""Each rule of a site's policy refuses what it is for, all reasons come at once, and the defaults are those of the template."""

import math
import os
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eigenveil.core.accounting import Budget
from eigenveil.errors import EigenveilError
from eigenveil.network.authority import new_request
from eigenveil.network.policy import Policy, PolicyRefusal, template
from eigenveil.network.study import StudyFile
from eigenveil.params.declarations.groups import METHOD_LIMIT
from eigenveil.params.declarations.study import words_allowed
from eigenveil.params.tables import to_toml as toml_value
from network.study_parties import authority, document, gossip_document, tree_document

EXACT = {"epsilon": None, "delta": None, "no_privacy": True}


def policy_for(study: StudyFile, *, but: tuple[str, ...] = (), **sections: dict[str, Any]) -> Policy:
    """A policy that pins all parties of the study `but` these, with other keys where given."""
    hub = [] if study.hub is None or study.hub.name in but else [study.hub.pin]
    peers = {one.name: one.pin for one in study.places if one is not study.hub and one.name not in but}
    lines = ["[pins]", f"hub = {toml_value(hub)}", "[pins.peers]"]
    lines += [f"{toml_value(name)} = {toml_value(pin)}" for name, pin in peers.items()]
    for name, table in sections.items():
        lines += [f"[{name}]", *(f"{key} = {toml_value(value)}" for key, value in table.items())]
    return Policy.parse("\n".join(lines))


def refusals(study: StudyFile, policy: Policy, *, me: str | None = None, method: str = "covariance") -> list[str]:
    return policy.refusals(study, me=study.holders[0].name if me is None else me, method=method)


STAR = StudyFile.of(document(3))
SITE = StudyFile.of(document(3, privacy={"trust": "site"}))
TREE = StudyFile.of(tree_document(5))
GOSSIP = StudyFile.of(gossip_document(4))
PEOPLE = StudyFile.of(document(3, task={"person": "patient_id"}))


def test_without_pins_every_study_is_refused() -> None:
    for study in (STAR, SITE, TREE, GOSSIP):
        reasons = refusals(study, Policy())
        assert reasons and all(reason.startswith("[pins") for reason in reasons)


def test_the_hub_must_be_pinned() -> None:
    for study in (STAR, SITE, TREE):
        (reason,) = refusals(study, policy_for(study, but=("hub",)))
        assert study.hub is not None
        assert reason.startswith("[pins] hub") and study.hub.pin in reason


def test_another_hub_is_not_this_hub() -> None:
    other = authority().sign(new_request("hub", "hub")[0])
    study = StudyFile.of(document(3, hub={"certificate": other.pem}))
    (reason,) = refusals(study, policy_for(STAR))
    assert reason.startswith("[pins] hub") and other.pin in reason


def test_any_of_several_hubs_is_enough() -> None:
    assert STAR.hub is not None
    pinned = policy_for(STAR, but=("hub",))
    text = f'[pins]\nhub = ["{"0" * 64}", "{STAR.hub.pin}"]\n[pins.peers]\n'
    text += "\n".join(f'"{name}" = "{pin}"' for name, pin in pinned.pins.peers.items())
    assert refusals(STAR, Policy.parse(text)) == []


def test_under_masks_and_between_peers_everybody_else_must_be_pinned() -> None:
    for study in (STAR, GOSSIP, StudyFile.of(document(3, privacy=EXACT))):
        me, *others = (place.name for place in study.holders)
        limits = {"trust": ["masked", "pairwise", "none"]}
        free = {"study_epsilon": math.inf, "lifetime_epsilon": math.inf}
        reasons = refusals(study, policy_for(study, but=(me, *others), limits=limits, budget=free))
        assert [reason.split("'")[1] for reason in reasons] == others
        assert all(reason.startswith("[pins.peers]") and "telephone" in reason for reason in reasons)
    # Nobody has to pin themselves.
    assert refusals(STAR, policy_for(STAR, but=("site 0",))) == []


def test_where_sites_add_their_own_noise_others_need_not_be_pinned() -> None:
    assert refusals(SITE, policy_for(SITE, but=("site 0", "site 1", "site 2"))) == []


def test_another_pin_under_a_known_name_is_always_refused() -> None:
    minted = authority().sign(new_request("site 2", "site")[0])
    sites = [*document(3)["site"][:2], {"certificate": minted.pem}]
    for trust in ("masked", "site", "hub"):
        study = StudyFile.of(document(3, site=sites, privacy={"trust": trust}))
        known = policy_for(STAR, limits={"trust": ["masked", "site", "hub"]})
        (reason,) = refusals(study, known)
        assert reason.startswith("[pins.peers] 'site 2'") and minted.pin in reason
    # A key of its own under my name is not me, either.
    (reason,) = refusals(study, known, me="site 2")
    assert "'site 2'" in reason


def test_in_a_tree_who_stands_above_must_be_pinned() -> None:
    unpinned = policy_for(TREE, but=("node 1", "node 2", "node 3"))
    (reason,) = refusals(TREE, unpinned, me="site 0")
    assert reason.startswith("[pins.peers] 'node 1'")
    (reason,) = refusals(TREE, unpinned, me="site 3")
    assert reason.startswith("[pins.peers] 'node 2'")
    # The last one of five is directly below the hub.
    assert TREE.layout().above()["site 4"] == "hub"
    assert refusals(TREE, unpinned, me="site 4") == []


@pytest.mark.parametrize("study", [STAR, SITE, TREE, GOSSIP], ids=lambda study: f"{study.topology} {study.trust}")
def test_a_study_with_a_withdrawn_pin_is_refused_whoever_it_belongs_to(study: StudyFile) -> None:
    allowed = policy_for(study)
    for place in study.places:
        pins = replace(allowed.pins, withdrawn=("0" * 64, place.pin))
        (reason,) = refusals(study, replace(allowed, pins=pins))
        assert reason.startswith("[pins] withdrawn") and place.pin in reason and repr(place.name) in reason
    assert refusals(study, replace(allowed, pins=replace(allowed.pins, withdrawn=("0" * 64,)))) == []


def test_withdrawn_pins_are_read_from_the_file() -> None:
    text = f'[pins]\nwithdrawn = ["{STAR.places[1].pin}"]'
    assert Policy.parse(text).pins.withdrawn == (STAR.places[1].pin,)
    with pytest.raises(ValueError, match=r"\[pins\] withdrawn"):
        Policy.parse('[pins]\nwithdrawn = ["abc"]')


def test_sums_over_few_are_refused() -> None:
    few = StudyFile.of(document(3, privacy={"trust": "site"}, network={"quorum": 2}))
    (reason,) = refusals(few, policy_for(few))
    assert reason.startswith("[limits] organisations") and "3" in reason and "2" in reason
    assert refusals(few, policy_for(few, limits={"organisations": 2})) == []
    two = StudyFile.of(document(2))
    (reason,) = refusals(two, policy_for(two))
    assert reason.startswith("[limits] organisations")


def test_methods_that_are_not_listed_are_refused() -> None:
    methods = words_allowed(METHOD_LIMIT)
    refused = [method for method in methods if refusals(STAR, policy_for(STAR), method=method)]
    assert refused == [method for method in methods if method not in METHOD_LIMIT.default]
    assert "dr-svd" in refused
    (reason,) = refusals(STAR, policy_for(STAR, limits={"method": ["krylov"]}), method="covariance")
    assert reason.startswith("[limits] method: covariance is not among krylov")


def test_trust_that_is_not_listed_is_refused() -> None:
    for trust, allowed in {"masked": True, "site": True, "hub": False, "both": False}.items():
        epsilon = [1.0, 0.5] if trust == "both" else 1.0
        study = StudyFile.of(document(3, privacy={"trust": trust, "epsilon": epsilon}))
        reasons = refusals(study, policy_for(study))
        assert reasons == [] if allowed else [reason[:14] for reason in reasons] == ["[limits] trust"]
        assert refusals(study, policy_for(study, limits={"trust": [trust]})) == []
    independent = StudyFile.of(gossip_document(4, privacy={"noise": "independent"}))
    assert refusals(independent, policy_for(independent)) == []
    (reason,) = refusals(independent, policy_for(independent, limits={"trust": ["pairwise"]}))
    assert reason.startswith("[limits] trust: independent is not among pairwise")


def test_a_study_without_noise_needs_no_limit_at_all() -> None:
    exact = StudyFile.of(document(3, privacy=EXACT))
    reasons = refusals(exact, policy_for(exact))
    assert [reason.partition(":")[0] for reason in reasons] == [
        "[limits] trust",
        "[budget] study_epsilon",
        "[budget] lifetime_epsilon",
    ]
    free = policy_for(exact, limits={"trust": ["none"]}, budget={"study_epsilon": math.inf, "lifetime_epsilon": math.inf})
    assert refusals(exact, free) == []
    assert free.life is None


def test_columns_that_may_not_be_used_are_named() -> None:
    study = StudyFile.of(document(3, task={"person": "who"}))
    assert refusals(study, policy_for(study)) == []
    (reason,) = refusals(study, policy_for(study, limits={"columns": ["age", "pulse", "weight"]}))
    assert reason.startswith("[limits] columns: 'mood', 'who' may not be used")
    assert refusals(study, policy_for(study, limits={"columns": ["age", "pulse", "weight", "mood", "who", "x"]})) == []


@pytest.mark.parametrize(
    ("privacy", "key"),
    [
        ({"epsilon": 1.01}, "study_epsilon"),
        ({"delta": 1.1e-5}, "study_delta"),
        ({"epsilon": [1.01, 0.1], "trust": "both"}, "study_epsilon"),
    ],
)
def test_what_costs_too_much_is_refused(privacy: dict[str, Any], key: str) -> None:
    study = StudyFile.of(document(3, privacy=privacy))
    limits = {"trust": ["masked", "both"]}
    (reason,) = refusals(study, policy_for(study, limits=limits))
    assert reason.startswith(f"[budget] {key}")
    roomy = {"study_epsilon": 2.0, "study_delta": 1e-4}
    assert refusals(study, policy_for(study, limits=limits, budget=roomy)) == []


def test_the_smaller_guarantee_of_two_is_not_what_counts() -> None:
    study = StudyFile.of(document(3, privacy={"epsilon": [1.0, 50.0], "trust": "both"}))
    assert refusals(study, policy_for(study, limits={"trust": ["both"]})) == []


def test_what_costs_more_than_a_life_is_refused_before_anything_runs() -> None:
    study = StudyFile.of(document(3, privacy={"epsilon": 2.0, "delta": 1e-5}))
    tight = policy_for(study, budget={"study_epsilon": 2.0, "lifetime_epsilon": 2.0, "lifetime_delta": 1e-9})
    (reason,) = refusals(study, tight)
    assert reason.startswith("[budget] lifetime_epsilon")
    assert policy_for(study).life == Budget(3.0, 1e-5)


def test_rehearsals_must_be_allowed() -> None:
    study = StudyFile.of(document(3, rehearsal={"seed": 1}))
    (reason,) = refusals(study, policy_for(study))
    assert reason.startswith("[agent] rehearsals")
    willing = policy_for(study, agent={"rehearsals": True, "reply_seconds": 2})
    assert refusals(study, willing) == []
    assert willing.agent.rehearsals and willing.agent.reply_seconds == 2.0


def test_small_tables_are_refused_without_saying_how_small() -> None:
    for study, counted in ((STAR, "100 rows"), (PEOPLE, "100 people")):
        assert Policy().refusals_of_rows(100, study.unit) == []
        (reason,) = Policy().refusals_of_rows(77, study.unit)
        assert reason.startswith("[limits] rows") and counted in reason and "77" not in reason


def test_the_unit_of_the_site_is_that_of_the_study() -> None:
    """A coordinator names the column in the study. It must be the one that the site says tells its people apart."""
    other = StudyFile.of(document(3, task={"person": "visit_id"}))
    people: dict[str, Any] = {"unit": "person", "person": "patient_id"}
    for study, limits, allowed in (
        (STAR, {}, True),
        (PEOPLE, {}, True),
        (STAR, {"unit": "row"}, True),
        (PEOPLE, people, True),
        (STAR, people, False),
        (other, people, False),
        (PEOPLE, {"unit": "row"}, False),
    ):
        reasons = refusals(study, policy_for(study, limits=limits))
        assert [reason[:13] for reason in reasons] == ([] if allowed else ["[limits] unit"])


def test_people_at_several_sites_need_a_study_that_protects_them() -> None:
    at_three = {"person_sites": 3}
    for study in (STAR, GOSSIP, StudyFile.of(document(3, privacy={"person_sites": 2}))):
        (reason,) = refusals(study, policy_for(study, limits=at_three))
        assert reason.startswith("[limits] person_sites")
    enough = StudyFile.of(document(3, privacy={"person_sites": 3}))
    assert refusals(enough, policy_for(enough, limits=at_three)) == []


def test_a_study_must_withstand_as_many_colluders_as_the_site_says() -> None:
    for study in (StudyFile.of(document(5)), GOSSIP):
        (reason,) = refusals(study, policy_for(study, limits={"colluders": 2}))
        assert reason.startswith("[limits] colluders") and "at least 2" in reason
    two = StudyFile.of(document(5, privacy={"colluders": 2}))
    assert refusals(two, policy_for(two, limits={"colluders": 2})) == []
    # Where each site adds all of the noise, everybody else may collude.
    assert refusals(SITE, policy_for(SITE, limits={"colluders": 2})) == []


def test_relations_that_make_the_number_of_people_public_must_be_allowed() -> None:
    sizes = {f"site {at}": 1000 for at in range(3)}
    study = StudyFile.of(document(3, task={"neighbours": "zero-out"}, sizes=sizes))
    (reason,) = refusals(study, policy_for(study))
    assert reason.startswith("[limits] neighbours: zero-out")
    assert refusals(study, policy_for(study, limits={"neighbours": ["add-remove", "zero-out"]})) == []


def test_names_that_may_stand_for_the_same_rows_are_listed_together() -> None:
    rules = Policy.parse('[datasets]\naliases = [["patients", "trial 7"], ["staff", "nurses", "doctors"]]\n')
    assert rules.alias("trial 7", "patients") and rules.alias("staff", "doctors")
    assert not rules.alias("patients", "staff") and not Policy().alias("patients", "trial 7")


def test_all_reasons_come_at_once() -> None:
    study = StudyFile.of(document(3, privacy={"trust": "hub", "epsilon": 9.0}, network={"quorum": 1}, rehearsal={"seed": 1}))
    reasons = refusals(study, Policy(), method="dr-svd")
    keys = [reason.partition(":")[0] for reason in reasons]
    assert keys == [
        "[pins] hub",
        "[limits] organisations",
        "[limits] method",
        "[limits] trust",
        "[agent] rehearsals",
        "[budget] study_epsilon",
        "[budget] lifetime_epsilon",
    ]
    refusal = PolicyRefusal(reasons)
    assert isinstance(refusal, EigenveilError) and refusal.reasons == tuple(reasons)
    assert all(reason in str(refusal) for reason in reasons)


def test_the_template_says_the_defaults() -> None:
    assert Policy.parse(template(None)) == Policy() == Policy.parse("")
    written = tomllib.loads(template(None))
    assert written["limits"] == {
        "organisations": 3,
        "method": ["krylov", "power", "fedpower", "covariance", "merge", "uda", "wda"],
        "trust": ["masked", "site", "pairwise", "independent"],
        "rows": 100,
        "neighbours": ["add-remove"],
        "colluders": 1,
        "person_sites": 1,
    }
    assert written["budget"] == {"study_epsilon": 1, "study_delta": 1e-5, "lifetime_epsilon": 3, "lifetime_delta": 1e-5}
    assert written["agent"] == {"reply_seconds": 0, "rehearsals": False}
    assert written["pins"] == {"hub": [], "withdrawn": [], "peers": {}}


@pytest.mark.parametrize("study", [STAR, PEOPLE, TREE, GOSSIP], ids=lambda study: study.topology)
def test_the_template_lists_pins_that_are_not_in_force(study: StudyFile) -> None:
    text = template(study)
    assert Policy.parse(text) == Policy()
    assert all(place.pin in text for place in study.places)
    # Taking away every # before a pin puts all of them in force.
    lines = [
        line[2:] if line.startswith("# ") and line.count('"') >= 2 and "[0-9a-f]" not in line else line
        for line in text.splitlines()
    ]
    lines = [line for line in lines if not line.startswith("columns")]
    assert refusals(study, Policy.parse("\n".join(lines))) == []


WRONG: list[tuple[str, str]] = [
    ("[pin]", r"unknown key 'pin'.*did you mean pins\?"),
    ("[limits]\norganizations = 3", r"\[limits\] has an unknown key 'organizations': did you mean organisations\?"),
    ("limits = 3", r"\[limits\] must be a table, got 3"),
    ('[pins]\nhub = "abc"', r"\[pins\] hub must be a list"),
    ('[pins]\nhub = ["abc"]', r"\[pins\] hub, entry 1, must be 64 lower-case hex digits, got 'abc'"),
    (f'[pins]\nhub = ["{"A" * 64}"]', r"\[pins\] hub, entry 1, must be 64 lower-case"),
    ('[pins.peers]\nnorth = "abc"', r"\[pins\] peers, the pin of 'north', must be 64 lower-case hex digits"),
    ('[pins.peers]\n"a\\u001b" = "abc"', r"\[pins\] peers, a name, must be one line of printable"),
    ("[pins]\npeers = 3", r"\[pins\] peers must be a table"),
    ("[limits]\norganisations = 0", r"\[limits\] organisations must be an integer from 1"),
    ('[limits]\nmethod = ["magic"]', r"\[limits\] method, entry 1, must be one of covariance, krylov.*'magic'"),
    ('[limits]\ntrust = ["me"]', r"\[limits\] trust, entry 1, must be one of hub, .*masked.*'me'"),
    ("[limits]\nrows = -1", r"\[limits\] rows must be an integer from 0"),
    ("[limits]\ncolumns = 3", r"\[limits\] columns must be a list"),
    ('[limits]\nunit = "patient"', r"\[limits\] unit must be one of row, person"),
    ('[limits]\nunit = "person"', r"\[limits\] person is missing"),
    ('[limits]\nperson = "patient_id"', r"\[limits\] person is for unit"),
    ("[limits]\ncolluders = 0", r"\[limits\] colluders must be an integer from 1"),
    ('[datasets]\naliases = [["one"]]', r"\[datasets\] aliases, entry 1, must be a list of 2"),
    ("[budget]\nstudy_epsilon = 0", r"\[budget\] study_epsilon must be a positive number, or inf, got 0"),
    ("[budget]\nstudy_epsilon = nan", r"\[budget\] study_epsilon must be"),
    ("[budget]\nstudy_epsilon = 4", r"\[budget\] study_epsilon must be at most lifetime_epsilon, 3, got 4"),
    ("[budget]\nlifetime_delta = 0", r"\[budget\] lifetime_delta must be a number between 0 and 1"),
    ("[budget]\nstudy_delta = inf", r"\[budget\] study_delta must be a number between 0 and 1"),
    ("[agent]\nreply_seconds = -1", r"\[agent\] reply_seconds must be a number of seconds"),
    ("[agent]\nrehearsals = 1", r"\[agent\] rehearsals must be true or false, got 1"),
    ("[agent", "it is not TOML"),
]


@pytest.mark.parametrize(("text", "words"), WRONG, ids=[text.replace("\n", " ")[:40] for text, _ in WRONG])
def test_what_is_wrong_in_a_policy_is_named(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        Policy.parse(text)
    assert str(caught.value).isprintable()


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps its permissions elsewhere")
def test_a_policy_that_others_can_change_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(template(STAR))
    for mode in (0o600, 0o644, 0o400):
        path.chmod(mode)
        assert Policy.read(path) == Policy()
    for mode in (0o620, 0o602, 0o666):
        path.chmod(mode)
        with pytest.raises(ValueError, match=r"others than its owner may change.*chmod go-w"):
            Policy.read(path)
