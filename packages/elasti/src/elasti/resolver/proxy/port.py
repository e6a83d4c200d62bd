"""A port as its connections see it. `PortHandler` implements it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from elasti.resolver.proxy.deadlines import DeadlineSweeper
from elasti.resolver.proxy.limits import Limits
from elasti.resolver.proxy.quota import QuotaShare
from elasti.resolver.proxy.statistics import TrafficStatistics
from elasti.resolver.proxy.transport import ReadBuffer
from elasti.resolver.proxy.upstream.interface import PortProtocol, RequestFacts, Upstream
from elasti.resolver.proxy.upstream.pool import UpstreamPool


class Sheddable(Protocol):
    """A connection that may be ended to make room for others."""

    def shed(self) -> bool:
        """End it unless a pod serves it; returns whether it did."""


class Port(Protocol):
    """One port of a Service."""

    upstream: Upstream
    protocol: PortProtocol
    #: On a port that Services share: whether a request is for this upstream.
    accepts: Callable[[RequestFacts], bool] | None
    statistics: TrafficStatistics
    #: The Service's shares of connections to pods, and of memory for held bytes.
    pods: QuotaShare
    memory: QuotaShare
    #: The connections that wait for a pod, in the order in which they came.
    held: dict[Sheddable, None]
    #: The objects that all ports of a worker share.
    limits: Limits
    buffer: ReadBuffer
    now: Callable[[], float]
    pool: UpstreamPool
    sweeper: DeadlineSweeper

    def enters(self, transport: asyncio.Transport) -> None:
        """Count a client's connection."""

    def leaves(self, transport: asyncio.Transport) -> None:
        """Stop counting a client's connection and give its quota back."""
