"""What happens in a namespace, as its watches tell: the events of a timeline, and waits for them.

Moments are of the same clock as the prober's, taken when this process hears of a change; so they are
late by a watch's delay, and never early. A pod's beginning is the one that its object names: without an
API server the watches learn of it seconds after it has answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import time
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from elasti.api.names import API_VERSION, PLURAL, resolver_slice_name
from kubeloop.client import Client
from kubeloop.informer import Deleted, Notification, SharedInformerFactory, Updated
from kubeloop.objects.meta import JsonObject
from tests.e2e.testbed import PATIENCE

WORKLOADS = ("apps/v1/deployments", "apps/v1/statefulsets")
_SERVICE_LABEL = "kubernetes.io/service-name"
_SYNC_SECONDS = 60.0


class Event(msgspec.Struct, frozen=True):
    """Something changed: of what kind, of which app or pod, to what."""

    at: float
    kind: str
    subject: str
    what: str


class Observer:
    """Follows one namespace. `now` is what holds: by kind and subject."""

    def __init__(
        self, client: Client, namespace: str, workloads: Sequence[str] = WORKLOADS
    ) -> None:
        self._pods = client.resource("v1/pods", namespace=namespace)
        self._factory = SharedInformerFactory(client, namespace=namespace)
        self._changed = asyncio.Condition()
        self.events: list[Event] = []
        self.now: dict[tuple[str, str], str] = {}
        for resource, hear in (
            (f"{API_VERSION}/{PLURAL}", self._service),
            *((workload, self._workload) for workload in workloads),
            ("v1/pods", self._pod),
            ("discovery.k8s.io/v1/endpointslices", self._slice),
        ):
            self._factory.informer(resource, dict).add_handler(on_event=hear)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow during the block."""
        async with self._factory.running():
            await self._factory.wait_for_sync(timeout=_SYNC_SECONDS)
            yield

    async def catch_up(self) -> None:
        """Note the pods that the watches have not shown yet: after an outage they wait to reconnect."""
        async for pod in self._pods.items():
            self._note_creation(pod)

    async def until(self, kind: str, subject: str, *wanted: str, seconds: float = PATIENCE) -> None:
        """Wait until it holds. Raises AssertionError that says what holds instead."""
        await self.until_true(
            lambda: self.now.get((kind, subject)) in wanted,
            f"{kind} of {subject} is {' or '.join(wanted)}",
            seconds=seconds,
        )

    async def until_true(
        self, condition: Callable[[], bool], what: str, *, seconds: float = PATIENCE
    ) -> None:
        """Wait until a condition on what holds is true."""
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(condition)
        except TimeoutError:
            raise AssertionError(
                f"after {seconds:.0f} s it does not hold that {what}; what holds: {self.now}"
            ) from None

    def last(self, kind: str, subject: str, what: str) -> float:
        """Return when something was last heard; 0 where it never was."""
        heard = [e.at for e in self.events if (e.kind, e.subject, e.what) == (kind, subject, what)]
        return max(heard, default=0.0)

    # What is heard

    async def _service(self, note: Notification[JsonObject]) -> None:
        obj = _newest(note)
        state = "" if isinstance(note, Deleted) else obj.get("status", {}).get("state", "")
        await self._note("state", obj["metadata"]["name"], state or "none")

    async def _workload(self, note: Notification[JsonObject]) -> None:
        obj = _newest(note)
        gone = isinstance(note, Deleted)
        replicas = 0 if gone else obj["spec"].get("replicas", 1)
        await self._note("replicas", obj["metadata"]["name"], str(replicas))

    async def _pod(self, note: Notification[JsonObject]) -> None:
        obj = _newest(note)
        name = obj["metadata"]["name"]
        self._note_creation(obj)
        word = "gone" if isinstance(note, Deleted) else _pod_word(obj)
        await self._note("pod", name, word)

    def _note_creation(self, pod: JsonObject) -> None:
        name = pod["metadata"]["name"]
        if ("pod", name) not in self.now:
            self.events.append(Event(_created(pod), "pod", name, "created"))

    async def _slice(self, note: Notification[JsonObject]) -> None:
        obj = _newest(note)
        service = (obj["metadata"].get("labels") or {}).get(_SERVICE_LABEL, "")
        gone = isinstance(note, Deleted)
        endpoints = [] if gone else obj.get("endpoints") or []
        if obj["metadata"]["name"] == resolver_slice_name(service):
            await self._note("slice", service, "removed" if gone else "published")
        conditions = [endpoint.get("conditions") or {} for endpoint in endpoints]
        ready = sum(one.get("ready") is not False for one in conditions)
        # Service proxies fall back to these if no endpoint is ready.
        ending = sum(bool(one.get("serving") and one.get("terminating")) for one in conditions)
        what = f"{service} {ready} ready {ending} ending"
        await self._note("endpoints", obj["metadata"]["name"], what)

    async def _note(self, kind: str, subject: str, what: str) -> None:
        if self.now.get((kind, subject)) == what:
            return
        self.now[kind, subject] = what
        self.events.append(Event(time.monotonic(), kind, subject, what))
        async with self._changed:
            self._changed.notify_all()


def _created(pod: JsonObject) -> float:
    created = dt.datetime.fromisoformat(pod["metadata"]["creationTimestamp"]).timestamp()
    return time.monotonic() - max(time.time() - created, 0.0)


def _newest(note: Notification[JsonObject]) -> JsonObject:
    return note.new if isinstance(note, Updated) else note.obj


def _pod_word(pod: JsonObject) -> str:
    if pod["metadata"].get("deletionTimestamp"):
        return "leaving"
    conditions = pod.get("status", {}).get("conditions") or []
    if any(item["type"] == "Ready" and item["status"] == "True" for item in conditions):
        return "ready"
    return str(pod.get("status", {}).get("phase", "Pending")).lower()
