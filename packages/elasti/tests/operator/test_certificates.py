"""The leader makes the certificates of both programs, with rights on one Secret."""

from __future__ import annotations

import asyncio
import base64
import ssl
from pathlib import Path

import pytest
from tests.authn.peers import Calls, Mount, operator_port
from tests.log_lines import capture_logs
from tests.operator.accounts import confined_operator
from tests.operator.fakes import RESOLVER_NAMESPACE
from tests.operator.rig import Rig
from tests.operator.servers import everywhere

from elasti.api.names import TLS_SECRET
from elasti.authn.tls import PeerTls
from elasti.operator import certificates
from elasti.operator.certificates import PeerCertificates
from elasti.operator.rbac import TLS_RULES
from elasti.operator.settings import OperatorSettings
from elasti.resolver.services.wake import OperatorUnreachable
from kubeloop.aio.clock import SystemClock
from kubeloop.aio.tasks import finish
from kubeloop.objects.meta import JsonObject
from kubeloop.testing.fake_client import FakeClient
from tests.waiting import eventually

EMPTY: JsonObject = {"metadata": {"name": TLS_SECRET}, "type": "Opaque"}
SETTINGS = OperatorSettings(operator_namespace="elasti", tls_secret=TLS_SECRET)


def data_of(client: FakeClient) -> dict[str, str]:
    found = client.find("v1/secrets", TLS_SECRET, namespace="elasti") or {}
    return found.get("data") or {}


async def test_what_the_leader_makes_lets_the_programs_speak(tmp_path: Path):
    client = FakeClient()
    await client.resource("v1/secrets", namespace="elasti").create(EMPTY)
    running = asyncio.create_task(PeerCertificates(client, SETTINGS, clock=SystemClock()).run())
    try:
        await eventually(lambda: data_of(client))
    finally:
        await finish([running])
    mount, token_file = Mount(tmp_path / "tls"), tmp_path / "token"
    mount.write({name: base64.b64decode(value) for name, value in data_of(client).items()})
    token_file.write_text("x")
    tls = PeerTls(str(mount.place), required=True)
    async with operator_port(tls) as port:
        # Refused for its token, and so understood.
        with pytest.raises(OperatorUnreachable, match="status 401"):
            await Calls(tls, str(token_file)).operator(port)


async def test_without_its_secret_the_leader_says_what_to_do_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(certificates, "_LOOK_EVERY", 0.01)
    client = FakeClient()
    running = asyncio.create_task(PeerCertificates(client, SETTINGS, clock=SystemClock()).run())
    try:
        with capture_logs() as logs:
            await eventually(lambda: logs)
        assert logs[0]["log_level"] == "warning"
        assert "elasti install" in logs[0]["remedy"]
        secrets = client.resource("v1/secrets", namespace="elasti")
        await secrets.create(EMPTY)
        await eventually(lambda: data_of(client))
        # The documented remedy.
        await secrets.replace(await secrets.get(TLS_SECRET) | {"data": {}})
        await eventually(lambda: data_of(client))
    finally:
        await finish([running])


@everywhere
@pytest.mark.timeout(180)
async def test_an_operator_fills_the_secret_with_the_granted_rights(rig: Rig, tmp_path: Path):
    account = await confined_operator(rig, tmp_path, rig.namespace)
    await account.grant(TLS_RULES, namespace=RESOLVER_NAMESPACE, name="tls")
    secrets = rig.client.resource("v1/secrets", namespace=RESOLVER_NAMESPACE)
    await secrets.create(EMPTY)
    try:
        async with rig.operator(tls_secret=TLS_SECRET, operator_namespace=RESOLVER_NAMESPACE):

            async def authorities() -> str:
                found = await secrets.get(TLS_SECRET)
                return base64.b64decode((found.get("data") or {}).get("ca.crt", "")).decode()

            await eventually(authorities)
            ssl.create_default_context(cadata=await authorities())
    finally:
        await secrets.delete(TLS_SECRET)
