"""The shared informer: one watch, one store, any number of handlers."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from kubeloop.aio.tasks import Interruptible, finish
from kubeloop.informer import handlers as adapters
from kubeloop.informer.consumer import QueueConsumer
from kubeloop.informer.dispatch import Dispatcher
from kubeloop.informer.gc_pause import GcGuard
from kubeloop.informer.listener import Handle, ProcessorListener
from kubeloop.informer.lister import Lister
from kubeloop.informer.metrics import InformerMetrics, NoMetrics
from kubeloop.informer.queue import DeltaQueue
from kubeloop.informer.reflector.events import ObjectPreparer, Transform
from kubeloop.informer.reflector.reflector import ErrorHandler, Reflector
from kubeloop.informer.reflector.source import ListWatch, ReflectorOptions
from kubeloop.informer.reflector.supervisor import ReflectorSupervisor
from kubeloop.informer.store import IndexFunction, Store, StoreView
from kubeloop.informer.sync import SyncGate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from kubeloop.informer.handlers import Filter, OnEvent, OnObject, OnUpdate
    from kubeloop.informer.mutation_detector import MutationDetector
    from kubeloop.objects.meta import MetaAccess

T = TypeVar("T")

_log = logging.getLogger(__name__)


class State(enum.Enum):
    """The life of an informer; it goes one way."""

    NEW = "new"
    STARTED = "started"
    STOPPED = "stopped"


class InformerStopped(RuntimeError):
    """The informer was stopped, which is final; make a new one."""


class SharedInformer(Generic[T]):
    """Keeps a local copy of a resource and notifies handlers of its changes.

    What may be relied on:

    - The copy follows the server: for each object it ends up at the server's state once changes
      stop, and on the way it passes through states that the object really had, in their order,
      perhaps not all of them.
    - Between different objects no order is promised.
    - An object is its namespace and name. The uid is not part of that: an object deleted and made
      again while there was no watch is one update (`split_on_uid_change` makes two of it).
    - Each query of the store is answered from one state of it.
    - A handler is notified of a change after the store and its indices have it, and perhaps later ones.
    - One handler is called for one notification at a time, in order; the `old` of an update is what
      it was notified of last. Handlers do not wait for one another.
    - A delete carries the last known object; as it was deleted if the watch reported it, else `stale`.

    Objects are shared by all readers and must not be changed. All methods belong on the event loop
    that runs the informer; reading the store is safe from any thread.

    name: what it is called in logs, metrics and sync results.
    resync: how often handlers see every object again, in seconds; 0 is never.
    transform: see `Transform`; `stored` reads the metadata of what it returns, where that differs.
    notify_unchanged: with resync off, whether a relist repeats unchanged objects to all handlers.
    unknown_deletes: whether handlers are notified of deletions of objects that the store never had.
    fail_fast: a handler's exception ends the informer instead of costing one notification.
    stop_grace: how long a stop waits for running callbacks before it cancels them.
    """

    def __init__(
        self,
        source: ListWatch[T],
        *,
        name: str = "informer",
        resync: float = 0.0,
        transform: Transform | None = None,
        stored: MetaAccess | None = None,
        indexers: Mapping[str, IndexFunction[T]] | None = None,
        options: ReflectorOptions | None = None,
        on_error: ErrorHandler | None = None,
        notify_unchanged: bool = True,
        unknown_deletes: bool = False,
        fail_fast: bool = False,
        stop_grace: float = 30.0,
        metrics: InformerMetrics | None = None,
        mutation_detector: MutationDetector | None = None,
        collector: GcGuard | None = None,
    ) -> None:
        self.name = name
        self._source = source
        self._default_resync = resync
        self._transform = transform
        self._access = stored or source.access
        self._options = options
        self._on_error = on_error
        self._notify_unchanged = notify_unchanged
        self._unknown_deletes = unknown_deletes
        self._fail_fast = fail_fast
        self._stop_grace = stop_grace
        self._metrics = metrics or NoMetrics()
        self._metrics.observe(doubt=lambda: self.doubt)
        self._detector = mutation_detector
        self._collector = collector or GcGuard(enabled=False)
        self._state = State.NEW
        self._gate = SyncGate(name)
        self._store: Store[T] = Store(indexers)
        self._queue: DeltaQueue[T] = DeltaQueue()
        self._dispatcher: Dispatcher[T] = Dispatcher(
            name=name,
            check_period=resync,
            inspect=None if mutation_detector is None else mutation_detector.observe,
        )
        self._supervisor: ReflectorSupervisor[T] | None = None
        self.store: StoreView[T] = StoreView(self._store)
        self.lister: Lister[T] = Lister(self.store, self._access, resource=name)

    def __repr__(self) -> str:
        synced = "synced" if self.has_synced else "not synced"
        return f"<SharedInformer {self.name} {self._state.value}, {synced}, {self.store!r}>"

    # State

    @property
    def state(self) -> State:
        """New, started or stopped."""
        return self._state

    @property
    def access(self) -> MetaAccess:
        """How to read the metadata of the stored objects."""
        return self._access

    @property
    def has_synced(self) -> bool:
        """Whether the first list is in the store; stays true."""
        return self._gate.synced

    @property
    def gate(self) -> SyncGate:
        """The same, to be waited for."""
        return self._gate

    @property
    def last_version(self) -> str:
        """Where the watch would resume; "" before the first list (LastSyncResourceVersion)."""
        return self._reflector.last_version if self._reflector is not None else ""

    @property
    def restarts(self) -> int:
        """How often the reflector was replaced."""
        return self._supervisor.restarts if self._supervisor is not None else 0

    @property
    def resync_check_period(self) -> float:
        """How often handlers are checked for being due, in seconds; 0 is never."""
        return self._dispatcher.check_period

    async def wait_synced(self) -> bool:
        """Wait for the first list: True; False if the informer stopped before it."""
        return await self._gate.wait()

    @property
    def last_heard(self) -> float | None:
        """The loop's time of the server's last word, bookmarks included; None before the first."""
        return self._reflector.last_heard if self._reflector is not None else None

    @property
    def doubt(self) -> str:
        """Why the store may be behind the server; empty while its watch runs as it should."""
        return self._reflector.doubt if self._reflector is not None else ""

    def relist(self, reason: str) -> None:
        """List again, for a caller that has reason to believe that the store is wrong or the watch stuck."""
        if self._reflector is not None:
            self._reflector.relist(RuntimeError(reason))

    def restart(self, reason: str) -> None:
        """Put a new reflector, with new connections, in the place of one that is beyond help."""
        if self._supervisor is not None:
            self._supervisor.restart(reason)

    @property
    def _reflector(self) -> Reflector[T] | None:
        return self._supervisor.reflector if self._supervisor is not None else None

    # Options, before the start

    def set_transform(self, transform: Transform | None) -> None:
        """Replace the transform. Raises RuntimeError after the start."""
        self._check_new("the transform")
        self._transform = transform

    def set_error_handler(self, on_error: ErrorHandler | None) -> None:
        """Replace the error handler. Raises RuntimeError after the start."""
        self._check_new("the error handler")
        self._on_error = on_error

    def add_indexers(self, indexers: Mapping[str, IndexFunction[T]]) -> None:
        """Add indices, before or after the start; what is stored is indexed at once.

        Raises ValueError for a name that is taken, InformerStopped after the stop.
        """
        self._check_not_stopped("add indexers")
        self._store.add_indexers(indexers)

    # Handlers

    def add_handler(
        self,
        *,
        on_add: OnObject[T] | None = None,
        on_update: OnUpdate[T] | None = None,
        on_delete: OnObject[T] | None = None,
        on_event: OnEvent[T] | None = None,
        filter: Filter[T] | None = None,  # noqa: A002 -- the word that people look for
        resync: float | None = None,
        blocking: bool = False,
        split_on_uid_change: bool = False,
        name: str = "",
    ) -> Handle[T]:
        """Register a handler, before or after the start; see `kubeloop.informer.handlers`.

        Added late, it first gets an `Added` with `initial` for every object in the store, then
        everything that follows: nothing is missed, nothing comes twice. `resync` is the handler's
        own period (None: the informer's; 0: none). `blocking` calls it in a thread of its own.
        Raises InformerStopped after the stop.
        """
        self._check_not_stopped("add a handler")
        callables = (on_event, on_add, on_update, on_delete)
        deliver = adapters.as_handler(*callables, blocking=blocking)
        cleanup = contextlib.ExitStack()
        if blocking:
            deliver = adapters.in_own_thread(deliver, cleanup)
        if split_on_uid_change:
            deliver = adapters.split_on_uid(deliver, self._access.uid)
        if filter is not None:
            deliver = adapters.filtered(deliver, filter)
        wanted = self._default_resync if resync is None else resync
        listener = ProcessorListener(
            name=name or adapters.describe(*callables),
            deliver=deliver,
            requested_period=wanted,
            period=self._dispatcher.request_period(wanted, started=self._state is not State.NEW),
            syncing=self._notify_unchanged,
            fail_fast=self._fail_fast,
            metrics=self._metrics,
            on_ended=cleanup.close,
        )
        self._join(listener)
        return Handle(listener, self)

    def _join(self, listener: ProcessorListener[T]) -> None:
        """Register and replay in one step: no notification can come in between."""
        if self._state is State.STARTED:
            listener.replay(self.store.items())
        self._dispatcher.add(listener)
        if self.has_synced:
            listener.upstream_synced()

    async def remove_handler(self, handle: Handle[T], *, drain: bool = False) -> None:
        """Unregister: nothing new is queued, what is pending is dropped, or with `drain` delivered.

        Returns when the handler's last call has ended, except when called from inside that call,
        where it returns at once. Repeating it, or a handle of another informer, does nothing.
        """
        if not isinstance(handle, Handle):
            raise TypeError(f"remove_handler wants what add_handler returned, not {handle!r}")
        listener = handle.listener_of(self)
        if listener is not None:
            await self._dispatcher.remove(listener, drain=drain)

    # Life

    async def run(self) -> None:
        """List, watch and notify until cancelled; then wait for the callbacks that run.

        A second call returns at once. Raises what ended it but a cancellation: a defect in the
        source, a changed object that the mutation detector found, a handler's with `fail_fast`.
        """
        if self._state is not State.NEW:
            _log.warning("%s: already %s, not run again", self.name, self._state.value)
            return
        self._state = State.STARTED
        try:
            self._dispatcher.start()
            await self._pump()
        except Exception as error:
            self._gate.stop(error)
            raise
        finally:
            self._finish()
            self._collector.release()
            await self._dispatcher.stop(grace=self._stop_grace)
            if self._detector is not None:
                self._detector.check()

    def close(self) -> None:
        """Become stopped, so that no task waits any longer; for owners whose run() never began.

        Safe to repeat. Raises RuntimeError during a run: cancel its task instead.
        """
        if self._state is State.STARTED:
            raise RuntimeError(f"{self.name}: cancel run() to stop a running informer")
        self._finish()

    def _finish(self) -> None:
        self._state = State.STOPPED
        self._metrics.observe(doubt=str)
        self._gate.stop()
        self._queue.close()
        self._dispatcher.close()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Run during an `async with` block; for one informer without a factory.

        What `run` raises ends the block.
        """
        task = asyncio.create_task(self.run(), name=f"informer {self.name}")
        try:
            async with Interruptible() as block:
                task.add_done_callback(lambda done: _pass_failure(done, block))
                yield self
                await finish([task])
        finally:
            await finish([task])
            self.close()

    async def _pump(self) -> None:
        preparer: ObjectPreparer[T] = ObjectPreparer(
            self._source.access, self._transform, stored=self._access
        )
        options = self._options or ReflectorOptions()
        self._supervisor = supervisor = ReflectorSupervisor(
            lambda: self._make_reflector(preparer),
            name=self.name,
            survives=options.survive_defects,
            delays=options.backoff.start(rand=options.rand),
        )
        consumer = QueueConsumer(
            queue=self._queue,
            store=self._store,
            dispatcher=self._dispatcher,
            access=self._access,
            metrics=self._metrics,
            on_synced=self._synced,
            on_failure=supervisor.relist,
            unknown_deletes=self._unknown_deletes,
        )
        parts = [supervisor.run(), consumer.run(), self._dispatcher.failure()]
        if self._detector is not None:
            parts.append(self._detector.run())
        try:
            async with asyncio.TaskGroup() as group:
                for part in parts:
                    group.create_task(part)
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    def _make_reflector(self, preparer: ObjectPreparer[T]) -> Reflector[T]:
        return Reflector(
            self._source,
            self._queue,
            name=self.name,
            preparer=preparer,
            options=self._options,
            resync_period=lambda: self._dispatcher.check_period,
            should_resync=self._dispatcher.mark_due,
            on_error=self._on_error,
            on_trouble=self._gate.note,
            metrics=self._metrics,
            collector=self._collector,
            known=lambda: len(self.store),
        )

    def _synced(self) -> None:
        self._gate.open()
        self._dispatcher.synced()

    def _check_new(self, what: str) -> None:
        if self._state is not State.NEW:
            raise RuntimeError(f"{self.name}: {what} can be set only before the start")

    def _check_not_stopped(self, what: str) -> None:
        if self._state is State.STOPPED:
            raise InformerStopped(f"{self.name}: cannot {what}: the informer was stopped already")


def _pass_failure(task: asyncio.Task[None], block: Interruptible) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        block.interrupt(error)
