"""`Verdict`: what an audit of one case found, in numbers and in words: "refuted" or "not refuted", never "proved"."""

import hashlib
import math
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from multiprocessing import get_context
from typing import Any, Final, Literal, final

import numpy as np
from numpy.typing import NDArray

from eigenveil.audit.case import (
    Case,
    Claim,
    Test,
    Trial,
    epsilon_at_least,
    epsilon_in_one_run,
    mean_at_least,
    mu_from_accuracy,
    noise_at_most,
    rate_at_least,
)
from eigenveil.core.accounting import Budget
from eigenveil.errors import require
from eigenveil.linalg import Array

__all__ = ["Finding", "Progress", "Verdict", "audit", "judge"]

# The share of runs from which a threshold is learnt. They are not used for the test, or it would be biased.
_PILOT = 0.2

# Rounding may move a bound by this much: an exact tie with the claim is not a violation.
_ROUNDING = 1e-9


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One hypothesis and what the runs say of it."""

    test: Test
    hypothesis: str
    unit: Literal["mu", "epsilon"]
    claimed: float
    bound: float  # The least that explains the runs.
    level: float  # The test refutes a true claim with at most this probability.
    runs: int
    seen: str
    # The bound if every guess had been right. A test that reaches no further than the claim cannot refute it: it needs more runs.
    reach: float = math.inf

    @property
    def refuted(self) -> bool:
        """Whether the bound exceeds the claim."""
        return self.bound > self.claimed * (1 + _ROUNDING)

    def __str__(self) -> str:
        verdict = "refuted" if self.refuted else "not refuted"
        return f"{verdict}: {self.hypothesis}; {self.unit} is at least {self.bound:.3g} ({self.seen})"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of one case."""

    case: str
    kind: Literal["shipped", "specimen"]
    about: str
    canary: str
    claim: Claim
    findings: tuple[Finding, ...]
    confidence: float
    seconds: float
    failed: str = ""  # Why there are no findings.

    @classmethod
    def on(cls, case: Case, claim: Claim, findings: tuple[Finding, ...], **facts: Any) -> "Verdict":
        """The verdict on a case."""
        return cls(case=case.name, kind=case.kind, about=case.about, canary=case.canary, claim=claim, findings=findings, **facts)

    @property
    def refuted(self) -> bool:
        """Whether any of its hypotheses is refuted."""
        return any(finding.refuted for finding in self.findings)

    @property
    def matches_expectation(self) -> bool:
        """Whether a shipped case is not refuted, or a specimen is."""
        return not self.failed and self.refuted == (self.kind == "specimen")

    @property
    def words(self) -> str:
        """The verdict in words."""
        return "not audited" if self.failed else "refuted" if self.refuted else "not refuted"

    def to_json(self) -> dict[str, Any]:
        """Plain values, for programs."""
        plain = asdict(self)
        for finding, facts in zip(self.findings, plain["findings"], strict=True):
            # The bound is infinite where noise was zero. JSON has no infinity.
            facts |= {name: facts[name] if math.isfinite(facts[name]) else None for name in ("bound", "reach")}
            facts["refuted"] = finding.refuted
        return plain | {"verdict": self.words, "matches_expectation": self.matches_expectation}


def judge(case: Case, claim: Claim, trials: tuple[Trial, ...], *, level: float, confidence: float, seconds: float) -> Verdict:
    """What `trials` of a case say of its claim. The tests share `level`, the chance to refute a true claim.

    The `confidence` is that of the whole audit, of which this case may be one of many.
    """
    require(len(trials) >= 1, f"{case.name}: at least one run is needed")
    # By the union bound: tests of the same trials are not independent.
    each = level / len(case.tests)
    findings = tuple(_FINDERS[test](case, claim, trials, each) for test in case.tests)
    return Verdict.on(case, claim, findings, confidence=confidence, seconds=seconds)


def _curve(case: Case, claim: Claim, trials: tuple[Trial, ...], level: float) -> Finding:
    threshold, rest = _threshold(case, trials)
    # One number for each run: canaries of one run may depend on each other.
    rates = np.array([np.mean((trial.scores > threshold) == trial.present) for trial in rest])
    canaries = max(len(trial.scores) for trial in rest)

    def least(rates: Array) -> float:
        # With one canary a rate is a single guess, and the exact binomial bound is tighter than the betting bound.
        if canaries == 1:
            return mu_from_accuracy(rate_at_least(int(rates.sum()), len(rates), level=level))
        return mu_from_accuracy(mean_at_least(rates, level=level))

    return Finding(
        test="curve",
        hypothesis=f"guesses are right at most as often as mu = {claim.mu:.3g} allows",
        unit="mu",
        claimed=claim.mu,
        bound=least(rates),
        level=level,
        runs=len(rest),
        seen=f"{rates.mean():.1%} of {len(rest)}{'' if canaries == 1 else f' x {canaries}'} guesses right",
        reach=least(np.ones(len(rates))),
    )


def _rates(case: Case, claim: Claim, trials: tuple[Trial, ...], level: float) -> Finding:
    threshold, rest = _threshold(case, trials, delta=claim.delta)
    # One canary of each run, picked by the run's number: those of one run need not be independent.
    picked = [(trial, number % len(trial.scores)) for number, trial in enumerate(rest)]
    alarm = np.array([trial.scores[index] > threshold for trial, index in picked])
    truth = np.array([trial.present[index] for trial, index in picked])
    alarms, false = int((alarm & truth).sum()), int((alarm & ~truth).sum())
    present, absent = int(truth.sum()), int((~truth).sum())
    bound = reach = 0.0
    if present and absent:
        bound = epsilon_at_least(alarms, present, false, absent, delta=claim.delta, level=level)
        reach = epsilon_at_least(present, present, 0, absent, delta=claim.delta, level=level)
    return Finding(
        test="rates",
        hypothesis=f"right alarms are at most e^{claim.epsilon:g} times as frequent as false ones, plus {claim.delta:g}",
        unit="epsilon",
        claimed=claim.epsilon,
        bound=bound,
        level=level,
        runs=len(rest),
        seen=f"{alarms} of {present} alarms right where the canary was, {false} of {absent} false",
        reach=reach,
    )


def _one_run(case: Case, claim: Claim, trials: tuple[Trial, ...], level: float) -> Finding:
    # Only the first run, however many there are: the theorem is about one run.
    trial = trials[0]
    canaries = len(trial.scores)
    # Guess only about the two extreme thirds: the bound allows abstaining, and middling scores tell little.
    order = np.argsort(trial.scores, kind="stable")
    guessed = max(1, canaries // 3)
    right = int((~trial.present[order[:guessed]]).sum() + trial.present[order[-guessed:]].sum())
    guesses = 2 * guessed
    return Finding(
        test="one-run",
        hypothesis=f"many guesses from one run are right as often as ({claim.epsilon:g}, {claim.delta:g}) allows",
        unit="epsilon",
        claimed=claim.epsilon,
        bound=epsilon_in_one_run(right, guesses, canaries, delta=claim.delta, level=level),
        level=level,
        runs=1,
        seen=f"{right} of {guesses} guesses right about {canaries} canaries in one run",
        reach=epsilon_in_one_run(guesses, guesses, canaries, delta=claim.delta, level=level),
    )


def _noise(case: Case, claim: Claim, trials: tuple[Trial, ...], level: float) -> Finding:
    releases = _by_release(trials)
    require(len(releases) >= 1, f"{case.name}: no trial reports noise")
    # For each release the largest deviation that explains it, and of these the smallest. The releases share the level.
    largest, quietest = min(
        ((noise_at_most(float(release @ release), len(release), level=level / len(releases)), release) for release in releases),
        key=lambda pair: pair[0],
    )
    # Noise as large as was charged is too small for a canary that moves the releases by more than was charged.
    moved = max(claim.mu, *(trial.moved for trial in trials))
    return Finding(
        test="noise",
        hypothesis="the noise is as large as was charged, and as much was charged as a canary moves",
        unit="mu",
        claimed=claim.mu,
        bound=math.inf if largest == 0 else moved / largest,
        level=level,
        runs=len(trials),
        seen=f"{math.sqrt(float(np.mean(quietest**2))):.3g} times what was charged, in {len(quietest)} numbers",
    )


def _by_release(trials: tuple[Trial, ...]) -> list[Array]:
    """The noise of each release, from all trials together."""
    releases: dict[int, list[Array]] = {}
    for trial in trials:
        ends = np.cumsum(trial.parts or (len(trial.noise),))
        for index, numbers in enumerate(np.split(trial.noise, ends[:-1])):
            if len(numbers) > 0:
                releases.setdefault(index, []).append(numbers)
    return [np.concatenate(releases[index]) for index in sorted(releases)]


_FINDERS = {"curve": _curve, "rates": _rates, "one-run": _one_run, "noise": _noise}


def _threshold(case: Case, trials: tuple[Trial, ...], *, delta: float | None = None) -> tuple[float, tuple[Trial, ...]]:
    """The score above which a canary counts as present, learnt from the first runs if the case has none; and the runs left."""
    if case.threshold is not None:
        return case.threshold, trials
    pilot = max(1, math.ceil(_PILOT * len(trials)))
    require(pilot < len(trials), f"{case.name}: {len(trials)} runs are too few to learn a threshold; use more --runs")
    scores = np.concatenate([trial.scores for trial in trials[:pilot]])
    present = np.concatenate([trial.present for trial in trials[:pilot]])
    return _best(scores, present, delta), trials[pilot:]


def _best(scores: Array, present: NDArray[np.bool_], delta: float | None) -> float:
    """The threshold with most right guesses or, given `delta`, the largest bound on epsilon."""
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    # Alarms above the i-th smallest score, for i from none to all.
    right = present.sum() - np.concatenate([[0], np.cumsum(present[order])])
    false = (~present).sum() - np.concatenate([[0], np.cumsum(~present[order])])
    between = np.concatenate([[ordered[0] - 1.0], (ordered[:-1] + ordered[1:]) / 2, [ordered[-1] + 1.0]])
    best = int(np.argmax(right - false))
    if delta is None:
        return float(between[best])
    n_present, away = int(present.sum()), int((~present).sum())
    if n_present == 0 or away == 0:
        return float(np.median(scores))
    # A grid of places is enough, if it has the one with most right guesses: without noise that one separates the two.
    places = np.unique([*np.linspace(0, len(scores), num=min(64, len(scores) + 1)).astype(int), best])
    bounds = [epsilon_at_least(int(right[i]), n_present, int(false[i]), away, delta=delta, level=0.1) for i in places]
    return float(between[places[int(np.argmax(bounds))]])


# A worker returns after at most this many runs, so that progress shows and Ctrl-C is heard.
_MAX_CHUNK: Final = 20
# A case is done in at least this many chunks.
_CHUNKS: Final = 16


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
            begun, claim = time.perf_counter(), case.claim(budget or case.budget)
            wanted = runs if runs is not None else (case.quick if quick else case.full)
            # The theorem is about one run; more would not be used.
            wanted = 1 if case.tests == ("one-run",) else wanted
            trials: list[Trial] = []
            try:
                for some in run(_chunks(case.name, budget or case.budget, seed, wanted)):
                    trials.extend(some)
                    if watch is not None:
                        watch(Progress(case.name, len(trials), wanted))
                seconds = time.perf_counter() - begun
                verdict = judge(case, claim, tuple(trials), level=level, confidence=confidence, seconds=seconds)
            except Exception as error:
                # An error in one case must not cost the others their verdicts. Tables are synthetic, so the message reveals no
                # person.
                failed, seconds = f"{type(error).__name__}: {error}", time.perf_counter() - begun
                verdict = Verdict.on(case, claim, (), confidence=confidence, seconds=seconds, failed=failed)
            verdicts.append(verdict)
            if judged is not None:
                judged(verdict)
    return tuple(verdicts)


Run = Callable[[Sequence[_Chunk]], Iterator[tuple[Trial, ...]]]


def _chunks(case: str, budget: Budget, seed: int | None, runs: int) -> list[_Chunk]:
    count = min(runs, max(_CHUNKS, -(-runs // _MAX_CHUNK)))
    ends = np.linspace(0, runs, num=count + 1).astype(int)
    return [_Chunk(case=case, budget=budget, seed=seed, first=int(a), last=int(b)) for a, b in pairwise(ends)]


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
    digest = hashlib.sha256(f"eigenveil audit {chunk.seed} {case.name} {number}".encode()).digest()
    return case.trial(
        chunk.budget, np.random.default_rng(int.from_bytes(digest[:16], "big")), int.from_bytes(digest[16:20], "big") >> 1
    )
