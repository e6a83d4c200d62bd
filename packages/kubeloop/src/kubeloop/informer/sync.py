"""Waiting until caches are filled, without polling and without waiting indefinitely.

A `SyncGate` is open (synced), shut (not yet) or stopped (never). Waiters of a gate that
stops learn it at once: an informer that died must not leave a waiter hanging.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Mapping


class SyncGate:
    """One thing that becomes synced once, or never."""

    __slots__ = ("_open", "_settled", "cause", "name", "trouble")

    def __init__(self, name: str) -> None:
        self.name = name
        self.cause: BaseException | None = None
        self.trouble: Exception | None = None
        self._open = False
        self._settled = asyncio.Event()

    @property
    def synced(self) -> bool:
        """Whether it is synced; stays true after a stop."""
        return self._open

    @property
    def settled(self) -> bool:
        """Whether nothing will change from here: synced, or stopped before."""
        return self._settled.is_set()

    def open(self) -> None:
        """Become synced, unless stopped before."""
        if not self._settled.is_set():
            self._open = True
            self._settled.set()

    def stop(self, cause: BaseException | None = None) -> None:
        """Give up if not yet synced; `cause` is why, None for an orderly stop."""
        if not self._settled.is_set():
            self.cause = cause
            self._settled.set()

    def note(self, trouble: Exception) -> None:
        """Remember what is in the way at present, for the message of a timeout."""
        self.trouble = trouble

    async def wait(self) -> bool:
        """Wait until synced (True) or stopped before (False)."""
        await self._settled.wait()
        return self._open

    def __repr__(self) -> str:
        state = "synced" if self._open else "stopped" if self.settled else "waiting"
        return f"<SyncGate {self.name}: {state}>"


class NotSynced(Exception):
    """Some caches did not sync; `result` says which."""

    def __init__(self, result: SyncResult) -> None:
        why = result.cause or "stopped before the sync"
        troubles = "".join(f"; {trouble}" for trouble in result.troubles.values())
        super().__init__(f"not synced: {', '.join(result.unsynced)} ({why}){troubles}")
        self.result = result


@dataclasses.dataclass(frozen=True, slots=True)
class SyncResult:
    """The informers that synced, by name, and why the wait ended if one did not.

    `troubles` has the last failure of each that did not, if there was one.
    """

    synced: Mapping[str, bool]
    cause: BaseException | None = None
    troubles: Mapping[str, Exception] = dataclasses.field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether everything synced."""
        return all(self.synced.values())

    @property
    def unsynced(self) -> tuple[str, ...]:
        """The names of what did not."""
        return tuple(name for name, done in self.synced.items() if not done)

    def check(self) -> None:
        """Raise `NotSynced`, from its cause, unless everything synced."""
        if not self.ok:
            raise NotSynced(self) from self.cause


async def wait_for_gates(gates: Iterable[SyncGate], timeout: float | None = None) -> SyncResult:
    """Wait until every gate is settled, at most `timeout` seconds.

    Never raises on its own account. A gate that opens in the very moment in which the time is up
    counts as synced. A gate that stopped does not end the wait for the others.
    """
    waited = list(gates)
    cause: BaseException | None = None
    try:
        async with asyncio.timeout(timeout):
            for gate in waited:
                await gate.wait()
    except TimeoutError:
        cause = TimeoutError(f"timed out after {timeout} s")
    causes = (gate.cause for gate in waited if gate.cause is not None)
    unsynced = [gate for gate in waited if not gate.synced]
    return SyncResult(
        {gate.name: gate.synced for gate in waited},
        next(causes, cause),
        {gate.name: gate.trouble for gate in unsynced if gate.trouble is not None},
    )
