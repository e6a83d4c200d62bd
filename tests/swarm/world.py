"""One run: a cluster with Elasti on it, clients, what goes wrong, and what must hold at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from elasti.api.names import SLEEP_ANNOTATION, WAKE_ANNOTATION
from elasti.operator.model.children import slice_names
from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.times import format_time
from kubeloop.testing.virtual_time import VirtualClock
from tests.swarm.apiserver import Server
from tests.swarm.books import Books
from tests.swarm.clients import Clients
from tests.swarm.cluster import (
    ELASTISERVICES,
    OPERATOR_SERVICE,
    RESOLVER_SERVICE,
    SHOP,
    SLICES,
    AppPod,
    Cluster,
)
from tests.swarm.loop import Process, SwarmLoop
from tests.swarm.network import Network
from tests.swarm.programs import ENGAGE_SETTLE, OPERATOR_ADDRESS, RELEASE_SETTLE, Programs
from tests.swarm.referee import Referee

if TYPE_CHECKING:
    from tests.swarm.drawing import Features
    from tests.swarm.faults import Fault

# How long it is calm after the faults: until all is stable at three looks, at least and at most so long.
_QUIET, _LOOK, _CALM = 45.0, 3.0, 105.0
# How long what goes wrong for at most 26 seconds delays what follows.
_HINDERED = 45.0


class World:
    """Everything of a run. `seconds` of load and faults, then calm, then a last request to each app."""

    def __init__(self, loop: SwarmLoop, books: Books, features: Features) -> None:
        loop.quantum = features.quantum
        self.loop, self.books = loop, books
        self.network = loop.network = Network(loop)
        self.server = Server(loop, self.network)
        self.server.note = lambda line: books.say(loop.now, line)
        self.cluster = Cluster(self.server, self.network, books)
        self.programs = Programs(self.cluster)
        self.clients = Clients(self.cluster)
        self.process = Process("people")
        self.apps = ["web", "api"][: 1 + features.both]
        # Before the load begins there is nothing to break.
        self.faults_over = True
        self.features = features
        self.clients.slow = features.slow
        self.cluster.cooldown = features.cooldown
        self.programs.polling, self.programs.moment = features.polling, self.moment
        self.server.on_park = lambda: self._happen("a park is written")
        self._armed: list[tuple[str, Callable[[], None]]] = []
        self._states: dict[str, str] = {}
        self._resolver_is_ready = False
        #: By name: since when each of our slices is there.
        self._ours: dict[str, float] = {}
        self.cluster.on_scaled.append(self._scaled)
        self.server.admin.on_change.append(self._changed)
        self.problems = self.cluster.problems
        self.referee = Referee(self)

    async def play(
        self, faults: list[Any], seconds: float, apply: Callable[[World, Any], None]
    ) -> None:
        """Play it. What broke is in the books, in `programs.crashes` and in `problems`."""
        for app in self.apps:
            self.cluster.add_app(app, self.loop.random.choice((0, 1, 1, 2)))
        for service in (OPERATOR_SERVICE, RESOLVER_SERVICE):
            for _ in range(2):
                self.programs.start(service)
        self._name_the_service()
        await asyncio.sleep(20.0)
        self.faults_over, self.cluster.flaps = False, self.features.flaps
        for fault in faults:
            self.later(fault.at, self._arm, fault, apply)
        for app in self.apps:
            self.process.start(self._load(app, self.loop.now + seconds), f"load of {app}")
        await asyncio.sleep(seconds)
        self.faults_over = True
        self.problems += await self._calm()
        for app in self.apps:
            self.clients.send(app)
        for _ in range(40):
            await asyncio.sleep(1.0)
            if not self.clients.open:
                break
        await asyncio.sleep(1.0)
        if self.clients.open:
            self.problems.append(f"{self.clients.open} requests still wait")

    def _name_the_service(self) -> None:
        """Let the operator's Service address lead to a replica, as a service proxy does."""
        self.network.addresses[OPERATOR_ADDRESS] = Process("service", OPERATOR_ADDRESS)

    def later(self, seconds: float, call: Callable[..., Any], *args: Any) -> None:
        """Call something after a while, as a person or as the world."""
        self.loop.call_later(seconds, call, *args, context=self.process.context)

    def note_fault(self, *, hinders: bool, disturbs: bool) -> None:
        """Note that something goes wrong; `hinders`: it may delay wake-ups and answers; `disturbs`: an operator's work."""
        if disturbs:
            self.referee.disturbed_at = self.loop.now
        if hinders:
            self.referee.hindered_until = self.loop.now + _HINDERED

    # Moments

    def _arm(self, fault: Fault, apply: Callable[[World, Any], None]) -> None:
        """Let a fault happen: now, or with its moment."""
        if fault.moment:
            self._armed.append((fault.moment, lambda: self.later(fault.after, apply, self, fault)))
        else:
            apply(self, fault)

    def moment(self, name: str, app: str) -> None:
        """Something happens, to an app or to none: faults wait for it, and clients may come with it."""
        if self.faults_over:
            return
        self._happen(name)
        draw = self.loop.random
        for each in [app] if app else self.apps:
            if draw.random() < self.features.bursts:
                most = draw.choice((0.004, 0.3, 3.0, 8.0))
                for _ in range(draw.randint(1, 3)):
                    self.later(draw.uniform(0.0, most), self._send, each)

    def _happen(self, name: str) -> None:
        """Let the faults come that wait for a moment."""
        happening = [call for wanted, call in self._armed if wanted == name]
        self._armed = [one for one in self._armed if one[0] != name]
        for call in happening:
            call()

    def _send(self, app: str) -> None:
        if not self.faults_over:
            self.clients.send(app)

    def _scaled(self, app: str, before: int, after: int) -> None:
        if not after:
            self.moment("parked", app)
        elif not before:
            self.moment("scaled up", app)

    def _changed(self, gvr: GroupVersionResource, obj: JsonObject, gone: bool) -> None:
        name = obj["metadata"]["name"]
        if gvr.resource == "elastiservices":
            self.referee.saw(name, None if gone else obj)
            state = (obj.get("status") or {}).get("state", "")
            if gone or "deletionTimestamp" in obj["metadata"]:
                state = "deleted"
            if self._states.get(name) != state:
                self._states[name] = state
                self.moment(state, name)
        elif gvr.resource == "endpointslices":
            self._slice_changed(name, gone)
            if name.startswith(RESOLVER_SERVICE) and not gone:
                had, self._resolver_is_ready = self._resolver_is_ready, _has_ready(obj)
                if had and not self._resolver_is_ready:
                    self._happen("no resolver is ready")
        elif gvr.resource == "pods" and not gone and _is_ready(obj):
            app = obj["metadata"]["labels"]["app"]
            self.moment("a pod is ready", app)
            self.later(RELEASE_SETTLE, self._happen, "a release settle ends")

    def _slice_changed(self, name: str, gone: bool) -> None:
        if gone:
            self._ours.pop(name, None)
            self.moment("our slice goes", "")
        elif name not in self._ours and name in {slice_names(app)["IPv4"] for app in self.apps}:
            self._ours[name] = self.loop.now
            self._happen("our slice comes")
            self.later(ENGAGE_SETTLE, self._happen, "an engage settle ends")

    def app(self, which: int) -> str:
        return self.apps[which % len(self.apps)]

    async def _load(self, app: str, until: float) -> None:
        draw = self.loop.random
        while self.loop.now < until:
            # Idle for about as long as it takes to fall asleep, so that requests meet every step of it.
            await asyncio.sleep(draw.uniform(0.0, self.features.pause))
            for _ in range(draw.randint(1, 12)):
                if self.loop.now < until:
                    self.clients.send(app)
                await asyncio.sleep(draw.expovariate(4.0))

    # What people do

    def finish_rollout(self, app: str, old: list[AppPod]) -> None:
        live = [pod for pod in self.cluster.pods.values() if pod.app == app and pod.ready]
        if any(pod not in old for pod in live):
            for pod in old:
                if not pod.ending:
                    self.cluster.end_pod(pod)

    def elastiservice(self, app: str) -> JsonObject | None:
        """Return an app's ElastiService, to be read only."""
        return self.cluster.stored(ELASTISERVICES, app)

    def _own_elastiservice(self, app: str) -> JsonObject | None:
        return self.server.admin.find(ELASTISERVICES, app, namespace=SHOP)

    def our_slice(self, app: str) -> JsonObject | None:
        return self.cluster.stored(SLICES, slice_names(app)["IPv4"])

    def slice_since(self, app: str) -> float:
        return self._ours.get(slice_names(app)["IPv4"], 0.0)

    def claim_port(self, app: str, other: str) -> None:
        """Write the ports of one into the status of another."""
        owner, found = self.elastiservice(app), self._own_elastiservice(other)
        if app != other and owner is not None and found is not None:
            ports = (owner.get("status") or {}).get("resolverPorts")
            if ports:
                found.setdefault("status", {})["resolverPorts"] = ports
                self.server.admin.put(found)

    def delete_elastiservice(self, app: str) -> None:
        if self.elastiservice(app) is not None:
            self.books.say(self.loop.now, f"ElastiService {app} is deleted")
            self.server.admin.remove(ELASTISERVICES, app, namespace=SHOP)

    def restore_elastiservice(self, app: str) -> None:
        if self.elastiservice(app) is None:
            self.cluster.add_elastiservice(app)
        else:
            self.later(5.0, self.restore_elastiservice, app)

    def edit_elastiservice(self, app: str, **spec: Any) -> None:
        if (found := self._own_elastiservice(app)) is not None:
            found["spec"] |= spec
            self.server.admin.put(found)

    def annotate(self, app: str, which: str) -> None:
        if (found := self._own_elastiservice(app)) is not None:
            key = WAKE_ANNOTATION if "wake" in which else SLEEP_ANNOTATION
            annotations = found["metadata"].setdefault("annotations", {})
            annotations[key] = format_time(VirtualClock().now())
            if key == SLEEP_ANNOTATION:
                self.referee.asked_for_sleep(app)
            self.server.admin.put(found)

    # The end

    async def _calm(self) -> list[str]:
        """Wait until all is stable, and stays so; return what is not, in the end."""
        await asyncio.sleep(_QUIET)
        stable, found = 0, list[str]()
        for _ in range(int((_CALM - _QUIET) / _LOOK)):
            found = [problem for app in self.apps for problem in self._unstable(app)]
            stable = 0 if found or len(self.programs.running) < 4 else stable + 1
            if stable == 3:
                break
            await asyncio.sleep(_LOOK)
        return found

    def _unstable(self, app: str) -> list[str]:
        """Return what is neither awake nor asleep after all that was wrong is over."""
        status = (self.elastiservice(app) or {}).get("status") or {}
        ours = self.our_slice(app)
        listed = sorted(e["addresses"][0] for e in (ours or {}).get("endpoints") or ())
        live = sorted(
            p.address
            for n, p in self.programs.running.items()
            if n.startswith("resolver") and p.alive
        )
        pods = [pod for pod in self.cluster.pods.values() if pod.app == app and pod.ready]
        state, replicas = status.get("state"), self.cluster.replicas(app)
        asleep = state == "Proxy" and replicas == 0 and listed == live
        serves = state == "Serve" and bool(replicas) and bool(pods)
        # Every cooldown that ends brings the resolver into rotation, for as long as the settle takes.
        engages = listed == live and self.loop.now - self.slice_since(app) < ENGAGE_SETTLE + 1.0
        if asleep or (serves and (ours is None or engages)):
            return []
        found = f"state {state}, {replicas} replicas, {len(pods)} ready, slice {ours and listed}"
        return [f"{app} is neither awake nor asleep: {found}, resolvers {live}"]


def _has_ready(endpoint_slice: JsonObject) -> bool:
    return any(one["conditions"]["ready"] for one in endpoint_slice["endpoints"])


def _is_ready(pod: JsonObject) -> bool:
    return bool(pod["status"]["conditions"][0]["status"] == "True")
