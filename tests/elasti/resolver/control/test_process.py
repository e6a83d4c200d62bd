"""`elasti resolver` as it is run: a process, or several, against an API server over the network."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from click.testing import CliRunner
from tests.elasti.resolver.control.cluster import fake_operator
from tests.elasti.resolver.control.test_app import HttpPod, free_port, get

from elasti.api.crd import custom_resource_definition
from elasti.api.names import API_VERSION, PRIVATE_LABEL, private_service_name
from elasti.api.wire import WakeOutcome
from elasti.cli.main import main
from elasti.devcluster.apiserver.server import ApiServer
from elasti.resolver.objects import ELASTI_SERVICES, SERVICE_LABEL
from kubeloop.client import Client
from kubeloop.client.errors import KubeError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.slow
COMMAND = [sys.executable, "-c", "from elasti.cli.main import main; main()", "resolver"]
READY = "/readyz"


def test_help_teaches():
    result = CliRunner().invoke(main, ["resolver", "--help"])
    assert result.exit_code == 0
    for word in ("status.resolverPorts", "POD_IP", "elasti resolver --workers 4"):
        assert word in result.output


def test_a_wrong_setting_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUE_SIZE", "many")
    result = CliRunner().invoke(main, ["resolver"])
    assert result.exit_code == 2
    assert "QUEUE_SIZE: 'many' is not a number above zero" in result.output


async def eventually(check: Any) -> Any:
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(OSError, aiohttp.ClientError, KubeError):
                if found := await check():
                    return found
            await asyncio.sleep(0.05)


class Running:
    def __init__(self, process: asyncio.subprocess.Process, admin: int) -> None:
        self.process, self.admin = process, admin

    async def ask(self, route: str) -> tuple[int, bytes]:
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{self.admin}{route}") as answer:
                return answer.status, await answer.read()

    async def is_ready(self) -> bool:
        return (await self.ask(READY))[0] == 200


@contextlib.asynccontextmanager
async def resolver(kubeconfig: str, operator: str, *flags: str) -> AsyncIterator[Running]:
    admin = free_port()
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "--host", "127.0.0.1", "--admin-port", str(admin), "--shared-port", "0",
        "--operator-url", operator, "--no-authentication", *flags,
        env=os.environ | {"KUBECONFIG": kubeconfig, "ELASTI_ENGAGE_SETTLE": "100ms"},
    )  # fmt: skip
    try:
        yield Running(process, admin)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def install(client: Client, port: int) -> None:
    """Make what an operator makes for a sleeping Service."""
    definitions = client.resource("apiextensions.k8s.io/v1/customresourcedefinitions")
    await definitions.create(custom_resource_definition())
    spec = {
        "service": "web",
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
    }
    body = {"apiVersion": API_VERSION, "kind": "ElastiService", "metadata": {"name": "web"}}

    async def create() -> Any:
        objects = client.resource(ELASTI_SERVICES, namespace="default")
        return await objects.create(body | {"spec": spec})

    made = await eventually(create)
    status = {"resolverPorts": [{"name": "http", "port": 80, "resolverPort": port}]}
    objects = client.resource(ELASTI_SERVICES, namespace="default")
    await objects.subresource("status").replace(made | {"status": status})
    services = client.resource("v1/services", namespace="default")
    await services.create(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": private_service_name("web"), "labels": {PRIVATE_LABEL: "true"}},
            "spec": {"ports": [{"name": "http", "port": 80}]},
        }
    )


async def list_pod(client: Client, port: int) -> None:
    """Do what Kubernetes does when the pod is ready."""
    name = private_service_name("web")
    slices = client.resource("discovery.k8s.io/v1/endpointslices", namespace="default")
    await slices.create(
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"{name}-x", "labels": {PRIVATE_LABEL: "true", SERVICE_LABEL: name}
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": True}}],
            "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
        }
    )  # fmt: skip


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_held_request_survives_sigterm_and_is_served(tmp_path, workers):
    port, process, woken = free_port(), HttpPod(), asyncio.Event()

    def on_wake(_):
        woken.set()
        return WakeOutcome.SCALING

    kubeconfig = tmp_path / "kubeconfig"
    async with ApiServer() as server, fake_operator(on_wake) as operator:
        kubeconfig.write_text(server.admin_kubeconfig())
        async with Client.from_kubeconfig(kubeconfig) as client:
            await install(client, port)
            async with resolver(str(kubeconfig), operator, "--workers", str(workers)) as running:
                await eventually(running.is_ready)
                asking = [asyncio.create_task(get(port)) for _ in range(10)]
                await woken.wait()
                route = "?namespace=default&service=web"

                async def all_held() -> bool:
                    return b'"held":10' in (await running.ask(f"/activity{route}"))[1]

                await eventually(all_held)
                assert (await running.ask(f"/queue-status{route}"))[1] == b'{"queueStatus":1}'
                running.process.send_signal(signal.SIGTERM)

                async def not_ready() -> bool:
                    return not await running.is_ready()

                await eventually(not_ready)
                async with process.answering():
                    await list_pod(client, process.port)
                    answers = await asyncio.gather(*asking)
                    async with asyncio.timeout(20):
                        assert await running.process.wait() == 0
    assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers)
    assert process.requests == 10
