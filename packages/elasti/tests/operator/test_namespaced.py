"""A namespaced installation: Roles in some namespaces, and no right in the cluster as a whole.

The operator goes through a relay that sees every request, so that what is forbidden is counted: it is
asked for once or twice and given up, never again and again.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from tests.controllers.support import deployment, eventually
from tests.operator.accounts import Account, confined_operator
from tests.operator.api_relay import ApiRelay
from tests.operator.fakes import ELASTISERVICES, RESOLVER_NAMESPACE
from tests.operator.rig import FakePrometheus, Rig, loopback
from tests.operator.servers import everywhere

from elasti.api.names import GROUP, PLURAL, WAKE_ANNOTATION
from elasti.api.wire import OPERATOR_AUDIENCE, ProbeIdentity, probe_request, read_probe_answer
from elasti.operator.app import OperatorApp
from elasti.operator.rbac import NAMESPACED_RULES
from elasti.resolver.app import Worker
from elasti.resolver.proxy.limits import Limits
from elasti.resolver.rbac import NAMESPACED_RULES as RESOLVER_RULES
from elasti.resolver.rbac import OPERATOR_NAMESPACE_RULES
from elasti.resolver.settings import ResolverSettings
from kubeloop.aio.tasks import finish
from kubeloop.client import Client, ClientConfig
from kubeloop.objects.patches import MergePatch

DEFINITION = f"{PLURAL}.{GROUP}"
NEEDS_A_CLUSTER_ROLE = {
    "POST /apis/authentication.k8s.io/v1/tokenreviews",
    "GET /apis/apiextensions.k8s.io/v1/customresourcedefinitions/" + DEFINITION,
}

pytestmark = [everywhere, pytest.mark.timeout(180)]


@contextlib.asynccontextmanager
async def seen(rig: Rig, account: Account, directory: Path) -> AsyncIterator[ApiRelay]:
    """Let the rig's operators go through a relay."""
    relay = ApiRelay.to(rig.cluster.kubeconfig, token=await account.token())
    async with relay.running():
        rig.config = ClientConfig.from_kubeconfig(relay.kubeconfig(directory / "relayed"))
        yield relay


async def another_namespace(rig: Rig) -> str:
    made = await rig.client.resource("v1/namespaces").create(
        {"metadata": {"generateName": "other-"}}
    )
    return str(made["metadata"]["name"])


async def web_in(rig: Rig, namespace: str) -> None:
    """A sleeping target, its Service and ElastiService in any namespace."""
    client = rig.client
    await client.resource("apps/v1/deployments", namespace=namespace).create(deployment("web", 0))
    ports = [{"name": "http", "port": 80, "targetPort": 8080}]
    await client.resource("v1/services", namespace=namespace).create(
        {"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": ports}}
    )
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    await client.resource(ELASTISERVICES, namespace=namespace).create(
        {
            "apiVersion": "elasti.truefoundry.com/v1alpha1",
            "kind": "ElastiService",
            "metadata": {"name": "web"},
            "spec": {"service": "web", "scaleTargetRef": target, "cooldownPeriod": 1},
        }
    )


async def state_in(rig: Rig, namespace: str) -> str:
    found = await rig.client.resource(ELASTISERVICES, namespace=namespace).get("web")
    return str((found.get("status") or {}).get("state", ""))


async def wake_in(operator: OperatorApp, namespace: str, headers: dict[str, str]) -> int:
    url = f"http://127.0.0.1:{operator.server.port}/informer/incoming-request"
    body = {"count": 1, "svc": "web", "namespace": namespace}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json=body, headers=headers) as response,
    ):
        return response.status


async def ready(operator: OperatorApp) -> bool:
    url = f"http://127.0.0.1:{operator.server.port}/readyz"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status == 200


def forbidden(relay: ApiRelay) -> Counter[str]:
    return Counter(str(call) for call in relay.calls if call.status == 403)


async def test_several_namespaces_with_roles_alone(
    rig: Rig, prometheus: FakePrometheus, tmp_path: Path
):
    other, foreign = await another_namespace(rig), await another_namespace(rig)
    account = await confined_operator(rig, tmp_path, rig.namespace, other)
    bearer = await (await Account(rig, "resolver").create()).bearer(OPERATOR_AUDIENCE)
    await rig.web(triggers=[prometheus.trigger()])
    await web_in(rig, other)
    await web_in(rig, foreign)
    async with (
        seen(rig, account, tmp_path) as relay,
        rig.operator(authenticate=True, leader_elect=True) as operator,
    ):
        await rig.becomes("Proxy")
        await eventually(lambda: _is(rig, other, "Proxy"))
        assert await ready(operator)
        prometheus.value = 9.0
        assert await wake_in(operator, rig.namespace, bearer) == 202
        assert await wake_in(operator, other, bearer) == 202
        assert await wake_in(operator, foreign, bearer) == 404
        await rig.becomes("Serve")
        await eventually(lambda: _is(rig, other, "Serve"))
        await rig.elastiservices.delete("web")

        async def gone() -> bool:
            return not [item async for item in rig.elastiservices.items()]

        await eventually(gone)
    assert await state_in(rig, foreign) == ""
    refused = forbidden(relay)
    assert set(refused) <= NEEDS_A_CLUSTER_ROLE, refused
    assert max(refused.values()) <= 2, refused
    everywhere_asked = {
        str(call)
        for call in relay.calls
        if "/namespaces/" not in call.path and call.path.count("/") > 3
    }
    assert everywhere_asked <= NEEDS_A_CLUSTER_ROLE


async def test_a_kind_that_one_namespace_may_not_have_is_reported_there_alone(
    rig: Rig, tmp_path: Path
):
    other = await another_namespace(rig)
    account = await confined_operator(rig, tmp_path, rig.namespace)
    without = [rule for rule in NAMESPACED_RULES if "deployments" not in rule.resources]
    await account.grant(without, namespace=other)
    await rig.web(replicas=0)
    await web_in(rig, other)
    async with seen(rig, account, tmp_path) as relay:
        async with rig.operator(watch_namespaces=(rig.namespace, other)) as operator:
            await rig.becomes("Proxy")

            async def told() -> str:
                found = await rig.client.resource(ELASTISERVICES, namespace=other).get("web")
                conditions = (found.get("status") or {}).get("conditions") or ()
                return next((c["message"] for c in conditions if c["type"] == "TargetFound"), "")

            assert "forbidden" in await eventually(told)
            assert f"Role in namespace {other}" in await told()
            assert await ready(operator)
            count = sum(forbidden(relay).values())
            assert count < 20, forbidden(relay)


async def test_a_namespace_without_any_right_is_named_and_not_hammered(rig: Rig, tmp_path: Path):
    other = await another_namespace(rig)
    account = await confined_operator(rig, tmp_path, rig.namespace)
    settings = dataclasses.replace(rig.settings, watch_namespaces=(rig.namespace, other))
    async with seen(rig, account, tmp_path) as relay, Client(rig.config) as client:
        operator = OperatorApp(settings, client=client, open_client=lambda: Client(rig.config))
        loop = asyncio.get_running_loop()
        began = loop.time()
        task = asyncio.create_task(operator.run())
        try:

            async def named() -> bool:
                missing = "; ".join(operator.caches.manager.missing())
                return (
                    f"v1/services in {other} (cannot list" in missing
                    and "forbidden" in missing
                    and rig.namespace not in missing
                )

            await eventually(named)
            assert not await ready(operator)
        finally:
            operator.stop()
            await finish([task], cancel=False)
        await task
        # Two watches share a path, and each asks twice, to stream and to list, before it rests.
        rounds = 2 + loop.time() - began
        assert max(forbidden(relay).values()) <= 4 * rounds, forbidden(relay)


async def test_a_resolver_with_roles_alone(rig: Rig, tmp_path: Path):
    other = await another_namespace(rig)
    account = await Account(rig, "confined-resolver").create()
    address, ports = loopback(), {rig.namespace: 20101, other: 20102}
    for namespace, port in ports.items():
        await account.grant(RESOLVER_RULES, namespace=namespace)
        await web_in(rig, namespace)
        shown = {"status": {"resolverPorts": [{"port": 80, "resolverPort": port, "name": "http"}]}}
        objects = rig.client.resource(ELASTISERVICES, namespace=namespace)
        await objects.subresource("status").patch("web", MergePatch(shown))
    await account.grant(OPERATOR_NAMESPACE_RULES, namespace=RESOLVER_NAMESPACE)
    settings = ResolverSettings(
        watch_namespaces=tuple(ports),
        host=address,
        shared_port=0,
        operator_url=f"http://{address}:1",
        engage_settle=0.1,
    )
    async with seen(rig, account, tmp_path) as relay, Client(rig.config) as client:
        async with Worker(client, settings, limits=Limits()).running():
            for namespace, port in ports.items():
                answer = await speak(address, port, probe_request(namespace, "web"))
                assert read_probe_answer(answer) == ProbeIdentity(namespace, "web")
                async with held_request(address, port):
                    await eventually(functools.partial(wished, rig, namespace))
    assert not forbidden(relay)


async def wished(rig: Rig, namespace: str) -> bool:
    found = await rig.client.resource(ELASTISERVICES, namespace=namespace).get("web")
    return WAKE_ANNOTATION in (found["metadata"].get("annotations") or {})


async def speak(address: str, port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(address, port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


@contextlib.asynccontextmanager
async def held_request(address: str, port: int) -> AsyncIterator[None]:
    """Somebody waits behind a resolver's port during the block."""
    _, writer = await asyncio.open_connection(address, port)
    writer.write(b"GET / HTTP/1.1\r\nHost: web\r\n\r\n")
    try:
        yield
    finally:
        writer.close()
        await writer.wait_closed()


async def _is(rig: Rig, namespace: str, state: str) -> bool:
    return await state_in(rig, namespace) == state
