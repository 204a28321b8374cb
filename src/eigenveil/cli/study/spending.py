"""`--ledger FILE` for commands that release something about one table: charged to a ledger that lasts, the same file as a site's.

A release is a study of its own in the ledger. Its whole budget is reserved there before the first number is computed, and what it
cost is on disk before anything is shown or written. If it fails, the charges so far stay and the rest is free again. If the
process is killed, the reserve stays until `eigenveil ledger close`, although nothing has left.
"""

import math
import secrets
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, final

import typer

from eigenveil.cli._terminal import output
from eigenveil.errors import require

if TYPE_CHECKING:
    from eigenveil.data.rows import Rows
    from eigenveil.ledger.durable import DurableLedger, StudyBudget
    from eigenveil.privacy import Budget, Ledger, PrivacyUnit

__all__ = ["Dataset", "FitSpending", "LastingLedger", "LedgerPath", "LifeDelta", "LifeEpsilon", "StreamSpending"]

_PANEL: Final = "A ledger for all releases about these people"
_NO_LIFE: Final = (
    "--life-epsilon is missing: what all releases about {!r} may cost together, for good. Give it once, at the first use, "
    "such as --life-epsilon 4"
)

LedgerPath: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        metavar="FILE",
        help="Charge this release to the ledger in this file, such as ledger.db, and refuse it if the budget is used up. The "
        "file is made if there is none. A site's ledger will do.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
Dataset: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--dataset",
        metavar="NAME",
        help="Your name for the people in the table. Their budget belongs to this name. Not needed if the ledger has only one.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
LifeEpsilon: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--life-epsilon",
        metavar="NUMBER",
        help="The most that all releases about these people may ever cost together. Give it at the first use.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
LifeDelta: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--life-delta",
        metavar="NUMBER",
        help="The delta at which --life-epsilon is counted.",
        rich_help_panel=_PANEL,
        show_default="--delta of the first use",
    ),
]


@final
@dataclass(slots=True, eq=False)
class FitSpending:
    """One release. Changes in place: the command says what it `released`, and the ledger how the dataset stands in `words`.

    Without --ledger there is no `ledger` to pass on, and the release has one of its own.
    """

    ledger: "Ledger | None" = None
    released: bytes = b""
    words: str | None = None

    def show(self) -> None:
        """Print how the dataset stands."""
        if self.words is not None:
            output().print(f"\n{self.words}", soft_wrap=True)


@final
@dataclass(slots=True, eq=False)
class StreamSpending:
    """One stream. Changes in place: it is `charged` once, before anything of it leaves. Without --ledger nothing is kept.

    A state that is on disk before the charge has the `account` and the `life` budget of the people, so that whoever
    resumes it can pay. Both steps do nothing the second time.
    """

    lasting: "DurableLedger | None" = None
    account: "StudyBudget | None" = None
    life: "Budget | None" = None
    joined: bool = False
    charged: bool = False
    over: bool = False  # Ended in the ledger by an earlier run.
    kept: bool = False  # A state on disk may still release, so what is reserved stays reserved.
    words: str | None = None

    @property
    def waits(self) -> bool:
        """Whether the budget is not reserved yet."""
        return self.lasting is not None and not self.joined

    def join(self) -> None:
        """Reserve the whole budget of the stream, unless that was done before."""
        if self.lasting is not None and self.account is not None and not self.joined:
            self.over = self.lasting.join(self.account, life=self.life).finished
            study = self.account.study
            # A process that was killed may have paid.
            self.charged = any(one.steps > 0 for one in self.lasting.studies() if one.account.study == study)
            self.joined = True

    def pay(self) -> None:
        """Write the whole budget of the stream, unless that was done before."""
        from eigenveil.privacy import Charge

        self.join()
        # Written once for the whole stream: every release after the first draws on the same budget.
        if self.lasting is not None and self.account is not None and not self.charged:
            whole = [Charge("the whole budget of the stream", self.account.mu)]
            self.lasting.commit(self.account.study, 0, came=b"", said=[], charges=whole, keep=False)
        self.charged = True

    def notes(self) -> dict[str, Any] | None:
        """What a state needs for `LastingLedger.streamed`; None without a ledger."""
        if self.lasting is None or self.account is None or self.life is None:
            return None
        return {
            "path": str(self.lasting.path),
            "study": self.account.study,
            "title": self.account.title,
            "dataset": self.account.dataset,
            "life": [self.life.epsilon, self.life.delta],
            "charged": self.charged,
        }

    def show(self) -> None:
        """Print how the dataset stands."""
        if self.words is not None:
            output().print(f"\n{self.words}", soft_wrap=True)


@final
@dataclass(frozen=True, slots=True)
class LastingLedger:
    """The four options together. Without a `path`, nothing is kept."""

    path: Path | None
    dataset: str | None
    life_epsilon: float | None
    life_delta: float | None

    def require_sense(self, settings: Mapping[str, Any]) -> None:
        """Refuse what cannot be charged, before a table is read."""
        # These belong to a ledger. Alone they would look as if something had been charged.
        named = {"--dataset": self.dataset, "--life-epsilon": self.life_epsilon, "--life-delta": self.life_delta}
        given = [name for name, value in named.items() if value is not None]
        require(
            self.path is not None or not given,
            f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} for --ledger. Add --ledger ledger.db",
        )
        epsilon, delta = self.life_epsilon, self.life_delta
        require(
            epsilon is None or 0 < epsilon < math.inf,
            f"--life-epsilon must be positive and finite, got {epsilon or 0:g}",
        )
        require(delta is None or 0 < delta < 1, f"--life-delta must lie between 0 and 1, got {delta or 0:g}")
        require(
            self.path is None or settings["epsilon"] is not None,
            "--ledger keeps what a guarantee costs, and --no-privacy has none. Leave out one of them",
        )
        require(
            self.path is None or settings["random_state"] is None,
            "--ledger is for real releases, and noise from a --seed protects nobody. Leave out one of them",
        )

    @contextmanager
    def charged(
        self, rows: "Rows", settings: Mapping[str, Any], *, person: str | None, title: str, source: str | None
    ) -> Iterator[FitSpending]:
        """Reserve the budget, let the block release, and write its charges. Show and write results after the block only.

        The `source` says where the rows were read (`source_of`). It decides whether they have another name already; what is in
        them does not, because others see whether a release was made.
        """
        if self.path is None:
            yield FitSpending()
            return
        from eigenveil.data.fingerprints import fingerprints
        from eigenveil.data.rows import CheckedRows
        from eigenveil.privacy import Ledger, Neighbours, PrivacyUnit

        self._require_named()
        # This reads all rows, so missing values that are not allowed are found before anything is written.
        prints = fingerprints(CheckedRows(rows, settings.get("missing", "refuse") != "refuse"))
        unit = PrivacyUnit.of(Neighbours(settings["neighbours"]), grouped=person is not None, column=person)
        with self._joined(settings, unit, title=title, prints=prints, source=source) as (lasting, study, dataset):
            spending = FitSpending(Ledger(epsilon=settings["epsilon"], delta=settings["delta"]))
            try:
                yield spending
            except BaseException as error:
                # Releases that were drawn before the error stay charged. Only what was never drawn is given back.
                _settle(lasting, study, spending)
                lasting.abandon(study)
                if not isinstance(error, Exception):
                    # Whoever interrupts is told that nothing was written. The charges so far were.
                    output(stderr=True).print(self._stands(lasting, dataset), soft_wrap=True)
                raise
            _settle(lasting, study, spending)
            lasting.finish(study)
            spending.words = self._stands(lasting, dataset)

    @contextmanager
    def streamed(
        self, cost: "Budget | None", unit: "PrivacyUnit", *, title: str, notes: Mapping[str, Any] | None = None
    ) -> Iterator["StreamSpending"]:
        """The budget of a stream in the ledger. All of it is charged when `pay` is called, before anything leaves.

        A stream may end, be saved and be resumed with the same budget, so nothing of it is given back after that. Its rows come
        once, so they are not compared with those of other datasets. With `notes` it is the stream of a state, which paid before
        if it could.
        """
        path = self.path
        if notes is not None and not notes["charged"]:
            path = Path(notes["path"]) if path is None else path
            require(
                path.is_file(),
                f"the stream in the state is to be charged to {path}, which is not there. Name it with --ledger FILE",
            )
        if path is None or cost is None:
            yield StreamSpending()
            return
        from eigenveil.ledger.durable import DurableLedger

        where = replace(self, path=path)
        if notes is None:
            where._require_named()
        with DurableLedger.open(path, create=notes is None) as lasting:
            account, life = where._account(lasting, cost, unit, title, notes)
            if notes is None:
                _afford(lasting, account, life)
            spending = StreamSpending(lasting, account, life, kept=notes is not None)
            try:
                yield spending
            finally:
                if spending.charged and not spending.over:
                    lasting.finish(account.study)
                elif spending.joined and not spending.charged and not spending.kept:
                    # Nothing has left, and nothing of the stream is kept.
                    lasting.abandon(account.study)
                if spending.joined:
                    spending.words = where._stands(lasting, account.dataset)

    def _account(
        self,
        lasting: "DurableLedger",
        cost: "Budget",
        unit: "PrivacyUnit",
        title: str,
        notes: Mapping[str, Any] | None,
    ) -> tuple["StudyBudget", "Budget"]:
        """The account of a stream and the life budget of its people: a new one, or the one in the `notes` of a state."""
        from eigenveil.cli.network.consent import dataset_named
        from eigenveil.ledger.budget import CURATOR
        from eigenveil.ledger.durable import StudyBudget
        from eigenveil.privacy import Budget

        assert self.path is not None
        if notes is None:
            study, dataset = (
                secrets.token_hex(32),
                dataset_named(self.path, lasting, self.dataset, None, role="analyst"),
            )
            life = self._life(lasting, dataset, cost)
        else:
            study, title, dataset = (str(notes[name]) for name in ("study", "title", "dataset"))
            known = any(one.account.study == study for one in lasting.studies())
            require(
                known or (not notes["charged"] and self.path.samefile(notes["path"])),
                f"{self.path} is not the ledger of the stream in the state, which is {notes['path']}",
            )
            require(
                self.dataset in (None, dataset),
                f"the people in the stream are {dataset!r} in its ledger. Leave out --dataset",
            )
            life = Budget(*map(float, notes["life"]))
        # The whole budget of the stream, whatever it will use.
        account = StudyBudget(
            study, title, dataset, CURATOR, epsilon=cost.epsilon, delta=cost.delta, mu=cost.mu, unit=unit
        )
        return account, life

    def _require_named(self) -> None:
        """Refuse what a new ledger lacks before an empty one is made, all of it at once."""
        from eigenveil.cli.network.consent import dataset_named

        assert self.path is not None
        if self.path.exists():
            return
        require(
            self.dataset is not None or self.life_epsilon is not None,
            f"{self.path} would be a new ledger. Name the people in the table with --dataset, and say with --life-epsilon what "
            "all releases about them may cost together, for good: such as --dataset patients --life-epsilon 4",
        )
        dataset = dataset_named(self.path, None, self.dataset, None, role="analyst")
        require(self.life_epsilon is not None, _NO_LIFE.format(dataset))

    @contextmanager
    def _joined(
        self,
        settings: Mapping[str, Any],
        unit: "PrivacyUnit",
        *,
        title: str,
        prints: tuple[bytes, ...] = (),
        source: str | None = None,
    ) -> Iterator[tuple["DurableLedger", str, str]]:
        """The ledger, open, with a new study in it that reserves a budget; the study; and its dataset."""
        from eigenveil.cli.network.consent import dataset_named
        from eigenveil.ledger.budget import CURATOR
        from eigenveil.ledger.durable import DurableLedger, StudyBudget
        from eigenveil.privacy import Budget

        assert self.path is not None
        # The whole budget of the release, whatever it will use: it must be there before anything is drawn.
        cost = Budget(settings["epsilon"], settings["delta"])
        with DurableLedger.open(self.path) as lasting:
            dataset = dataset_named(self.path, lasting, self.dataset, None, role="analyst")
            life = self._life(lasting, dataset, cost)
            if source is not None:
                self._require_one_name(lasting, dataset, source)
            # A random name, so that two fits of one table with the same settings are two studies.
            study = secrets.token_hex(32)
            account = StudyBudget(
                study, title, dataset, CURATOR, epsilon=cost.epsilon, delta=cost.delta, mu=cost.mu, unit=unit
            )
            # Before the rows are declared: a release that is refused leaves no trace.
            _afford(lasting, account, life)
            warnings = lasting.declare(dataset, *prints, source=source) if prints else []
            # For a person alone. A file may be read by others, and a warning says that a row is another one. The system is asked,
            # not rich: an environment variable for colours must not make a terminal of a file.
            for warning in warnings if sys.stderr.isatty() else ():
                output(stderr=True).print(f"note: {warning}", style="yellow", soft_wrap=True)
            lasting.join(account, life=life)
            yield lasting, study, dataset

    def _life(self, lasting: "DurableLedger", dataset: str, cost: "Budget") -> "Budget":
        """The budget for all releases: what the ledger has, or at the first use what was given."""
        from eigenveil.privacy import Budget

        known = next((state.life for state in lasting.datasets() if state.name == dataset), None)
        if known is None:
            if self.life_epsilon is None:
                raise ValueError(_NO_LIFE.format(dataset))
            return Budget(self.life_epsilon, cost.delta if self.life_delta is None else self.life_delta)
        fits = self.life_epsilon in (None, known.epsilon) and self.life_delta in (None, known.delta)
        require(
            fits,
            f"the total budget of dataset {dataset!r} is ({known.epsilon:g}, {known.delta:g}) and was fixed before. Leave out "
            "--life-epsilon and --life-delta",
        )
        return known

    def _require_one_name(self, lasting: "DurableLedger", dataset: str, source: str) -> None:
        names = lasting.read_as(dataset, source)
        require(
            not names,
            f"this table is in {self.path} as {', '.join(map(repr, names))}. As {dataset!r} the same people would get a second "
            f"budget. Use --dataset {shlex.quote(names[0] if names else '')}. If other people are in the file now, give it "
            "another name",
        )

    def _stands(self, lasting: "DurableLedger", dataset: str) -> str:
        from eigenveil.cli.network.words import rounded

        state = next(state for state in lasting.datasets() if state.name == dataset)
        assert state.life is not None
        spent = rounded(state.epsilon(state.life.delta, mu=state.counted))
        return (
            f"ledger {self.path}: {dataset} has spent epsilon {spent} of {state.life.epsilon:g} at delta {state.life.delta:g}, "
            "with what is reserved"
        )


def _afford(lasting: "DurableLedger", account: "StudyBudget", life: "Budget") -> None:
    """Raise `BudgetExceeded`, with the largest --epsilon that is left, unless the release fits in the budget."""
    from eigenveil.errors import BudgetExceeded
    from eigenveil.privacy import epsilon_of, mu_for

    try:
        lasting.afford(account, life=life)
    except BudgetExceeded as error:
        spent = next((state.counted for state in lasting.datasets() if state.name == account.dataset), 0.0)
        left = math.sqrt(max(life.mu**2 - spent**2, 0.0))
        # Rounded down, and tried: masks that may fail take some of delta, too.
        epsilon = math.floor(1000 * epsilon_of(left, account.delta)) / 1000 if left > 0 else 0.0
        words = "What is left is too little for another release"
        if epsilon > 0:
            try:
                lasting.afford(replace(account, epsilon=epsilon, mu=mu_for(epsilon, account.delta)), life=life)
                words = f"What is left is enough for --epsilon {epsilon:g}"
            except BudgetExceeded:
                pass
        raise BudgetExceeded(f"{error}. {words}") from None


def _settle(lasting: "DurableLedger", study: str, spending: FitSpending) -> None:
    """Write the charges so far, and the digest of what will leave."""
    assert spending.ledger is not None
    said = [spending.released] if spending.released else []
    if spending.ledger.charges or said:
        lasting.commit(study, 0, came=b"", said=said, charges=spending.ledger.charges, keep=False)
