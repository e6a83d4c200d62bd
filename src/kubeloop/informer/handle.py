"""What a caller holds of a registered handler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from kubeloop.informer.listener import Listener
    from kubeloop.informer.sync import SyncGate

T = TypeVar("T")


class Handle(Generic[T]):
    """One registration of a handler; made by `SharedInformer.add_handler`.

    It is *synced* once the informer is and every add of the initial list has returned.
    """

    __slots__ = ("_listener", "_owner")

    def __init__(self, listener: Listener[T], owner: Any) -> None:
        self._listener = listener
        self._owner = owner

    @property
    def name(self) -> str:
        """The handler's name."""
        return self._listener.name

    @property
    def pending(self) -> int:
        """How many notifications wait for the handler."""
        return self._listener.pending

    @property
    def resync_period(self) -> float:
        """The resync period that the handler got, in seconds; 0 is none."""
        return self._listener.period

    @property
    def has_synced(self) -> bool:
        """Whether the handler has seen everything that was there at the beginning."""
        return self._listener.gate.synced

    @property
    def gate(self) -> SyncGate:
        """The same, to be waited for."""
        return self._listener.gate

    async def wait_synced(self) -> bool:
        """Wait until synced (True), or until that can never happen any more (False)."""
        return await self._listener.gate.wait()

    def listener_of(self, owner: object) -> Listener[T] | None:
        """Return the listener for its own informer, None for any other."""
        return self._listener if owner is self._owner else None

    def __repr__(self) -> str:
        return f"<Handle of {self._listener!r}>"
