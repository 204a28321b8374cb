"""`Member`: a site. It answers each question about its rows once, and checks the question before it works.

    | state             | event                               | next state
    | no question yet   | Ask                                 | answered
    | answered, round r | Ask, round >= r, the same question  | answered: the same numbers, or a second try after a decline
    |                   | Ask, round > r, another question    | answered: new work, new charge
    |                   | Done, round >= r                    | done

Anything else is a `PeerError` and changes nothing: an earlier round, two questions in one round, or a question after the result.
"""

from dataclasses import replace
from typing import final

from eigenveil.core.mechanism import Exact, Mechanism
from eigenveil.core.rows import Rows
from eigenveil.errors import BudgetExceeded, PeerError
from eigenveil.linalg import Array
from eigenveil.protocols.messages import Ask, Contribution, Decline, Done, Message
from eigenveil.protocols.party import AnyTask, Party, require_asked
from eigenveil.tasks.base import Question

__all__ = ["Member"]


@final
class Member(Party):
    """A site with `rows`, whose parts leave through `mechanism` towards `hub` (in a tree, the node above it). Changes in place.

    Asked the same question again, it sends the same numbers and never fresh noise. An error with its rows stays here, in
    `error`: the hub learns only that no part will come. It answers at most `most_questions` different questions, None for any
    number.
    """

    def __init__(
        self, name: str, *, hub: str, task: AnyTask, rows: Rows, mechanism: Mechanism, most_questions: int | None = None
    ) -> None:
        super().__init__(name)
        self._hub, self._task, self._max_questions = hub, task, most_questions
        self._rows, self._mechanism = rows, mechanism
        self._question: Question | None = None
        self._round, self._questions = -1, 0
        self._answer: Contribution | None = None
        self.error: Exception | None = None
        self.result: tuple[Array, ...] | None = None

    def receive(self, message: Message) -> list[Message]:
        if message.sender != self._hub:
            raise PeerError(message.sender, "is not the hub of this site")
        match message.body:
            case Ask(round=round_, question=question):
                return [Message(self.name, self._hub, self._on_ask(round_, question, message.sender))]
            # A second result is refused like any message out of place: the first one is what this site reported.
            case Done(round=round_, arrays=arrays) if round_ >= self._round and self.result is None:
                self.result = arrays
                return []
            case body:
                raise PeerError(message.sender, f"sent {type(body).__name__} to a site in round {self._round}")

    def recall(self, message: Message, replies: list[Message]) -> None:
        ask, answers = message.body, [answer.body for answer in replies]
        if not isinstance(ask, Ask) or len(answers) != 1 or not isinstance(answers[0], Contribution | Decline):
            self.receive(message)
            return
        # A site that is started again must not answer more questions than the study has.
        self._questions += self._question is None or not ask.question.same(self._question)
        self._round, self._question = ask.round, ask.question
        self._answer = answers[0] if isinstance(answers[0], Contribution) else None

    def _on_ask(self, round_: int, question: Question, hub: str) -> Contribution | Decline:
        if self.result is not None:
            raise PeerError(hub, "asked again after the result")
        if round_ < self._round:
            raise PeerError(hub, f"asked for round {round_} in round {self._round}")
        if self._question is not None and question.same(self._question):
            # Asked again, in this round or after a hub resumed: the same numbers, which need no second charge. After a
            # decline the rows may be readable now.
            if self._answer is not None:
                self._round = round_
                return replace(self._answer, round=round_)
        else:
            if self._question is not None and round_ == self._round:
                raise PeerError(hub, f"asked two different questions in round {round_}")
            require_asked(self._task, question, by=hub)
            if self._max_questions is not None and self._questions >= self._max_questions:
                raise PeerError(hub, f"asked more than the {self._max_questions} questions that this study has")
            self._question, self._questions = question, self._questions + 1
        self._round = round_
        answer = self._work(round_, question)
        # Without noise the same work gives the same numbers, so thousands of sites need not keep theirs in memory.
        self._answer = answer if isinstance(answer, Contribution) and not isinstance(self._mechanism, Exact) else None
        return answer

    def _work(self, round_: int, question: Question) -> Contribution | Decline:
        try:
            arrays = self._task.arrays(self._task.work(question, self._rows, self._mechanism))
            # The hub makes the same check. Failing here keeps the reason at the site.
            self._task.part(question, arrays)
        # Kept here: an error may quote a row, and even its kind would tell the hub something about the data.
        except (ValueError, BudgetExceeded, OSError) as error:
            self.error = error
            return Decline(round_)
        self.error = None
        return Contribution(round=round_, arrays=arrays, half=self._task.has_symmetric_parts(question))
