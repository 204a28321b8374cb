"""Cases of sites around a hub or in a tree: `FederatedPCA` with noise at the hub, at the sites, in both places, and under masks.

What sites send is seen in their messages, by the hub or by an inner node of the tree. What the hub releases is seen by anybody,
and by other sites, which know what they have sent themselves.

Under masks the hub sees the sum over the survivors and nothing else, and one site colludes with it. That site tells the hub what
noise it has added: it draws it from a seed that both know. The noise that is left is that of the honest survivors. It is exactly
as much as was charged if they are as few as agreed. It consists of whole numbers, so the claim is tested by its rates too. One
case also looks at a site's messages before unmasking, as if there were no masks.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np
from numpy.random import Generator

from eigenveil.audit.case import Case, Trial, mu_of, usual_case
from eigenveil.audit.cases.seen import (
    CanaryPopulation,
    Look,
    Tap,
    announced,
    enough_people,
    flip_coins,
    gram_of,
    require_guarantee,
    scored,
    shown,
)
from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Charge, Ledger
from eigenveil.core.noise import Noise
from eigenveil.data.rows import DenseRows
from eigenveil.errors import QuorumLost, require
from eigenveil.estimators import FederatedPCA
from eigenveil.estimators.federated.parties import Parties
from eigenveil.linalg import Array
from eigenveil.methods import METHODS, Method
from eigenveil.privacy.guarantee import plain
from eigenveil.privacy.lattice import Share
from eigenveil.protocols.keys import Identity
from eigenveil.protocols.masked.graph import add_masks
from eigenveil.protocols.masked.member import MaskedMember
from eigenveil.protocols.masked.terms import MaskedTerms, question_digest
from eigenveil.protocols.messages import Masked
from eigenveil.protocols.party import Party
from eigenveil.tasks.base import Question, Task

__all__ = ["CASES", "UNDER_MASKS", "seen_by_hub_and_colluder"]

_DIM: Final = 8
_SITES: Final = ("site 0", "site 1", "site 2")
_FOUR: Final = (*_SITES, "site 3")
# The factor between the two epsilons of trust="both".
_OTHER: Final = 2.0
# How many people are along the axes of each near-tied pair at a site, in units larger than any noise: only the two axes of a
# pair can be swapped.
_PAIRS: Final = (4, 3, 2, 1)
# The number of messages that a site has received when keys are exchanged and it is asked for its first part.
_KEYS_AGREED: Final = 4
# The claim against the hub and one site. With few sites every pair shares a mask, so the probability that masks fail is zero.
UNDER_MASKS: Final = "FederatedPCA's guarantee under masks"


def _pca(epsilon: Any, delta: float, state: int | None, options: dict[str, Any]) -> FederatedPCA:
    """All directions, around zero, of rows of norm at most one: one person moves each release by at most one."""
    common = {"row_bound": 1.0, "center": None, "retries": 0, "random_state": state}
    return FederatedPCA(_DIM, epsilon=epsilon, delta=delta, **(common | options))


@lru_cache(maxsize=64)
def _task(names: tuple[str, ...], options: tuple[tuple[str, Any], ...]) -> Task[Any, Any, Any]:
    """The fit as one task, to compute what sites would answer without noise, which depends on neither budget nor seed."""
    both = dict(options).get("trust") == "both"
    tables = dict.fromkeys(names, np.eye(_DIM))
    return _pca((1.0, 1.0) if both else 1.0, 1e-3, 0, dict(options)).prepare(tables).study


def _seen_from_sites(
    budget: Budget,
    rng: Generator,
    state: int | None,
    *,
    names: tuple[str, ...] = _SITES,
    by: str = "hub",
    at: tuple[str, ...] | None = None,
    lost: bool = False,
    person_sites: int = 1,
    **options: Any,
) -> Trial:
    """Each part that is sent to the party `by`, which looks at it. The canary moves it by a row that is clipped to the bound."""
    crowd = CanaryPopulation.of(names, dim=_DIM, mu=budget.mu, rng=rng, at=at, several=person_sites)
    options["person_sites"] = person_sites
    both = options["trust"] == "both"
    pca = _pca((budget.epsilon, budget.epsilon / _OTHER) if both else budget.epsilon, budget.delta, state, options)
    tap = Tap()
    _fit(pca, crowd.tables(), tap, lost=lost)
    if both:
        # The page's own epsilon is against everybody else. What holds against the hub is in this sentence.
        claimed = f"({plain(budget.epsilon)}, {plain(budget.delta)})"
        require(claimed in pca.guarantee_.against, f"the fit does not guarantee {claimed} against the hub")
    else:
        require_guarantee(pca.guarantee_, budget)
    task, searches = (_task(names, tuple(sorted(options.items()))), "private" in (options.get("row_bound"), options.get("scale")))
    knowledge = {round_: crowd.known(task, question) for round_, question in tap.questions().items()}
    looks: list[Look] = []
    for name in names:
        charges, questions = _charges(pca, name), list[Question]()
        for part in tap.parts(to=by, by=name):
            if not any(part.question.same(other) for other in questions):
                # Charges are one for each question, however often it was answered.
                questions.append(part.question)
            # A person moves a part by one, but for norms and for rows that are clipped to a bound that was found.
            far = 1.0
            if searches:
                summed, question, _ = task.as_sum(part.question)
                far = summed.sensitivity(question)
            # A second answer to one question has the same noise as the first.
            scale = far / charges[len(questions) - 1].mu
            looks.append(crowd.look(knowledge[part.round], shown(part.arrays), sites=[name], scale=scale, far=far))
    return scored(looks, crowd.present)


def _fit(pca: FederatedPCA, tables: dict[str, Array], tap: Tap, *, lost: bool) -> None:
    """If `lost`, the last site does not answer, the quorum is lost, and the fit resumes when the site is back."""
    pca.faults = tap.faults(dies={list(tables)[-1]: 0} if lost else None)
    try:
        pca.fit(tables)
    except QuorumLost:
        if not lost:
            raise
        pca.faults = tap.faults()
        pca.resume()
    else:
        assert not lost, "the quorum was not lost"


def _charges(pca: FederatedPCA, site: str) -> list[Charge]:
    """A site's charge for each part that it sent. Of local steps only the last is sent: "local step 4 of 4"."""
    ends = [(charge, charge.label.rpartition("local step ")[2].partition(" of ")) for charge in pca.ledgers_[site].charges]
    return [charge for charge, (step, _, steps) in ends if "local step" not in charge.label or step == steps]


def _seen_from_hub(budget: Budget, rng: Generator, state: int | None, **options: Any) -> Trial:
    """Every number that the hub releases, as other sites see it, which know what noise they have added themselves."""
    home = _SITES[-1]
    crowd, tap = CanaryPopulation.of(_SITES, dim=_DIM, mu=budget.mu, rng=rng, at=(home,)), Tap()
    # The claim here is about what the hub releases, so the sites get the larger of the two epsilons.
    both = options["trust"] == "both"
    pca = _pca((_OTHER * budget.epsilon, budget.epsilon) if both else budget.epsilon, budget.delta, state, options)
    run = announced(pca, crowd.tables(), tap)
    require_guarantee(run.guarantee, budget)
    parts, looks = tap.parts(to="hub"), list[Look]()
    for (question, released), charge in zip(run.rounds, run.parties.ledgers["hub"].charges, strict=True):
        knowledge = crowd.known(run.parties.study, question)
        own = [shown(part.arrays) for part in parts if part.question is question and part.sender != home]
        # Other sites know their own noise, so it does not protect a person from them.
        theirs = sum((sent - knowledge.base for sent in own), np.zeros_like(released))
        looks.append(crowd.look(knowledge, released - theirs, sites=_SITES, scale=1 / charge.mu))
    return scored(looks, crowd.present)


def _seen_in_result(budget: Budget, rng: Generator, state: int | None) -> Trial:
    """All components and variances and the number of people, which come from a noisy Gram matrix and a noisy count."""
    crowd, tap = CanaryPopulation.of(_SITES, dim=_DIM, mu=budget.mu, rng=rng, at=_SITES[-1:]), Tap()
    options = {"trust": "hub", "method": "covariance"}
    pca = _pca(budget.epsilon, budget.delta, state, options)
    _fit(pca, crowd.tables(), tap, lost=False)
    require_guarantee(pca.guarantee_, budget)
    # Variances are squared values over the number of people less one, so the released count can be read back.
    people = pca.singular_values_[:1] ** 2 / pca.explained_variance_[:1] + 1
    task = _task(_SITES, tuple(sorted(options.items())))
    looks = [
        crowd.look(crowd.known(task, question), released, sites=_SITES, scale=1 / charge.mu)
        for question, released, charge in zip(
            tap.questions().values(), (gram_of(pca.subspace_), people), pca.ledgers_["hub"].charges, strict=True
        )
    ]
    return scored(looks, crowd.present)


def _swapped(budget: Budget, rng: Generator, state: int | None) -> Trial:
    """Only directions, of a Gram matrix whose eigenvalues are near-tied in pairs: the canary puts the second of a pair first."""
    present = flip_coins(len(_PAIRS), rng)
    people = enough_people(_DIM, deviation=1 / budget.mu) * np.repeat(_PAIRS, 2)
    base = np.repeat(np.eye(_DIM), people, axis=0)
    # Half a person along the first axis of each pair; a canary is one along the second.
    last = np.vstack([base, math.sqrt(0.5) * np.eye(_DIM)[0::2], np.eye(_DIM)[1::2][present]])
    pca = _pca(budget.epsilon, budget.delta, state, {"trust": "hub", "method": "covariance"})
    pca.fit({_SITES[0]: base, _SITES[1]: base, _SITES[2]: last})
    require_guarantee(pca.guarantee_, budget)
    # Of each pair the first component: the canary decides along which axis it lies.
    first = np.square(pca.components_[0::2])
    pairs = np.arange(len(_PAIRS))
    return Trial(scores=first[pairs, 2 * pairs + 1] - first[pairs, 2 * pairs], present=present)


def _under_masks(budget: Budget, state: int | None, options: dict[str, Any]) -> FederatedPCA:
    return _pca(budget.epsilon, budget.delta, state, {"trust": "masked", "colluders": 1, **options})


def seen_by_hub_and_colluder(
    budget: Budget,
    rng: Generator,
    state: int | None,
    *,
    sites: int,
    dies: Mapping[str, int] | None = None,
    sources: Mapping[str, Noise] | None = None,
    **options: Any,
) -> Trial:
    """Every unmasked sum, less what the first site, which colludes, has added to it. Canaries are at the second.

    A site in `sources` draws its noise from that source instead of its own.
    """
    names = _FOUR[:sites]
    # Where the number of people is public, an absent canary must leave a blank row behind.
    blank = options.get("neighbours") == "zero-out"
    crowd = CanaryPopulation.of(names, dim=_DIM, mu=mu_of(budget), rng=rng, at=names[1:2], blank=blank)
    tap, seed = Tap(), int(rng.integers(2**31))
    # The colluder's noise comes from a seed that the hub knows, and its twin below draws the same.
    noises = {names[0]: Noise.seeded(seed)} | dict(sources or {})

    def standing(parties: Parties, name: str, rows: DenseRows, identity: Identity | None) -> Party:
        if name not in noises:
            return parties.member(name, rows, identity=identity)
        assert identity is not None
        terms = _terms(parties)
        share = _share(terms, noises[name])
        assert share.ledger is not None
        parties.ledgers[name] = share.ledger
        return MaskedMember(
            name, hub=parties.layout.hub, task=parties.study, rows=rows, share=share, terms=terms, identity=identity
        )

    run = announced(_under_masks(budget, state, options), crowd.tables(), tap, dies=dies, standing=standing)
    require_guarantee(run.guarantee, budget)
    # A site that dropped out before it gave a part is in no sum.
    survivors = [name for name in names if name not in (dies or {})]
    twin, looks = _share(_terms(run.parties), Noise.seeded(seed)), list[Look]()
    charges = run.parties.ledgers[names[1]].charges
    for (question, released), charge in zip(run.rounds, charges, strict=True):
        knowledge = crowd.known(run.parties.study, question)
        # What the colluder added to the sum, base and noise, is subtracted by those who know it.
        added = _part(run.parties, question, crowd.base, twin)
        looks.append(crowd.look(knowledge, released - (added - knowledge.base), sites=survivors, scale=1 / charge.mu))
    return scored(looks, crowd.present)


def _seen_before_unmasking(budget: Budget, rng: Generator, state: int | None, *, sites: int, **options: Any) -> Trial:
    """What the last site sends, as it came, and without the masks that the hub and the first site know.

    The hub learns each survivor's own mask, and the colluder knows those that it shares with others. Without the other masks, a
    person there would be covered only by the site's own noise, which is a part of what all honest sites add together. Under them
    every word is uniform: the rest is far larger than noise, and has either sign equally often.
    """
    names, members = _FOUR[:sites], dict[str, MaskedMember]()
    crowd, tap = CanaryPopulation.of(names, dim=_DIM, mu=mu_of(budget), rng=rng, at=names[-1:], blank=True), Tap()

    def standing(parties: Parties, name: str, rows: DenseRows, identity: Identity | None) -> Party:
        member = parties.member(name, rows, identity=identity)
        assert isinstance(member, MaskedMember)
        members[name] = member
        return member

    run = announced(_under_masks(budget, state, options), crowd.tables(), tap, standing=standing)
    require_guarantee(run.guarantee, budget)
    sent = [message.body for message in tap.messages if message.sender == names[-1] and isinstance(message.body, Masked)]
    # The words as they came, and the words without the masks that these two know.
    terms, raw, less = _terms(run.parties), list[Look](), list[Look]()
    for (question, _), body, charge in zip(run.rounds, sent, run.parties.ledgers[names[-1]].charges, strict=True):
        task, query, fraction = run.parties.study.as_sum(question)
        knowledge = crowd.known(run.parties.study, question)
        # Of the noise charged for, this site adds its share.
        alone = 1 / (charge.mu * math.sqrt(terms.lattice.honest))
        # Masks come off in place, and the words as they were sent are looked at too.
        unmasked = body.limbs.copy()
        add_masks(unmasked, _pair_secrets(members[names[-1]], members[names[0]], body.round), question_digest(question))
        for limbs, looks in ((body.limbs, raw), (unmasked, less)):
            look = crowd.look(knowledge, terms.read(limbs, task, query, fraction), sites=names[-1:], scale=alone)
            looks.append(replace(look, charged=charge.mu))
    # Two views of the same words: guesses use the second, and noise that is too small shows in either.
    first, second = scored(raw, crowd.present), scored(less, crowd.present)
    noise = np.concatenate([first.noise, second.noise])
    return replace(second, noise=noise, parts=(*first.parts, *second.parts))


def _pair_secrets(site: MaskedMember, colluder: MaskedMember, round_: int) -> list[tuple[bytes, bool]]:
    """The masks of a site that others know, to be subtracted: its own, and the one that it shares with the colluder."""
    assert site._session is not None and colluder._session is not None
    # `Session.masks` lists the site's own mask first.
    own, *pairs = site._session.masks(round_)
    shared = {key for key, _ in colluder._session.masks(round_)}
    return [(key, not plus) for key, plus in (own, *(pair for pair in pairs if pair[0] in shared))]


def _terms(parties: Parties) -> MaskedTerms:
    assert parties.masked is not None
    return parties.masked


def _share(terms: MaskedTerms, noise: Noise) -> Share:
    """A site's share that draws from this `noise`."""
    assert terms.lattice.gaussian is not None
    gaussian = terms.lattice.gaussian
    # A fresh one for each share, as a site has it, so that the twin's charges are not added to the site's.
    ledger = Ledger(epsilon=gaussian.epsilon, delta=gaussian.delta)
    return Share(lattice=terms.lattice, ledger=ledger, noise=noise, multiplier=terms.multiplier, several=terms.several)


def _part(parties: Parties, question: Question, rows: Array, share: Share) -> Array:
    """What a site with these rows and this share adds to the sum, read as the hub reads the sum."""
    task, query, fraction = parties.study.as_sum(question)
    limbs = share.of(task.private(query, DenseRows(rows)), label=task.label(query), share=task.share(query) * fraction)
    return _terms(parties).read(limbs, task, query, fraction)


_LAST: Final = "a row along each axis at the last site, every other one a thousand times the bound, present or not"
_case = partial(usual_case, claim="FederatedPCA's guarantee")


def _seen(name: str, view: str, *, canary: str = "", quick: int = 60, trial: Any = None, **options: Any) -> Case:
    """A case of what is `view` in a fit with these options."""
    at_each = "a row along each axis at each site, every other one a thousand times the bound, present or not"
    about = f"FederatedPCA({_written(options)}), {view}"
    run = partial(trial or _seen_from_sites, **options)
    return _case(name, about, canary or at_each, run, quick=quick, full=1000)


def _at_sites(what: str, view: str, *, quick: int = 60, **options: Any) -> Case:
    return _seen(f"site-noise/{what}", f"{view}, seen by the hub", quick=quick, trust="site", **options)


def _written(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in options.items())


def _few_rounds(leaf: Method) -> dict[str, Any]:
    """The options of a fit by a method, in few rounds where that is up to the caller."""
    rounds = {} if leaf.fixed_rounds is not None else {"rounds": 3 if leaf.keeps_products else 2}
    return {"method": leaf.name, **rounds}


def _of_method(leaf: Method) -> Case:
    """What leaves each site under one method. A matrix shows its noise in more runs than a product."""
    view, quick = "each site's products, count and trace", 100
    if leaf.releases_gram:
        view, quick = "each site's matrix and count", 260
    elif leaf.averages_subspaces:
        view, quick = "each site's directions and values", 60
    return _at_sites(leaf.name, view, quick=quick, **_few_rounds(leaf))


def _masked(name: str, view: str, *, quick: int, full: int, sites: int, dies: Any = None, **options: Any) -> Case:
    return _case(
        name,
        f"FederatedPCA({_written({'trust': 'masked', **options})}) over {sites} sites{view} seen by the hub and one of the sites",
        "a row along each axis at an honest site, every other one a thousand times the bound, present or not (blank, where the "
        "number of people is public)",
        partial(seen_by_hub_and_colluder, sites=sites, dies=dies, **options),
        claim=UNDER_MASKS,
        tests=("curve", "rates", "noise"),
        quick=quick,
        full=full,
    )


_EVERY_RELEASE: Final = "every release of the hub, seen by"
_BOTH: Final[dict[str, Any]] = {"trust": "both", "method": "power", "rounds": 2}
_MATRIX: Final[dict[str, Any]] = {"method": "covariance", "neighbours": "zero-out"}
CASES: Final = (
    _case(
        "hub-noise/result",
        "FederatedPCA(trust='hub', method='covariance'), all components and variances and the count, seen by anybody",
        _LAST,
        _seen_in_result,
        quick=160,
        full=2600,
    ),
    _case(
        "hub-noise/swap",
        "FederatedPCA(trust='hub', method='covariance'), components without their variances, seen by anybody",
        "a row at the last site for each pair of near-tied eigenvalues, which puts the second of a pair first, present or not",
        _swapped,
        tests=("curve",),
        quick=100,
        full=2000,
        threshold=0.0,
    ),
    *(
        _seen(
            f"hub-noise/{leaf}", f"{_EVERY_RELEASE} anybody", canary=_LAST, trial=_seen_from_hub, trust="hub", **_few_rounds(leaf)
        )
        for leaf in METHODS.values()
        if "hub" in leaf.settings and leaf.needs_start_basis
    ),
    *(_of_method(leaf) for leaf in METHODS.values() if "sites" in leaf.places and leaf.has_private_form),
    _at_sites("mean", "each site's sum, count and matrix", method="covariance", center="private", mean_bound=1.0),
    _at_sites("bound", "each site's counts of norms, matrix and count", method="covariance", row_bound="private"),
    _at_sites(
        "bound-and-mean",
        "each site's counts of norms, sums, count and matrix",
        method="covariance",
        row_bound="private",
        center="private",
    ),
    _at_sites(
        "units",
        "each site's counts of entries, sums, count and matrix",
        # Its counts are in thousands of cells, which test the noise in few runs.
        quick=20,
        method="covariance",
        scale="private",
        center="private",
    ),
    _at_sites(
        "fedpower-4-steps",
        "each site's product of the last local step, count and trace",
        method="fedpower",
        rounds=1,
        local_steps=4,
    ),
    _seen("both-noise/hub", "what each site sends, seen by the hub", **_BOTH),
    _seen("both-noise/other-sites", f"{_EVERY_RELEASE} the other sites", canary=_LAST, trial=_seen_from_hub, **_BOTH),
    _seen(
        "tree/inner-node",
        "what two of four sites send, seen by the node above them",
        trial=partial(_seen_from_sites, names=_FOUR, by="node 1", at=_FOUR[:2]),
        trust="site",
        topology="tree",
        fanout=2,
        method="power",
        rounds=2,
    ),
    _seen(
        "site-noise/person-at-two-sites",
        "what each site sends, seen by the hub",
        canary="a row along each axis at every pair of sites, every other one a thousand times the bound, present or not",
        trust="site",
        person_sites=2,
        method="power",
        rounds=2,
    ),
    _seen(
        "site-noise/resumed",
        "where the last site fails, the quorum is lost and the fit resumes: what the other sites send before and after, seen by "
        "the hub",
        trial=partial(_seen_from_sites, lost=True, at=_SITES[:2]),
        quick=160,
        trust="site",
        method="covariance",
    ),
    _masked("masked/covariance", ", every unmasked sum,", quick=80, full=2600, sites=3, method="covariance"),
    _masked(
        "masked/power", ", every unmasked sum,", quick=40, full=600, sites=2, method="power", rounds=2, neighbours="zero-out"
    ),
    _masked(
        "masked/dropout",
        ". One has dropped out when parts are due. Every unmasked sum,",
        quick=40,
        full=600,
        dies={"site 3": _KEYS_AGREED},
        sites=4,
        survivors=3,
        **_MATRIX,
    ),
    _case(
        "masked/messages",
        "FederatedPCA(trust='masked', method='covariance', neighbours='zero-out') over 3 sites. What one of them sends before "
        "the sum is unmasked, seen by the hub and another site, which know some of the masks",
        "a row along each axis at that site, every other one a thousand times the bound, present or blank",
        partial(_seen_before_unmasking, sites=3, **_MATRIX),
        claim=UNDER_MASKS,
        quick=40,
        full=600,
    ),
)
