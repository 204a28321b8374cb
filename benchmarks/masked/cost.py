"""What masks cost a site and a hub, in bytes and CPU seconds, compared with plain parts. Target: 3x plain at 20
sites.

Three groups of sites run the same rounds with the same rows. In the group `raw` they send parts as they are
(trust="hub"). In `noisy` each adds its own Gaussian noise (trust="site"). In `masked` each adds a share of the
noise under masks (trust="masked"), where 80% of the sites must survive and one may collude; all do survive.

There are two shapes. The first is products of 1000 columns with 10 directions, 10^4 numbers, four rounds. The second
is what `method="auto"` makes of 1413 columns, one covariance of 10^6 numbers. --shapes wide adds products of 100000
columns, 10^6 numbers, two rounds. A site has 1000 rows (100 where wide), as in FedPower's Table 2. All sites have the
same rows, so that a thousand sites fit in memory; this saves nothing that is timed.

THE RATIO DEPENDS ON THE ROWS: a plain site's work grows with them and masks stay the same. So whether the target is
reached depends as much on the rows as on the masks. It is measured at 100, 300, 1000 and 3000 rows, against both
other groups, and each is judged.

CPU is `time.process_time` around a site's `receive` and nothing else, on one BLAS thread. Figures are medians over
sites, rounds and repetitions, with ratios within each repetition first. What a process does once (the table of the
noise) is timed separately, and so is the exchange of keys before the first round.

With 1000 sites and 10^6 numbers all exchange keys, but only five are asked for their part. Their masks use real keys
of real neighbours. The end of the round, in which no part is touched, is taken from 10^4 numbers. No sum comes out,
so nothing is known of the hub (--full lets all of them go to the end, in 10 GB).

About eleven minutes; --quick half a minute.

    python benchmarks/masked/cost.py [--quick] [--sites 10 20 100 1000] [--shapes product covariance wide] [--rows 1000] [--full]
"""

import argparse
import contextlib
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final
from unittest import mock

import numpy as np

from benchmarks.datasets import heading, line
from eigenveil.core.accounting import Budget
from eigenveil.core.domain import Domain
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Exact, Gaussian
from eigenveil.core.noise import Noise, RoundedGaussian, _layers
from eigenveil.core.rows import Rows
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import DenseRows
from eigenveil.linalg import orthonormal
from eigenveil.linalg.blas import blas_threads
from eigenveil.methods.base import ProductTask, geometric_shares
from eigenveil.methods.covariance import CovarianceSum
from eigenveil.methods.power import PowerIteration
from eigenveil.privacy.lattice import Lattice, Share
from eigenveil.protocols.keys import Identity
from eigenveil.protocols.masked import member, session, terms
from eigenveil.protocols.masked.dealing import checks_needed
from eigenveil.protocols.masked.graph import mask_graph
from eigenveil.protocols.masked.hub import SecureAggregator
from eigenveil.protocols.masked.member import MaskedMember
from eigenveil.protocols.masked.terms import MaskedTerms
from eigenveil.protocols.messages import Ask, Contribution, Done, Masked, Message, StepReply, StepRequest
from eigenveil.protocols.party import Party
from eigenveil.protocols.star.hub import Hub
from eigenveil.protocols.star.rounds import Terms, star
from eigenveil.protocols.star.site import Member
from eigenveil.protocols.wire import size
from eigenveil.tasks.base import SumTask

BUDGET, SURVIVORS, COLLUDERS, LIMIT, TARGET_SITES = Budget(1.0, 1e-6), 0.8, 1, 3.0, 20
TARGET_ROWS = (100, 300, 1000, 3000)
# Of a site's rows where the target is looked at: larger tables take minutes.
MOST_ENTRIES = 3 * 10**7
SETUP = ("keys", "packets", "roster", "roster claim", "seal")
# What sites do, and the functions that do it: seconds in one do not count for those it was called from.
KINDS: Mapping[str, tuple[tuple[Any, str], ...]] = {
    "rows": ((ProductTask, "private"), (CovarianceSum, "private")),
    "rounding": ((Share, "of"),),
    "noise": ((RoundedGaussian, "draw"),),
    "mask keys": ((session, "agree"), (session, "public_of")),
    "masks": ((member, "add_masks"),),
    "digest": ((member, "words_digest"),),
    "signatures": ((Identity, "sign"), (terms, "signed_by")),
    "shares": (
        (session, "split"),
        (session, "blended"),
        (session, "seal_bundle"),
        (session, "open_bundle"),
        (session.Session, "reveal"),
    ),
    "question": ((member, "require_asked"), (member, "question_digest")),
}


@final
@dataclass(frozen=True, slots=True)
class Shape:
    """What sites are asked for: a part of d x `width` numbers in each of `rounds`, or the covariance where `width` is zero."""

    dim: int
    width: int
    rounds: int
    rows: int

    @property
    def numbers(self) -> int:
        """Of one part."""
        return self.dim * self.width if self.width else self.dim * (self.dim + 1) // 2

    @property
    def words(self) -> str:
        """For the table."""
        return f"{self.dim} x {self.width}" if self.width else f"covariance {self.dim}"

    def task(self) -> SumTask[Any, Any]:
        """With public numbers only."""
        domain = Domain(dim=self.dim, radius=1.0)
        if not self.width:
            return CovarianceSum(domain, Neighbours.ADD_REMOVE)
        begin = orthonormal(np.random.default_rng(0).standard_normal((self.dim, self.width)))
        shares = geometric_shares(self.rounds, growth=1.6)
        return PowerIteration(domain=domain, neighbours=Neighbours.ADD_REMOVE, begin=begin, shares=shares)

    def table(self) -> Rows:
        """One site's rows, within the unit ball."""
        rows = np.random.default_rng(1).standard_normal((self.rows, self.dim)) / np.sqrt(np.arange(1.0, self.dim + 1))
        return DenseRows(rows / np.linalg.norm(rows, axis=1, keepdims=True))


SHAPES = {"product": Shape(1000, 10, 4, 1000), "covariance": Shape(1413, 0, 1, 1000), "wide": Shape(100_000, 10, 2, 100)}


@final
class Clock:
    """CPU seconds by what is being done, each without what is done inside it. Changes in place."""

    def __init__(self) -> None:
        self.spent: defaultdict[str, float] = defaultdict(float)
        self._doing: list[str] = []
        self._since = 0.0

    @contextlib.contextmanager
    def on(self, kind: str) -> Iterator[None]:
        """While this is done."""
        self._round()
        self._doing.append(kind)
        try:
            yield
        finally:
            self._round()
            self._doing.pop()

    def _round(self) -> None:
        now = time.process_time()
        if self._doing:
            self.spent[self._doing[-1]] += now - self._since
        self._since = now

    def watched(self, kind: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """`work`, counted while a site is at it; the hub's is not."""

        def timed(*given: Any, **named: Any) -> Any:
            if not self._doing:
                return work(*given, **named)
            with self.on(kind):
                return work(*given, **named)

        return timed

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """With every function in `KINDS` watched."""
        with contextlib.ExitStack() as stack:
            for kind, places in KINDS.items():
                for owner, name in places:
                    found = self.watched(kind, getattr(owner, name))
                    stack.enter_context(mock.patch.object(owner, name, found))
            yield


@final
@dataclass(slots=True)
class Spent:
    """Of one site in the exchange of keys, or in the first or second half of a round. Changes in place."""

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    up: int = 0
    down: int = 0


@final
@dataclass(slots=True)
class Costs:
    """Of a whole run: by site, round and phase, and the hub's seconds by round and phase. Changes in place."""

    sites: defaultdict[tuple[str, int, str], Spent] = field(default_factory=lambda: defaultdict(Spent))
    hub: defaultdict[tuple[int, str], float] = field(default_factory=lambda: defaultdict(float))


def phase_of(message: Message) -> str:
    """The exchange of keys, the question with its part, the end of a round (the list of survivors, unmasking), or the answer."""
    match message.body:
        case Ask() | Contribution() | Masked():
            return "part"
        case StepRequest(step=step) | StepReply(step=step):
            return "setup" if step in SETUP else "end"
        case Done():
            return "answer"
    raise AssertionError(f"nobody should have said {message.body}")


def passthrough(hub: Hub[Any], members: Sequence[Party], *, asked: int | None = None) -> Costs:
    """All messages, one answer at a time, until nobody has anything to say; only `asked` of the members see a question."""
    parties: dict[str, Party] = {hub.name: hub} | {party.name: party for party in members}
    chosen = {party.name for party in members[:: len(members) // asked][:asked]} if asked else set(parties)
    clock, costs = Clock(), Costs()
    stack = list(reversed(hub.start()))
    with clock.watching():
        while stack:
            message = stack.pop()
            phase, round_ = phase_of(message), message.body.round
            if message.receiver == hub.name:
                costs.sites[message.sender, round_, phase].up += size(message)
                start = time.process_time()
                answers = hub.receive(message)
                costs.hub[round_, phase] += time.process_time() - start
            elif phase == "part" and message.receiver not in chosen:
                continue
            else:
                spent = costs.sites[message.receiver, round_, phase]
                spent.down += size(message)
                clock.spent = spent.seconds
                with clock.on("rest"):
                    answers = parties[message.receiver].receive(message)
            stack.extend(reversed(answers))
    if asked is None and hub.result is None:
        raise AssertionError("the run did not come to its end")
    return costs


def plain(shape: Shape, task: SumTask[Any, Any], rows: Rows, sites: int, *, noisy: bool) -> Costs:
    """Raw parts, or parts with noise of their own."""
    layout = star([f"site {number}" for number in range(sites)])
    exact = Exact(because="benchmark")
    members = []
    for number, name in enumerate(layout.above()):
        ledger = Ledger(epsilon=BUDGET.epsilon, delta=BUDGET.delta)
        mechanism = Gaussian(multiplier=(1 + 1e-10) / BUDGET.mu, ledger=ledger, noise=Noise.seeded(number)) if noisy else exact
        members.append(Member(name, hub="hub", task=task, rows=rows, mechanism=mechanism))
    return passthrough(Hub(task, layout.below["hub"], exact, terms=Terms()), members)


def agreed(shape: Shape, roster: Mapping[str, bytes]) -> MaskedTerms:
    """The terms of a fit of this shape, by the same rules as `FederatedPCA`'s."""
    sites, survivors = len(roster), math.ceil(SURVIVORS * len(roster))
    most, sessions, part = 2 * shape.rounds + 8, 4, 2.5e-4 * BUDGET.delta
    graph = mask_graph(sites, survivors=survivors, colluders=COLLUDERS, failure=part / (sessions * sites))
    checks = 0
    if not graph.complete:
        checks = checks_needed(sites, survivors=survivors, colluders=COLLUDERS, times=most + sessions, failure=part)
    lattice = Lattice(
        budget=BUDGET,
        sites=sites,
        survivors=survivors,
        colluders=COLLUDERS,
        loss=graph.loss,
        failure=sessions * sites * graph.failure + (part if checks else 0.0),
    )
    assert lattice.gaussian is not None
    multiplier = (1 + 1e-10) / lattice.gaussian.mu
    rounds = shape.rounds
    return MaskedTerms(
        study="benchmark",
        roster=roster,
        survivors=survivors,
        colluders=COLLUDERS,
        graph=graph,
        rounds=rounds,
        most_rounds=most,
        lattice=lattice,
        multiplier=multiplier,
        checks=checks,
    )


def masked(
    shape: Shape, task: SumTask[Any, Any], rows: Rows, sites: int, *, asked: int | None
) -> tuple[Costs, MaskedTerms, float]:
    """Shares under masks; and what the table of the noise takes, once in a process."""
    identities = {f"site {number}": Identity.fresh() for number in range(sites)}
    chosen = agreed(shape, {name: identity.public for name, identity in identities.items()})
    gaussian = chosen.lattice.gaussian
    assert gaussian is not None
    start = time.process_time()
    _layers.__wrapped__()
    table = time.process_time() - start
    _layers()
    members = [
        MaskedMember(
            name,
            hub="hub",
            task=task,
            rows=rows,
            share=Share(
                lattice=chosen.lattice,
                ledger=Ledger(epsilon=gaussian.epsilon, delta=gaussian.delta),
                noise=Noise.seeded(number),
                multiplier=chosen.multiplier,
            ),
            terms=chosen,
            identity=identity,
        )
        for number, (name, identity) in enumerate(identities.items())
    ]
    below = star(list(identities)).below["hub"]
    quorum = Terms(quorum=chosen.survivors)
    hub = Hub(task, below, Exact(because="shares"), terms=quorum, exchanges=SecureAggregator(chosen, task))
    return passthrough(hub, members, asked=asked), chosen, table


@final
@dataclass(frozen=True, slots=True)
class Typical:
    """The medians of one phase over sites, rounds and repetitions; the hub's over rounds and repetitions, None if not known."""

    seconds: Mapping[str, float]
    total: float
    up: float
    down: float
    hub: float | None

    def plus(self, other: "Typical") -> "Typical":
        """Of two phases, one after the other."""
        kinds = self.seconds.keys() | other.seconds.keys()
        hub = None if self.hub is None or other.hub is None else self.hub + other.hub
        return Typical(
            {kind: self.seconds.get(kind, 0.0) + other.seconds.get(kind, 0.0) for kind in kinds},
            self.total + other.total,
            self.up + other.up,
            self.down + other.down,
            hub,
        )


def typical(runs: Iterable[Costs], phase: str, *, hub: bool = True) -> Typical:
    """What a site takes in this phase of a round."""
    runs = list(runs)
    found = [spent for costs in runs for (_, _, at), spent in costs.sites.items() if at == phase]
    kinds = {kind for spent in found for kind in spent.seconds}
    at_hub = [seconds for costs in runs for (_, at), seconds in costs.hub.items() if at == phase]
    return Typical(
        {kind: statistics.median(spent.seconds.get(kind, 0.0) for spent in found) for kind in kinds},
        statistics.median(sum(spent.seconds.values()) for spent in found),
        statistics.median(spent.up for spent in found),
        statistics.median(spent.down for spent in found),
        statistics.median(at_hub) if hub else None,
    )


@final
@dataclass(frozen=True, slots=True)
class Measured:
    """Of one shape and number of sites: the three groups' rounds, and the exchange of keys."""

    shape: Shape
    sites: int
    partners: str
    raw: Typical
    noisy: Typical
    part: Typical
    end: Typical
    setup: Typical
    table: float
    # Masked over raw and over noisy: the median over repetitions of the ratio within each.
    ratios: tuple[float, float]
    asked: int | None

    @property
    def masked(self) -> Typical:
        """A whole round under masks."""
        return self.part.plus(self.end)


def measure(shape: Shape, sites: int, times: int, *, asked: int | None, end: Typical | None) -> Measured:
    """All three, alternating, `times` times."""
    task, rows = shape.task(), shape.table()
    few = sites if asked is None else asked
    runs: list[tuple[Costs, Costs, Costs]] = []
    tables = []
    for _ in range(times):
        raw, noisy = (plain(shape, task, rows, few, noisy=noise) for noise in (False, True))
        hidden, chosen, table = masked(shape, task, rows, sites, asked=asked)
        runs.append((raw, noisy, hidden))
        tables.append(table)
    raws, noisies, hiddens = zip(*runs, strict=True)
    graph = chosen.graph
    partners = f"{sites - 1}" if graph.complete else f"~{2 * graph.holders}"
    full = asked is None

    def ratio(peer: Costs, hidden: Costs) -> float:
        after = typical([hidden], "end") if full or end is None else end
        return (typical([hidden], "part").total + after.total) / typical([peer], "part").total

    return Measured(
        shape,
        sites,
        partners,
        raw=typical(raws, "part", hub=full),
        noisy=typical(noisies, "part", hub=full),
        part=typical(hiddens, "part", hub=full),
        end=typical(hiddens, "end") if full or end is None else end,
        setup=typical(hiddens, "setup"),
        table=statistics.median(tables),
        ratios=(statistics.median(map(ratio, raws, hiddens)), statistics.median(map(ratio, noisies, hiddens))),
        asked=asked,
    )


def milli(seconds: float | None) -> str:
    """Milliseconds, or that nobody knows."""
    return "-" if seconds is None else f"{1e3 * seconds:.3g}"


def kilo(count: float) -> str:
    """Kilobytes."""
    return f"{count / 1e3:,.1f}"


def show_rounds(found: Sequence[Measured]) -> None:
    """The main table."""
    print("\nOne round. Milliseconds of CPU and kilobytes, per site; hub in all. `x raw`, `x noisy`: masked over plain.\n")
    names = ["raw ms", "noisy ms", "masked ms", "x raw", "x noisy"]
    traffic = ["plain kB up", "down", "masked kB up", "down"]
    heading(["part", "sites", "rows", "masks", *names, *traffic, "hub: raw ms", "masked ms"])
    for one in found:
        line(
            [
                one.shape.words,
                f"{one.sites}" + ("" if one.asked is None else f" ({one.asked} asked)"),
                str(one.shape.rows),
                one.partners,
                *(milli(who.total) for who in (one.raw, one.noisy, one.masked)),
                *(f"{ratio:.2f}" for ratio in one.ratios),
                *(kilo(count) for who in (one.noisy, one.masked) for count in (who.up, who.down)),
                *(milli(who.hub) for who in (one.raw, one.masked)),
            ]
        )


def show_target(found: Sequence[Measured]) -> None:
    """The target at several numbers of rows, and what reaches it."""
    print(f"\nThe target, at most {LIMIT:g}x plain CPU at {TARGET_SITES} sites, by rows at each site; milliseconds in a round:\n")
    heading(["part", "rows", "raw ms", "noisy ms", "masked ms", "x raw", "x noisy"])
    reached = 0
    for one in found:
        verdicts = ["reached" if ratio <= LIMIT else "MISSED" for ratio in one.ratios]
        reached += verdicts.count("reached")
        line(
            [
                one.shape.words,
                str(one.shape.rows),
                *(milli(who.total) for who in (one.raw, one.noisy, one.masked)),
                *(f"{ratio:.2f} {verdict}" for ratio, verdict in zip(one.ratios, verdicts, strict=True)),
            ]
        )
    print(f"\ntarget reached in {reached} of {2 * len(found)} comparisons")


def show_split(found: Sequence[Measured]) -> None:
    """What the masked site's time goes into, in a round."""
    print("\nA masked site's round, milliseconds of CPU:\n")
    kinds = ["rows", "rounding", "noise", "mask keys", "masks", "digest", "signatures", "shares", "question", "rest"]
    heading(["part", "sites", *kinds])
    for one in found:
        line([one.shape.words, str(one.sites), *(milli(one.masked.seconds.get(kind, 0.0)) for kind in kinds)])


def show_setup(found: Sequence[Measured]) -> None:
    """What is done once for all rounds."""
    print(
        "\nThe exchange of keys, once for all rounds of a fit: milliseconds of CPU and kilobytes, per site; hub in all. "
        "`table`: of the\nnoise, once in a process.\n"
    )
    kinds = ["mask keys", "shares", "signatures", "rest"]
    heading(["part", "sites", "rounds", "kB up", "down", "site ms", *kinds, "hub ms", "table ms"])
    for one in found:
        setup = one.setup
        line(
            [
                one.shape.words,
                str(one.sites),
                str(one.shape.rounds),
                kilo(setup.up),
                kilo(setup.down),
                milli(setup.total),
                *(milli(setup.seconds.get(kind, 0.0)) for kind in kinds),
                milli(setup.hub),
                milli(one.table),
            ]
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", nargs="*", type=int, default=[10, 20, 100, 1000])
    parser.add_argument("--shapes", nargs="*", choices=list(SHAPES), default=["product", "covariance"])
    parser.add_argument("--rows", type=int, help="rows at each site in the main table (1000; 100 where wide)")
    parser.add_argument("--times", type=int, default=5, help="repetitions up to 20 sites; one beyond")
    parser.add_argument("--full", action="store_true", help="1000 sites and 10^6 numbers to the end as well")
    parser.add_argument("--quick", action="store_true", help="10 and 20 sites, products only, once")
    options = parser.parse_args()
    if options.quick:
        options.sites, options.shapes, options.times = [10, 20], ["product"], 1
    print(
        f"epsilon = {BUDGET.epsilon:g}, delta = {BUDGET.delta:g}, {SURVIVORS:.0%} must survive, {COLLUDERS} colluder; CPU "
        "time on one thread, medians"
    )
    shapes = [SHAPES[name] for name in options.shapes]
    if options.rows is not None:
        shapes = [replace(shape, rows=options.rows) for shape in shapes]
    found: list[Measured] = []
    ends: dict[int, Typical] = {}
    with blas_threads(1):
        for shape in shapes:
            print(f"{shape.words}: {shape.numbers} numbers, {shape.rounds} round(s), {shape.rows} rows at each site")
            for sites in options.sites:
                partial = sites * shape.numbers > 2 * 10**8 and not options.full
                found.append(timed(shape, sites, options.times, ends, partial=partial))
        target = [
            timed(replace(shape, rows=rows), TARGET_SITES, options.times, ends, partial=False)
            for shape in shapes
            for rows in TARGET_ROWS
            if rows * shape.dim <= MOST_ENTRIES
        ]
    show_rounds(found)
    show_split(found)
    show_setup(found)
    show_target(target)


def timed(shape: Shape, sites: int, times: int, ends: dict[int, Typical], *, partial: bool) -> Measured:
    """Measure, say how long that took, and keep how a round ends with so many sites."""
    times, start = times if sites <= TARGET_SITES else 1, time.perf_counter()
    end = None
    if partial:
        end = ends.get(sites, Typical({}, 0.0, 0.0, 0.0, None))
        rest = "as with 10^4 numbers" if sites in ends else "NOT COUNTED"
        print(f"  {sites} sites: 5 of them are asked, the end of a round {rest}, the hub is not timed")
    one = measure(shape, sites, times, asked=5 if partial else None, end=end)
    ends.setdefault(sites, one.end)
    print(f"  {sites} sites, {shape.rows} rows: {times} time(s) in {time.perf_counter() - start:.0f} s", flush=True)
    return one


if __name__ == "__main__":
    main()
