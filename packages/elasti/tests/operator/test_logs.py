"""One wake-up can be followed through the logs of both programs, by its id."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from tests.log_lines import capture_logs
from tests.operator.rig import Rig

from elasti.api.wire import IncomingRequest
from elasti.resolver.projections import ServiceKey
from elasti.resolver.services.operators import OperatorClient
from elasti.resolver.services.wake import WakeAnnotation, WakeLoop


@pytest.fixture
def lines() -> Iterator[list[dict[str, str]]]:
    """What is logged, with the context that was bound."""
    with capture_logs() as found:
        yield found


async def test_a_wake_up_has_one_id_in_both_programs(rig: Rig, lines: list[dict[str, str]]):
    await rig.web(replicas=0)
    async with rig.operator() as operator:
        await rig.becomes("Proxy")
        url = f"http://127.0.0.1:{operator.server.port}"
        held = [1]
        async with OperatorClient(url=url) as client:
            loop = WakeLoop(
                ServiceKey(rig.namespace, "web"),
                operator=client,
                durable=WakeAnnotation(rig.client, object_name=lambda _key: None),
                waiting=lambda: len(held),
                client=lambda: "10.0.0.9",
                asked=lambda _seconds: held.clear(),
            )
            loop.need()
            await rig.becomes("Serve")
            await loop.aclose()
    [begun] = [line for line in lines if line["event"] == "wake-up requested"]
    followed = [line for line in lines if line.get("wake_id") == begun["wake_id"]]
    assert [line["event"] for line in followed] == [
        "wake-up requested",
        "audit",
        "SuccessToScale",
        "wake request answered",
    ]
    assert {line["service"] for line in followed} == {f"{rig.namespace}/web"}


async def test_a_reconcile_names_its_object_and_has_an_id(rig: Rig, lines: list[dict[str, str]]):
    await rig.web(replicas=1)
    async with rig.operator():
        await rig.becomes("Serve")
    reconciled = [line for line in lines if "reconcile_id" in line]
    assert "NoReadinessProbe" in [line["event"] for line in reconciled]
    assert {(line["namespace"], line["name"]) for line in reconciled} == {(rig.namespace, "web")}


def test_a_message_of_an_older_resolver_has_no_id():
    old = b'{"svc":"web","namespace":"shop","count":1}'
    assert msgspec.json.decode(old, type=IncomingRequest).wake_id == ""
