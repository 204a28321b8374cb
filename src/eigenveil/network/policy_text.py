"""A policy for a site to begin with: every key with its safe default, and what it means."""

from collections.abc import Iterator
from typing import Final

from eigenveil.network.policy import Limits, Pins, Policy
from eigenveil.network.study.file import StudyFile
from eigenveil.network.study.text import comment, section
from eigenveil.params import declared
from eigenveil.params.tables import lines_of
from eigenveil.params.toml import toml_value

__all__ = ["template"]

_HEAD: Final = (
    "The policy of a site: what it takes part in. It is the site's own; the coordinator has no say in it and never sees it.",
    "Every key here has its default. What is left out has it, too, and so each study is refused until its hub is pinned.",
    "See what it says about a study with: eigenveil policy check FILE STUDY --as NAME",
)
_PINS: Final = (
    "Whose keys you have compared. The coordinator could make up sites, so do not take pins from the coordinator: call the "
    "owner of each on a number that you know, let them read the pin aloud, and only then write it here.",
)


def template(study: StudyFile | None = None) -> str:
    """A policy with safe defaults. With a `study`, its pins stand in it as comments, to be put in force once compared."""
    return "\n".join(_lines(study)) + "\n"


def _lines(study: StudyFile | None) -> Iterator[str]:
    policy = Policy()
    for words in _HEAD:
        yield from comment(words)
    yield from _pins(study)
    for name in ("limits", "budget", "agent"):
        yield from section(name, lines_of(getattr(policy, name), name))
        if name == "limits":
            # All columns unless they are listed, which nobody can for somebody else.
            yield from comment(declared(Limits)["columns"].param.help)
            yield '# columns = ["age", "weight"]'


def _pins(study: StudyFile | None) -> Iterator[str]:
    yield ""
    for words in _PINS:
        yield from comment(words)
    yield "[pins]"
    yield from comment(declared(Pins)["hub"].param.help)
    if study is not None and study.hub is not None:
        yield from comment(f"In the study {study.name!r}, NOT COMPARED YET; take away the # when you have:")
        yield f"# hub = {toml_value([study.hub.pin])}"
    else:
        yield "hub = []"
    yield ""
    yield from comment(
        "Each other site, peer or node: masks and pair noise are worth what those at their other ends are worth."
    )
    yield "[pins.peers]"
    others = [] if study is None else [place for place in study.places if place is not study.hub]
    if others:
        yield from comment(
            "NOT COMPARED YET; take away the # of each that you have. Your own is among them and is not needed:"
        )
    for place in others:
        yield f"# {toml_value(place.name)} = {toml_value(place.pin)}"
    if not others:
        yield f'# "name" = "{"0123456789abcdef" * 4}"'
