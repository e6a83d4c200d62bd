"""Watches whose other end is dead, and nobody says so."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
from tests.client.connections import connections_to, seconds_to_notice
from tests.operator.accounts import confined_operator
from tests.operator.api_relay import ApiRelay
from tests.operator.rig import Rig
from tests.operator.servers import everywhere

from elasti.resolver.app import Worker
from elasti.resolver.settings import ResolverSettings
from kubeloop.client import Client, ClientConfig
from tests.waiting import eventually

pytestmark = [everywhere, pytest.mark.timeout(180)]


async def test_watches_that_died_in_silence_are_built_again(rig: Rig, tmp_path: Path):
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


async def test_every_connection_of_both_programs_to_the_server_notices_a_lost_peer(rig: Rig):
    await rig.web(replicas=0)
    settings = ResolverSettings(host="127.0.0.1", shared_port=0, engage_settle=0.1)
    async with (
        Client(rig.config) as client,
        rig.operator(leader_elect=True),
        Worker(client, settings).running(),
    ):
        await rig.becomes("Proxy")

        def all_notice() -> bool:
            found = [*map(seconds_to_notice, connections_to(rig.config.endpoint.port))]
            # The operator's five watches and the resolver's four, the lease, and what serves requests.
            return len(found) >= 5 + 4 + 1 + 1 and set(found) == {(30, 5, 3, 45)}

        # One whose handshake is under way has a time limit of its own instead.
        await eventually(all_notice)
