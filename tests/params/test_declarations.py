"""Parameters are declared once: declarations make sense, and what is derived from them is current."""

import pickle
from string import Formatter
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from eigenveil.cli.derived import with_options
from eigenveil.errors import ParameterError
from eigenveil.params import (
    FederatedParams,
    GossipParams,
    PrivateParams,
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
    StreamingParams: {},
}
EACH = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_docstrings_are_current(name: str) -> None:
    path, text, wanted = current(name)
    assert text == wanted, f"{path}: run python -m eigenveil.params.docs"


def test_the_page_of_keys_is_current() -> None:
    assert KEYS_PAGE.read_text(encoding="utf-8") == keys_page(), "run python -m eigenveil.params.docs"


@EACH
def test_defaults_are_valid_and_a_second_check_changes_nothing(kind: Any) -> None:
    once = checked(kind, kind(2, epsilon=1.0, **KINDS[kind]))
    assert vars(checked(kind, once)) == vars(once)


@EACH
def test_leaving_out_epsilon_is_an_error(kind: Any) -> None:
    with pytest.raises(TypeError, match="epsilon"):
        kind(2, **KINDS[kind])
    with pytest.raises(TypeError, match="positional"):
        kind(2, 1.0, **KINDS[kind])


@EACH
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
    given = dict(KINDS[kind]) | {"row_bound": 2.5, "oversample": 3}
    asked = kind(2, epsilon=1.5, delta=1e-6, **given)
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


def test_an_error_is_said_in_the_words_of_each_surface() -> None:
    with pytest.raises(ParameterError) as caught:
        checked(FederatedParams, FederatedParams(2, epsilon=1.0, survivors=4))
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own error
    for error in (caught.value, again):
        assert str(error) == "survivors is for trust='masked', got 4"
        assert error.said(in_options(FederatedParams)) == "--survivors is for --trust masked, got 4"
        words = '[privacy] survivors is for [privacy] trust = "masked", got 4'
        assert error.said(in_study(FederatedParams)) == words


def test_only_params_may_be_annotated() -> None:
    with pytest.raises(TypeError, match=r"is not a param\(\.\.\.\)"):

        @parameters()
        class _Wrong:
            good: int = param("Good.", default=1)
            fitted_: float
