"""A study file on a terminal: what was agreed, who takes part with which keys, and the digest."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from eigenveil.network.identity.certificates import Certificate, pin_words
from eigenveil.network.study.file import StudyFile
from eigenveil.network.study.words import facts_of
from eigenveil.show.console import Line
from eigenveil.show.terminal import labelled

if TYPE_CHECKING:
    from eigenveil.show.console import View

__all__ = ["study_view"]


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
