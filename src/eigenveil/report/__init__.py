"""Reports of models, runs, plans and audits, made from released and public numbers alone.

`model_report` makes a `Report`, `write_report` writes it as HTML, JSON or PDF, and `schema` describes the JSON.
The commands and `plot` call it, and so can you. It may import everything below `plot`.
"""

from eigenveil.report.contents import (
    ComponentsPart,
    EpsilonPoint,
    FactLine,
    ListPart,
    PlanPart,
    Report,
    RoundPart,
    ScoresPart,
    SitePart,
    TablePart,
)
from eigenveil.report.fitted import (
    answer_of,
    components_of,
    counted,
    forecast_part,
    model_report,
    plan_part,
    round_parts,
    settings_facts,
    spectrum_of,
    unseen_words,
)
from eigenveil.report.html import charts_of, cumulative_of, plan_of, scree_of, to_html
from eigenveil.report.schema import from_json, schema, to_json
from eigenveil.report.words import method_words
from eigenveil.report.write import ENDINGS, read_report, require_printer, write_report

__all__ = [
    "ENDINGS",
    "ComponentsPart",
    "EpsilonPoint",
    "FactLine",
    "ListPart",
    "PlanPart",
    "Report",
    "RoundPart",
    "ScoresPart",
    "SitePart",
    "TablePart",
    "answer_of",
    "charts_of",
    "components_of",
    "counted",
    "cumulative_of",
    "forecast_part",
    "from_json",
    "method_words",
    "model_report",
    "plan_of",
    "plan_part",
    "read_report",
    "require_printer",
    "round_parts",
    "schema",
    "scree_of",
    "settings_facts",
    "spectrum_of",
    "to_html",
    "to_json",
    "unseen_words",
    "write_report",
]
