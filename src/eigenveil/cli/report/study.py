"""The report of a study file: what was agreed, before or after it ran."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eigenveil.report import Report

__all__ = ["study_report"]


def study_report(path: Path) -> "Report":
    """What the organisations agreed on: who takes part, who learns what, and at what cost."""
    from eigenveil.network.study.file import StudyFile
    from eigenveil.network.study.words import facts_of, who_learns
    from eigenveil.report import FactLine, Report, SitePart

    study = StudyFile.read(path)
    facts = list(facts_of(study))
    places = study.peers if study.carrier == "gossip" else study.sites
    return Report(
        kind="study",
        title=f"Study {study.name}",
        answer=who_learns(study, whose="each"),
        study=study.name,
        digest=study.digest,
        sites=tuple(SitePart(one.name, one.certificate.pin) for one in places),
        warnings=tuple(fact.words for fact in facts if fact.alarming),
        facts=tuple(FactLine(fact.label, fact.words) for fact in facts),
    )
