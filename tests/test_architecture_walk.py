"""docs/architecture.md tells the walk of one number from a row to a released component; a real fit takes that way."""

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
