"""Names that people would take for another name, or could not read, are refused wherever a remote party can write one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eigenveil.errors import is_visible
from eigenveil.ledger.durable import DurableLedger
from eigenveil.network.certificates import checked_name
from eigenveil.network.study import StudyFile
from ledger.ledger_children import account
from network.study_parties import document

# What is put into the middle of a name.
HIDDEN = [
    "\u200b",  # Zero width space.
    "\u200d",  # Zero width joiner.
    "\u2060",  # Word joiner.
    "\u00ad",  # Soft hyphen.
    "\u202e",  # From right to left.
    "\u2066",  # Isolated, from left to right.
    "\u200f",  # A mark from right to left.
    "\ufe0f",  # Selectors of variants.
    "\ufe00",
    "\U000e0101",
    "\u180b",
    "\U000e0041",  # A tag.
    "\u034f",  # The joiner of marks.
    "\u3164",  # Fillers.
    "\u115f",
    "\uffa0",
    "\U00016fe4",
    "\u2d7f",  # Joiners of Tifinagh and Brahmi.
    "\U0001107f",
    "\u2800",  # A blank of Braille.
    "\u00a0",  # A space that is not the space.
    "\u2028",
    "\ufeff",
    "\u0336\u0336\u0336",  # Piles of marks.
    "\u0489\u0489\u0489",
    "\u0301" * 40,
    " \u0301",  # A mark on nothing.
]
# What people write, in scripts with marks. All in normal form C.
HONEST = [
    "Z\u00fcrich",
    "Nguy\u1ec5n",
    "\u0e17\u0e35\u0e48\u0e19\u0e35\u0e48",
    "\u0915\u094d\u0937\u093f",
    "\u5317\u4eac",
    "\u0634\u0645\u0627\u0644",
    "H\u0331ad",
]


def in_study(section: str, key: str) -> Callable[[str, Path], object]:
    def use(name: str, _: Path) -> object:
        changed: dict[str, Any] = {section: {key: ["age", name] if key == "columns" else name}}
        return StudyFile.of(document(**changed))

    return use


def in_ledger(name: str, folder: Path) -> None:
    with DurableLedger.open(folder / "ledger.db") as ledger:
        ledger.declare(name, b"rows")


USES: dict[str, Callable[[str, Path], object]] = {
    "name of a party": lambda name, _: checked_name(name, "site"),
    "name of a study": in_study("study", "name"),
    "purpose of a study": in_study("study", "purpose"),
    "column of a study": in_study("task", "columns"),
    "person column of a study": in_study("task", "person"),
    "name of a dataset": in_ledger,
    "title in a ledger": lambda name, _: account(name),
    "dataset in a ledger": lambda name, _: account(dataset=name),
}


@pytest.mark.parametrize("use", USES)
def test_what_people_cannot_see_is_refused(tmp_path: Path, use: str) -> None:
    for hidden in HIDDEN:
        name = f"nor{hidden}th"
        assert not is_visible(name)
        with pytest.raises(ValueError, match="printable") as caught:
            USES[use](name, tmp_path)
        # The refusal itself hides nothing.
        assert is_visible(str(caught.value))


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", HONEST)
def test_what_people_write_is_taken(tmp_path: Path, use: str, name: str) -> None:
    assert is_visible(name)
    USES[use](name, tmp_path)
