"""`SlotParties` makes the hub, the nodes and the sites of streams, from their public spec alone.

In one process `SlotSimulation` makes all of them. Over a network each party makes itself from the same spec, so that they fit
together. With a seed, every slot of every party draws from a seed of its own: so a party that was restarted, or asked in
another order, draws the same noise.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, final

from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Account, Ledger
from eigenveil.core.mechanism import Exact, Gaussian, Mechanism
from eigenveil.core.noise import Noise
from eigenveil.errors import require
from eigenveil.estimators.slots.spec import SlotSpec
from eigenveil.linalg import Array
from eigenveil.privacy.facts import NO_PRIVACY
from eigenveil.privacy.lattice import Share
from eigenveil.protocols.keys import Identity
from eigenveil.protocols.masked.hub import SecureAggregator
from eigenveil.protocols.masked.member import MaskedMember
from eigenveil.protocols.masked.terms import MaskedTerms
from eigenveil.protocols.slot_hub import MaskedSlotMember, SlotHub, SlotMember, SlotRound
from eigenveil.protocols.star.hub import Node
from eigenveil.protocols.star.rounds import Terms, star, tree
from eigenveil.tasks.base import Question
from eigenveil.tasks.fit.gaps import Extent
from eigenveil.tasks.slot_sums import SlotSums
from eigenveil.tasks.slots import SlotState

__all__ = ["SlotParties"]

# Spending stays this far below the budget, relatively. Otherwise rounding in the ledger could refuse the last release.
_MARGIN: Final = 1e-10


@final
class SlotParties:
    """The parties of a `spec`. Changes in place: it keeps the ledgers of what it has made.

    Under masks, `roster` has the public identities of all sites, and signatures are bound to `title`, None for a new one.
    """

    def __init__(
        self,
        spec: SlotSpec,
        *,
        roster: Mapping[str, bytes],
        title: str | None = None,
        hub: str = "hub",
        through: Account | None = None,
    ) -> None:
        self.spec, self.task = spec, spec.task()
        # Where every charge of a party is kept first, where all of them are in one process.
        self._through = through
        self.layout = (
            star(spec.names, hub=hub) if spec.fanout is None else tree(spec.names, fanout=spec.fanout, hub=hub)
        )
        self.above = self.layout.above()
        self.ledgers: dict[str, Ledger] = {}
        self._places = {name: 1 + index for index, name in enumerate(spec.names)}
        self.masked: MaskedTerms | None = None
        if spec.trust == "masked":
            # Masks are planned far from a device, which would have to load the planner otherwise.
            from eigenveil.plan.masks import masked_terms

            assert isinstance(self.task, SlotSums)
            self.masked = masked_terms(
                Extent(rounds=spec.slots, entries=self.task.side**2, smallest=1.0 / spec.person_slots),
                roster,
                title=title,
                budget=spec.budget,
                survivors=spec.survivors,
                colluders=spec.colluders,
                several=1,
                people=None if spec.size is None else float(spec.size),
            )

    @property
    def multiplier(self) -> float:
        """Noise over sensitivity of one release at a share of one; 0 without noise."""
        if self.spec.budget is None:
            return 0.0
        return self.masked.multiplier if self.masked is not None else (1 + _MARGIN) / self.spec.budget.mu

    @property
    def mu(self) -> float:
        """What all slots together cost a person; infinite without privacy."""
        budget = self.spec.budget
        if self.masked is not None:
            # Masks may take a part of delta, and then the noise is for the rest.
            budget = self.masked.lattice.gaussian
        return math.inf if budget is None else budget.mu

    def noise(self, sites: int) -> float:
        """How many releases' noise a sum over so many sites has."""
        if self.spec.budget is None:
            return 0.0
        if self.masked is not None:
            # Shares are calibrated for the fewest honest survivors. More survivors add more noise.
            return sites / self.masked.lattice.honest
        return float(sites) if self.spec.trust == "site" else 1.0

    def _new_ledger(self, budget: Budget) -> Ledger:
        return Ledger.continued(budget, (), {}, unit=self.spec.unit, through=self._through)

    def member(self, name: str, *, ledger: Ledger | None = None, **more: Any) -> SlotMember:
        """The site of this name. After a restart, `ledger` is what it had spent before."""
        if ledger is not None:
            self.ledgers[name] = ledger
        return SlotMember(
            name,
            hub=self.above[name],
            task=self.task,
            mechanism=lambda slot: self._site_mechanism(name, slot),
            window=self.spec.max_lateness,
            **more,
        )

    def masked_member(
        self, name: str, *, identity: Identity, secret: bytes | None = None, ledger: Ledger | None = None, **more: Any
    ) -> MaskedSlotMember:
        """The site of this name under masks. After a restart, `ledger` is what it had spent before."""
        masked, task, hub = self.masked, self.task, self.above[name]
        require(masked is not None, "parts of this study are not masked")
        assert masked is not None and masked.lattice.gaussian is not None and isinstance(task, SlotSums)
        budget = masked.lattice.gaussian
        spends = self._new_ledger(budget) if ledger is None else ledger
        self.ledgers[name] = spends

        def share(slot: int) -> Share:
            return Share(
                lattice=masked.lattice, ledger=spends, noise=self._noise(name, slot), multiplier=masked.multiplier
            )

        return MaskedSlotMember(
            hub=hub,
            task=task,
            share=share,
            member=lambda made: MaskedMember(
                name, hub=hub, task=task, share=share(0), terms=masked, identity=identity, secret=secret, made=made
            ),
            **more,
        )

    def node(self, name: str) -> Node:
        """The inner node of this name."""
        return Node(
            name, above=self.above[name], below=self.layout.below[name], task=self.task, terms=self._patience(name)
        )

    def masking(self, *, secret: bytes | None = None) -> SecureAggregator | None:
        """The hub's side of the masks, None without masks."""
        if self.masked is None:
            return None
        return SecureAggregator(self.masked, self.task, secret=secret, slots=self.task.slots)

    def hub(
        self,
        *,
        masking: SecureAggregator | None = None,
        watch: Callable[[SlotRound], None] | None = None,
        answer: Callable[[SlotState], tuple[Array, ...]] = lambda state: (),
        through: Callable[[Mechanism], Mechanism] = lambda mechanism: mechanism,
    ) -> SlotHub:
        """The hub. `through` may wrap its mechanisms, and `answer` is what sites are told at the end."""
        name = self.layout.hub
        return SlotHub(
            self.task,
            self.layout.below[name],
            lambda slot, often: through(self.hub_mechanism(slot, often)),
            terms=self._patience(name),
            window=self.spec.max_lateness,
            apart=self.spec.apart,
            clock=self.spec.clock,
            noise=self.noise,
            name=name,
            watch=watch,
            exchanges=masking,
            back=None if masking is None else masking.mark_reachable,
            survivors=self.spec.survivors if masking is not None else 1,
            answer=answer,
        )

    def _patience(self, name: str) -> Terms:
        """Twice the deadline at each level up: a node must give up on its sites before the level above gives up on it."""
        levels, terms = self.layout.levels, self.spec.terms
        return replace(terms, deadline=terms.deadline * 2 ** (max(levels.values()) - levels[name]))

    def _site_mechanism(self, name: str, slot: int) -> Mechanism:
        if self.spec.budget is None:
            return Exact(because=NO_PRIVACY["stream"])
        if self.spec.trust == "hub":
            return Exact(because="the hub, which is trusted, adds the noise")
        return self._gaussian(name, self.spec.budget, self._noise(name, slot))

    def _gaussian(self, name: str, budget: Budget, noise: Noise) -> Gaussian:
        """The mechanism of a party that adds noise. Its ledger is made at its first release."""
        if name not in self.ledgers:
            self.ledgers[name] = self._new_ledger(budget)
        return Gaussian(multiplier=self.multiplier, ledger=self.ledgers[name], noise=noise)

    def respend(self, folds: Mapping[int, int]) -> None:
        """Charge again what a hub released before it was stopped, so that its ledger says so. Nothing is released."""
        if not isinstance(self.task, SlotSums) or self.spec.trust != "hub" or self.spec.budget is None:
            return
        # The ledger refuses to go back, and the order in which slots were folded is not stored.
        for slot, often in sorted(folds.items()):
            for group in range(often):
                mechanism = self.hub_mechanism(slot, group)
                assert isinstance(mechanism, Gaussian)
                question = Question(slot)
                where = replace(self.task.slot(question), group=f"{group}")
                # This is the share and the noise of the release itself, so the ledger says what it said before.
                mu = math.sqrt(self.task.share(question)) / self.multiplier
                mechanism.ledger.spend(mu, label=self.task.label(question), slot=where)

    def hub_mechanism(self, slot: int, often: int) -> Mechanism:
        """The hub's mechanism for a slot that was folded `often` before."""
        budget, name = self.spec.budget, self.layout.hub
        if budget is None or self.spec.trust != "hub":
            return Exact(because=NO_PRIVACY["stream"] if budget is None else "the sites have added noise")
        return self._gaussian(name, budget, self._noise(name, slot, often))

    def _noise(self, name: str, slot: int, often: int = 0) -> Noise:
        seed = self.spec.seed
        if seed is None:
            return Noise.fresh()
        # 32 bits for the party and for the slot, and 16 for how often it was folded, so that no two draws meet.
        return Noise.seeded((seed << 80) + (self._places.get(name, 0) << 48) + (slot << 16) + often)
