"""Triggers that see what arrives: near the end of the cooldown the resolver looks, beside the pods.

The look is the hand-over's: the state Engaging begins early by the window, with pods and resolver both in
rotation, and whatever the resolver gets ends it and begins the cooldown again. Here is only what outlives a
look: whether something reached the resolver since the last reading.

It sees a share of what arrives, and nothing that was there before: a connection that is open, or kept, stays
with its pod.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Annotated

from msgspec import Meta

from elasti.triggers.registry import (
    ReadContext,
    ReaderSettings,
    Threshold,
    TriggerMetadata,
    TriggerReader,
    TriggerReading,
    TriggerType,
)


class TrafficMetadata(TriggerMetadata, frozen=True):
    """Connections that reach the resolver while it is in rotation beside the pods."""

    window_seconds: Annotated[
        int,
        Meta(
            ge=1,
            le=604_800,
            description="How long the resolver looks before a sleep: at most the cooldown, at least the"
            " engage settle; of type traffic.",
        ),
    ] = 300
    network: Annotated[
        bool,
        Meta(
            description="Whether bytes of its pods keep the target awake, too: a network trigger as a Veto,"
            " where the operator may read kubelets; of type traffic."
        ),
    ] = True
    threshold: Threshold = 1

    @property
    def look_seconds(self) -> float:
        """The window."""
        return float(self.window_seconds)

    @property
    def vetoes(self) -> tuple[str, ...]:
        """What sees connections that were there before."""
        return ("network",) if self.network else ()


class TrafficReader(TriggerReader):
    """Remembers, by trigger, the last arrival that was counted."""

    def __init__(self, _settings: ReaderSettings) -> None:
        self._counted: dict[Hashable, float] = {}

    async def read(self, metadata: TrafficMetadata, context: ReadContext) -> TriggerReading:
        """Return 1 where something arrived since the last reading, else 0.

        What reaches a sleeping target's resolver wakes it by itself.
        """
        before = self._counted.get(context.key, -math.inf)
        self._counted[context.key] = context.last_arrival
        return TriggerReading(float(context.last_arrival > before and not context.asleep))

    def forget(self, key: Hashable) -> None:
        """Drop what is kept of a trigger."""
        self._counted.pop(key, None)


TRIGGER = TriggerType(name="traffic", metadata=TrafficMetadata, reader=TrafficReader)
