"""ElastiServices as the page follows them: an informer, live figures, and the listening pages.

A listener gets what has changed since its last message, each row once and in its newest form: a slow browser gets
fewer and larger messages, never a growing queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator, Iterator

import msgspec

from elasti.api.names import ELASTISERVICES
from elasti.api.states import State
from elasti.api.types import CapacityStatus, ElastiService
from elasti.dashboard.live import HeldCounts, own_requests, read_held
from elasti.dashboard.model import Surroundings, key_of, service_row
from kubeloop.aio.tasks import BackgroundTasks
from kubeloop.client import Client
from kubeloop.informer import Deleted, Notification, SharedInformerFactory, Updated
from kubeloop.objects.meta import JsonObject

_GATHER = 0.25
_LIVE_PERIOD = 3.0
_OWN_PERIOD = 60.0
_SYNC_TIMEOUT = 60.0


def local_time() -> dt.datetime:
    """Return the time in this machine's zone."""
    return dt.datetime.now().astimezone()


class Listener:
    """One open page."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._is_new = True
        self._dirty: set[str] = set()
        self._news = asyncio.Event()
        self._news.set()

    def changed(self, *keys: str) -> None:
        """Note that rows have changed, or the figures above them."""
        self._dirty.update(keys)
        self._news.set()

    async def next(self) -> bytes:
        """Wait for a change, gather those that follow at once, and return the message."""
        await self._news.wait()
        if not self._is_new:
            await asyncio.sleep(_GATHER)
        self._news.clear()
        keys, self._dirty = self._dirty, set()
        is_new, self._is_new = self._is_new, False
        return self._feed.message(None if is_new else keys)


class Feed:
    """Follows the ElastiServices of a namespace, or of all, during a block of `running`.

    asks_pods: read pods with a loopback address directly, as in a development cluster.
    """

    def __init__(
        self, client: Client, namespace: str, elasti_namespace: str, *, asks_pods: bool = True
    ) -> None:
        self.asks_pods = asks_pods
        self.namespace = namespace
        self._client = client
        self._elasti_namespace = elasti_namespace
        self._factory = SharedInformerFactory(client, namespace=namespace)
        self._informer = self._factory.informer(ELASTISERVICES, ElastiService)
        self._informer.add_handler(on_event=self._on_event)
        # A lasting error is in `doubt`, which the page shows; the terminal stays quiet.
        self._informer.set_error_handler(lambda _error: None)
        self.services: dict[str, ElastiService] = {}
        self._rows: dict[str, JsonObject] = {}
        self._listeners: set[Listener] = set()
        self._own: CapacityStatus | None = None
        self._problem = ""
        self._midnight: dt.datetime | None = None
        self.held = HeldCounts(None, "not asked yet")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow during the block, which begins once the cache is synced. Raises NotSynced, KubeError."""
        async with self._factory.running(), BackgroundTasks() as tasks:
            await self._factory.wait_for_sync(timeout=_SYNC_TIMEOUT)
            tasks.start(self._ask_live(), name="live")
            yield

    @contextlib.contextmanager
    def listening(self) -> Iterator[Listener]:
        """Have a listener during the block."""
        listener = Listener(self)
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    def around(self) -> Surroundings:
        """Return the figures that the objects do not have."""
        local = local_time()
        midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
        return Surroundings(local.astimezone(dt.UTC), midnight, self.held.counts)

    def message(self, keys: set[str] | None) -> bytes:
        """Return the message about these rows, or about all of them for None."""
        chosen = self._rows.keys() if keys is None else keys
        return msgspec.json.encode(
            {
                "all": keys is None,
                "rows": [self._rows[key] for key in chosen if key in self._rows],
                "gone": [key for key in chosen if key not in self._rows],
                "own": self._own,
                "problem": self._problem,
            }
        )

    # Events

    def _on_event(self, note: Notification[ElastiService]) -> None:
        es = note.new if isinstance(note, Updated) else note.obj
        key = key_of(es)
        if isinstance(note, Deleted):
            self.services.pop(key, None)
            self._rows.pop(key, None)
        else:
            self.services[key] = es
            self._rows[key] = service_row(es, self.around())
        self._tell(key)

    def _tell(self, *keys: str) -> None:
        for listener in self._listeners:
            listener.changed(*keys)

    async def _ask_live(self) -> None:
        """Read what no object says while a page is open: held connections, our own requests."""
        asked = -_OWN_PERIOD
        while True:
            if self._listeners:
                self.held = await read_held(
                    self._client, self._elasti_namespace, asks_pods=self.asks_pods
                )
                now = asyncio.get_running_loop().time()
                if now - asked >= _OWN_PERIOD:
                    asked = now
                    self._own = await own_requests(self._client, self._elasti_namespace)
                    self._tell()
            self.refresh(self._informer.doubt)
            await asyncio.sleep(_LIVE_PERIOD)

    def refresh(self, doubt: str) -> None:
        """Update what changes without an event: held connections, waiting times, the day, a broken watch."""
        problem = (
            f"Lost contact with the cluster; this page may be out of date: {doubt}" if doubt else ""
        )
        if problem != self._problem:
            self._problem = problem
            self._tell()
        around = self.around()
        is_another_day = around.midnight != self._midnight
        self._midnight = around.midnight
        held = around.held
        for key, es in self.services.items():
            row = self._rows[key]
            count = None if held is None else held.get((es.metadata.namespace, es.spec.service), 0)
            waits = es.status.state == State.WAKING or not es.status.conditions
            if waits or is_another_day or row["held"] != count:
                made = service_row(es, around)
                if made != row:
                    self._rows[key] = made
                    self._tell(key)
