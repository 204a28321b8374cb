"""The parameters of `eigenveil plan`: what is publicly known before a fit, and what it may cost."""

from __future__ import annotations

import math
from dataclasses import MISSING
from typing import Any, Final, Literal

from eigenveil.params.declarations.federated import FederatedParams, GossipParams, HubParams, PairBudget, Peers, Rounds
from eigenveil.params.declarations.groups import (
    SURVIVORS_HELP,
    BudgetParams,
    Clipping,
    Colluding,
    ColumnsParams,
    Components,
    MissingParams,
    Places,
    PooledBounds,
    Protection,
    Relation,
    Waiting,
    Whitening,
)
from eigenveil.params.declare import declared, param, parameters, redeclare, registered
from eigenveil.params.values import Integer, InvalidValue, Numbers, Vector, bytes_from, length, real, scale_from, scale_value

SPECTRUM: Final = "What is known of the spectrum (one of these, or nothing)"
SHOWN: Final = "What is shown"
_SITES: Final = "Who has the rows, and what they can afford"
_FEWEST, _MOST = 2, 10**15


def people_from(text: str) -> int:
    """A number of people, or its order.

    >>> people_from("20000"), people_from("1e5"), people_from("2.5e3")
    (20000, 100000, 2500)
    """
    try:
        # Through a float, because people write 1e5, and int() does not read that.
        number = float(text)
    except ValueError:
        raise InvalidValue("a number such as 20000 or 1e5") from None
    if not (math.isfinite(number) and number == round(number) and _FEWEST <= number <= _MOST):
        raise InvalidValue(f"a whole number, {_FEWEST} or more")
    return int(number)


@parameters(panel="")
class _Sizes:
    """What is asked for, and of how many."""

    people: int = param(
        "About how many people there are, one row each, such as 20000 or 1e5. A public number, or its order of magnitude. It is "
        "not counted in any file.",
        # Required: counting the rows of a private table would spend something.
        parse=people_from,
        cli_name="rows",
        short="-n",
    )
    dim: int | None = param(
        "The number of columns. Not needed if a file that you give has it.",
        default=None,
        check=Integer(min=2),
        cli_name="features",
        short="-d",
        metavar="D",
    )
    rank: int = param("How many components.", check=Integer(min=1), cli_name="components", short="-k", metavar="K")


@parameters(panel="Privacy")
class _Cost:
    """What the fit may cost, and what it finds privately. A plan without a budget would say nothing."""

    # Without the switch --no-privacy of a fit: what an exact fit finds needs no plan.
    epsilon: float = redeclare(
        BudgetParams,
        "epsilon",
        default=MISSING,
        details=None,
        check=real("positive and finite", lambda number: 0 < number < math.inf),
        missing="Try {epsilon=1}: a plan says what it would buy.",
        opt_out=None,
    )
    delta: float = redeclare(
        BudgetParams, "delta", default=MISSING, required_with=None, missing="It must be well below one over the number of people."
    )
    center: Literal["private"] | Vector | None = redeclare(
        Clipping,
        "center",
        help="private: the fit will find the mean, for a part of the budget. {center=None}: rows are left where they are. Or "
        "public numbers, one per column. Neither of these two costs anything.",
    )
    search: bool = param(
        "Whether the fit will look for the mean in several steps, as it does unless --mean-bound or --column-bounds are "
        "given to it.",
        default=True,
    )


@parameters(panel=SPECTRUM)
class _Guess:
    """A guess at the spectrum, or how to read a file that has it."""

    explained: float | None = param(
        "A guess: which share of the variance the first K components have, such as 0.6.",
        # Of all guesses, the one that people who know their field can make.
        default=None,
        metavar="SHARE",
    )
    decay: float | None = param(
        "A guess: variance i is in proportion to i^-POWER. 0.5 is flat, 1 usual, 2 steep.",
        default=None,
        metavar="POWER",
        # Spectra of real tables often fall like 1 / i. A flatter guess would call too much hopeless.
        none_means="1, if nothing else is known",
    )
    bound_usage: float | None = param(
        "The mean squared norm of rows around the mean, over the squared row bound.",
        default=None,
        metavar="SHARE",
        check=real("more than 0 and at most 1, as no row exceeds the bound", lambda number: 0 < number <= 1),
        none_means="0.5 of a bound that you give; what is usual for one found privately",
    )
    # A number or nothing. The word private, which a fit takes, is what leaving it out means here.
    row_bound: float | None = param(
        "The bound that the fit will use, in the units of the spectrum or public table, if you know one. Without it the fit "
        "finds one privately, and the plan includes what that costs.",
        default=None,
        check=length,
        none_means="found privately",
    )
    scale: Literal["private"] | Numbers | None = param(
        "private: the fit will find the units of columns, for a quarter of the budget, and no row bound. Or numbers, one or one "
        "per column: columns of the public table are divided by them, as in the fit.",
        default=None,
        check=scale_value,
        parse=scale_from,
        metavar="NUMBERS",
    )


@parameters(panel=_SITES)
class _Affordable:
    """Who has the rows, who is trusted with what, and what they can afford."""

    sites: int = param("The number of sites, with equal numbers of rows.", default=1, check=Integer(min=1), metavar="M")
    # More words than a fit has: a plan also compares settings in which nobody is asked whom to trust.
    trust: list[str] | None = param(
        "Who may add the noise. Repeat it for several. curator: one holder of all rows adds it. stream: the "
        "same, row after row. hub: sites send raw sums to a hub that adds it. site: every site adds all of it. masked: the "
        "sites together, under masks. peers: no hub, and noise that cancels between pairs. peers-independent: no hub, and "
        "every peer adds all of it.",
        default=None,
        metavar="WHO",
        none_means="all that --sites allows",
    )
    survivors: int | float | None = redeclare(
        HubParams,
        "survivors",
        help=f"With masks: {SURVIVORS_HELP[0].lower()}{SURVIVORS_HELP[1:]}",
        applies_when=None,
        panel=_SITES,
    )
    colluders: int = redeclare(
        Colluding,
        "colluders",
        help="Under masks and between peers: how many may tell each other all they know.",
        details=None,
        applies_when=None,
        panel=_SITES,
    )
    blocks: int | None = param("For streams: the number of blocks.", default=None, check=Integer(min=1), none_means="planned")
    rounds: int | None = param("The largest number of rounds.", default=None, check=Integer(min=1), none_means="any")
    traffic: int | None = param(
        "The most that one site may send in all, such as 10MB.", default=None, parse=bytes_from, metavar="BYTES", none_means="any"
    )
    memory_limit: int | None = param(
        "The most memory that one holder of rows may use.", default=None, parse=bytes_from, metavar="BYTES", none_means="1GiB"
    )
    methods: list[str] | None = param(
        "Compare only these; repeat it for several. A name such as covariance, or one of a setting, such as masked/krylov.",
        default=None,
        cli_name="method",
        metavar="WHICH",
        none_means="all",
        panel=SHOWN,
    )


@parameters()
class PlanParams(_Affordable, _Guess, Relation, _Cost, _Sizes):
    """The parameters of a plan. In Python they are those of `eigenveil.plan.Facts` and `eigenveil.plan.Spectrum`."""


# Parameters that only one of the two has.
FOR_HUBS = frozenset(declared(FederatedParams)) - set(declared(GossipParams))
FOR_PEERS = frozenset(declared(GossipParams)) - set(declared(FederatedParams)) - {"graph"}


@parameters(panel="Method", section="task")
class AnyMethod:
    """How the components are found, around a hub or between peers."""

    # The words of both kinds of fit. Which of them the chosen kind has is checked when it is known.
    method: str = param(
        "auto, krylov, power, fedpower, covariance, merge, uda, wda or dr-svd. Without privacy auto is krylov. With privacy it "
        "is one noisy covariance if that fits in memory, and noisy products otherwise. With {graph}: power (which is then auto), "
        "krylov, covariance, or segments, one component after another (D-DP-PM).",
        default="auto",
        among=registered("eigenveil.methods", "ANYWHERE"),
    )


@parameters(panel="Method", section="task")
class SimulateParams(
    ColumnsParams,
    Whitening,
    Waiting,
    Rounds,
    AnyMethod,
    Peers,
    HubParams,
    Places,
    Protection,
    MissingParams,
    PooledBounds,
    PairBudget,
    Components,
):
    """The parameters of `eigenveil simulate`. Without a graph there is a hub."""

    graph: Any = redeclare(
        Peers,
        "graph",
        help="Sites are peers that talk to their neighbours on this graph, without a hub: ring, path, grid, star, complete or "
        "random-regular:4 (four neighbours each). Or a file with an edge on each line: two sites with a comma between, by "
        "name, such as site 3, or by number, counted from 0.",
        # Whether there is a graph is what decides between the two estimators.
        default=None,
        none_means="a hub",
    )
    colluders: int = redeclare(
        Colluding,
        "colluders",
        help="For {trust=masked}: how many sites may tell the hub all they know. For {graph} with pairwise noise: how many peers "
        "may tell each other.",
        details=None,
        # Two conditions, of which `only` can state one: the command checks both.
        applies_when=None,
        omit_if_default=False,
    )
    random_state: Any = redeclare(
        Protection,
        "random_state",
        help="Fixes the split, the start, the simulated faults and the noise. Reproducible, and with {epsilon} NOT PRIVATE.",
    )
    quorum: int | float | None = redeclare(
        Waiting,
        "quorum",
        help="How many sites must answer, such as 4, or which share of them, such as 0.8. Others are left out from then on. "
        "With {graph}: how many peers must be left, more than half.",
        none_means="all; more than half with --graph",
    )
