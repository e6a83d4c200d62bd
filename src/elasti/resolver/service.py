"""A Service with an ElastiService, as one worker sees it: its ports, its pods, who waits.

A `Port` is what the data path calls a target. It knows the pods on that port and which of them serve:

    listed in the private slices, not terminating, and either Ready or found to serve by our prober,
    and not known to have refused a connection since.

Everything happens on the loop's thread and in one place for each cause: the registry says what the
cluster looks like (`configure`, `endpoints`), the data path asks and reports, the prober finds. After
each of these `_stir` compares what is wanted with what is going on: probing, waking and releasing
start and stop there and nowhere else.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from elasti.api.types import WakeSpec
from elasti.api.wire import PROBE_PATH, ProbeIdentity
from elasti.resolver.hold import Hold, Places
from elasti.resolver.prober import Prober, Suspect
from elasti.resolver.proxy.statistics import Statistics
from elasti.resolver.proxy.target import LocalAnswer, Refusal
from elasti.resolver.rules import Rules
from elasti.resolver.wake import Waker

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from elasti.api.types import ProbeResponse
    from elasti.resolver.checks import Checks
    from elasti.resolver.endpoints import PodEndpoint
    from elasti.resolver.objects import ServiceKey
    from elasti.resolver.prober import PodReader
    from elasti.resolver.proxy.target import Address, Asked, Waiter
    from elasti.resolver.wake import DurableWish, Operator

# Without anybody waiting nobody probes; a pod that refused is then tried again after this time.
_REFUSAL_LASTS = 1.0
_PROBE_TARGET = PROBE_PATH.encode()


class Seams:
    """What services need of the world; and whether this worker is `leaving` it."""

    __slots__ = ("checks", "durable", "leaving", "operator", "pods")

    def __init__(
        self, *, checks: Checks, pods: PodReader, operator: Operator, durable: DurableWish
    ) -> None:
        self.checks = checks
        self.pods = pods
        self.operator = operator
        self.durable = durable
        self.leaving = False


class Service:
    """One Service. The registry owns it and closes it."""

    def __init__(self, key: ServiceKey, *, seams: Seams) -> None:
        self.key = key
        self.wake = WakeSpec()
        self.rules = Rules(())
        # Whether slices point here; None before anybody looked.
        self.published: bool | None = None
        # How often traffic began to come here, and to go elsewhere.
        self.switches = {True: 0, False: 0}
        self.statistics = Statistics()
        self.last_arrival: float | None = None
        self.places = Places(self.wake.max_held)
        self.identity = LocalAnswer(
            200, msgspec.json.encode(ProbeIdentity(key.namespace, key.service))
        )
        self._seams = seams
        self._responses: tuple[ProbeResponse, ...] = ()
        self._ports: dict[str, Port] = {}
        self._closed = False
        self._endpoints: Mapping[str, Mapping[Address, PodEndpoint]] = {}
        self.waker = Waker(
            key,
            operator=seams.operator,
            durable=seams.durable,
            waiting=self._waiting_in_vain,
        )

    def __repr__(self) -> str:
        return f"<Service {self.key} {self.held} held, {len(self._ports)} ports>"

    @property
    def held(self) -> int:
        """How many connections wait."""
        return self.places.used

    @property
    def port_names(self) -> tuple[str, ...]:
        """The names under which ports were asked for."""
        return tuple(self._ports)

    def configure(self, *, wake: WakeSpec, responses: tuple[ProbeResponse, ...]) -> None:
        """Take the user's wishes."""
        if responses != self._responses:
            self._responses = responses
            self.rules = Rules(responses)
        if wake != self.wake:
            self.wake = wake
            self.places.most = wake.max_held
            for port in self._ports.values():
                port.reconfigure()

    def publish(self, *, published: bool) -> None:
        """Take whether slices point here; what was so at the first look is no change."""
        if self.published is not None and published != self.published:
            self.switches[published] += 1
        self.published = published

    def port(self, name: str) -> Port:
        """Return the target for one of the Service's ports, by the port's name."""
        port = self._ports.get(name)
        if port is None:
            port = self._ports[name] = Port(self, name, seams=self._seams)
            port.set_endpoints(self._endpoints.get(name, {}))
            if self._closed:
                port.close()
        return port

    def set_endpoints(self, endpoints: Mapping[str, Mapping[Address, PodEndpoint]]) -> None:
        """Take what the private slices say."""
        self._endpoints = endpoints
        for name, port in self._ports.items():
            port.set_endpoints(endpoints.get(name, {}))

    async def aclose(self) -> None:
        """Send everybody away and stop; whoever still comes may pick known pods."""
        self._closed = True
        for port in tuple(self._ports.values()):
            await port.aclose()
        await self.waker.aclose()

    def _waiting_in_vain(self) -> int:
        return sum(len(port.hold) for port in self._ports.values() if not port.serving)


class Port:
    """One port of a Service: a `Target`."""

    def __init__(self, service: Service, name: str, *, seams: Seams) -> None:
        self.name = name
        self.serving: list[Address] = []
        self.hold = Hold(
            places=service.places,
            timeout=service.wake.timeout_seconds,
            pods=lambda: self.serving,
            changed=self._stir,
        )
        self.statistics = service.statistics
        self._service = service
        self._seams = seams
        self._prober = Prober(checks=seams.checks, pods=seams.pods, serves=self._found)
        self._endpoints: Mapping[Address, PodEndpoint] = {}
        # What our prober found to serve though Kubernetes does not say so yet.
        self._proven: set[Address] = set()
        # What refused a connection, and the timer after which that is forgotten.
        self._refused: dict[Address, asyncio.TimerHandle] = {}
        self._turn = 0
        self._in_vain = False
        self._closed = False

    def __repr__(self) -> str:
        return f"<Port {self._service.key}:{self.name} {self.hold!r} {len(self.serving)} pods>"

    # Target

    @property
    def stepping_aside(self) -> bool:
        """Whether our slice is gone, so that pods take over; or this worker or Service goes."""
        return not self._service.published or self._seams.leaving or self._closed

    def pick(self) -> Address | None:
        """Return the next pod that serves; None also while others wait for their turn."""
        serving = self.serving
        if not serving or len(self.hold):
            return None
        self._turn = turn = (self._turn + 1) % len(serving)
        return serving[turn]

    def wait(self, waiter: Waiter, *, first: bool = False) -> Refusal | None:
        """Queue a connection; not on a port that was closed while its connections went on."""
        if self._closed:
            return Refusal.GONE
        refusal = self.hold.wait(waiter, first=first)
        if refusal is None and self.serving:
            self.hold.release()
        return refusal

    def leave(self, waiter: Waiter) -> None:
        """Take a connection out of the queue."""
        self.hold.leave(waiter)

    def refused(self, address: Address) -> None:
        """Do not pick a pod before it answers again."""
        if self._closed:
            self.serving = [other for other in self.serving if other != address]
        elif address in self._endpoints and address not in self._refused:
            loop = asyncio.get_running_loop()
            self._refused[address] = loop.call_later(_REFUSAL_LASTS, self._forgive, address)
            self._proven.discard(address)
            self._stir()

    def answer_locally(self, asked: Asked) -> LocalAnswer | None:
        """Answer the operator's probe and what the user's rules say."""
        if asked.target == _PROBE_TARGET and asked.method == b"GET":
            return self._service.identity
        # Also while pods serve: a health check that were passed on then would be use, and the
        # workload would never sleep.
        return self._service.rules.answer(asked)

    def arrived(self, now: float) -> None:
        """Note that the Service is in use."""
        self._service.last_arrival = now

    # The cluster and the prober

    def set_endpoints(self, endpoints: Mapping[Address, PodEndpoint]) -> None:
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
        self._stir()

    def reconfigure(self) -> None:
        """Take changed wishes."""
        self.hold.set_timeout(self._service.wake.timeout_seconds)
        self._stir()

    def close(self) -> None:
        """Hold nobody from now on; connections may still pick known pods."""
        self._closed = True
        for timer in self._refused.values():
            timer.cancel()

    async def aclose(self) -> None:
        """Close, send everybody away and stop."""
        self.close()
        await self.hold.aclose()
        await self._prober.aclose()

    def _found(self, address: Address) -> None:
        if address in self._endpoints:
            self._proven.add(address)
            self._pardon(address)
            self._stir()

    def _forgive(self, address: Address) -> None:
        # While somebody waits the prober decides.
        if len(self.hold) and not self.serving:
            loop = asyncio.get_running_loop()
            self._refused[address] = loop.call_later(_REFUSAL_LASTS, self._forgive, address)
            return
        self._pardon(address)
        self._stir()

    def _pardon(self, address: Address) -> None:
        if (timer := self._refused.pop(address, None)) is not None:
            timer.cancel()

    # One place where things start and stop

    def _stir(self) -> None:
        if self._closed:
            return
        self.serving = [address for address, _ in self._listed() if self._serves(address)]
        if self.serving:
            self.hold.release()
        in_vain = bool(len(self.hold)) and not self.serving
        self._prober.look_at(dict(self._suspects()) if in_vain else {})
        if in_vain and not self._in_vain:
            # The first to come, or the last pod gone: whatever pause an earlier wake left is over.
            self._service.waker.at_once()
        self._in_vain = in_vain

    def _listed(self) -> Iterable[tuple[Address, PodEndpoint]]:
        return self._endpoints.items()

    def _serves(self, address: Address) -> bool:
        if address in self._refused:
            return False
        return self._endpoints[address].ready or address in self._proven

    def _suspects(self) -> Iterable[tuple[Address, Suspect]]:
        policy = self._service.wake.probe
        for address, endpoint in self._endpoints.items():
            refused = address in self._refused
            yield address, Suspect(policy, endpoint.pod, endpoint.ready, refused)
