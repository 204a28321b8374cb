"""The Parameters section of each estimator's docstring, written into its source: editors that run no code show it too.

`python -m eigenveil.params.docs` rewrites the sections that are not current, and a test says which they are.
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
)
_SECTION: Final = re.compile(r"    Parameters\n    -{10}\n.*?(?=\n\n    \w+\n    -{4,}\n)", re.DOTALL)


def current(name: str) -> tuple[Path, str, str]:
    """The file of a class, its text, and the text with the section as its parameters are declared now."""
    module, _, cls = name.partition(":")
    kind = getattr(importlib.import_module(module), cls)
    path = Path(inspect.getfile(kind))
    text = path.read_text(encoding="utf-8")
    start = text.index(f"\nclass {cls}(")
    section = parameters_section(kind, indent="    ")
    return path, text, text[:start] + _SECTION.sub(lambda _: section, text[start:], count=1)


def main() -> None:
    """Write every section that is not current, and name the files."""
    for name in DOCUMENTED:
        path, text, wanted = current(name)
        if text != wanted:
            path.write_text(wanted, encoding="utf-8")
            sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
