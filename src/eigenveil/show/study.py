"""Study files, certificates, requests and keys on a terminal: what was agreed, who takes part, and never a private byte."""

import functools
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from eigenveil.show.agreement import facts_of, who_learns
from eigenveil.show.console import Line, output

if TYPE_CHECKING:
    from eigenveil.network.identity.authority import CertificateRequest
    from eigenveil.network.identity.certificates import Certificate, Passphrase
    from eigenveil.network.study.file import StudyFile
    from eigenveil.show.console import View
    from eigenveil.show.values import Report

__all__ = [
    "Facts",
    "dates_of",
    "facts_in",
    "party_facts",
    "say",
    "say_next",
    "show_facts",
    "study_report",
    "study_view",
]


def study_view(study: "StudyFile") -> "View":
    """What the study is, its parties with pins and dates, and the digest."""
    from rich.text import Text

    from eigenveil.network.identity.certificates import pin_words
    from eigenveil.show.terminal import labelled

    for fact in facts_of(study):
        yield Text(f"{fact.label}: {fact.words}", style="bold red" if fact.alarming else "")
    yield ""
    for place in study.places:
        certificate, where = place.certificate, "" if place.address is None else f" at {place.address}"
        yield Line(f"{certificate.role} {place.name}{where}", "bold")
        dates = f"from {certificate.begins:%Y-%m-%d} to {certificate.ends:%Y-%m-%d}"
        yield labelled([("pin", pin_words(place.pin)), ("certificate", dates)])
        # Shown, not raised: a study is still the same study when a certificate has ended.
        try:
            certificate.require_current()
        except ValueError as error:
            yield Line(str(error), "red")
    yield Line(f"\ndigest {pin_words(study.digest)}")
    yield Text("all who see this digest have the same study; compare pins by telephone", style="dim")


def study_report(path: Path) -> "Report":
    """What the organisations agreed on: who takes part, who learns what, and at what cost. With the result, if it is there."""
    from eigenveil.network.study.file import StudyFile
    from eigenveil.show.pages import read_report
    from eigenveil.show.values import FactLine, Report, SitePart

    study = StudyFile.read(path)
    facts = list(facts_of(study))
    agreed = tuple(FactLine(fact.label, fact.words) for fact in facts)
    # The hub writes its report to one of these unless told otherwise.
    name = f"{path.stem}.report.json"
    for result in (path.with_name(name), Path(name)):
        # Another study may have the same name, but not the same digest.
        if result.is_file() and (run := read_report(result)).digest == study.digest:
            # The result says more than the agreement, so it becomes the report, with what was agreed first in its facts.
            return replace(run, facts=(*agreed, *run.facts))
    places = study.peers if study.carrier == "gossip" else study.sites
    return Report(
        kind="study",
        title=f'Study "{study.name}", as agreed',
        answer=who_learns(study, whose="each"),
        study=study.name,
        digest=study.digest,
        sites=tuple(SitePart(place.name, place.certificate.pin) for place in places),
        warnings=tuple(fact.words for fact in facts if fact.alarming),
        # All who see the same digest have the same study.
        facts=(*agreed, FactLine("Digest", study.digest)),
    )


Facts = list[tuple[str, str]]


def say(words: str) -> None:
    """One line, not wrapped."""
    output().print(words, soft_wrap=True)


def say_next(*steps: str) -> None:
    """What to do now, one step a line."""
    console = output()
    console.print("\nwhat to do next", style="bold")
    for step in steps:
        console.print(f"- {step}", soft_wrap=True)


def show_facts(facts: Facts) -> None:
    """Facts as a table of labels and texts."""
    from eigenveil.show.terminal import labelled

    output().print(labelled(facts))


def party_facts(party: "Certificate | CertificateRequest") -> Facts:
    """Name, role, hosts and pin of a party."""
    # Without the first, which the program makes from the identity: the pin shows the same.
    hosts = ", ".join(party.hosts[1:]) or ("none: it only calls out" if party.role == "site" else "none")
    return [("name", party.name), ("role", party.role), ("hosts", hosts), *_pin_facts(party.pin)]


def dates_of(begins: datetime, ends: datetime) -> Facts:
    """When a certificate begins and ends, and how many days are left."""
    now = datetime.now(UTC)
    if now < begins:
        words = "NOT VALID YET, by this computer's clock"
    elif now > ends:
        words = "EXPIRED: the coordinator renews it with eigenveil keys renew"
    else:
        # Rounded up, so that the last day reads as one day and not as none.
        left = math.ceil((ends - now) / timedelta(days=1))
        words = f"{left} day{'s' * (left != 1)} left"
    return [("begins", f"{begins:%Y-%m-%d %H:%M} UTC"), ("ends", f"{ends:%Y-%m-%d %H:%M} UTC ({words})")]


def facts_in(path: Path, passphrase: "Passphrase | None" = None) -> Facts:
    """What may be shown of a file: a certificate, a request, or private keys with the certificate beside them."""
    from eigenveil.network.identity.authority import CertificateRequest
    from eigenveil.network.identity.certificates import contents

    raw = contents(path)
    if b"PRIVATE KEY-----" in raw:
        return _private_facts(path, passphrase)
    if raw.lstrip().startswith(b"-----BEGIN CERTIFICATE REQUEST-----"):
        return [("kind", "a request, for the coordinator to sign; public"), *party_facts(CertificateRequest.load(path))]
    return _certificate_facts(path)


def _certificate_facts(path: Path) -> Facts:
    from eigenveil.network.identity.certificates import Certificate, authority_in, contents, in_file, is_authority

    if is_authority(contents(path)):
        authority = in_file(path, authority_in)
        dates = dates_of(authority.not_valid_before_utc, authority.not_valid_after_utc)
        return [("kind", "the certificate of a study's authority; public"), *dates]
    found = in_file(path, Certificate.read)
    return [("kind", "a certificate; public"), *party_facts(found), *dates_of(found.begins, found.ends)]


def _private_facts(path: Path, passphrase: "Passphrase | None") -> Facts:
    from eigenveil.data.owned import unsafe
    from eigenveil.network.identity.certificates import (
        Certificate,
        Keys,
        contents,
        in_file,
        is_locked,
        party_keys_in,
        private_keys_in,
    )

    # Shown, not refused: this command is how its owner finds out.
    why = unsafe(path, private=True)
    both = [
        ("permissions", f"NOT SAFE: {why}" if why is not None else "safe: for its owner only"),
        ("passphrase", "yes" if is_locked(contents(path)) else "none"),
    ]
    if passphrase is not None:
        # The file is read twice, and a person should be asked once.
        passphrase = functools.cache(passphrase)
    if len(private_keys_in(path, passphrase=passphrase, even_if_readable=True)) == 1:
        return [("kind", "the PRIVATE key of a study's authority; it never leaves the coordinator"), *both]
    identity, tls_key = party_keys_in(path, passphrase=passphrase, even_if_readable=True)
    facts = [
        ("kind", "the PRIVATE keys of a party; they never leave its machine"),
        *both,
        *_pin_facts(identity.public.hex()),
    ]
    beside = path.with_suffix(".crt")
    if not beside.exists():
        return [*facts, ("certificate", f"{beside.name} is missing: the coordinator has not signed it yet")]
    # Made into `Keys` to check that the two files belong together.
    found = in_file(beside, lambda pem: Keys(Certificate.read(pem), identity, tls_key)).certificate
    return [*facts, *party_facts(found)[:3], *dates_of(found.begins, found.ends)]


def _pin_facts(pin: str) -> Facts:
    """The pin in groups of four, eight to a line, so that it can be read aloud and followed with a finger."""
    from eigenveil.network.identity.certificates import pin_words

    groups = pin_words(pin).split()
    return [("pin", " ".join(groups[:8])), ("", " ".join(groups[8:]))]
