"""Runs of `eigenveil recommend`: a fit that shows its progress, and an evaluation of its recommendations.

An evaluation is computed from the histories themselves. No guarantee covers its figures, and every output says so.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from eigenveil.commands import _histories as choice
from eigenveil.commands._ending import leaves
from eigenveil.data.formats import TableParams
from eigenveil.errors import ParameterWarning, WeakGuaranteeWarning, require
from eigenveil.params.words import in_options
from eigenveil.show.console import is_seen, output

if TYPE_CHECKING:
    from rich.status import Status

    from eigenveil.estimators.rounds import Round
    from eigenveil.linalg import Array
    from eigenveil.recommend import Interactions, ItemSpace, PrivateRecommender, Quality

__all__ = ["Parts", "fitted_on", "given_split", "held_out", "judged", "progress"]


@final
class RecommendView:
    """Shows the current step and the last finished round. Changes in place."""

    def __init__(self, status: "Status | None", words: str) -> None:
        self.last: Round | None = None
        self._status, self._words = status, words

    def say(self, words: str) -> None:
        """Show that another step has started."""
        self._words = words
        self._update(words)

    def see(self, done: "Round") -> None:
        """Show that a round has finished."""
        self.last = done
        self._update(f"{self._words}: {_named(done)} is done")

    @property
    def reached(self) -> str:
        """How far the run got."""
        return "no round had finished" if self.last is None else f"{_named(self.last)} had finished"

    def _update(self, words: str) -> None:
        if self._status is not None:
            self._status.update(words)


def _named(done: "Round") -> str:
    return f"round {done.number + 1} ({done.stage})"


@contextmanager
def progress(words: str) -> Iterator[RecommendView]:
    """Show progress on stderr, if that is a terminal. Ctrl-C then says how far the run got."""
    console = output(stderr=True)
    with console.status(words) if is_seen(console) else nullcontext() as status:
        # Also without a terminal: after Ctrl-C it knows how far the run got.
        view = RecommendView(status, words)
        try:
            yield view
        except KeyboardInterrupt:
            leaves(f"{view.reached}, and nothing was written")
            raise


def fitted_on(
    sites: Mapping[str, "Interactions"], settings: Mapping[str, Any], view: RecommendView
) -> tuple["PrivateRecommender", list[str]]:
    """The fitted recommender, and its warnings."""
    from eigenveil.recommend import PrivateRecommender

    first = next(iter(sites.values()))
    # Degrees can be matched to columns only now that the item names are known.
    degrees = choice.degrees_from(settings["item_degrees"], items=first.items, dim=first.matrix.shape[1])
    view.say("fitting the exact filter" if settings["epsilon"] is None else "fitting the private filter")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        # The guarantee says it too.
        warnings.simplefilter("ignore", WeakGuaranteeWarning)
        fitted = PrivateRecommender(**{**settings, "item_degrees": degrees}).fit(sites, watch=view.see)
    words = in_options(choice.FitParams)
    found = (warning.message for warning in caught)
    return fitted, [one.said(words) if isinstance(one, ParameterWarning) else str(one) for one in found]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Training histories by site; and for all users together, (n, d) each, the training and the held-out items."""

    sites: Mapping[str, "Interactions"]
    train: Any
    test: Any


def held_out(sites: Mapping[str, "Interactions"], share: float, seed: int | None) -> Parts:
    """Hold out a share of each user's items."""
    import numpy as np
    import scipy.sparse as sp

    from eigenveil.recommend import Interactions, split

    # A separate random stream, so that the split is independent of the start basis and the noise.
    rng = np.random.default_rng(None if seed is None else [seed, 2])
    kept, held = {}, []
    for name, plays in sites.items():
        train, test = split(plays.matrix, share=share, rng=rng)
        kept[name] = Interactions(train, plays.users, plays.items)
        held.append(test)
    return Parts(kept, _pooled(kept), sp.csr_array(sp.vstack(held, format="csr")))


def given_split(sites: Mapping[str, "Interactions"], path: Path, how: TableParams, columns: Mapping[str, Any]) -> Parts:
    """Held-out items from a separate file. Users of that file alone have no training items. Training items are never
    held out."""
    import numpy as np
    import scipy.sparse as sp

    from eigenveil.recommend import Interactions

    first, train = next(iter(sites.values())), _pooled(sites)
    test = choice.read_histories(path, how, items=first.items, **columns)
    named = [plays.users is not None for plays in (*sites.values(), test)]
    require(all(named) or not any(named), f"--test {path} and the other files must all have user names, or none may")
    held = test.matrix
    if all(named):
        users = [user for plays in sites.values() for user in plays.users or ()]
        # Users of the test file alone come after all others, with no training items.
        place = {user: at for at, user in enumerate(users)}
        for user in test.users or ():
            place.setdefault(user, len(place))
        entries = held.tocoo()
        rows = np.array([place[user] for user in test.users or ()], dtype=np.intp)[entries.row]
        held = sp.csr_array((entries.data, (rows, entries.col)), shape=(len(place), held.shape[1]))
        train = sp.csr_array(sp.vstack([train, sp.csr_array((len(place) - len(users), train.shape[1]))], format="csr"))
    require(
        held.shape == train.shape,
        f"--test {path} must have the same items as the other files, and the same users in the same order",
    )
    # An item that the user already has is never recommended, so it must not count as missed.
    return Parts(sites, train, Interactions(held - held.multiply(train)).matrix)


def _pooled(sites: Mapping[str, "Interactions"]) -> Any:
    import scipy.sparse as sp

    return sp.csr_array(sp.vstack([plays.matrix for plays in sites.values()], format="csr"))


def judged(
    parts: Parts, settings: Mapping[str, Any], n: int, view: RecommendView
) -> tuple[dict[str, "Quality"], list[str]]:
    """The quality of the private filter, of an exact filter of the same size, and of popularity; and the first one's
    warnings."""
    import numpy as np

    from eigenveil.recommend import Interactions, evaluate, popularity_scores

    epsilon = settings["epsilon"]
    found: dict[str, Quality] = {}
    notes: list[str] = []
    if epsilon is not None:
        private, notes = fitted_on(parts.sites, settings, view)
        found[f"private, epsilon = {epsilon:g}"] = _quality(private.space_, parts, n, view)
    items = next(iter(parts.sites.values())).items
    # All histories at one place and no noise: what the private fit would find without privacy.
    alone = {"epsilon": None, "delta": None, "trust": "hub", "survivors": None, "colluders": 1}
    exact, _ = fitted_on({"all": Interactions(parts.train, items=items)}, {**settings, **alone}, view)
    found["exact, not private"] = _quality(exact.space_, parts, n, view)
    popularity = popularity_scores(parts.train)

    def scores(rows: Any) -> "Array":
        return np.tile(popularity, (rows.shape[0], 1))

    found["popularity, not private"] = evaluate(scores, parts.train, parts.test, n=n)
    first = next(iter(found.values()))
    if first.recall < found["popularity, not private"].recall:
        notes = [
            *notes,
            "popularity, the same list for everybody, does better than this filter. Try a smaller -k, or what the "
            "plan advises",
        ]
    return found, notes


def _quality(space: "ItemSpace", parts: Parts, n: int, view: RecommendView) -> "Quality":
    """The quality of the same lists that a user's device would show."""
    from eigenveil.recommend import evaluate

    view.say("recommending to every user")
    require(parts.test.nnz > 0, "nothing is held out: no user has two items or more, or the test file has none")
    return evaluate(space, parts.train, parts.test, n=n)
