"""`elasti resolver` as it is installed, before an API server, an operator and pods that are asked for.

Every round is a Service of its own: clients come and are held, the operator is asked, a pod gets an
address, and later begins to answer, at an instant that is written down. The pod has a readiness probe
that a kubelet would look at every ten seconds, so Kubernetes never says Ready while a round lasts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.resolver.installation import installation

from benchmarks.processes import ROOT, RunFailed, environment
from benchmarks.resolver_servers import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.resolver.installation import Installation, Running

    from benchmarks.processes import Cores

_PER_PROCESS = 5_000
_KUBELET_PERIOD = 10


@dataclass(frozen=True, slots=True)
class Outcome:
    """One round: milliseconds from the pod's first answer to each client's first byte, sorted.

    `asked` is how long it took from the first request to the operator's hearing of it.
    """

    delays: list[float]
    asked: float


class Talker:
    """A process that is told things, and answers each with a line of JSON."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    async def tell(self, command: str) -> dict[str, Any]:
        """Say something, and return the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(command.encode() + b"\n")
        self._process.stdin.flush()
        return await self.hear()

    async def hear(self) -> dict[str, Any]:
        """Return the next line."""
        assert self._process.stdout is not None
        line = await asyncio.to_thread(self._process.stdout.readline)
        if not line:
            raise RunFailed(f"{self._process.args!r} ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


class Whole:
    """A running installation with one resolver; see `whole`."""

    def __init__(
        self,
        made: Installation,
        running: Running,
        pod: Talker,
        cores: Cores,
        *,
        descriptors: int,
    ) -> None:
        self._made, self._running, self._pod, self._cores = made, running, pod, cores
        self.descriptors = descriptors
        self._rounds = 0

    @property
    def pid(self) -> int:
        """The resolver's process."""
        return self._running.process.pid

    async def ready(self, name: str, port: int) -> None:
        """Let Kubernetes say that a Service has a pod."""
        await self._made.endpoint(name, port)

    async def sleeping(self, name: str) -> int:
        """Make a Service that sleeps, with room for any crowd; returns its resolver port."""
        port = free_port()
        await self._made.service(name, port, maxHeld=20_000)
        await self._made.publish(name, {"http": port}, "127.0.0.1")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return port
            await asyncio.sleep(0.005)
        raise RunFailed(f"port {port} is not bound")

    @contextlib.asynccontextmanager
    async def held(
        self, name: str, port: int, count: int
    ) -> AsyncIterator[tuple[list[Talker], float]]:
        """Let so many clients wait for a Service; yields them, and when the first began."""
        with contextlib.ExitStack() as stack:
            clients = [
                Talker(
                    stack.enter_context(
                        started(
                            self._cores.serving,
                            "benchmarks.resolver_clients",
                            f"--port={port}", f"--first={first}",
                            f"--count={min(_PER_PROCESS, count - first)}",
                        )
                    )
                )
                for first in range(0, count, _PER_PROCESS)
            ]  # fmt: skip
            began = min([(await client.hear())["began"] for client in clients])
            await self._running.holds(count, name)
            yield clients, began
        await self._running.holds(0, name)

    async def round(self, held: int, *, phase: float = 0.0, accepts_early: bool = False) -> Outcome:
        """Hold some clients of a new Service and let a pod answer them.

        `phase` moves the instant of the pod's first answer, by seconds; a pod that `accepts_early` is
        connected to before its probe passes, and must not be sent anything then.
        """
        self._rounds += 1
        name = f"round-{self._rounds}"
        port = await self.sleeping(name)
        pod_port = (await self._pod.tell("refuse"))["port"]
        probe = {"httpGet": {"path": "/ready", "port": pod_port}, "periodSeconds": _KUBELET_PERIOD}
        container = {"name": "app", "image": "app", "readinessProbe": probe}
        await self._made.pod(name, {"containers": [container]})
        while not self._made.woken.empty():
            self._made.woken.get_nowait()
        hearing = asyncio.create_task(self.asked(name))
        async with self.held(name, port, held) as (clients, began):
            asked = await hearing - began
            await self._made.endpoint(name, pod_port, ready=False, pod=name)
            if accepts_early:
                await self._pod.tell("accept")
            await asyncio.sleep(0.2 + phase)
            answering = await self._pod.tell("answer")
            results = [await client.hear() for client in clients]
        await self._made.remove(name)
        total = (await self._pod.tell("end"))["requests"]
        if answering["requests"]:
            raise RunFailed(
                f"{answering['requests']} requests were sent to a pod that is not ready"
            )
        if total != 2 * held or any(r["errors"] or r["unanswered"] for r in results):
            raise RunFailed(f"of {held} clients not all were served once: {total}, {results}")
        firsts = sorted(first for result in results for first in result["firsts"])
        return Outcome([(first - answering["at"]) * 1000 for first in firsts], asked * 1000)

    async def asked(self, name: str) -> float:
        """Return when the operator was asked for a Service."""
        while await self._made.woken.get() != name:
            pass
        return time.monotonic()


@contextlib.asynccontextmanager
async def whole(cores: Cores, *, descriptors: int = 0) -> AsyncIterator[Whole]:
    """Run everything: the resolver on one core, the rest on another; 0 `descriptors` for all there are."""
    os.sched_setaffinity(0, {cores.serving})
    with (
        tempfile.TemporaryDirectory() as folder,
        started(cores.serving, "benchmarks.resolver_pod") as pod,
    ):
        async with (
            installation(Path(folder)) as made,
            made.resolver(descriptors=descriptors) as running,
        ):
            os.sched_setaffinity(running.process.pid, {cores.measured})
            yield Whole(made, running, Talker(pod), cores, descriptors=descriptors)


@contextlib.contextmanager
def started(core: int, module: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a module of ours on a core during the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    os.sched_setaffinity(process.pid, {core})
    with process:
        try:
            yield process
        finally:
            process.kill()
