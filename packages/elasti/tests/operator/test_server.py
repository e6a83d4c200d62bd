"""The elasti server: truthful replies, and nobody in who may not."""

from __future__ import annotations

import asyncio
import contextlib
import functools

import aiohttp
import pytest
from tests.controllers.support import eventually
from tests.operator.rig import FakePrometheus, Rig

from devkube.apiserver.faults import InjectedFault
from elasti.operator.server import Server
from kubeloop.http.server import ConnectionLimits


async def _get(operator, path: str, **headers: str) -> tuple[int, str]:
    url = f"http://127.0.0.1:{operator.server.port}{path}"
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        return response.status, await response.text()


async def test_an_unknown_service_is_not_found(rig: Rig):
    async with rig.operator() as operator:
        code, reply = await rig.wake(operator, "nobody")
        assert (code, reply["outcome"]) == (404, "not-found")


async def test_a_target_that_cannot_be_scaled_is_unavailable(rig: Rig):
    await rig.service()
    await rig.elastiservice()
    async with rig.operator() as operator:
        await eventually(lambda: rig.condition("TargetFound"))
        code, reply = await rig.wake(operator, "web")
        assert (code, reply["outcome"]) == (503, "unavailable")
        assert "Deployment" in reply["message"]


async def test_a_refusing_server_is_not_a_success(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator() as operator:
        await rig.becomes("Proxy")
        path = f"/apis/apps/v1/namespaces/{rig.namespace}/deployments/web/scale"
        rig.cluster.faults.add(InjectedFault(code=500, path=path))
        code, _ = await rig.wake(operator, "web")
        assert code == 503
        assert await rig.replicas() == 0
        rig.cluster.faults.clear()
        code, _ = await rig.wake(operator, "web")
        assert code == 202


_REQUEST = b"POST /informer/incoming-request HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    "said",
    [b"", _REQUEST + b"X-Slow: ", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 1000],
    ids=["nothing", "half a head", "a thousand requests at once"],
)
async def test_those_who_connect_and_say_nothing_or_too_much_stop_no_wake_up(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, said: bytes
):
    few = functools.partial(Server, limits=ConnectionLimits(connections=20))
    monkeypatch.setattr("elasti.operator.app.Server", few)
    await rig.web(replicas=0)
    async with rig.operator() as operator, contextlib.AsyncExitStack() as stack:
        await rig.becomes("Proxy")
        for _ in range(30):
            _, writer = await asyncio.open_connection("127.0.0.1", operator.server.port)
            stack.callback(writer.close)
            writer.write(said)
        code, reply = await rig.wake(operator, "web")
        assert (code, reply["outcome"]) == (202, "scaling")


# What a decoder skips counts, too.
DEEP = b'{"else":' + b"[" * 2000 + b"]" * 2000 + b"}"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"svc":"","namespace":"x"}',
        b"\xff",
        b'{"svc":"\xff","namespace":"x"}',
        DEEP,
    ],
)
async def test_a_malformed_request_is_refused(rig: Rig, body: bytes):
    async with rig.operator() as operator:
        url = f"http://127.0.0.1:{operator.server.port}/informer/incoming-request"
        async with aiohttp.ClientSession() as session, session.post(url, data=body) as response:
            assert response.status == 400
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            assert response.status == 405


async def test_the_crd_cache_shows_no_secrets(rig: Rig, prometheus: FakePrometheus):
    trigger = prometheus.trigger()
    trigger["metadata"]["headers"] = {"Authorization": "Bearer hush", "X-Scope": "tenant"}
    await rig.web(replicas=0, triggers=[trigger])
    async with rig.operator() as operator:
        await rig.becomes("Proxy")
        code, text = await _get(operator, "/crd-cache")
        assert code == 200
        assert f'"{rig.namespace}/web"' in text
        assert "hush" not in text
        assert "tenant" not in text


async def test_health_and_metrics_are_served(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator() as operator:
        await rig.becomes("Proxy")
        await rig.wake(operator, "web")
        assert (await _get(operator, "/healthz"))[0] == 200
        assert (await _get(operator, "/readyz"))[0] == 200
        _, text = await _get(operator, "/metrics")
        name = f"{rig.namespace}/web"
        assert f'elasti_operator_mode{{crd_name="{name}"}}' in text
        assert 'elasti_operator_wake_requests_total{outcome="scaling"} 1\n' in text
        assert "elasti_operator_reconcile_bucket" in text
        await rig.elastiservices.delete("web")

        async def forgotten() -> bool:
            return f'mode{{crd_name="{name}"' not in (await _get(operator, "/metrics"))[1]

        await eventually(forgotten)


async def test_a_caller_without_a_token_wakes_nothing(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator(authenticate=True) as operator:
        await rig.becomes("Proxy")
        code, _ = await rig.wake(operator, "web")
        assert code == 401
        assert await rig.replicas() == 0
        assert (await _get(operator, "/crd-cache"))[0] == 401
        assert (await _get(operator, "/healthz"))[0] == 200
