"""The Parameters section of docstrings, of estimators and of functions that `takes` made, written into their source.

Editors that run no code show it too. `python -m eigenveil.params.docs` rewrites the sections that are not current, and a test
says which they are.
"""

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Final

from eigenveil.params.words import parameters_section

__all__ = ["DOCUMENTED", "current", "main"]

DOCUMENTED: Final = (
    "eigenveil.estimators.private_pca:PrivatePCA",
    "eigenveil.estimators.federated_pca:FederatedPCA",
    "eigenveil.estimators.gossip_pca:GossipPCA",
    "eigenveil.estimators.streaming_pca:StreamingPCA",
    "eigenveil.estimators.find_bounds:find_bounds",
    "eigenveil.estimators.find_column_bounds:find_column_bounds",
    "eigenveil.estimators.private_pca:PrivatePCA",
    "eigenveil.estimators.released_spectrum:released_spectrum",
    "eigenveil.recommend.reading:read_interactions",
    "eigenveil.recommend.recommender:PrivateRecommender",
)
_SECTION: Final = re.compile(r"    Parameters\n    -{10}\n.*?(?=\n\n    \w+\n    -{4,}\n)", re.DOTALL)


def current(name: str) -> tuple[Path, str, str]:
    """The file of a class or function, its text, and the text with the section as its parameters are declared now."""
    module, _, own = name.partition(":")
    documented = getattr(importlib.import_module(module), own)
    path = Path(inspect.getfile(inspect.unwrap(documented)))
    text = path.read_text(encoding="utf-8")
    start = text.index(f"\n{'class' if isinstance(documented, type) else 'def'} {own}(")
    section = parameters_section(getattr(documented, "takes", documented), indent="    ")
    rest, found = _SECTION.subn(lambda _: section, text[start:], count=1)
    if not found:
        raise ValueError(f"{path}: {own} has no section for its parameters, followed by another section")
    return path, text, text[:start] + rest


def main() -> None:
    """Write every section that is not current, and name the files."""
    for name in DOCUMENTED:
        path, text, wanted = current(name)
        if text != wanted:
            path.write_text(wanted, encoding="utf-8")
            sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
