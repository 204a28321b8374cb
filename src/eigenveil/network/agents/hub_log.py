"""`DurableHub`: a hub that survives a crash. What came and what it released are in its log before anything follows.

`HubAgent` makes it and `Runner` calls it. Started again, it replays the log and does not ask again for what it has.
"""

import os
import sqlite3
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self, cast, final

import numpy as np

from eigenveil.core.ledger import Slot
from eigenveil.core.mechanism import Bounded, Exact, Mechanism
from eigenveil.errors import BudgetExceeded, EigenveilError, PeerError, ProtocolError
from eigenveil.estimators.federated.parties import Parties
from eigenveil.estimators.terms import Round, round_of
from eigenveil.linalg import Array
from eigenveil.network.agents.steps import Cause, DurableParty, Event, OnEvent, Outgoing
from eigenveil.network.parties import found_in
from eigenveil.privacy.released import release_columns
from eigenveil.protocols.messages import Ask, Contribution, Done, Message
from eigenveil.protocols.star.hub import Hub, HubRound
from eigenveil.protocols.wire import MessageLimits, decode, encode
from eigenveil.runtimes.local import Traffic
from eigenveil.tasks.base import Question

__all__ = ["DurableHub", "HubLog", "LogEntry", "ReplayMechanism", "TranscriptError"]

# "EVHT": what SQLite keeps in the header of the file to say whose it is.
_ID: Final = 0x45564854
_VERSION: Final = 2
_TABLES: Final = (
    "CREATE TABLE study (digest TEXT NOT NULL, secret BLOB NOT NULL, wheel TEXT NOT NULL)",
    "CREATE TABLE events (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, sender TEXT NOT NULL, data BLOB NOT NULL,"
    " released BLOB, asked BLOB)",
)

_INSERT: Final = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)"

# Stored in the file, so another word is another version of it: "message" is one that came. Streams have those after "resume".
# Under masks they have the last two: a site that is back, and the keys that serve many slots.
Kind = Literal["begin", "message", "timeout", "resume", "tick", "snapshot", "back", "keys"]


class TranscriptError(EigenveilError):
    """The file is not the transcript of this study, is of another version or damaged, or cannot be written."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """Something that moved the hub: its start, a message, a deadline that passed, or a resumption.

    For streams, a slot that was opened, or a snapshot of everything before it.
    """

    kind: Kind
    sender: str = ""  # Of the message.
    data: bytes = b""
    released: bytes | None = None  # What the hub itself released then.
    outcome: bytes | None = None  # The question or result that it came to.

    def row(self, number: int) -> tuple[object, ...]:
        return number, self.kind, self.sender, self.data, self.released, self.outcome

    @classmethod
    def of(cls, cause: Cause, released: bytes | None, *, outcome: bytes | None = None) -> "LogEntry":
        """The entry of a move with this cause."""
        # What is "due" or "rejoined" moves no hub.
        return cls(kind=cast("Kind", cause.kind), sender=cause.sender, data=cause.data, released=released, outcome=outcome)


@final
class HubLog:
    """The transcript of one study in an SQLite file that only its owner can read. Changes in place: it grows.

    `secret` is made once. From it a rebuilt hub derives the same values as the one before it.
    """

    def __init__(self, connection: sqlite3.Connection, secret: bytes, count: int) -> None:
        self._connection, self.secret, self._count = connection, secret, count

    @classmethod
    def open(cls, path: Path, *, study: str, wheel: str) -> Self:
        """Open or make the file for the study of this digest, in the version `wheel` of this program."""
        if not path.parent.is_dir():
            raise TranscriptError(f"the folder {path.parent} does not exist")
        fresh = not path.exists()
        if not fresh and path.stat().st_mode & 0o077:
            raise TranscriptError(
                f"others can read or change {path}, and with trust = hub it has raw parts in it. Run: chmod 600 {path}"
            )
        if fresh:
            # Made with its mode, not changed afterwards: others must not be able to open it in between.
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        # Half a second, so that a second hub on this file says so at once.
        # The party's thread writes to it, one call at a time, and another thread has opened it.
        connection = sqlite3.connect(path, timeout=0.5, isolation_level=None, check_same_thread=False)
        try:
            # One hub for one transcript: the messages of two would be mixed in it.
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            # Parts can be large, and with 4 kB pages they would take many.
            connection.execute("PRAGMA page_size = 16384")
            # In a write-ahead log, what was released was in a second file. A hub that lost it would release the same sums again,
            # under other noise.
            connection.execute("PRAGMA journal_mode = DELETE")
            # Every insert is its own transaction, and returns only when it is on disk, also on a Mac.
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("PRAGMA fullfsync = ON")
            if fresh or connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
                cls._make(connection, study, wheel)
            return cls._opened(connection, path, study, wheel)
        except sqlite3.Error as error:
            connection.close()
            busy = "locked" in str(error)
            why = "another hub has it open" if busy else f"it is not a transcript, or it is damaged ({error})"
            raise TranscriptError(f"{path}: {why}") from error
        except BaseException:
            connection.close()
            raise

    @staticmethod
    def _make(connection: sqlite3.Connection, study: str, wheel: str) -> None:
        # All or nothing, so that a crash while the file is made leaves an empty one, which is made again.
        connection.execute("BEGIN IMMEDIATE")
        for statement in (*_TABLES, f"PRAGMA application_id = {_ID}", f"PRAGMA user_version = {_VERSION}"):
            connection.execute(statement)
        # The secret is drawn once: a rebuilt hub must derive the nonces of masks that it has announced.
        connection.execute("INSERT INTO study VALUES (?, ?, ?)", (study, os.urandom(32), wheel))
        connection.execute("COMMIT")

    @classmethod
    def _opened(cls, connection: sqlite3.Connection, path: Path, study: str, wheel: str) -> Self:
        application_id = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if application_id != _ID or version != _VERSION:
            raise TranscriptError(f"{path} is not a transcript of this version of the program")
        row = connection.execute("SELECT digest, secret, wheel FROM study").fetchone()
        if row is None:
            raise TranscriptError(f"{path} is empty: it was never completely made. Delete it")
        if row[0] != study:
            raise TranscriptError(f"{path} is the transcript of another study; give --transcript another name")
        # Another version may compute or order things differently, and a replay would go astray.
        if row[2] != wheel:
            raise TranscriptError(
                f"version {row[2]} of the program began {path}, and this is version {wheel}. Continue with version {row[2]}"
            )
        # An empty transaction takes the lock now, so that a second hub fails here and not at its first message.
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("COMMIT")
        # Not the number of rows: a snapshot replaces those before it, and keeps its own number.
        last = connection.execute("SELECT max(number) FROM events").fetchone()[0]
        return cls(connection, bytes(row[1]), 0 if last is None else int(last) + 1)

    @property
    def empty(self) -> bool:
        """Whether nothing has happened yet."""
        return self._count == 0

    def events(self) -> Iterator[LogEntry]:
        with closing(self._connection.cursor()) as cursor:
            for kind, sender, data, released, outcome in cursor.execute(
                "SELECT kind, sender, data, released, asked FROM events ORDER BY number"
            ):
                yield LogEntry(kind=cast("Kind", kind), sender=sender, data=bytes(data), released=released, outcome=outcome)

    def add(self, event: LogEntry) -> None:
        """Write what happened. It is on disk when this returns; after a `TranscriptError` nothing was written."""
        # The number is the primary key, so two writers can never both write an entry of one number.
        with self._writing():
            self._connection.execute(_INSERT, event.row(self._count))
        self._count += 1

    def cut(self, snapshot: LogEntry, *, keys: LogEntry | None = None) -> None:
        """Replace everything by a snapshot, all at once. It is on disk when this returns. Only keys stay, until others come."""
        entries = [snapshot] if keys is None else [keys, snapshot]
        # One transaction: after a crash the file has the old entries or the snapshot, never neither.
        with self._writing():
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute("DELETE FROM events WHERE kind != 'keys' OR ?", (keys is not None,))
            self._connection.executemany(_INSERT, [entry.row(self._count + at) for at, entry in enumerate(entries)])
            self._connection.execute("COMMIT")
        self._count += len(entries)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            # SQLite may have rolled back itself, as on a full disk, and a second rollback would be an error.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise TranscriptError(
                f"the transcript cannot be written ({error}), so nothing more was sent. Make room on the disk and start the hub "
                "again"
            ) from error

    def close(self) -> None:
        """Let others open it."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@final
class ReplayMechanism(Mechanism):
    """Releases through another mechanism, and keeps each release until it is taken. Changes in place.

    Releases put back with `recall` replace new ones, in order. They are charged all the same: the ledger of a restarted
    hub must say what the process before it spent.
    """

    def __init__(self, through: Mechanism) -> None:
        # Replaced for each slot of a stream, which has a mechanism of its own.
        self.through = through
        # New releases that no log entry has yet, and releases from the log that the replay has not reached.
        self._new: list[Array] = []
        self._stored: deque[Array] = deque()

    def recall(self, released: bytes | None) -> None:
        """Put back what was released next."""
        if released is not None:
            body = decode(released).body
            # `taken` wrote it. Releases are stored in the wire format, which keeps every bit of an array.
            assert isinstance(body, Contribution)
            # Copies, because the alignment of an array in memory can change the last digit of what is computed from it.
            self._stored.extend(np.array(array) for array in body.arrays)

    def taken(self) -> bytes | None:
        """What was released since the last call, to be written to disk; None if nothing was."""
        arrays, self._new = tuple(self._new), []
        return encode(Message("hub", "hub", Contribution(round=0, arrays=arrays))) if arrays else None

    def require_all_given(self) -> None:
        """Refuse to continue after a replay that did not use every release that was put back."""
        if self._stored:
            raise ProtocolError("the transcript has releases that this hub does not make: it belongs to another study or version")

    def release(self, private: Bounded, *, label: str, share: float = 1.0, slot: Slot | None = None) -> Array:
        return self._replayed(self.through.release(private, label=label, share=share, slot=slot))

    def release_columns(
        self, slices: Iterable[Array], *, dim: int, sensitivity: float, label: str, share: float = 1.0, slot: Slot | None = None
    ) -> Iterator[Array]:
        """The same, slice by slice; charged before the first slice is asked for."""
        released = release_columns(self.through, slices, dim=dim, sensitivity=sensitivity, label=label, share=share, slot=slot)
        # `map` is lazy, so a slice is released when it is wanted, and they are never all in memory.
        return map(self._replayed, released)

    def _replayed(self, released: Array) -> Array:
        """The earlier release at this place if there is one; otherwise this one, to be written to disk."""
        if not self._stored:
            self._new.append(released)
            return released
        # The noise that was just drawn is thrown away unseen, so it costs nothing.
        before = self._stored.popleft()
        # A shape is all that can be compared: the noise just drawn differs from the old one by design.
        if before.shape != released.shape:
            raise ProtocolError("the transcript has other releases than this hub makes: it belongs to another study or version")
        return before

    def scale(self, sensitivity: float, *, share: float = 1.0) -> float:
        return self.through.scale(sensitivity, share=share)


@final
class DurableHub(DurableParty):
    """The hub of `parties`, brought to where the transcript ends. Changes in place."""

    def __init__(self, parties: Parties, transcript: HubLog, *, limits: MessageLimits, on_event: OnEvent) -> None:
        super().__init__(limits=limits, on_event=on_event)
        # What the hub releases; None without noise, where the same sums come out again.
        self._memory: ReplayMechanism | None = None

        def through(mechanism: Mechanism) -> Mechanism:
            self._memory = None if isinstance(mechanism, Exact) else ReplayMechanism(mechanism)
            return mechanism if self._memory is None else self._memory

        masking = parties.masking(secret=transcript.secret)
        self.party: Hub[Any] = parties.hub(masking=masking, watch=self._note, through=through, asking=self._asked_before)
        # While it replays: the question that the next move must ask. Otherwise: the question that a move has come to.
        self._question: Question | None = None
        self._parties, self._transcript = parties, transcript
        self.rounds: list[Round] = []
        self.traffic: defaultdict[int, Traffic] = defaultdict(Traffic)
        self.stopped: ProtocolError | None = None
        self.refused = 0
        # How many charges of the hub's ledger earlier rounds have shown, so that each round shows its own.
        self._charged = 0
        self._replaying = False
        self._replay()

    def _asked_before(self, question: Question) -> Question:
        """The question as it was first asked, to the last digit.

        Another machine may compute other last digits, and sites would take that for another question.
        """
        if not self._replaying:
            self._question = question
        elif self._question is not None:
            question, self._question = self._question, None
            # The transcript is a file on disk: a question from it is checked like one from the network.
            self._parties.study.require_question(question)
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
        below = self._parties.layout.below[self.party.name]
        return [outgoing for name in below for outgoing in self.on_reconnect(name)]

    def on_reconnect(self, other: str) -> list[Outgoing]:
        # Not in the log: it repeats what the hub has said, and moves it nowhere.
        return self._outgoing(self.party.on_reconnect(other))

    def _refuse(self, error: PeerError) -> None:
        self.refused += 1
        super()._refuse(error)

    def _move(self, cause: Cause, step: Callable[[], list[Message]]) -> list[Outgoing]:
        if cause.message is not None:
            # Counted before the party accepts it: bytes that were refused have been on the line too. A sender could name ever
            # new rounds, and each would take memory, so others count in this one.
            self.traffic[min(cause.message.body.round, self.party.round)].up += len(cause.data)
        messages: list[Message] = []
        try:
            messages = step()
        except ProtocolError as error:
            # A lost quorum, for one. It is logged too, so that a resumed hub is in the same state.
            self.stopped = error
        # One log entry has the cause and what the hub released because of it, so a crash cannot separate them.
        released = None if self._memory is None else self._memory.taken()
        # Where the move has brought the hub: to another question, or to the result. The round is 0, because only the question is
        # read back: the replayed hub counts its rounds itself.
        question, self._question = self._question, None
        body: Ask | Done | None = None if question is None else Ask(0, question)
        if self.party.result is not None:
            body = Done(0, self._parties.study.encode_result(self.party.result))
        outcome = None if body is None else encode(Message(self.party.name, self.party.name, body))
        self._transcript.add(LogEntry.of(cause, released, outcome=outcome))
        return self._outgoing(messages)

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
            body = None if event.outcome is None else decode(event.outcome).body
            if isinstance(body, Ask):
                self._question = body.question
            try:
                # Without the checks of `take`: only messages that the hub had accepted are in the log.
                match event.kind:
                    case "begin":
                        messages = self.party.start()
                    case "resume":
                        self.stopped = None
                        messages = self.party.resume()
                    case "timeout":
                        messages = self.party.timeout()
                    case "message":
                        message = decode(event.data, limits=self._limits)
                        self.traffic[message.body.round].up += len(event.data)
                        messages = self.party.receive(message)
                    case kind:
                        raise ProtocolError(f"the transcript has an entry of the kind {kind!r}, which is for streams")
                # Encoded only to count its bytes, so that the report has the traffic of the whole study.
                self._outgoing(messages)
            except ProtocolError as error:
                self.stopped = error
            if isinstance(body, Done) and self.party.result is not None:
                # To the last digit what all parties were told, whatever this machine computes.
                self.party.result = found_in(self._parties, body.arrays)
            if self._question is not None:
                raise ProtocolError("the transcript has questions that this hub does not ask: it is of another version")
        if self._memory is not None:
            self._memory.require_all_given()
            # Forget what the replay released: it is in the transcript already.
            self._memory.taken()
        self._replaying = False

    def _note(self, round_: HubRound) -> None:
        traffic, method = self.traffic[round_.number], self._parties.request.fit.plan.method
        ledger = self._parties.ledgers.get(self.party.name)
        charges = () if ledger is None else ledger.charges
        done = round_of(round_, method=method, down=traffic.down, up=traffic.up, charges=charges[self._charged :])
        self._charged = len(charges)
        self.rounds.append(done)
        if not self._replaying:
            missing = f", without {', '.join(done.missing[:5])}" if done.missing else ""
            self._on_event(Event("round", done.stage, f"{len(done.answered)} answered{missing}"))
