"""`Parties`: what a federated fit is made of, from its public terms alone, and each of its parties where that one stands.

In one process all of them are made in one place; across a network each party makes itself, from the same terms, and they fit.
Where the mechanism stands is the trust model: at the hub ("hub"), at every site ("site"), in both places, or in shares at the
sites, under masks ("masked").
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, final

import numpy as np

from eigenveil.data.rows import Rows, Symmetric
from eigenveil.errors import require
from eigenveil.estimators.federated.masks import masked_terms
from eigenveil.estimators.federated.request import FederatedSpec
from eigenveil.estimators.private.curator import noise_floor
from eigenveil.estimators.settings import settings_of
from eigenveil.papers.noise_scales import fedpower_multiplier
from eigenveil.plan import iterates
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
from eigenveil.privacy.facts import NO_PRIVACY
from eigenveil.privacy.noise.steps import ROUNDING_COST
from eigenveil.protocols import Hub, HubRound, Member, Node, Sampling, Terms
from eigenveil.protocols.masked import Identity, MaskedMember, MaskedTerms, Masking
from eigenveil.protocols.star.layout import star, tree
from eigenveil.tasks import Question
from eigenveil.tasks.fit.task import FitResult, Setting, WholeFit

__all__ = ["NOTHING_ASKED", "Parties", "place_of_noise", "sites_settings"]

NOTHING_ASKED: Final = NO_PRIVACY["fit"]
# What is spent stays this far below what may be, relatively, so that rounding in either account never refuses the last release.
_MARGIN: Final = 1e-10


@final
class Parties:
    """Of the sites `names`, around a hub or in a tree. Changes in place: it keeps the ledgers of the parties it has made.

    Where parties are `apart`, `roster` has the public identities of all sites, `title` is what signatures are bound to, and
    `start` the public seed of the first basis, which all of them have. `hub` is what the hub is called.
    """

    def __init__(
        self,
        request: FederatedSpec,
        names: Sequence[str],
        *,
        roster: Mapping[str, bytes],
        title: str | None = None,
        start: Any = None,
        apart: bool = False,
        hub: str = "hub",
    ) -> None:
        self.request, self.names, self.apart = request, tuple(names), apart
        self.ledgers: dict[str, Ledger] = {}
        # Sites that gave a matrix in place of rows, whose bound nobody but themselves can vouch for.
        self.matrices: set[str] = set()
        self._noise: dict[str, Noise] = {}
        self._places = {name: 1 + place for place, name in enumerate(self.names)}
        self.layout = (
            star(self.names, hub=hub) if request.fanout is None else tree(self.names, fanout=request.fanout, hub=hub)
        )
        self.above = self.layout.above()
        self.masked: MaskedTerms | None = None
        begin = request.seed if start is None else start
        self.study: WholeFit[Any, Any, Any] = request.design(request, self._setting(), begin)
        if request.masks is not None:
            self.masked = self._masked_terms(*request.masks, roster=roster, title=title)
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
        """The site of this name. With masks it has an `identity`; one that was stopped has spent `charges` before."""
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
            most_questions=self.most_questions if self.apart else None,
        )

    def mended(self, name: str, rows: Rows) -> None:
        """These are the rows of a site from here on."""
        self.matrices.discard(name)
        if isinstance(rows, Symmetric):
            self.matrices.add(name)

    @property
    def most_questions(self) -> int:
        """How many different questions a site is asked at most. Without privacy a fit begins again when sites are gone."""
        rounds = self.study.extent().rounds
        return rounds if self.request.private else rounds * (1 + len(self.names))

    def node(self, name: str) -> Node:
        """The inner node of this name."""
        return Node(
            name, above=self.above[name], below=self.layout.below[name], task=self.study, terms=self._patience(name)
        )

    def masking(self, *, secret: bytes | None = None) -> Masking | None:
        """The hub's side of masks, where there are any."""
        return None if self.masked is None else Masking(self.masked, self.study, secret=secret)

    def hub(
        self,
        *,
        masking: Masking | None,
        watch: Callable[[HubRound], None] | None,
        through: Callable[[Mechanism], Mechanism] = lambda mechanism: mechanism,
        asking: Callable[[Question], Question] | None = None,
    ) -> Hub[Any]:
        """The hub. What it releases goes `through` what is put around its mechanism; `asking` as in `Hub`."""
        request, sampling = self.request, None
        if request.participation is not None:
            scheme, count = request.participation
            sizes = request.sizes if request.sizes is not None else dict.fromkeys(self.names, 1.0)
            seed = None if request.seed is None else [request.seed, 1]
            sampling = Sampling(scheme, count, sizes, np.random.default_rng(seed))
        return Hub(
            self.study,
            self.layout.below[self.layout.hub],
            through(self._hub_mechanism()),
            name=self.layout.hub,
            terms=self._patience(self.layout.hub),
            sampling=sampling,
            person_sites=request.person_sites,
            watch=watch,
            exchanges=masking,
            asking=asking,
        )

    def noise_floor(self, found: FitResult, *, sites: int, weights: tuple[float, float]) -> float:
        """Gram eigenvalues below this cannot be told from noise, when so many `sites` count, and parts by these `weights`."""
        plan, count = self.request.plan, sites
        if found.scale == 0:
            return 0.0
        # The last round may have drawn few sites, whose parts count for all.
        scale = found.scale * self._total_noise(*weights) / self.study.multiplier
        found = replace(found, scale=scale)
        if plan.method in ("covariance", "merge", "uda", "wda"):
            floor = noise_floor(found, "covariance", width=plan.width, last=1.0)
            # Sites send what is above zero only, and so its mean does not cancel.
            return (
                floor if plan.method == "covariance" else floor * (1 + math.sqrt(count) * plan.width / found.domain.dim)
            )
        return noise_floor(found, plan.method, width=plan.width, last=plan.shares[-1] / plan.steps[-1])

    def _patience(self, name: str) -> Terms:
        """Twice the deadline with each level: nodes must have given up on their sites before those above give up on them."""
        levels, terms = self.layout.levels, self.request.terms
        return replace(terms, deadline=terms.deadline * 2 ** (max(levels.values()) - levels[name]))

    def _setting(self) -> Setting:
        request = self.request
        parts = max(len(children) for children in self.layout.below.values())
        return Setting(
            multiplier=self._total_noise(1.0, math.sqrt(len(self.names))),
            grid=parts if request.at_hub is not None and not request.published else 0,
            rounding=self._rounding(),
        )

    def _masked_terms(
        self, survivors: int, colluders: int, *, roster: Mapping[str, bytes], title: str | None
    ) -> MaskedTerms:
        request = self.request
        return masked_terms(
            self.study,
            roster,
            title=title,
            budget=request.at_sites,
            survivors=survivors,
            colluders=colluders,
            several=request.person_sites,
            people=max(request.sizes.values()) if request.sizes is not None else None,
        )

    def _rounding(self) -> float:
        """What rounding adds to the sensitivity of a sum that noise is added to at the hub, relatively.

        Parts on a grid of step g add up exactly, and cost `ROUNDING_COST`, 2 g sqrt(entries) over the sensitivity. Parts that are
        drawn count by weights of at most w, all together below w 2^53 g. Weighing the part that a person is in, the additions,
        of which there are fewer than sites drawn, and bringing the sum to size each round an entry by at most w g / 2 on either
        side. A person moves the sum by w times the sensitivity, so each of these costs one `ROUNDING_COST` more.
        A site that adds noise rounds its part before and the noise itself: 2 g sqrt(entries) and half as much.
        """
        request = self.request
        if request.at_hub is None or request.published:
            return 0.0
        drawn = 0 if request.participation is None else 1 + min(request.participation[1], len(self.names))
        at_sites = 0.0 if request.at_sites is None else 1.5
        return (1 + drawn + at_sites) * ROUNDING_COST

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

    def _hub_multiplier(self, budget: Budget) -> tuple[float, float]:
        """The hub's multiplier, and how much of it comes along from the sites that a person is at.

        Whoever sees only what the hub sends sees both noises. Where a person may be at k sites, each of them adds sqrt(k) r,
        with r = C D for C = 1 / mu of the sites, and the hub t = T v for the rest v. Parts count by weights of at most w, so one
        person moves the sum by W = k w parts. Then mu^2 = E^2 / (r^2 + (t / W)^2) ("Noise on noise" in
        `eigenveil.privacy.noise.steps`), the same for every k, and for weights below w all the more.

        Rounding: with p = `ROUNDING_COST` and a sensitivity S, D = (1 + d) S for a d of at most p. The distance that the hub's
        noise is for, T, is A W S with A at most (1 + rounding) (1 + p), and it holds all that is in c, and 3/2 p W S for D - S
        and for noise that sites round (`_rounding`), which take 3/2 d. So W E = W D + c <= (A - 3/2 (p - d)) W S. That is
        private enough, mu <= 1 / M for M = 1 / mu of the hub, if
            v^2 >= (M (A - 3/2 (p - d)) / A)^2 - (C (1 + d) / A)^2.
        Where M > C, the right side grows with d (by 3 M^2 (A - ..) - 2 C^2 (1 + d) > 0), so that d = p is the worst:
        v^2 = M^2 - (C / (1 + rounding))^2. Where M <= C the sites' noise is enough: the hub adds none.
        """
        sites, multiplier = self.request.at_sites, 1.0 / budget.mu
        if sites is None:
            return multiplier, 0.0
        alone = (1 + _MARGIN) / sites.mu
        return (alone, alone) if alone >= multiplier else (multiplier, alone / (1 + self._rounding()))

    def _noise_for(self, name: str) -> Noise:
        """One source for each place, which goes on where it was when a site is put right."""
        seed = self.request.seed
        if name not in self._noise:
            place = self._places.get(name, 0)
            self._noise[name] = Noise.fresh() if seed is None else Noise.seeded((seed << 32) + place)
        return self._noise[name]

    def _site_mechanism(self, name: str, charges: tuple[Charge, ...]) -> Mechanism:
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
            self.ledgers[name] = Ledger.continued(Budget(epsilon, delta), charges, {})
        multiplier = math.sqrt(several) / request.at_sites.mu * (1 + _MARGIN)
        return Gaussian(multiplier, self.ledgers[name], self._noise_for(name))

    def _hub_mechanism(self) -> Mechanism:
        request, name = self.request, self.layout.hub
        if request.at_hub is None:
            why = NOTHING_ASKED if not request.private else "the sites have added noise"
            return Exact(because=why)
        if request.published:
            return self._published(name, request.at_hub, sites=False)
        multiplier, carried = self._hub_multiplier(request.at_hub)
        self.ledgers[name] = Ledger(epsilon=request.at_hub.epsilon, delta=request.at_hub.delta)
        return Gaussian(multiplier, self.ledgers[name], self._noise_for(name), carried)

    def _published(self, name: str, budget: Budget, *, sites: bool) -> Mechanism:
        """Noise as FedPower prints it (Alg. 2), for sums instead of averages.

        Nothing is guaranteed, and nothing accounted for.
        """
        sizes = self.request.sizes
        assert sizes is not None
        least, most = min(sizes.values()), max(sizes.values())
        rounds = self.request.plan.rounds
        multiplier = fedpower_multiplier(budget, rounds=rounds) * (sizes[name] if sites else most) / least
        # Every round has an equal share of this mechanism.
        return Gaussian(multiplier / math.sqrt(rounds), Ledger(epsilon=math.inf, delta=0.5), self._noise_for(name))

    def _share(self, name: str, terms: MaskedTerms, charges: tuple[Charge, ...]) -> Share:
        ledger = None
        if terms.lattice.gaussian is not None:
            ledger = self.ledgers.setdefault(name, Ledger.continued(terms.lattice.gaussian, charges, {}))
        return Share(terms.lattice, ledger, self._noise_for(name), terms.multiplier, terms.several)


def sites_settings(parties: Parties, *, sites: int, rounds: int | None, sent: int | None) -> dict[str, Any]:
    """Of a fit of so many `sites` around a hub, as the party knows it that writes the model: `sent` are bytes."""
    request, plan = parties.request, parties.request.plan
    return settings_of(
        request.settings,
        method=plan.method,
        why=plan.reason,
        neighbours=request.neighbours if request.private else None,
        trust=place_of_noise(request),
        survivors=None if request.masks is None else request.masks[0],
        topology="star" if request.fanout is None else f"tree of fan-out {request.fanout}",
        sites=sites,
        rounds=rounds,
        bytes=sent,
        tolerance=plan.tolerance if iterates(plan.method) else None,
        width=plan.width,
    )


def place_of_noise(request: FederatedSpec) -> str:
    """Who is trusted with what, in a few words."""
    if request.masks is not None:
        survivors, colluders = request.masks
        return f"masked, {survivors} survivors of whom {colluders} may collude"
    if request.at_sites is not None:
        return "both" if request.at_hub is not None else "site"
    return "hub" if request.at_hub is not None else "none"
