"""What to type for what a plan has chosen: its parameters as the options of a command."""

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from eigenveil.params import GossipParams, PrivateParams, StreamingParams
from eigenveil.params.words import as_options

if TYPE_CHECKING:
    from eigenveil.plan import Facts, FitParams, Forecast

__all__ = ["command_of", "rehearsal_of"]


def command_of(facts: "Facts", chosen: "Forecast") -> str:
    """What to type for a fit as `chosen`. Capitals stand for what a plan does not know.

    Sites that are organisations of their own write a study; `rehearsal_of` runs the same in one process.
    """
    params = chosen.params
    options = _options(params, chosen.unknown)
    if isinstance(params, PrivateParams):
        return _line("fit", "TABLE", *options)
    if isinstance(params, StreamingParams):
        return _line("stream", "TABLE", *options)
    if params.method == "segments":
        # A study has no segments: they run in one process.
        return rehearsal_of(facts, chosen)
    peers = isinstance(params, GossipParams)
    where = ["--peer-address", "NAME=HOST:7443"] if peers else ["--address", "HOST:7443"]
    sizes = ["--size", "NAME=PEOPLE"] if facts.neighbours.count_is_public else []
    head = ["study", "new", "study.toml", "--authority", "FOLDER", *where, "--columns-from", "PUBLIC_TABLE"]
    return _line(*head, *options, *sizes)


def rehearsal_of(facts: "Facts", chosen: "Forecast") -> str:
    """What to type to run a fit over sites in one process, on a public table like the private ones; empty for one holder."""
    if isinstance(chosen.params, PrivateParams | StreamingParams):
        return ""
    options = _options(chosen.params, chosen.unknown)
    return _line("simulate", "PUBLIC_TABLE", "--sites", str(facts.sites), *options)


def _options(params: "FitParams", unknown: Sequence[str]) -> list[str]:
    from eigenveil.plan import estimator_of

    return as_options(params, always=estimator_of(params)[1], unknown=unknown)


def _line(*words: str) -> str:
    return shlex.join(["eigenveil", *words])
