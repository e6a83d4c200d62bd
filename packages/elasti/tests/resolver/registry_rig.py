"""A registry and its listeners before a cluster in memory."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from elasti.resolver.ports.claims import PortClaims
from elasti.resolver.ports.listeners import ServicePortListeners
from elasti.resolver.projections import ServiceKey
from elasti.resolver.proxy.port_handler import DataPath
from elasti.resolver.services.registry import ServiceRegistry
from elasti.resolver.services.service import ServiceDeps
from kubeloop.aio.tasks import finish
from kubeloop.informer import SharedInformerFactory


class Unused:
    """A dependency that nothing should use here."""

    def __getattr__(self, name):
        raise AssertionError(name)


class BelievedPods(Unused):
    """Every slice tells the truth."""

    async def owns(self, _pod, _address):
        return True


class Rig:
    def __init__(self, cluster, settle, bounds=None, workers=1):
        self.factory = SharedInformerFactory(cluster)
        self.path = DataPath()
        claims = PortClaims(settle=settle)
        unused = Unused()
        self.registry = ServiceRegistry(
            factories=[self.factory],
            deps=ServiceDeps(checks=unused, pods=BelievedPods(), operator=unused, durable=unused),
            claims=claims,
            bounds=bounds,
            workers=workers,
        )
        self.listeners = ServicePortListeners(
            path=self.path,
            claims=claims,
            upstream=self.registry.port,
            host="127.0.0.1",
            closed=self.registry.unbound,
        )
        self.registry.attach(self.listeners)

    def service(self, name):
        return self.registry.get(ServiceKey("shop", name))

    def owner(self, port):
        listener = self.listeners._open.get(port)
        return listener.claim.key.service if listener else None


@contextlib.asynccontextmanager
async def rig(cluster, *, settle=0.2, bounds=None, workers=1):
    made = Rig(cluster, settle, bounds, workers)
    made.path.start()
    running = asyncio.create_task(made.listeners.run())
    try:
        async with made.factory.running():
            await made.factory.wait_for_sync(timeout=40)
            yield made
    finally:
        await finish([running])
        await made.registry.aclose()
        await made.path.aclose()


def refuses(port):
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) != 0
