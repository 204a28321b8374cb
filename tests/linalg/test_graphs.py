"""Graphs against slow, obvious versions: distances, groups, cuts by trying all removals; and files and names that are refused."""

import copy
import itertools
import pickle
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from each import each
from eigenveil.linalg.graphs import Graph, separator

KINDS = ["ring", "path", "grid", "star", "complete"]


def named(m: int) -> tuple[str, ...]:
    return tuple(f"p{i}" for i in range(m))


@st.composite
def graphs(draw: st.DrawFn, most: int = 8, *, least: int = 1) -> Graph:
    """Any graph of a few peers, sparse or dense, their names in any order."""
    m = draw(st.integers(least, most))
    names = draw(st.permutations(named(m)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    density = draw(st.sampled_from([0.15, 0.4, 0.6, 0.85, 1.0]))
    edges = [pair for pair in itertools.combinations(names, 2) if rng.random() < density]
    return Graph.of(names, [pair[:: int(rng.choice([-1, 1]))] for pair in edges])  # type: ignore[misc]


def slow_distances(graph: Graph) -> dict[tuple[str, str], float]:
    """Floyd and Warshall."""
    away = {(a, b): 0.0 if a == b else np.inf for a in graph.names for b in graph.names}
    for a, b in graph.edges:
        away[a, b] = away[b, a] = 1.0
    for via, a, b in itertools.product(graph.names, repeat=3):
        away[a, b] = min(away[a, b], away[a, via] + away[via, b])
    return away


def slow_cut(graph: Graph, size: int) -> bool:
    """Whether some removal of at most `size` peers leaves the others in groups, or alone."""
    for count in range(min(size, len(graph.names) - 1) + 1):
        for gone in itertools.combinations(graph.names, count):
            left = graph.without(gone)
            if len(left.names) == 1 or np.inf in slow_distances(left).values():
                return True
    return False


@given(graphs())
def test_distances_groups_and_ways_are_those_of_the_slow_version(graph: Graph) -> None:
    away = slow_distances(graph)
    for a in graph.names:
        assert graph.distances(a) == {b: away[a, b] for b in graph.names if away[a, b] < np.inf}
        for b in graph.names:
            if a != b and away[a, b] < np.inf:
                hop = graph.next_hop(a, b)
                assert hop == next(n for n in graph.names if away[a, n] == 1 and away[n, b] == away[a, b] - 1)
            elif a != b:
                with pytest.raises(ValueError, match="no path"):
                    graph.next_hop(a, b)
    groups = graph.components()
    assert sorted(itertools.chain(*groups)) == sorted(graph.names)
    assert [len(group) for group in groups] == sorted((len(group) for group in groups), reverse=True)
    assert all((away[a, b] < np.inf) == any(a in g and b in g for g in groups) for a in graph.names for b in graph.names)
    assert graph.connected == (len(groups) == 1)
    if graph.connected:
        assert graph.diameter == max(away.values())
    else:
        with pytest.raises(ValueError, match="must be connected"):
            _ = graph.diameter


@given(graphs())
def test_a_tree_spans_by_shortest_ways_from_a_center(graph: Graph) -> None:
    if not graph.connected:
        with pytest.raises(ValueError, match="must be connected"):
            graph.spanning_tree()
        return
    away = slow_distances(graph)
    furthest = {a: max(away[a, b] for b in graph.names) for a in graph.names}
    tree = graph.spanning_tree()
    assert tree.root == min(graph.names, key=lambda name: furthest[name])
    assert tree.depth == furthest[tree.root]
    assert set(tree.above) == set(graph.names) - {tree.root}
    for name, above in tree.above.items():
        assert away[tree.root, above] == away[tree.root, name] - 1
        assert above in graph.neighbours(name)
        assert name in tree.below[above]
    assert set(tree.below) == set(graph.names)
    assert sum(map(len, tree.below.values())) == len(graph.names) - 1


@settings(max_examples=400)
@given(graphs(), st.integers(0, 5))
def test_a_cut_is_found_exactly_where_some_removal_is_one(graph: Graph, size: int) -> None:
    cut = graph.cut(size)
    assert (cut is not None) == slow_cut(graph, size)
    if cut is not None:
        assert len(cut) == len(set(cut)) <= size
        left = graph.without(cut)
        assert len(left.names) == 1 or not left.connected


@settings(max_examples=400)
@given(graphs(least=3), st.integers(1, 4), st.integers(0, 2**32))
def test_the_search_for_ways_finds_what_stands_between_without_looking_at_degrees(graph: Graph, size: int, seed: int) -> None:
    """The same question, past the quick answers, and with the vertices in any order."""
    if not graph.connected or len(graph.names) <= size + 1:
        return
    near = [[graph.names.index(other) for other in graph.neighbours(name)] for name in graph.names]
    order = np.random.default_rng(seed).permutation(len(near)).tolist()
    found = separator(near, order, size + 1)
    assert (found is not None) == slow_cut(graph, size)
    if found is not None:
        assert len(found) <= size
        assert not graph.without(graph.names[i] for i in found).connected


def test_cuts_of_larger_graphs_take_a_path_apart_where_it_is_thin() -> None:
    """Two complete graphs that share three vertices: no degree is small, and those three are the only cut."""
    names = named(43)
    left, right = names[:23], names[20:]
    graph = Graph.of(names, [*itertools.combinations(left, 2), *itertools.combinations(right, 2)])
    assert graph.cut(2) is None
    assert graph.cut(3) == names[20:23]
    # With an edge past them there is still a cut, of one more.
    more = Graph.of(names, [*graph.edges, (names[0], names[42])])
    assert more.cut(3) is None
    cut = more.cut(4)
    assert cut is not None
    assert not more.without(cut).connected


@given(graphs())
def test_matrices_agree_with_edges(graph: Graph) -> None:
    adjacency, laplacian = graph.adjacency(), graph.laplacian()
    for (i, a), (j, b) in itertools.product(enumerate(graph.names), repeat=2):
        assert adjacency[i, j] == (b in graph.neighbours(a))
        assert laplacian[i, j] == (graph.degree(a) if i == j else -adjacency[i, j])


@given(graphs())
def test_a_graph_is_one_value_however_it_was_given(graph: Graph) -> None:
    again = Graph.of(graph.names, [*reversed(graph.edges), *((b, a) for a, b in graph.edges)])
    assert again == graph
    assert hash(again) == hash(graph)
    for other in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):  # noqa: S301
        assert other == graph
        assert other.neighbours(graph.names[0]) == graph.neighbours(graph.names[0])
    place = {name: i for i, name in enumerate(graph.names)}
    for name in graph.names:
        found = [place[other] for other in graph.neighbours(name)]
        assert found == sorted(found)


@each("m", range(1, 14))
@each("kind", KINDS)
def test_kinds_are_connected_and_of_the_right_shape(kind: str, m: int) -> None:
    graph = Graph.named(kind, named(m))
    assert graph.names == named(m)
    assert graph.connected
    across = int(np.ceil(np.sqrt(m)))
    expected = {
        "ring": m if m > 2 else m - 1,
        "path": m - 1,
        "star": m - 1,
        "complete": m * (m - 1) // 2,
        "grid": (m - across) + m - int(np.ceil(m / across)),
    }
    assert len(graph.edges) == expected[kind]
    if kind == "star" and m > 1:
        assert graph.degree("p0") == m - 1
    if kind == "grid":
        assert max(graph.degree(name) for name in graph.names) <= 4
        assert graph.diameter <= 2 * across - 2


@each(("m", "degree"), [(1, 0), (2, 1), (3, 2), (8, 3), (8, 7), (9, 4), (20, 2), (31, 6), (60, 59)])
@each("seed", range(5))
def test_random_regular_graphs_are_as_connected_as_their_degree(m: int, degree: int, seed: int) -> None:
    graph = Graph.named(f"random-regular:{degree}", named(m), seed=seed)
    assert {graph.degree(name) for name in graph.names} == {degree}
    assert graph.connected
    assert degree == 0 or graph.cut(degree - 1) is None
    assert graph == Graph.named(f"random-regular:{degree}", named(m), seed=seed)


def test_random_regular_graphs_differ_by_seed_and_are_far_from_the_ring() -> None:
    drawn = {Graph.named("random-regular:4", named(100), seed=seed) for seed in range(10)}
    assert len(drawn) == 10
    # The circulant that they start from has a diameter of 25, a random one of about log(100) / log(3).
    assert max(graph.diameter for graph in drawn) <= 8


def test_graphs_of_a_thousand_are_quick() -> None:
    start = time.perf_counter()
    for kind in ("ring", "path", "random-regular:4"):
        graph = Graph.named(kind, named(1000))
        assert graph.spanning_tree().depth <= 500
    assert Graph.named("random-regular:8", named(256)).cut(3) is None
    # A second or so on a slow machine; what is quadratic by mistake takes minutes.
    assert time.perf_counter() - start < 20


def test_edge_lists_are_read(tmp_path: Path) -> None:
    path = tmp_path / "edges"
    path.write_text("# talk\nann bob\n\nbob\tcy lee   # far away\ncy lee,  ann\r\nann,bob\n", encoding="utf-8-sig")
    assert Graph.read(path) == Graph.of(("ann", "bob", "cy lee"), [("ann", "bob"), ("bob", "cy lee"), ("ann", "cy lee")])
    more = Graph.read(str(path), ["zoe", "cy lee", "bob", "ann"])
    assert more.names[0] == "zoe"
    assert more.degree("zoe") == 0
    path.write_text("0 1\n1 2\n")
    assert Graph.read(path, ["x", "y", "z"]).edges == (("x", "y"), ("y", "z"))
    # Names that are numbers are names, and the others are still counted.
    assert Graph.read(path, ["1", "0", "z"]).edges == (("1", "0"), ("1", "z"))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a b\na b c\n", "line 2: an edge must be two names"),
        ("a\n", "line 1"),
        ("a,\n", "line 1"),
        ("a,b,c\n", "line 1"),
        ("a b\n\nb b\n", "line 3: an edge from 'b' to itself"),
        ("# nothing\n", "no edge"),
    ],
)
def test_bad_edge_lists_are_refused_by_line(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "edges"
    path.write_text(text)
    with pytest.raises(ValueError, match=match) as caught:
        Graph.read(path)
    assert str(path) in str(caught.value)


def test_edge_lists_with_strangers_or_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "edges"
    path.write_text("a b\na 7\n")
    with pytest.raises(ValueError, match="line 2: '7' is not among"):
        Graph.read(path, ["a", "b"])
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="UTF-8"):
        Graph.read(path)
    with pytest.raises(FileNotFoundError):
        Graph.read(tmp_path / "none")
    path.write_text("# nobody talks\n")
    assert Graph.read(path, ["a", "b"]).edges == ()
