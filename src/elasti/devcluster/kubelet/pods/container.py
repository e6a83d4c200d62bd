"""One run of one container: from its environment to its exit.

`run` is a task of the pod's worker and tells it everything as facts. A stop is asked for from
outside, and may be asked for again with less patience.
"""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from typing import TYPE_CHECKING

from elasti.devcluster.kubelet.environment import ConfigurationError
from elasti.devcluster.kubelet.logs.pipes import OutputPipe
from elasti.devcluster.kubelet.logs.reading import tail_of
from elasti.devcluster.kubelet.objects.status import Waiting
from elasti.devcluster.kubelet.pods import listening
from elasti.devcluster.kubelet.pods.facts import (
    Blocked,
    Exited,
    HookFailed,
    Probed,
    Started,
    StartFailed,
)
from elasti.devcluster.kubelet.pods.state import ProbeKind
from elasti.devcluster.kubelet.pods.stopping import ContainerStop
from elasti.devcluster.kubelet.probes.checks import Checks
from elasti.devcluster.kubelet.probes.loop import ProbeLoop
from elasti.devcluster.kubelet.supervisor.link import StartError
from kubeloop.aio.tasks import BackgroundTasks

if TYPE_CHECKING:
    from collections.abc import Callable

    import aiohttp

    from elasti.devcluster.kubelet.logs.files import LogFile
    from elasti.devcluster.kubelet.objects.containers import Container
    from elasti.devcluster.kubelet.pods.facts import Fact
    from elasti.devcluster.kubelet.pods.state import Moment, Why
    from elasti.devcluster.kubelet.pods.telling import Voice
    from elasti.devcluster.kubelet.processes import Process, Processes
    from elasti.devcluster.kubelet.supervisor.spec import ProcessSpec

_START_ERROR = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc"
    " create failed: unable to start container process: "
)
_CONFIG_RETRY = 10.0
_MESSAGE_LINES, _MESSAGE_BYTES = 80, 2048


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a run needs of its node and its pod."""

    processes: Processes
    session: aiohttp.ClientSession
    voice: Voice
    tell: Callable[[Fact], None]
    now: Callable[[], Moment]
    address: str
    origin: Callable[[float], float]
    """When probes of a period began to tick (loop time)."""
    version: str
    is_ending: Callable[[], bool]
    """Whether the whole pod is being stopped."""


class ContainerRunner:
    """One run. `configure` says what to run; raises ConfigurationError where it cannot be said."""

    def __init__(
        self,
        container: Container,
        around: Surroundings,
        open_log: Callable[[], LogFile],
        configure: Callable[[], ProcessSpec],
    ) -> None:
        self._container = container
        self._around = around
        self._configure = configure
        self._process: Process | None = None
        self._spec: ProcessSpec | None = None
        self._stop: ContainerStop | None = None
        self._open_log = open_log
        self.container_id = f"elasti://{uuid.uuid4().hex}{uuid.uuid4().hex}"

    @property
    def name(self) -> str:
        """The container's name."""
        return self._container.name

    @property
    def pid(self) -> int:
        """Its first process; 0 where none runs."""
        process = self._process
        return process.pid if process is not None and process.is_running else 0

    async def run(self) -> None:
        """Start it and stay until it has ended."""
        around = self._around
        try:
            self._spec = self._configure()
        except ConfigurationError as error:
            around.voice.failed(self.name, str(error))
            waiting = Waiting("CreateContainerConfigError", str(error))
            around.tell(Blocked(self.name, waiting, around.now().loop + _CONFIG_RETRY))
            return
        log = self._open_log()
        output = OutputPipe(log.feed)
        try:
            await self._start(self._spec, output)
            await self._live()
        except StartError as error:
            message = f"{_START_ERROR}{error}: unknown"
            around.voice.failed(self.name, message)
            around.tell(StartFailed(self.name, self.container_id, message, around.now()))
        finally:
            if self._process is not None and self._process.is_running:
                self._process.kill()
            output.close()
            log.close()
        if self._process is not None:
            code = await self._process.wait()
            message = self._last_words(code, log)
            around.tell(Exited(self.name, code, around.now(), message))

    async def _start(self, spec: ProcessSpec, output: OutputPipe) -> None:
        self._around.voice.created(self.name)
        try:
            self._process = await self._around.processes.start(spec, output=output.writer)
        finally:
            output.close_writer()

    async def _live(self) -> None:
        assert self._process is not None
        container, around = self._container, self._around
        started = container.startup_probe is None
        ready = started and container.readiness_probe is None
        around.tell(Started(self.name, self.container_id, around.now(), started, ready))
        around.voice.started(self.name)
        async with BackgroundTasks() as helpers:
            helpers.start(self._after_start(), name=f"postStart {self.name}")
            helpers.start(self._probe_loop().run(), name=f"probes {self.name}")
            helpers.start(self._watch_sockets(), name=f"sockets {self.name}")
            await self._process.wait()

    def _last_words(self, code: int, log: LogFile) -> str:
        policy = self._container.termination_message_policy
        if code == 0 or policy != "FallbackToLogsOnError":
            return ""
        return tail_of(log, lines=_MESSAGE_LINES, limit=_MESSAGE_BYTES)

    # Beside it

    def _probe_loop(self) -> ProbeLoop:
        return ProbeLoop(
            container=self._container,
            origin=self._around.origin,
            ask=self._checks().probe,
            decided=self._decided,
            complained=self._complained,
            is_ending=self._around.is_ending,
        )

    def _checks(self) -> Checks:
        return Checks(
            container=self._container,
            address=self._around.address,
            session=self._around.session,
            execute=self.execute,
            version=self._around.version,
        )

    def _decided(self, kind: ProbeKind, healthy: bool) -> None:  # noqa: FBT001 -- a verdict
        at_once = kind is ProbeKind.STARTUP and self._container.readiness_probe is None
        self._around.tell(Probed(self.name, kind, healthy, at_once))

    def _complained(self, kind: ProbeKind, message: str, warning: bool) -> None:  # noqa: FBT001 -- a callback
        del kind
        if warning:
            self._around.voice.probe_warning(self.name, message)
        else:
            self._around.voice.unhealthy(self.name, message)

    async def _after_start(self) -> None:
        hook = self._container.lifecycle.post_start
        if hook is None:
            return
        outcome = await self._checks().hook(hook)
        if not outcome.healthy:
            text = f"PostStartHook failed: {outcome.message}"
            self._around.voice.hook_failed(self.name, "FailedPostStartHook", text)
            self._around.tell(HookFailed(self.name))

    async def _watch_sockets(self) -> None:
        assert self._process is not None
        port = await listening.find_wildcard(self._process.pid)
        if port is not None:
            self._around.voice.listens_everywhere(self.name, port, self._around.address)

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
                beside = await self._around.processes.start(spec, output=output.writer)
                output.close_writer()
                code = await beside.wait()
        except StartError as error:
            return 126, f"OCI runtime exec failed: {error}"
        finally:
            if beside is not None:
                beside.kill()
            output.close()
        return code, collected.decode(errors="replace")

    async def stop(self, why: Why, deadline: float) -> None:
        """Stop it; again with an earlier deadline (loop time) it hurries a stop under way."""
        if self._process is None or not self._process.is_running:
            return
        if self._stop is not None:
            self._stop.hurry(deadline)
            return
        self._stop = ContainerStop(self._process, deadline=deadline)
        self._around.voice.killing(self.name, why)
        hook = self._container.lifecycle.pre_stop
        if hook is not None:
            problem = await self._stop.first(self._checks().hook(hook))
            if problem:
                text = f"PreStopHook failed: {problem}"
                self._around.voice.hook_failed(self.name, "FailedPreStopHook", text)
        await self._stop.end()
