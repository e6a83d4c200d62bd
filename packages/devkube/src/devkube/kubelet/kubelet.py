"""The kubelet of one node, and its settings.

    pool = AddressPool("127.20.0.0/16")
    kubelet = Kubelet(client, node_name="node-1", ip_pool=pool, root_dir=path)
    await kubelet.run()          # until cancelled; then all of it has stopped

It makes the node known, follows the pods that are bound to it, and gives each a worker. Pods that
ran under an earlier kubelet are started again: their processes ended with that one.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from devkube.addresses import AddressPool
from devkube.kubelet.node import NodeAgent, machine_capacity
from devkube.kubelet.pod_types import PODS, KubeletPod
from devkube.kubelet.pods.plan import RestartPolicy
from devkube.kubelet.pods.sandbox import NodeContext
from devkube.kubelet.pods.worker import PodWorker
from devkube.kubelet.stats import ByteCounts
from devkube.kubelet.supervisor.processes import Processes
from devkube.kubelet.supervisor.spec import Isolation
from devkube.kubelet.volume_sources import ObjectCache
from kubeloop.aio.backoff import Backoff
from kubeloop.aio.clock import Clock, SystemClock
from kubeloop.aio.tasks import BackgroundTasks
from kubeloop.client.client import Client
from kubeloop.controller.events.event_types import Reporter
from kubeloop.controller.events.recorder import ApiEventSink, EventRecorder
from kubeloop.informer.factory import SharedInformerFactory
from kubeloop.informer.handlers import Added, Deleted, Notification, Updated
from kubeloop.informer.reflector.source import FAST_BACKOFF, ReflectorOptions

_RETRY = Backoff(duration=0.1, factor=2.0, jitter=0.2, cap=5.0)
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KubeletSettings:
    """Options of a kubelet; each has a default."""

    node_address: str = "127.0.0.1"
    environment: Mapping[str, str] = dataclasses.field(default_factory=lambda: {"PATH": PATH})
    """Variables that every container inherits, in place of an image's."""
    entrypoints: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """Programs of images: the command if a container names none."""
    version: str = "v1.36.3"
    restarts: RestartPolicy = dataclasses.field(default_factory=RestartPolicy)
    retry: Backoff = _RETRY
    """Between attempts to reach the API server."""
    lease_renewed_every: float = 10.0
    status_every: float = 300.0
    max_pods: int = 110
    isolation: Isolation = Isolation.PRIVILEGED
    """The isolation that containers get, if the machine allows it."""

    @property
    def short_version(self) -> str:
        """Major and minor, as probes name themselves."""
        return ".".join(self.version.lstrip("v").split(".")[:2])


class Kubelet:
    """Runs the pods of one node."""

    def __init__(
        self,
        client: Client,
        *,
        node_name: str,
        ip_pool: AddressPool,
        root_dir: Path,
        settings: KubeletSettings | None = None,
        clock: Clock | None = None,
        counts: ByteCounts | None = None,
    ) -> None:
        self._counts = counts or ByteCounts()
        self.node_name = node_name
        self.settings = settings = settings or KubeletSettings()
        self._client = client
        self._addresses = ip_pool
        self._root_dir = root_dir
        self._clock = clock or SystemClock()
        self._capacity = machine_capacity(settings)
        self._recorder = EventRecorder(
            Reporter("kubelet", node_name), ApiEventSink(client), clock=self._clock
        )
        options = ReflectorOptions(backoff=FAST_BACKOFF)
        self._factory = SharedInformerFactory(client, name=f"kubelet {node_name}", options=options)
        self._pods = self._factory.informer(
            PODS, KubeletPod, field_selector=f"spec.nodeName={node_name}"
        )
        self._workers: dict[str, PodWorker] = {}
        self._ready = asyncio.Event()

    async def wait_ready(self) -> None:
        """Wait until the node is known and its pods have been seen."""
        await self._ready.wait()

    def worker(self, namespace: str, name: str) -> PodWorker | None:
        """Return the worker of the newest pod of that name."""
        key = f"{namespace}/{name}"
        found = [worker for worker in self._workers.values() if worker.pod.key == key]
        return found[-1] if found else None

    def pods(self) -> Iterable[KubeletPod]:
        """Return the pods of this node, as they were last seen."""
        return self._pods.store.list()

    async def run(self) -> None:
        """Run until cancelled. When it returns, no process of a pod is left."""
        # Secrets lie below.
        (self._root_dir / "pods").mkdir(mode=0o700, parents=True, exist_ok=True)
        async with contextlib.AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(BackgroundTasks())
            tasks.start(self._recorder.run(), name="events")
            processes = await stack.enter_async_context(Processes(most=self.settings.isolation))
            objects = ObjectCache(self._client)
            await stack.enter_async_context(objects.running())
            agent = NodeAgent(
                self._client,
                self.settings,
                name=self.node_name,
                capacity=self._capacity,
                clock=self._clock,
            )
            await agent.register()
            node = self._node(processes, objects)
            workers = await stack.enter_async_context(BackgroundTasks())
            self._pods.add_handler(
                on_event=lambda note: self._see(note, node, workers), split_on_uid_change=True
            )
            await stack.enter_async_context(self._factory.running())
            await self._factory.wait_for_sync()
            self._sweep()
            self._ready.set()
            await agent.run()

    def _sweep(self) -> None:
        """Remove what an earlier kubelet left of pods that are gone since."""
        known = {pod.uid for pod in self._pods.store.list()}
        directory = self._root_dir / "pods"
        for left in directory.iterdir():
            if left.name not in known:
                shutil.rmtree(left, ignore_errors=True)

    def _node(self, processes: Processes, objects: ObjectCache) -> NodeContext:
        endpoint = self._client.config.endpoint
        return NodeContext(
            root_dir=self._root_dir,
            settings=self.settings,
            client=self._client,
            pods=self._client.resource(PODS, KubeletPod),
            processes=processes,
            objects=objects,
            addresses=self._addresses,
            recorder=self._recorder,
            clock=self._clock,
            api_server=(endpoint.host, endpoint.port),
            counts=self._counts,
        )

    def _see(
        self, note: Notification[KubeletPod], node: NodeContext, tasks: BackgroundTasks
    ) -> None:
        match note:
            case Added(obj=pod):
                self._begin(pod, node, tasks)
            case Updated(new=pod):
                worker = self._workers.get(pod.uid)
                if worker is None:
                    self._begin(pod, node, tasks)
                else:
                    worker.update(pod)
            case Deleted(obj=pod):
                worker = self._workers.get(pod.uid)
                if worker is not None:
                    worker.object_deleted()

    def _begin(self, pod: KubeletPod, node: NodeContext, tasks: BackgroundTasks) -> None:
        if pod.status.pod_ip:
            self._addresses.remember(pod.status.pod_ip)
        worker = self._workers[pod.uid] = PodWorker(pod, node)
        task = tasks.start(worker.run(), name=f"pod {pod.key}")
        task.add_done_callback(lambda _: self._workers.pop(pod.uid, None))
