"""`wake.ignore`: programs that do not wake a sleeping target."""

from __future__ import annotations

import asyncio
import itertools

import msgspec
import pytest
from tests.resolver.proxy.fakes import FakeTransport
from tests.resolver.services.service_rig import Asked, ServiceRig

from elasti.api.types import IgnorePreset, IgnoreSpec, WakeSpec
from elasti.resolver.proxy.port_handler import DataPath
from elasti.resolver.proxy.upstream.interface import PortProtocol
from elasti.resolver.services.ignored import IgnoredRequests, agent_lists, read_agents

AGENTS = agent_lists()
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
CURL = "curl/8.14.1"
EVERYDAY = [
    FIREFOX,
    CURL,
    "Go-http-client/1.1",
    "python-requests/2.32.3",
    "okhttp/4.12.0",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.0 Safari/605.1.15",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/141.0.0.0 Safari/537.36",
    "grpc-go/1.75.0",
]
REQUEST = b"GET /health HTTP/1.1\r\nHost: web\r\nUser-Agent: %s\r\n%s\r\n\r\n"
EXAMPLES = [
    pytest.param(preset, example, id=f"{preset}-{example[:40]}")
    for preset, agents in read_agents().items()
    for known in agents
    for example in known.examples
]


def ignoring(spec):
    ignore = msgspec.convert(spec, IgnoreSpec)
    return IgnoredRequests(ignore.presets or (), ignore.rules, agents=AGENTS)


def status(found):
    return None if found is None else found.status


def test_every_preset_has_agents():
    assert AGENTS.keys() == set(IgnorePreset)


@pytest.mark.parametrize(("preset", "agent"), EXAMPLES)
def test_an_agent_is_ignored_by_its_preset_only(preset, agent):
    asked = Asked(user_agent=agent)
    answered = 200 if preset in ("LoadBalancers", "Probes", "UptimeMonitors") else 503
    assert status(ignoring({"presets": [preset]}).answer(asked)) == answered
    others = [other for other in IgnorePreset if other is not preset]
    assert ignoring({"presets": others}).answer(asked) is None


@pytest.mark.parametrize("agent", EVERYDAY)
def test_people_and_programs_wake(agent):
    assert ignoring({"presets": list(IgnorePreset)}).answer(Asked(user_agent=agent)) is None


@pytest.mark.parametrize("field", ["cookie", "authorization"])
@pytest.mark.parametrize(
    ("agent", "answered"),
    [("Googlebot/2.1", None), ("kube-probe/1.36", None), ("GoogleHC/1.0", 200)],
)
def test_credentials_wake_unless_a_load_balancer_sends_them(agent, answered, field):
    ignored = ignoring({"presets": list(IgnorePreset), "rules": [{"userAgents": [".*"]}]})
    assert status(ignored.answer(Asked(user_agent=agent, **{field: "x"}))) == answered


def test_a_request_without_an_agent_wakes():
    assert ignoring({"presets": list(IgnorePreset)}).answer(Asked()) is None


def test_a_rule_has_a_response_of_its_own():
    rule = {"userAgents": ["(?i)acme-check", "^probe$"], "response": {"status": 204, "body": ""}}
    ignored = ignoring({"presets": [], "rules": [rule]})
    assert status(ignored.answer(Asked(user_agent="Acme-Check/3"))) == 204
    assert status(ignored.answer(Asked(user_agent="probe"))) == 204
    assert ignored.answer(Asked(user_agent="probes")) is None
    assert ignored.answer(Asked(user_agent="acme-check" * 200)) is None
    assert ignored.counts == {"rules[0]": 2}


def test_an_unusable_expression_matches_nothing():
    ignored = ignoring({"presets": [], "rules": [{"userAgents": ["(?!a)", "good"]}]})
    assert ignored.answer(Asked(user_agent="a")) is None
    assert status(ignored.answer(Asked(user_agent="good"))) == 200


def test_a_response_states_that_the_target_sleeps_and_is_not_cached():
    ignored = ignoring({"presets": ["UptimeMonitors", "Crawlers"]})
    monitor = ignored.answer(Asked(user_agent="Uptime-Kuma/2.0.2"))
    crawler = ignored.answer(Asked(user_agent="Googlebot/2.1"))
    assert b"X-Elasti-State: asleep" in monitor.fields
    assert b"Cache-Control: no-store" in monitor.fields
    assert b"Retry-After: 3600" in crawler.fields
    assert ignored.counts == {"UptimeMonitors": 1, "Crawlers": 1}


@pytest.mark.virtual_time
async def test_only_a_target_without_pods_ignores():
    rig = ServiceRig()
    wake = WakeSpec(ignore=IgnoreSpec(presets=(IgnorePreset.PROBES,)))
    rig.service.configure(wake=wake, responses=())
    asked = Asked(user_agent="kube-probe/1.36")
    assert status(rig.port.answer_locally(asked)) == 200
    rig.service.configure(wake=msgspec.structs.replace(wake, max_held=5), responses=())
    assert rig.service.ignored.counts == {"Probes": 1}
    await rig.serving(a=True)
    assert rig.port.answer_locally(asked) is None
    await asyncio.sleep(0)
    assert rig.wakes == []


@pytest.mark.virtual_time
@pytest.mark.parametrize("preset", list(IgnorePreset))
async def test_a_day_of_every_preset_wakes_nothing(preset):
    rig, path = ServiceRig(), DataPath()
    # Without the timers that `start` adds: they would be most of the day.
    path.now = asyncio.get_running_loop().time
    ignore = IgnoreSpec(presets=(preset,))
    rig.service.configure(wake=WakeSpec(ignore=ignore), responses=())
    rig.service.publish(published=True)
    client = FakeTransport(path.handler(rig.port, PortProtocol.HTTP)())
    client.protocol.connection_made(client)
    agents = itertools.cycle(one for known in read_agents()[preset] for one in known.examples)
    for agent in itertools.islice(agents, 8640):
        client.feed(REQUEST % (agent.encode(), b"Accept: */*"))
        await asyncio.sleep(10)
        assert b"X-Elasti-State: asleep" in client.written
        client.written = b""
    assert rig.service.ignored.counts == {preset: 8640}
    assert (rig.wakes, rig.service.held, rig.service.last_arrival) == ([], 0, None)
    # The cookie does not matter to load balancers, whose checks may have one.
    agent = next(agents) if preset is not IgnorePreset.LOAD_BALANCERS else FIREFOX
    client.feed(REQUEST % (agent.encode(), b"Cookie: session=1"))
    await asyncio.sleep(1)
    assert (len(rig.wakes), rig.service.held) == (1, 1)
    client.lose()
    await rig.service.aclose()
