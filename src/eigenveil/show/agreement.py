"""A study in plain sentences: what is computed, who takes part, who learns what, and at what cost.

Nothing else says who learns what in a study; what leaves one site is in `disclosure.py`, and the guarantee has its own.
`eigenveil study show` prints all of them. The consent screen of a site or peer uses the same sentences.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, assert_never

from eigenveil.params.declarations.study import HubStudy, PeerStudy
from eigenveil.show.console import Line, output

if TYPE_CHECKING:
    from eigenveil.network.authority import CertificateRequest
    from eigenveil.network.certificates import Certificate, Passphrase
    from eigenveil.network.study import StudyFile
    from eigenveil.show.console import View
    from eigenveil.show.values import Report

# Names that are listed before "and ... more". A study may have thousands of columns.
_SHOWN: Final = 20


class Fact(NamedTuple):
    """One thing to know about a study: a `label` of a word or two, and sentences."""

    label: str
    text: str

    @property
    def alarming(self) -> bool:
        """Whether it must not be overlooked: such facts begin in capitals."""
        return self.text[:8].isupper()


def words_of(study: "StudyFile") -> Iterator[str]:
    """All facts, each as one line that begins with its label."""
    for fact in facts_of(study):
        yield f"{fact.label}: {fact.text}"


def facts_of(study: "StudyFile") -> Iterator[Fact]:
    """All facts, the most important first."""
    yield Fact("Study", f'"{study.name}", id {study.params.id}.')
    if study.params.purpose is not None:
        yield Fact("Purpose, in the coordinator's words", study.params.purpose)
    # Before anything else of substance: nobody should read on as if there were a guarantee.
    if study.seed is not None:
        yield Fact(
            "Warning",
            "THIS IS A REHEARSAL with a test seed. Anyone who has the study file can subtract all noise. It protects no "
            "one. Use test data only.",
        )
    yield Fact("Columns", f"{_some(study.columns)} ({len(study.columns)} in all).")
    yield Fact("Who learns what", who_learns(study, whose="each"))
    yield from _cost(study)
    if isinstance(study.params, HubStudy) and study.params.streaming:
        yield from _streams(study, study.params)
        return
    yield from _task(study)
    yield from _places(study, f"At least {study.fewest} must take part to the end, or the study stops.")
    network, again = study.params, {0: "does not ask again", 1: "asks once more"}
    asks = again.get(network.retries, f"asks up to {network.retries} more times")
    yield Fact(
        "Waiting",
        f"parties have {network.join_timeout:g} seconds to join. After that, {'each peer' if _is_gossip(study) else 'the hub'} "
        f"waits {network.deadline:g} seconds for an answer and {asks}.",
    )


def listed_columns(study: "StudyFile") -> str:
    """The names of the columns; of many the first few, and where to find the others."""
    rest = "; all are listed in the study file, under [task] columns" if len(study.columns) > _SHOWN else ""
    return _some(study.columns) + rest


def who_learns(study: "StudyFile", *, whose: str) -> str:
    """What the hub, or the other peers, learn about the sums of one party: `whose` is "this" or "each"."""
    if isinstance(study.params, PeerStudy):
        return _peers_learn(study, whose)
    assert study.hub is not None
    nodes = " and its nodes" if study.nodes else ""
    hub, loud = f"The hub at {study.hub.address}{nodes}", f"The hub{nodes} will learn".upper()
    own, few = f"{whose} site's own sums", study.params.colluders
    collusion = "one other site tells it everything" if few == 1 else f"{few} other sites tell it everything"
    noisy = f"will learn {own}, with noise that the site adds before they leave."
    over = f"sums over at least {study.fewest} of the {len(study.sites)} sites"
    over = over if study.fewest < len(study.sites) else f"sums over all {study.fewest} sites"
    # Raw or exact sums are announced in capitals: nobody should agree to them by skimming.
    match study.trust:
        case "masked":
            return f"{hub} will learn {over}, with noise added. It never sees {own}, even if {collusion}."
        case "site":
            return f"{hub} {noisy} That noise alone keeps the guarantee: the hub need not be trusted."
        case "both":
            return f"{hub} {noisy} The hub adds more noise before anyone else sees a result."
        case "hub":
            return (
                f"{loud} {own.upper()} WITHOUT NOISE. The hub at {study.hub.address} must be trusted with them: it adds "
                "noise only to what it passes on."
            )
        case "none" if study.masked:
            return (
                f"{loud} EXACT {over.upper()}. No noise is added, and no person is protected. The hub at "
                f"{study.hub.address} never sees {own}, even if {collusion}."
            )
        case "none" | "pairwise" | "independent":
            return f"{loud} {own.upper()} WITHOUT NOISE. The hub is at {study.hub.address}. No person is protected."
        case _:
            assert_never(study.trust)


def _peers_learn(study: "StudyFile", whose: str) -> str:
    own, few = f"{whose} peer's own sums", study.params.colluders
    match study.trust:
        case "pairwise":
            collusion = "one peer tells the others everything" if few == 1 else f"{few} peers tell the others everything"
            return (
                f"The other peers will learn {own} under noise. Part of it is shared between pairs of peers and cancels "
                f"only in sums over all of them. The guarantee holds even if {collusion}."
            )
        case "independent":
            return (
                f"The other peers will learn {own}, with noise that the peer adds before they leave. That noise alone "
                "keeps the guarantee, even if everyone sees the sums."
            )
        case "none" | "hub" | "site" | "both" | "masked":
            return f"THE OTHER PEERS WILL LEARN {own.upper()} WITHOUT NOISE. No person is protected."
        case _:
            assert_never(study.trust)


def _task(study: "StudyFile") -> Iterator[Fact]:
    task = study.params
    components = (
        "the first principal component" if task.n_components == 1 else f"the first {task.n_components} principal components"
    )
    how = "a method chosen from public numbers" if task.method == "auto" else f"the method {task.method}"
    mean = ", the mean of all rows" if isinstance(task.center, str) else ""
    noisy = "" if study.budget is None else "noisy estimates of "
    yield Fact(
        "Result",
        f"{components} of all rows together, by {how}. Everyone who takes part learns {noisy}the components{mean} and "
        f"the variance along each component. No row and no score leaves the {_role(study)}.",
    )
    yield Fact("People", _people(study))
    if isinstance(task.row_bound, float) and not isinstance(task.scale, str):
        yield Fact("Clipping", f"rows are clipped to norm {task.row_bound:g} around {_center_of(study)}.{_in_units(study)}")
    elif isinstance(task.scale, str) or (study.budget is not None and task.column_bounds is None):
        yield from _search(study)
    if task.missing != "refuse":
        yield Fact("Missing values", _gaps(study))
    if task.column_bounds is not None:
        yield Fact("Column bounds", "entries outside their column's bounds are clipped to them.")
    if task.center is not None and task.center != "private":
        yield Fact("Center", "rows are centered on numbers given in the study file.")


def _streams(study: "StudyFile", params: HubStudy) -> Iterator[Fact]:
    """A study of streams: what a slot is, and what of it leaves."""
    noisy = "" if study.budget is None else "noisy estimates of "
    yield Fact(
        "Result",
        f"the first {params.n_components} principal components of all streams together, anew after every slot. Everyone who "
        f"takes part learns {noisy}the components, the mean and the variance along each component. No row leaves the site.",
    )
    length = f"{params.slot_seconds:g} seconds each" if params.slot_rows is None else f"{params.slot_rows} rows each"
    late = f"and may send it up to {params.max_lateness} slots late."
    if study.masked:
        late = "under masks. One that comes too late is lost."
    # The guarantee rests on this, and only the site can see to it.
    from eigenveil.network.rules import delay_of

    arrives, delay = "", delay_of(params)
    if delay is not None:
        arrives = (
            " A row is in the slot in which it arrives, so write each row at once. A site answers for a slot "
            f"{delay:g} seconds after its end. If its rows take longer, it leaves the study for good."
        )
    yield Fact("Slots", f"{params.slots}, {length}. A site sends one matrix for each, {late}{arrives}")
    if params.one_person_per_site:
        people = "each site is a device of one person, who is in every slot. All of its rows are protected together."
    elif params.person_slots == 1:
        people = "each row is taken for a different person. A person with several rows is protected less than the stated cost."
    else:
        people = f"a person has at most one row in a slot, and rows in at most {params.person_slots} slots."
    yield Fact("People", people)
    if isinstance(params.row_bound, float):
        around = "zero" if params.origin is None else "the given origin"
        yield Fact("Clipping", f"rows are clipped to norm {params.row_bound:g} around {around}.")
    if params.missing != "refuse":
        yield Fact("Missing values", _gaps(study))
    # Nobody waits for a site that is away, unless masks need it.
    rest = "The study does not wait for a site that is away."
    if study.masked:
        again = params.deadline * (1 + params.retries)
        rest = (
            f"The hub waits {again:g} second{'s' * (again != 1)} for a site in each step of a slot. "
            f"A slot of fewer than {study.fewest} sites is skipped, and its cost stays charged."
        )
    yield from _places(study, rest)


def _people(study: "StudyFile") -> str:
    person = study.params.person
    if person is not None:
        return f'the column "{person}" says whose row it is. It stays at its site. All rows of a person count as one.'
    # A rehearsal has no cost to compare with, so it gets no such sentence.
    less = " A person with several rows is protected less than the stated cost." if study.private and study.seed is None else ""
    return f"no column says whose row it is, so each row is taken for a different person.{less}"


def _search(study: "StudyFile") -> Iterator[Fact]:
    """What the study finds out privately before it clips rows, and at what cost."""
    from eigenveil.core.unit import Neighbours
    from eigenveil.tasks.fit.gaps import split_budget

    params, units = study.params, isinstance(study.params.scale, str)
    mean, count = units or isinstance(params.center, str), not Neighbours(params.neighbours).count_is_public
    split = split_budget(mean=mean, search=False, count=count, trace=False, bound=not units, units=units)
    share = sum(split.mean) + split.count
    if units:
        norm = params.row_bound if isinstance(params.row_bound, float) else len(study.columns) ** 0.5
        yield Fact(
            "Units and clipping",
            "the study finds the spread of each column privately, divides the column by it, and clips rows to norm "
            f"{norm:.4g} around the noisy mean. First it counts, with noise, how many entries of each column exceed each of many "
            f"numbers. This and the mean take {share:.0%} of the budget.",
        )
        return
    what, cost = "a norm to clip rows to", f"{split.mean[0]:.0%} of the budget"
    if mean:
        # Norms and means, each twice. More are needed only if the mean is far away.
        what += ", and their mean,"
        usual = sum(split.mean[:4]) + split.count
        cost = f"{usual:.0%} of the budget, and at most {share:.0%} if the rows lie very far from zero"
    yield Fact(
        "Clipping",
        f"the study finds {what} privately. First it counts, with noise, how many rows are longer than each of many norms. This "
        f"takes {cost}. It is part of the cost.{_in_units(study)}",
    )


def _in_units(study: "StudyFile") -> str:
    scaled = study.params.scale is not None and not isinstance(study.params.scale, str)
    return " Columns are first divided by the study's scale, and the norm is in these units." * scaled


def _gaps(study: "StudyFile") -> str:
    """What becomes of missing values, and at what cost."""
    from eigenveil.tasks.fit.gaps import split_budget

    split = split_budget(mean=True, search=False, count=True, trace=False, observed=True)
    # In a stream the counts are in the matrix of every slot, for a share that is rounded.
    about, center = ("about ", "origin") if study.streaming else ("", "center")
    cost = "" if study.budget is None else f" This takes {about}{split.for_observed:.0%} of the budget."
    match study.params.missing:
        case "counts":
            what = f"the study counts how many {_counted(study)} have each column, and divides sums by that.{cost}"
        case "groups":
            groups = study.params.missing_groups.replace(";", "; ").replace(",", ", ")
            what = (
                f"the study counts how many {_counted(study)} have each pair of these groups of columns, and divides sums by "
                f"that: {groups}. A group that lacks one column counts as missing.{cost}"
            )
        case "drop":
            return f"rows that lack a value are left out. How many {_counted(study)} are left is protected like the rows."
        case "fill" | "refuse":
            return "public values in the study file take the place of missing ones."
        case _:
            assert_never(study.params.missing)
    return f"they are put at the {center}, where they add nothing. With noise, {what}" if study.private else what


def _center_of(study: "StudyFile") -> str:
    center = study.params.center
    if center is None:
        return "zero"
    if not isinstance(center, str):
        return "the given center"
    return "the mean" if study.budget is None else "the noisy mean that the study releases"


def _places(study: "StudyFile", rest: str) -> Iterator[Fact]:
    """Who takes part, and the `rest` of that sentence."""
    names = [holder.name for holder in study.holders]
    listed = f"{_some(names)} ({len(names)} in all)."
    if isinstance(study.params, PeerStudy):
        graph = f"Each talks to its neighbours on a graph of {len(study.params.graph)} edges."
        yield Fact("Peers", f"{listed} {graph} {rest}")
        return
    yield Fact("Sites", f"{listed} {rest}")
    if study.nodes:
        below = f"each with at most {study.fanout} parties below it"
        yield Fact("Nodes", f"{len(study.nodes)} gather sums for the hub, {below}.")


def _cost(study: "StudyFile") -> Iterator[Fact]:
    from eigenveil.core.unit import Neighbours
    from eigenveil.privacy.facts import Person

    params, budget = study.params, study.budget
    if budget is None:
        yield Fact("Cost", "NOTHING IS GUARANTEED: the result is exact and no person is protected.")
        return
    near = Neighbours(params.neighbours)
    against = "against the party that sees most"
    yield Fact("Cost", f"for each {study.unit.kind} at most epsilon {budget.epsilon:g} at delta {budget.delta:g}, {against}.")
    # Where a study makes numbers of people public, it does so for each party.
    each = f" How many {_counted(study)} each {_role(study)} has is public."
    # Of whole people only where a column names them, or where they may have rows at several sites.
    max_sites = 1 if isinstance(params, PeerStudy) else params.person_sites
    who = Person(source="site", grouped=study.unit.kind == "person", max_parts=max_sites)
    relation = f"{who.relation(near)}.{each}" if near.count_is_public else f"{who.tables(near)}. {_count(study)}"
    yield Fact("Neighbouring tables", relation)
    if isinstance(params, PeerStudy):
        yield Fact("Lost peers", _losses(study, params))
        return
    # With two budgets the first holds against the hub, and the second against everyone else.
    if params.trust == "both":
        epsilon, delta = (value[1] if isinstance(value, tuple) else value for value in (params.epsilon, params.delta))
        yield Fact("Cost against others", f"epsilon {epsilon:g} at delta {delta:g} against everyone except the hub.")
    if params.person_sites > 1:
        yield Fact("People at several sites", f"the cost is for people with rows at no more than {params.person_sites} sites.")


def _count(study: "StudyFile") -> str:
    """How a number of rows or people that is not public is protected."""
    counted = _counted(study)
    if study.seed is not None:
        return f"The number of {counted} leaves with noise that can be subtracted."
    if study.trust == "hub":
        nodes = " and its nodes" if study.nodes else ""
        return f"Against everyone except the hub{nodes}, the number of {counted} is protected too."
    return f"The number of {counted} is protected too: it leaves only with noise."


def _counted(study: "StudyFile") -> str:
    return "people" if study.unit.kind == "person" else "rows"


def _losses(study: "StudyFile", params: PeerStudy) -> str:
    """What becomes of the study and its budget if a peer stops for good."""
    # Its rules load numpy, and these words are loaded for every --help.
    from eigenveil.network.rules import fatal_peers

    fatal = fatal_peers(study)
    everyone = len(fatal) == len(study.peers)
    if everyone or not params.restarts:
        no_room = ["its budget has no room to begin a round again ([privacy] restarts)"] if not params.restarts else []
        too_few = ["too few would be left, or a graph would fall apart, which more peers or edges mend"] if everyone else []
        why = "; ".join(no_room + too_few)
        return (
            f"NOT ONE MAY STOP. If any of the {len(study.peers)} peers is lost after it has sent something, the study ends "
            f"without a result, and what each peer was charged is spent: {why}."
        )
    rounds = "one round" if params.restarts == 1 else f"{params.restarts} rounds"
    room = f"the budget keeps room for {rounds} to begin again without peers that are lost, whether or not any is."
    if not fatal:
        return f"{room} The study survives the loss of any one peer."
    end = "the study ends without a result: too few would be left, or a graph would fall apart"
    return f"{room} But if {_some(fatal)} is lost, {end}."


def _is_gossip(study: "StudyFile") -> bool:
    return study.topology == "gossip"


def _role(study: "StudyFile") -> str:
    return "peer" if _is_gossip(study) else "site"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def study_view(study: "StudyFile") -> "View":
    """What the study is, its parties with pins and dates, and the digest."""
    from rich.text import Text

    from eigenveil.network.certificates import pin_words
    from eigenveil.show.terminal import labelled

    for fact in facts_of(study):
        yield Text(f"{fact.label}: {fact.text}", style="bold red" if fact.alarming else "")
    yield ""
    for party in study.places:
        certificate, where = party.certificate, "" if party.address is None else f" at {party.address}"
        yield Line(f"{certificate.role} {party.name}{where}", "bold")
        dates = f"from {certificate.begins:%Y-%m-%d} to {certificate.ends:%Y-%m-%d}"
        yield labelled([("pin", pin_words(party.pin)), ("certificate", dates)])
        # Shown, not raised: a study is still the same study when a certificate has ended.
        try:
            certificate.require_current()
        except ValueError as error:
            yield Line(str(error), "red")
    yield Line(f"\ndigest {pin_words(study.digest)}")
    yield Text("all who see this digest have the same study; compare pins by telephone", style="dim")


def study_report(path: Path) -> "Report":
    """What the organisations agreed on: who takes part, who learns what, and at what cost. With the result, if it is there."""
    from eigenveil.network.study import StudyFile
    from eigenveil.show.pages import read_report
    from eigenveil.show.values import FactLine, Report, SitePart

    study = StudyFile.read(path)
    facts = list(facts_of(study))
    agreed = tuple(FactLine(fact.label, fact.text) for fact in facts)
    # The hub writes its report to one of these unless told otherwise.
    name = f"{path.stem}.report.json"
    for result in (path.with_name(name), Path(name)):
        # Another study may have the same name, but not the same digest.
        if result.is_file() and (run := read_report(result)).digest == study.digest:
            # The result says more than the agreement, so it becomes the report, with what was agreed first in its facts.
            return replace(run, facts=(*agreed, *run.facts))
    return Report(
        kind="study",
        title=f'Study "{study.name}", as agreed',
        answer=who_learns(study, whose="each"),
        study=study.name,
        digest=study.digest,
        sites=tuple(SitePart(party.name, party.certificate.pin) for party in study.holders),
        warnings=tuple(fact.text for fact in facts if fact.alarming),
        # All who see the same digest have the same study.
        facts=(*agreed, FactLine("Digest", study.digest)),
    )


Facts = list[tuple[str, str]]


def say(text: str) -> None:
    """One line, not wrapped."""
    output().print(text, soft_wrap=True)


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
        validity = "NOT VALID YET, by this computer's clock"
    elif now > ends:
        validity = "EXPIRED: the coordinator renews it with eigenveil keys renew"
    else:
        # Rounded up, so that the last day reads as one day and not as none.
        left = math.ceil((ends - now) / timedelta(days=1))
        validity = f"{left} day{'s' * (left != 1)} left"
    return [("begins", f"{begins:%Y-%m-%d %H:%M} UTC"), ("ends", f"{ends:%Y-%m-%d %H:%M} UTC ({validity})")]


def facts_in(path: Path, passphrase: "Passphrase | None" = None) -> Facts:
    """What may be shown of a file: a certificate, a request, or private keys with the certificate beside them."""
    from eigenveil.network.authority import CertificateRequest
    from eigenveil.network.certificates import Certificate, authority_in, contents, in_file, is_authority

    raw = contents(path)
    if b"PRIVATE KEY-----" in raw:
        return _private_facts(path, passphrase)
    if raw.lstrip().startswith(b"-----BEGIN CERTIFICATE REQUEST-----"):
        return [("kind", "a request, for the coordinator to sign; public"), *party_facts(CertificateRequest.load(path))]
    if is_authority(raw):
        authority = in_file(path, authority_in)
        dates = dates_of(authority.not_valid_before_utc, authority.not_valid_after_utc)
        return [("kind", "the certificate of a study's authority; public"), *dates]
    certificate = in_file(path, Certificate.read)
    dates = dates_of(certificate.begins, certificate.ends)
    return [("kind", "a certificate; public"), *party_facts(certificate), *dates]


def _private_facts(path: Path, passphrase: "Passphrase | None") -> Facts:
    from eigenveil.data.archive import unsafe
    from eigenveil.network import certificates
    from eigenveil.network.certificates import contents, in_file, is_locked, party_keys_in, private_keys_in

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
    kind = ("kind", "the PRIVATE keys of a party; they never leave its machine")
    facts = [kind, *both, *_pin_facts(identity.public.hex())]
    beside = path.with_suffix(".crt")
    if not beside.exists():
        return [*facts, ("certificate", f"{beside.name} is missing: the coordinator has not signed it yet")]
    # Made into `Keys` to check that the two files belong together.
    keys = in_file(beside, lambda pem: certificates.Keys(certificates.Certificate.read(pem), identity, tls_key))
    certificate = keys.certificate
    return [*facts, *party_facts(certificate)[:3], *dates_of(certificate.begins, certificate.ends)]


def _pin_facts(pin: str) -> Facts:
    """The pin in groups of four, eight to a line, so that it can be read aloud and followed with a finger."""
    from eigenveil.network.certificates import pin_words

    groups = pin_words(pin).split()
    return [("pin", " ".join(groups[:8])), ("", " ".join(groups[8:]))]
