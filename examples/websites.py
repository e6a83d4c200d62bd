"""A controller of a resource of its own: a `Website` becomes a ConfigMap and says so in its status.

    kubectl apply -f examples/websites.yaml      # the CustomResourceDefinition
    kubectl apply -f examples/hello.yaml         # one Website
    python examples/websites.py                  # with a kubeconfig, or as a pod
    kubectl get websites                         # PAGE and READY are filled in
    kubectl delete website hello                 # waits for the finalizer

What a real one has: a typed resource, an owner, a status with a condition, events, a finalizer, leader
election, and probes on :8082. `docs/guide/controllers.md` explains it piece by piece.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import os
import socket
import sys

import msgspec

from kubeloop.client import Client, KubeError, Resource
from kubeloop.controller import (
    Caches,
    Controller,
    ElectionConfig,
    ElectionThread,
    EventRecorder,
    Finalizers,
    Group,
    HealthChecks,
    HealthServer,
    Manager,
    Request,
    TerminalError,
    for_owner,
    generation_changed,
    own_connection,
    run_until_signal,
)
from kubeloop.informer import Lister, SharedInformerFactory
from kubeloop.objects.conditions import Condition, with_condition
from kubeloop.objects.gvk import GroupVersionKind
from kubeloop.objects.meta import JsonObject, ObjectMeta
from kubeloop.objects.owners import owner_reference
from kubeloop.objects.patches import MergePatch

WEBSITE = GroupVersionKind("example.com", "v1", "Website")
WEBSITES = "example.com/v1/websites"
FINALIZER = "example.com/websites"
LONGEST = 1000
log = logging.getLogger("websites")


class Spec(msgspec.Struct, frozen=True):
    """What a user writes."""

    text: str = ""


class Status(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What we say about it."""

    page: str = ""
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()


class Website(msgspec.Struct, frozen=True):
    """One object, decoded straight from the server's bytes; what it does not name is skipped."""

    metadata: ObjectMeta
    spec: Spec = Spec()
    status: Status = Status()


def page_of(site: Website) -> JsonObject:
    """What should be."""
    owner = owner_reference(site, WEBSITE, controller=True)
    metadata = {
        "name": site.metadata.name,
        "namespace": site.metadata.namespace,
        "ownerReferences": [msgspec.to_builtins(owner)],
    }
    data = {"index.html": f"<h1>{site.spec.text}</h1>"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


class WebsiteReconciler:
    """Makes each Website's ConfigMap be as its text says."""

    def __init__(self, client: Client, websites: Lister[Website], recorder: EventRecorder) -> None:
        self._cached = websites
        self._websites: Resource[JsonObject] = client.resource(WEBSITES)
        self._pages: Resource[JsonObject] = client.resource("v1/configmaps")
        self._recorder = recorder
        self._finalizers: Finalizers[Website] = Finalizers({FINALIZER: self._take_down})

    async def __call__(self, request: Request) -> None:
        """Reconcile one; an exception means: again, later each time."""
        site = self._cached.find(request.namespace, request.name)
        if site is None:
            return  # gone, and its ConfigMap with it: the server collects what it owned
        result = await self._finalizers.finalize(site)
        if result.patch is not None:
            await self._websites.patch(request.name, result.patch, namespace=request.namespace)
        result.check()
        if site.metadata.deletion_timestamp is None:
            await self._publish(site)

    async def _publish(self, site: Website) -> None:
        if len(site.spec.text) > LONGEST:
            message = f"spec.text has {len(site.spec.text)} characters; {LONGEST} are the most"
            self._recorder.warning(site, "TooLong", message, gvk=WEBSITE)
            await self._report(site, Condition("Ready", "False", "TooLong", message))
            raise TerminalError(message)  # trying again cannot help: only a new text can
        await self._pages.apply(page_of(site), field_manager="websites", force=True)
        await self._report(site, Condition("Ready", "True", "Published"), page=site.metadata.name)
        log.info("published %s/%s", site.metadata.namespace, site.metadata.name)

    async def _report(self, site: Website, condition: Condition, *, page: str = "") -> None:
        meta = site.metadata
        conditions = with_condition(site.status.conditions, condition, now=dt.datetime.now(dt.UTC))
        wanted = Status(page, meta.generation or 0, conditions)
        if wanted != site.status:  # a status that says the same is not written again
            patch = MergePatch({"status": msgspec.to_builtins(wanted)})
            status = self._websites.subresource("status")
            await status.patch(meta.name, patch, namespace=meta.namespace)

    async def _take_down(self, site: Website) -> None:
        log.info("taking %s/%s down", site.metadata.namespace, site.metadata.name)


def make_manager(client: Client, *, identity: str, health_port: int) -> Manager:
    """Put the program together; nothing runs yet."""
    factory = SharedInformerFactory(client)
    websites = factory.informer(WEBSITES, Website)
    pages = factory.informer("v1/configmaps", metadata_only=True)
    recorder = EventRecorder("websites", client)
    reconciler = WebsiteReconciler(client, websites.lister, recorder)
    controller = Controller("websites", reconciler, workers=4, timeout=30)
    controller.watch(websites, predicates=[generation_changed()])
    controller.watch(pages, mapping=for_owner(WEBSITE))

    config = ElectionConfig(namespace="default", name="websites", identity=identity)
    election = ElectionThread(config=config, lease=own_connection(config, Client.from_env))
    manager = Manager(election=election)
    checks = HealthChecks("healthz", {"leader election": election.check})
    manager.add(HealthServer(healthz=checks, port=health_port), group=Group.SERVERS)
    manager.add(recorder, group=Group.RECORDERS)
    manager.add(Caches(factory, sync_timeout=60), group=Group.CACHES)
    manager.add(controller, warm=True)  # a standby has its caches filled before it is needed
    return manager


async def main() -> None:
    """Run until SIGINT or SIGTERM."""
    identity = f"{socket.gethostname()}-{os.getpid()}"
    async with Client.from_env() as client:
        manager = make_manager(client, identity=identity, health_port=8082)
        await run_until_signal(manager)


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, format="%(asctime)s %(message)s", level=logging.INFO)
    try:
        asyncio.run(main())
    except (KubeError, OSError) as error:  # OSError: its port is in use
        sys.exit(f"websites: {error}")
