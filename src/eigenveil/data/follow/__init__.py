"""Rows that arrive over time at a small device: a csv file that grows, a folder of files, a pipe; read slot by slot.

Streaming sites call it, and it may import what `data` may. `sources` says what is read and from where. `text_rows` turns lines
into numbers without pyarrow, and `slots` closes slots by count or by clock. There are no threads here, nothing waits, and time
is an argument. `ends` runs `watcher`, a process of its own that notes how far a source reaches when a slot ends by the clock.
"""

from eigenveil.data.follow.slots import (
    ByClock,
    ByCount,
    Closed,
    FollowedRows,
    Follower,
    Instant,
    Left,
    SlotEnd,
    SlotEnds,
    SlotStart,
    WatchedEnds,
)
from eigenveil.data.follow.sources import (
    Followed,
    FollowedFile,
    FollowedFolder,
    FollowedPipe,
    Offset,
    Reach,
    follow,
    require_sized,
)

__all__ = [
    "ByClock",
    "ByCount",
    "Closed",
    "Followed",
    "FollowedFile",
    "FollowedFolder",
    "FollowedPipe",
    "FollowedRows",
    "Follower",
    "Instant",
    "Left",
    "Offset",
    "Reach",
    "SlotEnd",
    "SlotEnds",
    "SlotStart",
    "WatchedEnds",
    "follow",
    "require_sized",
]
