"""A scenario while it plays: its apps, its load, what it observes, and the sums at the end.

    async def wake(play: Trial) -> None:
        app = await play.sleeping_app()
        await play.load(app)
        await play.flow(play.length.load)

Whatever a scenario starts ends with the play. The account is made when the scenario has returned: the
probers send no more, and every request has had its answer or its time.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kubeloop.objects.meta import JsonObject
from tests.e2e import histories
from tests.e2e.account import Account, Window, read_executed, settle
from tests.e2e.environment import SERVICES, Address, Environment
from tests.e2e.observer import WORKLOADS, Observer
from tests.e2e.prober.plan import Record
from tests.e2e.probing import Probe, probing
from tests.e2e.settings import Length
from tests.e2e.testbed import PATIENCE
from tests.e2e.workload import App
from tests.history.audit import clock_offset, of_audit
from tests.history.events import Event, Rotation, Scaled

# A node may act on a change this much later than we hear of it; generous, since nobody can ask it.
NODE_LAG = 1.5
# How much of the traffic a dead pod may cost: its share of the time until nodes know. Measured were 70 ms of
# it; a slice that comes a second late costs more.
_APART_SECONDS = 0.5
# Also where there was enough traffic already, the last thing that happened is seen by some.
_LAST_LOOK = 2.0


class Trial:
    """One scenario on one environment; an `async with` block."""

    workloads: Sequence[str] = WORKLOADS
    """The kinds whose replicas are observed."""

    def __init__(self, environment: Environment, length: Length, directory: Path) -> None:
        self.environment = environment
        self.length = length
        self.directory = directory
        self.windows: list[Window] = []
        self.notes: list[str] = []
        # Requests of clients that are not the prober; the scenario itself compares their answers.
        self.asked_by_others = 0
        self._executed = directory / "executed"
        self._probes: list[Probe] = []
        self._running = contextlib.AsyncExitStack()
        self.records: list[Record] = []
        self.history: list[Event] = []

    async def __aenter__(self) -> Self:
        self._executed.mkdir()
        async with contextlib.AsyncExitStack() as stack:
            self.namespace = await self.environment.namespace("e2e")
            stack.push_async_callback(self._remove_namespace)
            self.observer = Observer(self.environment.client, self.namespace, self.workloads)
            await stack.enter_async_context(self.observer.running())
            self._running = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._running.aclose()

    # Apps

    async def app(self, app: App | None = None) -> App:
        """Put an app into the cluster."""
        app = app or self.new_app()
        await self.environment.apply(*app.objects())
        return app

    def new_app(self, name: str = "web", **more: Any) -> App:
        """Return an app to be; see `App` for what may be chosen."""
        made = App(namespace=self.namespace, executed=self._executed, name=name)
        return made.but(**more)

    async def serving_app(self, app: App | None = None) -> App:
        """Put an app into the cluster and wait until its traffic goes to its pod."""
        app = await self.app(app)
        # Without traffic it may sleep again before the state is written: then the slice was removed.
        await self.observer.until_true(
            lambda: (
                self.observer.now.get(("state", app.name)) == "Serve"
                or self.observer.last("slice", app.name, "removed") > 0.0
            ),
            f"traffic of {app.name} goes to its pod",
        )
        await self.reachable(app)
        return app

    async def sleeping_app(self, app: App | None = None) -> App:
        """Put an app into the cluster at zero, and wait until the resolver stands for it."""
        app = (app or self.new_app()).but(replicas=0)
        await self.app(app)
        await self.asleep(app)
        await self.reachable(app)
        return app

    async def reachable(self, *apps: App) -> None:
        """Wait until nodes know new apps' Services, so that none is met before it is there."""
        await self.environment.reachable(
            *[await self.environment.address(a.namespace, a.name) for a in apps]
        )

    async def asleep(self, app: App) -> None:
        """Wait until an app is at zero, without a pod, with the resolver in its place."""

        def holds() -> bool:
            now = self.observer.now
            resting = now.get(("state", app.name)) == "Proxy" and self.at_zero(app)
            return resting and now.get(("slice", app.name)) == "published" and not self.pods(app)

        await self.observer.until_true(holds, f"{app.name} sleeps")

    async def awake(self, app: App, *, seconds: float = PATIENCE) -> None:
        """Wait until an app's traffic goes to its pods."""

        published = self.observer.now.get(("slice", app.name)) == "published"
        since = self.observer.last("slice", app.name, "published") if published else math.inf

        def holds() -> bool:
            # What passes quickly is not in status: that the resolver has left is what counts. With a short
            # cooldown it is back at once.
            now = self.observer.now
            serves = now.get(("state", app.name)) == "Serve"
            left = self.observer.last("slice", app.name, "removed") > since
            return left or (serves and now.get(("slice", app.name)) != "published")

        await self.observer.until_true(holds, f"{app.name} is awake", seconds=seconds)

    def at_zero(self, app: App) -> bool:
        """Whether no replica is asked for."""
        return self.observer.now.get(("replicas", app.name)) == "0"

    def pods(self, app: App, *words: str) -> list[str]:
        """Return the names of an app's pods: all that are not gone, or those that are `words`."""
        prefix = f"{app.name}-"
        return [
            name
            for (kind, name), what in self.observer.now.items()
            if kind == "pod"
            and name.startswith(prefix)
            and (what in words if words else what != "gone")
        ]

    async def until_only_one_pod(self, app: App) -> None:
        """Wait until all pods but one are gone."""
        await self.observer.until_true(lambda: len(self.pods(app)) == 1, "one pod is left")

    def left(self, app: App) -> float:
        """Return when a pod of an app was last seen leaving or gone."""
        words = ("leaving", "gone")
        names = [e for e in self.observer.events if e.kind == "pod" and e.what in words]
        return max((e.at for e in names if e.subject.startswith(f"{app.name}-")), default=0.0)

    async def pod(self, name: str) -> JsonObject:
        """Read a pod."""
        return await self.environment.client.resource("v1/pods", namespace=self.namespace).get(name)

    async def delete_elasti_service(self, app: App) -> None:
        """Ask for the deletion of an ElastiService."""
        await self.environment.client.resource(SERVICES, namespace=self.namespace).delete(app.name)

    # Load

    async def probe(
        self,
        *targets: Address,
        limit: int | None = None,
        reuse: bool = True,
        host: str = "",
        timeout: float = 400.0,
    ) -> Probe:
        """Start a prober; it sends nothing before it has a rate."""
        context = probing(
            self.environment,
            self.directory,
            targets,
            run=f"{self.namespace}-{len(self._probes)}",
            limit=limit,
            reuse=reuse,
            host=host,
            timeout=timeout,
        )
        probe = await self._running.enter_async_context(context)
        self._probes.append(probe)
        return probe

    async def load(self, *apps: App, rate: float | None = None, reuse: bool = True) -> Probe:
        """Load apps through their Services' own addresses from now on."""
        addresses = [await self.environment.address(app.namespace, app.name) for app in apps]
        probe = await self.probe(*addresses, reuse=reuse)
        probe.services = [app.name for app in apps]
        await probe.rate(self.length.rate if rate is None else rate)
        return probe

    async def flow(self, seconds: float) -> None:
        """Let traffic flow: time that is part of the scenario."""
        await asyncio.sleep(seconds)

    async def flow_out(self) -> None:
        """Let traffic flow until there was as much of it as a scenario must have."""
        loaded = max(probe.loaded for probe in self._probes)
        await self.flow(max(self.length.load - loaded, _LAST_LOOK))

    # Losses that nobody can prevent

    def count_apart(self, began: float, why: str, *, until: float | None = None) -> None:
        """Count what fails from a moment on apart, until now or another, and a node's lag more."""
        ended = time.monotonic() if until is None else until
        most = int(self.length.rate * _APART_SECONDS)
        self.windows.append(Window(began, ended + NODE_LAG, why, most))

    # The end

    async def account(self) -> Account:
        """Wait for every answer, and sum up."""
        outcomes = await asyncio.gather(*(probe.finish() for probe in self._probes))
        self.records = sorted(
            (record for _, records in outcomes for record in records), key=lambda r: r.sent
        )
        executed = await asyncio.to_thread(read_executed, self._executed)
        await self.observer.catch_up()
        self.history = [
            *histories.of_requests(
                [(p, records) for p, (_, records) in zip(self._probes, outcomes, strict=True)]
            ),
            *await asyncio.to_thread(histories.of_books, self._executed),
            *await asyncio.to_thread(self._of_cluster),
            *histories.of_windows(self.windows),
        ]
        return settle(self.records, [said for said, _ in outcomes], executed, self.windows)

    def _of_cluster(self) -> list[Event]:
        """What the watches showed; scale and rotation by the API server's own record, if there is one."""
        watched = list(histories.of_cluster(self.observer.events))
        audit = self.environment.testbed.audit
        if audit is None:
            return watched
        written = list(of_audit(audit, self.namespace, clock=clock_offset()))
        assert written or not any(isinstance(one, Rotation) for one in watched), f"{audit} is empty"
        return [one for one in watched if not isinstance(one, Scaled | Rotation)] + written

    async def abandon(self) -> None:
        """Wait for no answer any more; what has none is among the records as lost."""
        outcomes = await asyncio.gather(*(probe.finish(abandon=True) for probe in self._probes))
        self.records = [record for _, records in outcomes for record in records]

    async def _remove_namespace(self) -> None:
        await self.environment.client.resource("v1/namespaces").delete(self.namespace)
