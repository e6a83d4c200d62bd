"""Triggers that ask Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

import pytest
from aiohttp import web

from elasti.api.triggers.prometheus import PrometheusMetadata, SecretRef, ServerAddress
from elasti.api.triggers.registry import read_metadata, redacted_metadata
from elasti.triggers.prometheus import PrometheusReader, QueryFailed, uptime_query, value_of
from elasti.triggers.reader import ReadContext
from kubeloop.http.client import HttpClient
from tests.web_server import web_server

Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


class FixedClock:
    def now(self) -> dt.datetime:
        return dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


def vector(*values: str) -> dict[str, object]:
    result = [{"metric": {}, "value": [0, value]} for value in values]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


@contextlib.asynccontextmanager
async def prometheus(answer: Callable[[web.Request], object]) -> AsyncIterator[str]:
    async def handle(request: web.Request) -> web.Response:
        found = answer(request)
        return found if isinstance(found, web.Response) else web.json_response(found)

    async with prometheus_by(handle) as address:
        yield address


@contextlib.asynccontextmanager
async def prometheus_by(
    handle: Callable[[web.Request], Awaitable[web.Response]],
) -> AsyncIterator[str]:
    async with web_server(web.get("/api/v1/query", handle)) as address:
        yield address


@contextlib.asynccontextmanager
async def round_of(**options: object) -> AsyncIterator[PrometheusReader]:
    async with HttpClient() as http:
        queries = PrometheusReader(http, clock=FixedClock(), **options)  # type: ignore[arg-type]
        try:
            yield queries
        finally:
            await queries.close()


def within(cooldown: float, namespace: str = "") -> ReadContext:
    return ReadContext(key="k", cooldown=cooldown, namespace=namespace)


def metadata(address: str, query: str = "q", **more: object) -> PrometheusMetadata:
    return PrometheusMetadata(query=query, threshold=1.0, server_address=address, **more)  # type: ignore[arg-type]


def healthy(value: str) -> Callable[[web.Request], object]:
    return lambda request: vector(
        "1" if request.query["query"].startswith("min_over_time") else value
    )


def test_the_uptime_query_is_kubeelastis():
    assert uptime_query('container="prometheus"', 900) == (
        'min_over_time((max(up{container="prometheus"}) or vector(0))[900s:])'
    )


async def test_one_number_is_read():
    async with prometheus(healthy("0.25")) as address, round_of() as queries:
        reading = await queries.read(metadata(address), within(900))
        assert (reading.value, reading.error) == (0.25, "")


async def test_a_redirect_is_not_followed():
    """The headers are for the address that was given, and so is the reach of its author."""
    asked: list[str] = []

    def elsewhere(request: web.Request) -> web.Response:
        asked.append(request.headers.get("Metadata-Flavor", ""))
        return web.json_response(vector("1"))

    async with prometheus(elsewhere) as internal:

        def redirect(_: web.Request) -> web.Response:
            return web.Response(status=302, headers={"Location": f"{internal}/api/v1/query"})

        async with prometheus(redirect) as address, round_of() as queries:
            given = metadata(address, headers={"Metadata-Flavor": "Google"})
            reading = await queries.read(given, within(900))
            assert "answered 302" in reading.error
    assert asked == []


async def test_identical_queries_are_sent_once():
    async with prometheus(healthy("1")) as address, round_of() as queries:
        same = [queries.read(metadata(address), within(900)) for _ in range(20)]
        readings = await asyncio.gather(
            *same, queries.read(metadata(address, "other"), within(900))
        )
        assert all(reading.usable for reading in readings)
        assert queries.sent == 3  # the uptime, the query, the other one


async def test_other_headers_make_another_query():
    async with prometheus(healthy("1")) as address, round_of() as queries:
        await queries.read(metadata(address, headers={"X-Scope-OrgID": "a"}), within(900))
        await queries.read(metadata(address, headers={"X-Scope-OrgID": "b"}), within(900))
        assert queries.sent == 4


async def test_the_triggers_headers_win_over_the_operators():
    seen: list[str] = []

    def answer(request: web.Request) -> object:
        seen.append(request.headers.get("Authorization", ""))
        return vector("1")

    async with (
        prometheus(answer) as address,
        round_of(authorization="Bearer all", default_address=address) as queries,
    ):
        await queries.read(metadata(address), within(900))
        await queries.read(metadata(address, headers={"Authorization": "Bearer own"}), within(900))
    assert set(seen) == {"Bearer all", "Bearer own"}


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("in_address", [True, False])
async def test_no_header_of_the_author_goes_with_the_operators_credential(
    named: bool, in_address: bool
):
    seen: list[str] = []

    def answer(request: web.Request) -> object:
        seen.append(request.headers.get("Authorization", ""))
        return vector("1")

    async with prometheus(answer) as address:
        default = address.replace("//", "//operator:hush@") if in_address else address
        lent = "" if in_address else "Bearer hush"
        where = address if named else ""
        headers = {"X-Scope-OrgID": "other-tenant"}
        async with round_of(authorization=lent, default_address=default) as queries:
            reading = await queries.read(metadata(where, headers=headers), within(900))
            if not (named and in_address):
                assert not reading.usable
                assert "metadata.headers X-Scope-OrgID" in reading.error
                assert "authenticationRef" in reading.error
            own = {**headers, "Authorization": "Bearer own"}
            assert (await queries.read(metadata(where, headers=own), within(900))).usable
    assert set(seen) == ({"", "Bearer own"} if named and in_address else {"Bearer own"})


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"X-A": "hush\r\nX-B: 1"}, "X-A"),
        ({"X A": "hush"}, "'X A'"),
        ({"": "hush"}, "''"),
        ({"Host": "hush"}, "Host"),
        ({"transfer-encoding": "hush"}, "transfer-encoding"),
    ],
)
def test_headers_that_cannot_be_sent_are_refused(headers: dict[str, str], words: str):
    with pytest.raises(ValueError, match=words) as refused:
        read_metadata("prometheus", {"query": "q", "threshold": 1, "headers": headers})
    assert "hush" not in str(refused.value)


async def test_the_operators_address_is_the_default():
    async with prometheus(healthy("1")) as address, round_of(default_address=address) as queries:
        assert (await queries.read(metadata(""), within(900))).usable


async def test_without_an_address_the_error_names_the_field():
    async with round_of() as queries:
        assert "serverAddress" in (await queries.read(metadata(""), within(900))).error


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (vector(), "or vector(0)"),
        (vector("1", "2"), "2 series"),
        (vector("+Inf"), "infinite"),
        (vector("abc"), "number"),
        ({"status": "error", "errorType": "bad_data", "error": "token=hush"}, "(bad_data)"),
        ({"status": "hush", "errorType": "hush", "error": "hush"}, "Prometheus "),
        ({"status": {"hush": 1}}, "answer"),
        ([], "answer"),
        ({"status": "success", "data": {"resultType": "vector"}}, "result"),
    ],
)
async def test_any_result_but_a_single_number_is_an_error(answer: object, words: str):
    async with prometheus(lambda _request: answer) as address, round_of() as queries:
        reading = await queries.read(metadata(address), within(900))
        assert words in reading.error
        assert not reading.usable
        assert "hush" not in reading.error, "a server's own words are not for an author"


async def test_nan_cannot_be_used():
    async with prometheus(healthy("NaN")) as address, round_of() as queries:
        reading = await queries.read(metadata(address), within(900))
        assert math.isnan(reading.value)
        assert not reading.usable


async def test_a_prometheus_that_was_down_proves_nothing():
    async with prometheus(lambda _request: vector("0")) as address, round_of() as queries:
        error = (await queries.read(metadata(address), within(900))).error
    assert uptime_query('container="prometheus"', 900) in error
    assert "metadata.uptimeFilter" in error


async def test_the_uptime_check_can_be_turned_off():
    async with prometheus(lambda _request: vector("0")) as address, round_of() as queries:
        reading = await queries.read(metadata(address, uptime_filter=""), within(900))
        assert (reading.value, queries.sent) == (0.0, 1)


async def test_refusals_and_silence_are_errors_without_secrets():
    secret = {"Authorization": "Bearer hush"}

    def refuse(_request: web.Request) -> web.Response:
        return web.Response(status=403)

    async with prometheus(refuse) as address, round_of() as queries:
        error = (await queries.read(metadata(address, headers=secret), within(900))).error
        assert "403" in error
        assert "hush" not in error
    async with round_of() as queries:
        error = (
            await queries.read(metadata("http://127.0.0.1:1", headers=secret), within(900))
        ).error
        assert "http://127.0.0.1:1" in error
        assert "Connection refused" in error
        assert "hush" not in error


@contextlib.asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[str]:
    tasks: list[asyncio.Task[None]] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.ensure_future(serve(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_an_answer_in_pieces_is_read_whole():
    body = json.dumps(vector("1")).encode()

    async def in_pieces(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n" % len(body))
        for piece in (b"\r\n", body[:20], body[20:]):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)  # a piece of its own on the wire
        writer.close()
        await writer.wait_closed()

    async with listening(in_pieces) as address, round_of() as queries:
        reading = await queries.read(metadata(address), within(900))
        assert (reading.value, reading.error) == (1.0, "")


@pytest.mark.virtual_time
async def test_a_silent_prometheus_is_given_up_for_the_rest_of_the_round():
    asked, gone = 0, asyncio.Event()

    async def silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await gone.wait()
        writer.close()
        await writer.wait_closed()

    async with listening(silent) as address, prometheus(healthy("0")) as other:
        async with round_of(timeout=1.0) as queries:
            for number in range(20):
                reading = await queries.read(metadata(address, f"q{number}"), within(900))
                assert not reading.usable
                assert address in reading.error
            assert asked <= 6
            assert (await queries.read(metadata(other), within(900))).value == 0.0
        gone.set()


@pytest.mark.virtual_time
async def test_one_query_that_is_too_slow_does_not_silence_the_others():
    hanging = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        if request.query["query"].startswith("slow"):
            await hanging.wait()
        return web.json_response(vector("1"))

    async with prometheus_by(answer) as address, round_of(timeout=1.0) as queries:
        for number in range(4):
            assert (await queries.read(metadata(address, f"q{number}"), within(900))).value == 1.0
            slow = await queries.read(metadata(address, f"slow{number}"), within(900))
            assert "in time" in slow.error
        hanging.set()


@pytest.mark.virtual_time
@pytest.mark.parametrize("bad", ["slow", "long"])
async def test_one_namespaces_failures_do_not_silence_a_server_for_others(bad: str):
    hanging = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        if "X-Noisy" in request.headers:
            if bad == "slow":
                await hanging.wait()
            return web.Response(body=b" " * (2 << 20))
        return web.json_response(vector("1"))

    async with prometheus_by(answer) as address, round_of(timeout=1.0) as queries:
        for number in range(8):
            noisy = metadata(address, f"q{number}", headers={"X-Noisy": "1"})
            assert (await queries.read(noisy, within(900 + number, "noisy"))).error
        assert queries.sent <= 6
        assert (await queries.read(metadata(address, "fine"), within(900, "other"))).value == 1.0
        hanging.set()


@pytest.mark.virtual_time
async def test_a_server_that_answers_no_namespace_is_given_up_for_all():
    asked, gone = 0, asyncio.Event()

    async def silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await gone.wait()
        writer.close()
        await writer.wait_closed()

    async with listening(silent) as address:
        async with round_of(timeout=1.0) as queries:
            for number in range(20):
                reading = await queries.read(metadata(address), within(900 + number, f"n{number}"))
                assert not reading.usable
                assert address in reading.error
            assert asked <= 6
        gone.set()


@pytest.mark.virtual_time
async def test_a_slow_prometheus_is_not_waited_for():
    gone = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await gone.wait()
        writer.close()
        await writer.wait_closed()

    async with listening(silent) as address, round_of(timeout=1.0) as queries:
        assert "in time" in (await queries.read(metadata(address), within(900))).error
        gone.set()


def test_a_scalar_is_a_number_too():
    body = b'{"status":"success","data":{"resultType":"scalar","result":[0,"3"]}}'
    assert value_of(body) == 3.0


@pytest.mark.parametrize(
    "body",
    [
        b'{"status":',
        b'{"status":"\xff"}',
        b'{"status":"success","data":{"result":' + b"[" * 100_000,
        b'{"status":"success","data":{"resultType":"vector","result":[{"value":[0,1'
        + b"0" * 400
        + b"]}]}}",
    ],
    ids=["half", "not utf-8", "deep", "huge"],
)
def test_an_answer_that_cannot_be_read_is_an_error(body: bytes):
    with pytest.raises(QueryFailed):
        value_of(body)


async def asked_with(address: str, default: str, **options: object) -> str:
    """Return the authorization that a trigger's query comes with."""
    seen = []

    def answer(request: web.Request) -> object:
        seen.append(request.headers.get("Authorization", ""))
        return vector("1")

    async with prometheus(answer) as url:
        host = url.removeprefix("http://")
        options = {"authorization": "Bearer default", **options}
        if default:
            options["default_address"] = default.replace("HOST", host)
        headers = options.pop("headers", {})
        async with round_of(**options) as queries:
            where = metadata(address.replace("HOST", host), headers=headers)
            assert (await queries.read(where, within(60.0))).error == ""
    assert len(set(seen)) == 1
    return seen[0]


@pytest.mark.parametrize(
    ("address", "default", "headers", "expected"),
    [
        ("http://HOST", "", {}, ""),
        ("http://HOST", "http://HOST/", {}, "Bearer default"),
        ("http://HOST", "http://HOST/prefix", {}, ""),
        ("http://HOST", "https://HOST", {}, ""),
        ("", "http://HOST", {}, "Bearer default"),
        ("http://HOST", "http://elsewhere:9090", {}, ""),
        ("http://HOST", "http://HOST", {"authorization": "Bearer own"}, "Bearer own"),
        ("http://me:p%40ss@HOST", "http://HOST", {}, "Basic bWU6cEBzcw=="),
        ("http://me:p@HOST", "", {"Authorization": "Bearer own"}, "Bearer own"),
    ],
)
async def test_the_operators_credential_goes_to_its_own_prometheus_only(
    address: str, default: str, headers: dict[str, str], expected: str
):
    assert await asked_with(address, default, headers=headers) == expected


@pytest.mark.parametrize(
    "address",
    [
        "http://me:hush@[",
        "http://me:hush@x:port",
        "me:hush@",
        "http://x/internal/hush?x=",
        "http://x/#hush",
        "http://x/prometheus/../hush",
        "http://x/prometheus/%2e%2E/hush",
        "http://x/prometheus/..;/hush",
        "http://x/prometheus/..;a=b/hush",
        "http://x/prometheus/%252e%252e/hush",
        "file:///hush",
    ],
)
def test_an_address_that_leads_elsewhere_is_refused(address: str):
    with pytest.raises(ValueError, match="serverAddress must be like") as refused:
        read_metadata("prometheus", {"query": "q", "threshold": 1, "serverAddress": address})
    assert "hush" not in str(refused.value)


async def test_an_address_is_shown_without_its_credentials():
    address = "http://me:hush@127.0.0.1:1"
    async with round_of(authorization="hush") as queries:
        reading = await queries.read(metadata(address, headers={"X": "hush"}), within(60.0))
    assert "http://127.0.0.1:1 " in reading.error
    assert "hush" not in reading.error
    shown = redacted_metadata("prometheus", {"serverAddress": "http://me:hush@x/?token=hush"})
    assert shown == {"serverAddress": "http://x/"}


async def test_bytes_that_are_not_http_are_not_quoted():
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"220 hush.internal ESMTP\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    async with listening(speak) as address, round_of() as queries:
        reading = await queries.read(metadata(address), within(60.0))
    assert not reading.usable
    assert address in reading.error
    assert "HTTP" in reading.error.replace(address, "")
    assert "hush" not in reading.error


async def test_only_listed_servers_are_asked():
    async with prometheus(healthy("1")) as address, prometheus(healthy("1")) as other:
        listed = [ServerAddress.parse(f"{other}/team")]
        async with round_of(servers=listed, default_address=address) as queries:
            assert (await queries.read(metadata(""), within(60.0))).usable
            assert (await queries.read(metadata(address), within(60.0))).usable
            for refused in (other, f"{other}/teams", "http://127.0.0.1:1"):
                reading = await queries.read(metadata(refused), within(60.0))
                assert not reading.usable
                assert "ELASTI_PROMETHEUS_SERVERS" in reading.error
        assert queries.sent == 2
        below = ServerAddress.parse(f"{other}/team/a")
        assert listed[0].covers(below)


class Vault:
    """One Secret, and how often it was read."""

    def __init__(self, **data: str) -> None:
        self.data = data
        self.read: list[tuple[str, str]] = []

    async def __call__(self, namespace: str, name: str) -> dict[str, str]:
        self.read.append((namespace, name))
        return self.data


REF = SecretRef(name="prometheus")


@pytest.mark.parametrize(
    ("data", "sent"),
    [
        ({"token": "t"}, "Bearer t"),
        ({"authorization": "Custom x"}, "Custom x"),
        ({"username": "me", "password": "p@ss"}, "Basic bWU6cEBzcw=="),
    ],
)
async def test_a_credential_is_read_from_a_secret_once_a_round(data: dict[str, str], sent: str):
    seen: set[str] = set()

    def answer(request: web.Request) -> object:
        seen.add(request.headers.get("Authorization", ""))
        return vector("1")

    async with prometheus(answer) as address:
        vault = Vault(serverAddress=address, **data)
        async with round_of(secret=vault, authorization="Bearer default") as queries:
            for where in ("", f"{address}/"):
                given = metadata(where, authentication_ref=REF, headers={"authorization": "own"})
                context = ReadContext(key="k", cooldown=60.0, namespace="shop")
                assert (await queries.read(given, context)).error == ""
    assert (seen, vault.read) == ({sent}, [("shop", "prometheus")])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"token": "hush"}, "key serverAddress"),
        ({"token": "hush", "serverAddress": "http://elsewhere:9090"}, "metadata.serverAddress "),
        ({"serverAddress": "HERE"}, "token, authorization"),
    ],
)
async def test_a_secret_is_sent_only_to_the_server_that_it_names(data: dict[str, str], words: str):
    async with prometheus(healthy("1")) as address:
        data = {key: text.replace("HERE", address) for key, text in data.items()}
        async with round_of(secret=Vault(**data)) as queries:
            reading = await queries.read(metadata(address, authentication_ref=REF), within(60.0))
            assert words in reading.error
            assert "hush" not in reading.error
            assert queries.sent == 0
