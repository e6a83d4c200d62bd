"""What happened in a run: a history for the checker, and a trace that is the same for the same seed."""

from __future__ import annotations

import hashlib
from collections import defaultdict

import msgspec

from tests.history.events import Event


class Books:
    """Written by everyone, read at the end."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.trace: list[str] = []
        self._served: defaultdict[str, list[float]] = defaultdict(list)

    def note(self, event: Event) -> None:
        """Write an event down."""
        self.events.append(event)
        self.trace.append(msgspec.json.encode(event).decode())

    def say(self, at: float, line: str) -> None:
        """Write a line into the trace alone."""
        self.trace.append(f"{at:.6f} {line}")

    def served(self, app: str, at: float) -> None:
        """An app executes a request."""
        self._served[app].append(at)

    def rate(self, app: str, now: float, span: float = 5.0) -> float:
        """Return an app's requests a second of late."""
        return sum(now - span < at <= now for at in self._served[app]) / span

    def digest(self) -> str:
        """Return a fingerprint of the trace."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()[:16]
