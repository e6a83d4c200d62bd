"""Finding out when a pod serves: every rule of Auto, Ready and TCP, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from elasti.resolver.projections import DatabaseKind, PodName
from elasti.resolver.proxy.upstream.interface import UpstreamAddress
from elasti.resolver.readiness.checks import Reachability
from elasti.resolver.readiness.plan import PlannedProbe, ProbePlan
from elasti.resolver.readiness.prober import (
    FIRST_INTERVAL,
    INTERVAL,
    MOST_AT_ONCE,
    OVERLAP,
    Prober,
    ProbeTarget,
)
from kubeloop.objects.core import GrpcAction, HttpGetAction, TcpSocketAction

pytestmark = pytest.mark.virtual_time
POD = UpstreamAddress("10.0.0.1", 80)
NAME = PodName("shop", "web-1", "uid")
HTTP, GRPC, TCP = (
    PlannedProbe(HttpGetAction(1), 1),
    PlannedProbe(GrpcAction(2), 2),
    PlannedProbe(TcpSocketAction(3), 3),
)


class ProberRig:
    """Pods whose ports accept and whose probes pass from given times on."""

    def __init__(self, *, accepts=0.0, passes=None, plan=None, reads=0.0, unreachable=False):
        loop = asyncio.get_running_loop()
        self.start = loop.time()
        self.accepts, self.passes, self._plan, self.reads = (
            accepts,
            passes or {},
            plan or ProbePlan(),
            reads,
        )
        self.unreachable = unreachable
        self.connects: list[float] = []
        self.asked: list[tuple[int, float]] = []
        self.plans_read = 0
        self.found: list[tuple[UpstreamAddress, float]] = []
        self.in_flight = self.most_in_flight = 0
        self.prober = Prober(checks=self, pods=self, serves=self._serves)

    def now(self):
        return round(asyncio.get_running_loop().time() - self.start, 6)

    def _serves(self, address):
        self.found.append((address, self.now()))

    async def owns(self, pod, address):
        raise AssertionError("a prober is given what is a pod's own")

    async def connect(self, address, *, timeout):
        self.connects.append(self.now())
        if self.unreachable:
            await asyncio.sleep(timeout)
            return Reachability.UNREACHABLE
        return Reachability.ACCEPTED if self.now() >= self.accepts else Reachability.REFUSED

    async def ask(self, host, question):
        self.in_flight += 1
        self.most_in_flight = max(self.in_flight, self.most_in_flight)
        await asyncio.sleep(0.005)
        self.in_flight -= 1
        self.asked.append((question.port, self.now()))
        return self.now() >= self.passes.get(question.port, 0.0)

    async def plan(self, pod):
        self.plans_read += 1
        await asyncio.sleep(self.reads)
        return self._plan

    async def probe(self, seconds=60.0, policy="Auto", pod=NAME, **target):
        self.prober.set_targets({POD: ProbeTarget(policy, pod, **target)})
        await asyncio.sleep(seconds)
        await self.prober.aclose()
        return self.found


async def test_auto_without_probes_releases_at_the_first_accepted_connection():
    rig = ProberRig(accepts=1.01)
    assert (await rig.probe())[0][1] == pytest.approx(1.01, abs=0.006)
    assert rig.connects[:3] == pytest.approx([0.0, FIRST_INTERVAL, 2 * FIRST_INTERVAL])
    assert rig.plans_read == 1


async def test_a_pod_that_takes_long_is_tried_less_often():
    rig = ProberRig(accepts=30.0)
    await rig.probe()
    assert rig.connects[-1] - rig.connects[-2] == pytest.approx(INTERVAL)
    assert len(rig.connects) < 2_000


async def test_a_dropped_first_packet_does_not_cost_a_second(monkeypatch):
    rig, connect = ProberRig(accepts=0.05), ProberRig.connect

    async def dropping(self, *address, **limits):
        if not self.connects:
            self.connects.append(0.0)
            await asyncio.sleep(1.0)
            return Reachability.UNREACHABLE
        return await connect(self, *address, **limits)

    monkeypatch.setattr(ProberRig, "connect", dropping)
    assert (await rig.probe())[0][1] == pytest.approx(OVERLAP, abs=0.01)


async def test_auto_asks_an_http_probe_until_it_passes():
    rig = ProberRig(plan=ProbePlan((HTTP,)), passes={1: 0.5})
    assert (await rig.probe())[0][1] == pytest.approx(0.5, abs=0.035)
    assert rig.most_in_flight == 1


@pytest.mark.parametrize("question", [HTTP, GRPC, TCP])
async def test_auto_waits_for_each_kind_of_probe(question):
    rig = ProberRig(plan=ProbePlan((question,)), passes={question.port: 0.3})
    assert (await rig.probe())[0][1] >= 0.3


async def test_auto_waits_for_all_probes_in_their_order():
    rig = ProberRig(plan=ProbePlan((TCP, HTTP, GRPC)), passes={3: 0.2, 1: 0.1, 2: 0.4})
    assert (await rig.probe())[0][1] >= 0.4
    ports = [port for port, _ in rig.asked]
    assert ports == sorted(ports, key=[3, 1, 2].index)


async def test_auto_counts_consecutive_successes_a_period_apart():
    probe = PlannedProbe(HttpGetAction(1), 1, successes=3, period=10.0)
    rig = ProberRig(plan=ProbePlan((probe,)))
    assert (await rig.probe())[0][1] == pytest.approx(20.0, abs=0.1)
    assert len(rig.asked) == 3


async def test_auto_asks_no_probe_before_its_initial_delay():
    probe = PlannedProbe(HttpGetAction(1), 1, delay=8.0)
    rig = ProberRig(accepts=2.0, plan=ProbePlan((probe,)))
    assert (await rig.probe())[0][1] == pytest.approx(10.0, abs=0.1)
    assert rig.asked[0][1] >= 10.0


async def test_auto_leaves_a_tcp_probe_to_kubernetes_where_the_client_speaks_no_http():
    rig = ProberRig(plan=ProbePlan((TCP,)))
    assert await rig.probe(is_http=False) == []
    assert not rig.asked


async def test_protocol_asks_the_database_and_reads_no_pod():
    rig = ProberRig(accepts=0.5, passes={80: 3.0})
    found = await rig.probe(policy="Protocol", is_http=False, database=DatabaseKind.REDIS)
    assert found[0][1] == pytest.approx(3.0, abs=0.05)
    assert rig.plans_read == 0


async def test_protocol_is_auto_where_no_database_is_known():
    rig = ProberRig(plan=ProbePlan((HTTP,)), passes={1: 0.5})
    assert (await rig.probe(policy="Protocol"))[0][1] == pytest.approx(0.5, abs=0.035)


async def test_auto_never_probes_before_the_port_accepts():
    rig = ProberRig(accepts=2.0, plan=ProbePlan((HTTP,)))
    await rig.probe()
    assert rig.asked[0][1] > 2.0


async def test_auto_reads_the_pod_while_its_port_is_tried():
    rig = ProberRig(accepts=1.0, reads=0.9, plan=ProbePlan((HTTP,)))
    assert (await rig.probe())[0][1] == pytest.approx(1.005, abs=INTERVAL)


async def test_auto_leaves_to_kubernetes_what_it_cannot_ask():
    rig = ProberRig(plan=ProbePlan(only_ready="the readiness_probe runs a command"))
    assert await rig.probe() == []
    assert rig.connects == [0.0]


async def test_auto_leaves_an_endpoint_without_a_pod_to_kubernetes():
    rig = ProberRig()
    assert await rig.probe(pod=None) == []


async def test_an_unreachable_pod_is_tried_two_attempts_at_a_time():
    rig = ProberRig(unreachable=True)
    assert await rig.probe(seconds=10.0) == []
    assert len(rig.connects) == 20


async def test_tcp_releases_at_the_first_accepted_connection_and_reads_no_pod():
    rig = ProberRig(accepts=0.1, plan=ProbePlan((HTTP,)), passes={1: 99.0})
    assert await rig.probe(policy="TCP") == [(POD, 0.1)]
    assert rig.plans_read == 0


async def test_ready_asks_nothing():
    rig = ProberRig()
    assert await rig.probe(policy="Ready") == []
    assert not rig.connects
    assert not rig.asked


async def test_a_ready_pod_that_refused_must_accept_again_and_nothing_more():
    rig = ProberRig(accepts=0.3, plan=ProbePlan((HTTP,)))
    assert await rig.probe(ready=True, has_refused=True) == [(POD, 0.3)]
    assert rig.plans_read == 0
    assert not rig.asked


async def test_probing_stops_when_no_connection_waits():
    rig = ProberRig(accepts=99.0)
    rig.prober.set_targets({POD: ProbeTarget("TCP")})
    await asyncio.sleep(1.0)
    rig.prober.set_targets({})
    seen = len(rig.connects)
    await asyncio.sleep(1.0)
    assert len(rig.connects) == seen
    await rig.prober.aclose()


async def test_the_same_probe_target_again_changes_nothing():
    rig = ProberRig(plan=ProbePlan((HTTP,)), passes={1: 1.0})
    for _ in range(10):
        rig.prober.set_targets({POD: ProbeTarget("Auto", NAME)})
        await asyncio.sleep(0.1)
    assert rig.plans_read == 1
    assert len(rig.connects) == 1
    await rig.prober.aclose()


async def test_only_so_many_pods_are_looked_at_at_once():
    rig = ProberRig(accepts=99.0)
    pods = {UpstreamAddress(f"10.0.1.{n}", 80): ProbeTarget("TCP") for n in range(200)}
    rig.prober.set_targets(pods)
    await asyncio.sleep(0.004)
    assert len(rig.connects) == MOST_AT_ONCE
    await rig.prober.aclose()
