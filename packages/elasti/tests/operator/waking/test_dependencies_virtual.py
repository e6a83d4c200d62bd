"""Apps of several parts in virtual time: woken together, in their order, and asleep in the other one."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operator.apps import Apps
from tests.operator.environment import NAMESPACE, FakeTrigger

from elasti.api.wire import ActivityReport, WakeOutcome
from kubeloop.client.request import Request
from kubeloop.testing.virtual_time import VirtualTimeLoop
from tests.waiting import eventually

NEVER = 1e9
CHAIN = {"web": ["api"], "api": ["db"], "db": []}


@pytest.fixture(autouse=True)
def trigger(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeTrigger.install(monkeypatch)


def below(edges: Mapping[str, list[str]], name: str) -> set[str]:
    return {name}.union(*(below(edges, one) for one in edges[name]))


def longest(edges: Mapping[str, list[str]], starts: Mapping[str, float], name: str) -> float:
    return starts[name] + max((longest(edges, starts, one) for one in edges[name]), default=0.0)


@pytest.mark.virtual_time
async def test_a_set_wakes_together_and_sleeps_one_cooldown_after_its_last_dependent():
    env = Apps(CHAIN, {"web": 1.0, "api": 2.0, "db": 3.0})
    async with env.operator() as operator:
        await env.asleep()
        began = asyncio.get_running_loop().time()
        reply = await operator.waker.wake(NAMESPACE, "web", "GET /")
        assert reply.outcome is WakeOutcome.WAITS
        assert [(part.name, part.needs) for part in reply.parts] == [
            ("db", ()),
            ("api", (0,)),
            ("web", (1,)),
        ]
        await asyncio.sleep(0.2)
        assert env.up("db")
        assert not env.up("api")
        assert await env.serving("web") - began < 6.0 + 2.0
        assert env.scaled["api"] >= env.served["db"]
        assert env.scaled["web"] >= env.served["api"]
        await eventually(lambda: env.state_of("web") == "Serve", timeout=60, every=0.1)
        await eventually(lambda: env.state_of("db") == "Serve", timeout=60, every=0.1)
        woken = {name: env.status_of(name)["lastWake"] for name in CHAIN}
        assert woken["web"]["cause"] == "Request"
        assert (woken["db"]["cause"], woken["db"]["client"]) == ("Dependency", "api")
        reasons = {c["type"]: c["reason"] for c in env.status_of("db")["conditions"]}
        assert reasons["MaySleep"] == "NeededBy"
        await env.asleep()
        assert env.wrong == []


@pytest.mark.virtual_time
async def test_a_dependency_may_delay_and_not_prevent():
    env = Apps(CHAIN, {"db": NEVER})
    async with env.operator() as operator:
        await env.asleep()
        began = asyncio.get_running_loop().time()
        await operator.waker.wake(NAMESPACE, "web", "GET /")
        await eventually(lambda: env.up("web"), timeout=60, every=0.05)
        # One deadline for the whole set, not for each level.
        assert 29.0 < asyncio.get_running_loop().time() - began < 33.0


@pytest.mark.virtual_time
@pytest.mark.parametrize("change", ["deleted", "suspended", "cyclic", "renamed"])
async def test_a_dependency_that_changes_while_all_sleep_does_not_prevent_a_wake_up(change: str):
    env = Apps(CHAIN, {})
    async with env.operator() as operator:
        await env.asleep()
        api = env.get("elastiservices", "api")
        if change == "deleted":
            env.put(
                "elastiservices", api | {"metadata": api["metadata"] | {"finalizers": []}}, "api"
            )
            env.delete("elastiservices", "api")
        else:
            spec = {
                "suspended": {"suspend": True},
                "cyclic": {"dependsOn": [{"name": "web"}]},
                "renamed": {"dependsOn": [{"name": "database"}]},
            }[change]
            env.put("elastiservices", api | {"spec": api["spec"] | spec}, "api")
        await asyncio.sleep(5.0)
        if change in ("cyclic", "renamed"):
            assert "DependencyIgnored" in env.status_of("api")["warnings"]
        began = asyncio.get_running_loop().time()
        await operator.waker.wake(NAMESPACE, "web", "GET /")
        # What no longer counts is not waited for, and neither is its deadline.
        assert await env.serving("web") - began < 10.0


OBSERVED: dict[str, Any] = {"policy": "Observe", "suspend": True}
PAIR = {"web": ["db"], "db": []}


@pytest.mark.virtual_time
async def test_an_observed_dependency_is_neither_scaled_nor_waited_for():
    env = Apps(PAIR, {})
    env.web(1, name="db", triggers=[], **OBSERVED)
    async with env.operator() as operator:
        await eventually(lambda: env.state_of("web") == "Proxy", timeout=120, every=0.5)
        began = asyncio.get_running_loop().time()
        reply = await operator.waker.wake(NAMESPACE, "web", "GET /")
        assert (reply.outcome, reply.parts) == (WakeOutcome.SCALING, ())
        assert await env.serving("web") - began < 2.0
        await asyncio.sleep(600.0)
        assert env.state_of("web") == "Proxy"
        writes = {
            (request.method, request.path)
            for request in operator.client.requests
            if request.method != "GET" and "/db" in request.path
        }
        assert {path.rpartition("/")[2] for _, path in writes} == {"status"}
        assert env.up("db")


@pytest.mark.virtual_time
async def test_an_observed_dependent_keeps_what_it_needs_awake():
    env = Apps(PAIR, {})
    env.web(1, name="web", dependsOn=[{"name": "db"}], **OBSERVED)
    env.web(1, name="db", triggers=[])
    async with env.operator():
        await asyncio.sleep(600.0)
        assert env.up("db"), "the dependent is awake, whatever it would do"
        reasons = {c["type"]: c["reason"] for c in env.status_of("db")["conditions"]}
        assert reasons["MaySleep"] == "NeededBy"
        # Enforced, it sleeps, and the other one after it.
        env.web(1, name="web", dependsOn=[{"name": "db"}])
        await env.asleep()
        assert env.wrong == []


@pytest.mark.virtual_time
@pytest.mark.parametrize("moment", ["asked", "held back", "written", "noticed"])
async def test_a_request_during_the_park_of_a_dependency_finds_it_awake_or_waits_for_it(
    moment: str,
):
    env = Apps({"web": ["db"], "db": []}, {"web": 1.0, "db": 2.0})
    env.slice_lag = 1.0
    replies: list[asyncio.Task[Any]] = []

    async with env.operator() as operator:
        await env.asleep()
        await operator.waker.wake(NAMESPACE, "web", "GET /")
        await eventually(lambda: env.state_of("web") == "Serve", timeout=60, every=0.1)
        await eventually(lambda: env.state_of("web") == "Proxy", timeout=600, every=0.5)

        def wake() -> None:
            if not replies:
                waking = operator.waker.wake(NAMESPACE, "web", "GET /")
                replies.append(asyncio.create_task(waking))

        def on_write(write: Request, done: bool) -> None:
            if "deployments/db/scale" in write.path and done is (moment == "written"):
                wake()

        def answered() -> ActivityReport:
            wake()
            return ActivityReport(held=0, open=0)

        match moment:
            case "asked":
                env.resolvers.report_of = answered
            case "held back" | "written":
                operator.client.on_write = on_write
            case "noticed":
                await eventually(lambda: not env.up("db"), timeout=600, every=0.1)
                wake()
        await env.serving("web", within=600.0)
        assert env.wrong == []
        assert env.scaled["web"] >= env.served["db"]
        await asyncio.sleep(5.0)
        assert env.up("db")


@pytest.mark.virtual_time
@pytest.mark.parametrize("left", ["suspended", "observed", "invalid", "deleting"])
async def test_a_dependency_that_is_left_alone_is_neither_woken_nor_awaited(left: str):
    env = Apps(CHAIN, {})
    async with env.operator() as operator:
        await env.asleep()
        db = env.get("elastiservices", "db")
        spec = {
            "suspended": {"suspend": True},
            "observed": {"suspend": True, "policy": "Observe"},
            "invalid": {"minTargetReplicas": 0},
            "deleting": {"deletionPolicy": "Leave"},
        }[left]
        meta = db["metadata"] | {"finalizers": [*db["metadata"]["finalizers"], "example.com/held"]}
        env.put("elastiservices", db | {"spec": db["spec"] | spec, "metadata": meta}, "db")
        if left == "deleting":
            env.delete("elastiservices", "db")
        await asyncio.sleep(60.0)
        target = env.get("deployments", "db")
        env.put("deployments", target | {"spec": target["spec"] | {"replicas": 0}}, "db")
        await asyncio.sleep(60.0)
        reply = await operator.waker.wake(NAMESPACE, "web", "GET /")
        assert [part.name for part in reply.parts] == ["api", "web"]
        await env.serving("web", within=10.0)
        assert not env.up("db")


@pytest.mark.virtual_time
async def test_a_wake_request_leaves_what_is_only_observed_alone():
    env = Apps({"web": []}, {})
    async with env.operator() as operator:
        await env.asleep()
        es = env.get("elastiservices", "web")
        observed = es["spec"] | {"suspend": True, "policy": "Observe"}
        env.put("elastiservices", es | {"spec": observed}, "web")
        await env.serving("web", within=60.0)
        await asyncio.sleep(60.0)
        env.scale(0)
        await asyncio.sleep(5.0)
        reply = await operator.waker.wake(NAMESPACE, "web", "GET /")
        assert reply.outcome is WakeOutcome.NOT_FOUND
        assert not env.up("web")


@pytest.mark.virtual_time
async def test_the_leader_is_killed_between_any_two_writes():
    for number in itertools.count(1):
        env = Apps(CHAIN, {})
        async with env.operator():
            await env.asleep()
        async with env.operator() as operator:
            await asyncio.sleep(5.0)
            operator.kill_at(number)
            asking = asyncio.create_task(operator.waker.wake(NAMESPACE, "web", "GET /"))
            await asyncio.sleep(15.0)
            killed = operator.killed.is_set()
            asking.cancel()
            await asyncio.wait([asking])
        async with env.operator() as operator:
            # The resolver asks until a pod answers.
            while "web" not in env.served:
                await operator.waker.wake(NAMESPACE, "web", "GET /")
                await asyncio.sleep(1.0)
            await env.asleep()
        assert env.wrong == []
        if not killed:
            assert number > 6
            return


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[str, list[str]], dict[str, float]]:
    names = list("abcdef")[: draw(st.integers(2, 6))]
    edges = {
        name: sorted(draw(st.sets(st.sampled_from(names[index + 1 :]), max_size=3)))
        if index + 1 < len(names)
        else []
        for index, name in enumerate(names)
    }
    return edges, {name: draw(st.sampled_from([0.5, 1.0, 2.0, 4.0])) for name in names}


async def compare(edges: dict[str, list[str]], starts: dict[str, float]) -> None:
    """Wake the first and compare with the model: the longest path, in order, and nothing else."""
    env = Apps(edges, starts)
    async with env.operator() as operator:
        await env.asleep()
        began = asyncio.get_running_loop().time()
        await operator.waker.wake(NAMESPACE, "a", "GET /")
        served = await env.serving("a")
        path = longest(edges, starts, "a")
        assert path - 0.01 <= served - began <= path + 1.0, (edges, starts)
        assert set(env.served) == below(edges, "a")
        for name in env.served:
            assert all(env.scaled[name] >= env.served[one] for one in edges[name])
        await env.asleep()
        assert env.wrong == []


@settings(max_examples=200 if settings.get_current_profile_name() == "thorough" else 6)
@given(graphs())
def test_random_graphs_agree_with_the_model(found: tuple[dict[str, list[str]], dict[str, float]]):
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(functools.partial(compare, *found)())
