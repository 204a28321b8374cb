"""The core loads nothing but itself, numpy and cryptography: whoever checks an epsilon need read no more."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import eigenveil.core

FOLDER = Path(eigenveil.core.__file__).parent
MODULES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")
GUIDE = eigenveil.core.__doc__ or ""
LINES_PER_MINUTE = 25
MOST = 14
# What imports by name.
LOADERS = {"importlib", "pkgutil", "runpy"}
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


def test_nothing_is_imported_by_name_or_inside_a_function() -> None:
    """What is loaded later, in the middle of a call, shows in no contract and in no list of modules that importing loads."""
    for path in FOLDER.glob("*.py"):
        assert hidden_imports(path.read_text(encoding="utf-8")) == [], path.name


@pytest.mark.parametrize(
    "code",
    [
        'from importlib import import_module\nimport_module("eigenveil.show.notebook")',
        'import importlib as loader\nloader.import_module("eigenveil.show")',
        'def html() -> object:\n    return __import__("eigenveil.show")',
        "def html() -> None:\n    from eigenveil.show import notebook",
        "def html() -> None:\n    from ..show import notebook",
        'import sys\nsys.modules["eigenveil.show"]',
        "import pkgutil",
    ],
)
def test_a_hidden_import_is_noticed(code: str) -> None:
    assert hidden_imports(code) != []


def hidden_imports(code: str) -> list[str]:
    """What a module could load of ours without an import at its top, as source text."""
    tree = ast.parse(code)
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [ast.unparse(node) for node in ast.walk(tree) if id(node) not in texts and _is_hidden(node, tree)]


def _is_hidden(node: ast.AST, tree: ast.Module) -> bool:
    match node:
        case ast.Import(names=names):
            tops = {name.name.partition(".")[0] for name in names}
            return bool(tops & LOADERS) or ("eigenveil" in tops and node not in tree.body)
        case ast.ImportFrom(module=module, level=level):
            top = "eigenveil" if level else (module or "").partition(".")[0]
            return top in LOADERS or (top == "eigenveil" and node not in tree.body)
        case ast.Name(id=name):
            return name == "__import__"
        case ast.Constant(value=str(text)):
            # Docstrings are left out. Other texts need no name of a module of ours.
            return re.match(r"eigenveil\.(?!errors)[a-z]", text) is not None
        case _:
            return False


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
