"""`Holder`: an agent with rows, which spends. And what it has before it takes part: its table, its policy and its account.

Nothing here sends anything, and a study that must be refused is refused here.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict, Unpack, final

from eigenveil.core.accounting import Budget
from eigenveil.core.rows import Rows
from eigenveil.data.columns import ColumnChoice
from eigenveil.data.formats import SHARED, FileParams, format_of, open_named
from eigenveil.data.known import fingerprints
from eigenveil.data.rows import CheckedRows
from eigenveil.data.tables import read_table
from eigenveil.errors import ColumnsError, ParameterError, ProtocolError, require
from eigenveil.estimators.reading import people_at
from eigenveil.ledger.durable import DurableLedger, StudyBudget, StudyRecord
from eigenveil.network.agents.runner import STOPPED, Agent, Runner
from eigenveil.network.agents.steps import Event, OnEvent
from eigenveil.network.certificates import Keys
from eigenveil.network.policy import Policy, PolicyRefusal
from eigenveil.network.study import StudyFile
from eigenveil.params.declarations.study import said_in_file
from eigenveil.protocols.masked.terms import MaskedTerms
from eigenveil.tasks.fit.bounds import RowBounds

__all__ = ["Holder", "HolderOptions", "SiteData", "account_of"]


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SiteData:
    """A site's table: `rows` with the columns of a study in their order."""

    rows: Rows
    people: int  # How many are in it.
    named: bool = True  # Its columns have names. Otherwise they are taken to be those of the study.
    columns: int | None = None  # How many the file has. None if it does not name them.
    passthrough: Any = None  # An Arrow table of columns that are written next to the site's own scores. Nothing of it is sent.

    @classmethod
    def read(cls, path: Path, study: StudyFile, *, dask: bool = False, passthrough: Sequence[str] = (), **how: Any) -> "SiteData":
        """The columns that the study names, from a file that may have others; errors name the file and no value.

        `passthrough` are names or patterns of columns for the site alone. `how` are the fields of `FileParams`. With `dask` the
        rows stay on the cluster that this process is connected to.
        """
        try:
            # Only the columns of the study are read, so no other column can reach a sum or an error.
            if dask:
                return cls._on_cluster(path, study, how)
            table = read_table(
                path,
                person=study.params.person,
                columns=study.columns,
                literal=True,
                passthrough=passthrough,
                gaps=study.params.missing != "refuse",
                **how,
            )
        except ColumnsError as error:
            # A site can leave no column out: the study needs them all.
            raise ValueError(
                f"{error.happened}. The study needs numbers there: encode them, or fill them in by a public rule"
            ) from None
        count = table.rows.shape[1]
        require(
            count == len(study.columns),
            f"{path} has {count} unnamed columns, and the study has {len(study.columns)}: {', '.join(study.columns[:8])}",
        )
        holding = cls.of(table.rows, study, named=table.columns is not None)
        return replace(holding, columns=table.available, passthrough=table.passthrough)

    @classmethod
    def _on_cluster(cls, path: Path, study: StudyFile, how: Mapping[str, Any]) -> "SiteData":
        """The same for files that the workers of a Dask cluster read."""
        from eigenveil.data.engines.dask_rows import table_rows

        params = FileParams(**how)
        format_ = format_of(path, params)
        shared = format_.is_shared and format_.has_names
        require(shared, f"{path} cannot be shared by a cluster. Convert it to {SHARED} first")
        table: Any = open_named(path, params)
        choice = ColumnChoice(columns=study.columns, person=study.params.person, literal=True)
        rows = table_rows(table, choice, gaps=study.params.missing != "refuse").inner
        return replace(cls.of(rows, study), columns=len(table.names))

    @classmethod
    def of(cls, rows: Rows, study: StudyFile, *, named: bool = True) -> "SiteData":
        """The same for rows in memory."""
        require(
            rows.shape[1] == len(study.columns), f"the rows have {rows.shape[1]} columns, and the study has {len(study.columns)}"
        )
        if rows.sparse:
            # Bounds may fill a sparse table with numbers other than zero.
            try:
                RowBounds.of(study.params, rows.shape[1], private=study.private, sparse=True, names=study.columns)
            except ValueError as error:
                why = said_in_file(error) if isinstance(error, ParameterError) else error
                raise ValueError(f"the table is sparse, which this study does not allow: {why}") from error
        # The number of people is for this site's own policy and screen. It is not sent anywhere.
        return cls(rows=CheckedRows(rows, study.params.missing != "refuse"), people=round(people_at(rows)), named=named)

    def fingerprints(self) -> tuple[bytes, ...]:
        """Digests of the rows for the site alone, to know the table again (`data.fingerprints`)."""
        return fingerprints(self.rows)


class HolderOptions(TypedDict):
    """What every agent with rows needs besides its study."""

    keys: Keys
    ledger: DurableLedger
    policy: Policy | None
    withdrawn: NotRequired[Callable[[], Collection[str]]]  # The pins that are void by now, asked at every connection.
    on_event: NotRequired[OnEvent]


class Holder(Agent):
    """An agent with rows, with its policy, and the `account` of the study in its ledger. Changes in place: it spends.

    Nothing is connected and nothing is spent before `run`.
    """

    account: StudyBudget

    def __init__(self, study: StudyFile, *, role: str, **options: Unpack[HolderOptions]) -> None:
        on_event = options.get("on_event", lambda event: None)
        super().__init__(study, keys=options["keys"], role=role, on_event=on_event)
        self.policy, self.ledger = options["policy"], options["ledger"]
        self._withdrawn = options.get("withdrawn", tuple)
        # The total budget of the dataset, which the policy sets.
        self.life = None if self.policy is None else self.policy.life
        self.reply_seconds = 0.0 if self.policy is None else self.policy.agent.reply_seconds

    def require_allowed(self, holding: SiteData | None, *, method: str) -> None:
        """Refuse a study that does not fit the table, or that the policy does not allow, with all reasons at once."""
        study, policy, me = self.study, self.policy, self.place.name
        if study.sizes is not None and holding is not None:
            what = "people" if study.unit.kind == "person" else "rows"
            # Others rely on the declared number, which is public. The true one is not, so the error does not say it.
            require(
                study.sizes[me] == holding.people,
                f"[sizes] in the study file says that {me} has {study.sizes[me]} {what}, and this table has another number",
            )
        if policy is None:
            return
        reasons = [*policy.refusals(study, me=me, method=method)]
        if holding is not None:
            reasons += policy.refusals_of_rows(holding.people, study.unit)
            # A table without names cannot be checked against a list of allowed columns, so it fails closed.
            if policy.limits.columns is not None and not holding.named:
                reasons.append("[limits] columns: the table does not name its columns, so they cannot be checked")
        if reasons:
            raise PolicyRefusal(reasons)

    def require_can_go_on(self, entered: StudyRecord) -> None:
        """Refuse to take part again in a study that this party has joined before."""

    @contextmanager
    def entered(self, note: str | None) -> Iterator[StudyRecord]:
        """The study in the ledger, for this process alone. `note` is for the ledger, such as who consented."""
        ledger, digest = self.ledger, self.study.digest
        # Two processes of one party would answer the same question with two different noises.
        with ledger.lock(digest):
            entered = ledger.join(self.account, life=self.life)
            if entered.finished:
                written = "" if self.study.streaming else ", and has written its model"
                role = self.place.certificate.role
                raise ProtocolError(f"this {role} has finished the study {self.study.name!r}{written}")
            self.require_can_go_on(entered)
            if note is not None:
                ledger.note(digest, note)
            yield entered

    async def on_joined(self, runner: Runner, name: str) -> None:
        """Refuse a connection to a party whose pin was withdrawn after the study was checked."""
        # Asked at every connection: a pin may be withdrawn while a study runs, and nothing more must go there.
        pin = self.study.place(name).pin
        if pin in self._withdrawn():
            raise PolicyRefusal([f"[pins] withdrawn: the pin {pin} of {name!r} was withdrawn"])

    async def on_note(self, runner: Runner, sender: str, note: bytes) -> None:
        """Show that the party above has stopped."""
        await super().on_note(runner, sender, note)
        if note == STOPPED:
            self.on_event(Event("waiting", sender, f"{sender} has stopped. The study continues when it is started again"))


def account_of(
    study: StudyFile, dataset: str, *, party: str, budget: Budget | None, mu: float, masks: MaskedTerms | None = None
) -> StudyBudget:
    """What the study may spend of a dataset: `mu`, for a guarantee of `budget`; infinite if it protects no one."""
    epsilon, delta = (None, None) if budget is None else (budget.epsilon, budget.delta)
    if study.seed is not None:
        # Noise from a seed in the study file protects no one: anyone can compute it again.
        epsilon = delta = None
    return StudyBudget(
        study=study.digest,
        title=study.name,
        dataset=dataset,
        trust=study.trust,
        epsilon=epsilon,
        delta=delta,
        mu=math.inf if epsilon is None else mu,
        # The probability that masks fail adds to delta, at any epsilon.
        extra_delta=0.0 if masks is None or epsilon is None else masks.lattice.failure,
        party=party,
        unit=study.unit,
    )
