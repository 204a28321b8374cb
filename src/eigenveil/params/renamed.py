"""Words of version 0.1 that have others now. Files that carry them are read in the new words, or refused with them."""

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["RENAMED_KEYS", "RENAMED_OPTIONS", "RENAMED_VALUES", "in_new_words"]

RENAMED_VALUES: Final = {"curator": "hub"}
_SETTINGS: Final = {"mechanism": "method", "iterations": "rounds"}
# Keys of policies, which are not read in new words: a site's rules are changed by the site alone.
RENAMED_KEYS: Final = {"tasks": "version 0.1 called it tasks; it is called method now, so rename the key"}

# Options, each with what a command may have in its place.
RENAMED_OPTIONS: Final = {
    "--mechanism": ("--method",),
    "--iterations": ("--rounds",),
    "--no-center": ("--center",),
    "--history": ("--have-file",),
    "--n": ("--first",),
    "-n": ("--first",),
    "--memory": ("--memory-limit",),
    "--keys": ("--authority",),
    "--out": ("--output",),
}


def in_new_words(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a model, whichever version wrote them.

    >>> in_new_words({"mechanism": "power", "iterations": 3, "trust": "curator"})
    {'method': 'power', 'rounds': 3, 'trust': 'hub'}
    """
    found = {_SETTINGS.get(name, name): value for name, value in settings.items()}
    if isinstance(found.get("trust"), str):
        found["trust"] = RENAMED_VALUES.get(found["trust"], found["trust"])
    return found
