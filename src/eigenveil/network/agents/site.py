"""`SiteAgent`: a site of a study over the network, from its table to its model.

`eigenveil site` runs it. It spends only what its ledger allows; `durable/site.py` has the states of a round.
"""

import asyncio
import math
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final, final

from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Charge
from eigenveil.errors import ProtocolError, require
from eigenveil.ledger.durable import DurableLedger, Opened, StudyBudget
from eigenveil.model import Model
from eigenveil.network.agents.durable.party import Event, OnEvent
from eigenveil.network.agents.durable.site import DurableSite
from eigenveil.network.agents.runner import STOPPED, THANKS, Runner, accepted
from eigenveil.network.agents.site_data import (
    SiteData,
    account_of,
    credentials_of,
    other_study,
    place_of,
    require_not_withdrawn,
    require_policy,
)
from eigenveil.network.identity.certificates import Keys
from eigenveil.network.policy import Policy
from eigenveil.network.study.file import StudyFile
from eigenveil.network.study.parties import federated_model, found_in, parties_of
from eigenveil.network.study.size import MEMORY, limits_of
from eigenveil.protocols.wire import MessageLimits
from eigenveil.runtimes.grpc import Transport

__all__ = ["SiteAgent"]

# How long a site tries to say THANKS. It has its result already, so nothing depends on it.
_GOODBYE: Final = 5.0


@final
class SiteAgent:
    """One site: its place in the `study`, its table, its ledger, and the name of its `dataset` there.

    Changes in place: it spends. Nothing is connected and nothing is spent before `run`. `withdrawn` has the pins that are
    void by now: it is asked at every connection. A study that needs more than `memory` bytes is refused.
    """

    def __init__(
        self,
        study: StudyFile,
        *,
        keys: Keys,
        holding: SiteData,
        ledger: DurableLedger,
        dataset: str,
        policy: Policy | None,
        withdrawn: Callable[[], Collection[str]] = tuple,
        memory: int = MEMORY,
        on_event: OnEvent = lambda event: None,
    ) -> None:
        require(study.carrier != "gossip", f"{study.name!r} is a study between peers: run `eigenveil peer`")
        self.study, self.policy = study, policy
        self.place = place_of(study, keys, role="site")
        self.parties = parties_of(study, memory=memory)
        self._keys, self._holding, self._durable_ledger, self._on_event = keys, holding, ledger, on_event
        self._withdrawn = withdrawn
        # Before any connection and any charge: a study that is refused learns nothing.
        require_policy(policy, study, holding, me=self.place.name, method=self.parties.request.plan.method)
        self.account = self._account(dataset)
        # The connections, while `run` runs.
        self.transport: Transport | None = None

    @property
    def above(self) -> str:
        """Who asks this site: the hub, or a node of the tree."""
        return self.parties.above[self.place.name]

    def _account(self, dataset: str) -> StudyBudget:
        request, masked = self.parties.request, self.parties.masked
        # With trust "both" the site is charged for its own noise: that budget holds against the hub, which sees most.
        budget = request.at_sites if request.at_sites is not None else request.at_hub
        if masked is not None and masked.lattice.gaussian is not None and budget is not None:
            # Masks may take a part of delta, and then the noise is for the rest: `gaussian` is that smaller budget.
            gaussian = masked.lattice.gaussian
            account = account_of(self.study, dataset, party=self.place.name, budget=budget, mu=gaussian.mu)
            # The probability that masks fail adds to delta, at any epsilon.
            return account if not account.private else replace(account, beyond=masked.lattice.failure)
        mu = 0.0 if budget is None else budget.mu
        return account_of(self.study, dataset, party=self.place.name, budget=budget, mu=mu)

    @property
    def _whole(self) -> Charge | None:
        """The charge for a whole study, where the hub adds the noise.

        It is charged at once with the first part: the site has no say in what the hub does with that part.
        """
        request = self.parties.request
        if request.at_sites is not None or request.at_hub is None or not self.account.private:
            return None
        return Charge("the whole study: the hub adds the noise", request.at_hub.mu)

    async def run(
        self, deliver: Callable[[Model], None], *, address: str | None = None, note: str | None = None
    ) -> Model:
        """Take part until the result is here. `deliver` gets the model before the study is closed in the ledger.

        `address` is where to reach the hub or node above, if not where the study file says. `note` is for the ledger,
        such as who consented.
        """
        life: Budget | None = None if self.policy is None else self.policy.life
        # Two processes of one site would answer the same question with two different noises.
        with self._durable_ledger.lock(self.study.digest):
            entered = self._durable_ledger.join(self.account, life=life)
            if entered.finished:
                raise ProtocolError(f"this site has finished the study {self.study.name!r}, and has written its model")
            if note is not None:
                self._durable_ledger.note(self.study.digest, note)
            durable = self._durable(entered)
            if not entered.fresh:
                self._on_event(Event("resumed", self.place.name, f"{len(entered.steps)} steps are in the ledger"))
            # A site that was stopped after the result came has it in the ledger, and need not call anyone.
            if not durable.over:
                await self._carry(durable, address)
            assert durable.party.result is not None
            found = found_in(self.parties, durable.party.result)
            model = federated_model(self.study, self.parties, found, sites=len(self.parties.names), rounds=None)
            # First the model on disk, then the end in the ledger: that wipes the bytes from which the model could be made
            # again.
            deliver(model)
            self._durable_ledger.finish(self.study.digest)
            return model

    def _durable(self, entered: Opened) -> DurableSite:
        whole, request = self._whole, self.parties.request
        # A share under masks is charged for the whole sum, which counts a person's rows at all their sites. A part with the
        # site's own noise is charged for this site alone, so it is multiplied.
        stretch = 1.0 if self.parties.masked is not None else math.sqrt(request.person_sites)
        # The ledger has charges per person, the party counts its own: undo the factor that `DurableSite` applied.
        charged = [charge for step in entered.steps for charge in step.charges if charge != whole]
        spent = tuple(Charge(charge.label, charge.mu / stretch) for charge in charged)
        party = self.parties.member(
            self.place.name, self._holding.rows, identity=self._keys.identity, secret=entered.secret, charges=spent
        )
        return DurableSite(
            party,
            self.parties,
            self._durable_ledger,
            entered,
            study=self.study.digest,
            above=self.above,
            limits=self._limits("site"),
            most=self._limits("hub" if self.study.fanout is None else "node").largest,
            whole=whole,
            stretch=stretch,
            on_event=self._on_event,
        )

    def _limits(self, role: str) -> MessageLimits:
        return limits_of(self.study, self.parties.request, role, self.parties.masked)

    async def _carry(self, durable: DurableSite, address: str | None) -> None:
        above = self.study.place(self.above)
        transport = self.transport = Transport(
            self.place.name,
            credentials=credentials_of(self.study, self._keys),
            greeting=self.study.greeting,
            accepts=accepted(self._limits("site")),
        )
        reply = 0.0 if self.policy is None else self.policy.reply_seconds

        async def greet(name: str) -> None:
            # Asked at every connection: a pin may be withdrawn while a study runs, and nothing more must go there.
            require_not_withdrawn(above, self._withdrawn())

        def other(name: str, greeting: bytes) -> str:
            raise other_study(self.study, name, greeting)

        runner = Runner(
            durable, transport, on_event=self._on_event, notes=self._noted, greet=greet, other=other, reply=reply
        )
        try:
            where = address or above.address
            assert where is not None
            self._on_event(Event("waiting", above.name, f"for {above.name} at {where}"))
            transport.dial(
                above.name,
                where,
                certificate=above.certificate.pem.encode(),
                server_name=above.certificate.server_name,
            )
            await runner.run(lambda: durable.over)
            async with asyncio.timeout(_GOODBYE):
                await runner.note(above.name, THANKS)
        except TimeoutError:
            # The result is in the ledger, so nothing is lost if the hub does not hear the thanks.
            pass
        finally:
            await transport.close()
            runner.close()

    async def _noted(self, sender: str, words: bytes) -> None:
        if words == STOPPED:
            self._on_event(
                Event("waiting", sender, f"{sender} has stopped. The study goes on when it is started again")
            )
