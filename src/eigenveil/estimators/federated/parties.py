"""`Parties` makes the hub, the nodes and the sites of a federated fit, from its public terms alone.

In one process `FederatedSimulation` makes all of them. Over a network each party makes itself from the same terms, so that they
fit together. The place of the mechanism is the trust model: the hub ("hub"), every site ("site"), "both", or shares at the sites
under masks ("masked").
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, final

import numpy as np

from eigenveil.core.accounting import Budget, delta_of, epsilon_of
from eigenveil.core.ledger import Account, Charge, Ledger
from eigenveil.core.mechanism import Exact, Gaussian, Mechanism
from eigenveil.core.noise import ROUNDING_COST, Noise
from eigenveil.core.rows import Rows
from eigenveil.data.rows import Symmetric
from eigenveil.errors import BudgetExceeded, ParameterWarning, QuorumLost, at_place, require, require_param, verbatim
from eigenveil.estimators.checks import WholeCharge
from eigenveil.estimators.federated.spec import DeclaredBounds, FederatedSpec
from eigenveil.estimators.reading import Columns
from eigenveil.estimators.terms import Round, Watch, bound_settings, masked_sites, round_of, settings_of
from eigenveil.estimators.verdict import FitVerdict, assess_fit, noise_floor, released_quantities, warnings_before_fit
from eigenveil.methods import method_of
from eigenveil.plan.masks import masked_terms
from eigenveil.privacy.facts import COMPONENTS, NO_PRIVACY, GuaranteeFacts, HubAndSites, MaskedSites, Person
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.privacy.lattice import Share
from eigenveil.protocols.keys import Identity
from eigenveil.protocols.masked.hub import SecureAggregator
from eigenveil.protocols.masked.member import MaskedMember
from eigenveil.protocols.masked.terms import MaskedTerms
from eigenveil.protocols.party import Party
from eigenveil.protocols.star.hub import Hub, HubRound, Node
from eigenveil.protocols.star.rounds import Sampling, Terms, star, tree
from eigenveil.protocols.star.site import Member
from eigenveil.runtimes.local import Faults, LocalStar, Refusal
from eigenveil.tasks.base import Question
from eigenveil.tasks.fit.task import Fit, FitResult, FitTask, ProtocolNoise

__all__ = [
    "NOTHING_ASKED",
    "FederatedSimulation",
    "Parties",
    "charged",
    "federated_guarantee",
    "place_of_noise",
    "seen_by_hub",
    "sites_settings",
]


NOTHING_ASKED: Final = NO_PRIVACY["fit"]
# Spending stays this far below the budget, relatively. Otherwise rounding in the ledger could refuse the last release.
_MARGIN: Final = 1e-10


@final
class Parties:
    """The parties of the sites `names`, around a hub or in a tree. Changes in place: it keeps the ledgers of what it has made.

    Over a network parties are `apart`. Then `roster` has the public identities of all sites, and signatures are bound to
    `title`. All of them know `start`, the public seed of the first basis. `hub` is the name of the hub.
    """

    def __init__(
        self,
        spec: FederatedSpec,
        names: Sequence[str],
        *,
        roster: Mapping[str, bytes],
        title: str | None = None,
        start: Any = None,
        apart: bool = False,
        hub: str = "hub",
        through: Account | None = None,
    ) -> None:
        self.request, self.names, self.apart = spec, tuple(names), apart
        # Where every charge of a party is kept first, where all of them are in one process.
        self._through = through
        self.ledgers: dict[str, Ledger] = {}
        # Sites that gave a matrix in place of rows. Only the site can vouch for its bound.
        self.matrices: set[str] = set()
        self._noise: dict[str, Noise] = {}
        # 0 is the hub. With a seed, every party draws from a seed of its own, or noise would cancel between them.
        self._places = {name: 1 + index for index, name in enumerate(self.names)}
        self.layout = star(self.names, hub=hub) if spec.fanout is None else tree(self.names, fanout=spec.fanout, hub=hub)
        self.above = self.layout.above()
        self.masked: MaskedTerms | None = None
        noise = ProtocolNoise(
            multiplier=self._total_noise(1.0, math.sqrt(len(self.names))),
            # Lying sites could raise a sum and lower it again, so that its rounding tells of one person. On a grid sums
            # are exact (decision 8). Where sites add the noise, the sum is post-processing and needs none.
            grid=max(map(len, self.layout.below.values())) if spec.at_hub is not None else 0,
            rounding=self._rounding(),
        )
        self.study: FitTask[Any, Any, Any] = spec.design(spec, noise, spec.seed if start is None else start)
        if spec.masks is not None:
            survivors, colluders = spec.masks
            self.masked = masked_terms(
                self.study.extent(),
                roster,
                title=title,
                budget=spec.at_sites,
                survivors=survivors,
                colluders=colluders,
                several=spec.person_sites,
                people=max(spec.fit.sizes.values()) if spec.fit.sizes is not None else None,
            )
            # Only now: the terms are planned from the extent of the fit, and only they fix the noise of a sum.
            self.study = self.study.with_noise(self._total_noise(1.0, math.sqrt(len(self.names))))

    def member(
        self,
        name: str,
        rows: Rows,
        *,
        identity: Identity | None = None,
        secret: bytes | None = None,
        charges: tuple[Charge, ...] = (),
    ) -> Member | MaskedMember:
        """The site of this name. With masks it needs an `identity`. After a restart, `charges` is what it had spent before."""
        self.mended(name, rows)
        if self.masked is not None:
            require(identity is not None, f"{name} needs its identity: parts are masked")
            assert identity is not None
            return MaskedMember(
                name,
                hub=self.above[name],
                task=self.study,
                rows=rows,
                share=self._share(name, self.masked, charges),
                terms=self.masked,
                identity=identity,
                secret=secret,
            )
        return Member(
            name,
            hub=self.above[name],
            task=self.study,
            rows=rows,
            mechanism=self._site_mechanism(name, charges),
            # A hub over a network could continue asking, so a site knows the limit from the terms that it agreed to.
            most_questions=self.most_questions if self.apart else None,
        )

    def mended(self, name: str, rows: Rows) -> None:
        """Note what kind of rows a site has from now on."""
        self.matrices.discard(name)
        if isinstance(rows, Symmetric):
            self.matrices.add(name)

    @property
    def most_questions(self) -> int:
        """How many different questions a site answers at most. Without privacy a fit begins again when sites are gone."""
        rounds = self.study.extent().rounds
        return rounds if self.request.fit.private else rounds * (1 + len(self.names))

    def node(self, name: str) -> Node:
        """The inner node of this name."""
        return Node(name, above=self.above[name], below=self.layout.below[name], task=self.study, terms=self._patience(name))

    def masking(self, *, secret: bytes | None = None) -> SecureAggregator | None:
        """The hub's side of the masks, None without masks."""
        return None if self.masked is None else SecureAggregator(self.masked, self.study, secret=secret)

    def hub(
        self,
        *,
        masking: SecureAggregator | None,
        watch: Callable[[HubRound], None] | None,
        through: Callable[[Mechanism], Mechanism] = lambda mechanism: mechanism,
        asking: Callable[[Question], Question] | None = None,
    ) -> Hub[Any]:
        """The hub. `through` may wrap its mechanism, and `asking` is as in `Hub`."""
        spec, sampling = self.request, None
        if spec.participation is not None:
            scheme, count = spec.participation
            sizes = spec.fit.sizes if spec.fit.sizes is not None else dict.fromkeys(self.names, 1.0)
            # Not the seed itself, which the first basis is drawn from.
            seed = None if spec.seed is None else [spec.seed, 1]
            sampling = Sampling(scheme=scheme, count=count, sizes=sizes, rng=np.random.default_rng(seed))
        return Hub(
            self.study,
            self.layout.below[self.layout.hub],
            through(self._hub_mechanism()),
            name=self.layout.hub,
            terms=self._patience(self.layout.hub),
            sampling=sampling,
            person_sites=spec.person_sites,
            watch=watch,
            exchanges=masking,
            asking=asking,
        )

    def before(self) -> tuple[ParameterWarning, ...]:
        """What is to be said before anything is spent, where the number of people is public."""
        study, (survivors, colluders) = self.study, self.request.masks or (None, 1)
        if not isinstance(study, Fit) or study.rank is None:
            return ()
        return warnings_before_fit(
            self.planned,
            dim=study.bounds.dim,
            rank=study.rank,
            people=study.people,
            budget=self._budget,
            neighbours=study.neighbours,
            sites=len(self.names),
            center="private" if isinstance(study.center, str) else None,
            bounds=study.bounds,
            survivors=survivors,
            # Every site knows its own noise, so a plan counts on one at least.
            colluders=max(colluders, 1),
        )

    def verdict(
        self,
        result: FitResult,
        *,
        sites: int,
        weights: tuple[float, float],
        names: tuple[str, ...] | None,
        before: tuple[ParameterWarning, ...] = (),
    ) -> FitVerdict:
        """The verdict on a fit with so many `sites` in the sums and these `weights`."""
        study = self.study
        if result.scale == 0 or not isinstance(study, Fit):
            return FitVerdict(warned=before, n_before_fit=len(before))
        floor = self.noise_floor(result, sites=sites, weights=weights)
        return assess_fit(
            released_quantities(study, result, floor=floor),
            settings=self.request.fit.settings,
            budget=self._budget,
            method=self.planned,
            neighbours=self.request.fit.neighbours,
            names=names,
            sites=len(self.names),
            before=before,
        )

    @property
    def planned(self) -> str:
        """The name of this setting and method in a plan."""
        spec = self.request
        setting = "masked" if spec.masks is not None else "site" if spec.at_sites is not None else "hub"
        return f"{setting}/{spec.fit.plan.method}"

    @property
    def _budget(self) -> Budget | None:
        """The budget that decides the noise."""
        return self.request.at_sites or self.request.at_hub

    def noise_floor(self, result: FitResult, *, sites: int, weights: tuple[float, float]) -> float:
        """Gram eigenvalues below this cannot be told from noise, with so many `sites` in the sums and these `weights`."""
        study = self.study
        if result.scale == 0 or not isinstance(study, Fit):
            return 0.0
        # The last round may have drawn few sites, weighted to stand for all.
        scale = result.scale * self._total_noise(*weights) / study.multiplier
        return noise_floor(study, replace(result, scale=scale), self.request.fit.plan, sites=sites)

    def _patience(self, name: str) -> Terms:
        """Twice the deadline at each level up: a node must give up on its sites before the level above gives up on it."""
        levels, terms = self.layout.levels, self.request.patience
        return replace(terms, deadline=terms.deadline * 2 ** (max(levels.values()) - levels[name]))

    def _rounding(self) -> float:
        """What rounding adds, relatively, to the sensitivity of a sum that gets its noise at the hub.

        Parts on a grid of step g add up exactly, and cost `ROUNDING_COST`, 2 g sqrt(entries) over the sensitivity. Parts of drawn
        sites have weights of at most w, and their sum is below w 2^53 g. Three steps round: weighting the part that a person is
        in, the additions (fewer than the sites drawn), and rescaling the sum. Each rounds an entry by at most w g / 2 on either
        side. A person moves the sum by w times the sensitivity, so each of these costs one `ROUNDING_COST` more.
        A site that adds noise rounds its part before, and then the noise: 2 g sqrt(entries) and half as much.
        """
        spec = self.request
        if spec.at_hub is None:
            return 0.0
        drawn = 0 if spec.participation is None else 1 + min(spec.participation[1], len(self.names))
        at_sites = 0.0 if spec.at_sites is None else 1.5
        return (1 + drawn + at_sites) * ROUNDING_COST

    def _total_noise(self, largest: float, root_of_squares: float) -> float:
        """Noise over sensitivity of a weighted sum of parts, at a share of one. Weights enter as maximum and root of squares."""
        spec, several = self.request, self.request.person_sites
        if not spec.fit.private:
            return 0.0
        if spec.masks is not None:
            # Not known yet. `__init__` sets the noise once the terms are planned.
            if self.masked is None:
                return 1.0
            # Shares are calibrated for the fewest honest survivors. More survivors add more noise.
            return self.masked.multiplier * several * root_of_squares / math.sqrt(self.masked.lattice.honest)
        square = 0.0
        if spec.at_sites is not None:
            # Noises of sites are independent, so their variances add up with the squares of the weights. The hub adds
            # noise once, for the largest weight that a part may have.
            square += root_of_squares**2 * several / spec.at_sites.mu**2
        if spec.at_hub is not None:
            multiplier, existing = self._hub_multiplier(spec.at_hub)
            square += (largest * several) ** 2 * (multiplier**2 - existing**2)
        return math.sqrt(square)

    def _hub_multiplier(self, budget: Budget) -> tuple[float, float]:
        """The hub's multiplier, and how much of it the noise of a person's sites already provides.

        Anyone who sees only what the hub sends sees both noises. Let a person be at up to k sites. Each of them adds sqrt(k) r,
        with r = C D and C = 1 / mu of the sites. The hub adds t = T v for the rest v. Weights of parts are at most w, so one
        person moves the sum by W = k w parts. Then mu^2 = E^2 / (r^2 + (t / W)^2) ("Noise on noise" in
        `eigenveil.core.noise`). This is the same for every k, and smaller for weights below w.

        Rounding: let p = `ROUNDING_COST` and S the sensitivity. Then D = (1 + d) S for some d of at most p. The hub's noise is
        for the distance T = A W S, with A at most (1 + rounding) (1 + p). T contains everything in c. It also contains
        3/2 p W S for D - S and for the noise that sites round (`_rounding`), which need only 3/2 d. So
        W E = W D + c <= (A - 3/2 (p - d)) W S. With M = 1 / mu of the hub, mu <= 1 / M holds if
            v^2 >= (M (A - 3/2 (p - d)) / A)^2 - (C (1 + d) / A)^2.
        For M > C the right side grows with d (by 3 M^2 (A - ..) - 2 C^2 (1 + d) > 0), so d = p is the worst case:
        v^2 = M^2 - (C / (1 + rounding))^2. For M <= C the sites' noise is enough, and the hub adds none.
        """
        sites, multiplier = self.request.at_sites, 1.0 / budget.mu
        if sites is None:
            return multiplier, 0.0
        alone = (1 + _MARGIN) / sites.mu
        return (alone, alone) if alone >= multiplier else (multiplier, alone / (1 + self._rounding()))

    def _noise_for(self, name: str) -> Noise:
        """One source of noise for each party. It continues where it was when a site is repaired."""
        seed = self.request.seed
        if name not in self._noise:
            index = self._places.get(name, 0)
            # 32 bits for the party, so that no two parties and seeds meet.
            self._noise[name] = Noise.fresh() if seed is None else Noise.seeded((seed << 32) + index)
        return self._noise[name]

    def _site_mechanism(self, name: str, charges: tuple[Charge, ...]) -> Mechanism:
        spec = self.request
        if spec.at_sites is None:
            return Exact(because="the hub, which is trusted, adds the noise" if spec.fit.private else NOTHING_ASKED)
        several = spec.person_sites
        # A site that is repaired continues with the ledger that it has spent from.
        if name not in self.ledgers:
            epsilon, delta = spec.at_sites.epsilon, spec.at_sites.delta
            if several > 1:
                # The squares of mu at each of a person's sites add up.
                each = spec.at_sites.mu / math.sqrt(several)
                epsilon = epsilon_of(each, delta)
                if epsilon == 0:
                    # So little that delta alone covers it. A smaller delta expresses the same mu.
                    epsilon, delta = each, delta_of(each, each)
            self.ledgers[name] = Ledger.continued(Budget(epsilon, delta), charges, {}, unit=spec.fit.unit, through=self._through)
        multiplier = math.sqrt(several) / spec.at_sites.mu * (1 + _MARGIN)
        return Gaussian(multiplier=multiplier, ledger=self.ledgers[name], noise=self._noise_for(name))

    def _hub_mechanism(self) -> Mechanism:
        spec, name = self.request, self.layout.hub
        if spec.at_hub is None:
            return Exact(because="the sites have added noise" if spec.fit.private else NOTHING_ASKED)
        multiplier, existing = self._hub_multiplier(spec.at_hub)
        ledger = Ledger.continued(spec.at_hub, (), {}, unit=spec.fit.unit, through=self._through)
        self.ledgers[name] = ledger
        return Gaussian(multiplier=multiplier, ledger=ledger, noise=self._noise_for(name), existing_multiplier=existing)

    def _share(self, name: str, terms: MaskedTerms, charges: tuple[Charge, ...]) -> Share:
        ledger = None
        if terms.lattice.gaussian is not None:
            gaussian, unit = terms.lattice.gaussian, self.request.fit.unit
            new = Ledger.continued(gaussian, charges, {}, unit=unit, through=self._through)
            ledger = self.ledgers.setdefault(name, new)
        return Share(
            lattice=terms.lattice, ledger=ledger, noise=self._noise_for(name), multiplier=terms.multiplier, several=terms.several
        )


def sites_settings(parties: Parties, result: FitResult, *, sites: int, rounds: int | None, sent: int | None) -> dict[str, Any]:
    """The settings of a fit over `sites`, as far as the party that writes the model knows them. `sent` is in bytes."""
    assert isinstance(parties.study, Fit)
    spec, plan = parties.request, parties.request.fit.plan
    return settings_of(
        spec.fit.settings,
        method=plan.method,
        why=plan.reason,
        neighbours=spec.fit.neighbours if spec.fit.private else None,
        trust=place_of_noise(spec),
        survivors=None if spec.masks is None else spec.masks[0],
        topology="star" if spec.fanout is None else f"tree of fan-out {spec.fanout}",
        sites=sites,
        rounds=rounds,
        bytes=sent,
        tolerance=plan.tolerance if method_of(plan.method).needs_start_basis else None,
        width=plan.width,
        **bound_settings(spec.fit.settings, parties.study.bounds, result.domain.radius, result.units),
    )


def place_of_noise(spec: FederatedSpec) -> str:
    """The trust model in a few words."""
    if spec.masks is not None:
        survivors, colluders = spec.masks
        return f"masked, {survivors} survivors of whom {colluders} may collude"
    if spec.at_sites is not None:
        return "both" if spec.at_hub is not None else "site"
    return "hub" if spec.at_hub is not None else "none"


def federated_guarantee(parties: Parties, result: FitResult) -> Guarantee:
    """The guarantee of a finished fit, from what its ledgers say."""
    spec, study = parties.request, parties.study
    assert isinstance(study, Fit)
    if not spec.fit.private:
        return Guarantee.none(NO_PRIVACY["fit"])
    # With noise in both places, the sites may add more than was asked of the hub.
    budgets = [budget for budget in (spec.at_hub, spec.at_sites) if budget is not None]
    radius, matrices = result.domain.radius, len(parties.matrices)
    return GuaranteeFacts(
        budget=min(budgets, key=lambda budget: budget.mu),
        protects=Person(source="site", grouped=spec.fit.grouped, max_parts=spec.person_sites, column=spec.fit.person),
        neighbours=spec.fit.neighbours,
        rows=study.bounds.known(
            study.center,
            # Nothing was clipped if every site gave a matrix.
            norm=radius if matrices < len(parties.names) else None,
            trace=radius**2 if matrices else None,
        ),
        seen_by=seen_by_hub(parties),
        released=COMPONENTS + study.bounds.released,
        charges=charged(parties),
        reproducible=spec.seed is not None,
        people=result.people,
    ).guarantee()


def seen_by_hub(parties: Parties) -> HubAndSites | MaskedSites:
    """Who sees what when sites fit anything together around a hub."""
    spec, masked = parties.request, parties.masked
    if spec.masks is None or masked is None:
        return HubAndSites(
            at_sites=spec.at_sites, at_hub=spec.at_hub, tree=spec.fanout is not None, drawn=spec.participation is not None
        )
    return masked_sites(masked, apart=parties.apart)


def charged(parties: Parties) -> tuple[Charge, ...]:
    """The hub's charges if it adds noise. Otherwise those of the site that spent most, once for each site a person may be at."""
    spec, ledgers = parties.request, parties.ledgers
    if parties.apart and (not ledgers or (spec.at_hub is not None and parties.layout.hub not in ledgers)):
        # Over a network each party keeps its own ledger, and sees none of the others'.
        min_mu = min(budget.mu for budget in (spec.at_sites, spec.at_hub) if budget is not None)
        return (Charge("reserved for the whole study", min_mu),)
    if spec.at_hub is not None and (spec.at_sites is None or ledgers[parties.layout.hub].spent_mu <= spec.at_sites.mu):
        return ledgers[parties.layout.hub].charges
    dearest = max((ledger for name, ledger in ledgers.items() if name != parties.layout.hub), key=lambda ledger: ledger.spent_mu)
    # Under masks a share is charged for the sum, which already counts a person at all of their sites.
    # A person at k sites is in k releases with independent noise, whose squares of mu add up.
    factor = math.sqrt(spec.person_sites) if spec.masks is None else 1.0
    return tuple(Charge(charge.label, charge.mu * factor) for charge in dearest.charges)


@final
class FederatedSimulation:
    """The parties of one fit and what they have done. Changes in place: it spends.

    After a lost quorum `run(resume=True)` continues where it stopped. Sites may have been repaired before (`repair`).
    """

    def __init__(
        self,
        spec: FederatedSpec,
        sites: Mapping[str, Rows],
        columns: Columns,
        *,
        watch: Watch | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.request, self.columns, self.watch = spec, columns, watch
        self.rounds: list[Round] = []
        self._names, self._sites = tuple(sites), dict(sites)
        # Real keys even here, so that a simulation runs the same protocol as a network.
        self._identities = {name: Identity.fresh() for name in self._names} if spec.masks is not None else {}
        roster = {name: identity.public for name, identity in self._identities.items()}
        self._whole = WholeCharge(ledger, spec.at_sites, spec.at_hub, unit=spec.fit.unit, label="this fit at sites")
        self.parties = Parties(spec, self._names, roster=roster, through=self._whole)
        self.study, self.masked, self.ledgers = self.parties.study, self.parties.masked, self.parties.ledgers
        self._masking = self.parties.masking()
        self.members: dict[str, Member | MaskedMember] = {name: self._member(name, r) for name, r in sites.items()}
        self.hub: Hub[Any] = self.parties.hub(masking=self._masking, watch=self._note)
        self._seen_charges: dict[str, int] = {}
        self._runtime: LocalStar | None = None
        self._missing: tuple[str, ...] = ()
        # Maximum and root of squares of the weights of parts. All sites at weight one, until a round draws some of them.
        self._weights = (1.0, math.sqrt(len(self._names)))
        self._anew = False
        # What was said before anything was spent.
        self.before: tuple[ParameterWarning, ...] = ()
        self.refused: tuple[Refusal, ...] = ()

    def verdict(self, result: FitResult, *, names: tuple[str, ...] | None) -> FitVerdict:
        """The verdict on the fit. The columns may have `names`."""
        # The last round may have drawn few sites, weighted to stand for all.
        return self.parties.verdict(result, sites=len(self.hub.sites), weights=self._weights, names=names, before=self.before)

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
        others: list[Party] = [*map(self.parties.node, self.parties.layout.nodes), *self.members.values()]
        self._runtime = LocalStar(self.hub, others, faults=faults, seed=self.request.seed)
        try:
            with self._whole.reserved(self.masked):
                result = self._runtime.run(resume=resume, anew=self._anew)
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
        return result

    def repair(self, site: str, rows: Rows) -> None:
        """Give other rows to a site that was missing when the quorum was lost.

        If the site had been counted before, the fit begins again. With a budget that would cost twice, so it is refused.
        """
        require(site in self.members, f"there is no site {site!r}")
        require(
            site in self._missing, f"{site} was not missing, so its rows cannot change: the answer would mix old and new rows"
        )
        self._require_declared(site, rows)
        self._sites[site] = rows
        member = self.members[site]
        # A masked part may have left in a round that then failed: it counts as given.
        has_given = isinstance(member, MaskedMember) and member.gave
        if has_given or any(site in done.answered for done in self.rounds):
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
        spec = self.request
        if spec.declared is None:
            return
        assert isinstance(self.study, Fit)
        bounds, center = self.study.bounds, self.study.center
        now = DeclaredBounds.of(
            self._sites | {site: rows},
            scale=bounds.scale,
            origin=bounds.origin,
            center=center,
            mean_bound=spec.declared.explicit_bound,
        )
        sound = now.row_bound <= spec.declared.row_bound and now.mean_bound <= spec.declared.mean_bound
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
        # What this round charged to the hub's ledger and to that of one site that answered.
        charges: list[Charge] = []
        for name in (self.parties.layout.hub, *round_.answered[:1]):
            if name in self.ledgers:
                charges += self.ledgers[name].charges[self._seen_charges.get(name, 0) :]
        # All ledgers, because sites that are not shown were charged, too.
        self._seen_charges = {name: len(ledger.charges) for name, ledger in self.ledgers.items()}
        method = self.request.fit.plan.method
        done = round_of(round_, method=method, down=traffic.down, up=traffic.up, charges=tuple(charges))
        self.rounds.append(done)
        if self.watch is not None:
            self.watch(done)
