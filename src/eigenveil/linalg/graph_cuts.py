"""Which few vertices take a graph apart, by ways with nobody in common. Graphs here are lists of neighbours by number."""

import itertools
from collections.abc import Collection

__all__ = ["separator"]


def separator(near: list[list[int]], order: list[int], ways: int) -> set[int] | None:
    """Fewer than `ways` vertices that take a connected graph apart, or None: the checks of `Graph.cut`, in `order`."""
    first = order[:ways]
    for position, a in enumerate(first):
        for b in first[:position]:
            if b not in near[a]:
                # Ways to b with nobody in common are ways to different neighbours of b, in the graph without b.
                found = _fan(near, a, set(near[b]), ways, avoid=b)
                if found is not None:
                    return found
    before = set(first)
    for vertex in order[ways:]:
        found = _fan(near, vertex, before, ways)
        if found is not None:
            return found
        before.add(vertex)
    return None


def _fan(near: list[list[int]], source: int, targets: Collection[int], ways: int, avoid: int = -1) -> set[int] | None:
    """None if `ways` paths lead from `source` to as many `targets` with only the source in common, else who stands between.

    Ford and Fulkerson (1956) with each vertex split in two, between which one path can pass: its entry and its exit. A
    search that finds no further path has seen the entries, but not the exits, of as many vertices as there are paths: who
    stands between.
    """
    # From whom the path comes that passes a vertex; whoever is not here is free.
    back: dict[int, int] = {}
    for _ in range(ways):
        # States are 2v, the entry of v, and 2v + 1, its exit; `came` says from which state each was reached.
        came = {2 * source + 1: -1}
        queue, end = [2 * source + 1], -1
        for state in queue:
            vertex = state >> 1
            if state & 1:
                # A way may be used twice, as only vertices can stand between.
                steps = [2 * other for other in near[vertex] if other not in (source, avoid)]
                steps += [state - 1] if vertex in back else []
            else:
                # A used vertex can be entered only to turn back the path that came in; a free one can be passed.
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
        way = [end]
        while came[way[-1]] >= 0:
            way.append(came[way[-1]])
        moves = [(one, other) for other, one in itertools.pairwise(way) if one >> 1 != other >> 1]
        # Moves from an entry to an exit go against a path, and undo that much of it.
        for entry, _exit in moves:
            if not entry & 1:
                del back[entry >> 1]
        back |= {entry >> 1: leave >> 1 for leave, entry in moves if leave & 1}
    return None
