"""A reflector's source (`ListWatch`), its options, and the errors it reports.

`ListWatch` is the one seam between informers and the network. The defaults of `ReflectorOptions`
are client-go's. An `Expectation` says what the objects of a watch must be; anything else is a
mistake of the server's. A Table is never expected: it is what kubectl asks for, and holds rows,
not objects.
"""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from kubeloop.aio.backoff import Backoff, Random

if TYPE_CHECKING:
    from collections.abc import Callable

    from kubeloop.objects.gvk import GroupVersionKind
    from kubeloop.objects.list_watch import ListOptions, Page, WatchEvent, WatchOptions
    from kubeloop.objects.meta import MetaAccess


T = TypeVar("T")


MIN_WATCH_TIMEOUT = 300.0


class WatchStream(Protocol[T]):
    """An open watch."""

    async def read(self) -> list[WatchEvent[T]]:
        """Return the next events, at least one, in order; an empty list is the end.

        The end is clean however the peer left: a partial last line is dropped. Raises
        `TransportError` only for what is worth reporting, `ProtocolError` for undecodable bytes.
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The representation, and the kind if it is known; None accepts any."""

    representation: type[Any] | None = None
    gvk: GroupVersionKind | None = None

    def checker(self) -> Callable[[Any], str]:
        """Return `mismatch`, or something cheaper for objects that do not carry their kind."""
        kind = self.representation
        if kind is None or issubclass(kind, dict) or hasattr(kind, "kind"):
            return self.mismatch
        return lambda obj: "" if isinstance(obj, kind) else self.mismatch(obj)

    def mismatch(self, obj: Any) -> str:
        """Say what is wrong with an object, "" if nothing is.

        An object without a kind, such as a slim Struct, is taken for the right one.
        """
        if self.representation is not None and not isinstance(obj, self.representation):
            return f"expected a {self.representation.__name__}, got a {type(obj).__name__}"
        api_version, kind = _stated_type(obj)
        if kind == "Table":
            return "a Table is not an object"
        if (
            self.gvk is None
            or not kind
            or (api_version, kind) == (self.gvk.api_version, self.gvk.kind)
        ):
            return ""
        return f"expected {self.gvk}, got {api_version}/{kind}"


def _stated_type(obj: Any) -> tuple[str, str]:
    if isinstance(obj, dict):
        return obj.get("apiVersion") or "", obj.get("kind") or ""
    return getattr(obj, "api_version", ""), getattr(obj, "kind", "")


FAST_BACKOFF = Backoff(duration=0.2, factor=2.0, jitter=0.5, cap=3.0)
"""For a program whose clients wait: after an outage it is back within seconds, where client-go's
own pace may leave it blind for another minute. Fit for a handful of watches, not for every node's."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReflectorOptions:
    """How to ask a server, and how to treat its failures.

    page_size: objects for each page of every list; 0 lets the reflector choose.
    min_watch_timeout: a watch lives between this and twice as long; less than 300 s is raised.
    watch_list: stream the first objects instead of listing them, if the source can.
    internal_error_window: seconds during which a watch that ends with a 500 is reopened at once.
    skip_rejected: leave a list's poison objects out instead of failing the list.
    survive_defects: replace a reflector that a defect ended, instead of ending the informer with it.
    self_check: after a streamed list, list again at exactly its version and compare (for tests).
    bookmark_silence: seconds without a byte after which a watch with bookmarks is taken for dead; API
        servers send one every minute, give or take a quarter.
    probe_after: seconds without a byte after which a watch is compared with a second, short one, see
        `kubeloop.informer.reflector.probe`; 0 is never.
    distrust_empty: seconds for which a list without objects is not believed if the store has some. It is
        repeated, and the store does not change. A server that was restored, or that lies, may list
        nothing for a moment; client-go believes it at once, and so does 0.
    """

    label_selector: str = ""
    field_selector: str = ""
    page_size: int = 0
    min_watch_timeout: float = MIN_WATCH_TIMEOUT
    watch_list: bool = True
    internal_error_window: float = 0.0
    skip_rejected: bool = False
    survive_defects: bool = False
    self_check: bool = False
    expected: Expectation = dataclasses.field(default_factory=Expectation)
    backoff: Backoff = dataclasses.field(
        default_factory=lambda: Backoff(duration=0.8, factor=2.0, jitter=1.0, cap=30.0)
    )
    backoff_reset: float = 120.0
    silence_grace: float = 5.0
    bookmark_silence: float = 180.0
    probe_after: float = 30.0
    distrust_empty: float = 0.0
    rand: Random = random.random

    def watch_timeout(self) -> int:
        """Choose the timeout of one watch, in whole seconds."""
        shortest = max(self.min_watch_timeout, MIN_WATCH_TIMEOUT)
        return int(shortest * (1.0 + self.rand()))


class ReflectorError(Exception):
    """A request of a reflector failed; it will be repeated."""

    _operation = "use"

    def __init__(self, name: str, cause: Exception) -> None:
        super().__init__(f"cannot {self._operation} {name}: {cause}")
        self.__cause__ = cause


class ListFailed(ReflectorError):
    """A list failed, or an object in it could not be taken in."""

    _operation = "list"


class WatchFailed(ReflectorError):
    """A watch could not be opened."""

    _operation = "watch"
