"""Where a reflector gets its objects: the one seam between informers and the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from kubeloop.objects.events import WatchEvent
    from kubeloop.objects.lists import Page
    from kubeloop.objects.meta import MetaAccess
    from kubeloop.objects.options import ListOptions, WatchOptions

T = TypeVar("T")


class WatchStream(Protocol[T]):
    """An open watch."""

    async def read(self) -> list[WatchEvent[T]]:
        """Return the next events, at least one, in order; an empty list is the end.

        The end is clean however the peer left: a partial last line is dropped. Raises
        `TransportError` only for what is worth telling, `ProtocolError` for undecodable bytes.
        """

    async def close(self) -> None:
        """Free the connection. Safe to repeat, and after an error or a cancelled read."""


class ListWatch(Protocol[T]):
    """A list and a watch over the same objects."""

    @property
    def access(self) -> MetaAccess:
        """How to read the metadata of the objects."""

    @property
    def supports_watch_list(self) -> bool:
        """Whether `send_initial_events` may be asked for; fakes may decline."""

    async def list(self, options: ListOptions) -> Page[T]:
        """Return one page. Raises `KubeError`."""

    async def watch(self, options: WatchOptions) -> WatchStream[T]:
        """Open a watch; returns once the server accepted it. Raises `KubeError`."""


@runtime_checkable
class TrimmableSource(Protocol[T]):
    """A source that can leave out what few readers want, for less than it costs to drop it later."""

    def without_managed_fields(self) -> ListWatch[T]:
        """Return the same source, its objects without metadata.managedFields."""
