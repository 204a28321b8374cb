"""The tree against its golden corpus: fits, texts, messages, files, forecasts and verdicts are what they were."""

import difflib

import pytest

from golden.make import CORPUS, SECTIONS, differences


@pytest.mark.parametrize("section", SECTIONS)
def test_everything_is_as_it_was(section: str) -> None:
    changed = differences(section)
    shown = [
        line
        for name, (before, now) in list(changed.items())[:5]
        for line in (f"== {name}", *difflib.unified_diff(before.splitlines(), now.splitlines(), lineterm="", n=1))
    ]
    again = f"python tests/golden/make.py {section}"
    assert not changed, "\n".join([f"{len(changed)} entries differ. If that is meant: {again}", *shown[:80]])


def test_no_section_is_left_over() -> None:
    assert {path.stem for path in CORPUS.iterdir()} == set(SECTIONS)
