"""Watches whose other end is dead, and nobody says so."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
from tests.operator.accounts import confined_operator
from tests.operator.api_relay import ApiRelay
from tests.operator.rig import Rig
from tests.operator.servers import everywhere

from kubeloop.client import ClientConfig

pytestmark = [everywhere, pytest.mark.timeout(180)]


async def test_watches_that_died_in_silence_are_built_anew(rig: Rig, tmp_path: Path):
    await rig.web(replicas=0)
    account = await confined_operator(rig, tmp_path, rig.namespace)
    relay = ApiRelay.to(rig.cluster.kubeconfig, token=await account.token())
    async with relay.running():
        rig.config = ClientConfig.from_kubeconfig(relay.kubeconfig(tmp_path / "relayed"))
        async with rig.operator(informer_stuck_after=2.0, informer_health_period=0.2) as operator:
            await rig.becomes("Proxy")
            relay.freeze()
            await rig.scale(1)
            await rig.becomes("Serve")
            url = f"http://127.0.0.1:{operator.server.port}/metrics"
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                assert "elasti_operator_informer_restarts_total{" in await answer.text()
