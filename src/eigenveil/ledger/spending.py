"""What a command releases about one table, or about one stream, charged to a ledger file.

A release is a study of its own in the ledger. Its whole budget is reserved there before the first number is computed. Every
charge is on disk before its noise is drawn, and the digest of what left before anything is shown or written. If it fails, the
charges so far stay and the rest is free again. If the process is killed, the reserve stays until `eigenveil ledger close`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Charge, Ledger, Memory
from eigenveil.core.unit import PrivacyUnit
from eigenveil.errors import require
from eigenveil.ledger.durable import DatasetState, DurableLedger, StudyBudget
from eigenveil.ledger.store import WHOLE_STREAM, FileStore

__all__ = ["Release", "StreamSpending", "released", "resumed", "streamed"]


@final
@dataclass(slots=True, eq=False)
class Release:
    """One release. Changes in place: its maker says what it `released`, and at the end it has the `state` of the dataset.

    `ledger` has the budget of this release alone, and keeps every charge in the file first.
    """

    ledger: Ledger
    released: bytes = b""
    state: DatasetState | None = None


@contextmanager
def released(
    store: FileStore,
    cost: Budget,
    unit: PrivacyUnit,
    *,
    title: str,
    prints: Sequence[bytes] = (),
    source: str | None = None,
    say: Callable[[list[str]], None] = lambda warnings: None,
) -> Iterator[Release]:
    """Reserve the budget, let the block release, and write the digest of what it released. Show results after the block only.

    Fingerprints of the rows, `prints`, are declared; warnings about them are as private as the rows, and are told to `say`. The
    `source` is where the rows were read.
    """
    terms = StudyBudget.of_release(store.dataset, title=title, cost=cost, unit=unit, mu=cost.mu)
    lasting = store.lasting()
    # Before the rows are declared: a release that is refused leaves no trace.
    store.require(terms)
    if prints:
        say(lasting.declare(store.dataset, *prints, source=source))
    account = store.join(terms)
    account.ends_itself = False
    release = Release(Ledger.kept(cost, Memory(cost, through=account), unit=unit))
    failed = True
    try:
        yield release
        failed = False
    finally:
        # Releases that were drawn before an error stay charged. Only what was never drawn is given back.
        if release.released:
            # The ledger keeps a mark of it, which shows later what the charge was for.
            account.said(release.released)
        account.close(failed=failed)
        release.state = store.state()


@final
@dataclass(slots=True, eq=False, kw_only=True)
class StreamSpending:
    """One stream. Changes in place: it is `charged` once, before anything of it leaves. Without a ledger nothing is kept.

    A state that is on disk before the charge has the `account` and the `life` budget of the people, so that it
    can be paid when it is resumed. Both steps do nothing the second time.
    """

    lasting: DurableLedger | None = None
    account: StudyBudget | None = None
    life: Budget | None = None
    joined: bool = False
    charged: bool = False
    over: bool = False  # Ended in the ledger by an earlier run.
    is_saved: bool = False  # A state on disk may still release, so what is reserved stays reserved.
    state: DatasetState | None = None  # How the dataset stands at the end.

    @property
    def waits(self) -> bool:
        """Whether the budget is not reserved yet."""
        return self.lasting is not None and not self.joined

    def join(self) -> None:
        """Reserve the whole budget of the stream, unless that was done before."""
        if self.lasting is not None and self.account is not None and not self.joined:
            self.over = self.lasting.join(self.account, life=self.life).finished
            # A process that was killed may have paid.
            study = self.lasting.study(self.account.study)
            self.charged = study is not None and study.steps > 0
            self.joined = True

    def pay(self) -> None:
        """Write the whole budget of the stream, unless that was done before."""
        self.join()
        # Written once for the whole stream: every release after the first draws on the same budget.
        if self.lasting is not None and self.account is not None and not self.charged:
            whole = [Charge(WHOLE_STREAM, self.account.mu)]
            self.lasting.commit(self.account.study, 0, came=b"", replies=[], charges=whole, keep=False)
        self.charged = True

    def end(self) -> None:
        """Finish what was charged, and give back what was not, unless a state on disk may still release it."""
        if self.lasting is None or self.account is None or not self.joined:
            return
        if self.charged and not self.over:
            self.lasting.finish(self.account.study)
        elif not self.charged and not self.is_saved:
            # Nothing has left, and nothing of the stream is kept.
            self.lasting.abandon(self.account.study)
        self.state = self.lasting.dataset(self.account.dataset)

    def notes(self) -> dict[str, Any] | None:
        """What a state needs to be resumed on this ledger; None without one."""
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


def streamed(store: FileStore, cost: Budget, unit: PrivacyUnit, *, title: str) -> StreamSpending:
    """The budget of a new stream: refused now if it does not fit, reserved and charged later. The caller calls `end`.

    A stream may end, be saved and be resumed with the same budget, so nothing of it is given back after it was charged. Its rows
    come once, so they are not compared with other datasets.
    """
    terms = StudyBudget.of_release(store.dataset, title=title, cost=cost, unit=unit, mu=cost.mu)
    store.require(terms)
    return StreamSpending(lasting=store.lasting(), account=terms, life=store.life)


def resumed(
    lasting: DurableLedger, notes: Mapping[str, Any], cost: Budget, unit: PrivacyUnit, *, dataset: str | None
) -> StreamSpending:
    """The budget of the stream of a state with these `notes`, which paid before if it could."""
    study, title, recorded = (str(notes[name]) for name in ("study", "title", "dataset"))
    require(
        lasting.study(study) is not None or (not notes["charged"] and lasting.path.samefile(Path(notes["path"]))),
        f"{lasting.path} is not the ledger of the stream in the state, which is {notes['path']}",
    )
    require(dataset in (None, recorded), f"the people in the stream are {recorded!r} in its ledger. Leave out --dataset")
    terms = StudyBudget.of_release(recorded, title=title, cost=cost, unit=unit, mu=cost.mu, study=study)
    return StreamSpending(lasting=lasting, account=terms, life=Budget(*map(float, notes["life"])), is_saved=True)
