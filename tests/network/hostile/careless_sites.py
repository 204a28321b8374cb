"""What a site must not be, to show that those who count find it out."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from eigenveil.ledger.durable import DurableLedger, StudyRecord
from eigenveil.runtimes.grpc import Transport

__all__ = ["CARELESS"]


def sends_first() -> None:
    """Writes down what it said after it said it."""
    commit, send = DurableLedger.commit, Transport.send
    later: list[Callable[[], None]] = []

    def put_off(ledger: DurableLedger, *given: Any, **named: Any) -> None:
        later.append(lambda: commit(ledger, *given, **named))

    async def hasty(transport: Transport, *given: Any) -> bool:
        sent = await send(transport, *given)
        while later:
            later.pop(0)()
        return sent

    _put(DurableLedger, commit=put_off)
    _put(Transport, send=hasty)


def forgets() -> None:
    """Keeps the charges and not the bytes, and makes new ones when asked again."""
    join, commit = DurableLedger.join, DurableLedger.commit

    def empty(ledger: DurableLedger, *given: Any, **named: Any) -> StudyRecord:
        return replace(join(ledger, *given, **named), steps=())

    def whatever(ledger: DurableLedger, study: str, number: int, **named: Any) -> None:
        commit(ledger, study, ledger.studies()[0].steps, **named)

    _put(DurableLedger, join=empty, commit=whatever)


def _put(kind: type[Any], **methods: Any) -> None:
    """Put other methods into a class, in this process only."""
    for name, method in methods.items():
        setattr(kind, name, method)


CARELESS: Final = {"sends first": sends_first, "forgets": forgets}
