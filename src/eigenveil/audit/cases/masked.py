"""Cases of masked sums: the hub sees the sum over the survivors and nothing else, and one site colludes with it.

The colluding site tells the hub what noise it has added: it draws it from a seed that both know. The noise that is left is that
of the honest survivors. It is exactly as much as was charged if they are as few as agreed. It consists of whole numbers, so the
claim is tested by its rates too. One case also looks at a site's messages before unmasking, as if there were no masks.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.random import Generator

from eigenveil.audit.case import Case, Claim, Trial, mu_of
from eigenveil.audit.cases.canaries import require_guarantee
from eigenveil.audit.cases.crowd import Crowd, announced
from eigenveil.audit.cases.messages import Look, Tap, scored
from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Ledger
from eigenveil.core.noise import Noise
from eigenveil.data.rows import DenseRows
from eigenveil.estimators import FederatedPCA
from eigenveil.estimators.federated.parties import Parties
from eigenveil.linalg import Array
from eigenveil.privacy import Share
from eigenveil.protocols import Party
from eigenveil.protocols.masked import Identity, MaskedMember, MaskedTerms
from eigenveil.protocols.masked.masks import add_masks
from eigenveil.protocols.masked.terms import question_digest
from eigenveil.protocols.messages import Masked
from eigenveil.tasks import Question

__all__ = ["BUDGET", "CASES", "claim_under_masks", "seen_by_hub_and_colluder"]

_DIM: Final = 8
# About mu = 1.2: noise a fifth too small moves the rate of right guesses from 73% to 77%.
BUDGET: Final = Budget(4.0, 1e-3)
# The number of messages that a site has received when keys are exchanged and it is asked for its first part.
_KEYS_AGREED: Final = 4


def _pca(budget: Budget, state: int | None, options: dict[str, Any]) -> FederatedPCA:
    """All directions, around zero, of rows of norm at most one: one person moves each release by at most one."""
    common = {"row_bound": 1.0, "center": None, "retries": 0, "trust": "masked", "colluders": 1, "random_state": state}
    return FederatedPCA(_DIM, epsilon=budget.epsilon, delta=budget.delta, **(common | options))


def _names(count: int) -> tuple[str, ...]:
    return tuple(f"site {place}" for place in range(count))


def claim_under_masks(budget: Budget) -> Claim:
    """The guarantee against the hub and one site.

    With few sites every pair shares a mask, so the probability that masks fail is zero.
    """
    return Claim.of(budget, "FederatedPCA's guarantee under masks")


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
    names = _names(sites)
    # Where the number of people is public, an absent canary must leave a blank row behind.
    blank = options.get("neighbours") == "zero-out"
    crowd = Crowd.of(names, dim=_DIM, mu=mu_of(budget), rng=rng, at=names[1:2], blank=blank)
    tap, seed = Tap(), int(rng.integers(2**31))
    # The colluder's noise comes from a seed that the hub knows, and its twin below draws the same.
    given = {names[0]: Noise.seeded(seed)} | dict(sources or {})

    def standing(parties: Parties, name: str, rows: DenseRows, identity: Identity | None) -> Party:
        if name not in given:
            return parties.member(name, rows, identity=identity)
        assert identity is not None
        terms = _terms(parties)
        share = _share(terms, given[name])
        assert share.ledger is not None
        parties.ledgers[name] = share.ledger
        return MaskedMember(
            name,
            hub=parties.layout.hub,
            task=parties.study,
            rows=rows,
            share=share,
            terms=terms,
            identity=identity,
        )

    run = announced(_pca(budget, state, options), crowd.tables(), tap, dies=dies, standing=standing)
    require_guarantee(run.guarantee, budget)
    # A site that dropped out before it gave a part is in no sum.
    there = [name for name in names if name not in (dies or {})]
    twin, looks = _share(_terms(run.parties), Noise.seeded(seed)), list[Look]()
    charges = run.parties.ledgers[names[1]].charges
    for (question, released), charge in zip(run.rounds, charges, strict=True):
        known = crowd.known(run.parties.study, question)
        # What the colluder added to the sum, base and noise, is subtracted by those who know it.
        told = _part(run.parties, question, crowd.base, twin)
        looks.append(crowd.look(known, released - (told - known.base), sites=there, scale=1 / charge.mu))
    return scored(looks, crowd.present)


def _seen_before_unmasking(budget: Budget, rng: Generator, state: int | None, *, sites: int, **options: Any) -> Trial:
    """What the last site sends, as it came, and without the masks that the hub and the first site know.

    The hub learns each survivor's own mask, and the colluder knows those that it shares with others. Without the other masks, a
    person there would be covered only by the site's own noise, which is a part of what all honest sites add together. Under them
    every word is uniform: the rest is far larger than noise, and has either sign equally often.
    """
    names, members = _names(sites), dict[str, MaskedMember]()
    crowd, tap = Crowd.of(names, dim=_DIM, mu=mu_of(budget), rng=rng, at=names[-1:], blank=True), Tap()

    def standing(parties: Parties, name: str, rows: DenseRows, identity: Identity | None) -> Party:
        member = parties.member(name, rows, identity=identity)
        assert isinstance(member, MaskedMember)
        members[name] = member
        return member

    run = announced(_pca(budget, state, options), crowd.tables(), tap, standing=standing)
    require_guarantee(run.guarantee, budget)
    sent = [
        message.body for message in tap.messages if message.sender == names[-1] and isinstance(message.body, Masked)
    ]
    # The words as they came, and the words without the masks that these two know.
    terms, raw, less = _terms(run.parties), list[Look](), list[Look]()
    for (question, _), body, charge in zip(run.rounds, sent, run.parties.ledgers[names[-1]].charges, strict=True):
        task, asked, fraction = run.parties.study.as_sum(question)
        known = crowd.known(run.parties.study, question)
        # Of the noise charged for, this site adds its share.
        alone = 1 / (charge.mu * math.sqrt(terms.lattice.honest))
        # Masks come off in place, and the words as they were sent are looked at too.
        told = body.words.copy()
        add_masks(told, _told(members[names[-1]], members[names[0]], body.round), question_digest(question))
        for words, looks in ((body.words, raw), (told, less)):
            look = crowd.look(known, terms.read(words, task, asked, fraction), sites=names[-1:], scale=alone)
            looks.append(replace(look, charged=charge.mu))
    # Two views of the same words: guesses use the second, and noise that is too small shows in either.
    first, second = scored(raw, crowd.present), scored(less, crowd.present)
    noise = np.concatenate([first.noise, second.noise])
    return replace(second, noise=noise, parts=(*first.parts, *second.parts))


def _told(site: MaskedMember, colluder: MaskedMember, round_: int) -> list[tuple[bytes, bool]]:
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
    task, asked, fraction = parties.study.as_sum(question)
    words = share.of(task.private(asked, DenseRows(rows)), label=task.label(asked), share=task.share(asked) * fraction)
    return _terms(parties).read(words, task, asked, fraction)


def _case(
    name: str, about: str, *, quick: int, full: int, dies: Mapping[str, int] | None = None, **options: Any
) -> Case:
    return Case(
        name=name,
        kind="shipped",
        about=about,
        canary="a row along each axis at an honest site, every other one a thousand times the bound, present or not (blank, "
        "where the number of people is public)",
        tests=("curve", "rates", "noise"),
        budget=BUDGET,
        claim=claim_under_masks,
        trial=partial(seen_by_hub_and_colluder, dies=dies, **options),
        quick=quick,
        full=full,
        threshold=0.5,
    )


CASES: Final = (
    _case(
        "masked/covariance",
        "FederatedPCA(trust='masked', method='covariance') over 3 sites, every unmasked sum, seen by the hub and one of "
        "the sites",
        quick=80,
        full=2600,
        sites=3,
        method="covariance",
    ),
    _case(
        "masked/power",
        "FederatedPCA(trust='masked', method='power', rounds=2, neighbours='zero-out') over 2 sites, every unmasked sum, "
        "seen by the hub and one of the sites",
        quick=40,
        full=600,
        sites=2,
        method="power",
        rounds=2,
        neighbours="zero-out",
    ),
    _case(
        "masked/dropout",
        "FederatedPCA(trust='masked', survivors=3, method='covariance', neighbours='zero-out') over 4 sites. One has "
        "dropped out when parts are due. Every unmasked sum, seen by the hub and one of the sites",
        quick=40,
        full=600,
        dies={"site 3": _KEYS_AGREED},
        sites=4,
        survivors=3,
        method="covariance",
        neighbours="zero-out",
    ),
    Case(
        name="masked/messages",
        kind="shipped",
        about="FederatedPCA(trust='masked', method='covariance', neighbours='zero-out') over 3 sites. What one of them sends "
        "before the sum is unmasked, seen by the hub and another site, which know some of the masks",
        canary="a row along each axis at that site, every other one a thousand times the bound, present or blank",
        tests=("curve", "noise"),
        budget=BUDGET,
        claim=claim_under_masks,
        trial=partial(_seen_before_unmasking, sites=3, method="covariance", neighbours="zero-out"),
        quick=40,
        full=600,
        threshold=0.5,
    ),
)
