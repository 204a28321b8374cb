"""The facts behind a private recommender's guarantee. `privacy.facts` writes the text."""

from eigenveil.core.unit import Neighbours
from eigenveil.estimators.federated.guarantee import charged, seen_by_hub
from eigenveil.estimators.federated.parties import Parties
from eigenveil.privacy import Guarantee, GuaranteeFacts
from eigenveil.privacy.facts import NO_PRIVACY, OneHolder, User, UserHistories, items_released
from eigenveil.recommend.item_fit import FoundItems, ItemFit

__all__ = ["recommender_guarantee", "users_of"]


def users_of(parties: Parties) -> float | None:
    """The number of users where it is public."""
    sizes = parties.request.fit.sizes
    return None if sizes is None else float(sum(sizes.values()))


def recommender_guarantee(parties: Parties, found: FoundItems, *, given_degrees: bool) -> Guarantee:
    """The guarantee of a finished fit, from its ledgers. `given_degrees`: the caller passed public item degrees."""
    request, study = parties.request, parties.study
    assert isinstance(study, ItemFit)
    budget = request.at_hub if request.at_hub is not None else request.at_sites
    if budget is None:
        return Guarantee.none(NO_PRIVACY["items"])
    alone = len(parties.names) == 1
    return GuaranteeFacts(
        budget=budget,
        protects=User(interaction=study.neighbours is Neighbours.INTERACTION),
        neighbours=study.neighbours,
        rows=UserHistories(
            least=study.least,
            listed=study.columns is not None,
            counted=study.neighbours.count_is_public,
            at_each=not alone,
            degrees_given=given_degrees,
        ),
        seen_by=OneHolder("a fit in rounds") if alone else seen_by_hub(parties),
        released=items_released(
            degrees=found.degrees is not None,
            kept=study.keep,
            parts=alone and request.at_sites is not None,
        ),
        charges=charged(parties),
        reproducible=request.seed is not None,
        people=users_of(parties),
    ).guarantee()
