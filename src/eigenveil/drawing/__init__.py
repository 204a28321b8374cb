"""Charts as SVG text, and HTML around them: pure functions of numbers that are public already.

Every text that is drawn counts as hostile. `plain` and `escaped` are the only ways into a page. Reports, plots,
live pages and notebook views call it, and the terminal too, for `plain`. It may import `errors` only.
"""

from eigenveil.drawing.charts import (
    Point,
    Span,
    bars_chart,
    budget_chart,
    convergence_chart,
    cumulative_chart,
    heat_chart,
    loadings_chart,
    plan_chart,
    scatter_chart,
    scree_chart,
    shares_chart,
    taking_part_chart,
)
from eigenveil.drawing.html import figure, fragment, listing, page, prose, table
from eigenveil.drawing.marks import COLOURS, Chart, Mark, escaped, in_bytes, png, variables
from eigenveil.errors import plain

__all__ = [
    "COLOURS",
    "Chart",
    "Mark",
    "Point",
    "Span",
    "bars_chart",
    "budget_chart",
    "convergence_chart",
    "cumulative_chart",
    "escaped",
    "figure",
    "fragment",
    "heat_chart",
    "in_bytes",
    "listing",
    "loadings_chart",
    "page",
    "plain",
    "plan_chart",
    "png",
    "prose",
    "scatter_chart",
    "scree_chart",
    "shares_chart",
    "table",
    "taking_part_chart",
    "variables",
]
