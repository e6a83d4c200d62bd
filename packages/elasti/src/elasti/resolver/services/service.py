"""A Service with an ElastiService, as one worker sees it: ports, pods and held connections.

A `WakeablePort` is the data path's upstream. It knows the pods on its port and which of them serve. A pod serves
if all of this is true:

    a private slice lists it, at an address that is the pod's own; it is not terminating; it is Ready, or the
    prober found that it serves; and it has not refused a connection since.

A slice may name any address, so pods are read before connections go to them, and ports see only the pods that
own their address.

Everything runs on the loop's thread: the registry reports the cluster's state (`configure`, `set_endpoints`), the
data path asks for pods and reports refusals, and the prober reports pods that serve. After each of these,
`_update` compares the wanted state with the actual one. Probing, waking and releasing start and stop only there.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import math
from typing import TYPE_CHECKING

import msgspec

from elasti.api.defaults import COLD_START_BOUNDS
from elasti.api.types import ProbeResponse, WakeSpec
from elasti.api.wire import PROBE_PATH, ProbeIdentity
from elasti.logger import get_logger
from elasti.resolver.projections import DatabaseKind
from elasti.resolver.proxy.statistics import LatencyHistograms, TrafficStatistics
from elasti.resolver.proxy.upstream.interface import LocalAnswer, Refusal
from elasti.resolver.readiness.plan import is_doubtful
from elasti.resolver.readiness.prober import MOST_AT_ONCE, PodReader, Prober, ProbeTarget
from elasti.resolver.services.hold import Hold, HoldCapacity
from elasti.resolver.services.ignored import IgnoredRequests, agent_lists
from elasti.resolver.services.local_answers import LocalAnswerRules
from elasti.resolver.services.page import PortPage
from elasti.resolver.services.wake import (
    DurableWakeRequest,
    PartState,
    WakeClient,
    WakeLoop,
    late_parts,
    part_states,
)
from kubeloop.aio.tasks import finish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeAlias

    from elasti.resolver.projections import ListedEndpoint, PodName, ServiceKey
    from elasti.resolver.proxy.upstream.interface import (
        HeldConnection,
        RequestFacts,
        TcpWake,
        UpstreamAddress,
    )
    from elasti.resolver.readiness.checks import PodChecks
    from elasti.resolver.services.ignored import AgentLists
    from elasti.resolver.services.page_source import PageSource
    from elasti.tracing import Tracer

    _Place: TypeAlias = tuple[str, PodName]


# While no connection is held, nothing is probed: a pod that refused is tried again after this time.
_REFUSAL_LASTS = 1.0
# How soon the page of a visitor comes again, also one without scripts; in seconds.
_COMES_AGAIN = 30.0
_PROBE_TARGET = PROBE_PATH.encode()
# By then slices show that a pod is terminating, or it was not scaled down.
_RETIREMENT = 10.0

_log = get_logger(__name__)


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class ServiceDeps:
    """The objects that all Services of a worker share."""

    checks: PodChecks
    pods: PodReader
    #: Known programs, for `wake.ignore`.
    agents: AgentLists = dataclasses.field(default_factory=agent_lists)
    operator: WakeClient
    durable: DurableWakeRequest
    #: Whether this worker drains.
    leaving: bool = False
    #: Finds another Service.
    find: Callable[[ServiceKey], WakeableService | None] = lambda _key: None
    #: None: spans go nowhere.
    tracer: Tracer | None = None
    #: None: only the built-in waiting page is shown.
    pages: PageSource | None = None
    #: Durations of cold starts by stage, of all Services.
    cold_starts: LatencyHistograms[str] = dataclasses.field(
        default_factory=lambda: LatencyHistograms(COLD_START_BOUNDS)
    )


class WakeableService:
    """One Service. The registry owns it and closes it."""

    def __init__(self, key: ServiceKey, *, deps: ServiceDeps) -> None:
        self.key = key
        self.wake = WakeSpec()
        self.rules = LocalAnswerRules(())
        self.ignored = IgnoredRequests(agents=deps.agents)
        # Whether slices list resolvers; None before the first refresh.
        self.published: bool | None = None
        # How often traffic switched to the resolver, and to the pods.
        self.switches = {True: 0, False: 0}
        self.statistics = TrafficStatistics()
        self.last_arrival: float | None = None
        # How long the last wake-up took, in seconds, as its clients saw it; and when it was over.
        self.last_start: float | None = None
        self.started_at = 0.0
        self.capacity = HoldCapacity(self.wake.max_held)
        owner = msgspec.json.encode(ProbeIdentity(key.namespace, key.service))
        self.identity = LocalAnswer(200, owner, counted=False)
        self._deps = deps
        self._responses: tuple[ProbeResponse, ...] = ()
        self._ports: dict[str, WakeablePort] = {}
        # Each port name's present or last number: a port may be renamed while it is in use.
        self.numbers: dict[str, int] = {}
        self._closed = False
        self._endpoints: Mapping[str, Mapping[UpstreamAddress, ListedEndpoint]] = {}
        # Whether an address is its pod's own; the pods still to read for that; those being read.
        self._owned: dict[_Place, bool] = {}
        self._unread: set[_Place] = set()
        self._reading: dict[_Place, asyncio.Task[None]] = {}
        # Pods that may be about to stop, and the timer that ends the suspicion.
        self._retired: set[PodName] = set()
        self._retirement: asyncio.TimerHandle | None = None
        self.waker = WakeLoop(
            key,
            operator=deps.operator,
            durable=deps.durable,
            waiting=lambda: self.unserved,
            client=self._first_client,
            asked=deps.cold_starts["ask"].add,
        )
        if deps.tracer is not None:
            self.waker.id_bytes, self.statistics.trace = 16, self._trace  # the id of a trace

    def __repr__(self) -> str:
        return f"<WakeableService {self.key} {self.held} held, {len(self._ports)} ports>"

    @property
    def held(self) -> int:
        """How many connections are held."""
        return self.capacity.used

    @property
    def is_asleep(self) -> bool:
        """Whether it has no pods. While pods start or fail, requests are theirs."""
        return not any(self._endpoints.values())

    @property
    def has_ready_pod(self) -> bool | None:
        """Whether Kubernetes reports a pod ready; None if it has no pods."""
        listed = [one.ready for found in self._endpoints.values() for one in found.values()]
        return any(listed) if listed else None

    @property
    def part_states(self) -> list[PartState]:
        """How far each part is of the set that wakes together (`waker.parts`), itself the last."""

        def has_ready_pod(name: str) -> bool | None:
            found = self._deps.find(self.key._replace(service=name))
            return None if found is None else found.has_ready_pod

        return part_states(self.waker.parts, has_ready_pod)

    @property
    def port_names(self) -> tuple[str, ...]:
        """The names of the ports in use."""
        return tuple(self._ports)

    def _trace(self, parent: bytes, since: float, seconds: float, outcome: str) -> None:
        assert self._deps.tracer is not None
        times = (since, since + seconds)
        self._deps.tracer.held(str(self.key), self.waker.known_id, parent, times, outcome=outcome)

    def _first_client(self) -> str:
        found = (port.hold.first for port in self._ports.values())
        return next((waiter.client() for waiter in found if waiter is not None), "")

    def configure(self, *, wake: WakeSpec, responses: tuple[ProbeResponse, ...]) -> None:
        """Apply the ElastiService's spec."""
        if responses != self._responses:
            self._responses = responses
            self.rules = LocalAnswerRules(responses)
        if wake.ignore != self.wake.ignore:
            counts = self.ignored.counts
            ignore = wake.ignore
            self.ignored = IgnoredRequests(
                ignore.presets or (), ignore.rules, agents=self._deps.agents
            )
            self.ignored.counts.update(counts)
        if wake != self.wake:
            self.wake = wake
            self.capacity.limit = wake.max_held
            for port in self._ports.values():
                port.reconfigure()

    def publish(self, *, published: bool) -> None:
        """Note whether slices list resolvers. The first refresh does not count as a switch."""
        if self.published is not None and published != self.published:
            self.switches[published] += 1
        self.published = published
        self.read_pods()

    def port(self, name: str) -> WakeablePort:
        """Return the upstream of a port, by its name."""
        port = self._ports.get(name)
        if port is None:
            port = self._ports[name] = WakeablePort(self, name, deps=self._deps)
            port.set_endpoints(self._owned_endpoints(name))
            if self._closed:
                port.close()
        return port

    @property
    def lists_pods(self) -> bool:
        """Whether any pod is known."""
        return any(self._endpoints.values())

    def set_endpoints(
        self, endpoints: Mapping[str, Mapping[UpstreamAddress, ListedEndpoint]]
    ) -> None:
        """Set the pods that the private slices list."""
        self._endpoints = endpoints
        places = {(at.host, one.pod) for found in endpoints.values() for at, one in found.items()}
        self._owned = {place: self._owned[place] for place in places & self._owned.keys()}
        self._unread = places - self._owned.keys() - self._reading.keys()
        self.read_pods()
        self._show_endpoints()

    def retire_pods(self, *, retired: bool) -> None:
        """Send nothing to the present pods for a while, since they may be about to stop; or end that."""
        if self._retirement is not None:
            self._retirement.cancel()
        listed = self._endpoints.values() if retired else ()
        self._retired = {one.pod for found in listed for one in found.values()}
        self._retirement = None
        if retired:
            end = functools.partial(self.retire_pods, retired=False)
            self._retirement = asyncio.get_running_loop().call_later(_RETIREMENT, end)
        self._show_endpoints()

    def read_pods(self) -> None:
        """Check that listed addresses are the pods' own, if connections may go there."""
        if self._closed or not (self.published or self.held):
            return
        while self._unread and len(self._reading) < MOST_AT_ONCE:
            place = self._unread.pop()
            task = asyncio.get_running_loop().create_task(self._read_pod(*place))
            self._reading[place] = task

    async def _read_pod(self, host: str, pod: PodName) -> None:
        try:
            owned = self._owned[host, pod] = await self._deps.pods.owns(pod, host)
        finally:
            del self._reading[host, pod]
        if not owned:
            _log.warning(
                "EndpointSlice lists an address that is not the pod's own; ignoring it",
                service=str(self.key),
                pod=pod.name,
                address=host,
            )
        self.read_pods()
        self._show_endpoints()

    def _show_endpoints(self) -> None:
        for name, port in self._ports.items():
            port.set_endpoints(self._owned_endpoints(name))

    def _owned_endpoints(self, name: str) -> dict[UpstreamAddress, ListedEndpoint]:
        found = self._endpoints.get(name, {})
        return {
            at: one
            for at, one in found.items()
            if self._owned.get((at.host, one.pod)) and one.pod not in self._retired
        }

    async def aclose(self) -> None:
        """Refuse held connections and stop. Later connections may still use known pods."""
        self._closed = True
        if self._retirement is not None:
            self._retirement.cancel()
        await finish(self._reading.values())
        for port in tuple(self._ports.values()):
            await port.aclose()
        await self.waker.aclose()

    @property
    def unserved(self) -> int:
        """How many connections wait while no pod serves."""
        return sum(len(port.hold) for port in self._ports.values() if not port.serving)


class WakeablePort:
    """One port of a Service: an `Upstream`."""

    def __init__(self, service: WakeableService, name: str, *, deps: ServiceDeps) -> None:
        self.name = name
        self.serving: list[UpstreamAddress] = []
        self.hold = Hold(
            capacity=service.capacity,
            timeout=service.wake.timeout_seconds,
            pods=lambda: self.serving,
            changed=self._update,
        )
        self.statistics = service.statistics
        self._service = service
        self._deps = deps
        self._prober = Prober(
            checks=deps.checks, pods=deps.pods, serves=self._found, stages=deps.cold_starts
        )
        self._endpoints: Mapping[UpstreamAddress, ListedEndpoint] = {}
        # Pods that the prober found serving before Kubernetes reported them Ready, and databases that were asked.
        self._proven: set[UpstreamAddress] = set()
        # Pods that refused a connection, and the timers after which that is forgotten.
        self._refused: dict[UpstreamAddress, asyncio.TimerHandle] = {}
        self._turn = 0
        # When connections began to wait while no pod serves; when it was wanted, and when the last one left.
        self._unserved_since: float | None = None
        self._wanted_since, self._left_at = 0.0, -math.inf
        self._page = PortPage(service, self, deps.pages)
        # Whether pods were listed at the last update: the first one ends the wait for the scheduler.
        self._awaited = True
        self._closed = False

    def __repr__(self) -> str:
        return (
            f"<WakeablePort {self._service.key}:{self.name} {self.hold!r} {len(self.serving)} pods>"
        )

    # Upstream

    @property
    def stepping_aside(self) -> bool:
        """Whether connections should end after their response: pods take over, or this worker or Service ends."""
        return not self._service.published or self._deps.leaving or self._closed

    def pick(self) -> UpstreamAddress | None:
        """Return the next serving pod; None also while connections are queued."""
        serving = self.serving
        if not serving or len(self.hold):
            return None
        self._turn = turn = (self._turn + 1) % len(serving)
        return serving[turn]

    def wait(self, waiter: HeldConnection, *, first: bool = False) -> Refusal | None:
        """Queue a connection, unless the port is closed."""
        if self._closed:
            return Refusal.GONE
        refusal = self.hold.wait(waiter, first=first)
        if refusal is None and self.serving:
            self.hold.release()
        return refusal

    def leave(self, waiter: HeldConnection) -> None:
        """Remove a connection from the queue."""
        self.hold.leave(waiter)

    def refused(self, address: UpstreamAddress) -> None:
        """Do not pick this pod until it accepts again."""
        if self._closed:
            self.serving = [other for other in self.serving if other != address]
        elif address in self._endpoints and address not in self._refused:
            loop = asyncio.get_running_loop()
            self._refused[address] = loop.call_later(_REFUSAL_LASTS, self._expire_refusal, address)
            self._proven.discard(address)
            self._update()

    def explain(self, refusal: Refusal) -> str:
        """Return a refusal's message; of a wake-up that took too long, with what did not start."""
        service = self._service
        is_late = refusal is Refusal.TIMEOUT and service.waker.parts
        late = late_parts(service.waker.parts, service.part_states) if is_late else ()
        return f"{refusal.message}: {', '.join(late)} did not start" if late else refusal.message

    def answer_locally(self, request: RequestFacts) -> LocalAnswer | None:
        """Answer ownership probes, below any path that proxies route by, and requests that match the user's rules."""
        if request.target.endswith(_PROBE_TARGET) and request.method == b"GET":
            return self._service.identity
        # Also while pods serve: a forwarded health check would count as use, and the workload would never
        # sleep.
        local = self._service.rules.answer(request)
        if local is None and not self.serving and self._service.is_asleep:
            local = self._service.ignored.answer(request)
        return local

    @property
    def tcp_wake(self) -> TcpWake:
        """When a connection that does not speak HTTP wakes the workload."""
        # A MySQL client waits for the server's first message. Without pods the port's name and number tell.
        number = self._service.numbers.get(self.name, 0)
        database = DatabaseKind.of_port(app_protocol=None, name=self.name, port=number)
        if self.serving or database is DatabaseKind.MYSQL:
            return "Connect"
        return self._service.wake.tcp

    @property
    def page(self) -> PortPage | None:
        """The waiting page for browsers; None if it is off."""
        return self._page if self._service.wake.page.mode == "Auto" else None

    @property
    def listed(self) -> Mapping[UpstreamAddress, ListedEndpoint]:
        """The pods that have an address."""
        return self._endpoints

    def ignored(self, rule: str) -> None:
        """Count a connection that did not wake the workload."""
        self._service.ignored.count(rule)

    def arrived(self, now: float) -> None:
        """Note that the Service was used."""
        self._service.last_arrival = now

    # Reports of the cluster and the prober

    def set_endpoints(self, endpoints: Mapping[UpstreamAddress, ListedEndpoint]) -> None:
        """Set the pods that the slices list."""
        before = self._endpoints
        self._endpoints = endpoints
        for address in [a for a in self._refused if a not in endpoints]:
            self._refused.pop(address).cancel()
        # A pod that was removed, replaced, or is no longer Ready must be probed again.
        self._proven = {
            address
            for address in self._proven
            if (now := endpoints.get(address)) is not None
            and now.pod == before[address].pod
            and (now.ready or not before[address].ready)
        }
        self._update()

    def reconfigure(self) -> None:
        """Apply a changed spec."""
        self.hold.set_timeout(self._service.wake.timeout_seconds)
        self._update()

    def close(self) -> None:
        """Stop holding connections; they may still use known pods."""
        self._closed = True
        for timer in self._refused.values():
            timer.cancel()

    async def aclose(self) -> None:
        """Close, refuse held connections and stop."""
        self.close()
        await self.hold.aclose()
        await self._prober.aclose()

    def _found(self, address: UpstreamAddress) -> None:
        if address in self._endpoints:
            self._proven.add(address)
            self._clear_refusal(address)
            self._update()

    def _expire_refusal(self, address: UpstreamAddress) -> None:
        # While connections are held, the prober decides.
        if len(self.hold) and not self.serving:
            loop = asyncio.get_running_loop()
            self._refused[address] = loop.call_later(_REFUSAL_LASTS, self._expire_refusal, address)
            return
        self._clear_refusal(address)
        self._update()

    def _clear_refusal(self, address: UpstreamAddress) -> None:
        if (timer := self._refused.pop(address, None)) is not None:
            timer.cancel()

    # The only place where things start and stop

    def _update(self) -> None:
        if self._closed:
            return
        self.serving = [address for address in self._endpoints if self._serves(address)]
        now = asyncio.get_running_loop().time()
        if self.serving:
            self._page.recovered()
            if self._unserved_since is not None:
                self._service.last_start = now - self._wanted_since
                self._service.started_at = now
            self.hold.release()
        unserved = bool(len(self.hold)) and not self.serving
        self._prober.set_targets(dict(self._probe_targets()) if unserved else {})
        began = unserved and self._unserved_since is None
        if began:
            # The first connection came, or the last pod went: skip the pause of an earlier wake-up.
            self._service.waker.wake_now()
            self._service.read_pods()
            # The visitor of a waiting page leaves, and the page comes again.
            self._wanted_since = now if now - self._left_at > _COMES_AGAIN else self._wanted_since
        if began or not unserved:
            if self._unserved_since is not None:
                self._left_at = -math.inf if self.serving else now
            self._unserved_since = now if unserved else None
        asked_at = self._service.waker.answered_at
        if unserved and self._endpoints and not self._awaited and asked_at is not None:
            self._deps.cold_starts["schedule"].add(now - asked_at)
        self._awaited = bool(self._endpoints)

    def _serves(self, address: UpstreamAddress) -> bool:
        if address in self._refused:
            return False
        endpoint = self._endpoints[address]
        if address in self._proven or not endpoint.ready:
            return address in self._proven
        first, policy = self.hold.first, self._service.wake.probe
        is_http = first is not None and first.is_http
        return not is_doubtful(policy, endpoint.database, is_http=is_http)

    def _probe_targets(self) -> Iterable[tuple[UpstreamAddress, ProbeTarget]]:
        first = self.hold.first
        for address, endpoint in self._endpoints.items():
            yield (
                address,
                ProbeTarget(
                    self._service.wake.probe,
                    endpoint.pod,
                    endpoint.ready,
                    has_refused=address in self._refused,
                    is_http=first is None or first.is_http,
                    database=endpoint.database,
                ),
            )
