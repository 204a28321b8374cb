"""A study with one party in a process of its own that is killed. All the others run in this process, so that everything that
reaches them is written down here, byte for byte."""

import asyncio
import contextlib
import math
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from eigenveil.ledger.durable import LedgerError
from eigenveil.network.agents.star import HubAgent
from network.hostile.evil_hubs import WatchedParty, watched_hub
from network.kills.kill_children import Child, Nursery, as_text
from network.kills.kill_counts import STUDIES, VICTIM, Counts, charges_in, lines_at, renoised_in, undisturbed, unpaid_in
from network.network_studies import Company, keys_of

__all__ = ["Killing", "small_disk"]

# No study here takes so long, whatever happens to it.
SECONDS: Final = 40.0


@final
class Killing:
    """One of the `STUDIES` in a `folder` of its own, whose site 1 is a child. Changes in place."""

    def __init__(
        self,
        nursery: Nursery,
        name: str,
        folder: Path,
        *,
        seconds: float = SECONDS,
        ledger: Path | None = None,
        **sections: dict[str, Any],
    ) -> None:
        self.nursery, self.name, self.seconds = nursery, name, seconds
        self.company = Company(folder, sections={**STUDIES[name], **sections})
        self.ledger = self.company.ledger(VICTIM) if ledger is None else ledger
        self.counts = Counts(runs=1)
        self.hub: WatchedParty | None = None
        self.codes: list[int] = []
        self._unpaid: set[bytes] = set()
        self.expected = list(undisturbed(name))
        (folder / "study.toml").write_text(self.company.study.text())
        np.save(folder / "table.npy", self.company.tables[VICTIM])

    @property
    def model(self) -> Path:
        """What the victim found."""
        return self.company.folder / "model.npy"

    def came(self) -> list[bytes]:
        """All that has reached the hub from the victim."""
        return [] if self.hub is None else [data for sender, data in self.hub.came if sender == VICTIM]

    def start(self, **settings: Any) -> Child:
        """The victim."""
        folder = self.company.folder
        return self.nursery.start(
            "site",
            study=folder / "study.toml",
            table=folder / "table.npy",
            keys=as_text(keys_of(VICTIM, "site")),
            ledger=self.ledger,
            model=self.model,
            log=folder / "log",
            **settings,
        )

    async def lives(self, child: Child) -> int:
        """Wait for the end of a life, and count what must hold at once, while the site is dead."""
        code = await asyncio.shield(asyncio.wrap_future(child.ended))
        self.codes.append(code)
        self.counts.kills += code == -9
        await self.settle()
        return code

    async def settle(self) -> None:
        """Everything that is here by now was in the ledger before."""
        # What the dead had sent is in the buffers of this machine: a moment of the loop takes it in.
        await asyncio.sleep(0.02)
        try:
            lines_at(self.ledger)
        except LedgerError as error:
            self.counts.note("chains", 1, str(error))
            return
        self._look()

    def _look(self) -> None:
        found = unpaid_in(self.came(), self.ledger, once=self.name.startswith("hub"))
        self.counts.note("unpaid", len(found - self._unpaid), f"{self.name}: not in the ledger, or not paid for")
        self._unpaid |= found

    async def run(self, first: Callable[[], Child], *more: Callable[[], Child]) -> Counts:
        """The study with a victim that lives as `first` says and then as `more` say, and once more if it has not ended."""
        company = self.company
        agent = watched_hub(company)
        try:
            with HubAgent.transcript_for(company.folder / "hub.transcript", company.study) as transcript:
                hub_agent, self.hub = agent(transcript)
                hub = asyncio.create_task(
                    hub_agent.run(lambda model: company.models.__setitem__("hub", model), listen=f"127.0.0.1:{company.port}")
                )
                others = [asyncio.create_task(company.run_site(name)) for name in company.names if name != VICTIM]
                try:
                    async with asyncio.timeout(self.seconds):
                        await self._lives((first, *more))
                        await asyncio.gather(*others)
                finally:
                    for task in (hub, *others):
                        task.cancel()
                    await asyncio.gather(hub, *others, return_exceptions=True)
        except Exception as error:
            self.counts.note("failed", 1, f"{self.name} {self.codes}: {type(error).__name__} {error}")
        self._count()
        return self.counts

    async def _lives(self, births: Iterable[Callable[[], Child]]) -> None:
        for birth in (*births, self.start):
            child = birth()
            try:
                code = await self.lives(child)
            except BaseException:
                self.nursery.kill(child)
                raise
            if code == 0 or self._finished():
                return
        raise RuntimeError(f"the last life ended with {self.codes[-1]}: {child.said('failed')}")

    def _finished(self) -> bool:
        with contextlib.suppress(LedgerError):
            return self.model.exists() and any(line.kind == "finish" for line in lines_at(self.ledger))
        return False

    def _count(self) -> None:
        counts, company = self.counts, self.company
        try:
            lines = lines_at(self.ledger)
        except LedgerError as error:
            counts.note("chains", 1, str(error))
            return
        spent, expected = charges_in(lines), self.expected
        self._look()
        counts.note("double", sum((Counter(spent) - Counter(expected)).values()), f"{spent} and not {expected}")
        total, right = (math.hypot(*(mu for _, mu in found)) for found in (spent, expected))
        counts.note("double", int(total > right * (1 + 1e-12)), f"mu {total} and not {right}")
        counts.note("renoised", renoised_in(self.came()), "one step was answered in two ways")
        if not counts.failed:
            others = [company.models[name].components for name in company.models]
            same = self.model.exists() and all(np.array_equal(np.load(self.model), other) for other in others)
            counts.note("failed", int(not same), "the parties have different models")
            counts.note("failed", int(spent != expected), f"{spent} was spent, not {expected}")


@contextlib.contextmanager
def small_disk(folder: Path, room: int) -> Iterator[Callable[[], None]]:
    """A disk of its own with so little room, and how to make more. Only root can have one."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "eigenveil", folder], check=True, capture_output=True)
    try:
        ballast = folder / "ballast"
        ballast.write_bytes(bytes((8 << 20) - room))
        yield lambda: ballast.unlink(missing_ok=True)
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
