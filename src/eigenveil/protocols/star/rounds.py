"""One round of a star: the question out, the answers in, until there is a total.

`Exchange` is what a hub needs to know of a round. `Gathering` is the plain round, question and answer, that hubs and nodes
share. The masked round, in several steps, is `protocols.masked.hub.SecureAggregationRound`. `Asker` is what hubs and nodes have
in common: how long they wait, and whom they ask again.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, final

from eigenveil.errors import PeerError, require
from eigenveil.protocols.messages import LONGEST_NAME, Ask, Body, Contribution, Decline, Done, Message
from eigenveil.protocols.party import AnyTask, Party, Wait, require_plain
from eigenveil.tasks.base import Question

if TYPE_CHECKING:
    # For types only: devices do without it.
    from numpy.random import Generator

__all__ = ["Asker", "Exchange", "Gathering", "Layout", "NewExchange", "Sampling", "Terms", "reachable", "star", "tree"]

Below = Mapping[str, tuple[str, ...]]


@final
@dataclass(frozen=True, slots=True)
class Terms:
    """How a hub deals with sites that do not answer."""

    quorum: int | None = None  # It continues with those who did answer, if they are as many. None: all who were asked.
    deadline: float = 30.0  # Seconds that it waits.
    retries: int = 4  # How often it asks again.

    def __post_init__(self) -> None:
        require(self.quorum is None or self.quorum >= 1, f"quorum must be at least 1, got {self.quorum}")
        require(self.deadline > 0, f"deadline must be positive, got {self.deadline}")
        require(self.retries >= 0, f"retries must not be negative, got {self.retries}")


class Exchange(ABC):
    """One round, in one step or several. Changes in place.

    The hub sends what `asks` returns and hands the answers to `receive`. A step ends when all have answered or the time
    is up. The hub then checks that enough sites answered (`sites`) and calls `onward`: another step follows, or the `total`.
    """

    round: int
    question: Question

    def _await(self, names: Iterable[str]) -> None:
        self._answers: dict[str, Any] = dict.fromkeys(names)  # None while an answer is awaited.
        self._awaited = len(self._answers)

    @property
    def complete(self) -> bool:
        """Whether all who were asked in this step have answered."""
        return self._awaited == 0

    def _require_round(self, sender: str, body: Body) -> None:
        if body.round != self.round:
            raise PeerError(sender, f"answered round {body.round} in round {self.round}")

    def _require_awaited(self, sender: str, body: Body) -> None:
        self._require_round(sender, body)
        step = f"round {self.round}" + (f", {self.name}" if self.name else "")
        if sender not in self._answers:
            raise PeerError(sender, f"was not asked in {step}")
        if self._answers[sender] is not None:
            raise PeerError(sender, f"answered {step}{',' if self.name else ''} more than once")

    @abstractmethod
    def asks(self, sender: str, *, again: bool = False) -> list[Message]:
        """The messages of this step to all, or, with `again`, to those who have not answered."""

    @abstractmethod
    def receive(self, sender: str, body: Body) -> None:
        """Take an answer, or raise a `PeerError` and change nothing."""

    @abstractmethod
    def sites(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The sites that answered this step and those that are missing; after the last step, those in the total or not."""

    @abstractmethod
    def total(self) -> Any:
        """The sum of all parts received, None if there were none. Ends the round: no answer may follow."""

    @property
    def name(self) -> str:
        """The name of this step, in words; empty where a round has one step."""
        return ""

    @property
    def failed(self) -> bool:
        """Whether parts of this round are lost, so that it must be asked anew and charged again."""
        return False

    def onward(self) -> bool:
        """Go to the next step; False after the last. A `ProtocolError` says that the round has failed."""
        return False

    def reopen(self) -> bool:
        """After a lost quorum: wait once more for the missing answers. False where only a new round helps."""
        return False


# From the number of a round, its question, the names asked and the sites that have dropped out.
NewExchange = Callable[[int, Question, Sequence[str], Set[str]], Exchange]


class Asker(Party):
    """A party that asks those `below` it, each with the sites behind it, and waits for their answers. Changes in place."""

    def __init__(self, name: str, below: Below, terms: Terms) -> None:
        super().__init__(name)
        self._below, self._terms = dict(below), terms
        # All sites of the study. In a tree a name below stands for several of them, and a quorum counts sites.
        self._all_sites = tuple(site for behind in self._below.values() for site in behind)
        self._now: Exchange | None = None
        self._round, self._waits, self._tries = -1, 0, 0

    @abstractmethod
    def _close(self, now: Exchange) -> list[Message]:
        """End a step of the open round: all have answered, or the time is up."""

    @property
    @abstractmethod
    def _done(self) -> Done | None:
        """The result, once it is there."""

    @property
    def round(self) -> int:
        """The number of the last round that was opened; 0 before the first."""
        return max(self._round, 0)

    @property
    def _awaited(self) -> Exchange | None:
        """The round whose answers are awaited."""
        return self._now

    @property
    def _max_retries(self) -> int:
        """How often those who are silent are asked again in this round."""
        return self._terms.retries

    @property
    def waiting(self) -> Wait | None:
        return None if self._awaited is None else Wait(self._waits, self._terms.deadline)

    def timeout(self) -> list[Message]:
        now = self._awaited
        if now is None:
            return []
        self._waits += 1
        if self._tries < self._max_retries:
            self._tries += 1
            return now.asks(self.name, again=True)
        return self._close(now)

    def on_reconnect(self, other: str) -> list[Message]:
        """The result, or what is still awaited from this one."""
        # A party that was away when the study ended would otherwise wait for ever.
        if self._done is not None:
            return [message for message in self._announce_result() if message.receiver == other]
        asks = [] if self._awaited is None else self._awaited.asks(self.name, again=True)
        return [message for message in asks if message.receiver == other]

    def _announce_result(self) -> list[Message]:
        done = self._done
        assert done is not None
        return [Message(self.name, name, done) for name in self._below]

    def _next_wait(self) -> None:
        """Begin another wait. Its number is new, so a timer of an earlier wait has no effect."""
        self._waits, self._tries = self._waits + 1, 0

    def _take(self, message: Message) -> list[Message]:
        """Take an answer to the open round; the last one closes the step."""
        if self._now is None:
            raise PeerError(message.sender, "answered when no round was open")
        self._now.receive(message.sender, message.body)
        return self._close(self._now) if self._now.complete else []


def reachable(below: Below, gone: Set[str]) -> list[str]:
    """The names directly below that have at least one active site behind them."""
    return [name for name, behind in below.items() if any(site not in gone for site in behind)]


@final
class Gathering(Exchange):
    """One question to the names `asked`, each with the sites behind it (`below`), and their parts. Changes in place.

    Parts are added in the order of `asked`, whatever order they arrive in, so a sum is the same to the last bit on every run.
    Parts that arrive in order are added at once and take no more memory than one. `weights` says how often each part counts,
    `gone` which sites have dropped out.
    """

    def __init__(
        self,
        task: AnyTask,
        round_: int,
        question: Question,
        recipients: Sequence[str],
        *,
        below: Below,
        gone: Set[str],
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self.round, self.question = round_, question
        self._task, self._below, self._gone, self._weights = task, below, frozenset(gone), weights
        # An answer is True for a part, and False for a decline.
        self._await(recipients)
        self._short: dict[str, tuple[str, ...]] = {}
        # Parts that came before an earlier one in the order, and cannot be added yet.
        self._held: dict[str, Any] = {}
        self._order, self._next = tuple(recipients), 0
        self._total: Any = None

    def asks(self, sender: str, *, again: bool = False) -> list[Message]:
        # A set has no order, and the same question must have the same bytes on every run.
        ask = Ask(self.round, self.question, tuple(sorted(self._gone)))
        return [Message(sender, name, ask) for name, answer in self._answers.items() if answer is None or not again]

    def receive(self, sender: str, body: Body) -> None:
        if not isinstance(body, Contribution | Decline):
            raise PeerError(sender, f"sent {type(body).__name__} where an answer to round {self.round} was due")
        self._require_awaited(sender, body)
        if isinstance(body, Contribution):
            # Checked before anything is noted, so that a site whose part is refused can still send a good one.
            named = set(body.missing)
            # A strict subset: a part with every site missing would be nobody's, and its numbers would come from nowhere.
            if len(named) != len(body.missing) or not named < set(self._below[sender]) - self._gone:
                raise PeerError(sender, "reports sites as missing that are not behind it, or all of its sites")
            try:
                require_plain(body.arrays)
                part = self._task.part(self.question, body.arrays)
            except ValueError as error:
                raise PeerError(sender, f"sent an invalid part: {error}") from error
            self._held[sender], self._short[sender] = part, body.missing
        self._answers[sender] = isinstance(body, Contribution)
        self._awaited -= 1
        self._fold()

    def sites(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        answered: list[str] = []
        missing: list[str] = []
        for name, answer in self._answers.items():
            # A node may have answered without some of the sites behind it.
            short = set(self._short.get(name, ()))
            for site in self._below[name]:
                if site not in self._gone:
                    (answered if answer and site not in short else missing).append(site)
        return tuple(answered), tuple(missing)

    def total(self) -> Any:
        # Silent sites have held up the order, and no answer will come from them any more.
        for name in self._order[self._next :]:
            self._add(name)
        self._next = len(self._order)
        return self._total

    def _fold(self) -> None:
        # Only in order: floating-point sums depend on it, and a resumed study must give the same bits.
        while self._next < len(self._order) and self._answers[self._order[self._next]] is not None:
            self._add(self._order[self._next])
            self._next += 1

    def _add(self, name: str) -> None:
        if name not in self._held:
            return
        part = self._held.pop(name)
        if self._weights is not None:
            part = self._task.weighted(part, self._weights[name])
        self._total = part if self._total is None else self._task.combine(self._total, part)


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """Which party is above which, in site order."""

    hub: str
    below: dict[str, dict[str, tuple[str, ...]]]  # For the hub and each node, the names directly below, each with its sites.
    levels: dict[str, int]  # Each node's distance from the hub.

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(name for name in self.below if name != self.hub)

    def above(self) -> dict[str, str]:
        """For each node and site, the node or hub it reports to."""
        return {name: parent for parent, children in self.below.items() for name in children}


def star(sites: Sequence[str], *, hub: str = "hub") -> Layout:
    """Every site reports to the hub.

    >>> star(["a", "b"]).below
    {'hub': {'a': ('a',), 'b': ('b',)}}
    """
    _require_names(sites, hub)
    return Layout(hub, {hub: {site: (site,) for site in sites}}, {hub: 0})


def tree(sites: Sequence[str], *, fanout: int, hub: str = "hub") -> Layout:
    """At most `fanout` names below the hub and below each node; sites that follow each other share a node.

    >>> layout = tree(["a", "b", "c"], fanout=2)
    >>> layout.below["hub"]
    {'node 1': ('a', 'b'), 'c': ('c',)}
    >>> layout.above()["a"], layout.levels["node 1"]
    ('node 1', 1)
    """
    require(fanout >= 2, f"fanout must be at least 2, got {fanout}")
    _require_names(sites, hub)
    below: dict[str, dict[str, tuple[str, ...]]] = {}
    level: dict[str, tuple[str, ...]] = {site: (site,) for site in sites}
    count = 0
    # From the sites upwards, one level at a time, until few enough names are left for the hub.
    while len(level) > fanout:
        names, upper = list(level), {}
        for start in range(0, len(names), fanout):
            group = names[start : start + fanout]
            if len(group) == 1:
                # A node over a single name would only pass messages on.
                upper[group[0]] = level[group[0]]
                continue
            count += 1
            below[f"node {count}"] = {name: level[name] for name in group}
            upper[f"node {count}"] = tuple(site for name in group for site in level[name])
        level = upper
    below[hub] = level
    levels = {hub: 0}
    # Parents come after their children in `below`, so this goes from the hub downwards.
    for parent in reversed(below):
        levels |= {name: levels[parent] + 1 for name in below[parent] if name in below}
    return Layout(hub, below, levels)


def _require_names(sites: Sequence[str], hub: str) -> None:
    require(len(sites) > 0, "at least one site is needed, got none")
    require(len(set(sites)) == len(sites), "two sites have the same name; give each its own")
    short = all(0 < len(site) <= LONGEST_NAME for site in sites)
    require(short, f"the name of a site must have 1 to {LONGEST_NAME} characters")
    # Messages are addressed by name alone, so such a site would get those of the hub or of a node.
    taken = [site for site in sites if site == hub or site.startswith("node ")]
    require(not taken, f"a site cannot be called {', '.join(taken[:1])}: hubs and nodes have that name")


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Sampling:
    """Draws of sites for each round. Scheme 1 draws "with-replacement" by size, scheme 2 "without-replacement" evenly.

    Parts are sums over rows, G_i Z. Scheme 1's mean over the draws of G_i Z / s_i is a sum with weights c_i / s_i, where site i
    was drawn c_i times. Scheme 2's is a plain sum. `factor` scales both to the sum over all sites, their expectation.
    """

    scheme: Literal["with-replacement", "without-replacement"]
    count: int  # Draws in a round.
    sizes: Mapping[str, float]  # The number of rows of each site. Public.
    rng: "Generator"

    def __post_init__(self) -> None:
        require(
            self.count >= 1 and (self.scheme == "with-replacement" or self.count <= len(self.sizes)),
            f"participation must draw from 1 to {len(self.sizes)} sites, got {self.count}",
        )
        require(min(self.sizes.values()) >= 0 and sum(self.sizes.values()) > 0, "sizes of sites must be positive")

    def draw(self, sites: Sequence[str]) -> dict[str, float]:
        """The sites of `sites` that take part, in their order, with how often each was drawn."""
        if self.scheme == "without-replacement":
            chosen = set(self.rng.choice(len(sites), size=min(self.count, len(sites)), replace=False).tolist())
            return {site: 1.0 for index, site in enumerate(sites) if index in chosen}
        # Only sites that are left: draws must not go to those that dropped out.
        whole = sum(self.sizes[site] for site in sites)
        require(whole > 0, "the sites that are left have no rows")
        counts = self.rng.multinomial(self.count, [self.sizes[site] / whole for site in sites])
        return {site: float(times) for site, times in zip(sites, counts, strict=True) if times > 0}

    def weights(self, drawn: Mapping[str, float]) -> dict[str, float]:
        """The weight of each site's part in the sum."""
        if self.scheme == "without-replacement":
            return dict(drawn)
        return {site: times / self.sizes[site] for site, times in drawn.items()}

    def factor(self, drawn: Mapping[str, float], gave: Sequence[str], sites: Sequence[str]) -> float:
        """The factor of the weighted sum over the sites that `gave` a part."""
        if self.scheme == "without-replacement":
            # Over the sites that gave a part. A site that was drawn and stays silent must not shrink the estimate.
            return len(sites) / len(gave)
        return sum(self.sizes[site] for site in sites) / sum(drawn[site] for site in gave)
