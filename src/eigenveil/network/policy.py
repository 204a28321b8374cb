"""`Policy`: what a site takes part in, written by the site itself. The coordinator has no say in it.

The coordinator's authority could sign certificates for sites that do not exist, so a site lists the pins it has compared
itself. Every refusal names the key of the policy that it comes from. Agents check it before they connect.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, final

from eigenveil.core.accounting import Budget
from eigenveil.core.unit import PrivacyUnit
from eigenveil.data.archive import text_owned
from eigenveil.errors import EigenveilError, ParameterError, require
from eigenveil.network.study import StudyFile, comment, section
from eigenveil.params.declarations.groups import DELTA_IN_FILE, EPSILON_LIMIT, NAME, PERSON_SITES_LIMIT
from eigenveil.params.declarations.study import limited, limiting
from eigenveil.params.declare import Limit, declared, help_of, in_study, param, parameters
from eigenveil.params.tables import lines_of, load_toml, refuse_unknown, shown_in_file, values_in
from eigenveil.params.tables import to_toml as toml_value
from eigenveil.params.values import Integer, InvalidValue, hex_digits, listed, real

__all__ = ["Agent", "Datasets", "Limits", "Pins", "Policy", "PolicyRefusal", "Spending", "template"]

_MOST_PINS: Final = 20_000
_PIN: Final = hex_digits(64)
# What a new policy file begins with.
_HEAD: Final = (
    "The policy of a site: what it takes part in. It belongs to the site: the coordinator has no say in it and never sees it.",
    "Every key has its default here, and so does a key you leave out. Each study is refused until its hub is pinned.",
    "Check a study against it with: eigenveil policy check FILE STUDY --as NAME",
)
_PINS: Final = (
    "The parties whose keys you have compared. The coordinator could invent sites, so do not take pins from the coordinator. "
    "Call the owner of each key on a number you know, let them read the pin aloud, and only then write it here.",
)


class PolicyRefusal(EigenveilError):
    """The policy of this site refuses a study, for these `reasons`. Nothing was revealed."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("the policy of this site refuses the study: " + "; ".join(reasons))
        self.reasons = tuple(reasons)


def _peers(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > _MOST_PINS:
        raise InvalidValue(f"a table of at most {_MOST_PINS} pins by name")
    pins: dict[str, str] = {}
    for who, pin in value.items():
        at, actual, name = "a name", who, ""
        try:
            name = NAME(who)
            at, actual = f"the pin of {name!r}", pin
            pins[name] = _PIN(pin)
        except InvalidValue as error:
            raise InvalidValue(str(error), at=at, actual=actual) from None
    return pins


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidValue("true or false")
    return value


@final
@parameters(section="pins", frozen=True)
class Pins:
    """[pins]: whose keys this site has compared with their owners, not with the coordinator."""

    hub: tuple[str, ...] = param(
        "The pins of hubs that this site accepts, 64 hex digits each.",
        default=(),
        check=listed(_PIN, max_count=1000, distinct=True),
    )
    peers: Mapping[str, str] = param("The pin of each other site, peer or node, by name.", default_factory=dict, check=_peers)
    withdrawn: tuple[str, ...] = param(
        "Pins that no longer count, because a key was lost or stolen. A study with one of them is refused.",
        default=(),
        check=listed(_PIN, max_count=_MOST_PINS, distinct=True),
    )


@final
@parameters(section="limits", frozen=True)
@limiting("limits")
class Limits:
    """[limits]: which studies this site takes part in at all. Parameters with limits declare them themselves."""

    organisations: int = param(
        "The fewest organisations that a sum must be over.", default=3, check=Integer(min=1, max=1_000_000)
    )
    rows: int = param(
        "The fewest rows my table must have, or the fewest people if the study names the column that tells them apart. "
        "Others see whether I take part, and so whether I have that many.",
        default=100,
        check=Integer(min=0, max=1 << 53),
    )
    columns: tuple[str, ...] | None = param("The columns that may be used; all if not given.", default=None, check=listed(NAME))
    unit: Literal["row", "person", "stream"] | None = param(
        "Who must be protected. row: each row of my table is a different person. person: people may have several rows, and "
        "{person} names the column that says whose row it is. stream: people have rows in several slots of my stream, or it is "
        "one person's device. Without this key you are asked each time, and --yes is refused.",
        default=None,
        none_means="you are asked each time",
    )
    person: str | None = param("The column that says whose row it is, for {unit=person}.", default=None, check=NAME)


@final
@parameters(section="budget", frozen=True)
@limiting("budget")
class Spending:
    """[budget]: what one study may cost each person, and all studies together, for as long as a dataset is used."""

    lifetime_epsilon: float = param(
        "The largest epsilon of all studies on a dataset together.", default=3.0, check=EPSILON_LIMIT.check
    )
    lifetime_delta: float = param("The delta at which lifetime_epsilon is counted.", default=1e-5, check=DELTA_IN_FILE)


@final
@parameters(section="datasets", frozen=True)
class Datasets:
    """[datasets]: what this site calls its tables in its ledger."""

    aliases: tuple[tuple[str, ...], ...] = param(
        "Lists of names that may stand for the same rows. Each name has a total budget of its own, so for these people the "
        "costs add up. With --yes, the same file under any other two names is refused.",
        default=(),
        omit_if_default=True,
        check=listed(listed(NAME, min_count=2, distinct=True), max_count=1000),
    )


@final
@parameters(section="agent", frozen=True)
class Agent:
    """[agent]: how the site's program behaves."""

    reply_seconds: float = param(
        "How long every answer takes, so that its time says nothing about the rows; 0 for as fast as possible.",
        default=0.0,
        check=real("a number of seconds from 0 to 3600", lambda number: 0 <= number <= 3600),
    )
    rehearsals: bool = param(
        "Whether to take part in studies with a test seed, which protect no one.", default=False, check=_truth
    )


_SECTIONS: Final = {"pins": Pins, "limits": Limits, "budget": Spending, "datasets": Datasets, "agent": Agent}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a site takes part in: pins, limits, budget, and how its agent behaves.

    >>> Policy().budget.study_epsilon, Policy().limits.organisations, Policy().pins.hub
    (1.0, 3, ())
    """

    pins: Pins = field(default_factory=Pins)
    limits: Limits = field(default_factory=Limits)
    budget: Spending = field(default_factory=Spending)
    datasets: Datasets = field(default_factory=Datasets)
    agent: Agent = field(default_factory=Agent)

    def __post_init__(self) -> None:
        # One study cannot cost more than all of them: such a policy is a mistake, and is not guessed at.
        max_epsilon, life = self.limit(EPSILON_LIMIT), self.budget.lifetime_epsilon
        require(max_epsilon <= life, f"[budget] study_epsilon must be at most lifetime_epsilon, {life:g}, got {max_epsilon:g}")
        # The coordinator names the column in a study. Only the site knows which of its columns tells people apart.
        people, column = self.limits.unit == "person", self.limits.person
        require(not people or column is not None, '[limits] person is missing: with unit = "person", name the column')
        require(people or column is None, '[limits] person is for unit = "person": write both, or neither')

    @classmethod
    def read(cls, path: Path) -> "Policy":
        """The policy in a file that no other user may change or exchange; a `ValueError` says what is wrong with it."""
        try:
            return cls.parse(text_owned(path))
        except ValueError as error:
            named = str(error).startswith(str(path))
            raise ValueError(str(error) if named else f"{path}: {error}") from error

    @classmethod
    def parse(cls, text: str) -> "Policy":
        """The policy in a TOML text; a key it leaves out has its safe default."""
        document = load_toml(text)
        # A misspelt limit that was skipped would not hold, and it would not be noticed.
        refuse_unknown("the policy", document, list(_SECTIONS))
        sections: dict[str, Any] = {}
        for name in document:
            kind = _SECTIONS[name]
            try:
                sections[name] = kind(**values_in(document, kind))
            except ParameterError as error:
                raise ValueError(error.said(in_study(kind), show=shown_in_file)) from None
        return cls(**sections)

    def limit(self, limit: Limit) -> Any:
        """The policy's value for a limit on some parameter."""
        return getattr(getattr(self, limit.section), limit.key)

    @property
    def life(self) -> Budget | None:
        """What all studies on a dataset may cost together; None if that is unlimited."""
        epsilon, delta = self.budget.lifetime_epsilon, self.budget.lifetime_delta
        return None if math.isinf(epsilon) else Budget(epsilon, delta)

    def refusals(self, study: StudyFile, *, me: str, method: str) -> list[str]:
        """Every reason not to take part as `me`, in plain words; none if the policy allows the study.

        `method` finds the components, where the study may say "auto".
        """
        # Raises if there is no such party: a wrong name must not pass because no rule mentions it.
        study.place(me)
        reply, deadline = self.agent.reply_seconds, study.params.deadline
        # Refused before it begins: the hub would continue without a site whose every answer comes too late.
        late = f"[agent] reply_seconds = {reply:g}: every answer would be late, because the study waits only {deadline:g} seconds"
        return [
            *self._of_pins(study, me),
            *self._of_unit(study),
            *self._of_terms(study, method),
            *self._of_columns(study),
            *self._of_budget(study),
            *([late] if reply >= deadline else []),
        ]

    def refusals_of_rows(self, count: int, unit: PrivacyUnit) -> list[str]:
        """Why a table of so many rows, or people, is too small. The number is private, so the reason does not say it."""
        min_count, what = self.limits.rows, "people" if unit.kind == "person" else "rows"
        if count >= min_count:
            return []
        return [f"[limits] rows: a table must have at least {min_count} {what}, and this one has fewer"]

    def alias(self, dataset: str, other: str) -> bool:
        """Whether the same rows may have both of these names."""
        return any(dataset in names and other in names for names in self.datasets.aliases)

    def _of_unit(self, study: StudyFile) -> Iterator[str]:
        unit, person, named = self.limits.unit, self.limits.person, study.params.person
        if unit == "person" and named != person:
            taken = "names none, so each row is taken for a different person" if named is None else f"names {named!r}"
            yield f'[limits] unit = "person": the study must name people by the column {person!r}, and it {taken}'
        elif unit == "row" and named is not None:
            yield f'[limits] unit = "row": the study protects people, by the column {named!r}, and not rows'
        # Only a stream has people without a column: those of a device, or of several slots.
        people = study.unit.kind == "person" and named is None
        if unit == "row" and people:
            yield '[limits] unit = "row": the study protects people in several slots. If yours are, write unit = "stream"'
        elif unit == "stream" and not people:
            yield '[limits] unit = "stream": the study must be of streams, and protect people in several slots'
        # Between peers, nothing multiplies the cost for people who are at several.
        max_sites = self.limit(PERSON_SITES_LIMIT)
        if max_sites > 1 and study.topology == "gossip":
            yield f"[limits] person_sites = {max_sites}: a study between peers protects people with rows at one peer only"

    def _of_pins(self, study: StudyFile, me: str) -> Iterator[str]:
        # Whoever it is, this site itself too, and whether or not its pin must be listed: someone else may have that key.
        for party in study.places:
            if party.pin in self.pins.withdrawn:
                yield (
                    f"[pins] withdrawn: the pin {party.pin} of {party.name!r} was withdrawn. Its owner must make new keys, "
                    "and the coordinator a new study file"
                )
        # In a tree a site sends its sums to a node, so that one must be known to it as well.
        hub, above = study.hub, None
        if hub is not None:
            above = study.layout().above().get(me)
            if hub.pin not in self.pins.hub:
                yield (
                    f"[pins] hub: the hub's pin {hub.pin} is not listed. Compare it with the hub's owner, by telephone, then "
                    "add it"
                )
        # Masks and pair noise protect only if the parties at their other ends are real, so all of them must be pinned.
        all_matter = study.masked or study.topology == "gossip"
        for party in study.places:
            if party is hub:
                continue
            # A pin that differs is always refused, even where none is needed: someone has taken that name.
            pinned = self.pins.peers.get(party.name)
            if pinned is None and (party.name == above or (all_matter and party.name != me)):
                yield (
                    f"[pins.peers] {party.name!r} is not there: the study says its pin is {party.pin}. Compare it with its "
                    "owner, by telephone, then add it"
                )
            elif pinned is not None and pinned != party.pin:
                yield (
                    f"[pins.peers] {party.name!r} is pinned as {pinned}, and the study has {party.pin}. It is another party, "
                    "or has new keys: ask its owner"
                )

    def _of_terms(self, study: StudyFile, method: str) -> Iterator[str]:
        limits = self.limits
        # The fewest that the study allows, not the number that takes part: others may drop out on the way.
        if study.fewest < limits.organisations:
            yield (
                f"[limits] organisations: a sum must be over at least {limits.organisations}, and in this study it may be over "
                f"only {study.fewest}"
            )
        yield from self._of_limits(study, "limits", method)
        if study.seed is not None and not self.agent.rehearsals:
            yield "[agent] rehearsals: the study has a test seed, so it protects no one, and rehearsals are not allowed"

    def _of_columns(self, study: StudyFile) -> Iterator[str]:
        if self.limits.columns is None:
            return
        # The column that names people is read too, so it must be allowed like any other.
        person = () if study.params.person is None else (study.params.person,)
        allowed = set(self.limits.columns)
        others = [name for name in (*study.columns, *person) if name not in allowed]
        if others:
            more = f" and {len(others) - 10} more" if len(others) > 10 else ""
            yield f"[limits] columns: {', '.join(map(repr, others[:10]))}{more} may not be used"

    def _of_budget(self, study: StudyFile) -> Iterator[str]:
        budget, spending = study.budget, self.budget
        yield from self._of_limits(study, "budget", None)
        if budget is None and math.isfinite(spending.lifetime_epsilon):
            yield (
                f"[budget] lifetime_epsilon: a study without noise costs more than any epsilon, and the limit is "
                f"{spending.lifetime_epsilon:g}"
            )
        # Compared in mu: two pairs of epsilon and delta have no order of their own.
        if budget is not None and self.life is not None and budget.mu > self.life.mu:
            yield (
                f"[budget] lifetime_epsilon: the study costs ({budget.epsilon:g}, {budget.delta:g}), more than the "
                f"({spending.lifetime_epsilon:g}, {spending.lifetime_delta:g}) for all studies on a dataset together"
            )

    def _of_limits(self, study: StudyFile, section: str, method: str | None) -> Iterator[str]:
        """The parameters of a study that exceed the limits of a section."""
        budget = study.budget
        # What limits apply to, where it is not the parameter itself: who adds the noise, and the largest budget.
        decided = {
            "trust": study.trust,
            "noise": study.trust,
            "epsilon": math.inf if budget is None else budget.epsilon,
            "delta": 0.0 if budget is None else budget.delta,
            **({} if method is None else {"method": method}),
        }
        for entry, limit in limited(type(study.params), section):
            value, allowed = decided.get(entry.name, getattr(study.params, entry.name)), self.limit(limit)
            where = f"[{limit.section}] {limit.key}"
            if limit.kind == "least" and entry.holds(study.params) and value < allowed:
                yield f"{where}: the study has {entry.cli_name} = {value}, and it must be at least {allowed}"
            if limit.kind == "among" and value not in allowed:
                what = "a study without noise" if value == "none" else value
                yield f"{where}: {what} is not among {', '.join(allowed) or 'those allowed, which are none'}"
            elif limit.kind == "most" and value > allowed:
                # An exact result counts as infinite epsilon, so only a policy without a limit allows it.
                exact = f"a study without noise costs more than any {entry.cli_name}, and the limit is {allowed:g}"
                yield f"{where}: " + (
                    exact if math.isinf(value) else f"the study has {entry.cli_name} = {value:g}, and {allowed:g} is allowed"
                )


def template(study: StudyFile | None = None) -> str:
    """The text of a policy with safe defaults. With a `study`, its pins and its unit are comments in it, to be checked first."""
    policy, lines = Policy(), [line for text in _HEAD for line in comment(text)]
    lines += _pin_lines(study)
    for name in ("limits", "budget", "agent"):
        lines += section(name, lines_of(getattr(policy, name), name))
        if name == "limits":
            # Only the site can say which of its columns may be used, so this key is an example.
            lines += [*comment(declared(Limits)["columns"].param.help), '# columns = ["age", "weight"]']
            lines += comment(help_of(declared(Limits)["unit"], in_study(Limits, inside="limits")))
            unit, person = ("person", "patient_id") if study is None else ("row", study.params.person)
            if study is not None:
                # The coordinator cannot know the table of this site, so what the study says is not taken over.
                asks = f"From the study {study.name!r}, NOT CHECKED YET."
                lines += comment(f"{asks} Remove the # if it is true of your table:")
                if study.unit.kind == "person":
                    unit = "stream" if person is None else "person"
            lines += [f"# unit = {toml_value(unit)}"]
            lines += [] if person is None else [f"# person = {toml_value(person)}"]
        if name == "budget":
            aliases = comment(declared(Datasets)["aliases"].param.help)
            lines += ["\n[datasets]", *aliases, '# aliases = [["patients", "trial 7"]]']
    return "\n".join(lines) + "\n"


def _pin_lines(study: StudyFile | None) -> Iterator[str]:
    yield ""
    for text in _PINS:
        yield from comment(text)
    yield "[pins]"
    yield from comment(declared(Pins)["hub"].param.help)
    if study is not None and study.hub is not None:
        yield from comment(f"From the study {study.name!r}, NOT COMPARED YET. Remove the # when you have compared it:")
        yield f"# hub = {toml_value([study.hub.pin])}"
    else:
        # No pin means that no hub is accepted. A new policy fails closed.
        yield "hub = []"
    yield from comment(declared(Pins)["withdrawn"].param.help)
    yield "withdrawn = []"
    yield ""
    yield from comment(
        "Each other site, peer or node: masks and pair noise protect you only if the parties at their other ends are real."
    )
    yield "[pins.peers]"
    others = [] if study is None else [party for party in study.places if party is not study.hub]
    if others:
        yield from comment(
            "NOT COMPARED YET. Remove the # of each that you have compared. Your own is listed too, and not needed:"
        )
    for party in others:
        yield f"# {toml_value(party.name)} = {toml_value(party.pin)}"
    if not others:
        yield f'# "name" = "{"0123456789abcdef" * 4}"'
