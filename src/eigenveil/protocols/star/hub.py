"""`Hub`: asks, gathers, advances. It keeps the quorum and the deadline, and adds the noise where the hub is trusted.

    | state    | event                                    | next state
    | idle     | start                                    | asking, round 0
    | asking   | an answer, and others are awaited        | asking
    |          | timeout, tries left                      | asking: those who are silent are asked again
    |          | last answer, or timeout, no tries left   | closing
    | closing  | fewer answers than the quorum            | stalled, `QuorumLost`
    |          | a failed round (masked sums)             | stalled, `ProtocolError`
    |          | another step in this round               | asking
    |          | a total, and the task needs more rounds  | asking, next round
    |          | a total, and the task has a result       | done: all are sent the result
    | stalled  | resume                                   | asking: the same step, or the same question in a new round
    |          | resume(anew=True)                        | asking: the task begins again

A message in any other state is a `PeerError` and changes nothing. If sites that were counted are missing from a round, its total
is dropped and the task begins again without them, where the task can do that.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, final

from eigenveil.core.mechanism import Mechanism
from eigenveil.errors import PeerError, ProtocolError, QuorumLost, require
from eigenveil.linalg import Subspace, sines
from eigenveil.protocols.messages import Ask, Contribution, Decline, Done, Message
from eigenveil.protocols.party import AnyTask, require_asked
from eigenveil.protocols.star.rounds import Asker, Exchange, Gathering, NewExchange, Sampling, Terms, reachable
from eigenveil.tasks.base import Question, Task

__all__ = ["Hub", "HubRound", "Node"]

Result = TypeVar("Result")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HubRound:
    """What happened in one round, in public terms."""

    number: int
    stage: str
    step: int
    answered: tuple[str, ...]
    missing: tuple[str, ...]
    movement: float | None  # The largest sine between the estimates before and after it. None: there was nothing to measure.
    spread: float | None  # How far apart the sites were. None: there was nothing to measure.
    restarted: bool = False  # Counted sites dropped out, and the task began again without them.
    variances: tuple[float, ...] = ()  # Along the estimate after it, summed over rows, largest first. Empty before the first.


@final
class Hub(Asker, Generic[Result]):
    """Runs `task` to its end over `below`: each name asked directly, with the sites behind it. Changes in place.

    In a star each site stands for itself; in a tree the names below are nodes. Late, foreign, repeated and malformed messages
    are a `PeerError` and change nothing. One person's rows may be at up to `person_sites` sites. Rounds of several steps, as for
    masked sums, are made by `exchanges`. A question may be replaced by `asking` with the one asked before the hub was stopped:
    recomputed, it could differ by rounding.
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
        super().__init__(name, below, terms)
        self._task, self._mechanism = task, mechanism
        self._sampling, self._person_sites, self._watch = sampling, person_sites, watch
        self._exchanges, self._asking = exchanges, asking
        # The task's state so far. Public.
        self.state: Any = task.start()
        self._gone: set[str] = set()
        self._counted = False
        self._draws: Sampling | None = None
        self._drawn: dict[str, float] = {}
        self._stalled = False
        self._estimate: Subspace | None = None
        self.rounds: list[HubRound] = []
        # In the last round: the largest weight of one part, and the root of the sum of all squared weights.
        self.weights = (1.0, 1.0)
        self.result: Result | None = None

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that have not dropped out."""
        return tuple(site for site in self._all_sites if site not in self._gone)

    @property
    def paid_in_vain(self) -> bool:
        """Whether the round that stopped must be charged again."""
        return self._stalled and self._now is not None and self._now.failed

    def start(self) -> list[Message]:
        return self._open()

    def resume(self, *, anew: bool = False) -> list[Message]:
        """Ask the question of the stalled round again: sites that answered it send the same numbers.

        A round of several steps continues in the step where it stopped, if it can. `anew` begins the task again, because rows
        that were counted have changed.
        """
        if not self._stalled:
            raise ProtocolError("no round has stopped, so there is nothing to resume")
        if anew:
            fresh = self._task.after_dropout(self.state)
            if fresh is None:
                raise ProtocolError("rows that were counted have changed, and this task cannot begin again")
            self.state, self._counted = fresh, False
        elif self._now is not None and self._now.reopen():
            return self._step(self._now, again=True)
        # The same question to the last bit: sites that answered it recognise it and are not charged again.
        return self._open(None if anew or self._now is None else self._now.question)

    @property
    def _awaited(self) -> Exchange | None:
        return None if self._stalled else self._now

    def receive(self, message: Message) -> list[Message]:
        # All checks come before the first change, so that a refused message leaves no trace.
        if message.sender not in self._below:
            raise PeerError(message.sender, "is not part of this study")
        if self._stalled:
            raise PeerError(message.sender, f"answered round {message.body.round} after it had lost its quorum")
        return self._take(message)

    def _open(self, question: Question | None = None) -> list[Message]:
        """Open the next round with the question that the state leads to, unless one is given."""
        # A question is made from public state alone, so asking reveals nothing.
        question = self._task.ask(self.state) if question is None else question
        if self._asking is not None:
            question = self._asking(question)
        self._next_wait()
        self._round, self._stalled = self._round + 1, False
        recipients, weights = reachable(self._below, self._gone), None
        # A fit draws only the rounds of the components: small totals are cheap and for every site.
        self._draws = self._sampling if self._task.sampled(question) else None
        if self._draws is not None:
            self._drawn = self._draws.draw(recipients)
            weights = self._draws.weights(self._drawn)
            recipients = list(self._drawn)
        if self._exchanges is not None:
            self._now = self._exchanges(self._round, question, recipients, self._gone)
        else:
            self._now = Gathering(
                self._task, self._round, question, recipients, below=self._below, gone=self._gone, weights=weights
            )
        return self._now.asks(self.name)

    def _step(self, now: Exchange, *, again: bool = False) -> list[Message]:
        """Wait for the answers to another step of this round."""
        self._next_wait()
        self._stalled = False
        messages = now.asks(self.name, again=again)
        # A step that asks nothing has all its answers.
        return messages if messages else self._close(now)

    def _close(self, now: Exchange) -> list[Message]:
        """End a step: advance the state, begin again without the missing sites, or raise if too few are left."""
        answered, missing = now.sites()
        quorum = len(self._all_sites) if self._terms.quorum is None else self._terms.quorum
        if self._draws is not None:
            # Sites that were not drawn cannot be missing.
            quorum = min(quorum, len(answered) + len(missing))
        # Before anything moves on: a lost quorum must leave the round as it was, to be resumed.
        self._stalled = True
        if len(answered) < quorum:
            stage = f"{now.question.stage or 'step'} {now.question.step + 1}" + (f", {now.name}" if now.name else "")
            raise QuorumLost(missing, round_=now.round, stage=stage, answered=len(answered), quorum=quorum)
        # A failed round raises here, and stays stalled as well.
        if now.onward():
            return self._step(now)
        self._stalled = False
        answered, missing = now.sites()
        fresh = None
        # Where sites are drawn anew each round, a site missing from one may be drawn again.
        if self._draws is None and missing:
            self._gone |= set(missing)
            # Before a total was counted, no state contains the rows of the missing sites.
            fresh = self._task.after_dropout(self.state) if self._counted else None
        if fresh is not None:
            self.state = fresh
        else:
            if self._draws is None:
                self.state = self._task.with_contributors(self.state, answered)
            self._advance(now)
        self._counted = fresh is None
        self._note(now, answered, missing, restarted=fresh is not None)
        self.result = self._task.result(self.state)
        if self.result is None:
            return self._open()
        self._now = None
        return self._announce_result()

    @property
    def _done(self) -> Done | None:
        return None if self.result is None else Done(self._round, self._task.encode_result(self.result))

    def _advance(self, now: Exchange) -> None:
        # A person with rows at several sites is in as many parts, and moves the sum by each of them.
        total, stretch = now.total(), float(self._person_sites)
        self.weights = (1.0, math.sqrt(len(now.sites()[0])))
        if total is None:
            raise ProtocolError(f"no site gave a part in round {now.round}")
        if self._draws is not None:
            # Sites are drawn in a star only, where each name below is one site.
            gave, weights = now.sites()[0], self._draws.weights(self._drawn)
            factor = self._draws.factor(self._drawn, gave, reachable(self._below, self._gone))
            total = self._task.weighted(total, factor)
            counts = [factor * weights[name] for name in gave]
            self.weights = (max(counts), math.hypot(*counts))
            # One person's rows count as often as the part they are in: the sensitivity grows by the largest weight.
            stretch *= self.weights[0]
        self.state = self._task.advance(self.state, total, self._mechanism, stretch=stretch)

    def _note(self, now: Exchange, answered: Iterable[str], missing: tuple[str, ...], *, restarted: bool) -> None:
        before, self._estimate = self._estimate, self._task.estimate(self.state)
        estimate, moved = self._estimate, None
        # Without directions there is nothing to compare.
        if before is not None and estimate is not None and estimate is not before and before.rank and estimate.rank:
            moved = float(sines(before.basis, estimate.basis)[0])
        self.rounds.append(
            HubRound(
                number=now.round,
                stage=now.question.stage,
                step=now.question.step,
                answered=tuple(answered),
                missing=missing,
                movement=moved,
                spread=None if restarted else self._task.spread(self.state),
                restarted=restarted,
                variances=() if estimate is None else tuple((estimate.values**2).tolist()),
            )
        )
        if self._watch is not None:
            self._watch(self.rounds[-1])


@final
class Node(Asker):
    """Gathers the parts of `below`, each with the sites behind it, for `above`. Changes in place.

    It has neither rows nor noise. It sees parts as they come, in the clear where sites do not add noise. Sites that do not answer
    in time are reported as missing; the hub decides whether too few are left.
    """

    def __init__(self, name: str, *, above: str, below: Mapping[str, tuple[str, ...]], task: AnyTask, terms: Terms) -> None:
        super().__init__(name, below, terms)
        self._above, self._task = above, task
        self._question: Question | None = None
        self._answer: Contribution | Decline | None = None
        self._result: Done | None = None

    def receive(self, message: Message) -> list[Message]:
        if message.sender in self._below:
            return self._take(message)
        if message.sender != self._above:
            raise PeerError(message.sender, "is neither above nor below this node")
        match message.body:
            case body if self._done is not None:
                raise PeerError(message.sender, f"sent {type(body).__name__} after the answer")
            # A later round may come while one is open: the hub has gone on without this node's part.
            case Ask() as ask if ask.round > self._round:
                return self._open(ask)
            case Ask() as ask if ask.round == self._round and self._question is not None and ask.question.same(self._question):
                # Asked again: the same part, or nothing while it is still being gathered.
                return [] if self._answer is None else [Message(self.name, self._above, self._answer)]
            case Done() as done if done.round >= self._round:
                self._now, self._result = None, done
                return self._announce_result()
            case body:
                raise PeerError(message.sender, f"sent {type(body).__name__} down the tree in round {self._round}")

    @property
    def over(self) -> bool:
        """Whether the result has come and was passed on."""
        return self._done is not None

    @property
    def _done(self) -> Done | None:
        return self._result

    def _open(self, ask: Ask) -> list[Message]:
        require_asked(self._task, ask.question, by=self._above)
        # The hub says who has dropped out, for good: a node that was started again would not know.
        gone = set(ask.without)
        self._round, self._question, self._answer = ask.round, ask.question, None
        self._next_wait()
        recipients = reachable(self._below, gone)
        self._now = Gathering(self._task, ask.round, ask.question, recipients, below=self._below, gone=gone)
        return self._now.asks(self.name)

    def _close(self, now: Exchange) -> list[Message]:
        _, missing = now.sites()
        total = now.total()
        # An empty sum would be a number that no site gave.
        if total is None:
            self._answer = Decline(now.round)
        else:
            arrays = self._task.arrays(self._task.condense(total))
            self._answer = Contribution(
                round=now.round, arrays=arrays, missing=missing, half=self._task.has_symmetric_parts(now.question)
            )
        self._now = None
        return [Message(self.name, self._above, self._answer)]
