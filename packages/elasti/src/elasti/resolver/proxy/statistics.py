"""Traffic counters of a Service: plain numbers that are read when they are scraped.

While a request passes, nothing is looked up by name and nothing is labelled. Response times are measured from
the request's head to the response's head, so that a long stream does not look slow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from kubeloop.metrics.text import Histogram

# Seconds; those of KubeElasti are among them.
ANSWER_BOUNDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
HOLD_BOUNDS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
# Outcomes of held connections that have no HTTP status.
SERVED_TCP, REFUSED_TCP, LEFT, SHOWN_PAGE = "tcp", "refused", "left", "page"
SERVED, CLIENT_GONE = "served", "client_gone"

Kind = TypeVar("Kind")


class LatencyHistograms(dict[Kind, Histogram]):
    """One histogram for each kind, made on its first use."""

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
        "active", "answers", "broken", "connections", "held", "holds", "outcomes", "received",
        "refused", "requests", "sent", "trace", "tunnels", "undecided",
    )  # fmt: skip

    def __init__(self) -> None:
        # Gauges: client connections; active requests, and those of them that are held; tunnels; and
        # connections that may become a tunnel.
        self.connections = 0
        self.active = 0
        self.held = 0
        self.tunnels = 0
        self.undecided = 0
        # Counters: requests; responses cut short; connections refused at a limit; bytes from and to clients.
        self.requests = 0
        self.broken = 0
        self.refused = 0
        self.received = 0
        self.sent = 0
        # Final responses, of pods and our own, by the first digit of their status.
        self.answers: LatencyHistograms[int] = LatencyHistograms(ANSWER_BOUNDS)
        # How long connections were held, by outcome: `2xx`, or one of the words above.
        self.holds: LatencyHistograms[str] = LatencyHistograms(HOLD_BOUNDS)
        # What became of them: `SERVED`, `CLIENT_GONE`, or the outcome of a `Refusal`.
        self.outcomes: Counter[str] = Counter()
        # Makes a span of a hold: its `traceparent`, its begin on the loop's clock, its seconds, its outcome.
        self.trace: Callable[[bytes, float, float, str], None] | None = None

    @property
    def in_use(self) -> int:
        """How many requests, tunnels and connections that may become a tunnel are active.

        Idle connections do not count: clients keep them for minutes, and a request on one of them is held like
        a request on a new connection.
        """
        return self.active + self.tunnels + self.undecided

    def answered(self, status: int) -> int:
        """How many responses had a status of this class."""
        histogram = self.answers.get(status // 100)
        return 0 if histogram is None else histogram.count

    def hold_ended(
        self, how: int | str, seconds: float, outcome: str, *, since: float, parent: bytes = b""
    ) -> None:
        """Count a held request or connection: the status of its response, or one of the words above."""
        if self.trace is not None:
            self.trace(parent, since, seconds, outcome)
        self.holds[how if isinstance(how, str) else f"{how // 100}xx"].add(seconds)
        self.outcomes[outcome] += 1

    def __repr__(self) -> str:
        return (
            f"<TrafficStatistics {self.requests} requests, {self.active} active, {self.held} held,"
            f" {self.connections} connections, {self.tunnels} tunnels>"
        )
