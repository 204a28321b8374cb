"""Words that say nothing of what a variable holds are retired: none is bound in src, but for the exceptions below."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parents[1] / "src" / "eigenveil"
RETIRED: Final = {
    *("found", "one", "asked", "given", "said", "known", "kept", "seen", "there", "here"),
    *("place", "words", "most", "least", "request"),
}
MAX_EXCEPTIONS: Final = 40
# By (file, word): why the word stays.
EXCEPTIONS: Final[dict[tuple[str, str], str]] = {
    ("audit/case.py", "words"): "a key of `eigenveil audit --json`",
    ("audit/membership.py", "words"): "a key of `eigenveil audit --json`",
    ("audit/verdict.py", "seen"): "a key of `eigenveil audit --json`",
    ("papers/registry.py", "known"): "a key of the registry of published results",
    ("show/values.py", "asked"): "a key of JSON reports and of docs/report.schema.json",
    ("tasks/fit/bounds.py", "most"): "a key of `outliers` in the settings of model files",
}


def bound_names(code: str) -> Iterator[str]:
    """The names that are assigned to, looped over, captured or taken as arguments; fields of classes too."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.ExceptHandler(name=str(name)):
                yield name
            case _:
                pass


def test_no_retired_word_is_bound_in_the_source() -> None:
    assert len(EXCEPTIONS) <= MAX_EXCEPTIONS and all(EXCEPTIONS.values())
    bound = {
        (path.relative_to(SOURCE).as_posix(), name)
        for path in SOURCE.rglob("*.py")
        for name in bound_names(path.read_text(encoding="utf-8"))
        if name in RETIRED
    }
    assert sorted(bound - EXCEPTIONS.keys()) == []


def test_every_kind_of_binding_is_noticed() -> None:
    code = "def f(one, *, said=1):\n    for kept in (found := one): given: int = kept\n    with kept as (seen, *asked): pass"
    assert set(bound_names(code)) & RETIRED == {"one", "said", "kept", "found", "given", "seen", "asked"}
