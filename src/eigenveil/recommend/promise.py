"""What a private recommender promises, to whom and against whom, in words."""

from eigenveil.estimators.federated_promise import (
    CALIBRATION,
    against,
    assumed_of_sites,
    caveats_of,
    charged,
    integers,
)
from eigenveil.estimators.parties import Parties
from eigenveil.privacy import Budget, Guarantee, Neighbours
from eigenveil.recommend.item_study import FoundItems, ItemStudy

__all__ = ["recommender_promise"]

_JOINT = (
    "a user's recommendations are made from the released item space and that user's own history, and are for that user alone. "
    "That is joint differential privacy: whatever all other users see, put together, is covered by this promise; the "
    "recommendations of a user, shown to somebody else, tell about that user's history"
)


def recommender_promise(parties: Parties, found: FoundItems, *, given_degrees: bool) -> Guarantee:
    """The guarantee of a finished fit, from what its ledgers say. `given_degrees` says that the caller gave item degrees."""
    request, study = parties.request, parties.study
    assert isinstance(study, ItemStudy)
    budget = request.at_hub if request.at_hub is not None else request.at_sites
    if budget is None:
        return Guarantee.none("an exact item space was asked for")
    return Guarantee(
        epsilon=budget.epsilon,
        delta=budget.delta,
        unit=_unit(study),
        neighbours=_neighbours(study),
        against=_against(parties),
        released=_released(parties, found),
        assumptions=(*_assumptions(parties, given_degrees), *_of_sites(parties)),
        calibration=CALIBRATION + integers(parties),
        caveats=_caveats(parties, budget),
        charges=charged(parties),
    )


def _unit(study: ItemStudy) -> str:
    if study.neighbours is Neighbours.INTERACTION:
        return "each single interaction of a user with an item (not a user's whole history)"
    return "each user, with their whole history"


def _neighbours(study: ItemStudy) -> str:
    match study.neighbours:
        case Neighbours.ZERO_OUT:
            return "one user's whole history is blanked, and the number of users, which is public, stays (zero-out)"
        case Neighbours.ADD_REMOVE:
            return "one user is there in one table and not in the other (add/remove); the number of users is itself protected"
        case Neighbours.REPLACE_ONE:
            return "one user's history is any other one, and the number of users, which is public, stays (replace-one)"
        case other:
            return other.words


def _against(parties: Parties) -> str:
    if len(parties.names) == 1:
        return (
            "anybody who sees the released numbers and knows everything but what is protected, all other users together among "
            "them; whoever holds the histories and runs this program sees them"
        )
    study = parties.study
    assert isinstance(study, ItemStudy)
    one = study.neighbours is Neighbours.INTERACTION
    return against(parties, secret="one interaction of a user" if one else "one user's history")


def _of_sites(parties: Parties) -> list[str]:
    if len(parties.names) > 1:
        return assumed_of_sites(parties)
    return ["this fit alone: another fit on the same users is a further cost"]


def _released(parties: Parties, found: FoundItems) -> tuple[str, ...]:
    study = parties.study
    assert isinstance(study, ItemStudy)
    lines = ["the item space: components and their values"]
    if found.degrees is not None:
        lines.append("item degrees, with every user's vote divided by the root of their degree")
    if study.keep is not None:
        lines.append(f"which {study.keep} items were kept")
    if parties.request.masks is not None:
        lines.append("the sum over the survivors of each round")
    elif parties.request.at_sites is not None:
        lines.append("every number that leaves a site")
    return (*lines, "the transcript")


def _caveats(parties: Parties, budget: Budget) -> tuple[str, ...]:
    request = parties.request
    users = None if request.sizes is None else sum(request.sizes.values())
    found = [*caveats_of(parties), _JOINT]
    if users is not None and budget.delta * users > 1:
        found.append(
            f"delta is more than one over the {users:g} users: with that probability for each, somebody may not be protected"
        )
    return tuple(found)


def _assumptions(parties: Parties, given_degrees: bool) -> list[str]:
    study = parties.study
    assert isinstance(study, ItemStudy)
    lines = [
        f"a history is divided by the root of how many items it has, or of {study.least} if it has fewer: a number that was not "
        "read from these histories",
        "a user is one row" + ("" if study.neighbours is Neighbours.INTERACTION else " at one site"),
        "which items there are is public" + ("" if study.columns is None else ", and which of them are used"),
        "that all entries are zeros and ones is public",
    ]
    if study.neighbours is not Neighbours.ADD_REMOVE:
        each = ", at each site," if len(parties.names) > 1 else ""
        lines.append(
            f"how many users there are{each} is public: the rows of a matrix, or where histories were read from lines, the users "
            "who have one"
        )
    if given_degrees:
        lines.append("the item degrees that were given are public, and were not counted in these histories")
    return lines
