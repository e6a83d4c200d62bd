"""Schedules in virtual time: a week with a crash at every boundary, a clock that jumps, bad input."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools

import pytest
from tests.operator.apps import Apps
from tests.operator.environment import NAMESPACE, Environment, FakeTrigger

from elasti.api.schedules import changes, level_at
from elasti.api.types import Schedule
from kubeloop.objects.meta import JsonObject
from kubeloop.testing.virtual_time import VirtualClock
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time

ZONE = "Europe/Berlin"
WEEK: list[JsonObject] = [
    {"name": "office", "keep": "Awake", "during": "Mon-Fri 08:00-19:00", "timezone": ZONE},
    {"name": "weekend", "keep": "Asleep", "during": "Fri 21:00 - Mon 06:00", "timezone": ZONE},
    {"name": "holiday", "keep": "Free", "dates": "2026-10-21", "timezone": ZONE},
]
SCHEDULES = tuple(Schedule(**one) for one in WEEK)
# A Monday; on the Sunday after it Berlin's clocks go back.
MONDAY = dt.datetime(2026, 10, 19, tzinfo=dt.UTC)
SOON = 70.0
"""Seconds until a target sleeps that may: the cooldown, the settle, a reading."""


class JumpingClock(VirtualClock):
    """Wall time that is set."""

    offset = dt.timedelta()

    def now(self) -> dt.datetime:
        return super().now() + self.offset


@pytest.fixture(autouse=True)
def trigger(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeTrigger.install(monkeypatch)


async def until(env: Environment, moment: dt.datetime) -> None:
    await asyncio.sleep((moment - env.clock.now()).total_seconds())


def wanted(moment: dt.datetime, *, busy: bool) -> bool:
    """Whether the target is to be awake."""
    keep = level_at(SCHEDULES, moment).keep
    return {"Awake": True, "Asleep": False}.get(keep, busy)


@pytest.mark.parametrize("busy", [True, False])
async def test_a_week_with_a_crash_at_every_boundary(busy: bool):
    env = Environment(clock=VirtualClock(MONDAY), polling_interval=60.0)
    env.web(schedules=WEEK)
    FakeTrigger.value = 9.0 if busy else 0.0
    week = MONDAY + dt.timedelta(days=8)
    boundaries = [
        one.at for one in itertools.takewhile(lambda c: c.at < week, changes(SCHEDULES, MONDAY))
    ]
    assert len(boundaries) > 10
    down = dt.timedelta(seconds=3)
    settled = dt.timedelta(minutes=5)
    for boundary in boundaries:
        await until(env, boundary - settled)
        async with env.operator():
            await until(env, boundary - down)
            assert bool(env.replicas) is wanted(env.clock.now(), busy=busy), env.clock.now()
        # No operator sees the boundary itself.
        await until(env, boundary + down)
        async with env.operator():
            await until(env, boundary + settled)
            assert bool(env.replicas) is wanted(env.clock.now(), busy=busy), env.clock.now()
    assert env.dark == []


async def test_a_change_is_made_when_it_is_due_and_not_a_round_later():
    six = MONDAY + dt.timedelta(hours=6)
    env = Environment(clock=VirtualClock(six - dt.timedelta(minutes=11)), polling_interval=300.0)
    env.web(replicas=0, schedules=WEEK)
    async with env.operator():
        await until(env, six - dt.timedelta(seconds=1))
        assert env.replicas == 0
        await asyncio.sleep(3.0)
        assert env.replicas == 1
        await env.becomes("Serve")
        assert env.status["lastWake"]["cause"] == "Schedule"
        condition = {one["type"]: one for one in env.status["conditions"]}["MaySleep"]
        assert condition["reason"] == "ScheduledAwake"
        assert env.status["awakeUntil"] == "2026-10-19T17:00:00Z"


async def test_warm_targets_start_earlier_by_their_own_cold_starts_and_not_all_at_once():
    eight = MONDAY + dt.timedelta(hours=8)
    names = [f"web-{number}" for number in range(6)]
    slow = names[-1]
    clock = VirtualClock(eight - dt.timedelta(minutes=40))
    env = Apps({name: [] for name in names}, {}, clock=clock, polling_interval=30.0)
    office = {"name": "office", "keep": "Awake", "during": "Mon-Fri 08:00-19:00", "warmBy": True}
    for name in names:
        env.web(0, name=name, schedules=[office], cooldownPeriod=300)
    at_eight = asyncio.get_running_loop().time() + (eight - clock.now()).total_seconds()
    async with env.operator() as operator:
        for cold_start in (90.0, 10.0):
            env.starts = dict.fromkeys(names, cold_start) | {slow: 2 * cold_start}
            await env.asleep()
            for name in names:
                await operator.waker.wake(NAMESPACE, name, "GET /")
            await eventually(
                lambda: {env.state_of(name) for name in names} == {"Serve"}, timeout=400, every=0.5
            )
        await env.asleep()
        env.starts = dict.fromkeys(names, 90.0) | {slow: 180.0}
        await until(env, eight)
        assert set(env.served) == set(names), "each is warm by then"
        # The p95 of its cold starts: the slower of two, with what the operator takes; and its share of five minutes.
        leads = {name: at_eight - env.scaled[name] for name in names}
        for name in names:
            assert env.starts[name] <= leads[name] < env.starts[name] + 300.0 + 5.0
            assert env.status_of(name)["lastWake"]["cause"] == "Schedule"
        others = sorted(leads[name] for name in names if name != slow)
        assert others[-1] - others[0] > 100.0, others
        assert all(later - one > 1.0 for one, later in itertools.pairwise(others)), others
        await asyncio.sleep(120.0)
        assert {env.state_of(name) for name in names} == {"Serve"}


async def test_a_request_wakes_it_in_an_asleep_window_and_it_sleeps_a_cooldown_later():
    saturday = dt.datetime(2026, 10, 24, 12, tzinfo=dt.UTC)
    env = Environment(clock=VirtualClock(saturday))
    env.web(schedules=WEEK)
    FakeTrigger.value = 9.0
    async with env.operator() as operator:
        await env.becomes("Proxy")
        await operator.waker.wake("shop", "web", "client")
        await env.becomes("Serve")
        assert await env.becomes("Proxy") < SOON


async def test_a_clock_that_jumps_is_followed_both_ways():
    clock = JumpingClock(MONDAY)
    env = Environment(clock=clock, polling_interval=30.0)
    env.web(schedules=WEEK)
    async with env.operator():
        await env.becomes("Proxy")
        clock.offset = dt.timedelta(hours=8)
        await asyncio.sleep(40.0)
        assert env.replicas == 1
        clock.offset = dt.timedelta(hours=2)
        await env.becomes("Proxy", within=120.0)
        clock.offset = dt.timedelta(days=4, hours=8)
        await asyncio.sleep(40.0)
        assert env.replicas == 1


async def test_a_schedule_that_cannot_be_read_keeps_awake_and_is_named():
    env = Environment(clock=VirtualClock(MONDAY))
    env.web(replicas=0, schedules=[{**WEEK[1], "timezone": "Europe/Berln"}, *WEEK[:1]])
    async with env.operator():
        await env.becomes("Serve")
        ready = {one["type"]: one for one in env.status["conditions"]}["Ready"]
        assert ready["status"] == "True"
        assert "spec.schedules[0] (weekend) timezone: 'Europe/Berln'" in ready["message"]
        assert "like 'Europe/Berlin'" in ready["message"]
        assert env.status["warnings"][0] == "ScheduleInvalid"
        env.change(
            "elastiservices",
            spec={"schedules": [{**WEEK[1], "during": "Mon-Sun 00:00-24:00"}, *WEEK[:1]]},
        )
        await env.becomes("Proxy")
        assert env.status["warnings"][0] == "ScheduleOverlap"
