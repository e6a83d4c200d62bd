"""Following the cluster for the story: informers whose handlers tell, and waits for what they see."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from elasti.api.names import API_VERSION, PLURAL, resolver_slice_name
from kubeloop.informer import Added, Deleted, SharedInformerFactory, Updated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from elasti.cli.demo.story import Story
    from kubeloop.client import Client
    from kubeloop.informer import Notification
    from kubeloop.objects.meta import JsonObject


class Watching:
    """What is known of the sample apps, and when each first came to a state."""

    def __init__(self, client: Client, story: Story) -> None:
        self._factory = SharedInformerFactory(client, namespace="default")
        self._story = story
        self._changed = asyncio.Condition()
        self.services: dict[str, JsonObject] = {}
        self._pods: set[str] = set()
        self.moments: dict[tuple[str, str], float] = {}
        for resource, tell in (
            (f"{API_VERSION}/{PLURAL}", self._service),
            ("v1/pods", self._pod),
            ("discovery.k8s.io/v1/endpointslices", self._slice),
        ):
            self._factory.informer(resource, dict).add_handler(on_event=tell)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow during the block."""
        async with self._factory.running():
            await self._factory.wait_for_sync(timeout=30)
            yield

    async def until_asleep(self, seconds: float) -> None:
        """Wait until every app sleeps and its last pod is gone. Raises TimeoutError."""
        await self._until(lambda: self._all_are("Proxy") and not self._pods, "asleep", seconds)

    async def until_awake(self, seconds: float) -> None:
        """Wait until every app's traffic goes to its pods. Raises TimeoutError."""
        await self._until(lambda: self._all_are("Serve"), "awake", seconds)

    def _all_are(self, state: str) -> bool:
        return set(map(self.state, self.services)) == {state}

    async def _until(self, condition: Callable[[], bool], word: str, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(condition)
        except TimeoutError:
            states = ", ".join(f"{name} is in state {self.state(name)}" for name in self.services)
            raise TimeoutError(f"not all are {word} after {seconds:.0f} s: {states}") from None

    def state(self, name: str) -> str:
        """Return the state that the operator reports; empty before it does."""
        status: JsonObject = self.services.get(name, {}).get("status", {})
        return str(status.get("state", ""))

    async def _service(self, note: Notification[JsonObject]) -> None:
        obj = note.new if isinstance(note, Updated) else note.obj
        name = obj["metadata"]["name"]
        before = self.state(name)
        self.services[name] = obj
        if self.state(name) != before:
            self._note(name, self.state(name))
            self._story.tell("elasti", f"{name}: {before or 'new'} -> {self.state(name)}")
        await self._tell_waiters()

    async def _pod(self, note: Notification[JsonObject]) -> None:
        obj = note.new if isinstance(note, Updated) else note.obj
        app = obj["metadata"]["labels"]["app"]
        was = _pod_word(note.old) if isinstance(note, Updated) else ""
        word = "gone" if isinstance(note, Deleted) else _pod_word(obj)
        (self._pods.discard if isinstance(note, Deleted) else self._pods.add)(note.key)
        if word != was:
            self._note(app, f"pod {word}")
            self._story.tell("pods", f"{obj['metadata']['name']}: {word}")
        await self._tell_waiters()

    async def _slice(self, note: Notification[JsonObject]) -> None:
        obj = note.new if isinstance(note, Updated) else note.obj
        for app in self.services:
            if obj["metadata"]["name"] == resolver_slice_name(app):
                if isinstance(note, Added):
                    self._story.tell("slices", f"{app}: the resolver is in rotation")
                elif isinstance(note, Deleted):
                    self._story.tell("slices", f"{app}: the resolver has stepped aside")

    def _note(self, name: str, what: str) -> None:
        self.moments[name, what] = asyncio.get_running_loop().time()

    async def _tell_waiters(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _pod_word(pod: dict[str, Any]) -> str:
    if pod["metadata"].get("deletionTimestamp"):
        return "leaving"
    conditions = pod.get("status", {}).get("conditions") or []
    if any(item["type"] == "Ready" and item["status"] == "True" for item in conditions):
        return "ready"
    return str(pod.get("status", {}).get("phase", "Pending")).lower()
