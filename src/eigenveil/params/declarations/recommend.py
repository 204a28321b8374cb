"""The parameters of `PrivateRecommender` and `read_interactions`, which are also `eigenveil recommend`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from eigenveil.params.declarations.federated import HubParams
from eigenveil.params.declarations.groups import COMPONENTS, HERE, NO_PRIVACY, SURVIVORS_HELP, BudgetParams, Seed, Waiting
from eigenveil.params.declare import param, parameters, redeclare
from eigenveil.params.values import Integer, Numbers, real

_ITEMS: Final = "Which lines and items count"


@parameters(panel=_ITEMS)
class ReadingParams:
    """Which rows of a table are interactions."""

    user: str = param("The column that says who.", default="user", metavar="COLUMN")
    item: str = param("The column that says what.", default="item", metavar="COLUMN")
    value: str | None = param(
        "The column of ratings, or of 1 and 0.", default=None, metavar="COLUMN", none_means="value, if there is such a column"
    )
    min_rating: float | None = param(
        "Lines with a smaller value do not count as interactions.",
        details="Without it a value must be 1, or 0 for none.",
        default=None,
        check=real("a finite number", math.isfinite, finite="a finite number"),
        metavar="RATING",
    )


@parameters(panel=_ITEMS)
class InteractionsParams(ReadingParams):
    """The parameters of `read_interactions`."""

    items: Sequence[str | int] | str | Path | None = param(
        "The public list of items: names, or a file with one on each line (a csv may start with the name of the column). They "
        "are the columns, in this order. Lines with other items are left out silently, because their number is private. For npz "
        "it names the columns.",
        details="Without it the columns are the items in the file, and **which items occur at all then counts as public**. That "
        "includes an item that a single user has, and a guarantee must say so. A public list is better.",
        default=None,
        type_text="list, str, Path or None",
        surfaces=HERE,
    )


@parameters(panel="Privacy")
class RecommenderBudget:
    """What one fit may cost."""

    epsilon: float | None = redeclare(
        BudgetParams,
        "epsilon",
        details="{epsilon=None} must be written out and gives the exact filter with no privacy.",
        opt_out=replace(NO_PRIVACY, help="The exact filter. No person is protected, and the files are marked as such."),
    )
    # Where users are public, a sound default is known, which a table of rows does not have.
    delta: float | None = redeclare(
        BudgetParams,
        "delta",
        help="The chance that the guarantee of epsilon fails.",
        details="At item level its default is 1 / (10 n d), for n users and d items. It is rounded down.",
        required_with=None,
        missing=None,
        none_means="a tenth of one over the number of users, at most 1e-5, where that is public",
    )


@parameters(panel="Privacy")
class RecommenderParams(Seed, RecommenderBudget):
    """The parameters of `PrivateRecommender`."""

    n_components: int = param(
        "How many directions the filter keeps. 8 to 64 are usual, and more need more users.",
        details="p in PPM, the pass band of the filter.",
        kw_only=False,
        like=COMPONENTS,
        panel="",
    )
    # A choice here and nowhere else, because the published guarantee is for single interactions.
    unit: Literal["user", "item"] = param(
        "What is protected. user: a user's whole history. item: one interaction of a user, which is far weaker.",
        details="The latter is PPM's guarantee.",
        default="user",
    )
    neighbours: Literal["zero-out", "add-remove", "replace-one"] = param(
        "Neighbouring relation: which two tables the guarantee makes indistinguishable. With zero-out, one history is "
        "blank, and the number of users is public. With add-remove, one user is not there at all, and the number of users is "
        "private. Then {delta} and {users_at_least} are needed. With replace-one, one history is another. Other commands default "
        "to add-remove.",
        default="zero-out",
        applies_when="unit=user",
    )
    users_at_least: int | None = param(
        "A number of users that you know without looking at the data, such as from a yearly report. The forecast is made for "
        "this many, because it may not depend on the private number. A wrong number makes the forecast wrong, and nothing else.",
        default=None,
        check=Integer(min=1, max=10**12),
        recorded=False,
        applies_when="neighbours=add-remove",
        metavar="N",
    )
    trust: Literal["hub", "site", "masked"] = param(
        "Who adds the noise. With hub it is the analyst who runs this, who sees the sums. With site it is every site, at "
        "sqrt(sites) times the noise. With masked it is the sites together, under masks that cancel in the sum only. With many "
        "sites that takes little more noise than one curator.",
        default="hub",
        metavar="WHO",
    )
    survivors: int | float | None = redeclare(HubParams, "survivors", help=SURVIVORS_HELP, otherwise_hint=None)
    colluders: int = redeclare(HubParams, "colluders", details=None)
    quorum: int | float | None = redeclare(
        Waiting,
        "quorum",
        help="How many sites must answer, or which share of them. With {trust=masked} give {survivors}.",
        surfaces=HERE,
    )
    items: Sequence[Any] | int | None = param(
        "Use only this many of the most popular items, by counts released for a tenth of the budget. Fewer items mean "
        "less noise.",
        details="Or a public list of names or numbers of the items to use.",
        default=None,
        type_text="int, list or None",
        parse=int,
        # Not --items: `recommend` has --items-file, a list of all items that there are.
        cli_name="keep_items",
        metavar="C",
        none_means="all of them",
        panel=_ITEMS,
    )
    min_degree: int = param(
        "A history is divided by the root of its number of items, and at least by the root of this. Choose it without looking at "
        "these histories. With {unit=item} a larger one means less noise.",
        default=1,
        check=Integer(min=1, max=10**9),
        metavar="M",
        panel="Method",
    )
    item_degrees: Literal["private"] | Numbers | None = param(
        "How popular items are, for the filter. {item_degrees=None}: left out. private: released for a twentieth of the budget. "
        "Or public numbers, one for each item. On a command line they are in a csv file whose first line is item,degree.",
        details="Zero counts as one.",
        default=None,
        parse=str,
        none="none",
        none_means="none",
        panel="Method",
    )
    normalise: Literal["filter", "both"] = param(
        "Where item degrees are used. filter: in the filter. both: on the histories before the fit as well.",
        details="The first is PPM (75). The second is GF-CF, for {unit=user}, which recommends better if the noise is small.",
        default="filter",
        metavar="WHERE",
        panel="Method",
    )
    method: Literal["auto", "covariance", "power"] = param(
        "With covariance, one noisy matrix of all pairs of items. With power, noisy products with a few vectors, for very many "
        "items. With auto, covariance if it fits in memory, except with {unit=item} and very many items.",
        default="auto",
        panel="Method",
    )
    history: float | None = param(
        "About how many items a user has, if you know it without looking at the data. It changes the forecast, and nothing else.",
        default=None,
        check=real("a positive number of items", lambda number: 0 < number < 1e12),
        metavar="ITEMS",
        none_means="40",
        recorded=False,
        panel="Method",
    )
    on_noise: Literal["raise", "warn"] = param(
        "Fit even if no more than popularity and noise is expected. Otherwise that is refused before anything is spent.",
        details="raise refuses, and warn fits.",
        # A list that looks like any other would hide that it is noise, so continuing must be asked for.
        default="raise",
        switch=("--even-if-noise", "warn"),
        recorded=False,
        panel="Method",
    )
