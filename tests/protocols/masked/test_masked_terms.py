"""Terms that do not fit together are refused by every party that would use them, and what would come of them if they were not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Ledger
from eigenveil.core.noise import Noise, distance_in_steps
from eigenveil.data.rows import DenseRows
from eigenveil.privacy.lattice import Lattice, Share
from eigenveil.protocols.keys import Identity
from eigenveil.protocols.masked.graph import MaskGraph
from eigenveil.protocols.masked.member import MaskedMember
from eigenveil.protocols.masked.terms import MaskedTerms
from eigenveil.runtimes.local import LocalStar
from protocols.masked.masked_companies import (
    VICTIM,
    MaskedCompany,
    began,
    drawn_from,
    masked_company,
    masked_terms,
    same,
    share_of,
)
from protocols.star.companies import DIM

Patch = pytest.MonkeyPatch
SITES = 7


@pytest.fixture(autouse=True)
def _seeded(monkeypatch: Patch) -> None:
    drawn_from(monkeypatch, 7)


def lattice(sites: int = SITES, survivors: int = 5, colluders: int = 1, loss: int = 0) -> Lattice:
    return Lattice(budget=Budget(1.0, 1e-6), sites=sites, survivors=survivors, colluders=colluders, loss=loss)


def complete(holders: int, threshold: int) -> MaskGraph:
    return MaskGraph(holders=holders, threshold=threshold, loss=0, failure=0.0, abort=0.0, complete=True)


def sparse(holders: int, threshold: int, loss: int = 0) -> MaskGraph:
    return MaskGraph(holders=holders, threshold=threshold, loss=loss, failure=0.0, abort=0.0, complete=False)


UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "threshold that two sets reach": ({"graph": complete(6, 4)}, "complete graph"),
    "not all are holders": ({"graph": complete(5, 5)}, "complete graph"),
    "more holders than sites": ({"graph": complete(7, 5)}, "threshold that 1 colluders do not reach"),
    "complete, and looks": ({"checks": 3}, "complete graph"),
    "sparse, and no looks": ({"graph": sparse(4, 3)}, "needs checks of signatures"),
    "colluders reach the threshold": ({"graph": sparse(4, 1), "checks": 9}, "colluders do not reach"),
    "lattice for more sites": ({"lattice": Lattice.exact(sites=8)}, "lattice must be for 7 sites"),
    "lattice for fewer sites": ({"lattice": Lattice.exact(sites=6)}, "lattice must be for 7 sites"),
    "noise counts on too many": ({"lattice": lattice(survivors=6)}, "no more than 4 are counted on"),
    "noise counts on colluders": ({"lattice": lattice(colluders=0)}, "no more than 4 are counted on"),
    "noise counts on who is lost": (
        {"graph": sparse(4, 3, loss=1), "checks": 9, "lattice": lattice()},
        "no more than 3 are counted on",
    ),
    "too few survivors": ({"survivors": 4}, "a hub could get two lists"),
    "nobody may collude": ({"colluders": 0}, "colluders must be at least 1"),
    "no rounds": ({"rounds": 0}, "rounds must be at least 1"),
    "no sessions": ({"sessions": 0}, "at least one round and one exchange"),
}


def test_two_sites_with_one_identity_or_half_of_one_are_refused() -> None:
    terms = masked_terms({f"site {at}": Identity.fresh() for at in range(SITES)}, survivors=5)
    twice = dict(terms.roster) | {"site 1": terms.roster["site 0"]}
    with pytest.raises(ValueError, match="each site needs its own"):
        replace(terms, roster=twice)
    with pytest.raises(ValueError, match="must have 32 bytes"):
        replace(terms, roster=dict(terms.roster) | {"site 1": b"?"})


def test_with_a_threshold_that_colluders_reach_one_of_them_opens_everything() -> None:
    """A single colluder, and no list of survivors at all."""
    hub = began(masked_company)
    hub.collude("site 6")
    assert hub.bare(VICTIM) is None
    hub = began(masked_company, bent={"graph": complete(6, 1)})
    hub.collude("site 6")
    assert same(hub.bare(VICTIM), hub.them.part(VICTIM))


def test_noise_that_counts_on_colluders_is_too_little() -> None:
    """What the honest add of four survivors and a colluder must be the noise that was accounted for."""
    for fits, terms in ((True, lattice()), (False, lattice(survivors=6)), (False, lattice(colluders=0))):
        release: dict[str, Any] = {"mu": 0.1, "size": DIM * DIM}
        step, deviation = (find(1.0, **release) for find in (terms.step, terms.deviation))
        assert (2 * deviation >= distance_in_steps(1.0, DIM * DIM, step) / 0.1) == fits


# Shares.


def other_share(terms: MaskedTerms, what: str) -> Share:
    match what:
        case "lattice":
            return Share(
                lattice=replace(terms.lattice, bits=terms.lattice.bits - 3),
                ledger=None,
                noise=Noise.seeded(1),
                multiplier=terms.multiplier,
            )
        case "multiplier":
            return Share(lattice=terms.lattice, ledger=None, noise=Noise.seeded(1), multiplier=2 * terms.multiplier)
        case _:
            return Share(lattice=terms.lattice, ledger=None, noise=Noise.seeded(1), multiplier=terms.multiplier, several=2)


def with_share(them: MaskedCompany, share: Share) -> MaskedMember:
    return MaskedMember(
        VICTIM,
        hub="hub",
        task=them.task,
        rows=DenseRows(them.rows[VICTIM]),
        share=share,
        terms=them.terms,
        identity=them.identities[VICTIM],
    )


@pytest.mark.parametrize("what", ["lattice", "multiplier", "several"])
def test_a_site_refuses_a_share_that_is_not_of_its_terms(what: str) -> None:
    them = masked_company()
    with_share(them, share_of(them.terms, 0))
    with pytest.raises(ValueError, match="of the terms"):
        with_share(them, other_share(them.terms, what))


def test_with_other_steps_than_the_others_a_site_would_spoil_the_sum() -> None:
    them = masked_company()
    them.members[VICTIM]._share = other_share(them.terms, "lattice")
    result = LocalStar(them.hub, them.members.values()).run()
    assert not np.allclose(result, them.gram(them.names), rtol=1e-3)


def test_with_another_multiplier_a_site_would_charge_itself_too_little() -> None:
    them = masked_company(private=True)
    assert them.terms.lattice.gaussian is not None
    spend = them.terms.lattice.gaussian
    ledger = Ledger(epsilon=spend.epsilon, delta=spend.delta)
    cheap = Share(lattice=them.terms.lattice, ledger=ledger, noise=Noise.seeded(1), multiplier=2 * them.terms.multiplier)
    with pytest.raises(ValueError, match="of the terms"):
        with_share(them, cheap)
    them.members[VICTIM]._share = cheap
    LocalStar(them.hub, them.members.values()).run()
    (paid,), (due,) = ledger.charges, them.ledgers["site 1"].charges
    assert paid.mu < due.mu


def test_a_site_refuses_terms_on_which_it_has_another_identity() -> None:
    them = masked_company()
    them.identities[VICTIM] = Identity.fresh()
    with pytest.raises(ValueError, match="another identity on the roster"):
        with_share(them, share_of(them.terms, 0))
