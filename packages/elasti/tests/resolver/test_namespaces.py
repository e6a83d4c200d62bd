"""A resolver that watches some namespaces: serves theirs, and knows no others."""

from __future__ import annotations

import asyncio

import pytest
from tests.resolver.installation import NOT_YET, installation
from tests.resolver.support import HttpPod, free_port, get

from tests.waiting import eventually

pytestmark = pytest.mark.slow


async def test_services_of_several_watched_namespaces_are_served_and_of_others_not(tmp_path):
    ports = {name: free_port() for name in ("shop", "stage", "other")}
    pod = HttpPod()
    async with installation(tmp_path) as made, pod.answering():
        for namespace, port in ports.items():
            await made.namespace(namespace)
            # The same name everywhere: only the namespace tells them apart.
            await made.service("web", port, namespace=namespace)
        environment = {"WATCH_NAMESPACES": "shop,stage"}
        async with made.resolver(environment=environment) as running:
            with pytest.raises(ConnectionRefusedError):
                await get(ports["other"])
            shop = asyncio.create_task(get(ports["shop"]))

            async def is_held() -> bool:
                return (await running.activity("web", "shop"))["held"] == 1

            await eventually(is_held, ignore=NOT_YET)
            assert (await running.activity("web", "stage"))["held"] == 0
            status, _ = await running.ask("/activity?namespace=other&service=web")
            assert status == 404
            await made.endpoint("web", pod.port, namespace="shop")
            assert (await shop).startswith(b"HTTP/1.1 200 ")
            # One that appears later, in the other watched namespace.
            late = free_port()
            await made.service("late", late, namespace="stage")
            await made.endpoint("late", pod.port, namespace="stage")

            async def is_served() -> bool:
                return (await get(late)).startswith(b"HTTP/1.1 200 ")

            await eventually(is_served, ignore=NOT_YET)
            _, text = await running.ask("/metrics")
            assert b'namespace="other"' not in text
            assert b"elasti_resolver_services 3\n" in text
