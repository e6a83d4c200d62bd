"""Everything that an operator talks to beside the API server, pretending, in one process.

- A *resolver* that has every port open and says of each what it is asked for; its admin port sees no
  traffic.
- A *Prometheus* that answers at once: 1 for Prometheus' own uptime and for queries with the word
  `awake`, 0 otherwise.
- The *callers*: a crowd that asks for wake-ups at one moment.

Commands come as lines of JSON on standard input, answers go to standard output: see `COMMANDS`.
"""

from __future__ import annotations

import abc
import argparse
import asyncio
import json
import resource
import sys
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

from elasti.api.defaults import FIRST_RESOLVER_PORT, LAST_RESOLVER_PORT
from elasti.api.wire import INCOMING_PATH, ProbeIdentity, probe_answer

COMMANDS = ("ready", "wake", "counts")
_ACTIVITY = b'{"held":0,"open":0}'
_PATIENCE = 60.0


class Counts:
    """What came since the last look."""

    def __init__(self) -> None:
        self.probes = 0
        self.open_probes = 0
        self.most_probes = 0
        self.queries: list[str] = []

    def taken(self) -> dict[str, int]:
        """Return the counts and begin anew."""
        shown = {
            "probes": self.probes,
            "most_probes_at_once": self.most_probes,
            "queries": len(self.queries),
            "distinct_queries": len(set(self.queries)),
        }
        self.probes = self.most_probes = 0
        self.queries.clear()
        return shown


class _Connection(asyncio.Protocol, abc.ABC):
    """Reads heads of requests without bodies; who inherits answers them."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *heads, self._data = (self._data + data).split(b"\r\n\r\n")
        for head in heads:
            self._answer(head.decode())

    @abc.abstractmethod
    def _answer(self, head: str) -> None:
        """Answer a request by its head."""

    def _reply(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self._transport.write(head % len(body) + body)


class ProbePort(_Connection):
    """A data port of the resolver: tells whoever asks what they hope for."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        counts = self._counts
        counts.probes += 1
        counts.open_probes += 1
        counts.most_probes = max(counts.most_probes, counts.open_probes)

    def connection_lost(self, _error: Exception | None) -> None:
        self._counts.open_probes -= 1

    def _answer(self, head: str) -> None:
        namespace, _, service = (
            head.partition("X-Elasti-Service: ")[2].split("\r\n")[0].partition("/")
        )
        self._transport.write(probe_answer(ProbeIdentity(namespace, service)))
        self._transport.close()


class AdminPort(_Connection):
    """The resolver's admin port: nothing ever arrives."""

    def _answer(self, head: str) -> None:
        del head
        self._reply(_ACTIVITY)


class Prometheus(_Connection):
    """Answers queries."""

    def _answer(self, head: str) -> None:
        query = parse_qs(urlsplit(head.split(" ")[1]).query)["query"][0]
        self._counts.queries.append(query)
        value = "1" if query.startswith("min_over_time") or "awake" in query else "0"
        result = [{"metric": {}, "value": [time.time(), value]}]
        answer = {"status": "success", "data": {"resultType": "vector", "result": result}}
        self._reply(json.dumps(answer).encode())


async def wake(port: int, services: list[list[str]]) -> list[dict[str, Any]]:
    """Ask for all wake-ups at once, each on a connection of its own; tell when each was sent."""
    return await asyncio.gather(*(_wake(port, *service) for service in services))


async def _wake(port: int, namespace: str, service: str) -> dict[str, Any]:
    body = json.dumps({"count": 1, "svc": service, "namespace": namespace}).encode()
    sent = time.time()
    code = await _http(port, f"POST {INCOMING_PATH}", body)
    return {
        "namespace": namespace,
        "service": service,
        "sent": sent,
        "answered": time.time(),
        "code": code,
    }


async def ready(port: int) -> dict[str, float]:
    """Wait until the operator says that it is ready."""
    async with asyncio.timeout(_PATIENCE):
        while True:
            try:
                if await _http(port, "GET /readyz", b"") == 200:
                    return {"at": time.time()}
            except OSError:
                pass
            await asyncio.sleep(0.05)


async def _http(port: int, line: str, body: bytes) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"{line} HTTP/1.1\r\nHost: operator\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        status = await reader.readline()
        await reader.read()
        return int(status.split()[1])
    finally:
        writer.close()


async def obey(counts: Counts, command: dict[str, Any]) -> Any:
    """Do what a line asks for: `ready`, `wake` or `counts`."""
    match command:
        case {"do": "ready", "port": int(port)}:
            return await ready(port)
        case {"do": "wake", "port": int(port), "services": list(services)}:
            return await wake(port, services)
        case {"do": "counts"}:
            return counts.taken()
        case _:
            raise ValueError(f"no such command: {command}; of: {', '.join(COMMANDS)}")


async def serve(address: str, ports: range) -> None:
    """Listen everywhere, say so, and obey until standard input ends."""
    loop, counts = asyncio.get_running_loop(), Counts()
    servers = [
        await loop.create_server(lambda: ProbePort(counts), address, port, backlog=1024)
        for port in ports
    ]
    admin = await loop.create_server(lambda: AdminPort(counts), address, 0)
    prometheus = await loop.create_server(lambda: Prometheus(counts), "127.0.0.1", 0)
    shown = {
        "admin_port": admin.sockets[0].getsockname()[1],
        "prometheus": f"http://127.0.0.1:{prometheus.sockets[0].getsockname()[1]}",
    }
    print(json.dumps(shown), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await obey(counts, json.loads(line))), flush=True)
    for server in (*servers, admin, prometheus):
        server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--first", type=int, default=FIRST_RESOLVER_PORT)
    parser.add_argument("--ports", type=int, default=LAST_RESOLVER_PORT - FIRST_RESOLVER_PORT + 1)
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    first = arguments.first
    asyncio.run(serve(arguments.address, range(first, first + arguments.ports)))


if __name__ == "__main__":
    main()
