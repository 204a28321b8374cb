"""Parameters are declared once: declarations make sense, and what is derived from them is current."""

import pickle
from string import Formatter
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import eigenveil
from eigenveil.cli.derived import with_options, written_out
from eigenveil.errors import ParameterError
from eigenveil.params import (
    BoundsParams,
    ColumnBoundsParams,
    FederatedParams,
    GossipParams,
    PlanParams,
    PrivateParams,
    RecommenderParams,
    SimulateParams,
    SpectrumParams,
    StreamingParams,
    checked,
    declared,
    param,
    parameters,
)
from eigenveil.params.docs import DOCUMENTED, KEYS_PAGE, current, keys_page
from eigenveil.params.words import as_call, as_options, flag, in_options, in_study

# What must be given, besides the number of components and epsilon.
KINDS: dict[Any, dict[str, Any]] = {
    PrivateParams: {},
    FederatedParams: {},
    GossipParams: {"graph": "ring"},
    SimulateParams: {"graph": "ring"},
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


def test_the_page_of_keys_is_current() -> None:
    assert KEYS_PAGE.read_text(encoding="utf-8") == keys_page(), "run python -m eigenveil.params.docs"


@EACH
def test_defaults_are_valid_and_a_second_check_changes_nothing(kind: Any) -> None:
    once = checked(kind, kind(*first(kind), epsilon=1.0, **KINDS[kind]))
    assert vars(checked(kind, once)) == vars(once)


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
        templates = [one.param.help, one.param.more or "", f"{{{one.param.only}}}" if one.param.only else ""]
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

    @with_options(kind)
    def command(settings: dict[str, Any]) -> None:
        found.update(settings)

    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, as_options(asked))
    assert result.exit_code == 0, result.output
    assert {name: getattr(asked, name) for name in found} == found


def test_a_switch_of_the_command_can_stand_for_all_of_its_parameters() -> None:
    found: list[Any] = []

    @with_options(StreamingParams, unless="resume")
    def command(context: typer.Context, settings: dict[str, Any] | None, resume: bool = False) -> None:
        found.append((settings, written_out(context, StreamingParams)))

    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command)
    assert CliRunner().invoke(app, ["--resume"]).exit_code == 0
    assert CliRunner().invoke(app, ["--resume", "--no-privacy", "--forget", "1.0"]).exit_code == 0
    assert found == [(None, []), (None, ["--forget", "--no-privacy"])]
    result = CliRunner().invoke(app, ["--no-privacy"])
    assert "--components is missing" in str(result.exception)
    result = CliRunner().invoke(app, ["-k", "2", "--no-privacy", "--horizon", "9"])
    assert str(result.exception) == "--horizon is for --publish continual, got 9"
    result = CliRunner().invoke(app, ["-k", "2", "--no-privacy", "--forget", "2"])
    assert str(result.exception) == "--forget must be in (0, 1], got 2.0"
    assert len(found) == 2


def test_what_is_unknown_or_always_said_is_in_options_and_calls() -> None:
    asked = FederatedParams(2, epsilon=1.0)
    more: dict[str, Any] = {"always": ["trust"], "unknown": ["row_bound"]}
    assert as_call(asked, "PCA", **more) == "PCA(2, epsilon=1.0, row_bound=..., trust='curator')"
    assert as_options(asked, **more)[-4:] == ["--row-bound", "ROW_BOUND", "--trust", "curator"]


def test_what_must_be_given_and_is_not_is_asked_for_in_its_own_words() -> None:
    @parameters()
    class Asked:
        epsilon: float = param("How much.", missing="Try {epsilon=1}.")

    @with_options(Asked)
    def command(settings: dict[str, Any]) -> None:
        raise AssertionError(settings)

    app = typer.Typer()
    app.command()(command)
    error = CliRunner().invoke(app, []).exception
    assert str(error) == "--epsilon is missing. Try --epsilon 1."


def test_an_error_is_said_in_the_words_of_each_surface() -> None:
    with pytest.raises(ParameterError) as caught:
        checked(FederatedParams, FederatedParams(2, epsilon=1.0, survivors=4))
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own error
    for error in (caught.value, again):
        assert str(error) == "survivors is for trust='masked', got 4; for other trust there is quorum"
        assert error.said(in_options(FederatedParams)) == (
            "--survivors is for --trust masked, got 4; for other trust there is --quorum"
        )
        words = (
            '[privacy] survivors is for [privacy] trust = "masked", got 4; for other trust there is [network] quorum'
        )
        assert error.said(in_study(FederatedParams)) == words


def test_the_package_lists_its_public_names() -> None:
    assert set(eigenveil.__all__) <= set(dir(eigenveil))
    assert all(getattr(eigenveil, name) is not None for name in dir(eigenveil))
    assert eigenveil.ParameterError is ParameterError


def test_only_params_may_be_annotated() -> None:
    with pytest.raises(TypeError, match=r"is not a param\(\.\.\.\)"):

        @parameters()
        class _Wrong:
            good: int = param("Good.", default=1)
            fitted_: float
