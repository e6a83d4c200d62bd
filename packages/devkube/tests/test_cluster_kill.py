"""`kill -9` at any moment: what was acknowledged is there, and nothing else is."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from pathlib import Path

import pytest
from tests.dev_process import dev_process

from kubeloop.client import Client, ClientConfig, KubeError
from kubeloop.client.retry import RetryPolicy
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
ROUNDS = 4
WRITERS = 6


class AcknowledgedWrites:
    """What the server acknowledged: the value that each object must have."""

    def __init__(self) -> None:
        self.certain: dict[str, int] = {}
        self.possible: dict[str, int | None] = {}
        self.acknowledged = 0

    def has(self, writes: int) -> bool:
        """Whether so many were acknowledged in all."""
        return self.acknowledged >= writes

    def expected(self, name: str) -> set[int | None]:
        """Return the values that an object may have: the acknowledged, or one under way."""
        found: set[int | None] = {self.certain.get(name)}
        if name in self.possible:
            found.add(self.possible[name])
        return found


def config_map(name: str, value: int) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default"},
        "data": {"value": str(value)},
    }


async def write_until_cancelled(
    client: Client, ledger: AcknowledgedWrites, writer: int, first: int
) -> None:
    """Create, replace and delete, one thing after the other, until the server is gone."""
    maps = client.resource("v1/configmaps", namespace="default")
    for number in range(first, first + 100_000):
        name = f"w{writer}-{number % 7}"
        if name not in ledger.certain:
            ledger.possible[name] = number
            await maps.create(config_map(name, number))
            ledger.certain[name] = number
        elif number % 5:
            ledger.possible[name] = number
            await maps.replace(config_map(name, number))
            ledger.certain[name] = number
        else:
            ledger.possible[name] = None
            await maps.delete(name)
            del ledger.certain[name]
        del ledger.possible[name]
        ledger.acknowledged += 1


async def found_at(client: Client) -> dict[str, int]:
    maps = client.resource("v1/configmaps", namespace="default")
    return {
        item["metadata"]["name"]: int(item["data"]["value"])
        async for item in maps.items()
        if item["metadata"]["name"].startswith("w")
    }


def check(ledger: AcknowledgedWrites, found: dict[str, int]) -> None:
    """Compare, and go on with what is really there."""
    for name in {*ledger.certain, *ledger.possible, *found}:
        assert found.get(name) in ledger.expected(name), f"{name}: lost an acknowledged write"
    ledger.certain = found
    ledger.possible = {}


async def test_every_acknowledged_write_survives(tmp_path: Path) -> None:
    chance = random.Random(7)
    ledger = AcknowledgedWrites()
    for round_ in range(ROUNDS):
        async with dev_process(tmp_path, "--data-dir", str(tmp_path / "data")) as dev:
            # Starting is a moment like any other.
            await asyncio.sleep(chance.uniform(0.3, 1.2))
        async with dev_process(tmp_path, "--data-dir", str(tmp_path / "data")) as dev:
            await dev.ready()
            config = ClientConfig.from_kubeconfig(dev.kubeconfig)
            async with Client(config, retry=RetryPolicy.never()) as client:
                check(ledger, await found_at(client))
                first = (round_ + 1) * 1_000_000
                tasks = [
                    asyncio.create_task(write_until_cancelled(client, ledger, writer, first))
                    for writer in range(WRITERS)
                ]
                enough = ledger.acknowledged + 2 * WRITERS
                # A kill before anything is acknowledged would prove nothing.
                await eventually(functools.partial(ledger.has, enough))
                await asyncio.sleep(chance.uniform(0.0, 0.8))
                await dev.kill()
                await asyncio.wait(tasks)
                for task in tasks:
                    with contextlib.suppress(KubeError):
                        await task
    async with dev_process(tmp_path, "--data-dir", str(tmp_path / "data")) as dev:
        await dev.ready()
        async with Client(ClientConfig.from_kubeconfig(dev.kubeconfig)) as client:
            check(ledger, await found_at(client))
