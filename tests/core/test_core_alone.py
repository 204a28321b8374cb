"""The core loads nothing but itself, numpy and cryptography: whoever checks an epsilon need read no more."""

import json
import subprocess
import sys
from pathlib import Path

import eigenveil.core

MODULES = sorted(path.stem for path in Path(eigenveil.core.__file__).parent.glob("*.py") if path.stem != "__init__")
MOST = 14
OUTSIDE = {"scipy", "pyarrow", "sklearn", "pandas", "rich", "dp_accounting", "threadpoolctl", "joblib", "typer"}


def loaded(*modules: str) -> set[str]:
    """What a fresh process has loaded after it imports these."""
    code = f"import sys, json, {', '.join(modules)}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def ours(modules: set[str]) -> set[str]:
    return {module for module in modules if module.partition(".")[0] == "eigenveil"}


def test_the_whole_core_loads_nothing_else() -> None:
    found = loaded(*(f"eigenveil.core.{module}" for module in MODULES))
    assert ours(found) == {"eigenveil", "eigenveil.errors", "eigenveil.core", *(f"eigenveil.core.{m}" for m in MODULES)}
    assert {module.partition(".")[0] for module in found} & OUTSIDE == set()


def test_releasing_loads_few_modules() -> None:
    assert len(ours(loaded("eigenveil.core"))) <= MOST
    assert len(ours(loaded("eigenveil.core.mechanism", "eigenveil.core.sums"))) <= MOST
