"""Which sites share a mask: all pairs, or, among many sites, each site with a few holders that it draws itself.

A site draws its holders evenly among all others, splits its secrets among them and itself, and shares a mask with each of them.
The hub may then choose who colludes and who drops out, knowing the whole graph. This module finds how many holders make it
nearly impossible that the hub still learns a sum over too few honest sites. The theorem and proof are in docs/mask-graph.md.
The idea of a sparse graph is from Bell, Bonawitz, Gascon, Lepoint and Raykova (2020); the graph and the bound are our own.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from functools import cache
from typing import Final, final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.protocols.keys import digest
from eigenveil.protocols.masked.shamir import LARGEST_POINT

__all__ = ["MOST_ABORT", "MaskGraph", "abort_bound", "add_masks", "mask_graph", "separation_bound"]

# A round with the fewest survivors allowed, drawn at random, is lost at most this often.
MOST_ABORT: Final = 1e-4
# At most this share of the honest survivors may be given up for a sparse graph: the noise grows by one per cent.
_MOST_LOSS: Final = 0.02
# Up to this many sites the complete graph is cheap, and its guarantee holds with certainty.
_SMALL: Final = 100
# A sparse graph must have at most one in this many of the edges of the complete one, or it is not worth its failure probability.
_CHEAPER: Final = 3
# Logarithms of factorials are accurate to 1e-9 for 2^16 sites and multiplied by at most 2^16, so bounds are scaled up by this.
_ROUNDING: Final = 1.001


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MaskGraph:
    """Who shares secrets with how many. The last two are rounded up to two digits, so that all machines get the same numbers.

    Whatever the hub and its colluders do, they learn at most one sum in a round, over at least survivors - colluders - `loss`
    honest sites. That fails with probability at most `failure`, over one drawing of all holders, for all rounds that use it
    together.
    """

    holders: int  # That a site draws.
    threshold: int  # So many of them and itself can recover its secrets.
    loss: int  # Honest survivors given up for a sparse graph.
    failure: float
    abort: float  # The chance that a round with the fewest survivors allowed, drawn at random, cannot be finished.
    complete: bool

    def __post_init__(self) -> None:
        require(self.holders >= 0, f"holders must not be negative, got {self.holders}")
        require(
            1 <= self.threshold <= self.holders + 1,
            f"threshold must lie between 1 and the {self.holders} holders and the site itself, got {self.threshold}",
        )
        require(self.loss >= 0, f"loss must not be negative, got {self.loss}")
        require(0 <= self.failure < 1, f"failure must lie in [0, 1), got {self.failure}")
        require(0 <= self.abort < 1, f"abort must lie in [0, 1), got {self.abort}")


@cache
def mask_graph(sites: int, *, survivors: int, colluders: int, failure: float) -> MaskGraph:
    """The complete graph or, for more than 100 sites, a sparse one with at most a third of its edges and at most `failure`.

    Of `sites`, at least `survivors` are in every sum, and at most `colluders` tell the hub all they know.

    >>> mask_graph(20, survivors=15, colluders=1, failure=1e-12)
    MaskGraph(holders=19, threshold=11, loss=0, failure=0.0, abort=0.0, complete=True)
    >>> many = mask_graph(1000, survivors=900, colluders=1, failure=1e-12)
    >>> many.holders, many.threshold, many.loss, many.complete
    (20, 10, 17, False)
    """
    require(1 <= sites <= LARGEST_POINT, f"sites must be from 1 to {LARGEST_POINT}, got {sites}")
    require(colluders >= 0, f"colluders must not be negative, got {colluders}")
    require(
        colluders < survivors <= sites,
        f"survivors must be more than the {colluders} colluders and at most the {sites} sites, got {survivors}",
    )
    require(
        2 * survivors > sites + colluders,
        f"survivors must be more than half of {sites} sites and {colluders} colluders, got {survivors}",
    )
    require(0 <= failure < 1, f"failure must lie in [0, 1), got {failure}")
    sparse = None
    if sites > _SMALL and failure > 0:
        sparse = _sparse(sites, survivors=survivors, colluders=colluders, failure=failure)
    return sparse or MaskGraph(
        holders=sites - 1, threshold=(sites + colluders) // 2 + 1, loss=0, failure=0.0, abort=0.0, complete=True
    )


def separation_bound(sites: int, *, survivors: int, colluders: int, holders: int, threshold: int, loss: int) -> float:
    """An upper bound on the chance that the hub can get a sum over fewer than survivors - colluders - loss honest sites.

    Such a sum is over k sites K, none of which has a holder among b = survivors - colluders - k others B. The x sites left are
    colluders or have dropped out. Also, each site of K has threshold - 1 of its holders in K or among the colluders. For each
    k the chance is at most the least of three expected numbers: of pairs (K, rest), of sets B, and of pairs (K, colluders).
    """
    if threshold <= colluders:
        return 1.0  # Colluders alone can recover every secret.
    # The names of docs/mask-graph.md: k is `inside`, b is `outside`, x is `rest`, q is `holders`, tau is `threshold`.
    min_honest = survivors - colluders
    rest = sites - min_honest
    inside = np.arange(threshold - colluders, min_honest - loss, dtype=np.float64)
    outside = min_honest - inside
    ways = _log_choose(sites - 1, holders)
    by_inside = (
        _log_choose(sites, inside) + _log_choose(sites - inside, rest) + inside * (_log_choose(inside - 1 + rest, holders) - ways)
    )
    miss = _log_choose(sites - 1 - outside, holders) - ways
    by_outside = _log_choose(sites, outside) + _log_few_hits(sites - outside, miss, rest)
    by_shares = (
        _log_choose(sites, inside)
        + _log_choose(sites - inside, colluders)
        + inside * _log_many_marked(sites - 1, inside - 1 + colluders, holders, threshold - 1)
    )
    # The event implies all three, so the least bound holds.
    each = np.minimum(np.minimum(by_inside, by_outside), by_shares)
    # Events that are possible keep a positive chance: the exponential must not underflow to zero.
    return _up(np.exp(np.clip(each, -700.0, 0.0))[each > -np.inf].sum())


def abort_bound(sites: int, *, survivors: int, holders: int, threshold: int) -> float:
    """An upper bound on the chance that some site's secrets cannot be recovered when exactly `survivors`, drawn evenly, are left.

    A site that dropped out has `holders` shares out, of which all but `threshold` may be lost. A survivor has its own share too.
    """
    return _up(np.exp(_log_abort(sites, survivors, holders, np.array([float(threshold)])))[0])


def _sparse(sites: int, *, survivors: int, colluders: int, failure: float) -> MaskGraph | None:
    # Every sum must be over more than half of all sites, so that two disjoint sums cannot exist.
    loss = min(int(_MOST_LOSS * (survivors - colluders)), survivors - colluders - sites // 2 - 1)
    if loss < 0:
        return None

    def graph_with(holders: int, loss: int) -> MaskGraph | None:
        threshold = _threshold(sites, survivors, holders)
        chance = 1.0
        if threshold > colluders:
            chance = separation_bound(
                sites, survivors=survivors, colluders=colluders, holders=holders, threshold=threshold, loss=loss
            )
        if chance > failure:
            return None
        abort = abort_bound(sites, survivors=survivors, holders=holders, threshold=threshold)
        return MaskGraph(holders=holders, threshold=threshold, loss=loss, failure=chance, abort=abort, complete=False)

    # Bisection for the fewest holders that keep `failure`.
    few, many = 0, sites // _CHEAPER - 1
    best = graph_with(many, loss) if many > 0 else None
    if best is None:
        return None
    while many - few > 1:
        middle = (few + many) // 2
        better = graph_with(middle, loss)
        best, few, many = (best, middle, many) if better is None else (better, few, middle)
    # With this many holders, fewer honest sites may have to be given up.
    few, many = -1, loss
    while many - few > 1:
        middle = (few + many) // 2
        better = graph_with(best.holders, middle)
        best, few, many = (best, middle, many) if better is None else (better, few, middle)
    return best


def _threshold(sites: int, survivors: int, holders: int) -> int:
    """The largest threshold that keeps rounds from being lost; zero if none does. A larger one only makes attacks harder."""
    thresholds = np.arange(1.0, holders + 2)
    mask = np.exp(_log_abort(sites, survivors, holders, thresholds)) * _ROUNDING <= MOST_ABORT
    return int(thresholds[mask].max(initial=0.0))


def _log_abort(sites: int, survivors: int, holders: int, threshold: Array) -> Array:
    """Log of the chance that too many holders are lost: of a site that dropped out, or of a survivor."""
    dead = sites - survivors
    others = sites - 1
    total = np.full(len(threshold), -np.inf)
    if dead > 0:
        total = np.log(dead) + _log_many_marked(others, dead - 1.0, holders, holders - threshold + 1)
    alive = np.log(survivors) + _log_many_marked(others, float(dead), holders, holders - threshold + 2)
    both: Array = np.logaddexp(total, alive)
    return both


def _log_choose(among: Array | float, count: Array | float) -> Array:
    """Log of binomial coefficients; minus infinity where they are zero."""
    from scipy.special import gammaln

    logs: Array = gammaln(np.add(among, 1.0)) - gammaln(np.add(count, 1.0)) - gammaln(np.subtract(among, count) + 1.0)
    return logs


def _log_many_marked(total: int, marked: Array | float, drawn: int, min_count: Array | float) -> Array:
    """Log of a bound on the chance that `min_count` or more of `drawn` out of `total`, without replacement, are `marked`.

    From there on, each term is less than `ratio` times the one before it: a geometric series.
    """
    first = _log_choose(marked, min_count) + _log_choose(np.subtract(total, marked), np.subtract(drawn, min_count))
    up = np.maximum(np.subtract(marked, min_count), 0) * np.maximum(np.subtract(drawn, min_count), 0)
    down = np.add(min_count, 1.0) * (total - np.asarray(marked) - drawn + min_count + 1.0)
    return _log_series(first - _log_choose(total, drawn), up, down)


def _log_few_hits(trials: Array, log_miss: Array, max_hits: int) -> Array:
    """Log of a bound on the chance that at most `max_hits` of more than `max_hits` independent `trials` hit."""
    hit = -np.expm1(log_miss)
    last = _log_choose(trials, max_hits) + max_hits * np.log(hit) + (trials - max_hits) * log_miss
    return _log_series(last, max_hits * np.exp(log_miss), (trials - max_hits + 1) * hit)


def _log_series(first: Array, up: Array, down: Array) -> Array:
    """Log of the sum of a series that begins with exp(`first`) and falls by the factor up / down or faster; at most log 1."""
    falls = up < down
    ratio = np.where(falls, up, 0.0) / np.where(falls, down, 1.0)
    log_sum: Array = np.where(falls, np.minimum(first - np.log1p(-ratio), 0.0), 0.0)
    return log_sum


def _up(chance: float) -> float:
    """The number rounded up to two digits, and at most one."""
    return min(1.0, float(Context(prec=2, rounding=ROUND_CEILING).create_decimal(float(chance) * _ROUNDING)))


Words = NDArray[np.uint64]

# Words handled at a time, so that the working memory stays in the inner cache.
_BLOCK: Final = 1 << 14


def add_masks(limbs: Words, masks: Iterable[tuple[bytes, bool]], question_id: bytes) -> None:
    """Add to `limbs`, in place, the mask of each key for the question `question_id`, or subtract it where `plus` is False.

    `question_id` is the digest of the question that `limbs` answer. A key makes one mask for each question, so masks between two
    sites cancel only if both got the same question. Answers to different questions have their noise in different steps, and
    their sum can never be read.

    >>> words = np.arange(3, dtype=np.uint64)
    >>> add_masks(words, [(bytes(32), True)], b"what?")
    >>> add_masks(words, [(bytes(32), False)], b"what?")
    >>> words.tolist()
    [0, 1, 2]
    """
    room = min(_BLOCK, len(limbs))
    zeros, raw = memoryview(bytes(8 * room)), memoryview(bytearray(8 * room))
    mask = np.frombuffer(raw, dtype="<u8")
    # Counting from zero is safe: each pair, round and question has an AES key of its own.
    streams = [
        (Cipher(algorithms.AES(digest("mask", key, question_id)), modes.CTR(bytes(16))).encryptor(), plus) for key, plus in masks
    ]
    for start in range(0, len(limbs), _BLOCK):
        piece = limbs[start : start + _BLOCK]
        for stream, plus in streams:
            stream.update_into(zeros[: 8 * len(piece)], raw[: 8 * len(piece)])
            if plus:
                np.add(piece, mask[: len(piece)], out=piece)
            else:
                np.subtract(piece, mask[: len(piece)], out=piece)
