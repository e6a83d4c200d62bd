"""One probe or hook of a container, whatever kind it is."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

from elasti.devcluster.kubelet.probes import grpc, http, tcp
from elasti.devcluster.kubelet.probes.outcome import Outcome, ProbeError, seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import aiohttp

    from elasti.devcluster.kubelet.objects.containers import Container, Hook, Probe

    Execute = Callable[[tuple[str, ...], float | None], Awaitable[tuple[int, str]]]
    """Runs a command in the container: exit code and output. TimeoutError when time is up."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """Asks one container."""

    container: Container
    address: str
    session: aiohttp.ClientSession
    execute: Execute
    version: str

    async def probe(self, spec: Probe) -> Outcome:
        """Probe once. Raises ProbeError for a probe that cannot be made."""
        timeout = float(spec.timeout_seconds)
        if spec.http_get is not None:
            return await http.get(
                self.session,
                spec.http_get,
                self.container,
                address=self.address,
                timeout=timeout,
                agent=f"kube-probe/{self.version}",
            )
        if spec.tcp_socket is not None:
            return await tcp.connect(
                spec.tcp_socket, self.container, address=self.address, timeout=timeout
            )
        if spec.grpc is not None:
            agent = f"kube-probe/{self.version}"
            return await grpc.check(spec.grpc, address=self.address, timeout=timeout, agent=agent)
        if spec.exec is not None:
            return await self._execute(spec.exec.command, timeout)
        raise ProbeError(f"missing probe handler for {self.container.name}")

    async def hook(self, hook: Hook) -> Outcome:
        """Run a hook to its end; the caller limits its time."""
        if hook.exec is not None:
            code, output = await self.execute(hook.exec.command, None)
            return Outcome(healthy=code == 0, message=output)
        if hook.http_get is not None:
            return await http.get(
                self.session,
                hook.http_get,
                self.container,
                address=self.address,
                timeout=30.0,
                agent=f"kube-lifecycle/{self.version}",
            )
        if hook.sleep is not None:
            await asyncio.sleep(hook.sleep.seconds)
        return Outcome(healthy=True)

    async def _execute(self, command: tuple[str, ...], timeout: float) -> Outcome:
        try:
            code, output = await self.execute(command, timeout)
        except TimeoutError:
            text = f'command "{" ".join(command)}" timed out after {seconds(timeout)}'
            return Outcome(healthy=False, message=text)
        return Outcome(healthy=code == 0, message=output)
