"""The keys of a site's policy that limit parameters, derived from the declarations of these parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from eigenveil.params.declarations.federated import FederatedParams
from eigenveil.params.declarations.gossip import GossipParams
from eigenveil.params.declare import Declared, Limit, declared, param
from eigenveil.params.values import listed, one_of

__all__ = ["limited", "limiting", "words_allowed"]

Kind = TypeVar("Kind")


def limited(cls: type, section: str) -> list[tuple[Declared, Limit]]:
    """The parameters of `cls` that this section of a policy limits, each with its limit, in the order of the keys."""
    found = [(one, one.param.limit) for one in declared(cls).values() if one.param.limit is not None]
    return sorted((pair for pair in found if pair[1].section == section), key=lambda pair: pair[1].key)


def limiting(
    section: str, kinds: Iterable[type] = (FederatedParams, GossipParams)
) -> Callable[[type[Kind]], type[Kind]]:
    """Give a class, before `parameters`, a key for each limit on a parameter in this section."""
    every = tuple(kinds)

    def made(cls: type[Kind]) -> type[Kind]:
        limits = {limit.key: limit for kind in every for _, limit in limited(kind, section)}
        own = inspect.get_annotations(cls)
        # Set before `parameters` sees the class, which takes them for declarations like any others.
        for key, limit in limits.items():
            setattr(cls, key, param(limit.help, default=limit.default, check=_check(limit, every)))
        cls.__annotations__ = {**dict.fromkeys(limits, Any), **own}
        return cls

    return made


def words_allowed(limit: Limit, kinds: Iterable[type] = (FederatedParams, GossipParams)) -> tuple[str, ...]:
    """The words that a policy may list for this limit: those of every parameter with it.

    >>> from eigenveil.params.declarations.groups import TRUST_LIMIT
    >>> words_allowed(TRUST_LIMIT)
    ('hub', 'site', 'both', 'masked', 'pairwise', 'independent', 'none')
    """
    known = [one for kind in kinds for one, other in limited(kind, limit.section) if other.key == limit.key]
    # A dictionary keeps the order of the declarations, which messages and files then have.
    words = dict.fromkeys(word for one in known for word in one.words)
    return tuple(word for word in (*words, *limit.also) if word not in limit.but)


def _check(limit: Limit, kinds: Iterable[type]) -> Any:
    return limit.check if limit.kind != "among" else listed(one_of(*words_allowed(limit, kinds)))
