"""`SiteAgent`: a site of a study over the network, from its table to its model.

`eigenveil site` runs it. It spends only what its ledger allows; `durable/site.py` has the states of a round.
"""

import math
from collections.abc import Callable, Collection
from typing import final

from eigenveil.core.ledger import Charge
from eigenveil.errors import require
from eigenveil.ledger.durable import DurableLedger, Opened, StudyBudget
from eigenveil.model import Model
from eigenveil.network.agents.durable.party import Event, OnEvent
from eigenveil.network.agents.durable.site import DurableSite
from eigenveil.network.agents.site_data import Holder, SiteData, account_of
from eigenveil.network.identity.certificates import Keys
from eigenveil.network.policy import Policy
from eigenveil.network.study.file import StudyFile
from eigenveil.network.study.parties import federated_model, found_in, parties_of
from eigenveil.network.study.size import MEMORY, limits_of

__all__ = ["SiteAgent"]


@final
class SiteAgent(Holder):
    """One site: its place in the `study`, its table, its ledger, and the name of its `dataset` there.

    Changes in place: it spends. Nothing is connected and nothing is spent before `run`. A study that needs more than `memory`
    bytes is refused.
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
        super().__init__(
            study, keys=keys, role="site", ledger=ledger, policy=policy, withdrawn=withdrawn, on_event=on_event
        )
        self.parties, self._holding = parties_of(study, memory=memory), holding
        request, self.calls = self.parties.request, (self.above,)
        self.limits = limits_of(study, request, "site", self.parties.masked)
        # Before any connection and any charge: a study that is refused learns nothing.
        self.require_allowed(holding, method=request.plan.method)
        self.account = self._account(dataset)

    @property
    def above(self) -> str:
        """The hub, or a node of the tree."""
        return self.parties.above[self.place.name]

    def _account(self, dataset: str) -> StudyBudget:
        request, masked = self.parties.request, self.parties.masked
        # With trust "both" the site is charged for its own noise: that budget holds against the hub, which sees most.
        budget = request.at_sites if request.at_sites is not None else request.at_hub
        gaussian = None if masked is None else masked.lattice.gaussian
        if budget is None or gaussian is None:
            mu, masked = 0.0 if budget is None else budget.mu, None
        else:
            # Masks may take a part of delta, and then the noise is for the rest: `gaussian` is that smaller budget.
            mu = gaussian.mu
        return account_of(self.study, dataset, party=self.place.name, budget=budget, mu=mu, masks=masked)

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
        with self.entered(note) as entered:
            durable = self._durable(entered)
            if not entered.fresh:
                self.on_event(Event("resumed", self.place.name, f"{len(entered.steps)} steps are in the ledger"))
            # A site that was stopped after the result came has it in the ledger, and need not call anyone.
            if not durable.over:
                async with self.connected(durable, address=address) as runner:
                    await runner.run(lambda: durable.over)
                    await runner.thank(self.above)
            assert durable.party.result is not None
            result = found_in(self.parties, durable.party.result)
            model = federated_model(self.study, self.parties, result, sites=len(self.parties.names), rounds=None)
            # First the model on disk, then the end in the ledger: that wipes the bytes from which the model could be made
            # again.
            deliver(model)
            self._durable_ledger.finish(self.study.digest)
            return model

    def _durable(self, entered: Opened) -> DurableSite:
        whole, request, study = self._whole, self.parties.request, self.study
        # A share under masks is charged for the whole sum, which counts a person's rows at all their sites. A part with the
        # site's own noise is charged for this site alone, so it is multiplied.
        stretch = 1.0 if self.parties.masked is not None else math.sqrt(request.person_sites)
        # The ledger has charges per person, the party counts its own: undo the factor that `DurableSite` applied.
        charged = [charge for step in entered.steps for charge in step.charges if charge != whole]
        spent = tuple(Charge(charge.label, charge.mu / stretch) for charge in charged)
        party = self.parties.member(
            self.place.name, self._holding.rows, identity=self._keys.identity, secret=entered.secret, charges=spent
        )
        takes = limits_of(study, request, "hub" if study.fanout is None else "node", self.parties.masked)
        return DurableSite(
            party,
            self.parties,
            self._durable_ledger,
            entered,
            study=study.digest,
            above=self.above,
            limits=self.limits,
            most=takes.largest,
            whole=whole,
            stretch=stretch,
            on_event=self.on_event,
        )
