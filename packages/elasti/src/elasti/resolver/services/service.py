"""A Service with an ElastiService, as one worker sees it: ports, pods, held connections.

A `WakeablePort` is what the data path calls an upstream. It knows the pods on that port and which of them
serve:

    listed in the private slices at an address that is the pod's own, not terminating, and either Ready
    or found to serve by our prober, and not known to have refused a connection since.

A slice may name any address, so pods are read where connections may go to them, and ports are told only of
those whose address it is.

Everything happens on the loop's thread and in one place for each cause: the registry reports the cluster's
state (`configure`, `set_endpoints`), the data path asks and reports, the prober reports what it found. After
each of these `_update` compares what is wanted with what is going on: probing, waking and releasing start
and stop there and nowhere else.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from typing import TYPE_CHECKING

import msgspec
import structlog

from elasti.api.defaults import COLD_START_BOUNDS
from elasti.api.types import ProbeResponse, WakeSpec
from elasti.api.wire import PROBE_PATH, ProbeIdentity
from elasti.resolver.proxy.statistics import LatencyHistograms, TrafficStatistics
from elasti.resolver.proxy.upstream.interface import LocalAnswer, Refusal
from elasti.resolver.readiness.prober import MOST_AT_ONCE, PodReader, Prober, ProbeTarget
from elasti.resolver.services.hold import Hold, HoldCapacity
from elasti.resolver.services.local_answers import LocalAnswerRules
from elasti.resolver.services.page import PageSource, PortPage
from elasti.resolver.services.wake import DurableWakeRequest, WakeClient, WakeLoop
from kubeloop.aio.tasks import finish

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import TypeAlias

    from elasti.resolver.projections import ListedEndpoint, PodName, ServiceKey
    from elasti.resolver.proxy.upstream.interface import (
        HeldConnection,
        RequestFacts,
        UpstreamAddress,
    )
    from elasti.resolver.readiness.checks import PodChecks

    _Place: TypeAlias = tuple[str, PodName]


# Nothing is probed while no connection is held; a pod that refused is then tried again after this time.
_REFUSAL_LASTS = 1.0
_PROBE_TARGET = PROBE_PATH.encode()
# By then slices say that a pod is stopping, or it was not told to.
_RETIREMENT = 10.0

_log = structlog.get_logger(__name__)


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class ServiceDeps:
    """What services need of the world; and whether this worker is `leaving` it.

    `cold_starts`: how long the stages of cold starts took, of all Services together. `pages`: without it
    waiting pages are the built-in one.
    """

    checks: PodChecks
    pods: PodReader
    operator: WakeClient
    durable: DurableWakeRequest
    leaving: bool = False
    pages: PageSource | None = None
    cold_starts: LatencyHistograms[str] = dataclasses.field(
        default_factory=lambda: LatencyHistograms(COLD_START_BOUNDS)
    )


class WakeableService:
    """One Service. The registry owns it and closes it."""

    def __init__(self, key: ServiceKey, *, deps: ServiceDeps) -> None:
        self.key = key
        self.wake = WakeSpec()
        self.rules = LocalAnswerRules(())
        # Whether slices point here; None before the first refresh.
        self.published: bool | None = None
        # How often traffic began to come here, and to go elsewhere.
        self.switches = {True: 0, False: 0}
        self.statistics = TrafficStatistics()
        self.last_arrival: float | None = None
        self.capacity = HoldCapacity(self.wake.max_held)
        owner = msgspec.json.encode(ProbeIdentity(key.namespace, key.service))
        self.identity = LocalAnswer(200, owner, counted=False)
        self._deps = deps
        self._responses: tuple[ProbeResponse, ...] = ()
        self._ports: dict[str, WakeablePort] = {}
        # The number that a port's name has, or had last; a port may be renamed while it is in use.
        self.numbers: dict[str, int] = {}
        self._closed = False
        self._endpoints: Mapping[str, Mapping[UpstreamAddress, ListedEndpoint]] = {}
        # Whether an address is its pod's own; which pods are to be read for that, and are being read.
        self._owned: dict[_Place, bool] = {}
        self._unread: set[_Place] = set()
        self._reading: dict[_Place, asyncio.Task[None]] = {}
        # Pods that may have been told to stop, and the timer after which they are not suspected of it.
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

    def __repr__(self) -> str:
        return f"<WakeableService {self.key} {self.held} held, {len(self._ports)} ports>"

    @property
    def held(self) -> int:
        """How many connections wait."""
        return self.capacity.used

    @property
    def port_names(self) -> tuple[str, ...]:
        """The names under which ports were asked for."""
        return tuple(self._ports)

    def _first_client(self) -> str:
        found = (port.hold.first for port in self._ports.values())
        return next((waiter.client() for waiter in found if waiter is not None), "")

    def configure(self, *, wake: WakeSpec, responses: tuple[ProbeResponse, ...]) -> None:
        """Apply the ElastiService's spec."""
        if responses != self._responses:
            self._responses = responses
            self.rules = LocalAnswerRules(responses)
        if wake != self.wake:
            self.wake = wake
            self.capacity.limit = wake.max_held
            for port in self._ports.values():
                port.reconfigure()

    def publish(self, *, published: bool) -> None:
        """Take whether slices point here; the first refresh is no change."""
        if self.published is not None and published != self.published:
            self.switches[published] += 1
        self.published = published
        self.read_pods()

    def port(self, name: str) -> WakeablePort:
        """Return the upstream for one of the Service's ports, by the port's name."""
        port = self._ports.get(name)
        if port is None:
            port = self._ports[name] = WakeablePort(self, name, deps=self._deps)
            port.set_endpoints(self._owned_endpoints(name))
            if self._closed:
                port.close()
        return port

    def set_endpoints(
        self, endpoints: Mapping[str, Mapping[UpstreamAddress, ListedEndpoint]]
    ) -> None:
        """Take what the private slices say."""
        self._endpoints = endpoints
        places = {(at.host, one.pod) for found in endpoints.values() for at, one in found.items()}
        self._owned = {place: self._owned[place] for place in places & self._owned.keys()}
        self._unread = places - self._owned.keys() - self._reading.keys()
        self.read_pods()
        self._show_endpoints()

    def retire_pods(self, *, retired: bool) -> None:
        """Give nothing more to the pods that are there now, for a while: they may be told to stop; or end that."""
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
        """Find out whose addresses are listed, if connections may go there."""
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
                "a slice gives a pod an address that is not its own",
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
        """Refuse held connections and stop; connections that still come may pick known pods."""
        self._closed = True
        if self._retirement is not None:
            self._retirement.cancel()
        await finish(self._reading.values())
        for port in tuple(self._ports.values()):
            await port.aclose()
        await self.waker.aclose()

    @property
    def unserved(self) -> int:
        """How many connections wait for a pod while none serves them."""
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
        # What our prober found to serve though Kubernetes does not say so yet.
        self._proven: set[UpstreamAddress] = set()
        # What refused a connection, and the timer after which that is forgotten.
        self._refused: dict[UpstreamAddress, asyncio.TimerHandle] = {}
        self._turn = 0
        self._unserved = False
        self._page = PortPage(service, self, deps.pages)
        # Whether pods were listed when last looked at: the first one ends the wait for the scheduler.
        self._awaited = True
        self._closed = False

    def __repr__(self) -> str:
        return (
            f"<WakeablePort {self._service.key}:{self.name} {self.hold!r} {len(self.serving)} pods>"
        )

    # Upstream

    @property
    def stepping_aside(self) -> bool:
        """Whether our slice is gone, so that pods take over; or this worker or Service goes."""
        return not self._service.published or self._deps.leaving or self._closed

    def pick(self) -> UpstreamAddress | None:
        """Return the next pod that serves; None also while others are queued."""
        serving = self.serving
        if not serving or len(self.hold):
            return None
        self._turn = turn = (self._turn + 1) % len(serving)
        return serving[turn]

    def wait(self, waiter: HeldConnection, *, first: bool = False) -> Refusal | None:
        """Queue a connection; not on a port that was closed while its connections went on."""
        if self._closed:
            return Refusal.GONE
        refusal = self.hold.wait(waiter, first=first)
        if refusal is None and self.serving:
            self.hold.release()
        return refusal

    def leave(self, waiter: HeldConnection) -> None:
        """Take a connection out of the queue."""
        self.hold.leave(waiter)

    def refused(self, address: UpstreamAddress) -> None:
        """Do not pick a pod before it answers again."""
        if self._closed:
            self.serving = [other for other in self.serving if other != address]
        elif address in self._endpoints and address not in self._refused:
            loop = asyncio.get_running_loop()
            self._refused[address] = loop.call_later(_REFUSAL_LASTS, self._expire_refusal, address)
            self._proven.discard(address)
            self._update()

    def answer_locally(self, request: RequestFacts) -> LocalAnswer | None:
        """Answer the operator's probe and what the user's rules say."""
        if request.target == _PROBE_TARGET and request.method == b"GET":
            return self._service.identity
        # Also while pods serve: a health check that were passed on then would be use, and the
        # workload would never sleep.
        return self._service.rules.answer(request)

    @property
    def page(self) -> PortPage | None:
        """What browsers are shown while they wait; None where they wait as all others."""
        return self._page if self._service.wake.page.mode == "Auto" else None

    @property
    def listed(self) -> Mapping[UpstreamAddress, ListedEndpoint]:
        """The pods that have an address."""
        return self._endpoints

    def arrived(self, now: float) -> None:
        """Note that the Service is in use."""
        self._service.last_arrival = now

    # The cluster and the prober

    def set_endpoints(self, endpoints: Mapping[UpstreamAddress, ListedEndpoint]) -> None:
        """Take the pods that the slices list now."""
        before = self._endpoints
        self._endpoints = endpoints
        for address in [a for a in self._refused if a not in endpoints]:
            self._refused.pop(address).cancel()
        # A pod that is gone, was replaced, or has lost its Ready must prove itself again.
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
        """Hold no connection from now on; connections may still pick known pods."""
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
        # While connections are held the prober decides.
        if len(self.hold) and not self.serving:
            loop = asyncio.get_running_loop()
            self._refused[address] = loop.call_later(_REFUSAL_LASTS, self._expire_refusal, address)
            return
        self._clear_refusal(address)
        self._update()

    def _clear_refusal(self, address: UpstreamAddress) -> None:
        if (timer := self._refused.pop(address, None)) is not None:
            timer.cancel()

    # One place where things start and stop

    def _update(self) -> None:
        if self._closed:
            return
        self.serving = [address for address in self._endpoints if self._serves(address)]
        if self.serving:
            self.hold.release()
        unserved = bool(len(self.hold)) and not self.serving
        self._prober.set_targets(dict(self._probe_targets()) if unserved else {})
        if unserved and not self._unserved:
            # The first to come, or the last pod gone: whatever pause an earlier wake left is over.
            self._service.waker.wake_now()
            self._service.read_pods()
        self._unserved = unserved
        asked_at = self._service.waker.answered_at
        if unserved and self._endpoints and not self._awaited and asked_at is not None:
            took = asyncio.get_running_loop().time() - asked_at
            self._deps.cold_starts["schedule"].add(took)
        self._awaited = bool(self._endpoints)

    def _serves(self, address: UpstreamAddress) -> bool:
        if address in self._refused:
            return False
        return self._endpoints[address].ready or address in self._proven

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
