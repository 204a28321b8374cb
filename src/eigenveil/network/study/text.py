"""A study as TOML, with a comment above each key: for people, and to be read back. `eigenveil study new` writes it."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from eigenveil.params.tables import KeyLine
from eigenveil.params.toml import toml_value

if TYPE_CHECKING:
    from eigenveil.network.study.file import StudyFile

__all__ = ["comment", "section", "text_of"]

_WIDTH: Final = 100
_HEAD: Final = (
    "A study across organisations. It is public, has no secrets, and is the same for every party.",
    "Changing one key makes another study, and the parties of this one refuse to talk to it.",
    "Look at it with: eigenveil study show FILE",
)
_PINS: Final = "Compare the pins of the parties you trust by telephone; eigenveil study show prints them."


def text_of(study: "StudyFile") -> str:
    """The text of a study file."""
    return "\n".join(_lines(study)) + "\n"


def _lines(study: "StudyFile") -> Iterator[str]:
    document = study.document()
    for words in _HEAD:
        yield from comment(words)
    yield f"eigenveil_study = {document['eigenveil_study']}"
    # Parameters first, certificates last: people read the top of the file.
    for name in ("study", "task", "slots", "privacy", "network", "tree", "graph"):
        yield from section(name, study.lines(name))
    if study.sizes is not None:
        yield from _table(
            "sizes", document["sizes"], "The number of people at each site, which this study makes public."
        )
    yield from section("rehearsal", study.lines("rehearsal"))
    yield from _table("authority", document["authority"], "Signed the certificates of all parties.")
    if study.hub is not None:
        yield from _table("hub", document["hub"], "Adds up what sites send, and listens here.")
    yield ""
    yield from comment(_PINS)
    for name, places in (("site", study.sites), ("node", study.nodes), ("peer", study.peers)):
        for place, entry in zip(places, document.get(name, []), strict=True):
            yield from _table(name, entry, f"{place.name}, pin {place.pin}", several=True)


def section(name: str, lines: Iterable[KeyLine]) -> Iterator[str]:
    """A table with a comment above each key; nothing if it has no keys."""
    for at, one in enumerate(lines):
        yield from (f"\n[{name}]",) if at == 0 else ()
        yield from comment(one.comment)
        yield f"{one.key} = {toml_value(one.value)}"


def _table(name: str, table: Mapping[str, Any], words: str, *, several: bool = False) -> Iterator[str]:
    yield ""
    yield from comment(words)
    yield f"[[{name}]]" if several else f"[{name}]"
    for key, value in table.items():
        # Names of sites may be any text and need quotes; our keys are plain words.
        shown = key if key.isascii() and key.isidentifier() else toml_value(key)
        # In TOML's long form a certificate keeps its lines, as in its .crt file.
        yield f'{shown} = """\n{value}"""' if key == "certificate" else f"{shown} = {toml_value(value)}"


def comment(words: str) -> Iterator[str]:
    """The words as comment lines, wrapped between words."""
    line = "#"
    for word in words.split(" "):
        if len(line) + 1 + len(word) > _WIDTH and line != "#":
            yield line
            line = "#"
        line += f" {word}"
    yield line
