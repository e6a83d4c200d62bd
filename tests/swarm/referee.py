"""What must hold at each moment, by the truth of the whole run, which no single program can see.

The rules have names. Those with a time hold while nothing but what they name is wrong: `hindered_until`.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from kubeloop.objects.meta import JsonObject
from tests.swarm.cluster import RESOLVER_SERVICE, AppPod
from tests.swarm.loop import PROCESS
from tests.swarm.programs import ENGAGE_SETTLE, RESOLVER_LOSS_GRACE

if TYPE_CHECKING:
    from tests.swarm.clients import Open
    from tests.swarm.world import World

ADMIN_PORT = 8013
# What a message and its answers take at most while nothing is slow.
_LATE = 0.5
# A held client wakes its target within this long, if one operator can be reached: the others are asked half a second
# apart, and one that gives no answer must not cost its whole timeout of five.
_WAKE = 4.5
# A held client is answered this long after its pod became ready, however the watches are.
_ANSWER = 18.0
# The resolver leaves this long after pods are ready; and a target without a resolver wakes this long after the grace.
_RELEASE = 9.0
_GRACE = RESOLVER_LOSS_GRACE + 8.0
# For how long after the last fault the rules about the operator's own times do not hold.
_CALM = 40.0


class Referee:
    """Watches a run; what breaks a rule goes into the cluster's problems."""

    def __init__(self, world: World) -> None:
        self._world, self._cluster, self._loop = world, world.cluster, world.loop
        self.hindered_until = 0.0
        self.disturbed_at = 0.0
        #: By app: when its replicas changed last, and by whom; when it was last at zero.
        self._changed: dict[str, tuple[float, str]] = {}
        self._zero_until: dict[str, float] = {}
        self._slept: dict[str, float] = {}
        self._outcomes: dict[str, str] = {}
        self._available_since: dict[str, float] = {}
        self._no_resolver_since = math.inf
        #: By app: when it last had a pod.
        self._pods_until: dict[str, float] = {}
        self._blamed: set[str] = set()
        self._cluster.on_scaled.append(self._scaled)
        world.network.on_accept = self._accepted
        world.network.on_closed_over = self._closed_over
        world.process.start(self._watch(), "referee")

    def _blame(self, rule: str, about: str, what: str) -> None:
        if (found := f"{rule} {about}") not in self._blamed:
            self._blamed.add(found)
            self._cluster.problems.append(f"{self._loop.now:.2f} {rule}: {about} {what}")

    @property
    def _hindered(self) -> bool:
        return self._loop.now < self.hindered_until

    def asked_for_sleep(self, app: str) -> None:
        """Note that a person asks."""
        self._slept[app] = self._loop.now

    # At a write

    def _scaled(self, app: str, before: int, after: int) -> None:
        now, writer = self._loop.now, PROCESS.get().name
        at, other = self._changed.get(app, (-math.inf, ""))
        self._changed[app] = (now, writer)
        if not before:
            self._zero_until[app] = now
        if after or not before or not writer.startswith("operator"):
            return
        if now - at < ENGAGE_SETTLE - 1.0 and self._slept.get(app, -math.inf) < at:
            self._blame("not_parked_over_a_writer", app, f"had been scaled by {other} at {at:.2f}")
        late = _LATE * self._slowest()
        for one in self._world.clients.through(app):
            if one.process.left_at < self._world.slice_since(app):
                continue  # "What remains" of docs/track-record.md: nobody knows of that resolver
            if one.accepted_at < now - late:
                self._blame("not_parked_over_a_connection", app, f"is parked over {one.number}")
            else:
                self._world.later(2.0 + late, self._check_undone, app, one, now)

    def _slowest(self) -> float:
        return max((one.slowness for one in self._world.programs.running.values()), default=1.0)

    def _check_undone(self, app: str, one: Open, parked_at: float) -> None:
        """A park that met a connection is undone at once; with `Recreate`, once the pods that end are gone."""
        if app in self._cluster.recreates:
            return
        if self._changed[app][0] == parked_at and one.is_open and not self._hindered:
            self._blame("undone_if_something_came", app, f"stays parked over {one.number}")

    def saw(self, app: str, es: JsonObject | None) -> None:
        """Judge an ElastiService as it was written; None: it is gone."""
        if es is None:
            if self._cluster.replicas(app) == 0 and app not in self._cluster.by_hand:
                self._blame("woken_before_it_is_deleted", app, "is at zero, its ElastiService gone")
            return
        request = (es.get("status") or {}).get("sleepRequest") or {}
        outcome = f"{request.get('request')} {request.get('outcome')}"
        if self._outcomes.get(app) == outcome:
            return
        self._outcomes[app] = outcome
        asked, zero = self._slept.get(app), self._zero_until.get(app, -math.inf)
        if request.get("outcome") != "Asleep" or asked is None or not self._cluster.replicas(app):
            return
        if zero < asked - 2.0 and not self._hindered:
            what = f"was at zero until {zero:.2f}, asked {asked:.2f}"
            self._blame("asleep_when_it_says_so", app, what)

    # At a connection

    def _accepted(self, name: str, port: int, live: int) -> None:
        counted = self._world.programs.connections(name, port)
        if counted is not None and counted < live:
            self._blame("what_is_accepted_counts", name, f"counts {counted} of {live} on {port}")

    def _closed_over(self, name: str, port: int, waiting: int) -> None:
        if port == ADMIN_PORT:
            return  # who calls it, calls again
        self._blame("not_closed_over_a_queue", name, f"closes {port} over {waiting}")

    # All the time

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            self._check_operators()
            for app in self._world.apps:
                self._check(app)

    def _check_operators(self) -> None:
        now, programs = self._loop.now, self._world.programs
        self._available_since = {
            name: self._available_since.get(name, now)
            for name, process in programs.running.items()
            if name.startswith("operator")
            and programs.is_ready(process)
            and process.cut_until <= now
            and process.slowness == 1.0
        }
        resolvers = self._cluster.programs.get(RESOLVER_SERVICE, ())
        gone = not any(ready for _, ready in resolvers)
        self._no_resolver_since = min(self._no_resolver_since, now) if gone else math.inf

    def _operator_for(self, seconds: float) -> bool:
        return any(since <= self._loop.now - seconds for since in self._available_since.values())

    def _check(self, app: str) -> None:
        now, cluster = self._loop.now, self._cluster
        es = self._world.elastiservice(app)
        if self._hindered or es is None or "deletionTimestamp" in es["metadata"]:
            return
        since = now - self._changed.get(app, (0.0, ""))[0]
        pods = [pod for pod in cluster.pods.values() if pod.app == app]
        if pods:
            self._pods_until[app] = now
        if cluster.replicas(app) == 0:
            self._check_wake(app, since, now - self._pods_until.get(app, 0.0))
        else:
            self._check_awake(app, es, since, pods)

    def _check_wake(self, app: str, since: float, empty: float) -> None:
        now = self._loop.now
        if min(since, empty) > _WAKE and self._operator_for(_WAKE):
            for one in self._world.clients.through(app):
                can = one.process.cut_until <= now and one.process.deaf_until < now - 20.0
                if one.accepted_at < now - _WAKE and can and one.process.slowness == 1.0:
                    self._blame("woken_for_a_client", app, f"sleeps while {one.number} is held")
        calm = now - self.disturbed_at > _CALM
        if (
            calm
            and self._operator_for(_CALM)
            and min(since, now - self._no_resolver_since) > _GRACE
        ):
            self._blame("woken_without_a_resolver", app, "sleeps and no resolver is there")

    def _check_awake(self, app: str, es: JsonObject, since: float, pods: list[AppPod]) -> None:
        now = self._loop.now
        ready = max((now - pod.ready_at for pod in pods if pod.ready), default=0.0)
        if ready > _ANSWER:
            for one in self._world.clients.through(app):
                fits = one.process.cut_until <= now and one.process.slowness == 1.0
                if one.accepted_at < now - _ANSWER and fits and not one.is_slow:
                    self._blame("answered_once_ready", app, f"is ready, and {one.number} waits")
        state = (es.get("status") or {}).get("state")
        ours = self._world.our_slice(app)
        calm = now - self.disturbed_at > _CALM and self._operator_for(_CALM)
        if calm and ours is not None and state == "Waking" and min(ready, since) > _RELEASE:
            self._blame("released_once_ready", app, f"is ready for {ready:.1f} s")
