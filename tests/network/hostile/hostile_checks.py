"""What must hold of a site that was lied to, whatever was said to it."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from eigenveil.ledger.durable import DurableLedger, Entry
from eigenveil.protocols.messages import Body, Contribution, Decline, Masked, Message, StepReply
from eigenveil.protocols.wire import decode, encode
from network.hostile.evil_hubs import EvilHub
from network.kills.kill_counts import charges_in, lines_at, numbers_in, unpaid_in
from network.network_studies import Company

__all__ = ["SECONDS", "alone", "declined", "logged", "nothing_comes", "refusals", "require_paid", "until", "written"]

# Nothing here takes so long.
SECONDS: Final = 30.0


def written(company: Company, name: str = "site 0") -> list[Entry]:
    """The entries of a site's ledger, checked."""
    return lines_at(company.ledger(name))


def logged(company: Company, name: str = "site 0") -> list[str]:
    """What a site's ledger has logged for its own people. The entries, which others may see, have none of it."""
    assert not [line for line in written(company, name) if line.kind == "note"]
    with DurableLedger.reading(company.ledger(name)) as ledger:
        return [words for _, _, words in ledger.logged()]


def refusals(company: Company, name: str = "site 0") -> list[str]:
    """What a site told those who look on of what it refused."""
    return [told.text for who, told in company.happened if who == name and told.what == "refused"]


def declined(company: Company, name: str = "site 0") -> list[str]:
    """What a site told those who look on of why there was no part of it."""
    told = [event.text for who, event in company.happened if who == name and event.what == "said"]
    return [words for words in told if "has no part to give" in words]


def require_paid(company: Company, came: list[bytes], *, once: bool = False) -> None:
    """Everything that came is in the ledger of site 0, charged, within the account, and is what answers are made of."""
    lines = written(company)
    assert unpaid_in(came, company.ledger("site 0"), once=once) == set()
    with DurableLedger.open(company.ledger("site 0")) as ledger:
        (study,) = ledger.studies()
    assert math.hypot(*(mu for _, mu in charges_in(lines))) <= study.account.mu * (1 + 1e-9)
    for data in came:
        assert isinstance(decode(data).body, Contribution | Decline | Masked | StepReply)
    reasons = {reason.encode() for reason in refusals(company)}
    assert not any(reason in data for reason in reasons for data in came)


@asynccontextmanager
async def alone(company: Company) -> AsyncIterator[EvilHub]:
    """Site 0 by itself with an evil hub."""
    async with asyncio.timeout(SECONDS), EvilHub(company) as hub:
        run = asyncio.create_task(company.run_site("site 0"))
        await hub.joined()
        try:
            yield hub
        finally:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)


async def nothing_comes(hub: EvilHub, lie: Body | bytes, known: Body, answer: Body) -> None:
    """Of two messages the second is answered, with the numbers that it got before, and the first is not."""
    await hub.say(lie)
    again = await hub.ask(known)
    assert type(again) is type(answer)
    assert numbers_in(hub.got[-1]) == numbers_in(encode(Message("site 0", "hub", answer)))


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that other tasks bring about."""
    while not condition():
        await asyncio.sleep(0.01)
