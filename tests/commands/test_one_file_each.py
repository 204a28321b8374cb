"""A command is one file and one line of the registry: what it returns is shown as text, as JSON and as a report."""

import importlib.util
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import eigenveil.commands
from eigenveil.commands import account
from eigenveil.commands._command import program

# A command as somebody writes it who has read nothing but `_command`.
FILE = '''
from pathlib import Path
from typing import Annotated, Any

from eigenveil.commands._command import Answer, Command
from eigenveil.commands._option import argument, flag
from eigenveil.commands._options import ReportFile
from eigenveil.errors import require
from eigenveil.params import ColumnBoundsParams
from eigenveil.show.console import Line


def price(
    settings: dict[str, Any],
    what: Annotated[str, argument("WHAT", "What is priced.")],
    as_json: Annotated[bool, flag("--json", "Print JSON.")] = False,
    report: ReportFile = None,
) -> Answer:
    """What something costs.

      eigenveil price fit --epsilon 1 --delta 1e-6
    """
    from eigenveil.show.values import Report

    require(what != "sums", "sums are free")
    words = f"{what} costs {settings['epsilon']:g}"
    return Answer(
        view=lambda: [Line(words)],
        values=lambda: {"what": what, "epsilon": settings["epsilon"]},
        report=lambda: Report(kind="plan", title="Price", answer=words),
        code=3 * (settings["epsilon"] > 2),
    )


COMMAND = Command(price, ColumnBoundsParams, panel="Fit")
'''


@pytest.fixture
def app(tmp_path: Path) -> typer.Typer:
    (tmp_path / "price.py").write_text(FILE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("price", tmp_path / "price.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return program("eigenveil", (module.COMMAND, account.COMMAND))


def run(app: typer.Typer, *arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(one) for one in arguments], env={"COLUMNS": "200"})
    return result.exit_code, result.stdout, result.stderr


def test_every_file_is_in_the_registry_once() -> None:
    folder = Path(str(eigenveil.commands.__file__)).parent
    files = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    assert sorted(eigenveil.commands._NAMES) == sorted(files)


def test_a_new_command_has_text_json_a_report_and_errors_of_one_line(app: typer.Typer, tmp_path: Path) -> None:
    budget = ("--epsilon", 1, "--delta", "1e-6")
    assert run(app, "price", "fit", *budget) == (0, "fit costs 1\n", "")
    code, text, _ = run(app, "price", "fit", *budget, "--json", "--report", tmp_path / "price.json")
    assert (code, json.loads(text)) == (0, {"what": "fit", "epsilon": 1.0})
    assert json.loads((tmp_path / "price.json").read_text(encoding="utf-8"))["answer"] == "fit costs 1"
    assert run(app, "price", "fit", "--epsilon", 4, "--delta", "1e-6") == (3, "fit costs 4\n", "")
    assert run(app, "price", "sums", *budget) == (2, "", "error: sums are free\n")
    # Its options are declared elsewhere, and refused in the words of a command line.
    code, _, error = run(app, "price", "fit", "--epsilon", -1, "--delta", "1e-6")
    assert code == 2 and error.startswith("error: --epsilon must be") and error.count("\n") == 1
    code, text, _ = run(app, "price", "--help")
    assert code == 0 and "What something costs." in text and "--epsilon" in text and "WHAT" in text
