"""The worker of one pod: the only one that changes what is known of it, or acts on it.

It sleeps until something happens (the object changed, a fact came, a rest is over), asks the plan
what to do, does it, and wants the status that follows. Everything that takes time runs in tasks of
its own which report facts; all of them end with the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import shutil
from typing import TYPE_CHECKING

from elasti.devcluster.kubelet.addresses import NoAddressLeft
from elasti.devcluster.kubelet.environment import command, environment
from elasti.devcluster.kubelet.fields import PodFacts
from elasti.devcluster.kubelet.logs.files import LogFile
from elasti.devcluster.kubelet.pods.container import ContainerRunner, Surroundings
from elasti.devcluster.kubelet.pods.plan import Finish, Prepare, Resting, Start, Stop, plan
from elasti.devcluster.kubelet.pods.restore import restore
from elasti.devcluster.kubelet.pods.state import Changed, Moment, Prepared, observe
from elasti.devcluster.kubelet.pods.status import compute_status
from elasti.devcluster.kubelet.pods.status_writer import StatusWriter
from elasti.devcluster.kubelet.pods.telling import Voice
from elasti.devcluster.kubelet.supervisor.spec import ProcessSpec
from elasti.devcluster.kubelet.volumes.manager import PodVolumes, VolumeError
from elasti.devcluster.kubelet.volumes.tokens import PodTokens
from kubeloop.aio.backoff import Backoff
from kubeloop.aio.tasks import BackgroundTasks

if TYPE_CHECKING:
    from pathlib import Path

    import aiohttp

    from elasti.devcluster.kubelet.addresses import AddressPool
    from elasti.devcluster.kubelet.objects.containers import Container
    from elasti.devcluster.kubelet.objects.pods import Pod
    from elasti.devcluster.kubelet.objects.status import PodStatus
    from elasti.devcluster.kubelet.pods.plan import Action
    from elasti.devcluster.kubelet.pods.state import Fact
    from elasti.devcluster.kubelet.pods.telling import Recorder
    from elasti.devcluster.kubelet.processes import Processes
    from elasti.devcluster.kubelet.references import ObjectCache, References
    from elasti.devcluster.kubelet.settings import KubeletSettings
    from kubeloop.aio.clock import Clock
    from kubeloop.client.client import Client
    from kubeloop.client.resource import Resource

_MOUNT_RETRY = Backoff(duration=0.5, factor=2.0, cap=60.0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What the workers of a node share."""

    root_dir: Path
    settings: KubeletSettings
    client: Client
    pods: Resource[Pod]
    processes: Processes
    session: aiohttp.ClientSession
    objects: ObjectCache
    addresses: AddressPool
    recorder: Recorder
    clock: Clock
    capacity: dict[str, str]
    api_server: tuple[str, int]
    started_at: float
    """When the kubelet began (loop time)."""


class PodWorker:
    """Runs one pod, from its first sight to its removal; `run` is its task."""

    def __init__(self, pod: Pod, node: Node) -> None:
        self._pod = pod
        self._node = node
        self._directory = node.root_dir / "pods" / pod.uid
        self._state = restore(pod, self._now())
        self._origin = self._now().loop
        self._spread = random.random()
        self._facts: list[Fact] = []
        self._awake = asyncio.Event()
        self._awake.set()
        self._objects_changed = asyncio.Event()
        self._runners: dict[str, ContainerRunner] = {}
        self._logs: dict[str, list[LogFile]] = self._logs_left()
        self._references: References | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._address = ""
        self._voice = Voice(node.recorder, lambda: self._pod)
        self._writer = StatusWriter(node.pods, pod, retry=node.settings.retry)
        self._volumes = PodVolumes(
            self._directory,
            tokens=PodTokens(node.client, pod, clock=node.clock),
            clock=node.clock,
        )

    @property
    def pod(self) -> Pod:
        """The pod as last seen."""
        return self._pod

    @property
    def status(self) -> PodStatus:
        """The newest status, written or not."""
        return self._writer.wanted

    @property
    def pids(self) -> tuple[int, ...]:
        """The first processes of its containers that run."""
        return tuple(pid for runner in self._runners.values() if (pid := runner.pid))

    def update(self, pod: Pod) -> None:
        """Take a newer version of the pod."""
        self._pod = pod
        self._awake.set()
        self._objects_changed.set()

    def vanish(self) -> None:
        """Hear that the object is gone, without the kubelet's doing: stop what runs."""
        meta = self._pod.metadata
        if meta.deletion_timestamp is None:
            grace = max(1, self._pod.spec.termination_grace_period_seconds)
            gone = type(meta)(**{f: getattr(meta, f) for f in meta.__struct_fields__})
            gone.deletion_timestamp = meta.creation_timestamp or "1970-01-01T00:00:00Z"
            gone.deletion_grace_period_seconds = grace
            spec, status = self._pod.spec, self._pod.status
            self._pod = type(self._pod)(metadata=gone, spec=spec, status=status)
        self._writer.is_gone = True
        self._awake.set()

    def log(self, container: str, *, previous: bool = False) -> LogFile | None:
        """Return the log of a container's present run, or of the one before."""
        logs = self._logs.get(container, [])
        at = 2 if previous else 1
        return logs[-at] if len(logs) >= at else None

    async def run(self) -> None:
        """Look after the pod until it is removed, or until cancelled."""
        try:
            async with BackgroundTasks() as tasks:
                tasks.start(self._writer.run(), name=f"status {self._pod.key}")
                await self._work(tasks)
        finally:
            self._let_go()

    async def _work(self, tasks: BackgroundTasks) -> None:
        while True:
            await self._awake.wait()
            self._awake.clear()
            facts, self._facts = self._facts, []
            for fact in facts:
                self._state = observe(self._state, fact)
            planned = plan(self._pod, self._state, self._now(), self._node.settings.restarts)
            self._state = planned.state
            self._want_status()
            for action in planned.actions:
                if isinstance(action, Finish):
                    await self._finish(action)
                    if action.remove:
                        return
                else:
                    self._act(action, tasks)
            self._wake_at(planned.wake_at)

    def _act(self, action: Action, tasks: BackgroundTasks) -> None:
        match action:
            case Prepare():
                self._preparing = tasks.start(self._prepare(), name=f"prepare {self._pod.key}")
            case Start(name=name, attempt=attempt):
                runner = self._runner(self._pod.container(name), attempt)
                self._runners[name] = runner
                tasks.start(runner.run(), name=f"container {self._pod.key} {name}")
            case Stop(name=name, why=why, deadline=deadline):
                stop = self._runners[name].stop(why, deadline)
                tasks.start(stop, name=f"stop {self._pod.key} {name}")
            case Resting(name=name):
                self._voice.resting(name)
            case Finish():
                pass

    # Time and facts

    def _now(self) -> Moment:
        return Moment(asyncio.get_running_loop().time(), self._node.clock.now())

    def _tell(self, fact: Fact) -> None:
        self._facts.append(fact)
        self._awake.set()

    def _wake_at(self, moment: float | None) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        loop = asyncio.get_running_loop()
        self._alarm = None if moment is None else loop.call_at(moment, self._awake.set)

    def _want_status(self) -> None:
        status = compute_status(
            self._pod,
            self._state,
            before=self._writer.wanted,
            host=self._node.settings.node_address,
            now=self._node.clock.now(),
        )
        self._writer.set(status)

    # Before the containers

    async def _prepare(self) -> None:
        """Get an address and volumes, keep the volumes up to date; ends with the worker."""
        address = await self._take_address()
        async with self._node.objects.references(self._pod, self._objects_changed.set) as objects:
            self._references = objects
            await self._mount(address, objects)
            self._volumes.write_hosts(self._pod, address)
            self._tell(Prepared(address))
            while True:
                await self._wait_for_changes()
                with contextlib.suppress(VolumeError):
                    await self._volumes.refresh(self._facts_of(address), objects)
                self._tell(Changed())

    async def _take_address(self) -> str:
        if self._pod.spec.host_network:
            return self._node.settings.node_address
        delays = _MOUNT_RETRY.start()
        while True:
            try:
                self._address = self._node.addresses.take()
            except NoAddressLeft as error:
                self._voice.no_address(f"Failed to create pod sandbox: {error}")
                await asyncio.sleep(delays.next_delay())
            else:
                return self._address

    async def _mount(self, address: str, objects: References) -> None:
        delays = _MOUNT_RETRY.start()
        while True:
            self._objects_changed.clear()
            try:
                await self._volumes.refresh(self._facts_of(address), objects)
            except VolumeError as error:
                self._voice.failed_mount(str(error))
            else:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delays.next_delay()):
                    await self._objects_changed.wait()

    async def _wait_for_changes(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._volumes.renew_at):
                await self._objects_changed.wait()
        self._objects_changed.clear()

    def _facts_of(self, address: str) -> PodFacts:
        return PodFacts(self._pod, address, self._node.settings.node_address, self._node.capacity)

    # Containers

    def _runner(self, container: Container, attempt: int) -> ContainerRunner:
        around = Surroundings(
            processes=self._node.processes,
            session=self._node.session,
            voice=self._voice,
            tell=self._tell,
            now=self._now,
            address=self._state.address,
            hostname=self._pod.hostname,
            origin=self._probe_origin,
            version=self._node.settings.short_version,
            is_ending=lambda: self._state.ending is not None,
        )
        return ContainerRunner(
            container,
            around,
            open_log=lambda: self._new_log(container.name, attempt),
            configure=lambda: self._configure(container),
        )

    def _probe_origin(self, period: float) -> float:
        """Return when ticks of a period began; spread out where the kubelet itself had just begun."""
        young = self._origin - self._node.started_at < period
        return self._origin + self._spread * period if young else self._origin

    def _logs_left(self) -> dict[str, list[LogFile]]:
        """Return what an earlier kubelet kept of this pod."""
        found: dict[str, list[LogFile]] = {}
        for path in sorted(self._directory.glob("logs/*/*.log"), key=lambda p: int(p.stem)):
            log = LogFile.left_by(path, clock=self._node.clock)
            found.setdefault(path.parent.name, []).append(log)
        return found

    def _new_log(self, name: str, attempt: int) -> LogFile:
        path = self._directory / "logs" / name / f"{attempt}.log"
        node = self._node
        log = LogFile(path, clock=node.clock, limit=node.settings.log_limit)
        logs = self._logs.setdefault(name, [])
        logs.append(log)
        while len(logs) > 2:
            logs.pop(0).remove()
        return log

    def _configure(self, container: Container) -> ProcessSpec:
        assert self._references is not None
        settings = self._node.settings
        facts = self._facts_of(self._state.address)
        isolated = self._node.processes.isolation.has_namespaces
        base = self._base_environment()
        if not isolated:
            base |= dict(self._volumes.variables(container))
        variables = environment(container, facts, self._references, base)
        entrypoint = settings.entrypoints.get(container.image, ())
        return ProcessSpec(
            argv=command(container, variables, entrypoint),
            env=variables,
            cwd=container.working_dir or "/",
            hostname=self._pod.hostname,
            mounts=self._volumes.mounts(self._pod, container, variables) if isolated else (),
        )

    def _base_environment(self) -> dict[str, str]:
        host, port = self._node.api_server
        return {
            **self._node.settings.environment,
            "HOSTNAME": self._pod.hostname,
            "POD_IP": self._state.address,
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": str(port),
            "KUBERNETES_SERVICE_PORT_HTTPS": str(port),
        }

    # After the containers

    async def _finish(self, action: Finish) -> None:
        await self._stop_preparing()
        self._free_address()
        self._volumes.remove()
        await self._writer.settled()
        if action.remove:
            await self._writer.remove()
            shutil.rmtree(self._directory, ignore_errors=True)

    async def _stop_preparing(self) -> None:
        task, self._preparing = self._preparing, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def _free_address(self) -> None:
        address, self._address = self._address, ""
        if address:
            self._node.addresses.free(address)

    def _let_go(self) -> None:
        self._wake_at(None)
        self._free_address()
        for logs in self._logs.values():
            for log in logs:
                log.close()
