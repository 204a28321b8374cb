"""A study in plain sentences, for those who decide whether to take part: what, with whom, who learns what, at what cost."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from eigenveil.params.declarations.study import PeerStudy

if TYPE_CHECKING:
    from eigenveil.network.study.file import StudyFile

__all__ = ["words_of"]

_SHOWN: Final = 20


def words_of(study: "StudyFile") -> Iterator[str]:
    """The sentences."""
    yield f"Study {study.name!r} with the number {study.id}."
    if study.purpose is not None:
        yield f"Its purpose, as the coordinator says: {study.purpose}"
    if study.seed is not None:
        yield (
            "THIS IS A REHEARSAL with a test seed: whoever has the study file can subtract all noise. It protects nobody and is "
            "for test data only."
        )
    yield from _task(study)
    yield from _parties(study)
    yield from _learnt(study)
    yield from _cost(study)
    yield from _waiting(study)


def _task(study: "StudyFile") -> Iterator[str]:
    task = study.params
    several = (
        "first principal component" if task.n_components == 1 else f"first {task.n_components} principal components"
    )
    how = "a method that is decided from public numbers" if task.method == "auto" else task.method
    yield f"Computed: the {several} of all rows together, by {how}."
    yield f"Columns, {len(task.columns)} of them: {_some(task.columns)}."
    if task.person is not None:
        yield f"The column {task.person!r} says whose row it is. It stays at its site, and all rows of a person count as one."
    if task.row_bound is not None:
        yield f"Rows further than {task.row_bound:g} from the mean are brought that near."
    if task.column_bounds is not None:
        yield "Entries outside of the column bounds are cut to them."
    if task.center == "private":
        yield "The mean of all rows is found, too, and everybody learns it."
    elif task.center is not None:
        yield "Rows are centered on numbers that stand in the study."


def _parties(study: "StudyFile") -> Iterator[str]:
    names = [place.name for place in study.holders]
    if isinstance(study.params, PeerStudy):
        edges = len(study.params.graph)
        yield f"Peers, {len(names)} of them: {_some(names)}. Each talks to its neighbours on a graph of {edges} edges."
        return
    assert study.hub is not None
    yield f"Sites, {len(names)} of them: {_some(names)}. The hub listens at {study.hub.address}."
    if study.nodes:
        yield f"Nodes, {len(study.nodes)} of them, gather for the hub, each with at most {study.fanout} below it."


def _learnt(study: "StudyFile") -> Iterator[str]:
    yield "Everybody who takes part learns the components and the variance along each. Rows and scores stay where they are."
    hub = "The hub and the nodes learn" if study.nodes else "The hub learns"
    raw = f"{hub.upper()} THE RAW PARTS OF EACH SITE"
    few = study.params.colluders
    told = "one other site tells it all that it knows" if few == 1 else f"{few} other sites tell it all that they know"
    match study.trust:
        case "masked":
            yield f"The hub learns noisy sums over at least {study.fewest} sites and no site's part, even if {told}."
        case "site":
            yield f"{hub} each site's part, with so much noise of the site's own that the guarantee holds against them."
        case "both":
            yield f"{hub} each site's part with noise of the site's own; all others learn less, with noise of the hub's."
        case "hub":
            yield f"{raw} and must be trusted with them; noise protects against all others."
        case "pairwise":
            others = "one of them tells others" if few == 1 else f"{few} of them tell each other"
            yield f"Neighbours learn a peer's part under noise that cancels in sums alone, even if {others} all."
        case "independent":
            yield "Neighbours learn a peer's part with so much noise of its own that the guarantee holds against everybody."
        case _ if study.masked:
            yield f"The hub learns EXACT sums over at least {study.fewest} sites, and no site's part, even if {told}."
        case _ if study.carrier == "gossip":
            yield "NEIGHBOURS LEARN WHAT A PEER ADDS, and nothing hides it."
        case _:
            yield f"{raw}, and nothing hides them."


def _cost(study: "StudyFile") -> Iterator[str]:
    from eigenveil.privacy import Neighbours
    from eigenveil.privacy.facts import Person

    params, budget = study.params, study.budget
    if budget is None:
        yield "NOTHING IS PROMISED: the answer is exact, nobody is protected, and no budget could pay for it."
        return
    near = Neighbours(params.neighbours)
    # In a study, where numbers of people are public, they are so for each party.
    each = (
        f" How many people each {'peer' if isinstance(params, PeerStudy) else 'site'} has is public."
        * near.count_is_public
    )
    yield (
        f"It costs each person at most epsilon = {budget.epsilon:g} at delta = {budget.delta:g}, against whoever sees most. "
        f"Neighbouring tables: {Person().relation(near)}.{each}"
    )
    if isinstance(params, PeerStudy):
        if params.restarts:
            yield f"The budget has room to begin {params.restarts} rounds again when peers vanish."
        return
    if params.trust == "both":
        second = [value[1] if isinstance(value, tuple) else value for value in (params.epsilon, params.delta)]
        yield f"Against everybody but the hub it is epsilon = {second[0]:g} at delta = {second[1]:g}."
    if params.person_sites > 1:
        yield f"That is for people who have rows at no more than {params.person_sites} sites."


def _waiting(study: "StudyFile") -> Iterator[str]:
    network, names = study.params, len(study.holders)
    word = "peers" if study.carrier == "gossip" else "sites"
    yield f"At least {study.fewest} of {names} {word} must take part to the end, or it stops."
    yield (
        f"Everybody has {network.join:g} seconds to join; then an answer is waited for {network.deadline:g} seconds, and asked "
        f"for {network.retries} times again."
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
