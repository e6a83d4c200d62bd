"""Apps of several parts in virtual time: woken together, in their order, and asleep in the other one."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operator.apps import Apps
from tests.operator.environment import NAMESPACE, FakeTrigger, Operator

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


async def asked_until_served(env: Apps, operator: Operator) -> None:
    """Ask as a resolver does: again and again, until a pod answers."""
    async with asyncio.timeout(60.0):
        while "web" not in env.served:
            await operator.waker.wake(NAMESPACE, "web", "GET /")
            await asyncio.sleep(1.0)


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
            await asked_until_served(env, operator)
            await env.asleep()
        assert env.wrong == []
        if not killed:
            assert number > 6
            return


@pytest.mark.virtual_time
async def test_the_leader_is_killed_between_any_two_writes_of_the_parks():
    cooldown = 30.0

    def over(env: Apps, operator: Operator) -> bool:
        return operator.killed.is_set() or not env.up("db")

    for number in itertools.count(1):
        env = Apps(PAIR, {}, replicas=1)
        async with env.operator() as operator:
            operator.kill_at(number)
            with contextlib.suppress(AssertionError):
                await eventually(functools.partial(over, env, operator), timeout=200, every=1)
            await asyncio.sleep(5.0)
            killed = operator.killed.is_set()
        async with env.operator() as operator:
            await env.asleep()
            assert env.wrong == []
            # A new leader may begin a cooldown again, and never shortens one.
            assert env.parked["db"] - env.parked["web"] >= cooldown
            await asked_until_served(env, operator)
            assert env.scaled["web"] >= env.served["db"]
        if not killed:
            assert number > 6
            return


class Story(NamedTuple):
    """What happens to a graph: who wakes beside `a` and when, and an edge that is added or removed."""

    edges: dict[str, list[str]]
    starts: dict[str, float]
    second: str
    after: float
    edit: tuple[str, list[str]] | None
    edited: float
    """When, in seconds after the first wake-up: while they wake, or while they are parked."""


@st.composite
def stories(draw: st.DrawFn) -> Story:
    names = list("abcdef")[: draw(st.integers(2, 6))]
    edges = {
        name: sorted(draw(st.sets(st.sampled_from(names[index + 1 :]), max_size=3)))
        if index + 1 < len(names)
        else []
        for index, name in enumerate(names)
    }
    starts = {name: draw(st.sampled_from([0.5, 1.0, 2.0, 4.0])) for name in names}
    second, after = draw(st.sampled_from(names[1:])), draw(st.sampled_from([0.0, 0.3, 2.5]))
    edit = None
    if draw(st.booleans()):
        where = draw(st.integers(0, len(names) - 2))
        other = draw(st.sampled_from(names[where + 1 :]))
        edit = names[where], sorted({other}.symmetric_difference(edges[names[where]]))
    edited = draw(st.one_of(st.floats(0.0, 8.0), st.floats(28.0, 110.0)))
    return Story(edges, starts, second, after, edit, edited)


def expected(story: Story) -> dict[str, float]:
    """Return when each of the sets serves, in seconds after the first wake-up."""
    asked = dict.fromkeys(below(story.edges, story.second), story.after)
    asked |= dict.fromkeys(below(story.edges, "a"), 0.0)
    found: dict[str, float] = {}
    for name in reversed(story.edges):  # names depend on later ones only
        if name in asked:
            ready = max((found[one] for one in story.edges[name]), default=0.0)
            found[name] = max(asked[name], ready) + story.starts[name]
    return found


async def compare(story: Story) -> None:
    """Wake two and compare with the model: each set at once and in order, and nothing else."""
    env = Apps(story.edges, story.starts)
    loop = asyncio.get_running_loop()

    async def edit() -> None:
        await asyncio.sleep(story.edited)
        if story.edit is not None:
            env.depend(story.edit[0], *story.edit[1])

    async with env.operator() as operator:
        await env.asleep()
        began = loop.time()
        editing = asyncio.create_task(edit())
        await operator.waker.wake(NAMESPACE, "a", "GET /")
        await asyncio.sleep(story.after)
        await operator.waker.wake(NAMESPACE, story.second, "GET /")
        served = {name: await env.serving(name) - began for name in ("a", story.second)}
        model = expected(story)
        if story.edit is None or story.edited > max(served.values()):
            for name, at in served.items():
                assert model[name] - 0.01 <= at <= model[name] + 1.0, (name, served, model)
            assert set(env.served) == set(model)
            for name in env.served:
                assert all(env.scaled[name] >= env.served[one] for one in story.edges[name])
        else:
            # It may be waited for what has been added, within the one deadline, and for nothing else.
            assert max(served.values()) <= story.after + 30.0 + sum(story.starts.values()) + 3.0
        await editing
        await asyncio.sleep(1.0)
        await env.asleep()
        assert env.wrong == []


@settings(max_examples=200 if settings.get_current_profile_name() == "thorough" else 8)
@given(stories())
def test_random_graphs_agree_with_the_model(story: Story):
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(compare(story))
