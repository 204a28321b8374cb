"""Cases of sites around a hub or in a tree: `FederatedPCA` with noise at the hub, at the sites, and in both places.

What sites send is seen in their messages, by the hub or by an inner node of the tree. What the hub releases is seen by anybody,
and by other sites, which know what they have sent themselves.
"""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np
from numpy.random import Generator

from eigenveil.audit.case import Case, Claim, Trial
from eigenveil.audit.cases.canaries import enough_people, gram_of, require_guarantee, tossed
from eigenveil.audit.cases.crowd import Crowd, announced, shown
from eigenveil.audit.cases.messages import Look, Tap, scored
from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Charge
from eigenveil.errors import QuorumLost, require
from eigenveil.estimators import FederatedPCA
from eigenveil.linalg import Array
from eigenveil.methods import METHODS, Method
from eigenveil.privacy.guarantee import plain
from eigenveil.tasks import Question, Task

__all__ = ["CASES"]

_DIM: Final = 8
# About mu = 1.2: noise a fifth too small moves the rate of right guesses from 73% to 77%.
_BUDGET: Final = Budget(4.0, 1e-3)
_SITES: Final = ("site 0", "site 1", "site 2")
_FOUR: Final = (*_SITES, "site 3")
# The factor between the two epsilons of trust="both".
_OTHER: Final = 2.0
# How many people are along the axes of each near-tied pair at a site, in units larger than any noise: only the two axes of a
# pair can be swapped.
_PAIRS: Final = (4, 3, 2, 1)


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
    several: int = 1,
    lost: bool = False,
    **options: Any,
) -> Trial:
    """Each part that is sent to the party `by`, which looks at it. The canary moves it by a row that is clipped to the bound."""
    crowd = Crowd.of(names, dim=_DIM, mu=budget.mu, rng=rng, at=at, several=several)
    options["person_sites"] = several
    both = options["trust"] == "both"
    pca = _pca((budget.epsilon, budget.epsilon / _OTHER) if both else budget.epsilon, budget.delta, state, options)
    tap = Tap()
    (_fit_resumed if lost else _fit)(pca, crowd.tables(), tap)
    if both:
        # The page's own epsilon is against everybody else. What holds against the hub is in this sentence.
        claimed = f"({plain(budget.epsilon)}, {plain(budget.delta)})"
        require(claimed in pca.guarantee_.against, f"the fit does not guarantee {claimed} against the hub")
    else:
        require_guarantee(pca.guarantee_, budget)
    task = _task(names, tuple(sorted(options.items())))
    known = {round_: crowd.known(task, question) for round_, question in tap.questions().items()}
    looks: list[Look] = []
    for name in names:
        charges, asked = _charges(pca, name), list[Question]()
        for part in tap.parts(to=by, by=name):
            if not any(part.question.same(other) for other in asked):
                # Charges are one for each question, however often it was answered.
                asked.append(part.question)
            # A person moves a part by one, but for norms and for rows that are clipped to a bound that was found.
            far = _sensitivity(task, part.question) if _searches(options) else 1.0
            # A second answer to one question has the same noise as the first.
            scale = far / charges[len(asked) - 1].mu
            looks.append(crowd.look(known[part.round], shown(part.arrays), sites=[name], scale=scale, far=far))
    return scored(looks, crowd.present)


def _searches(options: dict[str, Any]) -> bool:
    return "private" in (options.get("row_bound"), options.get("scale"))


def _sensitivity(task: Task[Any, Any, Any], question: Question) -> float:
    summed, asked, _ = task.as_sum(question)
    return summed.sensitivity(asked)


def _fit(pca: FederatedPCA, tables: dict[str, Array], tap: Tap) -> None:
    pca.faults = tap.faults()
    pca.fit(tables)


def _fit_resumed(pca: FederatedPCA, tables: dict[str, Array], tap: Tap) -> None:
    """The last site does not answer, the quorum is lost, and the fit resumes when the site is back."""
    pca.faults = tap.faults(dies={list(tables)[-1]: 0})
    try:
        pca.fit(tables)
    except QuorumLost:
        pca.faults = tap.faults()
        pca.resume()
        return
    raise AssertionError("the quorum was not lost")


def _charges(pca: FederatedPCA, site: str) -> list[Charge]:
    """A site's charge for each part that it sent. Of local steps only the last is sent."""
    return [one for one in pca.ledgers_[site].charges if "local step" not in one.label or _is_last(one.label)]


def _is_last(label: str) -> bool:
    step, _, steps = label.rpartition("local step ")[2].partition(" of ")
    return step == steps


def _seen_from_hub(budget: Budget, rng: Generator, state: int | None, **options: Any) -> Trial:
    """Every number that the hub releases, as other sites see it, which know what noise they have added themselves."""
    home = _SITES[-1]
    crowd, tap = Crowd.of(_SITES, dim=_DIM, mu=budget.mu, rng=rng, at=(home,)), Tap()
    # The claim here is about what the hub releases, so the sites get the larger of the two epsilons.
    both = options["trust"] == "both"
    pca = _pca((_OTHER * budget.epsilon, budget.epsilon) if both else budget.epsilon, budget.delta, state, options)
    run = announced(pca, crowd.tables(), tap)
    require_guarantee(run.guarantee, budget)
    parts, looks = tap.parts(to="hub"), list[Look]()
    for (question, released), charge in zip(run.rounds, run.parties.ledgers["hub"].charges, strict=True):
        known = crowd.known(run.parties.study, question)
        own = [shown(part.arrays) for part in parts if part.question is question and part.sender != home]
        # Other sites know their own noise, so it does not protect a person from them.
        theirs = sum((one - known.base for one in own), np.zeros_like(released))
        looks.append(crowd.look(known, released - theirs, sites=_SITES, scale=1 / charge.mu))
    return scored(looks, crowd.present)


def _seen_in_result(budget: Budget, rng: Generator, state: int | None) -> Trial:
    """All components and variances and the number of people, which come from a noisy Gram matrix and a noisy count."""
    crowd, tap = Crowd.of(_SITES, dim=_DIM, mu=budget.mu, rng=rng, at=_SITES[-1:]), Tap()
    options = {"trust": "hub", "method": "covariance"}
    pca = _pca(budget.epsilon, budget.delta, state, options)
    _fit(pca, crowd.tables(), tap)
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
    present = tossed(len(_PAIRS), rng)
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


def _guarantee(budget: Budget) -> Claim:
    return Claim.of(budget, "FederatedPCA's guarantee")


_AXES: Final = "a row along each axis at each site, every other one a thousand times the bound, present or not"
_LAST: Final = "a row along each axis at the last site, every other one a thousand times the bound, present or not"


def _case(
    name: str,
    about: str,
    trial: Callable[[Budget, Generator, int | None], Trial],
    *,
    canary: str = _AXES,
    quick: int = 60,
    full: int = 1000,
) -> Case:
    """A case scored by likelihood ratios: the threshold is half, and the noise is tested too."""
    return Case(
        name=name,
        kind="shipped",
        about=about,
        canary=canary,
        tests=("curve", "noise"),
        budget=_BUDGET,
        claim=_guarantee,
        trial=trial,
        quick=quick,
        full=full,
        threshold=0.5,
    )


def _at_sites(what: str, seen: str, *, quick: int = 60, **options: Any) -> Case:
    about = f"FederatedPCA(trust='site', {_written(options)}), {seen}, seen by the hub"
    return _case(f"site-noise/{what}", about, partial(_seen_from_sites, trust="site", **options), quick=quick)


def _written(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in options.items())


def _few_rounds(leaf: Method) -> dict[str, Any]:
    """The options of a fit by a method, in few rounds where that is up to the caller."""
    rounds = {} if leaf.fixed_rounds is not None else {"rounds": 3 if leaf.keeps_products else 2}
    return {"method": leaf.name, **rounds}


def _of_method(leaf: Method) -> Case:
    """What leaves each site under one method. A matrix shows its noise in more runs than a product."""
    if leaf.releases_gram:
        return _at_sites(leaf.name, "each site's matrix and count", quick=260, **_few_rounds(leaf))
    if leaf.averages_subspaces:
        return _at_sites(leaf.name, "each site's directions and values", **_few_rounds(leaf))
    return _at_sites(leaf.name, "each site's products, count and trace", quick=100, **_few_rounds(leaf))


CASES: Final = (
    _case(
        "hub-noise/result",
        "FederatedPCA(trust='hub', method='covariance'), all components and variances and the count, seen by anybody",
        _seen_in_result,
        canary=_LAST,
        quick=160,
        full=2600,
    ),
    Case(
        name="hub-noise/swap",
        kind="shipped",
        about="FederatedPCA(trust='hub', method='covariance'), components without their variances, seen by anybody",
        canary="a row at the last site for each pair of near-tied eigenvalues, which puts the second of a pair first, "
        "present or not",
        tests=("curve",),
        budget=_BUDGET,
        claim=_guarantee,
        trial=_swapped,
        quick=100,
        full=2000,
        threshold=0.0,
    ),
    *(
        _case(
            f"hub-noise/{leaf}",
            f"FederatedPCA(trust='hub', {_written(_few_rounds(leaf))}), every release of the hub, seen by anybody",
            partial(_seen_from_hub, trust="hub", **_few_rounds(leaf)),
            canary=_LAST,
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
    _case(
        "both-noise/hub",
        "FederatedPCA(trust='both', method='power', rounds=2), what each site sends, seen by the hub",
        partial(_seen_from_sites, trust="both", method="power", rounds=2),
    ),
    _case(
        "both-noise/other-sites",
        "FederatedPCA(trust='both', method='power', rounds=2), every release of the hub, seen by the other sites",
        partial(_seen_from_hub, trust="both", method="power", rounds=2),
        canary=_LAST,
    ),
    _case(
        "tree/inner-node",
        "FederatedPCA(trust='site', topology='tree', fanout=2, method='power', rounds=2), what two of four sites send, seen by "
        "the node above them",
        partial(
            _seen_from_sites,
            names=_FOUR,
            by="node 1",
            at=_FOUR[:2],
            trust="site",
            topology="tree",
            fanout=2,
            method="power",
            rounds=2,
        ),
    ),
    _case(
        "site-noise/person-at-two-sites",
        "FederatedPCA(trust='site', person_sites=2, method='power', rounds=2), what each site sends, seen by the hub",
        partial(_seen_from_sites, several=2, trust="site", method="power", rounds=2),
        canary="a row along each axis at every pair of sites, every other one a thousand times the bound, present or not",
    ),
    _case(
        "site-noise/resumed",
        "FederatedPCA(trust='site', method='covariance'), where the last site fails, the quorum is lost and the fit resumes: "
        "what the other sites send before and after, seen by the hub",
        partial(_seen_from_sites, lost=True, at=_SITES[:2], trust="site", method="covariance"),
        quick=160,
    ),
)
