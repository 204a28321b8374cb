"""How notebooks show what is public of a guarantee, a model, a recommendation and a ledger.

Each finds this module by name, in `_repr_html_`, because what is computed imports nothing that draws.
"""

from functools import singledispatch

from eigenveil.core.ledger import Ledger
from eigenveil.errors import EigenveilError
from eigenveil.model import Model
from eigenveil.plan.recommendation import Recommendation
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.show.charts import scree_chart
from eigenveil.show.marks import escaped
from eigenveil.show.pages import figure, fragment, table


@singledispatch
def html_of(result: object) -> str:
    """`result` as HTML."""
    raise TypeError(f"{type(result).__name__} has no view for notebooks")


@html_of.register
def _(guarantee: Guarantee) -> str:
    rows = [(label, " ".join(texts)) for label, texts in guarantee.parts()]
    return fragment(_headline(guarantee) + (table(("guarantee", ""), rows) if rows else ""))


@html_of.register
def _(model: Model) -> str:
    shares = model.explained_variance_ratio.tolist()
    chart = scree_chart(model.explained_variance.tolist(), floor=model.noise_floor, shares=shares)
    warnings = "".join(f"<p><strong>Warning.</strong> {escaped(warning)}</p>" for warning in model.warnings)
    # Several models may be shown on one page, and ids must differ.
    return fragment(_headline(model.guarantee) + warnings + figure(chart, f"scree{id(model)}"))


@html_of.register
def _(recommendation: Recommendation) -> str:
    header = ("method", "captured variance", "largest angle, as a sine", "who is protected from whom, or why not possible")
    rows = [
        (forecast.method, str(forecast.captured), str(forecast.sine), forecast.refused or forecast.guarantee)
        for forecast in recommendation.forecasts
    ]
    return fragment(f"<p><strong>{escaped(recommendation.reasons[0])}</strong></p>{table(header, rows)}")


@html_of.register
def _(ledger: Ledger) -> str:
    budget, where = ledger.budget, ledger.place
    try:
        spent = f"spent: epsilon {ledger.epsilon():.3g} of {budget.epsilon:g} at delta = {budget.delta:g}"
    except EigenveilError as error:
        # A file may be gone or damaged since.
        return fragment(f"<p>{escaped(where)}</p><p>{escaped(str(error))}</p>")
    entries = table(("release", "mu"), [(charge.label, charge.mu) for charge in ledger.charges])
    paragraph = f"<p>{escaped(where)}. Left: epsilon {ledger.left():g}</p>" if where else ""
    return fragment(f"<p><strong>{escaped(spent)}</strong></p>{paragraph}{entries}")


def _headline(guarantee: Guarantee) -> str:
    return f'<p class="{"good" if guarantee.private else "bad"}"><strong>{escaped(guarantee.title)}</strong></p>'
