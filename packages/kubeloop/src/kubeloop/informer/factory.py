"""Informers made, shared, started and stopped together.

    factory = SharedInformerFactory(client, resync=30.0)
    pods = factory.informer("v1/pods")
    pods.add_handler(on_add=..., on_update=..., on_delete=...)
    async with factory.running():
        await factory.wait_for_sync(timeout=60)
        ...

Two calls that ask for the same slice of a resource in the same representation get the same
informer, and with it the same watch: the number of watches depends on what is watched, never on
how many watch it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Protocol,
    Self,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from kubeloop.aio.tasks import Interruptible, finish
from kubeloop.informer.gc_pause import GcGuard
from kubeloop.informer.metrics import MetricsProvider, NoMetrics
from kubeloop.informer.reflector.events import Transform, drop_managed_fields
from kubeloop.informer.reflector.source import Expectation, ReflectorOptions, TrimmableSource
from kubeloop.informer.shared_informer import SharedInformer, State
from kubeloop.informer.sync import SyncResult, wait_for_gates
from kubeloop.objects.fields import FieldSelector, FieldSelectorLike
from kubeloop.objects.gvk import (
    GroupVersionKind,
    GroupVersionResource,
    ServedKind,
    resource_and_kind,
)
from kubeloop.objects.lazy import LazyObject
from kubeloop.objects.meta import PartialObjectMetadata
from kubeloop.objects.selectors import LabelSelector, SelectorLike

if TYPE_CHECKING:
    from kubeloop.informer.mutation_detector import MutationDetector
    from kubeloop.informer.reflector.source import ListWatch


_log = logging.getLogger(__name__)
T = TypeVar("T")
K = TypeVar("K", bound=ServedKind)


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """The selectors of a list and of its watch, in normal form."""

    label_selector: str = ""
    field_selector: str = ""

    @classmethod
    def parse(cls, labels: SelectorLike, fields: FieldSelectorLike) -> Selection:
        """Read both. Raises SelectorError; ValueError for a label selector that matches nothing."""
        parsed = LabelSelector.parse(labels)
        if parsed.matches_nothing:
            raise ValueError(
                "the label selector matches nothing: an informer would never see an object"
            )
        return cls(str(parsed), str(FieldSelector.parse(fields)))


Tweak: TypeAlias = Callable[[Selection], Selection]
"""Changes the selection of every informer of a factory; it has no say in versions or paging."""


@dataclasses.dataclass(frozen=True, slots=True)
class InformerKey:
    """The identity of an informer: resource, slice, and what is kept of each object.

    A transform counts by identity: pass the same function to share a watch.
    """

    gvr: GroupVersionResource
    namespace: str
    selection: Selection
    kind: type[Any]
    transform: Transform | None

    def __str__(self) -> str:
        parts = [str(self.gvr)]
        if self.namespace:
            parts.append(f"in {self.namespace}")
        parts += filter(None, (self.selection.label_selector, self.selection.field_selector))
        return " ".join(parts)


class InformerNames:
    """The names in use; a program has one of these and passes it to every factory."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def claim(self, name: str) -> None:
        """Take a name. Raises ValueError if it is taken, or empty."""
        if not name:
            raise ValueError("a factory whose name must be unique needs a name")
        if name in self._taken:
            raise ValueError(f"informer name {name!r} is in use; choose another")
        self._taken.add(name)

    def release(self, name: str) -> None:
        """Give a name back; safe to repeat."""
        self._taken.discard(name)


class ResourceClient(Protocol):
    """The interface of a client that a factory uses."""

    def resource(
        self, resource: GroupVersionResource, kind: type[Any], *, namespace: str = ""
    ) -> ListWatch[Any]:
        """Return the list and watch of a resource, its objects represented as `kind`."""


class InformerSlice(TypedDict, total=False):
    """Options of an informer besides its resource; see `SharedInformerFactory.informer`."""

    namespace: str | None
    label_selector: SelectorLike
    field_selector: FieldSelectorLike
    transform: Transform | None
    resync: float | None
    expect: GroupVersionKind | None


@dataclasses.dataclass(slots=True)
class _Shared(Generic[T]):
    informer: SharedInformer[T]
    users: int = 0
    task: asyncio.Task[None] | None = None


class SharedInformerFactory:
    """Makes and runs informers.

    resync, namespace, transform and tweak hold for all informers unless one is asked for otherwise.
    The default transform drops managedFields; another one, or None, takes its place. `name` is claimed in `names`, where metrics must
    not mix, until the shutdown. `collector` keeps Python's garbage collector out of the way of big
    lists. `mutation_detector` makes one for each informer, for tests.
    """

    def __init__(
        self,
        client: ResourceClient,
        *,
        resync: float = 0.0,
        namespace: str = "",
        transform: Transform | None = drop_managed_fields,
        tweak: Tweak | None = None,
        options: ReflectorOptions | None = None,
        metrics: MetricsProvider | None = None,
        name: str = "",
        names: InformerNames | None = None,
        collector: bool = True,
        mutation_detector: Callable[[], MutationDetector] | None = None,
    ) -> None:
        self._client = client
        self._resync = resync
        self.namespace = namespace
        self._transform = transform
        self._tweak = tweak
        self._options = options or ReflectorOptions()
        self._metrics = metrics or NoMetrics()
        self._name = name
        self._names = names
        self._collector = collector
        self._mutation_detector = mutation_detector
        self._shared: dict[InformerKey, _Shared[Any]] = {}
        self._crashed: Callable[[BaseException], None] | None = None
        self._shut_down = False
        if names is not None:
            names.claim(name)

    def __repr__(self) -> str:
        running = sum(shared.task is not None for shared in self._shared.values())
        return f"<SharedInformerFactory {len(self._shared)} informers, {running} started>"

    # Informers

    @overload
    def informer(self, resource: type[K], **slice_: Unpack[InformerSlice]) -> SharedInformer[K]: ...

    @overload
    def informer(
        self, resource: str | GroupVersionResource, kind: type[T], **slice_: Unpack[InformerSlice]
    ) -> SharedInformer[T]: ...

    @overload
    def informer(
        self, resource: str | GroupVersionResource, **slice_: Unpack[InformerSlice]
    ) -> SharedInformer[LazyObject]: ...

    @overload
    def informer(
        self,
        resource: str | GroupVersionResource,
        *,
        metadata_only: bool,
        **slice_: Unpack[InformerSlice],
    ) -> SharedInformer[PartialObjectMetadata]: ...

    def informer(
        self,
        resource: str | GroupVersionResource | type[Any],
        kind: type[Any] = LazyObject,
        *,
        metadata_only: bool = False,
        namespace: str | None = None,
        label_selector: SelectorLike = "",
        field_selector: FieldSelectorLike = "",
        transform: Transform | None = None,
        resync: float | None = None,
        expect: GroupVersionKind | None = None,
    ) -> SharedInformer[Any]:
        """Return the informer of a slice, the same one for equal arguments; start() runs it.

        `kind` is how objects are represented: a Struct with `metadata`, `dict`, or LazyObject.
        `expect` drops events of any other kind. The first to ask decides about `resync`. Every call
        counts as a user: `release` what is no longer needed, or leave it to the shutdown.
        """
        gvr, kind = resource_and_kind(resource, kind)
        key = self._key(
            gvr,
            PartialObjectMetadata if metadata_only else kind,
            namespace=self.namespace if namespace is None else namespace,
            selection=Selection.parse(label_selector, field_selector),
            transform=transform or self._transform,
        )
        shared = self._shared.get(key)
        if shared is None:
            period = self._resync if resync is None else resync
            shared = self._shared[key] = _Shared(self._make(key, period, expect))
        shared.users += 1
        return shared.informer

    def _key(
        self,
        gvr: GroupVersionResource,
        kind: type[Any],
        *,
        namespace: str,
        selection: Selection,
        transform: Transform | None,
    ) -> InformerKey:
        if self._tweak is not None:
            selection = self._tweak(selection)
        if transform is drop_managed_fields and not issubclass(kind, dict):
            transform = None  # other representations never have them
        return InformerKey(gvr, namespace, selection, kind, transform)

    def _make(
        self, key: InformerKey, resync: float, expect: GroupVersionKind | None
    ) -> SharedInformer[Any]:
        name = self._unique_name(str(key))
        options = dataclasses.replace(
            self._options,
            label_selector=key.selection.label_selector,
            field_selector=key.selection.field_selector,
            expected=Expectation(representation=key.kind, gvk=expect),
        )
        detector = self._mutation_detector
        source = self._client.resource(key.gvr, key.kind, namespace=key.namespace)
        transform = key.transform
        if transform is drop_managed_fields and isinstance(source, TrimmableSource):
            source, transform = source.without_managed_fields(), None
        return SharedInformer(
            source,
            name=name,
            resync=resync,
            transform=transform,
            options=options,
            metrics=self._metrics.informer(f"{self._name}/{name}" if self._name else name),
            mutation_detector=None if detector is None else detector(),
            collector=GcGuard(enabled=self._collector),
        )

    def _unique_name(self, name: str) -> str:
        taken = {shared.informer.name for shared in self._shared.values()}
        number = 2
        unique = name
        while unique in taken:
            unique, number = f"{name} #{number}", number + 1
        return unique

    async def release(self, informer: SharedInformer[Any]) -> None:
        """Give up one use of an informer; the last one stops it and waits until it has ended."""
        found = [item for item in self._shared.items() if item[1].informer is informer]
        if not found:
            return
        key, shared = found[0]
        shared.users -= 1
        if shared.users > 0:
            return
        del self._shared[key]
        if shared.task is not None:
            await finish([shared.task])
        informer.close()

    # Life

    def start(self) -> None:
        """Start every informer that is not started yet; does nothing after the shutdown."""
        if self._shut_down:
            return
        for shared in self._shared.values():
            if shared.task is None and shared.informer.state is State.NEW:
                shared.task = self._spawn(shared.informer)

    def _spawn(self, informer: SharedInformer[Any]) -> asyncio.Task[None]:
        task = asyncio.create_task(informer.run(), name=f"informer {informer.name}")
        task.add_done_callback(lambda done: self._ended(informer, done))
        return task

    def _ended(self, informer: SharedInformer[Any], task: asyncio.Task[None]) -> None:
        informer.close()  # for a run that was cancelled before it began
        error = None if task.cancelled() else task.exception()
        if error is not None and self._crashed is not None:
            self._crashed(error)

    async def wait_for_sync(self, timeout: float | None = None) -> SyncResult:
        """Wait until every started informer is synced, at most `timeout` seconds.

        Those that were not started are named in the log: they stay empty until `start()`. Raises
        NotSynced, which names those that are not and why: the time was up, or they stopped.
        """
        for shared in self._shared.values():
            if shared.informer.state is State.NEW and shared.task is None:
                _log.warning("%s was not started: call start() first", shared.informer.name)
        started = [shared.informer.gate for shared in self._shared.values() if shared.task]
        result = await wait_for_gates(started, timeout)
        result.check()
        return result

    def stop(self) -> None:
        """Ask every informer to stop; returns at once, `shutdown` waits for them."""
        for shared in self._shared.values():
            if shared.task is not None:
                shared.task.cancel()

    async def shutdown(self) -> None:
        """Wait until every informer has stopped; nothing can be started afterwards.

        It stops none itself: `stop()` does. May be repeated, and called by several at once.
        """
        self._shut_down = True
        tasks = [shared.task for shared in self._shared.values() if shared.task is not None]
        if tasks:
            await asyncio.wait(tasks)
        for shared in self._shared.values():
            shared.informer.close()
        if self._names is not None:
            self._names.release(self._name)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Run the informers during an `async with` block: started on entry, all ended on exit.

        An informer that fails for good, which none does for what a server answers, ends the block
        with its error.
        """
        try:
            async with Interruptible() as block:
                self._crashed = block.interrupt
                self.start()
                yield self
        finally:
            self._crashed = None
            self.stop()
            tasks = [shared.task for shared in self._shared.values() if shared.task is not None]
            # Shut down even when cancelled meanwhile.
            try:
                await finish(tasks, cancel=False)
            finally:
                await self.shutdown()
