"""What passed through a port, counted: plain integers, read by whoever publishes them.

Nothing is looked up and nothing is labelled while a request passes; a collector reads these at the
moment somebody asks.
"""

from __future__ import annotations


class Statistics:
    """The counters of one target."""

    __slots__ = (
        "active", "broken", "by_class", "connections", "held", "received", "refused", "requests",
        "sent", "tunnels", "undecided",
    )  # fmt: skip

    def __init__(self) -> None:
        # Gauges: client connections, requests on their way, of them held, byte tunnels, and
        # connections of which it is not known yet whether they become one.
        self.connections = 0
        self.active = 0
        self.held = 0
        self.tunnels = 0
        self.undecided = 0
        # Counters: requests, final responses by the first digit of their status (ours and the
        # pods'; over h2 only ours), answers cut short, connections turned away at the limit, bytes
        # from and to clients.
        self.requests = 0
        self.by_class = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        self.broken = 0
        self.refused = 0
        self.received = 0
        self.sent = 0

    @property
    def in_use(self) -> int:
        """How much is under way: requests, tunnels, and connections that may become one.

        Not connections that rest between two requests: clients keep those for minutes, and whoever
        uses one again is held like a new one.
        """
        return self.active + self.tunnels + self.undecided

    def __repr__(self) -> str:
        return (
            f"<Statistics {self.requests} requests, {self.active} active, {self.held} held,"
            f" {self.connections} connections, {self.tunnels} tunnels>"
        )
