"""What the docs and docstrings tell of the architecture is so: the walk of one number, and what each package is for."""

import ast
import re
import sys
import types
from pathlib import Path

import numpy as np

import eigenveil
from eigenveil import PrivatePCA

ROOT = Path(eigenveil.__file__).parent
TOLD = Path(__file__).parents[1] / "docs" / "architecture.md"
MOST = 12


def told() -> list[tuple[str, str]]:
    """The hops that the page tells: file and function."""
    return re.findall(r"^\d+\. `([\w/]+\.py)` `([\w.]+)`", TOLD.read_text(encoding="utf-8"), flags=re.MULTILINE)


def walked() -> list[tuple[str, str]]:
    """Every function of ours that a fit enters, in the order in which it is first entered."""
    rows = np.random.default_rng(0).standard_normal((300, 6)) * [4, 2, 1, 1, 1, 1]
    pca = PrivatePCA(2, epsilon=1.0, delta=1e-6, row_bound=10.0, center=None, method="covariance", random_state=0)
    found: dict[tuple[str, str], None] = {}

    def note(frame: types.FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            found.setdefault((path.relative_to(ROOT).as_posix(), frame.f_code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        pca.fit(rows)
    finally:
        sys.setprofile(before)
    return list(found)


def test_the_walk_is_short_and_a_fit_takes_it() -> None:
    hops, way = told(), walked()
    assert 0 < len(hops) <= MOST
    assert [hop for hop in hops if hop not in way] == []
    assert sorted(hops, key=way.index) == hops


def test_every_package_says_what_it_is_for_who_calls_it_and_what_it_may_import() -> None:
    """By its number of sentences, and by the one about imports, which import-linter's contracts make true."""
    for path in ROOT.rglob("*/__init__.py"):
        said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        sentences = re.findall(r"[.:](?:\s|$)", said.partition(">>>")[0])
        assert len(sentences) >= 3 and re.search(r"\bimports?\b", said), path


def test_no_helper_of_tests_has_the_name_of_a_folder_of_tests() -> None:
    """pytest puts the folder of each test file first on the path: such a helper would be imported in the folder's place."""
    tests = Path(__file__).parent
    folders = {path.name for path in tests.iterdir() if path.is_dir()}
    assert [path for path in tests.rglob("*.py") if path.stem in folders] == []
