"""`Peer`: a participant without a hub. It talks only to its neighbours, and continues when it has the sum over all peers.

Each peer runs the whole task by itself: it asks itself the question that its own state leads to, publishes its part, adds up
with its neighbours, and advances. What others say never becomes a question, so no peer can make it multiply by what it likes.

    | state      | event                                       | next state
    | keys       | every key it needs has come, or none needed | sum: the part of this round leaves
    |            | timeout                                     | keys: keys are asked for again
    | sum        | numbers of a neighbour                      | sum: it sends on what this step needs
    |            | the sum is known, more rounds               | sum, next round
    |            | the sum is known, the task has a result     | over, with a result
    |            | timeout                                     | sum: missing numbers are asked for again
    | settling   | timeout                                     | keys, or sum if no key is missing
    | keys, sum  | a neighbour was silent too often            | settling: without it
    | any but    | a neighbour has left others behind, or      | settling: without them too, from the earlier round
    | an error   | has gone back further with the same peers   |
    | any but    | the budget or the rows fail, too few peers  | over, with an error; the neighbours are told
    | an error   | are left, or no restart is left             |

`settling` waits one deadline, so that news of other lost peers can come before noise is paid for again. A peer that is over with
a result goes back to `settling` if a neighbour must begin an earlier round again. A peer that is over with an error answers
nothing more. A task that has spent no budget begins again at round 0 whenever peers are left behind.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, final

import numpy as np

from eigenveil.core.mechanism import Exact
from eigenveil.core.rows import Rows
from eigenveil.errors import BudgetExceeded, ParameterError, PeerError, PeersLost, ProtocolError, require, verbatim
from eigenveil.linalg import Array, Subspace, sines
from eigenveil.privacy.released import packed_size, unpack
from eigenveil.protocols.gossip.averaging import Averaging, Outgoing, Sends, averaging
from eigenveil.protocols.gossip.terms import Among, GossipTerms
from eigenveil.protocols.messages import KeepAlive, Message, PartialSum, PeerKey, PeersDropped, ResendRequest
from eigenveil.protocols.party import AnyTask, Party, Wait
from eigenveil.tasks.base import Question, SumTask, require_array

__all__ = ["Peer", "PeerRound"]

# How many numbers may come a round early: the size of the next question is not known yet.
_EARLY: Final = 1 << 16
_ADDED: Final = Exact(because="peers have added whatever noise there is before they were added up")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRound:
    """What one round was at one peer, in public terms."""

    number: int
    stage: str
    step: int
    counted: tuple[str, ...]
    movement: float | None  # How far the estimate moved, as the largest sine. None: there was nothing to measure.
    restarted: bool  # Peers were left behind, and the round of this number was begun again.


@final
class Peer(Party):
    """The peer `name` with its `rows`, whose parts leave through `outgoing`. Changes in place: it spends budget.

    `task` is this peer's own. A message must come from a neighbour, belong to this study and round, and have the right size and
    finite numbers. Any other is a `PeerError` and changes nothing. In the end there is a `result` or an `error`.
    """

    def __init__(
        self,
        name: str,
        *,
        terms: GossipTerms,
        task: AnyTask,
        rows: Rows,
        outgoing: Outgoing,
        watch: Callable[["Peer", PeerRound], None] | None = None,
    ) -> None:
        require(name in terms.graph.names, f"the graph has no peer {name!r}")
        super().__init__(name)
        self._terms, self._task, self.rows = terms, task, rows
        self._outgoing, self._watch = outgoing, watch
        self._near = terms.graph.neighbours(name)
        self._gone: frozenset[str] = frozenset()
        self._among: Among = terms.among(())
        self._outgoing.count(self._among, self._gone, 0)
        self._phase: Literal["keys", "sum", "settling", "over"] = "keys"
        self._round, self._base, self._waits = 0, 0, 0
        self._restarted, self._in_vain = False, 0
        # By round, because a peer may have to go back to a round that others begin again.
        self._states: dict[int, Any] = {0: task.start()}
        self._parts: dict[int, Array] = {}
        self._sums: dict[int, Averaging] = {}
        self._stages: dict[int, str] = {}
        # Numbers that came before this peer was ready for them, at most two messages for each neighbour.
        self._early: dict[str, list[PartialSum]] = {}
        # How often each was asked in vain since it was last heard from, and since it last sent what was awaited. A peer that
        # answers but never delivers is given up by the second count.
        self._silent: dict[str, int] = {}
        self._late: dict[str, int] = {}
        self._estimate: Subspace | None = None
        self.rounds: list[PeerRound] = []
        self.result: Any = None
        self.error: Exception | None = None

    @property
    def state(self) -> Any:
        """What this peer knows of the answer so far. Public where parts are noisy."""
        return self._states[self._round]

    @property
    def counted(self) -> tuple[str, ...]:
        return self._among.graph.names

    @property
    def over(self) -> bool:
        """Whether there is a result or an error."""
        return self._phase == "over"

    @property
    def waiting(self) -> Wait | None:
        return None if self.over else Wait(self._waits, self._terms.deadline)

    def start(self) -> list[Message]:
        keys = self._keys_to(self._keys_wanted(), again=False)
        return keys if self._phase == "keys" and self._keys_wanted() else [*keys, *self._begin()]

    def receive(self, message: Message) -> list[Message]:
        if message.sender not in self._near:
            raise PeerError(message.sender, "is not a neighbour")
        body = message.body
        if not isinstance(body, PartialSum | ResendRequest | KeepAlive | PeersDropped | PeerKey):
            raise PeerError(message.sender, f"sent {type(body).__name__} to a peer, but peers ask each other no questions")
        # Checked first: peers that agreed on something else would sum something else.
        if not isinstance(body, KeepAlive) and body.terms != self._terms.digest:
            raise PeerError(message.sender, "has other terms: another graph, weights, noise, steps or study")
        if message.sender in self._gone:
            # It may be alive but slow, and should learn that others do not wait. Two that gave up on each other stay silent.
            silent = self.error is not None or isinstance(body, PeersDropped)
            return [] if silent else self._leaves((message.sender,))
        if self.error is not None:
            return []
        match body:
            case KeepAlive():
                self._silent[message.sender] = 0
                return []
            case PeersDropped(round=round_, gone=gone):
                return self._on_peers_dropped(message.sender, round_, round_, gone)
            case PeerKey():
                return self._on_peer_key(message.sender, body)
            case PartialSum(round=round_, without=without, base=base) | ResendRequest(round=round_, without=without, base=base):
                if round_ < base:
                    raise PeerError(message.sender, f"sent round {round_}, before its new start at {base}")
                # The sender counts other peers. Its numbers have other pair noise and must not be added to ours.
                if frozenset(without) != self._gone or base != self._base:
                    return self._on_peers_dropped(message.sender, round_, base, without)
                if isinstance(body, PartialSum):
                    return self._on_partial_sum(message.sender, body)
                return self._on_resend_request(message.sender, body)

    def on_reconnect(self, other: str) -> list[Message]:
        """What is wanted from this neighbour, or an `ResendRequest`, which makes it ask for what it wants."""
        if other not in self._near or other in self._gone or self.error is not None:
            return []
        if self._phase == "keys":
            through = tuple(name for name in self._keys_wanted() if self._hop(name) == other)
            return self._keys_to(through, again=True) or self._again((other,), 0)
        if self._phase == "sum":
            return self._again((other,), self._sums[self._round].step)
        return []

    def timeout(self) -> list[Message]:
        """Ask silent peers once more, leave them behind, or begin the round again after settling."""
        self._waits += 1
        if self._phase == "settling":
            self._phase = "keys"
            wanted = self._keys_wanted()
            return self._keys_to(wanted, again=True) if wanted else self._begin()
        if self._phase not in ("keys", "sum"):
            return []
        missing = self._keys_wanted() if self._phase == "keys" else self._sums[self._round].missing
        # Keys of peers further away come through others. The next one on the way can be asked whether it is alive.
        between = [] if self._phase == "sum" else [hop for hop in map(self._hop, missing) if hop not in missing]
        given_up = []
        for other in (*missing, *dict.fromkeys(between)):
            self._silent[other] = self._silent.get(other, 0) + 1
            self._late[other] = self._late.get(other, 0) + (other in missing)
            # A peer that waits for others itself gets the time to find out. Each neighbour on the way to it may need as much.
            patience = (1 + self._terms.retries) * self._among.graph.distances(self.name).get(other, 1)
            if self._silent[other] > patience - 1 or self._late[other] > 2 * patience:
                given_up.append(other)
        if given_up:
            return self._leave_behind(self._gone | set(given_up), self._round)
        if self._phase == "keys":
            return [*self._keys_to(missing, again=True), *self._again(tuple(dict.fromkeys(between)), 0)]
        return self._again(missing, self._sums[self._round].step)

    # What comes in.

    def _on_partial_sum(self, sender: str, body: PartialSum) -> list[Message]:
        if body.round > self._round + 1:
            raise PeerError(sender, f"sent numbers of round {body.round} in round {self._round}")
        if body.round < self._round or (body.round == self._round and self.over):
            return []
        # Neighbours are at most one round apart, so one round ahead is all that must be kept.
        ahead = body.round > self._round or self._phase != "sum"
        values = self._checked(sender, body)
        if ahead:
            waiting = self._early.setdefault(sender, [])
            # Two are enough for an honest neighbour. More would let a flood of messages fill the memory.
            if len(waiting) < 2 and not any((earlier.round, earlier.step) == (body.round, body.step) for earlier in waiting):
                waiting.append(body)
            self._silent[sender] = 0
            return []
        if body.stage != self._stages[self._round]:
            raise PeerError(
                sender, f"is at {body.stage!r} in round {body.round}, but this peer is at {self._stages[self._round]!r}"
            )
        now = self._sums[self._round]
        step = now.step
        sends = now.take(sender, body.step, values)
        # Heard from, so no longer silent. Only a step that advances clears `_late`: old numbers again and again do not.
        self._silent[sender] = 0
        if now.step != step:
            self._waits += 1
            self._late.clear()
        return [*self._messages(self._round, sends), *self._finish_round_if_complete()]

    def _checked(self, sender: str, body: PartialSum) -> Array:
        values, size = body.values, self._size()
        flat = isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype == np.float64
        # What the next round asks is not known yet. No question asks for more than a product of as many numbers.
        max_size = size if body.round == self._round else max(size * size, _EARLY)
        if not flat or len(values) > max_size or (body.round == self._round and len(values) != size):
            raise PeerError(sender, f"sent numbers of another shape in round {body.round}")
        try:
            return require_array(values, values.shape)
        except ValueError as error:
            raise PeerError(sender, str(error)) from error

    def _on_resend_request(self, sender: str, body: ResendRequest) -> list[Message]:
        if body.round > self._round + 1:
            raise PeerError(sender, f"asks for round {body.round} in round {self._round}")
        self._silent[sender] = 0
        round_sum = self._sums.get(body.round)
        # The same numbers as before, never made again: a second part would need a second charge.
        values = None if round_sum is None else round_sum.sent(sender, body.step)
        if values is None:
            return [Message(self.name, sender, KeepAlive(self._round))]
        return self._messages(body.round, [(sender, body.step, values)])

    def _on_peers_dropped(self, sender: str, round_: int, base: int, names: tuple[str, ...]) -> list[Message]:
        """A neighbour counts other peers, or the same ones from another round on. `base` is the round it began again at.

        The peer that has left more behind is ahead. Among the same peers, the one that has gone back further is. Others follow.
        """
        gone = frozenset(names)
        if not gone <= set(self._terms.graph.names):
            raise PeerError(sender, "left behind peers that are not in the graph")
        if self.result is not None and round_ >= self._round:
            # All rounds are done here, and no other peer needs this one for another.
            return []
        # The sender has missed some news, and gets it.
        if gone < self._gone or (gone == self._gone and base > self._base):
            return self._leaves((sender,))
        if gone == self._gone and base == self._base:
            return []
        # If neither knows of all that the other does, both begin again without the union, at the earlier of their present
        # rounds.
        back = base if gone >= self._gone else round_
        if sender in gone:
            # The sender says that it stops, and its round no longer matters.
            back = max(round_, min(self._states))
        elif self._task.after_dropout(self.state) is None and back not in self._states and back <= self._round:
            raise PeerError(sender, f"wants to go back to round {back}, but round {min(self._states)} is the oldest that is kept")
        return self._leave_behind(self._gone | gone, back)

    def _on_peer_key(self, sender: str, body: PeerKey) -> list[Message]:
        names, keys = self._terms.graph.names, self._outgoing.keys
        if body.origin not in names or body.target not in names or body.origin == body.target or keys is None:
            raise PeerError(sender, "passed on a key that is for no peer of this study")
        if body.origin in self._gone or body.target in self._gone:
            return []
        if body.target != self.name:
            onward = self._hop(body.target)
            # Sending it back where it came from would loop: the sender goes by another graph.
            return [] if onward == sender else [Message(self.name, onward, body)]
        # A bad signature is blamed on the neighbour that passed it on: the transport vouches for no other.
        keys.take(body.origin, body.key, body.signature, passed_on_by=sender)
        self._silent[body.origin] = 0
        answer = self._keys_to((body.origin,), again=False) if body.again else []
        if self._phase != "keys" or self._keys_wanted():
            return answer
        return [*answer, *self._begin()]

    # Rounds.

    def _begin(self) -> list[Message]:
        """Publish this peer's part of the round and start adding up."""
        try:
            question = self._task.ask(self.state)
            self._task.require_question(question)
            summed, inner, fraction = self._task.as_sum(question)
            part = self._part(summed, inner, fraction)
        # Everything that can go wrong with this peer's own rows or budget. The neighbours learn only that it stops.
        except BudgetExceeded as error:
            if not self._gone:
                return self._stop(error)
            rest = f"the rest of the budget does not cover it ({verbatim(str(error))})"
            why = ParameterError(f"{rest}. Use {{restarts}} to keep some for that")
            return self._stop(PeersLost(self._without, round_=self._round, why=why))
        except (ValueError, OSError, ProtocolError) as error:
            return self._stop(error)
        self._phase, self._waits = "sum", self._waits + 1
        self._silent.clear()
        self._late.clear()
        self._stages[self._round] = f"{question.stage} {question.step}".strip()
        now = averaging(self._among.mixing, self.name, part)
        self._sums[self._round] = now
        messages = self._messages(self._round, now.start())
        # Numbers that came before their round.
        early, self._early = self._early, {}
        for sender, passes in early.items():
            for body in sorted(passes, key=lambda entry: (entry.round, entry.step)):
                if body.round == self._round and self._phase == "sum":
                    # One that is refused will be asked again, and blamed then.
                    with suppress(PeerError):
                        messages += self._on_partial_sum(sender, body)
                elif body.round >= self._round:
                    self._early.setdefault(sender, []).append(body)
        return [*messages, *self._finish_round_if_complete()]

    def _part(self, summed: SumTask[Any, Any], inner: Question, fraction: float) -> Array:
        """The part of this round, made once however often the round begins among the same peers."""
        part = self._parts.get(self._round)
        if part is None:
            private = summed.private(inner, self.rows)
            share = summed.share(inner) * fraction
            part = self._outgoing.part(private, label=summed.label(inner), share=share, round_=self._round)
            # Neighbours would refuse a sum that is not finite. Failing here keeps the reason at this peer.
            require_array(part * (4.0 * len(self.counted)), part.shape)
            self._parts[self._round] = part
        return part

    def _finish_round_if_complete(self) -> list[Message]:
        """Advance if the sum is known."""
        if self._phase != "sum":
            return []
        total = self._sums[self._round].total
        if total is None:
            return []
        before = self.state
        try:
            question = self._task.ask(before)
            summed, inner, _ = self._task.as_sum(question)
            whole = unpack(total, summed.shape(inner), symmetric=summed.symmetric)
            state = self._task.advance(self._task.with_contributors(before, self.counted), whole, _ADDED)
            self.result = self._task.result(state)
        except ValueError as error:
            return self._stop(error)
        self._note(question, state)
        self._round += 1
        self._states[self._round] = state
        # As many rounds are kept as the furthest peer may be behind.
        for records in (self._states, self._parts, self._sums, self._stages):
            for old in [number for number in records if number < self._round - self._apart]:
                del records[old]
        self._restarted = False
        if self.result is None:
            return self._begin()
        self._phase = "over"
        return []

    def _note(self, question: Question, state: Any) -> None:
        before, self._estimate = self._estimate, self._task.estimate(state)
        moved = None
        if before is not None and self._estimate is not None and before.rank and self._estimate.rank == before.rank:
            moved = float(sines(before.basis, self._estimate.basis)[0])
        self.rounds.append(
            PeerRound(
                number=self._round,
                stage=question.stage,
                step=question.step,
                counted=self.counted,
                movement=moved,
                restarted=self._restarted,
            )
        )
        if self._watch is not None:
            self._watch(self, self.rounds[-1])

    @property
    def _apart(self) -> int:
        """How many rounds peers can be apart: neighbours at most one step, so others at most one step per edge between them."""
        mixing = self._among.mixing
        return 3 if mixing.tree is not None else 2 + (len(self.counted) - 1) // mixing.steps

    # Those who are gone.

    def _leave_behind(self, gone: frozenset[str] | set[str], round_: int) -> list[Message]:
        """Begin a round again without these peers, after waiting for news of others."""
        if self.name in gone:
            return self._stop(PeersLost((self.name,), round_=round_, why="the others did not hear from it in time and went on"))
        # Without some peers the graph may fall apart. Those in other parts cannot be reached and count as gone too.
        mine = next(group for group in self._terms.graph.without(gone).components() if self.name in group)
        whole = frozenset(self._terms.graph.names) - set(mine)
        # Never forward: a round that this peer has not reached has no state to begin from.
        base = min(round_, self._round) if whole != self._gone else min(round_, self._base)
        try:
            if len(mine) < self._terms.quorum:
                left = "one peer is" if len(mine) == 1 else f"{len(mine)} peers that can reach each other are"
                raise ParameterError(
                    f"{left} left, and {self._terms.quorum} are needed. A {{graph}} with more edges keeps more peers connected; "
                    "{quorum} can be lower, but must be more than half"
                )
            # Parts of rounds that begin again were sent and charged in vain.
            self._in_vain += sum(number >= base for number in self._parts)
            if self._terms.restarts is not None and self._in_vain > self._terms.restarts:
                raise ParameterError(
                    "its noise was charged, and the budget has no room to be charged again. Use {restarts} to keep some for that"
                )
            self._among = self._terms.among(whole)
            # Refused here if the noise graph no longer withstands the colluders: then no part may leave.
            self._outgoing.count(self._among, whole, base)
        except ValueError as error:
            return self._stop(PeersLost(self._in_order(whole), round_=base, why=error), gone=whole)
        fresh = self._task.after_dropout(self._states[max(base, min(self._states))])
        if fresh is not None:
            # Nothing was spent, so the task begins anew, and the result is that of the peers that are left.
            base, self._states = 0, {0: fresh}
        self._states = {number: state for number, state in self._states.items() if number <= base}
        self._gone, self._round, self._base = whole, base, base
        # Parts of the old count must not be sent again: their pair noise does not cancel among fewer peers.
        self._parts, self._sums, self._stages = {}, {}, {}
        self._early, self._silent, self._late = {}, {}, {}
        self._phase, self._waits, self.result, self._restarted = "settling", self._waits + 1, None, True
        self._estimate = None if fresh is not None else self._estimate
        return self._leaves(self._near)

    def _leaves(self, to: tuple[str, ...]) -> list[Message]:
        body = PeersDropped(self._base, self._without, self._terms.digest)
        return [Message(self.name, other, body) for other in to]

    def _stop(self, error: Exception, *, gone: frozenset[str] | None = None) -> list[Message]:
        """Tell the neighbours that nothing more will come from here. The reason stays at this peer.

        Where it stops because others have `gone`, it names them, and its neighbours come to the same end by themselves.
        """
        self.error, self.result, self._phase = error, None, "over"
        # A peer that stops for its own reasons names itself, so that the others leave it behind at once.
        gone = self._gone | {self.name} if gone is None else gone
        body = PeersDropped(self._round, self._in_order(gone), self._terms.digest)
        return [Message(self.name, other, body) for other in self._near if other not in self._gone]

    # Small things.

    @property
    def _without(self) -> tuple[str, ...]:
        return self._in_order(self._gone)

    def _in_order(self, names: frozenset[str]) -> tuple[str, ...]:
        return tuple(name for name in self._terms.graph.names if name in names)

    def _size(self) -> int:
        part = self._parts.get(self._round)
        if part is not None:
            return len(part)
        summed, inner, _ = self._task.as_sum(self._task.ask(self.state))
        return packed_size(summed.shape(inner), symmetric=summed.symmetric)

    def _keys_wanted(self) -> tuple[str, ...]:
        """The peers whose keys must come first: those it shares noise with, and neighbours, so that a dead one is noticed."""
        keys, pairing = self._outgoing.keys, self._among.pairing
        if keys is None or pairing is None:
            return ()
        wanted = {*pairing.graph.neighbours(self.name), *self._among.graph.neighbours(self.name)}
        return tuple(name for name in self.counted if name in wanted and not keys.has(name))

    def _keys_to(self, to: tuple[str, ...], *, again: bool) -> list[Message]:
        keys, terms = self._outgoing.keys, self._terms.digest
        if keys is None:
            return []
        key = partial(PeerKey, round=0, origin=self.name, key=keys.public, signature=keys.signature, terms=terms, again=again)
        return [Message(self.name, self._hop(other), key(target=other)) for other in to]

    def _again(self, to: tuple[str, ...], step: int) -> list[Message]:
        body = ResendRequest(round=self._round, step=step, without=self._without, terms=self._terms.digest, base=self._base)
        return [Message(self.name, other, body) for other in to]

    def _hop(self, other: str) -> str:
        return self._among.graph.next_hop(self.name, other)

    def _messages(self, round_: int, sends: Sends) -> list[Message]:
        # The same array goes to several neighbours as one body, which is encoded and measured once.
        bodies: dict[tuple[int, int], PartialSum] = {}
        for _, step, values in sends:
            if (step, id(values)) not in bodies:
                bodies[step, id(values)] = PartialSum(
                    round=round_,
                    step=step,
                    values=values,
                    stage=self._stages[round_],
                    without=self._without,
                    terms=self._terms.digest,
                    base=self._base,
                )
        return [Message(self.name, receiver, bodies[step, id(values)]) for receiver, step, values in sends]
