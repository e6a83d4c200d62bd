"""What passed through the ports of a Service, counted: plain numbers, read when they are published.

Nothing is looked up by name and nothing is labelled while a request passes; a view reads these at the
moment of a scrape. Times of answers go from a request's head to the head of its answer, so that a
stream of hours is not taken for a slow one.
"""

from __future__ import annotations

from typing import TypeVar

from kubeloop.metrics.text import Histogram

# Seconds; those of KubeElasti are among them.
ANSWER_BOUNDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
HOLD_BOUNDS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
# What became of a held connection, where it is no HTTP status.
SERVED_TCP, REFUSED_TCP, LEFT, SHOWN_PAGE = "tcp", "refused", "left", "page"

Kind = TypeVar("Kind")


class LatencyHistograms(dict[Kind, Histogram]):
    """One histogram for each kind of thing, made when it first happens."""

    __slots__ = ("_bounds",)

    def __init__(self, bounds: tuple[float, ...]) -> None:
        super().__init__()
        self._bounds = bounds

    def __missing__(self, kind: Kind) -> Histogram:
        made = self[kind] = Histogram(self._bounds)
        return made


class TrafficStatistics:
    """The counters of one Service."""

    __slots__ = (
        "active", "answers", "broken", "connections", "held", "holds", "received", "refused",
        "requests", "sent", "tunnels", "undecided",
    )  # fmt: skip

    def __init__(self) -> None:
        # Gauges: client connections, requests on their way, of them held, byte tunnels, and
        # connections of which it is not known yet whether they become one.
        self.connections = 0
        self.active = 0
        self.held = 0
        self.tunnels = 0
        self.undecided = 0
        # Counters: requests, answers cut short, connections turned away at the limit, bytes from and
        # to clients.
        self.requests = 0
        self.broken = 0
        self.refused = 0
        self.received = 0
        self.sent = 0
        # Final answers, ours and the pods', by the first digit of their status.
        self.answers: LatencyHistograms[int] = LatencyHistograms(ANSWER_BOUNDS)
        # How long connections were held, by what they got for it: `2xx`, or one of the words above.
        self.holds: LatencyHistograms[str] = LatencyHistograms(HOLD_BOUNDS)

    @property
    def in_use(self) -> int:
        """How much is under way: requests, tunnels, and connections that may become one.

        Not connections that rest between two requests: clients keep those for minutes, and a
        request on one of them is held like one on a new connection.
        """
        return self.active + self.tunnels + self.undecided

    def answered(self, status: int) -> int:
        """How many answers there were of a status' class."""
        histogram = self.answers.get(status // 100)
        return 0 if histogram is None else histogram.count

    def held_until(self, status: int, seconds: float) -> None:
        """Count a request that was held, and got an answer of this status for it."""
        self.holds[f"{status // 100}xx"].add(seconds)

    def __repr__(self) -> str:
        return (
            f"<TrafficStatistics {self.requests} requests, {self.active} active, {self.held} held,"
            f" {self.connections} connections, {self.tunnels} tunnels>"
        )
