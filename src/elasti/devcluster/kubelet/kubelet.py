"""The kubelet of one node.

    pool = AddressPool("127.20.0.0/16")
    kubelet = Kubelet(client, node_name="node-1", ip_pool=pool, root_dir=path)
    await kubelet.run()          # until cancelled; then nothing of it runs any more

It makes the node known, follows the pods that are bound to it, and gives each a worker. Pods that
ran under an earlier kubelet are started anew: their processes ended with that one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from typing import TYPE_CHECKING

from elasti.devcluster.kubelet.logs.server import KubeletServer
from elasti.devcluster.kubelet.logs.service import NodeLogs
from elasti.devcluster.kubelet.node.agent import NodeAgent
from elasti.devcluster.kubelet.node.objects import machine_capacity
from elasti.devcluster.kubelet.objects.pods import PODS, Pod
from elasti.devcluster.kubelet.pods.node import Node
from elasti.devcluster.kubelet.pods.worker import PodWorker
from elasti.devcluster.kubelet.probes.http import http_session
from elasti.devcluster.kubelet.processes import Processes
from elasti.devcluster.kubelet.references import ObjectCache
from elasti.devcluster.kubelet.settings import KubeletSettings
from kubeloop.aio.clock import SystemClock
from kubeloop.aio.tasks import BackgroundTasks
from kubeloop.controller.event_sink import ApiEventSink
from kubeloop.controller.events import EventRecorder
from kubeloop.controller.occurrences import Reporter
from kubeloop.informer.factory import SharedInformerFactory
from kubeloop.informer.notifications import Added, Deleted, Updated
from kubeloop.informer.options import SOON_AGAIN, ReflectorOptions

if TYPE_CHECKING:
    from pathlib import Path

    import aiohttp

    from elasti.devcluster.kubelet.addresses import AddressPool
    from kubeloop.aio.clock import Clock
    from kubeloop.client.client import Client
    from kubeloop.informer.notifications import Notification

_log = logging.getLogger(__name__)


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
    ) -> None:
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
        options = ReflectorOptions(backoff=SOON_AGAIN)
        self._factory = SharedInformerFactory(client, name=f"kubelet {node_name}", options=options)
        self._pods = self._factory.informer(PODS, Pod, field_selector=f"spec.nodeName={node_name}")
        self._workers: dict[str, PodWorker] = {}
        self._ready = asyncio.Event()
        self.logs = NodeLogs(self.worker)
        """What this node's containers print."""

    async def wait_ready(self) -> None:
        """Wait until the node is known and its pods have been seen."""
        await self._ready.wait()

    def worker(self, namespace: str, name: str) -> PodWorker | None:
        """Return the worker of the newest pod of that name."""
        key = f"{namespace}/{name}"
        found = [worker for worker in self._workers.values() if worker.pod.key == key]
        return found[-1] if found else None

    async def run(self) -> None:
        """Run until cancelled. When it returns, no process of a pod is left."""
        # Secrets lie below.
        (self._root_dir / "pods").mkdir(mode=0o700, parents=True, exist_ok=True)
        async with contextlib.AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(BackgroundTasks())
            tasks.start(self._recorder.run(), name="events")
            processes = await stack.enter_async_context(Processes(most=self.settings.isolation))
            session = await stack.enter_async_context(http_session())
            objects = ObjectCache(self._client)
            await stack.enter_async_context(objects.running())
            agent = NodeAgent(
                self._client,
                self.settings,
                name=self.node_name,
                capacity=self._capacity,
                port=await self._serve(stack),
                clock=self._clock,
            )
            await agent.register()
            node = self._node(processes, session, objects)
            workers = await stack.enter_async_context(BackgroundTasks())
            self._pods.add_handler(
                on_event=lambda note: self._see(note, node, workers), split_on_uid_change=True
            )
            await stack.enter_async_context(self._factory.running())
            await self._factory.wait_for_sync()
            self._sweep()
            self._ready.set()
            await agent.run()

    async def _serve(self, stack: contextlib.AsyncExitStack) -> int:
        """Start the kubelet's own server where one is wanted; returns its port, or 0."""
        if self.settings.server is None:
            return 0
        server = KubeletServer(
            self.settings.server,
            client=self._client,
            node=self.node_name,
            logs=self.logs,
            clock=self._clock,
        )
        return await stack.enter_async_context(server.listening(self.settings.node_address))

    def _sweep(self) -> None:
        """Remove what an earlier kubelet left of pods that are gone since."""
        known = {pod.uid for pod in self._pods.store.list()}
        directory = self._root_dir / "pods"
        for left in directory.iterdir():
            if left.name not in known:
                shutil.rmtree(left, ignore_errors=True)

    def _node(
        self, processes: Processes, session: aiohttp.ClientSession, objects: ObjectCache
    ) -> Node:
        endpoint = self._client.config.endpoint
        return Node(
            root_dir=self._root_dir,
            settings=self.settings,
            client=self._client,
            pods=self._client.resource(PODS, Pod),
            processes=processes,
            session=session,
            objects=objects,
            addresses=self._addresses,
            recorder=self._recorder,
            clock=self._clock,
            capacity=self._capacity,
            api_server=self.settings.api_server or (endpoint.host, endpoint.port),
            started_at=asyncio.get_running_loop().time(),
        )

    def _see(self, note: Notification[Pod], node: Node, tasks: BackgroundTasks) -> None:
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
                    worker.vanish()

    def _begin(self, pod: Pod, node: Node, tasks: BackgroundTasks) -> None:
        if pod.status.pod_ip:
            self._addresses.remember(pod.status.pod_ip)
        worker = self._workers[pod.uid] = PodWorker(pod, node)
        task = tasks.start(worker.run(), name=f"pod {pod.key}")
        task.add_done_callback(lambda _: self._workers.pop(pod.uid, None))
