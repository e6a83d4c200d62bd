"""Triggers that count bytes: what the target's pods receive and send, without a metric of their own.

Probes are traffic too. So what a pod's own probes cost is computed from its spec, and is its floor: kind and
period are the spec's, the size of an HTTP probe is measured by one of ours, the others are constants. Nothing
is learned from traffic: what is there from the first second never becomes floor.

A bridge sends ARP and multicast to every pod, and no pod answers. So what a pod receives without an answer does
not count, up to NOISE. Use is answered, by TCP's acknowledgements at least: every byte that a pod sends beyond
half of its floor stands for ANSWERED bytes that it received.

Counters are added up while they exceed the floor by a quarter, or by the threshold if that is more. If the
sum is more than one probe of each kind and each pod's UPKEEP, which may fall into any span, the target is in use. So
use above that line is found, however low it is, if it lasts; and probes alone never count as use. The sum starts
from zero after use was found: the next finding needs traffic of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import NamedTuple

from elasti.api.triggers.cluster import (
    KUBELET_ACCOUNT_VARIABLE,
    KUBELET_INSECURE_TLS,
    KUBELET_PORT,
    NetworkMetadata,
)
from elasti.triggers.kubelets import KubeletAccess, Kubelets, KubeletUnreadable, PodCounters
from elasti.triggers.reader import (
    ReadContext,
    ReaderSettings,
    ScrapeTarget,
    TriggerReader,
    TriggerReading,
)
from kubeloop.client.client import Client
from kubeloop.client.errors import KubeError, NotFound
from kubeloop.objects.core import Container, HttpGetAction, Pod, Probe
from kubeloop.probes.checks import probe_request

MARGIN = 0.25
"""The part of the floor that use must exceed it by: sizes of probes are not known better."""

NOISE = 1024.0
"""Bytes a second that a pod may receive without an answer before they count: bursts of others that start."""

UPKEEP = 512.0
"""Bytes of a pod's own address, with what they answer: solicitations of routers, replies to ARP."""

ANSWERED = 3
"""More would make use of a multicast that happens to fall together with a reply to ARP."""

# Ethernet, IPv4 and TCP with time stamps: 74 bytes for each SYN, 66 for every other packet.
_PACKET, _SEGMENT = 66, 1448
TCP_PROBE = 2 * 74 + 4 * _PACKET
"""SYN, SYN, ACK, FIN, FIN, ACK."""
HTTP_PROBE = 2 * 74 + 8 * _PACKET
"""A connection with one packet each way and its acknowledgement; request and response come on top."""
TYPICAL_EXCHANGE = 254
"""Request and response of an HTTP probe that could not be measured: a small health page."""
# Chosen low: with too small a floor a target stays awake, with too large a one it sleeps while it is used.
HTTPS_PROBE = 4000
"""A whole TLS handshake each time, with a small certificate."""
GRPC_PROBE = 1500

_QUARTER, _QUARTERS = 900.0, 8
_SAME = 1.06
"""The most that quarters of an hour differ by. Sixty checks of every 15 s may be one more; people differ more."""
_LITTLE = 400.0

_MEASURE_SECONDS = 2.0
_MEASURE_BYTES = 64 << 10
_UNCHANGED_SECONDS = 120.0
_READINGS_A_COOLDOWN = 12
_FRESH_SECONDS = (2.0, 24.0)


class Floor(NamedTuple):
    """The cost of probes: bytes a second, and the bytes of one probe of each kind."""

    rate: float
    once: float


def floor(probes: Iterable[tuple[float, float]]) -> Floor:
    """Return the floor of probes given as size in bytes and period in seconds."""
    known = list(probes)
    return Floor(sum(size / period for size, period in known), sum(size for size, _ in known))


@dataclasses.dataclass(slots=True)
class TrafficMeter:
    """The sum of what is above the floor; see the module. Pure: times are the nodes' own."""

    before: Mapping[str, PodCounters] = dataclasses.field(default_factory=dict)
    excess: float = 0.0
    span: float = 0.0
    quarter: tuple[float, float] = 0.0, 0.0  #: bytes above the floor and seconds of the present one
    rates: tuple[float, ...] = ()  #: bytes a second of the last ones
    steady: float = 0.0  #: bytes a second of use that is little and always the same

    def feed(
        self, pods: Mapping[str, tuple[PodCounters, Floor]], threshold: float
    ) -> TriggerReading:
        """Take in a reading of all pods, by uid; return bytes a second above the floor, or 0."""
        before, self.before = self.before, {uid: seen for uid, (seen, _) in pods.items()}
        if not before:
            return TriggerReading(error="this is the first reading; a rate needs two", pending=True)
        if gone := before.keys() - pods.keys():
            return TriggerReading(
                error=f"{len(gone)} pods went away since the last reading", pending=True
            )
        once = allowed = longest = above = 0.0
        for uid, (seen, cost) in pods.items():
            known = before.get(uid)
            passed = max(seen.at - known.at, 0.0) if known is not None else 0.0
            # A pod that is new, or whose counters began again, counts for all that it has.
            if known is None or seen.received < known.received or seen.sent < known.sent:
                grown = float(seen.total)
            else:
                sent, received = seen.sent - known.sent, seen.received - known.received
                half = passed * cost.rate / 2
                unanswered = received - half - ANSWERED * max(sent - half, 0.0)
                grown = sent + received - min(max(unanswered, 0.0), NOISE * passed)
            margin = max(threshold, MARGIN * cost.rate)
            above += grown - passed * cost.rate
            self.excess += grown - passed * (cost.rate + margin)
            once += cost.once + UPKEEP
            allowed += margin
            longest = max(longest, passed)
        self.span += longest
        used, lasted = self.quarter = self.quarter[0] + above, self.quarter[1] + longest
        if lasted >= _QUARTER:
            self.rates = found = (*self.rates, used / lasted)[-_QUARTERS:]
            is_same = len(found) == _QUARTERS and max(found) <= min(_SAME * min(found), _LITTLE)
            # One figure as long as it lasts: it is in status.
            self.steady = (self.steady or round(found[-1])) if is_same else 0.0
            self.quarter = 0.0, 0.0
        if self.excess <= 0:
            self.excess = self.span = 0.0
        value = 0.0
        if self.excess > once:
            value = allowed + self.excess / max(self.span, 1.0)
            self.excess = self.span = 0.0
        return TriggerReading(value, span=longest, steady=self.steady)


class _PodFacts(NamedTuple):
    node: str
    node_address: str
    cost: Floor
    refused: str = ""


@dataclasses.dataclass(slots=True)
class _Target:
    meter: TrafficMeter = dataclasses.field(default_factory=TrafficMeter)
    pods: dict[str, _PodFacts] = dataclasses.field(default_factory=dict)
    changed_at: float = 0.0


class NetworkReader(TriggerReader):
    """Reads the counters of pods from their nodes; each pod's spec is read once."""

    def __init__(self, client: Client | None, kubelets: Kubelets) -> None:
        self._client = client
        self._kubelets = kubelets
        self._targets: dict[Hashable, _Target] = {}

    async def read(self, metadata: NetworkMetadata, context: ReadContext) -> TriggerReading:
        """Return bytes a second above the floor; a target that sleeps needs no pods to be idle."""
        pods = context.pods()
        if not pods:
            self._targets.pop(context.key, None)
            none = TriggerReading(error="there is no pod to count the bytes of", pending=True)
            return TriggerReading(0.0) if context.asleep else none
        target = self._targets.setdefault(context.key, _Target())
        try:
            facts = await self._facts(target, context.namespace, pods)
            counters = await self._counters(facts, context.cooldown)
        except KubeletUnreadable as error:
            return TriggerReading(error=str(error))
        missing = [pod for pod in pods if pod.identity not in counters]
        now = asyncio.get_running_loop().time()
        if missing:
            return self._without(target, missing[0], facts[missing[0].identity], now)
        known = target.meter.before
        if any(known.get(uid) != seen for uid, seen in counters.items()):
            target.changed_at = now
        elif now - target.changed_at > _UNCHANGED_SECONDS:
            node = facts[pods[0].identity].node
            return TriggerReading(
                error=f"the statistics of node {node} have not changed for {_UNCHANGED_SECONDS:.0f} s:"
                " check its kubelet"
            )
        found = {uid: (seen, facts[uid].cost) for uid, seen in counters.items()}
        return target.meter.feed(found, metadata.limit())

    @staticmethod
    def _without(
        target: _Target, pod: ScrapeTarget, facts: _PodFacts, now: float
    ) -> TriggerReading:
        """A pod may be newer than its node's statistics for a while; after that, the node has no statistics of it."""
        target.changed_at = target.changed_at or now
        text = f"node {facts.node} has no network statistics of pod {pod.name}"
        if now - target.changed_at <= _UNCHANGED_SECONDS:
            return TriggerReading(error=f"{text} yet", pending=True)
        return TriggerReading(error=f"{text}: check its kubelet, or use another trigger")

    async def _counters(
        self, facts: Mapping[str, _PodFacts], cooldown: float
    ) -> dict[str, PodCounters]:
        shortest, longest = _FRESH_SECONDS
        max_age = min(max(cooldown / _READINGS_A_COOLDOWN, shortest), longest)
        found: dict[str, PodCounters] = {}
        for address in {fact.node_address for fact in facts.values()}:
            known = await self._kubelets.counters(address, max_age=max_age)
            found |= {uid: seen for uid in facts if (seen := known.get(uid)) is not None}
        return found

    async def _facts(
        self, target: _Target, namespace: str, pods: Iterable[ScrapeTarget]
    ) -> dict[str, _PodFacts]:
        """Return what is known of each pod; reads those that are new. Raises KubeletUnreadable."""
        known, target.pods = target.pods, {}
        for pod in pods:
            facts = known.get(pod.identity) or await self._read_pod(namespace, pod)
            if facts.refused:
                raise KubeletUnreadable(facts.refused)
            target.pods[pod.identity] = facts
        return target.pods

    async def _read_pod(self, namespace: str, pod: ScrapeTarget) -> _PodFacts:
        if self._client is None or not pod.name:
            raise KubeletUnreadable("the endpoint is not a pod, so its traffic cannot be measured")
        try:
            found = await self._client.resource("v1/pods", Pod).get(pod.name, namespace=namespace)
        except NotFound:
            raise KubeletUnreadable(
                f"pod {pod.name} is gone, but its endpoint is still listed"
            ) from None
        except KubeError as error:
            kind = type(error).__name__
            raise KubeletUnreadable(f"pod {pod.name} cannot be read ({kind})") from None
        if found.spec.host_network:
            return _PodFacts(
                "",
                "",
                Floor(0.0, 0.0),
                f"pod {pod.name} uses hostNetwork, so its counters include all traffic of the"
                " node: use another trigger",
            )
        # The address is from a slice, which users may write; without this the operator would connect to it.
        if pod.address not in found.addresses:
            raise KubeletUnreadable(f"pod {pod.name} does not have the address {pod.address}")
        if not found.status.host_ip:
            raise KubeletUnreadable(f"pod {pod.name} has no node yet")
        sizes = [
            (await _size(container, probe, pod.address), probe.period_seconds)
            for container, probe in _probes(found)
        ]
        return _PodFacts(found.spec.node_name, found.status.host_ip, floor(sizes))

    def forget(self, key: Hashable) -> None:
        """Drop the counters of a trigger."""
        self._targets.pop(key, None)

    async def end_round(self) -> None:
        """Ask again for what failed."""
        self._kubelets.end_round()

    async def close(self) -> None:
        """Close connections."""
        await self._kubelets.close()


def _probes(pod: Pod) -> Iterator[tuple[Container, Probe]]:
    """Iterate over the probes that go on while a pod runs; a startup probe ends when it succeeds."""
    sidecars = (one for one in pod.spec.init_containers or () if one.is_sidecar)
    for container in (*pod.spec.containers, *sidecars):
        for probe in (container.readiness_probe, container.liveness_probe):
            if probe is not None:
                yield container, probe


async def _size(container: Container, probe: Probe, address: str) -> float:
    """Return what one probe costs on the pod's side of the wire."""
    if (http := probe.http_get) is not None:
        if http.host not in ("", address):
            return 0.0
        if http.scheme.upper() == "HTTPS":
            return HTTPS_PROBE
        return http_probe_size(await _exchange(http, address, container.port_number(http.port)))
    if (tcp := probe.tcp_socket) is not None:
        return TCP_PROBE if tcp.host in ("", address) else 0.0
    return GRPC_PROBE if probe.grpc is not None else 0.0  # a command causes no traffic


def http_probe_size(exchanged: int | None) -> float:
    """Return what an HTTP probe costs, by the bytes of its request and response."""
    payload = TYPICAL_EXCHANGE if exchanged is None else exchanged
    return HTTP_PROBE + payload + payload // _SEGMENT * _PACKET


async def _exchange(action: HttpGetAction, address: str, port: int | None) -> int | None:
    """Make a kubelet's HTTP probe once; return the bytes of request and response, None for no answer."""
    if port is None:
        return None
    try:
        sent = probe_request(action, address, port, agent="kube-probe/1.36")
    except ValueError:
        return None  # the kubelet does not send it either
    received = 0
    # A server that never closes has answered by then.
    with contextlib.suppress(OSError):
        async with asyncio.timeout(_MEASURE_SECONDS):
            reader, writer = await asyncio.open_connection(address, port)
            try:
                writer.write(sent)
                while received < _MEASURE_BYTES and (data := await reader.read(_MEASURE_BYTES)):
                    received += len(data)
            finally:
                writer.close()
    return len(sent) + received if received else None


def make_reader(settings: ReaderSettings) -> NetworkReader:
    """Make the reader."""
    given = settings.variables
    access = KubeletAccess(
        settings.client,
        given.get(KUBELET_ACCOUNT_VARIABLE, ""),
        insecure=given.get(KUBELET_INSECURE_TLS, False),
    )
    port = {"port": given[KUBELET_PORT]} if KUBELET_PORT in given else {}
    return NetworkReader(settings.client, Kubelets(access, **port))
