"""A whole cluster in one process: API server, controllers, kubelets, service proxy.

    async with DevCluster(port=7443) as cluster:
        cluster.url, cluster.access()
        await cluster.wait_ready()
        await cluster.failed()          # returns never, raises when a component dies

Every component is a client of its own, with its own certificate and only its own rights; they meet at
the API server, as in any cluster. Leaving the block stops the components first, which ends every
pod's processes, then their clients, then the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from typing import TYPE_CHECKING, Self

from elasti.devcluster import addresses, datadir, identities, netns, services
from elasti.devcluster.addresses import Ranges
from elasti.devcluster.apiserver.auth import ADMIN_GROUP
from elasti.devcluster.apiserver.server import ApiServer
from elasti.devcluster.auth.install import fill, install
from elasti.devcluster.auth.jwt import SigningKey
from elasti.devcluster.controllers.controllers import Controllers
from elasti.devcluster.images import Programs
from elasti.devcluster.knobs import Knobs
from elasti.devcluster.kubeconfig import Access
from elasti.devcluster.partitions import Partitions
from elasti.devcluster.scratch import scratch_directory
from elasti.devcluster.serviceproxy.propagation import Propagation
from elasti.devcluster.serviceproxy.proxy import ServiceProxy
from kubeloop.aio.clock import SystemClock
from kubeloop.aio.tasks import BackgroundTasks
from kubeloop.client.client import Client
from kubeloop.controller.event_sink import ApiEventSink
from kubeloop.controller.events import EventRecorder
from kubeloop.controller.occurrences import Reporter

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine, Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import Any

    from elasti.devcluster.kubelet.kubelet import Kubelet
    from kubeloop.aio.clock import Clock
    from kubeloop.client.config import ClientConfig

_log = logging.getLogger(__name__)

CONTEXT = "elasti-dev"
_PORT_INSIDE = 6443


class PortInUse(Exception):
    """Somebody else listens where the API server should."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(
            f"port {port} on {host} is in use; stop what listens there, or choose another with"
            " --port (0 takes any that is free)"
        )


class ComponentFailed(Exception):
    """A part of the cluster ended by itself; the cause is chained."""


class DevCluster:
    """A cluster that runs between `__aenter__` and `__aexit__`.

    With a `data_dir` everything that was acknowledged survives the process; without, nothing does.
    Where an image would say: `environment` is what every container inherits, `entrypoints` what runs
    for an image (see `images`). `outside` is for a process in a network namespace of its own: a socket that
    listens outside of it, in place of host and port.
    Raises PortInUse, DirectoryInUse or NoAddresses when it cannot start.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        data_dir: Path | None = None,
        nodes: int = 1,
        environment: Mapping[str, str] | None = None,
        entrypoints: Mapping[str, tuple[str, ...]] | None = None,
        outside: socket.socket | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not 0 <= nodes <= addresses.MOST_NODES:
            raise ValueError(f"nodes: {nodes} is not between 0 and {addresses.MOST_NODES}")
        self._host = host
        self._port = port
        self._data_dir = data_dir
        self._clock = clock or SystemClock()
        self._environment = environment or {}
        self._programs = Programs(entrypoints or {})
        self._outside = outside
        self.node_names = tuple(f"node-{number}" for number in range(1, nodes + 1))
        self.propagation = Propagation()
        self._running = contextlib.AsyncExitStack()
        self._failure: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            self._failure = asyncio.get_running_loop().create_future()
            self.ranges = self._reserve(stack)
            self.server = self._make_server()
            self.auth = install(
                self.server.core, key=self._signing_key(), authority=self.server.ca_pem
            )
            self.partitions = Partitions(self.server.core.faults)
            self.auth.gate.authenticators.insert(0, self.partitions)
            await self._serve(stack)
            fill(self.server.core, self.auth)
            services.move(self.server.core.store, network=self.ranges.services)
            services.make_reachable(self.server.core.store, port=self.server.port)
            await self._start_components(stack)
            self._running = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._running.aclose()
        if self._failure is not None and self._failure.done():
            self._failure.exception()

    @property
    def url(self) -> str:
        """Where the API server is reached from outside."""
        if self._outside is None:
            return self.server.url
        host, port = self._outside_name
        return f"https://{host}:{port}"

    def access(self, user: str = "dev-admin", groups: tuple[str, ...] = (ADMIN_GROUP,)) -> Access:
        """Return what a kubeconfig needs, for the administrator or anybody else."""
        return Access(
            name=CONTEXT,
            server=self.url,
            authority=self.server.ca_pem,
            identity=self.server.client_certificate(user, groups),
        )

    async def wait_ready(self) -> None:
        """Wait until every node is ready. Raises ComponentFailed."""
        failed = asyncio.ensure_future(self.failed())
        ready = asyncio.ensure_future(self._nodes_ready())
        try:
            await asyncio.wait({failed, ready}, return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                await failed
        finally:
            failed.cancel()
            ready.cancel()
            await asyncio.gather(failed, ready, return_exceptions=True)

    async def failed(self) -> None:
        """Wait for a component to fail, and raise ComponentFailed then."""
        assert self._failure is not None
        await asyncio.shield(self._failure)

    def _reserve(self, stack: contextlib.AsyncExitStack) -> Ranges:
        if self._data_dir is None:
            return self._take_ranges(stack, "")
        stack.enter_context(datadir.locked(self._data_dir))
        ranges = self._take_ranges(stack, datadir.read_ranges(self._data_dir))
        datadir.keep_ranges(self._data_dir, ranges.name)
        return ranges

    def _take_ranges(self, stack: contextlib.AsyncExitStack, preferred: str) -> Ranges:
        if self._outside is not None:
            return Ranges.private()
        return stack.enter_context(addresses.reserved(preferred=preferred))

    def _make_server(self) -> ApiServer:
        inside = self._outside is not None
        return ApiServer(
            host=self.ranges.server if inside else self._host,
            port=_PORT_INSIDE if inside else self._port,
            hosts=("localhost", "127.0.0.1"),
            data_dir=self._data_dir,
            clock=self._clock,
            service_network=self.ranges.services,
        )

    def _signing_key(self) -> SigningKey:
        if self._data_dir is None:
            return SigningKey.create()
        return SigningKey.kept_in(self._data_dir)

    async def _serve(self, stack: contextlib.AsyncExitStack) -> None:
        try:
            await stack.enter_async_context(self.server)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise PortInUse(self._host, self._port) from error
        if self._outside is not None:
            self._outside_name = self._outside.getsockname()
            inside = (self.server.host, self.server.port)
            await stack.enter_async_context(netns.relaying(self._outside, inside))

    async def _start_components(self, stack: contextlib.AsyncExitStack) -> None:
        controllers = await self._client(stack, identities.controller_manager(self.server))
        proxy = await self._client(stack, identities.service_proxy(self.server))
        self.controllers = Controllers(controllers, clock=self._clock, root_ca=self.server.ca_pem)
        recorder = EventRecorder(Reporter("service-proxy"), ApiEventSink(proxy), clock=self._clock)
        self.proxy = ServiceProxy(proxy, propagation=self.propagation, recorder=recorder)
        Knobs(
            controllers=self.controllers,
            partitions=self.partitions,
            nodes=self.node_names,
            propagation=self.propagation,
        ).serve(self.server.core.paths)
        self.kubelets = await self._make_kubelets(stack)
        tasks = await stack.enter_async_context(BackgroundTasks(on_error=self._component_failed))
        for kubelet in self.kubelets:
            tasks.start(_endless(kubelet.run), name=f"kubelet of {kubelet.node_name}")
        tasks.start(_endless(self.controllers.run), name="controllers")
        tasks.start(_endless(recorder.run), name="events of the service proxy")
        tasks.start(_endless(self.proxy.run), name="service proxy")

    async def _make_kubelets(self, stack: contextlib.AsyncExitStack) -> list[Kubelet]:
        if not self.node_names:
            return []
        # An API server without nodes starts sooner without them.
        from elasti.devcluster import nodes  # noqa: PLC0415

        options = nodes.NodeOptions(
            server=self.server,
            ranges=self.ranges,
            directory=self._node_directory(stack),
            environment=self._environment,
            entrypoints=self._programs,
            clock=self._clock,
        )
        kubelets = await nodes.make_kubelets(stack, self.node_names, options)
        nodes.serve_logs(self.server.core, kubelets, self._clock)
        return kubelets

    def _node_directory(self, stack: contextlib.AsyncExitStack) -> Path:
        if self._data_dir is not None:
            return self._data_dir / "nodes"
        return stack.enter_context(scratch_directory())

    async def _client(self, stack: contextlib.AsyncExitStack, config: ClientConfig) -> Client:
        return await stack.enter_async_context(Client(config))

    def _component_failed(self, name: str, error: BaseException) -> None:
        assert self._failure is not None
        _log.error("%s failed", name, exc_info=error)
        if not self._failure.done():
            failure = ComponentFailed(f"{name} failed: {error}")
            failure.__cause__ = error
            self._failure.set_exception(failure)

    async def _nodes_ready(self) -> None:
        await self.controllers.wait_synced()
        nodes = self.server.core.store.collection("/nodes")
        while not all(self._is_ready(name) for name in self.node_names):
            await nodes.log.changed()

    def _is_ready(self, name: str) -> bool:
        record = self.server.core.store.collection("/nodes").get(name)
        conditions = (record.decode().get("status") or {}).get("conditions") if record else None
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions or ())


async def _endless(run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a component; one that returns has failed as much as one that raises."""
    await run()
    raise RuntimeError("it stopped without being asked to")
