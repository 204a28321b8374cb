"""Rows in a Dask array or dataframe: sums run on the workers of the cluster, and this process has no row.

Without a cluster this process reads the partitions itself, one after the other (`PartitionRows`).

Only this file imports Dask, and only where a caller uses it (the extra `dask`). The futures of checked partitions are held, so
that each is read and checked once, and read again only if a worker is lost.
"""

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from time import monotonic, sleep
from typing import Any, Final, NoReturn, TypeVar, final

import distributed
import numpy as np
from distributed.diagnostics.plugin import WorkerPlugin

from eigenveil.core.rows import Block, Progress, RowSum
from eigenveil.data.columns import ColumnChoice, ColumnLayout, kinds_of
from eigenveil.data.engines import partitions as there
from eigenveil.data.engines.base import answer_of, attempted
from eigenveil.data.engines.dask import DASK
from eigenveil.data.engines.partitions import ArrayPlan, FramePlan, Partition, PartitionFacts, PartitionPlan
from eigenveil.data.formats import SharedTable
from eigenveil.data.number_texts import NO_MARKS, MissingMarks
from eigenveil.data.rows import NamedRows, WeightedRows, person_weights, refuse_to_copy
from eigenveil.errors import EngineLost, require
from eigenveil.linalg import Array

__all__ = ["DaskRows", "PartitionRows", "array_rows", "connected", "frame_rows", "table_rows"]

_Sums = TypeVar("_Sums")
# Seconds that a cluster may be without any worker before it counts as lost, and between two looks at it.
_PATIENCE: Final = 30.0
_LOOK: Final = 0.2
# Seconds that a scheduler has to answer.
_CONNECT: Final = 10
# Sums that one task joins: a tree of such tasks leaves one sum for this process.
_FAN_IN: Final = 8
# People are counted in so many tables, so that no worker must have all of them at once.
_BUCKETS: Final = 16
_ALIKE: Final = "all partitions must be dense, or all sparse"


class _Quiet(logging.Filter):
    """Takes the text out of what a worker logs of a failed task: exceptions quote values, and tasks their arguments."""

    def filter(self, record: logging.LogRecord) -> bool:
        if str(record.msg).startswith("Compute Failed"):
            key = record.args[0] if isinstance(record.args, tuple) and record.args else "unknown"
            record.msg, record.args = ("Compute Failed. Key: %s. Its exception is not shown: it may quote the data", (key,))
        return True


@final
class QuietWorkers(WorkerPlugin):
    """Makes the logs of all workers quiet about failed tasks, also of workers that join later. Changes loggers in place."""

    name = "eigenveil-quiet"

    def setup(self, worker: Any) -> None:
        """On each worker."""
        logger = logging.getLogger("distributed.worker")
        if not any(isinstance(log_filter, _Quiet) for log_filter in logger.filters):
            logger.addFilter(_Quiet())


@contextmanager
def _words_for_the_cluster() -> Iterator[None]:
    """An `EngineLost` where the scheduler is gone, or the client of this process was closed."""
    try:
        yield
    except (distributed.client.ClosedClientError, OSError):
        raise _lost("the cluster does not answer any more") from None


class _Partitioned:
    """Rows in checked partitions, and what is known of each."""

    __slots__ = ()
    facts: tuple[PartitionFacts, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return sum(partition.count for partition in self.facts), self.facts[0].dim

    @property
    def sparse(self) -> bool:
        """Whether the partitions are sparse."""
        return self.facts[0].sparse

    @property
    def density(self) -> float:
        """The share of entries that are stored."""
        return sum(partition.stored for partition in self.facts) / max(1, self.shape[0] * self.shape[1])

    def __repr__(self) -> str:
        # Not the number of rows, which may be private.
        return f"{type(self).__name__}({len(self.facts)} partitions, {self.facts[0].dim} columns)"


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class DaskRows(_Partitioned):
    """Checked partitions on a cluster."""

    client: Any
    futures: tuple[Any, ...]  # They hold the partitions.
    facts: tuple[PartitionFacts, ...]  # Of each.
    workers: frozenset[str]  # Those whose versions were checked.
    counts_people: bool = False
    gaps: bool = False

    def blocks(self, size: int) -> NoReturn:
        """Always a `ValueError`: rows stay on the cluster."""
        refuse_to_copy("on a Dask cluster")

    def one_by_one(self) -> Iterator[Any]:
        """The rows themselves, one partition after the other, copied here: for a stream, which has its rows in hand anyway."""
        for future in self.futures:
            yield self._answers([self._submit(there.values_of, future)])[0]

    @_words_for_the_cluster()
    def total(self, work: RowSum[_Sums], *, progress: Progress | None = None) -> _Sums:
        """`work` over all partitions, in their order. A worker that dies costs only time."""
        # A task and not data that is sent out: what a lost worker had of it can be made again.
        described = self.client.submit(_same, work, pure=False)
        level = [
            self._submit(there.summed, described, future, partition.digest, number)
            for number, (future, partition) in enumerate(zip(self.futures, self.facts, strict=True))
        ]
        watched = dict(zip(level, (partition.count for partition in self.facts), strict=True)) if progress is not None else {}
        while len(level) > 1:
            groups = [level[at : at + _FAN_IN] for at in range(0, len(level), _FAN_IN)]
            level = [self._submit(there.joined, described, group) for group in groups]

        def look() -> None:
            for future in [task for task in watched if task.done()]:
                # Not held any longer: the scheduler keeps it until it was joined.
                count = watched.pop(future)
                if progress is not None:
                    progress(count)

        sums: _Sums = self._answers(level, look)[0]
        # Some tasks may have ended after the last look.
        look()
        # A worker may have joined since the rows were read. What it added up counts only if it runs the same versions.
        if not self.workers.issuperset(self.client.nthreads()):
            _agreed(self.client)
        return sums

    @_words_for_the_cluster()
    def by_person(self, person: Any) -> "DaskRows":
        """Weighted by the people whom `person` names: a Dask array or series in the same partitions, or an id for each row."""
        if not DASK.takes(person):
            ends = np.cumsum([partition.count for partition in self.facts])
            weights = np.split(person_weights(person, self.shape[0]), ends[:-1])
            return self._of([self._submit(Partition.weighted, *each) for each in zip(self.futures, weights, strict=True)])
        parts = np.ravel(person.to_delayed()).tolist()
        require(len(parts) == len(self.futures), "person must be in the same partitions as the rows")
        ids = self.client.compute(parts)
        held = [self._submit(there.named_by, *each) for each in zip(self.futures, ids, strict=True)]
        return replace(self, futures=tuple(held)).weighed()

    def weighed(self) -> "DaskRows":
        """Weighted by the people whom the partitions know, counted over all partitions: on the workers, in tables of digests."""
        buckets, places = min(_BUCKETS, len(self.futures)), range(len(self.futures))
        answers = [
            self._submit(there.merged, [self._submit(there.tallied, future, at, buckets) for future in self.futures])
            for at in range(buckets)
        ]
        return self._of([self._submit(there.weighed, self.futures[at], answers, at) for at in places])

    def _of(self, weighted: Sequence[Any]) -> "DaskRows":
        facts = self._answers([self._submit(there.facts_of, future) for future in weighted])
        return replace(self, futures=tuple(weighted), facts=tuple(facts), counts_people=True)

    def _submit(self, act: Callable[..., Any], *args: Any) -> Any:
        # If calls were pure, Dask would hash the arguments of every task to find an equal one.
        return self.client.submit(there.answered, act, *args, pure=False)

    def _answers(self, futures: Sequence[Any], look: Callable[[], None] | None = None) -> list[Any]:
        return answers_of(self.client, futures, look)


def _same(work: Any) -> Any:
    return work


def answers_of(client: Any, futures: Sequence[Any], look: Callable[[], None] | None = None) -> list[Any]:
    """What tasks return, once all are done. A cluster without workers, or a task that no worker survives, is `EngineLost`."""
    alone = None
    while True:
        try:
            distributed.wait(futures, timeout=_LOOK)
            break
        except (TimeoutError, distributed.TimeoutError):
            if look is not None:
                look()
        except distributed.client.FutureCancelledError:
            raise _lost("the cluster no longer has the rows") from None
        except ValueError:
            # The scheduler did not come back, and Dask has closed the client of this process: it says that there is none.
            raise _lost("the cluster does not answer any more") from None
        alone = None if _workers(client) else alone or monotonic()
        if alone is not None and monotonic() - alone > _PATIENCE:
            # Abandoned tasks must not begin when a worker comes back.
            client.cancel(list(futures), force=True)
            raise _lost("the cluster has lost all its workers")
    for future in futures:
        if future.status != "finished":
            raise _failed(future)
    return [answer_of(answer) for answer in client.gather(list(futures))]


def _workers(client: Any) -> bool:
    try:
        return bool(client.nthreads())
    except (OSError, TimeoutError, ValueError):
        # The scheduler itself is gone.
        return False


def _failed(future: Any) -> Exception:
    """The error of a task that did not return: its text is not shown, because it may quote the data."""
    error = future.exception() if future.status == "error" else None
    kind = type(error).__name__
    if error is None or isinstance(error, distributed.client.FutureCancelledError):
        return _lost("the cluster no longer has the rows")
    if isinstance(error, distributed.KilledWorker):
        return _lost("several workers died at the same partition, most likely because memory ran out. Use smaller partitions")
    return ValueError(
        f"a partition of the table could not be computed ({kind}). Its message is not shown, because it may quote the data. "
        "Compute that partition by itself, where the data is, to see it"
    )


def _lost(what: str) -> EngineLost:
    return EngineLost(f"{what}. Nothing of this sum was released. Fit again once the cluster is up")


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class PartitionRows(_Partitioned):
    """The partitions of a Dask collection where there is no cluster: one after the other in this process, again for each pass.

    Each is checked when it comes, and must have the digest of the first time. With `people`, the number of rows of each person in
    all partitions, rows are weighted so that a person counts once.
    """

    parts: tuple[Any, ...]
    plan: PartitionPlan
    facts: tuple[PartitionFacts, ...]
    people: Mapping[bytes, int] | None = None

    @classmethod
    def of(cls, parts: Sequence[Any], plan: PartitionPlan) -> "PartitionRows":
        """One pass over the partitions, which only checks them."""
        bare = cls(parts=tuple(parts), plan=plan, facts=())
        return replace(bare, facts=tuple(there.facts_of(bare._computed(number)) for number in range(len(parts))))

    @property
    def counts_people(self) -> bool:
        return self.people is not None

    @property
    def unweighted(self) -> bool:
        """Whether every row counts as one, so that they can be counted without reading them."""
        return self.people is None

    def blocks(self, size: int) -> Iterator[Block]:
        """The rows of each partition, weighted if people are known."""
        for number, facts in enumerate(self.facts):
            partition = self._computed(number)
            require(partition.digest == facts.digest, there.changed(number))
            rows = partition.rows if self.people is None else WeightedRows(partition.rows, self._weights(partition))
            yield from rows.blocks(size)

    def weighed(self) -> "PartitionRows":
        """Weighted by the people whom the partitions know, counted over all partitions."""
        counts, kinds = Counter[bytes](), set[str]()
        for number in range(len(self.parts)):
            people = self._computed(number).people
            assert people is not None
            kinds |= {people.kind} if people.kind else set()
            counts.update(dict(zip(people.digests.tolist(), np.bincount(people.codes).tolist(), strict=True)))
        require(len(kinds) <= 1, there.ONE_TYPE)
        return replace(self, people=counts)

    def _weights(self, partition: Partition) -> Array:
        assert partition.people is not None and self.people is not None
        each = np.array([1.0 / self.people[digest] for digest in partition.people.digests.tolist()])
        return np.asarray(each[partition.people.codes])

    def _computed(self, number: int) -> Partition:
        # Errors of a partition quote its values, as those of a worker do.
        part = answer_of(attempted(lambda: self.parts[number].compute(scheduler="synchronous")))
        return answer_of(attempted(self.plan.partition, part, number))


def array_rows(X: Any, *, convert: Callable[[Any], Any] | None = None, gaps: bool = False) -> DaskRows | PartitionRows:
    """The rows of a Dask array, (n, d), whose chunks are numpy arrays or scipy sparse matrices."""
    require(X.ndim == 2, f"a Dask array must have two dimensions, got {X.ndim}")
    require(
        not np.isnan(np.array(X.shape, dtype=float)).any(),
        "the Dask array has chunks of unknown size. Call its compute_chunk_sizes() first",
    )
    # A row must be whole on one worker, because its norm decides how far it is clipped.
    whole = X if len(X.chunks[1]) == 1 else X.rechunk({1: -1})
    return _opened(np.ravel(whole.to_delayed()).tolist(), ArrayPlan(int(X.shape[1]), convert, gaps))


def frame_rows(
    X: Any, choice: ColumnChoice, *, gaps: bool = False, missing: MissingMarks = NO_MARKS
) -> tuple[NamedRows, ColumnLayout]:
    """The chosen columns of a Dask dataframe, weighted by person if the choice names a column, and their layout."""
    require(X.ndim == 2, "a Dask series is one column: pass a dataframe or an array")
    names = tuple(X.columns)
    require(all(isinstance(name, str) for name in names), "a Dask dataframe must have text as column names")
    layout = choice.laid_out("X", names, _kinds(X))
    if type(X.expr).__name__.startswith("ReadParquet"):
        # The files are then read by column. Other frames are taken whole, so that each partition's own columns are seen.
        wanted = {*layout.read, layout.person}
        X = X[[name for name in names if name in wanted]]
    rows = _opened(X.to_delayed(), FramePlan(names=tuple(X.columns), layout=layout, gaps=gaps, missing=missing))
    rows = rows if layout.person is None else rows.weighed()
    return NamedRows(rows, layout.names, layout.person), layout


def table_rows(table: SharedTable, choice: ColumnChoice, *, gaps: bool = False) -> NamedRows:
    """The chosen columns of files that the workers can read by the same paths."""
    return frame_rows(table.dask_frame(), choice, gaps=gaps, missing=table.missing)[0]


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect this process to the cluster at `address`, such as tcp://scheduler:8786, for as long as the block runs."""
    try:
        # Dask warns of other versions and continues. We refuse them, before anything is read.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            client = distributed.Client(address, timeout=_CONNECT)
    except (OSError, TimeoutError, ValueError) as error:
        raise EngineLost(
            f"no Dask scheduler answers at {address} ({type(error).__name__}). Check the address, and that the scheduler runs "
            "the same version of Dask. Nothing was spent"
        ) from None
    with client:
        yield


def _kinds(X: Any) -> dict[str, str]:
    """The declared kinds of the columns. A column of objects declares nothing and is taken for text."""
    import pyarrow as pa

    kinds = kinds_of(pa.Schema.from_pandas(X._meta, preserve_index=False))
    return {name: "text" if kind == "nothing" else kind for name, kind in kinds.items()}


def _opened(parts: Sequence[Any], plan: PartitionPlan) -> DaskRows | PartitionRows:
    """Check every partition: on the cluster, and hold what was checked there, or in this process where there is no cluster."""
    from dask.delayed import delayed

    require(len(parts) > 0, "the Dask collection has no partitions")
    try:
        client = distributed.default_client()
    except ValueError:
        # This process is the client of no cluster.
        rows = PartitionRows.of(parts, plan)
        require(len({(piece.dim, piece.sparse) for piece in rows.facts}) == 1, _ALIKE)
        return rows
    act = delayed(there.answered, pure=False, traverse=False)
    tasks = [act(plan.partition, part, number) for number, part in enumerate(parts)]
    require(not client.asynchronous, "an asynchronous Dask client cannot be used: make one without asynchronous=True")
    with _words_for_the_cluster():
        workers = _agreed(client)
        futures = client.compute(tasks)
        facts = answers_of(client, [client.submit(there.answered, there.facts_of, piece, pure=False) for piece in futures])
    require(len({(piece.dim, piece.sparse) for piece in facts}) == 1, _ALIKE)
    return DaskRows(client=client, futures=tuple(futures), facts=tuple(facts), workers=workers, gaps=plan.gaps)


def _agreed(client: Any) -> frozenset[str]:
    """The workers, which run the same versions as this process and keep quiet about failed tasks."""
    since = monotonic()
    while True:
        if _workers(client):
            try:
                workers = frozenset(client.nthreads())
                require_versions(client)
                client.register_plugin(QuietWorkers())
                return workers
            except OSError:
                # A worker died while it was asked. The others are asked again.
                pass
        if monotonic() - since > _PATIENCE:
            raise _lost("the cluster has no workers")
        sleep(_LOOK)


def require_versions(client: Any) -> None:
    """Refuse a cluster whose programs differ from ours: what a worker adds up must be what we add up."""
    report = client.get_versions()
    mine = report["client"]["packages"]
    workers = {f"worker {name}": its for name, its in report["workers"].items()}
    for peer, its in {"scheduler": report["scheduler"], **workers}.items():
        for name in ("dask", "distributed", "numpy"):
            theirs = (its or {}).get("packages", {}).get(name)
            require(
                theirs == mine[name],
                f"the cluster's {peer} has {name} {theirs}, and this process has {mine[name]}. Install the same version",
            )
    try:
        versions = set(client.run(_version).values())
    except OSError:
        # A worker that died, which says nothing of what is installed there.
        raise
    except Exception as error:
        raise ValueError(f"the workers cannot run Eigenveil ({type(error).__name__}). Install it on each of them") from None
    require(
        versions == {_version()},
        f"workers have Eigenveil {', '.join(sorted(versions))}, and this process has {_version()}. Install the same version",
    )


def _version() -> str:
    # Found by name: the package stands above this module and must not be imported here.
    return str(import_module("eigenveil").__version__)
