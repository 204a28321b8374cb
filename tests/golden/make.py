"""The golden corpus: what everything comes to and says, written down. `python tests/golden/make.py` writes it anew.

A change of an entry needs a commit that says why, so read the difference before you keep it. Name sections to write those
alone. Each entry stands in corpus/SECTION.txt under its name. On a machine with another arithmetic than the one that wrote it,
bits are not compared ("bits" and what follows), and numbers to eight digits; everything else is compared everywhere.
"""

import hashlib
import math
import os
import re
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

# Before numpy is loaded: the order of sums depends on the number of threads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

from golden.command_runs import command_errors, command_runs
from golden.figures import files, forecasts, verdicts
from golden.fits import FITS, fits, same_arithmetic
from golden.messages import messages
from golden.refusals import refusals
from golden.studies import studies, study_errors
from golden.texts import helps, usage_errors

__all__ = ["CORPUS", "SECTIONS", "agree", "differences", "entries_of", "written"]

CORPUS: Final = Path(__file__).with_name("corpus")


def _digest(text: str) -> str:
    """Of a text that stands in another section in another width."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


SECTIONS: Final[dict[str, Callable[[], dict[str, str]]]] = {
    **{section: partial(fits, section) for section in FITS},
    "helps-80": partial(helps, 80),
    "helps-120": lambda: {name: _digest(text) for name, text in helps(120).items()},
    "usage-errors": usage_errors,
    "refusals": refusals,
    "command-errors": command_errors,
    "command-runs": command_runs,
    "studies": studies,
    "study-errors": study_errors,
    "messages": messages,
    "forecasts": forecasts,
    "files": files,
    "verdicts": verdicts,
}
_ENTRY: Final = re.compile(r"^== (.*)$", re.MULTILINE)
_BITS: Final = re.compile(r"\bbits [0-9a-f]{12}")
# Numbers that a text rounds for its reader have fewer digits than may differ.
_NUMBER: Final = re.compile(r"(?<![\w.])(-?\d+\.\d{5,}(?:e[+-]?\d+)?|-?\d(?:\.\d+)?e[+-]?\d+)(?!\w)")
_DIGITS: Final = 8


def entries_of(section: str) -> dict[str, str]:
    """The entries of a section, made now. "arithmetic" names the machine's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {"arithmetic": f"bits {same_arithmetic()}"} | SECTIONS[section]()


def written(section: str) -> dict[str, str]:
    """The entries that the corpus has."""
    text = (CORPUS / f"{section}.txt").read_text(encoding="utf-8")
    _, *parts = _ENTRY.split(text)
    return {name: body.strip("\n") for name, body in zip(parts[::2], parts[1::2], strict=True)}


def agree(one: str, other: str) -> bool:
    """Whether texts are the same but for bits, and for digits of numbers behind the eighth."""
    (*texts, rest), (*others, others_rest) = (_NUMBER.split(_BITS.sub("bits", text)) for text in (one, other))
    same_text = texts[::2] == others[::2] and rest == others_rest
    pairs = zip(texts[1::2], others[1::2], strict=True) if same_text else ()
    return same_text and all(math.isclose(float(a), float(b), rel_tol=10.0**-_DIGITS) for a, b in pairs)


def differences(section: str) -> dict[str, tuple[str, str]]:
    """Entries that are not as the corpus has them: what it has, and what is made now."""
    before, now = written(section), {name: body.strip("\n") for name, body in entries_of(section).items()}
    alike = before["arithmetic"] == now["arithmetic"]
    pairs = {name: (before.get(name, ""), now.get(name, "")) for name in before | now}
    return {name: (old, new) for name, (old, new) in pairs.items() if old != new and (alike or not agree(old, new))}


def main(sections: list[str]) -> None:
    CORPUS.mkdir(exist_ok=True)
    for section in sections or SECTIONS:
        entries = entries_of(section)
        text = "\n\n".join(f"== {name}\n{body.strip(chr(10))}" for name, body in entries.items())
        (CORPUS / f"{section}.txt").write_text(text + "\n", encoding="utf-8")
        print(f"{section}: {len(entries) - 1} entries")


if __name__ == "__main__":
    main(sys.argv[1:])
