"""One federated fit in one process: its parties, carried by a runtime, with a transcript. `FederatedPCA` is its face."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, final

from eigenveil.data.rows import Rows
from eigenveil.errors import BudgetExceeded, QuorumLost, at_place, require, require_param, verbatim
from eigenveil.estimators.federated.masks import DeclaredBounds
from eigenveil.estimators.federated.parties import Parties
from eigenveil.estimators.federated.request import FederatedSpec
from eigenveil.estimators.rounds import Round, Watch, round_of
from eigenveil.estimators.sites import Columns
from eigenveil.privacy import (
    Charge,
    Ledger,
)
from eigenveil.protocols import Hub, HubRound, Member, Party
from eigenveil.protocols.masked import Identity, MaskedMember, MaskedTerms
from eigenveil.runtimes import Faults, LocalStar, Refusal
from eigenveil.tasks.fit.task import Fit, FitResult, WholeFit

__all__ = ["FederatedSimulation"]


@final
class FederatedSimulation:
    """The parties of one fit and what they have done. Changes in place: it spends.

    After a lost quorum `run(resume=True)` goes on where it stopped, with sites that may have been put right (`repair`).
    """

    def __init__(
        self,
        request: FederatedSpec,
        sites: Mapping[str, Rows],
        columns: Columns,
        *,
        watch: Watch | None = None,
    ) -> None:
        self.request, self.columns, self.watch = request, columns, watch
        self.rounds: list[Round] = []
        self._names, self._sites = tuple(sites), dict(sites)
        self._identities = {name: Identity.fresh() for name in self._names} if request.masks is not None else {}
        roster = {name: identity.public for name, identity in self._identities.items()}
        self.parties = Parties(request, self._names, roster=roster)
        self._masking = self.parties.masking()
        self.members: dict[str, Member | MaskedMember] = {name: self._member(name, r) for name, r in sites.items()}
        self.hub: Hub[Any] = self.parties.hub(masking=self._masking, watch=self._note)
        self._lines: dict[str, int] = {}
        self._runtime: LocalStar | None = None
        self._missing: tuple[str, ...] = ()
        self._weights = (1.0, math.sqrt(len(self._names)))
        self._anew = False
        self.refused: tuple[Refusal, ...] = ()

    @property
    def study(self) -> WholeFit[Any, Any, Any]:
        """The whole fit as one task."""
        return self.parties.study

    @property
    def masked(self) -> MaskedTerms | None:
        """What sites have agreed on, where parts are masked."""
        return self.parties.masked

    @property
    def ledgers(self) -> dict[str, Ledger]:
        """What each place was charged."""
        return self.parties.ledgers

    def noise_floor(self, found: FitResult) -> float:
        """Gram eigenvalues below this cannot be told from noise."""
        # The last round may have drawn few sites, whose parts count for all.
        return self.parties.noise_floor(found, sites=len(self.hub.sites), weights=self._weights)

    def _member(self, name: str, rows: Rows) -> Member | MaskedMember:
        return self.parties.member(name, rows, identity=self._identities.get(name))

    def run(self, *, faults: Faults | None = None, resume: bool = False) -> Any:
        """The result. A lost quorum passes through and can be resumed."""
        if resume and self.request.private and self.hub.paid_in_vain:
            raise BudgetExceeded(
                "the last round was charged and came to nothing, and what is left of the budget does not pay for the rest of the "
                "fit. Nothing more was charged; a new fit needs a budget of its own"
            )
        nodes = [self.parties.node(name) for name in self.parties.layout.nodes]
        others: list[Party] = [*nodes, *self.members.values()]
        self._runtime = LocalStar(self.hub, others, faults=faults, seed=self.request.seed)
        try:
            found = self._runtime.run(resume=resume, anew=self._anew)
        except QuorumLost as error:
            self._missing = error.missing
            raise
        finally:
            self._anew = False
            self.refused += tuple(self._runtime.refused)
            if self._masking is not None:
                lies = (Refusal("hub", name, why) for name, why in self._masking.liars.items())
                self.refused += tuple(lie for lie in lies if lie not in self.refused)
        traffic = self._runtime.traffic
        last = self.rounds[-1]
        # What the hub says last was not on its way when the round ended.
        self.rounds[-1] = replace(last, bytes_down=traffic[last.number].down, bytes_up=traffic[last.number].up)
        return found

    def repair(self, site: str, rows: Rows) -> None:
        """Put other rows in place of those of a site that was missing when the quorum was lost.

        If it had been counted before, the fit begins again; where that would cost twice it is refused.
        """
        require(site in self.members, f"there is no site {site!r}")
        require(
            site in self._missing,
            f"{site} was not missing: an answer with other rows in its place would be for neither",
        )
        self._require_declared(site, rows)
        self._sites[site] = rows
        member = self.members[site]
        given = isinstance(member, MaskedMember) and member.gave
        if given or any(site in done.answered for done in self.rounds):
            require(
                not self.request.private,
                f"{site} has been counted with the rows it had; resume without giving others, or pay for a new fit",
            )
            self._anew = True
        if isinstance(member, MaskedMember):
            # Its keys are those that the others have agreed on with it.
            self.parties.mended(site, rows)
            member.mend(rows)
            return
        self.members[site] = self._member(site, rows)

    def _require_declared(self, site: str, rows: Rows) -> None:
        """Refuse rows that reach farther than was declared for all: they would be cut."""
        request = self.request
        if request.declared is None:
            return
        assert isinstance(self.study, Fit)
        bounds, center = self.study.bounds, self.study.center
        now = DeclaredBounds.of(
            self._sites | {site: rows},
            scale=bounds.scale,
            origin=bounds.origin,
            center=center,
            mean_bound=request.declared.given,
        )
        sound = now.row_bound <= request.declared.row_bound and now.mean_bound <= request.declared.mean_bound
        require_param(
            sound,
            f"{verbatim(site)}: its rows reach farther than all sites had declared; begin a new fit, or give a {{row_bound}}, "
            "such as eigenveil.find_bounds or `eigenveil bounds` finds",
        )

    def require_sound_sites(self) -> None:
        """Raise what went wrong at a site, naming it, if anything did."""
        for name, member in self.members.items():
            if member.error is not None and name in self._missing:
                if isinstance(member.error, ValueError):
                    raise at_place(name, member.error) from None
                raise type(member.error)(f"{name}: {member.error}") from None

    def _note(self, round_: HubRound) -> None:
        assert self._runtime is not None
        traffic = self._runtime.traffic[round_.number]
        if round_.stage == "components":
            self._weights = self.hub.weights
        done = round_of(
            round_,
            method=self.request.plan.method,
            down=traffic.down,
            up=traffic.up,
            charges=self._new_charges(round_),
        )
        self.rounds.append(done)
        if self.watch is not None:
            self.watch(done)

    def _new_charges(self, round_: HubRound) -> tuple[Charge, ...]:
        """The lines that this round added to the hub's ledger and to that of one site that answered."""
        found: list[Charge] = []
        for name in (self.parties.layout.hub, *round_.answered[:1]):
            if name in self.ledgers:
                lines = self.ledgers[name].charges
                found += lines[self._lines.get(name, 0) :]
        for name, ledger in self.ledgers.items():
            self._lines[name] = len(ledger.charges)
        return tuple(found)
