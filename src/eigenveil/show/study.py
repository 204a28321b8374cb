"""A study file on a terminal: what was agreed, who takes part with which keys, and the digest."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from eigenveil.network.identity.certificates import Certificate, pin_words
from eigenveil.network.study.file import StudyFile
from eigenveil.show.agreement import facts_of, who_learns
from eigenveil.show.console import Line
from eigenveil.show.terminal import labelled

if TYPE_CHECKING:
    from eigenveil.show.console import View
    from eigenveil.show.values import Report

__all__ = ["study_report", "study_view"]


def study_view(study: StudyFile) -> "View":
    """What the study is, its parties with pins and dates, and the digest."""
    for fact in facts_of(study):
        yield Text(f"{fact.label}: {fact.words}", style="bold red" if fact.alarming else "")
    yield ""
    for place in study.places:
        where = "" if place.address is None else f" at {place.address}"
        yield Line(f"{place.certificate.role} {place.name}{where}", "bold")
        yield labelled(_facts(place.certificate, pin_words(place.pin)))
        # Shown, not raised: a study is still the same study when a certificate has ended.
        try:
            place.certificate.require_current()
        except ValueError as error:
            yield Line(str(error), "red")
    yield Line(f"\ndigest {pin_words(study.digest)}")
    yield Text("all who see this digest have the same study; compare pins by telephone", style="dim")


def _facts(certificate: Certificate, pin: str) -> Iterator[tuple[str, str]]:
    yield "pin", pin
    yield "certificate", f"from {certificate.begins:%Y-%m-%d} to {certificate.ends:%Y-%m-%d}"


def study_report(path: Path) -> "Report":
    """What the organisations agreed on: who takes part, who learns what, and at what cost. With the result, if it is there."""
    from eigenveil.show.values import FactLine, Report, SitePart

    study = StudyFile.read(path)
    facts = list(facts_of(study))
    agreed = tuple(FactLine(fact.label, fact.words) for fact in facts)
    run = _run_of(study, path)
    # The result says more than the agreement, so it becomes the report, with what was agreed first in its facts.
    if run is not None:
        return replace(run, facts=(*agreed, *run.facts))
    places = study.peers if study.carrier == "gossip" else study.sites
    return Report(
        kind="study",
        title=f'Study "{study.name}", as agreed',
        answer=who_learns(study, whose="each"),
        study=study.name,
        digest=study.digest,
        sites=tuple(SitePart(one.name, one.certificate.pin) for one in places),
        warnings=tuple(fact.words for fact in facts if fact.alarming),
        # All who see the same digest have the same study.
        facts=(*agreed, FactLine("Digest", study.digest)),
    )


def _run_of(study: "StudyFile", path: Path) -> "Report | None":
    """The hub's report of this very study, where the hub writes it unless told otherwise."""
    from eigenveil.show.files import read_report

    name = f"{path.stem}.report.json"
    for place in (path.with_name(name), Path(name)):
        # Another study may have the same name, but not the same digest.
        if place.is_file() and (found := read_report(place)).digest == study.digest:
            return found
    return None
