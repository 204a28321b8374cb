"""The core loads nothing but itself, numpy and cryptography: whoever checks an epsilon need read no more."""

import json
import re
import subprocess
import sys
from pathlib import Path

import eigenveil.core

FOLDER = Path(eigenveil.core.__file__).parent
MODULES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")
GUIDE = eigenveil.core.__doc__ or ""
LINES_PER_MINUTE = 25
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


def test_the_guide_names_every_module_once_and_tells_how_long_it_takes_to_read() -> None:
    told = {name: int(minutes) for name, minutes in re.findall(r"^\d+\. `(\w+)` \((\d+) min\)", GUIDE, re.MULTILINE)}
    assert sorted(told) == MODULES
    for name, minutes in told.items():
        lines = len((FOLDER / f"{name}.py").read_text(encoding="utf-8").splitlines())
        assert abs(minutes - lines / LINES_PER_MINUTE) <= 2, f"{name} has {lines} lines"


def test_the_first_ring_needs_nothing_of_the_second_but_threads() -> None:
    first = re.findall(r"^\d+\. `(\w+)`", GUIDE.partition("**Ring 2")[0], re.MULTILINE)
    found = ours(loaded(*(f"eigenveil.core.{module}" for module in first)))
    assert {module.rpartition(".")[2] for module in found} - {"eigenveil", "errors", "core"} == {*first, "threads"}
