"""The Parameters section of docstrings, of estimators and of functions that `takes` made, written into their source.

Editors that run no code show it too. The page that lists the keys of study files and policies is written here as well.
`python -m eigenveil.params.docs` rewrites what is not current, and a test says what that is.
"""

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any, Final

from eigenveil.params.tables import keys_table
from eigenveil.params.words import parameters_section

__all__ = ["DOCUMENTED", "KEYS_PAGE", "current", "keys_page", "main"]

DOCUMENTED: Final = (
    "eigenveil.estimators.private.pca:PrivatePCA",
    "eigenveil.estimators.federated.pca:FederatedPCA",
    "eigenveil.estimators.gossip.pca:GossipPCA",
    "eigenveil.estimators.streaming.pca:StreamingPCA",
    "eigenveil.estimators.bounds.rows:find_bounds",
    "eigenveil.estimators.bounds.columns:find_column_bounds",
    "eigenveil.estimators.bounds.spectrum:released_spectrum",
    "eigenveil.recommend.reading:read_interactions",
    "eigenveil.recommend.recommender:PrivateRecommender",
)
_SECTION: Final = re.compile(r"    Parameters\n    -{10}\n.*?(?=\n\n    \w+\n    -{4,}\n)", re.DOTALL)

# In a checkout; where only the package is there are no pages.
KEYS_PAGE: Final = Path(__file__).parents[3] / "docs" / "study-keys.md"
_KEYS: Final = (
    ("A study around a hub, or in a tree", "eigenveil.params.declarations.study:HubStudy"),
    ("A study between peers", "eigenveil.params.declarations.study:PeerStudy"),
    ("A policy: pins", "eigenveil.network.policy:Pins"),
    ("A policy: limits", "eigenveil.network.policy:Limits"),
    ("A policy: budget", "eigenveil.network.policy:Spending"),
    ("A policy: the site's program", "eigenveil.network.policy:Agent"),
)
_KEYS_HEAD: Final = """# Keys of a study file and of a policy

What `eigenveil study new` and `eigenveil policy new` write, and what you may write into those files yourself.
Keys with no default must be given. A study file also says who takes part, in `[authority]`, `[hub]`,
`[[site]]`, `[[node]]` and `[[peer]]`, each with a `certificate` and, where somebody listens, an `address`;
and in `[sizes]` how many people each site has, where `neighbours` declares that public. [Across
organisations](network.md) tells how all of it is used. This page is written by `python -m
eigenveil.params.docs`.
"""


def _found(name: str) -> Any:
    module, _, own = name.partition(":")
    return getattr(importlib.import_module(module), own)


def keys_page() -> str:
    """The page that lists the keys of study files and policies, as they are declared now."""
    tables = [f"## {title}\n\n{keys_table(_found(name))}\n" for title, name in _KEYS]
    return "\n".join([_KEYS_HEAD, *tables])


def current(name: str) -> tuple[Path, str, str]:
    """The file of a class or function, its text, and the text with the section as its parameters are declared now."""
    own, documented = name.partition(":")[2], _found(name)
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
    if KEYS_PAGE.parent.is_dir():
        KEYS_PAGE.write_text(keys_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
