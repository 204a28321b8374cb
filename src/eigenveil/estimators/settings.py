"""`settings_of`: the public choices of a fit, as plain values for the model file. Every kind of fit writes them through it."""

from typing import Any

from eigenveil.privacy import Neighbours

__all__ = ["settings_of"]


def settings_of(*, method: str, why: str, neighbours: Neighbours | None, **facts: Any) -> dict[str, Any]:
    """What was done and why, between which `neighbours` it is private (None for no privacy), and `facts` that are known.

    >>> settings_of(method="power", why="asked for", neighbours=None, width=4, rounds=None)
    {'method': 'power', 'why': 'asked for', 'width': 4, 'neighbours': 'none'}
    """
    known = {name: value for name, value in facts.items() if value is not None}
    near = "none" if neighbours is None else neighbours.value
    return {"method": method, "why": why} | known | {"neighbours": near}
