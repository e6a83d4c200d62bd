"""A whole controller: every namespace with the label `example.com/team` gets a ConfigMap `team`.

    python examples/controller.py          # with a kubeconfig, or as a pod; then elsewhere:
    kubectl label namespace default example.com/team=red
    kubectl delete configmap team          # and it is back

Ctrl-C stops it: the reconcile that runs is finished, no other begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys

from kubeloop.client import Client, KubeError, NotFound, Resource
from kubeloop.controller import (
    Caches,
    Controller,
    Group,
    Manager,
    Request,
    labels_changed,
    map_func,
    run_until_signal,
)
from kubeloop.informer import Lister, SharedInformerFactory
from kubeloop.objects.lazy import LazyObject
from kubeloop.objects.meta import JsonObject

LABEL = "example.com/team"
OURS = {"app.kubernetes.io/managed-by": "team-example"}
log = logging.getLogger("controller")


class TeamReconciler:
    """Compares what is with what should be; what happened, it need not know."""

    def __init__(
        self,
        namespaces: Lister[LazyObject],
        existing: Lister[LazyObject],
        config_maps: Resource[JsonObject],
    ) -> None:
        self._namespaces, self._existing, self._config_maps = namespaces, existing, config_maps

    async def __call__(self, request: Request) -> None:
        """Reconcile one namespace; an exception means: again, later each time."""
        namespace = self._namespaces.find("", request.name)
        if namespace is None or namespace.metadata.deletion_timestamp:
            return  # its ConfigMap goes with it
        team = (namespace.metadata.labels or {}).get(LABEL)
        found = self._existing.find(request.name, "team")
        if team is None and found is not None:
            with contextlib.suppress(NotFound):
                await self._config_maps.delete("team", namespace=request.name)
            log.info("namespace %s belongs to nobody", request.name)
        elif team and (found is None or found.to_dict().get("data") != {"team": team}):
            # Applying the same again changes nothing, so a cache that lags does no harm.
            wanted = make_config_map(request.name, team)
            await self._config_maps.apply(wanted, field_manager="team-example", force=True)
            log.info("namespace %s belongs to team %s", request.name, team)


def make_config_map(namespace: str, team: str) -> JsonObject:
    """What should be."""
    metadata = {"name": "team", "namespace": namespace, "labels": OURS}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"team": team}}


def to_namespace(config_map: LazyObject) -> list[Request]:
    """Whom to reconcile when one of ours changes."""
    return [Request("", config_map.metadata.namespace)]


async def main() -> None:
    """Run until SIGINT or SIGTERM."""
    async with Client.from_env() as client:
        factory = SharedInformerFactory(client)
        namespaces = factory.informer("v1/namespaces")
        existing = factory.informer("v1/configmaps", label_selector=OURS)
        writer = client.resource("v1/configmaps")
        reconciler = TeamReconciler(namespaces.lister, existing.lister, writer)
        controller = Controller("teams", reconciler, workers=2, timeout=30)
        controller.watch(namespaces, predicates=[labels_changed()])
        controller.watch(existing, mapping=map_func(to_namespace))
        manager = Manager()
        manager.add(Caches(factory), group=Group.CACHES)
        manager.add(controller)
        await run_until_signal(manager)


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, format="%(asctime)s %(message)s", level=logging.INFO)
    try:
        asyncio.run(main())
    except KubeError as error:
        sys.exit(f"controller: {error}")
