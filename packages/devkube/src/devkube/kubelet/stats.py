"""A kubelet's report of its pods' traffic: `/stats/summary` on port 10250.

Pods here share the machine's network, where no counter is a pod's own. So the bytes are those that pass through
the service proxy, and what this kubelet's own probes would cost on a wire; what a client sends straight to a pod's address is
not among them. Counts begin when a pod is first read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Iterable

from aiohttp import web

from devkube.apiserver.auth import Gate, RequestCredentials
from devkube.apiserver.calls import Attributes
from devkube.apiserver.status import StatusError
from devkube.kubelet.pod_types import KubeletPod
from kubeloop.aio.clock import Clock
from kubeloop.objects.core import Probe
from kubeloop.objects.meta import JsonObject

PORT = 10250
CONNECTION = 676
"""Bytes of a connection's own packets on an Ethernet, with one packet of data each way."""
_PROBES = {"http_get": CONNECTION + 254, "tcp_socket": 412, "grpc": 1500}
_log = logging.getLogger(__name__)


class ByteCounts:
    """Bytes received and sent, by a pod's address."""

    def __init__(self) -> None:
        self._totals: dict[str, int] = {}

    def add(self, address: str, count: int) -> None:
        """Count what was received or sent."""
        self._totals[address] = self._totals.get(address, 0) + count

    def probed(self, address: str, probe: Probe) -> None:
        """Count a probe; a command sends no bytes."""
        for kind, size in _PROBES.items():
            if getattr(probe, kind) is not None:
                self.add(address, size)

    def total(self, address: str) -> int:
        """Return all of it."""
        return self._totals.get(address, 0)


@dataclasses.dataclass(eq=False)
class StatsServer:
    """Serves one node's statistics to those who may `get` `nodes/stats`."""

    node: str
    pods: Callable[[], Iterable[KubeletPod]]
    _: dataclasses.KW_ONLY
    counts: ByteCounts
    gate: Gate
    clock: Clock

    def __post_init__(self) -> None:
        self._first: dict[str, int] = {}

    def summary(self) -> JsonObject:
        """Return the statistics now."""
        now = self.clock.now().astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        pods = [pod for pod in self.pods() if pod.status.pod_ip]
        counted = {pod.uid: self.counts.total(pod.status.pod_ip) for pod in pods}
        self._first = {uid: self._first.get(uid, total) for uid, total in counted.items()}
        return {
            "node": {"nodeName": self.node},
            "pods": [
                {
                    "podRef": {
                        "name": pod.metadata.name,
                        "namespace": pod.metadata.namespace,
                        "uid": pod.uid,
                    },
                    "network": {
                        "time": now,
                        "name": "eth0",
                        # Of a connection through the proxy, both directions are counted as one.
                        "rxBytes": (grown := counted[pod.uid] - self._first[pod.uid]) // 2,
                        "txBytes": grown - grown // 2,
                    },
                }
                for pod in pods
            ],
        }

    async def _answer(self, request: web.Request) -> web.Response:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        asked = Attributes(
            verb="get",
            path=request.path,
            version="v1",
            resource="nodes",
            subresource="stats",
            name=self.node,
        )
        try:
            user = await self.gate.identify(RequestCredentials(token=token))
        except StatusError:
            return web.Response(status=401, text="Unauthorized")
        if not await self.gate.allows(user, asked):
            return web.Response(status=403, text=f"Forbidden (user={user.name}, verb=get)")
        return web.json_response(self.summary())

    @contextlib.asynccontextmanager
    async def serving(self, address: str, context: ssl.SSLContext) -> AsyncIterator[None]:
        """Serve at the node's address; without the port there are no statistics, and the log says so."""
        app = web.Application()
        app.router.add_get("/stats/summary", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, address, PORT, ssl_context=context).start()
        except OSError as error:
            _log.warning("node %s serves no statistics: %s", self.node, error)
        try:
            yield
        finally:
            await runner.cleanup()
