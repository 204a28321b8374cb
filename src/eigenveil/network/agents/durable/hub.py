"""`DurableHub`: a hub that survives a crash. What came and what it released are in its log before anything follows.

`HubAgent` makes it and `Runner` calls it. Started again, it replays the log: it asks nobody for what it has.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any, final

from eigenveil.core.mechanism import Exact, Mechanism
from eigenveil.errors import BudgetExceeded, PeerError, ProtocolError
from eigenveil.estimators.federated.parties import Parties
from eigenveil.estimators.rounds import Round, round_of
from eigenveil.network.agents.durable.hub_log import HubLog, LogEntry, ReplayMechanism
from eigenveil.network.agents.durable.party import Cause, DurableParty, Event, OnEvent, Outgoing
from eigenveil.network.study.parties import found_in
from eigenveil.protocols import Ask, Done, Hub, HubRound, Message
from eigenveil.protocols.wire import MessageLimits, decode, encode
from eigenveil.runtimes.local import Traffic
from eigenveil.tasks import Question

__all__ = ["DurableHub"]


@final
class DurableHub(DurableParty):
    """The hub of `parties`, brought to where the transcript ends. Changes in place."""

    def __init__(self, parties: Parties, transcript: HubLog, *, limits: MessageLimits, on_event: OnEvent) -> None:
        super().__init__(limits=limits, on_event=on_event)
        self.party: Hub[Any] = parties.hub(
            masking=parties.masking(secret=transcript.secret),
            watch=self._note,
            through=self._remembering,
            asking=self._asked_before,
        )
        # While it replays: the question that the next move must ask. Otherwise: the question that a move has come to.
        self._asked: Question | None = None
        self._parties, self._transcript = parties, transcript
        self.rounds: list[Round] = []
        self.traffic: defaultdict[int, Traffic] = defaultdict(Traffic)
        self.stopped: ProtocolError | None = None
        self.refused = 0
        # How many charges of the hub's ledger earlier rounds have shown, so that each round shows its own.
        self._charged = 0
        self._replaying = False
        self._replay()

    def _remembering(self, mechanism: Mechanism) -> Mechanism:
        # Without noise nothing needs to be kept: the same sums come out again.
        self._memory = None if isinstance(mechanism, Exact) else ReplayMechanism(mechanism)
        return mechanism if self._memory is None else self._memory

    def _asked_before(self, question: Question) -> Question:
        """The question as it was first asked, to the last digit.

        Another machine may compute other last digits, and sites would take that for another question.
        """
        if self._replaying and self._asked is not None:
            question, self._asked = self._asked, None
            # The transcript is a file on disk: a question from it is checked like one from the network.
            self._parties.study.require_question(question)
        elif not self._replaying:
            self._asked = question
        return question

    @property
    def over(self) -> bool:
        """Whether there is a result, or the study has stopped for now."""
        return self.party.result is not None or self.stopped is not None

    @property
    def begun(self) -> bool:
        """Whether the first question has been asked."""
        return not self._transcript.empty

    def begin(self) -> list[Outgoing]:
        """The first question; after a crash what is still missing; after a lost quorum that round's question again."""
        if not self.begun:
            return super().begin()
        if self.stopped is not None:
            # Resuming would ask for parts that the budget no longer covers, so the study must end here.
            if self._parties.request.fit.private and self.party.paid_in_vain:
                raise BudgetExceeded(
                    "the last round was charged but gave no result, and the rest of the budget is too small to finish the "
                    "study. Nothing more was charged. Start a new study with a budget of its own"
                )
            self.stopped = None
            return self._move(Cause(kind="resume"), self.party.resume)
        # For those who are connected already. The others get it when they join.
        return [one for name in self._parties.layout.below[self.party.name] for one in self.rejoined(name)]

    def rejoined(self, other: str) -> list[Outgoing]:
        """What a party that is back still owes, or the final result."""
        # Not in the log: it repeats what the hub has said, and moves it nowhere.
        return self._outgoing(self.party.rejoined(other))

    def _refuse(self, error: PeerError) -> None:
        self.refused += 1
        super()._refuse(error)

    def _move(self, cause: Cause, step: Callable[[], list[Message]]) -> list[Outgoing]:
        """Let the hub move, log why it did, and return what it sends."""
        if cause.message is not None:
            # Counted before the party accepts it: bytes that were refused have been on the line too. A sender could name ever
            # new rounds, and each would take memory, so others count in this one.
            self.traffic[min(cause.message.body.round, self.party.round)].up += len(cause.data)
        said: list[Message] = []
        try:
            said = step()
        except ProtocolError as error:
            # A lost quorum, for one. It is logged too, so that a resumed hub is in the same state.
            self.stopped = error
        # One log entry has the cause and what the hub released because of it, so a crash cannot separate them.
        released = None if self._memory is None else self._memory.taken()
        self._transcript.add(LogEntry.of(cause, released, asked=self._came_to()))
        return self._outgoing(said)

    def _came_to(self) -> bytes | None:
        """Where a move has brought the hub: to another question, or to the result."""
        asked, self._asked = self._asked, None
        # The round is 0 because only the question is read back: the replayed hub counts its rounds itself.
        body: Ask | Done | None = None if asked is None else Ask(0, asked)
        if self.party.result is not None:
            body = Done(0, self._parties.study.answer(self.party.result))
        return None if body is None else encode(Message(self.party.name, self.party.name, body))

    def _outgoing(self, messages: list[Message]) -> list[Outgoing]:
        outgoing: list[Outgoing] = []
        for message in messages:
            raw = encode(message)
            self.traffic[message.body.round].down += len(raw)
            outgoing.append((message.receiver, raw))
        return outgoing

    def _replay(self) -> None:
        """Bring the hub to where the transcript ends. Nothing leaves."""
        self._replaying = True
        for event in self._transcript.events():
            # Releases go back in before the move that asks for them.
            if self._memory is not None:
                self._memory.recall(event.released)
            body = None if event.asked is None else decode(event.asked).body
            if isinstance(body, Ask):
                self._asked = body.question
            try:
                # Encoded only to count its bytes, so that the report has the traffic of the whole study.
                self._outgoing(self._again(event))
            except ProtocolError as error:
                self.stopped = error
            if isinstance(body, Done) and self.party.result is not None:
                # To the last digit what everyone was told, whatever this machine computes.
                self.party.result = found_in(self._parties, body.arrays)
            if self._asked is not None:
                raise ProtocolError("the transcript has questions that this hub does not ask: it is of another version")
        if self._memory is not None:
            self._memory.require_all_given()
            # Forget what the replay released: it is in the transcript already.
            self._memory.taken()
        self._replaying = False

    def _again(self, event: LogEntry) -> list[Message]:
        # Without the checks of `take`: only messages that the hub had accepted are in the log.
        match event.kind:
            case "begin":
                return self.party.start()
            case "resume":
                self.stopped = None
                return self.party.resume()
            case "timeout":
                return self.party.timeout()
            case "message":
                message = decode(event.data, limits=self._limits)
                self.traffic[message.body.round].up += len(event.data)
                return self.party.receive(message)
            case kind:
                raise ProtocolError(f"the transcript has an entry of the kind {kind!r}, which is for streams")

    def _note(self, round_: HubRound) -> None:
        traffic = self.traffic[round_.number]
        ledger = self._parties.ledgers.get(self.party.name)
        charges = () if ledger is None else ledger.charges
        done = round_of(
            round_,
            method=self._parties.request.fit.plan.method,
            down=traffic.down,
            up=traffic.up,
            charges=charges[self._charged :],
        )
        self._charged = len(charges)
        self.rounds.append(done)
        if not self._replaying:
            missing = f", without {', '.join(done.missing[:5])}" if done.missing else ""
            self._on_event(Event("round", done.stage, f"{len(done.answered)} answered{missing}"))
