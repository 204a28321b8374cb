"""Parameters are declared once: declarations make sense, and what is derived from them is current."""

import dataclasses
import inspect
import pickle
import warnings
from dataclasses import MISSING
from string import Formatter
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import eigenveil
from eigenveil import Ledger
from eigenveil.commands._command import Command, written_out
from eigenveil.errors import ParameterError, ParameterWarning, at_place
from eigenveil.estimators import find_bounds, find_column_bounds, released_spectrum
from eigenveil.params.declarations.federated import FederatedParams, GossipParams
from eigenveil.params.declarations.plan import PlanParams, SimulateParams
from eigenveil.params.declarations.private import BoundsParams, ColumnBoundsParams, PrivateParams, SpectrumParams
from eigenveil.params.declarations.recommend import InteractionsParams, RecommenderParams
from eigenveil.params.declarations.streaming import SlotStreamParams, StreamingParams
from eigenveil.params.declarations.study import HubStudy, NewStudy, PeerStudy
from eigenveil.params.declare import as_call, as_options, declared, flag, in_options, in_study, param, parameters, validate_params
from eigenveil.params.docs import DOCUMENTED, _found, current, pages
from eigenveil.params.values import InvalidValue, center_from
from eigenveil.recommend import read_interactions

# What must be given, besides the number of components and epsilon.
KINDS: dict[Any, dict[str, Any]] = {
    PrivateParams: {},
    FederatedParams: {},
    GossipParams: {"graph": "ring"},
    SimulateParams: {"graph": "ring"},
    SlotStreamParams: {"slots": 4},
    StreamingParams: {},
    BoundsParams: {},
    ColumnBoundsParams: {},
    SpectrumParams: {},
    RecommenderParams: {},
}
# Values that are not the defaults, of those parameters that a class has.
GIVEN = {
    "row_bound": 2.5,
    "oversample": 3,
    "origin": [-1.0, 2.5],
    "within": (1.0, 1e6),
    "quantile": 0.75,
    "on_noise": "warn",
    "items": 20,
}
EACH = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def first(kind: Any) -> tuple[int, ...]:
    """What comes without a name: the number of components, where there is one."""
    return (2,) if "n_components" in declared(kind) else ()


@pytest.mark.parametrize("name", DOCUMENTED)
def test_docstrings_are_current(name: str) -> None:
    path, text, wanted = current(name)
    assert text == wanted, f"{path}: run python -m eigenveil.params.docs"


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_signature_in_the_source_is_what_is_declared(name: str) -> None:
    documented = _found(name)
    keywords = list(inspect.signature(documented).parameters.values())
    if not isinstance(documented, type):
        # The first argument is the data.
        keywords = keywords[1:]
    kind = getattr(documented, "parameters", documented)
    assert "__init__" in vars(documented) or not isinstance(documented, type)
    assert [keyword.name for keyword in keywords] == list(declared(kind))
    for keyword, entry in zip(keywords, declared(kind).values(), strict=True):
        assert (keyword.default is inspect.Parameter.empty) == (entry.default is MISSING)
        assert entry.default is MISSING or keyword.default == entry.default
        assert keyword.kind is (
            inspect.Parameter.KEYWORD_ONLY if entry.name != "n_components" else inspect.Parameter.POSITIONAL_OR_KEYWORD
        )


def test_tables_of_parameters_in_the_docs_are_current() -> None:
    found = {path.name: (text, wanted) for path, text, wanted in pages()}
    assert {"study-keys.md", "command-line.md", "plan.md"} <= set(found)
    assert {"private-pca.md", "federated.md", "gossip.md", "streaming.md", "recommender.md", "bounds.md"} <= set(found)
    for name, (text, wanted) in found.items():
        assert text == wanted, f"{name}: run python -m eigenveil.params.docs"
        for kind in ("options", "parameters"):
            assert text.count(f"<!-- {kind} ") == text.count(f"<!-- end of {kind} -->"), name


@EACH
def test_defaults_are_valid_and_a_second_check_changes_nothing(kind: Any) -> None:
    once = validate_params(kind, kind(*first(kind), epsilon=1.0, **KINDS[kind]))
    assert vars(validate_params(kind, once)) == vars(once)


@EACH
def test_a_default_is_one_of_the_words_of_its_registry(kind: Any) -> None:
    for name, one in declared(kind).items():
        if one.param.among is not None:
            assert one.default in one.words or (one.default is None and one.optional), name


@EACH
def test_leaving_out_epsilon_is_an_error(kind: Any) -> None:
    with pytest.raises(TypeError, match="epsilon"):
        kind(*first(kind), **KINDS[kind])
    with pytest.raises(TypeError, match="positional"):
        kind(*first(kind), 1.0, **KINDS[kind])


@pytest.mark.parametrize("kind", [*KINDS, PlanParams], ids=lambda kind: kind.__name__)
def test_names_are_unique_and_helps_name_what_there_is(kind: Any) -> None:
    known = declared(kind)
    for names in ([flag(one) for one in known.values()], [(one.param.section, one.key) for one in known.values()]):
        assert len(set(names)) == len(names)
    for one in known.values():
        templates = [one.param.help, one.param.details or "", f"{{{one.param.applies_when}}}" if one.param.applies_when else ""]
        for template in templates:
            for hole in [hole for _, hole, _, _ in Formatter().parse(template) if hole]:
                name, _, word = hole.partition("=")
                assert name in known
                assert word in ("", "None", *known[name].words)
        assert one.param.help.endswith(".")


@EACH
def test_parameters_become_options_and_calls_and_come_back(kind: Any) -> None:
    given = dict(KINDS[kind]) | {name: value for name, value in GIVEN.items() if name in declared(kind)}
    asked = kind(*first(kind), epsilon=1.5, delta=1e-6, **given)
    assert vars(eval(as_call(asked, "kind"), {"kind": kind})) == vars(asked)
    found: dict[str, Any] = {}

    def command(settings: dict[str, Any]) -> None:
        found.update(settings)

    app = typer.Typer()
    app.command()(Command(run=command, params=kind).derived)
    result = CliRunner().invoke(app, as_options(asked))
    assert result.exit_code == 0, result.output
    assert {name: getattr(asked, name) for name in found} == found


def test_a_switch_of_the_command_can_stand_for_all_of_its_parameters() -> None:
    found: list[Any] = []

    def command(context: typer.Context, settings: dict[str, Any] | None, resume: bool = False) -> None:
        found.append((settings, written_out(context, StreamingParams)))

    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(Command(run=command, params=StreamingParams, unless=("resume",)).derived)
    assert CliRunner().invoke(app, ["--resume"]).exit_code == 0
    assert CliRunner().invoke(app, ["--resume", "--no-privacy", "--forget", "1.0"]).exit_code == 0
    assert found == [(None, []), (None, ["--forget", "--no-privacy"])]
    result = CliRunner().invoke(app, ["--no-privacy"])
    assert "--components is missing" in str(result.exception)
    result = CliRunner().invoke(app, ["-k", "2", "--no-privacy", "--missing-fill", "9"])
    assert str(result.exception) == "--missing-fill is for --missing fill, got 9.0"
    result = CliRunner().invoke(app, ["-k", "2", "--no-privacy", "--forget", "2"])
    assert str(result.exception) == "--forget must be in (0, 1], got 2.0"
    assert len(found) == 2


def test_what_is_unknown_or_always_said_is_in_options_and_calls() -> None:
    asked = FederatedParams(2, epsilon=1.0)
    more: dict[str, Any] = {"always": ["trust"], "unknown": ["row_bound"]}
    assert as_call(asked, "PCA", **more) == "PCA(2, epsilon=1.0, row_bound=..., trust='hub')"
    assert as_options(asked, **more)[-4:] == ["--row-bound", "ROW_BOUND", "--trust", "hub"]


def test_what_must_be_given_and_is_not_is_asked_for_in_its_own_words() -> None:
    @parameters()
    class Asked:
        epsilon: float = param("How much.", missing="Try {epsilon=1}.")

    def command(settings: dict[str, Any]) -> None:
        raise AssertionError(settings)

    app = typer.Typer()
    app.command()(Command(run=command, params=Asked).derived)
    error = CliRunner().invoke(app, []).exception
    assert str(error) == "--epsilon is missing. Try --epsilon 1."


def test_an_error_is_said_in_the_words_of_each_surface() -> None:
    with pytest.raises(ParameterError) as caught:
        validate_params(FederatedParams, FederatedParams(2, epsilon=1.0, survivors=4))
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own error
    for error in (caught.value, again):
        assert str(error) == "survivors is for trust='masked', got 4. With other trust use quorum"
        assert error.said(in_options(FederatedParams)) == (
            "--survivors is for --trust masked, got 4. With other trust use --quorum"
        )
        words = '[privacy] survivors is for [privacy] trust = "masked", got 4. With other trust use [network] quorum'
        assert error.said(in_study(FederatedParams)) == words


def test_the_package_lists_its_public_names() -> None:
    assert set(eigenveil.__all__) <= set(dir(eigenveil))
    assert all(getattr(eigenveil, name) is not None for name in dir(eigenveil))
    assert eigenveil.ParameterError is ParameterError


def test_what_was_written_out_is_refused_where_it_means_nothing() -> None:
    """In Python one set of settings may serve a star and a tree; on a command line each option was meant."""
    asked = FederatedParams(2, epsilon=None, fanout=8)
    assert validate_params(FederatedParams, asked).fanout == 8
    assert validate_params(FederatedParams, FederatedParams(2, epsilon=None, fanout=3)).fanout == 3
    with pytest.raises(ParameterError, match="fanout is for topology='tree', got 8"):
        validate_params(FederatedParams, asked, explicit=("fanout",))


@pytest.mark.parametrize("kind", [FederatedParams, GossipParams])
def test_identifiers_of_people_are_not_shown(kind: Any) -> None:
    with pytest.raises(ParameterError, match="person must be the name of a column") as caught:
        validate_params(kind, kind(2, epsilon=None, person=["ann 8675309"], **KINDS[kind]))
    assert "ann" not in str(caught.value)


def test_a_parameter_can_be_declared_again_with_other_facts() -> None:
    plain, wider = declared(GossipParams)["graph"], declared(SimulateParams)["graph"]
    assert (plain.default, wider.default) == (dataclasses.MISSING, None)
    assert (plain.param.section, plain.key, plain.param.panel) == (wider.param.section, wider.key, wider.param.panel)
    assert plain.param.help != wider.param.help


def test_an_error_at_a_place_keeps_its_parameters_and_the_name_of_the_place() -> None:
    error = at_place("ward {noise=}", ParameterError("{row_bound} must be positive, got {@value}", value=0))
    assert isinstance(error, ParameterError)
    assert str(error) == "ward {noise=}: row_bound must be positive, got 0"
    assert error.said(in_options(SimulateParams)) == "ward {noise=}: --row-bound must be positive, got 0"


WITH_CENTER = [PrivateParams, FederatedParams, GossipParams, StreamingParams, BoundsParams, SpectrumParams, PlanParams]


@pytest.mark.parametrize("kind", [*WITH_CENTER, SimulateParams, HubStudy, PeerStudy, NewStudy], ids=lambda kind: kind.__name__)
def test_a_center_takes_the_same_values_everywhere(kind: Any) -> None:
    one = declared(kind)["center"]
    assert one.default == "private" and one.optional
    assert (one.param.none, one.param.metavar, one.param.parse) == ("none", "WHICH", center_from)
    check: Any = one.param.check
    assert check("private") == "private"
    allowed = "" if kind is StreamingParams else "numbers, one per column, or say "
    for wrong in (True, False, 1.0, "mean", "known"):
        with pytest.raises(InvalidValue, match=f"^{allowed}{{center=private}} or {{center=None}}"):
            check(wrong)
    if kind is StreamingParams:
        with pytest.raises(ParameterError, match="cannot be numbers"):
            check([1.0, 2.0])
    else:
        assert check([1.0, 2.0]) == [1.0, 2.0]


PRIVATE: dict[Any, type] = {find_bounds: BoundsParams, find_column_bounds: ColumnBoundsParams, released_spectrum: SpectrumParams}
ROWS = np.random.default_rng(0).standard_normal((500, 3))


@pytest.mark.parametrize("function", [*PRIVATE, read_interactions], ids=lambda one: one.__name__)
def test_a_signature_is_what_is_declared(function: Any) -> None:
    kind = PRIVATE.get(function, InteractionsParams)
    _, *rest = inspect.signature(function).parameters.values()
    shown = {one.name: one for one in rest}
    known = declared(kind)
    # A shared ledger is of a class that is slow to import, and so declared with the functions.
    assert set(shown) == set(known) | ({"ledger"} if function in PRIVATE else set())
    for name, one in known.items():
        assert shown[name].kind is inspect.Parameter.KEYWORD_ONLY
        required = shown[name].default is inspect.Parameter.empty
        assert required == (name == "epsilon")
        assert required or shown[name].default == one.default


@pytest.mark.parametrize("function", PRIVATE, ids=lambda one: one.__name__)
def test_epsilon_must_be_given_by_name_and_nothing_is_charged_without(function: Any) -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    with pytest.raises(TypeError, match=rf"{function.__name__}\(\) missing 1 required keyword-only argument: 'epsilon'"):
        function(ROWS, delta=1e-6, ledger=ledger)
    with pytest.raises(TypeError, match=rf"{function.__name__}\(\) takes 1 positional argument but 2"):
        function(ROWS, 1.0, delta=1e-6, ledger=ledger)
    with pytest.raises(TypeError, match="unexpected keyword argument 'quantil'"):
        function(ROWS, epsilon=1.0, quantil=0.9, ledger=ledger)
    assert ledger.charges == ()


def test_rows_may_be_named() -> None:
    named, plain = find_bounds(X=ROWS, epsilon=None), find_bounds(ROWS, epsilon=None)
    assert named.row_bound == plain.row_bound


def test_warnings_are_said_in_the_words_of_each_surface_too() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn(ParameterWarning("{epsilon=}; or {on_noise=warn}", epsilon=3), stacklevel=1)
    found = caught[0].message
    assert isinstance(found, UserWarning)
    for one in (found, pickle.loads(pickle.dumps(found))):  # noqa: S301 - our own warning
        assert isinstance(one, ParameterWarning)
        assert str(one) == "epsilon=3; or on_noise='warn'"
        assert one.said(in_options(RecommenderParams)) == "--epsilon 3; or --even-if-noise"


@pytest.mark.parametrize("function", PRIVATE, ids=lambda one: one.__name__)
def test_refusals_name_the_parameter(function: Any) -> None:
    with pytest.raises(ParameterError, match="neighbours must be one of") as caught:
        function(ROWS, epsilon=1.0, delta=1e-6, neighbours="entry")
    assert caught.value.said(in_options(PRIVATE[function])).startswith("--neighbours must be one of")
