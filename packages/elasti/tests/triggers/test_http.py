"""Triggers that ask pods whether they are busy: what says so, and what keeps a target awake instead."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from aiohttp import web

from elasti.api.triggers.cluster import HttpMetadata
from elasti.api.triggers.registry import read_metadata
from elasti.triggers.http import HttpReader, number_at
from elasti.triggers.reader import ReadContext, ScrapeTarget, TriggerReading
from elasti.triggers.responses import PodQueries, UnusableResponse, guarded_client
from tests.web_server import web_server


def metadata(**fields: Any) -> HttpMetadata:
    found = read_metadata("http", {"path": "/busy", **fields})
    assert isinstance(found, HttpMetadata)
    return found


class FakePod:
    """A pod that answers `/busy` as the test says, and counts what is asked of `/elsewhere`."""

    def __init__(self) -> None:
        self.body: bytes | str = "{}"
        self.status = 200
        self.headers: dict[str, str] = {}
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.elsewhere = 0
        self.port = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[FakePod]:
        async def busy(_request: web.Request) -> web.Response:
            await self.may_answer.wait()
            body = self.body.encode() if isinstance(self.body, str) else self.body
            return web.Response(body=body, status=self.status, headers=self.headers)

        async def elsewhere(_request: web.Request) -> web.Response:
            self.elsewhere += 1
            return web.Response(text="0")

        routes = web.get("/busy", busy), web.get("/elsewhere", elsewhere)
        async with web_server(*routes) as url:
            self.port = int(url.rpartition(":")[2])
            yield self

    @property
    def endpoint(self) -> ScrapeTarget:
        return ScrapeTarget(f"pod-{self.port}", "127.0.0.1", (("http", self.port),))


async def read(
    asked: HttpMetadata, *pods: FakePod, asleep: bool = False, **limits: float
) -> TriggerReading:
    return await read_from(asked, [pod.endpoint for pod in pods], asleep=asleep, **limits)


async def read_from(
    asked: HttpMetadata, pods: Sequence[ScrapeTarget], *, asleep: bool = False, **limits: float
) -> TriggerReading:
    reader = HttpReader(PodQueries(guarded_client(None), **limits))  # type: ignore[arg-type]  # at_once is not among them
    try:
        context = ReadContext(key="k", cooldown=60.0, pods=lambda: pods, asleep=asleep)
        return await reader.read(asked, context)
    finally:
        await reader.close()


# What says that a pod is busy


@pytest.mark.parametrize(("status", "value"), [(423, 1.0), (200, 0.0), (204, 0.0)])
async def test_a_status_says_that_a_pod_is_busy(status: int, value: float):
    async with FakePod().running() as pod:
        pod.status = status
        assert (await read(metadata(busyStatus=423), pod)).value == value


@pytest.mark.parametrize(
    ("body", "pointer", "value"),
    [
        ('{"jobs": {"running": 3}}', "/jobs/running", 3.0),
        ('{"busy": true}', "/busy", 1.0),
        ('{"busy": false}', "/busy", 0.0),
        ('{"sessions": []}', "/sessions", 0.0),
        ('[{"kernel": 1}, {"kernel": 2}]', "", 2.0),
        ('[{"kernel": 7}]', "/0/kernel", 7.0),
        ('{"a/b": {"~": 2.5}}', "/a~1b/~0", 2.5),
        ('{"": 4}', "/", 4.0),
        ("17", "", 17.0),
    ],
)
async def test_a_pointer_names_the_number(body: str, pointer: str, value: float):
    async with FakePod().running() as pod:
        pod.body = body
        assert (await read(metadata(pointer=pointer), pod)).value == value


@pytest.mark.parametrize(
    ("body", "value"), [('{"status": "alive"}', 1.0), ('{"status":"expired"}', 0.0), ("", 0.0)]
)
async def test_an_expression_is_looked_for_in_the_body(body: str, value: float):
    async with FakePod().running() as pod:
        pod.body = body
        assert (await read(metadata(expression=r'"status":\s*"alive"'), pod)).value == value


async def test_pods_are_summed():
    async with FakePod().running() as one, FakePod().running() as two:
        one.body, two.body = '{"n": 1}', '{"n": 2}'
        assert (await read(metadata(pointer="/n"), one, two)).value == 3.0


async def test_without_pods_only_a_sleeping_target_is_idle():
    assert (await read(metadata(busyStatus=503), asleep=True)).value == 0.0
    assert (await read(metadata(busyStatus=503))).pending


# What keeps the target awake


@pytest.mark.parametrize(
    ("fields", "answer", "words"),
    [
        ({"pointer": "/n"}, {"body": "<html>hello</html>"}, "JSON"),
        ({"pointer": "/n"}, {"body": "[" * 60_000}, "JSON"),
        ({"pointer": "/n"}, {"body": b"\xff\xfe"}, "JSON"),
        ({"pointer": "/n"}, {"body": '{"m": 1}'}, " /n"),
        ({"pointer": "/0/m"}, {"body": '{"m": 1}'}, " /0/m"),
        ({"pointer": "/n"}, {"body": '{"n": "secret"}'}, "text"),
        ({"pointer": "/n"}, {"body": '{"n": null}'}, "null"),
        ({"pointer": "/n"}, {"body": "x" * 10_000_000}, "0.0625 MiB"),
        ({"expression": "x"}, {"body": "y" * 10_000_000}, "0.0625 MiB"),
        ({"pointer": "/n"}, {"status": 404}, " 404"),
        ({"busyStatus": 423}, {"status": 500}, " 500"),
        (
            {"pointer": ""},
            {"status": 302, "headers": {"Location": "/elsewhere"}},
            " 302",
        ),
        (
            {"pointer": "/n"},
            {"body": gzip.compress(b'{"n": 0}'), "headers": {"Content-Encoding": "gzip"}},
            "'gzip'",
        ),
    ],
)
async def test_what_cannot_be_used_is_an_error(
    fields: dict[str, Any], answer: dict[str, Any], words: str
):
    async with FakePod().running() as pod, FakePod().running() as idle:
        idle.body = '{"n": 0}'
        for name, value in answer.items():
            setattr(pod, name, value)
        reading = await read(metadata(**fields), pod, idle)
        assert words in reading.error
        assert not reading.usable
        assert "secret" not in reading.error, "a pod's words are not for status"
        assert pod.elsewhere == 0


async def test_a_redirect_to_another_host_is_not_followed():
    async with FakePod().running() as pod, FakePod().running() as other:
        pod.status, pod.headers = (
            307,
            {"Location": f"http://127.0.0.1:{other.port}/elsewhere"},
        )
        assert " 307" in (await read(metadata(pointer=""), pod)).error
        assert other.elsewhere == 0


async def test_slow_pods_have_a_time():
    async with FakePod().running() as pod:
        pod.may_answer.clear()
        one = await read(metadata(pointer=""), pod, timeout=0.1)
        assert not one.usable
        assert f"port {pod.port}" in one.error
        several = await read(metadata(pointer=""), *[pod] * 9, together=0.1)
        assert not several.usable
        assert "9 pods" in several.error
        assert "0.1 s" in several.error
        pod.may_answer.set()


async def test_an_unreachable_pod_or_port_is_an_error():
    nowhere = ScrapeTarget("p", "127.0.0.1", (("http", 1),))
    unreachable = await read_from(metadata(pointer=""), [nowhere])
    assert not unreachable.usable
    assert "127.0.0.1" in unreachable.error
    assert "port 1: Connection refused" in unreachable.error
    unnamed = metadata(pointer="", port="admin")
    assert "'admin'" in (await read_from(unnamed, [nowhere])).error


# What is refused in a spec


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "exactly one of busyStatus, pointer or expression"),
        ({"pointer": "", "busyStatus": 423}, "exactly one of"),
        ({"pointer": "jobs"}, "pointer"),
        ({"busyStatus": 42}, "busyStatus 42 is not an HTTP status"),
        ({"expression": "("}, "not a regular expression"),
        ({"expression": "(a|b){400}"}, "too large"),
        ({"busyStatus": 423, "path": "busy"}, "path"),
        ({"busyStatus": 423, "port": 70000}, "port 70000"),
        ({"busyStatus": 423, "threshold": "x"}, "threshold 'x'"),
        ({"busystatus": 423}, "did you mean 'busyStatus'?"),
        ({"expresion": "x"}, "did you mean 'expression'?"),
    ],
)
def test_each_mistake_is_named(fields: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words.replace("?", r"\?").replace("(", r"\(")):
        metadata(**fields)


def test_a_list_has_no_member_by_name():
    with pytest.raises(UnusableResponse):
        number_at([1, 2], "/length")
    with pytest.raises(UnusableResponse):
        number_at([1, 2], "/-1")
