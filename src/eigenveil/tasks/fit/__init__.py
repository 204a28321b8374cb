"""A whole fit as one task: the search for the mean, the components, the totals, the rows' bounds and the split of the budget.

Estimators, the recommender and the network make one from checked settings. Every protocol runs it round by round without calling
upwards. The planner takes the split of the budget from here.
It may import the other tasks and what they may (`privacy`, `data`, `linalg`, `params`, `errors`), never `plan` or `estimators`.
"""
