"""The gates of others, with the resolver in the path: what Knative and the KEDA HTTP add-on demand of themselves.

Knative's `dataplane-probe` asks an app that takes 100 ms through its activator, and wants the 95th percentile at 110 ms
at most and no error; its `load-test` adds load in steps to 3 000 requests a second, without an error. The HTTP add-on
wants 3 000 requests a second through its interceptor. Their third gate, a mean cold start of 3 s over ten, needs
containers: `make realcluster-test` measures it (`test_release.py`).

wrk sends the next request when the last is answered, so `1 000 a second` is a hundred connections to such an app: a
stall slows the load down, too, and shows in the rate.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import sys
from typing import TYPE_CHECKING, cast

import uvloop

from benchmarks.processes import ROOT, Cores
from benchmarks.report import Figure, Report, at_least, at_most
from benchmarks.resolver_servers import Server, backend, free_port, launched, ours
from benchmarks.suites import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

_WORK = 0.1
_RATES = (1_000, 2_000, 3_000)
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n"


def run(settings: Settings) -> list[Figure]:
    """Hold the shipped resolver to each gate."""
    core, seconds = settings.cores.serving, 5 if settings.quick else 30
    figures: list[Figure] = []
    with _slow_app(core) as app, ours(settings.cores.measured, app.port) as proxy:
        for rate in _RATES:
            p95, failed, done = _load(
                proxy.port, core, connections=int(rate * _WORK), seconds=seconds
            )
            name = f"gates: an app of 100 ms at {rate} requests/s"
            figures += [
                Figure(f"{name}, p95", [p95], "ms", goal=at_most(110.0), note="Knative's bound"),
                Figure(f"{name}, failed", [failed], "", goal=at_most(0), note=f"{done:.0f}/s"),
            ]
    with backend(core) as app, ours(settings.cores.measured, app.port) as proxy:
        _, failed, done = _load(proxy.port, core, connections=50, seconds=seconds)
    return [
        *figures,
        Figure(
            "gates: requests through the resolver", [done], "/s", goal=at_least(3_000.0),
            note=f"the HTTP add-on's bound; {failed:.0f} failed",
        ),
    ]  # fmt: skip


def _load(port: int, core: int, *, connections: int, seconds: int) -> tuple[float, float, float]:
    """Return the 95th percentile in ms, how many failed, and the rate."""
    command = [
        "taskset", "-c", str(core), "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s",
        "-s", str(ROOT / "benchmarks" / "gates.lua"), f"http://127.0.0.1:{port}/",
    ]  # fmt: skip
    said = subprocess.run(command, check=True, capture_output=True, timeout=120).stdout.decode()
    gate = re.search(r"gate p95 ([\d.]+) failed (\d+)", said)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", said)
    if gate is None or rate is None:
        raise RuntimeError(f"wrk did not print its sums: {said}")
    return float(gate[1]), float(gate[2]), float(rate[1])


@contextlib.contextmanager
def _slow_app(core: int) -> Iterator[Server]:
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.resolver_gates", "--app", str(port)]
    with launched(command, core, port) as server:
        yield server


class _Conversation(asyncio.Protocol):
    """Answers each request of a kept connection 100 ms after it came."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Take a request, which comes whole."""
        loop = asyncio.get_running_loop()
        for _ in range(data.count(b"\r\n\r\n")):
            loop.call_later(_WORK, self._transport.write, _ANSWER)


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(
        _Conversation, "127.0.0.1", port, backlog=4096
    )
    await server.serve_forever()


def main() -> None:
    """Run this suite alone, or its app."""
    if "--app" in sys.argv:
        uvloop.run(_serve(int(sys.argv[-1])))
    settings = Settings(quick="--quick" in sys.argv, cores=Cores.of_this_machine())
    print(Report(run(settings)).table())


if __name__ == "__main__":
    main()
