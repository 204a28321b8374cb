"""Study files in the golden corpus: the normal forms that are digested, and what is said of changes that make no sense."""

import hashlib
import json
from collections.abc import Callable
from typing import Any, Final

from eigenveil.network.study import StudyFile
from network.study_parties import document, gossip_document, tree_document

__all__ = ["studies", "study_errors"]

_MAKES: Final[dict[str, Callable[..., dict[str, Any]]]] = {"star": document, "tree": tree_document, "gossip": gossip_document}
_EXACT: Final[dict[str, Any]] = {"epsilon": None, "delta": None, "no_privacy": True}
# In place of a section that is left out.
_GONE: Final = object()
# Which study, and what is put over it: None takes a key away.
WRONG: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("star", {"eigenveil_study": _GONE}),
    ("star", {"eigenveil_study": 2}),
    ("star", {"eigenveil_study": True}),
    ("star", {"study": _GONE}),
    ("star", {"task": _GONE}),
    ("star", {"privacy": _GONE}),
    ("star", {"authority": _GONE}),
    ("star", {"hub": _GONE}),
    ("star", {"site": _GONE}),
    ("star", {"site": []}),
    ("star", {"tasks": {}}),
    ("star", {"privacy": {"epsilom": 1}}),
    ("star", {"task": {"zzz": 1}}),
    ("star", {"privacy": {"seed": 7}}),
    ("star", {"seed": 7}),
    ("star", {"task": {"random_state": 7}}),
    ("star", {"task": {"participation": "full"}}),
    ("star", {"privacy": {"calibration": "paper"}}),
    ("star", {"task": {"n_components": 2}}),
    ("star", {"rehearsal": {"seed": -1}}),
    ("star", {"study": {"name": ""}}),
    ("star", {"study": {"name": "x" * 201}}),
    ("star", {"study": {"name": "a\u001b[2J"}}),
    ("star", {"study": {"purpose": "a\u202eb"}}),
    ("star", {"study": {"purpose": "a\nb"}}),
    ("star", {"study": {"purpose": "x" * 2001}}),
    ("star", {"task": {"columns": ["age", " b"]}}),
    ("star", {"study": {"id": "abc"}}),
    ("star", {"study": {"id": None}}),
    ("star", {"study": {"topology": None}}),
    ("star", {"study": {"topology": "pigeon"}}),
    ("star", {"tree": {"fanout": 2}}),
    ("star", {"peer": []}),
    ("tree", {"tree": {"fanout": None}}),
    ("tree", {"tree": {"fanout": 1}}),
    ("tree", {"tree": {"fanout": 3}}),
    ("tree", {"node": []}),
    ("star", {"task": {"components": None}}),
    ("star", {"task": {"components": 1.5}}),
    ("star", {"task": {"components": True}}),
    ("star", {"task": {"components": 9}}),
    ("star", {"task": {"columns": ["age"]}}),
    ("star", {"task": {"columns": ["a", "b", "a"]}}),
    ("star", {"task": {"columns": "a,b"}}),
    ("star", {"task": {"person": "age"}}),
    ("star", {"task": {"method": "magic"}}),
    ("star", {"task": {"method": "segments"}}),
    ("gossip", {"task": {"method": "segments"}}),
    ("star", {"task": {"method": "fedpower"}}),
    ("tree", {"task": {"method": "uda"}}),
    ("star", {"task": {"method": "dr-svd"}}),
    ("star", {"task": {"local_steps": 3}}),
    ("star", {"task": {"align": "sign"}}),
    ("star", {"task": {"local_steps": ["decay"]}}),
    ("star", {"task": {"method": "power", "rounds": 201}}),
    ("star", {"task": {"method": "covariance", "rounds": 2}}),
    ("star", {"task": {"tolerance": 1}}),
    ("star", {"task": {"row_bound": "none"}}),
    ("star", {"task": {"row_bound": 0}}),
    ("star", {"task": {"row_bound": float("inf")}}),
    ("star", {"task": {"row_bound": 1e80}}),
    ("star", {"task": {"column_bounds": [1, 0]}}),
    ("star", {"task": {"column_bounds": [1, 2, 3]}}),
    ("star", {"task": {"center": [1.0]}}),
    ("star", {"task": {"center": "mean"}}),
    ("star", {"task": {"origin": [1.0]}}),
    ("star", {"task": {"scale": 0}}),
    ("star", {"task": {"neighbours": "next-door"}}),
    ("star", {"task": {"neighbours": "zero-out"}}),
    ("star", {"sizes": {"site 0": 3}}),
    ("star", {"task": {"neighbours": "zero-out"}, "sizes": {"site 0": 3}}),
    ("star", {"task": {"neighbours": "zero-out"}, "sizes": {"site 0": 3, "site 1": 3, "site 2": 3, "site 3": 3}}),
    ("star", {"task": {"neighbours": "zero-out"}, "sizes": {"site 0": -3}}),
    ("star", {"task": {"neighbours": "zero-out"}, "privacy": _EXACT}),
    ("star", {"privacy": {"epsilon": None}}),
    ("star", {"privacy": {"delta": None}}),
    ("star", {"privacy": {"no_privacy": True}}),
    ("star", {"privacy": {"epsilon": 0}}),
    ("star", {"privacy": {"epsilon": float("inf")}}),
    ("star", {"privacy": {"epsilon": float("nan")}}),
    ("star", {"privacy": {"epsilon": "one"}}),
    ("star", {"privacy": {"epsilon": [1, 1]}}),
    ("star", {"privacy": {"trust": "both", "epsilon": [1, 1, 1]}}),
    ("star", {"privacy": {"trust": "both"}}),
    ("star", {"privacy": {"delta": 1}}),
    ("star", {"privacy": {"none": "yes"}}),
    ("star", {"privacy": {"trust": None}}),
    ("star", {"privacy": {"trust": "god"}}),
    ("star", {"privacy": {**_EXACT, "trust": "site"}}),
    ("tree", {"privacy": {"trust": "masked"}}),
    ("star", {"privacy": {"survivors": 2}}),
    ("star", {"privacy": {"survivors": 4}}),
    ("star", {"privacy": {"survivors": 0}}),
    ("star", {"privacy": {"survivors": 1.5}}),
    ("star", {"privacy": {"trust": "site", "survivors": 3}}),
    ("star", {"privacy": {"trust": "site", "colluders": 1}}),
    ("star", {"privacy": {"colluders": 3}}),
    ("star", {"network": {"quorum": 3}}),
    ("star", {"privacy": _EXACT, "task": {"row_bound": None}}),
    ("star", {"privacy": {"person_sites": 4}}),
    ("star", {"privacy": {"noise": "pairwise"}}),
    ("star", {"privacy": {"restarts": 1}}),
    ("gossip", {"privacy": {"trust": "masked"}}),
    ("gossip", {"privacy": {"noise": None}}),
    ("gossip", {"privacy": _EXACT}),
    ("gossip", {"privacy": {**_EXACT, "noise": None, "restarts": 1}}),
    ("gossip", {"privacy": {"noise": "independent", "colluders": 1}}),
    ("gossip", {"privacy": {"colluders": 2}}),
    ("gossip", {"network": {"quorum": 2}}),
    ("gossip", {"graph": {"kind": None}}),
    ("gossip", {"graph": {"edges": [["peer 0", "peer 1"]]}}),
    ("gossip", {"graph": {"kind": "rung"}}),
    ("gossip", {"graph": {"kind": "/etc/passwd"}}),
    ("gossip", {"graph": {"kind": None, "edges": [["peer 0", "eve"]]}}),
    ("gossip", {"graph": {"kind": None, "edges": [["peer 0", "peer 1"], ["peer 1", "peer 0"]]}}),
    (
        "gossip",
        {"graph": {"kind": None, "edges": [["peer 0", "peer 1"], ["peer 2", "peer 3"]]}, "privacy": {"noise": "independent"}},
    ),
    ("gossip", {"graph": {"steps": 1}}),
    ("gossip", {"graph": {"steps": 9}, "task": {"method": "krylov"}}),
    ("gossip", {"privacy": {"noise": "independent"}, "graph": {"noise_edges": [["peer 0", "peer 1"]]}}),
    ("gossip", {"graph": {"consensus": "vote"}}),
    ("star", {"network": {"deadline": 0}}),
    ("star", {"network": {"retries": 1001}}),
    ("star", {"network": {"join": -1}}),
    ("star", {"network": {"max_message_bytes": 100}}),
    ("star", {"network": "fast"}),
    ("star", {"hub": {"address": None}}),
    ("star", {"hub": {"address": "hub.example.org"}}),
    ("star", {"hub": {"address": "hub.example.org:0"}}),
    ("star", {"hub": {"address": "hub.example.org:65536"}}),
    ("star", {"hub": {"address": "hub_1/x:7443"}}),
    ("star", {"hub": {"address": "::1:7443"}}),
    ("star", {"hub": {"address": "0.0.0.0:7443"}}),
    ("star", {"hub": {"name": "hub"}}),
    ("star", {"hub": {"certificate": None}}),
    ("star", {"hub": {"certificate": "hello"}}),
    ("star", {"hub": {"certificate": 5}}),
    ("star", {"site": ["a"]}),
    ("star", {"site": "a"}),
    ("star", {"site": [{}] * 10001}),
)


def study_errors() -> dict[str, str]:
    """By study: each change, and what is said of it."""
    said: dict[str, list[str]] = {}
    for kind, changes in WRONG:
        made = _MAKES[kind](**changes)
        made = {name: value for name, value in made.items() if value is not _GONE}
        try:
            StudyFile.of(made)
            words = "taken"
        except Exception as error:
            # What a stranger's file says must not command a terminal.
            words = f"{type(error).__name__}: {error}{'' if str(error).isprintable() else ' UNPRINTABLE'}"
        shown = {name: "left out" if value is _GONE else value for name, value in changes.items()}
        said.setdefault(kind, []).append(f"{str(shown)[:200]}\n  {words}")
    return {kind: "\n".join(lines) for kind, lines in said.items()}


# By name: the kind of study, and what is put over it.
_STUDIES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "star": ("star", {}),
    "star, local steps": ("star", {"task": {"method": "fedpower", "local_steps": 2}, "privacy": {"trust": "site"}}),
    "star, exact": ("star", {"privacy": _EXACT}),
    "tree": ("tree", {}),
    "gossip": ("gossip", {}),
    "gossip, krylov": ("gossip", {"task": {"method": "krylov"}}),
}


def studies() -> dict[str, str]:
    """The normal form of each study, whose canonical JSON is digested, and that digest, with names in place of certificates."""
    entries = {}
    for name, (kind, changes) in _STUDIES.items():
        normal = _named(StudyFile.of(_MAKES[kind](**changes)).document())
        canonical = json.dumps(normal, sort_keys=True, separators=(",", ":"), allow_nan=False)
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        entries[name] = f"{json.dumps(normal, sort_keys=True, indent=1)}\ndigest {digest}"
    return entries


def _named(value: Any) -> Any:
    """Certificates are made anew in every run: a word in the place of each."""
    if isinstance(value, dict):
        return {key: _named(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_named(inner) for inner in value]
    return "a certificate" if isinstance(value, str) and value.startswith("-----BEGIN CERTIFICATE") else value
