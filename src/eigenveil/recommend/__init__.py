"""Recommendations from histories that stay private: an item space, learned once, and a filter on the user's device.

The command `recommend` calls it. It may import `estimators`, `plan` and the layers below them.
"""

from eigenveil.recommend.interactions import Interactions
from eigenveil.recommend.item_space import ItemSpace, Quality, evaluate, ndcg, popularity_scores, recall, split
from eigenveil.recommend.plan import ItemPlan
from eigenveil.recommend.reading import read_interactions
from eigenveil.recommend.recommender import PrivateRecommender

__all__ = [
    "Interactions",
    "ItemPlan",
    "ItemSpace",
    "PrivateRecommender",
    "Quality",
    "evaluate",
    "ndcg",
    "popularity_scores",
    "read_interactions",
    "recall",
    "split",
]
