"""Small vertex cuts of a graph, by vertex-disjoint paths (Menger). Graphs here are lists of neighbours by number.

`Graph.cut` calls it.
"""

import itertools
from collections.abc import Collection

__all__ = ["separator"]


def separator(near: list[list[int]], order: list[int], paths: int) -> set[int] | None:
    """Fewer than `paths` vertices whose removal disconnects a connected graph, or None: the checks of `Graph.cut`, in `order`."""
    first = order[:paths]
    for position, a in enumerate(first):
        for b in first[:position]:
            if b not in near[a]:
                # Disjoint paths to b are paths to different neighbours of b, in the graph without b.
                found = _fan(near, a, set(near[b]), paths, avoid=b)
                if found is not None:
                    return found
    before = set(first)
    for vertex in order[paths:]:
        found = _fan(near, vertex, before, paths)
        if found is not None:
            return found
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
        moves = [(one, other) for other, one in itertools.pairwise(path) if one >> 1 != other >> 1]
        # Moves from an entry to an exit run against an earlier path and undo that part of it.
        for entry, _exit in moves:
            if not entry & 1:
                del back[entry >> 1]
        back |= {entry >> 1: leave >> 1 for leave, entry in moves if leave & 1}
    return None
