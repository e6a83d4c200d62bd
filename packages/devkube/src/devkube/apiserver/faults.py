"""Faults on demand, so that clients can be tested against a server that misbehaves.

Not part of the Kubernetes API: `/_dev/faults`, for administrators on the machine itself. A fault is
an answer (429, 500, 503, ...) or a delay, for a number of requests or for a time, for all requests or
those whose path begins in a certain way. `drop_watches` and `compact` act once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from devkube.apiserver import status
from devkube.apiserver.calls import Attributes
from devkube.apiserver.storage import ObjectStore
from kubeloop.objects.meta import JsonObject

_REASONS = {429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}
FAULTS_PATH = "/_dev/faults"
C = TypeVar("C", bound=msgspec.Struct)


class InjectedFault(msgspec.Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """One standing fault. Without `count` and `seconds` it stays until it is cleared.

    `code` 0 only delays; `delay` -1 stalls until the fault is gone.
    """

    code: int = 0
    retry_after: int | None = None
    count: int | None = None
    seconds: float | None = None
    delay: float = 0.0
    verb: str = ""
    path: str = ""
    until: float = 0.0


class FaultCommand(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The body of `POST /_dev/faults`."""

    add: InjectedFault | None = None
    clear: bool = False
    drop_watches: bool = False
    compact: bool = False


def read_command(body: bytes, kind: type[C]) -> C:
    """Read the body of a request; an empty one commands nothing. 400 for anything else."""
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except msgspec.MsgspecError as error:
        raise status.bad_request(f"the command cannot be read: {error}") from error


class FaultInjector:
    """The faults that stand, and the watches that can be dropped."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._standing: list[InjectedFault] = []
        self._changed = asyncio.Event()
        self._drop = asyncio.Event()
        self._watches = 0
        #: How many watches were dropped since the start.
        self.dropped = 0

    @contextlib.contextmanager
    def watching(self) -> Iterator[asyncio.Event]:
        """Count a watch as open during the block; the event is set when it must end."""
        self._watches += 1
        try:
            yield self._drop
        finally:
            self._watches -= 1

    def drop_watches(self) -> None:
        """End every open watch."""
        self.dropped += self._watches
        self._drop.set()
        self._drop = asyncio.Event()
        for collection in self._store.collections():
            collection.log.wake()

    def compact(self) -> None:
        """Forget the history."""
        self._store.compact()

    def add(self, fault: InjectedFault) -> None:
        """Let a fault stand from now on."""
        if fault.seconds is not None:
            fault.until = asyncio.get_running_loop().time() + fault.seconds
        self._standing.append(fault)
        self._wake()

    def clear(self) -> None:
        """Be well again."""
        self._standing.clear()
        self._wake()

    def command(self, body: bytes) -> JsonObject:
        """Obey a command; returns what stands afterwards."""
        command = read_command(body, FaultCommand)
        if command.clear:
            self.clear()
        if command.drop_watches:
            self.drop_watches()
        if command.compact:
            self.compact()
        if command.add is not None:
            self.add(command.add)
        standing = [msgspec.to_builtins(fault) for fault in self._standing]
        return {"standing": standing, "droppedWatches": self.dropped}

    async def inject(self, attributes: Attributes) -> None:
        """Return when the request may go on, or raise the fault that it meets."""
        if not self._standing or attributes.path.startswith("/_dev/"):
            return
        fault = self._meets(attributes)
        if fault is None:
            return
        if fault.delay:
            await self._delay(fault)
        if fault.code:
            reason = _REASONS.get(fault.code, "InternalError")
            raise status.failure(
                fault.code, reason, "fault injected for a test", retry_after=fault.retry_after
            )

    def _meets(self, attributes: Attributes) -> InjectedFault | None:
        now = asyncio.get_running_loop().time()
        self._standing = [fault for fault in self._standing if not fault.until or fault.until > now]
        for fault in self._standing:
            if attributes.path.startswith(fault.path) and fault.verb in ("", attributes.verb):
                if fault.count is not None:
                    fault.count -= 1
                    if fault.count <= 0:
                        self._standing.remove(fault)
                return fault
        return None

    async def _delay(self, fault: InjectedFault) -> None:
        if fault.delay > 0:
            await asyncio.sleep(fault.delay)
            return
        while fault in self._standing:
            await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
