"""From a study file to its parties, and from their result to a model.

Every agent calls it: each organisation derives the same terms from the file, and makes its own party.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from eigenveil.errors import ParameterError, ParameterWarning, require
from eigenveil.estimators.federated.parties import Parties, federated_guarantee, sites_settings
from eigenveil.estimators.gossip.parties import PeerParties
from eigenveil.estimators.gossip.spec import GossipSpec
from eigenveil.estimators.terms import model_of
from eigenveil.model import Model, clipping_of
from eigenveil.network.rules import MEMORY, limits_of, request_of, require_size
from eigenveil.network.streams import slot_parties_of
from eigenveil.network.study import StudyFile
from eigenveil.params.declarations.study import said_in_file
from eigenveil.tasks.fit.task import Fit, FitResult

__all__ = ["federated_model", "found_in", "parties_of", "peer_parties_of", "require_possible", "said_before", "study_settings"]


def parties_of(study: StudyFile, *, memory: int = MEMORY) -> Parties:
    """The parties of a study around a hub or in a tree, none of which needs more than `memory` bytes.

    Errors are in the words of its file.
    """
    require(study.topology != "gossip", f"{study.name} is a study between peers and has no hub")
    with _in_words_of_file():
        parties = _parties_of(study, memory)
    assert isinstance(parties, Parties)
    return parties


def peer_parties_of(study: StudyFile, *, memory: int = MEMORY) -> PeerParties:
    """The peers of a study without a hub, none of which needs more than `memory` bytes. Errors are as in `parties_of`."""
    require(study.topology == "gossip", f"{study.name} has a hub: run `eigenveil site`")
    with _in_words_of_file():
        parties = _parties_of(study, memory)
    assert isinstance(parties, PeerParties)
    return parties


def require_possible(study: StudyFile, *, memory: int = MEMORY) -> None:
    """Refuse a study whose parties cannot be made, before its file is sent out; a `ParameterError` if a parameter is wrong."""
    if study.streaming:
        slot_parties_of(study, memory=memory)
        return
    _parties_of(study, memory)


def said_before(study: StudyFile, *, memory: int = MEMORY) -> tuple[ParameterWarning, ...]:
    """What is to be said of a study that is possible before anything is spent, such as that its budget is hopeless."""
    return () if study.streaming else _parties_of(study, memory).before()


@contextmanager
def _in_words_of_file() -> Iterator[None]:
    try:
        yield
    except ParameterError as error:
        raise ValueError(said_in_file(error)) from error


def _parties_of(study: StudyFile, memory: int) -> Parties | PeerParties:
    spec = request_of(study)
    # Before anything is made: the first basis alone can have gigabytes.
    require_size(study, spec, memory=memory)
    # The public seed of the first basis follows from the whole study: changing any key gives another start. A rehearsal starts
    # from the same seed as its simulation, so that their results agree to the last bit.
    digest = bytes.fromhex(study.digest)
    start = [int.from_bytes(digest[at : at + 4], "big") for at in range(0, len(digest), 4)]
    # `apart`: each organisation makes its own party, and counts the questions that it answers.
    facts: dict[str, Any] = {
        "roster": {holder.name: holder.certificate.public for holder in study.holders},
        "title": study.title,
        "start": start if spec.seed is None else spec.seed,
        "apart": True,
    }
    names = [holder.name for holder in study.holders]
    if isinstance(spec, GossipSpec):
        limits_of(study, spec, "peer")
        return PeerParties(spec, names, **facts)
    parties = Parties(spec, names, hub=study.layout().hub, **facts)
    # A limit of the study's own that is too small would show only after every site was charged.
    limits_of(study, spec, "hub", parties.masked)
    limits_of(study, spec, "site", parties.masked)
    return parties


def found_in(parties: Parties, arrays: tuple[Any, ...]) -> FitResult:
    """The result that the hub has sent; a `ValueError` if it cannot be one."""
    assert isinstance(parties.study, Fit)
    return parties.study.decode_result(arrays)


def federated_model(study: StudyFile, parties: Parties, result: FitResult, *, sites: int, rounds: int | None) -> Model:
    """The model of a finished study, with the guarantee that this party can vouch for.

    No party knows all bytes that were sent, and a site does not know the number of rounds.
    """
    # The largest weight of a site in a sum, and the root of the sum of their squares. Here each site counts once.
    weights = (1.0, math.sqrt(sites))
    return model_of(
        result,
        verdict=parties.verdict(result, sites=sites, weights=weights, names=study.columns),
        guarantee=federated_guarantee(parties, result),
        columns=study.columns,
        clipping=clipping_of(result.domain),
        settings=study_settings(study, sites_settings(parties, result, sites=sites, rounds=rounds, sent=None)),
    )


def study_settings(study: StudyFile, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a fit, with the name and digest of its study."""
    return {"study": study.name, "study_digest": study.digest} | settings
