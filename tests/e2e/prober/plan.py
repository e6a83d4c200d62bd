"""What a prober is told, and what it tells: values that go between two processes."""

from __future__ import annotations

import enum
from pathlib import Path

import msgspec


class Fault(enum.Enum):
    """What became of a request that was lost."""

    NONE = ""
    REFUSED = "refused"
    RESET = "reset"
    TIMEOUT = "timeout"
    STATUS = "5xx"
    BODY = "wrong body"
    TWICE = "executed twice"
    OWN = "never sent"
    """The prober had no descriptor or port left: nobody else's fault, and no figure of anything."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How to load some Services. Times in seconds; `limit` ends the sending by itself."""

    targets: tuple[tuple[str, int], ...]
    records: str
    run: str
    rate: float = 0.0
    limit: int | None = None
    timeout: float = 400.0
    idle: int = 16
    """How many connections a target's pool keeps for reuse."""
    reuse: bool = True
    """Half of the requests go over kept connections; without it, each opens its own."""
    host: str = ""
    """The Host header, where it is not the target's address."""


class Record(msgspec.Struct, array_like=True, kw_only=True):
    """One request. Moments are of the machine's monotonic clock, the same for every process."""

    id: str
    method: str
    target: int
    reused: bool
    due: float
    sent: float
    answered: float = 0.0
    status: int = 0
    pod: str = ""
    via_resolver: bool = False
    held: float | None = None
    """Seconds, as the resolver says; None where it was not held."""
    fault: Fault = Fault.NONE
    detail: str = ""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a prober says of itself."""

    began: float
    ended: float
    cpu: float
    sent: int

    @property
    def cpu_share(self) -> float:
        """The part of one core that it used."""
        return self.cpu / max(self.ended - self.began, 1e-6)


def read_records(path: Path) -> tuple[Summary, list[Record]]:
    """Read what a prober wrote."""
    first, *rest = path.read_bytes().splitlines()
    decoder = msgspec.json.Decoder(Record)
    return msgspec.json.decode(first, type=Summary), [decoder.decode(line) for line in rest]
