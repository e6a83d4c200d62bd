"""Following the cluster for the story: informers whose handlers report, and waits for what they see."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from elasti.api.names import API_VERSION, PLURAL, resolver_slice_name
from elasti.api.view import STATES, state_word
from elasti.cli.demo.manifests import NAMESPACE
from elasti.cli.demo.story import AppState, Story
from kubeloop.informer import Added, Deleted, Notification, SharedInformerFactory, Updated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from kubeloop.client import Client
    from kubeloop.objects.meta import JsonObject


class DemoWatch:
    """What is known of the sample apps, and when each last came to a state."""

    def __init__(self, client: Client, story: Story, apps: tuple[str, ...]) -> None:
        self._factory = SharedInformerFactory(client, namespace=NAMESPACE)
        self._story = story
        self._changed = asyncio.Condition()
        self._states = dict.fromkeys(apps, "")
        self._pods: dict[str, dict[str, str]] = {app: {} for app in apps}
        self._via_resolver: set[str] = set()
        self._moments: dict[str, dict[str, float]] = {app: {} for app in apps}
        for resource, report in (
            (f"{API_VERSION}/{PLURAL}", self._service),
            ("v1/pods", self._pod),
            ("discovery.k8s.io/v1/endpointslices", self._slice),
        ):
            self._factory.informer(resource, dict).add_handler(on_event=report)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow during the block."""
        async with self._factory.running():
            await self._factory.wait_for_sync(timeout=30)
            yield

    def apps(self) -> list[AppState]:
        """Return how the apps are now."""
        return [
            AppState(
                name,
                state_word(state),
                sorted(self._pods[name].values()),
                name in self._via_resolver,
            )
            for name, state in self._states.items()
        ]

    def moments(self, app: str) -> dict[str, float]:
        """Return when an app last came to each state, and its pods to each of theirs (loop time)."""
        return self._moments[app]

    async def until_asleep(self, seconds: float) -> None:
        """Wait until every app sleeps and its last pod is gone. Raises TimeoutError."""
        await self._until(
            lambda: self._all_are("Proxy") and not any(self._pods.values()), "asleep", seconds
        )

    async def until_awake(self, seconds: float) -> None:
        """Wait until every app's traffic goes to its pods. Raises TimeoutError."""
        await self._until(lambda: self._all_are("Serve"), "awake", seconds)

    def _all_are(self, state: str) -> bool:
        return {*self._states.values()} == {state}

    async def _until(self, condition: Callable[[], bool], word: str, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(condition)
        except TimeoutError:
            states = ", ".join(
                f"{name} is {state_word(state) or 'in no state'}"
                for name, state in self._states.items()
            )
            raise TimeoutError(f"not all are {word} after {seconds:.0f} s: {states}") from None

    async def _service(self, note: Notification[JsonObject]) -> None:
        obj = _newest(note)
        name, state = obj["metadata"]["name"], str(obj.get("status", {}).get("state", ""))
        if state and state != self._states[name]:
            self._states[name] = state
            self._note(name, state)
            self._story.report("elasti", f"{name} is {STATES.get(state, state)}")
        await self._notify_waiters()

    async def _pod(self, note: Notification[JsonObject]) -> None:
        obj = _newest(note)
        app, name = obj["metadata"]["labels"]["app"], obj["metadata"]["name"]
        was = self._pods[app].get(name, "")
        word = "gone" if isinstance(note, Deleted) else _pod_word(obj)
        if isinstance(note, Deleted):
            self._pods[app].pop(name, None)
        else:
            self._pods[app][name] = word
        if word != was:
            self._note(app, f"pod {word}")
            self._story.report("pods", f"{name}: {word}")
        await self._notify_waiters()

    async def _slice(self, note: Notification[JsonObject]) -> None:
        name = _newest(note)["metadata"]["name"]
        for app in self._states:
            if name != resolver_slice_name(app):
                continue
            if isinstance(note, Added):
                self._via_resolver.add(app)
                self._story.report("slices", f"{app}: the resolver is in the Service's rotation")
            elif isinstance(note, Deleted):
                self._via_resolver.discard(app)
                self._story.report(
                    "slices", f"{app}: the resolver is out of it, only pods are left"
                )

    def _note(self, name: str, what: str) -> None:
        self._moments[name][what] = asyncio.get_running_loop().time()

    async def _notify_waiters(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _newest(note: Notification[JsonObject]) -> JsonObject:
    return note.new if isinstance(note, Updated) else note.obj


def _pod_word(pod: dict[str, Any]) -> str:
    if pod["metadata"].get("deletionTimestamp"):
        return "leaving"
    conditions = pod.get("status", {}).get("conditions") or []
    if any(item["type"] == "Ready" and item["status"] == "True" for item in conditions):
        return "ready"
    return str(pod.get("status", {}).get("phase", "Pending")).lower()
