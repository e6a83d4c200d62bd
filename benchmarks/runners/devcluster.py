"""One `elasti dev`, started, idle, filled and watched; prints what it took as JSON."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from kubeloop.client import Client, ClientConfig
from kubeloop.client.errors import KubeError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterable

DEV = [sys.executable, "-c", "from elasti.cli.main import main; main()", "dev", "--port", "0"]
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["size"],
                                "properties": {
                                    "size": {"type": "string", "enum": ["small", "large"]},
                                    "replicas": {"type": "integer", "default": 1},
                                },
                            }
                        },
                    }
                },
            }
        ],
    },
}
MAPS = "/api/v1/namespaces/default/configmaps"
VERSION = re.compile(rb'"resourceVersion":"(\d+)"')
WRITERS = 32


class Family:
    """A process and all that it started, as the kernel counts them."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def resident_mib(self) -> float:
        return sum(_status(pid) for pid in self._pids(self._pid)) / 1024

    def cpu_seconds(self) -> float:
        return sum(_cpu(pid) for pid in self._pids(self._pid))

    def members(self, last_word: str) -> list[Family]:
        """Those whose command line ends with a word."""
        ends = b"\0%s\0" % last_word.encode()
        commands = ((pid, Path(f"/proc/{pid}/cmdline")) for pid in self._pids(self._pid))
        return [Family(pid) for pid, command in commands if command.read_bytes().endswith(ends)]

    def _pids(self, pid: int) -> Iterable[int]:
        yield pid
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                for child in (task / "children").read_text().split():
                    yield from self._pids(int(child))


def _status(pid: int) -> int:
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0])
    return 0


def _cpu(pid: int) -> float:
    with contextlib.suppress(OSError):
        threads = Path(f"/proc/{pid}/task").iterdir()
        return sum(int((one / "schedstat").read_text().split()[0]) for one in threads) / 1e9
    return 0.0


@contextlib.asynccontextmanager
async def started(core: int, kubeconfig: Path) -> AsyncIterator[tuple[Client, Family, float]]:
    """Start a cluster; yields it and the seconds until its node could be read."""
    begun = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *DEV,
        "--kubeconfig",
        str(kubeconfig),
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    try:
        os.sched_setaffinity(process.pid, {core})
        assert process.stdout is not None
        await _greeted(process.stdout)
        async with Client(ClientConfig.from_kubeconfig(kubeconfig)) as client:
            async for _ in client.resource("v1/nodes").items():
                pass
            yield client, Family(process.pid), time.perf_counter() - begun
    finally:
        process.terminate()
        await process.communicate()


async def _greeted(output: asyncio.StreamReader) -> None:
    while b"Ctrl-C" not in (line := await output.readline()):
        if not line:
            raise RuntimeError("`elasti dev` did not start")


async def quiet(family: Family) -> None:
    """Wait until a start has left nothing to do."""
    before = -1.0
    while (now := family.cpu_seconds()) != before:
        before = now
        await asyncio.sleep(1.0)


async def concurrently(count: int, work: Any) -> None:
    """Do `work(number)` for every number, by several writers."""
    numbers = iter(range(count))

    async def writer() -> None:
        for number in numbers:
            await work(number)

    await asyncio.gather(*(writer() for _ in range(WRITERS)))


async def make_widgets(client: Client, count: int) -> float:
    """Return the seconds that creating custom objects takes."""
    await client.resource("apiextensions.k8s.io/v1/customresourcedefinitions").create(DEFINITION)
    widgets = client.resource("example.com/v1/widgets", namespace="default")

    async def make(number: int) -> None:
        metadata = {"name": f"w{number:05d}", "namespace": "default", "labels": {"app": "bench"}}
        body = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": metadata}
        await widgets.create({**body, "spec": {"size": "small"}})

    begun = time.perf_counter()
    await concurrently(count, make)
    return time.perf_counter() - begun


class Watcher:
    """Reads one watch as bytes; knows how many events came, and whether in order."""

    def __init__(self) -> None:
        self.events = 0
        self._last = 0
        self._rest = b""

    async def read(self, session: aiohttp.ClientSession, url: str, until: int) -> None:
        async with session.get(url) as response:
            response.raise_for_status()
            while self.events < until:
                self._take(await response.content.readany())

    def _take(self, data: bytes) -> None:
        if not data:
            raise RuntimeError("a watch ended early")
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            found = VERSION.search(line)
            assert found is not None
            version = int(found.group(1))
            if version <= self._last:
                raise RuntimeError(f"out of order: {version} after {self._last}")
            self._last = version
        self.events += len(lines)


async def watch_writes(
    client: Client, session: aiohttp.ClientSession, base: str, *, watchers: int, writes: int
) -> dict[str, float]:
    """Write with many watching; seconds until everybody has seen everything, in order."""
    maps = client.resource("v1/configmaps", namespace="default")
    listed = await session.get(f"{base}{MAPS}?limit=1")
    version = (await listed.json())["metadata"]["resourceVersion"]
    url = f"{base}{MAPS}?watch=1&labelSelector=app%3Dbench&resourceVersion={version}"
    readers = [asyncio.create_task(Watcher().read(session, url, writes)) for _ in range(watchers)]

    async def write(number: int) -> None:
        metadata = {"name": f"m{number:05d}", "namespace": "default", "labels": {"app": "bench"}}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        await maps.create({**body, "data": {"number": str(number)}})

    begun = time.perf_counter()
    await concurrently(writes, write)
    written = time.perf_counter() - begun
    await asyncio.gather(*readers)
    return {"written": written, "seen": time.perf_counter() - begun}


async def open_watches(
    session: aiohttp.ClientSession, base: str, family: Family, count: int
) -> dict[str, float]:
    """Open many watches; seconds, and the memory each takes at the server."""
    before = family.resident_mib()
    begun = time.perf_counter()

    async def watch() -> aiohttp.ClientResponse:
        response = await session.get(f"{base}{MAPS}?watch=1&timeoutSeconds=600")
        response.raise_for_status()
        return response

    responses = await asyncio.gather(*(watch() for _ in range(count)))
    seconds = time.perf_counter() - begun
    grown = family.resident_mib() - before
    for response in responses:
        response.close()
    return {"seconds": seconds, "kib_each": grown * 1024 / count}


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one cluster through everything."""
    with tempfile.TemporaryDirectory() as directory:
        kubeconfig = Path(directory, "kubeconfig.yaml")
        async with started(arguments.core, kubeconfig) as (client, family, start):
            await quiet(family)
            cpu = family.cpu_seconds()
            await asyncio.sleep(arguments.idle)
            result: dict[str, Any] = {
                "start": start,
                "idle_cpu": (family.cpu_seconds() - cpu) / arguments.idle,
                "idle_mib": family.resident_mib(),
            }
            config = ClientConfig.from_kubeconfig(kubeconfig)
            connector = aiohttp.TCPConnector(ssl=await _context(config), limit=0)
            timeout = aiohttp.ClientTimeout(total=None)
            base = config.endpoint.url
            async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
                result["watches"] = await open_watches(session, base, family, arguments.watches)
                result["widgets"] = await make_widgets(client, arguments.objects)
                result["writes"] = await watch_writes(
                    client,
                    session,
                    base,
                    watchers=arguments.watchers,
                    writes=arguments.writes,
                )
            return result


async def _context(config: ClientConfig) -> Any:
    context = await config.credentials.ssl_context()
    assert context is not None
    return context


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--core", type=int, required=True)
    parser.add_argument("--idle", type=float, default=5.0)
    for name, default in (
        ("watches", 500),
        ("objects", 5000),
        ("watchers", 100),
        ("writes", 10000),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    print(json.dumps(_run(measure(parser.parse_args()))))


def _run(work: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    async def whole() -> dict[str, Any]:
        try:
            return await work
        except KubeError as error:
            raise SystemExit(f"the dev cluster refused: {error}") from error

    return asyncio.run(whole())


if __name__ == "__main__":
    main()
