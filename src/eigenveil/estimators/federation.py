"""One federated fit: parties set up as the trust says, carried by a runtime, with a transcript. `FederatedPCA` is its face.

Where the mechanism stands is the trust model: at the hub ("curator"), at every site ("site"), in both places, or in shares at the
sites, under masks ("masked").
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, final

import numpy as np

from eigenveil.errors import BudgetExceeded, QuorumLost, require
from eigenveil.estimators.curator import noise_floor
from eigenveil.estimators.federated_masks import Declared, masked_terms
from eigenveil.estimators.federated_request import SitesRequest, components_of, iterates
from eigenveil.estimators.rounds import Round, Watch
from eigenveil.estimators.sites import Columns
from eigenveil.estimators.study import Found, Study
from eigenveil.estimators.whole_fit import Setting, WholeFit
from eigenveil.linalg import orthonormal
from eigenveil.plan import split_budget
from eigenveil.privacy import (
    Budget,
    Charge,
    Exact,
    Gaussian,
    Ledger,
    Mechanism,
    Noise,
    Share,
    delta_of,
    epsilon_of,
)
from eigenveil.privacy.published import fedpower_multiplier
from eigenveil.protocols import Hub, Member, Node, Party, Sampling, Terms, Turn, star, tree
from eigenveil.protocols.masked import Identity, MaskedMember, MaskedTerms, Masking
from eigenveil.rows import Rows, Symmetric
from eigenveil.runtimes import Faults, InProcess, Refusal
from eigenveil.tasks.base import GRID_COST

__all__ = ["NOTHING_ASKED", "Design", "Federation"]

Design = Callable[[Setting], WholeFit[Any, Any, Any]]
NOTHING_ASKED = "exact PCA was asked for"
# What is spent stays this far below what may be, relatively, so that rounding in either account never refuses the last release.
_MARGIN = 1e-10


@final
class Federation:
    """The parties of one fit and what they have done. Changes in place: it spends.

    After a lost quorum `run(resume=True)` goes on where it stopped, with sites that may have been put right (`repair`). `design`
    makes the fit that is carried out, where that is another one than principal components of rows within bounds.
    """

    def __init__(
        self,
        request: SitesRequest,
        sites: Mapping[str, Rows],
        columns: Columns,
        *,
        watch: Watch | None = None,
        design: Design | None = None,
    ) -> None:
        self.request, self.columns, self.watch = request, columns, watch
        self.rounds: list[Round] = []
        self.ledgers: dict[str, Ledger] = {}
        # Sites that gave a matrix in place of rows, whose bound nobody but themselves can vouch for.
        self.matrices: set[str] = set()
        self._noise: dict[str, Noise] = {}
        self._names, self._sites = tuple(sites), dict(sites)
        self._places = {name: 1 + place for place, name in enumerate(self._names)}
        self._layout = star(self._names) if request.fanout is None else tree(self._names, fanout=request.fanout)
        self._identities = {name: Identity.fresh() for name in self._names} if request.masks is not None else {}
        self.masked: MaskedTerms | None = None
        self.study: WholeFit[Any, Any, Any] = (self._study if design is None else design)(self._setting())
        if request.masks is not None:
            self.masked = self._masked_terms(*request.masks)
            self.study = self.study.with_noise(self._total_noise(1.0, math.sqrt(len(self._names))))
        self._masking = None if self.masked is None else Masking(self.masked, self.study)
        self._above = self._layout.above()
        self.members: dict[str, Member | MaskedMember] = {name: self._member(name, r) for name, r in sites.items()}
        self.hub: Hub[Any] = self._hub()
        self._lines: dict[str, int] = {}
        self._runtime: InProcess | None = None
        self._missing: tuple[str, ...] = ()
        self._weights = (1.0, math.sqrt(len(self._names)))
        self._anew = False
        self.refused: tuple[Refusal, ...] = ()

    def run(self, *, faults: Faults | None = None, resume: bool = False) -> Any:
        """The result. A lost quorum passes through and can be resumed."""
        if resume and self.request.private and self.hub.paid_in_vain:
            raise BudgetExceeded(
                "the last round was charged and came to nothing, and what is left of the budget does not pay for the rest of the "
                "fit. Nothing more was charged; a new fit needs a budget of its own"
            )
        nodes = [self._node(name) for name in self._layout.nodes]
        others: list[Party] = [*nodes, *self.members.values()]
        self._runtime = InProcess(self.hub, others, faults=faults, seed=self.request.seed)
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
            self._seen(site, rows)
            member.mend(rows)
            return
        self.members[site] = self._member(site, rows)

    def _require_declared(self, site: str, rows: Rows) -> None:
        """Refuse rows that reach farther than was declared for all: they would be cut."""
        request = self.request
        if request.declared is None:
            return
        bounds, center = request.bounds, request.center
        now = Declared.of(
            self._sites | {site: rows},
            scale=bounds.scale,
            origin=bounds.origin,
            center=center,
            mean_bound=request.declared.given,
        )
        sound = now.row_bound <= request.declared.row_bound and now.mean_bound <= request.declared.mean_bound
        require(
            sound, f"{site}: its rows reach farther than all sites had declared; begin a new fit, or give a row_bound"
        )

    def require_sound_sites(self) -> None:
        """Raise what went wrong at a site, naming it, if anything did."""
        for name, member in self.members.items():
            if member.error is not None and name in self._missing:
                kind = ValueError if isinstance(member.error, ValueError) else type(member.error)
                raise kind(f"{name}: {member.error}") from None

    def _setting(self) -> Setting:
        request = self.request
        parts = max(len(children) for children in self._layout.below.values())
        return Setting(
            multiplier=self._total_noise(1.0, math.sqrt(len(self._names))),
            grid=parts if request.at_hub is not None and not request.published else 0,
            rounding=self._rounding(),
        )

    def _study(self, setting: Setting) -> Study:
        request = self.request
        method = request.plan.method
        products = method not in ("covariance",)
        count = request.people is None
        split = split_budget(
            mean=isinstance(request.center, str),
            search=request.bounds.search,
            count=count,
            trace=products and not request.published,
        )
        dim, width = request.bounds.dim, request.plan.width
        rng = np.random.default_rng(request.seed)
        begin = orthonormal(rng.standard_normal((dim, width))) if iterates(method) else None
        return Study(
            bounds=request.bounds,
            neighbours=request.neighbours,
            center=request.center,
            components=lambda domain: components_of(
                request.plan,
                domain,
                begin,
                neighbours=request.neighbours,
                rank=request.rank,
                private=request.private,
                align=request.align,
                published=request.published,
            ),
            split=split,
            people=request.people,
            multiplier=setting.multiplier,
            rank=request.rank,
            needs_trace=products and not request.published,
            begins_again=not request.private and request.participation is None,
            sizes=request.sizes if request.people is not None else None,
            grid=setting.grid,
            rounding=setting.rounding,
            products=(
                request.plan.shares,
                request.plan.rounds,
                dim * (dim + 1) // 2 if method == "covariance" else dim * width,
            ),
        )

    def _masked_terms(self, survivors: int, colluders: int) -> MaskedTerms:
        request = self.request
        return masked_terms(
            self.study,
            {name: identity.public for name, identity in self._identities.items()},
            budget=request.at_sites,
            survivors=survivors,
            colluders=colluders,
            several=request.person_sites,
            people=max(request.sizes.values()) if request.sizes is not None else None,
        )

    def _rounding(self) -> float:
        """What rounding adds to the sensitivity of a sum that noise is added to at the hub, relatively.

        Parts on a grid of step g add up exactly, and cost `GRID_COST`, g sqrt(entries) over the sensitivity. Parts that are
        drawn count by weights of at most w, all together below w 2^53 g. Weighing the part that a person is in, the additions,
        of which there are fewer than sites drawn, and bringing the sum to size each round an entry by at most w g / 2 on either
        side. A person moves the sum by w times the sensitivity, so each of these costs one `GRID_COST` more.
        """
        request = self.request
        if request.at_hub is None or request.published:
            return 0.0
        drawn = 0 if request.participation is None else 1 + min(request.participation[1], len(self._names))
        return (1 + drawn) * GRID_COST

    def _total_noise(self, largest: float, root_of_squares: float) -> float:
        """The noise on a sum of parts over its sensitivity, at a share of one, given how often parts count."""
        request, several = self.request, self.request.person_sites
        if request.published or not request.private:
            return 0.0
        if request.masks is not None:
            if self.masked is None:
                return 1.0
            # Shares are for the fewest honest survivors; more of them are more noise.
            return self.masked.multiplier * several * root_of_squares / math.sqrt(self.masked.lattice.honest)
        square = 0.0
        if request.at_sites is not None:
            square += root_of_squares**2 * several / request.at_sites.mu**2
        if request.at_hub is not None:
            multiplier, carried = self._hub_multiplier(request.at_hub)
            square += (largest * several) ** 2 * (multiplier**2 - carried**2)
        return math.sqrt(square)

    def noise_floor(self, found: Found) -> float:
        """Gram eigenvalues below this cannot be told from noise."""
        plan, count = self.request.plan, len(self.hub.sites)
        if found.scale == 0:
            return 0.0
        # The last round may have drawn few sites, whose parts count for all.
        scale = found.scale * self._total_noise(*self._weights) / self.study.multiplier
        found = replace(found, scale=scale)
        if plan.method in ("covariance", "merge", "uda", "wda"):
            floor = noise_floor(found, "covariance", width=plan.width, last=1.0)
            # Sites send what is above zero only, and so its mean does not cancel.
            return (
                floor if plan.method == "covariance" else floor * (1 + math.sqrt(count) * plan.width / found.domain.dim)
            )
        return noise_floor(found, plan.method, width=plan.width, last=plan.shares[-1] / plan.steps[-1])

    def _hub_multiplier(self, budget: Budget) -> tuple[float, float]:
        """The hub's multiplier, and how much of it comes along from the site that a person is at.

        Whoever sees only what the hub sends sees both noises. A person at several sites is covered by several of the first kind
        and moves the sum by several parts; no use is made of it then.
        """
        sites, multiplier = self.request.at_sites, 1.0 / budget.mu
        if sites is None or self.request.person_sites > 1:
            return multiplier, 0.0
        carried = (1 + _MARGIN) / sites.mu
        return max(multiplier, carried), carried

    def _noise_for(self, name: str) -> Noise:
        """One source for each place, which goes on where it was when a site is put right."""
        seed = self.request.seed
        if name not in self._noise:
            place = self._places.get(name, 0)
            self._noise[name] = Noise.fresh() if seed is None else Noise.seeded((seed << 32) + place)
        return self._noise[name]

    def _site_mechanism(self, name: str) -> Mechanism:
        request = self.request
        if request.at_sites is None:
            why = NOTHING_ASKED if not request.private else "the hub, which is trusted, adds the noise"
            return Exact(because=why)
        if request.published:
            return self._published(name, request.at_sites, sites=True)
        several = request.person_sites
        if name not in self.ledgers:
            epsilon, delta = request.at_sites.epsilon, request.at_sites.delta
            if several > 1:
                # Charges at each of a person's sites add up in squares.
                each = request.at_sites.mu / math.sqrt(several)
                epsilon = epsilon_of(each, delta)
                if epsilon == 0:
                    # So little that delta alone covers it: the same mu, said by a smaller delta.
                    epsilon, delta = each, delta_of(each, each)
            self.ledgers[name] = Ledger(epsilon=epsilon, delta=delta)
        multiplier = math.sqrt(several) / request.at_sites.mu * (1 + _MARGIN)
        return Gaussian(multiplier, self.ledgers[name], self._noise_for(name))

    def _hub_mechanism(self) -> Mechanism:
        request, name = self.request, self._layout.hub
        if request.at_hub is None:
            why = NOTHING_ASKED if not request.private else "the sites have added noise"
            return Exact(because=why)
        if request.published:
            return self._published(name, request.at_hub, sites=False)
        multiplier, carried = self._hub_multiplier(request.at_hub)
        self.ledgers[name] = Ledger(epsilon=request.at_hub.epsilon, delta=request.at_hub.delta)
        return Gaussian(multiplier, self.ledgers[name], self._noise_for(name), carried)

    def _published(self, name: str, budget: Budget, *, sites: bool) -> Mechanism:
        """Noise as FedPower prints it (Alg. 2), for sums instead of averages. Nothing is promised, and nothing accounted for."""
        sizes = self.request.sizes
        assert sizes is not None
        least, most = min(sizes.values()), max(sizes.values())
        rounds = self.request.plan.rounds
        multiplier = fedpower_multiplier(budget, rounds=rounds) * (sizes[name] if sites else most) / least
        # Every round has an equal share of this mechanism.
        return Gaussian(multiplier / math.sqrt(rounds), Ledger(epsilon=math.inf, delta=0.5), self._noise_for(name))

    def _share(self, name: str, terms: MaskedTerms) -> Share:
        ledger = None
        if terms.lattice.gaussian is not None:
            budget = terms.lattice.gaussian
            ledger = self.ledgers.setdefault(name, Ledger(epsilon=budget.epsilon, delta=budget.delta))
        return Share(terms.lattice, ledger, self._noise_for(name), terms.multiplier, terms.several)

    def _seen(self, name: str, rows: Rows) -> None:
        self.matrices.discard(name)
        if isinstance(rows, Symmetric):
            self.matrices.add(name)

    def _member(self, name: str, rows: Rows) -> Member | MaskedMember:
        self._seen(name, rows)
        if self.masked is not None:
            return MaskedMember(
                name,
                hub=self._above[name],
                task=self.study,
                rows=rows,
                share=self._share(name, self.masked),
                terms=self.masked,
                identity=self._identities[name],
            )
        return Member(name, hub=self._above[name], task=self.study, rows=rows, mechanism=self._site_mechanism(name))

    def _node(self, name: str) -> Node:
        return Node(
            name, above=self._above[name], below=self._layout.below[name], task=self.study, terms=self._patience(name)
        )

    def _patience(self, name: str) -> Terms:
        """Twice the deadline with each level: nodes must have given up on their sites before those above give up on them."""
        levels, terms = self._layout.levels, self.request.terms
        return replace(terms, deadline=terms.deadline * 2 ** (max(levels.values()) - levels[name]))

    def _hub(self) -> Hub[Any]:
        request, sampling = self.request, None
        if request.participation is not None:
            scheme, count = request.participation
            sizes = request.sizes if request.sizes is not None else dict.fromkeys(self._names, 1.0)
            seed = None if request.seed is None else [request.seed, 1]
            sampling = Sampling(scheme, count, sizes, np.random.default_rng(seed))
        return Hub(
            self.study,
            self._layout.below[self._layout.hub],
            self._hub_mechanism(),
            terms=self._patience(self._layout.hub),
            sampling=sampling,
            person_sites=request.person_sites,
            watch=self._note,
            exchanges=self._masking,
        )

    def _note(self, turn: Turn) -> None:
        assert self._runtime is not None
        traffic = self._runtime.traffic[turn.number]
        if turn.stage == "components":
            self._weights = self.hub.weights
        done = Round(
            number=turn.number,
            stage=turn.stage if turn.stage != "components" else f"{self.request.plan.method} {turn.step + 1}",
            answered=turn.answered,
            missing=turn.missing,
            bytes_down=traffic.down,
            bytes_up=traffic.up,
            movement=turn.movement,
            residual=turn.spread,
            charges=self._new_charges(turn),
            restarted=turn.restarted,
        )
        self.rounds.append(done)
        if self.watch is not None:
            self.watch(done)

    def _new_charges(self, turn: Turn) -> tuple[Charge, ...]:
        """The lines that this turn added to the hub's ledger and to that of one site that answered."""
        found: list[Charge] = []
        for name in (self._layout.hub, *turn.answered[:1]):
            if name in self.ledgers:
                lines = self.ledgers[name].charges
                found += lines[self._lines.get(name, 0) :]
        for name, ledger in self.ledgers.items():
            self._lines[name] = len(ledger.charges)
        return tuple(found)
