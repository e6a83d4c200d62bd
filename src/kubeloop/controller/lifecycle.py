"""In which order things start and stop, as data, with the reasons beside it."""

from __future__ import annotations

import enum


class Group(enum.Enum):
    """What is started and stopped together. The order of the members is the order of the start.

    A group is started when everything in the groups before it is ready.
    """

    # Hears of everything, from the first thing to the last.
    RECORDERS = "recorders"
    # Health and metrics: probes want answers while the caches still fill, or we are restarted.
    SERVERS = "servers"
    # Conversion webhooks of our own must answer before a cache lists what they convert.
    WEBHOOKS = "webhooks"
    # Whatever follows reads from them, and must not judge by half a cache.
    CACHES = "caches"
    # Works on every replica, leader or not.
    OTHERS = "others"
    # Gets controllers ready on standbys, so that a new leader begins at once.
    WARMUP = "warmup"
    # Only on the leader; waits for the election, which itself begins when all else has started.
    LEADER = "leader"


STOP_ORDER: tuple[tuple[Group, ...], ...] = (
    # What brings new work ends first, both at the same time.
    (Group.WARMUP, Group.OTHERS),
    # The leader finishes what it is at, with caches and the lease still there.
    (Group.LEADER,),
    # Nobody reads any more.
    (Group.CACHES,),
    (Group.WEBHOOKS,),
    # Health and metrics to the last: we are alive while we stop, and probes should see that.
    (Group.SERVERS,),
)
"""Stages of the stop, in order. After them the lease is released, not before: the next leader must
not begin while ours still works."""

LAST_TO_STOP: tuple[Group, ...] = (
    # Events of the stop itself, and of the release, should still be written.
    Group.RECORDERS,
)
