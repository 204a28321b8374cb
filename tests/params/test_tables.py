"""Tables of study files and policies are derived from declarations: a new parameter is in them, checked and documented."""

from dataclasses import replace
from typing import Any

import pytest

from eigenveil.errors import ParameterError
from eigenveil.network.policy import Limits, Policy, Spending
from eigenveil.network.study import StudyFile
from eigenveil.params.declarations.federated import FederatedParams, GossipParams
from eigenveil.params.declarations.study import LARGEST_MESSAGE, HubStudy, NewStudy, PeerStudy, limited, limiting
from eigenveil.params.declare import Limit, declared, in_options, in_study, merge_params, param, parameters
from eigenveil.params.tables import keys_of, lines_of, settled, shown_in_file, tables_of, values_in
from eigenveil.params.values import Integer, listed
from eigenveil.protocols.messages import LONGEST_NAME
from eigenveil.protocols.wire import LIMIT
from network.study_parties import document, gossip_document


@parameters(panel="Method", section="task")
class _Flavoured(HubStudy):
    """A study with a parameter that nobody has heard of."""

    flavour: int = param(
        "How sweet it is, for {method=power}.",
        default=3,
        check=Integer(min=1, max=9),
        limit=Limit(
            section="limits", key="flavour", kind="most", help="How sweet a study may be.", default=5, check=Integer(min=0, max=9)
        ),
    )


GIVEN: dict[str, Any] = {
    "n_components": 2,
    "columns": ["a", "b"],
    "name": "x",
    "id": "0" * 32,
    "topology": "star",
    "epsilon": 1,
    "delta": 1e-6,
    "trust": "masked",
}


def test_a_new_parameter_is_a_key_with_a_comment_that_is_checked_and_read_back() -> None:
    asked = settled(_Flavoured, GIVEN | {"flavour": 7})
    tables = tables_of(asked)
    assert tables["task"]["flavour"] == 7
    (line,) = [line for line in lines_of(asked, "task") if line.key == "flavour"]
    assert line.comment == 'How sweet it is, for method = "power".'
    again = settled(_Flavoured, values_in(tables, _Flavoured, explained={}))
    assert vars(again) == vars(asked)
    with pytest.raises(ParameterError) as caught:
        settled(_Flavoured, GIVEN | {"flavour": 12})
    assert caught.value.said(in_study(_Flavoured)) == "[task] flavour must be an integer from 1 to 9, got 12"
    with pytest.raises(ValueError, match=r"unknown key 'flavor': did you mean flavour\?"):
        values_in(tables | {"task": {"flavor": 1}}, _Flavoured, explained={})


def test_a_new_limit_is_a_key_of_the_policy() -> None:
    @parameters(section="limits", frozen=True)
    @limiting("limits", (_Flavoured, GossipParams))
    class _Limits:
        rows: int = param("How many people.", default=100, check=Integer(min=0))

    assert set(declared(_Limits)) == {"method", "trust", "neighbours", "colluders", "person_sites", "flavour", "rows"}
    assert [line.comment for line in lines_of(_Limits(), "limits") if line.key == "flavour"] == ["How sweet a study may be."]
    with pytest.raises(ParameterError, match="flavour must be an integer from 0 to 9, got 11"):
        _Limits(flavour=11)  # type: ignore[call-arg]


def test_a_limit_refuses_what_is_beyond_it(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = Limit(section="budget", key="study_seconds", kind="most", help="How long a study may wait.", default=20.0)
    study = StudyFile.of(document(3))
    monkeypatch.setattr("eigenveil.network.policy.limited", lambda kind, section: [(declared(kind)["deadline"], limit)])
    monkeypatch.setattr(Spending, "study_seconds", 20.0, raising=False)
    reasons = list(Policy()._of_limits(study, "budget", None))
    assert reasons == ["[budget] study_seconds: the study has deadline = 30, and 20 is allowed"]


def test_every_limit_has_its_key_and_every_default_is_allowed() -> None:
    for kind in (FederatedParams, GossipParams):
        for section, policy in (("limits", Limits), ("budget", Spending)):
            for one, limit in limited(kind, section):
                assert limit.key in declared(policy), one.name
    assert Policy().limits == Limits() and Policy().budget == Spending()


def test_limits_are_those_of_messages() -> None:
    assert LARGEST_MESSAGE == LIMIT
    longest = "x" * LONGEST_NAME
    assert StudyFile.of(document(3, study={"name": longest})).name == longest


def test_leaving_out_epsilon_is_an_error_and_none_must_be_said() -> None:
    without = {name: value for name, value in GIVEN.items() if name not in ("epsilon", "delta")}
    with pytest.raises(ParameterError) as caught:
        settled(HubStudy, without)
    assert "[privacy] epsilon is missing" in caught.value.said(in_study(HubStudy))
    assert "--no-privacy" in caught.value.said(in_options(HubStudy))
    for said in (False, None):
        tables = document(3, privacy={"epsilon": None, "delta": None, "no_privacy": said})
        with pytest.raises(ValueError, match=r"\[privacy\] epsilon is missing"):
            StudyFile.of(tables)


SPELLINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"task": {"row_bound": 3}}, {"task": {"row_bound": 3.0}}),
    ({"task": {"center": (0, 1, 2, 3)}}, {"task": {"center": [0.0, 1.0, 2.0, 3.0]}}),
    ({"task": {"column_bounds": [-1, (1, 1, 1, 1)]}}, {"task": {"column_bounds": (-1.0, [1.0] * 4)}}),
    ({"task": {"center": "private", "method": "auto"}}, {}),
    ({"privacy": {"epsilon": 1}}, {"privacy": {"epsilon": 1.0, "no_privacy": False}}),
    ({"privacy": {"colluders": 1}}, {}),
    ({"privacy": {"person_sites": 1}}, {}),
    ({"network": {"deadline": 30}}, {"network": {"retries": 4}}),
]


@pytest.mark.parametrize(("one", "other"), SPELLINGS, ids=[str(one) for one, _ in SPELLINGS])
def test_one_meaning_has_one_digest(one: dict[str, Any], other: dict[str, Any]) -> None:
    first, second = StudyFile.of(document(3, **one)), StudyFile.of(document(3, **other))
    assert first.digest == second.digest and first.text() == second.text() and first == second


def test_fedpower_and_restarts_at_their_defaults_have_one_digest() -> None:
    def digest(**task: Any) -> str:
        return StudyFile.of(document(3, task={"method": "fedpower"} | task, privacy={"trust": "site"})).digest

    assert digest() == digest(local_steps=1) == digest(align="procrustes") != digest(local_steps=2)
    restarts = [StudyFile.of(gossip_document(privacy={"restarts": at})).digest for at in (None, 0, 1)]
    assert restarts[0] == restarts[1] != restarts[2]


def test_keys_of_different_studies_stand_in_the_same_places() -> None:
    for kind in (HubStudy, PeerStudy):
        found = [(one.param.section, one.key) for one in declared(kind).values() if "study" in one.param.surfaces]
        assert len(set(found)) == len(found)
        assert next(iter(keys_of(kind, "study"))) == "name"
    shared = set(declared(HubStudy)) & set(declared(PeerStudy))
    for name in shared:
        one, other = declared(HubStudy)[name], declared(PeerStudy)[name]
        assert (one.param.section, one.key) == (other.param.section, other.key)


def test_what_was_not_given_is_known_in_the_command() -> None:
    for name, one in declared(NewStudy).items():
        # Switches are given or not anyway.
        assert one.default in (None, False) or name in ("n_components", "epsilon", "row_bound", "center")


def test_what_no_file_says_is_no_option_and_cannot_differ() -> None:
    foreign = {name for name, one in declared(HubStudy).items() if "study" not in one.param.surfaces}
    assert {"participation"} <= foreign and not foreign & set(declared(NewStudy))
    study = StudyFile.of(document(3))
    assert isinstance(study.params, HubStudy)
    with pytest.raises(ParameterError, match="participation has no place in a study"):
        replace(study, params=replace(study.params, participation=("without-replacement", 2)))


def test_composed_classes_take_the_first_and_change_what_is_said() -> None:
    both = declared(merge_params("Both", (FederatedParams, GossipParams), leave=("person",), rounds={"help": "Few."}))
    assert set(both) == (set(declared(FederatedParams)) | set(declared(GossipParams))) - {"person"}
    assert both["epsilon"].type == declared(FederatedParams)["epsilon"].type
    assert both["rounds"].param.help == "Few." and next(iter(both)) == "n_components"


def test_entries_of_lists_are_named() -> None:
    @parameters(section="names", frozen=True)
    class _Names:
        ages: tuple[int, ...] = param("Ages.", default=(), check=listed(Integer(min=0, max=99), distinct=True))

    assert _Names(ages=[1, 2]).ages == (1, 2)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="ages, entry 2, must be an integer from 0 to 99, got 100"):
        _Names(ages=(1, 100))
    with pytest.raises(ParameterError, match="ages, entry 3, must be different from those before it, got 1"):
        _Names(ages=(1, 2, 1))
    assert shown_in_file([True, None]) and shown_in_file(False) == "false"
