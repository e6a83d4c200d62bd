"""What apps of several parts cost the API server: no watch, and at rest no request, that single apps do not."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.operator.environment import Environment

from tests.waiting import eventually

APPS = 10


class Fleet(Environment):
    """Apps of three parts each, all asleep; `joined`: in a chain, and with a worker for each app."""

    def __init__(self, *, joined: bool) -> None:
        super().__init__()
        for number in range(APPS):
            below: list[dict[str, str]] = []
            for part in ("db", "api", "web"):
                name = f"{part}-{number}"
                spec: dict[str, Any] = {"dependsOn": below} if joined else {}
                if part == "web":
                    worker = {"apiVersion": "apps/v1", "kind": "Deployment", "name": f"w-{number}"}
                    spec |= {"targets": [worker]} if joined else {}
                    self.put("deployments", {"spec": {"replicas": 1}}, worker["name"])
                self.web(0, name=name, triggers=[], **spec)
                below = [{"name": name}]


async def cost(env: Fleet) -> tuple[dict[str, int], Counter[str], int]:
    """Return the watches, the requests of ten minutes at rest, and how many workers sleep."""
    async with env.operator() as operator:

        def asleep() -> bool:
            found = env.all("elastiservices")
            return all((es.get("status") or {}).get("state") == "Proxy" for es in found)

        await eventually(asleep, timeout=120, every=0.5)
        await asyncio.sleep(60.0)
        before = len(operator.client.requests)
        await asyncio.sleep(600.0)
        # Watches are opened again at random times.
        asked = Counter(
            request.method
            for request in operator.client.requests[before:]
            if "watch" not in dict(request.query)
        )
        parked = [one for one in env.all("deployments") if one["metadata"]["name"][:2] == "w-"]
        sleeping = sum(not one["spec"]["replicas"] for one in parked)
        return operator.caches.manager.counts(), asked, sleeping


@pytest.mark.virtual_time
async def test_parts_cost_no_watch_and_no_request_at_rest():
    watches, asked, sleeping = await cost(Fleet(joined=False))
    joined_watches, joined_asked, joined_sleeping = await cost(Fleet(joined=True))
    assert (sleeping, joined_sleeping) == (0, APPS)
    assert joined_watches == watches
    assert joined_asked == asked
