"""One run of one container: from its environment to its exit.

`run` is a task of the pod's worker and reports everything to it as facts. A stop is a hook, SIGTERM, and
SIGKILL at the deadline; it may be asked for again with an earlier one. After SIGTERM a program has two
seconds at least, however late it is.

A few times after a start, /proc is searched for programs that listen on all addresses, where they must
use their pod's own; an event reports one.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any

from devkube.kubelet.environment import ConfigurationError
from devkube.kubelet.logs.files import LogFile, OutputPipe
from devkube.kubelet.pod_types import ContainerSpec, ContainerStateWaiting
from devkube.kubelet.pods.reporting import PodEvents
from devkube.kubelet.pods.state import (
    Blocked,
    Exited,
    Moment,
    PodFact,
    Probed,
    ProbeKind,
    Started,
    StartFailed,
    StopReason,
)
from devkube.kubelet.probes import ContainerChecks, ProbeLoop
from devkube.kubelet.stats import ByteCounts
from devkube.kubelet.supervisor import linux
from devkube.kubelet.supervisor.processes import Process, Processes, StartError
from devkube.kubelet.supervisor.spec import ProcessSpec
from kubeloop.aio.tasks import BackgroundTasks, finish
from kubeloop.probes.checks import ProbeOutcome

_LEAST_GRACE = 2.0
_KILLING = {
    StopReason.LIVENESS: "Container {name} failed liveness probe, will be restarted",
    StopReason.STARTUP: "Container {name} failed startup probe, will be restarted",
}
_SCANS = (0.3, 0.7, 2.0, 7.0)
"""Seconds between scans: programs take their time to listen."""
_LISTENING = "0A"
_ANY = ("00000000", "0" * 32)
_START_ERROR = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc"
    " create failed: unable to start container process: "
)
_CONFIG_RETRY = 10.0


class ContainerStop:
    """One stop; `deadline` is when patience ends (loop time)."""

    def __init__(self, process: Process, *, deadline: float) -> None:
        self._process = process
        self._deadline = deadline
        self._hurried = asyncio.Event()

    def hurry(self, deadline: float) -> None:
        """Have less patience."""
        self._deadline = min(deadline, self._deadline)
        self._hurried.set()

    async def first(self, hook: Coroutine[Any, Any, ProbeOutcome]) -> str:
        """Run a hook, as long as there is time and the program runs; returns what went wrong."""
        running = asyncio.create_task(hook)
        ended = asyncio.create_task(self._process.wait())
        try:
            while not running.done() and not ended.done():
                if not await self._wait(self._deadline, running, ended):
                    return "it did not end within the grace period"
            if not running.done():
                return ""
            outcome = await running
            return "" if outcome.healthy else outcome.message or "it failed"
        finally:
            await finish([running, ended])

    async def end(self) -> None:
        """Signal the program, and return when it has ended."""
        asked = asyncio.get_running_loop().time()
        self._process.stop()
        ended = asyncio.create_task(self._process.wait())
        try:
            while not ended.done():
                if not await self._wait(max(self._deadline, asked + _LEAST_GRACE), ended):
                    self._process.kill()
                    await self._process.wait()
                    return
        finally:
            await finish([ended])

    async def _wait(self, deadline: float, *tasks: asyncio.Task[Any]) -> bool:
        """Wait for one of them or for a hurry; False when the deadline came first."""
        self._hurried.clear()
        hurried = asyncio.create_task(self._hurried.wait())
        patience = max(0.0, deadline - asyncio.get_running_loop().time())
        try:
            done, _ = await asyncio.wait(
                [*tasks, hurried], timeout=patience, return_when=asyncio.FIRST_COMPLETED
            )
            return bool(done)
        finally:
            await finish([hurried])


async def find_wildcard(pid: int) -> int | None:
    """Return the port that a process tree listens on everywhere; None if it does not."""
    for pause in _SCANS:
        await asyncio.sleep(pause)
        port = await asyncio.to_thread(scan_listening, pid)
        if port is not None:
            return port
    return None


def scan_listening(pid: int) -> int | None:
    """Scan once."""
    found = dict(_wildcards(pid))
    if not found:
        return None
    for inode in sockets((pid, *linux.descendants(pid))):
        if inode in found:
            return found[inode]
    return None


def _wildcards(pid: int) -> Iterator[tuple[str, int]]:
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), Path(f"/proc/{pid}/net/{name}").open() as table:
            yield from wildcards(table)


def wildcards(table: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield inode and port of every socket of a kernel's table that listens on all addresses.

    The kernel lists those that listen first. The rest is not read: after a burst of traffic it has
    tens of thousands of lines, most of them of connections that are over.
    """
    for line in itertools.islice(table, 1, None):
        fields = line.split()
        if fields[3] != _LISTENING:
            return
        address, _, port = fields[1].partition(":")
        if address in _ANY:
            yield fields[9], int(port, 16)


def sockets(pids: Iterable[int]) -> Iterator[str]:
    """Yield the inodes of the sockets that processes hold."""
    for pid in pids:
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    target = str(descriptor.readlink())
                    if target.startswith("socket:["):
                        yield target[8:-1]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The parts of its node and its pod that a run needs."""

    processes: Processes
    events: PodEvents
    report: Callable[[PodFact], None]
    now: Callable[[], Moment]
    address: str
    version: str
    counts: ByteCounts
    is_ending: Callable[[], bool]
    """Whether the whole pod is being stopped."""


@dataclasses.dataclass(eq=False)
class ContainerRunner:
    """One run. `configure` returns what to run, or raises ConfigurationError."""

    container: ContainerSpec
    context: RunContext
    open_log: Callable[[], LogFile]
    configure: Callable[[], ProcessSpec]

    def __post_init__(self) -> None:
        self._process: Process | None = None
        self._spec: ProcessSpec | None = None
        self._stop: ContainerStop | None = None
        self.container_id: str = f"devkube://{uuid.uuid4().hex}{uuid.uuid4().hex}"

    @property
    def name(self) -> str:
        """The container's name."""
        return self.container.name

    @property
    def pid(self) -> int:
        """Its first process; 0 if none runs."""
        process = self._process
        return process.pid if process is not None and process.is_running else 0

    async def run(self) -> None:
        """Start it and stay until it has ended."""
        context = self.context
        try:
            self._spec = self.configure()
        except ConfigurationError as error:
            context.events.warning(self.name, "Failed", f"Error: {error}")
            waiting = ContainerStateWaiting("CreateContainerConfigError", str(error))
            context.report(Blocked(self.name, waiting, context.now().loop + _CONFIG_RETRY))
            return
        log = self.open_log()
        output = OutputPipe(log.feed)
        try:
            await self._start(self._spec, output)
            await self._live()
        except StartError as error:
            message = f"{_START_ERROR}{error}: unknown"
            context.events.warning(self.name, "Failed", f"Error: {message}")
            context.report(StartFailed(self.name, self.container_id, message, context.now()))
        finally:
            if self._process is not None and self._process.is_running:
                self._process.kill()
            output.close()
            log.close()
        if self._process is not None:
            code = await self._process.wait()
            context.report(Exited(self.name, code, context.now()))

    async def _start(self, spec: ProcessSpec, output: OutputPipe) -> None:
        self.context.events.normal(self.name, "Created", "Container created")
        try:
            self._process = await self.context.processes.start(spec, output=output.writer)
        finally:
            output.close_writer()

    async def _live(self) -> None:
        assert self._process is not None
        container, context = self.container, self.context
        started = container.startup_probe is None
        ready = started and container.readiness_probe is None
        context.report(Started(self.name, self.container_id, context.now(), started, ready))
        context.events.normal(self.name, "Started", "Container started")
        async with BackgroundTasks() as helpers:
            helpers.start(self._probe_loop().run(), name=f"probes {self.name}")
            helpers.start(self._watch_sockets(), name=f"sockets {self.name}")
            await self._process.wait()

    # Beside it

    def _probe_loop(self) -> ProbeLoop:
        return ProbeLoop(
            container=self.container,
            ask=self._checks().probe,
            decided=self._decided,
            complained=functools.partial(self.context.events.warning, self.name),
            is_ending=self.context.is_ending,
        )

    def _checks(self) -> ContainerChecks:
        return ContainerChecks(
            container=self.container,
            address=self.context.address,
            execute=self.execute,
            version=self.context.version,
            counts=self.context.counts,
        )

    def _decided(self, kind: ProbeKind, healthy: bool) -> None:  # noqa: FBT001 -- a verdict
        at_once = kind is ProbeKind.STARTUP and self.container.readiness_probe is None
        self.context.report(Probed(self.name, kind, healthy, at_once))

    async def _watch_sockets(self) -> None:
        assert self._process is not None
        port = await find_wildcard(self._process.pid)
        if port is not None:
            text = (
                f"Container {self.name} listens on port {port} of all addresses (0.0.0.0); pods share"
                f" this machine's network, so it must bind $POD_IP ({self.context.address}) instead: no"
                " other pod can use the port now"
            )
            self.context.events.warning(self.name, "BindsAllAddresses", text)

    async def execute(self, argv: tuple[str, ...], timeout: float | None) -> tuple[int, str]:
        """Run a command in the container; exit code and output. Raises TimeoutError."""
        process = self._process
        if process is None or self._spec is None or not process.is_running:
            return 126, "the container is not running"
        collected = bytearray()
        output = OutputPipe(collected.extend)
        spec = dataclasses.replace(self._spec, argv=argv, mounts=(), join=process.pid)
        beside: Process | None = None
        try:
            async with asyncio.timeout(timeout):
                beside = await self.context.processes.start(spec, output=output.writer)
                output.close_writer()
                code = await beside.wait()
        except StartError as error:
            return 126, f"OCI runtime exec failed: {error}"
        finally:
            if beside is not None:
                beside.kill()
            output.close()
        return code, collected.decode(errors="replace")

    async def stop(self, why: StopReason, deadline: float) -> None:
        """Stop it; again with an earlier deadline (loop time) it hurries a stop under way."""
        if self._process is None or not self._process.is_running:
            return
        if self._stop is not None:
            self._stop.hurry(deadline)
            return
        self._stop = ContainerStop(self._process, deadline=deadline)
        text = _KILLING.get(why, "Stopping container {name}").format(name=self.name)
        self.context.events.normal(self.name, "Killing", text)
        hook = self.container.lifecycle.pre_stop
        if hook is not None:
            problem = await self._stop.first(self._checks().hook(hook))
            if problem:
                text = f"PreStopHook failed: {problem}"
                self.context.events.warning(self.name, "FailedPreStopHook", text)
        await self._stop.end()
