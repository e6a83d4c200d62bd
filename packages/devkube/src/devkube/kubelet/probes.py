"""The probes and hooks of one run of a container.

The startup probe comes first; the others begin when it has succeeded. Each begins at once, or after its
initial delay, so that a quick container is quickly ready; then it waits a period in between. A startup probe that succeeded, or a liveness probe that failed, ends: the next run of the
container has probes of its own.

A verdict needs a run of equal results, as long as the threshold for that result.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable

from devkube.kubelet.pod_types import ContainerSpec, LifecycleHandler
from devkube.kubelet.pods.state import ProbeKind
from devkube.kubelet.stats import ByteCounts
from kubeloop.objects.core import HttpGetAction, Probe
from kubeloop.probes.checks import ProbeOutcome, http_get, tcp_connect
from kubeloop.probes.grpc_health import grpc_check

_INITIAL = {ProbeKind.READINESS: False, ProbeKind.LIVENESS: True, ProbeKind.STARTUP: None}


class ProbeError(Exception):
    """A probe whose definition cannot be run; its result does not count."""


class ProbeThresholds:
    """Turns results into verdicts."""

    def __init__(self, spec: Probe, *, initial: bool | None) -> None:
        self._thresholds = {True: spec.success_threshold, False: spec.failure_threshold}
        self._verdict = initial
        self._last: bool | None = None
        self._run = 0

    def feed(self, result: bool) -> bool | None:  # noqa: FBT001 -- the result of one probe
        """Take a result; returns a verdict if it is a new one."""
        self._run = self._run + 1 if result is self._last else 1
        self._last = result
        if self._run < self._thresholds[result] or result is self._verdict:
            return None
        self._verdict = result
        return result


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProbeLoop:
    """Asks one container as long as it runs.

    `decided` receives verdicts, `complained` reason and message of one probe, before any verdict.
    """

    container: ContainerSpec
    ask: Callable[[Probe], Awaitable[ProbeOutcome]]
    decided: Callable[[ProbeKind, bool], None]
    complained: Callable[[str, str], None]
    is_ending: Callable[[], bool]
    """Whether the pod is going: only readiness is of interest then."""

    async def run(self) -> None:
        """Probe until cancelled."""
        started = asyncio.get_running_loop().time()
        startup = self.container.startup_probe
        if startup is not None and not await self._watch(ProbeKind.STARTUP, startup, started):
            return
        async with asyncio.TaskGroup() as group:
            for kind, probe in (
                (ProbeKind.READINESS, self.container.readiness_probe),
                (ProbeKind.LIVENESS, self.container.liveness_probe),
            ):
                if probe is not None:
                    group.create_task(self._watch(kind, probe, started))

    async def _watch(self, kind: ProbeKind, spec: Probe, started: float) -> bool:
        """Probe every period; returns the final verdict, False if the pod is deleted before."""
        loop = asyncio.get_running_loop()
        verdicts = ProbeThresholds(spec, initial=_INITIAL[kind])
        await asyncio.sleep(started + spec.initial_delay_seconds - loop.time())
        while True:
            if kind is not ProbeKind.READINESS and self.is_ending():
                return False
            result = await self._ask(kind, spec)
            verdict = None if result is None else verdicts.feed(result)
            if verdict is not None:
                self.decided(kind, verdict)
                if kind is ProbeKind.STARTUP or (kind is ProbeKind.LIVENESS and not verdict):
                    return verdict
            await asyncio.sleep(max(1, spec.period_seconds))

    async def _ask(self, kind: ProbeKind, spec: Probe) -> bool | None:
        try:
            outcome = await self.ask(spec)
        except ProbeError as error:
            text = f"{kind.value} probe errored and resulted in unknown state: {error}"
            self.complained("Unhealthy", text)
            return None
        if outcome.warning:
            self.complained("ProbeWarning", f"{kind.value} probe warning: {outcome.message}")
        elif not outcome.healthy:
            self.complained("Unhealthy", f"{kind.value} probe failed: {outcome.message}")
        return outcome.healthy


Execute = Callable[[tuple[str, ...], float | None], Awaitable[tuple[int, str]]]
"""Runs a command in the container: exit code and output. TimeoutError when time is up."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ContainerChecks:
    """Asks one container."""

    container: ContainerSpec
    address: str
    execute: Execute
    version: str
    counts: ByteCounts

    async def probe(self, spec: Probe) -> ProbeOutcome:
        """Probe once. Raises ProbeError for a probe that cannot be made."""
        self.counts.probed(self.address, spec)
        timeout = float(spec.timeout_seconds)
        agent = f"kube-probe/{self.version}"
        if spec.http_get is not None:
            return await self._get(spec.http_get, timeout, agent)
        if (tcp := spec.tcp_socket) is not None:
            return await tcp_connect(
                tcp.host or self.address, self._port(tcp.port), timeout=timeout
            )
        if (grpc := spec.grpc) is not None:
            return await grpc_check(
                self.address, grpc.port, service=grpc.service or "", timeout=timeout, agent=agent
            )
        if spec.exec is not None:
            try:
                code, output = await self.execute(spec.exec.command, timeout)
            except TimeoutError:
                text = f'command "{" ".join(spec.exec.command)}" timed out after {timeout:g}s'
                return ProbeOutcome(healthy=False, message=text)
            return ProbeOutcome(healthy=code == 0, message=output)
        raise ProbeError(f"missing probe handler for {self.container.name}")

    async def hook(self, hook: LifecycleHandler) -> ProbeOutcome:
        """Run a hook to its end; the caller limits its time."""
        if hook.exec is not None:
            code, output = await self.execute(hook.exec.command, None)
            return ProbeOutcome(healthy=code == 0, message=output)
        if hook.http_get is not None:
            return await self._get(hook.http_get, 30.0, f"kube-lifecycle/{self.version}")
        if hook.sleep is not None:
            await asyncio.sleep(hook.sleep.seconds)
        return ProbeOutcome(healthy=True)

    async def _get(self, action: HttpGetAction, timeout: float, agent: str) -> ProbeOutcome:
        host, port = action.host or self.address, self._port(action.port)
        return await http_get(action, host, port, timeout=timeout, agent=agent)

    def _port(self, port: int | str) -> int:
        number = self.container.port_number(port)
        if number is None:
            raise ProbeError(f"invalid port number: {port}")
        return number
