"""An environment on a loop and a thread of its own, where several cases play at once.

Cases mostly wait, for pods and settles, each in a namespace of its own; so they are started together, a
few at a time, and a test waits for the outcome of its own. What hurts the whole environment plays alone, after
all others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeAlias

from tests.e2e.bundle import Installation
from tests.e2e.cases.context import CaseContext
from tests.e2e.cases.prometheus import Prometheus, prometheus
from tests.e2e.environment import SERVICES, Environment
from tests.e2e.testbed import Testbed
from tests.side_loop import SideLoop

Case: TypeAlias = Callable[[CaseContext], Awaitable[None]]
OpenGround: TypeAlias = Callable[[Path], AbstractAsyncContextManager[Testbed]]

_AT_ONCE = 4
_START_SECONDS = 300.0
_CASE_SECONDS = 400.0


class Session:
    """Runs between `start` and `stop`; may be used from any thread."""

    def __init__(self, open_testbed: OpenGround, directory: Path) -> None:
        self._open_testbed = open_testbed
        self._directory = directory
        self._side = SideLoop("the environment", self._run, start_seconds=_START_SECONDS)
        self._outcomes: dict[Case, Future[None]] = {}

    def start(self) -> None:
        """Return when Elasti is installed."""
        self._side.start()

    def stop(self) -> None:
        """End everything; raises what failed beside the cases."""
        for outcome in self._outcomes.values():
            outcome.cancel()
        self._side.stop()

    def announce(self, cases: Sequence[Case]) -> None:
        """Start these, a few at a time."""
        for case in cases:
            if case not in self._outcomes:
                self._outcomes[case] = self._side.submit(self._trial(case))

    def outcome(self, case: Case) -> None:
        """Return when a case has come to its end; raises what it failed with."""
        self.announce([case])
        self._outcomes[case].result(_CASE_SECONDS)

    def alone(self, case: Case) -> None:
        """Trial a case when all that were started have ended; raises what it failed with."""
        for outcome in self._outcomes.values():
            outcome.exception(_CASE_SECONDS)
        self._side.submit(self._context(case)).result(_CASE_SECONDS)

    async def _trial(self, case: Case) -> None:
        async with self._gate:
            await self._context(case)

    async def _context(self, case: Case) -> None:
        namespace = await self._environment.namespace("case")
        try:
            await case(CaseContext(self._environment, namespace, self._prometheus))
        except Exception as error:
            error.add_note(await self._seen(namespace))
            raise
        finally:
            await self._environment.client.resource("v1/namespaces").delete(namespace)

    async def _seen(self, namespace: str) -> str:
        """Return what there is to see in a namespace, for a failure's report."""
        lines = [f"in {namespace} on {self._environment.name}:"]
        with contextlib.suppress(Exception):
            resource = self._environment.client.resource(SERVICES, namespace=namespace)
            lines += [
                f"{es['metadata']['name']}: {es.get('status')}" async for es in resource.items()
            ]
            events = self._environment.client.resource("v1/events", namespace=namespace)
            lines += [f"{e['reason']}: {e['message']}" async for e in events.items()]
        return "\n".join(lines)

    async def _run(self, side: SideLoop) -> None:
        self._gate = asyncio.Semaphore(_AT_ONCE)
        async with self._setting() as (self._environment, self._prometheus):
            side.ready()
            await side.until_stopped()

    @contextlib.asynccontextmanager
    async def _setting(self) -> AsyncIterator[tuple[Environment, Prometheus]]:
        async with self._open_testbed(self._directory) as testbed:
            environment = Environment(testbed)
            await environment.install(Installation())
            async with prometheus(environment, self._directory / "prometheus") as server:
                yield environment, server
