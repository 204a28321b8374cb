"""The parameters of `PrivateRecommender` and `read_interactions`, which are also `eigenveil recommend`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

from eigenveil.params.declarations.groups import EPSILON, EPSILON_HELP, HERE, Seed
from eigenveil.params.declare import Aloud, param, parameters
from eigenveil.params.texts import share_from
from eigenveil.params.values import Numbers, fraction, number_or_share, real, whole

__all__ = ["InteractionsParams", "ReadingParams", "RecommenderParams"]

_ITEMS: Final = "Which lines and items count"


@parameters(panel=_ITEMS)
class ReadingParams:
    """Which lines of a table say who has what."""

    user: str = param("The column that says who.", default="user", metavar="COLUMN")
    item: str = param("The column that says what.", default="item", metavar="COLUMN")
    value: str | None = param(
        "The column of ratings, or of 1 and 0.",
        default=None,
        metavar="COLUMN",
        unset="value, if there is such a column",
    )
    at_least: float | None = param(
        "Lines with a smaller value are no interactions.",
        more="Without it a value must be 1, or 0 for none.",
        default=None,
        check=real("a finite number", math.isfinite, finite="a finite number"),
        metavar="RATING",
    )


@parameters(panel=_ITEMS)
class InteractionsParams(ReadingParams):
    """The parameters of `read_interactions`."""

    items: Sequence[str | int] | str | Path | None = param(
        "The public list of items: names, or a file with one on each line (a csv may start with the name of the column). They "
        "are the columns, in this order, and lines with other items are left out without a word, because how many there are is "
        "private. For npz it names the columns.",
        more="Without it the columns are the items in the file, and **which items occur at all is thereby taken as public**, "
        "even one that a single user has: a guarantee must then say so. A public list is better.",
        default=None,
        said="list, str, Path or None",
        surfaces=HERE,
    )


@parameters(panel="Privacy")
class RecommenderBudget:
    """What one fit may cost."""

    epsilon: float | None = param(
        EPSILON_HELP,
        more="{epsilon=None} must be written out and gives the exact filter with no privacy.",
        check=EPSILON,
        aloud=Aloud("--no-privacy", "none", "The exact filter. Nobody is protected, and whatever is written says so."),
        recorded=False,  # The guarantee says what is guaranteed.
    )
    delta: float | None = param(
        "The chance that the guarantee of epsilon fails.",
        more="At item level its default is 1 / (10 n d), for n users and d items. It is rounded down.",
        default=None,
        check=fraction,
        unset="a tenth of one over the number of users, at most 1e-5, where that is public",
        recorded=False,
    )


@parameters(panel="Privacy")
class RecommenderParams(Seed, RecommenderBudget):
    """The parameters of `PrivateRecommender`."""

    n_components: int = param(
        "How many directions the filter lets through. 8 to 64 are usual; more need more users.",
        more="p in PPM, the pass band of the filter.",
        kw_only=False,
        check=whole(1),
        called="components",
        short="-k",
        metavar="K",
        panel="",
    )
    unit: Literal["user", "item"] = param(
        "What is protected. user: a user's whole history. item: one interaction of a user, which is far weaker.",
        more="The latter is PPM's guarantee.",
        default="user",
        metavar="WHICH",
    )
    neighbours: Literal["zero-out", "add-remove", "replace-one"] = param(
        "Neighbouring relation: which two tables the guarantee makes indistinguishable. zero-out: one history is blank; the "
        "number of users is public. add-remove: one user is not there at all; then {delta} is needed, and nobody can say "
        "beforehand what to expect. replace-one: one history is another. Other commands begin with add-remove; here a plan "
        "would then have nothing to say.",
        default="zero-out",
        only="unit=user",
        metavar="WHICH",
    )
    trust: Literal["hub", "site", "masked"] = param(
        "Who adds the noise. hub: whoever runs this, and sees the sums. site: every site, for sqrt(sites) times the "
        "noise. masked: the sites together, under masks that come off the sum alone, for little more noise than a "
        "curator's where sites are many.",
        default="hub",
        metavar="WHO",
    )
    survivors: int | float | None = param(
        "How many sites must be in each sum, such as 8, or which share of them, such as 0.8.",
        default=None,
        check=number_or_share,
        parse=share_from,
        metavar="NUMBER",
        unset="all",
        only="trust=masked",
    )
    colluders: int = param(
        "How many sites may tell the hub all they know.",
        default=1,
        check=whole(1),
        only="trust=masked",
        metavar="NUMBER",
    )
    quorum: int | float | None = param(
        "How many sites must answer, or which share of them. With {trust=masked} give {survivors}.",
        default=None,
        check=number_or_share,
        unset="all",
        recorded=False,
        surfaces=HERE,
    )
    items: Sequence[Any] | int | None = param(
        "Use so many of the most popular items, by counts that are released for a tenth of the budget. Fewer items drown less.",
        more="Or a public list of the names or numbers of those to use.",
        default=None,
        said="int, list or None",
        parse=int,
        called="keep_items",
        metavar="C",
        unset="all of them",
        panel=_ITEMS,
    )
    min_degree: int = param(
        "Histories are divided by the root of how many items they have, but at least of this. Say it without looking at these "
        "histories. With {unit=item} a larger one means less noise.",
        default=1,
        check=whole(1, 10**9),
        metavar="M",
        panel="Method",
    )
    item_degrees: Literal["private"] | Numbers | None = param(
        "How popular items are, for the filter. {item_degrees=None}: left out. private: released for a twentieth of the budget. "
        "Or public numbers, one for each item; on a command line in a csv file whose first line is item,degree.",
        more="Zero counts as one.",
        default=None,
        parse=str,
        none="none",
        metavar="WHICH",
        unset="none",
        panel="Method",
    )
    normalise: Literal["filter", "both"] = param(
        "Where item degrees are used. filter: in the filter. both: on the histories before the fit as well.",
        more="The first is PPM (75). The second is GF-CF, which recommends better where much is found; it is for {unit=user}.",
        default="filter",
        metavar="WHERE",
        panel="Method",
    )
    method: Literal["auto", "covariance", "power"] = param(
        "covariance: one noisy matrix of all pairs of items. power: noisy products with a few vectors, for very many items. "
        "auto: covariance where it fits in memory, but for single items among very many.",
        default="auto",
        metavar="WHICH",
        panel="Method",
    )
    history: float | None = param(
        "About how many items a user has, if you know it without looking. It changes what to expect, and nothing else.",
        default=None,
        check=real("a positive number of items", lambda number: 0 < number < 1e12),
        metavar="ITEMS",
        unset="40",
        recorded=False,
        panel="Method",
    )
    on_noise: Literal["raise", "warn"] = param(
        "Go on where the budget is expected to give little but noise, which is refused otherwise.",
        more="raise refuses, before anything is spent, and warn goes on.",
        default="raise",
        switch=("--even-if-noise", "warn"),
        recorded=False,
        panel="Method",
    )
