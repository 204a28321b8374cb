"""`PrivateRecommender` in use: histories by name, spaces that are judged, and what is said of what was given."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from eigenveil.linalg import Array
from eigenveil.recommend import PrivateRecommender, evaluate, recall, split
from recommend.histories_of_users import tastes

USERS, ITEMS = 600, 12
R = tastes(USERS, ITEMS, groups=3, rng=np.random.default_rng(0))
DENSE: Array = R.toarray()


def recommender(**choices: Any) -> PrivateRecommender:
    """Exact and with a fixed seed."""
    return PrivateRecommender(**({"n_components": 3, "epsilon": None, "random_state": 0} | choices))


def private(**choices: Any) -> PrivateRecommender:
    return recommender(**({"epsilon": 3.0, "delta": 1e-4} | choices))


def test_a_history_is_a_list_and_a_series_has_names() -> None:
    names = [f"i{at}" for at in range(ITEMS)]
    model = recommender().fit(pd.DataFrame(DENSE.astype(int), columns=names))
    with pytest.raises(ValueError, match="must be a list, got"):
        model.history_of("i3")
    one = pd.Series(DENSE[0], index=names)
    assert np.array_equal(model.recommend(one, n=3), model.recommend(DENSE[0], n=3))
    with pytest.raises(ValueError, match="in the same order"):
        model.recommend(one[::-1], n=3)


def test_a_space_of_few_items_can_be_judged() -> None:
    train, test = split(R, rng=np.random.default_rng(0))
    model = recommender(items=6).fit(train)
    found = evaluate(model.space_, train.tocoo(), test.toarray(), n=3)
    users = np.flatnonzero(np.diff(test.indptr))
    lists = model.recommend(train[users], n=3)
    assert found.recall == pytest.approx(recall(lists, test[users], n=3))
    assert found.users == len(users)


def test_degrees_that_are_given_and_a_large_delta_are_said_in_the_guarantee() -> None:
    given = private(item_degrees=np.ones(ITEMS)).fit(R)
    assert "item degrees that were given are public" in given.guarantee_.to_text()
    assert given.space_.settings["item_degrees"] == "given as public"
    released = private(item_degrees="private").fit(R)
    assert "that were given" not in released.guarantee_.to_text()
    assert released.space_.settings["item_degrees"] == "released"
    assert "Delta is more than one over" in private(delta=0.5).fit(R).guarantee_.to_text()


def test_nothing_is_said_of_a_guarantee_where_there_is_none() -> None:
    assert "guarantee covers" not in recommender().fit(R).space_.note
    assert "guarantee covers" not in private(random_state=0).fit(R).space_.note
    assert "guarantee covers" in private(random_state=None).fit(R).space_.note
