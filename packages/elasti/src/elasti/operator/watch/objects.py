"""Objects that triggers ask about, followed like targets: one watch for each kind, and no request for a reading."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from elasti.operator.watch.informer_manager import (
    InformerManager,
    KeyParams,
    OnObject,
    RequestWatch,
    Scope,
)
from elasti.operator.watch.targets import check_listing
from kubeloop.client.client import Client
from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.meta import ObjectName


class FollowedObjects:
    """Follows one object for each trigger that asks for one."""

    def __init__(self, client: Client, manager: InformerManager) -> None:
        self._client = client
        self._manager = manager
        self._followed: dict[Hashable, tuple[KeyParams, Scope[Any]]] = {}

    async def find(
        self, key: Hashable, resource: str, kind: type[Any], at: ObjectName, heard: OnObject
    ) -> Any:
        """Return an object, None if it does not exist, and tell of its changes until `leave`.

        A key always has the same object. Raises KubeError if its kind cannot be watched.
        """
        if key not in self._followed:
            gvr = GroupVersionResource.parse(resource)
            if not self._manager.follows(gvr, at.namespace):
                await check_listing(self._client, self._manager, gvr, at.namespace)
            params = KeyParams(at.namespace, str(key), gvr, at.name)
            self._followed[key] = params, self._manager.add(RequestWatch(params, kind, heard))
        scope = self._followed[key][1]
        await scope.wait_synced()
        return scope.find(*at)

    def leave(self, key: Hashable) -> None:
        """Follow it no longer; its kind's watch ends with the last one."""
        if (followed := self._followed.pop(key, None)) is not None:
            self._manager.remove(followed[0])
