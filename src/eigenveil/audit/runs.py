"""Runs cases many times, in several processes, and judges them. The confidence is that of all verdicts together."""

import hashlib
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context
from typing import final

import numpy as np

from eigenveil.audit.case import Case, Trial
from eigenveil.audit.verdict import Verdict, judge
from eigenveil.core.accounting import Budget
from eigenveil.errors import require

__all__ = ["Progress", "audit"]

# A worker returns after at most this many runs, and at least this often, so that progress shows and Ctrl-C is heard.
_LONGEST, _CHUNKS = 20, 16


@final
@dataclass(frozen=True, slots=True)
class Progress:
    """How far an audit is: the runs done and wanted of a case."""

    case: str
    done: int
    runs: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """Runs number `first` to `last` of a case, as a worker gets them."""

    case: str
    budget: Budget
    seed: int | None
    first: int
    last: int


def audit(
    cases: Sequence[Case],
    *,
    quick: bool = True,
    confidence: float = 0.99,
    budget: Budget | None = None,
    runs: int | None = None,
    seed: int | None = None,
    jobs: int | None = None,
    watch: Callable[[Progress], None] | None = None,
    judged: Callable[[Verdict], None] | None = None,
) -> tuple[Verdict, ...]:
    """Attack each of `cases` and say which claims are refuted.

    With probability `confidence` no true claim is refuted: the cases share the rest. Each case has its own budget and number of
    runs, unless `budget` or `runs` replaces them. With a `seed` the audit can be repeated. Without one, canaries and noise come
    from the operating system, as in real fits. Progress goes to `watch`, each verdict to `judged` as it comes.

    >>> from eigenveil.audit import CASES
    >>> verdict, = audit([CASES["curator/covariance"]], runs=40, seed=1, jobs=1)
    >>> verdict.words
    'not refuted'
    """
    require(len(cases) >= 1, "name at least one case to audit")
    require(0 < confidence < 1, f"confidence must lie in (0, 1), got {confidence}")
    require(runs is None or runs >= 2, f"runs must be at least 2, got {runs}")
    require(jobs is None or jobs >= 1, f"jobs must be at least 1, got {jobs}")
    # Bonferroni: each case may refute a true claim with this probability, all together with 1 - confidence.
    level = (1 - confidence) / len(cases)
    require(len({case.name for case in cases}) == len(cases), "name each case once")
    workers = min(jobs or os.cpu_count() or 1, 8)
    with _workers(workers, {case.name: case for case in cases}) as run:
        verdicts = []
        for case in cases:
            verdict = _audited(case, run, quick, confidence, level, budget or case.budget, runs, seed, watch)
            verdicts.append(verdict)
            if judged is not None:
                judged(verdict)
    return tuple(verdicts)


Run = Callable[[Sequence[_Chunk]], Iterator[tuple[Trial, ...]]]


def _audited(
    case: Case,
    run: Run,
    quick: bool,
    confidence: float,
    level: float,
    budget: Budget,
    runs: int | None,
    seed: int | None,
    watch: Callable[[Progress], None] | None,
) -> Verdict:
    begun = time.perf_counter()
    wanted = runs if runs is not None else (case.quick if quick else case.full)
    # The theorem is about one run; more would not be used.
    if case.tests == ("one-run",):
        wanted = 1
    chunks = min(wanted, max(_CHUNKS, -(-wanted // _LONGEST)))
    ends = np.linspace(0, wanted, num=chunks + 1).astype(int)
    trials: list[Trial] = []
    claim = case.claim(budget)
    try:
        for some in run(
            [_Chunk(case=case.name, budget=budget, seed=seed, first=int(a), last=int(b)) for a, b in pairwise(ends)]
        ):
            trials.extend(some)
            if watch is not None:
                watch(Progress(case.name, len(trials), wanted))
        seconds = time.perf_counter() - begun
        return judge(case, claim, tuple(trials), level=level, confidence=confidence, seconds=seconds)
    except Exception as error:
        # An error in one case must not cost the others their verdicts. Tables are synthetic, so the message reveals nobody.
        failed, seconds = f"{type(error).__name__}: {error}", time.perf_counter() - begun
        return Verdict(
            case=case.name,
            kind=case.kind,
            about=case.about,
            canary=case.canary,
            claim=claim,
            findings=(),
            confidence=confidence,
            seconds=seconds,
            failed=failed,
        )


@contextmanager
def _workers(count: int, cases: Mapping[str, Case]) -> Iterator[Run]:
    """A function that does the runs, in this process or in several others, which know the cases by their names."""
    from eigenveil.audit.cases import CASES

    # A case of the caller's own cannot be sent to another process: it is known there by its name only.
    if count == 1 or any(CASES.get(name) is not case for name, case in cases.items()):
        yield lambda chunks: (_run(cases[chunk.case], chunk) for chunk in chunks)
        return
    # Spawn, not fork: threads do not survive a fork, and the locks they held would stay locked.
    pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_begin)
    try:
        yield lambda chunks: pool.map(_run_by_name, chunks)
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    # The parent process hears Ctrl-C and ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")


def _run_by_name(chunk: _Chunk) -> tuple[Trial, ...]:
    from eigenveil.audit.cases import CASES

    return _run(CASES[chunk.case], chunk)


def _run(case: Case, chunk: _Chunk) -> tuple[Trial, ...]:
    with warnings.catch_warnings():
        # Warnings of seeded noise and of small tables are about fits that nobody will use.
        warnings.simplefilter("ignore")
        return tuple(_trial(case, chunk, number) for number in range(chunk.first, chunk.last))


def _trial(case: Case, chunk: _Chunk, number: int) -> Trial:
    """One run. Its canaries and noise are its own; with a seed they are the same every time and in every order."""
    if chunk.seed is None:
        return case.trial(chunk.budget, np.random.default_rng(), None)
    # By the name and number of the run, so that the result depends neither on the number of workers nor on the order.
    words = hashlib.sha256(f"eigenveil audit {chunk.seed} {case.name} {number}".encode()).digest()
    return case.trial(
        chunk.budget,
        np.random.default_rng(int.from_bytes(words[:16], "big")),
        int.from_bytes(words[16:20], "big") >> 1,
    )
