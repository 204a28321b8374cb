"""Which process this is: what may be spent or published once belongs to the process that began it, and not to its forks."""

import os

__all__ = ["this_process"]


class _Line:
    """How many forks lie between this process and the first one that loaded this module."""

    forks = 0


def _count_fork() -> None:
    _Line.forks += 1


os.register_at_fork(after_in_child=_count_fork)


def this_process() -> tuple[int, int]:
    """What is the same whenever this process asks, and another in each of its forks, and theirs.

    An id alone is not: the kernel gives the id of a dead process away again, and a grandchild may receive its ancestor's. The id
    is part of it for forks that Python does not see.
    """
    return _Line.forks, os.getpid()
