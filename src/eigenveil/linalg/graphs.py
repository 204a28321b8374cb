"""`Graph`: which peers exchange messages, or share noise, when there is no hub. Undirected, simple, of named peers.

All of it is public, and every answer depends on the graph alone. Two peers with the same names and edges find the same tree, the
same shortest paths and the same order.
"""

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from pathlib import Path
from typing import final

import numpy as np

from eigenveil.errors import require
from eigenveil.linalg import Array

__all__ = ["Graph", "SpanningTree", "separator"]

# Swaps of two edges that are tried for each edge, and in total, before a circulant counts as a random graph.
_SWAPS, _MOST_SWAPS = 10, 50_000
# Random graphs that are tried before the circulant itself is used, which always works.
_TRIES = 8


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SpanningTree:
    """A tree over a graph's edges: the peer `above` each peer but the root, the peers `below` each, and the depth.

    >>> tree = Graph.named("path", "abc").spanning_tree()
    >>> tree.root, tree.above["c"], tree.below["b"], tree.depth
    ('b', 'b', ('a', 'c'), 1)
    """

    root: str
    above: Mapping[str, str]
    below: Mapping[str, tuple[str, ...]]
    depth: int


@final
@dataclass(frozen=True, slots=True)
class Graph:
    """An undirected, simple graph of named peers: no edge twice, none from a peer to itself.

    Both ends of an edge, and the list of edges, are in the order of `names`; `Graph.of` sorts them.

    >>> graph = Graph.of(["ann", "bob", "cy"], [("cy", "bob"), ("ann", "bob")])
    >>> graph.edges, graph.neighbours("bob"), graph.degree("cy")
    ((('ann', 'bob'), ('bob', 'cy')), ('ann', 'cy'), 1)
    """

    names: tuple[str, ...]
    edges: tuple[tuple[str, str], ...]
    _near: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _require_names(self.names)
        positions = {name: i for i, name in enumerate(self.names)}
        near: dict[str, list[str]] = {name: [] for name in self.names}
        before = (-1, -1)
        for edge in self.edges:
            ends = _placed(edge, positions)
            # Error texts are made only when they are needed: a complete graph has half a million edges.
            if ends == before:
                raise ValueError(f"the edge {edge} is listed twice")
            if ends < before or ends[0] > ends[1]:
                raise ValueError(f"edges must be in the order of names, each once, got {edge}; Graph.of sorts them")
            before = ends
            near[edge[0]].append(edge[1])
            near[edge[1]].append(edge[0])
        # Edges are sorted, so each name collects its earlier neighbours in order, and then its later ones.
        object.__setattr__(self, "_near", {name: tuple(others) for name, others in near.items()})

    @classmethod
    def of(cls, names: Sequence[str], edges: Iterable[tuple[str, str]]) -> "Graph":
        """The graph with these edges, in any order; an edge that is given twice, or in both directions, is one edge.

        >>> Graph.of("abc", [("c", "a"), ("a", "c")]).edges
        (('a', 'c'),)
        """
        names = tuple(names)
        _require_names(names)
        positions = {name: i for i, name in enumerate(names)}
        return cls._of_places(names, {_placed(edge, positions) for edge in edges})

    @classmethod
    def _of_places(cls, names: tuple[str, ...], ends: Iterable[tuple[int, int]]) -> "Graph":
        ordered = sorted({(min(i, j), max(i, j)) for i, j in ends})
        return cls(names, tuple((names[i], names[j]) for i, j in ordered))

    @classmethod
    def named(cls, kind: str, names: Sequence[str], *, seed: int = 0) -> "Graph":
        """A "ring", "path", "grid", "star" (around the first), "complete" or "random-regular:4" graph of these names.

        A grid is as square as it can be, and its last row may be short. The number after the colon is each peer's number of
        neighbours, k. The graph follows from the public `seed`. Removing fewer than k peers cannot disconnect it, so noise on it
        protects against k - 1 colluders. Peers agree on its edges and not on the seed: another version of numpy may draw another
        graph.

        >>> len(Graph.named("ring", "abcd").edges), Graph.named("grid", "abcdef").neighbours("b")
        (4, ('a', 'c', 'e'))
        >>> regular = Graph.named("random-regular:3", "abcdefgh", seed=1)
        >>> {regular.degree(name) for name in regular.names}, regular.cut(2)
        ({3}, None)
        """
        names = tuple(names)
        _require_names(names)
        if kind.startswith("random-regular:"):
            return _random_regular(names, kind.removeprefix("random-regular:"), seed)
        require(kind in _KINDS, f"kind must be one of {', '.join(_KINDS)} or random-regular:K for K neighbours, got {kind!r}")
        return cls._of_places(names, _KINDS[kind](len(names)))

    @classmethod
    def read(cls, path: str | Path, names: Sequence[str] | None = None) -> "Graph":
        """The graph of an edge list: one edge per line, two names separated by a comma, a tab or blanks.

        Text after a # is a comment. With `names`, the file may use those names or their numbers, counted from 0. Without, names
        are in the order in which they first appear in the file.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / "edges.csv").write_text("# who talks\\nann, bob\\n2, ann\\n")
        ...     Graph.read(Path(folder) / "edges.csv", ["ann", "bob", "cy"]).edges
        (('ann', 'bob'), ('ann', 'cy'))
        """
        path = Path(path)
        # A name that looks like a number is a name first.
        aliases = None
        if names is not None:
            aliases = {str(i): name for i, name in enumerate(names)} | {name: name for name in names}
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} must be text in UTF-8: {error}") from None
        edges = []
        for number, line in enumerate(lines, start=1):
            ends = _ends(line, f"{path}, line {number}", aliases)
            if ends is not None:
                edges.append(ends)
        if names is None:
            names = tuple(dict.fromkeys(name for edge in edges for name in edge))
            require(len(names) > 0, f"{path} contains no edge: write two names on each line")
        return cls.of(names, edges)

    def neighbours(self, name: str) -> tuple[str, ...]:
        """The peers that share an edge with `name`, in the order of names."""
        require(name in self._near, f"{name!r} is not in this graph")
        return self._near[name]

    def degree(self, name: str) -> int:
        """How many neighbours `name` has."""
        return len(self.neighbours(name))

    def without(self, gone: Iterable[str]) -> "Graph":
        """The graph without these peers and their edges.

        >>> Graph.named("ring", "abcd").without("b").edges
        (('a', 'd'), ('c', 'd'))
        """
        left = set(gone)
        for name in left:
            require(name in self._near, f"{name!r} is not in this graph")
        names = tuple(name for name in self.names if name not in left)
        return Graph(names, tuple(edge for edge in self.edges if edge[0] not in left and edge[1] not in left))

    def components(self) -> tuple[tuple[str, ...], ...]:
        """The connected components: the largest first, and among equals the one with the first name.

        >>> Graph.named("star", "abcd").without("a").components()
        (('b',), ('c',), ('d',))
        """
        visited: set[str] = set()
        groups = []
        for name in self.names:
            if name not in visited:
                reached = self.distances(name)
                visited |= reached.keys()
                groups.append(tuple(other for other in self.names if other in reached))
        # `sorted` keeps the order of equals, so every peer finds the same components.
        return tuple(sorted(groups, key=len, reverse=True))

    @property
    def connected(self) -> bool:
        """Whether there is a path between any two peers.

        >>> Graph.of("abc", [("a", "b")]).connected
        False
        """
        return len(self.distances(self.names[0])) == len(self.names)

    def distances(self, source: str) -> dict[str, int]:
        """The distance from `source`, in edges, of every peer that can be reached.

        >>> Graph.named("ring", "abcde").distances("a")
        {'a': 0, 'b': 1, 'e': 1, 'c': 2, 'd': 2}
        """
        self.neighbours(source)
        lengths, queue = {source: 0}, [source]
        # Peers join the queue in the order of their distance, so the first distance found is the shortest.
        for name in queue:
            for other in self._near[name]:
                if other not in lengths:
                    lengths[other] = lengths[name] + 1
                    queue.append(other)
        return lengths

    @property
    def diameter(self) -> int:
        """The largest distance between two peers.

        >>> Graph.named("ring", "abcdefg").diameter
        3
        """
        return max(self._eccentricities())

    def next_hop(self, source: str, target: str) -> str:
        """The neighbour of `source` that forwards messages to `target`: the first on a shortest path.

        >>> Graph.named("ring", "abcde").next_hop("a", "d")
        'e'
        """
        require(source != target, f"source and target must differ, got {source!r} for both")
        away = self.distances(target)
        self.neighbours(source)
        require(source in away, f"there is no path from {source!r} to {target!r}")
        return next(name for name in self._near[source] if away[name] == away[source] - 1)

    def spanning_tree(self) -> SpanningTree:
        """The tree of shortest paths from a center: the first-named peer whose largest distance to another is smallest.

        >>> Graph.named("grid", "abcdefghi").spanning_tree().below["e"]
        ('b', 'd', 'f', 'h')
        """
        furthest = self._eccentricities()
        root = self.names[furthest.index(min(furthest))]
        away = self.distances(root)
        above: dict[str, str] = {}
        below: dict[str, list[str]] = {name: [] for name in self.names}
        for name in self.names:
            if name != root:
                # The first of several, because every peer must find the same tree by itself.
                above[name] = next(other for other in self._near[name] if away[other] < away[name])
                below[above[name]].append(name)
        return SpanningTree(
            root=root, above=above, below={name: tuple(children) for name, children in below.items()}, depth=min(furthest)
        )

    def adjacency(self) -> Array:
        """(m, m): one where there is an edge, zero elsewhere.

        >>> Graph.named("path", "abc").adjacency().tolist()
        [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
        """
        positions = {name: i for i, name in enumerate(self.names)}
        matrix = np.zeros((len(self.names), len(self.names)))
        if self.edges:
            starts, stops = np.array([(positions[a], positions[b]) for a, b in self.edges]).T
            matrix[starts, stops] = matrix[stops, starts] = 1.0
        return matrix

    def laplacian(self) -> Array:
        """(m, m): degrees on the diagonal, minus the adjacency.

        >>> Graph.named("path", "ab").laplacian().tolist()
        [[1.0, -1.0], [-1.0, 1.0]]
        """
        adjacency = self.adjacency()
        return np.asarray(np.diag(adjacency.sum(axis=1)) - adjacency)

    def cut(self, size: int) -> tuple[str, ...] | None:
        """At most `size` names whose removal disconnects the others, or leaves only one; None if there are no such names.

        The graph is (size + 1)-connected exactly when this is None. Even (1975): let k = size + 1. There is no such cut if
        two conditions hold. (1) Any two of v_1..v_k are adjacent or joined by k vertex-disjoint paths. (2) Each later v_j has k
        paths to k different vertices among v_1..v_{j-1}, with only v_j in common.

        Proof. Suppose that removing X, of fewer than k vertices, leaves A and B with no edge between them. The first k vertices
        are not all in X, and by (1) not on both sides. Say they are in A and X. The first v_j in B has k disjoint paths to A and
        X. Each goes through a different member of X, but X has fewer than k.

        >>> Graph.named("ring", "abcdef").cut(1) is None, Graph.named("ring", "abcdef").cut(2)
        (True, ('b', 'f'))
        """
        require(size >= 0, f"size must not be negative, got {size}")
        if len(self.names) <= size + 1:
            return self.names[1:]
        if not self.connected:
            return ()
        for name in self.names:
            # A peer with few neighbours is cut off by removing them.
            if len(self._near[name]) <= size:
                return self._near[name]
        if size <= 1 and all(len(others) == 2 for others in self._near.values()):
            # A single ring: the search below would walk around it once for every peer.
            return None
        positions = {name: i for i, name in enumerate(self.names)}
        # In the order of distance every peer but the first has a neighbour among those before it.
        order = [positions[name] for name in self.distances(self.names[0])]
        near = [[positions[other] for other in self._near[name]] for name in self.names]
        vertices = separator(near, order, size + 1)
        return None if vertices is None else tuple(self.names[i] for i in sorted(vertices))

    def _eccentricities(self) -> list[int]:
        """For each name, in order, the largest distance to another: balls grow by one edge at a time, as sets of bits."""
        groups = self.components()
        require(len(groups) == 1, f"the graph must be connected; it has {len(groups)} groups, one of them with {groups[-1][0]!r}")
        positions = {name: i for i, name in enumerate(self.names)}
        near = [[positions[other] for other in self._near[name]] for name in self.names]
        balls = [1 << i for i in range(len(near))]
        everybody = (1 << len(near)) - 1
        furthest = [0 if ball == everybody else -1 for ball in balls]
        for radius in range(1, len(near)):
            if -1 not in furthest:
                break
            # One whole number per peer: a union of a thousand peers is then a single operation.
            balls = [reduce(or_, (balls[other] for other in near[i]), balls[i]) for i in range(len(near))]
            furthest = [radius if far < 0 and ball == everybody else far for far, ball in zip(furthest, balls, strict=True)]
        return furthest


def _require_names(names: tuple[str, ...]) -> None:
    require(len(names) > 0, "names must have at least one name")
    unique: set[str] = set()
    for name in names:
        require(isinstance(name, str) and name != "", f"names must be text and not empty, got {name!r}")
        require(name not in unique, f"names must differ: {name!r} is listed twice")
        unique.add(name)


def _placed(edge: tuple[str, str], positions: Mapping[str, int]) -> tuple[int, int]:
    """The positions of an edge's two ends among the names."""
    if len(edge) != 2:
        raise ValueError(f"an edge must have two ends, got {edge}")
    first, second = edge
    if first not in positions or second not in positions:
        raise ValueError(f"the edge {edge} has an end that is not among the names: {second if first in positions else first!r}")
    if first == second:
        raise ValueError(f"the edge {edge} connects a peer to itself")
    return positions[first], positions[second]


def _ends(line: str, where: str, aliases: Mapping[str, str] | None) -> tuple[str, str] | None:
    """The two names on a line of an edge list, or None for an empty line; `aliases` maps each word to a name."""
    text = line.partition("#")[0].strip()
    if not text:
        return None
    mark = next((mark for mark in ",\t" if mark in text), None)
    ends = [word.strip() for word in text.split(mark)]
    require(len(ends) == 2 and all(ends), f"{where}: an edge must be two names, got {text!r}")
    if aliases is not None:
        for word in ends:
            require(word in aliases, f"{where}: {word!r} is not among the names")
        ends = [aliases[word] for word in ends]
    require(ends[0] != ends[1], f"{where}: an edge from {ends[0]!r} to itself")
    return ends[0], ends[1]


def _grid(m: int) -> list[tuple[int, int]]:
    # The square root rounded up, in whole numbers: the last row is the one that may be short.
    across = math.isqrt(m - 1) + 1
    along = [(i, i + 1) for i in range(m - 1) if (i + 1) % across]
    return along + [(i, i + across) for i in range(m - across)]


_KINDS: dict[str, Callable[[int], list[tuple[int, int]]]] = {
    "ring": lambda m: [(i, (i + 1) % m) for i in range(m)] if m > 1 else [],
    "path": lambda m: [(i, i + 1) for i in range(m - 1)],
    "grid": _grid,
    "star": lambda m: [(0, i) for i in range(1, m)],
    "complete": lambda m: [(i, j) for i in range(m) for j in range(i + 1, m)],
}


def _random_regular(names: tuple[str, ...], degree_text: str, seed: int) -> Graph:
    """A circulant with its names shuffled and its edges swapped at random, which keeps degrees.

    The circulant is by Harary (1962): removing fewer than `degree` peers does not disconnect it. Random swaps nearly always
    keep that. If none of a few tries does, the shuffled circulant is used: this always ends.
    """
    m = len(names)
    require(
        degree_text.isascii() and degree_text.isdecimal(),
        f"random-regular: needs a number of neighbours after the colon, got {degree_text!r}",
    )
    degree = int(degree_text)
    require(degree < m, f"random-regular: {m} peers can have at most {m - 1} neighbours each, got {degree}")
    require(
        degree * m % 2 == 0,
        f"random-regular: an odd number of peers, {m}, can only have an even number of neighbours each, got {degree}",
    )
    require(
        degree >= 2 or m <= degree + 1, f"random-regular: {m} peers need at least 2 neighbours each to be connected, got {degree}"
    )
    rng = np.random.default_rng(seed)
    shuffled = [int(i) for i in rng.permutation(m)]
    # An odd degree adds the opposite peer, which exists only for an even number of peers.
    steps = [*range(1, degree // 2 + 1), *([m // 2] if degree % 2 else [])]
    edges = sorted({tuple(sorted((i, (i + step) % m))) for step in steps for i in range(m)})
    circulant = [(shuffled[i], shuffled[j]) for i, j in edges]
    ends = circulant
    for _ in range(_TRIES):
        ends = _swapped(ends, rng)
        graph = Graph._of_places(names, ends)
        if degree < 1 or graph.cut(degree - 1) is None:
            return graph
    return Graph._of_places(names, circulant)


def _swapped(edges: list[tuple[int, int]], rng: "np.random.Generator") -> list[tuple[int, int]]:
    """Other edges of the same degrees: a-b and c-d become a-d and c-b, where neither of these is an edge yet."""
    edges = list(edges)
    present = {frozenset(edge) for edge in edges}
    count = min(_SWAPS * len(edges), _MOST_SWAPS)
    for first, second, keep in zip(
        rng.integers(max(len(edges), 1), size=count).tolist(),
        rng.integers(max(len(edges), 1), size=count).tolist(),
        rng.integers(2, size=count).tolist(),
        strict=True,
    ):
        # Two edges can be swapped in two ways, and both must be possible.
        (a, b), (c, d) = edges[first], edges[second] if keep else edges[second][::-1]
        left, right = frozenset((a, d)), frozenset((c, b))
        if len({a, b, c, d}) == 4 and left not in present and right not in present:
            present -= {frozenset((a, b)), frozenset((c, d))}
            present |= {left, right}
            edges[first], edges[second] = (a, d), (c, b)
    return edges


def separator(near: list[list[int]], order: list[int], paths: int) -> set[int] | None:
    """Fewer than `paths` vertices whose removal disconnects a connected graph, or None: the checks of `Graph.cut`, in `order`."""
    first = order[:paths]
    for position, a in enumerate(first):
        for b in first[:position]:
            if b not in near[a]:
                # Disjoint paths to b are paths to different neighbours of b, in the graph without b.
                cut = _fan(near, a, set(near[b]), paths, avoid=b)
                if cut is not None:
                    return cut
    before = set(first)
    for vertex in order[paths:]:
        cut = _fan(near, vertex, before, paths)
        if cut is not None:
            return cut
        before.add(vertex)
    return None


def _fan(near: list[list[int]], source: int, targets: Collection[int], paths: int, avoid: int = -1) -> set[int] | None:
    """None if `paths` paths lead from `source` to as many `targets` with only the source in common, else a vertex cut.

    Ford and Fulkerson (1956) with each vertex split into its entry and its exit, between which one path can pass. A search that
    finds no further path has reached the entries, but not the exits, of as many vertices as there are paths: these are the cut.
    """
    # The previous vertex on the path through each vertex; vertices without an entry are free.
    back: dict[int, int] = {}
    for _ in range(paths):
        # States are 2v, the entry of v, and 2v + 1, its exit; `came` says from which state each was reached.
        came = {2 * source + 1: -1}
        queue, end = [2 * source + 1], -1
        for state in queue:
            vertex = state >> 1
            if state & 1:
                # An edge may be used twice, because only vertices are in the cut.
                steps = [2 * other for other in near[vertex] if other not in (source, avoid)]
                steps += [state - 1] if vertex in back else []
            else:
                # A used vertex can be entered only to go back along its path; a free one can be passed.
                steps = [2 * back[vertex] + 1] if vertex in back else [state + 1]
            for step in steps:
                if step not in came:
                    came[step] = state
                    queue.append(step)
            end = next((step for step in steps if not step & 1 and step >> 1 in targets and step >> 1 not in back), -1)
            if end >= 0:
                break
        if end < 0:
            return {state >> 1 for state in came if not state & 1 and state + 1 not in came}
        path = [end]
        while came[path[-1]] >= 0:
            path.append(came[path[-1]])
        moves = [(earlier, other) for other, earlier in itertools.pairwise(path) if earlier >> 1 != other >> 1]
        # Moves from an entry to an exit run against an earlier path and undo that part of it.
        for entry, _exit in moves:
            if not entry & 1:
                del back[entry >> 1]
        back |= {entry >> 1: leave >> 1 for leave, entry in moves if leave & 1}
    return None
