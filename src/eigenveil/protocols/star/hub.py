"""`Hub`: asks, gathers, advances. Quorum and deadline are its business; where noise stands at the hub, so is the noise."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, final

from eigenveil.errors import PeerError, ProtocolError, QuorumLost, require
from eigenveil.linalg import Subspace, sines
from eigenveil.privacy import Mechanism
from eigenveil.protocols.messages import Done, Message
from eigenveil.protocols.party import Party, Wait
from eigenveil.protocols.star.exchange import Exchange, NewExchange
from eigenveil.protocols.star.gathering import Gathering, reachable
from eigenveil.protocols.star.participation import Sampling
from eigenveil.tasks import Question, Task

__all__ = ["Hub", "HubRound", "Terms"]

Result = TypeVar("Result")


@final
@dataclass(frozen=True, slots=True)
class HubRound:
    """What happened in one round, in public terms. `movement` is the largest sine between the estimates before and after it,
    `spread` how far apart the sites were; None where there was nothing to measure. `restarted`: sites that had
    been counted were gone, and the run began again without them."""

    number: int
    stage: str
    step: int
    answered: tuple[str, ...]
    missing: tuple[str, ...]
    movement: float | None
    spread: float | None
    restarted: bool = False


@final
@dataclass(frozen=True, slots=True)
class Terms:
    """How a hub deals with those who do not answer: it waits `deadline` seconds, asks again up to `retries` times, and goes on
    with those who did answer while they are at least `quorum` (None: all who are asked)."""

    quorum: int | None = None
    deadline: float = 30.0
    retries: int = 4

    def __post_init__(self) -> None:
        require(self.quorum is None or self.quorum >= 1, f"quorum must be at least 1, got {self.quorum}")
        require(self.deadline > 0, f"deadline must be positive, got {self.deadline}")
        require(self.retries >= 0, f"retries must not be negative, got {self.retries}")


@final
class Hub(Party, Generic[Result]):
    """Carries `task` to its end over `below`: each one who is asked directly, with the sites behind it. Changes in place.

    In a star each site stands for itself; in a tree the ones below are nodes. Late, foreign, repeated and malformed messages
    are a `PeerError` and changes nothing. `person_sites` is at how many sites one person's rows may be. `exchanges` makes
    rounds of more than question and answer, as where sums are masked. `asking` may put a question in the place of another that
    is the same but for rounding, as it was asked before the hub was stopped.
    """

    def __init__(
        self,
        task: Task[Any, Any, Result],
        below: Mapping[str, tuple[str, ...]],
        mechanism: Mechanism,
        *,
        terms: Terms,
        name: str = "hub",
        sampling: Sampling | None = None,
        person_sites: int = 1,
        watch: Callable[[HubRound], None] | None = None,
        exchanges: NewExchange | None = None,
        asking: Callable[[Question], Question] | None = None,
    ) -> None:
        require(len(below) > 0, "a hub needs at least one site")
        self._task, self._below, self._mechanism, self._name = task, dict(below), mechanism, name
        self._terms, self._sampling, self._person_sites, self._watch = terms, sampling, person_sites, watch
        self._exchanges, self._asking = exchanges, asking
        self._sites = tuple(site for behind in self._below.values() for site in behind)
        self._state = task.start()
        self._gone: set[str] = set()
        self._counted = False
        self._round, self._waits, self._tries = -1, 0, 0
        self._now: Exchange | None = None
        self._draws: Sampling | None = None
        self._drawn: dict[str, float] = {}
        self._stalled = False
        self._estimate: Subspace | None = None
        self.rounds: list[HubRound] = []
        # How often one part counted at most in the last round, and the root of the sum of squares over all.
        self.weights = (1.0, 1.0)
        self.result: Result | None = None

    @property
    def name(self) -> str:
        """Who this is."""
        return self._name

    @property
    def state(self) -> Any:
        """The public transcript so far."""
        return self._state

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that count."""
        return tuple(site for site in self._sites if site not in self._gone)

    @property
    def paid_in_vain(self) -> bool:
        """Whether the round that stopped has to be paid for again."""
        return self._stalled and self._now is not None and self._now.failed

    def start(self) -> list[Message]:
        """The first question."""
        return self._open()

    def resume(self, *, anew: bool = False) -> list[Message]:
        """Ask the question of the round that lacked a quorum again: those who answered it send the same numbers. A round of
        several steps goes on in the step where it stopped, if it can.

        `anew` begins the task again, because rows that were counted before have become others.
        """
        if not self._stalled:
            raise ProtocolError("there is no round to resume")
        if anew:
            fresh = self._task.without(self._state)
            if fresh is None:
                raise ProtocolError("rows that were counted have become others, and this task cannot begin again")
            self._state, self._counted = fresh, False
        elif self._now is not None and self._now.reopen():
            return self._step(self._now, again=True)
        # The question is the one that was asked, to the last digit: those who have answered it are not charged again.
        return self._open(None if anew or self._now is None else self._now.question)

    @property
    def waiting(self) -> Wait | None:
        """For the answers of this round."""
        if self._now is None or self._stalled:
            return None
        return Wait(self._waits, self._terms.deadline)

    def receive(self, message: Message) -> list[Message]:
        """Take one part; the last one closes the round."""
        if message.sender not in self._below:
            raise PeerError(message.sender, "is not part of this study")
        if self._now is None:
            raise PeerError(message.sender, "answered when no round was open")
        if self._stalled:
            raise PeerError(message.sender, f"answered round {message.body.round} after it had lost its quorum")
        self._now.receive(message.sender, message.body)
        return self._close(self._now) if self._now.complete else []

    def rejoined(self, other: str) -> list[Message]:
        """The answer, or what is awaited from this one."""
        if self.result is not None:
            return [message for message in self._told() if message.receiver == other]
        if self._now is None or self._stalled:
            return []
        return [message for message in self._now.asks(self._name, again=True) if message.receiver == other]

    def timeout(self) -> list[Message]:
        """Ask those who are silent once more, or go on without them."""
        if self._now is None or self._stalled:
            return []
        self._waits += 1
        if self._tries < self._terms.retries:
            self._tries += 1
            return self._now.asks(self._name, again=True)
        return self._close(self._now)

    def _open(self, question: Question | None = None) -> list[Message]:
        """Ask the question that the state has come to, unless it is given."""
        question = self._task.ask(self._state) if question is None else question
        if self._asking is not None:
            question = self._asking(question)
        self._round, self._waits, self._tries, self._stalled = self._round + 1, self._waits + 1, 0, False
        asked, weights = reachable(self._below, self._gone), None
        self._draws = self._sampling if self._task.sampled(question) else None
        if self._draws is not None:
            self._drawn = self._draws.draw(asked)
            weights = self._draws.weights(self._drawn)
            asked = list(self._drawn)
        if self._exchanges is not None:
            self._now = self._exchanges(self._round, question, asked, self._gone)
        else:
            self._now = Gathering(
                self._task, self._round, question, asked, below=self._below, gone=self._gone, weights=weights
            )
        return self._now.asks(self._name)

    def _step(self, now: Exchange, *, again: bool = False) -> list[Message]:
        """Wait for the answers to another step of this round."""
        self._waits, self._tries, self._stalled = self._waits + 1, 0, False
        messages = now.asks(self._name, again=again)
        return messages if messages else self._close(now)

    def _close(self, now: Exchange) -> list[Message]:
        """End the round: advance the state, or begin again without those who are gone, or say that too few are left."""
        self._require_quorum(now, *now.sites())
        if self._goes_on(now):
            return self._step(now)
        answered, missing = now.sites()
        fresh = None
        if self._draws is None and missing:
            self._gone |= set(missing)
            fresh = self._task.without(self._state) if self._counted else None
        if fresh is not None:
            self._state = fresh
        else:
            if self._draws is None:
                self._state = self._task.counted(self._state, answered)
            self._advance(now)
        self._counted = fresh is None
        self._note(now, answered, missing, restarted=fresh is not None)
        self.result = self._task.result(self._state)
        if self.result is None:
            return self._open()
        self._now = None
        return self._told()

    def _told(self) -> list[Message]:
        """The answer to everybody."""
        assert self.result is not None
        done = Done(self._round, self._task.answer(self.result))
        return [Message(self._name, name, done) for name in self._below]

    def _goes_on(self, now: Exchange) -> bool:
        try:
            return now.onward()
        except ProtocolError:
            self._stalled = True
            raise

    def _require_quorum(self, now: Exchange, answered: tuple[str, ...], missing: tuple[str, ...]) -> None:
        quorum = len(self._sites) if self._terms.quorum is None else self._terms.quorum
        if self._draws is not None:
            # Those who were not drawn cannot be missed.
            quorum = min(quorum, len(answered) + len(missing))
        if len(answered) >= quorum:
            return
        self._stalled = True
        stage = f"{now.question.stage or 'step'} {now.question.step + 1}" + (f", {now.name}" if now.name else "")
        raise QuorumLost(missing, round_=now.round, stage=stage, answered=len(answered), quorum=quorum)

    def _advance(self, now: Exchange) -> None:
        total, stretch = now.total(), float(self._person_sites)
        self.weights = (1.0, math.sqrt(len(now.sites()[0])))
        if total is None:
            raise ProtocolError(f"nobody gave a part in round {now.round}")
        if self._draws is not None:
            # Where sites are drawn, each stands for itself.
            gave, weights = now.sites()[0], self._draws.weights(self._drawn)
            factor = self._draws.factor(self._drawn, gave, reachable(self._below, self._gone))
            total = self._task.weighted(total, factor)
            counts = [factor * weights[name] for name in gave]
            self.weights = (max(counts), math.hypot(*counts))
            stretch *= self.weights[0]
        self._state = self._task.advance(self._state, total, self._mechanism, stretch=stretch)

    def _note(self, now: Exchange, answered: Iterable[str], missing: tuple[str, ...], *, restarted: bool) -> None:
        before, self._estimate = self._estimate, self._task.estimate(self._state)
        moved = None
        if before is None or self._estimate is None or self._estimate is before:
            pass
        elif before.rank and self._estimate.rank:
            moved = float(sines(before.basis, self._estimate.basis)[0])
        spread = None if restarted else self._task.spread(self._state)
        question = now.question
        self.rounds.append(
            HubRound(now.round, question.stage, question.step, tuple(answered), missing, moved, spread, restarted)
        )
        if self._watch is not None:
            self._watch(self.rounds[-1])
