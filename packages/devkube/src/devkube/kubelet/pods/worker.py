"""The worker of one pod: the only one that changes what is known of it, or acts on it.

It sleeps until something happens (the object changed, a fact came, a rest is over), asks the plan
what to do, does it, and wants the status that follows. Everything that takes time runs in tasks of
its own which report facts; all of them end with the worker.
"""

from __future__ import annotations

import asyncio
import shutil

import msgspec

from devkube.kubelet.logs.files import LogFile, PodLogStore
from devkube.kubelet.pod_types import KubeletPod, KubeletPodStatus
from devkube.kubelet.pods.container import ContainerRunner, RunContext
from devkube.kubelet.pods.plan import (
    FinishPod,
    PrepareSandbox,
    ReportBackOff,
    StartContainer,
    StopContainer,
    WorkerAction,
    plan_pod,
)
from devkube.kubelet.pods.reporting import PodEvents, StatusWriter
from devkube.kubelet.pods.sandbox import NodeContext, PodSandbox
from devkube.kubelet.pods.state import Moment, PodFact, observe
from devkube.kubelet.pods.status import compute_status, restore_state
from kubeloop.aio.tasks import BackgroundTasks
from kubeloop.objects.times import format_time


class PodWorker:
    """Runs one pod, from its first sight to its removal; `run` is its task."""

    def __init__(self, pod: KubeletPod, node: NodeContext) -> None:
        self._pod = pod
        self._node = node
        self._directory = node.root_dir / "pods" / pod.uid
        self._state = restore_state(pod, self._now())
        self._facts: list[PodFact] = []
        self._awake = asyncio.Event()
        self._awake.set()
        self._alarm: asyncio.TimerHandle | None = None
        self._runners: dict[str, ContainerRunner] = {}
        self._preparing: asyncio.Task[None] | None = None
        self._events = PodEvents(node.recorder, lambda: self._pod)
        self._writer = StatusWriter(node.pods, pod, retry=node.settings.retry)
        self._logs = PodLogStore(self._directory / "logs", clock=node.clock)
        self._sandbox = PodSandbox(
            lambda: self._pod, node, self._directory, events=self._events, report=self._report
        )

    @property
    def pod(self) -> KubeletPod:
        """The pod as last seen."""
        return self._pod

    @property
    def status(self) -> KubeletPodStatus:
        """The newest status, written or not."""
        return self._writer.wanted

    @property
    def pids(self) -> tuple[int, ...]:
        """The first processes of its containers that run."""
        return tuple(pid for runner in self._runners.values() if (pid := runner.pid))

    def log(self, container: str, *, previous: bool = False) -> LogFile | None:
        """Return the log of a container's present run, or of the one before."""
        return self._logs.find(container, previous=previous)

    def update(self, pod: KubeletPod) -> None:
        """Take a newer version of the pod."""
        before, self._pod = self._pod.metadata, pod
        self._writer.heard(pod.status)
        self._awake.set()
        after = pod.metadata
        if (before.labels, before.annotations) != (after.labels, after.annotations):
            self._sandbox.recheck()

    def object_deleted(self) -> None:
        """Stop what runs: another client has deleted the object."""
        if not self._pod.is_deleted:
            gone = msgspec.structs.replace(
                self._pod.metadata,
                deletion_timestamp=format_time(self._node.clock.now()),
                deletion_grace_period_seconds=max(
                    1, self._pod.spec.termination_grace_period_seconds
                ),
            )
            self._pod = msgspec.structs.replace(self._pod, metadata=gone)
        self._writer.is_gone = True
        self._awake.set()

    async def run(self) -> None:
        """Look after the pod until it is removed, or until cancelled."""
        try:
            async with BackgroundTasks() as tasks:
                tasks.start(self._writer.run(), name=f"status {self._pod.key}")
                await self._work(tasks)
        finally:
            self._wake_at(None)
            self._sandbox.give_back()
            self._logs.close()

    async def _work(self, tasks: BackgroundTasks) -> None:
        while True:
            await self._awake.wait()
            self._awake.clear()
            facts, self._facts = self._facts, []
            for fact in facts:
                self._state = observe(self._state, fact)
            planned = plan_pod(self._pod, self._state, self._now(), self._node.settings.restarts)
            self._state = planned.state
            self._want_status()
            for action in planned.actions:
                if isinstance(action, FinishPod):
                    await self._finish(action)
                    if action.remove:
                        return
                else:
                    self._act(action, tasks)
            self._wake_at(planned.wake_at)

    def _act(self, action: WorkerAction, tasks: BackgroundTasks) -> None:
        match action:
            case PrepareSandbox():
                self._preparing = tasks.start(self._sandbox.run(), name=f"prepare {self._pod.key}")
            case StartContainer(name=name, attempt=attempt):
                runner = self._runners[name] = self._runner(name, attempt)
                tasks.start(runner.run(), name=f"container {self._pod.key} {name}")
            case StopContainer(name=name, why=why, deadline=deadline):
                stop = self._runners[name].stop(why, deadline)
                tasks.start(stop, name=f"stop {self._pod.key} {name}")
            case ReportBackOff(name=name):
                text = f"Back-off restarting failed container {name} in pod {self._pod.title}"
                self._events.warning(name, "BackOff", text)
            case FinishPod():
                pass

    def _runner(self, name: str, attempt: int) -> ContainerRunner:
        container = self._pod.container(name)
        around = RunContext(
            processes=self._node.processes,
            events=self._events,
            report=self._report,
            now=self._now,
            address=self._state.address,
            version=self._node.settings.short_version,
            counts=self._node.counts,
            is_ending=lambda: self._state.ending is not None,
        )
        return ContainerRunner(
            container,
            around,
            open_log=lambda: self._logs.open(name, attempt),
            configure=lambda: self._sandbox.configure(container),
        )

    # Time and facts

    def _now(self) -> Moment:
        return Moment(asyncio.get_running_loop().time(), self._node.clock.now())

    def _report(self, fact: PodFact) -> None:
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

    # After the containers

    async def _finish(self, action: FinishPod) -> None:
        task, self._preparing = self._preparing, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self._sandbox.remove()
        await self._writer.settled()
        if action.remove:
            await self._writer.remove()
            shutil.rmtree(self._directory, ignore_errors=True)
