"""Spans on their way to a collector that takes them, refuses them, hangs, or is not there."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
from tests.otlp_receiver import plain, receiver

from elasti import tracing
from elasti.authn.settings import AuthnSettings
from elasti.tracing import Tracer
from kubeloop.aio.tasks import finish
from tests.waiting import eventually

WAKE = "0123456789abcdef0123456789abcdef"
PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@contextlib.asynccontextmanager
async def running(tracer: Tracer) -> AsyncIterator[Tracer]:
    task = asyncio.create_task(tracer.run())
    await asyncio.sleep(0)  # one that never ran has nothing to end
    try:
        yield tracer
    finally:
        await finish([task])


def hold(tracer: Tracer, parent: bytes = b"", wake_id: str = WAKE, outcome: str = "served") -> None:
    tracer.held("shop/web", wake_id, parent, (1000.0, 1002.5), outcome=outcome)


async def test_a_held_span_links_to_the_wake_up_and_is_the_clients_child():
    async with receiver() as collector:
        async with running(Tracer(collector.settings, "test")) as tracer:
            tracer.wake("shop/web", WAKE, (1000.0, 1002.0), failed=False, cause="Request")
            hold(tracer, PARENT)
            hold(tracer)
            woke, child, root = await collector.has(3)
            await eventually(lambda: tracer.counts["sent"] == 3, timeout=5)
    assert woke["traceId"] == WAKE
    assert woke["name"] == "wake"
    link = {"traceId": WAKE, "spanId": woke["spanId"]}
    assert child["links"] == root["links"] == [link]
    assert child["traceId"] == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert child["parentSpanId"] == "00f067aa0ba902b7"
    assert not root["parentSpanId"]
    assert len({woke["traceId"], child["traceId"], root["traceId"]}) == 3
    took = int(root["endTimeUnixNano"]) - int(root["startTimeUnixNano"])
    assert took == pytest.approx(2.5e9, rel=1e-3)
    assert (woke["startTimeUnixNano"], woke["endTimeUnixNano"]) == (
        "1000000000000",
        "1002000000000",
    )
    assert plain(child["attributes"]) == {"elasti.service": "shop/web", "elasti.outcome": "served"}
    assert plain(woke["attributes"])["elasti.cause"] == "Request"
    assert tracer.counts == {"sent": 3, "dropped": 0}


async def test_two_services_of_one_wake_up_have_spans_of_their_own():
    async with receiver() as collector, running(Tracer(collector.settings, "test")) as tracer:
        for name in ("shop/web", "shop/db"):
            tracer.wake(name, WAKE, (1000.0, 1002.0), failed=False)
        found = await collector.has(2)
        assert {span["traceId"] for span in found} == {WAKE}
        assert len({span["spanId"] for span in found}) == 2


@pytest.mark.parametrize(
    ("parent", "count"),
    [
        (PARENT[:-1] + b"0", 0),  # not sampled
        (PARENT, 1),
        (b"ff-nonsense", 1),
        (PARENT.upper(), 1),
    ],
)
async def test_a_client_that_is_not_sampled_gets_no_span(parent: bytes, count: int):
    async with receiver() as collector:
        async with running(Tracer(collector.settings, "test")) as tracer:
            hold(tracer, parent)
    assert len(collector.spans) == count
    if parent != PARENT:
        assert all(not span["parentSpanId"] for span in collector.spans)


@pytest.mark.parametrize(
    ("outcome", "code"), [("served", 0), ("client_gone", 0), ("timeout", 2), ("failed", 2)]
)
async def test_what_was_not_served_is_an_error(outcome: str, code: int):
    async with receiver() as collector:
        async with running(Tracer(collector.settings, "test")) as tracer:
            hold(tracer, outcome=outcome)
    assert collector.spans[0]["status"]["code"] == code


async def test_an_id_of_a_program_without_tracing_begins_a_trace_of_its_own():
    async with receiver() as collector:
        async with running(Tracer(collector.settings, "test")) as tracer:
            hold(tracer, wake_id="1a2b3c4d")
            tracer.wake("shop/web", "1a2b3c4d", (1.0, 2.0), failed=True)
    assert not collector.spans[0]["links"]
    assert len(collector.spans[1]["traceId"]) == 32
    assert collector.spans[1]["status"] == {"code": 2}


async def test_what_is_queued_at_the_end_is_sent():
    async with receiver() as collector:
        async with running(Tracer(collector.settings, "test")) as tracer:
            for _ in range(600):
                hold(tracer)
        assert len(collector.spans) == 600
        assert len(collector.headers) == 3, "in batches"
    assert collector.headers[0]["Content-Type"] == "application/json"
    assert collector.resources[0] == {"service.name": "test"}


async def test_a_batch_that_the_end_interrupts_is_sent_again():
    async with receiver() as collector:
        task = asyncio.create_task((tracer := Tracer(collector.settings, "test")).run())
        hold(tracer)
        await collector.has(1)  # its answer is on the way
        await finish([task])
        assert {span["spanId"] for span in collector.spans} == {collector.spans[0]["spanId"]}
    assert tracer.counts == {"sent": 1, "dropped": 0}


async def test_refused_spans_are_dropped_and_counted():
    async with receiver() as collector:
        collector.status = 503
        async with running(Tracer(collector.settings, "test")) as tracer:
            for dropped in (1, 2):
                hold(tracer)
                counted = {"sent": 0, "dropped": dropped}
                await eventually(functools.partial(counted.__eq__, tracer.counts), timeout=5)
            collector.status = 200
            hold(tracer)
            await collector.has(1)
    assert tracer.counts == {"sent": 1, "dropped": 2}


async def test_without_a_collector_the_queue_is_bounded_and_nothing_waits():
    tracer = Tracer(AuthnSettings(otlp_endpoint="http://127.0.0.1:9"), "test")
    for _ in range(tracing._MOST + 10):
        hold(tracer)
    assert len(tracer._spans) == tracing._MOST
    assert tracer.counts["dropped"] == 10
    async with running(tracer):
        await asyncio.sleep(0)
    assert tracer.counts == {"sent": 0, "dropped": tracing._MOST + 10}


async def test_a_collector_that_hangs_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tracing, "_LAST_CHANCE", 0.2)
    asked = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        while await reader.read(1024):
            pass
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    tracer = Tracer(AuthnSettings(otlp_endpoint=f"http://127.0.0.1:{port}"), "test")
    async with running(tracer):
        hold(tracer)
        await asked.wait()
        hold(tracer)
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began < 2
    server.close()
    await server.wait_closed()
    assert tracer.counts == {"sent": 0, "dropped": 0}


@pytest.mark.parametrize("program", ["elasti.operator.app", "elasti.resolver.app"])
def test_without_an_endpoint_it_is_not_loaded(program: str):
    code = f"import sys, {program}; print('elasti.tracing' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
