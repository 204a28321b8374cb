"""A study whose hub is a process of its own that is killed. The sites run in this process, and what comes to them and what they
say is written down here, byte for byte."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final
from unittest import mock

import numpy as np

from eigenveil.network.agents.star import DurableSite, HubAgent
from eigenveil.network.agents.steps import Outgoing
from eigenveil.protocols.wire import decode
from eigenveil.runtimes.grpc import Timing, transport
from network.hostile.evil_hubs import about
from network.kills.kill_children import Child, Nursery, as_text
from network.kills.kill_counts import STUDIES, Counts, charges_in, lines_at, renoised_in, undisturbed, unpaid_in
from network.kills.kill_runs import SECONDS
from network.network_studies import Company, keys_of

__all__ = ["HubKilling"]


@final
@dataclass(frozen=True, slots=True)
class _Message:
    """What came to a site in one life of the hub, and what was said to it."""

    site: str
    life: int
    came: bytes
    said: list[bytes]


@final
class HubKilling:
    """One of the `STUDIES` in a `folder` of its own, whose hub is a child. Changes in place.

    `expected` is what each site spends.
    """

    def __init__(
        self,
        nursery: Nursery,
        name: str,
        folder: Path,
        *,
        seconds: float = SECONDS,
        expected: list[tuple[str, float]] | None = None,
        **sections: dict[str, Any],
    ) -> None:
        self.nursery, self.name, self.seconds = nursery, name, seconds
        self.company = Company(folder, sections={**STUDIES[name], **sections})
        self.counts = Counts(runs=1)
        self.codes: list[int] = []
        self.messages: list[_Message] = []
        self.expected = list(undisturbed(name)) if expected is None else expected
        # For each life that has ended, whose answers to what were in the transcript then.
        self.known: list[set[tuple[str, tuple[int, str]]]] = []
        (folder / "study.toml").write_text(self.company.study.text())

    @property
    def model(self) -> Path:
        """What the hub found."""
        return self.company.folder / "model.npy"

    @property
    def transcript(self) -> Path:
        """The hub's."""
        return self.company.folder / "hub.transcript"

    def start(self, **settings: Any) -> Child:
        """The hub."""
        folder = self.company.folder
        return self.nursery.start(
            "hub",
            study=folder / "study.toml",
            keys=as_text(keys_of("hub", "hub")),
            transcript=self.transcript,
            listen=f"127.0.0.1:{self.company.port}",
            model=self.model,
            log=folder / "log",
            **settings,
        )

    async def run(self, *births: Callable[[], Child], leaves: tuple[str, int] | None = None) -> Counts:
        """The study with a hub that lives as `births` say and once more if it has not ended.

        `leaves` is a site that goes away with the answer to so manieth messages, and comes back in the hub's next life.
        """
        company, take, loop = self.company, DurableSite.take, asyncio.get_running_loop()
        tasks: dict[str, asyncio.Task[None]] = {}

        def watched(durable: DurableSite, sender: str, data: bytes) -> list[Outgoing]:
            outgoing = take(durable, sender, data)
            name = durable.party.name
            self.messages.append(_Message(name, len(self.codes), data, [raw for _, raw in outgoing]))
            if (name, sum(message.site == name for message in self.messages)) == leaves:
                loop.call_soon_threadsafe(tasks[name].cancel)
            return outgoing

        try:
            # Sites that lost the hub call again at once: here nobody has to be spared, and every wait is one for nothing.
            soon = mock.patch.object(transport, "Timing", partial(Timing, shortest=0.02, longest=0.2))
            with mock.patch.object(DurableSite, "take", watched), soon:
                try:
                    async with asyncio.timeout(self.seconds):
                        for birth in (*births, self.start):
                            for name in company.names:
                                if name not in tasks or tasks[name].cancelled():
                                    tasks[name] = asyncio.create_task(company.run_site(name))
                            if await self._lives(birth(), tasks) == 0:
                                break
                        await asyncio.gather(*tasks.values())
                finally:
                    for task in tasks.values():
                        task.cancel()
                    await asyncio.gather(*tasks.values(), return_exceptions=True)
        except Exception as error:
            self.counts.note("failed", 1, f"{self.name} {self.codes}: {type(error).__name__} {error}")
        self._count()
        return self.counts

    async def _lives(self, child: Child, tasks: dict[str, asyncio.Task[None]]) -> int:
        """One life of the hub; 0 also where all sites have what they came for."""
        ended = asyncio.wrap_future(child.ended)
        # Cancelling this wait leaves the sites alone.
        everybody = asyncio.ensure_future(asyncio.wait(tasks.values()))
        waits: set[asyncio.Future[Any]] = {ended, everybody}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                # All sites have ended: the hub lingers for those who had thanked its forerunner.
                await asyncio.gather(*tasks.values())
                await self._delivered(child)
                return 0
            await ended
        finally:
            everybody.cancel()
            if not ended.done():
                self.nursery.kill(child)
        code = ended.result()
        await self._gone(tasks)
        self.codes.append(code)
        self.counts.kills += code == -9
        self.known.append(self._written())
        return code

    async def _delivered(self, child: Child) -> None:
        while not self.model.exists():
            if child.ended.done():
                raise RuntimeError(f"the hub ended: {child.said('failed')}")
            await asyncio.sleep(0.01)

    async def _gone(self, tasks: dict[str, asyncio.Task[None]]) -> None:
        """All sites have noticed that the hub is gone, and taken in what it had sent."""
        for name in self.company.names:
            if self._heard(name):
                while not (self._heard(name)[-1] == "left" or tasks[name].done()):
                    await asyncio.sleep(0.005)

    def _heard(self, name: str) -> list[str]:
        told = [one.what for who, one in self.company.happened if who == name]
        return [what for what in told if what in ("joined", "left")]

    def _written(self) -> set[tuple[str, tuple[int, str]]]:
        if not self.transcript.exists():
            return set()
        with HubAgent.transcript_for(self.transcript, self.company.study) as transcript:
            return {(event.sender, about(event.data)) for event in transcript.events() if event.kind == "message"}

    def _count(self) -> None:
        counts, company = self.counts, self.company
        asked: defaultdict[tuple[str, tuple[int, str]], set[bytes]] = defaultdict(set)
        for message in self.messages:
            what = (message.site, about(message.came))
            asked[what].add(message.came)
            again = any(what in known for known in self.known[: message.life])
            counts.note("asked_again", int(again), f"{what} in life {message.life}")
        different = [what for what, found in asked.items() if len(found) > 1]
        counts.note("renoised", len(different), f"the hub asked {different} in two ways")
        for name in company.names:
            lines = lines_at(company.ledger(name))
            said = [raw for message in self.messages if message.site == name for raw in message.said]
            counts.note("unpaid", len(unpaid_in(said, company.ledger(name), once=self.name.startswith("hub"))), name)
            counts.note("renoised", renoised_in(said), f"{name} answered one step in two ways")
            spent = charges_in(lines)
            counts.note("double", int(len(spent) > len(self.expected)), f"{name} spent {spent}")
            if not counts.failed:
                counts.note("failed", int(spent != self.expected), f"{name} spent {spent}, not {self.expected}")
        if not counts.failed:
            found = [company.models[name].components for name in company.names]
            same = self.model.exists() and all(np.array_equal(np.load(self.model), other) for other in found)
            counts.note("failed", int(not same), "the parties have different models")

    def refused(self) -> list[str]:
        """What sites refused of the hub's messages."""
        return [one.text for who, one in self.company.happened if who != "hub" and one.what == "refused"]

    def questions(self, life: int) -> list[Any]:
        """What the hub said in one of its lives."""
        return [decode(message.came).body for message in self.messages if message.life == life]
