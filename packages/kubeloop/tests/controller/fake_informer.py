"""An informer that a test speaks for: the seam between controllers and informers."""

from __future__ import annotations

import asyncio
from typing import Any

from kubeloop.informer.handlers import Added, Deleted, OnEvent, Updated
from kubeloop.objects.meta import DICT_ACCESS, MetaAccess, make_key


def obj(
    name: str, *, namespace: str = "default", version: str = "1", **meta: Any
) -> dict[str, Any]:
    """An object as JSON gives it."""
    base = {"name": name, "namespace": namespace, "resourceVersion": version}
    return {"metadata": {**base, **meta}}


def owned(name: str, *owners: dict[str, Any], **meta: Any) -> dict[str, Any]:
    """An object with owner references."""
    return obj(name, ownerReferences=list(owners), **meta)


def reference(
    name: str, *, kind: str = "Deployment", api: str = "apps/v1", controller: bool | None = None
) -> dict[str, Any]:
    """An owner reference."""
    made: dict[str, Any] = {"apiVersion": api, "kind": kind, "name": name, "uid": f"uid-{name}"}
    return made if controller is None else {**made, "controller": controller}


def key(thing: dict[str, Any]) -> Any:
    return make_key(thing["metadata"]["namespace"], thing["metadata"]["name"])


def added(thing: dict[str, Any], *, initial: bool = False) -> Added[Any]:
    return Added(key(thing), thing, initial=initial)


def updated(old: dict[str, Any], new: dict[str, Any]) -> Updated[Any]:
    return Updated(key(new), old, new)


def deleted(thing: dict[str, Any], *, stale: bool = False) -> Deleted[Any]:
    return Deleted(key(thing), thing, stale=stale)


class FakeRegistration:
    """A handler on a `FakeInformer`."""

    def __init__(self, on_event: OnEvent[Any], synced: asyncio.Event) -> None:
        self.on_event = on_event
        self.removed = False
        self.stopped = False
        self._synced = synced

    @property
    def has_synced(self) -> bool:
        return self._synced.is_set() and not self.stopped

    async def wait_synced(self) -> bool:
        await self._synced.wait()
        return not self.stopped


class FakeInformer:
    """Tells its handlers what the test says; synced from the start unless told otherwise."""

    def __init__(self, *, synced: bool = True) -> None:
        self.registrations: list[FakeRegistration] = []
        self._synced = asyncio.Event()
        if synced:
            self._synced.set()

    @property
    def access(self) -> MetaAccess:
        return DICT_ACCESS

    async def remove_handler(self, handle: FakeRegistration) -> None:
        assert handle in self.registrations
        handle.removed = True

    def add_handler(self, *, on_event: OnEvent[Any], name: str) -> FakeRegistration:
        registration = FakeRegistration(on_event, self._synced)
        self.registrations.append(registration)
        return registration

    def tell(self, event: Any) -> None:
        for registration in self.registrations:
            if not registration.removed:
                registration.on_event(event)

    def add(self, name: str, *, initial: bool = False) -> None:
        self.tell(added(obj(name), initial=initial))

    def sync(self) -> None:
        self._synced.set()

    def stop(self) -> None:
        for registration in self.registrations:
            registration.stopped = True
        self._synced.set()
