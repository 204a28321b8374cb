"""`FederatedSimulation`: one federated fit in one process, for `FederatedPCA`. A runtime carries the messages."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, final

from eigenveil.core.ledger import Charge, Ledger
from eigenveil.core.rows import Rows
from eigenveil.errors import BudgetExceeded, ParameterWarning, QuorumLost, at_place, require, require_param, verbatim
from eigenveil.estimators.checks import WholeCharge
from eigenveil.estimators.federated.masks import DeclaredBounds
from eigenveil.estimators.federated.parties import Parties
from eigenveil.estimators.federated.spec import FederatedSpec
from eigenveil.estimators.rounds import Round, Watch, round_of
from eigenveil.estimators.sites import Columns
from eigenveil.estimators.verdict import FitVerdict
from eigenveil.protocols import Hub, HubRound, Member, Party
from eigenveil.protocols.masked import Identity, MaskedMember, MaskedTerms
from eigenveil.runtimes import Faults, LocalStar, Refusal
from eigenveil.tasks.fit.task import Fit, FitResult, WholeFit

__all__ = ["FederatedSimulation"]


@final
class FederatedSimulation:
    """The parties of one fit and what they have done. Changes in place: it spends.

    After a lost quorum `run(resume=True)` continues where it stopped. Sites may have been repaired before (`repair`).
    """

    def __init__(
        self,
        request: FederatedSpec,
        sites: Mapping[str, Rows],
        columns: Columns,
        *,
        watch: Watch | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.request, self.columns, self.watch = request, columns, watch
        self.rounds: list[Round] = []
        self._names, self._sites = tuple(sites), dict(sites)
        # Real keys even here, so that a simulation runs the same protocol as a network.
        self._identities = {name: Identity.fresh() for name in self._names} if request.masks is not None else {}
        roster = {name: identity.public for name, identity in self._identities.items()}
        self._whole = WholeCharge(
            ledger, request.at_sites, request.at_hub, unit=request.fit.unit, label="this fit at sites"
        )
        self.parties = Parties(request, self._names, roster=roster, through=self._whole)
        self._masking = self.parties.masking()
        self.members: dict[str, Member | MaskedMember] = {name: self._member(name, r) for name, r in sites.items()}
        self.hub: Hub[Any] = self.parties.hub(masking=self._masking, watch=self._note)
        self._seen_charges: dict[str, int] = {}
        self._runtime: LocalStar | None = None
        self._missing: tuple[str, ...] = ()
        # Maximum and root of squares of the weights of parts. All sites at weight one, until a round draws some of
        # them.
        self._weights = (1.0, math.sqrt(len(self._names)))
        self._anew = False
        # What was said before anything was spent.
        self.before: tuple[ParameterWarning, ...] = ()
        self.refused: tuple[Refusal, ...] = ()

    @property
    def study(self) -> WholeFit[Any, Any, Any]:
        """The whole fit as one task."""
        return self.parties.study

    @property
    def masked(self) -> MaskedTerms | None:
        """The terms that sites agreed on, None without masks."""
        return self.parties.masked

    @property
    def ledgers(self) -> dict[str, Ledger]:
        """The ledger of each party."""
        return self.parties.ledgers

    def verdict(self, found: FitResult, *, names: tuple[str, ...] | None) -> FitVerdict:
        """The verdict on the fit. The columns may have `names`."""
        # The last round may have drawn few sites, weighted to stand for all.
        return self.parties.verdict(
            found, sites=len(self.hub.sites), weights=self._weights, names=names, before=self.before
        )

    def _member(self, name: str, rows: Rows) -> Member | MaskedMember:
        return self.parties.member(name, rows, identity=self._identities.get(name))

    def run(self, *, faults: Faults | None = None, resume: bool = False) -> Any:
        """The result. A lost quorum passes through and can be resumed."""
        # A fit plans to spend its whole budget, so a second charge for one round cannot be paid.
        if resume and self.request.fit.private and self.hub.paid_in_vain:
            raise BudgetExceeded(
                "the last round was charged and failed, and the rest of the budget does not pay for the rest of the fit. Nothing "
                "more was charged. Start a new fit with a budget of its own"
            )
        nodes = [self.parties.node(name) for name in self.parties.layout.nodes]
        others: list[Party] = [*nodes, *self.members.values()]
        self._runtime = LocalStar(self.hub, others, faults=faults, seed=self.request.seed)
        try:
            with self._whole.reserved(self.masked):
                found = self._runtime.run(resume=resume, anew=self._anew)
        except QuorumLost as error:
            self._missing = error.missing
            raise
        finally:
            self._anew = False
            self.refused += tuple(self._runtime.refused)
            if self._masking is not None:
                # Masks name liars when a sum is opened, which refuses no message.
                lies = (Refusal("hub", name, why) for name, why in self._masking.liars.items())
                self.refused += tuple(lie for lie in lies if lie not in self.refused)
        traffic = self._runtime.traffic
        last = self.rounds[-1]
        # The hub's last message was sent after the round ended.
        self.rounds[-1] = replace(last, bytes_down=traffic[last.number].down, bytes_up=traffic[last.number].up)
        return found

    def repair(self, site: str, rows: Rows) -> None:
        """Give other rows to a site that was missing when the quorum was lost.

        If the site had been counted before, the fit restarts. With a budget that would cost twice, so it is refused.
        """
        require(site in self.members, f"there is no site {site!r}")
        require(
            site in self._missing,
            f"{site} was not missing, so its rows cannot change: the answer would mix old and new rows",
        )
        self._require_declared(site, rows)
        self._sites[site] = rows
        member = self.members[site]
        # A masked part may have left in a round that then failed: it counts as given.
        given = isinstance(member, MaskedMember) and member.gave
        if given or any(site in done.answered for done in self.rounds):
            require(
                not self.request.fit.private,
                f"{site} has been counted with its earlier rows. Resume without new rows, or pay for a new fit",
            )
            # Its earlier rows are in every sum so far, so the answer would mix old and new ones.
            self._anew = True
        if isinstance(member, MaskedMember):
            # It keeps its keys: the other sites agreed on masks with them.
            self.parties.mended(site, rows)
            member.mend(rows)
            return
        self.members[site] = self._member(site, rows)

    def _require_declared(self, site: str, rows: Rows) -> None:
        """Refuse rows beyond the declared bounds: they would be clipped."""
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
            f"{verbatim(site)}: its rows lie beyond the bounds that the sites declared. Start a new fit, or give a {{row_bound}} "
            "(eigenveil.find_bounds and `eigenveil bounds` find one)",
        )

    def require_sound_sites(self) -> None:
        """Raise the error of a site, naming the site, if there is one."""
        for name, member in self.members.items():
            if member.error is not None and name in self._missing:
                # An error of the rows keeps its parameters, so that each surface can word it.
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
            method=self.request.fit.plan.method,
            down=traffic.down,
            up=traffic.up,
            charges=self._new_charges(round_),
        )
        self.rounds.append(done)
        if self.watch is not None:
            self.watch(done)

    def _new_charges(self, round_: HubRound) -> tuple[Charge, ...]:
        """What this round charged to the hub's ledger and to that of one site that answered."""
        found: list[Charge] = []
        for name in (self.parties.layout.hub, *round_.answered[:1]):
            if name in self.ledgers:
                charges = self.ledgers[name].charges
                found += charges[self._seen_charges.get(name, 0) :]
        # All ledgers, because sites that are not shown were charged, too.
        for name, ledger in self.ledgers.items():
            self._seen_charges[name] = len(ledger.charges)
        return tuple(found)
