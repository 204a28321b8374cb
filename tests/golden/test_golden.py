"""The tree against its golden corpus: fits, texts, messages, files, forecasts and verdicts are what they were."""

import difflib

import pytest

from golden.make import CORPUS, SECTIONS, agree, differences, written


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


def test_another_processor_may_change_last_digits_and_nothing_else() -> None:
    line = "sine low 0.0026382348252, bits 0123456789ab, of 1.5e-10 in 3 rounds"
    assert agree(line, "sine low 0.0026382348251, bits ba9876543210, of 1.5e-10 in 3 rounds")
    for one, other in (("8252", "9252"), ("1.5e-10", "1.6e-10"), ("3 r", "4 r"), ("low", "high"), ("in", "0.12345 in")):
        assert not agree(line, line.replace(one, other))


def test_no_refusal_comes_too_late_or_quotes_data() -> None:
    entries = written("refusals")
    at_fault = {name: [word for word in ("CHARGED", "FITTED", "QUOTED") if word in text] for name, text in entries.items()}
    # A peer finds out about its rows when it reads them. The first one has released by then, to no other process.
    assert {name: words for name, words in at_fault.items() if words} == {"GossipPCA, tables": ["CHARGED"]}


def test_a_command_that_refuses_says_one_line_quotes_nothing_and_leaves_no_file() -> None:
    text = (CORPUS / "command-errors.txt").read_text(encoding="utf-8")
    assert [word for word in ("WROTE", "PRINTED", "QUOTED", "LINES") if word in text] == []
    assert "error: " in text and "\n  0: " not in text


def test_no_wrong_study_is_taken() -> None:
    text = (CORPUS / "study-errors.txt").read_text(encoding="utf-8")
    assert [word for word in ("  taken", "UNPRINTABLE", "KeyError", "TypeError") if word in text] == []


def test_no_section_is_left_over() -> None:
    assert {path.stem for path in CORPUS.iterdir()} == set(SECTIONS)
