"""What the operator asks of an API server, as the server itself writes it down.

A kube-apiserver does so in its audit log; the dev cluster's server in this benchmark writes the same
lines (`Clerk`). So watches and writes are counted where they arrive, and not by the one who is under
suspicion.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

OPERATOR_USER = "elasti-operator"
POLICY = f"""\
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: Metadata
  users: ["{OPERATOR_USER}"]
- level: None
"""
RECEIVED, STARTED, COMPLETE = "RequestReceived", "ResponseStarted", "ResponseComplete"
_WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


class _Object(msgspec.Struct, gc=False):
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


class _Answer(msgspec.Struct, gc=False):
    code: int = 0


class _Line(msgspec.Struct, rename="camel", gc=False):
    """What matters of an audit event."""

    stage: str
    verb: str
    stage_timestamp: str
    object_ref: _Object = msgspec.field(default_factory=_Object)
    response_status: _Answer = msgspec.field(default_factory=_Answer)


@dataclass(frozen=True, slots=True)
class Entry:
    """One stage of one request; `at` is in seconds since 1970."""

    at: float
    stage: str
    verb: str
    resource: str
    namespace: str
    name: str
    code: int

    @property
    def is_election(self) -> bool:
        """Whether it is about the lease, which is renewed whatever else happens."""
        return self.resource == "leases"

    @property
    def is_write(self) -> bool:
        """Whether it asks for a change of something else than the lease."""
        return self.verb in _WRITES and not self.is_election


class Ledger:
    """Reads a file that grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""
        self._decoder = msgspec.json.Decoder(_Line)

    def news(self) -> list[Entry]:
        """Return what was written since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [_entry(self._decoder.decode(line)) for line in lines if line]


def watches(entries: Iterable[Entry]) -> int:
    """Count the watches that were opened."""
    return sum(entry.verb == "watch" and entry.stage == STARTED for entry in entries)


def writes(entries: Iterable[Entry]) -> list[Entry]:
    """Return the requests for a change, granted or not, the lease's left out."""
    return [entry for entry in entries if entry.is_write and entry.stage == RECEIVED]


def kinds(entries: Iterable[Entry]) -> dict[str, int]:
    """Count requests by what they ask for, to see what a figure is made of."""
    return dict(Counter(f"{entry.verb} {entry.resource}" for entry in entries))


def requests(entries: Iterable[Entry]) -> int:
    """Count the requests of any kind, the lease's left out."""
    return sum(entry.stage == RECEIVED and not entry.is_election for entry in entries)


def scaled(entries: Iterable[Entry]) -> dict[tuple[str, str], float]:
    """Return when each target's scale was first written, by namespace and name."""
    return {
        (entry.namespace, entry.name): entry.at
        for entry in reversed(list(entries))  # so that the first one stays
        if entry.resource == "deployments/scale"
        and entry.is_write
        and entry.stage == COMPLETE
        and entry.code < 300
    }


class Clerk:
    """Writes the lines that a kube-apiserver would write, for a server that has no audit log."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def note(
        self,
        stage: str,
        verb: str,
        *,
        resource: str,
        subresource: str,
        namespace: str,
        name: str,
        code: int = 0,
    ) -> None:
        """Write one stage of one request."""
        line = _Line(
            stage,
            verb,
            dt.datetime.now(dt.UTC).isoformat(),
            _Object(resource, subresource, namespace, name),
            _Answer(code),
        )
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()


def _entry(line: _Line) -> Entry:
    ref = line.object_ref
    resource = f"{ref.resource}/{ref.subresource}" if ref.subresource else ref.resource
    at = dt.datetime.fromisoformat(line.stage_timestamp).timestamp()
    code = line.response_status.code
    return Entry(at, line.stage, line.verb, resource, ref.namespace, ref.name, code)
