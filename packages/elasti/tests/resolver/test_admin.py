"""The admin port: what it shows, and to whom."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
import pytest

from elasti.api.wire import RESOLVER_AUDIENCE, ActivityReport, LastStart
from elasti.authn.authenticator import CallerAuthenticator
from elasti.authn.tokens import TokenDecision, VerifierUnavailable
from elasti.resolver.admin import CONNECTIONS, AdminServer
from elasti.resolver.metrics import Readiness
from elasti.resolver.projections import ServiceKey
from elasti.resolver.workers import AggregateView, WorkerUnreachable, add_metrics, add_reports
from kubeloop.aio.clock import SystemClock


class View:
    def __init__(self, *, held=2, why=""):
        self.held, self.why = held, why

    async def activity(self, key, hold=None):
        self.hold = hold
        if key != ServiceKey("shop", "web"):
            return None
        return ActivityReport(held=self.held, open=3, last_arrival_age=1.5)

    async def readiness(self):
        return Readiness(not self.why, self.why or "ok\ndoubted: slices: no byte in 130 s")

    async def metrics(self):
        return b"# HELP a b\n# TYPE a counter\na_total 1.0\n"


class Verifier:
    def __init__(self):
        self.users = {"good": "system:serviceaccount:elasti:operator", "other": "bob"}
        self.down = False

    async def verify(self, token):
        if self.down:
            raise VerifierUnavailable("away")
        return TokenDecision(self.users.get(token, ""), "unknown")

    async def ready(self):
        return "in a test"


@contextlib.asynccontextmanager
async def serving(view, callers=None, path=""):
    server = AdminServer(view, callers=callers)
    await server.start(host="127.0.0.1", port=0, path=path)
    try:
        yield server
    finally:
        await server.aclose()


@contextlib.asynccontextmanager
async def asking(view, callers=None):
    async with asking_at(view, callers) as (_, ask):
        yield ask


@contextlib.asynccontextmanager
async def asking_at(view, callers=None):
    async with serving(view, callers) as server, aiohttp.ClientSession() as session:

        async def ask(route, **headers):
            async with session.get(
                f"http://127.0.0.1:{server.port}{route}", headers=headers
            ) as answer:
                return answer.status, await answer.read()

        yield server.port, ask


WEB = "?namespace=shop&service=web"


async def test_what_is_open_to_every_client():
    view = View()
    async with asking(view) as ask:
        assert await ask("/healthz") == (200, b"ok")
        assert await ask("/readyz") == (200, b"ok\ndoubted: slices: no byte in 130 s")
        assert await ask("/metrics") == (200, await view.metrics())
        assert await ask(f"/queue-status{WEB}") == (200, b'{"queueStatus":1}')
        view.held = 0
        assert await ask(f"/queue-status{WEB}") == (200, b'{"queueStatus":0}')
        assert await ask("/queue-status?namespace=a&service=b") == (200, b'{"queueStatus":0}')
        assert (await ask("/queue-status"))[0] == 400
        view.why = "shutting down"
        assert await ask("/readyz") == (503, b"shutting down")
        assert await ask("/healthz") == (200, b"ok")


async def test_nothing_can_be_changed():
    async with serving(View()) as server, aiohttp.ClientSession() as session:
        for route in ("/activity", "/queue-status", "/metrics", "/readyz"):
            async with session.post(f"http://127.0.0.1:{server.port}{route}{WEB}") as answer:
                assert answer.status == 405


async def test_activity_needs_the_operators_token():
    verifier = Verifier()
    callers = CallerAuthenticator(
        verifier,
        audience=RESOLVER_AUDIENCE,
        allowed=("system:serviceaccount:elasti:*",),
        clock=SystemClock(),
    )
    async with asking(View(), callers) as ask:
        assert (await ask(f"/activity{WEB}"))[0] == 401
        assert (await ask(f"/activity{WEB}", Authorization="Bearer bad"))[0] == 401
        assert (await ask(f"/activity{WEB}", Authorization="Basic good"))[0] == 401
        assert (await ask(f"/activity{WEB}", Authorization="Bearer other"))[0] == 403
        status, body = await ask(f"/activity{WEB}", Authorization="Bearer good")
        assert (status, body) == (200, b'{"held":2,"open":3,"lastArrivalAge":1.5}')
        status, _ = await ask("/activity?namespace=a&service=b", Authorization="Bearer good")
        assert status == 404
        verifier.down = True
        assert (await ask(f"/activity{WEB}", Authorization="Bearer new"))[0] == 503


async def test_authentication_can_be_switched_off():
    async with asking(View()) as ask:
        assert (await ask(f"/activity{WEB}"))[0] == 200


async def test_several_workers_are_shown_as_one(tmp_path):
    paths = [str(tmp_path / "0.sock"), str(tmp_path / "1.sock")]
    summed = AggregateView(paths, patience=30.0)
    async with serving(View(held=1), path=paths[0]):
        with pytest.raises(WorkerUnreachable):
            await summed.activity(ServiceKey("shop", "web"))
        assert "worker 1" in (await summed.readiness()).text
        async with asking(summed) as ask:
            assert (await ask(f"/activity{WEB}"))[0] == 503
        other = View(held=5)
        async with serving(other, path=paths[1]):
            report = await summed.activity(ServiceKey("shop", "web"))
            assert report == ActivityReport(held=6, open=6, last_arrival_age=1.5)
            assert await summed.activity(ServiceKey("a", "b")) is None
            assert other.hold is None
            await summed.activity(ServiceKey("shop", "web"), hold=True)
            assert other.hold is True
            assert await summed.readiness() == (True, "ok\ndoubted: slices: no byte in 130 s")
            assert b"a_total 2.0" in await summed.metrics()
            other.why = "shutting down"
            assert await summed.readiness() == (False, "worker 1: shutting down")


async def test_silent_connections_make_room_for_others():
    async with asking_at(View()) as (port, ask):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * CONNECTIONS)]
        try:
            for _ in range(3):
                assert (await ask("/healthz"))[0] == 200
            ended = [asyncio.ensure_future(reader.read()) for reader, _ in silent]
            await asyncio.wait(ended, timeout=0.2)
            assert sum(not end.done() for end in ended) <= CONNECTIONS
        finally:
            for _, writer in silent:
                writer.close()
            await asyncio.gather(*ended, return_exceptions=True)


async def test_callers_whose_tokens_are_being_checked_keep_no_probe_out():
    class Hanging(Verifier):
        async def verify(self, token):
            if token != "good":
                await asyncio.get_running_loop().create_future()
            return await super().verify(token)

    callers = CallerAuthenticator(
        Hanging(), audience=RESOLVER_AUDIENCE, allowed=("*",), clock=SystemClock()
    )
    async with asking_at(View(), callers) as (port, ask), contextlib.AsyncExitStack() as stack:
        for number in range(2 * CONNECTIONS):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            token = f"Authorization: Bearer bad{number}\r\n\r\n"
            writer.write(f"GET /activity{WEB} HTTP/1.1\r\nHost: x\r\n{token}".encode())
            await asyncio.sleep(0.001)
        for _ in range(3):
            assert (await ask("/healthz"))[0] == 200
            assert (await ask(f"/activity{WEB}", Authorization="Bearer good"))[0] == 200


def test_the_youngest_arrival_counts():
    reports = [ActivityReport(1, 2, None), ActivityReport(3, 4, 9.0), ActivityReport(0, 0, 2.0)]
    assert add_reports(reports) == ActivityReport(4, 6, 2.0)
    assert add_reports([ActivityReport(0, 0)]).last_arrival_age is None


def test_the_youngest_start_counts():
    old, new = LastStart(3.0, 600.0), LastStart(0.7, 1.5)
    reports = [ActivityReport(0, 0, last_start=start) for start in (old, new, None)]
    assert add_reports(reports).last_start == new
    assert add_reports(reports[2:]).last_start is None


def test_metrics_are_added_series_by_series_and_what_belongs_together_stays_together():
    one = (
        '# HELP a x\n# TYPE a counter\na{b="c d"} 1\na{b="e"} 2\n'
        "# HELP elasti_resolver_services y\nelasti_resolver_services 5\n"
    )
    two = (
        '# HELP a x\n# TYPE a counter\na{b="c d"} 10\na{b="f"} 0.5\n'
        "# HELP elasti_resolver_services y\nelasti_resolver_services 5\n"
    )
    assert add_metrics([one, two]) == (
        '# HELP a x\n# TYPE a counter\na{b="c d"} 11.0\na{b="e"} 2.0\na{b="f"} 0.5\n'
        "# HELP elasti_resolver_services y\nelasti_resolver_services 5.0\n"
    )
