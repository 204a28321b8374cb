"""`--ledger FILE` for commands that release something about one table: charged to a ledger that lasts, the same file as a site's.

What is reserved, charged and given back is in `eigenveil.ledger.spending`. Here are the options, and what is shown.
"""

import math
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, final

from eigenveil.commands._options import OptionGroup, option
from eigenveil.errors import require, require_param
from eigenveil.show.console import Line, output

if TYPE_CHECKING:
    from eigenveil.core.accounting import Budget
    from eigenveil.core.ledger import Ledger
    from eigenveil.core.rows import Rows
    from eigenveil.core.unit import PrivacyUnit
    from eigenveil.ledger.durable import DatasetState, DurableLedger
    from eigenveil.ledger.spending import StreamSpending
    from eigenveil.ledger.store import FileStore

__all__ = ["FitSpending", "LastingLedger", "left_for_fit", "stands"]

_PANEL: Final = "A ledger for all releases about these people"
_NO_LIFE: Final = (
    "--lifetime-epsilon is missing: what all releases about {!r} may cost together, for good. Give it once, at the first use, "
    "such as --lifetime-epsilon 4"
)


@final
@dataclass(slots=True, eq=False)
class FitSpending:
    """One release. Changes in place."""

    ledger: "Ledger | None" = None  # None without --ledger: then the release has one of its own.
    released: bytes = b""  # Set by the command.
    summary: str | None = None  # How the dataset stands, set by the ledger.

    def lines(self) -> Iterator[Line]:
        """How the dataset stands."""
        if self.summary is not None:
            yield Line(f"\n{self.summary}")


@final
@dataclass(frozen=True, kw_only=True)
class LastingLedger(OptionGroup):
    """The ledger that a release is charged to. Without --ledger nothing is kept."""

    ledger: Annotated[
        Path | None,
        option(
            "FILE",
            "Charge this release to the ledger in this file, such as ledger.db, and refuse it if the budget is used up. The "
            "file is made if there is none. A site's ledger will do.",
            panel=_PANEL,
        ),
    ] = None
    dataset: Annotated[
        str | None,
        option(
            "NAME",
            "Your name for the people in the table. Their budget belongs to this name. Not needed if the ledger has only one.",
            panel=_PANEL,
        ),
    ] = None
    lifetime_epsilon: Annotated[
        float | None,
        option(
            "NUMBER",
            "The most that all releases about these people may ever cost together. Give it at the first use.",
            panel=_PANEL,
        ),
    ] = None
    lifetime_delta: Annotated[
        float | None,
        option(
            "NUMBER", "The delta at which --lifetime-epsilon is counted.", none_means="--delta of the first use", panel=_PANEL
        ),
    ] = None

    def require_sense(self, settings: Mapping[str, Any]) -> None:
        """Refuse what cannot be charged, before a table is read."""
        # These belong to a ledger. Alone they would look as if something had been charged.
        options = ("dataset", "lifetime_epsilon", "lifetime_delta")
        explicit = [f"--{name.replace('_', '-')}" for name in options if getattr(self, name) is not None]
        require(
            self.ledger is not None or not explicit,
            f"{' and '.join(explicit)} {'is' if len(explicit) == 1 else 'are'} for --ledger. Add --ledger ledger.db",
        )
        epsilon, delta = self.lifetime_epsilon, self.lifetime_delta
        require(
            epsilon is None or 0 < epsilon < math.inf, f"--lifetime-epsilon must be positive and finite, got {epsilon or 0:g}"
        )
        require(delta is None or 0 < delta < 1, f"--lifetime-delta must lie between 0 and 1, got {delta or 0:g}")
        require(
            self.ledger is None or settings["epsilon"] is not None,
            "--ledger keeps what a guarantee costs, and --no-privacy has none. Leave out one of them",
        )
        require(
            self.ledger is None or settings["random_state"] is None,
            "--ledger is for real releases, and noise from a --seed protects no one. Leave out one of them",
        )

    @contextmanager
    def charged(
        self, rows: "Rows", settings: Mapping[str, Any], *, person: str | None, title: str, source: str | None
    ) -> Iterator[FitSpending]:
        """Reserve the budget, let the block release, and write its charges. Show and write results after the block only.

        The `source` says where the rows were read (`source_of`). It decides whether they have another name already; what is in
        them does not, because others see whether a release was made.
        """
        if self.ledger is None:
            yield FitSpending()
            return
        from eigenveil.core.accounting import Budget
        from eigenveil.core.unit import Neighbours, PrivacyUnit
        from eigenveil.data.known import fingerprints
        from eigenveil.data.rows import CheckedRows
        from eigenveil.ledger.durable import DurableLedger
        from eigenveil.ledger.spending import released

        self._require_named()
        # This reads all rows, so missing values that are not allowed are found before anything is written.
        prints = fingerprints(CheckedRows(rows, settings.get("missing", "refuse") != "refuse"))
        unit = PrivacyUnit.of(Neighbours(settings["neighbours"]), grouped=person is not None, column=person)
        # The whole budget of the release, whatever it will use: it must be there before anything is drawn.
        cost = Budget(settings["epsilon"], settings["delta"])
        with DurableLedger.open(self.ledger) as lasting:
            store = self._store(lasting, cost)
            if source is not None:
                self._require_one_name(lasting, store.dataset, source)
            release = None
            try:
                with released(store, cost, unit, title=title, prints=prints, source=source, say=_noted) as release:
                    spending = FitSpending(release.ledger)
                    try:
                        yield spending
                    finally:
                        release.released = spending.released
            except BaseException as error:
                if release is not None and release.state is not None and not isinstance(error, Exception):
                    # The line about the interrupt says that nothing was written. The charges so far were.
                    output(stderr=True).print(stands(release.state, self.ledger), soft_wrap=True)
                raise
            assert release.state is not None
            spending.summary = stands(release.state, self.ledger)

    @contextmanager
    def streamed(
        self, cost: "Budget | None", unit: "PrivacyUnit", *, title: str, notes: Mapping[str, Any] | None = None
    ) -> Iterator["StreamSpending"]:
        """The budget of a stream in the ledger. All of it is charged when `pay` is called, before anything leaves.

        With `notes` it is the stream of a state, which paid before if it could.
        """
        from eigenveil.ledger.spending import StreamSpending, resumed, streamed

        path = self.ledger
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

        if notes is None:
            self._require_named()
        with DurableLedger.open(path, create=notes is None) as lasting:
            if notes is None:
                spending = streamed(self._store(lasting, cost), cost, unit, title=title)
            else:
                spending = resumed(lasting, notes, cost, unit, dataset=self.dataset)
            try:
                yield spending
            finally:
                spending.end()

    def _require_named(self) -> None:
        """Refuse what a new ledger lacks before an empty one is made, all of it at once."""
        from eigenveil.commands._consent import resolve_dataset_name

        assert self.ledger is not None
        if self.ledger.exists():
            return
        require(
            self.dataset is not None or self.lifetime_epsilon is not None,
            f"{self.ledger} would be a new ledger. Name the people in the table with --dataset, and say with "
            "--lifetime-epsilon what all releases about them may cost together, for good: such as "
            "--dataset patients --lifetime-epsilon 4",
        )
        dataset = resolve_dataset_name(self.ledger, None, self.dataset, None, role="analyst")
        require(self.lifetime_epsilon is not None, _NO_LIFE.format(dataset))

    def _store(self, lasting: "DurableLedger", cost: "Budget") -> "FileStore":
        """The dataset in the ledger, with the budget that it has, or at the first use the one that was given."""
        from eigenveil.commands._consent import resolve_dataset_name
        from eigenveil.core.accounting import Budget
        from eigenveil.ledger.budget import require_fixed
        from eigenveil.ledger.store import FileStore

        assert self.ledger is not None
        dataset = resolve_dataset_name(self.ledger, lasting, self.dataset, None, role="analyst")
        existing = lasting.dataset(dataset).life
        epsilon, delta = self.lifetime_epsilon, self.lifetime_delta
        if existing is None:
            require(epsilon is not None, _NO_LIFE.format(dataset))
            assert epsilon is not None
            life = Budget(epsilon, cost.delta if delta is None else delta)
        else:
            life = Budget(existing.epsilon if epsilon is None else epsilon, existing.delta if delta is None else delta)
            require_fixed(existing, life, dataset, instead="Leave out --lifetime-epsilon and --lifetime-delta")
        return FileStore.over(lasting, dataset, life, lambda name, value: f"--{name} {value:g}")

    def _require_one_name(self, lasting: "DurableLedger", dataset: str, source: str) -> None:
        names = lasting.read_as(dataset, source)
        require(
            not names,
            f"this table is in {self.ledger} as {', '.join(map(repr, names))}. As {dataset!r} the same people would get a second "
            f"budget. Use --dataset {shlex.quote(names[0] if names else '')}. If other people are in the file now, give it "
            "another name",
        )


def left_for_fit(total: float | None, epsilon: float | None, delta: float | None) -> tuple[float, float] | None:
    """The total epsilon, and what a fit may still spend of it at the same delta. The mu of Gaussian releases add up
    in squares.

    Rounded down to four digits. None where no total was given and none can be suggested.

    >>> left_for_fit(None, 0.1, 1e-6)
    (1.0, 0.9926)
    """
    from eigenveil.core.accounting import epsilon_of, mu_for
    from eigenveil.estimators.checks import budget_of

    spent = budget_of(epsilon, delta)
    if spent is None:
        require_param(total is None, "--total has no meaning with {epsilon=None}: leave it out")
        return None
    if total is None and spent.epsilon >= 1:
        return None
    # Epsilon 1 is what most studies spend, so it is suggested where nothing was said.
    whole = 1.0 if total is None else total
    require(
        math.isfinite(whole) and whole > spent.epsilon,
        f"--total must be more than --epsilon, because it includes it, got {whole:g} and {spent.epsilon:g}",
    )
    # Squares of mu add up, so what is left is their difference.
    left = epsilon_of(math.sqrt(mu_for(whole, spent.delta) ** 2 - spent.mu**2), spent.delta)
    # Rounded down, so that both together never exceed the total.
    digits = 3 - math.floor(math.log10(left))
    return whole, math.floor(left * 10**digits) / 10**digits


def stands(state: "DatasetState", path: Path) -> str:
    """How a dataset stands in the ledger at `path`, in words."""
    from eigenveil.show.disclosure import rounded

    life = state.life
    assert life is not None
    spent = rounded(state.epsilon(life.delta, mu=state.counted))
    return (
        f"ledger {path}: {state.name} has spent epsilon {spent} of {life.epsilon:g} at delta {life.delta:g}, with what is "
        "reserved"
    )


def _noted(warnings: list[str]) -> None:
    # For a person alone. Others may read a file, and a warning says that a row is another one. The system is asked, not rich: an
    # environment variable for colours must not make a terminal of a file.
    for warning in warnings if sys.stderr.isatty() else ():
        output(stderr=True).print(f"note: {warning}", style="yellow", soft_wrap=True)
