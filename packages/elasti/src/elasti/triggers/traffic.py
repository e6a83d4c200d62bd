"""Triggers that see what arrives: near the end of the cooldown the resolver looks, beside the pods.

The look is the hand-over's: the state Engaging begins early by the window, with pods and resolver both in
rotation, and whatever the resolver gets ends it and begins the cooldown again. Here is only what outlives a
look: whether something reached the resolver since the last reading.

It sees a share of new connections, and none that was there before: a connection that is open, or kept alive,
stays with its pod.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

from elasti.api.triggers.cluster import TrafficMetadata
from elasti.triggers.reader import ReadContext, ReaderSettings, TriggerReader, TriggerReading


class TrafficReader(TriggerReader):
    """Remembers, by trigger, the last arrival that was counted."""

    def __init__(self, _settings: ReaderSettings) -> None:
        self._counted: dict[Hashable, float] = {}

    async def read(self, metadata: TrafficMetadata, context: ReadContext) -> TriggerReading:
        """Return 1 if something arrived since the last reading, else 0.

        What reaches a sleeping target's resolver wakes it by itself.
        """
        before = self._counted.get(context.key, -math.inf)
        self._counted[context.key] = context.last_arrival
        return TriggerReading(float(context.last_arrival > before and not context.asleep))

    def forget(self, key: Hashable) -> None:
        """Drop the state of a trigger."""
        self._counted.pop(key, None)


make_reader = TrafficReader
