"""Adding a parameter takes one declaration: a made-up one is found, checked and documented, on every surface.

The package is copied, six lines are put into one declaration, the generator runs, and nothing else is edited.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import eigenveil

CLASS = "class Rounds(Stopping):"
MADE_UP = """
    patience: int = param(
        "How many rounds may bring nothing.",
        default=3,
        check=Integer(min=1, max=9),
        metavar="NUMBER",
    )
"""

# Run in the copy: what each surface says of the parameter, as JSON.
ASKED = """
import json, sys, pydoc
from dataclasses import replace
from typer.testing import CliRunner
import numpy as np

found = {}
from eigenveil import FederatedPCA
from sklearn.base import clone

sites = np.array_split(np.random.default_rng(0).standard_normal((60, 4)), 3)
found["default"] = FederatedPCA(2, epsilon=None).patience
found["cloned"] = clone(FederatedPCA(2, epsilon=None, patience=5)).get_params()["patience"]
FederatedPCA(2, epsilon=None, patience=9).fit(sites).save(sys.argv[1] + "/model.safetensors")
try:
    FederatedPCA(2, epsilon=None, patience=10).fit(sites)
except ValueError as error:
    found["python"] = str(error)

from eigenveil.commands import app
np.save(sys.argv[1] + "/rows.npy", np.vstack(sites))
command = ["simulate", sys.argv[1] + "/rows.npy", "-k", "2", "--sites", "3", "--no-privacy", "--patience"]
found["help"] = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["simulate", "--help"]).output
found["runs"] = CliRunner().invoke(app, [*command, "2"]).exit_code
found["inspected"] = CliRunner().invoke(app, ["inspect", sys.argv[1] + "/model.safetensors"]).output
found["refused"] = CliRunner().invoke(app, [*command, "10"]).output

from eigenveil.model import Model
found["settings"] = dict(Model.load(sys.argv[1] + "/model.safetensors").settings)

from eigenveil.network.study import StudyFile
from network.study_parties import document

study = StudyFile.of(document(task={"patience": 4}))
found["text"] = study.text()
found["read"] = StudyFile.parse(study.text()).estimator().patience
found["digests"] = [StudyFile.of(document(task={"patience": one})).digest for one in (4, 4, 5)]
try:
    StudyFile.of(document(task={"patience": 0}))
except ValueError as error:
    found["study"] = str(error)

from eigenveil.params.declare import as_call, as_options
from eigenveil.plan.facts import Facts
from eigenveil.plan.spectrum import Spectrum
from eigenveil.plan.recommendation import advise
from eigenveil.core.accounting import Budget

facts = Facts(
    dim=6, rank=2, people=5000, budget=Budget(1.0, 1e-6), spectrum=Spectrum.guessed(6), sites=5, trust=("hub",)
)
params = advise(facts).params
found["planned"] = params.patience
found["call"] = as_call(replace(params, patience=7), "FederatedPCA")
found["options"] = as_options(replace(params, patience=7))

print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a copy of the package, with one more declaration, says of it."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(Path(eigenveil.__file__).parent, folder / "eigenveil", ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "eigenveil" / "params" / "declarations/federated.py"
    text = path.read_text(encoding="utf-8")
    head, docstring, rest = text.partition(CLASS)[2].partition('"""\n')
    path.write_text(text.partition(CLASS)[0] + CLASS + head + docstring + MADE_UP + rest, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parents[1])])}
    # Constructors and docstrings are in the source, so they are written first.
    generator = [sys.executable, "-m", "eigenveil.params.docs"]
    subprocess.run(generator, env=environment, capture_output=True, check=True)
    run = subprocess.run([sys.executable, "-c", ASKED, str(folder)], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    answer: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    docs = (folder / "eigenveil" / "estimators" / "federated/pca.py").read_text(encoding="utf-8")
    return {**answer, "docs": docs}


def test_the_estimator_has_it_checked_and_documented(found: dict[str, Any]) -> None:
    assert (found["default"], found["cloned"]) == (3, 5)
    assert found["python"] == "patience must be an integer from 1 to 9, got 10"
    assert "patience : int, default 3\n        How many rounds may bring nothing." in found["docs"]
    assert "        patience: int = 3,\n" in found["docs"] and "        self.patience = patience\n" in found["docs"]


def test_the_command_has_it_checked_and_documented(found: dict[str, Any]) -> None:
    assert "--patience" in found["help"] and "How many rounds may bring nothing." in found["help"]
    assert found["runs"] == 0
    assert "--patience must be an integer from 1 to 9, got 10" in found["refused"]


def test_the_model_has_it_in_its_settings(found: dict[str, Any]) -> None:
    assert found["settings"]["patience"] == 9
    assert re.search(r"^ *patience +9 *$", found["inspected"], re.MULTILINE)


def test_the_study_file_has_it_checked_and_documented(found: dict[str, Any]) -> None:
    assert "# How many rounds may bring nothing.\npatience = 4" in found["text"]
    assert found["read"] == 4
    assert found["digests"][0] == found["digests"][1] != found["digests"][2]
    assert found["study"] == "[task] patience must be an integer from 1 to 9, got 0"


def test_the_plan_has_it_as_parameter_call_and_command(found: dict[str, Any]) -> None:
    assert found["planned"] == 3
    assert "patience=7" in found["call"]
    assert found["options"][found["options"].index("--patience") + 1] == "7"
