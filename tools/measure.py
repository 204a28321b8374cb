"""How large the tree is, and how much of it a reader meets: `python tools/measure.py [FOLDER] [--json]`.

FOLDER is another checkout, to compare with. Modules are counted in fresh processes with the Python that runs this.
"""

import argparse
import ast
import io
import json
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

# What a process loads of Eigenveil: the count of modules and of their lines.
_LOADED = """
import sys
sys.path.insert(0, "src")
{code}
files = [m.__file__ for n, m in sys.modules.items() if n.split(".")[0] == "eigenveil" and getattr(m, "__file__", None)]
print(len(files), sum(open(file, encoding="utf-8").read().count("\\n") for file in files))
"""
_MECHANISM = """
try:
    import eigenveil.core.mechanism
except ModuleNotFoundError:
    import eigenveil.privacy.mechanism
"""
_FIT = """
import numpy as np
from eigenveil import PrivatePCA
PrivatePCA(2, epsilon=1.0, delta=1e-6, row_bound=5.0).fit(np.random.default_rng(0).standard_normal((500, 5)))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    figures = dict(_figures(options.folder.resolve()))
    if options.json:
        print(json.dumps(figures, indent=1))
        return
    for name, figure in figures.items():
        print(f"{name:<48} {figure:>9,}")


def _figures(root: Path) -> Iterator[tuple[str, int]]:
    sources = {path: path.read_text(encoding="utf-8") for path in sorted((root / "src/eigenveil").rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in sources.items()}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    yield "source files", len(sources)
    yield "source lines", sum(text.count("\n") for text in sources.values())
    yield "source lines of code", sum(map(_code_lines, sources.values()))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    yield "functions", len(functions)
    yield "functions of at most 2 lines", sum(_length(function) <= 2 for function in functions)
    yield "functions of more than 40 lines", sum(_length(function) > 40 for function in functions)
    yield "dataclasses", sum(isinstance(node, ast.ClassDef) and _is_dataclass(node) for node in nodes)
    yield "case _ without assert_never", sum(isinstance(node, ast.match_case) and _is_default(node) for node in nodes)
    for name in ("krylov", "sync", "csv"):
        yield f'files with "{name}" in quotes', sum(f'"{name}"' in text for text in sources.values())
    yield "files that name restarts", sum("restarts" in text for text in sources.values())
    core = {path: text for path, text in sources.items() if "core" in path.relative_to(root).parts}
    yield "core files", len(core)
    yield "core lines", sum(text.count("\n") for text in core.values())
    yield "core lines of code", sum(map(_code_lines, core.values()))
    for name, code in (("the mechanism", _MECHANISM), ("a fit", _FIT), ("--help", "import eigenveil.__main__")):
        modules, lines = _loaded(root, code)
        yield f"modules loaded by {name}", modules
        yield f"lines loaded by {name}", lines
    yield "test lines", _total(root.glob("tests/**/*.py"))
    yield "benchmark scripts", len(list(root.glob("benchmarks/**/*.py")))
    pages = [*root.glob("docs/**/*.md"), *root.glob("*.md")]
    yield "words of documentation", sum(len(path.read_text(encoding="utf-8").split()) for path in pages)


def _total(paths: Iterable[Path]) -> int:
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def _code_lines(text: str) -> int:
    """Lines that have code: no blank lines, comments or docstrings."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body, without the docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.dump(decorator) for decorator in node.decorator_list)


def _is_default(case: ast.match_case) -> bool:
    """Whether this is `case _` with something other than `assert_never` under it."""
    is_wildcard = isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None and case.pattern.name is None
    return is_wildcard and case.guard is None and "assert_never" not in ast.dump(case)


def _loaded(root: Path, code: str) -> tuple[int, int]:
    script = _LOADED.format(code=code)
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{root} cannot be measured:\n{done.stderr}")
    modules, lines = done.stdout.split()[-2:]
    return int(modules), int(lines)


if __name__ == "__main__":
    main()
