"""Pictures of a result with matplotlib, by scikit-learn's Display convention. Needs the extra `plot`.

Every display is made from a fitted estimator, a model or a file, keeps the numbers that it shows as attributes, and draws them
with `plot(ax=...)`. All of them show released or public numbers, except the scores of `BiplotDisplay`, which say what they are.
Users call it from Python, and no other package does. It may import `report` and all below it.

>>> import matplotlib
>>> matplotlib.use("agg")
>>> import numpy as np
>>> from eigenveil import PrivatePCA
>>> from eigenveil.show.plots import ScreeDisplay
>>> rows = np.random.default_rng(0).standard_normal((5000, 8)) * [4, 2, 1, 1, 1, 1, 1, 1]
>>> pca = PrivatePCA(3, epsilon=1.0, delta=1e-6, row_bound=8.0).fit(rows)
>>> display = ScreeDisplay.from_estimator(pca)
>>> display.ax_.get_ylabel(), len(display.bars_)
('variance', 3)
"""

from eigenveil.show.plots.components import BiplotDisplay, LoadingsDisplay, ScreeDisplay
from eigenveil.show.plots.curve import PlanDisplay
from eigenveil.show.plots.display import Display
from eigenveil.show.plots.runs import BudgetDisplay, ConvergenceDisplay

__all__ = [
    "BiplotDisplay",
    "BudgetDisplay",
    "ConvergenceDisplay",
    "Display",
    "LoadingsDisplay",
    "PlanDisplay",
    "ScreeDisplay",
]
