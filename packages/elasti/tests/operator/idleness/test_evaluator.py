"""Rounds of triggers: what is kept between them, and what a change forgets."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Hashable

import pytest
from aiohttp import web
from tests.operator.rig import FakePrometheus

from elasti.api.triggers.destinations import ALLOWED, parse_networks
from elasti.api.types import ScaleTrigger
from elasti.operator.idleness.evaluator import Evaluator, Subject
from elasti.triggers.pods import PodsReader
from elasti.triggers.reader import ReadContext, ReaderSettings, TriggerReading
from tests.web_server import web_server

LOOPBACK = {ALLOWED: parse_networks("127.0.0.0/8")}


class StepClock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> dt.datetime:
        return dt.datetime(2030, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=self.seconds)


@pytest.fixture
def clock() -> StepClock:
    return StepClock()


def trigger(prometheus: FakePrometheus, query: str = "q") -> ScaleTrigger:
    return ScaleTrigger("prometheus", prometheus.trigger(query)["metadata"])


def evaluator_of(clock: StepClock) -> Evaluator:
    settings = ReaderSettings(clock=clock, variables=LOOPBACK)
    return Evaluator(settings=settings, stale_after=120.0)


def subject(
    *triggers: ScaleTrigger, key: str = "web", tenant: str = "", asleep: bool = False
) -> Subject:
    context = ReadContext(key=key, cooldown=60.0, namespace=tenant, asleep=asleep)
    return Subject(triggers=triggers, context=context)


async def test_quiet_grows_from_round_to_round(clock: StepClock):
    async with FakePrometheus().running() as prometheus:
        async with evaluator_of(clock) as evaluator:
            one = subject(trigger(prometheus))
            assert evaluator.evidence("web") == ()
            for _ in range(3):
                await evaluator.poll([one])
                clock.seconds += 30
            (found,) = evaluator.evidence("web")
            assert found.quiet_for(clock.now().timestamp(), stale_after=120.0) == 90.0


async def test_quiet_begins_again_when_the_target_wakes(clock: StepClock):
    async with FakePrometheus().running() as prometheus, evaluator_of(clock) as evaluator:
        awake = subject(trigger(prometheus))
        asleep = subject(trigger(prometheus), asleep=True)
        for one in (asleep, asleep, asleep, awake, awake):
            await evaluator.poll([one])
            clock.seconds += 30
        (found,) = evaluator.evidence("web")
        assert found.quiet_for(clock.now().timestamp(), stale_after=120.0) == 60.0


async def test_a_cookie_of_one_server_is_sent_nowhere_else(clock: StepClock):
    cookies: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        cookies.append(request.headers.get("Cookie", ""))
        done = web.json_response({"status": "success", "data": {"result": []}})
        done.set_cookie("tenant", "a", domain="localhost")
        return done

    async with (
        web_server(web.get("/api/v1/query", answer), host="localhost") as address,
        evaluator_of(clock) as evaluator,
    ):
        meta = {"query": "q", "threshold": "1", "serverAddress": address}
        for _ in range(2):
            await evaluator.poll([subject(ScaleTrigger("prometheus", meta))])
            clock.seconds += 30
    assert len(cookies) > 1
    assert set(cookies) == {""}


async def test_use_and_errors_break_the_quiet(clock: StepClock):
    async with FakePrometheus().running() as prometheus:
        async with evaluator_of(clock) as evaluator:
            one = subject(trigger(prometheus))
            await evaluator.poll([one])
            prometheus.value = 9.0
            await evaluator.poll([one])
            assert evaluator.evidence("web")[0].is_active()
            prometheus.value, prometheus.up = 0.0, 0.0
            await evaluator.poll([one])
            (found,) = evaluator.evidence("web")
            assert not found.is_active()
            assert found.quiet_since is None


async def test_a_changed_trigger_has_shown_nothing_yet(clock: StepClock):
    async with FakePrometheus().running() as prometheus:
        async with evaluator_of(clock) as evaluator:
            await evaluator.poll([subject(trigger(prometheus))])
            clock.seconds += 30
            await evaluator.poll([subject(trigger(prometheus, "other"))])
            (found,) = evaluator.evidence("web")
            assert found.quiet_for(clock.now().timestamp(), stale_after=120.0) == 0.0


async def test_subjects_with_the_same_query_share_it(clock: StepClock):
    async with FakePrometheus().running() as prometheus:
        async with evaluator_of(clock) as evaluator:
            subjects = [subject(trigger(prometheus), key=f"web-{n}") for n in range(50)]
            await evaluator.poll(subjects)
            assert len(prometheus.queries) == 2
            assert all(evaluator.evidence(f"web-{n}")[0].quiet_since for n in range(50))


class CountingPrometheus(FakePrometheus):
    """Notes how many tasks there are while it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.most_tasks = 0

    async def _query(self, request: web.Request) -> web.Response:
        self.most_tasks = max(self.most_tasks, len(asyncio.all_tasks()))
        return await super()._query(request)


async def test_a_thousand_triggers_are_not_a_thousand_tasks(clock: StepClock):
    async with CountingPrometheus().running() as prometheus:
        async with evaluator_of(clock) as evaluator:
            await evaluator.poll(
                subject(trigger(prometheus, f"q{n}"), key=f"web-{n}") for n in range(1000)
            )
            assert len(prometheus.queries) == 1001
            assert all(evaluator.evidence(f"web-{n}")[0].quiet_since for n in range(1000))
            # A worker, its query and the answering side for each connection.
            assert prometheus.most_tasks < 300


async def test_an_invalid_trigger_is_an_error_and_delays_no_other(clock: StepClock):
    async with FakePrometheus().running() as prometheus:
        async with evaluator_of(clock) as evaluator:
            await evaluator.poll([subject(ScaleTrigger("prometheus", {}), trigger(prometheus))])
            broken, good = evaluator.evidence("web")
            assert broken.last is not None
            assert "query" in broken.last.error
            assert good.quiet_since is not None


async def test_a_reader_that_fails_costs_its_own_trigger_only(
    clock: StepClock, monkeypatch: pytest.MonkeyPatch
):
    async def fail(*_arguments: object, **_options: object) -> TriggerReading:
        raise RuntimeError("secret")

    async with FakePrometheus().running() as prometheus:
        async with evaluator_of(clock) as evaluator:
            monkeypatch.setattr(PodsReader, "read", fail)
            pods = ScaleTrigger("pods", {"metric": "busy", "threshold": "1"})
            await evaluator.poll([subject(pods, key="bad"), subject(trigger(prometheus))])
            assert evaluator.evidence("web")[0].quiet_since is not None
            (broken,) = evaluator.evidence("bad")
            assert broken.last is not None
            assert RuntimeError.__name__ in broken.last.error
            assert "secret" not in broken.last.error


@pytest.mark.virtual_time
async def test_slow_triggers_of_one_tenant_delay_no_other_tenant(
    clock: StepClock, monkeypatch: pytest.MonkeyPatch
):
    read: list[str] = []

    async def answer(_self: object, _metadata: object, context: ReadContext) -> TriggerReading:
        assert isinstance(context.key, tuple)
        key = str(context.key[0])
        if key.startswith("slow"):
            await asyncio.sleep(10.0)
        read.append(key)
        return TriggerReading(0.0)

    monkeypatch.setattr(PodsReader, "read", answer)
    pods = ScaleTrigger("pods", {"metric": "busy", "threshold": "1"})
    subjects = [
        subject(pods, key=f"{tenant}-{number}", tenant=tenant)
        for tenant, count in (("slow", 200), ("well", 20))
        for number in range(count)
    ]
    reported: list[Hashable] = []
    loop = asyncio.get_running_loop()
    async with evaluator_of(clock) as evaluator:
        began = loop.time()
        polling = asyncio.create_task(evaluator.poll(subjects, reported.append))
        await asyncio.sleep(1.0)
        assert sorted(read) == sorted(f"well-{number}" for number in range(20))
        assert reported == read
        await polling
        # It ends in time for everybody's evidence; the next begins with what was left out.
        assert loop.time() - began == pytest.approx(40.0)
        left = {f"slow-{number}" for number in range(200)} - set(read)
        assert 0 < len(left) < 200
        read.clear()
        clock.seconds += 30
        await evaluator.poll(subjects)
        assert {key for key in read if key.startswith("slow")} <= left
        assert sum(key.startswith("well") for key in read) == 20


async def test_what_is_gone_is_forgotten(clock: StepClock):
    async with FakePrometheus().running() as prometheus:
        async with evaluator_of(clock) as evaluator:
            await evaluator.poll([subject(trigger(prometheus))])
            evaluator.forget("web")
            assert evaluator.evidence("web") == ()
