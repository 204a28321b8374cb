"""The planner: compares methods before a fit, says what each costs and finds, and recommends one.

It uses public numbers alone and never sees a row. `choose` serves the estimators; `forecast` serves the command
`plan`. It may import `trackers` and below, and runs the real tasks.
"""

from eigenveil.plan.choose import (
    STREAM_MEAN_SHARES,
    Choice,
    MasksPlan,
    Plan,
    StreamPlan,
    first_block,
    masked_terms,
    plan_masks,
    plan_sites,
    plan_stream,
    predict,
    stream_split,
)
from eigenveil.plan.clipping import HiddenRows, LongRows, Norms, taken_by_clipping
from eigenveil.plan.facts import (
    METHODS,
    SETTINGS,
    Facts,
    FitParams,
    Setting,
    choice_of,
    estimator_of,
    method_phrase,
    method_words,
    methods_for,
    parts_of,
)
from eigenveil.plan.recommendation import Recommendation, Verdict, advise, hopeless
from eigenveil.plan.rehearsal import Forecast, Interval, curve, forecast
from eigenveil.plan.spectrum import Spectrum, guessed_eigenvalues

__all__ = [
    "METHODS",
    "SETTINGS",
    "STREAM_MEAN_SHARES",
    "Choice",
    "Facts",
    "FitParams",
    "Forecast",
    "HiddenRows",
    "Interval",
    "LongRows",
    "MasksPlan",
    "Norms",
    "Plan",
    "Recommendation",
    "Setting",
    "Spectrum",
    "StreamPlan",
    "Verdict",
    "advise",
    "choice_of",
    "curve",
    "estimator_of",
    "first_block",
    "forecast",
    "guessed_eigenvalues",
    "hopeless",
    "masked_terms",
    "method_phrase",
    "method_words",
    "methods_for",
    "parts_of",
    "plan_masks",
    "plan_sites",
    "plan_stream",
    "predict",
    "stream_split",
    "taken_by_clipping",
]
