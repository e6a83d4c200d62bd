"""A whole cluster in one process: API server, controllers, kubelets, service proxy.

    async with DevCluster(port=7443) as cluster:
        cluster.url, cluster.access()
        await cluster.wait_ready()
        await cluster.failed()          # returns never, raises when a component dies

Every component is a client of its own, with its own certificate and only its own rights; they meet at
the API server, as in any cluster. Leaving the block stops the components first, which ends every
pod's processes, then their clients, then the server.

Images are names of local programs, run where a container has no command. The most exact name wins:
the image as written, then without its tag, then its last part alone.

    programs = ImagePrograms({"nginx": ("nginx", "-g", "daemon off;")})
    programs.get("docker.io/library/nginx:1.27")        # the same, whatever registry and tag
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import logging
import shlex
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from devkube import addresses, datadir
from devkube.addresses import AddressRanges
from devkube.apiserver.auth import ADMIN_GROUP
from devkube.apiserver.registry import admission
from devkube.apiserver.server import ApiServer
from devkube.auth.gate import NODE_PREFIX, NODES
from devkube.auth.install import CONTROLLER_MANAGER, SERVICE_PROXY, fill, install
from devkube.auth.jwt import SigningKey
from devkube.controllers.manager import ControllerManager
from devkube.datadir import scratch_directory
from devkube.faults import ClusterFaults, NodePartitions
from devkube.kubeconfig import ClusterAccess
from devkube.kubelet.kubelet import Kubelet, KubeletSettings
from devkube.kubelet.logs.reading import PodLogs
from devkube.kubelet.stats import ByteCounts, StatsServer
from devkube.serviceproxy.proxy import PropagationDelay, ServiceProxy
from kubeloop.aio.clock import Clock, SystemClock
from kubeloop.aio.tasks import BackgroundTasks
from kubeloop.client.client import Client
from kubeloop.controller.events.event_types import Reporter
from kubeloop.controller.events.recorder import ApiEventSink, EventRecorder
from kubeloop.objects.meta import JsonObject

_log = logging.getLogger(__name__)


class ImagePrograms(Mapping[str, tuple[str, ...]]):
    """A mapping from images to commands that knows how images are written."""

    def __init__(self, commands: Mapping[str, tuple[str, ...]]) -> None:
        self._commands = dict(commands)

    def __getitem__(self, image: str) -> tuple[str, ...]:
        for name in image_names(image):
            if name in self._commands:
                return self._commands[name]
        raise KeyError(image)

    def __iter__(self) -> Iterator[str]:
        return iter(self._commands)

    def __len__(self) -> int:
        return len(self._commands)


def image_names(image: str) -> tuple[str, ...]:
    """Return the names by which an image may be meant, the most exact first."""
    untagged = image.partition("@")[0]
    last = untagged.rpartition("/")[2]
    repository = untagged.removesuffix(f":{last.partition(':')[2]}") if ":" in last else untagged
    return image, untagged, repository, repository.rpartition("/")[2]


def read_program(text: str) -> tuple[str, tuple[str, ...]]:
    """Read `IMAGE=COMMAND`; raises ValueError that says what is wrong."""
    image, equals, command = text.partition("=")
    words = tuple(shlex.split(command))
    if not image or not equals or not words:
        raise ValueError(f"{text!r} is not IMAGE=COMMAND, such as 'nginx=nginx -g \"daemon off;\"'")
    return image, words


class PortInUse(Exception):
    """Another process listens where the API server should."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(
            f"port {port} on {host} is in use; stop what listens there, or choose another with"
            " --port (0 takes any that is free)"
        )


class ComponentFailed(Exception):
    """A part of the cluster ended by itself; the cause is chained."""


class DevCluster:
    """A cluster that runs between `__aenter__` and `__aexit__`.

    With a `data_dir` everything that was acknowledged survives the process, its nodes too, whatever
    number is asked for next; without, nothing does. In place of images: every container inherits
    `environment`, and `entrypoints` has the program of an image (see `ImagePrograms`). Raises
    PortInUse, DirectoryInUse or NoAddresses when it cannot start.
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
        clock: Clock | None = None,
    ) -> None:
        if not 0 <= nodes <= addresses.MOST_NODES:
            raise ValueError(f"nodes: {nodes} is not between 0 and {addresses.MOST_NODES}")
        self._host = host
        self._port = port
        self._data_dir = data_dir
        self._clock = clock or SystemClock()
        self._environment = environment or {}
        self._programs = ImagePrograms(entrypoints or {})
        self.node_names = tuple(f"node-{number}" for number in range(1, nodes + 1))
        self.propagation = PropagationDelay()
        self._running = contextlib.AsyncExitStack()
        self._failure: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            self._failure = asyncio.get_running_loop().create_future()
            self.ranges = self._reserve(stack)
            self.server = self._make_server()
            self.auth = install(self.server.core, key=self._signing_key())
            self.partitions = NodePartitions(self.server.core.faults)
            self.auth.gate.authenticators.insert(0, self.partitions)
            await self._serve(stack)
            fill(self.server.core, self.auth)
            self._keep_nodes()
            admission.move_services(self.server.core.store, network=self.ranges.services)
            admission.make_server_reachable(self.server.core.store, port=self.server.port)
            await self._start_components(stack)
            self._running = stack.pop_all()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._running.aclose()
        if self._failure is not None and self._failure.done():
            self._failure.exception()

    @property
    def url(self) -> str:
        """Where the API server listens."""
        return self.server.url

    def access(
        self, user: str = "dev-admin", groups: tuple[str, ...] = (ADMIN_GROUP,)
    ) -> ClusterAccess:
        """Return what a kubeconfig needs, for an administrator or any other user."""
        return self.server.access(user, groups)

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

    def _reserve(self, stack: contextlib.AsyncExitStack) -> AddressRanges:
        if self._data_dir is None:
            return stack.enter_context(addresses.reserved())
        stack.enter_context(datadir.locked(self._data_dir))
        preferred = datadir.read_ranges(self._data_dir)
        ranges = stack.enter_context(addresses.reserved(preferred=preferred))
        datadir.keep_ranges(self._data_dir, ranges.name)
        return ranges

    def _make_server(self) -> ApiServer:
        return ApiServer(
            host=self._host,
            port=self._port,
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

    def _keep_nodes(self) -> None:
        """Have the nodes that a directory has, too: their pods are there, and kubectl shows them."""
        nodes = self.server.core.store.collection("/nodes")
        while self.node_names and nodes.get(name := f"node-{len(self.node_names) + 1}"):
            self.node_names = (*self.node_names, name)

    async def _start_components(self, stack: contextlib.AsyncExitStack) -> None:
        controllers, proxy = [
            await stack.enter_async_context(Client(self.server.client_config(user)))
            for user in (CONTROLLER_MANAGER, SERVICE_PROXY)
        ]
        self.controllers = ControllerManager(
            controllers, clock=self._clock, root_ca=self.server.ca_pem
        )
        recorder = EventRecorder(Reporter("service-proxy"), ApiEventSink(proxy), clock=self._clock)
        counts = ByteCounts()
        self.proxy = ServiceProxy(
            proxy, propagation=self.propagation, recorder=recorder, counts=counts
        )
        ClusterFaults(
            controllers=self.controllers,
            partitions=self.partitions,
            nodes=self.node_names,
            propagation=self.propagation,
        ).serve(self.server.core.paths)
        self.kubelets = await self._make_kubelets(stack, counts)
        tasks = await stack.enter_async_context(BackgroundTasks(on_error=self._component_failed))
        for kubelet in self.kubelets:
            tasks.start(_endless(kubelet.run), name=f"kubelet of {kubelet.node_name}")
        tasks.start(_endless(self.controllers.run), name="controllers")
        tasks.start(_endless(recorder.run), name="events of the service proxy")
        tasks.start(_endless(self.proxy.run), name="service proxy")

    async def _make_kubelets(
        self, stack: contextlib.AsyncExitStack, counts: ByteCounts
    ) -> list[Kubelet]:
        if not self.node_names:
            return []
        directory = self._node_directory(stack)
        kubelets = [
            await self._make_kubelet(stack, number, directory / name, counts)
            for number, name in enumerate(self.node_names, start=1)
        ]
        self._serve_logs(kubelets)
        return kubelets

    async def _make_kubelet(
        self, stack: contextlib.AsyncExitStack, number: int, directory: Path, counts: ByteCounts
    ) -> Kubelet:
        """Make a node's kubelet, with a client, addresses and a directory of its own."""
        name, clock = directory.name, self._clock
        config = self.server.client_config(f"{NODE_PREFIX}{name}", [NODES])
        client = await stack.enter_async_context(Client(config))
        address = self.ranges.node(number)
        settings = KubeletSettings(node_address=address, entrypoints=self._programs)
        if self._environment:
            settings = dataclasses.replace(settings, environment=self._environment)
        kubelet = Kubelet(
            client,
            node_name=name,
            ip_pool=addresses.AddressPool(self.ranges.pods(number)),
            root_dir=directory,
            settings=settings,
            clock=clock,
            counts=counts,
        )
        gate = self.server.core.gate
        stats = StatsServer(name, kubelet.pods, counts=counts, gate=gate, clock=clock)
        tls = self.server.server_tls([address, name])
        await stack.enter_async_context(stats.serving(address, tls))
        return kubelet

    def _serve_logs(self, kubelets: Sequence[Kubelet]) -> None:
        """Let the API server answer `pods/log` from the nodes of this process."""
        core = self.server.core
        workers = {kubelet.node_name: kubelet.worker for kubelet in kubelets}

        def find_pod(namespace: str, name: str) -> JsonObject | None:
            record = core.store.collection("/pods").get(f"{namespace}/{name}")
            return record.decode() if record is not None else None

        answers = PodLogs(find_pod=find_pod, node=workers.get, clock=self._clock)
        core.streams["pods", "log"] = answers.answer

    def _node_directory(self, stack: contextlib.AsyncExitStack) -> Path:
        if self._data_dir is not None:
            return self._data_dir / "nodes"
        return stack.enter_context(scratch_directory())

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
