"""A Service as a target, without a cluster behind it, and requests as rules see them."""

from __future__ import annotations

import asyncio

from elasti.api.wire import IncomingReply, WakeOutcome, WakePart
from elasti.resolver.projections import ListedEndpoint, PodName, ServiceKey
from elasti.resolver.proxy.upstream.interface import UpstreamAddress
from elasti.resolver.readiness.checks import Reachability
from elasti.resolver.readiness.plan import ProbePlan
from elasti.resolver.services.service import ServiceDeps, WakeableService

A, B = UpstreamAddress("10.0.0.1", 80), UpstreamAddress("10.0.0.2", 80)
NAME = PodName("shop", "web-1", "uid-1")


class Asked:
    def __init__(self, target="/", method="GET", **fields):
        self.target = target.encode()
        self.method = method.encode()
        self.host = b"web"
        self._fields = {name.replace("_", "-"): value.encode() for name, value in fields.items()}

    def field(self, name):
        return self._fields.get(name.decode())


class ServiceRig:
    def __init__(self):
        self.accepting: set[UpstreamAddress] = set()
        self.wakes: list[float] = []
        self.connects = 0
        self.parts: tuple[WakePart, ...] = ()
        self.foreign: set[str] = set()
        self.read: list[str] = []
        self.others: dict[ServiceKey, WakeableService] = {}
        self.deps = ServiceDeps(
            checks=self, pods=self, operator=self, durable=self, find=self.others.get
        )
        self.service = self.other("web")
        self.port = self.service.port("http")

    async def connect(self, address, *, timeout):
        self.connects += 1
        return Reachability.ACCEPTED if address in self.accepting else Reachability.REFUSED

    async def ask(self, host, question):
        return True

    async def plan(self, pod):
        return ProbePlan()

    async def owns(self, pod, address):
        self.read.append(address)
        await asyncio.sleep(0.005)
        return address not in self.foreign

    async def wake(self, key, *, count, client, wake_id):
        self.wakes.append(asyncio.get_running_loop().time())
        return IncomingReply(WakeOutcome.SCALING, parts=self.parts)

    async def write(self, key):
        raise AssertionError("the operator answers")

    def other(self, name):
        """A Service beside this one, in its namespace."""
        key = ServiceKey("shop", name)
        return self.others.setdefault(key, WakeableService(key, deps=self.deps))

    async def serving(self, **addresses):
        """Let slices point here, and pods be known."""
        self.service.publish(published=True)
        self.endpoints(**addresses)
        await asyncio.sleep(0.01)

    def endpoints(self, **addresses):
        places = {"a": A, "b": B}
        found = {
            places[name]: ListedEndpoint(ready, NAME._replace(uid=f"uid-{name}"))
            for name, ready in addresses.items()
        }
        self.service.set_endpoints({"http": found})
